//! What an answer, or the lack of one, means: which error it is, and whether the request may be sent again.

use std::error::Error as StdError;
use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use serde::Deserialize;

use super::connector::TlsRefused;
use super::pool::SendError;
use crate::error::{Error, ErrorKind};

/// How much of an unexpected answer an error shows.
const SHOWN_BYTES: usize = 200;
/// The refusals of a claim that another worker's is newer than.
const STALE: [&str; 2] = ["stale lease", "not owner"];

/// Whether a request may be sent again after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// Any request: it has had no effect.
    Any,
    /// A request that cannot double.
    IfSafe,
    /// It would fail again.
    Never,
}

/// One failed try.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: Error,
    pub(crate) repeat: Repeat,
    /// Whether the next try goes to the next URL.
    pub(crate) next_endpoint: bool,
    /// The pause that the server asks for.
    pub(crate) retry_after: Option<Duration>,
}

impl Failure {
    pub(crate) fn new(error: Error, repeat: Repeat) -> Self {
        Self { error, repeat, next_endpoint: false, retry_after: None }
    }

    /// The same failure, of one line of a batch that may be repeatable.
    pub(crate) fn for_line(&self, is_repeatable: bool) -> Self {
        let Self { ref error, repeat, next_endpoint, retry_after } = *self;
        Self { error: error.clone().with_repeatable(is_repeatable), repeat, next_endpoint, retry_after }
    }

    fn elsewhere(self) -> Self {
        Self { next_endpoint: true, ..self }
    }

    /// The connection failed in front of, during or after the request.
    pub(crate) fn of_send(error: &SendError, endpoint: &str) -> Self {
        let http = match error {
            SendError::Connect(error) => {
                if let Some(refused) = find::<TlsRefused>(&**error) {
                    let error = Error::new(ErrorKind::Tls, format!("{endpoint}: the TLS handshake failed: {refused}"));
                    return Self::new(error, Repeat::Never).elsewhere();
                }
                let message = format!("{endpoint}: {}", chain(&**error));
                return Self::new(Error::new(ErrorKind::Unavailable, message), Repeat::Any).elsewhere();
            }
            SendError::Http(error) => error,
        };
        let message = format!("{endpoint}: {}", chain(http));
        // The request was withdrawn before it was sent.
        if http.is_canceled() {
            return Self::new(Error::new(ErrorKind::Unavailable, message), Repeat::Any).elsewhere();
        }
        if http.is_parse() && !http.is_incomplete_message() {
            let message = format!("{endpoint}: expected an HTTP server: {}", chain(http));
            return Self::new(Error::protocol(message), Repeat::Never);
        }
        Self::new(Error::new(ErrorKind::Unknown, message), Repeat::IfSafe).elsewhere()
    }

    /// The answer was cut short.
    pub(crate) fn cut(endpoint: &str, error: &(dyn StdError + 'static)) -> Self {
        let message = format!("{endpoint}: the answer was cut short: {}", chain(error));
        Self::new(Error::new(ErrorKind::Unknown, message), Repeat::IfSafe).elsewhere()
    }

    /// There was no answer in time. A request that was not sent has had no effect.
    pub(crate) fn timeout(endpoint: &str, limit: Duration, sent: bool) -> Self {
        let (what, kind, repeat) = match sent {
            true => ("answer", ErrorKind::Unknown, Repeat::IfSafe),
            false => ("connection", ErrorKind::Unavailable, Repeat::Any),
        };
        Self::new(Error::new(kind, format!("{endpoint}: no {what} within {limit:?}")), repeat).elsewhere()
    }

    /// An answer that is no success.
    pub(crate) fn of_answer(endpoint: &str, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Self {
        let known: Option<ErrorBody> = if is_json(headers) { serde_json::from_slice(body).ok() } else { None };
        let by_proxy = matches!(status.as_u16(), 401 | 403 | 429 | 500..=599);
        let Some(answer) = known.or_else(|| by_proxy.then(ErrorBody::default)) else {
            return Self::new(unexpected(endpoint, "an error as JSON", status, headers, body), Repeat::Never);
        };
        let mut failure = Self::of_error(status, answer);
        failure.retry_after = header_seconds(headers).or(failure.error.retry_after());
        if failure.error.retry_after().is_none() {
            failure.error = failure.error.with_retry_after(failure.retry_after);
        }
        failure
    }

    /// An error of the broker: an answer's body, or a line of a batch.
    pub(crate) fn of_error(status: StatusCode, answer: ErrorBody) -> Self {
        let (kind, repeat) = match status.as_u16() {
            401 => (ErrorKind::Unauthenticated, Repeat::Never),
            403 => (ErrorKind::PermissionDenied, Repeat::Never),
            404 => (ErrorKind::NotFound, Repeat::Never),
            409 if answer.decision.as_deref() == Some("IN_PROGRESS") => (ErrorKind::InProgress, Repeat::Never),
            409 if STALE.iter().any(|stale| answer.message.contains(stale)) => (ErrorKind::StaleLease, Repeat::Never),
            409 => (ErrorKind::Conflict, Repeat::Never),
            429 => (ErrorKind::Overloaded, Repeat::Any),
            503 if answer.committed.as_deref() == Some("no") => (ErrorKind::Unavailable, Repeat::Any),
            502..=504 => (ErrorKind::Unknown, Repeat::IfSafe),
            507 => (ErrorKind::StorageFull, Repeat::Never),
            500.. => (ErrorKind::Unknown, Repeat::Never),
            _ => (ErrorKind::Invalid, Repeat::Never),
        };
        let message = if answer.message.is_empty() { status.to_string() } else { answer.message };
        let error = Error::new(kind, message)
            .answered(status.as_u16(), answer.error)
            .with_reason(answer.reason)
            .with_retry_after(answer.retry_after_ms.map(Duration::from_millis));
        let failure = Self { retry_after: error.retry_after(), ..Self::new(error, repeat) };
        if matches!(status.as_u16(), 502..=504) { failure.elsewhere() } else { failure }
    }
}

/// The body of an error.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct ErrorBody {
    pub(crate) error: String,
    pub(crate) message: String,
    pub(crate) reason: Option<String>,
    pub(crate) decision: Option<String>,
    pub(crate) retry_after_ms: Option<u64>,
    /// `no` if the request has had no effect.
    pub(crate) committed: Option<String>,
}

/// An answer that a DriftQ server does not give.
pub(crate) fn unexpected(
    endpoint: &str,
    expected: &str,
    status: StatusCode,
    headers: &HeaderMap,
    body: &[u8],
) -> Error {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("no content type");
    let message =
        format!("{endpoint}: expected {expected} from a DriftQ server, got {status} with {kind}: {}", shown(body));
    Error::protocol(message).answered(status.as_u16(), "")
}

/// The first bytes of an answer, for an error.
pub(crate) fn shown(body: &[u8]) -> String {
    let start = &body[..body.len().min(SHOWN_BYTES)];
    format!("{:?}", String::from_utf8_lossy(start))
}

/// Whether an answer says that it is JSON, or lines of it.
pub(crate) fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).map(hyper::header::HeaderValue::as_bytes).unwrap_or_default();
    kind.starts_with(b"application/json") || kind.starts_with(b"application/x-ndjson")
}

fn header_seconds(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

/// The first cause of this type. Causes that `io::Error` wraps count, too.
fn find<'a, E: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a E> {
    let mut next = Some(error);
    while let Some(cause) = next {
        if let Some(found) = cause.downcast_ref() {
            return Some(found);
        }
        let wrapped = cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        if let Some(found) = wrapped.and_then(|wrapped| find(wrapped)) {
            return Some(found);
        }
        next = cause.source();
    }
    None
}

/// An error and its causes.
fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}
