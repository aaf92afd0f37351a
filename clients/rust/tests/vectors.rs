//! The vectors of keys and hashes that all clients share.

use std::path::Path;

use driftq_client::{ErrorKind, KeyPart, canonical_json, idempotency_key, request_hash_of_text};
use serde_json::Value;

/// The vectors in a file; none, and one line that says so, in a checkout without the shared files.
fn vectors(name: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/vectors").join(name);
    let Ok(text) = std::fs::read_to_string(&path) else {
        eprintln!("skipped: there is no {}", path.display());
        return Vec::new();
    };
    let vectors: Vec<Value> = serde_json::from_str(&text).expect("a list");
    assert!(!vectors.is_empty(), "{name}");
    vectors
}

/// A part as the adapter takes it from JSON.
fn part(value: &Value) -> Option<KeyPart> {
    match value {
        Value::String(text) => Some(text.into()),
        Value::Bool(flag) => Some((*flag).into()),
        Value::Number(number) => number.as_i64().map(KeyPart::from).or_else(|| number.as_u64().map(KeyPart::from)),
        _ => None,
    }
}

#[test]
fn idempotency_keys_are_those_of_the_other_clients() {
    for vector in vectors("idempotency_keys.json") {
        let parts: Option<Vec<KeyPart>> = vector["parts"].as_array().expect("parts").iter().map(part).collect();
        let key = parts.map(|parts| idempotency_key(parts).map_err(|error| error.kind()));
        match vector["key"].as_str() {
            Some(expected) => assert_eq!(key, Some(Ok(expected.to_owned())), "{vector}"),
            None => assert!(matches!(key, None | Some(Err(ErrorKind::Misuse))), "{vector}"),
        }
    }
}

#[test]
fn request_hashes_are_those_of_the_other_clients() {
    for vector in vectors("request_hashes.json") {
        let json = vector["json"].as_str().expect("a text");
        let hash = request_hash_of_text(json);
        match vector["hash"].as_str() {
            Some(expected) => {
                let value: Value = serde_json::from_str(json).expect("JSON");
                assert_eq!(canonical_json(&value).ok().as_deref(), vector["canonical"].as_str(), "{vector}");
                assert_eq!(hash.ok().as_deref(), Some(expected), "{vector}");
            }
            None => assert_eq!(hash.expect_err("misuse").kind(), ErrorKind::Misuse, "{vector}"),
        }
    }
}
