//! One message at an offset, one offset for a message, and no offset missing.
//!
//! Offsets count per topic, over all its partitions; a dead-letter topic counts by itself.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::parsed::{Ask, Facts, MessageKey, Origin, Place, is_dead_letter_topic, may_die, short};
use crate::report::{Check, Report};

/// Who says that a message stands at an offset.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Witness {
    Producer,
    Consumer,
}

struct Claim<'a> {
    place: Place,
    value: &'a str,
    seq: u64,
    witness: Witness,
}

/// What counts as the same message in a topic: its value and, for a dead letter, whose it is.
type Message<'a> = (&'a str, &'a str, Option<(&'a str, &'a str, u64)>);

pub(super) fn check(facts: &Facts<'_>, report: &mut Report) {
    report.looked_at(Check::Offsets, facts.messages.len());
    let mut claims = Claims::default();
    for ask in facts.asks.iter().filter(|ask| !ask.duplicate) {
        if let Some(place) = ask.place {
            let claim = Claim { place, value: ask.value, seq: ask.span.last(), witness: Witness::Producer };
            claims.take((ask.topic, ask.value, None), claim, report);
        }
    }
    for delivery in &facts.deliveries {
        let dead = delivery.origin.filter(|_| is_dead_letter_topic(delivery.topic));
        let whose = dead.map(|Origin { topic, group, place }| (topic, group, place.offset));
        let claim =
            Claim { place: delivery.place, value: delivery.value, seq: delivery.seq, witness: Witness::Consumer };
        if delivery.redriven {
            // The same value at a new offset is what a redrive is for.
            claims.stand(delivery.topic, claim, report);
        } else {
            claims.take((delivery.topic, delivery.value, whose), claim, report);
        }
    }
    claims.one_offset_each(facts, report);
    gaps(facts, report);
}

#[derive(Default)]
struct Claims<'a> {
    at: HashMap<MessageKey<'a>, Claim<'a>>,
    offsets: BTreeMap<Message<'a>, BTreeMap<u64, u64>>,
}

impl<'a> Claims<'a> {
    fn take(&mut self, message: Message<'a>, claim: Claim<'a>, report: &mut Report) {
        self.offsets.entry(message).or_default().entry(claim.place.offset).or_insert(claim.seq);
        self.stand(message.0, claim, report);
    }

    /// Compares a claim with the first one made of its offset.
    fn stand(&mut self, topic: &'a str, claim: Claim<'a>, report: &mut Report) {
        let Some(first) = self.at.get(&(topic, claim.place.offset)) else {
            self.at.insert((topic, claim.place.offset), claim);
            return;
        };
        let seqs = [first.seq, claim.seq];
        if first.place.partition != claim.place.partition {
            report.accuse(Check::Offsets, seqs, || {
                let [one, other] = [first, &claim].map(|claim| format!("partition {}", claim.place.partition));
                let (offset, value) = (claim.place.offset, short(claim.value));
                format!("topic {topic}, offset {offset}, value \"{value}\" stands in {one} and in {other}")
            });
        } else if first.value != claim.value && first.witness == claim.witness {
            // A consumer who sees other than what the producer was told of has been handed something altered.
            report.accuse(Check::Offsets, seqs, || {
                let [one, other] = [first, &claim].map(|claim| short(claim.value));
                format!("topic {topic}, {} holds both \"{one}\" and \"{other}\"", claim.place)
            });
        }
    }

    fn one_offset_each(&self, facts: &Facts<'a>, report: &mut Report) {
        for ((topic, value, dead), offsets) in self.offsets.iter().filter(|(_, offsets)| offsets.len() > 1) {
            let asks = facts.asks_of.get(&(*topic, *value)).map(Vec::as_slice).unwrap_or_default();
            let stored = if dead.is_some() { 1 } else { storings(facts, asks) };
            // What nobody asked for is told elsewhere.
            if stored == 0 || offsets.len() <= stored {
                continue;
            }
            let list: Vec<String> = offsets.keys().map(u64::to_string).collect();
            let mut seqs: Vec<u64> = offsets.values().copied().take(8).collect();
            seqs.sort_unstable();
            report.accuse(Check::Offsets, seqs, || {
                format!("topic {topic}, value \"{}\" stands at more than one offset: {}", short(value), list.join(", "))
            });
        }
    }
}

/// How often a value can have been stored: once for every ask, for all tries of one step, and for all of one idempotency key.
fn storings(facts: &Facts<'_>, asks: &[usize]) -> usize {
    let mut alone = 0;
    let (mut steps, mut identities) = (HashSet::new(), HashSet::new());
    for ask in asks.iter().map(|index| &facts.asks[*index]).filter(|ask| ask.may_have_stored()) {
        match (ask.step, ask.identity()) {
            (Some(step), _) => drop(steps.insert(step)),
            (None, Some(identity)) => drop(identities.insert(identity)),
            (None, None) => alone += 1,
        }
    }
    alone + steps.len() + identities.len()
}

/// Offsets that nobody was ever told of, below one that somebody was.
fn gaps(facts: &Facts<'_>, report: &mut Report) {
    if !facts.is_drained() {
        return;
    }
    let mut topics: BTreeSet<&str> = facts.setup.groups.iter().map(|(topic, _)| *topic).collect();
    topics.extend(facts.drained_topics.iter().filter(|topic| is_dead_letter_topic(topic)));
    for topic in topics {
        if may_hide(facts, topic) {
            report.note(format!(
                "topic {topic}: a message without an answer may have died unseen, as nobody drained dlq.{topic}; its gaps are not judged"
            ));
            continue;
        }
        let mut next = 0;
        for ((_, offset), known) in facts.messages.range((topic, 0)..=(topic, u64::MAX)) {
            if *offset > next {
                report.accuse(Check::Offsets, [known.seq], || {
                    let missing = if *offset == next + 1 {
                        format!("offset {next} is")
                    } else {
                        format!("offsets {next} to {} are", offset - 1)
                    };
                    format!("topic {topic}: {missing} missing below offset {offset}, value \"{}\"", short(known.value))
                });
            }
            next = offset + 1;
        }
    }
}

/// Whether a message of a topic may exist that nobody was ever shown.
fn may_hide(facts: &Facts<'_>, topic: &str) -> bool {
    let may_be_hidden =
        |ask: &Ask<'_>| ask.topic == topic && ask.may_have_stored() && ask.place.is_none() && may_die(ask.envelope);
    !facts.drained_topics.contains(format!("dlq.{topic}").as_str()) && facts.asks.iter().any(may_be_hidden)
}
