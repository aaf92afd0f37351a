//! JSON, written by hand where it is written for every message.

use bytes::Bytes;
use driftq_core::Body;
use driftq_core::reply::{Delivery, Peeked};
use driftq_core::types::{
    DeadLetter, Envelope, LeaseToken, Metadata, PartitionId, RetryPolicy, Routing, Text, Timestamp,
};

use crate::moment;

/// An object under construction.
#[derive(Debug)]
pub(crate) struct Json {
    out: Vec<u8>,
    empty: bool,
}

impl Json {
    /// An object without fields.
    pub(crate) fn object() -> Self {
        Self::append(Vec::with_capacity(256))
    }

    /// An object behind what `out` holds.
    pub(crate) fn append(mut out: Vec<u8>) -> Self {
        out.push(b'{');
        Self { out, empty: true }
    }

    fn name(&mut self, name: &str) {
        match std::mem::replace(&mut self.empty, false) {
            true => self.out.push(b'"'),
            false => self.out.extend_from_slice(b",\""),
        }
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
    }

    /// A field with text in it. Names of fields are ours and need no escaping.
    pub(crate) fn text(&mut self, name: &str, value: &str) {
        self.name(name);
        string(value, &mut self.out);
    }

    /// A field with a name in it: of characters that need no escaping.
    pub(crate) fn plain(&mut self, name: &str, value: &str) {
        self.name(name);
        self.out.push(b'"');
        self.out.extend_from_slice(value.as_bytes());
        self.out.push(b'"');
    }

    /// A field with text in it that is left out where there is none.
    pub(crate) fn maybe(&mut self, name: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.text(name, value);
        }
    }

    /// A field with bytes in it that were text when they came.
    fn bytes(&mut self, name: &str, value: &[u8]) {
        match std::str::from_utf8(value) {
            Ok(text) => self.text(name, text),
            Err(_) => self.text(name, &String::from_utf8_lossy(value)),
        }
    }

    /// A field with a number in it.
    pub(crate) fn number(&mut self, name: &str, value: impl itoa::Integer) {
        self.name(name);
        self.out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
    }

    /// A field with a moment in it.
    pub(crate) fn moment(&mut self, name: &str, value: Timestamp) {
        self.name(name);
        self.out.push(b'"');
        moment::write(value, &mut self.out);
        self.out.push(b'"');
    }

    /// A field that is true or false.
    pub(crate) fn flag(&mut self, name: &str, value: bool) {
        self.name(name);
        self.out.extend_from_slice(if value { b"true" } else { b"false" });
    }

    /// A field with a value in it that is JSON already.
    pub(crate) fn raw(&mut self, name: &str, value: &str) {
        self.name(name);
        self.out.extend_from_slice(value.as_bytes());
    }

    /// A field that holds nothing.
    pub(crate) fn null(&mut self, name: &str) {
        self.name(name);
        self.out.extend_from_slice(b"null");
    }

    /// A field with an object in it, whose fields `fill` writes.
    pub(crate) fn object_in(&mut self, name: &str, fill: impl FnOnce(&mut Self)) {
        self.name(name);
        let mut inner = Self::append(std::mem::take(&mut self.out));
        fill(&mut inner);
        self.out = inner.into_vec();
    }

    /// A field with a list in it; `write` writes each item.
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

    /// The object's text, and what stood before it.
    pub(crate) fn into_vec(mut self) -> Vec<u8> {
        self.out.push(b'}');
        self.out
    }

    /// The object's text, ready to be sent.
    pub(crate) fn into_bytes(self) -> Bytes {
        self.into_vec().into()
    }
}

/// Writes an object behind what `out` holds.
pub(crate) fn object(out: &mut Vec<u8>, fill: impl FnOnce(&mut Json)) {
    let mut json = Json::append(std::mem::take(out));
    fill(&mut json);
    *out = json.into_vec();
}

/// Writes a string with its quotes.
pub(crate) fn string(value: &str, out: &mut Vec<u8>) {
    // Most texts need no escaping, and to see that takes less than to look for what does byte by byte.
    if value.bytes().fold(true, |plain, byte| plain & (byte >= b' ') & (byte != b'"') & (byte != b'\\')) {
        out.push(b'"');
        out.extend_from_slice(value.as_bytes());
        out.push(b'"');
    } else {
        serde_json::to_writer(out, value).expect("text is always JSON");
    }
}

/// Writes a number in so many hexadecimal digits.
pub(crate) fn hex(number: u64, digits: u32, out: &mut Vec<u8>) {
    out.extend((0..digits).rev().map(|digit| b"0123456789abcdef"[(number >> (4 * digit)) as usize & 0xf]));
}

/// What an item takes beside its key and value, if nothing travels with it.
const ITEM_BYTES: usize = 288;

/// Writes a delivered message as a stream's line shows it, without the line's end.
pub(crate) fn delivery(delivery: &Delivery, out: &mut Vec<u8>) {
    out.reserve(ITEM_BYTES + delivery.body.payload_len() as usize);
    object(out, |json| {
        json.number("partition", delivery.partition.0);
        json.number("offset", delivery.offset.0);
        json.number("attempts", delivery.attempts);
        json.bytes("key", delivery.body.key());
        json.bytes("value", delivery.body.value());
        json.text("last_error", delivery.last_error.as_str());
        json.token("lease_token", delivery.token);
        json.moment("lease_until", delivery.lease_until);
        json.number("failures", delivery.failures);
        json.moment("produced_at", delivery.produced_at);
        json.metadata(&delivery.body);
    });
}

/// Writes a message that was looked at without consuming it: a line of a stream without a lease.
pub(crate) fn peeked(partition: PartitionId, peeked: &Peeked, out: &mut Vec<u8>) {
    object(out, |json| {
        json.number("partition", partition.0);
        json.number("offset", peeked.offset.0);
        json.number("attempts", 0);
        json.bytes("key", peeked.body.key());
        json.bytes("value", peeked.body.value());
        json.text("last_error", "");
        json.number("failures", 0);
        json.moment("produced_at", peeked.produced_at);
        json.metadata(&peeked.body);
    });
}

impl Json {
    /// As the token's own text, without going through a formatter for every delivery.
    pub(crate) fn token(&mut self, name: &str, token: LeaseToken) {
        self.name(name);
        self.out.push(b'"');
        hex(u64::from(token.boot.0), 8, &mut self.out);
        hex(token.counter, 16, &mut self.out);
        self.out.push(b'"');
    }

    fn metadata(&mut self, body: &Body) {
        if !body.has_metadata() {
            return;
        }
        let Metadata { envelope, routing, trace, dead_letter, redrive } = body.metadata();
        if let Some(routing) = routing {
            self.object_in("routing", |json| json.routing(&routing));
        }
        if !envelope.is_empty() || dead_letter.is_some() {
            self.object_in("envelope", |json| {
                json.envelope(&envelope);
                if let Some(dead) = &dead_letter {
                    json.object_in("dlq", |json| json.dead_letter(dead));
                }
            });
        }
        self.maybe("trace", trace.as_deref());
        if let Some(redrive) = redrive {
            self.number("redrives", redrive.count);
        }
    }

    fn routing(&mut self, routing: &Routing) {
        self.text("label", &routing.label);
        self.map("meta", &routing.meta);
    }

    fn map(&mut self, name: &str, map: &std::collections::BTreeMap<Text, Text>) {
        self.name(name);
        serde_json::to_writer(&mut self.out, map).expect("a map of texts is always JSON");
    }

    /// An envelope's fields, as producers spell them.
    pub(crate) fn envelope(&mut self, envelope: &Envelope) {
        self.maybe("run_id", envelope.run_id.as_deref());
        self.maybe("step_id", envelope.step_id.as_deref());
        self.maybe("parent_step_id", envelope.parent_step_id.as_deref());
        self.maybe("tenant_id", envelope.tenant_id.as_deref());
        self.maybe("idempotency_key", envelope.idempotency_key.as_deref());
        self.maybe("target_topic", envelope.target_topic.as_ref().map(driftq_core::types::TopicName::as_str));
        if let Some(partition) = envelope.partition_override {
            self.number("partition_override", partition.0);
        }
        self.maybe("deadline", envelope.deadline.as_ref().map(|deadline| &*deadline.text));
        if let Some(policy) = envelope.retry_policy {
            self.object_in("retry_policy", |json| json.retry_policy(policy));
        }
        if let Some(priority) = envelope.priority {
            self.number("priority", priority.level());
        }
        if let Some(at) = envelope.deliver_at {
            self.moment("deliver_at", at);
        }
        if !envelope.labels.is_empty() {
            self.map("labels", &envelope.labels);
        }
    }

    /// What is 0 was not given, or might as well not have been.
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

    fn dead_letter(&mut self, dead: &DeadLetter) {
        self.text("original_topic", dead.original_topic.as_str());
        self.number("original_partition", dead.original_partition.0);
        self.number("original_offset", dead.original_offset.0);
        self.text("group", dead.group.as_str());
        self.number("attempts", dead.attempts);
        self.text("last_error", &dead.last_error);
        self.text("reason", dead.reason.as_str());
        self.moment("routed_at", dead.routed_at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_written_as_it_reads_itself() {
        for (boot, counter) in [(1, 2), (u32::MAX, u64::MAX), (0, 0x0123_4567_89ab_cdef)] {
            let token = LeaseToken { boot: driftq_core::types::Boot(boot), counter };
            let mut json = Json::object();
            json.token("t", token);
            assert_eq!(String::from_utf8(json.into_vec()).expect("text"), format!("{{\"t\":\"{token}\"}}"));
        }
    }

    #[test]
    fn texts_are_escaped_where_they_must_be_and_nowhere_else() {
        for text in ["", "plain", "é\u{7f}", "\"", "\\", "a\u{1f}", "line\nbreak", "\u{2028}"] {
            let mut out = Vec::new();
            string(text, &mut out);
            assert_eq!(out, serde_json::to_vec(text).expect("JSON"), "{text:?}");
        }
    }

    #[test]
    fn fields_follow_each_other_with_commas_and_objects_nest() {
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
