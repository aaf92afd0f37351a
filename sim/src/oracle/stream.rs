//! An open stream and its credit.

use driftq_core::command::OnDisconnect;
use driftq_core::types::{ConsumerId, GroupId, Millis, OwnerName, Timestamp, TopicId};

use super::topic::{Attempted, Group, Phase, Progress};

/// An open stream.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    pub(super) id: ConsumerId,
    pub(super) topic: TopicId,
    pub(super) group: GroupId,
    pub(super) owner: OwnerName,
    pub(super) lease: Millis,
    pub(super) prefetch: u32,
    /// The most running leases: at first its prefetch.
    pub(super) credit: u32,
    /// When it acked.
    pub(super) acks: Vec<Timestamp>,
    pub(super) reduced_at: Option<Timestamp>,
    /// Its credit was reduced to 1 and it has not acked since.
    pub(super) is_asked_last: bool,
    pub(super) deliveries_left: Option<u64>,
    pub(super) on_disconnect: OnDisconnect,
}

impl Stream {
    /// Whether it can take one more message: running leases count against its credit.
    pub(super) fn has_credit(&self, group: &Group) -> bool {
        if self.credit == 0 || self.deliveries_left == Some(0) {
            return false;
        }
        let held = group.progress.iter().filter(|progress| held_by(progress, self.id));
        held.count() < self.credit as usize
    }

    pub(super) fn set_prefetch(&mut self, prefetch: u32) {
        let is_reduced = self.credit < self.prefetch;
        self.credit = if is_reduced { self.credit.min(prefetch) } else { prefetch };
        self.prefetch = prefetch;
    }

    pub(super) fn acked(&mut self, now: Timestamp) {
        self.acks.push(now);
        self.is_asked_last = false;
        self.credit = self.credit.saturating_add(1).min(self.prefetch);
    }

    /// One of its leases expired. A stream that asked for a number of messages keeps its credit.
    pub(super) fn lease_expired(&mut self, now: Timestamp) {
        let recently = self.reduced_at.is_some_and(|at| now < at.after(self.lease));
        if recently || self.deliveries_left.is_some() {
            return;
        }
        self.reduced_at = Some(now);
        let recent = self.acks.iter().filter(|at| at.after(self.lease) > now).count();
        self.credit = self.credit.min((recent / 2).max(1) as u32);
        self.is_asked_last = self.credit <= 1;
    }
}

pub(super) fn held_by(progress: &Progress, stream: ConsumerId) -> bool {
    matches!(progress, Progress::Attempted(Attempted { phase: Phase::Leased { holder, .. }, .. }) if *holder == stream)
}
