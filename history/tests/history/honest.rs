//! Histories that look odd and are not: what must not be accused.

use driftq_history::{Check, Phase, check};
use serde_json::{Value, json};

use crate::builder::{History, LEASE_MS, START, item, moment};

fn passes(history: &History) {
    let report = check(&history.entries);
    assert!(report.passed(), "{report}");
}

/// Two workers of one group; `w1` holds the only message.
fn held() -> History {
    let mut history = History::new();
    history.produced(0..1);
    history.consume("w1", "g");
    history.consume("w2", "g");
    history.deliver("w1", item(0, 1));
    history
}

#[test]
fn an_ack_without_an_answer_may_have_happened_or_not() {
    let mut history = held();
    history.settle("w1", "ack", Phase::Info, (0, 1), json!({}));
    passes(&history.drained());

    let mut history = held();
    history.settle("w1", "ack", Phase::Info, (0, 1), json!({}));
    history.pass(LEASE_MS);
    history.deliver("w2", item(0, 2).attempt(2));
    history.ack("w2", 0, 2);
    passes(&history.drained());
}

#[test]
fn a_late_line_of_a_stream_that_was_cut_by_a_kill_is_fine() {
    let mut history = held();
    history.driver("kill", json!({}));
    history.produce("v1", json!({}), None);
    history.driver("start", json!({}));
    history.consume("w3", "g");
    history.pass(3 * LEASE_MS);
    history.deliver("w3", item(0, 3).attempt(3));
    // Read from the socket's buffer only now, although it is the older one.
    history.deliver("w2", item(0, 2).attempt(2));
    let late = history.entries.last_mut().expect("just written");
    late.result["lease_until"] = json!(moment(late.t - 2));
    history.end("w2", Phase::Info);
    history.ack("w3", 0, 3);
    passes(&history.drained());
}

#[test]
fn a_produce_without_an_answer_appears_once_or_never() {
    let mut history = History::new();
    history.produce("never", json!({}), None);
    history.produce("v0", json!({}), None);
    history.consume("w1", "g");
    history.work("w1", 0..1, 0);
    passes(&history.drained());
}

#[test]
fn a_call_that_the_driver_died_over_is_one_without_an_answer() {
    let mut history = History::new();
    history.line("producer", "produce", Phase::Invoke, json!({"topic": "t", "value": "v0"}), Value::Null);
    history.consume("w1", "g");
    history.work("w1", 0..1, 0);
    let history = history.drained();
    let report = check(&history.entries);
    assert!(report.passed() && report.counts.info == 2, "{report}");
}

#[test]
fn the_gate_may_answer_for_a_produce_that_nobody_was_told_of() {
    let keyed = || json!({"envelope": {"idempotency_key": "k", "tenant_id": ""}});
    let mut history = History::new();
    history.produce("v0", keyed(), None);
    history.produce("other", keyed(), Some((0, 0)));
    history.entries.last_mut().expect("just written").result["duplicate"] = json!(true);
    history.consume("w1", "g");
    history.deliver("w1", item(0, 1).envelope(json!({"idempotency_key": "k"})));
    history.ack("w1", 0, 1);
    passes(&history.drained());
}

#[test]
fn a_key_is_free_again_after_its_window_or_when_the_clock_jumped() {
    let keyed = || json!({"envelope": {"idempotency_key": "k"}});
    for clock in [false, true] {
        let mut history = History::new();
        history.produce("v0", keyed(), Some((0, 0)));
        match clock {
            true => history.driver("clock", json!({"offset": "+30d"})),
            false => history.pass(10 * 60 * 1_000),
        }
        history.produce("v1", keyed(), Some((0, 1)));
        history.consume("w1", "g");
        for offset in 0..2 {
            history.deliver("w1", item(offset, offset + 1).envelope(json!({"idempotency_key": "k"})));
            history.ack("w1", offset, offset + 1);
        }
        passes(&history.drained());
    }
}

#[test]
fn a_dead_letter_is_done_for_its_group_and_may_be_acked_late() {
    let mut history = History::new();
    let policy = json!({"retry_policy": {"max_attempts": 1}});
    history.produce("v0", json!({"envelope": policy}), Some((0, 0)));
    history.consume("w1", "g");
    history.deliver("w1", item(0, 1).envelope(policy));
    history.settle("w1", "nack", Phase::Ok, (0, 1), json!({"reason": "no"}));
    history.ack("w1", 0, 1);
    history.line("driver", "drain", Phase::Invoke, json!({"round": 1}), Value::Null);
    history.consume_with("w2", json!({"topic": "dlq.t", "group": "d", "owner": "w2"}));
    let origin = json!({"original_topic": "t", "original_partition": 0, "original_offset": 0, "group": "g"});
    history.deliver("w2", item(0, 2).envelope(json!({"dlq": origin})));
    history.ack("w2", 0, 2);
    history.end("w2", Phase::Ok);
    history.line("driver", "drain", Phase::Ok, json!({"round": 1}), json!({}));
    history.drain(2);
    passes(&history);
}

#[test]
fn a_message_that_died_counts_as_done_only_where_somebody_saw_its_dead_letter_or_could_not() {
    let history = |watched: bool| {
        let mut history = History::new();
        let policy = json!({"retry_policy": {"max_attempts": 1}});
        history.produce("v0", json!({"envelope": policy}), Some((0, 0)));
        history.consume("w1", "g");
        history.deliver("w1", item(0, 1).envelope(policy));
        history.settle("w1", "nack", Phase::Ok, (0, 1), json!({}));
        history.line("driver", "drain", Phase::Invoke, json!({"round": 1}), Value::Null);
        if watched {
            history.consume_with("w2", json!({"topic": "dlq.t", "group": "d", "owner": "w2"}));
            history.end("w2", Phase::Ok);
        }
        history.line("driver", "drain", Phase::Ok, json!({"round": 1}), json!({}));
        history.drain(2);
        check(&history.entries)
    };
    assert!(history(false).passed());
    assert_eq!(history(true).violations[0].check, Check::Drained);
}

#[test]
fn a_lease_that_was_extended_ends_later() {
    let mut history = held();
    history.pass(1_500);
    history.settle("w1", "extend", Phase::Ok, (0, 1), json!({"lease_ms": LEASE_MS}));
    history.pass(LEASE_MS);
    history.deliver("w2", item(0, 2).attempt(2));
    history.ack("w2", 0, 2);
    passes(&history.drained());
}

#[test]
fn a_lease_that_was_extended_to_less_ends_earlier() {
    let mut history = held();
    history.settle("w1", "extend", Phase::Ok, (0, 1), json!({"lease_ms": 10}));
    let answer = history.entries.last_mut().expect("just written");
    answer.result["lease_until"] = json!(moment(answer.t + 10));
    history.pass(20);
    history.deliver("w2", item(0, 2).attempt(2));
    history.ack("w2", 0, 2);
    passes(&history.drained());
}

#[test]
fn a_lease_that_was_given_back_has_ended() {
    for (op, phase) in [("release", Phase::Ok), ("release", Phase::Info), ("nack", Phase::Ok), ("nack", Phase::Info)] {
        let mut history = held();
        history.settle("w1", op, phase, (0, 1), json!({}));
        history.deliver("w2", item(0, 2).attempt(2));
        history.ack("w2", 0, 2);
        passes(&history.drained());
    }
}

#[test]
fn a_stream_that_takes_its_leases_with_it_leaves_nothing_to_overlap() {
    let mut history = History::new();
    history.produced(0..1);
    let args = json!({"topic": "t", "group": "g", "owner": "w1", "lease_ms": LEASE_MS, "release_on_disconnect": true});
    history.consume_with("w1", args);
    history.deliver("w1", item(0, 1));
    history.consume("w2", "g");
    history.deliver("w2", item(0, 2).attempt(2));
    history.end("w1", Phase::Info);
    history.ack("w2", 0, 2);
    passes(&history.drained());
}

#[test]
fn moments_are_not_compared_across_a_clock_that_was_faked() {
    let mut history = held();
    history.driver("clock", json!({"offset": "+1h"}));
    history.deliver("w2", item(0, 2).attempt(2));
    history.ack("w2", 0, 2);
    passes(&history.drained());
}

#[test]
fn a_late_ack_of_a_message_that_is_done_is_fine() {
    let mut history = held();
    history.pass(LEASE_MS);
    history.deliver("w2", item(0, 2).attempt(2));
    history.ack("w2", 0, 2);
    history.ack("w1", 0, 1);
    history.settle("w1", "nack", Phase::Ok, (0, 1), json!({}));
    passes(&history.drained());
}

#[test]
fn priorities_and_delays_come_out_of_order() {
    for envelope in [json!({"priority": 5}), json!({"deliver_at": moment(START + 5)})] {
        let mut history = History::new();
        history.produced(0..1);
        history.produce("v1", json!({"envelope": envelope}), Some((0, 1)));
        history.consume("w1", "g");
        history.deliver("w1", item(1, 1).envelope(envelope));
        history.deliver("w1", item(0, 2));
        history.ack("w1", 0, 2);
        history.ack("w1", 1, 1);
        passes(&history.drained());
    }
}

#[test]
fn a_step_that_was_tried_twice_happened_once() {
    let mut history = held();
    let produce = json!({"produce": [{"topic": "t", "value": "v1"}]});
    history.settle("w1", "complete", Phase::Info, (0, 1), produce.clone());
    history.pass(LEASE_MS);
    history.deliver("w2", item(0, 2).attempt(2));
    history.settle("w2", "complete", Phase::Ok, (0, 2), produce);
    let told = json!({"produced": [{"topic": "t", "partition": 0, "offset": 1}]});
    history.entries.last_mut().expect("just written").result = told;
    history.work("w2", 1..2, 2);
    passes(&history.drained());
}

#[test]
fn offsets_count_per_topic_over_all_partitions() {
    let mut history = History::new();
    history.produce("v0", json!({"key": "a"}), Some((0, 0)));
    history.produce("v1", json!({"key": "b"}), Some((1, 1)));
    history.consume("w1", "g");
    history.deliver("w1", item(1, 1).key("b").partition(1));
    history.deliver("w1", item(0, 2).key("a"));
    history.ack("w1", 0, 2);
    history.settle("w1", "ack", Phase::Ok, (1, 1), json!({"partition": 1}));
    passes(&history.drained());
}

#[test]
fn a_history_that_nobody_had_to_drain_needs_no_drain() {
    let mut history = History::with_groups(&[]);
    history.produced(0..1);
    let report = check(&history.entries);
    assert!(report.passed() && !report.notes.is_empty(), "{report}");
}

#[test]
fn a_driver_that_polls_may_write_what_it_was_handed_into_the_answer() {
    let polled = |value: &str| {
        let mut history = held();
        let delivered = history.entries.last_mut().expect("a delivery");
        delivered.op = "consume".to_owned();
        delivered.result["value"] = value.into();
        delivered.result = json!({ "messages": [delivered.result.take()] });
        history.ack("w1", 0, 1);
        check(&history.drained().entries)
    };
    let report = polled("v0");
    assert!(report.passed(), "{report}");
    let report = polled("another");
    assert!(report.tally(Check::Altered).violations > 0, "{report}");
}
