//! What a span says of a request or a delivery.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Instant;

use driftq_core::command::{AckCumulative, Claim};
use driftq_core::types::{GroupName, Offset, PartitionId, TopicName};
use hyper::StatusCode;

use super::queue::Queues;
use crate::endpoint::Endpoint;

/// The identity of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpanContext {
    pub(crate) trace_id: [u8; 16],
    pub(crate) span_id: [u8; 8],
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// A request. No status if its client went before the answer.
    Request { endpoint: Endpoint, status: Option<StatusCode> },
    /// A delivery that was written to a stream.
    Delivery { attempt: u32 },
}

/// The message, group or topic that it was done to, as far as known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) topic: Option<TopicName>,
    pub(super) group: Option<GroupName>,
    pub(super) partition: Option<PartitionId>,
    pub(super) offset: Option<Offset>,
    /// Lines of a batch.
    pub(super) lines: Option<u64>,
}

/// A span that has ended.
#[derive(Clone, Debug)]
pub(super) struct Span {
    pub(super) context: SpanContext,
    /// The span of the caller, or of the producer of a message that was delivered.
    pub(super) parent: Option<[u8; 8]>,
    /// The span of the producer of a message that was delivered.
    pub(super) link: Option<SpanContext>,
    pub(super) began: Instant,
    pub(super) ended: Instant,
    pub(super) operation: Operation,
    pub(super) target: Target,
}

/// The span of a request in progress. It ends, and is queued for export, when it is dropped.
#[derive(Debug)]
pub(crate) struct OpenSpan {
    /// `None` once it has ended.
    span: RefCell<Option<Box<Span>>>,
    queues: Arc<Queues>,
}

impl OpenSpan {
    pub(super) fn new(span: Box<Span>, queues: Arc<Queues>) -> Self {
        Self { span: RefCell::new(Some(span)), queues }
    }

    fn change(&self, change: impl FnOnce(&mut Span)) {
        if let Some(span) = self.span.borrow_mut().as_deref_mut() {
            change(span);
        }
    }

    /// The answer.
    pub(crate) fn answered(&self, answer: StatusCode) {
        self.change(|span| {
            if let Operation::Request { status, .. } = &mut span.operation {
                *status = Some(answer);
            }
        });
    }

    /// The topic.
    pub(crate) fn topic(&self, topic: &TopicName) {
        self.change(|span| span.target.topic = Some(topic.clone()));
    }

    /// The topic and the group.
    pub(crate) fn group(&self, topic: &TopicName, group: &GroupName) {
        self.change(|span| (span.target.topic, span.target.group) = (Some(topic.clone()), Some(group.clone())));
    }

    /// Where a message is.
    pub(crate) fn message(&self, partition: PartitionId, offset: Offset) {
        self.change(|span| (span.target.partition, span.target.offset) = (Some(partition), Some(offset)));
    }

    /// The delivery that is claimed.
    pub(crate) fn claimed(&self, claim: &impl Claimed) {
        let (topic, group, partition, offset) = claim.parts();
        self.group(topic, group);
        self.message(partition, offset);
    }

    /// Every one of so many lines of a batch has its answer.
    pub(crate) fn batch_answered(&self, lines: u64) {
        self.answered(StatusCode::OK);
        self.change(|span| span.target.lines = Some(lines));
    }
}

impl Drop for OpenSpan {
    fn drop(&mut self) {
        if let Some(mut span) = self.span.take() {
            span.ended = Instant::now();
            self.queues.push_span(span);
        }
    }
}

/// A request about one delivery.
pub(crate) trait Claimed {
    /// Topic, group, partition and offset.
    fn parts(&self) -> (&TopicName, &GroupName, PartitionId, Offset);
}

impl Claimed for Claim {
    fn parts(&self) -> (&TopicName, &GroupName, PartitionId, Offset) {
        (&self.topic, &self.group, self.partition, self.offset)
    }
}

impl Claimed for AckCumulative {
    fn parts(&self) -> (&TopicName, &GroupName, PartitionId, Offset) {
        (&self.topic, &self.group, self.partition, self.offset)
    }
}

/// A span of a request to produce.
#[cfg(test)]
pub(super) fn test_span() -> Box<Span> {
    let now = Instant::now();
    Box::new(Span {
        context: SpanContext { trace_id: [1; 16], span_id: [2; 8] },
        parent: None,
        link: None,
        began: now,
        ended: now,
        operation: Operation::Request { endpoint: Endpoint::Produce, status: Some(StatusCode::OK) },
        target: Target::default(),
    })
}
