//! What is not durable is rebuilt: a broker that was restarted hands out what the one that was not would have.

use std::collections::BTreeMap;

use driftq_core::command::{OnDisconnect, RedriveSelection, SeekTo};
use driftq_core::faults::NoFaults;
use driftq_core::record::Retention;
use driftq_core::reply::Delivery;
use driftq_core::types::*;
use driftq_core::{Command, PipelineConfig};
use proptest::prelude::*;

use super::rig::*;

#[derive(Clone, Debug)]
enum IoOp {
    Produce { partition: u32, priority: u8, delay: Option<u64>, attempts: Option<u32>, deadline: Option<u64> },
    Subscribe { name: usize, prefetch: u32, release: bool },
    Unsubscribe { which: usize },
    Settle { which: usize, how: u8 },
    Pass { millis: u64 },
    Seek { name: usize, to: u64 },
    Pause { name: usize },
    Resume { name: usize },
    Create { name: usize, latest: bool },
    Delete { name: usize },
    Redrive { limit: u64 },
}

const GROUPS: [(&str, &str); 4] = [("t", "g"), ("t", "h"), ("t", "i"), ("dlq.t", "ops")];

fn step() -> impl Strategy<Value = IoOp> {
    let name = 0..GROUPS.len();
    let delay = prop::option::weighted(0.2, prop_oneof![Just(0), 1..3_000_u64]);
    let attempts = prop::option::weighted(0.4, 0..3_u32);
    let deadline = prop::option::weighted(0.1, 3_000..6_000_u64);
    let priority = prop_oneof![3 => Just(0), 1 => 1..10_u8];
    prop_oneof![
        6 => (0..2_u32, priority, delay, attempts, deadline).prop_map(|(partition, priority, delay, attempts, deadline)| {
            IoOp::Produce { partition, priority, delay, attempts, deadline }
        }),
        3 => (name.clone(), 0..4_u32, any::<bool>())
            .prop_map(|(name, prefetch, release)| IoOp::Subscribe { name, prefetch, release }),
        1 => any::<usize>().prop_map(|which| IoOp::Unsubscribe { which }),
        8 => (any::<usize>(), 0..8_u8).prop_map(|(which, how)| IoOp::Settle { which, how }),
        4 => prop_oneof![0..10_u64, 0..3_000_u64].prop_map(|millis| IoOp::Pass { millis }),
        1 => (name.clone(), 0..12_u64).prop_map(|(name, to)| IoOp::Seek { name, to }),
        1 => name.clone().prop_map(|name| IoOp::Pause { name }),
        1 => name.clone().prop_map(|name| IoOp::Resume { name }),
        1 => (name.clone(), any::<bool>()).prop_map(|(name, latest)| IoOp::Create { name, latest }),
        1 => name.prop_map(|name| IoOp::Delete { name }),
        1 => (1..3_u64).prop_map(|limit| IoOp::Redrive { limit }),
    ]
}

/// A rig with its streams and what they hold.
struct World {
    rig: Rig,
    streams: BTreeMap<ConsumerId, usize>,
    held: Vec<(usize, Delivery)>,
}

impl World {
    fn new(retention: Retention) -> Self {
        let mut config = PipelineConfig { segment_bytes: 1 << 20, ..small_config() };
        config.limits.in_flight_max = 3;
        config.limits.partition_messages_max = 12;
        let mut rig = Rig::with(config, NoFaults);
        rig.send(Command::CreateTopic { name: topic("t"), partitions: Some(2), retention }).unwrap();
        Self { rig, streams: BTreeMap::new(), held: Vec::new() }
    }

    /// Refusals are part of the play; what is checked is what comes of it.
    fn take(&mut self, step: &IoOp) {
        match step.clone() {
            IoOp::Produce { partition, priority, delay, attempts, deadline: due } => {
                let mut asked = driftq_core::command::Produce::new(topic("t"), "", "v");
                asked.envelope.partition_override = Some(PartitionId(partition));
                asked.envelope.priority = Priority::new(priority);
                asked.delay = delay.map(Millis);
                asked.envelope.retry_policy = attempts.map(|attempts| policy(attempts, 200, 0));
                asked.envelope.deadline = due.and_then(|due| deadline(self.rig.now.after(Millis(due))));
                let _ = self.rig.try_produce(asked);
            }
            IoOp::Subscribe { name, prefetch, release } => {
                let (of, to) = GROUPS[name];
                let mut asked = subscribe(of, to, "w");
                asked.prefetch = prefetch;
                asked.on_disconnect = if release { OnDisconnect::Release } else { OnDisconnect::Keep };
                if let Ok(driftq_core::Reply::Subscribed { consumer }) = self.rig.send(Command::Subscribe(asked)) {
                    self.streams.insert(consumer, name);
                }
            }
            IoOp::Unsubscribe { which } => {
                let stream = self.streams.keys().nth(which % self.streams.len().max(1)).copied();
                if let Some(consumer) = stream {
                    let _ = self.rig.send(Command::Unsubscribe { consumer });
                }
            }
            IoOp::Settle { which, how } => self.settle(which, how),
            IoOp::Pass { millis } => self.rig.pass(millis),
            IoOp::Seek { name, to } => {
                let to = match to {
                    0 => SeekTo::Earliest,
                    1 => SeekTo::Latest,
                    other => SeekTo::Offset(Offset(other - 2)),
                };
                let _ = self.rig.seek(GROUPS[name].0, GROUPS[name].1, to);
            }
            IoOp::Pause { name } => drop(self.rig.send(Command::Pause { topic: of(name), group: named(name) })),
            IoOp::Resume { name } => drop(self.rig.send(Command::Resume { topic: of(name), group: named(name) })),
            IoOp::Create { name, latest } => {
                let start = if latest { driftq_core::record::GroupStart::Latest } else { Default::default() };
                let _ = self.rig.send(Command::CreateGroup { topic: of(name), group: named(name), start });
            }
            IoOp::Delete { name } => drop(self.rig.send(Command::DeleteGroup { topic: of(name), group: named(name) })),
            IoOp::Redrive { limit } => {
                let _ = self.rig.send(Command::Redrive { topic: topic("t"), which: RedriveSelection::All, limit });
            }
        }
        for (consumer, delivery) in std::mem::take(&mut self.rig.deliveries) {
            self.held.push((self.streams[&consumer], delivery));
        }
    }

    fn settle(&mut self, which: usize, how: u8) {
        if self.held.is_empty() {
            return;
        }
        let (name, delivery) = self.held.swap_remove(which % self.held.len());
        let claim = claim(GROUPS[name].0, GROUPS[name].1, "w", &delivery);
        let _ = match how {
            0 => self.rig.nack(claim, "no"),
            1 => self.rig.nack_with_delay(claim, 700),
            2 => self.rig.extend(claim, Some(1_000)).map(drop),
            3 => self.rig.release(claim),
            _ => self.rig.ack(claim),
        };
    }

    /// Sends every stream away and lets one per group, which is never full, take all it can get, now and later.
    fn drain(mut self) -> Vec<BTreeMap<(usize, PartitionId), Vec<String>>> {
        let mut rounds = Vec::new();
        for (name, (of, to)) in GROUPS.into_iter().enumerate() {
            let _ = self.rig.send(Command::Resume { topic: topic(of), group: group(to) });
            let mut asked = subscribe(of, to, "drain");
            asked.prefetch = 1_000;
            if let Ok(driftq_core::Reply::Subscribed { consumer }) = self.rig.send(Command::Subscribe(asked)) {
                self.streams.insert(consumer, name);
            }
        }
        for millis in [0, 50, 500, 2_000, 10_000] {
            self.rig.pass(millis);
            let mut seen: BTreeMap<_, Vec<_>> = BTreeMap::new();
            for (consumer, d) in std::mem::take(&mut self.rig.deliveries) {
                let told = format!("{} {} {} {}", d.offset, d.attempts, d.failures, d.last_error.as_str());
                seen.entry((self.streams[&consumer], d.partition)).or_default().push(told);
            }
            rounds.push(seen);
        }
        rounds
    }
}

fn of(name: usize) -> TopicName {
    topic(GROUPS[name].0)
}

fn named(name: usize) -> GroupName {
    group(GROUPS[name].1)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_restarted_broker_hands_out_what_the_other_would_have(
        steps in prop::collection::vec(step(), 1..60),
        age in prop::option::of(500..5_000_u64),
        snapshot in any::<bool>(),
    ) {
        let retention = Retention { age: age.map(Millis), bytes: None };
        let mut steady = World::new(retention);
        let mut shaken = World::new(retention);
        for step in &steps {
            steady.take(step);
            shaken.take(step);
        }
        prop_assert_eq!(steady.rig.digest(), shaken.rig.digest());
        let streams: Vec<_> = steady.streams.keys().copied().collect();
        for consumer in streams {
            // Without the wish to give leases back, which a crash does not hear.
            steady.rig.pipeline.handle(steady.rig.now, Command::SetPrefetch { consumer, prefetch: 0 });
        }
        steady.rig.settle();
        shaken.rig.restart(if snapshot { Restart::Snapshot } else { Restart::Crash });
        shaken.streams.clear();
        let (mut steady, mut shaken) = (steady.drain(), shaken.drain());
        if steps.iter().any(|step| matches!(step, IoOp::Produce { deadline: Some(_), .. })) {
            // Whose turn it is, is forgotten: messages past their deadline may die in another order.
            let dead_letters = GROUPS.len() - 1;
            for round in steady.iter_mut().chain(&mut shaken) {
                round.retain(|(name, _), _| *name != dead_letters);
            }
        }
        prop_assert_eq!(steady, shaken);
    }
}
