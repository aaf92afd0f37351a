//! Effect grants whose lease may run longer than recorded.
//!
//! A lease runs from the moment its grant could leave, so it can outlast the recorded end. That is volatile: after a
//! restart the recorded end counts.

use crate::collections::cow::{Consecutive, OwnMap};
use crate::state::EffectStore;
use crate::types::{Effect, EffectNamespace, Identity, IdentityKey, LeaseToken, Lsn, Millis, Scope, Timestamp};

/// The grants of this boot that have not ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct Grants {
    /// Grants begin and mostly end in the order of their tokens, and a [`OwnMap`] searches its ends first.
    running: OwnMap<LeaseToken, Grant>,
    /// When each grant is checked next.
    pub(super) checks: OwnMap<(Timestamp, LeaseToken), ()>,
}

/// A grant that runs, as far as it is known.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    of: Granted,
    run: Run,
    /// Not after the lease can have ended or its effect can expire in the recorded state.
    check_at: Timestamp,
}

/// The effect of a grant. There can be as many as effects, so what most have is kept small.
#[derive(Clone, Debug)]
enum Granted {
    /// Of [`EffectNamespace::Shared`]: its key shares the bytes of the store.
    Shared(IdentityKey),
    /// Of a group.
    Consumed(Box<Identity>),
}

/// How far the lease of a grant is known.
#[derive(Clone, Debug)]
enum Run {
    /// The grant or its last renewal could not leave yet; `decided_at` is its record.
    Unreleased { lease: Millis, decided_at: Lsn },
    /// It ends then.
    Until(Timestamp),
}

impl Grant {
    /// The end of the lease; `None` until the grant could leave.
    pub(crate) fn end(&self) -> Option<Timestamp> {
        match self.run {
            Run::Unreleased { .. } => None,
            Run::Until(end) => Some(end),
        }
    }

    /// The end of the lease, were it to begin at `now` unless it runs already.
    pub(crate) fn end_from(&self, now: Timestamp) -> Timestamp {
        match self.run {
            Run::Unreleased { lease, .. } => now.after(lease),
            Run::Until(end) => end,
        }
    }

    /// The identity of the effect.
    pub(crate) fn identity(&self) -> Identity {
        match &self.of {
            Granted::Shared(key) => EffectNamespace::Shared.identity(key),
            Granted::Consumed(identity) => (**identity).clone(),
        }
    }

    /// The effect in `store`, expired or not.
    pub(crate) fn effect<'a>(&self, store: &'a EffectStore) -> Option<&'a Effect> {
        match &self.of {
            Granted::Shared(key) => store.shared(key),
            Granted::Consumed(identity) => store.get(identity),
        }
    }
}

/// Most commands of a batch of begins are given a token each.
impl Consecutive for LeaseToken {
    #[inline]
    fn distance(&self, first: &Self) -> usize {
        self.counter.distance(&first.counter)
    }
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

impl Grants {
    /// An effect was granted or its grant renewed by the record at `decided_at`, for `lease`, which ends at `until` in
    /// the recorded state. It runs from [`Grants::released`].
    pub(crate) fn granted(
        &mut self,
        token: LeaseToken,
        identity: Identity,
        decided_at: Lsn,
        lease: Millis,
        until: Timestamp,
    ) {
        let of = match identity.scope {
            Scope::Consume { .. } => Granted::Consumed(Box::new(identity)),
            _ => Granted::Shared(identity.packed().clone()),
        };
        // The lease ends at `until` or later, and its effect expires at its end or later.
        let grant = Grant { of, run: Run::Unreleased { lease, decided_at }, check_at: until };
        if let Some(before) = self.running.insert(token, grant) {
            self.checks.remove(&(before.check_at, token));
        }
        self.checks.insert((until, token), ());
    }

    /// The grant or the renewal that was recorded at `decided_at` could leave at `now`. One that was renewed since runs
    /// from that renewal.
    pub(crate) fn released(&mut self, token: LeaseToken, decided_at: Lsn, now: Timestamp) {
        let Some(grant) = self.running.get_near_mut(&token) else { return };
        if let Run::Unreleased { lease, decided_at: of } = grant.run
            && of == decided_at
        {
            grant.run = Run::Until(now.after(lease));
        }
    }

    /// The grant was finished, forgotten or replaced, or its lease has ended.
    pub(crate) fn ended(&mut self, token: LeaseToken) {
        if let Some(grant) = self.running.remove(&token) {
            self.checks.remove(&(grant.check_at, token));
        }
    }

    pub(crate) fn end_of(&self, token: LeaseToken) -> GrantEnd {
        match self.running.get_near(&token).map(Grant::end) {
            None => GrantEnd::Recorded,
            Some(None) => GrantEnd::Unreleased,
            Some(Some(end)) => GrantEnd::At(end),
        }
    }

    /// The grants that run, with the end of the lease if it is known and the time of the next check.
    pub(super) fn all(&self) -> impl Iterator<Item = (LeaseToken, Option<Timestamp>, Timestamp)> {
        self.running.iter().map(|(token, grant)| (*token, grant.end(), grant.check_at))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// When a grant is checked next.
    pub(crate) fn next_check(&self) -> Option<Timestamp> {
        self.checks.first().map(|((at, _), ())| *at)
    }

    /// The first grant whose check is due at `now`, and when it was due.
    pub(crate) fn first_due(&self, now: Timestamp) -> Option<(Timestamp, LeaseToken, &Grant)> {
        let ((at, token), ()) = self.checks.first().filter(|((at, _), ())| *at <= now)?;
        Some((*at, *token, self.running.get(token)?))
    }

    /// The grant was checked; `at` is not after its lease can have ended or its effect can expire.
    pub(crate) fn check_again(&mut self, token: LeaseToken, at: Timestamp) {
        let Some(grant) = self.running.get_mut(&token) else { return };
        let before = std::mem::replace(&mut grant.check_at, at);
        self.checks.remove(&(before, token));
        self.checks.insert((at, token), ());
    }
}
