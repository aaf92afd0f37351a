//! NDJSON on `/v1/produce` and `/v1/ack`: a batch of requests.

use driftq_tests::http::Reply;
use serde_json::{Value, json};

use crate::harness::{RawConnection, Server};
use crate::requests::{NDJSON, claim, each, with, without};

const LINES: (&str, &str) = ("Content-Type", "application/x-ndjson");

fn batch(server: &Server, path: &str, body: &str) -> (Reply, Vec<Value>) {
    let reply = server.call("POST", path, &[LINES], body);
    assert_eq!((reply.status, reply.header("content-type")), (200, NDJSON), "{reply:?}");
    let lines = reply.body.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    (reply, lines)
}

/// Asserts a line with an error of this status and code.
#[track_caller]
fn refused(line: &Value, status: u16, code: &str) {
    assert_eq!(without(line.clone(), &["message"]), json!({ "status": status, "error": code }));
}

#[test]
fn batch_lines_are_answered_in_order_and_independently() {
    let server = Server::start();
    server.create("t", 3);
    let body = "{\"topic\":\"t\",\"key\":\"user:1\",\"value\":\"a\"}\n\
                {\"topic\":\"t\",\"value\":\n\
                \n\
                \r\n\
                {\"topic\":\"t\",\"value\":\"b\",\"envelope\":{\"idempotency_key\":\"k\"}}\r\n\
                {\"topic\":\"absent\",\"value\":\"c\"}\n\
                {\"topic\":\"t\",\"value\":\"d\",\"unknown\":1}\n\
                [\"t\",\"k\",\"v\",null]\n\
                {\"topic\":\"t\",\"value\":\"b again\",\"envelope\":{\"idempotency_key\":\"k\"}}\n\
                {\"topic\":\"t\",\"value\":\"\"}\n\
                {\"topic\":\" t \",\"value\":\"last\"}";
    let (reply, lines) = batch(&server, "/v1/produce", body);
    assert!(reply.body.ends_with('\n'), "every response is a line");
    assert_eq!(lines.len(), 9, "{lines:?}");
    let produced =
        |partition: u32, offset: u64| json!({ "status": 200, "topic": "t", "partition": partition, "offset": offset });
    assert_eq!(lines[0], produced(1, 0));
    refused(&lines[1], 400, "INVALID_ARGUMENT");
    assert_eq!(lines[2], produced(0, 1));
    refused(&lines[3], 404, "NOT_FOUND");
    refused(&lines[4], 400, "INVALID_ARGUMENT");
    refused(&lines[5], 400, "INVALID_ARGUMENT");
    assert_eq!(lines[6], with(produced(0, 1), json!({ "duplicate": true })));
    refused(&lines[7], 400, "INVALID_ARGUMENT");
    assert_eq!(lines[8], produced(0, 2), "the last line needs no line feed");
    assert_eq!(server.metric("produce_rejected_total{reason=\"invalid\"}"), Some(4.0));
    assert_eq!(server.metric("produce_rejected_total{reason=\"not_found\"}"), Some(1.0));

    let items = server.fetch("t", "g");
    let line = |item: &Value, more: Value| with(claim("t", item), more).to_string();
    let body = [
        line(&items[0], json!({})),
        line(&items[1], json!({ "owner": "other" })),
        "{".to_owned(),
        line(&items[1], json!({ "lease_token": "x" })),
        line(&items[0], json!({ "lease_token": items[0]["lease_token"] })),
        line(&items[1], json!({ "group": "absent" })),
        without(claim("t", &items[1]), &["offset"]).to_string(),
        line(&items[1], json!({ "reason": "acks have none" })),
        line(&items[2], json!({ "lease_token": items[2]["lease_token"] })),
    ];
    let (_, lines) = batch(&server, "/v1/ack", &body.join("\n"));
    assert_eq!(lines.len(), body.len());
    let done = json!({ "status": 204 });
    assert_eq!((&lines[0], &lines[4], &lines[8]), (&done, &done, &done));
    assert_eq!(lines[1], json!({ "status": 409, "error": "FAILED_PRECONDITION", "message": "not owner" }));
    assert_eq!(lines[3], json!({ "status": 409, "error": "FAILED_PRECONDITION", "message": "stale lease" }));
    refused(&lines[5], 404, "NOT_FOUND");
    for index in [2, 6, 7] {
        refused(&lines[index], 400, "INVALID_ARGUMENT");
    }
    let in_flight = server.topic("t")["groups"][0]["partitions"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|progress| progress["in_flight"].as_u64().expect("a number"))
        .sum::<u64>();
    assert_eq!(in_flight, 1);

    // An empty batch has an empty response, and a charset is ignored.
    assert_eq!(batch(&server, "/v1/produce", "").1, Vec::<Value>::new());
    assert_eq!(batch(&server, "/v1/ack", "\n\n").1, Vec::<Value>::new());
    let kind = ("content-type", "Application/X-NDJSON; charset=utf-8");
    let reply = server.call("POST", "/v1/produce", &[kind], "{\"topic\":\"t\",\"value\":\"e\"}\n");
    assert_eq!((reply.status, reply.header("content-type")), (200, NDJSON));
}

#[test]
fn overloaded_line_has_retry_after() {
    let server = Server::with(&["--max-partition-msgs", "1"]);
    server.create("t", 1);
    let (_, lines) =
        batch(&server, "/v1/produce", "{\"topic\":\"t\",\"value\":\"a\"}\n{\"topic\":\"t\",\"value\":\"b\"}\n");
    assert_eq!(lines[0]["status"], 200);
    let expected =
        json!({ "status": 429, "error": "RESOURCE_EXHAUSTED", "reason": "overloaded", "retry_after_ms": 1000 });
    assert_eq!(without(lines[1].clone(), &["message"]), expected);
}

/// Sends a chunk of a body.
fn send_chunk(connection: &mut RawConnection, text: &str) {
    connection.send(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes());
}

#[test]
fn batch_response_begins_before_request_ends() {
    let server = Server::start();
    server.create("t", 1);
    let mut connection = server.connect_raw();
    connection.send(b"POST /v1/produce HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n");
    // Only the head of the request was sent.
    assert_eq!(connection.head().status, 200);
    let line = |value: &str| format!("{}\n", json!({ "topic": "t", "value": value }));
    let mut lines = String::new();
    let mut read = |connection: &mut RawConnection, count: usize| {
        while lines.lines().count() < count {
            lines += &connection.chunk().expect("more lines");
        }
        serde_json::from_str::<Value>(lines.lines().last().expect("a line")).expect("JSON")["offset"].clone()
    };
    for offset in 0..3 {
        send_chunk(&mut connection, &line("v"));
        assert_eq!(read(&mut connection, offset + 1), offset);
    }
    // A line may span chunks, and a chunk may contain several lines.
    let split = line("split");
    send_chunk(&mut connection, &split[..9]);
    send_chunk(&mut connection, &format!("{}{}", &split[9..], line("next")));
    assert_eq!(read(&mut connection, 5), 4);
    connection.send(b"0\r\n\r\n");
    assert_eq!(connection.chunk(), None);
    assert_eq!(each(&server.fetch("t", "g"), "value"), ["v", "v", "v", "split", "next"]);
}

#[test]
fn line_over_limit_is_refused_alone() {
    let server = Server::configured("[http]\nbody_bytes_max = 1024\n", &[]);
    server.create("t", 1);
    let line = |len: usize| {
        let frame = json!({ "topic": "t", "value": "" }).to_string().len();
        json!({ "topic": "t", "value": "v".repeat(len - frame) }).to_string()
    };
    let body = [line(30), line(1_025), line(1_024), line(300_000), line(31), line(1_025)].join("\n");
    assert!(body.len() > 1_024, "the limit applies to lines, not to the body");
    let (_, lines) = batch(&server, "/v1/produce", &body);
    assert_eq!(
        lines.iter().map(|line| line["status"].as_u64().expect("a number")).collect::<Vec<_>>(),
        [200, 413, 200, 413, 200, 413]
    );
    refused(&lines[1], 413, "PAYLOAD_TOO_LARGE");
    assert_eq!((&lines[2]["offset"], &lines[4]["offset"]), (&json!(1), &json!(2)));
    assert_eq!(server.metric("produce_rejected_total{reason=\"too_large\"}"), Some(3.0));
    let (_, lines) = batch(&server, "/v1/ack", &format!("{}\n{}", line(5_000), json!({})));
    refused(&lines[0], 413, "PAYLOAD_TOO_LARGE");
    refused(&lines[1], 400, "INVALID_ARGUMENT");
}

#[test]
fn ten_thousand_lines_are_produced_consumed_and_acked() {
    const COUNT: usize = 10_000;
    let server = Server::with(&["--max-in-flight", "10000"]);
    server.create("t", 1);
    let body: String = (0..COUNT).map(|number| format!("{{\"topic\":\"t\",\"value\":\"{number}\"}}\n")).collect();
    let (_, lines) = batch(&server, "/v1/produce", &body);
    assert_eq!(lines.len(), COUNT);
    for (number, line) in lines.iter().enumerate() {
        assert_eq!(*line, json!({ "status": 200, "topic": "t", "partition": 0, "offset": number }));
    }
    let items = server.consume(&format!("topic=t&group=g&owner=w&lease_ms=60000&max={COUNT}")).items();
    assert_eq!(items.len(), COUNT);
    let values = items.iter().map(|item| item["value"].as_str().and_then(|value| value.parse().ok()));
    assert!(values.eq((0..COUNT).map(Some)), "in order");
    let body: String = items.iter().map(|item| format!("{}\n", claim("t", item))).collect();
    let (_, lines) = batch(&server, "/v1/ack", &body);
    assert_eq!(lines.len(), COUNT);
    assert!(lines.iter().all(|line| *line == json!({ "status": 204 })));
    let progress = server.topic("t")["groups"][0]["partitions"][0].clone();
    assert_eq!((&progress["floor"], &progress["lag"]), (&json!(COUNT - 1), &json!(0)));
    assert_eq!(server.metric("driftq_messages_acked_total"), Some(10_000.0));
}

#[test]
fn sender_waiting_for_slow_disk_is_not_timed_out() {
    let server = Server::configured("[http]\nbody_timeout_ms = 400\n", &["--sync-delay-ms", "700"]);
    server.create("t", 1);
    let mut connection = server.connect_raw();
    connection.send(
        b"POST /v1/produce HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n\
          Transfer-Encoding: chunked\r\n\r\n",
    );
    let line = "{\"topic\":\"t\",\"value\":\"v\"}\n";
    let chunk = format!("{:x}\r\n{line}\r\n", line.len());
    connection.send(chunk.as_bytes());
    assert_eq!(connection.head().status, 200);
    for offset in 0..3 {
        let response = connection.chunk().expect("a response");
        let line: Value = serde_json::from_str(&response).expect("one line");
        assert_eq!((&line["status"], &line["offset"]), (&json!(200), &json!(offset)));
        connection.send(chunk.as_bytes());
    }
    assert!(connection.chunk().is_some_and(|line| line.contains("\"offset\":3")));
    let last = connection.chunk().expect("the timeout");
    assert!(last.contains("too slowly"), "now the server waits for the sender: {last}");
}
