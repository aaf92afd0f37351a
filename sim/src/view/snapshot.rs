//! What can be seen of a broker between two steps: where every message stands with every group, who holds what, what is known
//! about effects, how far the log reaches. Small, and made to be compared.

use std::collections::{BTreeMap, BTreeSet};

use driftq_core::Pipeline;
use driftq_core::faults::Faults;
use driftq_core::idempotency::{Effect, EffectStatus, Identity, Scope};
use driftq_core::state::State;
use driftq_core::state::entry::Phase;
use driftq_core::state::group::Group;
use driftq_core::state::partition::Message;
use driftq_core::state::topic::Topic;
use driftq_core::types::{LeaseToken, PartitionId, Position, Timestamp};

/// A message, as one group is to work on it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Task {
    pub(super) topic: String,
    pub(super) group: String,
    pub(super) partition: u32,
    pub(super) offset: u64,
    /// The name by which traces know it.
    pub(super) message: String,
}

/// A lease that is running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hold {
    pub(super) owner: String,
    pub(super) until: Timestamp,
    pub(super) token: LeaseToken,
    pub(super) attempts: u32,
    pub(super) failures: u32,
}

/// How a message stands with a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Ready,
    Delayed { until: Timestamp },
    HeldDelivery(Hold),
    Waiting { not_before: Timestamp, token: LeaseToken, attempts: u32, failures: u32, reason: String },
    Done,
}

impl Standing {
    /// How often it was delivered, as far as the group remembers.
    pub(super) fn attempts(&self) -> u32 {
        match self {
            Self::HeldDelivery(Hold { attempts, .. }) | Self::Waiting { attempts, .. } => *attempts,
            _ => 0,
        }
    }

    /// How many of those deliveries failed.
    pub(super) fn failures(&self) -> u32 {
        match self {
            Self::HeldDelivery(Hold { failures, .. }) | Self::Waiting { failures, .. } => *failures,
            _ => 0,
        }
    }

    /// The newest delivery's token.
    pub(super) fn token(&self) -> Option<LeaseToken> {
        match self {
            Self::HeldDelivery(Hold { token, .. }) | Self::Waiting { token, .. } => Some(*token),
            _ => None,
        }
    }
}

/// What is known about an effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) status: EffectStatus,
    pub(super) attempt: u32,
    pub(super) owner: Option<String>,
    pub(super) until: Timestamp,
    pub(super) committed: bool,
}

/// A broker, seen from outside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Snapshot {
    /// The moment inside.
    pub(super) now: Timestamp,
    pub(super) boot: u32,
    pub(super) failed: Option<String>,
    pub(super) appended: u64,
    pub(super) synced: u64,
    pub(super) snapshots: Vec<u64>,
    /// How many partitions each topic has, and the offset it gives next.
    pub(super) topics: BTreeMap<String, (u32, u64)>,
    /// Whether each group is paused.
    pub(super) groups: BTreeMap<(String, String), bool>,
    /// The messages that are kept, by topic, partition and offset.
    pub(super) kept: BTreeMap<(String, u32, u64), String>,
    pub(super) tasks: BTreeMap<Task, Standing>,
    /// What died: where it lay, and for which group.
    pub(super) dead: BTreeSet<(String, u32, u64, String)>,
    pub(super) effects: BTreeMap<String, Known>,
}

impl Snapshot {
    pub(super) fn of<F: Faults>(broker: &Pipeline<F>) -> Self {
        let state = broker.state();
        let mut snapshot = Self {
            now: broker.broker().now(),
            boot: state.boot().0,
            failed: broker.failure().map(|fault| fault.0.clone()),
            appended: broker.broker().appended().0,
            synced: broker.synced().0,
            snapshots: broker.snapshots().iter().map(|lsn| lsn.0).collect(),
            effects: effects(state),
            ..Self::default()
        };
        for topic in state.topics() {
            snapshot.look_at(topic);
        }
        snapshot
    }

    fn look_at(&mut self, topic: &Topic) {
        let name = topic.name().as_str();
        self.topics.insert(name.to_owned(), (topic.partition_count(), topic.next_offset().0));
        for group in topic.groups() {
            self.groups.insert((name.to_owned(), group.name().as_str().to_owned()), group.is_paused());
        }
        for (id, partition) in topic.partitions() {
            for (position, message) in partition.messages() {
                let called = name_of(message);
                self.kept.insert((name.to_owned(), id.0, message.offset.0), called.clone());
                if name.starts_with("dlq.")
                    && let Some(letter) = message.body.metadata().dead_letter
                {
                    let topic = letter.original_topic.as_str().to_owned();
                    let group = letter.group.as_str().to_owned();
                    self.dead.insert((topic, letter.original_partition.0, letter.original_offset.0, group));
                }
                let seen_by = partition.visible_to(position);
                for group in topic.groups().filter(|group| seen_by.is_none_or(|only| only == group.id())) {
                    let task = Task {
                        topic: name.to_owned(),
                        group: group.name().as_str().to_owned(),
                        partition: id.0,
                        offset: message.offset.0,
                        message: called.clone(),
                    };
                    let standing = standing(group, id, position, message, self.now);
                    self.tasks.insert(task, standing);
                }
            }
        }
    }

    /// Whether the message died for the group.
    pub(super) fn is_dead(&self, task: &Task) -> bool {
        self.dead.contains(&(task.topic.clone(), task.partition, task.offset, task.group.clone()))
    }

    /// Whether the group is there.
    pub(super) fn has_group_of(&self, task: &Task) -> bool {
        self.groups.contains_key(&(task.topic.clone(), task.group.clone()))
    }

    /// Whether the message was ever stored, as far as this broker knows.
    pub(super) fn knows(&self, task: &Task) -> bool {
        self.topics.get(&task.topic).is_some_and(|(_, next)| task.offset < *next)
    }
}

fn standing(group: &Group, id: PartitionId, position: Position, message: &Message, now: Timestamp) -> Standing {
    let Some(progress) = group.progress(id) else { return Standing::Ready };
    if progress.done().contains(position) {
        return Standing::Done;
    }
    if let Some(entry) = progress.entry(position) {
        let (token, attempts, failures) = (entry.token, entry.attempts, entry.failures);
        return match entry.phase {
            Phase::Leased { until } => Standing::HeldDelivery(Hold {
                owner: entry.owner.as_str().to_owned(),
                until,
                token,
                attempts,
                failures,
            }),
            Phase::Queued { not_before } => {
                let reason = entry.last_error.as_str().to_owned();
                Standing::Waiting { not_before, token, attempts, failures, reason }
            }
        };
    }
    let delay = message.body.flags().has_delay.then(|| message.body.metadata().envelope.deliver_at).flatten();
    delay.filter(|until| *until > now).map_or(Standing::Ready, |until| Standing::Delayed { until })
}

/// A message is known by the number its value begins with.
pub(super) fn name_of(message: &Message) -> String {
    name_in(message.body.value())
}

/// The name of the message with this value.
pub(super) fn name_in(value: &[u8]) -> String {
    let digits: String = value.iter().take_while(|byte| byte.is_ascii_digit()).map(|byte| char::from(*byte)).collect();
    format!("m{}", if digits.is_empty() { "?" } else { &digits })
}

fn effects(state: &State) -> BTreeMap<String, Known> {
    let tables = state.store().tables();
    let all = tables.flat_map(|(realm, table)| {
        table.effects().map(move |(key, effect)| (effect_name(&realm.identity(key)), known(effect)))
    });
    all.collect()
}

fn known(effect: &Effect) -> Known {
    Known {
        status: effect.status,
        attempt: effect.attempt,
        owner: effect.owner.as_ref().map(|owner| owner.as_str().to_owned()),
        until: effect.lease_until,
        committed: effect.committed,
    }
}

/// An effect's name, for people.
pub(super) fn effect_name(identity: &Identity) -> String {
    let key = if identity.key().is_empty() { "without a key" } else { identity.key() };
    let scope = match &identity.scope {
        Scope::Consume { topic, group } => format!(" of {group} on {topic}"),
        Scope::Tenant => String::new(),
        Scope::Job { id } => format!(" of job \"{id}\""),
        Scope::Task { id } => format!(" of task \"{id}\""),
        Scope::Rpc { principal, method } => format!(" of call \"{method}\" by \"{principal}\""),
    };
    let tenant = if identity.tenant() == "default" { String::new() } else { format!(" for {}", identity.tenant()) };
    format!("effect {key}{scope}{tenant}")
}
