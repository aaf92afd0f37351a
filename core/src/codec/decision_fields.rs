//! Encoding of decision fields: tagged fields in ascending tag order; absent fields take no bytes.

use super::fields::{put_scope, scope};
use crate::types::metadata::{origin, policy, put_origin, put_policy};
use crate::types::{DecisionFields, IdentityKey, Offset, Priority, RedriveOrigin, Text, Timestamp};
use crate::wire::{Malformed, Reader, put_bytes, put_varint, put_varints};

const IDENTITY: u8 = 1;
const REQUESTED: u8 = 2;
const DEADLINE: u8 = 3;
const RETRY_POLICY: u8 = 4;
const PRIORITY: u8 = 5;
const DELIVER_AT: u8 = 6;
const DELAYED_UNTIL: u8 = 7;
const DEAD_LETTER: u8 = 8;
const REDRIVE: u8 = 9;
const LOST: u8 = 10;

pub(super) fn put(out: &mut Vec<u8>, fields: &DecisionFields) {
    let DecisionFields { identity, requested, deadline, retry_policy, priority, .. } = fields;
    let DecisionFields { deliver_at, delayed_until, dead_letter, redrive, lost, .. } = fields;
    if let Some(identity) = identity {
        let (tenant, key) = identity.parts();
        out.push(IDENTITY);
        put_bytes(out, tenant.as_bytes());
        put_bytes(out, key.as_bytes());
    }
    if let Some(requested) = requested {
        out.push(REQUESTED);
        put_scope(out, requested);
    }
    put_time(out, DEADLINE, *deadline);
    if let Some(policy) = retry_policy {
        out.push(RETRY_POLICY);
        put_policy(out, policy);
    }
    if priority.level() > 0 {
        out.extend([PRIORITY, priority.level()]);
    }
    put_time(out, DELIVER_AT, *deliver_at);
    put_time(out, DELAYED_UNTIL, *delayed_until);
    if let Some(origin) = dead_letter {
        out.push(DEAD_LETTER);
        put_origin(out, origin);
    }
    if let Some(RedriveOrigin { count, dead_letter_offset, original_offset }) = *redrive {
        out.push(REDRIVE);
        put_varints(out, [u64::from(count), dead_letter_offset.0, original_offset.0]);
    }
    if let Some(damage) = lost {
        out.push(LOST);
        put_bytes(out, damage.as_bytes());
    }
}

/// Reads fields to the end of the input; at least one is set.
pub(super) fn read(from: &mut Reader<'_>) -> Result<DecisionFields, Malformed> {
    let mut fields = DecisionFields::default();
    let mut last_tag = 0;
    while !from.is_empty() {
        let tag = from.byte()?;
        if tag <= last_tag {
            return Err(Malformed("decision fields out of order"));
        }
        last_tag = tag;
        match tag {
            IDENTITY => fields.identity = Some(IdentityKey::new(from.text()?, from.text()?)),
            REQUESTED => fields.requested = Some(scope(from)?),
            DEADLINE => fields.deadline = Some(Timestamp(from.varint()?)),
            RETRY_POLICY => fields.retry_policy = Some(policy(from)?),
            PRIORITY => {
                let priority = Priority::new(from.byte()?).filter(|priority| priority.level() > 0);
                fields.priority = priority.ok_or(Malformed("priority is not 1 to 9"))?;
            }
            DELIVER_AT => fields.deliver_at = Some(Timestamp(from.varint()?)),
            DELAYED_UNTIL => fields.delayed_until = Some(Timestamp(from.varint()?)),
            DEAD_LETTER => fields.dead_letter = Some(origin(from)?),
            REDRIVE => {
                fields.redrive = Some(RedriveOrigin {
                    count: from.varint32()?,
                    dead_letter_offset: Offset(from.varint()?),
                    original_offset: Offset(from.varint()?),
                });
            }
            LOST => fields.lost = Some(Text::from(from.text()?)),
            _ => return Err(Malformed("unknown decision field")),
        }
    }
    Ok(fields)
}

fn put_time(out: &mut Vec<u8>, tag: u8, time: Option<Timestamp>) {
    if let Some(time) = time {
        out.push(tag);
        put_varint(out, time.0);
    }
}
