//! The parts of a parsed history.

use serde_json::Value;

use crate::parsed::fields::{identity, short};

/// What a client knows about the effect of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallResult {
    /// It took effect.
    Ok,
    /// It had no effect.
    Fail,
    /// Unknown, also for calls without an answer.
    Info,
}

impl CallResult {
    /// Whether the call may have taken effect.
    pub(crate) fn is_possible(self) -> bool {
        self != Self::Fail
    }
}

/// The lines and the time of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallSpan {
    /// The line of its invoke.
    pub(crate) invoked: u64,
    /// The line of its answer, if it has one.
    pub(crate) ended: Option<u64>,
    /// When it was sent, by the driver's clock.
    pub(crate) t: u64,
}

impl CallSpan {
    /// Its lines.
    pub(crate) fn seqs(&self) -> Vec<u64> {
        let answer = self.ended.filter(|ended| *ended != self.invoked);
        std::iter::once(self.invoked).chain(answer).collect()
    }

    /// The line of its answer, or of its invoke if it has none.
    pub(crate) fn last(&self) -> u64 {
        self.ended.unwrap_or(self.invoked)
    }

    /// The line by which it has certainly ended: never, without an answer.
    pub(crate) fn end(&self) -> u64 {
        self.ended.unwrap_or(u64::MAX)
    }
}

/// The settings of the broker that the checks use.
#[derive(Debug, Default)]
pub(crate) struct Setup<'a> {
    pub(crate) max_in_flight: Option<u64>,
    /// The lease of a consume that requests none.
    pub(crate) lease_ms: Option<u64>,
    /// The produce deduplication window.
    pub(crate) dedupe_ms: Option<u64>,
    /// The groups that every message must reach: topic and group, sorted.
    pub(crate) groups: Vec<(&'a str, &'a str)>,
}

/// The partition and offset of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PartitionOffset {
    pub(crate) partition: u64,
    pub(crate) offset: u64,
}

impl std::fmt::Display for PartitionOffset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "partition {}, offset {}", self.partition, self.offset)
    }
}

/// A request to store a message.
#[derive(Debug)]
pub(crate) struct ProduceRequest<'a> {
    /// The topic that stores it.
    pub(crate) topic: &'a str,
    /// The topic that the call names.
    pub(crate) requested: &'a str,
    pub(crate) value: &'a str,
    pub(crate) key: &'a str,
    pub(crate) envelope: &'a Value,
    pub(crate) span: CallSpan,
    pub(crate) ended_as: CallResult,
    /// Where it is stored, if acknowledged.
    pub(crate) at: Option<PartitionOffset>,
    /// Answered as a duplicate: `at` is another message's, and nothing was stored.
    pub(crate) duplicate: bool,
    /// Answered as already done: the groups that existed then need no delivery.
    pub(crate) already_done: bool,
    /// The step it is an output of: topic, group and offset of the step's message.
    pub(crate) step: Option<(&'a str, &'a str, u64)>,
}

impl<'a> ProduceRequest<'a> {
    /// Whether it may have stored its message.
    pub(crate) fn may_have_stored(&self) -> bool {
        self.ended_as.is_possible() && !self.duplicate
    }

    /// Tenant and idempotency key, if it has one.
    pub(crate) fn identity(&self) -> Option<(&'a str, &'a str)> {
        identity(self.envelope)
    }
}

/// The source of a dead letter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin<'a> {
    pub(crate) topic: &'a str,
    pub(crate) group: &'a str,
    pub(crate) at: PartitionOffset,
}

/// A delivery that a client received.
#[derive(Debug)]
pub(crate) struct Delivery<'a> {
    pub(crate) seq: u64,
    pub(crate) topic: &'a str,
    pub(crate) group: &'a str,
    pub(crate) owner: &'a str,
    pub(crate) at: PartitionOffset,
    pub(crate) attempt: u64,
    pub(crate) token: &'a str,
    /// When its lease ends, by the broker's clock.
    pub(crate) until: Option<u64>,
    /// The lease that its consume requested.
    pub(crate) lease_ms: Option<u64>,
    pub(crate) value: &'a str,
    pub(crate) key: &'a str,
    pub(crate) envelope: &'a Value,
    pub(crate) origin: Option<Origin<'a>>,
    pub(crate) redriven: bool,
    /// The line of its consume, if known.
    pub(crate) consume: Option<u64>,
    /// Whether its lease ends with the stream.
    pub(crate) ends_with_stream: bool,
}

impl<'a> Delivery<'a> {
    pub(crate) fn timeline_key(&self) -> (&'a str, &'a str, u64) {
        (self.topic, self.group, self.at.offset)
    }

    /// When its lease began, by the broker's clock.
    pub(crate) fn began(&self) -> Option<u64> {
        self.until?.checked_sub(self.lease_ms?)
    }

    /// The latest time at which its lease can have begun, by the broker's clock. After a change of the clock wall time
    /// may run at half speed, and both ends of a lease are rounded to a millisecond.
    pub(crate) fn began_at_latest(&self) -> Option<u64> {
        Some(self.until?.checked_sub(self.lease_ms? / 2)? + 2)
    }

    /// The message, for sentences.
    pub(crate) fn name(&self) -> String {
        format!("topic {}, {}, value \"{}\"", self.topic, self.at, short(self.value))
    }
}

/// A call that settles a delivery or extends its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SettleOp {
    Ack,
    Nack,
    Extend,
    Release,
    Complete,
}

impl SettleOp {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ack => "ack",
            Self::Nack => "nack",
            Self::Extend => "extend",
            Self::Release => "release",
            Self::Complete => "complete",
        }
    }

    /// Whether it acks the message.
    pub(crate) fn is_ack(self) -> bool {
        matches!(self, Self::Ack | Self::Complete)
    }

    /// Whether it ends the lease.
    pub(crate) fn ends_lease(self) -> bool {
        self != Self::Extend
    }
}

/// A settling call.
#[derive(Debug)]
pub(crate) struct SettleCall<'a> {
    pub(crate) op: SettleOp,
    pub(crate) topic: &'a str,
    pub(crate) group: &'a str,
    pub(crate) at: PartitionOffset,
    pub(crate) token: Option<&'a str>,
    pub(crate) span: CallSpan,
    pub(crate) ended_as: CallResult,
    /// When the lease ends, for an accepted extend.
    pub(crate) until: Option<u64>,
}

impl<'a> SettleCall<'a> {
    pub(crate) fn timeline_key(&self) -> (&'a str, &'a str, u64) {
        (self.topic, self.group, self.at.offset)
    }
}

/// A complete call and its outputs.
#[derive(Debug)]
pub(crate) struct Step {
    /// Its index among the settling calls.
    pub(crate) settle: usize,
    /// The indexes of its outputs among the produce requests.
    pub(crate) requests: std::ops::Range<usize>,
    /// The number of produced messages in its answer, if it has one.
    pub(crate) answered: Option<usize>,
}

/// A kind of call of the idempotency store.
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
    pub(crate) span: CallSpan,
    pub(crate) ended_as: CallResult,
    pub(crate) args: &'a Value,
    pub(crate) result: &'a Value,
}

/// The first and last line of a drain round.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DrainRound {
    pub(crate) began: Option<u64>,
    pub(crate) ended: Option<u64>,
}

/// The deliveries and settling calls of a message in one group, as indexes.
#[derive(Debug, Default)]
pub(crate) struct MessageTimeline {
    /// By token, which is by age.
    pub(crate) deliveries: Vec<usize>,
    /// Those without a token first, then by token, then by line.
    pub(crate) settles: Vec<usize>,
}

/// A message known to exist.
#[derive(Debug)]
pub(crate) struct KnownMessage<'a> {
    pub(crate) partition: u64,
    pub(crate) value: &'a str,
    /// The line that first shows it.
    pub(crate) seq: u64,
    /// Whether it was acknowledged to its producer.
    pub(crate) accepted: bool,
    /// Whether its producer was told that it is already done.
    pub(crate) already_done: bool,
    /// Whether its envelope allows it to be dead-lettered.
    pub(crate) has_dead_letter_policy: bool,
    /// Whether it has a priority or a delay, and is exempt from offset order.
    pub(crate) out_of_order: bool,
    /// Whether a redrive stored it, so that only one group sees it.
    pub(crate) redriven: bool,
    /// Tenant and idempotency key.
    pub(crate) identity: Option<(&'a str, &'a str)>,
}
