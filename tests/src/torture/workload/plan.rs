//! What the clients of the workload use: topics, groups, and how much load they make.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

/// A topic and its number of partitions.
pub type Topic = (&'static str, u32);

/// The topics of every history. Completed steps produce to the third; messages that exceed their attempts go to the
/// last two.
pub const TOPICS: [Topic; 5] = [("orders", 4), ("mail", 1), (OUTPUTS, 2), ("dlq.orders", 4), ("dlq.mail", 1)];
/// The groups, each of which must receive every message of its topic.
pub const GROUPS: [(&str, &str); 6] = [
    ("orders", "billing"),
    ("orders", "audit"),
    ("mail", "sender"),
    (OUTPUTS, "archive"),
    ("dlq.orders", "dlq-orders"),
    ("dlq.mail", "dlq-mail"),
];
/// The topic of the output messages of completed steps.
pub const OUTPUTS: &str = "receipts";
/// The longest time from a delivery to its redelivery: lease, extension, backoff or delay.
pub const REDELIVERY_MS_MAX: u64 = 300;
/// How long a client waits after a failed connection.
pub(super) const RECONNECT_PAUSE: Duration = Duration::from_millis(10);

/// How much load there is.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// The number of producers.
    pub producers: u64,
    /// The number of workers per group.
    pub workers: u64,
    /// The longest pause of a producer between two messages.
    pub pause: Duration,
    /// Bytes appended to each value.
    pub padding: usize,
}

impl Default for Load {
    fn default() -> Self {
        Self { producers: 3, workers: 2, pause: Duration::from_millis(8), padding: 0 }
    }
}

/// State shared by the clients and the driver.
#[derive(Debug, Default)]
pub struct Shared {
    stop: AtomicBool,
    /// Acks that were rejected with 409: too late.
    pub fenced: AtomicU64,
    /// Produces that were rejected, or failed after a connection was made.
    pub rejected: AtomicU64,
    /// Produces that succeeded.
    pub produced: AtomicU64,
    /// Acks that succeeded.
    pub acked: AtomicU64,
}

impl Shared {
    /// Signals the clients to stop.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Whether the clients are to stop.
    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// The arguments with which a delivery is settled.
#[must_use]
pub fn lease_of(item: &Value, topic: &str, group: &str, owner: &str) -> Value {
    json!({
        "topic": topic, "group": group, "owner": owner, "partition": item["partition"],
        "offset": item["offset"], "lease_token": item["lease_token"],
    })
}
