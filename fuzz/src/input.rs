//! Reads values from a fuzzer's input. An exhausted input yields zeros and empty slices, so every input is valid.

use arbitrary::Unstructured;

/// A number below `end`; 0 if `end` is 0 or the input is exhausted.
pub(crate) fn below(input: &mut Unstructured<'_>, end: usize) -> usize {
    if end == 0 { 0 } else { input.int_in_range(0..=end - 1).unwrap_or(0) }
}

/// One of `items`; the first if the input is exhausted.
///
/// # Panics
/// If there are no items.
pub(crate) fn choose<T: Copy>(input: &mut Unstructured<'_>, items: &[T]) -> T {
    items[below(input, items.len())]
}

/// At most `max` bytes of the input. The input also determines how many.
pub(crate) fn take_bytes<'a>(input: &mut Unstructured<'a>, max: usize) -> &'a [u8] {
    let len = below(input, max.min(input.len()) + 1);
    input.bytes(len.min(input.len())).unwrap_or_default()
}
