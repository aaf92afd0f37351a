//! Streams whose readers are slow, stop, or vanish: nothing piles up, nothing is lost, and nobody else waits.

use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::rig::{SOON, Server, Stream, abrupt, until};

const LARGE: usize = 64 << 10;

/// Produces this many large messages, in one batch.
fn fill(server: &Server, topic: &str, count: usize) {
    let line = serde_json::json!({ "topic": topic, "value": "v".repeat(LARGE) }).to_string() + "\n";
    let reply = server.call("POST", "/v1/produce", &[("Content-Type", "application/x-ndjson")], &line.repeat(count));
    assert_eq!(reply.status, 200);
    assert_eq!(reply.body.lines().filter(|line| line.starts_with("{\"status\":200,")).count(), count);
}

/// A stream that takes next to nothing of what it is sent, and whose end is a reset.
fn stalled(server: &Server, query: &str) -> Stream {
    let stream = server.consume_over(server.over(abrupt(server.addr)), query);
    assert_eq!(stream.head.status, 200);
    stream
}

fn offset(item: &Value) -> u64 {
    item["offset"].as_u64().expect("an offset")
}

#[test]
fn what_a_stalled_stream_has_not_read_goes_to_another_unharmed_and_it_goes_on_when_it_reads_again() {
    let server = Server::with(&["--no-wal"]);
    server.create("t", 1);
    server.create("other", 1);
    fill(&server, "t", 400);
    let before = server.memory_kib();
    let mut slow = stalled(&server, "topic=t&group=g&owner=slow&prefetch=400&lease_ms=60000");
    let mut quick = server.consume("topic=t&group=g&owner=quick&prefetch=400&lease_ms=60000");
    let mut bystander = server.consume("topic=other&group=g&owner=w");
    let began = Instant::now();
    let mut taken = Vec::new();
    while taken.len() < 300 {
        let item = quick.item().unwrap_or_else(|| panic!("{} came back", taken.len()));
        assert_eq!(item["failures"], 0, "not reading is no failure");
        taken.push(offset(&item));
        if taken.len() % 50 == 0 {
            server.produce("other", "x");
            let began = Instant::now();
            assert!(bystander.item().is_some());
            assert!(began.elapsed() < Duration::from_secs(2), "another stream waited {:?}", began.elapsed());
        }
    }
    println!("300 of 400 unread messages came back after {:?}", began.elapsed());
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
    let grown = server.memory_kib().saturating_sub(before);
    println!("{grown} KiB more for a stream that reads nothing of 25 MiB");
    assert!(grown < 16 << 10, "{grown} KiB more");
    drop(quick);
    // Whatever had left for its socket is still its own; then it is handed new ones.
    server.produce("t", "fresh");
    let mut seen = Vec::new();
    loop {
        let item = slow.item().expect("it goes on");
        assert_eq!(item["failures"], 0);
        if item["value"] == "fresh" {
            break;
        }
        seen.push(offset(&item));
    }
    assert!(!seen.is_empty() && seen.iter().all(|offset| !taken.contains(offset)), "one message, two leases");
}

#[test]
fn a_stream_that_wanted_so_many_and_stalled_ends_instead_of_waiting_for_what_was_taken_back() {
    let server = Server::with(&["--no-wal"]);
    server.create("t", 1);
    fill(&server, "t", 200);
    // Given back unread, or run out unread.
    for (group, lease_ms) in [("back", 60_000), ("out", 500)] {
        let query = format!("topic=t&group={group}&owner=w&max=200&lease_ms={lease_ms}&release_on_disconnect=true");
        let mut slow = stalled(&server, &query);
        let queued = || server.get("/v1/topics/t").json()["groups"][0]["partitions"][0]["waiting"].as_u64();
        until("what it did not read is given back", || queued().is_some_and(|count| count > 0));
        let mut read = 0;
        while slow.item().is_some() {
            read += 1;
        }
        assert!((1..200).contains(&read), "{read} of 200");
        if group == "back" {
            let progress = &server.get("/v1/topics/t").json()["groups"][0]["partitions"][0];
            assert_eq!(progress["in_flight"], read, "what it was sent it keeps: this was no disconnect");
        }
        assert_eq!(server.delete(&format!("/v1/groups?topic=t&group={group}")).status, 204);
    }
}

#[test]
fn a_stream_that_never_reads_costs_no_more_than_its_socket_holds_however_long_it_lasts() {
    let mut server = Server::with(&["--no-wal"]);
    server.create("t", 1);
    let _slow: Vec<Stream> = (0..4)
        .map(|number| stalled(&server, &format!("topic=t&group=g{number}&owner=slow&prefetch=1000&lease_ms=300")))
        .collect();
    fill(&server, "t", 200);
    let before = server.memory_kib();
    // Its leases end and are granted anew, over and over.
    std::thread::sleep(Duration::from_secs(3));
    let grown = server.memory_kib().saturating_sub(before);
    println!("{grown} KiB more for four streams that read nothing for 3 s");
    assert!(grown < 32 << 10, "{grown} KiB more");
    assert!(server.is_running());
}

#[test]
fn a_stream_with_stray_bytes_behind_its_request_is_sent_its_messages() {
    let server = Server::with(&["--no-wal"]);
    server.create("t", 1);
    let mut connection = server.connect();
    let stray = "GET /v1/version HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let query = "topic=t&group=g&owner=w&max=2";
    connection.send(format!("GET /v1/consume?{query} HTTP/1.1\r\nHost: localhost\r\n\r\n{stray}").as_bytes());
    assert_eq!(connection.head().status, 200);
    for value in ["a", "b"] {
        server.produce("t", value);
        let line = connection.chunk().expect("a message");
        assert!(line.contains(&format!("\"value\":\"{value}\"")), "{line}");
    }
    assert_eq!(connection.chunk(), None);
    assert_eq!(connection.reply("GET").status, 200, "the request behind it is answered when its turn comes");
}

#[test]
fn what_a_reset_stream_had_comes_back_when_its_lease_ends() {
    let server = Server::with(&["--no-wal"]);
    server.create("t", 1);
    fill(&server, "t", 3);
    let mut lost = stalled(&server, "topic=t&group=g&owner=lost&lease_ms=1500");
    let began = Instant::now();
    // Some of the first line is read, and then the connection is reset.
    let mut some = [0; 1_000];
    std::io::Read::read_exact(lost.connection.socket(), &mut some).expect("read");
    drop(lost);
    let mut next = server.consume("topic=t&group=g&owner=next&lease_ms=60000");
    let items: Vec<Value> = (0..3).map(|_| next.item().expect("it comes back")).collect();
    let mut offsets: Vec<u64> = items.iter().map(offset).collect();
    offsets.sort_unstable();
    assert_eq!(offsets, [0, 1, 2]);
    assert!(items.iter().all(|item| item["attempts"] == 2), "{:?}", items[0]["attempts"]);
    let waited = began.elapsed();
    assert!(waited >= Duration::from_millis(1_000) && waited < Duration::from_secs(6), "after {waited:?}");
}

#[test]
fn what_a_reset_stream_had_comes_back_at_once_where_that_was_asked_for() {
    let server = Server::with(&["--no-wal"]);
    server.create("t", 1);
    fill(&server, "t", 3);
    let query = "topic=t&group=g&owner=lost&lease_ms=60000&release_on_disconnect=true";
    let mut lost = stalled(&server, query);
    let mut some = [0; 1_000];
    std::io::Read::read_exact(lost.connection.socket(), &mut some).expect("read");
    let began = Instant::now();
    drop(lost);
    let mut next = server.consume("topic=t&group=g&owner=next&lease_ms=60000");
    for _ in 0..3 {
        let item = next.item().expect("it comes back");
        assert_eq!((&item["attempts"], &item["failures"]), (&2.into(), &0.into()));
    }
    assert!(began.elapsed() < Duration::from_secs(5), "after {:?}", began.elapsed());
}

#[test]
fn answers_to_a_batch_that_nobody_reads_do_not_pile_up() {
    let server = Server::with(&["--no-wal"]);
    server.create("t", 1);
    let before = server.memory_kib();
    let mut batch = abrupt(server.addr);
    batch.set_write_timeout(Some(Duration::from_millis(500))).expect("set");
    let head = "POST /v1/ack HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n";
    batch.write_all(format!("{head}Content-Length: 1000000000\r\n\r\n").as_bytes()).expect("sent");
    // Each line of two bytes is answered with many.
    let lines = "1\n".repeat(32 << 10);
    let began = Instant::now();
    let mut sent = 0;
    while began.elapsed() < SOON {
        match batch.write(lines.as_bytes()) {
            Ok(len) => sent += len,
            Err(_) => break,
        }
    }
    let grown = server.memory_kib().saturating_sub(before);
    println!("{sent} bytes were taken, {grown} KiB more");
    assert!(began.elapsed() < SOON, "it takes lines without end: {sent} bytes");
    assert!(grown < 16 << 10, "{grown} KiB more");
    drop(batch);
    until("it is gone", || server.get("/metrics").body.contains("\nconnections 1\n"));
}
