//! All request parsers behind one function, for the fuzz targets ([`crate::fuzzing`]).

use driftq_core::Command;
use driftq_core::command::Ack;

use super::claim_fields::{AckCumulativeFields, AckFields, ExtendFields, NackFields};
use super::consume::ConsumeFields;
use super::dlq::RedriveFields;
use super::error::ApiError;
use super::fields::{Fields, from_plain_json, parse};
use super::groups::{ExpireFields, GroupFields, SeekFields};
use super::head::RequestHead;
use super::message_fields::{MessageHeaders, ProduceFields};
use super::query::Query;
use super::requester::Names;
use super::topics::TopicFields;
use super::{complete, effect_list, idempotency, produce};

/// The requests with a body, by name.
pub(crate) const REQUESTS: &[&str] = &[
    "produce",
    "ack",
    "nack",
    "extend",
    "complete",
    "begin",
    "finish",
    "reacquire",
    "renew",
    "consume",
    "topic",
    "group",
    "seek",
    "redrive",
    "ack_cumulative",
    "expire",
    "list",
];

/// A parsed request.
#[derive(Debug, PartialEq)]
pub struct ParsedRequest {
    /// The command, if parsing alone yields one.
    pub command: Option<Command>,
    /// The debug form of what was parsed, for comparison.
    pub debug: String,
}

/// Parses the request with this number in [`REQUESTS`], modulo their count.
pub(crate) fn parse_request(number: usize, body: &[u8], query: Option<&str>) -> Result<ParsedRequest, ApiError> {
    let (query, names) = (Query::parse(query)?, Names::default());
    Ok(match REQUESTS[number % REQUESTS.len()] {
        "produce" => command(Command::Produce(produce::parse_request(body, &query, &RequestHead::default(), &names)?)),
        "ack" => command(Command::Ack(Ack(parse::<AckFields<'_>>(body, &query)?.claim(&names)?))),
        "nack" => command(Command::Nack(parse::<NackFields<'_>>(body, &query)?.nack(&names)?)),
        "extend" => fields::<ExtendFields<'_>>(body, &query)?,
        "complete" => command(Command::Complete(complete::parse_request(body, &RequestHead::default(), &names)?)),
        "begin" => command(idempotency::parse_begin(body, &names)?.into()),
        "finish" => command(idempotency::parse_finish(body, &names)?.into()),
        "reacquire" => command(idempotency::parse_reacquire(body, &names)?.into()),
        "renew" => command(idempotency::parse_renew(body, &names)?.into()),
        "consume" => fields::<ConsumeFields<'_>>(body, &query)?,
        "topic" => fields::<TopicFields<'_>>(body, &query)?,
        "group" => fields::<GroupFields<'_>>(body, &query)?,
        "seek" => fields::<SeekFields<'_>>(body, &query)?,
        "ack_cumulative" => command(parse::<AckCumulativeFields<'_>>(body, &query)?.ack(&names)?.into()),
        "expire" => fields::<ExpireFields<'_>>(body, &query)?,
        "list" => command(effect_list::parse_request(&query, &names)?.into()),
        _ => fields::<RedriveFields<'_>>(body, &query)?,
    })
}

/// Parses a line of a batch of acks or of produces.
pub(crate) fn parse_line(acks: bool, line: &[u8]) -> Result<Command, ApiError> {
    let names = Names::default();
    match acks {
        true => Ok(Command::Ack(Ack(from_plain_json::<AckFields<'_>>(line)?.claim(&names)?))),
        false => Ok(Command::Produce(
            from_plain_json::<ProduceFields<'_>>(line)?.into_produce(&names, MessageHeaders::default())?,
        )),
    }
}

fn command(command: Command) -> ParsedRequest {
    ParsedRequest { debug: format!("{command:?}"), command: Some(command) }
}

fn fields<'a, T: Fields<'a> + std::fmt::Debug>(
    body: &'a [u8],
    query: &'a Query<'a>,
) -> Result<ParsedRequest, ApiError> {
    Ok(ParsedRequest { debug: format!("{:?}", parse::<T>(body, query)?), command: None })
}
