//! Searches in short texts, eight bytes at a time.

/// One in each of eight bytes.
const ONES: u64 = u64::from_ne_bytes([1; 8]);
/// The highest bit of each of eight bytes.
const HIGHS: u64 = ONES << 7;

/// Sets the highest bit of the lowest byte that is `byte`, and of none below it; other bits mean nothing.
#[inline]
const fn mark(block: u64, byte: u8) -> u64 {
    let differs = block ^ (ONES * byte as u64);
    differs.wrapping_sub(ONES) & !differs
}

/// As [`mark`], for the bytes below a space.
#[inline]
const fn mark_controls(block: u64) -> u64 {
    block.wrapping_sub(ONES * b' ' as u64) & !block
}

/// Whether any byte is a control character below the space, or one of `others`. Without branches, so that it is
/// vectorized.
#[inline]
pub(crate) fn has_control_or<const N: usize>(bytes: &[u8], others: [u8; N]) -> bool {
    let marks = |block: [u8; 8]| {
        let block = u64::from_le_bytes(block);
        others.iter().fold(mark_controls(block), |marks, other| marks | mark(block, *other))
    };
    let (blocks, rest) = bytes.as_chunks::<8>();
    // Filled with a byte that is none of them.
    let mut last = [b'x'; 8];
    last[..rest.len()].copy_from_slice(rest);
    let found = blocks.iter().fold(marks(last), |found, block| found | marks(*block));
    found & HIGHS != 0
}

/// Where the first `byte` is. Fast where that is near, as in names.
#[inline]
pub(crate) fn find(bytes: &[u8], byte: u8) -> Option<usize> {
    let Some((blocks, _)) = bytes.first_chunk::<16>().map(|blocks| blocks.as_chunks::<8>()) else {
        return bytes.iter().position(|other| *other == byte);
    };
    for (index, block) in blocks.iter().enumerate() {
        let marks = mark(u64::from_le_bytes(*block), byte) & HIGHS;
        if marks != 0 {
            return Some(index * 8 + marks.trailing_zeros() as usize / 8);
        }
    }
    Some(16 + memchr::memchr(byte, &bytes[16..])?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_byte_is_found_wherever_it_is() {
        // Bytes that differ from a quote by one or by the highest bit are near it.
        for len in 0..40 {
            for fill in [b'!', b'#', b'"' | 0x80, b' ', 0xff, 0] {
                let mut bytes = vec![fill; len];
                assert_eq!(find(&bytes, b'"'), None, "{len} of {fill}");
                for at in (0..len).rev() {
                    bytes[at] = b'"';
                    assert_eq!(find(&bytes, b'"'), Some(at), "{len} of {fill}");
                }
            }
        }
    }

    #[test]
    fn every_byte_is_classified_at_every_place() {
        for len in 1..40 {
            for at in 0..len {
                for byte in 0..=u8::MAX {
                    let mut bytes = vec![b'x'; len];
                    bytes[at] = byte;
                    let expected = byte < b' ' || byte == b'\\' || byte == b'"';
                    assert_eq!(has_control_or(&bytes, *b"\\\""), expected, "{byte} at {at} of {len}");
                    bytes.fill(byte);
                    assert_eq!(has_control_or(&bytes, *b"\\\""), expected, "{len} of {byte}");
                }
            }
        }
        assert!(!has_control_or(b"", []));
    }
}
