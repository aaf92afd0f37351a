//! v1.6: producer-side idempotency.

use serde_json::{Value, json};

use crate::conformance::case::{Case, case};
use crate::conformance::probe::{LONG_MS, Probe, SILENCE};
use crate::conformance::verdict::{Finding, Verdict, brief, deviates, ensure, fail, not_applicable, pass};
use crate::http::Reply;

const PRODUCER: &str = "v1.6 Producer-side idempotency";
const IDENTITY: &str = "v1.6 Idempotency identity";
const TENANT_S0: &str = "v1.6 semantics: identity of a produce";

pub(super) const CASES: &[Case] = &[
    case(
        PRODUCER,
        "duplicate_not_enqueued",
        "a second produce of the same key enqueues nothing",
        duplicate_not_enqueued,
    ),
    case(
        PRODUCER,
        "duplicate_is_success",
        "a second produce of a committed key is treated as success",
        duplicate_is_success,
    ),
    case(
        PRODUCER,
        "duplicate_while_pending",
        "concurrent duplicates are rejected while the first is pending, and enqueue one message",
        duplicate_while_pending,
    ),
    case(PRODUCER, "duplicate_after_ack", "a key stays used after its message was consumed", duplicate_after_ack),
    case(PRODUCER, "failed_produce_frees_key", "a produce that failed leaves its key usable", failed_produce_frees_key),
    case(IDENTITY, "identity_has_topic", "the same key in another topic is another operation", has_topic),
    case(IDENTITY, "identity_has_tenant", "the same key of another tenant is another operation", has_tenant),
    case(IDENTITY, "identity_empty_tenant", "an empty tenant is a tenant like any other", empty_tenant),
    case(
        IDENTITY,
        "identity_empty_tenant_is_not_default",
        "the empty tenant is a separate value, not \"default\"",
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

/// A produce with a key that only this case uses.
fn body(probe: &Probe<'_>, topic: &str, value: &str, tenant: &str) -> Value {
    let key = probe.fixed("key");
    json!({ "topic": topic, "value": value, "envelope": { "tenant_id": tenant, "idempotency_key": key } })
}

/// A duplicate may succeed or be rejected, depending on the state of the first.
fn ensure_duplicate(reply: &Reply) -> Result<(), Verdict> {
    ensure(matches!(reply.status, 200 | 409), "200 or 409 to a duplicate", brief(reply))
}

/// How many messages two produces enqueue.
fn count_of_two(probe: &Probe<'_>, topic: &str, first: &Value, second: &Value) -> Result<usize, Verdict> {
    probe.produce_body(first)?;
    ensure_duplicate(&probe.post("/v1/produce", second)?)?;
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
    // The first produce is committed once its message was consumed.
    probe.drain(&topic, "g")?;
    let reply = probe.post("/v1/produce", &body)?;
    ensure(reply.status == 200, "200", brief(&reply))?;
    pass(brief(&reply))
}

fn duplicate_while_pending(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    let body = body(probe, &topic, "a", "acme");
    let replies: Vec<Result<Reply, Verdict>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| probe.post("/v1/produce", &body))).collect();
        threads.into_iter().map(|call| call.join().unwrap_or_else(|_| Err(fail("a response", "a panic")))).collect()
    });
    let replies = replies.into_iter().collect::<Result<Vec<_>, _>>()?;
    for reply in &replies {
        ensure_duplicate(reply)?;
    }
    let count = probe.drain(&topic, "g")?.len();
    ensure(count == 1, "1 message", format!("{count} of them"))?;
    let rejected = replies.iter().filter(|reply| reply.status != 200).count();
    let duplicates = replies.iter().filter(|reply| reply.json()["duplicate"] == true).count();
    if rejected == 0 && duplicates > 0 {
        return deviates(
            format!("{duplicates} of 4 got 200 with the first one's offset"),
            "no pending state, the message record is the commit: docs/semantics.md",
        );
    }
    pass(format!("1 message, {rejected} of 4 rejected"))
}

fn duplicate_after_ack(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    let body = body(probe, &topic, "a", "acme");
    // One stream for both: a message delivered to a closed stream would not be observed until its lease expires.
    let mut worker = probe.worker(&topic, "g", LONG_MS)?;
    probe.produce_body(&body)?;
    let first = worker.next()?;
    worker.ack(&first)?;
    ensure_duplicate(&probe.post("/v1/produce", &body)?)?;
    worker.expect_nothing(SILENCE, "no message with a used key")?;
    pass("1 message, then none")
}

fn failed_produce_frees_key(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    let mut failing = body(probe, &topic, "a", "acme");
    failing["envelope"]["partition_override"] = json!(7);
    let reply = probe.post("/v1/produce", &failing)?;
    if reply.status == 200 {
        return Err(not_applicable("no produce fails: an override out of range is accepted"));
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
        2 => Err(not_applicable("it follows the core specification, where the empty tenant is a separate value")),
        count => Err(fail("1 message", count)),
    }
}

fn empty_key(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    let mut keyless = body(probe, &topic, "a", "acme");
    keyless["envelope"]["idempotency_key"] = json!("");
    two_messages(count_of_two(probe, &topic, &keyless, &keyless)?)
}
