//! Requests that many tests make, and values they compare.

use driftq_tests::http::Reply;
use serde_json::{Value, json};

use crate::harness::Server;

/// The content type of a JSON object.
pub const JSON: Option<&str> = Some("application/json; charset=utf-8");
/// The content type of JSON objects, one per line.
pub const NDJSON: Option<&str> = Some("application/x-ndjson; charset=utf-8");

/// How long [`Server::fetch`] waits for further messages.
const FETCH_WAIT_MS: u64 = 100;

impl Server {
    /// Posts JSON.
    #[track_caller]
    pub fn post_json(&self, target: &str, body: &Value) -> Reply {
        self.post(target, body.to_string())
    }

    /// Creates a topic.
    #[track_caller]
    pub fn create(&self, topic: &str, partitions: u32) {
        let created = self.post_json("/v1/topics", &json!({ "name": topic, "partitions": partitions }));
        assert_eq!(created.status, 201, "{created:?}");
    }

    /// Produces a value. Returns partition and offset.
    #[track_caller]
    pub fn produce(&self, topic: &str, value: &str) -> (u64, u64) {
        let json = self.produce_json(&json!({ "topic": topic, "value": value }));
        (json["partition"].as_u64().expect("a number"), json["offset"].as_u64().expect("a number"))
    }

    /// Produces a message, which must succeed. Returns the response.
    #[track_caller]
    pub fn produce_json(&self, body: &Value) -> Value {
        let reply = self.post_json("/v1/produce", body);
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()
    }

    /// Ack, nack, extend or release of a message delivered to `w` in group `g`, with further fields.
    #[track_caller]
    pub fn settle(&self, op: &str, topic: &str, item: &Value, more: Value) -> Reply {
        self.post_json(&format!("/v1/{op}"), &with(claim(topic, item), more))
    }

    /// The same, which must return 204.
    #[track_caller]
    pub fn settle_ok(&self, op: &str, topic: &str, item: &Value, more: Value) {
        let reply = self.settle(op, topic, item, more);
        assert_eq!((reply.status, reply.body.as_str()), (204, ""), "{op}: {reply:?}");
    }

    /// The next message of a topic for group `g` and owner `w`, which must be delivered.
    #[track_caller]
    pub fn next(&self, topic: &str) -> Value {
        let query = format!("topic={topic}&group=g&owner=w&max=1&wait_ms=8000&lease_ms=60000");
        self.consume(&query).item().expect("a message")
    }

    /// All messages a group can have now, unacked.
    #[track_caller]
    pub fn fetch(&self, topic: &str, group: &str) -> Vec<Value> {
        let query = format!("topic={topic}&group={group}&owner=w&wait_ms={FETCH_WAIT_MS}&lease_ms=60000");
        self.consume(&query).items()
    }

    /// A topic's description.
    #[track_caller]
    pub fn topic(&self, name: &str) -> Value {
        let reply = self.get(&format!("/v1/topics/{name}"));
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()
    }

    /// A metric; `series` is its name with its labels.
    #[track_caller]
    pub fn metric(&self, series: &str) -> Option<f64> {
        let metrics = self.get("/metrics").body;
        let line = metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ').map(str::to_owned));
        line.map(|value| value.parse().expect("a number"))
    }
}

/// Assertions on responses.
pub trait ReplyExt {
    /// Asserts an error with this status and code, in the form all errors have. Returns its message.
    fn refused(&self, status: u16, code: &str) -> String;
}

impl ReplyExt for Reply {
    #[track_caller]
    fn refused(&self, status: u16, code: &str) -> String {
        assert_eq!((self.status, self.header("content-type")), (status, JSON), "{self:?}");
        let json = self.json();
        assert_eq!(json["error"], code, "{self:?}");
        json["message"].as_str().unwrap_or_else(|| panic!("no message: {self:?}")).to_owned()
    }
}

/// The claim of owner `w` in group `g` on a delivered message.
pub fn claim(topic: &str, item: &Value) -> Value {
    json!({ "topic": topic, "group": "g", "partition": item["partition"], "offset": item["offset"], "owner": "w" })
}

/// An object with the fields of another added or replaced.
pub fn with(mut object: Value, more: Value) -> Value {
    let Value::Object(more) = more else { panic!("not an object: {more}") };
    object.as_object_mut().expect("an object").extend(more);
    object
}

/// An object without these fields, which it must have.
#[track_caller]
pub fn without(mut object: Value, names: &[&str]) -> Value {
    for name in names {
        let removed = object.as_object_mut().expect("an object").remove(*name);
        assert!(removed.is_some(), "no {name} in {object}");
    }
    object
}

/// The values of a field.
pub fn each<'a>(items: &'a [Value], name: &str) -> Vec<&'a Value> {
    items.iter().map(|item| &item[name]).collect()
}

/// A timestamp in milliseconds since 1970. It must be in RFC 3339 and UTC with milliseconds.
#[track_caller]
pub fn millis(timestamp: &Value) -> i64 {
    let text = timestamp.as_str().unwrap_or_else(|| panic!("not a timestamp: {timestamp}"));
    assert!(text.len() == 24 && text.ends_with('Z'), "not in UTC with milliseconds: {text}");
    text.parse::<jiff::Timestamp>().expect("a timestamp").as_millisecond()
}

/// Now, in milliseconds since 1970.
pub fn now() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

/// The time this many milliseconds from now, in RFC 3339.
pub fn in_ms(span: i64) -> String {
    jiff::Timestamp::from_millisecond(now() + span).expect("a timestamp").to_string()
}
