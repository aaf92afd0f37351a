//! Acks: an acked message is never delivered again, an unacked one is.

use super::test_broker::*;
use driftq_core::command::{Claim, Extend, Nack, Release, Retry, TokenClaim};
use driftq_core::faults::{Fault, Planted};
use driftq_core::types::*;
use driftq_core::{Command, Refusal};

/// Acks offsets 2 and 1 of 0 to 3, then crashes. A broker that stores only the highest acked offset loses offset 0.
fn delivered_after_out_of_order_acks_and_crash<F: driftq_core::faults::Faults>(
    mut broker: TestBroker<F>,
) -> (Vec<String>, u64) {
    broker.topic("t", 1);
    for value in ["one", "two", "three", "four"] {
        broker.produce("t", value);
    }
    broker.subscribe("t", "g", "w");
    let delivered = broker.delivered();
    for delivery in [&delivered[2], &delivered[1]] {
        broker.ack(claim("t", "g", "w", delivery)).unwrap();
    }
    broker.crash();
    broker.subscribe("t", "g", "w");
    broker.advance(2_000);
    let lag = broker.describe("t").groups[0].partitions[0].lag;
    (broker.delivered_values(), lag)
}

#[test]
fn ack_above_gap_survives_restart() {
    let (values, lag) = delivered_after_out_of_order_acks_and_crash(TestBroker::new());
    assert_eq!(values, ["one", "four"]);
    assert_eq!(lag, 2);
}

#[test]
fn fault_highest_ack_watermark_is_detected() {
    let (values, _) = delivered_after_out_of_order_acks_and_crash(TestBroker::with(
        small_config(),
        Planted(Fault::HighestAckWatermark),
    ));
    assert_eq!(values, ["four"], "the planted fault loses the first message");
}

#[test]
fn ack_floor_is_last_offset_below_first_gap() {
    let mut broker = TestBroker::new();
    broker.topic("t", 1);
    for value in ["0", "1", "2", "3"] {
        broker.produce("t", value);
    }
    broker.subscribe("t", "g", "w");
    let delivered = broker.delivered();
    let floor = |broker: &mut TestBroker| broker.describe("t").groups[0].partitions[0].floor;
    assert_eq!(floor(&mut broker), None);
    broker.ack(claim("t", "g", "w", &delivered[1])).unwrap();
    assert_eq!(floor(&mut broker), None);
    broker.ack(claim("t", "g", "w", &delivered[0])).unwrap();
    assert_eq!(floor(&mut broker), Some(Offset(1)));
    broker.crash();
    assert_eq!(floor(&mut broker), Some(Offset(1)));
}

#[test]
fn ack_repeated_or_late_succeeds_and_changes_nothing() {
    let mut broker = TestBroker::new();
    broker.topic("t", 2);
    broker.produce("t", "a");
    broker.subscribe("t", "g", "w");
    let delivery = broker.expect_delivery();
    broker.ack(claim("t", "g", "w", &delivery)).unwrap();
    let digest = broker.digest();
    broker.ack(claim("t", "g", "w", &delivery)).unwrap();
    broker.ack(Claim { token: TokenClaim::Absent, owner: owner("other"), ..claim("t", "g", "w", &delivery) }).unwrap();
    broker.nack(claim("t", "g", "w", &delivery), "too late").unwrap();
    assert_eq!(broker.digest(), digest);
}

#[test]
fn claim_invalid_is_refused_and_changes_nothing() {
    let mut broker = TestBroker::new();
    broker.topic("t", 2);
    broker.produce("t", "a");
    broker.produce("t", "b");
    broker.subscribe("t", "g", "w");
    let first = broker.delivered().remove(0);
    let good = claim("t", "g", "w", &first);
    let other_token = LeaseToken { boot: Boot(1), counter: 9_999 };
    let digest = broker.digest();
    for (claim, refusal) in [
        (Claim { topic: topic("nope"), ..good.clone() }, Refusal::UnknownTopic(topic("nope"))),
        (Claim { group: group("nope"), ..good.clone() }, Refusal::UnknownGroup(group("nope"))),
        (
            Claim { partition: PartitionId(9), ..good.clone() },
            Refusal::PartitionOutOfRange { partition: PartitionId(9), partitions: 2 },
        ),
        (Claim { partition: PartitionId(1), ..good.clone() }, Refusal::StaleLease),
        (Claim { offset: Offset(77), ..good.clone() }, Refusal::StaleLease),
        (Claim { offset: Offset(77), token: TokenClaim::Absent, ..good.clone() }, Refusal::NotOwner),
        (Claim { token: TokenClaim::Shown(other_token), ..good.clone() }, Refusal::StaleLease),
        (Claim { token: TokenClaim::Unreadable, ..good.clone() }, Refusal::StaleLease),
        (Claim { owner: owner("x"), ..good.clone() }, Refusal::NotOwner),
        (Claim { owner: owner("x"), token: TokenClaim::Absent, ..good.clone() }, Refusal::NotOwner),
    ] {
        assert_eq!(broker.ack(claim.clone()), Err(refusal.clone()), "{claim:?}");
        assert_eq!(broker.nack(claim.clone(), "r"), Err(refusal.clone()), "{claim:?}");
        assert_eq!(broker.send(Command::Release(Release(claim.clone()))), Err(refusal.clone()), "{claim:?}");
        assert_eq!(broker.send(Command::Extend(Extend { claim, lease: None })), Err(refusal));
    }
    assert_eq!(broker.digest(), digest);
    assert_eq!(broker.describe("t").groups.len(), 1, "a failed ack creates no group");
    broker.ack(good).unwrap();
}

#[test]
fn retries_due_together_under_in_flight_limit_one_are_delivered_in_turn() {
    let mut broker = TestBroker::with_limits(|limits| limits.in_flight_max = 1);
    broker.topic("t", 1);
    broker.subscribe("t", "g", "w");
    for value in ["a", "b"] {
        broker.produce("t", value);
    }
    for _ in 0..2 {
        let delivery = broker.expect_delivery();
        let claim = claim("t", "g", "w", &delivery);
        broker.send(Command::Nack(Nack { claim, reason: "later".into(), retry: Retry::After(Millis(50)) })).unwrap();
    }
    assert_eq!(broker.delivered_values(), Vec::<String>::new());
    broker.advance(50);
    for expected in ["a", "b"] {
        let delivery = broker.expect_delivery();
        assert_eq!(value(&delivery), expected);
        broker.ack(claim("t", "g", "w", &delivery)).unwrap();
    }
}
