//! The answers of steps that were completed, kept for whoever asks again.

use crate::types::Completion;

use crate::collections::cow::CowMap;
use crate::types::{LeaseToken, Timestamp};

/// Answers by the token that won, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Completions {
    known: CowMap<LeaseToken, Completion>,
    queue: CowMap<u64, (LeaseToken, Timestamp)>,
    next: u64,
}

impl Completions {
    /// The answer that `token` won, if it is still repeated at `now`.
    #[must_use]
    pub fn get(&self, token: LeaseToken, now: Timestamp) -> Option<&Completion> {
        self.known.get(&token).filter(|completion| now < completion.until)
    }

    /// How many answers are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// When the oldest answer need not be kept any more.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Timestamp> {
        self.queue.first().map(|(_, (_, until))| *until)
    }

    /// How many of the oldest need not be kept at `now`, counting at most `limit`.
    #[must_use]
    pub fn expired(&self, now: Timestamp, limit: u64) -> u64 {
        self.queue.iter().take_while(|(_, (_, until))| *until <= now).take(limit as usize).count() as u64
    }

    /// Keeps an answer. False if there is one for the token already.
    pub(crate) fn keep(&mut self, token: LeaseToken, completion: Completion) -> bool {
        self.queue.insert(self.next, (token, completion.until));
        self.next += 1;
        self.known.insert(token, completion).is_none()
    }

    /// Lets go of the `count` oldest. False if there are not so many.
    pub(crate) fn sweep(&mut self, count: u64) -> bool {
        (0..count).all(|_| match self.queue.pop_first() {
            Some((_, (token, _))) => self.known.remove(&token).is_some(),
            None => false,
        })
    }

    /// The answers, oldest first.
    pub(crate) fn in_order(self) -> impl Iterator<Item = (LeaseToken, Completion)> + Clone + Send {
        let known = self.known;
        self.queue
            .into_chunks()
            .flat_map(|chunk| chunk.iter().map(|(_, (token, _))| *token).collect::<Vec<_>>())
            .map(move |token| (token, known.get(&token).expect("every answer in the queue is known").clone()))
    }
}
