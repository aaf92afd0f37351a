//! The webhook's client: one question, one answer, over a few connections that are kept open.

use std::cell::RefCell;
use std::time::Duration;

use bytes::Bytes;
use driftq_core::types::RoutingDecision;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::health::Health;
use super::{Question, RouterFailure, answer, question};
use crate::config::{Webhook, WebhookUrl};

/// Connections kept open between questions.
const IDLE_MAX: usize = 8;
/// How long a connection is kept without a question. What lies between may forget it silently after a while.
const IDLE_FOR: Duration = Duration::from_secs(30);
/// The most bytes of an answer's head.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// A webhook and the connections to it.
#[derive(Debug)]
pub(super) struct Client {
    /// `None` where the settings' URL is none. Loaded settings never have such a one.
    url: Option<WebhookUrl>,
    timeout: Duration,
    health: Health,
    idle: RefCell<Vec<(Connection, Instant)>>,
}

/// What went wrong with one exchange.
enum Fault {
    /// Before anything of an answer had come: on a connection that was kept, it may just have been closed at the other end.
    Unanswered(RouterFailure),
    /// Afterwards.
    Answered(RouterFailure),
}

impl Client {
    /// A client of `webhook`. Connects to nothing yet.
    pub(super) fn new(webhook: &Webhook) -> Self {
        Self {
            url: WebhookUrl::parse(&webhook.url),
            timeout: webhook.timeout,
            health: Health::new(webhook.rest),
            idle: RefCell::default(),
        }
    }

    /// The webhook's decision, within its time.
    pub(super) async fn ask(&self, question: &Question<'_>) -> Result<Option<RoutingDecision>, RouterFailure> {
        let Some(url) = &self.url else { return Err(RouterFailure::Unreachable) };
        let admission = self.health.admit(Instant::now()).ok_or(RouterFailure::Skipped)?;
        let outcome = timeout(self.timeout, self.exchange(url, question::encode(question))).await;
        match outcome.unwrap_or(Err(RouterFailure::Timeout)) {
            Ok(decision) => {
                admission.answered();
                Ok(decision)
            }
            Err(failure) => {
                tracing::warn!(webhook = url.authority, failure = failure.as_str(), "the router gave no decision");
                admission.failed(Instant::now());
                Err(failure)
            }
        }
    }

    /// Asks over a kept connection if there is one, and over a fresh one if there is none or nothing came of it. A question changes
    /// nothing at the other end, so that it may be asked twice.
    async fn exchange(&self, url: &WebhookUrl, body: Bytes) -> Result<Option<RoutingDecision>, RouterFailure> {
        if let Some(kept) = self.take_idle() {
            match self.exchange_over(kept, url, body.clone()).await {
                Ok(decision) => return Ok(decision),
                Err(Fault::Answered(failure)) => return Err(failure),
                Err(Fault::Unanswered(_)) => {}
            }
        }
        let fresh = Connection::open(url).await.ok_or(RouterFailure::Unreachable)?;
        self.exchange_over(fresh, url, body).await.map_err(|fault| match fault {
            Fault::Unanswered(failure) | Fault::Answered(failure) => failure,
        })
    }

    async fn exchange_over(
        &self,
        mut connection: Connection,
        url: &WebhookUrl,
        body: Bytes,
    ) -> Result<Option<RoutingDecision>, Fault> {
        let response = connection.send(url, body).await.map_err(|error| Fault::Unanswered(kind_of(&error)))?;
        let decision = read(response).await.map_err(Fault::Answered)?;
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

/// The decision in a response, read to its end: 200 has one, 204 says there is none, nothing else is an answer.
async fn read(response: Response<Incoming>) -> Result<Option<RoutingDecision>, RouterFailure> {
    match response.status() {
        StatusCode::NO_CONTENT => Ok(None),
        StatusCode::OK => {
            let body = Limited::new(response.into_body(), answer::ANSWER_BYTES_MAX).collect().await;
            let body = body.map_err(|error| match error.downcast::<hyper::Error>() {
                Ok(error) => kind_of(&error),
                Err(error) if error.is::<LengthLimitError>() => RouterFailure::Nonsense,
                Err(_) => RouterFailure::Unreachable,
            })?;
            answer::decode(&body.to_bytes()).map_err(|_| RouterFailure::Nonsense)
        }
        _ => Err(RouterFailure::Nonsense),
    }
}

/// What is no HTTP is nonsense; everything else is a connection that broke.
fn kind_of(error: &hyper::Error) -> RouterFailure {
    if error.is_parse() { RouterFailure::Nonsense } else { RouterFailure::Unreachable }
}

/// A connection, and the task that moves its bytes. The task ends with it, whatever state it is in.
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
            // What goes wrong here, whoever waits for the answer is told as well.
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
