//! Order: first deliveries by priority, then offset; delays hold back one message and none of its neighbours.

use super::rig::*;
use driftq_core::Refusal;
use driftq_core::command::Produce;
use driftq_core::faults::{Fault, Faults, Planted};
use driftq_core::types::*;

fn prioritised<F: Faults>(rig: &mut Rig<F>, value: &str, level: u8) {
    rig.produce_with("t", value, |asked| asked.envelope.priority = Priority::new(level));
}

fn delayed<F: Faults>(rig: &mut Rig<F>, value: &str, delay: u64) {
    rig.produce_with("t", value, |asked| asked.delay = Some(Millis(delay)));
}

#[test]
fn first_deliveries_of_equal_priority_happen_in_offset_order() {
    for way in RESTARTS {
        let mut rig = Rig::new();
        rig.topic("t", 1);
        for value in 0..10 {
            rig.produce("t", &value.to_string());
        }
        rig.restart(way);
        for who in ["w", "x", "y"] {
            rig.subscribe_with("t", "g", who, |asked| asked.prefetch = 2);
        }
        let mut seen = Vec::new();
        loop {
            let deliveries = std::mem::take(&mut rig.deliveries);
            if deliveries.is_empty() {
                break;
            }
            for (consumer, delivery) in deliveries {
                seen.push(delivery.offset.0);
                let who = ["w", "x", "y"][consumer.0 as usize - 1];
                rig.ack(claim("t", "g", who, &delivery)).unwrap();
            }
        }
        assert_eq!(seen, (0..10).collect::<Vec<_>>());
    }
}

#[test]
fn what_is_done_leaves_nothing_behind_whatever_its_priority_and_delay() {
    let mut rig = Rig::new();
    rig.topic("t", 1);
    rig.subscribe("t", "g", "w");
    let mut sizes = Vec::new();
    for round in 0..200 {
        prioritised(&mut rig, "urgent", 1 + round % 9);
        delayed(&mut rig, "late", 5);
        rig.pass(10);
        while let Some((_, delivery)) = rig.deliveries.pop() {
            rig.ack(claim("t", "g", "w", &delivery)).unwrap();
        }
        // A last word about the log's end is due a little later.
        rig.pass(1_000);
        let mut outline = String::new();
        rig.pipeline.canonical(&mut outline).unwrap();
        sizes.push(outline.len());
    }
    let (early, late) = (sizes[10], sizes[199]);
    assert!(late < early + 200, "{early} bytes after a few rounds, {late} after two hundred");
}

#[test]
fn a_higher_priority_skips_ahead_and_equal_ones_stay_in_order() {
    for way in RESTARTS {
        let mut rig = Rig::new();
        rig.topic("t", 1);
        for (value, level) in [("a", 0), ("b", 5), ("c", 9), ("d", 0), ("e", 5), ("f", 1), ("g", 9)] {
            prioritised(&mut rig, value, level);
        }
        rig.restart(way);
        rig.subscribe("t", "g", "w");
        assert_eq!(rig.values(), ["c", "g", "b", "e", "f", "a", "d"]);
    }
}

#[test]
fn a_late_urgent_message_overtakes_what_is_still_waiting() {
    let mut rig = Rig::new();
    rig.topic("t", 1);
    for value in ["a", "b", "c"] {
        rig.produce("t", value);
    }
    rig.subscribe_with("t", "g", "w", |asked| asked.prefetch = 1);
    let first = rig.one();
    prioritised(&mut rig, "urgent", 3);
    rig.ack(claim("t", "g", "w", &first)).unwrap();
    assert_eq!(rig.values(), ["urgent"]);
}

#[test]
fn a_retry_keeps_its_priority() {
    let mut rig = Rig::new();
    rig.topic("t", 1);
    prioritised(&mut rig, "urgent", 3);
    let consumer = rig.subscribe_with("t", "g", "w", |asked| asked.prefetch = 1);
    let urgent = rig.one();
    for value in ["a", "b"] {
        rig.produce("t", value);
    }
    prioritised(&mut rig, "less urgent", 2);
    prioritised(&mut rig, "more urgent", 4);
    rig.set_prefetch(consumer, 0);
    rig.nack(claim("t", "g", "w", &urgent), "again").unwrap();
    rig.set_prefetch(consumer, 9);
    assert_eq!(rig.values(), ["more urgent", "urgent", "less urgent", "a", "b"]);
}

#[test]
fn a_priority_acts_inside_its_partition_only() {
    let mut rig = Rig::new();
    rig.topic("t", 2);
    for (value, partition, level) in [("a", 0, 0), ("b", 0, 0), ("x", 1, 0), ("urgent", 1, 9)] {
        rig.produce_with("t", value, |asked| {
            asked.envelope.partition_override = Some(PartitionId(partition));
            asked.envelope.priority = Priority::new(level);
        });
    }
    rig.subscribe("t", "g", "w");
    let delivered = rig.delivered();
    let of = |partition| delivered.iter().filter(move |d| d.partition == PartitionId(partition)).map(value);
    assert_eq!(of(0).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(of(1).collect::<Vec<_>>(), ["urgent", "x"]);
    assert_eq!(delivered.iter().map(|d| d.partition.0).collect::<Vec<_>>(), [1, 0, 1, 0], "turns are kept");
}

/// What has been delivered just before and at the end of a delay.
fn around_a_delay<F: Faults>(mut rig: Rig<F>) -> (Vec<String>, Vec<String>) {
    rig.topic("t", 1);
    delayed(&mut rig, "late", 5_000);
    rig.produce("t", "now");
    rig.subscribe_with("t", "g", "w", |asked| asked.lease = Some(Millis(1_000_000)));
    rig.pass(4_999);
    let before = rig.values();
    rig.pass(1);
    (before, rig.values())
}

#[test]
fn a_delay_holds_back_its_message_to_the_millisecond_and_no_neighbour() {
    assert_eq!(around_a_delay(Rig::new()), (vec!["now".to_owned()], vec!["late".to_owned()]));
}

#[test]
fn a_delay_ignored_would_be_caught() {
    let (before, after) = around_a_delay(Rig::with(small_config(), Planted(Fault::DelayedDeliveredEarly)));
    assert_eq!((before, after), (vec!["late".to_owned(), "now".to_owned()], vec![]));
}

#[test]
fn a_delayed_message_is_not_leased() {
    let mut rig = Rig::with_limits(|limits| limits.in_flight_max = 1);
    rig.topic("t", 1);
    delayed(&mut rig, "late", 5_000);
    rig.subscribe_with("t", "g", "w", |asked| asked.prefetch = 1);
    assert_eq!(rig.load("t").delayed, 1);
    let progress = rig.progress("t", "g");
    assert_eq!((progress.in_flight, progress.waiting, progress.lag), (0, 0, 1));
    assert_eq!(progress.blocked, Some(driftq_core::reply::Blocked::NotYetDue));
    rig.pass(5_000);
    assert_eq!(rig.one().attempts, 1);
    assert_eq!(rig.load("t").delayed, 0);
}

#[test]
fn a_moment_of_delivery_does_what_a_delay_does() {
    let mut rig = Rig::new();
    rig.topic("t", 1);
    let at = START.after(Millis(300));
    rig.produce_with("t", "late", |asked| asked.envelope.deliver_at = Some(at));
    rig.produce_with("t", "at once", |asked| asked.envelope.deliver_at = Some(START));
    rig.subscribe("t", "g", "w");
    assert_eq!(rig.values(), ["at once"]);
    rig.pass(299);
    assert_eq!(rig.delivered(), []);
    rig.pass(1);
    assert_eq!(rig.values(), ["late"]);
}

#[test]
fn a_delay_survives_a_restart_and_is_over_when_it_ended_meanwhile() {
    for way in RESTARTS {
        let mut rig = Rig::new();
        rig.topic("t", 1);
        delayed(&mut rig, "first", 1_000);
        delayed(&mut rig, "second", 5_000);
        rig.group("t", "g");
        rig.restart_after(way, 1_000);
        rig.subscribe_with("t", "g", "w", |asked| asked.lease = Some(Millis(1_000_000)));
        assert_eq!(rig.values(), ["first"]);
        rig.pass(3_999);
        assert_eq!(rig.delivered(), []);
        rig.pass(1);
        assert_eq!(rig.values(), ["second"]);
    }
}

#[test]
fn a_delay_that_reaches_the_deadline_is_refused() {
    let mut rig = Rig::new();
    rig.topic("t", 1);
    let digest = rig.digest();
    let mut asked = Produce::new(topic("t"), "", "v");
    asked.envelope.deadline = deadline(START.after(Millis(1_000)));
    for delay in [1_000, 1_001, u64::MAX] {
        asked.delay = Some(Millis(delay));
        let refused = rig.try_produce(asked.clone());
        assert_eq!(refused, Err(Refusal::Invalid("delay reaches beyond the deadline")), "{delay}");
    }
    asked.delay = None;
    asked.envelope.deliver_at = Some(START.after(Millis(1_001)));
    assert!(rig.try_produce(asked.clone()).is_err());
    assert_eq!(rig.digest(), digest);
    asked.envelope.deliver_at = Some(START.after(Millis(999)));
    rig.try_produce(asked).unwrap();
}

#[test]
fn a_message_whose_delay_is_over_takes_its_place_by_priority_and_offset() {
    let mut rig = Rig::new();
    rig.topic("t", 1);
    delayed(&mut rig, "plain", 1_000);
    rig.produce_with("t", "urgent", |asked| {
        asked.delay = Some(Millis(1_000));
        asked.envelope.priority = Priority::new(7);
    });
    for value in ["a", "b", "c"] {
        rig.produce("t", value);
    }
    let consumer = rig.subscribe_with("t", "g", "w", |asked| {
        asked.prefetch = 1;
        asked.lease = Some(Millis(1_000_000));
    });
    assert_eq!(rig.values(), ["a"]);
    prioritised(&mut rig, "more urgent", 8);
    prioritised(&mut rig, "less urgent", 6);
    rig.pass(1_000);
    rig.set_prefetch(consumer, 9);
    assert_eq!(rig.values(), ["more urgent", "urgent", "less urgent", "plain", "b", "c"]);
}

#[test]
fn every_group_gets_a_delayed_message_wherever_it_stands() {
    let mut rig = Rig::new();
    rig.topic("t", 1);
    for name in ["passed", "waiting", "behind"] {
        rig.group("t", name);
    }
    delayed(&mut rig, "late", 1_000);
    rig.produce("t", "a");
    rig.subscribe("t", "passed", "w");
    rig.delivered();
    rig.pass(1_000);
    assert_eq!(rig.values(), ["late"], "a group that had gone by it");
    rig.subscribe("t", "waiting", "w");
    assert_eq!(rig.values(), ["late", "a"], "a group that had not started");
    rig.group("t", "new");
    rig.subscribe("t", "new", "w");
    assert_eq!(rig.values(), ["late", "a"], "a group made since");
}

#[test]
fn delays_end_in_their_own_order() {
    let mut rig = Rig::new();
    rig.topic("t", 1);
    for (value, delay) in [("c", 300), ("a", 100), ("b", 200), ("a2", 100)] {
        delayed(&mut rig, value, delay);
    }
    rig.subscribe("t", "g", "w");
    let mut seen = Vec::new();
    for _ in 0..3 {
        rig.pass(100);
        seen.push(rig.values());
    }
    assert_eq!(seen, [vec!["a", "a2"], vec!["b"], vec!["c"]]);
}

#[test]
fn a_message_that_one_group_is_done_with_is_as_urgent_as_before_to_another() {
    let mut rig = Rig::with_topic(1);
    rig.produce("t", "plain");
    prioritised(&mut rig, "urgent", 5);
    for name in ["quick", "slow"] {
        rig.group("t", name);
    }
    rig.subscribe_with("t", "quick", "w", |asked| asked.prefetch = 1);
    let urgent = rig.one();
    rig.ack(claim("t", "quick", "w", &urgent)).unwrap();
    assert_eq!(rig.values(), ["plain"]);
    rig.subscribe("t", "slow", "w");
    assert_eq!(rig.values(), ["urgent", "plain"]);
}
