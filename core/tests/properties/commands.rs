//! From the numbers in a step to the names, offsets and tokens of a command.

use driftq_core::Command;
use driftq_core::command::{Claim, OnDisconnect, Produce, Redrivable, SeekTo, Subscribe, TokenClaim};
use driftq_core::faults::Faults;
use driftq_core::record::{GroupStart, Retention};
use driftq_core::types::*;

use super::steps::{Made, Step, Target, Twist, Word};
use super::world::{Held, World};

const TOPICS: [&str; 4] = ["a", "b", "dlq.a", "dlq.b"];
const GROUPS: [&str; 2] = ["g", "h"];
const OWNERS: [&str; 2] = ["v", "w"];
const KEYS: [&str; 4] = ["", "k", "user:1", "other"];
const REASONS: [&str; 4] = ["", "bad", "ack_timeout", "worse"];

impl<F: Faults> World<F> {
    /// The command that a step is, if it is one and names something that is there.
    pub(super) fn command(&mut self, step: &Step) -> Option<Command> {
        Some(match step {
            Step::CreateTopic { topic, partitions, retention } => Command::CreateTopic {
                name: topic_name(*topic),
                partitions: (*partitions > 0).then_some(u32::from(*partitions)),
                retention: Retention {
                    age: [None, Some(Millis(40)), Some(Millis(40)), Some(Millis(0))]
                        .get(usize::from(*retention))
                        .copied()
                        .flatten(),
                    bytes: [None, None, Some(30), None, Some(0), Some(60)]
                        .get(usize::from(*retention))
                        .copied()
                        .flatten(),
                },
            },
            Step::DeleteTopic(topic) => Command::DeleteTopic { name: topic_name(*topic) },
            Step::CreateGroup { topic, group, latest } => {
                Command::CreateGroup { topic: topic_name(*topic), group: group_name(*group), start: start(*latest) }
            }
            Step::DeleteGroup { topic, group } => {
                Command::DeleteGroup { topic: topic_name(*topic), group: group_name(*group) }
            }
            Step::Produce(made) => Command::Produce(Box::new(self.produce(made))),
            Step::Subscribe { topic, group, owner, lease, prefetch, most, latest, release } => {
                Command::Subscribe(Subscribe {
                    topic: topic_name(*topic),
                    group: group_name(*group),
                    owner: OwnerName::new(OWNERS[usize::from(*owner) % OWNERS.len()]).expect("a name"),
                    lease: Some(Millis(u64::from(*lease))),
                    prefetch: u32::from(*prefetch),
                    deliveries_max: most.map(u64::from),
                    start: start(*latest),
                    on_disconnect: if *release { OnDisconnect::Release } else { OnDisconnect::Keep },
                })
            }
            Step::Unsubscribe(stream) => Command::Unsubscribe { consumer: self.stream(*stream)? },
            Step::SetPrefetch { stream, prefetch } => {
                Command::SetPrefetch { consumer: self.stream(*stream)?, prefetch: u32::from(*prefetch) }
            }
            Step::Say { word, nth, twist } => {
                let claim = self.claim(*nth, *twist)?;
                match word {
                    Word::Ack => Command::Ack(claim),
                    Word::Release => Command::Release(claim),
                    Word::Nack { reason, delay } => Command::Nack {
                        claim,
                        reason: REASONS[usize::from(*reason) % REASONS.len()].into(),
                        delay: delay.map(|delay| Millis(u64::from(delay))),
                    },
                    Word::Extend { lease } => {
                        Command::Extend { claim, lease: lease.map(|lease| Millis(u64::from(lease))) }
                    }
                }
            }
            Step::Seek { topic, group, to } => Command::Seek {
                topic: topic_name(*topic),
                group: group_name(*group),
                to: match to {
                    Target::Earliest => SeekTo::Earliest,
                    Target::Latest => SeekTo::Latest,
                    Target::Offset(offset) => SeekTo::Offset(Offset(u64::from(*offset))),
                    Target::Ago(span) => SeekTo::Time(Timestamp(self.now.0 - u64::from(*span))),
                },
            },
            Step::Pause { topic, group } => Command::Pause { topic: topic_name(*topic), group: group_name(*group) },
            Step::Resume { topic, group } => Command::Resume { topic: topic_name(*topic), group: group_name(*group) },
            Step::Redrive { topic, offset, limit } => Command::Redrive {
                topic: topic_name(*topic),
                which: offset.map_or(Redrivable::All, |offset| {
                    Redrivable::Offsets(vec![Offset(u64::from(offset)), Offset(u64::from(offset))])
                }),
                limit: u64::from(*limit),
            },
            Step::Peek { topic, partition, offset } => Command::Peek {
                topic: topic_name(*topic),
                partition: PartitionId(u32::from(*partition)),
                offset: Offset(u64::from(*offset)),
                limit: 5,
            },
            Step::Describe(topic) => Command::DescribeTopic { name: topic_name(*topic) },
            Step::List(0) => Command::ListTopics,
            Step::List(topic) => Command::ListGroups { topic: topic_name(*topic) },
            _ => return None,
        })
    }

    fn produce(&mut self, made: &Made) -> Produce {
        let number = self.next_number;
        self.next_number += 1;
        let value = format!("{number}{}", ".".repeat(usize::from(made.size)));
        let now = self.pipeline.broker().now();
        let mut asked = Produce::new(topic_name(made.topic), KEYS[usize::from(made.key) % KEYS.len()], value);
        let envelope = &mut asked.envelope;
        envelope.priority = made.priority.and_then(Priority::new);
        envelope.deliver_at = made.deliver_in.map(|span| now.after(Millis(u64::from(span))));
        envelope.deadline = made.deadline.map(|span| {
            let at = now.after(Millis(u64::from(span)));
            Deadline { at, text: at.to_string().into() }
        });
        envelope.retry_policy = made.policy.map(|(most, backoff, longest)| RetryPolicy {
            max_attempts: u32::from(most),
            backoff: Millis(u64::from(backoff)),
            max_backoff: Millis(u64::from(longest)),
        });
        envelope.idempotency_key = made.identity.map(|key| ["", "one", "two"][usize::from(key) % 3].into());
        envelope.tenant_id = made.tenant.map(|tenant| ["", "default", "t"][usize::from(tenant) % 3].into());
        envelope.target_topic = made.target.map(topic_name);
        envelope.partition_override = made.partition.map(|partition| PartitionId(u32::from(partition)));
        asked.delay = made.delay.map(|delay| Millis(u64::from(delay)));
        asked.routing = made.router.map(|(target, partition)| RoutingDecision {
            routing: Routing { label: "r".into(), meta: Default::default() },
            target_topic: target.map(topic_name),
            partition_override: partition.map(|partition| PartitionId(u32::from(partition))),
        });
        asked.trace = made.router.map(|_| "trace".into());
        asked
    }

    fn stream(&self, nth: u8) -> Option<ConsumerId> {
        let count = self.streams.len();
        (count > 0).then(|| self.streams[count - 1 - usize::from(nth) % count].0)
    }

    /// A claim on the `nth` delivery, counted back from the newest.
    pub(super) fn claim(&self, nth: u8, twist: Twist) -> Option<Claim> {
        let count = self.held.len();
        let held = |nth: u8| &self.held[count - 1 - usize::from(nth) % count];
        if count == 0 {
            return None;
        }
        let Held { topic, group, owner, delivery } = held(nth).clone();
        let (partition, offset, token) = (delivery.partition, delivery.offset, TokenClaim::Shown(delivery.token));
        let claim = Claim { topic, group, partition, offset, owner, token };
        Some(match twist {
            Twist::Honest => claim,
            Twist::NoToken => Claim { token: TokenClaim::Absent, ..claim },
            Twist::Unreadable => Claim { token: TokenClaim::Unreadable, ..claim },
            Twist::Foreign(nth) => Claim { token: TokenClaim::Shown(held(nth).delivery.token), ..claim },
            Twist::WrongOwner => Claim { owner: OwnerName::new("x").expect("a name"), ..claim },
            Twist::WrongPartition => Claim { partition: partition.next(), ..claim },
            Twist::WrongOffset => Claim { offset: offset.next(), token: TokenClaim::Absent, ..claim },
            Twist::WrongGroup => {
                let other = GROUPS.iter().find(|name| **name != claim.group.as_str()).expect("two groups");
                Claim { group: GroupName::new(other).expect("a name"), ..claim }
            }
        })
    }
}

fn topic_name(nth: u8) -> TopicName {
    TopicName::new(TOPICS[usize::from(nth) % TOPICS.len()]).expect("a name")
}

fn group_name(nth: u8) -> GroupName {
    GroupName::new(GROUPS[usize::from(nth) % GROUPS.len()]).expect("a name")
}

fn start(latest: bool) -> GroupStart {
    if latest { GroupStart::Latest } else { GroupStart::Earliest }
}
