//! `GET /v1/peek` and `POST /v1/dlq/redrive`: reads messages without consuming them, and redrives dead letters.

use driftq_core::Redriven;
use driftq_core::command::{Peek, Redrive, RedriveSelection};
use driftq_core::types::{Offset, PartitionId, TopicName};
use hyper::StatusCode;
use serde::Deserialize;

use super::api::Api;
use super::error::ApiError;
use super::fields::{Fields, Str, required};
use super::query::Query;
use super::response::{ApiResponse, json};
use crate::json::{Json, peeked};

/// Messages of a peek without `limit`.
const PEEK_DEFAULT: usize = 10;
/// Most messages of a peek.
const PEEK_MAX: usize = 1_000;
/// Payload bytes of a peek; the first message is included whatever its size.
const PEEK_BYTES_MAX: u64 = 16 << 20;

/// Most offsets in one redrive.
const OFFSETS_MAX: usize = 10_000;

/// `GET /v1/peek?topic=&partition=&offset=&limit=`.
pub(crate) async fn peek(api: &Api, query: &Query<'_>) -> Result<ApiResponse, ApiError> {
    let topic = TopicName::new(required("topic", query.text("topic")?)?)?;
    let partition = PartitionId(required("partition", query.value("partition")?)?);
    let offset = Offset(required("offset", query.value("offset")?)?);
    let limit = query.value("limit")?.unwrap_or(PEEK_DEFAULT);
    if !(1..=PEEK_MAX).contains(&limit) {
        return Err(ApiError::invalid(format!("limit must be 1 to {PEEK_MAX}")));
    }
    let messages = api.driver.ask(Peek { topic, partition, offset, limit }).await??;
    let clock = api.driver.wall_clock();
    let mut bytes = 0;
    let fitting = messages.iter().take_while(|message| {
        let first = bytes == 0;
        bytes += message.body.payload_len();
        first || bytes <= PEEK_BYTES_MAX
    });
    let mut out = Json::object();
    out.list("messages", fitting, |message, out| peeked(partition, message, &clock, out));
    Ok(json(StatusCode::OK, out))
}

/// The fields of a redrive.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RedriveFields<'a> {
    #[serde(borrow)]
    topic: Option<Str<'a>>,
    offsets: Option<Vec<u64>>,
    all: Option<bool>,
    limit: Option<u64>,
}

impl<'a> Fields<'a> for RedriveFields<'a> {
    fn from_query(query: &'a Query<'a>) -> Result<Self, ApiError> {
        let offsets = query.text("offsets")?.map(|list| list.split(',').map(|offset| offset.trim().parse()).collect());
        let offsets =
            offsets.transpose().map_err(|_| ApiError::invalid("bad offsets: want comma separated numbers"))?;
        let topic = query.text("topic")?.map(Into::into);
        Ok(Self { topic, offsets, all: query.flag("all")?, limit: query.value("limit")? })
    }
}

/// `POST /v1/dlq/redrive`. A large number is redriven in portions, with other commands in between.
pub(crate) async fn redrive(api: &Api, fields: RedriveFields<'_>) -> Result<ApiResponse, ApiError> {
    let topic = TopicName::new(required("topic", fields.topic.as_deref())?)?;
    if let Some(offsets) = fields.offsets.as_ref().filter(|offsets| offsets.len() > OFFSETS_MAX) {
        return Err(ApiError::invalid(format!("{} offsets, at most {OFFSETS_MAX} are allowed", offsets.len())));
    }
    let which = match (fields.offsets, fields.all) {
        (Some(offsets), None | Some(false)) => RedriveSelection::Offsets(offsets.into_iter().map(Offset).collect()),
        (None, Some(true)) => RedriveSelection::All,
        (Some(_), Some(true)) => return Err(ApiError::invalid("give offsets or all, not both")),
        (None, None | Some(false)) => return Err(ApiError::invalid("give offsets, or all: true")),
    };
    let limit = fields.limit.unwrap_or(u64::MAX);
    let mut redriven = 0;
    while redriven < limit {
        let portion = Redrive { topic: topic.clone(), which: which.clone(), limit: limit - redriven };
        let count = match api.driver.ask(portion).await? {
            Ok(Redriven { count }) => count,
            // Report the portions that succeeded.
            Err(_) if redriven > 0 => break,
            Err(refusal) => return Err(refusal.into()),
        };
        redriven += count;
        if count == 0 {
            break;
        }
    }
    let mut out = Json::object();
    out.number("redriven", redriven);
    Ok(json(StatusCode::OK, out))
}
