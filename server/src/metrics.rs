//! Figures for whoever watches: counted as things happen, or read off the broker when somebody asks.

use std::cell::Cell;
use std::fmt::Write;
use std::rc::Rc;
use std::time::Duration;

use driftq_core::Pipeline;
use driftq_core::reply::RouterUse;
use driftq_core::state::partition::Partition;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::driver::Driver;
use crate::router::RouterFailure;

/// Label sets of one gauge; what there is beyond is counted and left out.
const SERIES_MAX: usize = 10_000;

/// Families that may have no series yet, and are named all the same.
const NAMED: [(&str, &str, &str); 4] = [
    ("inflight_messages", "gauge", "Messages delivered and not yet settled"),
    ("consumer_lag", "gauge", "Messages a group is not done with"),
    ("dlq_messages", "counter", "Messages that became dead letters"),
    ("router_failures", "counter", "Messages that went on unrouted"),
];

/// Every reason a produce can be rejected for.
const REASONS: [&str; 11] = [
    "overloaded",
    "dlq_full",
    "dedupe_full",
    "too_many",
    "log_busy",
    "storage_full",
    "invalid",
    "not_found",
    "too_large",
    "unavailable",
    "other",
];

type Labels<const N: usize> = [(&'static str, String); N];

/// What is counted as it happens.
pub(crate) struct Metrics {
    registry: Registry,
    rejected: Family<Labels<1>, Counter>,
    router_failures: Family<Labels<1>, Counter>,
    routed: Counter,
    set_aside: Counter,
    batch_records: Histogram,
    sync_seconds: Histogram,
    log_bytes: Counter,
    connections: Rc<Cell<usize>>,
    connections_refused: Counter,
    recovery: Cell<Duration>,
}

impl Metrics {
    /// Nothing has happened yet.
    pub(crate) fn new() -> Rc<Self> {
        let mut registry = Registry::default();
        let rejected: Family<Labels<1>, Counter> = Family::default();
        for reason in REASONS {
            let _ = rejected.get_or_create(&[("reason", reason.to_owned())]);
        }
        let router_failures: Family<Labels<1>, Counter> = Family::default();
        let batch_records = Histogram::new(exponential_buckets(1.0, 2.0, 14));
        let sync_seconds = Histogram::new(exponential_buckets(0.000_05, 2.0, 16));
        let (routed, set_aside) = (Counter::default(), Counter::default());
        let (log_bytes, connections_refused) = (Counter::default(), Counter::default());
        registry.register("produce_rejected", "Produces that were refused", rejected.clone());
        registry.register("router_failures", "Messages that went on unrouted", router_failures.clone());
        registry.register("router_decisions", "Messages stored as their router said", routed.clone());
        registry.register("router_set_aside", "Decisions that named what is not there", set_aside.clone());
        registry.register("log_batch_records", "Records made durable by one sync", batch_records.clone());
        registry.register("log_sync_seconds", "Time to write and sync one batch", sync_seconds.clone());
        registry.register("log_bytes", "Bytes written to the log", log_bytes.clone());
        registry.register("connections_refused", "Connections beyond the limit", connections_refused.clone());
        Rc::new(Self {
            registry,
            rejected,
            router_failures,
            routed,
            set_aside,
            batch_records,
            sync_seconds,
            log_bytes,
            connections: Rc::default(),
            connections_refused,
            recovery: Cell::default(),
        })
    }

    /// A produce was refused.
    pub(crate) fn rejected(&self, reason: &'static str) {
        self.rejected.get_or_create(&[("reason", reason.to_owned())]).inc();
    }

    /// What became of a router's decision.
    pub(crate) fn routed(&self, router: RouterUse) {
        match router {
            RouterUse::NotAsked => {}
            RouterUse::Followed => {
                self.routed.inc();
            }
            RouterUse::SetAside => {
                self.set_aside.inc();
            }
        }
    }

    /// A router did not decide.
    pub(crate) fn router_failed(&self, failure: RouterFailure) {
        self.router_failures.get_or_create(&[("reason", failure.as_str().to_owned())]).inc();
    }

    /// A batch of the log was made durable.
    pub(crate) fn batch(&self, records: u64, bytes: u64, took: Option<Duration>) {
        self.batch_records.observe(records as f64);
        self.log_bytes.inc_by(bytes);
        if let Some(took) = took {
            self.sync_seconds.observe(took.as_secs_f64());
        }
    }

    /// The log was read in this time.
    pub(crate) fn recovered(&self, took: Duration) {
        self.recovery.set(took);
    }

    /// A connection is open for as long as the value lives.
    pub(crate) fn connection(&self) -> OpenConnection {
        self.connections.set(self.connections.get() + 1);
        OpenConnection(Rc::clone(&self.connections))
    }

    /// How many are open.
    pub(crate) fn connections(&self) -> usize {
        self.connections.get()
    }

    /// One was turned away.
    pub(crate) fn connection_refused(&self) {
        self.connections_refused.inc();
    }

    /// All figures, as OpenMetrics has them.
    pub(crate) fn render(&self, driver: &Driver) -> String {
        let mut now = Registry::default();
        let gauge = |value: usize| ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
        now.register("connections", "Open connections", gauge(self.connections.get()));
        now.register("consumer_streams", "Connected streams", gauge(driver.stream_count()));
        now.register("awaited_replies", "Requests that wait for the log", gauge(driver.awaited()));
        now.register(
            "recovery_seconds",
            "Time the last start took to read the log",
            ConstGauge::new(self.recovery.get().as_secs_f64()),
        );
        let ready = i64::from(driver.unready().is_none());
        now.register("ready", "Whether commands are taken", ConstGauge::new(ready));
        driver.look(|pipeline| observe(pipeline, &mut now));
        let mut text = String::new();
        let written = encode_registry(&mut text, &self.registry).and_then(|()| encode_registry(&mut text, &now));
        let written = written.and_then(|()| name_absent(&mut text)).and_then(|()| encode_eof(&mut text));
        written.expect("memory takes whatever is written");
        text
    }
}

/// Writes the heads of those families that have nothing to show.
fn name_absent(text: &mut String) -> std::fmt::Result {
    for (name, kind, help) in NAMED {
        if !text.contains(&format!("# TYPE {name} ")) {
            write!(text, "# HELP {name} {help}.\n# TYPE {name} {kind}\n")?;
        }
    }
    Ok(())
}

/// The same figures in Prometheus' own text format, in which a counter's family bears the name of its series and nothing marks the end.
pub(crate) fn plain(figures: &str) -> String {
    let mut text = String::with_capacity(figures.len() + 1_024);
    let mut lines = figures.lines().filter(|line| *line != "# EOF").peekable();
    while let Some(line) = lines.next() {
        // A family's help comes right before its type.
        let kind = if line.starts_with("# HELP ") { lines.peek().copied() } else { Some(line) };
        let of_counter = kind.is_some_and(|kind| kind.starts_with("# TYPE ") && kind.ends_with(" counter"));
        match line.splitn(4, ' ').collect::<Vec<_>>()[..] {
            ["#", word, name, rest] if of_counter => text.extend(["# ", word, " ", name, "_total ", rest]),
            _ => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

/// Reads off the broker what it knows itself.
fn observe(pipeline: &Pipeline, now: &mut Registry) {
    let tally = pipeline.broker().counters();
    for (name, help, value) in [
        ("messages_produced", "Messages stored by produces", tally.produced),
        ("messages_delivered", "Messages handed out, redeliveries included", tally.delivered),
        ("messages_acked", "Messages finished by an ack", tally.acked),
        ("messages_nacked", "Failures reported by workers", tally.nacked),
        ("messages_expired", "Leases that ended in silence", tally.expired),
        ("messages_deduplicated", "Produces answered with an earlier message's place", tally.deduplicated),
        ("messages_skipped", "Messages finished unseen because their identity was already committed", tally.skipped),
        ("messages_released", "Messages given back unharmed", tally.released),
        ("messages_redriven", "Dead letters made live again", tally.redriven),
        ("leases_extended", "Leases that were prolonged", tally.extended),
        ("steps_completed", "Steps that were completed", tally.completed),
        ("idempotency_begun", "Questions whether an effect may be run", tally.begun),
        ("idempotency_executed", "Grants to run an effect", tally.executed),
        ("idempotency_replayed", "Questions answered with what had come of the effect before", tally.replayed),
        ("idempotency_in_progress", "Questions refused as somebody was running the effect", tally.in_progress),
        ("idempotency_mismatched", "Questions refused as their key was used for another request", tally.mismatched),
        ("idempotency_stale", "Tokens shown to the store that were not the newest", tally.stale),
        ("log_records", "Records appended to the log", tally.appended),
        ("log_refusals", "Records the log had no room for", tally.refused),
    ] {
        now.register(name, help, ConstCounter::new(value));
    }
    let gauge = |value: usize| ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
    let state = pipeline.state();
    now.register("idempotency_records", "Effects that are remembered", gauge(state.store().len()));
    now.register("completions_kept", "Answers of completed steps that are repeated", gauge(state.completions().len()));
    let dead: Family<Labels<2>, Counter> = Family::default();
    for ((topic, reason), count) in pipeline.broker().dead_lettered() {
        dead.get_or_create(&[("topic", topic.to_string()), ("reason", reason.as_str().to_owned())]).inc_by(*count);
    }
    now.register("dlq_messages", "Messages that became dead letters", dead);
    observe_groups(pipeline, now);
}

fn observe_groups(pipeline: &Pipeline, now: &mut Registry) {
    let in_flight: Family<Labels<3>, Gauge> = Family::default();
    let lag: Family<Labels<3>, Gauge> = Family::default();
    let (mut shown, mut left_out) = (0, 0_i64);
    for topic in pipeline.state().topics() {
        for group in topic.groups() {
            if shown + topic.partition_count() as usize > SERIES_MAX {
                left_out += i64::from(topic.partition_count());
                continue;
            }
            for (id, progress) in group.partitions() {
                shown += 1;
                let labels = [
                    ("topic", topic.name().to_string()),
                    ("group", group.name().to_string()),
                    ("partition", id.to_string()),
                ];
                let next = topic.partition(id).map(Partition::next_position).unwrap_or_default();
                let undone = i64::try_from(progress.done().undone_before(next)).unwrap_or(i64::MAX);
                in_flight.get_or_create(&labels).set(i64::from(progress.in_flight()));
                lag.get_or_create(&labels).set(undone);
            }
        }
    }
    now.register("inflight_messages", "Messages delivered and not yet settled", in_flight);
    now.register("consumer_lag", "Messages a group is not done with", lag);
    now.register("series_left_out", "Groups and partitions without figures of their own", ConstGauge::new(left_out));
}

/// Counts a connection while it is open.
#[derive(Debug)]
pub(crate) struct OpenConnection(Rc<Cell<usize>>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}
