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

use super::network::Asked;
use super::{BEGINNING, World};
use crate::actions::{
    self, DeliveryRef, EffectBegin, EffectOutcome, EffectRef, GrantRef, NewMessage, Request, SeekTarget, Subscription,
    Tampering,
};
use crate::names::{Group, Topic};
use crate::storage::SimStorage;

const KEYS: [&str; 5] = ["", "k", "user:1", "other", "another"];
const REASONS: [&str; 4] = ["", "bad", "ack_timeout", "worse"];
const IDENTITIES: [&str; 13] =
    ["", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"];
const NAMES: [&str; 3] = ["", "this", "that"];
const RESULTS: [&str; 4] = ["0", "1", "22", "\"three\""];
const TENANTS: [&str; 4] = ["", "default", "acme", ""];

impl<F: Faults, M: SimStorage> World<F, M> {
    /// What is asked, and by whom where the answer is for a worker to remember.
    pub(super) fn asked(&self, request: &Request) -> Option<Asked> {
        let worker = match request {
            Request::Subscribe(Subscription { worker, .. }) | Request::BeginEffect(EffectBegin { worker, .. }) => {
                Some(*worker)
            }
            Request::ReacquireEffect { worker, .. } => Some(*worker),
            _ => None,
        };
        Some(Asked { command: self.command(request)?, worker })
    }

    /// The command that is asked, unless it is about something that is not there.
    fn command(&self, request: &Request) -> Option<Command> {
        Some(match request {
            Request::CreateTopic { topic, partitions, keep_ms, keep_bytes } => Command::CreateTopic {
                name: topic.name(),
                partitions: *partitions,
                retention: Retention { age: keep_ms.map(|ms| Millis(u64::from(ms))), bytes: keep_bytes.map(u64::from) },
            },
            Request::DeleteTopic { topic } => Command::DeleteTopic { name: topic.name() },
            Request::ListTopics => Command::ListTopics,
            Request::DescribeTopic { topic } => Command::DescribeTopic { name: topic.name() },
            Request::Peek { topic, partition, offset, limit } => Command::Peek {
                topic: topic.name(),
                partition: PartitionId(*partition),
                offset: Offset(*offset),
                limit: usize::from(*limit),
            },
            Request::Produce(new_message) => Command::Produce(Box::new(produce(new_message))),
            Request::Subscribe(stream) => Command::Subscribe(subscribe(stream)),
            Request::SetPrefetch { worker, to } => {
                Command::SetPrefetch { consumer: self.network.stream_of(*worker)?, prefetch: *to }
            }
            Request::Unsubscribe { worker } => Command::Unsubscribe { consumer: self.network.stream_of(*worker)? },
            Request::Ack(delivery) => Command::Ack(self.claim(delivery)?),
            Request::Nack { delivery, reason, delay_ms } => Command::Nack {
                claim: self.claim(delivery)?,
                reason: REASONS[usize::from(*reason) % REASONS.len()].into(),
                delay: delay_ms.map(|ms| Millis(u64::from(ms))),
            },
            Request::Extend { delivery, lease_ms } => {
                Command::Extend { claim: self.claim(delivery)?, lease: lease_ms.map(|ms| Millis(u64::from(ms))) }
            }
            Request::Release(delivery) => Command::Release(self.claim(delivery)?),
            Request::Complete { delivery, result, produce: new_message } => Command::Complete(Box::new(Complete {
                claim: self.claim(delivery)?,
                result: result_of(*result),
                produce: new_message.iter().map(produce).collect(),
            })),
            Request::BeginEffect(begin) => store(StoreCommand::Begin(self.begin(begin)?)),
            Request::FinishEffect { grant, outcome, result } => store(StoreCommand::Finish {
                identity: identity(&grant.effect),
                token: self.token(grant)?,
                outcome: effect_outcome(*outcome, *result),
            }),
            Request::ReacquireEffect { worker, effect, lease_ms } => store(StoreCommand::Reacquire {
                identity: identity(effect),
                owner: worker.name(),
                lease: lease_ms.map(|ms| Millis(u64::from(ms))),
            }),
            Request::RenewEffect { grant, lease_ms } => store(StoreCommand::Renew {
                identity: identity(&grant.effect),
                token: self.token(grant)?,
                lease: lease_ms.map(|ms| Millis(u64::from(ms))),
            }),
            Request::GetEffect { effect } => store(StoreCommand::Get { identity: identity(effect) }),
            Request::ForgetEffect { effect } => store(StoreCommand::Forget { identity: identity(effect) }),
            Request::CreateGroup { topic, group, latest } => {
                Command::CreateGroup { topic: topic.name(), group: group.name(), start: start(*latest) }
            }
            Request::DeleteGroup { topic, group } => Command::DeleteGroup { topic: topic.name(), group: group.name() },
            Request::ListGroups { topic } => Command::ListGroups { topic: topic.name() },
            Request::Seek { topic, group, to } => Command::Seek {
                topic: topic.name(),
                group: group.name(),
                to: match to {
                    SeekTarget::Earliest => SeekTo::Earliest,
                    SeekTarget::Latest => SeekTo::Latest,
                    SeekTarget::Offset(offset) => SeekTo::Offset(Offset(*offset)),
                    SeekTarget::Time(ms) => SeekTo::Time(moment(*ms)),
                },
            },
            Request::Pause { topic, group } => Command::Pause { topic: topic.name(), group: group.name() },
            Request::Resume { topic, group } => Command::Resume { topic: topic.name(), group: group.name() },
            Request::Redrive { topic, offset, limit } => Command::Redrive {
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
    fn claim(&self, delivery: &DeliveryRef) -> Option<Claim> {
        let held = self.network.held(delivery.worker, delivery.message, delivery.back)?;
        let claim = Claim {
            topic: held.topic.name(),
            group: held.group.name(),
            partition: held.partition,
            offset: held.offset,
            owner: held.owner.clone(),
            token: TokenClaim::Shown(held.token),
        };
        Some(match delivery.tampering {
            Tampering::None => claim,
            Tampering::NoToken => Claim { token: TokenClaim::Absent, ..claim },
            Tampering::Unreadable => Claim { token: TokenClaim::Unreadable, ..claim },
            Tampering::WrongOwner => Claim { owner: OwnerName::new("stranger").expect("a name"), ..claim },
            Tampering::WrongPartition => Claim { partition: held.partition.next(), ..claim },
            Tampering::WrongOffset => Claim { offset: held.offset.next(), token: TokenClaim::Absent, ..claim },
            Tampering::WrongGroup => Claim { group: Group(held.group.0.wrapping_add(1) % 3).name(), ..claim },
            Tampering::NoGroup => Claim { group: GroupName::new("nobody").expect("a name"), ..claim },
        })
    }
}

impl<F: Faults, M: SimStorage> World<F, M> {
    fn begin(&self, asked: &EffectBegin) -> Option<Begin> {
        let delivery = match &asked.delivery {
            Some(delivery) => {
                let Claim { partition, offset, token, .. } = self.claim(delivery)?;
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
    fn token(&self, grant: &GrantRef) -> Option<TokenClaim> {
        match grant.tampering {
            Tampering::NoToken => Some(TokenClaim::Absent),
            Tampering::Unreadable => Some(TokenClaim::Unreadable),
            _ => self.network.granted(grant).map(|granted| TokenClaim::Shown(granted.token)),
        }
    }
}

fn store(asked: StoreCommand) -> Command {
    Command::Store(Box::new(asked))
}

/// The effect as the broker knows it.
#[must_use]
pub fn identity(effect: &EffectRef) -> Identity {
    let name = |nth: u8| Text::from(NAMES[usize::from(nth) % NAMES.len()]);
    let scope = match effect.scope {
        actions::Scope::Tenant => Scope::Tenant,
        actions::Scope::Consume { topic, group } => Scope::Consume { topic: topic.name(), group: group.name() },
        actions::Scope::Job { id } => Scope::Job { id: name(id) },
        actions::Scope::Task { id } => Scope::Task { id: name(id) },
        actions::Scope::Rpc { principal, method } => Scope::Rpc { principal: name(principal), method: name(method) },
    };
    let tenant = TENANTS[usize::from(effect.tenant) % TENANTS.len()];
    Identity::new(tenant, scope, IDENTITIES[usize::from(effect.key) % IDENTITIES.len()])
}

/// The effect of a group's work on a message with this envelope, where it has one.
pub(super) fn effect_of(topic: Topic, group: Group, envelope: &Envelope) -> Option<EffectRef> {
    let key = IDENTITIES.iter().position(|key| Some(*key) == envelope.identity_key())?;
    let tenant = TENANTS.iter().position(|tenant| *tenant == envelope.tenant())?;
    Some(EffectRef { scope: actions::Scope::Consume { topic, group }, tenant: tenant as u8, key: key as u8 })
}

fn effect_outcome(outcome: EffectOutcome, result: u8) -> Outcome {
    let (status, response_code, last_error) = match outcome {
        EffectOutcome::Succeeded => (EffectStatus::Succeeded, 0, ""),
        EffectOutcome::FailedFinal => (EffectStatus::FailedFinal, 400, "never"),
        EffectOutcome::FailedRetryable => (EffectStatus::FailedRetryable, 0, "later"),
        EffectOutcome::InProgress => (EffectStatus::InProgress, 0, ""),
    };
    Outcome { status, response_code, result: result_of(result), last_error: last_error.into() }
}

fn result_of(nth: u8) -> Option<Arc<str>> {
    (nth > 0).then(|| Arc::from(RESULTS[usize::from(nth) % RESULTS.len()]))
}

fn produce(new_message: &NewMessage) -> Produce {
    let mut value = new_message.message.0.to_string();
    value.extend(std::iter::repeat_n('.', usize::from(new_message.size)));
    let mut asked = Produce::new(new_message.topic.name(), KEYS[usize::from(new_message.key) % KEYS.len()], value);
    let envelope = &mut asked.envelope;
    envelope.priority = Priority::new(new_message.priority).filter(|priority| priority.level() > 0);
    envelope.deliver_at = new_message.deliver_at.map(moment);
    envelope.deadline = new_message.deadline.map(|ms| {
        let at = moment(ms);
        Deadline { at, text: at.to_string().into() }
    });
    envelope.retry_policy = new_message.policy.map(|policy| RetryPolicy {
        max_attempts: policy.attempts,
        backoff: Millis(policy.backoff_ms),
        max_backoff: Millis(policy.max_backoff_ms),
    });
    envelope.idempotency_key =
        new_message.identity.map(|nth| Text::from(IDENTITIES[usize::from(nth) % IDENTITIES.len()]));
    envelope.tenant_id =
        (new_message.tenant > 0).then(|| Text::from(TENANTS[usize::from(new_message.tenant) % TENANTS.len()]));
    envelope.target_topic = new_message.target.map(Topic::name);
    envelope.partition_override = new_message.partition.map(PartitionId);
    asked.delay = new_message.delay_ms.map(|ms| Millis(u64::from(ms)));
    asked.routing = new_message.router.map(|router| RoutingDecision {
        routing: Routing { label: "routed".into(), meta: Default::default() },
        target_topic: router.topic.map(Topic::name),
        partition_override: router.partition.map(PartitionId),
    });
    asked
}

fn subscribe(stream: &Subscription) -> Subscribe {
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
