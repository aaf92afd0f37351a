//! One message per offset, one offset per message, and no gaps.
//!
//! Offsets count per topic, over all its partitions; a dead-letter topic has its own.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::parsed::{
    MessageKey, Origin, ParsedHistory, PartitionOffset, ProduceRequest, has_dead_letter_policy, is_dead_letter_topic,
    short,
};
use crate::report::{Check, Report};

/// The kind of client that shows a message at an offset.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Client {
    Producer,
    Consumer,
}

/// An answer or a delivery that shows a message at an offset.
struct Evidence<'a> {
    at: PartitionOffset,
    value: &'a str,
    seq: u64,
    client: Client,
}

/// What identifies a message: topic, value and, for a dead letter, its source.
type Message<'a> = (&'a str, &'a str, Option<(&'a str, &'a str, u64)>);

pub(super) fn check(history: &ParsedHistory<'_>, report: &mut Report) {
    report.count(Check::Offsets, history.messages.len());
    let mut index = EvidenceIndex::default();
    for request in history.requests.iter().filter(|request| !request.duplicate) {
        if let Some(at) = request.at {
            let item = Evidence { at, value: request.value, seq: request.span.last(), client: Client::Producer };
            index.add((request.topic, request.value, None), item, report);
        }
    }
    for delivery in &history.deliveries {
        let dead = delivery.origin.filter(|_| is_dead_letter_topic(delivery.topic));
        let source = dead.map(|Origin { topic, group, at }| (topic, group, at.offset));
        let item = Evidence { at: delivery.at, value: delivery.value, seq: delivery.seq, client: Client::Consumer };
        if delivery.redriven {
            // A redrive stores the same value at a new offset.
            index.compare(delivery.topic, item, report);
        } else {
            index.add((delivery.topic, delivery.value, source), item, report);
        }
    }
    index.one_offset_each(history, report);
    gaps(history, report);
}

#[derive(Default)]
struct EvidenceIndex<'a> {
    at: HashMap<MessageKey<'a>, Evidence<'a>>,
    offsets: BTreeMap<Message<'a>, BTreeMap<u64, u64>>,
}

impl<'a> EvidenceIndex<'a> {
    fn add(&mut self, message: Message<'a>, item: Evidence<'a>, report: &mut Report) {
        self.offsets.entry(message).or_default().entry(item.at.offset).or_insert(item.seq);
        self.compare(message.0, item, report);
    }

    /// Compares an item with the first one for its offset.
    fn compare(&mut self, topic: &'a str, item: Evidence<'a>, report: &mut Report) {
        let Some(first) = self.at.get(&(topic, item.at.offset)) else {
            self.at.insert((topic, item.at.offset), item);
            return;
        };
        let seqs = [first.seq, item.seq];
        if first.at.partition != item.at.partition {
            report.add_violation(Check::Offsets, seqs, || {
                let [one, other] = [first, &item].map(|item| format!("partition {}", item.at.partition));
                let (offset, value) = (item.at.offset, short(item.value));
                format!("topic {topic}, offset {offset}, value \"{value}\" is in {one} and in {other}")
            });
        } else if first.value != item.value && first.client == item.client {
            // If producer and consumer differ, the content check reports an altered message.
            report.add_violation(Check::Offsets, seqs, || {
                let [one, other] = [first, &item].map(|item| short(item.value));
                format!("topic {topic}, {} holds both \"{one}\" and \"{other}\"", item.at)
            });
        }
    }

    fn one_offset_each(&self, history: &ParsedHistory<'a>, report: &mut Report) {
        for ((topic, value, dead), offsets) in self.offsets.iter().filter(|(_, offsets)| offsets.len() > 1) {
            let requests = history.requests_for.get(&(*topic, *value)).map(Vec::as_slice).unwrap_or_default();
            let stores_max = if dead.is_some() { 1 } else { stores_max(history, requests) };
            // The content check reports messages that no call produced.
            if stores_max == 0 || offsets.len() <= stores_max {
                continue;
            }
            let list: Vec<String> = offsets.keys().map(u64::to_string).collect();
            let mut seqs: Vec<u64> = offsets.values().copied().take(8).collect();
            seqs.sort_unstable();
            report.add_violation(Check::Offsets, seqs, || {
                format!("topic {topic}, value \"{}\" is at more than one offset: {}", short(value), list.join(", "))
            });
        }
    }
}

/// How often a value can have been stored: once per request, per step for all its attempts, and per idempotency key.
fn stores_max(history: &ParsedHistory<'_>, requests: &[usize]) -> usize {
    let mut single = 0;
    let (mut steps, mut identities) = (HashSet::new(), HashSet::new());
    for request in requests.iter().map(|index| &history.requests[*index]).filter(|request| request.may_have_stored()) {
        match (request.step, request.identity()) {
            (Some(step), _) => drop(steps.insert(step)),
            (None, Some(identity)) => drop(identities.insert(identity)),
            (None, None) => single += 1,
        }
    }
    single + steps.len() + identities.len()
}

/// Finds offsets that no client ever saw, below one that a client saw.
fn gaps(history: &ParsedHistory<'_>, report: &mut Report) {
    if !history.is_drained() {
        return;
    }
    let mut topics: BTreeSet<&str> = history.setup.groups.iter().map(|(topic, _)| *topic).collect();
    topics.extend(history.drained_topics.iter().filter(|topic| is_dead_letter_topic(topic)));
    for topic in topics {
        if may_have_unseen(history, topic) {
            report.note(format!(
                "topic {topic}: gaps are not checked, because a message without an answer may be dead and dlq.{topic} was not consumed"
            ));
            continue;
        }
        let mut next = 0;
        for ((_, offset), known) in history.messages.range((topic, 0)..=(topic, u64::MAX)) {
            if *offset > next {
                report.add_violation(Check::Offsets, [known.seq], || {
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

/// Whether a message of a topic may exist that no client saw.
fn may_have_unseen(history: &ParsedHistory<'_>, topic: &str) -> bool {
    let may_be_unseen = |request: &ProduceRequest<'_>| {
        request.topic == topic
            && request.may_have_stored()
            && request.at.is_none()
            && has_dead_letter_policy(request.envelope)
    };
    !history.consumes_dead_letters_of(topic) && history.requests.iter().any(may_be_unseen)
}
