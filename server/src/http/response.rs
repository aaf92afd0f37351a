//! Responses as handlers return them, and their conversion to what hyper sends.

use std::borrow::Cow;

use hyper::header::{
    ALLOW, CONNECTION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE,
};
use hyper::{Response, StatusCode};

use super::error::ApiError;
use super::head::REQUEST_ID;
use super::response_body::{PollLines, ResponseBody};
use crate::json::Json;

/// A response without the headers that all responses have.
#[derive(Debug)]
pub(crate) struct ApiResponse {
    status: StatusCode,
    content_type: Option<ContentType>,
    body: ResponseBody,
    /// Headers that few responses have.
    pub(super) extra_headers: Vec<(HeaderName, HeaderValue)>,
    /// Whether the connection is closed after it.
    pub(super) close_connection: bool,
}

/// Content type of a body.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ContentType {
    Json,
    /// One JSON object per line.
    NdJson,
    OpenMetrics,
    Prometheus,
}

impl ContentType {
    fn header(self) -> HeaderValue {
        const JSON: HeaderValue = HeaderValue::from_static("application/json; charset=utf-8");
        const NDJSON: HeaderValue = HeaderValue::from_static("application/x-ndjson; charset=utf-8");
        const OPEN_METRICS: HeaderValue =
            HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
        const PROMETHEUS: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
        match self {
            Self::Json => JSON,
            Self::NdJson => NDJSON,
            Self::OpenMetrics => OPEN_METRICS,
            Self::Prometheus => PROMETHEUS,
        }
    }
}

impl ApiResponse {
    fn new(status: StatusCode, content_type: Option<ContentType>, body: ResponseBody) -> Self {
        Self { status, content_type, body, extra_headers: Vec::new(), close_connection: false }
    }

    pub(super) fn status(&self) -> StatusCode {
        self.status
    }

    /// Bytes of memory that its body uses, if it is known as a whole.
    pub(super) fn owned_bytes(&self) -> usize {
        self.body.owned_bytes()
    }

    /// The response to the request with this id. Its headers are added to `headers`, which must be empty.
    pub(super) fn into_http(self, id: HeaderValue, mut headers: HeaderMap) -> Response<ResponseBody> {
        if let Some(content_type) = self.content_type {
            headers.insert(CONTENT_TYPE, content_type.header());
        }
        headers.insert(REQUEST_ID, id);
        for (name, value) in self.extra_headers {
            headers.insert(name, value);
        }
        if self.close_connection {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        let mut response = Response::new(self.body);
        *response.status_mut() = self.status;
        *response.headers_mut() = headers;
        response
    }
}

impl From<ApiError> for ApiResponse {
    fn from(error: ApiError) -> Self {
        let mut out = Json::object();
        error.write_fields(&mut out);
        let mut response = json(error.status, out);
        if let Some(after) = error.retry_after() {
            response.extra_headers.push((RETRY_AFTER, HeaderValue::from(after.0.div_ceil(1_000))));
        }
        if let Some(allow) = error.allow {
            response.extra_headers.push((ALLOW, HeaderValue::from_static(allow)));
        }
        if error.status == StatusCode::UNAUTHORIZED {
            response.extra_headers.push((WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")));
        }
        response.close_connection = error.close_connection;
        response
    }
}

/// A JSON object.
pub(crate) fn json(status: StatusCode, json: Json) -> ApiResponse {
    ApiResponse::new(status, Some(ContentType::Json), ResponseBody::Whole(json.into_vec().into()))
}

/// A constant JSON document.
pub(crate) fn json_text(text: &'static str) -> ApiResponse {
    ApiResponse::new(StatusCode::OK, Some(ContentType::Json), ResponseBody::Whole(Cow::Borrowed(text.as_bytes())))
}

/// A text of another type.
pub(crate) fn text(content_type: ContentType, text: String) -> ApiResponse {
    ApiResponse::new(StatusCode::OK, Some(content_type), ResponseBody::Whole(text.into_bytes().into()))
}

/// NDJSON lines that are complete.
pub(crate) fn whole_lines(lines: Vec<u8>) -> ApiResponse {
    ApiResponse::new(StatusCode::OK, Some(ContentType::NdJson), ResponseBody::Whole(lines.into()))
}

/// NDJSON lines as they become available.
pub(crate) fn lines(source: impl PollLines + 'static) -> ApiResponse {
    ApiResponse::new(StatusCode::OK, Some(ContentType::NdJson), ResponseBody::Lines(Box::new(source)))
}

/// 204.
pub(crate) fn no_content() -> ApiResponse {
    ApiResponse::new(StatusCode::NO_CONTENT, None, ResponseBody::Empty)
}
