//! `/v1/healthz`, `/v1/readyz`, `/v1/version`, `/v1/config`, `/v1/digest`, `/v1/chaos`,
//! `/v1/openapi.json` and `/metrics`.

use std::sync::Arc;

use driftq_core::Refusal;
use driftq_core::command::ListTopics;
use driftq_core::types::{Caller, Principal, Verb};
use hyper::StatusCode;
use hyper::header::{ACCEPT, HeaderMap, HeaderValue};

use super::api::{Api, Shared};
use super::error::ApiError;
use super::requester::Requester;
use super::response::{ApiResponse, ContentType, json, json_text, text};
use crate::access::{Visible, authorize_process};
use crate::driver::Unready;
use crate::json::Json;
use crate::metrics::{BrokerFigures, MemoryFigures, Metrics, TlsFigures, to_prometheus};

/// `GET /v1/healthz`: the process runs and its reactor responds.
pub(crate) fn healthz() -> ApiResponse {
    let mut out = Json::object();
    out.text("status", "ok");
    json(StatusCode::OK, out)
}

/// `GET /v1/readyz`: commands are accepted, and the log is not stalled. Reports how far wall time is ahead of the wall
/// clock.
pub(crate) fn readyz(api: &Api) -> Result<ApiResponse, ApiError> {
    if let Some(unready) = api.driver.unready_for_probes() {
        return Err(unready.into());
    }
    let mut out = Json::object();
    out.text("status", "ready");
    out.number("clock_ahead_ms", api.driver.clock_ahead_ms().max(0));
    Ok(json(StatusCode::OK, out))
}

/// `GET /v1/version`.
pub(crate) fn version(api: &Api) -> ApiResponse {
    let mut out = Json::object();
    out.text("version", env!("CARGO_PKG_VERSION"));
    out.text("commit", env!("DRIFTQ_COMMIT"));
    out.flag("wal_enabled", api.settings.wal);
    json(StatusCode::OK, out)
}

/// `GET /v1/config`: the settings in force, without secrets.
pub(crate) async fn config(api: &Api, from: &Requester) -> Result<ApiResponse, ApiError> {
    authorize(api, from, Verb::Inspect).await?;
    Ok(text(ContentType::Json, api.settings.to_public_json()))
}

/// Refuses what is of the whole process, and not of a tenant, unless the sender may do `verb` with all of it.
async fn authorize(api: &Api, from: &Requester, verb: Verb) -> Result<(), ApiError> {
    let principal = from.caller.principal;
    let allowed = api.driver.read(move |pipeline| authorize_process(pipeline, principal, verb));
    // Without a log yet there are no keys either that could be checked: who may be served then is known.
    Ok(allowed.wait().await.unwrap_or(Ok(()))?)
}

/// `GET /v1/digest`: a digest of the whole state, and the LSN it belongs to.
pub(crate) async fn digest(api: &Api, from: &Requester) -> Result<ApiResponse, ApiError> {
    authorize(api, from, Verb::Admin).await?;
    let _permit = api.shared.digests.acquire().await;
    // The state may be ahead of the sync. The copy shares memory.
    let copy = api.driver.read(|pipeline| (pipeline.broker().appended(), pipeline.state().clone()));
    let (lsn, state) = copy.wait().await.ok_or(Unready::Recovering)?;
    // On another thread, as it reads the whole state.
    let digest = tokio::task::spawn_blocking(move || state.digest()).await;
    let digest = digest.map_err(|_| ApiError::from(Unready::Failed))?;
    // A reply to a later command: the state is durable then.
    api.driver.ask(&Caller::TRUSTED, ListTopics::default()).await??;
    let mut out = Json::object();
    out.number("lsn", lsn.0);
    out.text("digest", &format!("{digest:016x}"));
    Ok(json(StatusCode::OK, out))
}

/// `GET /v1/chaos` of a broker without `--chaos`; with it, the gateway in front of the broker answers.
pub(crate) fn no_chaos() -> ApiError {
    ApiError::not_found("the broker simulates no faults; it does with --chaos")
}

/// `GET /v1/openapi.json`.
pub(crate) fn openapi() -> ApiResponse {
    json_text(crate::openapi::document())
}

/// `GET /metrics`: OpenMetrics if the client accepts it, else the Prometheus text format.
pub(crate) async fn metrics(api: &Api, from: &Requester, headers: &HeaderMap) -> Result<ApiResponse, ApiError> {
    let figures = render_metrics(api, from.caller.principal).await?;
    let accepts = |kind: &HeaderValue| kind.to_str().is_ok_and(|kind| kind.contains("application/openmetrics-text"));
    if headers.get_all(ACCEPT).iter().any(accepts) {
        return Ok(text(ContentType::OpenMetrics, figures));
    }
    Ok(text(ContentType::Prometheus, to_prometheus(&figures)))
}

/// The metrics that `principal` may see, in the OpenMetrics text format.
pub(crate) async fn render_metrics(api: &Api, principal: Principal) -> Result<String, Refusal> {
    let Shared { bodies, unsent, .. } = &*api.shared;
    let memory = MemoryFigures {
        body_bytes: bodies.used(),
        bodies_refused: bodies.refused(),
        unsent_bytes: unsent.used(),
        answers_refused: unsent.refused(),
        slow_readers_closed: unsent.closed(),
    };
    let (http, storage) = (&api.settings.http, &api.settings.storage);
    let tls = api.shared.tls.as_ref();
    let tls = tls.map(|tls| TlsFigures { handshakes: tls.handshakes.count(), expires_at: tls.expires_at() });
    let figures = BrokerFigures {
        reactors: api.shared.reactors.clone(),
        memory_bounds: [
            ("payload_memory_bytes_max", storage.memory_bytes),
            ("body_bytes_max", http.bodies_bytes_max as u64),
            ("stream_bytes_max", http.stream_bytes_max() as u64),
            ("unsent_bytes_max", http.unsent_bytes_max as u64),
        ],
        disk_free_bytes: api.shared.disk_space.free_bytes().await,
        is_ready: api.driver.unready_for_probes().is_none(),
        log_busy_for: api.driver.log_busy_for(),
        memory,
        tls,
        export: api.shared.recorder.as_ref().map(|recorder| recorder.figures()),
        now: api.driver.now(),
    };
    let metrics = Arc::clone(&api.metrics);
    let of_broker = figures.clone();
    let rendered = api.driver.read(move |pipeline| {
        let visible = Visible::to(principal, pipeline)?;
        Ok(match visible.has_process {
            true => metrics.render(&of_broker, Some((pipeline, &visible))),
            false => Metrics::render_topics(pipeline, &visible),
        })
    });
    rendered.wait().await.unwrap_or_else(|| Ok(api.metrics.render(&figures, None)))
}
