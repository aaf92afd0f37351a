//! What is counted for whoever watches.

use super::rig::*;
use driftq_core::command::RedriveSelection;
use driftq_core::types::*;
use driftq_core::{Command, Counters};

#[test]
fn everything_that_happens_is_counted_once() {
    let mut rig = Rig::with_topic(1);
    let keyed = |asked: &mut driftq_core::command::Produce| asked.envelope.idempotency_key = Some("k".into());
    rig.produce_with("t", "a", keyed);
    rig.produce_with("t", "a again", keyed);
    rig.subscribe("t", "g", "w");
    let first = rig.one();
    rig.extend(claim("t", "g", "w", &first), Some(5_000)).unwrap();
    rig.release(claim("t", "g", "w", &first)).unwrap();
    let second = rig.one();
    rig.nack(claim("t", "g", "w", &second), "no").unwrap();
    let third = rig.one();
    rig.pass(2_000);
    let fourth = rig.one();
    assert_eq!((third.attempts, fourth.attempts), (3, 4));
    rig.ack(claim("t", "g", "w", &fourth)).unwrap();
    rig.ack(claim("t", "g", "w", &fourth)).unwrap();
    let counters = rig.pipeline.broker().counters();
    let Counters { produced, deduplicated, delivered, acked, nacked, expired, released, extended, redriven, .. } =
        counters;
    // Besides, the boot, the topic and the group were recorded.
    assert_eq!((counters.appended, counters.refused), (3 + 10, 0));
    assert_eq!((produced, deduplicated, delivered, acked), (1, 1, 4, 1));
    assert_eq!((nacked, expired, released, extended, redriven), (1, 1, 1, 1, 0));
}

#[test]
fn dead_letters_are_counted_by_topic_and_reason_and_forgotten_with_the_topic() {
    let mut rig = Rig::with_topic(1);
    rig.subscribe("t", "g", "w");
    rig.produce_with("t", "nacked", |asked| asked.envelope.retry_policy = Some(policy(1, 0, 0)));
    let delivery = rig.one();
    rig.nack(claim("t", "g", "w", &delivery), "no").unwrap();
    rig.produce_with("t", "expired", |asked| asked.envelope.retry_policy = Some(policy(1, 0, 0)));
    rig.one();
    rig.pass(2_000);
    let dead = |rig: &Rig| rig.pipeline.broker().dead_lettered().clone();
    assert_eq!(dead(&rig), [((topic("t"), DeadReason::MaxAttempts), 2)].into());
    assert_eq!((rig.pipeline.broker().counters().nacked, rig.pipeline.broker().counters().expired), (1, 1));
    rig.send(Command::Redrive { topic: topic("t"), which: RedriveSelection::All, limit: 1 }).unwrap();
    assert_eq!(rig.pipeline.broker().counters().redriven, 1);
    rig.delete_topic("t");
    assert_eq!(dead(&rig), [].into());
}

#[test]
fn who_is_connected_and_what_waits_for_the_disk_is_told() {
    let mut rig = Rig::with_topic(1);
    let first = rig.subscribe("t", "g", "w");
    for name in ["g", "h"] {
        rig.subscribe("t", name, "x");
    }
    assert_eq!(rig.pipeline.broker().consumer_count(), 3);
    rig.unsubscribe(first);
    assert_eq!(rig.pipeline.broker().consumer_count(), 2);
    rig.submit(Command::Produce(Box::new(driftq_core::command::Produce::new(topic("t"), "", "v"))));
    let broker = rig.pipeline.broker();
    assert_eq!(broker.held_len(), 3, "an answer and two deliveries");
    assert!(broker.durable() < broker.appended());
    rig.settle();
    let broker = rig.pipeline.broker();
    assert_eq!((broker.held_len(), broker.durable()), (0, broker.appended()));
}
