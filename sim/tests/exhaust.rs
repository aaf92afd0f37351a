//! Exhaustive search: its counts, and that it detects planted bugs.

use std::num::NonZeroUsize;

use driftq_core::faults::Fault;
use driftq_sim::coverage::Point;
use driftq_sim::exhaust::{Plan, RelocationCrashes, Size, Summary, crash_in_relocation, exhaust};
use driftq_sim::run::RunOptions;

fn search(size: Size, depth: u32, jobs: usize, fault: Option<Fault>) -> Summary {
    let options = RunOptions { fault, ..RunOptions::default() };
    exhaust(&Plan { size, depth, jobs: NonZeroUsize::new(jobs).expect("not zero"), options }, |_| {})
}

/// The numbers of states, transitions, crashes, and states with a crash.
fn counts(summary: &Summary) -> (u64, u64, u64, u64) {
    (summary.states(), summary.transitions(), summary.crashes(), summary.crash_states)
}

#[test]
fn default_world_has_a_known_number_of_states() {
    let summary = search(Size::default(), 5, 1, None);
    assert!(summary.failure.is_none(), "{:?}", summary.failure);
    assert_eq!(counts(&summary), (1_137, 7_502, 6_357, 152));
    assert!(summary.drained > 0 && !summary.is_complete);
}

#[test]
fn one_message_and_one_worker_have_a_known_number_of_states() {
    let size = Size { messages: 1, consumers: 1, crashes: 1, batches: false };
    let summary = search(size, 7, 1, None);
    assert!(summary.failure.is_none(), "{:?}", summary.failure);
    assert_eq!(counts(&summary), (2_008, 7_632, 5_432, 203));
}

#[test]
fn world_without_clients_is_explored_completely() {
    let size = Size { messages: 0, consumers: 0, crashes: 1, batches: false };
    let summary = search(size, 50, 1, None);
    assert!(summary.failure.is_none() && summary.is_complete);
    assert_eq!((counts(&summary), summary.depth()), ((8, 7, 1, 1), 7));
}

#[test]
fn thread_count_does_not_change_the_counts() {
    let (one, three) = (search(Size::default(), 3, 1, None), search(Size::default(), 3, 3, None));
    assert_eq!((&one.levels, one.drained), (&three.levels, three.drained));
}

#[test]
fn batches_reach_an_extension_and_a_second_failure() {
    let size = Size { messages: 1, consumers: 1, crashes: 0, batches: true };
    let summary = search(size, 11, 2, None);
    assert!(summary.failure.is_none(), "{:?}", summary.failure);
    for point in [Point::Extended, Point::Expired, Point::Retried] {
        assert!(summary.coverage.count(point) > 0, "{point:?}");
    }
    // Only a second failure shows this one.
    let summary = search(size, 11, 2, Some(Fault::ExhaustedRetried));
    assert!(summary.failure.is_some(), "{:?}", summary.levels);
}

/// Bugs and the depth at which they are found. `run` needs up to 30, 22 and 23 seeds for the first three.
const PLANTED: &[(Fault, usize)] = &[
    (Fault::AppendAfterTornTail, 3),
    (Fault::TornTailTakenForRot, 3),
    (Fault::BackoffIgnored, 4),
    (Fault::DedupeDroppedOnReplay, 3),
    (Fault::PrefetchOffByOne, 3),
    (Fault::ApplyReadsClock, 0),
    (Fault::ReleaseBeforeSync, 0),
];

#[test]
fn planted_bugs_are_found_at_their_depth() {
    for (fault, depth) in PLANTED {
        let found = |depth: usize| {
            let summary = search(Size::default(), depth as u32, 2, Some(*fault));
            summary.failure.as_ref().and_then(|run| run.violation.as_ref()).is_some()
        };
        assert!(found(*depth), "{} is not found at depth {depth}", fault.name());
        assert!(*depth == 0 || !found(*depth - 1), "{} is found before depth {depth}", fault.name());
    }
}

#[test]
fn crash_at_every_byte_of_a_relocation_loses_nothing() {
    let done = crash_in_relocation(None).expect("no invariant is violated");
    assert!(done.taken_back > 0 && done.removed > 0, "{done:?}");
    let expected =
        RelocationCrashes { relocated: 3, steps: 42, crashes: 21_828, taken_back: 166, states: 13, removed: 6 };
    assert_eq!(done, expected);
}

#[test]
fn crash_in_a_relocation_shows_segments_that_went_too_early() {
    for fault in [Fault::LiveSegmentRemoved, Fault::CleanedSegmentRemoved, Fault::RelocationKeepsLsn] {
        assert!(crash_in_relocation(Some(fault)).is_err(), "{}", fault.name());
    }
}
