//! Accepting a message: where it goes, whether it was here before, whether there is room.

use std::collections::BTreeMap;

use super::{Decision, DecisionContext, check_len, topic};
use crate::command::Produce;
use crate::faults::Faults;
use crate::record::{DedupeWindow, Event};
use crate::reply::{Overload, Produced, Refusal, Reply, RouterUse};
use crate::state::DedupeEntry;
use crate::state::partition::{Load, Partition};
use crate::state::topic::Topic;
use crate::types::partitioner::partition_of;
use crate::types::{Body, Envelope, IdentityKey, Limits, Metadata, Offset, PartitionId, TopicId, TopicName};

/// Messages that are decided and not yet stored: those before in the same step.
#[derive(Debug, Default)]
pub(super) struct Pending {
    stored: BTreeMap<(TopicId, PartitionId), Load>,
    messages: BTreeMap<TopicId, u64>,
    dedupe: BTreeMap<TopicName, BTreeMap<IdentityKey, DedupeEntry>>,
}

impl Pending {
    /// Notes what was decided.
    pub(super) fn add(&mut self, event: &Event) {
        let Event::Produced { topic, partition, offset, body, dedupe } = event else { return };
        let one = Load { messages: 1, bytes: body.payload_len() };
        let load = self.with(*topic, *partition, one);
        self.stored.insert((*topic, *partition), load);
        *self.messages.entry(*topic).or_default() += 1;
        if let (Some(dedupe), Some((tenant, key))) = (dedupe, body.identity()) {
            let entry = DedupeEntry { partition: *partition, offset: *offset, expires_at: dedupe.expires_at };
            let of_scope = self.dedupe.entry(dedupe.scope.clone()).or_default();
            of_scope.insert(IdentityKey::new(tenant, key), entry);
        }
    }

    fn find(&self, scope: &TopicName, key: &IdentityKey) -> Option<DedupeEntry> {
        self.dedupe.get(scope)?.get(key).copied()
    }

    fn dedupe_keys(&self, scope: &TopicName) -> u64 {
        self.dedupe.get(scope).map_or(0, |keys| keys.len() as u64)
    }

    fn messages(&self, topic: TopicId) -> u64 {
        self.messages.get(&topic).copied().unwrap_or(0)
    }

    /// What the partition will hold more, `load` included.
    fn with(&self, topic: TopicId, partition: PartitionId, load: Load) -> Load {
        let before = self.stored.get(&(topic, partition)).copied().unwrap_or_default();
        Load { messages: before.messages + load.messages, bytes: before.bytes + load.bytes }
    }
}

/// Decides a produce. The envelope, the routing and the trace of `asked` are used up.
pub(crate) fn produce<F: Faults>(context: &DecisionContext<'_, F>, asked: &mut Produce) -> Result<Decision, Refusal> {
    produce_after(context, &Pending::default(), asked)
}

/// Decides a produce that follows others of the same step.
pub(super) fn produce_after<F: Faults>(
    context: &DecisionContext<'_, F>,
    pending: &Pending,
    asked: &mut Produce,
) -> Result<Decision, Refusal> {
    let DecisionContext { state, limits, now, .. } = *context;
    check_sizes(limits, asked)?;
    let mut dedupe = None;
    if let Some(identity) = asked.envelope.identity_key() {
        let scope = asked.envelope.target_topic.as_ref().unwrap_or(&asked.topic);
        let table = state.dedupe(scope);
        let key = IdentityKey::new(asked.envelope.tenant(), identity);
        let stored = table.and_then(|table| table.find(&key, now));
        if let Some(first) = stored.or_else(|| pending.find(scope, &key)) {
            return Ok(Decision::reply_only(Reply::Produced(Produced {
                partition: first.partition,
                offset: first.offset,
                duplicate: true,
                router: RouterUse::NoDecision,
            })));
        }
        let room = limits.dedupe_keys_max.saturating_sub(pending.dedupe_keys(scope));
        if room == 0 || table.is_some_and(|table| table.is_full(room, now)) {
            return Err(context.overloaded(Overload::DedupeKeys));
        }
        dedupe = Some(DedupeWindow { scope: scope.clone(), expires_at: now.after(limits.dedupe_ttl) });
    }
    let envelope = &mut asked.envelope;
    if let Some(delay) = asked.delay {
        envelope.deliver_at = Some(now.after(delay));
    }
    if let Some(deadline) = &envelope.deadline {
        if deadline.at <= now {
            return Err(Refusal::DeadlinePassed);
        }
        if envelope.deliver_at.is_some_and(|at| at >= deadline.at) {
            return Err(Refusal::Invalid("delay reaches beyond the deadline"));
        }
    }

    let mut router = RouterUse::NoDecision;
    let mut followed = None;
    if let Some(decision) = asked.routing.take() {
        let target = decision.target_topic.as_ref().or(envelope.target_topic.as_ref()).unwrap_or(&asked.topic);
        // With the topic the router chose, the partition the producer chose may make no sense either.
        let partition = decision.partition_override.or(envelope.partition_override);
        let sound = state
            .topic_named(target)
            .is_some_and(|topic| partition.is_none_or(|partition| partition.0 < topic.partition_count()));
        if sound {
            envelope.target_topic = decision.target_topic.or(envelope.target_topic.take());
            envelope.partition_override = partition;
            followed = Some(decision.routing);
            router = RouterUse::Followed;
        } else {
            router = RouterUse::Ignored;
        }
    }

    let destination = topic(state, envelope.target_topic.as_ref().unwrap_or(&asked.topic))?;
    let partition = choose_partition(destination, envelope.partition_override, &asked.key)?;
    let load = Load { messages: 1, bytes: (asked.key.len() + asked.value.len()) as u64 };
    check_load(limits, load)?;
    let load = pending.with(destination.id(), partition, load);
    check_room(context, destination, partition, load)?;

    let offset = Offset(destination.next_offset().0 + pending.messages(destination.id()));
    let body = if followed.is_none() && is_bare(asked) {
        Body::bare(&asked.key, &asked.value)
    } else {
        let (envelope, trace) = (std::mem::take(&mut asked.envelope), asked.trace.take());
        let meta = Metadata { envelope, routing: followed, trace, ..Metadata::default() };
        Body::pack(&meta, &asked.key, &asked.value)
    };
    let event = Event::Produced { topic: destination.id(), partition, offset, body, dedupe };
    Ok(Decision::new(event, Reply::Produced(Produced { partition, offset, duplicate: false, router })))
}

fn check_sizes(limits: &Limits, asked: &Produce) -> Result<(), Refusal> {
    if asked.value.is_empty() {
        return Err(Refusal::Invalid("value must not be empty"));
    }
    check_len("key", asked.key.len(), limits.key_bytes_max)?;
    if let Some(key) = &asked.envelope.idempotency_key {
        check_len("idempotency key", key.len(), limits.idempotency_key_bytes_max)?;
    }
    let Envelope { run_id, step_id, parent_step_id, tenant_id, .. } = &asked.envelope;
    for (what, id) in
        [("tenant id", tenant_id), ("run id", run_id), ("step id", step_id), ("parent step id", parent_step_id)]
    {
        check_len(what, id.as_ref().map_or(0, |id| id.len()), limits.id_bytes_max)?;
    }
    let metadata = metadata_len(asked);
    check_len("metadata", metadata, limits.metadata_bytes_max)?;
    let message = asked.key.len() + asked.value.len() + metadata;
    check_len("message", message, limits.message_bytes_max)?;
    if asked.delay.is_some() && asked.envelope.deliver_at.is_some() {
        return Err(Refusal::Invalid("give a delay or a moment of delivery, not both"));
    }
    Ok(())
}

/// What the texts in envelope, routing and trace take at most, without encoding them. Names of topics and numbers are not
/// counted: all of them together take less than a kilobyte.
fn metadata_len(asked: &Produce) -> usize {
    const FIELD: usize = 16;
    if is_bare(asked) {
        return 0;
    }
    let envelope = &asked.envelope;
    let texts = [
        &envelope.run_id,
        &envelope.step_id,
        &envelope.parent_step_id,
        &envelope.tenant_id,
        &envelope.idempotency_key,
        &asked.trace,
    ];
    let texts: usize = texts.into_iter().flatten().map(|text| text.len() + FIELD).sum();
    let deadline = envelope.deadline.as_ref().map_or(0, |deadline| deadline.text.len() + FIELD);
    let pairs = envelope.labels.iter().chain(asked.routing.iter().flat_map(|routing| &routing.routing.meta));
    let pairs: usize = pairs.map(|(name, value)| name.len() + value.len() + FIELD).sum();
    let label = asked.routing.as_ref().map_or(0, |routing| routing.routing.label.len() + FIELD);
    texts + deadline + pairs + label
}

/// Whether nothing travels with the payload but its key, as with most messages.
fn is_bare(asked: &Produce) -> bool {
    asked.envelope.is_empty() && asked.routing.is_none() && asked.trace.is_none()
}

fn choose_partition(topic: &Topic, asked: Option<PartitionId>, key: &[u8]) -> Result<PartitionId, Refusal> {
    let partitions = topic.partition_count();
    match asked {
        None => Ok(partition_of(key, partitions)),
        Some(partition) if partition.0 < partitions => Ok(partition),
        Some(partition) => Err(Refusal::PartitionOutOfRange { partition, partitions }),
    }
}

/// A message that no partition could hold by itself.
pub(super) fn check_load(limits: &Limits, load: Load) -> Result<(), Refusal> {
    match load.bytes > limits.partition_bytes_max {
        true => Err(Refusal::TooLarge { what: "key and value", len: load.bytes, max: limits.partition_bytes_max }),
        false => Ok(()),
    }
}

/// Whether one more message fits the partition, and whether its dead letters leave room for more.
pub(super) fn check_room<F: Faults>(
    context: &DecisionContext<'_, F>,
    topic: &Topic,
    partition: PartitionId,
    load: Load,
) -> Result<(), Refusal> {
    let limits = context.limits;
    let backlog = topic.partition(partition).map(Partition::backlog).unwrap_or_default();
    let full = backlog.messages + load.messages > limits.partition_messages_max
        || backlog.bytes + load.bytes > limits.partition_bytes_max;
    if full {
        return Err(context.overloaded(Overload::Backlog));
    }
    let dead = topic.dead_letters().and_then(|dead| context.state.topic(dead));
    if let Some(dead) = dead {
        let partition = PartitionId(partition.0 % dead.partition_count());
        let backlog = dead.partition(partition).map(Partition::backlog).unwrap_or_default();
        if backlog.messages >= limits.partition_messages_max || backlog.bytes >= limits.partition_bytes_max {
            return Err(context.overloaded(Overload::DeadLetters));
        }
    }
    Ok(())
}
