//! Requests as bytes: made once, patched in place where a message has to differ from the one before.

use std::io::Write;
use std::net::SocketAddr;

const JSON: &str = "application/json";
/// The content type of batches.
pub(crate) const NDJSON: &str = "application/x-ndjson";

/// Hexadecimal digits at the front of each value.
const STAMP_DIGITS: usize = 16;
/// Letters of each key.
const KEY_LETTERS: usize = 8;

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

/// Writes a POST request over what stood in `request`, whose memory is used again.
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

/// Whether a message stands for an effect that happens once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// It has no idempotency key.
    None,
    /// It has an idempotency key of its own.
    Keyed,
}

/// What all messages of a request look like.
#[derive(Debug, Clone)]
pub(crate) struct MessageShape {
    /// Where they go.
    pub(crate) topic: String,
    /// Bytes of each value.
    pub(crate) size: u32,
    /// Partitions they are spread over: where there are several, every message has a key of its own.
    pub(crate) partitions: u32,
    /// Whether each has an effect.
    pub(crate) effect: Effect,
}

/// Messages as JSON objects one behind the other, patched in place where they have to differ.
#[derive(Debug, Clone)]
struct Messages {
    bytes: Vec<u8>,
    places: Vec<Places>,
}

/// Where a message's parts stand that are its own.
#[derive(Debug, Clone, Copy)]
struct Places {
    stamp: usize,
    key: Option<usize>,
    idempotency_key: Option<usize>,
}

impl Messages {
    fn new(shape: &MessageShape, count: u32, between: u8) -> Self {
        let size = (shape.size as usize).max(STAMP_DIGITS);
        let (mut bytes, mut places) = (Vec::new(), Vec::new());
        for index in 0..count {
            if index > 0 {
                bytes.push(between);
            }
            bytes.extend_from_slice(format!(r#"{{"topic":"{}","key":""#, shape.topic).as_bytes());
            let key = (shape.partitions > 1).then(|| grow(&mut bytes, KEY_LETTERS, b'A'));
            bytes.extend_from_slice(br#"","value":""#);
            let stamp = grow(&mut bytes, STAMP_DIGITS, b'0');
            grow(&mut bytes, size - STAMP_DIGITS, b'x');
            bytes.push(b'"');
            let idempotency_key = (shape.effect == Effect::Keyed).then(|| {
                bytes.extend_from_slice(br#","envelope":{"idempotency_key":""#);
                let at = grow(&mut bytes, STAMP_DIGITS, b'0');
                bytes.extend_from_slice(b"\"}");
                at
            });
            bytes.push(b'}');
            places.push(Places { stamp, key, idempotency_key });
        }
        Self { bytes, places }
    }

    /// Numbers the messages from `sequence` on; each is stamped with what `stamp` makes of its number.
    fn patch(&mut self, sequence: u64, stamp: impl Fn(u64) -> u64) {
        for (number, places) in (sequence..).zip(&self.places) {
            write_hex(&mut self.bytes[places.stamp..][..STAMP_DIGITS], stamp(number));
            if let Some(at) = places.key {
                // The letters' low four bits are all different, so that any hash of the key spreads evenly.
                write_digits(&mut self.bytes[at..][..KEY_LETTERS], number, b"ABCDEFGHIJKLMNOP");
            }
            if let Some(at) = places.idempotency_key {
                write_hex(&mut self.bytes[at..][..STAMP_DIGITS], number);
            }
        }
    }
}

/// Appends so many equal bytes, and says where they begin.
fn grow(bytes: &mut Vec<u8>, count: usize, byte: u8) -> usize {
    let at = bytes.len();
    bytes.resize(at + count, byte);
    at
}

/// A produce of one message, or an NDJSON batch of several, that is sent again and again with other stamps.
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
        for places in &mut messages.places {
            places.stamp += head;
            places.key = places.key.map(|key| key + head);
            places.idempotency_key = places.idempotency_key.map(|key| key + head);
        }
        Self { messages }
    }

    /// Messages in one request.
    pub(crate) fn messages(&self) -> u64 {
        self.messages.places.len() as u64
    }

    /// The request, its messages numbered from `sequence` on.
    pub(crate) fn numbered(&mut self, sequence: u64) -> &[u8] {
        self.messages.patch(sequence, |number| number);
        &self.messages.bytes
    }

    /// The request, its messages keyed from `sequence` on and all stamped alike.
    pub(crate) fn stamped(&mut self, sequence: u64, stamp: u64) -> &[u8] {
        self.messages.patch(sequence, |_| stamp);
        &self.messages.bytes
    }
}

/// A complete of a step: the claim of an ack, and with it a result and the next step's messages.
#[derive(Debug)]
pub(crate) struct StepRequest {
    addr: SocketAddr,
    outputs: Messages,
    body: Vec<u8>,
    bytes: Vec<u8>,
}

impl StepRequest {
    /// A request with so many messages.
    pub(crate) fn new(addr: SocketAddr, shape: &MessageShape, outputs: u32) -> Self {
        Self { addr, outputs: Messages::new(shape, outputs, b','), body: Vec::new(), bytes: Vec::new() }
    }

    /// Messages in one request.
    pub(crate) fn outputs(&self) -> u64 {
        self.outputs.places.len() as u64
    }

    /// The request for this claim, a JSON object, its messages numbered from `sequence` on.
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

/// Writes a number in hexadecimal digits, as many as there is room for.
pub(super) fn write_hex(room: &mut [u8], number: u64) {
    write_digits(room, number, b"0123456789abcdef");
}

fn write_digits(room: &mut [u8], number: u64, digits: &[u8; 16]) {
    for (place, digit) in room.iter_mut().rev().zip(nibbles(number)) {
        *place = digits[digit];
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

    pub(in crate::client) fn body_of(request: &[u8]) -> &str {
        let text = std::str::from_utf8(request).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
        body
    }

    fn shape(size: u32, partitions: u32) -> MessageShape {
        MessageShape { topic: "t".to_owned(), size, partitions, effect: Effect::None }
    }

    #[test]
    fn a_single_produce_carries_its_number_in_front_of_its_value() {
        let mut request = ProduceRequest::new(addr(), &shape(20, 1), 1);
        assert_eq!(body_of(request.numbered(0x1f)), r#"{"topic":"t","key":"","value":"000000000000001fxxxx"}"#);
        assert_eq!(body_of(request.numbered(2)), r#"{"topic":"t","key":"","value":"0000000000000002xxxx"}"#);
    }

    #[test]
    fn a_batch_numbers_and_keys_each_of_its_lines() {
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
    fn a_message_with_an_effect_has_an_idempotency_key_of_its_own() {
        let shape = MessageShape { effect: Effect::Keyed, ..shape(16, 1) };
        let mut request = ProduceRequest::new(addr(), &shape, 1);
        assert_eq!(
            body_of(request.stamped(0x1f, 1)),
            r#"{"topic":"t","key":"","value":"0000000000000001","envelope":{"idempotency_key":"000000000000001f"}}"#
        );
    }

    #[test]
    fn a_step_says_its_claim_its_result_and_its_messages() {
        let mut request = StepRequest::new(addr(), &shape(16, 4), 2);
        for claim in [r#"{"offset":1}"#, r#"{"offset":23}"#] {
            assert_eq!(
                body_of(request.completing(claim.as_bytes(), 15)),
                format!(
                    r#"{},"result":{{"step":"done"}},"produce":[{{"topic":"t","key":"AAAAAAAP","value":"{:016x}"}},{{"topic":"t","key":"AAAAAABA","value":"{:016x}"}}]}}"#,
                    &claim[..claim.len() - 1],
                    15,
                    16
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
