//! The idempotency store, as far as workers are promised one.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::Lie;
use super::wire::{Answer, Request};

#[derive(Default)]
pub(super) struct Store {
    effects: BTreeMap<String, Value>,
    tokens: u64,
}

/// Tenant, scope and key as one text; the empty tenant is the default one.
fn identity(tenant: &str, scope: &Value, key: &str) -> String {
    let tenant = if tenant.is_empty() { "default" } else { tenant };
    json!([tenant, scope, key]).to_string()
}

fn text<'v>(body: &'v Value, name: &str) -> &'v str {
    body[name].as_str().unwrap_or_default()
}

impl Store {
    pub(super) fn answer(&mut self, lie: Lie, request: &Request) -> Answer {
        let body: Value = serde_json::from_str(&request.body).unwrap_or_default();
        let scope = if lie == Lie::EffectScopeIgnored { &Value::Null } else { &body["scope"] };
        let id = identity(text(&body, "tenant_id"), scope, text(&body, "key"));
        match request.path.as_str() {
            "/v1/idempotency/begin" if text(&body, "key").is_empty() && lie != Lie::EffectEmptyKeyKept => {
                Answer::of(200, json!({ "decision": "EXECUTE", "idempotent": false }))
            }
            "/v1/idempotency/begin" => self.begin(lie, id),
            "/v1/idempotency/finish" => self.finish(lie, &id, &body),
            _ => {
                let of = |name: &str| request.query.get(name).map_or("", String::as_str);
                let scope = if lie == Lie::EffectScopeIgnored { Value::Null } else { json!({ "kind": of("kind") }) };
                let id = identity(of("tenant_id"), &scope, of("key"));
                match self.effects.get(&id) {
                    Some(effect) => Answer::of(200, effect.clone()),
                    None => Answer::error(404, "NOT_FOUND", "no such effect"),
                }
            }
        }
    }

    fn begin(&mut self, lie: Lie, id: String) -> Answer {
        let known = self.effects.get(&id).cloned().unwrap_or_default();
        match text(&known, "status") {
            "FAILED_RETRYABLE" if lie == Lie::EffectFailedForGood => Answer::of(200, json!({ "decision": "REPLAY" })),
            "SUCCEEDED" if lie != Lie::EffectRunTwice => {
                let mut replay = known;
                replay["decision"] = json!("REPLAY");
                Answer::of(200, replay)
            }
            "IN_PROGRESS" if lie != Lie::EffectNeverInProgress => {
                let mut answer = Answer::error(409, "FAILED_PRECONDITION", "in progress elsewhere");
                answer.body["decision"] = json!("IN_PROGRESS");
                answer.body["retry_after_ms"] = json!(1000);
                answer.headers.push(("Retry-After", "1".to_owned()));
                answer
            }
            _ => {
                self.tokens += 1;
                let token = format!("token-{}", self.tokens);
                let record = json!({ "status": "IN_PROGRESS", "status_v1": "PENDING", "lease_token": token, "updated_at": now(lie) });
                self.effects.insert(id, record);
                let decision = if lie == Lie::EffectUntold { "GO" } else { "EXECUTE" };
                Answer::of(200, json!({ "decision": decision, "lease_token": token, "idempotent": true }))
            }
        }
    }

    fn finish(&mut self, lie: Lie, id: &str, body: &Value) -> Answer {
        let Some(effect) = self.effects.get_mut(id) else { return Answer::error(404, "NOT_FOUND", "no such effect") };
        if effect["lease_token"] != body["lease_token"] {
            return Answer::error(409, "FAILED_PRECONDITION", "stale lease");
        }
        let committed = body["status"] == "SUCCEEDED";
        let error = if lie == Lie::EffectErrorForgotten { "" } else { text(body, "last_error") };
        let status_v1 = match (lie, committed) {
            (Lie::EffectStateUnnamed, _) => "",
            (_, true) => "COMMITTED",
            (_, false) => "FAILED",
        };
        let result = if lie == Lie::EffectResultForgotten { &Value::Null } else { &body["result"] };
        *effect = json!({
            "status": body["status"], "status_v1": status_v1, "result": result,
            "last_error": error, "updated_at": now(lie),
        });
        Answer::of(200, json!({ "ok": true }))
    }
}

/// Not a real timestamp, but of the form of one, and rising.
fn now(lie: Lie) -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let since = if lie == Lie::EffectUntimed { Duration::ZERO } else { since };
    format!("2026-01-01T00:00:00.{:020}Z", since.as_nanos())
}
