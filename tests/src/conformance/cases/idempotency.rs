//! v1.6: producer-side idempotency.

use serde_json::{Value, json};

use super::{Case, Probe, Verdict, case};
use crate::conformance::probe::{LONG_MS, QUIET};
use crate::conformance::verdict::{Finding, deviates, ensure, fail, glimpse, not_applicable, pass};
use crate::http::Reply;

const GATE: &str = "v1.6 Producer-side idempotency";
const IDENTITY: &str = "v1.6 Idempotency identity";
const TENANT_S0: &str = "v1.6 semantics: identity of a produce";

pub(super) const CASES: &[Case] = &[
    case(GATE, "duplicate_not_enqueued", "a second produce of the same key enqueues nothing", duplicate_not_enqueued),
    case(
        GATE,
        "duplicate_is_success",
        "a second produce of a committed key is treated as success",
        duplicate_is_success,
    ),
    case(
        GATE,
        "duplicate_while_pending",
        "duplicates at the same moment are rejected while the first is pending, and enqueue one message",
        duplicate_while_pending,
    ),
    case(GATE, "duplicate_after_ack", "a key stays used when its message has been consumed", duplicate_after_ack),
    case(GATE, "failed_produce_frees_key", "a produce that failed leaves its key usable", failed_produce_frees_key),
    case(IDENTITY, "identity_has_topic", "the same key in another topic is another operation", has_topic),
    case(IDENTITY, "identity_has_tenant", "the same key of another tenant is another operation", has_tenant),
    case(IDENTITY, "identity_empty_tenant", "an empty tenant is a tenant like any other", empty_tenant),
    case(
        IDENTITY,
        "identity_empty_tenant_is_not_default",
        "the empty tenant is a value of its own, not \"default\"",
        empty_tenant_is_not_default,
    ),
    case(IDENTITY, "identity_empty_key", "an empty key means no idempotency", empty_key),
    case(
        TENANT_S0,
        "identity_empty_tenant_is_default",
        "an empty tenant is treated as \"default\"",
        empty_tenant_is_default,
    ),
];

/// A produce with the case's own key, so that no other case's is in its way.
fn body(probe: &Probe<'_>, topic: &str, value: &str, tenant: &str) -> Value {
    let key = probe.fixed("key");
    json!({ "topic": topic, "value": value, "envelope": { "tenant_id": tenant, "idempotency_key": key } })
}

/// A duplicate may be answered as a success or rejected, according to what has become of the first.
fn answered(reply: &Reply) -> Result<(), Verdict> {
    ensure(matches!(reply.status, 200 | 409), "200 or 409 to a duplicate", glimpse(reply))
}

/// How many messages two produces made.
fn count_of_two(probe: &Probe<'_>, topic: &str, first: &Value, second: &Value) -> Result<usize, Verdict> {
    probe.produce_body(first)?;
    answered(&probe.post("/v1/produce", second)?)?;
    Ok(probe.drain(topic, "g")?.len())
}

fn one_message(count: usize) -> Finding {
    ensure(count == 1, "1 message", format!("{count} of them"))?;
    pass("1 message")
}

fn two_messages(count: usize) -> Finding {
    ensure(count == 2, "2 messages", format!("{count} of them"))?;
    pass("2 messages")
}

fn duplicate_not_enqueued(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    one_message(count_of_two(probe, &topic, &body(probe, &topic, "a", "acme"), &body(probe, &topic, "a", "acme"))?)
}

fn duplicate_is_success(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    let body = body(probe, &topic, "a", "acme");
    probe.produce_body(&body)?;
    // The operation of the first is over when its message is.
    probe.drain(&topic, "g")?;
    let reply = probe.post("/v1/produce", &body)?;
    ensure(reply.status == 200, "200", glimpse(&reply))?;
    pass(glimpse(&reply))
}

fn duplicate_while_pending(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    let body = body(probe, &topic, "a", "acme");
    let replies: Vec<Result<Reply, Verdict>> = std::thread::scope(|scope| {
        let asked: Vec<_> = (0..4).map(|_| scope.spawn(|| probe.post("/v1/produce", &body))).collect();
        asked.into_iter().map(|asked| asked.join().unwrap_or_else(|_| Err(fail("an answer", "a panic")))).collect()
    });
    let replies = replies.into_iter().collect::<Result<Vec<_>, _>>()?;
    for reply in &replies {
        answered(reply)?;
    }
    let count = probe.drain(&topic, "g")?.len();
    ensure(count == 1, "1 message", format!("{count} of them"))?;
    let rejected = replies.iter().filter(|reply| reply.status != 200).count();
    let same_place = replies.iter().filter(|reply| reply.json()["duplicate"] == true).count();
    if rejected == 0 && same_place > 0 {
        return deviates(
            format!("{same_place} of 4 answered 200 with the first one's place"),
            "no pending instant, the message record is the commit: docs/semantics.md",
        );
    }
    pass(format!("1 message, {rejected} of 4 rejected"))
}

fn duplicate_after_ack(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    let body = body(probe, &topic, "a", "acme");
    // One stream for both: a message handed to one that has just gone would not be seen for the length of its lease.
    let mut worker = probe.worker(&topic, "g", LONG_MS)?;
    probe.produce_body(&body)?;
    let first = worker.next()?;
    worker.ack(&first)?;
    answered(&probe.post("/v1/produce", &body)?)?;
    worker.quiet(QUIET, "no message of a key that was used")?;
    pass("1 message, then none")
}

fn failed_produce_frees_key(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    let mut failing = body(probe, &topic, "a", "acme");
    failing["envelope"]["partition_override"] = json!(7);
    let reply = probe.post("/v1/produce", &failing)?;
    if reply.status == 200 {
        return Err(not_applicable("there is no produce that fails: an override out of range is taken"));
    }
    probe.produce_body(&body(probe, &topic, "b", "acme"))?;
    one_message(probe.drain(&topic, "g")?.len())
}

fn has_topic(probe: &Probe<'_>) -> Finding {
    let (one, other) = (probe.topic(1)?, probe.topic(1)?);
    for topic in [&one, &other] {
        probe.produce_body(&body(probe, topic, "a", "acme"))?;
    }
    let counts = (probe.drain(&one, "g")?.len(), probe.drain(&other, "g")?.len());
    ensure(counts == (1, 1), "a message in each", format!("{counts:?}"))?;
    pass("a message in each")
}

fn has_tenant(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    two_messages(count_of_two(probe, &topic, &body(probe, &topic, "a", "acme"), &body(probe, &topic, "b", "apex"))?)
}

fn empty_tenant(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    let without = json!({ "topic": topic, "value": "b", "envelope": { "idempotency_key": probe.fixed("key") } });
    one_message(count_of_two(probe, &topic, &body(probe, &topic, "a", ""), &without)?)
}

fn empty_then_default(probe: &Probe<'_>) -> Result<usize, Verdict> {
    let topic = probe.topic(1)?;
    count_of_two(probe, &topic, &body(probe, &topic, "a", ""), &body(probe, &topic, "b", "default"))
}

fn empty_tenant_is_not_default(probe: &Probe<'_>) -> Finding {
    match empty_then_default(probe)? {
        2 => pass("2 messages"),
        1 => deviates("1 message", "an empty tenant is \"default\", as the v1.6 semantics have it: docs/http.md"),
        count => Err(fail("2 messages", count)),
    }
}

fn empty_tenant_is_default(probe: &Probe<'_>) -> Finding {
    match empty_then_default(probe)? {
        1 => pass("1 message"),
        2 => {
            Err(not_applicable("it follows the core specification here, where the empty tenant is a value of its own"))
        }
        count => Err(fail("1 message", count)),
    }
}

fn empty_key(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    let mut keyless = body(probe, &topic, "a", "acme");
    keyless["envelope"]["idempotency_key"] = json!("");
    two_messages(count_of_two(probe, &topic, &keyless, &keyless)?)
}
