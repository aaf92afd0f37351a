//! Messages whose bytes are not in memory: they are read from the log, also after a crash.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Server, exact_config_file, wait_until};
use crate::requests::{claim, with};

/// Small segments, frequent snapshots and no payload in memory.
const NOTHING_IN_MEMORY: &str = "
    [limits]
    retention_ms = 0
    message_bytes_max = 65536
    result_bytes_max = 65536
    [storage]
    segment_bytes = 524288
    reserve_bytes = 16384
    snapshot_every_bytes = 262144
    memory_bytes = 0
";

const NDJSON: (&str, &str) = ("Content-Type", "application/x-ndjson");

/// A folder for a broker with [`NOTHING_IN_MEMORY`].
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        exact_config_file(folder.path(), NOTHING_IN_MEMORY);
        Self(folder)
    }

    fn data(&self) -> std::path::PathBuf {
        self.0.path().join("data")
    }

    fn start(&self) -> Server {
        let config = self.0.path().join("driftq.toml");
        Server::on(&self.data(), &["--config", config.to_str().expect("a path in UTF-8")])
    }
}

/// A value that no other message has, of any length up to some 12 KB.
fn value(number: u64) -> String {
    let len = (number * 7_919 % 12_000) as usize;
    let text: String = (0..len as u64).map(|at| char::from(b'!' + ((at * 31 + number * 17) % 90) as u8)).collect();
    format!("{number}:{text}")
}

/// Produces the values of these numbers, as fast as the log prepares segments.
fn produce(server: &Server, numbers: std::ops::Range<u64>) {
    let line = |number| json!({ "topic": "t", "key": format!("k{number}"), "value": value(number) }).to_string();
    let mut pending: Vec<String> = numbers.map(line).collect();
    while !pending.is_empty() {
        let rest = pending.split_off(pending.len().min(40));
        let reply = server.call("POST", "/v1/produce", &[NDJSON], &pending.join("\n"));
        let refused = |(line, answer): (String, &str)| match answer {
            stored if stored.contains("\"status\":200") => None,
            busy if busy.contains("log_busy") => Some(line),
            other => panic!("{other}"),
        };
        pending = pending.into_iter().zip(reply.body.lines()).filter_map(refused).chain(rest).collect();
    }
}

/// Receives and acks `count` messages of the group: their values by key.
fn drain(server: &Server, count: usize) -> BTreeMap<String, String> {
    let query = format!("topic=t&group=g&owner=w&max={count}&wait_ms=8000&lease_ms=60000");
    let items = server.consume(&query).items();
    assert_eq!(items.len(), count, "all are delivered");
    let acks: Vec<String> = items.iter().map(|item| claim("t", item).to_string()).collect();
    for acks in acks.chunks(500) {
        let reply = server.call("POST", "/v1/ack", &[NDJSON], &acks.join("\n"));
        assert!(reply.body.lines().all(|line| line.contains("\"status\":204")), "{reply:?}");
    }
    let text = |item: &Value, name: &str| item[name].as_str().expect("a text").to_owned();
    items.iter().map(|item| (text(item, "key"), text(item, "value"))).collect()
}

fn expected(numbers: impl Iterator<Item = u64>) -> BTreeMap<String, String> {
    numbers.map(|number| (format!("k{number}"), value(number))).collect()
}

fn segments(data: &Path) -> Vec<String> {
    let names = std::fs::read_dir(data).expect("listed").map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<String> = names.filter_map(|name| name.into_string().ok()).collect();
    names.retain(|name| name.ends_with(".seg"));
    names.sort();
    names
}

#[test]
fn message_not_in_memory_is_peeked_delivered_and_redelivered_as_produced() {
    let folder = Folder::new();
    let server = folder.start();
    server.create("t", 1);
    let envelope = json!({
        "run_id": "r", "tenant_id": "acme", "idempotency_key": "k", "labels": { "a": "b" }, "priority": 3,
        "retry_policy": { "max_attempts": 5, "backoff_ms": 1 },
    });
    server.produce_json(&json!({ "topic": "t", "key": "key", "value": value(11), "envelope": envelope }));
    server.produce("t", "x");
    let memory = || server.metric("driftq_payload_memory_bytes").expect("a metric");
    wait_until("nothing is in memory", || memory() == 0.0);
    let peeked = server.get("/v1/peek?topic=t&partition=0&offset=0").json();
    let messages = peeked["messages"].as_array().expect("a list");
    assert_eq!((messages.len(), &messages[0]["value"], &messages[1]["value"]), (2, &json!(value(11)), &json!("x")));
    assert_eq!(messages[0]["envelope"], envelope);
    let is_first = |item: &Value| item["offset"] == 0;
    for attempt in 1..=3 {
        let items = server.fetch("t", "g");
        let item = items.iter().find(|item| is_first(item)).expect("delivered");
        assert_eq!((&item["attempts"], &item["key"]), (&json!(attempt), &json!("key")));
        assert_eq!((&item["value"], &item["envelope"]), (&json!(value(11)), &envelope));
        server.settle_ok("nack", "t", item, json!({ "reason": "again" }));
    }
    let reads = server.metric("driftq_payload_reads_total").expect("a metric");
    assert!(reads >= 2.0, "{reads} reads");
    assert!(server.metric("driftq_payload_read_bytes_total") > Some(0.0));
    assert!(server.metric("driftq_payload_misses_total") > Some(0.0));
}

#[test]
fn backlog_drains_byte_for_byte_after_kills() {
    let folder = Folder::new();
    let mut server = folder.start();
    server.create("t", 3);
    produce(&server, 0..900);
    let mut drained = drain(&server, 200);
    let segments_before = segments(&folder.data()).len();
    assert!(segments_before > 8, "{segments_before} segments: nothing that is needed is removed");
    server.kill();
    let mut server = folder.start();
    assert_eq!(server.metric("driftq_payload_memory_bytes"), Some(0.0), "a start reads no payload into memory");
    drained.append(&mut drain(&server, 300));
    produce(&server, 900..1_000);
    server.kill();
    let server = folder.start();
    drained.append(&mut drain(&server, 500));
    assert_eq!(drained.len(), 1_000, "none is delivered twice");
    assert!(drained == expected(0..1_000), "a value differs from what was produced");
    assert!(server.metric("driftq_payload_read_bytes_total") > Some(2e6));
    wait_until("segments without live messages are removed", || segments(&folder.data()).len() < 6);
}

#[test]
fn dead_letter_and_redriven_message_keep_their_bytes_after_kill() {
    let folder = Folder::new();
    let mut server = folder.start();
    server.create("t", 1);
    let envelope = json!({ "run_id": "r", "retry_policy": { "max_attempts": 1 } });
    let body = json!({ "topic": "t", "key": "key", "value": value(13), "envelope": envelope });
    server.produce_json(&body);
    server.settle_ok("nack", "t", &server.next("t"), json!({ "reason": "no" }));
    produce(&server, 0..150);
    server.kill();
    let mut server = folder.start();
    let dead = server.get("/v1/peek?topic=dlq.t&partition=0&offset=0").json()["messages"][0].clone();
    assert_eq!((&dead["value"], &dead["key"]), (&json!(value(13)), &json!("key")));
    assert_eq!((&dead["envelope"]["run_id"], &dead["envelope"]["dlq"]["last_error"]), (&json!("r"), &json!("no")));
    assert_eq!(server.post_json("/v1/dlq/redrive", &json!({ "topic": "t", "all": true })).json()["redriven"], 1);
    server.kill();
    let server = folder.start();
    let items = server.consume("topic=t&group=g&owner=w&max=151&wait_ms=8000&lease_ms=60000").items();
    let redriven = items.iter().find(|item| item["key"] == "key").expect("delivered again");
    assert_eq!((&redriven["value"], &redriven["redrives"]), (&json!(value(13)), &json!(1)));
    assert_eq!(redriven["envelope"], envelope);
}

#[test]
fn stop_while_payloads_are_read_is_clean_and_prompt() {
    let folder = Folder::new();
    let mut server = folder.start();
    server.create("t", 1);
    produce(&server, 0..600);
    let streams: Vec<_> = (0..4)
        .map(|number| server.consume(&format!("topic=t&group=g{number}&owner=w&lease_ms=60000&prefetch=600")))
        .collect();
    assert!(server.terminate().success());
    drop(streams);
    assert!(!server.log().contains("not closed in time"), "{}", server.log());
    let server = folder.start();
    assert!(drain(&server, 600) == expected(0..600));
}

#[test]
fn broker_without_log_redelivers_what_has_left_the_payload_memory() {
    let server = Server::with(&["--no-wal", "--memory-bytes", "0"]);
    server.create("t", 1);
    produce(&server, 0..800);
    let query = "topic=t&group=g&owner=w&max=800&wait_ms=8000&lease_ms=60000&prefetch=800";
    let items = server.consume(query).items();
    assert_eq!(items.len(), 800);
    for item in &items {
        let reply = server.post_json("/v1/release", &with(claim("t", item), json!({})));
        assert_eq!(reply.status, 204, "{reply:?}");
    }
    assert!(drain(&server, 800) == expected(0..800));
    assert!(server.metric("driftq_payload_reads_total") > Some(0.0));
}

#[test]
fn replies_overtake_one_whose_bytes_are_read() {
    let folder = Folder::new();
    let mut server = folder.start();
    server.create("t", 1);
    produce(&server, 0..100);
    std::thread::scope(|scope| {
        for reader in 0..4 {
            let server = &server;
            scope.spawn(move || {
                let mut connection = server.connect();
                for number in 0..200 {
                    let offset = (number * 7 + reader * 13) % 90;
                    let target = format!("/v1/peek?topic=t&partition=0&offset={offset}&limit=5");
                    let peeked = connection.call("GET", &target, &[], "").json();
                    let messages = peeked["messages"].as_array().expect("messages");
                    assert_eq!(messages.len(), 5);
                    for message in messages {
                        // Not the offset: a line that the log had no room for is produced later.
                        let number = message["key"].as_str().and_then(|key| key.strip_prefix('k')?.parse().ok());
                        assert_eq!(message["value"], value(number.expect("a number")), "{number:?}");
                    }
                }
            });
            scope.spawn(move || {
                let mut connection = server.connect();
                for _ in 0..200 {
                    let topics = connection.call("GET", "/v1/topics", &[], "").json();
                    assert_eq!(topics, json!({ "topics": ["t"] }));
                }
            });
        }
    });
    assert!(server.is_running());
}

#[test]
fn short_wait_sees_messages_that_are_read_from_the_log() {
    let folder = Folder::new();
    let server = folder.start();
    server.create("t", 1);
    produce(&server, 0..100);
    for group in 0..10 {
        let query = format!("topic=t&group=g{group}&owner=w&max=40&wait_ms=1&lease_ms=60000");
        let items = server.consume(&query).items();
        assert_eq!(items.len(), 40, "group {group}");
    }
}

#[test]
fn lines_of_a_batch_get_their_own_replies_though_some_results_are_read() {
    let folder = Folder::new();
    let server = folder.start();
    let identity = |key: String| json!({ "tenant_id": "acme", "scope": { "kind": "tenant" }, "key": key });
    let begin = |key: String| with(identity(key), json!({ "owner": "w", "lease_ms": 60_000 }));
    for number in 0..20 {
        let begun = server.post("/v1/idempotency/begin", begin(format!("done-{number}")).to_string()).json();
        let finish = json!({
            "lease_token": begun["lease_token"], "status": "SUCCEEDED", "result": format!("result {number}"),
        });
        let finish = with(identity(format!("done-{number}")), finish);
        assert_eq!(server.post("/v1/idempotency/finish", finish.to_string()).status, 200);
    }
    for round in 0..10 {
        // Those that are done wait for a read; those that are new do not.
        let keys = (0..20).flat_map(|number| [format!("done-{number}"), format!("new-{round}-{number}")]);
        let lines: Vec<String> = keys.map(|key| begin(key).to_string()).collect();
        let reply = server.call("POST", "/v1/idempotency/begin", &[NDJSON], &lines.join("\n"));
        let answers: Vec<Value> = reply.body.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert_eq!(answers.len(), 40, "{reply:?}");
        for (number, answers) in answers.chunks(2).enumerate() {
            assert_eq!(answers[0]["result"], format!("result {number}"), "line {}: {answers:?}", 2 * number);
            assert_eq!(answers[1]["decision"], "EXECUTE", "line {}: {answers:?}", 2 * number + 1);
        }
    }
}

#[test]
fn fast_producers_wait_for_room_in_the_log() {
    let folder = Folder::new();
    let server = folder.start();
    server.create("t", 1);
    let line = json!({ "topic": "t", "value": "v".repeat(16 << 10) }).to_string();
    let (lines, single) = (400, 100);
    let (refused, offsets) = std::thread::scope(|scope| {
        let producers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut connection = server.connect();
                    (0..single).filter(|_| connection.call("POST", "/v1/produce", &[], &line).status != 200).count()
                })
            })
            .collect();
        // The last line has no end.
        let batch = server.call("POST", "/v1/produce", &[NDJSON], &vec![line.as_str(); lines].join("\n"));
        let replies: Vec<Value> = batch.body.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert_eq!(replies.len(), lines);
        let offsets: Vec<u64> = replies.iter().filter_map(|reply| reply["offset"].as_u64()).collect();
        let refused: usize = producers.into_iter().map(|producer| producer.join().expect("a count")).sum();
        (refused + lines - offsets.len(), offsets)
    });
    assert!(offsets.is_sorted(), "lines are stored in their order");
    // Twenty segments are filled. Without waiting most messages were refused; few may be if the disk is very slow.
    let all = lines + 4 * single;
    println!("{refused} of {all} were refused");
    assert!(refused * 20 <= all, "{refused} of {all} were refused");
    let text = server.get("/metrics").body;
    assert!(text.contains("\ndriftq_body_bytes 0\n"), "nothing waits any more");
}
