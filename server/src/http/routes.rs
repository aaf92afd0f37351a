//! Which door a path leads to, and who may knock.

use driftq_core::types::TopicName;
use hyper::Method;
use percent_encoding::percent_decode_str;

use super::error::ApiError;

/// A door.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Healthz,
    Readyz,
    Version,
    OpenApi,
    Metrics,
    ListTopics,
    CreateTopic,
    DescribeTopic(TopicName),
    DeleteTopic(TopicName),
    Produce,
    Consume,
    Ack,
    Nack,
    Extend,
    Release,
    ListGroups,
    CreateGroup,
    DeleteGroup,
    Seek,
    Pause,
    Resume,
    Peek,
    Redrive,
}

impl Route {
    /// The door for this method and path.
    pub(crate) fn of(method: &Method, path: &str) -> Result<Self, ApiError> {
        let get = |route| if *method == Method::GET { Ok(route) } else { Err(ApiError::method_not_allowed("GET")) };
        let post = |route| if *method == Method::POST { Ok(route) } else { Err(ApiError::method_not_allowed("POST")) };
        match path {
            "/v1/produce" => post(Self::Produce),
            "/v1/ack" => post(Self::Ack),
            "/v1/consume" => get(Self::Consume),
            "/v1/nack" => post(Self::Nack),
            "/v1/extend" => post(Self::Extend),
            "/v1/release" => post(Self::Release),
            "/v1/healthz" => get(Self::Healthz),
            "/v1/readyz" => get(Self::Readyz),
            "/v1/version" => get(Self::Version),
            "/v1/openapi.json" => get(Self::OpenApi),
            "/metrics" => get(Self::Metrics),
            "/v1/peek" => get(Self::Peek),
            "/v1/dlq/redrive" => post(Self::Redrive),
            "/v1/groups/seek" => post(Self::Seek),
            "/v1/groups/pause" => post(Self::Pause),
            "/v1/groups/resume" => post(Self::Resume),
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
            other => match other.strip_prefix("/v1/topics/").filter(|name| !name.is_empty() && !name.contains('/')) {
                Some(name) => Self::topic(method, name),
                None => Err(ApiError::not_found("no such route; the API lives under /v1")),
            },
        }
    }

    fn topic(method: &Method, name: &str) -> Result<Self, ApiError> {
        let name = || {
            let name =
                percent_decode_str(name).decode_utf8().map_err(|_| ApiError::invalid("the path is not UTF-8"))?;
            Ok::<_, ApiError>(TopicName::new(&name)?)
        };
        match *method {
            Method::GET => Ok(Self::DescribeTopic(name()?)),
            Method::DELETE => Ok(Self::DeleteTopic(name()?)),
            _ => Err(ApiError::method_not_allowed("GET, DELETE")),
        }
    }
}
