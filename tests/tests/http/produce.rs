//! `POST /v1/produce`.

use serde_json::{Value, json};

use crate::harness::Server;
use crate::requests::{JSON, ReplyExt, each, in_ms, now, with, without};

#[test]
fn produce_returns_partition_offset_and_requested_topic() {
    let server = Server::start();
    server.create("t", 3);
    server.create("eight", 8);
    let reply = server.post_json("/v1/produce", &json!({ "topic": " t\n", "key": "user:1", "value": "v" }));
    assert_eq!((reply.status, reply.header("content-type")), (200, JSON));
    assert_eq!(reply.json(), json!({ "status": "produced", "topic": "t", "partition": 1, "offset": 0 }));
    for (topic, key, partition, offset) in
        [("t", "user:2", 0, 1), ("t", "", 0, 2), ("t", "user:1", 1, 3), ("eight", "b", 5, 0)]
    {
        let response = server.produce_json(&json!({ "topic": topic, "key": key, "value": "v" }));
        let expected = json!({ "status": "produced", "topic": topic, "partition": partition, "offset": offset });
        assert_eq!(response, expected, "{key:?}");
    }

    let elsewhere =
        json!({ "topic": "t", "value": "x", "envelope": { "target_topic": " eight ", "partition_override": 7 } });
    let response = server.produce_json(&elsewhere);
    assert_eq!(response, json!({ "status": "produced", "topic": "t", "partition": 7, "offset": 1 }));
    // The requested topic need not exist if there is a target topic.
    let response = server.produce_json(&with(elsewhere, json!({ "topic": "absent" })));
    assert_eq!(response, json!({ "status": "produced", "topic": "absent", "partition": 7, "offset": 2 }));
    let items = server.fetch("eight", "g");
    assert_eq!(each(&items, "partition"), [5, 7, 7]);
    assert_eq!(items[1]["envelope"], json!({ "target_topic": "eight", "partition_override": 7 }));
    assert_eq!(server.get("/v1/topics").json(), json!({ "topics": ["eight", "t"] }));
}

#[test]
fn envelope_is_delivered_unchanged() {
    let server = Server::start();
    server.create("t", 2);
    let envelope = json!({
        "run_id": "run_123", "step_id": "step_7", "parent_step_id": "step_3", "tenant_id": "tenant_a",
        "idempotency_key": "tenant_a:run_123:step_7", "target_topic": "t", "partition_override": 1,
        "deadline": "2199-12-21t14:00:00.50+02:00",
        "retry_policy": { "max_attempts": 5, "backoff_ms": 250, "max_backoff_ms": 5000 },
        "priority": 9, "labels": { "a": "1", "ü": "\u{1}\"\\" },
    });
    let value = "line\nbreak \u{0} \"quoted\" é 🦀 </script>";
    server.produce_json(&json!({ "topic": "t", "key": "ключ", "value": value, "envelope": envelope }));
    let item = server.next("t");
    let expected = json!({
        "partition": 1, "offset": 0, "attempts": 1, "key": "ключ", "value": value, "last_error": "", "failures": 0,
        "envelope": envelope,
    });
    assert_eq!(without(item, &["lease_token", "lease_until", "produced_at"]), expected);

    // Empty fields and 0 are the same as absent fields.
    let nothing = json!({
        "run_id": "", "tenant_id": "", "idempotency_key": "", "target_topic": "", "deadline": "", "deliver_at": "",
        "labels": {}, "delay_ms": 0,
    });
    server.produce_json(&json!({ "topic": "t", "key": null, "value": "bare", "envelope": nothing }));
    server.produce_json(&json!({ "topic": "t", "value": "barer", "envelope": {} }));
    server.produce_json(&json!({ "topic": "t", "value": "barest", "envelope": null }));
    for item in server.fetch("t", "g") {
        assert_eq!((item.get("envelope"), item.get("routing"), item.get("trace")), (None, None, None), "{item}");
        assert_eq!(item["key"], "");
    }
}

#[test]
fn query_parameters_are_equivalent_and_body_overrides_them() {
    let server = Server::start();
    server.create("t", 2);
    let long = "/v1/produce?topic=t&value=a%20b%2Bc+d&key=k&run_id=r&step_id=s&parent_step_id=p&tenant_id=x&idempotency_key=i\
                &target_topic=t&partition_override=1&deadline=2199-12-21T12:00:00Z&retry_max_attempts=5&retry_backoff_ms=250\
                &retry_max_backoff_ms=5000&priority=3&unknown=1";
    let reply = server.post(long, "");
    assert_eq!(reply.json(), json!({ "status": "produced", "topic": "t", "partition": 1, "offset": 0 }));
    let item = server.next("t");
    assert_eq!((&item["value"], &item["key"]), (&json!("a b+c d"), &json!("k")));
    let expected = json!({
        "run_id": "r", "step_id": "s", "parent_step_id": "p", "tenant_id": "x", "idempotency_key": "i", "target_topic": "t",
        "partition_override": 1, "deadline": "2199-12-21T12:00:00Z", "priority": 3,
        "retry_policy": { "max_attempts": 5, "backoff_ms": 250, "max_backoff_ms": 5000 },
    });
    assert_eq!(item["envelope"], expected);

    for (query, envelope) in [
        ("tenant=x&idem_key=j", json!({ "tenant_id": "x", "idempotency_key": "j" })),
        ("deadline_rfc3339=2199-12-21T12:00:00%2B02:00", json!({ "deadline": "2199-12-21T12:00:00+02:00" })),
        ("deadline_ms=7257254400500", json!({ "deadline": "2199-12-22T00:00:00.500Z" })),
        ("retry_max_attempts=2", json!({ "retry_policy": { "max_attempts": 2 } })),
    ] {
        let reply = server.post(&format!("/v1/produce?topic=t&value=v&{query}"), "");
        assert_eq!(reply.status, 200, "{query}: {reply:?}");
        assert_eq!(server.next("t")["envelope"], envelope, "{query}");
    }
    let reply = server.post("/v1/produce?topic=absent&value=query&key=q", "{\"topic\":\"t\",\"value\":\"body\"}");
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(server.next("t")["value"], "body");
    server.post("/v1/produce?topic=t&value=v&deadline=soon", "").refused(400, "INVALID_ARGUMENT");
    server.post("/v1/produce?topic=t&value=v&deadline_ms=1", "").refused(400, "INVALID_ARGUMENT");
    server.post("/v1/produce?topic=t&value=v&partition_override=x", "").refused(400, "INVALID_ARGUMENT");
    server.post("/v1/produce?topic=t", "").refused(400, "INVALID_ARGUMENT");
    server.post("/v1/produce?value=v", "").refused(400, "INVALID_ARGUMENT");
}

#[test]
fn invalid_produce_is_refused_without_effect() {
    let server = Server::start();
    server.create("t", 2);
    let soon = in_ms(60_000);
    let envelopes = [
        json!({ "unknown": 1 }),
        json!({ "dlq": {} }),
        json!({ "priority": 10 }),
        json!({ "priority": -1 }),
        json!({ "priority": "1" }),
        json!({ "priority": 1.5 }),
        json!({ "partition_override": 2 }),
        json!({ "partition_override": -1 }),
        json!({ "partition_override": 4294967296_u64 }),
        json!({ "partition_override": "1" }),
        json!({ "deadline": "tomorrow" }),
        json!({ "deadline": "2199-12-21" }),
        json!({ "deadline": 7257254400500_u64 }),
        json!({ "deadline": in_ms(-1000) }),
        json!({ "deadline": soon, "delay_ms": 60_001 }),
        json!({ "deadline": soon, "deliver_at": in_ms(120_000) }),
        json!({ "delay_ms": -1 }),
        json!({ "delay_ms": 1, "deliver_at": soon }),
        json!({ "deliver_at": "soon" }),
        json!({ "labels": { "a": 1 } }),
        json!({ "labels": ["a"] }),
        json!({ "retry_policy": { "attempts": 1 } }),
        json!({ "retry_policy": { "max_attempts": -1 } }),
        json!({ "retry_policy": [1, 2, 3] }),
        json!({ "target_topic": "a\u{1}b" }),
        json!({ "target_topic": ".." }),
        json!({ "idempotency_key": "k".repeat(256) }),
        json!({ "run_id": 1 }),
        json!(["r"]),
        json!("text"),
    ];
    let bodies = [
        json!({ "topic": "t" }),
        json!({ "topic": "t", "value": "" }),
        json!({ "topic": "t", "value": null }),
        json!({ "topic": "t", "value": 1 }),
        json!({ "topic": "t", "value": { "a": 1 } }),
        json!({ "topic": "t", "value": "v", "key": 1 }),
        json!({ "topic": "t", "value": "v", "unknown": 1 }),
        json!({ "topic": "t", "value": "v", "Topic": "t" }),
        json!({ "value": "v" }),
        json!({ "topic": "", "value": "v" }),
        json!({ "topic": "  ", "value": "v" }),
        json!({ "topic": ".", "value": "v" }),
        json!({ "topic": "..", "value": "v" }),
        json!({ "topic": "a\u{1}b", "value": "v" }),
        json!({ "topic": "t\u{0}", "value": "v" }),
        json!({ "topic": "n".repeat(252), "value": "v" }),
        json!(["t", "k", "v", null]),
        json!("text"),
        json!(null),
        json!(1),
    ];
    let bodies = bodies.iter().map(Value::to_string);
    let enveloped =
        envelopes.iter().map(|envelope| json!({ "topic": "t", "value": "v", "envelope": envelope }).to_string());
    let broken = [
        "{\"topic\":\"t\",\"value\":\"v\"",
        "{\"topic\":\"t\",\"value\":\"v\"} x",
        "{\"topic\":\"t\",\"value\":\"v\"}{}",
        "{\"topic\":\"t\",\"topic\":\"t\",\"value\":\"v\"}",
        "{\"topic\":\"t\",\"value\":\"v\",\"envelope\":{\"run_id\":\"a\",\"run_id\":\"a\"}}",
        "{\"topic\":\"t\",\"value\":\"v\",\"envelope\":{\"labels\":{\"a\":\"1\",\"a\":\"1\"}}}",
        "{'topic':'t'}",
        "{\"topic\":\"t\",\"value\":\"\\ud800\"}",
        "topic=t&value=v",
    ];
    for body in bodies.chain(enveloped).chain(broken.map(str::to_owned)) {
        let reply = server.post("/v1/produce", &body);
        assert_eq!(reply.status, 400, "{body}: {reply:?}");
        assert!(!reply.refused(400, "INVALID_ARGUMENT").is_empty());
        assert_eq!(reply.json().as_object().map(serde_json::Map::len), Some(2), "{reply:?}");
    }
    let head = b"POST /v1/produce HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 25\r\n\r\n";
    let bad_utf8 = server.send_raw(&[&head[..], b"{\"topic\":\"t\",\"value\":\"\xff\"}"].concat());
    assert!(bad_utf8.starts_with("HTTP/1.1 400 "), "{bad_utf8}");

    let absent = server.post_json("/v1/produce", &json!({ "topic": "absent", "value": "v" }));
    assert!(absent.refused(404, "NOT_FOUND").contains("absent"));
    let target = json!({ "topic": "t", "value": "v", "envelope": { "target_topic": "absent" } });
    server.post_json("/v1/produce", &target).refused(404, "NOT_FOUND");
    assert_eq!(server.get("/v1/topics").json(), json!({ "topics": ["t"] }));
    let described = server.topic("t");
    assert_eq!(
        (&described["partitions"][0]["messages"], &described["partitions"][1]["messages"]),
        (&json!(0), &json!(0))
    );
    assert_eq!(server.produce("t", "v"), (0, 0));
}

#[test]
fn duplicate_produce_returns_first_offset() {
    let server = Server::start();
    server.create("t", 3);
    server.create("u", 1);
    let keyed = |key: &str, more: Value| {
        with(json!({ "topic": "t", "key": "user:1", "value": "v", "envelope": { "idempotency_key": key } }), more)
    };
    // A failed produce does not use the key.
    server.post_json("/v1/produce", &keyed("a", json!({ "topic": "absent" }))).refused(404, "NOT_FOUND");
    let first = server.produce_json(&keyed("a", json!({})));
    assert_eq!(first, json!({ "status": "produced", "topic": "t", "partition": 1, "offset": 0 }));
    let again = json!({ "status": "produced", "topic": "t", "partition": 1, "offset": 0, "duplicate": true });
    assert_eq!(server.produce_json(&keyed("a", json!({}))), again);
    assert_eq!(server.produce_json(&keyed("a", json!({ "key": "user:2", "value": "other" }))), again);
    // An empty tenant is "default"; another tenant or topic is another identity.
    let tenant = |tenant: &str| json!({ "envelope": { "idempotency_key": "a", "tenant_id": tenant } });
    assert_eq!(server.produce_json(&keyed("a", tenant("default"))), again);
    assert_eq!(server.produce_json(&keyed("a", tenant("other"))).get("duplicate"), None);
    assert_eq!(server.produce_json(&keyed("a", json!({ "topic": "u" }))).get("duplicate"), None);
    // Topic and target together are another identity; the response has the requested topic.
    let targeted = keyed("a", json!({ "topic": "u", "envelope": { "idempotency_key": "a", "target_topic": "t" } }));
    let first = json!({ "status": "produced", "topic": "u", "partition": 1, "offset": 2 });
    assert_eq!(server.produce_json(&targeted), first);
    assert_eq!(server.produce_json(&targeted), with(first, json!({ "duplicate": true })));

    // The header is equivalent to the field.
    let call = |header: &str, body: Value| {
        server.call("POST", "/v1/produce", &[("Idempotency-Key", header)], &body.to_string())
    };
    let plain = json!({ "topic": "t", "value": "v" });
    let first = call("h", plain.clone()).json();
    assert_eq!(first.get("duplicate"), None);
    let again = with(first, json!({ "duplicate": true }));
    assert_eq!(call("h", plain.clone()).json(), again);
    assert_eq!(call("h", keyed("h", json!({}))).json(), again);
    assert_eq!(server.produce_json(&keyed("h", json!({}))), again);
    call("h", keyed("other", json!({}))).refused(400, "INVALID_ARGUMENT");
    assert_eq!(
        server.produce_json(&keyed("other", json!({}))).get("duplicate"),
        None,
        "a refused produce does not use the key"
    );
    let by_query = server.call("POST", "/v1/produce?topic=t&value=v", &[("Idempotency-Key", "h")], "");
    assert_eq!(by_query.json(), again);
    server
        .call("POST", "/v1/produce?topic=t&value=v&idem_key=x", &[("Idempotency-Key", "h")], "")
        .refused(400, "INVALID_ARGUMENT");

    let mut racing: Vec<_> = (0..8).map(|_| server.connect_raw()).collect();
    let body = keyed("race", json!({})).to_string();
    let len = body.len();
    let request = format!("POST /v1/produce HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len}\r\n\r\n{body}");
    racing.iter_mut().for_each(|connection| connection.send(request.as_bytes()));
    let responses: Vec<Value> = racing.iter_mut().map(|connection| connection.reply("POST").json()).collect();
    assert!(responses.iter().all(|response| response["status"] == "produced"), "{responses:?}");
    assert_eq!(responses.iter().filter(|response| response.get("duplicate").is_none()).count(), 1, "{responses:?}");
    assert!(responses.iter().all(|response| response["offset"] == responses[0]["offset"]), "{responses:?}");
    let delivered = server.fetch("t", "g").iter().filter(|item| item["envelope"]["idempotency_key"] == "race").count();
    assert_eq!(delivered, 1);
}

#[test]
fn full_partition_responds_as_specified() {
    let server = Server::with(&["--profile", "spec"]);
    server.create("t", 3);
    assert_eq!(server.produce("t", "0123456789"), (0, 0));
    let over = |value: &str, more: Value| {
        let reply = server.post_json("/v1/produce", &json!({ "topic": "t", "value": value }));
        assert!(!reply.refused(429, "RESOURCE_EXHAUSTED").is_empty());
        assert_eq!(reply.header("retry-after"), Some("1"));
        let rest = without(reply.json(), &["message"]);
        let expected = json!({ "error": "RESOURCE_EXHAUSTED", "reason": "overloaded", "retry_after_ms": 1000 });
        assert_eq!(rest, with(expected, more));
    };
    over("01234567890", json!({}));
    assert_eq!(server.produce("t", "0123456789"), (0, 1), "20 bytes are within the limit");
    over("0", json!({}));
    let other = server.produce_json(&json!({ "topic": "t", "key": "user:1", "value": "x" }));
    assert_eq!(other["partition"], 1, "partitions are limited separately");
    // Key and value count together. A message that alone exceeds the limit cannot be retried.
    let large = json!({ "topic": "t", "key": "user:1", "value": "0123456789abcdef" });
    let reply = server.post_json("/v1/produce", &large);
    reply.refused(413, "PAYLOAD_TOO_LARGE");
    assert_eq!(reply.header("retry-after"), None);

    // Capacity is freed when every group has finished.
    server.post_json("/v1/groups", &json!({ "topic": "t", "group": "slow" }));
    for item in server.fetch("t", "g") {
        server.settle_ok("ack", "t", &item, json!({}));
    }
    over("0", json!({ "group": "slow" }));
    assert_eq!(server.delete("/v1/groups?topic=t&group=slow").status, 204);
    assert_eq!(server.produce("t", "0"), (0, 3));
    assert_eq!(server.metric("produce_rejected_total{reason=\"overloaded\"}"), Some(3.0));
    assert_eq!(server.metric("produce_rejected_total{reason=\"too_large\"}"), Some(1.0));

    let server = Server::configured("[limits]\nretry_after_ms = 1500\npartition_messages_max = 1\n", &[]);
    server.create("t", 1);
    server.produce("t", "v");
    let reply = server.post_json("/v1/produce", &json!({ "topic": "t", "value": "v" }));
    reply.refused(429, "RESOURCE_EXHAUSTED");
    assert_eq!(
        (reply.header("retry-after"), &reply.json()["retry_after_ms"]),
        (Some("2"), &json!(1_500)),
        "rounded up"
    );
}

#[test]
fn too_large_body_is_refused_before_it_is_read() {
    let server = Server::configured("[http]\nbody_bytes_max = 200000\n", &[]);
    server.create("t", 1);
    let mut connection = server.connect_raw();
    connection.send(b"POST /v1/produce HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200001\r\n\r\n");
    let reply = connection.reply("POST");
    reply.refused(413, "PAYLOAD_TOO_LARGE");
    let exactly = |len: usize| {
        let frame = json!({ "topic": "t", "value": "" }).to_string().len();
        json!({ "topic": "t", "value": "v".repeat(len - frame) }).to_string()
    };
    assert_eq!(server.post("/v1/produce", exactly(200_000)).status, 200);
    server
        .post_json("/v1/produce", &json!({ "topic": "t", "key": "k".repeat((64 << 10) + 1), "value": "v" }))
        .refused(413, "PAYLOAD_TOO_LARGE");
    let labels = json!({ "labels": { "l": "x".repeat(64 << 10) } });
    server
        .post_json("/v1/produce", &json!({ "topic": "t", "value": "v", "envelope": labels }))
        .refused(413, "PAYLOAD_TOO_LARGE");
    server.produce_json(&json!({ "topic": "t", "key": "k".repeat(64 << 10), "value": "v" }));
    assert_eq!(server.topic("t")["partitions"][0]["messages"], 2);
    for path in ["/v1/ack", "/v1/nack", "/v1/topics", "/v1/groups/seek", "/v1/dlq/redrive"] {
        let mut connection = server.connect_raw();
        connection
            .send(format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200001\r\n\r\n").as_bytes());
        connection.reply("POST").refused(413, "PAYLOAD_TOO_LARGE");
    }
}

#[test]
fn too_large_body_sent_before_reading_gets_413() {
    let server = Server::start();
    let head = b"POST /v1/produce HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20971520\r\n\r\n";
    let mut connection = server.connect_raw();
    connection.send(head);
    let part = vec![b'x'; 1 << 20];
    for _ in 0..20 {
        connection.send(&part);
    }
    let reply = connection.reply("POST");
    reply.refused(413, "PAYLOAD_TOO_LARGE");
    assert_eq!((reply.header("connection"), connection.rest().as_str()), (Some("close"), ""));
}

#[test]
fn empty_query_parameter_is_absent() {
    let server = Server::start();
    server.create("t", 1);
    let path = "/v1/produce?topic=t&value=v&tenant_id=&tenant=acme&deadline=&deadline_rfc3339=&deadline_ms=&deliver_at=&idem_key=";
    assert_eq!(server.post(path, "").status, 200);
    assert_eq!(server.next("t")["envelope"], json!({ "tenant_id": "acme" }));
}

#[test]
fn priorities_and_delays_order_deliveries() {
    let server = Server::start();
    server.create("t", 1);
    let send = |value: &str, envelope: Value| {
        server.produce_json(&json!({ "topic": "t", "value": value, "envelope": envelope }))
    };
    let began = now();
    send("late", json!({ "delay_ms": 1_000, "priority": 9 }));
    send("later", json!({ "deliver_at": in_ms(1_200) }));
    send("low", json!({}));
    send("low too", json!({ "priority": 0 }));
    send("high", json!({ "priority": 9 }));
    send("middle", json!({ "priority": 5 }));
    send("high too", json!({ "priority": 9 }));
    assert_eq!(server.topic("t")["partitions"][0]["delayed"], 2);
    let mut stream = server.consume("topic=t&group=g&owner=w&lease_ms=60000&max=7");
    let mut next = || stream.item().expect("a message")["value"].as_str().expect("text").to_owned();
    let first: Vec<_> = (0..5).map(|_| next()).collect();
    assert_eq!(first, ["high", "high too", "middle", "low", "low too"]);
    assert!(now() - began < 1_000, "the machine is too slow for this test");
    assert_eq!(next(), "late");
    assert!(now() - began >= 1_000);
    assert_eq!(next(), "later");
    assert!(now() - began >= 1_200);
}

#[test]
fn trace_context_is_delivered() {
    let server = Server::start();
    server.create("t", 1);
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let body = json!({ "topic": "t", "value": "v" }).to_string();
    assert_eq!(server.call("POST", "/v1/produce", &[("traceparent", trace)], &body).status, 200);
    let item = server.next("t");
    assert_eq!(item["trace"], trace);
    assert_eq!(item.get("envelope"), None);
    // An invalid trace context is ignored.
    assert_eq!(server.call("POST", "/v1/produce", &[("traceparent", "x")], &body).status, 200);
    assert_eq!(server.next("t").get("trace"), None);
    let batch =
        server.call("POST", "/v1/produce", &[("traceparent", trace), ("Content-Type", "application/x-ndjson")], &body);
    assert_eq!(batch.status, 200);
    assert_eq!(server.next("t")["trace"], trace);
}

#[test]
fn router_decision_is_stored_and_overrides_envelope() {
    let rules = "[[router.rule]]\ntopic = \"t\"\nkey_prefix = \"x\"\nlabel = \"to:u\"\ntarget_topic = \"u\"\n\
                 partition_override = 1\nmeta = { source = \"rule\" }\n";
    let server = Server::configured(rules, &[]);
    server.create("t", 1);
    server.create("u", 2);
    let body = json!({ "topic": "t", "key": "x1", "value": "v", "envelope": { "run_id": "r", "target_topic": "t" } });
    let response = server.produce_json(&body);
    assert_eq!(response, json!({ "status": "produced", "topic": "t", "partition": 1, "offset": 0 }));
    let item = server.next("u");
    assert_eq!(item["routing"], json!({ "label": "to:u", "meta": { "source": "rule" } }));
    assert_eq!(item["envelope"], json!({ "run_id": "r", "target_topic": "u", "partition_override": 1 }));
    server.produce_json(&json!({ "topic": "t", "key": "other", "value": "v" }));
    let item = server.next("t");
    assert_eq!((item.get("routing"), item.get("envelope")), (None, None));
}

#[test]
fn routing_set_aside_or_failed_is_in_the_response() {
    // Nothing listens on port 1, so the webhook fails; the rule names a topic that does not exist.
    let toml = "[router.webhook]\nurl = \"http://127.0.0.1:1/\"\n\
                [[router.rule]]\nkey_prefix = \"x\"\nlabel = \"l\"\ntarget_topic = \"absent\"\n";
    let server = Server::configured(toml, &[]);
    server.create("t", 1);
    let produce = |key: &str| server.produce_json(&json!({ "topic": "t", "key": key, "value": "v" }));
    let expected = |offset: u64, routing: &str| json!({ "status": "produced", "topic": "t", "partition": 0, "offset": offset, "routing": routing });
    assert_eq!(produce("x"), expected(0, "set_aside"));
    assert_eq!(produce("other"), expected(1, "failed"));
    let lines = "{\"topic\":\"t\",\"key\":\"x\",\"value\":\"v\"}\n{\"topic\":\"t\",\"value\":\"v\"}\n";
    let batch = server.call("POST", "/v1/produce", &[("Content-Type", "application/x-ndjson")], lines);
    let routing: Vec<Value> = batch.body.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(each(&routing, "routing"), ["set_aside", "failed"], "{batch:?}");
    assert_eq!(server.metric("driftq_router_set_aside_total"), Some(2.0));
}
