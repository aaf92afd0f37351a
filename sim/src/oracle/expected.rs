//! What is expected, and whether it came.

use std::fmt;
use std::sync::Arc;

use driftq_core::reply::{CloseCause, Delivery, StoreReply};
use driftq_core::state::entry::LastError;
use driftq_core::types::{ConsumerId, LeaseToken, Offset, PartitionId, Ticket, Timestamp};
use driftq_core::{Body, Output, Refusal, Reply};

use super::effects::Effect;
use super::topic::{Content, FailureText};

/// The broker said something else than it had to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected}, found {found}")]
pub struct Mismatch {
    /// What had to come next.
    pub expected: String,
    /// What came.
    pub found: String,
}

/// An output to come.
#[derive(Clone, Debug)]
pub(super) enum Expected {
    Reply { ticket: Ticket, result: Result<Answer, Refusal> },
    Deliver(Handed),
    Closed { consumer: ConsumerId, cause: CloseCause },
}

/// A success. Messages and effects looked at are compared by what they say, not by how they are kept.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    Plain(Reply),
    Peeked(Vec<Glimpse>),
    Effect(Box<Effect>),
}

#[derive(Clone, Debug)]
pub(super) struct Glimpse {
    pub(super) offset: Offset,
    pub(super) produced_at: Timestamp,
    pub(super) content: Arc<Content>,
}

#[derive(Clone, Debug)]
pub(super) struct Handed {
    pub(super) consumer: ConsumerId,
    pub(super) partition: PartitionId,
    pub(super) offset: Offset,
    pub(super) attempts: u32,
    pub(super) failures: u32,
    pub(super) error: FailureText,
    pub(super) token: LeaseToken,
    pub(super) lease_until: Timestamp,
    pub(super) produced_at: Timestamp,
    pub(super) content: Arc<Content>,
}

pub(super) fn judge(expected: Option<Expected>, output: &Output) -> Result<(), Mismatch> {
    let right = match (&expected, output) {
        (Some(Expected::Reply { ticket, result }), Output::Reply { ticket: of, result: found }) => {
            ticket == of
                && match (result, found) {
                    (Ok(answer), Ok(reply)) => answer.is(reply),
                    (Err(refusal), Err(found)) => refusal == found,
                    _ => false,
                }
        }
        (Some(Expected::Deliver(handed)), Output::Deliver { consumer, delivery }) => handed.is(*consumer, delivery),
        (Some(Expected::Closed { consumer, cause }), Output::Closed { consumer: of, cause: found }) => {
            (consumer, cause) == (of, found)
        }
        _ => false,
    };
    if right {
        return Ok(());
    }
    // A body tells only its lengths; what it says may be just what differs.
    let said = |body: &Body| {
        let (key, value) = (String::from_utf8_lossy(body.key()), String::from_utf8_lossy(body.value()));
        format!("{value:?} under {key:?} with {:?}", body.metadata())
    };
    let found = match output {
        Output::Deliver { delivery, .. } => format!("{output:?} of {}", said(&delivery.body)),
        Output::Reply { result: Ok(Reply::Peeked(found)), .. } => {
            let bodies: Vec<_> = found.iter().map(|peeked| said(&peeked.body)).collect();
            format!("{output:?} of {}", bodies.join(", "))
        }
        output => format!("{output:?}"),
    };
    let expected = expected.map_or_else(|| "nothing".to_owned(), |expected| expected.to_string());
    Err(Mismatch { expected, found })
}

impl Answer {
    fn is(&self, reply: &Reply) -> bool {
        match (self, reply) {
            (Self::Plain(expected), found) => expected == found,
            (Self::Peeked(expected), Reply::Peeked(found)) => {
                expected.len() == found.len()
                    && expected.iter().zip(found).all(|(expected, found)| {
                        (expected.offset, expected.produced_at) == (found.offset, found.produced_at)
                            && expected.content.is(&found.body)
                    })
            }
            (Self::Effect(expected), Reply::Store(StoreReply::Effect(found))) => expected.is(found),
            (Self::Peeked(_) | Self::Effect(_), _) => false,
        }
    }
}

impl Handed {
    fn is(&self, consumer: ConsumerId, found: &Delivery) -> bool {
        let error = match (&self.error, &found.last_error) {
            (FailureText::None, LastError::Nothing) | (FailureText::Timeout, LastError::AckTimeout) => true,
            (FailureText::Said(expected), LastError::Reason(found)) => expected == found,
            _ => false,
        };
        error
            && (self.consumer, self.partition, self.offset) == (consumer, found.partition, found.offset)
            && (self.attempts, self.failures, self.token) == (found.attempts, found.failures, found.token)
            && (self.lease_until, self.produced_at) == (found.lease_until, found.produced_at)
            && self.content.is(&found.body)
    }
}

impl Content {
    /// Whether the body says this, byte for byte and field for field.
    fn is(&self, body: &Body) -> bool {
        if self.seen.get().is_some_and(|seen| seen == body) {
            return true;
        }
        let same = self.key == body.key() && self.value == body.value() && self.metadata == body.metadata();
        if same {
            self.seen.get_or_init(|| body.clone());
        }
        same
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reply { ticket, result: Ok(Answer::Plain(reply)) } => write!(f, "{reply:?} to {ticket}"),
            Self::Reply { ticket, result: Ok(Answer::Peeked(found)) } => write!(f, "{found:?} to {ticket}"),
            Self::Reply { ticket, result: Ok(Answer::Effect(effect)) } => write!(f, "{effect:?} to {ticket}"),
            Self::Reply { ticket, result: Err(refusal) } => write!(f, "the refusal {refusal:?} of {ticket}"),
            Self::Deliver(handed) => write!(f, "{handed:?}"),
            Self::Closed { consumer, cause } => write!(f, "the end of stream {consumer}: {cause:?}"),
        }
    }
}
