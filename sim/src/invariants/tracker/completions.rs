//! What is known of completed steps: what they were answered, what they made, and which of them a crash may have torn.

use std::sync::Arc;

use driftq_core::command::{Complete, Produce, StoreCommand, TokenClaim};
use driftq_core::reply::{Overload, Produced, RouterUse, StepOutput};
use driftq_core::state::State;
use driftq_core::state::topic::Topic;
use driftq_core::types::*;
use driftq_core::{Command, Refusal, Reply};

use super::model::{Asked, Known, claim, number};
use super::observer::{Observer, identity};
use crate::coverage::Point;
use crate::invariants::completion::*;
use crate::invariants::verdict::Verdict;

/// A step that was decided when the power went.
#[derive(Clone, Debug)]
pub(crate) struct Torn {
    asked: Asked,
    /// Its record was found again.
    survived: bool,
}

impl Observer {
    /// What there is of a step right after it was decided; the messages it made are looked for when it is answered.
    pub(super) fn traces(&self, state: &State, asked: &Asked) -> Option<Traces> {
        let Command::Complete(complete) = &asked.command else { return None };
        let offset = complete.claim.offset;
        let known = self.topics.get(&asked.topic?)?.known.get(&offset)?;
        let group = state.topic(asked.topic?)?.group(asked.group?)?;
        let done = group.progress(known.partition)?.done().contains(known.position);
        let effect = self.identity_at(asked, offset).map(|identity| state.store().get(&identity));
        let ended = effect.map(|effect| effect.is_some_and(|effect| effect.committed && effect.status.is_final()));
        Some(Traces { done, ended, missing: 0, stored: 0 })
    }

    pub(super) fn step_answered(&mut self, asked: &Asked, complete: &Complete, reply: &Reply) -> Verdict {
        let (Reply::Completed(outputs), TokenClaim::Shown(token)) = (reply, complete.claim.token) else {
            return Ok(());
        };
        match asked.rightful {
            Some(true) => self.step_completed(asked, complete, outputs)?,
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

    fn step_completed(&mut self, asked: &Asked, complete: &Complete, outputs: &Arc<[StepOutput]>) -> Verdict {
        let mut missing = 0;
        for (output, produce) in outputs.iter().zip(&complete.produce) {
            let StepOutput { partition, offset, duplicate, .. } = *output;
            self.coverage.hit_if(duplicate, Point::StepOutputDuplicate);
            let produced = Produced { partition, offset, duplicate, router: RouterUse::NotAsked };
            self.accepted(asked.at, produce, &produced)?;
            if duplicate {
                continue;
            }
            let number = number(&produce.value).unwrap_or_default();
            let stored = self.stored(number).count();
            let may_be_missing = asked.skips > 0 && identity(produce).is_some();
            output_stored_once(number, stored, may_be_missing)?;
            missing += usize::from(stored == 0 && !may_be_missing);
            self.stored(number).for_each(|known| known.released = true);
        }
        match asked.step {
            Some(traces) => step_is_atomic(Traces { missing, ..traces }),
            None => Ok(()),
        }
    }

    /// A step was refused: nothing of it is there, unless it was completed before.
    pub(super) fn step_refused(&mut self, complete: &Complete, refusal: &Refusal) -> Verdict {
        let TokenClaim::Shown(token) = complete.claim.token else { return Ok(()) };
        let full = matches!(refusal, Refusal::Overloaded { reason: Overload::Backlog, .. });
        self.coverage.hit_if(full, Point::StepRefused);
        let forgotten = *refusal == Refusal::StaleLease && self.steps.contains_key(&token);
        self.coverage.hit_if(forgotten, Point::StepExpired);
        if self.steps.contains_key(&token) || self.perhaps.contains(&token) {
            return Ok(());
        }
        let numbers: Vec<u64> = complete.produce.iter().filter_map(|produce| number(&produce.value)).collect();
        refused_step_leaves_nothing(numbers.iter().map(|number| self.stored(*number).count()).sum())
    }

    /// Messages that a produce of this number has made, gone ones included.
    fn stored(&mut self, number: u64) -> impl Iterator<Item = &mut Known> {
        let all = self.topics.values_mut().flat_map(|book| book.known.values_mut());
        all.filter(move |known| {
            known.number == number && {
                let meta = known.body.metadata();
                meta.dead_letter.is_none() && meta.redrive.is_none()
            }
        })
    }

    /// A message is stored that a step was to make: no other of its name is.
    pub(super) fn made(&mut self, number: u64) -> Verdict {
        if !self.to_be_made.contains(&number) {
            return Ok(());
        }
        output_stored_once(number, self.stored(number).count(), false)
    }

    /// The power went while a step was decided, and the log was found to reach to `last`.
    pub(super) fn tear(&mut self, asked: &Asked, last: Lsn) {
        let (Command::Complete(complete), true) = (&asked.command, asked.after > asked.before) else { return };
        if asked.rightful != Some(true) {
            return;
        }
        let survived = asked.before < last;
        if let (TokenClaim::Shown(token), true) = (complete.claim.token, survived) {
            self.perhaps.insert(token);
        }
        self.torn.push(Torn { asked: asked.clone(), survived });
    }

    /// A step whose answer was lost in a crash is there, or it is not.
    pub(super) fn mended(&mut self, state: &State) -> Verdict {
        for torn in std::mem::take(&mut self.torn) {
            let Command::Complete(complete) = &torn.asked.command else { continue };
            let is_there = |produce: &Produce| {
                let mut messages = state.topics().flat_map(Topic::partitions).flat_map(|(_, p)| p.messages());
                messages.any(|(_, message)| *message.body.value() == *produce.value)
            };
            let stored = complete.produce.iter().filter(|produce| is_there(produce)).count();
            if !torn.survived {
                refused_step_leaves_nothing(stored)?;
            } else if let Some(traces) = self.traces(state, &torn.asked) {
                // One with an identity may be a duplicate or have been skipped, and a deadline may have passed.
                let plain = |produce: &&Produce| identity(produce).is_none() && produce.envelope.deadline.is_none();
                let missing = complete.produce.iter().filter(plain).filter(|produce| !is_there(produce)).count();
                // Its effect may have been forgotten since.
                let effect = self.identity_at(&torn.asked, complete.claim.offset);
                let is_known = effect.is_some_and(|effect| state.store().get(&effect).is_some());
                let ended = traces.ended.filter(|_| is_known);
                step_is_atomic(Traces { ended, missing, stored, ..traces })?;
            }
        }
        Ok(())
    }
}

/// Whether a command may have undone what a step did before it.
pub(super) fn undoes(asked: &Asked) -> bool {
    let forgets = |asked: &StoreCommand| matches!(asked, StoreCommand::Forget { .. });
    match &asked.command {
        Command::Seek { .. } | Command::DeleteTopic { .. } | Command::DeleteGroup { .. } => true,
        Command::Store(asked) => forgets(asked),
        _ => false,
    }
}

/// Whether a worker's word was certain to count, or certain not to; nobody can say where timers were due.
pub(super) fn rightful(command: &Command, quiet: bool, worthless: bool) -> Option<bool> {
    claim(command).filter(|_| quiet).map(|_| !worthless)
}
