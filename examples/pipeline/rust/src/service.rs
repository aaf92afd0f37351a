//! The client of the outside service, as the Rust workers use it.

use std::error::Error;
use std::fmt;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::header::CONTENT_TYPE;
use hyper::{Request, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

/// The header with the identity of an effect.
pub(crate) const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// The header with the trace that an effect belongs to.
pub(crate) const TRACEPARENT: &str = "traceparent";

/// A connection to the outside service. Clones share it.
#[derive(Clone, Debug)]
pub struct Service {
    url: String,
    client: Client<HttpConnector, Full<Bytes>>,
}

/// Why the service did not answer as expected.
#[derive(Debug)]
pub struct ServiceError(String);

impl fmt::Display for ServiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for ServiceError {}

impl Service {
    /// The service at a base URL.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), client: Client::builder(TokioExecutor::new()).build_http() }
    }

    /// Asks for the effect with this identity, as part of a trace. Returns its number: for a repeated identity that of
    /// the first one.
    ///
    /// # Errors
    /// If the service does not answer: the effect may have happened.
    pub async fn call(
        &self,
        effect: &str,
        identity: &str,
        trace: Option<&str>,
        body: &Value,
    ) -> Result<u64, ServiceError> {
        let failed = |what: String| ServiceError(format!("{effect} at {}: {what}", self.url));
        let request = Request::post(format!("{}/{effect}", self.url))
            .header(CONTENT_TYPE, "application/json")
            .header(IDEMPOTENCY_KEY, identity)
            .header(TRACEPARENT, trace.unwrap_or_default())
            .body(Full::from(body.to_string()))
            .map_err(|error| failed(error.to_string()))?;
        let response = self.client.request(request).await.map_err(|error| failed(error.to_string()))?;
        let status = response.status();
        let answer = response.into_body().collect().await.map_err(|error| failed(error.to_string()))?.to_bytes();
        if status != StatusCode::OK {
            return Err(failed(format!("status {status}")));
        }
        let answer: Value = serde_json::from_slice(&answer).map_err(|error| failed(error.to_string()))?;
        answer["number"].as_u64().ok_or_else(|| failed(format!("an answer without a number: {answer}")))
    }
}
