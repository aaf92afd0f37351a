//! A worker with idempotent effects.

use serde_json::{Value, json};

use super::{Broker, with};

/// Why an effect failed.
#[derive(Debug)]
pub enum Failure {
    /// A retry may succeed.
    Retryable(String),
    /// No retry can succeed.
    Final(String),
}

/// The result of a delivery.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// The message is acked and its effect recorded.
    Done,
    /// The effect failed; the message is redelivered, or acked if the failure is final.
    Failed,
    /// Another worker runs the effect.
    Elsewhere,
    /// The message was redelivered to another worker. Nothing was changed.
    Fenced,
}

pub struct Worker<'a> {
    pub broker: &'a dyn Broker,
    pub topic: &'a str,
    pub group: &'a str,
    pub name: &'a str,
}

impl Worker<'_> {
    /// Processes one delivery: begins the effect, runs it at most once per grant, and records the result. An effect
    /// that takes long calls the heartbeat it is given, several times per lease, and stops when that returns false.
    pub fn work(
        &self,
        item: &Value,
        effect: impl FnOnce(&Value, &dyn Fn() -> bool) -> Result<Value, Failure>,
        next: impl Fn(&Value) -> Vec<Value>,
    ) -> Step {
        let (status, begun) = self.broker.post(
            "/v1/idempotency/begin",
            with(
                self.identity(item),
                json!({
                    "owner": self.name,
                    "lease_ms": 30_000,
                    // Fences workers with an older delivery of this message.
                    "delivery": {
                        "partition": item["partition"],
                        "offset": item["offset"],
                        "lease_token": item["lease_token"],
                    },
                }),
            ),
        );
        match (status, begun["decision"].as_str()) {
            (200, Some("EXECUTE")) => match effect(item, &|| self.heartbeat(item, &begun)) {
                Ok(result) => self.complete(item, &result, &next(&result)),
                Err(failure) => self.fail(item, &begun, failure),
            },
            // The effect has run before: it is skipped, the rest of the step is not.
            (200, Some("REPLAY")) if begun["status"] == "SUCCEEDED" => {
                self.complete(item, &begun["result"], &next(&begun["result"]))
            }
            (200, Some("REPLAY")) => self.settle("/v1/ack", item, json!({}), Step::Failed),
            (409, Some("IN_PROGRESS")) => self.settle("/v1/release", item, json!({}), Step::Elsewhere),
            (409, _) => Step::Fenced,
            other => panic!("begin: {other:?} {begun}"),
        }
    }

    /// Prolongs the lease of the delivery and, where there is one, that of the effect. False if another worker has
    /// taken over.
    fn heartbeat(&self, item: &Value, begun: &Value) -> bool {
        let extended = self.settle("/v1/extend", item, json!({ "lease_ms": 30_000 }), Step::Done) == Step::Done;
        if begun["idempotent"] == false {
            return extended;
        }
        let renew = json!({ "lease_token": begun["lease_token"], "lease_ms": 30_000 });
        extended && self.broker.post("/v1/idempotency/renew", with(self.identity(item), renew)).0 == 200
    }

    /// The identity of the effect.
    fn identity(&self, item: &Value) -> Value {
        json!({
            "tenant_id": item["envelope"]["tenant_id"].as_str().unwrap_or(""),
            "scope": { "kind": "consume", "topic": self.topic, "group": self.group },
            "key": item["envelope"]["idempotency_key"].as_str().unwrap_or(""),
        })
    }

    /// Ack, result and output messages: one record in the log, so all or nothing.
    fn complete(&self, item: &Value, result: &Value, produce: &[Value]) -> Step {
        self.settle("/v1/complete", item, json!({ "result": result, "produce": produce }), Step::Done)
    }

    fn fail(&self, item: &Value, begun: &Value, failure: Failure) -> Step {
        let (status, error) = match &failure {
            Failure::Retryable(error) => ("FAILED_RETRYABLE", error),
            Failure::Final(error) => ("FAILED_FINAL", error),
        };
        // A message without a key has no effect in the store.
        if begun["idempotent"] != false {
            let finish = json!({ "lease_token": begun["lease_token"], "status": status, "last_error": error });
            match self.broker.post("/v1/idempotency/finish", with(self.identity(item), finish)) {
                (200, _) => {}
                (409 | 404, _) => return Step::Fenced,
                other => panic!("finish: {other:?}"),
            }
        }
        match failure {
            Failure::Retryable(error) => self.settle("/v1/nack", item, json!({ "reason": error }), Step::Failed),
            Failure::Final(_) => self.settle("/v1/ack", item, json!({}), Step::Failed),
        }
    }

    /// Settles the delivery with its token.
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
