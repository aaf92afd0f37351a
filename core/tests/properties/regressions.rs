//! Sequences that once broke a promise, as small as they could be made. Each is a bug that was there.

use driftq_core::faults::NoFaults;

use super::steps::{Keep, Made, Plan, Shape, Step, Twist, Word};
use super::world::run;

fn shape() -> Shape {
    Shape {
        in_flight_max: 3,
        messages_max: 8,
        bytes_max: 200,
        dedupe_ttl: 500,
        dedupe_keys_max: 3,
        segment_room: 4_000,
        reserve: 0,
        snapshot_every: u64::MAX,
        slice_bytes: 100,
    }
}

fn holds(shape: Shape, steps: Vec<Step>) {
    if let Err(violation) = run(&Plan { shape, steps }, NoFaults) {
        panic!("{violation}");
    }
}

fn topic(topic: u8) -> Step {
    Step::CreateTopic { topic, partitions: 1, retention: 0 }
}

fn stream(topic: u8, prefetch: u8) -> Step {
    Step::Subscribe { topic, group: 0, owner: 0, lease: 1, prefetch, most: None, latest: false, release: false }
}

fn produce() -> Step {
    Step::Produce(Made::default())
}

fn produce_with(change: impl FnOnce(&mut Made)) -> Step {
    let mut made = Made::default();
    change(&mut made);
    Step::Produce(made)
}

/// The partition was full when the group last looked, and nothing said that it no longer was.
#[test]
fn a_redrive_of_a_dead_letter_that_a_worker_holds_lets_the_next_one_out() {
    let dies = produce_with(|made| made.policy = Some((1, 0, 0)));
    let redrive = Step::Redrive { topic: 0, offset: None, limit: 1 };
    let shape = Shape { in_flight_max: 1, ..shape() };
    holds(shape, vec![topic(0), stream(0, 1), dies, Step::Pass(1), stream(2, 2), redrive]);
}

/// The dead-letter topic was made by a record of its own; where the log then had no room for the dead letter, a refused
/// nack had made a topic.
#[test]
fn a_nack_that_the_log_has_no_room_for_leaves_no_dead_letter_topic_behind() {
    let dies = produce_with(|made| made.policy = Some((1, 0, 0)));
    let long = Step::Subscribe {
        topic: 0,
        group: 0,
        owner: 0,
        lease: 90,
        prefetch: 1,
        most: None,
        latest: false,
        release: false,
    };
    let nack = Step::Say { word: Word::Nack { reason: 0, delay: None }, nth: 0, twist: Twist::Honest };
    for segment_room in 150..330 {
        let steps = vec![topic(0), long.clone(), Step::Room(Some(0)), dies.clone(), Step::Undriven(3), nack.clone()];
        holds(Shape { segment_room, ..shape() }, steps);
    }
}

/// A lease without length ends when it begins: the message was delivered and expired without end, at one moment.
#[test]
fn a_lease_of_no_length_is_one_of_the_default_length() {
    let asked = |lease| Step::Subscribe {
        topic: 0,
        group: 0,
        owner: 0,
        lease,
        prefetch: 1,
        most: None,
        latest: false,
        release: false,
    };
    let extend = Step::Say { word: Word::Extend { lease: Some(0) }, nth: 0, twist: Twist::Honest };
    holds(shape(), vec![topic(0), asked(0), produce(), extend, Step::Pass(49), Step::Crash(Keep::Nothing)]);
}

/// It was done first, and so retained, and what was retained before it made room for it; then it left all the same.
#[test]
fn a_redrive_pushes_nothing_out_that_is_kept_for_replay() {
    let keeps_sixty_bytes = Step::CreateTopic { topic: 2, partitions: 1, retention: 5 };
    let by_hand = produce_with(|made| (made.topic, made.size) = (2, 30));
    let dies = produce_with(|made| (made.policy, made.size) = (Some((1, 0, 0)), 40));
    let ack = Step::Say { word: Word::Ack, nth: 0, twist: Twist::Honest };
    let redrive = Step::Redrive { topic: 0, offset: None, limit: 1 };
    let steps =
        vec![keeps_sixty_bytes, stream(2, 1), by_hand, ack, topic(0), stream(0, 1), dies, Step::Pass(1), redrive];
    holds(shape(), steps);
}
