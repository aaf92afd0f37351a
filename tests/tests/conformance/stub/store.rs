//! The idempotency store.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::Defect;
use super::wire::{Request, Response};

#[derive(Default)]
pub(super) struct Store {
    effects: BTreeMap<String, Value>,
    tokens: u64,
}

/// Tenant, scope and key as one string; the empty tenant is "default".
fn identity(tenant: &str, scope: &Value, key: &str) -> String {
    let tenant = if tenant.is_empty() { "default" } else { tenant };
    json!([tenant, scope, key]).to_string()
}

fn text<'v>(body: &'v Value, name: &str) -> &'v str {
    body[name].as_str().unwrap_or_default()
}

impl Store {
    pub(super) fn respond(&mut self, defect: Defect, request: &Request) -> Response {
        let body: Value = serde_json::from_str(&request.body).unwrap_or_default();
        let scope = if defect == Defect::EffectScopeIgnored { &Value::Null } else { &body["scope"] };
        let id = identity(text(&body, "tenant_id"), scope, text(&body, "key"));
        match request.path.as_str() {
            "/v1/idempotency/begin" if text(&body, "key").is_empty() && defect != Defect::EffectEmptyKeyStored => {
                Response::new(200, json!({ "decision": "EXECUTE", "idempotent": false }))
            }
            "/v1/idempotency/begin" => self.begin(defect, id),
            "/v1/idempotency/finish" => self.finish(defect, &id, &body),
            _ => {
                let of = |name: &str| request.query.get(name).map_or("", String::as_str);
                let scope =
                    if defect == Defect::EffectScopeIgnored { Value::Null } else { json!({ "kind": of("kind") }) };
                let id = identity(of("tenant_id"), &scope, of("key"));
                match self.effects.get(&id) {
                    Some(effect) => Response::new(200, effect.clone()),
                    None => Response::error(404, "NOT_FOUND", "no such effect"),
                }
            }
        }
    }

    /// The effects of a tenant with a status.
    pub(super) fn list(&self, defect: Defect, tenant: &str, status: &str) -> Response {
        let records = self.effects.iter().filter_map(|(id, effect)| {
            let id: Value = serde_json::from_str(id).ok()?;
            let listed = id[0] == tenant && (effect["status"] == status || defect == Defect::ListIgnoresStatus);
            let mut record = effect.clone();
            (record["tenant_id"], record["scope"], record["key"]) = (id[0].clone(), id[1].clone(), id[2].clone());
            listed.then_some(record)
        });
        Response::new(200, json!({ "records": records.collect::<Vec<_>>(), "next": null }))
    }

    fn begin(&mut self, defect: Defect, id: String) -> Response {
        let known = self.effects.get(&id).cloned().unwrap_or_default();
        match text(&known, "status") {
            "FAILED_RETRYABLE" if defect == Defect::EffectFailureFinal => {
                Response::new(200, json!({ "decision": "REPLAY" }))
            }
            "SUCCEEDED" if defect != Defect::EffectRunTwice => {
                let mut replay = known;
                replay["decision"] = json!("REPLAY");
                Response::new(200, replay)
            }
            "IN_PROGRESS" if defect != Defect::EffectNeverInProgress => {
                let mut response = Response::error(409, "FAILED_PRECONDITION", "in progress elsewhere");
                response.body["decision"] = json!("IN_PROGRESS");
                response.body["retry_after_ms"] = json!(1000);
                response.headers.push(("Retry-After", "1".to_owned()));
                response
            }
            _ => {
                self.tokens += 1;
                let token = format!("token-{}", self.tokens);
                let record = json!({ "status": "IN_PROGRESS", "status_v1": "PENDING", "lease_token": token, "updated_at": now(defect) });
                self.effects.insert(id, record);
                let decision = if defect == Defect::EffectDecisionWrong { "GO" } else { "EXECUTE" };
                Response::new(200, json!({ "decision": decision, "lease_token": token, "idempotent": true }))
            }
        }
    }

    fn finish(&mut self, defect: Defect, id: &str, body: &Value) -> Response {
        let Some(effect) = self.effects.get_mut(id) else { return Response::error(404, "NOT_FOUND", "no such effect") };
        if effect["lease_token"] != body["lease_token"] {
            return Response::error(409, "FAILED_PRECONDITION", "stale lease");
        }
        let status = match text(body, "status") {
            "SUCCESS" if defect != Defect::StatusKeptAsSent => "SUCCEEDED",
            "FAILURE" if defect != Defect::StatusKeptAsSent => "FAILED_RETRYABLE",
            status => status,
        };
        let committed = status == "SUCCEEDED";
        let error = if defect == Defect::EffectErrorLost { "" } else { text(body, "last_error") };
        let status_v1 = match (defect, committed) {
            (Defect::EffectStateMissing, _) => "",
            (_, true) => "COMMITTED",
            (_, false) => "FAILED",
        };
        let result = if defect == Defect::EffectResultLost { &Value::Null } else { &body["result"] };
        *effect = json!({
            "status": status, "status_v1": status_v1, "result": result,
            "last_error": error, "updated_at": now(defect),
        });
        Response::new(200, json!({ "ok": true }))
    }
}

/// Not a real timestamp, but of the same format, and increasing.
fn now(defect: Defect) -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let since = if defect == Defect::EffectTimestampFixed { Duration::ZERO } else { since };
    format!("2026-01-01T00:00:00.{:020}Z", since.as_nanos())
}
