//! Spans: their parents, links and attributes, which of them there are, and what they never have.

use std::time::{SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use prost::Message;
use serde_json::json;

use super::broker::{Broker, PRODUCER, WORKER};
use super::collector::{Behavior, Collector, attribute};

/// Requests without a caller are not recorded, so that a test gets the spans that it asks for.
const CALLED_ONLY: [&str; 2] = ["--otlp-sample-ratio", "0"];

/// Trace id and parent of a header, in hexadecimal digits.
fn ids(caller: &str) -> (String, String) {
    (caller[3..35].to_owned(), caller[36..52].to_owned())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn context(span: &Span) -> (String, String) {
    (hex(&span.trace_id), hex(&span.parent_span_id))
}

#[track_caller]
fn find<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    let found: Vec<_> = spans.iter().filter(|span| span.name == name).collect();
    let [span] = found[..] else { panic!("{name}: {spans:#?}") };
    span
}

#[track_caller]
fn assert_attributes(span: &Span, expected: &[(&str, &str)]) {
    for (key, value) in expected {
        assert_eq!(attribute(&span.attributes, key).as_deref(), Some(*value), "{key} of {span:#?}");
    }
}

fn unix_ns() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()).unwrap()
}

#[test]
fn message_is_followed_from_its_producer_over_the_delivery_to_the_ack() {
    for reactors in ["1", "3"] {
        let collector = Collector::start(Behavior::Accepts);
        let flags = [&CALLED_ONLY[..], &["--reactors", reactors, "--otlp-service-name", "orders"]].concat();
        let broker = Broker::start(&collector.endpoint, &flags);
        let begun = unix_ns();
        broker.post("/v1/topics", None, r#"{"name":"t"}"#);
        broker.post("/v1/produce", Some(PRODUCER), r#"{"topic":"t","value":"v"}"#);
        let delivery = &broker.consume("t", 1)[0];
        broker.post("/v1/ack", Some(WORKER), &Broker::claim("t", delivery));
        let spans = collector.wait_for_spans(3);

        let message = [
            ("messaging.destination.name", "t"),
            ("messaging.destination.partition.id", "0"),
            ("driftq.message.offset", "0"),
        ];
        let produce = find(&spans, "POST /v1/produce");
        assert_eq!((produce.kind(), context(produce)), (SpanKind::Server, ids(PRODUCER)));
        assert_attributes(produce, &message);
        assert_attributes(produce, &[("http.response.status_code", "200"), ("messaging.operation.type", "send")]);
        let deliver = find(&spans, "deliver t");
        assert_eq!((deliver.kind(), context(deliver)), (SpanKind::Producer, ids(PRODUCER)));
        let [link] = &deliver.links[..] else { panic!("{deliver:#?}") };
        assert_eq!((hex(&link.trace_id), hex(&link.span_id)), ids(PRODUCER));
        assert_attributes(deliver, &message);
        assert_attributes(deliver, &[("messaging.consumer.group.name", "g"), ("driftq.delivery.attempt", "1")]);
        let ack = find(&spans, "POST /v1/ack");
        assert_eq!((ack.kind(), context(ack)), (SpanKind::Server, ids(WORKER)));
        assert_attributes(ack, &message);
        assert_attributes(ack, &[("messaging.consumer.group.name", "g"), ("http.response.status_code", "204")]);
        for span in &spans {
            let times = [begun, span.start_time_unix_nano, span.end_time_unix_nano, unix_ns()];
            // Instants are converted to wall time when they are exported.
            assert!(times.is_sorted_by(|a, b| a.saturating_sub(50_000_000) <= *b), "{times:?}");
            assert!(span.span_id.len() == 8 && span.flags & 1 == 1, "{span:#?}");
        }
        let request = ExportTraceServiceRequest::decode(&collector.exports()[0].body[..]).unwrap();
        let resource = request.resource_spans[0].resource.as_ref().unwrap();
        assert_eq!(attribute(&resource.attributes, "service.name").as_deref(), Some("orders"));
        assert_eq!(attribute(&resource.attributes, "service.instance.id").map(|id| id.len()), Some(32));
    }
}

#[test]
fn retry_is_a_second_delivery_of_the_trace_of_its_producer() {
    let collector = Collector::start(Behavior::Accepts);
    let broker = Broker::start(&collector.endpoint, &CALLED_ONLY);
    broker.post("/v1/topics", None, r#"{"name":"t"}"#);
    broker.post("/v1/produce", Some(PRODUCER), r#"{"topic":"t","value":"v"}"#);
    let first = &broker.consume("t", 1)[0];
    let mut nack: serde_json::Value = serde_json::from_str(&Broker::claim("t", first)).unwrap();
    nack["delay_ms"] = json!(0);
    broker.post("/v1/nack", Some(WORKER), &nack.to_string());
    broker.consume("t", 1);
    let spans = collector.wait_for_spans(4);
    let deliveries: Vec<_> = spans.iter().filter(|span| span.name == "deliver t").collect();
    let attempts = deliveries.iter().map(|span| attribute(&span.attributes, "driftq.delivery.attempt").unwrap());
    assert_eq!(attempts.collect::<Vec<_>>(), ["1", "2"]);
    assert!(deliveries.iter().all(|span| context(span) == ids(PRODUCER)));
    assert_eq!(context(find(&spans, "POST /v1/nack")), ids(WORKER));
}

#[test]
fn each_kind_of_settlement_has_a_span_and_a_batch_has_one() {
    let collector = Collector::start(Behavior::Accepts);
    let broker = Broker::start(&collector.endpoint, &CALLED_ONLY);
    broker.post("/v1/topics", None, r#"{"name":"t"}"#);
    let ndjson = [("traceparent", PRODUCER), ("content-type", "application/x-ndjson")];
    let lines = "{\"topic\":\"t\",\"value\":\"v\"}\n".repeat(5);
    assert_eq!(broker.call("POST", "/v1/produce", &ndjson, &lines).0, 200);
    let deliveries = broker.consume("t", 5);
    let claim = |at: usize| Broker::claim("t", &deliveries[at]);
    let mut extend: serde_json::Value = serde_json::from_str(&claim(0)).unwrap();
    extend["lease_ms"] = json!(5_000);
    broker.post("/v1/extend", Some(WORKER), &extend.to_string());
    broker.post("/v1/release", Some(WORKER), &claim(1));
    broker.post("/v1/complete", Some(WORKER), &claim(2));
    let mut cumulative: serde_json::Value = serde_json::from_str(&claim(0)).unwrap();
    cumulative.as_object_mut().unwrap().remove("lease_token");
    broker.post("/v1/ack-cumulative", Some(WORKER), &cumulative.to_string());
    let ndjson = [("traceparent", WORKER), ("content-type", "application/x-ndjson")];
    let acks = format!("{}\n{}\n", claim(3), claim(4));
    assert_eq!(broker.call("POST", "/v1/ack", &ndjson, &acks).0, 200);

    let spans = collector.wait_for_spans(1 + 5 + 4 + 1);
    assert_eq!(spans.iter().filter(|span| span.name == "deliver t").count(), 5);
    assert_attributes(find(&spans, "POST /v1/produce"), &[("messaging.batch.message_count", "5")]);
    assert_attributes(find(&spans, "POST /v1/ack"), &[("messaging.batch.message_count", "2")]);
    for (name, offset) in [("extend", "0"), ("release", "1"), ("complete", "2"), ("ack-cumulative", "0")] {
        let span = find(&spans, &format!("POST /v1/{name}"));
        assert_eq!(context(span), ids(WORKER));
        let expected = [("messaging.operation.name", name), ("messaging.operation.type", "settle")];
        assert_attributes(span, &expected);
        assert_attributes(span, &[("messaging.consumer.group.name", "g"), ("driftq.message.offset", offset)]);
    }
}

#[test]
fn caller_that_is_not_sampled_has_no_spans_and_one_without_a_header_has_a_trace_of_its_own() {
    let collector = Collector::start(Behavior::Accepts);
    let broker = Broker::start(&collector.endpoint, &[]);
    let unsampled = PRODUCER.replace("-01", "-00");
    broker.post("/v1/topics", Some(&unsampled), r#"{"name":"t"}"#);
    broker.post("/v1/produce", Some(&unsampled), r#"{"topic":"t","value":"v"}"#);
    broker.post("/v1/produce", None, r#"{"topic":"t","value":"v"}"#);
    assert_eq!(broker.call("POST", "/v1/produce", &[("traceparent", "nonsense")], "{}").0, 400);
    assert_eq!(broker.get("/v1/nowhere?q=1").0, 404);
    let spans = collector.wait_for_spans(3);
    let mut found: Vec<_> = spans.iter().map(|span| (span.name.as_str(), context(span).1)).collect();
    found.sort_unstable();
    assert_eq!(
        found.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
        ["HTTP", "POST /v1/produce", "POST /v1/produce"]
    );
    assert!(found.iter().all(|(_, parent)| parent.is_empty()));
    let mut traces: Vec<_> = spans.iter().map(|span| context(span).0).collect();
    traces.sort_unstable();
    traces.dedup();
    assert_eq!(traces.len(), 3);
}

#[test]
fn keys_payloads_queries_and_headers_are_never_exported() {
    let collector = Collector::start(Behavior::Accepts);
    let key = format!("dq_abcdefghijkl_CANARY{}", "A".repeat(37));
    let broker = Broker::start_with_key(&collector.endpoint, &["--otlp-interval-ms", "100"], &key);
    broker.post("/v1/topics", None, r#"{"name":"t"}"#);
    let headers = [("traceparent", PRODUCER), ("cookie", "CANARY"), ("idempotency-key", "CANARY-1")];
    let message =
        r#"{"topic":"t","key":"CANARY","value":"CANARY","envelope":{"run_id":"CANARY","labels":{"a":"CANARY"}}}"#;
    assert_eq!(broker.call("POST", "/v1/produce?CANARY=CANARY", &headers, message).0, 200);
    let delivery = &broker.consume("t", 1)[0];
    assert_eq!(delivery["value"], "CANARY");
    let mut nack: serde_json::Value = serde_json::from_str(&Broker::claim("t", delivery)).unwrap();
    (nack["reason"], nack["retryable"]) = (json!("CANARY"), json!(false));
    broker.post("/v1/nack?x=CANARY", Some(WORKER), &nack.to_string());
    broker.get("/v1/topics?limit=CANARY");
    broker.get("/v1/CANARY");
    // topics, produce, consume, deliver, nack, topics, unknown.
    collector.wait_for_spans(7);
    collector.wait_for_metrics(2);
    for export in collector.exports() {
        let text = format!("{} {}", export.head, String::from_utf8_lossy(&export.body));
        assert!(!text.contains("CANARY"), "{text}");
    }
}
