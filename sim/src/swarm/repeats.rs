//! Producers that use the identity of an earlier message again, for the same or another topic, mostly after its window.

use super::random::{Source, Stream};
use crate::actions::{NewMessage, RouterDecision};
use crate::names::Topic;

/// How many recent identities may be used again.
const REPEATABLE: usize = 2;

/// The repeated identities of one world. Draws from a stream of its own, so that other worlds stay as they are.
#[derive(Debug)]
pub(super) struct Repeats {
    source: Source,
    is_enabled: bool,
    topics: u8,
    sent: Vec<NewMessage>,
}

impl Repeats {
    pub(super) fn new(seed: u64, topics: u8) -> Self {
        let mut source = Source::new(seed, Stream::Repeats);
        let is_enabled = !source.one_in(3);
        Self { source, is_enabled, topics, sent: Vec::new() }
    }

    /// Sometimes gives a new message the identity of an earlier one. Without router and target, the message goes where
    /// it is produced to; with them, several requested topics meet in one.
    pub(super) fn repeat(&mut self, new_message: &mut NewMessage) {
        if self.is_enabled && !self.sent.is_empty() && !self.source.one_in(3) {
            let earlier = self.sent[self.source.below(self.sent.len() as u64) as usize].clone();
            (new_message.identity, new_message.tenant) = (earlier.identity, earlier.tenant);
            (new_message.topic, new_message.target, new_message.router) =
                (earlier.topic, earlier.target, earlier.router);
            let routed = |topic| Some(RouterDecision { topic: Some(topic), partition: None });
            match self.source.below(4) {
                0 => {
                    new_message.router = routed(destination(&earlier));
                    new_message.topic = self.topic();
                }
                1 => {
                    new_message.router = routed(destination(&earlier));
                    new_message.target = Some(self.topic());
                }
                _ => {}
            }
        }
        if new_message.identity.is_some_and(|identity| identity > 0) {
            if self.sent.len() >= REPEATABLE {
                self.sent.remove(0);
            }
            self.sent.push(new_message.clone());
        }
    }

    fn topic(&mut self) -> Topic {
        Topic::new(self.source.below(u64::from(self.topics) + 1) as u8)
    }
}

/// Where a message is stored, if that topic exists.
fn destination(message: &NewMessage) -> Topic {
    message.router.and_then(|router| router.topic).or(message.target).unwrap_or(message.topic)
}
