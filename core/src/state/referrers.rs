//! Which messages refer to a payload beside the one that its record made: dead letters and redriven messages.

use super::State;
use crate::collections::cow::CowMap;
use crate::record::MessageAt;
use crate::types::{Lsn, PayloadId};

/// Dead letters and redriven messages by payload. A message that is removed stays listed until the next sweep, so a
/// listed message must be looked at, too. Derived from the messages, so that two lists are always equal.
#[derive(Clone, Debug, Default)]
pub(crate) struct Referrers {
    messages: CowMap<PayloadId, Vec<MessageAt>>,
}

impl PartialEq for Referrers {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Referrers {}

impl Referrers {
    pub(crate) fn add(&mut self, payload: PayloadId, message: MessageAt) {
        match self.messages.get_mut(&payload) {
            Some(messages) => messages.push(message),
            None => drop(self.messages.insert(payload, vec![message])),
        }
    }

    /// The messages that may refer to the payload beside those that its record names.
    pub(crate) fn of(&self, payload: PayloadId) -> &[MessageAt] {
        self.messages.get(&payload).map_or(&[], |messages| messages)
    }

    /// Forgets who refers to the payload.
    pub(crate) fn remove(&mut self, payload: PayloadId) {
        self.messages.remove(&payload);
    }

    /// Whether a message beside the one that its record made may refer to the payload.
    pub(crate) fn contains(&self, payload: PayloadId) -> bool {
        !self.messages.is_empty() && self.messages.contains_key(&payload)
    }

    /// The number of payloads that are listed.
    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    /// As [`Referrers::contains`], of any payload of the records from `first` to `last`.
    pub(crate) fn contains_any(&self, first: Lsn, last: Lsn) -> bool {
        let listed = self.messages.range_from(&PayloadId { lsn: first, part: 0 }).next();
        listed.is_some_and(|(payload, _)| payload.lsn <= last)
    }
}

impl State {
    /// A message that its record did not make refers to the payload.
    pub(super) fn add_referrer(&mut self, payload: PayloadId, message: MessageAt) {
        if !payload.is_lost() {
            self.referrers.add(payload, message);
        }
    }

    /// Whether the message refers to the payload.
    pub(super) fn refers(&self, at: &MessageAt, payload: PayloadId) -> bool {
        let partition = self.topic(at.topic).and_then(|topic| topic.partition(at.partition));
        let message = partition.and_then(|partition| partition.message(at.position));
        message.is_some_and(|message| message.payload.id == payload)
    }

    /// Forgets the listed messages that are removed.
    pub(crate) fn sweep_referrers(&mut self) {
        let listed: Vec<_> = self.referrers.messages.iter().map(|(id, messages)| (*id, messages.clone())).collect();
        for (payload, mut messages) in listed {
            let before = messages.len();
            messages.retain(|message| self.refers(message, payload));
            if messages.is_empty() {
                self.referrers.messages.remove(&payload);
            } else if messages.len() < before {
                self.referrers.messages.insert(payload, messages);
            }
        }
    }
}
