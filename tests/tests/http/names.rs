//! Names of topics, groups and owners: any text without control characters, wherever a name is sent or shown.

use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{Server, driftqd};
use crate::requests::ReplyExt;

/// Valid names that paths, queries, JSON, metrics and text must escape.
const NAMES: [&str; 9] =
    ["orders/eu", "my topic", "user@host", "größe", "注文", "a\"b\\c", "50%2F", "../etc", "<b>&'+#?"];

/// Percent-encoded, every byte.
fn encoded(name: &str) -> String {
    name.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// A label's value in the Prometheus text format.
fn label(name: &str) -> String {
    name.replace('\\', "\\\\").replace('"', "\\\"")
}

fn next(server: &Server, name: &str) -> Value {
    let query = encoded(name);
    let query = format!("topic={query}&group={query}&owner={query}&max=1&wait_ms=8000&lease_ms=60000");
    server.consume(&query).item().expect("a message")
}

#[test]
fn any_text_is_a_name_on_every_route_and_after_a_restart() {
    let mut server = Server::start();
    for name in NAMES {
        let created = server.post_json("/v1/topics", &json!({ "name": format!(" {name}\t") }));
        assert_eq!((created.status, &created.json()["name"]), (201, &json!(name)));
        let path = format!("/v1/topics/{}", encoded(name));
        let policy = json!({ "max_attempts": 1 });
        let message = json!({ "topic": name, "value": "v", "envelope": { "retry_policy": policy } });
        assert_eq!(server.produce_json(&message)["topic"], name);
        assert_eq!(server.produce(name, "w"), (0, 1));
        let item = next(&server, name);
        let claim = json!({ "topic": name, "group": name, "owner": name, "partition": 0, "offset": item["offset"] });
        assert_eq!(server.post_json("/v1/nack", &claim).status, 204, "{name}");
        let dead = server.get(&format!("/v1/peek?topic=dlq.{}&partition=0&offset=0", encoded(name))).json();
        assert_eq!(dead["messages"][0]["envelope"]["dlq"]["original_topic"], name, "{dead}");
        assert_eq!(dead["messages"][0]["envelope"]["dlq"]["group"], name, "{dead}");
        let scope = json!({ "kind": "consume", "topic": name, "group": name });
        let begin = json!({ "scope": scope, "key": "k", "owner": name, "lease_ms": 60_000 });
        assert_eq!(server.post_json("/v1/idempotency/begin", &begin).status, 200, "{name}");
        let query = format!("kind=consume&topic={0}&group={0}&key=k", encoded(name));
        assert_eq!(server.get(&format!("/v1/idempotency?{query}")).json()["owner"], name);
        let lag = format!("consumer_lag{{topic=\"{0}\",group=\"{0}\",partition=\"0\"}}", label(name));
        assert_eq!(server.metric(&lag), Some(1.0), "{lag}");
        let described = server.get(&path).json();
        assert_eq!((&described["name"], &described["groups"][0]["group"]), (&json!(name), &json!(name)));
    }
    let mut sorted = [NAMES.map(str::to_owned), NAMES.map(|name| format!("dlq.{name}"))].concat();
    sorted.sort_unstable();
    assert_eq!(server.get("/v1/topics").json(), json!({ "topics": sorted }));
    server.terminate();
    server = server.crash_and_restart();
    assert_eq!(server.get("/v1/topics").json(), json!({ "topics": sorted }));
    for name in NAMES {
        let item = next(&server, name);
        assert_eq!(item["offset"], 1, "{name}: {item}");
        let claim = json!({ "topic": name, "group": name, "owner": name, "partition": 0, "offset": 1 });
        assert_eq!(server.post_json("/v1/ack", &claim).status, 204);
        assert_eq!(server.delete(&format!("/v1/topics/{}", encoded(name))).status, 204, "{name}");
        assert!(server.get(&format!("/v1/topics/{}", encoded(name))).refused(404, "NOT_FOUND").contains("topic"));
    }
}

#[test]
fn path_of_a_topic_is_decoded_once() {
    let server = Server::with(&["--no-wal"]);
    server.create("a/b", 1);
    server.create("a%2Fb", 2);
    assert_eq!(server.topic("a%2Fb")["name"], "a/b");
    assert_eq!(server.topic("a%252Fb")["name"], "a%2Fb");
    server.get("/v1/topics/a/b").refused(404, "NOT_FOUND");
    for path in ["/v1/topics/a%0Ab", "/v1/topics/a%7Fb", "/v1/topics/x%C2%85x", "/v1/topics/%2E"] {
        server.get(path).refused(400, "INVALID_ARGUMENT");
    }
}

#[test]
fn text_output_of_a_log_quotes_unusual_names_and_json_does_not() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut server = Server::on(dir.path(), &[]);
    server.create("my \"topic\"", 1);
    server.produce("my \"topic\"", "v");
    server.terminate();
    let inspect = |arguments: &[&str]| {
        let output = Command::new(driftqd()).args(["wal", "inspect"]).arg(dir.path()).args(arguments).output();
        let output = output.expect("driftqd runs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    assert!(inspect(&[]).contains("  \"my \\\"topic\\\"\": 1 partition"), "{}", inspect(&[]));
    assert!(inspect(&["--records"]).contains("\"my \\\"topic\\\"\"/0 produced into partition 0"));
    let history = inspect(&["--message", "my \"topic\"/0"]);
    assert!(history.starts_with("history of \"my \\\"topic\\\"/0\", from LSN"), "{history}");
    let json: Value = serde_json::from_str(&inspect(&["--message", "my \"topic\"/0", "--json"])).expect("JSON");
    assert_eq!(json["message"], "my \"topic\"/0");
}
