//! What became of spans and metrics, as metrics.

use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// What is exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    Traces,
    Metrics,
}

impl Signal {
    const ALL: [Self; 2] = [Self::Traces, Self::Metrics];

    /// The value of the `signal` label, which is the end of the URL too.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Traces => "traces",
            Self::Metrics => "metrics",
        }
    }
}

/// What became of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpanFate {
    Exported,
    /// Dropped since too many waited.
    QueueFull,
    /// Refused by the collector.
    Refused,
    /// Given up after several attempts.
    Failed,
}

impl SpanFate {
    const ALL: [Self; 4] = [Self::Exported, Self::QueueFull, Self::Refused, Self::Failed];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Exported => "exported",
            Self::QueueFull => "queue_full",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

/// What became of a request to the collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExportResult {
    Ok,
    Failed,
    /// Not made, since the one before has not ended.
    Skipped,
}

impl ExportResult {
    const ALL: [Self; 3] = [Self::Ok, Self::Failed, Self::Skipped];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
        }
    }
}

/// Counters of spans and of exports.
#[derive(Debug, Default)]
pub(crate) struct ExportFigures {
    spans: [AtomicU64; SpanFate::ALL.len()],
    exports: [[AtomicU64; ExportResult::ALL.len()]; Signal::ALL.len()],
}

impl ExportFigures {
    /// Counts spans.
    pub(crate) fn count_spans(&self, fate: SpanFate, spans: u64) {
        self.spans[fate as usize].fetch_add(spans, Ordering::Relaxed);
    }

    /// Counts a request to the collector.
    pub(crate) fn count_export(&self, signal: Signal, result: ExportResult) {
        self.exports[signal as usize][result as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// How many spans there were of this fate.
    #[cfg(test)]
    pub(crate) fn spans(&self, fate: SpanFate) -> u64 {
        self.spans[fate as usize].load(Ordering::Relaxed)
    }

    /// Registers the metrics.
    pub(crate) fn register(&self, registry: &mut Registry) {
        let spans: Family<[(&str, &str); 1], Counter> = Family::default();
        for fate in SpanFate::ALL {
            let count = self.spans[fate as usize].load(Ordering::Relaxed);
            spans.get_or_create(&[("result", fate.as_str())]).inc_by(count);
        }
        registry.register("otlp_spans", "Spans by what became of them", spans);
        let exports: Family<[(&str, &str); 2], Counter> = Family::default();
        for signal in Signal::ALL {
            for result in ExportResult::ALL {
                let count = self.exports[signal as usize][result as usize].load(Ordering::Relaxed);
                exports.get_or_create(&[("signal", signal.as_str()), ("result", result.as_str())]).inc_by(count);
            }
        }
        registry.register("otlp_exports", "Requests to the OpenTelemetry collector", exports);
    }
}
