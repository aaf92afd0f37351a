//! A history, sorted out: calls with their answers, messages with their places, deliveries with what became of them.
//!
//! One pass over the lines; everything borrows from them. What is gathered here is what clients know, never what a broker must have
//! thought. Lines that do not say what they must are remembered as such and take no further part.

mod collect;
mod fields;
mod model;

use std::collections::{BTreeMap, HashMap, HashSet};

pub(super) use self::fields::{may_die, millis, same_envelope, short, text};
pub(super) use self::model::{
    Ask, Delivery, Drain, EffectCall, EffectOp, Fate, Known, Origin, Place, Settle, SettleOp, Setup, Step, Story,
};
use super::Entry;
use super::report::Counts;

/// A message of a topic.
pub(super) type MessageKey<'a> = (&'a str, u64);
/// A message as a group of its topic sees it: topic, group, offset.
pub(super) type StoryKey<'a> = (&'a str, &'a str, u64);

/// Everything that the checks ask for.
#[derive(Debug, Default)]
pub(super) struct Facts<'a> {
    pub(super) counts: Counts,
    pub(super) setup: Setup<'a>,
    /// Requests to store a message, one for every produce and every output of a step.
    pub(super) asks: Vec<Ask<'a>>,
    /// The asks for a topic's value.
    pub(super) asks_of: HashMap<(&'a str, &'a str), Vec<usize>>,
    pub(super) deliveries: Vec<Delivery<'a>>,
    pub(super) settles: Vec<Settle<'a>>,
    pub(super) steps: Vec<Step>,
    pub(super) effects: Vec<EffectCall<'a>>,
    /// What each group saw of and said about each message.
    pub(super) stories: BTreeMap<StoryKey<'a>, Story>,
    /// Every message that is known to exist: one that was accepted, or that somebody saw.
    pub(super) messages: BTreeMap<MessageKey<'a>, Known<'a>>,
    /// Dead letters that somebody saw, by where they come from; the line that shows it.
    pub(super) dead: HashMap<StoryKey<'a>, u64>,
    /// Topics that somebody consumed from after the first drain had begun.
    pub(super) drained_topics: HashSet<&'a str>,
    /// Lines at which the server's clock was tampered with.
    pub(super) clocks: Vec<u64>,
    pub(super) drains: [Drain; 2],
    /// Lines that do not say what they must.
    pub(super) malformed: Vec<(u64, String)>,
}

impl<'a> Facts<'a> {
    pub(super) fn of(entries: &'a [Entry]) -> Self {
        collect::gather(entries)
    }

    /// Whether the server's clock was tampered with between two lines.
    pub(super) fn clock_between(&self, from: u64, to: u64) -> bool {
        let next = self.clocks.partition_point(|clock| *clock < from);
        self.clocks.get(next).is_some_and(|clock| *clock <= to)
    }

    /// What was said about one delivery of a message: with its token, or with none.
    pub(super) fn words_about<'f>(&'f self, story: &'f Story, token: &str) -> impl Iterator<Item = &'f Settle<'a>> {
        let settle = |index: &usize| &self.settles[*index];
        let nameless = story.settles.partition_point(|index| settle(index).token.is_none());
        let from = story.settles.partition_point(|index| settle(index).token < Some(token));
        let to = story.settles.partition_point(|index| settle(index).token <= Some(token));
        story.settles[..nameless].iter().chain(&story.settles[from.max(nameless)..to.max(nameless)]).map(settle)
    }

    /// Whether the first drain has ended, so that whatever is still missing will stay so.
    pub(super) fn is_drained(&self) -> bool {
        self.drains[0].ended.is_some()
    }

    /// Whether a message may have become a dead letter of a group: one was seen, or one would not have been.
    pub(super) fn may_be_dead(&self, key: StoryKey<'a>) -> bool {
        if self.dead.contains_key(&key) {
            return true;
        }
        let Some(known) = self.messages.get(&(key.0, key.2)) else { return false };
        known.may_die && !self.watches_dead_letters(key.0)
    }

    /// Whether a message may have become a dead letter of a group by some moment, for all that is known at the end.
    pub(super) fn may_die(&self, key: StoryKey<'a>) -> bool {
        self.dead.contains_key(&key) || self.messages.get(&(key.0, key.2)).is_some_and(|known| known.may_die)
    }

    fn watches_dead_letters(&self, topic: &str) -> bool {
        // Looked up only for messages that are missing.
        self.drained_topics.contains(format!("dlq.{topic}").as_str())
    }
}

/// Whether a topic holds dead letters.
pub(super) fn is_dead_letter_topic(topic: &str) -> bool {
    topic.starts_with("dlq.")
}
