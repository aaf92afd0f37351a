//! Who may settle a message, and that what is settled stays so.

use crate::parsed::{Delivery, Facts, Fate, Settle, SettleOp, Story, StoryKey};
use crate::report::{Check, Report};

/// Stale words that were taken, and messages that came back after an ack.
pub(super) fn check(facts: &Facts<'_>, report: &mut Report) {
    for (key, story) in &facts.stories {
        let first_received = first_received(facts, story);
        let taken = story.settles.iter().map(|index| &facts.settles[*index]).filter(|settle| settle.fate == Fate::Ok);
        // A message that came back is told once.
        let mut returned = false;
        for settle in taken {
            report.looked_at(Check::Stale, usize::from(settle.token.is_some()));
            report.looked_at(Check::Resurrected, usize::from(settle.op.finishes()));
            let from = newer_than(facts, story, settle);
            let newer = story.deliveries.get(from).map(|index| &facts.deliveries[*index]);
            let seen_before = first_received.get(from).filter(|(seq, _)| *seq < settle.span.invoked);
            if let Some((_, index)) = seen_before.filter(|_| !came_too_late(facts, story, *key, settle)) {
                accuse_stale(settle, &facts.deliveries[*index], report);
                returned = true;
            } else if returned || !settle.op.finishes() {
                continue;
            } else if let Some(again) = newer.filter(|_| !came_too_late(facts, story, *key, settle)) {
                accuse_back(settle, again, report);
                returned = true;
            } else if let Some(again) = asked_after(facts, story, settle) {
                accuse_back(settle, again, report);
                returned = true;
            }
        }
    }
}

/// For every delivery: which of it and the newer ones was received first, and on which line.
fn first_received(facts: &Facts<'_>, story: &Story) -> Vec<(u64, usize)> {
    let mut first: Vec<(u64, usize)> = Vec::with_capacity(story.deliveries.len());
    for index in story.deliveries.iter().rev() {
        let this = (facts.deliveries[*index].seq, *index);
        first.push(first.last().map_or(this, |newer| this.min(*newer)));
    }
    first.reverse();
    first
}

/// Where among a message's deliveries those with a newer token than the one that was shown begin.
fn newer_than(facts: &Facts<'_>, story: &Story, settle: &Settle<'_>) -> usize {
    settle.token.map_or(story.deliveries.len(), |token| {
        story.deliveries.partition_point(|index| facts.deliveries[*index].token <= token)
    })
}

/// A delivery by a stream that was opened when the message had been finished for certain.
fn asked_after<'f, 'a>(facts: &'f Facts<'a>, story: &'f Story, settle: &Settle<'a>) -> Option<&'f Delivery<'a>> {
    let ended = settle.span.ended.filter(|_| settle.op.finishes())?;
    let mut deliveries = story.deliveries.iter().map(|index| &facts.deliveries[*index]);
    deliveries.find(|delivery| delivery.consume.is_some_and(|consume| consume > ended))
}

/// Whether the message may have been done when this was said: then it is answered as if it mattered, and changes nothing.
fn came_too_late(facts: &Facts<'_>, story: &Story, key: StoryKey<'_>, settle: &Settle<'_>) -> bool {
    if matches!(settle.op, SettleOp::Extend | SettleOp::Complete) {
        // These are refused on a message that is done.
        return false;
    }
    let may_have_finished = |other: &usize| {
        let other = &facts.settles[*other];
        let by_a_newer = other.token.is_none_or(|token| settle.token.is_some_and(|mine| token > mine));
        let is_other = other.span.invoked != settle.span.invoked;
        let in_time = other.span.invoked < settle.span.end();
        is_other && other.op.finishes() && other.fate.is_possible() && by_a_newer && in_time
    };
    story.settles.iter().any(may_have_finished) || facts.may_die(key)
}

fn accuse_stale(settle: &Settle<'_>, newer: &Delivery<'_>, report: &mut Report) {
    let mut seqs = vec![newer.seq];
    seqs.extend(settle.span.seqs());
    report.accuse(Check::Stale, seqs, || {
        let (name, op, token) = (newer.name(), settle.op.word(), settle.token.unwrap_or_default());
        format!(
            "{name}: the {op} of group {} with token {token} was taken although attempt {} with token {} had been received",
            settle.group, newer.attempt, newer.token
        )
    });
}

fn accuse_back(settle: &Settle<'_>, again: &Delivery<'_>, report: &mut Report) {
    let mut seqs = settle.span.seqs();
    seqs.push(again.seq);
    report.accuse(Check::Resurrected, seqs, || {
        let (name, op) = (again.name(), settle.op.word());
        let token = settle.token.map_or_else(String::new, |token| format!(" with token {token}"));
        format!(
            "{name} is delivered to group {} again, attempt {} with token {}, after its {op}{token}",
            again.group, again.attempt, again.token
        )
    });
}
