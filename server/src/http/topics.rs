//! `/v1/topics`: list, create, describe, change and delete topics.

use driftq_core::command::Target;
use driftq_core::command::{ChangeRetention, CreateTopic, DeleteTopic, DescribeTopic, ListTopics, Purge};
use driftq_core::reply::{GroupInfo, PartitionInfo, ProgressInfo, TopicInfo};
use driftq_core::types::{Retention, Setting, TopicName, Verb};
use hyper::StatusCode;
use serde::Deserialize;

use super::api::Api;
use super::audit;
use super::error::ApiError;
use super::fields::{Fields, Str, millis, nullable, required};
use super::query::Query;
use super::requester::Requester;
use super::response::{ApiResponse, json, no_content};
use super::tenants;
use crate::json::{Json, object, string};

/// `GET /v1/topics?limit=&after=&tenant=`: the names in byte order, from the first beyond `after`.
pub(crate) async fn list(api: &Api, from: &Requester, query: &Query<'_>) -> Result<ApiResponse, ApiError> {
    let limit = match query.value::<usize>("limit")? {
        Some(0) => return Err(ApiError::invalid("limit must be at least 1")),
        limit => limit.unwrap_or(usize::MAX),
    };
    let after = query.text("after")?.filter(|after| !after.is_empty()).map(TopicName::new).transpose()?;
    let tenant = tenants::named(api, from, query).await?;
    let topics = match tenant == from.names.tenant() {
        true => api.driver.ask(&from.caller, ListTopics { tenant }).await??,
        false => audit::ask(api, from, ListTopics { tenant }).await??,
    };
    let skipped = after.map_or(0, |after| topics.partition_point(|topic| topic.as_str() <= after.as_str()));
    let mut out = Json::object();
    out.list("topics", topics.iter().skip(skipped).take(limit), |topic, out| string(topic.as_str(), out));
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
pub(crate) async fn create(api: &Api, from: &Requester, fields: TopicFields<'_>) -> Result<ApiResponse, ApiError> {
    let name = from.names.rare_topic(required("name", fields.name.as_deref())?)?;
    let partitions = match fields.partitions {
        None => None,
        Some(0) => Some(1),
        Some(count) => Some(u32::try_from(count).map_err(|_| ApiError::invalid("partitions is out of range"))?),
    };
    let retention = Retention { age: millis("retention_ms", fields.retention_ms)?, bytes: fields.retention_bytes };
    let created = audit::ask(api, from, CreateTopic { name: name.clone(), partitions, retention }).await??;
    let mut out = Json::object();
    out.text("status", "created");
    out.text("name", name.as_str());
    out.number("partitions", created.partitions);
    write_retention(created.retention, &mut out);
    Ok(json(StatusCode::CREATED, out))
}

/// The fields of a change of a topic.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TopicChange {
    #[serde(default, deserialize_with = "nullable")]
    retention_ms: Option<Option<i64>>,
    #[serde(default, deserialize_with = "nullable")]
    retention_bytes: Option<Option<u64>>,
}

fn setting<T>(field: Option<Option<T>>) -> Setting<T> {
    match field {
        None => Setting::Unchanged,
        Some(None) => Setting::ServerDefault,
        Some(Some(value)) => Setting::Value(value),
    }
}

/// `PATCH /v1/topics/{topic}`.
pub(crate) async fn change(
    api: &Api,
    from: &Requester,
    name: TopicName,
    fields: TopicChange,
) -> Result<ApiResponse, ApiError> {
    let age = match fields.retention_ms {
        Some(Some(ms)) => Some(millis("retention_ms", Some(ms))?),
        Some(None) => Some(None),
        None => None,
    };
    let change = ChangeRetention { name: name.clone(), age: setting(age), bytes: setting(fields.retention_bytes) };
    let retention = audit::ask(api, from, change).await??;
    let mut out = Json::object();
    out.text("name", name.as_str());
    write_retention(retention, &mut out);
    Ok(json(StatusCode::OK, out))
}

/// The retention of a topic; `null` for no limit.
fn write_retention(retention: Retention, out: &mut Json) {
    match retention.age {
        Some(age) => out.number("retention_ms", age.0),
        None => out.null("retention_ms"),
    }
    match retention.bytes_max() {
        Some(bytes) => out.number("retention_bytes", bytes),
        None => out.null("retention_bytes"),
    }
}

/// Most groups times partitions that one response describes: some 10 MB.
const DESCRIBED_MAX: usize = 100_000;

/// `GET /v1/topics/{topic}`.
pub(crate) async fn describe(api: &Api, from: &Requester, name: TopicName) -> Result<ApiResponse, ApiError> {
    let (of, principal) = (name.clone(), from.caller.principal);
    let lines = api.driver.read(move |pipeline| {
        pipeline.broker().authorize(principal, Verb::Inspect, Target::Topic(&of)).ok()?;
        pipeline.state().topic_named(&of).map(|topic| topic.group_count() * topic.partition_count() as usize)
    });
    if let Some(lines) = lines.wait().await.flatten().filter(|lines| *lines > DESCRIBED_MAX) {
        let message = format!("{lines} groups times partitions are too many for one response; see /metrics");
        return Err(ApiError::invalid(message));
    }
    let topic = api.driver.ask(&from.caller, DescribeTopic { name }).await??;
    Ok(json(StatusCode::OK, write_topic(&topic)))
}

/// `DELETE /v1/topics/{topic}`.
pub(crate) async fn delete(api: &Api, from: &Requester, name: TopicName) -> Result<ApiResponse, ApiError> {
    audit::ask(api, from, DeleteTopic { name }).await??;
    Ok(no_content())
}

/// `POST /v1/topics/{topic}/purge`.
pub(crate) async fn purge(api: &Api, from: &Requester, topic: TopicName) -> Result<ApiResponse, ApiError> {
    let purged = audit::ask(api, from, Purge { topic }).await??;
    let mut out = Json::object();
    out.number("purged", purged);
    Ok(json(StatusCode::OK, out))
}

fn write_topic(topic: &TopicInfo) -> Json {
    let mut out = Json::object();
    out.text("name", topic.name.as_str());
    write_retention(topic.retention, &mut out);
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
