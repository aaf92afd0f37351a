//! Only the newest delivery settles a message, and an acked message stays acked.

use crate::parsed::{CallResult, Delivery, MessageTimeline, ParsedHistory, SettleCall, SettleOp, TimelineKey};
use crate::report::{Check, Report};

/// Finds settling calls that were accepted with an old token, and deliveries after an ack.
pub(super) fn check(history: &ParsedHistory<'_>, report: &mut Report) {
    for (key, timeline) in &history.timelines {
        let first_received = first_received(history, timeline);
        let accepted = timeline
            .settles
            .iter()
            .map(|index| &history.settles[*index])
            .filter(|settle| settle.ended_as == CallResult::Ok);
        // Each message is reported once.
        let mut is_reported = false;
        for settle in accepted {
            report.count(Check::Stale, usize::from(settle.token.is_some()));
            report.count(Check::Resurrected, usize::from(settle.op.is_ack()));
            let from = newer_than(history, timeline, settle);
            let newer = timeline.deliveries.get(from).map(|index| &history.deliveries[*index]);
            let seen_before = first_received.get(from).filter(|(seq, _)| *seq < settle.span.invoked);
            if let Some((_, index)) = seen_before.filter(|_| !may_be_no_op(history, timeline, *key, settle)) {
                report_stale(settle, &history.deliveries[*index], report);
                is_reported = true;
            } else if is_reported || !settle.op.is_ack() {
                continue;
            } else if let Some(again) = newer.filter(|_| !may_be_no_op(history, timeline, *key, settle)) {
                report_redelivery(settle, again, report);
                is_reported = true;
            } else if let Some(again) = consumed_after(history, timeline, settle) {
                report_redelivery(settle, again, report);
                is_reported = true;
            }
        }
    }
}

/// For every delivery: the line and index of the one that was received first among it and all newer ones.
fn first_received(history: &ParsedHistory<'_>, timeline: &MessageTimeline) -> Vec<(u64, usize)> {
    let mut first: Vec<(u64, usize)> = Vec::with_capacity(timeline.deliveries.len());
    for index in timeline.deliveries.iter().rev() {
        let this = (history.deliveries[*index].seq, *index);
        first.push(first.last().map_or(this, |newer| this.min(*newer)));
    }
    first.reverse();
    first
}

/// The index of the first delivery of a message with a newer token than that of the call.
fn newer_than(history: &ParsedHistory<'_>, timeline: &MessageTimeline, settle: &SettleCall<'_>) -> usize {
    settle.token.map_or(timeline.deliveries.len(), |token| {
        timeline.deliveries.partition_point(|index| history.deliveries[*index].token <= token)
    })
}

/// A delivery by a stream that was opened after the message had certainly been acked.
fn consumed_after<'f, 'a>(
    history: &'f ParsedHistory<'a>,
    timeline: &'f MessageTimeline,
    settle: &SettleCall<'a>,
) -> Option<&'f Delivery<'a>> {
    let ended = settle.span.ended.filter(|_| settle.op.is_ack())?;
    let mut deliveries = timeline.deliveries.iter().map(|index| &history.deliveries[*index]);
    deliveries.find(|delivery| delivery.consume.is_some_and(|consume| consume > ended))
}

/// Whether the message may have been acked before the call: then the call is accepted and changes nothing.
fn may_be_no_op(
    history: &ParsedHistory<'_>,
    timeline: &MessageTimeline,
    key: TimelineKey<'_>,
    settle: &SettleCall<'_>,
) -> bool {
    if matches!(settle.op, SettleOp::Extend | SettleOp::Complete) {
        // These are refused on an acked message.
        return false;
    }
    let may_have_acked = |other: &usize| {
        let other = &history.settles[*other];
        let is_newer = other.token.is_none_or(|token| settle.token.is_some_and(|mine| token > mine));
        let is_other = other.span.invoked != settle.span.invoked;
        let in_time = other.span.invoked < settle.span.end();
        is_other && other.op.is_ack() && other.ended_as.is_possible() && is_newer && in_time
    };
    timeline.settles.iter().any(may_have_acked) || history.may_be_dead(key)
}

fn report_stale(settle: &SettleCall<'_>, newer: &Delivery<'_>, report: &mut Report) {
    let mut seqs = vec![newer.seq];
    seqs.extend(settle.span.seqs());
    report.add_violation(Check::Stale, seqs, || {
        let (name, op, token) = (newer.name(), settle.op.name(), settle.token.unwrap_or_default());
        format!(
            "{name}: the {op} of group {} with token {token} was accepted although attempt {} with token {} had been received",
            settle.group, newer.attempt, newer.token
        )
    });
}

fn report_redelivery(settle: &SettleCall<'_>, again: &Delivery<'_>, report: &mut Report) {
    let mut seqs = settle.span.seqs();
    seqs.push(again.seq);
    report.add_violation(Check::Resurrected, seqs, || {
        let (name, op) = (again.name(), settle.op.name());
        let token = settle.token.map_or_else(String::new, |token| format!(" with token {token}"));
        format!(
            "{name} is delivered to group {} again, attempt {} with token {}, after its {op}{token}",
            again.group, again.attempt, again.token
        )
    });
}
