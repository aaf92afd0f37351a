//! Tallies of the state and of retained messages.

use std::collections::BTreeMap;

use driftq_core::state::{Load, State};

use super::{IndexView, retained_messages};
use crate::invariants::catalog::{self, sentence};
use crate::invariants::limits::retained_memory;
use crate::invariants::tracker::recount::payload;
use crate::invariants::verdict::Verdict;

#[doc = sentence!(tallies_match)]
pub(super) fn tallies_match(view: &IndexView<'_>) -> Verdict {
    let mut oldest = Vec::new();
    for topic in view.state.topics() {
        for (id, partition) in topic.partitions() {
            let retained = || retained_messages(topic, id, partition);
            let kept = load(partition.messages().map(|(_, message)| payload(&message)));
            let counted =
                (kept, load(retained().map(|it| payload(&it))), retained().map(|it| it.retained_bytes()).sum::<u64>());
            let told = (partition.kept(), partition.retained_load(), partition.retained_memory());
            catalog::TALLIES_MATCH.holds(counted == told, || {
                format!("{} {id}: stored, retained and memory are {told:?}, counted {counted:?}", topic.name())
            })?;
            oldest.extend(retained().map(|message| (message.produced_at, topic.id(), id)).min());
        }
    }
    oldest.sort_unstable();
    let (index, memory) = (view.index, retained_memory(view.state));
    catalog::TALLIES_MATCH.holds(index.retained_memory == memory && index.retained_oldest == oldest, || {
        format!("retained {} from {:?}, counted {memory} from {oldest:?}", index.retained_memory, index.retained_oldest)
    })?;
    tables_match(view.state)
}

fn load(bytes: impl Iterator<Item = u64>) -> Load {
    bytes.fold(Load::default(), |load, bytes| Load { messages: load.messages + 1, bytes: load.bytes + bytes })
}

/// The sizes of tables, by tenant too. An empty table is removed.
fn tables_match(state: &State) -> Verdict {
    let mut tenants: BTreeMap<String, u64> = BTreeMap::new();
    for (namespace, table) in state.store().tables() {
        let is_empty = table.effects().next().is_none();
        catalog::TALLIES_MATCH.holds(!is_empty, || format!("an empty table of {namespace:?}"))?;
        for (key, _) in table.effects() {
            *tenants.entry(namespace.identity(key).tenant().to_owned()).or_default() += 1;
        }
    }
    let (len, counted) = (state.store().len() as u64, tenants.values().sum::<u64>());
    let wrong = tenants.iter().find(|(tenant, count)| state.store().len_of(tenant) != **count);
    let is_counted = len == counted && wrong.is_none() && state.store().tenant_count() == tenants.len();
    catalog::TALLIES_MATCH.holds(is_counted, || format!("{len} effects, counted {counted}, {wrong:?} of a tenant"))?;
    for (scope, table) in state.dedupe_tables() {
        let good = !table.is_empty() && table.entries().count() == table.len();
        catalog::TALLIES_MATCH.holds(good, || format!("{scope:?} has {} dedupe keys", table.len()))?;
    }
    let good = state.winners().entries().count() == state.winners().len()
        && state.completions().entries().count() == state.completions().len();
    catalog::TALLIES_MATCH.holds(good, || format!("{:?}, {:?}", state.winners(), state.completions()))
}
