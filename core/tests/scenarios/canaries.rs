//! Checks of the runner itself: it reports wrong expectations, files it cannot read, and planted bugs of the broker.

use driftq_core::faults::{Fault, NoFaults, Planted};

use super::runner::{Script, run};
use super::valid_scripts;

#[test]
fn changed_expectations_are_reported() {
    for mut script in valid_scripts() {
        for command in script.commands_mut() {
            command.expected.last_mut().expect("every command prints").push('!');
        }
        let reported: Vec<_> = run(&script, NoFaults).failures.iter().map(|failure| failure.line).collect();
        let changed: Vec<_> = script.commands().map(|command| command.line).collect();
        assert_eq!(reported, changed, "{}", script.name);
    }
}

/// Planted bugs of the broker, each with the scenario that must find it. The others need a disk that loses or damages
/// data, or more than one run: the simulator finds them.
const FOUND_BY: &[(Fault, &str)] = &[
    (Fault::ReleaseBeforeSync, "13-nothing-leaves-before-it-is-durable"),
    (Fault::ReleaseRefusalsBeforeSync, "13-refusal-waits-for-the-log"),
    (Fault::HighestAckWatermark, "02-ack-above-a-gap"),
    (Fault::SkipTokenCheck, "04-stale-token-is-refused"),
    (Fault::TokensRestartOnBoot, "04-tokens-are-never-reused"),
    (Fault::OffsetReusedAfterCrash, "01-offsets-continue-after-restart"),
    (Fault::AttemptsForgottenOnReplay, "03-attempts-survive-a-crash"),
    (Fault::DedupeDroppedOnReplay, "20-duplicate-produce"),
    (Fault::DeadLetterWrittenTwice, "07-dead-letter-after-the-last-attempt"),
    (Fault::SourceNotFinishedOnDeadLetter, "07-dead-letter-after-the-last-attempt"),
    (Fault::TrimOneTooMany, "02-floor-rises-when-the-gap-closes"),
    (Fault::SnapshotMissesInFlight, "15-snapshot-and-log-tail"),
    (Fault::ApplyReadsClock, "01-envelope-travels-with-the-message"),
    (Fault::BackoffIgnored, "06-backoff-doubles-up-to-its-cap"),
    (Fault::ExpiredKeepsToken, "04-stale-token-is-refused"),
    (Fault::DelayedDeliveredEarly, "08-delay-holds-back-one-message"),
    (Fault::PriorityBreaksOrder, "08-first-deliveries-in-offset-order"),
    (Fault::PriorityIgnored, "08-priority-skips-ahead"),
    (Fault::CreditLeakedOnDisconnect, "10-disconnected-stream-takes-no-credit"),
    (Fault::RoundRobinSkipsLast, "10-round-robin"),
    (Fault::SeekKeepsAcked, "12-seek-replays"),
    (Fault::DeletedGroupCounted, "11-slowest-group-counts"),
    (Fault::RedriveLosesOrigin, "07-redrive"),
    (Fault::RedriveSeenByAll, "07-redrive-is-for-one-group"),
    (Fault::DuplicateTakenAsNew, "20-duplicate-produce"),
    (Fault::ExtendAfterExpiry, "04-expired-lease-before-redelivery"),
    (Fault::ReleaseCountsAsFailure, "03-release-is-not-a-failure"),
    (Fault::ExpiryOverwritesReason, "05-expiry-keeps-the-reason"),
    (Fault::PauseIgnored, "10-paused-group"),
    (Fault::DeadlineIgnored, "09-deadline-passes-in-the-queue"),
    (Fault::RetentionIgnoresAge, "12-retention-by-age"),
    (Fault::BodyTruncated, "01-envelope-travels-with-the-message"),
    (Fault::AckNotKept, "02-ack-above-a-gap"),
    (Fault::StuckAfterExpiry, "05-redelivery-at-the-end-of-the-lease"),
    (Fault::FinishIgnoresToken, "19-finish"),
    (Fault::TakeoverKeepsToken, "19-expired-grant-is-taken-over"),
    (Fault::HashNotCompared, "19-request-hash"),
    (Fault::EffectLostOnReplay, "15-everything-survives-a-crash"),
    (Fault::BeginAfterSuccessExecutes, "19-begin"),
    (Fault::CompleteWithoutAck, "22-complete-is-one-step"),
    (Fault::CompleteWithoutProduce, "22-complete-is-one-step"),
    (Fault::TtlFromBegin, "17-window-counts-from-the-finish"),
    (Fault::SkipWithoutFlag, "21-committed-identity-is-not-delivered-again"),
    (Fault::FlagWithoutSkip, "21-committed-identity-is-not-delivered-again"),
    (Fault::SkipBeforeAllGroupsDone, "21-skip-needs-every-group"),
    (Fault::SkipOfFinishedOnly, "21-finish-alone-does-not-skip"),
    (Fault::SkipAcrossTopics, "21-requested-topics-are-kept-apart"),
    (Fault::SkippedCountLost, "21-committed-identity-is-not-delivered-again"),
    (Fault::GateIgnoresDestination, "20-scope-is-topic-and-destination"),
    (Fault::GateByStoredTopic, "20-scope-is-topic-and-destination"),
    (Fault::AckEffectOutlastsWindow, "21-ack-alone-is-forgotten-with-the-window"),
    (Fault::InFlightOffByOne, "10-in-flight-limit"),
    (Fault::BackpressureIgnoresBytes, "11-backpressure-by-bytes"),
    (Fault::PrefetchOffByOne, "10-prefetch-limits-live-leases"),
    (Fault::GroupCreatedByFailedAck, "11-failed-ack-creates-no-group"),
    (Fault::QuotaEvictsLive, "18-quota-evicts-nothing"),
    (Fault::LeaseShorterThanTold, "03-lease-survives-a-crash"),
    (Fault::WinnerForgotten, "02-late-ack-of-the-loser"),
    (Fault::WinnerOnlyAfterFailure, "02-loser-after-a-release-or-a-seek"),
    (Fault::CompleteForgetsWinner, "22-complete-remembers-the-winner"),
    (Fault::WinnerNeverForgotten, "02-late-ack-of-the-loser"),
    (Fault::DeadLetterHasWinner, "07-late-ack-of-a-dead-letter"),
    (Fault::SnapshotMissesWinners, "02-late-ack-of-the-loser"),
    (Fault::SeekKeepsWinners, "02-loser-after-a-release-or-a-seek"),
    (Fault::LeaseUnbounded, "24-limits-on-times"),
    (Fault::DelayUnbounded, "24-limits-on-times"),
    (Fault::RedriveDropsDeadline, "07-redrive"),
    (Fault::NewGroupMissesHistory, "12-history-for-a-new-group"),
    (Fault::RetentionDefaultNotRecorded, "12-history-for-a-new-group"),
    (Fault::RetainedOutTakesAll, "12-history-for-a-new-group"),
    (Fault::RetainedRefusesProduce, "12-retained-messages-refuse-no-produce"),
    (Fault::RetainedBoundIgnored, "12-retained-messages-refuse-no-produce"),
    (Fault::DeadLettersNotRetained, "12-dead-letters-for-a-new-group"),
    (Fault::PatchNotDurable, "12-retention-is-changed"),
    (Fault::IdleGroupWithAcksDeleted, "11-idle-group-is-deleted"),
    (Fault::IdleGroupStays, "11-idle-group-is-deleted"),
    (Fault::RequestedGroupDeleted, "11-idle-group-is-deleted-in-any-case"),
    (Fault::EphemeralSurvives, "11-ephemeral-group"),
];

#[test]
fn planted_bugs_are_found() {
    let scripts = valid_scripts();
    for (fault, name) in FOUND_BY {
        let script = scripts.iter().find(|script| script.name.strip_suffix(".txt") == Some(name));
        let script = script.unwrap_or_else(|| panic!("there is no scenario {name}"));
        let run = run(script, Planted(*fault));
        assert!(!run.failures.is_empty(), "{name} does not find {}", fault.name());
    }
}

/// The failure that a scenario with these commands ends in.
fn failure_of(commands: &str) -> String {
    let text = format!("# A rule.\n\n{commands}");
    let failures = Script::parse("test.txt", &text).map(|script| run(&script, NoFaults).failures);
    match failures.as_deref() {
        Ok([first, ..]) => first.to_string(),
        Ok([]) => panic!("nothing is reported: {commands}"),
        Err(failure) => failure.to_string(),
    }
}

#[test]
fn mismatch_is_reported_as_diff() {
    let printed =
        failure_of("> create-topic orders partitions=2\n  ok partitions=1\n> list-topics\n  topics: orders\n");
    let expected = "core/tests/scenarios/test.txt:3: > create-topic orders partitions=2\n  \
                    - ok partitions=1\n  + ok partitions=2";
    assert_eq!(printed, expected);
    let printed = failure_of(
        "> create-topic t\n  ok partitions=1\n> produce t value=a\n  stored partition=0 offset=0\n\
         > describe t\n  partition 0: next_offset=1 messages=1 bytes=1\n  group g: consumers=0\n",
    );
    let expected = "core/tests/scenarios/test.txt:7: > describe t\n    \
                    partition 0: next_offset=1 messages=1 bytes=1\n  - group g: consumers=0";
    assert_eq!(printed, expected);
}

#[test]
fn command_without_expectation_is_reported() {
    assert!(failure_of("> create-topic orders\n").ends_with("\n  + ok partitions=1"));
}

#[test]
fn wrong_file_is_refused() {
    for (commands, message) in [
        ("", "a scenario without commands"),
        ("# Only a comment.\n", "a scenario without commands"),
        ("  ok\n", "an expected line must follow a command"),
        ("+ produce orders value=a\n", "a + line must follow a command"),
        ("create-topic orders\n", "a line starts with #, >, + or two spaces"),
        ("> frobnicate orders\n", "unknown command \"frobnicate\""),
        ("> create-topic\n", "a topic is missing"),
        ("> create-topic orders partition=2\n", "not an argument of this command: partition=2"),
        ("> create-topic orders payments\n", "not an argument of this command: payments"),
        ("> create-topic orders partitions=2 partitions=3\n", "not an argument of this command: partitions=3"),
        ("> create-topic orders partitions=two\n", "partitions=two does not parse"),
        ("> create-topic ..\n", "topic must not be \".\" or \"..\""),
        ("> create-topic orders\n+ produce orders value=a\n", "create-topic takes no + lines"),
        ("> produce orders\n", "value= is missing"),
        ("> produce orders value=\"a\n", "value: no closing quotation mark"),
        ("> tick 30\n", "\"30\" is not a duration; write 500ms, 30s, 10m, 24h or 7d"),
        ("> deliver c1\n", "no consumer is named \"c1\""),
        ("> reply #1\n", "no command was held as #1"),
        ("> lookup nowhere key=k\n", "\"nowhere\" is not a scope; write consume, tenant, job, task or rpc"),
        ("> finish tenant key=k status=SUCCEEDED\n", "the effect was not granted; say which token= is shown"),
        ("> renew tenant key=k token=T1\n", "\"T1\" names no token that was printed before"),
        ("> list-topics\n  no topics\n> limits spec\n", "limits must be the first command"),
    ] {
        let printed = failure_of(commands);
        assert!(printed.ends_with(message), "{commands:?} is reported as {printed:?}");
    }
    let unnamed = failure_of(
        "> create-topic t\n  ok partitions=1\n> subscribe t group=g owner=w as=c\n  ok\n> ack c offset=0\n  ok\n",
    );
    assert!(unnamed.ends_with("c was not delivered offset 0; say which token= it shows"), "{unnamed}");
    let untitled = Script::parse("test.txt", "> list-topics\n  no topics\n").map(drop);
    assert!(untitled.is_err_and(|failure| failure.message.starts_with("a scenario opens with a comment")));
}
