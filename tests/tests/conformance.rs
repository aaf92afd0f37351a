//! The conformance suite: honest brokers pass it, ours included, and for each lie that a broker can tell there are cases that catch it.

mod stub;

use std::collections::BTreeSet;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use driftq_tests::conformance::{Options, Outcome, Report, cases, run};
use driftq_tests::daemon::{Daemon, Recipe, free_addr, program};
use serde_json::Value;
use stub::{Lie, Stub};

const PAGE: &str = include_str!("../../docs/conformance.md");

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
fn cases_are_named_once_stand_together_and_are_counted_in_the_page() {
    let (mut names, mut sections) = (BTreeSet::new(), Vec::new());
    for case in cases() {
        assert!(names.insert(case.name), "{} twice", case.name);
        if sections.last() != Some(&case.section) {
            sections.push(case.section);
        }
    }
    let distinct: BTreeSet<_> = sections.iter().collect();
    assert_eq!(distinct.len(), sections.len(), "a section in two places: {sections:?}");
    // The page counts them, section by section.
    for section in sections {
        let row = format!("| {section} | {} |\n", cases().iter().filter(|case| case.section == section).count());
        assert!(PAGE.contains(&row), "docs/conformance.md lacks {row}");
    }
    assert!(PAGE.contains(&format!("\n{} cases. ", names.len())), "docs/conformance.md does not say {}", names.len());
}

#[test]
fn an_honest_broker_passes_by_the_letter_and_every_case_it_passes_catches_a_lie() {
    let report = suite(Lie::Nothing, true);
    assert_eq!(report.names(Outcome::Fail), [""; 0], "{report}");
    assert!(report.count(Outcome::Pass) >= 165, "{}", report.summary());
    let convicting: BTreeSet<&str> = TRIALS.iter().flat_map(|trial| trial.caught_by).copied().collect();
    let mut idle = report.names(Outcome::Pass);
    idle.retain(|name| !convicting.contains(name) && !EITHER_WAY.contains(name));
    assert_eq!(idle, [""; 0], "cases that no lie has made fail");
}

/// Cases about what a broker may do or leave, which only fail where it does a third thing.
const EITHER_WAY: [&str; 2] = ["identity_empty_tenant_is_not_default", "restart_effects"];

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
    trial(
        Lie::MissingFieldsAre404,
        &[
            "create_topic_without_a_name",
            "produce_without_a_topic",
            "produce_without_a_value",
            "consume_missing_parameters",
            "ack_missing_parameters",
            "nack_missing_parameters",
        ],
    ),
    trial(Lie::BadJsonIs500, &["malformed_json"]),
    trial(Lie::ProduceUnnamed, &["produce_by_json", "produce_by_query", "target_topic_answer"]),
    trial(Lie::RetryPolicyNotInQuery, &["produce_query_retry_policy"]),
    trial(Lie::BadDeadlineTaken, &["produce_malformed_deadline"]),
    trial(Lie::ZeroPartitions, &["partitions_at_least_one"]),
    trial(Lie::NoAllowHeader, &["method_not_allowed_allow"]),
    trial(Lie::WrongMethodIs404, &["method_not_allowed"]),
    trial(Lie::UnversionedServed, &["unversioned_reads", "unversioned_writes"]),
    trial(Lie::AliasesUnknown, &["produce_alias_tenant", "produce_alias_idem_key"]),
    trial(Lie::StreamIsPlainJson, &["consume_content_type"]),
    trial(Lie::StreamIgnoresBody, &["consume_by_json"]),
    trial(
        Lie::ItemWithoutKey,
        &[
            "produce_by_json",
            "produce_by_query",
            "consume_item_shape",
            "envelope_leaves_payload",
            "dead_letter_payload",
        ],
    ),
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
    trial(Lie::AckOfUndelivered, &["ack_undelivered"]),
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
    trial(Lie::AckForgotten, &["ack_stops_redelivery", "effect_duplicate_delivery", "redelivery_then_ack"]),
    Trial {
        lie: Lie::Broadcast,
        caught_by: &["group_no_broadcast", "group_round_robin"],
        perhaps: &["group_owner_within_group", "group_concurrent_consumers"],
    },
    trial(Lie::FirstConsumerOnly, &["group_round_robin"]),
    trial(
        Lie::GroupsShareProgress,
        &["groups_each_get_everything", "groups_have_own_offsets", "group_starts_with_nothing_acked"],
    ),
    trial(Lie::AttemptsDoNotRise, &["attempts_increase", "failure_then_success"]),
    trial(
        Lie::AttemptsFromZero,
        &["groups_have_own_offsets", "group_starts_with_nothing_acked", "attempts_start_at_one"],
    ),
    Trial {
        lie: Lie::LeasesNeverEnd,
        caught_by: &[
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
        perhaps: &["group_concurrent_consumers"],
    },
    Trial {
        lie: Lie::LastInFirstOut,
        caught_by: &["order_within_a_partition", "order_of_a_key", "max_attempts_advances"],
        perhaps: &["ack_late", "ack_out_of_order"],
    },
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
    trial(
        Lie::NackForgotten,
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
            "dead_letter_is_done",
            "dead_letter_not_before_its_time",
        ],
    ),
    trial(Lie::BackoffIgnored, &["retry_backoff"]),
    trial(Lie::BackoffUncapped, &["retry_max_backoff"]),
    trial(
        Lie::MaxAttemptsIgnored,
        &["max_attempts_limits_nacks", "max_attempts_limits_timeouts", "max_attempts_reached", "max_attempts_advances"],
    ),
    trial(Lie::InFlightNeverFreed, &["in_flight_ack_makes_room", "order_within_a_partition", "ack_out_of_order"]),
    trial(Lie::InFlightOfAllGroups, &["in_flight_other_group"]),
    trial(Lie::RetryAfterMissing, &["overload_retry_after"]),
    trial(Lie::OverloadUnnamed, &["overload_body"]),
    trial(
        Lie::OverloadIs503,
        &[
            "in_flight_limit",
            "in_flight_ack_makes_room",
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
    trial(Lie::OverloadedButEnqueued, &["overload_not_enqueued", "order_within_a_partition"]),
    trial(Lie::OutOfRangeAccepted, &["partition_override_too_large", "partition_override_negative"]),
    trial(
        Lie::OverrideIgnored,
        &[
            "ack_per_partition",
            "delivery_carries_its_place",
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
    trial(Lie::PartitionOfKeyDrifts, &["partition_by_key_is_stable", "partition_by_key_per_count"]),
    trial(Lie::PartitionOfKeyPerTopic, &["partition_by_key_per_count"]),
    trial(Lie::PartitionsReversed, &["partition_of_empty_key", "router_absent_topic", "overload_per_partition"]),
    trial(Lie::PartitionAlwaysZero, &["partition_by_key_spreads"]),
    trial(Lie::EnvelopeWithoutLineage, &["produce_query_envelope", "envelope_workflow_identity", "envelope_whole"]),
    trial(
        Lie::EnvelopeWithoutIdentity,
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
        Lie::EnvelopeWithoutRouting,
        &["produce_query_envelope", "envelope_target_topic", "envelope_partition_override", "envelope_whole"],
    ),
    trial(
        Lie::EnvelopeWithoutPolicy,
        &[
            "produce_query_envelope",
            "produce_query_retry_policy",
            "envelope_deadline",
            "envelope_retry_policy",
            "envelope_whole",
        ],
    ),
    trial(Lie::EnvelopeInvented, &["envelope_is_optional"]),
    trial(Lie::RedeliveryIsBare, &["redelivery_is_the_same_message", "envelope_on_redelivery"]),
    trial(Lie::LabelsSwallowed, &["labels"]),
    trial(Lie::PayloadTrimmed, &["envelope_leaves_payload"]),
    trial(Lie::TargetTopicIgnored, &["target_topic_routes", "target_topic_with_override", "router_absent_precedence"]),
    trial(Lie::DeadlineIgnored, &["deadline_expired"]),
    trial(
        Lie::DeadlineAlwaysPassed,
        &["produce_query_envelope", "envelope_deadline", "envelope_whole", "deadline_future"],
    ),
    trial(Lie::RoutingInvented, &["router_absent_routing"]),
    trial(
        Lie::DuplicateEnqueued,
        &["duplicate_not_enqueued", "duplicate_while_pending", "duplicate_after_ack", "identity_empty_tenant"],
    ),
    trial(Lie::DuplicateRefused, &["duplicate_is_success"]),
    trial(Lie::FailedProduceTakesKey, &["failed_produce_frees_key"]),
    trial(Lie::IdentityWithoutTopic, &["identity_has_topic"]),
    trial(Lie::IdentityWithoutTenant, &["identity_has_tenant"]),
    trial(Lie::EmptyKeyDeduplicated, &["identity_empty_key"]),
    trial(Lie::DeadLetterWithoutOrigin, &["dead_letter_origin"]),
    trial(Lie::DeadLetterWithoutIdentity, &["dead_letter_identity"]),
    trial(Lie::DeadLetterWithoutValue, &["dead_letter_payload"]),
    trial(Lie::DeadLetterWithoutAttempts, &["dead_letter_attempts"]),
    trial(
        Lie::DeadLetterTooEarly,
        &[
            "max_attempts_limits_nacks",
            "max_attempts_limits_timeouts",
            "dead_letter_topic",
            "dead_letter_payload",
            "dead_letter_origin",
            "dead_letter_attempts",
            "dead_letter_last_error",
            "dead_letter_identity",
            "dead_letter_is_done",
            "dead_letter_not_before_its_time",
        ],
    ),
    trial(
        Lie::DeadLetterNotDone,
        &[
            "max_attempts_limits_nacks",
            "max_attempts_limits_timeouts",
            "max_attempts_reached",
            "max_attempts_advances",
            "dead_letter_is_done",
        ],
    ),
    trial(
        Lie::EffectUntold,
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
    trial(Lie::EffectRunTwice, &["effect_success_replays", "effect_duplicate_delivery", "effect_empty_tenant"]),
    trial(Lie::EffectScopeIgnored, &["effect_identity_has_topic"]),
    trial(Lie::EffectStateUnnamed, &["effect_states"]),
    trial(Lie::EffectFailedForGood, &["effect_failed_retries"]),
    trial(Lie::EffectResultForgotten, &["effect_success_replays", "effect_stored_fields"]),
    trial(Lie::EffectUntimed, &["effect_updated_at"]),
    trial(Lie::EffectEmptyKeyKept, &["effect_empty_key"]),
    trial(Lie::EffectNeverInProgress, &["effect_in_progress", "effect_identity_tenant_and_key"]),
    trial(Lie::EffectErrorForgotten, &["effect_last_error"]),
    trial(
        Lie::TopicsLostOnRestart,
        &[
            "restart_keeps_messages",
            "restart_keeps_envelopes",
            "restart_delivers_what_was_in_flight",
            "restart_keeps_acks",
            "restart_keeps_offsets_per_group",
            "restart_keeps_offsets_per_partition",
            "restart_ack_above_a_gap",
            "restart_exhausted_stays_done",
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
        Lie::MessagesLostOnRestart,
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
        Lie::AcksLostOnRestart,
        &[
            "restart_ack_above_a_gap",
            "restart_exhausted_stays_done",
            "restart_keeps_acks",
            "restart_keeps_offsets_per_group",
            "restart_keeps_offsets_per_partition",
            "restart_offsets_go_on",
            "restart_resumes_dispatch",
        ],
    ),
    trial(Lie::OffsetsRestart, &["restart_offsets_go_on", "restart_resumes_dispatch"]),
    Trial {
        lie: Lie::OffsetsFall,
        caught_by: &["offsets_increase", "offsets_of_a_topic", "ack_late", "ack_out_of_order"],
        perhaps: &["order_within_a_partition", "order_of_a_key", "max_attempts_advances"],
    },
    trial(Lie::ErrorFromTheFirst, &["last_error_empty_at_first", "consume_item_shape"]),
    trial(Lie::BytesLimitOneLess, &["default_partition_bytes"]),
    Trial {
        lie: Lie::StoredTwice,
        caught_by: &["partition_exactly_one", "order_of_a_key"],
        perhaps: &["group_no_broadcast"],
    },
    Trial {
        lie: Lie::AcksGoWithTheirStream,
        caught_by: &["basic_consume_and_ack"],
        perhaps: &["ack_twice", "ack_late"],
    },
    trial(Lie::LeavingSilencesTheOthers, &["group_concurrent_consumers"]),
];

/// Lies that only show when the stub is restarted; the others are caught sooner without that.
fn is_about_restarts(lie: Lie) -> bool {
    matches!(lie, Lie::TopicsLostOnRestart | Lie::MessagesLostOnRestart | Lie::AcksLostOnRestart | Lie::OffsetsRestart)
}

/// What is wrong with how a lie was caught; nothing if it was as it must be.
fn misjudged(trial: &Trial) -> Option<String> {
    let report = suite(trial.lie, is_about_restarts(trial.lie));
    let caught: BTreeSet<&str> = report.names(Outcome::Fail).into_iter().collect();
    let missed: Vec<_> = trial.caught_by.iter().filter(|name| !caught.contains(*name)).collect();
    let expected = |name: &str| trial.caught_by.contains(&name) || trial.perhaps.contains(&name);
    let beyond =
        report.entries.iter().filter(|entry| entry.verdict.outcome == Outcome::Fail && !expected(entry.case.name));
    let beyond: Vec<_> = beyond.map(|entry| (entry.case.name, &entry.verdict.seen)).collect();
    let right = missed.is_empty() && beyond.is_empty();
    (!right).then(|| format!("{:?}: missed by {missed:?}, caught by {beyond:?} too", trial.lie))
}

#[test]
fn every_lie_is_caught_by_the_cases_it_concerns_and_by_no_other() {
    let (next, again) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                while let Some(trial) = TRIALS.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if misjudged(trial).is_some() {
                        again.lock().expect("no panic before").push(trial);
                    }
                }
            });
        }
    });
    // A dozen suites at once are a lot for a small machine: what went wrong among them is tried once more, alone.
    let again = again.into_inner().expect("no panic before");
    eprintln!("{} of {} lies are tried again", again.len(), TRIALS.len());
    let wrong: Vec<String> = again.into_iter().filter_map(misjudged).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Runs the suite, or a part of it, against a `driftqd` of our own that is killed and started again in the middle.
fn ours(args: &[&str], only: Option<&str>) -> Report {
    let folder = tempfile::tempdir().expect("a folder");
    let (data, log) = (folder.path().join("data"), folder.path().join("log"));
    let recipe = Recipe::of(&program("driftq-server", "driftqd").expect("the broker")).with(args);
    let addr = free_addr().expect("a free port");
    let start = move || Daemon::start(&recipe, &data, addr, &log);
    let daemon = Arc::new(Mutex::new(Some(start().expect("the broker starts"))));
    let running = Arc::clone(&daemon);
    let mut options = Options::at(&format!("http://{addr}"));
    options.only = only.map(str::to_owned);
    options.patience = Duration::from_secs(10);
    options.restart = Some(Box::new(move || {
        let mut running = running.lock().map_err(|error| error.to_string())?;
        // Dropping it is kill -9; the folder is free once the process is gone.
        drop(running.take());
        *running = Some(start()?);
        Ok(())
    }));
    run(&options, &|_| {}).expect("a server that answers")
}

/// Nothing fails, not much is left out, and what deviates is documented.
#[track_caller]
fn conforms(report: &Report, pass_min: usize, not_applicable_max: usize) {
    for name in report.names(Outcome::Deviates) {
        assert!(PAGE.contains(&format!("`{name}`")), "{name} is not in docs/conformance.md");
    }
    assert_eq!(report.names(Outcome::Fail), [""; 0], "{report}");
    assert!(report.count(Outcome::Pass) >= pass_min, "{report}");
    assert!(report.count(Outcome::NotApplicable) <= not_applicable_max, "{report}");
}

#[test]
fn our_broker_conforms_in_both_profiles_and_deviates_where_it_is_documented() {
    std::thread::scope(|scope| {
        let production = scope.spawn(|| ours(&[], None));
        let spec = scope.spawn(|| ours(&["--profile", "spec"], None));
        // Neither profile shows the in-flight limit: the one's is too large, the other's partitions hold no more than it.
        let in_flight = scope.spawn(|| ours(&["--max-in-flight", "2"], Some("in_flight")));
        conforms(&production.join().expect("a report"), 156, 20);
        conforms(&spec.join().expect("a report"), 165, 10);
        conforms(&in_flight.join().expect("a report"), 4, 0);
    });
}

fn conformance(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_conformance")).args(args).output().expect("the tool runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn the_tool_exits_with_what_it_found() {
    let honest = Stub::start(Lie::Nothing);
    let folder = tempfile::tempdir().expect("a folder");
    let json = folder.path().join("report.json");
    let path = json.to_str().expect("a path of text");
    let ran = conformance(&["--url", &honest.url(), "--only", "HTTP API: topics", "--json", path]);
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    assert!(stdout(&ran).contains("5 cases against"), "{}", stdout(&ran));
    let report: Value = serde_json::from_slice(&std::fs::read(&json).expect("the report")).expect("JSON");
    assert_eq!((&report["url"], &report["counts"]["pass"]), (&Value::from(honest.url()), &Value::from(5)));
    let first = &report["cases"][0];
    assert_eq!((&first["section"], &first["result"]), (&"HTTP API: topics".into(), &"pass".into()));
    for field in ["clause", "name", "seen"] {
        assert!(first[field].is_string(), "{first}");
    }

    // The command is run where there is a case for it, and its failure is told.
    let marker = folder.path().join("restarted");
    let touch = format!("touch {}", marker.display());
    let restart = ["--url", &honest.url(), "--only", "restart_keeps_topics", "--restart"];
    let ran = conformance(&[&restart[..], &[&touch]].concat());
    assert_eq!((ran.status.code(), marker.exists()), (Some(0), true), "{ran:?}");
    let ran = conformance(&[&restart[..], &["echo no luck; exit 3"]].concat());
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    assert!(stdout(&ran).contains("no luck"), "{}", stdout(&ran));

    let liar = Stub::start(Lie::TopicCreatedWith200);
    let ran = conformance(&["--url", &liar.url(), "--only", "create_topic_by_json", "--json", "-"]);
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    let report: Value = serde_json::from_slice(&ran.stdout).expect("JSON alone on standard output");
    assert_eq!(report["cases"][0]["result"], "fail");
    assert!(report["cases"][0]["seen"].as_str().is_some_and(|seen| seen.contains("expected 201")), "{report}");
}

#[test]
fn the_tool_says_why_it_did_not_run() {
    let nobody = format!("http://{}", free_addr().expect("a free port"));
    let honest = Stub::start(Lie::Nothing);
    let url = honest.url();
    for args in
        [&["--url", &nobody][..], &["--url", "ftp://x"], &[], &["--url", &url, "--only", "no such case"], &["--bogus"]]
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
