//! Spans in the form of the protocol, with the attributes that OpenTelemetry's semantic conventions name.

use std::time::Instant;

use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::trace::v1::span::{Link, SpanKind};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode as SpanStatus;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span as ProtoSpan, SpanFlags, Status};
use prost::Message;

use super::resource::{Resources, number, text};
use super::unix_ns;
use crate::endpoint::Endpoint;
use crate::otlp::span::{Operation, Span, Target};

/// The flag of a span that is recorded.
const SAMPLED: u32 = 1;

/// Converts instants to wall time.
pub(super) struct UnixClock {
    instant: Instant,
    unix_ns: u64,
}

impl UnixClock {
    /// As the clocks are now.
    pub(super) fn now() -> Self {
        Self { instant: Instant::now(), unix_ns: unix_ns() }
    }

    /// Nanoseconds since 1970.
    fn ns(&self, instant: Instant) -> u64 {
        let ago = self.instant.saturating_duration_since(instant);
        self.unix_ns.saturating_sub(u64::try_from(ago.as_nanos()).unwrap_or(u64::MAX))
    }
}

/// The request that exports these spans.
pub(super) fn request(resources: &Resources, spans: &[Span], clock: &UnixClock) -> ExportTraceServiceRequest {
    let spans = spans.iter().map(|span| encode(span, clock)).collect();
    let scope_spans = ScopeSpans { scope: Some(resources.scope.clone()), spans, ..ScopeSpans::default() };
    let resource_spans = ResourceSpans {
        resource: Some(resources.resource.clone()),
        scope_spans: vec![scope_spans],
        ..ResourceSpans::default()
    };
    ExportTraceServiceRequest { resource_spans: vec![resource_spans] }
}

/// How many spans the collector has refused, by its answer.
pub(super) fn refused_spans(answer: &[u8]) -> u64 {
    let partial = ExportTraceServiceResponse::decode(answer).ok().and_then(|answer| answer.partial_success);
    partial.map_or(0, |partial| u64::try_from(partial.rejected_spans).unwrap_or(0))
}

fn encode(span: &Span, clock: &UnixClock) -> ProtoSpan {
    let (name, kind, mut attributes, is_error) = match span.operation {
        Operation::Request { endpoint, status } => {
            let is_error = status.is_none_or(|status| status.is_server_error());
            (request_name(endpoint), SpanKind::Server, request_attributes(endpoint, status), is_error)
        }
        Operation::Delivery { attempt } => {
            let topic = span.target.topic.as_ref().map_or("", |topic| topic.as_str());
            let attributes = vec![
                text("messaging.system", "driftq"),
                text("messaging.operation.name", "deliver"),
                text("messaging.operation.type", "send"),
                number("driftq.delivery.attempt", attempt),
            ];
            (format!("deliver {topic}"), SpanKind::Producer, attributes, false)
        }
    };
    add_target(&span.target, &mut attributes);
    let code = if is_error { SpanStatus::Error } else { SpanStatus::Unset };
    // Whatever has a parent has it from a header, thus from another process.
    let remote = SpanFlags::ContextHasIsRemoteMask as u32
        | if span.parent.is_some() { SpanFlags::ContextIsRemoteMask as u32 } else { 0 };
    let link = |link: &crate::otlp::span::SpanContext| Link {
        trace_id: link.trace_id.to_vec(),
        span_id: link.span_id.to_vec(),
        flags: SAMPLED | SpanFlags::ContextHasIsRemoteMask as u32 | SpanFlags::ContextIsRemoteMask as u32,
        ..Link::default()
    };
    ProtoSpan {
        trace_id: span.context.trace_id.to_vec(),
        span_id: span.context.span_id.to_vec(),
        parent_span_id: span.parent.map(|id| id.to_vec()).unwrap_or_default(),
        flags: SAMPLED | remote,
        name,
        kind: kind.into(),
        start_time_unix_nano: clock.ns(span.began),
        end_time_unix_nano: clock.ns(span.ended),
        attributes,
        links: span.link.iter().map(link).collect(),
        status: Some(Status { code: code.into(), ..Status::default() }),
        ..ProtoSpan::default()
    }
}

/// Method and route, or the method that stands for an unknown one.
fn request_name(endpoint: Endpoint) -> String {
    match endpoint {
        Endpoint::Unknown => "HTTP".to_owned(),
        _ => format!("{} {}", endpoint.method(), endpoint.path()),
    }
}

fn request_attributes(endpoint: Endpoint, status: Option<hyper::StatusCode>) -> Vec<KeyValue> {
    let mut attributes = Vec::with_capacity(10);
    if endpoint != Endpoint::Unknown {
        attributes.push(text("http.request.method", endpoint.method()));
        attributes.push(text("http.route", endpoint.path()));
    }
    match status {
        Some(status) => {
            attributes.push(number("http.response.status_code", status.as_u16()));
            if status.is_server_error() {
                attributes.push(text("error.type", status.as_str()));
            }
        }
        None => attributes.push(text("error.type", "cancelled")),
    }
    if let Some((name, kind)) = messaging_operation(endpoint) {
        attributes.push(text("messaging.system", "driftq"));
        attributes.push(text("messaging.operation.name", name));
        attributes.push(text("messaging.operation.type", kind));
    }
    attributes
}

/// Name and type of what is done to messages.
fn messaging_operation(endpoint: Endpoint) -> Option<(&'static str, &'static str)> {
    Some(match endpoint {
        Endpoint::Produce => ("produce", "send"),
        Endpoint::Consume => ("consume", "receive"),
        Endpoint::Ack => ("ack", "settle"),
        Endpoint::AckCumulative => ("ack-cumulative", "settle"),
        Endpoint::Nack => ("nack", "settle"),
        Endpoint::Extend => ("extend", "settle"),
        Endpoint::Release => ("release", "settle"),
        Endpoint::Complete => ("complete", "settle"),
        _ => return None,
    })
}

fn add_target(target: &Target, attributes: &mut Vec<KeyValue>) {
    if let Some(topic) = &target.topic {
        attributes.push(text("messaging.destination.name", topic.as_str()));
    }
    if let Some(group) = &target.group {
        attributes.push(text("messaging.consumer.group.name", group.as_str()));
    }
    if let Some(partition) = target.partition {
        attributes.push(text("messaging.destination.partition.id", partition.0.to_string()));
    }
    if let Some(offset) = target.offset {
        attributes.push(number("driftq.message.offset", offset.0));
    }
    if let Some(lines) = target.lines {
        attributes.push(number("messaging.batch.message_count", lines));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hyper::StatusCode;
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTracePartialSuccess;

    use super::*;
    use crate::otlp::span::test_span;

    fn encoded(change: impl FnOnce(&mut Span)) -> ProtoSpan {
        let mut span = test_span();
        change(&mut span);
        encode(&span, &UnixClock::now())
    }

    fn keys(span: &ProtoSpan) -> Vec<&str> {
        span.attributes.iter().map(|attribute| attribute.key.as_str()).collect()
    }

    #[test]
    fn request_is_an_error_if_the_broker_failed_or_the_client_left() {
        let code = |status: Option<StatusCode>| {
            let operation = Operation::Request { endpoint: Endpoint::Ack, status };
            let span = encoded(|span| span.operation = operation);
            (span.status.as_ref().map(|status| status.code), keys(&span).contains(&"error.type"))
        };
        let (unset, error) = (Some(SpanStatus::Unset.into()), Some(SpanStatus::Error.into()));
        assert_eq!(code(Some(StatusCode::OK)), (unset, false));
        assert_eq!(code(Some(StatusCode::TOO_MANY_REQUESTS)), (unset, false));
        assert_eq!(code(Some(StatusCode::SERVICE_UNAVAILABLE)), (error, true));
        assert_eq!(code(None), (error, true));
    }

    #[test]
    fn request_without_a_route_has_neither_method_nor_path() {
        let status = Some(StatusCode::NOT_FOUND);
        let span = encoded(|span| span.operation = Operation::Request { endpoint: Endpoint::Unknown, status });
        assert_eq!((span.name.as_str(), keys(&span)), ("HTTP", vec!["http.response.status_code"]));
    }

    #[test]
    fn instants_become_wall_time() {
        let clock = UnixClock { instant: Instant::now(), unix_ns: 10_000_000_000 };
        assert_eq!(clock.ns(clock.instant - Duration::from_secs(3)), 7_000_000_000);
        assert_eq!(clock.ns(clock.instant + Duration::from_secs(3)), 10_000_000_000, "what is not yet over");
    }

    #[test]
    fn refusals_are_read_and_nonsense_is_none() {
        let answer = |rejected_spans| {
            let partial = ExportTracePartialSuccess { rejected_spans, error_message: "why".to_owned() };
            ExportTraceServiceResponse { partial_success: Some(partial) }.encode_to_vec()
        };
        for (answer, refused) in [(answer(7), 7), (answer(-1), 0), (b"nonsense".to_vec(), 0), (Vec::new(), 0)] {
            assert_eq!(refused_spans(&answer), refused, "{answer:?}");
        }
    }
}
