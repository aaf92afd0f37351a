//! HTTP: from requests to commands and back.
//!
//! [`edge`] has the sockets, [`guard`] says who is let in, [`routes`] which door a path leads to; behind each door one file per
//! family of requests. Nothing is decided here.

mod batch;
mod body;
mod complete;
mod consume;
pub(crate) mod edge;
mod error;
mod fields;
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

use std::cell::Cell;
use std::convert::Infallible;
use std::rc::Rc;

use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Request, Response, Version};

use self::batch::{BatchBody, BatchKind};
use self::body::{Inflow, Pace, ReplyBody};
use self::error::ApiError;
use self::fields::{AckFields, read};
use self::guard::Guard;
use self::head::{Head, REQUEST_ID};
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

/// Everything a request needs.
pub(crate) struct Api {
    pub(crate) driver: Rc<Driver>,
    pub(crate) settings: Settings,
    pub(crate) metrics: Rc<Metrics>,
    pub(crate) router: Router,
    guard: Guard,
    ids: RequestIds,
}

impl Api {
    pub(crate) fn new(driver: Rc<Driver>, settings: Settings, metrics: Rc<Metrics>, seed: u64) -> Rc<Self> {
        let guard = Guard::new(settings.addr, &settings.http.allowed_hosts);
        let router = Router::new(settings.router.clone());
        Rc::new(Self { driver, settings, metrics, router, guard, ids: RequestIds { seed, next: Cell::new(0) } })
    }

    /// Answers a request, whatever it is.
    pub(crate) async fn answer(
        self: Rc<Self>,
        request: Request<Incoming>,
        turn: PatienceTimer,
    ) -> Result<Response<ReplyBody>, Infallible> {
        let (parts, incoming) = request.into_parts();
        let head = Head::of(&parts.headers);
        let id = self.ids.of(head.request_id);
        // Where it is not known how the sender framed its body, nothing that follows on the connection can be relied on.
        let closes = parts.version < Version::HTTP_2 && head.has_encoding;
        let is_batch = head.is_ndjson();
        let route = self.guard.check(&parts, &head).and_then(|()| Route::of(&parts.method, parts.uri.path()));
        let answered = match route {
            Ok(route @ (Route::Produce | Route::Ack)) if is_batch => self.batch(&route, &head, incoming, turn).await,
            Ok(route) => self.dispatch(route, parts, incoming, turn).await,
            Err(error) => Err(error),
        };
        let mut response = answered.unwrap_or_else(ApiError::into_response);
        let headers = response.headers_mut();
        if closes {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        headers.insert(REQUEST_ID, id);
        Ok(response)
    }

    async fn dispatch(
        self: &Rc<Self>,
        route: Route,
        parts: Parts,
        incoming: Incoming,
        turn: PatienceTimer,
    ) -> Result<Response<ReplyBody>, ApiError> {
        let query = Query::parse(parts.uri.query())?;
        match route {
            Route::Healthz => return Ok(status::healthz()),
            Route::Readyz => return status::readyz(self),
            Route::Version => return Ok(status::version(self)),
            Route::OpenApi => return Ok(status::openapi()),
            Route::Metrics => return Ok(status::metrics(self, &parts.headers)),
            Route::ListTopics => return topics::list(self).await,
            Route::DescribeTopic(name) => return topics::describe(self, name).await,
            Route::DeleteTopic(name) => return topics::delete(self, name).await,
            Route::ListGroups => return groups::list(self, &query).await,
            Route::Peek => return letters::peek(self, &query).await,
            Route::GetEffect => return idempotency::get(self, &query).await,
            Route::ForgetEffect => return idempotency::forget(self, &query).await,
            _ => {}
        }
        let body = self.body(incoming, turn.clone()).await.inspect_err(|error| self.note(&route, error))?;
        let done = match &route {
            // A request shares its memory with what hyper reads into: on the busiest routes it is let go of before anything is
            // waited for, so that the memory is used again.
            Route::Produce => {
                let asked = produce::asked(&body, &query, &Head::of(&parts.headers));
                drop(query);
                drop((body, parts));
                match asked {
                    Ok(asked) => produce::produce(self, asked).await,
                    Err(error) => Err(error),
                }
            }
            Route::Ack => {
                let claim = read::<AckFields<'_>>(&body, &query).and_then(|fields| fields.claim())?;
                drop(query);
                drop((body, parts));
                settle::ack(self, claim).await
            }
            Route::Begin | Route::Finish | Route::Reacquire | Route::Renew => {
                let asked = match &route {
                    Route::Begin => idempotency::begin(&body),
                    Route::Finish => idempotency::finish(&body),
                    Route::Reacquire => idempotency::reacquire(&body),
                    _ => idempotency::renew(&body),
                }?;
                drop(query);
                drop((body, parts));
                idempotency::ask(self, asked).await
            }
            Route::Complete => {
                let step = complete::asked(&body, &Head::of(&parts.headers))?;
                drop(query);
                drop((body, parts));
                complete::complete(self, step).await
            }
            Route::Consume => {
                let stream = consume::consume(self, read(&body, &query)?).await;
                stream.inspect(|_| turn.give_turn())
            }
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
            other => unreachable!("answered above: {other:?}"),
        };
        done.inspect_err(|error| self.note(&route, error))
    }

    /// A refused produce is counted, whatever it was refused for.
    fn note(&self, route: &Route, error: &ApiError) {
        if *route == Route::Produce {
            self.metrics.rejected(error.reason());
        }
    }

    fn pace(&self) -> Pace {
        Pace::of(&self.settings.http)
    }

    async fn body(&self, incoming: Incoming, turn: PatienceTimer) -> Result<bytes::Bytes, ApiError> {
        Inflow::swift(incoming, self.pace(), turn).whole(self.settings.http.body_bytes_max).await
    }

    async fn batch(
        self: &Rc<Self>,
        route: &Route,
        head: &Head<'_>,
        incoming: Incoming,
        turn: PatienceTimer,
    ) -> Result<Response<ReplyBody>, ApiError> {
        if let Some(unready) = self.driver.unready() {
            return Err(unready.into());
        }
        let kind = match route {
            Route::Ack => BatchKind::Ack,
            _ => {
                let head = produce::said(head)?;
                if head.idempotency_key.is_some() {
                    let message =
                        "an Idempotency-Key cannot stand for every line of a batch; use envelope.idempotency_key";
                    return Err(ApiError::invalid(message));
                }
                BatchKind::Produce { trace: head.trace.map(str::to_owned) }
            }
        };
        let inflow = Inflow::steady(incoming, self.pace(), turn);
        Ok(BatchBody::new(Rc::clone(self), kind, inflow).answer().await)
    }
}

/// Names for requests that come without one.
struct RequestIds {
    seed: u64,
    next: Cell<u64>,
}

impl RequestIds {
    /// The request's own id, or a new one.
    fn of(&self, own: Option<&HeaderValue>) -> HeaderValue {
        if let Some(id) = own {
            let sound = id.len() <= REQUEST_ID_BYTES_MAX && !id.is_empty();
            if sound && id.as_bytes().iter().all(u8::is_ascii_graphic) {
                return id.clone();
            }
        }
        let number = self.next.get();
        self.next.set(number.wrapping_add(1));
        let mut text = Vec::with_capacity(32);
        hex(self.seed, 16, &mut text);
        hex(number, 16, &mut text);
        HeaderValue::from_maybe_shared(bytes::Bytes::from(text)).expect("hexadecimal digits")
    }
}
