//! What must always be true, and who watches that it is.
//!
//! Every promise is a [`Law`]: a number, a name and a sentence, all of them listed in [`laws`] and in [`ALL`]. Each is checked
//! by the function of its name, which does nothing else and lives with its kind:
//!
//! | file | what it judges |
//! |---|---|
//! | `places` | where a message is, and when it may be gone |
//! | `bodies` | that a message is what was sent |
//! | `counting` | that every count is right |
//! | `fencing` | tokens, leases and their holders |
//! | `in_flight` | how much is handed out, and to whom |
//! | `order` | what goes first |
//! | `attempts` | what is counted and told of failures |
//! | `identities` | produce identities |
//! | `effects` | effects, their grants and their ends |
//! | `completing` | steps that are done at once or not at all |
//! | `dead_letters` | dying, and coming back by a redrive |
//! | `time` | not too early, not too late |
//! | `room` | limits, refusals and retention |
//! | `durability` | what the disk has, and what a start makes of it |
//! | `silence` | what may be said, above all after a failure |
//! | `liveness` | that everything comes to an end |
//! | `model` | the naive model's word |
//!
//! What a law needs to know is written down in `books`, by an observer that sees what clients see and, where a promise is
//! about the inside, looks there. The observer judges nothing by itself.

mod attempts;
mod bodies;
mod books;
mod completing;
mod counting;
mod dead_letters;
pub(crate) mod durability;
mod effects;
mod fencing;
mod identities;
mod in_flight;
pub mod laws;
pub(crate) mod liveness;
pub(crate) mod model;
mod order;
pub(crate) mod places;
mod room;
pub(crate) mod silence;
pub(crate) mod time;
pub mod verdict;

#[cfg(test)]
mod solo;
#[cfg(test)]
mod tests;

pub(crate) use self::books::observer::Observer;
pub use self::laws::ALL;
pub use self::verdict::{Law, Verdict, Violation};
