//! What can happen in a world. Every step says all it needs, nothing is drawn while it runs, and one that makes no
//! sense where it stands does nothing: so any part of a trace is a trace.

use serde::{Deserialize, Serialize};

use crate::names::{Call, Group, Message, Topic, Worker};

/// One thing that happens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Step {
    /// A client asks something of the broker, and it arrives.
    Ask(Ask),
    /// A client asks something, and the network keeps it for now.
    Send {
        /// What to call it when it arrives.
        call: Call,
        /// What is asked.
        ask: Ask,
    },
    /// Something that was sent arrives, late, or once more.
    Arrive {
        /// Which.
        call: Call,
    },
    /// A worker reads deliveries that stand in its socket, and does what they ask for.
    Read {
        /// Who.
        worker: Worker,
        /// How many at most.
        count: u8,
    },
    /// A worker does what it was granted, once for every grant: the world outside sees it.
    Run(Grant),
    /// Time passes.
    Pass {
        /// How much.
        ms: u32,
    },
    /// The broker's clock is set.
    Jump {
        /// By how much.
        ms: i64,
    },
    /// The broker is told the time, if it has asked to be.
    Wake,
    /// The next piece of I/O.
    Io {
        /// Of which kind.
        #[serde(rename = "lane")]
        class: JobClass,
        /// What goes wrong with it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fault: Option<IoFault>,
    },
    /// All I/O there is, until none is left.
    Settle,
    /// An operator wants a snapshot.
    Snapshot,
    /// The disk has room for so many bytes beyond what it holds, or again for all.
    Room {
        /// How many; none for all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bytes: Option<u32>,
    },
    /// The broker is stopped in an orderly way.
    Close,
    /// The process or the machine dies.
    Crash {
        /// What the disk keeps of what was not synced.
        loss: Loss,
    },
    /// The broker is started.
    Boot,
    /// The broker is started, and dies in the middle of it.
    BootAndCrash {
        /// After so many pieces of I/O.
        after: u8,
        /// What the disk keeps of what was not synced.
        loss: Loss,
    },
    /// Would the damage be noticed if the machine died now? A look at a copy of the disk; nothing happens to the world.
    Probe {
        /// What the disk keeps of what was not synced.
        loss: Loss,
        /// What is done to what it keeps.
        damage: Damage,
    },
    /// Faults end, and everything is worked off.
    Drain,
}

/// Which kind of I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobClass {
    /// Batches of the log.
    Log,
    /// Segments made ahead, snapshots, removals.
    Background,
}

/// What can go wrong with a piece of I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum IoFault {
    /// It fails. A sync that fails drops the pages it was to write: they read well, and are gone when the power is.
    Fail,
    /// Only so many bytes of a write are written before it fails.
    Short {
        /// How many.
        bytes: u16,
    },
}

/// What the disk keeps of what was not synced when the power goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Loss {
    /// Nothing: only what was synced is there.
    All,
    /// Everything: only the process died.
    Nothing,
    /// Some sectors, in any order, some as garbage; some changes of the folder.
    Some {
        /// Decides which.
        luck: u32,
    },
    /// Exactly the beginning, in the order in which it was written.
    Cut {
        /// So many bytes of it; a change of the folder counts as one.
        bytes: u32,
    },
}

/// Damage to what a disk had synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Damage {
    /// One bit is inverted.
    Flip {
        /// Which bit of all, counted round.
        bit: u32,
    },
    /// A sector has gone back to zeros, as if it had never been written.
    Zero {
        /// Which sector of all, counted round.
        sector: u32,
    },
    /// What was written to one sector went to another.
    Misdirect {
        /// Where it should have gone.
        from: u32,
        /// Where it went.
        to: u32,
    },
    /// A sector cannot be read.
    Unreadable {
        /// Which sector of all, counted round.
        sector: u32,
    },
}

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Ask {
    /// Make a topic.
    Create {
        /// Which.
        topic: Topic,
        /// How many partitions; none for the default.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        partitions: Option<u32>,
        /// How long done messages stay.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        keep_ms: Option<u32>,
        /// While they have no more bytes than this.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        keep_bytes: Option<u32>,
    },
    /// Delete a topic.
    Delete {
        /// Which.
        topic: Topic,
    },
    /// Name all topics.
    Topics,
    /// Describe a topic.
    Describe {
        /// Which.
        topic: Topic,
    },
    /// Look at messages.
    Peek {
        /// The topic.
        topic: Topic,
        /// The partition.
        partition: u32,
        /// From where on.
        offset: u64,
        /// How many at most.
        limit: u8,
    },
    /// Accept a message.
    Produce(Made),
    /// Connect a worker's stream.
    Subscribe(Stream),
    /// Change a stream's prefetch.
    Prefetch {
        /// Whose stream.
        worker: Worker,
        /// To what.
        to: u32,
    },
    /// A worker's stream is gone.
    Leave {
        /// Whose.
        worker: Worker,
    },
    /// A worker is done.
    Ack(Right),
    /// A worker has failed.
    Nack {
        /// By what right.
        right: Right,
        /// Which of a few reasons; 0 for none.
        #[serde(default, skip_serializing_if = "is_zero")]
        reason: u8,
        /// When to try again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        delay_ms: Option<u32>,
    },
    /// A worker needs longer.
    Extend {
        /// By what right.
        right: Right,
        /// How long from now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lease_ms: Option<u32>,
    },
    /// A worker gives a message back.
    Release(Right),
    /// A worker is done, says what came of it and hands on what is next.
    Complete {
        /// By what right.
        right: Right,
        /// Which of a few results; 0 for none.
        #[serde(default, skip_serializing_if = "is_zero")]
        result: u8,
        /// The next messages.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        produce: Vec<Made>,
    },
    /// May an effect be run?
    Begin(Beginning),
    /// An effect has ended.
    Finish {
        /// By which grant.
        grant: Grant,
        /// How.
        #[serde(default)]
        ended: Ended,
        /// Which of a few results; 0 for none.
        #[serde(default, skip_serializing_if = "is_zero")]
        result: u8,
    },
    /// Grant an effect again.
    Reacquire {
        /// To whom.
        worker: Worker,
        /// Which.
        effect: Effect,
        /// How long it may take.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lease_ms: Option<u32>,
    },
    /// An effect takes longer.
    Renew {
        /// By which grant.
        grant: Grant,
        /// How long from now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lease_ms: Option<u32>,
    },
    /// What is known about an effect?
    Get {
        /// Which.
        effect: Effect,
    },
    /// Forget an effect.
    Forget {
        /// Which.
        effect: Effect,
    },
    /// Make a group.
    CreateGroup {
        /// The topic.
        topic: Topic,
        /// The group.
        group: Group,
        /// After the newest message instead of at the earliest.
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
    /// Name a topic's groups.
    Groups {
        /// The topic.
        topic: Topic,
    },
    /// Set a group's progress.
    Seek {
        /// The topic.
        topic: Topic,
        /// The group.
        group: Group,
        /// Where to.
        to: Target,
    },
    /// Pause a group.
    Pause {
        /// The topic.
        topic: Topic,
        /// The group.
        group: Group,
    },
    /// Let it go on.
    Resume {
        /// The topic.
        topic: Topic,
        /// The group.
        group: Group,
    },
    /// Make dead letters live again.
    Redrive {
        /// Whose.
        topic: Topic,
        /// Which; none for all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        offset: Option<u64>,
        /// How many at most.
        limit: u64,
    },
}

/// What a message is like.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Made {
    /// Which message this is; one that is sent again keeps its name.
    pub message: Message,
    /// The topic.
    pub topic: Topic,
    /// Which of a few keys; 0 for none.
    #[serde(skip_serializing_if = "is_zero")]
    pub key: u8,
    /// How many bytes the value has beyond its name.
    #[serde(skip_serializing_if = "is_zero")]
    pub size: u8,
    /// How urgent it is.
    #[serde(skip_serializing_if = "is_zero")]
    pub priority: u8,
    /// Hold it back this long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u32>,
    /// Hold it back until a moment, counted from the beginning of the world.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deliver_at: Option<u64>,
    /// It is worth nothing after a moment, counted from the beginning of the world.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<u64>,
    /// How often it is tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
    /// Under which of a few identities.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<u8>,
    /// For which of a few tenants; 0 for none.
    #[serde(skip_serializing_if = "is_zero")]
    pub tenant: u8,
    /// The topic the envelope wants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<Topic>,
    /// The partition the envelope wants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<u32>,
    /// What a router said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub router: Option<Router>,
}

/// How often, and how far apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// At most so many times.
    #[serde(skip_serializing_if = "is_zero")]
    pub attempts: u32,
    /// The first wait.
    #[serde(skip_serializing_if = "is_zero")]
    pub backoff_ms: u64,
    /// The longest wait.
    #[serde(skip_serializing_if = "is_zero")]
    pub longest_ms: u64,
}

/// A router's answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Router {
    /// The topic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<Topic>,
    /// The partition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<u32>,
}

/// A stream to connect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Stream {
    /// Whose.
    pub worker: Worker,
    /// The topic.
    pub topic: Topic,
    /// The group.
    pub group: Group,
    /// Under whose name: two workers may share one.
    pub owner: Worker,
    /// How long a delivery may take; none for the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u32>,
    /// How many leases it may hold.
    pub prefetch: u32,
    /// How many deliveries it wants in all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deliveries: Option<u64>,
    /// Where a new group starts: after the newest message instead of at the earliest.
    #[serde(skip_serializing_if = "is_false")]
    pub latest: bool,
    /// Its leases end with it.
    #[serde(skip_serializing_if = "is_false")]
    pub release: bool,
}

/// By what right a worker speaks about a message: a delivery it has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Right {
    /// Who speaks.
    pub worker: Worker,
    /// About which message.
    pub message: Message,
    /// By which of the deliveries of it that the worker has read, counted back from the newest.
    #[serde(skip_serializing_if = "is_zero")]
    pub back: u8,
    /// What is odd about it.
    #[serde(skip_serializing_if = "Twist::is_none")]
    pub twist: Twist,
}

/// What is odd about a right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Twist {
    /// Nothing.
    #[default]
    None,
    /// No token is shown.
    NoToken,
    /// What is shown is no token.
    Unreadable,
    /// Under another worker's name.
    WrongOwner,
    /// For another partition.
    WrongPartition,
    /// For a message that may not be there, without a token.
    WrongOffset,
    /// For another group.
    WrongGroup,
    /// For a group that was never made.
    NoGroup,
}

impl Twist {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
    fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// An effect, by its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Effect {
    /// What its key is unique within.
    pub scope: Scope,
    /// Of which of a few tenants; 0 for none.
    #[serde(skip_serializing_if = "is_zero")]
    pub tenant: u8,
    /// Which of a few keys; 0 for none.
    #[serde(skip_serializing_if = "is_zero")]
    pub key: u8,
}

/// What a key is unique within. Of names 0 is the empty one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Scope {
    /// The tenant.
    #[default]
    Tenant,
    /// A group's work on a topic.
    Consume {
        /// The topic.
        topic: Topic,
        /// The group.
        group: Group,
    },
    /// A job.
    Job {
        /// Which.
        id: u8,
    },
    /// A task.
    Task {
        /// Which.
        id: u8,
    },
    /// A call.
    Rpc {
        /// By whom.
        principal: u8,
        /// Of what.
        method: u8,
    },
}

/// The question whether an effect may be run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Beginning {
    /// Who asks.
    pub worker: Worker,
    /// Which effect.
    pub effect: Effect,
    /// How long it may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u32>,
    /// How long it is remembered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u32>,
    /// Until when it is remembered instead, counted from the beginning of the world.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<u64>,
    /// Which of a few requests it is; 0 if that is not said.
    #[serde(skip_serializing_if = "is_zero")]
    pub request: u8,
    /// Where an earlier lease has ended without word: report that, or take it over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub report: Option<bool>,
    /// By which delivery.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery: Option<Right>,
}

/// By what right a worker speaks about an effect: a grant it was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Grant {
    /// Who speaks.
    pub worker: Worker,
    /// About which effect.
    pub effect: Effect,
    /// By which of the grants of it that the worker was given, counted back from the newest.
    #[serde(skip_serializing_if = "is_zero")]
    pub back: u8,
    /// What is odd about it: only what is odd about tokens makes a difference.
    #[serde(skip_serializing_if = "Twist::is_none")]
    pub twist: Twist,
}

/// How an effect ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// Well.
    #[default]
    Succeeded,
    /// For good, and not well.
    FailedFinal,
    /// Not well, and it may be tried again.
    FailedRetryable,
    /// Not at all, which nobody may say.
    InProgress,
}

/// Where to set a group's progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// The earliest kept message.
    Earliest,
    /// After the newest.
    Latest,
    /// An offset.
    Offset(u64),
    /// A moment, counted from the beginning of the world.
    Time(u64),
}

fn is_zero<N: Default + PartialEq>(number: &N) -> bool {
    *number == N::default()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
fn is_false(flag: &bool) -> bool {
    !flag
}
