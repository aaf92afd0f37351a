//! What workers and operators decide beyond ack and nack: no retry, failed steps and effects, cumulative acks, ended
//! leases; and binary payloads, batches of them and the list of effects.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::harness::Server;
use crate::requests::{NDJSON, ReplyExt, claim, each, with, without};

const LINES: (&str, &str) = ("Content-Type", "application/x-ndjson");

/// The answers to a batch of these requests.
#[track_caller]
fn batch(server: &Server, path: &str, requests: &[Value]) -> Vec<Value> {
    let body: Vec<_> = requests.iter().map(Value::to_string).collect();
    let reply = server.call("POST", path, &[LINES], &body.join("\n"));
    assert_eq!((reply.status, reply.header("content-type")), (200, NDJSON), "{reply:?}");
    reply.body.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// The only dead letter of a topic.
#[track_caller]
fn dead_letter(server: &Server, topic: &str) -> Value {
    let peeked = server.get(&format!("/v1/peek?topic=dlq.{topic}&partition=0&offset=0")).json();
    assert_eq!(peeked["messages"].as_array().map(Vec::len), Some(1), "{peeked}");
    peeked["messages"][0].clone()
}

fn effect(key: &str) -> Value {
    json!({ "scope": { "kind": "consume", "topic": "t", "group": "g" }, "key": key })
}

fn delivery(item: &Value) -> Value {
    json!({ "partition": item["partition"], "offset": item["offset"], "lease_token": item["lease_token"] })
}

/// Begins an effect for a delivery and returns the token of the grant.
#[track_caller]
fn begin(server: &Server, key: &str, item: &Value) -> Value {
    let body = with(effect(key), json!({ "owner": "w", "delivery": delivery(item) }));
    let reply = server.post_json("/v1/idempotency/begin", &body);
    assert_eq!(reply.json()["decision"], "EXECUTE", "{reply:?}");
    reply.json()["lease_token"].clone()
}

#[test]
fn non_retryable_nack_dead_letters_at_once() {
    let server = Server::start();
    server.create("t", 1);
    server.produce_json(&json!({ "topic": "t", "value": "v", "envelope": { "retry_policy": { "max_attempts": 9 } } }));
    let item = server.next("t");
    let both = server.settle("nack", "t", &item, json!({ "retryable": false, "delay_ms": 5 }));
    assert!(both.refused(400, "INVALID_ARGUMENT").contains("delay_ms"));
    server.settle("nack", "t", &item, json!({ "retryable": "no" })).refused(400, "INVALID_ARGUMENT");
    server.settle_ok("nack", "t", &item, json!({ "retryable": false, "reason": "no such account" }));
    let dead = dead_letter(&server, "t")["envelope"]["dlq"].clone();
    let expected = json!({ "reason": "non_retryable", "attempts": 1, "last_error": "no such account", "group": "g" });
    for (name, value) in expected.as_object().expect("an object") {
        assert_eq!(&dead[name], value, "{dead}");
    }
    assert_eq!(server.metric("dlq_messages_total{topic=\"t\",reason=\"non_retryable\"}"), Some(1.0));
    let letter = server.next("dlq.t");
    server.settle("nack", "dlq.t", &letter, json!({ "retryable": false })).refused(400, "INVALID_ARGUMENT");
    server.settle_ok("nack", "dlq.t", &letter, json!({ "retryable": true }));
}

#[test]
fn failed_step_dead_letters_its_message_and_fails_its_effect() {
    let server = Server::start();
    server.create("t", 1);
    server.create("alarms", 1);
    server.produce_json(&json!({ "topic": "t", "value": "v", "envelope": { "idempotency_key": "k" } }));
    let item = server.next("t");
    let step = |more: Value| {
        let token = json!({ "lease_token": item["lease_token"] });
        server.post_json("/v1/complete", &with(with(claim("t", &item), token), more))
    };
    for wrong in [
        json!({ "dead_letter": true, "status": "SUCCEEDED" }),
        json!({ "dead_letter": true, "status": "FAILURE" }),
        json!({ "status": "FAILED_FINAL" }),
        json!({ "status": "IN_PROGRESS", "dead_letter": true }),
        json!({ "last_error": "lost" }),
        json!({ "dead_letter": 1 }),
    ] {
        step(wrong).refused(400, "INVALID_ARGUMENT");
    }
    let failed = json!({
        "status": "FAILED_FINAL", "dead_letter": true, "last_error": "card expired", "result": { "code": 402 },
        "produce": [{ "topic": "alarms", "value": "ring" }],
    });
    let produced = json!({ "produced": [{ "topic": "alarms", "partition": 0, "offset": 0 }] });
    for _ in 0..2 {
        let reply = step(failed.clone());
        assert_eq!((reply.status, reply.json()), (200, produced.clone()), "{reply:?}");
    }
    assert_eq!(dead_letter(&server, "t")["envelope"]["dlq"]["last_error"], "card expired");
    let server = server.crash_and_restart();
    assert_eq!(dead_letter(&server, "t")["envelope"]["dlq"]["reason"], "non_retryable");
    let known = server.get("/v1/idempotency?kind=consume&topic=t&group=g&key=k").json();
    assert_eq!((&known["status"], &known["result"]), (&json!("FAILED_FINAL"), &json!({ "code": 402 })));
    assert_eq!(server.topic("t")["groups"][0]["partitions"][0]["lag"], 0);
}

#[test]
fn finish_dead_letters_the_delivery_that_is_still_the_newest() {
    let server = Server::start();
    server.create("t", 1);
    server.produce_json(&json!({ "topic": "t", "value": "v", "envelope": { "idempotency_key": "k" } }));
    let first = server.next("t");
    let token = begin(&server, "k", &first);
    let finish = |item: &Value, more: Value| {
        let fields =
            json!({ "lease_token": token, "dead_letter": true, "delivery": delivery(item), "last_error": "no" });
        server.post_json("/v1/idempotency/finish", &with(with(effect("k"), fields), more))
    };
    for wrong in [
        json!({ "status": "SUCCEEDED" }),
        json!({ "status": "FAILURE" }),
        json!({ "status": "FAILED_FINAL", "delivery": null }),
        json!({ "status": "FAILED_FINAL", "dead_letter": false }),
    ] {
        finish(&first, wrong).refused(400, "INVALID_ARGUMENT");
    }
    server.settle_ok("release", "t", &first, json!({}));
    let second = server.next("t");
    let status = json!({ "status": "FAILED_FINAL" });
    finish(&first, status.clone()).refused(409, "FAILED_PRECONDITION");
    let running = server.get("/v1/idempotency?kind=consume&topic=t&group=g&key=k").json();
    assert_eq!(running["status"], "IN_PROGRESS", "a refused finish changes nothing");
    for _ in 0..2 {
        assert_eq!(finish(&second, status.clone()).json(), json!({ "ok": true }));
    }
    let dead = dead_letter(&server, "t")["envelope"]["dlq"].clone();
    assert_eq!((&dead["attempts"], &dead["last_error"]), (&json!(2), &json!("no")));
}

#[test]
fn success_and_failure_are_names_of_outcomes() {
    let server = Server::start();
    for (name, status, status_v1) in [("SUCCESS", "SUCCEEDED", "COMMITTED"), ("FAILURE", "FAILED_RETRYABLE", "FAILED")]
    {
        let identity = json!({ "scope": { "kind": "tenant" }, "key": name });
        let begun = server.post_json("/v1/idempotency/begin", &with(identity.clone(), json!({ "owner": "w" }))).json();
        let end = json!({ "lease_token": begun["lease_token"], "status": name });
        assert_eq!(server.post_json("/v1/idempotency/finish", &with(identity, end)).status, 200);
        let known = server.get(&format!("/v1/idempotency?kind=tenant&key={name}")).json();
        assert_eq!((&known["status"], &known["status_v1"]), (&json!(status), &json!(status_v1)));
    }
}

#[test]
fn payload_that_is_not_text_travels_in_base64() {
    let server = Server::start();
    server.create("t", 1);
    for wrong in [
        json!({ "value_base64": "/w==", "value": "v" }),
        json!({ "value_base64": "/w" }),
        json!({ "value_base64": "_w==" }),
        json!({ "value_base64": "/x==" }),
        json!({ "value_base64": "" }),
        json!({ "value_base64": 1 }),
    ] {
        server.post_json("/v1/produce", &with(json!({ "topic": "t" }), wrong)).refused(400, "INVALID_ARGUMENT");
    }
    server.produce_json(&json!({ "topic": "t", "value_base64": "AP/+gA==" }));
    server.produce_json(&json!({ "topic": "t", "value_base64": "w6k=" }));
    let lines = batch(
        &server,
        "/v1/produce",
        &[json!({ "topic": "t", "value_base64": "/w==" }), json!({ "topic": "t", "value_base64": "/w", })],
    );
    assert_eq!(each(&lines, "status"), [200, 400]);
    let server = server.crash_and_restart();
    let expected = [("value_base64", "AP/+gA=="), ("value", "\u{e9}"), ("value_base64", "/w==")];
    let peeked = server.get("/v1/peek?topic=t&partition=0&offset=0").json()["messages"].clone();
    let items = server.fetch("t", "g");
    for (at, (name, value)) in expected.into_iter().enumerate() {
        for item in [&items[at], &peeked[at]] {
            let other = if name == "value" { "value_base64" } else { "value" };
            assert_eq!((&item[name], item.get(other)), (&json!(value), None), "{item}");
        }
    }
    server.settle_ok("nack", "t", &items[0], json!({ "retryable": false }));
    assert_eq!(dead_letter(&server, "t")["value_base64"], "AP/+gA==");
    let step = json!({ "lease_token": items[1]["lease_token"], "produce": [{ "topic": "t", "value_base64": "/w==" }] });
    assert_eq!(server.post_json("/v1/complete", &with(claim("t", &items[1]), step)).status, 200);
}

#[test]
fn nacks_steps_begins_and_finishes_go_in_batches() {
    let server = Server::start();
    server.create("t", 1);
    for value in ["a", "b", "c"] {
        let key = json!({ "idempotency_key": value });
        server.produce_json(&json!({ "topic": "t", "value": value, "envelope": key }));
    }
    let items = server.fetch("t", "g");
    let token = |at: usize| json!({ "lease_token": items[at]["lease_token"] });
    let begins: Vec<_> = ["a", "a", "b"].iter().map(|key| with(effect(key), json!({ "owner": "w" }))).collect();
    let begun = batch(&server, "/v1/idempotency/begin", &[&begins[..], &[json!({ "key": "x" })]].concat());
    assert_eq!(each(&begun, "status"), [200, 409, 200, 400]);
    assert_eq!((&begun[0]["decision"], &begun[0]["effect_status"]), (&json!("EXECUTE"), &json!("IN_PROGRESS")));
    assert_eq!(begun[1]["decision"], "IN_PROGRESS");
    let finish = |at: usize, key: &str| {
        with(effect(key), json!({ "lease_token": begun[at]["lease_token"], "status": "SUCCEEDED", "result": at }))
    };
    let finished = batch(&server, "/v1/idempotency/finish", &[finish(0, "a"), finish(0, "b"), finish(2, "b")]);
    assert_eq!(each(&finished, "status"), [200, 409, 200]);
    assert_eq!(finished[0], json!({ "status": 200, "ok": true }));
    let replayed = batch(&server, "/v1/idempotency/begin", &begins[..1]);
    let replay = json!({
        "status": 200, "decision": "REPLAY", "effect_status": "SUCCEEDED", "status_v1": "COMMITTED", "response_code": 0,
        "result": 0, "last_error": "",
    });
    assert_eq!(replayed, [replay]);

    let nacks = [
        with(claim("t", &items[0]), json!({ "reason": "later", "delay_ms": 60000 })),
        with(claim("t", &items[1]), json!({ "lease_token": "x" })),
        json!({ "topic": "t" }),
    ];
    assert_eq!(each(&batch(&server, "/v1/nack", &nacks), "status"), [204, 409, 400]);
    let next = json!({ "produce": [{ "topic": "t", "value": "next" }] });
    let steps = [
        with(with(claim("t", &items[1]), token(1)), next),
        with(claim("t", &items[2]), json!({ "lease_token": "x" })),
        with(with(claim("t", &items[2]), token(2)), json!({ "dead_letter": true })),
    ];
    let completed = batch(&server, "/v1/complete", &steps);
    assert_eq!(each(&completed, "status"), [200, 409, 200]);
    assert_eq!(completed[0]["produced"], json!([{ "topic": "t", "partition": 0, "offset": 3 }]));
    assert_eq!(without(completed[2].clone(), &["status"]), json!({ "produced": [] }));
    assert_eq!(dead_letter(&server, "t")["value"], "c");
    let waiting = &server.topic("t")["groups"][0]["partitions"][0];
    assert_eq!((&waiting["lag"], &waiting["in_flight"]), (&json!(2), &json!(0)));
}

#[test]
fn lease_is_ended_on_request_as_if_it_had_run_out() {
    let server = Server::start();
    server.create("t", 1);
    server.produce("t", "v");
    let expire = |more: Value| {
        let message = json!({ "topic": "t", "group": "g", "partition": 0, "offset": 0 });
        server.post_json("/v1/groups/expire", &with(message, more))
    };
    expire(json!({})).refused(404, "NOT_FOUND");
    let first = server.next("t");
    expire(json!({ "topic": "absent" })).refused(404, "NOT_FOUND");
    expire(json!({ "partition": 9 })).refused(400, "INVALID_ARGUMENT");
    expire(json!({ "offset": 9 })).refused(409, "FAILED_PRECONDITION");
    expire(json!({ "owner": "w" })).refused(400, "INVALID_ARGUMENT");
    assert_eq!(expire(json!({})).status, 204);
    assert!(expire(json!({})).refused(409, "FAILED_PRECONDITION").contains("not leased"));
    let again = server.next("t");
    assert_eq!((&again["attempts"], &again["failures"]), (&json!(2), &json!(1)));
    assert_eq!(again["last_error"], "ack_timeout");
    server
        .settle("ack", "t", &first, json!({ "lease_token": first["lease_token"] }))
        .refused(409, "FAILED_PRECONDITION");
}

#[test]
fn cumulative_ack_acks_the_messages_of_one_owner() {
    let server = Server::start();
    server.create("t", 1);
    for value in ["a", "b", "c", "d"] {
        server.produce("t", value);
    }
    server.consume("topic=t&group=g&owner=w&max=2&wait_ms=8000&lease_ms=60000").items();
    let other = server.consume("topic=t&group=g&owner=other&max=1&wait_ms=8000&lease_ms=60000").items();
    server.next("t");
    let ack = |more: Value| {
        let message = json!({ "topic": "t", "group": "g", "partition": 0, "offset": 3, "owner": "w" });
        server.post_json("/v1/ack-cumulative", &with(message, more))
    };
    ack(json!({ "lease_token": "x" })).refused(400, "INVALID_ARGUMENT");
    ack(json!({ "group": "absent" })).refused(404, "NOT_FOUND");
    ack(json!({ "partition": 7 })).refused(400, "INVALID_ARGUMENT");
    assert_eq!(ack(json!({ "offset": 0 })).status, 204);
    let progress = || server.topic("t")["groups"][0]["partitions"][0].clone();
    assert_eq!((&progress()["floor"], &progress()["in_flight"]), (&json!(0), &json!(3)));
    for _ in 0..2 {
        let reply = ack(json!({}));
        assert_eq!((reply.status, reply.body.as_str()), (204, ""));
    }
    assert_eq!((&progress()["floor"], &progress()["in_flight"]), (&json!(1), &json!(1)));
    server.settle_ok("ack", "t", &other[0], json!({ "owner": "other", "lease_token": other[0]["lease_token"] }));
    assert_eq!((&progress()["floor"], &progress()["lag"]), (&json!(3), &json!(0)));
}

#[test]
fn effects_are_listed_in_pages() {
    let server = Server::start();
    let mut keys = BTreeSet::new();
    for number in 0..7 {
        let key = format!("k{number}");
        let identity = json!({ "tenant_id": "acme", "scope": { "kind": "job", "id": "j" }, "key": key });
        let begun = server.post_json("/v1/idempotency/begin", &with(identity.clone(), json!({ "owner": "w" }))).json();
        if number < 2 {
            let end = json!({ "lease_token": begun["lease_token"], "status": "FAILED_FINAL" });
            assert_eq!(server.post_json("/v1/idempotency/finish", &with(identity, end)).status, 200);
        }
        keys.insert(key);
    }
    let list = |query: &str| server.get(&format!("/v1/idempotency/list?{query}"));
    let (mut found, mut after) = (Vec::new(), String::new());
    for _ in 0..4 {
        let page = list(&format!("limit=2&tenant_id=acme&kind=job&after={after}")).json();
        found.extend(page["records"].as_array().expect("a list").clone());
        let Some(next) = page["next"].as_str() else { break };
        after = next.to_owned();
    }
    assert_eq!(
        found.iter().map(|record| record["key"].as_str().expect("text").to_owned()).collect::<BTreeSet<_>>(),
        keys
    );
    assert_eq!((found.len(), &found[0]["scope"]), (7, &json!({ "kind": "job", "id": "j" })));
    let count = |query: &str| list(query).json()["records"].as_array().map(Vec::len);
    assert_eq!(count("status=FAILED_FINAL"), Some(2));
    assert_eq!((count("status=SUCCESS"), count("tenant_id=other"), count("kind=rpc")), (Some(0), Some(0), Some(0)));
    assert_eq!((count("older_than_ms=3600000"), count("older_than_ms=0")), (Some(0), Some(7)));
    for wrong in ["limit=0", "limit=1001", "after=zz", "after=00", "kind=x", "status=DONE", "older_than_ms=-1"] {
        list(wrong).refused(400, "INVALID_ARGUMENT");
    }
}
