//! The steps of a handler.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::Plant;
use crate::broker::{Broker, Repeat};
use crate::delivery::Held;

const POLL: Duration = Duration::from_millis(5);

/// How a handler ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    Done {
        result: Value,
        produce: Vec<Value>,
    },
    Retry {
        text: String,
        delay_ms: Option<u64>,
    },
    Permanent(String),
    /// By a lost lease, or by shutdown.
    Cancelled,
}

/// What the steps need.
pub(crate) struct Run<'a> {
    pub(crate) plant: Plant,
    pub(crate) broker: &'a Broker,
    pub(crate) held: &'a Held,
    pub(crate) worker: &'a str,
    pub(crate) ledger: &'a str,
    pub(crate) is_stopped: &'a dyn Fn() -> bool,
}

impl Run<'_> {
    pub(crate) fn all(&self, steps: &[Value]) -> Outcome {
        let mut result = json!({"done": self.filled(&json!("{key}"))});
        let mut produce = Vec::new();
        for step in steps {
            let step = self.filled(step);
            if self.is_cancelled() {
                return Outcome::Cancelled;
            }
            let ran = match step["do"].as_str().unwrap_or_default() {
                "effect" => self.effect(&step["name"]),
                "side_effect" => self.side_effect(&step),
                "sleep" => self.sleep(&step["ms"]),
                "block" | "stubborn" => {
                    thread::sleep(Duration::from_millis(step["ms"].as_u64().unwrap_or(0)));
                    Ok(())
                }
                "fail" => self.fail(&step),
                "not_json" => Err(Outcome::Permanent("the result is no JSON".to_owned())),
                "return" => {
                    result = step["value"].clone();
                    if self.plant == Plant::FirstResult {
                        result["attempt"] = json!("1");
                    }
                    Ok(())
                }
                "outputs" => {
                    let messages = step["messages"].as_array().cloned().unwrap_or_default();
                    let topic = |message: &Value| message["topic"].as_str().unwrap_or_default().to_owned();
                    produce = messages.iter().map(|one| crate::broker::message(&topic(one), one)).collect();
                    Ok(())
                }
                other => Err(Outcome::Permanent(format!("unknown step {other:?}"))),
            };
            if let Err(outcome) = ran {
                return outcome;
            }
        }
        if self.held.is_lost() { Outcome::Cancelled } else { Outcome::Done { result, produce } }
    }

    fn is_cancelled(&self) -> bool {
        self.held.is_lost() || (self.is_stopped)()
    }

    fn effect(&self, name: &Value) -> Result<(), Outcome> {
        let body = json!({
            "name": name,
            "message": self.held.message(),
            "attempt": self.held.item["attempts"],
            "worker": self.worker,
        });
        Broker::effect(self.ledger, &body).map_err(|error| Outcome::Retry { text: error.to_string(), delay_ms: None })
    }

    fn side_effect(&self, step: &Value) -> Result<(), Outcome> {
        if self.plant == Plant::SideEffectAgain {
            return self.effect(&step["name"]);
        }
        let (topic, group) = (&self.held.identity.topic, &self.held.identity.group);
        let position = format!("{}:{}", self.held.item["partition"], self.held.item["offset"]);
        let id = encoded(&[topic, group, self.held.key().unwrap_or(&position)]);
        // Not the hash of the contract: no other client has to find this identity.
        let key = encoded(&[step["name"].as_str().unwrap_or_default(), &step["args"].to_string()]);
        let identity = json!({"scope": {"kind": "task", "id": id}, "key": key});
        let call = |path: &str, further: Value| {
            let mut body = identity.clone();
            crate::delivery::add(&mut body, further);
            self.broker.call(path, &body, Repeat::Safe)
        };
        let retry = |text: &str| Outcome::Retry { text: text.to_owned(), delay_ms: None };
        loop {
            let begun =
                match call("/v1/idempotency/begin", json!({"owner": self.held.identity.owner, "lease_ms": 1_000})) {
                    Ok(begun) => begun,
                    Err(failure) if failure.body["decision"] == "IN_PROGRESS" => {
                        self.sleep(&failure.body["retry_after_ms"])?;
                        continue;
                    }
                    Err(_) => return Err(retry("begin was refused")),
                };
            if begun["decision"] == "REPLAY" {
                return Ok(());
            }
            self.sleep(&step["ms"])?;
            self.effect(&step["name"])?;
            let outcome = json!({"lease_token": begun["lease_token"], "status": "SUCCEEDED", "result": {}});
            return call("/v1/idempotency/finish", outcome).map(drop).map_err(|_| retry("finish was refused"));
        }
    }

    fn sleep(&self, ms: &Value) -> Result<(), Outcome> {
        let until = Instant::now() + Duration::from_millis(ms.as_u64().unwrap_or(0));
        while Instant::now() < until {
            if self.is_cancelled() {
                return Err(Outcome::Cancelled);
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    fn fail(&self, step: &Value) -> Result<(), Outcome> {
        let attempt = self.held.item["attempts"].as_u64().unwrap_or(0);
        if step["attempts"].as_u64().is_some_and(|attempts| attempt > attempts) {
            return Ok(());
        }
        let text = step["text"].as_str().unwrap_or("failed").to_owned();
        if self.plant == Plant::PanicExits {
            std::process::exit(1);
        }
        Err(match step["kind"].as_str() {
            Some("permanent") => Outcome::Permanent(text),
            _ => Outcome::Retry { text, delay_ms: step["delay_ms"].as_u64() },
        })
    }

    /// A step with what stands for message, key and attempt.
    fn filled(&self, step: &Value) -> Value {
        match step {
            Value::String(text) => {
                let message = self.held.message();
                let filled = text
                    .replace("{key}", self.held.key().unwrap_or(&message))
                    .replace("{message}", &message)
                    .replace("{attempt}", &self.held.item["attempts"].to_string());
                Value::String(filled)
            }
            Value::Array(all) => all.iter().map(|one| self.filled(one)).collect(),
            Value::Object(fields) => fields.iter().map(|(name, value)| (name.clone(), self.filled(value))).collect(),
            other => other.clone(),
        }
    }
}

/// Parts as an idempotency key.
fn encoded(parts: &[&str]) -> String {
    driftq_conformance::idempotency_key(parts)
}
