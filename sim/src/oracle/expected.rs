//! Expected outputs, and their comparison with actual ones.

use std::fmt;
use std::sync::Arc;

use driftq_core::reply::{CloseCause, Delivery, StoreReply};
use driftq_core::types::{
    ConsumerId, Identity, LastError, LeaseToken, Offset, PartitionId, Ticket, Timestamp, TopicId,
};
use driftq_core::{Body, Output, Refusal, Reply};

use super::effect::Effect;
use super::topic::{Content, LastErrorText};

/// The broker's output differs from the prediction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected}, found {found}")]
pub struct Mismatch {
    /// The expected output.
    pub expected: String,
    /// The actual output.
    pub found: String,
}

/// An expected output.
#[derive(Clone, Debug)]
pub(super) enum Expected {
    Reply { ticket: Ticket, result: Result<ExpectedReply, Refusal> },
    Deliver(ExpectedDelivery),
    Closed { consumer: ConsumerId, cause: CloseCause },
}

/// A successful reply. Messages and effects are compared by content, not by representation.
#[derive(Clone, Debug)]
pub(super) enum ExpectedReply {
    Plain(Reply),
    Peeked(Vec<ExpectedPeek>),
    Effect(Box<Effect>),
    /// A page of the selected effects, and the one after which the next page begins.
    Effects {
        page: Vec<Effect>,
        next: Option<Identity>,
    },
}

#[derive(Clone, Debug)]
pub(super) struct ExpectedPeek {
    pub(super) topic: TopicId,
    pub(super) partition: PartitionId,
    pub(super) offset: Offset,
    pub(super) produced_at: Timestamp,
    pub(super) content: Arc<Content>,
}

#[derive(Clone, Debug)]
pub(super) struct ExpectedDelivery {
    pub(super) consumer: ConsumerId,
    pub(super) topic: TopicId,
    pub(super) partition: PartitionId,
    pub(super) offset: Offset,
    pub(super) attempts: u32,
    pub(super) failures: u32,
    pub(super) error: LastErrorText,
    pub(super) token: LeaseToken,
    pub(super) lease_until: Timestamp,
    pub(super) produced_at: Timestamp,
    pub(super) content: Arc<Content>,
}

pub(super) fn compare(expected: Option<Expected>, output: &Output) -> Result<(), Mismatch> {
    let is_expected = match (&expected, output) {
        (Some(Expected::Reply { ticket, result }), Output::Reply { ticket: actual, result: found }) => {
            ticket == actual
                && match (result, found) {
                    (Ok(expected_reply), Ok(reply)) => expected_reply.is(reply),
                    (Err(refusal), Err(found)) => refusal == found,
                    _ => false,
                }
        }
        (Some(Expected::Deliver(expected_delivery)), Output::Deliver { consumer, delivery }) => {
            expected_delivery.is(*consumer, delivery)
        }
        (Some(Expected::Closed { consumer, cause }), Output::Closed { consumer: actual, cause: found }) => {
            (consumer, cause) == (actual, found)
        }
        _ => false,
    };
    if is_expected {
        return Ok(());
    }
    // The debug output of a body contains only its lengths, but its content may be what differs.
    let content_of = |body: &Body| {
        let (key, value) = (String::from_utf8_lossy(body.key()), String::from_utf8_lossy(body.value()));
        format!("{value:?} under {key:?} with {:?}", body.metadata())
    };
    let found = match output {
        Output::Deliver { delivery, .. } => format!("{output:?} of {}", content_of(&delivery.body)),
        Output::Reply { result: Ok(Reply::Peeked(found)), .. } => {
            let bodies: Vec<_> = found.iter().map(|peeked| content_of(&peeked.body)).collect();
            format!("{output:?} of {}", bodies.join(", "))
        }
        output => format!("{output:?}"),
    };
    let expected = expected.map_or_else(|| "nothing".to_owned(), |expected| expected.to_string());
    Err(Mismatch { expected, found })
}

impl ExpectedReply {
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
            (Self::Effects { page, next }, Reply::Store(StoreReply::Listed(found))) => {
                let is_same =
                    |expected: &Effect, found: &(Identity, _)| expected.identity == found.0 && expected.is(&found.1);
                let mut pairs = page.iter().zip(&found.effects);
                page.len() == found.effects.len()
                    && pairs.all(|(expected, found)| is_same(expected, found))
                    && *next == found.next
            }
            (Self::Peeked(_) | Self::Effect(_) | Self::Effects { .. }, _) => false,
        }
    }
}

impl ExpectedDelivery {
    fn is(&self, consumer: ConsumerId, found: &Delivery) -> bool {
        let is_same_error = match (&self.error, &found.last_error) {
            (LastErrorText::None, LastError::Nothing) | (LastErrorText::Timeout, LastError::AckTimeout) => true,
            (LastErrorText::Reason(expected), LastError::Reason(found)) => expected == found,
            _ => false,
        };
        is_same_error
            && (self.consumer, self.partition, self.offset) == (consumer, found.partition, found.offset)
            && (self.attempts, self.failures, self.token) == (found.attempts, found.failures, found.token)
            && (self.lease_until, self.produced_at) == (found.lease_until, found.produced_at)
            && self.content.is(&found.body)
    }
}

impl Content {
    /// Whether the body has this content, byte for byte and field for field.
    fn is(&self, body: &Body) -> bool {
        if self.equal_body.get().is_some_and(|equal| equal == body) {
            return true;
        }
        let same = self.key == body.key() && self.value == body.value() && self.metadata == body.metadata();
        if same {
            self.equal_body.get_or_init(|| body.clone());
        }
        same
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reply { ticket, result: Ok(ExpectedReply::Plain(reply)) } => write!(f, "{reply:?} to {ticket}"),
            Self::Reply { ticket, result: Ok(ExpectedReply::Peeked(found)) } => write!(f, "{found:?} to {ticket}"),
            Self::Reply { ticket, result: Ok(ExpectedReply::Effect(effect)) } => write!(f, "{effect:?} to {ticket}"),
            Self::Reply { ticket, result: Ok(ExpectedReply::Effects { page, next }) } => {
                write!(f, "{page:?}, then what is after {next:?}, to {ticket}")
            }
            Self::Reply { ticket, result: Err(refusal) } => write!(f, "the refusal {refusal:?} of {ticket}"),
            Self::Deliver(expected_delivery) => write!(f, "{expected_delivery:?}"),
            Self::Closed { consumer, cause } => write!(f, "the end of stream {consumer}: {cause:?}"),
        }
    }
}
