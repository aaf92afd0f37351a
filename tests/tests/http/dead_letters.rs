//! Dead letters, `POST /v1/dlq/redrive` and `GET /v1/peek`.

use serde_json::{Value, json};

use crate::harness::{Server, wait_until};
use crate::requests::{JSON, ReplyExt, each, in_ms, millis, now, with, without};

/// Produces a message with one attempt and nacks it in group `g`.
fn dead_letter(server: &Server, topic: &str, value: &str) {
    let policy = json!({ "retry_policy": { "max_attempts": 1 } });
    server.produce_json(&json!({ "topic": topic, "value": value, "envelope": policy }));
    let item = server.next(topic);
    server.settle_ok("nack", topic, &item, json!({ "reason": format!("no {value}") }));
}

#[test]
fn message_that_fails_its_last_attempt_becomes_dead_letter() {
    let server = Server::start();
    server.create("t", 3);
    let envelope = json!({
        "run_id": "r", "tenant_id": "acme", "idempotency_key": "k", "target_topic": "t", "partition_override": 2,
        "deadline": in_ms(60_000), "priority": 4, "labels": { "a": "b" },
        "retry_policy": { "max_attempts": 2, "backoff_ms": 1 },
    });
    server.produce("t", "before");
    server.produce_json(&json!({ "topic": "t", "key": "key", "value": "v", "envelope": envelope }));
    server.post_json("/v1/groups", &json!({ "topic": "t", "group": "other" }));
    let began = now();
    let first = server.fetch("t", "g").into_iter().find(|item| item["value"] == "v").expect("delivered");
    server.settle_ok("nack", "t", &first, json!({ "reason": "first" }));
    let second = server.next("t");
    assert_eq!((&second["attempts"], &second["last_error"]), (&json!(2), &json!("first")));
    assert_eq!(server.get("/v1/topics").json(), json!({ "topics": ["t"] }));
    server.settle_ok("nack", "t", &second, json!({ "reason": "second" }));

    // No delivery has acked the message, so late acks and nacks that show a token are refused.
    server.settle_ok("ack", "t", &second, json!({}));
    for token in [&first["lease_token"], &second["lease_token"]] {
        for op in ["ack", "nack", "release"] {
            let reply = server.settle(op, "t", &second, json!({ "lease_token": token }));
            reply.refused(409, "FAILED_PRECONDITION");
            assert_eq!(reply.json()["message"], "stale lease");
        }
    }
    assert_eq!(server.get("/v1/topics").json(), json!({ "topics": ["dlq.t", "t"] }));
    assert_eq!(server.topic("dlq.t")["partitions"].as_array().map(Vec::len), Some(3));
    let dead = server.next("dlq.t");
    let routed_at = millis(&dead["envelope"]["dlq"]["routed_at"]);
    assert!((began - 1..=now()).contains(&routed_at));
    let mut dlq = dead["envelope"].clone();
    dlq["dlq"] = without(dlq["dlq"].clone(), &["routed_at"]);
    let expected = json!({
        "run_id": "r", "tenant_id": "acme", "idempotency_key": "k", "priority": 4, "labels": { "a": "b" },
        "dlq": {
            "original_topic": "t", "original_partition": 2, "original_offset": 1, "group": "g", "attempts": 2,
            "last_error": "second", "reason": "max_attempts", "first_offset": 1, "redrives": 0,
            "deadline": envelope["deadline"], "retry_policy": envelope["retry_policy"],
        },
    });
    assert_eq!(dlq, expected);
    let rest = without(dead.clone(), &["envelope", "lease_token", "lease_until", "produced_at"]);
    let expected = json!({
        "partition": 2, "offset": 0, "attempts": 1, "key": "key", "value": "v", "last_error": "", "failures": 0,
    });
    assert_eq!(rest, expected);
    assert_eq!(server.metric("dlq_messages_total{topic=\"t\",reason=\"max_attempts\"}"), Some(1.0));

    // The other group still has it, and a dead letter is never dead-lettered again.
    let others = server.fetch("t", "other");
    assert_eq!(others.iter().filter(|item| item["value"] == "v").count(), 1);
    let mut dead = dead;
    for attempts in 2..5 {
        server.settle_ok("nack", "dlq.t", &dead, json!({ "reason": "again" }));
        dead = server.next("dlq.t");
        assert_eq!(dead["attempts"], attempts);
    }
    assert_eq!(server.get("/v1/topics").json(), json!({ "topics": ["dlq.t", "t"] }));
}

#[test]
fn expired_lease_and_passed_deadline_dead_letter_message() {
    let server = Server::start();
    server.create("t", 1);
    let policy = json!({ "retry_policy": { "max_attempts": 1 } });
    server.produce_json(&json!({ "topic": "t", "value": "expired", "envelope": policy }));
    let item = server.consume("topic=t&group=g&owner=w&lease_ms=200&max=1").item().expect("a message");
    wait_until("it is a dead letter", || server.get("/v1/topics").json()["topics"] == json!(["dlq.t", "t"]));
    let dead = server.next("dlq.t");
    let dlq = &dead["envelope"]["dlq"];
    assert_eq!((&dlq["last_error"], &dlq["reason"]), (&json!("ack_timeout"), &json!("max_attempts")));
    server.settle_ok("ack", "t", &item, json!({}));
    server.settle_ok("ack", "dlq.t", &dead, json!({}));

    // Detected before a delivery: it is not delivered.
    server.produce_json(&json!({ "topic": "t", "value": "too late", "envelope": { "deadline": in_ms(300) } }));
    let deadline = now() + 350;
    wait_until("the deadline has passed", || now() > deadline);
    assert!(server.fetch("t", "g").is_empty());
    let dead = server.next("dlq.t");
    let dlq = &dead["envelope"]["dlq"];
    assert_eq!((&dead["value"], &dlq["reason"]), (&json!("too late"), &json!("deadline_exceeded")));
    assert_eq!((&dlq["attempts"], &dlq["last_error"], &dlq["original_offset"]), (&json!(0), &json!(""), &json!(1)));
    assert_eq!(dead["envelope"].get("deadline"), None);

    // Detected at a failure.
    server.produce_json(&json!({ "topic": "t", "value": "failed too late", "envelope": { "deadline": in_ms(600) } }));
    let item = server.next("t");
    let deadline = now() + 650;
    wait_until("the deadline has passed", || now() > deadline);
    server.settle_ok("nack", "t", &item, json!({ "reason": "slow" }));
    let dlq = server.next("dlq.t")["envelope"]["dlq"].clone();
    assert_eq!(
        (&dlq["reason"], &dlq["attempts"], &dlq["last_error"]),
        (&json!("deadline_exceeded"), &json!(1), &json!("slow"))
    );
    assert_eq!(server.metric("dlq_messages_total{topic=\"t\",reason=\"deadline_exceeded\"}"), Some(2.0));
}

#[test]
fn redrive_produces_new_messages_for_the_group_that_failed() {
    let server = Server::start();
    server.create("t", 1);
    server.post_json("/v1/groups", &json!({ "topic": "t", "group": "other" }));
    for value in ["a", "b", "c", "d", "e"] {
        dead_letter(&server, "t", value);
    }
    assert_eq!(server.fetch("t", "other").len(), 5);
    let redrive = |body: Value| server.post_json("/v1/dlq/redrive", &with(json!({ "topic": "t" }), body));
    let reply = redrive(json!({ "offsets": [1, 1, 99] }));
    assert_eq!((reply.status, reply.header("content-type"), reply.json()), (200, JSON, json!({ "redriven": 1 })));
    let item = server.next("t");
    let expected = json!({
        "partition": 0, "offset": 5, "attempts": 1, "key": "", "value": "b", "last_error": "", "failures": 0, "redrives": 1,
        "envelope": { "retry_policy": { "max_attempts": 1 } },
    });
    assert_eq!(without(item.clone(), &["lease_token", "lease_until", "produced_at"]), expected);
    assert_eq!(redrive(json!({ "offsets": [1] })).json(), json!({ "redriven": 0 }), "it is no longer a dead letter");
    assert_eq!(redrive(json!({ "all": true, "limit": 2 })).json(), json!({ "redriven": 2 }));
    assert_eq!(each(&server.fetch("t", "g"), "value"), ["a", "c"]);
    assert_eq!(server.post("/v1/dlq/redrive?topic=t&offsets=3,4&limit=1", "").json(), json!({ "redriven": 1 }));
    assert_eq!(redrive(json!({ "all": true })).json(), json!({ "redriven": 1 }));
    assert_eq!(redrive(json!({ "all": true })).json(), json!({ "redriven": 0 }));
    assert_eq!(each(&server.fetch("t", "g"), "value"), ["d", "e"]);
    assert!(server.fetch("t", "other").is_empty(), "the other group is not affected");
    assert_eq!(server.metric("driftq_messages_redriven_total"), Some(5.0));
    assert_eq!(server.metric("driftq_dlq_messages{topic=\"t\"}"), Some(0.0), "none is left");
    // The redriven message has its retry policy and becomes a dead letter again.
    server.settle_ok("nack", "t", &item, json!({ "reason": "again" }));
    assert_eq!(server.metric("driftq_dlq_messages{topic=\"t\"}"), Some(1.0));
    let dead = server.next("dlq.t");
    assert_eq!((&dead["value"], &dead["envelope"]["dlq"]["original_offset"]), (&json!("b"), &json!(5)));
    assert_eq!(
        (&dead["envelope"]["dlq"]["first_offset"], &dead["envelope"]["dlq"]["redrives"]),
        (&json!(1), &json!(1))
    );
    server.settle_ok("nack", "dlq.t", &dead, json!({}));
    assert_eq!(redrive(json!({ "all": true })).json(), json!({ "redriven": 1 }));
    assert_eq!(server.next("t")["redrives"], 2);

    for body in [
        json!({}),
        json!({ "all": false }),
        json!({ "all": true, "offsets": [1] }),
        json!({ "offsets": 1 }),
        json!({ "offsets": [-1] }),
        json!({ "all": 1 }),
        json!({ "all": true, "limit": -1 }),
        json!({ "all": true, "unknown": 1 }),
        json!({ "all": true, "topic": "dlq.t" }),
        json!({ "all": true, "topic": "a\u{1}b" }),
    ] {
        let reply = redrive(body.clone());
        assert_eq!(reply.status, 400, "{body}: {reply:?}");
        reply.refused(400, "INVALID_ARGUMENT");
    }
    redrive(json!({ "all": true, "topic": "absent" })).refused(404, "NOT_FOUND");
    server.create("fresh", 1);
    assert_eq!(redrive(json!({ "all": true, "topic": "fresh" })).json(), json!({ "redriven": 0 }));
}

#[test]
fn full_dead_letter_partition_refuses_produces() {
    let server = Server::with(&["--max-partition-msgs", "2"]);
    server.create("t", 2);
    dead_letter(&server, "t", "a");
    dead_letter(&server, "t", "b");
    let reply = server.post_json("/v1/produce", &json!({ "topic": "t", "value": "v" }));
    reply.refused(429, "RESOURCE_EXHAUSTED");
    assert_eq!(reply.header("retry-after"), Some("1"));
    let rest = without(reply.json(), &["message"]);
    assert_eq!(rest, json!({ "error": "RESOURCE_EXHAUSTED", "reason": "dlq_full", "retry_after_ms": 1000 }));
    assert_eq!(server.metric("produce_rejected_total{reason=\"dlq_full\"}"), Some(1.0));
    let elsewhere = json!({ "topic": "t", "value": "v", "envelope": { "partition_override": 1 } });
    assert_eq!(server.produce_json(&elsewhere)["partition"], 1, "the other partition accepts messages");
    // A redrive frees capacity.
    assert_eq!(
        server.post_json("/v1/dlq/redrive", &json!({ "topic": "t", "offsets": [0] })).json(),
        json!({ "redriven": 1 })
    );
    assert_eq!(server.produce("t", "v").0, 0);
}

#[test]
fn peek_returns_messages_and_changes_nothing() {
    let server = Server::start();
    server.create("t", 2);
    for (value, partition) in [("a", 0), ("x", 1), ("b", 0), ("c", 0)] {
        let envelope = json!({ "partition_override": partition });
        server.produce_json(&json!({ "topic": "t", "key": "k", "value": value, "envelope": envelope }));
    }
    let before = without(server.topic("t"), &["name"]);
    let peek = |query: &str| server.get(&format!("/v1/peek?topic=t&{query}"));
    let reply = peek("partition=0&offset=0&limit=2");
    assert_eq!((reply.status, reply.header("content-type")), (200, JSON));
    let shown = reply.json();
    assert_eq!(shown.as_object().map(serde_json::Map::len), Some(1));
    let messages = shown["messages"].as_array().expect("a list");
    assert_eq!(each(messages, "value"), ["a", "b"]);
    let item = &messages[1];
    assert!(millis(&item["produced_at"]) <= now());
    let fields = [
        ("partition", json!(0)),
        ("offset", json!(2)),
        ("key", json!("k")),
        ("envelope", json!({ "partition_override": 0 })),
    ];
    for (name, value) in fields {
        assert_eq!(item[name], value, "{item}");
    }
    let values = |query: &str| {
        each(peek(query).json()["messages"].as_array().expect("a list"), "value")
            .into_iter()
            .cloned()
            .collect::<Vec<_>>()
    };
    assert_eq!(values("partition=0&offset=1"), ["b", "c"]);
    assert_eq!(values("partition=1&offset=0&limit=1000"), ["x"]);
    assert_eq!(values("partition=0&offset=4"), Vec::<Value>::new());
    assert_eq!(without(server.topic("t"), &["name"]), before);
    assert_eq!(server.get("/v1/groups?topic=t").json()["groups"], json!([]));
    for query in [
        "",
        "partition=0",
        "offset=0",
        "partition=2&offset=0",
        "partition=x&offset=0",
        "partition=0&offset=0&limit=x",
        "partition=0&offset=-1",
    ] {
        assert_eq!(peek(query).status, 400, "{query}");
        peek(query).refused(400, "INVALID_ARGUMENT");
    }
    server.get("/v1/peek?partition=0&offset=0").refused(400, "INVALID_ARGUMENT");
    server.get("/v1/peek?topic=absent&partition=0&offset=0").refused(404, "NOT_FOUND");
}

#[test]
fn response_over_size_limit_is_refused() {
    let server = Server::start();
    server.create("wide", 1_024);
    server.create("dlq.wide", 1);
    for group in 0..98 {
        let made = server.post("/v1/groups", format!("{{\"topic\":\"wide\",\"group\":\"g{group}\"}}"));
        assert_eq!(made.status, 201, "{made:?}");
    }
    let message = server.get("/v1/topics/wide").refused(400, "INVALID_ARGUMENT");
    assert!(message.contains("100352"), "{message}");
    assert_eq!(server.delete("/v1/groups?topic=wide&group=g0").status, 204);
    assert_eq!(server.get("/v1/topics/wide").status, 200);
    let offsets: Vec<u64> = (0..10_001).collect();
    let body = serde_json::json!({ "topic": "wide", "offsets": offsets }).to_string();
    server.post("/v1/dlq/redrive", body).refused(400, "INVALID_ARGUMENT");
    let queried = server.post("/v1/dlq/redrive?topic=wide&all=1", "");
    assert_eq!((queried.status, queried.json()["redriven"].clone()), (200, 0.into()));
}

#[test]
fn redrive_in_portions_moves_all_and_stops_when_its_client_closes() {
    const COUNT: usize = 1_000;
    let server = Server::start();
    server.create("t", 1);
    server.post_json("/v1/groups", &json!({ "topic": "t", "group": "g" }));
    let line = json!({ "topic": "t", "value": "a", "envelope": { "deadline": in_ms(2_000) } }).to_string();
    let lines = vec![line; COUNT].join("\n");
    server.call("POST", "/v1/produce", &[("Content-Type", "application/x-ndjson")], &lines);
    let dead = || server.metric("dlq_messages_total{topic=\"t\",reason=\"deadline_exceeded\"}");
    wait_until("all are dead-lettered", || dead() == Some(COUNT as f64));

    // The end of input arrives with the request.
    let body = r#"{"topic":"t","all":true}"#;
    let mut connection = server.connect_raw();
    let head = format!("POST /v1/dlq/redrive HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.len());
    connection.send((head + body).as_bytes());
    connection.socket().shutdown(std::net::Shutdown::Write).expect("closed");
    let redriven = connection.reply("POST").json()["redriven"].as_u64().expect("a number") as usize;
    assert!((256..COUNT).contains(&redriven), "it stops after a portion: {redriven}");

    let rest = server.post_json("/v1/dlq/redrive", &json!({ "topic": "t", "all": true }));
    assert_eq!(rest.json(), json!({ "redriven": COUNT - redriven }));
}
