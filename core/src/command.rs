//! What can be asked of the broker.

use std::sync::Arc;

use crate::idempotency::{Identity, Lifetime, Outcome};
use crate::record::{GroupStart, Retention};
use crate::types::{
    ConsumerId, Envelope, GroupName, LeaseToken, Millis, Offset, OwnerName, PartitionId, RoutingDecision, Text,
    Timestamp, TopicName,
};

/// One request. Every command gets exactly one [`Reply`](crate::Reply) or [`Refusal`](crate::Refusal); a refused command has
/// changed nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Make a topic, or learn that it is there.
    CreateTopic {
        /// Its name.
        name: TopicName,
        /// How many partitions; `None` for one, or for whatever it already has.
        partitions: Option<u32>,
        /// How long done messages stay; ignored where the topic exists.
        retention: Retention,
    },
    /// Delete a topic with its messages, groups and produce identities. Ends its streams.
    DeleteTopic {
        /// Its name.
        name: TopicName,
    },
    /// Name all topics.
    ListTopics,
    /// Describe a topic, its partitions and its groups.
    DescribeTopic {
        /// Its name.
        name: TopicName,
    },
    /// Accept a message.
    Produce(Box<Produce>),
    /// Look at messages without consuming them.
    Peek {
        /// The topic.
        topic: TopicName,
        /// The partition.
        partition: PartitionId,
        /// The first offset of interest.
        offset: Offset,
        /// At most so many.
        limit: usize,
    },
    /// Connect a stream to a group, which is made if it is not there.
    Subscribe(Subscribe),
    /// Change how many live leases a stream may hold: 0 stops it until it is raised again.
    SetPrefetch {
        /// The stream.
        consumer: ConsumerId,
        /// The most live leases it may hold.
        prefetch: u32,
    },
    /// A stream is gone.
    Unsubscribe {
        /// The stream.
        consumer: ConsumerId,
    },
    /// A stream has had all it asked for and ended by itself: its leases run on, whatever is to happen at a disconnect.
    Finish {
        /// The stream.
        consumer: ConsumerId,
    },
    /// A worker is done with a message.
    Ack(Claim),
    /// A worker failed a message.
    Nack {
        /// Which, and by what right.
        claim: Claim,
        /// What went wrong; empty for nothing said.
        reason: Text,
        /// When to try again; wins over the retry policy.
        delay: Option<Millis>,
    },
    /// A worker needs longer.
    Extend {
        /// Which message, and by what right.
        claim: Claim,
        /// The new lease, from now; `None` or no length for the default.
        lease: Option<Millis>,
    },
    /// A worker gives a message back unharmed.
    Release(Claim),
    /// A worker is done with a message, says what came of it and hands on the next step's messages: all of it, or nothing.
    Complete(Box<Complete>),
    /// Something about the idempotency store.
    Store(Box<StoreCommand>),
    /// Make a group.
    CreateGroup {
        /// The topic.
        topic: TopicName,
        /// The group.
        group: GroupName,
        /// Where it starts.
        start: GroupStart,
    },
    /// Delete a group with its progress. Ends its streams and leases.
    DeleteGroup {
        /// The topic.
        topic: TopicName,
        /// The group.
        group: GroupName,
    },
    /// Name a topic's groups.
    ListGroups {
        /// The topic.
        topic: TopicName,
    },
    /// Set a group's progress.
    Seek {
        /// The topic.
        topic: TopicName,
        /// The group.
        group: GroupName,
        /// Where to.
        to: SeekTo,
    },
    /// Hand a group nothing until it is resumed.
    Pause {
        /// The topic.
        topic: TopicName,
        /// The group.
        group: GroupName,
    },
    /// Let a paused group go on.
    Resume {
        /// The topic.
        topic: TopicName,
        /// The group.
        group: GroupName,
    },
    /// Make dead letters of a topic live again, each for the group that failed it.
    Redrive {
        /// The source topic; the items come from its dead-letter topic.
        topic: TopicName,
        /// Which.
        which: RedriveSelection,
        /// At most so many, and at most 1,024 in any case; the reply says how many it were.
        limit: u64,
    },
}

/// A message to accept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Produce {
    /// The topic asked for.
    pub topic: TopicName,
    /// The partitioning key; may be empty.
    pub key: Vec<u8>,
    /// The payload; must not be empty.
    pub value: Vec<u8>,
    /// The producer's metadata.
    pub envelope: Envelope,
    /// Instead of a moment in the envelope: hold the message back this long.
    pub delay: Option<Millis>,
    /// What a router said, if one was asked and answered.
    pub routing: Option<RoutingDecision>,
    /// The trace context, handed on to the worker.
    pub trace: Option<Text>,
}

impl Produce {
    /// A message with nothing but a payload.
    #[must_use]
    pub fn new(topic: TopicName, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Self {
        let envelope = Envelope::default();
        Self { topic, key: key.into(), value: value.into(), envelope, delay: None, routing: None, trace: None }
    }
}

/// A stream to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscribe {
    /// The topic.
    pub topic: TopicName,
    /// The group.
    pub group: GroupName,
    /// The worker's name.
    pub owner: OwnerName,
    /// How long a delivery may take; `None` or no length for the default.
    pub lease: Option<Millis>,
    /// The most live leases this stream may hold.
    pub prefetch: u32,
    /// Deliver no more than so many in all.
    pub deliveries_max: Option<u64>,
    /// Where the group starts if it is new.
    pub start: GroupStart,
    /// What becomes of its leases when the stream goes.
    pub on_disconnect: OnDisconnect,
}

/// What becomes of a stream's leases when the stream goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDisconnect {
    /// They run on: a lease belongs to the message, not to the connection.
    #[default]
    Keep,
    /// They are released at once.
    Release,
}

/// A worker's word about one message, with its right to give it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The topic.
    pub topic: TopicName,
    /// The group.
    pub group: GroupName,
    /// The partition.
    pub partition: PartitionId,
    /// The message.
    pub offset: Offset,
    /// The worker's name: must be the newest delivery's.
    pub owner: OwnerName,
    /// The token it was given, where it shows one: must be the newest delivery's too.
    pub token: TokenClaim,
}

/// A lease token as shown by a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TokenClaim {
    /// None was shown; the owner's name decides alone.
    #[default]
    Absent,
    /// Something that was never a token was shown; it is as stale as can be.
    Unreadable,
    /// This one.
    Shown(LeaseToken),
}

impl TokenClaim {
    /// Reads a token as a worker shows it.
    #[must_use]
    pub fn read(text: Option<&str>) -> Self {
        match text.map(str::parse) {
            None => Self::Absent,
            Some(Ok(token)) => Self::Shown(token),
            Some(Err(_)) => Self::Unreadable,
        }
    }
}

/// A step that is done: its message, its result, and what comes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complete {
    /// Which message, and by what right. A token must be shown.
    pub claim: Claim,
    /// What is stored as the effect's result, JSON text; only a message with an idempotency key has such an effect.
    pub result: Option<Arc<str>>,
    /// The next step's messages.
    pub produce: Vec<Produce>,
}

/// What can be asked of the idempotency store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreCommand {
    /// May this effect be run?
    Begin(Begin),
    /// This is how it ended.
    Finish {
        /// Which effect.
        identity: Identity,
        /// The grant it was run under.
        token: TokenClaim,
        /// How it ended.
        outcome: Outcome,
    },
    /// Grant an effect again that failed, or whose lease has ended.
    Reacquire {
        /// Which effect.
        identity: Identity,
        /// Who will run it.
        owner: OwnerName,
        /// How long that may take; `None` or no length for the default.
        lease: Option<Millis>,
    },
    /// The effect takes longer.
    Renew {
        /// Which effect.
        identity: Identity,
        /// The grant it is run under.
        token: TokenClaim,
        /// The new lease, from now; `None` or no length for the default.
        lease: Option<Millis>,
    },
    /// What is known about an effect?
    Get {
        /// Which effect.
        identity: Identity,
    },
    /// Forget an effect.
    Forget {
        /// Which effect.
        identity: Identity,
    },
}

/// The question whether an effect may be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begin {
    /// Which effect.
    pub identity: Identity,
    /// Who will run it.
    pub owner: OwnerName,
    /// How long that may take; `None` or no length for the default.
    pub lease: Option<Millis>,
    /// How long the effect is remembered; `None` for the scope's default.
    pub lifetime: Option<Lifetime>,
    /// What the request hashes to: the same for the same request.
    pub request_hash: Option<Text>,
    /// What to do where an earlier lease has ended without word; `None` for the scope's default.
    pub on_expired: Option<OnExpired>,
    /// The delivery on whose behalf it is asked.
    pub delivery: Option<DeliveryClaim>,
}

impl Begin {
    /// The question with nothing but what must be said.
    #[must_use]
    pub fn new(identity: Identity, owner: OwnerName) -> Self {
        Self { identity, owner, lease: None, lifetime: None, request_hash: None, on_expired: None, delivery: None }
    }
}

/// What to do where an effect's lease has ended without word from whoever ran it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnExpired {
    /// It is granted anew.
    TakeOver,
    /// It is reported, and somebody decides.
    Report,
}

/// The delivery that stands behind an effect of the `consume` scope, whose topic and group it is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveryClaim {
    /// Its partition.
    pub partition: PartitionId,
    /// Its offset.
    pub offset: Offset,
    /// The token it came with.
    pub token: TokenClaim,
}

/// Where to set a group's progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTo {
    /// The earliest kept message.
    Earliest,
    /// After the newest message.
    Latest,
    /// The first message at or after this offset.
    Offset(Offset),
    /// The first message accepted at or after this moment.
    Time(Timestamp),
}

/// Which dead letters to redrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedriveSelection {
    /// The oldest first, of every partition.
    All,
    /// Those with these offsets in the dead-letter topic.
    Offsets(Vec<Offset>),
}
