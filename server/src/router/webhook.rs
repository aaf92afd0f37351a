//! HTTP client of the webhook: one request, one response, over a small pool of kept connections.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use driftq_core::types::{RoutingDecision, TenantId};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::circuit_breaker::CircuitBreaker;
use super::request::RouteRequest;
use super::response;
use super::{Company, Router, RouterAnswer, RouterFuture};
use crate::config::{Webhook, WebhookUrl};

/// Connections kept between requests.
const IDLE_MAX: usize = 8;
/// How long an idle connection is kept. A NAT or firewall on the path may drop it silently later.
const IDLE_FOR: Duration = Duration::from_secs(30);
/// Most bytes of a response head.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Why a router gave no decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RouterFailure {
    /// No response in time.
    Timeout,
    /// The connection failed.
    Unreachable,
    /// The response is not a decision.
    InvalidResponse,
    /// Not asked: the circuit is open or too many requests are in progress.
    Skipped,
}

impl RouterFailure {
    /// The value of the `reason` label in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Unreachable => "unreachable",
            Self::InvalidResponse => "nonsense",
            Self::Skipped => "skipped",
        }
    }
}

/// A webhook and the connections to it.
#[derive(Debug)]
pub struct WebhookRouter {
    url: WebhookUrl,
    timeout: Duration,
    breaker: Arc<CircuitBreaker>,
    idle: RefCell<Vec<(Connection, Instant)>>,
}

/// How one exchange failed.
enum ExchangeError {
    /// Before any byte of the response: the server may have closed a kept connection just before the request.
    NoResponse(RouterFailure),
    /// After the head of the response.
    Failed(RouterFailure),
}

impl Router for WebhookRouter {
    fn route<'a>(&'a self, request: RouteRequest<'a>, company: Company) -> RouterFuture<'a> {
        Box::pin(async move {
            if company == Company::Batch {
                self.breaker.room_for_batch().await;
            }
            self.ask(&request).await
        })
    }
}

impl WebhookRouter {
    /// A client of `webhook`. Opens no connection.
    #[must_use]
    pub fn new(webhook: &Webhook) -> Self {
        Self::sharing(webhook, Arc::new(CircuitBreaker::new(webhook.cooldown)))
    }

    /// A client of `webhook` that shares its circuit breaker with clients of other threads.
    pub(super) fn sharing(webhook: &Webhook, breaker: Arc<CircuitBreaker>) -> Self {
        Self { url: webhook.url.clone(), timeout: webhook.timeout, breaker, idle: RefCell::default() }
    }

    /// The webhook's decision, within its timeout.
    async fn ask(&self, request: &RouteRequest<'_>) -> RouterAnswer {
        let permit = self.breaker.permit(Instant::now()).ok_or(RouterFailure::Skipped)?;
        let result = timeout(self.timeout, self.exchange(request.to_json(), request.topic.tenant())).await;
        match result.unwrap_or(Err(RouterFailure::Timeout)) {
            Ok(decision) => {
                permit.succeeded();
                Ok(decision)
            }
            Err(failure) => {
                tracing::warn!(webhook = self.url.authority, failure = failure.as_str(), "router webhook failed");
                permit.failed(Instant::now());
                Err(failure)
            }
        }
    }

    /// Uses a kept connection if there is one, and a fresh one if there is none or it gave no response. The request is
    /// idempotent, so it may be sent twice.
    async fn exchange(&self, body: Bytes, tenant: TenantId) -> Result<Option<RoutingDecision>, RouterFailure> {
        if let Some(kept) = self.take_idle() {
            match self.exchange_over(kept, body.clone(), tenant).await {
                Ok(decision) => return Ok(decision),
                Err(ExchangeError::Failed(failure)) => return Err(failure),
                Err(ExchangeError::NoResponse(_)) => {}
            }
        }
        let fresh = Connection::open(&self.url).await.ok_or(RouterFailure::Unreachable)?;
        self.exchange_over(fresh, body, tenant).await.map_err(|error| match error {
            ExchangeError::NoResponse(failure) | ExchangeError::Failed(failure) => failure,
        })
    }

    async fn exchange_over(
        &self,
        mut connection: Connection,
        body: Bytes,
        tenant: TenantId,
    ) -> Result<Option<RoutingDecision>, ExchangeError> {
        let response = connection.send(&self.url, body).await;
        let response = response.map_err(|error| ExchangeError::NoResponse(classify(&error)))?;
        let decision = read(response, tenant).await.map_err(ExchangeError::Failed)?;
        self.keep(connection);
        Ok(decision)
    }

    fn take_idle(&self) -> Option<Connection> {
        let mut idle = self.idle.borrow_mut();
        let now = Instant::now();
        idle.retain(|(connection, since)| now - *since < IDLE_FOR && !connection.sender.is_closed());
        idle.pop().map(|(connection, _)| connection)
    }

    fn keep(&self, connection: Connection) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < IDLE_MAX && !connection.sender.is_closed() {
            idle.push((connection, Instant::now()));
        }
    }
}

/// The decision in a response, read to its end: 200 carries one, 204 none, any other status is invalid.
async fn read(response: Response<Incoming>, tenant: TenantId) -> Result<Option<RoutingDecision>, RouterFailure> {
    match response.status() {
        StatusCode::NO_CONTENT => Ok(None),
        StatusCode::OK => {
            let body = Limited::new(response.into_body(), response::RESPONSE_BYTES_MAX).collect().await;
            let body = body.map_err(|error| match error.downcast::<hyper::Error>() {
                Ok(error) => classify(&error),
                Err(error) if error.is::<LengthLimitError>() => RouterFailure::InvalidResponse,
                Err(_) => RouterFailure::Unreachable,
            })?;
            response::decode(&body.to_bytes(), tenant).map_err(|_| RouterFailure::InvalidResponse)
        }
        _ => Err(RouterFailure::InvalidResponse),
    }
}

/// Malformed HTTP is an invalid response; any other error is of the connection.
fn classify(error: &hyper::Error) -> RouterFailure {
    if error.is_parse() { RouterFailure::InvalidResponse } else { RouterFailure::Unreachable }
}

/// A connection and the task that drives it. Dropping the connection aborts the task.
#[derive(Debug)]
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

    async fn send(&mut self, url: &WebhookUrl, body: Bytes) -> Result<Response<Incoming>, hyper::Error> {
        self.sender.ready().await?;
        let request = Request::post(url.path.as_str())
            .header(header::HOST, url.authority.as_str())
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json")
            .header(header::USER_AGENT, concat!("driftqd/", env!("CARGO_PKG_VERSION")))
            .body(Full::new(body))
            .expect("a parsed URL's path and authority are valid in a request");
        self.sender.send_request(request).await
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}
