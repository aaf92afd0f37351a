//! Metrics: all that `/metrics` has, at every interval.

use std::collections::BTreeSet;

use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::metrics::v1::{AggregationTemporality, Metric};

use super::broker::Broker;
use super::collector::{Behavior, Collector, attribute, wait_until};

const OFTEN: [&str; 4] = ["--otlp-interval-ms", "100", "--otlp-sample-ratio", "0"];

#[track_caller]
fn find<'a>(metrics: &'a [Metric], name: &str) -> &'a Metric {
    let found: Vec<_> = metrics.iter().filter(|metric| metric.name == name).collect();
    let [metric] = found[..] else { panic!("{name}: {found:#?}") };
    metric
}

/// The value of a counter without labels.
fn counted(metrics: &[Metric], name: &str) -> i64 {
    match &find(metrics, name).data {
        Some(Data::Sum(sum)) => {
            assert!(sum.is_monotonic && sum.aggregation_temporality() == AggregationTemporality::Cumulative);
            let [point] = &sum.data_points[..] else { panic!("{sum:#?}") };
            assert!(point.start_time_unix_nano > 0 && point.start_time_unix_nano < point.time_unix_nano);
            let Some(Value::AsInt(value)) = point.value else { panic!("{point:?}") };
            value
        }
        other => panic!("{name}: {other:?}"),
    }
}

#[test]
fn all_metrics_are_exported_at_every_interval_with_their_values() {
    for reactors in ["1", "3"] {
        let collector = Collector::start(Behavior::Accepts);
        let broker = Broker::start(&collector.endpoint, &[&OFTEN[..], &["--reactors", reactors]].concat());
        broker.post("/v1/topics", None, r#"{"name":"t \"x\""}"#);
        for _ in 0..3 {
            broker.post("/v1/produce", None, r#"{"topic":"t \"x\"","value":"v"}"#);
        }
        broker.consume("t%20%22x%22", 1);
        // The export that was under way had been rendered before.
        let before = collector.wait_for_metrics(1).0.resource_metrics.len();
        assert_eq!(before, 1);
        wait_until(|| {
            let (_, metrics) = collector.wait_for_metrics(1);
            counted(&metrics, "driftq_messages_delivered") == 1
        });
        let count = collector.exports().len();
        let (request, metrics) = collector.wait_for_metrics(count + 2);
        let resource = request.resource_metrics[0].resource.as_ref().unwrap();
        assert_eq!(attribute(&resource.attributes, "service.name").as_deref(), Some("driftqd"));
        assert_eq!(counted(&metrics, "driftq_messages_produced"), 3);

        let Some(Data::Gauge(in_flight)) = &find(&metrics, "inflight_messages").data else { panic!("a gauge") };
        let [point] = &in_flight.data_points[..] else { panic!("{in_flight:#?}") };
        assert_eq!(point.value, Some(Value::AsInt(1)));
        assert_eq!(attribute(&point.attributes, "topic").as_deref(), Some("t \"x\""));
        let seconds = find(&metrics, "driftq_request_seconds");
        let Some(Data::Histogram(seconds)) = &seconds.data else { panic!("{seconds:?}") };
        let is_produce = |attributes: &[_]| attribute(attributes, "route").as_deref() == Some("/v1/produce");
        let produces = seconds.data_points.iter().find(|point| is_produce(&point.attributes)).unwrap();
        assert_eq!((produces.count, produces.bucket_counts.iter().sum::<u64>()), (3, 3));
        assert_eq!(produces.bucket_counts.len(), produces.explicit_bounds.len() + 1);

        let (_, text) = broker.get("/metrics");
        let shown: BTreeSet<&str> = text.lines().filter_map(|line| line.split(['{', ' ']).next()).collect();
        let suffixes = ["_total", "_sum", "_count", "_bucket"];
        let family =
            |name: &str| suffixes.iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name).to_owned();
        let shown: BTreeSet<_> = shown.into_iter().filter(|name| *name != "#").map(family).collect();
        let exported: BTreeSet<_> = metrics.iter().map(|metric| metric.name.clone()).collect();
        assert_eq!(exported, shown);
    }
}

#[test]
fn exports_are_counted() {
    let collector = Collector::start(Behavior::Accepts);
    let broker = Broker::start(&collector.endpoint, &OFTEN);
    let exported =
        |signal: &str| broker.metric(&format!("driftq_otlp_exports_total{{signal=\"{signal}\",result=\"ok\"}}"));
    wait_until(|| exported("metrics") >= 3.0);
    assert_eq!((exported("traces"), broker.spans("exported")), (0.0, 0.0));
    broker.post("/v1/topics", Some(super::broker::PRODUCER), r#"{"name":"t"}"#);
    wait_until(|| exported("traces") == 1.0 && broker.spans("exported") == 1.0);
}
