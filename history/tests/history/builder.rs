//! Builds histories line by line.

use std::collections::HashMap;

use driftq_history::{Entry, Phase};
use serde_json::{Value, json};

/// The time of the first line, by both clocks.
pub(crate) const START: u64 = 1_766_318_400_000;
/// The lease that every consume requests.
pub(crate) const LEASE_MS: u64 = 2_000;

/// Token number `n` of the first boot.
pub(crate) fn token(n: u64) -> String {
    format!("00000001{n:016x}")
}

/// A time as the broker writes it.
pub(crate) fn timestamp(ms: u64) -> String {
    let ms = i64::try_from(ms).expect("a small number");
    format!("{:.3}", jiff::Timestamp::from_millisecond(ms).expect("a valid time"))
}

/// A delivery, by default of topic `t`, partition 0.
#[derive(Clone)]
pub(crate) struct Item {
    pub(crate) offset: u64,
    pub(crate) attempt: u64,
    pub(crate) token: u64,
    pub(crate) value: String,
    pub(crate) key: &'static str,
    pub(crate) partition: u64,
    pub(crate) envelope: Value,
}

/// Attempt 1 of the message at `offset`, whose value is `v` and the offset.
pub(crate) fn item(offset: u64, token: u64) -> Item {
    let value = format!("v{offset}");
    Item { offset, attempt: 1, token, value, key: "", partition: 0, envelope: Value::Null }
}

impl Item {
    pub(crate) fn attempt(self, attempt: u64) -> Self {
        Self { attempt, ..self }
    }

    pub(crate) fn value(self, value: &str) -> Self {
        Self { value: value.to_owned(), ..self }
    }

    pub(crate) fn key(self, key: &'static str) -> Self {
        Self { key, ..self }
    }

    pub(crate) fn partition(self, partition: u64) -> Self {
        Self { partition, ..self }
    }

    pub(crate) fn envelope(self, envelope: Value) -> Self {
        Self { envelope, ..self }
    }
}

/// A history under construction. Every line takes one millisecond.
pub(crate) struct History {
    pub(crate) entries: Vec<Entry>,
    pub(crate) now: u64,
    consumes: HashMap<String, Value>,
}

impl History {
    /// One topic `t`, one group `g` in the setup, at most two messages in flight.
    pub(crate) fn new() -> Self {
        Self::with_groups(&[("t", "g")])
    }

    pub(crate) fn with_groups(groups: &[(&str, &str)]) -> Self {
        let mut history = Self { entries: Vec::new(), now: START, consumes: HashMap::new() };
        let groups: Vec<Value> = groups.iter().map(|(topic, group)| json!({"topic": topic, "group": group})).collect();
        history.driver("setup", json!({"max_in_flight": 2, "lease_ms": LEASE_MS, "groups": groups}));
        history.driver("start", json!({}));
        history
    }

    pub(crate) fn line(&mut self, client: &str, op: &str, phase: Phase, args: Value, result: Value) -> u64 {
        let seq = self.entries.len() as u64 + 1;
        self.now += 1;
        let (client, op) = (client.to_owned(), op.to_owned());
        self.entries.push(Entry { seq, t: self.now, client, incarnation: 0, op, phase, args, result });
        seq
    }

    /// A call and its answer, on the next two lines.
    pub(crate) fn call(&mut self, client: &str, op: &str, phase: Phase, args: Value, result: Value) -> u64 {
        self.line(client, op, Phase::Invoke, args.clone(), Value::Null);
        self.line(client, op, phase, args, result)
    }

    pub(crate) fn driver(&mut self, op: &str, args: Value) {
        self.line("driver", op, Phase::Ok, args, json!({}));
    }

    pub(crate) fn pass(&mut self, ms: u64) {
        self.now += ms;
    }

    /// Accepted produces of `v0`, `v1`, … in topic `t`, partition 0.
    pub(crate) fn produced(&mut self, offsets: std::ops::Range<u64>) {
        for offset in offsets {
            self.produce(&format!("v{offset}"), json!({}), Some((0, offset)));
        }
    }

    /// A produce to topic `t` with more fields; accepted at a partition and offset, or without an answer.
    pub(crate) fn produce(&mut self, value: &str, more: Value, at: Option<(u64, u64)>) -> u64 {
        let mut args = json!({"topic": "t", "value": value});
        merge(&mut args, more);
        match at {
            Some((partition, offset)) => {
                let result = json!({"status": "produced", "topic": "t", "partition": partition, "offset": offset});
                self.call("producer", "produce", Phase::Ok, args, result)
            }
            None => self.call("producer", "produce", Phase::Info, args, json!({"error": "timeout"})),
        }
    }

    /// Opens a stream of topic `t`.
    pub(crate) fn consume(&mut self, client: &str, group: &str) {
        self.consume_with(client, json!({"topic": "t", "group": group, "owner": client, "lease_ms": LEASE_MS}));
    }

    pub(crate) fn consume_with(&mut self, client: &str, args: Value) {
        self.line(client, "consume", Phase::Invoke, args.clone(), Value::Null);
        self.consumes.insert(client.to_owned(), args);
    }

    pub(crate) fn end(&mut self, client: &str, phase: Phase) {
        let args = self.consumes.remove(client).expect("an open consume");
        self.line(client, "consume", phase, args, json!({}));
    }

    /// A delivery whose lease began just now.
    pub(crate) fn deliver(&mut self, client: &str, item: Item) -> u64 {
        self.deliver_for(client, item, LEASE_MS)
    }

    /// A delivery whose lease ends after `lease_ms` of wall time.
    pub(crate) fn deliver_for(&mut self, client: &str, item: Item, lease_ms: u64) -> u64 {
        let args = self.consumes[client].clone();
        let mut result = json!({
            "partition": item.partition, "offset": item.offset, "attempts": item.attempt, "key": item.key, "value": item.value,
            "last_error": "", "lease_token": token(item.token), "lease_until": timestamp(self.now + lease_ms), "failures": item.attempt - 1,
            "produced_at": timestamp(START),
        });
        if !item.envelope.is_null() {
            result["envelope"] = item.envelope;
        }
        self.line(client, "deliver", Phase::Ok, args, result)
    }

    /// A settling call of the group that the client consumes for.
    pub(crate) fn settle(&mut self, client: &str, op: &str, phase: Phase, (offset, n): (u64, u64), more: Value) -> u64 {
        let of = &self.consumes[client];
        let mut args =
            json!({"topic": of["topic"], "group": of["group"], "partition": 0, "offset": offset, "owner": client});
        if n > 0 {
            args["lease_token"] = json!(token(n));
        }
        let result = if op == "extend" { json!({"lease_until": timestamp(self.now + LEASE_MS)}) } else { json!({}) };
        merge(&mut args, more);
        self.call(client, op, phase, args, result)
    }

    pub(crate) fn ack(&mut self, client: &str, offset: u64, n: u64) -> u64 {
        self.settle(client, "ack", Phase::Ok, (offset, n), json!({}))
    }

    /// Deliveries and acks, in order, with the tokens after `token`.
    pub(crate) fn work(&mut self, client: &str, offsets: std::ops::Range<u64>, token: u64) {
        for (offset, n) in offsets.zip(token + 1..) {
            self.deliver(client, item(offset, n));
            self.ack(client, offset, n);
        }
    }

    /// Adds both drain rounds, in which nothing is delivered.
    pub(crate) fn drained(mut self) -> Self {
        self.drain(1);
        self.drain(2);
        self
    }

    pub(crate) fn drain(&mut self, round: u64) {
        self.call("driver", "drain", Phase::Ok, json!({"round": round}), json!({}));
    }

    pub(crate) fn text(&self) -> String {
        let lines = self.entries.iter().map(|entry| serde_json::to_string(entry).expect("an entry is JSON") + "\n");
        lines.collect()
    }
}

fn merge(args: &mut Value, more: Value) {
    if let (Value::Object(args), Value::Object(more)) = (args, more) {
        args.extend(more);
    }
}
