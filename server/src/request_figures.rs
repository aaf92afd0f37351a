//! How many requests a reactor has answered, how, and how long they took.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

use crate::endpoint::Endpoint;
use crate::reactor_figures::ReactorFigures;

/// Upper bounds of the buckets of a duration, in microseconds.
const BOUNDS_US: [u64; 15] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    10_000_000,
];
/// One more for what takes longer.
const BUCKETS: usize = BOUNDS_US.len() + 1;
/// Status codes from [`FIRST_STATUS`] on.
const STATUS_CODES: usize = 500;
const FIRST_STATUS: usize = 100;

/// Written by one reactor, read by all.
pub(crate) struct RequestFigures {
    durations: [Durations; Endpoint::ALL.len()],
    status_codes: [AtomicU64; STATUS_CODES],
}

/// The durations of the requests to one endpoint.
#[derive(Default)]
struct Durations {
    buckets: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

/// Adds to a number that only this thread writes, so that it needs no locked instruction.
fn add(number: &AtomicU64, more: u64) {
    number.store(number.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

impl RequestFigures {
    /// Counts a request that was answered with `status` after `took`. To be called by the reactor's thread only.
    pub(crate) fn count(&self, endpoint: Endpoint, status: u16, took: Duration) {
        let durations = &self.durations[endpoint as usize];
        let us = took.as_micros();
        let bucket = BOUNDS_US.iter().position(|bound| us <= u128::from(*bound)).unwrap_or(BOUNDS_US.len());
        add(&durations.buckets[bucket], 1);
        add(&durations.sum_ns, u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        if let Some(count) = usize::from(status).checked_sub(FIRST_STATUS).and_then(|code| self.status_codes.get(code))
        {
            add(count, 1);
        }
    }

    /// All requests.
    fn total(&self) -> u64 {
        self.durations.iter().map(|durations| sum(&durations.buckets)).sum()
    }
}

fn sum(numbers: &[AtomicU64]) -> u64 {
    numbers.iter().map(|number| number.load(Ordering::Relaxed)).sum()
}

impl Default for RequestFigures {
    fn default() -> Self {
        Self {
            durations: std::array::from_fn(|_| Durations::default()),
            status_codes: std::array::from_fn(|_| AtomicU64::default()),
        }
    }
}

impl fmt::Debug for RequestFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestFigures").field("total", &self.total()).finish_non_exhaustive()
    }
}

/// The figures of all reactors as metrics. What has not occurred has no series.
#[derive(Debug)]
pub(crate) struct RequestMetrics(pub(crate) Vec<Arc<ReactorFigures>>);

impl RequestMetrics {
    fn requests(&self) -> impl Iterator<Item = &RequestFigures> {
        self.0.iter().map(|reactor| &reactor.requests)
    }

    /// The sum over the reactors of the number that `of` chooses.
    fn sum(&self, of: impl Fn(&RequestFigures) -> &AtomicU64) -> u64 {
        self.requests().map(|requests| of(requests).load(Ordering::Relaxed)).sum()
    }

    fn encode_durations(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Time from the head of a request to the head of its answer";
        let mut family = encoder.encode_descriptor("request_seconds", help, None, MetricType::Histogram)?;
        for endpoint in Endpoint::ALL {
            let of = |bucket: usize| self.sum(|requests| &requests.durations[*endpoint as usize].buckets[bucket]);
            let bounds = BOUNDS_US.iter().map(|us| *us as f64 / 1e6).chain([f64::INFINITY]);
            let buckets: Vec<_> = bounds.enumerate().map(|(bucket, bound)| (bound, of(bucket))).collect();
            let count = buckets.iter().map(|(_, count)| count).sum();
            if count > 0 {
                let seconds = self.sum(|requests| &requests.durations[*endpoint as usize].sum_ns) as f64 / 1e9;
                let labels = [("method", endpoint.method()), ("route", endpoint.path())];
                family.encode_family(&labels)?.encode_histogram::<NoLabelSet>(seconds, count, &buckets, None)?;
            }
        }
        Ok(())
    }

    fn encode_status_codes(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Answers by status code";
        let mut family = encoder.encode_descriptor("responses", help, None, MetricType::Counter)?;
        for code in 0..STATUS_CODES {
            let count = self.sum(|requests| &requests.status_codes[code]);
            if count > 0 {
                let labels = [("code", (code + FIRST_STATUS).to_string())];
                ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }

    fn encode_reactors(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Requests by the reactor that answered them";
        let mut family = encoder.encode_descriptor("reactor_requests", help, None, MetricType::Counter)?;
        for (reactor, requests) in self.requests().enumerate() {
            let labels = [("reactor", reactor.to_string())];
            ConstCounter::new(requests.total()).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

impl Collector for RequestMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.encode_durations(&mut encoder)?;
        self.encode_status_codes(&mut encoder)?;
        self.encode_reactors(&mut encoder)
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode_registry;
    use prometheus_client::registry::Registry;

    use super::*;

    fn rendered(reactors: Vec<Arc<ReactorFigures>>) -> String {
        let mut registry = Registry::with_prefix("driftq");
        registry.register_collector(Box::new(RequestMetrics(reactors)));
        let mut text = String::new();
        encode_registry(&mut text, &registry).expect("written");
        text
    }

    #[test]
    fn requests_of_all_reactors_are_added_up() {
        let reactors: Vec<Arc<ReactorFigures>> = (0..2).map(|_| Arc::default()).collect();
        reactors[0].requests.count(Endpoint::Produce, 200, Duration::from_micros(100));
        reactors[1].requests.count(Endpoint::Produce, 429, Duration::from_micros(101));
        reactors[1].requests.count(Endpoint::DescribeTopic, 404, Duration::from_secs(60));
        let text = rendered(reactors);
        for line in [
            "driftq_request_seconds_count{method=\"POST\",route=\"/v1/produce\"} 2",
            "driftq_request_seconds_bucket{le=\"0.0001\",method=\"POST\",route=\"/v1/produce\"} 1",
            "driftq_request_seconds_bucket{le=\"0.00025\",method=\"POST\",route=\"/v1/produce\"} 2",
            "driftq_request_seconds_bucket{le=\"10.0\",method=\"GET\",route=\"/v1/topics/{topic}\"} 0",
            "driftq_request_seconds_bucket{le=\"+Inf\",method=\"GET\",route=\"/v1/topics/{topic}\"} 1",
            "driftq_responses_total{code=\"200\"} 1",
            "driftq_responses_total{code=\"404\"} 1",
            "driftq_responses_total{code=\"429\"} 1",
            "driftq_reactor_requests_total{reactor=\"0\"} 1",
            "driftq_reactor_requests_total{reactor=\"1\"} 2",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("/v1/ack"), "an endpoint without requests has no series\n{text}");
    }

    #[test]
    fn status_beyond_all_codes_is_not_counted() {
        let reactors: Vec<Arc<ReactorFigures>> = vec![Arc::default()];
        for status in [0, 99, 600, u16::MAX] {
            reactors[0].requests.count(Endpoint::Unknown, status, Duration::ZERO);
        }
        assert!(!rendered(reactors).contains("code="));
    }
}
