//! `POST /v1/complete`: ack, result and output messages, all or nothing.

use std::time::Duration;

use driftq_tests::http::Reply;
use serde_json::{Value, json};

use crate::effects::before_and_after_crash;
use crate::harness::{Server, wait_until};
use crate::requests::{ReplyExt, claim, each, with, without};

/// A step of group `g` and owner `w`, with the token of its delivery and further fields.
fn step(topic: &str, item: &Value, more: Value) -> Value {
    with(with(claim(topic, item), json!({ "lease_token": item["lease_token"] })), more)
}

fn complete(server: &Server, topic: &str, item: &Value, more: Value) -> Reply {
    server.post_json("/v1/complete", &step(topic, item, more))
}

#[track_caller]
fn completed(server: &Server, topic: &str, item: &Value, more: Value) -> Value {
    let reply = complete(server, topic, item, more);
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

/// Creates a topic and one for the next step. Returns a leased message with the idempotency key `k`.
fn begun(server: &Server, topic: &str) -> Value {
    server.create(topic, 1);
    server.create(&format!("{topic}-next"), 2);
    let envelope = json!({ "idempotency_key": "k", "tenant_id": "acme" });
    server.produce_json(&json!({ "topic": topic, "value": "v", "envelope": envelope }));
    server.next(topic)
}

/// The effect of that message in group `g`.
fn effect(server: &Server, topic: &str) -> Reply {
    server.get(&format!("/v1/idempotency?tenant_id=acme&kind=consume&topic={topic}&group=g&key=k"))
}

/// Everything that a step could change.
fn state_of(server: &Server, topic: &str) -> (Value, Value, u16, String) {
    let effect = effect(server, topic);
    let topics = [topic.to_owned(), format!("{topic}-next")].map(|name| {
        // The age of messages changes with time.
        let mut topic = server.topic(&name);
        for group in topic["groups"].as_array_mut().expect("groups") {
            for partition in group["partitions"].as_array_mut().expect("partitions") {
                *partition = without(partition.clone(), &["oldest_age_ms"]);
            }
        }
        topic
    });
    let [topic, next] = topics;
    (topic, next, effect.status, effect.body)
}

#[test]
fn complete_applies_everything_and_repeats_response_for_same_token() {
    let more = |topic: &str| {
        let next = format!("{topic}-next");
        json!({
            "result": { "paid": [1, true] },
            "produce": [
                { "topic": next, "key": "a", "value": "one" },
                { "topic": next, "value": "two", "envelope": { "partition_override": 1, "run_id": "r", "labels": { "l": "1" } } },
                { "topic": topic, "value": "three", "envelope": { "target_topic": next, "partition_override": 0 } },
            ],
        })
    };
    let prepare = |server: &Server, topic: &str| {
        let item = begun(server, topic);
        let response = completed(server, topic, &item, more(topic));
        let next = format!("{topic}-next");
        let expected = json!({ "produced": [
            { "topic": next, "partition": response["produced"][0]["partition"], "offset": 0 },
            { "topic": next, "partition": 1, "offset": 1 },
            { "topic": topic, "partition": 0, "offset": 2 },
        ] });
        assert_eq!(response, expected);
        (item, response)
    };
    before_and_after_crash("", prepare, |server, topic, (item, response)| {
        let next = format!("{topic}-next");
        assert_eq!(server.topic(topic)["groups"][0]["partitions"][0]["lag"], 0, "acked");
        let shown = effect(server, topic).json();
        assert_eq!((&shown["status"], &shown["result"]), (&json!("SUCCEEDED"), &json!({ "paid": [1, true] })));
        let before = state_of(server, topic);
        assert_eq!(completed(server, topic, &item, more(topic)), response);
        assert_eq!(completed(server, topic, &item, json!({})), response, "other fields are ignored");
        assert_eq!(state_of(server, topic), before, "nothing is applied twice");
        for token in ["x", "0000000100000000ffffffff"] {
            let other = with(item.clone(), json!({ "lease_token": token }));
            assert_eq!(complete(server, topic, &other, json!({})).refused(409, "FAILED_PRECONDITION"), "stale lease");
        }
        let items = server.fetch(&next, "g");
        let mut values = each(&items, "value");
        values.sort_by_key(|value| value.as_str());
        assert_eq!(values, ["one", "three", "two"]);
        let two = items.iter().find(|item| item["value"] == "two").expect("delivered");
        assert_eq!(two["envelope"], json!({ "partition_override": 1, "run_id": "r", "labels": { "l": "1" } }));
    });
}

#[test]
fn complete_without_outputs_or_key_is_an_ack() {
    let prepare = |server: &Server, topic: &str| {
        server.create(topic, 1);
        server.produce(topic, "v");
        let item = server.next(topic);
        assert_eq!(completed(server, topic, &item, json!({ "result": 1, "produce": [] })), json!({ "produced": [] }));
        item
    };
    before_and_after_crash("", prepare, |server, topic, item| {
        assert_eq!(
            completed(server, topic, &item, json!({ "result": null, "produce": null })),
            json!({ "produced": [] })
        );
        assert_eq!(server.topic(topic)["groups"][0]["partitions"][0]["lag"], 0);
        assert_eq!(server.metric("driftq_idempotency_records"), Some(0.0));
        server.settle_ok("ack", topic, &item, json!({ "lease_token": item["lease_token"] }));
    });
}

#[test]
fn complete_requires_newest_delivery_and_owner() {
    let prepare = |server: &Server, topic: &str| {
        let first = begun(server, topic);
        server.settle_ok("release", topic, &first, json!({}));
        (first, server.next(topic))
    };
    before_and_after_crash("", prepare, |server, topic, (first, second)| {
        let before = state_of(server, topic);
        let produce = json!({ "produce": [{ "topic": topic, "value": "n" }], "result": 1 });
        assert_eq!(complete(server, topic, &first, produce.clone()).refused(409, "FAILED_PRECONDITION"), "stale lease");
        let foreign = with(produce.clone(), json!({ "owner": "other" }));
        assert_eq!(complete(server, topic, &second, foreign).refused(409, "FAILED_PRECONDITION"), "not owner");
        complete(server, topic, &second, json!({ "topic": "absent" })).refused(404, "NOT_FOUND");
        complete(server, topic, &second, json!({ "group": "absent" })).refused(404, "NOT_FOUND");
        assert_eq!(state_of(server, topic), before);
        completed(server, topic, &second, produce);
        // An acked message cannot be completed.
        let next = server.next(topic);
        server.settle_ok("ack", topic, &next, json!({}));
        assert_eq!(complete(server, topic, &next, json!({})).refused(409, "FAILED_PRECONDITION"), "stale lease");
    });
}

#[test]
fn refused_output_refuses_step_and_keeps_lease() {
    let toml = "[limits]\npartition_messages_max = 2\noutputs_max = 4\n";
    before_and_after_crash(toml, begun, |server, topic, item| {
        let next = format!("{topic}-next");
        let before = state_of(server, topic);
        let good = json!({ "topic": next, "value": "n" });
        let to = |more: Value| with(good.clone(), more);
        let rows: [(Value, u16, &str); 14] = [
            (to(json!({ "topic": "absent" })), 404, "NOT_FOUND"),
            (to(json!({ "envelope": { "target_topic": "absent" } })), 404, "NOT_FOUND"),
            (to(json!({ "envelope": { "partition_override": 2 } })), 400, "INVALID_ARGUMENT"),
            (to(json!({ "envelope": { "priority": 10 } })), 400, "INVALID_ARGUMENT"),
            (to(json!({ "envelope": { "deadline": "2001-01-01T00:00:00Z" } })), 400, "INVALID_ARGUMENT"),
            (to(json!({ "envelope": { "unknown": 1 } })), 400, "INVALID_ARGUMENT"),
            (to(json!({ "envelope": { "idempotency_key": "k".repeat(256) } })), 400, "INVALID_ARGUMENT"),
            (to(json!({ "envelope": ["r"] })), 400, "INVALID_ARGUMENT"),
            (to(json!({ "value": "" })), 400, "INVALID_ARGUMENT"),
            (without(good.clone(), &["value"]), 400, "INVALID_ARGUMENT"),
            (without(good.clone(), &["topic"]), 400, "INVALID_ARGUMENT"),
            (to(json!({ "key": "k".repeat(65_537) })), 413, "PAYLOAD_TOO_LARGE"),
            (json!([next, "", "n"]), 400, "INVALID_ARGUMENT"),
            (Value::Null, 400, "INVALID_ARGUMENT"),
        ];
        for (bad, status, code) in rows {
            println!("{bad}");
            let more = json!({ "result": 1, "produce": [good.clone(), bad] });
            complete(server, topic, &item, more).refused(status, code);
            assert_eq!(state_of(server, topic), before);
        }
        // The partition accepts two: the outputs of a step count together.
        let three = json!({ "result": 1, "produce": [good.clone(), good.clone(), good.clone()] });
        let reply = complete(server, topic, &item, three);
        reply.refused(429, "RESOURCE_EXHAUSTED");
        assert_eq!((&reply.json()["reason"], reply.header("retry-after")), (&json!("overloaded"), Some("1")));
        complete(server, topic, &item, json!({ "produce": vec![good.clone(); 5] })).refused(400, "INVALID_ARGUMENT");
        complete(server, topic, &item, json!({ "result": "r".repeat(65_535) })).refused(413, "PAYLOAD_TOO_LARGE");
        for missing in ["topic", "group", "partition", "offset", "owner", "lease_token"] {
            server
                .post_json("/v1/complete", &without(step(topic, &item, json!({})), &[missing]))
                .refused(400, "INVALID_ARGUMENT");
        }
        for more in
            [json!({ "unknown": 1 }), json!({ "produce": {} }), json!({ "produce": "x" }), json!({ "offset": -1 })]
        {
            complete(server, topic, &item, more).refused(400, "INVALID_ARGUMENT");
        }
        let valid = step(topic, &item, json!({})).to_string();
        for text in ["", "x", "[]", &format!("{valid}x"), &valid.replacen('{', "{\"offset\":0,", 1)] {
            server.post("/v1/complete", text).refused(400, "INVALID_ARGUMENT");
        }
        let key = [("Idempotency-Key", "k")];
        server.call("POST", "/v1/complete", &key, &valid).refused(400, "INVALID_ARGUMENT");
        let reply = server.get("/v1/complete");
        reply.refused(405, "METHOD_NOT_ALLOWED");
        assert_eq!(reply.header("allow"), Some("POST"));
        assert_eq!(state_of(server, topic), before);
        let done = completed(server, topic, &item, json!({ "result": 1, "produce": [good.clone(), good] }));
        assert_eq!(done["produced"].as_array().map(Vec::len), Some(2), "the lease was valid all the time");
    });
}

#[test]
fn duplicate_outputs_are_deduplicated_within_and_across_steps() {
    let message = |topic: &str, key: &str| json!({ "topic": format!("{topic}-next"), "value": "n", "envelope": { "idempotency_key": key } });
    let prepare = |server: &Server, topic: &str| {
        let item = begun(server, topic);
        server.produce_json(&message(topic, "old"));
        let produce = ["old", "new", "new"].map(|key| message(topic, key));
        let response = completed(server, topic, &item, json!({ "produce": produce }));
        (item, response)
    };
    before_and_after_crash("", prepare, |server, topic, (item, response)| {
        let next = format!("{topic}-next");
        let at = |offset: u64| json!({ "topic": next, "partition": 0, "offset": offset });
        let again = json!({ "duplicate": true });
        assert_eq!(response, json!({ "produced": [with(at(0), again.clone()), at(1), with(at(1), again)] }));
        assert_eq!(completed(server, topic, &item, json!({})), response, "including duplicates");
        assert_eq!(
            server.produce_json(&message(topic, "new"))["duplicate"],
            true,
            "outputs are recorded for deduplication"
        );
        assert_eq!(server.topic(&next)["partitions"][0]["next_offset"], 2);
    });
}

#[test]
fn outputs_are_routed_and_traced() {
    let toml = "[[router.rule]]\nkey_prefix = \"vip\"\nlabel = \"first class\"\ntarget_topic = \"vips\"\n";
    let server = Server::configured(toml, &[]);
    server.create("vips", 1);
    let item = begun(&server, "t");
    let messages: Vec<Value> = (0..40)
        .map(|at| json!({ "topic": "t-next", "key": if at % 2 == 0 { "vip" } else { "x" }, "value": at.to_string() }))
        .collect();
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let body = step("t", &item, json!({ "produce": messages })).to_string();
    let reply = server.call("POST", "/v1/complete", &[("traceparent", trace)], &body);
    assert_eq!(reply.status, 200, "{reply:?}");
    let produced = reply.json()["produced"].clone();
    assert!(
        produced.as_array().expect("a list").iter().all(|output| output["topic"] == "t-next"),
        "the requested topic"
    );
    let vips = server.fetch("vips", "g");
    let even: Vec<Value> = (0..40).step_by(2).map(|at: u32| at.to_string().into()).collect();
    assert_eq!(each(&vips, "value"), even.iter().collect::<Vec<_>>(), "in order");
    assert_eq!((&vips[0]["routing"]["label"], &vips[0]["trace"]), (&json!("first class"), &json!(trace)));
    assert_eq!(server.fetch("t-next", "g").len(), 20);
}

#[test]
fn completion_expires_and_is_counted() {
    let toml = "[limits]\ncompletion_ttl_ms = 300\n";
    let server = Server::configured(toml, &[]);
    let item = begun(&server, "t");
    let produce = json!({ "produce": [{ "topic": "t-next", "value": "n" }] });
    let response = completed(&server, "t", &item, produce.clone());
    let repeated = complete(&server, "t", &item, produce.clone());
    for (name, value) in [
        ("driftq_steps_completed_total", 1.0),
        ("driftq_messages_acked_total", 1.0),
        ("driftq_messages_produced_total", 2.0),
    ] {
        assert_eq!(server.metric(name), Some(value), "{name}");
    }
    if repeated.status == 200 {
        assert_eq!(repeated.json(), response);
    }
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(complete(&server, "t", &item, produce).refused(409, "FAILED_PRECONDITION"), "stale lease");
    wait_until("the completion is removed", || server.metric("driftq_completions_kept") == Some(0.0));
    assert_eq!(server.topic("t-next")["partitions"][0]["messages"], 1);
}

#[test]
fn completed_identity_is_replayed_and_later_message_skipped() {
    let toml = "[limits]\ndedupe_ttl_ms = 1\n";
    let prepare = |server: &Server, topic: &str| {
        let item = begun(server, topic);
        completed(server, topic, &item, json!({ "result": "receipt" }));
        std::thread::sleep(Duration::from_millis(30));
    };
    before_and_after_crash(toml, prepare, |server, topic, ()| {
        let identity =
            json!({ "tenant_id": "acme", "scope": { "kind": "consume", "topic": topic, "group": "g" }, "key": "k" });
        let reply = server.begin(&identity, json!({}));
        assert_eq!((&reply.json()["decision"], &reply.json()["result"]), (&json!("REPLAY"), &json!("receipt")));
        let skipped = server.metric("driftq_messages_skipped_total").expect("a metric");
        let envelope = json!({ "idempotency_key": "k", "tenant_id": "acme" });
        server.produce_json(&json!({ "topic": topic, "value": "again", "envelope": envelope }));
        server.produce(topic, "other");
        assert_eq!(server.next(topic)["value"], "other");
        assert_eq!(server.metric("driftq_messages_skipped_total"), Some(skipped + 1.0));
    });
}

#[test]
fn complete_finishes_effect_that_failed_retryably() {
    let identity = |topic: &str| json!({ "tenant_id": "acme", "scope": { "kind": "consume", "topic": topic, "group": "g" }, "key": "k" });
    let prepare = |server: &Server, topic: &str| {
        let item = begun(server, topic);
        let token = server.begin_granted(&identity(topic), json!({}));
        server.finish_ok(&identity(topic), &token, json!({ "status": "FAILED_RETRYABLE", "last_error": "busy" }));
        completed(server, topic, &item, json!({ "result": "paid" }));
    };
    before_and_after_crash("", prepare, |server, topic, ()| {
        assert_eq!(effect(server, topic).json()["status"], "SUCCEEDED");
        let reply = server.begin(&identity(topic), json!({}));
        assert_eq!((&reply.json()["decision"], &reply.json()["result"]), (&json!("REPLAY"), &json!("paid")));
    });
}

#[test]
fn routing_set_aside_or_failed_is_in_the_response_of_a_step() {
    // Nothing listens on port 1, so the webhook fails; the rule names a topic that does not exist.
    let toml = "[router.webhook]\nurl = \"http://127.0.0.1:1/\"\n\
                [[router.rule]]\nkey_prefix = \"x\"\nlabel = \"l\"\ntarget_topic = \"absent\"\n\
                [[router.rule]]\nkey_prefix = \"u\"\nlabel = \"l\"\ntarget_topic = \"u\"\n";
    let server = Server::configured(toml, &[]);
    server.create("t", 1);
    server.create("u", 1);
    let outputs = ["x", "other", "u"].map(|key| json!({ "topic": "u", "key": key, "value": "v" }));
    let remarks = |reply: &Value| -> Vec<Value> {
        reply["produced"].as_array().expect("outputs").iter().map(|output| output["routing"].clone()).collect()
    };
    server.produce_json(&json!({ "topic": "t", "key": "u-1", "value": "v", "envelope": { "target_topic": "t" } }));
    server.produce_json(&json!({ "topic": "t", "key": "x-2", "value": "v" }));
    server.produce_json(&json!({ "topic": "t", "key": "x-3", "value": "v" }));

    let item = server.next("t");
    let reply = completed(&server, "t", &item, json!({ "produce": outputs }));
    assert_eq!(remarks(&reply), [json!("set_aside"), json!("failed"), Value::Null], "{reply}");
    // A repeated answer says nothing: the router may decide otherwise by now, and nothing is stored.
    server.create("absent", 1);
    let again = completed(&server, "t", &item, json!({ "produce": outputs }));
    assert_eq!(remarks(&again), [Value::Null, Value::Null, Value::Null], "{again}");
    assert_eq!(server.metric("driftq_router_set_aside_total"), Some(3.0));

    // The topic exists now.
    let item = server.next("t");
    let line = step("t", &item, json!({ "produce": outputs })).to_string();
    let batch = server.call("POST", "/v1/complete", &[("Content-Type", "application/x-ndjson")], &line);
    let reply = batch.json();
    assert_eq!(remarks(&reply), [Value::Null, json!("failed"), Value::Null], "{reply}");
}
