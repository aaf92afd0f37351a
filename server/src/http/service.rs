//! Handles one request: checks its head, finds its route, receives its body, calls its handler.

use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::{Method, Request, Response, Uri, Version};

use super::api::Api;
use super::batch::{BatchBody, BatchKind};
use super::claim_fields::AckFields;
use super::connection_names::ConnectionNames;
use super::error::ApiError;
use super::fields::{from_json, parse};
use super::guard::Guard;
use super::head::RequestHead;
use super::message_fields::MessageHeaders;
use super::query::Query;
use super::request_body::{BodyTimeouts, RequestBody};
use super::request_id::RequestIds;
use super::response::ApiResponse;
use super::response_body::SentBody;
use super::routes::Route;
use super::timeouts::{ConnectionHandle, OpenRequest};
use super::unsent::Unsent;
use super::{complete, consume, dlq, effect_list, groups, idempotency, produce, settle, status, topics};

/// A header map with more capacity than this is not reused for the response.
const REUSED_HEADERS_MAX: usize = 24;

/// An answer up to this many bytes is given however much is unsent.
const ANSWER_BYTES_KEPT: usize = 16 << 10;

/// The HTTP service of the broker.
pub(crate) struct Service {
    api: Rc<Api>,
    guard: Guard,
    ids: RequestIds,
}

impl Service {
    /// A service over `api`. Ids of requests begin with `seed`.
    pub(crate) fn new(api: Rc<Api>, seed: u64) -> Rc<Self> {
        let guard = Guard::new(api.settings.addr, &api.settings.http.allowed_hosts);
        Rc::new(Self { api, guard, ids: RequestIds::new(seed) })
    }

    pub(super) fn api(&self) -> &Api {
        &self.api
    }

    /// Responds to a request. The head is evaluated before the future is created, so that the future holds only what
    /// the rest needs.
    pub(super) fn respond(
        &self,
        request: Request<Incoming>,
        connection: &ConnectionHandle,
        unsent: &Unsent,
        names: &Rc<ConnectionNames>,
        open: Option<OpenRequest>,
    ) -> impl Future<Output = Result<Response<SentBody>, Infallible>> + use<> {
        let (parts, incoming) = request.into_parts();
        let head = RequestHead::of(&parts.headers);
        let id = self.ids.id_for(head.request_id);
        // Hyper may have removed a Content-Length beside it, so that where the next request begins is ambiguous.
        let must_close = parts.version < Version::HTTP_2 && head.has_encoding;
        let is_batch = head.is_ndjson();
        let has_message_headers = head.has_message_headers();
        // Nothing has happened when the answer to a GET is known, so that another can be given instead.
        let is_read = parts.method == Method::GET;
        let route = self.guard.check(&parts, &head).and_then(|()| Route::of(&parts.method, parts.uri.path()));
        let mut request = PendingRequest {
            headers: parts.headers,
            uri: parts.uri,
            has_message_headers,
            connection: connection.clone(),
            names: Rc::clone(names),
        };
        let (api, unsent) = (Rc::clone(&self.api), unsent.clone());
        async move {
            let result = match route {
                // Boxed, so that the future of the busiest routes has not the size of the largest.
                Ok(
                    route
                    @ (Route::Produce | Route::Ack | Route::Nack | Route::Complete | Route::Begin | Route::Finish),
                ) if is_batch => Box::pin(batch(&api, &route, &request, incoming)).await,
                Ok(Route::Produce) => produce(&api, &mut request, incoming).await,
                Ok(Route::Ack) => ack(&api, &mut request, incoming).await,
                Ok(Route::Begin) => begin(&api, &mut request, incoming).await,
                Ok(Route::Finish) => finish(&api, &mut request, incoming).await,
                Ok(Route::Complete) => Box::pin(complete(&api, &mut request, incoming)).await,
                Ok(route) if route.has_large_answer() && unsent.must_refuse_large() => Err(ApiError::no_memory()),
                Ok(route) => Box::pin(dispatch(&api, route, &request, incoming)).await,
                Err(error) => Err(error),
            };
            let mut response = result.unwrap_or_else(ApiResponse::from);
            if is_read && response.owned_bytes() > ANSWER_BYTES_KEPT && unsent.must_refuse(response.owned_bytes()) {
                response = ApiError::no_memory().into();
            }
            response.close_connection |= must_close;
            let response = response.into_http(id, request.into_empty_headers());
            Ok(response.map(|body| SentBody::new(body, &unsent, open)))
        }
    }
}

/// What is kept of a request while it is handled.
struct PendingRequest {
    headers: HeaderMap,
    uri: Uri,
    /// Whether the headers describe a message and are read again with the body.
    has_message_headers: bool,
    connection: ConnectionHandle,
    names: Rc<ConnectionNames>,
}

impl PendingRequest {
    /// The headers that describe a message.
    fn message_head(&self) -> RequestHead<'_> {
        if self.has_message_headers { RequestHead::of(&self.headers) } else { RequestHead::default() }
    }

    fn body(&self, api: &Api, incoming: Incoming) -> impl Future<Output = Result<Bytes, ApiError>> + use<> {
        let timeouts = BodyTimeouts::of(&api.settings.http);
        let body = RequestBody::new(incoming, timeouts, self.connection.clone());
        body.collect(api.settings.http.body_bytes_max, Arc::clone(&api.bodies))
    }

    /// Drops headers and URI. They share memory with hyper's read buffer, which can be reused while the reply is
    /// awaited; on the busiest routes that is worth it (`docs/performance.md`).
    fn release_buffer(&mut self) {
        self.headers.clear();
        self.uri = Uri::default();
    }

    /// The header map, cleared, for the response. Hyper reuses the response's map for the next request in turn, so that
    /// a connection has one map, unless a request has made it large.
    fn into_empty_headers(mut self) -> HeaderMap {
        if self.headers.capacity() > REUSED_HEADERS_MAX {
            return HeaderMap::new();
        }
        self.headers.clear();
        self.headers
    }
}

async fn produce(api: &Rc<Api>, request: &mut PendingRequest, incoming: Incoming) -> Result<ApiResponse, ApiError> {
    let query = Query::parse(request.uri.query())?;
    let body = request.body(api, incoming).await;
    let parsed = body.and_then(|body| produce::parse_request(&body, &query, &request.message_head(), &request.names));
    drop(query);
    request.release_buffer();
    let produced = match parsed {
        Ok(produce) => produce::produce(api, produce).await,
        Err(error) => Err(error),
    };
    produced.inspect_err(|error| api.metrics.count_rejected(error.reason()))
}

async fn ack(api: &Api, request: &mut PendingRequest, incoming: Incoming) -> Result<ApiResponse, ApiError> {
    let query = Query::parse(request.uri.query())?;
    let body = request.body(api, incoming).await?;
    let claim = parse::<AckFields<'_>>(&body, &query).and_then(|fields| fields.claim(&request.names))?;
    drop((body, query));
    request.release_buffer();
    settle::ack(api, claim).await
}

async fn begin(api: &Api, request: &mut PendingRequest, incoming: Incoming) -> Result<ApiResponse, ApiError> {
    let body = request.body(api, incoming).await?;
    let begin = idempotency::parse_begin(&body, &request.names)?;
    drop(body);
    request.release_buffer();
    idempotency::begin(api, begin).await
}

async fn finish(api: &Api, request: &mut PendingRequest, incoming: Incoming) -> Result<ApiResponse, ApiError> {
    let body = request.body(api, incoming).await?;
    let finish = idempotency::parse_finish(&body, &request.names)?;
    drop(body);
    request.release_buffer();
    idempotency::finish(api, finish).await
}

async fn complete(api: &Rc<Api>, request: &mut PendingRequest, incoming: Incoming) -> Result<ApiResponse, ApiError> {
    let body = request.body(api, incoming).await?;
    let step = complete::parse_request(&body, &request.message_head(), &request.names)?;
    drop(body);
    request.release_buffer();
    complete::complete(api, step).await
}

async fn batch(
    api: &Rc<Api>,
    route: &Route,
    request: &PendingRequest,
    incoming: Incoming,
) -> Result<ApiResponse, ApiError> {
    if let Some(unready) = api.driver.unready() {
        return Err(unready.into());
    }
    let trace = || {
        let head = request.message_head();
        let headers = MessageHeaders::of(&head)?;
        if headers.idempotency_key.is_some() {
            let message = "a batch takes no Idempotency-Key header; use envelope.idempotency_key of each message";
            return Err(ApiError::invalid(message));
        }
        Ok(headers.trace.map(str::to_owned))
    };
    let kind = match route {
        Route::Ack => BatchKind::Ack,
        Route::Nack => BatchKind::Nack,
        Route::Begin => BatchKind::Begin,
        Route::Finish => BatchKind::Finish,
        Route::Complete => BatchKind::Complete { trace: trace()? },
        _ => BatchKind::Produce { trace: trace()? },
    };
    let timeouts = BodyTimeouts::of(&api.settings.http);
    let body = RequestBody::streamed(incoming, timeouts, request.connection.clone());
    Ok(BatchBody::new(Rc::clone(api), kind, body, Rc::clone(&request.names)).respond().await)
}

/// The routes that are not on the hot path.
async fn dispatch(
    api: &Api,
    route: Route,
    request: &PendingRequest,
    incoming: Incoming,
) -> Result<ApiResponse, ApiError> {
    let query = Query::parse(request.uri.query())?;
    match route {
        Route::Healthz => return Ok(status::healthz()),
        Route::Readyz => return status::readyz(api),
        Route::Version => return Ok(status::version(api)),
        Route::Config => return Ok(status::config(api)),
        Route::Digest => return status::digest(api).await,
        Route::OpenApi => return Ok(status::openapi()),
        Route::Metrics => return Ok(status::metrics(api, &request.headers).await),
        Route::ListTopics => return topics::list(api, &query).await,
        Route::DescribeTopic(name) => return topics::describe(api, name).await,
        Route::DeleteTopic(name) => return topics::delete(api, name).await,
        Route::PurgeTopic(name) => return topics::purge(api, name).await,
        Route::ListGroups => return groups::list(api, &query).await,
        Route::Peek => return dlq::peek(api, &query).await,
        Route::GetEffect => return idempotency::get(api, &query).await,
        Route::ListEffects => return effect_list::list(api, &query).await,
        Route::ForgetEffect => return idempotency::forget(api, &query).await,
        _ => {}
    }
    let (body, names) = (request.body(api, incoming).await?, &*request.names);
    match &route {
        Route::Consume => {
            let stream = consume::consume(api, parse(&body, &query)?).await;
            stream.inspect(|_| request.connection.set_response_pending(false))
        }
        Route::Reacquire => idempotency::reacquire(api, idempotency::parse_reacquire(&body, names)?).await,
        Route::Renew => idempotency::renew(api, idempotency::parse_renew(&body, names)?).await,
        Route::AckCumulative => settle::ack_cumulative(api, parse(&body, &query)?, names).await,
        Route::ExpireLease => groups::expire(api, parse(&body, &query)?).await,
        Route::Nack => settle::nack(api, parse(&body, &query)?, names).await,
        Route::Extend => settle::extend(api, parse(&body, &query)?, names).await,
        Route::Release => settle::release(api, parse(&body, &query)?, names).await,
        Route::CreateTopic => topics::create(api, parse(&body, &query)?).await,
        Route::ChangeTopic(name) => topics::change(api, name.clone(), from_json(&body)?).await,
        Route::CreateGroup => groups::create(api, parse(&body, &query)?).await,
        Route::DeleteGroup => groups::delete(api, parse(&body, &query)?).await,
        Route::Seek => groups::seek(api, parse(&body, &query)?).await,
        Route::Pause => groups::pause(api, parse(&body, &query)?).await,
        Route::Resume => groups::resume(api, parse(&body, &query)?).await,
        Route::Redrive => dlq::redrive(api, parse(&body, &query)?, &request.connection).await,
        other => unreachable!("handled by the caller: {other:?}"),
    }
}
