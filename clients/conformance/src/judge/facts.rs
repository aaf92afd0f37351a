//! What a trace says, arranged for the rules.

use std::collections::HashMap;

use serde_json::Value;

use super::IN_TRANSIT_US;
use crate::scenario::{Scenario, Worker};
use crate::trace::{Entry, Seen};

/// A request, or one line of a batch.
#[derive(Clone, Debug)]
pub(super) struct Call {
    /// The entry of the request.
    pub(super) entry: usize,
    pub(super) incarnation: usize,
    pub(super) sent: u64,
    pub(super) path: String,
    pub(super) body: Value,
    pub(super) idempotency_key: Option<String>,
    /// 0 where no answer came, or not all of it.
    pub(super) status: u16,
    pub(super) answer: Value,
    /// Whether the answer, or that of its whole batch, was not cut.
    pub(super) is_answer_whole: bool,
    /// When the answer had come, or the connection had ended without one.
    pub(super) ended: u64,
}

impl Call {
    /// The lease token of the delivery that the request is about.
    pub(super) fn delivery_token(&self) -> Option<&str> {
        match self.path.as_str() {
            "/v1/idempotency/begin" | "/v1/idempotency/finish" => self.body["delivery"]["lease_token"].as_str(),
            path if path.starts_with("/v1/idempotency/") => None,
            _ => self.body["lease_token"].as_str(),
        }
    }

    /// Whether it ends the lease of its delivery.
    pub(super) fn settles(&self) -> bool {
        match self.path.as_str() {
            "/v1/ack" | "/v1/nack" | "/v1/release" | "/v1/complete" => true,
            "/v1/idempotency/finish" => self.body["dead_letter"] == true,
            _ => false,
        }
    }

    /// Whether it was refused because the lease is another worker's.
    pub(super) fn is_refused_as_stale(&self) -> bool {
        matches!(self.status, 404 | 409) && self.answer["decision"] != "IN_PROGRESS"
    }

    /// Whether the answer proves that nothing has happened, or may have.
    pub(super) fn is_without_effect(&self) -> bool {
        self.status == 429
            || self.status == 503 && self.answer["committed"] == "no"
            || (400..500).contains(&self.status)
    }
}

/// A stream of deliveries.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    pub(super) entry: usize,
    pub(super) incarnation: usize,
    pub(super) query: HashMap<String, String>,
    /// When the client closed it, or its connection had ended.
    pub(super) ended: u64,
}

/// A delivery: its first line, if it was written more than once.
#[derive(Clone, Debug)]
pub(super) struct Delivery {
    pub(super) entry: usize,
    pub(super) t: u64,
    pub(super) incarnation: usize,
    /// When its stream ended.
    pub(super) stream_ended: u64,
    pub(super) topic: String,
    pub(super) group: String,
    pub(super) message: String,
    pub(super) attempts: u64,
    pub(super) token: String,
    pub(super) key: String,
    pub(super) idempotency_key: Option<String>,
}

/// An effect that was granted to a client, as the client was told.
#[derive(Clone, Debug)]
pub(super) struct Grant {
    /// The entry of the request.
    pub(super) entry: usize,
    pub(super) incarnation: usize,
    /// When it was asked for, and when it had come.
    pub(super) sent: u64,
    pub(super) t: u64,
    pub(super) token: String,
    pub(super) scope: Value,
    pub(super) key: String,
    pub(super) delivery_token: Option<String>,
    /// Whether the answer came whole: of a batch that was cut, a client may not read what came.
    pub(super) is_certain: bool,
}

/// An effect in the ledger.
#[derive(Clone, Debug)]
pub(super) struct Effect {
    pub(super) entry: usize,
    pub(super) t: u64,
    pub(super) incarnation: usize,
    pub(super) name: String,
    pub(super) message: String,
    pub(super) attempt: u64,
    pub(super) worker: String,
}

/// An operation that the runner asked for.
#[derive(Clone, Debug)]
pub(super) struct Operation {
    pub(super) entry: usize,
    pub(super) incarnation: usize,
    pub(super) request: Value,
    pub(super) expect: Value,
    pub(super) answer: Option<(u64, Value)>,
}

/// Everything that the rules ask for.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) scenario: Scenario,
    pub(super) calls: Vec<Call>,
    pub(super) streams: Vec<Stream>,
    pub(super) deliveries: Vec<Delivery>,
    pub(super) grants: Vec<Grant>,
    pub(super) effects: Vec<Effect>,
    pub(super) operations: Vec<Operation>,
    /// By incarnation.
    pub(super) ends: HashMap<usize, (u64, usize, bool)>,
    pub(super) timeouts: Vec<(usize, String)>,
    pub(super) state: Value,
    /// When an incarnation was kept from running, and how long.
    stalls: HashMap<usize, Vec<(u64, u64)>>,
    by_token: HashMap<String, usize>,
    calls_by_token: HashMap<String, Vec<usize>>,
}

impl Facts {
    pub(super) fn new(entries: &[Entry]) -> Result<Self, String> {
        let scenario = entries
            .iter()
            .find_map(|entry| match &entry.seen {
                Seen::Run { scenario, .. } => Some(scenario.clone()),
                _ => None,
            })
            .ok_or("the trace has no beginning")?;
        let scenario = serde_json::from_value(scenario).map_err(|error| error.to_string())?;
        let mut facts = Self {
            scenario,
            calls: Vec::new(),
            streams: Vec::new(),
            deliveries: Vec::new(),
            grants: Vec::new(),
            effects: Vec::new(),
            operations: Vec::new(),
            ends: HashMap::new(),
            timeouts: Vec::new(),
            state: Value::Null,
            stalls: HashMap::new(),
            by_token: HashMap::new(),
            calls_by_token: HashMap::new(),
        };
        facts.requests(entries);
        facts.others(entries);
        facts.grants();
        for (at, call) in facts.calls.iter().enumerate() {
            if let Some(token) = call.delivery_token() {
                facts.calls_by_token.entry(token.to_owned()).or_default().push(at);
            }
        }
        Ok(facts)
    }

    /// The delivery with this token.
    pub(super) fn delivery(&self, token: &str) -> Option<&Delivery> {
        self.by_token.get(token).map(|&at| &self.deliveries[at])
    }

    /// The requests about the delivery with this token, in order.
    pub(super) fn calls_of(&self, token: &str) -> impl Iterator<Item = &Call> {
        self.calls_by_token.get(token).into_iter().flatten().map(|&at| &self.calls[at])
    }

    /// The worker of a topic and group in an incarnation; scenarios have one for each.
    pub(super) fn worker_of(&self, delivery: &Delivery) -> Option<&Worker> {
        self.scenario.workers.iter().find(|worker| worker.topic == delivery.topic && worker.group == delivery.group)
    }

    /// When the client was told, or knew, that a delivery is lost.
    pub(super) fn lost(&self, delivery: &Delivery) -> Option<u64> {
        let refused = self
            .calls_of(&delivery.token)
            .filter(|call| call.path == "/v1/extend" || call.path == "/v1/idempotency/begin")
            .filter(|call| call.is_refused_as_stale())
            .map(|call| call.ended);
        let renewals = self
            .grants
            .iter()
            .filter(|grant| grant.delivery_token.as_ref() == Some(&delivery.token))
            .flat_map(|grant| self.renewals(&grant.token))
            .filter(|call| call.is_refused_as_stale())
            .map(|call| call.ended);
        refused.chain(renewals).chain(self.ends.get(&delivery.incarnation).map(|end| end.0)).min()
    }

    /// When the lease of a delivery had certainly ended: it was lost, or the message was delivered again.
    pub(super) fn lease_ended(&self, delivery: &Delivery) -> Option<u64> {
        let newer = self
            .deliveries
            .iter()
            .filter(|other| other.message == delivery.message && other.group == delivery.group)
            .filter(|other| other.token > delivery.token)
            .map(|other| other.t)
            .min();
        [self.lost(delivery), newer].into_iter().flatten().min()
    }

    /// How long something that happened in this time may have been on its way: what is always granted, and what the
    /// machine kept the client from running.
    pub(super) fn allowance(&self, incarnation: usize, from: u64, to: u64) -> u64 {
        let stalls = self.stalls.get(&incarnation).into_iter().flatten();
        let stalled: u64 = stalls.filter(|(t, us)| *t >= from && t.saturating_sub(*us) <= to).map(|(_, us)| us).sum();
        IN_TRANSIT_US.saturating_add(stalled.saturating_mul(2))
    }

    /// The renewals of a grant.
    pub(super) fn renewals<'a>(&'a self, token: &'a str) -> impl Iterator<Item = &'a Call> {
        self.calls.iter().filter(move |call| call.path == "/v1/idempotency/renew" && call.body["lease_token"] == token)
    }

    /// Whether no renewal of a grant had succeeded for a whole lease when its message was given back, so that its
    /// client had to count it as lost. Whether it was late with them is another rule's.
    pub(super) fn had_lapsed(&self, grant: &Grant, delivery: &Delivery) -> bool {
        let (Some(worker), Some(settle)) = (self.worker_of(delivery), self.settle(delivery)) else { return false };
        let renewed = self.renewals(&grant.token).filter(|call| call.status == 200 && call.ended < settle.sent);
        let since = renewed.map(|call| call.sent).max().unwrap_or(grant.sent);
        since.saturating_add(worker.lease_ms * 1_000) <= settle.sent
    }

    /// The first request that ends the lease of a delivery.
    pub(super) fn settle(&self, delivery: &Delivery) -> Option<&Call> {
        self.calls_of(&delivery.token).find(|call| call.settles())
    }

    fn requests(&mut self, entries: &[Entry]) {
        let mut closed = HashMap::new();
        let mut ends = HashMap::new();
        for (at, entry) in entries.iter().enumerate() {
            match &entry.seen {
                Seen::Closed { connection } => drop(closed.insert(*connection, entry.t)),
                Seen::End { exchange, status, body, complete } => {
                    ends.insert(*exchange, (at, entry.t, *status, body, *complete));
                }
                _ => {}
            }
        }
        let mut streams = HashMap::new();
        for (at, entry) in entries.iter().enumerate() {
            match &entry.seen {
                Seen::Request { exchange, incarnation, connection, target, batch, idempotency_key, body, .. } => {
                    let (path, query) = target.split_once('?').unwrap_or((target, ""));
                    let end = ends.get(exchange).copied();
                    if path == "/v1/consume" {
                        let end = end.map_or(u64::MAX, |(_, t, ..)| t);
                        let ended = closed.get(connection).map_or(end, |&closed| closed.min(end));
                        let (incarnation, query) = (*incarnation, parameters(query));
                        streams.insert(*exchange, self.streams.len());
                        self.streams.push(Stream { entry: at, incarnation, query, ended });
                        continue;
                    }
                    let bodies = match body {
                        Value::Array(lines) if *batch => lines.clone(),
                        other => vec![other.clone()],
                    };
                    for (line, body) in bodies.into_iter().enumerate() {
                        let (ended, status, answer) = answer_of(end, *batch, line);
                        self.calls.push(Call {
                            entry: at,
                            incarnation: *incarnation,
                            sent: entry.t,
                            path: path.to_owned(),
                            body,
                            idempotency_key: idempotency_key.clone(),
                            status,
                            answer,
                            is_answer_whole: end.is_some_and(|(.., complete)| complete),
                            ended,
                        });
                    }
                }
                Seen::Line { exchange, line } => {
                    if let Some(&stream) = streams.get(exchange) {
                        self.line(at, entry.t, stream, line);
                    }
                }
                _ => {}
            }
        }
    }

    fn line(&mut self, entry: usize, t: u64, stream: usize, line: &Value) {
        let stream = &self.streams[stream];
        let parameter = |name: &str| stream.query.get(name).cloned().unwrap_or_default();
        let (Some(token), topic) = (line["lease_token"].as_str(), parameter("topic")) else { return };
        if self.by_token.contains_key(token) {
            return;
        }
        let message = format!("{topic}/{}/{}", line["partition"], line["offset"]);
        self.by_token.insert(token.to_owned(), self.deliveries.len());
        let delivery = Delivery {
            entry,
            t,
            incarnation: stream.incarnation,
            stream_ended: stream.ended,
            topic,
            group: parameter("group"),
            message,
            attempts: line["attempts"].as_u64().unwrap_or(0),
            token: token.to_owned(),
            key: line["key"].as_str().unwrap_or_default().to_owned(),
            idempotency_key: line["envelope"]["idempotency_key"].as_str().map(str::to_owned),
        };
        self.deliveries.push(delivery);
    }

    fn others(&mut self, entries: &[Entry]) {
        let mut by_id = HashMap::new();
        for (at, entry) in entries.iter().enumerate() {
            match &entry.seen {
                Seen::Effect { incarnation, name, message, attempt, worker } => self.effects.push(Effect {
                    entry: at,
                    t: entry.t,
                    incarnation: *incarnation,
                    name: name.clone(),
                    message: message.clone(),
                    attempt: *attempt,
                    worker: worker.clone(),
                }),
                Seen::Call { incarnation, id, request, expect } => {
                    by_id.insert((*incarnation, *id), self.operations.len());
                    self.operations.push(Operation {
                        entry: at,
                        incarnation: *incarnation,
                        request: request.clone(),
                        expect: expect.clone(),
                        answer: None,
                    });
                }
                Seen::Answer { incarnation, answer } => {
                    let operation = answer["id"].as_u64().and_then(|id| by_id.get(&(*incarnation, id)));
                    if let Some(&operation) = operation {
                        self.operations[operation].answer = Some((entry.t, answer.clone()));
                    }
                }
                Seen::Ended { incarnation, expected } => {
                    self.ends.insert(*incarnation, (entry.t, at, *expected));
                }
                Seen::Stalled { incarnation, us } => {
                    self.stalls.entry(*incarnation).or_default().push((entry.t, *us));
                }
                Seen::TimedOut { what } => self.timeouts.push((at, what.clone())),
                Seen::Final { state } => self.state = state.clone(),
                _ => {}
            }
        }
    }

    fn grants(&mut self) {
        let granted = self.calls.iter().filter(|call| {
            call.status == 200
                && matches!(call.path.as_str(), "/v1/idempotency/begin" | "/v1/idempotency/reacquire")
                && call.answer["decision"] == "EXECUTE"
        });
        self.grants = granted
            .filter_map(|call| {
                Some(Grant {
                    entry: call.entry,
                    incarnation: call.incarnation,
                    sent: call.sent,
                    t: call.ended,
                    token: call.answer["lease_token"].as_str()?.to_owned(),
                    scope: call.body["scope"].clone(),
                    key: call.body["key"].as_str().unwrap_or_default().to_owned(),
                    delivery_token: call.delivery_token().map(str::to_owned),
                    is_certain: call.is_answer_whole,
                })
            })
            .collect();
    }
}

/// End, status and body of an answer; of a batch those of a line.
fn answer_of(end: Option<(usize, u64, u16, &Value, bool)>, batch: bool, line: usize) -> (u64, u16, Value) {
    match end {
        None => (u64::MAX, 0, Value::Null),
        Some((_, t, 200, body, _)) if batch => {
            let answer = body.get(line).cloned().unwrap_or(Value::Null);
            let status = answer["status"].as_u64().and_then(|status| u16::try_from(status).ok());
            (t, status.unwrap_or(0), answer)
        }
        // A batch that was refused as a whole.
        Some((_, t, status, body, true)) => (t, status, if batch { body[0].clone() } else { body.clone() }),
        Some((_, t, ..)) => (t, 0, Value::Null),
    }
}

/// The parameters of a query.
fn parameters(query: &str) -> HashMap<String, String> {
    query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (decoded(name), decoded(value)))
        .collect()
}

/// A text without percent-encoding.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match (byte, hex.and_then(|hex| u8::from_str_radix(hex, 16).ok())) {
            (b'%', Some(decoded)) => {
                bytes.push(decoded);
                rest = &after[2..];
            }
            (b'+', _) => {
                bytes.push(b' ');
                rest = after;
            }
            _ => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
