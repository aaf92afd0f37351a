//! Values whose every byte follows from the number of their message, so that a delivered one can be checked.

use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use super::request::{STAMP_DIGITS, write_hex};

/// Places in the table at which the bytes of a value may begin, and the most bytes taken from one place.
const PLACES: usize = 4096;
/// Numbers are counted in ranges of this many.
const RANGE_BITS: u32 = 24;

/// Characters without a pattern that a shift or a repetition would keep.
static TABLE: LazyLock<Box<[u8]>> = LazyLock::new(|| {
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    (0..2 * PLACES as u64).map(|index| digits[(mixed(index) >> 58) as usize]).collect()
});

/// A number whose bits all depend on those of another.
fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

/// The pieces of what stands behind the stamp of a value.
fn pieces(number: u64, bytes: usize) -> impl Iterator<Item = &'static [u8]> {
    let table: &'static [u8] = &TABLE;
    (0..bytes).step_by(PLACES).zip(0u64..).map(move |(at, piece)| {
        let place = mixed(number ^ piece << 40) as usize % PLACES;
        &table[place..][..(bytes - at).min(PLACES)]
    })
}

/// Writes what stands behind the stamp of a value.
pub(super) fn write_rest(mut field: &mut [u8], number: u64) {
    for piece in pieces(number, field.len()) {
        let (now, later) = field.split_at_mut(piece.len());
        now.copy_from_slice(piece);
        field = later;
    }
}

/// Fills a value, of at least 16 bytes, with its number and the bytes that follow from it.
pub(crate) fn write_value(value: &mut [u8], number: u64) {
    let (stamp, rest) = value.split_at_mut(STAMP_DIGITS);
    write_hex(stamp, number);
    write_rest(rest, number);
}

/// The number of a value of which every byte is what was produced.
fn number_of(value: &[u8], size: usize) -> Option<u64> {
    let (stamp, mut rest) = value.split_at_checked(STAMP_DIGITS)?;
    let number = u64::from_str_radix(std::str::from_utf8(stamp).ok()?, 16).ok()?;
    if value.len() != size {
        return None;
    }
    for piece in pieces(number, rest.len()) {
        rest = rest.strip_prefix(piece)?;
    }
    Some(number)
}

/// Values that were delivered: each is checked, and distinct ones are counted.
#[derive(Debug)]
pub(crate) struct Checked {
    size: usize,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    distinct: u64,
    /// A bit for each number, by range.
    ranges: BTreeMap<u64, Vec<u64>>,
}

impl Checked {
    /// None yet, of values of this many bytes.
    pub(crate) fn new(size: u32) -> Self {
        Self { size: (size as usize).max(STAMP_DIGITS), seen: Mutex::default() }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a delivered value and returns its number; none if it is not what was produced.
    pub(crate) fn note(&self, value: &[u8]) -> Option<u64> {
        let number = number_of(value, self.size)?;
        let mut seen = self.seen();
        let range = seen.ranges.entry(number >> RANGE_BITS).or_default();
        let within = number & ((1 << RANGE_BITS) - 1);
        let (at, bit) = ((within / 64) as usize, 1 << (within % 64));
        if range.len() <= at {
            range.resize(at + 1, 0);
        }
        let is_new = range[at] & bit == 0;
        range[at] |= bit;
        seen.distinct += u64::from(is_new);
        Some(number)
    }

    /// How many different messages were delivered as they were produced.
    pub(crate) fn distinct(&self) -> u64 {
        self.seen().distinct
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(number: u64, size: usize) -> Vec<u8> {
        let mut value = vec![0; size];
        write_value(&mut value, number);
        assert!(value.starts_with(format!("{number:016x}").as_bytes()));
        value
    }

    #[test]
    fn value_with_one_other_byte_is_found() {
        for size in [16, 17, 200, 10_000] {
            let intact = value(7, size);
            assert_eq!(number_of(&intact, size), Some(7));
            for at in [0, 15, size / 2, size - 1] {
                let mut damaged = intact.clone();
                damaged[at] ^= 1;
                assert!(number_of(&damaged, size) != Some(7), "byte {at} of {size}");
            }
            assert_eq!(number_of(&intact[..size - 1], size), None);
        }
    }

    #[test]
    fn bytes_of_another_message_are_found() {
        let mut swapped = value(1, 100);
        swapped[STAMP_DIGITS..].copy_from_slice(&value(2, 100)[STAMP_DIGITS..]);
        assert_eq!(number_of(&swapped, 100), None);
    }

    #[test]
    fn distinct_values_are_counted_once() {
        let checked = Checked::new(50);
        for number in [0, 1, 1 << RANGE_BITS, 1, 0] {
            assert_eq!(checked.note(&value(number, 50)), Some(number));
        }
        assert_eq!(checked.note(&value(3, 51)), None);
        assert_eq!(checked.distinct(), 3);
    }
}
