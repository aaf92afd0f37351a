//! Decisions, one file per family of commands.
//!
//! A decision reads a [`DecisionContext`] and returns the record to append and the reply to give once that record is
//! durable. It changes nothing.

pub(crate) mod access;
pub(crate) mod admin;
pub(crate) mod complete;
pub(crate) mod dead_letter;
pub(crate) mod effects;
pub(crate) mod failure;
pub(crate) mod keys;
pub(crate) mod produce;
pub(crate) mod settle;
pub(crate) mod wall_clock;

use crate::faults::Faults;
use crate::index::{GrantEnd, Index, LeaseEnd};
use crate::record::{Event, Record};
use crate::reply::{Overload, Refusal, Reply};
use crate::state::{State, Topic};
use crate::types::{Effect, EffectStatus, LeaseToken, Limits, MessageRef, Millis, Timestamp, TopicName};

/// Everything a decision may depend on.
pub(crate) struct DecisionContext<'a, F> {
    pub(crate) state: &'a State,
    pub(crate) index: &'a Index,
    pub(crate) limits: &'a Limits,
    pub(crate) now: Timestamp,
    pub(crate) faults: &'a F,
}

impl<'a, F: Faults> DecisionContext<'a, F> {
    /// Wall time.
    pub(crate) fn wall(&self) -> Timestamp {
        self.state.wall_clock().wall(self.now)
    }

    /// The broker time that corresponds to a wall time given by a client, by the offset of now.
    pub(crate) fn broker_time(&self, wall: Timestamp) -> Timestamp {
        wall.shifted(self.state.wall_clock().offset(self.now).saturating_neg())
    }

    /// As [`topic`].
    pub(crate) fn topic(&self, name: &TopicName) -> Result<&'a Topic, Refusal> {
        topic(self.state, name)
    }

    /// Whether a message is leased. A lease runs from the moment its delivery could leave.
    pub(crate) fn is_leased(&self, message_ref: &MessageRef) -> bool {
        match self.index.lease_end(message_ref) {
            Some(LeaseEnd::Unreleased(_) | LeaseEnd::Unread(_) | LeaseEnd::Extending(_)) => true,
            Some(LeaseEnd::At(end)) => self.now < end,
            Some(LeaseEnd::Expired) | None => false,
        }
    }

    /// When the lease of an effect ends, if it is running. A lease that cannot have left yet ends at the earliest as
    /// recorded.
    pub(crate) fn leased_until(&self, effect: &Effect) -> Option<Timestamp> {
        let end = effect.token.map_or(GrantEnd::Recorded, |token| self.index.leases.grants.end_of(token));
        let runs_until = match end {
            GrantEnd::Recorded => effect.lease_until,
            GrantEnd::Unreleased => effect.lease_until.max(Timestamp(self.now.0 + 1)),
            GrantEnd::At(end) => end.max(effect.lease_until),
        };
        (effect.status == EffectStatus::InProgress && self.now < runs_until).then_some(runs_until)
    }

    /// The refusal of a command because of a limit.
    pub(crate) fn overloaded(&self, reason: Overload) -> Refusal {
        Refusal::Overloaded { reason, retry_after: self.limits.retry_after, full: None }
    }
}

/// The result of a decision: at most one record, and the reply once it is durable.
#[derive(Debug)]
pub(crate) struct Decision {
    /// Its time is set when it is appended.
    pub(crate) record: Option<Record>,
    pub(crate) reply: Reply,
    pub(crate) aside: Aside,
}

/// What a command does besides its record.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Aside {
    Nothing,
    /// It answers the delivery of this message without changing the message.
    Answers(MessageRef),
    /// Its record ends the grant of an effect: finishes, replaces or deletes it.
    EndsGrant(LeaseToken),
}

impl Decision {
    pub(crate) fn new(event: Event, reply: Reply) -> Self {
        Self { record: Some(Record { at: Timestamp(0), event }), reply, aside: Aside::Nothing }
    }

    /// What is recorded.
    pub(crate) fn event(&self) -> Option<&Event> {
        self.record.as_ref().map(|record| &record.event)
    }

    /// As [`Decision::new`], of an event that ends the newest grant of `effect`.
    pub(crate) fn ending_grant(effect: &Effect, event: Event, reply: Reply) -> Self {
        Self { aside: effect.token.map_or(Aside::Nothing, Aside::EndsGrant), ..Self::new(event, reply) }
    }

    /// A reply without a record.
    pub(crate) fn reply_only(reply: Reply) -> Self {
        Self { record: None, reply, aside: Aside::Nothing }
    }

    /// A reply without a record to a valid claim on a delivery.
    pub(crate) fn answer_only(message_ref: MessageRef, reply: Reply) -> Self {
        Self { record: None, reply, aside: Aside::Answers(message_ref) }
    }
}

/// The topic named `name`, or a refusal.
pub(crate) fn topic<'a>(state: &'a State, name: &TopicName) -> Result<&'a Topic, Refusal> {
    state.topic_named(name).ok_or_else(|| Refusal::UnknownTopic(name.clone()))
}

/// Refuses `name` to a client that named `topic`, if it is a topic of another tenant: for the client there is none.
pub(crate) fn check_tenant(topic: &TopicName, name: &TopicName) -> Result<(), Refusal> {
    if name.has_tenant_of(topic) { Ok(()) } else { Err(Refusal::UnknownTopic(name.clone())) }
}

/// Refuses a `delay` of more than `max`.
pub(crate) fn check_delay(delay: Millis, max: Millis) -> Result<(), Refusal> {
    if delay > max { Err(Refusal::DelayTooLong { delay, max }) } else { Ok(()) }
}

/// Refuses `what` if it has more than `max` bytes.
pub(crate) fn check_len(what: &'static str, len: usize, max: usize) -> Result<(), Refusal> {
    if len > max { Err(Refusal::TooLarge { what, len: len as u64, max: max as u64 }) } else { Ok(()) }
}
