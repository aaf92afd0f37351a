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
    (ONE_MESSAGE_STATE, Fault::TrimOneTooMany),
    (UNACKED_IS_STORED, Fault::TrimOneTooMany),
    (ACK_IS_JUSTIFIED, Fault::HighestAckWatermark),
    (SKIPPED_IS_ACKED, Fault::SkipWithoutFinish),
    (ACK_COUNT_MATCHES, Fault::DeletedGroupCounted),
    (STORED_WAS_PRODUCED, Fault::BodyTruncated),
    (OFFSET_IS_STABLE, Fault::ApplyReadsClock),
    (CONFIRMED_ACK_HOLDS, Fault::AckNotKept),
    (STALE_CLAIM_IS_NOOP, Fault::SkipTokenCheck),
    (EXPIRED_NOT_EXTENDED, Fault::ExtendAfterExpiry),
    (TOKENS_INCREASE, Fault::TokensRestartOnBoot),
    (ONE_LEASE_HOLDER, Fault::LeaseShorterThanTold),
    (LEASED_IN_FLIGHT, Fault::InFlightOffByOne),
    (WITHIN_PREFETCH, Fault::PrefetchOffByOne),
    (FIRST_DELIVERIES_ASCEND, Fault::PriorityBreaksOrder),
    (PRIORITY_FIRST, Fault::PriorityIgnored),
    (DEDUPED_WITHIN_WINDOW, Fault::DuplicateTakenAsNew),
    (OUTPUT_STORED_ONCE, Fault::CompleteWithoutProduce),
    (ATTEMPTS_RECOVERED, Fault::AttemptsForgottenOnReplay),
    (LAST_ERROR_REPORTED, Fault::ExpiryOverwritesReason),
    (EXHAUSTED_NOT_REDELIVERED, Fault::ReleaseCountsAsFailure),
    (DEAD_LETTERED_ONCE, Fault::DeadLetterWrittenTwice),
    (REDRIVEN_VISIBLE_TO_ORIGIN, Fault::RedriveSeenByAll),
    (NOT_BEFORE_DUE, Fault::BackoffIgnored),
    (NOT_AFTER_DEADLINE, Fault::DeadlineIgnored),
    (ACCEPTED_WITHIN_LIMITS, Fault::BackpressureIgnoresBytes),
    (RETENTION_ENDS, Fault::RetentionIgnoresAge),
    (SYNCED_BEFORE_RELEASE, Fault::ReleaseBeforeSync),
    (STATE_MATCHES_LOG, Fault::ApplyReadsClock),
    (RECOVERED_MATCHES_LOG, Fault::SnapshotMissesInFlight),
    (SOUND_LOG_ACCEPTED, Fault::TornTailTakenForRot),
    (DAMAGE_IS_DETECTED, Fault::RotTakenForTornTail),
    (REFUSED_AFTER_FAILURE, Fault::FailureIgnored),
    (GRANT_TOKEN_IS_NEW, Fault::TakeoverKeepsToken),
    (FINAL_NOT_REGRANTED, Fault::BeginAfterSuccessExecutes),
    (NEWEST_GRANT_FINISHES, Fault::FinishIgnoresToken),
    (REQUEST_HASH_IS_STABLE, Fault::HashNotCompared),
    (STEP_IS_ATOMIC, Fault::CompleteWithoutAck),
    (NOT_STUCK, Fault::StuckAfterExpiry),
    (DRAINS, Fault::StuckAfterExpiry),
];

/// Laws that notice a bug by themselves, but others notice it sooner.
const ALONE: &[(Invariant, Fault)] = &[
    (ACCEPTED_IS_STORED, Fault::BodyTruncated),
    (TRIMMED_STAYS_TRIMMED, Fault::OffsetReusedAfterCrash),
    (ACKED_IS_TRIMMED, Fault::DeletedGroupCounted),
    (UNCONSUMED_IS_STORED, Fault::RedriveLosesOrigin),
    (LOAD_MATCHES, Fault::DeletedGroupCounted),
    (DELIVERED_WAS_ACCEPTED, Fault::ApplyReadsClock),
    (ACKED_NOT_REDELIVERED, Fault::AckNotKept),
    (OBSERVED_IN_FLIGHT, Fault::InFlightOffByOne),
    (ATTEMPTS_INCREMENT, Fault::AttemptsForgottenOnReplay),
    (REFUSED_ONLY_WHEN_FULL, Fault::DeletedGroupCounted),
    (REFUSAL_IS_NOOP, Fault::GroupCreatedByFailedAck),
    (SILENT_AFTER_FAILURE, Fault::FailureIgnored),
    (PEEK_MATCHES, Fault::ReleaseBeforeSync),
    (DEAD_LETTERED_AT_LIMIT, Fault::OffsetReusedAfterCrash),
    (DEAD_LETTER_UNCHANGED, Fault::OffsetReusedAfterCrash),
    (RETAINED_AS_CONFIGURED, Fault::ReleaseBeforeSync),
    (CLOSE_IS_RECOGNISED, Fault::SyncRetriedAfterFailure),
    (RERUN_IS_JUSTIFIED, Fault::BeginAfterSuccessExecutes),
    (ONE_LIVE_GRANT, Fault::QuotaEvictsLive),
    (REPLAY_MATCHES_OUTCOME, Fault::FinishIgnoresToken),
];

/// Defence in depth: no planted bug breaks these, and why that is so. The tests beside
/// each law show that it can fail.
const IN_DEPTH: &[(Invariant, &str)] = &[
    (STORED_OR_TRIMMED, "trimming changes both sides in one place; a bug there breaks the group's side first"),
    (OFFSETS_ASCEND, "a reused offset names another body before it is out of order"),
    (GROUP_COUNTS_MATCH, "a group's counters change where its entries do"),
    (DESCRIPTION_MATCHES, "it repeats to a client what the counts inside have shown before"),
    (STREAM_IS_OPEN, "no planted bug keeps a stream that is gone"),
    (NEW_AFTER_WINDOW, "no planted bug keeps an identity for too long"),
    (REFUSED_STEP_LEAVES_NOTHING, "a step is one record, and a refused one leaves none"),
    (STEP_REPLY_REPEATS, "no planted bug forges an answer that is kept"),
    (DEAD_NOT_REDELIVERED, "what has died and is not done dies again before it is delivered"),
    (REDRIVE_NAMES_ORIGIN, "a message that has lost its origin is not known to be redriven, and was never sent"),
    (REDRIVEN_DELIVERED_TO_ORIGIN, "who sees a redriven message is checked when it is stored"),
    (REDRIVE_WITHIN_LIMIT, "no planted bug redrives more than was asked for"),
    (TIME_IS_MONOTONIC, "no planted bug turns the clock back"),
    (QUERY_IS_NOOP, "no planted bug writes when asked to look"),
    (RETAINED_BYTES, "no planted bug keeps too many bytes"),
    (NO_SYNCED_LOSS, "a log with a hole is refused, or another state is recovered, before its end is looked at"),
    (CLOSE_COMPLETES, "no planted bug keeps a log from coming to rest"),
    (RECOVERY_IS_IDEMPOTENT, "a start that changes what it reads is refused the next time"),
    (RECOVERY_CRASH_IS_HARMLESS, "the same, in the middle of a start"),
    (READ_ERROR_IS_REFUSED, "no planted bug takes an error for an end"),
    (ONE_REPLY, "no planted bug answers twice"),
    (TIMERS_QUIESCE, "no planted bug wants to be called for ever"),
    (IO_QUIESCES, "no planted bug asks for work without end"),
    (MATCHES_ORACLE, "it breaks by nearly every bug, and is off here so that others can be seen"),
    (DETERMINISTIC, "it compares two lives, before every run and in the tests of determinism"),
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
    let seed = (0..SEEDS).find(|seed| breaks(*seed).is_some_and(|violation| MATCHES_ORACLE.is(&violation)));
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
