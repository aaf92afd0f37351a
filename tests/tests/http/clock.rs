//! Wall clocks that are set, between two starts and under load: no lease ends early, no token or key is repeated, and
//! deadlines follow the wall clock as it is.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use driftq_tests::torture::tools;
use serde_json::json;

use crate::harness::{Launch, Server, wait_until};
use crate::requests::in_ms;

/// The length of a lease that is held while the clock is set; longer than the broker takes to follow a clock.
const LEASE: Duration = Duration::from_secs(5);
/// The resolution of the broker's clock. A lease that begins late in one millisecond ends at the start of another.
const RESOLUTION: Duration = Duration::from_millis(1);
const MINUTE_MS: i64 = 60_000;
const HOUR_SECONDS: f64 = 3600.0;

/// Starts a broker with a shifted wall clock.
fn start_with_clock(dir: &Path, library: &Path, shift: &str) -> Server {
    let launch = Launch::new(dir, &[]).env("LD_PRELOAD", library.to_str().expect("a path")).env("FAKETIME", shift);
    launch.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").start().expect("it starts")
}

#[test]
fn clock_jumps_between_starts_repeat_no_token_and_lose_no_key() {
    let Some(library) = tools::faketime_library() else {
        println!("skipped: clock jumps, because there is no faketime");
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let keyed = r#"{"topic":"t","value":"x","envelope":{"idempotency_key":"k"}}"#;
    let mut server = start_with_clock(folder.path(), &library, "+0d");
    server.create("t", 1);
    assert_eq!(server.post("/v1/produce", keyed).status, 200);
    let token = |item: &serde_json::Value| item["lease_token"].as_str().expect("a token").to_owned();
    let mut tokens = Vec::new();
    let mut attempts = 0;
    // An hour back and forth is within the lifetime of keys. Internal time must not run backwards.
    for shift in ["-1h", "+0d", "+30d", "-1h"] {
        let mut stream = server.consume("topic=t&group=g&owner=w&lease_ms=300&max=1");
        let item = stream.item().expect("a redelivery");
        let attempt = item["attempts"].as_u64().expect("a number");
        assert!(attempt > attempts && attempt < attempts + 20, "attempt {attempt} after {attempts}");
        attempts = attempt;
        assert!(!tokens.contains(&token(&item)), "a repeated token: {}", token(&item));
        tokens.push(token(&item));
        server.terminate();
        server = start_with_clock(folder.path(), &library, shift);
        if shift != "+30d" && tokens.len() < 3 {
            let again = server.post("/v1/produce", keyed);
            assert_eq!((again.status, &again.json()["duplicate"]), (200, &true.into()), "{shift}: {again:?}");
        }
        // The lease of before is not valid any more.
        wait_until("its lease expires by this clock too", || {
            let stale = format!("/v1/ack?topic=t&group=g&partition=0&offset=0&owner=other&lease_token={}", tokens[0]);
            server.post(&stale, "").status == 409
        });
    }
    assert!(server.is_running());
}

/// The file from which a broker's wall clock is read.
struct ClockFile(PathBuf);

impl ClockFile {
    /// Sets the wall clock so far from the system's, in faketime's notation.
    fn set(&self, shift: &str) {
        let next = self.0.with_extension("next");
        std::fs::write(&next, shift).expect("written");
        std::fs::rename(&next, &self.0).expect("renamed");
    }
}

/// Holds a lease that began before the clock is set, and returns how long it lasted at most, by a clock that is not.
fn lease_over(server: &Server, clock: &ClockFile, shift: &str) -> Duration {
    server.produce("held", shift);
    let before = Instant::now();
    let query = format!("topic=held&group=g&owner=w&max=1&wait_ms=8000&lease_ms={}", LEASE.as_millis());
    let first = server.consume(&query).item().expect("a message");
    assert_eq!(first["attempts"], 1, "{first}");
    clock.set(shift);
    let again = server.consume(&query).item().expect("a redelivery");
    let lasted = before.elapsed();
    assert_eq!((&again["value"], &again["attempts"]), (&json!(shift), &json!(2)));
    server.settle_ok("ack", "held", &again, json!({ "lease_token": again["lease_token"] }));
    lasted
}

/// Produces and acks until told to stop. Returns the number of messages.
fn load(server: &Server, stop: &AtomicBool) -> u64 {
    let made = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                server.produce("load", "x");
                made.fetch_add(1, Ordering::Relaxed);
            }
        });
        while !stop.load(Ordering::Relaxed) {
            for item in server.consume("topic=load&group=g&owner=w&max=50&wait_ms=200&lease_ms=60000").items() {
                assert_eq!(item["attempts"], 1, "delivered again: {item}");
                server.settle_ok("ack", "load", &item, json!({ "lease_token": item["lease_token"] }));
            }
        }
    });
    made.into_inner()
}

#[test]
fn wall_clock_set_under_load_ends_no_lease_early_and_moves_deadlines() {
    let Some(library) = tools::faketime_library() else {
        println!("skipped: a clock set under load, because there is no faketime");
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let clock = ClockFile(folder.path().join("clock"));
    clock.set("+0");
    let launch = Launch::new(&folder.path().join("data"), &[])
        .env("LD_PRELOAD", library.to_str().expect("a path"))
        .env("FAKETIME_TIMESTAMP_FILE", clock.0.to_str().expect("a path"))
        .env("FAKETIME_NO_CACHE", "1")
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    let server = launch.start().expect("it starts");
    for topic in ["held", "load", "due"] {
        server.create(topic, 1);
    }
    let due = |minutes: i64| {
        let deadline = in_ms(minutes * MINUTE_MS);
        server.produce_json(
            &json!({ "topic": "due", "value": minutes.to_string(), "envelope": { "deadline": deadline } }),
        );
    };
    due(30);
    due(90);
    let stop = AtomicBool::new(false);
    let (forward, back, made) = std::thread::scope(|scope| {
        let load = scope.spawn(|| load(&server, &stop));
        let forward = lease_over(&server, &clock, "+3600");
        let back = lease_over(&server, &clock, "+0");
        wait_until("wall time is an hour ahead", || {
            let ahead = server.metric("driftq_clock_ahead_seconds").expect("the metric");
            (ahead - HOUR_SECONDS).abs() < 60.0
        });
        stop.store(true, Ordering::Relaxed);
        (forward, back, load.join().expect("the load"))
    });
    println!(
        "a lease of {LEASE:?}: {forward:?} with a clock set forward, {back:?} set back, {made} messages beside it"
    );
    let shortest = LEASE - RESOLUTION;
    assert!(forward > shortest && back > shortest, "a lease of {LEASE:?} ended after {forward:?}, {back:?}");
    assert!(made >= 50, "only {made} messages of load");
    // An hour later the first deadline has passed and the second one has not.
    let left: Vec<_> = server.fetch("due", "g").iter().map(|item| item["value"].clone()).collect();
    assert_eq!(left, [json!("90")]);
    let dead = server.next("dlq.due");
    assert_eq!((&dead["value"], &dead["envelope"]["dlq"]["reason"]), (&json!("30"), &json!("deadline_exceeded")));
}
