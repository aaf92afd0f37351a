//! Kills of workers and broker, at times determined by a seed.

use std::ops::Range;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::broker::Broker;
use crate::metrics::{Metrics, Totals};
use crate::random::Random;
use crate::workers::Workers;

const WORKER_PAUSES: Range<Duration> = Duration::from_secs(1)..Duration::from_secs(2);
const BROKER_PAUSES: Range<Duration> = Duration::from_secs(5)..Duration::from_secs(8);
const TIMES_STREAM: u64 = 1;
const CHOICE_STREAM: u64 = 2;
const BROKER_STREAM: u64 = 3;

/// How many processes were killed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kills {
    pub(crate) workers: u64,
    pub(crate) broker: u64,
}

/// Kills processes for a time, with pauses multiplied by a factor. Counts what the broker has done into `totals` before
/// each of its crashes.
///
/// # Errors
/// If a process has ended by itself, or cannot be started again.
pub(crate) async fn crash(
    broker: &mut Broker,
    workers: &mut Workers,
    seed: u64,
    duration: Duration,
    pauses: f64,
    metrics: &Metrics,
    totals: &mut Totals,
) -> Result<Kills, String> {
    let scaled = |range: &Range<Duration>| range.start.mul_f64(pauses)..range.end.mul_f64(pauses);
    let (worker_pauses, broker_pauses) = (scaled(&WORKER_PAUSES), scaled(&BROKER_PAUSES));
    let [mut times, mut choice, mut broker_times] =
        [TIMES_STREAM, CHOICE_STREAM, BROKER_STREAM].map(|stream| Random::new(seed, stream));
    let start = Instant::now();
    let end = start + duration;
    let mut next_worker = start + times.within(&worker_pauses);
    let mut next_broker = start + broker_times.within(&broker_pauses);
    let mut kills = Kills::default();
    loop {
        let next = next_worker.min(next_broker).min(end);
        sleep_until(next).await;
        if next == end {
            return Ok(kills);
        }
        if next == next_worker {
            workers.replace(choice.below(workers.len()))?;
            kills.workers += 1;
            next_worker = next + times.within(&worker_pauses);
        } else {
            totals.add(metrics.read().await);
            broker.crash()?;
            kills.broker += 1;
            next_broker = next + broker_times.within(&broker_pauses);
        }
    }
}
