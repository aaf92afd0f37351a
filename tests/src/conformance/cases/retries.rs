//! v1.6: retries, retry policies, and exhausted attempts.

use std::time::Duration;

use serde_json::{Value, json};

use crate::conformance::case::{Case, case};
use crate::conformance::probe::{Item, LONG_MS, Probe, SHORT_MS};
use crate::conformance::verdict::{Finding, Verdict, deviates, ensure, pass};

const RETRIES: &str = "v1.6 Retries and redelivery";

pub(super) const CASES: &[Case] = &[
    case(RETRIES, "retry_after_nack", "a nacked message is delivered again", after_nack),
    case(
        RETRIES,
        "retry_without_policy",
        "without a retry policy a message is still redelivered after a timeout",
        without_policy,
    ),
    case(RETRIES, "retry_backoff", "backoff_ms delays the retry of a nacked message", backoff),
    case(RETRIES, "retry_max_backoff", "max_backoff_ms is the longest a retry is delayed", max_backoff),
    case(
        RETRIES,
        "max_attempts_limits_nacks",
        "max_attempts limits delivery attempts of a message that is nacked",
        limits_nacks,
    ),
    case(
        RETRIES,
        "max_attempts_limits_timeouts",
        "max_attempts limits delivery attempts of a message that times out",
        limits_timeouts,
    ),
    case(RETRIES, "max_attempts_reached", "at max_attempts the message is dropped", reached),
    case(RETRIES, "max_attempts_advances", "at max_attempts the group continues with the next message", advances),
    case(
        RETRIES,
        "failure_then_success",
        "failure, then success: attempts increase, last_error is delivered, retries stop at the ack",
        failure_then_success,
    ),
];

/// The delay from a nack to its retry.
fn delay_of(probe: &Probe<'_>, policy: &Value) -> Result<(Item, u128), Verdict> {
    let topic = probe.topic(1)?;
    probe.produce_with(&topic, "v", &json!({ "retry_policy": policy }))?;
    let mut worker = probe.worker(&topic, "g", LONG_MS)?;
    let first = worker.next()?;
    let nacked = std::time::Instant::now();
    worker.nack(&first, "later")?;
    let second = worker.next()?;
    worker.ack(&second)?;
    let delay = (second.at - nacked).as_millis();
    Ok((second, delay))
}

fn after_nack(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce(&topic, "v")?;
    let mut worker = probe.worker(&topic, "g", LONG_MS)?;
    let first = worker.next()?;
    worker.nack(&first, "again")?;
    let second = worker.next()?;
    worker.ack(&second)?;
    ensure(second.offset == first.offset, "the same message", &second.json)?;
    pass(format!("attempt {}", second.attempts))
}

fn without_policy(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce_with(&topic, "v", &json!({ "run_id": "r" }))?;
    let mut worker = probe.worker(&topic, "g", SHORT_MS)?;
    let items = worker.take(3)?;
    worker.ack(&items[2])?;
    let attempts: Vec<i64> = items.iter().map(|item| item.attempts).collect();
    pass(format!("attempts {attempts:?}"))
}

fn backoff(probe: &Probe<'_>) -> Finding {
    let (_, delay) = delay_of(probe, &json!({ "max_attempts": 5, "backoff_ms": 1200, "max_backoff_ms": 1200 }))?;
    // Up to half of it may be jitter.
    ensure(delay >= 550, "a delay of some 1200 ms", format!("one of {delay} ms"))?;
    pass(format!("backoff_ms 1200, again after {delay} ms"))
}

fn max_backoff(probe: &Probe<'_>) -> Finding {
    let (_, delay) = delay_of(probe, &json!({ "max_attempts": 5, "backoff_ms": 60_000, "max_backoff_ms": 300 }))?;
    pass(format!("backoff_ms 60000, max_backoff_ms 300, again after {delay} ms"))
}

fn policy(max_attempts: u32) -> Value {
    json!({ "retry_policy": { "max_attempts": max_attempts, "backoff_ms": 1, "max_backoff_ms": 1 } })
}

fn limits_nacks(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce_with(&topic, "v", &policy(2))?;
    let mut worker = probe.worker(&topic, "g", LONG_MS)?;
    for reason in ["first", "second"] {
        let item = worker.next()?;
        worker.nack(&item, reason)?;
    }
    worker.expect_nothing(Duration::from_millis(1_200), "no third delivery")?;
    pass("2 deliveries of at most 2")
}

fn limits_timeouts(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce_with(&topic, "v", &policy(2))?;
    let mut worker = probe.worker(&topic, "g", SHORT_MS)?;
    worker.take(2)?;
    worker.expect_nothing(Duration::from_millis(2 * SHORT_MS + 1_000), "no third delivery")?;
    pass("2 deliveries of at most 2")
}

fn reached(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce_with(&topic, "v", &policy(1))?;
    let mut worker = probe.worker(&topic, "g", LONG_MS)?;
    let item = worker.next()?;
    worker.nack(&item, "permanent failure")?;
    worker.expect_nothing(Duration::from_millis(800), "no delivery beyond max_attempts")?;
    if probe.topics()?.contains(&format!("dlq.{topic}")) {
        return deviates(
            "it is in dlq.<topic>",
            "a dead letter instead of a loss, as the specification plans: docs/semantics.md",
        );
    }
    pass("it is dropped")
}

fn advances(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce_with(&topic, "a", &policy(1))?;
    probe.produce(&topic, "b")?;
    let mut worker = probe.worker(&topic, "g", LONG_MS)?;
    let first = worker.next()?;
    worker.nack(&first, "permanent failure")?;
    let next = worker.next()?;
    ensure(next.value == "b", "the next message", &next.json)?;
    worker.ack(&next)?;
    worker.expect_nothing(Duration::from_millis(600), "both to be finished")?;
    pass("the next one was delivered, and both are finished")
}

fn failure_then_success(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce_with(&topic, "v", &policy(5))?;
    let mut worker = probe.worker(&topic, "g", LONG_MS)?;
    let first = worker.next()?;
    worker.nack(&first, "db_deadlock")?;
    let second = worker.next()?;
    ensure(second.attempts > first.attempts, "a later attempt", &second.json)?;
    worker.ack(&second)?;
    worker.expect_nothing(Duration::from_millis(600), "no retry after the ack")?;
    pass(format!("attempt {} was acked, and none followed", second.attempts))
}
