//! The code of `docs/effects-over-http.md`, executed. The guide quotes it literally.

mod service;
mod worker;

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use self::service::{Answer, handle, retry};
use self::worker::{Failure, Step, Worker};
use super::harness::{Server, wait_until};
use super::requests::with;

/// Sends requests to a broker.
pub trait Broker {
    /// Posts JSON. Returns status and body of the response.
    fn post(&self, path: &str, body: Value) -> (u16, Value);
}

impl Broker for Server {
    fn post(&self, path: &str, body: Value) -> (u16, Value) {
        let reply = Server::post(self, path, body.to_string());
        (reply.status, serde_json::from_str(&reply.body).unwrap_or(Value::Null))
    }
}

fn produce(server: &Server, topic: &str, key: &str) {
    let body = json!({ "topic": topic, "value": "work", "envelope": { "idempotency_key": key, "tenant_id": "acme" } });
    assert_eq!(server.post("/v1/produce", body.to_string()).status, 200);
}

fn deliveries(server: &Server, owner: &str, lease_ms: u64) -> Vec<Value> {
    let query = format!("topic=orders&group=billing&owner={owner}&lease_ms={lease_ms}&max=1&wait_ms=200");
    let mut stream = server.consume(&query);
    std::iter::from_fn(|| stream.item()).collect()
}

/// Waits for a delivery.
fn delivery(server: &Server, owner: &str, lease_ms: u64) -> Value {
    let mut found = None;
    wait_until("a delivery", || {
        found = deliveries(server, owner, lease_ms).pop();
        found.is_some()
    });
    found.expect("found")
}

fn worker<'a>(server: &'a Server, name: &'a str) -> Worker<'a> {
    Worker { broker: server, topic: "orders", group: "billing", name }
}

/// The output messages. Their keys are derived from the step, so that no step produces them twice.
fn receipts(result: &Value) -> Vec<Value> {
    vec![json!({ "topic": "receipts", "value": result.to_string(), "envelope": { "idempotency_key": "receipt-1" } })]
}

fn receipt_count(server: &Server) -> usize {
    let peeked = server.get("/v1/peek?topic=receipts&partition=0&offset=0&limit=10").json();
    peeked["messages"].as_array().expect("messages").len()
}

#[test]
fn worker_crash_after_effect_does_not_repeat_effect() {
    let server = Server::start();
    server.create("orders", 1);
    server.create("receipts", 1);
    produce(&server, "orders", "order-1");
    let ledger = RefCell::new(Vec::new());
    let charge = |item: &Value, _: &dyn Fn() -> bool| {
        ledger.borrow_mut().push(item["attempts"].clone());
        Ok(json!({ "charged": 12 }))
    };
    // The first worker charges and records the result, then crashes before the ack.
    let item = delivery(&server, "w1", 800);
    let begin = json!({
        "tenant_id": "acme", "scope": { "kind": "consume", "topic": "orders", "group": "billing" }, "key": "order-1",
        "owner": "w1", "lease_ms": 60_000,
        "delivery": { "partition": item["partition"], "offset": item["offset"], "lease_token": item["lease_token"] },
    });
    let (status, begun) = Broker::post(&server, "/v1/idempotency/begin", begin);
    assert_eq!((status, &begun["decision"]), (200, &json!("EXECUTE")));
    let result = charge(&item, &|| true).unwrap_or_else(|failure: Failure| panic!("{failure:?}"));
    let finish = json!({
        "tenant_id": "acme", "scope": { "kind": "consume", "topic": "orders", "group": "billing" }, "key": "order-1",
        "lease_token": begun["lease_token"], "status": "SUCCEEDED", "result": result,
    });
    assert_eq!(Broker::post(&server, "/v1/idempotency/finish", finish).0, 200);
    let server = server.crash_and_restart();
    // The second worker gets the message and the stored result.
    let again = delivery(&server, "w2", 60_000);
    assert_eq!(again["attempts"], 2);
    assert_eq!(worker(&server, "w2").work(&again, charge, receipts), Step::Done);
    assert_eq!(ledger.into_inner(), [json!(1)], "charged once, by the first attempt");
    assert_eq!(receipt_count(&server), 1);
    // The first worker is fenced.
    assert_eq!(worker(&server, "w1").work(&item, |_, _| panic!("a fenced worker acts"), receipts), Step::Fenced);
    assert_eq!(receipt_count(&server), 1);
}

#[test]
fn retryable_failure_is_redelivered_and_final_failure_is_not() {
    let server = Server::start();
    server.create("orders", 1);
    server.create("receipts", 1);
    produce(&server, "orders", "order-1");
    let item = delivery(&server, "w1", 60_000);
    let busy = |_: &Value, _: &dyn Fn() -> bool| Err(Failure::Retryable("the bank is busy".to_owned()));
    assert_eq!(worker(&server, "w1").work(&item, busy, receipts), Step::Failed);
    let item = delivery(&server, "w1", 60_000);
    assert_eq!((&item["attempts"], &item["last_error"]), (&json!(2), &json!("the bank is busy")));
    let no = |_: &Value, _: &dyn Fn() -> bool| Err(Failure::Final("no such account".to_owned()));
    assert_eq!(worker(&server, "w1").work(&item, no, receipts), Step::Failed);
    assert_eq!(deliveries(&server, "w1", 60_000), Vec::<Value>::new(), "a final failure is not redelivered");
    assert_eq!(receipt_count(&server), 0);
}

#[test]
fn message_without_a_key_is_worked_on_without_the_store() {
    let server = Server::start();
    server.create("orders", 1);
    server.create("receipts", 1);
    server.produce("orders", "keyless");
    let item = delivery(&server, "w1", 60_000);
    let busy = |_: &Value, _: &dyn Fn() -> bool| Err(Failure::Retryable("the bank is busy".to_owned()));
    assert_eq!(worker(&server, "w1").work(&item, busy, receipts), Step::Failed);
    let item = delivery(&server, "w1", 60_000);
    let charge = |_: &Value, heartbeat: &dyn Fn() -> bool| {
        assert!(heartbeat(), "the delivery is extended");
        Ok(json!({ "charged": 12 }))
    };
    assert_eq!(worker(&server, "w1").work(&item, charge, receipts), Step::Done);
    assert_eq!(receipt_count(&server), 1);
}

#[test]
fn heartbeat_prolongs_both_leases_and_is_refused_once_fenced() {
    let server = Server::start();
    server.create("orders", 1);
    server.create("receipts", 1);
    produce(&server, "orders", "order-1");
    let item = delivery(&server, "w1", 1_000);
    let query = "/v1/idempotency?tenant_id=acme&kind=consume&topic=orders&group=billing&key=order-1";
    let lease = || server.get(query).json()["lease_until"].as_str().expect("a time").to_owned();
    let charge = |item: &Value, heartbeat: &dyn Fn() -> bool| {
        let before = lease();
        std::thread::sleep(std::time::Duration::from_millis(5));
        assert!(heartbeat() && lease() > before, "renewed");
        assert_eq!(deliveries(&server, "w2", 60_000), Vec::<Value>::new(), "extended, so not redelivered");
        // An operator gives the message to another worker.
        let claim = json!({ "topic": "orders", "group": "billing", "owner": "w1", "partition": item["partition"],
                            "offset": item["offset"] });
        assert_eq!(Broker::post(&server, "/v1/release", claim).0, 204);
        delivery(&server, "w2", 60_000);
        assert!(!heartbeat(), "fenced");
        Err(Failure::Retryable("stopped".to_owned()))
    };
    assert_eq!(worker(&server, "w1").work(&item, charge, receipts), Step::Fenced);
}

#[test]
fn repeated_request_is_answered_from_store_across_crash() {
    let server = Server::start();
    let (request, other) = (json!({ "amount": 12 }), json!({ "amount": 13 }));
    let never = |_: &Value| -> Result<Value, String> { panic!("run twice") };
    let answer = handle(&server, "alice", "k1", &request, |_| Ok(json!({ "charge": "c1" })));
    assert_eq!(answer, Answer::Result(json!({ "charge": "c1" })));
    assert_eq!(handle(&server, "alice", "k1", &request, never), Answer::Result(json!({ "charge": "c1" })));
    assert_eq!(handle(&server, "alice", "k1", &other, never), Answer::Misused);
    // While one handler runs, another has to wait.
    let answer = handle(&server, "alice", "k2", &request, |_| {
        assert!(matches!(handle(&server, "alice", "k2", &request, never), Answer::Later(1..=30_000)));
        Err("the bank is busy".to_owned())
    });
    assert_eq!(answer, Answer::WillBeRetried);
    let server = server.crash_and_restart();
    assert_eq!(handle(&server, "alice", "k1", &request, never), Answer::Result(json!({ "charge": "c1" })));
    assert_eq!(handle(&server, "alice", "k2", &request, never), Answer::WillBeRetried);
    let answer = retry(&server, "alice", "k2", &request, |_| Ok(json!({ "charge": "c2" })));
    assert_eq!(answer, Answer::Result(json!({ "charge": "c2" })));
    assert_eq!(retry(&server, "alice", "k2", &request, never), Answer::Superseded);
    assert_eq!(handle(&server, "alice", "k2", &request, never), Answer::Result(json!({ "charge": "c2" })));
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a folder above").to_owned()
}

fn text(path: &str) -> String {
    std::fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn guide_quotes_executed_code() {
    for (page, files) in [
        ("docs/effects.md", ["clients/rust/examples/effects.rs"].as_slice()),
        ("docs/effects-over-http.md", &["tests/tests/http/guide/worker.rs", "tests/tests/http/guide/service.rs"]),
    ] {
        let guide = text(page);
        let code: String = files.iter().map(|file| text(file)).collect();
        let blocks: Vec<&str> = guide.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
        assert!(!blocks.is_empty(), "{page} shows a worker");
        for block in blocks {
            assert!(code.contains(block), "not in the executed code:\n{block}");
        }
    }
}

#[test]
fn guide_names_existing_tests() {
    let guide = text("docs/effects.md");
    let named: Vec<(&str, &str)> = guide
        .split('`')
        .filter_map(|quoted| quoted.split_once(".rs: "))
        .filter(|(_, name)| !name.contains(' '))
        .collect();
    assert!(named.len() >= 12, "every boundary names a test: {named:?}");
    for (file, name) in named {
        let source = text(&format!("{file}.rs"));
        let exists = source.contains(&format!("fn {name}(")) || source.contains(&format!("(\"{name}\","));
        assert!(exists, "{file}.rs has no test {name}");
    }
}
