//! Syncs that release deliveries and grants, and deliveries that never left.

use driftq_core::command::{Claim, TokenClaim};
use driftq_core::types::{ConsumerId, EffectStatus, Identity, LeaseToken, Millis, Now, Timestamp};
use driftq_core::{Refusal, Reply, SpaceClass};

use super::lease::{BegunBy, Runs};
use super::model::{MessageIndex, Model, Stop, Unwritten};
use super::topic::{Attempted, Phase, Progress};

impl Model {
    /// A lease that begins with the newest record.
    pub(super) fn runs_from_now(&self, lease: Millis, begun_by: BegunBy) -> Runs {
        Runs::From { record: self.records, lease, begun_by }
    }

    /// The first `durable` records are synced since `now`: deliveries and grants among them have left, except for the
    /// deliveries that wait for bytes.
    pub(super) fn synced(&mut self, now: Now, durable: u64, waiting: &[LeaseToken]) {
        self.advance_broker_time(now);
        let now = self.now;
        let mut has_released = false;
        for progress in self.topics.iter_mut().flat_map(|topic| &mut topic.groups).flat_map(|group| &mut group.progress)
        {
            if let Progress::Attempted(Attempted { token, phase: Phase::Leased { runs, .. }, .. }) = progress {
                let waits = matches!(runs, Runs::From { begun_by: BegunBy::Delivery, .. }) && waiting.contains(token);
                has_released |= !waits && runs.release(now, durable);
            }
        }
        for effect in &mut self.effects {
            has_released |= effect.runs.release(now, durable);
        }
        if has_released {
            self.expect_at(Timestamp(0));
        }
    }

    /// The deliveries to a stream that are not durable yet are taken back, oldest first. Those for which the log has no
    /// space leave.
    pub(super) fn withdraw_unreleased(&mut self, stream: ConsumerId) -> Result<(), Unwritten> {
        for message in self.unanswered_by(stream) {
            let Some(index) = self.index_of(message) else { continue };
            if self.unreleased_to(index) == Some(stream) {
                match self.withdraw_unreleased_delivery(index) {
                    Err(Unwritten::NoRoom(_)) => return Ok(()),
                    written => written?,
                }
            }
        }
        Ok(())
    }

    /// The stream of the newest delivery of a message, if the delivery is not durable yet.
    pub(super) fn unreleased_to(&self, (t, g, m): MessageIndex) -> Option<ConsumerId> {
        let Progress::Attempted(attempted) = &self.topics[t].groups[g].progress[m] else { return None };
        match attempted.phase {
            Phase::Leased { holder, runs: Runs::From { begun_by: BegunBy::Delivery, .. }, .. } => Some(holder),
            _ => None,
        }
    }

    /// Takes back a delivery that is not durable yet.
    pub(super) fn withdraw_unreleased_delivery(&mut self, index: MessageIndex) -> Result<(), Unwritten> {
        let (token, holder) = (self.attempted_mut(index).token, self.unreleased_to(index));
        self.withdraw_delivery(index)?;
        for stream in self.streams.iter_mut().filter(|stream| Some(stream.id) == holder) {
            stream.deliveries_left = stream.deliveries_left.map(|left| left + 1);
        }
        self.drop_delivery(token);
        Ok(())
    }

    pub(super) fn withdraw(&mut self, claim: &Claim) -> Result<Reply, Stop> {
        if claim.token == TokenClaim::Absent {
            return Err(Refusal::Invalid("a withdrawal needs the lease token of the delivery").into());
        }
        if let Some(index) = self.claimed_message(claim)?
            && let Phase::Leased { .. } = self.attempted_mut(index).phase
        {
            self.withdraw_delivery(index)?;
        }
        Ok(Reply::Success)
    }

    /// One record takes back the newest delivery of a message.
    fn withdraw_delivery(&mut self, index: MessageIndex) -> Result<(), Unwritten> {
        self.requeue(index)?;
        let attempted = self.attempted_mut(index);
        attempted.attempts -= 1;
        if attempted.attempts == 0 {
            let (t, g, m) = index;
            self.topics[t].groups[g].progress[m] = Progress::Ready;
        }
        self.drop_ended_entries();
        Ok(())
    }

    /// Grants that still run keep the record of their effect.
    pub(super) fn renew_overrunning_grants(&mut self) -> Result<(), Unwritten> {
        while !self.is_stalled() {
            let all = (0..self.effects.len()).filter(|at| self.is_overrun(*at));
            let Some(at) = all.min_by_key(|at| (self.effects[*at].expires_at, self.effects[*at].token)) else {
                return Ok(());
            };
            let written = self.record(SpaceClass::Churn);
            self.or_pause(written)?;
            if !self.is_stalled() {
                self.keep_effect(at);
            }
        }
        Ok(())
    }

    /// Whether the grant of an effect is to be renewed: nothing is decided about the effect before.
    pub(super) fn awaits_renewal(&self, identity: &Identity) -> bool {
        let known = self.effects.iter().position(|effect| effect.identity == *identity);
        known.is_some_and(|at| self.is_overrun(at))
    }

    /// Whether an effect has expired in the record although its grant runs.
    fn is_overrun(&self, at: usize) -> bool {
        let effect = &self.effects[at];
        effect.status == EffectStatus::InProgress && effect.expires_at <= self.now && !effect.runs.has_ended(self.now)
    }

    fn keep_effect(&mut self, at: usize) {
        let until = match self.effects[at].runs {
            Runs::Until(end) => end,
            Runs::From { lease, .. } => self.now.after(lease),
        };
        self.set_lease(at, until);
    }
}
