//! The decisions. Each reads the state, the limits and the clock, and says what is to be remembered and answered; none changes
//! anything.

pub(crate) mod admin;
pub(crate) mod complete;
pub(crate) mod effects;
pub(crate) mod failure;
pub(crate) mod produce;
pub(crate) mod redrive;
pub(crate) mod settle;

use crate::record::Event;
use crate::reply::{Refusal, Reply};
use crate::state::State;
use crate::state::topic::Topic;
use crate::types::TopicName;

/// What follows from a command: at most one record, and the answer once it is durable.
#[derive(Debug)]
pub(crate) struct Decision {
    pub(crate) event: Option<Event>,
    pub(crate) reply: Reply,
}

impl Decision {
    pub(crate) fn new(event: Event, reply: Reply) -> Self {
        Self { event: Some(event), reply }
    }

    /// Nothing is to be remembered.
    pub(crate) fn nothing(reply: Reply) -> Self {
        Self { event: None, reply }
    }
}

pub(crate) fn topic<'a>(state: &'a State, name: &TopicName) -> Result<&'a Topic, Refusal> {
    state.topic_named(name).ok_or_else(|| Refusal::UnknownTopic(name.clone()))
}
