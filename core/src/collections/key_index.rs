//! Numbers found by the hash of a key: a copy-on-write index that holds no keys.
//!
//! The entries of the table whose index it is have the keys, so that a search reads some sixteen bytes per key it looks
//! at, and the key itself only where the hashes are equal.

use std::cmp::Ordering;
use std::sync::Arc;

use super::shared::unshared;
use crate::types::IdentityKey;

#[cfg(test)]
mod tests;

/// The most entries of a leaf, and so the most that one write after a clone copies.
const LEAF: usize = 128;

/// The most leaves of a node.
const NODE: usize = 128;

/// A leaf or node with fewer parts than this is merged with a neighbour if both are small.
const SPARSE: usize = 32;

/// The most parts of a merged leaf or node.
const MERGED_MAX: usize = 64;

/// A sorted index of keys with cheap clones.
///
/// A place `P` leads to an entry of the table, as the function says that most calls take: its key must be the one with
/// which the place was inserted. Searches, inserts and removals are O(log n), whatever the hashes; only the list of
/// nodes, of which there is one per several thousand keys, is moved as a whole. A clone costs one reference count per
/// node.
#[derive(Clone, Debug)]
pub(crate) struct KeyIndex<P> {
    nodes: Vec<Node<P>>,
    len: usize,
}

/// Leaves, none empty, and a lower bound of their keys, which is above every key of the node before. The bound of the
/// first node does not count.
#[derive(Clone, Debug)]
struct Node<P> {
    first: IdentityKey,
    leaves: Arc<Vec<Leaf<P>>>,
}

/// Places, each with the hash of its key, and a lower bound as that of a node.
#[derive(Clone, Debug)]
struct Leaf<P> {
    first: IdentityKey,
    entries: Arc<Vec<(u64, P)>>,
}

impl<P: Copy> KeyIndex<P> {
    /// The number of keys.
    #[must_use]
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no key.
    #[must_use]
    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The place of `key`, and the entry to which it leads.
    #[must_use]
    #[inline]
    pub(crate) fn get<'a, T: 'a>(
        &self,
        key: &IdentityKey,
        entry_at: impl Fn(P) -> &'a (IdentityKey, T),
    ) -> Option<(P, &'a (IdentityKey, T))> {
        let (node, leaf) = self.locate(key)?;
        let entries = &self.nodes[node].leaves[leaf].entries;
        let (at, entry) = search(entries, key, entry_at).ok()?;
        Some((entries[at].1, entry))
    }

    /// Adds `key`, unless it is known: then returns its place and changes nothing.
    #[inline]
    pub(crate) fn insert<'a, T: 'a>(
        &mut self,
        key: &IdentityKey,
        place: P,
        entry_at: impl Fn(P) -> &'a (IdentityKey, T),
    ) -> Option<P> {
        let Some((mut node, mut leaf)) = self.locate(key) else {
            let leaves = Arc::new(vec![Leaf { first: key.clone(), entries: Arc::new(vec![(key.hash(), place)]) }]);
            self.nodes.push(Node { first: key.clone(), leaves });
            self.len = 1;
            return None;
        };
        let entries = &self.nodes[node].leaves[leaf].entries;
        let mut at = match search(entries, key, &entry_at) {
            Ok((at, _)) => return Some(entries[at].1),
            Err(at) => at,
        };
        if entries.len() >= LEAF {
            (node, leaf, at) = self.split((node, leaf, at), &entry_at);
        }
        unshared(&mut unshared(&mut self.nodes[node].leaves)[leaf].entries).insert(at, (key.hash(), place));
        self.len += 1;
        None
    }

    /// Changes the place of `key`, and returns the one before; `None` if the key is not known.
    pub(crate) fn replace<'a, T: 'a>(
        &mut self,
        key: &IdentityKey,
        place: P,
        entry_at: impl Fn(P) -> &'a (IdentityKey, T),
    ) -> Option<P> {
        let (node, leaf) = self.locate(key)?;
        let (at, _) = search(&self.nodes[node].leaves[leaf].entries, key, entry_at).ok()?;
        let entries = unshared(&mut unshared(&mut self.nodes[node].leaves)[leaf].entries);
        Some(std::mem::replace(&mut entries[at].1, place))
    }

    /// Removes `key` and returns its place.
    #[inline]
    pub(crate) fn remove<'a, T: 'a>(
        &mut self,
        key: &IdentityKey,
        entry_at: impl Fn(P) -> &'a (IdentityKey, T),
    ) -> Option<P> {
        let (node, leaf) = self.locate(key)?;
        let (at, _) = search(&self.nodes[node].leaves[leaf].entries, key, entry_at).ok()?;
        Some(self.remove_at(node, leaf, at))
    }

    /// Removes `key`, whose place is known. Returns whether it was there.
    #[inline]
    pub(crate) fn remove_from(&mut self, key: &IdentityKey, place: P) -> bool
    where
        P: PartialEq,
    {
        let Some((node, leaf)) = self.locate(key) else { return false };
        let entries = &self.nodes[node].leaves[leaf].entries;
        let from = entries.partition_point(|(hash, _)| *hash < key.hash());
        let mut equal = entries[from..].iter().take_while(|(hash, _)| *hash == key.hash());
        let Some(at) = equal.position(|(_, other)| *other == place) else { return false };
        self.remove_at(node, leaf, from + at);
        true
    }

    fn remove_at(&mut self, node: usize, leaf: usize, at: usize) -> P {
        let entries = unshared(&mut unshared(&mut self.nodes[node].leaves)[leaf].entries);
        let (_, place) = entries.remove(at);
        self.len -= 1;
        if entries.len() < SPARSE {
            self.merge(node, leaf);
        }
        place
    }

    /// All places in the order of the keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = P> {
        let leaves = self.nodes.iter().flat_map(|node| &*node.leaves);
        leaves.flat_map(|leaf| &*leaf.entries).map(|(_, place)| *place)
    }

    /// The places of the keys above `key`, in their order.
    pub(crate) fn above<'a, T: 'a>(
        &self,
        key: &IdentityKey,
        entry_at: impl Fn(P) -> &'a (IdentityKey, T),
    ) -> impl Iterator<Item = P> {
        let (node, leaf) = self.locate(key).unwrap_or_default();
        let leaves = self.nodes.get(node).map_or(&[][..], |node| &node.leaves[leaf..]);
        let behind = |leaf: &Leaf<P>| search(&leaf.entries, key, entry_at).map_or_else(|at| at, |(at, _)| at + 1);
        let at = leaves.first().map_or(0, behind);
        let rest = self.nodes.iter().skip(node + 1).flat_map(|node| &*node.leaves);
        let entries = leaves.iter().chain(rest).flat_map(|leaf| &*leaf.entries);
        entries.skip(at).map(|(_, place)| *place)
    }

    /// The parts of the index. Once each is dropped, its memory is free, unless another copy shares it.
    pub(crate) fn into_parts(self) -> impl Iterator<Item = Arc<Vec<(u64, P)>>> + Clone {
        let leaves = self.nodes.into_iter().flat_map(|node| Arc::unwrap_or_clone(node.leaves));
        leaves.map(|leaf| leaf.entries)
    }

    /// Node and leaf in which `key` is, or is to be inserted; `None` if there is none.
    #[inline]
    fn locate(&self, key: &IdentityKey) -> Option<(usize, usize)> {
        let node = match &self.nodes[..] {
            [] => return None,
            [_] => 0,
            nodes => last_from(nodes, key, |node| &node.first),
        };
        Some((node, last_from(&self.nodes[node].leaves, key, |leaf| &leaf.first)))
    }

    /// Splits a full leaf in halves, and its node if that is full. Returns where the entry `at` is then.
    #[cold]
    fn split<'a, T: 'a>(
        &mut self,
        at: (usize, usize, usize),
        entry_at: impl Fn(P) -> &'a (IdentityKey, T),
    ) -> (usize, usize, usize) {
        let (mut node, mut leaf, mut at) = at;
        if self.nodes[node].leaves.len() >= NODE {
            let leaves = unshared(&mut self.nodes[node].leaves).split_off(NODE / 2);
            self.nodes.insert(node + 1, Node { first: leaves[0].first.clone(), leaves: Arc::new(leaves) });
            if leaf >= NODE / 2 {
                (node, leaf) = (node + 1, leaf - NODE / 2);
            }
        }
        let leaves = unshared(&mut self.nodes[node].leaves);
        let lower = unshared(&mut leaves[leaf].entries);
        let mut upper = Vec::with_capacity(LEAF);
        upper.extend(lower.drain(LEAF / 2..));
        let first = entry_at(upper[0].1).0.clone();
        leaves.insert(leaf + 1, Leaf { first, entries: Arc::new(upper) });
        if at > LEAF / 2 {
            (leaf, at) = (leaf + 1, at - LEAF / 2);
        }
        (node, leaf, at)
    }

    /// Drops a sparse leaf if it is empty, or merges it with a neighbour of its node if both are small; then the same
    /// with the node.
    #[cold]
    fn merge(&mut self, node: usize, leaf: usize) {
        let leaves = unshared(&mut self.nodes[node].leaves);
        let len = leaves[leaf].entries.len();
        if len == 0 {
            leaves.remove(leaf);
        } else {
            let fits = |other: usize| leaves.get(other).is_some_and(|leaf| leaf.entries.len() + len <= MERGED_MAX);
            let lower = match leaf.checked_sub(1) {
                Some(before) if fits(before) => before,
                _ if fits(leaf + 1) => leaf,
                _ => return,
            };
            let upper = leaves.remove(lower + 1);
            unshared(&mut leaves[lower].entries).extend_from_slice(&upper.entries);
        }
        let len = leaves.len();
        if len == 0 {
            self.nodes.remove(node);
        } else if len < SPARSE {
            let fits = |other: usize| self.nodes.get(other).is_some_and(|node| node.leaves.len() + len <= MERGED_MAX);
            let lower = match node.checked_sub(1) {
                Some(before) if fits(before) => before,
                _ if fits(node + 1) => node,
                _ => return,
            };
            let upper = self.nodes.remove(lower + 1);
            unshared(&mut self.nodes[lower].leaves).extend(Arc::unwrap_or_clone(upper.leaves));
        }
    }
}

/// Where `key` is among the entries of a leaf, with the entry of its table, or where it is to be inserted.
#[inline]
fn search<'a, P: Copy, T: 'a>(
    entries: &[(u64, P)],
    key: &IdentityKey,
    entry_at: impl Fn(P) -> &'a (IdentityKey, T),
) -> Result<(usize, &'a (IdentityKey, T)), usize> {
    let hash = key.hash();
    let mut at = entries.partition_point(|(other, _)| *other < hash);
    while let Some((_, place)) = entries.get(at).filter(|(other, _)| *other == hash) {
        let entry = entry_at(*place);
        match entry.0.cmp(key) {
            Ordering::Less => at += 1,
            Ordering::Equal => return Ok((at, entry)),
            Ordering::Greater => break,
        }
    }
    Err(at)
}

/// The last part whose bound is at or below `key`, or the first.
#[inline]
fn last_from<T>(parts: &[T], key: &IdentityKey, first: impl Fn(&T) -> &IdentityKey) -> usize {
    let hash = key.hash();
    let end = parts.partition_point(|part| first(part).hash() <= hash);
    match end.checked_sub(1) {
        None => 0,
        Some(last) if first(&parts[last]).hash() < hash => last,
        // Few keys have the same hash as another.
        Some(_) => parts.partition_point(|part| first(part) <= key).saturating_sub(1),
    }
}

impl<P> Default for KeyIndex<P> {
    fn default() -> Self {
        Self { nodes: Vec::new(), len: 0 }
    }
}

/// Equal if keys and places are.
impl<P: Copy + PartialEq> PartialEq for KeyIndex<P> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl<P: Copy + Eq> Eq for KeyIndex<P> {}
