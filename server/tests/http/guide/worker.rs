//! A worker whose effects run once.

use serde_json::{Value, json};

use super::{Broker, with};

/// How an effect went wrong.
#[derive(Debug)]
pub enum Failure {
    /// It may be tried again.
    Retryable(String),
    /// It will never succeed.
    Final(String),
}

/// What became of a delivery.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// The message is done, and so is its effect.
    Done,
    /// The effect failed; the message comes again, or is done if there is no point.
    Failed,
    /// Somebody else is at it.
    Elsewhere,
    /// The message has gone to somebody else. Nothing was changed.
    Fenced,
}

pub struct Worker<'a> {
    pub broker: &'a dyn Broker,
    pub topic: &'a str,
    pub group: &'a str,
    pub name: &'a str,
}

impl Worker<'_> {
    /// Works off one delivery: asks before it acts, acts at most once per grant, and says how it went.
    pub fn work(
        &self,
        item: &Value,
        effect: impl FnOnce(&Value) -> Result<Value, Failure>,
        next: impl Fn(&Value) -> Vec<Value>,
    ) -> Step {
        let (status, begun) = self.broker.post(
            "/v1/idempotency/begin",
            json!({
                "tenant_id": item["envelope"]["tenant_id"].as_str().unwrap_or(""),
                "scope": { "kind": "consume", "topic": self.topic, "group": self.group },
                "key": item["envelope"]["idempotency_key"].as_str().unwrap_or(""),
                "owner": self.name,
                "lease_ms": 30_000,
                // Whoever held an older delivery of this message is fenced at once.
                "delivery": {
                    "partition": item["partition"],
                    "offset": item["offset"],
                    "lease_token": item["lease_token"],
                },
            }),
        );
        match (status, begun["decision"].as_str()) {
            (200, Some("EXECUTE")) => match effect(item) {
                Ok(result) => self.complete(item, &result, &next(&result)),
                Err(failure) => self.fail(item, &begun, failure),
            },
            // Done before: the effect is skipped, the rest of the step is not.
            (200, Some("REPLAY")) if begun["status"] == "SUCCEEDED" => {
                self.complete(item, &begun["result"], &next(&begun["result"]))
            }
            (200, Some("REPLAY")) => self.settle("/v1/ack", item, json!({}), Step::Failed),
            (409, Some("IN_PROGRESS")) => self.settle("/v1/release", item, json!({}), Step::Elsewhere),
            (409, _) => Step::Fenced,
            other => panic!("begin: {other:?} {begun}"),
        }
    }

    /// Ack, result and the next step's messages: one record in the log, so all of it or none.
    fn complete(&self, item: &Value, result: &Value, produce: &[Value]) -> Step {
        self.settle("/v1/complete", item, json!({ "result": result, "produce": produce }), Step::Done)
    }

    fn fail(&self, item: &Value, begun: &Value, failure: Failure) -> Step {
        let (status, why) = match &failure {
            Failure::Retryable(why) => ("FAILED_RETRYABLE", why),
            Failure::Final(why) => ("FAILED_FINAL", why),
        };
        let finish = json!({
            "tenant_id": item["envelope"]["tenant_id"].as_str().unwrap_or(""),
            "scope": { "kind": "consume", "topic": self.topic, "group": self.group },
            "key": item["envelope"]["idempotency_key"],
            "lease_token": begun["lease_token"],
            "status": status,
            "last_error": why,
        });
        match self.broker.post("/v1/idempotency/finish", finish) {
            (200, _) => {}
            (409 | 404, _) => return Step::Fenced,
            other => panic!("finish: {other:?}"),
        }
        match failure {
            Failure::Retryable(why) => self.settle("/v1/nack", item, json!({ "reason": why }), Step::Failed),
            Failure::Final(_) => self.settle("/v1/ack", item, json!({}), Step::Failed),
        }
    }

    /// Says what became of the message, with the token that came with it.
    fn settle(&self, path: &str, item: &Value, more: Value, then: Step) -> Step {
        let body = json!({
            "topic": self.topic,
            "group": self.group,
            "partition": item["partition"],
            "offset": item["offset"],
            "owner": self.name,
            "lease_token": item["lease_token"],
        });
        match self.broker.post(path, with(body, more)) {
            (200 | 204, _) => then,
            (409, _) => Step::Fenced,
            other => panic!("{path}: {other:?}"),
        }
    }
}
