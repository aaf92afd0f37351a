//! A broker in this process, and clients that retry.

use std::time::{Duration, Instant};

use driftq_server::testing::{Broker, Builder};
use driftq_tests::http::{CallError, Client, RawConnection, Reply, Request};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::harness::TIMEOUT;

pub const LINES: (&str, &str) = ("Content-Type", "application/x-ndjson");

/// A broker that is stopped when dropped.
pub struct TestBroker {
    runtime: Runtime,
    broker: Broker,
    pub client: Client,
}

impl TestBroker {
    /// A broker with these faults, and leases as short as a test needs.
    pub fn with_chaos(chaos: &str) -> Self {
        Self::start(Broker::builder().chaos(chaos.parse().expect("valid")).config("[limits]\nlease_min_ms = 1"))
    }

    pub fn start(builder: Builder) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let broker = runtime.block_on(builder.start()).expect("it starts");
        let client = Client::new(broker.addr(), TIMEOUT);
        Self { runtime, broker, client }
    }

    pub fn restart(&mut self) {
        self.runtime.block_on(self.broker.restart()).expect("it starts again");
    }

    pub fn stop(self) {
        self.runtime.block_on(self.broker.stop());
    }

    pub fn addr(&self) -> std::net::SocketAddr {
        self.broker.addr()
    }

    /// The faults as the broker itself lists them.
    pub fn faults(&self) -> Vec<Value> {
        self.broker.faults()
    }

    /// A request that may be cut.
    pub fn try_call(
        &self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<Reply, CallError> {
        self.client.call(&Request { method, target, headers, body })
    }

    pub fn try_post(&self, target: &str, body: impl AsRef<str>) -> Result<Reply, CallError> {
        self.try_call("POST", target, &[], body.as_ref())
    }

    /// Sends a request until it is answered, and not because the broker is recovering.
    #[track_caller]
    pub fn until_answered(&self, method: &str, target: &str, body: &str) -> Reply {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match self.try_call(method, target, &[], body) {
                Ok(reply) if reply.status != 503 => return reply,
                _ => assert!(Instant::now() < deadline, "no answer in time: {method} {target} {body}"),
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Creates a topic with one partition, over all faults.
    #[track_caller]
    pub fn create(&self, topic: &str) {
        let reply = self.until_answered("POST", "/v1/topics", &json!({ "name": topic }).to_string());
        assert_eq!(reply.status, 201, "{reply:?}");
    }

    /// The values in a topic with one partition, over all faults.
    #[track_caller]
    pub fn values(&self, topic: &str) -> Vec<String> {
        let target = format!("/v1/peek?topic={topic}&partition=0&offset=0&limit=1000");
        let reply = self.until_answered("GET", &target, "").json();
        let messages = reply["messages"].as_array().unwrap_or_else(|| panic!("no messages: {reply}"));
        messages.iter().map(|message| message["value"].as_str().expect("a text").to_owned()).collect()
    }

    /// The answer of `GET /v1/chaos`, which suffers no faults.
    #[track_caller]
    pub fn report(&self) -> Value {
        let reply = self.try_call("GET", "/v1/chaos", &[], "").expect("a response");
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()
    }

    /// The faults of this kind that were played.
    #[track_caller]
    pub fn played(&self, fault: &str) -> Vec<Value> {
        let report = self.report();
        let played = report["played"].as_array().expect("a list").iter();
        played.filter(|played| played["fault"] == fault).cloned().collect()
    }

    /// Waits until so many faults of this kind were played.
    #[track_caller]
    pub fn wait_for_played(&self, fault: &str, count: usize) {
        crate::harness::wait_until(&format!("{count} times {fault}"), || self.played(fault).len() >= count);
    }

    /// Sends bytes as given, and returns what comes until the connection ends.
    pub fn send_raw(&self, bytes: &str) -> String {
        let mut connection = self.connect_raw();
        connection.send(bytes.as_bytes()).expect("sent");
        connection.rest()
    }

    pub fn connect_raw(&self) -> RawConnection {
        self.client.connect_raw().expect("connected")
    }

    /// The bytes of a request.
    pub fn encode(&self, method: &str, target: &str, headers: &str, body: &str) -> String {
        let (host, len) = (self.addr(), body.len());
        format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n{headers}Content-Length: {len}\r\n\r\n{body}")
    }
}

/// The body of a produce.
pub fn message(value: &str) -> String {
    json!({ "topic": "t", "value": value }).to_string()
}

/// The body of a produce that may be repeated.
pub fn keyed(value: &str) -> String {
    json!({ "topic": "t", "value": value, "envelope": { "idempotency_key": value } }).to_string()
}
