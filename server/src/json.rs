//! A JSON writer for responses and deliveries.
//!
//! By hand and not with `serde`: the types of the core are written in the shape of the API, each line is appended to a
//! buffer that many lines share, and texts that need no escaping are copied as they are.

use bytes::Bytes;
use driftq_core::Body;
use driftq_core::reply::{Delivery, Peeked};
use driftq_core::types::{
    DeadLetter, Envelope, LeaseToken, Metadata, PartitionId, RedriveOrigin, RetryPolicy, Routing, Text, Timestamp,
    WallClock,
};

use crate::byte_search::has_control_or;
use crate::{base64, rfc3339};

/// A JSON object under construction.
#[derive(Debug)]
pub(crate) struct Json {
    out: Vec<u8>,
    empty: bool,
}

impl Json {
    /// An empty object.
    pub(crate) fn object() -> Self {
        Self::append(Vec::with_capacity(256))
    }

    /// An object appended to `out`.
    pub(crate) fn append(mut out: Vec<u8>) -> Self {
        out.push(b'{');
        Self { out, empty: true }
    }

    // The names are literals, of which the copies are moves.
    #[inline(always)]
    fn name(&mut self, name: &str) {
        match std::mem::replace(&mut self.empty, false) {
            true => self.out.push(b'"'),
            false => self.out.extend_from_slice(b",\""),
        }
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
    }

    /// A text field. Field names are literals that need no escaping.
    #[inline]
    pub(crate) fn text(&mut self, name: &str, value: &str) {
        self.name(name);
        string(value, &mut self.out);
    }

    /// A text field whose value is one of the program's own and needs no escaping.
    pub(crate) fn plain(&mut self, name: &str, value: &'static str) {
        self.name(name);
        self.out.push(b'"');
        self.out.extend_from_slice(value.as_bytes());
        self.out.push(b'"');
    }

    /// A text field, omitted if `None`.
    pub(crate) fn optional_text(&mut self, name: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.text(name, value);
        }
    }

    /// The value of a message: `value` if it is UTF-8, else `value_base64`.
    fn payload(&mut self, value: &[u8]) {
        match std::str::from_utf8(value) {
            Ok(text) => self.text("value", text),
            Err(_) => {
                let mut encoded = Vec::new();
                base64::encode(value, &mut encoded);
                self.text("value_base64", std::str::from_utf8(&encoded).expect("Base64 is ASCII"));
            }
        }
    }

    /// A text field from bytes that were UTF-8 when produced.
    fn bytes(&mut self, name: &str, value: &[u8]) {
        match std::str::from_utf8(value) {
            Ok(text) => self.text(name, text),
            Err(_) => self.text(name, &String::from_utf8_lossy(value)),
        }
    }

    /// A number field.
    #[inline]
    pub(crate) fn number(&mut self, name: &str, value: impl itoa::Integer) {
        self.name(name);
        self.out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
    }

    /// A timestamp field.
    pub(crate) fn timestamp(&mut self, name: &str, value: Timestamp) {
        self.name(name);
        self.out.push(b'"');
        rfc3339::write(value, &mut self.out);
        self.out.push(b'"');
    }

    /// A boolean field.
    pub(crate) fn flag(&mut self, name: &str, value: bool) {
        self.name(name);
        self.out.extend_from_slice(if value { b"true" } else { b"false" });
    }

    /// A field whose value is JSON already.
    pub(crate) fn raw(&mut self, name: &str, value: &str) {
        self.name(name);
        self.out.extend_from_slice(value.as_bytes());
    }

    /// A null field.
    pub(crate) fn null(&mut self, name: &str) {
        self.name(name);
        self.out.extend_from_slice(b"null");
    }

    /// A field with an object, whose fields `fill` writes.
    pub(crate) fn object_in(&mut self, name: &str, fill: impl FnOnce(&mut Self)) {
        self.name(name);
        let mut inner = Self::append(std::mem::take(&mut self.out));
        fill(&mut inner);
        self.out = inner.into_vec();
    }

    /// A field with an array; `write` appends each item.
    pub(crate) fn list<T>(
        &mut self,
        name: &str,
        items: impl IntoIterator<Item = T>,
        mut write: impl FnMut(T, &mut Vec<u8>),
    ) {
        self.name(name);
        self.out.push(b'[');
        for (index, item) in items.into_iter().enumerate() {
            if index > 0 {
                self.out.push(b',');
            }
            write(item, &mut self.out);
        }
        self.out.push(b']');
    }

    /// The text of the object, after what the buffer held before.
    pub(crate) fn into_vec(mut self) -> Vec<u8> {
        self.out.push(b'}');
        self.out
    }

    /// The text of the object.
    pub(crate) fn into_bytes(self) -> Bytes {
        self.into_vec().into()
    }
}

/// Appends an object to `out`.
pub(crate) fn object(out: &mut Vec<u8>, fill: impl FnOnce(&mut Json)) {
    let mut json = Json::append(std::mem::take(out));
    fill(&mut json);
    *out = json.into_vec();
}

/// Appends a string with its quotes.
pub(crate) fn string(value: &str, out: &mut Vec<u8>) {
    // Most texts need no escaping.
    if !has_control_or(value.as_bytes(), *b"\"\\") {
        out.reserve(value.len() + 2);
        out.push(b'"');
        out.extend_from_slice(value.as_bytes());
        out.push(b'"');
    } else {
        serde_json::to_writer(out, value).expect("a string can be written as JSON");
    }
}

/// Appends the last hexadecimal digits of a number, at most 16.
pub(crate) fn hex<const DIGITS: usize>(number: u64, out: &mut Vec<u8>) {
    let (upper, lower) = (hex_digits((number >> 32) as u32), hex_digits(number as u32));
    match DIGITS.checked_sub(lower.len()) {
        Some(more) => {
            out.extend_from_slice(&upper[upper.len() - more..]);
            out.extend_from_slice(&lower);
        }
        None => out.extend_from_slice(&lower[lower.len() - DIGITS..]),
    }
}

/// The hexadecimal digits of a number, all at once: each becomes a byte of its own.
#[inline]
fn hex_digits(number: u32) -> [u8; 8] {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    let spread = u64::from(number);
    let spread = (spread | spread << 16) & 0x0000_ffff_0000_ffff;
    let spread = (spread | spread << 8) & 0x00ff_00ff_00ff_00ff;
    let spread = (spread | spread << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    // From ten on, six more carry into the next four bits.
    let is_letter = (spread + ONES * 6) >> 4 & ONES;
    let hex_after_digits = u64::from(b'a' - b'9' - 1);
    (spread + ONES * u64::from(b'0') + is_letter * hex_after_digits).to_be_bytes()
}

/// Bytes of a delivery without metadata, beside its key and value.
const DELIVERY_BYTES: usize = 288;

/// Appends a delivery as a line of a stream, without the newline. `clock` converts broker time to wall time.
pub(crate) fn delivery(delivery: &Delivery, clock: &WallClock, out: &mut Vec<u8>) {
    out.reserve(DELIVERY_BYTES + delivery.body.payload_len() as usize);
    object(out, |json| {
        json.number("partition", delivery.partition.0);
        json.number("offset", delivery.offset.0);
        json.number("attempts", delivery.attempts);
        json.bytes("key", delivery.body.key());
        json.payload(delivery.body.value());
        json.text("last_error", delivery.last_error.as_str());
        json.token("lease_token", delivery.token);
        json.timestamp("lease_until", clock.wall(delivery.lease_until));
        json.number("failures", delivery.failures);
        json.timestamp("produced_at", clock.wall(delivery.produced_at));
        json.metadata(&delivery.body, clock);
    });
}

/// Appends a peeked message: a line of a stream without a lease. `clock` converts broker time to wall time.
pub(crate) fn peeked(partition: PartitionId, peeked: &Peeked, clock: &WallClock, out: &mut Vec<u8>) {
    object(out, |json| {
        json.number("partition", partition.0);
        json.number("offset", peeked.offset.0);
        json.number("attempts", 0);
        json.bytes("key", peeked.body.key());
        json.payload(peeked.body.value());
        json.text("last_error", "");
        json.number("failures", 0);
        json.timestamp("produced_at", clock.wall(peeked.produced_at));
        json.metadata(&peeked.body, clock);
    });
}

impl Json {
    /// A lease token field; equals the token's `Display` without the cost of a formatter.
    pub(crate) fn token(&mut self, name: &str, token: LeaseToken) {
        self.name(name);
        self.out.push(b'"');
        hex::<8>(u64::from(token.boot.0), &mut self.out);
        hex::<16>(token.counter, &mut self.out);
        self.out.push(b'"');
    }

    fn metadata(&mut self, body: &Body, clock: &WallClock) {
        if !body.has_metadata() {
            return;
        }
        let Metadata { mut envelope, routing, trace, dead_letter, redrive, lost, .. } = body.metadata();
        // A client reads the end of a delay as the time of delivery.
        let delayed_until = envelope.delayed_until.take().map(|until| clock.wall(until));
        envelope.deliver_at = envelope.deliver_at.or(delayed_until);
        if let Some(routing) = routing {
            self.object_in("routing", |json| json.routing(&routing));
        }
        if !envelope.is_empty() || dead_letter.is_some() {
            self.object_in("envelope", |json| {
                json.envelope(&envelope);
                if let Some(dead) = &dead_letter {
                    json.object_in("dlq", |json| json.dead_letter(dead, redrive, lost.as_deref()));
                }
            });
        }
        self.optional_text("trace", trace.as_deref());
        if let Some(redrive) = redrive {
            self.number("redrives", redrive.count);
        }
        if lost.is_some() {
            self.flag("lost", true);
        }
    }

    fn routing(&mut self, routing: &Routing) {
        self.text("label", &routing.label);
        self.map("meta", &routing.meta);
    }

    fn map(&mut self, name: &str, map: &std::collections::BTreeMap<Text, Text>) {
        self.name(name);
        serde_json::to_writer(&mut self.out, map).expect("a map of texts can be written as JSON");
    }

    /// The fields of an envelope, named as in a produce.
    pub(crate) fn envelope(&mut self, envelope: &Envelope) {
        self.optional_text("run_id", envelope.run_id.as_deref());
        self.optional_text("step_id", envelope.step_id.as_deref());
        self.optional_text("parent_step_id", envelope.parent_step_id.as_deref());
        self.optional_text("tenant_id", envelope.tenant_id.as_deref());
        self.optional_text("idempotency_key", envelope.idempotency_key.as_deref());
        self.optional_text("target_topic", envelope.target_topic.as_ref().map(driftq_core::types::TopicName::as_str));
        if let Some(partition) = envelope.partition_override {
            self.number("partition_override", partition.0);
        }
        self.optional_text("deadline", envelope.deadline.as_ref().map(|deadline| &*deadline.text));
        if let Some(policy) = envelope.retry_policy {
            self.object_in("retry_policy", |json| json.retry_policy(policy));
        }
        if let Some(priority) = envelope.priority {
            self.number("priority", priority.level());
        }
        if let Some(at) = envelope.deliver_at {
            self.timestamp("deliver_at", at);
        }
        if !envelope.labels.is_empty() {
            self.map("labels", &envelope.labels);
        }
    }

    /// A field of value 0 is omitted, as it means the same as an absent one.
    fn retry_policy(&mut self, policy: RetryPolicy) {
        let fields = [
            ("max_attempts", u64::from(policy.max_attempts)),
            ("backoff_ms", policy.backoff.0),
            ("max_backoff_ms", policy.max_backoff.0),
        ];
        for (name, value) in fields.into_iter().filter(|(_, value)| *value > 0) {
            self.number(name, value);
        }
    }

    /// The origin of a dead letter; `redrive` if it had been redriven before, `damage` if its payload is lost.
    fn dead_letter(&mut self, dead: &DeadLetter, redrive: Option<RedriveOrigin>, damage: Option<&str>) {
        self.text("original_topic", dead.original_topic.as_str());
        self.number("original_partition", dead.original_partition.0);
        self.number("original_offset", dead.original_offset.0);
        self.text("group", dead.group.as_str());
        self.number("attempts", dead.attempts);
        self.text("last_error", &dead.last_error);
        self.text("reason", dead.reason.as_str());
        self.timestamp("routed_at", dead.routed_at);
        self.number("first_offset", redrive.map_or(dead.original_offset, |redrive| redrive.original_offset).0);
        self.number("redrives", redrive.map_or(0, |redrive| redrive.count));
        if damage.is_some() {
            self.flag("lost", true);
        }
        self.optional_text("damage", damage);
        self.optional_text("deadline", dead.kept.deadline.as_ref().map(|deadline| &*deadline.text));
        if let Some(policy) = dead.kept.retry_policy {
            self.object_in("retry_policy", |json| json.retry_policy(policy));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_written_as_its_display() {
        for (boot, counter) in [(1, 2), (u32::MAX, u64::MAX), (0, 0x0123_4567_89ab_cdef)] {
            let token = LeaseToken { boot: driftq_core::types::Boot(boot), counter };
            let mut json = Json::object();
            json.token("t", token);
            assert_eq!(String::from_utf8(json.into_vec()).expect("text"), format!("{{\"t\":\"{token}\"}}"));
        }
    }

    #[test]
    fn hexadecimal_digits_are_those_of_the_formatter() {
        let numbers = (0..=u8::MAX).map(|byte| u64::from_ne_bytes([byte; 8]));
        for number in numbers.chain([0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210, 1 << 32, 1]) {
            let mut out = Vec::new();
            hex::<16>(number, &mut out);
            hex::<8>(number, &mut out);
            hex::<2>(number, &mut out);
            let expected = format!("{number:016x}{:08x}{:02x}", number as u32, number as u8);
            assert_eq!(String::from_utf8(out).expect("text"), expected);
        }
    }

    #[test]
    fn text_is_escaped_as_serde_json_does() {
        for text in ["", "plain", "é\u{7f}", "\"", "\\", "a\u{1f}", "line\nbreak", "\u{2028}"] {
            let mut out = Vec::new();
            string(text, &mut out);
            assert_eq!(out, serde_json::to_vec(text).expect("JSON"), "{text:?}");
        }
        for (len, at) in (1..70).flat_map(|len| (0..len).map(move |at| (len, at))) {
            for escaped in ["\0", "\u{1f}", "\"", "\\", " ", "#"] {
                let (mut text, mut out) = ("x".repeat(len), Vec::new());
                text.replace_range(at..=at, escaped);
                string(&text, &mut out);
                assert_eq!(out, serde_json::to_vec(&text).expect("JSON"), "{text:?}");
            }
        }
    }

    #[test]
    fn fields_are_separated_and_objects_nest() {
        let mut json = Json::object();
        json.text("a", "x\"\n\u{1}é");
        json.object_in("b", |json| json.flag("c", true));
        json.list("d", ["y", "z"], string);
        json.null("e");
        json.number("f", -7);
        let text = String::from_utf8(json.into_vec()).expect("text");
        assert_eq!(text, "{\"a\":\"x\\\"\\n\\u0001é\",\"b\":{\"c\":true},\"d\":[\"y\",\"z\"],\"e\":null,\"f\":-7}");
    }
}
