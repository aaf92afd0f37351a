//! `GET /v1/peek` and `POST /v1/dlq/redrive`: reads messages without consuming them, and redrives dead letters.

use driftq_core::Redriven;
use driftq_core::command::{Peek, REDRIVE_SLICE, Redrive, RedriveRest, RedriveSelection};
use driftq_core::types::{Offset, PartitionId};
use hyper::StatusCode;
use serde::Deserialize;

use super::api::Api;
use super::audit;
use super::error::ApiError;
use super::fields::{Fields, Str, required};
use super::query::Query;
use super::requester::Requester;
use super::response::{ApiResponse, json};
use super::timeouts::ConnectionHandle;
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
pub(crate) async fn peek(api: &Api, from: &Requester, query: &Query<'_>) -> Result<ApiResponse, ApiError> {
    let topic = from.names.rare_topic(required("topic", query.text("topic")?)?)?;
    let partition = PartitionId(required("partition", query.value("partition")?)?);
    let offset = Offset(required("offset", query.value("offset")?)?);
    let limit = query.value("limit")?.unwrap_or(PEEK_DEFAULT);
    if !(1..=PEEK_MAX).contains(&limit) {
        return Err(ApiError::invalid(format!("limit must be 1 to {PEEK_MAX}")));
    }
    let messages = api.driver.ask(&from.caller, Peek { topic, partition, offset, limit }).await??;
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

/// `POST /v1/dlq/redrive`. A large number is redriven in portions, with other commands in between. The first portion
/// decides what is selected. Once the client has closed its side of the connection no further portion is asked for.
pub(super) async fn redrive(
    api: &Api,
    from: &Requester,
    fields: RedriveFields<'_>,
    connection: &ConnectionHandle,
) -> Result<ApiResponse, ApiError> {
    let topic = from.names.rare_topic(required("topic", fields.topic.as_deref())?)?;
    if let Some(offsets) = fields.offsets.as_ref().filter(|offsets| offsets.len() > OFFSETS_MAX) {
        return Err(ApiError::invalid(format!("{} offsets, at most {OFFSETS_MAX} are allowed", offsets.len())));
    }
    let mut selection = match (fields.offsets, fields.all) {
        (Some(offsets), None | Some(false)) => Selection::offsets(offsets),
        (None, Some(true)) => Selection::All(RedriveSelection::All),
        (Some(_), Some(true)) => return Err(ApiError::invalid("give offsets or all, not both")),
        (None, None | Some(false)) => return Err(ApiError::invalid("give offsets, or all: true")),
    };
    let limit = fields.limit.unwrap_or(u64::MAX);
    let mut redriven = 0;
    while redriven < limit {
        let portion = (limit - redriven).min(REDRIVE_SLICE);
        let which = selection.next(portion as usize);
        let rest = match audit::ask(api, from, Redrive { topic: topic.clone(), which, limit: portion }).await? {
            Ok(Redriven { count, rest }) => {
                redriven += count;
                rest
            }
            // Report the portions that succeeded.
            Err(_) if redriven > 0 => break,
            Err(refusal) => return Err(refusal.into()),
        };
        if !selection.continues(rest) || connection.is_peer_closed() {
            break;
        }
    }
    let mut out = Json::object();
    out.number("redriven", redriven);
    Ok(json(StatusCode::OK, out))
}

/// The dead letters of a redrive that are not asked for yet.
enum Selection {
    All(RedriveSelection),
    /// Descending and distinct: the next are last.
    Offsets(Vec<Offset>),
}

impl Selection {
    fn offsets(mut offsets: Vec<u64>) -> Self {
        offsets.sort_unstable_by(|a, b| b.cmp(a));
        offsets.dedup();
        Self::Offsets(offsets.into_iter().map(Offset).collect())
    }

    /// The next portion.
    fn next(&mut self, portion: usize) -> RedriveSelection {
        match self {
            Self::All(which) => which.clone(),
            Self::Offsets(left) => {
                let next = left.split_off(left.len().saturating_sub(portion));
                RedriveSelection::Offsets(next)
            }
        }
    }

    /// Whether there is another portion after one whose reply names `rest`.
    fn continues(&mut self, rest: Option<RedriveRest>) -> bool {
        match (self, rest) {
            (Self::All(which), Some(rest)) => {
                *which = RedriveSelection::Rest(rest);
                true
            }
            (Self::All(_), None) => false,
            (Self::Offsets(left), _) => !left.is_empty(),
        }
    }
}
