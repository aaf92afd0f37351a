//! The two requests of an effect: begin and finish.

use std::net::SocketAddr;

use super::request::{post, write_hex};

/// The owner of the effects.
const OWNER: &str = "worker-1";
/// Longer than any effect takes here.
const LEASE_MS: u32 = 60_000;
/// Hexadecimal digits at the end of each key.
const NUMBER_DIGITS: usize = 16;

/// The form of all effects of a run.
#[derive(Debug, Clone)]
pub(crate) struct EffectShape {
    /// The prefix of their keys, unique per run.
    pub(crate) prefix: String,
    /// Bytes of each result as JSON, quotes included.
    pub(crate) result_size: u32,
}

impl EffectShape {
    /// Bytes of an effect's key and result.
    pub(crate) fn payload_bytes(&self) -> u64 {
        (self.prefix.len() + 1 + NUMBER_DIGITS + self.result().len()) as u64
    }

    fn key(&self) -> String {
        format!("{}-{}", self.prefix, "0".repeat(NUMBER_DIGITS))
    }

    fn result(&self) -> String {
        format!("\"{}\"", "r".repeat((self.result_size as usize).saturating_sub(2)))
    }
}

/// The requests of effects, encoded once and patched in place.
#[derive(Debug)]
pub(crate) struct EffectRequests {
    addr: SocketAddr,
    shape: EffectShape,
    begin: Vec<u8>,
    finish: Vec<u8>,
    /// Position of the key's number.
    number_in_begin: usize,
    number_in_finish: usize,
    /// Position of the token.
    token: std::ops::Range<usize>,
}

impl EffectRequests {
    /// Requests for effects of this form.
    pub(crate) fn new(addr: SocketAddr, shape: &EffectShape) -> Self {
        let key = shape.key();
        let body = format!(r#"{{"scope":{{"kind":"tenant"}},"key":"{key}","owner":"{OWNER}","lease_ms":{LEASE_MS}}}"#);
        let begin = post(addr, "/v1/idempotency/begin", &body);
        let number_in_begin = begin.len() - body.len() + number_in(&body, &key);
        let shape = shape.clone();
        let mut requests =
            Self { addr, shape, begin, finish: Vec::new(), number_in_begin, number_in_finish: 0, token: 0..0 };
        requests.make_finish("");
        requests
    }

    /// The begin of the effect with this number.
    pub(crate) fn begin(&mut self, number: u64) -> &[u8] {
        write_hex(&mut self.begin[self.number_in_begin..][..NUMBER_DIGITS], number);
        &self.begin
    }

    /// The finish of the effect with this number, under this token.
    pub(crate) fn finish(&mut self, number: u64, token: &[u8]) -> &[u8] {
        if token.len() != self.token.len() {
            self.make_finish(&"t".repeat(token.len()));
        }
        write_hex(&mut self.finish[self.number_in_finish..][..NUMBER_DIGITS], number);
        self.finish[self.token.clone()].copy_from_slice(token);
        &self.finish
    }

    /// Encodes the finish again, for tokens of this length: a broker's tokens all have the same length.
    fn make_finish(&mut self, token: &str) {
        let (key, result) = (self.shape.key(), self.shape.result());
        let front = format!(r#"{{"scope":{{"kind":"tenant"}},"key":"{key}","lease_token":""#);
        let body = format!(r#"{front}{token}","status":"SUCCEEDED","result":{result}}}"#);
        self.finish = post(self.addr, "/v1/idempotency/finish", &body);
        let head = self.finish.len() - body.len();
        self.number_in_finish = head + number_in(&body, &key);
        self.token = head + front.len()..head + front.len() + token.len();
    }
}

/// Position of the key's number in a body.
fn number_in(body: &str, key: &str) -> usize {
    body.find(key).map_or(0, |at| at + key.len() - NUMBER_DIGITS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::client::request::tests::body_of;

    #[test]
    fn begin_and_finish_name_the_same_effect() {
        let addr = SocketAddr::from(([127, 0, 0, 1], 8080));
        let shape = EffectShape { prefix: "run-7".to_owned(), result_size: 6 };
        let mut requests = EffectRequests::new(addr, &shape);
        assert_eq!(
            body_of(requests.begin(0x1f)),
            r#"{"scope":{"kind":"tenant"},"key":"run-7-000000000000001f","owner":"worker-1","lease_ms":60000}"#
        );
        for (number, token) in [(0x1f, "0a1b"), (0x20, "2c3d"), (0x21, "longer than before")] {
            assert_eq!(
                body_of(requests.finish(number, token.as_bytes())),
                format!(
                    r#"{{"scope":{{"kind":"tenant"}},"key":"run-7-{number:016x}","lease_token":"{token}","status":"SUCCEEDED","result":"rrrr"}}"#
                )
            );
        }
        assert_eq!(shape.payload_bytes(), 22 + 6);
    }
}
