//! Fields shared by several records.

use crate::record::DedupeWindow;
use crate::types::Body;
use crate::types::{
    Boot, GroupId, LeaseToken, Lsn, Millis, PartitionId, PayloadId, PayloadRef, Position, ProduceScope, Timestamp,
    TopicId, TopicName,
};
use crate::types::{GroupOrigin, MessageRef, Retention, WallAdjustment, WallClock};
use crate::wire::{Malformed, Reader, VARINT_BYTES_MAX, put_bytes, put_varint, put_varints, varint};

pub(super) fn put_group(out: &mut Vec<u8>, topic: TopicId, group: GroupId) {
    put_varints(out, [u64::from(topic.0), u64::from(group.0)]);
}

pub(super) fn group(reader: &mut Reader<'_>) -> Result<(TopicId, GroupId), Malformed> {
    Ok((TopicId(reader.varint32()?), GroupId(reader.varint32()?)))
}

pub(super) fn put_message_ref(out: &mut Vec<u8>, message_ref: &MessageRef) {
    put_varints(out, message_ref_numbers(message_ref));
}

/// The numbers of a message reference in the order they are written.
pub(super) fn message_ref_numbers(message_ref: &MessageRef) -> [u64; 4] {
    let MessageRef { topic, group, partition, position } = message_ref;
    [u64::from(topic.0), u64::from(group.0), u64::from(partition.0), position.0]
}

pub(super) fn message_ref(reader: &mut Reader<'_>) -> Result<MessageRef, Malformed> {
    let (topic, group) = group(reader)?;
    Ok(MessageRef { topic, group, partition: PartitionId(reader.varint32()?), position: Position(reader.varint()?) })
}

pub(super) fn put_token(out: &mut Vec<u8>, token: LeaseToken) {
    put_varints(out, [u64::from(token.boot.0), token.counter]);
}

pub(super) fn token(reader: &mut Reader<'_>) -> Result<LeaseToken, Malformed> {
    Ok(LeaseToken { boot: Boot(reader.varint32()?), counter: reader.varint()? })
}

pub(super) fn put_retention(out: &mut Vec<u8>, retention: Retention) {
    put_optional(out, retention.age.map(|age| age.0));
    put_optional(out, retention.bytes);
}

pub(super) fn retention(reader: &mut Reader<'_>) -> Result<Retention, Malformed> {
    Ok(Retention { age: optional(reader)?.map(Millis), bytes: optional(reader)? })
}

pub(super) fn origin_code(origin: GroupOrigin) -> u8 {
    match origin {
        GroupOrigin::Requested => 0,
        GroupOrigin::Consumed => 1,
        GroupOrigin::Ephemeral => 2,
    }
}

pub(super) fn origin(reader: &mut Reader<'_>) -> Result<GroupOrigin, Malformed> {
    match reader.byte()? {
        0 => Ok(GroupOrigin::Requested),
        1 => Ok(GroupOrigin::Consumed),
        2 => Ok(GroupOrigin::Ephemeral),
        _ => Err(Malformed("unknown group origin")),
    }
}

pub(super) fn put_wall_clock(out: &mut Vec<u8>, clock: &WallClock) {
    put_varints(out, [clock.since().0, zigzag(clock.initial_offset()), zigzag(clock.target())]);
}

pub(super) fn wall_clock(reader: &mut Reader<'_>) -> Result<WallClock, Malformed> {
    let since = Timestamp(reader.varint()?);
    let (offset, target) = (unzigzag(reader.varint()?), unzigzag(reader.varint()?));
    WallClock::new(since, offset, target).ok_or(Malformed("wall clock slews forward"))
}

pub(super) fn put_adjustment(out: &mut Vec<u8>, adjustment: &WallAdjustment) {
    let (tag, offset, target) = match *adjustment {
        WallAdjustment::Forward { offset } => (0, offset, None),
        WallAdjustment::Slew { offset, target } => (1, offset, Some(target)),
        WallAdjustment::Rebase { offset } => (2, offset, None),
    };
    out.push(tag);
    put_varint(out, zigzag(offset));
    target.into_iter().for_each(|target| put_varint(out, zigzag(target)));
}

pub(super) fn adjustment(reader: &mut Reader<'_>) -> Result<WallAdjustment, Malformed> {
    let (tag, offset) = (reader.byte()?, unzigzag(reader.varint()?));
    match tag {
        0 => Ok(WallAdjustment::Forward { offset }),
        1 => Ok(WallAdjustment::Slew { offset, target: unzigzag(reader.varint()?) }),
        2 => Ok(WallAdjustment::Rebase { offset }),
        _ => Err(Malformed("unknown adjustment")),
    }
}

pub(super) fn put_optional(out: &mut Vec<u8>, value: Option<u64>) {
    match value {
        None => out.push(0),
        Some(value) => {
            out.push(1);
            put_varint(out, value);
        }
    }
}

pub(super) fn optional(reader: &mut Reader<'_>) -> Result<Option<u64>, Malformed> {
    match reader.byte()? {
        0 => Ok(None),
        1 => Ok(Some(reader.varint()?)),
        _ => Err(Malformed("unknown option tag")),
    }
}

/// Writes the dedupe window of a message and the groups that skip it. Only a message with a key can be skipped, so most
/// messages take no byte for the groups.
pub(super) fn put_dedupe(out: &mut Vec<u8>, dedupe: Option<&DedupeWindow>, skipped: &[GroupId]) {
    const SHORT: usize = 64;
    let Some(dedupe) = dedupe else { return out.push(0) };
    let topic = dedupe.scope.topic.encoded().as_bytes();
    if skipped.is_empty() && topic.len() <= SHORT && dedupe.scope.destination == dedupe.scope.topic {
        // As below, of most messages with a key: added at once.
        let (expires_at, len) = varint(dedupe.expires_at.0);
        let (mut bytes, at) = ([0; 3 + SHORT + VARINT_BYTES_MAX], 2 + topic.len());
        (bytes[0], bytes[1]) = (1, topic.len() as u8);
        bytes[2..at].copy_from_slice(topic);
        bytes[at + 1..][..VARINT_BYTES_MAX].copy_from_slice(&expires_at);
        return out.extend_from_slice(&bytes[..at + 1 + len]);
    }
    out.push(if skipped.is_empty() { 1 } else { 2 });
    put_scope(out, &dedupe.scope);
    put_varint(out, dedupe.expires_at.0);
    if !skipped.is_empty() {
        put_varint(out, skipped.len() as u64);
        skipped.iter().for_each(|group| put_varint(out, u64::from(group.0)));
    }
}

pub(super) fn dedupe(reader: &mut Reader<'_>) -> Result<(Option<DedupeWindow>, Vec<GroupId>), Malformed> {
    let tag = reader.byte()?;
    if tag == 0 {
        return Ok((None, Vec::new()));
    }
    let window = DedupeWindow { scope: scope(reader)?, expires_at: Timestamp(reader.varint()?) };
    let groups = match tag {
        1 => 0,
        2 => reader.varint()?,
        _ => return Err(Malformed("unknown dedupe tag")),
    };
    if tag == 2 && groups == 0 {
        return Err(Malformed("skip without a group"));
    }
    let mut skipped = Vec::new();
    for _ in 0..groups {
        skipped.push(GroupId(reader.varint32()?));
    }
    Ok((Some(window), skipped))
}

/// Writes a scope; a destination that is the requested topic is left empty.
pub(super) fn put_scope(out: &mut Vec<u8>, scope: &ProduceScope) {
    put_bytes(out, scope.topic.encoded().as_bytes());
    let destination = if scope.is_only(&scope.topic) { "" } else { scope.destination.encoded() };
    put_bytes(out, destination.as_bytes());
}

pub(super) fn scope(reader: &mut Reader<'_>) -> Result<ProduceScope, Malformed> {
    match (reader.text()?, reader.text()?) {
        (topic, "") => Ok(ProduceScope::new(&TopicName::decode(topic)?, None)),
        (topic, same) if same == topic => Err(Malformed("destination is the requested topic")),
        (topic, destination) => ProduceScope::decode(topic, destination),
    }
}

pub(super) fn flag(reader: &mut Reader<'_>) -> Result<bool, Malformed> {
    match reader.byte()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Malformed("unknown flag")),
    }
}

pub(super) fn put_body(out: &mut Vec<u8>, body: &Body) {
    let (bytes, metadata_len, key_len) = body.parts();
    put_varints(out, [u64::from(metadata_len), u64::from(key_len)]);
    out.extend_from_slice(bytes);
}

pub(super) fn body(reader: &mut Reader<'_>) -> Result<Body, Malformed> {
    let metadata_len = reader.varint32()?;
    let key_len = reader.varint32()?;
    Body::unpack(reader.rest(), metadata_len, key_len)
}

pub(super) fn put_payload_ref(out: &mut Vec<u8>, payload: &PayloadRef) {
    let PayloadRef { id: PayloadId { lsn, part }, metadata_len, key_len, value_len } = *payload;
    let lengths = [metadata_len, key_len, value_len].map(u64::from);
    put_varints(out, [lsn.0, u64::from(part)]);
    put_varints(out, lengths);
}

pub(super) fn payload_ref(reader: &mut Reader<'_>) -> Result<PayloadRef, Malformed> {
    Ok(PayloadRef {
        id: PayloadId { lsn: Lsn(reader.varint()?), part: reader.varint32()? },
        metadata_len: reader.varint32()?,
        key_len: reader.varint32()?,
        value_len: reader.varint32()?,
    })
}

pub(super) fn rest_text<'a>(reader: &mut Reader<'a>) -> Result<&'a str, Malformed> {
    std::str::from_utf8(reader.rest()).map_err(|_| Malformed("text is not UTF-8"))
}

/// Maps small numbers of either sign to short varints.
pub(super) fn zigzag(number: i64) -> u64 {
    (number << 1 ^ number >> 63) as u64
}

pub(super) fn unzigzag(code: u64) -> i64 {
    (code >> 1) as i64 ^ -((code & 1) as i64)
}
