//! Complete: the message acked, its effect ended and the next messages stored, in one record.

use std::sync::Arc;

use driftq_core::command::{Complete, Produce, TokenClaim};
use driftq_core::reply::StepOutput;
use driftq_core::types::{DeadReason, EffectStatus, Lsn, TopicName};
use driftq_core::{Refusal, Reply, SpaceClass};

use super::model::{CompletedStep, Model, Stop, SweepKind, Unwritten};
use super::produce::ProduceDecision;

impl Model {
    pub(super) fn complete(&mut self, complete: &Complete) -> Result<Reply, Stop> {
        self.check_result(complete.result.as_deref())?;
        if let Some(error) = &complete.failed {
            self.check_error(error)?;
        }
        let (len, max) = (complete.produce.len() as u64, self.limits.outputs_max as u64);
        if len > max {
            return Err(Refusal::TooMany { what: "messages", len, max }.into());
        }
        if let Some(outputs) = self.kept_reply(complete) {
            return Ok(Reply::Completed(outputs));
        }
        let index = self.claimed_message(&complete.claim)?;
        let TokenClaim::Shown(token) = complete.claim.token else { return Err(Refusal::StaleLease.into()) };
        let Some((t, g, m)) = index else { return Err(Refusal::StaleLease.into()) };
        if complete.failed.is_some() {
            self.check_dead_letter_source((t, g, m))?;
        }
        let effect = self.identity_of((t, g, m)).and_then(|identity| self.effect(&identity));
        let status = effect.map(|at| self.effects[at].status);
        let contradicts = match status {
            Some(EffectStatus::FailedFinal) => complete.result.is_some(),
            Some(EffectStatus::Succeeded) => complete.failed.is_some(),
            _ => false,
        };
        if contradicts {
            return Err(Refusal::OtherOutcome.into());
        }

        let before = (self.topics.clone(), self.scopes.clone(), self.sweeps.clone());
        let produced =
            match self.store_all(&complete.claim.topic, &complete.produce).map_err(Stop::from).and_then(|outputs| {
                let stores = outputs.iter().any(|output| !output.duplicate);
                let class = if stores { SpaceClass::Growth } else { SpaceClass::Drain };
                Ok((self.record(class)?, outputs))
            }) {
                Ok(((), produced)) => produced,
                Err(stop) => {
                    (self.topics, self.scopes, self.sweeps) = before;
                    if let Stop::Refused(refusal) = &stop {
                        self.note_refusal(refusal);
                    }
                    return Err(stop);
                }
            };
        for (message, output) in complete.produce.iter().zip(&*produced) {
            let has_key = message.envelope.idempotency_key.as_ref().is_some_and(|key| !key.is_empty());
            if has_key && !output.duplicate {
                let meant = message.envelope.target_topic.clone().unwrap_or_else(|| message.topic.clone());
                self.plan_sweep(SweepKind::Identities((message.topic.clone(), meant)));
            }
        }
        // A skipped output may have displaced retained messages before it.
        let m = self.topics[t].message(complete.claim.offset).unwrap_or(m);
        match &complete.failed {
            Some(given) => {
                let known = self.attempted_mut((t, g, m)).error.clone();
                let error = if given.is_empty() { known.as_str() } else { given };
                self.answered_by_stream((t, g, m), true);
                self.fail_effect((t, g, m), complete.result.as_ref(), error);
                self.store_dead_letter((t, g, m), DeadReason::NonRetryable, error);
            }
            None => {
                self.acked_by_stream((t, g, m));
                self.complete_effect((t, g, m), complete.result.as_ref());
                if self.contested((t, g, m)).is_some() {
                    self.remember_winner((t, g, m), Some(token));
                }
                self.topics[t].groups[g].has_acked = true;
                self.mark_acked(t, g, m);
            }
        }
        let (topic, group) = (self.topics[t].id, self.topics[t].groups[g].id);
        let message = (topic, group, complete.claim.partition, complete.claim.offset);
        let until = self.now.after(self.limits.completion_ttl);
        let at = self.steps.partition_point(|other| other.until <= until);
        self.steps.insert(at, CompletedStep { token, message, produced: produced.clone(), until });
        self.plan_sweep(SweepKind::Steps);
        if self.steps.len() > self.limits.completions_max {
            // If the log refuses it, the next step tries again.
            match self.record(SpaceClass::Drain) {
                Err(Unwritten::NoRoom(_)) => {}
                written => {
                    written?;
                    let share = self.limits.completions_max.div_ceil(1_024).max(1);
                    self.steps.drain(..share.min(self.steps.len()));
                    self.plan_sweep(SweepKind::Steps);
                }
            }
        }
        Ok(Reply::Completed(produced))
    }

    /// The reply to an earlier completion of the same step, as long as it is kept.
    fn kept_reply(&self, complete: &Complete) -> Option<Arc<[StepOutput]>> {
        let TokenClaim::Shown(token) = complete.claim.token else { return None };
        let (t, g) = self.group(&complete.claim.topic, &complete.claim.group).ok()?;
        let (topic, group) = (self.topics[t].id, self.topics[t].groups[g].id);
        let message = (topic, group, complete.claim.partition, complete.claim.offset);
        let same = |step: &&CompletedStep| step.token == token && step.message == message && self.now < step.until;
        self.steps.iter().find(same).map(|step| step.produced.clone())
    }

    /// Stores all outputs of a step, each as if the previous ones were stored.
    fn store_all(&mut self, of: &TopicName, messages: &[Produce]) -> Result<Arc<[StepOutput]>, Refusal> {
        let mut outputs = Vec::new();
        for message in messages {
            if message.topic.tenant() != of.tenant() {
                return Err(Refusal::UnknownTopic(message.topic.clone()));
            }
            let produced = match self.decide_produce(message)? {
                ProduceDecision::Duplicate(first) => first,
                ProduceDecision::NewMessage(new) => self.store_message(message, *new, Lsn(self.records + 1)),
            };
            outputs.push(StepOutput {
                topic: message.topic.clone(),
                partition: produced.partition,
                offset: produced.offset,
                duplicate: produced.duplicate,
                already_done: produced.already_done,
            });
        }
        Ok(outputs.into())
    }
}
