//! The bound on the memory of the state: what grows is refused, what drains goes on.

use driftq_core::command::{Command, CreateGroup, CreateTopic, Produce};
use driftq_core::faults::NoFaults;
use driftq_core::reply::Overload;
use driftq_core::types::*;
use driftq_core::{PipelineConfig, Refusal};

use super::test_broker::*;

/// Room for some hundred messages that are leased, of which each takes several hundred bytes.
const BOUND: u64 = 120_000;

fn bounded() -> TestBroker {
    let config = PipelineConfig { state_bytes_max: BOUND, segment_bytes: 1 << 20, ..small_config() };
    let mut broker = TestBroker::with(config, NoFaults);
    broker.topic("t", 1);
    broker.subscribe_with("t", "g", "w", |request| {
        request.prefetch = 10_000;
        request.lease = Some(Millis(1_000_000));
    });
    broker
}

fn attempt(broker: &mut TestBroker) -> Result<(), Refusal> {
    broker.try_produce(Produce::new(topic("t"), "", "value")).map(drop)
}

fn full() -> TestBroker {
    let mut broker = bounded();
    let accepted = (0..10_000).take_while(|_| attempt(&mut broker).is_ok()).count();
    assert!((100..2_000).contains(&accepted), "{accepted} messages were accepted");
    broker
}

#[test]
fn state_at_its_bound_refuses_whatever_makes_it_grow() {
    for restart in RESTARTS {
        let mut broker = full();
        broker.restart(restart);
        // A start counts what was estimated before.
        while attempt(&mut broker).is_ok() {}
        let digest = broker.digest();
        let max = broker.pipeline.state_bytes_max();
        assert!(broker.pipeline.state().memory().bytes > max / 2, "the estimate is not far too high");
        assert_eq!(attempt(&mut broker), Err(overloaded(Overload::Memory)));
        let retention = Default::default();
        let create_topic = CreateTopic { name: topic("other"), partitions: None, retention };
        assert_eq!(broker.send(Command::CreateTopic(create_topic)), Err(overloaded(Overload::Memory)));
        let create_group = CreateGroup { topic: topic("t"), group: group("other"), start: GroupStart::Earliest };
        assert_eq!(broker.send(Command::CreateGroup(create_group)), Err(overloaded(Overload::Memory)));
        assert_eq!(broker.begin(&effect("key")), Err(overloaded(Overload::Memory)));
        let subscribed = broker.send(Command::Subscribe(subscribe("t", "third", "w")));
        assert_eq!(subscribed, Err(overloaded(Overload::Memory)), "a group would be made");
        assert_eq!(broker.digest(), digest, "a refusal changes nothing");
        assert_eq!(Overload::Memory.code(), "memory");
    }
}

#[test]
fn full_state_drains_and_then_grows_again() {
    let mut broker = full();
    broker.subscribe("t", "g", "v");
    for delivery in broker.delivered() {
        broker.ack(claim("t", "g", "w", &delivery)).expect("acks go on");
    }
    broker.advance(1_000);
    attempt(&mut broker).expect("there is room again");
    let after = broker.pipeline.state().memory();
    assert!(after.bytes < BOUND / 2, "{after:?}");
}

#[test]
fn refusal_ends_within_a_second_after_much_was_deleted() {
    let mut broker = full();
    broker.delete_topic("t");
    broker.advance(1_000);
    broker.topic("t", 1);
    attempt(&mut broker).expect("there is room again");
}

#[test]
fn state_without_a_bound_refuses_nothing() {
    let mut broker = TestBroker::with_topic(1);
    assert_eq!(broker.pipeline.state_bytes_max(), u64::MAX);
    for _ in 0..2_000 {
        attempt(&mut broker).unwrap();
    }
    let memory = broker.pipeline.state().memory();
    assert!(memory.bytes < 40_000, "queued messages take a few bytes each: {memory:?}");
}
