//! The conformance suite: conforming brokers pass, DriftQ included, and every defect of a stub broker fails the cases it concerns.

mod stub;

use std::collections::BTreeSet;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use self::stub::{Defect, Stub};
use driftq_tests::conformance::{Options, Report, VerdictKind, cases, run};
use driftq_tests::daemon::{Launcher, driftqd, free_addr};
use serde_json::Value;

const PAGE: &str = include_str!("../../../docs/conformance.md");

/// Runs the suite against a stub, all cases at once.
fn suite(defect: Defect, with_restart: bool) -> Report {
    let stub = Stub::start(defect);
    let mut options = Options::new(&stub.url());
    options.restart = with_restart.then(|| stub.restart());
    options.jobs = 256;
    options.timeout = Duration::from_secs(4);
    run(&options, &|_| {}).expect("a server that responds")
}

#[test]
fn case_names_are_unique_and_sections_match_documentation() {
    let (mut names, mut sections) = (BTreeSet::new(), Vec::new());
    for case in cases() {
        assert!(names.insert(case.name), "duplicate name {}", case.name);
        if sections.last() != Some(&case.section) {
            sections.push(case.section);
        }
    }
    let distinct: BTreeSet<_> = sections.iter().collect();
    assert_eq!(distinct.len(), sections.len(), "a section is split: {sections:?}");
    for section in sections {
        let row = format!("| {section} | {} |\n", cases().iter().filter(|case| case.section == section).count());
        assert!(PAGE.contains(&row), "docs/conformance.md lacks {row}");
    }
    assert!(PAGE.contains(&format!("\n{} cases. ", names.len())), "docs/conformance.md does not say {}", names.len());
}

#[test]
fn conforming_stub_passes_and_every_passed_case_detects_a_defect() {
    let report = suite(Defect::None, true);
    assert_eq!(report.names(VerdictKind::Fail), [""; 0], "{report}");
    assert!(report.count(VerdictKind::Pass) >= 165, "{}", report.summary());
    let detecting: BTreeSet<&str> = TRIALS.iter().flat_map(|trial| trial.detected_by).copied().collect();
    let mut untested = report.names(VerdictKind::Pass);
    untested.retain(|name| !detecting.contains(name) && !EITHER_WAY.contains(name));
    assert_eq!(untested, [""; 0], "cases that no defect fails");
}

/// Cases that accept two behaviours and fail only for a third.
const EITHER_WAY: [&str; 2] = ["identity_empty_tenant_is_not_default", "restart_effects"];

/// A defect, the cases that must detect it, and those that may, depending on timing.
struct Trial {
    defect: Defect,
    detected_by: &'static [&'static str],
    possibly: &'static [&'static str],
}

const fn trial(defect: Defect, detected_by: &'static [&'static str]) -> Trial {
    Trial { defect, detected_by, possibly: &[] }
}

const TRIALS: &[Trial] = &[
    trial(Defect::HealthzNotObject, &["healthz"]),
    trial(Defect::VersionWithoutCommit, &["version"]),
    trial(Defect::TopicCreatedWith200, &["create_topic_by_json", "create_topic_by_query"]),
    trial(Defect::TopicListedTwice, &["list_topics"]),
    trial(
        Defect::UnknownFieldsAccepted,
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
    trial(Defect::ErrorsWithoutCode, &["error_shape"]),
    trial(
        Defect::MissingFieldsAre404,
        &[
            "create_topic_without_a_name",
            "produce_without_a_topic",
            "produce_without_a_value",
            "consume_missing_parameters",
            "ack_missing_parameters",
            "nack_missing_parameters",
        ],
    ),
    trial(Defect::BadJsonIs500, &["malformed_json"]),
    trial(Defect::ProduceStatusWrong, &["produce_by_json", "produce_by_query", "target_topic_answer"]),
    trial(Defect::RetryPolicyNotInQuery, &["produce_query_retry_policy"]),
    trial(Defect::MalformedDeadlineAccepted, &["produce_malformed_deadline"]),
    trial(Defect::ZeroPartitions, &["partitions_at_least_one"]),
    trial(Defect::NoAllowHeader, &["method_not_allowed_allow"]),
    trial(Defect::WrongMethodIs404, &["method_not_allowed"]),
    trial(Defect::UnversionedServed, &["unversioned_reads", "unversioned_writes"]),
    trial(Defect::AliasesUnknown, &["produce_alias_tenant", "produce_alias_idem_key"]),
    trial(Defect::StreamIsPlainJson, &["consume_content_type"]),
    trial(Defect::StreamIgnoresBody, &["consume_by_json"]),
    trial(
        Defect::ItemWithoutKey,
        &[
            "produce_by_json",
            "produce_by_query",
            "consume_item_shape",
            "envelope_leaves_payload",
            "dead_letter_payload",
        ],
    ),
    trial(Defect::DefaultLeaseTooShort, &["consume_default_lease"]),
    trial(Defect::LeaseIgnored, &["consume_lease_ms"]),
    trial(
        Defect::AckByAnyOwner,
        &[
            "error_shape",
            "ack_not_owner",
            "ack_not_owner_changes_nothing",
            "nack_not_owner",
            "group_owner_within_group",
            "old_owner_after_redelivery",
        ],
    ),
    trial(Defect::AckTwiceRefused, &["ack_twice"]),
    trial(Defect::AckOfUndelivered, &["ack_undelivered"]),
    trial(
        Defect::AckAnswers200,
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
    trial(Defect::HigherAckFinishesLower, &["ack_out_of_order"]),
    trial(Defect::AckIgnored, &["ack_stops_redelivery", "effect_duplicate_delivery", "redelivery_then_ack"]),
    Trial {
        defect: Defect::Broadcast,
        detected_by: &["group_no_broadcast", "group_round_robin"],
        possibly: &["group_owner_within_group", "group_concurrent_consumers"],
    },
    trial(Defect::FirstConsumerOnly, &["group_round_robin"]),
    trial(
        Defect::GroupsShareProgress,
        &["groups_each_get_everything", "groups_have_own_offsets", "group_starts_with_nothing_acked"],
    ),
    trial(Defect::AttemptsConstant, &["attempts_increase", "failure_then_success"]),
    trial(
        Defect::AttemptsFromZero,
        &["groups_have_own_offsets", "group_starts_with_nothing_acked", "attempts_start_at_one"],
    ),
    Trial {
        defect: Defect::LeasesNeverEnd,
        detected_by: &[
            "consume_default_lease",
            "consume_lease_ms",
            "ack_not_owner_changes_nothing",
            "ack_out_of_order",
            "ack_per_partition",
            "redelivery_after_timeout",
            "attempts_increase",
            "redelivery_to_another",
            "redelivery_in_time",
            "redelivery_then_ack",
            "old_owner_after_redelivery",
            "new_owner_after_redelivery",
            "last_error_of_a_timeout",
            "last_error_timeout_after_nack",
            "retry_without_policy",
            "max_attempts_limits_timeouts",
            "effect_duplicate_delivery",
        ],
        possibly: &["group_concurrent_consumers"],
    },
    Trial {
        defect: Defect::LastInFirstOut,
        detected_by: &["order_within_a_partition", "order_of_a_key", "max_attempts_advances"],
        possibly: &["ack_late", "ack_out_of_order"],
    },
    trial(
        Defect::WrongTimeoutReason,
        &["last_error_of_a_timeout", "dead_letter_of_a_timeout", "last_error_timeout_after_nack"],
    ),
    trial(Defect::TimeoutReplacesReason, &["last_error_timeout_after_nack"]),
    trial(
        Defect::NackLosesReason,
        &[
            "last_error_of_a_nack",
            "last_error_of_the_latest_nack",
            "last_error_timeout_after_nack",
            "dead_letter_last_error",
        ],
    ),
    trial(
        Defect::NackIgnored,
        &[
            "groups_have_own_offsets",
            "redelivery_is_the_same_message",
            "envelope_on_redelivery",
            "last_error_of_a_nack",
            "last_error_of_the_latest_nack",
            "last_error_timeout_after_nack",
            "retry_after_nack",
            "retry_backoff",
            "retry_max_backoff",
            "max_attempts_limits_nacks",
            "failure_then_success",
            "dead_letter_topic",
            "dead_letter_payload",
            "dead_letter_origin",
            "dead_letter_attempts",
            "dead_letter_last_error",
            "dead_letter_identity",
            "dead_letter_finishes_message",
            "dead_letter_only_after_last_attempt",
        ],
    ),
    trial(Defect::BackoffIgnored, &["retry_backoff"]),
    trial(Defect::BackoffUncapped, &["retry_max_backoff"]),
    trial(
        Defect::MaxAttemptsIgnored,
        &["max_attempts_limits_nacks", "max_attempts_limits_timeouts", "max_attempts_reached", "max_attempts_advances"],
    ),
    trial(Defect::InFlightNeverFreed, &["in_flight_ack_allows_next", "order_within_a_partition", "ack_out_of_order"]),
    trial(Defect::InFlightOfAllGroups, &["in_flight_other_group"]),
    trial(Defect::RetryAfterMissing, &["overload_retry_after"]),
    trial(Defect::OverloadReasonWrong, &["overload_body"]),
    trial(
        Defect::OverloadIs503,
        &[
            "in_flight_limit",
            "in_flight_ack_allows_next",
            "in_flight_other_group",
            "in_flight_default",
            "overload_status",
            "overload_retry_after",
            "overload_body",
            "overload_not_enqueued",
            "overload_per_partition",
            "overload_ends",
            "overload_bytes",
            "overload_lone_message",
            "default_partition_messages",
            "order_within_a_partition",
        ],
    ),
    trial(Defect::OverloadedButEnqueued, &["overload_not_enqueued", "order_within_a_partition"]),
    trial(Defect::OutOfRangeAccepted, &["partition_override_too_large", "partition_override_negative"]),
    trial(
        Defect::OverrideIgnored,
        &[
            "ack_per_partition",
            "delivery_has_partition_and_offset",
            "dispatch_from_all_partitions",
            "group_no_broadcast",
            "offsets_of_a_topic",
            "order_within_a_partition",
            "overload_per_partition",
            "partition_override_wins",
            "partitions_all_usable",
            "target_topic_with_override",
        ],
    ),
    trial(Defect::PartitionOfKeyDrifts, &["partition_by_key_is_stable", "partition_by_key_per_count"]),
    trial(Defect::PartitionOfKeyPerTopic, &["partition_by_key_per_count"]),
    trial(Defect::PartitionsReversed, &["partition_of_empty_key", "router_absent_topic", "overload_per_partition"]),
    trial(Defect::PartitionAlwaysZero, &["partition_by_key_spreads"]),
    trial(Defect::EnvelopeWithoutLineage, &["produce_query_envelope", "envelope_workflow_identity", "envelope_whole"]),
    trial(
        Defect::EnvelopeWithoutIdentity,
        &[
            "produce_query_envelope",
            "produce_alias_tenant",
            "produce_alias_idem_key",
            "envelope_tenant",
            "envelope_idempotency_key",
            "envelope_whole",
            "dead_letter_identity",
        ],
    ),
    trial(
        Defect::EnvelopeWithoutRouting,
        &["produce_query_envelope", "envelope_target_topic", "envelope_partition_override", "envelope_whole"],
    ),
    trial(
        Defect::EnvelopeWithoutPolicy,
        &[
            "produce_query_envelope",
            "produce_query_retry_policy",
            "envelope_deadline",
            "envelope_retry_policy",
            "envelope_whole",
        ],
    ),
    trial(Defect::EnvelopeAdded, &["envelope_is_optional"]),
    trial(Defect::RedeliveryWithoutEnvelope, &["redelivery_is_the_same_message", "envelope_on_redelivery"]),
    trial(Defect::LabelsDropped, &["labels"]),
    trial(Defect::PayloadTrimmed, &["envelope_leaves_payload"]),
    trial(
        Defect::TargetTopicIgnored,
        &["target_topic_routes", "target_topic_with_override", "router_absent_precedence"],
    ),
    trial(Defect::DeadlineIgnored, &["deadline_expired"]),
    trial(
        Defect::DeadlineAlwaysPassed,
        &["produce_query_envelope", "envelope_deadline", "envelope_whole", "deadline_future"],
    ),
    trial(Defect::RoutingAdded, &["router_absent_routing"]),
    trial(
        Defect::DuplicateEnqueued,
        &["duplicate_not_enqueued", "duplicate_while_pending", "duplicate_after_ack", "identity_empty_tenant"],
    ),
    trial(Defect::DuplicateRefused, &["duplicate_is_success"]),
    trial(Defect::FailedProduceUsesKey, &["failed_produce_frees_key"]),
    trial(Defect::IdentityWithoutTopic, &["identity_has_topic"]),
    trial(Defect::IdentityWithoutTenant, &["identity_has_tenant"]),
    trial(Defect::EmptyKeyDeduplicated, &["identity_empty_key"]),
    trial(Defect::DeadLetterWithoutOrigin, &["dead_letter_origin"]),
    trial(Defect::DeadLetterWithoutIdentity, &["dead_letter_identity"]),
    trial(Defect::DeadLetterWithoutValue, &["dead_letter_payload"]),
    trial(Defect::DeadLetterWithoutAttempts, &["dead_letter_attempts"]),
    trial(
        Defect::DeadLetterTooEarly,
        &[
            "max_attempts_limits_nacks",
            "max_attempts_limits_timeouts",
            "dead_letter_topic",
            "dead_letter_payload",
            "dead_letter_origin",
            "dead_letter_attempts",
            "dead_letter_last_error",
            "dead_letter_identity",
            "dead_letter_finishes_message",
            "dead_letter_only_after_last_attempt",
        ],
    ),
    trial(
        Defect::DeadLetterNotFinished,
        &[
            "max_attempts_limits_nacks",
            "max_attempts_limits_timeouts",
            "max_attempts_reached",
            "max_attempts_advances",
            "dead_letter_finishes_message",
        ],
    ),
    trial(
        Defect::EffectDecisionWrong,
        &[
            "effect_new_executes",
            "effect_success_replays",
            "effect_in_progress",
            "effect_duplicate_delivery",
            "effect_identity_has_topic",
            "effect_identity_is_the_topics",
            "effect_states",
            "effect_failed_retries",
            "effect_last_error",
            "effect_stored_fields",
            "effect_updated_at",
            "effect_identity_tenant_and_key",
            "effect_empty_tenant",
        ],
    ),
    trial(Defect::EffectRunTwice, &["effect_success_replays", "effect_duplicate_delivery", "effect_empty_tenant"]),
    trial(Defect::EffectScopeIgnored, &["effect_identity_has_topic"]),
    trial(Defect::EffectStateMissing, &["effect_states"]),
    trial(Defect::EffectFailureFinal, &["effect_failed_retries"]),
    trial(Defect::EffectResultLost, &["effect_success_replays", "effect_stored_fields"]),
    trial(Defect::EffectTimestampFixed, &["effect_updated_at"]),
    trial(Defect::EffectEmptyKeyStored, &["effect_empty_key"]),
    trial(Defect::EffectNeverInProgress, &["effect_in_progress", "effect_identity_tenant_and_key"]),
    trial(Defect::EffectErrorLost, &["effect_last_error"]),
    trial(
        Defect::TopicsLostOnRestart,
        &[
            "restart_keeps_messages",
            "restart_keeps_envelopes",
            "restart_delivers_what_was_in_flight",
            "restart_keeps_acks",
            "restart_keeps_offsets_per_group",
            "restart_keeps_offsets_per_partition",
            "restart_ack_above_a_gap",
            "restart_exhausted_stays_finished",
            "restart_keeps_topics",
            "restart_keeps_order",
            "restart_offsets_go_on",
            "restart_resumes_dispatch",
            "restart_attempts",
            "restart_last_error",
            "restart_producer_idempotency",
        ],
    ),
    trial(
        Defect::MessagesLostOnRestart,
        &[
            "restart_attempts",
            "restart_delivers_what_was_in_flight",
            "restart_keeps_acks",
            "restart_keeps_envelopes",
            "restart_keeps_messages",
            "restart_keeps_offsets_per_group",
            "restart_keeps_offsets_per_partition",
            "restart_keeps_order",
            "restart_last_error",
        ],
    ),
    trial(
        Defect::AcksLostOnRestart,
        &[
            "restart_ack_above_a_gap",
            "restart_exhausted_stays_finished",
            "restart_keeps_acks",
            "restart_keeps_offsets_per_group",
            "restart_keeps_offsets_per_partition",
            "restart_offsets_go_on",
            "restart_resumes_dispatch",
        ],
    ),
    trial(Defect::OffsetsRestart, &["restart_offsets_go_on", "restart_resumes_dispatch"]),
    Trial {
        defect: Defect::OffsetsDecrease,
        detected_by: &["offsets_increase", "offsets_of_a_topic", "ack_late", "ack_out_of_order"],
        possibly: &["order_within_a_partition", "order_of_a_key", "max_attempts_advances"],
    },
    trial(Defect::LastErrorAtFirstDelivery, &["last_error_empty_at_first", "consume_item_shape"]),
    trial(Defect::BytesLimitOneLess, &["default_partition_bytes"]),
    Trial {
        defect: Defect::StoredTwice,
        detected_by: &["partition_exactly_one", "order_of_a_key"],
        possibly: &["group_no_broadcast"],
    },
    Trial {
        defect: Defect::AcksLostOnDisconnect,
        detected_by: &["basic_consume_and_ack"],
        possibly: &["ack_twice", "ack_late"],
    },
    trial(Defect::DisconnectStopsOthers, &["group_concurrent_consumers"]),
];

/// Whether a defect is only observable after a restart of the stub.
fn is_about_restarts(defect: Defect) -> bool {
    matches!(
        defect,
        Defect::TopicsLostOnRestart
            | Defect::MessagesLostOnRestart
            | Defect::AcksLostOnRestart
            | Defect::OffsetsRestart
    )
}

/// Runs the suite against a defect; the error if the cases that fail are not the expected ones.
fn check_trial(trial: &Trial) -> Option<String> {
    let report = suite(trial.defect, is_about_restarts(trial.defect));
    let failed: BTreeSet<&str> = report.names(VerdictKind::Fail).into_iter().collect();
    let missed: Vec<_> = trial.detected_by.iter().filter(|name| !failed.contains(*name)).collect();
    let expected = |name: &str| trial.detected_by.contains(&name) || trial.possibly.contains(&name);
    let unexpected =
        report.entries.iter().filter(|entry| entry.verdict.kind == VerdictKind::Fail && !expected(entry.case.name));
    let unexpected: Vec<_> = unexpected.map(|entry| (entry.case.name, &entry.verdict.seen)).collect();
    let right = missed.is_empty() && unexpected.is_empty();
    (!right).then(|| format!("{:?}: not detected by {missed:?}, but by {unexpected:?}", trial.defect))
}

#[test]
fn every_defect_fails_exactly_the_cases_it_concerns() {
    let (next, again) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                while let Some(trial) = TRIALS.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if check_trial(trial).is_some() {
                        again.lock().expect("no panic before").push(trial);
                    }
                }
            });
        }
    });
    // Many suites at once may overload a small machine: trials that failed are repeated alone.
    let again = again.into_inner().expect("no panic before");
    eprintln!("{} of {} trials are repeated", again.len(), TRIALS.len());
    let wrong: Vec<String> = again.into_iter().filter_map(check_trial).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Runs the suite, or a part of it, against a `driftqd` that is killed and restarted in between.
fn driftqd_suite(args: &[&str], only: Option<&str>) -> Report {
    let folder = tempfile::tempdir().expect("a folder");
    let addr = free_addr().expect("a free port");
    let driftqd = driftqd().expect("the broker");
    let launcher =
        Launcher::new(&driftqd, &folder.path().join("data"), &folder.path().join("log")).addr(addr).args(args);
    let daemon = Arc::new(Mutex::new(Some(launcher.start().expect("the broker starts"))));
    let running = Arc::clone(&daemon);
    let mut options = Options::new(&format!("http://{addr}"));
    options.only = only.map(str::to_owned);
    options.timeout = Duration::from_secs(10);
    options.restart = Some(Box::new(move || {
        let mut running = running.lock().map_err(|error| error.to_string())?;
        // Dropping it kills it; the folder is unlocked once the process is gone.
        drop(running.take());
        *running = Some(launcher.start()?);
        Ok(())
    }));
    run(&options, &|_| {}).expect("a server that responds")
}

/// Nothing fails, few cases are not applicable, and deviations are documented.
#[track_caller]
fn conforms(report: &Report, pass_min: usize, not_applicable_max: usize) {
    for name in report.names(VerdictKind::Deviates) {
        assert!(PAGE.contains(&format!("`{name}`")), "{name} is not in docs/conformance.md");
    }
    assert_eq!(report.names(VerdictKind::Fail), [""; 0], "{report}");
    assert!(report.count(VerdictKind::Pass) >= pass_min, "{report}");
    assert!(report.count(VerdictKind::NotApplicable) <= not_applicable_max, "{report}");
}

#[test]
fn driftqd_conforms_in_both_profiles_with_documented_deviations() {
    std::thread::scope(|scope| {
        let production = scope.spawn(|| driftqd_suite(&[], None));
        let spec = scope.spawn(|| driftqd_suite(&["--profile", "spec"], None));
        // Neither profile shows the in-flight limit: one limit is too large, the other equals the partition's capacity.
        let in_flight = scope.spawn(|| driftqd_suite(&["--max-in-flight", "2"], Some("in_flight")));
        conforms(&production.join().expect("a report"), 156, 20);
        conforms(&spec.join().expect("a report"), 165, 10);
        conforms(&in_flight.join().expect("a report"), 4, 0);
    });
}

fn conformance(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_conformance")).args(args).output().expect("the program runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn exit_code_and_report_match_findings() {
    let stub = Stub::start(Defect::None);
    let folder = tempfile::tempdir().expect("a folder");
    let json = folder.path().join("report.json");
    let path = json.to_str().expect("a path of text");
    let ran = conformance(&["--url", &stub.url(), "--only", "HTTP API: topics", "--json", path]);
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    assert!(stdout(&ran).contains("5 cases against"), "{}", stdout(&ran));
    let report: Value = serde_json::from_slice(&std::fs::read(&json).expect("the report")).expect("JSON");
    assert_eq!((&report["url"], &report["counts"]["pass"]), (&Value::from(stub.url()), &Value::from(5)));
    let first = &report["cases"][0];
    assert_eq!((&first["section"], &first["result"]), (&"HTTP API: topics".into(), &"pass".into()));
    for field in ["clause", "name", "seen"] {
        assert!(first[field].is_string(), "{first}");
    }

    // The restart command is run if a case needs it, and its failure is reported.
    let marker = folder.path().join("restarted");
    let touch = format!("touch {}", marker.display());
    let restart = ["--url", &stub.url(), "--only", "restart_keeps_topics", "--restart"];
    let ran = conformance(&[&restart[..], &[&touch]].concat());
    assert_eq!((ran.status.code(), marker.exists()), (Some(0), true), "{ran:?}");
    let ran = conformance(&[&restart[..], &["echo cannot restart; exit 3"]].concat());
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    assert!(stdout(&ran).contains("cannot restart"), "{}", stdout(&ran));

    let defective = Stub::start(Defect::TopicCreatedWith200);
    let ran = conformance(&["--url", &defective.url(), "--only", "create_topic_by_json", "--json", "-"]);
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    let report: Value = serde_json::from_slice(&ran.stdout).expect("JSON alone on standard output");
    assert_eq!(report["cases"][0]["result"], "fail");
    assert!(report["cases"][0]["seen"].as_str().is_some_and(|seen| seen.contains("expected 201")), "{report}");
}

#[test]
fn run_that_cannot_start_exits_with_2_and_reason() {
    let unused = format!("http://{}", free_addr().expect("a free port"));
    let stub = Stub::start(Defect::None);
    let url = stub.url();
    for args in
        [&["--url", &unused][..], &["--url", "ftp://x"], &[], &["--url", &url, "--only", "no such case"], &["--bogus"]]
    {
        let ran = conformance(args);
        assert_eq!(ran.status.code(), Some(2), "{args:?}: {ran:?}");
        assert!(!ran.stderr.is_empty(), "{args:?}");
    }
    let listed = conformance(&["--list"]);
    assert_eq!(listed.status.code(), Some(0));
    for case in cases() {
        assert!(stdout(&listed).contains(case.name), "{} is not listed", case.name);
    }
}
