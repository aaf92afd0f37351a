//! What must always be true, and who watches that it is.
//!
//! Every promise is a [`Invariant`]: a number, a name and a sentence, all of them listed in [`catalog`] and in [`ALL`]. Each is checked
//! by the function of its name, which does nothing else and lives with its kind:
//!
//! | file | what it judges |
//! |---|---|
//! | `lifecycle` | where a message is, and when it may be gone |
//! | `content` | that a message is what was sent |
//! | `counts` | that every count is right |
//! | `fencing` | tokens, leases and their holders |
//! | `in_flight` | how much is handed out, and to whom |
//! | `order` | what goes first |
//! | `attempts` | what is counted and told of failures |
//! | `identities` | produce identities |
//! | `effects` | effects, their grants and their ends |
//! | `completion` | steps that are done at once or not at all |
//! | `dead_letters` | dying, and coming back by a redrive |
//! | `time` | not too early, not too late |
//! | `room` | limits, refusals and retention |
//! | `durability` | what the disk has, and what a start makes of it |
//! | `outputs` | what may be said, above all after a failure |
//! | `liveness` | that everything comes to an end |
//! | `oracle` | the naive model's word |
//!
//! What a law needs to know is written down in `tracker`, by an observer that sees what clients see and, where a promise is
//! about the inside, looks there. The observer judges nothing by itself.

mod attempts;
pub mod catalog;
mod completion;
mod content;
mod counts;
mod dead_letters;
mod dedupe;
pub(crate) mod durability;
mod effects;
mod fencing;
mod in_flight;
pub(crate) mod lifecycle;
mod limits;
pub(crate) mod liveness;
pub(crate) mod oracle;
mod order;
pub(crate) mod outputs;
pub(crate) mod time;
mod tracker;
pub mod verdict;

#[cfg(test)]
mod isolate;
#[cfg(test)]
mod tests;

pub use self::catalog::ALL;
pub(crate) use self::tracker::observer::Observer;
pub use self::verdict::{Invariant, Verdict, Violation};
