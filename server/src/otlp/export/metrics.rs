//! Metrics in the form of the protocol, from the text that `GET /metrics` has: whatever is there is exported.

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as PointValue;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, ResourceMetrics,
    ScopeMetrics, Sum,
};

use super::open_metrics::{Family, Sample, Value, parse};
use super::resource::{Resources, text};

/// The gauge that says when the process started.
const STARTED: &str = "driftq_start_time_seconds";

/// When counting began, and now, in nanoseconds since 1970.
#[derive(Clone, Copy, Debug)]
struct Times {
    start_ns: u64,
    now_ns: u64,
}

/// The request that exports the metrics in this text, as they are at `now_ns`.
pub(super) fn request(resources: &Resources, text: &str, now_ns: u64) -> ExportMetricsServiceRequest {
    let families = parse(text);
    let started = families.iter().find(|family| family.name == STARTED);
    let start_ns = started.map_or(0, |family| (family.samples[0].value.as_f64() * 1e9) as u64);
    let times = Times { start_ns, now_ns };
    let metrics = families.iter().map(|family| metric(family, times)).collect();
    let scope_metrics = ScopeMetrics { scope: Some(resources.scope.clone()), metrics, ..ScopeMetrics::default() };
    let resource_metrics = ResourceMetrics {
        resource: Some(resources.resource.clone()),
        scope_metrics: vec![scope_metrics],
        ..ResourceMetrics::default()
    };
    ExportMetricsServiceRequest { resource_metrics: vec![resource_metrics] }
}

fn metric(family: &Family<'_>, times: Times) -> Metric {
    let temporality = AggregationTemporality::Cumulative.into();
    let points = || family.samples.iter().map(|sample| number_point(sample, times)).collect();
    let data = match family.kind {
        "counter" => Data::Sum(Sum { data_points: points(), aggregation_temporality: temporality, is_monotonic: true }),
        "histogram" => {
            let data_points = histogram_points(&family.samples, times);
            Data::Histogram(Histogram { data_points, aggregation_temporality: temporality })
        }
        _ => Data::Gauge(Gauge { data_points: points() }),
    };
    Metric {
        name: family.name.to_owned(),
        description: family.help.to_owned(),
        unit: unit(family.name).to_owned(),
        data: Some(data),
        ..Metric::default()
    }
}

/// The unit that a name ends with, or none.
fn unit(name: &str) -> &'static str {
    match name.rsplit('_').next() {
        Some("seconds") => "s",
        Some("bytes") => "By",
        _ => "",
    }
}

fn attributes<'a>(labels: impl Iterator<Item = &'a (&'a str, String)>) -> Vec<KeyValue> {
    labels.map(|(name, value)| text(name, value.as_str())).collect()
}

fn number_point(sample: &Sample<'_>, times: Times) -> NumberDataPoint {
    let value = match sample.value {
        Value::Int(value) => PointValue::AsInt(value),
        Value::Float(value) => PointValue::AsDouble(value),
    };
    NumberDataPoint {
        attributes: attributes(sample.labels.iter()),
        start_time_unix_nano: times.start_ns,
        time_unix_nano: times.now_ns,
        value: Some(value),
        ..NumberDataPoint::default()
    }
}

/// One point for each set of labels, whose lines follow one another.
fn histogram_points(samples: &[Sample<'_>], times: Times) -> Vec<HistogramDataPoint> {
    let mut points: Vec<HistogramDataPoint> = Vec::new();
    let mut below = 0;
    for sample in samples {
        let attributes = attributes(sample.labels.iter().filter(|(name, _)| *name != "le"));
        if points.last().is_none_or(|point| point.attributes != attributes) {
            below = 0;
            points.push(HistogramDataPoint {
                attributes,
                start_time_unix_nano: times.start_ns,
                time_unix_nano: times.now_ns,
                ..HistogramDataPoint::default()
            });
        }
        let Some(point) = points.last_mut() else { continue };
        match sample.suffix {
            "_sum" => point.sum = Some(sample.value.as_f64()),
            "_count" => point.count = sample.value.as_count(),
            _ => {
                // Buckets are cumulative in the text only.
                let up_to = sample.value.as_count();
                point.bucket_counts.push(up_to.saturating_sub(below));
                below = up_to;
                let bound = sample.labels.iter().find(|(name, _)| *name == "le");
                let bound = bound.and_then(|(_, bound)| bound.parse::<f64>().ok());
                point.explicit_bounds.extend(bound.filter(|bound| bound.is_finite()));
            }
        }
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# HELP driftq_start_time_seconds Since 1970.
# TYPE driftq_start_time_seconds gauge
driftq_start_time_seconds 2.5
# HELP driftq_acked Acked.
# TYPE driftq_acked counter
driftq_acked_total{topic=\"a b\"} 7
# TYPE driftq_request_seconds histogram
driftq_request_seconds_sum{route=\"/a\"} 1.5
driftq_request_seconds_count{route=\"/a\"} 6
driftq_request_seconds_bucket{le=\"0.5\",route=\"/a\"} 4
driftq_request_seconds_bucket{le=\"1.0\",route=\"/a\"} 5
driftq_request_seconds_bucket{le=\"+Inf\",route=\"/a\"} 6
driftq_request_seconds_sum{route=\"/b\"} 0.25
driftq_request_seconds_count{route=\"/b\"} 2
driftq_request_seconds_bucket{le=\"0.5\",route=\"/b\"} 2
driftq_request_seconds_bucket{le=\"1.0\",route=\"/b\"} 2
driftq_request_seconds_bucket{le=\"+Inf\",route=\"/b\"} 2
# EOF
";

    fn metrics() -> Vec<Metric> {
        let request = request(&Resources::new("s", [7; 16]), TEXT, 9);
        request.resource_metrics[0].scope_metrics[0].metrics.clone()
    }

    #[test]
    fn counter_is_a_monotonic_sum_since_the_start_of_the_process() {
        let acked = metrics().into_iter().find(|metric| metric.name == "driftq_acked").expect("exported");
        assert_eq!((acked.description.as_str(), acked.unit.as_str()), ("Acked", ""));
        let Some(Data::Sum(sum)) = acked.data else { panic!("{acked:?}") };
        assert!(sum.is_monotonic && sum.aggregation_temporality() == AggregationTemporality::Cumulative);
        let point = &sum.data_points[0];
        assert_eq!((point.start_time_unix_nano, point.time_unix_nano), (2_500_000_000, 9));
        assert_eq!((&point.attributes, point.value), (&vec![text("topic", "a b")], Some(PointValue::AsInt(7))));
    }

    #[test]
    fn histogram_has_a_point_for_each_set_of_labels_with_counts_of_each_bucket() {
        let seconds = metrics().into_iter().find(|metric| metric.unit == "s" && metric.description.is_empty());
        let Some(Data::Histogram(histogram)) = seconds.expect("exported").data else { panic!("no histogram") };
        let [a, b] = &histogram.data_points[..] else { panic!("{histogram:?}") };
        assert_eq!((a.sum, a.count, &a.bucket_counts[..]), (Some(1.5), 6, &[4, 1, 1][..]));
        assert_eq!((b.sum, b.count, &b.bucket_counts[..]), (Some(0.25), 2, &[2, 0, 0][..]));
        assert_eq!((&a.explicit_bounds[..], &b.attributes), (&[0.5, 1.0][..], &vec![text("route", "/b")]));
    }
}
