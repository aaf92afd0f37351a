//! Everything a client can ask.

use driftq_sim::names::Message;
use driftq_sim::names::{Group, Topic, Worker};
use driftq_sim::steps::{
    Ask, Beginning, Effect, Ended, Grant, Made, Policy, Right, Router, Scope, Stream, Target, Twist,
};
use proptest::collection::vec;
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
        2 => complete(),
    ]
}

/// A step is done, and made something.
pub fn complete() -> BoxedStrategy<Ask> {
    let outputs = vec(made().boxed(), 0..3).boxed();
    (right(), 0..5_u8, outputs).prop_map(|(right, result, produce)| Ask::Complete { right, result, produce }).boxed()
}

/// An effect; mostly one of a message that the first group is handed.
pub fn effect() -> BoxedStrategy<Effect> {
    let consume = Scope::Consume { topic: Topic::live(0), group: Group(0) };
    let scope = prop_oneof![
        5 => Just(consume),
        1 => (topic(), group()).prop_map(|(topic, group)| Scope::Consume { topic, group }),
        1 => Just(Scope::Tenant),
        1 => (0..3_u8).prop_map(|id| Scope::Job { id }),
        1 => (0..3_u8).prop_map(|id| Scope::Task { id }),
        2 => (0..3_u8, 0..3_u8).prop_map(|(principal, method)| Scope::Rpc { principal, method }),
    ];
    let tenant = prop_oneof![8 => Just(0_u8), 2 => 0..5_u8];
    (scope, tenant, 0..4_u8).prop_map(|(scope, tenant, key)| Effect { scope, tenant, key }).boxed()
}

/// The right to speak about an effect, or none.
pub fn grant(worker: impl Strategy<Value = Worker>) -> impl Strategy<Value = Grant> {
    let twist = prop_oneof![8 => Just(Twist::None), 1 => Just(Twist::NoToken), 1 => Just(Twist::Unreadable)];
    let back = prop_oneof![8 => Just(0_u8), 3 => 1..3_u8];
    (worker, effect(), back, twist).prop_map(|(worker, effect, back, twist)| Grant { worker, effect, back, twist })
}

/// How an effect ended, or did not.
pub fn ended() -> impl Strategy<Value = Ended> {
    prop_oneof![
        6 => Just(Ended::Succeeded),
        3 => Just(Ended::FailedRetryable),
        1 => Just(Ended::FailedFinal),
        1 => Just(Ended::InProgress),
    ]
}

/// Anything that is asked of the idempotency store.
pub fn store() -> BoxedStrategy<Ask> {
    let how = (weighted(0.5, span()), weighted(0.3, span()), weighted(0.2, moment()), 0..3_u8);
    let begin = (worker(), effect(), how, weighted(0.2, any::<bool>()), weighted(0.5, right())).prop_map(
        |(worker, effect, (lease_ms, ttl_ms, expires_at, request), report, delivery)| {
            Ask::Begin(Beginning { worker, effect, lease_ms, ttl_ms, expires_at, request, report, delivery })
        },
    );
    prop_oneof![
        5 => begin,
        4 => (grant(worker()), ended(), 0..5_u8).prop_map(|(grant, ended, result)| Ask::Finish { grant, ended, result }),
        1 => (worker(), effect(), weighted(0.5, span()))
            .prop_map(|(worker, effect, lease_ms)| Ask::Reacquire { worker, effect, lease_ms }),
        1 => (grant(worker()), weighted(0.5, span())).prop_map(|(grant, lease_ms)| Ask::Renew { grant, lease_ms }),
        1 => effect().prop_map(|effect| Ask::Get { effect }),
        1 => effect().prop_map(|effect| Ask::Forget { effect }),
    ]
    .boxed()
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
        2 => store(),
        2 => streams(),
        2 => administration(),
        1 => looking(),
    ]
}
