//! `POST /v1/complete`: acks or dead-letters a message, stores its result and produces the outputs of the step, all or
//! nothing.

use std::rc::Rc;

use driftq_core::command::{Claim, Complete, Produce, TokenClaim};
use driftq_core::reply::{RouterUse, StepOutput};
use driftq_core::types::{EffectStatus, Offset, PartitionId, Text};
use hyper::StatusCode;
use serde::Deserialize;
use tokio::task::JoinSet;

use super::api::Api;
use super::error::ApiError;
use super::fields::{Object, RawJson, Str, from_plain_json, required};
use super::head::RequestHead;
use super::idempotency::final_status;
use super::message_fields::{MessageHeaders, ProduceFields};
use super::plain_json::plain_object;
use super::produce::{route, write_unrouted};
use super::requester::{Names, Requester};
use super::response::{ApiResponse, json};
use crate::driver::Reading;
use crate::json::{Json, object};
use crate::metrics::Metrics;
use crate::otlp::OpenSpan;
use crate::router::{Company, RouterFailure};

/// Outputs of one step that are routed concurrently: a quarter of the router's own limit.
const CONCURRENT_ROUTES_MAX: usize = 16;

/// The fields of the request.
#[derive(Debug, Default, Deserialize)]
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
    result: Option<RawJson<'a>>,
    #[serde(borrow)]
    produce: Option<Vec<Object<ProduceFields<'a>>>>,
    #[serde(borrow)]
    status: Option<Str<'a>>,
    dead_letter: Option<bool>,
    #[serde(borrow)]
    last_error: Option<Str<'a>>,
}

plain_object!(CompleteFields<'a> {
    topic, group, partition, offset, owner, lease_token, result, produce, status, dead_letter, last_error,
});

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
pub(crate) fn parse_request(body: &[u8], head: &RequestHead<'_>, names: &Names) -> Result<Box<Complete>, ApiError> {
    let MessageHeaders { idempotency_key, trace } = MessageHeaders::of(head)?;
    if idempotency_key.is_some() {
        let message = "a complete takes no Idempotency-Key header; use envelope.idempotency_key of each message";
        return Err(ApiError::invalid(message));
    }
    parse_step(body, trace, names)
}

/// Parses one step: the body of a request, or a line of a batch.
pub(crate) fn parse_step(body: &[u8], trace: Option<&str>, names: &Names) -> Result<Box<Complete>, ApiError> {
    let fields: CompleteFields<'_> = from_plain_json(body)?;
    let failed = fields.failed()?;
    let claim = Claim {
        topic: names.topic(required("topic", fields.topic.as_deref())?)?,
        group: names.group(required("group", fields.group.as_deref())?)?,
        partition: PartitionId(required("partition", fields.partition)?),
        offset: Offset(required("offset", fields.offset)?),
        owner: names.owner(required("owner", fields.owner.as_deref())?)?,
        token: TokenClaim::read(Some(required("lease_token", fields.lease_token.as_deref())?)),
    };
    let message = |Object(fields): Object<ProduceFields<'_>>| {
        fields.into_produce(names, MessageHeaders { idempotency_key: None, trace }).map(|message| *message)
    };
    let produce = fields.produce.unwrap_or_default().into_iter().map(message).collect::<Result<_, _>>()?;
    Ok(Box::new(Complete { claim, result: fields.result.map(Into::into), produce, failed }))
}

/// A step whose outputs have passed the router.
#[derive(Debug)]
pub(crate) struct RoutedStep {
    pub(crate) step: Box<Complete>,
    /// Why the router could not decide, by output.
    failures: Vec<Option<RouterFailure>>,
}

impl RoutedStep {
    /// A step without a router.
    pub(crate) fn unrouted(step: Box<Complete>) -> Self {
        Self { failures: Vec::new(), step }
    }

    /// The step, and what becomes of its routing if it is submitted next.
    pub(crate) fn submit(self, api: &Api) -> (Box<Complete>, StepRouting) {
        if api.router.is_empty() {
            return (self.step, StepRouting::default());
        }
        let step = self.step.clone();
        let uses = api.driver.read(move |pipeline| pipeline.broker().router_uses(&step));
        (self.step, StepRouting { uses: Some(uses), failures: self.failures })
    }
}

/// What becomes of the routing of each output; nothing without a router.
#[derive(Default)]
pub(crate) struct StepRouting {
    uses: Option<Reading<Option<Vec<RouterUse>>>>,
    failures: Vec<Option<RouterFailure>>,
}

impl StepRouting {
    /// What became of it, once the step has its reply. A step that was completed before stores nothing, so nothing
    /// became of its routing now.
    fn known(self) -> Vec<(RouterUse, Option<RouterFailure>)> {
        let uses = self.uses.and_then(Reading::now).flatten().unwrap_or_default();
        uses.into_iter().zip(self.failures).collect()
    }
}

/// Routes the outputs and completes the step.
pub(crate) async fn complete(
    api: &Rc<Api>,
    from: &Requester,
    step: Box<Complete>,
    span: Option<&OpenSpan>,
) -> Result<ApiResponse, ApiError> {
    if let Some(span) = span {
        span.claimed(&step.claim);
    }
    let routed =
        if api.router.is_empty() { RoutedStep::unrouted(step) } else { route_step(Rc::clone(api), step).await? };
    let (step, routing) = routed.submit(api);
    let outputs = api.driver.ask(&from.caller, step).await??;
    let mut out = Json::object();
    write_completed(&mut out, &outputs, routing, &api.metrics);
    Ok(json(StatusCode::OK, out))
}

/// Routes the outputs of a step.
pub(crate) async fn route_step(api: Rc<Api>, mut step: Box<Complete>) -> Result<RoutedStep, ApiError> {
    let (messages, failures) = route_all(&api, std::mem::take(&mut step.produce)).await?.into_iter().unzip();
    step.produce = messages;
    Ok(RoutedStep { step, failures })
}

/// Writes the messages that a step produced, and counts what became of their routing.
pub(crate) fn write_completed(json: &mut Json, outputs: &[StepOutput], routing: StepRouting, metrics: &Metrics) {
    let routing = routing.known().into_iter().map(Some).chain(std::iter::repeat(None));
    json.list("produced", outputs.iter().zip(routing), |(output, routing), out| {
        object(out, |json| {
            write_output(output, json);
            // A duplicate is not stored, so nothing became of its routing.
            if let Some((router, failure)) = routing.filter(|_| !output.duplicate) {
                metrics.count_routed(router);
                write_unrouted(json, router, failure);
            }
        });
    });
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

/// A message after the router, and why the router could not decide.
type Routed = (Produce, Option<RouterFailure>);

/// Adds the router's decision to each message; keeps their order.
async fn route_all(api: &Rc<Api>, messages: Vec<Produce>) -> Result<Vec<Routed>, ApiError> {
    let mut routed = Vec::with_capacity(messages.len());
    let mut messages = messages.into_iter().enumerate().peekable();
    while messages.peek().is_some() {
        // Dropping the set, if the request is cancelled, cancels them.
        let mut tasks = JoinSet::new();
        for (at, message) in messages.by_ref().take(CONCURRENT_ROUTES_MAX) {
            let routing = route(Rc::clone(api), Box::new(message), Company::Batch);
            tasks.spawn_local(async move { (at, routing.await) });
        }
        let mut decided = tasks.join_all().await;
        decided.sort_unstable_by_key(|(at, _)| *at);
        for (_, message) in decided {
            let (message, failure) = message?;
            routed.push((*message, failure));
        }
    }
    Ok(routed)
}
