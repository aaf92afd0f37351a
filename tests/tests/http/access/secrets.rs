//! A secret is nowhere but in the answer that shows it and where its owner keeps it.

use std::path::Path;

use serde_json::{Value, json};

use super::support::{Key, Keyed};
use crate::harness::Server;

/// Whether a file of a folder contains `secret`.
fn is_in_folder(folder: &Path, secret: &[u8]) -> bool {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries.into_iter().any(|path| match path.is_dir() {
        true => is_in_folder(&path, secret),
        false => std::fs::read(&path).expect("read").windows(secret.len()).any(|window| window == secret),
    })
}

#[test]
fn secret_is_in_no_log_metric_error_or_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let server = Server::on(&data, &["--log-level", "trace"]);
    let mut broker = Keyed::on(server);
    broker.topic("t");
    let revoked = broker.key("*", &["produce"]);
    let secret = |key: &Key| key.text[16..].to_owned();
    let secrets = [secret(&broker.admin), secret(&revoked)];
    let mut seen = Vec::new();
    let canary = |key: &str, body: &str| {
        let with_query = format!("/v1/produce?topic=t&value={key}&x={key}");
        [
            broker.call_as(key, "POST", "/v1/produce", body),
            broker.call_as(key, "POST", "/v1/produce", "{"),
            broker.call_as(key, "POST", &with_query, "{\"topic\":1}"),
            broker.call_as(key, "DELETE", "/v1/topics/absent", ""),
            broker.call_as(&format!("{key}x"), "GET", "/v1/topics", ""),
            broker.call_as(&format!("{} ", &key[..40]), "GET", "/v1/topics", ""),
            broker.call_as(key, "GET", "/v1/idempotency/list", ""),
        ]
    };
    for key in [&broker.admin.text, &revoked.text] {
        seen.extend(canary(key, r#"{"topic":"t","value":"v"}"#));
    }
    broker.revoke(&revoked);
    seen.extend(canary(&revoked.text, r#"{"topic":"t","value":"v"}"#));
    for target in ["/metrics", "/v1/config", "/v1/keys", "/v1/audit", "/v1/topics/t", "/v1/version"] {
        seen.push(broker.admin("GET", target, &Value::Null));
    }
    seen.push(broker.call_as(&broker.admin.text, "POST", "/v1/keys", &json!({ "name": "n" }).to_string()));
    for reply in &seen {
        let text = format!("{reply:?}");
        assert!(secrets.iter().all(|secret| !text.contains(secret.as_str())), "{text}");
    }
    assert!(broker.server.terminate().success());
    let log = broker.server.log();
    for secret in &secrets {
        assert!(!log.contains(secret.as_str()), "{log}");
        assert!(!is_in_folder(&data, secret.as_bytes()), "the data folder has it");
    }
    assert!(is_in_folder(&data, broker.admin.id.as_bytes()), "the search finds what is there");
}
