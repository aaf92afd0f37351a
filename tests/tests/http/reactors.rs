//! Several reactors: connections are spread over them, and clients see one broker.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{Server, driftqd, wait_until};

const THREE: [&str; 2] = ["--reactors", "3"];

/// The names of the server's threads, with how many have each.
fn threads(server: &Server, name: &str) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.pid())).expect("the threads of the broker");
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|found| found.trim() == name).count()
}

#[test]
fn every_reactor_has_a_thread_and_one_alone_decides_itself() {
    let three = Server::with(&THREE);
    assert_eq!((threads(&three, "driftq-reactor"), threads(&three, "driftq-sequence")), (2, 1));
    let one = Server::with(&["--reactors", "1"]);
    assert_eq!((threads(&one, "driftq-reactor"), threads(&one, "driftq-sequence")), (0, 0));
    let shown: Value = serde_json::from_str(&three.get("/v1/config").body).expect("JSON");
    assert_eq!(shown["http"]["reactors"], 3);
}

/// Acks what a stream gets, over another connection, until it gets nothing for a second. Returns the values.
fn drain(server: &Server, owner: &str) -> Vec<String> {
    let mut stream = server.consume(&format!("topic=t&group=g&owner={owner}&prefetch=5&wait_ms=1000"));
    let mut connection = server.connect();
    let mut values = Vec::new();
    while let Some(item) = stream.item() {
        let ack = json!({
            "topic": "t", "group": "g", "owner": owner, "partition": item["partition"], "offset": item["offset"],
            "lease_token": item["lease_token"],
        });
        assert_eq!(connection.call("POST", "/v1/ack", &[], &ack.to_string()).status, 204);
        values.push(item["value"].as_str().expect("a value").to_owned());
    }
    values
}

#[test]
fn clients_of_different_reactors_see_one_broker() {
    let server = Server::with(&THREE);
    server.create("t", 4);
    let delivered = std::thread::scope(|scope| {
        let streams: Vec<_> = (0..8)
            .map(|index| {
                scope.spawn({
                    let server = &server;
                    move || drain(server, &format!("w{index}"))
                })
            })
            .collect();
        for producer in 0..16 {
            let server = &server;
            scope.spawn(move || {
                let mut connection = server.connect();
                for round in 0..10 {
                    let key = producer.to_string();
                    let body = json!({ "topic": "t", "key": key, "value": format!("{producer}-{round}") });
                    let reply = connection.call("POST", "/v1/produce", &[], &body.to_string());
                    assert_eq!(reply.status, 200, "{}", reply.body);
                }
            });
        }
        streams.into_iter().flat_map(|stream| stream.join().expect("no panic")).collect::<Vec<_>>()
    });
    assert_eq!((delivered.len(), delivered.iter().collect::<BTreeSet<_>>().len()), (160, 160), "each once");
    let described: Value = serde_json::from_str(&server.get("/v1/topics/t").body).expect("JSON");
    for partition in described["groups"][0]["partitions"].as_array().expect("partitions") {
        assert_eq!((&partition["lag"], &partition["in_flight"]), (&json!(0), &json!(0)), "{described}");
    }
    let metrics = server.get("/metrics").body;
    for line in ["driftq_messages_produced_total 160", "driftq_messages_acked_total 160", "driftq_consumer_streams 0"] {
        assert!(metrics.lines().any(|found| found == line), "{line} is missing");
    }
}

#[test]
fn messages_of_one_connection_keep_their_order() {
    let server = Server::with(&THREE);
    server.create("t", 1);
    let lines: Vec<_> =
        (0..3_000).map(|value| json!({ "topic": "t", "value": value.to_string() }).to_string()).collect();
    let ndjson = [("Content-Type", "application/x-ndjson")];
    let reply = server.call("POST", "/v1/produce", &ndjson, &lines.join("\n"));
    let offsets: Vec<u64> = reply
        .body
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).expect("JSON")["offset"].as_u64())
        .collect();
    assert_eq!(offsets, (0..3_000).collect::<Vec<_>>());
}

#[test]
fn limit_on_connections_is_one_for_all_reactors() {
    let server = Server::configured("[http]\nreactors = 3\nconnections_max = 6\n", &["--no-wal"]);
    let open_one = || {
        let mut connection = server.connect_raw();
        connection.send(b"GET /v1/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let status = connection.head().status;
        assert!([200, 503].contains(&status), "{status}");
        (status == 200).then_some(connection)
    };
    let mut open = Vec::new();
    // The connection over which the start was awaited may be open for another moment.
    wait_until("six are open", || {
        open.extend(open_one());
        open.len() == 6
    });
    assert!((0..30).all(|_| open_one().is_none()), "the seventh and all others are refused");
    drop(open);
    wait_until("connections are accepted again", || {
        server.try_call("GET", "/v1/healthz", &[], "").is_ok_and(|reply| reply.status == 200)
    });
}

#[test]
fn address_in_use_is_refused_with_several_reactors_too() {
    let server = Server::with(&THREE);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let addr = server.addr.to_string();
    let second = Command::new(driftqd()).args(["--addr", &addr, "--data-dir"]).arg(folder.path()).args(THREE).output();
    let (status, log) = second.map(|output| (output.status, output.stderr)).expect("it runs");
    let log = String::from_utf8_lossy(&log).into_owned();
    assert!(status.code() == Some(1) && log.contains(&format!("cannot listen on {addr}")), "{status}: {log}");
}

#[test]
fn stop_ends_the_streams_of_all_reactors_and_loses_nothing() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut server = Server::on(folder.path(), &THREE);
    server.create("t", 1);
    let mut streams: Vec<_> =
        (0..9).map(|index| server.consume(&format!("topic=t&group=g{index}&owner=w&prefetch=1"))).collect();
    assert_eq!(server.post("/v1/produce", r#"{"topic":"t","value":"a"}"#).status, 200);
    for stream in &mut streams {
        assert_eq!(stream.item().expect("a delivery")["value"], "a");
    }
    assert!(server.terminate().success());
    for stream in &mut streams {
        assert_eq!(stream.item(), None, "the stream has ended");
    }
    assert!(server.log().contains("stopped") && !server.log().contains("not closed in time"), "{}", server.log());
    let server = Server::on(folder.path(), &THREE);
    let peeked: Value = serde_json::from_str(&server.get("/v1/peek?topic=t&partition=0&offset=0").body).expect("JSON");
    assert_eq!(peeked["messages"].as_array().expect("messages").len(), 1);
}
