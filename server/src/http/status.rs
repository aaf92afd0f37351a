//! `/v1/healthz`, `/v1/readyz`, `/v1/version`, `/v1/config`, `/v1/digest`, `/v1/openapi.json` and `/metrics`.

use std::sync::Arc;

use driftq_core::command::ListTopics;
use hyper::StatusCode;
use hyper::header::{ACCEPT, HeaderMap, HeaderValue};

use super::api::{Api, Shared};
use super::error::ApiError;
use super::response::{ApiResponse, ContentType, json, json_text, text};
use crate::driver::Unready;
use crate::json::Json;
use crate::metrics::{BrokerFigures, MemoryFigures, to_prometheus};

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
pub(crate) fn config(api: &Api) -> ApiResponse {
    text(ContentType::Json, api.settings.to_public_json())
}

/// `GET /v1/digest`: a digest of the whole state, and the LSN it belongs to.
pub(crate) async fn digest(api: &Api) -> Result<ApiResponse, ApiError> {
    let _permit = api.shared.digests.acquire().await;
    // The state may be ahead of the sync. The copy shares memory.
    let copy = api.driver.read(|pipeline| (pipeline.broker().appended(), pipeline.state().clone()));
    let (lsn, state) = copy.wait().await.ok_or(Unready::Recovering)?;
    // On another thread, as it reads the whole state.
    let digest = tokio::task::spawn_blocking(move || state.digest()).await;
    let digest = digest.map_err(|_| ApiError::from(Unready::Failed))?;
    // A reply to a later command: the state is durable then.
    api.driver.ask(ListTopics).await??;
    let mut out = Json::object();
    out.number("lsn", lsn.0);
    out.text("digest", &format!("{digest:016x}"));
    Ok(json(StatusCode::OK, out))
}

/// `GET /v1/openapi.json`.
pub(crate) fn openapi() -> ApiResponse {
    json_text(crate::openapi::document())
}

/// `GET /metrics`: OpenMetrics if the client accepts it, else the Prometheus text format.
pub(crate) async fn metrics(api: &Api, headers: &HeaderMap) -> ApiResponse {
    let Shared { bodies, unsent, .. } = &*api.shared;
    let memory = MemoryFigures {
        body_bytes: bodies.used(),
        bodies_refused: bodies.refused(),
        unsent_bytes: unsent.used(),
        answers_refused: unsent.refused(),
        slow_readers_closed: unsent.closed(),
    };
    let figures = BrokerFigures {
        reactors: api.shared.reactor_totals(),
        is_ready: api.driver.unready_for_probes().is_none(),
        log_busy_for: api.driver.log_busy_for(),
        memory,
        now: api.driver.now(),
    };
    let metrics = Arc::clone(&api.metrics);
    let rendered = api.driver.read(move |pipeline| metrics.render(&figures, Some(pipeline)));
    let figures = rendered.wait().await.unwrap_or_else(|| api.metrics.render(&figures, None));
    let accepts = |kind: &HeaderValue| kind.to_str().is_ok_and(|kind| kind.contains("application/openmetrics-text"));
    if headers.get_all(ACCEPT).iter().any(accepts) {
        return text(ContentType::OpenMetrics, figures);
    }
    text(ContentType::Prometheus, to_prometheus(&figures))
}
