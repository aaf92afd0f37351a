//! The invariants of the broker, and the checks that detect their violation.
//!
//! Every [`Invariant`] has a number, a name and a sentence, listed in the [`catalog`]. Each is checked by the function
//! of its name, in one of these files:
//!
//! | file | what it checks |
//! |---|---|
//! | `lifecycle` | the state of a message, and when it is trimmed |
//! | `content` | bodies, byte for byte |
//! | `counts`, `counters` | counters, against a recount |
//! | `fencing` | tokens, leases and their holders |
//! | `in_flight` | in-flight limits and prefetch |
//! | `order` | delivery order and priorities |
//! | `attempts` | attempts and failure reasons |
//! | `dedupe` | produce identities |
//! | `effects` | effects, their grants and outcomes |
//! | `completion` | atomic workflow steps |
//! | `dead_letters` | dead letters and redrive |
//! | `time` | delays, deadlines and the clock |
//! | `limits` | limits, refusals and retention |
//! | `durability` | syncs, recovery and damage |
//! | `outputs` | what is released, above all after a log failure |
//! | `liveness` | progress |
//! | `files` | the size of the log's files |
//! | `payloads` | the segments of live payloads, and payloads in memory |
//! | `index` | the volatile index, against a recount |
//! | `fairness` | turns of streams and partitions, administration and maintenance |
//! | `workers` | what users would call wrong, as they would say it |
//! | `room` | the reserve of the log, and what it refuses for want of space |
//! | `oracle` | agreement with the oracle's predictions |
//!
//! The `tracker` collects what the checks need: what clients requested and observed and, for white-box checks, the
//! state inside the broker. It decides nothing itself.

mod attempts;
pub mod catalog;
mod completion;
mod content;
pub(crate) mod counters;
mod counts;
mod dead_letters;
mod dedupe;
pub(crate) mod durability;
mod effects;
pub(crate) mod fairness;
mod fencing;
pub(crate) mod files;
mod in_flight;
pub(crate) mod index;
pub(crate) mod lifecycle;
mod limits;
pub(crate) mod liveness;
pub(crate) mod oracle;
mod order;
pub(crate) mod outputs;
pub(crate) mod payloads;
pub(crate) mod room;
pub(crate) mod time;
mod tracker;
pub mod verdict;
mod workers;

#[cfg(test)]
mod isolate;
#[cfg(test)]
mod tests;

pub use self::catalog::ALL;
pub(crate) use self::tracker::Tracker;
pub use self::verdict::{Invariant, Verdict, Violation};
