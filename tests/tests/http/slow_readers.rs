//! Streams whose readers are slow, stop reading or disconnect: buffers are bounded, nothing is lost, and no other
//! client waits.

use std::io::Write;
use std::time::{Duration, Instant};

use driftq_tests::http::slow_reader_socket;
use serde_json::Value;

use crate::harness::{RawConnection, Server, TIMEOUT, wait_until};

const LARGE: usize = 64 << 10;

/// Produces large messages in one batch.
fn fill(server: &Server, topic: &str, count: usize) {
    let line = serde_json::json!({ "topic": topic, "value": "v".repeat(LARGE) }).to_string() + "\n";
    let reply = server.call("POST", "/v1/produce", &[("Content-Type", "application/x-ndjson")], &line.repeat(count));
    assert_eq!(reply.status, 200);
    assert_eq!(reply.body.lines().filter(|line| line.starts_with("{\"status\":200,")).count(), count);
}

/// A stream with a small receive buffer, which resets its connection when closed.
fn stalled(server: &Server, query: &str) -> RawConnection {
    let mut connection = server.connect_slow_reader();
    assert_eq!(connection.consume(query).status, 200);
    connection
}

/// The most KiB that a broker held at any time of this duration more than before.
fn grown_kib(server: &Server, before: u64, duration: Duration) -> u64 {
    let step = Duration::from_millis(50);
    let held = (0..duration.as_millis() / step.as_millis()).map(|_| {
        std::thread::sleep(step);
        server.memory_kib()
    });
    held.max().expect("measured").saturating_sub(before)
}

fn offset(item: &Value) -> u64 {
    item["offset"].as_u64().expect("an offset")
}

#[test]
fn unread_messages_of_stalled_stream_go_to_another_and_it_resumes() {
    let server = Server::that_returns_memory();
    server.create("t", 1);
    server.create("other", 1);
    fill(&server, "t", 400);
    let before = server.memory_kib();
    let mut slow = stalled(&server, "topic=t&group=g&owner=slow&prefetch=400&lease_ms=60000");
    // Its messages are withdrawn after a second, and given to another.
    let grown = grown_kib(&server, before, Duration::from_millis(500));
    println!("{grown} KiB more for a stream that reads nothing of 25 MiB");
    assert!(grown < 16 << 10, "{grown} KiB more");
    let mut fast = server.consume("topic=t&group=g&owner=fast&prefetch=400&lease_ms=60000");
    let mut bystander = server.consume("topic=other&group=g&owner=w");
    let began = Instant::now();
    let mut taken = Vec::new();
    while taken.len() < 300 {
        let item = fast.item().unwrap_or_else(|| panic!("only {} were redelivered", taken.len()));
        assert_eq!(item["failures"], 0, "an unread delivery is not a failure");
        taken.push(offset(&item));
        if taken.len() % 50 == 0 {
            server.produce("other", "x");
            let began = Instant::now();
            assert!(bystander.item().is_some());
            assert!(began.elapsed() < Duration::from_secs(2), "another stream waited {:?}", began.elapsed());
        }
    }
    println!("300 of 400 unread messages were redelivered after {:?}", began.elapsed());
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
    drop(fast);
    // What was written to its socket is still leased to it; then it gets new messages.
    server.produce("t", "fresh");
    let mut seen = Vec::new();
    loop {
        let item = slow.item().expect("a message");
        assert_eq!(item["failures"], 0);
        if item["value"] == "fresh" {
            break;
        }
        seen.push(offset(&item));
    }
    assert!(!seen.is_empty() && seen.iter().all(|offset| !taken.contains(offset)), "a message has two leases");
}

#[test]
fn stalled_stream_with_max_ends_without_withdrawn_messages() {
    let server = Server::with(&["--no-wal"]);
    server.create("t", 1);
    fill(&server, "t", 200);
    // Unread messages are withdrawn, before short leases end, too.
    for (group, lease_ms) in [("long", 60_000), ("short", 500)] {
        let query = format!("topic=t&group={group}&owner=w&max=200&lease_ms={lease_ms}&release_on_disconnect=true");
        let mut slow = stalled(&server, &query);
        let queued = || {
            let progress = &server.get("/v1/topics/t").json()["groups"][0]["partitions"][0];
            progress["lag"].as_u64() > progress["in_flight"].as_u64()
        };
        wait_until("unread messages are withdrawn", queued);
        let mut read = 0;
        while slow.item().is_some() {
            read += 1;
        }
        assert!((1..200).contains(&read), "{read} of 200");
        if group == "long" {
            let progress = &server.get("/v1/topics/t").json()["groups"][0]["partitions"][0];
            assert_eq!(progress["in_flight"], read, "messages that were sent stay leased: this is not a disconnect");
        }
        assert_eq!(server.delete(&format!("/v1/groups?topic=t&group={group}")).status, 204);
    }
}

#[test]
fn stream_that_never_reads_uses_bounded_memory() {
    let mut server = Server::that_returns_memory();
    server.create("t", 1);
    fill(&server, "t", 400);
    let before = server.memory_kib();
    let _slow: Vec<RawConnection> = (0..4)
        .map(|number| stalled(&server, &format!("topic=t&group=g{number}&owner=slow&prefetch=1000&lease_ms=300")))
        .collect();
    // Leases expire and are granted again, repeatedly.
    let grown = grown_kib(&server, before, Duration::from_secs(2));
    println!("{grown} KiB more for four streams that read nothing for 2 s");
    assert!(grown < 16 << 10, "{grown} KiB more");
    assert!(server.is_running());
}

#[test]
fn pipelined_request_behind_stream_is_answered_after_it() {
    let server = Server::with(&["--no-wal"]);
    server.create("t", 1);
    let mut connection = server.connect_raw();
    let pipelined = "GET /v1/version HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let query = "topic=t&group=g&owner=w&max=2";
    connection.send(format!("GET /v1/consume?{query} HTTP/1.1\r\nHost: localhost\r\n\r\n{pipelined}").as_bytes());
    assert_eq!(connection.head().status, 200);
    for value in ["a", "b"] {
        server.produce("t", value);
        let line = connection.chunk().expect("a message");
        assert!(line.contains(&format!("\"value\":\"{value}\"")), "{line}");
    }
    assert_eq!(connection.chunk(), None);
    assert_eq!(connection.reply("GET").status, 200);
}

#[test]
fn messages_of_reset_stream_are_redelivered_after_lease() {
    let server = Server::with(&["--no-wal"]);
    server.create("t", 1);
    fill(&server, "t", 3);
    let mut lost = stalled(&server, "topic=t&group=g&owner=lost&lease_ms=800");
    let began = Instant::now();
    // A part of the first line is read, then the connection is reset.
    let mut some = [0; 1_000];
    std::io::Read::read_exact(lost.socket(), &mut some).expect("read");
    drop(lost);
    let mut next = server.consume("topic=t&group=g&owner=next&lease_ms=60000");
    let items: Vec<Value> = (0..3).map(|_| next.item().expect("a redelivery")).collect();
    let mut offsets: Vec<u64> = items.iter().map(offset).collect();
    offsets.sort_unstable();
    assert_eq!(offsets, [0, 1, 2]);
    // What was never written is withdrawn, which takes the attempt back.
    let attempts: Vec<_> = items.iter().map(|item| (offset(item), item["attempts"].as_u64())).collect();
    assert!(attempts.contains(&(0, Some(2))), "{attempts:?}");
    assert!(attempts.iter().all(|(_, attempts)| matches!(attempts, Some(1 | 2))), "{attempts:?}");
    let waited = began.elapsed();
    assert!(waited >= Duration::from_millis(500) && waited < Duration::from_secs(6), "after {waited:?}");
}

#[test]
fn messages_of_reset_stream_are_redelivered_at_once_if_requested() {
    let server = Server::with(&["--no-wal"]);
    server.create("t", 1);
    fill(&server, "t", 3);
    let query = "topic=t&group=g&owner=lost&lease_ms=60000&release_on_disconnect=true";
    let mut lost = stalled(&server, query);
    let mut some = [0; 1_000];
    std::io::Read::read_exact(lost.socket(), &mut some).expect("read");
    let began = Instant::now();
    drop(lost);
    let mut next = server.consume("topic=t&group=g&owner=next&lease_ms=60000");
    for _ in 0..3 {
        let item = next.item().expect("a redelivery");
        assert_eq!((&item["attempts"], &item["failures"]), (&2.into(), &0.into()));
    }
    assert!(began.elapsed() < Duration::from_secs(5), "after {:?}", began.elapsed());
}

#[test]
fn unread_batch_responses_use_bounded_memory() {
    let server = Server::with(&["--no-wal"]);
    server.create("t", 1);
    let before = server.memory_kib();
    let mut batch = slow_reader_socket(server.addr).expect("connected");
    batch.set_write_timeout(Some(Duration::from_millis(500))).expect("set");
    let head = "POST /v1/ack HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n";
    batch.write_all(format!("{head}Content-Length: 1000000000\r\n\r\n").as_bytes()).expect("sent");
    // The response to each line of two bytes is longer.
    let lines = "1\n".repeat(32 << 10);
    let began = Instant::now();
    let mut sent = 0;
    while began.elapsed() < TIMEOUT {
        match batch.write(lines.as_bytes()) {
            Ok(len) => sent += len,
            Err(_) => break,
        }
    }
    let grown = server.memory_kib().saturating_sub(before);
    println!("{sent} bytes were accepted, {grown} KiB more");
    assert!(began.elapsed() < TIMEOUT, "it accepts lines without end: {sent} bytes");
    assert!(grown < 16 << 10, "{grown} KiB more");
    drop(batch);
    wait_until("it is closed", || server.get("/metrics").body.contains("\ndriftq_connections 1\n"));
}
