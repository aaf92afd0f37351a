//! `/v1/groups`: list, create, delete, seek, pause and resume groups, and end their leases.

use driftq_core::command::{CreateGroup, DeleteGroup, ExpireLease, ListGroups, Pause, Resume, Seek, SeekTo};
use driftq_core::types::{GroupName, Offset, PartitionId, TopicName};
use hyper::StatusCode;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Unexpected};
use serde::{Deserialize, Deserializer};

use super::api::Api;
use super::audit;
use super::error::ApiError;
use super::fields::{Fields, Str, group_start, required, timestamp};
use super::query::Query;
use super::requester::{Names, Requester};
use super::response::{ApiResponse, json, no_content};
use crate::json::{Json, string};

/// The fields that name a group, and where a new one starts.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GroupFields<'a> {
    #[serde(borrow)]
    topic: Option<Str<'a>>,
    #[serde(borrow)]
    group: Option<Str<'a>>,
    #[serde(borrow)]
    from: Option<Str<'a>>,
}

impl<'a> Fields<'a> for GroupFields<'a> {
    fn from_query(query: &'a Query<'a>) -> Result<Self, ApiError> {
        Ok(Self {
            topic: query.text("topic")?.map(Into::into),
            group: query.text("group")?.map(Into::into),
            from: query.text("from")?.map(Into::into),
        })
    }
}

impl GroupFields<'_> {
    fn names(&self, names: &Names) -> Result<(TopicName, GroupName), ApiError> {
        let topic = names.rare_topic(required("topic", self.topic.as_deref())?)?;
        Ok((topic, GroupName::new(required("group", self.group.as_deref())?)?))
    }

    /// The names, for requests that take no `from`.
    fn names_only(&self, names: &Names) -> Result<(TopicName, GroupName), ApiError> {
        match self.from {
            Some(_) => Err(ApiError::invalid("from is only for creating a group")),
            None => self.names(names),
        }
    }
}

/// `GET /v1/groups?topic=`.
pub(crate) async fn list(api: &Api, from: &Requester, query: &Query<'_>) -> Result<ApiResponse, ApiError> {
    let topic = from.names.rare_topic(required("topic", query.text("topic")?)?)?;
    let groups = api.driver.ask(&from.caller, ListGroups { topic }).await??;
    let mut out = Json::object();
    out.list("groups", &groups, |group, out| string(group.name.as_str(), out));
    out.object_in("skipped", |json| groups.iter().for_each(|group| json.number(group.name.as_str(), group.skipped)));
    Ok(json(StatusCode::OK, out))
}

/// `POST /v1/groups`.
pub(crate) async fn create(api: &Api, from: &Requester, fields: GroupFields<'_>) -> Result<ApiResponse, ApiError> {
    let (topic, group) = fields.names(&from.names)?;
    let start = group_start(fields.from.as_deref())?;
    audit::ask(api, from, CreateGroup { topic: topic.clone(), group: group.clone(), start }).await??;
    let mut out = Json::object();
    out.text("status", "created");
    out.text("topic", topic.as_str());
    out.text("group", group.as_str());
    Ok(json(StatusCode::CREATED, out))
}

/// `DELETE /v1/groups?topic=&group=`.
pub(crate) async fn delete(api: &Api, from: &Requester, fields: GroupFields<'_>) -> Result<ApiResponse, ApiError> {
    let (topic, group) = fields.names_only(&from.names)?;
    audit::ask(api, from, DeleteGroup { topic, group }).await??;
    Ok(no_content())
}

/// `POST /v1/groups/pause`.
pub(crate) async fn pause(api: &Api, from: &Requester, fields: GroupFields<'_>) -> Result<ApiResponse, ApiError> {
    let (topic, group) = fields.names_only(&from.names)?;
    audit::ask(api, from, Pause { topic, group }).await??;
    Ok(no_content())
}

/// `POST /v1/groups/resume`.
pub(crate) async fn resume(api: &Api, from: &Requester, fields: GroupFields<'_>) -> Result<ApiResponse, ApiError> {
    let (topic, group) = fields.names_only(&from.names)?;
    audit::ask(api, from, Resume { topic, group }).await??;
    Ok(no_content())
}

/// The fields of a seek.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SeekFields<'a> {
    #[serde(borrow)]
    topic: Option<Str<'a>>,
    #[serde(borrow)]
    group: Option<Str<'a>>,
    to: Option<SeekTarget>,
}

/// `"earliest"`, `"latest"`, `{"offset": n}` or `{"time": "…"}`.
#[derive(Debug)]
pub(crate) enum SeekTarget {
    Earliest,
    Latest,
    Offset(u64),
    Time(String),
}

impl<'de> Deserialize<'de> for SeekTarget {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = SeekTarget;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("\"earliest\", \"latest\", {\"offset\": n} or {\"time\": RFC 3339}")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<SeekTarget, E> {
                match text {
                    "earliest" => Ok(SeekTarget::Earliest),
                    "latest" => Ok(SeekTarget::Latest),
                    other => Err(E::invalid_value(Unexpected::Str(other), &self)),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<SeekTarget, A::Error> {
                #[derive(Deserialize)]
                #[serde(rename_all = "lowercase")]
                enum Target {
                    Offset(u64),
                    Time(String),
                }
                Ok(match Target::deserialize(MapAccessDeserializer::new(map))? {
                    Target::Offset(offset) => SeekTarget::Offset(offset),
                    Target::Time(text) => SeekTarget::Time(text),
                })
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl<'a> Fields<'a> for SeekFields<'a> {
    fn from_query(query: &'a Query<'a>) -> Result<Self, ApiError> {
        let to = match (query.text("to")?, query.value("offset")?, query.text("time")?) {
            (Some("earliest"), None, None) => Some(SeekTarget::Earliest),
            (Some("latest"), None, None) => Some(SeekTarget::Latest),
            (None, Some(offset), None) => Some(SeekTarget::Offset(offset)),
            (None, None, Some(time)) => Some(SeekTarget::Time(time.to_owned())),
            (None, None, None) => None,
            _ => return Err(ApiError::invalid("give one of to=earliest, to=latest, offset= and time=")),
        };
        Ok(Self { topic: query.text("topic")?.map(Into::into), group: query.text("group")?.map(Into::into), to })
    }
}

/// `POST /v1/groups/seek`.
pub(crate) async fn seek(api: &Api, from: &Requester, fields: SeekFields<'_>) -> Result<ApiResponse, ApiError> {
    let topic = from.names.rare_topic(required("topic", fields.topic.as_deref())?)?;
    let group = GroupName::new(required("group", fields.group.as_deref())?)?;
    let to = match required("to", fields.to)? {
        SeekTarget::Earliest => SeekTo::Earliest,
        SeekTarget::Latest => SeekTo::Latest,
        SeekTarget::Offset(offset) => SeekTo::Offset(Offset(offset)),
        SeekTarget::Time(text) => SeekTo::Time(timestamp("time", &text)?),
    };
    audit::ask(api, from, Seek { topic, group, to }).await??;
    Ok(no_content())
}

/// The fields of an expire.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExpireFields<'a> {
    #[serde(borrow)]
    topic: Option<Str<'a>>,
    #[serde(borrow)]
    group: Option<Str<'a>>,
    partition: Option<u32>,
    offset: Option<u64>,
}

impl<'a> Fields<'a> for ExpireFields<'a> {
    fn from_query(query: &'a Query<'a>) -> Result<Self, ApiError> {
        Ok(Self {
            topic: query.text("topic")?.map(Into::into),
            group: query.text("group")?.map(Into::into),
            partition: query.value("partition")?,
            offset: query.value("offset")?,
        })
    }
}

/// `POST /v1/groups/expire`: ends a lease as if it had run out.
pub(crate) async fn expire(api: &Api, from: &Requester, fields: ExpireFields<'_>) -> Result<ApiResponse, ApiError> {
    let expire = ExpireLease {
        topic: from.names.rare_topic(required("topic", fields.topic.as_deref())?)?,
        group: GroupName::new(required("group", fields.group.as_deref())?)?,
        partition: PartitionId(required("partition", fields.partition)?),
        offset: Offset(required("offset", fields.offset)?),
    };
    audit::ask(api, from, expire).await??;
    Ok(no_content())
}
