//! One atomic step: a message done, its effect ended, the next messages stored.

use std::sync::Arc;

use driftq_core::command::{Complete, Produce, TokenClaim};
use driftq_core::idempotency::EffectStatus;
use driftq_core::reply::StepOutput;
use driftq_core::types::{GroupId, LeaseToken, Offset, PartitionId, Timestamp, TopicId};
use driftq_core::{Refusal, Reply};

use super::model::{Model, Stop};
use super::produce::Weighed;
use super::timers::Swept;

/// The answer of a step that was completed.
#[derive(Clone, Debug)]
pub(super) struct Step {
    token: LeaseToken,
    message: (TopicId, GroupId, PartitionId, Offset),
    produced: Arc<[StepOutput]>,
    pub(super) until: Timestamp,
}

impl Model {
    pub(super) fn complete(&mut self, asked: &Complete) -> Result<Reply, Stop> {
        self.check_result(asked.result.as_deref())?;
        let (len, max) = (asked.produce.len() as u64, self.limits.outputs_max as u64);
        if len > max {
            return Err(Refusal::TooMany { what: "messages", len, max }.into());
        }
        if let Some(answer) = self.answered(asked) {
            return Ok(Reply::Completed(answer));
        }
        let place = self.claimed(&asked.claim)?;
        let TokenClaim::Shown(token) = asked.claim.token else { return Err(Refusal::StaleLease.into()) };
        let Some((t, g, m)) = place else { return Err(Refusal::StaleLease.into()) };
        let known = self.identity_of((t, g, m)).and_then(|identity| self.effect(&identity));
        let failed = known.is_some_and(|at| self.effects[at].status == EffectStatus::FailedFinal);
        if asked.result.is_some() && failed {
            return Err(Refusal::OtherOutcome.into());
        }

        let before = (self.topics.clone(), self.scopes.clone(), self.sweeps.clone());
        let produced = match self.put_all(&asked.produce).map_err(Stop::from).and_then(|all| Ok((self.record()?, all)))
        {
            Ok(((), produced)) => produced,
            Err(stop) => {
                (self.topics, self.scopes, self.sweeps) = before;
                return Err(stop);
            }
        };
        self.conclude((t, g, m), asked.result.as_ref());
        self.finish(t, g, m);
        let (topic, group) = (self.topics[t].id, self.topics[t].groups[g].id);
        let message = (topic, group, asked.claim.partition, asked.claim.offset);
        let until = self.now.after(self.limits.completion_ttl);
        self.steps.push(Step { token, message, produced: produced.clone(), until });
        self.plan_sweep(Swept::Steps);
        if self.steps.len() > self.limits.completions_max {
            self.record()?;
            self.steps.remove(0);
        }
        Ok(Reply::Completed(produced))
    }

    /// What the very same step was answered before, as long as that is kept.
    fn answered(&self, asked: &Complete) -> Option<Arc<[StepOutput]>> {
        let TokenClaim::Shown(token) = asked.claim.token else { return None };
        let (t, g) = self.group(&asked.claim.topic, &asked.claim.group).ok()?;
        let (topic, group) = (self.topics[t].id, self.topics[t].groups[g].id);
        let message = (topic, group, asked.claim.partition, asked.claim.offset);
        let same = |step: &&Step| step.token == token && step.message == message && self.now < step.until;
        self.steps.iter().find(same).map(|step| step.produced.clone())
    }

    /// Stores all messages of a step, each as if those before were stored already.
    fn put_all(&mut self, messages: &[Produce]) -> Result<Arc<[StepOutput]>, Refusal> {
        let mut outputs = Vec::new();
        for message in messages {
            let at = match self.weigh(message)? {
                Weighed::Known(first) => first,
                Weighed::New(new) => self.put(message, *new),
            };
            outputs.push(StepOutput {
                topic: message.topic.clone(),
                partition: at.partition,
                offset: at.offset,
                duplicate: at.duplicate,
            });
        }
        Ok(outputs.into())
    }
}
