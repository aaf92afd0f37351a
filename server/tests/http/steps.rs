//! A fixed pipeline of three steps, and a broker that is killed at every write and every sync it makes meanwhile.
//!
//! Each step takes a message, completes it with a result and hands on the next. After a restart every step must be wholly done or
//! wholly not: its message done, its effect recorded and the next message there, or none of it; and what was answered must be done.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::faults::{SMALL, has};
use crate::rig::{SOON, Server, config_file};

/// The topics of the pipeline: what is done in one goes on in the next.
const TOPICS: [&str; 4] = ["step-0", "step-1", "step-2", "step-3"];
/// More than the pipeline can need, and so an end to the loop.
const KILLS_MAX: usize = 200;

/// Asks, unless the broker is gone or goes meanwhile.
fn ask(server: &Server, method: &str, target: &str, body: &Value) -> Option<(u16, Value)> {
    let mut socket = TcpStream::connect(server.addr).ok()?;
    socket.set_read_timeout(Some(SOON)).ok()?;
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let length = body.len();
    let request = format!(
        "{method} {target} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}",
        server.addr
    );
    socket.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    // A stream comes in chunks; of one that has a single line, that line is what can be read as JSON.
    let line = body.lines().find(|line| line.starts_with('{')).unwrap_or("null");
    Some((status, serde_json::from_str(line).unwrap_or(Value::Null)))
}

/// How many steps were answered as done before the broker went, and whether it never did.
fn run(server: &Server) -> (usize, bool) {
    let Some(()) = prepare(server) else { return (0, false) };
    for step in 0..TOPICS.len() - 1 {
        if work(server, step).is_none() {
            return (step, false);
        }
    }
    (TOPICS.len() - 1, true)
}

fn prepare(server: &Server) -> Option<()> {
    for topic in TOPICS {
        let (status, _) = ask(server, "POST", "/v1/topics", &json!({ "name": topic }))?;
        assert_eq!(status, 201);
    }
    let first = json!({ "topic": TOPICS[0], "value": "go", "envelope": { "idempotency_key": "key-0" } });
    let (status, _) = ask(server, "POST", "/v1/produce", &first)?;
    assert_eq!(status, 200);
    Some(())
}

/// Takes the message of a step and completes it.
fn work(server: &Server, step: usize) -> Option<()> {
    let query = format!("/v1/consume?topic={}&group=g&owner=w&lease_ms=60000&max=1&wait_ms=5000", TOPICS[step]);
    let (_, item) = ask(server, "GET", &query, &Value::Null)?;
    if item.is_null() {
        return None;
    }
    let next = json!({ "topic": TOPICS[step + 1], "value": "go on", "envelope": { "idempotency_key": format!("key-{}", step + 1) } });
    let complete = json!({
        "topic": TOPICS[step], "group": "g", "partition": item["partition"], "offset": item["offset"], "owner": "w",
        "lease_token": item["lease_token"], "result": { "step": step }, "produce": [next],
    });
    let (status, answer) = ask(server, "POST", "/v1/complete", &complete)?;
    assert_eq!(status, 200, "{answer}");
    // Asked again, it says the same.
    let (status, again) = ask(server, "POST", "/v1/complete", &complete)?;
    assert_eq!((status, again), (200, answer));
    Some(())
}

/// Whether a step is done, in all of its three parts or in none.
fn is_done(server: &Server, step: usize) -> bool {
    let described = server.get(&format!("/v1/topics/{}", TOPICS[step]));
    if described.status == 404 {
        return false;
    }
    let described = described.json();
    let acked = described["groups"][0]["partitions"][0]["floor"].is_u64();
    let peeked = server.get(&format!("/v1/peek?topic={}&partition=0&offset=0&limit=10", TOPICS[step + 1]));
    let next = if peeked.status == 200 { described_messages(server, step + 1) } else { 0 };
    let record = format!("/v1/idempotency?kind=consume&topic={}&group=g&key=key-{step}", TOPICS[step]);
    let effect = server.get(&record);
    let concluded = effect.status == 200 && effect.json()["status"] == "SUCCEEDED";
    if concluded {
        assert_eq!(effect.json()["result"], json!({ "step": step }));
    }
    assert_eq!((acked, next, concluded), (acked, usize::from(acked), acked), "step {step} is half done: {described}");
    acked
}

/// How many messages a topic was ever given.
fn described_messages(server: &Server, topic: usize) -> usize {
    let described = server.get(&format!("/v1/topics/{}", TOPICS[topic])).json();
    described["partitions"][0]["next_offset"].as_u64().expect("an offset") as usize
}

/// A broker that is killed at its `kill`-th write or sync, or never starts because that comes before.
fn doomed(folder: &Path, flags: &[&str], kill: usize) -> Result<Server, Vec<String>> {
    let mut command = Command::new("strace");
    command.args(["-D", "-f", "-qq", "-o"]).arg(folder.join("trace"));
    let calls = "fdatasync,pwrite64";
    command.args(["-e", &format!("trace={calls}"), "-e", &format!("inject={calls}:signal=SIGKILL:when={kill}")]);
    command.arg(env!("CARGO_BIN_EXE_driftqd"));
    Server::try_command(command, &folder.join("data"), flags).map_err(|(_, log)| log)
}

#[test]
fn a_pipeline_killed_at_every_write_and_sync_has_no_step_half_done() {
    if !has("strace") {
        println!("skipped: a broker killed at every sync, as there is no strace");
        return;
    }
    let (mut cut_short, mut steps_seen) = (0, [0; TOPICS.len()]);
    for kill in 1..=KILLS_MAX {
        let folder = tempfile::tempdir().expect("a folder");
        let config = config_file(folder.path(), SMALL);
        let flags = ["--config", config.as_str()];
        let (answered, whole) = match doomed(folder.path(), &flags, kill) {
            Ok(mut server) => {
                let ran = run(&server);
                if ran.1 {
                    server.kill();
                }
                ran
            }
            Err(log) if log.iter().any(|line| line.to_lowercase().contains("ptrace")) => {
                println!("skipped: a broker killed at every sync, as strace may not trace here");
                return;
            }
            Err(_) => (0, false),
        };
        let server = Server::on(&folder.path().join("data"), &flags);
        let done = (0..TOPICS.len() - 1).take_while(|step| is_done(&server, *step)).count();
        assert!((done + 1..TOPICS.len() - 1).all(|step| !is_done(&server, step)), "steps are done in order");
        assert!(done >= answered, "killed at {kill}: {answered} steps were answered, {done} are done");
        steps_seen[done] += 1;
        if whole {
            assert!(cut_short > 10, "the broker was killed {cut_short} times only");
            assert!(steps_seen.iter().all(|seen| *seen > 0), "ends seen after so many steps: {steps_seen:?}");
            return;
        }
        cut_short += 1;
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("the pipeline does not end");
}
