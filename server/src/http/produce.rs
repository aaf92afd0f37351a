//! `POST /v1/produce`: one message.

use std::rc::Rc;

use driftq_core::command::Produce;
use driftq_core::reply::Produced;
use driftq_core::types::TopicName;
use driftq_core::{Command, Reply};
use hyper::StatusCode;

use super::Api;
use super::answer::{Answer, json};
use super::error::ApiError;
use super::fields::{ProduceFields, ProduceHead, read};
use super::head::Head;
use super::query::Query;
use crate::json::Json;
use crate::router::RouteRequest;

/// The longest trace context that is carried on.
const TRACE_BYTES_MAX: usize = 256;

/// What the head of a request says about a produce.
pub(crate) fn said<'a>(head: &Head<'a>) -> Result<ProduceHead<'a>, ApiError> {
    if head.idempotency_key_count > 1 {
        return Err(ApiError::invalid("more than one Idempotency-Key"));
    }
    let key = head.idempotency_key.map(|key| std::str::from_utf8(key.as_bytes()));
    let idempotency_key = key.transpose().map_err(|_| ApiError::invalid("the Idempotency-Key is not UTF-8"))?;
    let trace = head.traceparent.and_then(|trace| trace.to_str().ok()).filter(|trace| is_trace(trace));
    Ok(ProduceHead { idempotency_key, trace })
}

/// Whether a trace context looks like one; one that does not is not worth a refusal.
fn is_trace(text: &str) -> bool {
    let hex = |part: &str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let parts: Vec<&str> = text.splitn(4, '-').collect();
    let [version, trace, parent, flags] = parts[..] else { return false };
    let lengths = (version.len(), trace.len(), parent.len(), flags.len().min(2)) == (2, 32, 16, 2);
    lengths && hex(version) && hex(trace) && hex(parent) && hex(&flags[..2]) && text.len() <= TRACE_BYTES_MAX
}

/// What is asked for.
pub(crate) fn asked(body: &[u8], query: &Query<'_>, head: &Head<'_>) -> Result<Box<Produce>, ApiError> {
    read::<ProduceFields<'_>>(body, query)?.into_produce(said(head)?)
}

/// Stores a message.
pub(crate) async fn produce(api: &Rc<Api>, mut produce: Box<Produce>) -> Result<Answer, ApiError> {
    if !api.router.is_empty() {
        produce = routed(Rc::clone(api), produce).await;
    }
    let topic = produce.topic.clone();
    match api.driver.ask(Command::Produce(produce)).await?? {
        Reply::Produced(at) => {
            api.metrics.routed(at.router);
            let mut out = Json::object();
            out.plain("status", "produced");
            write_produced(&mut out, &topic, &at);
            Ok(json(StatusCode::OK, out))
        }
        other => unreachable!("a produce is answered by a place: {other:?}"),
    }
}

/// Where a message was stored; the topic is the one that was asked for.
pub(crate) fn write_produced(json: &mut Json, topic: &TopicName, at: &Produced) {
    json.plain("topic", topic.as_str());
    json.number("partition", at.partition.0);
    json.number("offset", at.offset.0);
    if at.duplicate {
        json.flag("duplicate", true);
    }
}

/// The message with what the router says about it, if it says anything. A router never fails a produce.
pub(crate) async fn routed(api: Rc<Api>, mut produce: Box<Produce>) -> Box<Produce> {
    let question = RouteRequest {
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
