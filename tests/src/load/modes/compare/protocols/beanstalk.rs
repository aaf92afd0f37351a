//! The text protocol of beanstalkd.

use std::io;

use crate::load::modes::compare::wire::{line, malformed, number};

/// Longer than any job of a run.
const BODY_BYTES_MAX: usize = 256 << 20;

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer<'a> {
    /// A job was stored under this id.
    Inserted(u64),
    /// A job, for this client alone until it deletes it.
    Reserved {
        /// Its id.
        id: u64,
        /// Its body.
        body: &'a [u8],
    },
    /// A job was deleted.
    Deleted,
    /// Statistics, as YAML.
    Statistics(&'a [u8]),
    /// The tube for jobs to come, or the number of tubes jobs are taken from.
    Tube(&'a [u8]),
    /// Any other line: a refusal.
    Other(&'a [u8]),
}

/// The answer at the front and its length; nothing if it is not complete.
pub(crate) fn decode(bytes: &[u8]) -> io::Result<Option<(Answer<'_>, usize)>> {
    let Some((head, head_bytes)) = line(bytes) else { return Ok(None) };
    if head.is_empty() {
        return Err(malformed("an empty line"));
    }
    let mut parts = head.split(|byte| *byte == b' ');
    let answer = match (parts.next(), parts.next(), parts.next()) {
        (Some(b"INSERTED"), Some(id), None) => Answer::Inserted(number(id)?),
        (Some(b"RESERVED"), Some(id), Some(length)) => {
            let id = number(id)?;
            let body = body(&bytes[head_bytes..], number(length)?)?;
            return Ok(body.map(|body| (Answer::Reserved { id, body }, head_bytes + body.len() + 2)));
        }
        (Some(b"OK"), Some(length), None) => {
            let body = body(&bytes[head_bytes..], number(length)?)?;
            return Ok(body.map(|body| (Answer::Statistics(body), head_bytes + body.len() + 2)));
        }
        (Some(b"DELETED"), None, None) => Answer::Deleted,
        (Some(b"USING" | b"WATCHING"), Some(tube), None) => Answer::Tube(tube),
        _ => Answer::Other(head),
    };
    Ok(Some((answer, head_bytes)))
}

fn body(bytes: &[u8], length: usize) -> io::Result<Option<&[u8]>> {
    if length > BODY_BYTES_MAX {
        return Err(malformed("no length"));
    }
    let Some((body, end)) = bytes.split_at_checked(length) else { return Ok(None) };
    match end {
        [b'\r', b'\n', ..] => Ok(Some(body)),
        [] | [b'\r'] => Ok(None),
        _ => Err(malformed("a job is longer than its length")),
    }
}

/// A number in statistics.
pub(crate) fn statistic(yaml: &[u8], name: &str) -> io::Result<u64> {
    let mut lines = yaml.split(|byte| *byte == b'\n');
    let value = lines.find_map(|line| line.strip_prefix(name.as_bytes())?.strip_prefix(b": "));
    number(value.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_decodes_only_when_complete() {
        let cases: [(&[u8], Answer<'_>); 6] = [
            (b"INSERTED 7\r\n", Answer::Inserted(7)),
            (b"RESERVED 8 4\r\na\r\nb\r\n", Answer::Reserved { id: 8, body: b"a\r\nb" }),
            (b"DELETED\r\n", Answer::Deleted),
            (b"OK 4\r\n---\n\r\n", Answer::Statistics(b"---\n")),
            (b"USING q\r\n", Answer::Tube(b"q")),
            (b"DRAINING\r\n", Answer::Other(b"DRAINING")),
        ];
        for (bytes, answer) in cases {
            assert_eq!(decode(bytes).expect("well formed"), Some((answer, bytes.len())));
            for end in 0..bytes.len() {
                assert_eq!(decode(&bytes[..end]).expect("well formed"), None, "{end}");
            }
        }
    }

    #[test]
    fn refusal_is_neither_inserted_nor_deleted_and_bad_lengths_are_no_answer() {
        for bytes in
            [&b"JOB_TOO_BIG\r\n"[..], b"NOT_FOUND\r\n", b"INSERTED\r\n", b"DELETED 3\r\n", b"OUT_OF_MEMORY\r\n"]
        {
            let answer = decode(bytes).expect("a line");
            assert!(matches!(answer, Some((Answer::Other(_), _))), "{answer:?}");
        }
        for bytes in [&b"\r\n"[..], b"INSERTED x\r\n", b"RESERVED 1 2\r\nabc\r\n", b"RESERVED 1 -1\r\n"] {
            assert!(decode(bytes).is_err(), "{}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn statistic_is_found_by_its_whole_name() {
        let yaml = b"---\nname: q\ncurrent-jobs-ready: 12\ncurrent-jobs-reserved: 3\n";
        assert_eq!(statistic(yaml, "current-jobs-reserved").expect("there"), 3);
        assert!(statistic(yaml, "current-jobs").is_err());
    }
}
