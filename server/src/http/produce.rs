//! `POST /v1/produce` of one message, and the router hook that every produced message passes.

use std::rc::Rc;

use driftq_core::command::Produce;
use driftq_core::reply::Produced;
use driftq_core::types::TopicName;
use hyper::StatusCode;

use super::api::Api;
use super::error::ApiError;
use super::fields::parse;
use super::head::RequestHead;
use super::message_fields::{MessageHeaders, ProduceFields};
use super::query::Query;
use super::response::{ApiResponse, json};
use crate::json::Json;
use crate::router::RouteRequest;

/// Parses the request.
pub(crate) fn parse_request(body: &[u8], query: &Query<'_>, head: &RequestHead<'_>) -> Result<Box<Produce>, ApiError> {
    parse::<ProduceFields<'_>>(body, query)?.into_produce(MessageHeaders::of(head)?)
}

/// Routes and stores a message.
pub(crate) async fn produce(api: &Rc<Api>, mut produce: Box<Produce>) -> Result<ApiResponse, ApiError> {
    if !api.router.is_empty() {
        produce = route(Rc::clone(api), produce).await;
    }
    let topic = produce.topic.clone();
    let at = api.driver.ask(produce).await??;
    api.metrics.count_routed(at.router);
    let mut out = Json::object();
    out.plain("status", "produced");
    write_produced(&mut out, &topic, &at);
    Ok(json(StatusCode::OK, out))
}

/// Writes where a message was stored; `topic` is the requested one.
pub(crate) fn write_produced(json: &mut Json, topic: &TopicName, at: &Produced) {
    json.plain("topic", topic.as_str());
    json.number("partition", at.partition.0);
    json.number("offset", at.offset.0);
    if at.duplicate {
        json.flag("duplicate", true);
    }
    if at.already_done {
        json.flag("already_done", true);
    }
}

/// Adds the router's decision to a message. A failure of the router is counted and the message stays unrouted.
pub(crate) async fn route(api: Rc<Api>, mut produce: Box<Produce>) -> Box<Produce> {
    let request = RouteRequest {
        topic: &produce.topic,
        key: std::str::from_utf8(&produce.key).unwrap_or_default(),
        value: std::str::from_utf8(&produce.value).unwrap_or_default(),
        envelope: &produce.envelope,
    };
    match api.router.route(request).await {
        Ok(decision) => produce.routing = decision,
        Err(failure) => {
            api.metrics.count_router_failure(failure.as_str());
            tracing::debug!(failure = failure.as_str(), topic = %produce.topic, "router failed, message stays \
                unrouted");
        }
    }
    produce
}
