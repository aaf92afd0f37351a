//! Every operation of the API, asked with every kind of key.
//!
//! The operations and the permission of each come from the OpenAPI document, which is compared with the route table in
//! the server's own tests. What each needs is written here once more: a permission that is wrong in both would not be
//! found otherwise.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::support::{Key, Keyed, VERBS};
use crate::harness::wait_until;
use crate::openapi::document;

/// An operation, a request for it, and the expected statuses of an administrator and of another tenant's key with every
/// grant there.
struct Case {
    method: &'static str,
    path: &'static str,
    permission: &'static str,
    /// What replaces the path, if it has parameters or the operation needs a query.
    target: &'static str,
    body: Value,
    admin: u16,
    other_tenant: u16,
}

fn cases() -> Vec<Case> {
    let case = |method, path, permission, target: &'static str, body, (admin, other_tenant)| {
        let target = if target.is_empty() { path } else { target };
        Case { method, path, permission, target, body, admin, other_tenant }
    };
    let none = || Value::Null;
    // The message that the consume before has got.
    let claim = || json!({ "topic": "t", "group": "g", "partition": 0, "offset": 0, "owner": "o" });
    let with = |mut object: Value, name: &str, value: Value| {
        object[name] = value;
        object
    };
    let group = |name: &str| json!({ "topic": "t", "group": name });
    let effect = |key: &str| json!({ "scope": { "kind": "tenant" }, "key": key });
    // Nothing is stored for an empty key.
    let begin = || with(effect(""), "owner", json!("o"));
    let token = || json!("0000000000000000-0000000000000000");
    let absent = "0123456789ab";
    vec![
        case("GET", "/v1/healthz", "open", "", none(), (200, 200)),
        case("GET", "/v1/readyz", "open", "", none(), (200, 200)),
        case("GET", "/v1/version", "key", "", none(), (200, 200)),
        case("GET", "/v1/openapi.json", "key", "", none(), (200, 200)),
        case("GET", "/v1/config", "inspect", "", none(), (200, 403)),
        case("GET", "/v1/chaos", "inspect", "", none(), (404, 404)),
        case("GET", "/v1/digest", "admin", "", none(), (200, 403)),
        case("GET", "/metrics", "inspect", "", none(), (200, 200)),
        case("GET", "/v1/topics", "inspect", "", none(), (200, 200)),
        case("POST", "/v1/topics", "operate", "", json!({ "name": "new" }), (201, 201)),
        case("GET", "/v1/topics/{topic}", "inspect", "/v1/topics/t", none(), (200, 404)),
        case("PATCH", "/v1/topics/{topic}", "operate", "/v1/topics/t", json!({ "retention_ms": 9 }), (200, 404)),
        case("DELETE", "/v1/topics/{topic}", "operate", "/v1/topics/doomed", none(), (204, 404)),
        case("POST", "/v1/topics/{topic}/purge", "operate", "/v1/topics/doomed/purge", none(), (200, 404)),
        case("POST", "/v1/produce", "produce", "", json!({ "topic": "t", "value": "v" }), (200, 404)),
        case(
            "GET",
            "/v1/consume",
            "consume",
            "/v1/consume?topic=t&group=g&owner=o&wait_ms=1&max=1",
            none(),
            (200, 404),
        ),
        case("POST", "/v1/ack", "consume", "", claim(), (204, 404)),
        case("POST", "/v1/ack-cumulative", "consume", "", claim(), (204, 404)),
        case("POST", "/v1/nack", "consume", "", claim(), (204, 404)),
        case("POST", "/v1/extend", "consume", "", with(claim(), "lease_ms", json!(1_000)), (409, 404)),
        case("POST", "/v1/release", "consume", "", claim(), (204, 404)),
        case("POST", "/v1/complete", "consume", "", with(claim(), "lease_token", token()), (409, 404)),
        case("GET", "/v1/groups", "inspect", "/v1/groups?topic=t", none(), (200, 404)),
        case("POST", "/v1/groups", "operate", "", group("new"), (201, 404)),
        case("DELETE", "/v1/groups", "operate", "/v1/groups?topic=t&group=doomed", none(), (204, 404)),
        case("POST", "/v1/groups/seek", "operate", "", with(group("g"), "to", json!("earliest")), (204, 404)),
        case("POST", "/v1/groups/pause", "operate", "", group("paused"), (204, 404)),
        case("POST", "/v1/groups/resume", "operate", "", group("paused"), (204, 404)),
        case(
            "POST",
            "/v1/groups/expire",
            "operate",
            "",
            json!({ "topic": "t", "group": "g", "partition": 0, "offset": 0 }),
            (409, 404),
        ),
        case("GET", "/v1/peek", "inspect", "/v1/peek?topic=t&partition=0&offset=0", none(), (200, 404)),
        case("POST", "/v1/dlq/redrive", "operate", "", json!({ "topic": "t", "all": true }), (200, 404)),
        case("POST", "/v1/idempotency/begin", "effects", "", begin(), (200, 200)),
        case(
            "POST",
            "/v1/idempotency/finish",
            "effects",
            "",
            {
                let finish = with(effect("absent"), "lease_token", token());
                with(finish, "status", json!("SUCCEEDED"))
            },
            (404, 404),
        ),
        case(
            "POST",
            "/v1/idempotency/reacquire",
            "effects",
            "",
            with(effect("absent"), "owner", json!("o")),
            (404, 404),
        ),
        case(
            "POST",
            "/v1/idempotency/renew",
            "effects",
            "",
            {
                let renew = with(effect("absent"), "lease_token", token());
                with(renew, "lease_ms", json!(1_000))
            },
            (409, 409),
        ),
        case("GET", "/v1/idempotency", "effects", "/v1/idempotency?kind=tenant&key=absent", none(), (404, 404)),
        case("DELETE", "/v1/idempotency", "effects", "/v1/idempotency?kind=tenant&key=absent", none(), (404, 404)),
        case("GET", "/v1/idempotency/list", "effects", "", none(), (200, 200)),
        case("GET", "/v1/keys", "admin", "", none(), (200, 200)),
        case("POST", "/v1/keys", "admin", "", super::support::new_key("n", "*", &["produce"]), (201, 201)),
        case("DELETE", "/v1/keys", "admin", "/v1/keys?id=0123456789ab", none(), (404, 404)),
        case("DELETE", "/v1/keys/{id}", "admin", "/v1/keys/0123456789ab", none(), (404, 404)),
        case("POST", "/v1/keys/bind", "admin", "", json!({ "id": absent, "certificate_san": "a.test" }), (404, 403)),
        case("GET", "/v1/tenants", "admin", "", none(), (200, 200)),
        case("POST", "/v1/tenants", "admin", "", json!({ "name": "new" }), (201, 403)),
        case("DELETE", "/v1/tenants", "admin", "/v1/tenants?name=absent", none(), (404, 403)),
        case("GET", "/v1/audit", "admin", "", none(), (200, 200)),
    ]
}

/// What the requests are about.
fn prepare(broker: &Keyed) {
    for topic in ["t", "doomed"] {
        broker.topic(topic);
    }
    for group in ["g", "doomed", "paused"] {
        broker.admin("POST", "/v1/groups", &json!({ "topic": "t", "group": group }));
    }
}

/// Asks, with a header, and returns the status.
fn status(broker: &Keyed, case: &Case, authorization: Option<&str>) -> u16 {
    let header = authorization.map(|value| [("Authorization", value)]);
    let body = if case.body.is_null() { String::new() } else { case.body.to_string() };
    let headers = header.as_ref().map_or(&[][..], |header| &header[..]);
    broker.server.call(case.method, case.target, headers, &body).status
}

/// What differs from what is expected.
fn differences(broker: &Keyed, cases: &[Case]) -> Vec<String> {
    prepare(broker);
    let revoked = broker.key("*", &VERBS);
    // Known to the reactors before it is revoked.
    assert_eq!(broker.call_as(&revoked.text, "GET", "/v1/topics", "").status, 200);
    broker.revoke(&revoked);
    let expired = broker.key_with("*", &VERBS, &json!({ "expires_in_ms": 300 }));
    wait_until("the key has expired", || broker.call_as(&expired.text, "GET", "/v1/topics", "").status == 401);
    let other_tenant = broker.tenant("acme");
    let of_verb: Vec<Key> = VERBS.iter().map(|verb| broker.key("*", &[verb])).collect();
    let elsewhere = broker.key("elsewhere*", &VERBS);
    let bearer = |text: &str| Some(format!("Bearer {text}"));
    let unknown = format!("dq_{}{}", "0".repeat(12), &broker.admin.text[15..]);
    let no_keys = [
        ("no key", None),
        ("malformed", bearer("dq_x")),
        ("empty", bearer("")),
        ("another scheme", Some("Basic YTpi".to_owned())),
        ("unknown", bearer(&unknown)),
        ("wrong secret", bearer(&broker.admin.with_other_secret())),
        ("revoked", bearer(&revoked.text)),
        ("expired", bearer(&expired.text)),
    ];
    let mut differences = Vec::new();
    let mut expect = |case: &Case, who: &str, authorization: Option<&str>, expected: u16| {
        let found = status(broker, case, authorization);
        if found != expected {
            let Case { method, target, .. } = case;
            differences.push(format!("{method} {target} with {who}: {found} and not {expected}"));
        }
    };
    for case in cases {
        for (who, authorization) in &no_keys {
            let expected = if case.permission == "open" { case.admin } else { 401 };
            expect(case, who, authorization.as_deref(), expected);
        }
        for (verb, key) in VERBS.iter().zip(&of_verb) {
            let is_allowed = [verb, "key", "open"].contains(&case.permission);
            prepare(broker);
            expect(case, verb, bearer(&key.text).as_deref(), if is_allowed { case.admin } else { 403 });
        }
        // On other topics, and on none: what belongs to no topic needs a grant on all. A list has nothing in it then.
        let elsewhere_may = matches!(case.permission, "open" | "key")
            || matches!(case.path, "/v1/topics" | "/metrics" | "/v1/chaos") && case.method == "GET";
        expect(case, "elsewhere", bearer(&elsewhere.text).as_deref(), if elsewhere_may { case.admin } else { 403 });
        expect(case, "another tenant", bearer(&other_tenant.text).as_deref(), case.other_tenant);
        prepare(broker);
        expect(case, "admin", bearer(&broker.admin.text).as_deref(), case.admin);
    }
    differences
}

#[test]
fn every_operation_needs_what_the_route_table_says() {
    let cases = cases();
    let listed: BTreeSet<_> =
        cases.iter().map(|case| (case.path, case.method.to_lowercase(), case.permission)).collect();
    let mut documented = BTreeSet::new();
    for (path, item) in document()["paths"].as_object().expect("paths") {
        for (method, operation) in
            item.as_object().expect("operations").iter().filter(|(name, _)| *name != "parameters")
        {
            let permission = operation["x-permission"].as_str().expect("a permission");
            documented.insert((path.as_str(), method.clone(), permission));
        }
    }
    assert_eq!(listed, documented);
    let differences = differences(&Keyed::start(), &cases);
    assert!(differences.is_empty(), "{differences:#?}");
}

#[test]
fn several_reactors_decide_the_same() {
    let differences = differences(&Keyed::with_reactors(), &cases());
    assert!(differences.is_empty(), "{differences:#?}");
}
