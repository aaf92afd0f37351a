//! A worker of a group: it mostly does its work, and for the rest does what workers do to brokers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::producer::NOBODY;
use super::{AWAY_MS_MAX, OUTPUTS, Shared};
use crate::http::Server;
use crate::torture::client::{Answer, Client};
use crate::torture::dice::Dice;
use crate::torture::recorder::Recorder;

pub(super) struct Worker {
    /// A client does one thing at a time, and a stream lasts: streams and calls are two clients.
    streams: Client,
    desk: Desk,
}

impl Worker {
    pub(super) fn new(
        recorder: &Arc<Recorder>,
        server: &Server,
        (topic, group): (&'static str, &'static str),
        name: String,
        dice: Dice,
        shared: Arc<Shared>,
    ) -> Self {
        let streams = Client::new(recorder, server, format!("{name}-stream"));
        let calls = Client::new(recorder, server, name.clone());
        Self { streams, desk: Desk { calls, topic, group, owner: name, dice, shared, late: VecDeque::new(), steps: 0 } }
    }

    pub(super) fn run(mut self) {
        while !self.desk.shared.stopped() {
            let subscription = self.desk.subscription();
            match self.streams.consume(&subscription) {
                Some(mut stream) => {
                    while let Some(item) = stream.next() {
                        if self.desk.work(&item).is_break() || self.desk.shared.stopped() {
                            break;
                        }
                    }
                }
                None => std::thread::sleep(NOBODY),
            }
            self.desk.settle_late();
        }
    }
}

/// Where deliveries are worked on.
struct Desk {
    calls: Client,
    topic: &'static str,
    group: &'static str,
    owner: String,
    dice: Dice,
    shared: Arc<Shared>,
    /// What is to be acked when its lease is over.
    late: VecDeque<(Instant, Value)>,
    steps: u64,
}

impl Desk {
    fn subscription(&mut self) -> Value {
        let lease_ms = self.dice.between(120, AWAY_MS_MAX);
        let mut args = json!({
            "topic": self.topic, "group": self.group, "owner": self.owner, "lease_ms": lease_ms,
            "prefetch": self.dice.between(1, 6), "wait_ms": 200,
        });
        if self.dice.once_in(3) {
            args["max"] = self.dice.between(1, 20).into();
        }
        if self.dice.once_in(4) {
            args["release_on_disconnect"] = true.into();
        }
        args
    }

    /// Does something with a delivery; breaks where the worker hangs up on the rest.
    fn work(&mut self, item: &Value) -> std::ops::ControlFlow<()> {
        let lease = self.lease_of(item);
        self.settle_late();
        match self.dice.below(100) {
            // Forgotten: the lease ends by itself.
            0..4 => {}
            4..8 => self.late.push_back((Instant::now() + Duration::from_millis(AWAY_MS_MAX + 50), lease)),
            8..14 => self.nack(lease),
            14..19 => drop(self.calls.call("release", &lease)),
            19..24 => self.extend_and_ack(&lease),
            24..26 => return std::ops::ControlFlow::Break(()),
            26..46 => self.complete(item, lease),
            _ if self.dice.once_in(2) => self.run_effect(item, lease),
            _ => self.ack(&lease),
        }
        std::ops::ControlFlow::Continue(())
    }

    fn lease_of(&self, item: &Value) -> Value {
        json!({
            "topic": self.topic, "group": self.group, "owner": self.owner, "partition": item["partition"],
            "offset": item["offset"], "lease_token": item["lease_token"],
        })
    }

    fn ack(&mut self, lease: &Value) {
        match self.calls.call("ack", lease) {
            Answer::Ok(_) => drop(self.shared.acked.fetch_add(1, Ordering::Relaxed)),
            Answer::Refused(409) => drop(self.shared.fenced.fetch_add(1, Ordering::Relaxed)),
            Answer::Refused(_) | Answer::Unknown => {}
        }
    }

    fn nack(&mut self, mut lease: Value) {
        lease["reason"] = "not today".into();
        if self.dice.once_in(2) {
            lease["delay_ms"] = self.dice.below(100).into();
        }
        self.calls.call("nack", &lease);
    }

    fn extend_and_ack(&mut self, lease: &Value) {
        let mut longer = lease.clone();
        longer["lease_ms"] = (AWAY_MS_MAX - 50).into();
        self.calls.call("extend", &longer);
        self.ack(lease);
    }

    /// Acks everything whose lease should be over: whoever has the message now must not be disturbed.
    fn settle_late(&mut self) {
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
        if self.dice.once_in(2) {
            output["envelope"]["idempotency_key"] = format!("step-{value}").into();
        }
        lease["result"] = json!({ "step": self.steps });
        lease["produce"] = json!([output]);
        let done = self.calls.call("complete", &lease);
        // Nobody knows whether it is done: the same token may ask again, and is told the same.
        if done == Answer::Unknown || self.dice.once_in(10) {
            self.calls.call("complete", &lease);
        }
    }

    /// Asks before it acts, acts, says what came of it, and acks.
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
        let Answer::Ok(begun) = self.calls.call("begin", &begin) else { return };
        if begun["decision"] == "EXECUTE" {
            if self.dice.once_in(10) {
                // Dies between its effect and its word.
                return;
            }
            let failed = self.dice.once_in(8);
            let status = if failed { "FAILED_RETRYABLE" } else { "SUCCEEDED" };
            let finish = json!({
                "scope": scope, "key": key, "lease_token": begun["lease_token"], "status": status,
                "result": { "by": self.owner }, "last_error": if failed { "no luck" } else { "" },
            });
            self.calls.call("finish", &finish);
            if failed {
                return self.nack(lease);
            }
        }
        self.ack(&lease);
    }
}
