//! The trace context of a message: from the header of its produce to its delivery, over every way it can take.

use serde_json::{Value, json};

use crate::harness::Server;

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const OTHER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

fn produce(server: &Server, headers: &[(&str, &str)], value: &str) {
    let body = json!({ "topic": "t", "value": value }).to_string();
    let reply = server.call("POST", "/v1/produce", headers, &body);
    assert_eq!(reply.status, 200, "{reply:?}");
}

#[test]
fn trace_of_a_produce_is_delivered_and_survives_a_restart() {
    let server = Server::start();
    server.create("t", 1);
    produce(&server, &[("traceparent", TRACE)], "a");
    produce(&server, &[], "b");
    let server = server.crash_and_restart();
    let first = server.next("t");
    assert_eq!((&first["value"], &first["trace"]), (&json!("a"), &json!(TRACE)));
    server.settle_ok("ack", "t", &first, json!({}));
    assert_eq!(server.next("t").get("trace"), None, "a produce without a trace gets none");
}

#[test]
fn invalid_or_repeated_trace_is_ignored() {
    let server = Server::start();
    server.create("t", 1);
    let (upper, zeros) = (TRACE.to_uppercase(), TRACE.replace("00f067aa0ba902b7", "0000000000000000"));
    let (forbidden, longer) = (TRACE.replacen("00-", "ff-", 1), format!("{TRACE}-x"));
    let later = format!("cc{}-more", &TRACE[2..]);
    let cases: [(&[(&str, &str)], Value); 7] = [
        (&[("traceparent", &*upper)], Value::Null),
        (&[("traceparent", &*zeros)], Value::Null),
        (&[("traceparent", &*forbidden)], Value::Null),
        (&[("traceparent", &*longer)], Value::Null),
        (&[("traceparent", TRACE), ("traceparent", OTHER)], Value::Null),
        (&[("Traceparent", TRACE)], json!(TRACE)),
        (&[("traceparent", &*later)], json!(later)),
    ];
    for (headers, expected) in cases {
        produce(&server, headers, "v");
        let item = server.next("t");
        assert_eq!(item["trace"], expected, "{headers:?}");
        server.settle_ok("ack", "t", &item, json!({}));
    }
}

#[test]
fn trace_stays_with_retry_dead_letter_and_redrive() {
    let server = Server::start();
    server.create("t", 1);
    produce(&server, &[("traceparent", TRACE)], "v");
    let item = server.next("t");
    server.settle_ok("nack", "t", &item, json!({ "delay_ms": 0 }));
    let item = server.next("t");
    assert_eq!((&item["attempts"], &item["trace"]), (&json!(2), &json!(TRACE)));
    server.settle_ok("nack", "t", &item, json!({ "retryable": false }));
    let dead = server.get("/v1/peek?topic=dlq.t&partition=0&offset=0&limit=1").json();
    assert_eq!(dead["messages"][0]["trace"], TRACE, "{dead}");
    let reply = server.post("/v1/dlq/redrive", json!({ "topic": "t", "all": true }).to_string());
    assert_eq!(reply.json(), json!({ "redriven": 1 }));
    assert_eq!(server.next("t")["trace"], TRACE);
}

#[test]
fn outputs_of_a_step_have_the_trace_of_the_complete() {
    let server = Server::start();
    server.create("t", 1);
    server.create("out", 1);
    for (header, expected) in [(Some(OTHER), json!(OTHER)), (None, Value::Null)] {
        produce(&server, &[("traceparent", TRACE)], "v");
        let item = server.next("t");
        let step = json!({
            "topic": "t", "group": "g", "owner": "w", "partition": 0, "offset": item["offset"],
            "lease_token": item["lease_token"], "produce": [{ "topic": "out", "value": "done" }],
        });
        let headers: Vec<_> = header.map(|trace| ("traceparent", trace)).into_iter().collect();
        let reply = server.call("POST", "/v1/complete", &headers, &step.to_string());
        assert_eq!(reply.status, 200, "{reply:?}");
        let output = server.next("out");
        assert_eq!(output["trace"], expected, "{output}");
        server.settle_ok("ack", "out", &output, json!({}));
    }
}
