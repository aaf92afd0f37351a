//! Encoding of packed chunks of messages.
//!
//! ```text
//! 0 | 1, bits of the rows with a message u128     (0: no row's message is removed)
//! columns, with a length prefix                   (as in memory)
//! ack runs, with their number before              (messages, groups, retained 0 | 1)
//! row, group; with their number before            (messages that only one group sees)
//! row, decision fields with a length prefix       (to the end)
//! ```

use std::sync::Arc;

use super::decision_fields;
use super::fields::flag;
use crate::state::{AckRun, ChunkParts, MessageChunk};
use crate::types::GroupId;
use crate::wire::{Malformed, Reader, put_bytes, put_varint, put_varints};

pub(super) fn put(out: &mut Vec<u8>, chunk: &MessageChunk) {
    let ChunkParts { live, columns, acks, visible_to, fields } = chunk.parts();
    out.push(u8::from(live.is_some()));
    live.iter().for_each(|live| out.extend_from_slice(&live.to_le_bytes()));
    put_bytes(out, columns);
    put_varint(out, acks.len() as u64);
    for AckRun { messages, acked_in, retained } in acks {
        put_varints(out, [u64::from(messages), u64::from(acked_in), u64::from(retained)]);
    }
    put_varint(out, visible_to.len() as u64);
    for (row, group) in visible_to {
        out.push(row);
        put_varint(out, u64::from(group.0));
    }
    let mut encoded = Vec::new();
    for (row, fields) in fields {
        encoded.clear();
        decision_fields::put(&mut encoded, &fields);
        out.push(row);
        put_bytes(out, &encoded);
    }
}

/// Reads a chunk to the end of the input.
pub(super) fn read(from: &mut Reader<'_>) -> Result<MessageChunk, Malformed> {
    let live = match flag(from)? {
        true => from.take(16)?.first_chunk().map(|bits| u128::from_le_bytes(*bits)),
        false => None,
    };
    let columns = from.bytes()?;
    let acks = many(from, |from| {
        let (messages, acked_in) = (from.varint32()?, from.varint32()?);
        Ok(AckRun { messages, acked_in, retained: flag(from)? })
    })?;
    let visible_to = many(from, |from| Ok((from.byte()?, GroupId(from.varint32()?))))?;
    let mut fields = Vec::new();
    while !from.is_empty() {
        let row = from.byte()?;
        let mut encoded = Reader::new(from.bytes()?);
        if encoded.is_empty() {
            return Err(Malformed("no decision field of a message"));
        }
        fields.push((row, Arc::new(decision_fields::read(&mut encoded)?)));
    }
    MessageChunk::decode(ChunkParts { live, columns, acks, visible_to, fields })
}

/// Reads as many entries as the number before them says. Each takes a byte at least, so that no number makes it
/// allocate much more than the input is long.
fn many<'a, T>(
    from: &mut Reader<'a>,
    read: impl Fn(&mut Reader<'a>) -> Result<T, Malformed>,
) -> Result<Vec<T>, Malformed> {
    let count = from.varint()?;
    let mut entries = Vec::new();
    for _ in 0..count {
        entries.push(read(from)?);
    }
    Ok(entries)
}
