//! The text protocol of NATS.

use std::io;

use crate::load::client::text_field;
use crate::load::modes::compare::wire::{line, malformed, number};

/// Longer than any message of a run.
const PAYLOAD_BYTES_MAX: usize = 256 << 20;

/// What a server sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Frame<'a> {
    /// About the server, as JSON.
    Info(&'a [u8]),
    /// A question whether the client is there.
    Ping,
    /// The answer to such a question.
    Pong,
    /// A success.
    Good,
    /// A refusal.
    Error(&'a [u8]),
    /// A message.
    Message(Message<'a>),
}

/// A message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Message<'a> {
    /// The number of the subscription.
    pub(crate) subscription: &'a [u8],
    /// Where to answer; for a message of a stream, where to ack.
    pub(crate) reply_to: Option<&'a [u8]>,
    /// A line with a status, and fields.
    pub(crate) headers: &'a [u8],
    /// The payload.
    pub(crate) payload: &'a [u8],
}

/// The frame at the front and its length; nothing if it is not complete.
pub(crate) fn decode(bytes: &[u8]) -> io::Result<Option<(Frame<'_>, usize)>> {
    let Some((head, head_bytes)) = line(bytes) else { return Ok(None) };
    let (name, rest) = head.split_at(head.iter().position(|byte| *byte == b' ').unwrap_or(head.len()));
    let rest = rest.trim_ascii();
    let frame = match name {
        b"INFO" => Frame::Info(rest),
        b"PING" => Frame::Ping,
        b"PONG" => Frame::Pong,
        b"+OK" => Frame::Good,
        b"-ERR" => Frame::Error(rest),
        b"MSG" | b"HMSG" => return decode_message(rest, name == b"HMSG", &bytes[head_bytes..], head_bytes),
        _ => return Err(malformed("an unknown operation")),
    };
    Ok(Some((frame, head_bytes)))
}

fn decode_message<'a>(
    head: &'a [u8],
    has_headers: bool,
    rest: &'a [u8],
    head_bytes: usize,
) -> io::Result<Option<(Frame<'a>, usize)>> {
    let mut parts: Vec<&[u8]> = head.split(|byte| *byte == b' ').filter(|part| !part.is_empty()).collect();
    let total: usize = number(parts.pop().unwrap_or_default())?;
    let headers: usize = if has_headers { number(parts.pop().unwrap_or_default())? } else { 0 };
    let (subscription, reply_to) = match parts[..] {
        [_, subscription] => (subscription, None),
        [_, subscription, reply_to] => (subscription, Some(reply_to)),
        _ => return Err(malformed("a message without subject and subscription")),
    };
    if headers > total || total > PAYLOAD_BYTES_MAX {
        return Err(malformed("no length"));
    }
    let Some((content, end)) = rest.split_at_checked(total) else { return Ok(None) };
    let (headers, payload) = content.split_at(headers);
    match end {
        [b'\r', b'\n', ..] => {
            let message = Message { subscription, reply_to, headers, payload };
            Ok(Some((Frame::Message(message), head_bytes + total + 2)))
        }
        [] | [b'\r'] => Ok(None),
        _ => Err(malformed("a message is longer than its length")),
    }
}

impl Message<'_> {
    /// The status line of a message without payload, such as `NATS/1.0 503`.
    pub(crate) fn status(&self) -> Option<String> {
        let (status, _) = line(self.headers)?;
        let is_status = self.payload.is_empty() && status.len() > b"NATS/1.0".len();
        is_status.then(|| String::from_utf8_lossy(status).into_owned())
    }

    /// The sequence number under which a stream has stored a message; else why it has not.
    pub(crate) fn stored(&self) -> Result<u64, String> {
        let sequence =
            text_field(self.payload, "seq").and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
        match (sequence, text_field(self.payload, "error")) {
            (Some(sequence), None) => Ok(sequence),
            (_, Some(error)) => Err(String::from_utf8_lossy(error).into_owned()),
            (None, None) => Err(self.status().unwrap_or_else(|| "an answer without a sequence number".to_owned())),
        }
    }
}

/// A message to a subject, with an answer to `reply_to`.
pub(crate) fn publish(subject: &str, reply_to: &str, payload: &[u8]) -> Vec<u8> {
    let head = format!("PUB {subject} {reply_to} {}\r\n", payload.len());
    [head.as_bytes(), payload, b"\r\n"].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(bytes: &[u8]) -> Message<'_> {
        match decode(bytes).expect("well formed") {
            Some((Frame::Message(message), length)) if length == bytes.len() => message,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn message_decodes_only_when_complete() {
        let plain: &[u8] = b"MSG q 7 $JS.ACK.1 5\r\nhel\r\n\r\n";
        let expected = Message { subscription: b"7", reply_to: Some(b"$JS.ACK.1"), headers: b"", payload: b"hel\r\n" };
        assert_eq!(message(plain), expected);
        let with_headers: &[u8] = b"HMSG q 7 16 18\r\nNATS/1.0 404\r\n\r\nab\r\n";
        assert_eq!(message(with_headers).payload, b"ab");
        assert_eq!(message(with_headers).headers, b"NATS/1.0 404\r\n\r\n");
        for bytes in [plain, with_headers, b"INFO {\"a\":1}\r\n", b"PING\r\n"] {
            for end in 0..bytes.len() {
                assert_eq!(decode(&bytes[..end]).expect("well formed"), None, "{end}");
            }
        }
        assert_eq!(decode(b"PING\r\n+OK\r\n").expect("well formed"), Some((Frame::Ping, 6)));
    }

    #[test]
    fn answer_without_a_sequence_number_is_no_success() {
        assert_eq!(message(b"MSG i 1 26\r\n{\"stream\":\"q\", \"seq\":2000}\r\n").stored(), Ok(2000));
        let refused =
            b"MSG i 1 64\r\n{\"error\":{\"code\":503,\"description\":\"full\"},\"stream\":\"q\",\"seq\":0}\r\n";
        assert!(message(refused).stored().is_err_and(|error| error.contains("full")));
        let nothing_there = b"HMSG i 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n";
        assert_eq!(message(nothing_there).stored(), Err("NATS/1.0 503".to_owned()));
        assert!(message(b"MSG i 1 0\r\n\r\n").stored().is_err());
        assert_eq!(decode(b"-ERR 'no'\r\n").expect("well formed"), Some((Frame::Error(b"'no'"), 11)));
    }

    #[test]
    fn other_bytes_are_no_frame() {
        let bad: [&[u8]; 6] =
            [b"+PONG\r\n", b"MSG q 5\r\n", b"MSG q 1 x\r\n", b"MSG q 1 2\r\nabc\r\n", b"HMSG q 1 9 2\r\n", b"\r\n"];
        for bytes in bad {
            assert!(decode(bytes).is_err(), "{}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn publish_states_the_length() {
        assert_eq!(publish("q", "i.1", b"ab"), b"PUB q i.1 2\r\nab\r\n");
    }
}
