//! What a history is made of, once it is sorted out.

use serde_json::Value;

/// What became of a call, as far as its client knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It happened.
    Ok,
    /// It did not happen.
    Fail,
    /// Nobody knows; calls without an answer are among these.
    Info,
}

impl Fate {
    /// Whether it may have happened.
    pub(crate) fn is_possible(self) -> bool {
        self != Self::Fail
    }
}

/// When a call was sent and answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// The line that asks.
    pub(crate) invoked: u64,
    /// The line that answers; none if there is none.
    pub(crate) ended: Option<u64>,
    /// When it was sent, by the driver's clock.
    pub(crate) t: u64,
}

impl Span {
    /// The lines of it.
    pub(crate) fn seqs(&self) -> Vec<u64> {
        let answer = self.ended.filter(|ended| *ended != self.invoked);
        std::iter::once(self.invoked).chain(answer).collect()
    }

    /// The line it is best known by: its answer's, else its own.
    pub(crate) fn last(&self) -> u64 {
        self.ended.unwrap_or(self.invoked)
    }

    /// The line by which it has certainly ended; a call without an answer never has.
    pub(crate) fn end(&self) -> u64 {
        self.ended.unwrap_or(u64::MAX)
    }
}

/// The settings that count.
#[derive(Debug, Default)]
pub(crate) struct Setup<'a> {
    pub(crate) max_in_flight: Option<u64>,
    /// The lease where a consume asks for none.
    pub(crate) lease_ms: Option<u64>,
    /// How long produce identities are remembered, at least.
    pub(crate) dedupe_ms: Option<u64>,
    /// The groups that must see everything: topic and group.
    pub(crate) groups: Vec<(&'a str, &'a str)>,
}

/// Where a message stands in its topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) partition: u64,
    pub(crate) offset: u64,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "partition {}, offset {}", self.partition, self.offset)
    }
}

/// A request to store a message.
#[derive(Debug)]
pub(crate) struct Ask<'a> {
    /// The topic it is stored in.
    pub(crate) topic: &'a str,
    pub(crate) value: &'a str,
    pub(crate) key: &'a str,
    pub(crate) envelope: &'a Value,
    pub(crate) span: Span,
    pub(crate) fate: Fate,
    /// Where it is stored, if the client was told.
    pub(crate) place: Option<Place>,
    /// The gate answered: the place is another message's, and nothing was stored.
    pub(crate) duplicate: bool,
    /// The step it is an output of: topic, group and offset of the step's message.
    pub(crate) step: Option<(&'a str, &'a str, u64)>,
}

impl<'a> Ask<'a> {
    /// Whether it may have stored its message.
    pub(crate) fn may_have_stored(&self) -> bool {
        self.fate.is_possible() && !self.duplicate
    }

    /// Tenant and idempotency key, if it has one.
    pub(crate) fn identity(&self) -> Option<(&'a str, &'a str)> {
        super::fields::identity(self.envelope)
    }
}

/// Where a dead letter comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin<'a> {
    pub(crate) topic: &'a str,
    pub(crate) group: &'a str,
    pub(crate) place: Place,
}

/// A message that a client received.
#[derive(Debug)]
pub(crate) struct Delivery<'a> {
    pub(crate) seq: u64,
    pub(crate) topic: &'a str,
    pub(crate) group: &'a str,
    pub(crate) owner: &'a str,
    pub(crate) place: Place,
    pub(crate) attempt: u64,
    pub(crate) token: &'a str,
    /// When its lease ends, by the server's clock.
    pub(crate) until: Option<u64>,
    /// How long a lease its consume asked for.
    pub(crate) lease_ms: Option<u64>,
    pub(crate) value: &'a str,
    pub(crate) key: &'a str,
    pub(crate) envelope: &'a Value,
    pub(crate) origin: Option<Origin<'a>>,
    pub(crate) redriven: bool,
    /// The line of the consume that it belongs to, if that is known.
    pub(crate) consume: Option<u64>,
    /// When the stream ends, its leases end with it.
    pub(crate) ends_with_stream: bool,
}

impl<'a> Delivery<'a> {
    pub(crate) fn story(&self) -> (&'a str, &'a str, u64) {
        (self.topic, self.group, self.place.offset)
    }

    /// When its lease began, by the server's clock.
    pub(crate) fn began(&self) -> Option<u64> {
        self.until?.checked_sub(self.lease_ms?)
    }

    /// The message, for sentences.
    pub(crate) fn name(&self) -> String {
        format!("topic {}, {}, value \"{}\"", self.topic, self.place, super::fields::short(self.value))
    }
}

/// A word that settles a message, or lengthens its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SettleOp {
    Ack,
    Nack,
    Extend,
    Release,
    Complete,
}

impl SettleOp {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Ack => "ack",
            Self::Nack => "nack",
            Self::Extend => "extend",
            Self::Release => "release",
            Self::Complete => "complete",
        }
    }

    /// Whether it finishes the message.
    pub(crate) fn finishes(self) -> bool {
        matches!(self, Self::Ack | Self::Complete)
    }

    /// Whether it ends a lease.
    pub(crate) fn ends_lease(self) -> bool {
        self != Self::Extend
    }
}

/// What a client said about a message.
#[derive(Debug)]
pub(crate) struct Settle<'a> {
    pub(crate) op: SettleOp,
    pub(crate) topic: &'a str,
    pub(crate) group: &'a str,
    pub(crate) place: Place,
    pub(crate) token: Option<&'a str>,
    pub(crate) span: Span,
    pub(crate) fate: Fate,
    /// When the lease ends, for an extend that was taken.
    pub(crate) until: Option<u64>,
}

impl<'a> Settle<'a> {
    pub(crate) fn story(&self) -> (&'a str, &'a str, u64) {
        (self.topic, self.group, self.place.offset)
    }
}

/// A complete, with what it was to produce.
#[derive(Debug)]
pub(crate) struct Step {
    /// Its place among the settling calls.
    pub(crate) settle: usize,
    /// Its outputs among the asks.
    pub(crate) asks: std::ops::Range<usize>,
    /// How many messages it was told to have produced, where it was told.
    pub(crate) told: Option<usize>,
}

/// What is asked of the idempotency store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EffectOp {
    /// Begin or reacquire.
    Begin,
    Finish,
    Renew,
}

/// A call of the idempotency store.
#[derive(Debug)]
pub(crate) struct EffectCall<'a> {
    pub(crate) op: EffectOp,
    /// Tenant, scope and key, as one text.
    pub(crate) identity: String,
    pub(crate) span: Span,
    pub(crate) fate: Fate,
    pub(crate) args: &'a Value,
    pub(crate) result: &'a Value,
}

/// A round of draining.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Drain {
    pub(crate) began: Option<u64>,
    pub(crate) ended: Option<u64>,
}

/// What one group saw of a message and said about it.
#[derive(Debug, Default)]
pub(crate) struct Story {
    /// By token, which is by age.
    pub(crate) deliveries: Vec<usize>,
    /// Those without a token, then by token, then by the line that asks.
    pub(crate) settles: Vec<usize>,
}

/// A message that is known to exist.
#[derive(Debug)]
pub(crate) struct Known<'a> {
    pub(crate) partition: u64,
    pub(crate) value: &'a str,
    /// The line that first shows it.
    pub(crate) seq: u64,
    /// It was accepted: its producer was told so.
    pub(crate) accepted: bool,
    /// It may become a dead letter: its attempts are limited, or it has a deadline.
    pub(crate) may_die: bool,
    /// It has a priority or a delay, so it does not come in order.
    pub(crate) out_of_order: bool,
    /// Only one group sees it.
    pub(crate) redriven: bool,
    /// Tenant and idempotency key.
    pub(crate) identity: Option<(&'a str, &'a str)>,
}
