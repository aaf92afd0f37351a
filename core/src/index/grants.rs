//! Effect grants whose lease may run longer than recorded.
//!
//! A lease runs from the moment its grant could leave, so it can outlast the recorded end. That is volatile: after a
//! restart the recorded end counts.

use std::collections::{BTreeMap, BTreeSet};

use crate::types::{Identity, LeaseToken, Millis, Timestamp};

/// The grants of this boot that have not ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct Grants {
    running: BTreeMap<LeaseToken, Grant>,
    /// The released grants by the end of their lease.
    ends: BTreeSet<(Timestamp, LeaseToken)>,
    /// When the effects of the grants expire in the recorded state, as far as it is known.
    expiries: BTreeSet<(Timestamp, LeaseToken)>,
}

#[derive(Clone, Debug)]
struct Grant {
    identity: Identity,
    lease: Millis,
    /// The end of the lease; `None` until the grant could leave.
    end: Option<Timestamp>,
    expires_at: Timestamp,
}

/// When the lease of a grant ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrantEnd {
    /// As recorded.
    Recorded,
    /// Not known yet: the grant has not left.
    Unreleased,
    /// Then.
    At(Timestamp),
}

/// A running grant whose effect expires in the recorded state.
#[derive(Clone, Debug)]
pub(crate) struct Overrunning {
    pub(crate) token: LeaseToken,
    pub(crate) identity: Identity,
    pub(crate) lease: Millis,
    pub(crate) end: Option<Timestamp>,
}

impl Grants {
    /// An effect was granted or its grant renewed. The lease runs from [`Grants::released`].
    pub(crate) fn granted(&mut self, token: LeaseToken, identity: &Identity, lease: Millis, expires_at: Timestamp) {
        self.ended(token);
        self.expiries.insert((expires_at, token));
        self.running.insert(token, Grant { identity: identity.clone(), lease, end: None, expires_at });
    }

    /// The grant could leave at `now`.
    pub(crate) fn released(&mut self, token: LeaseToken, now: Timestamp) {
        let Some(grant) = self.running.get_mut(&token).filter(|grant| grant.end.is_none()) else { return };
        let end = now.after(grant.lease);
        grant.end = Some(end);
        self.ends.insert((end, token));
    }

    /// The grant was finished, forgotten or replaced.
    pub(crate) fn ended(&mut self, token: LeaseToken) {
        let Some(grant) = self.running.remove(&token) else { return };
        self.expiries.remove(&(grant.expires_at, token));
        if let Some(end) = grant.end {
            self.ends.remove(&(end, token));
        }
    }

    pub(crate) fn end_of(&self, token: LeaseToken) -> GrantEnd {
        match self.running.get(&token).map(|grant| grant.end) {
            None => GrantEnd::Recorded,
            Some(None) => GrantEnd::Unreleased,
            Some(Some(end)) => GrantEnd::At(end),
        }
    }

    /// Removes the grants whose lease has ended at `now`.
    pub(crate) fn remove_ended(&mut self, now: Timestamp) {
        while let Some((_, token)) = self.ends.first().copied().filter(|(end, _)| *end <= now) {
            self.ended(token);
        }
    }

    /// When a grant may have to be renewed, at the earliest.
    pub(crate) fn next_expiry(&self) -> Option<Timestamp> {
        self.expiries.first().map(|(expires_at, _)| *expires_at)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// The first running grant whose effect expires at or before `now` in the recorded state.
    pub(crate) fn first_overrunning(&self, now: Timestamp) -> Option<Overrunning> {
        let (_, token) = self.expiries.first().copied().filter(|(expires_at, _)| *expires_at <= now)?;
        let Grant { identity, lease, end, .. } = self.running.get(&token)?;
        Some(Overrunning { token, identity: identity.clone(), lease: *lease, end: *end })
    }

    /// The effect of a grant now expires at `expires_at` in the recorded state.
    pub(crate) fn set_expiry(&mut self, token: LeaseToken, expires_at: Timestamp) {
        let Some(grant) = self.running.get_mut(&token) else { return };
        let before = std::mem::replace(&mut grant.expires_at, expires_at);
        self.expiries.remove(&(before, token));
        self.expiries.insert((expires_at, token));
    }
}
