//! Packed chunks column by column: what a snapshot writes of them, checks of what it read, and sums.

use std::sync::Arc;

use super::Sums;
use super::packed::*;
use crate::types::{DecisionFields, Lsn, Offset, Position, RETAINED_MESSAGE_OVERHEAD};
use crate::wire::{Malformed, join};

const LSN: usize = 3;
const METADATA_LEN: usize = 5;
const KEY_LEN: usize = 6;
const VALUE_LEN: usize = 7;

/// The greatest width of a column with a step, and of one without.
const WIDTHS_MAX: [u8; 2] = [8, 4];

impl Packed {
    /// The packed bytes without the zeros at the end.
    pub(super) fn columns(&self) -> &[u8] {
        &self.bytes[..self.bytes.len() - PADDING]
    }

    /// A chunk of these columns, of which the rows in `live` are not removed.
    ///
    /// # Errors
    /// Every row must have a position, an offset and an LSN, in order, and `live` must not be empty. A row with fields
    /// must be live.
    pub(super) fn decode(
        columns: &[u8],
        live: Live,
        fields: Vec<(u8, Arc<DecisionFields>)>,
    ) -> Result<Self, Malformed> {
        let head: &[u8; ROWS] = columns.first_chunk().ok_or(Malformed("a chunk ends early"))?;
        let (rows, row_len) = (usize::from(head[0]), usize::from(head[1]));
        if rows == 0 || rows > CHUNK {
            return Err(Malformed("a chunk has no rows, or too many"));
        }
        let widths = &head[WIDTHS..LINES];
        let is_narrow = |(column, width): (usize, &u8)| *width <= WIDTHS_MAX[usize::from(column >= STEPPED)];
        if !widths.iter().enumerate().all(is_narrow) {
            return Err(Malformed("a column of a chunk is too wide"));
        }
        let sum: usize = widths.iter().map(|width| usize::from(*width)).sum();
        if sum != row_len || columns.len() != ROWS + rows * row_len {
            return Err(Malformed("the rows of a chunk have another length"));
        }
        if live.len() == 0 || live.last_below(CHUNK).is_some_and(|last| last >= rows) {
            return Err(Malformed("a chunk has no messages, or more than rows"));
        }
        let in_order = fields.windows(2).all(|pair| pair[0].0 < pair[1].0);
        if !in_order || !fields.iter().all(|(row, _)| usize::from(*row) < rows && live.contains(usize::from(*row))) {
            return Err(Malformed("decision fields of a row that is not there"));
        }
        let special =
            fields.into_iter().map(|(row, fields)| Special { row, flags: fields.flags(), fields: Some(fields) });
        let special: Arc<[Special]> = special.collect();
        let special = if special.is_empty() { None } else { Some(special) };
        let packed = Self { live, bytes: join(&[columns, &[0; PADDING]]), special };
        if !packed.is_in_order() {
            return Err(Malformed("the messages of a chunk are not in order"));
        }
        if packed.last_position() == Position(u64::MAX) {
            return Err(Malformed("a chunk ends at a position that is never assigned"));
        }
        if packed.lsns().0 == Lsn(0) {
            return Err(Malformed("a message of a chunk has no record"));
        }
        let fits = |column| u64::from(base(packed.head(), column)) + packed.greatest(column) <= u64::from(u32::MAX);
        if !(STEPPED..COLUMNS).all(fits) {
            return Err(Malformed("a length in a chunk exceeds 32 bits"));
        }
        Ok(packed)
    }

    /// Whether positions and offsets ascend and times do not descend from row to row.
    pub(super) fn is_in_order(&self) -> bool {
        self.ascends(POSITION, 1) && self.ascends(OFFSET, 1) && self.ascends(TIME, 0)
    }

    /// Whether the positions of consecutive rows are consecutive.
    pub(super) fn is_dense(&self) -> bool {
        let head = self.head();
        self.rows() == 1 || head[WIDTHS + POSITION] == 0 && u64_at(head, LINES + 8) == 1
    }

    pub(super) fn last_position(&self) -> Position {
        self.position(self.rows() - 1)
    }

    /// The least and the greatest LSN of all rows.
    pub(super) fn lsns(&self) -> (Lsn, Lsn) {
        let (mut least, mut most) = (u64::MAX, 0);
        self.for_each_value(LSN, |value| (least, most) = (least.min(value), most.max(value)));
        (Lsn(least), Lsn(most))
    }

    /// The sums over the messages that are not removed.
    pub(super) fn live_sums(&self) -> Sums {
        let bytes = self.live_sum(KEY_LEN) + self.live_sum(VALUE_LEN);
        let overhead = self.live.len() as u64 * RETAINED_MESSAGE_OVERHEAD;
        Sums { bytes, retained_bytes: bytes + self.live_sum(METADATA_LEN) + overhead }
    }

    /// The fields of the messages that are not removed, by row.
    pub(super) fn live_fields(&self) -> impl Iterator<Item = (u8, &Arc<DecisionFields>)> {
        let special = self.special.iter().flat_map(|special| special.iter());
        let live = special.filter(|special| self.live.contains(usize::from(special.row)));
        live.filter_map(|special| Some((special.row, special.fields.as_ref()?)))
    }

    /// Calls `each` with the offsets of the messages that are not removed, in order.
    pub(super) fn for_each_offset(&self, mut each: impl FnMut(Offset)) {
        let (mut row, all) = (0, self.live.len() == self.rows());
        self.for_each_value(OFFSET, |value| {
            if all || self.live.contains(row) {
                each(Offset(value));
            }
            row += 1;
        });
    }

    /// Whether no value is less than `step` above the one before it, and none wraps around.
    fn ascends(&self, column: usize, step: u64) -> bool {
        let head = self.head();
        if head[WIDTHS + column] == 0 {
            let at = LINES + column * 16;
            let rise = u64_at(head, at + 8).checked_mul(self.rows() as u64 - 1);
            let last = rise.and_then(|rise| u64_at(head, at).checked_add(rise));
            return last.is_some() && (self.rows() == 1 || u64_at(head, at + 8) >= step);
        }
        let (mut is_first, mut last, mut ascends) = (true, 0_u64, true);
        self.for_each_value(column, |value| {
            // Without a branch: a value that is `step` above the one before, and no sum that wraps around.
            let (least, wraps) = last.overflowing_add(step);
            ascends &= is_first | (!wraps & (value >= least));
            (is_first, last) = (false, value);
        });
        ascends
    }

    /// Calls `each` with the values of a column with a step, by row.
    pub(super) fn for_each_value(&self, column: usize, mut each: impl FnMut(u64)) {
        let head = self.head();
        let (mut value, step) = (u64_at(head, LINES + column * 16), u64_at(head, LINES + column * 16 + 8));
        self.for_each_difference(column, |difference| {
            each(value.wrapping_add(difference));
            value = value.wrapping_add(step);
        });
    }

    /// The greatest difference of a column.
    fn greatest(&self, column: usize) -> u64 {
        let mut greatest = 0;
        self.for_each_difference(column, |difference| greatest = greatest.max(difference));
        greatest
    }

    /// The sum of a column without a step over the messages that are not removed.
    fn live_sum(&self, column: usize) -> u64 {
        let messages = self.live.len();
        let bases = u64::from(base(self.head(), column)) * messages as u64;
        if self.head()[WIDTHS + column] == 0 {
            return bases;
        }
        let (mut sum, mut row, all) = (bases, 0, messages == self.rows());
        self.for_each_difference(column, |difference| {
            sum += if all || self.live.contains(row) { difference } else { 0 };
            row += 1;
        });
        sum
    }

    /// Calls `each` with the differences of a column, by row.
    fn for_each_difference(&self, column: usize, mut each: impl FnMut(u64)) {
        let head = self.head();
        let before: usize = head[WIDTHS..WIDTHS + column].iter().map(|width| usize::from(*width)).sum();
        let (width, row_len) = (usize::from(head[WIDTHS + column]), usize::from(head[1]));
        let rows = self.bytes[ROWS..self.bytes.len() - PADDING].chunks_exact(row_len.max(1));
        match width {
            0 => (0..self.rows()).for_each(|_| each(0)),
            // By far the most; loops of their own are several times as fast.
            1 => rows.for_each(|row| each(u64::from(row[before]))),
            2 => rows.for_each(|row| each(u64::from(u16::from_le_bytes([row[before], row[before + 1]])))),
            _ => (0..self.rows()).for_each(|row| each(self.difference(ROWS + row * row_len + before, width))),
        }
    }
}
