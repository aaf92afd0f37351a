//! `POST /v1/ack`, `/v1/ack-cumulative`, `/v1/nack`, `/v1/extend` and `/v1/release`.

use driftq_core::command::{Ack, Claim, Extend, Release};
use hyper::StatusCode;

use super::api::Api;
use super::claim_fields::{AckCumulativeFields, AckFields, ExtendFields, NackFields};
use super::error::ApiError;
use super::fields::{millis, required};
use super::requester::Requester;
use super::response::{ApiResponse, json, no_content};
use crate::json::Json;
use crate::otlp::{Claimed, OpenSpan};

/// `POST /v1/ack`.
pub(crate) async fn ack(
    api: &Api,
    from: &Requester,
    claim: Claim,
    span: Option<&OpenSpan>,
) -> Result<ApiResponse, ApiError> {
    record(span, &claim);
    api.driver.ask(&from.caller, Ack(claim)).await??;
    Ok(no_content())
}

/// `POST /v1/nack`.
pub(crate) async fn nack(
    api: &Api,
    from: &Requester,
    fields: NackFields<'_>,
    span: Option<&OpenSpan>,
) -> Result<ApiResponse, ApiError> {
    let nack = fields.nack(&from.names)?;
    record(span, &nack.claim);
    api.driver.ask(&from.caller, nack).await??;
    Ok(no_content())
}

/// `POST /v1/ack-cumulative`.
pub(crate) async fn ack_cumulative(
    api: &Api,
    from: &Requester,
    fields: AckCumulativeFields<'_>,
    span: Option<&OpenSpan>,
) -> Result<ApiResponse, ApiError> {
    let ack = fields.ack(&from.names)?;
    record(span, &ack);
    api.driver.ask(&from.caller, ack).await??;
    Ok(no_content())
}

/// `POST /v1/extend`.
pub(crate) async fn extend(
    api: &Api,
    from: &Requester,
    fields: ExtendFields<'_>,
    span: Option<&OpenSpan>,
) -> Result<ApiResponse, ApiError> {
    let claim = fields.claim(&from.names)?;
    record(span, &claim);
    let lease = millis("lease_ms", Some(required("lease_ms", fields.lease_ms)?))?;
    let lease_until = api.driver.ask(&from.caller, Extend { claim, lease }).await??;
    let mut out = Json::object();
    out.timestamp("lease_until", api.driver.wall_clock().wall(lease_until));
    Ok(json(StatusCode::OK, out))
}

/// `POST /v1/release`.
pub(crate) async fn release(
    api: &Api,
    from: &Requester,
    fields: AckFields<'_>,
    span: Option<&OpenSpan>,
) -> Result<ApiResponse, ApiError> {
    let claim = fields.claim(&from.names)?;
    record(span, &claim);
    api.driver.ask(&from.caller, Release(claim)).await??;
    Ok(no_content())
}

fn record(span: Option<&OpenSpan>, claim: &impl Claimed) {
    if let Some(span) = span {
        span.claimed(claim);
    }
}
