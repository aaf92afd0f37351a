//! How many effects each tenant has.

use std::collections::BTreeMap;

use crate::types::{DEFAULT_TENANT, Text};

/// Numbers of effects by tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TenantCounts {
    /// That of [`DEFAULT_TENANT`], which most effects have: counted without a search.
    default: u64,
    /// Those of the others, none 0.
    others: BTreeMap<Text, u64>,
}

impl TenantCounts {
    /// The number of tenants that have effects.
    pub(super) fn len(&self) -> usize {
        self.others.len() + usize::from(self.default > 0)
    }

    /// The number of effects of `tenant`.
    pub(super) fn of(&self, tenant: &str) -> u64 {
        if tenant == DEFAULT_TENANT { self.default } else { self.others.get(tenant).copied().unwrap_or(0) }
    }

    /// The tenants that have effects, and how many each has.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        let default = Some((DEFAULT_TENANT, self.default)).filter(|(_, count)| *count > 0);
        default.into_iter().chain(self.others.iter().map(|(tenant, count)| (&**tenant, *count)))
    }

    /// Counts an effect of `tenant`.
    #[inline]
    pub(super) fn add(&mut self, tenant: &str) {
        if tenant == DEFAULT_TENANT {
            self.default += 1;
            return;
        }
        match self.others.get_mut(tenant) {
            Some(count) => *count += 1,
            None => drop(self.others.insert(tenant.into(), 1)),
        }
    }

    /// Takes back `by` effects of `tenant`.
    #[inline]
    pub(super) fn subtract(&mut self, tenant: &str, by: u64) {
        if tenant == DEFAULT_TENANT {
            self.default = self.default.saturating_sub(by);
            return;
        }
        let Some(count) = self.others.get_mut(tenant) else { return };
        *count = count.saturating_sub(by);
        if *count == 0 {
            self.others.remove(tenant);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_are_counted_until_their_last_effect_is_gone() {
        let mut counts = TenantCounts::default();
        for tenant in ["a", DEFAULT_TENANT, "a", DEFAULT_TENANT] {
            counts.add(tenant);
        }
        assert_eq!(counts.iter().collect::<Vec<_>>(), [(DEFAULT_TENANT, 2), ("a", 2)]);
        counts.subtract("a", 2);
        counts.subtract(DEFAULT_TENANT, 1);
        assert_eq!((counts.of("a"), counts.of(DEFAULT_TENANT), counts.len()), (0, 1, 1));
        counts.subtract(DEFAULT_TENANT, 1);
        assert_eq!(counts, TenantCounts::default());
    }
}
