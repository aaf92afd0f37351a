//! `[auth]`: keys that are not created over HTTP, and wrong ones.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::number::Int;
use super::text;

/// Keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a section")]
pub struct AuthSettings {
    /// File with the text of a key. At the start it becomes a key that may do everything, unless it is one already.
    #[serde(deserialize_with = "text::some_file", skip_serializing_if = "Option::is_none")]
    pub admin_key_file: Option<PathBuf>,
    /// Requests without a valid key that one address, of IPv6 one network of 64 bits, may send at once. It may send one
    /// more each second; others get 429.
    #[serde(with = "Int::<1, 1_000_000>")]
    pub failures_max: u32,
}

impl Default for AuthSettings {
    fn default() -> Self {
        Self { admin_key_file: None, failures_max: 30 }
    }
}
