//! `/v1/groups`, `/v1/groups/seek`, `/v1/groups/pause` and `/v1/groups/resume`.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Server, wait_until};
use crate::requests::{JSON, ReplyExt, each, in_ms, now};

#[test]
fn groups_are_created_listed_and_deleted_with_their_streams() {
    let server = Server::start();
    server.create("t", 1);
    server.produce("t", "old");
    let list = || server.get("/v1/groups?topic=t").json();
    assert_eq!(list()["groups"], json!([]));
    let reply = server.post_json("/v1/groups", &json!({ "topic": "t", "group": " b " }));
    assert_eq!((reply.status, reply.header("content-type")), (201, JSON));
    assert_eq!(server.post_json("/v1/groups", &json!({ "topic": "t", "group": "b" })).status, 201, "it exists already");
    assert_eq!(server.post_json("/v1/groups", &json!({ "topic": "t", "group": "late", "from": "latest" })).status, 201);
    assert_eq!(server.post("/v1/groups?topic=t&group=B&from=earliest", "").status, 201);
    server.produce("t", "new");
    let reply = server.get("/v1/groups?topic=t");
    assert_eq!((reply.status, reply.header("content-type")), (200, JSON));
    assert_eq!(list()["groups"], json!(["B", "b", "late"]), "in byte order");
    assert_eq!(each(&server.fetch("t", "B"), "value"), ["old", "new"]);
    assert_eq!(each(&server.fetch("t", "late"), "value"), ["new"]);

    let mut stream = server.consume("topic=t&group=b&owner=w&lease_ms=60000");
    let mut other = server.consume("topic=t&group=other&owner=w&lease_ms=60000");
    let item = stream.item().expect("a message");
    assert!(stream.item().is_some() && other.item().is_some() && other.item().is_some());
    let reply = server.delete("/v1/groups?topic=t&group=b");
    assert_eq!((reply.status, reply.body.as_str()), (204, ""));
    assert_eq!(stream.item(), None, "its stream ends");
    assert!(other.is_silent_for(Duration::from_millis(50)), "the other group's does not");
    assert_eq!(list()["groups"], json!(["B", "late", "other"]));
    server.settle("ack", "t", &item, json!({ "group": "b" })).refused(404, "NOT_FOUND");
    // Its progress is deleted.
    assert_eq!(each(&server.fetch("t", "b"), "attempts"), [1, 1]);

    for body in [
        json!({ "topic": "t" }),
        json!({ "group": "g" }),
        json!({ "topic": "t", "group": "" }),
        json!({ "topic": "t", "group": "a\u{1}b" }),
        json!({ "topic": "t", "group": "n".repeat(256) }),
        json!({ "topic": "t", "group": "g", "from": "middle" }),
        json!({ "topic": "t", "group": "g", "from": 1 }),
        json!({ "topic": "t", "group": "g", "unknown": 1 }),
        json!(["t", "g", null]),
    ] {
        let reply = server.post_json("/v1/groups", &body);
        assert_eq!(reply.status, 400, "{body}: {reply:?}");
        reply.refused(400, "INVALID_ARGUMENT");
    }
    server.post_json("/v1/groups", &json!({ "topic": "absent", "group": "g" })).refused(404, "NOT_FOUND");
    server.delete("/v1/groups?topic=t&group=absent").refused(404, "NOT_FOUND");
    server.delete("/v1/groups?topic=absent&group=b").refused(404, "NOT_FOUND");
    server.delete("/v1/groups?topic=t").refused(400, "INVALID_ARGUMENT");
    server.get("/v1/groups").refused(400, "INVALID_ARGUMENT");
    server.get("/v1/groups?topic=absent").refused(404, "NOT_FOUND");
}

#[test]
fn paused_group_gets_no_delivery_until_resumed() {
    let server = Server::start();
    server.create("t", 1);
    let mut stream = server.consume("topic=t&group=g&owner=w&lease_ms=60000");
    let set = |op: &str, body: Value| server.post_json(&format!("/v1/groups/{op}"), &body);
    let group = json!({ "topic": "t", "group": "g" });
    for op in ["pause", "pause", "resume", "resume", "pause"] {
        let reply = set(op, group.clone());
        assert!((200..300).contains(&reply.status), "{reply:?}");
        assert_eq!(server.topic("t")["groups"][0]["paused"], op == "pause");
    }
    server.produce("t", "v");
    assert!(stream.is_silent_for(Duration::from_millis(150)));
    assert!(server.post("/v1/groups/resume?topic=t&group=g", "").status < 300);
    let item = stream.item().expect("a message");
    assert_eq!((&item["value"], &item["attempts"]), (&json!("v"), &json!(1)));
    // Leases can be settled during a pause.
    set("pause", group);
    server.settle_ok("ack", "t", &item, json!({}));
    for op in ["pause", "resume"] {
        set(op, json!({ "topic": "t", "group": "absent" })).refused(404, "NOT_FOUND");
        set(op, json!({ "topic": "absent", "group": "g" })).refused(404, "NOT_FOUND");
        set(op, json!({ "topic": "t" })).refused(400, "INVALID_ARGUMENT");
        set(op, json!({ "topic": "t", "group": "g", "unknown": 1 })).refused(400, "INVALID_ARGUMENT");
        set(op, json!(["t", "g", null])).refused(400, "INVALID_ARGUMENT");
    }
}

#[test]
fn seek_moves_group_and_fences_leases() {
    let server = Server::start();
    let made = server.post_json("/v1/topics", &json!({ "name": "t", "partitions": 2, "retention_ms": 600_000 }));
    assert_eq!(made.status, 201);
    for (value, partition) in [("a", 0), ("b", 1), ("c", 0)] {
        server.produce_json(&json!({ "topic": "t", "value": value, "envelope": { "partition_override": partition } }));
    }
    let pause = now() + 20;
    wait_until("20 ms have passed", || now() > pause);
    let time = in_ms(-10);
    server.produce_json(&json!({ "topic": "t", "value": "d", "envelope": { "partition_override": 1 } }));
    let fetch = || {
        let mut items = server.fetch("t", "g");
        items.sort_by_key(|item| item["offset"].as_u64());
        items
    };
    let seek = |to: Value| {
        let reply = server.post_json("/v1/groups/seek", &json!({ "topic": "t", "group": "g", "to": to }));
        assert!((200..300).contains(&reply.status), "{to}: {reply:?}");
    };
    let held = fetch();
    assert_eq!(each(&held, "value"), ["a", "b", "c", "d"]);
    seek(json!("earliest"));
    for item in &held {
        server
            .settle("ack", "t", item, json!({ "lease_token": item["lease_token"] }))
            .refused(409, "FAILED_PRECONDITION");
    }
    for item in &fetch() {
        server.settle_ok("ack", "t", item, json!({ "lease_token": item["lease_token"] }));
    }
    assert!(fetch().is_empty());
    for (to, expected) in [
        (json!("earliest"), vec!["a", "b", "c", "d"]),
        (json!("latest"), vec![]),
        (json!({ "offset": 2 }), vec!["c", "d"]),
        (json!({ "offset": 99 }), vec![]),
        (json!({ "time": time }), vec!["d"]),
        (json!({ "time": "1970-01-01T00:00:00Z" }), vec!["a", "b", "c", "d"]),
    ] {
        seek(to.clone());
        assert_eq!(each(&fetch(), "value"), expected, "{to}");
    }
    assert!(server.post("/v1/groups/seek?topic=t&group=g&to=latest", "").status < 300);
    assert_eq!(server.topic("t")["groups"][0]["partitions"][0]["lag"], 0);

    for to in [
        json!("middle"),
        json!(null),
        json!(1),
        json!({}),
        json!({ "offset": -1 }),
        json!({ "offset": "1" }),
        json!({ "time": "noon" }),
        json!({ "time": 1 }),
        json!({ "offset": 1, "time": time }),
        json!({ "earliest": null }),
        json!({ "unknown": 1 }),
        json!(["earliest"]),
    ] {
        let reply = server.post_json("/v1/groups/seek", &json!({ "topic": "t", "group": "g", "to": to }));
        assert_eq!(reply.status, 400, "{to}: {reply:?}");
        reply.refused(400, "INVALID_ARGUMENT");
    }
    let twice = "{\"topic\":\"t\",\"group\":\"g\",\"to\":{\"offset\":1,\"offset\":1}}";
    server.post("/v1/groups/seek", twice).refused(400, "INVALID_ARGUMENT");
    server.post_json("/v1/groups/seek", &json!({ "topic": "t", "group": "g" })).refused(400, "INVALID_ARGUMENT");
    server
        .post_json("/v1/groups/seek", &json!({ "topic": "t", "group": "x", "to": "latest" }))
        .refused(404, "NOT_FOUND");
    server
        .post_json("/v1/groups/seek", &json!({ "topic": "x", "group": "g", "to": "latest" }))
        .refused(404, "NOT_FOUND");
}

#[test]
fn later_group_sees_what_an_earlier_one_acked() {
    let server = Server::start();
    server.create("t", 1);
    for value in ["a", "b"] {
        server.produce_json(&json!({ "topic": "t", "value": value }));
    }
    for item in &server.fetch("t", "g") {
        server.settle_ok("ack", "t", item, json!({}));
    }
    assert!(server.fetch("t", "g").is_empty());
    assert_eq!(each(&server.fetch("t", "second"), "value"), ["a", "b"]);
}

#[test]
fn ephemeral_group_ends_with_its_last_stream() {
    let server = Server::start();
    server.create("t", 1);
    server.produce_json(&json!({ "topic": "t", "value": "a" }));
    let mut stream = server.consume("topic=t&group=view&owner=w&ephemeral=true");
    assert!(stream.item().is_some());
    assert_eq!(server.get("/v1/groups?topic=t").json()["groups"], json!(["view"]));
    drop(stream);
    wait_until("the group is deleted", || server.get("/v1/groups?topic=t").json()["groups"] == json!([]));
}
