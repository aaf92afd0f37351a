//! Cleaning: live payloads of mostly dead segments are written again, and the segments go.

use super::test_broker::*;
use driftq_core::command::{Redrive, RedriveSelection};
use driftq_core::faults::NoFaults;
use driftq_core::log::{FileId, Storage};
use driftq_core::types::Millis;
use driftq_core::{Command, PipelineConfig};

/// Nothing is cached, segments are small, and every byte beyond twice the live ones is too many.
fn config() -> PipelineConfig {
    PipelineConfig {
        memory_bytes: 0,
        segment_bytes: 16 << 10,
        reserve_bytes: 1 << 10,
        snapshot_every_bytes: 24 << 10,
        rest_after: Some(Millis(2_000)),
        clean_spare_segments: 0,
        ..small_config()
    }
}

fn text(name: &str, number: usize) -> String {
    format!("{name}-{number}-{}", "x".repeat(400))
}

fn ack_all(broker: &mut TestBroker) {
    while let Some((_, delivery)) = broker.deliveries.pop() {
        broker.ack(claim("t", "g", "w", &delivery)).unwrap();
    }
}

/// Every tenth message of 400 stays; the others are acked.
fn mostly_acked() -> TestBroker {
    let mut broker = TestBroker::with(config(), NoFaults);
    broker.topic("t", 1);
    broker.topic("kept", 2);
    broker.subscribe("t", "g", "w");
    for number in 0..400 {
        match number % 10 {
            0 => drop(broker.produce("kept", &text("kept", number))),
            _ => drop(broker.produce("t", &text("t", number))),
        }
        ack_all(&mut broker);
    }
    broker.advance(60_000);
    broker
}

fn kept_values() -> Vec<String> {
    (0..400).step_by(10).map(|number| text("kept", number)).collect()
}

fn segments(broker: &mut TestBroker) -> Vec<u64> {
    let files = broker.storage.list().unwrap().into_iter();
    files.filter_map(|info| if let FileId::Segment(sequence) = info.file { Some(sequence) } else { None }).collect()
}

fn sorted(mut values: Vec<String>) -> Vec<String> {
    values.sort();
    values
}

#[test]
fn live_payloads_move_and_their_segments_go() {
    let mut broker = mostly_acked();
    let relocated = broker.pipeline.broker().counters().relocated;
    assert!(relocated > 0, "nothing was written again");
    let figures = broker.pipeline.log_figures();
    assert_eq!(figures.to_clean, 0, "cleaning came to an end");
    let bytes: u64 = kept_values().iter().map(|value| value.len() as u64).sum();
    assert!(figures.log_bytes <= 3 * bytes + (16 << 10), "{figures:?}, {bytes} bytes are live");
    assert!(segments(&mut broker).len() <= 6, "{:?}", segments(&mut broker));
    assert_eq!(sorted(broker.stored_values("kept")), sorted(kept_values()));
    for restart in RESTARTS {
        broker.restart(restart);
        assert_eq!(sorted(broker.stored_values("kept")), sorted(kept_values()));
    }
    broker.advance(60_000);
    assert_eq!(broker.pipeline.broker().counters().relocated, 0, "nothing moves that has moved already");
}

#[test]
fn relocated_messages_are_delivered_as_they_were_produced() {
    let mut broker = mostly_acked();
    broker.subscribe_with("kept", "g", "w", |request| request.prefetch = 100);
    let values = broker.delivered_values();
    assert_eq!(sorted(values), sorted(kept_values()));
}

#[test]
fn dead_letters_and_redriven_messages_move_with_their_source() {
    let mut broker = TestBroker::with(config(), NoFaults);
    broker.topic("t", 1);
    broker.topic("noise", 1);
    broker.subscribe("t", "g", "w");
    broker.subscribe("noise", "g", "w");
    // A message that two groups need, and that is dead-lettered in one of them.
    broker.group("t", "other");
    let shared = text("shared", 0);
    broker.produce_with("t", &shared, |produce| produce.envelope.retry_policy = Some(policy(1, 0, 0)));
    let delivery = broker.expect_delivery();
    broker.nack(claim("t", "g", "w", &delivery), "broken").unwrap();
    let noise = |broker: &mut TestBroker| {
        for number in 0..200 {
            broker.produce("noise", &text("noise", number));
            while let Some((_, delivery)) = broker.deliveries.pop() {
                broker.ack(claim("noise", "g", "w", &delivery)).unwrap();
            }
        }
        broker.advance(60_000);
    };
    noise(&mut broker);
    assert!(broker.pipeline.broker().counters().relocated > 0);
    assert_eq!(broker.stored_values("t"), std::slice::from_ref(&shared));
    assert_eq!(broker.stored_values("dlq.t"), std::slice::from_ref(&shared));
    broker.restart(Restart::Crash);
    broker.send(Command::Redrive(Redrive { topic: topic("t"), which: RedriveSelection::All, limit: 10 })).unwrap();
    broker.subscribe("noise", "g", "w");
    noise(&mut broker);
    assert_eq!(broker.stored_values("t"), [shared.clone(), shared.clone()]);
    broker.restart(Restart::Crash);
    assert_eq!(broker.stored_values("t"), [shared.clone(), shared]);
}
