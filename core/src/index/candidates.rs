//! A set of partitions as bits: what comes and goes with every message costs next to nothing.

use crate::types::PartitionId;

/// Partitions of one topic, visited in turns.
#[derive(Clone, Debug, Default)]
pub(crate) struct Candidates {
    /// A bit for every partition, 64 to a word.
    words: Vec<u64>,
    len: usize,
}

impl Candidates {
    /// Every one of `partitions` partitions.
    pub(crate) fn all(partitions: usize) -> Self {
        let mut all = Self { words: vec![0; partitions.div_ceil(64)], len: 0 };
        for partition in 0..partitions {
            all.insert(PartitionId(partition as u32));
        }
        all
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a partition, which must be one of those the set was made for.
    pub(crate) fn insert(&mut self, partition: PartitionId) {
        let (word, bit) = place(partition);
        self.len += usize::from(self.words[word] & bit == 0);
        self.words[word] |= bit;
    }

    pub(crate) fn remove(&mut self, partition: PartitionId) {
        let (word, bit) = place(partition);
        self.len -= usize::from(self.words[word] & bit != 0);
        self.words[word] &= !bit;
    }

    /// The first at or after `from`, or else the first of all.
    pub(crate) fn next_turn(&self, from: PartitionId) -> Option<PartitionId> {
        if self.is_empty() {
            return None;
        }
        self.first_from(from).or_else(|| self.first_from(PartitionId(0)))
    }

    fn first_from(&self, from: PartitionId) -> Option<PartitionId> {
        let (start, bit) = place(from);
        // The first word counts from `from` on, the others whole.
        let mut wanted = !(bit - 1);
        for (index, word) in self.words.iter().enumerate().skip(start) {
            let found = word & wanted;
            if found != 0 {
                return Some(PartitionId(index as u32 * 64 + found.trailing_zeros()));
            }
            wanted = u64::MAX;
        }
        None
    }
}

/// The word and the bit in it that stand for a partition.
fn place(partition: PartitionId) -> (usize, u64) {
    (partition.0 as usize / 64, 1 << (partition.0 % 64))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_as_a_plain_set(
            partitions in 1_u32..200,
            steps in prop::collection::vec((any::<bool>(), 0_u32..200, 0_u32..202), 0..100),
        ) {
            let mut candidates = Candidates::all(partitions as usize);
            let mut model: BTreeSet<_> = (0..partitions).map(PartitionId).collect();
            for (insert, partition, from) in steps {
                let partition = PartitionId(partition % partitions);
                if insert {
                    candidates.insert(partition);
                    model.insert(partition);
                } else {
                    candidates.remove(partition);
                    model.remove(&partition);
                }
                prop_assert_eq!(candidates.is_empty(), model.is_empty());
                let from = PartitionId(from);
                let expected = model.range(from..).next().or_else(|| model.first()).copied();
                prop_assert_eq!(candidates.next_turn(from), expected);
            }
        }
    }
}
