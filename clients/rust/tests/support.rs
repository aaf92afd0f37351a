//! What several tests need: clients with short limits, events in a list, a message line.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use driftq_client::{Client, ClientBuilder, Event};
use serde_json::json;
use tokio::sync::Notify;

use crate::stub::LIMIT;

/// A client that gives up soon.
pub(crate) fn quick(url: impl Into<String>) -> ClientBuilder {
    Client::builder().url(url).timeout(Duration::from_secs(5)).retry_for(Duration::from_secs(5))
}

pub(crate) fn client(url: impl Into<String>) -> Client {
    quick(url).build().expect("a client")
}

/// Waits, but not for ever.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.unwrap_or_else(|_| panic!("{what} did not happen within {LIMIT:?}"))
}

/// The events of a worker or a client, as text: the name and what matters of it.
#[derive(Clone, Default)]
pub(crate) struct Events {
    list: Arc<Mutex<Vec<String>>>,
    changed: Arc<Notify>,
}

impl Events {
    pub(crate) fn hook(&self) -> impl Fn(&Event<'_>) + Send + Sync + 'static {
        let this = self.clone();
        move |event| {
            let text = match event {
                Event::Began { decision, .. } => format!("began {decision}"),
                Event::Failed { kind, error, .. } => format!("failed {kind}: {error}"),
                Event::Disconnected { error } => format!("disconnected {}: {}", error.kind(), error.message()),
                event => event.name().to_owned(),
            };
            this.list.lock().expect("not poisoned").push(text);
            this.changed.notify_waiters();
        }
    }

    pub(crate) fn all(&self) -> Vec<String> {
        self.list.lock().expect("not poisoned").clone()
    }

    pub(crate) fn count(&self, start: &str) -> usize {
        self.all().iter().filter(|event| event.starts_with(start)).count()
    }

    /// Waits until so many events have a text that starts like this.
    pub(crate) async fn wait_for(&self, start: &str, count: usize) {
        let enough = async {
            loop {
                let mut changed = std::pin::pin!(self.changed.notified());
                changed.as_mut().enable();
                if self.count(start) >= count {
                    return;
                }
                changed.await;
            }
        };
        let waited = tokio::time::timeout(LIMIT, enough).await;
        waited.unwrap_or_else(|_| panic!("{count} × {start} did not happen; events: {:#?}", self.all()));
    }
}

/// The line of a delivery: offset and token are those of `number`.
pub(crate) fn line(number: u64, key: &str) -> String {
    let envelope = if key.is_empty() { json!({}) } else { json!({"idempotency_key": key}) };
    let item = json!({
        "partition": 0, "offset": number, "attempts": 1, "key": "", "value": "v", "last_error": "", "failures": 0,
        "lease_token": format!("{number:024x}"), "lease_until": "2026-01-01T00:00:00Z",
        "produced_at": "2026-01-01T00:00:00Z", "envelope": envelope,
    });
    format!("{item}\n")
}
