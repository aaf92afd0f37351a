//! `POST /v1/ack`, `/v1/nack`, `/v1/extend`, `/v1/release`.

use std::time::Duration;

use driftq_tests::http::Reply;
use serde_json::{Value, json};

use crate::harness::{Server, wait_until};
use crate::requests::{JSON, ReplyExt, claim, millis, now, with, without};

/// Asserts a 409 with this message.
#[track_caller]
fn conflicts(reply: &Reply, message: &str) {
    assert_eq!((reply.status, reply.header("content-type")), (409, JSON), "{reply:?}");
    assert_eq!(reply.json(), json!({ "error": "FAILED_PRECONDITION", "message": message }));
}

#[test]
fn repeated_ack_succeeds() {
    let server = Server::start();
    server.create("t", 1);
    for value in ["a", "b", "c"] {
        server.produce("t", value);
    }
    let items = server.fetch("t", "g");
    server.settle_ok("ack", "t", &items[0], json!({}));
    server.settle_ok("ack", "t", &items[0], json!({}));
    // A message that is acked after its only delivery accepts any owner and token.
    server.settle_ok("ack", "t", &items[0], json!({ "owner": "other" }));
    server.settle_ok("ack", "t", &items[0], json!({ "lease_token": "x" }));
    server.settle_ok("nack", "t", &items[0], json!({ "reason": "late" }));
    server.settle_ok("ack", "t", &items[1], json!({ "lease_token": items[1]["lease_token"] }));
    let token = items[2]["lease_token"].as_str().expect("text");
    let query = format!("/v1/ack?topic=t&group=g&partition=0&offset=2&owner=w&lease_token={token}&unknown=1");
    let reply = server.post(&query, "");
    assert_eq!((reply.status, reply.body.as_str(), reply.header("content-type")), (204, "", None));
    let progress = server.topic("t")["groups"][0]["partitions"][0].clone();
    assert_eq!((&progress["floor"], &progress["lag"], &progress["in_flight"]), (&json!(2), &json!(0), &json!(0)));
    assert!(server.fetch("t", "g").is_empty());
}

#[test]
fn settle_without_newest_lease_is_refused() {
    let server = Server::start();
    server.create("t", 2);
    server.produce("t", "v");
    server.produce("t", "never delivered");
    let first = server.next("t");
    for (op, more) in
        [("ack", json!({})), ("nack", json!({})), ("release", json!({})), ("extend", json!({ "lease_ms": 1000 }))]
    {
        let settle = |item: &Value, other: Value| server.settle(op, "t", item, with(more.clone(), other));
        conflicts(&settle(&first, json!({ "owner": "other" })), "not owner");
        let token = &first["lease_token"];
        conflicts(&settle(&first, json!({ "owner": "other", "lease_token": token })), "not owner");
        let stale = token.as_str().expect("text").replace(|digit: char| digit != '0', "f");
        for bad in ["x", stale.as_str(), "-1", "0"] {
            conflicts(&settle(&first, json!({ "lease_token": bad })), "stale lease");
        }
        // Messages that were not delivered or do not exist have no owner.
        let undelivered = json!({ "partition": 0, "offset": 1 });
        conflicts(&settle(&undelivered, json!({})), "not owner");
        conflicts(&settle(&undelivered, json!({ "lease_token": token })), "stale lease");
        conflicts(&settle(&json!({ "partition": 0, "offset": 99 }), json!({})), "not owner");
        conflicts(&settle(&json!({ "partition": 1, "offset": 0 }), json!({})), "not owner");

        settle(&json!({ "partition": 2, "offset": 0 }), json!({})).refused(400, "INVALID_ARGUMENT");
        assert!(settle(&first, json!({ "topic": "absent" })).refused(404, "NOT_FOUND").contains("absent"));
        assert!(settle(&first, json!({ "group": "absent" })).refused(404, "NOT_FOUND").contains("absent"));
        let complete = with(claim("t", &first), more.clone());
        for field in ["topic", "group", "partition", "offset", "owner"] {
            let reply = server.post_json(&format!("/v1/{op}"), &without(complete.clone(), &[field]));
            assert!(reply.refused(400, "INVALID_ARGUMENT").contains(field), "{reply:?}");
        }
        for (field, value) in [
            ("partition", json!(-1)),
            ("partition", json!("0")),
            ("partition", json!(0.5)),
            ("offset", json!(-1)),
            ("offset", json!("0")),
            ("owner", json!(1)),
            ("owner", json!("a\u{1}b")),
            ("lease_token", json!(1)),
            ("unknown", json!(1)),
        ] {
            let reply = server.post_json(&format!("/v1/{op}"), &with(complete.clone(), json!({ field: value })));
            assert_eq!(reply.status, 400, "{op} {field}: {reply:?}");
            reply.refused(400, "INVALID_ARGUMENT");
        }
        let text = complete.to_string();
        let twice = text.replace("\"offset\":0", "\"offset\":0,\"offset\":0");
        for body in [twice, format!("{text}x"), format!("{text}{text}"), format!("[{text}]")] {
            server.post(&format!("/v1/{op}"), body).refused(400, "INVALID_ARGUMENT");
        }
        server
            .post(&format!("/v1/{op}?topic=t&group=g&owner=w&lease_ms=1&partition=0"), "")
            .refused(400, "INVALID_ARGUMENT");
    }
    server.post("/v1/ack", "[\"t\",\"g\",0,0,\"w\",null]").refused(400, "INVALID_ARGUMENT");
    assert_eq!(server.get("/v1/groups?topic=t").json()["groups"], json!(["g"]), "a failed ack creates nothing");
    server.settle_ok("ack", "t", &first, json!({ "lease_token": first["lease_token"] }));
}

#[test]
fn nack_redelivers_with_reason_and_fences_old_token() {
    let server = Server::start();
    server.create("t", 1);
    server.produce("t", "v");
    let first = server.next("t");
    server.settle_ok("nack", "t", &first, json!({ "reason": "timeout calling upstream" }));
    let second = server.next("t");
    assert_eq!((&second["attempts"], &second["failures"]), (&json!(2), &json!(1)));
    assert_eq!(second["last_error"], "timeout calling upstream");
    for op in ["ack", "nack", "release"] {
        conflicts(&server.settle(op, "t", &first, json!({ "lease_token": first["lease_token"] })), "stale lease");
    }
    // Without a reason the last one stays.
    let query = format!(
        "/v1/nack?topic=t&group=g&partition=0&offset=0&owner=w&lease_token={}",
        second["lease_token"].as_str().expect("text")
    );
    let reply = server.post(&query, "");
    assert_eq!((reply.status, reply.body.as_str()), (204, ""));
    let third = server.next("t");
    assert_eq!((&third["attempts"], &third["last_error"]), (&json!(3), &json!("timeout calling upstream")));
    assert_eq!(
        server.post("/v1/nack?topic=t&group=g&partition=0&offset=0&owner=w&reason=b%C3%A4d+gateway", "").status,
        204
    );
    let fourth = server.next("t");
    assert_eq!(fourth["last_error"], "bäd gateway");

    let began = now();
    server.settle_ok("nack", "t", &fourth, json!({ "delay_ms": 400, "reason": "" }));
    server.produce("t", "neighbour");
    assert_eq!(server.next("t")["value"], "neighbour");
    let progress = server.topic("t")["groups"][0]["partitions"][0].clone();
    assert_eq!((&progress["waiting"], &progress["in_flight"], &progress["lag"]), (&json!(1), &json!(1), &json!(2)));
    let fifth = server.next("t");
    assert_eq!((&fifth["value"], &fifth["attempts"]), (&json!("v"), &json!(5)));
    assert!((400..5_000).contains(&(now() - began)), "{}", now() - began);
    server.settle("nack", "t", &fifth, json!({ "delay_ms": -1 })).refused(400, "INVALID_ARGUMENT");
    server.settle("nack", "t", &fifth, json!({ "reason": 1 })).refused(400, "INVALID_ARGUMENT");
    server.settle("nack", "t", &fifth, json!({ "reason": "e".repeat(4097) })).refused(400, "INVALID_ARGUMENT");
    server.settle_ok("nack", "t", &fifth, json!({ "reason": "e".repeat(4096) }));
    // An expired lease does not replace the reason.
    let sixth = server.consume("topic=t&group=g&owner=w&lease_ms=200&max=1").item().expect("a message");
    assert_eq!(sixth["attempts"], 6);
    assert_eq!(server.next("t")["last_error"], "e".repeat(4096));
    assert_eq!(server.metric("driftq_messages_nacked_total"), Some(5.0));
}

#[test]
fn retry_policy_delays_attempts() {
    let server = Server::start();
    server.create("t", 1);
    let policy = json!({ "backoff_ms": 200, "max_backoff_ms": 300 });
    server.produce_json(&json!({ "topic": "t", "value": "v", "envelope": { "retry_policy": policy } }));
    let mut stream = server.consume("topic=t&group=g&owner=w&lease_ms=60000");
    let mut item = stream.item().expect("a message");
    for (failures, delay) in [(1, 100..=200), (2, 150..=300), (3, 150..=300)] {
        let began = now();
        server.settle_ok("nack", "t", &item, json!({}));
        let blocked = server.topic("t")["groups"][0]["partitions"][0]["blocked"].clone();
        assert_eq!(blocked, "everything left is delayed or waiting for its retry");
        item = stream.item().expect("again");
        let waited = now() - began;
        assert!((*delay.start()..delay.end() + 1_000).contains(&waited), "after failure {failures}: {waited} ms");
        assert_eq!((&item["attempts"], &item["failures"]), (&json!(failures + 1), &json!(failures)));
    }
    // The delay of a nack overrides the policy.
    server.settle_ok("ack", "t", &item, json!({}));
    let policy = json!({ "backoff_ms": 60_000 });
    server.produce_json(&json!({ "topic": "t", "value": "w", "envelope": { "retry_policy": policy } }));
    let item = stream.item().expect("a message");
    server.settle_ok("nack", "t", &item, json!({ "delay_ms": 0 }));
    assert_eq!(stream.item().expect("again")["attempts"], 2);
}

#[test]
fn stale_worker_is_refused_after_the_ack_of_another_also_over_a_crash() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut server = Server::on(&dir.path().join("data"), &[]);
    server.create("t", 1);
    server.produce("t", "v");
    let first = server.consume("topic=t&group=g&owner=w&lease_ms=200&max=1").item().expect("a message");
    let second = server.next("t");
    assert_eq!(second["attempts"], 2);
    let with_token = |item: &Value| json!({ "lease_token": item["lease_token"] });
    server.settle_ok("ack", "t", &second, with_token(&second));
    for _ in 0..2 {
        for op in ["ack", "nack", "release"] {
            conflicts(&server.settle(op, "t", &first, with_token(&first)), "stale lease");
        }
        conflicts(&server.settle("ack", "t", &first, json!({ "lease_token": "x" })), "stale lease");
        server.settle_ok("ack", "t", &second, with_token(&second));
        server.settle_ok("ack", "t", &first, json!({}));
        assert_eq!(server.metric("driftq_winners_kept"), Some(1.0));
        server.kill();
        server = Server::on(&dir.path().join("data"), &[]);
    }
}

#[test]
fn delay_beyond_limit_is_refused() {
    let server = Server::configured("[limits]\ndelay_max_ms = 60000\n", &[]);
    server.create("t", 1);
    server.produce("t", "v");
    let item = server.next("t");
    let too_long = server.settle("nack", "t", &item, json!({ "delay_ms": 60_001 }));
    assert!(too_long.refused(400, "INVALID_ARGUMENT").contains("at most 60000 ms"), "{too_long:?}");
    for envelope in [json!({ "delay_ms": 60_001 }), json!({ "deliver_at": "9999-12-31T23:59:59Z" })] {
        let body = json!({ "topic": "t", "value": "later", "envelope": envelope });
        server.post_json("/v1/produce", &body).refused(400, "INVALID_ARGUMENT");
    }
    server.settle_ok("nack", "t", &item, json!({ "delay_ms": 60_000 }));
}

#[test]
fn extend_moves_expiry_and_is_refused_after_expiry() {
    let server = Server::start();
    server.create("t", 1);
    server.produce("t", "v");
    let item = server.consume("topic=t&group=g&owner=w&lease_ms=400&max=1").item().expect("a message");
    let sent = now();
    let reply = server.settle("extend", "t", &item, json!({ "lease_ms": 1000, "lease_token": item["lease_token"] }));
    assert_eq!((reply.status, reply.header("content-type")), (200, JSON));
    let lease_until = millis(&reply.json()["lease_until"]);
    assert_eq!(reply.json().as_object().map(serde_json::Map::len), Some(1), "{reply:?}");
    assert!((sent + 990..=now() + 1_010).contains(&lease_until), "{}", lease_until - sent);
    assert!(lease_until > millis(&item["lease_until"]));
    let mut stream = server.consume("topic=t&group=g&owner=w2&lease_ms=60000");
    let began = now();
    let again = stream.item().expect("again");
    assert!(
        now() >= lease_until,
        "redelivered {} ms early, {} ms after the extension",
        lease_until - now(),
        now() - began
    );
    assert_eq!((&again["attempts"], &again["last_error"]), (&json!(2), &json!("ack_timeout")));
    conflicts(&server.settle("extend", "t", &item, json!({ "lease_ms": 1500 })), "not owner");
    let reply = server.settle("extend", "t", &item, json!({ "owner": "w2", "lease_ms": 5000 }));
    assert!(millis(&reply.json()["lease_until"]) < millis(&again["lease_until"]), "a lease can be shortened as well");
    let reply = server.settle("extend", "t", &item, json!({ "owner": "w2" }));
    assert!(reply.refused(400, "INVALID_ARGUMENT").contains("lease_ms"));
    server.settle("extend", "t", &item, json!({ "owner": "w2", "lease_ms": -1 })).refused(400, "INVALID_ARGUMENT");
    let query = "/v1/extend?topic=t&group=g&partition=0&offset=0&owner=w2&lease_ms=1000";
    assert_eq!(server.post(query, "").status, 200);
}

#[test]
fn expired_lease_without_redelivery_can_be_settled() {
    let server = Server::start();
    server.create("t", 1);
    for value in ["a", "b"] {
        server.produce("t", value);
    }
    let items = server.consume("topic=t&group=g&owner=w&lease_ms=300&max=2").items();
    assert_eq!(items.len(), 2);
    wait_until("both leases have expired", || server.topic("t")["groups"][0]["partitions"][0]["in_flight"] == 0);
    let token = |item: &Value| json!({ "lease_token": item["lease_token"] });
    conflicts(
        &server.settle("extend", "t", &items[0], with(token(&items[0]), json!({ "lease_ms": 1000 }))),
        "stale lease",
    );
    server.settle_ok("ack", "t", &items[0], token(&items[0]));
    server.settle_ok("nack", "t", &items[1], with(token(&items[1]), json!({ "reason": "reported late" })));
    let again = server.next("t");
    assert_eq!((&again["value"], &again["attempts"]), (&json!("b"), &json!(2)));
    assert_eq!((&again["failures"], &again["last_error"]), (&json!(1), &json!("reported late")), "counted once");
}

#[test]
fn release_redelivers_without_failure() {
    let server = Server::start();
    server.create("t", 1);
    server.produce("t", "v");
    let item = server.next("t");
    let mut stream = server.consume("topic=t&group=g&owner=w&lease_ms=60000");
    assert!(stream.is_silent_for(Duration::from_millis(50)));
    server.settle_ok("release", "t", &item, json!({ "lease_token": item["lease_token"] }));
    let again = stream.item().expect("a redelivery");
    assert_eq!((&again["attempts"], &again["failures"], &again["last_error"]), (&json!(2), &json!(0), &json!("")));
    conflicts(&server.settle("release", "t", &item, json!({ "lease_token": item["lease_token"] })), "stale lease");
    assert_eq!(server.post("/v1/release?topic=t&group=g&partition=0&offset=0&owner=w", "").status, 204);
}
