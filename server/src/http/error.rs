//! Errors of the API, `{"error": CODE, "message": TEXT, …}`, and the one place that maps refusals of the broker to
//! status codes.

use std::borrow::Cow;

use driftq_core::Refusal;
use driftq_core::types::{GroupName, Millis, NameError};
use hyper::StatusCode;

use crate::driver::Unready;
use crate::json::Json;

/// When to retry what there was no memory for.
const MEMORY_RETRY: Millis = Millis(1_000);

/// An error response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) code: &'static str,
    pub(crate) message: Cow<'static, str>,
    retry: Option<Retry>,
    /// The group that holds a full partition up.
    group: Option<GroupName>,
    /// Methods that a 405 allows.
    pub(super) allow: Option<&'static str>,
    /// Whether the connection is closed, as the rest of its input is not trusted.
    pub(super) close_connection: bool,
    /// The log is being recovered: no command was accepted.
    is_recovering: bool,
}

/// When to retry, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Retry {
    /// The field that gives the cause, and its value.
    cause: (&'static str, &'static str),
    after: Millis,
}

impl ApiError {
    fn new(status: StatusCode, code: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            retry: None,
            group: None,
            allow: None,
            close_connection: false,
            is_recovering: false,
        }
    }

    /// 400: the request is invalid.
    pub(crate) fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "INVALID_ARGUMENT", message)
    }

    /// 400: a required field is missing.
    pub(crate) fn missing(field: &'static str) -> Self {
        Self::invalid(format!("{field} is required"))
    }

    /// 401: the request shows no key, or a wrong one.
    pub(crate) fn unauthenticated(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "UNAUTHENTICATED", message)
    }

    /// 403.
    pub(crate) fn permission_denied(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "PERMISSION_DENIED", message)
    }

    /// 404.
    pub(crate) fn not_found(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "NOT_FOUND", message)
    }

    /// 405, with the methods that are allowed.
    pub(crate) fn method_not_allowed(allow: &'static str) -> Self {
        let message = format!("method not allowed, use {allow}");
        let error = Self::new(StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED", message);
        Self { allow: Some(allow), ..error }
    }

    /// 413.
    pub(crate) fn too_large(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "PAYLOAD_TOO_LARGE", message)
    }

    /// 429: there is no memory for the body of the request or for the answer.
    pub(crate) fn no_memory() -> Self {
        let message = "too many bytes of requests or answers are in progress; try again later";
        Self {
            retry: Some(Retry { cause: ("reason", "memory"), after: MEMORY_RETRY }),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, "RESOURCE_EXHAUSTED", message)
        }
    }

    /// 429: the client has been refused too often.
    pub(crate) fn refused_too_often(message: &'static str, reason: &'static str, after: Millis) -> Self {
        Self {
            retry: Some(Retry { cause: ("reason", reason), after }),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, "RESOURCE_EXHAUSTED", message)
        }
    }

    /// 409.
    fn precondition(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::CONFLICT, "FAILED_PRECONDITION", message)
    }

    pub(crate) fn unavailable(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "UNAVAILABLE", message)
    }

    /// The same, and the connection is closed.
    pub(crate) fn closing(self) -> Self {
        Self { close_connection: true, ..self }
    }

    /// The value of the `reason` label in `produce_rejected_total`.
    pub(crate) fn reason(&self) -> &'static str {
        match (self.retry, self.code) {
            (Some(retry), _) => retry.cause.1,
            (None, "INVALID_ARGUMENT") => "invalid",
            (None, "NOT_FOUND") => "not_found",
            (None, "PAYLOAD_TOO_LARGE") => "too_large",
            (None, "UNAUTHENTICATED") => "unauthenticated",
            (None, "PERMISSION_DENIED") => "permission_denied",
            (None, "STORAGE_FULL") => "storage_full",
            (None, "UNAVAILABLE") => "unavailable",
            (None, _) => "other",
        }
    }

    /// When to retry.
    pub(super) fn retry_after(&self) -> Option<Millis> {
        self.retry.map(|retry| retry.after)
    }

    /// Writes the fields of the body.
    pub(crate) fn write_fields(&self, json: &mut Json) {
        json.text("error", self.code);
        json.text("message", &self.message);
        if let Some(Retry { cause: (name, value), after }) = self.retry {
            json.text(name, value);
            json.number("retry_after_ms", after.0);
        }
        if let Some(group) = &self.group {
            json.text("group", group.as_str());
        }
        if self.is_recovering {
            json.plain("reason", "recovering");
            json.plain("committed", "no");
        }
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let message = refusal.to_string();
        match refusal {
            Refusal::Unauthenticated => Self::unauthenticated(message),
            Refusal::PermissionDenied(_) => Self::permission_denied(message),
            Refusal::UnknownTopic(_)
            | Refusal::UnknownGroup(_)
            | Refusal::UnknownConsumer
            | Refusal::UnknownEffect
            | Refusal::UnknownKey
            | Refusal::UnknownTenant(_) => Self::not_found(message),
            Refusal::TopicExists { .. } | Refusal::KeyExists | Refusal::CertificateBound => {
                Self::new(StatusCode::CONFLICT, "ALREADY_EXISTS", message)
            }
            Refusal::TooLarge { what: "key" | "metadata" | "message" | "key and value" | "result", .. } => {
                Self::too_large(message)
            }
            Refusal::NotOwner
            | Refusal::StaleLease
            | Refusal::NotLeased
            | Refusal::OtherOutcome
            | Refusal::TenantInUse(_)
            | Refusal::NotRetryable { .. } => Self::precondition(message),
            Refusal::InProgress { retry_after } => Self {
                retry: Some(Retry { cause: ("decision", "IN_PROGRESS"), after: retry_after }),
                ..Self::precondition(message)
            },
            Refusal::HashMismatch => Self::new(StatusCode::UNPROCESSABLE_ENTITY, "IDEMPOTENCY_MISMATCH", message),
            Refusal::Overloaded { reason, retry_after, full } => Self {
                retry: Some(Retry { cause: ("reason", reason.code()), after: retry_after }),
                group: full.and_then(|full| full.group),
                ..Self::new(StatusCode::TOO_MANY_REQUESTS, "RESOURCE_EXHAUSTED", message)
            },
            Refusal::StorageFull => Self::new(StatusCode::INSUFFICIENT_STORAGE, "STORAGE_FULL", message),
            Refusal::ShuttingDown | Refusal::LogFailed => Self::unavailable(message),
            _ => Self::invalid(message),
        }
    }
}

impl From<Unready> for ApiError {
    fn from(unready: Unready) -> Self {
        let error = Self::unavailable(match unready {
            Unready::Recovering => "the broker is recovering its log",
            Unready::Failed => "the log has failed; restart the broker",
            Unready::Draining => "the broker is shutting down",
            Unready::LogStalled => "log stalled: a sync takes longer than 5 s",
        });
        Self { is_recovering: unready == Unready::Recovering, ..error }
    }
}

impl From<NameError> for ApiError {
    fn from(error: NameError) -> Self {
        Self::invalid(error.to_string())
    }
}

impl From<serde_json::Error> for ApiError {
    fn from(error: serde_json::Error) -> Self {
        Self::invalid(format!("bad JSON: {error}"))
    }
}
