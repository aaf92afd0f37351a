//! What a case holds in its hands: requests, names of its own, and workers that consume.
//!
//! Everything here is lenient: a probe takes a topic that was created with 200 as well as one created with 201. Being strict is for the
//! one case whose clause it is; so a server with one flaw fails in one place and not in all of them.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::run::Seat;
use super::verdict::{Verdict, ensure, fail, glimpse, not_applicable, shorten};
use crate::http::{Reply, Request, Server, Stream, is_silence};

/// A lease that does not end while a case runs.
pub(super) const LONG_MS: u64 = 20_000;
/// A lease in which a worker acks even on a machine that is busy with other things, and whose end can still be waited for.
pub(super) const MEDIUM_MS: u64 = 1_500;
/// Longer than a medium lease lasts.
pub(super) const PAST_MEDIUM: Duration = Duration::from_millis(2_000);
/// A lease whose end a case waits for.
pub(super) const SHORT_MS: u64 = 500;
/// How long nothing must come where nothing may come.
pub(super) const QUIET: Duration = Duration::from_millis(600);

/// A server, seen by one case.
#[derive(Debug)]
pub struct Probe<'a> {
    server: Server,
    patience: Duration,
    prefix: String,
    names: AtomicU32,
    seat: Option<&'a Seat<'a>>,
}

impl<'a> Probe<'a> {
    /// A probe whose names all begin with `prefix`.
    pub(super) fn new(server: Server, patience: Duration, prefix: String, seat: Option<&'a Seat<'a>>) -> Self {
        Self { server, patience, prefix, names: AtomicU32::new(0), seat }
    }

    /// How long something that must come is waited for.
    pub(super) fn patience(&self) -> Duration {
        self.patience
    }

    /// A name that nobody has used.
    pub(super) fn name(&self, what: &str) -> String {
        format!("{}-{what}{}", self.prefix, self.names.fetch_add(1, Ordering::Relaxed))
    }

    /// A name that no other case uses, the same each time.
    pub(super) fn fixed(&self, what: &str) -> String {
        format!("{}-{what}", self.prefix)
    }

    /// Restarts the server, its data kept, together with every other case that waits for that.
    pub(super) fn restart(&self) -> Result<(), Verdict> {
        let seat = self.seat.ok_or_else(|| not_applicable("needs --restart"))?;
        seat.restart().map_err(|error| fail("the server to come back", error))
    }

    /// Any request.
    pub(super) fn call(&self, method: &str, target: &str, body: &str) -> Result<Reply, Verdict> {
        let json: &[(&str, &str)] = if body.is_empty() { &[] } else { &[("Content-Type", "application/json")] };
        Ok(self.server.call(&Request { method, target, headers: json, body })?)
    }

    /// A `GET`.
    pub(super) fn get(&self, target: &str) -> Result<Reply, Verdict> {
        self.call("GET", target, "")
    }

    /// A `POST` of JSON.
    pub(super) fn post(&self, target: &str, body: &Value) -> Result<Reply, Verdict> {
        self.call("POST", target, &body.to_string())
    }

    /// A `POST` without a body, everything in the query.
    pub(super) fn query(&self, target: &str) -> Result<Reply, Verdict> {
        self.call("POST", target, "")
    }

    /// A new topic.
    pub(super) fn topic(&self, partitions: u32) -> Result<String, Verdict> {
        let name = self.name("t");
        let reply = self.post("/v1/topics", &json!({ "name": name, "partitions": partitions }))?;
        ensure(matches!(reply.status, 200..=299), "a topic to be created", glimpse(&reply))?;
        Ok(name)
    }

    /// The names of all topics.
    pub(super) fn topics(&self) -> Result<Vec<String>, Verdict> {
        let reply = self.get("/v1/topics")?;
        let listed = reply.json();
        let names = listed["topics"].as_array().ok_or_else(|| fail("a list of topics", glimpse(&reply)))?;
        Ok(names.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect())
    }

    /// A message without key and envelope.
    pub(super) fn produce(&self, topic: &str, value: &str) -> Result<(), Verdict> {
        self.produce_body(&json!({ "topic": topic, "value": value }))
    }

    /// A message with an envelope.
    pub(super) fn produce_with(&self, topic: &str, value: &str, envelope: &Value) -> Result<(), Verdict> {
        self.produce_body(&json!({ "topic": topic, "value": value, "envelope": envelope }))
    }

    /// A message to a partition.
    pub(super) fn produce_to(&self, topic: &str, partition: u32, value: &str) -> Result<(), Verdict> {
        self.produce_with(topic, value, &json!({ "partition_override": partition }))
    }

    /// A message, which must be taken.
    pub(super) fn produce_body(&self, body: &Value) -> Result<(), Verdict> {
        let reply = self.post("/v1/produce", body)?;
        ensure(matches!(reply.status, 200..=299), format!("{body} to be produced"), glimpse(&reply))
    }

    /// A worker of a group, its stream open.
    pub(super) fn worker(&self, topic: &str, group: &str, lease_ms: u64) -> Result<Worker<'_>, Verdict> {
        let owner = self.name("w");
        let query = format!("/v1/consume?topic={topic}&group={group}&owner={owner}&lease_ms={lease_ms}");
        self.worker_of(&Request::get(&query), topic, group, &owner)
    }

    /// A worker that asks for its stream in words of its own.
    pub(super) fn worker_of(
        &self,
        request: &Request<'_>,
        topic: &str,
        group: &str,
        owner: &str,
    ) -> Result<Worker<'_>, Verdict> {
        let stream = self.server.stream(request)?;
        ensure(stream.head.status == 200, "a stream", glimpse(&stream.head))?;
        let (topic, group, owner) = (topic.to_owned(), group.to_owned(), owner.to_owned());
        Ok(Worker { probe: self, stream, topic, group, owner })
    }

    /// The status with which a stream begins, or with which it is refused.
    pub(super) fn stream_status(&self, target: &str) -> Result<u16, Verdict> {
        Ok(self.server.stream(&Request::get(target))?.head.status)
    }

    /// The same for parameters in a body.
    pub(super) fn stream_status_of(&self, target: &str, body: &str) -> Result<u16, Verdict> {
        let headers = &[("Content-Type", "application/json")];
        Ok(self.server.stream(&Request { method: "GET", target, headers, body })?.head.status)
    }

    /// What a group's next delivery is, taken by a worker that goes away again and leaves its lease behind.
    pub(super) fn take(&self, topic: &str, group: &str, lease_ms: u64) -> Result<(Item, Claim), Verdict> {
        let mut worker = self.worker(topic, group, lease_ms)?;
        let item = worker.next()?;
        let claim = worker.claim(&item);
        Ok((item, claim))
    }

    /// Everything that a group's worker is handed until nothing more comes; all of it acked.
    pub(super) fn drain(&self, topic: &str, group: &str) -> Result<Vec<Item>, Verdict> {
        let mut worker = self.worker(topic, group, LONG_MS)?;
        let mut items = Vec::new();
        while let Some(item) = worker.wait(QUIET)? {
            worker.ack(&item)?;
            items.push(item);
        }
        Ok(items)
    }

    /// An ack.
    pub(super) fn ack(&self, claim: &Claim) -> Result<Reply, Verdict> {
        self.post("/v1/ack", &claim.json())
    }

    /// A nack.
    pub(super) fn nack(&self, claim: &Claim, reason: &str) -> Result<Reply, Verdict> {
        let mut body = claim.json();
        body["reason"] = json!(reason);
        self.post("/v1/nack", &body)
    }
}

/// What a delivery is settled with.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) topic: String,
    pub(super) group: String,
    pub(super) partition: i64,
    pub(super) offset: i64,
    pub(super) owner: String,
}

impl Claim {
    /// As the body of an ack or a nack.
    pub(super) fn json(&self) -> Value {
        json!({ "topic": self.topic, "group": self.group, "partition": self.partition, "offset": self.offset, "owner": self.owner })
    }

    /// As the query of an ack or a nack.
    pub(super) fn query(&self) -> String {
        let Self { topic, group, partition, offset, owner } = self;
        format!("topic={topic}&group={group}&partition={partition}&offset={offset}&owner={owner}")
    }

    /// The same, by somebody else.
    pub(super) fn by(&self, owner: &str) -> Self {
        Self { owner: owner.to_owned(), ..self.clone() }
    }
}

/// A delivery.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) partition: i64,
    pub(super) offset: i64,
    pub(super) attempts: i64,
    pub(super) key: String,
    pub(super) value: String,
    pub(super) last_error: String,
    /// The whole line.
    pub(super) json: Value,
    /// When it was read.
    pub(super) at: Instant,
}

impl Item {
    fn of(json: Value) -> Self {
        let number = |name: &str| json[name].as_i64().unwrap_or(-1);
        let text = |name: &str| json[name].as_str().unwrap_or_default().to_owned();
        Self {
            partition: number("partition"),
            offset: number("offset"),
            attempts: number("attempts"),
            key: text("key"),
            value: text("value"),
            last_error: text("last_error"),
            at: Instant::now(),
            json,
        }
    }

    /// The envelope, `null` if there is none.
    pub(super) fn envelope(&self) -> &Value {
        &self.json["envelope"]
    }
}

/// A consumer with its stream.
#[derive(Debug)]
pub(super) struct Worker<'a> {
    probe: &'a Probe<'a>,
    pub(super) stream: Stream,
    topic: String,
    group: String,
    owner: String,
}

impl Worker<'_> {
    /// The next delivery, which must come.
    pub(super) fn next(&mut self) -> Result<Item, Verdict> {
        let patience = self.probe.patience;
        self.wait(patience)?.ok_or_else(|| fail("a delivery", format!("none within {} ms", patience.as_millis())))
    }

    /// The next delivery, if one comes in time.
    pub(super) fn wait(&mut self, limit: Duration) -> Result<Option<Item>, Verdict> {
        let give_up = Instant::now() + limit;
        loop {
            let left = give_up.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let line = self.stream.connection().set_patience(left).and_then(|()| self.stream.line());
            match line {
                Ok(Some(line)) if line.trim().is_empty() => {}
                Ok(Some(line)) => {
                    let json = serde_json::from_str(&line).map_err(|_| fail("a line of JSON", shorten(&line)))?;
                    return Ok(Some(Item::of(json)));
                }
                Ok(None) => return Err(fail("an open stream", "its end")),
                Err(error) if is_silence(&error) => return Ok(None),
                Err(error) => return Err(fail("an open stream", error)),
            }
        }
    }

    /// So many deliveries, which must come.
    pub(super) fn take(&mut self, count: usize) -> Result<Vec<Item>, Verdict> {
        (0..count).map(|_| self.next()).collect()
    }

    /// Nothing may come for so long.
    pub(super) fn quiet(&mut self, limit: Duration, because: &str) -> Result<(), Verdict> {
        match self.wait(limit)? {
            None => Ok(()),
            Some(item) => Err(fail(because, shorten(&format!("{}", item.json)))),
        }
    }

    /// What the delivery is settled with.
    pub(super) fn claim(&self, item: &Item) -> Claim {
        Claim {
            topic: self.topic.clone(),
            group: self.group.clone(),
            partition: item.partition,
            offset: item.offset,
            owner: self.owner.clone(),
        }
    }

    /// An ack, which must be taken.
    pub(super) fn ack(&self, item: &Item) -> Result<(), Verdict> {
        let reply = self.probe.ack(&self.claim(item))?;
        ensure(matches!(reply.status, 200..=299), "an ack to be taken", glimpse(&reply))
    }

    /// A nack, which must be taken.
    pub(super) fn nack(&self, item: &Item, reason: &str) -> Result<(), Verdict> {
        let reply = self.probe.nack(&self.claim(item), reason)?;
        ensure(matches!(reply.status, 200..=299), "a nack to be taken", glimpse(&reply))
    }
}
