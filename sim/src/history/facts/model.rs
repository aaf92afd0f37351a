//! What a history is made of, once it is sorted out.

use serde_json::Value;

/// What became of a call, as far as its client knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::history) enum Fate {
    /// It happened.
    Ok,
    /// It did not happen.
    Fail,
    /// Nobody knows; calls without an answer are among these.
    Info,
}

impl Fate {
    /// Whether it may have happened.
    pub(in crate::history) fn is_possible(self) -> bool {
        self != Self::Fail
    }
}

/// When a call was sent and answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::history) struct Span {
    /// The line that asks.
    pub(in crate::history) invoked: u64,
    /// The line that answers; none if there is none.
    pub(in crate::history) ended: Option<u64>,
    /// When it was sent, by the driver's clock.
    pub(in crate::history) t: u64,
}

impl Span {
    /// The lines of it.
    pub(in crate::history) fn seqs(&self) -> Vec<u64> {
        let answer = self.ended.filter(|ended| *ended != self.invoked);
        std::iter::once(self.invoked).chain(answer).collect()
    }

    /// The line it is best known by: its answer's, else its own.
    pub(in crate::history) fn last(&self) -> u64 {
        self.ended.unwrap_or(self.invoked)
    }

    /// The line by which it has certainly ended; a call without an answer never has.
    pub(in crate::history) fn end(&self) -> u64 {
        self.ended.unwrap_or(u64::MAX)
    }
}

/// The settings that count.
#[derive(Debug, Default)]
pub(in crate::history) struct Setup<'a> {
    pub(in crate::history) max_in_flight: Option<u64>,
    /// The lease where a consume asks for none.
    pub(in crate::history) lease_ms: Option<u64>,
    /// How long produce identities are remembered, at least.
    pub(in crate::history) dedupe_ms: Option<u64>,
    /// The groups that must see everything: topic and group.
    pub(in crate::history) groups: Vec<(&'a str, &'a str)>,
}

/// Where a message stands in its topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::history) struct Place {
    pub(in crate::history) partition: u64,
    pub(in crate::history) offset: u64,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "partition {}, offset {}", self.partition, self.offset)
    }
}

/// A request to store a message.
#[derive(Debug)]
pub(in crate::history) struct Ask<'a> {
    /// The topic it is stored in.
    pub(in crate::history) topic: &'a str,
    pub(in crate::history) value: &'a str,
    pub(in crate::history) key: &'a str,
    pub(in crate::history) envelope: &'a Value,
    pub(in crate::history) span: Span,
    pub(in crate::history) fate: Fate,
    /// Where it is stored, if the client was told.
    pub(in crate::history) place: Option<Place>,
    /// The gate answered: the place is another message's, and nothing was stored.
    pub(in crate::history) duplicate: bool,
    /// The step it is an output of: topic, group and offset of the step's message.
    pub(in crate::history) step: Option<(&'a str, &'a str, u64)>,
}

impl<'a> Ask<'a> {
    /// Whether it may have stored its message.
    pub(in crate::history) fn may_have_stored(&self) -> bool {
        self.fate.is_possible() && !self.duplicate
    }

    /// Tenant and idempotency key, if it has one.
    pub(in crate::history) fn identity(&self) -> Option<(&'a str, &'a str)> {
        super::words::identity(self.envelope)
    }
}

/// Where a dead letter comes from.
#[derive(Clone, Copy, Debug)]
pub(in crate::history) struct Origin<'a> {
    pub(in crate::history) topic: &'a str,
    pub(in crate::history) group: &'a str,
    pub(in crate::history) place: Place,
}

/// A message that a client received.
#[derive(Debug)]
pub(in crate::history) struct Delivery<'a> {
    pub(in crate::history) seq: u64,
    pub(in crate::history) topic: &'a str,
    pub(in crate::history) group: &'a str,
    pub(in crate::history) owner: &'a str,
    pub(in crate::history) place: Place,
    pub(in crate::history) attempt: u64,
    pub(in crate::history) token: &'a str,
    /// When its lease ends, by the server's clock.
    pub(in crate::history) until: Option<u64>,
    /// How long a lease its consume asked for.
    pub(in crate::history) lease_ms: Option<u64>,
    pub(in crate::history) value: &'a str,
    pub(in crate::history) key: &'a str,
    pub(in crate::history) envelope: &'a Value,
    pub(in crate::history) origin: Option<Origin<'a>>,
    pub(in crate::history) redriven: bool,
    /// The line of the consume that it belongs to, if that is known.
    pub(in crate::history) consume: Option<u64>,
    /// When the stream ends, its leases end with it.
    pub(in crate::history) ends_with_stream: bool,
}

impl<'a> Delivery<'a> {
    pub(in crate::history) fn story(&self) -> (&'a str, &'a str, u64) {
        (self.topic, self.group, self.place.offset)
    }

    /// When its lease began, by the server's clock.
    pub(in crate::history) fn began(&self) -> Option<u64> {
        self.until?.checked_sub(self.lease_ms?)
    }

    /// The message, for sentences.
    pub(in crate::history) fn name(&self) -> String {
        format!("topic {}, {}, value \"{}\"", self.topic, self.place, super::words::short(self.value))
    }
}

/// A word that settles a message, or lengthens its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::history) enum SettleOp {
    Ack,
    Nack,
    Extend,
    Release,
    Complete,
}

impl SettleOp {
    pub(in crate::history) fn word(self) -> &'static str {
        match self {
            Self::Ack => "ack",
            Self::Nack => "nack",
            Self::Extend => "extend",
            Self::Release => "release",
            Self::Complete => "complete",
        }
    }

    /// Whether it finishes the message.
    pub(in crate::history) fn finishes(self) -> bool {
        matches!(self, Self::Ack | Self::Complete)
    }

    /// Whether it ends a lease.
    pub(in crate::history) fn ends_lease(self) -> bool {
        self != Self::Extend
    }
}

/// What a client said about a message.
#[derive(Debug)]
pub(in crate::history) struct Settle<'a> {
    pub(in crate::history) op: SettleOp,
    pub(in crate::history) topic: &'a str,
    pub(in crate::history) group: &'a str,
    pub(in crate::history) place: Place,
    pub(in crate::history) token: Option<&'a str>,
    pub(in crate::history) span: Span,
    pub(in crate::history) fate: Fate,
    /// When the lease ends, for an extend that was taken.
    pub(in crate::history) until: Option<u64>,
}

impl<'a> Settle<'a> {
    pub(in crate::history) fn story(&self) -> (&'a str, &'a str, u64) {
        (self.topic, self.group, self.place.offset)
    }
}

/// A complete, with what it was to produce.
#[derive(Debug)]
pub(in crate::history) struct Step {
    /// Its place among the settling calls.
    pub(in crate::history) settle: usize,
    /// Its outputs among the asks.
    pub(in crate::history) asks: std::ops::Range<usize>,
    /// How many messages it was told to have produced, where it was told.
    pub(in crate::history) told: Option<usize>,
}

/// What is asked of the idempotency store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::history) enum EffectOp {
    /// Begin or reacquire.
    Begin,
    Finish,
    Renew,
}

/// A call of the idempotency store.
#[derive(Debug)]
pub(in crate::history) struct EffectCall<'a> {
    pub(in crate::history) op: EffectOp,
    /// Tenant, scope and key, as one text.
    pub(in crate::history) identity: String,
    pub(in crate::history) span: Span,
    pub(in crate::history) fate: Fate,
    pub(in crate::history) args: &'a Value,
    pub(in crate::history) result: &'a Value,
}

/// A round of draining.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::history) struct Drain {
    pub(in crate::history) began: Option<u64>,
    pub(in crate::history) ended: Option<u64>,
}

/// What one group saw of a message and said about it.
#[derive(Debug, Default)]
pub(in crate::history) struct Story {
    /// By token, which is by age.
    pub(in crate::history) deliveries: Vec<usize>,
    /// Those without a token, then by token, then by the line that asks.
    pub(in crate::history) settles: Vec<usize>,
}

/// A message that is known to exist.
#[derive(Debug)]
pub(in crate::history) struct Known<'a> {
    pub(in crate::history) partition: u64,
    pub(in crate::history) value: &'a str,
    /// The line that first shows it.
    pub(in crate::history) seq: u64,
    /// It was accepted: its producer was told so.
    pub(in crate::history) accepted: bool,
    /// It may become a dead letter: its attempts are limited, or it has a deadline.
    pub(in crate::history) may_die: bool,
    /// It has a priority or a delay, so it does not come in order.
    pub(in crate::history) out_of_order: bool,
    /// Only one group sees it.
    pub(in crate::history) redriven: bool,
    /// Tenant and idempotency key.
    pub(in crate::history) identity: Option<(&'a str, &'a str)>,
}
