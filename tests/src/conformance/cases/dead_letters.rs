//! v1.6, both documents: what happens to a message that exceeds its retry policy.
//!
//! The v1.6 semantics route it to a dead-letter topic; the core specification only plans that. For a server without
//! dead letters the cases are not applicable.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::conformance::case::{Case, case};
use crate::conformance::probe::{Item, LONG_MS, Probe, SHORT_MS, Worker};
use crate::conformance::verdict::{Finding, Verdict, ensure, not_applicable, pass};

const DEAD_LETTERS: &str = "v1.6 Dead letters";

pub(super) const CASES: &[Case] = &[
    case(DEAD_LETTERS, "dead_letter_topic", "a message that exceeds its retry policy is routed to dlq.<topic>", topic),
    case(DEAD_LETTERS, "dead_letter_payload", "a dead letter has the key and value of its message", payload),
    case(DEAD_LETTERS, "dead_letter_origin", "a dead letter names its original topic, partition and offset", origin),
    case(DEAD_LETTERS, "dead_letter_attempts", "a dead letter has the number of attempts", attempts),
    case(DEAD_LETTERS, "dead_letter_last_error", "a dead letter has the last_error", last_error),
    case(
        DEAD_LETTERS,
        "dead_letter_identity",
        "a dead letter has the tenant_id and idempotency_key of its message",
        identity,
    ),
    case(
        DEAD_LETTERS,
        "dead_letter_of_a_timeout",
        "a message that times out at its last attempt becomes a dead letter too",
        of_a_timeout,
    ),
    case(
        DEAD_LETTERS,
        "dead_letter_finishes_message",
        "a dead letter's message is finished for the group it failed in",
        is_done,
    ),
    case(
        DEAD_LETTERS,
        "dead_letter_only_after_last_attempt",
        "there is no dead letter while attempts are left",
        not_before,
    ),
];

/// A message that exceeded its attempts, and its dead letter.
struct DeadLettered {
    source: String,
    /// The last delivery.
    last: Item,
    dead_letter: Item,
}

/// Waits for the dead letter of a topic.
pub(super) fn dead_letter_of(probe: &Probe<'_>, source: &str) -> Result<Item, Verdict> {
    let name = format!("dlq.{source}");
    let deadline = Instant::now() + Duration::from_secs(3).min(probe.timeout());
    while !probe.topics()?.contains(&name) {
        if Instant::now() > deadline {
            return Err(not_applicable("no dlq.<topic>: the core specification only plans it"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(probe.take(&name, "dlq", LONG_MS)?.0)
}

fn envelope(probe: &Probe<'_>, max_attempts: u32) -> Value {
    json!({
        "tenant_id": "acme", "idempotency_key": probe.fixed("key"), "partition_override": 1,
        "retry_policy": { "max_attempts": max_attempts, "backoff_ms": 1, "max_backoff_ms": 1 },
    })
}

/// Nacks a message until its attempts are exceeded. The worker is still connected.
fn exceed_attempts<'a>(probe: &'a Probe<'a>) -> Result<(DeadLettered, Worker<'a>), Verdict> {
    let source = probe.topic(2)?;
    probe.produce_body(&json!({ "topic": source, "key": "k", "value": "v", "envelope": envelope(probe, 2) }))?;
    let mut worker = probe.worker(&source, "g", LONG_MS)?;
    let first = worker.next()?;
    worker.nack(&first, "first")?;
    let last = worker.next()?;
    worker.nack(&last, "second")?;
    let dead_letter = dead_letter_of(probe, &source)?;
    Ok((DeadLettered { source, last, dead_letter }, worker))
}

/// A field of the dead letter's metadata, anywhere in the envelope.
fn metadata<'v>(json: &'v Value, names: &[&str]) -> Option<&'v Value> {
    let object = json.as_object()?;
    let here = names.iter().find_map(|name| object.get(*name));
    here.or_else(|| object.values().find_map(|value| metadata(value, names)))
}

fn ensure_metadata(dead_letter: &Item, names: &[&str], expected: &Value) -> Result<(), Verdict> {
    let seen = metadata(dead_letter.envelope(), names);
    ensure(seen == Some(expected), format!("{} {expected}", names[0]), dead_letter.envelope())
}

fn topic(probe: &Probe<'_>) -> Finding {
    let (dead_lettered, _worker) = exceed_attempts(probe)?;
    pass(format!("it is in dlq.<topic>, partition {}", dead_lettered.dead_letter.partition))
}

fn payload(probe: &Probe<'_>) -> Finding {
    let (DeadLettered { dead_letter, .. }, _worker) = exceed_attempts(probe)?;
    ensure(
        (dead_letter.key.as_str(), dead_letter.value.as_str()) == ("k", "v"),
        "key k and value v",
        &dead_letter.json,
    )?;
    pass("key k and value v")
}

fn origin(probe: &Probe<'_>) -> Finding {
    let (DeadLettered { source, last, dead_letter }, _worker) = exceed_attempts(probe)?;
    ensure_metadata(&dead_letter, &["original_topic"], &json!(source))?;
    ensure_metadata(&dead_letter, &["original_partition"], &json!(last.partition))?;
    ensure_metadata(&dead_letter, &["original_offset"], &json!(last.offset))?;
    pass("all three")
}

fn attempts(probe: &Probe<'_>) -> Finding {
    let (DeadLettered { dead_letter, .. }, _worker) = exceed_attempts(probe)?;
    ensure_metadata(&dead_letter, &["attempts"], &json!(2))?;
    pass("attempts 2")
}

fn last_error(probe: &Probe<'_>) -> Finding {
    let (DeadLettered { dead_letter, .. }, _worker) = exceed_attempts(probe)?;
    ensure_metadata(&dead_letter, &["last_error"], &json!("second"))?;
    pass("last_error second")
}

fn identity(probe: &Probe<'_>) -> Finding {
    let (DeadLettered { dead_letter, .. }, _worker) = exceed_attempts(probe)?;
    ensure_metadata(&dead_letter, &["tenant_id"], &json!("acme"))?;
    ensure_metadata(&dead_letter, &["idempotency_key"], &json!(probe.fixed("key")))?;
    pass("both")
}

fn of_a_timeout(probe: &Probe<'_>) -> Finding {
    let source = probe.topic(2)?;
    probe.produce_with(&source, "v", &envelope(probe, 1))?;
    // Its stream stays open: some brokers expire leases only while there is a consumer.
    let mut worker = probe.worker(&source, "g", SHORT_MS)?;
    worker.next()?;
    let dead_letter = dead_letter_of(probe, &source)?;
    ensure_metadata(&dead_letter, &["last_error"], &json!("ack_timeout"))?;
    pass("last_error ack_timeout")
}

fn is_done(probe: &Probe<'_>) -> Finding {
    let (DeadLettered { last, .. }, mut worker) = exceed_attempts(probe)?;
    worker.expect_nothing(Duration::from_millis(800), "no delivery after the dead letter")?;
    let reply = probe.ack(&worker.claim(&last))?;
    pass(format!("no more deliveries; a late ack gets {}", reply.status))
}

fn not_before(probe: &Probe<'_>) -> Finding {
    exceed_attempts(probe)?;
    let topic = probe.topic(2)?;
    probe.produce_with(&topic, "v", &json!({ "retry_policy": { "max_attempts": 3 } }))?;
    let mut worker = probe.worker(&topic, "g", LONG_MS)?;
    let first = worker.next()?;
    worker.nack(&first, "first")?;
    let second = worker.next()?;
    let there = probe.topics()?.contains(&format!("dlq.{topic}"));
    ensure(!there, "no dead letter after 1 of 3 attempts", "one")?;
    worker.ack(&second)?;
    pass("a message without attempts left has one, a message with attempts left has none")
}
