//! State that survives a crash.

use serde_json::json;

use crate::harness::{Server, wait_until};
use crate::requests::{ReplyExt, each, now, with, without};

#[test]
fn topics_messages_and_envelopes_survive_crash() {
    let server = Server::start();
    server.create("empty", 7);
    server.create("t", 2);
    server.create("gone", 1);
    server.delete("/v1/topics/gone");
    let envelope = json!({
        "run_id": "r", "tenant_id": "acme", "idempotency_key": "k", "partition_override": 1, "priority": 3,
        "deadline": "2199-01-01T00:00:00+01:00", "labels": { "a": "b" }, "retry_policy": { "max_attempts": 3, "backoff_ms": 5 },
    });
    let body = json!({ "topic": "t", "key": "k", "value": "v", "envelope": envelope });
    let first = server.produce_json(&body);
    server.produce("t", "bare");
    let before = server.get("/v1/peek?topic=t&partition=1&offset=0").json();
    let described = server.topic("empty");
    let server = server.crash_and_restart();
    assert_eq!(server.get("/v1/topics").json(), json!({ "topics": ["empty", "t"] }));
    assert_eq!(server.topic("empty"), described);
    assert_eq!(server.get("/v1/peek?topic=t&partition=1&offset=0").json(), before);
    assert_eq!(server.produce_json(&body), with(first, json!({ "duplicate": true })), "the key is still known");
    assert_eq!(server.produce("t", "next"), (0, 2), "offsets continue");
    let items = server.fetch("t", "g");
    let item = items.iter().find(|item| item["offset"] == 0).expect("delivered");
    assert_eq!((&item["envelope"], &item["key"], &item["value"]), (&envelope, &json!("k"), &json!("v")));
}

#[test]
fn attempts_errors_leases_and_retry_times_survive_crash() {
    let server = Server::start();
    server.create("t", 1);
    for value in ["failed", "waiting", "leased", "untouched"] {
        server.produce("t", value);
    }
    let items = server.consume("topic=t&group=g&owner=w&lease_ms=60000&max=3").items();
    server.settle_ok("nack", "t", &items[0], json!({ "reason": "boom" }));
    let retry_at = now() + 1_500;
    server.settle_ok("nack", "t", &items[1], json!({ "reason": "later", "delay_ms": 1_500 }));
    let leased = &items[2];
    let server = server.crash_and_restart();
    let progress = server.topic("t")["groups"][0]["partitions"][0].clone();
    assert_eq!((&progress["in_flight"], &progress["lag"], &progress["floor"]), (&json!(1), &json!(4), &json!(-1)));
    let again = server.fetch("t", "g");
    assert!(now() < retry_at, "the machine is too slow for this test");
    assert_eq!(each(&again, "value"), ["failed", "untouched"]);
    assert_eq!(
        (&again[0]["attempts"], &again[0]["failures"], &again[0]["last_error"]),
        (&json!(2), &json!(1), &json!("boom"))
    );
    assert_eq!(again[1]["attempts"], 1);
    let late = server.next("t");
    assert!(now() >= retry_at);
    assert_eq!(
        (&late["value"], &late["attempts"], &late["last_error"]),
        (&json!("waiting"), &json!(2), &json!("later"))
    );
    let tokens: Vec<_> = items.iter().chain(&again).chain([&late]).map(|item| item["lease_token"].as_str()).collect();
    assert!(tokens.is_sorted_by(|a, b| a < b), "tokens are unique and increase in string order: {tokens:?}");
    server
        .settle("ack", "t", &again[0], json!({ "lease_token": items[0]["lease_token"] }))
        .refused(409, "FAILED_PRECONDITION");
    server.settle_ok("ack", "t", leased, json!({ "lease_token": leased["lease_token"] }));

    // A lease expires while the broker is down.
    server.produce("t", "short");
    let item = server.consume("topic=t&group=g&owner=w&lease_ms=300&max=1").item().expect("a message");
    assert_eq!(item["value"], "short");
    let server = server.crash_and_restart();
    let again = server.next("t");
    assert_eq!((&again["value"], &again["attempts"]), (&json!("short"), &json!(2)));
    assert_eq!((&again["failures"], &again["last_error"]), (&json!(1), &json!("ack_timeout")));
}

#[test]
fn acks_above_gap_pauses_and_groups_survive_crash() {
    let server = Server::start();
    server.create("t", 1);
    for value in 0..6 {
        server.produce("t", &value.to_string());
    }
    server.post_json("/v1/groups", &json!({ "topic": "t", "group": "paused" }));
    let items = server.fetch("t", "g");
    for index in [0, 2, 3, 5] {
        server.settle_ok("ack", "t", &items[index], json!({}));
    }
    server.settle_ok("release", "t", &items[1], json!({}));
    server.settle_ok("release", "t", &items[4], json!({}));
    server.post_json("/v1/groups", &json!({ "topic": "t", "group": "late", "from": "latest" }));
    server.post_json("/v1/groups", &json!({ "topic": "t", "group": "gone" }));
    server.post_json("/v1/groups/pause", &json!({ "topic": "t", "group": "paused" }));
    server.delete("/v1/groups?topic=t&group=gone");
    let server = server.crash_and_restart();
    assert_eq!(server.get("/v1/groups?topic=t").json()["groups"], json!(["g", "late", "paused"]));
    let progress = server.topic("t")["groups"][0]["partitions"][0].clone();
    assert_eq!((&progress["floor"], &progress["lag"]), (&json!(0), &json!(2)));
    assert_eq!(each(&server.fetch("t", "g"), "value"), ["1", "4"], "unacked messages below an acked one are delivered");
    server.settle_ok("ack", "t", &items[3], json!({}));
    assert!(server.fetch("t", "paused").is_empty());
    assert_eq!(server.topic("t")["groups"][2]["paused"], true);
    assert!(server.fetch("t", "late").is_empty());
    server.post_json("/v1/groups/resume", &json!({ "topic": "t", "group": "paused" }));
    assert_eq!(server.fetch("t", "paused").len(), 6);
}

#[test]
fn dead_letters_and_redriven_messages_survive_crash() {
    let server = Server::start();
    server.create("t", 2);
    for value in ["a", "b"] {
        let envelope = json!({ "retry_policy": { "max_attempts": 1 }, "partition_override": 1 });
        server.produce_json(&json!({ "topic": "t", "value": value, "envelope": envelope }));
        let item = server.next("t");
        server.settle_ok("nack", "t", &item, json!({ "reason": value }));
    }
    let dead_letters = || server.get("/v1/peek?topic=dlq.t&partition=1&offset=0").json();
    let before = dead_letters();
    assert_eq!(before["messages"][1]["envelope"]["dlq"]["last_error"], "b");
    let server = server.crash_and_restart();
    assert_eq!(server.get("/v1/peek?topic=dlq.t&partition=1&offset=0").json(), before);
    assert!(server.fetch("t", "g").is_empty(), "a dead letter is not delivered");
    server.settle_ok("ack", "t", &json!({ "partition": 1, "offset": 0 }), json!({}));
    assert_eq!(
        server.post_json("/v1/dlq/redrive", &json!({ "topic": "t", "offsets": [0] })).json(),
        json!({ "redriven": 1 })
    );
    let server = server.crash_and_restart();
    let items = server.fetch("t", "g");
    assert_eq!(each(&items, "value"), ["a"]);
    let expected = json!({ "retry_policy": { "max_attempts": 1 }, "partition_override": 1 });
    assert_eq!((&items[0]["envelope"], &items[0]["redrives"], &items[0]["offset"]), (&expected, &json!(1), &json!(2)));
    let left = server.fetch("dlq.t", "g");
    assert_eq!(each(&left, "value"), ["b"]);
    let dlq = without(left[0]["envelope"]["dlq"].clone(), &["routed_at"]);
    assert_eq!(
        (&dlq["original_offset"], &dlq["group"], &dlq["reason"]),
        (&json!(1), &json!("g"), &json!("max_attempts"))
    );
    wait_until("the broker is ready", || server.get("/v1/readyz").status == 200);
}
