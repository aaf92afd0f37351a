//! Reads single fields of requests and answers.

use serde_json::Value;

/// A text field; empty if absent.
pub(crate) fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// A required text field, which must not be empty.
pub(super) fn required<'a>(value: &'a Value, name: &'static str) -> Result<&'a str, &'static str> {
    Some(text(value, name)).filter(|text| !text.is_empty()).ok_or(name)
}

/// A number, also as text, as in a query.
pub(super) fn number(value: &Value, name: &str) -> Option<u64> {
    let value = value.get(name)?;
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

pub(super) fn flag(value: &Value, name: &str) -> bool {
    value.get(name).is_some_and(|value| value.as_bool().unwrap_or(value.as_str() == Some("true")))
}

/// A time in milliseconds since 1970, given as RFC 3339 text or as a number.
pub(crate) fn millis(value: &Value, name: &str) -> Option<u64> {
    let value = value.get(name)?;
    match value.as_str() {
        Some(text) => text.parse::<jiff::Timestamp>().ok().and_then(|time| u64::try_from(time.as_millisecond()).ok()),
        None => value.as_u64(),
    }
}

/// The tenant and idempotency key of an envelope. No tenant is `default`.
pub(super) fn identity(envelope: &Value) -> Option<(&str, &str)> {
    let key = text(envelope, "idempotency_key");
    let tenant = match text(envelope, "tenant_id") {
        "" => "default",
        tenant => tenant,
    };
    (!key.is_empty()).then_some((tenant, key))
}

/// Whether a message with this envelope can be dead-lettered: its attempts are limited, or it has a deadline.
pub(crate) fn has_dead_letter_policy(envelope: &Value) -> bool {
    let attempts = envelope.get("retry_policy").and_then(|policy| number(policy, "max_attempts"));
    attempts.unwrap_or(0) > 0 || !text(envelope, "deadline").is_empty() || envelope.get("deadline_ms").is_some()
}

/// Whether a message with this envelope is exempt from offset order.
pub(super) fn out_of_order(envelope: &Value) -> bool {
    number(envelope, "priority").unwrap_or(0) > 0
        || number(envelope, "delay_ms").unwrap_or(0) > 0
        || !text(envelope, "deliver_at").is_empty()
}

/// Whether a topic holds dead letters.
pub(crate) fn is_dead_letter_topic(topic: &str) -> bool {
    topic.starts_with("dlq.")
}

/// Envelope fields that are delivered as they were sent.
const TEXTS: [&str; 5] = ["run_id", "step_id", "parent_step_id", "tenant_id", "idempotency_key"];

/// Returns the first field in which a delivered envelope differs from the one that was sent. The delay is not
/// compared: it is sent as a duration and delivered as a time.
pub(crate) fn same_envelope(sent: &Value, delivered: &Value, is_dead: bool) -> Result<(), &'static str> {
    let same = |name: &&&'static str| text(sent, name) == text(delivered, name);
    if let Some(name) = TEXTS.iter().find(|name| !same(name)) {
        return Err(name);
    }
    if number(sent, "priority").unwrap_or(0) != number(delivered, "priority").unwrap_or(0) {
        return Err("priority");
    }
    let labels = |value: &Value| value.get("labels").and_then(Value::as_object).filter(|map| !map.is_empty()).cloned();
    if labels(sent) != labels(delivered) {
        return Err("labels");
    }
    if is_dead {
        return Ok(());
    }
    if text(sent, "deadline") != text(delivered, "deadline") && sent.get("deadline_ms").is_none() {
        return Err("deadline");
    }
    // A router may set the next two if the producer did not.
    if !text(sent, "target_topic").is_empty() && text(sent, "target_topic") != text(delivered, "target_topic") {
        return Err("target_topic");
    }
    let partition = number(sent, "partition_override");
    if partition.is_some() && partition != number(delivered, "partition_override") {
        return Err("partition_override");
    }
    let policy = |value: &Value| {
        let policy = value.get("retry_policy");
        ["max_attempts", "backoff_ms", "max_backoff_ms"]
            .map(|name| policy.and_then(|policy| number(policy, name)).unwrap_or(0))
    };
    if policy(sent) != policy(delivered) {
        return Err("retry_policy");
    }
    Ok(())
}

/// The beginning of a value, for sentences.
pub(crate) fn short(value: &str) -> &str {
    match value.char_indices().nth(60) {
        Some((end, _)) => &value[..end],
        None => value,
    }
}
