//! Delivery order: by priority, then offset. A delay holds back its own message only.

use super::test_broker::*;
use driftq_core::Refusal;
use driftq_core::command::Produce;
use driftq_core::faults::{Fault, Faults, NoFaults, Planted};
use driftq_core::pipeline::PipelineConfig;
use driftq_core::types::*;

fn prioritised<F: Faults>(broker: &mut TestBroker<F>, value: &str, level: u8) {
    broker.produce_with("t", value, |request| request.envelope.priority = Priority::new(level));
}

fn delayed<F: Faults>(broker: &mut TestBroker<F>, value: &str, delay: u64) {
    broker.produce_with("t", value, |request| request.delay = Some(Millis(delay)));
}

#[test]
fn first_deliveries_of_equal_priority_follow_offset_order() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        broker.topic("t", 1);
        for value in 0..10 {
            broker.produce("t", &value.to_string());
        }
        broker.restart(restart);
        for owner_name in ["w", "x", "y"] {
            broker.subscribe_with("t", "g", owner_name, |request| request.prefetch = 2);
        }
        let mut seen = Vec::new();
        loop {
            let deliveries = std::mem::take(&mut broker.deliveries);
            if deliveries.is_empty() {
                break;
            }
            for (consumer, delivery) in deliveries {
                seen.push(delivery.offset.0);
                let owner_name = ["w", "x", "y"][consumer.0 as usize - 1];
                broker.ack(claim("t", "g", owner_name, &delivery)).unwrap();
            }
        }
        assert_eq!(seen, (0..10).collect::<Vec<_>>());
    }
}

#[test]
fn acked_messages_leave_nothing_in_index() {
    let mut broker = TestBroker::with(PipelineConfig { memory_bytes: 0, ..small_config() }, NoFaults);
    broker.topic("t", 1);
    broker.subscribe("t", "g", "w");
    let mut sizes = Vec::new();
    for round in 0..200 {
        prioritised(&mut broker, "urgent", 1 + round % 9);
        delayed(&mut broker, "late", 5);
        broker.advance(10);
        while let Some((_, delivery)) = broker.deliveries.pop() {
            broker.ack(claim("t", "g", "w", &delivery)).unwrap();
        }
        // The synced mark is written a little later.
        broker.advance(1_000);
        let mut canonical = String::new();
        broker.pipeline.canonical(&mut canonical).unwrap();
        sizes.push(canonical.len());
    }
    let (early, late) = (sizes[10], sizes[199]);
    assert!(late < early + 200, "{early} bytes after 10 rounds, {late} bytes after 200");
}

#[test]
fn higher_priority_is_delivered_first_and_equal_in_order() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        broker.topic("t", 1);
        for (value, level) in [("a", 0), ("b", 5), ("c", 9), ("d", 0), ("e", 5), ("f", 1), ("g", 9)] {
            prioritised(&mut broker, value, level);
        }
        broker.restart(restart);
        broker.subscribe("t", "g", "w");
        assert_eq!(broker.delivered_values(), ["c", "g", "b", "e", "f", "a", "d"]);
    }
}

#[test]
fn late_urgent_message_overtakes_queued_ones() {
    let mut broker = TestBroker::new();
    broker.topic("t", 1);
    for value in ["a", "b", "c"] {
        broker.produce("t", value);
    }
    broker.subscribe_with("t", "g", "w", |request| request.prefetch = 1);
    let first = broker.expect_delivery();
    prioritised(&mut broker, "urgent", 3);
    broker.ack(claim("t", "g", "w", &first)).unwrap();
    assert_eq!(broker.delivered_values(), ["urgent"]);
}

#[test]
fn retry_keeps_its_priority() {
    let mut broker = TestBroker::new();
    broker.topic("t", 1);
    prioritised(&mut broker, "urgent", 3);
    let consumer = broker.subscribe_with("t", "g", "w", |request| request.prefetch = 1);
    let urgent = broker.expect_delivery();
    for value in ["a", "b"] {
        broker.produce("t", value);
    }
    prioritised(&mut broker, "less urgent", 2);
    prioritised(&mut broker, "more urgent", 4);
    broker.set_prefetch(consumer, 0);
    broker.nack(claim("t", "g", "w", &urgent), "again").unwrap();
    broker.set_prefetch(consumer, 9);
    assert_eq!(broker.delivered_values(), ["more urgent", "urgent", "less urgent", "a", "b"]);
}

#[test]
fn priority_applies_within_its_partition_only() {
    let mut broker = TestBroker::new();
    broker.topic("t", 2);
    for (value, partition, level) in [("a", 0, 0), ("b", 0, 0), ("x", 1, 0), ("urgent", 1, 9)] {
        broker.produce_with("t", value, |request| {
            request.envelope.partition_override = Some(PartitionId(partition));
            request.envelope.priority = Priority::new(level);
        });
    }
    broker.subscribe("t", "g", "w");
    let delivered = broker.delivered();
    let of = |partition| delivered.iter().filter(move |d| d.partition == PartitionId(partition)).map(value);
    assert_eq!(of(0).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(of(1).collect::<Vec<_>>(), ["urgent", "x"]);
    assert_eq!(delivered.iter().map(|d| d.partition.0).collect::<Vec<_>>(), [1, 0, 1, 0], "partitions take turns");
}

/// The values delivered just before the end of a delay, and at its end.
fn delivered_around_delay<F: Faults>(mut broker: TestBroker<F>) -> (Vec<String>, Vec<String>) {
    broker.topic("t", 1);
    delayed(&mut broker, "late", 5_000);
    broker.produce("t", "now");
    broker.subscribe_with("t", "g", "w", |request| request.lease = Some(Millis(1_000_000)));
    broker.advance(4_999);
    let before = broker.delivered_values();
    broker.advance(1);
    (before, broker.delivered_values())
}

#[test]
fn delay_holds_back_its_message_only_and_ends_exactly() {
    assert_eq!(delivered_around_delay(TestBroker::new()), (vec!["now".to_owned()], vec!["late".to_owned()]));
}

#[test]
fn fault_delayed_delivered_early_is_detected() {
    let (before, after) =
        delivered_around_delay(TestBroker::with(small_config(), Planted(Fault::DelayedDeliveredEarly)));
    assert_eq!((before, after), (vec!["late".to_owned(), "now".to_owned()], vec![]));
}

#[test]
fn delayed_message_is_not_leased() {
    let mut broker = TestBroker::with_limits(|limits| limits.in_flight_max = 1);
    broker.topic("t", 1);
    delayed(&mut broker, "late", 5_000);
    broker.subscribe_with("t", "g", "w", |request| request.prefetch = 1);
    assert_eq!(broker.partition_info("t").delayed, 1);
    let progress = broker.progress("t", "g");
    assert_eq!((progress.in_flight, progress.waiting, progress.lag), (0, 0, 1));
    assert_eq!(progress.blocked, Some(driftq_core::reply::Blocked::NotYetDue));
    broker.advance(5_000);
    assert_eq!(broker.expect_delivery().attempts, 1);
    assert_eq!(broker.partition_info("t").delayed, 0);
}

#[test]
fn deliver_at_acts_as_delay() {
    let mut broker = TestBroker::new();
    broker.topic("t", 1);
    let at = START.after(Millis(300));
    broker.produce_with("t", "late", |request| request.envelope.deliver_at = Some(at));
    broker.produce_with("t", "at once", |request| request.envelope.deliver_at = Some(START));
    broker.subscribe("t", "g", "w");
    assert_eq!(broker.delivered_values(), ["at once"]);
    broker.advance(299);
    assert_eq!(broker.delivered(), []);
    broker.advance(1);
    assert_eq!(broker.delivered_values(), ["late"]);
}

#[test]
fn delay_survives_restart_and_may_end_during_downtime() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        broker.topic("t", 1);
        delayed(&mut broker, "first", 1_000);
        delayed(&mut broker, "second", 5_000);
        broker.group("t", "g");
        broker.restart_after(restart, 1_000);
        broker.subscribe_with("t", "g", "w", |request| request.lease = Some(Millis(1_000_000)));
        assert_eq!(broker.delivered_values(), ["first"]);
        broker.advance(3_999);
        assert_eq!(broker.delivered(), []);
        broker.advance(1);
        assert_eq!(broker.delivered_values(), ["second"]);
    }
}

#[test]
fn delay_reaching_deadline_is_refused() {
    let mut broker = TestBroker::new();
    broker.topic("t", 1);
    let digest = broker.digest();
    let mut request = Produce::new(topic("t"), "", "v");
    request.envelope.deadline = deadline(START.after(Millis(1_000)));
    for delay in [1_000, 1_001, 1_000_000] {
        request.delay = Some(Millis(delay));
        let refused = broker.try_produce(request.clone());
        assert_eq!(refused, Err(Refusal::Invalid("delay reaches beyond the deadline")), "{delay}");
    }
    request.delay = None;
    request.envelope.deliver_at = Some(START.after(Millis(1_001)));
    assert!(broker.try_produce(request.clone()).is_err());
    assert_eq!(broker.digest(), digest);
    request.envelope.deliver_at = Some(START.after(Millis(999)));
    broker.try_produce(request).unwrap();
}

#[test]
fn message_after_delay_is_ordered_by_priority_and_offset() {
    let mut broker = TestBroker::new();
    broker.topic("t", 1);
    delayed(&mut broker, "plain", 1_000);
    broker.produce_with("t", "urgent", |request| {
        request.delay = Some(Millis(1_000));
        request.envelope.priority = Priority::new(7);
    });
    for value in ["a", "b", "c"] {
        broker.produce("t", value);
    }
    let consumer = broker.subscribe_with("t", "g", "w", |request| {
        request.prefetch = 1;
        request.lease = Some(Millis(1_000_000));
    });
    assert_eq!(broker.delivered_values(), ["a"]);
    prioritised(&mut broker, "more urgent", 8);
    prioritised(&mut broker, "less urgent", 6);
    broker.advance(1_000);
    broker.set_prefetch(consumer, 9);
    assert_eq!(broker.delivered_values(), ["more urgent", "urgent", "less urgent", "plain", "b", "c"]);
}

#[test]
fn delayed_message_reaches_groups_at_any_progress() {
    let mut broker = TestBroker::new();
    broker.topic("t", 1);
    for name in ["passed", "waiting", "behind"] {
        broker.group("t", name);
    }
    delayed(&mut broker, "late", 1_000);
    broker.produce("t", "a");
    broker.subscribe("t", "passed", "w");
    broker.delivered();
    broker.advance(1_000);
    assert_eq!(broker.delivered_values(), ["late"], "a group past its offset");
    broker.subscribe("t", "waiting", "w");
    assert_eq!(broker.delivered_values(), ["late", "a"], "a group that has consumed nothing");
    broker.group("t", "new");
    broker.subscribe("t", "new", "w");
    assert_eq!(broker.delivered_values(), ["late", "a"], "a new group");
}

#[test]
fn delays_end_in_order_of_their_times() {
    let mut broker = TestBroker::new();
    broker.topic("t", 1);
    for (value, delay) in [("c", 300), ("a", 100), ("b", 200), ("a2", 100)] {
        delayed(&mut broker, value, delay);
    }
    broker.subscribe("t", "g", "w");
    let mut seen = Vec::new();
    for _ in 0..3 {
        broker.advance(100);
        seen.push(broker.delivered_values());
    }
    assert_eq!(seen, [vec!["a", "a2"], vec!["b"], vec!["c"]]);
}

#[test]
fn ack_in_one_group_keeps_priority_in_another() {
    let mut broker = TestBroker::with_topic(1);
    broker.produce("t", "plain");
    prioritised(&mut broker, "urgent", 5);
    for name in ["quick", "slow"] {
        broker.group("t", name);
    }
    broker.subscribe_with("t", "quick", "w", |request| request.prefetch = 1);
    let urgent = broker.expect_delivery();
    broker.ack(claim("t", "quick", "w", &urgent)).unwrap();
    assert_eq!(broker.delivered_values(), ["plain"]);
    broker.subscribe("t", "slow", "w");
    assert_eq!(broker.delivered_values(), ["urgent", "plain"]);
}

/// A group that is past three delayed messages, with a prefetch of one.
fn past_three_delays() -> TestBroker {
    let mut broker = TestBroker::with_topic(1);
    for (value, delay) in [("first", 1_000), ("second", 2_000), ("third", 3_000)] {
        delayed(&mut broker, value, delay);
    }
    broker.produce("t", "now");
    broker.subscribe_with("t", "g", "w", |request| (request.prefetch, request.lease) = (1, Some(Millis(1_000_000))));
    let now = broker.expect_delivery();
    broker.ack(claim("t", "g", "w", &now)).unwrap();
    broker
}

#[test]
fn group_past_three_delayed_messages_gets_each_at_its_time() {
    let mut broker = past_three_delays();
    for expected in ["first", "second", "third"] {
        broker.advance(1_000);
        let delivery = broker.expect_delivery();
        assert_eq!(value(&delivery), expected);
        broker.ack(claim("t", "g", "w", &delivery)).unwrap();
    }
}

#[test]
fn delay_that_ends_while_a_group_has_no_credit_is_not_forgotten() {
    let mut broker = past_three_delays();
    broker.advance(1_000);
    let first = broker.expect_delivery();
    broker.advance(2_000);
    assert_eq!(broker.delivered(), [], "no credit");
    broker.ack(claim("t", "g", "w", &first)).unwrap();
    assert_eq!(broker.delivered_values(), ["second"]);
}
