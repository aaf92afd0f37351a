//! The protocol of PostgreSQL, version 3.

use std::io;

use crate::load::modes::compare::wire::malformed;

/// Version 3.0.
const VERSION: u32 = 196_608;
/// Longer than any message of a run.
const MESSAGE_BYTES_MAX: usize = 256 << 20;

/// A message of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Message<'a> {
    /// Nothing has to be proved to connect.
    Authenticated,
    /// The server wants to know who connects.
    AuthenticationRequest,
    /// A command was executed; its name and count.
    Complete(&'a [u8]),
    /// A row of the result.
    Row(&'a [u8]),
    /// A refusal.
    Error(&'a [u8]),
    /// Everything up to a sync was executed, and committed unless a transaction is open.
    Ready,
    /// Anything else.
    Other(u8),
}

/// The message at the front and its length; nothing if it is not complete.
pub(crate) fn decode(bytes: &[u8]) -> io::Result<Option<(Message<'_>, usize)>> {
    let Some((head, rest)) = bytes.split_at_checked(5) else { return Ok(None) };
    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
    let length = length.checked_sub(4).filter(|length| *length <= MESSAGE_BYTES_MAX);
    let length = length.ok_or_else(|| malformed("no length"))?;
    let Some(body) = rest.get(..length) else { return Ok(None) };
    let message = match head[0] {
        b'R' if body == [0; 4] => Message::Authenticated,
        b'R' => Message::AuthenticationRequest,
        b'C' => Message::Complete(body.strip_suffix(b"\0").ok_or_else(|| malformed("a text does not end"))?),
        b'D' => Message::Row(body),
        b'E' => Message::Error(body),
        b'Z' => Message::Ready,
        kind if kind.is_ascii_alphanumeric() => Message::Other(kind),
        _ => return Err(malformed("an unknown message")),
    };
    Ok(Some((message, 5 + length)))
}

/// The columns of a row, none of them null.
pub(crate) fn columns<const N: usize>(row: &[u8]) -> io::Result<[&[u8]; N]> {
    let broken = || malformed("a row without the columns");
    let (count, mut rest) = row.split_at_checked(2).ok_or_else(broken)?;
    let mut columns = [&[][..]; N];
    if usize::from(u16::from_be_bytes([count[0], count[1]])) != N {
        return Err(broken());
    }
    for column in &mut columns {
        let (length, after) = rest.split_at_checked(4).ok_or_else(broken)?;
        // The length of null is negative.
        let length = i32::from_be_bytes([length[0], length[1], length[2], length[3]]);
        let length = usize::try_from(length).map_err(|_| broken())?;
        (*column, rest) = after.split_at_checked(length).ok_or_else(broken)?;
    }
    Ok(columns)
}

/// The code and the text of a refusal.
pub(crate) fn error_text(body: &[u8]) -> String {
    let field = |kind: u8| {
        let mut fields = body.split(|byte| *byte == 0);
        let text = fields.find_map(|field| field.strip_prefix(&[kind]));
        String::from_utf8_lossy(text.unwrap_or_default()).into_owned()
    };
    format!("{} {}", field(b'C'), field(b'M'))
}

/// The first message of a connection.
pub(crate) fn startup(user: &str, database: &str) -> Vec<u8> {
    let body = format!("user\0{user}\0database\0{database}\0\0");
    let length = (body.len() + 8) as u32;
    [&length.to_be_bytes()[..], &VERSION.to_be_bytes(), body.as_bytes()].concat()
}

/// A statement that is parsed, executed and forgotten.
pub(crate) fn query(sql: &str) -> Vec<u8> {
    message(b'Q', format!("{sql}\0").as_bytes())
}

/// A statement that is parsed once, under a name.
pub(crate) fn parse(name: &str, sql: &str) -> Vec<u8> {
    message(b'P', format!("{name}\0{sql}\0\0\0").as_bytes())
}

/// The front of a binding of a parsed statement to parameters of these lengths, all of them binary. The parameters, of
/// which each has its length in front, and [`BIND_END`] follow.
pub(crate) fn bind_front(name: &str, lengths: &[u32]) -> Vec<u8> {
    let names = format!("\0{name}\0");
    let body = names.len() + 4 + 2 + lengths.iter().map(|length| 4 + *length as usize).sum::<usize>() + BIND_END.len();
    let count = lengths.len() as u16;
    let mut bytes = vec![b'B'];
    bytes.extend_from_slice(&(body as u32 + 4).to_be_bytes());
    bytes.extend_from_slice(names.as_bytes());
    // One format for all parameters.
    bytes.extend_from_slice(&[0, 1, 0, 1]);
    bytes.extend_from_slice(&count.to_be_bytes());
    bytes
}

/// The end of a binding: one format for all results, binary.
pub(crate) const BIND_END: &[u8] = &[0, 1, 0, 1];

/// The execution of what was bound.
pub(crate) fn execute() -> Vec<u8> {
    message(b'E', &[0; 5])
}

/// The end of requests that are answered together.
pub(crate) fn sync() -> Vec<u8> {
    message(b'S', &[])
}

/// A parsed statement without parameters, bound and executed.
pub(crate) fn run(name: &str) -> Vec<u8> {
    [&bind_front(name, &[])[..], BIND_END, &execute()].concat()
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = (body.len() + 4) as u32;
    [&[kind][..], &length.to_be_bytes(), body].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_decode_only_when_complete() {
        let row = [0, 1, 0, 0, 0, 2, b'h', b'i'];
        let cases: [(u8, &[u8], Message<'_>); 6] = [
            (b'R', &[0; 4], Message::Authenticated),
            (b'R', &[0, 0, 0, 10], Message::AuthenticationRequest),
            (b'C', b"INSERT 0 1\0", Message::Complete(b"INSERT 0 1")),
            (b'D', &row, Message::Row(&row)),
            (b'Z', b"I", Message::Ready),
            (b'2', b"", Message::Other(b'2')),
        ];
        for (kind, body, expected) in cases {
            let bytes = message(kind, body);
            assert_eq!(decode(&bytes).expect("well formed"), Some((expected, bytes.len())));
            for end in 0..bytes.len() {
                assert_eq!(decode(&bytes[..end]).expect("well formed"), None, "{end}");
            }
        }
        assert_eq!(columns(&row).expect("a column"), [b"hi"]);
    }

    #[test]
    fn refusal_is_not_a_success_and_has_code_and_text() {
        let bytes = message(b'E', b"SERROR\0C53100\0Mno space left\0\0");
        let Ok(Some((Message::Error(body), _))) = decode(&bytes) else { panic!("an error") };
        assert_eq!(error_text(body), "53100 no space left");
    }

    #[test]
    fn other_bytes_are_no_message_and_null_is_no_column() {
        assert!(decode(b"H\0\0\0\x03").is_err());
        assert!(decode(b"HTTP/1.1 200").is_err());
        assert!(decode(b"\x01\0\0\0\x04").is_err());
        assert!(decode(&message(b'C', b"INSERT")).is_err());
        let bad: [&[u8]; 4] = [&[0, 1, 0xff, 0xff, 0xff, 0xff], &[0, 1, 0, 0, 0, 9, b'h'], &[0, 0], &[0]];
        for row in bad {
            assert!(columns::<1>(row).is_err(), "{row:?}");
        }
    }

    #[test]
    fn binding_states_its_length() {
        let bytes = [&bind_front("put", &[3])[..], &3u32.to_be_bytes(), b"abc", BIND_END].concat();
        let length = u32::from_be_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]) as usize;
        assert_eq!((bytes[0], length), (b'B', bytes.len() - 1));
        assert_eq!(&bytes[5..], b"\0put\0\0\x01\0\x01\0\x01\0\0\0\x03abc\0\x01\0\x01");
        let bytes = startup("me", "db");
        assert_eq!(bytes[..4], (bytes.len() as u32).to_be_bytes());
    }
}
