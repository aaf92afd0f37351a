//! Typed requests: each command names the type of its reply.

use std::sync::Arc;

use crate::command::{
    Ack, AckCumulative, Begin, BindKey, ChangeRetention, CloseStream, Command, Complete, CreateGroup, CreateKey,
    CreateTenant, CreateTopic, DeleteGroup, DeleteTenant, DeleteTopic, DescribeTopic, ExpireLease, Extend, Finish,
    Forget, ListAudit, ListEffects, ListGroups, ListKeys, ListTenants, ListTopics, Lookup, Nack, Pause, Peek, Produce,
    Purge, Reacquire, Redrive, RedriveRest, Release, Renew, Resume, RevokeKey, Seek, SetPrefetch, StoreCommand,
    Subscribe, Unsubscribe, Withdraw,
};
use crate::reply::{
    AuditPage, Delivery, EffectPage, FoundEffect, KeyInfo, KeyPage, ListedGroup, Peeked, Produced, Reply, StepOutput,
    StoreReply, TenantInfo, TopicInfo,
};
use crate::types::{
    Claim, ConsumerId, EffectStatus, LeaseToken, Outcome, Retention, TenantId, Text, Timestamp, TokenClaim, TopicName,
};

/// A command together with the type of its reply.
///
/// ```
/// use driftq_core::command::CreateTopic;
/// use driftq_core::types::{Retention, TopicName};
/// use driftq_core::{Command, Reply, Request};
///
/// let request = CreateTopic { name: TopicName::new("orders")?, partitions: None, retention: Retention::default() };
/// let command: Command = request.into();
/// # let _ = command;
/// // Handed to `Pipeline::handle`, it is answered in time; the reply has the type the request names:
/// let created = CreateTopic::reply(Reply::TopicCreated { partitions: 1, retention: Retention::EVERYTHING });
/// assert_eq!(created.partitions, 1);
/// # Ok::<(), driftq_core::types::NameError>(())
/// ```
pub trait Request: Into<Command> {
    /// What the command is answered with, unless it is refused.
    type Reply;

    /// The reply to a command of this type.
    ///
    /// # Panics
    /// If `reply` answers a command of another type: replies are matched to commands by their tickets.
    fn reply(reply: Reply) -> Self::Reply;
}

/// The answer to a [`CreateTopic`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopicCreated {
    /// How many partitions the topic has.
    pub partitions: u32,
    /// How long acked messages are retained.
    pub retention: Retention,
}

/// The answer to a [`Redrive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redriven {
    /// How many dead letters were moved back.
    pub count: u64,
    /// Those that a redrive of all has not reached yet.
    pub rest: Option<RedriveRest>,
}

/// The answer to a [`Begin`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BeginReply {
    /// Execute the effect under this grant.
    Execute(Grant),
    /// The effect ended before.
    Replay {
        /// Its outcome.
        outcome: Outcome,
        /// It has a result whose bytes are lost; the outcome is without it.
        result_lost: bool,
    },
    /// The effect failed, or its lease expired; [`Reacquire`] grants it again.
    Retryable {
        /// How often it was granted.
        attempt: u32,
        /// Its status.
        status: EffectStatus,
        /// What went wrong.
        last_error: Text,
    },
}

/// The right to execute an effect until its lease ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// How often the effect was granted, this time included.
    pub attempt: u32,
    /// Proof of the grant.
    pub token: LeaseToken,
    /// When the lease ends.
    pub lease_until: Timestamp,
    /// False for an empty key: nothing is stored, and nothing prevents a second execution.
    pub idempotent: bool,
}

macro_rules! requests {
    ($($request:ident => $reply:ty, $command:expr, $pattern:pat => $value:expr;)*) => {
        $(
            impl From<$request> for Command {
                fn from(request: $request) -> Self {
                    let command: fn($request) -> Command = $command;
                    command(request)
                }
            }

            impl Request for $request {
                type Reply = $reply;

                fn reply(reply: Reply) -> $reply {
                    match reply {
                        $pattern => $value,
                        other => mismatch(stringify!($request), &other),
                    }
                }
            }
        )*
    };
}

requests! {
    CreateTopic => TopicCreated, Command::CreateTopic,
        Reply::TopicCreated { partitions, retention } => TopicCreated { partitions, retention };
    ChangeRetention => Retention, Command::ChangeRetention, Reply::RetentionChanged { retention } => retention;
    DeleteTopic => (), Command::DeleteTopic, Reply::Success => ();
    ListTopics => Vec<TopicName>, Command::ListTopics, Reply::Topics(topics) => topics;
    DescribeTopic => Box<TopicInfo>, Command::DescribeTopic, Reply::Topic(topic) => topic;
    Produce => Produced, |produce| Command::Produce(Box::new(produce)), Reply::Produced(produced) => produced;
    Peek => Vec<Peeked>, Command::Peek, Reply::Peeked(messages) => messages;
    Subscribe => ConsumerId, Command::Subscribe, Reply::Subscribed { consumer } => consumer;
    SetPrefetch => (), Command::SetPrefetch, Reply::Success => ();
    Unsubscribe => (), Command::Unsubscribe, Reply::Success => ();
    CloseStream => (), Command::CloseStream, Reply::Success => ();
    Ack => (), Command::Ack, Reply::Success => ();
    AckCumulative => (), Command::AckCumulative, Reply::Success => ();
    Nack => (), Command::Nack, Reply::Success => ();
    Extend => Timestamp, Command::Extend, Reply::Extended { lease_until } => lease_until;
    Release => (), Command::Release, Reply::Success => ();
    Withdraw => (), Command::Withdraw, Reply::Success => ();
    ExpireLease => (), Command::ExpireLease, Reply::Success => ();
    Complete => Arc<[StepOutput]>, |complete| Command::Complete(Box::new(complete)), Reply::Completed(step) => step;
    CreateGroup => (), Command::CreateGroup, Reply::Success => ();
    DeleteGroup => (), Command::DeleteGroup, Reply::Success => ();
    ListGroups => Vec<ListedGroup>, Command::ListGroups, Reply::Groups(groups) => groups;
    Seek => (), Command::Seek, Reply::Success => ();
    Pause => (), Command::Pause, Reply::Success => ();
    Resume => (), Command::Resume, Reply::Success => ();
    Redrive => Redriven, Command::Redrive, Reply::Redriven { count, rest } => Redriven { count, rest };
    Purge => u64, Command::Purge, Reply::Purged { count } => count;
    CreateKey => Box<KeyInfo>, |create| Command::CreateKey(Box::new(create)), Reply::KeyCreated(key) => key;
    RevokeKey => (), Command::RevokeKey, Reply::Success => ();
    BindKey => (), Command::BindKey, Reply::Success => ();
    ListKeys => Box<KeyPage>, Command::ListKeys, Reply::Keys(page) => page;
    CreateTenant => TenantId, Command::CreateTenant, Reply::TenantCreated { tenant } => tenant;
    DeleteTenant => (), Command::DeleteTenant, Reply::Success => ();
    ListTenants => Vec<TenantInfo>, Command::ListTenants, Reply::Tenants(tenants) => tenants;
    ListAudit => Box<AuditPage>, Command::ListAudit, Reply::Audit(page) => page;
    Begin => BeginReply, |begin| store(StoreCommand::Begin(begin)), Reply::Store(reply) => begun(reply);
    Finish => (), |finish| store(StoreCommand::Finish(finish)), Reply::Success => ();
    Reacquire => Grant, |reacquire| store(StoreCommand::Reacquire(reacquire)),
        Reply::Store(StoreReply::Execute { attempt, token, lease_until, idempotent }) =>
            Grant { attempt, token, lease_until, idempotent };
    Renew => Timestamp, |renew| store(StoreCommand::Renew(renew)),
        Reply::Store(StoreReply::Renewed { lease_until }) => lease_until;
    ListEffects => Box<EffectPage>, |list| store(StoreCommand::List(list)),
        Reply::Store(StoreReply::Listed(page)) => page;
    Lookup => Box<FoundEffect>, |lookup| store(StoreCommand::Lookup(lookup)),
        Reply::Store(StoreReply::Effect(effect)) => effect;
    Forget => (), |forget| store(StoreCommand::Forget(forget)), Reply::Success => ();
}

/// A boxed command is passed on as it is.
macro_rules! boxed_requests {
    ($($request:ident,)*) => {
        $(
            impl From<Box<$request>> for Command {
                fn from(request: Box<$request>) -> Self {
                    Self::$request(request)
                }
            }

            impl Request for Box<$request> {
                type Reply = <$request as Request>::Reply;

                fn reply(reply: Reply) -> Self::Reply {
                    $request::reply(reply)
                }
            }
        )*
    };
}

boxed_requests! {
    Produce,
    Complete,
}

impl From<StoreCommand> for Command {
    fn from(command: StoreCommand) -> Self {
        store(command)
    }
}

impl Delivery {
    /// The claim on this delivery of the consumer that `stream` connected.
    #[must_use]
    pub fn claim(&self, stream: &Subscribe) -> Claim {
        Claim {
            topic: stream.topic.clone(),
            group: stream.group.clone(),
            partition: self.partition,
            offset: self.offset,
            owner: stream.owner.clone(),
            token: TokenClaim::Shown(self.token),
        }
    }
}

fn store(command: StoreCommand) -> Command {
    Command::Store(Box::new(command))
}

fn begun(reply: StoreReply) -> BeginReply {
    match reply {
        StoreReply::Execute { attempt, token, lease_until, idempotent } => {
            BeginReply::Execute(Grant { attempt, token, lease_until, idempotent })
        }
        StoreReply::Replay { outcome, result_lost } => BeginReply::Replay { outcome, result_lost },
        StoreReply::Retryable { attempt, status, last_error } => BeginReply::Retryable { attempt, status, last_error },
        other => mismatch("Begin", &Reply::Store(other)),
    }
}

/// The one place where a reply of the wrong type would surface: a caller mixed up its tickets.
#[cold]
fn mismatch(request: &str, reply: &Reply) -> ! {
    panic!("{reply:?} does not answer a command of type {request}")
}
