//! HTTP API Reference: health, version, topics, and the form of errors.

use serde_json::{Value, json};

use super::expect::{ensure_fields, ensure_refused};
use crate::conformance::case::{Case, case};
use crate::conformance::probe::{LONG_MS, Probe};
use crate::conformance::verdict::{Finding, Verdict, brief, ensure, ensure_status, pass};
use crate::http::Reply;

const HEALTH: &str = "HTTP API: health and version";
const TOPICS: &str = "HTTP API: topics";
const ERRORS: &str = "HTTP API: errors and routes";

pub(super) const CASES: &[Case] = &[
    case(HEALTH, "healthz", "GET /v1/healthz returns 200 {\"status\":\"ok\"}", healthz),
    case(HEALTH, "version", "GET /v1/version returns 200 with version, commit and wal_enabled", version),
    case(
        TOPICS,
        "create_topic_by_json",
        "POST /v1/topics with a JSON body returns 201 with status, name and partitions",
        create_by_json,
    ),
    case(
        TOPICS,
        "create_topic_by_query",
        "POST /v1/topics?name=&partitions= returns 201 with status, name and partitions",
        create_by_query,
    ),
    case(TOPICS, "list_topics", "GET /v1/topics returns 200 with the names as a list of strings", list),
    case(
        TOPICS,
        "create_topic_without_a_name",
        "POST /v1/topics without a name is refused with 400",
        create_without_name,
    ),
    case(
        TOPICS,
        "create_topic_unknown_field",
        "POST /v1/topics with an unknown field is refused with 400",
        create_unknown_field,
    ),
    case(ERRORS, "error_shape", "an error is {\"error\": CODE, \"message\": text}", error_shape),
    case(ERRORS, "malformed_json", "a body that is not JSON is refused with 400", malformed_json),
    case(ERRORS, "method_not_allowed", "a route returns 405 for a method it does not support", method_not_allowed),
    case(
        ERRORS,
        "method_not_allowed_allow",
        "405 responses have an Allow header with the route's methods",
        allow_header,
    ),
    case(ERRORS, "unversioned_reads", "GET routes without /v1 are blocked", unversioned_reads),
    case(ERRORS, "unversioned_writes", "POST routes without /v1 are blocked and do nothing", unversioned_writes),
];

fn healthz(probe: &Probe<'_>) -> Finding {
    let reply = probe.get("/v1/healthz")?;
    ensure_status(&reply, 200, "GET /v1/healthz")?;
    ensure_fields(&reply, &json!({ "status": "ok" }))?;
    pass(brief(&reply))
}

fn version(probe: &Probe<'_>) -> Finding {
    let reply = probe.get("/v1/version")?;
    ensure_status(&reply, 200, "GET /v1/version")?;
    let json = reply.json();
    let shaped = json["version"].is_string() && json["commit"].is_string() && json["wal_enabled"].is_boolean();
    ensure(shaped, "version and commit as strings, wal_enabled as a boolean", brief(&reply))?;
    pass(brief(&reply))
}

fn created(reply: &Reply, name: &str) -> Finding {
    ensure_status(reply, 201, "POST /v1/topics")?;
    ensure_fields(reply, &json!({ "status": "created", "name": name, "partitions": 3 }))?;
    pass("201 with status, name and partitions")
}

fn create_by_json(probe: &Probe<'_>) -> Finding {
    let name = probe.name("t");
    created(&probe.post("/v1/topics", &json!({ "name": name, "partitions": 3 }))?, &name)
}

fn create_by_query(probe: &Probe<'_>) -> Finding {
    let name = probe.name("t");
    created(&probe.query(&format!("/v1/topics?name={name}&partitions=3"))?, &name)
}

fn list(probe: &Probe<'_>) -> Finding {
    let names = [probe.topic(1)?, probe.topic(2)?];
    let reply = probe.get("/v1/topics")?;
    ensure_status(&reply, 200, "GET /v1/topics")?;
    let json = reply.json();
    let listed = json["topics"].as_array().cloned().unwrap_or_default();
    ensure(!listed.is_empty() && listed.iter().all(Value::is_string), "a list of strings", brief(&reply))?;
    for name in &names {
        let times = listed.iter().filter(|listed| *listed == name).count();
        ensure(times == 1, "each topic once", format!("{name} {times} times"))?;
    }
    pass("both new topics, once each")
}

fn create_without_name(probe: &Probe<'_>) -> Finding {
    ensure_status(&probe.post("/v1/topics", &json!({ "partitions": 1 }))?, 400, "a topic without a name")?;
    ensure_status(&probe.query("/v1/topics?partitions=1")?, 400, "a topic without a name, by query")?;
    pass("400 by JSON and by query")
}

fn create_unknown_field(probe: &Probe<'_>) -> Finding {
    let name = probe.name("t");
    let reply = probe.post("/v1/topics", &json!({ "name": name, "partitions": 1, "colour": "red" }))?;
    ensure_status(&reply, 400, "an unknown field")?;
    ensure(!probe.topics()?.contains(&name), "no topic created by a refused request", "one")?;
    pass("400, and no topic")
}

fn error_shape(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce(&topic, "v")?;
    let (_, claim) = probe.take(&topic, "g", LONG_MS)?;
    let replies = [
        probe.post("/v1/topics", &json!({}))?,
        probe.query("/v1/produce")?,
        probe.get("/v1/consume")?,
        probe.ack(&claim.by("other-owner"))?,
    ];
    for reply in &replies {
        ensure_refused(reply, "an invalid request")?;
        let json = reply.json();
        let code = json["error"].as_str().unwrap_or_default();
        let code_like = !code.is_empty() && code.chars().all(|char| char.is_ascii_uppercase() || char == '_');
        let described = json["message"].as_str().is_some_and(|message| !message.is_empty());
        ensure(code_like && described, "{\"error\": CODE, \"message\": text}", brief(reply))?;
    }
    pass(format!("{} errors of that shape", replies.len()))
}

fn malformed_json(probe: &Probe<'_>) -> Finding {
    for route in ["/v1/topics", "/v1/produce", "/v1/ack", "/v1/nack"] {
        for body in ["{", "{\"topic\":", "nonsense", "[1]"] {
            ensure_status(&probe.call("POST", route, body)?, 400, &format!("POST {route} of {body}"))?;
        }
    }
    pass("400 on every route")
}

/// Methods that routes do not support, and those they do.
const UNSUPPORTED: [(&str, &str, &[&str]); 8] = [
    ("DELETE", "/v1/healthz", &["GET"]),
    ("POST", "/v1/healthz", &["GET"]),
    ("POST", "/v1/version", &["GET"]),
    ("PUT", "/v1/topics", &["GET", "POST"]),
    ("GET", "/v1/produce", &["POST"]),
    ("DELETE", "/v1/consume", &["GET"]),
    ("GET", "/v1/ack", &["POST"]),
    ("GET", "/v1/nack", &["POST"]),
];

fn method_not_allowed(probe: &Probe<'_>) -> Finding {
    for (method, route, _) in UNSUPPORTED {
        ensure_status(&probe.call(method, route, "")?, 405, &format!("{method} {route}"))?;
    }
    pass("405 on every route")
}

fn allow_header(probe: &Probe<'_>) -> Finding {
    for (method, route, allowed) in UNSUPPORTED {
        let reply = probe.call(method, route, "")?;
        ensure(reply.status >= 400, format!("{method} {route} to be refused"), brief(&reply))?;
        let header = reply.header("allow").unwrap_or("no Allow header");
        let named: Vec<&str> = header.split(',').map(str::trim).collect();
        let complete = allowed.iter().all(|method| named.contains(method)) && !named.contains(&method);
        ensure(complete, format!("Allow: {} from {route}", allowed.join(", ")), header)?;
    }
    pass("Allow on every route")
}

fn unversioned_reads(probe: &Probe<'_>) -> Finding {
    for route in ["/healthz", "/version", "/topics", "/consume?topic=t&group=g&owner=w"] {
        ensure_refused(&probe.get(route)?, &format!("GET {route}"))?;
    }
    pass("none is served")
}

fn unversioned_writes(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    let name = probe.name("t");
    let refused =
        |reply: &Reply, route: &str| -> Result<(), Verdict> { ensure_refused(reply, &format!("POST {route}")) };
    refused(&probe.post("/topics", &json!({ "name": name, "partitions": 1 }))?, "/topics")?;
    refused(&probe.post("/produce", &json!({ "topic": topic, "value": "v" }))?, "/produce")?;
    let claim = json!({ "topic": topic, "group": "g", "partition": 0, "offset": 0, "owner": "w" });
    for route in ["/ack", "/nack"] {
        refused(&probe.post(route, &claim)?, route)?;
    }
    ensure(!probe.topics()?.contains(&name), "no topic created by a blocked route", "one")?;
    let items = probe.drain(&topic, "g")?;
    ensure(items.is_empty(), "no message produced by a blocked route", format!("{} of them", items.len()))?;
    pass("none is served")
}
