//! The OpenAPI document of the HTTP API, served at `/v1/openapi.json`.
//!
//! `openapi.json` is written by hand: it is the specification that the code is tested against, not generated from the
//! code.

/// The OpenAPI 3.1 document, as JSON.
#[must_use]
pub fn document() -> &'static str {
    include_str!("openapi.json")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Map, Value};

    use super::*;
    use crate::endpoint::{Endpoint, Permission};

    const METHODS: [&str; 8] = ["get", "put", "post", "delete", "options", "head", "patch", "trace"];

    /// Every route of the API.
    const ROUTES: &[(&str, &str)] = &[
        ("get", "/metrics"),
        ("post", "/v1/ack"),
        ("post", "/v1/complete"),
        ("get", "/v1/consume"),
        ("post", "/v1/dlq/redrive"),
        ("post", "/v1/topics/{topic}/purge"),
        ("post", "/v1/extend"),
        ("delete", "/v1/groups"),
        ("get", "/v1/groups"),
        ("post", "/v1/groups"),
        ("post", "/v1/groups/pause"),
        ("post", "/v1/groups/resume"),
        ("post", "/v1/groups/seek"),
        ("get", "/v1/healthz"),
        ("delete", "/v1/idempotency"),
        ("get", "/v1/idempotency"),
        ("post", "/v1/idempotency/begin"),
        ("post", "/v1/idempotency/finish"),
        ("post", "/v1/idempotency/reacquire"),
        ("post", "/v1/idempotency/renew"),
        ("post", "/v1/nack"),
        ("post", "/v1/ack-cumulative"),
        ("post", "/v1/groups/expire"),
        ("get", "/v1/idempotency/list"),
        ("get", "/v1/openapi.json"),
        ("get", "/v1/peek"),
        ("post", "/v1/produce"),
        ("get", "/v1/readyz"),
        ("post", "/v1/release"),
        ("get", "/v1/topics"),
        ("post", "/v1/topics"),
        ("delete", "/v1/topics/{topic}"),
        ("get", "/v1/topics/{topic}"),
        ("patch", "/v1/topics/{topic}"),
        ("get", "/v1/version"),
        ("get", "/v1/digest"),
        ("get", "/v1/chaos"),
        ("get", "/v1/config"),
        ("get", "/v1/keys"),
        ("post", "/v1/keys"),
        ("delete", "/v1/keys"),
        ("delete", "/v1/keys/{id}"),
        ("post", "/v1/keys/bind"),
        ("get", "/v1/tenants"),
        ("post", "/v1/tenants"),
        ("delete", "/v1/tenants"),
        ("get", "/v1/audit"),
    ];

    fn parsed() -> Value {
        serde_json::from_str(document()).expect("the document is JSON")
    }

    /// Every method, path and operation.
    fn operations(document: &Value) -> Vec<(&str, &str, &Map<String, Value>)> {
        let paths = document["paths"].as_object().unwrap().iter();
        paths
            .flat_map(|(path, item)| {
                let item = item.as_object().unwrap().iter();
                item.filter(|(method, _)| METHODS.contains(&method.as_str()))
                    .map(move |(method, operation)| (method.as_str(), path.as_str(), operation.as_object().unwrap()))
            })
            .collect()
    }

    /// Calls `visit` with every object in the document.
    fn each_object<'a>(value: &'a Value, visit: &mut impl FnMut(&'a Map<String, Value>)) {
        match value {
            Value::Object(map) => {
                visit(map);
                map.values().for_each(|value| each_object(value, visit));
            }
            Value::Array(list) => list.iter().for_each(|value| each_object(value, visit)),
            _ => {}
        }
    }

    #[test]
    fn document_is_openapi_3_1_of_this_version() {
        let document = parsed();
        assert_eq!(document["openapi"], "3.1.0");
        assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    }

    #[test]
    fn exactly_the_routes_are_documented() {
        let document = parsed();
        let described: BTreeSet<_> =
            operations(&document).into_iter().map(|(method, path, _)| (path, method)).collect();
        let expected: BTreeSet<_> = ROUTES.iter().map(|(method, path)| (*path, *method)).collect();
        assert_eq!(described, expected);
    }

    #[test]
    fn references_resolve_and_every_component_is_used() {
        let document = parsed();
        let mut used = BTreeSet::new();
        each_object(&document, &mut |map| {
            if let Some(reference) = map.get("$ref").map(|reference| reference.as_str().unwrap()) {
                let pointer = reference.strip_prefix('#').unwrap_or_else(|| panic!("{reference} is external"));
                assert!(document.pointer(pointer).is_some(), "{reference} does not resolve");
                used.insert(pointer.to_owned());
            }
        });
        let components = document["components"].as_object().unwrap().iter();
        // Security schemes are used by their names.
        for (kind, components) in components.filter(|(kind, _)| *kind != "securitySchemes") {
            for name in components.as_object().unwrap().keys() {
                assert!(used.contains(&format!("/components/{kind}/{name}")), "{kind}/{name} is unused");
            }
        }
    }

    #[test]
    fn every_operation_has_a_unique_id_a_success_and_an_error() {
        let document = parsed();
        let mut names = BTreeSet::new();
        for (method, path, operation) in operations(&document) {
            let name = operation["operationId"].as_str().unwrap();
            assert!(names.insert(name), "{name} is used twice");
            assert!(operation["summary"].is_string(), "{method} {path}");
            let responses = operation["responses"].as_object().unwrap();
            assert!(responses.keys().any(|status| status.starts_with('2')), "{method} {path} has no success response");
            assert!(responses.contains_key("default"), "{method} {path} has no default response");
            for (status, response) in responses {
                let known = status == "default" || status.parse::<u16>().is_ok_and(|code| (200..600).contains(&code));
                assert!(known, "{method} {path}: {status}");
                assert!(
                    response.get("$ref").is_some() || response["description"].is_string(),
                    "{method} {path} {status}"
                );
            }
        }
    }

    #[test]
    fn every_operation_has_the_permission_of_its_route() {
        let document = parsed();
        assert_eq!(document["security"], serde_json::json!([{ "key": [] }]));
        assert!(document["components"]["securitySchemes"]["key"].is_object());
        let endpoints = Endpoint::ALL.iter().filter(|endpoint| **endpoint != Endpoint::Unknown);
        for endpoint in endpoints {
            let operation = &document["paths"][endpoint.path()][endpoint.method().to_ascii_lowercase()];
            let name = format!("{} {}", endpoint.method(), endpoint.path());
            let permission = match endpoint.permission() {
                Permission::Open => "open",
                Permission::AnyKey => "key",
                Permission::Verb(verb) => verb.as_str(),
            };
            assert_eq!(operation["x-permission"], permission, "{name}");
            let is_open = endpoint.permission() == Permission::Open;
            assert_eq!(operation.get("security").is_some(), is_open, "{name}");
            for status in ["401", "403"] {
                assert_eq!(operation["responses"].get(status).is_some(), !is_open, "{name}: {status}");
            }
        }
    }

    #[test]
    fn every_parameter_is_described_and_unique() {
        let document = parsed();
        for (method, path, operation) in operations(&document) {
            let shared = document["paths"][path].get("parameters").and_then(Value::as_array).into_iter().flatten();
            let own = operation.get("parameters").and_then(Value::as_array).into_iter().flatten();
            let mut seen = BTreeSet::new();
            for parameter in shared.chain(own) {
                let (name, location) = (parameter["name"].as_str().unwrap(), parameter["in"].as_str().unwrap());
                assert!(seen.insert((location, name)), "{method} {path}: {name} is repeated");
                assert!(
                    parameter["schema"].is_object() && parameter["description"].is_string(),
                    "{method} {path}: {name}"
                );
            }
            let in_path = path.matches('{').count();
            assert_eq!(seen.iter().filter(|(location, _)| *location == "path").count(), in_path, "{method} {path}");
        }
    }

    #[test]
    fn every_required_property_is_described() {
        each_object(&parsed(), &mut |map| {
            let (Some(Value::Array(required)), Some(properties)) = (map.get("required"), map.get("properties")) else {
                return;
            };
            for name in required {
                assert!(properties.get(name.as_str().unwrap()).is_some(), "{name} is required and not described");
            }
        });
    }
}
