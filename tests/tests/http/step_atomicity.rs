//! A workflow of three steps, and a broker that is killed at every write and every sync of it.
//!
//! Each step consumes a message and completes it with a result and the next message. After a restart every step must be
//! applied completely or not at all: its message acked, its effect recorded and the next message produced. A step that
//! was answered must be applied.

use std::path::Path;

use driftq_tests::torture::tools;
use serde_json::{Value, json};

use crate::faults::SMALL;
use crate::harness::{Launch, Server, StartFailure, exact_config_file};

/// The topics of the workflow: a step consumes one and produces to the next.
const TOPICS: [&str; 4] = ["step-0", "step-1", "step-2", "step-3"];
/// More kills than the workflow has calls.
const KILLS_MAX: usize = 200;

/// A request; nothing if the broker exits before it responds.
fn call(server: &Server, method: &str, target: &str, body: &Value) -> Option<(u16, Value)> {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let reply = server.try_call(method, target, &[], &body).ok()?;
    Some((reply.status, reply.json()))
}

/// Runs the workflow. Returns how many steps were answered, and whether the broker survived.
fn run(server: &Server) -> (usize, bool) {
    let Some(()) = prepare(server) else { return (0, false) };
    for step in 0..TOPICS.len() - 1 {
        if complete_step(server, step).is_none() {
            return (step, false);
        }
    }
    (TOPICS.len() - 1, true)
}

fn prepare(server: &Server) -> Option<()> {
    for topic in TOPICS {
        let (status, _) = call(server, "POST", "/v1/topics", &json!({ "name": topic }))?;
        assert_eq!(status, 201);
    }
    let first = json!({ "topic": TOPICS[0], "value": "go", "envelope": { "idempotency_key": "key-0" } });
    let (status, _) = call(server, "POST", "/v1/produce", &first)?;
    assert_eq!(status, 200);
    Some(())
}

/// Consumes the message of a step and completes it.
fn complete_step(server: &Server, step: usize) -> Option<()> {
    let query = format!("/v1/consume?topic={}&group=g&owner=w&lease_ms=60000&max=1&wait_ms=5000", TOPICS[step]);
    let (_, item) = call(server, "GET", &query, &Value::Null)?;
    if item.is_null() {
        return None;
    }
    let next = json!({ "topic": TOPICS[step + 1], "value": "next", "envelope": { "idempotency_key": format!("key-{}", step + 1) } });
    let complete = json!({
        "topic": TOPICS[step], "group": "g", "partition": item["partition"], "offset": item["offset"], "owner": "w",
        "lease_token": item["lease_token"], "result": { "step": step }, "produce": [next],
    });
    let (status, response) = call(server, "POST", "/v1/complete", &complete)?;
    assert_eq!(status, 200, "{response}");
    // A repeated complete gets the same response.
    let (status, repeated) = call(server, "POST", "/v1/complete", &complete)?;
    assert_eq!((status, repeated), (200, response));
    Some(())
}

/// Whether a step is applied; all of its three parts must agree.
fn is_applied(server: &Server, step: usize) -> bool {
    let described = server.get(&format!("/v1/topics/{}", TOPICS[step]));
    if described.status == 404 {
        return false;
    }
    let described = described.json();
    let acked = described["groups"][0]["partitions"][0]["floor"].is_u64();
    let next = server.get(&format!("/v1/topics/{}", TOPICS[step + 1]));
    let produced =
        if next.status == 200 { next.json()["partitions"][0]["next_offset"].as_u64().expect("an offset") } else { 0 };
    let effect = server.get(&format!("/v1/idempotency?kind=consume&topic={}&group=g&key=key-{step}", TOPICS[step]));
    let recorded = effect.status == 200 && effect.json()["status"] == "SUCCEEDED";
    if recorded {
        assert_eq!(effect.json()["result"], json!({ "step": step }));
    }
    assert_eq!((produced, recorded), (u64::from(acked), acked), "step {step} is partially applied: {described}");
    acked
}

/// A broker that is killed at its `kill`-th write or sync; an error if that is before it is ready.
fn killed_at(folder: &Path, flags: &[&str], kill: usize) -> Result<Server, StartFailure> {
    let calls = "fdatasync,pwrite64";
    let (trace, inject) = (format!("trace={calls}"), format!("inject={calls}:signal=SIGKILL:when={kill}"));
    let wrapper = ["strace", "-D", "-f", "-qq", "-o", "/dev/null", "-e", &trace, "-e", &inject];
    Launch::new(&folder.join("data"), flags).wrapper(&wrapper).start()
}

#[test]
fn workflow_killed_at_every_write_and_sync_has_no_partial_step() {
    if let Some(reason) = tools::missing_for_syscalls() {
        println!("skipped: a broker killed at every sync, because {reason}");
        return;
    }
    let (mut kills, mut ends) = (0, [0; TOPICS.len()]);
    for kill in 1..=KILLS_MAX {
        let folder = tempfile::tempdir().expect("a folder");
        let config = exact_config_file(folder.path(), SMALL);
        let flags = ["--config", config.as_str()];
        let (answered, survived) = match killed_at(folder.path(), &flags, kill) {
            Ok(mut server) => {
                let result = run(&server);
                server.kill();
                result
            }
            Err(failure) if failure.log.to_lowercase().contains("ptrace") => {
                println!("skipped: a broker killed at every sync, because strace may not trace here");
                return;
            }
            Err(_) => (0, false),
        };
        let server = Server::on(&folder.path().join("data"), &flags);
        let applied = (0..TOPICS.len() - 1).take_while(|step| is_applied(&server, *step)).count();
        assert!((applied + 1..TOPICS.len() - 1).all(|step| !is_applied(&server, step)), "steps are applied in order");
        assert!(applied >= answered, "killed at {kill}: {answered} steps were answered, {applied} are applied");
        ends[applied] += 1;
        if survived {
            assert!(kills > 10, "the broker was killed only {kills} times");
            assert!(ends.iter().all(|count| *count > 0), "runs by number of applied steps: {ends:?}");
            return;
        }
        kills += 1;
    }
    panic!("the workflow is still killed at call {KILLS_MAX}");
}
