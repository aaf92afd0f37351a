//! The `/v1` routes.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::Defect;
use super::beyond;
use super::broker::{Broker, Failure, Produce, Refusal, Topic};
use super::wire::{Request, Response, is_open, send_line, start_stream};

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

/// An open stream.
pub(super) struct Stream {
    pub(super) topic: String,
    pub(super) group: String,
    pub(super) owner: String,
    pub(super) consumer: u64,
    pub(super) boot: u64,
}

pub(super) fn serve(broker: &Broker, socket: &TcpStream) -> io::Result<()> {
    let mut request = Request::read(socket)?;
    if broker.defect == Defect::UnversionedServed && !request.path.starts_with("/v1/") {
        request.path = format!("/v1{}", request.path);
    }
    let response = match beyond::refuse_host(broker.defect, &request) {
        None if request.is_batch => Ok(batch(broker, &request, socket)),
        None => respond(broker, &request, socket),
        Some(refusal) => Err(refusal),
    };
    match response {
        Ok(response) => response.write(socket),
        Err(mut refusal) => {
            if broker.defect == Defect::ErrorsWithoutCode && refusal.status == 400 {
                refusal.body = json!({ "reason": refusal.body["message"] });
            }
            refusal.write(socket)
        }
    }
}

/// One response line for each line of the request.
fn batch(broker: &Broker, request: &Request, socket: &TcpStream) -> Response {
    let mut lines = String::new();
    for line in request.body.lines() {
        let reply = respond(broker, &request.of_line(line), socket).unwrap_or_else(|refusal| refusal);
        let mut body = if reply.status == 204 { json!({}) } else { reply.body };
        body["status"] = json!(reply.status);
        lines += &format!("{body}\n");
        if reply.status == 400 && broker.defect == Defect::BatchEndsAtBadLine {
            break;
        }
    }
    Response { lines: Some(lines), ..Response::new(200, Value::Null) }
}

fn respond(broker: &Broker, request: &Request, socket: &TcpStream) -> Result<Response, Response> {
    let defect = broker.defect;
    let allowed = match request.path.as_str() {
        "/v1/healthz" | "/v1/version" | "/v1/consume" | "/v1/idempotency" => "GET",
        "/v1/topics" => "GET, POST",
        "/v1/produce" | "/v1/ack" | "/v1/nack" | "/v1/idempotency/begin" | "/v1/idempotency/finish" => "POST",
        _ => return beyond::respond(broker, request),
    };
    if !allowed.split(", ").any(|method| method == request.method) {
        let mut refusal = Response::error(405, "METHOD_NOT_ALLOWED", "not with this method");
        refusal.status = if defect == Defect::WrongMethodIs404 { 404 } else { 405 };
        if defect != Defect::NoAllowHeader {
            refusal.headers.push(("Allow", allowed.to_owned()));
        }
        return Err(refusal);
    }
    match (request.method.as_str(), request.path.as_str()) {
        (_, "/v1/healthz") => Ok(Response::new(
            200,
            if defect == Defect::HealthzNotObject { json!("ok") } else { json!({ "status": "ok" }) },
        )),
        (_, "/v1/version") => {
            let commit = if defect == Defect::VersionWithoutCommit { Value::Null } else { json!("unknown") };
            Ok(Response::new(200, json!({ "version": "stub", "commit": commit, "wal_enabled": true })))
        }
        ("GET", "/v1/topics") => {
            let mut names: Vec<String> = broker.lock().topics.keys().cloned().collect();
            if defect == Defect::TopicListedTwice {
                names.extend(names.clone());
            }
            Ok(Response::new(200, json!({ "topics": names })))
        }
        (_, "/v1/topics") => create(broker, &params(defect, request, &["name", "partitions"])?),
        (_, "/v1/produce") => produce(broker, request),
        (_, "/v1/consume") => consume(broker, request, socket),
        (_, "/v1/ack") => settle(broker, &params(defect, request, &[&CLAIM[..5], &["lease_token"]].concat())?, false),
        (_, "/v1/nack") => {
            settle(broker, &params(defect, request, &[&CLAIM[..], &["retryable", "lease_token"]].concat())?, true)
        }
        (_, "/v1/idempotency/finish") => beyond::finish(broker, request),
        ("POST", _) if serde_json::from_str::<Value>(&request.body).is_err() => Err(bad_json(defect)),
        _ => Ok(broker.lock().store.respond(defect, request)),
    }
}

/// The body's fields, or the query's where there is no body.
pub(super) fn params(defect: Defect, request: &Request, known: &[&str]) -> Result<Value, Response> {
    if request.body.is_empty() {
        let mut fields = Map::new();
        for (name, text) in &request.query {
            let number = text.parse::<i64>().ok().filter(|_| NUMBERS.contains(&name.trim_start_matches("retry_")));
            fields.insert(name.clone(), number.map_or_else(|| json!(text), |number| json!(number)));
        }
        return Ok(Value::Object(fields));
    }
    let body: Value = serde_json::from_str(&request.body).map_err(|_| bad_json(defect))?;
    only(defect, &body, known)?;
    Ok(body)
}

fn only(defect: Defect, body: &Value, known: &[&str]) -> Result<(), Response> {
    let fields = body.as_object().ok_or_else(|| bad_json(defect))?;
    let unknown = fields.keys().any(|name| !known.contains(&name.as_str()));
    if unknown && defect != Defect::UnknownFieldsAccepted { Err(Response::invalid("unknown field")) } else { Ok(()) }
}

pub(super) fn bad_json(defect: Defect) -> Response {
    if defect == Defect::BadJsonIs500 {
        Response::error(500, "INTERNAL", "bad JSON")
    } else {
        Response::invalid("bad JSON")
    }
}

pub(super) fn missing(defect: Defect, name: &str) -> Response {
    let status = if defect == Defect::MissingFieldsAre404 { 404 } else { 400 };
    Response::error(status, "INVALID_ARGUMENT", &format!("{name} is missing"))
}

pub(super) fn required<'v>(defect: Defect, body: &'v Value, name: &str) -> Result<&'v str, Response> {
    body[name].as_str().filter(|text| !text.is_empty()).ok_or_else(|| missing(defect, name))
}

fn create(broker: &Broker, body: &Value) -> Result<Response, Response> {
    let name = required(broker.defect, body, "name")?;
    let partitions = body["partitions"].as_i64().unwrap_or(1);
    if partitions < 1 && broker.defect != Defect::ZeroPartitions {
        return Err(Response::invalid("partitions must be at least 1"));
    }
    let name = beyond::topic_name(broker.defect, name);
    if let Some(known) = broker.lock().topics.get(name)
        && known.partitions != partitions
    {
        return Err(beyond::conflict(broker.defect, known.partitions));
    }
    broker.lock().topics.entry(name.to_owned()).or_insert_with(|| Topic::of(partitions));
    let status = if broker.defect == Defect::TopicCreatedWith200 { 200 } else { 201 };
    Ok(Response::new(status, json!({ "status": "created", "name": name, "partitions": partitions })))
}

fn produce(broker: &Broker, request: &Request) -> Result<Response, Response> {
    let body = params(broker.defect, request, &["topic", "key", "value", "value_base64", "envelope"])?;
    let field = if body["value_base64"].is_string() { "value_base64" } else { "value" };
    let (topic, value) = (required(broker.defect, &body, "topic")?, required(broker.defect, &body, field)?);
    let value = if field != "value" && broker.defect == Defect::Base64Lossy { "77+9" } else { value };
    let envelope =
        if request.body.is_empty() { query_envelope(broker.defect, &body) } else { body["envelope"].clone() };
    if envelope.is_object() {
        let labels = if broker.defect == Defect::LabelsDropped { &["labels"][..] } else { &[] };
        only(broker.defect, &envelope, &[&ENVELOPE[..], labels].concat())?;
    }
    if envelope["retry_policy"].is_object() {
        only(broker.defect, &envelope["retry_policy"], &POLICY)?;
    }
    if let Some(deadline) = envelope["deadline"].as_str() {
        // The year suffices for the suite.
        let year: Option<u32> = deadline.get(..4).and_then(|year| year.parse().ok());
        let passed = match year {
            None if broker.defect != Defect::MalformedDeadlineAccepted => {
                return Err(Response::invalid("bad deadline"));
            }
            None => false,
            Some(year) => year < 2026 || broker.defect == Defect::DeadlineAlwaysPassed,
        };
        if passed && broker.defect != Defect::DeadlineIgnored {
            return Err(Response::invalid("the deadline has passed"));
        }
    }
    let produce = Produce { topic, key: body["key"].as_str().unwrap_or_default(), value, field, envelope: &envelope };
    let already_done = broker.produce(&produce).map_err(|refusal| refused(broker.defect, &refusal))?;
    let status = if broker.defect == Defect::ProduceStatusWrong { "ok" } else { "produced" };
    let mut response = Response::new(200, json!({ "status": status, "topic": topic }));
    if already_done && broker.defect != Defect::AlreadyDoneUntold {
        response.body["already_done"] = json!(true);
    }
    Ok(response)
}

fn query_envelope(defect: Defect, query: &Value) -> Value {
    let mut envelope = Map::new();
    for name in ENVELOPE {
        let alias = match name {
            "tenant_id" if defect != Defect::AliasesUnknown => "tenant",
            "idempotency_key" if defect != Defect::AliasesUnknown => "idem_key",
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
    if !policy.is_empty() && defect != Defect::RetryPolicyNotInQuery {
        envelope.insert("retry_policy".to_owned(), Value::Object(policy));
    }
    if envelope.is_empty() { Value::Null } else { Value::Object(envelope) }
}

pub(super) fn refused(defect: Defect, refusal: &Refusal) -> Response {
    match refusal {
        Refusal::Invalid(why) => Response::invalid(why),
        Refusal::NoTopic => Response::error(404, "NOT_FOUND", "no such topic"),
        Refusal::NotOwner => Response::error(409, "FAILED_PRECONDITION", "not owner"),
        Refusal::Overloaded => {
            let mut response = Response::error(429, "RESOURCE_EXHAUSTED", "the partition is full");
            response.body["reason"] = json!(if defect == Defect::OverloadReasonWrong { "busy" } else { "overloaded" });
            response.body["retry_after_ms"] = json!(1000);
            response.status = if defect == Defect::OverloadIs503 { 503 } else { 429 };
            if defect != Defect::RetryAfterMissing {
                response.headers.push(("Retry-After", "1".to_owned()));
            }
            response
        }
    }
}

fn consume(broker: &Broker, request: &Request, socket: &TcpStream) -> Result<Response, Response> {
    let mut body = params(broker.defect, request, &["topic", "group", "owner", "lease_ms"])?;
    if broker.defect == Defect::StreamIgnoresBody && !request.body.is_empty() {
        body = json!({});
    }
    let (topic, owner) =
        (required(broker.defect, &body, "topic")?.to_owned(), required(broker.defect, &body, "owner")?.to_owned());
    let group = shared_group(broker.defect, required(broker.defect, &body, "group")?).to_owned();
    let lease_ms = match broker.defect {
        Defect::LeaseIgnored => 2_000,
        Defect::DefaultLeaseTooShort => body["lease_ms"].as_u64().unwrap_or(500),
        _ => body["lease_ms"].as_u64().unwrap_or(2_000),
    };
    let (consumer, boot) =
        broker.join(&topic, &group).ok_or_else(|| Response::error(404, "NOT_FOUND", "no such topic"))?;
    if body["ephemeral"] == "true"
        && let Some(group) = broker.lock().topics.get_mut(&topic).and_then(|topic| topic.groups.get_mut(&group))
    {
        group.is_ephemeral = true;
    }
    let stream = Stream { topic, group, owner, consumer, boot };
    let plain = broker.defect == Defect::StreamIsPlainJson;
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
    // The stream ends without a last chunk, as with a killed server. The response below is not read.
    let _ = socket.shutdown(std::net::Shutdown::Both);
    Err(Response::invalid("ended"))
}

fn shared_group(defect: Defect, group: &str) -> &str {
    if defect == Defect::GroupsShareProgress { "shared" } else { group }
}

fn settle(broker: &Broker, body: &Value, nack: bool) -> Result<Response, Response> {
    let (topic, owner) = (required(broker.defect, body, "topic")?, required(broker.defect, body, "owner")?);
    let group = shared_group(broker.defect, required(broker.defect, body, "group")?);
    body["partition"].as_i64().ok_or_else(|| missing(broker.defect, "partition"))?;
    let offset = body["offset"].as_i64().ok_or_else(|| missing(broker.defect, "offset"))?;
    let reason = body["reason"].as_str().unwrap_or_default();
    let is_final = body["retryable"] == false && broker.defect != Defect::RetryableIgnored;
    let failure = if is_final { Failure::Final(reason) } else { Failure::Nacked(reason) };
    if let Some(shown) = body["lease_token"].as_str().filter(|_| broker.defect != Defect::OldTokenAccepted)
        && broker.is_stale(topic, group, offset, shown)
    {
        return Err(Response::error(409, "FAILED_PRECONDITION", "stale lease"));
    }
    broker
        .settle(topic, group, offset, owner, nack.then_some(failure))
        .map_err(|refusal| refused(broker.defect, &refusal))?;
    let status = if broker.defect == Defect::AckAnswers200 { 200 } else { 204 };
    Ok(Response::new(status, json!({})))
}
