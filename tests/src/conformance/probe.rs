//! What cases use: requests, unique names, and workers that consume.
//!
//! Everything here is lenient: it accepts a topic created with 200 as well as with 201. Only the case of a clause is
//! strict about it, so that a server with one defect fails one case and not all of them.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::restart::RestartTicket;
use super::verdict::{Verdict, brief, ensure, fail, not_applicable, shorten};
use crate::http::{Client, Reply, Request, Stream, is_timeout};

/// A lease that does not expire during a case.
pub(super) const LONG_MS: u64 = 20_000;
/// A lease long enough to ack in time on a busy machine, and short enough to wait for its expiry.
pub(super) const MEDIUM_MS: u64 = 1_500;
/// Longer than a medium lease.
pub(super) const AFTER_MEDIUM: Duration = Duration::from_millis(2_000);
/// A lease whose expiry a case waits for.
pub(super) const SHORT_MS: u64 = 500;
/// How long to wait where nothing may be delivered.
pub(super) const SILENCE: Duration = Duration::from_millis(600);

/// A server as one case uses it.
#[derive(Debug)]
pub struct Probe<'a> {
    client: Client,
    timeout: Duration,
    prefix: String,
    names: AtomicU32,
    ticket: Option<&'a RestartTicket<'a>>,
}

impl<'a> Probe<'a> {
    /// A probe whose names begin with `prefix`.
    pub(super) fn new(
        client: Client,
        timeout: Duration,
        prefix: String,
        ticket: Option<&'a RestartTicket<'a>>,
    ) -> Self {
        Self { client, timeout, prefix, names: AtomicU32::new(0), ticket }
    }

    /// How long a response or delivery that must arrive may take.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// An unused name.
    pub(super) fn name(&self, what: &str) -> String {
        format!("{}-{what}{}", self.prefix, self.names.fetch_add(1, Ordering::Relaxed))
    }

    /// A name that no other case uses, the same for every call.
    pub(super) fn fixed(&self, what: &str) -> String {
        format!("{}-{what}", self.prefix)
    }

    /// Restarts the server without losing its data, together with all other cases that need a restart.
    pub(super) fn restart(&self) -> Result<(), Verdict> {
        let ticket = self.ticket.ok_or_else(|| not_applicable("needs --restart"))?;
        ticket.restart().map_err(|error| fail("the server to restart", error))
    }

    /// A request with any method.
    pub(super) fn call(&self, method: &str, target: &str, body: &str) -> Result<Reply, Verdict> {
        let json: &[(&str, &str)] = if body.is_empty() { &[] } else { &[("Content-Type", "application/json")] };
        self.send(method, target, json, body)
    }

    /// A request with any headers.
    pub(super) fn send(
        &self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<Reply, Verdict> {
        Ok(self.client.call(&Request { method, target, headers, body })?)
    }

    /// A `GET`.
    pub(super) fn get(&self, target: &str) -> Result<Reply, Verdict> {
        self.call("GET", target, "")
    }

    /// A `POST` of JSON.
    pub(super) fn post(&self, target: &str, body: &Value) -> Result<Reply, Verdict> {
        self.call("POST", target, &body.to_string())
    }

    /// A `POST` with a query and no body.
    pub(super) fn query(&self, target: &str) -> Result<Reply, Verdict> {
        self.call("POST", target, "")
    }

    /// Creates a topic.
    pub(super) fn topic(&self, partitions: u32) -> Result<String, Verdict> {
        let name = self.name("t");
        let reply = self.post("/v1/topics", &json!({ "name": name, "partitions": partitions }))?;
        ensure(matches!(reply.status, 200..=299), "the topic to be created", brief(&reply))?;
        Ok(name)
    }

    /// The names of all topics.
    pub(super) fn topics(&self) -> Result<Vec<String>, Verdict> {
        let reply = self.get("/v1/topics")?;
        let listed = reply.json();
        let names = listed["topics"].as_array().ok_or_else(|| fail("a list of topics", brief(&reply)))?;
        Ok(names.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect())
    }

    /// Produces a message without key and envelope.
    pub(super) fn produce(&self, topic: &str, value: &str) -> Result<(), Verdict> {
        self.produce_body(&json!({ "topic": topic, "value": value }))
    }

    /// Produces a message with an envelope.
    pub(super) fn produce_with(&self, topic: &str, value: &str, envelope: &Value) -> Result<(), Verdict> {
        self.produce_body(&json!({ "topic": topic, "value": value, "envelope": envelope }))
    }

    /// Produces a message to a partition.
    pub(super) fn produce_to(&self, topic: &str, partition: u32, value: &str) -> Result<(), Verdict> {
        self.produce_with(topic, value, &json!({ "partition_override": partition }))
    }

    /// Produces a message, which must succeed.
    pub(super) fn produce_body(&self, body: &Value) -> Result<(), Verdict> {
        let reply = self.post("/v1/produce", body)?;
        ensure(matches!(reply.status, 200..=299), format!("{body} to be produced"), brief(&reply))
    }

    /// A worker of a group with an open stream.
    pub(super) fn worker(&self, topic: &str, group: &str, lease_ms: u64) -> Result<Worker<'_>, Verdict> {
        let owner = self.name("w");
        let query = format!("/v1/consume?topic={topic}&group={group}&owner={owner}&lease_ms={lease_ms}");
        self.worker_with(&Request::get(&query), topic, group, &owner)
    }

    /// A worker whose stream is opened by a given request.
    pub(super) fn worker_with(
        &self,
        request: &Request<'_>,
        topic: &str,
        group: &str,
        owner: &str,
    ) -> Result<Worker<'_>, Verdict> {
        let stream = self.client.stream(request)?;
        ensure(stream.head.status == 200, "a stream", brief(&stream.head))?;
        let (topic, group, owner) = (topic.to_owned(), group.to_owned(), owner.to_owned());
        Ok(Worker { probe: self, stream, topic, group, owner })
    }

    /// The status of the response to a consume.
    pub(super) fn stream_status(&self, target: &str) -> Result<u16, Verdict> {
        Ok(self.client.stream(&Request::get(target))?.head.status)
    }

    /// The status of the response to a consume with its parameters in a body.
    pub(super) fn stream_status_with_body(&self, target: &str, body: &str) -> Result<u16, Verdict> {
        let headers = &[("Content-Type", "application/json")];
        Ok(self.client.stream(&Request { method: "GET", target, headers, body })?.head.status)
    }

    /// A group's next delivery. The worker disconnects and keeps its lease.
    pub(super) fn take(&self, topic: &str, group: &str, lease_ms: u64) -> Result<(Item, Claim), Verdict> {
        let mut worker = self.worker(topic, group, lease_ms)?;
        let item = worker.next()?;
        let claim = worker.claim(&item);
        Ok((item, claim))
    }

    /// Consumes and acks everything a group has.
    pub(super) fn drain(&self, topic: &str, group: &str) -> Result<Vec<Item>, Verdict> {
        let mut worker = self.worker(topic, group, LONG_MS)?;
        let mut items = Vec::new();
        while let Some(item) = worker.wait(SILENCE)? {
            worker.ack(&item)?;
            items.push(item);
        }
        Ok(items)
    }

    /// Acks.
    pub(super) fn ack(&self, claim: &Claim) -> Result<Reply, Verdict> {
        self.post("/v1/ack", &claim.json())
    }

    /// Nacks.
    pub(super) fn nack(&self, claim: &Claim, reason: &str) -> Result<Reply, Verdict> {
        let mut body = claim.json();
        body["reason"] = json!(reason);
        self.post("/v1/nack", &body)
    }
}

/// The arguments with which a delivery is settled.
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

    /// The same claim by another owner.
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
    /// The line.
    pub(super) json: Value,
    /// When it was received.
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

/// A consumer with an open stream.
#[derive(Debug)]
pub(super) struct Worker<'a> {
    probe: &'a Probe<'a>,
    pub(super) stream: Stream,
    topic: String,
    group: String,
    owner: String,
}

impl Worker<'_> {
    /// The next delivery, which must arrive.
    pub(super) fn next(&mut self) -> Result<Item, Verdict> {
        let timeout = self.probe.timeout;
        self.wait(timeout)?.ok_or_else(|| fail("a delivery", format!("none within {} ms", timeout.as_millis())))
    }

    /// The next delivery, if it arrives in time.
    pub(super) fn wait(&mut self, limit: Duration) -> Result<Option<Item>, Verdict> {
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.stream.set_timeout(left);
            match self.stream.line() {
                Ok(Some(line)) if line.trim().is_empty() => {}
                Ok(Some(line)) => {
                    let json = serde_json::from_str(&line).map_err(|_| fail("a line of JSON", shorten(&line)))?;
                    return Ok(Some(Item::of(json)));
                }
                Ok(None) => return Err(fail("an open stream", "its end")),
                Err(error) if is_timeout(&error) => return Ok(None),
                Err(error) => return Err(fail("an open stream", error)),
            }
        }
    }

    /// This many deliveries, which must arrive.
    pub(super) fn take(&mut self, count: usize) -> Result<Vec<Item>, Verdict> {
        (0..count).map(|_| self.next()).collect()
    }

    /// Fails with `expected` if there is a delivery within the limit.
    pub(super) fn expect_nothing(&mut self, limit: Duration, expected: &str) -> Result<(), Verdict> {
        match self.wait(limit)? {
            None => Ok(()),
            Some(item) => Err(fail(expected, shorten(&format!("{}", item.json)))),
        }
    }

    /// The claim of a delivery.
    pub(super) fn claim(&self, item: &Item) -> Claim {
        Claim {
            topic: self.topic.clone(),
            group: self.group.clone(),
            partition: item.partition,
            offset: item.offset,
            owner: self.owner.clone(),
        }
    }

    /// Acks, which must succeed.
    pub(super) fn ack(&self, item: &Item) -> Result<(), Verdict> {
        let reply = self.probe.ack(&self.claim(item))?;
        ensure(matches!(reply.status, 200..=299), "the ack to succeed", brief(&reply))
    }

    /// Nacks, which must succeed.
    pub(super) fn nack(&self, item: &Item, reason: &str) -> Result<(), Verdict> {
        let reply = self.probe.nack(&self.claim(item), reason)?;
        ensure(matches!(reply.status, 200..=299), "the nack to succeed", brief(&reply))
    }
}
