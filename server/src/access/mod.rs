//! Keys at the edge: their texts, what of them a reactor knows, and how often an address may show a wrong one.
//!
//! Who may do what is decided in the core, which checks the key of every command ([`Caller`]). Here a secret is
//! compared with its digest before anything of a request's body is read.
//!
//! [`Caller`]: driftq_core::types::Caller

mod admin_key;
mod failure;
mod key_table;
mod key_text;
mod rate_limit;
mod visible;

pub use self::admin_key::AdminKeyError;
pub(crate) use self::admin_key::{ensure_admin_key, execute};
pub(crate) use self::failure::AuthenticationFailure;
pub(crate) use self::key_table::{KeyTable, KnownKey};
pub(crate) use self::key_text::{NewKey, ShownKey};
pub(crate) use self::rate_limit::RateLimit;
pub(crate) use self::visible::{Visible, authorize_process};
