//! Varints, length-prefixed bytes and a bounded reader: the primitives of every encoding.
//!
//! Numbers are LEB128 varints; texts and byte strings have a length prefix. Decoding is bounded by the given slice: a
//! length is checked against the remaining bytes before it is used, and no input makes decoding panic.

use std::sync::Arc;

/// Bytes that this codec does not write, with the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed record: {0}")]
pub struct Malformed(pub &'static str);

/// The maximum size of a varint in bytes.
pub(crate) const VARINT_BYTES_MAX: usize = 10;

/// Appends `value` as a varint.
#[inline]
pub(crate) fn put_varint(out: &mut Vec<u8>, value: u64) {
    // Most single numbers are lengths of short texts.
    if value < 0x80 { out.push(value as u8) } else { put_varints(out, [value]) }
}

/// Appends each of `values` as a varint. One call grows `out` at most once.
#[inline]
pub(crate) fn put_varints<const N: usize>(out: &mut Vec<u8>, values: [u64; N]) {
    let mut bytes = [[0; VARINT_BYTES_MAX]; N];
    let bytes = bytes.as_flattened_mut();
    let mut len = 0;
    for value in values {
        let rest = bytes[len..].first_chunk_mut().expect("there is room for the longest varints");
        len += fill_varint(rest, value);
    }
    out.extend_from_slice(&bytes[..len]);
}

/// Writes the varint of `value` and returns its length. Of most lengths without a loop.
#[inline]
fn fill_varint(bytes: &mut [u8; VARINT_BYTES_MAX], value: u64) -> usize {
    let followed = |shift: u32| (value >> shift) as u8 | 0x80;
    match value {
        ..0x80 => {
            bytes[0] = value as u8;
            1
        }
        0x80..0x4000 => {
            [bytes[0], bytes[1]] = [followed(0), (value >> 7) as u8];
            2
        }
        0x4000..0x20_0000 => {
            [bytes[0], bytes[1], bytes[2]] = [followed(0), followed(7), (value >> 14) as u8];
            3
        }
        // Times, mostly.
        0x8_0000_0000..0x400_0000_0000 => {
            let time = [followed(0), followed(7), followed(14), followed(21), followed(28), (value >> 35) as u8];
            bytes[..time.len()].copy_from_slice(&time);
            time.len()
        }
        _ => {
            let (varint, len) = varint(value);
            *bytes = varint;
            len
        }
    }
}

/// The varint of `value` without a buffer: its bytes and their number.
pub(crate) fn varint(mut value: u64) -> ([u8; VARINT_BYTES_MAX], usize) {
    let mut bytes = [0; VARINT_BYTES_MAX];
    let mut last = 0;
    while value >= 0x80 {
        bytes[last] = value as u8 | 0x80;
        last += 1;
        value >>= 7;
    }
    bytes[last] = value as u8;
    (bytes, last + 1)
}

/// Appends `bytes` with a length prefix.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Concatenates `parts` into one block, allocated once.
pub(crate) fn join(parts: &[&[u8]]) -> Arc<[u8]> {
    let mut filled = parts.iter().filter(|part| !part.is_empty());
    if let (Some(part), None) = (filled.next(), filled.next()) {
        // Not written with zeros first.
        return Arc::from(*part);
    }
    let len = parts.iter().map(|part| part.len()).sum();
    let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, len).collect();
    let mut rest = Arc::get_mut(&mut bytes).expect("just made, not shared yet");
    for part in parts {
        let (head, tail) = rest.split_at_mut(part.len());
        match part {
            // Lengths, mostly: not worth a call.
            [byte] => head[0] = *byte,
            [] => {}
            part => head.copy_from_slice(part),
        }
        rest = tail;
    }
    bytes
}

/// Reads from the front of a slice; every read checks that enough bytes remain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn byte(&mut self) -> Result<u8, Malformed> {
        let (first, rest) = self.rest.split_first().ok_or(Malformed("ends early"))?;
        self.rest = rest;
        Ok(*first)
    }

    /// Accepts only the shortest encoding of a number, so that equal records have equal bytes.
    pub(crate) fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            if shift == 63 && byte > 1 {
                return Err(Malformed("number exceeds 64 bits"));
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return if byte == 0 && shift > 0 { Err(Malformed("number is not minimal")) } else { Ok(value) };
            }
        }
        Err(Malformed("number exceeds 64 bits"))
    }

    pub(crate) fn varint32(&mut self) -> Result<u32, Malformed> {
        u32::try_from(self.varint()?).map_err(|_| Malformed("number exceeds 32 bits"))
    }

    pub(crate) fn take(&mut self, len: u64) -> Result<&'a [u8], Malformed> {
        let len = usize::try_from(len).ok().filter(|len| *len <= self.rest.len()).ok_or(Malformed("ends early"))?;
        let (taken, rest) = self.rest.split_at(len);
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.varint()?;
        self.take(len)
    }

    pub(crate) fn text(&mut self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Malformed("text is not UTF-8"))
    }

    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    pub(crate) fn finish(self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed("bytes left over")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varint_round_trips_in_its_only_encoding() {
        let edges = (0..64).flat_map(|bit| [(1_u64 << bit) - 1, 1 << bit, (1 << bit) + 1, u64::MAX >> bit]);
        for value in edges.chain([300, 1_700_000_000_000, u64::MAX - 1]) {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            let (bytes, len) = varint(value);
            assert_eq!(bytes[..len], out);
            out.clear();
            put_varints(&mut out, [value, 300, value]);
            assert_eq!(out, [&bytes[..len], &[0xac, 2], &bytes[..len]].concat());
            out.truncate(len);
            let mut reader = Reader::new(&out);
            assert_eq!(reader.varint(), Ok(value));
            assert!(reader.is_empty());
        }
        assert_eq!(Reader::new(&[0x80, 0x00]).varint(), Err(Malformed("number is not minimal")));
        let beyond = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02];
        for bytes in [[0xff; 10], beyond] {
            assert_eq!(Reader::new(&bytes).varint(), Err(Malformed("number exceeds 64 bits")));
        }
        assert_eq!(Reader::new(&[0x80]).varint(), Err(Malformed("ends early")));
    }

    #[test]
    fn length_beyond_slice_is_refused_before_read() {
        let mut out = Vec::new();
        put_varint(&mut out, u64::MAX);
        assert_eq!(Reader::new(&out).bytes(), Err(Malformed("ends early")));
    }
}
