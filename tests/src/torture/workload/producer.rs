//! A producer: unique values, with and without keys. A message with an idempotency key is retried until it succeeds,
//! and sometimes repeated.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::plan::{Load, RECONNECT_PAUSE, Shared};
use crate::http::Client;
use crate::torture::client::{CallResult, RecordedClient};
use crate::torture::recorder::Recorder;
use crate::torture::rng::SeededRng;

pub(super) struct Producer {
    client: RecordedClient,
    name: String,
    load: Load,
    rng: SeededRng,
    shared: Arc<Shared>,
    sequence: u64,
}

impl Producer {
    pub(super) fn new(
        recorder: &Arc<Recorder>,
        client: &Client,
        name: String,
        load: Load,
        rng: SeededRng,
        shared: Arc<Shared>,
    ) -> Self {
        let client = RecordedClient::new(recorder, client, name.clone());
        Self { client, name, load, rng, shared, sequence: 0 }
    }

    pub(super) fn run(mut self) {
        while !self.shared.stopped() {
            let message = self.message();
            let keyed = !message["envelope"]["idempotency_key"].is_null();
            let mut result = self.produce(&message);
            // Only a keyed message can be retried without being duplicated.
            while keyed && !result.is_ok() && !self.shared.stopped() {
                result = self.produce(&message);
            }
            if keyed && self.rng.one_in(8) {
                self.produce(&message);
            }
            std::thread::sleep(self.load.pause.mul_f64(self.rng.below(100) as f64 / 100.0));
        }
    }

    fn produce(&mut self, message: &Value) -> CallResult {
        let result = self.client.call("produce", message);
        match result {
            CallResult::Ok(_) => drop(self.shared.produced.fetch_add(1, Ordering::Relaxed)),
            CallResult::Rejected(0) => std::thread::sleep(RECONNECT_PAUSE),
            CallResult::Rejected(_) | CallResult::Unknown => {
                self.shared.rejected.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(RECONNECT_PAUSE);
            }
        }
        result
    }

    fn message(&mut self) -> Value {
        self.sequence += 1;
        let value = format!("{}-{}{}", self.name, self.sequence, "x".repeat(self.load.padding));
        let topic = if self.rng.one_in(3) { "mail" } else { "orders" };
        let key = if self.rng.one_in(5) { String::new() } else { format!("customer-{}", self.rng.below(12)) };
        let mut message = json!({ "topic": topic, "key": key, "value": value });
        if self.rng.one_in(3) {
            message["envelope"]["idempotency_key"] = format!("key-{}-{}", self.name, self.sequence).into();
        }
        if self.rng.one_in(4) {
            let policy = json!({ "backoff_ms": 20, "max_backoff_ms": 100, "max_attempts": self.rng.between(1, 4) });
            message["envelope"]["retry_policy"] = policy;
        }
        message
    }
}
