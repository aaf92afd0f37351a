//! Winners: a worker that did not ack a message is not told that it did.

use driftq_core::command::TokenClaim;
use driftq_core::types::{GroupId, LeaseToken, Offset, PartitionId, TopicId};
use driftq_core::{Refusal, SpaceClass};

use super::model::{MessageIndex, Model, SweepKind, Unwritten, Winner};
use super::topic::Progress;

impl Model {
    /// Whether a claim on an acked message may be confirmed: not if it shows another token than the winner's.
    pub(super) fn check_winner(
        &self,
        message: (TopicId, GroupId, PartitionId, Offset),
        token: TokenClaim,
    ) -> Result<(), Refusal> {
        let known = self.winners.iter().find(|winner| winner.message == message && self.now < winner.until);
        match (known, token) {
            (None, _) | (_, TokenClaim::Absent) => Ok(()),
            (Some(winner), TokenClaim::Shown(token)) if winner.token == Some(token) => Ok(()),
            (Some(_), TokenClaim::Shown(_) | TokenClaim::Unreadable) => Err(Refusal::StaleLease),
        }
    }

    /// The token of the newest delivery, if the group has or may have had another delivery of the message.
    pub(super) fn contested(&self, (t, g, m): MessageIndex) -> Option<LeaseToken> {
        let group = &self.topics[t].groups[g];
        let Progress::Attempted(attempted) = &group.progress[m] else { return None };
        let is_replayed = self.topics[t].messages[m].offset < group.replayed_below;
        (attempted.attempts > 1 || is_replayed).then_some(attempted.token)
    }

    /// Remembers who acked a message.
    pub(super) fn remember_winner(&mut self, (t, g, m): MessageIndex, token: Option<LeaseToken>) {
        let (topic, message) = (&self.topics[t], &self.topics[t].messages[m]);
        let message = (topic.id, topic.groups[g].id, message.partition, message.offset);
        let until = self.now.after(self.limits.completion_ttl);
        let at = self.winners.partition_point(|other| other.until <= until);
        self.winners.insert(at, Winner { message, token, until });
        self.plan_sweep(SweepKind::Winners);
    }

    /// Forgets the winners of a topic, or of one of its groups.
    pub(super) fn forget_winners(&mut self, topic: TopicId, group: Option<GroupId>) {
        self.winners.retain(|winner| {
            let (of, in_group, ..) = winner.message;
            of != topic || group.is_some_and(|group| group != in_group)
        });
        self.plan_sweep(SweepKind::Winners);
    }

    /// At the end of every call the oldest winners beyond the limit are forgotten.
    pub(super) fn limit_winners(&mut self) -> Result<(), Unwritten> {
        let excess = self.winners.len().saturating_sub(self.limits.completions_max);
        if excess > 0 && !self.is_stalled() {
            let written = self.record(SpaceClass::Drain);
            self.or_pause(written)?;
            if self.is_stalled() {
                return Ok(());
            }
            // One more per thousand, so that large numbers of them need fewer records.
            let share = self.limits.completions_max.div_ceil(1_024);
            self.winners.drain(..excess.max(share));
            self.plan_sweep(SweepKind::Winners);
        }
        Ok(())
    }
}
