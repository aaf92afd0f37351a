//! Handles one request: checks its head, finds its route, receives its body, calls its handler.

use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use hyper::body::{Body as _, Incoming};
use hyper::header::HeaderMap;
use hyper::{Method, Request, Response, StatusCode, Uri, Version};

use super::api::Api;
use super::authentication::{Admission, Authenticator, count_refused};
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
use super::requester::Requester;
use super::response::ApiResponse;
use super::response_body::SentBody;
use super::routes::Route;
use super::timeouts::{ConnectionHandle, OpenRequest};
use super::unsent::Unsent;
use super::{audit, complete, consume, dlq, effect_list, groups, idempotency, keys, produce, settle, status};
use super::{tenants, topics};
use crate::endpoint::Endpoint;
use crate::otlp::OpenSpan;
use crate::reactor_figures::ReactorFigures;

/// A header map with more capacity than this is not reused for the response.
const REUSED_HEADERS_MAX: usize = 24;

/// An answer up to this many bytes is given however much is unsent.
const ANSWER_BYTES_KEPT: usize = 16 << 10;

/// The HTTP service of the broker.
pub(crate) struct Service {
    api: Rc<Api>,
    guard: Guard,
    authenticator: Rc<Authenticator>,
    ids: RequestIds,
    /// Those of this reactor.
    figures: Arc<ReactorFigures>,
}

impl Service {
    /// A service over `api`. Ids of requests begin with `seed`.
    pub(crate) fn new(api: Rc<Api>, seed: u64, figures: Arc<ReactorFigures>) -> Rc<Self> {
        let guard = Guard::new(api.settings.addr, &api.settings.http.allowed_hosts);
        let authenticator = Authenticator::new(&api.settings);
        Rc::new(Self { api, guard, authenticator, ids: RequestIds::new(seed), figures })
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
        let began = Instant::now();
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
        let endpoint = route.as_ref().map_or(Endpoint::Unknown, Route::endpoint);
        let admission = self.authenticator.admit(&self.api, endpoint.permission(), &head, connection.peer(), names);
        let tracer = self.api.tracer.as_ref();
        let span = tracer.and_then(|tracer| tracer.request(endpoint, head.trace(), began));
        let mut request = PendingRequest {
            headers: parts.headers,
            uri: parts.uri,
            has_message_headers,
            connection: connection.clone(),
            span,
        };
        let (api, unsent, figures) = (Rc::clone(&self.api), unsent.clone(), Arc::clone(&self.figures));
        let authenticator = Rc::clone(&self.authenticator);
        async move {
            let from = match admission {
                Admission::Known(from) => from,
                // Boxed, as a reactor asks for a key once.
                Admission::Unknown(key) => Box::pin(authenticator.resolve(&api, key)).await,
            };
            let result = match (route, &from) {
                (Err(error), _) => Err(error),
                (_, Err(error)) => Err(refuse_unread(&api, &request, incoming, error.clone())),
                // Boxed, so that the future of the busiest routes has not the size of the largest.
                (
                    Ok(
                        route @ (Route::Produce
                        | Route::Ack
                        | Route::Nack
                        | Route::Complete
                        | Route::Begin
                        | Route::Finish),
                    ),
                    Ok(from),
                ) if is_batch => Box::pin(batch(&api, &route, &mut request, from, incoming)).await,
                (Ok(Route::Produce), Ok(from)) => produce(&api, &mut request, from, incoming).await,
                (Ok(Route::Ack), Ok(from)) => ack(&api, &mut request, from, incoming).await,
                (Ok(Route::Begin), Ok(from)) => begin(&api, &mut request, from, incoming).await,
                (Ok(Route::Finish), Ok(from)) => finish(&api, &mut request, from, incoming).await,
                (Ok(Route::Complete), Ok(from)) => Box::pin(complete(&api, &mut request, from, incoming)).await,
                (Ok(route), Ok(_)) if route.has_large_answer() && unsent.must_refuse_large() => {
                    Err(ApiError::no_memory())
                }
                (Ok(route), Ok(from)) => {
                    request.connection.watch_peer();
                    Box::pin(dispatch(&api, route, &request, from, incoming)).await
                }
            };
            let mut response = result.unwrap_or_else(ApiResponse::from);
            if is_read && response.owned_bytes() > ANSWER_BYTES_KEPT && unsent.must_refuse(response.owned_bytes()) {
                response = ApiError::no_memory().into();
            }
            if let Ok(from) = &from {
                count_refusal(&api, endpoint, from, response.status());
            }
            response.close_connection |= must_close;
            figures.requests.count(endpoint, response.status().as_u16(), began.elapsed());
            if let Some(span) = request.span.take() {
                span.answered(response.status());
            }
            let response = response.into_http(id, request.into_empty_headers());
            Ok(response.map(|body| SentBody::new(body, &unsent, open)))
        }
    }
}

/// Counts that the core has refused a request of a sender that was known.
fn count_refusal(api: &Api, endpoint: Endpoint, from: &Requester, status: StatusCode) {
    match status {
        StatusCode::UNAUTHORIZED => count_refused(api),
        StatusCode::FORBIDDEN if endpoint.permission().is_audited() => {
            if let Some(key) = from.caller.principal.key() {
                api.shared.access.count_refusal(key);
            }
        }
        _ => {}
    }
}

/// Refuses a request whose body is not read: what of it is on its way is dropped, so that the answer is not lost.
fn refuse_unread(api: &Api, request: &PendingRequest, incoming: Incoming, error: ApiError) -> ApiError {
    match incoming.is_end_stream() {
        true => error,
        false => request.received(api, incoming).refuse_unread(error),
    }
}

/// What is kept of a request while it is handled.
struct PendingRequest {
    headers: HeaderMap,
    uri: Uri,
    /// Whether the headers describe a message and are read again with the body.
    has_message_headers: bool,
    connection: ConnectionHandle,
    /// `None` if it is not recorded, or once it has been passed on.
    span: Option<OpenSpan>,
}

impl PendingRequest {
    /// The headers that describe a message.
    fn message_head(&self) -> RequestHead<'_> {
        if self.has_message_headers { RequestHead::of(&self.headers) } else { RequestHead::default() }
    }

    fn received(&self, api: &Api, incoming: Incoming) -> RequestBody {
        RequestBody::new(incoming, BodyTimeouts::of(&api.settings.http), self.connection.clone())
    }

    fn body(&self, api: &Api, incoming: Incoming) -> impl Future<Output = Result<Bytes, ApiError>> + use<> {
        self.received(api, incoming).collect(api.settings.http.body_bytes_max, Arc::clone(&api.bodies))
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

async fn produce(
    api: &Rc<Api>,
    request: &mut PendingRequest,
    from: &Requester,
    incoming: Incoming,
) -> Result<ApiResponse, ApiError> {
    let query = Query::parse(request.uri.query())?;
    let body = request.body(api, incoming).await;
    let parsed = body.and_then(|body| produce::parse_request(&body, &query, &request.message_head(), &from.names));
    drop(query);
    request.release_buffer();
    let produced = match parsed {
        Ok(produce) => produce::produce(api, from, produce, request.span.as_ref()).await,
        Err(error) => Err(error),
    };
    produced.inspect_err(|error| api.metrics.count_rejected(error.reason()))
}

async fn ack(
    api: &Api,
    request: &mut PendingRequest,
    from: &Requester,
    incoming: Incoming,
) -> Result<ApiResponse, ApiError> {
    let query = Query::parse(request.uri.query())?;
    let body = request.body(api, incoming).await?;
    let claim = parse::<AckFields<'_>>(&body, &query).and_then(|fields| fields.claim(&from.names))?;
    drop((body, query));
    request.release_buffer();
    settle::ack(api, from, claim, request.span.as_ref()).await
}

async fn begin(
    api: &Api,
    request: &mut PendingRequest,
    from: &Requester,
    incoming: Incoming,
) -> Result<ApiResponse, ApiError> {
    let body = request.body(api, incoming).await?;
    let begin = idempotency::parse_begin(&body, &from.names)?;
    drop(body);
    request.release_buffer();
    idempotency::begin(api, from, begin).await
}

async fn finish(
    api: &Api,
    request: &mut PendingRequest,
    from: &Requester,
    incoming: Incoming,
) -> Result<ApiResponse, ApiError> {
    let body = request.body(api, incoming).await?;
    let finish = idempotency::parse_finish(&body, &from.names)?;
    drop(body);
    request.release_buffer();
    idempotency::finish(api, from, finish).await
}

async fn complete(
    api: &Rc<Api>,
    request: &mut PendingRequest,
    from: &Requester,
    incoming: Incoming,
) -> Result<ApiResponse, ApiError> {
    let body = request.body(api, incoming).await?;
    let step = complete::parse_request(&body, &request.message_head(), &from.names)?;
    drop(body);
    request.release_buffer();
    complete::complete(api, from, step, request.span.as_ref()).await
}

async fn batch(
    api: &Rc<Api>,
    route: &Route,
    request: &mut PendingRequest,
    from: &Requester,
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
    let span = request.span.take();
    Ok(BatchBody::new(Rc::clone(api), kind, body, from.clone(), span).respond().await)
}

/// The routes that are not on the hot path.
async fn dispatch(
    api: &Api,
    route: Route,
    request: &PendingRequest,
    from: &Requester,
    incoming: Incoming,
) -> Result<ApiResponse, ApiError> {
    let query = Query::parse(request.uri.query())?;
    match route {
        Route::Healthz => return Ok(status::healthz()),
        Route::Readyz => return status::readyz(api),
        Route::Version => return Ok(status::version(api)),
        Route::Config => return status::config(api, from).await,
        Route::Digest => return status::digest(api, from).await,
        Route::Chaos => return Err(status::no_chaos()),
        Route::OpenApi => return Ok(status::openapi()),
        Route::Metrics => return status::metrics(api, from, &request.headers).await,
        Route::ListTopics => return topics::list(api, from, &query).await,
        Route::DescribeTopic(name) => return topics::describe(api, from, from.names.own(name)?).await,
        Route::DeleteTopic(name) => return topics::delete(api, from, from.names.own(name)?).await,
        Route::PurgeTopic(name) => return topics::purge(api, from, from.names.own(name)?).await,
        Route::ListGroups => return groups::list(api, from, &query).await,
        Route::Peek => return dlq::peek(api, from, &query).await,
        Route::GetEffect => return idempotency::get(api, from, &query).await,
        Route::ListEffects => return effect_list::list(api, from, &query).await,
        Route::ForgetEffect => return idempotency::forget(api, from, &query).await,
        Route::ListKeys => return keys::list(api, from, &query).await,
        Route::RevokeKeyById(id) => return keys::revoke_id(api, from, &id).await,
        Route::ListTenants => return tenants::list(api, from).await,
        Route::ListAudit => return audit::list(api, from, &query).await,
        _ => {}
    }
    let (body, names, span) = (request.body(api, incoming).await?, &from.names, request.span.as_ref());
    match &route {
        Route::Consume => {
            let stream = consume::consume(api, from, parse(&body, &query)?, span).await;
            stream.inspect(|_| request.connection.set_response_pending(false))
        }
        Route::Reacquire => idempotency::reacquire(api, from, idempotency::parse_reacquire(&body, names)?).await,
        Route::Renew => idempotency::renew(api, from, idempotency::parse_renew(&body, names)?).await,
        Route::AckCumulative => settle::ack_cumulative(api, from, parse(&body, &query)?, span).await,
        Route::ExpireLease => groups::expire(api, from, parse(&body, &query)?).await,
        Route::Nack => settle::nack(api, from, parse(&body, &query)?, span).await,
        Route::Extend => settle::extend(api, from, parse(&body, &query)?, span).await,
        Route::Release => settle::release(api, from, parse(&body, &query)?, span).await,
        Route::CreateTopic => topics::create(api, from, parse(&body, &query)?).await,
        Route::ChangeTopic(name) => topics::change(api, from, names.own(name.clone())?, from_json(&body)?).await,
        Route::CreateGroup => groups::create(api, from, parse(&body, &query)?).await,
        Route::DeleteGroup => groups::delete(api, from, parse(&body, &query)?).await,
        Route::Seek => groups::seek(api, from, parse(&body, &query)?).await,
        Route::Pause => groups::pause(api, from, parse(&body, &query)?).await,
        Route::Resume => groups::resume(api, from, parse(&body, &query)?).await,
        Route::Redrive => dlq::redrive(api, from, parse(&body, &query)?, &request.connection).await,
        Route::CreateKey => keys::create(api, from, &body).await,
        Route::RevokeKey => keys::revoke(api, from, parse(&body, &query)?).await,
        Route::BindKey => keys::bind(api, from, &body).await,
        Route::CreateTenant => tenants::create(api, from, parse(&body, &query)?).await,
        Route::DeleteTenant => tenants::delete(api, from, parse(&body, &query)?).await,
        other => unreachable!("handled by the caller: {other:?}"),
    }
}
