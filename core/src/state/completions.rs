//! Completed steps: applies them and stores their replies, which a retry of the same step gets again.

use std::sync::Arc;

use super::{Contradiction, State};
use crate::collections::cow::CowMap;
use crate::collections::shared::unshared;
use crate::record::{Completed, Stored};
use crate::types::{Completion, LeaseToken, Offset, Timestamp};

/// Stored replies by lease token, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Completions {
    known: CowMap<LeaseToken, Completion>,
    queue: CowMap<u64, (LeaseToken, Timestamp)>,
    next: u64,
}

impl Completions {
    /// The reply of the step completed under `token`, unless it has expired at `now`.
    #[must_use]
    pub(crate) fn get(&self, token: LeaseToken, now: Timestamp) -> Option<&Completion> {
        self.known.get(&token).filter(|completion| now < completion.until)
    }

    /// The number of stored replies.
    #[must_use]
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether no reply is stored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// When the oldest reply expires.
    #[must_use]
    pub(crate) fn next_expiry(&self) -> Option<Timestamp> {
        self.queue.first().map(|(_, (_, until))| *until)
    }

    /// The number of oldest replies that have expired at `now`, at most `limit`.
    #[must_use]
    pub(crate) fn expired(&self, now: Timestamp, limit: u64) -> u64 {
        self.queue.iter().take_while(|(_, (_, until))| *until <= now).take(limit as usize).count() as u64
    }

    /// Stores a reply. Returns false if the token has one.
    fn insert(&mut self, token: LeaseToken, completion: Completion) -> bool {
        self.queue.insert(self.next, (token, completion.until));
        self.next += 1;
        self.known.insert(token, completion).is_none()
    }

    /// Removes the `count` oldest replies. Returns false if there are fewer.
    fn sweep(&mut self, count: u64) -> bool {
        (0..count).all(|_| match self.queue.pop_first() {
            Some((_, (token, _))) => self.known.remove(&token).is_some(),
            None => false,
        })
    }

    /// The replies, oldest first.
    pub(super) fn in_order(self) -> impl Iterator<Item = (LeaseToken, Completion)> + Clone + Send {
        let known = self.known;
        self.queue
            .into_chunks()
            .flat_map(|chunk| chunk.iter().map(|(_, (token, _))| *token).collect::<Vec<_>>())
            .map(move |token| (token, known.get(&token).expect("every queued token has a reply").clone()))
    }
}

impl State {
    pub(super) fn complete(&mut self, step: &Completed, at: Timestamp) -> Result<(), Contradiction> {
        self.store_step_outputs(step, at)?;
        let offset = self.delivery_mut(&step.message_ref)?.offset;
        if let Some(conclusion) = &step.effect {
            self.conclude_effect(&step.message_ref, conclusion, at)?;
        }
        self.ack(&step.message_ref)?;
        self.store_completion(step, offset)
    }

    /// Stores the messages that a step produced, if its token is the token of the newest delivery.
    pub(crate) fn store_step_outputs(&mut self, step: &Completed, at: Timestamp) -> Result<(), Contradiction> {
        if self.delivery_mut(&step.message_ref)?.token != step.token {
            return Err(Contradiction("step completed under a stale lease token"));
        }
        for output in &step.outputs {
            let Some(Stored { topic, dedupe, skipped, body }) = &output.stored else { continue };
            self.store_message(*topic, (output.partition, output.offset), body, dedupe.as_ref(), skipped, at)?;
        }
        Ok(())
    }

    /// Stores the reply of a step.
    pub(crate) fn store_completion(&mut self, step: &Completed, offset: Offset) -> Result<(), Contradiction> {
        let completion =
            Completion { message_ref: step.message_ref, offset, produced: step.reply(), until: step.until };
        match unshared(&mut self.completions).insert(step.token, completion) {
            true => Ok(()),
            false => Err(Contradiction("step completed twice")),
        }
    }

    pub(super) fn completions_expired(&mut self, count: u64) -> Result<(), Contradiction> {
        let swept = unshared(&mut self.completions).sweep(count);
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
        match Arc::make_mut(&mut self.completions).insert(token, completion.clone()) {
            true => Ok(()),
            false => Err(Contradiction("step completed twice")),
        }
    }
}
