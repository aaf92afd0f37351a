//! Disks that are full, fail, are damaged or slow, clocks that jump, paused processes: acknowledged messages stay, and
//! what cannot be done is refused with its cause.
//!
//! What needs root or a missing tool is skipped with a line that says so.

use std::fs::OpenOptions;
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use driftq_tests::daemon::Signal;
use driftq_tests::torture::disk::Disk;
use driftq_tests::torture::tools;

use crate::harness::{Launch, Server, TIMEOUT, driftqd, exact_config_file, wait_until};
use crate::requests::ReplyExt;

/// Small segments, so that a small disk is soon full.
pub const SMALL: &str = "[storage]\nsegment_bytes = 1048576\nreserve_bytes = 131072\nsnapshot_every_bytes = 268435456\n\
                     [limits]\nmessage_bytes_max = 65536\nkey_bytes_max = 1024\nmetadata_bytes_max = 16384\n";

fn large(number: usize) -> String {
    format!("{number}-{}", "v".repeat(30_000))
}

fn ack(server: &Server, offset: u64) -> u16 {
    server.post(&format!("/v1/ack?topic=t&group=g&partition=0&offset={offset}&owner=w"), "").status
}

/// The values of all messages of the topic, in order.
fn values(server: &Server) -> Vec<String> {
    let (mut found, mut next) = (Vec::new(), 0);
    loop {
        let page = server.get(&format!("/v1/peek?topic=t&partition=0&offset={next}&limit=100")).json();
        let messages = page["messages"].as_array().expect("a list");
        let Some(last) = messages.last() else { return found };
        next = last["offset"].as_u64().expect("a number") + 1;
        found.extend(messages.iter().map(|item| item["value"].as_str().expect("text").to_owned()));
    }
}

#[test]
fn full_disk_refuses_produces_accepts_acks_and_recovers() {
    let folder = tempfile::tempdir().expect("a folder");
    if let Some(reason) = tools::missing_for_mounts() {
        println!("skipped: a full disk, because {reason}");
        return;
    }
    let disk = Disk::in_memory(6 << 20, folder.path()).expect("mounted");
    let config = exact_config_file(folder.path(), SMALL);
    let flags = ["--config", config.as_str()];
    let data = disk.path().join("data");
    let mut server = Server::on(&data, &flags);
    server.create("t", 1);
    let produce = |server: &Server, number: usize| {
        server.post("/v1/produce", serde_json::json!({ "topic": "t", "value": large(number) }).to_string())
    };
    let mut accepted = Vec::new();
    let mut busy = 0;
    let refused = loop {
        assert!(accepted.len() < 1_000, "the disk is never full");
        let reply = produce(&server, accepted.len());
        match reply.status {
            200 => accepted.push(large(accepted.len())),
            // The next segment may not be zeroed in time on a slow machine.
            429 if reply.body.contains("log_busy") && busy < 1_000 => {
                busy += 1;
                sleep(Duration::from_millis(10));
            }
            _ => break reply,
        }
    };
    refused.refused(507, "STORAGE_FULL");
    assert!(accepted.len() > 50, "full after {}", accepted.len());
    // Every further produce is refused.
    for number in 0..20 {
        produce(&server, 10_000 + number).refused(507, "STORAGE_FULL");
    }
    let batch = format!("{}\n", serde_json::json!({ "topic": "t", "value": large(9) })).repeat(3);
    let reply = server.call("POST", "/v1/produce", &[("Content-Type", "application/x-ndjson")], &batch);
    assert_eq!(reply.body.matches("{\"status\":507,\"error\":\"STORAGE_FULL\"").count(), 3, "{reply:?}");
    assert_eq!(server.get("/v1/readyz").status, 200);
    // Stored messages can be consumed and acked.
    let mut stream = server.consume("topic=t&group=g&owner=w&lease_ms=60000&max=10");
    for offset in 0..10 {
        assert_eq!(stream.item().expect("a message")["offset"], offset);
    }
    for offset in 0..5 {
        assert_eq!(ack(&server, offset), 204);
    }
    let nack = "/v1/nack?topic=t&group=g&partition=0&offset=5&owner=w";
    assert_eq!(server.post(nack, "").status, 204, "a nack succeeds too");
    assert_idle(&server);

    server.kill();
    let server = Server::on(&data, &flags);
    // The disk is full, so what is acked and retained goes soon; what is not acked stays.
    wait_until("acked messages are gone", || values(&server).len() <= accepted.len() - 5);
    let left = values(&server);
    assert!(left == accepted[5..], "{} of {} are left", left.len(), accepted.len());
    assert_eq!(ack(&server, 3), 204, "an acked message stays acked");
    disk.resize(64 << 20).expect("resized");
    wait_until("produces succeed with free space", || produce(&server, accepted.len()).status == 200);
    accepted.push(large(accepted.len()));
    assert!(values(&server) == accepted[5..]);
    let mut stream = server.consume("topic=t&group=g&owner=w2&lease_ms=60000&wait_ms=1000");
    let first = stream.item().expect("a message");
    assert!(first["offset"].as_u64() >= Some(5), "acked on a full disk and delivered again: {}", first["offset"]);
    drop(server);
}

#[test]
fn full_disk_that_is_drained_takes_messages_again_without_traffic() {
    let folder = tempfile::tempdir().expect("a folder");
    if let Some(reason) = tools::missing_for_mounts() {
        println!("skipped: a full disk, because {reason}");
        return;
    }
    let disk = Disk::in_memory(6 << 20, folder.path()).expect("mounted");
    let config = exact_config_file(folder.path(), SMALL);
    let server = Server::on(&disk.path().join("data"), &["--config", config.as_str()]);
    // Acked messages are retained, as by default.
    server.post("/v1/topics", r#"{"name": "t", "partitions": 1, "retention_ms": 3600000}"#);
    let produce = |number: usize| {
        server.post("/v1/produce", serde_json::json!({ "topic": "t", "value": large(number) }).to_string())
    };
    let mut stream = server.consume("topic=t&group=g&owner=w&lease_ms=60000&prefetch=1000");
    let mut accepted = 0;
    for _ in 0..3_000 {
        match produce(accepted).status {
            200 => accepted += 1,
            429 => sleep(Duration::from_millis(10)),
            507 => break,
            other => panic!("{other}"),
        }
    }
    produce(accepted).refused(507, "STORAGE_FULL");
    for _ in 0..accepted {
        let offset = stream.item().expect("a message")["offset"].as_u64().expect("a number");
        assert_eq!(ack(&server, offset), 204);
    }
    // Nothing happens for five seconds.
    sleep(Duration::from_secs(5));
    assert_eq!(produce(accepted).status, 200);
}

/// Asserts that the broker uses little CPU time while there is nothing to do.
#[track_caller]
fn assert_idle(server: &Server) {
    let (before, began) = (server.cpu_time(), Instant::now());
    sleep(Duration::from_millis(300));
    let used = server.cpu_time() - before;
    assert!(used < began.elapsed() / 2, "{used:?} of CPU time in {:?} without work", began.elapsed());
}

/// A broker with a fault injected into its system calls; the calls are traced to a file.
fn with_syscall_fault(folder: &Path, call: &str, inject: &str) -> Option<Server> {
    let (data, config) = (folder.join("data"), exact_config_file(folder, SMALL));
    let mut server = Server::on(&data, &["--config", &config]);
    server.create("t", 1);
    server.terminate();
    if let Some(reason) = tools::missing_for_syscalls() {
        println!("skipped: failing {call}, because {reason}");
        return None;
    }
    let (trace_file, trace) = (folder.join("trace"), format!("trace={call}"));
    let (trace_file, inject) = (trace_file.to_str().expect("a path"), format!("inject={call}:{inject}"));
    // -D: the broker is the child of this process, and strace a child of the broker.
    let wrapper = ["strace", "-D", "-f", "-qq", "-o", trace_file, "-e", &trace, "-e", &inject];
    match Launch::new(&data, &["--config", &config]).wrapper(&wrapper).start() {
        Ok(server) => Some(server),
        Err(failure) if failure.log.to_lowercase().contains("ptrace") => {
            println!("skipped: failing {call}, because strace may not trace here ({})", failure.status);
            None
        }
        Err(failure) => panic!("no start: {failure:?}"),
    }
}

/// Produces until the disk fails, and asserts that nothing succeeds afterwards. Returns the acknowledged values.
fn produce_until_failure(server: &mut Server) -> Vec<String> {
    let mut stream = server.consume("topic=t&group=g&owner=w");
    let mut accepted = Vec::new();
    let refused = loop {
        assert!(accepted.len() < 200, "nothing failed");
        let value = format!("m{}", accepted.len());
        let reply = server.post("/v1/produce", format!("{{\"topic\":\"t\",\"value\":\"{value}\"}}"));
        match reply.status {
            200 => accepted.push(value),
            _ => break reply,
        }
    };
    refused.refused(503, "UNAVAILABLE");
    for _ in 0..5 {
        server.post("/v1/produce", r#"{"topic":"t","value":"later"}"#).refused(503, "UNAVAILABLE");
    }
    assert_eq!(ack(server, 0), 503);
    server.post("/v1/topics", r#"{"name":"new"}"#).refused(503, "UNAVAILABLE");
    server.get("/v1/readyz").refused(503, "UNAVAILABLE");
    assert_eq!(server.get("/v1/healthz").status, 200);
    assert_eq!(server.try_consume("topic=t&group=g&owner=w").head().status, 503);
    let delivered: Vec<String> =
        stream.items().iter().map(|item| item["value"].as_str().expect("text").to_owned()).collect();
    assert!(delivered.iter().all(|value| accepted.contains(value)), "delivered before the sync: {delivered:?}");
    let log = server.log_with("nothing more is accepted");
    let errors = log.lines().filter(|line| line.contains("ERROR") && line.contains("nothing more is accepted")).count();
    assert_eq!(errors, 1, "the cause is logged once: {log}");
    assert!(log.contains("Input/output error"), "{log}");
    assert_idle(server);
    accepted
}

#[test]
fn stalled_sync_makes_the_broker_unready_until_it_ends() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(server) = with_syscall_fault(folder.path(), "fdatasync", "delay_enter=6500000:when=15") else { return };
    let is_stopped = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let began = Instant::now();
            while !is_stopped.load(std::sync::atomic::Ordering::Relaxed) && began.elapsed() < 2 * TIMEOUT {
                assert_eq!(server.post("/v1/produce", r#"{"topic":"t","value":"v"}"#).status, 200);
            }
        });
        wait_until("the log is stalled", || server.get("/v1/readyz").status == 503);
        let reply = server.get("/v1/readyz");
        is_stopped.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(reply.refused(503, "UNAVAILABLE").contains("log stalled"), "{reply:?}");
        assert_eq!(server.get("/v1/healthz").status, 200);
        wait_until("the sync has ended", || server.get("/v1/readyz").status == 200);
    });
}

#[test]
fn failing_sync_stops_writes_is_not_retried_and_loses_nothing_acknowledged() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(mut server) = with_syscall_fault(folder.path(), "fdatasync", "error=EIO:when=15") else { return };
    let accepted = produce_until_failure(&mut server);
    server.kill();
    let trace = std::fs::read_to_string(folder.path().join("trace")).expect("a trace");
    let failed = trace.lines().position(|line| line.contains("INJECTED")).expect("an injected failure");
    let thread = |line: &str| line.split_whitespace().next().map(str::to_owned);
    let lines: Vec<&str> = trace.lines().collect();
    let retried =
        lines[failed + 1..].iter().filter(|line| thread(line) == thread(lines[failed]) && line.contains("sync"));
    assert_eq!(retried.count(), 0, "retried: {trace}");
    let server = Server::on(&folder.path().join("data"), &[]);
    let found = values(&server);
    assert!(
        found.starts_with(&accepted) && found.len() <= accepted.len() + 1,
        "{} accepted, found {found:?}",
        accepted.len()
    );
}

#[test]
fn requests_waiting_for_failing_sync_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    // The sixth sync of the thread that writes the log is slow and then fails.
    let Some(server) = with_syscall_fault(folder.path(), "fdatasync", "error=EIO:delay_enter=400000:when=6+") else {
        return;
    };
    let mut statuses = Vec::new();
    for _ in 0..20 {
        let callers: Vec<_> = (0..8)
            .map(|_| {
                let mut connection = server.connect();
                std::thread::spawn(move || connection.call("POST", "/v1/produce", &[], r#"{"topic":"t","value":"x"}"#))
            })
            .collect();
        let replies: Vec<_> = callers.into_iter().map(|caller| caller.join().expect("answered")).collect();
        statuses.extend(replies.iter().map(|reply| reply.status));
        if let Some(refused) = replies.iter().find(|reply| reply.status != 200) {
            refused.refused(503, "UNAVAILABLE");
            break;
        }
    }
    assert!(statuses.contains(&503), "nothing failed");
    assert!(statuses.iter().all(|status| [200, 503].contains(status)), "{statuses:?}");
    let acknowledged = statuses.iter().filter(|status| **status == 200).count();
    drop(server);
    let server = Server::on(&folder.path().join("data"), &[]);
    assert!(values(&server).len() >= acknowledged, "{acknowledged} acknowledged");
}

#[test]
fn failing_write_stops_writes_and_leaves_no_partial_record() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(mut server) = with_syscall_fault(folder.path(), "pwrite64", "error=EIO:when=25") else { return };
    let accepted = produce_until_failure(&mut server);
    server.kill();
    let server = Server::on(&folder.path().join("data"), &[]);
    assert_eq!(values(&server), accepted);
}

/// Starts a broker that must exit with 1. Returns its log.
#[track_caller]
fn start_refused(data_dir: &Path) -> String {
    let failure = Server::try_on(data_dir, &[]).err().expect("no start");
    assert_eq!(failure.status.code(), Some(1), "{}", failure.log);
    assert!(!failure.log.contains("panicked"), "{}", failure.log);
    failure.log
}

#[test]
fn second_broker_on_folder_is_refused_and_first_continues() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut first = Server::on(folder.path(), &[]);
    first.create("t", 1);
    let log = start_refused(folder.path());
    assert!(log.contains(folder.path().to_str().expect("a name")) && log.contains("in use"), "{log}");
    assert!(log.contains(&first.pid().to_string()), "it names the process: {log}");
    first.produce("t", "x");
    assert!(first.is_running());
    first.kill();
    let server = Server::on(folder.path(), &[]);
    assert_eq!(values(&server), ["x"]);
}

#[test]
fn unusable_data_folder_is_refused_with_cause() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    std::fs::write(&file, "not a folder").expect("written");
    let log = start_refused(&file);
    assert!(log.contains(file.to_str().expect("a name")) && log.contains("is not a folder"), "{log}");
    let below = file.join("data");
    let log = start_refused(&below);
    assert!(log.contains(file.to_str().expect("a name")), "{log}");
    assert_eq!(std::fs::read(&file).expect("read"), b"not a folder");
    // Not even root may write here.
    let log = start_refused(Path::new("/proc/driftq-data"));
    assert!(log.contains("/proc/driftq-data"), "{log}");
}

#[test]
fn address_in_use_is_refused_with_cause() {
    let folder = tempfile::tempdir().expect("a folder");
    let taken = TcpListener::bind("127.0.0.1:0").expect("bound");
    let addr = taken.local_addr().expect("an address").to_string();
    let mut command = Command::new(driftqd());
    command.args(["--addr", &addr, "--data-dir"]).arg(folder.path());
    let output = command.output().expect("it runs");
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{log}");
    assert!(log.contains(&format!("cannot listen on {addr}")) && log.contains("in use"), "{log}");
}

/// The last segment of a log, and where its data ends.
fn last_segment(dir: &Path) -> (PathBuf, u64) {
    let mut segments: Vec<PathBuf> = std::fs::read_dir(dir)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| std::fs::read(path).is_ok_and(|bytes| bytes.starts_with(b"DRIFTQWL")))
        .collect();
    segments.sort();
    let file = segments.pop().expect("a segment");
    let bytes = std::fs::read(&file).expect("read");
    let end = bytes.iter().rposition(|byte| *byte != 0).expect("some data") as u64 + 1;
    (file, end)
}

#[test]
fn garbage_after_last_frame_is_truncated_with_warning() {
    for garbage in [&[0xff; 100][..], &[1], b"text that is not a frame"] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut server = Server::on(folder.path(), &[]);
        server.create("t", 1);
        for number in 0..10 {
            server.produce("t", &number.to_string());
        }
        server.kill();
        let (file, end) = last_segment(folder.path());
        let segment = OpenOptions::new().write(true).open(&file).expect("opened");
        // It is after everything that was synced.
        segment.write_all_at(garbage, end).expect("written");
        let mut server = Server::on(folder.path(), &[]);
        assert_eq!(values(&server).len(), 10);
        let log = server.log();
        assert_eq!(log.matches("torn tail").count(), 1, "one warning: {log}");
        server.produce("t", "more");
        server.kill();
        let server = Server::on(folder.path(), &[]);
        assert_eq!(values(&server).len(), 11);
        assert!(!server.log().contains("torn tail"), "only the first start warns");
    }
}

#[test]
fn flipped_bit_in_synced_data_is_refused_with_position_and_remedy() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = Server::on(folder.path(), &[]);
    server.create("t", 1);
    for number in 0..20 {
        server.produce("t", &format!("value-{number}-{}", "v".repeat(100)));
    }
    server.kill();
    let (file, _) = last_segment(folder.path());
    let whole = std::fs::read(&file).expect("read");
    let at = whole.windows(8).position(|bytes| bytes == b"value-7-").expect("the eighth message");
    for (at, bit) in [(at, 0), (at + 3, 7), (at + 50, 4)] {
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << bit;
        std::fs::write(&file, &damaged).expect("written");
        let log = start_refused(folder.path());
        let name = file.file_name().and_then(|name| name.to_str()).expect("a name");
        for text in [name, "corrupt at byte ", "driftqd wal verify", "wal salvage"] {
            assert!(log.contains(text), "{text:?} is not in {log}");
        }
        let (_, position) = log.split_once("corrupt at byte ").expect("a position");
        let position: usize =
            position.split(|c: char| !c.is_ascii_digit()).next().expect("digits").parse().expect("a number");
        assert!(position <= at && at - position < 300, "byte {at} was damaged, reported {position}");
        assert_eq!(std::fs::read(&file).expect("read"), damaged, "nothing was changed");
    }
    std::fs::write(&file, &whole).expect("written");
    let server = Server::on(folder.path(), &[]);
    assert_eq!(values(&server).len(), 20, "with the bit restored it starts");
}

#[test]
fn slow_disk_makes_batches_larger() {
    let server = Server::with(&["--sync-delay-ms", "50"]);
    server.create("t", 1);
    let syncs = |server: &Server| -> f64 {
        let metrics = server.get("/metrics").body;
        let line = metrics.lines().find_map(|line| line.strip_prefix("driftq_log_sync_seconds_count "));
        line.unwrap_or_else(|| panic!("no such metric: {metrics}")).parse().expect("a number")
    };
    let before = syncs(&server);
    let began = Instant::now();
    let callers: Vec<_> = (0..32)
        .map(|_| {
            let mut connection = server.connect();
            std::thread::spawn(move || {
                (0..10).all(|_| {
                    let body = r#"{"topic":"t","value":"x"}"#;
                    connection.call("POST", "/v1/produce", &[], body).status == 200
                })
            })
        })
        .collect();
    assert!(callers.into_iter().all(|caller| caller.join().expect("ended")), "a produce failed");
    let made = syncs(&server) - before;
    println!("320 messages, {made} syncs of 50 ms, {:?}", began.elapsed());
    assert!(made <= 80.0, "{made} syncs for 320 messages");
    assert!(began.elapsed() >= Duration::from_millis(500), "a response before the sync");
    let server = server.crash_and_restart();
    assert_eq!(values(&server).len(), 320);
}

#[test]
fn response_and_delivery_follow_sync() {
    let server = Server::with(&["--sync-delay-ms", "200"]);
    server.create("t", 1);
    let mut stream = server.consume("topic=t&group=g&owner=w");
    // The disk must be idle, or the message would also wait for earlier syncs.
    sleep(Duration::from_millis(500));
    let began = Instant::now();
    let delivered = std::thread::spawn(move || stream.item().map(|_| began.elapsed()));
    server.produce("t", "x");
    assert!(began.elapsed() >= Duration::from_millis(200), "a response after {:?}", began.elapsed());
    let delivered = delivered.join().expect("ended").expect("a message");
    assert!(delivered >= Duration::from_millis(200), "delivered after {delivered:?}");
}

#[test]
fn worker_paused_past_its_lease_is_fenced() {
    let server = Server::start();
    server.create("t", 1);
    server.produce("t", "x");
    let mut stream = server.consume("topic=t&group=g&owner=w&lease_ms=500&max=1");
    let item = stream.item().expect("a message");
    let token = item["lease_token"].as_str().expect("a token");
    let mut waiting = server.consume("topic=t&group=g&owner=w&lease_ms=60000&max=1");
    server.signal(Signal::STOP);
    sleep(Duration::from_millis(800));
    server.signal(Signal::CONT);
    let again = waiting.item().expect("a redelivery");
    assert_eq!(again["attempts"], 2);
    let ack = |owner: &str, token: &str| {
        let lease = format!("topic=t&group=g&partition=0&offset=0&owner={owner}&lease_token={token}");
        server.post(&format!("/v1/ack?{lease}"), "")
    };
    let message = ack("w", token).refused(409, "FAILED_PRECONDITION");
    assert!(message.contains("stale lease"), "{message}");
    ack("other", token).refused(409, "FAILED_PRECONDITION");
    assert_eq!(ack("w", again["lease_token"].as_str().expect("a token")).status, 204);
}

#[test]
fn file_limit_refuses_connections_and_keeps_open_ones() {
    let folder = tempfile::tempdir().expect("a folder");
    if !tools::runs("prlimit", "--version") {
        println!("skipped: a limit on open files, because there is no prlimit");
        return;
    }
    let launch = Launch::new(folder.path(), &[]).wrapper(&["prlimit", "--nofile=64:64"]);
    let mut server = launch.start().expect("it starts");
    server.create("t", 1);
    let mut open = server.connect();
    assert_eq!(open.call("GET", "/v1/version", &[], "").status, 200);
    let crowd: Vec<_> = (0..120).map(|_| server.connect_raw()).collect();
    for _ in 0..20 {
        let body = r#"{"topic":"t","value":"x"}"#;
        assert_eq!(open.call("POST", "/v1/produce", &[], body).status, 200);
    }
    assert_idle(&server);
    drop(crowd);
    let began = Instant::now();
    assert_eq!(server.get("/v1/version").status, 200);
    assert!(began.elapsed() < TIMEOUT);
    server.kill();
    let server = Server::on(folder.path(), &[]);
    assert_eq!(values(&server).len(), 20);
}
