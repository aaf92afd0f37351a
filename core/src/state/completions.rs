//! Completed steps: applies them and stores their replies, which a retry of the same step gets again.

use super::{Contradiction, State};
use crate::collections::expiring::{Expires, ExpiringMap};
use crate::collections::shared::unshared;
use crate::record::{Completed, Stored};
use crate::types::{Completion, LeaseToken, Offset, Timestamp, Winner};

/// Stored replies by lease token, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Completions(ExpiringMap<LeaseToken, Completion>);

impl Expires for Completion {
    fn expires_at(&self) -> Timestamp {
        self.until
    }
}

impl Completions {
    /// The replies, in the order they expire.
    pub fn entries(&self) -> impl Iterator<Item = (&LeaseToken, &Completion)> {
        self.0.entries()
    }

    /// The reply of the step completed under `token`, unless it has expired at `now`.
    #[must_use]
    pub(crate) fn get(&self, token: LeaseToken, now: Timestamp) -> Option<&Completion> {
        self.0.get(&token, now)
    }

    /// The number of stored replies.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no reply is stored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// When the oldest reply expires.
    #[must_use]
    pub(crate) fn next_expiry(&self) -> Option<Timestamp> {
        self.0.next_expiry()
    }

    /// The number of oldest replies that have expired at `now`, at most `limit`.
    #[must_use]
    pub(crate) fn expired(&self, now: Timestamp, limit: u64) -> u64 {
        self.0.expired(now, limit)
    }

    /// The replies, oldest first.
    pub(super) fn in_order(self) -> impl Iterator<Item = (LeaseToken, Completion)> + Clone + Send {
        self.0.in_order()
    }
}

impl State {
    pub(super) fn complete(&mut self, step: &Completed, at: Timestamp) -> Result<(), Contradiction> {
        self.store_step_outputs(step, at)?;
        if let Some(slot) = &step.dead_letter {
            let offset = self.delivery_mut(&step.message_ref)?.offset;
            if let Some(conclusion) = &step.effect {
                self.fail_effect(&step.message_ref, conclusion, &slot.last_error, at)?;
            }
            self.dead_letter_into(&step.message_ref, slot, step.until, at)?;
            return self.store_completion(step, offset);
        }
        if let Some(conclusion) = &step.effect {
            self.conclude_effect(&step.message_ref, conclusion, at)?;
        }
        let offset = self.ack_delivered(&step.message_ref)?.offset;
        if step.is_contested {
            let winner = Winner { token: Some(step.token), until: step.until };
            self.remember_winner(step.message_ref.at_offset(offset), winner)?;
        }
        self.store_completion(step, offset)
    }

    /// Stores the messages that a step produced, if its token is the token of the newest delivery.
    pub(crate) fn store_step_outputs(&mut self, step: &Completed, at: Timestamp) -> Result<(), Contradiction> {
        if self.delivery_mut(&step.message_ref)?.token != step.token {
            return Err(Contradiction("step completed under a stale lease token"));
        }
        for (part, (output, stored)) in step.stored_outputs() {
            let Stored { topic, dedupe, skipped, body } = stored;
            let (at_offset, body) = ((output.partition, output.offset), (body, self.payload(part)));
            self.store_message(*topic, at_offset, body, dedupe.as_ref(), skipped, at)?;
        }
        Ok(())
    }

    /// Stores the reply of a step.
    pub(crate) fn store_completion(&mut self, step: &Completed, offset: Offset) -> Result<(), Contradiction> {
        let completion =
            Completion { message_ref: step.message_ref, offset, produced: step.reply(), until: step.until };
        match unshared(&mut self.completions).0.insert(step.token, completion) {
            None => Ok(()),
            Some(_) => Err(Contradiction("step completed twice")),
        }
    }

    pub(super) fn completions_expired(&mut self, count: u64) -> Result<(), Contradiction> {
        let swept = unshared(&mut self.completions).0.remove_oldest(count);
        if swept { Ok(()) } else { Err(Contradiction("expiry of more completions than are stored")) }
    }

    pub(super) fn restore_completion(
        &mut self,
        token: LeaseToken,
        completion: &Completion,
    ) -> Result<(), Contradiction> {
        if token.boot > self.boot {
            return Err(Contradiction("lease token of a later boot"));
        }
        match unshared(&mut self.completions).0.insert(token, completion.clone()) {
            None => Ok(()),
            Some(_) => Err(Contradiction("step completed twice")),
        }
    }
}
