//! Encoding of log records. The kind is in the frame; the payload starts with the record's time, except in snapshots.

use std::sync::Arc;

use super::fields::*;
use super::{access, effects, image, payloads};
use crate::record::{CumulativeAck, Event, Record};
use crate::types::metadata;
use crate::types::names::*;
use crate::types::{
    Boot, GroupId, Millis, Offset, PartitionId, Position, TenantId, Text, Timestamp, TopicId, TopicName,
};
use crate::types::{GroupOrigin, GroupStart, MessageRef};
use crate::wire::{Malformed, Reader, put_bytes, put_varint, put_varints};

/// The version of every record kind written today.
pub const VERSION: u8 = 1;

const BOOTED: u8 = 1;
const TOPIC_CREATED: u8 = 2;
const TOPIC_DELETED: u8 = 3;
const GROUP_CREATED: u8 = 4;
const GROUP_DELETED: u8 = 5;
const GROUP_PAUSED: u8 = 6;
const GROUP_RESUMED: u8 = 7;
const GROUP_SOUGHT: u8 = 8;
const PRODUCED: u8 = 9;
const DELIVERED: u8 = 10;
const ACKED: u8 = 11;
const NACKED: u8 = 12;
const REASON_NOTED: u8 = 13;
const EXPIRED: u8 = 14;
const EXTENDED: u8 = 15;
const RELEASED: u8 = 16;
const DEAD_LETTERED: u8 = 17;
const REDRIVEN: u8 = 18;
const RETAINED_OUT: u8 = 19;
const IDENTITIES_EXPIRED: u8 = 20;
const ACKED_AND_COMMITTED: u8 = 21;
const EFFECT_BEGUN: u8 = 23;
const EFFECT_FINISHED: u8 = 24;
const EFFECT_RENEWED: u8 = 25;
const EFFECT_FORGOTTEN: u8 = 26;
const EFFECTS_EXPIRED: u8 = 27;
const COMPLETED: u8 = 28;
const COMPLETIONS_EXPIRED: u8 = 29;
const WITHDRAWN: u8 = 30;
const WALL_CLOCK_ADJUSTED: u8 = 31;
const WINNERS_EXPIRED: u8 = 32;
const PURGED: u8 = 35;
const COMPLETED_AND_DEAD_LETTERED: u8 = 43;
const EFFECT_DEAD_LETTERED: u8 = 44;
const CUMULATIVELY_ACKED: u8 = 45;
const RELOCATED: u8 = 46;
const PAYLOAD_LOST: u8 = 47;
const RETENTION_CHANGED: u8 = 39;
const GROUP_CREATED_BY_CONSUMING: u8 = 40;
const GROUP_ORIGIN_CHANGED: u8 = 41;
const KEY_CREATED: u8 = 48;
const KEY_REVOKED: u8 = 49;
const KEY_BOUND: u8 = 50;
const TENANT_CREATED: u8 = 51;
const TENANT_DELETED: u8 = 52;
const AUDITED: u8 = 53;

/// The kind byte of an event's frame.
#[must_use]
#[inline]
pub fn kind(event: &Event) -> u8 {
    match event {
        Event::Booted { .. } => BOOTED,
        Event::TopicCreated { .. } => TOPIC_CREATED,
        Event::TopicDeleted { .. } => TOPIC_DELETED,
        Event::RetentionChanged { .. } => RETENTION_CHANGED,
        Event::GroupCreated { origin: GroupOrigin::Requested, .. } => GROUP_CREATED,
        Event::GroupCreated { .. } => GROUP_CREATED_BY_CONSUMING,
        Event::GroupOriginChanged { .. } => GROUP_ORIGIN_CHANGED,
        Event::GroupDeleted { .. } => GROUP_DELETED,
        Event::GroupPaused { .. } => GROUP_PAUSED,
        Event::GroupResumed { .. } => GROUP_RESUMED,
        Event::GroupSought { .. } => GROUP_SOUGHT,
        Event::Purged { .. } => PURGED,
        Event::Produced { .. } => PRODUCED,
        Event::Delivered { .. } => DELIVERED,
        Event::Acked { commits: None, .. } => ACKED,
        Event::Acked { commits: Some(_), .. } => ACKED_AND_COMMITTED,
        Event::CumulativelyAcked { .. } => CUMULATIVELY_ACKED,
        Event::Nacked { .. } => NACKED,
        Event::ReasonNoted { .. } => REASON_NOTED,
        Event::Expired { .. } => EXPIRED,
        Event::Extended { .. } => EXTENDED,
        Event::Released { .. } => RELEASED,
        Event::Withdrawn { .. } => WITHDRAWN,
        Event::DeadLettered { .. } => DEAD_LETTERED,
        Event::Redriven { .. } => REDRIVEN,
        Event::RetentionExpired { .. } => RETAINED_OUT,
        Event::DedupeExpired { .. } => IDENTITIES_EXPIRED,
        Event::EffectBegun(_) => EFFECT_BEGUN,
        Event::EffectFinished { .. } => EFFECT_FINISHED,
        Event::EffectRenewed { .. } => EFFECT_RENEWED,
        Event::EffectForgotten { .. } => EFFECT_FORGOTTEN,
        Event::EffectsExpired { .. } => EFFECTS_EXPIRED,
        Event::EffectDeadLettered(_) => EFFECT_DEAD_LETTERED,
        Event::Completed(step) if step.dead_letter.is_some() => COMPLETED_AND_DEAD_LETTERED,
        Event::Completed(_) => COMPLETED,
        Event::CompletionsExpired { .. } => COMPLETIONS_EXPIRED,
        Event::WinnersExpired { .. } => WINNERS_EXPIRED,
        Event::Relocated(_) => RELOCATED,
        Event::PayloadLost(_) => PAYLOAD_LOST,
        Event::WallClockAdjusted(_) => WALL_CLOCK_ADJUSTED,
        Event::KeyCreated(_) => KEY_CREATED,
        Event::KeyRevoked { .. } => KEY_REVOKED,
        Event::KeyBound { .. } => KEY_BOUND,
        Event::TenantCreated { .. } => TENANT_CREATED,
        Event::TenantDeleted { .. } => TENANT_DELETED,
        Event::Audited(_) => AUDITED,
        Event::Restored(image) => image::kind(image),
    }
}

/// Appends the payload of `record`'s frame.
pub fn encode(record: &Record, out: &mut Vec<u8>) {
    if let Event::Restored(image) = &record.event {
        return image::encode(image, out);
    }
    let at = record.at.0;
    match &record.event {
        Event::Booted { boot } => put_varints(out, [at, u64::from(boot.0)]),
        Event::TopicCreated { topic, name, partitions, retention } => {
            put_varints(out, [at, u64::from(topic.0)]);
            put_bytes(out, name.encoded().as_bytes());
            put_varint(out, u64::from(*partitions));
            put_retention(out, *retention);
        }
        Event::TopicDeleted { topic } => put_varints(out, [at, u64::from(topic.0)]),
        Event::RetentionChanged { topic, retention } => {
            put_varints(out, [at, u64::from(topic.0)]);
            put_retention(out, *retention);
        }
        Event::GroupCreated { topic, group, name, start, origin } => {
            put_at_group(out, at, *topic, *group);
            put_bytes(out, name.as_str().as_bytes());
            out.push(match start {
                GroupStart::Earliest => 0,
                GroupStart::Latest => 1,
            });
            if *origin != GroupOrigin::Requested {
                out.push(origin_code(*origin));
            }
        }
        Event::GroupOriginChanged { topic, group, origin } => {
            put_at_group(out, at, *topic, *group);
            out.push(origin_code(*origin));
        }
        Event::GroupDeleted { topic, group }
        | Event::GroupPaused { topic, group }
        | Event::GroupResumed { topic, group } => put_at_group(out, at, *topic, *group),
        Event::GroupSought { topic, group, targets } => {
            put_at_group(out, at, *topic, *group);
            targets.iter().for_each(|target| put_varint(out, target.0));
        }
        Event::Purged { topic, ends, winner_until } => {
            put_varints(out, [at, u64::from(topic.0), winner_until.0]);
            ends.iter().for_each(|end| put_varint(out, end.0));
        }
        Event::Produced { topic, partition, offset, body, dedupe, skipped } => {
            put_varints(out, [at, u64::from(topic.0), u64::from(partition.0), offset.0]);
            put_dedupe(out, dedupe.as_ref(), skipped);
            put_body(out, body);
        }
        Event::Delivered { message_ref, token, owner, until } => {
            let [topic, group, partition, position] = message_ref_numbers(message_ref);
            let boot = u64::from(token.boot.0);
            put_varints(out, [at, topic, group, partition, position, boot, token.counter, until.0]);
            out.extend_from_slice(owner.as_str().as_bytes());
        }
        Event::Acked { message_ref, commits, winner_until } => {
            put_at_message_ref(out, at, message_ref);
            if let Some(window) = commits {
                put_varint(out, window.0);
            }
            if let Some(until) = winner_until {
                put_varint(out, until.0);
            }
        }
        Event::CumulativelyAcked { topic, group, partition, acks } => {
            put_at_group(out, at, *topic, *group);
            put_varint(out, u64::from(partition.0));
            for ack in acks {
                put_varint(out, ack.position.0);
                out.push(u8::from(ack.commits.is_some()) | u8::from(ack.winner_until.is_some()) << 1);
                ack.commits.iter().for_each(|window| put_varint(out, window.0));
                ack.winner_until.iter().for_each(|until| put_varint(out, until.0));
            }
        }
        Event::Released { message_ref } | Event::Withdrawn { message_ref } => put_at_message_ref(out, at, message_ref),
        Event::Nacked { message_ref, reason, not_before } => {
            put_at_message_ref(out, at, message_ref);
            put_varint(out, not_before.0);
            if let Some(reason) = reason {
                out.push(1);
                out.extend_from_slice(reason.as_bytes());
            }
        }
        Event::ReasonNoted { message_ref, reason } => {
            put_at_message_ref(out, at, message_ref);
            out.extend_from_slice(reason.as_bytes());
        }
        Event::Expired { message_ref, not_before: until } | Event::Extended { message_ref, until } => {
            put_at_message_ref(out, at, message_ref);
            put_varint(out, until.0);
        }
        Event::DeadLettered {
            message_ref,
            dead_topic,
            dead_partition,
            dead_offset,
            reason,
            last_error,
            winner_until,
        } => {
            put_at_message_ref(out, at, message_ref);
            put_varints(out, [u64::from(dead_topic.0), u64::from(dead_partition.0), dead_offset.0, winner_until.0]);
            out.push(metadata::reason_code(*reason));
            out.extend_from_slice(last_error.as_bytes());
        }
        Event::Redriven { dead_topic, dead_partition, dead_position, topic, group, partition, offset } => {
            put_varints(out, [at, u64::from(dead_topic.0), u64::from(dead_partition.0), dead_position.0]);
            put_group(out, *topic, *group);
            put_varints(out, [u64::from(partition.0), offset.0]);
        }
        Event::RetentionExpired { topic, partition, through } => {
            put_varints(out, [at, u64::from(topic.0), u64::from(partition.0), through.0]);
        }
        Event::DedupeExpired { scope, count } => {
            put_varint(out, at);
            put_scope(out, scope);
            put_varint(out, *count);
        }
        Event::EffectBegun(begun) => {
            put_varint(out, at);
            effects::put_begun(out, begun);
        }
        Event::EffectFinished { identity, outcome } => {
            put_varint(out, at);
            effects::put_identity(out, identity);
            effects::put_outcome(out, outcome);
        }
        Event::EffectDeadLettered(failed) => {
            put_varint(out, at);
            effects::put_dead_lettered(out, failed);
        }
        Event::EffectRenewed { identity, until } => {
            put_varints(out, [at, until.0]);
            effects::put_identity(out, identity);
        }
        Event::EffectForgotten { identity } => {
            put_varint(out, at);
            effects::put_identity(out, identity);
        }
        Event::EffectsExpired { namespace, count } => {
            put_varints(out, [at, *count]);
            effects::put_namespace(out, namespace);
        }
        Event::Completed(step) => {
            put_varint(out, at);
            effects::put_completed(out, step);
        }
        Event::CompletionsExpired { count } | Event::WinnersExpired { count } => put_varints(out, [at, *count]),
        Event::Relocated(relocated) => {
            put_varint(out, at);
            payloads::put_relocated(out, relocated);
        }
        Event::PayloadLost(lost) => {
            put_varint(out, at);
            payloads::put_lost(out, lost);
        }
        Event::WallClockAdjusted(adjustment) => {
            put_varint(out, at);
            put_adjustment(out, adjustment);
        }
        Event::KeyCreated(key) => {
            put_varint(out, at);
            access::put_key(out, key);
        }
        Event::KeyRevoked { key } => {
            put_varint(out, at);
            access::put_key_id(out, *key);
        }
        Event::KeyBound { key, certificate_san } => {
            put_varint(out, at);
            access::put_key_id(out, *key);
            access::put_san(out, certificate_san.as_ref());
        }
        Event::TenantCreated { tenant, name } => {
            put_varints(out, [at, u64::from(tenant.0)]);
            out.extend_from_slice(name.as_str().as_bytes());
        }
        Event::TenantDeleted { tenant } => put_varints(out, [at, u64::from(tenant.0)]),
        Event::Audited(audit) => {
            put_varint(out, at);
            access::put_audit(out, audit);
        }
        Event::Restored(_) => unreachable!("handled above"),
    }
}

fn put_at_group(out: &mut Vec<u8>, at: u64, topic: TopicId, group: GroupId) {
    put_varints(out, [at, u64::from(topic.0), u64::from(group.0)]);
}

fn put_at_message_ref(out: &mut Vec<u8>, at: u64, message_ref: &MessageRef) {
    let [topic, group, partition, position] = message_ref_numbers(message_ref);
    put_varints(out, [at, topic, group, partition, position]);
}

/// Decodes the payload of a frame of this kind and version.
///
/// # Errors
/// [`Malformed`] for bytes that [`encode`] does not write, unknown kinds and versions included.
pub fn decode(kind: u8, version: u8, payload: &[u8]) -> Result<Record, Malformed> {
    if version != VERSION {
        return Err(Malformed("unknown record version"));
    }
    if image::is_image(kind) {
        let image = image::decode(kind, payload)?;
        return Ok(Record { at: Timestamp::default(), event: Event::Restored(image) });
    }
    let mut reader = Reader::new(payload);
    let at = Timestamp(reader.varint()?);
    let event = event(kind, &mut reader)?;
    reader.finish()?;
    Ok(Record { at, event })
}

fn event(kind: u8, reader: &mut Reader<'_>) -> Result<Event, Malformed> {
    Ok(match kind {
        BOOTED => Event::Booted { boot: Boot(reader.varint32()?) },
        TOPIC_CREATED => Event::TopicCreated {
            topic: TopicId(reader.varint32()?),
            name: TopicName::decode(reader.text()?)?,
            partitions: reader.varint32()?,
            retention: retention(reader)?,
        },
        TOPIC_DELETED => Event::TopicDeleted { topic: TopicId(reader.varint32()?) },
        RETENTION_CHANGED => {
            Event::RetentionChanged { topic: TopicId(reader.varint32()?), retention: retention(reader)? }
        }
        GROUP_ORIGIN_CHANGED => {
            let (topic, group) = group(reader)?;
            Event::GroupOriginChanged { topic, group, origin: origin(reader)? }
        }
        GROUP_CREATED | GROUP_CREATED_BY_CONSUMING => {
            let (topic, group) = group(reader)?;
            let name = group_name(reader.text()?)?;
            let start = match reader.byte()? {
                0 => GroupStart::Earliest,
                1 => GroupStart::Latest,
                _ => return Err(Malformed("unknown group start")),
            };
            let origin = match kind {
                GROUP_CREATED => GroupOrigin::Requested,
                _ => match origin(reader)? {
                    GroupOrigin::Requested => return Err(Malformed("a requested group has a record kind of its own")),
                    origin => origin,
                },
            };
            Event::GroupCreated { topic, group, name, start, origin }
        }
        GROUP_DELETED => {
            let (topic, group) = group(reader)?;
            Event::GroupDeleted { topic, group }
        }
        GROUP_PAUSED => {
            let (topic, group) = group(reader)?;
            Event::GroupPaused { topic, group }
        }
        GROUP_RESUMED => {
            let (topic, group) = group(reader)?;
            Event::GroupResumed { topic, group }
        }
        GROUP_SOUGHT => {
            let (topic, group) = group(reader)?;
            let mut targets = Vec::new();
            while !reader.is_empty() {
                targets.push(Position(reader.varint()?));
            }
            Event::GroupSought { topic, group, targets: Arc::from(targets) }
        }
        PURGED => {
            let (topic, winner_until) = (TopicId(reader.varint32()?), Timestamp(reader.varint()?));
            let mut ends = Vec::new();
            while !reader.is_empty() {
                ends.push(Position(reader.varint()?));
            }
            Event::Purged { topic, ends: Arc::from(ends), winner_until }
        }
        PRODUCED => {
            let topic = TopicId(reader.varint32()?);
            let (partition, offset) = (PartitionId(reader.varint32()?), Offset(reader.varint()?));
            let (dedupe, skipped) = dedupe(reader)?;
            Event::Produced { topic, partition, offset, dedupe, skipped, body: body(reader)? }
        }
        DELIVERED => Event::Delivered {
            message_ref: message_ref(reader)?,
            token: token(reader)?,
            until: Timestamp(reader.varint()?),
            owner: owner_name(rest_text(reader)?)?,
        },
        ACKED => {
            Event::Acked { message_ref: message_ref(reader)?, commits: None, winner_until: trailing_time(reader)? }
        }
        ACKED_AND_COMMITTED => Event::Acked {
            message_ref: message_ref(reader)?,
            commits: Some(Millis(reader.varint()?)),
            winner_until: trailing_time(reader)?,
        },
        CUMULATIVELY_ACKED => {
            let (topic, group) = group(reader)?;
            let partition = PartitionId(reader.varint32()?);
            let mut acks = Vec::new();
            while !reader.is_empty() {
                acks.push(cumulative_ack(reader)?);
            }
            Event::CumulativelyAcked { topic, group, partition, acks }
        }
        RELEASED => Event::Released { message_ref: message_ref(reader)? },
        WITHDRAWN => Event::Withdrawn { message_ref: message_ref(reader)? },
        NACKED => Event::Nacked {
            message_ref: message_ref(reader)?,
            not_before: Timestamp(reader.varint()?),
            reason: match reader.is_empty() {
                true => None,
                false if reader.byte()? == 1 => Some(Arc::from(rest_text(reader)?)),
                false => return Err(Malformed("unknown reason tag")),
            },
        },
        REASON_NOTED => Event::ReasonNoted { message_ref: message_ref(reader)?, reason: Arc::from(rest_text(reader)?) },
        EXPIRED => Event::Expired { message_ref: message_ref(reader)?, not_before: Timestamp(reader.varint()?) },
        EXTENDED => Event::Extended { message_ref: message_ref(reader)?, until: Timestamp(reader.varint()?) },
        DEAD_LETTERED => Event::DeadLettered {
            message_ref: message_ref(reader)?,
            dead_topic: TopicId(reader.varint32()?),
            dead_partition: PartitionId(reader.varint32()?),
            dead_offset: Offset(reader.varint()?),
            winner_until: Timestamp(reader.varint()?),
            reason: metadata::reason(reader.byte()?)?,
            last_error: Text::from(rest_text(reader)?),
        },
        REDRIVEN => {
            let dead_topic = TopicId(reader.varint32()?);
            let dead_partition = PartitionId(reader.varint32()?);
            let dead_position = Position(reader.varint()?);
            let (topic, group) = group(reader)?;
            let partition = PartitionId(reader.varint32()?);
            let offset = Offset(reader.varint()?);
            Event::Redriven { dead_topic, dead_partition, dead_position, topic, group, partition, offset }
        }
        RETAINED_OUT => Event::RetentionExpired {
            topic: TopicId(reader.varint32()?),
            partition: PartitionId(reader.varint32()?),
            through: Position(reader.varint()?),
        },
        IDENTITIES_EXPIRED => Event::DedupeExpired { scope: scope(reader)?, count: reader.varint()? },
        EFFECT_BEGUN => Event::EffectBegun(Box::new(effects::begun(reader)?)),
        EFFECT_FINISHED => {
            Event::EffectFinished { identity: effects::identity(reader)?, outcome: effects::outcome(reader)? }
        }
        EFFECT_RENEWED => {
            let until = Timestamp(reader.varint()?);
            Event::EffectRenewed { until, identity: effects::identity(reader)? }
        }
        EFFECT_FORGOTTEN => Event::EffectForgotten { identity: effects::identity(reader)? },
        EFFECTS_EXPIRED => {
            let count = reader.varint()?;
            Event::EffectsExpired { count, namespace: effects::namespace(reader)? }
        }
        EFFECT_DEAD_LETTERED => Event::EffectDeadLettered(Box::new(effects::dead_lettered(reader)?)),
        COMPLETED => Event::Completed(Box::new(effects::completed(reader, false)?)),
        COMPLETED_AND_DEAD_LETTERED => Event::Completed(Box::new(effects::completed(reader, true)?)),
        COMPLETIONS_EXPIRED => Event::CompletionsExpired { count: reader.varint()? },
        WINNERS_EXPIRED => Event::WinnersExpired { count: reader.varint()? },
        RELOCATED => Event::Relocated(Box::new(payloads::relocated(reader)?)),
        PAYLOAD_LOST => Event::PayloadLost(Box::new(payloads::lost(reader)?)),
        WALL_CLOCK_ADJUSTED => Event::WallClockAdjusted(adjustment(reader)?),
        KEY_CREATED => Event::KeyCreated(Box::new(access::key(reader)?)),
        KEY_REVOKED => Event::KeyRevoked { key: access::key_id(reader)? },
        KEY_BOUND => Event::KeyBound { key: access::key_id(reader)?, certificate_san: access::san(reader)? },
        TENANT_CREATED => {
            Event::TenantCreated { tenant: TenantId(reader.varint32()?), name: tenant_name(rest_text(reader)?)? }
        }
        TENANT_DELETED => Event::TenantDeleted { tenant: TenantId(reader.varint32()?) },
        AUDITED => Event::Audited(Box::new(access::audit(reader)?)),
        _ => return Err(Malformed("unknown record kind")),
    })
}

fn cumulative_ack(reader: &mut Reader<'_>) -> Result<CumulativeAck, Malformed> {
    let position = Position(reader.varint()?);
    let flags = reader.byte()?;
    if flags > 3 {
        return Err(Malformed("unknown flags of an ack"));
    }
    let mut number = |flag| if flags & flag == 0 { Ok(None) } else { reader.varint().map(Some) };
    let (commits, winner_until) = (number(1)?.map(Millis), number(2)?.map(Timestamp));
    Ok(CumulativeAck { position, commits, winner_until })
}

/// The time that ends a payload, if there is one.
fn trailing_time(reader: &mut Reader<'_>) -> Result<Option<Timestamp>, Malformed> {
    Ok(match reader.is_empty() {
        true => None,
        false => Some(Timestamp(reader.varint()?)),
    })
}
