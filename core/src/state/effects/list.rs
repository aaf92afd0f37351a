//! Lists the effects of the store, a page at a time.

use super::super::State;
use crate::command::ListEffects;
use crate::reply::EffectPage;
use crate::types::{Effect, Identity, Scope, Timestamp};

/// The most effects that one page looks at, so that it does not delay other commands.
const SEEN_MAX: usize = 4_096;

/// The most effects in one page.
const PAGE_MAX: usize = 1_000;

/// A page ends with the effect that makes its results and errors exceed this.
const PAGE_BYTES_MAX: usize = 1 << 20;

impl State {
    /// The next page of the effects that `request` selects. Expired effects are left out.
    pub(crate) fn list_effects(&self, request: &ListEffects, now: Timestamp) -> EffectPage {
        let (mut seen, mut bytes, mut page) = (0, 0, EffectPage::default());
        let limit = request.limit.clamp(1, PAGE_MAX);
        for (namespace, table, after) in self.store.tables_after(request.after.as_ref(), request.kind) {
            for (key, effect) in table.effects_after(after) {
                seen += 1;
                let identity = namespace.identity(key);
                if is_selected(request, &identity, effect, now) && self.is_valid(&identity.scope, effect, now) {
                    bytes += effect.result.as_ref().map_or(0, |result| result.len());
                    bytes += effect.details.as_ref().map_or(0, |details| details.last_error.len());
                    page.effects.push((identity.clone(), effect.clone()));
                }
                if seen == SEEN_MAX || page.effects.len() == limit || bytes > PAGE_BYTES_MAX {
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
