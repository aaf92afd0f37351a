//! AMQP 0-9-1.

use std::io;

use crate::load::modes::compare::wire::malformed;

/// What a client sends first.
pub(crate) const HEADER: &[u8] = b"AMQP\0\0\x09\x01";
/// The only channel of a connection.
pub(crate) const CHANNEL: u16 = 1;
/// The exchange of the server that routes by the name of the queue.
const DEFAULT_EXCHANGE: &str = "";
/// A content has a delivery mode, which says that it is persistent.
const PERSISTENT: [u8; 3] = [0x10, 0x00, 2];
const FRAME_END: u8 = 0xce;
/// Longer than any frame of a run.
const FRAME_BYTES_MAX: usize = 256 << 20;

/// A method: its class and its number in the class.
pub(crate) type Method = (u16, u16);

/// Methods that are sent or awaited.
pub(crate) mod method {
    use super::Method;

    macro_rules! methods {
        ($($name:ident = $class:literal $number:literal;)*) => {
            $(pub(crate) const $name: Method = ($class, $number);)*
        };
    }

    methods! {
        CONNECTION_START = 10 10;
        CONNECTION_START_OK = 10 11;
        CONNECTION_TUNE = 10 30;
        CONNECTION_TUNE_OK = 10 31;
        CONNECTION_OPEN = 10 40;
        CONNECTION_OPEN_OK = 10 41;
        CONNECTION_CLOSE = 10 50;
        CHANNEL_OPEN = 20 10;
        CHANNEL_OPEN_OK = 20 11;
        CHANNEL_CLOSE = 20 40;
        CHANNEL_CLOSE_OK = 20 41;
        QUEUE_DECLARE = 50 10;
        QUEUE_DECLARE_OK = 50 11;
        BASIC_QOS = 60 10;
        BASIC_QOS_OK = 60 11;
        BASIC_CONSUME = 60 20;
        BASIC_CONSUME_OK = 60 21;
        BASIC_PUBLISH = 60 40;
        BASIC_DELIVER = 60 60;
        BASIC_ACK = 60 80;
        BASIC_NACK = 60 120;
        CONFIRM_SELECT = 85 10;
        CONFIRM_SELECT_OK = 85 11;
    }
}

/// What a server sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Frame<'a> {
    /// A method and its arguments.
    Method(Method, Arguments<'a>),
    /// The head of a content: the bytes of its body.
    Header(u64),
    /// A part of a body.
    Body(&'a [u8]),
    /// A sign that the connection is used.
    Heartbeat,
}

/// The frame at the front and its length; nothing if it is not complete.
pub(crate) fn decode(bytes: &[u8]) -> io::Result<Option<(Frame<'_>, usize)>> {
    if bytes.first().is_some_and(|kind| !matches!(kind, 1..=3 | 8)) {
        return Err(malformed("an unknown frame"));
    }
    let Some((head, rest)) = bytes.split_at_checked(7) else { return Ok(None) };
    let length = u32::from_be_bytes([head[3], head[4], head[5], head[6]]) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(malformed("no length"));
    }
    let Some((payload, end)) = rest.split_at_checked(length) else { return Ok(None) };
    match end.first() {
        None => return Ok(None),
        Some(&FRAME_END) => {}
        Some(_) => return Err(malformed("a frame is longer than its length")),
    }
    let mut arguments = Arguments(payload);
    let frame = match head[0] {
        1 => Frame::Method((arguments.u16()?, arguments.u16()?), arguments),
        2 => {
            arguments.u32()?;
            Frame::Header(arguments.u64()?)
        }
        3 => Frame::Body(payload),
        _ => Frame::Heartbeat,
    };
    Ok(Some((frame, length + 8)))
}

/// Arguments that were not read yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Arguments<'a>(&'a [u8]);

impl<'a> Arguments<'a> {
    fn take(&mut self, bytes: usize) -> io::Result<&'a [u8]> {
        let split = self.0.split_at_checked(bytes);
        let (taken, rest) = split.ok_or_else(|| malformed("an argument is missing"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| malformed("an argument is missing"))
    }

    /// A byte.
    pub(crate) fn u8(&mut self) -> io::Result<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// A number of 16 bits.
    pub(crate) fn u16(&mut self) -> io::Result<u16> {
        self.array().map(u16::from_be_bytes)
    }

    /// A number of 32 bits.
    pub(crate) fn u32(&mut self) -> io::Result<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// A number of 64 bits.
    pub(crate) fn u64(&mut self) -> io::Result<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A text of less than 256 bytes.
    pub(crate) fn short_text(&mut self) -> io::Result<&'a [u8]> {
        let length = self.u8()?;
        self.take(length.into())
    }

    /// A text or a table.
    pub(crate) fn long_text(&mut self) -> io::Result<&'a [u8]> {
        let length = self.u32()?;
        self.take(length as usize)
    }

    /// The text that has this name in a table of texts, truth values and tables.
    pub(crate) fn text_in_table(&mut self, name: &str) -> io::Result<Option<String>> {
        let mut table = Arguments(self.long_text()?);
        while !table.0.is_empty() {
            let found = table.short_text()? == name.as_bytes();
            match table.u8()? {
                b'S' if found => return Ok(Some(String::from_utf8_lossy(table.long_text()?).into_owned())),
                b'S' | b'F' => _ = table.long_text()?,
                b't' => _ = table.u8()?,
                _ => return Ok(None),
            }
        }
        Ok(None)
    }

    /// The code and the text of a close.
    pub(crate) fn reason(&mut self) -> io::Result<String> {
        let code = self.u16()?;
        Ok(format!("{code} {}", String::from_utf8_lossy(self.short_text()?)))
    }
}

/// A frame with a method of this channel.
pub(crate) fn call(channel: u16, method: Method, arguments: &[&[u8]]) -> Vec<u8> {
    let arguments = arguments.concat();
    let payload = [&method.0.to_be_bytes()[..], &method.1.to_be_bytes(), &arguments].concat();
    frame(1, channel, &payload)
}

/// Everything of a publish to a queue but its value and [`publish_end`].
pub(crate) fn publish_front(queue: &str, value_bytes: u32) -> Vec<u8> {
    let method =
        call(CHANNEL, method::BASIC_PUBLISH, &[&[0, 0], &short_text(DEFAULT_EXCHANGE), &short_text(queue), &[0]]);
    let class = method::BASIC_PUBLISH.0.to_be_bytes();
    let header = [&class[..], &[0, 0], &u64::from(value_bytes).to_be_bytes(), &PERSISTENT].concat();
    let mut body = vec![3];
    body.extend_from_slice(&CHANNEL.to_be_bytes());
    body.extend_from_slice(&value_bytes.to_be_bytes());
    [method, frame(2, CHANNEL, &header), body].concat()
}

/// What follows the value of a publish.
pub(crate) fn publish_end() -> [u8; 1] {
    [FRAME_END]
}

/// A text of less than 256 bytes.
pub(crate) fn short_text(text: &str) -> Vec<u8> {
    let text = &text.as_bytes()[..text.len().min(255)];
    [&[text.len() as u8][..], text].concat()
}

/// A text or a table.
pub(crate) fn long_text(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes()[..], text].concat()
}

/// A table with one text.
pub(crate) fn table(name: &str, text: &str) -> Vec<u8> {
    long_text(&[short_text(name), vec![b'S'], long_text(text.as_bytes())].concat())
}

fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let length = payload.len() as u32;
    [&[kind][..], &channel.to_be_bytes(), &length.to_be_bytes(), payload, &[FRAME_END]].concat()
}

/// Which of the publishes of a channel are confirmed.
#[derive(Debug, Default)]
pub(crate) struct Confirms {
    /// The tag of the first publish that is waited for.
    first: u64,
    /// Whether each publish from there on was answered.
    answered: Vec<bool>,
    waiting: u64,
}

impl Confirms {
    /// Waits for the next `count` publishes; tags are counted from 1 on.
    pub(crate) fn expect(&mut self, count: u64) {
        self.first = if self.first == 0 { 1 } else { self.first + self.answered.len() as u64 };
        self.answered.clear();
        self.answered.resize(count as usize, false);
        self.waiting = count;
    }

    /// Notes an answer to the publish with a tag, or to all up to it. Returns how many had no answer before.
    pub(crate) fn note(&mut self, tag: u64, is_multiple: bool) -> io::Result<u64> {
        let last = tag.checked_sub(self.first).map(|last| last as usize);
        let last = last.filter(|last| *last < self.answered.len()).ok_or_else(|| malformed("a tag not published"))?;
        let begin = if is_multiple { 0 } else { last };
        let range = &mut self.answered[begin..=last];
        let count = range.iter().filter(|answered| !**answered).count() as u64;
        range.fill(true);
        self.waiting -= count;
        Ok(count)
    }

    /// Whether all are answered.
    pub(crate) fn is_finished(&self) -> bool {
        self.waiting == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_decode_only_when_complete() {
        let ack = call(CHANNEL, method::BASIC_ACK, &[&7u64.to_be_bytes(), &[1]]);
        let Ok(Some((Frame::Method(found, mut arguments), length))) = decode(&ack) else { panic!("a method") };
        assert_eq!((found, length), (method::BASIC_ACK, ack.len()));
        assert_eq!((arguments.u64().expect("a tag"), arguments.u8().expect("a bit")), (7, 1));
        assert!(arguments.u8().is_err(), "nothing follows");
        for end in 0..ack.len() {
            assert_eq!(decode(&ack[..end]).expect("well formed"), None, "{end}");
        }
    }

    #[test]
    fn publish_is_a_method_a_header_and_a_body() {
        let bytes = [publish_front("q", 3), b"abc".to_vec(), publish_end().to_vec()].concat();
        let (mut at, mut kinds) = (0, Vec::new());
        while let Some((frame, length)) = decode(&bytes[at..]).expect("well formed") {
            kinds.push(frame);
            at += length;
        }
        assert_eq!(at, bytes.len());
        assert!(matches!(kinds[..], [Frame::Method(method::BASIC_PUBLISH, _), Frame::Header(3), Frame::Body(b"abc")]));
        let persistent = bytes.windows(3).any(|bytes| bytes == PERSISTENT);
        assert!(persistent);
    }

    #[test]
    fn other_bytes_are_no_frame() {
        let mut unended = call(CHANNEL, method::BASIC_ACK, &[]);
        *unended.last_mut().expect("an end") = 0;
        let short = frame(1, 0, &[0]);
        for bytes in [b"AMQP\0\0\x09\x01".as_slice(), &unended, &short, b"\x01\0\0\xff\0\0\0"] {
            assert!(decode(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn answer_counts_once_for_each_publish() {
        let mut confirms = Confirms::default();
        confirms.expect(4);
        assert_eq!(confirms.note(2, false).expect("a tag"), 1);
        assert_eq!(confirms.note(2, false).expect("a tag"), 0);
        assert!(!confirms.is_finished());
        assert_eq!(confirms.note(4, true).expect("a tag"), 3);
        assert!(confirms.is_finished());
        confirms.expect(1);
        assert!(confirms.note(4, false).is_err(), "of the publishes before");
        assert!(confirms.note(6, true).is_err(), "of none");
        assert!(!confirms.is_finished());
        assert_eq!(confirms.note(5, false).expect("a tag"), 1);
        assert!(confirms.is_finished());
    }

    #[test]
    fn text_is_found_in_a_table() {
        let capabilities = [short_text("capabilities"), vec![b'F'], table("a", "b")].concat();
        let version = [short_text("version"), vec![b'S'], long_text(b"3.10.8")].concat();
        let table = long_text(&[capabilities, short_text("t"), vec![b't', 1], version].concat());
        assert_eq!(Arguments(&table).text_in_table("version").expect("a table").as_deref(), Some("3.10.8"));
        assert_eq!(Arguments(&table).text_in_table("product").expect("a table"), None);
        assert!(Arguments(&table[..table.len() - 1]).text_in_table("version").is_err());
        let close = [&312u16.to_be_bytes()[..], &short_text("NO_ROUTE")].concat();
        assert_eq!(Arguments(&close).reason().expect("a reason"), "312 NO_ROUTE");
    }
}
