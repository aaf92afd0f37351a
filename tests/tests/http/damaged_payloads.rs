//! A bit flips on disk under a queued message while the broker runs: it is found, said clearly, and disturbs nothing
//! else.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{Server, exact_config_file, wait_until};

const NEVER: u64 = 0;

/// A broker with ten messages of which none is in memory. The first bytes of the fifth one are damaged on disk.
fn with_flipped_bit(folder: &Path, scrub_interval_ms: u64) -> Server {
    let toml = format!("[storage]\nmemory_bytes = 0\nscrub_interval_ms = {scrub_interval_ms}\n");
    let config = exact_config_file(folder, &toml);
    let server = Server::on(&folder.join("data"), &["--config", &config]);
    server.create("t", 1);
    assert_eq!(server.post("/v1/groups", json!({ "topic": "t", "group": "g" }).to_string()).status, 201);
    for number in 0..10 {
        server.produce("t", &format!("value-{number}-{}", "v".repeat(100)));
    }
    let segments =
        std::fs::read_dir(folder.join("data")).expect("a folder").map(|entry| entry.expect("an entry").path());
    let flipped = segments.filter(|path| path.extension().is_some_and(|extension| extension == "seg")).any(|segment| {
        let bytes = std::fs::read(&segment).expect("read");
        let Some(at) = bytes.windows(8).position(|bytes| bytes == b"value-4-") else { return false };
        let file = OpenOptions::new().write(true).open(&segment).expect("opened");
        file.write_all_at(&[bytes[at] ^ 1], at as u64).expect("written");
        true
    });
    assert!(flipped, "the message is on disk");
    server
}

fn numbers(items: &[Value]) -> Vec<u64> {
    let number = |item: &Value| item["value"].as_str()?.split('-').nth(1)?.parse().ok();
    items.iter().map(|item| number(item).unwrap_or_else(|| panic!("no number: {item}"))).collect()
}

/// The message is a dead letter that says what happened, the others are delivered, and the broker is well.
fn assert_only_one_is_lost(server: &Server) {
    let dead = server.consume("topic=dlq.t&group=d&owner=w&max=10&wait_ms=2000&lease_ms=60000").items();
    assert_eq!(dead.len(), 1, "{dead:?}");
    assert_eq!((&dead[0]["value"], &dead[0]["lost"]), (&json!(""), &json!(true)));
    let origin = &dead[0]["envelope"]["dlq"];
    assert_eq!(origin["reason"], "payload_damaged");
    assert_eq!((&origin["original_topic"], &origin["original_offset"]), (&json!("t"), &json!(4)));
    let damage = origin["damage"].as_str().expect("a text");
    assert!(damage.starts_with("wal-") && damage.contains(".seg, byte ") && damage.contains("checksum"), "{damage}");
    assert_eq!(server.metric("driftq_payloads_lost_total"), Some(1.0));
    assert_eq!(server.get("/v1/readyz").status, 200);
    let (place, _) = damage.split_once(": ").expect("a place and a cause");
    let (file, byte) = place.split_once(", byte ").expect("a file and a position");
    let log = server.log_with("damaged");
    assert!(log.contains(file) && log.contains(byte), "{place} is not in {log}");
    server.produce("t", "value-10-new");
}

#[test]
fn delivery_finds_a_flipped_bit_and_delivers_the_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = with_flipped_bit(folder.path(), NEVER);
    let items = server.consume("topic=t&group=g&owner=w&max=9&wait_ms=10000&lease_ms=60000").items();
    assert_eq!(numbers(&items), [0, 1, 2, 3, 5, 6, 7, 8, 9]);
    assert_only_one_is_lost(&server);
    // It is known after a crash, and nothing is read again for it.
    let server = server.crash_and_restart();
    assert_eq!(numbers(&server.consume("topic=t&group=g&owner=w&max=1&wait_ms=5000&lease_ms=60000").items()).len(), 1);
    assert_eq!(server.metric("driftq_payloads_lost_total"), Some(0.0), "since the start");
}

#[test]
fn scrub_finds_a_flipped_bit_without_any_consumer() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = with_flipped_bit(folder.path(), 500);
    wait_until("the scrub finds it", || server.metric("driftq_payloads_lost_total") == Some(1.0));
    assert_only_one_is_lost(&server);
    let items = server.consume("topic=t&group=g&owner=w&max=10&wait_ms=2000&lease_ms=60000").items();
    assert_eq!(numbers(&items), [0, 1, 2, 3, 5, 6, 7, 8, 9, 10]);
}
