//! Every law against a bug that was planted to break it.

use driftq_core::faults::{Fault, Planted};

use crate::invariants::catalog::*;
use crate::invariants::isolate::solo;
use crate::invariants::verdict::{Invariant, Verdict, Violation};
use crate::panic_capture;
use crate::run::{RunOptions, run_seed};
use crate::swarm::{Profile, Swarm};
use crate::world::{Checks, World};

/// How many seeds a bug has to break its law.
const SEEDS: u64 = 200;
const WITHOUT_MODEL: Checks = Checks { oracle: false };

/// Laws that are the first to be broken by a bug, all others listening but the naive model's.
const FIRST: &[(Invariant, Fault)] = &[
    (NEVER_PANICS, Fault::TrimOneTooMany),
    (ONE_PHASE, Fault::TrimOneTooMany),
    (UNDONE_IS_KEPT, Fault::TrimOneTooMany),
    (END_IS_JUSTIFIED, Fault::HighestAckWatermark),
    (SKIPPED_IS_DONE, Fault::SkipWithoutFinish),
    (DONE_IN_ADDS_UP, Fault::DeletedGroupCounted),
    (WAS_SENT, Fault::BodyTruncated),
    (ONE_BODY, Fault::ApplyReadsClock),
    (ACKED_IS_DONE, Fault::AckNotKept),
    (STALE_CHANGES_NOTHING, Fault::SkipTokenCheck),
    (ENDED_IS_ENDED, Fault::ExtendAfterExpiry),
    (TOKENS_RISE, Fault::TokensRestartOnBoot),
    (ONE_HOLDER, Fault::LeaseShorterThanTold),
    (LEASED_IN_FLIGHT, Fault::InFlightOffByOne),
    (WITHIN_PREFETCH, Fault::PrefetchOffByOne),
    (FIRSTS_ASCEND, Fault::PriorityBreaksOrder),
    (PRIORITY_FIRST, Fault::PriorityIgnored),
    (ONE_OFFSET, Fault::DuplicateTakenAsNew),
    (MADE_ONCE, Fault::CompleteWithoutProduce),
    (ATTEMPTS_KEPT, Fault::AttemptsForgottenOnReplay),
    (ERROR_IS_KEPT, Fault::ExpiryOverwritesReason),
    (SPENT_STAYS_AWAY, Fault::ReleaseCountsAsFailure),
    (DEAD_ONCE, Fault::DeadLetterWrittenTwice),
    (ORIGIN_SEES_ALONE, Fault::RedriveSeenByAll),
    (NOT_EARLY, Fault::BackoffIgnored),
    (NOT_LATE, Fault::DeadlineIgnored),
    (ONLY_WITH_ROOM, Fault::BackpressureIgnoresBytes),
    (GONE_IN_TIME, Fault::RetentionIgnoresAge),
    (SYNCED_FIRST, Fault::ReleaseBeforeSync),
    (LIVE_IS_LOG, Fault::ApplyReadsClock),
    (RECOVERED_IS_LIVE, Fault::SnapshotMissesInFlight),
    (NEVER_REFUSED, Fault::TornTailTakenForRot),
    (DAMAGE_IS_NOTICED, Fault::RotTakenForTornTail),
    (FAILED_REFUSES, Fault::FailureIgnored),
    (GRANT_IS_NEW, Fault::TakeoverKeepsToken),
    (ENDED_STAYS, Fault::BeginAfterSuccessExecutes),
    (NEWEST_ENDS, Fault::FinishIgnoresToken),
    (SAME_REQUEST, Fault::HashNotCompared),
    (WHOLE_STEP, Fault::CompleteWithoutAck),
    (NOT_STUCK, Fault::StuckAfterExpiry),
    (DRAINS, Fault::StuckAfterExpiry),
];

/// Laws that notice a bug by themselves, but others notice it sooner.
const ALONE: &[(Invariant, Fault)] = &[
    (ACCEPTED_IS_KEPT, Fault::BodyTruncated),
    (GONE_IS_GONE, Fault::OffsetReusedAfterCrash),
    (DONE_IS_LET_GO, Fault::DeletedGroupCounted),
    (UNREAD_IS_KEPT, Fault::RedriveLosesOrigin),
    (LOAD_ADDS_UP, Fault::DeletedGroupCounted),
    (WAS_ACCEPTED, Fault::ApplyReadsClock),
    (ACKED_STAYS_AWAY, Fault::AckNotKept),
    (SEEN_IN_FLIGHT, Fault::InFlightOffByOne),
    (ATTEMPTS_RISE, Fault::AttemptsForgottenOnReplay),
    (REFUSED_WHEN_FULL, Fault::DeletedGroupCounted),
    (REFUSED_IS_NOTHING, Fault::GroupCreatedByFailedAck),
    (FAILED_IS_SILENT, Fault::FailureIgnored),
    (PEEKED_IS_STORED, Fault::ReleaseBeforeSync),
    (DEAD_AT_THE_LIMIT, Fault::OffsetReusedAfterCrash),
    (DEAD_UNCHANGED, Fault::OffsetReusedAfterCrash),
    (RETAINED_WHILE_ASKED, Fault::ReleaseBeforeSync),
    (CLOSED_IS_FOUND, Fault::SyncRetriedAfterFailure),
    (RUNS_FOR_A_REASON, Fault::BeginAfterSuccessExecutes),
    (ONE_GRANT, Fault::QuotaEvictsLive),
    (REPLAY_IS_TRUE, Fault::FinishIgnoresToken),
];

/// Defence in depth: no planted bug breaks these, and why that is so. The tests beside
/// each law show that it can fail.
const IN_DEPTH: &[(Invariant, &str)] = &[
    (ONE_PLACE, "trimming changes both sides in one place; a bug there breaks the group's side first"),
    (OFFSETS_RISE, "a reused offset names another body before it is out of order"),
    (GROUP_ADDS_UP, "a group's counters change where its entries do"),
    (COUNTS_ARE_TRUE, "it repeats to a client what the counts inside have shown before"),
    (STREAM_IS_THERE, "no planted bug keeps a stream that is gone"),
    (WINDOW_ENDS, "no planted bug keeps an identity for too long"),
    (NO_PART_OF_A_STEP, "a step is one record, and a refused one leaves none"),
    (SAME_ANSWER, "no planted bug forges an answer that is kept"),
    (DEAD_STAYS_AWAY, "what has died and is not done dies again before it is delivered"),
    (REDRIVE_NAMES_ORIGIN, "a message that has lost its origin is not known to be redriven, and was never sent"),
    (ORIGIN_GETS_ALONE, "who sees a redriven message is checked when it is stored"),
    (REDRIVE_BOUNDED, "no planted bug redrives more than was asked for"),
    (TIME_RISES, "no planted bug turns the clock back"),
    (LOOKING_IS_NOTHING, "no planted bug writes when asked to look"),
    (RETAINED_BYTES, "no planted bug keeps too many bytes"),
    (NOTHING_LOST, "a log with a hole is refused, or another state is recovered, before its end is looked at"),
    (CLOSE_ENDS, "no planted bug keeps a log from coming to rest"),
    (TWICE_THE_SAME, "a start that changes what it reads is refused the next time"),
    (DYING_CHANGES_NOTHING, "the same, in the middle of a start"),
    (UNREAD_IS_REFUSED, "no planted bug takes an error for an end"),
    (ANSWERED_ONCE, "no planted bug answers twice"),
    (NEVER_SPINS, "no planted bug wants to be called for ever"),
    (WORK_ENDS, "no planted bug asks for work without end"),
    (MODEL_KNOWS, "it breaks by nearly every bug, and is off here so that others can be seen"),
    (REPEAT, "it compares two lives, before every run and in the tests of determinism"),
];

#[test]
fn every_law_is_broken_by_a_bug_or_is_defence_in_depth() {
    let listed = FIRST
        .iter()
        .chain(ALONE)
        .map(|(invariant, _)| invariant)
        .chain(IN_DEPTH.iter().map(|(invariant, _)| invariant));
    let mut listed: Vec<Invariant> = listed.copied().collect();
    listed.sort();
    let mut all = ALL.to_vec();
    all.sort();
    assert_eq!(listed, all, "each law stands in exactly one of the three lists");
}

#[test]
fn a_planted_bug_breaks_its_law_before_any_other() {
    for (invariant, fault) in FIRST {
        let breaks = |seed| run_seed(seed, without_model(*fault)).violation;
        let seed = (0..SEEDS).find(|seed| breaks(*seed).is_some_and(|violation| invariant.is(&violation)));
        assert!(seed.is_some(), "{} does not break in {SEEDS} seeds: {invariant}", fault.name());
    }
}

#[test]
fn a_planted_bug_breaks_its_law_where_no_other_is_heard() {
    for (invariant, fault) in ALONE {
        let breaks = |seed| solo(*invariant, || undrained(seed, *fault)).err();
        let seed = (0..SEEDS).find(|seed| breaks(*seed).is_some_and(|violation| invariant.is(&violation)));
        assert!(seed.is_some(), "{} does not break in {SEEDS} seeds: {invariant}", fault.name());
    }
}

#[test]
fn the_naive_model_knows_of_a_bug_that_no_other_law_sees() {
    let breaks =
        |seed| run_seed(seed, RunOptions { fault: Some(Fault::PauseIgnored), ..RunOptions::default() }).violation;
    let seed = (0..SEEDS).find(|seed| breaks(*seed).is_some_and(|violation| MODEL_KNOWS.is(&violation)));
    assert!(seed.is_some(), "a paused group is served and the model does not mind");
}

fn without_model(fault: Fault) -> RunOptions {
    RunOptions { fault: Some(fault), checks: WITHOUT_MODEL, profile: Profile::Default }
}

/// A life without its end: with a bug that nobody tells of, draining takes very long.
fn undrained(seed: u64, fault: Fault) -> Verdict {
    let lived = panic_capture::catch(|| -> Result<(), Violation> {
        let mut swarm = Swarm::new(seed, Profile::Default);
        let mut world = World::new(swarm.setup(), Planted(fault), WITHOUT_MODEL)?;
        for _ in 0..swarm.actions() {
            let action = swarm.next(&world);
            world.apply(&action)?;
        }
        Ok(())
    });
    // A broker that panics has broken a promise, but not this one.
    lived.unwrap_or(Ok(()))
}
