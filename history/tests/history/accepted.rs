//! Unusual histories that a correct broker can produce.

use driftq_history::{Check, Phase, check};
use serde_json::{Value, json};

use crate::builder::{History, LEASE_MS, START, item, timestamp, token};

fn passes(history: &History) {
    let report = check(&history.entries);
    assert!(report.passed(), "{report}");
}

/// Two consumers of one group; the only message is in flight with `w1`.
fn in_flight() -> History {
    let mut history = History::new();
    history.produced(0..1);
    history.consume("w1", "g");
    history.consume("w2", "g");
    history.deliver("w1", item(0, 1));
    history
}

#[test]
fn ack_without_answer_may_have_taken_effect_or_not() {
    let mut history = in_flight();
    history.settle("w1", "ack", Phase::Info, (0, 1), json!({}));
    passes(&history.drained());

    let mut history = in_flight();
    history.settle("w1", "ack", Phase::Info, (0, 1), json!({}));
    history.pass(LEASE_MS);
    history.deliver("w2", item(0, 2).attempt(2));
    history.ack("w2", 0, 2);
    passes(&history.drained());
}

#[test]
fn late_delivery_of_stream_cut_by_kill_is_accepted() {
    let mut history = in_flight();
    history.driver("kill", json!({}));
    history.produce("v1", json!({}), None);
    history.driver("start", json!({}));
    history.consume("w3", "g");
    history.pass(3 * LEASE_MS);
    history.deliver("w3", item(0, 3).attempt(3));
    // Read late from the socket buffer, although it is the older delivery.
    history.deliver("w2", item(0, 2).attempt(2));
    let late = history.entries.last_mut().expect("just written");
    late.result["lease_until"] = json!(timestamp(late.t - 2));
    history.end("w2", Phase::Info);
    history.ack("w3", 0, 3);
    passes(&history.drained());
}

#[test]
fn produce_without_answer_appears_once_or_never() {
    let mut history = History::new();
    history.produce("never", json!({}), None);
    history.produce("v0", json!({}), None);
    history.consume("w1", "g");
    history.work("w1", 0..1, 0);
    passes(&history.drained());
}

#[test]
fn call_open_at_the_end_counts_as_unanswered() {
    let mut history = History::new();
    history.line("producer", "produce", Phase::Invoke, json!({"topic": "t", "value": "v0"}), Value::Null);
    history.consume("w1", "g");
    history.work("w1", 0..1, 0);
    let history = history.drained();
    let report = check(&history.entries);
    assert!(report.passed() && report.counts.info == 2, "{report}");
}

#[test]
fn produce_may_be_duplicate_of_unanswered_produce() {
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
fn key_can_be_used_again_after_its_window_or_a_clock_change() {
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
fn dead_message_may_be_acked_late() {
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

/// Two dead letters of one identity, one per group of the source. The ack of the first drops its effect.
fn two_dead_letters_of_a_key(first_is_acked: bool) -> History {
    let mut history = History::with_groups(&[("dlq.t", "d")]);
    history.consume_with("w", json!({"topic": "dlq.t", "group": "d", "owner": "w"}));
    for (offset, group) in [(0, "g"), (1, "h")] {
        let origin = json!({"original_topic": "t", "original_partition": 0, "original_offset": 0, "group": group});
        let envelope = json!({"idempotency_key": "k", "dlq": origin});
        history.deliver("w", item(offset, offset + 1).value("v0").envelope(envelope));
        let delivery = json!({"partition": 0, "offset": offset, "lease_token": token(offset + 1)});
        let scope = json!({"kind": "consume", "topic": "dlq.t", "group": "d"});
        let args = json!({"scope": scope, "key": "k", "owner": "w", "lease_ms": 10, "delivery": delivery});
        let until = timestamp(history.now + 10);
        let grant =
            json!({"decision": "EXECUTE", "attempt": 1, "lease_token": token(10 + offset), "lease_until": until});
        history.call("w", "begin", Phase::Ok, args, grant);
        if offset == 1 || first_is_acked {
            history.ack("w", offset, offset + 1);
        }
        history.pass(LEASE_MS);
    }
    history
}

#[test]
fn effect_of_an_acked_dead_letter_begins_again_at_attempt_1() {
    let checks = |first_is_acked: bool| -> Vec<Check> {
        let report = check(&two_dead_letters_of_a_key(first_is_acked).entries);
        report.violations.iter().map(|violation| violation.check).filter(|check| *check == Check::Effects).collect()
    };
    assert_eq!(checks(true), []);
    assert_eq!(checks(false), [Check::Effects]);
}

#[test]
fn message_counts_as_dead_if_its_dead_letter_was_seen_or_not_consumed() {
    let history = |is_consumed: bool| {
        let mut history = History::new();
        let policy = json!({"retry_policy": {"max_attempts": 1}});
        history.produce("v0", json!({"envelope": policy}), Some((0, 0)));
        history.consume("w1", "g");
        history.deliver("w1", item(0, 1).envelope(policy));
        history.settle("w1", "nack", Phase::Ok, (0, 1), json!({}));
        history.line("driver", "drain", Phase::Invoke, json!({"round": 1}), Value::Null);
        if is_consumed {
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
fn extended_lease_ends_later() {
    let mut history = in_flight();
    history.pass(1_500);
    history.settle("w1", "extend", Phase::Ok, (0, 1), json!({"lease_ms": LEASE_MS}));
    history.pass(LEASE_MS);
    history.deliver("w2", item(0, 2).attempt(2));
    history.ack("w2", 0, 2);
    passes(&history.drained());
}

#[test]
fn lease_extended_to_less_ends_earlier() {
    let mut history = in_flight();
    history.settle("w1", "extend", Phase::Ok, (0, 1), json!({"lease_ms": 10}));
    let answer = history.entries.last_mut().expect("just written");
    answer.result["lease_until"] = json!(timestamp(answer.t + 10));
    history.pass(20);
    history.deliver("w2", item(0, 2).attempt(2));
    history.ack("w2", 0, 2);
    passes(&history.drained());
}

#[test]
fn released_or_nacked_lease_has_ended() {
    for (op, phase) in [("release", Phase::Ok), ("release", Phase::Info), ("nack", Phase::Ok), ("nack", Phase::Info)] {
        let mut history = in_flight();
        history.settle("w1", op, phase, (0, 1), json!({}));
        history.deliver("w2", item(0, 2).attempt(2));
        history.ack("w2", 0, 2);
        passes(&history.drained());
    }
}

#[test]
fn leases_released_on_disconnect_do_not_overlap() {
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
fn times_are_not_compared_across_a_clock_change() {
    let mut history = in_flight();
    history.driver("clock", json!({"offset": "+1h"}));
    history.deliver("w2", item(0, 2).attempt(2));
    history.ack("w2", 0, 2);
    passes(&history.drained());
}

#[test]
fn times_are_not_compared_while_broker_follows_a_clock_change() {
    let mut history = History::new();
    history.produced(0..1);
    history.driver("clock", json!({"offset": "-1h"}));
    history.consume("w1", "g");
    history.consume("w2", "g");
    history.deliver("w1", item(0, 1));
    history.pass(LEASE_MS / 2);
    history.deliver("w2", item(0, 2).attempt(2));
    history.driver("clock", json!({"settled": true}));
    history.ack("w2", 0, 2);
    passes(&history.drained());
}

#[test]
fn leases_after_a_clock_change_may_take_half_their_length_in_wall_time() {
    let mut history = History::new();
    history.driver("clock", json!({"offset": "-1h"}));
    history.driver("clock", json!({"settled": true}));
    history.produced(0..1);
    history.consume_with("w1", json!({"topic": "t", "group": "g", "owner": "w1", "lease_ms": 2_000}));
    history.consume_with("w2", json!({"topic": "t", "group": "g", "owner": "w2", "lease_ms": 3_000}));
    history.deliver_for("w1", item(0, 1), 1_000);
    history.pass(999);
    history.deliver_for("w2", item(0, 2).attempt(2), 1_500);
    history.ack("w2", 0, 2);
    passes(&history.drained());
}

#[test]
fn late_ack_of_acked_message_is_accepted() {
    let mut history = in_flight();
    history.pass(LEASE_MS);
    history.deliver("w2", item(0, 2).attempt(2));
    history.ack("w2", 0, 2);
    history.ack("w1", 0, 1);
    history.settle("w1", "nack", Phase::Ok, (0, 1), json!({}));
    passes(&history.drained());
}

#[test]
fn priorities_and_delays_are_exempt_from_order() {
    for envelope in [json!({"priority": 5}), json!({"deliver_at": timestamp(START + 5)})] {
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
fn complete_tried_twice_takes_effect_once() {
    let mut history = in_flight();
    let produce = json!({"produce": [{"topic": "t", "value": "v1"}]});
    history.settle("w1", "complete", Phase::Info, (0, 1), produce.clone());
    history.pass(LEASE_MS);
    history.deliver("w2", item(0, 2).attempt(2));
    history.settle("w2", "complete", Phase::Ok, (0, 2), produce);
    let answer = json!({"produced": [{"topic": "t", "partition": 0, "offset": 1}]});
    history.entries.last_mut().expect("just written").result = answer;
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
fn history_without_setup_groups_needs_no_drain() {
    let mut history = History::with_groups(&[]);
    history.produced(0..1);
    let report = check(&history.entries);
    assert!(report.passed() && !report.notes.is_empty(), "{report}");
}

#[test]
fn messages_in_the_answer_of_a_consume_are_deliveries() {
    let polled = |value: &str| {
        let mut history = in_flight();
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

#[test]
fn message_told_as_already_done_needs_no_delivery() {
    let mut history = History::new();
    let keyed = |value: &str| json!({"topic": "t", "value": value, "envelope": {"idempotency_key": "k"}});
    history.produce("v0", json!({"envelope": {"idempotency_key": "k"}}), Some((0, 0)));
    history.consume("w1", "g");
    history.deliver("w1", item(0, 0).envelope(json!({"idempotency_key": "k"})));
    history.ack("w1", 0, 0);
    history.pass(11 * 60 * 1_000);
    let told = json!({"status": "produced", "topic": "t", "partition": 0, "offset": 1, "already_done": true});
    history.call("producer", "produce", Phase::Ok, keyed("v1"), told);
    passes(&history.drained());
}
