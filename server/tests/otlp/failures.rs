//! Collectors that are dead, slow or answer nonsense: the broker serves as ever, and counts what was not exported.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use super::broker::{Broker, PRODUCER};
use super::collector::{Behavior, Collector, wait_until};

const OFTEN: [&str; 2] = ["--otlp-interval-ms", "100"];
/// Most spans that wait, and of one request.
const SPANS_MAX: usize = 8_192;
const SPANS_PER_REQUEST: usize = 512;

fn failed(broker: &Broker, signal: &str) -> f64 {
    broker.metric(&format!("driftq_otlp_exports_total{{signal=\"{signal}\",result=\"failed\"}}"))
}

/// A message is stored, delivered and acked.
#[track_caller]
fn assert_serves(broker: &Broker) {
    broker.post("/v1/produce", Some(PRODUCER), r#"{"topic":"t","value":"v"}"#);
    let delivery = &broker.consume("t", 1)[0];
    broker.post("/v1/ack", Some(PRODUCER), &Broker::claim("t", delivery));
    assert_eq!(broker.get("/v1/readyz").0, 200);
}

/// Stores messages of a sampled producer and consumes them: as many spans of deliveries, within a moment.
fn deliver(broker: &Broker, count: usize) {
    let ndjson = [("traceparent", PRODUCER), ("content-type", "application/x-ndjson")];
    let lines = "{\"topic\":\"t\",\"value\":\"v\"}\n".repeat(count);
    assert_eq!(broker.call("POST", "/v1/produce", &ndjson, &lines).0, 200);
    assert_eq!(broker.consume("t", count).len(), count);
}

#[test]
fn dead_collector_costs_nothing_but_what_is_counted() {
    // The port was free a moment ago.
    let endpoint = format!("http://{}", TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
    let mut broker = Broker::start(&endpoint, &OFTEN);
    broker.post("/v1/topics", None, r#"{"name":"t"}"#);
    assert_serves(&broker);
    wait_until(|| failed(&broker, "traces") >= 1.0 && failed(&broker, "metrics") >= 3.0);
    assert_serves(&broker);
    assert_eq!(broker.spans("exported"), 0.0);
    let warnings = broker.log().matches("the OTLP export failed: the connection failed").count();
    assert_eq!(warnings, 2, "once for each signal: {}", broker.log());
    let took = broker.stop();
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[test]
fn collector_that_hangs_fills_the_queue_and_delays_no_delivery() {
    let collector = Collector::start(Behavior::Hangs);
    let flags = [&OFTEN[..], &["--max-in-flight", "20000"]].concat();
    let mut broker = Broker::start(&collector.endpoint, &flags);
    broker.post("/v1/topics", Some(PRODUCER), r#"{"name":"t"}"#);
    wait_until(|| !collector.spans().is_empty());
    let begun = Instant::now();
    deliver(&broker, SPANS_MAX + 2_000);
    assert!(begun.elapsed() < Duration::from_secs(9), "the requests to the collector have 10 s");
    wait_until(|| broker.spans("queue_full") > 0.0);
    let full = broker.spans("queue_full");
    assert!((1_990.0..2_100.0).contains(&full), "{full} spans beyond the bound, those of requests included");
    let skipped = "driftq_otlp_exports_total{signal=\"metrics\",result=\"skipped\"}";
    wait_until(|| broker.metric(skipped) > 0.0);
    assert_serves(&broker);
    let took = broker.stop();
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[test]
fn refused_spans_are_counted_and_not_sent_again() {
    for (behavior, exported, refused) in [
        (Behavior::status("400 Bad Request", "", b"no"), 0.0, 2.0),
        (Behavior::status("302 Found", "Location: http://127.0.0.1:9/\r\n", b""), 0.0, 2.0),
        (Behavior::status("204 No Content", "", b""), 0.0, 2.0),
        (Behavior::refuses(1), 1.0, 1.0),
        (Behavior::refuses(i64::MAX), 0.0, 2.0),
        (Behavior::refuses(-5), 2.0, 0.0),
        (Behavior::status("200 OK", "", b"nonsense"), 2.0, 0.0),
    ] {
        let collector = Collector::start(behavior.clone());
        let broker = Broker::start(&collector.endpoint, &["--otlp-sample-ratio", "0"]);
        broker.post("/v1/topics", Some(PRODUCER), r#"{"name":"t"}"#);
        broker.post("/v1/produce", Some(PRODUCER), r#"{"topic":"t","value":"v"}"#);
        wait_until(|| broker.spans("exported") + broker.spans("refused") == 2.0);
        assert_eq!((broker.spans("exported"), broker.spans("refused")), (exported, refused), "{behavior:?}");
        assert_eq!(collector.spans().len(), 2, "{behavior:?}");
    }
}

#[test]
fn collector_that_answers_nonsense_is_a_failure() {
    let endless = [&b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n"[..], &vec![b'x'; 100 << 10]].concat();
    let long_head = [&b"HTTP/1.1 200 OK\r\nX: "[..], &vec![b'x'; 100 << 10]].concat();
    for answer in [b"SSH-2.0-OpenSSH_9.2\r\n".to_vec(), endless, long_head] {
        let collector = Collector::start(Behavior::Answers(answer));
        let broker = Broker::start(&collector.endpoint, &OFTEN);
        broker.post("/v1/topics", Some(PRODUCER), r#"{"name":"t"}"#);
        wait_until(|| failed(&broker, "traces") >= 1.0 && failed(&broker, "metrics") >= 1.0);
        assert_serves(&broker);
        assert_eq!((broker.spans("exported"), broker.spans("refused")), (0.0, 0.0));
    }
}

#[test]
fn spans_that_failed_are_sent_again() {
    let collector = Collector::start(Behavior::IsUnavailableOnce);
    let broker = Broker::start(&collector.endpoint, &["--otlp-sample-ratio", "0"]);
    broker.post("/v1/topics", Some(PRODUCER), r#"{"name":"t"}"#);
    wait_until(|| broker.spans("exported") == 1.0);
    assert_eq!((failed(&broker, "traces"), collector.spans().len()), (1.0, 2));
}

#[test]
fn many_spans_are_sent_without_delay_and_in_several_requests() {
    let collector = Collector::start(Behavior::Accepts);
    let flags = ["--otlp-sample-ratio", "0", "--max-in-flight", "20000"];
    let broker = Broker::start(&collector.endpoint, &flags);
    broker.post("/v1/topics", None, r#"{"name":"t"}"#);
    deliver(&broker, 3 * SPANS_PER_REQUEST);
    let spans = collector.wait_for_spans(3 * SPANS_PER_REQUEST + 1);
    assert!(collector.exports().len() >= 4, "{} spans in {} requests", spans.len(), collector.exports().len());
    assert_eq!(broker.spans("queue_full"), 0.0);
}

#[test]
fn stop_exports_the_last_spans() {
    let collector = Collector::start(Behavior::Accepts);
    let mut broker = Broker::start(&collector.endpoint, &["--otlp-sample-ratio", "0"]);
    broker.post("/v1/topics", Some(PRODUCER), r#"{"name":"t"}"#);
    let took = broker.stop();
    assert!(took < Duration::from_secs(1), "{took:?}");
    collector.wait_for_spans(1);
}
