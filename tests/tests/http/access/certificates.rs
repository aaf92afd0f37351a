//! Client certificates that stand for keys.

use rcgen::SanType;
use serde_json::json;

use super::support::{MANY_FAILURES, VERBS, new_key};
use crate::tls::support::{Authority, Identity, Requests, TlsBroker, TlsClient};

/// A certificate with these names.
fn identity(authority: &Authority, uri: &str, dns: &str) -> Identity {
    authority.issue_with("worker", |params| {
        let uri = SanType::URI(uri.try_into().expect("ASCII"));
        params.subject_alt_names = vec![SanType::DnsName(dns.try_into().expect("ASCII")), uri];
    })
}

#[test]
fn certificate_stands_for_the_key_that_is_bound_to_its_name() {
    for reactors in ["1", "2"] {
        let toml = format!("{MANY_FAILURES}[tls]\nclient_ca = CLIENT_CA\n");
        let broker = TlsBroker::with(Authority::new("root"), &toml, &["--reactors", reactors]);
        let root = broker.authority.certificate();
        let client = |identity: &Identity| TlsClient::with_identity(broker.server.addr, &root, identity);
        let worker = client(&identity(&broker.authority, "spiffe://example/worker", "worker.example"));
        let other = client(&identity(&broker.authority, "spiffe://example/other", "other.example"));
        broker.wait_until_ready(&worker);
        let ask = |client: &TlsClient, key: Option<&str>, method: &str, target: &str, body: String| {
            let mut connection = client.connect().expect("connected");
            let key = key.map_or_else(String::new, |key| format!("Authorization: Bearer {key}\r\n"));
            let head = format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n{key}");
            connection.send(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes()).expect("sent");
            connection.reply(method).expect("a reply")
        };
        let create = |key: Option<&str>, body: serde_json::Value| {
            let created = ask(&worker, key, "POST", "/v1/keys", body.to_string()).json();
            (created["id"].as_str().expect("an id").to_owned(), created["key"].as_str().expect("a key").to_owned())
        };
        let (_, admin) = create(None, new_key("admin", "*", &VERBS));
        let (id, inspect) = create(Some(&admin), new_key("worker", "*", &["inspect"]));
        let topics = |client: &TlsClient| ask(client, None, "GET", "/v1/topics", String::new()).status;
        assert_eq!((topics(&worker), topics(&other)), (401, 401));
        let bind = |san: serde_json::Value| {
            let body = json!({ "id": id, "certificate_san": san }).to_string();
            ask(&worker, Some(&admin), "POST", "/v1/keys/bind", body).status
        };
        for name in ["worker.example", "spiffe://example/worker"] {
            assert_eq!(bind(json!(name)), 204);
            assert_eq!((topics(&worker), topics(&other)), (200, 401), "{name}");
        }
        let create = ask(&worker, None, "POST", "/v1/topics", json!({ "name": "t" }).to_string());
        assert_eq!(create.status, 403, "it has the grants of the key");
        // A key that is shown counts, whatever the certificate is.
        assert_eq!(ask(&other, Some(&inspect), "GET", "/v1/topics", String::new()).status, 200);
        assert_eq!(ask(&worker, Some("dq_x"), "GET", "/v1/topics", String::new()).status, 401);
        // On one connection that stays open.
        let mut connection = worker.connect().expect("connected");
        assert_eq!(connection.request("GET", "/v1/topics", "").expect("a reply").0, 200);
        assert_eq!(bind(json!(null)), 204);
        assert_eq!(connection.request("GET", "/v1/topics", "").expect("a reply").0, 401);
    }
}
