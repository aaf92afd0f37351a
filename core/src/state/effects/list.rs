//! Lists the effects of the store, a page at a time.

use super::super::State;
use crate::command::ListEffects;
use crate::reply::{EffectPage, FoundEffect};
use crate::types::{
    DEFAULT_TENANT, Effect, EffectNamespace, Identity, IdentityKey, Scope, TenantId, Timestamp, WorkLimits,
};

/// The effects that a list shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VisibleEffects {
    /// All of them.
    All,
    /// Those of a tenant: of its topics, and all others whose identity names it; of the default tenant those that name
    /// no registered one.
    OfTenant(TenantId),
}

/// How many keys are tried to find one that stands between two others.
const TRIES: u32 = 4_096;

impl State {
    /// The next page of the effects that `request` selects. Expired effects are left out.
    pub(crate) fn list_effects(
        &self,
        request: &ListEffects,
        visible: VisibleEffects,
        work: &WorkLimits,
        now: Timestamp,
    ) -> EffectPage {
        let (mut seen, mut bytes, mut page) = (0, 0, EffectPage::default());
        let limit = request.limit.clamp(1, work.effects_per_page);
        // The last one that may be named.
        let mut last = None;
        for (namespace, table, after) in self.store.tables_after(request.after.as_ref(), request.kind) {
            if !self.is_visible_namespace(visible, &namespace) {
                continue;
            }
            for (key, effect) in table.effects_after(after) {
                seen += 1;
                let is_visible = self.is_visible_key(visible, &namespace, key);
                if is_visible {
                    let identity = namespace.identity(key);
                    if is_selected(request, &identity, effect, now) && self.is_valid(&identity.scope, effect, now) {
                        bytes += effect.result.as_ref().map_or(0, |result| result.len as usize);
                        bytes += effect.last_error().len();
                        page.effects.push((identity.clone(), FoundEffect::new(effect.clone())));
                    }
                    last = Some(identity);
                }
                let is_full = page.effects.len() == limit || bytes > work.bytes_per_page;
                if seen % work.effects_seen_per_page == 0 || is_full {
                    page.next = last.clone().or_else(|| self.between(visible, after, key));
                    if page.next.is_some() {
                        return page;
                    }
                }
            }
        }
        page
    }

    /// Whether a list may show effects of a namespace.
    fn is_visible_namespace(&self, visible: VisibleEffects, namespace: &EffectNamespace) -> bool {
        match (visible, namespace) {
            (VisibleEffects::All, _) | (_, EffectNamespace::Shared) => true,
            (VisibleEffects::OfTenant(tenant), EffectNamespace::Group(topic, _)) => topic.tenant() == tenant,
        }
    }

    /// Whether a list may show an effect of a namespace that it may show.
    fn is_visible_key(&self, visible: VisibleEffects, namespace: &EffectNamespace, key: &IdentityKey) -> bool {
        let tenants = self.access.tenants();
        match (visible, namespace) {
            (VisibleEffects::All, _) | (_, EffectNamespace::Group(..)) => true,
            (VisibleEffects::OfTenant(tenant), EffectNamespace::Shared) => match tenants.name(tenant) {
                Some(name) => key.tenant() == name.as_str(),
                None => !tenants.is_registered(key.tenant()),
            },
        }
    }

    /// An identity of the caller's tenant above `after` and at or below `last`, which is another tenant's and must not
    /// be named. Between the two there is no effect that the caller sees, so that a page can begin after it. `None` if
    /// none is found: they are too close to each other.
    fn between(&self, visible: VisibleEffects, after: Option<&IdentityKey>, last: &IdentityKey) -> Option<Identity> {
        let VisibleEffects::OfTenant(tenant) = visible else { return None };
        let name = self.access.tenants().name(tenant).map_or(DEFAULT_TENANT, |name| name.as_str());
        let candidates = (0..TRIES).map(|number| Identity::new(name, Scope::Tenant, &number.to_string()));
        let is_between =
            |identity: &Identity| after.is_none_or(|after| after < identity.packed()) && identity.packed() <= last;
        candidates.filter(is_between).max_by(|one, other| one.packed().cmp(other.packed()))
    }
}

fn is_selected(request: &ListEffects, identity: &Identity, effect: &Effect, now: Timestamp) -> bool {
    let ListEffects { tenant, kind, status, older_than, .. } = request;
    let of_kind = |scope: &Scope| kind.is_none_or(|kind| scope.kind() == kind);
    tenant.as_ref().is_none_or(|tenant| **tenant == *identity.tenant())
        && of_kind(&identity.scope)
        && status.is_none_or(|status| effect.status == status)
        && effect.updated_at.after(*older_than) <= now
}
