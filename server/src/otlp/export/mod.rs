//! The thread that sends what is recorded to a collector.
//!
//! Spans are sent a second after the first, or when many wait. A request that fails is repeated with growing pauses
//! while further spans wait in their queue; after some attempts its spans are given up. Metrics are not repeated: later
//! ones say as much. Both have a connection of their own, so that neither waits for the other.

mod collector;
mod metrics;
mod open_metrics;
mod resource;
mod traces;

use std::io;
use std::rc::Rc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prost::Message;
use tokio::sync::watch;
use tokio::task::LocalSet;
use tokio::time::{sleep, timeout};

use self::collector::{Collector, ExportError};
use self::resource::Resources;
use self::traces::UnixClock;
use super::figures::{ExportResult, Signal, SpanFate};
use super::queue::{Intake, WAKING_SPANS};
use crate::config::{OtlpSettings, WebhookUrl};

/// How long a span waits for others to be sent with it.
const SPAN_DELAY: Duration = Duration::from_secs(1);
/// Most spans of one request.
const SPANS_PER_REQUEST: usize = WAKING_SPANS;
/// Attempts to send the same spans.
const ATTEMPTS_MAX: u32 = 6;
/// The pause after the first failed attempt. Each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// How long the last spans may take to be sent when the export ends.
const LAST_REQUEST_TIMEOUT: Duration = Duration::from_millis(100);

/// The thread.
#[derive(Debug)]
pub(super) struct Exporter {
    thread: JoinHandle<()>,
    is_ending: watch::Sender<bool>,
}

impl Exporter {
    /// Starts it. The spans say that they are of the process `instance`.
    pub(super) fn start(
        endpoint: &WebhookUrl,
        settings: &OtlpSettings,
        instance: [u8; 16],
        intake: Intake,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (is_ending, ending) = watch::channel(false);
        let resources = Resources::new(&settings.service_name, instance);
        let collectors = [Signal::Traces, Signal::Metrics].map(|signal| Collector::new(endpoint, signal, settings));
        let work = move || {
            let local = LocalSet::new();
            let tasks = Tasks { intake, resources, ending };
            local.block_on(&runtime, tasks.run(collectors));
            drop(local);
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("driftq-otlp".into()).spawn(work)?;
        Ok(Self { thread, is_ending })
    }

    /// Sends the spans that wait, once, and ends.
    pub(super) fn end(&self) {
        self.is_ending.send_replace(true);
    }

    /// Whether it has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.end();
    }
}

/// What both tasks of the thread share.
struct Tasks {
    intake: Intake,
    resources: Resources,
    ending: watch::Receiver<bool>,
}

impl Tasks {
    async fn run(self, collectors: [Collector; 2]) {
        let shared = Rc::new(self);
        let [mut traces, metrics] = collectors;
        let exporting = tokio::task::spawn_local(Rc::clone(&shared).export_metrics(metrics));
        let mut ending = shared.ending.clone();
        tokio::select! {
            () = shared.export_spans(&mut traces) => {}
            // An error means that the export is dropped.
            _ = ending.wait_for(|is_ending| *is_ending) => {}
        }
        exporting.abort();
        // A request that was under way is given up: whether the collector has its spans is not known.
        let _ = timeout(LAST_REQUEST_TIMEOUT, shared.export_last_spans(&mut traces)).await;
    }

    /// Sends spans as they come. Never completes.
    async fn export_spans(&self, collector: &mut Collector) {
        loop {
            if !self.intake.has_many_spans() {
                let _ = timeout(SPAN_DELAY, self.intake.wake.notified()).await;
            }
            let spans = self.intake.take_spans(SPANS_PER_REQUEST);
            if spans.is_empty() {
                continue;
            }
            let request = traces::request(&self.resources, &spans, &UnixClock::now()).encode_to_vec();
            self.send_spans(collector, request, spans.len() as u64).await;
        }
    }

    /// Sends spans until the collector takes or refuses them, or they are given up.
    async fn send_spans(&self, collector: &mut Collector, request: Vec<u8>, spans: u64) {
        let request = bytes::Bytes::from(request);
        let mut pause = FIRST_PAUSE;
        for attempt in 1..=ATTEMPTS_MAX {
            match self.attempt_spans(collector, request.clone(), spans).await {
                Ok(()) => return,
                Err(error) if error.is_final() => return self.intake.figures.count_spans(SpanFate::Refused, spans),
                Err(error) if attempt < ATTEMPTS_MAX => {
                    sleep(error.retry_after().unwrap_or(pause).min(PAUSE_MAX)).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
                Err(_) => {}
            }
        }
        self.intake.figures.count_spans(SpanFate::Failed, spans);
    }

    async fn attempt_spans(
        &self,
        collector: &mut Collector,
        request: bytes::Bytes,
        spans: u64,
    ) -> Result<(), ExportError> {
        let figures = &self.intake.figures;
        match collector.post(request).await {
            Ok(answer) => {
                let refused = traces::refused_spans(&answer).min(spans);
                figures.count_export(Signal::Traces, ExportResult::Ok);
                figures.count_spans(SpanFate::Refused, refused);
                figures.count_spans(SpanFate::Exported, spans - refused);
                Ok(())
            }
            Err(error) => {
                figures.count_export(Signal::Traces, ExportResult::Failed);
                Err(error)
            }
        }
    }

    /// Sends what waits, with one attempt.
    async fn export_last_spans(&self, collector: &mut Collector) {
        loop {
            let spans = self.intake.take_spans(SPANS_PER_REQUEST);
            if spans.is_empty() {
                return;
            }
            let request = traces::request(&self.resources, &spans, &UnixClock::now()).encode_to_vec();
            if self.attempt_spans(collector, request.into(), spans.len() as u64).await.is_err() {
                return;
            }
        }
    }

    /// Sends metrics as they come. Never completes.
    async fn export_metrics(self: Rc<Self>, mut collector: Collector) {
        loop {
            let Some(text) = self.intake.take_metrics() else {
                self.intake.metrics_wake.notified().await;
                continue;
            };
            let request = metrics::request(&self.resources, &text, unix_ns()).encode_to_vec();
            let result = match collector.post(request.into()).await {
                Ok(_) => ExportResult::Ok,
                Err(_) => ExportResult::Failed,
            };
            self.intake.figures.count_export(Signal::Metrics, result);
        }
    }
}

/// Wall time in nanoseconds since 1970.
fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
