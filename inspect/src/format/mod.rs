//! Text and JSON forms of records, and of the names, times and numbers in them.
//!
//! `driftqd wal dump` prints [`fields`], which need no state; `driftqd wal inspect` prints [`sentence`], which
//! resolves ids to names in the state that the record was decided against. Both use the same [`kind`].

mod access;
mod event;
mod fields;
pub mod resolve;
mod sentence;
mod text;

pub use self::event::{kind, message_ref};
pub use self::fields::{Detail, fields};
pub use self::sentence::{body, identity, message_sentence, sentence, stored_message};
pub use self::text::{duration, grouped, millis, quoted, timestamp};
