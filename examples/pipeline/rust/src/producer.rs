//! The requests of a run, produced at a steady rate whatever happens to the broker.

use std::time::Duration;

use driftq_client::{Client, Produce, idempotency_key};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::ledger::Kind;
use crate::random::Random;

const CUSTOMERS: usize = 16;
const AMOUNT_MAX: usize = 1_000;
/// One request of so many is sent twice, as by a user who is impatient.
const SENT_TWICE: usize = 10;

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Its id, that of the whole run.
    pub(crate) id: String,
    /// Its payload.
    pub(crate) order: Value,
    /// Its trace.
    pub(crate) traceparent: String,
    /// When it was first sent.
    pub(crate) sent_at: Instant,
    /// Whether it was sent once more.
    pub(crate) is_sent_twice: bool,
}

impl Request {
    /// The request with this number, from 0.
    pub(crate) fn new(number: u64, sent_at: Instant, random: &mut Random) -> Self {
        let trace = u128::from(number) + 1;
        let id = format!("request-{number}");
        let customer = format!("customer-{}", random.below(CUSTOMERS));
        Self {
            order: json!({ "id": id, "customer": customer, "amount": random.below(AMOUNT_MAX) + 1 }),
            id,
            traceparent: format!("00-{trace:032x}-{trace:016x}-01"),
            sent_at,
            is_sent_twice: random.below(SENT_TWICE) == 0,
        }
    }

    /// The identity of one of its effects: the idempotency key of the message that asks for it.
    pub(crate) fn identity(&self, kind: Kind) -> String {
        format!("{}:{}", self.id, kind.topic())
    }

    async fn produce(&self, client: &Client) -> Result<(), String> {
        let topic = Kind::Model.topic();
        let failed = |error: driftq_client::Error| format!("{} cannot be produced: {error}", self.id);
        let key = idempotency_key([self.id.clone().into(), topic.into()]).map_err(failed)?;
        let message = Produce::json(topic, &self.order)
            .map_err(failed)?
            .key(self.order["customer"].as_str().unwrap_or_default())
            .idempotency_key(key)
            .traceparent(&self.traceparent)
            .envelope(|envelope| {
                envelope.run_id.clone_from(&self.id);
                topic.clone_into(&mut envelope.step_id);
            });
        let produced = client.produce(&message).await.map_err(failed)?;
        if self.is_sent_twice {
            let again = client.produce(&message).await.map_err(failed)?;
            if !again.duplicate || again.offset != produced.offset {
                return Err(format!("{} was sent twice and stored twice: {produced:?}, {again:?}", self.id));
            }
        }
        Ok(())
    }
}

/// Produces so many requests, evenly over a time.
///
/// # Errors
/// If one is not accepted within the client's time for retries.
pub(crate) async fn produce(
    client: &Client,
    count: u64,
    over: Duration,
    mut random: Random,
) -> Result<Vec<Request>, String> {
    let start = Instant::now();
    let mut under_way = JoinSet::new();
    for number in 0..count {
        let at = start + over.mul_f64(number as f64 / count as f64);
        sleep_until(at).await;
        let request = Request::new(number, Instant::now(), &mut random);
        let client = client.clone();
        under_way.spawn(async move { request.produce(&client).await.map(|()| request) });
    }
    let mut requests = Vec::new();
    while let Some(produced) = under_way.join_next().await {
        requests.push(produced.map_err(|error| format!("a request was not produced: {error}"))??);
    }
    Ok(requests)
}
