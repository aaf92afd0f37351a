//! An effect of the idempotency store: grant, outcome, lifetime.

use std::sync::Arc;

use crate::types::{
    LeaseToken, Millis, OwnerName, PartitionId, PayloadId, Position, StoredResult, Text, Timestamp, TopicName,
};

/// The most requested topics that a commit remembers. Beyond it the oldest is forgotten, and messages produced to it
/// are delivered.
pub(crate) const COMMITTED_TOPICS_MAX: usize = 16;

/// The status of an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EffectStatus {
    /// Granted and not finished.
    InProgress,
    /// Succeeded: every later begin replays the result.
    Succeeded,
    /// Failed permanently: every later begin replays the failure.
    FailedFinal,
    /// Failed; may be granted again.
    FailedRetryable,
}

impl EffectStatus {
    /// All statuses.
    pub const ALL: [Self; 4] = [Self::InProgress, Self::Succeeded, Self::FailedFinal, Self::FailedRetryable];

    /// The code used in APIs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InProgress => "IN_PROGRESS",
            Self::Succeeded => "SUCCEEDED",
            Self::FailedFinal => "FAILED_FINAL",
            Self::FailedRetryable => "FAILED_RETRYABLE",
        }
    }

    /// The code used in version 1 of the API.
    #[must_use]
    pub const fn as_v1(self) -> &'static str {
        match self {
            Self::InProgress => "PENDING",
            Self::Succeeded => "COMMITTED",
            Self::FailedFinal | Self::FailedRetryable => "FAILED",
        }
    }

    /// Whether the outcome is final: later begins replay it.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::FailedFinal)
    }
}

/// How long an effect is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// This long after its finish, or after its lease expired without a finish.
    Window(Millis),
    /// Until this time, but never while it is leased.
    Until(Timestamp),
}

impl Lifetime {
    /// When an effect that ended at `end` expires.
    #[must_use]
    pub(crate) fn after(self, end: Timestamp) -> Timestamp {
        match self {
            Self::Window(window) => end.after(window),
            Self::Until(time) => time.max(end),
        }
    }
}

/// How an effect ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Any status except [`EffectStatus::InProgress`].
    pub status: EffectStatus,
    /// A code chosen by the worker.
    pub response_code: i64,
    /// The result that later begins replay, as JSON text.
    pub result: Option<Arc<str>>,
    /// The error; empty if there is none.
    pub last_error: Text,
}

/// One effect of the idempotency store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    /// The status.
    pub status: EffectStatus,
    /// An ack or a complete has acked a message of this identity: later messages of it can be skipped.
    pub committed: bool,
    /// A finish or a complete has recorded the outcome; false if only an ack has.
    pub finished: bool,
    /// How often the effect was granted.
    pub attempt: u32,
    /// The token of the newest grant; `None` if the effect was created by an ack.
    pub token: Option<LeaseToken>,
    /// When the lease of the newest grant ends.
    pub lease_until: Timestamp,
    /// The owner of the newest grant.
    pub owner: Option<OwnerName>,
    /// The result that later begins replay; its bytes stand in the log.
    pub result: Option<Box<StoredResult>>,
    /// Rarely used fields.
    pub details: Option<Box<Details>>,
    /// How long the effect is remembered, unless [`Details::until`] is set.
    pub window: Millis,
    /// When the effect last changed.
    pub updated_at: Timestamp,
    /// When the effect expires, unless it is pinned by an unacked message.
    pub expires_at: Timestamp,
    /// The message the effect belongs to, if it is known.
    pub pin: Option<Box<Pin>>,
}

/// Rarely used fields of an effect, boxed to keep the others small.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// The hash of the first request.
    pub request_hash: Option<Text>,
    /// A code chosen by the worker.
    pub response_code: i64,
    /// The error.
    pub last_error: Text,
    /// The end of a [`Lifetime::Until`].
    pub until: Option<Timestamp>,
    /// The requested topics of the acked messages; empty if that is only the topic of the scope.
    pub committed_topics: Vec<TopicName>,
}

/// The message that pins an effect: while its group has not acked it, the effect does not expire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The message's partition.
    pub partition: PartitionId,
    /// The message's position in the partition.
    pub position: Position,
    /// When to check again whether the message is acked; 0 until the effect's window has ended once.
    pub look_at: Timestamp,
}

impl Effect {
    /// An effect granted for the first time.
    #[must_use]
    pub(crate) fn granted(token: LeaseToken, owner: OwnerName, lease_until: Timestamp, at: Timestamp) -> Self {
        Self {
            status: EffectStatus::InProgress,
            committed: false,
            finished: false,
            attempt: 1,
            token: Some(token),
            lease_until,
            owner: Some(owner),
            result: None,
            details: None,
            window: Millis(0),
            updated_at: at,
            expires_at: lease_until,
            pin: None,
        }
    }

    /// An effect created by an ack; the topics are those of [`Effect::commit`].
    #[must_use]
    pub(crate) fn acked(topics: (&TopicName, &TopicName), window: Millis, at: Timestamp) -> Self {
        let mut effect = Self {
            status: EffectStatus::Succeeded,
            committed: false,
            finished: false,
            attempt: 0,
            token: None,
            lease_until: at,
            owner: None,
            result: None,
            details: None,
            window,
            updated_at: at,
            expires_at: at.after(window),
            pin: None,
        };
        effect.commit(topics, at.after(window), at);
        effect
    }

    /// An effect without a grant that a failed step created; the bytes of its result stand at `payload`.
    #[must_use]
    pub(crate) fn failed(outcome: &Outcome, payload: PayloadId, window: Millis, at: Timestamp) -> Self {
        let mut effect = Self {
            status: outcome.status,
            committed: false,
            finished: true,
            attempt: 0,
            token: None,
            lease_until: at,
            owner: None,
            result: None,
            details: None,
            window,
            updated_at: at,
            expires_at: at,
            pin: None,
        };
        effect.finish(outcome, payload, at);
        effect
    }

    /// When to check whether the effect has expired.
    #[must_use]
    pub fn expiry_check_at(&self) -> Timestamp {
        self.pin.as_ref().map_or(self.expires_at, |pin| pin.look_at.max(self.expires_at))
    }

    /// How long the effect is remembered.
    #[must_use]
    pub fn lifetime(&self) -> Lifetime {
        match self.details.as_ref().and_then(|details| details.until) {
            Some(until) => Lifetime::Until(until),
            None => Lifetime::Window(self.window),
        }
    }

    /// Whether the effect is in progress and its lease has not ended at `now`.
    #[must_use]
    pub fn is_leased(&self, now: Timestamp) -> bool {
        self.status == EffectStatus::InProgress && now < self.lease_until
    }

    /// Whether the effect can be finished with `status`: it is in progress, or only an ack has made it succeed and the
    /// finish adds the result.
    #[must_use]
    pub(crate) fn can_finish(&self, status: EffectStatus) -> bool {
        let by_ack_alone = self.committed && !self.finished;
        self.status == EffectStatus::InProgress || (by_ack_alone && status == EffectStatus::Succeeded)
    }

    /// The hash of the first request, if one was given.
    #[must_use]
    pub fn request_hash(&self) -> Option<&str> {
        self.details.as_ref()?.request_hash.as_deref()
    }

    /// The recorded outcome with `result`, the bytes of its result. Not final while the effect is in progress.
    #[must_use]
    pub fn outcome_with(&self, result: Option<Arc<str>>) -> Outcome {
        let (status, response_code, last_error) = (self.status, self.response_code(), self.last_error().into());
        Outcome { status, response_code, result, last_error }
    }

    /// Whether the recorded outcome is `outcome`; results are compared by length and hash.
    #[must_use]
    pub fn is_outcome(&self, outcome: &Outcome) -> bool {
        let same_result = match (&self.result, &outcome.result) {
            (Some(stored), Some(result)) => stored.is(result),
            (None, None) => true,
            _ => false,
        };
        (self.status, self.response_code(), self.last_error())
            == (outcome.status, outcome.response_code, &*outcome.last_error)
            && same_result
    }

    /// The code chosen by the worker.
    #[must_use]
    pub fn response_code(&self) -> i64 {
        self.details.as_ref().map_or(0, |details| details.response_code)
    }

    /// The error; empty if there is none.
    #[must_use]
    pub fn last_error(&self) -> &str {
        self.details.as_ref().map_or("", |details| &details.last_error)
    }

    /// Whether it has a result whose bytes are lost.
    #[must_use]
    pub fn is_result_lost(&self) -> bool {
        self.result.as_ref().is_some_and(|result| result.payload.is_none())
    }

    /// Records the outcome, the bytes of whose result stand at `payload`; the window starts at `at`.
    pub(crate) fn finish(&mut self, outcome: &Outcome, payload: PayloadId, at: Timestamp) {
        self.status = outcome.status;
        self.finished = true;
        self.result = outcome.result.as_ref().map(|result| Box::new(StoredResult::new(payload, result)));
        self.set_response(outcome.response_code, &outcome.last_error);
        self.updated_at = at;
        self.expires_at = self.lifetime().after(at);
    }

    /// Commits the effect: a message is acked that was produced to `requested` and stored in `stored_in`, the topic of
    /// the scope.
    ///
    /// An effect past its window was retained only by its pin, which ends with the ack, and one that was committed by
    /// an ack alone has no window of its own: each is remembered at least until `until`.
    pub(crate) fn commit(&mut self, (requested, stored_in): (&TopicName, &TopicName), until: Timestamp, at: Timestamp) {
        let by_ack_alone = self.committed && !self.finished;
        self.add_committed_topic(requested, stored_in);
        self.committed = true;
        self.updated_at = at;
        self.unpin();
        if by_ack_alone || self.expires_at <= at {
            self.expires_at = self.expires_at.max(until);
        }
    }

    /// Whether a message of this identity is acked that was produced to `requested`; `stored_in` is the topic of the
    /// scope.
    #[must_use]
    pub fn is_committed_for(&self, requested: &TopicName, stored_in: &TopicName) -> bool {
        self.committed
            && match self.committed_topics() {
                [] => requested == stored_in,
                topics => topics.contains(requested),
            }
    }

    /// See [`Details::committed_topics`].
    #[must_use]
    pub fn committed_topics(&self) -> &[TopicName] {
        self.details.as_ref().map_or(&[], |details| &details.committed_topics)
    }

    /// No message of this identity counts as acked any more.
    pub(crate) fn uncommit(&mut self) {
        self.committed = false;
        if let Some(details) = &mut self.details {
            details.committed_topics.clear();
        }
    }

    fn add_committed_topic(&mut self, requested: &TopicName, stored_in: &TopicName) {
        let is_first = !self.committed;
        if self.is_committed_for(requested, stored_in) || (is_first && requested == stored_in) {
            return;
        }
        let topics = &mut self.details.get_or_insert_default().committed_topics;
        if !is_first && topics.is_empty() {
            topics.push(stored_in.clone());
        }
        if topics.len() == COMMITTED_TOPICS_MAX {
            topics.remove(0);
        }
        topics.push(requested.clone());
    }

    /// The pinning message is acked: the effect expires at the end of its window.
    pub(crate) fn unpin(&mut self) {
        if let Some(pin) = &mut self.pin {
            pin.look_at = Timestamp(0);
        }
    }

    pub(crate) fn set_lifetime(&mut self, lifetime: Lifetime) {
        match lifetime {
            Lifetime::Window(window) => {
                self.window = window;
                if let Some(details) = &mut self.details {
                    details.until = None;
                }
            }
            Lifetime::Until(until) => self.details.get_or_insert_default().until = Some(until),
        }
    }

    pub(crate) fn set_response(&mut self, response_code: i64, last_error: &str) {
        if self.details.is_some() || response_code != 0 || !last_error.is_empty() {
            let details = self.details.get_or_insert_default();
            details.response_code = response_code;
            details.last_error = last_error.into();
        }
    }
}
