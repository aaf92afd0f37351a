//! Produce: whether a message is accepted, and where it is stored.

use driftq_core::command::Produce;
use driftq_core::reply::{FullPartition, Overload, Produced, RouterUse};
use driftq_core::types::{Lsn, Metadata, PartitionId, ProduceScope, TopicName};
use driftq_core::{Refusal, Reply, SpaceClass};

use super::model::{Asked, DedupeEntry, DedupeScope, Model, Stop, SweepKind};
use super::topic::{Content, Group, Message, Progress};

/// The decision on a produce.
pub(super) enum ProduceDecision {
    /// A duplicate, with the partition and offset of the original.
    Duplicate(Produced),
    NewMessage(Box<NewMessage>),
}

/// A message to store.
pub(super) struct NewMessage {
    topic: usize,
    partition: PartitionId,
    metadata: Metadata,
    /// Its identity, and what the producer asked for.
    identity: Option<(Asked, DedupeEntry)>,
    router: RouterUse,
}

impl Model {
    pub(super) fn produce(&mut self, produce: &Produce) -> Result<Reply, Stop> {
        let decision = self.decide_produce(produce).inspect_err(|refusal| self.note_refusal(refusal))?;
        Ok(Reply::Produced(match decision {
            ProduceDecision::Duplicate(first) => first,
            ProduceDecision::NewMessage(new) => {
                self.record(SpaceClass::Growth)?;
                self.store_message(produce, *new, Lsn(self.records))
            }
        }))
    }

    /// Decides whether and where a message is stored.
    pub(super) fn decide_produce(&self, produce: &Produce) -> Result<ProduceDecision, Refusal> {
        self.check_sizes(produce)?;
        let mut envelope = produce.envelope.clone();
        if let Some(target) = envelope.target_topic.as_ref().filter(|target| target.tenant() != produce.topic.tenant())
        {
            return Err(Refusal::UnknownTopic(target.clone()));
        }
        let meant = envelope.target_topic.clone().unwrap_or_else(|| produce.topic.clone());
        let asked = (produce.topic.clone(), meant);
        let key = envelope.idempotency_key.clone().filter(|key| !key.is_empty());
        let tenant = envelope.tenant_id.clone().filter(|tenant| !tenant.is_empty()).unwrap_or("default".into());
        if let Some(key) = &key {
            let known =
                self.scopes.iter().find(|scope| scope.asked == asked).map_or(&[][..], |scope| &scope.identities);
            let same = known.iter().find(|identity| *identity.tenant == *tenant && *identity.key == **key);
            if let Some(first) = same.filter(|first| self.now < first.expires_at) {
                return Ok(ProduceDecision::Duplicate(Produced {
                    partition: first.partition,
                    offset: first.offset,
                    duplicate: true,
                    already_done: false,
                    router: RouterUse::NoDecision,
                }));
            }
            let within_window = known.iter().filter(|identity| self.now < identity.expires_at).count();
            if within_window as u64 >= self.limits.dedupe_keys_max {
                return Err(self.overloaded(Overload::DedupeKeys));
            }
        }
        if let Some(delay) = produce.delay.or(envelope.deliver_at.map(|at| at.since(self.wall()))) {
            self.check_delay(delay)?;
        }
        envelope.delayed_until = produce.delay.map(|delay| self.now.after(delay));
        if let Some(deadline) = &envelope.deadline {
            if deadline.at <= self.wall() {
                return Err(Refusal::DeadlinePassed);
            }
            let delayed_until = produce.delay.map(|delay| self.wall().after(delay));
            if delayed_until.or(envelope.deliver_at).is_some_and(|at| at >= deadline.at) {
                return Err(Refusal::Invalid("delay reaches beyond the deadline"));
            }
        }
        let mut metadata = Metadata { envelope, trace: produce.trace.clone(), ..Metadata::default() };
        let router = self.follow_router(produce, &mut metadata);
        let envelope = &metadata.envelope;
        let topic = self.topic(envelope.target_topic.as_ref().unwrap_or(&produce.topic))?;
        let partition = match envelope.partition_override {
            Some(partition) => partition,
            None => partition_of(produce.key(), self.topics[topic].partitions()),
        };
        self.topics[topic].has_partition(partition)?;
        self.check_space(topic, partition, (produce.key().len() + produce.value().len()) as u64)?;
        let stored_in = &self.topics[topic].name;
        if asked != (stored_in.clone(), stored_in.clone()) {
            metadata.requested = Some(ProduceScope { topic: asked.0.clone(), destination: asked.1.clone() });
        }
        let identity = key.map(|key| {
            let (offset, expires_at) = (self.topics[topic].next_offset, self.now.after(self.limits.dedupe_ttl));
            (asked, DedupeEntry { tenant: tenant.into(), key: key.into(), partition, offset, expires_at })
        });
        Ok(ProduceDecision::NewMessage(Box::new(NewMessage { topic, partition, metadata, identity, router })))
    }

    /// Stores an accepted message, whose bytes stand in the record `lsn`.
    pub(super) fn store_message(&mut self, produce: &Produce, new: NewMessage, lsn: Lsn) -> Produced {
        let NewMessage { topic, partition, metadata, identity, router } = new;
        let offset = self.topics[topic].next_offset;
        self.expect_deadline(&metadata);
        let content = Content::new(produce.key(), produce.value(), metadata, self.next_payload(lsn));
        self.topics[topic].store(self.now, partition, None, content);
        self.set_delay(topic, self.topics[topic].messages.len() - 1);
        if let Some((asked, identity)) = identity {
            self.remember(&asked, identity);
        }
        let already_done = self.skip_if_done(topic);
        Produced { partition, offset, duplicate: false, already_done, router }
    }

    /// The newest message of a topic is acked in every group, if each has acked one of the same identity that was
    /// produced to the same topic.
    fn skip_if_done(&mut self, t: usize) -> bool {
        let topic = &self.topics[t];
        let (groups, newest) = (topic.groups.len(), topic.messages.len() - 1);
        let done = (0..groups).filter(|g| self.is_done((t, *g, newest))).count();
        if topic.is_dlq() || groups == 0 || done < groups {
            return false;
        }
        for group in &mut self.topics[t].groups {
            group.progress[newest] = Progress::Acked;
            group.skipped += 1;
        }
        self.reclaim(t);
        true
    }

    /// What the producer of a stored message asked for.
    pub(super) fn asked(stored_in: &TopicName, message: &Message) -> Asked {
        match &message.content.metadata.requested {
            Some(requested) => (requested.topic.clone(), requested.destination.clone()),
            None => (stored_in.clone(), stored_in.clone()),
        }
    }

    fn check_sizes(&self, produce: &Produce) -> Result<(), Refusal> {
        if produce.value().is_empty() {
            return Err(Refusal::Invalid("value must not be empty"));
        }
        let fits = |what, len: usize, max: usize| match len > max {
            true => Err(Refusal::TooLarge { what, len: len as u64, max: max as u64 }),
            false => Ok(()),
        };
        let envelope = &produce.envelope;
        fits("key", produce.key().len(), self.limits.key_bytes_max)?;
        fits(
            "idempotency key",
            envelope.idempotency_key.as_deref().map_or(0, str::len),
            self.limits.idempotency_key_bytes_max,
        )?;
        let ids = [
            ("tenant id", &envelope.tenant_id),
            ("run id", &envelope.run_id),
            ("step id", &envelope.step_id),
            ("parent step id", &envelope.parent_step_id),
        ];
        for (what, id) in ids {
            fits(what, id.as_deref().map_or(0, str::len), self.limits.id_bytes_max)?;
        }
        fits("metadata", text_bytes(produce), self.limits.metadata_bytes_max)?;
        let total = produce.key().len() + produce.value().len() + text_bytes(produce);
        fits("message", total, self.limits.message_bytes_max)?;
        if produce.delay.is_some() && envelope.deliver_at.is_some() {
            return Err(Refusal::Invalid("give a delay or a moment of delivery, not both"));
        }
        Ok(())
    }

    /// A router's decision overrides the producer's, if the resulting topic and partition exist.
    fn follow_router(&self, produce: &Produce, metadata: &mut Metadata) -> RouterUse {
        let Some(decision) = &produce.routing else { return RouterUse::NoDecision };
        let envelope = &mut metadata.envelope;
        let target = decision.target_topic.clone().or(envelope.target_topic.clone());
        let partition = decision.partition_override.or(envelope.partition_override);
        let target_name = target.as_ref().unwrap_or(&produce.topic);
        let found = self.find(target_name).filter(|_| target_name.tenant() == produce.topic.tenant());
        match found {
            Some(topic) if partition.is_none_or(|partition| partition.0 < self.topics[topic].partitions()) => {
                (envelope.target_topic, envelope.partition_override) = (target, partition);
                metadata.routing = Some(decision.routing.clone());
                RouterUse::Followed
            }
            _ => RouterUse::Ignored,
        }
    }

    /// Whether a message of this size fits the partition, and whether the dead-letter partition has space.
    pub(super) fn check_space(&self, topic: usize, partition: PartitionId, bytes: u64) -> Result<(), Refusal> {
        let (messages_max, bytes_max) = (self.limits.partition_messages_max, self.limits.partition_bytes_max);
        if bytes > bytes_max {
            return Err(Refusal::TooLarge { what: "key and value", len: bytes, max: bytes_max });
        }
        let open = self.topics[topic].open(partition);
        if open.0 + 1 > messages_max || open.1 + bytes > bytes_max {
            return Err(self.full(Overload::Backlog, topic, partition));
        }
        if let Some(dlq) = self.topics[topic].dlq_name.as_ref().and_then(|name| self.find(name)) {
            let partition = PartitionId(partition.0 % self.topics[dlq].partitions());
            let open = self.topics[dlq].open(partition);
            if open.0 >= messages_max || open.1 >= bytes_max {
                return Err(self.full(Overload::DeadLetters, dlq, partition));
            }
        }
        Ok(())
    }

    pub(super) fn overloaded(&self, reason: Overload) -> Refusal {
        Refusal::Overloaded { reason, retry_after: self.limits.retry_after, full: None }
    }

    /// A partition is full. Names the group whose first unacked message is the oldest, the first by name of several.
    fn full(&self, reason: Overload, t: usize, partition: PartitionId) -> Refusal {
        let topic = &self.topics[t];
        let mut groups: Vec<_> = topic.groups.iter().collect();
        groups.sort_by(|a, b| a.name.cmp(&b.name));
        let first_unacked = |group: &&&Group| {
            let all = topic.messages.iter().zip(&group.progress);
            let mut unacked = all
                .filter(|(message, progress)| message.partition == partition && !matches!(progress, Progress::Acked));
            unacked.next().map_or(topic.next_offset, |(message, _)| message.offset)
        };
        groups.truncate(self.limits.work.groups_examined);
        let group = groups.iter().min_by_key(first_unacked).map(|group| group.name.clone());
        let full = FullPartition { topic: topic.name.clone(), partition, group };
        Refusal::Overloaded { reason, retry_after: self.limits.retry_after, full: Some(Box::new(full)) }
    }

    /// An identity replaces an equal one past its window.
    fn remember(&mut self, asked: &Asked, identity: DedupeEntry) {
        let at = self.scopes.iter().position(|scope| scope.asked == *asked).unwrap_or_else(|| {
            self.scopes.push(DedupeScope { asked: asked.clone(), identities: Vec::new() });
            self.scopes.len() - 1
        });
        let known = &mut self.scopes[at].identities;
        known.retain(|other| (&other.tenant, &other.key) != (&identity.tenant, &identity.key));
        known.insert(known.partition_point(|other| other.expires_at <= identity.expires_at), identity);
        self.plan_sweep(SweepKind::Identities(asked.clone()));
    }
}

/// FNV-1a (32 bit) modulo the number of partitions; an empty key maps to the first.
fn partition_of(key: &[u8], partitions: u32) -> PartitionId {
    let mut hash = 2_166_136_261_u32;
    for byte in key {
        hash = (hash ^ u32::from(*byte)).wrapping_mul(16_777_619);
    }
    PartitionId(if key.is_empty() { 0 } else { hash % partitions })
}

/// The size of all text fields: the length of each plus 16 bytes.
fn text_bytes(produce: &Produce) -> usize {
    let envelope = &produce.envelope;
    let mut total = 0;
    let mut add = |text: Option<&str>| total += text.map_or(0, |text| text.len() + 16);
    add(envelope.run_id.as_deref());
    add(envelope.step_id.as_deref());
    add(envelope.parent_step_id.as_deref());
    add(envelope.tenant_id.as_deref());
    add(envelope.idempotency_key.as_deref());
    add(envelope.deadline.as_ref().map(|deadline| &*deadline.text));
    add(produce.trace.as_deref());
    add(produce.routing.as_ref().map(|decision| &*decision.routing.label));
    for (name, value) in
        envelope.labels.iter().chain(produce.routing.iter().flat_map(|decision| &decision.routing.meta))
    {
        total += name.len() + value.len() + 16;
    }
    total
}
