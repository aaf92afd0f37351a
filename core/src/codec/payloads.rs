//! Encoding of relocated and lost payloads.

use super::effects;
use super::fields::{body, put_body};
use crate::record::{MessageAt, PayloadLost, Referrer, Relocated};
use crate::types::{Lsn, PartitionId, PayloadId, Position, Text, TopicId};
use crate::wire::{Malformed, Reader, put_varint, put_varints};

const MESSAGE: u8 = 0;
const EFFECT: u8 = 1;

pub(super) fn put_relocated(out: &mut Vec<u8>, relocated: &Relocated) {
    put_id(out, relocated.from);
    put_referrers(out, &relocated.referrers);
    put_body(out, &relocated.body);
}

pub(super) fn relocated(reader: &mut Reader<'_>) -> Result<Relocated, Malformed> {
    Ok(Relocated { from: id(reader)?, referrers: referrers(reader)?, body: body(reader)? })
}

pub(super) fn put_lost(out: &mut Vec<u8>, lost: &PayloadLost) {
    put_id(out, lost.payload);
    put_referrers(out, &lost.referrers);
    out.extend_from_slice(lost.damage.as_bytes());
}

pub(super) fn lost(reader: &mut Reader<'_>) -> Result<PayloadLost, Malformed> {
    let (payload, referrers) = (id(reader)?, referrers(reader)?);
    Ok(PayloadLost { payload, referrers, damage: Text::from(super::fields::rest_text(reader)?) })
}

fn put_id(out: &mut Vec<u8>, id: PayloadId) {
    put_varints(out, [id.lsn.0, u64::from(id.part)]);
}

fn id(reader: &mut Reader<'_>) -> Result<PayloadId, Malformed> {
    Ok(PayloadId { lsn: Lsn(reader.varint()?), part: reader.varint32()? })
}

fn put_referrers(out: &mut Vec<u8>, referrers: &[Referrer]) {
    put_varint(out, referrers.len() as u64);
    for referrer in referrers {
        match referrer {
            Referrer::Message(MessageAt { topic, partition, position }) => {
                out.push(MESSAGE);
                put_varints(out, [u64::from(topic.0), u64::from(partition.0), position.0]);
            }
            Referrer::Effect(identity) => {
                out.push(EFFECT);
                effects::put_identity(out, identity);
            }
        }
    }
}

fn referrers(reader: &mut Reader<'_>) -> Result<Vec<Referrer>, Malformed> {
    let count = reader.varint()?;
    if count == 0 {
        return Err(Malformed("payload without a referrer"));
    }
    let mut referrers = Vec::new();
    for _ in 0..count {
        referrers.push(match reader.byte()? {
            MESSAGE => Referrer::Message(MessageAt {
                topic: TopicId(reader.varint32()?),
                partition: PartitionId(reader.varint32()?),
                position: Position(reader.varint()?),
            }),
            EFFECT => Referrer::Effect(effects::identity(reader)?),
            _ => return Err(Malformed("unknown referrer")),
        });
    }
    Ok(referrers)
}
