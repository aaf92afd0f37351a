//! Requests of clients, with names instead of offsets and tokens. [`World`](crate::world::World) resolves the names
//! when a request is sent.

use serde::{Deserialize, Serialize};

use crate::names::{Group, Message, Topic, Worker};

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Create a topic.
    #[serde(rename = "create")]
    CreateTopic {
        /// The topic.
        topic: Topic,
        /// The number of partitions; `None` for the default.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        partitions: Option<u32>,
        /// Retention of acked messages by age.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        keep_ms: Option<u32>,
        /// Retention of acked messages by size.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        keep_bytes: Option<u32>,
    },
    /// Change the retention of a topic.
    #[serde(rename = "change")]
    ChangeRetention {
        /// The topic.
        topic: Topic,
        /// The new age.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        keep_ms: Option<u32>,
        /// The new size.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        keep_bytes: Option<u32>,
        /// What is not given becomes the server's default.
        #[serde(default, skip_serializing_if = "is_false")]
        reset: bool,
    },
    /// Delete a topic.
    #[serde(rename = "delete")]
    DeleteTopic {
        /// The topic.
        topic: Topic,
    },
    /// List all topics.
    #[serde(rename = "topics")]
    ListTopics,
    /// Describe a topic.
    #[serde(rename = "describe")]
    DescribeTopic {
        /// The topic.
        topic: Topic,
    },
    /// Peek at messages.
    Peek {
        /// The topic.
        topic: Topic,
        /// The partition.
        partition: u32,
        /// The first offset.
        offset: u64,
        /// At most this many messages.
        limit: u8,
    },
    /// Produce a message.
    Produce(NewMessage),
    /// Open a worker's stream.
    Subscribe(Subscription),
    /// Change the prefetch of a stream.
    #[serde(rename = "prefetch")]
    SetPrefetch {
        /// The worker whose stream it is.
        worker: Worker,
        /// The new prefetch.
        to: u32,
    },
    /// Close a worker's stream.
    #[serde(rename = "leave")]
    Unsubscribe {
        /// The worker.
        worker: Worker,
        /// Its leases stay, whatever the stream asked for.
        #[serde(default, skip_serializing_if = "is_false")]
        keeps: bool,
    },
    /// Ack a delivery.
    Ack(DeliveryRef),
    /// Nack a delivery.
    Nack {
        /// The delivery.
        #[serde(rename = "right")]
        delivery: DeliveryRef,
        /// One of a few reasons; 0 for none.
        #[serde(default, skip_serializing_if = "is_zero")]
        reason: u8,
        /// The delay before the retry.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        delay_ms: Option<u32>,
        /// No retry: the message is dead-lettered.
        #[serde(default, skip_serializing_if = "is_false")]
        never: bool,
    },
    /// Ack everything up to a delivery that went to its owner.
    AckCumulative(DeliveryRef),
    /// End the lease of a delivery as if it had run out.
    #[serde(rename = "expire")]
    ExpireLease(DeliveryRef),
    /// Extend the lease of a delivery.
    Extend {
        /// The delivery.
        #[serde(rename = "right")]
        delivery: DeliveryRef,
        /// The lease from now on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lease_ms: Option<u32>,
    },
    /// Release a delivery without counting a failure.
    Release(DeliveryRef),
    /// Withdraw the newest delivery that a worker has not read.
    Withdraw {
        /// The worker.
        worker: Worker,
    },
    /// Complete a workflow step: ack the delivery, record its result and produce the next messages, atomically.
    Complete {
        /// The delivery.
        #[serde(rename = "right")]
        delivery: DeliveryRef,
        /// One of a few results; 0 for none.
        #[serde(default, skip_serializing_if = "is_zero")]
        result: u8,
        /// The next messages.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        produce: Vec<NewMessage>,
        /// The step failed for good, with one of a few errors: its message is dead-lettered instead.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failed: Option<u8>,
    },
    /// Ask for a grant to run an effect.
    #[serde(rename = "begin")]
    BeginEffect(EffectBegin),
    /// Record the outcome of an effect.
    #[serde(rename = "finish")]
    FinishEffect {
        /// The grant.
        grant: GrantRef,
        /// The outcome.
        #[serde(default, rename = "ended")]
        outcome: EffectOutcome,
        /// One of a few results; 0 for none.
        #[serde(default, skip_serializing_if = "is_zero")]
        result: u8,
        /// One of a few errors; 0 for that of the outcome.
        #[serde(default, skip_serializing_if = "is_zero")]
        error: u8,
        /// The delivery whose message is dead-lettered with it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        dead_letter: Option<DeliveryRef>,
    },
    /// Ask for another grant of an effect that failed.
    #[serde(rename = "reacquire")]
    ReacquireEffect {
        /// The worker.
        worker: Worker,
        /// The effect.
        effect: EffectRef,
        /// The lease.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lease_ms: Option<u32>,
    },
    /// Renew the lease of a grant.
    #[serde(rename = "renew")]
    RenewEffect {
        /// The grant.
        grant: GrantRef,
        /// The lease from now on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lease_ms: Option<u32>,
    },
    /// Read the record of an effect.
    #[serde(rename = "get")]
    GetEffect {
        /// The effect.
        effect: EffectRef,
    },
    /// Delete the record of an effect.
    #[serde(rename = "forget")]
    ForgetEffect {
        /// The effect.
        effect: EffectRef,
    },
    /// List the records of effects.
    #[serde(rename = "effects")]
    ListEffects {
        /// Of one of a few tenants; 0 for all.
        #[serde(default, skip_serializing_if = "is_zero")]
        tenant: u8,
        /// Of scopes like this one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kind: Option<Scope>,
        /// With this outcome.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        outcome: Option<EffectOutcome>,
        /// Unchanged for so long.
        #[serde(default, skip_serializing_if = "is_zero")]
        older_ms: u32,
        /// At most this many.
        limit: u8,
        /// After this one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<EffectRef>,
    },
    /// Create a group.
    CreateGroup {
        /// The topic.
        topic: Topic,
        /// The group.
        group: Group,
        /// Start after the newest message instead of at the earliest.
        #[serde(default, skip_serializing_if = "is_false")]
        latest: bool,
    },
    /// Delete a group.
    DeleteGroup {
        /// The topic.
        topic: Topic,
        /// The group.
        group: Group,
    },
    /// List the groups of a topic.
    #[serde(rename = "groups")]
    ListGroups {
        /// The topic.
        topic: Topic,
    },
    /// Seek a group.
    Seek {
        /// The topic.
        topic: Topic,
        /// The group.
        group: Group,
        /// The position.
        to: SeekTarget,
    },
    /// Pause a group.
    Pause {
        /// The topic.
        topic: Topic,
        /// The group.
        group: Group,
    },
    /// Resume a group.
    Resume {
        /// The topic.
        topic: Topic,
        /// The group.
        group: Group,
    },
    /// Redrive dead letters.
    Redrive {
        /// The topic they came from.
        topic: Topic,
        /// One dead letter; `None` for all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        offset: Option<u64>,
        /// These instead of the one, if one is given.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        more: Vec<u64>,
        /// At most this many.
        limit: u64,
    },
    /// Remove the messages of a topic.
    Purge {
        /// The topic.
        topic: Topic,
    },
    /// Continue the redrive of all whose reply last named a rest.
    RedriveRest {
        /// At most this many.
        limit: u64,
    },
}

/// A message to produce.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NewMessage {
    /// Its name, which a resend keeps.
    pub message: Message,
    /// The topic.
    pub topic: Topic,
    /// One of a few keys; 0 for none.
    #[serde(skip_serializing_if = "is_zero")]
    pub key: u8,
    /// Bytes of the value beyond the message's number.
    #[serde(skip_serializing_if = "is_zero")]
    pub size: u32,
    /// The priority.
    #[serde(skip_serializing_if = "is_zero")]
    pub priority: u8,
    /// The delivery delay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u32>,
    /// The earliest delivery time, in milliseconds since the start of the world.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deliver_at: Option<u64>,
    /// The deadline, in milliseconds since the start of the world.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<u64>,
    /// The retry policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<RetryPolicy>,
    /// One of a few idempotency keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<u8>,
    /// One of a few tenants; 0 for none.
    #[serde(skip_serializing_if = "is_zero")]
    pub tenant: u8,
    /// The target topic in the envelope.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<Topic>,
    /// The partition override in the envelope.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<u32>,
    /// The decision of a router.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub router: Option<RouterDecision>,
    /// Metadata that the broker stores and does not act on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<Details>,
}

/// Metadata that the broker stores and does not act on. Each number is the length of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Details {
    /// The run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<u8>,
    /// The step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u8>,
    /// The parent step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<u8>,
    /// The trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<u16>,
    /// The number of labels.
    #[serde(skip_serializing_if = "is_zero")]
    pub labels: u8,
    /// The label of the router.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub route: Option<u8>,
    /// The number of pairs that the router adds.
    #[serde(skip_serializing_if = "is_zero")]
    pub pairs: u8,
    /// The lowest priority is given, not left out.
    #[serde(skip_serializing_if = "is_false")]
    pub lowest: bool,
}

/// A retry policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetryPolicy {
    /// At most this many attempts; 0 for no limit.
    #[serde(skip_serializing_if = "is_zero")]
    pub attempts: u32,
    /// The first backoff.
    #[serde(skip_serializing_if = "is_zero")]
    pub backoff_ms: u64,
    /// The longest backoff.
    #[serde(skip_serializing_if = "is_zero", rename = "longest_ms")]
    pub max_backoff_ms: u64,
}

/// The decision of a router.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RouterDecision {
    /// The topic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<Topic>,
    /// The partition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<u32>,
}

/// A stream to open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Subscription {
    /// The worker that reads it.
    pub worker: Worker,
    /// The topic.
    pub topic: Topic,
    /// The group.
    pub group: Group,
    /// The owner name; several workers may share one.
    pub owner: Worker,
    /// The lease of a delivery; `None` for the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u32>,
    /// The most deliveries in flight.
    pub prefetch: u32,
    /// The most deliveries in total.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deliveries: Option<u64>,
    /// A new group starts after the newest message instead of at the earliest.
    #[serde(skip_serializing_if = "is_false")]
    pub latest: bool,
    /// Closing the stream releases its leases.
    #[serde(skip_serializing_if = "is_false")]
    pub release: bool,
    /// A new group is deleted with its last stream.
    #[serde(default, skip_serializing_if = "is_false")]
    pub ephemeral: bool,
}

/// A delivery that a worker has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DeliveryRef {
    /// The worker.
    pub worker: Worker,
    /// The message.
    pub message: Message,
    /// Which delivery of the message to the worker, counted back from the newest.
    #[serde(skip_serializing_if = "is_zero")]
    pub back: u8,
    /// How the claim deviates from the delivery.
    #[serde(skip_serializing_if = "Tampering::is_none", rename = "twist")]
    pub tampering: Tampering,
}

/// How a claim deviates from the delivery or grant it refers to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tampering {
    /// Not at all.
    #[default]
    None,
    /// Without a token.
    NoToken,
    /// With a malformed token.
    Unreadable,
    /// With another owner.
    WrongOwner,
    /// With another partition.
    WrongPartition,
    /// With another offset, which may not exist, and without a token.
    WrongOffset,
    /// With another group.
    WrongGroup,
    /// With a group that does not exist.
    NoGroup,
}

impl Tampering {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde requires a reference")]
    fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// An effect, by its identity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EffectRef {
    /// The scope within which the key is unique.
    pub scope: Scope,
    /// One of a few tenants; 0 for none.
    #[serde(skip_serializing_if = "is_zero")]
    pub tenant: u8,
    /// One of a few keys; 0 for the empty key.
    #[serde(skip_serializing_if = "is_zero")]
    pub key: u8,
}

/// The scope of an effect. In all fields 0 stands for the empty string.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Scope {
    /// The tenant.
    #[default]
    Tenant,
    /// A group of a topic.
    Consume {
        /// The topic.
        topic: Topic,
        /// The group.
        group: Group,
    },
    /// A job.
    Job {
        /// The id.
        id: u8,
    },
    /// A task.
    Task {
        /// The id.
        id: u8,
    },
    /// A remote procedure call.
    Rpc {
        /// The caller.
        principal: u8,
        /// The method.
        method: u8,
    },
}

/// A request for a grant to run an effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EffectBegin {
    /// The worker.
    pub worker: Worker,
    /// The effect.
    pub effect: EffectRef,
    /// The lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u32>,
    /// How long the record is kept after the effect ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u32>,
    /// When the record expires instead, in milliseconds since the start of the world.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<u64>,
    /// One of a few request hashes; 0 for none.
    #[serde(skip_serializing_if = "is_zero")]
    pub request: u8,
    /// Where an earlier lease expired: report it (`true`) or take the effect over (`false`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub report: Option<bool>,
    /// The delivery on whose behalf the effect is run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery: Option<DeliveryRef>,
}

/// A grant that a worker was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GrantRef {
    /// The worker.
    pub worker: Worker,
    /// The effect.
    pub effect: EffectRef,
    /// Which grant of the effect to the worker, counted back from the newest.
    #[serde(skip_serializing_if = "is_zero")]
    pub back: u8,
    /// How the claim deviates from the grant; only tokens can deviate.
    #[serde(skip_serializing_if = "Tampering::is_none", rename = "twist")]
    pub tampering: Tampering,
}

/// The outcome of an effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EffectOutcome {
    /// It succeeded.
    #[default]
    Succeeded,
    /// It failed and must not be retried.
    FailedFinal,
    /// It failed and may be retried.
    FailedRetryable,
    /// It is still running, which is not a valid outcome.
    InProgress,
}

/// The target of a seek.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SeekTarget {
    /// The earliest stored message.
    Earliest,
    /// After the newest message.
    Latest,
    /// An offset.
    Offset(u64),
    /// A time, in milliseconds since the start of the world.
    Time(u64),
}

fn is_zero<N: Default + PartialEq>(number: &N) -> bool {
    *number == N::default()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde requires a reference")]
fn is_false(flag: &bool) -> bool {
    !flag
}
