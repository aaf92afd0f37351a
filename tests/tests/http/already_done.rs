//! Nothing accepted is skipped silently: what the produce gate compares, and what a produce is told.

use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::Server;
use crate::requests::{claim, with, without};

/// Produced keys expire at once, so that a second message with the same key can be produced.
const SHORT_DEDUPE: &str = "[limits]\ndedupe_ttl_ms = 1\n";

/// Longer than the window of [`SHORT_DEDUPE`].
fn wait_for_window() {
    sleep(Duration::from_millis(30));
}

fn keyed(topic: &str, value: &str) -> Value {
    json!({ "topic": topic, "value": value, "envelope": { "idempotency_key": "k" } })
}

fn complete(server: &Server, topic: &str, item: &Value, more: Value) -> Value {
    let step = with(claim(topic, item), json!({ "lease_token": item["lease_token"] }));
    let reply = server.post_json("/v1/complete", &with(step, more));
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

#[test]
fn key_sent_to_two_topics_routed_to_one_is_delivered_twice() {
    let rule = |topic| format!("[[router.rule]]\ntopic = \"{topic}\"\nlabel = \"x\"\ntarget_topic = \"c\"\n");
    let server = Server::configured(&format!("{}{}", rule("a"), rule("b")), &[]);
    server.create("c", 1);
    for topic in ["a", "b"] {
        let answer = server.produce_json(&keyed(topic, topic));
        assert_eq!(without(answer, &["partition", "offset"]), json!({ "status": "produced", "topic": topic }));
        let item = server.next("c");
        assert_eq!(item["value"], topic);
        complete(&server, "c", &item, json!({}));
    }
    assert_eq!(server.produce_json(&keyed("a", "again"))["duplicate"], true);
}

#[test]
fn key_with_another_target_is_no_duplicate() {
    let server = Server::start();
    server.create("t", 1);
    server.create("u", 1);
    server.produce_json(&keyed("t", "first"));
    let envelope = json!({ "idempotency_key": "k", "target_topic": "u" });
    let to_other = json!({ "topic": "t", "value": "second", "envelope": envelope });
    assert_eq!(server.produce_json(&to_other).get("duplicate"), None);
    assert_eq!((&server.next("t")["value"], &server.next("u")["value"]), (&json!("first"), &json!("second")));
    assert_eq!(server.produce_json(&to_other)["duplicate"], true);
}

#[test]
fn completed_key_after_its_window_is_told_as_already_done() {
    let server = Server::configured(SHORT_DEDUPE, &[]);
    server.create("t", 1);
    server.produce_json(&keyed("t", "first"));
    let item = server.next("t");
    complete(&server, "t", &item, json!({ "result": 1 }));
    wait_for_window();
    let told = json!({ "status": "produced", "topic": "t", "partition": 0, "already_done": true });
    assert_eq!(without(server.produce_json(&keyed("t", "again")), &["offset"]), told);
    wait_for_window();
    let lines = format!("{}\n{}\n", keyed("t", "again"), json!({ "topic": "t", "value": "new" }));
    let reply = server.call("POST", "/v1/produce", &[("Content-Type", "application/x-ndjson")], &lines);
    let lines: Vec<Value> = reply.body.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!((&lines[0]["already_done"], lines[1].get("already_done")), (&json!(true), None), "{lines:?}");
    let item = server.next("t");
    assert_eq!(item["value"], "new", "nothing else is delivered");
    wait_for_window();
    let outputs = complete(&server, "t", &item, json!({ "produce": [keyed("t", "again")] }));
    assert_eq!(outputs["produced"][0]["already_done"], true);
    assert_eq!(server.metric("driftq_messages_skipped_total"), Some(3.0));
    wait_for_window();
    let server = server.crash_and_restart();
    assert_eq!(server.topic("t")["groups"][0]["skipped"], 3, "the count is durable");
    assert_eq!(without(server.produce_json(&keyed("t", "again")), &["offset"]), told);
    let listed = server.get("/v1/groups?topic=t").json();
    assert_eq!(listed, json!({ "groups": ["g"], "skipped": { "g": 4 } }));
}

#[test]
fn acked_key_after_its_window_is_delivered() {
    let server = Server::configured(SHORT_DEDUPE, &[]);
    server.create("t", 1);
    for value in ["first", "second"] {
        assert_eq!(server.produce_json(&keyed("t", value)).get("already_done"), None);
        let item = server.next("t");
        assert_eq!(item["value"], value);
        server.settle_ok("ack", "t", &item, json!({}));
        wait_for_window();
    }
    assert_eq!(server.metric("driftq_messages_skipped_total"), Some(0.0));
}

#[test]
fn message_is_delivered_to_all_groups_while_one_is_not_done() {
    let server = Server::configured(SHORT_DEDUPE, &[]);
    server.create("t", 1);
    assert_eq!(server.post_json("/v1/groups", &json!({ "topic": "t", "group": "h" })).status, 201);
    server.produce_json(&keyed("t", "first"));
    let item = server.next("t");
    complete(&server, "t", &item, json!({}));
    wait_for_window();
    assert_eq!(server.produce_json(&keyed("t", "second")).get("already_done"), None);
    assert_eq!(server.next("t")["value"], "second");
    assert_eq!(server.fetch("t", "h").len(), 2);
}
