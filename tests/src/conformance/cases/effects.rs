//! v1.6, both documents: the idempotency store as a worker uses it.
//!
//! The specifications require a store and do not define its HTTP routes; `/v1/idempotency` is DriftQ's. For a server
//! without these routes the cases are not applicable.

use serde_json::{Value, json};

use crate::conformance::case::{Case, case, durable};
use crate::conformance::probe::{AFTER_MEDIUM, LONG_MS, MEDIUM_MS, Probe, SHORT_MS};
use crate::conformance::verdict::{Finding, Verdict, brief, deviates, ensure, fail, not_applicable, pass};
use crate::http::Reply;

const WORKER: &str = "v1.6 Consumer-side idempotency";
const STATES: &str = "v1.6 Idempotency store status model";
const STORED: &str = "v1.6 semantics: what is stored";
const SCOPE: &str = "v1.6 semantics: identity of an effect";

pub(super) const CASES: &[Case] = &[
    case(WORKER, "effect_new_executes", "a begin of an unknown effect is granted", new_executes),
    case(
        WORKER,
        "effect_success_replays",
        "an effect that succeeded is not executed again: its result is returned",
        success_replays,
    ),
    case(
        WORKER,
        "effect_in_progress",
        "a begin of an effect in progress elsewhere is refused with a time to retry",
        in_progress,
    ),
    case(
        WORKER,
        "effect_duplicate_delivery",
        "a message delivered again finds its effect committed, and is acked without it",
        duplicate_delivery,
    ),
    case(WORKER, "effect_identity_has_topic", "the same key of another topic is another effect", identity_has_topic),
    case(
        WORKER,
        "effect_identity_is_the_topics",
        "the identity is (tenant, topic, key), whatever the group",
        identity_is_the_topics,
    ),
    case(STATES, "effect_states", "PENDING when begun, COMMITTED after success, FAILED after failure", states),
    case(STATES, "effect_failed_retries", "a FAILED effect may be begun again", failed_retries),
    case(STATES, "effect_last_error", "the store keeps the error of a FAILED effect", last_error),
    case(STORED, "effect_stored_fields", "status, result and last_error are stored", stored_fields),
    case(STORED, "effect_updated_at", "updated_at is stored, as a timestamp", updated_at),
    durable(STORED, "restart_effects", "the store may be in memory only", restart_effects),
    case(
        SCOPE,
        "effect_identity_tenant_and_key",
        "an effect is (tenant, key): another tenant's is another",
        tenant_and_key,
    ),
    case(SCOPE, "effect_empty_tenant", "an empty tenant is \"default\"", empty_tenant),
    case(SCOPE, "effect_empty_key", "with an empty key no idempotency is applied", empty_key),
];

/// An effect's identity: tenant, scope and key.
struct Effect<'a> {
    probe: &'a Probe<'a>,
    tenant: String,
    scope: Value,
    key: String,
}

impl<'a> Effect<'a> {
    fn of_tenant(probe: &'a Probe<'a>) -> Self {
        Self { probe, tenant: probe.name("tenant"), scope: json!({ "kind": "tenant" }), key: probe.name("key") }
    }

    fn of_group(probe: &'a Probe<'a>, topic: &str, group: &str) -> Self {
        let scope = json!({ "kind": "consume", "topic": topic, "group": group });
        Self { probe, tenant: probe.fixed("tenant"), scope, key: probe.fixed("key") }
    }

    fn with(&self, more: Value) -> Value {
        let mut body = json!({ "tenant_id": self.tenant, "scope": self.scope, "key": self.key });
        if let (Value::Object(body), Value::Object(more)) = (&mut body, more) {
            body.extend(more);
        }
        body
    }

    /// Begins; without a store the case is not applicable.
    fn begin(&self) -> Result<Reply, Verdict> {
        let body = self.with(json!({ "owner": "w", "lease_ms": LONG_MS }));
        let reply = self.probe.post("/v1/idempotency/begin", &body)?;
        match reply.status {
            404 | 405 | 501 => {
                Err(not_applicable("no idempotency store over HTTP, which the specification does not require"))
            }
            _ => Ok(reply),
        }
    }

    /// Begins, which must be granted. Returns the token.
    fn granted(&self) -> Result<String, Verdict> {
        let reply = self.begin()?;
        ensure(reply.json()["decision"] == "EXECUTE", "EXECUTE", brief(&reply))?;
        Ok(reply.json()["lease_token"].as_str().unwrap_or_default().to_owned())
    }

    fn finish(&self, token: &str, outcome: Value) -> Result<(), Verdict> {
        let mut body = self.with(outcome);
        body["lease_token"] = json!(token);
        let reply = self.probe.post("/v1/idempotency/finish", &body)?;
        ensure(reply.status == 200, "200 to a finish", brief(&reply))
    }

    /// The stored record of an effect with tenant scope.
    fn stored(&self) -> Result<Value, Verdict> {
        let query = format!("/v1/idempotency?tenant_id={}&kind=tenant&key={}", self.tenant, self.key);
        let reply = self.probe.get(&query)?;
        ensure(reply.status == 200, "200 with the record", brief(&reply))?;
        Ok(reply.json())
    }
}

fn new_executes(probe: &Probe<'_>) -> Finding {
    let reply = Effect::of_tenant(probe).begin()?;
    let json = reply.json();
    let granted = reply.status == 200 && json["decision"] == "EXECUTE" && json["lease_token"].is_string();
    ensure(granted, "200 EXECUTE with a token", brief(&reply))?;
    pass("EXECUTE")
}

fn success_replays(probe: &Probe<'_>) -> Finding {
    let effect = Effect::of_tenant(probe);
    let result = json!({ "charged": 12, "currency": "EUR" });
    effect.finish(&effect.granted()?, json!({ "status": "SUCCEEDED", "result": result }))?;
    for _ in 0..2 {
        let reply = effect.begin()?;
        let json = reply.json();
        let replayed = reply.status == 200 && json["decision"] == "REPLAY" && json["result"] == result;
        ensure(replayed, format!("REPLAY with {result}"), brief(&reply))?;
    }
    pass("REPLAY with the stored result")
}

fn in_progress(probe: &Probe<'_>) -> Finding {
    let effect = Effect::of_tenant(probe);
    effect.granted()?;
    let reply = effect.begin()?;
    let in_progress = reply.status == 409 && reply.json()["decision"] == "IN_PROGRESS";
    ensure(in_progress, "409 IN_PROGRESS", brief(&reply))?;
    let retry = reply.header("retry-after").is_some() && reply.json()["retry_after_ms"].is_u64();
    ensure(retry, "Retry-After and retry_after_ms", brief(&reply))?;
    pass(brief(&reply))
}

fn duplicate_delivery(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce_with(
        &topic,
        "v",
        &json!({ "tenant_id": probe.fixed("tenant"), "idempotency_key": probe.fixed("key") }),
    )?;
    probe.take(&topic, "g", SHORT_MS)?;
    let effect = Effect::of_group(probe, &topic, "g");
    effect.finish(&effect.granted()?, json!({ "status": "SUCCEEDED", "result": "done" }))?;
    // The worker fails before its ack; the message is redelivered.
    let mut worker = probe.worker(&topic, "g", MEDIUM_MS)?;
    let again = worker.next()?;
    let reply = effect.begin()?;
    ensure(reply.json()["decision"] == "REPLAY", "REPLAY", brief(&reply))?;
    worker.ack(&again)?;
    worker.expect_nothing(AFTER_MEDIUM, "no delivery after the ack")?;
    pass(format!("attempt {}: REPLAY, acked", again.attempts))
}

fn identity_has_topic(probe: &Probe<'_>) -> Finding {
    for topic in [probe.name("t"), probe.name("t")] {
        let effect = Effect::of_group(probe, &topic, "g");
        effect.finish(&effect.granted()?, json!({ "status": "SUCCEEDED" }))?;
    }
    pass("EXECUTE in both topics")
}

fn identity_is_the_topics(probe: &Probe<'_>) -> Finding {
    let topic = probe.name("t");
    let effect = Effect::of_group(probe, &topic, "g1");
    effect.finish(&effect.granted()?, json!({ "status": "SUCCEEDED" }))?;
    let reply = Effect::of_group(probe, &topic, "g2").begin()?;
    match reply.json()["decision"].as_str() {
        Some("REPLAY") => pass("REPLAY in the other group"),
        Some("EXECUTE") => deviates(
            "EXECUTE in the other group",
            "the group is part of the identity, so each runs its own: docs/http.md",
        ),
        _ => Err(fail("REPLAY", brief(&reply))),
    }
}

fn states(probe: &Probe<'_>) -> Finding {
    let (good, bad) = (Effect::of_tenant(probe), Effect::of_tenant(probe));
    let token = good.granted()?;
    let pending = good.stored()?["status_v1"].clone();
    good.finish(&token, json!({ "status": "SUCCEEDED" }))?;
    let committed = good.stored()?["status_v1"].clone();
    bad.finish(&bad.granted()?, json!({ "status": "FAILED_RETRYABLE" }))?;
    let failed = bad.stored()?["status_v1"].clone();
    let seen = json!([pending, committed, failed]);
    let expected = json!(["PENDING", "COMMITTED", "FAILED"]);
    ensure(seen == expected, expected, &seen)?;
    pass(seen.to_string())
}

fn failed_retries(probe: &Probe<'_>) -> Finding {
    let effect = Effect::of_tenant(probe);
    effect.finish(&effect.granted()?, json!({ "status": "FAILED_RETRYABLE", "last_error": "busy" }))?;
    let token = effect.granted()?;
    let status = effect.stored()?["status_v1"].clone();
    ensure(status == "PENDING", "PENDING again", &status)?;
    effect.finish(&token, json!({ "status": "SUCCEEDED" }))?;
    pass("EXECUTE again, PENDING again")
}

fn last_error(probe: &Probe<'_>) -> Finding {
    let effect = Effect::of_tenant(probe);
    effect.finish(&effect.granted()?, json!({ "status": "FAILED_RETRYABLE", "last_error": "no network" }))?;
    let stored = effect.stored()?;
    ensure(stored["last_error"] == "no network", "last_error \"no network\"", &stored)?;
    pass("it is stored")
}

fn stored_fields(probe: &Probe<'_>) -> Finding {
    let effect = Effect::of_tenant(probe);
    effect.finish(&effect.granted()?, json!({ "status": "SUCCEEDED", "result": [1, "two"] }))?;
    let stored = effect.stored()?;
    ensure(stored["status"] == "SUCCEEDED", "status SUCCEEDED", &stored)?;
    ensure(stored["result"] == json!([1, "two"]), "the result", &stored)?;
    ensure(stored["last_error"] == "", "an empty last_error", &stored)?;
    pass("all of them")
}

fn updated_at(probe: &Probe<'_>) -> Finding {
    let effect = Effect::of_tenant(probe);
    let token = effect.granted()?;
    let begun = effect.stored()?["updated_at"].as_str().unwrap_or_default().to_owned();
    std::thread::sleep(std::time::Duration::from_millis(20));
    effect.finish(&token, json!({ "status": "SUCCEEDED" }))?;
    let ended = effect.stored()?["updated_at"].as_str().unwrap_or_default().to_owned();
    // Timestamps of the same format and zone compare as text.
    let timely = begun.len() >= 20 && begun.contains('T') && begun < ended;
    ensure(timely, "a timestamp that changes with the record", format!("{begun:?}, then {ended:?}"))?;
    pass(format!("{begun}, then {ended}"))
}

fn tenant_and_key(probe: &Probe<'_>) -> Finding {
    let one = Effect::of_tenant(probe);
    let other = Effect { tenant: probe.name("tenant"), key: one.key.clone(), ..Effect::of_tenant(probe) };
    one.granted()?;
    other.granted()?;
    let reply = one.begin()?;
    ensure(reply.status == 409, "the first tenant's in progress", brief(&reply))?;
    pass("EXECUTE for both tenants")
}

fn empty_tenant(probe: &Probe<'_>) -> Finding {
    let empty = Effect { tenant: String::new(), ..Effect::of_tenant(probe) };
    let named = Effect { tenant: "default".to_owned(), key: empty.key.clone(), ..Effect::of_tenant(probe) };
    empty.finish(&empty.granted()?, json!({ "status": "SUCCEEDED" }))?;
    let reply = named.begin()?;
    ensure(reply.json()["decision"] == "REPLAY", "REPLAY for \"default\"", brief(&reply))?;
    pass("the same effect")
}

fn empty_key(probe: &Probe<'_>) -> Finding {
    let effect = Effect { key: String::new(), ..Effect::of_tenant(probe) };
    for _ in 0..2 {
        let reply = effect.begin()?;
        let json = reply.json();
        let granted = json["decision"] == "EXECUTE" && json["idempotent"] == false;
        ensure(granted, "EXECUTE, not idempotent", brief(&reply))?;
    }
    pass("EXECUTE each time")
}

fn restart_effects(probe: &Probe<'_>) -> Finding {
    let effect = Effect::of_tenant(probe);
    effect.finish(&effect.granted()?, json!({ "status": "SUCCEEDED", "result": 7 }))?;
    probe.restart()?;
    let reply = effect.begin()?;
    match reply.json()["decision"].as_str() {
        Some("EXECUTE") => pass("it was lost"),
        Some("REPLAY") if reply.json()["result"] == 7 => {
            deviates("REPLAY with its result", "effects are in the log: docs/semantics.md")
        }
        _ => Err(fail("EXECUTE, or REPLAY with the result", brief(&reply))),
    }
}
