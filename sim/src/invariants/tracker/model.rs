//! The tracker's model of topics, groups, messages, deliveries and streams. Data only: nothing here checks.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use driftq_core::command::{DescribeTopic, ListGroups, ListTopics, Lookup, Peek, Produce, StoreCommand, Subscribe};
use driftq_core::reply::Delivery;
use driftq_core::state::{Group, Message, Partition, Progress, State, Topic};
use driftq_core::types::*;
use driftq_core::{Body, Command};

use super::recount::{Counted, open};

/// A pending command, with what was true when it was decided.
#[derive(Clone, Debug)]
pub(crate) struct PendingCommand {
    /// What was added to broker time to get wall time when it was decided.
    pub(crate) wall_offset: i64,
    pub(crate) command: Command,
    pub(crate) at: Timestamp,
    /// The last LSN before the decision, and after it.
    pub(crate) before: Lsn,
    pub(crate) after: Lsn,
    /// No timer was due, so it was decided on the observed state.
    pub(crate) no_timer_due: bool,
    /// The ids of the topic and the group it refers to.
    pub(crate) topic: Option<TopicId>,
    pub(crate) group: Option<GroupId>,
    /// For a claim that matches no newest delivery: the digest of the state, which must not change.
    pub(crate) stale_digest: Option<u64>,
    pub(crate) produce: Option<Destination>,
    pub(crate) counted: Option<Counted>,
    /// Whether the claim is valid; unknown where timers were due.
    pub(crate) claim_is_valid: Option<bool>,
    /// Deliveries of the effect whose messages are unacked.
    pub(crate) unacked_deliveries: Vec<LeaseToken>,
    /// The messages that a cumulative ack is about.
    pub(crate) cumulative: Vec<Offset>,
    /// For a produce: which groups had acked its message right after the decision.
    pub(crate) acked_at_once: Option<AckedAtOnce>,
    /// Which parts of a step existed right after the decision.
    pub(crate) step: Option<StepEvidence>,
    /// As many winners were remembered as the limit allows.
    pub(crate) winners_full: bool,
    /// For a redrive of all, or of its rest: what it may move.
    pub(crate) redrive: Option<RedriveBounds>,
    /// For a purge: what was there.
    pub(crate) purge: Option<BeforePurge>,
}

/// What a topic stored right before a purge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BeforePurge {
    pub(crate) stored: BTreeSet<Offset>,
    /// Leased messages, by group.
    pub(crate) leased: Vec<(GroupId, Offset)>,
}

/// What a redrive of all may move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RedriveBounds {
    /// The next offset of the dead-letter topic when the redrive of all was asked for.
    pub(crate) end: Offset,
    /// The next offset of the source topic before this command: what it moves comes from here on.
    pub(crate) moved_from: Offset,
}

impl PendingCommand {
    /// Whether it wrote no record; also true where timers were due, since their records cannot be distinguished.
    pub(crate) fn left_no_record(&self) -> bool {
        !self.no_timer_due || self.before == self.after
    }

    /// Whether it is a query.
    pub(crate) fn is_query(&self) -> bool {
        match &self.command {
            Command::Peek(Peek { .. }) | Command::DescribeTopic(DescribeTopic { .. }) => true,
            Command::ListTopics(ListTopics { .. }) | Command::ListGroups(ListGroups { .. }) => true,
            Command::Store(store) => matches!(**store, StoreCommand::Lookup(Lookup { .. }) | StoreCommand::List(_)),
            _ => false,
        }
    }
}

/// The target of a produce, and whether it had space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Destination {
    pub(crate) topic: TopicId,
    pub(crate) partition: PartitionId,
    pub(crate) fits: bool,
    /// The offset that the message gets.
    pub(crate) offset: Offset,
}

/// The groups of a topic right after a message was stored in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AckedAtOnce {
    pub(crate) offset: Offset,
    pub(crate) groups: Vec<GroupId>,
    /// How many of them had acked the message.
    pub(crate) acked: usize,
}

/// Tenant, key and requested topic of messages that a group was asked to ack.
pub(crate) type DoneIdentity = (String, String, TopicName);

/// All messages of a topic, trimmed ones included.
#[derive(Clone, Debug)]
pub(crate) struct TopicModel {
    pub(crate) name: TopicName,
    pub(crate) first_seen: Lsn,
    pub(crate) messages: BTreeMap<Offset, StoredMessage>,
    /// Those that are not trimmed.
    pub(crate) stored_here: BTreeSet<Offset>,
    /// Trimmed before the crash, by a call of whose records recovery may have found some: why was checked then.
    pub(crate) trimmed_before_crash: BTreeSet<Offset>,
}

impl TopicModel {
    pub(crate) fn new(name: TopicName, first_seen: Lsn) -> Self {
        Self {
            name,
            first_seen,
            messages: BTreeMap::new(),
            stored_here: BTreeSet::new(),
            trimmed_before_crash: BTreeSet::new(),
        }
    }

    /// Adds a message that was first seen.
    pub(crate) fn add(&mut self, offset: Offset, known: StoredMessage) {
        self.stored_here.insert(offset);
        self.messages.insert(offset, known);
    }

    /// Messages were first missing when the log had reached `lsn`.
    pub(crate) fn mark_trimmed(&mut self, offsets: &[Offset], lsn: Lsn) {
        for offset in offsets {
            self.stored_here.remove(offset);
            if let Some(known) = self.messages.get_mut(offset) {
                known.trimmed_at = Some(lsn);
            }
        }
    }

    /// Recovery found the log to end at `last`.
    pub(crate) fn rewind(&mut self, last: Lsn) {
        self.messages.retain(|_, known| known.first_seen <= last || known.acknowledged);
        self.trimmed_before_crash.clear();
        for (offset, known) in &mut self.messages {
            if known.trimmed_at.is_some_and(|trimmed_at| trimmed_at > last) {
                known.trimmed_at = None;
                self.trimmed_before_crash.insert(*offset);
            }
        }
        self.stored_here =
            self.messages.iter().filter(|(_, known)| known.trimmed_at.is_none()).map(|(offset, _)| *offset).collect();
    }
}

/// A message that was stored.
#[derive(Clone, Debug)]
pub(crate) struct StoredMessage {
    /// The number of its produce.
    pub(crate) number: u64,
    pub(crate) partition: PartitionId,
    pub(crate) position: Position,
    pub(crate) produced_at: Timestamp,
    pub(crate) visible_to: Option<GroupId>,
    /// As clients see it.
    pub(crate) body: Body,
    /// As the broker stores it, wherever its bytes stand.
    pub(crate) message: Message,
    /// The LSN at which it was first seen.
    pub(crate) first_seen: Lsn,
    /// The LSN at which it was first missing.
    pub(crate) trimmed_at: Option<Lsn>,
    /// Its produce was acknowledged.
    pub(crate) acknowledged: bool,
    /// When it was redriven, if it is a dead letter.
    pub(crate) redriven: Option<Lsn>,
    /// When it was purged, and whether that was confirmed.
    pub(crate) purged: Option<(Lsn, bool)>,
    /// The record that has its payload, as last seen.
    pub(crate) payload_at: Lsn,
    /// Its payload was found damaged.
    pub(crate) is_lost: bool,
}

/// The message without the place of its bytes, lost or not.
pub(crate) fn without_place(message: &Message) -> Message {
    let payload = PayloadRef { id: PayloadId::default(), ..message.payload };
    let mut fields = message.fields().cloned();
    if let Some(lost) = fields.as_mut().filter(|fields| fields.lost.is_some()) {
        Arc::make_mut(lost).lost = None;
    }
    Message::new(message.offset, message.produced_at, payload, fields)
}

impl StoredMessage {
    /// Whether a redrive or a purge removed it, whatever its groups have done.
    pub(crate) fn is_removed(&self) -> bool {
        self.redriven.is_some() || self.purged.is_some()
    }
}

/// Where a group starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartPoint {
    /// All messages below this offset count as acked.
    Below(Offset),
    /// Lost in a crash.
    Unknown,
}

/// What the workers of a group have observed since its creation or last seek.
#[derive(Clone, Debug)]
pub(crate) struct GroupModel {
    pub(crate) name: GroupName,
    pub(crate) first_seen: Lsn,
    /// Its starting points, each with the LSNs between which it was set.
    pub(crate) starts: Vec<(Lsn, Lsn, StartPoint)>,
    /// Confirmed acks.
    pub(crate) acked: BTreeSet<Offset>,
    /// Acked before the last seek.
    pub(crate) acked_before_seek: BTreeSet<Offset>,
    /// Acks whose reply was lost.
    pub(crate) maybe_acked: BTreeSet<Offset>,
    /// Acked when messages were skipped, and possibly skipped themselves.
    pub(crate) skipped: BTreeSet<Offset>,
    /// What its workers have acked or completed, ever.
    pub(crate) done: BTreeSet<DoneIdentity>,
    /// Dead-lettered, with the LSN at which that was first seen. Several times if a seek came between; a crash may undo
    /// the seek.
    pub(crate) dead: BTreeMap<Offset, Vec<(Lsn, Timestamp)>>,
    pub(crate) seen: BTreeMap<Offset, SeenDelivery>,
    /// Messages acked when there had been more than one delivery of them.
    pub(crate) winners: BTreeMap<Offset, WinnerModel>,
    /// The highest offset delivered for the first time, by partition and priority.
    pub(crate) first_deliveries: BTreeMap<OrderKey, Offset>,
    /// Messages with a withdrawn delivery: their next delivery may be a first one, out of order.
    pub(crate) withdrawn: BTreeSet<(PartitionId, Position)>,
    /// The time of the last delivery, by partition and priority.
    pub(crate) last_delivered: BTreeMap<OrderKey, Timestamp>,
    /// A crash happened since, and some deliveries may not have been observed.
    pub(crate) crashed: bool,
    /// Messages that were answered without a token, maybe a delivery that leaves later, or never; each with its newest
    /// delivery then.
    pub(crate) answered_unseen: BTreeMap<Offset, Option<LeaseToken>>,
    /// How many deliveries of each message clients could have seen.
    pub(crate) could_see: BTreeMap<(PartitionId, Position), u32>,
    /// Messages that were delivered, and that were dead-lettered, before the last seek.
    pub(crate) seen_before_seek: BTreeSet<(PartitionId, Position)>,
    pub(crate) dead_before_seek: BTreeSet<Offset>,
    /// The token that was shown by the worker that was first told that a message is acked, and when.
    pub(crate) told_done: BTreeMap<Offset, (LeaseToken, Timestamp)>,
}

impl GroupModel {
    pub(crate) fn new(name: GroupName, first_seen: Lsn) -> Self {
        let (starts, acked, acked_before_seek, maybe_acked, skipped, done) = Default::default();
        let (dead, seen, winners, first_deliveries, last_delivered) = Default::default();
        Self {
            name,
            first_seen,
            starts,
            acked,
            acked_before_seek,
            maybe_acked,
            skipped,
            done,
            dead,
            seen,
            winners,
            first_deliveries,
            last_delivered,
            withdrawn: BTreeSet::new(),
            crashed: false,
            answered_unseen: BTreeMap::new(),
            could_see: BTreeMap::new(),
            seen_before_seek: BTreeSet::new(),
            dead_before_seek: BTreeSet::new(),
            told_done: BTreeMap::new(),
        }
    }

    /// A seek, decided when the log had reached `lsn`: acked messages may be delivered again and counters restart.
    pub(crate) fn on_seek(&mut self, lsn: Lsn) {
        let starts = std::mem::take(&mut self.starts);
        let (mut seen_before_seek, mut dead_before_seek) = Default::default();
        std::mem::swap(&mut seen_before_seek, &mut self.seen_before_seek);
        std::mem::swap(&mut dead_before_seek, &mut self.dead_before_seek);
        seen_before_seek.extend(self.could_see.keys());
        dead_before_seek.extend(self.dead.keys());
        let mut dead = std::mem::take(&mut self.dead);
        dead.retain(|_, records| {
            records.retain(|(since, _)| *since >= lsn);
            !records.is_empty()
        });
        let acked_before_seek = std::mem::take(&mut self.acked);
        // Messages may have been skipped between the seek and its reply.
        let skipped = std::mem::take(&mut self.skipped);
        let done = std::mem::take(&mut self.done);
        // Deliveries may have been withdrawn between the seek and its reply, too.
        let withdrawn = std::mem::take(&mut self.withdrawn);
        // Nor may a client ever see what was answered without a token since.
        let answered_unseen = std::mem::take(&mut self.answered_unseen);
        let crashed = !answered_unseen.is_empty();
        let could_see = if crashed { std::mem::take(&mut self.could_see) } else { BTreeMap::new() };
        let new = Self::new(self.name.clone(), self.first_seen);
        let new = Self { answered_unseen, crashed, could_see, ..new };
        let new = Self { starts, dead, acked_before_seek, skipped, done, withdrawn, ..new };
        *self = Self { seen_before_seek, dead_before_seek, ..new };
    }

    /// When the message was last dead-lettered in the group, if ever.
    pub(crate) fn dead_lettered_at(&self, offset: Offset) -> Option<(Lsn, Timestamp)> {
        self.dead.get(&offset)?.last().copied()
    }

    /// Where the log ended after the call that created the group, which also trims what no retention keeps any more.
    pub(crate) fn created_through(&self) -> Lsn {
        let created = self.starts.first().filter(|(before, ..)| before.next() == self.first_seen);
        created.map_or(self.first_seen, |(_, after, _)| *after)
    }

    pub(crate) fn start(&self) -> StartPoint {
        self.starts.last().map_or(StartPoint::Unknown, |(_, _, start)| *start)
    }

    /// Whether the group was sought after `lsn`.
    pub(crate) fn sought_since(&self, lsn: Lsn) -> bool {
        self.starts.last().is_none_or(|(_, after, _)| *after > lsn)
    }
}

/// The newest delivery of a message that a worker has seen.
#[derive(Clone, Debug)]
pub(crate) struct SeenDelivery {
    pub(crate) consumer: ConsumerId,
    pub(crate) partition: PartitionId,
    pub(crate) attempts: u32,
    pub(crate) failures: u32,
    pub(crate) token: LeaseToken,
    /// The token of the first delivery of the message to this stream, if no other stream got it since.
    pub(crate) since_token: LeaseToken,
    /// Whether its lease was extended.
    pub(crate) is_extended: bool,
    /// The end that the worker was told.
    pub(crate) lease_until: Timestamp,
    /// The end of the lease, which runs from the release of the delivery.
    pub(crate) runs_until: Timestamp,
    /// The worker may still hold the lease.
    pub(crate) may_be_held: bool,
    /// The earliest redelivery after a nack or release.
    pub(crate) not_before: Timestamp,
    /// The reasons given in nacks.
    pub(crate) reasons: BTreeSet<String>,
    /// The delivery may have been withdrawn, which takes the attempt back.
    pub(crate) may_be_withdrawn: bool,
    /// A nack failed its last attempt.
    pub(crate) is_exhausted: bool,
    /// Its worker ruled out a retry, and that was confirmed.
    pub(crate) is_non_retryable: bool,
    /// A nack with another reason may or may not have been accepted.
    pub(crate) is_unknown: bool,
    /// The reply to a claim on it was lost in a crash.
    pub(crate) is_uncertain: bool,
    /// A crash happened since.
    pub(crate) crashed: bool,
}

/// The delivery that acked a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WinnerModel {
    pub(crate) token: LeaseToken,
    /// When the ack was decided, and the last LSN after that.
    pub(crate) at: Timestamp,
    pub(crate) since: Lsn,
}

/// An open stream.
#[derive(Clone, Debug)]
pub(crate) struct StreamModel {
    pub(crate) topic: TopicId,
    pub(crate) group: GroupId,
    pub(crate) request: Subscribe,
    pub(crate) lease: Millis,
    pub(crate) prefetch: u32,
    pub(crate) delivered: u64,
    /// That of its newest delivery.
    pub(crate) last_token: Option<LeaseToken>,
    pub(crate) is_closed: bool,
    /// A lease of it may have expired, so that its credit may have been cut.
    pub(crate) may_be_cut: bool,
    /// The other streams of its group that got a delivery while it had credit; `None` while that is not certain.
    pub(crate) served_meanwhile: Option<BTreeSet<ConsumerId>>,
}

/// What is known of a produce identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DedupeEntry {
    Accepted {
        partition: PartitionId,
        offset: Offset,
        expires_at: Timestamp,
    },
    /// The reply was lost.
    Unknown,
}

/// Requested topic and destination, tenant, key.
pub(crate) type DedupeKey = ((TopicName, TopicName), String, String);

/// One partition, with the progress of each group.
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

    /// The number of groups that acked the message at `position`.
    pub(crate) fn acked_in(&self, position: Position) -> usize {
        self.groups.iter().filter(|(_, progress)| progress.acked().contains(position)).count()
    }

    /// Whether a message acked by this many groups is acked by all.
    pub(crate) fn is_acked_by_all(&self, acked_in: usize) -> bool {
        !self.groups.is_empty() && acked_in == self.groups.len()
    }
}

impl fmt::Display for PartitionView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.topic.name(), self.id)
    }
}

/// A group, its model, and the pending commands that concern it.
pub(crate) struct GroupView<'a> {
    pub(crate) group: &'a Group,
    pub(crate) model: &'a GroupModel,
    /// A seek is pending.
    pub(crate) is_sought: bool,
    /// Offsets with a pending ack.
    pub(crate) acks: Vec<Offset>,
}

/// The number of the produce that a value belongs to.
pub(crate) fn number(value: &[u8]) -> Option<u64> {
    let digits = value.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&value[..digits]).ok()?.parse().ok()
}

/// FNV-1a (32 bit) modulo the number of partitions; an empty key maps to the first.
fn partition_of(key: &[u8], partitions: u32) -> u32 {
    if key.is_empty() {
        return 0;
    }
    key.iter().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(16_777_619)) % partitions
}

/// Where a produce should be stored, if anywhere.
pub(crate) fn destination(state: &State, limits: &Limits, produce: &Produce) -> Option<Destination> {
    let mut name = produce.envelope.target_topic.as_ref().unwrap_or(&produce.topic);
    let mut partition_override = produce.envelope.partition_override;
    if let Some(router) = &produce.routing {
        let target = router.target_topic.as_ref().unwrap_or(name);
        let count = state.topic_named(target).map(Topic::partition_count);
        let partition = router.partition_override.or(partition_override);
        if count.is_some_and(|count| partition.is_none_or(|partition| partition.0 < count)) {
            name = target;
            partition_override = router.partition_override.or(partition_override);
        }
    }
    let topic = state.topic_named(name)?;
    let partition =
        partition_override.unwrap_or_else(|| PartitionId(partition_of(produce.key(), topic.partition_count())));
    let (messages, bytes) = open(topic, partition);
    let more = (produce.key().len() + produce.value().len()) as u64;
    let fits = messages < limits.partition_messages_max && bytes + more <= limits.partition_bytes_max;
    let offset = topic.next_offset();
    (partition.0 < topic.partition_count()).then(|| Destination { topic: topic.id(), partition, fits, offset })
}

/// A partition and a priority, within which deliveries are ordered.
pub(crate) type OrderKey = (PartitionId, u8);

/// A delivery, with what was known of its stream and message before.
pub(crate) struct DeliveryContext<'a> {
    pub(crate) delivery: &'a Delivery,
    pub(crate) consumer: ConsumerId,
    pub(crate) stream: &'a StreamModel,
    pub(crate) known: &'a StoredMessage,
    /// The message's envelope, as it was stored.
    pub(crate) envelope: &'a Envelope,
    /// Whether it is in a dead-letter topic.
    pub(crate) is_dead_letter: bool,
    /// When it was dispatched, in broker time.
    pub(crate) at: Timestamp,
    /// The earliest and the latest wall time at which it can have been dispatched.
    pub(crate) walls: (Timestamp, Timestamp),
}

impl DeliveryContext<'_> {
    /// The partition and priority within which it is ordered.
    pub(crate) fn order_key(&self) -> OrderKey {
        (self.delivery.partition, self.envelope.priority.unwrap_or_default().level())
    }
}

/// Which parts of a workflow step exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepEvidence {
    /// Its message is acked.
    pub(crate) done: bool,
    /// The effect of its message is committed with a final outcome; `None` if the message has no identity.
    pub(crate) ended: Option<bool>,
    /// The newest grant of that effect.
    pub(crate) grant: Option<LeaseToken>,
    /// How many of its outputs are missing.
    pub(crate) missing: usize,
    /// How many of its outputs are stored.
    pub(crate) stored: usize,
}

/// A step that was pending when the broker crashed.
#[derive(Clone, Debug)]
pub(crate) struct TornStep {
    pub(crate) command: PendingCommand,
    /// Its record was recovered.
    pub(crate) is_recovered: bool,
}

/// The dedupe key of a produce, if it has an identity.
pub(crate) fn dedupe_key(produce: &Produce) -> Option<DedupeKey> {
    let envelope = &produce.envelope;
    let key = envelope.idempotency_key.as_ref().filter(|key| !key.is_empty())?;
    let destination = envelope.target_topic.as_ref().unwrap_or(&produce.topic);
    let tenant = envelope.tenant_id.as_ref().filter(|tenant| !tenant.is_empty());
    let scope = (produce.topic.clone(), destination.clone());
    Some((scope, tenant.map_or("default".to_owned(), ToString::to_string), key.to_string()))
}

/// The identity of a produce as a group remembers it, if it has one.
pub(crate) fn done_identity(produce: &Produce) -> Option<DoneIdentity> {
    dedupe_key(produce).map(|((topic, _), tenant, key)| (tenant, key, topic))
}
