//! The ledger of the outside world: what a handler has really done, once for each request.

use bytes::Bytes;
use driftq_client::{HandlerError, Message, Retry};
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::json;

/// A connection to the ledger.
#[derive(Clone)]
pub(crate) struct Ledger {
    http: Client<HttpConnector, Full<Bytes>>,
    url: String,
    worker: String,
}

impl Ledger {
    pub(crate) fn new(url: &str, worker: &str) -> Self {
        let http = Client::builder(TokioExecutor::new()).build_http();
        Self { http, url: url.trim_end_matches('/').to_owned(), worker: worker.to_owned() }
    }

    /// An effect in the outside world. It is not idempotent, and never sent again by itself.
    pub(crate) async fn effect(&self, name: &str, message: &Message) -> Result<serde_json::Value, HandlerError> {
        let id = message.id().to_string();
        let body = json!({"name": name, "message": id, "attempt": message.attempts, "worker": self.worker});
        let request = Request::post(format!("{}/effect", self.url))
            .header("content-type", "application/json")
            .body(Full::from(body.to_string()))?;
        let response = self.http.request(request).await?;
        let status = response.status();
        response.into_body().collect().await?;
        if !status.is_success() {
            return Err(Retry::new(format!("the ledger answered {status}")).into());
        }
        Ok(json!({"effect": name}))
    }
}
