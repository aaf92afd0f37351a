//! Encoding of snapshot images.

use std::sync::Arc;

use super::fields::*;
use super::{access, chunk, decision_fields, effects};
use crate::record::{Image, RunImage};
use crate::types::names::*;
use crate::types::{
    Boot, GroupId, Lsn, Offset, OffsetRef, PartitionId, Position, TenantId, Text, Timestamp, TopicId, TopicName,
};
use crate::types::{DeliveryState, GroupOrigin, LastError, Phase, Winner};
use crate::wire::{Malformed, Reader, put_bytes, put_varint, put_varints};

const ORIGIN: u8 = 0x80;
const TOPIC: u8 = 0x81;
const PARTITION: u8 = 0x82;
const TRIMMED_RUN: u8 = 0x83;
const MESSAGE: u8 = 0x84;
const GROUP: u8 = 0x85;
const FLOOR: u8 = 0x86;
const DONE_RUN: u8 = 0x87;
const ENTRY: u8 = 0x88;
const IDENTITY: u8 = 0x89;
const REPLAYED: u8 = 0x8A;
const EFFECT: u8 = 0x8B;
const COMPLETION: u8 = 0x8C;
const WINNER: u8 = 0x8D;
const CHUNK: u8 = 0x8E;
const GROUP_WITH_ORIGIN: u8 = 0x94;
const ACCESS: u8 = 0x95;
const TENANT: u8 = 0x96;
const KEY: u8 = 0x97;
const AUDIT: u8 = 0x98;

/// Whether frames of this kind occur in snapshots only.
pub(crate) fn is_image(kind: u8) -> bool {
    (ORIGIN..0xA0).contains(&kind)
}

pub(super) fn kind(image: &Image) -> u8 {
    match image {
        Image::Origin { .. } => ORIGIN,
        Image::Access { .. } => ACCESS,
        Image::Tenant { .. } => TENANT,
        Image::Key(_) => KEY,
        Image::Audit(_) => AUDIT,
        Image::Topic { .. } => TOPIC,
        Image::Partition { .. } => PARTITION,
        Image::TrimmedRun { .. } => TRIMMED_RUN,
        Image::Message { .. } => MESSAGE,
        Image::Chunk { .. } => CHUNK,
        Image::Group { origin: GroupOrigin::Requested, has_acked: false, .. } => GROUP,
        Image::Group { .. } => GROUP_WITH_ORIGIN,
        Image::Floor { .. } => FLOOR,
        Image::AckedRun { .. } => DONE_RUN,
        Image::DeliveryState { .. } => ENTRY,
        Image::DedupeEntry { .. } => IDENTITY,
        Image::Replayed { .. } => REPLAYED,
        Image::Effect { .. } => EFFECT,
        Image::Completion { .. } => COMPLETION,
        Image::Winner { .. } => WINNER,
    }
}

pub(super) fn encode(image: &Image, out: &mut Vec<u8>) {
    match image {
        Image::Origin { last_lsn, clock, wall_clock, boot, next_topic } => {
            put_varint(out, last_lsn.0);
            put_varint(out, clock.0);
            put_wall_clock(out, wall_clock);
            put_varint(out, u64::from(boot.0));
            put_varint(out, u64::from(next_topic.0));
        }
        Image::Access { last_tenant, next_audit } => put_varints(out, [u64::from(last_tenant.0), *next_audit]),
        Image::Tenant { tenant, name } => {
            put_varint(out, u64::from(tenant.0));
            out.extend_from_slice(name.as_str().as_bytes());
        }
        Image::Key(key) => access::put_key(out, key),
        Image::Audit(entry) => access::put_audit_entry(out, entry),
        Image::Topic { topic, name, partitions, retention, next_offset, next_group } => {
            put_varint(out, u64::from(topic.0));
            put_bytes(out, name.encoded().as_bytes());
            put_varint(out, u64::from(*partitions));
            put_retention(out, *retention);
            put_varint(out, next_offset.0);
            put_varint(out, u64::from(next_group.0));
        }
        Image::Partition { topic, partition, next_position, last_offset, trimmed_floor, trimmed_floor_offset } => {
            put_partition(out, *topic, *partition);
            put_varint(out, next_position.0);
            put_optional(out, last_offset.map(|offset| offset.0));
            put_varint(out, trimmed_floor.0);
            put_optional(out, trimmed_floor_offset.map(|offset| offset.0));
        }
        Image::TrimmedRun { topic, partition, run } => {
            put_partition(out, *topic, *partition);
            put_run(out, run);
        }
        Image::Message {
            topic,
            partition,
            position,
            offset,
            produced_at,
            acked_in,
            retained,
            visible_to,
            payload,
            fields,
        } => {
            put_partition(out, *topic, *partition);
            put_varint(out, position.0);
            put_varint(out, offset.0);
            put_varint(out, produced_at.0);
            put_varint(out, u64::from(*acked_in));
            out.push(u8::from(*retained));
            put_optional(out, visible_to.map(|group| u64::from(group.0)));
            put_payload_ref(out, payload);
            fields.iter().for_each(|fields| decision_fields::put(out, fields));
        }
        Image::Chunk { topic, partition, chunk } => {
            put_partition(out, *topic, *partition);
            chunk::put(out, chunk);
        }
        Image::Group { topic, group, name, paused, skipped, origin, has_acked } => {
            put_group(out, *topic, *group);
            if kind(image) == GROUP_WITH_ORIGIN {
                out.extend([origin_code(*origin), u8::from(*has_acked)]);
            }
            out.push(u8::from(*paused));
            put_varint(out, *skipped);
            out.extend_from_slice(name.as_str().as_bytes());
        }
        Image::Floor { topic, group, partition, floor, floor_offset } => {
            put_group(out, *topic, *group);
            put_varint(out, u64::from(partition.0));
            put_varint(out, floor.0);
            put_optional(out, floor_offset.map(|offset| offset.0));
        }
        Image::AckedRun { topic, group, partition, run } => {
            put_group(out, *topic, *group);
            put_varint(out, u64::from(partition.0));
            put_run(out, run);
        }
        Image::DeliveryState { message_ref, delivery } => {
            put_message_ref(out, message_ref);
            put_entry(out, delivery);
        }
        Image::DedupeEntry { scope, tenant, key, partition, offset, expires_at } => {
            put_scope(out, scope);
            put_bytes(out, tenant.as_bytes());
            put_varint(out, u64::from(partition.0));
            put_varint(out, offset.0);
            put_varint(out, expires_at.0);
            out.extend_from_slice(key.as_bytes());
        }
        Image::Replayed { topic, group, partition, below } => {
            put_group(out, *topic, *group);
            put_varint(out, u64::from(partition.0));
            put_varint(out, below.0);
        }
        Image::Effect { identity, effect } => {
            effects::put_identity(out, identity);
            effects::put_effect(out, effect);
        }
        Image::Completion { token, completion } => {
            put_token(out, *token);
            effects::put_completion(out, completion);
        }
        Image::Winner { message, winner } => {
            put_group(out, message.topic, message.group);
            put_varints(out, [u64::from(message.partition.0), message.offset.0, winner.until.0]);
            if let Some(token) = winner.token {
                put_token(out, token);
            }
        }
    }
}

pub(super) fn decode(kind: u8, payload: &[u8]) -> Result<Image, Malformed> {
    let mut reader = Reader::new(payload);
    let from = &mut reader;
    let image = match kind {
        ORIGIN => Image::Origin {
            last_lsn: Lsn(from.varint()?),
            clock: Timestamp(from.varint()?),
            wall_clock: wall_clock(from)?,
            boot: Boot(from.varint32()?),
            next_topic: TopicId(from.varint32()?),
        },
        ACCESS => Image::Access { last_tenant: TenantId(from.varint32()?), next_audit: from.varint()? },
        TENANT => Image::Tenant { tenant: TenantId(from.varint32()?), name: tenant_name(rest_text(from)?)? },
        KEY => Image::Key(Arc::new(access::key(from)?)),
        AUDIT => Image::Audit(Arc::new(access::audit_entry(from)?)),
        TOPIC => Image::Topic {
            topic: TopicId(from.varint32()?),
            name: TopicName::decode(from.text()?)?,
            partitions: from.varint32()?,
            retention: retention(from)?,
            next_offset: Offset(from.varint()?),
            next_group: GroupId(from.varint32()?),
        },
        PARTITION => {
            let (topic, partition) = partition(from)?;
            Image::Partition {
                topic,
                partition,
                next_position: Position(from.varint()?),
                last_offset: optional(from)?.map(Offset),
                trimmed_floor: Position(from.varint()?),
                trimmed_floor_offset: optional(from)?.map(Offset),
            }
        }
        TRIMMED_RUN => {
            let (topic, partition) = partition(from)?;
            Image::TrimmedRun { topic, partition, run: run(from)? }
        }
        MESSAGE => {
            let (topic, partition) = partition(from)?;
            Image::Message {
                topic,
                partition,
                position: Position(from.varint()?),
                offset: Offset(from.varint()?),
                produced_at: Timestamp(from.varint()?),
                acked_in: from.varint32()?,
                retained: flag(from)?,
                visible_to: optional_group(from)?,
                payload: payload_ref(from)?,
                fields: if from.is_empty() { None } else { Some(Arc::new(decision_fields::read(from)?)) },
            }
        }
        CHUNK => {
            let (topic, partition) = partition(from)?;
            Image::Chunk { topic, partition, chunk: chunk::read(from)? }
        }
        GROUP | GROUP_WITH_ORIGIN => {
            let (topic, group) = group(from)?;
            let (origin, has_acked) = match kind {
                GROUP => (GroupOrigin::Requested, false),
                _ => (origin(from)?, flag(from)?),
            };
            if kind == GROUP_WITH_ORIGIN && origin == GroupOrigin::Requested && !has_acked {
                return Err(Malformed("a group with an image kind of its own"));
            }
            let (paused, skipped) = (flag(from)?, from.varint()?);
            let name = group_name(rest_text(from)?)?;
            Image::Group { topic, group, name, paused, skipped, origin, has_acked }
        }
        FLOOR => {
            let (topic, group) = group(from)?;
            Image::Floor {
                topic,
                group,
                partition: PartitionId(from.varint32()?),
                floor: Position(from.varint()?),
                floor_offset: optional(from)?.map(Offset),
            }
        }
        DONE_RUN => {
            let (topic, group) = group(from)?;
            Image::AckedRun { topic, group, partition: PartitionId(from.varint32()?), run: run(from)? }
        }
        ENTRY => Image::DeliveryState { message_ref: message_ref(from)?, delivery: delivery(from)? },
        IDENTITY => Image::DedupeEntry {
            scope: scope(from)?,
            tenant: Text::from(from.text()?),
            partition: PartitionId(from.varint32()?),
            offset: Offset(from.varint()?),
            expires_at: Timestamp(from.varint()?),
            key: Text::from(rest_text(from)?),
        },
        REPLAYED => {
            let (topic, group) = group(from)?;
            Image::Replayed { topic, group, partition: PartitionId(from.varint32()?), below: Position(from.varint()?) }
        }
        EFFECT => Image::Effect { identity: effects::identity(from)?, effect: effects::effect(from)? },
        COMPLETION => Image::Completion { token: token(from)?, completion: effects::completion(from)? },
        WINNER => {
            let (topic, group) = group(from)?;
            let (partition, offset) = (PartitionId(from.varint32()?), Offset(from.varint()?));
            let until = Timestamp(from.varint()?);
            let token = if from.is_empty() { None } else { Some(token(from)?) };
            Image::Winner { message: OffsetRef { topic, group, partition, offset }, winner: Winner { token, until } }
        }
        _ => return Err(Malformed("unknown snapshot image kind")),
    };
    reader.finish()?;
    Ok(image)
}

fn put_entry(out: &mut Vec<u8>, delivery: &DeliveryState) {
    put_varint(out, delivery.offset.0);
    put_varint(out, u64::from(delivery.attempts));
    put_varint(out, u64::from(delivery.failures));
    put_token(out, delivery.token);
    put_bytes(out, delivery.owner.as_str().as_bytes());
    let (phase, at) = match delivery.phase {
        Phase::Leased { until } => (0, until),
        Phase::Queued { not_before } => (1, not_before),
    };
    out.push(phase);
    put_varint(out, at.0);
    match &delivery.last_error {
        LastError::Nothing => out.push(0),
        LastError::AckTimeout => out.push(1),
        LastError::Reason(text) => {
            out.push(2);
            out.extend_from_slice(text.as_bytes());
        }
    }
}

fn delivery(reader: &mut Reader<'_>) -> Result<DeliveryState, Malformed> {
    Ok(DeliveryState {
        offset: Offset(reader.varint()?),
        attempts: reader.varint32()?,
        failures: reader.varint32()?,
        token: token(reader)?,
        owner: owner_name(reader.text()?)?,
        phase: match reader.byte()? {
            0 => Phase::Leased { until: Timestamp(reader.varint()?) },
            1 => Phase::Queued { not_before: Timestamp(reader.varint()?) },
            _ => return Err(Malformed("unknown phase")),
        },
        last_error: match reader.byte()? {
            0 => LastError::Nothing,
            1 => LastError::AckTimeout,
            2 => LastError::Reason(Arc::from(rest_text(reader)?)),
            _ => return Err(Malformed("unknown last error")),
        },
    })
}

fn put_partition(out: &mut Vec<u8>, topic: TopicId, partition: PartitionId) {
    put_varint(out, u64::from(topic.0));
    put_varint(out, u64::from(partition.0));
}

fn partition(reader: &mut Reader<'_>) -> Result<(TopicId, PartitionId), Malformed> {
    Ok((TopicId(reader.varint32()?), PartitionId(reader.varint32()?)))
}

fn put_run(out: &mut Vec<u8>, run: &RunImage) {
    put_varint(out, run.start.0);
    put_varint(out, run.end.0);
    put_varint(out, run.last_offset.0);
}

fn run(reader: &mut Reader<'_>) -> Result<RunImage, Malformed> {
    let run = RunImage {
        start: Position(reader.varint()?),
        end: Position(reader.varint()?),
        last_offset: Offset(reader.varint()?),
    };
    if run.start < run.end { Ok(run) } else { Err(Malformed("empty run")) }
}

fn optional_group(reader: &mut Reader<'_>) -> Result<Option<GroupId>, Malformed> {
    optional(reader)?
        .map(|group| u32::try_from(group).map(GroupId).map_err(|_| Malformed("number exceeds 32 bits")))
        .transpose()
}
