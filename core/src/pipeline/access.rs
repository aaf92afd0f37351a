//! What an edge needs to authenticate its callers.

use super::Pipeline;
use crate::faults::Faults;
use crate::types::{Key, TenantId, TenantName};

impl<F: Faults> Pipeline<F> {
    /// All keys, in the order of their ids, for an edge that keeps a copy to authenticate callers by. The broker checks
    /// the key of every command once more.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.state().access().keys().iter()
    }

    /// All tenants in the order of their numbers, the default tenant first.
    pub fn tenants(&self) -> impl Iterator<Item = (TenantId, TenantName)> {
        self.state().access().tenants().iter()
    }

    /// A number that changes whenever [`Pipeline::keys`] or [`Pipeline::tenants`] do.
    #[must_use]
    pub fn access_generation(&self) -> u64 {
        self.broker.access_generation()
    }
}
