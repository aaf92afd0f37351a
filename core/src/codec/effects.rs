//! Encoding of effects and completed steps.

use std::sync::Arc;

use super::fields::*;
use crate::record::{
    Completed, DeadLetterSlot, EffectBegun, EffectConclusion, EffectDeadLettered, Produced, StepResult, Stored,
};
use crate::types::Body;
use crate::types::StepOutput;
use crate::types::identity::tag;
use crate::types::names::*;
use crate::types::{
    Completion, Details, Effect, EffectNamespace, EffectStatus, Identity, IdentityKey, Lifetime, Lsn, Outcome,
    PayloadId, Pin, ResultHash, Scope, StoredResult,
};
use crate::types::{Millis, Offset, OwnerName, PartitionId, Position, Text, Timestamp, TopicId, TopicName};
use crate::wire::{Malformed, Reader, put_bytes, put_varint, put_varints};

pub(super) fn put_identity(out: &mut Vec<u8>, identity: &Identity) {
    const SHORT: usize = 128;
    let [one, two] = identity.scope.parts();
    let (tenant, key) = identity.bytes();
    let texts = [one.as_bytes(), two.as_bytes(), tenant, key];
    if texts.iter().map(|text| text.len() + 1).sum::<usize>() >= SHORT {
        out.push(identity.scope.tag());
        texts.iter().for_each(|text| put_bytes(out, text));
        return;
    }
    // Each length takes a byte: together they are added at once.
    let (mut bytes, mut at) = ([0; SHORT], 1);
    bytes[0] = identity.scope.tag();
    for text in texts {
        bytes[at] = text.len() as u8;
        at += 1;
        if !text.is_empty() {
            bytes[at..at + text.len()].copy_from_slice(text);
            at += text.len();
        }
    }
    out.extend_from_slice(&bytes[..at]);
}

pub(super) fn identity(from: &mut Reader<'_>) -> Result<Identity, Malformed> {
    let kind = from.byte()?;
    let (one, two) = (from.text()?, from.text()?);
    let scope = match (kind, one, two) {
        (tag::CONSUME, topic, group) => Scope::Consume { topic: TopicName::decode(topic)?, group: group_name(group)? },
        (tag::TENANT, "", "") => Scope::Tenant,
        (tag::JOB, id, "") => Scope::Job { id: id.into() },
        (tag::TASK, id, "") => Scope::Task { id: id.into() },
        (tag::RPC, principal, method) => Scope::Rpc { principal: principal.into(), method: method.into() },
        _ => return Err(Malformed("unknown scope")),
    };
    let tenant = from.text()?;
    if tenant.is_empty() {
        return Err(Malformed("identity without a tenant"));
    }
    Ok(Identity::new(tenant, scope, from.text()?))
}

pub(super) fn put_namespace(out: &mut Vec<u8>, namespace: &EffectNamespace) {
    match namespace {
        EffectNamespace::Shared => out.push(0),
        EffectNamespace::Group(topic, group) => {
            out.push(1);
            put_bytes(out, topic.encoded().as_bytes());
            put_bytes(out, group.as_str().as_bytes());
        }
    }
}

pub(super) fn namespace(from: &mut Reader<'_>) -> Result<EffectNamespace, Malformed> {
    match from.byte()? {
        0 => Ok(EffectNamespace::Shared),
        1 => Ok(EffectNamespace::Group(TopicName::decode(from.text()?)?, group_name(from.text()?)?)),
        _ => Err(Malformed("unknown namespace")),
    }
}

pub(super) fn put_begun(out: &mut Vec<u8>, begun: &EffectBegun) {
    put_identity(out, &begun.identity);
    put_token(out, begun.token);
    put_bytes(out, begun.owner.as_str().as_bytes());
    put_varint(out, begun.until.0);
    match begun.lifetime {
        None => out.push(0),
        Some(Lifetime::Window(window)) => put_tagged(out, 1, window.0),
        Some(Lifetime::Until(at)) => put_tagged(out, 2, at.0),
    }
    put_text(out, begun.request_hash.as_deref());
    match begun.message {
        None => out.push(0),
        Some((partition, position)) => {
            out.push(1);
            put_varints(out, [u64::from(partition.0), position.0]);
        }
    }
}

pub(super) fn begun(from: &mut Reader<'_>) -> Result<EffectBegun, Malformed> {
    Ok(EffectBegun {
        identity: identity(from)?,
        token: token(from)?,
        owner: owner_name(from.text()?)?,
        until: Timestamp(from.varint()?),
        lifetime: match from.byte()? {
            0 => None,
            1 => Some(Lifetime::Window(Millis(from.varint()?))),
            2 => Some(Lifetime::Until(Timestamp(from.varint()?))),
            _ => return Err(Malformed("unknown lifetime")),
        },
        request_hash: text(from)?,
        message: match flag(from)? {
            false => None,
            true => Some((PartitionId(from.varint32()?), Position(from.varint()?))),
        },
    })
}

pub(super) fn put_outcome(out: &mut Vec<u8>, outcome: &Outcome) {
    out.push(status_code(outcome.status));
    put_varint(out, zigzag(outcome.response_code));
    put_text(out, outcome.result.as_deref());
    put_bytes(out, outcome.last_error.as_bytes());
}

pub(super) fn outcome(from: &mut Reader<'_>) -> Result<Outcome, Malformed> {
    Ok(Outcome {
        status: status(from.byte()?)?,
        response_code: unzigzag(from.varint()?),
        result: text(from)?.map(|text: Text| Arc::from(text)),
        last_error: from.text()?.into(),
    })
}

pub(super) fn put_effect(out: &mut Vec<u8>, effect: &Effect) {
    out.push(status_code(effect.status));
    out.push(u8::from(effect.committed) | u8::from(effect.finished) << 1);
    put_varint(out, u64::from(effect.attempt));
    match effect.token {
        None => out.push(0),
        Some(token) => {
            out.push(1);
            put_token(out, token);
        }
    }
    put_varint(out, effect.lease_until.0);
    put_text(out, effect.owner.as_ref().map(OwnerName::as_str));
    match &effect.result {
        None => out.push(0),
        Some(result) => {
            out.push(if result.payload.is_some() { 1 } else { 2 });
            result.payload.iter().for_each(|id| put_varints(out, [id.lsn.0, u64::from(id.part)]));
            put_varint(out, u64::from(result.len));
            out.extend_from_slice(&result.hash.0);
        }
    }
    match &effect.details {
        None => out.push(0),
        Some(details) => {
            out.push(1);
            put_text(out, details.request_hash.as_deref());
            put_varint(out, zigzag(details.response_code));
            put_bytes(out, details.last_error.as_bytes());
            put_optional(out, details.until.map(|until| until.0));
            put_varint(out, details.committed_topics.len() as u64);
            details.committed_topics.iter().for_each(|topic| put_bytes(out, topic.encoded().as_bytes()));
        }
    }
    put_varints(out, [effect.window.0, effect.updated_at.0, effect.expires_at.0]);
    match &effect.pin {
        None => out.push(0),
        Some(pin) => {
            out.push(1);
            put_varints(out, [u64::from(pin.partition.0), pin.position.0, pin.look_at.0]);
        }
    }
}

pub(super) fn effect(from: &mut Reader<'_>) -> Result<Effect, Malformed> {
    let status = status(from.byte()?)?;
    let flags = from.byte()?;
    if flags > 3 {
        return Err(Malformed("unknown effect flags"));
    }
    Ok(Effect {
        status,
        committed: flags & 1 != 0,
        finished: flags & 2 != 0,
        attempt: from.varint32()?,
        token: match flag(from)? {
            false => None,
            true => Some(token(from)?),
        },
        lease_until: Timestamp(from.varint()?),
        owner: text(from)?.map(|text: Text| owner_name(&text)).transpose()?,
        result: stored_result(from)?.map(Box::new),
        details: match flag(from)? {
            false => None,
            true => Some(Box::new(Details {
                request_hash: text(from)?,
                response_code: unzigzag(from.varint()?),
                last_error: from.text()?.into(),
                until: optional(from)?.map(Timestamp),
                committed_topics: topics(from)?,
            })),
        },
        window: Millis(from.varint()?),
        updated_at: Timestamp(from.varint()?),
        expires_at: Timestamp(from.varint()?),
        pin: match flag(from)? {
            false => None,
            true => Some(Box::new(Pin {
                partition: PartitionId(from.varint32()?),
                position: Position(from.varint()?),
                look_at: Timestamp(from.varint()?),
            })),
        },
    })
}

fn stored_result(from: &mut Reader<'_>) -> Result<Option<StoredResult>, Malformed> {
    let payload = match from.byte()? {
        0 => return Ok(None),
        1 => Some(PayloadId { lsn: Lsn(from.varint()?), part: from.varint32()? }),
        2 => None,
        _ => return Err(Malformed("unknown state of a result")),
    };
    let len = from.varint32()?;
    let mut hash = [0; 16];
    for byte in &mut hash {
        *byte = from.byte()?;
    }
    Ok(Some(StoredResult { payload, len, hash: ResultHash(hash) }))
}

fn topics(from: &mut Reader<'_>) -> Result<Vec<TopicName>, Malformed> {
    let mut topics = Vec::new();
    for _ in 0..from.varint()? {
        topics.push(TopicName::decode(from.text()?)?);
    }
    Ok(topics)
}

pub(super) fn put_completed(out: &mut Vec<u8>, step: &Completed) {
    put_message_ref(out, &step.message_ref);
    put_token(out, step.token);
    put_varint(out, step.until.0);
    out.push(u8::from(step.effect.is_some()) | u8::from(step.is_contested) << 1);
    if let Some(ended) = &step.effect {
        put_varint(out, ended.window.0);
        out.push(u8::from(ended.result.is_some()));
        if let Some(StepResult { key, json }) = &ended.result {
            let (tenant, key) = key.parts();
            [tenant, key, json].iter().for_each(|text| put_bytes(out, text.as_bytes()));
        }
    }
    step.dead_letter.iter().for_each(|slot| put_slot(out, slot));
    for output in &step.outputs {
        put_bytes(out, output.requested_topic.encoded().as_bytes());
        put_varints(out, [u64::from(output.partition.0), output.offset.0]);
        match &output.stored {
            None => out.push(0),
            Some(stored) => {
                out.push(1);
                put_varint(out, u64::from(stored.topic.0));
                put_dedupe(out, stored.dedupe.as_ref(), &stored.skipped);
                let (bytes, metadata_len, key_len) = stored.body.parts();
                put_varints(out, [u64::from(metadata_len), u64::from(key_len)]);
                put_bytes(out, bytes);
            }
        }
    }
}

/// Reads a completed step; `is_dead_lettered` is in the kind of its record.
pub(super) fn completed(from: &mut Reader<'_>, is_dead_lettered: bool) -> Result<Completed, Malformed> {
    let message_ref = message_ref(from)?;
    let token = token(from)?;
    let until = Timestamp(from.varint()?);
    let flags = from.byte()?;
    if flags > 3 {
        return Err(Malformed("unknown step flags"));
    }
    let effect = match flags & 1 {
        0 => None,
        _ => {
            let window = Millis(from.varint()?);
            let result = match flag(from)? {
                false => None,
                true => Some(StepResult {
                    key: IdentityKey::new(from.text()?, from.text()?),
                    json: Arc::from(from.text()?),
                }),
            };
            Some(EffectConclusion { window, result })
        }
    };
    let dead_letter = if is_dead_lettered { Some(slot(from)?) } else { None };
    let mut outputs = Vec::new();
    while !from.is_empty() {
        outputs.push(produced(from)?);
    }
    Ok(Completed { message_ref, token, until, is_contested: flags & 2 != 0, effect, outputs, dead_letter })
}

fn put_slot(out: &mut Vec<u8>, slot: &DeadLetterSlot) {
    put_varints(out, [u64::from(slot.topic.0), u64::from(slot.partition.0), slot.offset.0]);
    put_bytes(out, slot.last_error.as_bytes());
}

fn slot(from: &mut Reader<'_>) -> Result<DeadLetterSlot, Malformed> {
    Ok(DeadLetterSlot {
        topic: TopicId(from.varint32()?),
        partition: PartitionId(from.varint32()?),
        offset: Offset(from.varint()?),
        last_error: from.text()?.into(),
    })
}

pub(super) fn put_dead_lettered(out: &mut Vec<u8>, failed: &EffectDeadLettered) {
    put_identity(out, &failed.identity);
    put_outcome(out, &failed.outcome);
    put_message_ref(out, &failed.message_ref);
    put_slot(out, &failed.dead_letter);
    put_varint(out, failed.winner_until.0);
}

pub(super) fn dead_lettered(from: &mut Reader<'_>) -> Result<EffectDeadLettered, Malformed> {
    Ok(EffectDeadLettered {
        identity: identity(from)?,
        outcome: outcome(from)?,
        message_ref: message_ref(from)?,
        dead_letter: slot(from)?,
        winner_until: Timestamp(from.varint()?),
    })
}

fn produced(from: &mut Reader<'_>) -> Result<Produced, Malformed> {
    Ok(Produced {
        requested_topic: TopicName::decode(from.text()?)?,
        partition: PartitionId(from.varint32()?),
        offset: Offset(from.varint()?),
        stored: match flag(from)? {
            false => None,
            true => {
                let topic = TopicId(from.varint32()?);
                let (dedupe, skipped) = dedupe(from)?;
                let (metadata_len, key_len) = (from.varint32()?, from.varint32()?);
                Some(Stored { topic, dedupe, skipped, body: Body::unpack(from.bytes()?, metadata_len, key_len)? })
            }
        },
    })
}

pub(super) fn put_completion(out: &mut Vec<u8>, completion: &Completion) {
    put_message_ref(out, &completion.message_ref);
    put_varints(out, [completion.offset.0, completion.until.0]);
    for output in completion.produced.iter() {
        put_bytes(out, output.topic.encoded().as_bytes());
        put_varints(out, [u64::from(output.partition.0), output.offset.0]);
        out.push(u8::from(output.duplicate) | u8::from(output.already_done) << 1);
    }
}

pub(super) fn completion(from: &mut Reader<'_>) -> Result<Completion, Malformed> {
    let message_ref = message_ref(from)?;
    let (offset, until) = (Offset(from.varint()?), Timestamp(from.varint()?));
    let mut produced = Vec::new();
    while !from.is_empty() {
        let topic = TopicName::decode(from.text()?)?;
        let (partition, offset) = (PartitionId(from.varint32()?), Offset(from.varint()?));
        let flags = from.byte()?;
        if flags > 2 {
            return Err(Malformed("unknown flags of an output"));
        }
        let (duplicate, already_done) = (flags & 1 != 0, flags & 2 != 0);
        produced.push(StepOutput { topic, partition, offset, duplicate, already_done });
    }
    Ok(Completion { message_ref, offset, produced: produced.into(), until })
}

fn status_code(status: EffectStatus) -> u8 {
    match status {
        EffectStatus::InProgress => 0,
        EffectStatus::Succeeded => 1,
        EffectStatus::FailedFinal => 2,
        EffectStatus::FailedRetryable => 3,
    }
}

fn status(code: u8) -> Result<EffectStatus, Malformed> {
    EffectStatus::ALL.get(usize::from(code)).copied().ok_or(Malformed("unknown effect status"))
}

fn put_tagged(out: &mut Vec<u8>, tag: u8, number: u64) {
    out.push(tag);
    put_varint(out, number);
}

/// An optional text; absent differs from empty.
fn put_text(out: &mut Vec<u8>, text: Option<&str>) {
    match text {
        None => out.push(0),
        Some(text) => {
            out.push(1);
            put_bytes(out, text.as_bytes());
        }
    }
}

fn text(from: &mut Reader<'_>) -> Result<Option<Text>, Malformed> {
    Ok(match flag(from)? {
        false => None,
        true => Some(from.text()?.into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zigzag_round_trips_signed_numbers() {
        for number in [0, 1, -1, 404, -404, i64::MAX, i64::MIN] {
            assert_eq!(unzigzag(zigzag(number)), number);
        }
        assert_eq!((zigzag(-1), zigzag(1)), (1, 2));
    }
}
