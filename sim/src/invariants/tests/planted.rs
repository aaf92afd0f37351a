//! Every invariant against a planted bug that violates it.

use driftq_core::faults::{Fault, Planted};

use crate::invariants::catalog::*;
use crate::invariants::isolate::only;
use crate::invariants::tests::kept_seeds::KeptSeeds;
use crate::invariants::verdict::{Invariant, Verdict, Violation};
use crate::panic_capture;
use crate::run::{RunOptions, run_seed};
use crate::swarm::{Profile, Swarm};
use crate::world::{Checks, World};

/// How many seeds a bug has to violate its invariant.
const SEEDS: u64 = 600;
const WITHOUT_ORACLE: Checks = Checks { oracle: false };

/// Invariants that a bug violates before any other, with all checks but the oracle active.
const FIRST: &[(Invariant, Fault)] = &[
    (NEVER_PANICS, Fault::TrimOneTooMany),
    (ONE_MESSAGE_STATE, Fault::TrimOneTooMany),
    (UNACKED_IS_STORED, Fault::TrimOneTooMany),
    (ACK_IS_JUSTIFIED, Fault::HighestAckWatermark),
    (SKIPPED_IS_ACKED, Fault::FlagWithoutSkip),
    (SKIP_IS_TOLD, Fault::SkipWithoutFlag),
    (SKIP_IS_JUSTIFIED, Fault::SkipBeforeAllGroupsDone),
    (ACK_COUNT_MATCHES, Fault::DeletedGroupCounted),
    (STORED_WAS_PRODUCED, Fault::BodyTruncated),
    (OFFSET_IS_STABLE, Fault::ApplyReadsClock),
    (CONFIRMED_ACK_HOLDS, Fault::AckNotKept),
    (STALE_CLAIM_IS_NOOP, Fault::SkipTokenCheck),
    (LOSER_IS_REFUSED, Fault::WinnerForgotten),
    (EXPIRED_NOT_EXTENDED, Fault::ExtendAfterExpiry),
    (TOKENS_INCREASE, Fault::TokensRestartOnBoot),
    (ONE_LEASE_HOLDER, Fault::LeaseShorterThanTold),
    (LEASED_IN_FLIGHT, Fault::InFlightOffByOne),
    (WITHIN_PREFETCH, Fault::PrefetchOffByOne),
    (FIRST_DELIVERIES_ASCEND, Fault::PriorityBreaksOrder),
    (PRIORITY_FIRST, Fault::PriorityIgnored),
    (DEDUPED_WITHIN_WINDOW, Fault::DuplicateTakenAsNew),
    (NEW_AFTER_WINDOW, Fault::GateIgnoresDestination),
    (OUTPUT_STORED_ONCE, Fault::CompleteWithoutProduce),
    (ATTEMPTS_RECOVERED, Fault::AttemptsForgottenOnReplay),
    (LAST_ERROR_REPORTED, Fault::ExpiryOverwritesReason),
    (EXHAUSTED_NOT_REDELIVERED, Fault::ExhaustedRetried),
    (DEAD_LETTERED_ONCE, Fault::DeadLetterWrittenTwice),
    (REDRIVE_NAMES_ORIGIN, Fault::RedriveDropsDeadline),
    (REDRIVEN_VISIBLE_TO_ORIGIN, Fault::RedriveSeenByAll),
    (REDRIVE_MOVES_WHAT_WAS_THERE, Fault::RedriveFollowsTail),
    (PURGE_REMOVES_WHAT_WAS_THERE, Fault::PurgeLeavesNewest),
    (RELOCATED_IS_MOVED, Fault::RelocationKeepsLsn),
    (NOT_BEFORE_DUE, Fault::BackoffIgnored),
    (NOT_AFTER_DEADLINE, Fault::DeadlineIgnored),
    (LEASE_WITHIN_LIMITS, Fault::LeaseUnbounded),
    (DELAY_WITHIN_LIMIT, Fault::DelayUnbounded),
    (WALL_IS_MONOTONIC, Fault::ClockSetBackJumps),
    (WALL_FOLLOWS_CLOCK, Fault::ClockSetForwardIgnored),
    (ACCEPTED_WITHIN_LIMITS, Fault::BackpressureIgnoresBytes),
    (RETAINED_WITHIN_BOUND, Fault::RetainedBoundIgnored),
    (SYNCED_BEFORE_RELEASE, Fault::ReleaseBeforeSync),
    (STATE_MATCHES_LOG, Fault::ApplyReadsClock),
    (RECOVERED_MATCHES_LOG, Fault::SnapshotMissesInFlight),
    (SOUND_LOG_ACCEPTED, Fault::TornTailTakenForRot),
    (DAMAGE_IS_DETECTED, Fault::RotTakenForTornTail),
    (REFUSED_AFTER_FAILURE, Fault::FailureIgnored),
    (SHORTAGE_IS_WAITED_OUT, Fault::NoDescriptorFails),
    (GRANT_TOKEN_IS_NEW, Fault::TakeoverKeepsToken),
    (FINAL_NOT_REGRANTED, Fault::BeginAfterSuccessExecutes),
    (NEWEST_GRANT_FINISHES, Fault::FinishIgnoresToken),
    (REQUEST_HASH_IS_STABLE, Fault::HashNotCompared),
    (STEP_IS_ATOMIC, Fault::CompleteWithoutAck),
    (ACCEPTS_AGAIN, Fault::FullLogNeverReopens),
    (RESERVE_IS_KEPT, Fault::ProduceUsesReserve),
    (REFUSED_WITHOUT_ROOM, Fault::ReserveDoubled),
    (WRITTEN_IN_ORDER, Fault::FramesBeforeHeaderSynced),
    (REFUSAL_IS_NEEDED, Fault::DamagedSnapshotRefused),
    (WHOLE_SNAPSHOTS_ARE_KEPT, Fault::OlderSnapshotDropped),
    (SYNC_IS_RECORDED, Fault::MarkRecordsNothing),
    (IDLE_LOG_IS_MARKED, Fault::IdleLogNotMarked),
    (NOTHING_WRITTEN_AFTER_FAILURE, Fault::FailureIgnored),
    (SEGMENTS_ARE_CUT, Fault::ClosedSegmentNotCut),
    (SEGMENTS_ARE_FEW, Fault::SnapshotNotDueBySegments),
    (RESTS_SMALL, Fault::SegmentsKeptAtRest),
    (SNAPSHOT_IS_TAKEN, Fault::SnapshotBytesForgotten),
    (COVERED_FILES_ARE_REMOVED, Fault::CoveredSegmentsKept),
    (TALLIES_MATCH, Fault::EmptyDedupeTableKept),
    (COUNTERS_MATCH, Fault::WithdrawnNotCounted),
    (TIMERS_MATCH_STATE, Fault::OriginChangeKeepsWatch),
    (STREAMS_MATCH_LEASES, Fault::EndedStreamKept),
    (STREAMS_TAKE_TURNS, Fault::RoundRobinSkipsLast),
    (LIVE_SEGMENT_STAYS, Fault::LiveSegmentRemoved),
    (LIVE_BYTES_MATCH, Fault::DeadLetterNotReferring),
    (MEMORY_IS_BOUNDED, Fault::MemoryUnbounded),
    (UNSYNCED_STAYS_IN_MEMORY, Fault::UnsyncedPayloadEvicted),
    (READ_FAILURE_IS_PASSING, Fault::ReadNotRepeated),
    (READS_WHAT_IS_SYNCED, Fault::UnsyncedRead),
];

/// Invariants that detect a bug by themselves, but later than others.
const ALONE: &[(Invariant, Fault)] = &[
    (LISTED_SEGMENT_STAYS, Fault::LiveSegmentRemoved),
    (ONLY_DAMAGED_IS_LOST, Fault::ReadNotRepeated),
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
    (DEAD_LETTERED_AT_LIMIT, Fault::ReleaseBeforeSync),
    (DEAD_LETTER_UNCHANGED, Fault::ReleaseBeforeSync),
    (RETAINED_AS_CONFIGURED, Fault::ReleaseBeforeSync),
    (CLOSE_IS_RECOGNISED, Fault::SyncRetriedAfterFailure),
    (RERUN_IS_JUSTIFIED, Fault::BeginAfterSuccessExecutes),
    (ONE_LIVE_GRANT, Fault::QuotaEvictsLive),
    (REPLAY_MATCHES_OUTCOME, Fault::FinishIgnoresToken),
    (DONE_IS_THE_WINNERS, Fault::WinnerForgotten),
    (NOT_STUCK, Fault::StuckAfterExpiry),
    (RETENTION_ENDS, Fault::RetentionIgnoresAge),
    (DEADLINE_ENDS_WAITING, Fault::BackoffHidesDeadline),
    (ATTEMPT_WAS_SEEN, Fault::WithdrawnCountsAttempt),
];

/// Defence in depth: no planted bug violates these first, for the given reason. Unit tests beside each check show that
/// it can fail.
const IN_DEPTH: &[(Invariant, &str)] = &[
    (TIMERS_ARE_SET, "only the oracle knows what is due"),
    (GONE_IS_UNREFERRED, "the segment of a payload that is referred to is missed when it is removed"),
    (LOST_WAS_DAMAGED, "no planted bug records a payload as lost that no read has found damaged"),
    (ROT_IS_FOUND, "what is damaged is mostly needed before a scrub comes; the trace of a planted bug violates it"),
    (SWEEPS_ARE_SET, "no planted bug forgets a sweep"),
    (DRAINS, "a message that is not delivered has no timer, or is not offered to its group"),
    (READY_IS_OFFERED, "a message that is not ready has no timer"),
    (QUEUES_MATCH_STATE, "a message missing from its queue is delivered too early or never"),
    (PARTITIONS_TAKE_TURNS, "the oracle predicts the partition of every delivery"),
    (ADMINISTRATION_ENDS, "no planted bug moves more than is there without moving what was not"),
    (MAINTENANCE_ENDS, "an entry that is not swept has no sweep"),
    (DIES_OF_ITS_OWN_DELIVERY, "the leases of a stream end in the order of its deliveries"),
    (PRODUCED_IS_ACCOUNTED_FOR, "an ack without a reason is found when it is made"),
    (TRIMMED_BEHIND_DATA, "the next start finds the log cut off"),
    (STORED_OR_TRIMMED, "one function maintains both; a bug there violates a group's invariant first"),
    (OFFSETS_ASCEND, "a reused offset refers to another body before it is out of order"),
    (GROUP_COUNTS_MATCH, "a group's counters change where its entries do"),
    (DESCRIPTION_MATCHES, "white-box checks find wrong counters before a client reads them"),
    (PURGE_COUNTS_WHAT_WAS_THERE, "no planted bug miscounts a purge"),
    (PURGED_NOT_REDELIVERED, "a purged message that is stored again violates an invariant of the log first"),
    (STREAM_IS_OPEN, "no planted bug delivers to a closed stream"),
    (REFUSED_STEP_LEAVES_NOTHING, "a step is one record, and a refused step writes none"),
    (STEP_REPLY_REPEATS, "no planted bug changes a kept reply"),
    (DEAD_NOT_REDELIVERED, "a dead-lettered message that is unacked is dead-lettered again before it is delivered"),
    (REDRIVEN_DELIVERED_TO_ORIGIN, "visibility is checked when the message is stored"),
    (REDRIVE_WITHIN_LIMIT, "no planted bug exceeds the limit of a redrive"),
    (TIME_IS_MONOTONIC, "no planted bug sets the clock back"),
    (QUERY_IS_NOOP, "no planted bug writes a record for a query"),
    (RETAINED_BYTES, "no planted bug exceeds the retention size"),
    (NO_SYNCED_LOSS, "a log with a gap is refused, or recovers to another state, before its end is compared"),
    (CLOSE_COMPLETES, "no planted bug prevents a clean shutdown"),
    (RECOVERY_IS_IDEMPOTENT, "a recovery that changes what it reads is refused the next time"),
    (RECOVERY_CRASH_IS_HARMLESS, "the same, during recovery"),
    (READ_ERROR_IS_REFUSED, "no planted bug takes a read error for the end of a file"),
    (ONE_REPLY, "no planted bug replies twice"),
    (TIMERS_QUIESCE, "no planted bug schedules timeouts without end"),
    (IO_QUIESCES, "no planted bug requests I/O without end"),
    (MATCHES_ORACLE, "nearly every bug violates it; it is off here so that the others are tested"),
    (DETERMINISTIC, "it compares two runs, at the start of every campaign and in the tests of determinism"),
];

#[test]
fn every_invariant_is_violated_by_a_bug_or_is_defence_in_depth() {
    let listed = FIRST
        .iter()
        .chain(ALONE)
        .map(|(invariant, _)| invariant)
        .chain(IN_DEPTH.iter().map(|(invariant, _)| invariant));
    let mut listed: Vec<Invariant> = listed.copied().collect();
    listed.sort();
    let mut all = ALL.to_vec();
    all.sort();
    assert_eq!(listed, all, "each invariant is in exactly one of the three lists");
}

/// Asserts that every bug of a list violates its invariant in some seed, as `violation` finds.
fn assert_violated(
    list: &[(Invariant, Fault)],
    kept_seeds: &str,
    violation: impl Fn(Invariant, Fault, u64) -> Option<Violation>,
) {
    let mut kept = KeptSeeds::read(kept_seeds);
    for (invariant, fault) in list {
        let violates = |seed: &u64| violation(*invariant, *fault, *seed).is_some_and(|found| invariant.is(&found));
        let seed = kept.find(&format!("{} {}", invariant.name, fault.name()), SEEDS, violates);
        assert!(seed.is_some(), "{} does not violate it in {SEEDS} seeds: {invariant}", fault.name());
    }
    kept.finish();
}

#[test]
fn planted_bug_violates_its_invariant_first() {
    assert_violated(FIRST, "src/invariants/tests/first_seeds.txt", |_, fault, seed| {
        run_seed(seed, without_oracle(fault)).violation
    });
}

#[test]
fn planted_bug_violates_its_invariant_alone() {
    assert_violated(ALONE, "src/invariants/tests/alone_seeds.txt", |invariant, fault, seed| {
        only(invariant, || run_undrained(seed, fault)).err()
    });
}

#[test]
fn oracle_detects_a_bug_that_no_other_invariant_detects() {
    let violates =
        |seed| run_seed(seed, RunOptions { fault: Some(Fault::PauseIgnored), ..RunOptions::default() }).violation;
    let seed = (0..SEEDS).find(|seed| violates(*seed).is_some_and(|violation| MATCHES_ORACLE.is(&violation)));
    assert!(seed.is_some(), "deliveries to a paused group go undetected");
}

fn without_oracle(fault: Fault) -> RunOptions {
    RunOptions { fault: Some(fault), checks: WITHOUT_ORACLE, profile: Profile::Default }
}

/// A run without its drain, which takes very long with an undetected bug.
fn run_undrained(seed: u64, fault: Fault) -> Verdict {
    let result = panic_capture::catch(|| -> Result<(), Violation> {
        let mut swarm = Swarm::new(seed, Profile::Default);
        let mut world = World::new(swarm.setup(), Planted(fault), WITHOUT_ORACLE)?;
        for _ in 0..swarm.actions() {
            let action = swarm.next(&world);
            world.apply(&action)?;
        }
        Ok(())
    });
    // A panic is a violation, but not of the invariant under test.
    result.unwrap_or(Ok(()))
}
