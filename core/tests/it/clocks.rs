//! Broker time and wall time: durations follow the monotonic clock, absolute times the wall clock as it is now.

use super::test_broker::*;
use driftq_core::command::{DeleteGroup, ExpireLease, Extend, SeekTo};
use driftq_core::types::*;
use driftq_core::{Command, Refusal};

const HOUR: i64 = 3_600_000;

/// Calls the broker with a wall clock that is `ahead` milliseconds ahead of the monotonic clock.
fn wake(broker: &mut TestBroker, ahead: i64) {
    let now = Now { mono: broker.now, wall: broker.now.shifted(ahead) };
    broker.pipeline.handle_timeout(now);
    broker.pipeline.drive(now, &mut broker.storage);
    broker.collect();
}

fn wall(broker: &TestBroker) -> Timestamp {
    broker.pipeline.broker().wall()
}

fn records(broker: &TestBroker) -> u64 {
    broker.pipeline.broker().counters().appended
}

#[test]
fn wall_clock_set_forward_or_back_ends_no_lease() {
    for ahead in [HOUR, -HOUR] {
        let mut broker = TestBroker::with_topic(1);
        broker.produce("t", "a");
        broker.subscribe("t", "g", "w");
        let delivery = broker.expect_delivery();
        wake(&mut broker, ahead);
        broker.now = broker.now.after(Millis(1_999));
        wake(&mut broker, ahead);
        let claim = claim("t", "g", "w", &delivery);
        let now = Now { mono: broker.now, wall: broker.now.shifted(ahead) };
        let ticket = broker.pipeline.handle(now, Command::Extend(Extend { claim, lease: None }));
        broker.run_until_idle();
        assert!(
            broker.reply(ticket).is_some_and(|reply| reply.is_ok()),
            "the lease runs for two seconds by the monotonic clock"
        );
    }
}

#[test]
fn wall_clock_set_forward_is_adopted_by_one_record() {
    let mut broker = TestBroker::with_topic(1);
    let before = records(&broker);
    wake(&mut broker, HOUR);
    assert_eq!(wall(&broker), START.shifted(HOUR));
    broker.now = broker.now.after(Millis(60_000));
    wake(&mut broker, HOUR);
    assert_eq!((records(&broker), broker.pipeline.broker().now()), (before + 1, START.after(Millis(60_000))));
    assert_eq!(broker.pipeline.broker().clock_ahead_ms(Now { mono: broker.now, wall: broker.now }), HOUR);
}

#[test]
fn wall_clock_set_back_is_approached_at_half_speed() {
    let mut broker = TestBroker::with_topic(1);
    wake(&mut broker, -HOUR);
    assert_eq!(wall(&broker), START);
    for minutes in 1..=180_u64 {
        broker.now = START.after(Millis(minutes * 60_000));
        wake(&mut broker, -HOUR);
        let expected = START.0 + (minutes * 30_000).max((minutes * 60_000).saturating_sub(HOUR as u64));
        assert_eq!(wall(&broker), Timestamp(expected), "after {minutes} minutes");
    }
}

#[test]
fn jittering_wall_clock_writes_a_record_every_few_seconds_at_most() {
    let mut broker = TestBroker::with_topic(1);
    let before = records(&broker);
    let mut last = wall(&broker);
    for step in 0..6_000_u64 {
        broker.now = broker.now.after(Millis(10));
        wake(&mut broker, if step % 2 == 0 { 5_000 } else { -5_000 });
        assert!(wall(&broker) >= last, "wall time never runs backwards");
        last = wall(&broker);
    }
    assert!(records(&broker) - before <= 20, "{} records in a minute", records(&broker) - before);
}

#[test]
fn offset_survives_a_restart_and_time_spent_stopped_counts() {
    for restart in RESTARTS {
        let mut broker = TestBroker::with_topic(1);
        wake(&mut broker, HOUR);
        if restart == Restart::Snapshot {
            broker.snapshot();
        }
        // The next boot of the machine: its monotonic clock starts anew.
        let mut storage = broker.storage.crash();
        let now = Now { mono: Timestamp(7), wall: START.shifted(HOUR + 60_000) };
        let opened = driftq_core::OpenOptions::new().config(broker.config.clone()).open(&mut storage, now);
        let (pipeline, _) = opened.expect("the log opens");
        assert_eq!(pipeline.broker().now(), START.after(Millis(60_000)));
        assert_eq!(pipeline.broker().wall(), now.wall);
        assert_eq!(pipeline.broker().time_at(Timestamp(1_007)), START.after(Millis(61_000)));
        assert_eq!(pipeline.broker().mono_at(START.after(Millis(61_000))), Timestamp(1_007));
    }
}

#[test]
fn deadline_given_in_wall_time_is_checked_in_it() {
    let mut broker = TestBroker::with_topic(1);
    wake(&mut broker, HOUR);
    let now = Now { mono: broker.now, wall: broker.now.shifted(HOUR) };
    let mut request = driftq_core::command::Produce::new(topic("t"), "", "v");
    request.envelope.deadline = deadline(START.after(Millis(1_000)));
    let ticket = broker.pipeline.handle(now, request.clone().into());
    broker.pipeline.drive(now, &mut broker.storage);
    broker.collect();
    assert_eq!(broker.reply(ticket), Some(Err(Refusal::DeadlinePassed)));
}

#[test]
fn seek_before_the_epoch_of_broker_time_starts_at_the_beginning() {
    let mut broker = TestBroker::with_topic(1);
    broker.produce("t", "a");
    broker.group("t", "g");
    wake(&mut broker, HOUR);
    let seek = driftq_core::command::Seek { topic: topic("t"), group: group("g"), to: SeekTo::Time(Timestamp(0)) };
    broker.send(Command::Seek(seek)).expect("sought");
    assert_eq!(broker.progress("t", "g").lag, 1);
}

#[test]
fn distance_to_the_wall_clock_counts_the_time_since_the_last_call() {
    let mut broker = TestBroker::with_topic(1);
    wake(&mut broker, 0);
    let later = broker.now.after(Millis(60_000));
    let ahead = |wall| broker.pipeline.broker().clock_ahead_ms(Now { mono: later, wall });
    assert_eq!((ahead(later), ahead(later.after(Millis(500))), ahead(START)), (0, -500, 60_000));
}

#[test]
fn only_absolute_times_make_the_broker_watch_the_wall_clock() {
    let mut broker = TestBroker::with_topic(1);
    broker.produce_with("t", "delayed", |request| request.delay = Some(Millis(1_000)));
    assert!(!broker.pipeline.has_wall_timers());
    broker.produce_with("t", "at", |request| request.envelope.deliver_at = Some(START.after(Millis(1_000))));
    assert!(broker.pipeline.has_wall_timers());
    broker.advance(1_000);
    assert!(!broker.pipeline.has_wall_timers());
    broker.produce_with("t", "until", |request| request.envelope.deadline = deadline(START.after(Millis(2_000))));
    assert!(broker.pipeline.has_wall_timers());
}

#[test]
fn rebased_wall_time_is_the_wall_clock_at_that_moment() {
    let mut broker = TestBroker::with_topic(1);
    wake(&mut broker, 10 * HOUR);
    broker.now = START.after(Millis(60_000));
    let now = Now { mono: broker.now, wall: START };
    broker.pipeline.rebase_wall_clock(now).expect("recorded");
    assert_eq!((wall(&broker), broker.pipeline.broker().now()), (START, broker.now));
    broker.now = broker.now.after(Millis(1_000));
    wake(&mut broker, -60_000);
    assert_eq!(wall(&broker), START.after(Millis(1_000)));
}

#[test]
fn delivery_withdrawn_while_its_delay_runs_again_waits_for_the_end() {
    let mut broker = TestBroker::with_topic(1);
    broker.group("t", "g");
    broker.group("t", "other");
    broker.produce_with("t", "a", |request| request.envelope.deliver_at = Some(START.after(Millis(1_000))));
    broker.advance(1_000);
    // Nothing is synced in between, so the delivery cannot have left.
    broker.submit(Command::Subscribe(subscribe("t", "g", "w")));
    let now = Now { mono: broker.now, wall: START };
    broker.pipeline.rebase_wall_clock(now).expect("recorded");
    let delete = DeleteGroup { topic: topic("t"), group: group("other") };
    broker.pipeline.handle(now, Command::DeleteGroup(delete));
    let (topic, group, partition) = (topic("t"), group("g"), PartitionId(0));
    broker.pipeline.handle(now, Command::ExpireLease(ExpireLease { topic, group, partition, offset: Offset(0) }));
    wake(&mut broker, -1_000);
    assert_eq!(broker.delivered_values(), [""; 0]);
    broker.advance(1_000);
    assert_eq!(broker.delivered_values(), ["a"]);
}
