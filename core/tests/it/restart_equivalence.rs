//! Volatile state is rebuilt at start: a restarted broker delivers what an uninterrupted one would.

use std::collections::BTreeMap;

use driftq_core::command::{CreateGroup, CreateTopic, DeleteGroup, Pause, Redrive, Resume, SetPrefetch, Unsubscribe};
use driftq_core::command::{OnDisconnect, RedriveSelection, SeekTo};
use driftq_core::faults::NoFaults;
use driftq_core::reply::Delivery;
use driftq_core::types::{Retention, *};
use driftq_core::{Command, PipelineConfig};
use proptest::prelude::*;

use super::test_broker::*;

#[derive(Clone, Debug)]
enum Action {
    Produce { partition: u32, priority: u8, delay: Option<u64>, attempts: Option<u32>, deadline: Option<u64> },
    Subscribe { group_index: usize, prefetch: u32, release: bool },
    Unsubscribe { which: usize },
    Settle { which: usize, how: u8 },
    Advance { millis: u64 },
    Seek { group_index: usize, to: u64 },
    Pause { group_index: usize },
    Resume { group_index: usize },
    Create { group_index: usize, latest: bool },
    Delete { group_index: usize },
    Redrive { limit: u64 },
}

const GROUPS: [(&str, &str); 4] = [("t", "g"), ("t", "h"), ("t", "i"), ("dlq.t", "ops")];

fn action() -> impl Strategy<Value = Action> {
    let group_index = 0..GROUPS.len();
    let delay = prop::option::weighted(0.2, prop_oneof![Just(0), 1..3_000_u64]);
    let attempts = prop::option::weighted(0.4, 0..3_u32);
    let deadline = prop::option::weighted(0.1, 3_000..6_000_u64);
    let priority = prop_oneof![3 => Just(0), 1 => 1..10_u8];
    prop_oneof![
        6 => (0..2_u32, priority, delay, attempts, deadline).prop_map(|(partition, priority, delay, attempts, deadline)| {
            Action::Produce { partition, priority, delay, attempts, deadline }
        }),
        3 => (group_index.clone(), 0..4_u32, any::<bool>())
            .prop_map(|(group_index, prefetch, release)| Action::Subscribe { group_index, prefetch, release }),
        1 => any::<usize>().prop_map(|which| Action::Unsubscribe { which }),
        8 => (any::<usize>(), 0..8_u8).prop_map(|(which, how)| Action::Settle { which, how }),
        4 => prop_oneof![0..10_u64, 0..3_000_u64].prop_map(|millis| Action::Advance { millis }),
        1 => (group_index.clone(), 0..12_u64).prop_map(|(group_index, to)| Action::Seek { group_index, to }),
        1 => group_index.clone().prop_map(|group_index| Action::Pause { group_index }),
        1 => group_index.clone().prop_map(|group_index| Action::Resume { group_index }),
        1 => (group_index.clone(), any::<bool>()).prop_map(|(group_index, latest)| Action::Create { group_index, latest }),
        1 => group_index.prop_map(|group_index| Action::Delete { group_index }),
        1 => (1..3_u64).prop_map(|limit| Action::Redrive { limit }),
    ]
}

/// A broker with its streams and their unsettled deliveries.
struct Fixture {
    broker: TestBroker,
    streams: BTreeMap<ConsumerId, usize>,
    held: Vec<(usize, Delivery)>,
}

impl Fixture {
    fn new(retention: Retention) -> Self {
        let mut config = PipelineConfig { segment_bytes: 1 << 20, ..small_config() };
        config.limits.in_flight_max = 3;
        config.limits.partition_messages_max = 12;
        // Credit and the order of unanswered deliveries are not durable.
        config.limits.adaptive_credit = false;
        let mut broker = TestBroker::with(config, NoFaults);
        broker.send(Command::CreateTopic(CreateTopic { name: topic("t"), partitions: Some(2), retention })).unwrap();
        Self { broker, streams: BTreeMap::new(), held: Vec::new() }
    }

    /// Refusals are expected and ignored; only the deliveries afterwards are compared.
    fn perform(&mut self, action: &Action) {
        match action.clone() {
            Action::Produce { partition, priority, delay, attempts, deadline: due } => {
                let mut request = driftq_core::command::Produce::new(topic("t"), "", "v");
                request.envelope.partition_override = Some(PartitionId(partition));
                request.envelope.priority = Priority::new(priority);
                request.delay = delay.map(Millis);
                request.envelope.retry_policy = attempts.map(|attempts| policy(attempts, 200, 0));
                request.envelope.deadline = due.and_then(|due| deadline(self.broker.now.after(Millis(due))));
                let _ = self.broker.try_produce(request);
            }
            Action::Subscribe { group_index, prefetch, release } => {
                let (topic_name, group_name) = GROUPS[group_index];
                let mut request = subscribe(topic_name, group_name, "w");
                request.prefetch = prefetch;
                request.on_disconnect = if release { OnDisconnect::Release } else { OnDisconnect::Keep };
                if let Ok(driftq_core::Reply::Subscribed { consumer }) = self.broker.send(Command::Subscribe(request)) {
                    self.streams.insert(consumer, group_index);
                }
            }
            Action::Unsubscribe { which } => {
                let stream = self.streams.keys().nth(which % self.streams.len().max(1)).copied();
                if let Some(consumer) = stream {
                    let _ = self.broker.send(Command::Unsubscribe(Unsubscribe { consumer }));
                }
            }
            Action::Settle { which, how } => self.settle(which, how),
            Action::Advance { millis } => self.broker.advance(millis),
            Action::Seek { group_index, to } => {
                let to = match to {
                    0 => SeekTo::Earliest,
                    1 => SeekTo::Latest,
                    other => SeekTo::Offset(Offset(other - 2)),
                };
                let _ = self.broker.seek(GROUPS[group_index].0, GROUPS[group_index].1, to);
            }
            Action::Pause { group_index } => {
                drop(
                    self.broker
                        .send(Command::Pause(Pause { topic: topic_of(group_index), group: group_of(group_index) })),
                );
            }
            Action::Resume { group_index } => {
                drop(
                    self.broker
                        .send(Command::Resume(Resume { topic: topic_of(group_index), group: group_of(group_index) })),
                );
            }
            Action::Create { group_index, latest } => {
                let start = if latest { driftq_core::types::GroupStart::Latest } else { Default::default() };
                let _ = self.broker.send(Command::CreateGroup(CreateGroup {
                    topic: topic_of(group_index),
                    group: group_of(group_index),
                    start,
                }));
            }
            Action::Delete { group_index } => drop(self.broker.send(Command::DeleteGroup(DeleteGroup {
                topic: topic_of(group_index),
                group: group_of(group_index),
            }))),
            Action::Redrive { limit } => {
                let _ = self.broker.send(Command::Redrive(Redrive {
                    topic: topic("t"),
                    which: RedriveSelection::All,
                    limit,
                }));
            }
        }
        for (consumer, delivery) in std::mem::take(&mut self.broker.deliveries) {
            self.held.push((self.streams[&consumer], delivery));
        }
    }

    fn settle(&mut self, which: usize, how: u8) {
        if self.held.is_empty() {
            return;
        }
        let (group_index, delivery) = self.held.swap_remove(which % self.held.len());
        let claim = claim(GROUPS[group_index].0, GROUPS[group_index].1, "w", &delivery);
        let _ = match how {
            0 => self.broker.nack(claim, "no"),
            1 => self.broker.nack_with_delay(claim, 700),
            2 => self.broker.extend(claim, Some(1_000)).map(drop),
            3 => self.broker.release(claim),
            _ => self.broker.ack(claim),
        };
    }

    /// Subscribes one stream with ample credit per group and collects what it receives at once and over time.
    fn drain(mut self) -> Vec<BTreeMap<(usize, PartitionId), Vec<String>>> {
        let mut rounds = Vec::new();
        for (group_index, (topic_name, group_name)) in GROUPS.into_iter().enumerate() {
            let _ = self.broker.send(Command::Resume(Resume { topic: topic(topic_name), group: group(group_name) }));
            let mut request = subscribe(topic_name, group_name, "drain");
            request.prefetch = 1_000;
            if let Ok(driftq_core::Reply::Subscribed { consumer }) = self.broker.send(Command::Subscribe(request)) {
                self.streams.insert(consumer, group_index);
            }
        }
        for millis in [0, 50, 500, 2_000, 10_000] {
            self.broker.advance(millis);
            let mut seen: BTreeMap<_, Vec<_>> = BTreeMap::new();
            for (consumer, d) in std::mem::take(&mut self.broker.deliveries) {
                let summary = format!("{} {} {} {}", d.offset, d.attempts, d.failures, d.last_error.as_str());
                seen.entry((self.streams[&consumer], d.partition)).or_default().push(summary);
            }
            rounds.push(seen);
        }
        rounds
    }
}

fn topic_of(group_index: usize) -> TopicName {
    topic(GROUPS[group_index].0)
}

fn group_of(group_index: usize) -> GroupName {
    group(GROUPS[group_index].1)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn restarted_broker_delivers_what_running_one_does(
        actions in prop::collection::vec(action(), 1..60),
        age in prop::option::of(500..5_000_u64),
        snapshot in any::<bool>(),
    ) {
        let retention = Retention { age: age.map(Millis), bytes: None };
        let mut running = Fixture::new(retention);
        let mut restarted = Fixture::new(retention);
        for action in &actions {
            running.perform(action);
            restarted.perform(action);
        }
        prop_assert_eq!(running.broker.digest(), restarted.broker.digest());
        let streams: Vec<_> = running.streams.keys().copied().collect();
        for consumer in streams {
            // Only the credit is taken away: an unsubscribe could release leases, which a crash does not.
            running.broker.pipeline.handle(running.broker.now, Command::SetPrefetch(SetPrefetch { consumer, prefetch: 0 }));
        }
        running.broker.run_until_idle();
        restarted.broker.restart(if snapshot { Restart::Snapshot } else { Restart::Crash });
        restarted.streams.clear();
        let (mut running, mut restarted) = (running.drain(), restarted.drain());
        if actions.iter().any(|action| matches!(action, Action::Produce { deadline: Some(_), .. })) {
            // Turns are not durable: messages past their deadline may be dead-lettered in another order.
            let dead_letters = GROUPS.len() - 1;
            for round in running.iter_mut().chain(&mut restarted) {
                round.retain(|(group_index, _), _| *group_index != dead_letters);
            }
        }
        prop_assert_eq!(running, restarted);
    }
}
