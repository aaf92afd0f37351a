//! The idempotency store: which effects were begun, by whom, and how they ended.
//!
//! A worker asks before it acts ([`StoreCommand::Begin`](crate::command::StoreCommand)) and says afterwards how it went (`Finish`). Whoever asks again under the
//! same [`Identity`] is told to act, to use the stored result, to wait, or to try again later. The store lives in the broker's
//! own state and log, so an [`Effect`] is as durable as a message, and one record can finish an effect, ack the message
//! behind it and produce the next ones.
//!
//! Effects of the `consume` scope belong to a topic and a group and go with them; all others stand together. Each such
//! [`Table`] knows its effects by identity and by the moment they may be forgotten.

mod completions;
mod effect;
mod identity;
mod store;
mod table;

pub use self::completions::{Completion, Completions};
pub use self::effect::{Details, Effect, EffectStatus, Lifetime, Outcome, Pin};
pub(crate) use self::identity::tag;
pub use self::identity::{Identity, Scope};
pub use self::store::{Realm, Store};
pub use self::table::Table;
