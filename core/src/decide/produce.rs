//! Decides produce: dedupe, routing, partition, limits.

use std::collections::BTreeMap;

use super::{Decision, DecisionContext, check_delay, check_len, check_tenant, topic};
use crate::command::Produce;
use crate::faults::Faults;
use crate::record::{DedupeWindow, Event};
use crate::reply::{FullPartition, Overload, Produced, Refusal, Reply, RouterUse};
use crate::state::{DedupeEntry, Group, Load, Partition, State, Topic};
use crate::types::partitioner::partition_of;
use crate::types::{
    Body, Envelope, GroupId, IdentityKey, Limits, Metadata, Offset, PartitionId, ProduceScope, Routing, TopicId,
    TopicName,
};

/// A produce that follows no other of the same step.
static NOTHING_PENDING: Pending = Pending::new();

/// Messages of the same step that are decided and not applied yet.
#[derive(Debug)]
pub(super) struct Pending {
    /// Sorted, as are the messages of topics: few steps produce to many partitions.
    stored: Vec<((TopicId, PartitionId), Load)>,
    messages: Vec<(TopicId, u64)>,
    dedupe: BTreeMap<ProduceScope, BTreeMap<IdentityKey, DedupeEntry>>,
}

impl Pending {
    pub(super) const fn new() -> Self {
        Self { stored: Vec::new(), messages: Vec::new(), dedupe: BTreeMap::new() }
    }

    /// Adds a decided message.
    pub(super) fn add(&mut self, event: &Event) {
        let Event::Produced { topic, partition, offset, body, dedupe, skipped } = event else { return };
        // A message that is acked at once is not in the backlog.
        if skipped.is_empty() {
            let load = entry(&mut self.stored, (*topic, *partition));
            load.messages += 1;
            load.bytes += body.payload_len();
        }
        *entry(&mut self.messages, *topic) += 1;
        if let (Some(dedupe), Some(key)) = (dedupe, body.identity_key()) {
            let entry = DedupeEntry { partition: *partition, offset: *offset, expires_at: dedupe.expires_at };
            let of_scope = self.dedupe.entry(dedupe.scope.clone()).or_default();
            of_scope.insert(key, entry);
        }
    }

    fn find(&self, scope: &ProduceScope, key: &IdentityKey) -> Option<DedupeEntry> {
        self.dedupe.get(scope)?.get(key).copied()
    }

    fn dedupe_keys(&self, scope: &ProduceScope) -> u64 {
        self.dedupe.get(scope).map_or(0, |keys| keys.len() as u64)
    }

    /// The number of messages that are stored in a topic.
    pub(super) fn messages(&self, topic: TopicId) -> u64 {
        get(&self.messages, topic)
    }

    /// The pending load of a partition plus `load`.
    fn with(&self, topic: TopicId, partition: PartitionId, load: Load) -> Load {
        let before = get(&self.stored, (topic, partition));
        Load { messages: before.messages + load.messages, bytes: before.bytes + load.bytes }
    }
}

/// The value of `key` in a sorted list; 0 if it has none.
fn get<K: Ord + Copy, V: Default + Copy>(list: &[(K, V)], key: K) -> V {
    list.binary_search_by_key(&key, |(other, _)| *other).map_or_else(|_| V::default(), |at| list[at].1)
}

/// As [`get`], to be changed.
fn entry<K: Ord + Copy, V: Default>(list: &mut Vec<(K, V)>, key: K) -> &mut V {
    let at = list.binary_search_by_key(&key, |(other, _)| *other).unwrap_or_else(|at| {
        list.insert(at, (key, V::default()));
        at
    });
    &mut list[at].1
}

/// Decides a produce. Takes the envelope, the routing and the trace out of `request`.
pub(crate) fn produce<F: Faults>(context: &DecisionContext<'_, F>, request: &mut Produce) -> Result<Decision, Refusal> {
    produce_after(context, &NOTHING_PENDING, request)
}

/// Decides a produce that follows the `pending` ones of the same step.
pub(super) fn produce_after<F: Faults>(
    context: &DecisionContext<'_, F>,
    pending: &Pending,
    request: &mut Produce,
) -> Result<Decision, Refusal> {
    let DecisionContext { state, limits, .. } = *context;
    if has_no_metadata(request) && request.delay.is_none() {
        return produce_bare(context, pending, request);
    }
    if has_only_identity(request) {
        return produce_keyed(context, pending, request);
    }
    check_sizes(limits, request)?;
    request.envelope.target_topic.as_ref().map_or(Ok(()), |target| check_tenant(&request.topic, target))?;
    let (dedupe, key) = match deduplicate(context, pending, request)? {
        Dedupe::Duplicate(DedupeEntry { partition, offset, .. }) => {
            let router = RouterUse::NoDecision;
            let produced = Produced { partition, offset, duplicate: true, already_done: false, router };
            return Ok(Decision::reply_only(Reply::Produced(produced)));
        }
        Dedupe::New(window, key) => (Some(window), Some(key)),
        Dedupe::NoKey => (None, None),
    };
    set_delivery_time(context, request)?;
    // Before the router moves its decision into the envelope.
    let requested = ProduceScope::new(&request.topic, request.envelope.target_topic.as_ref());
    let (router, routing) = follow_router(state, request);

    let destination = topic(state, request.envelope.target_topic.as_ref().unwrap_or(&request.topic))?;
    let partition = choose_partition(destination, request.envelope.partition_override, request.key())?;
    let load = Load { messages: 1, bytes: request.payload_len() as u64 };
    check_load(limits, load)?;
    check_capacity(context, destination, partition, pending.with(destination.id(), partition, load))?;

    let offset = Offset(destination.next_offset().0 + pending.messages(destination.id()));
    let (envelope, trace) = (std::mem::take(&mut request.envelope), request.trace.take());
    let requested = Some(requested).filter(|requested| !requested.is_only(destination.name()));
    let meta = Metadata { envelope, routing, trace, requested, ..Metadata::default() };
    let body = match &key {
        Some(key) => request.packed().to_store(&meta, key.clone()),
        None => request.packed().with_metadata(&meta),
    };
    let skipped = key.map_or_else(Vec::new, |key| skipping_groups(context, destination, (&body, &key)));
    let already_done = context.faults.is_told_done(&skipped);
    let event = Event::Produced { topic: destination.id(), partition, offset, body, dedupe, skipped };
    Ok(Decision::new(event, Reply::Produced(Produced { partition, offset, duplicate: false, already_done, router })))
}

/// As [`produce_after`], of a message without metadata; most have none.
fn produce_bare<F: Faults>(
    context: &DecisionContext<'_, F>,
    pending: &Pending,
    request: &Produce,
) -> Result<Decision, Refusal> {
    let DecisionContext { state, limits, .. } = *context;
    check_key_and_value(limits, request)?;
    check_len("message", request.payload_len(), limits.message_bytes_max)?;
    let destination = topic(state, &request.topic)?;
    let partition = choose_partition(destination, None, request.key())?;
    let load = Load { messages: 1, bytes: request.payload_len() as u64 };
    check_load(limits, load)?;
    check_capacity(context, destination, partition, pending.with(destination.id(), partition, load))?;
    let offset = Offset(destination.next_offset().0 + pending.messages(destination.id()));
    let (topic, body, skipped) = (destination.id(), request.packed().clone(), Vec::new());
    let (duplicate, already_done, router) = (false, context.faults.is_told_done(&skipped), RouterUse::NoDecision);
    let event = Event::Produced { topic, partition, offset, body, dedupe: None, skipped };
    Ok(Decision::new(event, Reply::Produced(Produced { partition, offset, duplicate, already_done, router })))
}

/// As [`produce_after`], of a message for which [`has_only_identity`].
fn produce_keyed<F: Faults>(
    context: &DecisionContext<'_, F>,
    pending: &Pending,
    request: &Produce,
) -> Result<Decision, Refusal> {
    let DecisionContext { state, limits, .. } = *context;
    check_keyed_sizes(limits, request)?;
    let router = RouterUse::NoDecision;
    let (dedupe, key) = match deduplicate(context, pending, request)? {
        Dedupe::Duplicate(DedupeEntry { partition, offset, .. }) => {
            let produced = Produced { partition, offset, duplicate: true, already_done: false, router };
            return Ok(Decision::reply_only(Reply::Produced(produced)));
        }
        Dedupe::New(window, key) => (window, key),
        Dedupe::NoKey => unreachable!("the message has a key"),
    };
    let destination = topic(state, &request.topic)?;
    let partition = choose_partition(destination, None, request.key())?;
    let load = Load { messages: 1, bytes: request.payload_len() as u64 };
    check_load(limits, load)?;
    check_capacity(context, destination, partition, pending.with(destination.id(), partition, load))?;
    let offset = Offset(destination.next_offset().0 + pending.messages(destination.id()));
    let body = request.packed().to_store_keyed(&request.envelope, key);
    let key = body.known_identity().expect("the body was just made with it");
    let skipped = skipping_groups(context, destination, (&body, key));
    let already_done = context.faults.is_told_done(&skipped);
    let event = Event::Produced { topic: destination.id(), partition, offset, body, dedupe: Some(dedupe), skipped };
    Ok(Decision::new(event, Reply::Produced(Produced { partition, offset, duplicate: false, already_done, router })))
}

/// All groups of the topic, if each has acked a message of the same identity and requested topic; else none, and the
/// message is delivered to all of them. Stops at the first group that has not.
fn skipping_groups<F: Faults>(
    context: &DecisionContext<'_, F>,
    topic: &Topic,
    message: (&Body, &IdentityKey),
) -> Vec<GroupId> {
    let is_done = |group| context.faults.is_done(context.state, (topic, group), message, context.now);
    let is_skipped = topic.group_count() > 0 && topic.groups().all(is_done);
    if is_skipped { topic.groups().map(Group::id).collect() } else { Vec::new() }
}

/// The result of a dedupe lookup.
enum Dedupe {
    /// The message has no idempotency key.
    NoKey,
    /// The key is new: its window, and the key as the tables have it.
    New(DedupeWindow, IdentityKey),
    /// The key was stored with this message.
    Duplicate(DedupeEntry),
}

fn deduplicate<F: Faults>(
    context: &DecisionContext<'_, F>,
    pending: &Pending,
    request: &Produce,
) -> Result<Dedupe, Refusal> {
    let DecisionContext { state, limits, now, .. } = *context;
    let Some(key) = request.envelope.identity_key() else { return Ok(Dedupe::NoKey) };
    let scope = context.faults.produce_scope(request);
    let table = state.dedupe(&scope);
    let key = IdentityKey::new(request.envelope.tenant(), key);
    let stored = table.and_then(|table| table.find(&key, now));
    if let Some(first) = stored.or_else(|| pending.find(&scope, &key)) {
        return Ok(Dedupe::Duplicate(first));
    }
    let max = limits.dedupe_keys_max.saturating_sub(pending.dedupe_keys(&scope));
    if max == 0 || table.is_some_and(|table| table.is_full(max, now)) {
        return Err(context.overloaded(Overload::DedupeKeys));
    }
    Ok(Dedupe::New(DedupeWindow { scope, expires_at: now.after(limits.dedupe_ttl) }, key))
}

/// Turns the delay into its end in broker time and checks the time of delivery against the limit and the deadline.
fn set_delivery_time<F: Faults>(context: &DecisionContext<'_, F>, request: &mut Produce) -> Result<(), Refusal> {
    let envelope = &mut request.envelope;
    let until_delivery = envelope.deliver_at.map(|at| at.since(context.wall()));
    if let Some(delay) = request.delay.or(until_delivery) {
        check_delay(delay, context.limits.delay_max)?;
    }
    envelope.delayed_until = request.delay.map(|delay| context.now.after(delay));
    if let Some(deadline) = &envelope.deadline {
        let wall = context.wall();
        if deadline.at <= wall {
            return Err(Refusal::DeadlinePassed);
        }
        let deliver_at = request.delay.map(|delay| wall.after(delay)).or(envelope.deliver_at);
        if deliver_at.is_some_and(|at| at >= deadline.at) {
            return Err(Refusal::Invalid("delay reaches beyond the deadline"));
        }
    }
    Ok(())
}

/// What becomes of the router's decision about a message. One that names a topic or partition that does not exist is
/// ignored.
pub(crate) fn router_use(state: &State, request: &Produce) -> RouterUse {
    let Some(decision) = &request.routing else { return RouterUse::NoDecision };
    let envelope = &request.envelope;
    let target = decision.target_topic.as_ref().or(envelope.target_topic.as_ref()).unwrap_or(&request.topic);
    // The producer's partition must exist in the router's topic, too.
    let partition = decision.partition_override.or(envelope.partition_override);
    let found = state.topic_named(target).filter(|_| target.has_tenant_of(&request.topic));
    let exists = found.is_some_and(|topic| partition.is_none_or(|partition| partition.0 < topic.partition_count()));
    if exists { RouterUse::Followed } else { RouterUse::Ignored }
}

/// The topic in which a message is stored if it is accepted.
pub(crate) fn final_topic<'a>(state: &State, request: &'a Produce) -> &'a TopicName {
    let followed = request.routing.as_ref().filter(|_| router_use(state, request) == RouterUse::Followed);
    let routed = followed.and_then(|decision| decision.target_topic.as_ref());
    routed.or(request.envelope.target_topic.as_ref()).unwrap_or(&request.topic)
}

/// Moves the router's decision into the envelope, unless it is ignored.
fn follow_router(state: &State, request: &mut Produce) -> (RouterUse, Option<Routing>) {
    let router = router_use(state, request);
    let Some(decision) = request.routing.take().filter(|_| router == RouterUse::Followed) else {
        return (router, None);
    };
    let envelope = &mut request.envelope;
    envelope.target_topic = decision.target_topic.or(envelope.target_topic.take());
    envelope.partition_override = decision.partition_override.or(envelope.partition_override);
    (router, Some(decision.routing))
}

fn check_key_and_value(limits: &Limits, request: &Produce) -> Result<(), Refusal> {
    if request.value().is_empty() {
        return Err(Refusal::Invalid("value must not be empty"));
    }
    check_len("key", request.key().len(), limits.key_bytes_max)
}

fn check_sizes(limits: &Limits, request: &Produce) -> Result<(), Refusal> {
    check_key_and_value(limits, request)?;
    if let Some(key) = &request.envelope.idempotency_key {
        check_len("idempotency key", key.len(), limits.idempotency_key_bytes_max)?;
    }
    let Envelope { run_id, step_id, parent_step_id, tenant_id, .. } = &request.envelope;
    for (what, id) in
        [("tenant id", tenant_id), ("run id", run_id), ("step id", step_id), ("parent step id", parent_step_id)]
    {
        check_len(what, id.as_ref().map_or(0, |id| id.len()), limits.id_bytes_max)?;
    }
    let metadata = metadata_len(request);
    check_len("metadata", metadata, limits.metadata_bytes_max)?;
    let message = request.payload_len() + metadata;
    check_len("message", message, limits.message_bytes_max)?;
    if request.delay.is_some() && request.envelope.deliver_at.is_some() {
        return Err(Refusal::Invalid("give a delay or a moment of delivery, not both"));
    }
    Ok(())
}

/// As [`check_sizes`], of a message for which [`has_only_identity`].
fn check_keyed_sizes(limits: &Limits, request: &Produce) -> Result<(), Refusal> {
    check_key_and_value(limits, request)?;
    let Envelope { tenant_id, idempotency_key, .. } = &request.envelope;
    let (tenant, key) = (tenant_id.as_ref().map(|id| id.len()), idempotency_key.as_ref().map(|key| key.len()));
    check_len("idempotency key", key.unwrap_or(0), limits.idempotency_key_bytes_max)?;
    check_len("tenant id", tenant.unwrap_or(0), limits.id_bytes_max)?;
    let metadata = tenant.map_or(0, |len| len + FIELD) + key.map_or(0, |len| len + FIELD);
    check_len("metadata", metadata, limits.metadata_bytes_max)?;
    check_len("message", request.payload_len() + metadata, limits.message_bytes_max)
}

/// What a field of the metadata takes beside its text, at most.
const FIELD: usize = 16;

/// An upper bound of the encoded length of all texts in the metadata. Topic names and numbers are not counted; together
/// they take less than a kilobyte.
fn metadata_len(request: &Produce) -> usize {
    let envelope = &request.envelope;
    let texts = [
        &envelope.run_id,
        &envelope.step_id,
        &envelope.parent_step_id,
        &envelope.tenant_id,
        &envelope.idempotency_key,
        &request.trace,
    ];
    let texts: usize = texts.into_iter().flatten().map(|text| text.len() + FIELD).sum();
    let deadline = envelope.deadline.as_ref().map_or(0, |deadline| deadline.text.len() + FIELD);
    let pairs = envelope.labels.iter().chain(request.routing.iter().flat_map(|routing| &routing.routing.meta));
    let pairs: usize = pairs.map(|(name, value)| name.len() + value.len() + FIELD).sum();
    let label = request.routing.as_ref().map_or(0, |routing| routing.routing.label.len() + FIELD);
    texts + deadline + pairs + label
}

/// Whether all metadata of the message is an idempotency key, with a tenant or without: most messages with a key have
/// nothing else.
fn has_only_identity(request: &Produce) -> bool {
    let is_bare = request.routing.is_none() && request.trace.is_none() && request.delay.is_none();
    is_bare && request.envelope.has_only_identity()
}

/// Whether the message has no metadata; most have none.
fn has_no_metadata(request: &Produce) -> bool {
    request.envelope.is_empty() && request.routing.is_none() && request.trace.is_none()
}

fn choose_partition(topic: &Topic, requested: Option<PartitionId>, key: &[u8]) -> Result<PartitionId, Refusal> {
    let partitions = topic.partition_count();
    match requested {
        None => Ok(partition_of(key, partitions)),
        Some(partition) if partition.0 < partitions => Ok(partition),
        Some(partition) => Err(Refusal::PartitionOutOfRange { partition, partitions }),
    }
}

/// Refuses a message that exceeds the limit of an empty partition.
pub(super) fn check_load(limits: &Limits, load: Load) -> Result<(), Refusal> {
    match load.bytes > limits.partition_bytes_max {
        true => Err(Refusal::TooLarge { what: "key and value", len: load.bytes, max: limits.partition_bytes_max }),
        false => Ok(()),
    }
}

/// Refuses if `load` exceeds the limits of the partition, or if the partition's dead letters have reached theirs.
pub(super) fn check_capacity<F: Faults>(
    context: &DecisionContext<'_, F>,
    topic: &Topic,
    partition: PartitionId,
    load: Load,
) -> Result<(), Refusal> {
    let limits = context.limits;
    let counted = |partition: &Partition| context.faults.counted_load(partition);
    let backlog = topic.partition(partition).map(counted).unwrap_or_default();
    let full = backlog.messages + load.messages > limits.partition_messages_max
        || backlog.bytes + load.bytes > limits.partition_bytes_max;
    if full {
        return Err(full_partition(context, Overload::Backlog, topic, partition));
    }
    let dead = topic.dead_letters().and_then(|dead| context.state.topic(dead));
    if let Some(dead) = dead {
        let partition = PartitionId(partition.0 % dead.partition_count());
        let backlog = dead.partition(partition).map(counted).unwrap_or_default();
        if backlog.messages >= limits.partition_messages_max || backlog.bytes >= limits.partition_bytes_max {
            return Err(full_partition(context, Overload::DeadLetters, dead, partition));
        }
    }
    Ok(())
}

/// The refusal of a message because of a full partition. Names the group with the oldest unacked message in it.
fn full_partition<F: Faults>(
    context: &DecisionContext<'_, F>,
    reason: Overload,
    topic: &Topic,
    partition: PartitionId,
) -> Refusal {
    let floor = |group: &&Group| group.progress(partition).map(|progress| progress.acked().floor());
    let examined = topic.groups().take(context.limits.work.groups_examined);
    let group = examined.min_by_key(floor).map(|group| group.name().clone());
    let full = FullPartition { topic: topic.name().clone(), partition, group };
    Refusal::Overloaded { reason, retry_after: context.limits.retry_after, full: Some(Box::new(full)) }
}
