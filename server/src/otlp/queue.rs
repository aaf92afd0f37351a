//! The queues between those who record and the thread that exports. Nothing waits for room in them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use tokio::sync::Notify;

use super::figures::{ExportFigures, ExportResult, Signal, SpanFate};
use super::span::Span;

/// Most spans that wait.
pub(super) const SPANS_MAX: usize = 8_192;
/// So many spans wake the thread that exports before its time. Fewer do not, so that a span costs no system call.
pub(super) const WAKING_SPANS: usize = 512;

/// The ends of those who record.
#[derive(Debug)]
pub(super) struct Queues {
    spans: SyncSender<Box<Span>>,
    metrics: SyncSender<String>,
    waiting: Arc<AtomicUsize>,
    wake: Arc<Notify>,
    metrics_wake: Arc<Notify>,
    pub(super) figures: Arc<ExportFigures>,
}

/// The ends of the thread that exports.
#[derive(Debug)]
pub(super) struct Intake {
    spans: Receiver<Box<Span>>,
    metrics: Receiver<String>,
    waiting: Arc<AtomicUsize>,
    /// Notified when many spans wait.
    pub(super) wake: Arc<Notify>,
    /// Notified when metrics wait.
    pub(super) metrics_wake: Arc<Notify>,
    pub(super) figures: Arc<ExportFigures>,
}

impl Queues {
    pub(super) fn new() -> (Arc<Self>, Intake) {
        let (spans, waiting_spans) = sync_channel(SPANS_MAX);
        let (metrics, waiting_metrics) = sync_channel(1);
        let (waiting, figures) = (Arc::default(), Arc::default());
        let (wake, metrics_wake): (Arc<Notify>, Arc<Notify>) = (Arc::default(), Arc::default());
        let intake = Intake {
            spans: waiting_spans,
            metrics: waiting_metrics,
            waiting: Arc::clone(&waiting),
            wake: Arc::clone(&wake),
            metrics_wake: Arc::clone(&metrics_wake),
            figures: Arc::clone(&figures),
        };
        (Arc::new(Self { spans, metrics, waiting, wake, metrics_wake, figures }), intake)
    }

    /// Queues a span, or drops and counts it if the queue is full.
    pub(super) fn push_span(&self, span: Box<Span>) {
        // Counted before it can be taken, so that the count never gets below zero.
        let waiting = self.waiting.fetch_add(1, Ordering::Relaxed) + 1;
        if self.spans.try_send(span).is_err() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            self.figures.count_spans(SpanFate::QueueFull, 1);
        } else if waiting == WAKING_SPANS {
            self.wake.notify_one();
        }
    }

    /// Queues metrics, or drops them if earlier ones wait.
    pub(super) fn push_metrics(&self, text: String) {
        if self.metrics.try_send(text).is_err() {
            self.figures.count_export(Signal::Metrics, ExportResult::Skipped);
        }
        self.metrics_wake.notify_one();
    }
}

impl Intake {
    /// Takes spans that wait, at most `max`.
    pub(super) fn take_spans(&self, max: usize) -> Vec<Span> {
        let spans: Vec<_> = self.spans.try_iter().take(max).map(|span| *span).collect();
        self.waiting.fetch_sub(spans.len(), Ordering::Relaxed);
        spans
    }

    /// Whether so many spans wait that they are to be exported at once.
    pub(super) fn has_many_spans(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) >= WAKING_SPANS
    }

    /// Takes the metrics that wait.
    pub(super) fn take_metrics(&self) -> Option<String> {
        self.metrics.try_recv().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::otlp::span::test_span;

    #[test]
    fn span_beyond_the_bound_is_dropped_and_counted() {
        let (queues, intake) = Queues::new();
        for _ in 0..SPANS_MAX + 3 {
            queues.push_span(test_span());
        }
        assert_eq!(queues.figures.spans(SpanFate::QueueFull), 3);
        assert_eq!(intake.take_spans(100).len(), 100);
        queues.push_span(test_span());
        assert_eq!(intake.take_spans(usize::MAX).len(), SPANS_MAX - 99);
        assert!(!intake.has_many_spans() && intake.take_spans(1).is_empty());
        drop(intake);
        queues.push_span(test_span());
        assert_eq!(queues.figures.spans(SpanFate::QueueFull), 4, "the thread that exports has ended");
    }

    #[tokio::test]
    async fn only_many_spans_wake_the_export() {
        let (queues, intake) = Queues::new();
        let is_woken = async || {
            let pause = std::time::Duration::from_millis(1);
            tokio::time::timeout(pause, intake.wake.notified()).await.is_ok()
        };
        for _ in 1..WAKING_SPANS {
            queues.push_span(test_span());
        }
        assert!(!intake.has_many_spans() && !is_woken().await);
        queues.push_span(test_span());
        assert!(intake.has_many_spans() && is_woken().await);
        queues.push_span(test_span());
        assert!(!is_woken().await, "once");
    }

    #[test]
    fn metrics_wait_for_the_export_before_them() {
        let (queues, intake) = Queues::new();
        queues.push_metrics("a".to_owned());
        queues.push_metrics("b".to_owned());
        assert_eq!(intake.take_metrics().as_deref(), Some("a"));
        assert_eq!(intake.take_metrics(), None);
    }
}
