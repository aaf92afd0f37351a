//! Commands of the idempotency store.

use crate::types::{
    EffectStatus, Identity, Lifetime, Millis, Offset, Outcome, OwnerName, PartitionId, ScopeKind, Text, TokenClaim,
};

/// A command of the idempotency store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreCommand {
    /// Asks whether an effect may be executed.
    Begin(Begin),
    /// Records how an effect ended.
    Finish(Finish),
    /// Grants an effect again that failed, or whose lease expired.
    Reacquire(Reacquire),
    /// Extends the lease of an effect.
    Renew(Renew),
    /// Reads an effect.
    Lookup(Lookup),
    /// Deletes an effect.
    Forget(Forget),
    /// Lists effects.
    List(ListEffects),
}

impl StoreCommand {
    /// The effect that the command is about; `None` for a list.
    #[must_use]
    pub fn identity(&self) -> Option<&Identity> {
        match self {
            Self::Begin(Begin { identity, .. })
            | Self::Finish(Finish { identity, .. })
            | Self::Reacquire(Reacquire { identity, .. })
            | Self::Renew(Renew { identity, .. })
            | Self::Lookup(Lookup { identity })
            | Self::Forget(Forget { identity }) => Some(identity),
            Self::List(_) => None,
        }
    }
}

/// Asks whether an effect may be executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begin {
    /// The effect.
    pub identity: Identity,
    /// The worker that would execute it.
    pub owner: OwnerName,
    /// The lease of a grant; `None` or zero for the default.
    pub lease: Option<Millis>,
    /// How long the effect is remembered; `None` for the scope's default.
    pub lifetime: Option<Lifetime>,
    /// A hash of the request, equal for equal requests.
    pub request_hash: Option<Text>,
    /// What to do if an earlier grant's lease expired; `None` for the scope's default.
    pub on_expired: Option<OnExpired>,
    /// The delivery on whose behalf the effect is executed.
    pub delivery: Option<DeliveryClaim>,
}

impl Begin {
    /// A begin with the defaults.
    #[must_use]
    pub fn new(identity: Identity, owner: OwnerName) -> Self {
        Self { identity, owner, lease: None, lifetime: None, request_hash: None, on_expired: None, delivery: None }
    }
}

/// What a [`Begin`] does if an earlier grant's lease expired without a finish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnExpired {
    /// Grants the effect anew.
    TakeOver,
    /// Reports the expiry and leaves the decision to the caller.
    Report,
}

/// The delivery behind an effect of the `consume` scope; topic and group are the scope's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveryClaim {
    /// Its partition.
    pub partition: PartitionId,
    /// Its offset.
    pub offset: Offset,
    /// Its lease token.
    pub token: TokenClaim,
}

/// Records how an effect ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finish {
    /// The effect.
    pub identity: Identity,
    /// The token of the grant.
    pub token: TokenClaim,
    /// How it ended.
    pub outcome: Outcome,
    /// The delivery whose message is dead-lettered with it; only of a `consume` scope, and with
    /// [`FailedFinal`](crate::types::EffectStatus::FailedFinal).
    pub dead_letter: Option<DeliveryClaim>,
}

/// Grants an effect again that failed, or whose lease expired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reacquire {
    /// The effect.
    pub identity: Identity,
    /// The worker that would execute it.
    pub owner: OwnerName,
    /// The lease of the grant; `None` or zero for the default.
    pub lease: Option<Millis>,
}

/// Extends the lease of an effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renew {
    /// The effect.
    pub identity: Identity,
    /// The token of the grant.
    pub token: TokenClaim,
    /// The new lease, from now; `None` or zero for the default.
    pub lease: Option<Millis>,
}

/// Reads an effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// The effect.
    pub identity: Identity,
}

/// Deletes an effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forget {
    /// The effect.
    pub identity: Identity,
}

/// Lists effects, a page at a time, in an order that only depends on their identities. Expired effects are left out.
///
/// An effect that exists throughout and is selected throughout is in exactly one page, whatever happens to others
/// between the pages, a restart included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListEffects {
    /// Only of this tenant.
    pub tenant: Option<Text>,
    /// Only of scopes of this kind.
    pub kind: Option<ScopeKind>,
    /// Only with this status.
    pub status: Option<EffectStatus>,
    /// Only those that have not changed for so long.
    pub older_than: Millis,
    /// The most effects in the page, at most 1,000.
    pub limit: usize,
    /// Continues after the [`EffectPage::next`](crate::reply::EffectPage::next) of the page before.
    pub after: Option<Identity>,
}
