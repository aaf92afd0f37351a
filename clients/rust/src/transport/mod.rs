//! Requests over a pool of connections: which URL they go to, how long they may take, and when they are sent again.
//! Knows nothing of what they ask for.

mod backoff;
mod body;
mod connector;
mod endpoint;
mod failure;
mod pool;
#[cfg(feature = "tls")]
mod tls;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, LOCATION, USER_AGENT,
};
use hyper::{Method, Request, Response, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout};

pub(crate) use self::backoff::{Backoff, random_text};
pub(crate) use self::body::Body;
use self::connector::Connector;
pub(crate) use self::connector::Trust;
pub(crate) use self::endpoint::Endpoint;
pub(crate) use self::failure::{ErrorBody, Failure, Repeat, shown};
use self::failure::{is_json, unexpected};
use self::pool::Pool;
use crate::error::Error;
use crate::event::{Event, Observer};

/// The API that this client speaks.
const API: &str = "v1";
const CLIENT: &str = concat!("driftq-rust/", env!("CARGO_PKG_VERSION"), " contract/1");
const LEADER: HeaderName = HeaderName::from_static("driftq-leader");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// What the body of a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContentType {
    Json,
    Lines,
}

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) method: Method,
    /// The path below the base URL, with its query.
    pub(crate) path: Cow<'static, str>,
    pub(crate) body: Bytes,
    pub(crate) content_type: ContentType,
    /// Whether sending it twice is the same as once.
    pub(crate) repeatable: bool,
    pub(crate) traceparent: Option<String>,
    /// How long it is repeated, where that is not the setting of the client.
    pub(crate) retry_for: Option<Duration>,
}

impl Call {
    pub(crate) fn get(path: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Method::GET, path, Bytes::new())
    }

    pub(crate) fn post(path: impl Into<Cow<'static, str>>, body: impl Into<Bytes>) -> Self {
        Self::new(Method::POST, path, body.into())
    }

    pub(crate) fn new(method: Method, path: impl Into<Cow<'static, str>>, body: Bytes) -> Self {
        let repeatable = method == Method::GET;
        let (path, content_type) = (path.into(), ContentType::Json);
        Self { method, path, body, content_type, repeatable, traceparent: None, retry_for: None }
    }

    /// The same; sending it twice is the same as once if `condition` holds.
    pub(crate) fn repeatable_if(self, condition: bool) -> Self {
        Self { repeatable: condition, ..self }
    }

    pub(crate) fn retry_for(self, limit: Duration) -> Self {
        Self { retry_for: Some(limit), ..self }
    }
}

/// An answer that is a success.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
    /// Why the body is not all of it. Only a batch gets such an answer.
    pub(crate) cut: Option<Failure>,
    endpoint: usize,
}

/// The settings of a [`Transport`].
pub(crate) struct Settings {
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) key: Option<HeaderValue>,
    pub(crate) timeout: Duration,
    pub(crate) retry_for: Duration,
    pub(crate) trust: Trust,
}

struct Shared {
    settings: Settings,
    /// Where requests go as long as it answers.
    preferred: AtomicUsize,
    connector: Connector,
}

/// Sends requests. Clones share their connections, which belong to the runtime that opened them; a [`fork`](Self::fork)
/// has connections of its own.
#[derive(Clone)]
pub(crate) struct Transport {
    shared: Arc<Shared>,
    pool: Pool,
    observer: Observer,
}

impl Transport {
    /// # Errors
    /// [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) without URLs, and what TLS needs and does not have.
    pub(crate) fn new(settings: Settings, observer: Observer) -> Result<Self, Error> {
        if settings.endpoints.is_empty() {
            return Err(Error::misuse("a client needs at least one URL"));
        }
        let has_https = settings.endpoints.iter().any(Endpoint::is_https);
        let connector = Connector::new(&settings.trust, has_https)?;
        let shared = Arc::new(Shared { settings, preferred: AtomicUsize::new(0), connector });
        Ok(Self { pool: Pool::new(shared.connector.clone(), shared.settings.endpoints.len()), shared, observer })
    }

    /// The same servers over other connections.
    pub(crate) fn fork(&self, observer: Observer) -> Self {
        let pool = Pool::new(self.shared.connector.clone(), self.shared.settings.endpoints.len());
        Self { pool, shared: Arc::clone(&self.shared), observer }
    }

    pub(crate) fn observer(&self) -> &Observer {
        &self.observer
    }

    pub(crate) fn retry_for(&self) -> Duration {
        self.shared.settings.retry_for
    }

    /// Sends a request until it is answered, as long as it may be repeated.
    ///
    /// # Errors
    /// That of the last try.
    pub(crate) async fn call(&self, call: &Call) -> Result<Reply, Error> {
        let give_up = Instant::now() + call.retry_for.unwrap_or(self.retry_for());
        let mut backoff = Backoff::default();
        loop {
            match self.attempt(call).await {
                Ok(Reply { cut: Some(failure), .. }) | Err(failure) => {
                    self.pause_after(failure, call.repeatable, &mut backoff, give_up).await?;
                }
                Ok(reply) => return Ok(reply),
            }
        }
    }

    /// Sends a request and reads the JSON of its answer.
    ///
    /// # Errors
    /// As [`call`](Self::call), and [`ErrorKind::Protocol`](crate::ErrorKind::Protocol) if the answer is another.
    pub(crate) async fn json<T: DeserializeOwned>(&self, call: &Call) -> Result<T, Error> {
        let reply = self.call(call).await?;
        self.parse(call, &reply)
    }

    /// Reads the JSON of an answer.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`](crate::ErrorKind::Protocol) if the answer is another.
    pub(crate) fn parse<T: DeserializeOwned>(&self, call: &Call, reply: &Reply) -> Result<T, Error> {
        serde_json::from_slice(&reply.body).map_err(|error| {
            let at = &self.shared.settings.endpoints[reply.endpoint];
            let text = format!("{at}: {} {}: {error}: {}", call.method, call.path, shown(&reply.body));
            Error::protocol(text).answered(reply.status.as_u16(), "")
        })
    }

    /// Waits before a request is sent again.
    ///
    /// # Errors
    /// The failure itself, if the request must not be repeated or there is no time for it.
    pub(crate) async fn pause_after(
        &self,
        failure: Failure,
        repeatable: bool,
        backoff: &mut Backoff,
        give_up: Instant,
    ) -> Result<(), Error> {
        let may_repeat = match failure.repeat {
            Repeat::Any => true,
            Repeat::IfSafe => repeatable,
            Repeat::Never => false,
        };
        let error = failure.error.with_repeatable(repeatable);
        let pause = backoff.pause(failure.retry_after);
        if !may_repeat || Instant::now() + pause > give_up {
            return Err(error);
        }
        self.observer.report(&Event::RequestRetried { error: &error, pause });
        sleep(pause).await;
        Ok(())
    }

    /// Sends a request once.
    pub(crate) async fn attempt(&self, call: &Call) -> Result<Reply, Failure> {
        let limit = self.shared.settings.timeout;
        let index = self.preferred();
        let sent = AtomicBool::new(false);
        let exchange = async {
            let response = self.send(index, call, &sent).await?;
            self.read(index, response, call).await
        };
        let result = timeout(limit, exchange).await.unwrap_or_else(|_| {
            let endpoint = &self.shared.settings.endpoints[index];
            Err(Failure::timeout(&endpoint.to_string(), limit, sent.load(Ordering::Relaxed)))
        });
        self.note(index, &result);
        result
    }

    /// Sends a request once. Returns the answer whatever its status and type are.
    pub(crate) async fn probe(&self, call: &Call) -> Result<(StatusCode, HeaderMap, Bytes), Failure> {
        let limit = self.shared.settings.timeout;
        let index = self.preferred();
        let endpoint = &self.shared.settings.endpoints[index];
        let sent = AtomicBool::new(false);
        let exchange = async {
            let (head, body) = self.send(index, call, &sent).await?.into_parts();
            match body.read_all(endpoint).await {
                (bytes, None) => Ok((head.status, head.headers, bytes)),
                (_, Some(failure)) => Err(failure),
            }
        };
        let result = timeout(limit, exchange)
            .await
            .unwrap_or_else(|_| Err(Failure::timeout(&endpoint.to_string(), limit, sent.load(Ordering::Relaxed))));
        self.note(index, &result);
        result
    }

    /// Opens a stream, once, and names its server. Its body has no limit of time.
    pub(crate) async fn open(&self, call: &Call) -> Result<(Body, String), Failure> {
        let limit = self.shared.settings.timeout;
        let index = self.preferred();
        let sent = AtomicBool::new(false);
        let opening = async {
            let response = self.send(index, call, &sent).await?;
            if response.status() != StatusCode::OK || !is_json(response.headers()) {
                // A stream would not end, but an answer that is none does.
                let reply = self.read(index, response, call).await?;
                let what = format!("{} with {} bytes instead of a stream", reply.status, reply.body.len());
                return Err(Failure::new(Error::protocol(what), Repeat::Never));
            }
            Ok((response.into_body(), self.shared.settings.endpoints[index].to_string()))
        };
        let result = timeout(limit, opening).await.unwrap_or_else(|_| {
            Err(Failure::timeout(
                &self.shared.settings.endpoints[index].to_string(),
                limit,
                sent.load(Ordering::Relaxed),
            ))
        });
        self.note(index, &result);
        result
    }

    fn preferred(&self) -> usize {
        self.shared.preferred.load(Ordering::Relaxed)
    }

    /// Goes on with the next URL after a failure that asks for it.
    fn note<T>(&self, index: usize, result: &Result<T, Failure>) {
        if result.as_ref().is_err_and(|failure| failure.next_endpoint) {
            let next = (index + 1) % self.shared.settings.endpoints.len();
            // Unless another request has gone on already.
            let _ = self.shared.preferred.compare_exchange(index, next, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    async fn send(&self, index: usize, call: &Call, sent: &AtomicBool) -> Result<Response<Body>, Failure> {
        let endpoint = &self.shared.settings.endpoints[index];
        if !endpoint.is_checked() {
            // Boxed, as it is rare and large: every future around it would be as large.
            Box::pin(self.check_version(endpoint, index)).await?;
        }
        let response = self.exchange(endpoint, Some(index), call, sent).await?;
        self.follow_leader_hint(response.headers());
        if response.status() != StatusCode::TEMPORARY_REDIRECT {
            return Ok(response);
        }
        Box::pin(self.redirected(endpoint, &response, call, sent)).await
    }

    /// Sends a request to where an answer says, once.
    async fn redirected(
        &self,
        endpoint: &Endpoint,
        response: &Response<Body>,
        call: &Call,
        sent: &AtomicBool,
    ) -> Result<Response<Body>, Failure> {
        let location = response.headers().get(LOCATION).and_then(|location| location.to_str().ok());
        let target = location.and_then(|location| Endpoint::parse(&origin(location)).ok()).ok_or_else(|| {
            let message = format!("{endpoint}: expected a URL to be redirected to, got {location:?}");
            Failure::new(Error::protocol(message).answered(307, ""), Repeat::Never)
        })?;
        let known = self.shared.settings.endpoints.iter().position(|endpoint| endpoint.is_same_server(&target));
        let response = match known {
            Some(index) => {
                self.shared.preferred.store(index, Ordering::Relaxed);
                self.exchange(&self.shared.settings.endpoints[index], Some(index), call, sent).await?
            }
            None => self.exchange(&target, None, call, sent).await?,
        };
        if response.status() == StatusCode::TEMPORARY_REDIRECT {
            let message = format!("{endpoint}: redirected to {target}, which redirects again");
            return Err(Failure::new(Error::protocol(message).answered(307, ""), Repeat::Never));
        }
        Ok(response)
    }

    /// One exchange with one server. The key is for the URLs of the client alone, which have a number. `sent` becomes
    /// true when the request may have reached the server.
    async fn exchange(
        &self,
        endpoint: &Endpoint,
        index: Option<usize>,
        call: &Call,
        sent: &AtomicBool,
    ) -> Result<Response<Body>, Failure> {
        let mut request = Request::new(Full::new(call.body.clone()));
        *request.method_mut() = call.method.clone();
        *request.uri_mut() = endpoint.target(&call.path).map_err(|error| Failure::new(error, Repeat::Never))?;
        let headers = request.headers_mut();
        headers.insert(HOST, endpoint.host_header());
        headers.insert(USER_AGENT, const { HeaderValue::from_static(CLIENT) });
        headers.insert(ACCEPT, const { HeaderValue::from_static("application/json, application/x-ndjson") });
        if !call.body.is_empty() {
            let kind = match call.content_type {
                ContentType::Json => const { HeaderValue::from_static("application/json") },
                ContentType::Lines => const { HeaderValue::from_static("application/x-ndjson") },
            };
            headers.insert(CONTENT_TYPE, kind);
        }
        if let Some(key) = self.shared.settings.key.as_ref().filter(|_| index.is_some()) {
            headers.insert(AUTHORIZATION, key.clone());
        }
        if let Some(trace) = call.traceparent.as_ref().and_then(|trace| HeaderValue::from_str(trace).ok()) {
            headers.insert(TRACEPARENT, trace);
        }
        match self.pool.send(endpoint, index, request, sent).await {
            Ok((response, connection)) => Ok(response.map(|body| Body::new(body, connection))),
            Err(error) => Err(Failure::of_send(&error, &endpoint.to_string())),
        }
    }

    /// Reads an answer that ends. A batch also gets one that was cut short.
    async fn read(&self, index: usize, response: Response<Body>, call: &Call) -> Result<Reply, Failure> {
        let endpoint = &self.shared.settings.endpoints[index];
        let (head, body) = response.into_parts();
        let (bytes, cut) = body.read_all(endpoint).await;
        let is_batch = call.content_type == ContentType::Lines && head.status == StatusCode::OK;
        let cut = match cut {
            Some(failure) if !is_batch => return Err(failure),
            cut => cut,
        };
        if !head.status.is_success() {
            return Err(Failure::of_answer(&endpoint.to_string(), head.status, &head.headers, &bytes));
        }
        if head.status != StatusCode::NO_CONTENT && !is_json(&head.headers) {
            let error = unexpected(&endpoint.to_string(), "JSON", head.status, &head.headers, &bytes);
            return Err(Failure::new(error, Repeat::Never));
        }
        Ok(Reply { status: head.status, body: bytes, cut, endpoint: index })
    }

    /// Makes sure that a server speaks this API before anything else is asked of it.
    async fn check_version(&self, endpoint: &Endpoint, index: usize) -> Result<(), Failure> {
        let response = self.exchange(endpoint, Some(index), &Call::get("/v1/version"), &AtomicBool::new(false)).await?;
        let (head, body) = response.into_parts();
        let (bytes, cut) = body.read_all(endpoint).await;
        if let Some(failure) = cut {
            return Err(failure);
        }
        let protocol = |error: Error| Failure::new(error.answered(head.status.as_u16(), ""), Repeat::Never);
        match head.status {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND => {
                let message =
                    format!("{endpoint}: expected an answer of a DriftQ server, got 404 with {}", shown(&bytes));
                return Err(protocol(Error::protocol(message)));
            }
            // A server that redirects is asked when it is preferred.
            StatusCode::TEMPORARY_REDIRECT => return Ok(()),
            status => return Err(Failure::of_answer(&endpoint.to_string(), status, &head.headers, &bytes)),
        }
        let version: Option<Version> = is_json(&head.headers).then(|| serde_json::from_slice(&bytes).ok()).flatten();
        let Some(version) = version else {
            let what = "a version as JSON";
            return Err(protocol(unexpected(&endpoint.to_string(), what, head.status, &head.headers, &bytes)));
        };
        if version.api.as_deref().is_some_and(|api| api != API) {
            let theirs = version.api.unwrap_or_default();
            let message =
                format!("{endpoint}: this client speaks API {API}, the broker {} has API {theirs}", version.version);
            return Err(protocol(Error::protocol(message)));
        }
        endpoint.set_checked();
        Ok(())
    }

    fn follow_leader_hint(&self, headers: &HeaderMap) {
        let Some(hint) = headers.get(LEADER).and_then(|hint| hint.to_str().ok()) else { return };
        let Ok(leader) = Endpoint::parse(hint) else { return };
        if let Some(index) = self.shared.settings.endpoints.iter().position(|known| known.is_same_server(&leader)) {
            self.shared.preferred.store(index, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Transport {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let urls: Vec<_> = self.shared.settings.endpoints.iter().map(ToString::to_string).collect();
        f.debug_struct("Transport").field("urls", &urls).finish_non_exhaustive()
    }
}

/// `GET /v1/version`. A server that does not name its API speaks the first one.
#[derive(Deserialize)]
struct Version {
    version: String,
    #[serde(default)]
    api: Option<String>,
}

/// Scheme and authority of a URL.
fn origin(url: &str) -> String {
    let path = url.find("://").and_then(|at| url[at + 3..].find(['/', '?']).map(|slash| at + 3 + slash));
    url[..path.unwrap_or(url.len())].to_owned()
}
