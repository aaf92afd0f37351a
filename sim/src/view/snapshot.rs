//! A snapshot of a broker between two actions: the state of every message in every group, leases, effects and the log.
//! Small, and made to be compared.

use std::collections::{BTreeMap, BTreeSet};

use driftq_core::faults::Faults;
use driftq_core::state::{Group, Message, State, Topic};
use driftq_core::types::{
    Effect, EffectStatus, Identity, LeaseToken, PartitionId, PayloadId, Phase, Position, Scope, Timestamp,
};
use driftq_core::{Broker, Pipeline};

use crate::names::{group_in_traces, topic_in_traces, worker_in_traces};
use crate::world::TapEvent;

/// A message in a group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MessageInGroup {
    pub(super) topic: String,
    pub(super) group: String,
    pub(super) partition: u32,
    pub(super) offset: u64,
    /// Its name in traces.
    pub(super) message: String,
}

/// A running lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RunningLease {
    pub(super) owner: String,
    pub(super) until: Timestamp,
    pub(super) token: LeaseToken,
    pub(super) attempts: u32,
    pub(super) failures: u32,
}

/// The state of a message in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MessageStatus {
    Ready,
    Delayed { until: Timestamp },
    InFlight(RunningLease),
    Queued { not_before: Timestamp, token: LeaseToken, attempts: u32, failures: u32, reason: String },
    Acked,
}

impl MessageStatus {
    /// The number of deliveries.
    pub(super) fn attempts(&self) -> u32 {
        match self {
            Self::InFlight(RunningLease { attempts, .. }) | Self::Queued { attempts, .. } => *attempts,
            _ => 0,
        }
    }

    /// The number of failed deliveries.
    pub(super) fn failures(&self) -> u32 {
        match self {
            Self::InFlight(RunningLease { failures, .. }) | Self::Queued { failures, .. } => *failures,
            _ => 0,
        }
    }

    /// The token of the newest delivery.
    pub(super) fn token(&self) -> Option<LeaseToken> {
        match self {
            Self::InFlight(RunningLease { token, .. }) | Self::Queued { token, .. } => Some(*token),
            _ => None,
        }
    }
}

/// The record of an effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EffectRecord {
    pub(super) status: EffectStatus,
    pub(super) attempt: u32,
    pub(super) owner: Option<String>,
    pub(super) until: Timestamp,
    pub(super) committed: bool,
}

/// A snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Snapshot {
    /// The time inside the broker.
    pub(super) now: Timestamp,
    pub(super) boot: u32,
    pub(super) failed: Option<String>,
    pub(super) appended: u64,
    pub(super) synced: u64,
    pub(super) snapshots: Vec<u64>,
    /// The number of partitions and the next offset of each topic.
    pub(super) topics: BTreeMap<String, (u32, u64)>,
    /// Whether each group is paused.
    pub(super) groups: BTreeMap<(String, String), bool>,
    /// The stored messages, by topic, partition and offset.
    pub(super) stored: BTreeMap<(String, u32, u64), String>,
    pub(super) messages_in_groups: BTreeMap<MessageInGroup, MessageStatus>,
    /// Dead-lettered messages: their original topic, partition and offset, and the group.
    pub(super) dead: BTreeSet<(String, u32, u64, String)>,
    pub(super) effects: BTreeMap<String, EffectRecord>,
}

impl Snapshot {
    pub(super) fn of<F: Faults>(broker: &Pipeline<F>, names: &mut MessageNames) -> Self {
        names.learn(broker.broker());
        let state = broker.state();
        let mut snapshot = Self {
            now: broker.broker().now(),
            boot: state.boot().0,
            failed: broker.failure().map(|fault| fault.0.clone()),
            appended: broker.broker().appended().0,
            synced: broker.synced().lsn.0,
            snapshots: broker.snapshots().iter().map(|frame| frame.0).collect(),
            effects: effects(state),
            ..Self::default()
        };
        for topic in state.topics() {
            snapshot.add_topic(state, topic, names);
        }
        snapshot
    }

    fn add_topic(&mut self, state: &State, topic: &Topic, names: &MessageNames) {
        let name = topic_in_traces(topic.name());
        self.topics.insert(name.clone(), (topic.partition_count(), topic.next_offset().0));
        for group in topic.groups() {
            self.groups.insert((name.clone(), group_in_traces(group.name())), group.is_paused());
        }
        for (id, partition) in topic.partitions() {
            for (position, message) in partition.messages() {
                let message_name = names.name_of(&message);
                self.stored.insert((name.clone(), id.0, message.offset.0), message_name.clone());
                if name.starts_with("dlq.")
                    && let Some(dead_letter) = message.dead_letter()
                {
                    let topic = topic_in_traces(&dead_letter.original_topic);
                    let group = group_in_traces(&dead_letter.group);
                    self.dead.insert((topic, dead_letter.original_partition.0, dead_letter.original_offset.0, group));
                }
                let visible_to = partition.visible_to(position);
                for group in topic.groups().filter(|group| visible_to.is_none_or(|only| only == group.id())) {
                    let message_key = MessageInGroup {
                        topic: name.clone(),
                        group: group_in_traces(group.name()),
                        partition: id.0,
                        offset: message.offset.0,
                        message: message_name.clone(),
                    };
                    let status = status_of(state, group, (id, position), &message, self.now);
                    self.messages_in_groups.insert(message_key, status);
                }
            }
        }
    }

    /// Whether the message was dead-lettered in the group.
    pub(super) fn is_dead(&self, message_key: &MessageInGroup) -> bool {
        self.dead.contains(&(
            message_key.topic.clone(),
            message_key.partition,
            message_key.offset,
            message_key.group.clone(),
        ))
    }

    /// Whether the group exists.
    pub(super) fn has_group_of(&self, message_key: &MessageInGroup) -> bool {
        self.groups.contains_key(&(message_key.topic.clone(), message_key.group.clone()))
    }

    /// Whether the message was ever stored.
    pub(super) fn was_stored(&self, message_key: &MessageInGroup) -> bool {
        self.topics.get(&message_key.topic).is_some_and(|(_, next)| message_key.offset < *next)
    }
}

fn status_of(
    state: &State,
    group: &Group,
    (id, position): (PartitionId, Position),
    message: &Message,
    now: Timestamp,
) -> MessageStatus {
    let Some(progress) = group.progress(id) else { return MessageStatus::Ready };
    if progress.acked().contains(position) {
        return MessageStatus::Acked;
    }
    if let Some(entry) = progress.delivery(position) {
        let (token, attempts, failures) = (entry.token, entry.attempts, entry.failures);
        return match entry.phase {
            Phase::Leased { until } => MessageStatus::InFlight(RunningLease {
                owner: worker_in_traces(&entry.owner),
                until,
                token,
                attempts,
                failures,
            }),
            Phase::Queued { not_before } => {
                let reason = entry.last_error.as_str().to_owned();
                MessageStatus::Queued { not_before, token, attempts, failures, reason }
            }
        };
    }
    if !state.is_delayed(message, now) {
        return MessageStatus::Ready;
    }
    let by_wall = message.deliver_at().map(|at| state.wall_clock().reaches(at));
    MessageStatus::Delayed { until: message.delayed_until().or(by_wall).unwrap_or(now) }
}

/// The names of messages by payload, from the number at the start of their values. A payload is in memory until it is
/// written, and may be gone from there later.
#[derive(Clone, Debug, Default)]
pub(super) struct MessageNames(BTreeMap<PayloadId, String>);

impl MessageNames {
    /// Adds the messages whose payloads were written.
    pub(super) fn learn_written(&mut self, events: &[TapEvent]) {
        let written =
            events.iter().filter_map(|event| if let TapEvent::Written(bodies) = event { Some(bodies) } else { None });
        self.0.extend(written.flatten().map(|(payload, body)| (*payload, name_in(body.value()))));
    }

    /// Adds the messages whose payloads are in memory.
    fn learn<F: Faults>(&mut self, broker: &Broker<F>) {
        let stored =
            broker.state().topics().flat_map(Topic::partitions).flat_map(|(_, partition)| partition.messages());
        for (_, message) in stored {
            let payload = message.payload.id;
            if let Some(body) = broker.cached_payload(payload) {
                self.0.insert(payload, name_in(body.value()));
            }
        }
    }

    fn name_of(&self, message: &Message) -> String {
        // A planted bug may have taken it from memory before it was written.
        self.0.get(&message.payload.id).cloned().unwrap_or_else(|| name_in(b""))
    }
}

/// The name of the message with this value.
pub(super) fn name_in(value: &[u8]) -> String {
    let digits: String = value.iter().take_while(|byte| byte.is_ascii_digit()).map(|byte| char::from(*byte)).collect();
    format!("m{}", if digits.is_empty() { "?" } else { &digits })
}

fn effects(state: &State) -> BTreeMap<String, EffectRecord> {
    let tables = state.store().tables();
    let all = tables.flat_map(|(namespace, table)| {
        table.effects().map(move |(key, effect)| (effect_name(&namespace.identity(key)), effect_record(effect)))
    });
    all.collect()
}

fn effect_record(effect: &Effect) -> EffectRecord {
    EffectRecord {
        status: effect.status,
        attempt: effect.attempt,
        owner: effect.owner.as_ref().map(worker_in_traces),
        until: effect.lease_until,
        committed: effect.committed,
    }
}

/// The name of an effect.
pub(super) fn effect_name(identity: &Identity) -> String {
    let key = if identity.key().is_empty() { "without a key" } else { identity.key() };
    let scope = match &identity.scope {
        Scope::Consume { topic, group } => format!(" of {} on {}", group_in_traces(group), topic_in_traces(topic)),
        Scope::Tenant => String::new(),
        Scope::Job { id } => format!(" of job \"{id}\""),
        Scope::Task { id } => format!(" of task \"{id}\""),
        Scope::Rpc { principal, method } => format!(" of call \"{method}\" by \"{principal}\""),
    };
    let tenant = if identity.tenant() == "default" { String::new() } else { format!(" for {}", identity.tenant()) };
    format!("effect {key}{scope}{tenant}")
}
