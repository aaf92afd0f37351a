//! Counters and gauges of the broker.

use super::test_broker::*;
use driftq_core::command::{Redrive, RedriveSelection};
use driftq_core::types::*;
use driftq_core::{Command, Counters};

#[test]
fn counters_count_every_event_once() {
    let mut broker = TestBroker::with_topic(1);
    let keyed = |request: &mut driftq_core::command::Produce| request.envelope.idempotency_key = Some("k".into());
    broker.produce_with("t", "a", keyed);
    broker.produce_with("t", "a again", keyed);
    broker.subscribe("t", "g", "w");
    let first = broker.expect_delivery();
    broker.extend(claim("t", "g", "w", &first), Some(5_000)).unwrap();
    broker.release(claim("t", "g", "w", &first)).unwrap();
    let second = broker.expect_delivery();
    broker.nack(claim("t", "g", "w", &second), "no").unwrap();
    let third = broker.expect_delivery();
    broker.advance(2_000);
    let fourth = broker.expect_delivery();
    assert_eq!((third.attempts, fourth.attempts), (3, 4));
    broker.ack(claim("t", "g", "w", &fourth)).unwrap();
    broker.ack(claim("t", "g", "w", &fourth)).unwrap();
    let counters = broker.pipeline.broker().counters();
    let Counters { produced, deduplicated, delivered, acked, nacked, expired, released, extended, redriven, .. } =
        counters;
    // The boot, the topic and the group make three more records.
    assert_eq!((counters.appended, counters.refused), (3 + 10, 0));
    assert_eq!((produced, deduplicated, delivered, acked), (1, 1, 4, 1));
    assert_eq!((nacked, expired, released, extended, redriven), (1, 1, 1, 1, 0));
}

#[test]
fn dead_letter_counts_by_topic_and_reason_are_dropped_with_topic() {
    let mut broker = TestBroker::with_topic(1);
    broker.subscribe("t", "g", "w");
    broker.produce_with("t", "nacked", |request| request.envelope.retry_policy = Some(policy(1, 0, 0)));
    let delivery = broker.expect_delivery();
    broker.nack(claim("t", "g", "w", &delivery), "no").unwrap();
    broker.produce_with("t", "expired", |request| request.envelope.retry_policy = Some(policy(1, 0, 0)));
    broker.expect_delivery();
    broker.advance(2_000);
    let dead = |broker: &TestBroker| broker.pipeline.broker().dead_lettered().clone();
    assert_eq!(dead(&broker), [((topic("t"), DeadReason::MaxAttempts), 2)].into());
    assert_eq!((broker.pipeline.broker().counters().nacked, broker.pipeline.broker().counters().expired), (1, 1));
    broker.send(Command::Redrive(Redrive { topic: topic("t"), which: RedriveSelection::All, limit: 1 })).unwrap();
    assert_eq!(broker.pipeline.broker().counters().redriven, 1);
    broker.delete_topic("t");
    assert_eq!(dead(&broker), [].into());
}

#[test]
fn consumer_count_and_held_outputs_are_reported() {
    let mut broker = TestBroker::with_topic(1);
    let first = broker.subscribe("t", "g", "w");
    for name in ["g", "h"] {
        broker.subscribe("t", name, "x");
    }
    assert_eq!(broker.pipeline.broker().consumer_count(), 3);
    broker.unsubscribe(first);
    assert_eq!(broker.pipeline.broker().consumer_count(), 2);
    broker.submit(Command::Produce(Box::new(driftq_core::command::Produce::new(topic("t"), "", "v"))));
    let core = broker.pipeline.broker();
    assert_eq!(core.held_len(), 3, "one reply and two deliveries");
    assert!(core.durable() < core.appended());
    broker.run_until_idle();
    let core = broker.pipeline.broker();
    assert_eq!((core.held_len(), core.durable()), (0, core.appended()));
}
