//! Errors of the client: what failed, and whether the same call can be sent again without harm.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

/// What kind of failure an [`Error`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request is invalid: 400, 405, 413, 422. It would fail again.
    Invalid,
    /// No key, or one that is not known: 401.
    Unauthenticated,
    /// The key does not permit this: 403.
    PermissionDenied,
    /// No such topic, group, effect or route: 404.
    NotFound,
    /// The request contradicts the state: 409.
    Conflict,
    /// Another worker has the message or the effect: 409.
    StaleLease,
    /// The effect is in progress elsewhere: 409. [`Error::retry_after`] says when to ask again.
    InProgress,
    /// The broker refuses for want of room: 429.
    Overloaded,
    /// The broker cannot be reached, or has refused before it did anything.
    Unavailable,
    /// The disk of the broker is full: 507.
    StorageFull,
    /// The request may have been carried out: a lost connection, a timeout, 500, 503.
    Unknown,
    /// A certificate or a TLS handshake was refused.
    Tls,
    /// The answer is not that of a DriftQ server of this API.
    Protocol,
    /// A mistake of the caller, found before anything was sent.
    Misuse,
}

impl ErrorKind {
    /// The name that all clients of DriftQ use.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::Unauthenticated => "unauthenticated",
            Self::PermissionDenied => "permission_denied",
            Self::NotFound => "not_found",
            Self::Conflict => "conflict",
            Self::StaleLease => "stale_lease",
            Self::InProgress => "in_progress",
            Self::Overloaded => "overloaded",
            Self::Unavailable => "unavailable",
            Self::StorageFull => "storage_full",
            Self::Unknown => "unknown",
            Self::Tls => "tls",
            Self::Protocol => "protocol",
            Self::Misuse => "misuse",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a call failed.
///
/// # Examples
/// ```
/// use driftq_client::{Client, ErrorKind};
///
/// let error = Client::builder().url("localhost:8080").build().expect_err("a URL without scheme");
/// assert_eq!(error.kind(), ErrorKind::Misuse);
/// assert!(!error.retry_is_safe());
/// ```
#[derive(Clone)]
pub struct Error(Box<Details>);

#[derive(Clone, Debug)]
struct Details {
    kind: ErrorKind,
    status: u16,
    code: String,
    message: String,
    reason: Option<String>,
    retry_after: Option<Duration>,
    /// Whether the request cannot double, whatever became of it.
    repeatable: bool,
}

impl Error {
    /// An error of a kind, without an answer behind it. Implementations of [`Store`](crate::Store) use this.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Details {
            kind,
            status: 0,
            code: String::new(),
            message: message.into(),
            reason: None,
            retry_after: None,
            repeatable: false,
        }))
    }

    pub(crate) fn misuse(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Misuse, message)
    }

    pub(crate) fn protocol(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Protocol, message)
    }

    /// The same, with the status and the code of an answer.
    #[must_use]
    pub fn answered(mut self, status: u16, code: impl Into<String>) -> Self {
        self.0.status = status;
        self.0.code = code.into();
        self
    }

    pub(crate) fn with_reason(mut self, reason: Option<String>) -> Self {
        self.0.reason = reason;
        self
    }

    /// The same, with a time to wait before the next try.
    #[must_use]
    pub fn with_retry_after(mut self, retry_after: Option<Duration>) -> Self {
        self.0.retry_after = retry_after;
        self
    }

    /// The same, of a call that cannot double or that can, whatever became of it: [`Error::retry_is_safe`] of an
    /// [`ErrorKind::Unknown`].
    #[must_use]
    pub fn with_repeatable(mut self, repeatable: bool) -> Self {
        self.0.repeatable = repeatable;
        self
    }

    /// What kind of failure it is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The HTTP status of the answer; 0 without an answer.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.0.status
    }

    /// The code of the answer, such as `INVALID_ARGUMENT`; empty without an answer.
    #[must_use]
    pub fn code(&self) -> &str {
        &self.0.code
    }

    /// What failed, for people.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The limit that a 429 names, such as `overloaded` or `quota`.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        self.0.reason.as_deref()
    }

    /// When to try again, if the broker said so.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// Whether sending the same call again can do no harm and may succeed.
    ///
    /// For [`ErrorKind::Unknown`] that depends on the request: one with an idempotency key or a lease token cannot
    /// double.
    #[must_use]
    pub fn retry_is_safe(&self) -> bool {
        match self.0.kind {
            ErrorKind::InProgress | ErrorKind::Overloaded | ErrorKind::Unavailable | ErrorKind::StorageFull => true,
            ErrorKind::Unknown => self.0.repeatable,
            _ => false,
        }
    }

    /// Whether a lease or a grant is held by another worker, or what it belongs to is gone.
    pub(crate) fn is_lease_lost(&self) -> bool {
        matches!(self.0.kind, ErrorKind::StaleLease | ErrorKind::Conflict | ErrorKind::NotFound)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.kind)?;
        if self.0.status != 0 {
            write!(f, " ({}", self.0.status)?;
            if !self.0.code.is_empty() {
                write!(f, " {}", self.0.code)?;
            }
            write!(f, ")")?;
        }
        write!(f, ": {}", self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({self})")
    }
}

impl StdError for Error {}
