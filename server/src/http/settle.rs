//! What a worker says about a message it was handed: ack, nack, extend, release.

use driftq_core::command::Claim;
use driftq_core::types::Text;
use driftq_core::{Command, Reply};
use hyper::StatusCode;

use super::Api;
use super::answer::{Answer, json, nothing};
use super::error::ApiError;
use super::fields::{AckFields, ExtendFields, NackFields, required, span};
use crate::json::Json;

/// `POST /v1/ack`.
pub(crate) async fn ack(api: &Api, claim: Claim) -> Result<Answer, ApiError> {
    api.driver.ask(Command::Ack(claim)).await??;
    Ok(nothing())
}

/// `POST /v1/nack`.
pub(crate) async fn nack(api: &Api, fields: NackFields<'_>) -> Result<Answer, ApiError> {
    let claim = fields.claim()?;
    let delay = span("delay_ms", fields.delay_ms)?;
    let reason = Text::from(fields.reason.unwrap_or_default());
    api.driver.ask(Command::Nack { claim, reason, delay }).await??;
    Ok(nothing())
}

/// `POST /v1/extend`.
pub(crate) async fn extend(api: &Api, fields: ExtendFields<'_>) -> Result<Answer, ApiError> {
    let claim = fields.claim()?;
    let lease = span("lease_ms", Some(required("lease_ms", fields.lease_ms)?))?;
    match api.driver.ask(Command::Extend { claim, lease }).await?? {
        Reply::Extended { lease_until } => {
            let mut out = Json::object();
            out.moment("lease_until", lease_until);
            Ok(json(StatusCode::OK, out))
        }
        other => unreachable!("an extension is answered by its end: {other:?}"),
    }
}

/// `POST /v1/release`.
pub(crate) async fn release(api: &Api, fields: AckFields<'_>) -> Result<Answer, ApiError> {
    api.driver.ask(Command::Release(fields.claim()?)).await??;
    Ok(nothing())
}
