//! A consumer group's progress: what it has finished, and what it holds.

use std::sync::Arc;

use super::cow::CowMap;
use super::done::AckSet;
use super::entry::{Entry, Phase};
use crate::types::{GroupId, GroupName, Offset, PartitionId, Position};

/// A group of one topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub(super) id: GroupId,
    pub(super) name: GroupName,
    pub(super) paused: bool,
    pub(super) partitions: Vec<Arc<Progress>>,
}

/// A group's progress in one partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    pub(super) done: AckSet,
    pub(super) entries: CowMap<Position, Entry>,
    pub(super) in_flight: u32,
    /// Messages below were there when the group was last sought: they are delivered even where their identity is done.
    pub(super) replayed_below: Position,
}

impl Group {
    /// Its number.
    #[must_use]
    pub fn id(&self) -> GroupId {
        self.id
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &GroupName {
        &self.name
    }

    /// Whether it is handed nothing for now.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// Its progress in a partition of its topic.
    #[must_use]
    pub fn progress(&self, partition: PartitionId) -> Option<&Progress> {
        self.partitions.get(partition.0 as usize).map(|progress| &**progress)
    }

    /// Its progress in every partition, in order.
    pub fn partitions(&self) -> impl Iterator<Item = (PartitionId, &Progress)> {
        (0..).map(PartitionId).zip(self.partitions.iter().map(|progress| &**progress))
    }
}

impl Progress {
    /// What is finished.
    #[must_use]
    pub fn done(&self) -> &AckSet {
        &self.done
    }

    /// The history of an unfinished message that was delivered before.
    #[must_use]
    pub fn entry(&self, position: Position) -> Option<&Entry> {
        self.entries.get(&position)
    }

    /// Whether an unfinished message was delivered before. Mostly it lies beyond all that were, and nothing is sought.
    #[must_use]
    pub fn has_entry(&self, position: Position) -> bool {
        self.entries.last().is_some_and(|(last, _)| *last >= position) && self.entries.contains_key(&position)
    }

    /// The history of the unfinished message with this offset, if it was delivered before.
    #[must_use]
    pub fn find(&self, offset: Offset) -> Option<(Position, &Entry)> {
        self.entries.find_by(|_, entry| entry.offset.cmp(&offset)).map(|(position, entry)| (*position, entry))
    }

    /// All unfinished messages that were delivered before, in order.
    pub fn entries(&self) -> impl Iterator<Item = (Position, &Entry)> {
        self.entries.iter().map(|(position, entry)| (*position, entry))
    }

    /// How many leases are running.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Messages below are delivered even where their identity is done: a seek is to replay them.
    #[must_use]
    pub fn replayed_below(&self) -> Position {
        self.replayed_below
    }

    /// How many messages were delivered, came back, and are not held by anyone.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.entries.len() as u64 - u64::from(self.in_flight)
    }

    pub(super) fn remove_entry(&mut self, position: Position) -> Option<Entry> {
        let entry = self.entries.remove(&position)?;
        if let Phase::Leased { .. } = entry.phase {
            self.in_flight -= 1;
        }
        Some(entry)
    }

    /// Puts an entry that held a lease back into the queue.
    pub(super) fn requeue(&mut self, position: Position, change: impl FnOnce(&mut Entry) -> Phase) -> Option<()> {
        let entry = self.entries.get_mut(&position)?;
        let Phase::Leased { .. } = entry.phase else { return None };
        entry.phase = change(entry);
        debug_assert!(matches!(entry.phase, Phase::Queued { .. }), "a lease that ends leaves the message queued");
        self.in_flight -= 1;
        Some(())
    }
}
