//! One measurement: a kind of work on one system, for a time, with everything checked that was stored and delivered.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::load::drive::NUMBERS_PER_CALLER;
use crate::load::error::Result;
use crate::load::modes::compare::deliveries::Deliveries;
use crate::load::modes::compare::system::{Answers, Consumer, PREFETCH, Producer, System};
use crate::load::report::{Failures, Stats, per_million};
use crate::procfs;

/// How long a system is driven before it is measured, to warm up connections, caches and files.
const WARM_UP: Duration = Duration::from_millis(500);
/// How long the last answers, the rest of the deliveries and the server's counts may take.
const WITHIN: Duration = Duration::from_millis(if cfg!(test) { 400 } else { 30_000 });
/// A producer of which a message was refused pauses for this long.
const REFUSED_PAUSE: Duration = Duration::from_millis(20);
/// How often the server's counts are asked for.
const COUNT_INTERVAL: Duration = Duration::from_millis(20);
/// Messages that are read back and checked after work without consumers.
const READ_BACK: u64 = 1_000;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Work {
    /// Producing connections, each with one request in flight.
    pub(crate) producers: u32,
    /// Consumers.
    pub(crate) consumers: u32,
    /// Messages in a request.
    pub(crate) batch: u32,
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} producers, {} consumers", self.producers, self.consumers)
    }
}

/// What was measured.
#[derive(Debug, Clone)]
pub(crate) struct Figures {
    /// Messages stored, or acked where there are consumers, per second.
    pub(crate) rate: f64,
    /// From the request to its last answer; where there are consumers, to the delivery. None if nothing has
    /// ended in that time.
    pub(crate) latency: Option<Latency>,
    /// CPU seconds of the server per million messages.
    pub(crate) server_cpu: Option<f64>,
    /// Cores used by other programs in that time.
    pub(crate) others_cores: Option<f64>,
    /// Different messages that were delivered, every byte as produced.
    pub(crate) checked: u64,
    /// Everything that was not as it should be.
    pub(crate) failures: Failures,
}

/// Quantiles of times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Latency {
    /// Half of them are shorter.
    pub(crate) p50: Duration,
    /// All but one in a hundred are shorter.
    pub(crate) p99: Duration,
}

/// Measures one kind of work on a system for `length`.
pub(crate) async fn measure<S: System>(
    system: &mut S,
    work: Work,
    value_bytes: u32,
    length: Duration,
) -> Result<Figures> {
    let queue = system.create().await?;
    // As many as the consumers may hold: nothing waits in the queue because producers are ahead.
    let window = PREFETCH * work.consumers as usize;
    let deliveries = Arc::new(Deliveries::new(value_bytes, window));
    let consumers = Consumers::start(system, &queue, work.consumers, &deliveries).await?;
    let meter = Arc::new(Meter::default());
    let mut producers = JoinSet::new();
    for index in 0..work.producers {
        let producer = system.producer(&queue, work.batch).await?;
        let admission = (work.consumers > 0).then(|| Arc::clone(&deliveries));
        let caller = Caller { producer, batch: work.batch, meter: Arc::clone(&meter), admission };
        producers.spawn(caller.drive(u64::from(index) * NUMBERS_PER_CALLER));
    }

    tokio::time::sleep(WARM_UP.min(length)).await;
    let count = || if work.consumers > 0 { deliveries.acked() } else { meter.confirmed.load(Ordering::Relaxed) };
    meter.stats().latency.reset();
    deliveries.take_latencies();
    let (cpu_before, count_before, begun) = (Cpu::now(system.cpu()), count(), Instant::now());
    tokio::time::sleep(length).await;
    let (messages, took) = (count() - count_before, begun.elapsed());
    let cpu = Cpu::now(system.cpu()).since(&cpu_before);
    let latencies = if work.consumers > 0 { deliveries.take_latencies() } else { meter.stats().clone() };

    meter.stop.store(true, Ordering::Relaxed);
    join(&mut producers).await?;
    let produced = meter.confirmed.load(Ordering::Relaxed);
    let mut failures = meter.stats().failures.clone();
    let checked = if work.consumers > 0 {
        let drained = deliveries.wait_until(Deliveries::acked, produced, WITHIN).await;
        if !drained {
            failures.add("message not acked", produced.saturating_sub(deliveries.acked()));
        }
        consumers.finish(&deliveries, &mut failures).await;
        failures.add("message delivered again", deliveries.repeated());
        failures.add("message not delivered as it was produced", missing(produced, deliveries.checked()));
        expect_unacked(system, &queue, 0, &mut failures).await?;
        deliveries.checked()
    } else {
        expect_unacked(system, &queue, produced, &mut failures).await?;
        read_back(system, &queue, value_bytes, produced.min(READ_BACK), &mut failures).await?
    };
    if let Some(exited) = system.exited() {
        return Err(exited.into());
    }
    Ok(Figures {
        rate: messages as f64 / took.as_secs_f64(),
        latency: (latencies.responses() > 0)
            .then(|| Latency { p50: latencies.quantile(0.5), p99: latencies.quantile(0.99) }),
        server_cpu: cpu.server.and_then(|server| per_million(server, messages)),
        others_cores: cpu.others().map(|others| others.as_secs_f64() / took.as_secs_f64()),
        checked,
        failures,
    })
}

/// CPU times so far, or in between.
#[derive(Debug, Clone, Copy)]
struct Cpu {
    server: Option<Duration>,
    own: Duration,
    machine: Option<Duration>,
}

impl Cpu {
    fn now(server: Option<Duration>) -> Self {
        Self { server, own: procfs::own_cpu_time(), machine: procfs::machine_cpu_time() }
    }

    fn since(&self, earlier: &Self) -> Self {
        let since = |now: Option<Duration>, then: Option<Duration>| Some(now?.saturating_sub(then?));
        Self {
            server: since(self.server, earlier.server),
            own: self.own.saturating_sub(earlier.own),
            machine: since(self.machine, earlier.machine),
        }
    }

    /// That of other programs.
    fn others(&self) -> Option<Duration> {
        Some(self.machine?.saturating_sub(self.server? + self.own))
    }
}

fn missing(wanted: u64, found: u64) -> u64 {
    wanted.saturating_sub(found)
}

/// Waits for all producers; an answer that does not arrive ends the run.
async fn join(producers: &mut JoinSet<()>) -> Result<()> {
    while let Some(ended) = tokio::time::timeout(WITHIN, producers.join_next())
        .await
        .map_err(|_| format!("no answer to a produce within {WITHIN:?}"))?
    {
        ended?;
    }
    Ok(())
}

/// Counts a failure for each message that the server has too few or too many of. It may take a moment to have them.
async fn expect_unacked<S: System>(system: &S, queue: &str, wanted: u64, failures: &mut Failures) -> Result<()> {
    let give_up = Instant::now() + WITHIN;
    // A refused message may have been stored.
    let is_exact = failures.is_empty();
    loop {
        let found = system.unacked(queue).await?;
        if found == wanted || (!is_exact && found > wanted) {
            return Ok(());
        }
        if Instant::now() > give_up {
            failures.add("message confirmed and not stored", missing(wanted, found));
            failures.add("message stored or not acked unexpectedly", missing(found, wanted));
            return Ok(());
        }
        tokio::time::sleep(COUNT_INTERVAL).await;
    }
}

/// Has a consumer check this many of the messages in a queue, and returns how many it has checked.
async fn read_back<S: System>(
    system: &S,
    queue: &str,
    value_bytes: u32,
    wanted: u64,
    failures: &mut Failures,
) -> Result<u64> {
    let deliveries = Arc::new(Deliveries::new(value_bytes, 0));
    let consumers = Consumers::start(system, queue, 1, &deliveries).await?;
    if !deliveries.wait_until(Deliveries::checked, wanted, WITHIN).await {
        failures.add("message not delivered as it was produced", missing(wanted, deliveries.checked()));
    }
    consumers.finish(&deliveries, failures).await;
    failures.add("message delivered again", deliveries.repeated());
    Ok(deliveries.checked())
}

/// What the producers have counted.
#[derive(Debug, Default)]
struct Meter {
    /// Latencies and failures of requests.
    stats: Mutex<Stats>,
    /// Messages.
    confirmed: Arc<AtomicU64>,
    stop: AtomicBool,
}

impl Meter {
    fn stats(&self) -> MutexGuard<'_, Stats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A producer and where it counts.
struct Caller<P> {
    producer: P,
    batch: u32,
    meter: Arc<Meter>,
    /// What bounds the messages that are produced and not acked.
    admission: Option<Arc<Deliveries>>,
}

impl<P: Producer> Caller<P> {
    /// Produces until stopped, or until the connection fails.
    async fn drive(mut self, mut number: u64) {
        let batch = u64::from(self.batch);
        while !self.meter.stop.load(Ordering::Relaxed) {
            if let Some(deliveries) = &self.admission {
                let admitted = tokio::time::timeout(REFUSED_PAUSE, deliveries.admit()).await;
                if admitted.is_err() {
                    continue;
                }
            }
            let mut answers = Answers::new(&self.meter.confirmed);
            let begun = Instant::now();
            if let Some(deliveries) = &self.admission {
                deliveries.note_sent(number, begun);
            }
            if let Err(error) = self.producer.produce(number, &mut answers).await {
                return self.meter.stats().failures.named(&format!("connection: {error}"));
            }
            number += batch;
            {
                let mut stats = self.meter.stats();
                stats.record(begun.elapsed());
                stats.failures.merge(&answers.failures);
            }
            if answers.confirmed < batch {
                if let Some(deliveries) = &self.admission {
                    deliveries.note_refused(batch - answers.confirmed);
                }
                tokio::time::sleep(REFUSED_PAUSE).await;
            }
        }
    }
}

/// Running consumers.
struct Consumers {
    tasks: JoinSet<io::Result<()>>,
}

impl Consumers {
    async fn start<S: System>(system: &S, queue: &str, count: u32, deliveries: &Arc<Deliveries>) -> Result<Self> {
        let mut tasks = JoinSet::new();
        for index in 0..count {
            let mut consumer = system.consumer(queue, index).await?;
            let deliveries = Arc::clone(deliveries);
            tasks.spawn(async move {
                tokio::select! {
                    ended = consumer.run(Arc::clone(&deliveries)) => ended,
                    () = deliveries.stopped() => consumer.close().await,
                }
            });
        }
        Ok(Self { tasks })
    }

    /// Ends them, and counts their failures.
    async fn finish(mut self, deliveries: &Deliveries, failures: &mut Failures) {
        deliveries.stop();
        loop {
            match tokio::time::timeout(WITHIN, self.tasks.join_next()).await {
                Ok(None) => break,
                Ok(Some(Ok(Ok(())))) => {}
                Ok(Some(Ok(Err(error)))) => failures.named(&format!("consumer: {error}")),
                Ok(Some(Err(error))) => failures.named(&format!("consumer: {error}")),
                Err(_) => {
                    failures.named("consumer that does not end");
                    break;
                }
            }
        }
        failures.merge(&deliveries.failures());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::modes::compare::fake::{Fake, Fault};

    const SINGLE: Work = Work { producers: 3, consumers: 0, batch: 1 };
    const BATCHES: Work = Work { producers: 3, consumers: 0, batch: 7 };
    const BOTH: Work = Work { producers: 3, consumers: 2, batch: 1 };

    async fn figures(fault: Fault, work: Work) -> Figures {
        measure(&mut Fake::new(fault), work, 50, Duration::from_millis(40)).await.expect("figures")
    }

    #[tokio::test]
    async fn sound_system_has_figures_without_failures() {
        for work in [SINGLE, BATCHES, BOTH] {
            let figures = figures(Fault::None, work).await;
            assert_eq!(figures.failures.to_string(), "none", "{work:?}");
            assert!(figures.rate > 0.0 && figures.checked > 0, "{figures:?}");
            let latency = figures.latency.expect("latencies");
            assert!(latency.p50 > Duration::ZERO && latency.p99 >= latency.p50, "{latency:?}");
        }
    }

    #[tokio::test]
    async fn every_fault_is_a_failure() {
        let cases = [
            (Fault::Refuse, SINGLE, "refused"),
            (Fault::Refuse, BATCHES, "refused"),
            (Fault::Refuse, BOTH, "refused"),
            (Fault::LoseConfirmed, SINGLE, "message confirmed and not stored"),
            (Fault::LoseConfirmed, BATCHES, "message confirmed and not stored"),
            (Fault::LoseConfirmed, BOTH, "message not acked"),
            (Fault::StoreTwice, SINGLE, "message stored or not acked unexpectedly"),
            (Fault::StoreTwice, BOTH, "message delivered again"),
            (Fault::Damage, SINGLE, "value that is not what was produced"),
            (Fault::Damage, BOTH, "value that is not what was produced"),
            (Fault::Damage, BOTH, "message not delivered as it was produced"),
            (Fault::LoseAcks, BOTH, "message stored or not acked unexpectedly"),
            (Fault::BreakProducers, SINGLE, "connection: broken"),
            (Fault::BreakConsumers, BOTH, "consumer: broken"),
        ];
        for (fault, work, expected) in cases {
            let failures = figures(fault, work).await.failures.to_string();
            assert!(failures.contains(expected), "{fault:?} {work:?}: {failures}");
        }
    }

    #[tokio::test]
    async fn answer_that_does_not_come_and_a_server_that_exits_end_the_measurement() {
        for (fault, expected) in [(Fault::NoAnswer, "no answer to a produce"), (Fault::Exit, "it exited")] {
            let ended = measure(&mut Fake::new(fault), SINGLE, 50, Duration::from_millis(20)).await;
            let error = ended.expect_err("it cannot be measured").to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
