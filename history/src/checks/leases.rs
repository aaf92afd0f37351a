//! Deliveries among themselves: attempts and tokens, leases that overlap, the order of first ones.

use crate::parsed::{Delivery, Facts, Fate, Settle, SettleOp, Story};
use crate::report::{Check, Report};

/// Attempts rise with every delivery, and no two share a token.
pub(super) fn attempts(facts: &Facts<'_>, report: &mut Report) {
    report.looked_at(Check::Attempts, facts.deliveries.len());
    let mut by_token: Vec<&Delivery<'_>> = facts.deliveries.iter().collect();
    by_token.sort_by_key(|delivery| (delivery.token, delivery.seq));
    for pair in by_token.windows(2).filter(|pair| pair[0].token == pair[1].token) {
        report.accuse(Check::Attempts, [pair[0].seq, pair[1].seq], || {
            let [one, other] =
                [pair[0], pair[1]].map(|delivery| format!("{} for group {}", delivery.name(), delivery.group));
            format!("token {} was given twice, with {one} and with {other}", pair[0].token)
        });
    }
    for story in facts.stories.values() {
        for (earlier, later) in pairs(facts, story) {
            if earlier.token != later.token && earlier.attempt >= later.attempt {
                report.accuse(Check::Attempts, [earlier.seq, later.seq], || {
                    format!(
                        "{} comes to group {} as attempt {} with token {}, after attempt {} with the older token {}",
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

fn pairs<'f, 'a>(facts: &'f Facts<'a>, story: &'f Story) -> impl Iterator<Item = (&'f Delivery<'a>, &'f Delivery<'a>)> {
    story.deliveries.windows(2).map(|pair| (&facts.deliveries[pair[0]], &facts.deliveries[pair[1]]))
}

/// While a message is leased to one worker of a group it is leased to no other.
pub(super) fn overlap(facts: &Facts<'_>, report: &mut Report) {
    for story in facts.stories.values() {
        for (earlier, later) in pairs(facts, story) {
            report.looked_at(Check::Overlap, 1);
            let (Some(end), Some(began)) = (lease_end(facts, story, earlier, later.seq), later.began()) else {
                continue;
            };
            if began >= end || may_have_ended(facts, story, earlier, later) {
                continue;
            }
            report.accuse(Check::Overlap, [earlier.seq, later.seq], || {
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

/// The moment before which a lease has certainly not run out, by the server's clock. Extensions count that were asked for before the
/// line `before`: a later one that was taken is told as stale.
pub(super) fn lease_end(facts: &Facts<'_>, story: &Story, delivery: &Delivery<'_>, before: u64) -> Option<u64> {
    let (mut extended, mut is_surely_extended) = (u64::MAX, false);
    let extensions = facts
        .words_about(story, delivery.token)
        .filter(|settle| settle.op == SettleOp::Extend && settle.span.invoked < before);
    for settle in extensions {
        match (settle.fate, settle.until) {
            // An extension may also shorten a lease; of several, any may have been the last.
            (Fate::Ok, Some(until)) => {
                extended = extended.min(until);
                is_surely_extended |= settle.token.is_some();
            }
            (Fate::Fail, _) => {}
            _ => return None,
        }
    }
    let until = delivery.until?;
    Some(if is_surely_extended { extended } else { extended.min(until) })
}

/// Whether a lease may have ended early before a later delivery was received, or the clocks forbid to compare.
fn may_have_ended(facts: &Facts<'_>, story: &Story, earlier: &Delivery<'_>, later: &Delivery<'_>) -> bool {
    let first = earlier.consume.unwrap_or(earlier.seq).min(later.seq);
    let ends_it =
        |settle: &Settle<'_>| settle.op.ends_lease() && settle.fate.is_possible() && settle.span.invoked < later.seq;
    earlier.ends_with_stream
        || facts.clock_between(first, earlier.seq.max(later.seq))
        || facts.words_about(story, earlier.token).any(ends_it)
}

/// First deliveries come in the order of the offsets, partition by partition.
pub(super) fn order(facts: &Facts<'_>, report: &mut Report) {
    let in_order = |delivery: &&Delivery<'_>| {
        let known = facts.messages.get(&(delivery.topic, delivery.place.offset));
        delivery.attempt == 1 && !known.is_some_and(|known| known.out_of_order)
    };
    let mut firsts: Vec<&Delivery<'_>> = facts.deliveries.iter().filter(in_order).collect();
    firsts.sort_by_key(|delivery| (delivery.topic, delivery.group, delivery.place.partition, delivery.token));
    report.looked_at(Check::Order, firsts.len());
    let mut highest: Option<&Delivery<'_>> = None;
    for delivery in firsts {
        match highest {
            Some(before) if !is_same_queue(before, delivery) => highest = Some(delivery),
            Some(before) if before.place.offset > delivery.place.offset => {
                report.accuse(Check::Order, [before.seq, delivery.seq], || {
                    let (name, group) = (delivery.name(), delivery.group);
                    format!("{name} was first delivered to group {group} after offset {}", before.place.offset)
                });
            }
            _ => highest = Some(delivery),
        }
    }
}

fn is_same_queue(one: &Delivery<'_>, other: &Delivery<'_>) -> bool {
    (one.topic, one.group, one.place.partition) == (other.topic, other.group, other.place.partition)
}
