//! Dispatch: round robin within a group, credit per stream, in-flight limit per partition.

use super::test_broker::*;
use driftq_core::command::{DescribeTopic, Resume, SeekTo, SetPrefetch, Unsubscribe};
use driftq_core::faults::{Fault, Faults, NoFaults, Planted};
use driftq_core::reply::{Blocked, Delivery};
use driftq_core::types::*;
use driftq_core::{Command, Refusal, Reply};

fn produce_many<F: Faults>(broker: &mut TestBroker<F>, count: usize) {
    for value in 0..count {
        broker.produce("t", &value.to_string());
    }
}

#[test]
fn streams_of_group_take_turns() {
    let mut broker = TestBroker::with_topic(1);
    let streams: Vec<_> = ["w", "x", "y"].map(|owner_name| broker.subscribe("t", "g", owner_name)).into();
    produce_many(&mut broker, 7);
    let turns: Vec<_> = broker.delivered_by_consumer().iter().map(|(consumer, _)| *consumer).collect();
    let expected: Vec<_> = [0, 1, 2, 0, 1, 2, 0].map(|turn| streams[turn]).into();
    assert_eq!(turns, expected);
}

#[test]
fn message_is_delivered_to_one_stream_of_group() {
    let mut broker = TestBroker::with_topic(1);
    for owner_name in ["w", "x", "y"] {
        broker.subscribe("t", "g", owner_name);
    }
    produce_many(&mut broker, 10);
    let mut offsets: Vec<_> = broker.delivered().iter().map(|delivery| delivery.offset.0).collect();
    offsets.sort_unstable();
    assert_eq!(offsets, (0..10).collect::<Vec<_>>());
}

#[test]
fn streams_without_credit_are_passed_over() {
    let mut broker = TestBroker::with_topic(1);
    let small = broker.subscribe_with("t", "g", "small", |request| request.prefetch = 1);
    let none = broker.subscribe_with("t", "g", "none", |request| request.prefetch = 0);
    let large = broker.subscribe("t", "g", "large");
    produce_many(&mut broker, 4);
    let turns: Vec<_> = broker.delivered_by_consumer().iter().map(|(consumer, _)| *consumer).collect();
    assert_eq!(turns, [small, large, large, large]);
    assert!(!turns.contains(&none));
}

#[test]
fn stream_holds_no_more_leases_than_prefetch() {
    let mut broker = TestBroker::with_topic(1);
    produce_many(&mut broker, 10);
    broker.subscribe_with("t", "g", "w", |request| request.prefetch = 3);
    assert_eq!(broker.delivered().len(), 3);
    let progress = broker.progress("t", "g");
    assert_eq!((progress.in_flight, progress.blocked), (3, Some(Blocked::NoCredit)));
}

/// Ends the only lease of a stream with a prefetch of one, and returns whether the next message is then delivered.
fn credit_returns_after(end: impl FnOnce(&mut TestBroker, &Delivery)) -> bool {
    let mut broker = TestBroker::with_topic(1);
    broker.produce_with("t", "first", |request| request.envelope.retry_policy = Some(policy(1, 60_000, 0)));
    broker.produce("t", "second");
    broker.subscribe_with("t", "g", "w", |request| request.prefetch = 1);
    let delivery = broker.expect_delivery();
    end(&mut broker, &delivery);
    let next = broker.delivered();
    next.len() == 1 && broker.progress("t", "g").in_flight == 1
}

#[test]
fn credit_returns_however_lease_ends() {
    let claimed = |delivery: &Delivery| claim("t", "g", "w", delivery);
    assert!(credit_returns_after(|broker, delivery| broker.ack(claimed(delivery)).unwrap()), "ack");
    assert!(credit_returns_after(|broker, delivery| broker.release(claimed(delivery)).unwrap()), "release");
    assert!(credit_returns_after(|broker, delivery| broker.nack(claimed(delivery), "dead").unwrap()), "dead letter");
    assert!(credit_returns_after(|broker, _| broker.advance(2_000)), "expiry at the last attempt");
    assert!(credit_returns_after(|broker, _| broker.seek("t", "g", SeekTo::Earliest).unwrap()), "seek");
    let extend = |broker: &mut TestBroker, delivery: &Delivery| {
        broker.extend(claimed(delivery), Some(9_000)).unwrap();
    };
    assert!(!credit_returns_after(extend), "an extend ends no lease");
}

#[test]
fn credit_returns_after_nack_or_expiry_with_pending_retry() {
    for by_expiry in [false, true] {
        let mut broker = TestBroker::with_topic(1);
        broker.produce_with("t", "first", |request| request.envelope.retry_policy = Some(policy(0, 60_000, 0)));
        broker.produce("t", "second");
        broker.subscribe_with("t", "g", "w", |request| request.prefetch = 1);
        let delivery = broker.expect_delivery();
        match by_expiry {
            true => broker.advance(2_000),
            false => broker.nack(claim("t", "g", "w", &delivery), "later").unwrap(),
        }
        assert_eq!(broker.delivered_values(), ["second"], "by expiry: {by_expiry}");
    }
}

#[test]
fn stream_with_zero_prefetch_receives_nothing_until_raised() {
    let mut broker = TestBroker::with_topic(1);
    let stream = broker.subscribe_with("t", "g", "w", |request| request.prefetch = 0);
    produce_many(&mut broker, 3);
    assert_eq!(broker.delivered(), []);
    broker.set_prefetch(stream, 2);
    assert_eq!(broker.delivered_values(), ["0", "1"]);
    broker.set_prefetch(stream, 1);
    produce_many(&mut broker, 1);
    assert_eq!(broker.delivered(), [], "it holds more leases than its prefetch allows");
    broker.set_prefetch(stream, 3);
    assert_eq!(broker.delivered_values(), ["2"]);
}

#[test]
fn stream_receives_at_most_deliveries_max() {
    let mut broker = TestBroker::with_topic(1);
    produce_many(&mut broker, 5);
    broker.subscribe_with("t", "g", "w", |request| request.deliveries_max = Some(2));
    let held = broker.delivered();
    assert_eq!(held.len(), 2);
    for delivery in held {
        broker.ack(claim("t", "g", "w", &delivery)).unwrap();
    }
    assert_eq!(broker.delivered(), []);
    broker.subscribe("t", "g", "x");
    assert_eq!(broker.delivered_values(), ["2", "3", "4"]);
}

fn in_flight_under_limit_of_two(faults: impl Faults) -> (usize, usize) {
    let mut config = small_config();
    config.limits.in_flight_max = 2;
    let mut broker = TestBroker::with(config, faults);
    broker.topic("t", 2);
    for partition in [0, 0, 0, 1, 1, 1] {
        broker.produce_with("t", "v", |request| request.envelope.partition_override = Some(PartitionId(partition)));
    }
    broker.subscribe("t", "g", "w");
    broker.subscribe("t", "g", "x");
    let of_one_group = broker.delivered().len();
    broker.subscribe("t", "h", "w");
    (of_one_group, broker.delivered().len())
}

#[test]
fn in_flight_limit_applies_per_group_and_partition() {
    assert_eq!(in_flight_under_limit_of_two(NoFaults), (4, 4));
}

#[test]
fn fault_in_flight_off_by_one_is_detected() {
    assert_eq!(in_flight_under_limit_of_two(Planted(Fault::InFlightOffByOne)), (6, 6));
}

#[test]
fn leases_from_before_restart_count_against_in_flight_limit() {
    for restart in RESTARTS {
        let mut broker = TestBroker::with_limits(|limits| limits.in_flight_max = 2);
        broker.topic("t", 1);
        produce_many(&mut broker, 4);
        broker.subscribe("t", "g", "w");
        let held = broker.delivered();
        broker.restart(restart);
        broker.subscribe_with("t", "g", "x", |request| request.prefetch = 1);
        assert_eq!(broker.delivered(), []);
        assert_eq!(broker.progress("t", "g").blocked, Some(Blocked::InFlightLimit));
        broker.ack(claim("t", "g", "w", &held[0])).unwrap();
        assert_eq!(broker.delivered_values(), ["2"], "old leases take none of the new stream's credit");
    }
}

#[test]
fn leases_of_gone_stream_count_in_flight_but_use_no_credit() {
    let mut broker = TestBroker::with_limits(|limits| limits.in_flight_max = 2);
    broker.topic("t", 1);
    produce_many(&mut broker, 4);
    let gone = broker.subscribe_with("t", "g", "w", |request| request.prefetch = 1);
    let held = broker.expect_delivery();
    broker.unsubscribe(gone);
    broker.subscribe_with("t", "g", "w", |request| request.prefetch = 1);
    assert_eq!(broker.delivered_values(), ["1"]);
    assert_eq!(broker.progress("t", "g").blocked, Some(Blocked::InFlightLimit));
    broker.ack(claim("t", "g", "w", &held)).unwrap();
    assert_eq!(broker.delivered(), [], "the new stream has no credit left");
    assert_eq!(broker.progress("t", "g").blocked, Some(Blocked::NoCredit));
}

#[test]
fn gone_stream_receives_nothing() {
    let mut broker = TestBroker::with_topic(1);
    let gone = broker.subscribe("t", "g", "w");
    broker.unsubscribe(gone);
    broker.produce("t", "a");
    assert_eq!(broker.delivered(), []);
    assert_eq!(broker.progress("t", "g").blocked, Some(Blocked::NoConsumers));
    for command in [
        Command::Unsubscribe(Unsubscribe { consumer: gone }),
        Command::SetPrefetch(SetPrefetch { consumer: gone, prefetch: 1 }),
    ] {
        assert_eq!(broker.send(command), Err(Refusal::UnknownConsumer));
    }
}

#[test]
fn partitions_take_turns() {
    let mut broker = TestBroker::new();
    broker.topic("t", 3);
    for partition in [0, 0, 0, 0, 1, 1, 2] {
        broker.produce_with("t", "v", |request| request.envelope.partition_override = Some(PartitionId(partition)));
    }
    broker.subscribe_with("t", "g", "w", |request| request.prefetch = 6);
    let mut first: Vec<_> = broker.delivered().iter().take(3).map(|delivery| delivery.partition.0).collect();
    first.sort_unstable();
    assert_eq!(first, [0, 1, 2]);
}

#[test]
fn long_backlog_is_delivered_in_full_over_many_calls() {
    let mut config = small_config();
    config.segment_bytes = 4 << 20;
    config.limits.in_flight_max = 10_000;
    let mut broker = TestBroker::with(config, NoFaults);
    broker.topic("t", 1);
    produce_many(&mut broker, 2_500);
    for name in ["g", "h"] {
        broker.group("t", name);
    }
    for name in ["g", "h"] {
        broker.subscribe_with("t", name, "w", |request| request.prefetch = 10_000);
    }
    assert_eq!(broker.delivered().len(), 5_000);
}

/// Two groups with longer backlogs than one call delivers. Group `g` has already received as much as one call delivers.
fn two_long_backlogs() -> TestBroker {
    let mut config = small_config();
    config.segment_bytes = 4 << 20;
    config.limits.in_flight_max = 10_000;
    let mut broker = TestBroker::with(config, NoFaults);
    broker.topic("t", 40);
    for number in 0..2_500 {
        broker.produce_to("t", number % 40, "v");
    }
    broker.group("t", "h");
    broker.pause("t", "h");
    broker.subscribe_with("t", "h", "w", |request| request.prefetch = 10_000);
    let mut request = subscribe("t", "g", "w");
    request.prefetch = 10_000;
    broker.submit(Command::Subscribe(request));
    broker
}

#[test]
fn group_with_long_backlog_leaves_others_their_turn() {
    let mut broker = two_long_backlogs();
    let before = broker.pipeline.broker().counters().delivered;
    broker.submit(Command::Resume(Resume { topic: topic("t"), group: group("h") }));
    let delivered = broker.pipeline.broker().counters().delivered - before;
    let topic = broker.pipeline.state().topic_named(&topic("t")).expect("exists");
    let partitions = topic.group_named(&group("h")).expect("exists").partitions();
    let in_flight: u64 = partitions.map(|(_, progress)| u64::from(progress.in_flight())).sum();
    assert_eq!(in_flight, delivered / 2, "one call delivers the same number to both groups");
}

#[test]
fn group_waiting_for_next_call_is_reported_not_blocked() {
    let mut broker = two_long_backlogs();
    let ticket = broker.submit(Command::DescribeTopic(DescribeTopic { name: topic("t") }));
    broker.run_until_idle();
    let Some(Ok(Reply::Topic(info))) = broker.reply(ticket) else { panic!("not described") };
    let group = info.groups.iter().find(|info| info.group == group("g")).expect("exists");
    let progress = group.partitions[0];
    assert!(progress.lag > u64::from(progress.in_flight), "there is more to deliver");
    assert_eq!(progress.blocked, None);
}
