//! Requests to the idempotency store.

use std::time::Duration;

use driftq_tests::http::Reply;
use serde_json::{Value, json};

use crate::harness::{Server, config_file};
use crate::requests::with;

/// A lease that no test outlives.
pub const LONG_MS: i64 = 60_000;
/// Longer than the leases and windows of one millisecond.
pub const EXPIRY: Duration = Duration::from_millis(60);

/// Prepares everything twice, under two names. Checks the first, kills the broker, and checks the second after the
/// restart.
pub fn before_and_after_crash<T>(toml: &str, prepare: impl Fn(&Server, &str) -> T, check: impl Fn(&Server, &str, T)) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = config_file(dir.path(), toml);
    let start = || Server::on(&dir.path().join("data"), &["--config", &file]);
    let mut server = start();
    let [before, after] = ["before", "after"].map(|name| prepare(&server, name));
    check(&server, "before", before);
    server.kill();
    check(&start(), "after", after);
}

/// Every kind of scope.
pub fn scopes() -> [Value; 5] {
    [
        json!({ "kind": "consume", "topic": "t", "group": "g" }),
        json!({ "kind": "tenant" }),
        json!({ "kind": "job", "id": "7" }),
        json!({ "kind": "task", "id": "7" }),
        json!({ "kind": "rpc", "principal": "me", "method": "pay" }),
    ]
}

/// The identity of an effect of tenant `acme`.
pub fn identity(scope: &Value, key: &str) -> Value {
    json!({ "tenant_id": "acme", "scope": scope, "key": key })
}

/// An identity as a query.
pub fn query(identity: &Value) -> String {
    let mut query = format!("key={}", identity["key"].as_str().expect("a key"));
    if let Some(tenant) = identity["tenant_id"].as_str() {
        query += &format!("&tenant_id={tenant}");
    }
    for (name, text) in identity["scope"].as_object().expect("a scope") {
        query += &format!("&{name}={}", text.as_str().expect("text"));
    }
    query
}

/// The outcome that effects are finished with.
pub fn outcome() -> Value {
    json!({ "response_code": -7, "result": { "a": [1, 2.50, "é\n"], "b": null }, "last_error": "an \"error\"" })
}

impl Server {
    #[track_caller]
    pub fn begin(&self, identity: &Value, more: Value) -> Reply {
        let body = with(identity.clone(), json!({ "owner": "w", "lease_ms": LONG_MS }));
        self.post_json("/v1/idempotency/begin", &with(body, more))
    }

    /// A begin that must be granted. Returns the token.
    #[track_caller]
    pub fn begin_granted(&self, identity: &Value, more: Value) -> String {
        let reply = self.begin(identity, more);
        assert_eq!((reply.status, &reply.json()["decision"]), (200, &json!("EXECUTE")), "{reply:?}");
        reply.json()["lease_token"].as_str().expect("a token").to_owned()
    }

    #[track_caller]
    pub fn finish(&self, identity: &Value, token: &str, more: Value) -> Reply {
        let body = with(identity.clone(), json!({ "lease_token": token, "status": "SUCCEEDED" }));
        self.post_json("/v1/idempotency/finish", &with(body, more))
    }

    /// A finish that must succeed.
    #[track_caller]
    pub fn finish_ok(&self, identity: &Value, token: &str, more: Value) {
        let reply = self.finish(identity, token, more);
        assert_eq!((reply.status, reply.body.as_str()), (200, "{\"ok\":true}"), "{reply:?}");
    }

    /// The record of an effect.
    #[track_caller]
    pub fn effect(&self, identity: &Value) -> Reply {
        self.get(&format!("/v1/idempotency?{}", query(identity)))
    }

    /// Everything visible of an effect.
    #[track_caller]
    pub fn effect_state(&self, identity: &Value) -> (u16, String) {
        let reply = self.effect(identity);
        (reply.status, reply.body)
    }
}
