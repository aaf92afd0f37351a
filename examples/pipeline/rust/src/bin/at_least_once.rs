//! The same three steps on plain at-least-once delivery, for comparison: no idempotency store, no keys, and the next
//! message is produced before the ack. `pipeline --no-store` runs it and counts what happens twice.

use std::env;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use driftq_client::{Client, HandlerError, Message, Produce, Worker, WorkerScope};
use driftq_examples::Service;
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

const GROUP: &str = "pipeline";
const LEASE: Duration = Duration::from_secs(2);

#[derive(Clone)]
struct Step {
    client: Client,
    service: Service,
}

impl Step {
    async fn plan(self, message: Arc<Message>) -> Result<(), HandlerError> {
        let mut order: Value = message.json()?;
        order["plan"] = self.call("model", &message, &order).await?.into();
        self.produce("tool", &message, &order).await
    }

    async fn tool(self, message: Arc<Message>) -> Result<(), HandlerError> {
        let mut order: Value = message.json()?;
        order["receipt"] = self.call("charge", &message, &order).await?.into();
        tokio::time::sleep(Duration::from_millis(50)).await;
        self.produce("report", &message, &order).await
    }

    async fn report(self, message: Arc<Message>) -> Result<(), HandlerError> {
        self.call("report", &message, &message.json()?).await?;
        Ok(())
    }

    /// The identity is for the count alone: the service ignores it here.
    async fn call(&self, effect: &str, message: &Message, order: &Value) -> Result<u64, HandlerError> {
        let identity = format!("{}:{}", message.envelope.run_id, message.topic);
        Ok(self.service.call(effect, &identity, message.trace.as_deref(), order).await?)
    }

    async fn produce(&self, topic: &str, message: &Message, order: &Value) -> Result<(), HandlerError> {
        let next = Produce::json(topic, order)?.key(&message.key);
        let next = next.envelope(|envelope| envelope.run_id.clone_from(&message.envelope.run_id));
        self.client.produce(&next.traceparent(message.trace.clone().unwrap_or_default())).await?;
        Ok(())
    }
}

async fn terminated() {
    if let Ok(mut terminate) = signal(SignalKind::terminate()) {
        terminate.recv().await;
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let client = Client::builder().url(env::var("DRIFTQ_URL")?).build()?;
    let step = Step { client: client.clone(), service: Service::new(env::var("SERVICE_URL")?) };
    let (planning, charging, reporting) = (step.clone(), step.clone(), step);
    let planner = Worker::new(&client, "plan", GROUP, move |message, _| planning.clone().plan(message));
    let tools = Worker::new(&client, "tool", GROUP, move |message, _| charging.clone().tool(message));
    let reporter = Worker::new(&client, "report", GROUP, move |message, _| reporting.clone().report(message));
    let [planner, tools, reporter] =
        [planner, tools, reporter].map(|worker| worker.scope(WorkerScope::None).lease(LEASE));
    tokio::try_join!(planner.run(terminated()), tools.run(terminated()), reporter.run(terminated()))?;
    Ok(())
}
