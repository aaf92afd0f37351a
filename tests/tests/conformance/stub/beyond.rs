//! Routes and fields beyond v1, as DriftQ documents them.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::Defect;
use super::broker::{Broker, Failure, Produce, Refusal};
use super::routes::{bad_json, missing, params, refused, required};
use super::wire::{Request, Response, decoded};

/// Ends of names that cannot be registered publicly.
const PRIVATE_ENDS: [&str; 5] = [".internal", ".local", ".localhost", ".svc", ".cluster.local"];

/// The refusal of a foreign host or page.
pub(super) fn refuse_host(defect: Defect, request: &Request) -> Option<Response> {
    let referer = request.referer.split("//").nth(1).and_then(|rest| rest.split('/').next());
    let is_foreign_page = referer.is_some_and(|host| host != request.host) && defect != Defect::RefererIgnored;
    (is_foreign_page || !is_allowed(defect, &request.host))
        .then(|| Response::error(403, "PERMISSION_DENIED", "a foreign host"))
}

fn is_allowed(defect: Defect, host: &str) -> bool {
    let (name, port) = host.rsplit_once(':').unwrap_or((host, "80"));
    if defect == Defect::HostsParsedLoosely && ["localhost", "[127.0.0.1]"].iter().any(|start| host.starts_with(start))
    {
        return true;
    }
    let is_name = name.chars().all(|char| char.is_ascii_alphanumeric() || matches!(char, '.' | '-' | '_'));
    let is_private = !name.contains('.') || PRIVATE_ENDS.iter().any(|end| name.ends_with(end));
    let is_private = is_private && (defect != Defect::PrivateHostsRefused || name == "localhost");
    let is_loopback = name.parse::<IpAddr>().is_ok_and(|addr| addr.is_loopback());
    port.parse::<u16>().is_ok() && is_name && (is_private || is_loopback)
}

pub(super) fn topic_name(defect: Defect, name: &str) -> &str {
    if defect == Defect::NameCutAtSlash { name.split('/').next().unwrap_or_default() } else { name }
}

/// A topic that exists with other settings.
pub(super) fn conflict(defect: Defect, partitions: i64) -> Response {
    let mut response = Response::error(409, "ALREADY_EXISTS", "it exists");
    if defect != Defect::ConflictUnnamed {
        response.body["message"] = json!(format!("topic exists with partitions {partitions}"));
    }
    response
}

pub(super) fn respond(broker: &Broker, request: &Request) -> Result<Response, Response> {
    let no_route = || Response::error(404, "NOT_FOUND", "no such route");
    let path = request.path.strip_prefix("/v1/").ok_or_else(no_route)?;
    match (request.method.as_str(), path) {
        ("POST", "complete") => complete(broker, request),
        ("POST", "ack-cumulative") => ack_cumulative(broker, request),
        ("POST", "groups/expire") => expire(broker, request),
        ("GET", "groups") => groups(broker, request),
        ("GET", "config") if broker.defect == Defect::ConfigEmpty => Ok(Response::new(200, json!({}))),
        ("GET", "config") => Ok(Response::new(200, json!({ "limits": { "lease_ms": 2000 } }))),
        ("GET", "idempotency/list") => {
            let of = |name: &str| request.query.get(name).map_or("", String::as_str);
            Ok(broker.lock().store.list(broker.defect, of("tenant_id"), of("status")))
        }
        (method, path) => {
            let rest = path.strip_prefix("topics/").ok_or_else(no_route)?;
            match (method, rest.strip_suffix("/purge")) {
                ("POST", Some(topic)) => purge(broker, &decoded(topic)),
                ("GET" | "PATCH", None) => describe(broker, request, &decoded(rest)),
                _ => Err(no_route()),
            }
        }
    }
}

fn purge(broker: &Broker, name: &str) -> Result<Response, Response> {
    let mut state = broker.lock();
    let topic = state.topics.get_mut(name).ok_or_else(|| refused(broker.defect, &Refusal::NoTopic))?;
    let purged = topic.messages.len();
    if broker.defect != Defect::PurgeKeepsMessages {
        topic.messages.clear();
    }
    Ok(Response::new(200, json!({ "purged": purged })))
}

fn describe(broker: &Broker, request: &Request, name: &str) -> Result<Response, Response> {
    let mut state = broker.lock();
    let topic = state.topics.get_mut(name).ok_or_else(|| refused(broker.defect, &Refusal::NoTopic))?;
    let mut shown = topic.retention_ms.clone();
    if request.method == "PATCH" {
        shown = params(broker.defect, request, &["retention_ms", "retention_bytes"])?["retention_ms"].clone();
        if broker.defect != Defect::PatchForgotten {
            topic.retention_ms = shown.clone();
        }
    }
    Ok(Response::new(200, json!({ "name": name, "retention_ms": shown })))
}

fn groups(broker: &Broker, request: &Request) -> Result<Response, Response> {
    let state = broker.lock();
    let topic = request.query.get("topic").and_then(|name| state.topics.get(name));
    let topic = topic.ok_or_else(|| refused(broker.defect, &Refusal::NoTopic))?;
    Ok(Response::new(200, json!({ "groups": topic.groups.keys().collect::<Vec<_>>() })))
}

/// The message that a body names.
struct Named<'a> {
    topic: &'a str,
    group: &'a str,
    offset: i64,
}

fn named(defect: Defect, body: &Value) -> Result<Named<'_>, Response> {
    let offset = body["offset"].as_i64().ok_or_else(|| missing(defect, "offset"))?;
    Ok(Named { topic: required(defect, body, "topic")?, group: required(defect, body, "group")?, offset })
}

fn expire(broker: &Broker, request: &Request) -> Result<Response, Response> {
    let body = params(broker.defect, request, &["topic", "group", "partition", "offset"])?;
    let Named { topic, group, offset } = named(broker.defect, &body)?;
    if broker.defect != Defect::ExpireIgnored {
        broker.fail(&mut broker.lock(), topic, group, offset, Failure::Expired);
    }
    Ok(Response::new(204, Value::Null))
}

fn ack_cumulative(broker: &Broker, request: &Request) -> Result<Response, Response> {
    let body = params(broker.defect, request, &["topic", "group", "partition", "offset", "owner"])?;
    let Named { topic, group, offset } = named(broker.defect, &body)?;
    let owner = required(broker.defect, &body, "owner")?;
    let mut state = broker.lock();
    let topic = state.topics.get_mut(topic).ok_or_else(|| refused(broker.defect, &Refusal::NoTopic))?;
    let of_partition =
        |offset: &i64| topic.messages.get(offset).is_some_and(|known| body["partition"] == known.partition);
    let group = topic.groups.get_mut(group).ok_or_else(|| refused(broker.defect, &Refusal::NotOwner))?;
    for (at, progress) in group.progress.range_mut(..=offset).filter(|(at, _)| of_partition(at)) {
        let is_own = progress.owner == owner || broker.defect == Defect::CumulativeAcksOthers;
        if is_own && (*at == offset || broker.defect != Defect::CumulativeAcksOne) {
            (progress.done, progress.lease_until) = (true, None);
        }
    }
    Ok(Response::new(204, Value::Null))
}

fn complete(broker: &Broker, request: &Request) -> Result<Response, Response> {
    let known = ["topic", "group", "partition", "offset", "owner", "lease_token", "result", "produce"];
    let known = [&known[..], &["dead_letter", "last_error"]].concat();
    let body = params(broker.defect, request, &known)?;
    let Named { topic, group, offset } = named(broker.defect, &body)?;
    let owner = required(broker.defect, &body, "owner")?;
    if broker.is_stale(topic, group, offset, required(broker.defect, &body, "lease_token")?) {
        return Err(Response::error(409, "FAILED_PRECONDITION", "stale lease"));
    }
    let is_dead = body["dead_letter"] == true && broker.defect != Defect::CompleteDeadLetterAcks;
    let failure = is_dead.then(|| Failure::Final(body["last_error"].as_str().unwrap_or_default()));
    let refuse = |refusal: Refusal| refused(broker.defect, &refusal);
    broker.settle(topic, group, offset, owner, failure).map_err(refuse)?;
    let mut produced = Vec::new();
    for output in body["produce"].as_array().into_iter().flatten() {
        let text = |name: &str| output[name].as_str().unwrap_or_default();
        let message = Produce {
            topic: text("topic"),
            key: text("key"),
            value: text("value"),
            field: "value",
            envelope: &output["envelope"],
        };
        broker.produce(&message).map_err(refuse)?;
        produced.push(json!({ "topic": text("topic") }));
    }
    Ok(Response::new(200, json!({ "produced": produced })))
}

/// Finishes an effect, and with it the message of a delivery.
pub(super) fn finish(broker: &Broker, request: &Request) -> Result<Response, Response> {
    let body: Value = serde_json::from_str(&request.body).map_err(|_| bad_json(broker.defect))?;
    let finished = broker.lock().store.respond(broker.defect, request);
    let is_dead = body["dead_letter"] == true && broker.defect != Defect::FinishDeadLetterIgnored;
    if finished.status == 200 && is_dead {
        let of = |name: &str| body["scope"][name].as_str().unwrap_or_default();
        let offset = body["delivery"]["offset"].as_i64().unwrap_or(-1);
        let why = Failure::Final(body["last_error"].as_str().unwrap_or_default());
        broker.fail(&mut broker.lock(), of("topic"), of("group"), offset, why);
    }
    Ok(finished)
}
