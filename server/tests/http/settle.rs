//! `POST /v1/ack`, `/v1/nack`, `/v1/extend`, `/v1/release`.

use std::time::Duration;

use serde_json::{Value, json};

use crate::ask::{JSON, claim, millis, now, until, with, without};
use crate::rig::{Reply, Server};

/// The whole of a refusal for want of a right.
#[track_caller]
fn conflicts(reply: &Reply, message: &str) {
    assert_eq!((reply.status, reply.header("content-type")), (409, JSON), "{reply:?}");
    assert_eq!(reply.json(), json!({ "error": "FAILED_PRECONDITION", "message": message }));
}

#[test]
fn an_ack_finishes_a_message_however_often_it_is_said() {
    let server = Server::start();
    server.create("t", 1);
    for value in ["a", "b", "c"] {
        server.produce("t", value);
    }
    let items = server.fetch("t", "g");
    server.settled("ack", "t", &items[0], json!({}));
    server.settled("ack", "t", &items[0], json!({}));
    // Done is done, whoever says so, with whatever token.
    server.settled("ack", "t", &items[0], json!({ "owner": "stranger" }));
    server.settled("ack", "t", &items[0], json!({ "lease_token": "x" }));
    server.settled("nack", "t", &items[0], json!({ "reason": "too late" }));
    server.settled("ack", "t", &items[1], json!({ "lease_token": items[1]["lease_token"] }));
    let token = items[2]["lease_token"].as_str().expect("text");
    let query = format!("/v1/ack?topic=t&group=g&partition=0&offset=2&owner=w&lease_token={token}&unknown=1");
    let reply = server.post(&query, "");
    assert_eq!((reply.status, reply.body.as_str(), reply.header("content-type")), (204, "", None));
    let progress = server.topic("t")["groups"][0]["partitions"][0].clone();
    assert_eq!((&progress["floor"], &progress["lag"], &progress["in_flight"]), (&json!(2), &json!(0), &json!(0)));
    assert!(server.fetch("t", "g").is_empty());
}

#[test]
fn a_word_from_whoever_does_not_hold_the_newest_lease_is_refused() {
    let server = Server::start();
    server.create("t", 2);
    server.produce("t", "v");
    server.produce("t", "never delivered");
    let first = server.next("t");
    for (what, more) in
        [("ack", json!({})), ("nack", json!({})), ("release", json!({})), ("extend", json!({ "lease_ms": 1000 }))]
    {
        let say = |item: &Value, other: Value| server.settle(what, "t", item, with(more.clone(), other));
        conflicts(&say(&first, json!({ "owner": "stranger" })), "not owner");
        let token = &first["lease_token"];
        conflicts(&say(&first, json!({ "owner": "stranger", "lease_token": token })), "not owner");
        let stale = token.as_str().expect("text").replace(|digit: char| digit != '0', "f");
        for bad in ["x", stale.as_str(), "-1", "0"] {
            conflicts(&say(&first, json!({ "lease_token": bad })), "stale lease");
        }
        // Nobody owns what was never delivered, or does not exist.
        let undelivered = json!({ "partition": 0, "offset": 1 });
        conflicts(&say(&undelivered, json!({})), "not owner");
        conflicts(&say(&undelivered, json!({ "lease_token": token })), "stale lease");
        conflicts(&say(&json!({ "partition": 0, "offset": 99 }), json!({})), "not owner");
        conflicts(&say(&json!({ "partition": 1, "offset": 0 }), json!({})), "not owner");

        say(&json!({ "partition": 2, "offset": 0 }), json!({})).refused(400, "INVALID_ARGUMENT");
        assert!(say(&first, json!({ "topic": "absent" })).refused(404, "NOT_FOUND").contains("absent"));
        assert!(say(&first, json!({ "group": "absent" })).refused(404, "NOT_FOUND").contains("absent"));
        let whole = with(claim("t", &first), more.clone());
        for field in ["topic", "group", "partition", "offset", "owner"] {
            let reply = server.say(&format!("/v1/{what}"), &without(whole.clone(), &[field]));
            assert!(reply.refused(400, "INVALID_ARGUMENT").contains(field), "{reply:?}");
        }
        for (field, value) in [
            ("partition", json!(-1)),
            ("partition", json!("0")),
            ("partition", json!(0.5)),
            ("offset", json!(-1)),
            ("offset", json!("0")),
            ("owner", json!(1)),
            ("owner", json!("a b")),
            ("lease_token", json!(1)),
            ("unknown", json!(1)),
        ] {
            let reply = server.say(&format!("/v1/{what}"), &with(whole.clone(), json!({ field: value })));
            assert_eq!(reply.status, 400, "{what} {field}: {reply:?}");
            reply.refused(400, "INVALID_ARGUMENT");
        }
        let text = whole.to_string();
        let twice = text.replace("\"offset\":0", "\"offset\":0,\"offset\":0");
        for body in [twice, format!("{text}x"), format!("{text}{text}"), format!("[{text}]")] {
            server.post(&format!("/v1/{what}"), body).refused(400, "INVALID_ARGUMENT");
        }
        server
            .post(&format!("/v1/{what}?topic=t&group=g&owner=w&lease_ms=1&partition=0"), "")
            .refused(400, "INVALID_ARGUMENT");
    }
    server.post("/v1/ack", "[\"t\",\"g\",0,0,\"w\",null]").refused(400, "INVALID_ARGUMENT");
    assert_eq!(server.get("/v1/groups?topic=t").json()["groups"], json!(["g"]), "a failed ack creates nothing");
    server.settled("ack", "t", &first, json!({ "lease_token": first["lease_token"] }));
}

#[test]
fn a_nack_brings_a_message_back_with_its_reason_and_the_old_token_is_stale() {
    let server = Server::start();
    server.create("t", 1);
    server.produce("t", "v");
    let first = server.next("t");
    server.settled("nack", "t", &first, json!({ "reason": "timeout calling upstream" }));
    let second = server.next("t");
    assert_eq!((&second["attempts"], &second["failures"]), (&json!(2), &json!(1)));
    assert_eq!(second["last_error"], "timeout calling upstream");
    for what in ["ack", "nack", "release"] {
        conflicts(&server.settle(what, "t", &first, json!({ "lease_token": first["lease_token"] })), "stale lease");
    }
    // No reason leaves the last one standing.
    let query = format!(
        "/v1/nack?topic=t&group=g&partition=0&offset=0&owner=w&lease_token={}",
        second["lease_token"].as_str().expect("text")
    );
    let reply = server.post(&query, "");
    assert_eq!((reply.status, reply.body.as_str()), (204, ""));
    let third = server.next("t");
    assert_eq!((&third["attempts"], &third["last_error"]), (&json!(3), &json!("timeout calling upstream")));
    assert_eq!(
        server.post("/v1/nack?topic=t&group=g&partition=0&offset=0&owner=w&reason=b%C3%A4d+luck", "").status,
        204
    );
    let fourth = server.next("t");
    assert_eq!(fourth["last_error"], "bäd luck");

    let began = now();
    server.settled("nack", "t", &fourth, json!({ "delay_ms": 400, "reason": "" }));
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
    server.settled("nack", "t", &fifth, json!({ "reason": "e".repeat(4096) }));
    // The expiry of a lease does not overwrite a reason.
    let sixth = server.consume("topic=t&group=g&owner=w&lease_ms=200&max=1").item().expect("a message");
    assert_eq!(sixth["attempts"], 6);
    assert_eq!(server.next("t")["last_error"], "e".repeat(4096));
    assert_eq!(server.figure("messages_nacked_total"), Some(5.0));
}

#[test]
fn a_retry_policy_spaces_attempts() {
    let server = Server::start();
    server.create("t", 1);
    let policy = json!({ "backoff_ms": 200, "max_backoff_ms": 300 });
    server.produced(&json!({ "topic": "t", "value": "v", "envelope": { "retry_policy": policy } }));
    let mut stream = server.consume("topic=t&group=g&owner=w&lease_ms=60000");
    let mut item = stream.item().expect("a message");
    for (failures, delay) in [(1, 100..=200), (2, 150..=300), (3, 150..=300)] {
        let began = now();
        server.settled("nack", "t", &item, json!({}));
        let blocked = server.topic("t")["groups"][0]["partitions"][0]["blocked"].clone();
        assert_eq!(blocked, "everything left is delayed or waiting for its retry");
        item = stream.item().expect("again");
        let waited = now() - began;
        assert!((*delay.start()..delay.end() + 1_000).contains(&waited), "after failure {failures}: {waited} ms");
        assert_eq!((&item["attempts"], &item["failures"]), (&json!(failures + 1), &json!(failures)));
    }
    // A delay that comes with the nack wins over the policy.
    server.settled("ack", "t", &item, json!({}));
    let policy = json!({ "backoff_ms": 60_000 });
    server.produced(&json!({ "topic": "t", "value": "w", "envelope": { "retry_policy": policy } }));
    let item = stream.item().expect("a message");
    server.settled("nack", "t", &item, json!({ "delay_ms": 0 }));
    assert_eq!(stream.item().expect("again")["attempts"], 2);
}

#[test]
fn an_extended_lease_ends_later_and_one_that_has_ended_cannot_be_extended() {
    let server = Server::start();
    server.create("t", 1);
    server.produce("t", "v");
    let item = server.consume("topic=t&group=g&owner=w&lease_ms=400&max=1").item().expect("a message");
    let asked = now();
    let reply = server.settle("extend", "t", &item, json!({ "lease_ms": 1500, "lease_token": item["lease_token"] }));
    assert_eq!((reply.status, reply.header("content-type")), (200, JSON));
    let lease_until = millis(&reply.json()["lease_until"]);
    assert_eq!(reply.json().as_object().map(serde_json::Map::len), Some(1), "{reply:?}");
    assert!((asked + 1_490..=now() + 1_510).contains(&lease_until), "{}", lease_until - asked);
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
    assert!(millis(&reply.json()["lease_until"]) < millis(&again["lease_until"]), "a lease can be cut short as well");
    let reply = server.settle("extend", "t", &item, json!({ "owner": "w2" }));
    assert!(reply.refused(400, "INVALID_ARGUMENT").contains("lease_ms"));
    server.settle("extend", "t", &item, json!({ "owner": "w2", "lease_ms": -1 })).refused(400, "INVALID_ARGUMENT");
    let query = "/v1/extend?topic=t&group=g&partition=0&offset=0&owner=w2&lease_ms=1000";
    assert_eq!(server.post(query, "").status, 200);
}

#[test]
fn an_expired_lease_that_nobody_took_over_is_still_the_newest() {
    let server = Server::start();
    server.create("t", 1);
    for value in ["a", "b"] {
        server.produce("t", value);
    }
    let mut stream = server.consume("topic=t&group=g&owner=w&lease_ms=300&max=2");
    let items: Vec<Value> = std::iter::from_fn(|| stream.item()).collect();
    assert_eq!(items.len(), 2);
    until("both leases have ended", || server.topic("t")["groups"][0]["partitions"][0]["in_flight"] == 0);
    let token = |item: &Value| json!({ "lease_token": item["lease_token"] });
    conflicts(
        &server.settle("extend", "t", &items[0], with(token(&items[0]), json!({ "lease_ms": 1000 }))),
        "stale lease",
    );
    server.settled("ack", "t", &items[0], token(&items[0]));
    server.settled("nack", "t", &items[1], with(token(&items[1]), json!({ "reason": "the real one" })));
    let again = server.next("t");
    assert_eq!((&again["value"], &again["attempts"]), (&json!("b"), &json!(2)));
    assert_eq!((&again["failures"], &again["last_error"]), (&json!(1), &json!("the real one")), "counted once");
}

#[test]
fn a_release_gives_a_message_back_unharmed() {
    let server = Server::start();
    server.create("t", 1);
    server.produce("t", "v");
    let item = server.next("t");
    let mut stream = server.consume("topic=t&group=g&owner=w&lease_ms=60000");
    assert!(stream.is_silent_for(Duration::from_millis(50)));
    server.settled("release", "t", &item, json!({ "lease_token": item["lease_token"] }));
    let again = stream.item().expect("at once");
    assert_eq!((&again["attempts"], &again["failures"], &again["last_error"]), (&json!(2), &json!(0), &json!("")));
    conflicts(&server.settle("release", "t", &item, json!({ "lease_token": item["lease_token"] })), "stale lease");
    assert_eq!(server.post("/v1/release?topic=t&group=g&partition=0&offset=0&owner=w", "").status, 204);
}
