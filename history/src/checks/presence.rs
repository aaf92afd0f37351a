//! What must be there: every message in every group that must see it, and at the end nothing that is not done.

use std::collections::HashMap;

use crate::parsed::{Facts, Fate, StoryKey, short};
use crate::report::{Check, Report};

/// Messages by which a group has, or may have, finished an identity: one of them, and whether there are others.
type Finished<'a> = HashMap<(&'a str, &'a str, (&'a str, &'a str)), (u64, bool)>;

fn finished_identities<'a>(facts: &Facts<'a>) -> Finished<'a> {
    let mut finished: Finished<'a> = HashMap::new();
    for settle in facts.settles.iter().filter(|settle| settle.op.finishes() && settle.fate.is_possible()) {
        let (topic, group, offset) = settle.story();
        let Some(identity) = facts.messages.get(&(topic, offset)).and_then(|known| known.identity) else { continue };
        let (first, others) = finished.entry((topic, group, identity)).or_insert((offset, false));
        *others |= *first != offset;
    }
    finished
}

/// Whether a message may have been finished undelivered, because the group was done with another one of its identity.
fn may_be_skipped<'a>(facts: &Facts<'a>, finished: &Finished<'a>, (topic, group, offset): StoryKey<'a>) -> bool {
    let identity = facts.messages.get(&(topic, offset)).and_then(|known| known.identity);
    let by = identity.and_then(|identity| finished.get(&(topic, group, identity)));
    by.is_some_and(|(first, others)| *first != offset || *others)
}

/// What is known to exist and was never delivered to a group that must see it.
pub(super) fn lost(facts: &Facts<'_>, report: &mut Report) {
    if !facts.is_drained() {
        report.note("the history does not reach the end of drain round 1, so nothing can be called lost or missing");
        return;
    }
    let finished = finished_identities(facts);
    for (topic, group) in &facts.setup.groups {
        for ((_, offset), known) in facts.messages.range((*topic, 0)..=(*topic, u64::MAX)) {
            if known.redriven {
                continue;
            }
            report.looked_at(Check::Lost, 1);
            let key = (*topic, *group, *offset);
            let is_seen = facts.stories.get(&key).is_some_and(|story| !story.deliveries.is_empty());
            if is_seen || facts.may_be_dead(key) || may_be_skipped(facts, &finished, key) {
                continue;
            }
            report.accuse(Check::Lost, [known.seq], || {
                let how = if known.accepted { "was accepted" } else { "was seen by somebody else" };
                let (partition, value) = (known.partition, short(known.value));
                format!(
                    "topic {topic}, partition {partition}, offset {offset}, value \"{value}\" {how} and was never delivered to group {group}"
                )
            });
        }
    }
}

/// Whether the draining did what it is for.
pub(super) fn drained(facts: &Facts<'_>, report: &mut Report) {
    if facts.setup.groups.is_empty() {
        report.note("setup names no group that must see everything, so nothing had to be drained");
        return;
    }
    for (round, drain) in (1..).zip(&facts.drains) {
        match (drain.began, drain.ended) {
            (None, _) => report.accuse(Check::Drained, [], || format!("drain round {round} never began")),
            (Some(began), None) => {
                report.accuse(Check::Drained, [began], || format!("drain round {round} never ended"));
            }
            (Some(_), Some(_)) => {}
        }
    }
    undone(facts, report);
    second_round(facts, report);
}

/// What was delivered to a group and never finished by it.
fn undone(facts: &Facts<'_>, report: &mut Report) {
    if !facts.is_drained() {
        return;
    }
    let finished = finished_identities(facts);
    for (key, story) in &facts.stories {
        let Some(last) = story.deliveries.last().map(|last| &facts.deliveries[*last]) else { continue };
        if facts.setup.groups.binary_search(&(key.0, key.1)).is_err() {
            continue;
        }
        report.looked_at(Check::Drained, 1);
        let finishes = |settle: &usize| {
            let settle = &facts.settles[*settle];
            settle.op.finishes() && settle.fate.is_possible()
        };
        if story.settles.iter().any(finishes) || facts.may_be_dead(*key) || may_be_skipped(facts, &finished, *key) {
            continue;
        }
        report.accuse(Check::Drained, [last.seq], || {
            format!("{} was delivered to group {} and neither acked nor seen as a dead letter", last.name(), key.1)
        });
    }
}

/// What comes in the second round although the first ended with nothing left.
fn second_round(facts: &Facts<'_>, report: &mut Report) {
    let Some(began) = facts.drains[1].began else { return };
    for delivery in &facts.deliveries {
        // A line of a stream from before is merely late.
        let is_late = delivery.consume.is_some_and(|consume| consume < began);
        let must_see = facts.setup.groups.binary_search(&(delivery.topic, delivery.group)).is_ok();
        if delivery.seq < began || is_late || !must_see {
            continue;
        }
        let settles = facts.stories.get(&delivery.story()).map(|story| story.settles.as_slice()).unwrap_or_default();
        let before = |settle: &&usize| {
            let settle = &facts.settles[**settle];
            settle.op.finishes() && settle.fate != Fate::Fail && settle.span.invoked < delivery.seq
        };
        // Finished for certain, it has been resurrected, which is told elsewhere; perhaps finished, it may come back.
        if settles.iter().find(before).is_none() {
            report.accuse(Check::Drained, [began, delivery.seq], || {
                format!("{} is delivered to group {} in drain round 2", delivery.name(), delivery.group)
            });
        }
    }
}
