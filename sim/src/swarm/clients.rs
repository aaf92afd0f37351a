//! Producers and workers: their next request.

use std::collections::BTreeSet;

use driftq_core::faults::Faults;
use driftq_core::types::LeaseToken;

use super::kinds::ActionKind;
use super::random::{Source, Stream};
use super::repeats::Repeats;
use super::store_users::StoreUsers;
use crate::actions::{
    Action, DeliveryRef, NewMessage, Request, RetryPolicy, RouterDecision, SeekTarget, Subscription, Tampering,
};
use crate::names::{Call, Group, Message, Topic, Worker};
use crate::setup::Setup;
use crate::world::{HeldDelivery, World};

/// How many recent messages a producer may send again.
const RESENDABLE: usize = 8;

/// The clients of one world.
#[derive(Debug)]
pub(super) struct Clients {
    source: Source,
    network: Source,
    topics: u8,
    partitions: u32,
    groups: u8,
    workers: u8,
    owners: u8,
    /// A worker that nacks everything, in some worlds.
    always_fails: Option<Worker>,
    retention: bool,
    changes_retention: bool,
    ephemeral: bool,
    features: Features,
    /// The first actions of a world, and actions scheduled ahead; the last is next.
    scheduled: Vec<Action>,
    sent: Vec<NewMessage>,
    repeats: Repeats,
    next_message: u32,
    next_call: u32,
    /// Deliveries that their workers have acked, nacked or released.
    settled: BTreeSet<LeaseToken>,
    /// The users of the idempotency store, and whether workers are among them.
    pub(super) store_users: StoreUsers,
    workers_use_store: bool,
}

/// Which message features this world uses.
#[derive(Debug)]
struct Features {
    keys: bool,
    priority: bool,
    delay: bool,
    deadline: bool,
    policy: bool,
    identity: bool,
    tenant: bool,
    target: bool,
    partition: bool,
    router: bool,
}

impl Clients {
    pub(super) fn new(
        seed: u64,
        shape: &mut Source,
        store_users: StoreUsers,
        workers_use_store: bool,
        setup: &Setup,
    ) -> Self {
        let mut half = || shape.one_in(2);
        let features = Features {
            keys: half(),
            priority: half(),
            delay: half(),
            deadline: half(),
            policy: half(),
            identity: half(),
            tenant: half(),
            target: half(),
            partition: half(),
            router: half(),
        };
        let retention = half();
        let topics = 1 + shape.below(2) as u8;
        let mut clients = Self {
            source: Source::new(seed, Stream::Clients),
            network: Source::new(seed, Stream::Network),
            topics,
            repeats: Repeats::new(seed, topics),
            partitions: 1 + shape.below(3) as u32,
            groups: 1 + shape.below(2) as u8,
            workers: 1 + shape.below(4) as u8,
            owners: 1 + shape.below(3) as u8,
            always_fails: shape.one_in(4).then_some(Worker(0)),
            retention,
            changes_retention: setup.retention.is_some(),
            ephemeral: setup.group_idle.is_some(),
            features,
            scheduled: Vec::new(),
            sent: Vec::new(),
            next_message: 0,
            next_call: 0,
            settled: BTreeSet::new(),
            store_users,
            workers_use_store,
        };
        for number in (0..clients.workers).rev() {
            let stream = clients.subscription(Worker(number));
            clients.scheduled.push(Action::Request(Request::Subscribe(stream)));
        }
        for number in (0..clients.topics).rev() {
            let request = clients.create_topic(Topic::new(number));
            clients.scheduled.push(Action::Request(request));
        }
        clients
    }

    /// The next scheduled action.
    pub(super) fn next_scheduled(&mut self) -> Option<Action> {
        self.scheduled.pop()
    }

    /// Schedules an action right after the one being generated.
    pub(super) fn schedule(&mut self, action: Action) {
        self.scheduled.push(action);
    }

    pub(super) fn action<F: Faults>(&mut self, kind: ActionKind, world: &World<F>) -> Action {
        let request = match kind {
            ActionKind::Read => {
                return Action::Read { worker: self.worker(), count: 1 + self.source.below(3) as u8 };
            }
            ActionKind::RequestArrives => {
                let calls: Vec<_> = world.network().in_transit_calls().collect();
                return match calls.is_empty() {
                    true => Action::Wake,
                    false => Action::Arrive { call: self.network.pick(&calls) },
                };
            }
            ActionKind::SendRequest => {
                let kinds = [
                    ActionKind::Produce,
                    ActionKind::Ack,
                    ActionKind::Nack,
                    ActionKind::Extend,
                    ActionKind::Subscribe,
                    ActionKind::InvalidClaim,
                ];
                // Users of the store send what they would request directly.
                if self.workers_use_store && self.network.one_in(2) {
                    let kind = self.network.pick(&[
                        ActionKind::ContinueDelivery,
                        ActionKind::InvalidEffect,
                        ActionKind::Complete,
                    ]);
                    return match self.use_store(kind, world) {
                        Some(Action::Request(request)) => self.send(request),
                        other => other.unwrap_or(Action::Wake),
                    };
                }
                let kind = self.network.pick(&kinds);
                return self.request(kind, world).map_or(Action::Wake, |request| self.send(request));
            }
            ActionKind::ContinueDelivery
            | ActionKind::StandaloneEffect
            | ActionKind::InvalidEffect
            | ActionKind::Complete => {
                return self.use_store(kind, world).unwrap_or(Action::Wake);
            }
            kind => self.request(kind, world),
        };
        request.map_or(Action::Wake, Action::Request)
    }

    fn send(&mut self, request: Request) -> Action {
        let call = Call(self.next_call);
        self.next_call += 1;
        Action::Send { call, request }
    }

    fn request<F: Faults>(&mut self, kind: ActionKind, world: &World<F>) -> Option<Request> {
        Some(match kind {
            ActionKind::Produce => Request::Produce(self.new_message(world.wall_elapsed())),
            ActionKind::Resend => Request::Produce(self.resend()?),
            ActionKind::Ack => {
                let delivery = self.delivery_ref(world)?;
                match self.always_fails == Some(delivery.worker) {
                    true => Request::Nack { delivery, reason: 1, delay_ms: None, never: false },
                    false => Request::Ack(delivery),
                }
            }
            ActionKind::Nack => Request::Nack {
                delivery: self.delivery_ref(world)?,
                reason: if self.source.one_in(6) { 0 } else { 1 + self.source.below(3) as u8 },
                delay_ms: self.source.one_in(4).then(|| self.source.below(300) as u32),
                never: self.source.one_in(8),
            },
            ActionKind::AckCumulative => {
                let mut delivery = self.delivery_ref(world)?;
                if self.source.one_in(12) {
                    let tamperings = [Tampering::WrongOwner, Tampering::WrongPartition, Tampering::NoGroup];
                    delivery.tampering = self.source.pick(&tamperings);
                }
                Request::AckCumulative(delivery)
            }
            // Of any delivery, settled or not.
            ActionKind::ExpireLease => {
                let worker = self.worker();
                let read: Vec<&HeldDelivery> = world.network().read_by(worker).collect();
                let nth = self.source.below(read.len() as u64) as usize;
                let mut delivery = delivery_ref(worker, read.get(nth)?, world);
                if self.source.one_in(12) {
                    let tamperings = [Tampering::WrongOffset, Tampering::WrongPartition, Tampering::NoGroup];
                    delivery.tampering = self.source.pick(&tamperings);
                }
                Request::ExpireLease(delivery)
            }
            ActionKind::ListEffects => self.list_effects(),
            ActionKind::Extend => Request::Extend {
                delivery: self.delivery_ref(world)?,
                lease_ms: self.source.one_in(2).then(|| 1 + self.source.below(500) as u32),
            },
            ActionKind::Release => Request::Release(self.delivery_ref(world)?),
            ActionKind::Withdraw => Request::Withdraw { worker: self.worker() },
            ActionKind::InvalidClaim => self.invalid_request(world)?,
            ActionKind::Subscribe => {
                let worker = self.worker();
                Request::Subscribe(self.subscription(worker))
            }
            ActionKind::Unsubscribe => Request::Unsubscribe { worker: self.worker(), keeps: false },
            ActionKind::Prefetch => Request::SetPrefetch { worker: self.worker(), to: self.source.below(4) as u32 },
            ActionKind::Describe => Request::DescribeTopic { topic: self.any_topic() },
            ActionKind::Peek => Request::Peek {
                topic: self.any_topic(),
                partition: self.source.below(u64::from(self.partitions) + 1) as u32,
                offset: self.source.below(20),
                limit: 1 + self.source.below(5) as u8,
            },
            ActionKind::List if self.source.one_in(2) => Request::ListTopics,
            ActionKind::List => Request::ListGroups { topic: self.any_topic() },
            ActionKind::CreateTopic => {
                let topic = if self.source.one_in(6) { self.topic().dlq() } else { self.topic() };
                self.create_topic(topic)
            }
            ActionKind::DeleteTopic => Request::DeleteTopic { topic: self.subscribed_topic() },
            ActionKind::CreateGroup if self.changes_retention && self.source.one_in(2) => {
                let topic = self.subscribed_topic();
                self.create_topic(topic)
            }
            ActionKind::CreateGroup => {
                Request::CreateGroup { topic: self.any_topic(), group: self.group(), latest: self.source.one_in(3) }
            }
            ActionKind::DeleteGroup => Request::DeleteGroup { topic: self.subscribed_topic(), group: self.group() },
            ActionKind::Seek => Request::Seek {
                topic: self.subscribed_topic(),
                group: self.group(),
                to: match self.source.below(4) {
                    0 => SeekTarget::Latest,
                    1 => SeekTarget::Offset(self.source.below(u64::from(self.next_message) + 2)),
                    2 => SeekTarget::Time(world.wall_elapsed().saturating_sub(self.source.below(1_000))),
                    _ => SeekTarget::Earliest,
                },
            },
            ActionKind::Pause if self.source.one_in(2) => {
                Request::Pause { topic: self.any_topic(), group: self.group() }
            }
            ActionKind::Pause => Request::Resume { topic: self.any_topic(), group: self.group() },
            ActionKind::Purge => Request::Purge { topic: self.any_topic() },
            ActionKind::Redrive if world.network().has_redrive_rest() && !self.source.one_in(4) => {
                Request::RedriveRest { limit: 1 + self.source.below(4) }
            }
            ActionKind::Redrive => Request::Redrive {
                topic: self.topic(),
                offset: self.source.one_in(3).then(|| self.source.below(8)),
                more: Vec::new(),
                // Small limits leave a rest.
                limit: self.source.pick(&[1, 1, 2, 4]),
            },
            _ => return None,
        })
    }

    /// A message that was not sent before.
    fn new_message(&mut self, now: u64) -> NewMessage {
        let source = &mut self.source;
        let Features { keys, priority, delay, deadline, policy, identity, tenant, target, partition, router } =
            self.features;
        let rare = |on: bool, source: &mut Source| on && source.one_in(3);
        let mut new_message = NewMessage {
            message: Message(self.next_message),
            topic: Topic::new(source.below(u64::from(self.topics)) as u8),
            key: if keys { source.below(5) as u8 } else { 0 },
            size: source.below(20) as u32,
            ..NewMessage::default()
        };
        if rare(priority, source) {
            new_message.priority = 1 + source.below(9) as u8;
        }
        if rare(delay, source) {
            let span = source.below(2_000);
            match source.one_in(2) {
                true => new_message.delay_ms = Some(span as u32),
                false => new_message.deliver_at = Some(now + span),
            }
        }
        if rare(deadline, source) {
            // Some outlast a dead letter and its redrive; half of these have one attempt only.
            let span = source.below(4_000);
            new_message.deadline = Some(now + if span.is_multiple_of(2) { span } else { 200 * span });
            if span % 4 == 1 {
                new_message.policy = Some(RetryPolicy { attempts: 1, ..RetryPolicy::default() });
            }
        }
        if new_message.policy.is_none() && rare(policy, source) {
            new_message.policy = Some(RetryPolicy {
                attempts: source.below(4) as u32,
                backoff_ms: source.pick(&[0, 1, 50, 400]),
                max_backoff_ms: source.pick(&[0, 100, 2_000]),
            });
        }
        if self.workers_use_store {
            if self.source.one_in(self.store_users.identity_one_in) {
                new_message.identity = Some(self.store_users.key());
            }
        } else if rare(identity, &mut self.source) {
            new_message.identity = Some(self.source.below(5) as u8);
        }
        let source = &mut self.source;
        if rare(tenant, source) {
            new_message.tenant = source.below(4) as u8;
        }
        if rare(target, source) {
            new_message.target = Some(Topic::new(source.below(u64::from(self.topics) + 1) as u8));
        }
        if rare(partition, source) {
            new_message.partition = Some(source.below(u64::from(self.partitions) + 1) as u32);
        }
        if rare(router, source) {
            new_message.router = Some(RouterDecision {
                topic: source.one_in(2).then(|| Topic::new(source.below(u64::from(self.topics) + 1) as u8)),
                partition: source.one_in(2).then(|| source.below(u64::from(self.partitions) + 1) as u32),
            });
        }
        self.repeats.repeat(&mut new_message);
        self.next_message += 1;
        if self.sent.len() >= RESENDABLE {
            self.sent.remove(0);
        }
        self.sent.push(new_message.clone());
        new_message
    }

    /// A message that was not sent before and that no producer sends again; only a repeated step does.
    pub(super) fn new_message_once(&mut self, now: u64) -> NewMessage {
        let new_message = self.new_message(now);
        self.sent.pop();
        new_message
    }

    /// A recent message, sent again.
    fn resend(&mut self) -> Option<NewMessage> {
        let nth = self.source.below(self.sent.len() as u64) as usize;
        self.sent.get(nth).cloned()
    }

    /// A delivery that a worker has read, mostly one it has not settled.
    fn delivery_ref<F: Faults>(&mut self, world: &World<F>) -> Option<DeliveryRef> {
        let worker = self.worker();
        let unsettled: Vec<&HeldDelivery> =
            world.network().read_by(worker).filter(|held| !self.settled.contains(&held.token)).collect();
        let held = match unsettled.is_empty() {
            true => return None,
            false => self.source.pick(&unsettled),
        };
        Some(self.settle(worker, held, world))
    }

    /// A delivery, which counts as settled by its worker from now on.
    pub(super) fn settle<F: Faults>(&mut self, worker: Worker, held: &HeldDelivery, world: &World<F>) -> DeliveryRef {
        self.settled.insert(held.token);
        delivery_ref(worker, held, world)
    }

    /// Whether a worker has settled a delivery.
    pub(super) fn is_settled(&self, token: LeaseToken) -> bool {
        self.settled.contains(&token)
    }

    /// A claim that deviates from the delivery it refers to, or repeats an old one.
    fn invalid_request<F: Faults>(&mut self, world: &World<F>) -> Option<Request> {
        let worker = self.worker();
        let read: Vec<&HeldDelivery> = world.network().read_by(worker).collect();
        if read.is_empty() {
            return None;
        }
        let held = self.source.pick(&read);
        let tamperings = [
            Tampering::None,
            Tampering::None,
            Tampering::NoToken,
            Tampering::NoToken,
            Tampering::Unreadable,
            Tampering::WrongOwner,
            Tampering::WrongPartition,
            Tampering::WrongOffset,
            Tampering::WrongGroup,
            Tampering::NoGroup,
        ];
        let mut delivery = delivery_ref(worker, held, world);
        delivery.tampering = self.source.pick(&tamperings);
        Some(match self.source.below(4) {
            0 => Request::Nack {
                delivery,
                reason: self.source.below(4) as u8,
                delay_ms: None,
                never: self.source.one_in(6),
            },
            1 => Request::Extend { delivery, lease_ms: None },
            2 => Request::Release(delivery),
            _ => Request::Ack(delivery),
        })
    }

    fn subscription(&mut self, worker: Worker) -> Subscription {
        let source = &mut self.source;
        // Mostly to the first topic: workers that share a group exercise more than workers alone in one.
        let topic = Topic::new(if source.one_in(3) { source.below(u64::from(self.topics)) as u8 } else { 0 });
        Subscription {
            worker,
            topic: if source.one_in(6) { topic.dlq() } else { topic },
            group: Group(source.below(u64::from(self.groups)) as u8),
            owner: Worker(source.below(u64::from(self.owners)) as u8),
            lease_ms: source.one_in(2).then(|| source.pick(&[0, 1, 20, 300, 5_000])),
            prefetch: source.pick(&[1, 1, 2, 3, 16]),
            deliveries: source.one_in(8).then(|| 1 + source.below(4)),
            latest: source.one_in(6),
            release: source.one_in(4),
            ephemeral: self.ephemeral && source.one_in(3),
        }
    }

    fn create_topic(&mut self, topic: Topic) -> Request {
        let source = &mut self.source;
        if self.changes_retention && source.one_in(2) {
            return Request::ChangeRetention {
                topic,
                keep_ms: source.one_in(2).then(|| source.pick(&[0, 100, 2_000])),
                keep_bytes: source.one_in(2).then(|| source.pick(&[0, 10, 40, 1_000])),
                reset: source.one_in(2),
            };
        }
        let keeps = self.retention && source.one_in(2);
        Request::CreateTopic {
            topic,
            partitions: (!source.one_in(8)).then_some(self.partitions),
            keep_ms: (keeps && source.one_in(2)).then(|| source.below(2_000) as u32),
            keep_bytes: (keeps && source.one_in(2)).then(|| source.below(100) as u32),
        }
    }

    pub(super) fn worker(&mut self) -> Worker {
        Worker(self.source.below(u64::from(self.workers)) as u8)
    }

    pub(super) fn group(&mut self) -> Group {
        Group(self.source.below(u64::from(self.groups)) as u8)
    }

    fn topic(&mut self) -> Topic {
        Topic::new(self.source.below(u64::from(self.topics)) as u8)
    }

    /// A topic that mostly exists and has streams.
    fn subscribed_topic(&mut self) -> Topic {
        if self.source.one_in(3) { self.any_topic() } else { Topic::new(0) }
    }

    fn any_topic(&mut self) -> Topic {
        let topic = Topic::new(self.source.below(u64::from(self.topics) + 1) as u8);
        if self.source.one_in(4) { topic.dlq() } else { topic }
    }
}

/// A delivery by worker, message and age, without its token.
pub(crate) fn delivery_ref<F: Faults>(worker: Worker, held: &HeldDelivery, world: &World<F>) -> DeliveryRef {
    let same = world.network().read_by(worker).filter(|other| other.message == held.message);
    let back = same.take_while(|other| other.token != held.token).count();
    DeliveryRef { worker, message: held.message, back: back as u8, tampering: Tampering::None }
}
