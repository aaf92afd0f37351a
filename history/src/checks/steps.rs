//! A completed step happened as a whole or not at all.
//!
//! That outputs of a step that happened are delivered is told with all that is lost; that outputs of one that failed are not, with all
//! that is unexpected.

use std::collections::HashSet;

use crate::parsed::{Ask, Facts, Fate, Step, may_die, short};
use crate::report::{Check, Report};

pub(super) fn check(facts: &Facts<'_>, report: &mut Report) {
    report.looked_at(Check::Steps, facts.steps.len());
    let must_see: HashSet<&str> = facts.setup.groups.iter().map(|(topic, _)| *topic).collect();
    let seen: HashSet<(&str, &str)> =
        facts.deliveries.iter().map(|delivery| (delivery.topic, delivery.value)).collect();
    for step in &facts.steps {
        let settle = &facts.settles[step.settle];
        let asks = &facts.asks[step.asks.clone()];
        let name = || format!("the complete of topic {}, {} by group {}", settle.topic, settle.place, settle.group);
        if let Some(told) = step.told.filter(|told| *told != asks.len()) {
            report.accuse(Check::Steps, settle.span.seqs(), || {
                format!("{} was to produce {} messages and was told of {told}", name(), asks.len())
            });
        }
        if settle.fate != Fate::Info {
            continue;
        }
        let is_seen = |ask: &&Ask<'_>| seen.contains(&(ask.topic, ask.value));
        // Only what no other call can have produced speaks for this one.
        let own = || asks.iter().filter(|ask| is_only_ask(facts, step, ask));
        let Some(there) = own().find(is_seen) else { continue };
        let visible =
            |ask: &&Ask<'_>| must_see.contains(ask.topic) && ask.identity().is_none() && !may_die(ask.envelope);
        let missing = own().filter(visible).find(|ask| !is_seen(ask));
        if let Some(missing) = missing.filter(|_| facts.is_drained()) {
            report.accuse(Check::Steps, settle.span.seqs(), || {
                let (there, missing) = (short(there.value), short(missing.value));
                format!("{} produced \"{there}\" and not \"{missing}\"", name())
            });
        }
        let again = facts.stories.get(&settle.story()).and_then(|story| {
            let newest = story.deliveries.last().map(|index| &facts.deliveries[*index])?;
            settle.token.is_some_and(|token| newest.token > token).then_some(newest)
        });
        if let Some(again) = again {
            let mut seqs = settle.span.seqs();
            seqs.push(again.seq);
            report.accuse(Check::Steps, seqs, || {
                let there = short(there.value);
                format!(
                    "{} produced \"{there}\", and its message was delivered again as attempt {}",
                    name(),
                    again.attempt
                )
            });
        }
    }
}

fn is_only_ask(facts: &Facts<'_>, step: &Step, ask: &Ask<'_>) -> bool {
    let asks = facts.asks_of.get(&(ask.topic, ask.value)).map(Vec::as_slice).unwrap_or_default();
    asks.iter().all(|index| step.asks.contains(index) || !facts.asks[*index].may_have_stored())
}
