//! The `/v1` routes.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::Lie;
use super::broker::{Broker, Produce, Refusal, Topic};
use super::wire::{Answer, Request, is_open, send_line, start_stream};

const ENVELOPE: [&str; 9] = [
    "run_id",
    "step_id",
    "parent_step_id",
    "tenant_id",
    "idempotency_key",
    "target_topic",
    "partition_override",
    "deadline",
    "retry_policy",
];
const POLICY: [&str; 3] = ["max_attempts", "backoff_ms", "max_backoff_ms"];
const NUMBERS: [&str; 8] = [
    "partitions",
    "partition",
    "offset",
    "lease_ms",
    "partition_override",
    "max_attempts",
    "backoff_ms",
    "max_backoff_ms",
];
const CLAIM: [&str; 6] = ["topic", "group", "partition", "offset", "owner", "reason"];

/// A consumer's place.
pub(super) struct Stream {
    pub(super) topic: String,
    pub(super) group: String,
    pub(super) owner: String,
    pub(super) consumer: u64,
    pub(super) boot: u64,
}

pub(super) fn serve(broker: &Broker, socket: &TcpStream) -> io::Result<()> {
    let mut request = Request::read(socket)?;
    if broker.lie == Lie::UnversionedServed && !request.path.starts_with("/v1/") {
        request.path = format!("/v1{}", request.path);
    }
    match answer(broker, &request, socket) {
        Ok(answer) => answer.write(socket),
        Err(mut refusal) => {
            if broker.lie == Lie::ErrorsWithoutCode && refusal.status == 400 {
                refusal.body = json!({ "reason": refusal.body["message"] });
            }
            refusal.write(socket)
        }
    }
}

fn answer(broker: &Broker, request: &Request, socket: &TcpStream) -> Result<Answer, Answer> {
    let lie = broker.lie;
    let allowed = match request.path.as_str() {
        "/v1/healthz" | "/v1/version" | "/v1/consume" | "/v1/idempotency" => "GET",
        "/v1/topics" => "GET, POST",
        "/v1/produce" | "/v1/ack" | "/v1/nack" | "/v1/idempotency/begin" | "/v1/idempotency/finish" => "POST",
        _ => return Err(Answer::error(404, "NOT_FOUND", "no such route")),
    };
    if !allowed.split(", ").any(|method| method == request.method) {
        let mut refusal = Answer::error(405, "METHOD_NOT_ALLOWED", "not with this method");
        refusal.status = if lie == Lie::WrongMethodIs404 { 404 } else { 405 };
        if lie != Lie::NoAllowHeader {
            refusal.headers.push(("Allow", allowed.to_owned()));
        }
        return Err(refusal);
    }
    match (request.method.as_str(), request.path.as_str()) {
        (_, "/v1/healthz") => {
            Ok(Answer::of(200, if lie == Lie::HealthzIsTerse { json!("ok") } else { json!({ "status": "ok" }) }))
        }
        (_, "/v1/version") => {
            let commit = if lie == Lie::VersionWithoutCommit { Value::Null } else { json!("unknown") };
            Ok(Answer::of(200, json!({ "version": "stub", "commit": commit, "wal_enabled": true })))
        }
        ("GET", "/v1/topics") => {
            let mut names: Vec<String> = broker.lock().topics.keys().cloned().collect();
            if lie == Lie::TopicListedTwice {
                names.extend(names.clone());
            }
            Ok(Answer::of(200, json!({ "topics": names })))
        }
        (_, "/v1/topics") => create(broker, &params(lie, request, &["name", "partitions"])?),
        (_, "/v1/produce") => produce(broker, request),
        (_, "/v1/consume") => consume(broker, request, socket),
        (_, "/v1/ack") => settle(broker, &params(lie, request, &CLAIM[..5])?, false),
        (_, "/v1/nack") => settle(broker, &params(lie, request, &CLAIM)?, true),
        _ => Ok(broker.lock().store.answer(lie, request)),
    }
}

/// The body's fields, or the query's where there is no body.
fn params(lie: Lie, request: &Request, known: &[&str]) -> Result<Value, Answer> {
    if request.body.is_empty() {
        let mut fields = Map::new();
        for (name, text) in &request.query {
            let number = text.parse::<i64>().ok().filter(|_| NUMBERS.contains(&name.trim_start_matches("retry_")));
            fields.insert(name.clone(), number.map_or_else(|| json!(text), |number| json!(number)));
        }
        return Ok(Value::Object(fields));
    }
    let body: Value = serde_json::from_str(&request.body).map_err(|_| bad_json(lie))?;
    only(lie, &body, known)?;
    Ok(body)
}

fn only(lie: Lie, body: &Value, known: &[&str]) -> Result<(), Answer> {
    let fields = body.as_object().ok_or_else(|| bad_json(lie))?;
    let strange = fields.keys().any(|name| !known.contains(&name.as_str()));
    if strange && lie != Lie::UnknownFieldsAccepted { Err(Answer::bad("unknown field")) } else { Ok(()) }
}

fn bad_json(lie: Lie) -> Answer {
    if lie == Lie::BadJsonIs500 { Answer::error(500, "INTERNAL", "bad JSON") } else { Answer::bad("bad JSON") }
}

fn missing(lie: Lie, name: &str) -> Answer {
    let status = if lie == Lie::MissingFieldsAre404 { 404 } else { 400 };
    Answer::error(status, "INVALID_ARGUMENT", &format!("{name} is missing"))
}

fn required<'v>(lie: Lie, body: &'v Value, name: &str) -> Result<&'v str, Answer> {
    body[name].as_str().filter(|text| !text.is_empty()).ok_or_else(|| missing(lie, name))
}

fn create(broker: &Broker, body: &Value) -> Result<Answer, Answer> {
    let name = required(broker.lie, body, "name")?;
    let partitions = body["partitions"].as_i64().unwrap_or(1);
    if partitions < 1 && broker.lie != Lie::ZeroPartitions {
        return Err(Answer::bad("partitions must be at least 1"));
    }
    broker.lock().topics.entry(name.to_owned()).or_insert_with(|| Topic::of(partitions));
    let status = if broker.lie == Lie::TopicCreatedWith200 { 200 } else { 201 };
    Ok(Answer::of(status, json!({ "status": "created", "name": name, "partitions": partitions })))
}

fn produce(broker: &Broker, request: &Request) -> Result<Answer, Answer> {
    let body = params(broker.lie, request, &["topic", "key", "value", "envelope"])?;
    let (topic, value) = (required(broker.lie, &body, "topic")?, required(broker.lie, &body, "value")?);
    let envelope = if request.body.is_empty() { query_envelope(broker.lie, &body) } else { body["envelope"].clone() };
    if envelope.is_object() {
        let labels = if broker.lie == Lie::LabelsSwallowed { &["labels"][..] } else { &[] };
        only(broker.lie, &envelope, &[&ENVELOPE[..], labels].concat())?;
    }
    if envelope["retry_policy"].is_object() {
        only(broker.lie, &envelope["retry_policy"], &POLICY)?;
    }
    if let Some(deadline) = envelope["deadline"].as_str() {
        // As far as the suite goes: a year tells whether it has passed.
        let year: Option<u32> = deadline.get(..4).and_then(|year| year.parse().ok());
        let passed = match year {
            None if broker.lie != Lie::BadDeadlineTaken => return Err(Answer::bad("bad deadline")),
            None => false,
            Some(year) => year < 2026 || broker.lie == Lie::DeadlineAlwaysPassed,
        };
        if passed && broker.lie != Lie::DeadlineIgnored {
            return Err(Answer::bad("the deadline has passed"));
        }
    }
    let asked = Produce { topic, key: body["key"].as_str().unwrap_or_default(), value, envelope: &envelope };
    broker.produce(&asked).map_err(|refusal| refused(broker.lie, &refusal))?;
    let status = if broker.lie == Lie::ProduceUnnamed { "ok" } else { "produced" };
    Ok(Answer::of(200, json!({ "status": status, "topic": topic })))
}

fn query_envelope(lie: Lie, query: &Value) -> Value {
    let mut envelope = Map::new();
    for name in ENVELOPE {
        let alias = match name {
            "tenant_id" if lie != Lie::AliasesUnknown => "tenant",
            "idempotency_key" if lie != Lie::AliasesUnknown => "idem_key",
            _ => name,
        };
        if let Some(value) = query.get(name).or_else(|| query.get(alias)) {
            envelope.insert(name.to_owned(), value.clone());
        }
    }
    let mut policy = Map::new();
    for name in POLICY {
        if let Some(value) = query.get(format!("retry_{name}")) {
            policy.insert(name.to_owned(), value.clone());
        }
    }
    if !policy.is_empty() && lie != Lie::RetryPolicyNotInQuery {
        envelope.insert("retry_policy".to_owned(), Value::Object(policy));
    }
    if envelope.is_empty() { Value::Null } else { Value::Object(envelope) }
}

fn refused(lie: Lie, refusal: &Refusal) -> Answer {
    match refusal {
        Refusal::Bad(why) => Answer::bad(why),
        Refusal::NoTopic => Answer::error(404, "NOT_FOUND", "no such topic"),
        Refusal::NotOwner => Answer::error(409, "FAILED_PRECONDITION", "not owner"),
        Refusal::Overloaded => {
            let mut answer = Answer::error(429, "RESOURCE_EXHAUSTED", "the partition is full");
            answer.body["reason"] = json!(if lie == Lie::OverloadUnnamed { "busy" } else { "overloaded" });
            answer.body["retry_after_ms"] = json!(1000);
            answer.status = if lie == Lie::OverloadIs503 { 503 } else { 429 };
            if lie != Lie::RetryAfterMissing {
                answer.headers.push(("Retry-After", "1".to_owned()));
            }
            answer
        }
    }
}

fn consume(broker: &Broker, request: &Request, socket: &TcpStream) -> Result<Answer, Answer> {
    let mut body = params(broker.lie, request, &["topic", "group", "owner", "lease_ms"])?;
    if broker.lie == Lie::StreamIgnoresBody && !request.body.is_empty() {
        body = json!({});
    }
    let (topic, owner) =
        (required(broker.lie, &body, "topic")?.to_owned(), required(broker.lie, &body, "owner")?.to_owned());
    let group = shared_group(broker.lie, required(broker.lie, &body, "group")?).to_owned();
    let lease_ms = match broker.lie {
        Lie::LeaseIgnored => 2_000,
        Lie::DefaultLeaseTooShort => body["lease_ms"].as_u64().unwrap_or(500),
        _ => body["lease_ms"].as_u64().unwrap_or(2_000),
    };
    let (consumer, boot) =
        broker.join(&topic, &group).ok_or_else(|| Answer::error(404, "NOT_FOUND", "no such topic"))?;
    let stream = Stream { topic, group, owner, consumer, boot };
    let plain = broker.lie == Lie::StreamIsPlainJson;
    let content_type = if plain { "application/json" } else { "application/x-ndjson; charset=utf-8" };
    let mut open = start_stream(socket, content_type).is_ok();
    while open {
        open = match broker.next(&stream, Duration::from_millis(lease_ms)) {
            Ok(Some(item)) => send_line(socket, &item).is_ok(),
            Ok(None) => is_open(socket),
            Err(()) => false,
        };
    }
    broker.leave(&stream.topic, &stream.group, consumer);
    // Nobody reads this: the stream has ended without a last chunk, as one does whose server is killed.
    let _ = socket.shutdown(std::net::Shutdown::Both);
    Err(Answer::bad("over"))
}

fn shared_group(lie: Lie, group: &str) -> &str {
    if lie == Lie::GroupsShareProgress { "everybody" } else { group }
}

fn settle(broker: &Broker, body: &Value, nack: bool) -> Result<Answer, Answer> {
    let (topic, owner) = (required(broker.lie, body, "topic")?, required(broker.lie, body, "owner")?);
    let group = shared_group(broker.lie, required(broker.lie, body, "group")?);
    body["partition"].as_i64().ok_or_else(|| missing(broker.lie, "partition"))?;
    let offset = body["offset"].as_i64().ok_or_else(|| missing(broker.lie, "offset"))?;
    let reason = nack.then(|| body["reason"].as_str().unwrap_or_default());
    broker.settle(topic, group, offset, owner, reason).map_err(|refusal| refused(broker.lie, &refusal))?;
    let status = if broker.lie == Lie::AckAnswers200 { 200 } else { 204 };
    Ok(Answer::of(status, json!({})))
}
