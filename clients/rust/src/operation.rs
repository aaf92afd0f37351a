//! Requests for operators: answers that have no type of their own here, such as metrics and readiness.

use bytes::Bytes;
use hyper::header::DATE;
use serde::de::DeserializeOwned;

use crate::client::Client;
use crate::error::Error;
use crate::topics::with_query;
use crate::transport::Call;

/// An answer as it came.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Probe {
    /// The HTTP status.
    pub status: u16,
    /// The clock of the server, as its header `Date` shows it: whole seconds.
    pub date: Option<String>,
    /// The body.
    pub body: Bytes,
}

impl Client {
    /// Any `GET` of the API, with query parameters that are encoded here.
    ///
    /// # Errors
    /// As those of the other calls, and [`ErrorKind::Protocol`](crate::ErrorKind::Protocol) if the answer is not a `T`.
    pub async fn get<T: DeserializeOwned>(&self, path: &str, parameters: &[(&str, &str)]) -> Result<T, Error> {
        self.transport().json(&Call::get(with_query(path, parameters))).await
    }

    /// A `GET` that is sent once and whose answer is returned whatever its status and type are: for health checks and
    /// metrics.
    ///
    /// # Errors
    /// If there is no answer.
    pub async fn probe(&self, path: &str) -> Result<Probe, Error> {
        let answer = self.transport().probe(&Call::get(path.to_owned())).await;
        let (status, headers, body) = answer.map_err(|failure| failure.error)?;
        let date = headers.get(DATE).and_then(|date| date.to_str().ok()).map(ToOwned::to_owned);
        Ok(Probe { status: status.as_u16(), date, body })
    }
}
