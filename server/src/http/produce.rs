//! `POST /v1/produce`: one message.

use std::rc::Rc;

use driftq_core::command::Produce;
use driftq_core::reply::Produced;
use driftq_core::types::TopicName;
use driftq_core::{Command, Reply};
use hyper::header::HeaderMap;
use hyper::{Response, StatusCode};

use super::Api;
use super::body::{ReplyBody, json};
use super::error::ApiError;
use super::fields::{ProduceFields, ProduceHead};
use super::json::Json;
use crate::router::Question;

/// The longest trace context that is carried on.
const TRACE_BYTES_MAX: usize = 256;

/// What the head of a request says about a produce.
pub(crate) fn head(headers: &HeaderMap) -> Result<ProduceHead<'_>, ApiError> {
    let mut keys = headers.get_all("idempotency-key").iter();
    let key = match (keys.next(), keys.next()) {
        (key, None) => key,
        (_, Some(_)) => return Err(ApiError::invalid("more than one Idempotency-Key")),
    };
    let key = key.map(|key| std::str::from_utf8(key.as_bytes()));
    let idempotency_key = key.transpose().map_err(|_| ApiError::invalid("the Idempotency-Key is not UTF-8"))?;
    Ok(ProduceHead { idempotency_key, trace: trace(headers) })
}

/// The trace context, if it looks like one; one that does not is not worth a refusal.
pub(crate) fn trace(headers: &HeaderMap) -> Option<&str> {
    let text = headers.get("traceparent")?.to_str().ok()?;
    let hex = |part: &str, len: usize| part.len() == len && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut parts = text.splitn(4, '-');
    let sound = hex(parts.next()?, 2) && hex(parts.next()?, 32) && hex(parts.next()?, 16);
    let flags = parts.next()?;
    (sound && flags.len() >= 2 && hex(&flags[..2], 2) && text.len() <= TRACE_BYTES_MAX).then_some(text)
}

/// Stores a message.
pub(crate) async fn produce(
    api: &Rc<Api>,
    fields: ProduceFields<'_>,
    head: ProduceHead<'_>,
) -> Result<Response<ReplyBody>, ApiError> {
    let mut produce = fields.into_produce(head)?;
    if !api.router.is_empty() {
        produce = routed(Rc::clone(api), produce).await;
    }
    let topic = produce.topic.clone();
    match api.driver.ask(Command::Produce(Box::new(produce))).await?? {
        Reply::Produced(at) => {
            api.metrics.routed(at.router);
            let mut out = Json::object();
            out.text("status", "produced");
            write_produced(&mut out, &topic, &at);
            Ok(json(StatusCode::OK, out))
        }
        other => unreachable!("a produce is answered by a place: {other:?}"),
    }
}

/// Where a message was stored; the topic is the one that was asked for.
pub(crate) fn write_produced(json: &mut Json, topic: &TopicName, at: &Produced) {
    json.text("topic", topic.as_str());
    json.number("partition", at.partition.0);
    json.number("offset", at.offset.0);
    if at.duplicate {
        json.flag("duplicate", true);
    }
}

/// The message with what the router says about it, if it says anything. A router never fails a produce.
pub(crate) async fn routed(api: Rc<Api>, mut produce: Produce) -> Produce {
    let question = Question {
        topic: &produce.topic,
        key: std::str::from_utf8(&produce.key).unwrap_or_default(),
        value: std::str::from_utf8(&produce.value).unwrap_or_default(),
        envelope: &produce.envelope,
    };
    match api.router.route(question).await {
        Ok(decision) => produce.routing = decision,
        Err(failure) => {
            api.metrics.router_failed(failure);
            tracing::debug!(failure = failure.as_str(), topic = %produce.topic, "the router failed, going on unrouted");
        }
    }
    produce
}
