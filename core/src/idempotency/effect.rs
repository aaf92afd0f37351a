//! What is known about one effect.

use std::sync::Arc;

use crate::types::{LeaseToken, Millis, OwnerName, PartitionId, Position, Text, Timestamp};

/// How an effect stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EffectStatus {
    /// Begun, and nobody has said how it ended.
    InProgress,
    /// Done; its result is what everybody gets from now on.
    Succeeded,
    /// Failed for good; everybody gets that from now on.
    FailedFinal,
    /// Failed, and may be tried again.
    FailedRetryable,
}

impl EffectStatus {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::InProgress, Self::Succeeded, Self::FailedFinal, Self::FailedRetryable];

    /// Its word in APIs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InProgress => "IN_PROGRESS",
            Self::Succeeded => "SUCCEEDED",
            Self::FailedFinal => "FAILED_FINAL",
            Self::FailedRetryable => "FAILED_RETRYABLE",
        }
    }

    /// The word the first specification had for it.
    #[must_use]
    pub const fn as_v1(self) -> &'static str {
        match self {
            Self::InProgress => "PENDING",
            Self::Succeeded => "COMMITTED",
            Self::FailedFinal | Self::FailedRetryable => "FAILED",
        }
    }

    /// Whether it has an outcome that is handed to everybody who asks.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::FailedFinal)
    }
}

/// How long an effect is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// So long after it ended: after its finish, or after the end of a lease that nobody finished.
    Window(Millis),
    /// Until this moment, and never while a lease is running.
    Until(Timestamp),
}

impl Lifetime {
    /// When an effect that ended at `end` may be forgotten.
    #[must_use]
    pub fn after(self, end: Timestamp) -> Timestamp {
        match self {
            Self::Window(window) => end.after(window),
            Self::Until(moment) => moment.max(end),
        }
    }
}

/// How an effect ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Anything but in progress.
    pub status: EffectStatus,
    /// A code of the worker's own.
    pub response_code: i64,
    /// What is handed to whoever asks again: JSON text.
    pub result: Option<Arc<str>>,
    /// What went wrong; empty if nothing was said.
    pub last_error: Text,
}

/// One effect: who may run it, how it stands, when it may be forgotten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    /// How it stands.
    pub status: EffectStatus,
    /// An ack or a complete has finished the message behind it, so later messages of the identity need no delivery.
    pub committed: bool,
    /// A worker said how it ended; else only an ack did.
    pub finished: bool,
    /// How often it was granted.
    pub attempt: u32,
    /// Proof of the newest grant; `None` where an ack alone made the effect.
    pub token: Option<LeaseToken>,
    /// When the newest grant's lease ends or ended.
    pub lease_until: Timestamp,
    /// Whose grant it is.
    pub owner: Option<OwnerName>,
    /// What is handed to whoever asks again.
    pub result: Option<Arc<str>>,
    /// What few effects have.
    pub details: Option<Box<Details>>,
    /// How long it is remembered, where [`Details::until`] names no moment.
    pub window: Millis,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// When it may be forgotten, unless its message can still come again.
    pub expires_at: Timestamp,
    /// The message behind it, where one is known.
    pub pin: Option<Box<Pin>>,
}

/// What few effects have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// What the first request hashed to.
    pub request_hash: Option<Text>,
    /// A code of the worker's own.
    pub response_code: i64,
    /// What went wrong.
    pub last_error: Text,
    /// Remembered until this moment.
    pub until: Option<Timestamp>,
}

/// The message behind an effect: while it can be delivered again, the effect is not forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pin {
    /// Its partition.
    pub partition: PartitionId,
    /// Its position there.
    pub position: Position,
    /// The window has ended and the message was seen to be unfinished: when to look again; 0 before that.
    pub look_at: Timestamp,
}

impl Effect {
    /// An effect that was granted for the first time.
    #[must_use]
    pub fn granted(token: LeaseToken, owner: OwnerName, lease_until: Timestamp, at: Timestamp) -> Self {
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

    /// An effect that an ack alone has made.
    #[must_use]
    pub fn acked(window: Millis, at: Timestamp) -> Self {
        Self {
            status: EffectStatus::Succeeded,
            committed: true,
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
        }
    }

    /// When somebody should look whether it can be forgotten.
    #[must_use]
    pub fn look_at(&self) -> Timestamp {
        self.pin.as_ref().map_or(self.expires_at, |pin| pin.look_at.max(self.expires_at))
    }

    /// How long it is remembered.
    #[must_use]
    pub fn lifetime(&self) -> Lifetime {
        match self.details.as_ref().and_then(|details| details.until) {
            Some(moment) => Lifetime::Until(moment),
            None => Lifetime::Window(self.window),
        }
    }

    /// Whether it is in progress and its lease is running at `now`.
    #[must_use]
    pub fn is_leased(&self, now: Timestamp) -> bool {
        self.status == EffectStatus::InProgress && now < self.lease_until
    }

    /// What the first request hashed to, if that was said.
    #[must_use]
    pub fn request_hash(&self) -> Option<&str> {
        self.details.as_ref()?.request_hash.as_deref()
    }

    /// How it ended, or what was said last.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        let details = self.details.as_deref();
        Outcome {
            status: self.status,
            response_code: details.map_or(0, |details| details.response_code),
            result: self.result.clone(),
            last_error: details.map(|details| details.last_error.clone()).unwrap_or_default(),
        }
    }

    /// The same effect, ended so at `at`.
    pub(crate) fn finish(&mut self, outcome: &Outcome, at: Timestamp) {
        self.status = outcome.status;
        self.finished = true;
        self.result = outcome.result.clone();
        self.note(outcome.response_code, &outcome.last_error);
        self.ended(at);
    }

    /// It has ended: its window begins.
    fn ended(&mut self, at: Timestamp) {
        self.updated_at = at;
        self.expires_at = self.lifetime().after(at);
    }

    /// An ack or a complete has finished the message behind it. What that message alone had kept alive so far is remembered for
    /// `window` from now, as if it were new: else the commit would be forgotten as it is made.
    pub(crate) fn commit(&mut self, window: Millis, at: Timestamp) {
        self.committed = true;
        self.updated_at = at;
        self.look_in_time();
        if self.expires_at <= at {
            self.expires_at = at.after(window);
        }
    }

    /// The message behind it is done: it may be forgotten when its window ends, or now, if that is over.
    pub(crate) fn look_in_time(&mut self) {
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
            Lifetime::Until(moment) => self.details.get_or_insert_default().until = Some(moment),
        }
    }

    pub(crate) fn note(&mut self, response_code: i64, last_error: &str) {
        if self.details.is_some() || response_code != 0 || !last_error.is_empty() {
            let details = self.details.get_or_insert_default();
            details.response_code = response_code;
            details.last_error = last_error.into();
        }
    }
}
