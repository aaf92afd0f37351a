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
use crate::driver::Unready;
use crate::json::Json;
use crate::router::RouteRequest;

/// Parses the request.
pub(crate) fn parse_request(body: &[u8], query: &Query<'_>, head: &RequestHead<'_>) -> Result<Box<Produce>, ApiError> {
    parse::<ProduceFields<'_>>(body, query)?.into_produce(MessageHeaders::of(head)?)
}

/// Routes and stores a message.
pub(crate) async fn produce(api: &Rc<Api>, mut produce: Box<Produce>) -> Result<ApiResponse, ApiError> {
    if !api.router.is_empty() {
        produce = route(Rc::clone(api), produce, Company::Alone).await?;
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

/// Whether a message is routed alone or as one of many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Company {
    /// Alone: it does not wait for others.
    Alone,
    /// One of many that are routed at the same time.
    Batch,
}

/// Adds the router's decision to a message. A failure of the router is counted and the message stays unrouted.
///
/// # Errors
/// [`Unready::Draining`] if the broker is stopped meanwhile: the router may take longer than a stop does.
pub(crate) async fn route(api: Rc<Api>, mut produce: Box<Produce>, company: Company) -> Result<Box<Produce>, ApiError> {
    let request = RouteRequest {
        topic: &produce.topic,
        key: std::str::from_utf8(&produce.key).unwrap_or_default(),
        value: std::str::from_utf8(&produce.value).unwrap_or_default(),
        envelope: &produce.envelope,
    };
    let asking = async {
        match company {
            Company::Alone => api.router.route(request).await,
            Company::Batch => api.router.route_of_batch(request).await,
        }
    };
    let decision = tokio::select! {
        biased;
        decision = asking => decision,
        () = api.driver.draining() => return Err(Unready::Draining.into()),
    };
    match decision {
        Ok(decision) => produce.routing = decision,
        Err(failure) => {
            api.metrics.count_router_failure(failure.as_str());
            tracing::debug!(failure = failure.as_str(), topic = %produce.topic, "router failed, message stays \
                unrouted");
        }
    }
    Ok(produce)
}
