//! Tenants: none sees anything of another.

use serde_json::{Value, json};

use super::support::Keyed;

#[test]
fn topic_of_another_tenant_is_as_unknown_as_none() {
    let broker = Keyed::start();
    let (acme, other) = (broker.tenant("acme"), broker.tenant("other"));
    let requests = [
        ("GET", "/v1/topics/orders", Value::Null),
        ("GET", "/v1/topics/dlq.orders", Value::Null),
        ("DELETE", "/v1/topics/orders", Value::Null),
        ("POST", "/v1/topics/orders/purge", Value::Null),
        ("GET", "/v1/groups?topic=orders", Value::Null),
        ("GET", "/v1/peek?topic=orders&partition=0&offset=0", Value::Null),
        ("GET", "/v1/consume?topic=orders&group=g&owner=o&wait_ms=1", Value::Null),
        ("POST", "/v1/produce", json!({ "topic": "orders", "value": "v" })),
        ("POST", "/v1/ack", json!({ "topic": "orders", "group": "g", "partition": 0, "offset": 0, "owner": "o" })),
        ("POST", "/v1/dlq/redrive", json!({ "topic": "orders", "all": true })),
        ("POST", "/v1/groups/seek", json!({ "topic": "orders", "group": "g", "to": "earliest" })),
    ];
    let ask = || -> Vec<_> {
        let ask = |(method, target, body): &(&str, &str, Value)| {
            let body = if body.is_null() { String::new() } else { body.to_string() };
            let reply = broker.call_as(&acme.text, method, target, &body);
            let headers = reply.headers.into_iter().filter(|(name, _)| !["x-request-id", "date"].contains(&&**name));
            (format!("{method} {target}"), reply.status, headers.collect::<Vec<_>>(), reply.body)
        };
        requests.iter().map(ask).collect()
    };
    let before = ask();
    assert!(before.iter().all(|(_, status, ..)| *status == 404), "{before:#?}");
    // The default tenant and another one have such a topic, with a group, a message and a dead letter.
    for key in [&broker.admin.text, &other.text] {
        let post = |target: &str, body: Value| broker.call_as(key, "POST", target, &body.to_string());
        assert_eq!(post("/v1/topics", json!({ "name": "orders" })).status, 201);
        assert_eq!(post("/v1/produce", json!({ "topic": "orders", "value": "secret" })).status, 200);
        let item = broker.call_as(key, "GET", "/v1/consume?topic=orders&group=g&owner=o&max=1", "");
        assert_eq!(item.status, 200, "{item:?}");
        let nack = json!({
            "topic": "orders", "group": "g", "partition": 0, "offset": 0, "owner": "o", "retryable": false
        });
        assert_eq!(post("/v1/nack", nack).status, 204);
        assert_eq!(post("/v1/produce", json!({ "topic": "orders", "value": "secret" })).status, 200);
    }
    assert_eq!(ask(), before);
    assert_eq!(broker.call_as(&acme.text, "GET", "/v1/topics", "").json(), json!({ "topics": [] }));
    for key in [&broker.admin.text, &other.text] {
        let topics = broker.call_as(key, "GET", "/v1/topics", "").json();
        assert_eq!(topics, json!({ "topics": ["dlq.orders", "orders"] }));
    }
    // Its own topic of that name is its own.
    broker.call_as(&acme.text, "POST", "/v1/topics", r#"{"name":"orders","partitions":3}"#);
    let described = broker.call_as(&acme.text, "GET", "/v1/topics/orders", "").json();
    assert_eq!((described["partitions"].as_array().map(Vec::len), &described["groups"]), (Some(3), &json!([])));
}

#[test]
fn metrics_of_a_tenant_are_those_of_its_topics() {
    let broker = Keyed::start();
    let acme = broker.tenant("acme");
    broker.topic("hidden");
    broker.admin("POST", "/v1/groups", &json!({ "topic": "hidden", "group": "g" }));
    for topic in ["seen", "other"] {
        let body = json!({ "name": topic }).to_string();
        assert_eq!(broker.call_as(&acme.text, "POST", "/v1/topics", &body).status, 201);
        let body = json!({ "topic": topic, "group": "workers" }).to_string();
        assert_eq!(broker.call_as(&acme.text, "POST", "/v1/groups", &body).status, 201);
    }
    let metrics = |key: &str| broker.call_as(key, "GET", "/metrics", "").body;
    let of_acme = metrics(&acme.text);
    assert!(of_acme.contains("topic=\"seen\"") && of_acme.contains("topic=\"other\""), "{of_acme}");
    assert!(!of_acme.contains("hidden") && !of_acme.contains("driftq_log"), "{of_acme}");
    let some = broker.key_with("se*", &["inspect"], &json!({ "tenant": "acme" }));
    let of_some = metrics(&some.text);
    assert!(of_some.contains("topic=\"seen\"") && !of_some.contains("topic=\"other\""), "{of_some}");
    let inspect = metrics(&broker.key("*", &["inspect"]).text);
    assert!(inspect.contains("topic=\"hidden\"") && inspect.contains("driftq_log_records_total"), "{inspect}");
    assert!(!inspect.contains("topic=\"seen\""), "other tenants are for who manages them: {inspect}");
    let all = metrics(&broker.admin.text);
    assert!(all.contains("topic=\"hidden\"") && all.contains("topic=\"seen\""), "{all}");
    assert!(all.contains("driftq_authentications_failed_total{reason=\"missing\"} 0"), "{all}");
}

#[test]
fn administrator_of_all_tenants_names_the_one_it_means() {
    let broker = Keyed::start();
    let acme = broker.tenant("acme");
    assert_eq!(broker.call_as(&acme.text, "POST", "/v1/topics", r#"{"name":"t"}"#).status, 201);
    let listed = broker.admin("GET", "/v1/topics?tenant=acme", &Value::Null).json();
    assert_eq!(listed, json!({ "topics": ["t"] }));
    assert_eq!(broker.admin("GET", "/v1/topics", &Value::Null).json(), json!({ "topics": [] }));
    // Those that do not manage tenants learn nothing of which there are.
    let plain = broker.key("*", &["inspect", "operate", "produce", "consume", "effects"]);
    for name in ["acme", "absent"] {
        for key in [&plain.text, &broker.tenant("third").text] {
            let reply = broker.call_as(key, "GET", &format!("/v1/topics?tenant={name}"), "");
            assert_eq!(reply.status, 403, "{name}: {reply:?}");
        }
    }
    assert_eq!(broker.call_as(&acme.text, "GET", "/v1/topics?tenant=acme", "").status, 200);
    assert_eq!(broker.call_as(&broker.admin.text, "GET", "/v1/topics?tenant=absent", "").status, 404);
    // A tenant that has something is not deleted.
    let delete = || broker.call_as(&broker.admin.text, "DELETE", "/v1/tenants?name=acme", "").status;
    assert_eq!(delete(), 409);
    let operator = broker.key_with("*", &["operate"], &json!({ "tenant": "acme" }));
    assert_eq!(broker.call_as(&operator.text, "DELETE", "/v1/topics/t", "").status, 204);
    assert_eq!(delete(), 409);
    broker.revoke(&operator);
    assert_eq!(delete(), 409);
    broker.revoke(&acme);
    assert_eq!(delete(), 204);
    assert_eq!(delete(), 404);
}

#[test]
fn tenant_and_principal_of_an_effect_come_from_the_key() {
    let broker = Keyed::start();
    let acme = broker.tenant("acme");
    let plain = broker.key("*", &["effects"]);
    let begin = |key: &str, fields: Value| {
        let mut body = json!({ "key": "k", "owner": "o", "scope": { "kind": "tenant" } });
        body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        broker.call_as(key, "POST", "/v1/idempotency/begin", &body.to_string()).status
    };
    assert_eq!(begin(&acme.text, json!({})), 200);
    assert_eq!(begin(&acme.text, json!({ "tenant_id": "acme" })), 409, "it is the same one");
    assert_eq!(begin(&acme.text, json!({ "tenant_id": "other" })), 403);
    assert_eq!(begin(&plain.text, json!({ "tenant_id": "acme" })), 403, "a registered tenant is the keys' of it");
    assert_eq!(begin(&plain.text, json!({ "tenant_id": "other" })), 200);
    let rpc = |principal: Value| json!({ "scope": { "kind": "rpc", "principal": principal, "method": "m" } });
    assert_eq!(begin(&acme.text, rpc(json!(acme.id))), 200);
    assert_eq!(begin(&acme.text, json!({ "scope": { "kind": "rpc", "method": "m" } })), 409, "it is the same one");
    assert_eq!(begin(&acme.text, rpc(json!("someone"))), 403);
    assert_eq!(begin(&plain.text, rpc(json!("someone"))), 200);
    let listed = broker.call_as(&acme.text, "GET", "/v1/idempotency/list", "").json();
    let tenants: Vec<_> =
        listed["records"].as_array().expect("records").iter().map(|record| &record["tenant_id"]).collect();
    assert_eq!(json!(tenants), json!(["acme", "acme"]));
    assert_eq!(broker.call_as(&acme.text, "GET", "/v1/idempotency/list?tenant_id=other", "").status, 403);
    // A name that effects have cannot become a tenant's.
    assert_eq!(broker.call_as(&broker.admin.text, "POST", "/v1/tenants", r#"{"name":"other"}"#).status, 409);
    // Nor may a message be another tenant's.
    assert_eq!(broker.call_as(&acme.text, "POST", "/v1/topics", r#"{"name":"t"}"#).status, 201);
    let produce = |tenant: &str| {
        let body = json!({ "topic": "t", "value": "v", "envelope": { "tenant_id": tenant } }).to_string();
        broker.call_as(&acme.text, "POST", "/v1/produce", &body).status
    };
    assert_eq!((produce("acme"), produce("other")), (200, 403));
    assert_eq!(broker.call_as(&acme.text, "POST", "/v1/produce?topic=t&value=v&tenant=other", "").status, 403);
    let item = broker.call_as(&acme.text, "POST", "/v1/produce", r#"{"topic":"t","value":"v"}"#);
    assert_eq!(item.status, 200);
    let peeked = broker.call_as(&acme.text, "GET", "/v1/peek?topic=t&partition=0&offset=1", "").json();
    assert_eq!(peeked["messages"][0]["envelope"]["tenant_id"], "acme", "{peeked}");
}
