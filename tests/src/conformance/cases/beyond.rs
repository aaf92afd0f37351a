//! Beyond v1: routes and fields that DriftQ documents and the specification does not have. For a server without them
//! the cases are not applicable.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::expect::ensure_fields;
use crate::conformance::case::{Case, case};
use crate::conformance::probe::{AFTER_MEDIUM, LONG_MS, MEDIUM_MS, Probe, SILENCE};
use crate::conformance::verdict::{Finding, Verdict, brief, ensure, ensure_status, fail, not_applicable, pass};
use crate::http::{Reply, Request};

const TOPICS: &str = "Beyond v1: topics and names";
const GROUPS: &str = "Beyond v1: groups and leases";
const OPERATION: &str = "Beyond v1: operation";

pub(super) const CASES: &[Case] = &[
    case(TOPICS, "purge_removes_messages", "a purge removes what is there, for every group, and no more", purge),
    case(TOPICS, "topic_retention_changes", "PATCH of a topic changes its retention, and a GET shows it", retention),
    case(
        TOPICS,
        "topic_other_settings_named",
        "creating a topic again with another number of partitions is 409 and names the one it has",
        other_settings,
    ),
    case(TOPICS, "names_any_text", "a name may have slashes, spaces and @, percent-encoded in paths", names),
    case(
        GROUPS,
        "history_after_all_acked",
        "a new group gets, in order, what every group before it has acked",
        history_after_all_acked,
    ),
    case(GROUPS, "ephemeral_group", "a group of ephemeral=true ends with its last stream", ephemeral_group),
    case(GROUPS, "expire_ends_lease", "POST /v1/groups/expire ends a lease at once, as a failure", expire),
    case(
        GROUPS,
        "ack_cumulative_own",
        "a cumulative ack finishes everything of its owner up to the offset",
        cumulative_own,
    ),
    case(GROUPS, "ack_cumulative_others", "a cumulative ack leaves the leases of other owners", cumulative_others),
    case(OPERATION, "effects_listed", "effects are listed by tenant and status, with their identity", effects_listed),
    case(OPERATION, "config_shown", "GET /v1/config shows the limits in force", config),
    case(
        OPERATION,
        "hosts_private",
        "a Host that cannot be registered publicly is served: a single label, *.internal, *.local, *.svc",
        hosts_private,
    ),
    case(OPERATION, "hosts_foreign", "a server that refuses foreign Hosts reads them strictly", hosts_foreign),
    case(OPERATION, "referer_foreign", "a foreign Referer is refused as a foreign page", referer_foreign),
];

/// The reply, unless the server has no such route.
pub(super) fn supported(reply: Reply, route: &str) -> Result<Reply, Verdict> {
    match reply.status {
        404 | 405 | 501 => Err(not_applicable(format!("no {route}, which the specification does not require"))),
        _ => Ok(reply),
    }
}

fn purge(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce(&topic, "a")?;
    probe.produce(&topic, "b")?;
    let reply = supported(probe.query(&format!("/v1/topics/{topic}/purge"))?, "purge")?;
    ensure_status(&reply, 200, "a purge")?;
    ensure_fields(&reply, &json!({ "purged": 2 }))?;
    let mut late = probe.worker(&topic, "late", LONG_MS)?;
    late.expect_nothing(SILENCE, "nothing after a purge")?;
    probe.produce(&topic, "c")?;
    let item = late.next()?;
    ensure(item.value == "c", "the message produced after the purge", &item.json)?;
    pass("both are gone, and a later one is delivered")
}

fn retention(probe: &Probe<'_>) -> Finding {
    let path = format!("/v1/topics/{}", probe.topic(1)?);
    let reply = supported(probe.call("PATCH", &path, "{\"retention_ms\":61000}")?, "PATCH of a topic")?;
    ensure_status(&reply, 200, "a PATCH")?;
    let shown = probe.get(&path)?;
    ensure_fields(&shown, &json!({ "retention_ms": 61_000 }))?;
    pass("the new retention is shown")
}

fn other_settings(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(2)?;
    let reply = probe.post("/v1/topics", &json!({ "name": topic, "partitions": 7 }))?;
    if (200..300).contains(&reply.status) {
        return Err(not_applicable("a topic can be created again with other settings"));
    }
    ensure_status(&reply, 409, "a topic with other settings")?;
    let message = reply.json()["message"].as_str().unwrap_or_default().to_owned();
    ensure(message.contains("partition") && message.contains('2'), "the 2 partitions it has", brief(&reply))?;
    let same = probe.post("/v1/topics", &json!({ "name": topic, "partitions": 2 }))?;
    ensure(matches!(same.status, 200..=299), "the same settings to be accepted", brief(&same))?;
    pass(message)
}

/// Percent-encodes everything but ASCII alphanumerics and dashes.
fn encoded(text: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'-';
    text.bytes().map(|byte| if plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

fn names(probe: &Probe<'_>) -> Finding {
    let name = format!("{} orders/eu user@host \u{e9}", probe.name("t"));
    let reply = probe.post("/v1/topics", &json!({ "name": name, "partitions": 1 }))?;
    if reply.status == 400 {
        return Err(not_applicable("names are restricted, which the specification leaves open"));
    }
    ensure_fields(&reply, &json!({ "name": name }))?;
    let described = probe.get(&format!("/v1/topics/{}", encoded(&name)))?;
    ensure_fields(&described, &json!({ "name": name }))?;
    probe.produce(&name, "v")?;
    let (item, claim) = probe.take(&encoded(&name), &encoded("g/1 @"), LONG_MS)?;
    ensure(item.value == "v", "the message", &item.json)?;
    let mut body = claim.json();
    (body["topic"], body["group"]) = (json!(name), json!("g/1 @"));
    let acked = probe.post("/v1/ack", &body)?;
    ensure(matches!(acked.status, 200..=299), "the ack to succeed", brief(&acked))?;
    pass("created, described, consumed and acked")
}

fn history_after_all_acked(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce(&topic, "a")?;
    probe.produce(&topic, "b")?;
    for group in ["first", "second"] {
        let mut worker = probe.worker(&topic, group, LONG_MS)?;
        for item in worker.take(2)? {
            worker.ack(&item)?;
        }
    }
    let mut late = probe.worker(&topic, "late", LONG_MS)?;
    let values: Vec<String> = late.take(2)?.into_iter().map(|item| item.value).collect();
    ensure(values == ["a", "b"], "a, then b", format!("{values:?}"))?;
    pass("both, in order")
}

fn ephemeral_group(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    let listed = |name: &str| -> Result<bool, Verdict> {
        let reply = supported(probe.get(&format!("/v1/groups?topic={topic}"))?, "GET /v1/groups")?;
        Ok(reply.json()["groups"].as_array().into_iter().flatten().any(|group| group == name))
    };
    listed("passing")?;
    probe.produce(&topic, "v")?;
    let query = format!("/v1/consume?topic={topic}&group=passing&owner=w&lease_ms={LONG_MS}&ephemeral=true");
    let mut worker = probe.worker_with(&Request::get(&query), &topic, "passing", "w")?;
    worker.next()?;
    ensure(listed("passing")?, "the group while its stream is open", "none")?;
    drop(worker);
    let end = Instant::now() + probe.timeout();
    while listed("passing")? {
        ensure(Instant::now() < end, "the group to end with its stream", "that it stays")?;
        std::thread::sleep(Duration::from_millis(20));
    }
    pass("it is gone once its stream has ended")
}

fn expire(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce(&topic, "v")?;
    let mut worker = probe.worker(&topic, "g", LONG_MS)?;
    let item = worker.next()?;
    let body = json!({ "topic": topic, "group": "g", "partition": item.partition, "offset": item.offset });
    let reply = supported(probe.post("/v1/groups/expire", &body)?, "POST /v1/groups/expire")?;
    ensure_status(&reply, 204, "an expire")?;
    let again = worker.next()?;
    ensure(again.offset == item.offset, "the message again", &again.json)?;
    pass("delivered again at once")
}

fn cumulative_own(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce(&topic, "a")?;
    probe.produce(&topic, "b")?;
    let mut worker = probe.worker(&topic, "g", MEDIUM_MS)?;
    let items = worker.take(2)?;
    let last = items.last().ok_or_else(|| fail("two deliveries", "none"))?;
    let body = worker.claim(last).json();
    let reply = supported(probe.post("/v1/ack-cumulative", &body)?, "POST /v1/ack-cumulative")?;
    ensure_status(&reply, 204, "a cumulative ack")?;
    worker.expect_nothing(AFTER_MEDIUM, "both finished by one ack")?;
    pass("both are finished")
}

fn cumulative_others(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce(&topic, "a")?;
    let (first, _) = probe.take(&topic, "g", MEDIUM_MS)?;
    // The worker has left; a server that has not noticed would send it the next message, too.
    std::thread::sleep(Duration::from_millis(200));
    probe.produce(&topic, "b")?;
    let mut other = probe.worker(&topic, "g", LONG_MS)?;
    let second = other.next()?;
    if second.offset == first.offset {
        return Err(not_applicable("the first lease expired before the second delivery"));
    }
    let reply = probe.post("/v1/ack-cumulative", &other.claim(&second).json())?;
    ensure_status(&supported(reply, "POST /v1/ack-cumulative")?, 204, "a cumulative ack")?;
    let again = other.next()?;
    ensure(again.offset == first.offset, "the other owner's message, once its lease has expired", &again.json)?;
    other.expect_nothing(SILENCE, "nothing more")?;
    pass("the other owner's message is delivered again")
}

fn effects_listed(probe: &Probe<'_>) -> Finding {
    let tenant = probe.name("tenant");
    let mut tokens = Vec::new();
    for key in ["open", "ended"] {
        let body = json!({ "tenant_id": tenant, "scope": { "kind": "tenant" }, "key": key, "owner": "w", "lease_ms": LONG_MS });
        let reply = supported(probe.post("/v1/idempotency/begin", &body)?, "idempotency store over HTTP")?;
        tokens.push(reply.json()["lease_token"].clone());
    }
    let ended = json!({
        "tenant_id": tenant, "scope": { "kind": "tenant" }, "key": "ended", "lease_token": tokens[1], "status": "SUCCEEDED",
    });
    ensure_status(&probe.post("/v1/idempotency/finish", &ended)?, 200, "a finish")?;
    for (status, key) in [("IN_PROGRESS", "open"), ("SUCCEEDED", "ended")] {
        let query = format!("/v1/idempotency/list?tenant_id={tenant}&status={status}");
        let reply = supported(probe.get(&query)?, "GET /v1/idempotency/list")?;
        let listed = reply.json()["records"].as_array().cloned().unwrap_or_default();
        let keys: Vec<&Value> = listed.iter().map(|record| &record["key"]).collect();
        ensure(keys == [&json!(key)], format!("{key} alone with status {status}"), brief(&reply))?;
        ensure(listed[0]["tenant_id"] == *tenant, "its identity", brief(&reply))?;
    }
    pass("one with each status")
}

fn config(probe: &Probe<'_>) -> Finding {
    let reply = supported(probe.get("/v1/config")?, "GET /v1/config")?;
    ensure_status(&reply, 200, "GET /v1/config")?;
    let shown = reply.json();
    let has_limits = shown["limits"].as_object().is_some_and(|limits| !limits.is_empty());
    ensure(has_limits, "an object with limits", brief(&reply))?;
    pass("an object with limits")
}

/// The status of a GET with this header.
fn status_with(probe: &Probe<'_>, header: (&str, &str)) -> Result<u16, Verdict> {
    Ok(probe.send("GET", "/v1/topics", &[header], "")?.status)
}

fn hosts_private(probe: &Probe<'_>) -> Finding {
    for host in
        ["driftqd", "driftqd:8080", "broker.internal", "mac.local", "x.localhost", "q.ns.svc", "q.svc.cluster.local"]
    {
        let status = status_with(probe, ("Host", host))?;
        ensure(status == 200, format!("200 to Host: {host}"), status)?;
    }
    pass("all are served")
}

fn hosts_foreign(probe: &Probe<'_>) -> Finding {
    if status_with(probe, ("Host", "evil.example"))? == 200 {
        return Err(not_applicable("any Host is served, which the specification allows"));
    }
    for host in ["[127.0.0.1]evil.com", "localhost:80@evil", "localhost.evil.com", "127.0.0.1.evil.com"] {
        let status = status_with(probe, ("Host", host))?;
        ensure((400..500).contains(&status), format!("Host: {host} to be refused"), status)?;
    }
    pass("all are refused")
}

fn referer_foreign(probe: &Probe<'_>) -> Finding {
    if status_with(probe, ("Host", "evil.example"))? == 200 {
        return Err(not_applicable("any Host is served, which the specification allows"));
    }
    let status = status_with(probe, ("Referer", "http://evil.example/page"))?;
    ensure((400..500).contains(&status), "a foreign Referer to be refused", status)?;
    pass("it is refused")
}
