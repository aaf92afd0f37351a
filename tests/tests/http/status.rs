//! Health, version, metrics, digest, request ids and HTTP/2.

use std::process::Command;

use driftq_core::pipeline::inspect;
use serde_json::{Value, json};

use crate::harness::{Server, wait_until};
use crate::requests::JSON;

#[test]
fn health_readiness_and_version_are_served() {
    let server = Server::start();
    let reply = server.get("/v1/healthz");
    assert_eq!((reply.status, reply.header("content-type"), reply.json()), (200, JSON, json!({ "status": "ok" })));
    let reply = server.get("/v1/readyz");
    assert_eq!((reply.status, reply.header("content-type")), (200, JSON));
    let reply = server.get("/v1/version");
    assert_eq!((reply.status, reply.header("content-type")), (200, JSON));
    let version = reply.json();
    let names: Vec<_> = version.as_object().expect("an object").keys().map(String::as_str).collect();
    assert_eq!(names, ["commit", "version", "wal_enabled"]);
    assert!(version["version"].is_string());
    let commit = version["commit"].as_str().expect("a text");
    assert!(
        commit == "unknown" || (commit.len() >= 7 && commit.bytes().all(|b| b.is_ascii_alphanumeric())),
        "{commit}"
    );
    assert_eq!(commit, built_from(), "the commit that the test was built from");
    assert_eq!(version["wal_enabled"], true);
    let reply = server.get("/v1/openapi.json");
    assert_eq!((reply.status, reply.header("content-type")), (200, JSON));
    assert!(reply.json().is_object());

    let server = Server::with(&["--no-wal"]);
    assert_eq!(server.get("/v1/version").json()["wal_enabled"], false);
    server.create("t", 1);
    assert_eq!(server.produce("t", "v"), (0, 0));
    assert_eq!(server.next("t")["value"], "v");
}

/// The commit of the sources, as the build sees it.
fn built_from() -> String {
    let given = std::env::var("DRIFTQ_COMMIT").ok();
    let git = || {
        let server = concat!(env!("CARGO_MANIFEST_DIR"), "/../server");
        let output = Command::new("git").args(["-C", server, "rev-parse", "HEAD"]).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    given.or_else(git).unwrap_or_else(|| "unknown".to_owned())
}

#[test]
fn settings_in_force_are_served() {
    let flags = ["--no-wal", "-max-inflight", "7"];
    let server = Server::with(&flags);
    let reply = server.get("/v1/config");
    assert_eq!((reply.status, reply.header("content-type")), (200, JSON));
    let config = reply.json();
    assert_eq!((&config["limits"]["in_flight_max"], &config["wal"]), (&json!(7), &json!(false)));
    assert_eq!(config["addr"], server.addr.to_string(), "the port that was taken");
    server.post("/v1/config", "{}");
    assert_eq!(server.post("/v1/config", "{}").status, 405);
}

#[test]
fn start_logs_one_line() {
    // Few connections: no limit on open files calls for a warning.
    let mut server = Server::configured("[http]\nconnections_max = 16\n", &[]);
    let line = format!("listening on http://{}", server.addr);
    let log = server.log_with(&line);
    assert_eq!(log.lines().count(), 1, "{log}");
    server.terminate();
}

#[test]
fn reset_moves_the_old_log_aside() {
    let dir = tempfile::tempdir().expect("a folder");
    let quarantined = || {
        let entries = std::fs::read_dir(dir.path()).expect("a folder").map(|entry| entry.expect("an entry").path());
        entries.filter(|path| path.is_dir()).collect::<Vec<_>>()
    };
    let mut server = Server::on(dir.path(), &["-reset-wal"]);
    assert!(quarantined().is_empty(), "there was no log");
    server.create("old", 1);
    server.terminate();
    let mut server = Server::on(dir.path(), &["-reset-wal=false"]);
    assert_eq!(server.get("/v1/topics").json(), json!({ "topics": ["old"] }));
    server.terminate();
    let mut server = Server::on(dir.path(), &["-reset-wal"]);
    assert_eq!(server.get("/v1/topics").json(), json!({ "topics": [] }));
    assert!(server.log().contains("quarantine-"), "{}", server.log());
    server.terminate();
    let [aside] = quarantined().try_into().expect("one folder");
    let mut old = driftq_files::DataFolder::open(&aside).expect("unlocked").storage();
    let (state, _) = inspect(&mut old, None).expect("the old log is whole");
    assert_eq!(state.topic_count(), 1);
}

#[test]
fn digest_matches_replayed_log() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut server = Server::on(dir.path(), &[]);
    server.create("t", 2);
    server.produce("t", "v");
    let digest = |server: &Server| {
        let reply = server.get("/v1/digest");
        assert_eq!((reply.status, reply.header("content-type")), (200, JSON), "{reply:?}");
        let json = reply.json();
        assert_eq!(json["digest"].as_str().map(str::len), Some(16), "{json}");
        json
    };
    let before = digest(&server);
    assert_eq!(digest(&server), before, "nothing was written in between");
    let item = server.next("t");
    server.settle_ok("ack", "t", &item, json!({}));
    let after = digest(&server);
    assert_ne!(after["digest"], before["digest"]);
    assert!(after["lsn"].as_u64() > before["lsn"].as_u64());

    server.kill();
    let mut storage = driftq_files::DataFolder::open(dir.path()).expect("unlocked").storage();
    let (state, recovered) = inspect(&mut storage, None).expect("readable after a kill");
    assert_eq!(after["digest"], format!("{:016x}", state.digest()));
    // A mark follows the last record if the server is idle for long enough before the kill.
    assert!(Some(recovered.last.lsn.0) == after["lsn"].as_u64(), "{after}");
}

#[test]
fn every_response_has_request_id() {
    let server = Server::start();
    server.create("t", 1);
    let requests = [
        ("GET", "/v1/healthz", ""),
        ("POST", "/v1/produce", "{\"topic\":\"t\",\"value\":\"v\"}"),
        ("POST", "/v1/produce", "x"),
        ("GET", "/v1/unknown", ""),
        ("HEAD", "/v1/topics", ""),
        ("GET", "/v1/consume?topic=t&group=g&owner=w&max=1", ""),
        ("POST", "/v1/ack?topic=t&group=g&owner=w&partition=0&offset=0", ""),
    ];
    let mut ids = std::collections::BTreeSet::new();
    for (method, path, body) in requests {
        let reply = server.call(method, path, &[("X-Request-Id", "my-id/42")], body);
        assert_eq!(reply.header("x-request-id"), Some("my-id/42"), "{method} {path}");
    }
    for (method, path, body) in requests.into_iter().filter(|(_, path, _)| !path.contains("consume")) {
        let reply = server.call(method, path, &[], body);
        let id = reply.header("x-request-id").expect("a generated id").to_owned();
        assert!(!id.is_empty() && ids.insert(id), "{method} {path}: {reply:?}");
    }
}

#[test]
fn metrics_are_served_as_prometheus_text_or_openmetrics() {
    let server = Server::start();
    let plain = server.get("/metrics");
    assert_eq!(plain.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    // Metrics without a series are listed too.
    for (name, kind) in [
        ("inflight_messages", "gauge"),
        ("consumer_lag", "gauge"),
        ("dlq_messages_total", "counter"),
        ("produce_rejected_total", "counter"),
        ("driftq_dlq_messages", "gauge"),
        ("driftq_router_failures_total", "counter"),
        ("driftq_messages_produced_total", "counter"),
        ("driftq_log_sync_seconds", "histogram"),
    ] {
        for head in [format!("# HELP {name} "), format!("# TYPE {name} {kind}\n")] {
            assert_eq!(plain.body.matches(&head).count(), 1, "{head}");
        }
    }
    assert!(!plain.body.contains("# EOF"));
    let specified = ["inflight_messages", "consumer_lag", "dlq_messages_total", "produce_rejected_total"];
    for line in plain.body.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let name = line.split(' ').next().unwrap_or_default();
        assert!(specified.contains(&name) || name.starts_with("driftq_"), "{name} has no prefix");
    }
    let accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2";
    let open = server.call("GET", "/metrics", &[("Accept", accept)], "");
    assert_eq!(open.header("content-type"), Some("application/openmetrics-text; version=1.0.0; charset=utf-8"));
    assert!(open.body.contains("# TYPE dlq_messages counter\n") && open.body.ends_with("# EOF\n"), "{open:?}");
}

#[test]
fn metrics_change_with_activity() {
    let server = Server::start();
    server.create("t", 2);
    let metrics = server.get("/metrics");
    assert_eq!(metrics.status, 200);
    assert!(metrics.header("content-type").is_some_and(|kind| kind.contains("text")), "{metrics:?}");
    for name in [
        "driftq_messages_produced_total",
        "driftq_messages_delivered_total",
        "driftq_messages_acked_total",
        "driftq_messages_nacked_total",
        "driftq_messages_expired_total",
        "driftq_messages_deduplicated_total",
        "driftq_messages_skipped_total",
        "driftq_log_bytes_total",
        "driftq_recovery_seconds",
        "driftq_connections",
        "driftq_log_batch_records_count",
        "driftq_log_sync_seconds_count",
        "produce_rejected_total{reason=\"overloaded\"}",
    ] {
        assert!(server.metric(name).is_some(), "no {name}");
    }
    let before = server.metric("driftq_log_bytes_total").expect("a metric");
    let syncs = server.metric("driftq_log_sync_seconds_count").expect("a metric");
    for value in ["a", "b", "c", "d"] {
        server.produce_json(&json!({ "topic": "t", "value": value, "envelope": { "idempotency_key": value } }));
    }
    server.produce_json(&json!({ "topic": "t", "value": "a", "envelope": { "idempotency_key": "a" } }));
    server.post("/v1/produce", "x");
    server.post("/v1/produce?topic=absent&value=v", "");
    let items = server.fetch("t", "g");
    let of = |name: &str, partition: u32| {
        server.metric(&format!("{name}{{topic=\"t\",group=\"g\",partition=\"{partition}\"}}"))
    };
    assert_eq!((of("inflight_messages", 0), of("consumer_lag", 0)), (Some(4.0), Some(4.0)));
    assert_eq!((of("inflight_messages", 1), of("consumer_lag", 1)), (Some(0.0), Some(0.0)));
    server.settle_ok("ack", "t", &items[0], json!({}));
    server.settle_ok("ack", "t", &items[0], json!({}));
    server.settle_ok("nack", "t", &items[1], json!({ "delay_ms": 60_000 }));
    assert_eq!((of("inflight_messages", 0), of("consumer_lag", 0)), (Some(2.0), Some(3.0)));
    for (name, value) in [
        ("driftq_messages_produced_total", 4.0),
        ("driftq_messages_deduplicated_total", 1.0),
        ("driftq_messages_delivered_total", 4.0),
        ("driftq_messages_acked_total", 1.0),
        ("driftq_messages_nacked_total", 1.0),
        ("produce_rejected_total{reason=\"invalid\"}", 1.0),
        ("produce_rejected_total{reason=\"not_found\"}", 1.0),
        ("produce_rejected_total{reason=\"overloaded\"}", 0.0),
    ] {
        assert_eq!(server.metric(name), Some(value), "{name}");
    }
    assert!(server.metric("driftq_log_bytes_total").expect("a metric") > before);
    assert!(server.metric("driftq_log_sync_seconds_count").expect("a metric") > syncs);
    let open: Vec<_> = (0..3).map(|_| server.connect()).collect();
    wait_until("connections are counted", || server.metric("driftq_connections").is_some_and(|count| count >= 4.0));
    drop(open);
    wait_until("closed connections are not counted", || {
        server.metric("driftq_connections").is_some_and(|count| count < 4.0)
    });
}

#[test]
fn http_2_is_served() {
    let server = Server::start();
    let curl = |arguments: &[&str]| {
        let mut command = Command::new("curl");
        command.args([
            "--silent",
            "--max-time",
            "10",
            "--http2-prior-knowledge",
            "--write-out",
            "\n%{http_version} %{http_code}",
        ]);
        command.args(arguments).output()
    };
    let base = format!("http://{}", server.addr);
    let output = match curl(&[&format!("{base}/v1/healthz")]) {
        Ok(output) if output.status.success() => String::from_utf8(output.stdout).expect("text"),
        other => {
            println!("skipped: HTTP/2, because there is no curl with HTTP/2: {other:?}");
            return;
        }
    };
    assert_eq!(output, "{\"status\":\"ok\"}\n2 200");
    server.create("t", 1);
    let ask = |arguments: &[&str]| String::from_utf8(curl(arguments).expect("curl runs").stdout).expect("text");
    let output = ask(&["--data", "{\"topic\":\"t\",\"value\":\"v\"}", &format!("{base}/v1/produce")]);
    assert_eq!(output, "{\"status\":\"produced\",\"topic\":\"t\",\"partition\":0,\"offset\":0}\n2 200");
    let output = ask(&[&format!("{base}/v1/consume?topic=t&group=g&owner=w&max=1")]);
    let (item, rest) = output.split_once('\n').expect("a line");
    assert_eq!(serde_json::from_str::<Value>(item).expect("JSON")["value"], "v");
    assert_eq!(rest, "\n2 200");
    let output = ask(&["--request", "PUT", &format!("{base}/v1/topics")]);
    assert!(output.contains("METHOD_NOT_ALLOWED") && output.ends_with("\n2 405"), "{output}");
    let lines = "{\"topic\":\"t\",\"value\":\"a\"}\nx\n";
    let output =
        ask(&["--data-binary", lines, "--header", "content-type: application/x-ndjson", &format!("{base}/v1/produce")]);
    assert_eq!(output.lines().count(), 4, "{output}");
    assert!(output.starts_with("{\"status\":200,") && output.ends_with("\n2 200"), "{output}");
}
