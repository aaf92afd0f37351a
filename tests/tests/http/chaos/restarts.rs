//! Crashes of a broker in this process: by chaos, and asked for by a test.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::time::{Duration, Instant};

use driftq_server::testing::Broker;
use driftq_tests::http::Request;
use serde_json::{Value, json};

use super::support::{TestBroker, keyed, message};
use crate::harness::wait_until;

fn metric(broker: &TestBroker, name: &str) -> f64 {
    let metrics = broker.try_call("GET", "/metrics", &[], "").expect("a response").body;
    let line = metrics.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name} is missing"));
    line.rsplit_once(' ').expect("a value").1.parse().expect("a number")
}

#[test]
fn restart_loses_nothing_that_was_acknowledged() {
    let broker = TestBroker::with_chaos("seed=11,restart=0.2,drop-reply=0.1");
    broker.create("t");
    let mut offsets = BTreeMap::new();
    for number in 0..40 {
        let value = number.to_string();
        let produced = broker.until_answered("POST", "/v1/produce", &keyed(&value)).json();
        assert!(offsets.insert(produced["offset"].as_u64().expect("an offset"), value).is_none());
    }
    assert!(broker.played("restart").len() > 4);
    assert_eq!(broker.values("t"), offsets.values().cloned().collect::<Vec<_>>(), "each once, where it was said to be");
    let mut acked = BTreeSet::new();
    let mut boots = BTreeSet::new();
    let deadline = Instant::now() + Duration::from_secs(30);
    while acked.len() < offsets.len() {
        assert!(Instant::now() < deadline, "{} acked", acked.len());
        let query = "topic=t&group=g&owner=w&lease_ms=100&wait_ms=300&max=3";
        let Ok(mut stream) = broker.client.consume(query) else { continue };
        while let Ok(Some(item)) = stream.item() {
            let offset = item["offset"].as_u64().expect("an offset");
            assert!(!acked.contains(&offset), "{offset} was acked");
            assert_eq!(item["value"].as_str(), offsets.get(&offset).map(String::as_str));
            boots.insert(item["lease_token"].as_str().expect("a token")[..8].to_owned());
            let claim = json!({
                "topic": "t", "group": "g", "partition": 0, "offset": offset, "owner": "w",
                "lease_token": item["lease_token"],
            });
            let ack = broker.until_answered("POST", "/v1/ack", &claim.to_string());
            // A lease that ended meanwhile is no error: the message comes again.
            if ack.status == 204 {
                acked.insert(offset);
            }
        }
    }
    assert!(boots.len() > 1, "the boot number has risen");
}

#[test]
fn broker_that_has_crashed_refuses_until_its_time_is_over_and_goes_on_at_its_address() {
    let broker = TestBroker::with_chaos("seed=2,restart=0.5");
    let mut names = BTreeSet::new();
    for number in 0..16 {
        names.insert(format!("t{number}"));
        let began = Instant::now();
        if broker.try_post("/v1/topics", json!({ "name": format!("t{number}") }).to_string()).is_ok() {
            continue;
        }
        wait_until("it accepts requests", || {
            let ready = broker.try_call("GET", "/v1/readyz", &[], "");
            assert_eq!(broker.try_call("GET", "/v1/healthz", &[], "").expect("a response").status, 200);
            ready.is_ok_and(|reply| reply.status == 200)
        });
        // Other requests may have crashed it again.
        let mut crashes =
            broker.played("restart").into_iter().rev().filter(|played| played["request"] == "POST /v1/topics");
        let ms = crashes.next().expect("it was played")["detail"]["ms"].as_u64().expect("a number");
        assert!((20..=200).contains(&ms) && began.elapsed() >= Duration::from_millis(ms), "{ms} ms");
    }
    let topics = broker.until_answered("GET", "/v1/topics", "").json();
    let found = topics["topics"].as_array().expect("a list").iter();
    let found: BTreeSet<String> = found.map(|name| name.as_str().expect("a name").to_owned()).collect();
    assert_eq!(found, names, "the requests that crashed it were carried out");
}

#[test]
fn refusal_during_recovery_says_that_nothing_has_happened() {
    let broker = TestBroker::with_chaos("seed=2,restart=1");
    let mut cut = 0;
    // Each request that is not refused crashes it.
    let refused = (0..50).find_map(|_| {
        let reply = broker.try_call("GET", "/v1/topics", &[], "").ok();
        cut += usize::from(reply.is_none());
        reply
    });
    let refused = refused.expect("a request comes within 200 ms of a crash");
    assert_eq!((refused.status, &refused.json()["reason"]), (503, &json!("recovering")), "{refused:?}");
    assert_eq!((&refused.json()["error"], &refused.json()["committed"]), (&json!("UNAVAILABLE"), &json!("no")));
    assert!(refused.header("x-request-id").is_some());
    assert_eq!(broker.played("restart").len(), cut, "what is refused suffers nothing");
}

#[test]
fn crash_cuts_connections_without_requests() {
    let mut broker = TestBroker::with_chaos("seed=1");
    let mut connection = broker.connect_raw();
    connection.send(broker.encode("GET", "/v1/topics", "", "").as_bytes()).expect("sent");
    assert_eq!(connection.reply("GET").expect("a response").status, 200);
    broker.restart();
    let end = connection.socket().read(&mut [0]);
    assert!(end.as_ref().is_ok_and(|bytes| *bytes == 0), "{end:?}");
}

#[test]
fn crash_cuts_streams_and_leaves_leases() {
    let mut broker = TestBroker::with_chaos("seed=1");
    broker.create("t");
    broker.until_answered("POST", "/v1/produce", &message("a"));
    let mut stream = broker.client.consume("topic=t&group=g&owner=w").expect("a response");
    let item = stream.item().expect("a stream").expect("a delivery");
    broker.restart();
    assert!(stream.line().is_err(), "cut, and not ended");
    let claim = json!({
        "topic": "t", "group": "g", "partition": 0, "offset": 0, "owner": "w", "lease_token": item["lease_token"],
        "lease_ms": 60_000,
    });
    let extended = broker.try_post("/v1/extend", claim.to_string()).expect("it accepts requests again");
    assert_eq!(extended.status, 200, "the lease stands: {extended:?}");
}

#[test]
fn what_was_not_synced_is_gone_after_a_crash() {
    let mut broker = TestBroker::start(Broker::builder().sync_delay(Duration::from_millis(700)));
    broker.create("t");
    let client = broker.client.clone();
    let produce = std::thread::spawn(move || client.call(&Request::post("/v1/produce", &message("a"))));
    wait_until("the sync is under way", || metric(&broker, "driftq_log_sync_pending_seconds") > 0.0);
    broker.restart();
    assert!(produce.join().expect("no panic").is_err(), "it was cut");
    assert_eq!(broker.values("t"), [] as [&str; 0]);
}

#[test]
fn broker_restarts_at_its_address_with_what_was_answered() {
    for reactors in [1, 2] {
        let config = format!("[http]\nreactors = {reactors}");
        let mut broker = TestBroker::start(Broker::builder().config(config));
        broker.create("t");
        for round in 0..5 {
            assert_eq!(broker.values("t").len(), round);
            broker.until_answered("POST", "/v1/produce", &message("a"));
            broker.restart();
        }
        let mut stream = broker.client.consume("topic=t&group=g&owner=w&max=5").expect("a response");
        let items: Vec<Value> = std::iter::from_fn(|| stream.item().expect("a stream")).collect();
        let token = items[0]["lease_token"].as_str().expect("a token");
        assert!(token > "00000006", "the sixth boot: {token}");
        broker.stop();
    }
}

/// Threads of this process with this name.
fn threads(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux");
    let names = tasks.flatten().filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|found| found.trim() == name).count()
}

#[test]
fn brokers_that_crash_and_are_dropped_leave_no_threads() {
    let before = threads("driftq-log");
    for _ in 0..3 {
        let mut broker = TestBroker::with_chaos("seed=1");
        (0..10).for_each(|_| broker.restart());
    }
    // Other tests run at the same time; a leak would be 33 threads.
    wait_until("the threads end", || threads("driftq-log") < before + 20);
}
