//! Accepting a message.

use driftq_core::command::Produce;
use driftq_core::reply::{Overload, Produced, RouterUse};
use driftq_core::types::{Metadata, PartitionId, TopicName};
use driftq_core::{Refusal, Reply};

use super::model::{Identity, Model, Scope, Stop};
use super::timers::Swept;
use super::topic::Content;

/// What becomes of a produce.
pub(super) enum Weighed {
    /// It was accepted before, and this is where.
    Known(Produced),
    New(Box<New>),
}

/// A message that is to be stored.
pub(super) struct New {
    topic: usize,
    partition: PartitionId,
    metadata: Metadata,
    /// Its identity, and the topic the producer meant.
    identity: Option<(TopicName, Identity)>,
    router: RouterUse,
}

impl Model {
    pub(super) fn produce(&mut self, asked: &Produce) -> Result<Reply, Stop> {
        Ok(Reply::Produced(match self.weigh(asked)? {
            Weighed::Known(first) => first,
            Weighed::New(new) => {
                self.record()?;
                self.put(asked, *new)
            }
        }))
    }

    /// Whether a message is to be stored, and where.
    pub(super) fn weigh(&self, asked: &Produce) -> Result<Weighed, Refusal> {
        self.check_sizes(asked)?;
        let mut envelope = asked.envelope.clone();
        let meant = envelope.target_topic.clone().unwrap_or_else(|| asked.topic.clone());
        let key = envelope.idempotency_key.clone().filter(|key| !key.is_empty());
        let tenant = envelope.tenant_id.clone().filter(|tenant| !tenant.is_empty()).unwrap_or("default".into());
        if let Some(key) = &key {
            let known =
                self.scopes.iter().find(|scope| scope.topic == meant).map_or(&[][..], |scope| &scope.identities);
            let same = known.iter().find(|identity| *identity.tenant == *tenant && *identity.key == **key);
            if let Some(first) = same.filter(|first| self.now < first.expires_at) {
                let (partition, offset, router) = (first.partition, first.offset, RouterUse::NotAsked);
                return Ok(Weighed::Known(Produced { partition, offset, duplicate: true, router }));
            }
            let live = known.iter().filter(|identity| self.now < identity.expires_at).count() as u64;
            if live >= self.limits.dedupe_keys_max {
                return Err(self.overloaded(Overload::Identities));
            }
        }
        if let Some(delay) = asked.delay {
            envelope.deliver_at = Some(self.now.after(delay));
        }
        if let Some(deadline) = &envelope.deadline {
            if deadline.at <= self.now {
                return Err(Refusal::DeadlinePassed);
            }
            if envelope.deliver_at.is_some_and(|at| at >= deadline.at) {
                return Err(Refusal::Invalid("delay reaches beyond the deadline"));
            }
        }
        let mut metadata = Metadata { envelope, trace: asked.trace.clone(), ..Metadata::default() };
        let router = self.follow_router(asked, &mut metadata);
        let envelope = &metadata.envelope;
        let topic = self.topic(envelope.target_topic.as_ref().unwrap_or(&asked.topic))?;
        let partition = match envelope.partition_override {
            Some(partition) => partition,
            None => by_key(&asked.key, self.topics[topic].partitions()),
        };
        self.topics[topic].has_partition(partition)?;
        self.check_room(topic, partition, (asked.key.len() + asked.value.len()) as u64)?;
        let identity = key.map(|key| {
            let (offset, expires_at) = (self.topics[topic].next_offset, self.now.after(self.limits.dedupe_ttl));
            (meant, Identity { tenant: tenant.into(), key: key.into(), partition, offset, expires_at })
        });
        Ok(Weighed::New(Box::new(New { topic, partition, metadata, identity, router })))
    }

    /// Stores a message that was found good.
    pub(super) fn put(&mut self, asked: &Produce, new: New) -> Produced {
        let New { topic, partition, metadata, identity, router } = new;
        let offset = self.topics[topic].next_offset;
        self.topics[topic].store(self.now, partition, None, Content::new(&asked.key, &asked.value, metadata));
        if let Some((meant, identity)) = identity {
            self.remember(&meant, identity);
        }
        Produced { partition, offset, duplicate: false, router }
    }

    fn check_sizes(&self, asked: &Produce) -> Result<(), Refusal> {
        if asked.value.is_empty() {
            return Err(Refusal::Invalid("value must not be empty"));
        }
        let fits = |what, len: usize, max: usize| match len > max {
            true => Err(Refusal::TooLarge { what, len: len as u64, max: max as u64 }),
            false => Ok(()),
        };
        let envelope = &asked.envelope;
        fits("key", asked.key.len(), self.limits.key_bytes_max)?;
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
        fits("metadata", texts(asked), self.limits.metadata_bytes_max)?;
        let whole = asked.key.len() + asked.value.len() + texts(asked);
        fits("message", whole, self.limits.message_bytes_max)?;
        if asked.delay.is_some() && envelope.deliver_at.is_some() {
            return Err(Refusal::Invalid("give a delay or a moment of delivery, not both"));
        }
        Ok(())
    }

    /// A router's choice wins over the producer's, if the topic and the partition that result are there.
    fn follow_router(&self, asked: &Produce, metadata: &mut Metadata) -> RouterUse {
        let Some(decision) = &asked.routing else { return RouterUse::NotAsked };
        let envelope = &mut metadata.envelope;
        let target = decision.target_topic.clone().or(envelope.target_topic.clone());
        let partition = decision.partition_override.or(envelope.partition_override);
        let found = self.find(target.as_ref().unwrap_or(&asked.topic));
        match found {
            Some(topic) if partition.is_none_or(|partition| partition.0 < self.topics[topic].partitions()) => {
                (envelope.target_topic, envelope.partition_override) = (target, partition);
                metadata.routing = Some(decision.routing.clone());
                RouterUse::Followed
            }
            _ => RouterUse::SetAside,
        }
    }

    /// Whether a message of so many bytes fits the partition, and whether its dead letters are not too many already.
    pub(super) fn check_room(&self, topic: usize, partition: PartitionId, bytes: u64) -> Result<(), Refusal> {
        let (messages_max, bytes_max) = (self.limits.partition_messages_max, self.limits.partition_bytes_max);
        if bytes > bytes_max {
            return Err(Refusal::TooLarge { what: "key and value", len: bytes, max: bytes_max });
        }
        let open = self.topics[topic].open(partition);
        if open.0 + 1 > messages_max || open.1 + bytes > bytes_max {
            return Err(self.overloaded(Overload::Backlog));
        }
        if let Some(dead) = self.topics[topic].dead_name.as_ref().and_then(|name| self.find(name)) {
            let dead = &self.topics[dead];
            let open = dead.open(PartitionId(partition.0 % dead.partitions()));
            if open.0 >= messages_max || open.1 >= bytes_max {
                return Err(self.overloaded(Overload::DeadLetters));
            }
        }
        Ok(())
    }

    pub(super) fn overloaded(&self, reason: Overload) -> Refusal {
        Refusal::Overloaded { reason, retry_after: self.limits.retry_after }
    }

    /// An identity takes the place of the same one past its window.
    fn remember(&mut self, meant: &TopicName, identity: Identity) {
        let at = self.scopes.iter().position(|scope| scope.topic == *meant).unwrap_or_else(|| {
            self.scopes.push(Scope { topic: meant.clone(), identities: Vec::new() });
            self.scopes.len() - 1
        });
        let known = &mut self.scopes[at].identities;
        known.retain(|other| (&other.tenant, &other.key) != (&identity.tenant, &identity.key));
        known.push(identity);
        self.plan_sweep(Swept::Identities(meant.clone()));
    }
}

/// FNV-1a of 32 bits; the empty key is of the first partition.
fn by_key(key: &[u8], partitions: u32) -> PartitionId {
    let mut hash = 2_166_136_261_u32;
    for byte in key {
        hash = (hash ^ u32::from(*byte)).wrapping_mul(16_777_619);
    }
    PartitionId(if key.is_empty() { 0 } else { hash % partitions })
}

/// What the texts beside the payload count for: each its length and 16 bytes.
fn texts(asked: &Produce) -> usize {
    let envelope = &asked.envelope;
    let mut whole = 0;
    let mut add = |text: Option<&str>| whole += text.map_or(0, |text| text.len() + 16);
    add(envelope.run_id.as_deref());
    add(envelope.step_id.as_deref());
    add(envelope.parent_step_id.as_deref());
    add(envelope.tenant_id.as_deref());
    add(envelope.idempotency_key.as_deref());
    add(envelope.deadline.as_ref().map(|deadline| &*deadline.text));
    add(asked.trace.as_deref());
    add(asked.routing.as_ref().map(|decision| &*decision.routing.label));
    for (name, value) in envelope.labels.iter().chain(asked.routing.iter().flat_map(|decision| &decision.routing.meta))
    {
        whole += name.len() + value.len() + 16;
    }
    whole
}
