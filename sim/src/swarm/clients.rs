//! Producers and workers: what they ask for next.

use std::collections::BTreeSet;

use driftq_core::faults::Faults;
use driftq_core::types::LeaseToken;

use super::draw::{Source, Stream};
use super::effects::Users;
use super::family::Family;
use crate::names::{Call, Group, Message, Topic, Worker};
use crate::steps::{Ask, Made, Policy, Right, Router, Step, Stream as Connection, Target, Twist};
use crate::world::{Held, World};

/// How many sent messages a producer may send again.
const RESENDABLE: usize = 8;

/// What the clients of one world are like.
#[derive(Debug)]
pub(super) struct Clients {
    source: Source,
    network: Source,
    topics: u8,
    partitions: u32,
    groups: u8,
    workers: u8,
    owners: u8,
    /// A worker that never succeeds, in some worlds.
    always_fails: Option<Worker>,
    retention: bool,
    features: Features,
    prelude: Vec<Step>,
    sent: Vec<Made>,
    next_message: u32,
    next_call: u32,
    /// Deliveries that are settled, as far as their workers know.
    settled: BTreeSet<LeaseToken>,
    /// Users of the idempotency store, and whether some of them are workers.
    pub(super) users: Users,
    works: bool,
}

/// What messages of this world can have.
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
    pub(super) fn new(seed: u64, shape: &mut Source, users: Users, works: bool) -> Self {
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
        let mut clients = Self {
            source: Source::new(seed, Stream::Clients),
            network: Source::new(seed, Stream::Network),
            topics: 1 + shape.below(2) as u8,
            partitions: 1 + shape.below(3) as u32,
            groups: 1 + shape.below(2) as u8,
            workers: 1 + shape.below(4) as u8,
            owners: 1 + shape.below(3) as u8,
            always_fails: shape.one_in(4).then_some(Worker(0)),
            retention,
            features,
            prelude: Vec::new(),
            sent: Vec::new(),
            next_message: 0,
            next_call: 0,
            settled: BTreeSet::new(),
            users,
            works,
        };
        for number in (0..clients.workers).rev() {
            let stream = clients.connection(Worker(number));
            clients.prelude.push(Step::Ask(Ask::Subscribe(stream)));
        }
        for number in (0..clients.topics).rev() {
            let ask = clients.create(Topic::live(number));
            clients.prelude.push(Step::Ask(ask));
        }
        clients
    }

    /// What every world begins with, and what was drawn ahead.
    pub(super) fn prelude(&mut self) -> Option<Step> {
        self.prelude.pop()
    }

    /// What happens after the step that is being drawn.
    pub(super) fn next_is(&mut self, step: Step) {
        self.prelude.push(step);
    }

    pub(super) fn step<F: Faults>(&mut self, family: Family, world: &World<F>) -> Step {
        let ask = match family {
            Family::Read => {
                return Step::Read { worker: self.worker(), count: 1 + self.source.below(3) as u8 };
            }
            Family::Arrive => {
                let calls: Vec<_> = world.edge().under_way().collect();
                return match calls.is_empty() {
                    true => Step::Wake,
                    false => Step::Arrive { call: self.network.pick(&calls) },
                };
            }
            Family::Send => {
                let kinds =
                    [Family::Produce, Family::Ack, Family::Nack, Family::Extend, Family::Subscribe, Family::Odd];
                // Users of the store send what they would ask.
                if self.works && self.network.one_in(2) {
                    let kind = self.network.pick(&[Family::Work, Family::OddEffect, Family::Complete]);
                    return match self.use_store(kind, world) {
                        Some(Step::Ask(ask)) => self.send(ask),
                        other => other.unwrap_or(Step::Wake),
                    };
                }
                let kind = self.network.pick(&kinds);
                return self.ask(kind, world).map_or(Step::Wake, |ask| self.send(ask));
            }
            Family::Work | Family::Effect | Family::OddEffect | Family::Complete => {
                return self.use_store(family, world).unwrap_or(Step::Wake);
            }
            family => self.ask(family, world),
        };
        ask.map_or(Step::Wake, Step::Ask)
    }

    fn send(&mut self, ask: Ask) -> Step {
        let call = Call(self.next_call);
        self.next_call += 1;
        Step::Send { call, ask }
    }

    fn ask<F: Faults>(&mut self, family: Family, world: &World<F>) -> Option<Ask> {
        Some(match family {
            Family::Produce => Ask::Produce(self.made(world.elapsed())),
            Family::Resend => Ask::Produce(self.again()?),
            Family::Ack => {
                let right = self.right(world)?;
                match self.always_fails == Some(right.worker) {
                    true => Ask::Nack { right, reason: 1, delay_ms: None },
                    false => Ask::Ack(right),
                }
            }
            Family::Nack => Ask::Nack {
                right: self.right(world)?,
                reason: if self.source.one_in(6) { 0 } else { 1 + self.source.below(3) as u8 },
                delay_ms: self.source.one_in(4).then(|| self.source.below(300) as u32),
            },
            Family::Extend => Ask::Extend {
                right: self.right(world)?,
                lease_ms: self.source.one_in(2).then(|| 1 + self.source.below(500) as u32),
            },
            Family::Release => Ask::Release(self.right(world)?),
            Family::Odd => self.odd(world)?,
            Family::Subscribe => {
                let worker = self.worker();
                Ask::Subscribe(self.connection(worker))
            }
            Family::Leave => Ask::Leave { worker: self.worker() },
            Family::Prefetch => Ask::Prefetch { worker: self.worker(), to: self.source.below(4) as u32 },
            Family::Describe => Ask::Describe { topic: self.any_topic() },
            Family::Peek => Ask::Peek {
                topic: self.any_topic(),
                partition: self.source.below(u64::from(self.partitions) + 1) as u32,
                offset: self.source.below(20),
                limit: 1 + self.source.below(5) as u8,
            },
            Family::List if self.source.one_in(2) => Ask::Topics,
            Family::List => Ask::Groups { topic: self.any_topic() },
            Family::CreateTopic => {
                let topic = if self.source.one_in(6) { self.topic().letters() } else { self.topic() };
                self.create(topic)
            }
            Family::DeleteTopic => Ask::Delete { topic: self.any_topic() },
            Family::CreateGroup => {
                Ask::CreateGroup { topic: self.any_topic(), group: self.group(), latest: self.source.one_in(3) }
            }
            Family::DeleteGroup => Ask::DeleteGroup { topic: self.used_topic(), group: self.group() },
            Family::Seek => Ask::Seek {
                topic: self.used_topic(),
                group: self.group(),
                to: match self.source.below(4) {
                    0 => Target::Latest,
                    1 => Target::Offset(self.source.below(u64::from(self.next_message) + 2)),
                    2 => Target::Time(world.elapsed().saturating_sub(self.source.below(1_000))),
                    _ => Target::Earliest,
                },
            },
            Family::Pause if self.source.one_in(2) => Ask::Pause { topic: self.any_topic(), group: self.group() },
            Family::Pause => Ask::Resume { topic: self.any_topic(), group: self.group() },
            Family::Redrive => Ask::Redrive {
                topic: self.topic(),
                offset: self.source.one_in(3).then(|| self.source.below(8)),
                limit: 1 + self.source.below(4),
            },
            _ => return None,
        })
    }

    /// A message nobody has sent before.
    fn made(&mut self, now: u64) -> Made {
        let source = &mut self.source;
        let Features { keys, priority, delay, deadline, policy, identity, tenant, target, partition, router } =
            self.features;
        let rare = |on: bool, source: &mut Source| on && source.one_in(3);
        let mut made = Made {
            message: Message(self.next_message),
            topic: Topic::live(source.below(u64::from(self.topics)) as u8),
            key: if keys { source.below(5) as u8 } else { 0 },
            size: source.below(20) as u8,
            ..Made::default()
        };
        if rare(priority, source) {
            made.priority = 1 + source.below(9) as u8;
        }
        if rare(delay, source) {
            let span = source.below(2_000);
            match source.one_in(2) {
                true => made.delay_ms = Some(span as u32),
                false => made.deliver_at = Some(now + span),
            }
        }
        if rare(deadline, source) {
            made.deadline = Some(now + source.below(4_000));
        }
        if rare(policy, source) {
            made.policy = Some(Policy {
                attempts: source.below(4) as u32,
                backoff_ms: source.pick(&[0, 1, 50, 400]),
                longest_ms: source.pick(&[0, 100, 2_000]),
            });
        }
        if self.works {
            if self.source.one_in(self.users.identity_one_in) {
                made.identity = Some(self.users.key());
            }
        } else if rare(identity, &mut self.source) {
            made.identity = Some(self.source.below(5) as u8);
        }
        let source = &mut self.source;
        if rare(tenant, source) {
            made.tenant = source.below(4) as u8;
        }
        if rare(target, source) {
            made.target = Some(Topic::live(source.below(u64::from(self.topics) + 1) as u8));
        }
        if rare(partition, source) {
            made.partition = Some(source.below(u64::from(self.partitions) + 1) as u32);
        }
        if rare(router, source) {
            made.router = Some(Router {
                topic: source.one_in(2).then(|| Topic::live(source.below(u64::from(self.topics) + 1) as u8)),
                partition: source.one_in(2).then(|| source.below(u64::from(self.partitions) + 1) as u32),
            });
        }
        self.next_message += 1;
        if self.sent.len() >= RESENDABLE {
            self.sent.remove(0);
        }
        self.sent.push(made.clone());
        made
    }

    /// The same, and nobody will send it again but whoever completes the same step once more.
    pub(super) fn made_once(&mut self, now: u64) -> Made {
        let made = self.made(now);
        self.sent.pop();
        made
    }

    /// A message whose producer does not know what became of it, or does not care.
    fn again(&mut self) -> Option<Made> {
        let nth = self.source.below(self.sent.len() as u64) as usize;
        self.sent.get(nth).cloned()
    }

    /// By which delivery a worker speaks: mostly one it has not settled yet.
    fn right<F: Faults>(&mut self, world: &World<F>) -> Option<Right> {
        let worker = self.worker();
        let open: Vec<&Held> =
            world.edge().read_by(worker).filter(|held| !self.settled.contains(&held.token)).collect();
        let held = match open.is_empty() {
            true => return None,
            false => self.source.pick(&open),
        };
        Some(self.settle(worker, held, world))
    }

    /// The right that a delivery gives, which the worker has used then.
    pub(super) fn settle<F: Faults>(&mut self, worker: Worker, held: &Held, world: &World<F>) -> Right {
        self.settled.insert(held.token);
        right(worker, held, world)
    }

    /// Whether a worker thinks that it is through with a delivery.
    pub(super) fn is_settled(&self, token: LeaseToken) -> bool {
        self.settled.contains(&token)
    }

    /// A worker that says what it has no right to say.
    fn odd<F: Faults>(&mut self, world: &World<F>) -> Option<Ask> {
        let worker = self.worker();
        let read: Vec<&Held> = world.edge().read_by(worker).collect();
        if read.is_empty() {
            return None;
        }
        let held = self.source.pick(&read);
        let twists = [
            Twist::None,
            Twist::None,
            Twist::NoToken,
            Twist::NoToken,
            Twist::Unreadable,
            Twist::WrongOwner,
            Twist::WrongPartition,
            Twist::WrongOffset,
            Twist::WrongGroup,
            Twist::NoGroup,
        ];
        let mut right = right(worker, held, world);
        right.twist = self.source.pick(&twists);
        Some(match self.source.below(4) {
            0 => Ask::Nack { right, reason: self.source.below(4) as u8, delay_ms: None },
            1 => Ask::Extend { right, lease_ms: None },
            2 => Ask::Release(right),
            _ => Ask::Ack(right),
        })
    }

    fn connection(&mut self, worker: Worker) -> Connection {
        let source = &mut self.source;
        // Mostly to the first topic: workers that share a group are worth more than workers that are alone in one.
        let topic = Topic::live(if source.one_in(3) { source.below(u64::from(self.topics)) as u8 } else { 0 });
        Connection {
            worker,
            topic: if source.one_in(6) { topic.letters() } else { topic },
            group: Group(source.below(u64::from(self.groups)) as u8),
            owner: Worker(source.below(u64::from(self.owners)) as u8),
            lease_ms: source.one_in(2).then(|| source.pick(&[0, 1, 20, 300, 5_000])),
            prefetch: source.pick(&[1, 1, 2, 3, 16]),
            deliveries: source.one_in(8).then(|| 1 + source.below(4)),
            latest: source.one_in(6),
            release: source.one_in(4),
        }
    }

    fn create(&mut self, topic: Topic) -> Ask {
        let source = &mut self.source;
        let keeps = self.retention && source.one_in(2);
        Ask::Create {
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
        Topic::live(self.source.below(u64::from(self.topics)) as u8)
    }

    /// A topic that is mostly there, mostly with somebody connected to it.
    fn used_topic(&mut self) -> Topic {
        if self.source.one_in(3) { self.any_topic() } else { Topic::live(0) }
    }

    fn any_topic(&mut self) -> Topic {
        let topic = Topic::live(self.source.below(u64::from(self.topics) + 1) as u8);
        if self.source.one_in(4) { topic.letters() } else { topic }
    }
}

/// The right that a delivery gives, in words that need no token.
pub(crate) fn right<F: Faults>(worker: Worker, held: &Held, world: &World<F>) -> Right {
    let same = world.edge().read_by(worker).filter(|other| other.message == held.message);
    let back = same.take_while(|other| other.token != held.token).count();
    Right { worker, message: held.message, back: back as u8, twist: Twist::None }
}
