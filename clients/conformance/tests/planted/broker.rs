//! Requests of the adapter, repeated where they may be.

use std::io;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use driftq_conformance::http::{Client, ClientError};
use serde_json::{Value, json};

use crate::Plant;

const TIMEOUT: Duration = Duration::from_secs(5);
const RETRY_FOR: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(15);

/// Whether a request may be sent again that may have been carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    Safe,
    Never,
}

/// Why there is no answer that says success.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) status: u16,
    pub(crate) body: Value,
    unknown: bool,
    repeat: Repeat,
}

impl Failure {
    pub(crate) fn misuse(text: &str) -> Self {
        Self { status: 0, body: json!({"message": text}), unknown: false, repeat: Repeat::Never }
    }

    /// Whether the request may have been carried out.
    pub(crate) fn is_unknown(&self) -> bool {
        self.unknown
    }

    /// The error as the runner is told of it.
    pub(crate) fn told(&self, plant: Plant) -> Value {
        let kind = match self.status {
            _ if plant == Plant::OtherKind => "protocol",
            _ if self.unknown => "unknown",
            0 => "misuse",
            400 | 405 | 413 | 422 => "invalid",
            404 => "not_found",
            409 => "conflict",
            429 => "overloaded",
            _ => "unavailable",
        };
        let is_safe = self.unknown && self.repeat == Repeat::Safe || matches!(kind, "overloaded" | "unavailable");
        json!({"kind": kind, "status": self.status, "retry_is_safe": is_safe, "message": self.body["message"]})
    }
}

/// Where the broker is.
#[derive(Clone, Debug)]
pub(crate) struct Broker {
    addrs: Vec<SocketAddr>,
}

impl Broker {
    pub(crate) fn new(urls: &Value) -> Option<Self> {
        let addr = |url: &Value| url.as_str()?.strip_prefix("http://")?.parse().ok();
        let addrs = urls.as_array()?.iter().map(addr).collect::<Option<Vec<_>>>()?;
        (!addrs.is_empty()).then_some(Self { addrs })
    }

    /// A client of the URL of this number, counted on beyond the last.
    pub(crate) fn client(&self, number: usize) -> Client {
        Client::new(self.addrs[number % self.addrs.len()], TIMEOUT)
    }

    /// Sends a request until it has an answer that will not get better. Returns the body of a success.
    pub(crate) fn call(&self, path: &str, body: &Value, repeat: Repeat) -> Result<Value, Failure> {
        let until = Instant::now() + RETRY_FOR;
        let mut number = 0;
        loop {
            let failure = match self.client(number).send("POST", path, Some(body)) {
                Ok(answer) if answer.status < 300 => return Ok(answer.body),
                Ok(answer) => {
                    let is_again = answer.status == 429 || answer.status == 503 && answer.body["committed"] == "no";
                    if answer.status < 500 && !is_again {
                        return Err(Failure { status: answer.status, body: answer.body, unknown: false, repeat });
                    }
                    Failure { status: answer.status, body: answer.body, unknown: !is_again, repeat }
                }
                Err(ClientError::Refused(_)) => Failure { status: 503, body: Value::Null, unknown: false, repeat },
                Err(_) => Failure { status: 0, body: Value::Null, unknown: true, repeat },
            };
            if failure.unknown && repeat == Repeat::Never || Instant::now() >= until {
                return Err(failure);
            }
            number += 1;
            thread::sleep(PAUSE);
        }
    }

    /// An effect in the ledger at this URL. It is never sent again.
    pub(crate) fn effect(url: &str, body: &Value) -> io::Result<()> {
        let addr = url.strip_prefix("http://").and_then(|addr| addr.parse().ok()).ok_or(io::ErrorKind::InvalidInput)?;
        match Client::new(addr, TIMEOUT).send("POST", "/effect", Some(body)) {
            Ok(answer) if answer.status == 200 => Ok(()),
            Ok(answer) => Err(io::Error::other(answer.status.to_string())),
            Err(error) => Err(io::Error::other(error)),
        }
    }
}

/// The body of a produce.
pub(crate) fn message(topic: &str, message: &Value) -> Value {
    let mut body = json!({"topic": topic, "value": message["value"]});
    if message["key"].is_string() {
        body["key"] = message["key"].clone();
    }
    for field in ["idempotency_key", "priority"] {
        if !message[field].is_null() {
            body["envelope"][field] = message[field].clone();
        }
    }
    body
}
