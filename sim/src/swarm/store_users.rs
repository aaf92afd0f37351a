//! What the users of the idempotency store have in common in one world.

use std::collections::BTreeSet;

use driftq_core::types::LeaseToken;

use super::profile::Profile;
use super::random::Source;

/// The users of the idempotency store in one world, and what they remember beyond the world's state.
#[derive(Debug)]
pub(super) struct StoreUsers {
    pub(super) profile: Profile,
    pub(super) source: Source,
    /// The number of different keys.
    pub(super) keys: u64,
    /// How many request hashes share a key.
    pub(super) requests: u64,
    /// One in this many messages has an identity.
    pub(super) identity_one_in: u64,
    /// Grants whose outcome was recorded, and those of them that failed.
    pub(super) recorded: BTreeSet<LeaseToken>,
    pub(super) failed: BTreeSet<LeaseToken>,
}

impl StoreUsers {
    pub(super) fn new(mut source: Source, profile: Profile) -> Self {
        let identity_one_in = if profile == Profile::Effects { 1 } else { source.pick(&[1, 2, 3]) };
        Self {
            keys: source.pick(&[1, 4, 12]),
            requests: source.pick(&[1, 2, 2]),
            identity_one_in,
            profile,
            source,
            recorded: BTreeSet::new(),
            failed: BTreeSet::new(),
        }
    }

    /// One of the identities.
    pub(super) fn key(&mut self) -> u8 {
        // The first is the empty key, which is no identity.
        if self.source.one_in(12) { 0 } else { 1 + self.source.below(self.keys) as u8 }
    }
}
