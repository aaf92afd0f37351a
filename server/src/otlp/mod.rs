//! Spans of requests and deliveries, and metrics, for export over OTLP/HTTP.
//!
//! What is recorded is here; the feature `otlp` adds `export`, the thread that encodes and sends it. Recording never
//! waits: spans and metrics go into queues with a bound, and what finds its queue full is dropped and counted
//! ([`ExportFigures`]). A collector that is slow, dead or answers nonsense therefore costs its spans and nothing else.
//!
//! A span has names of topics and groups, partitions, offsets and counts. It has no key, no payload and no other text
//! of a request: neither query nor header.

#[cfg(feature = "otlp")]
mod export;
mod figures;
mod queue;
mod span;
mod tracer;

use std::io;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use self::figures::ExportFigures;
use self::queue::{Intake, Queues};
pub(crate) use self::span::{Claimed, OpenSpan};
pub(crate) use self::tracer::{StreamTracer, Tracer};
use crate::config::{OtlpSettings, Probability};

/// Records what is exported. Shared by all reactors.
#[derive(Debug)]
pub(crate) struct Recorder {
    queues: Arc<Queues>,
    sample_ratio: Probability,
    interval: Duration,
}

impl Recorder {
    fn new(settings: &OtlpSettings) -> (Self, Intake) {
        let (queues, intake) = Queues::new();
        (Self { queues, sample_ratio: settings.sample_ratio, interval: settings.interval }, intake)
    }

    /// A tracer for one reactor. Its ids follow from `seed`.
    pub(crate) fn tracer(&self, seed: u64) -> Tracer {
        Tracer::new(Arc::clone(&self.queues), self.sample_ratio, seed)
    }

    /// Time between two exports of the metrics.
    pub(crate) fn interval(&self) -> Duration {
        self.interval
    }

    /// Takes all metrics, in the OpenMetrics text format. While earlier ones wait, they are dropped.
    pub(crate) fn metrics(&self, text: String) {
        self.queues.push_metrics(text);
    }

    /// What became of spans and metrics.
    pub(crate) fn figures(&self) -> Arc<ExportFigures> {
        Arc::clone(&self.queues.figures)
    }
}

/// A running export. Dropping it ends its thread; what it has not sent by then is lost.
#[derive(Debug)]
pub(crate) struct Export {
    pub(crate) recorder: Arc<Recorder>,
    #[cfg(feature = "otlp")]
    exporter: export::Exporter,
}

impl Export {
    /// Starts the export that the settings ask for, if they do.
    ///
    /// # Errors
    /// If its thread cannot be started.
    #[cfg(feature = "otlp")]
    pub(crate) fn start(settings: &OtlpSettings, instance: [u8; 16]) -> io::Result<Option<Self>> {
        let Some(endpoint) = &settings.endpoint else { return Ok(None) };
        let (recorder, intake) = Recorder::new(settings);
        let exporter = export::Exporter::start(endpoint, settings, instance, intake)?;
        Ok(Some(Self { recorder: Arc::new(recorder), exporter }))
    }

    /// Nothing is exported: settings that ask for it are refused.
    #[cfg(not(feature = "otlp"))]
    pub(crate) fn start(_: &OtlpSettings, _: [u8; 16]) -> io::Result<Option<Self>> {
        Ok(None)
    }

    /// Sends what waits, once. [`Export::has_ended`] is true when that is over.
    pub(crate) fn end(&self) {
        #[cfg(feature = "otlp")]
        self.exporter.end();
    }

    /// Whether its thread has ended.
    pub(crate) fn has_ended(&self) -> bool {
        #[cfg(feature = "otlp")]
        return self.exporter.has_ended();
        #[cfg(not(feature = "otlp"))]
        true
    }
}
