//! Acks: what is done stays done, what is not stays.

use super::rig::*;
use driftq_core::command::{Claim, TokenClaim};
use driftq_core::faults::{Fault, Planted};
use driftq_core::types::*;
use driftq_core::{Command, Refusal};

/// The incumbent stores the highest acked offset: acks 2 and 3, crashes, and never delivers 1 again.
fn out_of_order_acks_then_crash<F: driftq_core::faults::Faults>(mut rig: Rig<F>) -> (Vec<String>, u64) {
    rig.topic("t", 1);
    for value in ["one", "two", "three", "four"] {
        rig.produce("t", value);
    }
    rig.subscribe("t", "g", "w");
    let delivered = rig.delivered();
    for delivery in [&delivered[2], &delivered[1]] {
        rig.ack(claim("t", "g", "w", delivery)).unwrap();
    }
    rig.crash();
    rig.subscribe("t", "g", "w");
    rig.pass(2_000);
    let lag = rig.describe("t").groups[0].partitions[0].lag;
    (rig.values(), lag)
}

#[test]
fn acks_out_of_order_then_a_crash_lose_nothing_and_bring_nothing_back() {
    let (values, lag) = out_of_order_acks_then_crash(Rig::new());
    assert_eq!(values, ["one", "four"]);
    assert_eq!(lag, 2);
}

#[test]
fn the_incumbents_watermark_would_be_caught() {
    let (values, _) = out_of_order_acks_then_crash(Rig::with(small_config(), Planted(Fault::HighestAckWatermark)));
    assert_eq!(values, ["four"], "the planted bug loses the first message");
}

#[test]
fn the_floor_is_the_last_offset_below_which_everything_is_done() {
    let mut rig = Rig::new();
    rig.topic("t", 1);
    for value in ["0", "1", "2", "3"] {
        rig.produce("t", value);
    }
    rig.subscribe("t", "g", "w");
    let delivered = rig.delivered();
    let floor = |rig: &mut Rig| rig.describe("t").groups[0].partitions[0].floor;
    assert_eq!(floor(&mut rig), None);
    rig.ack(claim("t", "g", "w", &delivered[1])).unwrap();
    assert_eq!(floor(&mut rig), None);
    rig.ack(claim("t", "g", "w", &delivered[0])).unwrap();
    assert_eq!(floor(&mut rig), Some(Offset(1)));
    rig.crash();
    assert_eq!(floor(&mut rig), Some(Offset(1)));
}

#[test]
fn a_repeated_or_late_ack_is_taken_and_changes_nothing() {
    let mut rig = Rig::new();
    rig.topic("t", 2);
    rig.produce("t", "a");
    rig.subscribe("t", "g", "w");
    let delivery = rig.one();
    rig.ack(claim("t", "g", "w", &delivery)).unwrap();
    let digest = rig.digest();
    rig.ack(claim("t", "g", "w", &delivery)).unwrap();
    rig.ack(Claim { token: TokenClaim::Absent, owner: owner("other"), ..claim("t", "g", "w", &delivery) }).unwrap();
    rig.nack(claim("t", "g", "w", &delivery), "too late").unwrap();
    assert_eq!(rig.digest(), digest);
}

#[test]
fn a_claim_that_does_not_hold_is_refused_by_name_and_changes_nothing() {
    let mut rig = Rig::new();
    rig.topic("t", 2);
    rig.produce("t", "a");
    rig.produce("t", "b");
    rig.subscribe("t", "g", "w");
    let first = rig.delivered().remove(0);
    let good = claim("t", "g", "w", &first);
    let other_token = LeaseToken { boot: Boot(1), counter: 9_999 };
    let digest = rig.digest();
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
        assert_eq!(rig.ack(claim.clone()), Err(refusal.clone()), "{claim:?}");
        assert_eq!(rig.nack(claim.clone(), "r"), Err(refusal.clone()), "{claim:?}");
        assert_eq!(rig.send(Command::Release(claim.clone())), Err(refusal.clone()), "{claim:?}");
        assert_eq!(rig.send(Command::Extend { claim, lease: None }), Err(refusal));
    }
    assert_eq!(rig.digest(), digest);
    assert_eq!(rig.describe("t").groups.len(), 1, "a failed ack creates no group");
    rig.ack(good).unwrap();
}

#[test]
fn retries_that_come_due_together_are_handed_out_one_after_the_other_under_a_limit_of_one() {
    let mut rig = Rig::with_limits(|limits| limits.in_flight_max = 1);
    rig.topic("t", 1);
    rig.subscribe("t", "g", "w");
    for value in ["a", "b"] {
        rig.produce("t", value);
    }
    for _ in 0..2 {
        let delivery = rig.one();
        let claim = claim("t", "g", "w", &delivery);
        rig.send(Command::Nack { claim, reason: "later".into(), delay: Some(Millis(50)) }).unwrap();
    }
    assert_eq!(rig.values(), Vec::<String>::new());
    rig.pass(50);
    for expected in ["a", "b"] {
        let delivery = rig.one();
        assert_eq!(value(&delivery), expected);
        rig.ack(claim("t", "g", "w", &delivery)).unwrap();
    }
}
