//! File descriptors: the limit is raised, connections are fitted to it, and the log waits where there are none.

use std::path::Path;
use std::time::Duration;

use driftq_tests::torture::tools;
use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::faults::SMALL;
use crate::harness::{Connection, Launch, Server, exact_config_file, wait_until};

/// Bytes of the value of a message.
const VALUE_BYTES: usize = 30_000;
/// `reserve_bytes` of [`SMALL`].
const RESERVE_BYTES: u64 = 131_072;
/// Long enough for several attempts to accept a connection.
const ATTEMPTS_TO_ACCEPT: Duration = Duration::from_millis(500);

/// The sizes of the log's segments.
fn segment_bytes(data: &Path) -> Vec<u64> {
    let entries = std::fs::read_dir(data).expect("a folder").map(|entry| entry.expect("an entry"));
    let segments = entries.filter(|entry| entry.path().extension().is_some_and(|extension| extension == "seg"));
    segments.map(|entry| entry.metadata().map_or(0, |metadata| metadata.len())).collect()
}

/// The soft and the hard limit of a running broker.
fn limits(server: &Server) -> (u64, u64) {
    let text = std::fs::read_to_string(format!("/proc/{}/limits", server.pid())).expect("it runs");
    let line = text.lines().find(|line| line.starts_with("Max open files")).expect("a limit");
    let numbers: Vec<u64> = line.split_whitespace().filter_map(|text| text.parse().ok()).collect();
    (numbers[0], numbers[1])
}

/// Sets the soft limit of a running broker.
fn set_soft_limit(server: &Server, current: u64) {
    let pid = Pid::from_raw(i32::try_from(server.pid()).expect("a process id"));
    let new = Rlimit { current: Some(current), maximum: Some(limits(server).1) };
    prlimit(pid, Resource::Nofile, new).expect("set");
}

fn produce(connection: &mut Connection) -> (u16, String) {
    let body = serde_json::json!({ "topic": "t", "value": "v".repeat(VALUE_BYTES) }).to_string();
    let reply = connection.call("POST", "/v1/produce", &[], &body);
    (reply.status, reply.body)
}

#[test]
fn limit_is_raised_and_connections_are_fitted_to_it() {
    let folder = tempfile::tempdir().expect("a folder");
    if !tools::runs("prlimit", "-V") {
        println!("skipped: a low limit on open files, because there is no prlimit");
        return;
    }
    let config = exact_config_file(folder.path(), SMALL);
    let launch = Launch::new(&folder.path().join("data"), &["--config", &config, "--reactors", "3"]);
    let server = launch.wrapper(&["prlimit", "--nofile=70:216"]).start().expect("it starts");
    assert_eq!(limits(&server), (216, 216), "the soft limit is raised");
    let log = server.log_with("leaves 136 connections");
    assert!(log.lines().any(|line| line.contains("WARN") && line.contains("20000")), "{log}");
    server.create("t", 1);
    let mut first = server.connect();
    assert_eq!(produce(&mut first).0, 200);
    // Reactors accept independently of each other, so each step waits for the one before.
    let mut wait_for = |connections: usize| {
        wait_until(&format!("{connections} connections"), || {
            let metrics = first.call("GET", "/metrics", &[], "").body;
            metrics.contains(&format!("\ndriftq_connections {connections}\n"))
        });
    };
    wait_for(1);
    let _held: Vec<_> = (0..135).map(|_| server.connect_raw()).collect();
    wait_for(136);
    assert!(server.send_raw(b"").contains("too many open connections"));
    // The log creates segments beside as many connections as there may be.
    for _ in 0..100 {
        let (status, body) = produce(&mut first);
        assert!(status == 200 || body.contains("log_busy"), "{status} {body}");
    }
    assert!(!server.log().contains("Too many open files"), "{}", server.log());
}

#[test]
fn lack_of_descriptors_at_the_logs_files_is_waited_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = exact_config_file(folder.path(), SMALL);
    let data = folder.path().join("data");
    let server = Server::on(&data, &["--config", &config]);
    server.create("t", 1);
    let mut connection = server.connect();
    assert_eq!(produce(&mut connection).0, 200);
    // The current segment and the next, which is ready.
    let mut segments = Vec::new();
    wait_until("the next segment is prepared", || {
        segments = segment_bytes(&data);
        segments.len() == 2
    });
    set_soft_limit(&server, 1);
    let _unaccepted = server.connect_raw();
    let mut accepted = 1;
    wait_until("the log has no segment left", || match produce(&mut connection) {
        (200, _) => {
            accepted += 1;
            false
        }
        (429, body) if body.contains("log_busy") => true,
        other => panic!("{other:?}"),
    });
    // It stays so, and nothing fails for good. Both segments were used, but for the reserve.
    let room = segments.iter().sum::<u64>() - RESERVE_BYTES;
    assert!((accepted + 3) * VALUE_BYTES as u64 > room, "{accepted} in {segments:?}");
    assert_eq!(connection.call("GET", "/v1/readyz", &[], "").status, 200);
    server.log_with("cannot accept connections");
    std::thread::sleep(ATTEMPTS_TO_ACCEPT);
    set_soft_limit(&server, limits(&server).1);
    wait_until("produces succeed with a descriptor", || produce(&mut connection).0 == 200);
    assert_eq!(server.get("/v1/readyz").status, 200, "connections are accepted again");
    let log = server.log_with("accepting connections again");
    assert_eq!(log.matches("cannot accept connections").count(), 1, "a shortage is logged once: {log}");
    assert!(!log.contains("nothing more is accepted"), "{log}");
}

#[test]
fn start_without_descriptors_names_the_limit() {
    if !tools::runs("prlimit", "-V") {
        println!("skipped: a low limit on open files, because there is no prlimit");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    // Below 8 not even the libraries of a process can be opened; with a few more than these it starts.
    for limit in 8..12 {
        let nofile = format!("--nofile={limit}:{limit}");
        let launch = Launch::new(&folder.path().join("data"), &[]).wrapper(&["prlimit", &nofile]);
        let log = launch.start().err().map(|failure| failure.log).unwrap_or_default();
        assert!(log.contains(&format!("The limit on open files is {limit}; raise it")), "{limit}: {log}");
    }
}
