//! Decides complete: acks or dead-letters a message, finishes its effect and produces messages, atomically.

use std::sync::Arc;

use super::dead_letter::{check_source, slot};
use super::produce::{Pending, produce_after, router_use};
use super::settle::{ClaimStatus, claim_status, has_identity, is_contested};
use super::{Decision, DecisionContext, check_len, check_tenant};
use crate::command::{Complete, TokenClaim};
use crate::faults::Faults;
use crate::record::{Completed, EffectConclusion, Event, Produced, StepResult, Stored};
use crate::reply::{self, Refusal, Reply, RouterUse};
use crate::state::State;
use crate::types::{Effect, EffectStatus, IdentityKey, MessageRef, StepOutput, Text, Timestamp, TopicName};

/// Decides a complete. Takes the metadata out of the messages in `request`.
pub(crate) fn complete<F: Faults>(
    context: &DecisionContext<'_, F>,
    request: &mut Complete,
) -> Result<Decision, Refusal> {
    let (limits, now) = (context.limits, context.now);
    check_len("result", request.result.as_ref().map_or(0, |result| result.len()), limits.result_bytes_max)?;
    check_len("last_error", request.failed.as_ref().map_or(0, |error| error.len()), limits.error_text_bytes_max)?;
    if request.produce.len() > limits.outputs_max {
        let (len, max) = (request.produce.len() as u64, limits.outputs_max as u64);
        return Err(Refusal::TooMany { what: "messages", len, max });
    }
    // A retry gets the stored reply whatever happened to the message since, a seek included.
    if let Some(reply) = stored_reply(context.state, now, request) {
        return Ok(Decision::reply_only(Reply::Completed(reply)));
    }
    let claim_status = claim_status(context, &request.claim)?;
    let TokenClaim::Shown(token) = request.claim.token else { return Err(Refusal::StaleLease) };
    let ClaimStatus::Current(message_ref, delivery, progress) = claim_status else { return Err(Refusal::StaleLease) };
    if request.failed.is_some() {
        check_source(context.state, &message_ref)?;
    }
    let effect = conclude(context, &message_ref, request)?;
    let mut pending = Pending::new();
    let mut outputs = Vec::with_capacity(request.produce.len());
    for message in &mut request.produce {
        let topic = message.topic.clone();
        check_tenant(&request.claim.topic, &topic)?;
        let decision = produce_after(context, &pending, message)?;
        if let Some(event) = decision.event() {
            pending.add(event);
        }
        outputs.push(output(topic, decision));
    }
    let (until, is_contested) = (now.after(limits.completion_ttl), is_contested(&message_ref, delivery, progress));
    let dead_letter = request.failed.as_ref().map(|error| {
        let last_error = if error.is_empty() { Text::from(delivery.last_error.as_str()) } else { error.clone() };
        let mut slot = slot(context.state, &message_ref, last_error);
        // The outputs are stored first.
        slot.offset.0 += pending.messages(slot.topic);
        slot
    });
    let step = Completed { message_ref, token, until, is_contested, effect, outputs, dead_letter };
    let reply = Reply::Completed(step.reply());
    Ok(Decision::new(Event::Completed(Box::new(step)), reply))
}

/// What becomes of the router's decision about each output of a step; `None` for a step whose reply is stored.
pub(crate) fn router_uses(state: &State, now: Timestamp, request: &Complete) -> Option<Vec<RouterUse>> {
    let uses = || request.produce.iter().map(|output| router_use(state, output)).collect();
    stored_reply(state, now, request).is_none().then(uses)
}

/// The stored reply to the same step.
fn stored_reply(state: &State, now: Timestamp, request: &Complete) -> Option<Arc<[StepOutput]>> {
    let TokenClaim::Shown(token) = request.claim.token else { return None };
    let completion = state.completions().get(token, now)?;
    let topic = state.topic_named(&request.claim.topic)?;
    let group = topic.group_named(&request.claim.group)?;
    let same = (
        completion.message_ref.topic,
        completion.message_ref.group,
        completion.message_ref.partition,
        completion.offset,
    ) == (topic.id(), group.id(), request.claim.partition, request.claim.offset);
    same.then(|| completion.produced.clone())
}

/// How the step ends the effect of its message; `None` if the message has no idempotency key.
fn conclude<F: Faults>(
    context: &DecisionContext<'_, F>,
    message_ref: &MessageRef,
    request: &Complete,
) -> Result<Option<EffectConclusion>, Refusal> {
    let DecisionContext { state, limits, now, .. } = *context;
    if !has_identity(state, message_ref) {
        return Ok(None);
    }
    let topic = state.topic(message_ref.topic).expect("a delivery belongs to a topic");
    let message = super::failure::message(topic, message_ref);
    let key = message.identity_key();
    let known = key.and_then(|key| state.effect_of(&request.claim.topic, &request.claim.group, key, now));
    // What would never be replayed must not be accepted.
    let contradicts = |effect: &Effect| match effect.status {
        EffectStatus::FailedFinal => request.result.is_some() && effect.finished,
        EffectStatus::Succeeded => request.failed.is_some(),
        EffectStatus::InProgress | EffectStatus::FailedRetryable => false,
    };
    if known.is_some_and(contradicts) {
        return Err(Refusal::OtherOutcome);
    }
    let step_result = |(json, key): (&Arc<str>, &IdentityKey)| StepResult { key: key.clone(), json: json.clone() };
    let result = request.result.as_ref().zip(key).map(step_result);
    Ok(Some(EffectConclusion { result, window: limits.effect_ttl }))
}

fn output(requested_topic: TopicName, decision: Decision) -> Produced {
    let Reply::Produced(reply::Produced { partition, offset, .. }) = decision.reply else {
        unreachable!("the reply to a produce is Produced")
    };
    let stored = decision.record.map(|record| match record.event {
        Event::Produced { topic, dedupe, skipped, body, .. } => Stored { topic, dedupe, skipped, body },
        other => unreachable!("the event of a produce is Produced: {other:?}"),
    });
    Produced { requested_topic, partition, offset, stored }
}
