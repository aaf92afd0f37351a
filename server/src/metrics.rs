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
use driftq_core::state::{Partition, Topic};
use driftq_core::types::{Millis, Now};
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::reactor_figures::ReactorTotals;

/// Most label sets of one gauge; those beyond are left out and counted.
const SERIES_MAX: usize = 10_000;

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
const REJECT_REASONS: [&str; 12] = [
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
    "other",
];

type Labels<const N: usize> = [(&'static str, String); N];

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
    recovery: OnceLock<Duration>,
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
            recovery: OnceLock::new(),
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

    /// All metrics, in the OpenMetrics text format; those of the pipeline once the log is recovered.
    pub(crate) fn render(&self, broker: &BrokerFigures, pipeline: Option<&Pipeline>) -> String {
        let (mut specified, mut current) = registries();
        current.register("connections", "Open connections", gauge(self.connections()));
        current.register("consumer_streams", "Connected streams", gauge(broker.reactors.streams));
        current.register("awaited_replies", "Requests that wait for the sync", gauge(broker.reactors.pending_replies));
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
        let memory = &broker.memory;
        current.register("body_bytes", "Bytes of unfinished request bodies", gauge(memory.body_bytes));
        current.register(
            "bodies_refused",
            "Bodies refused for want of memory",
            ConstCounter::new(memory.bodies_refused),
        );
        current.register("unsent_bytes", "Bytes of responses that clients have not read", gauge(memory.unsent_bytes));
        current.register(
            "stream_bytes",
            "Bytes of deliveries not yet taken by a stream",
            gauge(broker.reactors.stream_bytes),
        );
        current.register(
            "deliveries_refused",
            "Deliveries withdrawn because those not yet taken have too many bytes",
            ConstCounter::new(broker.reactors.deliveries_refused),
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
        if let Some(pipeline) = pipeline {
            register_broker(pipeline, &mut specified, &mut current);
            current.register(
                "clock_ahead_seconds",
                "How far wall time in the broker is ahead of the wall clock",
                ConstGauge::new(pipeline.broker().clock_ahead_ms(broker.now).max(0) as f64 / 1_000.0),
            );
            register_groups(pipeline, &mut specified, &mut current);
            register_dlq_depths(pipeline, &mut current);
        }
        let mut text = String::new();
        let mut registries = [&self.specified, &specified, &self.own, &current].into_iter();
        let written = registries.try_for_each(|registry| encode_registry(&mut text, registry));
        let written = written.and_then(|()| list_absent(&mut text)).and_then(|()| encode_eof(&mut text));
        written.expect("writing to memory does not fail");
        text
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

/// The broker's side of [`Metrics::render`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct BrokerFigures {
    /// What the reactors have under way.
    pub(crate) reactors: ReactorTotals,
    /// Whether commands are accepted.
    pub(crate) is_ready: bool,
    /// How long the log job in progress has been under way.
    pub(crate) log_busy_for: Millis,
    /// Memory of requests and responses in progress.
    pub(crate) memory: MemoryFigures,
    /// The clocks of the machine.
    pub(crate) now: Now,
}

/// Registries without and with [`PREFIX`].
fn registries() -> (Registry, Registry) {
    (Registry::default(), Registry::with_prefix(PREFIX))
}

fn gauge(value: usize) -> ConstGauge<i64> {
    ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX))
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

/// Registers the broker's counters and the sizes of its stores.
fn register_broker(pipeline: &Pipeline, specified: &mut Registry, registry: &mut Registry) {
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
    let dead: Family<Labels<2>, Counter> = Family::default();
    for ((topic, reason), count) in pipeline.broker().dead_lettered() {
        dead.get_or_create(&[("topic", topic.as_str().to_owned()), ("reason", reason.as_str().to_owned())])
            .inc_by(*count);
    }
    specified.register("dlq_messages", "Messages that became dead letters", dead);
}

/// Registers in-flight messages and lag per topic, group and partition.
fn register_groups(pipeline: &Pipeline, specified: &mut Registry, registry: &mut Registry) {
    let in_flight: Family<Labels<3>, Gauge> = Family::default();
    let lag: Family<Labels<3>, Gauge> = Family::default();
    let (mut series, mut left_out) = (0, 0);
    for topic in pipeline.state().topics() {
        for group in topic.groups() {
            let partition_count = topic.partition_count() as usize;
            if series + partition_count > SERIES_MAX {
                left_out += partition_count;
                continue;
            }
            for (id, progress) in group.partitions() {
                series += 1;
                let labels = [
                    ("topic", topic.name().as_str().to_owned()),
                    ("group", group.name().as_str().to_owned()),
                    ("partition", id.to_string()),
                ];
                let next = topic.partition(id).map(Partition::next_position).unwrap_or_default();
                let unacked = i64::try_from(progress.acked().unacked_before(next)).unwrap_or(i64::MAX);
                in_flight.get_or_create(&labels).set(i64::from(progress.in_flight()));
                lag.get_or_create(&labels).set(unacked);
            }
        }
    }
    specified.register("inflight_messages", "Messages delivered and not yet settled", in_flight);
    specified.register("consumer_lag", "Messages a group has not acked", lag);
    registry.register("series_left_out", "Groups times partitions without series of their own", gauge(left_out));
}

/// Registers the depth of every dead-letter topic, by the topic whose dead letters it has.
fn register_dlq_depths(pipeline: &Pipeline, registry: &mut Registry) {
    let depths: Family<Labels<1>, Gauge> = Family::default();
    let state = pipeline.state();
    let dead_letters = |topic: &Topic| topic.dead_letters().and_then(|id| state.topic(id));
    let sources = state.topics().filter_map(|topic| Some((topic.name(), dead_letters(topic)?)));
    for (source, dead_letters) in sources.take(SERIES_MAX) {
        let depth: u64 = dead_letters.partitions().map(|(_, partition)| partition.backlog().messages).sum();
        let labels = [("topic", source.as_str().to_owned())];
        depths.get_or_create(&labels).set(i64::try_from(depth).unwrap_or(i64::MAX));
    }
    registry.register("dlq_messages", "Dead letters that are not yet acked", depths);
}

/// Counts an open connection until dropped.
#[derive(Debug)]
pub(crate) struct OpenConnection(Arc<AtomicUsize>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
