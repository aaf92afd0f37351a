//! A producer: unique values, keyed or not; what has an idempotency key is sent again until somebody answers, and sometimes once more.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Load, Shared};
use crate::http::Server;
use crate::torture::client::{Answer, Client};
use crate::torture::dice::Dice;
use crate::torture::recorder::Recorder;

/// How long a client waits when nobody is there.
pub(super) const NOBODY: Duration = Duration::from_millis(10);

pub(super) struct Producer {
    client: Client,
    name: String,
    load: Load,
    dice: Dice,
    shared: Arc<Shared>,
    made: u64,
}

impl Producer {
    pub(super) fn new(
        recorder: &Arc<Recorder>,
        server: &Server,
        name: String,
        load: Load,
        dice: Dice,
        shared: Arc<Shared>,
    ) -> Self {
        let client = Client::new(recorder, server, name.clone());
        Self { client, name, load, dice, shared, made: 0 }
    }

    pub(super) fn run(mut self) {
        while !self.shared.stopped() {
            let message = self.message();
            let keyed = !message["envelope"]["idempotency_key"].is_null();
            let mut answer = self.produce(&message);
            // Only a key makes it safe to say the same thing twice.
            while keyed && !answer.is_ok() && !self.shared.stopped() {
                answer = self.produce(&message);
            }
            if keyed && self.dice.once_in(8) {
                self.produce(&message);
            }
            std::thread::sleep(self.load.rest.mul_f64(self.dice.below(100) as f64 / 100.0));
        }
    }

    fn produce(&mut self, message: &Value) -> Answer {
        let answer = self.client.call("produce", message);
        match answer {
            Answer::Ok(_) => drop(self.shared.produced.fetch_add(1, Ordering::Relaxed)),
            Answer::Refused(0) => std::thread::sleep(NOBODY),
            Answer::Refused(_) | Answer::Unknown => {
                self.shared.no_room.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(NOBODY);
            }
        }
        answer
    }

    fn message(&mut self) -> Value {
        self.made += 1;
        let value = format!("{}-{}{}", self.name, self.made, "x".repeat(self.load.padding));
        let topic = if self.dice.once_in(3) { "mail" } else { "orders" };
        let key = if self.dice.once_in(5) { String::new() } else { format!("customer-{}", self.dice.below(12)) };
        let mut message = json!({ "topic": topic, "key": key, "value": value });
        if self.dice.once_in(3) {
            message["envelope"]["idempotency_key"] = format!("key-{}-{}", self.name, self.made).into();
        }
        if self.dice.once_in(4) {
            let policy = json!({ "backoff_ms": 20, "max_backoff_ms": 100, "max_attempts": self.dice.between(1, 4) });
            message["envelope"]["retry_policy"] = policy;
        }
        message
    }
}
