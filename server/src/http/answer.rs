//! Answers as requests' handlers give them, and the one place where they become what hyper sends.

use std::borrow::Cow;

use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};

use super::body::ReplyBody;
use super::head::REQUEST_ID;
use crate::json::Json;

/// An answer without the head that all answers have.
#[derive(Debug)]
pub(crate) struct Answer {
    status: StatusCode,
    kind: Option<Kind>,
    body: ReplyBody,
    /// Headers that only few answers have.
    pub(super) more: Vec<(HeaderName, HeaderValue)>,
    /// Whether the connection ends with it.
    pub(super) closes: bool,
}

/// What a body is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// One JSON object.
    Json,
    /// One JSON object per line.
    Lines,
    /// Figures as OpenMetrics has them.
    OpenMetrics,
    /// Figures as Prometheus has them.
    Prometheus,
}

impl Kind {
    fn header(self) -> HeaderValue {
        const JSON: HeaderValue = HeaderValue::from_static("application/json; charset=utf-8");
        const LINES: HeaderValue = HeaderValue::from_static("application/x-ndjson; charset=utf-8");
        const OPEN_METRICS: HeaderValue =
            HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
        const PROMETHEUS: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
        match self {
            Self::Json => JSON,
            Self::Lines => LINES,
            Self::OpenMetrics => OPEN_METRICS,
            Self::Prometheus => PROMETHEUS,
        }
    }
}

impl Answer {
    fn new(status: StatusCode, kind: Option<Kind>, body: ReplyBody) -> Self {
        Self { status, kind, body, more: Vec::new(), closes: false }
    }

    /// As hyper sends it, to the request of this id. Its head is written into `headers`, in which there must be none yet.
    pub(super) fn into_response(self, id: HeaderValue, mut headers: HeaderMap) -> Response<ReplyBody> {
        if let Some(kind) = self.kind {
            headers.insert(CONTENT_TYPE, kind.header());
        }
        headers.insert(REQUEST_ID, id);
        for (name, value) in self.more {
            headers.insert(name, value);
        }
        if self.closes {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        let mut response = Response::new(self.body);
        *response.status_mut() = self.status;
        *response.headers_mut() = headers;
        response
    }
}

/// A JSON object.
pub(crate) fn json(status: StatusCode, json: Json) -> Answer {
    Answer::new(status, Some(Kind::Json), ReplyBody::Whole(json.into_vec().into()))
}

/// A JSON document that is kept ready.
pub(crate) fn json_text(text: &'static str) -> Answer {
    Answer::new(StatusCode::OK, Some(Kind::Json), ReplyBody::Whole(Cow::Borrowed(text.as_bytes())))
}

/// Text of another kind.
pub(crate) fn text(kind: Kind, text: String) -> Answer {
    Answer::new(StatusCode::OK, Some(kind), ReplyBody::Whole(text.into_bytes().into()))
}

/// Lines that follow as they come.
pub(crate) fn lines(body: ReplyBody) -> Answer {
    Answer::new(StatusCode::OK, Some(Kind::Lines), body)
}

/// 204.
pub(crate) fn nothing() -> Answer {
    Answer::new(StatusCode::NO_CONTENT, None, ReplyBody::Empty)
}
