//! Every route that reads is asked for all that it can have, and the stream for messages of every kind.

use std::collections::BTreeSet;

use serde_json::json;

use super::{assert_documented, document};
use crate::chaos::TestBroker;
use crate::harness::Server;

/// A broker with a topic, dead letters and redriven messages, groups with progress, and effects of every status.
fn broker_with_everything() -> Server {
    let server = Server::start();
    server.create("t", 2);
    let envelope = json!({
        "run_id": "r", "step_id": "s", "parent_step_id": "p", "tenant_id": "acme", "idempotency_key": "k",
        "partition_override": 1, "priority": 3, "labels": { "a": "b" }, "delay_ms": 1,
        "retry_policy": { "max_attempts": 1, "backoff_ms": 1, "max_backoff_ms": 5 },
    });
    let trace = [("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")];
    let message = json!({ "topic": "t", "key": "key", "value": "v", "envelope": envelope });
    assert_eq!(server.call("POST", "/v1/produce", &trace, &message.to_string()).status, 200);
    // It fails, is redriven, and fails again: the second dead letter knows of the first one.
    for _ in 0..2 {
        let item = server.next("t");
        server.settle_ok("nack", "t", &item, json!({ "reason": "no" }));
        let dead = server.next("dlq.t");
        assert!(dead["envelope"]["dlq"].is_object(), "{dead}");
        server.settle_ok("release", "dlq.t", &dead, json!({}));
        server.post_json("/v1/dlq/redrive", &json!({ "topic": "t", "all": true }));
    }
    let redriven = server.next("t");
    assert_eq!(redriven["redrives"], 2, "{redriven}");
    server.settle_ok("release", "t", &redriven, json!({}));
    server.produce_json(&json!({ "topic": "t", "value_base64": "/wA=" }));
    let scope = json!({ "kind": "tenant" });
    for (key, status) in [("done", "SUCCEEDED"), ("failed", "FAILED_FINAL"), ("again", "FAILED_RETRYABLE")] {
        let begin = json!({ "scope": scope, "key": key, "owner": "o", "request_hash": "h" });
        let begun = server.post_json("/v1/idempotency/begin", &begin).json();
        let (result, error) = if key == "done" { (json!({ "n": 1 }), "") } else { (json!(null), "no") };
        let finish = json!({
            "scope": scope, "key": key, "lease_token": begun["lease_token"], "status": status, "last_error": error,
            "result": result,
        });
        server.post_json("/v1/idempotency/finish", &finish);
        // A replay, a failure and a retryable effect.
        server.post_json("/v1/idempotency/begin", &begin);
    }
    server.post_json("/v1/idempotency/begin", &json!({ "scope": scope, "key": "open", "owner": "o" }));
    server
}

#[test]
fn every_route_that_reads_answers_what_is_documented() {
    let server = broker_with_everything();
    let targets = [
        "/v1/healthz",
        "/v1/readyz",
        "/v1/version",
        "/v1/config",
        "/v1/digest",
        "/v1/openapi.json",
        "/metrics",
        "/v1/topics",
        "/v1/topics/t",
        "/v1/topics/dlq.t",
        "/v1/groups?topic=t",
        "/v1/peek?topic=t&partition=0&offset=0",
        "/v1/peek?topic=t&partition=1&offset=0",
        "/v1/peek?topic=dlq.t&partition=1&offset=0",
        "/v1/idempotency/list?limit=2",
        "/v1/idempotency/list",
        "/v1/idempotency?kind=tenant&key=done",
        "/v1/idempotency?kind=tenant&key=open",
        "/v1/keys",
        "/v1/tenants",
        "/v1/audit",
    ];
    for target in targets {
        // The answer is compared with the document by the server of the tests.
        assert_eq!(server.get(target).status, 200, "{target}");
    }
    let chaos = TestBroker::with_chaos("seed=1,delay=1");
    chaos.create("t");
    let reply = chaos.try_call("GET", "/v1/chaos", &[], "").expect("no fault");
    assert_eq!(reply.json()["played"].as_array().map(Vec::len), Some(1));
    assert_documented("GET", "/v1/chaos", &reply);

    // The stream is read by every test of deliveries.
    let asked = targets.iter().filter_map(|target| super::documented_path(target)).chain(["/v1/chaos", "/v1/consume"]);
    let asked: BTreeSet<_> = asked.collect();
    let paths = document()["paths"].as_object().expect("paths").iter();
    let documented = paths.filter(|(_, operations)| operations.get("get").is_some()).map(|(path, _)| path.as_str());
    assert_eq!(asked, documented.collect());
}

#[test]
fn difference_between_an_answer_and_the_document_fails_the_test() {
    let mut reply = Server::start().get("/v1/version");
    reply.body = reply.body.replace("\"commit\"", "\"comit\"");
    let compared = std::panic::catch_unwind(|| assert_documented("GET", "/v1/version", &reply));
    let text = *compared.expect_err("it differs").downcast::<String>().expect("a text");
    assert!(text.contains("$.commit is missing") && text.contains("$.comit is not in the document"), "{text}");
    reply.status = 299;
    std::panic::catch_unwind(|| assert_documented("GET", "/v1/version", &reply)).expect_err("no such status");
}
