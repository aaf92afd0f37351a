//! Requests as bytes: encoded once, and patched in place where messages differ.

use std::io::Write;
use std::net::SocketAddr;

use super::pattern::write_rest;

const JSON: &str = "application/json";
/// The content type of batches.
pub(crate) const NDJSON: &str = "application/x-ndjson";

/// Hexadecimal digits at the beginning of each value.
pub(super) const STAMP_DIGITS: usize = 16;
/// Characters of each key.
const KEY_CHARS: usize = 8;

/// A GET request.
pub(crate) fn get(addr: SocketAddr, target: &str) -> Vec<u8> {
    format!("GET {target} HTTP/1.1\r\nHost: {addr}\r\n\r\n").into_bytes()
}

/// A POST request of JSON.
pub(crate) fn post(addr: SocketAddr, target: &str, body: &str) -> Vec<u8> {
    let mut request = Vec::new();
    post_into(&mut request, addr, target, JSON, body.as_bytes());
    request
}

/// Replaces the contents of `request` by a POST request, reusing its memory.
pub(crate) fn post_into(request: &mut Vec<u8>, addr: SocketAddr, target: &str, content_type: &str, body: &[u8]) {
    request.clear();
    let length = body.len();
    let head = write!(
        request,
        "POST {target} HTTP/1.1\r\nHost: {addr}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n\r\n"
    );
    debug_assert!(head.is_ok(), "writing to memory does not fail");
    request.extend_from_slice(body);
}

/// Whether messages have an idempotency key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// They have none.
    None,
    /// Each has a unique one.
    Keyed,
}

/// The form of all messages of a request.
#[derive(Debug, Clone)]
pub(crate) struct MessageShape {
    /// Their topic.
    pub(crate) topic: String,
    /// Bytes of each value.
    pub(crate) size: u32,
    /// Partitions of the topic: if there are several, every message has a unique key.
    pub(crate) partitions: u32,
    /// Whether they have an idempotency key.
    pub(crate) effect: Effect,
}

/// Messages as consecutive JSON objects, patched in place.
#[derive(Debug, Clone)]
struct Messages {
    bytes: Vec<u8>,
    positions: Vec<Positions>,
    /// Bytes of each value behind its stamp.
    rest_bytes: usize,
}

/// Positions of the parts in which messages differ.
#[derive(Debug, Clone, Copy)]
struct Positions {
    stamp: usize,
    /// What follows the stamp.
    rest: usize,
    key: Option<usize>,
    idempotency_key: Option<usize>,
}

impl Messages {
    fn new(shape: &MessageShape, count: u32, between: u8) -> Self {
        let size = (shape.size as usize).max(STAMP_DIGITS);
        let (mut bytes, mut positions) = (Vec::new(), Vec::new());
        for index in 0..count {
            if index > 0 {
                bytes.push(between);
            }
            bytes.extend_from_slice(format!(r#"{{"topic":"{}","key":""#, shape.topic).as_bytes());
            let key = (shape.partitions > 1).then(|| grow(&mut bytes, KEY_CHARS, b'A'));
            bytes.extend_from_slice(br#"","value":""#);
            let stamp = grow(&mut bytes, STAMP_DIGITS, b'0');
            let rest = grow(&mut bytes, size - STAMP_DIGITS, b'x');
            bytes.push(b'"');
            let idempotency_key = (shape.effect == Effect::Keyed).then(|| {
                bytes.extend_from_slice(br#","envelope":{"idempotency_key":""#);
                let at = grow(&mut bytes, STAMP_DIGITS, b'0');
                bytes.extend_from_slice(b"\"}");
                at
            });
            bytes.push(b'}');
            positions.push(Positions { stamp, rest, key, idempotency_key });
        }
        Self { bytes, positions, rest_bytes: size - STAMP_DIGITS }
    }

    /// Numbers the messages from `sequence` on; `stamp` maps a number to its stamp.
    fn patch(&mut self, sequence: u64, stamp: impl Fn(u64) -> u64) {
        for (number, positions) in (sequence..).zip(&self.positions) {
            write_hex(&mut self.bytes[positions.stamp..][..STAMP_DIGITS], stamp(number));
            if let Some(at) = positions.key {
                // The low four bits of the characters all differ, so that the hash of the key spreads evenly.
                write_digits(&mut self.bytes[at..][..KEY_CHARS], number, b"ABCDEFGHIJKLMNOP");
            }
            if let Some(at) = positions.idempotency_key {
                write_hex(&mut self.bytes[at..][..STAMP_DIGITS], number);
            }
        }
    }
}

/// Appends equal bytes and returns their position.
fn grow(bytes: &mut Vec<u8>, count: usize, byte: u8) -> usize {
    let at = bytes.len();
    bytes.resize(at + count, byte);
    at
}

/// A produce of one message, or an NDJSON batch of several, reused with new stamps.
#[derive(Debug, Clone)]
pub(crate) struct ProduceRequest {
    messages: Messages,
}

impl ProduceRequest {
    /// A request of `batch` messages.
    pub(crate) fn new(addr: SocketAddr, shape: &MessageShape, batch: u32) -> Self {
        let mut messages = Messages::new(shape, batch.max(1), b'\n');
        if batch > 1 {
            messages.bytes.push(b'\n');
        }
        let body = std::mem::take(&mut messages.bytes);
        post_into(&mut messages.bytes, addr, "/v1/produce", if batch > 1 { NDJSON } else { JSON }, &body);
        let head = messages.bytes.len() - body.len();
        for positions in &mut messages.positions {
            positions.stamp += head;
            positions.rest += head;
            positions.key = positions.key.map(|key| key + head);
            positions.idempotency_key = positions.idempotency_key.map(|key| key + head);
        }
        Self { messages }
    }

    /// Messages in one request.
    pub(crate) fn messages(&self) -> u64 {
        self.messages.positions.len() as u64
    }

    /// The request, its messages numbered from `sequence` on.
    pub(crate) fn numbered(&mut self, sequence: u64) -> &[u8] {
        self.messages.patch(sequence, |number| number);
        &self.messages.bytes
    }

    /// The request, its messages numbered from `sequence` on, every byte of a value as [`super::Checked`] expects it.
    pub(crate) fn checked(&mut self, sequence: u64) -> &[u8] {
        self.messages.patch(sequence, |number| number);
        for (number, positions) in (sequence..).zip(&self.messages.positions) {
            write_rest(&mut self.messages.bytes[positions.rest..][..self.messages.rest_bytes], number);
        }
        &self.messages.bytes
    }

    /// The request, its messages numbered from `sequence` on, all with the same stamp.
    pub(crate) fn stamped(&mut self, sequence: u64, stamp: u64) -> &[u8] {
        self.messages.patch(sequence, |_| stamp);
        &self.messages.bytes
    }
}

/// A complete of a step: the claim of an ack, a result and output messages.
#[derive(Debug)]
pub(crate) struct StepRequest {
    addr: SocketAddr,
    outputs: Messages,
    body: Vec<u8>,
    bytes: Vec<u8>,
}

impl StepRequest {
    /// A request with `outputs` messages.
    pub(crate) fn new(addr: SocketAddr, shape: &MessageShape, outputs: u32) -> Self {
        Self { addr, outputs: Messages::new(shape, outputs, b','), body: Vec::new(), bytes: Vec::new() }
    }

    /// Messages in one request.
    pub(crate) fn outputs(&self) -> u64 {
        self.outputs.positions.len() as u64
    }

    /// The request for a claim, a JSON object, with messages numbered from `sequence` on.
    pub(crate) fn completing(&mut self, claim: &[u8], sequence: u64) -> &[u8] {
        self.outputs.patch(sequence, |number| number);
        self.body.clear();
        self.body.extend_from_slice(claim.strip_suffix(b"}").unwrap_or(claim));
        self.body.extend_from_slice(br#","result":{"step":"done"},"produce":["#);
        self.body.extend_from_slice(&self.outputs.bytes);
        self.body.extend_from_slice(b"]}");
        post_into(&mut self.bytes, self.addr, "/v1/complete", JSON, &self.body);
        &self.bytes
    }
}

/// Writes a number in hexadecimal digits, right-aligned.
pub(super) fn write_hex(field: &mut [u8], number: u64) {
    write_digits(field, number, b"0123456789abcdef");
}

fn write_digits(field: &mut [u8], number: u64, digits: &[u8; 16]) {
    for (byte, digit) in field.iter_mut().rev().zip(nibbles(number)) {
        *byte = digits[digit];
    }
}

/// The nibbles of a number, lowest first.
fn nibbles(number: u64) -> impl Iterator<Item = usize> {
    (0..16).map(move |index| (number >> (4 * index) & 15) as usize)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn addr() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 8080))
    }

    pub(in crate::load::client) fn body_of(request: &[u8]) -> &str {
        let text = std::str::from_utf8(request).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
        body
    }

    fn shape(size: u32, partitions: u32) -> MessageShape {
        MessageShape { topic: "t".to_owned(), size, partitions, effect: Effect::None }
    }

    #[test]
    fn single_produce_value_begins_with_number() {
        let mut request = ProduceRequest::new(addr(), &shape(20, 1), 1);
        assert_eq!(body_of(request.numbered(0x1f)), r#"{"topic":"t","key":"","value":"000000000000001fxxxx"}"#);
        assert_eq!(body_of(request.numbered(2)), r#"{"topic":"t","key":"","value":"0000000000000002xxxx"}"#);
    }

    #[test]
    fn batch_lines_are_numbered_and_keyed() {
        let mut request = ProduceRequest::new(addr(), &shape(16, 4), 2);
        assert_eq!(
            body_of(request.numbered(15)),
            "{\"topic\":\"t\",\"key\":\"AAAAAAAP\",\"value\":\"000000000000000f\"}\n\
             {\"topic\":\"t\",\"key\":\"AAAAAABA\",\"value\":\"0000000000000010\"}\n"
        );
        assert!(body_of(request.stamped(0, 7)).matches("0000000000000007").count() == 2);
        assert_eq!(request.messages(), 2);
    }

    #[test]
    fn keyed_message_has_unique_idempotency_key() {
        let shape = MessageShape { effect: Effect::Keyed, ..shape(16, 1) };
        let mut request = ProduceRequest::new(addr(), &shape, 1);
        assert_eq!(
            body_of(request.stamped(0x1f, 1)),
            r#"{"topic":"t","key":"","value":"0000000000000001","envelope":{"idempotency_key":"000000000000001f"}}"#
        );
    }

    #[test]
    fn complete_carries_claim_result_and_messages() {
        let mut request = StepRequest::new(addr(), &shape(16, 4), 2);
        for claim in [r#"{"offset":1}"#, r#"{"offset":23}"#] {
            assert_eq!(
                body_of(request.completing(claim.as_bytes(), 15)),
                format!(
                    "{},{},{}{:016x}{}{:016x}{}",
                    &claim[..claim.len() - 1],
                    r#""result":{"step":"done"}"#,
                    r#""produce":[{"topic":"t","key":"AAAAAAAP","value":""#,
                    15,
                    r#""},{"topic":"t","key":"AAAAAABA","value":""#,
                    16,
                    r#""}]}"#,
                )
            );
        }
        let mut request = StepRequest::new(addr(), &shape(16, 1), 0);
        assert!(body_of(request.completing(b"{}", 0)).ends_with(r#""produce":[]}"#));
    }

    #[test]
    fn keys_spread_evenly_over_sixteen_partitions() {
        let mut counts = [0u32; 16];
        let mut request = ProduceRequest::new(addr(), &shape(16, 16), 1);
        for sequence in 0..1600 {
            let body = body_of(request.numbered(sequence)).to_owned();
            let key = text_key(&body);
            let hash =
                key.bytes().fold(0x811c_9dc5u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
            counts[(hash % 16) as usize] += 1;
        }
        assert!(counts.iter().all(|&count| count == 100), "{counts:?}");
    }

    fn text_key(body: &str) -> &str {
        body.split('"').nth(7).expect("a key")
    }
}
