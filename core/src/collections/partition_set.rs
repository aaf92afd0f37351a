//! A bit set of partitions: inserts and removes, which happen with every message, cost a few instructions.

use crate::types::PartitionId;

/// Partitions of one topic, visited round robin.
#[derive(Clone, Debug, Default)]
pub(crate) struct PartitionSet {
    /// One bit per partition.
    blocks: Vec<u64>,
    len: usize,
}

impl PartitionSet {
    /// The set of all of `partitions` partitions.
    pub(crate) fn all(partitions: usize) -> Self {
        let mut all = Self { blocks: vec![0; partitions.div_ceil(64)], len: 0 };
        for partition in 0..partitions {
            all.insert(PartitionId(partition as u32));
        }
        all
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a partition, which must be below the count the set was created with.
    pub(crate) fn insert(&mut self, partition: PartitionId) {
        let (block, bit) = block_and_bit(partition);
        self.len += usize::from(self.blocks[block] & bit == 0);
        self.blocks[block] |= bit;
    }

    pub(crate) fn remove(&mut self, partition: PartitionId) {
        let (block, bit) = block_and_bit(partition);
        self.len -= usize::from(self.blocks[block] & bit != 0);
        self.blocks[block] &= !bit;
    }

    /// The first partition at or after `from`; if there is none, the first of all.
    pub(crate) fn next_turn(&self, from: PartitionId) -> Option<PartitionId> {
        if self.is_empty() {
            return None;
        }
        self.first_from(from).or_else(|| self.first_from(PartitionId(0)))
    }

    /// All partitions, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = PartitionId> {
        let bits = (0_u32..).zip(&self.blocks).flat_map(|(index, block)| (0..64).map(move |bit| (index, *block, bit)));
        bits.filter(|(_, block, bit)| block >> bit & 1 == 1).map(|(index, _, bit)| PartitionId(index * 64 + bit))
    }

    fn first_from(&self, from: PartitionId) -> Option<PartitionId> {
        let (start, bit) = block_and_bit(from);
        let mut mask = !(bit - 1);
        for (index, block) in self.blocks.iter().enumerate().skip(start) {
            let found = block & mask;
            if found != 0 {
                return Some(PartitionId(index as u32 * 64 + found.trailing_zeros()));
            }
            mask = u64::MAX;
        }
        None
    }
}

fn block_and_bit(partition: PartitionId) -> (usize, u64) {
    (partition.0 as usize / 64, 1 << (partition.0 % 64))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn partition_set_equals_model(
            partitions in 1_u32..200,
            changes in prop::collection::vec((any::<bool>(), 0_u32..200, 0_u32..202), 0..100),
        ) {
            let mut partition_set = PartitionSet::all(partitions as usize);
            let mut model: BTreeSet<_> = (0..partitions).map(PartitionId).collect();
            for (insert, partition, from) in changes {
                let partition = PartitionId(partition % partitions);
                if insert {
                    partition_set.insert(partition);
                    model.insert(partition);
                } else {
                    partition_set.remove(partition);
                    model.remove(&partition);
                }
                prop_assert_eq!(partition_set.is_empty(), model.is_empty());
                let from = PartitionId(from);
                let expected = model.range(from..).next().or_else(|| model.first()).copied();
                prop_assert_eq!(partition_set.next_turn(from), expected);
                prop_assert!(partition_set.iter().eq(model.iter().copied()));
            }
        }
    }
}
