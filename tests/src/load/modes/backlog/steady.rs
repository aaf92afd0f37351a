//! `load backlog --steady`: a backlog that stays as large as it is while messages are produced and acked.
//!
//! Four topics have a quarter of the backlog each and very different shares of the rate, so their messages live for
//! very different times; since they stand side by side in the log, segments have to be cleaned.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::worker::{Worked, Worker, WorkerPlan};
use super::{at_rest, broker_options, megabytes, print_appended};
use crate::load::broker::Broker;
use crate::load::cli::BacklogOptions;
use crate::load::client::{Checked, Effect, MessageShape};
use crate::load::disk::{SyncSampler, Written};
use crate::load::drive::{Produces, Shape, Stamp};
use crate::load::error::Result;
use crate::load::metrics::{LogCounters, ratio};
use crate::load::modes::backlog::goals::{Goal, Rows};
use crate::load::modes::slices::{Pace, Target};
use crate::load::modes::{FILL_CONNECTIONS, fill_from};
use crate::load::report::{Failures, Stats, latencies_of, time};
use crate::numbers::grouped;
use crate::progress::Progress;

/// The share of the rate that each topic has, in percent, and its workers.
const TOPICS: [(u32, u32); 4] = [(60, 4), (25, 2), (10, 1), (5, 1)];
/// Single produces that are measured beside this load: connections, and requests per second.
const PROBES: (u32, f64) = (4, 500.0);
/// After each of these the counters are read: did the broker clean or write a snapshot meanwhile?
const SLICE: Duration = Duration::from_millis(200);
/// Interval of bare syncs beside the broker's: what the disk itself costs meanwhile.
const BARE_SYNC_INTERVAL: Duration = Duration::from_millis(20);

/// What was measured.
struct Figures {
    messages: u64,
    took: Duration,
    /// Latencies of probes while the broker neither cleaned nor wrote a snapshot.
    calm: Stats,
    /// Latencies of the others.
    busy: Stats,
    /// Bare syncs on the same disk, meanwhile.
    syncs: Vec<Duration>,
    log: LogCounters,
    written: Written,
    failures: Failures,
}

/// Measures and prints.
pub(super) async fn run(options: &BacklogOptions, length: Duration) -> Result<Failures> {
    let mut broker = Broker::open(&broker_options(options, options.memory_bytes), &[]).await?;
    broker.require_own()?;
    let mut topics = Vec::new();
    for _ in TOPICS {
        topics.push(broker.create_topic_without_retention(options.partitions).await?);
    }
    let mut failures = fill_side_by_side(options, &broker, &topics).await?;
    at_rest(&broker).await?;
    println!("backlog  {} messages in {} topics, failures: {failures}", grouped(options.messages), TOPICS.len());

    let figures = match drive(options, &broker, &topics, length).await {
        Ok(figures) => figures,
        Err(error) => {
            broker.check_alive()?;
            return Err(format!("{error}{}", broker.logged()).into());
        }
    };
    failures.merge(&figures.failures);
    let at_work = (broker.disk_used()?, broker.memory());
    let rest = at_rest(&broker).await?;
    figures.print(options.rate);
    println!("disk     {} used, live {}, under load", megabytes(at_work.0), megabytes(figures.log.live));
    let used = broker.disk_used()?;
    println!("         {} used, live {}, at rest", megabytes(used), megabytes(rest.live));
    if let Some(memory) = at_work.1 {
        println!("memory   {memory}, state {} B by the broker's estimate", grouped(figures.log.state));
    }
    println!("         failures: {failures}");
    let mut rows = figures.rows();
    let share = ratio(used, rest.live);
    let goal = Goal::AtMost { goal: 2.5, moonshot: 2.1, unit: "" };
    rows.add("disk used / live bytes, at rest", goal, share, &format!("{share:.2}"));
    rows.print();
    Ok(failures)
}

/// Fills all topics at once, so that their messages share segments.
async fn fill_side_by_side(options: &BacklogOptions, broker: &Broker, topics: &[String]) -> Result<Failures> {
    let each = (options.messages / topics.len() as u64).max(1);
    let connections = FILL_CONNECTIONS / TOPICS.len() as u32;
    let filled = |topic: &String| fill_from(connections, broker, message(options, topic), each);
    let [first, second, third, fourth] = topics else { return Err("there are four topics".into()) };
    let all = tokio::try_join!(filled(first), filled(second), filled(third), filled(fourth))?;
    let mut failures = Failures::default();
    for stats in [all.0, all.1, all.2, all.3] {
        failures.merge(&stats.failures);
    }
    Ok(failures)
}

fn message(options: &BacklogOptions, topic: &str) -> MessageShape {
    MessageShape { topic: topic.to_owned(), size: options.size, partitions: options.partitions, effect: Effect::None }
}

/// Produces and acks at the rate, and probes.
async fn drive(options: &BacklogOptions, broker: &Broker, topics: &[String], length: Duration) -> Result<Figures> {
    let progress = Progress::spinner("producing and acking");
    let probes = Shape {
        message: message(options, &broker.create_topic(1).await?),
        batch: 1,
        stamp: Stamp::Checked { first: 0 },
    };
    let (connections, rate) = PROBES;
    let mut probe =
        Target::<Produces>::connect(broker.addr(), &probes, Pace { connections, length, rate: Some(rate) }).await?;
    let syncs = broker.probe_disk()?.map(|probe| probe.sample_every(BARE_SYNC_INTERVAL));
    let (before, written_before, begun) = (broker.log_counters().await?, broker.written(), Instant::now());
    let workers = start_workers(options, broker, topics, begun + length)?;

    let (mut calm, mut busy, mut last) = (Stats::default(), Stats::default(), before);
    while begun.elapsed() < length {
        probe.slice(SLICE, || None).await?;
        let now = broker.log_counters().await?;
        let slice = std::mem::take(&mut probe.server.stats);
        let changed = now.since(&last);
        let stats = if changed.relocated + changed.snapshots > 0 { &mut busy } else { &mut calm };
        stats.merge(&slice);
        last = now;
        let growth = now.since(&before).amplification();
        progress.message(&format!("producing and acking: {growth:.2} × the records so far"));
    }
    let syncs = syncs.map_or_else(|| Ok(Vec::new()), SyncSampler::finish)?;
    let Worked { messages, mut failures } = workers.join().map_err(|_| "a worker panicked")??;
    for stats in [&calm, &busy] {
        failures.merge(&stats.failures);
    }
    let took = begun.elapsed();
    let log = broker.log_counters().await?.since(&before);
    let written = broker.written().since(&written_before);
    Ok(Figures { messages, took, calm, busy, syncs, log, written, failures })
}

/// Starts the workers, on a thread of their own: the probes measure the broker, not the work of this program.
fn start_workers(
    options: &BacklogOptions,
    broker: &Broker,
    topics: &[String],
    end: Instant,
) -> Result<JoinHandle<Result<Worked>>> {
    let (addr, mut plans) = (broker.addr(), Vec::new());
    for (topic, (percent, count)) in topics.iter().zip(TOPICS) {
        let check = Arc::new(Checked::new(options.size));
        for index in 0..count {
            let plan = WorkerPlan {
                message: message(options, topic),
                number: FILL_CONNECTIONS + index,
                rate: options.rate * f64::from(percent) / 100.0 / f64::from(count),
                phase: f64::from(index) / f64::from(count),
                end,
                check: Arc::clone(&check),
            };
            plans.push(plan);
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(thread::spawn(move || runtime.block_on(work(addr, plans))))
}

/// Runs workers of these plans to their end.
async fn work(addr: SocketAddr, plans: Vec<WorkerPlan>) -> Result<Worked> {
    let mut workers = JoinSet::new();
    for plan in plans {
        workers.spawn(Worker::connect(addr, &plan).await?.run());
    }
    let mut all = Worked::default();
    while let Some(worker) = workers.join_next().await {
        let worked = worker??;
        all.messages += worked.messages;
        all.failures.merge(&worked.failures);
    }
    Ok(all)
}

impl Figures {
    fn print(&self, asked: f64) {
        let seconds = self.took.as_secs_f64();
        let rate = self.messages as f64 / seconds;
        println!(
            "steady   {} messages/s produced and acked, {} asked for",
            grouped(rate as u64),
            grouped(asked as u64)
        );
        print_appended(&self.log, &self.written);
        println!(
            "         cleaning: {}/s of {}/s appended",
            megabytes((self.log.relocated as f64 / seconds) as u64),
            megabytes((self.log.appended as f64 / seconds) as u64)
        );
        println!("         read back for deliveries: {}/s", megabytes((self.log.read as f64 / seconds) as u64));
        let mut all = self.calm.clone();
        all.merge(&self.busy);
        println!("produces {}", all.latencies());
        println!("         calm: {} ({} of them)", self.calm.latencies(), grouped(self.calm.responses()));
        println!("         busy: {} ({} of them)", self.busy.latencies(), grouped(self.busy.responses()));
        println!(
            "syncs    bare, on the same disk: {} ({} of them)",
            latencies_of(&self.syncs),
            grouped(self.syncs.len() as u64)
        );
    }

    fn rows(&self) -> Rows {
        let mut rows = Rows::default();
        let amplification = self.log.amplification();
        let share = |bytes: Option<u64>| {
            bytes.map_or_else(|| "unknown".to_owned(), |bytes| format!("{:.2}", ratio(bytes, self.log.records())))
        };
        let (process, device) = (share(self.written.process), share(self.written.device));
        let measured = format!("{amplification:.2}; by the kernel: process {process}, device {device}");
        let goal = Goal::AtMost { goal: 2.2, moonshot: 1.6, unit: "" };
        rows.add("bytes appended / record bytes, steady backlog", goal, amplification, &measured);
        let (calm, busy) = (self.calm.quantile(0.99), self.busy.quantile(0.99));
        let work = "p99 of produces while cleaning and snapshotting, against without";
        if calm.is_zero() || busy.is_zero() {
            rows.add(work, Goal::None, 0.0, "one of the two did not happen");
        } else {
            let share = busy.as_secs_f64() / calm.as_secs_f64();
            let measured = format!("{share:.2} × ({} against {})", time(busy), time(calm));
            rows.add(work, Goal::AtMost { goal: 2.0, moonshot: 1.3, unit: " ×" }, share, &measured);
        }
        rows
    }
}
