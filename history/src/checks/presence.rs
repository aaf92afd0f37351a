//! Every message reaches every group of the setup, and at the end every message is acked or dead.

use crate::parsed::{CallResult, ParsedHistory, short};
use crate::report::{Check, Report};

/// Finds messages that exist and were never delivered to a group of the setup.
pub(super) fn lost(history: &ParsedHistory<'_>, report: &mut Report) {
    if !history.is_drained() {
        report.note("drain round 1 has not ended, so lost messages and gaps are not checked");
        return;
    }
    for (topic, group) in &history.setup.groups {
        for ((_, offset), known) in history.messages.range((*topic, 0)..=(*topic, u64::MAX)) {
            if known.redriven {
                continue;
            }
            report.count(Check::Lost, 1);
            let key = (*topic, *group, *offset);
            let is_seen = history.timelines.get(&key).is_some_and(|timeline| !timeline.deliveries.is_empty());
            if is_seen || history.counts_as_dead(key) || known.already_done {
                continue;
            }
            report.add_violation(Check::Lost, [known.seq], || {
                let how = if known.accepted { "was accepted" } else { "was seen by another client" };
                let (partition, value) = (known.partition, short(known.value));
                format!(
                    "topic {topic}, partition {partition}, offset {offset}, value \"{value}\" {how} and was never delivered to group {group}"
                )
            });
        }
    }
}

/// Checks that both drain rounds ended and left nothing.
pub(super) fn drained(history: &ParsedHistory<'_>, report: &mut Report) {
    if history.setup.groups.is_empty() {
        report.note("the setup names no groups, so the drain is not checked");
        return;
    }
    for (round, drain) in (1..).zip(&history.drains) {
        match (drain.began, drain.ended) {
            (None, _) => report.add_violation(Check::Drained, [], || format!("drain round {round} never began")),
            (Some(began), None) => {
                report.add_violation(Check::Drained, [began], || format!("drain round {round} never ended"));
            }
            (Some(_), Some(_)) => {}
        }
    }
    unacked(history, report);
    second_round(history, report);
}

/// Finds messages that were delivered to a group and never acked in it.
fn unacked(history: &ParsedHistory<'_>, report: &mut Report) {
    if !history.is_drained() {
        return;
    }
    for (key, timeline) in &history.timelines {
        let Some(last) = timeline.deliveries.last().map(|last| &history.deliveries[*last]) else { continue };
        if history.setup.groups.binary_search(&(key.0, key.1)).is_err() {
            continue;
        }
        report.count(Check::Drained, 1);
        let may_ack = |settle: &usize| {
            let settle = &history.settles[*settle];
            settle.op.is_ack() && settle.ended_as.is_possible()
        };
        if timeline.settles.iter().any(may_ack) || history.counts_as_dead(*key) {
            continue;
        }
        report.add_violation(Check::Drained, [last.seq], || {
            format!("{} was delivered to group {} and neither acked nor seen as a dead letter", last.name(), key.1)
        });
    }
}

/// Finds messages that are delivered in the second round although the first left nothing.
fn second_round(history: &ParsedHistory<'_>, report: &mut Report) {
    let Some(began) = history.drains[1].began else { return };
    for delivery in &history.deliveries {
        // A line of an earlier stream is only late.
        let is_late = delivery.consume.is_some_and(|consume| consume < began);
        let is_in_setup = history.setup.groups.binary_search(&(delivery.topic, delivery.group)).is_ok();
        if delivery.seq < began || is_late || !is_in_setup {
            continue;
        }
        let settles = history
            .timelines
            .get(&delivery.timeline_key())
            .map(|timeline| timeline.settles.as_slice())
            .unwrap_or_default();
        let before = |settle: &&usize| {
            let settle = &history.settles[**settle];
            settle.op.is_ack() && settle.ended_as != CallResult::Fail && settle.span.invoked < delivery.seq
        };
        // If certainly acked, it is reported as resurrected; if possibly acked, it may come back.
        if settles.iter().find(before).is_none() {
            report.add_violation(Check::Drained, [began, delivery.seq], || {
                format!("{} is delivered to group {} in drain round 2", delivery.name(), delivery.group)
            });
        }
    }
}
