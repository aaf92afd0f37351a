//! Effects of deliveries: fencing, and what an ack commits.

use std::thread::sleep;

use serde_json::{Value, json};

use super::decisions::{OTHER_OUTCOME, Response, STALE};
use super::support::{EXPIRY, before_and_after_crash, identity, scopes};
use crate::harness::Server;
use crate::requests::{ReplyExt, claim, millis, now, with, without};

/// Produces a message of tenant `acme` with this key.
fn send(server: &Server, topic: &str, key: &str) {
    let envelope = json!({ "tenant_id": "acme", "idempotency_key": key });
    server.produce_json(&json!({ "topic": topic, "value": "v", "envelope": envelope }));
}

/// The identity of its effect in group `g`.
fn effect_of(topic: &str, key: &str) -> Value {
    identity(&json!({ "kind": "consume", "topic": topic, "group": "g" }), key)
}

/// The delivery field of a begin.
fn delivery(item: &Value) -> Value {
    let [partition, offset, token] = ["partition", "offset", "lease_token"].map(|name| item[name].clone());
    json!({ "delivery": { "partition": partition, "offset": offset, "lease_token": token } })
}

#[test]
fn newer_delivery_takes_over_and_older_one_is_stale() {
    let prepare = |server: &Server, topic: &str| {
        server.create(topic, 1);
        send(server, topic, "k");
        let first = server.next(topic);
        let token = server.begin_granted(&effect_of(topic, "k"), delivery(&first));
        let same = server.begin(&effect_of(topic, "k"), delivery(&first));
        Response::Wait.check(&same, now());
        server.settle_ok("release", topic, &first, json!({}));
        (first, server.next(topic), token)
    };
    before_and_after_crash("", prepare, |server, topic, (first, second, token)| {
        let of = effect_of(topic, "k");
        let before = server.effect_state(&of);
        assert_eq!(server.begin(&of, delivery(&first)).refused(409, "FAILED_PRECONDITION"), "stale lease");
        Response::Wait.check(&server.begin(&of, json!({})), now());
        for wrong in ["x", "0000000100000000ffffffff"] {
            let wrong = with(second.clone(), json!({ "lease_token": wrong }));
            assert_eq!(server.begin(&of, delivery(&wrong)).refused(409, "FAILED_PRECONDITION"), "stale lease");
        }
        assert_eq!(server.effect_state(&of), before);
        let sent_at = now();
        let taken_over = server.begin(&of, delivery(&second));
        Response::Execute(2).check(&taken_over, sent_at);
        STALE.check(&server.finish(&of, &token, json!({})), now());
        let token = taken_over.json()["lease_token"].as_str().expect("a token").to_owned();
        server.finish_ok(&of, &token, json!({ "result": 1 }));
        assert_eq!(server.begin(&of, delivery(&second)).json()["result"], 1, "a finished effect is replayed");
        // A finish is not an ack.
        assert_eq!(server.topic(topic)["groups"][0]["partitions"][0]["lag"], 1);
    });
}

#[test]
fn delivery_must_match_topic_group_and_tenant() {
    let prepare = |server: &Server, topic: &str| {
        server.create(topic, 1);
        send(server, topic, "k");
        server.next(topic)
    };
    before_and_after_crash("", prepare, |server, topic, item| {
        let foreign = with(effect_of(topic, "k"), json!({ "tenant_id": "other" }));
        let message = server.begin(&foreign, delivery(&item)).refused(400, "INVALID_ARGUMENT");
        assert_eq!(message, "the delivered message is of another tenant");
        server.begin(&without(effect_of(topic, "k"), &["tenant_id"]), delivery(&item)).refused(400, "INVALID_ARGUMENT");
        for scope in scopes().into_iter().filter(|scope| scope["kind"] != "consume") {
            server.begin(&identity(&scope, "k"), delivery(&item)).refused(400, "INVALID_ARGUMENT");
        }
        let scope =
            |topic: &str, group: &str| identity(&json!({ "kind": "consume", "topic": topic, "group": group }), "k");
        server.begin(&scope("absent", "g"), delivery(&item)).refused(404, "NOT_FOUND");
        server.begin(&scope(topic, "absent"), delivery(&item)).refused(404, "NOT_FOUND");
        assert_eq!(server.metric("driftq_idempotency_records"), Some(0.0));
    });
}

/// Produced keys expire at once, so that a second message with the same key can be produced.
const SHORT_DEDUPE: &str = "[limits]\ndedupe_ttl_ms = 1\n";

#[test]
fn ack_commits_identity_as_long_as_its_produce_is_a_duplicate() {
    let prepare = |server: &Server, topic: &str| {
        server.create(topic, 1);
        send(server, topic, "k");
        let item = server.next(topic);
        server.settle_ok("ack", topic, &item, json!({}));
        item
    };
    before_and_after_crash("", prepare, |server, topic, item| {
        let of = effect_of(topic, "k");
        let shown = server.effect(&of).json();
        assert_eq!(millis(&shown["expires_at"]) - millis(&item["produced_at"]), 600_000, "10 min");
        let rest = json!({
            "status": "SUCCEEDED", "status_v1": "COMMITTED", "attempt": 0, "owner": "", "lease_until": null, "result": null,
            "response_code": 0, "last_error": "", "request_hash": null,
        });
        assert_eq!(without(shown, &["updated_at", "expires_at"]), rest);
        let replay = server.begin(&of, json!({}));
        assert_eq!((&replay.json()["decision"], &replay.json()["result"]), (&json!("REPLAY"), &Value::Null));
        assert_eq!(replay.header("idempotency-replayed"), Some("true"));
    });
}

#[test]
fn finished_identity_makes_later_message_already_done() {
    let prepare = |server: &Server, topic: &str| {
        server.create(topic, 1);
        send(server, topic, "k");
        let item = server.next(topic);
        let token = server.begin_granted(&effect_of(topic, "k"), delivery(&item));
        server.finish_ok(&effect_of(topic, "k"), &token, json!({ "result": "done" }));
        server.settle_ok("ack", topic, &item, json!({}));
        sleep(EXPIRY);
    };
    before_and_after_crash(SHORT_DEDUPE, prepare, |server, topic, ()| {
        let skipped = server.metric("driftq_messages_skipped_total").expect("a metric");
        send(server, topic, "k");
        send(server, topic, "other");
        assert_eq!(server.next(topic)["offset"], 2, "the message in between is skipped");
        assert_eq!(server.metric("driftq_messages_skipped_total"), Some(skipped + 1.0));
    });
}

#[test]
fn finish_after_ack_stores_result() {
    let prepare = |server: &Server, topic: &str| {
        server.create(topic, 1);
        send(server, topic, "k");
        let item = server.next(topic);
        let token = server.begin_granted(&effect_of(topic, "k"), delivery(&item));
        server.settle_ok("ack", topic, &item, json!({}));
        token
    };
    before_and_after_crash("", prepare, |server, topic, token| {
        let of = effect_of(topic, "k");
        assert_eq!(server.begin(&of, json!({})).json()["result"], Value::Null);
        OTHER_OUTCOME.check(&server.finish(&of, &token, json!({ "status": "FAILED_FINAL" })), now());
        server.finish_ok(&of, &token, json!({ "result": { "receipt": 9 } }));
        assert_eq!(server.begin(&of, json!({})).json()["result"], json!({ "receipt": 9 }));
        server.finish_ok(&of, &token, json!({ "result": { "receipt": 9 } }));
        OTHER_OUTCOME.check(&server.finish(&of, &token, json!({ "result": 1 })), now());
        assert_eq!(server.effect(&of).json()["result"], json!({ "receipt": 9 }));
    });
}

#[test]
fn finish_without_ack_skips_nothing() {
    let prepare = |server: &Server, topic: &str| {
        server.create(topic, 1);
        send(server, topic, "k");
        let item = server.next(topic);
        let token = server.begin_granted(&effect_of(topic, "k"), delivery(&item));
        server.finish_ok(&effect_of(topic, "k"), &token, json!({ "result": "done" }));
        server.settle_ok("release", topic, &item, json!({}));
        sleep(EXPIRY);
        send(server, topic, "k");
    };
    before_and_after_crash(SHORT_DEDUPE, prepare, |server, topic, ()| {
        let items = server.fetch(topic, "g");
        assert_eq!(items.len(), 2, "both are delivered: {items:?}");
        assert_eq!(server.begin(&effect_of(topic, "k"), delivery(&items[0])).json()["result"], "done");
        let claimed = claim(topic, &items[0]);
        assert_eq!(server.post_json("/v1/ack", &claimed).status, 204);
    });
}
