//! Topics and groups.

use std::fmt::Write as _;
use std::time::Duration;

use hyper::Method;
use serde::{Deserialize, Serialize};
use serde_json::json as object;

use crate::client::{Client, json};
use crate::envelope::millis;
use crate::error::Error;
use crate::idempotency_key::encode;
use crate::transport::Call;

/// A topic to be created. What is left out is the server's default.
#[derive(Clone, Debug, Serialize)]
pub struct CreateTopic {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    partitions: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retention_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retention_bytes: Option<u64>,
}

impl CreateTopic {
    /// A topic with the defaults of the server.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), partitions: None, retention_ms: None, retention_bytes: None }
    }

    /// How many partitions it has; one without it.
    #[must_use]
    pub fn partitions(self, partitions: u32) -> Self {
        Self { partitions: Some(partitions), ..self }
    }

    /// How long acked messages are kept, for replay and for later groups.
    #[must_use]
    pub fn retention(self, retention: Duration) -> Self {
        Self { retention_ms: Some(millis(retention)), ..self }
    }

    /// How many bytes of acked messages are kept, per partition.
    #[must_use]
    pub fn retention_bytes(self, bytes: u64) -> Self {
        Self { retention_bytes: Some(bytes), ..self }
    }
}

/// The settings of a topic that exists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TopicSettings {
    /// Its name.
    pub name: String,
    /// How many partitions it has.
    #[serde(default)]
    pub partitions: u32,
    /// How long acked messages are kept, in milliseconds; none for no limit.
    #[serde(default)]
    pub retention_ms: Option<u64>,
    /// How many bytes of acked messages are kept, per partition; none for no limit.
    #[serde(default)]
    pub retention_bytes: Option<u64>,
}

/// A topic in figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TopicInfo {
    /// Its name.
    pub name: String,
    /// How long acked messages are kept, in milliseconds; none for no limit.
    #[serde(default)]
    pub retention_ms: Option<u64>,
    /// How many bytes of acked messages are kept, per partition; none for no limit.
    #[serde(default)]
    pub retention_bytes: Option<u64>,
    /// Its partitions.
    pub partitions: Vec<PartitionInfo>,
    /// Its groups.
    pub groups: Vec<GroupInfo>,
}

/// A partition in figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PartitionInfo {
    /// Its number.
    pub partition: u32,
    /// The offset after that of its newest message.
    pub next_offset: u64,
    /// Messages not yet acked by every group.
    pub messages: u64,
    /// Key and value bytes of those messages.
    pub bytes: u64,
    /// Messages whose delay has not passed.
    pub delayed: u64,
}

/// A group in figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GroupInfo {
    /// Its name.
    pub group: String,
    /// Whether it is paused.
    pub paused: bool,
    /// Connected streams.
    pub consumers: u64,
    /// Messages it acked without a delivery, because it had acked their identity before.
    pub skipped: u64,
    /// How far it is in each partition.
    pub partitions: Vec<ProgressInfo>,
}

/// How far a group is in a partition.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ProgressInfo {
    /// The partition.
    pub partition: u32,
    /// Every offset up to this one is acked; -1 if none is.
    pub floor: Option<i64>,
    /// Messages not acked.
    pub lag: u64,
    /// Messages with a live lease.
    pub in_flight: u64,
    /// Messages delivered before that wait to be delivered again.
    pub waiting: u64,
    /// Age of the oldest message not acked, in milliseconds.
    pub oldest_age_ms: Option<u64>,
    /// Why nothing is delivered.
    pub blocked: Option<String>,
}

/// Where a group is set to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SeekTo {
    /// The earliest message that is kept.
    Earliest,
    /// Behind the newest message.
    Latest,
    /// An offset.
    Offset(u64),
    /// The first message produced at or after this time (RFC 3339).
    Time(String),
}

#[derive(Deserialize)]
struct TopicNames {
    topics: Vec<String>,
}

#[derive(Deserialize)]
struct GroupNames {
    groups: Vec<String>,
}

#[derive(Deserialize)]
struct Purged {
    purged: u64,
}

impl Client {
    /// Creates a topic. It may exist with the same settings.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) if it exists with other settings.
    pub async fn create_topic(&self, topic: &CreateTopic) -> Result<TopicSettings, Error> {
        let call = Call::post("/v1/topics", json(topic)?).repeatable_if(true);
        self.transport().json(&call).await
    }

    /// The names of all topics, sorted.
    ///
    /// # Errors
    /// If the broker cannot be asked.
    pub async fn topics(&self) -> Result<Vec<String>, Error> {
        let names: TopicNames = self.transport().json(&Call::get("/v1/topics")).await?;
        Ok(names.topics)
    }

    /// A topic in figures.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is none.
    pub async fn topic(&self, name: &str) -> Result<TopicInfo, Error> {
        self.transport().json(&Call::get(topic_path(name))).await
    }

    /// Changes how long, and how many bytes of, acked messages are kept. What is left out stays.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is no such topic.
    pub async fn change_topic(
        &self,
        name: &str,
        retention: Option<Duration>,
        retention_bytes: Option<u64>,
    ) -> Result<TopicSettings, Error> {
        let mut body = serde_json::Map::new();
        body.extend(retention.map(|retention| ("retention_ms".to_owned(), millis(retention).into())));
        body.extend(retention_bytes.map(|bytes| ("retention_bytes".to_owned(), bytes.into())));
        self.transport().json(&Call::new(Method::PATCH, topic_path(name), json(&body)?.into())).await
    }

    /// Deletes a topic with its messages and groups. It is not repeated if its outcome is unknown.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is none.
    pub async fn delete_topic(&self, name: &str) -> Result<(), Error> {
        let call = Call::new(Method::DELETE, topic_path(name), bytes::Bytes::new());
        self.transport().call(&call).await.map(|_| ())
    }

    /// Removes every message of a topic. Returns how many. It is not repeated if its outcome is unknown.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is no such topic.
    pub async fn purge_topic(&self, name: &str) -> Result<u64, Error> {
        let purged: Purged = self.transport().json(&Call::post(topic_path(name) + "/purge", "{}")).await?;
        Ok(purged.purged)
    }

    /// The names of the groups of a topic.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is no such topic.
    pub async fn groups(&self, topic: &str) -> Result<Vec<String>, Error> {
        let names: GroupNames =
            self.transport().json(&Call::get(with_query("/v1/groups", &[("topic", topic)]))).await?;
        Ok(names.groups)
    }

    /// Creates a group, or leaves one that exists as it is.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is no such topic.
    pub async fn create_group(&self, topic: &str, group: &str, from_latest: bool) -> Result<(), Error> {
        let from = if from_latest { "latest" } else { "earliest" };
        let body = object!({"topic": topic, "group": group, "from": from});
        self.transport().call(&Call::post("/v1/groups", json(&body)?)).await.map(|_| ())
    }

    /// Deletes a group with its leases. It is not repeated if its outcome is unknown.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is none.
    pub async fn delete_group(&self, topic: &str, group: &str) -> Result<(), Error> {
        let path = with_query("/v1/groups", &[("topic", topic), ("group", group)]);
        self.transport().call(&Call::new(Method::DELETE, path, bytes::Bytes::new())).await.map(|_| ())
    }

    /// Sets a group to another place. Its leases end. It is not repeated if its outcome is unknown.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is no such topic or group.
    pub async fn seek(&self, topic: &str, group: &str, to: &SeekTo) -> Result<(), Error> {
        let to = match to {
            SeekTo::Earliest => "earliest".into(),
            SeekTo::Latest => "latest".into(),
            SeekTo::Offset(offset) => object!({"offset": offset}),
            SeekTo::Time(time) => object!({"time": time}),
        };
        let body = object!({"topic": topic, "group": group, "to": to});
        self.transport().call(&Call::post("/v1/groups/seek", json(&body)?)).await.map(|_| ())
    }

    /// Pauses a group, or lets it continue.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is no such topic or group.
    pub async fn set_paused(&self, topic: &str, group: &str, paused: bool) -> Result<(), Error> {
        let path = if paused { "/v1/groups/pause" } else { "/v1/groups/resume" };
        let body = object!({"topic": topic, "group": group});
        self.transport().call(&Call::post(path, json(&body)?)).await.map(|_| ())
    }
}

fn topic_path(name: &str) -> String {
    let mut path = String::from("/v1/topics/");
    encode(&mut path, name);
    path
}

/// A path with query parameters.
pub(crate) fn with_query(path: &str, parameters: &[(&str, &str)]) -> String {
    let mut text = path.to_owned();
    for (index, (name, value)) in parameters.iter().enumerate() {
        // Writing to a String cannot fail.
        let _ = write!(text, "{}{name}=", if index == 0 { '?' } else { '&' });
        encode(&mut text, value);
    }
    text
}
