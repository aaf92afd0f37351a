//! One atomic step: a message done, its effect ended, the next messages stored.

use std::sync::Arc;

use super::produce::{Pending, produce_after};
use super::settle::{ClaimStatus, claim_status, has_identity};
use super::{Decision, DecisionContext, check_len};
use crate::command::{Complete, TokenClaim};
use crate::faults::Faults;
use crate::record::{Completed, EffectConclusion, Event, Produced, Stored};
use crate::reply::{self, Refusal, Reply};
use crate::state::State;
use crate::types::{Effect, EffectStatus, MessageRef, StepOutput, Timestamp, TopicName};

/// Decides a complete. What `asked` would produce is used up.
pub(crate) fn complete<F: Faults>(context: &DecisionContext<'_, F>, asked: &mut Complete) -> Result<Decision, Refusal> {
    let (limits, now) = (context.limits, context.now);
    check_len("result", asked.result.as_ref().map_or(0, |result| result.len()), limits.result_bytes_max)?;
    if asked.produce.len() > limits.outputs_max {
        let (len, max) = (asked.produce.len() as u64, limits.outputs_max as u64);
        return Err(Refusal::TooMany { what: "messages", len, max });
    }
    // Whatever has become of the message since, a seek included: who has won is told so.
    if let Some(answer) = answered(context.state, now, asked) {
        return Ok(Decision::reply_only(Reply::Completed(answer)));
    }
    let claim_status = claim_status(context, &asked.claim)?;
    let TokenClaim::Shown(token) = asked.claim.token else { return Err(Refusal::StaleLease) };
    let ClaimStatus::Current(message_ref, _) = claim_status else { return Err(Refusal::StaleLease) };
    let effect = conclude(context, &message_ref, asked)?;
    let mut pending = Pending::default();
    let mut outputs = Vec::with_capacity(asked.produce.len());
    for message in &mut asked.produce {
        let topic = message.topic.clone();
        let decision = produce_after(context, &pending, message)?;
        if let Some(event) = &decision.event {
            pending.add(event);
        }
        outputs.push(output(topic, decision));
    }
    let step = Completed { message_ref, token, until: now.after(limits.completion_ttl), effect, outputs };
    let reply = Reply::Completed(step.reply());
    Ok(Decision::new(Event::Completed(Box::new(step)), reply))
}

/// The answer this very step was given before.
fn answered(state: &State, now: Timestamp, asked: &Complete) -> Option<Arc<[StepOutput]>> {
    let TokenClaim::Shown(token) = asked.claim.token else { return None };
    let completion = state.completions().get(token, now)?;
    let topic = state.topic_named(&asked.claim.topic)?;
    let group = topic.group_named(&asked.claim.group)?;
    let same = (
        completion.message_ref.topic,
        completion.message_ref.group,
        completion.message_ref.partition,
        completion.offset,
    ) == (topic.id(), group.id(), asked.claim.partition, asked.claim.offset);
    same.then(|| completion.produced.clone())
}

/// How the step leaves the effect of its message, if it has one.
fn conclude<F: Faults>(
    context: &DecisionContext<'_, F>,
    message_ref: &MessageRef,
    asked: &Complete,
) -> Result<Option<EffectConclusion>, Refusal> {
    let DecisionContext { state, limits, now, .. } = *context;
    if !has_identity(state, message_ref) {
        return Ok(None);
    }
    let topic = state.topic(message_ref.topic).expect("a delivery is of a topic");
    let body = &super::failure::message(topic, message_ref).body;
    let known = state.effect_of(&asked.claim.topic, &asked.claim.group, body, now);
    // A result that nobody would ever be handed must not seem to be stored.
    let failed = |effect: &Effect| effect.finished && effect.status == EffectStatus::FailedFinal;
    if asked.result.is_some() && known.is_some_and(failed) {
        return Err(Refusal::OtherOutcome);
    }
    Ok(Some(EffectConclusion { result: asked.result.clone(), window: limits.effect_ttl }))
}

fn output(requested_topic: TopicName, decision: Decision) -> Produced {
    let Reply::Produced(reply::Produced { partition, offset, .. }) = decision.reply else {
        unreachable!("a produce is answered by a message_ref")
    };
    let stored = decision.event.map(|event| match event {
        Event::Produced { topic, dedupe, body, .. } => Stored { topic, dedupe, body },
        other => unreachable!("a produce stores a message: {other:?}"),
    });
    Produced { requested_topic, partition, offset, stored }
}
