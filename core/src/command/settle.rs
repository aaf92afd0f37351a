//! Commands on a delivered message: ack, nack, extend, release, withdraw, complete.

use std::sync::Arc;

use super::produce::Produce;
use crate::types::{Claim, Millis, Text};

/// Acknowledges a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ack(pub Claim);

/// Returns a message to its queue without counting a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release(pub Claim);

/// Takes back a delivery that never reached its consumer: its attempt does not count, and no failure is recorded. A
/// token must be shown.
///
/// For the driver of a broker, which knows what it has written to a stream; workers use [`Release`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Withdraw(pub Claim);

/// Reports that a message failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nack {
    /// The message.
    pub claim: Claim,
    /// What went wrong; may be empty.
    pub reason: Text,
    /// When to retry; overrides the retry policy.
    pub delay: Option<Millis>,
}

/// Extends a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extend {
    /// The message.
    pub claim: Claim,
    /// The new lease, from now; `None` or zero for the default.
    pub lease: Option<Millis>,
}

/// Acks a message, finishes its effect and produces the next step's messages, atomically.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complete {
    /// The message. A token must be shown.
    pub claim: Claim,
    /// The effect's result as JSON text; only a message with an idempotency key has an effect.
    pub result: Option<Arc<str>>,
    /// The next step's messages.
    pub produce: Vec<Produce>,
}
