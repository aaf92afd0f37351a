//! `/v1/topics`, `/v1/topics/{topic}`, and paths and methods in general.

use serde_json::{Value, json};

use crate::harness::{Server, wait_until};
use crate::requests::{JSON, ReplyExt, each, now, with, without};

#[test]
fn topics_are_created_listed_and_deleted() {
    let server = Server::start();
    let reply = server.get("/v1/topics");
    assert_eq!((reply.status, reply.header("content-type"), reply.json()), (200, JSON, json!({ "topics": [] })));
    let create = |body: Value| server.post_json("/v1/topics", &body);
    let reply = create(json!({ "name": " t1 ", "partitions": 3 }));
    assert_eq!((reply.status, reply.header("content-type")), (201, JSON));
    assert_eq!(reply.json(), created("t1", 3));
    // An existing topic is returned with its actual number of partitions.
    for body in [json!({ "name": "t1", "partitions": 3 }), json!({ "name": "t1" })] {
        let reply = create(body);
        assert_eq!((reply.status, reply.json()), (201, created("t1", 3)));
    }
    assert!(create(json!({ "name": "t1", "partitions": 2 })).refused(409, "ALREADY_EXISTS").contains('3'));
    create(json!({ "name": "t1", "partitions": 0 })).refused(409, "ALREADY_EXISTS");
    for (name, body) in [("zero", json!({ "name": "zero", "partitions": 0 })), ("none", json!({ "name": "none" }))] {
        let reply = create(body);
        assert_eq!((reply.status, reply.json()), (201, created(name, 1)));
    }
    let reply = server.post("/v1/topics?name=Q&partitions=2&retention_ms=1000&retention_bytes=10&unknown=1", "");
    let made =
        json!({ "status": "created", "name": "Q", "partitions": 2, "retention_ms": 1000, "retention_bytes": 10 });
    assert_eq!((reply.status, reply.json()), (201, made));
    let reply = server.post("/v1/topics?name=query&partitions=2", "{\"name\":\"body\"}");
    assert_eq!(reply.json(), created("body", 1));
    let longest = "n".repeat(251);
    assert_eq!(create(json!({ "name": longest, "partitions": 1024 })).status, 201);
    assert_eq!(create(json!({ "name": "a.b_c:d-E9", "retention_ms": 5, "retention_bytes": 5 })).status, 201);
    let names = json!(["Q", "a.b_c:d-E9", "body", longest, "none", "t1", "zero"]);
    assert_eq!(server.get("/v1/topics").json(), json!({ "topics": names }), "in byte order");

    for body in [
        json!({}),
        json!({ "name": "" }),
        json!({ "name": "." }),
        json!({ "name": ".." }),
        json!({ "name": "a\nb" }),
        json!({ "name": "a\u{7f}b" }),
        json!({ "name": "a\u{85}b" }),
        json!({ "name": "n".repeat(252) }),
        json!({ "name": 1 }),
        json!({ "name": "x", "partitions": -1 }),
        json!({ "name": "x", "partitions": 1025 }),
        json!({ "name": "x", "partitions": "1" }),
        json!({ "name": "x", "partitions": 1.5 }),
        json!({ "name": "x", "retention_ms": -1 }),
        json!({ "name": "x", "retention_bytes": -1 }),
        json!({ "name": "x", "replicas": 1 }),
        json!(["x", 1, null, null]),
    ] {
        let reply = create(body.clone());
        assert_eq!(reply.status, 400, "{body}: {reply:?}");
        reply.refused(400, "INVALID_ARGUMENT");
    }
    server.post("/v1/topics", "{\"name\":\"x\",\"name\":\"x\"}").refused(400, "INVALID_ARGUMENT");
    server.post("/v1/topics", "{\"name\":\"x\"}]").refused(400, "INVALID_ARGUMENT");
    server.post("/v1/topics", "").refused(400, "INVALID_ARGUMENT");
    assert_eq!(server.get("/v1/topics").json(), json!({ "topics": names }));

    let mut stream = server.consume("topic=t1&group=g&owner=w");
    server.produce_json(&json!({ "topic": "t1", "value": "v", "envelope": { "idempotency_key": "k" } }));
    assert!(stream.item().is_some());
    let reply = server.delete("/v1/topics/t1");
    assert_eq!((reply.status, reply.body.as_str()), (204, ""));
    assert_eq!(stream.item(), None, "its streams end");
    for reply in [server.delete("/v1/topics/t1"), server.get("/v1/topics/t1"), server.get("/v1/groups?topic=t1")] {
        assert!(reply.refused(404, "NOT_FOUND").contains("t1"));
    }
    server.create("t1", 1);
    let again = server.produce_json(&json!({ "topic": "t1", "value": "v", "envelope": { "idempotency_key": "k" } }));
    assert_eq!(
        again,
        json!({ "status": "produced", "topic": "t1", "partition": 0, "offset": 0 }),
        "keys and offsets are deleted"
    );
    assert_eq!(server.delete("/v1/topics/a%2Eb_c%3Ad-E9").status, 204);
    server.get("/v1/topics/a%01b").refused(400, "INVALID_ARGUMENT");
}

#[test]
fn topic_description_shows_progress_and_blocking_reason() {
    let server = Server::start();
    let retention = json!({ "retention_ms": 0, "retention_bytes": 0 });
    let topic = with(json!({ "name": "t", "partitions": 2 }), retention.clone());
    assert_eq!(server.post_json("/v1/topics", &topic).status, 201);
    let empty = json!({
        "name": "t",
        "partitions": [
            { "partition": 0, "next_offset": 0, "messages": 0, "bytes": 0, "delayed": 0 },
            { "partition": 1, "next_offset": 0, "messages": 0, "bytes": 0, "delayed": 0 },
        ],
        "groups": [],
    });
    let reply = server.get("/v1/topics/t");
    let expected = with(empty, retention);
    assert_eq!((reply.status, reply.header("content-type"), reply.json()), (200, JSON, expected));
    let began = now();
    server.produce_json(&json!({ "topic": "t", "value": "12345", "key": "" }));
    server.produce_json(
        &json!({ "topic": "t", "value": "12345", "key": "678", "envelope": { "partition_override": 1 } }),
    );
    server.produce_json(&json!({ "topic": "t", "value": "1", "envelope": { "delay_ms": 60_000 } }));
    server.post_json("/v1/groups", &json!({ "topic": "t", "group": "g" }));
    let described = server.topic("t");
    assert_eq!(
        described["partitions"],
        json!([
            { "partition": 0, "next_offset": 3, "messages": 2, "bytes": 6, "delayed": 1 },
            { "partition": 1, "next_offset": 2, "messages": 1, "bytes": 8, "delayed": 0 },
        ])
    );
    let group = without(described["groups"][0].clone(), &["partitions"]);
    assert_eq!(group, json!({ "group": "g", "paused": false, "consumers": 0, "skipped": 0 }));
    let of = |described: &Value, index: usize| described["groups"][0]["partitions"][index].clone();
    let first = of(&described, 0);
    let age = first["oldest_age_ms"].as_i64().expect("a number");
    assert!((0..=now() - began + 1).contains(&age), "{age}");
    let rest = without(first, &["oldest_age_ms"]);
    let expected = json!({
        "partition": 0, "floor": -1, "lag": 2, "in_flight": 0, "waiting": 0, "blocked": "no consumer is connected",
    });
    assert_eq!(rest, expected);

    server.post_json("/v1/groups/pause", &json!({ "topic": "t", "group": "g" }));
    let mut stream = server.consume("topic=t&group=g&owner=w&lease_ms=60000&prefetch=2");
    let described = server.topic("t");
    assert_eq!(of(&described, 0)["blocked"], "the group is paused");
    assert_eq!((&described["groups"][0]["paused"], &described["groups"][0]["consumers"]), (&json!(true), &json!(1)));
    server.post_json("/v1/groups/resume", &json!({ "topic": "t", "group": "g" }));
    let items = [stream.item().expect("a message"), stream.item().expect("a message")];
    let described = server.topic("t");
    assert_eq!(of(&described, 0)["blocked"], "every consumer holds as many leases as its prefetch allows");
    assert_eq!((&of(&described, 1)["blocked"], &of(&described, 1)["in_flight"]), (&Value::Null, &json!(1)));
    for item in &items {
        server.settle_ok("ack", "t", item, json!({}));
    }
    let described = server.topic("t");
    assert_eq!(of(&described, 0)["blocked"], "everything left is delayed or waiting for its retry");
    let done = json!({
        "partition": 1, "floor": 1, "lag": 0, "in_flight": 0, "waiting": 0, "oldest_age_ms": null, "blocked": null,
    });
    assert_eq!(of(&described, 1), done);
    assert_eq!(of(&described, 0)["floor"], 0);
    assert_eq!(
        with(described["partitions"][1].clone(), json!({})),
        json!({ "partition": 1, "next_offset": 2, "messages": 0, "bytes": 0, "delayed": 0 })
    );
    drop(stream);
    wait_until("the stream is closed", || server.topic("t")["groups"][0]["consumers"] == 0);
}

#[test]
fn every_route_reports_allowed_methods() {
    let server = Server::start();
    server.create("t", 1);
    let routes = [
        ("GET", "/v1/healthz"),
        ("GET", "/v1/readyz"),
        ("GET", "/v1/version"),
        ("GET", "/v1/openapi.json"),
        ("GET", "/v1/config"),
        ("GET", "/metrics"),
        ("GET, POST", "/v1/topics"),
        ("GET, PATCH, DELETE", "/v1/topics/t"),
        ("POST", "/v1/topics/t/purge"),
        ("POST", "/v1/produce"),
        ("GET", "/v1/consume"),
        ("POST", "/v1/ack"),
        ("POST", "/v1/ack-cumulative"),
        ("POST", "/v1/nack"),
        ("POST", "/v1/extend"),
        ("POST", "/v1/release"),
        ("GET, POST, DELETE", "/v1/groups"),
        ("POST", "/v1/groups/expire"),
        ("POST", "/v1/groups/seek"),
        ("POST", "/v1/groups/pause"),
        ("POST", "/v1/groups/resume"),
        ("GET", "/v1/peek"),
        ("GET", "/v1/idempotency/list"),
        ("POST", "/v1/dlq/redrive"),
    ];
    for (allow, path) in routes {
        for method in ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "BREW"] {
            let reply = server.call(method, &format!("{path}?x=1"), &[], "");
            let allowed = allow.split(", ").any(|allowed| allowed == method);
            assert_eq!(reply.status != 405, allowed, "{method} {path}: {reply:?}");
            if allowed {
                continue;
            }
            assert_eq!((reply.header("allow"), reply.header("content-type")), (Some(allow), JSON), "{method} {path}");
            if method != "HEAD" {
                reply.refused(405, "METHOD_NOT_ALLOWED");
            }
        }
        // DELETE above has deleted the topic.
        server.create("t", 1);
    }
}

#[test]
fn unknown_route_is_not_found() {
    let server = Server::start();
    for path in [
        "/",
        "/v1",
        "/v1/",
        "/healthz",
        "/version",
        "/topics",
        "/produce",
        "/consume?topic=t&group=g&owner=w",
        "/ack",
        "/nack",
        "/v2/healthz",
        "/v1/healthz/",
        "/v1//healthz",
        "/V1/healthz",
        "/v1/metrics",
        "/v1/topics/",
        "/v1/topics/t/u",
        "/v1/unknown",
    ] {
        for method in ["GET", "POST"] {
            let reply = server.call(method, path, &[], "");
            assert_eq!(reply.status, 404, "{method} {path}: {reply:?}");
            assert!(!reply.refused(404, "NOT_FOUND").is_empty());
        }
    }
    assert_eq!(server.call("HEAD", "/v1/unknown", &[], "").status, 404);
}

#[test]
fn topics_are_listed_in_pages() {
    let server = Server::with(&["--no-wal"]);
    ["d", "a", "c", "B"].iter().for_each(|name| server.create(name, 1));
    let page = |query: &str| server.get(&format!("/v1/topics{query}")).json()["topics"].clone();
    assert_eq!(page("?limit=2"), json!(["B", "a"]));
    assert_eq!(page("?limit=2&after=a"), json!(["c", "d"]));
    assert_eq!(page("?after=b"), json!(["c", "d"]), "the name need not exist");
    assert_eq!(page("?after=d&limit=5"), json!([]));
    assert_eq!(page("?limit=&after="), json!(["B", "a", "c", "d"]), "empty counts as absent");
    for bad in ["?limit=0", "?limit=-1", "?limit=x", "?after=%07", "?limit=1&limit=2"] {
        server.get(&format!("/v1/topics{bad}")).refused(400, "INVALID_ARGUMENT");
    }
}

#[test]
fn purge_removes_what_a_topic_stores() {
    let server = Server::start();
    server.create("t", 2);
    server.produce("t", "leased");
    let leased = server.next("t");
    server.produce("t", "ready");
    server.produce_json(&json!({ "topic": "t", "value": "delayed", "envelope": { "delay_ms": 60_000 } }));
    let purge = |topic: &str| server.post(&format!("/v1/topics/{topic}/purge"), "");
    assert_eq!((purge("t").status, purge("t").json()), (200, json!({ "purged": 0 })), "the first purged all");
    assert_eq!(server.metric("driftq_messages_purged_total"), Some(3.0));
    let token = json!({ "lease_token": leased["lease_token"] });
    server.settle("ack", "t", &leased, token).refused(409, "FAILED_PRECONDITION");
    server.settle_ok("ack", "t", &leased, json!({}));
    server.produce("t", "later");
    assert_eq!(each(&server.fetch("t", "g"), "value"), ["later"]);
    purge("absent").refused(404, "NOT_FOUND");
    purge("a%07b").refused(400, "INVALID_ARGUMENT");
    server.get("/v1/topics/t/purge").refused(405, "METHOD_NOT_ALLOWED");
}

/// The reply to the creation of a topic with the default retention.
fn created(name: &str, partitions: u32) -> Value {
    json!({
        "status": "created",
        "name": name,
        "partitions": partitions,
        "retention_ms": 86_400_000,
        "retention_bytes": 268_435_456,
    })
}

#[test]
fn creation_with_other_settings_is_refused_and_names_them() {
    let server = Server::start();
    let create = |body: Value| server.post_json("/v1/topics", &body);
    assert_eq!(create(json!({ "name": "t", "partitions": 2, "retention_ms": 5_000 })).status, 201);
    assert_eq!(create(json!({ "name": "t" })).json()["retention_ms"], 5_000);
    assert_eq!(create(json!({ "name": "t", "partitions": 2, "retention_ms": 5_000 })).status, 201);
    let message = create(json!({ "name": "t", "partitions": 3, "retention_ms": 1, "retention_bytes": 1 }))
        .refused(409, "ALREADY_EXISTS");
    for setting in ["2 partitions", "retention_ms 5000", "retention_bytes 268435456"] {
        assert!(message.contains(setting), "{message}");
    }
    let message = create(json!({ "name": "t", "partitions": 2, "retention_ms": 1 })).refused(409, "ALREADY_EXISTS");
    assert!(message.contains("retention_ms") && !message.contains("partitions"), "{message}");
}

#[test]
fn patch_changes_retention_and_describe_shows_it() {
    let server = Server::start();
    server.create("t", 1);
    let patch = |topic: &str, body: &str| server.call("PATCH", &format!("/v1/topics/{topic}"), &[], body);
    let reply = patch("t", r#"{"retention_ms":60000}"#);
    let expected = json!({ "name": "t", "retention_ms": 60_000, "retention_bytes": 268_435_456 });
    assert_eq!((reply.status, reply.json()), (200, expected));
    assert_eq!(patch("t", r#"{"retention_bytes":7,"retention_ms":null}"#).json()["retention_bytes"], 7);
    let topic = server.topic("t");
    assert_eq!((&topic["retention_ms"], &topic["retention_bytes"]), (&json!(86_400_000), &json!(7)));
    patch("absent", "{}").refused(404, "NOT_FOUND");
    for body in [r#"{"partitions":2}"#, r#"{"retention_ms":-1}"#, r#"{"retention_bytes":"1"}"#, "[]", ""] {
        patch("t", body).refused(400, "INVALID_ARGUMENT");
    }
    assert_eq!(server.topic("t"), topic, "a refusal changes nothing");
}
