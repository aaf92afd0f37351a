//! Shutdown by a signal takes about a second and answers all accepted requests; a kill loses nothing acknowledged.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use driftq_tests::daemon::{KillOnDrop, Signal};
use driftq_tests::http::{Client, Request};
use serde_json::Value;

use crate::harness::{Launch, Server, TIMEOUT, driftqd, wait_until};
use crate::requests::ReplyExt;

/// Shutdown takes about a second; a busy machine gets another one.
const SHUTDOWN_MAX: Duration = Duration::from_secs(2);

/// Logs what was recovered.
const VERBOSE: [&str; 2] = ["--log-level", "info,driftq_server=debug"];

/// Producers that run until the broker exits, and the values it has acknowledged.
struct Load {
    acknowledged: Arc<Mutex<Vec<String>>>,
    producers: Vec<JoinHandle<()>>,
    over: Arc<AtomicBool>,
}

impl Load {
    fn start(server: &Server, producers: usize) -> Self {
        let acknowledged = Arc::<Mutex<Vec<String>>>::default();
        let over = Arc::<AtomicBool>::default();
        let producer = |number| {
            let (acknowledged, over) = (Arc::clone(&acknowledged), Arc::clone(&over));
            let mut connection = server.connect();
            std::thread::spawn(move || {
                for round in 0.. {
                    let value = format!("{number}-{round}");
                    let body = serde_json::json!({ "topic": "t", "value": value }).to_string();
                    let produced = connection.try_call("POST", "/v1/produce", &[], &body);
                    if over.load(Ordering::Relaxed) || !produced.is_ok_and(|reply| reply.status == 200) {
                        return;
                    }
                    acknowledged.lock().expect("held").push(value);
                    std::thread::sleep(Duration::from_millis(1));
                }
            })
        };
        Self { producers: (0..producers).map(producer).collect(), acknowledged, over }
    }

    fn count(&self) -> usize {
        self.acknowledged.lock().expect("held").len()
    }

    /// Stops the producers. Returns the acknowledged values.
    fn stop(self) -> BTreeSet<String> {
        self.over.store(true, Ordering::Relaxed);
        self.producers.into_iter().for_each(|producer| producer.join().expect("ended"));
        let acknowledged = self.acknowledged.lock().expect("held");
        acknowledged.iter().cloned().collect()
    }
}

/// Consumes and acks everything a group has.
fn drain(server: &Server, group: &str) -> Vec<Value> {
    let query = format!("topic=t&group={group}&owner=drain&wait_ms=500&lease_ms=60000&prefetch=1000");
    let mut stream = server.consume(&query);
    let (mut found, mut acks) = (Vec::<Value>::new(), String::new());
    while let Some(item) = stream.item() {
        let offset = &item["offset"];
        let ack =
            serde_json::json!({ "topic": "t", "group": group, "partition": 0, "offset": offset, "owner": "drain" });
        acks += &format!("{ack}\n");
        found.push(item);
        if found.len() % 500 == 0 {
            let reply = server.call("POST", "/v1/ack", &[("Content-Type", "application/x-ndjson")], &acks);
            assert_eq!(reply.body, "{\"status\":204}\n".repeat(500));
            acks.clear();
        }
    }
    found
}

/// The values of all messages of a group, which must be unique.
fn values(server: &Server, group: &str) -> BTreeSet<String> {
    let items = drain(server, group);
    let values: BTreeSet<_> = items.iter().map(|item| item["value"].as_str().expect("text").to_owned()).collect();
    assert_eq!(values.len(), items.len(), "some were delivered twice");
    values
}

/// Stops the broker with a signal, which must be in time and clean, and starts it again.
#[track_caller]
fn stop_and_restart(server: &mut Server, signal: Signal, what: &str, dir: &Path) -> Server {
    let began = Instant::now();
    server.signal(signal);
    let status = server.wait();
    let took = began.elapsed();
    println!("{signal:?} with {what}: exited after {took:?}");
    assert_eq!(status.code(), Some(0), "{}", server.log());
    assert!(took < SHUTDOWN_MAX, "{took:?}");
    assert!(!server.log().contains("panicked"), "{}", server.log());
    let next = Server::on(dir, &VERBOSE);
    assert!(next.log().contains("clean=true"), "{}", next.log());
    next
}

#[test]
fn signal_ends_idle_streams_with_last_chunk() {
    for signal in [Signal::TERM, Signal::INT] {
        let dir = tempfile::tempdir().expect("a folder");
        let mut server = Server::on(dir.path(), &[]);
        server.create("t", 1);
        let open = |group| {
            let mut connection = server.connect_raw();
            assert_eq!(connection.consume(&format!("topic=t&group=g{group}&owner=w")).status, 200);
            connection
        };
        let streams: Vec<_> = (0..20).map(open).collect();
        let silent = TcpStream::connect(server.addr).expect("connected");
        let mut idle = server.connect();
        assert_eq!(idle.call("GET", "/v1/version", &[], "").status, 200);
        let _next = stop_and_restart(&mut server, signal, "20 idle streams", dir.path());
        for mut stream in streams {
            assert_eq!(stream.rest(), "0\r\n\r\n", "the last chunk and the end");
        }
        drop((silent, idle));
    }
}

#[test]
fn stop_under_load_answers_accepted_requests_and_loses_nothing() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut server = Server::on(dir.path(), &[]);
    server.create("t", 1);
    let load = Load::start(&server, 6);
    let open = |group: usize| server.consume(&format!("topic=t&group=g{group}&owner=w&prefetch=100"));
    let readers: Vec<_> = (0..4)
        .map(open)
        .map(|mut stream| {
            std::thread::spawn(move || {
                let mut last = String::new();
                while let Some(line) = stream.line() {
                    last = line;
                }
                // The last line is complete.
                serde_json::from_str::<Value>(&last).is_ok()
            })
        })
        .collect();
    wait_until("there is some load", || load.count() > 200);
    let next = stop_and_restart(&mut server, Signal::TERM, "4 streams and 6 producers at work", dir.path());
    let acknowledged = load.stop();
    assert!(readers.into_iter().all(|reader| reader.join().expect("ended")), "a line was truncated");
    let found = values(&next, "after");
    let lost: Vec<_> = acknowledged.difference(&found).collect();
    assert!(lost.is_empty(), "{} acknowledged, lost: {lost:?}", acknowledged.len());
}

#[test]
fn stop_with_slow_disk_is_in_time_and_refuses_new_connections() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut server = Server::on(dir.path(), &["--sync-delay-ms", "300"]);
    server.create("t", 1);
    let addr = server.addr;
    let load = Load::start(&server, 8);
    wait_until("there is some load", || load.count() > 10);
    let connecting = std::thread::spawn(move || {
        let began = Instant::now();
        while began.elapsed() < TIMEOUT && TcpStream::connect(addr).is_ok() {
            std::thread::sleep(Duration::from_millis(1));
        }
        Instant::now()
    });
    let next = {
        server.signal(Signal::TERM);
        let refused = connecting.join().expect("ended");
        let was_running = server.is_running();
        let ended = server.wait();
        println!("SIGTERM with a slow disk: refused, then exited {:?} later", refused.elapsed());
        assert!(was_running, "connections are refused while accepted requests are answered");
        assert!(refused.elapsed() < SHUTDOWN_MAX);
        assert_eq!(ended.code(), Some(0));
        let next = Server::on(dir.path(), &VERBOSE);
        assert!(next.log().contains("clean=true"), "{}", next.log());
        next
    };
    let acknowledged = load.stop();
    let found = values(&next, "after");
    assert!(acknowledged.is_subset(&found), "{acknowledged:?} {found:?}");
}

#[test]
fn stop_is_not_delayed_by_stalled_stream() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut server = Server::on(dir.path(), &[]);
    server.create("t", 1);
    let body = serde_json::json!({ "topic": "t", "value": "v".repeat(500_000) }).to_string();
    for _ in 0..20 {
        // 429 while the next segment is being created.
        wait_until("the message is produced", || server.post("/v1/produce", &body).status == 200);
    }
    let mut stream = server.connect_slow_reader();
    assert_eq!(stream.consume("topic=t&group=g&owner=slow&lease_ms=60000").status, 200);
    let mut half = server.connect_raw();
    half.send(b"POST /v1/produce HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{");
    let what = "a stalled stream and half a request";
    let _next = stop_and_restart(&mut server, Signal::TERM, what, dir.path());
}

#[test]
fn stop_during_recovery_is_immediate() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut server = Server::on(dir.path(), &[]);
    server.create("t", 1);
    server.produce("t", "kept");
    server.terminate();
    for signal in [Signal::TERM, Signal::INT] {
        let mut server = Launch::new(dir.path(), &["--sync-delay-ms", "5000"]).start_listening();
        assert_eq!(server.get("/v1/healthz").status, 200, "alive");
        server.get("/v1/readyz").refused(503, "UNAVAILABLE");
        server.post("/v1/produce", r#"{"topic":"t","value":"early"}"#).refused(503, "UNAVAILABLE");
        assert_eq!(server.try_consume("topic=t&group=g&owner=w").head().status, 503);
        let began = Instant::now();
        server.signal(signal);
        assert_eq!(server.wait().code(), Some(0));
        println!("{signal:?} during recovery: exited after {:?}", began.elapsed());
        assert!(began.elapsed() < SHUTDOWN_MAX);
    }
    let server = Server::on(dir.path(), &[]);
    assert_eq!(values(&server, "g"), BTreeSet::from(["kept".to_owned()]));
}

#[test]
fn kill_under_load_loses_nothing_acknowledged_and_redelivers_nothing_acked() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut server = Server::on(dir.path(), &[]);
    server.create("t", 1);
    // Messages that all groups have finished are removed; this group keeps them.
    assert_eq!(server.post("/v1/groups", r#"{"topic":"t","group":"new"}"#).status, 201);
    let mut acknowledged = BTreeSet::new();
    let mut acked = BTreeSet::new();
    let mut attempts = BTreeMap::<u64, u64>::new();
    for round in 0..3 {
        let before = acknowledged.len();
        let load = Load::start(&server, 8);
        let mut stream = server.consume("topic=t&group=g&owner=w&lease_ms=200&prefetch=50");
        let mut acks = server.connect();
        let began = Instant::now();
        // Every other message is acked; the others are redelivered.
        while began.elapsed() < Duration::from_millis(700) || load.count() < 100 {
            assert!(began.elapsed() < TIMEOUT, "round {round}: no load");
            let Some(item) = stream.item() else { break };
            let offset = item["offset"].as_u64().expect("a number");
            let attempt = item["attempts"].as_u64().expect("a number");
            assert!(!acked.contains(&offset), "acked and delivered again: {item}");
            let last = attempts.insert(offset, attempt).unwrap_or_default();
            assert!(attempt > last, "attempt {attempt} after {last}: {item}");
            if offset % 2 == 0 {
                // With its token: if the lease has expired meanwhile, the message is already redelivered.
                let token = item["lease_token"].as_str().expect("a token");
                let lease = format!("topic=t&group=g&partition=0&offset={offset}&owner=w&lease_token={token}");
                if acks.call("POST", &format!("/v1/ack?{lease}"), &[], "").status == 204 {
                    acked.insert(offset);
                }
            }
        }
        server.kill();
        // Values of different rounds are equal, so they get a prefix.
        let now = load.stop();
        acknowledged.extend(now.into_iter().map(|value| format!("{round}/{value}")));
        assert!(acknowledged.len() > before);
        server = Server::on(dir.path(), &[]);
    }
    // The other group gets everything that was acknowledged, as often as it was sent.
    let mut all = BTreeMap::<String, usize>::new();
    for item in drain(&server, "new") {
        *all.entry(item["value"].as_str().expect("text").to_owned()).or_default() += 1;
    }
    let mut wanted = BTreeMap::<String, usize>::new();
    for value in &acknowledged {
        *wanted.entry(value.split_once('/').expect("a prefix").1.to_owned()).or_default() += 1;
    }
    let lost: Vec<_> = wanted.iter().filter(|(value, count)| all.get(*value) < Some(count)).collect();
    println!("{} acknowledged in three rounds, {} acked, {} lost", acknowledged.len(), acked.len(), lost.len());
    assert!(lost.is_empty(), "{lost:?}");
    // The first group gets what it has not acked, and nothing else.
    let rest = drain(&server, "g");
    for item in &rest {
        let offset = item["offset"].as_u64().expect("a number");
        assert!(!acked.contains(&offset), "acked and delivered again: {item}");
        assert!(item["attempts"].as_u64() > attempts.get(&offset).copied(), "{item}");
    }
    let sent: usize = all.values().sum();
    assert_eq!(rest.len() + acked.len(), sent, "every message was acked or delivered");
}

#[test]
fn broker_survives_closed_stderr() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut command = std::process::Command::new(driftqd());
    command.args(["--addr", "127.0.0.1:0", "--data-dir"]).arg(dir.path()).stderr(std::process::Stdio::piped());
    let mut child = KillOnDrop(command.spawn().expect("driftqd runs"));
    let mut log = BufReader::new(child.0.stderr.take().expect("piped")).lines().map_while(Result::ok);
    let addr = log.find_map(|line| line.split_once("listening on http://").map(|(_, addr)| addr.to_owned()));
    let addr = addr.expect("it listens");
    // What it logs later goes to a closed pipe.
    drop(log);
    let client = Client::new(addr.trim().parse().expect("an address"), TIMEOUT);
    let ready = || client.call(&Request::get("/v1/readyz")).is_ok_and(|reply| reply.status == 200);
    wait_until("it is ready", ready);
    rustix::process::kill_process(rustix::process::Pid::from_child(&child.0), Signal::TERM).expect("sent");
    assert_eq!(child.0.wait().expect("waited for").code(), Some(0));
}
