//! The entries of the cache, by payload.
#![allow(clippy::disallowed_types, reason = "nothing depends on the order of the runs, which are only looked up")]

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use super::{BlockId, Entry};
use crate::collections::number_hasher::NumberHasher;
use crate::types::{Body, PayloadId};

/// The LSNs of a run.
const RUN_LSNS: u64 = 64;

/// Entries in short sorted runs, each of [`RUN_LSNS`] LSNs: most entries come behind all others, which is one push, and
/// those of a block are removed together.
#[derive(Clone, Debug, Default)]
pub(super) struct Entries {
    /// The run with the highest number that was added, and its number. It may be empty.
    newest: (u64, Run),
    /// The other runs, none empty. Nothing depends on their order.
    runs: HashMap<u64, Run, BuildHasherDefault<NumberHasher>>,
}

type Run = Vec<(PayloadId, Entry)>;

impl Entries {
    pub(super) fn get(&self, payload: PayloadId) -> Option<&Entry> {
        let number = run_of(payload);
        let run = if number == self.newest.0 { &self.newest.1 } else { self.runs.get(&number)? };
        find(run, payload).ok().map(|at| &run[at].1)
    }

    pub(super) fn get_mut(&mut self, payload: PayloadId) -> Option<&mut Entry> {
        let number = run_of(payload);
        let run = if number == self.newest.0 { &mut self.newest.1 } else { self.runs.get_mut(&number)? };
        find(run, payload).ok().map(|at| &mut run[at].1)
    }

    /// Adds an entry; one of the same payload is replaced.
    pub(super) fn insert(&mut self, payload: PayloadId, entry: Entry) {
        let number = run_of(payload);
        if number > self.newest.0 {
            // Runs that follow each other are about as long.
            let next = Vec::with_capacity(self.newest.1.len());
            let (before, run) = std::mem::replace(&mut self.newest, (number, next));
            if !run.is_empty() {
                self.runs.insert(before, run);
            }
        }
        let run = if number == self.newest.0 { &mut self.newest.1 } else { self.runs.entry(number).or_default() };
        if run.last().is_none_or(|(last, _)| *last < payload) {
            run.push((payload, entry));
            return;
        }
        match find(run, payload) {
            Ok(at) => run[at].1 = entry,
            Err(at) => run.insert(at, (payload, entry)),
        }
    }

    /// Removes the entries of a block, which holds these payloads in this order, and passes their bodies to `each`.
    pub(super) fn remove(&mut self, block: BlockId, payloads: &[PayloadId], mut each: impl FnMut(Body)) {
        let mut of_block = |run: &mut Run| {
            run.extract_if(.., |(_, entry)| entry.block == block).for_each(|(_, entry)| each(entry.body));
        };
        for same_run in payloads.chunk_by(|one, next| run_of(*one) == run_of(*next)) {
            let key = run_of(same_run[0]);
            if key == self.newest.0 {
                of_block(&mut self.newest.1);
                continue;
            }
            let Some(run) = self.runs.get_mut(&key) else { continue };
            of_block(run);
            if run.is_empty() {
                self.runs.remove(&key);
            }
        }
    }
}

fn run_of(payload: PayloadId) -> u64 {
    payload.lsn.0 / RUN_LSNS
}

fn find(run: &[(PayloadId, Entry)], payload: PayloadId) -> Result<usize, usize> {
    // What was just written is mostly delivered at once.
    if let Some((last, _)) = run.last()
        && *last == payload
    {
        return Ok(run.len() - 1);
    }
    run.binary_search_by_key(&payload, |(found, _)| *found)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::types::Lsn;

    fn entry(block: u64) -> Entry {
        Entry { body: Body::bare(&[], b"value"), block: BlockId(block), taken: 0, is_used_up: false }
    }

    proptest! {
        #[test]
        fn entries_are_found_until_their_block_is_removed(
            blocks in prop::collection::vec(prop::collection::btree_set((0_u64..400, 0_u32..3), 0..60), 1..8),
            removed in prop::collection::vec(any::<bool>(), 8),
        ) {
            let (mut entries, mut model) = (Entries::default(), BTreeMap::new());
            let mut added = Vec::new();
            for (number, block) in (0..).zip(blocks) {
                let all = block.into_iter().map(|(lsn, part)| PayloadId { lsn: Lsn(lsn), part });
                // As in the cache, a payload is in one block only.
                let payloads: Vec<PayloadId> = all.filter(|payload| entries.get(*payload).is_none()).collect();
                for payload in &payloads {
                    entries.insert(*payload, entry(number));
                    model.insert(*payload, BlockId(number));
                }
                added.push(payloads);
            }
            for ((number, payloads), _) in (0..).zip(&added).zip(&removed).filter(|(_, is_removed)| **is_removed) {
                entries.remove(BlockId(number), payloads, drop);
                model.retain(|_, block| *block != BlockId(number));
            }
            for (lsn, part) in (0..400).flat_map(|lsn| (0..3).map(move |part| (lsn, part))) {
                let payload = PayloadId { lsn: Lsn(lsn), part };
                prop_assert_eq!(entries.get(payload).map(|entry| entry.block), model.get(&payload).copied());
                prop_assert_eq!(entries.get_mut(payload).is_some(), model.contains_key(&payload));
            }
            let is_sorted = |run: &Run| run.is_sorted_by_key(|(payload, _)| *payload);
            prop_assert!(entries.runs.values().all(|run| !run.is_empty() && is_sorted(run)));
            prop_assert!(is_sorted(&entries.newest.1) && !entries.runs.contains_key(&entries.newest.0));
        }
    }
}
