//! The protocol of Redis, version 2.

use std::io;

use crate::load::modes::compare::wire::{line, malformed, number};

/// Arrays in arrays in …
const DEPTH_MAX: u32 = 8;
/// Elements of an array, and bytes of a string.
const LENGTH_MAX: i64 = 512 << 20;

/// A reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply<'a> {
    /// A status.
    Simple(&'a [u8]),
    /// A refusal.
    Error(&'a [u8]),
    /// A number.
    Integer(i64),
    /// A string.
    Bulk(&'a [u8]),
    /// Replies.
    Array(Vec<Reply<'a>>),
    /// Nothing.
    Nil,
}

impl<'a> Reply<'a> {
    /// The elements of an array, and none of anything else.
    pub(crate) fn elements(&self) -> &[Reply<'a>] {
        match self {
            Reply::Array(elements) => elements,
            _ => &[],
        }
    }

    /// The bytes of a string.
    pub(crate) fn bulk(&self) -> Option<&'a [u8]> {
        match self {
            Reply::Bulk(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// What follows a name in an array of names and what they name.
    pub(crate) fn field(&self, name: &str) -> Option<&Reply<'a>> {
        let mut pairs = self.elements().chunks_exact(2);
        pairs.find_map(|pair| (pair[0].bulk()? == name.as_bytes()).then_some(&pair[1]))
    }
}

/// A command.
pub(crate) fn command(parts: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", parts.len());
    for part in parts {
        bytes.push_str(&format!("${}\r\n{part}\r\n", part.len()));
    }
    bytes.into_bytes()
}

/// The reply at the front and its length; nothing if it is not complete.
pub(crate) fn decode(bytes: &[u8]) -> io::Result<Option<(Reply<'_>, usize)>> {
    decode_at(bytes, DEPTH_MAX)
}

fn decode_at(bytes: &[u8], depth: u32) -> io::Result<Option<(Reply<'_>, usize)>> {
    let Some((head, head_bytes)) = line(bytes) else { return Ok(None) };
    let (kind, text) = head.split_first().ok_or_else(|| malformed("an empty line"))?;
    let reply = match kind {
        b'+' => Reply::Simple(text),
        b'-' => Reply::Error(text),
        b':' => Reply::Integer(number(text)?),
        b'$' => return decode_bulk(bytes, head_bytes, number(text)?),
        b'*' => return decode_array(bytes, head_bytes, number(text)?, depth),
        _ => return Err(malformed("an unknown type")),
    };
    Ok(Some((reply, head_bytes)))
}

fn decode_bulk(bytes: &[u8], head_bytes: usize, length: i64) -> io::Result<Option<(Reply<'_>, usize)>> {
    let Some(length) = length_of(length)? else { return Ok(Some((Reply::Nil, head_bytes))) };
    let rest = &bytes[head_bytes..];
    let Some((content, end)) = rest.split_at_checked(length) else { return Ok(None) };
    match end {
        [b'\r', b'\n', ..] => Ok(Some((Reply::Bulk(content), head_bytes + length + 2))),
        [] | [b'\r'] => Ok(None),
        _ => Err(malformed("a string is longer than its length")),
    }
}

fn decode_array(bytes: &[u8], head_bytes: usize, length: i64, depth: u32) -> io::Result<Option<(Reply<'_>, usize)>> {
    let Some(length) = length_of(length)? else { return Ok(Some((Reply::Nil, head_bytes))) };
    let depth = depth.checked_sub(1).ok_or_else(|| malformed("too many arrays in one another"))?;
    let (mut elements, mut at) = (Vec::new(), head_bytes);
    for _ in 0..length {
        let Some((element, element_bytes)) = decode_at(&bytes[at..], depth)? else { return Ok(None) };
        elements.push(element);
        at += element_bytes;
    }
    Ok(Some((Reply::Array(elements), at)))
}

/// A length; nothing for the length of what does not exist.
fn length_of(length: i64) -> io::Result<Option<usize>> {
    match length {
        -1 => Ok(None),
        0..=LENGTH_MAX => Ok(Some(length as usize)),
        _ => Err(malformed("no length")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_is_an_array_of_strings() {
        assert_eq!(command(&["XLEN", "q-1"]), b"*2\r\n$4\r\nXLEN\r\n$3\r\nq-1\r\n");
    }

    #[test]
    fn reply_decodes_only_when_complete() {
        let bytes: &[u8] = b"*2\r\n*3\r\n$3\r\nlag\r\n:12\r\n$-1\r\n*-1\r\n+OK\r\n";
        let inner = Reply::Array(vec![Reply::Bulk(b"lag"), Reply::Integer(12), Reply::Nil]);
        let expected = Reply::Array(vec![inner.clone(), Reply::Nil]);
        let length = bytes.len() - b"+OK\r\n".len();
        assert_eq!(decode(bytes).expect("well formed"), Some((expected, length)));
        assert_eq!(inner.field("lag"), Some(&Reply::Integer(12)));
        assert_eq!(decode(&bytes[length..]).expect("well formed"), Some((Reply::Simple(b"OK"), 5)));
        for end in 0..length {
            assert_eq!(decode(&bytes[..end]).expect("well formed"), None, "{end}");
        }
    }

    #[test]
    fn refusal_is_not_a_status_and_other_bytes_are_no_reply() {
        assert_eq!(decode(b"-ERR no\r\n").expect("well formed"), Some((Reply::Error(b"ERR no"), 9)));
        let deep = "*1\r\n".repeat(DEPTH_MAX as usize + 1);
        let bad: [&[u8]; 7] =
            [b"\r\n", b"HTTP/1.1 200\r\n", b":x\r\n", b"$2\r\nabc\r\n", b"$-2\r\n", b"*-7\r\n", deep.as_bytes()];
        for bytes in bad {
            assert!(decode(bytes).is_err(), "{}", String::from_utf8_lossy(bytes));
        }
    }
}
