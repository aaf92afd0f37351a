//! The worker of the pipeline: plan → tool → report. Start as many of them as you like, and kill them when you like.
//!
//! `DRIFTQ_URL` names the broker, `SERVICE_URL` the outside service.

use std::env;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use driftq_client::{Client, Context, HandlerError, Message, Outputs, Produce, Worker, idempotency_key};
use driftq_examples::{Service, ServiceError};
use serde_json::Value;
use tokio::signal::ctrl_c;
use tokio::signal::unix::{SignalKind, signal};

const GROUP: &str = "pipeline";
/// Short, so that the messages of a killed worker are soon delivered to another one. Heartbeats prolong it.
const LEASE: Duration = Duration::from_secs(2);

/// Asks a model what to do.
async fn plan(message: Arc<Message>, service: Service) -> Result<Outputs, HandlerError> {
    let mut order: Value = message.json()?;
    order["plan"] = call(&service, "model", &message, &order).await?.into();
    Ok(Outputs::new().result(&order["plan"]).message(next_step(&message, "tool", &order)?))
}

/// Charges the customer, and works on. A worker that dies in that work has charged: the next one gets the receipt.
async fn tool(message: Arc<Message>, context: Context, service: Service) -> Result<Outputs, HandlerError> {
    let mut order: Value = message.json()?;
    let charge = || call(&service, "charge", &message, &order);
    let receipt: u64 = context.side_effect("charge", &order, charge).await?;
    tokio::time::sleep(Duration::from_millis(50)).await;
    order["receipt"] = receipt.into();
    Ok(Outputs::new().result(&receipt).message(next_step(&message, "report", &order)?))
}

/// Writes the report.
async fn report(message: Arc<Message>, service: Service) -> Result<Value, HandlerError> {
    Ok(call(&service, "report", &message, &message.json()?).await?.into())
}

/// Calls the outside service. It gets the message's key: if this worker dies before the answer, the next one asks for
/// the same effect again, and gets the same answer.
async fn call(service: &Service, effect: &str, message: &Message, order: &Value) -> Result<u64, ServiceError> {
    service.call(effect, &message.envelope.idempotency_key, message.trace.as_deref(), order).await
}

/// The message of the next step: same run, same customer, a key of its own. Its trace is that of this message.
fn next_step(message: &Message, topic: &str, order: &Value) -> Result<Produce, HandlerError> {
    let (run, step) = (message.envelope.run_id.clone(), message.envelope.step_id.clone());
    let key = idempotency_key([run.clone().into(), topic.into()])?;
    Ok(Produce::json(topic, order)?.key(&message.key).idempotency_key(key).envelope(|envelope| {
        envelope.run_id = run;
        envelope.step_id = topic.to_owned();
        envelope.parent_step_id = step;
    }))
}

/// Waits for SIGTERM or Ctrl-C.
async fn terminated() {
    let Ok(mut terminate) = signal(SignalKind::terminate()) else { return drop(ctrl_c().await) };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = ctrl_c() => {}
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let client = Client::builder().url(env::var("DRIFTQ_URL")?).build()?;
    let service = Service::new(env::var("SERVICE_URL")?);
    let (planning, charging, reporting) = (service.clone(), service.clone(), service);
    let planner = Worker::new(&client, "plan", GROUP, move |message, _| plan(message, planning.clone())).lease(LEASE);
    // One charge of a customer after the other.
    let tools = Worker::new(&client, "tool", GROUP, move |message, context| tool(message, context, charging.clone()))
        .lease(LEASE)
        .per_key_order();
    let reporter =
        Worker::new(&client, "report", GROUP, move |message, _| report(message, reporting.clone())).lease(LEASE);
    tokio::try_join!(planner.run(terminated()), tools.run(terminated()), reporter.run(terminated()))?;
    Ok(())
}
