//! What the broker has counted since its start, read from its metrics.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::Uri;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::time::timeout;

/// A broker that is not ready has counted little.
const READ_WITHIN: Duration = Duration::from_millis(500);

/// Counts of the broker. What it counted between a reading and a crash is missing: they are lower bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Answers `REPLAY` of the idempotency store.
    pub(crate) replayed: u64,
    /// Leases of deliveries that ran out.
    pub(crate) expired: u64,
}

impl Totals {
    /// Adds those of one more process.
    pub(crate) fn add(&mut self, other: Self) {
        self.replayed += other.replayed;
        self.expired += other.expired;
    }

    fn parse(text: &str) -> Self {
        let count = |name: &str| {
            let mut values = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
            values.next().unwrap_or(0)
        };
        Self { replayed: count("driftq_idempotency_replayed_total"), expired: count("driftq_messages_expired_total") }
    }
}

/// Reads the metrics of a broker.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    uri: Uri,
    client: Client<HttpConnector, Empty<Bytes>>,
}

impl Metrics {
    /// Of the broker at a base URL.
    ///
    /// # Errors
    /// If it is no URL.
    pub(crate) fn new(url: &str) -> Result<Self, String> {
        let uri = format!("{url}/metrics").parse().map_err(|error| format!("{url}: {error}"))?;
        Ok(Self { uri, client: Client::builder(TokioExecutor::new()).build_http() })
    }

    /// The counts since the start of the process; nothing if it does not answer.
    pub(crate) async fn read(&self) -> Totals {
        let text = async {
            let response = self.client.get(self.uri.clone()).await.ok()?;
            let body = response.into_body().collect().await.ok()?.to_bytes();
            String::from_utf8(body.to_vec()).ok()
        };
        timeout(READ_WITHIN, text).await.ok().flatten().map_or_else(Totals::default, |text| Totals::parse(&text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_found_by_their_whole_name() {
        let text = "# TYPE driftq_messages_expired_total counter\ndriftq_messages_expired_total 3\n\
                    driftq_messages_expired_total_x 9\ndriftq_idempotency_replayed_total 4\n";
        let mut totals = Totals::parse(text);
        assert_eq!(totals, Totals { replayed: 4, expired: 3 });
        totals.add(Totals::parse(""));
        assert_eq!(totals.replayed, 4);
    }
}
