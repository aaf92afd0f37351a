//! `POST /v1/ack`, `/v1/ack-cumulative`, `/v1/nack`, `/v1/extend` and `/v1/release`.

use driftq_core::command::{Ack, Claim, Extend, Release};
use hyper::StatusCode;

use super::api::Api;
use super::claim_fields::{AckCumulativeFields, AckFields, ExtendFields, NackFields};
use super::connection_names::ConnectionNames;
use super::error::ApiError;
use super::fields::{millis, required};
use super::response::{ApiResponse, json, no_content};
use crate::json::Json;

/// `POST /v1/ack`.
pub(crate) async fn ack(api: &Api, claim: Claim) -> Result<ApiResponse, ApiError> {
    api.driver.ask(Ack(claim)).await??;
    Ok(no_content())
}

/// `POST /v1/nack`.
pub(crate) async fn nack(api: &Api, fields: NackFields<'_>, names: &ConnectionNames) -> Result<ApiResponse, ApiError> {
    api.driver.ask(fields.nack(names)?).await??;
    Ok(no_content())
}

/// `POST /v1/ack-cumulative`.
pub(crate) async fn ack_cumulative(
    api: &Api,
    fields: AckCumulativeFields<'_>,
    names: &ConnectionNames,
) -> Result<ApiResponse, ApiError> {
    api.driver.ask(fields.ack(names)?).await??;
    Ok(no_content())
}

/// `POST /v1/extend`.
pub(crate) async fn extend(
    api: &Api,
    fields: ExtendFields<'_>,
    names: &ConnectionNames,
) -> Result<ApiResponse, ApiError> {
    let claim = fields.claim(names)?;
    let lease = millis("lease_ms", Some(required("lease_ms", fields.lease_ms)?))?;
    let lease_until = api.driver.ask(Extend { claim, lease }).await??;
    let mut out = Json::object();
    out.timestamp("lease_until", api.driver.wall_clock().wall(lease_until));
    Ok(json(StatusCode::OK, out))
}

/// `POST /v1/release`.
pub(crate) async fn release(
    api: &Api,
    fields: AckFields<'_>,
    names: &ConnectionNames,
) -> Result<ApiResponse, ApiError> {
    api.driver.ask(Release(fields.claim(names)?)).await??;
    Ok(no_content())
}
