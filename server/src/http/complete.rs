//! `POST /v1/complete`: acks or dead-letters a message, stores its result and produces the outputs of the step, all or
//! nothing.

use std::rc::Rc;

use driftq_core::command::{Claim, Complete, Produce, TokenClaim};
use driftq_core::reply::StepOutput;
use driftq_core::types::{EffectStatus, GroupName, Offset, OwnerName, PartitionId, Text, TopicName};
use hyper::StatusCode;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::task::JoinSet;

use super::api::Api;
use super::error::ApiError;
use super::fields::{Object, Str, from_json, raw_json, required};
use super::head::RequestHead;
use super::idempotency::final_status;
use super::message_fields::{MessageHeaders, ProduceFields};
use super::produce::route;
use super::response::{ApiResponse, json};
use crate::json::{Json, object};
use crate::router::Company;

/// Outputs of one step that are routed concurrently: a quarter of the router's own limit.
const CONCURRENT_ROUTES_MAX: usize = 16;

/// The fields of the request.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CompleteFields<'a> {
    #[serde(borrow)]
    topic: Option<Str<'a>>,
    #[serde(borrow)]
    group: Option<Str<'a>>,
    partition: Option<u32>,
    offset: Option<u64>,
    #[serde(borrow)]
    owner: Option<Str<'a>>,
    #[serde(borrow)]
    lease_token: Option<Str<'a>>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    produce: Option<Vec<Object<ProduceFields<'a>>>>,
    #[serde(borrow)]
    status: Option<Str<'a>>,
    dead_letter: Option<bool>,
    #[serde(borrow)]
    last_error: Option<Str<'a>>,
}

impl CompleteFields<'_> {
    /// The error of a step that failed for good and whose message is dead-lettered.
    fn failed(&self) -> Result<Option<Text>, ApiError> {
        let status = self.status.as_deref().map(final_status).transpose()?;
        match (status, self.dead_letter.unwrap_or(false)) {
            (None | Some(EffectStatus::FailedFinal), true) => {
                Ok(Some(self.last_error.as_deref().unwrap_or_default().into()))
            }
            (_, true) => Err(ApiError::invalid("dead_letter goes with status FAILED_FINAL only")),
            (None | Some(EffectStatus::Succeeded), false) if self.last_error.is_none() => Ok(None),
            (None | Some(EffectStatus::Succeeded), false) => {
                Err(ApiError::invalid("last_error goes with dead_letter: true"))
            }
            (Some(_), false) => Err(ApiError::invalid(
                "a complete acks its message, so it ends as SUCCEEDED; with status FAILED_FINAL give dead_letter: \
                 true, or use /v1/idempotency/finish and /v1/nack",
            )),
        }
    }
}

/// Parses the request. Each output is parsed as the body of a produce.
pub(crate) fn parse_request(body: &[u8], head: &RequestHead<'_>) -> Result<Box<Complete>, ApiError> {
    let MessageHeaders { idempotency_key, trace } = MessageHeaders::of(head)?;
    if idempotency_key.is_some() {
        let message = "a complete takes no Idempotency-Key header; use envelope.idempotency_key of each message";
        return Err(ApiError::invalid(message));
    }
    parse_step(body, trace)
}

/// Parses one step: the body of a request, or a line of a batch.
pub(crate) fn parse_step(body: &[u8], trace: Option<&str>) -> Result<Box<Complete>, ApiError> {
    let fields: CompleteFields<'_> = from_json(body)?;
    let failed = fields.failed()?;
    let claim = Claim {
        topic: TopicName::new(required("topic", fields.topic.as_deref())?)?,
        group: GroupName::new(required("group", fields.group.as_deref())?)?,
        partition: PartitionId(required("partition", fields.partition)?),
        offset: Offset(required("offset", fields.offset)?),
        owner: OwnerName::new(required("owner", fields.owner.as_deref())?)?,
        token: TokenClaim::read(Some(required("lease_token", fields.lease_token.as_deref())?)),
    };
    let message = |Object(fields): Object<ProduceFields<'_>>| {
        fields.into_produce(MessageHeaders { idempotency_key: None, trace }).map(|message| *message)
    };
    let produce = fields.produce.unwrap_or_default().into_iter().map(message).collect::<Result<_, _>>()?;
    Ok(Box::new(Complete { claim, result: raw_json(fields.result), produce, failed }))
}

/// Routes the outputs and completes the step.
pub(crate) async fn complete(api: &Rc<Api>, mut step: Box<Complete>) -> Result<ApiResponse, ApiError> {
    if !api.router.is_empty() {
        step.produce = route_all(api, step.produce).await?;
    }
    let outputs = api.driver.ask(step).await??;
    let mut out = Json::object();
    write_completed(&mut out, &outputs);
    Ok(json(StatusCode::OK, out))
}

/// Routes the outputs of a step.
pub(crate) async fn route_step(api: Rc<Api>, mut step: Box<Complete>) -> Result<Box<Complete>, ApiError> {
    step.produce = route_all(&api, step.produce).await?;
    Ok(step)
}

/// Writes the messages that a step produced.
pub(crate) fn write_completed(json: &mut Json, outputs: &[StepOutput]) {
    json.list("produced", outputs.iter(), |output, out| object(out, |json| write_output(output, json)));
}

fn write_output(output: &StepOutput, json: &mut Json) {
    json.text("topic", output.topic.as_str());
    json.number("partition", output.partition.0);
    json.number("offset", output.offset.0);
    if output.duplicate {
        json.flag("duplicate", true);
    }
    if output.already_done {
        json.flag("already_done", true);
    }
}

/// Adds the router's decision to each message; keeps their order.
async fn route_all(api: &Rc<Api>, messages: Vec<Produce>) -> Result<Vec<Produce>, ApiError> {
    let mut routed = Vec::with_capacity(messages.len());
    let mut messages = messages.into_iter().enumerate().peekable();
    while messages.peek().is_some() {
        // Dropping the set, if the request is cancelled, cancels them.
        let mut tasks = JoinSet::new();
        for (at, message) in messages.by_ref().take(CONCURRENT_ROUTES_MAX) {
            let routing = route(Rc::clone(api), Box::new(message), Company::Batch);
            tasks.spawn_local(async move { (at, routing.await.map(|(message, _)| message)) });
        }
        let mut decided = tasks.join_all().await;
        decided.sort_unstable_by_key(|(at, _)| *at);
        for (_, message) in decided {
            routed.push(*message?);
        }
    }
    Ok(routed)
}
