//! One line of a history.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How a call stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// About to be sent; written and flushed before the first byte leaves.
    Invoke,
    /// Answered with 2xx.
    Ok,
    /// Answered so that it is certain that nothing happened: 4xx, or nobody listened.
    Fail,
    /// Anything else: it may have happened, may happen later, once, or never.
    Info,
}

/// One event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Its place in the history: rises from line to line.
    pub seq: u64,
    /// When it was written, in milliseconds since 1970 by the driver's clock.
    pub t: u64,
    /// Who: a client does one thing at a time.
    pub client: String,
    /// Rises whenever a call of the client ended as [`Phase::Info`]: that call may still happen, so whoever goes on is somebody else.
    pub incarnation: u64,
    /// What: the name of the route, or something the driver did.
    pub op: String,
    /// How it stands.
    pub phase: Phase,
    /// What was sent.
    #[serde(default)]
    pub args: Value,
    /// What came back; `null` before that.
    #[serde(default)]
    pub result: Value,
}
