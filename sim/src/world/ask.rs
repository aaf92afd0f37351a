//! From the names in a step to the offsets and tokens of a command.

use std::sync::Arc;

use driftq_core::Command;
use driftq_core::command::{
    Begin, Claim, Complete, DeliveryClaim, OnDisconnect, OnExpired, Produce, RedriveSelection, SeekTo, StoreCommand,
    Subscribe, TokenClaim,
};
use driftq_core::faults::Faults;
use driftq_core::idempotency::{EffectStatus, Identity, Lifetime, Outcome, Scope};
use driftq_core::record::{GroupStart, Retention};
use driftq_core::types::{
    Deadline, Envelope, GroupName, Millis, Offset, OwnerName, PartitionId, Priority, RetryPolicy, Routing,
    RoutingDecision, Text, Timestamp,
};

use super::edge::Asked;
use super::{BEGINNING, World};
use crate::medium::Medium;
use crate::names::{Group, Topic};
use crate::steps::{self, Ask, Beginning, Effect, Ended, Grant, Made, Right, Stream, Target, Twist};

const KEYS: [&str; 5] = ["", "k", "user:1", "other", "another"];
const REASONS: [&str; 4] = ["", "bad", "ack_timeout", "worse"];
const IDENTITIES: [&str; 13] =
    ["", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"];
const NAMES: [&str; 3] = ["", "this", "that"];
const RESULTS: [&str; 4] = ["0", "1", "22", "\"three\""];
const TENANTS: [&str; 4] = ["", "default", "acme", ""];

impl<F: Faults, M: Medium> World<F, M> {
    /// What is asked, and by whom where the answer is for a worker to remember.
    pub(super) fn asked(&self, ask: &Ask) -> Option<Asked> {
        let worker = match ask {
            Ask::Subscribe(Stream { worker, .. }) | Ask::Begin(Beginning { worker, .. }) => Some(*worker),
            Ask::Reacquire { worker, .. } => Some(*worker),
            _ => None,
        };
        Some(Asked { command: self.command(ask)?, worker })
    }

    /// The command that is asked, unless it is about something that is not there.
    fn command(&self, ask: &Ask) -> Option<Command> {
        Some(match ask {
            Ask::Create { topic, partitions, keep_ms, keep_bytes } => Command::CreateTopic {
                name: topic.name(),
                partitions: *partitions,
                retention: Retention { age: keep_ms.map(|ms| Millis(u64::from(ms))), bytes: keep_bytes.map(u64::from) },
            },
            Ask::Delete { topic } => Command::DeleteTopic { name: topic.name() },
            Ask::Topics => Command::ListTopics,
            Ask::Describe { topic } => Command::DescribeTopic { name: topic.name() },
            Ask::Peek { topic, partition, offset, limit } => Command::Peek {
                topic: topic.name(),
                partition: PartitionId(*partition),
                offset: Offset(*offset),
                limit: usize::from(*limit),
            },
            Ask::Produce(made) => Command::Produce(Box::new(produce(made))),
            Ask::Subscribe(stream) => Command::Subscribe(subscribe(stream)),
            Ask::Prefetch { worker, to } => {
                Command::SetPrefetch { consumer: self.edge.stream_of(*worker)?, prefetch: *to }
            }
            Ask::Leave { worker } => Command::Unsubscribe { consumer: self.edge.stream_of(*worker)? },
            Ask::Ack(right) => Command::Ack(self.claim(right)?),
            Ask::Nack { right, reason, delay_ms } => Command::Nack {
                claim: self.claim(right)?,
                reason: REASONS[usize::from(*reason) % REASONS.len()].into(),
                delay: delay_ms.map(|ms| Millis(u64::from(ms))),
            },
            Ask::Extend { right, lease_ms } => {
                Command::Extend { claim: self.claim(right)?, lease: lease_ms.map(|ms| Millis(u64::from(ms))) }
            }
            Ask::Release(right) => Command::Release(self.claim(right)?),
            Ask::Complete { right, result, produce: made } => Command::Complete(Box::new(Complete {
                claim: self.claim(right)?,
                result: result_of(*result),
                produce: made.iter().map(produce).collect(),
            })),
            Ask::Begin(begin) => store(StoreCommand::Begin(self.begin(begin)?)),
            Ask::Finish { grant, ended, result } => store(StoreCommand::Finish {
                identity: identity(&grant.effect),
                token: self.token(grant)?,
                outcome: outcome(*ended, *result),
            }),
            Ask::Reacquire { worker, effect, lease_ms } => store(StoreCommand::Reacquire {
                identity: identity(effect),
                owner: worker.name(),
                lease: lease_ms.map(|ms| Millis(u64::from(ms))),
            }),
            Ask::Renew { grant, lease_ms } => store(StoreCommand::Renew {
                identity: identity(&grant.effect),
                token: self.token(grant)?,
                lease: lease_ms.map(|ms| Millis(u64::from(ms))),
            }),
            Ask::Get { effect } => store(StoreCommand::Get { identity: identity(effect) }),
            Ask::Forget { effect } => store(StoreCommand::Forget { identity: identity(effect) }),
            Ask::CreateGroup { topic, group, latest } => {
                Command::CreateGroup { topic: topic.name(), group: group.name(), start: start(*latest) }
            }
            Ask::DeleteGroup { topic, group } => Command::DeleteGroup { topic: topic.name(), group: group.name() },
            Ask::Groups { topic } => Command::ListGroups { topic: topic.name() },
            Ask::Seek { topic, group, to } => Command::Seek {
                topic: topic.name(),
                group: group.name(),
                to: match to {
                    Target::Earliest => SeekTo::Earliest,
                    Target::Latest => SeekTo::Latest,
                    Target::Offset(offset) => SeekTo::Offset(Offset(*offset)),
                    Target::Time(ms) => SeekTo::Time(moment(*ms)),
                },
            },
            Ask::Pause { topic, group } => Command::Pause { topic: topic.name(), group: group.name() },
            Ask::Resume { topic, group } => Command::Resume { topic: topic.name(), group: group.name() },
            Ask::Redrive { topic, offset, limit } => Command::Redrive {
                topic: topic.name(),
                which: match offset {
                    None => RedriveSelection::All,
                    // Twice the same is once.
                    Some(offset) => RedriveSelection::Offsets(vec![Offset(*offset), Offset(*offset)]),
                },
                limit: *limit,
            },
        })
    }

    /// What a worker says it has a right to, by a delivery it has read.
    fn claim(&self, right: &Right) -> Option<Claim> {
        let held = self.edge.held(right.worker, right.message, right.back)?;
        let claim = Claim {
            topic: held.topic.name(),
            group: held.group.name(),
            partition: held.partition,
            offset: held.offset,
            owner: held.owner.clone(),
            token: TokenClaim::Shown(held.token),
        };
        Some(match right.twist {
            Twist::None => claim,
            Twist::NoToken => Claim { token: TokenClaim::Absent, ..claim },
            Twist::Unreadable => Claim { token: TokenClaim::Unreadable, ..claim },
            Twist::WrongOwner => Claim { owner: OwnerName::new("stranger").expect("a name"), ..claim },
            Twist::WrongPartition => Claim { partition: held.partition.next(), ..claim },
            Twist::WrongOffset => Claim { offset: held.offset.next(), token: TokenClaim::Absent, ..claim },
            Twist::WrongGroup => Claim { group: Group(held.group.0.wrapping_add(1) % 3).name(), ..claim },
            Twist::NoGroup => Claim { group: GroupName::new("nobody").expect("a name"), ..claim },
        })
    }
}

impl<F: Faults, M: Medium> World<F, M> {
    fn begin(&self, asked: &Beginning) -> Option<Begin> {
        let delivery = match &asked.delivery {
            Some(right) => {
                let Claim { partition, offset, token, .. } = self.claim(right)?;
                Some(DeliveryClaim { partition, offset, token })
            }
            None => None,
        };
        let window = asked.ttl_ms.map(|ms| Lifetime::Window(Millis(u64::from(ms))));
        Some(Begin {
            lease: asked.lease_ms.map(|ms| Millis(u64::from(ms))),
            lifetime: asked.expires_at.map(|ms| Lifetime::Until(moment(ms))).or(window),
            request_hash: (asked.request > 0).then(|| Text::from(format!("request {}", asked.request))),
            on_expired: asked.report.map(|report| if report { OnExpired::Report } else { OnExpired::TakeOver }),
            delivery,
            ..Begin::new(identity(&asked.effect), asked.worker.name())
        })
    }

    /// What a worker shows for a grant. Without one it can only show what is no token.
    fn token(&self, grant: &Grant) -> Option<TokenClaim> {
        match grant.twist {
            Twist::NoToken => Some(TokenClaim::Absent),
            Twist::Unreadable => Some(TokenClaim::Unreadable),
            _ => self.edge.granted(grant).map(|granted| TokenClaim::Shown(granted.token)),
        }
    }
}

fn store(asked: StoreCommand) -> Command {
    Command::Store(Box::new(asked))
}

/// The effect as the broker knows it.
#[must_use]
pub fn identity(effect: &Effect) -> Identity {
    let name = |nth: u8| Text::from(NAMES[usize::from(nth) % NAMES.len()]);
    let scope = match effect.scope {
        steps::Scope::Tenant => Scope::Tenant,
        steps::Scope::Consume { topic, group } => Scope::Consume { topic: topic.name(), group: group.name() },
        steps::Scope::Job { id } => Scope::Job { id: name(id) },
        steps::Scope::Task { id } => Scope::Task { id: name(id) },
        steps::Scope::Rpc { principal, method } => Scope::Rpc { principal: name(principal), method: name(method) },
    };
    let tenant = TENANTS[usize::from(effect.tenant) % TENANTS.len()];
    Identity::new(tenant, scope, IDENTITIES[usize::from(effect.key) % IDENTITIES.len()])
}

/// The effect of a group's work on a message with this envelope, where it has one.
pub(super) fn effect_of(topic: Topic, group: Group, envelope: &Envelope) -> Option<Effect> {
    let key = IDENTITIES.iter().position(|key| Some(*key) == envelope.identity_key())?;
    let tenant = TENANTS.iter().position(|tenant| *tenant == envelope.tenant())?;
    Some(Effect { scope: steps::Scope::Consume { topic, group }, tenant: tenant as u8, key: key as u8 })
}

fn outcome(ended: Ended, result: u8) -> Outcome {
    let (status, response_code, last_error) = match ended {
        Ended::Succeeded => (EffectStatus::Succeeded, 0, ""),
        Ended::FailedFinal => (EffectStatus::FailedFinal, 400, "never"),
        Ended::FailedRetryable => (EffectStatus::FailedRetryable, 0, "later"),
        Ended::InProgress => (EffectStatus::InProgress, 0, ""),
    };
    Outcome { status, response_code, result: result_of(result), last_error: last_error.into() }
}

fn result_of(nth: u8) -> Option<Arc<str>> {
    (nth > 0).then(|| Arc::from(RESULTS[usize::from(nth) % RESULTS.len()]))
}

fn produce(made: &Made) -> Produce {
    let mut value = made.message.0.to_string();
    value.extend(std::iter::repeat_n('.', usize::from(made.size)));
    let mut asked = Produce::new(made.topic.name(), KEYS[usize::from(made.key) % KEYS.len()], value);
    let envelope = &mut asked.envelope;
    envelope.priority = Priority::new(made.priority).filter(|priority| priority.level() > 0);
    envelope.deliver_at = made.deliver_at.map(moment);
    envelope.deadline = made.deadline.map(|ms| {
        let at = moment(ms);
        Deadline { at, text: at.to_string().into() }
    });
    envelope.retry_policy = made.policy.map(|policy| RetryPolicy {
        max_attempts: policy.attempts,
        backoff: Millis(policy.backoff_ms),
        max_backoff: Millis(policy.longest_ms),
    });
    envelope.idempotency_key = made.identity.map(|nth| Text::from(IDENTITIES[usize::from(nth) % IDENTITIES.len()]));
    envelope.tenant_id = (made.tenant > 0).then(|| Text::from(TENANTS[usize::from(made.tenant) % TENANTS.len()]));
    envelope.target_topic = made.target.map(Topic::name);
    envelope.partition_override = made.partition.map(PartitionId);
    asked.delay = made.delay_ms.map(|ms| Millis(u64::from(ms)));
    asked.routing = made.router.map(|router| RoutingDecision {
        routing: Routing { label: "routed".into(), meta: Default::default() },
        target_topic: router.topic.map(Topic::name),
        partition_override: router.partition.map(PartitionId),
    });
    asked
}

fn subscribe(stream: &Stream) -> Subscribe {
    Subscribe {
        topic: stream.topic.name(),
        group: stream.group.name(),
        owner: stream.owner.name(),
        lease: stream.lease_ms.map(|ms| Millis(u64::from(ms))),
        prefetch: stream.prefetch,
        deliveries_max: stream.deliveries,
        start: start(stream.latest),
        on_disconnect: if stream.release { OnDisconnect::Release } else { OnDisconnect::Keep },
    }
}

fn start(latest: bool) -> GroupStart {
    if latest { GroupStart::Latest } else { GroupStart::Earliest }
}

fn moment(since_the_beginning_ms: u64) -> Timestamp {
    BEGINNING.after(Millis(since_the_beginning_ms))
}
