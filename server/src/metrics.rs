//! Metrics: counters updated as events occur, and values read from the broker when metrics are rendered.
//!
//! Four families have the names that the specification gives them; all others begin with `driftq_`.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use driftq_core::Pipeline;
use driftq_core::reply::RouterUse;
use driftq_core::types::{Millis, Now, Timestamp};
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::access::{AuthenticationFailure, Visible};
use crate::clock::Clock;
use crate::otlp::ExportFigures;
use crate::process_memory;
use crate::reactor_figures::{ReactorFigures, ReactorTotals};
use crate::request_figures::RequestMetrics;
use crate::tls::HandshakeFailure;
use crate::topic_metrics::register_topics;

/// Prefix of every family that the specification does not name.
const PREFIX: &str = "driftq";

/// Families that are listed even without any series.
const ALWAYS_LISTED: [(&str, &str, &str); 5] = [
    ("inflight_messages", "gauge", "Messages delivered and not yet settled"),
    ("consumer_lag", "gauge", "Messages a group has not acked"),
    ("dlq_messages", "counter", "Messages that became dead letters"),
    ("driftq_dlq_messages", "gauge", "Dead letters that are not yet acked"),
    ("driftq_router_failures", "counter", "Messages stored unrouted because the router failed"),
];

/// Every `reason` of `produce_rejected`.
const REJECT_REASONS: [&str; 14] = [
    "overloaded",
    "dlq_full",
    "dedupe_full",
    "too_many",
    "log_busy",
    "memory",
    "storage_full",
    "invalid",
    "not_found",
    "too_large",
    "unavailable",
    "unauthenticated",
    "permission_denied",
    "other",
];

/// Every `result` of `tls_reloads`.
const RELOAD_RESULTS: [&str; 2] = ["ok", "failed"];

pub(crate) type Labels<const N: usize> = [(&'static str, String); N];

/// Metrics of the process.
pub(crate) struct Metrics {
    /// Families that the specification names.
    specified: Registry,
    /// All others, with [`PREFIX`].
    own: Registry,
    rejected: Family<Labels<1>, Counter>,
    router_failures: Family<Labels<1>, Counter>,
    routed: Counter,
    overruled: Counter,
    batch_records: Histogram,
    sync_seconds: Histogram,
    log_bytes: Counter,
    snapshot_bytes: Counter,
    connections: Arc<AtomicUsize>,
    connections_refused: Counter,
    connections_refused_per_address: Counter,
    authentications_failed: Family<Labels<1>, Counter>,
    authentications_throttled: Counter,
    tls_reloads: Family<Labels<1>, Counter>,
    tls_handshakes_failed: Family<Labels<1>, Counter>,
    recovery: OnceLock<Duration>,
    /// Wall time at the start of the process.
    started: Timestamp,
}

impl Metrics {
    /// All counters at zero.
    pub(crate) fn new() -> Arc<Self> {
        let (mut specified, mut own) = registries();
        let rejected: Family<Labels<1>, Counter> = Family::default();
        for reason in REJECT_REASONS {
            let _ = rejected.get_or_create(&[("reason", reason.to_owned())]);
        }
        let router_failures: Family<Labels<1>, Counter> = Family::default();
        let batch_records = Histogram::new(exponential_buckets(1.0, 2.0, 14));
        let sync_seconds = Histogram::new(exponential_buckets(0.000_05, 2.0, 16));
        let (routed, overruled) = (Counter::default(), Counter::default());
        let (log_bytes, connections_refused) = (Counter::default(), Counter::default());
        specified.register("produce_rejected", "Rejected produces", rejected.clone());
        own.register("router_failures", "Messages stored unrouted because the router failed", router_failures.clone());
        own.register("router_decisions", "Messages stored as the router decided", routed.clone());
        own.register(
            "router_set_aside",
            "Router decisions ignored because their topic or partition does not exist",
            overruled.clone(),
        );
        own.register("log_batch_records", "Records per sync", batch_records.clone());
        own.register("log_sync_seconds", "Time to write and sync one batch", sync_seconds.clone());
        own.register("log_bytes", "Bytes written to the log", log_bytes.clone());
        let snapshot_bytes = Counter::default();
        own.register("snapshot_bytes", "Bytes written to snapshots", snapshot_bytes.clone());
        own.register("connections_refused", "Connections refused beyond the limit", connections_refused.clone());
        let connections_refused_per_address = Counter::default();
        own.register(
            "connections_refused_per_address",
            "Connections refused because their address has too many",
            connections_refused_per_address.clone(),
        );
        let authentications_failed: Family<Labels<1>, Counter> = Family::default();
        for failure in AuthenticationFailure::ALL {
            let _ = authentications_failed.get_or_create(&[("reason", failure.reason().to_owned())]);
        }
        own.register("authentications_failed", "Requests without a valid key", authentications_failed.clone());
        let authentications_throttled = Counter::default();
        own.register(
            "authentications_throttled",
            "Failed authentications answered with 429, as their address has too many",
            authentications_throttled.clone(),
        );
        let tls_reloads: Family<Labels<1>, Counter> = Family::default();
        for result in RELOAD_RESULTS {
            let _ = tls_reloads.get_or_create(&[("result", result.to_owned())]);
        }
        own.register("tls_reloads", "How often the TLS certificate was read again", tls_reloads.clone());
        let tls_handshakes_failed: Family<Labels<1>, Counter> = Family::default();
        for failure in HandshakeFailure::ALL {
            let _ = tls_handshakes_failed.get_or_create(&[("reason", failure.reason().to_owned())]);
        }
        own.register("tls_handshakes_failed", "TLS handshakes that failed", tls_handshakes_failed.clone());
        Arc::new(Self {
            specified,
            own,
            rejected,
            router_failures,
            routed,
            overruled,
            batch_records,
            sync_seconds,
            log_bytes,
            snapshot_bytes,
            connections: Arc::default(),
            connections_refused,
            connections_refused_per_address,
            authentications_failed,
            authentications_throttled,
            tls_reloads,
            tls_handshakes_failed,
            recovery: OnceLock::new(),
            started: Clock::system().now().wall,
        })
    }

    /// Counts a rejected produce.
    pub(crate) fn count_rejected(&self, reason: &'static str) {
        self.rejected.get_or_create(&[("reason", reason.to_owned())]).inc();
    }

    /// Counts what became of a router's decision.
    pub(crate) fn count_routed(&self, router: RouterUse) {
        match router {
            RouterUse::NoDecision => {}
            RouterUse::Followed => {
                self.routed.inc();
            }
            RouterUse::Ignored => {
                self.overruled.inc();
            }
        }
    }

    /// Counts a failure of the router.
    pub(crate) fn count_router_failure(&self, reason: &'static str) {
        self.router_failures.get_or_create(&[("reason", reason.to_owned())]).inc();
    }

    /// Observes a synced batch of the log.
    pub(crate) fn observe_log_batch(&self, records: u64, bytes: u64, took: Option<Duration>) {
        self.batch_records.observe(records as f64);
        self.log_bytes.inc_by(bytes);
        if let Some(took) = took {
            self.sync_seconds.observe(took.as_secs_f64());
        }
    }

    /// Counts what a background job has written: slices of snapshots.
    pub(crate) fn count_snapshot_bytes(&self, bytes: u64) {
        self.snapshot_bytes.inc_by(bytes);
    }

    /// Sets the duration of recovery.
    pub(crate) fn set_recovery(&self, took: Duration) {
        // A process recovers once.
        let _ = self.recovery.set(took);
    }

    /// Counts an open connection until the returned guard is dropped; `None` if there are `max` already.
    pub(crate) fn open_connection(&self, max: usize) -> Option<OpenConnection> {
        // Counted and compared at once: of several reactors that open the last one, one does.
        let count = |open: usize| (open < max).then_some(open + 1);
        self.connections.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count).ok()?;
        Some(OpenConnection(Arc::clone(&self.connections)))
    }

    /// Number of open connections.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Counts a refused connection.
    pub(crate) fn count_refused_connection(&self) {
        self.connections_refused.inc();
    }

    /// Counts a connection that was refused because its address has too many.
    pub(crate) fn count_refused_per_address(&self) {
        self.connections_refused_per_address.inc();
    }

    /// Counts a request without a valid key.
    pub(crate) fn count_failed_authentication(&self, failure: AuthenticationFailure) {
        self.authentications_failed.get_or_create(&[("reason", failure.reason().to_owned())]).inc();
    }

    /// Counts one of them that was answered with 429.
    pub(crate) fn count_throttled_authentication(&self) {
        self.authentications_throttled.inc();
    }

    /// Counts an attempt to read the TLS certificate again.
    pub(crate) fn count_tls_reload(&self, is_ok: bool) {
        let [ok, failed] = RELOAD_RESULTS;
        let result = if is_ok { ok } else { failed };
        self.tls_reloads.get_or_create(&[("result", result.to_owned())]).inc();
    }

    /// Counts a failed TLS handshake.
    pub(crate) fn count_failed_handshake(&self, failure: HandshakeFailure) {
        self.tls_handshakes_failed.get_or_create(&[("reason", failure.reason().to_owned())]).inc();
    }

    /// All metrics, in the OpenMetrics text format; those of the pipeline once the log is recovered.
    pub(crate) fn render(&self, broker: &BrokerFigures, pipeline: Option<(&Pipeline, &Visible<'_>)>) -> String {
        let (mut specified, mut current) = registries();
        current.register("connections", "Open connections", gauge(self.connections()));
        current.register_collector(Box::new(RequestMetrics(broker.reactors.clone())));
        let reactors = broker.reactor_totals();
        current.register("reactors", "Threads that do HTTP and JSON", gauge(broker.reactors.len()));
        current.register("consumer_streams", "Connected streams", gauge(reactors.streams));
        current.register("awaited_replies", "Requests that wait for the sync", gauge(reactors.pending_replies));
        current.register(
            "recovery_seconds",
            "Duration of the last recovery",
            ConstGauge::new(self.recovery.get().copied().unwrap_or_default().as_secs_f64()),
        );
        current.register(
            "log_sync_pending_seconds",
            "How long the sync in progress has been under way",
            ConstGauge::new(broker.log_busy_for.0 as f64 / 1_000.0),
        );
        current.register("ready", "Whether commands are accepted", gauge(broker.is_ready.into()));
        register_process(broker, &mut current);
        current.register(
            "start_time_seconds",
            "Wall time at the start of the process, since 1970",
            ConstGauge::new(self.started.0 as f64 / 1_000.0),
        );
        let memory = &broker.memory;
        current.register("body_bytes", "Bytes of unfinished request bodies", gauge(memory.body_bytes));
        current.register(
            "bodies_refused",
            "Bodies refused for want of memory",
            ConstCounter::new(memory.bodies_refused),
        );
        current.register("unsent_bytes", "Bytes of responses that clients have not read", gauge(memory.unsent_bytes));
        current.register("stream_bytes", "Bytes of deliveries not yet taken by a stream", gauge(reactors.stream_bytes));
        current.register(
            "deliveries_refused",
            "Deliveries withdrawn because those not yet taken have too many bytes",
            ConstCounter::new(reactors.deliveries_refused),
        );
        current.register(
            "answers_refused",
            "Answers refused because too many bytes are unsent",
            ConstCounter::new(memory.answers_refused),
        );
        current.register(
            "slow_readers_closed",
            "Connections closed because their clients did not read",
            ConstCounter::new(memory.slow_readers_closed),
        );
        if let Some(tls) = &broker.tls {
            current.register("tls_handshakes", "TLS handshakes in progress", gauge(tls.handshakes));
            current.register(
                "tls_certificate_expires_timestamp_seconds",
                "When the TLS certificate expires, in seconds since 1970",
                ConstGauge::new(tls.expires_at),
            );
        }
        if let Some(export) = &broker.export {
            export.register(&mut current);
        }
        if let Some((pipeline, visible)) = pipeline {
            register_broker(pipeline, &mut current);
            current.register(
                "clock_ahead_seconds",
                "How far wall time in the broker is ahead of the wall clock",
                ConstGauge::new(pipeline.broker().clock_ahead_ms(broker.now).max(0) as f64 / 1_000.0),
            );
            register_topics(pipeline, visible, &mut specified, &mut current);
        }
        encode(&[&self.specified, &specified, &self.own, &current])
    }

    /// The metrics of the topics that are visible, and nothing of the process.
    pub(crate) fn render_topics(pipeline: &Pipeline, visible: &Visible<'_>) -> String {
        let (mut specified, mut current) = registries();
        register_topics(pipeline, visible, &mut specified, &mut current);
        encode(&[&specified, &current])
    }
}

/// Memory of requests and responses in progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryFigures {
    /// Bytes of unfinished request bodies.
    pub(crate) body_bytes: usize,
    /// Bodies that were refused.
    pub(crate) bodies_refused: u64,
    /// Bytes of unsent responses.
    pub(crate) unsent_bytes: usize,
    /// Answers that were refused.
    pub(crate) answers_refused: u64,
    /// Connections that were closed because their clients did not read.
    pub(crate) slow_readers_closed: u64,
}

/// TLS of the listen address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TlsFigures {
    /// Handshakes in progress.
    pub(crate) handshakes: usize,
    /// When the certificate expires, in seconds since 1970.
    pub(crate) expires_at: i64,
}

/// The broker's side of [`Metrics::render`].
#[derive(Clone, Debug)]
pub(crate) struct BrokerFigures {
    /// What the reactors have under way and have done.
    pub(crate) reactors: Vec<Arc<ReactorFigures>>,
    /// Whether commands are accepted.
    pub(crate) is_ready: bool,
    /// How long the log job in progress has been under way.
    pub(crate) log_busy_for: Millis,
    /// Memory of requests and responses in progress.
    pub(crate) memory: MemoryFigures,
    /// The bounds of kinds of memory: metrics without the prefix, and bytes.
    pub(crate) memory_bounds: [(&'static str, u64); 4],
    /// Room on the file system of the data folder; `None` if it is not known.
    pub(crate) disk_free_bytes: Option<u64>,
    /// TLS, if connections use it.
    pub(crate) tls: Option<TlsFigures>,
    /// What was exported over OTLP, if anything is.
    pub(crate) export: Option<Arc<ExportFigures>>,
    /// The clocks of the machine.
    pub(crate) now: Now,
}

impl BrokerFigures {
    fn reactor_totals(&self) -> ReactorTotals {
        ReactorTotals::sum(self.reactors.iter().map(|figures| &**figures))
    }
}

/// Registries without and with [`PREFIX`].
fn registries() -> (Registry, Registry) {
    (Registry::default(), Registry::with_prefix(PREFIX))
}

pub(crate) fn gauge(value: usize) -> ConstGauge<i64> {
    ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX))
}

fn gauge_u64(value: u64) -> ConstGauge<i64> {
    ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX))
}

/// The text of all families, with those that have no series.
fn encode(registries: &[&Registry]) -> String {
    let mut text = String::new();
    let written = registries.iter().try_for_each(|registry| encode_registry(&mut text, registry));
    let written = written.and_then(|()| list_absent(&mut text)).and_then(|()| encode_eof(&mut text));
    written.expect("writing to memory does not fail");
    text
}

/// Writes the help and type of families that have no series.
fn list_absent(text: &mut String) -> std::fmt::Result {
    for (name, kind, help) in ALWAYS_LISTED {
        let head = format!("# TYPE {name} ");
        if !text.lines().any(|line| line.starts_with(&head)) {
            write!(text, "# HELP {name} {help}.\n# TYPE {name} {kind}\n")?;
        }
    }
    Ok(())
}

/// Converts OpenMetrics text to the Prometheus text format, in which a counter's family has the name of its series and
/// there is no end mark.
pub(crate) fn to_prometheus(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len() + 1_024);
    let mut lines = open_metrics.lines().filter(|line| *line != "# EOF").peekable();
    while let Some(line) = lines.next() {
        // The type of a family follows its help.
        let kind = if line.starts_with("# HELP ") { lines.peek().copied() } else { Some(line) };
        let is_counter = kind.is_some_and(|kind| kind.starts_with("# TYPE ") && kind.ends_with(" counter"));
        match line.splitn(4, ' ').collect::<Vec<_>>()[..] {
            ["#", keyword, name, rest] if is_counter => text.extend(["# ", keyword, " ", name, "_total ", rest]),
            _ => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

/// Registers what concerns the process and the machine.
fn register_process(broker: &BrokerFigures, registry: &mut Registry) {
    let build: Family<Labels<2>, Gauge> = Family::default();
    let labels = [("version", env!("CARGO_PKG_VERSION").to_owned()), ("commit", env!("DRIFTQ_COMMIT").to_owned())];
    build.get_or_create(&labels).set(1);
    registry.register("build_info", "Always 1; version and commit of the program", build);
    for (name, bytes) in broker.memory_bounds {
        registry.register(name, "The bound on this kind of memory", gauge_u64(bytes));
    }
    for (name, help, bytes) in [
        ("resident_bytes", "Memory of the process that is resident", process_memory::resident()),
        ("memory_available_bytes", "Memory that the process may use", process_memory::available()),
        ("disk_free_bytes", "Room on the file system of the data folder", broker.disk_free_bytes),
    ] {
        if let Some(bytes) = bytes {
            registry.register(name, help, gauge_u64(bytes));
        }
    }
}

/// Registers the broker's counters and the sizes of its stores.
fn register_broker(pipeline: &Pipeline, registry: &mut Registry) {
    let counters = pipeline.broker().counters();
    for (name, help, value) in [
        ("messages_produced", "Messages stored by produces", counters.produced),
        ("messages_delivered", "Deliveries, redeliveries included", counters.delivered),
        ("messages_acked", "Messages acked", counters.acked),
        ("messages_nacked", "Messages nacked", counters.nacked),
        ("messages_expired", "Leases that expired without ack, nack or extend", counters.expired),
        (
            "messages_deduplicated",
            "Produces answered with an earlier message of the same identity",
            counters.deduplicated,
        ),
        (
            "messages_skipped",
            "Messages acked undelivered because their identity was already committed",
            counters.skipped,
        ),
        ("messages_released", "Messages released without a failure", counters.released),
        ("messages_redriven", "Dead letters redriven", counters.redriven),
        ("messages_purged", "Messages removed by purges", counters.purged),
        ("leases_extended", "Leases extended", counters.extended),
        ("steps_completed", "Steps completed", counters.completed),
        ("idempotency_begun", "Begins of an effect", counters.begun),
        ("idempotency_executed", "Begins that granted execution", counters.executed),
        ("idempotency_replayed", "Begins answered with the stored outcome", counters.replayed),
        ("idempotency_in_progress", "Begins refused because the effect is in progress", counters.in_progress),
        ("idempotency_mismatched", "Begins refused because the key was used for another request", counters.mismatched),
        ("idempotency_stale", "Requests to the store refused for a stale token", counters.stale),
        ("log_records", "Records appended to the log", counters.appended),
        ("log_refusals", "Records refused because the log is full", counters.refused),
    ] {
        registry.register(name, help, ConstCounter::new(value));
    }
    let (hits, misses) = pipeline.broker().payload_lookups();
    let (reads, read_bytes) = pipeline.reads();
    let figures = pipeline.log_figures();
    for (name, help, value) in [
        ("payload_hits", "Payloads found in memory when an output needed them", hits),
        ("payload_misses", "Payloads not found in memory when an output needed them", misses),
        ("payload_reads", "Reads of payloads from the log", reads),
        ("payload_reads_ahead", "Reads of payloads before an output needed them", pipeline.reads_ahead()),
        ("payload_read_bytes", "Bytes read from the log for payloads", read_bytes),
        ("payloads_relocated", "Payloads written again, so that segments can be removed", counters.relocated),
        ("payloads_lost", "Payloads that were damaged on disk", counters.payloads_lost),
        ("log_relocated_bytes", "Bytes of payloads written again", figures.relocated_bytes),
        ("log_scrubs", "How often all segments were searched for damage", figures.scrubs),
        ("log_scrubbed_bytes", "Bytes read in search of damage", figures.scrubbed_bytes),
        ("log_scrubbed_segments", "Segments searched for damage", figures.scrubbed_segments),
    ] {
        registry.register(name, help, ConstCounter::new(value));
    }
    let in_memory = usize::try_from(pipeline.broker().payload_bytes()).unwrap_or(usize::MAX);
    registry.register("payload_memory_bytes", "Bytes of payloads in memory", gauge(in_memory));
    for (name, help, value) in [
        ("log_size_bytes", "Bytes of all segments", figures.log_bytes),
        ("log_live_bytes", "Bytes of the segments that are live", figures.live_bytes),
        ("log_segments_to_clean", "Segments to be cleaned", figures.to_clean),
        ("log_scrub_segment", "The segment that is searched for damage; 0 if none is", figures.scrubbing),
    ] {
        registry.register(name, help, gauge(usize::try_from(value).unwrap_or(usize::MAX)));
    }
    let state = pipeline.state();
    let held = usize::try_from(state.memory().bytes).unwrap_or(usize::MAX);
    registry.register("state_bytes", "Memory of the state, without payloads; an estimate", gauge(held));
    let max = usize::try_from(pipeline.state_bytes_max()).unwrap_or(usize::MAX);
    registry.register(
        "state_bytes_max",
        "Memory of the state beyond which requests that need more get 429",
        gauge(max),
    );
    registry.register("idempotency_records", "Effects in the idempotency store", gauge(state.store().len()));
    registry.register("completions_kept", "Responses of completed steps kept", gauge(state.completions().len()));
    registry.register("winners_kept", "Winners of messages remembered", gauge(state.winners().len()));
}

/// Counts an open connection until dropped.
#[derive(Debug)]
pub(crate) struct OpenConnection(Arc<AtomicUsize>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
