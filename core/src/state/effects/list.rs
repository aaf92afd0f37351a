//! Lists the effects of the store, a page at a time.

use super::super::State;
use crate::command::ListEffects;
use crate::reply::{EffectPage, FoundEffect};
use crate::types::{Effect, Identity, Scope, Timestamp, WorkLimits};

impl State {
    /// The next page of the effects that `request` selects. Expired effects are left out.
    pub(crate) fn list_effects(&self, request: &ListEffects, work: &WorkLimits, now: Timestamp) -> EffectPage {
        let (mut seen, mut bytes, mut page) = (0, 0, EffectPage::default());
        let limit = request.limit.clamp(1, work.effects_per_page);
        for (namespace, table, after) in self.store.tables_after(request.after.as_ref(), request.kind) {
            for (key, effect) in table.effects_after(after) {
                seen += 1;
                let identity = namespace.identity(key);
                if is_selected(request, &identity, effect, now) && self.is_valid(&identity.scope, effect, now) {
                    bytes += effect.result.as_ref().map_or(0, |result| result.len as usize);
                    bytes += effect.last_error().len();
                    page.effects.push((identity.clone(), FoundEffect::new(effect.clone())));
                }
                let is_full = page.effects.len() == limit || bytes > work.bytes_per_page;
                if seen == work.effects_seen_per_page || is_full {
                    page.next = Some(identity);
                    return page;
                }
            }
        }
        page
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
