//! An open stream and its credit.

use driftq_core::command::OnDisconnect;
use driftq_core::types::{ConsumerId, GroupId, Millis, OwnerName, TopicId};

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
    pub(super) deliveries_left: Option<u64>,
    pub(super) on_disconnect: OnDisconnect,
}

impl Stream {
    /// Whether it can take one more message: running leases count against its prefetch.
    pub(super) fn has_credit(&self, group: &Group) -> bool {
        if self.prefetch == 0 || self.deliveries_left == Some(0) {
            return false;
        }
        let held = group.progress.iter().filter(|progress| held_by(progress, self.id));
        held.count() < self.prefetch as usize
    }
}

pub(super) fn held_by(progress: &Progress, stream: ConsumerId) -> bool {
    matches!(progress, Progress::Attempted(Attempted { phase: Phase::Leased { holder, .. }, .. }) if *holder == stream)
}
