//! What the observer writes down: what was asked, what was seen, and what follows from it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use driftq_core::command::{Claim, StoreCommand, Subscribe};
use driftq_core::state::State;
use driftq_core::state::group::{Group, Progress};
use driftq_core::state::partition::Partition;
use driftq_core::state::topic::Topic;
use driftq_core::types::*;
use driftq_core::{Body, Command};

use crate::invariants::completion::Traces;
use crate::invariants::counts::{Counted, open};
use crate::invariants::order::Lane;

/// A command on its way, with what was true when it was decided.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) command: Command,
    pub(crate) at: Timestamp,
    /// The last record before it was decided, and after.
    pub(crate) before: Lsn,
    pub(crate) after: Lsn,
    /// Nothing was due: it was decided against the state as it was.
    pub(crate) quiet: bool,
    /// The topic it is about, and the group, as they were numbered then.
    pub(crate) topic: Option<TopicId>,
    pub(crate) group: Option<GroupId>,
    /// A claim that gives no right: not the newest delivery's token, or not its worker's name.
    /// The state's digest is kept: it must stay the same.
    pub(crate) untouched: Option<u64>,
    pub(crate) produce: Option<Destination>,
    pub(crate) counted: Option<Counted>,
    /// Whether a worker's word counts; nobody can say where timers were due.
    pub(crate) rightful: Option<bool>,
    /// Deliveries named for the effect whose messages are not done.
    pub(crate) undone: Vec<LeaseToken>,
    /// How many messages were passed over in the same call because others of their identity are done.
    pub(crate) skips: u64,
    /// What was there of a step right after it was decided.
    pub(crate) step: Option<Traces>,
}

impl Asked {
    /// Nothing was written for it; where something else was due at the same time, nobody can say.
    pub(crate) fn left_no_record(&self) -> bool {
        !self.quiet || self.before == self.after
    }

    /// It only wants to know something.
    pub(crate) fn only_looks(&self) -> bool {
        match &self.command {
            Command::Peek { .. } | Command::DescribeTopic { .. } => true,
            Command::ListTopics | Command::ListGroups { .. } => true,
            Command::Store(asked) => matches!(**asked, StoreCommand::Get { .. }),
            _ => false,
        }
    }
}

/// Where a produce should go, and whether there was room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Destination {
    pub(crate) topic: TopicId,
    pub(crate) partition: PartitionId,
    pub(crate) fits: bool,
}

/// A topic's messages, gone ones included.
#[derive(Clone, Debug)]
pub(crate) struct TopicModel {
    pub(crate) name: TopicName,
    pub(crate) since: Lsn,
    pub(crate) known: BTreeMap<Offset, Known>,
    /// Those that are not gone.
    pub(crate) here: BTreeSet<Offset>,
}

impl TopicModel {
    pub(crate) fn new(name: TopicName, since: Lsn) -> Self {
        Self { name, since, known: BTreeMap::new(), here: BTreeSet::new() }
    }

    /// A message that was not there before.
    pub(crate) fn add(&mut self, offset: Offset, known: Known) {
        self.here.insert(offset);
        self.known.insert(offset, known);
    }

    /// Messages that were there, and were seen to be gone when the log had got to `lsn`.
    pub(crate) fn gone(&mut self, offsets: &[Offset], lsn: Lsn) {
        for offset in offsets {
            self.here.remove(offset);
            if let Some(known) = self.known.get_mut(offset) {
                known.gone = Some(lsn);
            }
        }
    }

    /// The log was found to reach to `last` only.
    pub(crate) fn rewind(&mut self, last: Lsn) {
        self.known.retain(|_, known| known.since <= last || known.released);
        for known in self.known.values_mut() {
            known.gone = known.gone.filter(|gone| *gone <= last);
        }
        self.here = self.known.iter().filter(|(_, known)| known.gone.is_none()).map(|(offset, _)| *offset).collect();
    }
}

/// A message that was stored.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    /// The produce it comes from.
    pub(crate) number: u64,
    pub(crate) partition: PartitionId,
    pub(crate) position: Position,
    pub(crate) produced_at: Timestamp,
    pub(crate) visible_to: Option<GroupId>,
    pub(crate) body: Body,
    /// How far the log had got when it was first seen.
    pub(crate) since: Lsn,
    /// The same when it was first seen to be gone.
    pub(crate) gone: Option<Lsn>,
    /// Its producer was told.
    pub(crate) released: bool,
    /// It was a dead letter and was made live again.
    pub(crate) redriven: Option<Lsn>,
}

/// From where on a group was to be handed messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// Everything below this offset counts as done.
    Below(Offset),
    /// Lost in a crash.
    Unknown,
}

/// What a group's workers know, since its creation or its last seek.
#[derive(Clone, Debug)]
pub(crate) struct GroupModel {
    pub(crate) name: GroupName,
    pub(crate) since: Lsn,
    /// Where it was made to start, and between which positions of the log that was decided.
    pub(crate) starts: Vec<(Lsn, Lsn, Start)>,
    /// Acks that were confirmed.
    pub(crate) acked: BTreeSet<Offset>,
    /// What was acked before the last seek.
    pub(crate) undone: BTreeSet<Offset>,
    /// Acks whose answer was lost.
    pub(crate) maybe: BTreeSet<Offset>,
    /// Done when messages were passed over because others of their identity are done, and perhaps one of these, or dead
    /// and its dead letter one of these.
    pub(crate) skipped: BTreeSet<Offset>,
    /// Dead-lettered, and how far the log had got when that was first seen.
    /// More than once where a seek came between; a crash may undo the seek.
    pub(crate) dead: BTreeMap<Offset, Vec<(Lsn, Timestamp)>>,
    pub(crate) seen: BTreeMap<Offset, Seen>,
    /// The highest offset first delivered, by partition and priority.
    pub(crate) firsts: BTreeMap<Lane, Offset>,
    /// When anything was last delivered, by partition and priority.
    pub(crate) served: BTreeMap<Lane, Timestamp>,
    /// A crash has passed since the start of the book: deliveries may have gone unseen.
    pub(crate) crashed: bool,
}

impl GroupModel {
    pub(crate) fn new(name: GroupName, since: Lsn) -> Self {
        let (starts, acked, undone, maybe, skipped, dead, seen, firsts, served) = Default::default();
        Self { name, since, starts, acked, undone, maybe, skipped, dead, seen, firsts, served, crashed: false }
    }

    /// A seek, decided when the log had got to `lsn`: what was done may come back, what was counted starts anew.
    pub(crate) fn turn_over(&mut self, lsn: Lsn) {
        let starts = std::mem::take(&mut self.starts);
        let mut dead = std::mem::take(&mut self.dead);
        dead.retain(|_, deaths| {
            deaths.retain(|(since, _)| *since >= lsn);
            !deaths.is_empty()
        });
        let undone = std::mem::take(&mut self.acked);
        // Some may have been passed over after the seek was decided and before anybody was told of it.
        let skipped = std::mem::take(&mut self.skipped);
        *self = Self { starts, dead, undone, skipped, ..Self::new(self.name.clone(), self.since) };
    }

    /// When the message last died for the group, if it did.
    pub(crate) fn died(&self, offset: Offset) -> Option<(Lsn, Timestamp)> {
        self.dead.get(&offset)?.last().copied()
    }

    pub(crate) fn start(&self) -> Start {
        self.starts.last().map_or(Start::Unknown, |(_, _, start)| *start)
    }

    /// Whether the group was sought after `lsn`.
    pub(crate) fn sought_since(&self, lsn: Lsn) -> bool {
        self.starts.last().is_none_or(|(_, after, _)| *after > lsn)
    }
}

/// The newest delivery of a message that a worker has seen.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) consumer: ConsumerId,
    pub(crate) partition: PartitionId,
    pub(crate) attempts: u32,
    pub(crate) failures: u32,
    pub(crate) token: LeaseToken,
    pub(crate) lease_until: Timestamp,
    /// As far as the worker knows, it still holds it.
    pub(crate) open: bool,
    /// Given back by the worker: not to be handed out before.
    pub(crate) not_before: Timestamp,
    /// Reasons the worker gave.
    pub(crate) reasons: BTreeSet<String>,
    /// A reason may have been given of which nobody knows whether it was taken.
    pub(crate) vague: bool,
    /// A word about it was lost in a crash.
    pub(crate) unsure: bool,
    /// A crash has passed since.
    pub(crate) crashed: bool,
}

/// A connected stream.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    pub(crate) topic: TopicId,
    pub(crate) group: GroupId,
    pub(crate) asked: Subscribe,
    pub(crate) lease: Millis,
    pub(crate) prefetch: u32,
    pub(crate) given: u64,
    pub(crate) gone: bool,
}

/// What is known of a produce identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Identity {
    Accepted {
        partition: PartitionId,
        offset: Offset,
        expires_at: Timestamp,
    },
    /// The answer was lost.
    Maybe,
}

/// Scope, tenant, key.
pub(crate) type IdentityName = (String, String, String);

/// One partition, and how far each group has got with it.
pub(crate) struct PartitionView<'a> {
    pub(crate) topic: &'a Topic,
    pub(crate) id: PartitionId,
    pub(crate) partition: &'a Partition,
    pub(crate) groups: Vec<(&'a Group, &'a Progress)>,
}

impl<'a> PartitionView<'a> {
    pub(crate) fn new(topic: &'a Topic, id: PartitionId, partition: &'a Partition) -> Self {
        let groups = topic.groups().filter_map(|group| Some((group, group.progress(id)?))).collect();
        Self { topic, id, partition, groups }
    }

    /// In how many groups the message at `position` is done.
    pub(crate) fn done_in(&self, position: Position) -> usize {
        self.groups.iter().filter(|(_, progress)| progress.done().contains(position)).count()
    }

    /// Whether a message that is done in so many groups is done in all.
    pub(crate) fn is_done_everywhere(&self, done_in: usize) -> bool {
        !self.groups.is_empty() && done_in == self.groups.len()
    }
}

impl fmt::Display for PartitionView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.topic.name(), self.id)
    }
}

/// A group, its book, and those of the commands about it that were decided and not yet answered.
pub(crate) struct Waiting<'a> {
    pub(crate) group: &'a Group,
    pub(crate) book: &'a GroupModel,
    /// It is being sought.
    pub(crate) is_sought: bool,
    /// What is being acked.
    pub(crate) acks: Vec<Offset>,
}

/// The topic and group a command names.
pub(crate) fn names(command: &Command) -> (Option<&TopicName>, Option<&GroupName>) {
    match command {
        Command::CreateTopic { name, .. } | Command::DeleteTopic { name } | Command::DescribeTopic { name } => {
            (Some(name), None)
        }
        Command::Peek { topic, .. } | Command::ListGroups { topic } | Command::Redrive { topic, .. } => {
            (Some(topic), None)
        }
        Command::Produce(asked) => (Some(&asked.topic), None),
        Command::Subscribe(asked) => (Some(&asked.topic), Some(&asked.group)),
        Command::CreateGroup { topic, group, .. }
        | Command::DeleteGroup { topic, group }
        | Command::Seek { topic, group, .. }
        | Command::Pause { topic, group }
        | Command::Resume { topic, group } => (Some(topic), Some(group)),
        Command::Ack(claim) | Command::Release(claim) => (Some(&claim.topic), Some(&claim.group)),
        Command::Nack { claim, .. } | Command::Extend { claim, .. } => (Some(&claim.topic), Some(&claim.group)),
        Command::Complete(asked) => (Some(&asked.claim.topic), Some(&asked.claim.group)),
        Command::ListTopics | Command::SetPrefetch { .. } | Command::Unsubscribe { .. } | Command::Finish { .. } => {
            (None, None)
        }
        Command::Store(_) => (None, None),
    }
}

/// The claim in a worker's word.
pub(crate) fn claim(command: &Command) -> Option<&Claim> {
    match command {
        Command::Ack(claim) | Command::Release(claim) => Some(claim),
        Command::Nack { claim, .. } | Command::Extend { claim, .. } => Some(claim),
        Command::Complete(asked) => Some(&asked.claim),
        _ => None,
    }
}

/// The number of the produce a value was made for.
pub(crate) fn number(value: &[u8]) -> Option<u64> {
    let digits = value.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&value[..digits]).ok()?.parse().ok()
}

/// FNV-1a-32 modulo the partitions; the empty key goes to the first.
fn partition_of(key: &[u8], partitions: u32) -> u32 {
    if key.is_empty() {
        return 0;
    }
    key.iter().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(16_777_619)) % partitions
}

/// Where a produce should be stored, if anywhere.
pub(crate) fn destination(
    state: &State,
    limits: &Limits,
    asked: &driftq_core::command::Produce,
) -> Option<Destination> {
    let mut name = asked.envelope.target_topic.as_ref().unwrap_or(&asked.topic);
    let mut wanted = asked.envelope.partition_override;
    if let Some(router) = &asked.routing {
        let target = router.target_topic.as_ref().unwrap_or(name);
        let count = state.topic_named(target).map(Topic::partition_count);
        let partition = router.partition_override.or(wanted);
        if count.is_some_and(|count| partition.is_none_or(|partition| partition.0 < count)) {
            name = target;
            wanted = router.partition_override.or(wanted);
        }
    }
    let topic = state.topic_named(name)?;
    let partition = wanted.unwrap_or_else(|| PartitionId(partition_of(&asked.key, topic.partition_count())));
    let (messages, bytes) = open(topic, partition);
    let more = (asked.key.len() + asked.value.len()) as u64;
    let fits = messages < limits.partition_messages_max && bytes + more <= limits.partition_bytes_max;
    (partition.0 < topic.partition_count()).then(|| Destination { topic: topic.id(), partition, fits })
}
