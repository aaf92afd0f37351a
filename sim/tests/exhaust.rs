//! Small worlds, to the end: what is counted, and that it can fail.

use std::num::NonZeroUsize;

use driftq_core::faults::Fault;
use driftq_sim::exhaust::{Plan, Size, Summary, exhaust};
use driftq_sim::run::RunOptions;

fn search(size: Size, depth: u32, jobs: usize, fault: Option<Fault>) -> Summary {
    let options = RunOptions { fault, ..RunOptions::default() };
    exhaust(&Plan { size, depth, jobs: NonZeroUsize::new(jobs).expect("not zero"), options }, |_| {})
}

/// How many states there are, how many moves lead to them, how many of these are crashes, and in how many states.
fn counts(found: &Summary) -> (u64, u64, u64, u64) {
    (found.states(), found.transitions(), found.crashes(), found.crash_states)
}

#[test]
fn a_smaller_world_holds_every_way_it_can_go_and_has_exactly_so_many_states() {
    let found = search(Size::default(), 5, 1, None);
    assert!(found.failure.is_none(), "{:?}", found.failure);
    assert_eq!(counts(&found), (1_218, 7_919, 6_667, 168));
    assert!(found.drained > 0 && !found.is_complete);
}

#[test]
fn one_message_and_one_worker_go_further() {
    let size = Size { messages: 1, consumers: 1, crashes: 1 };
    let found = search(size, 7, 1, None);
    assert!(found.failure.is_none(), "{:?}", found.failure);
    assert_eq!(counts(&found), (1_992, 8_563, 6_316, 212));
}

#[test]
fn a_world_in_which_nobody_does_anything_comes_to_an_end() {
    let size = Size { messages: 0, consumers: 0, crashes: 1 };
    let found = search(size, 50, 1, None);
    assert!(found.failure.is_none() && found.is_complete);
    assert_eq!((counts(&found), found.depth()), ((8, 7, 1, 1), 7));
}

#[test]
fn the_number_of_threads_makes_no_difference() {
    let (one, three) = (search(Size::default(), 3, 1, None), search(Size::default(), 3, 3, None));
    assert_eq!((&one.levels, one.drained), (&three.levels, three.drained));
}

/// Bugs, and how many moves away they show. `run` needs up to 30, 21 and 23 seeds for the first three.
const PLANTED: &[(Fault, usize)] = &[
    (Fault::AppendAfterTornTail, 3),
    (Fault::TornTailTakenForRot, 3),
    (Fault::BackoffIgnored, 4),
    (Fault::DedupeDroppedOnReplay, 3),
    (Fault::PrefetchOffByOne, 3),
    (Fault::ApplyReadsClock, 1),
    (Fault::ReleaseBeforeSync, 0),
];

#[test]
fn planted_bugs_are_found_by_a_shortest_way() {
    for (fault, depth) in PLANTED {
        let found = search(Size::default(), *depth as u32, 2, Some(*fault));
        let broken = found.failure.as_ref().and_then(|run| run.violation.as_ref());
        assert!(broken.is_some(), "{} is not found within {} states", fault.name(), found.states());
        assert_eq!(found.depth(), *depth, "{}", fault.name());
    }
}
