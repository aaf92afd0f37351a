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

/// A produce of one message, or an NDJSON batch of several, that is sent again and again with other stamps.
#[derive(Debug, Clone)]
pub(crate) struct ProduceRequest {
    bytes: Vec<u8>,
    /// Where each message's stamp and, if it has one, key stand.
    places: Vec<(usize, Option<usize>)>,
}

impl ProduceRequest {
    /// `batch` messages with values of `size` bytes; with a key of its own each if there are partitions to spread over.
    pub(crate) fn new(addr: SocketAddr, topic: &str, size: u32, batch: u32, partitions: u32) -> Self {
        let size = (size as usize).max(STAMP_DIGITS);
        let mut body = Vec::new();
        let mut places = Vec::new();
        for _ in 0..batch.max(1) {
            body.extend_from_slice(format!(r#"{{"topic":"{topic}","key":""#).as_bytes());
            let key = (partitions > 1).then_some(body.len());
            body.resize(body.len() + if partitions > 1 { KEY_LETTERS } else { 0 }, b'A');
            body.extend_from_slice(br#"","value":""#);
            places.push((body.len(), key));
            body.resize(body.len() + STAMP_DIGITS, b'0');
            body.resize(body.len() + size - STAMP_DIGITS, b'x');
            body.extend_from_slice(b"\"}");
            if batch > 1 {
                body.push(b'\n');
            }
        }
        let mut bytes = Vec::new();
        post_into(&mut bytes, addr, "/v1/produce", if batch > 1 { NDJSON } else { JSON }, &body);
        let head = bytes.len() - body.len();
        for (stamp, key) in &mut places {
            *stamp += head;
            *key = key.map(|key| key + head);
        }
        Self { bytes, places }
    }

    /// Messages in one request.
    pub(crate) fn messages(&self) -> u64 {
        self.places.len() as u64
    }

    /// The request, its messages numbered from `sequence` on.
    pub(crate) fn numbered(&mut self, sequence: u64) -> &[u8] {
        for index in 0..self.places.len() {
            let number = sequence + index as u64;
            self.patch(index, number, number);
        }
        &self.bytes
    }

    /// The request, its messages keyed from `sequence` on and all stamped alike.
    pub(crate) fn stamped(&mut self, sequence: u64, stamp: u64) -> &[u8] {
        for index in 0..self.places.len() {
            self.patch(index, sequence + index as u64, stamp);
        }
        &self.bytes
    }

    fn patch(&mut self, index: usize, key_number: u64, stamp: u64) {
        let (stamp_at, key_at) = self.places[index];
        for (place, digit) in self.bytes[stamp_at..stamp_at + STAMP_DIGITS].iter_mut().rev().zip(nibbles(stamp)) {
            *place = b"0123456789abcdef"[digit];
        }
        if let Some(key_at) = key_at {
            // The letters' low four bits are all different, so that any hash of the key spreads evenly.
            for (place, digit) in self.bytes[key_at..key_at + KEY_LETTERS].iter_mut().rev().zip(nibbles(key_number)) {
                *place = b"ABCDEFGHIJKLMNOP"[digit];
            }
        }
    }
}

/// The nibbles of a number, lowest first.
fn nibbles(number: u64) -> impl Iterator<Item = usize> {
    (0..16).map(move |index| (number >> (4 * index) & 15) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 8080))
    }

    fn body_of(request: &[u8]) -> &str {
        let text = std::str::from_utf8(request).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
        body
    }

    #[test]
    fn a_single_produce_carries_its_number_in_front_of_its_value() {
        let mut request = ProduceRequest::new(addr(), "t", 20, 1, 1);
        assert_eq!(body_of(request.numbered(0x1f)), r#"{"topic":"t","key":"","value":"000000000000001fxxxx"}"#);
        assert_eq!(body_of(request.numbered(2)), r#"{"topic":"t","key":"","value":"0000000000000002xxxx"}"#);
    }

    #[test]
    fn a_batch_numbers_and_keys_each_of_its_lines() {
        let mut request = ProduceRequest::new(addr(), "t", 16, 2, 4);
        assert_eq!(
            body_of(request.numbered(15)),
            "{\"topic\":\"t\",\"key\":\"AAAAAAAP\",\"value\":\"000000000000000f\"}\n\
             {\"topic\":\"t\",\"key\":\"AAAAAABA\",\"value\":\"0000000000000010\"}\n"
        );
        assert!(body_of(request.stamped(0, 7)).matches("0000000000000007").count() == 2);
        assert_eq!(request.messages(), 2);
    }

    #[test]
    fn keys_spread_evenly_over_sixteen_partitions() {
        let mut counts = [0u32; 16];
        let mut request = ProduceRequest::new(addr(), "t", 16, 1, 16);
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
