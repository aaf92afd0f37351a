//! Compares deliveries with each other: attempts and tokens, overlapping leases, the order of first deliveries.

use crate::parsed::{CallResult, Delivery, MessageTimeline, ParsedHistory, SettleCall, SettleOp};
use crate::report::{Check, Report};

/// Attempts increase with every delivery, and no two deliveries share a token.
pub(super) fn attempts(history: &ParsedHistory<'_>, report: &mut Report) {
    report.count(Check::Attempts, history.deliveries.len());
    let mut by_token: Vec<&Delivery<'_>> = history.deliveries.iter().collect();
    by_token.sort_by_key(|delivery| (delivery.token, delivery.seq));
    for pair in by_token.windows(2).filter(|pair| pair[0].token == pair[1].token) {
        report.add_violation(Check::Attempts, [pair[0].seq, pair[1].seq], || {
            let [one, other] =
                [pair[0], pair[1]].map(|delivery| format!("{} for group {}", delivery.name(), delivery.group));
            format!("token {} was used twice, with {one} and with {other}", pair[0].token)
        });
    }
    for timeline in history.timelines.values() {
        for (earlier, later) in pairs(history, timeline) {
            if earlier.token != later.token && earlier.attempt >= later.attempt {
                report.add_violation(Check::Attempts, [earlier.seq, later.seq], || {
                    format!(
                        "{} is delivered to group {} as attempt {} with token {}, after attempt {} with the older token {}",
                        later.name(),
                        later.group,
                        later.attempt,
                        later.token,
                        earlier.attempt,
                        earlier.token
                    )
                });
            }
        }
    }
}

fn pairs<'f, 'a>(
    history: &'f ParsedHistory<'a>,
    timeline: &'f MessageTimeline,
) -> impl Iterator<Item = (&'f Delivery<'a>, &'f Delivery<'a>)> {
    timeline.deliveries.windows(2).map(|pair| (&history.deliveries[pair[0]], &history.deliveries[pair[1]]))
}

/// A message is leased to one consumer of a group at a time.
pub(super) fn overlap(history: &ParsedHistory<'_>, report: &mut Report) {
    for timeline in history.timelines.values() {
        for (earlier, later) in pairs(history, timeline) {
            report.count(Check::Overlap, 1);
            let began = match history.clock_changed_between(0, later.seq) {
                true => later.began_at_latest(),
                false => later.began(),
            };
            let (Some(end), Some(began)) = (lease_end(history, timeline, earlier, later.seq), began) else {
                continue;
            };
            if began >= end || may_have_ended(history, timeline, earlier, later) {
                continue;
            }
            report.add_violation(Check::Overlap, [earlier.seq, later.seq], || {
                format!(
                    "{} was leased to {} of group {} {} ms before its lease to {} (token {}) had ended",
                    later.name(),
                    later.owner,
                    later.group,
                    end - began,
                    earlier.owner,
                    earlier.token
                )
            });
        }
    }
}

/// The time before which a lease has certainly not expired, by the broker's clock. Counts extends invoked before the
/// line `before`; a later one that was accepted is reported as stale.
pub(super) fn lease_end(
    history: &ParsedHistory<'_>,
    timeline: &MessageTimeline,
    delivery: &Delivery<'_>,
    before: u64,
) -> Option<u64> {
    let (mut extended, mut is_certainly_extended) = (u64::MAX, false);
    let extensions = history
        .settles_of_delivery(timeline, delivery.token)
        .filter(|settle| settle.op == SettleOp::Extend && settle.span.invoked < before);
    for settle in extensions {
        match (settle.ended_as, settle.until) {
            // An extend may also shorten a lease, and of several any may have been the last.
            (CallResult::Ok, Some(until)) => {
                extended = extended.min(until);
                is_certainly_extended |= settle.token.is_some();
            }
            (CallResult::Fail, _) => {}
            _ => return None,
        }
    }
    let until = delivery.until?;
    Some(if is_certainly_extended { extended } else { extended.min(until) })
}

/// Whether a lease may have ended early before a later delivery was received, or clock changes forbid the comparison.
fn may_have_ended(
    history: &ParsedHistory<'_>,
    timeline: &MessageTimeline,
    earlier: &Delivery<'_>,
    later: &Delivery<'_>,
) -> bool {
    let first = earlier.consume.unwrap_or(earlier.seq).min(later.seq);
    let ends_it = |settle: &SettleCall<'_>| {
        settle.op.ends_lease() && settle.ended_as.is_possible() && settle.span.invoked < later.seq
    };
    earlier.ends_with_stream
        || history.clock_changed_between(first, earlier.seq.max(later.seq))
        || history.settles_of_delivery(timeline, earlier.token).any(ends_it)
}

/// How many lines before a message is first shown a stream can have ended whose delivery of it was withdrawn: the
/// broker notices a disconnect later than the client.
const NOTICED_AFTER: u64 = 100;

/// First deliveries of a partition are in offset order. A delivery that was withdrawn, since its stream had ended, does
/// not count, and no client sees it; so a stream that ended excuses a later first delivery.
pub(super) fn order(history: &ParsedHistory<'_>, report: &mut Report) {
    let in_order = |delivery: &&Delivery<'_>| {
        let known = history.messages.get(&(delivery.topic, delivery.at.offset));
        delivery.attempt == 1 && !known.is_some_and(|known| known.out_of_order)
    };
    let mut firsts: Vec<&Delivery<'_>> = history.deliveries.iter().filter(in_order).collect();
    firsts.sort_by_key(|delivery| (delivery.topic, delivery.group, delivery.at.partition, delivery.token));
    report.count(Check::Order, firsts.len());
    let mut highest: Option<&Delivery<'_>> = None;
    for delivery in firsts {
        match highest {
            Some(before) if !is_same_queue(before, delivery) => highest = Some(delivery),
            Some(before) if before.at.offset > delivery.at.offset && !may_be_withdrawn(history, delivery) => {
                report.add_violation(Check::Order, [before.seq, delivery.seq], || {
                    let (name, group) = (delivery.name(), delivery.group);
                    format!("{name} was first delivered to group {group} after offset {}", before.at.offset)
                });
            }
            _ => highest = Some(delivery),
        }
    }
}

/// Whether an earlier delivery of the message may have been withdrawn.
fn may_be_withdrawn(history: &ParsedHistory<'_>, delivery: &Delivery<'_>) -> bool {
    let known = history.messages.get(&(delivery.topic, delivery.at.offset));
    let from = known.map_or(0, |known| known.seq.saturating_sub(NOTICED_AFTER));
    history.stream_ended_between(delivery.topic, delivery.group, from, delivery.seq)
}

fn is_same_queue(one: &Delivery<'_>, other: &Delivery<'_>) -> bool {
    (one.topic, one.group, one.at.partition) == (other.topic, other.group, other.at.partition)
}
