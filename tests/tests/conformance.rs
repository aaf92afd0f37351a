//! The conformance suite: honest brokers pass it, ours included, and for each lie that a broker can tell there are cases that catch it.

mod stub;

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use driftq_tests::conformance::{Options, Outcome, Report, cases, run};
use stub::{Lie, Stub};

/// Runs the suite against a stub, all cases at once.
fn suite(lie: Lie, with_restart: bool) -> Report {
    let stub = Stub::start(lie);
    let mut options = Options::at(&stub.url());
    options.restart = with_restart.then(|| stub.restart());
    options.jobs = 256;
    options.patience = Duration::from_secs(4);
    run(&options, &|_| {}).expect("a server that answers")
}

#[test]
fn case_names_are_unique_and_sections_stand_together() {
    let (mut names, mut sections) = (BTreeSet::new(), Vec::new());
    for case in cases() {
        assert!(names.insert(case.name), "{} twice", case.name);
        if sections.last() != Some(&case.section) {
            sections.push(case.section);
        }
    }
    let distinct: BTreeSet<_> = sections.iter().collect();
    assert_eq!(distinct.len(), sections.len(), "a section in two places: {sections:?}");
}

#[test]
fn an_honest_broker_passes_by_the_letter() {
    let report = suite(Lie::Nothing, true);
    assert_eq!(report.names(Outcome::Fail), [""; 0], "{report}");
    assert!(report.count(Outcome::Pass) >= 165, "{}", report.summary());
}

/// A lie, the cases that must catch it, and those that may, depending on who comes first.
struct Trial {
    lie: Lie,
    caught_by: &'static [&'static str],
    perhaps: &'static [&'static str],
}

const fn trial(lie: Lie, caught_by: &'static [&'static str]) -> Trial {
    Trial { lie, caught_by, perhaps: &[] }
}

const TRIALS: &[Trial] = &[
    trial(Lie::HealthzIsTerse, &["healthz"]),
    trial(Lie::VersionWithoutCommit, &["version"]),
    trial(Lie::TopicCreatedWith200, &["create_topic_by_json", "create_topic_by_query"]),
    trial(Lie::TopicListedTwice, &["list_topics"]),
    trial(
        Lie::UnknownFieldsAccepted,
        &[
            "create_topic_unknown_field",
            "produce_unknown_field",
            "produce_envelope_unknown_field",
            "consume_unknown_field",
            "ack_unknown_field",
            "nack_unknown_field",
            "dlq_on_input",
        ],
    ),
    trial(Lie::ErrorsWithoutCode, &["error_shape"]),
    trial(Lie::NoAllowHeader, &["method_not_allowed_allow"]),
    trial(Lie::WrongMethodIs404, &["method_not_allowed"]),
    trial(Lie::UnversionedServed, &["unversioned_reads", "unversioned_writes"]),
    trial(Lie::AliasesUnknown, &["produce_alias_tenant", "produce_alias_idem_key"]),
    trial(Lie::StreamIsPlainJson, &["consume_content_type"]),
    trial(Lie::DefaultLeaseTooShort, &["consume_default_lease"]),
    trial(Lie::LeaseIgnored, &["consume_lease_ms"]),
    trial(
        Lie::AckByAnybody,
        &[
            "error_shape",
            "ack_not_owner",
            "ack_not_owner_changes_nothing",
            "nack_not_owner",
            "group_owner_within_group",
            "old_owner_after_redelivery",
        ],
    ),
    trial(Lie::AckTwiceRefused, &["ack_twice"]),
    trial(
        Lie::AckAnswers200,
        &[
            "ack_by_json",
            "ack_by_query",
            "nack_by_json",
            "nack_by_query",
            "ack_twice",
            "ack_late",
            "new_owner_after_redelivery",
        ],
    ),
    trial(Lie::HigherAckFinishesLower, &["ack_out_of_order"]),
    trial(Lie::AckForgotten, &[]),
    trial(Lie::Broadcast, &["group_no_broadcast", "group_round_robin"]),
    trial(Lie::FirstConsumerOnly, &["group_round_robin"]),
    trial(Lie::GroupsShareProgress, &["groups_each_get_everything", "groups_have_own_offsets"]),
    trial(Lie::AttemptsDoNotRise, &["attempts_increase", "failure_then_success"]),
    trial(
        Lie::WrongTimeoutReason,
        &["last_error_of_a_timeout", "dead_letter_of_a_timeout", "last_error_timeout_after_nack"],
    ),
    trial(Lie::TimeoutReplacesReason, &["last_error_timeout_after_nack"]),
    trial(
        Lie::NackLosesReason,
        &[
            "last_error_of_a_nack",
            "last_error_of_the_latest_nack",
            "last_error_timeout_after_nack",
            "dead_letter_last_error",
        ],
    ),
    trial(Lie::BackoffIgnored, &["retry_backoff"]),
    trial(
        Lie::MaxAttemptsIgnored,
        &["max_attempts_limits_nacks", "max_attempts_limits_timeouts", "max_attempts_reached"],
    ),
    trial(Lie::RetryAfterMissing, &["overload_retry_after"]),
    trial(Lie::OverloadUnnamed, &["overload_body"]),
    trial(Lie::OverloadedButEnqueued, &["overload_not_enqueued", "order_within_a_partition"]),
    trial(Lie::OutOfRangeAccepted, &["partition_override_too_large", "partition_override_negative"]),
    trial(Lie::OverrideIgnored, &[]),
    trial(Lie::PartitionOfKeyDrifts, &["partition_by_key_is_stable", "partition_by_key_per_count"]),
    trial(Lie::PartitionOfKeyPerTopic, &["partition_by_key_per_count"]),
    trial(Lie::PartitionsReversed, &["partition_of_empty_key", "router_absent_topic", "overload_per_partition"]),
    trial(Lie::EnvelopeFieldDropped, &["produce_query_envelope", "envelope_workflow_identity"]),
    trial(Lie::PayloadTrimmed, &["envelope_leaves_payload"]),
    trial(Lie::TargetTopicIgnored, &["target_topic_routes", "target_topic_with_override", "router_absent_precedence"]),
    trial(Lie::DeadlineIgnored, &["deadline_expired"]),
    trial(Lie::RoutingInvented, &["router_absent_routing"]),
    trial(
        Lie::DuplicateEnqueued,
        &["duplicate_not_enqueued", "duplicate_while_pending", "duplicate_after_ack", "identity_empty_tenant"],
    ),
    trial(Lie::IdentityWithoutTopic, &["identity_has_topic"]),
    trial(Lie::IdentityWithoutTenant, &["identity_has_tenant"]),
    trial(Lie::EmptyKeyDeduplicated, &["identity_empty_key"]),
    trial(Lie::DeadLetterWithoutOrigin, &["dead_letter_origin"]),
    trial(Lie::DeadLetterWithoutIdentity, &["dead_letter_identity"]),
    trial(Lie::EffectRunTwice, &["effect_success_replays", "effect_duplicate_delivery", "effect_empty_tenant"]),
    trial(Lie::EffectNeverInProgress, &["effect_in_progress", "effect_identity_tenant_and_key"]),
    trial(Lie::EffectErrorForgotten, &["effect_last_error"]),
    trial(Lie::MessagesLostOnRestart, &[]),
    trial(Lie::AcksLostOnRestart, &[]),
    trial(Lie::OffsetsRestart, &[]),
];

/// Lies that only show when the stub is restarted; the others are caught sooner without that.
fn is_about_restarts(lie: Lie) -> bool {
    matches!(lie, Lie::MessagesLostOnRestart | Lie::AcksLostOnRestart | Lie::OffsetsRestart)
}

#[test]
fn every_lie_is_caught_by_the_cases_it_concerns_and_by_no_other() {
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..14 {
            scope.spawn(|| {
                while let Some(trial) = TRIALS.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let report = suite(trial.lie, is_about_restarts(trial.lie));
                    let caught: BTreeSet<&str> = report.names(Outcome::Fail).into_iter().collect();
                    let missed = trial.caught_by.iter().filter(|name| !caught.contains(*name)).collect::<Vec<_>>();
                    let known = |name: &&&str| !trial.caught_by.contains(name) && !trial.perhaps.contains(name);
                    let beyond = caught.iter().filter(known).collect::<Vec<_>>();
                    if !missed.is_empty() || !beyond.is_empty() {
                        let told = format!("{:?}: missed by {missed:?}, caught by {beyond:?} too", trial.lie);
                        wrong.lock().expect("no panic before").push(told);
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().expect("no panic before");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
