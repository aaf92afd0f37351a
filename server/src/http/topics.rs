//! `/v1/topics`: list, create, describe and delete topics.

use driftq_core::command::{CreateTopic, DeleteTopic, DescribeTopic, ListTopics};
use driftq_core::reply::{GroupInfo, PartitionInfo, ProgressInfo, TopicInfo};
use driftq_core::types::{Retention, TopicName};
use hyper::StatusCode;
use serde::Deserialize;

use super::api::Api;
use super::error::ApiError;
use super::fields::{Fields, Str, millis, required};
use super::query::Query;
use super::response::{ApiResponse, json, no_content};
use crate::json::{Json, object, string};

/// `GET /v1/topics`.
pub(crate) async fn list(api: &Api) -> Result<ApiResponse, ApiError> {
    let topics = api.driver.ask(ListTopics).await??;
    let mut out = Json::object();
    out.list("topics", &topics, |topic, out| string(topic.as_str(), out));
    Ok(json(StatusCode::OK, out))
}

/// The fields of a topic to create.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TopicFields<'a> {
    #[serde(borrow)]
    name: Option<Str<'a>>,
    partitions: Option<i64>,
    retention_ms: Option<i64>,
    retention_bytes: Option<u64>,
}

impl<'a> Fields<'a> for TopicFields<'a> {
    fn from_query(query: &'a Query<'a>) -> Result<Self, ApiError> {
        Ok(Self {
            name: query.text("name")?.map(Into::into),
            partitions: query.value("partitions")?,
            retention_ms: query.value("retention_ms")?,
            retention_bytes: query.value("retention_bytes")?,
        })
    }
}

/// `POST /v1/topics`.
pub(crate) async fn create(api: &Api, fields: TopicFields<'_>) -> Result<ApiResponse, ApiError> {
    let name = TopicName::new(required("name", fields.name.as_deref())?)?;
    let partitions = match fields.partitions {
        None => None,
        Some(0) => Some(1),
        Some(count) => Some(u32::try_from(count).map_err(|_| ApiError::invalid("partitions is out of range"))?),
    };
    let retention = Retention { age: millis("retention_ms", fields.retention_ms)?, bytes: fields.retention_bytes };
    let created = api.driver.ask(CreateTopic { name: name.clone(), partitions, retention }).await??;
    let mut out = Json::object();
    out.text("status", "created");
    out.text("name", name.as_str());
    out.number("partitions", created.partitions);
    Ok(json(StatusCode::CREATED, out))
}

/// Most groups times partitions that one response describes: some 10 MB.
const DESCRIBED_MAX: usize = 100_000;

/// `GET /v1/topics/{topic}`.
pub(crate) async fn describe(api: &Api, name: TopicName) -> Result<ApiResponse, ApiError> {
    let lines = api.driver.with_pipeline(|pipeline| {
        pipeline.state().topic_named(&name).map(|topic| topic.group_count() * topic.partition_count() as usize)
    });
    if let Some(lines) = lines.flatten().filter(|lines| *lines > DESCRIBED_MAX) {
        let message = format!("{lines} groups times partitions are too many for one response; see /metrics");
        return Err(ApiError::invalid(message));
    }
    let topic = api.driver.ask(DescribeTopic { name }).await??;
    Ok(json(StatusCode::OK, write_topic(&topic)))
}

/// `DELETE /v1/topics/{topic}`.
pub(crate) async fn delete(api: &Api, name: TopicName) -> Result<ApiResponse, ApiError> {
    api.driver.ask(DeleteTopic { name }).await??;
    Ok(no_content())
}

fn write_topic(topic: &TopicInfo) -> Json {
    let mut out = Json::object();
    out.text("name", topic.name.as_str());
    out.list("partitions", &topic.partitions, |info, out| object(out, |json| write_partition(info, json)));
    out.list("groups", &topic.groups, |info, out| object(out, |json| write_group(info, json)));
    out
}

fn write_partition(info: &PartitionInfo, json: &mut Json) {
    json.number("partition", info.partition.0);
    json.number("next_offset", info.next_offset.0);
    json.number("messages", info.messages);
    json.number("bytes", info.bytes);
    json.number("delayed", info.delayed);
}

fn write_group(info: &GroupInfo, json: &mut Json) {
    json.text("group", info.group.as_str());
    json.flag("paused", info.paused);
    json.number("consumers", info.consumers);
    json.number("skipped", info.skipped);
    json.list("partitions", &info.partitions, |info, out| object(out, |json| write_progress(info, json)));
}

fn write_progress(info: &ProgressInfo, json: &mut Json) {
    json.number("partition", info.partition.0);
    match info.floor {
        Some(floor) => json.number("floor", floor.0),
        // As the specification has it: no message is acked yet.
        None => json.number("floor", -1),
    }
    json.number("lag", info.lag);
    json.number("in_flight", info.in_flight);
    json.number("waiting", info.waiting);
    match info.oldest_age {
        Some(age) => json.number("oldest_age_ms", age.0),
        None => json.null("oldest_age_ms"),
    }
    match info.blocked {
        Some(blocked) => json.text("blocked", blocked.as_str()),
        None => json.null("blocked"),
    }
}
