//! A worker of a group: it mostly acks, and otherwise nacks, releases, forgets, is late, or disconnects.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::plan::{OUTPUTS, RECONNECT_PAUSE, REDELIVERY_MS_MAX, Shared, lease_of};
use crate::http::Client;
use crate::torture::client::{CallResult, RecordedClient};
use crate::torture::recorder::Recorder;
use crate::torture::rng::SeededRng;

pub(super) struct Worker {
    /// A client of the history makes one call at a time, so the stream and the calls are two clients.
    streams: RecordedClient,
    handler: DeliveryHandler,
}

impl Worker {
    pub(super) fn new(
        recorder: &Arc<Recorder>,
        client: &Client,
        (topic, group): (&'static str, &'static str),
        name: String,
        rng: SeededRng,
        shared: Arc<Shared>,
    ) -> Self {
        let streams = RecordedClient::new(recorder, client, format!("{name}-stream"));
        let calls = RecordedClient::new(recorder, client, name.clone());
        let late = VecDeque::new();
        Self { streams, handler: DeliveryHandler { calls, topic, group, owner: name, rng, shared, late, steps: 0 } }
    }

    pub(super) fn run(mut self) {
        while !self.handler.shared.stopped() {
            let subscription = self.handler.subscription();
            match self.streams.consume(&subscription) {
                Some(mut stream) => {
                    while let Some(item) = stream.next() {
                        if self.handler.handle(&item).is_break() || self.handler.shared.stopped() {
                            break;
                        }
                    }
                }
                None => std::thread::sleep(RECONNECT_PAUSE),
            }
            self.handler.ack_late();
        }
    }
}

/// Handles the deliveries of a worker.
struct DeliveryHandler {
    calls: RecordedClient,
    topic: &'static str,
    group: &'static str,
    owner: String,
    rng: SeededRng,
    shared: Arc<Shared>,
    /// Leases to be acked after they have expired, with the time of the ack.
    late: VecDeque<(Instant, Value)>,
    steps: u64,
}

impl DeliveryHandler {
    fn subscription(&mut self) -> Value {
        let lease_ms = self.rng.between(120, REDELIVERY_MS_MAX);
        let mut args = json!({
            "topic": self.topic, "group": self.group, "owner": self.owner, "lease_ms": lease_ms,
            "prefetch": self.rng.between(1, 6), "wait_ms": 200,
        });
        if self.rng.one_in(3) {
            args["max"] = self.rng.between(1, 20).into();
        }
        if self.rng.one_in(4) {
            args["release_on_disconnect"] = true.into();
        }
        args
    }

    /// Handles a delivery; breaks if the worker disconnects.
    fn handle(&mut self, item: &Value) -> ControlFlow<()> {
        let lease = lease_of(item, self.topic, self.group, &self.owner);
        self.ack_late();
        match self.rng.below(100) {
            // Forgotten: the lease expires.
            0..4 => {}
            4..8 => self.late.push_back((Instant::now() + Duration::from_millis(REDELIVERY_MS_MAX + 50), lease)),
            8..14 => self.nack(lease),
            14..19 => drop(self.calls.call("release", &lease)),
            19..24 => self.extend_and_ack(&lease),
            24..26 => return ControlFlow::Break(()),
            26..46 => self.complete(item, lease),
            _ if self.rng.one_in(2) => self.run_effect(item, lease),
            _ => self.ack(&lease),
        }
        ControlFlow::Continue(())
    }

    fn ack(&mut self, lease: &Value) {
        match self.calls.call("ack", lease) {
            CallResult::Ok(_) => drop(self.shared.acked.fetch_add(1, Ordering::Relaxed)),
            CallResult::Rejected(409) => drop(self.shared.fenced.fetch_add(1, Ordering::Relaxed)),
            CallResult::Rejected(_) | CallResult::Unknown => {}
        }
    }

    fn nack(&mut self, mut lease: Value) {
        lease["reason"] = "temporary failure".into();
        if self.rng.one_in(2) {
            lease["delay_ms"] = self.rng.below(100).into();
        }
        self.calls.call("nack", &lease);
    }

    fn extend_and_ack(&mut self, lease: &Value) {
        let mut longer = lease.clone();
        longer["lease_ms"] = (REDELIVERY_MS_MAX - 50).into();
        self.calls.call("extend", &longer);
        self.ack(lease);
    }

    /// Acks leases that should have expired: the current owner of the message must not be affected.
    fn ack_late(&mut self) {
        while self.late.front().is_some_and(|(due, _)| Instant::now() >= *due) {
            let Some((_, lease)) = self.late.pop_front() else { return };
            self.ack(&lease);
        }
    }

    fn complete(&mut self, item: &Value, mut lease: Value) {
        if self.topic == OUTPUTS {
            return self.ack(&lease);
        }
        self.steps += 1;
        let value = format!("made-by-{}-{}", self.owner, self.steps);
        let mut output = json!({ "topic": OUTPUTS, "key": item["key"], "value": value });
        if self.rng.one_in(2) {
            output["envelope"]["idempotency_key"] = format!("step-{value}").into();
        }
        lease["result"] = json!({ "step": self.steps });
        lease["produce"] = json!([output]);
        let result = self.calls.call("complete", &lease);
        // The same token may complete again and gets the same response.
        if result == CallResult::Unknown || self.rng.one_in(10) {
            self.calls.call("complete", &lease);
        }
    }

    /// Begins the effect of a message, finishes it, and acks.
    fn run_effect(&mut self, item: &Value, lease: Value) {
        let key = &item["envelope"]["idempotency_key"];
        if key.is_null() {
            return self.ack(&lease);
        }
        let scope = json!({ "kind": "consume", "topic": self.topic, "group": self.group });
        let begin = json!({
            "scope": scope, "key": key, "owner": self.owner, "lease_ms": 200,
            "delivery": { "partition": item["partition"], "offset": item["offset"], "lease_token": item["lease_token"] },
        });
        let CallResult::Ok(begun) = self.calls.call("begin", &begin) else { return };
        if begun["decision"] == "EXECUTE" {
            if self.rng.one_in(10) {
                // The worker fails between the effect and its finish.
                return;
            }
            let failed = self.rng.one_in(8);
            let status = if failed { "FAILED_RETRYABLE" } else { "SUCCEEDED" };
            let finish = json!({
                "scope": scope, "key": key, "lease_token": begun["lease_token"], "status": status,
                "result": { "by": self.owner }, "last_error": if failed { "temporary failure" } else { "" },
            });
            self.calls.call("finish", &finish);
            if failed {
                return self.nack(lease);
            }
        }
        self.ack(&lease);
    }
}
