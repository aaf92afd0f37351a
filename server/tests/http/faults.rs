//! Disks that fill, fail, lie or are slow, clocks that jump, processes that sleep: what was acknowledged stays, what cannot be done
//! is refused by name.
//!
//! Some of this needs root or a tool; where it is missing one line says what was skipped.

use std::fs::OpenOptions;
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::rig::{SOON, Server, config_file, driftqd, until, within};

/// Small files, so that a small disk is soon full.
pub const SMALL: &str = "[storage]\nsegment_bytes = 1048576\nreserve_bytes = 131072\nsnapshot_every_bytes = 268435456\n\
                     [limits]\nmessage_bytes_max = 65536\nkey_bytes_max = 1024\nmetadata_bytes_max = 16384\n";

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub fn has(tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    found.is_ok_and(|status| status.success())
}

/// A disk in memory; it goes when this does.
struct Disk(PathBuf);

impl Disk {
    fn of(folder: &Path, size: &str) -> Option<Self> {
        std::fs::create_dir_all(folder).expect("made");
        let options = format!("size={size}");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "driftq-test"]).arg(folder).status();
        mounted.is_ok_and(|status| status.success()).then(|| Self(folder.to_owned()))
    }

    fn resize(&self, size: &str) {
        let options = format!("remount,size={size}");
        let done = Command::new("mount").args(["-o", &options]).arg(&self.0).status().expect("mount runs");
        assert!(done.success());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: whatever still holds it open is about to end.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn large(number: usize) -> String {
    format!("{number}-{}", "v".repeat(30_000))
}

fn ack(server: &Server, offset: u64) -> u16 {
    server.post(&format!("/v1/ack?topic=t&group=g&partition=0&offset={offset}&owner=w"), "").status
}

/// Values of all messages the topic still has, in order.
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
fn a_full_disk_refuses_produces_by_name_still_takes_acks_and_goes_on_when_there_is_room() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = is_root().then(|| Disk::of(&folder.path().join("disk"), "6m")).flatten();
    let Some(disk) = disk else {
        println!("skipped: a full disk, as it takes root to mount one");
        return;
    };
    let config = config_file(folder.path(), SMALL);
    let flags = ["--config", config.as_str()];
    let data = disk.0.join("data");
    let mut server = Server::on(&data, &flags);
    server.create("t", 1);
    let produce = |server: &Server, number: usize| {
        server.post("/v1/produce", serde_json::json!({ "topic": "t", "value": large(number) }).to_string())
    };
    let mut taken = Vec::new();
    let mut asked_to_wait = 0;
    let refused = loop {
        assert!(taken.len() < 1_000, "the disk is never full");
        let reply = produce(&server, taken.len());
        match reply.status {
            200 => taken.push(large(taken.len())),
            // A slow machine may not have zeroed the next segment in time: the broker says so, and that it will pass.
            429 if reply.body.contains("log_busy") && asked_to_wait < 1_000 => {
                asked_to_wait += 1;
                std::thread::sleep(Duration::from_millis(10));
            }
            _ => break reply,
        }
    };
    refused.refused(507, "STORAGE_FULL");
    assert!(taken.len() > 50, "full after {}", taken.len());
    // Again and again, and nothing but that.
    for number in 0..20 {
        produce(&server, 10_000 + number).refused(507, "STORAGE_FULL");
    }
    let batch = format!("{}\n", serde_json::json!({ "topic": "t", "value": large(9) })).repeat(3);
    let reply = server.call("POST", "/v1/produce", &[("Content-Type", "application/x-ndjson")], &batch);
    assert_eq!(reply.body.matches("{\"status\":507,\"error\":\"STORAGE_FULL\"").count(), 3, "{reply:?}");
    assert_eq!(server.get("/v1/readyz").status, 200);
    // What is there can be worked off.
    let mut stream = server.consume("topic=t&group=g&owner=w&lease_ms=60000&max=10");
    for offset in 0..10 {
        assert_eq!(stream.item().expect("a message")["offset"], offset);
    }
    for offset in 0..5 {
        assert_eq!(ack(&server, offset), 204);
    }
    let nack = "/v1/nack?topic=t&group=g&partition=0&offset=5&owner=w";
    assert_eq!(server.post(nack, "").status, 204, "a nack as well");
    let idle = (server.busy(), Instant::now());
    assert!(!within(Duration::from_millis(300), || false));
    let busy = server.busy() - idle.0;
    assert!(busy < idle.1.elapsed() / 2, "a full disk keeps it busy for {busy:?}");

    server.kill();
    let server = Server::on(&data, &flags);
    assert!(values(&server) == taken[5..], "torn or lost: {} are left of {}", values(&server).len(), taken.len());
    assert_eq!(ack(&server, 3), 204, "done stays done");
    disk.resize("64m");
    until("it goes on when there is room", || produce(&server, taken.len()).status == 200);
    taken.push(large(taken.len()));
    assert!(values(&server) == taken[5..]);
    let mut stream = server.consume("topic=t&group=g&owner=w2&lease_ms=60000&wait_ms=1000");
    let first = stream.item().expect("a message");
    assert!(first["offset"].as_u64() >= Some(5), "acked on a full disk, and here again: {}", first["offset"]);
    drop(server);
}

/// A broker whose system calls are meddled with as `inject` says, and where the calls are written down.
fn meddled(folder: &Path, call: &str, inject: &str) -> Option<Server> {
    let (data, trace, config) = (folder.join("data"), folder.join("trace"), config_file(folder, SMALL));
    let mut server = Server::on(&data, &["--config", &config]);
    server.create("t", 1);
    server.terminate();
    if !has("strace") {
        println!("skipped: {call} that fails, as there is no strace");
        return None;
    }
    let mut command = Command::new("strace");
    // -D: the broker is our child, and strace is its.
    command.args(["-D", "-f", "-qq", "-o"]).arg(trace);
    command.args(["-e", &format!("trace={call}"), "-e", &format!("inject={call}:{inject}")]);
    command.arg(env!("CARGO_BIN_EXE_driftqd"));
    match Server::try_command(command, &data, &["--config", &config]) {
        Ok(server) => Some(server),
        Err((status, log)) if log.iter().any(|line| line.contains("ptrace") || line.contains("PTRACE")) => {
            println!("skipped: {call} that fails, as strace may not trace here ({status})");
            None
        }
        Err((status, log)) => panic!("no start, {status}: {log:?}"),
    }
}

/// Produces until the disk fails under it, and looks at everything that must then be so. Gives what was acknowledged.
fn fails_for_good(server: &mut Server) -> Vec<String> {
    let mut stream = server.consume("topic=t&group=g&owner=w");
    let mut taken = Vec::new();
    let refused = loop {
        assert!(taken.len() < 200, "nothing failed");
        let value = format!("m{}", taken.len());
        let reply = server.post("/v1/produce", format!("{{\"topic\":\"t\",\"value\":\"{value}\"}}"));
        match reply.status {
            200 => taken.push(value),
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
    assert_eq!(server.try_consume("topic=t&group=g&owner=w").head.status, 503);
    let seen: Vec<String> =
        std::iter::from_fn(|| stream.item()).map(|item| item["value"].as_str().expect("text").to_owned()).collect();
    assert!(seen.iter().all(|value| taken.contains(value)), "delivered before it was safe: {seen:?}");
    let log = server.log();
    let told = log.lines().filter(|line| line.contains("ERROR") && line.contains("nothing more is accepted")).count();
    assert_eq!(told, 1, "the log says why, once: {log}");
    assert!(log.contains("Input/output error"), "{log}");
    let idle = (server.busy(), Instant::now());
    assert!(!within(Duration::from_millis(300), || false));
    let busy = server.busy() - idle.0;
    assert!(busy < idle.1.elapsed() / 2, "it is busy with nothing for {busy:?}");
    taken
}

#[test]
fn a_failing_sync_ends_it_all_is_never_tried_again_and_loses_nothing_acknowledged() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(mut server) = meddled(folder.path(), "fdatasync", "error=EIO:when=15") else { return };
    let taken = fails_for_good(&mut server);
    server.kill();
    let trace = std::fs::read_to_string(folder.path().join("trace")).expect("a trace");
    let failed = trace.lines().position(|line| line.contains("INJECTED")).expect("one was made to fail");
    let thread = |line: &str| line.split_whitespace().next().map(str::to_owned);
    let lines: Vec<&str> = trace.lines().collect();
    let again =
        lines[failed + 1..].iter().filter(|line| thread(line) == thread(lines[failed]) && line.contains("sync"));
    assert_eq!(again.count(), 0, "tried again: {trace}");
    let server = Server::on(&folder.path().join("data"), &[]);
    let found = values(&server);
    assert!(found.starts_with(&taken) && found.len() <= taken.len() + 1, "{} taken, found {found:?}", taken.len());
}

#[test]
fn requests_held_by_a_failing_sync_are_all_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    // The sixth sync of the thread that writes the log takes its time and then fails.
    let Some(server) = meddled(folder.path(), "fdatasync", "error=EIO:delay_enter=400000:when=6+") else { return };
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
fn a_failing_write_ends_it_all_and_leaves_nothing_torn() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(mut server) = meddled(folder.path(), "pwrite64", "error=EIO:when=25") else { return };
    let taken = fails_for_good(&mut server);
    server.kill();
    let server = Server::on(&folder.path().join("data"), &[]);
    assert_eq!(values(&server), taken);
}

#[test]
fn a_second_broker_on_the_same_folder_is_refused_and_the_first_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut first = Server::on(folder.path(), &[]);
    first.create("t", 1);
    let (status, log) = Server::try_on(folder.path(), &[]).err().expect("it must not start");
    let log = log.join("\n");
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains(folder.path().to_str().expect("a name")) && log.contains("in use"), "{log}");
    assert!(log.contains(&first.pid().to_string()), "it says by whom: {log}");
    first.produce("t", "x");
    assert!(first.is_running());
    first.kill();
    let server = Server::on(folder.path(), &[]);
    assert_eq!(values(&server), ["x"]);
}

#[test]
fn places_that_cannot_be_used_are_refused_in_words() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    std::fs::write(&file, "not a folder").expect("written");
    let refused = |dir: &Path, flags: &[&str]| {
        let (status, log) = Server::try_on(dir, flags).err().expect("it must not start");
        let log = log.join("\n");
        assert_eq!(status.code(), Some(1), "{log}");
        assert!(!log.contains("panicked"), "{log}");
        log
    };
    let log = refused(&file, &[]);
    assert!(log.contains(file.to_str().expect("a name")) && log.contains("is not a folder"), "{log}");
    let below = file.join("data");
    let log = refused(&below, &[]);
    assert!(log.contains(file.to_str().expect("a name")), "{log}");
    assert_eq!(std::fs::read(&file).expect("read"), b"not a folder");
    // Not even root may write here.
    let log = refused(Path::new("/proc/driftq-data"), &[]);
    assert!(log.contains("/proc/driftq-data"), "{log}");
}

#[test]
fn an_address_in_use_is_refused_in_words() {
    let folder = tempfile::tempdir().expect("a folder");
    let taken = TcpListener::bind("127.0.0.1:0").expect("bound");
    let addr = taken.local_addr().expect("an address").to_string();
    let mut command = driftqd();
    command.args(["--addr", &addr, "--data-dir"]).arg(folder.path());
    let output = command.output().expect("it runs");
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{log}");
    assert!(log.contains(&format!("cannot listen on {addr}")) && log.contains("in use"), "{log}");
}

/// The last segment of a log and where its data ends.
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
fn garbage_behind_the_last_frame_is_cut_with_a_warning_and_nothing_is_lost() {
    for garbage in [&[0xff; 100][..], &[1], b"not a frame at all, just some text that lies there"] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut server = Server::on(folder.path(), &[]);
        server.create("t", 1);
        for number in 0..10 {
            server.produce("t", &number.to_string());
        }
        server.kill();
        let (file, end) = last_segment(folder.path());
        let segment = OpenOptions::new().write(true).open(&file).expect("opened");
        // Frames begin at multiples of eight bytes or not; wherever it lies, it is behind all that was synced.
        segment.write_all_at(garbage, end).expect("written");
        let mut server = Server::on(folder.path(), &[]);
        assert_eq!(values(&server).len(), 10);
        let log = server.log();
        assert_eq!(log.matches("torn tail").count(), 1, "one warning: {log}");
        server.produce("t", "more");
        server.kill();
        let mut server = Server::on(folder.path(), &[]);
        assert_eq!(values(&server).len(), 11);
        assert!(!server.log().contains("torn tail"), "and only once");
    }
}

#[test]
fn a_flipped_bit_in_what_was_synced_is_refused_with_the_place_and_the_way_out() {
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
        let (status, log) = Server::try_on(folder.path(), &[]).err().expect("it must not start");
        let log = log.join("\n");
        assert_eq!(status.code(), Some(1), "{log}");
        let name = file.file_name().and_then(|name| name.to_str()).expect("a name");
        for word in [name, "corrupt at byte ", "driftqd wal verify", "wal salvage"] {
            assert!(log.contains(word), "{word:?} is not in {log}");
        }
        let (_, place) = log.split_once("corrupt at byte ").expect("there");
        let place: usize =
            place.split(|c: char| !c.is_ascii_digit()).next().expect("digits").parse().expect("a number");
        assert!(place <= at && at - place < 300, "byte {at} was damaged, it says {place}");
        assert_eq!(std::fs::read(&file).expect("read"), damaged, "nothing was changed");
    }
    std::fs::write(&file, &whole).expect("written");
    let server = Server::on(folder.path(), &[]);
    assert_eq!(values(&server).len(), 20, "with the bit put right all is there");
}

#[test]
fn a_slow_disk_makes_batches_larger_and_answers_everybody() {
    let server = Server::with(&["--sync-delay-ms", "50"]);
    server.create("t", 1);
    let syncs = |server: &Server| -> f64 {
        let figures = server.get("/metrics").body;
        let line = figures.lines().find_map(|line| line.strip_prefix("log_sync_seconds_count "));
        line.unwrap_or_else(|| panic!("no such figure: {figures}")).parse().expect("a number")
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
    assert!(callers.into_iter().all(|caller| caller.join().expect("ended")), "not everybody was answered");
    let made = syncs(&server) - before;
    println!("320 messages, {made} syncs of 50 ms, {:?}", began.elapsed());
    assert!(made <= 80.0, "{made} syncs for 320 messages");
    assert!(began.elapsed() >= Duration::from_millis(500), "answered before the sync");
    let server = server.crash_and_restart();
    assert_eq!(values(&server).len(), 320);
}

#[test]
fn nothing_is_answered_or_delivered_before_it_is_synced() {
    let server = Server::with(&["--sync-delay-ms", "200"]);
    server.create("t", 1);
    let mut stream = server.consume("topic=t&group=g&owner=w");
    // The disk is to have nothing left to do, or the message would wait for that as well.
    assert!(!within(Duration::from_millis(500), || false));
    let began = Instant::now();
    let delivered = std::thread::spawn(move || stream.item().map(|_| began.elapsed()));
    server.produce("t", "x");
    assert!(began.elapsed() >= Duration::from_millis(200), "answered after {:?}", began.elapsed());
    let delivered = delivered.join().expect("ended").expect("a message");
    assert!(delivered >= Duration::from_millis(200), "delivered after {delivered:?}");
}

/// The library that lies about the time, where it is installed.
fn lying_clock() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    folders.map(|folder| folder.join("faketime/libfaketimeMT.so.1")).find(|library| library.exists())
}

/// Starts a broker whose wall clock is off by so much.
fn at(dir: &Path, library: &Path, shift: &str) -> Server {
    let mut command = driftqd();
    command.env("LD_PRELOAD", library).env("FAKETIME", shift).env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    Server::try_command(command, dir, &[]).unwrap_or_else(|(status, log)| panic!("no start, {status}: {log:?}"))
}

#[test]
fn a_clock_that_jumps_between_starts_neither_storms_leases_nor_repeats_tokens_nor_forgets_keys() {
    let Some(library) = lying_clock() else {
        println!("skipped: a clock that jumps, as there is no faketime");
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let keyed = r#"{"topic":"t","value":"x","envelope":{"idempotency_key":"k"}}"#;
    let mut server = at(folder.path(), &library, "+0d");
    server.create("t", 1);
    assert_eq!(server.post("/v1/produce", keyed).status, 200);
    let token = |item: &serde_json::Value| item["lease_token"].as_str().expect("a token").to_owned();
    let mut tokens = Vec::new();
    let mut attempts = 0;
    // An hour back, and back to where it was: within what keys and leases last, inside of which time must not run backwards.
    for shift in ["-1h", "+0d", "+30d", "-1h"] {
        let mut stream = server.consume("topic=t&group=g&owner=w&lease_ms=300&max=1");
        let item = stream.item().expect("the message comes again");
        let attempt = item["attempts"].as_u64().expect("a number");
        assert!(attempt > attempts && attempt < attempts + 20, "attempt {attempt} after {attempts}");
        attempts = attempt;
        assert!(!tokens.contains(&token(&item)), "a token again: {}", token(&item));
        tokens.push(token(&item));
        server.terminate();
        server = at(folder.path(), &library, shift);
        if shift != "+30d" && tokens.len() < 3 {
            let again = server.post("/v1/produce", keyed);
            assert_eq!((again.status, &again.json()["duplicate"]), (200, &true.into()), "{shift}: {again:?}");
        }
        // The lease of before is not good for anything now.
        until("its lease ends by this clock too", || {
            let stale = format!("/v1/ack?topic=t&group=g&partition=0&offset=0&owner=other&lease_token={}", tokens[0]);
            server.post(&stale, "").status == 409
        });
    }
    assert!(server.is_running());
}

#[test]
fn a_worker_that_outslept_its_lease_with_the_broker_is_fenced() {
    let server = Server::start();
    server.create("t", 1);
    server.produce("t", "x");
    let mut stream = server.consume("topic=t&group=g&owner=w&lease_ms=500&max=1");
    let item = stream.item().expect("a message");
    let token = item["lease_token"].as_str().expect("a token");
    let mut waiting = server.consume("topic=t&group=g&owner=w&lease_ms=60000&max=1");
    server.signal("-STOP");
    assert!(!within(Duration::from_millis(800), || false));
    server.signal("-CONT");
    let again = waiting.item().expect("it comes again");
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
fn a_file_limit_turns_connections_away_and_harms_nobody_inside() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new("prlimit");
    if !has("prlimit") {
        println!("skipped: a limit on open files, as there is no prlimit");
        return;
    }
    command.arg("--nofile=64:64").arg(env!("CARGO_BIN_EXE_driftqd"));
    let mut server = Server::try_command(command, folder.path(), &[]).unwrap_or_else(|(_, log)| panic!("{log:?}"));
    server.create("t", 1);
    let mut inside = server.connect();
    assert_eq!(inside.call("GET", "/v1/version", &[], "").status, 200);
    let crowd: Vec<_> = (0..120).map(|_| server.connect()).collect();
    for _ in 0..20 {
        let body = r#"{"topic":"t","value":"x"}"#;
        assert_eq!(inside.call("POST", "/v1/produce", &[], body).status, 200);
    }
    let busy = server.busy();
    assert!(!within(Duration::from_millis(300), || false));
    assert!(server.busy() - busy < Duration::from_millis(200), "it spins");
    drop(crowd);
    let began = Instant::now();
    assert_eq!(server.get("/v1/version").status, 200);
    assert!(began.elapsed() < SOON);
    server.kill();
    let server = Server::on(folder.path(), &[]);
    assert_eq!(values(&server).len(), 20);
}
