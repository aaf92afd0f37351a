//! A packed chunk: up to [`CHUNK`] messages in one allocation.
//!
//! Each column, position or length for example, is a straight line through the chunk plus a difference per message:
//!
//! ```text
//! value = base + row × step + difference          (modulo 2^64, hence defined for any values)
//! ```
//!
//! The differences of a message stand next to each other in its row. A column takes as many bytes of a row as its
//! greatest difference needs, none if all are 0. Rows of one chunk have the same length, so that any of them is read
//! without the others.
//!
//! ```text
//! count u8 | row length u8 | width u8 × 8 | (base u64, step u64) × 4 | base u32 × 4 | rows | 8 bytes of zeros
//! ```
//!
//! All numbers are little-endian. The steps are of position, offset, time and LSN, which increase; part and lengths
//! have none. The zeros at the end let any difference be read as eight bytes.
//!
//! Decision fields and flags, which few messages have, are held beside the rows.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use super::{ARC_BYTES, fields_bytes, partition_point};
use crate::state::message::Message;
use crate::types::{DecisionFields, Lsn, MessageFlags, Offset, PayloadId, PayloadRef, Position, Timestamp};

/// The most messages of a chunk, packed or not.
pub(super) const CHUNK: usize = 128;

pub(super) const COLUMNS: usize = 8;
pub(super) const POSITION: usize = 0;
pub(super) const OFFSET: usize = 1;
pub(super) const TIME: usize = 2;
pub(super) const LSN: usize = 3;

/// The leading columns that have a step and a base of eight bytes.
pub(super) const STEPPED: usize = 4;

pub(super) const WIDTHS: usize = 2;
pub(super) const LINES: usize = WIDTHS + COLUMNS;
const BASES: usize = LINES + STEPPED * 16;
pub(super) const ROWS: usize = BASES + (COLUMNS - STEPPED) * 4;
pub(super) const PADDING: usize = 8;

/// Up to [`CHUNK`] messages. A removed message keeps its row; a clone shares the rows.
#[derive(Clone)]
pub(super) struct Packed {
    pub(super) live: Live,
    pub(super) bytes: Arc<[u8]>,
    /// Ascending by row.
    pub(super) special: Option<Arc<[Special]>>,
}

/// What a row has no column for.
pub(super) struct Special {
    pub(super) row: u8,
    pub(super) flags: MessageFlags,
    pub(super) fields: Option<Arc<DecisionFields>>,
}

impl Packed {
    /// Packs messages with ascending positions, at most [`CHUNK`].
    pub(super) fn new<'a>(messages: impl IntoIterator<Item = &'a (Position, Message)>) -> Self {
        let mut columns = [[0; CHUNK]; COLUMNS];
        let mut special = Vec::new();
        let mut count = 0;
        for (position, message) in messages {
            let id = message.payload.id;
            let stepped = [position.0, message.offset.0, message.produced_at.0, id.lsn.0];
            let lengths = [message.payload.metadata_len, message.payload.key_len, message.payload.value_len];
            let others = [id.part, lengths[0], lengths[1], lengths[2]].map(u64::from);
            for (column, value) in columns.iter_mut().zip(stepped.into_iter().chain(others)) {
                column[count] = value;
            }
            if message.fields().is_some() || message.flags != MessageFlags::default() {
                special.push(Special { row: count as u8, flags: message.flags, fields: message.fields().cloned() });
            }
            count += 1;
        }
        let special = if special.is_empty() { None } else { Some(special.into()) };
        Self { live: Live::all(count), bytes: encode(&mut columns, count).into(), special }
    }

    /// The bytes described above.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> &Arc<[u8]> {
        &self.bytes
    }

    /// The number of rows, those of removed messages included.
    pub(super) fn rows(&self) -> usize {
        usize::from(self.bytes[0])
    }

    pub(super) fn live(&self) -> Live {
        self.live
    }

    pub(super) fn position(&self, row: usize) -> Position {
        Position(self.value(POSITION, row))
    }

    pub(super) fn offset(&self, row: usize) -> Offset {
        Offset(self.value(OFFSET, row))
    }

    pub(super) fn produced_at(&self, row: usize) -> Timestamp {
        Timestamp(self.value(TIME, row))
    }

    pub(super) fn lsn(&self, row: usize) -> Lsn {
        Lsn(self.value(LSN, row))
    }

    /// A range that contains the LSNs of all rows, and little else; `None` if there is none.
    pub(super) fn lsn_bounds(&self) -> Option<RangeInclusive<Lsn>> {
        let head = self.head();
        let greatest = match head[WIDTHS + LSN] {
            0 => 0,
            width => u64::MAX >> (u64::BITS - 8 * u32::from(width)),
        };
        let rise = u64_at(head, LINES + LSN * 16 + 8).checked_mul(self.rows() as u64)?;
        let first = line(head, LSN, 0);
        Some(Lsn(first)..=Lsn(first.checked_add(rise)?.checked_add(greatest)?))
    }

    /// The message of a row, removed or not, and its position.
    pub(super) fn entry(&self, row: usize) -> (Position, Message) {
        let head = self.head();
        let mut at = self.start_of(row);
        let mut difference = |column: usize| {
            let width = usize::from(head[WIDTHS + column]);
            let difference = self.difference(at, width);
            at += width;
            difference
        };
        let mut stepped = |column| line(head, column, row).wrapping_add(difference(column));
        let [position, offset, produced_at, lsn] = [stepped(0), stepped(1), stepped(2), stepped(3)];
        let mut other = |column| base(head, column).wrapping_add(difference(column) as u32);
        let [part, metadata_len, key_len, value_len] = [other(4), other(5), other(6), other(7)];
        let payload = PayloadRef { id: PayloadId { lsn: Lsn(lsn), part }, metadata_len, key_len, value_len };
        let special = self.special(row);
        let fields = special.and_then(|special| special.fields.clone());
        let mut message = Message::new(Offset(offset), Timestamp(produced_at), payload, fields);
        if let Some(special) = special {
            message.flags = special.flags;
        }
        (Position(position), message)
    }

    /// The number of rows with flags or decision fields.
    pub(super) fn special_len(&self) -> usize {
        self.special.as_ref().map_or(0, |special| special.len())
    }

    /// The flags of the message of a row, removed or not.
    pub(super) fn flags(&self, row: usize) -> MessageFlags {
        self.special(row).map_or_else(MessageFlags::default, |special| special.flags)
    }

    /// The decision fields of the message of a row, removed or not.
    pub(super) fn fields(&self, row: usize) -> Option<&Arc<DecisionFields>> {
        self.special(row)?.fields.as_ref()
    }

    /// The first row at or above `position`.
    pub(super) fn row_from(&self, position: Position) -> usize {
        let head = self.head();
        if head[WIDTHS + POSITION] > 0 {
            return partition_point(0..self.rows(), |row| self.position(row) < position);
        }
        // The usual case: positions without gaps.
        let above = position.0.saturating_sub(u64_at(head, LINES));
        let step = u64_at(head, LINES + 8);
        let row = if step <= 1 { above } else { above.div_ceil(step) };
        row.min(self.rows() as u64) as usize
    }

    /// The row of the message at `position`, if it is not removed.
    pub(super) fn find(&self, position: Position) -> Option<usize> {
        let row = self.row_from(position);
        (row < self.rows() && self.live.contains(row) && self.position(row) == position).then_some(row)
    }

    /// Removes the messages of these rows.
    pub(super) fn remove(&mut self, rows: Range<usize>) {
        self.live.remove(rows);
    }

    /// The bytes that it holds outside of its slot, whether shared or not.
    pub(super) fn heap_bytes(&self) -> u64 {
        let special = self.special.as_ref().map_or(0, |special| {
            let fields: u64 = special.iter().map(|special| fields_bytes(special.fields.as_ref())).sum();
            ARC_BYTES + size_of_val::<[Special]>(special) as u64 + fields
        });
        ARC_BYTES + self.bytes.len() as u64 + special
    }

    /// The value of a column with a step.
    fn value(&self, column: usize, row: usize) -> u64 {
        let head = self.head();
        let width = usize::from(head[WIDTHS + column]);
        if width == 0 {
            return line(head, column, row);
        }
        let before: usize = head[WIDTHS..WIDTHS + column].iter().map(|width| usize::from(*width)).sum();
        line(head, column, row).wrapping_add(self.difference(self.start_of(row) + before, width))
    }

    pub(super) fn head(&self) -> &[u8; ROWS] {
        self.bytes.first_chunk().expect("the rows follow the head")
    }

    fn start_of(&self, row: usize) -> usize {
        ROWS + row * usize::from(self.bytes[1])
    }

    /// The difference of `width` bytes at `at`.
    pub(super) fn difference(&self, at: usize, width: usize) -> u64 {
        match width {
            0 => 0,
            _ => u64_at(&self.bytes, at) & u64::MAX.wrapping_shr(64 - 8 * width as u32),
        }
    }

    fn special(&self, row: usize) -> Option<&Special> {
        let special = self.special.as_ref()?;
        let at = special.binary_search_by_key(&row, |special| usize::from(special.row)).ok()?;
        Some(&special[at])
    }
}

/// The value of a column with a step, without the difference.
fn line(head: &[u8; ROWS], column: usize, row: usize) -> u64 {
    let at = LINES + column * 16;
    u64_at(head, at).wrapping_add(u64_at(head, at + 8).wrapping_mul(row as u64))
}

/// The base of a column without a step.
pub(super) fn base(head: &[u8; ROWS], column: usize) -> u32 {
    let at = BASES + (column - STEPPED) * 4;
    u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])
}

#[inline]
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("eight bytes of zeros follow the last row"))
}

/// Encodes the first `count` values of the columns, which are replaced by their differences.
fn encode(columns: &mut [[u64; CHUNK]; COLUMNS], count: usize) -> Vec<u8> {
    let mut head = [0; ROWS];
    for (index, column) in columns.iter_mut().enumerate() {
        let line = Line::subtract_from(&mut column[..count], index < STEPPED);
        head[WIDTHS + index] = line.width as u8;
        if index < STEPPED {
            let at = LINES + index * 16;
            head[at..at + 8].copy_from_slice(&line.base.to_le_bytes());
            head[at + 8..at + 16].copy_from_slice(&line.step.to_le_bytes());
        } else {
            let at = BASES + (index - STEPPED) * 4;
            head[at..at + 4].copy_from_slice(&(line.base as u32).to_le_bytes());
        }
    }
    let row_len: u8 = head[WIDTHS..LINES].iter().sum();
    (head[0], head[1]) = (count as u8, row_len);
    let end = ROWS + count * usize::from(row_len);
    let mut bytes = vec![0; end + PADDING];
    bytes[..ROWS].copy_from_slice(&head);
    let mut at = ROWS;
    for row in 0..count {
        for (column, width) in columns.iter().zip(&head[WIDTHS..LINES]).filter(|(_, width)| **width > 0) {
            // What is written beyond the width, the next difference overwrites.
            bytes[at..at + 8].copy_from_slice(&column[row].to_le_bytes());
            at += usize::from(*width);
        }
    }
    bytes[end..].fill(0);
    bytes
}

/// A line below the values of a column, and the bytes of the greatest difference from it.
struct Line {
    base: u64,
    step: u64,
    width: usize,
}

impl Line {
    /// Replaces values by their differences from a line, which rises if `stepped` and the last value is above the
    /// first. For values that never decrease, no difference is then greater than without a step.
    fn subtract_from(values: &mut [u64], stepped: bool) -> Self {
        let (Some(&first), Some(&last)) = (values.first(), values.last()) else {
            return Self { base: 0, step: 0, width: 0 };
        };
        let rise = if stepped { last.saturating_sub(first) } else { 0 };
        let step = rise / (values.len() as u64 - 1).max(1);
        let is_on_line = |(row, value): (usize, &u64)| *value == first.wrapping_add(step.wrapping_mul(row as u64));
        if values.iter().enumerate().all(is_on_line) {
            values.fill(0);
            return Self { base: first, step, width: 0 };
        }
        // Signed, since values lie on both sides of the line through the first one.
        let (mut line, mut least, mut most) = (first, 0_i64, 0_i64);
        for value in &mut *values {
            let difference = value.wrapping_sub(line).cast_signed();
            *value = difference.cast_unsigned();
            (least, most) = (least.min(difference), most.max(difference));
            line = line.wrapping_add(step);
        }
        let least = least.cast_unsigned();
        values.iter_mut().for_each(|value| *value = value.wrapping_sub(least));
        let greatest = most.cast_unsigned().wrapping_sub(least);
        let width = (u64::BITS - greatest.leading_zeros()).div_ceil(8) as usize;
        Self { base: first.wrapping_add(least), step, width }
    }
}

/// The rows of a chunk whose messages are not removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Live {
    /// A `u128` would align each slot to 16 bytes.
    halves: [u64; 2],
}

impl Live {
    pub(super) fn all(count: usize) -> Self {
        Self::of(below(count))
    }

    pub(super) fn of(bits: u128) -> Self {
        Self { halves: [bits as u64, (bits >> 64) as u64] }
    }

    pub(super) fn bits(self) -> u128 {
        u128::from(self.halves[0]) | (u128::from(self.halves[1]) << 64)
    }

    pub(super) fn len(self) -> usize {
        (self.halves[0].count_ones() + self.halves[1].count_ones()) as usize
    }

    pub(super) fn contains(self, row: usize) -> bool {
        (self.halves[row / 64] >> (row % 64)) & 1 == 1
    }

    /// The first row at or after `row`.
    pub(super) fn next(self, row: usize) -> Option<usize> {
        let bits = self.bits() & !below(row);
        (bits != 0).then(|| bits.trailing_zeros() as usize)
    }

    /// The first row after `row` that is removed, or one past the last bit.
    pub(super) fn first_removed(self, row: usize) -> usize {
        (!self.bits() & !below(row)).trailing_zeros() as usize
    }

    /// The last row before `row`.
    pub(super) fn last_below(self, row: usize) -> Option<usize> {
        let bits = self.bits() & below(row);
        bits.checked_ilog2().map(|row| row as usize)
    }

    fn remove(&mut self, rows: Range<usize>) {
        if rows.len() == 1 {
            self.halves[rows.start / 64] &= !(1 << (rows.start % 64));
            return;
        }
        *self = Self::of(self.bits() & !(below(rows.end) & !below(rows.start)));
    }
}

/// The lowest `row` bits, at most all.
fn below(row: usize) -> u128 {
    1_u128.checked_shl(row as u32).map_or(u128::MAX, |bit| bit - 1)
}
