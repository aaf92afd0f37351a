//! How the broker is: alive, ready, which version, and its figures.

use driftq_core::Command;
use hyper::StatusCode;
use hyper::header::{ACCEPT, HeaderMap, HeaderValue};

use super::Api;
use super::answer::{Answer, Kind, json, json_text, text};
use super::error::ApiError;
use crate::driver::Unready;
use crate::json::Json;
use crate::metrics::plain;

/// `GET /v1/healthz`: the process is there and its reactor turns.
pub(crate) fn healthz() -> Answer {
    let mut out = Json::object();
    out.text("status", "ok");
    json(StatusCode::OK, out)
}

/// `GET /v1/readyz`: commands are taken.
pub(crate) fn readyz(api: &Api) -> Result<Answer, ApiError> {
    if let Some(unready) = api.driver.unready() {
        return Err(unready.into());
    }
    let mut out = Json::object();
    out.text("status", "ready");
    Ok(json(StatusCode::OK, out))
}

/// `GET /v1/version`.
pub(crate) fn version(api: &Api) -> Answer {
    let mut out = Json::object();
    out.text("version", env!("CARGO_PKG_VERSION"));
    out.text("commit", option_env!("DRIFTQ_COMMIT").unwrap_or("unknown"));
    out.flag("wal_enabled", api.settings.wal);
    json(StatusCode::OK, out)
}

/// `GET /v1/digest`: a number for the whole state, and the position in the log it is the state of.
pub(crate) async fn digest(api: &Api) -> Result<Answer, ApiError> {
    let _turn = api.digests.acquire().await;
    let (lsn, state) = api.driver.state_now()?;
    // Somebody else reads it, or everybody else would wait.
    let digest = tokio::task::spawn_blocking(move || state.digest()).await;
    let digest = digest.map_err(|_| ApiError::from(Unready::Failed))?;
    // An answer after the state's own position: that is durable then.
    api.driver.ask(Command::ListTopics).await??;
    let mut out = Json::object();
    out.number("lsn", lsn.0);
    out.plain("digest", &format!("{digest:016x}"));
    Ok(json(StatusCode::OK, out))
}

/// `GET /v1/openapi.json`.
pub(crate) fn openapi() -> Answer {
    json_text(crate::openapi::document())
}

/// `GET /metrics`: OpenMetrics for whoever asks for it, else Prometheus' own text.
pub(crate) fn metrics(api: &Api, headers: &HeaderMap) -> Answer {
    let figures = api.metrics.render(&api.driver);
    let accepts = |kind: &HeaderValue| kind.to_str().is_ok_and(|kind| kind.contains("application/openmetrics-text"));
    if headers.get_all(ACCEPT).iter().any(accepts) {
        return text(Kind::OpenMetrics, figures);
    }
    text(Kind::Prometheus, plain(&figures))
}
