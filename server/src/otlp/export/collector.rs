//! HTTP client of the collector: one request at a time over a connection that is kept.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::config::{OtlpSettings, WebhookUrl};
use crate::otlp::figures::Signal;

/// How long a request may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Most bytes of the head of an answer.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Most bytes of an answer.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Why an export failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ExportError {
    /// No answer in time.
    #[error("no answer within {TIMEOUT:?}")]
    Timeout,
    /// The connection cannot be made, or breaks.
    #[error("the connection failed")]
    Unreachable,
    /// What was answered is not HTTP, or is too long.
    #[error("the answer is not valid")]
    InvalidAnswer,
    /// Any status but 200.
    #[error("the answer is {status}")]
    Status {
        /// The status.
        status: StatusCode,
        /// What the collector asks to wait.
        retry_after: Option<Duration>,
    },
}

impl ExportError {
    /// Whether the protocol forbids to send the same again.
    pub(super) fn is_final(self) -> bool {
        match self {
            Self::Status { status, .. } => !matches!(status.as_u16(), 429 | 502 | 503 | 504),
            Self::Timeout | Self::Unreachable | Self::InvalidAnswer => false,
        }
    }

    /// What the collector asks to wait.
    pub(super) fn retry_after(self) -> Option<Duration> {
        if let Self::Status { retry_after, .. } = self { retry_after } else { None }
    }
}

/// A collector, for one signal.
pub(super) struct Collector {
    url: WebhookUrl,
    signal: Signal,
    headers: HeaderMap,
    kept: Option<Connection>,
    /// Whether the last export failed, so that a failure is warned of once.
    has_failed: bool,
}

impl Collector {
    /// The one at `endpoint`. Opens no connection.
    pub(super) fn new(endpoint: &WebhookUrl, signal: Signal, settings: &OtlpSettings) -> Self {
        let path = format!("{}/v1/{}", endpoint.path.trim_end_matches('/'), signal.as_str());
        let mut headers = HeaderMap::new();
        for (name, value) in settings.headers.iter() {
            let name = name.parse::<HeaderName>().expect("the settings are checked");
            let mut value = value.parse::<HeaderValue>().expect("the settings are checked");
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        headers.insert(HOST, endpoint.authority.parse().expect("a parsed URL's authority is a header"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        let agent = HeaderValue::from_static(concat!("driftqd/", env!("CARGO_PKG_VERSION")));
        headers.entry(USER_AGENT).or_insert(agent);
        Self { url: WebhookUrl { path, ..endpoint.clone() }, signal, headers, kept: None, has_failed: false }
    }

    /// Sends a request, and returns the body of the answer.
    pub(super) async fn post(&mut self, body: Bytes) -> Result<Bytes, ExportError> {
        let result = timeout(TIMEOUT, self.exchange(body)).await.unwrap_or(Err(ExportError::Timeout));
        let (collector, signal) = (&self.url.authority, self.signal.as_str());
        match result {
            Ok(_) if self.has_failed => tracing::info!(collector, signal, "the OTLP export succeeds again"),
            Err(error) if !self.has_failed => tracing::warn!(collector, signal, "the OTLP export failed: {error}"),
            Err(error) => tracing::debug!(collector, signal, "the OTLP export failed again: {error}"),
            Ok(_) => {}
        }
        self.has_failed = result.is_err();
        result
    }

    /// Uses the kept connection if there is one, and a fresh one if there is none or it gave no answer: the collector
    /// may have closed it just before.
    async fn exchange(&mut self, body: Bytes) -> Result<Bytes, ExportError> {
        if let Some(kept) = self.kept.take().filter(|kept| !kept.sender.is_closed()) {
            match self.exchange_over(kept, body.clone()).await {
                Err(ExportError::Unreachable) => {}
                result => return result,
            }
        }
        let fresh = Connection::open(&self.url).await.ok_or(ExportError::Unreachable)?;
        self.exchange_over(fresh, body).await
    }

    async fn exchange_over(&mut self, mut connection: Connection, body: Bytes) -> Result<Bytes, ExportError> {
        let mut request = Request::post(self.url.path.as_str()).body(Full::new(body)).expect("a parsed URL's path");
        *request.headers_mut() = self.headers.clone();
        let classify = |error: &hyper::Error| match error.is_parse() {
            true => ExportError::InvalidAnswer,
            false => ExportError::Unreachable,
        };
        connection.sender.ready().await.map_err(|error| classify(&error))?;
        let response = connection.sender.send_request(request).await.map_err(|error| classify(&error))?;
        let status = response.status();
        let retry_after = response.headers().get(RETRY_AFTER).and_then(|after| after.to_str().ok()?.parse().ok());
        let answer = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        let answer = answer.map_err(|_| ExportError::InvalidAnswer)?.to_bytes();
        self.kept = Some(connection);
        match status {
            StatusCode::OK => Ok(answer),
            _ => Err(ExportError::Status { status, retry_after: retry_after.map(Duration::from_secs) }),
        }
    }
}

/// A connection and the task that drives it. Dropping the connection aborts the task.
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    task: JoinHandle<()>,
}

impl Connection {
    async fn open(url: &WebhookUrl) -> Option<Self> {
        let stream = TcpStream::connect((url.host.as_str(), url.port)).await.ok()?;
        stream.set_nodelay(true).ok()?;
        let mut builder = http1::Builder::new();
        builder.max_buf_size(HEAD_BYTES_MAX).max_header_size(HEAD_BYTES_MAX);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.ok()?;
        let task = tokio::task::spawn_local(async move {
            // `send_request` returns the same error.
            let _ = connection.await;
        });
        Some(Self { sender, task })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}
