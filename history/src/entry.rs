//! One line of a history.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The state of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// About to be sent; written and flushed before the first byte leaves.
    Invoke,
    /// Answered with 2xx.
    Ok,
    /// Certain to have had no effect: answered with 4xx, or the connection was refused.
    Fail,
    /// Anything else: it may have happened, may happen later, once, or never.
    Info,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Its number, which increases from line to line.
    pub seq: u64,
    /// When it was written, in milliseconds since 1970 by the driver's clock.
    pub t: u64,
    /// The client. A client has one call of an operation open at a time.
    pub client: String,
    /// Increases whenever a call of the client ends as [`Phase::Info`]: that call may still take effect, so later
    /// calls come from a new incarnation.
    pub incarnation: u64,
    /// The operation: the name of a route, or an action of the driver.
    pub op: String,
    /// The state of the call.
    pub phase: Phase,
    /// What was sent.
    #[serde(default)]
    pub args: Value,
    /// What was received; `null` before that.
    #[serde(default)]
    pub result: Value,
}

/// Actions of the driver itself. Their lines have no `invoke` to pair with.
const DRIVER_OPS: [&str; 11] =
    ["setup", "kill", "power", "stop", "start", "pause", "resume", "fault", "clock", "drain", "digest"];

impl Entry {
    /// Whether the line records an action of the driver.
    pub(crate) fn is_driver_action(&self) -> bool {
        DRIVER_OPS.contains(&self.op.as_str())
    }
}
