//! All requests of clients.

use driftq_sim::actions::{
    DeliveryRef, EffectBegin, EffectOutcome, EffectRef, GrantRef, NewMessage, Request, RetryPolicy, RouterDecision,
    Scope, SeekTarget, Subscription, Tampering,
};
use driftq_sim::names::{Group, Message, Topic, Worker};
use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;

use super::values::{count, group, message, offset, partition, partitions, prefetch, span, time, topic, wait, worker};

/// Any message; its name is assigned later.
pub fn new_message() -> impl Strategy<Value = NewMessage> {
    let target = (topic(), 0..6_u8, weighted(0.05, topic()), weighted(0.1, partition()));
    let size = prop_oneof![12 => 0..20_u8, 1 => any::<u8>()];
    let time = (weighted(0.15, span()), weighted(0.07, time()), weighted(0.15, time()));
    let attempts = prop_oneof![2 => Just(1_u32), 4 => 0..3_u32, 1 => Just(u32::MAX)];
    let policy = (attempts, wait(), wait()).prop_map(|(attempts, backoff_ms, max_backoff_ms)| RetryPolicy {
        attempts,
        backoff_ms,
        max_backoff_ms,
    });
    let rank = (prop_oneof![8 => Just(0_u8), 2 => 0..10_u8, 1 => any::<u8>()], weighted(0.4, policy));
    let identity = (weighted(0.2, 0..6_u8), prop_oneof![8 => Just(0_u8), 2 => 0..5_u8]);
    let router = (weighted(0.5, topic()), weighted(0.5, partition()))
        .prop_map(|(topic, partition)| RouterDecision { topic, partition });
    (target, size, time, rank, identity, weighted(0.1, router)).prop_map(
        |(target, size, time, (priority, policy), (identity, tenant), router)| NewMessage {
            message: Message::default(),
            topic: target.0,
            key: target.1,
            size: size.into(),
            priority,
            delay_ms: time.0,
            deliver_at: time.1,
            deadline: time.2,
            policy,
            identity,
            tenant,
            target: target.2,
            partition: target.3,
            router,
            details: None,
        },
    )
}

/// Any subscription.
pub fn subscription() -> impl Strategy<Value = Subscription> {
    let names = (worker(), topic(), group(), worker());
    let flags = (weighted(0.15, Just(())), any::<bool>(), weighted(0.1, Just(())));
    let options = (weighted(0.7, span()), prefetch(), weighted(0.1, count()), flags);
    (names, options).prop_map(|((worker, topic, group, owner), (lease_ms, prefetch, deliveries, flags))| {
        let (latest, release, ephemeral) = (flags.0.is_some(), flags.1, flags.2.is_some());
        Subscription { worker, topic, group, owner, lease_ms, prefetch, deliveries, latest, release, ephemeral }
    })
}

/// A delivery, or a claim that deviates from it.
pub fn delivery_ref() -> impl Strategy<Value = DeliveryRef> {
    let tampering = prop_oneof![
        14 => Just(Tampering::None),
        2 => Just(Tampering::NoToken),
        1 => Just(Tampering::Unreadable),
        1 => Just(Tampering::WrongOwner),
        1 => Just(Tampering::WrongPartition),
        1 => Just(Tampering::WrongOffset),
        1 => Just(Tampering::WrongGroup),
        1 => Just(Tampering::NoGroup),
    ];
    let back = prop_oneof![8 => Just(0_u8), 3 => 1..3_u8, 1 => any::<u8>()];
    (worker(), message(), back, tampering).prop_map(|(worker, message, back, tampering)| DeliveryRef {
        worker,
        message,
        back,
        tampering,
    })
}

/// A request about a delivery.
pub fn settle_request() -> impl Strategy<Value = Request> {
    prop_oneof![
        5 => delivery_ref().prop_map(Request::Ack),
        4 => (delivery_ref(), 0..5_u8, weighted(0.2, span()), weighted(0.1, Just(())))
            .prop_map(|(delivery, reason, delay_ms, never)| {
                Request::Nack { delivery, reason, delay_ms, never: never.is_some() }
            }),
        1 => delivery_ref().prop_map(Request::AckCumulative),
        1 => delivery_ref().prop_map(Request::ExpireLease),
        2 => (delivery_ref(), weighted(0.8, span())).prop_map(|(delivery, lease_ms)| Request::Extend { delivery, lease_ms }),
        2 => delivery_ref().prop_map(Request::Release),
        1 => worker().prop_map(|worker| Request::Withdraw { worker }),
        2 => complete(),
    ]
}

/// A completed step with outputs.
pub fn complete() -> BoxedStrategy<Request> {
    let outputs = vec(new_message().boxed(), 0..3).boxed();
    (delivery_ref(), 0..5_u8, outputs, weighted(0.15, 0..4_u8))
        .prop_map(|(delivery, result, produce, failed)| Request::Complete { delivery, result, produce, failed })
        .boxed()
}

/// An effect; mostly of a message that the first group gets.
pub fn effect() -> BoxedStrategy<EffectRef> {
    let consume = Scope::Consume { topic: Topic::new(0), group: Group(0) };
    let scope = prop_oneof![
        5 => Just(consume),
        1 => (topic(), group()).prop_map(|(topic, group)| Scope::Consume { topic, group }),
        1 => Just(Scope::Tenant),
        1 => (0..3_u8).prop_map(|id| Scope::Job { id }),
        1 => (0..3_u8).prop_map(|id| Scope::Task { id }),
        2 => (0..3_u8, 0..3_u8).prop_map(|(principal, method)| Scope::Rpc { principal, method }),
    ];
    let tenant = prop_oneof![8 => Just(0_u8), 2 => 0..5_u8];
    (scope, tenant, 0..4_u8).prop_map(|(scope, tenant, key)| EffectRef { scope, tenant, key }).boxed()
}

/// A grant, or a claim that deviates from it.
pub fn grant(worker: impl Strategy<Value = Worker>) -> impl Strategy<Value = GrantRef> {
    let tampering =
        prop_oneof![8 => Just(Tampering::None), 1 => Just(Tampering::NoToken), 1 => Just(Tampering::Unreadable)];
    let back = prop_oneof![8 => Just(0_u8), 3 => 1..3_u8];
    (worker, effect(), back, tampering).prop_map(|(worker, effect, back, tampering)| GrantRef {
        worker,
        effect,
        back,
        tampering,
    })
}

/// The outcome of an effect, valid or not.
pub fn outcome() -> impl Strategy<Value = EffectOutcome> {
    prop_oneof![
        6 => Just(EffectOutcome::Succeeded),
        3 => Just(EffectOutcome::FailedRetryable),
        1 => Just(EffectOutcome::FailedFinal),
        1 => Just(EffectOutcome::InProgress),
    ]
}

/// Any request to the idempotency store.
pub fn store() -> BoxedStrategy<Request> {
    let options = (weighted(0.5, span()), weighted(0.3, span()), weighted(0.2, time()), 0..3_u8);
    let begin = (worker(), effect(), options, weighted(0.2, any::<bool>()), weighted(0.5, delivery_ref())).prop_map(
        |(worker, effect, (lease_ms, ttl_ms, expires_at, request), report, delivery)| {
            Request::BeginEffect(EffectBegin {
                worker,
                effect,
                lease_ms,
                ttl_ms,
                expires_at,
                request,
                report,
                delivery,
            })
        },
    );
    prop_oneof![
        5 => begin,
        4 => (grant(worker()), outcome(), 0..5_u8, weighted(0.2, delivery_ref()))
            .prop_map(|(grant, outcome, result, dead_letter)| {
                Request::FinishEffect { grant, outcome, result, error: 0, dead_letter }
            }),
        1 => (worker(), effect(), weighted(0.5, span()))
            .prop_map(|(worker, effect, lease_ms)| Request::ReacquireEffect { worker, effect, lease_ms }),
        1 => (grant(worker()), weighted(0.5, span())).prop_map(|(grant, lease_ms)| Request::RenewEffect { grant, lease_ms }),
        1 => effect().prop_map(|effect| Request::GetEffect { effect }),
        1 => effect().prop_map(|effect| Request::ForgetEffect { effect }),
        1 => list_effects(),
    ]
    .boxed()
}

/// A page of the effects of the store.
fn list_effects() -> BoxedStrategy<Request> {
    let selected = (weighted(0.3, effect()), weighted(0.5, outcome()));
    (0..5_u8, selected, prop_oneof![3 => Just(0), 1 => span()], any::<u8>(), weighted(0.2, effect()))
        .prop_map(|(tenant, (kind, outcome), older_ms, limit, after)| Request::ListEffects {
            tenant,
            kind: kind.map(|effect| effect.scope),
            outcome,
            older_ms,
            limit,
            after,
        })
        .boxed()
}

/// Requests about streams.
pub fn streams() -> impl Strategy<Value = Request> {
    prop_oneof![
        5 => subscription().prop_map(Request::Subscribe),
        2 => (worker(), any::<bool>()).prop_map(|(worker, keeps)| Request::Unsubscribe { worker, keeps }),
        1 => (worker(), prefetch()).prop_map(|(worker, to)| Request::SetPrefetch { worker, to }),
    ]
}

/// Requests of an operator.
pub fn administration() -> impl Strategy<Value = Request> {
    let to = prop_oneof![
        2 => Just(SeekTarget::Earliest),
        1 => Just(SeekTarget::Latest),
        2 => offset().prop_map(SeekTarget::Offset),
        2 => time().prop_map(SeekTarget::Time),
    ];
    prop_oneof![
        3 => create(),
        1 => topic().prop_map(|topic| Request::DeleteTopic { topic }),
        1 => (topic(), weighted(0.5, 0..2_000_u32), weighted(0.5, 0..60_u32), any::<bool>()).prop_map(
            |(topic, keep_ms, keep_bytes, reset)| Request::ChangeRetention { topic, keep_ms, keep_bytes, reset }
        ),
        2 => (topic(), group(), any::<bool>()).prop_map(|(topic, group, latest)| Request::CreateGroup { topic, group, latest }),
        2 => (topic(), group()).prop_map(|(topic, group)| Request::DeleteGroup { topic, group }),
        3 => (topic(), group(), to).prop_map(|(topic, group, to)| Request::Seek { topic, group, to }),
        2 => (topic(), group()).prop_map(|(topic, group)| Request::Pause { topic, group }),
        2 => (topic(), group()).prop_map(|(topic, group)| Request::Resume { topic, group }),
        4 => (topic(), weighted(0.3, offset()), proptest::collection::vec(offset(), 0..3), count())
            .prop_map(|(topic, offset, more, limit)| Request::Redrive { topic, offset, more, limit }),
        2 => (0_u64..4).prop_map(|limit| Request::RedriveRest { limit }),
        2 => topic().prop_map(|topic| Request::Purge { topic }),
    ]
}

/// The creation of a topic.
pub fn create() -> impl Strategy<Value = Request> {
    (topic(), weighted(0.8, partitions()), weighted(0.3, span()), weighted(0.3, span())).prop_map(
        |(topic, partitions, keep_ms, keep_bytes)| Request::CreateTopic { topic, partitions, keep_ms, keep_bytes },
    )
}

/// Queries.
pub fn query() -> impl Strategy<Value = Request> {
    prop_oneof![
        Just(Request::ListTopics),
        topic().prop_map(|topic| Request::DescribeTopic { topic }),
        topic().prop_map(|topic| Request::ListGroups { topic }),
        (topic(), partition(), offset(), any::<u8>()).prop_map(|(topic, partition, offset, limit)| Request::Peek {
            topic,
            partition,
            offset,
            limit
        }),
    ]
}

/// Any request.
pub fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        6 => new_message().prop_map(Request::Produce),
        6 => settle_request(),
        2 => store(),
        2 => streams(),
        2 => administration(),
        1 => query(),
    ]
}
