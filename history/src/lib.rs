//! Histories of real servers: what clients asked, what they were told, and whether that can have been a DriftQ.
//!
//! A driver beside the server writes one line of JSON per event, as `docs/histories.md` describes. [`read`] takes the lines,
//! [`check`] judges them by what the clients saw alone: nothing it is made of runs or knows the core, so that a flaw in the core
//! cannot excuse itself. [`compare()`] is the other half: it replays the server's own log through the core and asks whether both
//! tell the same story. Only what is in `compare/` may know the core; a test sees to it.

mod checks;
pub mod compare;
mod entry;
mod parsed;
mod read;
mod report;

pub use self::checks::check;
pub use self::compare::{CompareError, compare, compare_storage};
pub use self::entry::{Entry, Phase};
pub use self::read::{ReadError, read, read_from};
pub use self::report::{Check, Counts, LISTED_MAX, Report, Tally, Violation};
