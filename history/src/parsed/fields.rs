//! Reading single values out of requests and answers.

use serde_json::Value;

/// A text field; empty where it is not there.
pub(crate) fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// A number, also where it is spelled as a text, as in a query.
pub(super) fn number(value: &Value, name: &str) -> Option<u64> {
    let value = value.get(name)?;
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

pub(super) fn flag(value: &Value, name: &str) -> bool {
    value.get(name).is_some_and(|value| value.as_bool().unwrap_or(value.as_str() == Some("true")))
}

/// A moment, in milliseconds since 1970: RFC 3339 text, or the number itself.
pub(crate) fn millis(value: &Value, name: &str) -> Option<u64> {
    let value = value.get(name)?;
    match value.as_str() {
        Some(text) => {
            text.parse::<jiff::Timestamp>().ok().and_then(|moment| u64::try_from(moment.as_millisecond()).ok())
        }
        None => value.as_u64(),
    }
}

/// Tenant and idempotency key of an envelope. No tenant is `default`.
pub(super) fn identity(envelope: &Value) -> Option<(&str, &str)> {
    let key = text(envelope, "idempotency_key");
    let tenant = match text(envelope, "tenant_id") {
        "" => "default",
        tenant => tenant,
    };
    (!key.is_empty()).then_some((tenant, key))
}

/// Whether a message of this envelope may become a dead letter.
pub(crate) fn may_die(envelope: &Value) -> bool {
    let attempts = envelope.get("retry_policy").and_then(|policy| number(policy, "max_attempts"));
    attempts.unwrap_or(0) > 0 || !text(envelope, "deadline").is_empty() || envelope.get("deadline_ms").is_some()
}

/// Whether a message of this envelope need not come in the order of its offset.
pub(super) fn out_of_order(envelope: &Value) -> bool {
    number(envelope, "priority").unwrap_or(0) > 0
        || number(envelope, "delay_ms").unwrap_or(0) > 0
        || !text(envelope, "deliver_at").is_empty()
}

/// Fields that are handed on as they were sent.
const TEXTS: [&str; 5] = ["run_id", "step_id", "parent_step_id", "tenant_id", "idempotency_key"];

/// The first field in which a delivered envelope is not the one that was sent. Where a message waited for is not compared: a delay
/// is handed on as a moment.
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
    // Where a producer says nothing of these, a router may have.
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

/// A value, short enough for a sentence.
pub(crate) fn short(value: &str) -> &str {
    match value.char_indices().nth(60) {
        Some((end, _)) => &value[..end],
        None => value,
    }
}
