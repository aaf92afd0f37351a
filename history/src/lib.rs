//! Checks histories: what clients sent to a broker and what they received, recorded by a test driver.
//!
//! A driver next to the broker writes one JSON object per line, as `docs/histories.md` describes. [`read`] parses the
//! lines. [`check`] decides from them alone whether a broker that follows the specification can have produced them;
//! it shares no code with the broker, so a bug in the broker cannot hide itself. [`compare()`] adds the broker's own
//! log: it replays the log through `driftq-core` and looks up every answer that a client received. Only `compare`
//! uses the core, and a test enforces that.
//!
//! A [`Report`] lists one [`Violation`] per broken rule, with the lines that prove it. Nothing is reported without
//! proof: a call without a definite answer may have happened or not.
//!
//! ```
//! let history = r#"
//! {"seq":1,"t":0,"client":"driver","incarnation":0,"op":"setup","phase":"ok","args":{"groups":[]},"result":{}}
//! {"seq":2,"t":1,"client":"p","incarnation":0,"op":"produce","phase":"invoke","args":{"topic":"t","value":"v"}}
//! {"seq":3,"t":2,"client":"p","incarnation":0,"op":"produce","phase":"ok","result":{"partition":0,"offset":0}}
//! "#;
//! let entries = driftq_history::read_from(history.as_bytes())?;
//! let report = driftq_history::check(&entries);
//! assert!(report.passed(), "{report}");
//! assert_eq!(report.counts.messages, 1);
//! # Ok::<(), driftq_history::ReadError>(())
//! ```
#![forbid(unsafe_code)]

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
