//! Histories of real servers: what clients asked, what they were told, and whether that can have been a DriftQ.
//!
//! A driver beside the server writes one line of JSON per event, as `docs/histories.md` describes. Nothing in here runs the
//! core: a history is judged by what the clients saw, so that a flaw in the core cannot excuse itself.

mod entry;

pub use self::entry::{Entry, Phase};
