//! Everything a client can ask.

use driftq_sim::names::Message;
use driftq_sim::steps::{Ask, Made, Policy, Right, Router, Stream, Target, Twist};
use proptest::option::weighted;
use proptest::prelude::*;

use super::wild::{count, group, message, moment, offset, partition, partitions, prefetch, span, topic, wait, worker};

/// A message of any kind; its name is to be given.
pub fn made() -> impl Strategy<Value = Made> {
    let place = (topic(), 0..6_u8, weighted(0.05, topic()), weighted(0.1, partition()));
    let size = prop_oneof![12 => 0..20_u8, 1 => any::<u8>()];
    let time = (weighted(0.15, span()), weighted(0.07, moment()), weighted(0.15, moment()));
    let attempts = prop_oneof![2 => Just(1_u32), 4 => 0..3_u32, 1 => Just(u32::MAX)];
    let policy = (attempts, wait(), wait()).prop_map(|(attempts, backoff_ms, longest_ms)| Policy {
        attempts,
        backoff_ms,
        longest_ms,
    });
    let rank = (prop_oneof![8 => Just(0_u8), 2 => 0..10_u8, 1 => any::<u8>()], weighted(0.4, policy));
    let identity = (weighted(0.2, 0..6_u8), prop_oneof![8 => Just(0_u8), 2 => 0..5_u8]);
    let router =
        (weighted(0.5, topic()), weighted(0.5, partition())).prop_map(|(topic, partition)| Router { topic, partition });
    (place, size, time, rank, identity, weighted(0.1, router)).prop_map(
        |(place, size, time, (priority, policy), (identity, tenant), router)| Made {
            message: Message::default(),
            topic: place.0,
            key: place.1,
            size,
            priority,
            delay_ms: time.0,
            deliver_at: time.1,
            deadline: time.2,
            policy,
            identity,
            tenant,
            target: place.2,
            partition: place.3,
            router,
        },
    )
}

/// A stream of any kind.
pub fn stream() -> impl Strategy<Value = Stream> {
    let whose = (worker(), topic(), group(), worker());
    let how = (weighted(0.7, span()), prefetch(), weighted(0.1, count()), weighted(0.15, Just(())), any::<bool>());
    (whose, how).prop_map(|((worker, topic, group, owner), (lease_ms, prefetch, deliveries, latest, release))| {
        let latest = latest.is_some();
        Stream { worker, topic, group, owner, lease_ms, prefetch, deliveries, latest, release }
    })
}

/// By what right a worker speaks, or by none.
pub fn right() -> impl Strategy<Value = Right> {
    let twist = prop_oneof![
        14 => Just(Twist::None),
        2 => Just(Twist::NoToken),
        1 => Just(Twist::Unreadable),
        1 => Just(Twist::WrongOwner),
        1 => Just(Twist::WrongPartition),
        1 => Just(Twist::WrongOffset),
        1 => Just(Twist::WrongGroup),
        1 => Just(Twist::NoGroup),
    ];
    let back = prop_oneof![8 => Just(0_u8), 3 => 1..3_u8, 1 => any::<u8>()];
    (worker(), message(), back, twist).prop_map(|(worker, message, back, twist)| Right { worker, message, back, twist })
}

/// What a worker says about a delivery.
pub fn word() -> impl Strategy<Value = Ask> {
    prop_oneof![
        5 => right().prop_map(Ask::Ack),
        4 => (right(), 0..5_u8, weighted(0.2, span()))
            .prop_map(|(right, reason, delay_ms)| Ask::Nack { right, reason, delay_ms }),
        2 => (right(), weighted(0.8, span())).prop_map(|(right, lease_ms)| Ask::Extend { right, lease_ms }),
        2 => right().prop_map(Ask::Release),
    ]
}

/// What is asked about streams.
pub fn streams() -> impl Strategy<Value = Ask> {
    prop_oneof![
        5 => stream().prop_map(Ask::Subscribe),
        2 => worker().prop_map(|worker| Ask::Leave { worker }),
        1 => (worker(), prefetch()).prop_map(|(worker, to)| Ask::Prefetch { worker, to }),
    ]
}

/// What an operator asks for.
pub fn administration() -> impl Strategy<Value = Ask> {
    let to = prop_oneof![
        2 => Just(Target::Earliest),
        1 => Just(Target::Latest),
        2 => offset().prop_map(Target::Offset),
        2 => moment().prop_map(Target::Time),
    ];
    prop_oneof![
        3 => create(),
        1 => topic().prop_map(|topic| Ask::Delete { topic }),
        2 => (topic(), group(), any::<bool>()).prop_map(|(topic, group, latest)| Ask::CreateGroup { topic, group, latest }),
        2 => (topic(), group()).prop_map(|(topic, group)| Ask::DeleteGroup { topic, group }),
        3 => (topic(), group(), to).prop_map(|(topic, group, to)| Ask::Seek { topic, group, to }),
        2 => (topic(), group()).prop_map(|(topic, group)| Ask::Pause { topic, group }),
        2 => (topic(), group()).prop_map(|(topic, group)| Ask::Resume { topic, group }),
        4 => (topic(), weighted(0.3, offset()), count())
            .prop_map(|(topic, offset, limit)| Ask::Redrive { topic, offset, limit }),
    ]
}

/// A topic is made.
pub fn create() -> impl Strategy<Value = Ask> {
    (topic(), weighted(0.8, partitions()), weighted(0.3, span()), weighted(0.3, span()))
        .prop_map(|(topic, partitions, keep_ms, keep_bytes)| Ask::Create { topic, partitions, keep_ms, keep_bytes })
}

/// What changes nothing.
pub fn looking() -> impl Strategy<Value = Ask> {
    prop_oneof![
        Just(Ask::Topics),
        topic().prop_map(|topic| Ask::Describe { topic }),
        topic().prop_map(|topic| Ask::Groups { topic }),
        (topic(), partition(), offset(), any::<u8>()).prop_map(|(topic, partition, offset, limit)| Ask::Peek {
            topic,
            partition,
            offset,
            limit
        }),
    ]
}

/// Anything.
pub fn ask() -> impl Strategy<Value = Ask> {
    prop_oneof![
        6 => made().prop_map(Ask::Produce),
        6 => word(),
        2 => streams(),
        2 => administration(),
        1 => looking(),
    ]
}
