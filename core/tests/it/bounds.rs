//! Bounds: leases are held between two limits, delays beyond a limit are refused; the limits of both profiles.

use super::test_broker::*;
use driftq_core::Refusal;
use driftq_core::command::{Claim, Produce, Reacquire, StoreCommand};
use driftq_core::reply::StoreReply;
use driftq_core::types::*;

fn broker() -> TestBroker {
    let mut broker = TestBroker::with_limits(|limits| {
        limits.lease_min = Millis(100);
        limits.lease_max = Millis(5_000);
        limits.delay_max = Millis(1_000);
    });
    broker.topic("t", 1);
    broker
}

/// Requested leases and those granted.
const LEASES: [(Option<u64>, u64); 8] = [
    (None, 2_000),
    (Some(0), 2_000),
    (Some(1), 100),
    (Some(99), 100),
    (Some(100), 100),
    (Some(5_000), 5_000),
    (Some(5_001), 5_000),
    (Some(u64::MAX), 5_000),
];

#[test]
fn lease_of_delivery_is_held_between_limits() {
    for (requested, granted) in LEASES {
        let mut broker = broker();
        broker.produce("t", "a");
        broker.subscribe_with("t", "g", "w", |request| request.lease = requested.map(Millis));
        let delivery = broker.expect_delivery();
        assert_eq!(delivery.lease_until, broker.now.after(Millis(granted)), "{requested:?}");
        broker.advance(granted - 1);
        assert_eq!(broker.delivered(), []);
        broker.advance(1);
        let delivery = broker.expect_delivery();
        let extended = broker.extend(claim("t", "g", "w", &delivery), requested);
        assert_eq!(extended, Ok(broker.now.after(Millis(granted))), "{requested:?}");
    }
}

#[test]
fn lease_of_effect_is_held_between_limits() {
    for (requested, length) in LEASES {
        let mut broker = broker();
        let (identity, lease) = (effect("k"), requested.map(Millis));
        let reply = broker.begin_with(&identity, |request| request.lease = lease);
        let until = broker.now.after(Millis(length));
        assert_eq!(lease_until(&reply), until, "{requested:?}");
        let token = granted(reply);
        let reply = broker.renew(&identity, token, requested.unwrap_or(0));
        assert_eq!(reply, Ok(StoreReply::Renewed { lease_until: until }), "{requested:?}");
        broker.advance(length);
        let until = broker.now.after(Millis(length));
        let reacquire = Reacquire { identity, owner: owner("w"), lease };
        assert_eq!(lease_until(&broker.send_store(StoreCommand::Reacquire(reacquire))), until, "{requested:?}");
    }
}

/// The end of the lease of a grant.
fn lease_until(reply: &Result<StoreReply, Refusal>) -> Timestamp {
    match reply {
        Ok(StoreReply::Execute { lease_until, .. }) => *lease_until,
        other => panic!("expected a grant, got {other:?}"),
    }
}

#[test]
fn default_outside_limits_is_held_and_contradicting_limits_grant_the_minimum() {
    for (default, min, max, granted) in [(5, 10, 20, 10), (50, 10, 20, 20), (15, 30, 20, 30), (0, 0, 20, 1)] {
        let mut broker = TestBroker::with_limits(|limits| {
            limits.lease_default = Millis(default);
            limits.lease_min = Millis(min);
            limits.lease_max = Millis(max);
        });
        broker.topic("t", 1);
        broker.produce("t", "a");
        broker.subscribe_with("t", "g", "w", |request| request.lease = None);
        assert_eq!(broker.expect_delivery().lease_until, broker.now.after(Millis(granted)));
    }
}

#[test]
fn delay_beyond_limit_is_refused_and_changes_nothing() {
    let mut broker = broker();
    broker.produce("t", "a");
    broker.subscribe("t", "g", "w");
    let delivery = broker.expect_delivery();
    let digest = broker.digest();
    let refused = |delay| Refusal::DelayTooLong { delay: Millis(delay), max: Millis(1_000) };
    let produce = |change: fn(&mut Produce)| {
        let mut request = Produce::new(topic("t"), "", "b");
        change(&mut request);
        request
    };
    let late = produce(|request| request.delay = Some(Millis(1_001)));
    assert_eq!(broker.try_produce(late), Err(refused(1_001)));
    let late = produce(|request| request.envelope.deliver_at = Some(START.after(Millis(1_001))));
    assert_eq!(broker.try_produce(late), Err(refused(1_001)));
    let late = produce(|request| request.envelope.deliver_at = Some(Timestamp::MAX));
    assert_eq!(broker.try_produce(late), Err(refused(u64::MAX - START.0)));
    assert_eq!(broker.nack_with_delay(claim("t", "g", "w", &delivery), 1_001), Err(refused(1_001)));
    // Refused before the claim is looked at.
    let nowhere = Claim { topic: topic("nope"), ..claim("t", "g", "w", &delivery) };
    assert_eq!(broker.nack_with_delay(nowhere, u64::MAX), Err(refused(u64::MAX)));
    assert_eq!(broker.digest(), digest);
    for change in [
        (|request| request.delay = Some(Millis(1_000))) as fn(&mut Produce),
        |request| request.envelope.deliver_at = Some(START.after(Millis(1_000))),
        |request| request.envelope.deliver_at = Some(Timestamp(0)),
    ] {
        broker.try_produce(produce(change)).unwrap();
    }
    broker.nack_with_delay(claim("t", "g", "w", &delivery), 1_000).unwrap();
}

#[test]
fn profiles_differ_in_lease_default_and_minimum() {
    let of = |limits: Limits| [limits.lease_default, limits.lease_min, limits.lease_max, limits.delay_max];
    let (half_a_day, month) = (Millis(12 * 3_600_000), Millis(30 * 86_400_000));
    assert_eq!(of(Limits::production()), [Millis(30_000), Millis(100), half_a_day, month]);
    assert_eq!(of(Limits::spec()), [Millis(2_000), Millis(1), half_a_day, month]);
}

#[test]
fn production_limits_are_those_of_the_documentation() {
    let (hour, day) = (3_600_000, 86_400_000);
    let limits = Limits {
        in_flight_max: 1_000,
        partition_messages_max: 1_000_000,
        partition_bytes_max: 1_073_741_824,
        lease_default: Millis(30_000),
        lease_min: Millis(100),
        lease_max: Millis(hour * 12),
        delay_max: Millis(day * 30),
        dedupe_ttl: Millis(600_000),
        dedupe_keys_max: 4_000_000,
        key_bytes_max: 65_536,
        message_bytes_max: 16_777_216,
        idempotency_key_bytes_max: 255,
        id_bytes_max: 255,
        metadata_bytes_max: 65_536,
        error_text_bytes_max: 4_096,
        result_bytes_max: 65_536,
        effect_ttl: Millis(day),
        job_ttl: Millis(day * 7),
        effects_max: 4_000_000,
        completion_ttl: Millis(600_000),
        completions_max: 1_000_000,
        outputs_max: 1_000,
        adaptive_credit: true,
        partitions_max: 1_024,
        topics_max: 100_000,
        groups_max: 100_000,
        keys_max: 100_000,
        tenants_max: 10_000,
        consumers_max: 1_000_000,
        retention_age: Some(Millis(day)),
        retention_bytes: Some(268_435_456),
        retained_bytes_max: 4_294_967_296,
        group_idle: Some(Millis(hour)),
        group_idle_max: Millis(day * 30),
        retry_after: Millis(1_000),
        work: WorkLimits { bytes_per_page: 1_048_576, ..WorkLimits::production() },
    };
    assert_eq!(Limits::production(), limits);
    let spec = Limits {
        in_flight_max: 2,
        partition_messages_max: 2,
        partition_bytes_max: 20,
        adaptive_credit: false,
        lease_default: Millis(2_000),
        lease_min: Millis(1),
        retention_age: None,
        retention_bytes: None,
        group_idle: None,
        ..limits
    };
    assert_eq!(Limits::spec(), spec);
}

#[test]
fn limits_beyond_their_ceilings_are_lowered_to_them() {
    let broker = TestBroker::with_limits(|limits| {
        (limits.message_bytes_max, limits.error_text_bytes_max) = (usize::MAX, usize::MAX);
        (limits.result_bytes_max, limits.partitions_max) = (usize::MAX, u32::MAX);
    });
    let limits = broker.pipeline.broker().limits();
    assert_eq!((limits.message_bytes_max, limits.error_text_bytes_max), (25_165_824, 1_048_576));
    assert_eq!((limits.result_bytes_max, limits.partitions_max), (4_194_304, 65_536));
}
