//! What tests say often, said briefly.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::rig::{Reply, SOON, Server};

/// The type of every answer that is one JSON object.
pub const JSON: Option<&str> = Some("application/json; charset=utf-8");
/// The type of every answer that is one JSON object per line.
pub const NDJSON: Option<&str> = Some("application/x-ndjson; charset=utf-8");

impl Server {
    /// Posts JSON.
    pub fn say(&self, path: &str, body: &Value) -> Reply {
        self.post(path, body.to_string())
    }

    /// Produces what `body` says and gives the answer.
    #[track_caller]
    pub fn produced(&self, body: &Value) -> Value {
        let reply = self.say("/v1/produce", body);
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()
    }

    /// Ack, nack, extend or release of a message handed to `w` in group `g`, with further fields.
    pub fn settle(&self, what: &str, topic: &str, item: &Value, more: Value) -> Reply {
        self.say(&format!("/v1/{what}"), &with(claim(topic, item), more))
    }

    /// The same, which must end in 204.
    #[track_caller]
    pub fn settled(&self, what: &str, topic: &str, item: &Value, more: Value) {
        let reply = self.settle(what, topic, item, more);
        assert_eq!((reply.status, reply.body.as_str()), (204, ""), "{what}: {reply:?}");
    }

    /// The next message of `t` for group `g` and owner `w`, which must come.
    #[track_caller]
    pub fn next(&self, topic: &str) -> Value {
        self.next_of(topic, "g")
    }

    #[track_caller]
    pub fn next_of(&self, topic: &str, group: &str) -> Value {
        let query = format!("topic={topic}&group={group}&owner=w&max=1&wait_ms=8000&lease_ms=60000");
        self.consume(&query).item().expect("a message")
    }

    /// A topic's description.
    #[track_caller]
    pub fn topic(&self, name: &str) -> Value {
        let reply = self.get(&format!("/v1/topics/{name}"));
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()
    }

    /// A figure; `series` is its name with its labels. Nothing if there is no such series.
    pub fn figure(&self, series: &str) -> Option<f64> {
        let figures = self.get("/metrics").body;
        let line = figures.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ').map(str::to_owned));
        line.map(|value| value.parse().expect("a number"))
    }
}

/// Whose word it is about which message.
pub fn claim(topic: &str, item: &Value) -> Value {
    json!({ "topic": topic, "group": "g", "partition": item["partition"], "offset": item["offset"], "owner": "w" })
}

/// An object with the fields of another added, or in place of its own.
pub fn with(mut object: Value, more: Value) -> Value {
    let Value::Object(more) = more else { panic!("not an object: {more}") };
    object.as_object_mut().expect("an object").extend(more);
    object
}

/// An object without these fields, which it must have.
#[track_caller]
pub fn without(mut object: Value, names: &[&str]) -> Value {
    for name in names {
        let had = object.as_object_mut().expect("an object").remove(*name);
        assert!(had.is_some(), "no {name} in {object}");
    }
    object
}

/// The values of a field.
pub fn each<'a>(items: &'a [Value], name: &str) -> Vec<&'a Value> {
    items.iter().map(|item| &item[name]).collect()
}

/// A moment in milliseconds since 1970, which must be written as RFC 3339 in UTC with milliseconds.
#[track_caller]
pub fn millis(moment: &Value) -> i64 {
    let text = moment.as_str().unwrap_or_else(|| panic!("not a moment: {moment}"));
    assert!(text.len() == 24 && text.ends_with('Z'), "not a moment in UTC with milliseconds: {text}");
    text.parse::<jiff::Timestamp>().expect("a moment").as_millisecond()
}

/// Now, in milliseconds since 1970.
pub fn now() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

/// So many milliseconds from now, in RFC 3339.
pub fn in_ms(span: i64) -> String {
    jiff::Timestamp::from_millisecond(now() + span).expect("a moment").to_string()
}

/// Waits until something is so.
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !is_so() {
        assert!(Instant::now() < end, "never came true: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
