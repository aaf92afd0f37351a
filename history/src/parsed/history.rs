//! The parsed history and the questions that checks ask of it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::RangeInclusive;

use crate::parsed::model::{
    Delivery, DrainRound, EffectCall, KnownMessage, MessageTimeline, ProduceRequest, SettleCall, Setup, Step,
};
use crate::report::Counts;

/// A message: topic and offset.
pub(crate) type MessageKey<'a> = (&'a str, u64);
/// A message in a group: topic, group and offset.
pub(crate) type TimelineKey<'a> = (&'a str, &'a str, u64);

/// Everything that the checks need.
#[derive(Debug, Default)]
pub(crate) struct ParsedHistory<'a> {
    pub(crate) counts: Counts,
    pub(crate) setup: Setup<'a>,
    /// One per produce call and per output of a complete call.
    pub(crate) requests: Vec<ProduceRequest<'a>>,
    /// The requests for each topic and value.
    pub(crate) requests_for: HashMap<(&'a str, &'a str), Vec<usize>>,
    pub(crate) deliveries: Vec<Delivery<'a>>,
    pub(crate) settles: Vec<SettleCall<'a>>,
    pub(crate) steps: Vec<Step>,
    pub(crate) effects: Vec<EffectCall<'a>>,
    /// The deliveries and settling calls of each message in each group.
    pub(crate) timelines: BTreeMap<TimelineKey<'a>, MessageTimeline>,
    /// Every message known to exist: acknowledged, or seen in a delivery.
    pub(crate) messages: BTreeMap<MessageKey<'a>, KnownMessage<'a>>,
    /// The source messages of dead letters that were delivered, and the line of the delivery.
    pub(crate) dead: HashMap<TimelineKey<'a>, u64>,
    /// Topics that were consumed after the first drain began.
    pub(crate) drained_topics: HashSet<&'a str>,
    /// The lines from each change of the broker's clock to the one by which the broker has followed it.
    pub(crate) clock_changes: Vec<RangeInclusive<u64>>,
    /// The lines at which the streams of each topic and group ended.
    pub(crate) stream_ends: HashMap<(&'a str, &'a str), Vec<u64>>,
    pub(crate) drains: [DrainRound; 2],
    /// Lines without required fields, and what is missing.
    pub(crate) malformed: Vec<(u64, String)>,
}

impl<'a> ParsedHistory<'a> {
    /// Whether the broker's clock was changed between two lines, or the broker may have followed a change there.
    pub(crate) fn clock_changed_between(&self, from: u64, to: u64) -> bool {
        let next = self.clock_changes.partition_point(|change| *change.end() < from);
        self.clock_changes.get(next).is_some_and(|change| *change.start() <= to)
    }

    /// Whether a stream of the group ended between two lines.
    pub(crate) fn stream_ended_between(&self, topic: &str, group: &str, from: u64, to: u64) -> bool {
        let ends = self.stream_ends.get(&(topic, group)).into_iter().flatten();
        ends.into_iter().any(|ended| (from..=to).contains(ended))
    }

    /// The calls that settle one delivery of a message: those with its token, and those without a token.
    pub(crate) fn settles_of_delivery<'f>(
        &'f self,
        timeline: &'f MessageTimeline,
        token: &str,
    ) -> impl Iterator<Item = &'f SettleCall<'a>> {
        let settle = |index: &usize| &self.settles[*index];
        let without_token = timeline.settles.partition_point(|index| settle(index).token.is_none());
        let from = timeline.settles.partition_point(|index| settle(index).token < Some(token));
        let to = timeline.settles.partition_point(|index| settle(index).token <= Some(token));
        let with_token = &timeline.settles[from.max(without_token)..to.max(without_token)];
        timeline.settles[..without_token].iter().chain(with_token).map(settle)
    }

    /// Whether the first drain has ended, so that what was not delivered never will be.
    pub(crate) fn is_drained(&self) -> bool {
        self.drains[0].ended.is_some()
    }

    /// Whether a message counts as dead in a group: its dead letter was seen, or it may be dead and its dead letters
    /// were not consumed.
    pub(crate) fn counts_as_dead(&self, key: TimelineKey<'a>) -> bool {
        if self.dead.contains_key(&key) {
            return true;
        }
        let Some(known) = self.messages.get(&(key.0, key.2)) else { return false };
        known.has_dead_letter_policy && !self.consumes_dead_letters_of(key.0)
    }

    /// Whether a message may be dead in a group at some time.
    pub(crate) fn may_be_dead(&self, key: TimelineKey<'a>) -> bool {
        let has_policy = || self.messages.get(&(key.0, key.2)).is_some_and(|known| known.has_dead_letter_policy);
        self.dead.contains_key(&key) || has_policy()
    }

    /// Whether the dead letters of a topic were consumed in a drain.
    pub(crate) fn consumes_dead_letters_of(&self, topic: &str) -> bool {
        self.drained_topics.contains(format!("dlq.{topic}").as_str())
    }
}
