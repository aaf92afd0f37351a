//! The end of the process: asked for, it comes within a second and loses nobody's answer; unasked, it loses nothing acknowledged.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::rig::{SOON, Server, driftqd, until};

/// About a second is promised; a machine that is busy with other things gets another.
const AT_MOST: Duration = Duration::from_secs(2);

/// Producers that go on until the broker is gone, and what it has acknowledged to them.
struct Load {
    acknowledged: Arc<Mutex<Vec<String>>>,
    producers: Vec<JoinHandle<()>>,
    over: Arc<AtomicBool>,
}

impl Load {
    fn start(addr: SocketAddr, producers: usize) -> Self {
        let acknowledged = Arc::<Mutex<Vec<String>>>::default();
        let over = Arc::<AtomicBool>::default();
        let producer = |number| {
            let (acknowledged, over) = (Arc::clone(&acknowledged), Arc::clone(&over));
            std::thread::spawn(move || {
                let Ok(socket) = TcpStream::connect(addr) else { return };
                socket.set_read_timeout(Some(SOON)).expect("set");
                let mut socket = BufReader::new(socket);
                for round in 0.. {
                    let value = format!("{number}-{round}");
                    if over.load(Ordering::Relaxed) || send(&mut socket, &value) != Some(200) {
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

    /// What was acknowledged, now that nothing more will be.
    fn end(self) -> BTreeSet<String> {
        self.over.store(true, Ordering::Relaxed);
        self.producers.into_iter().for_each(|producer| producer.join().expect("ended"));
        let acknowledged = self.acknowledged.lock().expect("held");
        acknowledged.iter().cloned().collect()
    }
}

/// Produces; the status if there was one.
fn send(socket: &mut BufReader<TcpStream>, value: &str) -> Option<u16> {
    let body = format!("{{\"topic\":\"t\",\"value\":\"{value}\"}}");
    let head = format!("POST /v1/produce HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.len());
    socket.get_mut().write_all(format!("{head}{body}").as_bytes()).ok()?;
    let (mut status, mut len) = (None, 0);
    loop {
        let mut line = String::new();
        if socket.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end().to_ascii_lowercase();
        if let Some(rest) = line.strip_prefix("http/1.1 ") {
            status = rest[..3].parse().ok();
        } else if let Some(value) = line.strip_prefix("content-length: ") {
            len = value.parse().ok()?;
        } else if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; len];
    socket.read_exact(&mut body).ok()?;
    status
}

/// Everything a group can have; it is acked.
fn drained(server: &Server, group: &str) -> Vec<Value> {
    let query = format!("topic=t&group={group}&owner=drain&wait_ms=800&lease_ms=60000&prefetch=1000");
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

/// The values of everything a group can have, each once.
fn values(server: &Server, group: &str) -> BTreeSet<String> {
    let items = drained(server, group);
    let values: BTreeSet<_> = items.iter().map(|item| item["value"].as_str().expect("text").to_owned()).collect();
    assert_eq!(values.len(), items.len(), "some came twice");
    values
}

/// Asks it to end; it does so in time, in order, and says so at the next start, which is the answer.
#[track_caller]
fn ended_and_started_again(server: &mut Server, signal: &str, what: &str, dir: &Path) -> Server {
    let began = Instant::now();
    server.signal(signal);
    let status = server.wait();
    let took = began.elapsed();
    println!("{signal} with {what}: ended after {took:?}");
    assert_eq!(status.code(), Some(0), "{}", server.log());
    assert!(took < AT_MOST, "{took:?}");
    assert!(!server.log().contains("panicked"), "{}", server.log());
    let mut next = Server::on(dir, &[]);
    assert!(next.log().contains("clean=true"), "{}", next.log());
    next
}

#[test]
fn idle_streams_end_in_order_when_the_process_is_asked_to_end() {
    for signal in ["-TERM", "-INT"] {
        let dir = tempfile::tempdir().expect("a folder");
        let mut server = Server::on(dir.path(), &[]);
        server.create("t", 1);
        let open = |group| server.consume(&format!("topic=t&group=g{group}&owner=w"));
        let streams: Vec<_> = (0..20).map(open).collect();
        let silent = TcpStream::connect(server.addr).expect("connected");
        let mut idle = server.connect();
        assert_eq!(idle.call("GET", "/v1/version", &[], "").status, 200);
        let _next = ended_and_started_again(&mut server, signal, "20 idle streams", dir.path());
        for mut stream in streams {
            assert_eq!(stream.connection.rest(), "0\r\n\r\n", "the last chunk, and the end");
        }
        drop((silent, idle));
    }
}

#[test]
fn a_stop_under_load_answers_what_it_has_taken_and_loses_nothing() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut server = Server::on(dir.path(), &[]);
    server.create("t", 1);
    let load = Load::start(server.addr, 6);
    let open = |group: usize| server.consume(&format!("topic=t&group=g{group}&owner=w&prefetch=100"));
    let readers: Vec<_> = (0..4)
        .map(open)
        .map(|mut stream| {
            std::thread::spawn(move || {
                let mut last = String::new();
                while let Some(line) = stream.line() {
                    last = line;
                }
                // Whole lines only: the last one is a message as well.
                serde_json::from_str::<Value>(&last).is_ok()
            })
        })
        .collect();
    until("there is some load", || load.count() > 200);
    let next = ended_and_started_again(&mut server, "-TERM", "4 streams and 6 producers at work", dir.path());
    let acknowledged = load.end();
    assert!(readers.into_iter().all(|reader| reader.join().expect("ended")), "a line was cut");
    let found = values(&next, "after");
    let lost: Vec<_> = acknowledged.difference(&found).collect();
    assert!(lost.is_empty(), "{} acknowledged, lost: {lost:?}", acknowledged.len());
}

#[test]
fn a_stop_while_the_disk_is_slow_takes_no_longer_and_refuses_new_connections() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut server = Server::on(dir.path(), &["--sync-delay-ms", "300"]);
    server.create("t", 1);
    let addr = server.addr;
    let load = Load::start(addr, 8);
    until("there is some load", || load.count() > 10);
    let knocking = std::thread::spawn(move || {
        let began = Instant::now();
        while began.elapsed() < SOON && TcpStream::connect(addr).is_ok() {
            std::thread::sleep(Duration::from_millis(1));
        }
        Instant::now()
    });
    let next = {
        server.signal("-TERM");
        let refused = knocking.join().expect("ended");
        let was_running = server.is_running();
        let ended = server.wait();
        println!("SIGTERM with a slow disk: refused, then ended {:?} later", refused.elapsed());
        assert!(was_running, "connections are refused while what was let in is still answered");
        assert!(refused.elapsed() < AT_MOST);
        assert_eq!(ended.code(), Some(0));
        let mut next = Server::on(dir.path(), &[]);
        assert!(next.log().contains("clean=true"), "{}", next.log());
        next
    };
    let acknowledged = load.end();
    let found = values(&next, "after");
    assert!(acknowledged.is_subset(&found), "{acknowledged:?} {found:?}");
}

#[test]
fn a_stop_with_a_stream_that_reads_nothing_is_not_held_up() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut server = Server::on(dir.path(), &[]);
    server.create("t", 1);
    let body = serde_json::json!({ "topic": "t", "value": "v".repeat(500_000) }).to_string();
    for _ in 0..20 {
        assert_eq!(server.post("/v1/produce", &body).status, 200);
    }
    let socket = crate::rig::abrupt(server.addr);
    let stream = server.consume_over(server.over(socket), "topic=t&group=g&owner=slow&lease_ms=60000");
    assert_eq!(stream.head.status, 200);
    let mut half = server.connect();
    half.send(b"POST /v1/produce HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{");
    let what = "a stream that reads nothing and half a request";
    let _next = ended_and_started_again(&mut server, "-TERM", what, dir.path());
}

#[test]
fn a_stop_while_the_log_is_being_read_is_heeded_at_once() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut server = Server::on(dir.path(), &[]);
    server.create("t", 1);
    server.produce("t", "kept");
    server.terminate();
    for signal in ["-TERM", "-INT"] {
        let mut server = Server::launch(driftqd(), dir.path(), &["--sync-delay-ms", "5000"]);
        server.wait_listening();
        assert_eq!(server.get("/v1/healthz").status, 200, "alive");
        server.get("/v1/readyz").refused(503, "UNAVAILABLE");
        server.post("/v1/produce", r#"{"topic":"t","value":"early"}"#).refused(503, "UNAVAILABLE");
        assert_eq!(server.try_consume("topic=t&group=g&owner=w").head.status, 503);
        let began = Instant::now();
        server.signal(signal);
        assert_eq!(server.wait().code(), Some(0));
        println!("{signal} while recovering: ended after {:?}", began.elapsed());
        assert!(began.elapsed() < AT_MOST);
    }
    let server = Server::on(dir.path(), &[]);
    assert_eq!(values(&server, "g"), BTreeSet::from(["kept".to_owned()]));
}

#[test]
fn a_kill_under_load_loses_nothing_acknowledged_and_brings_back_nothing_acked() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut server = Server::on(dir.path(), &[]);
    server.create("t", 1);
    // What every group is done with is gone; this one keeps it all.
    assert_eq!(server.post("/v1/groups", r#"{"topic":"t","group":"new"}"#).status, 201);
    let mut acknowledged = BTreeSet::new();
    let mut acked = BTreeSet::new();
    let mut attempts = BTreeMap::<u64, u64>::new();
    for round in 0..3 {
        let before = acknowledged.len();
        let load = Load::start(server.addr, 8);
        let mut stream = server.consume("topic=t&group=g&owner=w&lease_ms=200&prefetch=50");
        let mut acks = server.connect();
        let began = Instant::now();
        // Every other message is acked; the others are left to come again.
        while began.elapsed() < Duration::from_millis(700) || load.count() < 100 {
            assert!(began.elapsed() < SOON, "round {round}: no load");
            let Some(item) = stream.item() else { break };
            let offset = item["offset"].as_u64().expect("a number");
            let attempt = item["attempts"].as_u64().expect("a number");
            assert!(!acked.contains(&offset), "acked, and here again: {item}");
            let last = attempts.insert(offset, attempt).unwrap_or_default();
            assert!(attempt > last, "attempt {attempt} after {last}: {item}");
            if offset % 2 == 0 {
                // With its token: should the lease have ended meanwhile, the message is already on its way again.
                let token = item["lease_token"].as_str().expect("a token");
                let lease = format!("topic=t&group=g&partition=0&offset={offset}&owner=w&lease_token={token}");
                if acks.call("POST", &format!("/v1/ack?{lease}"), &[], "").status == 204 {
                    acked.insert(offset);
                }
            }
        }
        server.kill();
        // Values of different rounds are told apart by what was there before.
        let now = load.end();
        acknowledged.extend(now.into_iter().map(|value| format!("{round}/{value}")));
        assert!(acknowledged.len() > before);
        server = Server::on(dir.path(), &[]);
    }
    // All that was acknowledged is there for a group that is new, in as many copies as it was sent.
    let mut all = BTreeMap::<String, usize>::new();
    for item in drained(&server, "new") {
        *all.entry(item["value"].as_str().expect("text").to_owned()).or_default() += 1;
    }
    let mut wanted = BTreeMap::<String, usize>::new();
    for value in &acknowledged {
        *wanted.entry(value.split_once('/').expect("made so").1.to_owned()).or_default() += 1;
    }
    let lost: Vec<_> = wanted.iter().filter(|(value, count)| all.get(*value) < Some(count)).collect();
    println!("{} acknowledged in three rounds, {} acked, {} lost", acknowledged.len(), acked.len(), lost.len());
    assert!(lost.is_empty(), "{lost:?}");
    // And the group that was at work gets what it has not acked, and nothing else.
    let rest = drained(&server, "g");
    for item in &rest {
        let offset = item["offset"].as_u64().expect("a number");
        assert!(!acked.contains(&offset), "acked, and here again: {item}");
        assert!(item["attempts"].as_u64() > attempts.get(&offset).copied(), "{item}");
    }
    let sent: usize = all.values().sum();
    assert_eq!(rest.len() + acked.len(), sent, "all is accounted for");
}

#[test]
fn the_broker_outlives_whoever_reads_its_log() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut command = driftqd();
    command.args(["--addr", "127.0.0.1:0", "--data-dir"]).arg(dir.path()).stderr(std::process::Stdio::piped());
    let mut child = command.spawn().expect("driftqd runs");
    let mut log = BufReader::new(child.stderr.take().expect("piped")).lines().map_while(Result::ok);
    let addr = log.find_map(|line| line.split_once("listening on http://").map(|(_, addr)| addr.to_owned()));
    let addr = addr.expect("it listens");
    // What it has yet to say (that it has read its log, is ready, stops, has stopped) goes nowhere.
    drop(log);
    let ready = || {
        let Ok(mut socket) = TcpStream::connect(&addr) else { return false };
        let ask = format!("GET /v1/readyz HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n");
        let mut answer = String::new();
        let asked = socket.write_all(ask.as_bytes()).and_then(|()| socket.read_to_string(&mut answer));
        asked.is_ok() && answer.starts_with("HTTP/1.1 200")
    };
    until("it is ready", ready);
    let killed = std::process::Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
    assert!(killed.expect("kill runs").success());
    assert_eq!(child.wait().expect("waited for").code(), Some(0));
}
