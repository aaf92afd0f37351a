//! One look at the broker: topics, groups and figures, and when it was taken.

use std::time::Instant;

use driftq_client::{Client, Error, ServerVersion, TopicInfo};

use crate::commands::topics::describe;
use crate::metrics::Metrics;

/// Topics that are shown at most. Each is a request per refresh.
pub(super) const TOPICS_MAX: usize = 500;
/// The state of the broker at one time.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) version: ServerVersion,
    pub(super) is_ready: bool,
    pub(super) metrics: Metrics,
    pub(super) topics: Vec<TopicInfo>,
    /// Topics that are not shown because there are too many.
    pub(super) left_out: usize,
}

/// Asks for all of it. Topics that are given and do not exist are left out.
pub(super) async fn take(client: &Client, given: &[String]) -> Result<Sample, Error> {
    let version = client.version().await?;
    let mut names = if given.is_empty() { client.topics().await? } else { given.to_vec() };
    let left_out = names.len().saturating_sub(TOPICS_MAX);
    names.truncate(TOPICS_MAX);
    let metrics = client.probe("/metrics").await?;
    let is_ready = client.probe("/v1/readyz").await?.status == 200;
    // One that is too large to be described is left out, too.
    let topics = describe(client, &names).await?.into_iter().filter_map(|(_, info)| info).collect();
    let metrics = Metrics::parse(&String::from_utf8_lossy(&metrics.body));
    Ok(Sample { at: Instant::now(), version, is_ready, metrics, topics, left_out })
}
