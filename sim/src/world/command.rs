//! Resolves the names in a request to the offsets and tokens of a broker command.

use driftq_core::Command;
use driftq_core::command::{
    Ack, AckCumulative, Begin, ChangeRetention, Claim, CloseStream, Complete, CreateGroup, CreateTopic, DeleteGroup,
    DeleteTopic, DeliveryClaim, DescribeTopic, ExpireLease, Extend, Finish, Forget, ListEffects, ListGroups,
    ListTopics, Lookup, Nack, OnExpired, Pause, Peek, Purge, Reacquire, Redrive, RedriveSelection, Release, Renew,
    Resume, Retry, Seek, SeekTo, SetPrefetch, StoreCommand, TokenClaim, Unsubscribe, Withdraw,
};
use driftq_core::faults::Faults;
use driftq_core::types::{GroupName, Lifetime, Millis, Offset, OwnerName, PartitionId, Retention};

use super::network::ClientCommand;
use super::state::World;
use super::values::{
    effect_outcome, identity, produce, reason_of, request_hash_of, result_of, scope_kind, setting, start, subscribe,
    tenant_of, time,
};
use crate::actions::{DeliveryRef, EffectBegin, GrantRef, Request, SeekTarget, Subscription, Tampering};
use crate::names::Group;
use crate::sim_storage::SimStorage;

impl<F: Faults, S: SimStorage> World<F, S> {
    /// The command of a request, and the worker that keeps its reply.
    pub(super) fn command_of(&self, request: &Request) -> Option<ClientCommand> {
        let worker = match request {
            Request::Subscribe(Subscription { worker, .. }) | Request::BeginEffect(EffectBegin { worker, .. }) => {
                Some(*worker)
            }
            Request::ReacquireEffect { worker, .. } => Some(*worker),
            _ => None,
        };
        Some(ClientCommand { command: self.command(request)?, worker })
    }

    /// The command of a request; `None` if it refers to something that does not exist.
    fn command(&self, request: &Request) -> Option<Command> {
        Some(match request {
            Request::CreateTopic { topic, partitions, keep_ms, keep_bytes } => {
                let mut age = keep_ms.map(|ms| Millis(u64::from(ms)));
                // A size alone keeps messages of any age, also where topics retain nothing by default.
                if keep_bytes.is_some() && self.setup.retention.is_none() {
                    age = age.or(Some(Millis(u64::MAX)));
                }
                let retention = Retention { age, bytes: keep_bytes.map(u64::from) };
                Command::CreateTopic(CreateTopic { name: topic.name(), partitions: *partitions, retention })
            }
            Request::ChangeRetention { topic, keep_ms, keep_bytes, reset } => {
                let (age, bytes) = (keep_ms.map(|ms| Millis(u64::from(ms))), keep_bytes.map(u64::from));
                let (age, bytes) = (setting(age, *reset), setting(bytes, *reset));
                Command::ChangeRetention(ChangeRetention { name: topic.name(), age, bytes })
            }
            Request::DeleteTopic { topic } => Command::DeleteTopic(DeleteTopic { name: topic.name() }),
            Request::ListTopics => Command::ListTopics(ListTopics::default()),
            Request::DescribeTopic { topic } => Command::DescribeTopic(DescribeTopic { name: topic.name() }),
            Request::Peek { topic, partition, offset, limit } => Command::Peek(Peek {
                topic: topic.name(),
                partition: PartitionId(*partition),
                offset: Offset(*offset),
                limit: usize::from(*limit),
            }),
            Request::Produce(new_message) => Command::Produce(Box::new(produce(new_message))),
            Request::Subscribe(subscription) => Command::Subscribe(subscribe(subscription)),
            Request::SetPrefetch { worker, to } => {
                Command::SetPrefetch(SetPrefetch { consumer: self.network.stream_of(*worker)?, prefetch: *to })
            }
            Request::Unsubscribe { worker, keeps } => {
                let consumer = self.network.stream_of(*worker)?;
                match keeps {
                    true => Command::CloseStream(CloseStream { consumer }),
                    false => Command::Unsubscribe(Unsubscribe { consumer }),
                }
            }
            Request::Ack(delivery) => Command::Ack(Ack(self.claim(delivery)?)),
            Request::Nack { delivery, reason, delay_ms, never } => Command::Nack(Nack {
                claim: self.claim(delivery)?,
                reason: reason_of(*reason),
                retry: match never {
                    true => Retry::Never,
                    false => Retry::after(delay_ms.map(|ms| Millis(u64::from(ms)))),
                },
            }),
            Request::AckCumulative(delivery) => {
                let Claim { topic, group, partition, offset, owner, .. } = self.claim(delivery)?;
                Command::AckCumulative(AckCumulative { topic, group, partition, offset, owner })
            }
            Request::ExpireLease(delivery) => {
                let Claim { topic, group, partition, offset, .. } = self.claim(delivery)?;
                Command::ExpireLease(ExpireLease { topic, group, partition, offset })
            }
            Request::Extend { delivery, lease_ms } => Command::Extend(Extend {
                claim: self.claim(delivery)?,
                lease: lease_ms.map(|ms| Millis(u64::from(ms))),
            }),
            Request::Release(delivery) => Command::Release(Release(self.claim(delivery)?)),
            Request::Withdraw { worker } => Command::Withdraw(Withdraw(self.network.newest_unread(*worker)?.claim())),
            Request::Complete { delivery, result, produce: new_messages, failed } => {
                Command::Complete(Box::new(Complete {
                    claim: self.claim(delivery)?,
                    result: result_of(*result),
                    produce: new_messages.iter().map(produce).collect(),
                    failed: failed.map(reason_of),
                }))
            }
            Request::BeginEffect(begin) => store(StoreCommand::Begin(self.begin(begin)?)),
            Request::FinishEffect { grant, outcome, result, error, dead_letter } => {
                store(StoreCommand::Finish(Finish {
                    identity: identity(&grant.effect),
                    token: self.token(grant)?,
                    outcome: effect_outcome(*outcome, *result, *error),
                    dead_letter: match dead_letter {
                        Some(delivery) => Some(self.delivery_claim(delivery)?),
                        None => None,
                    },
                }))
            }
            Request::ListEffects { tenant, kind, outcome, older_ms, limit, after } => {
                store(StoreCommand::List(ListEffects {
                    tenant: (*tenant > 0).then(|| tenant_of(*tenant)),
                    kind: kind.map(scope_kind),
                    status: outcome.map(|outcome| effect_outcome(outcome, 0, 0).status),
                    older_than: Millis(u64::from(*older_ms)),
                    limit: usize::from(*limit),
                    after: after.as_ref().map(identity),
                }))
            }
            Request::ReacquireEffect { worker, effect, lease_ms } => store(StoreCommand::Reacquire(Reacquire {
                identity: identity(effect),
                owner: worker.name(),
                lease: lease_ms.map(|ms| Millis(u64::from(ms))),
            })),
            Request::RenewEffect { grant, lease_ms } => store(StoreCommand::Renew(Renew {
                identity: identity(&grant.effect),
                token: self.token(grant)?,
                lease: lease_ms.map(|ms| Millis(u64::from(ms))),
            })),
            Request::GetEffect { effect } => store(StoreCommand::Lookup(Lookup { identity: identity(effect) })),
            Request::ForgetEffect { effect } => store(StoreCommand::Forget(Forget { identity: identity(effect) })),
            Request::CreateGroup { topic, group, latest } => {
                Command::CreateGroup(CreateGroup { topic: topic.name(), group: group.name(), start: start(*latest) })
            }
            Request::DeleteGroup { topic, group } => {
                Command::DeleteGroup(DeleteGroup { topic: topic.name(), group: group.name() })
            }
            Request::ListGroups { topic } => Command::ListGroups(ListGroups { topic: topic.name() }),
            Request::Seek { topic, group, to } => Command::Seek(Seek {
                topic: topic.name(),
                group: group.name(),
                to: match to {
                    SeekTarget::Earliest => SeekTo::Earliest,
                    SeekTarget::Latest => SeekTo::Latest,
                    SeekTarget::Offset(offset) => SeekTo::Offset(Offset(*offset)),
                    SeekTarget::Time(ms) => SeekTo::Time(time(*ms)),
                },
            }),
            Request::Pause { topic, group } => Command::Pause(Pause { topic: topic.name(), group: group.name() }),
            Request::Resume { topic, group } => Command::Resume(Resume { topic: topic.name(), group: group.name() }),
            Request::Redrive { topic, offset, more, limit } => Command::Redrive(Redrive {
                topic: topic.name(),
                which: match offset {
                    None => RedriveSelection::All,
                    // Repeated offsets count once.
                    Some(offset) => {
                        let twice = [*offset; 2];
                        let offsets = if more.is_empty() { &twice[..] } else { more };
                        RedriveSelection::Offsets(offsets.iter().map(|offset| Offset(*offset)).collect())
                    }
                },
                limit: *limit,
            }),
            Request::Purge { topic } => Command::Purge(Purge { topic: topic.name() }),
            Request::RedriveRest { limit } => {
                let (topic, rest) = self.network.redrive_rest.clone()?;
                Command::Redrive(Redrive { topic, which: RedriveSelection::Rest(rest), limit: *limit })
            }
        })
    }

    /// The claim of a worker on a delivery it has read.
    fn claim(&self, delivery: &DeliveryRef) -> Option<Claim> {
        let held = self.network.held(delivery.worker, delivery.message, delivery.back)?;
        let claim = held.claim();
        Some(match delivery.tampering {
            Tampering::None => claim,
            Tampering::NoToken => Claim { token: TokenClaim::Absent, ..claim },
            Tampering::Unreadable => Claim { token: TokenClaim::Unreadable, ..claim },
            Tampering::WrongOwner => Claim { owner: OwnerName::new("stranger").expect("valid name"), ..claim },
            Tampering::WrongPartition => Claim { partition: held.partition.next(), ..claim },
            Tampering::WrongOffset => Claim { offset: held.offset.next(), token: TokenClaim::Absent, ..claim },
            Tampering::WrongGroup => Claim { group: Group(held.group.0.wrapping_add(1) % 3).name(), ..claim },
            Tampering::NoGroup => Claim { group: GroupName::new("absent").expect("valid name"), ..claim },
        })
    }

    fn delivery_claim(&self, delivery: &DeliveryRef) -> Option<DeliveryClaim> {
        let Claim { partition, offset, token, .. } = self.claim(delivery)?;
        Some(DeliveryClaim { partition, offset, token })
    }

    fn begin(&self, begin: &EffectBegin) -> Option<Begin> {
        let delivery = match &begin.delivery {
            Some(delivery) => Some(self.delivery_claim(delivery)?),
            None => None,
        };
        let window = begin.ttl_ms.map(|ms| Lifetime::Window(Millis(u64::from(ms))));
        Some(Begin {
            lease: begin.lease_ms.map(|ms| Millis(u64::from(ms))),
            lifetime: begin.expires_at.map(|ms| Lifetime::Until(time(ms))).or(window),
            request_hash: request_hash_of(begin.request),
            on_expired: begin.report.map(|report| if report { OnExpired::Report } else { OnExpired::TakeOver }),
            delivery,
            ..Begin::new(identity(&begin.effect), begin.worker.name())
        })
    }

    /// The token of a claim on a grant; `None` without a grant, unless the token is missing or malformed anyway.
    fn token(&self, grant: &GrantRef) -> Option<TokenClaim> {
        match grant.tampering {
            Tampering::NoToken => Some(TokenClaim::Absent),
            Tampering::Unreadable => Some(TokenClaim::Unreadable),
            _ => self.network.granted(grant).map(|granted| TokenClaim::Shown(granted.token)),
        }
    }
}

fn store(command: StoreCommand) -> Command {
    Command::Store(Box::new(command))
}
