//! Maps method and path to a route.

use driftq_core::types::TopicName;
use hyper::Method;
use percent_encoding::percent_decode_str;

use super::error::ApiError;
use crate::endpoint::Endpoint;

/// An operation of the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Healthz,
    Readyz,
    Version,
    Config,
    Digest,
    Chaos,
    OpenApi,
    Metrics,
    ListTopics,
    CreateTopic,
    DescribeTopic(TopicName),
    ChangeTopic(TopicName),
    DeleteTopic(TopicName),
    PurgeTopic(TopicName),
    Produce,
    Consume,
    Ack,
    AckCumulative,
    Nack,
    Extend,
    Release,
    ListGroups,
    CreateGroup,
    DeleteGroup,
    Seek,
    Pause,
    Resume,
    ExpireLease,
    Peek,
    Redrive,
    Complete,
    Begin,
    Finish,
    Reacquire,
    Renew,
    GetEffect,
    ForgetEffect,
    ListEffects,
    CreateKey,
    ListKeys,
    RevokeKey,
    /// The id as it stands in the path.
    RevokeKeyById(String),
    BindKey,
    CreateTenant,
    ListTenants,
    DeleteTenant,
    ListAudit,
}

impl Route {
    /// Whether it only reads and its answer may have megabytes.
    pub(crate) fn has_large_answer(&self) -> bool {
        matches!(
            self,
            Self::Peek
                | Self::ListTopics
                | Self::DescribeTopic(_)
                | Self::ListGroups
                | Self::ListKeys
                | Self::ListAudit
        )
    }

    /// What metrics and spans call it, and the permission that it needs.
    pub(crate) fn endpoint(&self) -> Endpoint {
        match self {
            Self::Healthz => Endpoint::Healthz,
            Self::Readyz => Endpoint::Readyz,
            Self::Version => Endpoint::Version,
            Self::Config => Endpoint::Config,
            Self::Digest => Endpoint::Digest,
            Self::Chaos => Endpoint::Chaos,
            Self::OpenApi => Endpoint::OpenApi,
            Self::Metrics => Endpoint::Metrics,
            Self::ListTopics => Endpoint::ListTopics,
            Self::CreateTopic => Endpoint::CreateTopic,
            Self::DescribeTopic(_) => Endpoint::DescribeTopic,
            Self::ChangeTopic(_) => Endpoint::ChangeTopic,
            Self::DeleteTopic(_) => Endpoint::DeleteTopic,
            Self::PurgeTopic(_) => Endpoint::PurgeTopic,
            Self::Produce => Endpoint::Produce,
            Self::Consume => Endpoint::Consume,
            Self::Ack => Endpoint::Ack,
            Self::AckCumulative => Endpoint::AckCumulative,
            Self::Nack => Endpoint::Nack,
            Self::Extend => Endpoint::Extend,
            Self::Release => Endpoint::Release,
            Self::ListGroups => Endpoint::ListGroups,
            Self::CreateGroup => Endpoint::CreateGroup,
            Self::DeleteGroup => Endpoint::DeleteGroup,
            Self::Seek => Endpoint::Seek,
            Self::Pause => Endpoint::Pause,
            Self::Resume => Endpoint::Resume,
            Self::ExpireLease => Endpoint::ExpireLease,
            Self::Peek => Endpoint::Peek,
            Self::Redrive => Endpoint::Redrive,
            Self::Complete => Endpoint::Complete,
            Self::Begin => Endpoint::Begin,
            Self::Finish => Endpoint::Finish,
            Self::Reacquire => Endpoint::Reacquire,
            Self::Renew => Endpoint::Renew,
            Self::GetEffect => Endpoint::GetEffect,
            Self::ForgetEffect => Endpoint::ForgetEffect,
            Self::ListEffects => Endpoint::ListEffects,
            Self::CreateKey => Endpoint::CreateKey,
            Self::ListKeys => Endpoint::ListKeys,
            Self::RevokeKey => Endpoint::RevokeKey,
            Self::RevokeKeyById(_) => Endpoint::RevokeKeyById,
            Self::BindKey => Endpoint::BindKey,
            Self::CreateTenant => Endpoint::CreateTenant,
            Self::ListTenants => Endpoint::ListTenants,
            Self::DeleteTenant => Endpoint::DeleteTenant,
            Self::ListAudit => Endpoint::ListAudit,
        }
    }

    /// The route of this method and path.
    pub(crate) fn of(method: &Method, path: &str) -> Result<Self, ApiError> {
        let get = |route| if *method == Method::GET { Ok(route) } else { Err(ApiError::method_not_allowed("GET")) };
        let post = |route| if *method == Method::POST { Ok(route) } else { Err(ApiError::method_not_allowed("POST")) };
        match path {
            "/v1/produce" => post(Self::Produce),
            "/v1/ack" => post(Self::Ack),
            "/v1/consume" => get(Self::Consume),
            "/v1/nack" => post(Self::Nack),
            "/v1/ack-cumulative" => post(Self::AckCumulative),
            "/v1/extend" => post(Self::Extend),
            "/v1/release" => post(Self::Release),
            "/v1/complete" => post(Self::Complete),
            "/v1/idempotency/begin" => post(Self::Begin),
            "/v1/idempotency/finish" => post(Self::Finish),
            "/v1/idempotency/reacquire" => post(Self::Reacquire),
            "/v1/idempotency/renew" => post(Self::Renew),
            "/v1/idempotency/list" => get(Self::ListEffects),
            "/v1/healthz" => get(Self::Healthz),
            "/v1/readyz" => get(Self::Readyz),
            "/v1/version" => get(Self::Version),
            "/v1/config" => get(Self::Config),
            "/v1/digest" => get(Self::Digest),
            "/v1/chaos" => get(Self::Chaos),
            "/v1/openapi.json" => get(Self::OpenApi),
            "/metrics" => get(Self::Metrics),
            "/v1/peek" => get(Self::Peek),
            "/v1/dlq/redrive" => post(Self::Redrive),
            "/v1/groups/seek" => post(Self::Seek),
            "/v1/groups/pause" => post(Self::Pause),
            "/v1/groups/resume" => post(Self::Resume),
            "/v1/groups/expire" => post(Self::ExpireLease),
            "/v1/keys/bind" => post(Self::BindKey),
            "/v1/audit" => get(Self::ListAudit),
            "/v1/topics" => match *method {
                Method::GET => Ok(Self::ListTopics),
                Method::POST => Ok(Self::CreateTopic),
                _ => Err(ApiError::method_not_allowed("GET, POST")),
            },
            "/v1/groups" => match *method {
                Method::GET => Ok(Self::ListGroups),
                Method::POST => Ok(Self::CreateGroup),
                Method::DELETE => Ok(Self::DeleteGroup),
                _ => Err(ApiError::method_not_allowed("GET, POST, DELETE")),
            },
            "/v1/idempotency" => match *method {
                Method::GET => Ok(Self::GetEffect),
                Method::DELETE => Ok(Self::ForgetEffect),
                _ => Err(ApiError::method_not_allowed("GET, DELETE")),
            },
            "/v1/keys" => match *method {
                Method::GET => Ok(Self::ListKeys),
                Method::POST => Ok(Self::CreateKey),
                Method::DELETE => Ok(Self::RevokeKey),
                _ => Err(ApiError::method_not_allowed("GET, POST, DELETE")),
            },
            "/v1/tenants" => match *method {
                Method::GET => Ok(Self::ListTenants),
                Method::POST => Ok(Self::CreateTenant),
                Method::DELETE => Ok(Self::DeleteTenant),
                _ => Err(ApiError::method_not_allowed("GET, POST, DELETE")),
            },
            other => {
                if let Some(id) = other.strip_prefix("/v1/keys/").filter(|id| !id.is_empty() && !id.contains('/')) {
                    return match *method {
                        Method::DELETE => Ok(Self::RevokeKeyById(id.to_owned())),
                        _ => Err(ApiError::method_not_allowed("DELETE")),
                    };
                }
                let mut of_topic = other.strip_prefix("/v1/topics/").into_iter().flat_map(|path| path.split('/'));
                match (of_topic.next().filter(|name| !name.is_empty()), of_topic.next(), of_topic.next()) {
                    (Some(name), None, _) => Self::topic(method, name),
                    (Some(name), Some("purge"), None) if *method == Method::POST => {
                        Ok(Self::PurgeTopic(topic_name(name)?))
                    }
                    (Some(_), Some("purge"), None) => Err(ApiError::method_not_allowed("POST")),
                    _ => Err(ApiError::not_found("no such route; the API is under /v1/")),
                }
            }
        }
    }

    fn topic(method: &Method, name: &str) -> Result<Self, ApiError> {
        match *method {
            Method::GET => Ok(Self::DescribeTopic(topic_name(name)?)),
            Method::PATCH => Ok(Self::ChangeTopic(topic_name(name)?)),
            Method::DELETE => Ok(Self::DeleteTopic(topic_name(name)?)),
            _ => Err(ApiError::method_not_allowed("GET, PATCH, DELETE")),
        }
    }
}

/// The topic name in a path.
fn topic_name(encoded: &str) -> Result<TopicName, ApiError> {
    let name = percent_decode_str(encoded).decode_utf8().map_err(|_| ApiError::invalid("the path is not UTF-8"))?;
    Ok(TopicName::new(&name)?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const METHODS: [Method; 7] =
        [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::HEAD, Method::OPTIONS];

    /// A path of a template.
    fn filled(template: &str) -> String {
        template.replace("{topic}", "orders").replace("{id}", "0123456789ab")
    }

    /// The methods of each path in the OpenAPI document.
    fn documented() -> Vec<(String, BTreeSet<String>)> {
        let document: serde_json::Value = serde_json::from_str(crate::openapi::document()).expect("JSON");
        let paths = document["paths"].as_object().expect("paths");
        let methods = |item: &serde_json::Value| {
            let names = METHODS.iter().map(|method| method.as_str().to_ascii_lowercase());
            names.filter(|name| item.get(name).is_some()).map(|name| name.to_ascii_uppercase()).collect()
        };
        paths.iter().map(|(path, item)| (filled(path), methods(item))).collect()
    }

    #[test]
    fn documented_route_has_exactly_its_documented_methods() {
        for (path, allowed) in documented() {
            for method in METHODS {
                let found = Route::of(&method, &path);
                assert_eq!(found.is_ok(), allowed.contains(method.as_str()), "{method} {path}: {found:?}");
                if let Err(error) = found {
                    let allow: BTreeSet<String> =
                        error.allow.unwrap_or_default().split(", ").map(str::to_owned).collect();
                    assert_eq!((error.status.as_u16(), allow), (405, allowed.clone()), "{method} {path}");
                }
            }
        }
    }

    #[test]
    fn every_route_is_documented() {
        let documented: BTreeSet<String> = documented().into_iter().map(|(path, _)| path).collect();
        let routes = [
            "/v1/produce",
            "/v1/ack",
            "/v1/consume",
            "/v1/nack",
            "/v1/extend",
            "/v1/release",
            "/v1/healthz",
            "/v1/readyz",
            "/v1/digest",
            "/v1/chaos",
            "/v1/version",
            "/v1/config",
            "/v1/openapi.json",
            "/metrics",
            "/v1/peek",
            "/v1/dlq/redrive",
            "/v1/groups/seek",
            "/v1/groups/pause",
            "/v1/groups/resume",
            "/v1/groups/expire",
            "/v1/ack-cumulative",
            "/v1/idempotency/list",
            "/v1/topics",
            "/v1/groups",
            "/v1/topics/orders",
            "/v1/topics/orders/purge",
            "/v1/complete",
            "/v1/idempotency",
            "/v1/idempotency/begin",
            "/v1/idempotency/finish",
            "/v1/idempotency/reacquire",
            "/v1/idempotency/renew",
            "/v1/keys",
            "/v1/keys/0123456789ab",
            "/v1/keys/bind",
            "/v1/tenants",
            "/v1/audit",
        ];
        assert_eq!(documented, routes.map(str::to_owned).into());
    }

    #[test]
    fn endpoint_of_a_route_has_its_method_and_path() {
        for endpoint in Endpoint::ALL.iter().filter(|endpoint| **endpoint != Endpoint::Unknown) {
            let method = Method::from_bytes(endpoint.method().as_bytes()).expect("a method");
            let route = Route::of(&method, &filled(endpoint.path())).expect("a route");
            assert_eq!(route.endpoint(), *endpoint);
        }
    }

    #[test]
    fn unknown_path_is_not_found() {
        for path in [
            "/",
            "",
            "/v1",
            "/v1/",
            "/v1/topics/",
            "/v1/topics/a/b",
            "/v1/topics//purge",
            "/v1/topics/a/purge/",
            "/v1/topics/a/purge/b",
            "/v1/produce/",
            "/produce",
            "/V1/produce",
            "/v2/topics",
            "/v1/keys/",
            "/v1/keys/a/b",
        ] {
            assert_eq!(Route::of(&Method::GET, path).map_err(|error| error.code), Err("NOT_FOUND"), "{path}");
        }
    }

    #[test]
    fn topic_in_a_path_is_decoded_once_after_splitting_at_slashes() {
        for (path, name) in [
            ("/v1/topics/orders%2Feu", "orders/eu"),
            ("/v1/topics/orders%2feu", "orders/eu"),
            ("/v1/topics/my%20topic", "my topic"),
            ("/v1/topics/user@host", "user@host"),
            ("/v1/topics/100%2525", "100%25"),
            ("/v1/topics/%C3%A9", "é"),
            ("/v1/topics/a+b", "a+b"),
            ("/v1/topics/..%2Fversion", "../version"),
            ("/v1/topics/%20a", "a"),
        ] {
            let route = Route::DescribeTopic(TopicName::new(name).expect("a name"));
            assert_eq!(Route::of(&Method::GET, path), Ok(route), "{path}");
        }
        for path in ["/v1/topics/%FF", "/v1/topics/%0A", "/v1/topics/a%00", "/v1/topics/%2E", "/v1/topics/%20"] {
            assert_eq!(Route::of(&Method::GET, path).map_err(|error| error.code), Err("INVALID_ARGUMENT"), "{path}");
        }
    }
}
