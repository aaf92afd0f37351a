//! `GET /v1/consume`.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Server, wait_until};
use crate::requests::{NDJSON, ReplyExt, each, millis, now, without};

#[test]
fn stream_head_is_sent_at_once_and_items_have_all_fields() {
    let server = Server::start();
    server.create("t", 1);
    let mut stream = server.consume("topic=%20t%20&group=g&owner=w&lease_ms=5000&unknown=1");
    assert_eq!(stream.head().header("content-type"), NDJSON);
    assert!(stream.is_silent_for(Duration::from_millis(100)));
    let began = now();
    server.produce("t", "one");
    server.produce_json(&json!({ "topic": "t", "key": "k", "value": "two" }));
    let line = stream.line().expect("a line");
    let item: Value = serde_json::from_str(&line).expect("JSON");
    let (produced_at, lease_until) = (millis(&item["produced_at"]), millis(&item["lease_until"]));
    assert!((began - 1..=now()).contains(&produced_at), "{item}");
    assert!((began + 4_999..=now() + 5_000).contains(&lease_until), "{item}");
    let token = item["lease_token"].as_str().expect("text").to_owned();
    assert!(!token.is_empty() && token.bytes().all(|byte| byte.is_ascii_hexdigit()), "{token}");
    let expected = json!({
        "partition": 0, "offset": 0, "attempts": 1, "key": "", "value": "one", "last_error": "", "failures": 0,
    });
    assert_eq!(without(item, &["lease_token", "lease_until", "produced_at"]), expected);
    let second = stream.item().expect("a message");
    assert_eq!((&second["offset"], &second["key"], &second["value"]), (&json!(1), &json!("k"), &json!("two")));
    let later = second["lease_token"].as_str().expect("text");
    assert!(later.len() == token.len() && later > token.as_str(), "tokens increase in string order: {token} {later}");
}

#[test]
fn consume_body_overrides_query_and_invalid_parameters_are_refused() {
    let server = Server::start();
    server.create("t", 1);
    server.produce("t", "v");
    let consume = |query: &str, body: &str| server.call("GET", &format!("/v1/consume{query}"), &[], body);
    let body = json!({
        "topic": "t", "group": "g", "owner": "w", "lease_ms": 2000, "prefetch": 1, "from": "earliest",
        "release_on_disconnect": false, "max": 1, "wait_ms": 5000,
    });
    let reply = consume("?topic=absent", &body.to_string());
    assert_eq!((reply.status, reply.header("content-type")), (200, NDJSON), "{reply:?}");
    assert_eq!(reply.body.lines().count(), 1, "{reply:?}");

    for query in [
        "",
        "?topic=t&group=g",
        "?topic=t&owner=w",
        "?group=g&owner=w",
        "?topic=t&group=g&owner=",
        "?topic=t&group=..&owner=w",
        "?topic=t&group=a%07b&owner=w",
        "?topic=t&group=g&owner=w&lease_ms=-1",
        "?topic=t&group=g&owner=w&lease_ms=x",
        "?topic=t&group=g&owner=w&wait_ms=-1",
        "?topic=t&group=g&owner=w&prefetch=-1",
        "?topic=t&group=g&owner=w&max=x",
        "?topic=t&group=g&owner=w&from=middle",
        "?topic=t&group=g&owner=w&release_on_disconnect=maybe",
    ] {
        let reply = consume(query, "");
        assert_eq!(reply.status, 400, "{query}: {reply:?}");
        reply.refused(400, "INVALID_ARGUMENT");
    }
    let name = "n".repeat(256);
    consume(&format!("?topic=t&group={name}&owner=w"), "").refused(400, "INVALID_ARGUMENT");
    consume(&format!("?topic=t&group=g&owner={name}"), "").refused(400, "INVALID_ARGUMENT");
    for body in [
        "{\"topic\":\"t\",\"group\":\"g\",\"owner\":\"w\",\"lease_ms\":-1}",
        "{\"topic\":\"t\",\"group\":\"g\",\"owner\":\"w\",\"lease\":1}",
        "{\"topic\":\"t\",\"group\":\"g\",\"owner\":\"w\",\"lease_ms\":\"1\"}",
        "{\"topic\":\"t\",\"group\":\"g\",\"group\":\"g\",\"owner\":\"w\"}",
        "[\"t\",\"g\",\"w\",null,null,null,null,null,null]",
        "{\"topic\":\"t\",\"group\":\"g\",\"owner\":\"w\"}x",
    ] {
        consume("", body).refused(400, "INVALID_ARGUMENT");
    }
    assert!(consume("?topic=absent&group=g&owner=w", "").refused(404, "NOT_FOUND").contains("absent"));
    assert_eq!(server.get("/v1/groups?topic=t").json()["groups"], json!(["g"]), "a refused stream creates no group");
}

#[test]
fn stream_ends_after_max_messages_or_wait_ms() {
    let server = Server::start();
    server.create("t", 1);
    for value in ["0", "1", "2", "3"] {
        server.produce("t", value);
    }
    let items = server.consume("topic=t&group=g&owner=w&lease_ms=60000&max=3").items();
    assert_eq!(each(&items, "value"), ["0", "1", "2"]);
    let began = Instant::now();
    let mut stream = server.consume("topic=t&group=g&owner=w&lease_ms=60000&wait_ms=300");
    assert_eq!(stream.item().expect("the fourth")["value"], "3");
    assert_eq!(stream.item(), None);
    assert!((300..5_000).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
    // Without waiting, ready messages are still delivered.
    server.produce("t", "4");
    for _ in 0..20 {
        let mut stream = server.consume("topic=t&group=g&owner=w&lease_ms=60000&wait_ms=0");
        let item = stream.item().expect("the fifth");
        assert_eq!((&item["value"], stream.item()), (&json!("4"), None));
        server.settle_ok("release", "t", &item, json!({}));
    }
    // The connection can be reused: the end of a stream is the end of a response body.
    assert_eq!(stream.into_connection().call("GET", "/v1/healthz", &[], "").status, 200);
    assert_eq!(
        server.topic("t")["groups"][0]["partitions"][0]["in_flight"],
        4,
        "no more was leased than was delivered"
    );
}

#[test]
fn prefetch_limits_live_leases_and_settling_returns_credit() {
    let server = Server::start();
    server.create("t", 1);
    for value in 0..6 {
        server.produce("t", &value.to_string());
    }
    let mut stream = server.consume("topic=t&group=g&owner=w&lease_ms=60000&prefetch=2");
    let (first, second) = (stream.item().expect("a message"), stream.item().expect("a message"));
    assert_eq!((&first["value"], &second["value"]), (&json!("0"), &json!("1")));
    assert!(stream.is_silent_for(Duration::from_millis(150)));
    let progress = || server.topic("t")["groups"][0]["partitions"][0].clone();
    assert_eq!(progress()["blocked"], "every consumer holds as many leases as its prefetch allows");
    server.settle_ok("ack", "t", &second, json!({}));
    let third = stream.item().expect("credit of the ack");
    assert_eq!(third["value"], "2");
    server.settle_ok("nack", "t", &first, json!({ "delay_ms": 60_000 }));
    assert_eq!(stream.item().expect("credit of the nack")["value"], "3");
    server.settle_ok("release", "t", &third, json!({}));
    assert_eq!(stream.item().expect("credit of the release")["value"], "2");
    assert!(stream.is_silent_for(Duration::from_millis(100)));
    assert_eq!(progress()["in_flight"], 2);
}

#[test]
fn new_group_starts_at_earliest_or_latest() {
    let server = Server::start();
    server.create("t", 1);
    server.produce("t", "old");
    let mut earliest = server.consume("topic=t&group=earliest&owner=w&lease_ms=60000&from=earliest");
    let mut latest = server.consume("topic=t&group=latest&owner=w&from=latest");
    let mut by_default = server.consume("topic=t&group=default&owner=w");
    server.produce("t", "new");
    assert_eq!(latest.item().expect("a message")["value"], "new");
    for stream in [&mut earliest, &mut by_default] {
        assert_eq!(stream.item().expect("a message")["value"], "old");
        assert_eq!(stream.item().expect("a message")["value"], "new");
    }
    // `from` applies to new groups only.
    server.produce("t", "newer");
    let newer = earliest.item().expect("a message");
    drop(earliest);
    let mut again = server.consume("topic=t&group=earliest&owner=w2&from=latest");
    server.settle_ok("release", "t", &newer, json!({ "group": "earliest" }));
    assert_eq!(again.item().expect("redelivered")["value"], "newer");
}

#[test]
fn lease_outlives_stream_unless_release_on_disconnect() {
    let server = Server::start();
    server.create("t", 1);
    server.produce("t", "v");
    let consumers = || server.topic("t")["groups"][0]["consumers"].clone();
    let mut stream = server.consume("topic=t&group=g&owner=w&lease_ms=60000");
    let item = stream.item().expect("a message");
    drop(stream);
    wait_until("the stream is closed", || consumers() == 0);
    let progress = server.topic("t")["groups"][0]["partitions"][0].clone();
    assert_eq!((&progress["in_flight"], &progress["lag"]), (&json!(1), &json!(1)));
    assert!(server.fetch("t", "g").is_empty());
    server.settle_ok("release", "t", &item, json!({ "lease_token": item["lease_token"] }));

    let mut stream = server.consume("topic=t&group=g&owner=w&lease_ms=60000&release_on_disconnect=true");
    assert_eq!(stream.item().expect("a message")["attempts"], 2);
    drop(stream);
    let again = server.next("t");
    assert_eq!((&again["attempts"], &again["failures"], &again["last_error"]), (&json!(3), &json!(0), &json!("")));

    // A stream that ended after `max` messages was not disconnected.
    server.settle_ok("release", "t", &again, json!({ "lease_token": again["lease_token"] }));
    let query = "topic=t&group=g&owner=w&lease_ms=60000&release_on_disconnect=true&max=1";
    let mut stream = server.consume(query);
    let item = stream.item().expect("a message");
    assert_eq!(stream.item(), None);
    wait_until("the stream is closed", || consumers() == 0);
    assert!(server.fetch("t", "g").is_empty());
    server.settle_ok("ack", "t", &item, json!({ "lease_token": item["lease_token"] }));
}

#[test]
fn idle_stream_sends_blank_lines_as_keep_alive() {
    let server = Server::configured("[http]\nstream_keep_alive_ms = 100\n", &[]);
    server.create("t", 1);
    let began = Instant::now();
    let mut stream = server.consume("topic=t&group=g&owner=w");
    for _ in 0..3 {
        assert_eq!(stream.line().as_deref(), Some(""));
    }
    assert!((300..5_000).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
    server.produce("t", "v");
    assert_eq!(stream.item().expect("a message")["value"], "v");
    assert_eq!(stream.line().as_deref(), Some(""));
    // Blank lines are not messages: wait_ms ends the stream.
    let mut stream = server.consume("topic=t&group=g&owner=w&wait_ms=250");
    let lines: Vec<String> = std::iter::from_fn(|| stream.line()).collect();
    assert!(lines.len() <= 2 && lines.iter().all(String::is_empty), "{lines:?}");
}

#[test]
fn expired_lease_redelivers_message() {
    let server = Server::start();
    server.create("t", 1);
    server.produce("t", "v");
    let mut stream = server.consume("topic=t&group=g&owner=w&lease_ms=300");
    let (first, second) = (stream.item().expect("a message"), stream.item().expect("again"));
    assert_eq!((&first["attempts"], &second["attempts"]), (&json!(1), &json!(2)));
    assert_eq!((&second["failures"], &second["last_error"]), (&json!(1), &json!("ack_timeout")));
    assert_eq!((&first["offset"], &first["produced_at"]), (&second["offset"], &second["produced_at"]));
    assert!(second["lease_token"].as_str() > first["lease_token"].as_str());
    // At the expiry and not at a polling tick. A busy machine may be late sometimes, but not always.
    let mut last = second;
    let late = (0..4).map(|_| {
        let item = stream.item().expect("again");
        let late = now() - millis(&last["lease_until"]);
        last = item;
        late
    });
    let late: Vec<i64> = late.collect();
    assert!(late.iter().all(|late| *late >= 0) && late.iter().any(|late| *late < 100), "late by ms: {late:?}");
    assert!(server.metric("driftq_messages_expired_total") >= Some(5.0));
}

/// The lease of a delivery that was requested with this query.
fn lease_of(server: &Server, topic: &str, query: &str) -> std::ops::RangeInclusive<i64> {
    server.create(topic, 1);
    server.produce(topic, "v");
    let began = now();
    let item = server.consume(&format!("topic={topic}&group=g&owner=w{query}")).item().expect("a message");
    let lease_until = millis(&item["lease_until"]);
    lease_until - now() - 10..=lease_until - began + 10
}

#[test]
fn lease_has_default_and_is_held_between_limits() {
    let server = Server::configured("[limits]\nlease_min_ms = 100\nlease_max_ms = 40000\n", &[]);
    for (topic, query, lease) in [
        ("zero", "&lease_ms=0", 30_000),
        ("none", "", 30_000),
        ("short", "&lease_ms=1", 100),
        ("long", "&lease_ms=40001", 40_000),
        ("huge", "&lease_ms=9223372036854775807", 40_000),
    ] {
        let seen = lease_of(&server, topic, query);
        assert!(seen.contains(&lease), "{query}: {seen:?}");
    }
    let spec = Server::with(&["--profile", "spec"]);
    assert!(lease_of(&spec, "none", "").contains(&2_000));
}

#[test]
fn consumers_of_a_group_take_turns_and_every_group_gets_all_messages() {
    let server = Server::start();
    server.create("t", 1);
    let mut streams =
        ["a", "b", "c"].map(|owner| server.consume(&format!("topic=t&group=g&owner={owner}&lease_ms=60000")));
    let mut other = server.consume("topic=t&group=other&owner=a&lease_ms=60000");
    for value in 0..6 {
        server.produce("t", &value.to_string());
    }
    let taken: Vec<Vec<u64>> = streams
        .iter_mut()
        .map(|stream| (0..2).map(|_| stream.item().expect("its turn")["offset"].as_u64().expect("a number")).collect())
        .collect();
    assert!(streams.iter_mut().all(|stream| stream.is_silent_for(Duration::from_millis(30))));
    for turns in &taken {
        assert_eq!(turns[1] - turns[0], 3, "each in turn: {taken:?}");
    }
    let all: Vec<_> = (0..6).map(|_| other.item().expect("a message")["offset"].as_u64().expect("a number")).collect();
    assert_eq!(all, [0, 1, 2, 3, 4, 5]);
}

#[test]
fn in_flight_limit_is_per_partition() {
    let server = Server::with(&["--profile", "spec", "--max-partition-msgs", "10", "--max-partition-bytes", "1000"]);
    server.create("t", 2);
    for value in 0..3 {
        server.produce("t", &value.to_string());
    }
    server.produce_json(&json!({ "topic": "t", "value": "other", "envelope": { "partition_override": 1 } }));
    let mut stream = server.consume("topic=t&group=g&owner=w&lease_ms=60000&prefetch=100");
    let items: Vec<Value> = (0..3).map(|_| stream.item().expect("a message")).collect();
    assert_eq!(items.iter().filter(|item| item["partition"] == 0).count(), 2, "two per partition: {items:?}");
    assert!(stream.is_silent_for(Duration::from_millis(100)));
    let blocked = server.topic("t")["groups"][0]["partitions"].clone();
    assert_eq!(
        (&blocked[0]["blocked"], &blocked[1]["blocked"]),
        (&json!("the in-flight limit is reached"), &Value::Null)
    );
    let first = items.iter().find(|item| item["partition"] == 0).expect("one of partition 0");
    server.settle_ok("ack", "t", first, json!({}));
    assert_eq!(stream.item().expect("the next")["value"], "2");
}
