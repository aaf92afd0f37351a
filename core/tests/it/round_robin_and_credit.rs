//! Who is handed what: turns inside a group, credit of a stream, places in flight.

use super::rig::*;
use driftq_core::command::SeekTo;
use driftq_core::faults::{Fault, Faults, NoFaults, Planted};
use driftq_core::reply::{Blocked, Delivery};
use driftq_core::types::*;
use driftq_core::{Command, Refusal, Reply};

fn produce_many<F: Faults>(rig: &mut Rig<F>, count: usize) {
    for value in 0..count {
        rig.produce("t", &value.to_string());
    }
}

#[test]
fn a_groups_streams_take_turns() {
    let mut rig = Rig::with_topic(1);
    let streams: Vec<_> = ["w", "x", "y"].map(|who| rig.subscribe("t", "g", who)).into();
    produce_many(&mut rig, 7);
    let turns: Vec<_> = rig.served().iter().map(|(consumer, _)| *consumer).collect();
    let expected: Vec<_> = [0, 1, 2, 0, 1, 2, 0].map(|turn| streams[turn]).into();
    assert_eq!(turns, expected);
}

#[test]
fn every_delivery_goes_to_one_stream_of_the_group() {
    let mut rig = Rig::with_topic(1);
    for who in ["w", "x", "y"] {
        rig.subscribe("t", "g", who);
    }
    produce_many(&mut rig, 10);
    let mut offsets: Vec<_> = rig.delivered().iter().map(|delivery| delivery.offset.0).collect();
    offsets.sort_unstable();
    assert_eq!(offsets, (0..10).collect::<Vec<_>>());
}

#[test]
fn turns_pass_over_streams_without_credit() {
    let mut rig = Rig::with_topic(1);
    let small = rig.subscribe_with("t", "g", "small", |asked| asked.prefetch = 1);
    let none = rig.subscribe_with("t", "g", "none", |asked| asked.prefetch = 0);
    let large = rig.subscribe("t", "g", "large");
    produce_many(&mut rig, 4);
    let turns: Vec<_> = rig.served().iter().map(|(consumer, _)| *consumer).collect();
    assert_eq!(turns, [small, large, large, large]);
    assert!(!turns.contains(&none));
}

#[test]
fn a_stream_holds_no_more_leases_than_its_prefetch() {
    let mut rig = Rig::with_topic(1);
    produce_many(&mut rig, 10);
    rig.subscribe_with("t", "g", "w", |asked| asked.prefetch = 3);
    assert_eq!(rig.delivered().len(), 3);
    let progress = rig.progress("t", "g");
    assert_eq!((progress.in_flight, progress.blocked), (3, Some(Blocked::NoCredit)));
}

/// Ends the one lease of a stream with a prefetch of one in some way, and says whether the next message then comes.
fn credit_returns_after(end: impl FnOnce(&mut Rig, &Delivery)) -> bool {
    let mut rig = Rig::with_topic(1);
    rig.produce_with("t", "first", |asked| asked.envelope.retry_policy = Some(policy(1, 60_000, 0)));
    rig.produce("t", "second");
    rig.subscribe_with("t", "g", "w", |asked| asked.prefetch = 1);
    let delivery = rig.one();
    end(&mut rig, &delivery);
    let next = rig.delivered();
    next.len() == 1 && rig.progress("t", "g").in_flight == 1
}

#[test]
fn credit_returns_when_a_lease_ends_however_it_ends() {
    let claimed = |delivery: &Delivery| claim("t", "g", "w", delivery);
    assert!(credit_returns_after(|rig, delivery| rig.ack(claimed(delivery)).unwrap()), "ack");
    assert!(credit_returns_after(|rig, delivery| rig.release(claimed(delivery)).unwrap()), "release");
    assert!(credit_returns_after(|rig, delivery| rig.nack(claimed(delivery), "dead").unwrap()), "dead letter");
    assert!(credit_returns_after(|rig, _| rig.pass(2_000)), "expiry into the dead letters");
    assert!(credit_returns_after(|rig, _| rig.seek("t", "g", SeekTo::Earliest).unwrap()), "seek");
    let extend = |rig: &mut Rig, delivery: &Delivery| {
        rig.extend(claimed(delivery), Some(9_000)).unwrap();
    };
    assert!(!credit_returns_after(extend), "an extension ends nothing");
}

#[test]
fn credit_returns_after_a_nack_and_after_an_expiry_with_a_retry_to_come() {
    for by_expiry in [false, true] {
        let mut rig = Rig::with_topic(1);
        rig.produce_with("t", "first", |asked| asked.envelope.retry_policy = Some(policy(0, 60_000, 0)));
        rig.produce("t", "second");
        rig.subscribe_with("t", "g", "w", |asked| asked.prefetch = 1);
        let delivery = rig.one();
        match by_expiry {
            true => rig.pass(2_000),
            false => rig.nack(claim("t", "g", "w", &delivery), "later").unwrap(),
        }
        assert_eq!(rig.values(), ["second"], "by expiry: {by_expiry}");
    }
}

#[test]
fn a_stream_told_to_hold_nothing_stops_until_it_is_told_otherwise() {
    let mut rig = Rig::with_topic(1);
    let stream = rig.subscribe_with("t", "g", "w", |asked| asked.prefetch = 0);
    produce_many(&mut rig, 3);
    assert_eq!(rig.delivered(), []);
    rig.set_prefetch(stream, 2);
    assert_eq!(rig.values(), ["0", "1"]);
    rig.set_prefetch(stream, 1);
    produce_many(&mut rig, 1);
    assert_eq!(rig.delivered(), [], "it holds more than it may now");
    rig.set_prefetch(stream, 3);
    assert_eq!(rig.values(), ["2"]);
}

#[test]
fn a_stream_is_given_no_more_than_it_asked_for_in_all() {
    let mut rig = Rig::with_topic(1);
    produce_many(&mut rig, 5);
    rig.subscribe_with("t", "g", "w", |asked| asked.deliveries_max = Some(2));
    let held = rig.delivered();
    assert_eq!(held.len(), 2);
    for delivery in held {
        rig.ack(claim("t", "g", "w", &delivery)).unwrap();
    }
    assert_eq!(rig.delivered(), []);
    rig.subscribe("t", "g", "x");
    assert_eq!(rig.values(), ["2", "3", "4"]);
}

fn in_flight_under_a_limit_of_two(faults: impl Faults) -> (usize, usize) {
    let mut config = small_config();
    config.limits.in_flight_max = 2;
    let mut rig = Rig::with(config, faults);
    rig.topic("t", 2);
    for partition in [0, 0, 0, 1, 1, 1] {
        rig.produce_with("t", "v", |asked| asked.envelope.partition_override = Some(PartitionId(partition)));
    }
    rig.subscribe("t", "g", "w");
    rig.subscribe("t", "g", "x");
    let of_one_group = rig.delivered().len();
    rig.subscribe("t", "h", "w");
    (of_one_group, rig.delivered().len())
}

#[test]
fn the_in_flight_limit_holds_for_every_group_and_partition_by_itself() {
    assert_eq!(in_flight_under_a_limit_of_two(NoFaults), (4, 4));
}

#[test]
fn an_in_flight_limit_off_by_one_would_be_caught() {
    assert_eq!(in_flight_under_a_limit_of_two(Planted(Fault::InFlightOffByOne)), (6, 6));
}

#[test]
fn leases_from_before_a_restart_still_take_their_places_in_flight() {
    for way in RESTARTS {
        let mut rig = Rig::with_limits(|limits| limits.in_flight_max = 2);
        rig.topic("t", 1);
        produce_many(&mut rig, 4);
        rig.subscribe("t", "g", "w");
        let held = rig.delivered();
        rig.restart(way);
        rig.subscribe_with("t", "g", "x", |asked| asked.prefetch = 1);
        assert_eq!(rig.delivered(), []);
        assert_eq!(rig.progress("t", "g").blocked, Some(Blocked::InFlightLimit));
        rig.ack(claim("t", "g", "w", &held[0])).unwrap();
        assert_eq!(rig.values(), ["2"], "and take none of the new stream's credit");
    }
}

#[test]
fn the_leases_of_a_stream_that_is_gone_keep_their_places_but_nobodys_credit() {
    let mut rig = Rig::with_limits(|limits| limits.in_flight_max = 2);
    rig.topic("t", 1);
    produce_many(&mut rig, 4);
    let gone = rig.subscribe_with("t", "g", "w", |asked| asked.prefetch = 1);
    let held = rig.one();
    rig.unsubscribe(gone);
    rig.subscribe_with("t", "g", "w", |asked| asked.prefetch = 1);
    assert_eq!(rig.values(), ["1"]);
    assert_eq!(rig.progress("t", "g").blocked, Some(Blocked::InFlightLimit));
    rig.ack(claim("t", "g", "w", &held)).unwrap();
    assert_eq!(rig.delivered(), [], "the new stream holds what it may");
    assert_eq!(rig.progress("t", "g").blocked, Some(Blocked::NoCredit));
}

#[test]
fn a_stream_that_is_gone_is_handed_nothing() {
    let mut rig = Rig::with_topic(1);
    let gone = rig.subscribe("t", "g", "w");
    rig.unsubscribe(gone);
    rig.produce("t", "a");
    assert_eq!(rig.delivered(), []);
    assert_eq!(rig.progress("t", "g").blocked, Some(Blocked::NoConsumers));
    for command in [Command::Unsubscribe { consumer: gone }, Command::SetPrefetch { consumer: gone, prefetch: 1 }] {
        assert_eq!(rig.send(command), Err(Refusal::UnknownConsumer));
    }
}

#[test]
fn partitions_take_turns_too() {
    let mut rig = Rig::new();
    rig.topic("t", 3);
    for partition in [0, 0, 0, 0, 1, 1, 2] {
        rig.produce_with("t", "v", |asked| asked.envelope.partition_override = Some(PartitionId(partition)));
    }
    rig.subscribe_with("t", "g", "w", |asked| asked.prefetch = 6);
    let mut first: Vec<_> = rig.delivered().iter().take(3).map(|delivery| delivery.partition.0).collect();
    first.sort_unstable();
    assert_eq!(first, [0, 1, 2]);
}

#[test]
fn a_long_backlog_is_handed_out_to_the_end_whatever_one_call_takes_on() {
    let mut config = small_config();
    config.segment_bytes = 4 << 20;
    config.limits.in_flight_max = 10_000;
    let mut rig = Rig::with(config, NoFaults);
    rig.topic("t", 1);
    produce_many(&mut rig, 2_500);
    for name in ["g", "h"] {
        rig.group("t", name);
    }
    for name in ["g", "h"] {
        rig.subscribe_with("t", name, "w", |asked| asked.prefetch = 10_000);
    }
    assert_eq!(rig.delivered().len(), 5_000);
}

/// Two groups with more to be handed than one call takes on: of `g` as much as one call takes on is handed out already.
fn two_long_backlogs() -> Rig {
    let mut config = small_config();
    config.segment_bytes = 4 << 20;
    config.limits.in_flight_max = 10_000;
    let mut rig = Rig::with(config, NoFaults);
    rig.topic("t", 40);
    for number in 0..2_500 {
        rig.produce_to("t", number % 40, "v");
    }
    rig.group("t", "h");
    rig.pause("t", "h");
    rig.subscribe_with("t", "h", "w", |asked| asked.prefetch = 10_000);
    let mut asked = subscribe("t", "g", "w");
    asked.prefetch = 10_000;
    rig.submit(Command::Subscribe(asked));
    rig
}

#[test]
fn a_group_with_much_to_be_handed_leaves_another_its_turn() {
    let mut rig = two_long_backlogs();
    let before = rig.pipeline.broker().counters().delivered;
    rig.submit(Command::Resume { topic: topic("t"), group: group("h") });
    let handed = rig.pipeline.broker().counters().delivered - before;
    let topic = rig.pipeline.state().topic_named(&topic("t")).expect("there");
    let partitions = topic.group_named(&group("h")).expect("there").partitions();
    let in_flight: u64 = partitions.map(|(_, progress)| u64::from(progress.in_flight())).sum();
    assert_eq!(in_flight, handed / 2, "one call hands both as much");
}

#[test]
fn nothing_blocks_a_group_whose_next_messages_the_next_call_hands_out() {
    let mut rig = two_long_backlogs();
    let ticket = rig.submit(Command::DescribeTopic { name: topic("t") });
    rig.settle();
    let Some(Ok(Reply::Topic(info))) = rig.reply(ticket) else { panic!("not described") };
    let group = info.groups.iter().find(|info| info.group == group("g")).expect("there");
    let progress = group.partitions[0];
    assert!(progress.lag > u64::from(progress.in_flight), "there is more to hand out");
    assert_eq!(progress.blocked, None);
}
