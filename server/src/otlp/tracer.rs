//! Decides what is recorded, and gives spans their ids.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use driftq_core::reply::Delivery;
use driftq_core::types::{GroupName, TopicName};
use hyper::header::HeaderValue;

use super::queue::Queues;
use super::span::{OpenSpan, Operation, Span, SpanContext, Target};
use crate::config::Probability;
use crate::endpoint::Endpoint;
use crate::traceparent::TraceParent;

/// Records the spans of one reactor.
///
/// A request with a valid `traceparent` is recorded if that is sampled, as a part of its trace. Of the others, and of
/// deliveries of messages that have no trace, a share is recorded.
#[derive(Debug)]
pub(crate) struct Tracer {
    queues: Arc<Queues>,
    sample_ratio: Probability,
    ids: Cell<u64>,
}

impl Tracer {
    pub(super) fn new(queues: Arc<Queues>, sample_ratio: Probability, seed: u64) -> Self {
        Self { queues, sample_ratio, ids: Cell::new(seed) }
    }

    /// The span of a request with this `traceparent`, if it is to be recorded.
    pub(crate) fn request(
        &self,
        endpoint: Endpoint,
        traceparent: Option<&HeaderValue>,
        began: Instant,
    ) -> Option<OpenSpan> {
        if is_probe(endpoint) {
            return None;
        }
        let caller = traceparent.and_then(|header| TraceParent::parse(header.to_str().ok()?));
        let context = self.context(caller)?;
        let span = Box::new(Span {
            context,
            parent: caller.map(|caller| caller.parent_id),
            link: None,
            began,
            ended: began,
            operation: Operation::Request { endpoint, status: None },
            target: Target::default(),
        });
        Some(OpenSpan::new(span, Arc::clone(&self.queues)))
    }

    /// The context of a new span, if it is to be recorded.
    fn context(&self, parent: Option<TraceParent>) -> Option<SpanContext> {
        let trace_id = match parent {
            Some(TraceParent { is_sampled: false, .. }) => return None,
            Some(TraceParent { trace_id, .. }) => trace_id,
            None if self.sample_ratio.is_hit(self.draw()) => self.trace_id(),
            None => return None,
        };
        Some(SpanContext { trace_id, span_id: self.span_id() })
    }

    fn trace_id(&self) -> [u8; 16] {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&self.span_id());
        id[8..].copy_from_slice(&self.span_id());
        id
    }

    /// Eight bytes that are not all zeros, which would be no id.
    fn span_id(&self) -> [u8; 8] {
        self.draw().max(1).to_be_bytes()
    }

    /// The next number of SplitMix64.
    fn draw(&self) -> u64 {
        let state = self.ids.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.ids.set(state);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

/// Whether a monitor asks for it again and again.
fn is_probe(endpoint: Endpoint) -> bool {
    matches!(endpoint, Endpoint::Healthz | Endpoint::Readyz | Endpoint::Metrics)
}

/// Records the deliveries of one stream.
#[derive(Debug)]
pub(crate) struct StreamTracer {
    tracer: Rc<Tracer>,
    topic: TopicName,
    group: GroupName,
}

impl StreamTracer {
    pub(crate) fn new(tracer: &Rc<Tracer>, topic: &TopicName, group: &GroupName) -> Self {
        Self { tracer: Rc::clone(tracer), topic: topic.clone(), group: group.clone() }
    }

    /// A delivery was taken at `began` and is written now. Its span is a part of the trace in which the message was
    /// produced, below the span of the producer and linked to it.
    pub(crate) fn delivered(&self, delivery: &Delivery, began: Instant) {
        let producer = if delivery.body.has_metadata() { delivery.body.metadata().trace } else { None };
        let producer = producer.and_then(|trace| TraceParent::parse(&trace));
        let Some(context) = self.tracer.context(producer) else { return };
        let link = producer.map(|producer| SpanContext { trace_id: producer.trace_id, span_id: producer.parent_id });
        self.tracer.queues.push_span(Box::new(Span {
            context,
            parent: link.map(|link| link.span_id),
            link,
            began,
            ended: Instant::now(),
            operation: Operation::Delivery { attempt: delivery.attempts },
            target: Target {
                topic: Some(self.topic.clone()),
                group: Some(self.group.clone()),
                partition: Some(delivery.partition),
                offset: Some(delivery.offset),
                lines: None,
            },
        }));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const SAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    /// The spans of `count` requests with this header.
    fn recorded(ratio: f64, header: Option<&str>, count: usize) -> Vec<Span> {
        let (queues, intake) = Queues::new();
        let tracer = Tracer::new(queues, Probability::new(ratio).expect("a ratio"), 7);
        let header = header.map(|text| HeaderValue::from_str(text).expect("a value"));
        for _ in 0..count {
            drop(tracer.request(Endpoint::Produce, header.as_ref(), Instant::now()));
        }
        intake.take_spans(usize::MAX)
    }

    #[test]
    fn sampled_caller_is_the_parent_whatever_the_ratio() {
        let spans = recorded(0.0, Some(SAMPLED), 2);
        assert_eq!(spans.len(), 2);
        for span in &spans {
            assert_eq!(span.context.trace_id[..3], [0x4b, 0xf9, 0x2f]);
            assert_eq!(span.parent, Some([0x00, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7]));
            assert_eq!(span.operation, Operation::Request { endpoint: Endpoint::Produce, status: None });
        }
        assert_ne!(spans[0].context.span_id, spans[1].context.span_id);
        assert!(recorded(1.0, Some(&SAMPLED.replace("-01", "-00")), 1).is_empty(), "its caller is not sampled");
    }

    #[test]
    fn share_of_requests_without_a_valid_caller_is_recorded_with_traces_of_their_own() {
        for header in [None, Some("nonsense"), Some("00-00000000000000000000000000000000-00f067aa0ba902b7-01")] {
            let spans = recorded(1.0, header, 1_000);
            let ids: BTreeSet<_> = spans.iter().map(|span| (span.context.trace_id, span.context.span_id)).collect();
            assert_eq!((spans.len(), ids.len()), (1_000, 1_000));
            assert!(spans.iter().all(|span| span.parent.is_none() && span.link.is_none()));
            assert!(recorded(0.0, header, 1_000).is_empty());
            let share = recorded(0.1, header, 8_000).len();
            assert!((600..1_000).contains(&share), "{share}");
        }
    }

    #[test]
    fn probe_is_not_recorded() {
        let (queues, intake) = Queues::new();
        let tracer = Tracer::new(queues, Probability::ONE, 7);
        let header = HeaderValue::from_static(SAMPLED);
        for endpoint in [Endpoint::Healthz, Endpoint::Readyz, Endpoint::Metrics] {
            assert!(tracer.request(endpoint, Some(&header), Instant::now()).is_none());
        }
        assert!(intake.take_spans(1).is_empty());
    }
}
