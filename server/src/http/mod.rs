//! HTTP: from requests to commands and back.
//!
//! [`edge`] has the sockets, [`guard`] says who is let in, [`routes`] which door a path leads to; behind each door one file per
//! family of requests. Nothing is decided here.

mod answer;
mod batch;
mod bell;
mod body;
mod complete;
mod consume;
pub(crate) mod edge;
mod error;
mod fields;
pub(crate) mod fuzzing;
mod groups;
mod guard;
mod head;
mod idempotency;
mod letters;
mod patience;
mod produce;
mod query;
mod routes;
mod settle;
mod socket;
mod status;
mod topics;

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::rc::Rc;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{HeaderMap, HeaderValue};
use hyper::{Request, Response, Uri, Version};
use tokio::sync::Semaphore;

use self::answer::Answer;
use self::batch::{BatchBody, BatchKind};
use self::body::{Inflow, Pace, ReplyBody};
use self::error::ApiError;
use self::fields::{AckFields, read};
use self::guard::Guard;
use self::head::Head;
use self::patience::PatienceTimer;
use self::query::Query;
use self::routes::Route;
use crate::config::Settings;
use crate::driver::Driver;
use crate::json::hex;
use crate::metrics::Metrics;
use crate::router::Router;

/// The longest request id that is echoed.
const REQUEST_ID_BYTES_MAX: usize = 128;
/// How long those are that are made here,
const REQUEST_ID_BYTES: usize = 32;
/// and how many are made at once.
const REQUEST_IDS_AT_ONCE: usize = 64;

/// A map with room for more headers than this is not used again.
const HEADERS_KEPT_MAX: usize = 24;

/// Everything a request needs.
pub(crate) struct Api {
    pub(crate) driver: Rc<Driver>,
    pub(crate) settings: Settings,
    pub(crate) metrics: Rc<Metrics>,
    pub(crate) router: Router,
    guard: Guard,
    ids: RequestIds,
    /// Digests are made one after the other: each reads the whole state.
    digests: Semaphore,
}

impl Api {
    pub(crate) fn new(driver: Rc<Driver>, settings: Settings, metrics: Rc<Metrics>, seed: u64) -> Rc<Self> {
        let guard = Guard::new(settings.addr, &settings.http.allowed_hosts);
        let router = Router::new(settings.router.clone());
        Rc::new(Self {
            driver,
            settings,
            metrics,
            router,
            guard,
            ids: RequestIds::new(seed),
            digests: Semaphore::new(1),
        })
    }

    /// Answers a request, whatever it is. What can be told from its head is told at once: what waits carries only the rest.
    pub(crate) fn answer(
        self: &Rc<Self>,
        request: Request<Incoming>,
        turn: &PatienceTimer,
    ) -> impl Future<Output = Result<Response<ReplyBody>, Infallible>> + use<> {
        let (parts, incoming) = request.into_parts();
        let head = Head::of(&parts.headers);
        let id = self.ids.of(head.request_id);
        // Where it is not known how the sender framed its body, nothing that follows on the connection can be relied on.
        let closes = parts.version < Version::HTTP_2 && head.has_encoding;
        let is_batch = head.is_ndjson();
        let is_about_message = head.is_about_message();
        let route = self.guard.check(&parts, &head).and_then(|()| Route::of(&parts.method, parts.uri.path()));
        let mut asked = Asked { headers: parts.headers, uri: parts.uri, is_about_message, turn: turn.clone() };
        let api = Rc::clone(self);
        async move {
            let answered = match route {
                // In a box, so that the busiest routes need not carry room for all the others.
                Ok(route @ (Route::Produce | Route::Ack)) if is_batch => {
                    Box::pin(api.batch(&route, &asked, incoming)).await
                }
                Ok(Route::Produce) => api.produce(&mut asked, incoming).await,
                Ok(Route::Ack) => api.ack(&mut asked, incoming).await,
                Ok(route @ (Route::Begin | Route::Finish)) => api.ask_store(&route, &mut asked, incoming).await,
                Ok(Route::Complete) => Box::pin(api.complete(&mut asked, incoming)).await,
                Ok(route) => Box::pin(api.dispatch(route, &asked, incoming)).await,
                Err(error) => Err(error),
            };
            let mut answer = answered.unwrap_or_else(ApiError::into_answer);
            answer.closes |= closes;
            Ok(answer.into_response(id, asked.into_empty_headers()))
        }
    }

    async fn produce(self: &Rc<Self>, asked: &mut Asked, incoming: Incoming) -> Result<Answer, ApiError> {
        let query = Query::parse(asked.uri.query())?;
        let body = self.body(incoming, &asked.turn).await;
        let read = body.and_then(|body| produce::asked(&body, &query, &asked.head()));
        drop(query);
        asked.let_go();
        let produced = match read {
            Ok(produce) => produce::produce(self, produce).await,
            Err(error) => Err(error),
        };
        // A refused produce is counted, whatever it was refused for.
        produced.inspect_err(|error| self.metrics.rejected(error.reason()))
    }

    async fn ack(&self, asked: &mut Asked, incoming: Incoming) -> Result<Answer, ApiError> {
        let query = Query::parse(asked.uri.query())?;
        let body = self.body(incoming, &asked.turn).await?;
        let claim = read::<AckFields<'_>>(&body, &query).and_then(|fields| fields.claim())?;
        drop((body, query));
        asked.let_go();
        settle::ack(self, claim).await
    }

    async fn ask_store(&self, route: &Route, asked: &mut Asked, incoming: Incoming) -> Result<Answer, ApiError> {
        let body = self.body(incoming, &asked.turn).await?;
        let command = match route {
            Route::Begin => idempotency::begin(&body),
            _ => idempotency::finish(&body),
        }?;
        drop(body);
        asked.let_go();
        idempotency::ask(self, command).await
    }

    async fn complete(self: &Rc<Self>, asked: &mut Asked, incoming: Incoming) -> Result<Answer, ApiError> {
        let body = self.body(incoming, &asked.turn).await?;
        let step = complete::asked(&body, &asked.head())?;
        drop(body);
        asked.let_go();
        complete::complete(self, step).await
    }

    /// Answers where there is less haste.
    async fn dispatch(&self, route: Route, asked: &Asked, incoming: Incoming) -> Result<Answer, ApiError> {
        let query = Query::parse(asked.uri.query())?;
        match route {
            Route::Healthz => return Ok(status::healthz()),
            Route::Readyz => return status::readyz(self),
            Route::Version => return Ok(status::version(self)),
            Route::Digest => return status::digest(self).await,
            Route::OpenApi => return Ok(status::openapi()),
            Route::Metrics => return Ok(status::metrics(self, &asked.headers)),
            Route::ListTopics => return topics::list(self).await,
            Route::DescribeTopic(name) => return topics::describe(self, name).await,
            Route::DeleteTopic(name) => return topics::delete(self, name).await,
            Route::ListGroups => return groups::list(self, &query).await,
            Route::Peek => return letters::peek(self, &query).await,
            Route::GetEffect => return idempotency::get(self, &query).await,
            Route::ForgetEffect => return idempotency::forget(self, &query).await,
            _ => {}
        }
        let body = self.body(incoming, &asked.turn).await?;
        match &route {
            Route::Consume => {
                let stream = consume::consume(self, read(&body, &query)?).await;
                stream.inspect(|_| asked.turn.give_turn())
            }
            Route::Reacquire => idempotency::ask(self, idempotency::reacquire(&body)?).await,
            Route::Renew => idempotency::ask(self, idempotency::renew(&body)?).await,
            Route::Nack => settle::nack(self, read(&body, &query)?).await,
            Route::Extend => settle::extend(self, read(&body, &query)?).await,
            Route::Release => settle::release(self, read(&body, &query)?).await,
            Route::CreateTopic => topics::create(self, read(&body, &query)?).await,
            Route::CreateGroup => groups::create(self, read(&body, &query)?).await,
            Route::DeleteGroup => groups::delete(self, read(&body, &query)?).await,
            Route::Seek => groups::seek(self, read(&body, &query)?).await,
            Route::Pause => groups::pause(self, read(&body, &query)?).await,
            Route::Resume => groups::resume(self, read(&body, &query)?).await,
            Route::Redrive => letters::redrive(self, read(&body, &query)?).await,
            other => unreachable!("answered elsewhere: {other:?}"),
        }
    }

    fn pace(&self) -> Pace {
        Pace::of(&self.settings.http)
    }

    fn body(&self, incoming: Incoming, turn: &PatienceTimer) -> impl Future<Output = Result<Bytes, ApiError>> + use<> {
        Inflow::swift(incoming, self.pace(), turn.clone()).whole(self.settings.http.body_bytes_max)
    }

    async fn batch(self: &Rc<Self>, route: &Route, asked: &Asked, incoming: Incoming) -> Result<Answer, ApiError> {
        if let Some(unready) = self.driver.unready() {
            return Err(unready.into());
        }
        let kind = match route {
            Route::Ack => BatchKind::Ack,
            _ => {
                let head = asked.head();
                let head = produce::said(&head)?;
                if head.idempotency_key.is_some() {
                    let message =
                        "an Idempotency-Key cannot stand for every line of a batch; use envelope.idempotency_key";
                    return Err(ApiError::invalid(message));
                }
                BatchKind::Produce { trace: head.trace.map(str::to_owned) }
            }
        };
        let inflow = Inflow::steady(incoming, self.pace(), asked.turn.clone());
        Ok(BatchBody::new(Rc::clone(self), kind, inflow).answer().await)
    }
}

/// What is kept of a request that has been let in.
struct Asked {
    headers: HeaderMap,
    uri: Uri,
    /// Whether the headers are to be looked at again for what they say about a message.
    is_about_message: bool,
    turn: PatienceTimer,
}

impl Asked {
    /// What its head says about a message.
    fn head(&self) -> Head<'_> {
        if self.is_about_message { Head::of(&self.headers) } else { Head::default() }
    }

    /// A request shares its memory with what hyper reads into: on the busiest routes it is let go of before anything but its body
    /// is waited for, so that the memory is used again.
    fn let_go(&mut self) {
        self.headers.clear();
        self.uri = Uri::default();
    }

    /// The map of its headers, for those of the answer. Hyper in turn takes it for the next request, so that a connection has one
    /// map for all of them, unless a request has made it large.
    fn into_empty_headers(mut self) -> HeaderMap {
        if self.headers.capacity() > HEADERS_KEPT_MAX {
            return HeaderMap::new();
        }
        self.headers.clear();
        self.headers
    }
}

/// Names for requests that come without one.
struct RequestIds {
    /// Which all of them begin with.
    seed: Vec<u8>,
    next: Cell<u64>,
    /// Those that are made and not given out.
    ready: RefCell<Bytes>,
}

impl RequestIds {
    fn new(seed: u64) -> Self {
        let mut digits = Vec::new();
        hex(seed, 16, &mut digits);
        Self { seed: digits, next: Cell::new(0), ready: RefCell::default() }
    }

    /// The request's own id, or a new one.
    fn of(&self, own: Option<&HeaderValue>) -> HeaderValue {
        if let Some(id) = own {
            let sound = id.len() <= REQUEST_ID_BYTES_MAX && !id.is_empty();
            if sound && id.as_bytes().iter().all(u8::is_ascii_graphic) {
                return id.clone();
            }
        }
        let mut ready = self.ready.borrow_mut();
        if ready.is_empty() {
            *ready = self.some();
        }
        HeaderValue::from_maybe_shared(ready.split_to(REQUEST_ID_BYTES)).expect("hexadecimal digits")
    }

    /// New ones, many at a time: they share one piece of memory.
    fn some(&self) -> Bytes {
        let mut text = Vec::with_capacity(REQUEST_IDS_AT_ONCE * REQUEST_ID_BYTES);
        for _ in 0..REQUEST_IDS_AT_ONCE {
            let number = self.next.get();
            self.next.set(number.wrapping_add(1));
            text.extend_from_slice(&self.seed);
            hex(number, 16, &mut text);
        }
        text.into()
    }
}
