//! Requests that the idempotency store refuses.

use serde_json::{Value, json};

use super::support::{identity, scopes};
use crate::harness::Server;
use crate::requests::{ReplyExt, in_ms, with, without};

#[test]
fn invalid_requests_are_refused_without_effect() {
    let server = Server::start();
    server.create("t", 1);
    let of = identity(&scopes()[1], "k");
    let token = server.begin_granted(&of, json!({ "request_hash": "h" }));
    let before = server.effect_state(&of);
    let begin = with(of.clone(), json!({ "owner": "w" }));
    let finish = with(of.clone(), json!({ "lease_token": token, "status": "SUCCEEDED" }));
    let reacquire = begin.clone();
    let renew = with(of.clone(), json!({ "lease_token": token }));
    let long = "k".repeat(256);

    let invalid_scopes = [
        json!({}),
        json!({ "kind": "queue" }),
        json!({ "kind": "produce", "topic": "t" }),
        json!({ "kind": "" }),
        json!({ "kind": 1 }),
        json!({ "kind": null }),
        json!({ "kind": "tenant", "id": "1" }),
        json!({ "kind": "tenant", "topic": "t" }),
        json!({ "kind": "tenant", "unknown": "t" }),
        json!({ "kind": "job" }),
        json!({ "kind": "job", "id": "" }),
        json!({ "kind": "job", "id": long }),
        json!({ "kind": "job", "id": 7 }),
        json!({ "kind": "task", "id": "1", "method": "m" }),
        json!({ "kind": "rpc", "principal": "p" }),
        json!({ "kind": "rpc", "method": "m" }),
        json!({ "kind": "rpc", "principal": "p", "method": "" }),
        json!({ "kind": "rpc", "principal": long, "method": "m" }),
        json!({ "kind": "consume", "topic": "t" }),
        json!({ "kind": "consume", "group": "g" }),
        json!({ "kind": "consume", "topic": "a\u{7}b", "group": "g" }),
        json!({ "kind": "consume", "topic": "t", "group": ".." }),
        json!({ "kind": "consume", "topic": "t", "group": "g", "id": "1" }),
        json!(["tenant"]),
        json!("tenant"),
        Value::Null,
    ];
    let mut invalid: Vec<(&str, Value)> = Vec::new();
    for (path, valid) in [("begin", &begin), ("finish", &finish), ("reacquire", &reacquire), ("renew", &renew)] {
        for scope in &invalid_scopes {
            invalid.push((path, with(valid.clone(), json!({ "scope": scope }))));
        }
        for more in [
            json!({ "key": long }),
            json!({ "key": 1 }),
            json!({ "key": null }),
            json!({ "tenant_id": long }),
            json!({ "tenant_id": 1 }),
            json!({ "unknown": 1 }),
            json!({ "kind": "tenant" }),
        ] {
            invalid.push((path, with(valid.clone(), more)));
        }
        invalid.push((path, without(valid.clone(), &["key"])));
        invalid.push((path, without(valid.clone(), &["scope"])));
        invalid.push((path, json!([])));
    }
    for (path, valid) in [("begin", &begin), ("reacquire", &reacquire), ("renew", &renew)] {
        for lease in [json!(-1), json!("1"), json!(1.5)] {
            invalid.push((path, with(valid.clone(), json!({ "lease_ms": lease }))));
        }
    }
    for (path, valid) in [("begin", &begin), ("reacquire", &reacquire)] {
        invalid.push((path, without(valid.clone(), &["owner"])));
        invalid.push((path, with(valid.clone(), json!({ "owner": "" }))));
        invalid.push((path, with(valid.clone(), json!({ "owner": "a\u{7}b" }))));
    }
    for (path, valid) in [("finish", &finish), ("renew", &renew)] {
        invalid.push((path, without(valid.clone(), &["lease_token"])));
        invalid.push((path, with(valid.clone(), json!({ "lease_token": 1 }))));
    }
    for more in [
        json!({ "ttl_ms": 0 }),
        json!({ "ttl_ms": -1 }),
        json!({ "ttl_ms": "1" }),
        json!({ "ttl_ms": 1000, "expires_at": in_ms(60_000) }),
        json!({ "expires_at": in_ms(-1_000) }),
        json!({ "expires_at": "1969-01-01T00:00:00Z" }),
        json!({ "expires_at": "tomorrow" }),
        json!({ "expires_at": "" }),
        json!({ "expires_at": 7257254400500_u64 }),
        json!({ "on_expired": "wait" }),
        json!({ "on_expired": "" }),
        json!({ "on_expired": true }),
        json!({ "request_hash": long }),
        json!({ "request_hash": 1 }),
        json!({ "delivery": {} }),
        json!({ "delivery": [0, 0, "x"] }),
        json!({ "delivery": { "partition": 0, "offset": 0 } }),
        json!({ "delivery": { "partition": 0, "lease_token": "x" } }),
        json!({ "delivery": { "offset": 0, "lease_token": "x" } }),
        json!({ "delivery": { "partition": -1, "offset": 0, "lease_token": "x" } }),
        json!({ "delivery": { "partition": 0, "offset": 0, "lease_token": "x", "topic": "t" } }),
        json!({ "delivery": { "partition": 0, "offset": 0, "lease_token": "x" } }),
    ] {
        invalid.push(("begin", with(begin.clone(), more)));
    }
    for more in [
        json!({ "status": null }),
        json!({ "status": "" }),
        json!({ "status": "IN_PROGRESS" }),
        json!({ "status": "COMMITTED" }),
        json!({ "status": "succeeded" }),
        json!({ "status": 1 }),
        json!({ "response_code": "200" }),
        json!({ "response_code": 1.5 }),
        json!({ "last_error": 1 }),
        json!({ "last_error": "e".repeat(4_097) }),
        json!({ "owner": "w" }),
    ] {
        invalid.push(("finish", with(finish.clone(), more)));
    }
    let mut connection = server.connect();
    let mut post = |path: &str, body: &str| connection.call("POST", &format!("/v1/idempotency/{path}"), &[], body);
    for (path, body) in &invalid {
        let reply = post(path, &body.to_string());
        println!("{path} {body}");
        reply.refused(400, "INVALID_ARGUMENT");
    }
    for path in ["begin", "finish", "reacquire", "renew"] {
        let valid = with(begin.clone(), json!({})).to_string();
        let twice = valid.replacen('{', "{\"key\":\"k\",", 1);
        for text in [
            "",
            " ",
            "x",
            "null",
            "{",
            &format!("{valid}x"),
            &format!("{valid}{valid}"),
            &twice,
            "{\"scope\":{\"kind\":\"tenant\",\"kind\":\"tenant\"}}",
        ] {
            post(path, text).refused(400, "INVALID_ARGUMENT");
        }
    }
    let text = finish.to_string();
    for result in ["{", "[1,]", "nul", "\"", "01", "\u{1}"] {
        let broken = format!("{},\"result\":{result}}}", text.strip_suffix('}').expect("an object"));
        post("finish", &broken).refused(400, "INVALID_ARGUMENT");
    }
    let large = with(finish.clone(), json!({ "result": "r".repeat(65_535) }));
    post("finish", &large.to_string()).refused(413, "PAYLOAD_TOO_LARGE");
    for (path, valid) in [("finish", &finish), ("renew", &renew)] {
        let foreign = with(valid.clone(), json!({ "tenant_id": "other" }));
        let reply = post(path, &foreign.to_string());
        assert_eq!(reply.status, if path == "finish" { 404 } else { 409 }, "{reply:?}");
    }
    for missing in [
        "",
        "kind=tenant",
        "key=k",
        "kind=queue&key=k",
        "kind=tenant&key=k&id=1",
        "kind=job&key=k",
        "kind=tenant&key=k&key=k",
    ] {
        for method in ["GET", "DELETE"] {
            server.call(method, &format!("/v1/idempotency?{missing}"), &[], "").refused(400, "INVALID_ARGUMENT");
        }
    }
    for path in ["begin", "finish", "reacquire", "renew"] {
        for method in ["GET", "PUT", "DELETE"] {
            let reply = server.call(method, &format!("/v1/idempotency/{path}"), &[], "");
            reply.refused(405, "METHOD_NOT_ALLOWED");
            assert_eq!(reply.header("allow"), Some("POST"));
        }
    }
    assert_eq!(server.post("/v1/idempotency", "{}").header("allow"), Some("GET, DELETE"));
    server.get("/v1/idempotency/begin/x").refused(404, "NOT_FOUND");
    assert_eq!(server.effect_state(&of), before);
    assert_eq!(server.metric("driftq_idempotency_records"), Some(1.0));
    // Empty parameters are ignored, so that a complete form can be sent.
    let form = "tenant_id=acme&kind=tenant&topic=&group=&id=&principal=&method=&key=k";
    assert_eq!(server.get(&format!("/v1/idempotency?{form}")).body, before.1);
    server.finish_ok(&of, &token, json!({ "result": "r".repeat(65_534) }));
}
