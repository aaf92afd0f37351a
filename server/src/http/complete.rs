//! `POST /v1/complete`: a step is done, and so is all that follows from it.

use std::rc::Rc;

use driftq_core::command::{Claim, Complete, Produce, TokenClaim};
use driftq_core::reply::StepOutput;
use driftq_core::types::{GroupName, Offset, OwnerName, PartitionId, TopicName};
use driftq_core::{Command, Reply};
use hyper::StatusCode;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::task::JoinSet;

use super::Api;
use super::answer::{Answer, json};
use super::error::ApiError;
use super::fields::{Object, ProduceFields, ProduceHead, Str, from_json, required};
use super::head::Head;
use super::idempotency::kept;
use super::produce::{routed, said};
use crate::json::{Json, object};

/// How many of a step's messages the router is asked about at once: a quarter of what it is asked by everybody.
const QUESTIONS_MAX: usize = 16;

/// The step, as it is written.
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
}

/// What is asked for. Each message is read as the body of a produce is.
pub(crate) fn asked(body: &[u8], head: &Head<'_>) -> Result<Box<Complete>, ApiError> {
    let ProduceHead { idempotency_key, trace } = said(head)?;
    if idempotency_key.is_some() {
        let message = "an Idempotency-Key cannot stand for every message of a step; use envelope.idempotency_key";
        return Err(ApiError::invalid(message));
    }
    let fields: CompleteFields<'_> = from_json(body)?;
    let claim = Claim {
        topic: TopicName::new(required("topic", fields.topic.as_deref())?)?,
        group: GroupName::new(required("group", fields.group.as_deref())?)?,
        partition: PartitionId(required("partition", fields.partition)?),
        offset: Offset(required("offset", fields.offset)?),
        owner: OwnerName::new(required("owner", fields.owner.as_deref())?)?,
        token: TokenClaim::read(Some(required("lease_token", fields.lease_token.as_deref())?)),
    };
    let message = |Object(fields): Object<ProduceFields<'_>>| {
        fields.into_produce(ProduceHead { idempotency_key: None, trace }).map(|message| *message)
    };
    let produce = fields.produce.unwrap_or_default().into_iter().map(message).collect::<Result<_, _>>()?;
    Ok(Box::new(Complete { claim, result: kept(fields.result), produce }))
}

/// Does all of it, or nothing.
pub(crate) async fn complete(api: &Rc<Api>, mut step: Box<Complete>) -> Result<Answer, ApiError> {
    if !api.router.is_empty() {
        step.produce = all_routed(api, step.produce).await;
    }
    match api.driver.ask(Command::Complete(step)).await?? {
        Reply::Completed(outputs) => {
            let mut out = Json::object();
            out.list("produced", outputs.iter(), |output, out| object(out, |json| write_output(output, json)));
            Ok(json(StatusCode::OK, out))
        }
        other => unreachable!("a step is answered by what it produced: {other:?}"),
    }
}

fn write_output(output: &StepOutput, json: &mut Json) {
    json.plain("topic", output.topic.as_str());
    json.number("partition", output.partition.0);
    json.number("offset", output.offset.0);
    if output.duplicate {
        json.flag("duplicate", true);
    }
}

/// The messages, in their order, with what the router says about each.
async fn all_routed(api: &Rc<Api>, messages: Vec<Produce>) -> Vec<Produce> {
    let mut done = Vec::with_capacity(messages.len());
    let mut messages = messages.into_iter().enumerate().peekable();
    while messages.peek().is_some() {
        // Whoever goes away before the answers come takes the questions along.
        let mut questions = JoinSet::new();
        for (at, message) in messages.by_ref().take(QUESTIONS_MAX) {
            let question = routed(Rc::clone(api), Box::new(message));
            questions.spawn_local(async move { (at, *question.await) });
        }
        let mut answered = questions.join_all().await;
        answered.sort_unstable_by_key(|(at, _)| *at);
        done.extend(answered.into_iter().map(|(_, message)| message));
    }
    done
}
