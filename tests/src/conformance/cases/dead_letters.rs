//! v1.6, both documents: where a message goes that exceeds its retry policy.
//!
//! The v1.6 semantics route it to a dead-letter topic; the core specification plans that and drops it until then. A server without
//! dead letters is therefore not asked for them.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Case, Probe, Verdict, case};
use crate::conformance::probe::{Item, LONG_MS, SHORT_MS, Worker};
use crate::conformance::verdict::{Finding, ensure, not_applicable, pass};

const LETTERS: &str = "v1.6 Dead letters";

pub(super) const CASES: &[Case] = &[
    case(LETTERS, "dead_letter_topic", "a message that exceeds its retry policy is routed to dlq.<topic>", topic),
    case(LETTERS, "dead_letter_payload", "a dead letter has the key and value of its message", payload),
    case(LETTERS, "dead_letter_origin", "a dead letter names its original topic, partition and offset", origin),
    case(LETTERS, "dead_letter_attempts", "a dead letter tells how many attempts there were", attempts),
    case(LETTERS, "dead_letter_last_error", "a dead letter tells its last_error", last_error),
    case(
        LETTERS,
        "dead_letter_identity",
        "a dead letter has the tenant_id and idempotency_key of its message",
        identity,
    ),
    case(
        LETTERS,
        "dead_letter_of_a_timeout",
        "a message that times out at its last attempt becomes a dead letter too",
        of_a_timeout,
    ),
    case(LETTERS, "dead_letter_is_done", "a dead letter's message is over for the group it failed in", is_done),
    case(LETTERS, "dead_letter_not_before_its_time", "there is no dead letter while attempts are left", not_before),
];

/// What died, and what came of it.
struct Burial {
    source: String,
    /// The last delivery before it died.
    died: Item,
    letter: Item,
}

/// The dead letter of a topic, once there is one.
fn letter_of(probe: &Probe<'_>, source: &str) -> Result<Item, Verdict> {
    let name = format!("dlq.{source}");
    let give_up = Instant::now() + Duration::from_secs(3).min(probe.patience());
    while !probe.topics()?.contains(&name) {
        if Instant::now() > give_up {
            return Err(not_applicable("no dlq.<topic>: the core specification only plans it"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(probe.take(&name, "undertaker", LONG_MS)?.0)
}

fn envelope(probe: &Probe<'_>, max_attempts: u32) -> Value {
    json!({
        "tenant_id": "acme", "idempotency_key": probe.fixed("key"), "partition_override": 1,
        "retry_policy": { "max_attempts": max_attempts, "backoff_ms": 1, "max_backoff_ms": 1 },
    })
}

/// Lets a message fail twice, which is once too often; the worker that failed it is still there.
fn bury<'a>(probe: &'a Probe<'a>) -> Result<(Burial, Worker<'a>), Verdict> {
    let source = probe.topic(2)?;
    probe.produce_body(&json!({ "topic": source, "key": "k", "value": "v", "envelope": envelope(probe, 2) }))?;
    let mut worker = probe.worker(&source, "g", LONG_MS)?;
    let first = worker.next()?;
    worker.nack(&first, "first")?;
    let died = worker.next()?;
    worker.nack(&died, "second")?;
    let letter = letter_of(probe, &source)?;
    Ok((Burial { source, died, letter }, worker))
}

/// A field of the letter's metadata, wherever in the envelope it stands.
fn metadata<'v>(json: &'v Value, names: &[&str]) -> Option<&'v Value> {
    let object = json.as_object()?;
    let here = names.iter().find_map(|name| object.get(*name));
    here.or_else(|| object.values().find_map(|value| metadata(value, names)))
}

fn told(letter: &Item, names: &[&str], expected: &Value) -> Result<(), Verdict> {
    let seen = metadata(letter.envelope(), names);
    ensure(seen == Some(expected), format!("{} {expected}", names[0]), letter.envelope())
}

fn topic(probe: &Probe<'_>) -> Finding {
    let (burial, _worker) = bury(probe)?;
    pass(format!("it is in dlq.<topic>, partition {}", burial.letter.partition))
}

fn payload(probe: &Probe<'_>) -> Finding {
    let (Burial { letter, .. }, _worker) = bury(probe)?;
    ensure((letter.key.as_str(), letter.value.as_str()) == ("k", "v"), "key k and value v", &letter.json)?;
    pass("key k and value v")
}

fn origin(probe: &Probe<'_>) -> Finding {
    let (Burial { source, died, letter }, _worker) = bury(probe)?;
    told(&letter, &["original_topic"], &json!(source))?;
    told(&letter, &["original_partition"], &json!(died.partition))?;
    told(&letter, &["original_offset"], &json!(died.offset))?;
    pass("all three")
}

fn attempts(probe: &Probe<'_>) -> Finding {
    let (Burial { letter, .. }, _worker) = bury(probe)?;
    told(&letter, &["attempts"], &json!(2))?;
    pass("attempts 2")
}

fn last_error(probe: &Probe<'_>) -> Finding {
    let (Burial { letter, .. }, _worker) = bury(probe)?;
    told(&letter, &["last_error"], &json!("second"))?;
    pass("last_error second")
}

fn identity(probe: &Probe<'_>) -> Finding {
    let (Burial { letter, .. }, _worker) = bury(probe)?;
    told(&letter, &["tenant_id"], &json!("acme"))?;
    told(&letter, &["idempotency_key"], &json!(probe.fixed("key")))?;
    pass("both")
}

fn of_a_timeout(probe: &Probe<'_>) -> Finding {
    let source = probe.topic(2)?;
    probe.produce_with(&source, "v", &envelope(probe, 1))?;
    // Its stream stays open: some brokers look at their leases only while somebody consumes.
    let mut worker = probe.worker(&source, "g", SHORT_MS)?;
    worker.next()?;
    let letter = letter_of(probe, &source)?;
    told(&letter, &["last_error"], &json!("ack_timeout"))?;
    pass("last_error ack_timeout")
}

fn is_done(probe: &Probe<'_>) -> Finding {
    let (Burial { died, .. }, mut worker) = bury(probe)?;
    worker.quiet(Duration::from_millis(800), "no delivery after the dead letter")?;
    let reply = probe.ack(&worker.claim(&died))?;
    pass(format!("no more deliveries; a late ack is answered {}", reply.status))
}

fn not_before(probe: &Probe<'_>) -> Finding {
    bury(probe)?;
    let patient = probe.topic(2)?;
    probe.produce_with(&patient, "v", &json!({ "retry_policy": { "max_attempts": 3 } }))?;
    let mut worker = probe.worker(&patient, "g", LONG_MS)?;
    let first = worker.next()?;
    worker.nack(&first, "first")?;
    let second = worker.next()?;
    let there = probe.topics()?.contains(&format!("dlq.{patient}"));
    ensure(!there, "no dead letter after 1 of 3 attempts", "one")?;
    worker.ack(&second)?;
    pass("a spent message has one, a message with attempts left has none")
}
