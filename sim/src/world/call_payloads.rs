//! Which payloads in the outputs of a call are not in memory: the oracle is told, it does not predict them.

use std::collections::BTreeMap;

use driftq_core::Pipeline;
use driftq_core::command::{Command, Peek};
use driftq_core::faults::Faults;
use driftq_core::state::{Partition, State};
use driftq_core::types::{Identity, PayloadId};

use crate::oracle::{MessagePlace, PayloadOf};

/// The payloads that only the command of a call names; none for a timeout.
#[derive(Clone, Debug, Default)]
pub struct CallPayloads {
    /// Those of the messages at which it peeks: the call may remove them.
    peeked: BTreeMap<MessagePlace, PayloadId>,
    /// The effect whose result it may replay.
    replayed: Option<Identity>,
}

impl CallPayloads {
    /// Those of a command that is about to be called.
    #[must_use]
    pub fn of(state: &State, command: &Command) -> Self {
        let replayed = if let Command::Store(store) = command { store.identity().cloned() } else { None };
        Self { peeked: peeked(state, command), replayed }
    }

    /// After the call: a payload in one of its outputs, unless it is in memory.
    #[must_use]
    pub fn missing<F: Faults>(&self, broker: &Pipeline<F>, of: &PayloadOf) -> Option<PayloadId> {
        let result = |identity| broker.state().store().get(identity)?.result.as_ref()?.payload_ref();
        let payload = match of {
            PayloadOf::Message(place) => {
                let (topic, partition, offset) = *place;
                let found = broker.state().topic(topic).and_then(|topic| topic.partition(partition)?.find(offset));
                found.map(|(_, message)| message.payload.id).or_else(|| self.peeked.get(place).copied())?
            }
            PayloadOf::Result(identity) => result(identity)?.id,
            PayloadOf::Replay => result(self.replayed.as_ref()?)?.id,
        };
        (!payload.is_lost() && broker.broker().cached_payload(payload).is_none()).then_some(payload)
    }
}

/// Everything that refers to a payload, with where it stands.
pub(super) fn referrers(state: &State) -> Vec<(PayloadOf, PayloadId)> {
    let partitions = state.topics().flat_map(|topic| topic.partitions().map(|(id, found)| (topic.id(), id, found)));
    let messages = partitions.flat_map(|(topic, partition, found)| {
        let messages = found.messages();
        messages.map(move |(_, message)| (PayloadOf::Message((topic, partition, message.offset)), message.payload.id))
    });
    let results = state.store().tables().flat_map(|(namespace, table)| {
        let results = table.effects().filter_map(|(key, effect)| Some((key, effect.result.as_ref()?.payload_ref()?)));
        results.map(move |(key, payload)| (PayloadOf::Result(namespace.identity(key)), payload.id))
    });
    messages.chain(results).collect()
}

fn peeked(state: &State, command: &Command) -> BTreeMap<MessagePlace, PayloadId> {
    let Command::Peek(Peek { topic, partition, .. }) = command else { return BTreeMap::new() };
    let Some(topic) = state.topic_named(topic) else { return BTreeMap::new() };
    let messages = topic.partition(*partition).into_iter().flat_map(Partition::messages);
    messages.map(|(_, message)| ((topic.id(), *partition, message.offset), message.payload.id)).collect()
}
