//! The parsers of requests, one function for all of them; see [`crate::fuzzing`].

use driftq_core::Command;

use super::complete;
use super::consume::ConsumeFields;
use super::error::ApiError;
use super::fields::{AckFields, ExtendFields, Fields, NackFields, ProduceFields, ProduceHead, from_json, read};
use super::groups::{GroupFields, SeekFields};
use super::head::Head;
use super::idempotency;
use super::letters::RedriveFields;
use super::produce;
use super::query::Query;
use super::topics::TopicFields;
use crate::fuzzing::Understood;

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
];

pub(crate) fn request(number: usize, body: &[u8], query: Option<&str>) -> Result<Understood, ApiError> {
    let query = Query::parse(query)?;
    let store = |command| Command::Store(command);
    Ok(match REQUESTS[number % REQUESTS.len()] {
        "produce" => command(Command::Produce(produce::asked(body, &query, &Head::default())?)),
        "ack" => command(Command::Ack(read::<AckFields<'_>>(body, &query)?.claim()?)),
        "nack" => fields::<NackFields<'_>>(body, &query)?,
        "extend" => fields::<ExtendFields<'_>>(body, &query)?,
        "complete" => command(Command::Complete(complete::asked(body, &Head::default())?)),
        "begin" => command(store(idempotency::begin(body)?)),
        "finish" => command(store(idempotency::finish(body)?)),
        "reacquire" => command(store(idempotency::reacquire(body)?)),
        "renew" => command(store(idempotency::renew(body)?)),
        "consume" => fields::<ConsumeFields<'_>>(body, &query)?,
        "topic" => fields::<TopicFields<'_>>(body, &query)?,
        "group" => fields::<GroupFields<'_>>(body, &query)?,
        "seek" => fields::<SeekFields<'_>>(body, &query)?,
        _ => fields::<RedriveFields<'_>>(body, &query)?,
    })
}

/// A line of a batch, as `batch` reads it.
pub(crate) fn line(acks: bool, line: &[u8]) -> Result<Command, ApiError> {
    match acks {
        true => Ok(Command::Ack(from_json::<AckFields<'_>>(line)?.claim()?)),
        false => Ok(Command::Produce(from_json::<ProduceFields<'_>>(line)?.into_produce(ProduceHead::default())?)),
    }
}

fn command(command: Command) -> Understood {
    Understood { read: format!("{command:?}"), command: Some(command) }
}

fn fields<'a, T: Fields<'a> + std::fmt::Debug>(body: &'a [u8], query: &'a Query<'a>) -> Result<Understood, ApiError> {
    Ok(Understood { read: format!("{:?}", read::<T>(body, query)?), command: None })
}
