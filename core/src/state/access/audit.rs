//! The newest audited commands.

use std::sync::Arc;

use super::super::Contradiction;
use super::super::apply::check_counter;
use crate::collections::cow::{CowMap, entries_of};
use crate::types::{Audit, AuditEntry, AuditTarget, Timestamp};

/// The newest audited commands, [`AuditEntry::COUNT_MAX`] at most.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditLog {
    entries: CowMap<u64, Arc<AuditEntry>>,
    next: u64,
    /// The memory of all entries.
    bytes: u64,
}

impl AuditLog {
    /// The entries, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<AuditEntry>> {
        self.entries.iter().map(|(_, entry)| entry)
    }

    /// The entries before the number `before`, or all of them, the newest first.
    pub(crate) fn before(&self, before: Option<u64>) -> impl Iterator<Item = &Arc<AuditEntry>> {
        let last = self.entries.last_below(&before.unwrap_or(self.next));
        std::iter::successors(last, |(number, _)| self.entries.last_below(number)).map(|(_, entry)| entry)
    }

    /// The number of the next entry.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    pub(super) fn add(&mut self, audit: &Audit, at: Timestamp) {
        let number = self.next;
        self.next = number.saturating_add(1);
        self.push(Arc::new(AuditEntry { number, at, audit: audit.clone() }));
    }

    fn push(&mut self, entry: Arc<AuditEntry>) {
        self.bytes += memory_of(&entry);
        self.entries.insert(entry.number, entry);
        if self.entries.len() > AuditEntry::COUNT_MAX
            && let Some((_, oldest)) = self.entries.pop_first()
        {
            self.bytes -= memory_of(&oldest);
        }
    }

    pub(super) fn restore_next(&mut self, next: u64) -> Result<(), Contradiction> {
        if self.next != 0 {
            return Err(Contradiction("two images of the numbers of audited commands"));
        }
        check_counter(next)?;
        self.next = next;
        Ok(())
    }

    pub(super) fn restore(&mut self, entry: &Arc<AuditEntry>) -> Result<(), Contradiction> {
        let follows = self.entries.last().is_none_or(|(last, _)| *last < entry.number);
        if !follows || entry.number >= self.next || self.entries.len() == AuditEntry::COUNT_MAX {
            return Err(Contradiction("audited commands out of order, or too many"));
        }
        self.push(entry.clone());
        Ok(())
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (u64, Arc<AuditEntry>)> + Clone + Send + 'static {
        entries_of(self.entries.clone())
    }

    pub(super) fn memory(&self) -> u64 {
        self.bytes
    }
}

fn memory_of(entry: &AuditEntry) -> u64 {
    let texts = match &entry.audit.target {
        AuditTarget::Nothing | AuditTarget::Key(_) => 0,
        AuditTarget::Topic(topic) => topic.as_str().len(),
        AuditTarget::Group(topic, group) => topic.as_str().len() + group.as_str().len(),
        AuditTarget::Tenant(name) => name.as_str().len(),
    };
    (size_of::<AuditEntry>() + 2 * size_of::<u64>() + texts) as u64
}
