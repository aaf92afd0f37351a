//! The deliveries of one message, and the newest of each group.

use driftq_core::types::{GroupId, Timestamp};

use crate::trace_message::history::MessageDelivery;

/// The most deliveries that are listed.
const DELIVERIES_MAX: usize = 10_000;

/// The LSN and time of a record, or of a snapshot.
#[derive(Clone, Copy)]
pub(super) struct LogTime {
    pub(super) lsn: u64,
    pub(super) at: Timestamp,
}

/// Collects deliveries and how they end.
#[derive(Default)]
pub(super) struct Deliveries {
    list: Vec<MessageDelivery>,
    /// The index of the newest delivery of each group.
    newest: Vec<(GroupId, usize)>,
}

impl Deliveries {
    pub(super) fn start(&mut self, group: GroupId, delivery: MessageDelivery) {
        self.forget_group(group);
        if self.list.len() < DELIVERIES_MAX {
            self.newest.push((group, self.list.len()));
            self.list.push(delivery);
        }
    }

    /// The newest delivery of a group ends with a record about it.
    pub(super) fn end(&mut self, group: GroupId, when: LogTime, how: String) {
        let Some(delivery) = self.newest_mut(group) else { return };
        delivery.end = Some(match &delivery.end {
            // After its lease has expired, a consumer may still settle a message until it is delivered again.
            Some(before) => format!("{before}, then {how}"),
            None => how,
        });
        (delivery.ended_lsn, delivery.ended_ms) = (Some(when.lsn), Some(when.at.0));
    }

    /// The newest delivery of a group ends, if it is in flight, by something other than its consumer or its lease.
    pub(super) fn cancel(&mut self, group: GroupId, when: LogTime, by: &str) {
        if self.newest_mut(group).is_some_and(|delivery| delivery.end.is_none()) {
            self.end(group, when, format!("cancelled: {by}"));
        }
    }

    pub(super) fn cancel_all(&mut self, when: LogTime, by: &str) {
        for (group, _) in self.newest.clone() {
            self.cancel(group, when, by);
        }
    }

    pub(super) fn extend(&mut self, group: GroupId, until: Timestamp) {
        if let Some(delivery) = self.newest_mut(group) {
            delivery.until_ms = until.0;
        }
    }

    /// Later records about the group are not about its newest delivery.
    pub(super) fn forget_group(&mut self, group: GroupId) {
        self.newest.retain(|(of, _)| *of != group);
    }

    pub(super) fn forget_groups(&mut self) {
        self.newest.clear();
    }

    pub(super) fn into_list(self) -> Vec<MessageDelivery> {
        self.list
    }

    fn newest_mut(&mut self, group: GroupId) -> Option<&mut MessageDelivery> {
        let (_, index) = self.newest.iter().find(|(of, _)| *of == group)?;
        self.list.get_mut(*index)
    }
}
