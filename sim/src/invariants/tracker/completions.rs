//! Completed steps: their replies, their outputs, and those that a crash may have torn.

use std::sync::Arc;

use driftq_core::command::{
    Complete, DeleteGroup, DeleteTopic, Forget, Produce, Purge, Seek, StoreCommand, TokenClaim,
};
use driftq_core::reply::{Overload, Produced, RouterUse, StepOutput};
use driftq_core::state::{State, Topic};
use driftq_core::types::*;
use driftq_core::{Command, Refusal, Reply};

use super::model::{PendingCommand, StepEvidence, StoredMessage, TornStep, dedupe_key, done_identity, number};
use super::state::Tracker;
use crate::coverage::Point;
use crate::invariants::completion::*;
use crate::invariants::verdict::Verdict;

impl Tracker {
    /// Which parts of a step exist right after the decision; its outputs are counted with the reply.
    pub(super) fn evidence(&self, state: &State, pending: &PendingCommand) -> Option<StepEvidence> {
        let Command::Complete(complete) = &pending.command else { return None };
        let offset = complete.claim.offset;
        let known = self.topics.get(&pending.topic?)?.messages.get(&offset)?;
        let group = state.topic(pending.topic?)?.group(pending.group?)?;
        let done = group.progress(known.partition)?.acked().contains(known.position);
        let effect = self.identity_at(pending, offset).map(|identity| state.store().get(&identity));
        let identity = self.produced_messages.get(&known.number).and_then(done_identity);
        let model = self.groups.get(&(pending.topic?, pending.group?));
        let may_be_done = identity.is_none_or(|(tenant, key, _)| {
            model.is_none_or(|model| model.done.iter().any(|done| (&done.0, &done.1) == (&tenant, &key)))
        });
        let has_ended = |effect: &Effect| match complete.failed {
            None => effect.committed && effect.status.is_final(),
            // Only an ack of another message of the identity can have committed it.
            Some(_) => effect.status == EffectStatus::FailedFinal && (!effect.committed || may_be_done),
        };
        let ended = effect.map(|effect| effect.is_some_and(has_ended));
        let grant = effect.flatten().and_then(|effect| effect.token);
        Some(StepEvidence { done, ended, grant, missing: 0, stored: 0 })
    }

    pub(super) fn step_replied(&mut self, pending: &PendingCommand, complete: &Complete, reply: &Reply) -> Verdict {
        let (Reply::Completed(outputs), TokenClaim::Shown(token)) = (reply, complete.claim.token) else {
            return Ok(());
        };
        match pending.claim_is_valid {
            Some(true) => self.step_completed(pending, complete, outputs)?,
            Some(false) => {
                step_reply_repeats(self.steps.get(&token), outputs)?;
                self.coverage.hit(Point::StepRepeated);
                self.coverage.hit_if(token.boot < self.boot, Point::StepRepeatedAfterCrash);
            }
            None => {}
        }
        self.steps.insert(token, outputs.clone());
        Ok(())
    }

    fn step_completed(
        &mut self,
        pending: &PendingCommand,
        complete: &Complete,
        outputs: &Arc<[StepOutput]>,
    ) -> Verdict {
        let mut missing = 0;
        for (output, produce) in outputs.iter().zip(&complete.produce) {
            let StepOutput { partition, offset, duplicate, already_done, .. } = *output;
            self.coverage.hit_if(duplicate, Point::StepOutputDuplicate);
            let produced = Produced { partition, offset, duplicate, already_done, router: RouterUse::NoDecision };
            self.accepted(pending.at, produce, &produced)?;
            if duplicate {
                continue;
            }
            let number = number(produce.value()).unwrap_or_default();
            let stored = self.stored(number).count();
            self.coverage.hit_if(already_done, Point::StepOutputSkipped);
            output_stored_once(number, stored, already_done)?;
            missing += usize::from(stored == 0 && !already_done);
            self.stored(number).for_each(|known| known.acknowledged = true);
        }
        match pending.step {
            Some(evidence) => step_is_atomic(StepEvidence { missing, ..evidence }),
            None => Ok(()),
        }
    }

    /// A refused step leaves nothing, unless it was completed before.
    pub(super) fn step_refused(&mut self, complete: &Complete, refusal: &Refusal) -> Verdict {
        let TokenClaim::Shown(token) = complete.claim.token else { return Ok(()) };
        let is_full = matches!(refusal, Refusal::Overloaded { reason: Overload::Backlog, .. });
        self.coverage.hit_if(is_full, Point::StepRefused);
        let has_expired = *refusal == Refusal::StaleLease && self.steps.contains_key(&token);
        self.coverage.hit_if(has_expired, Point::StepExpired);
        if self.steps.contains_key(&token) || self.maybe_completed.contains(&token) {
            return Ok(());
        }
        let numbers: Vec<u64> = complete.produce.iter().filter_map(|produce| number(produce.value())).collect();
        refused_step_leaves_nothing(numbers.iter().map(|number| self.stored(*number).count()).sum())
    }

    /// Messages with this number, trimmed ones included.
    fn stored(&mut self, number: u64) -> impl Iterator<Item = &mut StoredMessage> {
        let all = self.topics.values_mut().flat_map(|model| model.messages.values_mut());
        all.filter(move |known| {
            known.number == number && {
                let meta = known.body.metadata();
                meta.dead_letter.is_none() && meta.redrive.is_none()
            }
        })
    }

    /// An output of a step was stored: it must be the only one with its number.
    pub(super) fn output_stored(&mut self, number: u64) -> Verdict {
        if !self.expected_outputs.contains(&number) {
            return Ok(());
        }
        output_stored_once(number, self.stored(number).count(), false)
    }

    /// The broker crashed while the step was pending, and recovery found the log to end at `last`.
    pub(super) fn note_torn(&mut self, pending: &PendingCommand, last: Lsn) {
        let (Command::Complete(complete), true) = (&pending.command, pending.after > pending.before) else { return };
        if pending.claim_is_valid != Some(true) {
            return;
        }
        let is_recovered = pending.before < last;
        if let (TokenClaim::Shown(token), true) = (complete.claim.token, is_recovered) {
            self.maybe_completed.insert(token);
        }
        self.torn.push(TornStep { command: pending.clone(), is_recovered });
    }

    /// A step whose reply was lost in a crash is complete or left nothing.
    pub(super) fn check_torn(&mut self, state: &State) -> Verdict {
        for torn in std::mem::take(&mut self.torn) {
            let Command::Complete(complete) = &torn.command.command else { continue };
            let is_stored = |produce: &Produce| {
                let mut messages = state.topics().flat_map(Topic::partitions).flat_map(|(_, p)| p.messages());
                messages.any(|(_, message)| {
                    self.payloads.get(&message.payload.id).is_some_and(|body| *body.value() == *produce.value())
                })
            };
            let stored = complete.produce.iter().filter(|produce| is_stored(produce)).count();
            if !torn.is_recovered {
                refused_step_leaves_nothing(stored)?;
            } else if let Some(evidence) = self.evidence(state, &torn.command) {
                // An output with an identity may be a duplicate or skipped, and a deadline may have passed.
                let plain = |produce: &&Produce| dedupe_key(produce).is_none() && produce.envelope.deadline.is_none();
                let missing = complete.produce.iter().filter(plain).filter(|produce| !is_stored(produce)).count();
                // Its effect may have expired since, and may have been granted again.
                let effect = self.identity_at(&torn.command, complete.claim.offset);
                let is_known = effect.is_some_and(|effect| state.store().get(&effect).is_some())
                    && torn.command.step.is_none_or(|then| then.grant == evidence.grant);
                let ended = evidence.ended.filter(|_| is_known);
                step_is_atomic(StepEvidence { ended, missing, stored, ..evidence })?;
            }
        }
        Ok(())
    }
}

/// Whether a command may have undone an earlier step.
pub(super) fn may_undo_step(pending: &PendingCommand) -> bool {
    match &pending.command {
        Command::Seek(Seek { .. })
        | Command::Purge(Purge { .. })
        | Command::DeleteTopic(DeleteTopic { .. })
        | Command::DeleteGroup(DeleteGroup { .. }) => true,
        Command::Store(store) => matches!(**store, StoreCommand::Forget(Forget { .. })),
        _ => false,
    }
}
