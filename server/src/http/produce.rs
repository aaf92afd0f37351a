//! `POST /v1/produce` of one message, and the router hook that every produced message passes.

use std::rc::Rc;

use driftq_core::command::Produce;
use driftq_core::reply::{Produced, RouterUse};
use driftq_core::types::TopicName;
use hyper::StatusCode;

use super::api::Api;
use super::body_budget::BodyBytes;
use super::error::ApiError;
use super::fields::parse;
use super::head::RequestHead;
use super::message_fields::{MessageHeaders, ProduceFields};
use super::query::Query;
use super::requester::{Names, Requester};
use super::response::{ApiResponse, json};
use crate::driver::Unready;
use crate::json::Json;
use crate::otlp::OpenSpan;
use crate::router::{Company, RouteRequest, RouterFailure};

/// Parses the request.
pub(crate) fn parse_request(
    body: &[u8],
    query: &Query<'_>,
    head: &RequestHead<'_>,
    names: &Names,
) -> Result<Box<Produce>, ApiError> {
    parse::<ProduceFields<'_>>(body, query)?.into_produce(names, MessageHeaders::of(head)?)
}

/// Routes and stores a message.
pub(crate) async fn produce(
    api: &Rc<Api>,
    from: &Requester,
    mut produce: Box<Produce>,
    span: Option<&OpenSpan>,
) -> Result<ApiResponse, ApiError> {
    if let Some(span) = span {
        span.topic(&produce.topic);
    }
    let mut failure = None;
    if !api.router.is_empty() {
        (produce, failure) = route(Rc::clone(api), produce, Company::Alone).await?;
    }
    let bytes = produce.payload_len();
    if api.driver.lacks_log_room(bytes)
        && let Ok(_held) = BodyBytes::hold(&api.bodies, bytes)
    {
        api.driver.wait_for_log_room(bytes).await;
    }
    let topic = produce.topic.clone();
    let at = api.driver.ask(&from.caller, produce).await??;
    api.metrics.count_routed(at.router);
    if let Some(span) = span {
        span.message(at.partition, at.offset);
    }
    let mut out = Json::object();
    out.plain("status", "produced");
    write_produced(&mut out, &topic, &at, failure);
    Ok(json(StatusCode::OK, out))
}

/// Writes where a message was stored, and whether without the router's decision; `topic` is the requested one.
pub(crate) fn write_produced(json: &mut Json, topic: &TopicName, at: &Produced, failure: Option<RouterFailure>) {
    json.text("topic", topic.as_str());
    json.number("partition", at.partition.0);
    json.number("offset", at.offset.0);
    if at.duplicate {
        json.flag("duplicate", true);
    }
    if at.already_done {
        json.flag("already_done", true);
    }
    // A duplicate is not stored, so nothing became of its routing.
    if !at.duplicate {
        write_unrouted(json, at.router, failure);
    }
}

/// Writes that a message was stored without the router's decision, if so.
pub(crate) fn write_unrouted(json: &mut Json, router: RouterUse, failure: Option<RouterFailure>) {
    match (router, failure) {
        (RouterUse::Ignored, _) => json.plain("routing", "set_aside"),
        (_, Some(_)) => json.plain("routing", "failed"),
        _ => {}
    }
}

/// Adds the router's decision to a message. A failure of the router is counted and the message stays unrouted.
///
/// # Errors
/// [`Unready::Draining`] if the broker is stopped meanwhile: the router may take longer than a stop does.
pub(crate) async fn route(
    api: Rc<Api>,
    mut produce: Box<Produce>,
    company: Company,
) -> Result<(Box<Produce>, Option<RouterFailure>), ApiError> {
    let request = RouteRequest {
        topic: &produce.topic,
        key: std::str::from_utf8(produce.key()).unwrap_or_default(),
        value: std::str::from_utf8(produce.value()).unwrap_or_default(),
        envelope: &produce.envelope,
    };
    let decision = tokio::select! {
        biased;
        decision = api.router.route(request, company) => decision,
        () = api.driver.status().draining() => return Err(Unready::Draining.into()),
    };
    match decision {
        Ok(decision) => {
            produce.routing = decision;
            Ok((produce, None))
        }
        Err(failure) => {
            api.metrics.count_router_failure(failure.as_str());
            tracing::debug!(failure = failure.as_str(), topic = %produce.topic, "router failed, message stays \
                unrouted");
            Ok((produce, Some(failure)))
        }
    }
}
