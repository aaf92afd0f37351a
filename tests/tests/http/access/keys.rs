//! Keys from their creation to their revocation, and what is audited of it.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::support::{Keyed, VERBS, new_key};
use crate::harness::{Server, wait_until};

#[test]
fn broker_is_open_until_there_is_a_key() {
    let server = Server::start();
    assert_eq!(server.get("/v1/keys").json(), json!({ "keys": [], "next": null }));
    server.create("t", 1);
    assert_eq!(server.call("GET", "/v1/topics", &[("Authorization", "Basic YTpi")], "").status, 200);
    assert_eq!(server.call("GET", "/v1/topics", &[("Authorization", "Bearer x")], "").status, 401);
    let broker = Keyed::on(server);
    let refused = broker.server.get("/v1/topics");
    assert_eq!((refused.status, refused.header("www-authenticate")), (401, Some("Bearer")));
    assert_eq!(refused.json()["error"], "UNAUTHENTICATED");
    assert_eq!(broker.admin("GET", "/v1/topics", &Value::Null).json(), json!({ "topics": ["t"] }));
    for open in ["/v1/healthz", "/v1/readyz"] {
        assert_eq!(broker.server.get(open).status, 200);
    }
    // The key survives a crash, and the broker does not forget that it needs one.
    let admin = broker.admin;
    let broker = Keyed { server: broker.server.crash_and_restart(), admin };
    assert_eq!(broker.server.get("/v1/topics").status, 401);
    broker.admin("GET", "/v1/topics", &Value::Null);
    // Without a key again, a key that is shown is still checked.
    broker.revoke(&broker.admin);
    assert_eq!(broker.call_as(&broker.admin.text, "GET", "/v1/topics", "").status, 401);
    assert_eq!(broker.server.get("/v1/topics").status, 200);
}

#[test]
fn key_is_shown_once_and_listed_without_its_secret() {
    let broker = Keyed::start();
    let expires_at = "2100-01-02T03:04:05.000Z";
    let body = json!({
        "name": " workers ", "expires_at": expires_at,
        "grants": [{ "verbs": ["consume", "produce"], "topics": "orders*" }, { "verbs": ["effects"], "topics": "*" }],
    });
    let created = broker.admin("POST", "/v1/keys", &body).json();
    assert_eq!((&created["name"], &created["tenant"]), (&json!("workers"), &json!("default")));
    let key = created["key"].as_str().expect("a text");
    let id = created["id"].as_str().expect("a text");
    assert!(key.len() == 59 && key.starts_with(&format!("dq_{id}_")), "{key}");
    let page = broker.admin("GET", "/v1/keys?limit=1", &Value::Null).json();
    let next = page["next"].as_str().expect("there is another page");
    let rest = broker.admin("GET", &format!("/v1/keys?after={next}"), &Value::Null).json();
    assert_eq!(rest["next"], Value::Null);
    let listed: Vec<_> =
        [&page, &rest].iter().flat_map(|page| page["keys"].as_array().expect("keys").clone()).collect();
    assert_eq!(listed.len(), 2);
    let listed = listed.into_iter().find(|key| key["id"] == id).expect("it is listed");
    let mut expected = created.clone();
    expected.as_object_mut().expect("an object").remove("key");
    assert_eq!(listed, expected);
    assert_eq!(listed["grants"][0], json!({ "verbs": ["produce", "consume"], "topics": "orders*" }));
    assert_eq!(listed["expires_at"], expires_at);
    // By query, by body and by path.
    for (target, body) in [(format!("/v1/keys?id={id}"), Value::Null), ("/v1/keys".to_owned(), json!({ "id": id }))] {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let status = broker.call_as(&broker.admin.text, "DELETE", &target, &body).status;
        assert_eq!(status, if body.is_empty() { 204 } else { 404 }, "{target}");
    }
    assert_eq!(broker.call_as(key, "POST", "/v1/produce", "{}").status, 401);
}

#[test]
fn invalid_keys_and_bindings_are_refused() {
    let broker = Keyed::start();
    let grants = json!([{ "verbs": ["produce"], "topics": "*" }]);
    for body in [
        json!({ "grants": grants }),
        json!({ "name": "n" }),
        json!({ "name": "n", "grants": [] }),
        json!({ "name": "n", "grants": [{ "verbs": [], "topics": "*" }] }),
        json!({ "name": "n", "grants": [{ "verbs": ["write"], "topics": "*" }] }),
        json!({ "name": "n", "grants": [{ "verbs": ["produce"], "topics": "" }] }),
        json!({ "name": "n", "grants": [{ "verbs": ["produce"] }] }),
        json!({ "name": "n", "grants": [[["produce"], "*"]] }),
        json!({ "name": "n", "grants": vec![&grants[0]; 65] }),
        json!({ "name": "", "grants": grants }),
        json!({ "name": "a\nb", "grants": grants }),
        json!({ "name": "n", "grants": grants, "expires_in_ms": 0 }),
        json!({ "name": "n", "grants": grants, "expires_at": "2001-01-01T00:00:00Z" }),
        json!({ "name": "n", "grants": grants, "expires_in_ms": 1, "expires_at": "2100-01-01T00:00:00Z" }),
        json!({ "name": "n", "grants": grants, "digest": "x" }),
    ] {
        let reply = broker.call_as(&broker.admin.text, "POST", "/v1/keys", &body.to_string());
        assert_eq!(reply.status, 400, "{body}: {reply:?}");
    }
    let unknown = json!({ "name": "n", "grants": grants, "tenant": "absent" }).to_string();
    assert_eq!(broker.call_as(&broker.admin.text, "POST", "/v1/keys", &unknown).status, 404);
    for (body, status) in [
        (json!({ "id": "x", "certificate_san": "a.test" }), 400),
        (json!({ "id": broker.admin.id }), 400),
        (json!({ "id": broker.admin.id, "certificate_san": "" }), 400),
        (json!({ "id": "0123456789ab", "certificate_san": "a.test" }), 404),
    ] {
        let reply = broker.call_as(&broker.admin.text, "POST", "/v1/keys/bind", &body.to_string());
        assert_eq!(reply.status, status, "{body}: {reply:?}");
    }
}

#[test]
fn grant_on_some_topics_covers_those_and_their_dead_letters() {
    let broker = Keyed::start();
    for topic in ["orders", "orders.eu", "bills"] {
        broker.topic(topic);
    }
    let key = broker.key("orders*", &["produce", "consume", "inspect"]).text;
    let produce = |topic: &str, envelope: Value| {
        let body = json!({ "topic": topic, "value": "v", "envelope": envelope }).to_string();
        broker.call_as(&key, "POST", "/v1/produce", &body).status
    };
    assert_eq!((produce("orders", json!({})), produce("orders.eu", json!({}))), (200, 200));
    // Whether it exists or not, and wherever the message would end up.
    assert_eq!((produce("bills", json!({})), produce("absent", json!({}))), (403, 403));
    assert_eq!(produce("orders", json!({ "target_topic": "bills" })), 403);
    assert_eq!(broker.call_as(&key, "GET", "/v1/topics", "").json(), json!({ "topics": ["orders", "orders.eu"] }));
    assert_eq!(broker.call_as(&key, "GET", "/v1/topics/bills", "").status, 403);
    // The lines of a batch stand alone.
    let lines = r#"{"topic":"orders","value":"v"}
        {"topic":"bills","value":"v"}
        {"topic":"orders.eu","value":"v"}"#;
    let headers = [("Authorization", &*format!("Bearer {key}")), ("Content-Type", "application/x-ndjson")];
    let reply = broker.server.call("POST", "/v1/produce", &headers, lines);
    let status = |line| serde_json::from_str::<Value>(line).expect("JSON")["status"].clone();
    let statuses: Vec<_> = reply.body.lines().map(status).collect();
    assert_eq!(statuses, [json!(200), json!(403), json!(200)]);
    // A batch of a verb that the key has not is refused as a whole.
    let operator = format!("Bearer {}", broker.key("*", &["operate"]).text);
    let headers = [("Authorization", &*operator), ("Content-Type", "application/x-ndjson")];
    assert_eq!(broker.server.call("POST", "/v1/produce", &headers, lines).status, 403);
}

#[test]
fn stream_ends_within_a_second_of_its_keys_end() {
    for broker in [Keyed::start(), Keyed::with_reactors()] {
        broker.topic("t");
        let revoked = broker.key("t", &["consume"]);
        let open = |key: &str| {
            let mut connection = broker.server.connect_raw();
            let request = format!(
                "GET /v1/consume?topic=t&group=g&owner=o HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n\r\n"
            );
            connection.send(request.as_bytes());
            assert_eq!(connection.head().status, 200);
            connection
        };
        let (mut stream, mut other) = (open(&revoked.text), open(&broker.admin.text));
        let began = Instant::now();
        broker.revoke(&revoked);
        assert_eq!(stream.item(), None);
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
        let expires = broker.key_with("t", &["consume"], &json!({ "expires_in_ms": 5_000 }));
        let mut stream = open(&expires.text);
        let began = Instant::now();
        assert_eq!(stream.item(), None);
        assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
        broker.admin("POST", "/v1/produce", &json!({ "topic": "t", "value": "v" }));
        assert_eq!(other.item().expect("the other key's stream goes on")["value"], "v");
    }
}

#[test]
fn operators_and_administrators_leave_a_trace_others_do_not() {
    let broker = Keyed::start();
    broker.topic("my topic");
    let produce = broker.key("*", &["produce"]);
    let refused = broker.call_as(&produce.text, "DELETE", "/v1/topics/my%20topic", "");
    assert_eq!(refused.status, 403);
    assert_eq!(broker.call_as(&produce.text, "POST", "/v1/produce", r#"{"topic":"my topic","value":"v"}"#).status, 200);
    broker.admin("POST", "/v1/groups", &json!({ "topic": "my topic", "group": "g\"x" }));
    let page = broker.admin("GET", "/v1/audit?limit=3", &Value::Null).json();
    let entries = page["entries"].as_array().expect("entries");
    let seen: Vec<_> = entries.iter().map(|entry| [&entry["who"], &entry["action"], &entry["result"]]).collect();
    assert_eq!(
        json!(seen),
        json!([
            [broker.admin.id, "create_group", "ok"],
            [produce.id, "delete_topic", "permission_denied"],
            [broker.admin.id, "create_key", "ok"],
        ])
    );
    assert_eq!((&entries[0]["topic"], &entries[0]["group"]), (&json!("my topic"), &json!("g\"x")));
    assert_eq!((&entries[0]["from"], &entries[0]["tenant"]), (&json!("127.0.0.1"), &json!("default")));
    assert_eq!(entries[2]["key"], produce.id);
    let older = broker.admin("GET", &format!("/v1/audit?before={}", page["next"]), &Value::Null).json();
    let actions: Vec<_> = older["entries"].as_array().expect("entries").iter().map(|entry| &entry["action"]).collect();
    assert_eq!(json!(actions), json!(["create_topic", "create_key"]));
    assert_eq!(older["next"], Value::Null);
    let log = broker.server.log();
    let line = log.lines().find(|line| line.contains("delete_topic")).unwrap_or_else(|| panic!("{log}"));
    for part in [&*produce.id, "127.0.0.1", "topic \\\"my topic\\\"", "permission_denied"] {
        assert!(line.contains(part) || line.contains(&part.replace('\\', "")), "{part}: {line}");
    }
    assert!(log.lines().any(|line| line.contains("create_group")), "{log}");
    assert!(!log.contains("produce "), "what is no administration is not in the log: {log}");
}

#[test]
fn refusals_that_are_audited_are_bounded_for_each_key() {
    let broker = Keyed::start();
    let key = broker.key("*", &["produce"]);
    let delete = |key: &str| broker.call_as(key, "DELETE", "/v1/topics/t", "");
    let statuses: Vec<_> = (0..60).map(|_| delete(&key.text).status).collect();
    assert_eq!((statuses[0], statuses[20]), (403, 403), "{statuses:?}");
    assert!(statuses.contains(&429), "{statuses:?}");
    let bounded = delete(&key.text);
    if bounded.status == 429 {
        assert_eq!(bounded.json()["reason"], "refusals");
        assert!(bounded.header("retry-after").is_some(), "{bounded:?}");
    }
    // What it may do it still may, and others are not affected.
    broker.topic("t");
    assert_eq!(broker.call_as(&key.text, "POST", "/v1/produce", r#"{"topic":"t","value":"v"}"#).status, 200);
    assert_eq!(delete(&broker.admin.text).status, 204);
    wait_until("it may be refused again", || delete(&key.text).status == 403);
    let body = new_key("n", "*", &VERBS).to_string();
    assert_ne!(broker.call_as(&key.text, "POST", "/v1/keys", &body).status, 201);
}
