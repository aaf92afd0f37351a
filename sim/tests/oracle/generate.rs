//! Generated workloads: limits down to 1, profiles without some kinds of commands, and commands.

use driftq_core::Command;
use driftq_core::command::{
    Ack, AckCumulative, Claim, CloseStream, CreateGroup, CreateTopic, DeleteGroup, DeleteTopic, DescribeTopic,
    ExpireLease, Extend, GroupLifetime, ListGroups, ListTopics, Nack, OnDisconnect, Pause, Peek, Produce, Redrive,
    RedriveRest, RedriveSelection, Release, Resume, Retry, Seek, SeekTo, SetPrefetch, Subscribe, TokenClaim,
    Unsubscribe,
};
use driftq_core::faults::Faults;
use driftq_core::types::{GroupStart, Retention, *};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::world::World;

const TOPICS: [&str; 5] = ["a", "b/ü \"x\"", "dlq.a", "dlq.b/ü \"x\"", "c@d"];
const GROUPS: [&str; 3] = ["g", "h i", "é/%2F"];
const OWNERS: [&str; 2] = ["v", "w@host"];
const KEYS: [&str; 4] = ["", "k", "user:1", "other"];
const REASONS: [&str; 4] = ["", "bad", "ack_timeout", "worse"];

/// The profile of a workload.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    /// Per thousand actions.
    pub(crate) crash: u32,
    pub(crate) disk: u32,
    pub(crate) time: u32,
    /// One weight per kind of command.
    weights: [u32; 18],
    topics: usize,
    partitions: u32,
}

impl Workload {
    pub(crate) fn draw(rng: &mut ChaCha8Rng) -> (Self, Limits, u32) {
        let base = [50, 50, 10, 3, 3, 3, 1, 2, 1, 2, 1, 3, 6, 3, 6, 1, 1, 1];
        let weights = std::array::from_fn(|kind| {
            if kind > 2 && kind != 5 && rng.random_bool(0.4) { 0 } else { base[kind] * rng.random_range(1..4) }
        });
        let mut rate =
            |probability: f64, max: u32| if rng.random_bool(probability) { rng.random_range(0..max) } else { 0 };
        let (crash, disk, time) = (rate(0.5, 100), rate(0.6, 200), rate(0.9, 300));
        let (topics, partitions) = (rng.random_range(1..=TOPICS.len()), rng.random_range(1..=4));
        let tight = |probability: f64| {
            move |rng: &mut ChaCha8Rng, max: u64| {
                if rng.random_bool(probability) { rng.random_range(1..=max) } else { 1_000 }
            }
        };
        let (small, seldom) = (tight(0.5), tight(0.1));
        let limits = Limits {
            in_flight_max: small(rng, 4) as u32,
            partition_messages_max: small(rng, 9),
            partition_bytes_max: small(rng, 150) + 10,
            lease_default: Millis(rng.random_range(1..400)),
            lease_min: Millis(1),
            dedupe_ttl: Millis([50, 500, 5_000][rng.random_range(0..3)]),
            dedupe_keys_max: small(rng, 4),
            key_bytes_max: seldom(rng, 6) as usize,
            message_bytes_max: (seldom(rng, 200) + 20) as usize,
            idempotency_key_bytes_max: seldom(rng, 4) as usize,
            id_bytes_max: seldom(rng, 4) as usize,
            metadata_bytes_max: (seldom(rng, 150) + 20) as usize,
            error_text_bytes_max: seldom(rng, 6) as usize,
            partitions_max: seldom(rng, 4) as u32,
            topics_max: seldom(rng, 4) as usize,
            groups_max: small(rng, 3) as usize,
            consumers_max: small(rng, 5) as usize,
            retry_after: Millis(7),
            retention_age: rng.random_bool(0.5).then(|| Millis(rng.random_range(0..400))),
            retention_bytes: None,
            retained_bytes_max: if rng.random_bool(0.5) { rng.random_range(0..2_000) } else { u64::MAX },
            group_idle: rng.random_bool(0.7).then(|| Millis(rng.random_range(0..200))),
            group_idle_max: Millis(rng.random_range(0..2_000)),
            ..Limits::production()
        };
        let actions = rng.random_range(20..250);
        (Self { crash, disk, time, weights, topics, partitions }, limits, actions)
    }
}

impl Workload {
    /// Many produces and few acks, with space for sixty messages per topic.
    pub(crate) fn crowded() -> (Self, Limits) {
        let weights = [60, 20, 4, 1, 0, 1, 0, 2, 0, 0, 0, 1, 2, 2, 2, 0, 0, 0];
        let limits = Limits { in_flight_max: 4, partition_messages_max: 15, ..Limits::production() };
        (Self { crash: 1, disk: 10, time: 60, weights, topics: 4, partitions: 4 }, limits)
    }
}

impl<F: Faults> World<F> {
    fn below(&mut self, end: u64) -> u64 {
        self.rng.random_range(0..end)
    }

    fn maybe<T>(&mut self, probability: f64, draw: impl FnOnce(&mut Self) -> T) -> Option<T> {
        if self.rng.random_bool(probability) { Some(draw(self)) } else { None }
    }

    fn millis(&mut self, end: u64) -> Millis {
        Millis(self.below(end))
    }

    fn topic(&mut self) -> TopicName {
        let at = if self.rng.random_bool(0.5) { 0 } else { self.rng.random_range(0..self.workload.topics) };
        TopicName::new(TOPICS[at]).expect("valid name")
    }

    fn group(&mut self) -> GroupName {
        let at = self.below(GROUPS.len() as u64) as usize;
        GroupName::new(GROUPS[at]).expect("valid name")
    }

    fn start(&mut self) -> GroupStart {
        if self.rng.random_bool(0.25) { GroupStart::Latest } else { GroupStart::Earliest }
    }

    fn partition(&mut self) -> PartitionId {
        PartitionId(self.rng.random_range(0..=self.workload.partitions))
    }

    fn offset(&mut self) -> Offset {
        let end = if self.rng.random_bool(0.8) { 12 } else { 60 };
        Offset(self.below(end))
    }

    fn stream(&mut self) -> ConsumerId {
        let at = self.below(self.streams.len() as u64 + 1) as usize;
        self.streams.get(at).map_or(ConsumerId(99), |(id, _)| *id)
    }

    /// The usual topics and a stream.
    pub(crate) fn draw_setup(&mut self) -> Vec<Command> {
        let mut commands = Vec::new();
        for name in &TOPICS[..self.workload.topics] {
            if self.rng.random_bool(0.7) {
                commands.push(self.draw_topic(TopicName::new(name).expect("valid name")));
            }
        }
        let (topic, group) = (self.topic(), self.group());
        commands.push(self.draw_subscribe(topic, group));
        commands
    }

    fn draw_topic(&mut self, name: TopicName) -> Command {
        Command::CreateTopic(CreateTopic {
            name,
            partitions: self.maybe(0.8, |world| world.rng.random_range(0..=world.workload.partitions)),
            retention: Retention {
                age: self.maybe(0.25, |world| world.millis(80)),
                bytes: self.maybe(0.25, |world| world.below(80)),
            },
        })
    }

    fn draw_subscribe(&mut self, topic: TopicName, group: GroupName) -> Command {
        Command::Subscribe(Subscribe {
            topic,
            group,
            owner: OwnerName::new(OWNERS[self.below(2) as usize]).expect("valid name"),
            lease: self.maybe(0.8, |world| world.millis(400)),
            prefetch: self.below(5) as u32,
            deliveries_max: self.maybe(0.15, |world| world.below(4)),
            start: self.start(),
            on_disconnect: if self.rng.random_bool(0.5) { OnDisconnect::Release } else { OnDisconnect::Keep },
            group_lifetime: match self.rng.random_bool(0.2) {
                true => GroupLifetime::Ephemeral,
                false => GroupLifetime::Durable,
            },
        })
    }

    pub(crate) fn draw_command(&mut self) -> Command {
        let weights = self.workload.weights;
        let mut at = self.rng.random_range(0..weights.iter().sum());
        let kind = weights.iter().position(|weight| {
            let is_hit = at < *weight;
            at = at.saturating_sub(*weight);
            is_hit
        });
        let (topic, group) = (self.topic(), self.group());
        match kind.expect("one of the weights is hit") {
            0 => Command::Produce(Box::new(self.draw_produce(topic))),
            1 => self.draw_settle(),
            2 => self.draw_subscribe(topic, group),
            3 => Command::SetPrefetch(SetPrefetch { consumer: self.stream(), prefetch: self.below(4) as u32 }),
            4 if self.below(2) == 0 => Command::CloseStream(CloseStream { consumer: self.stream() }),
            4 => Command::Unsubscribe(Unsubscribe { consumer: self.stream() }),
            5 => self.draw_topic(topic),
            6 => Command::DeleteTopic(DeleteTopic { name: topic }),
            7 => Command::CreateGroup(CreateGroup { topic, group, start: self.start() }),
            8 => Command::DeleteGroup(DeleteGroup { topic, group }),
            9 => Command::Seek(Seek {
                topic,
                group,
                to: match self.below(5) {
                    0 | 1 => SeekTo::Earliest,
                    2 => SeekTo::Latest,
                    3 => SeekTo::Offset(self.offset()),
                    _ => SeekTo::Time(Timestamp(self.now.0 - self.below(300))),
                },
            }),
            10 => Command::Pause(Pause { topic, group }),
            11 => Command::Resume(Resume { topic, group }),
            12 => Command::Redrive(Redrive {
                topic,
                which: match self.rng.random_bool(0.6) {
                    true if self.below(3) == 0 => RedriveSelection::Rest(RedriveRest {
                        dead_topic: TopicId(self.below(3) as u32),
                        from: self.offset(),
                        below: self.offset(),
                    }),
                    true => RedriveSelection::All,
                    false => RedriveSelection::Offsets((0..self.below(4)).map(|_| self.offset()).collect()),
                },
                limit: self.below(4),
            }),
            13 => Command::Peek(Peek {
                topic,
                partition: self.partition(),
                offset: self.offset(),
                limit: self.below(12) as usize,
            }),
            14 | 15 => Command::DescribeTopic(DescribeTopic { name: topic }),
            16 => Command::ListTopics(ListTopics::default()),
            _ => Command::ListGroups(ListGroups { topic }),
        }
    }

    fn draw_produce(&mut self, topic: TopicName) -> Produce {
        let number = self.next_number;
        self.next_number += 1;
        let value = format!("{number}{}", ".".repeat(self.below(20) as usize));
        let value = if self.rng.random_bool(0.01) { String::new() } else { value };
        let mut produce = Produce::new(topic, KEYS[self.below(4) as usize], value);
        let now = self.now;
        let plain = self.rng.random_bool(0.3);
        if plain {
            return produce;
        }
        produce.delay = self.maybe(0.15, |world| world.millis(90));
        produce.routing = self.maybe(0.15, |world| RoutingDecision {
            routing: Routing {
                label: ["", "hot"][world.below(2) as usize].into(),
                meta: (0..world.below(3)).map(|n| (format!("m{n}").into(), "v".into())).collect(),
            },
            target_topic: world.maybe(0.5, Self::topic),
            partition_override: world.maybe(0.5, Self::partition),
        });
        produce.trace = self.maybe(0.1, |_| "00-trace".into());
        let envelope = &mut produce.envelope;
        envelope.run_id = self.maybe(0.1, |_| "run".into());
        envelope.step_id = self.maybe(0.1, |_| "step".into());
        envelope.parent_step_id = self.maybe(0.05, |_| "".into());
        envelope.tenant_id = self.maybe(0.15, |world| ["", "default", "t"][world.below(3) as usize].into());
        envelope.idempotency_key =
            self.maybe(0.35, |world| ["", "one", "two", "three"][world.below(4) as usize].into());
        envelope.target_topic = self.maybe(0.1, Self::topic);
        envelope.partition_override = self.maybe(0.15, Self::partition);
        envelope.deadline = self.maybe(0.2, |world| {
            let at = Timestamp(now.0 + world.below(150));
            Deadline { at, text: at.to_string().into() }
        });
        envelope.retry_policy = self.maybe(0.6, |world| RetryPolicy {
            max_attempts: [0, 1, 1, 2, 3][world.below(5) as usize],
            backoff: world.millis(60),
            max_backoff: world.millis(120),
        });
        envelope.priority = self.maybe(0.3, |world| Priority::new(world.below(10) as u8).expect("valid priority"));
        envelope.deliver_at = self.maybe(0.1, |world| Timestamp(now.0 - 20 + world.below(100)));
        envelope.labels = (0..self.below(8).saturating_sub(6)).map(|n| (format!("l{n}").into(), "x".into())).collect();
        produce
    }

    fn draw_settle(&mut self) -> Command {
        let claim = self.draw_claim();
        match self.below(14) {
            12 => {
                let Claim { topic, group, partition, offset, owner, .. } = claim;
                Command::AckCumulative(AckCumulative { topic, group, partition, offset, owner })
            }
            13 => {
                let Claim { topic, group, partition, offset, .. } = claim;
                Command::ExpireLease(ExpireLease { topic, group, partition, offset })
            }
            0..=4 => Command::Ack(Ack(claim)),
            5..=8 => Command::Nack(Nack {
                claim,
                reason: REASONS[self.below(4) as usize].into(),
                retry: match self.below(8) {
                    0 => Retry::Never,
                    _ => Retry::after(self.maybe(0.2, |world| world.millis(80))),
                },
            }),
            9 => Command::Extend(Extend { claim, lease: self.maybe(0.8, |world| world.millis(150)) }),
            _ => Command::Release(Release(claim)),
        }
    }

    fn draw_claim(&mut self) -> Claim {
        let end = if self.rng.random_bool(0.8) { 4 } else { 100 };
        let (back, foreign) = (self.below(end) as usize, self.below(5) as usize);
        let count = self.held.len();
        let Some(held) = self.held.get(count.wrapping_sub(1 + back)).cloned() else {
            return Claim {
                topic: self.topic(),
                group: self.group(),
                partition: self.partition(),
                offset: self.offset(),
                owner: OwnerName::new("v").expect("valid name"),
                token: if self.rng.random_bool(0.5) { TokenClaim::Absent } else { TokenClaim::Unreadable },
            };
        };
        let other =
            self.held.get(count.wrapping_sub(1 + foreign)).map_or(held.delivery.token, |held| held.delivery.token);
        let mut claim = Claim {
            topic: held.topic,
            group: held.group,
            partition: held.delivery.partition,
            offset: held.delivery.offset,
            owner: held.owner,
            token: TokenClaim::Shown(held.delivery.token),
        };
        match self.below(20) {
            0 | 1 => claim.token = TokenClaim::Absent,
            2 => claim.token = TokenClaim::Unreadable,
            3 => claim.token = TokenClaim::Shown(other),
            4 => claim.owner = OwnerName::new("x").expect("valid name"),
            5 => claim.partition = self.partition(),
            6 => (claim.offset, claim.token) = (self.offset(), TokenClaim::Absent),
            7 => claim.group = self.group(),
            8 => claim.topic = self.topic(),
            _ => {}
        }
        claim
    }
}
