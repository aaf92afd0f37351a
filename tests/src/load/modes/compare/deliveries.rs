//! What consumers have received: every value is checked, its latency recorded, its ack counted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, watch};

use crate::load::client::Checked;
use crate::load::drive::NUMBERS_PER_CALLER;
use crate::load::report::{Failures, Stats};

/// How often the counts are looked at while something is waited for.
const POLL: Duration = Duration::from_millis(1);

/// The deliveries of one queue.
#[derive(Debug)]
pub(crate) struct Deliveries {
    checked: Checked,
    epoch: Instant,
    /// When each message was sent, in nanoseconds since the epoch, by producer.
    sent: Mutex<Vec<Vec<u64>>>,
    seen: Mutex<Seen>,
    acked: AtomicU64,
    /// Messages that may still be produced before others are acked.
    window: Semaphore,
    is_stopped: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Seen {
    delivered: u64,
    stats: Stats,
}

impl Deliveries {
    /// None yet, of values of this many bytes; at most `window` messages are produced and not acked.
    pub(crate) fn new(value_bytes: u32, window: usize) -> Self {
        Self {
            checked: Checked::new(value_bytes),
            epoch: Instant::now(),
            sent: Mutex::default(),
            seen: Mutex::default(),
            acked: AtomicU64::new(0),
            window: Semaphore::new(window),
            is_stopped: watch::Sender::new(false),
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn nanos(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.epoch).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Waits until another message may be produced.
    pub(crate) async fn admit(&self) {
        if let Ok(permit) = self.window.acquire().await {
            permit.forget();
        }
    }

    /// Notes that a message is sent now. The numbers of a producer are used in order.
    pub(crate) fn note_sent(&self, number: u64, at: Instant) {
        let (producer, index) = (number / NUMBERS_PER_CALLER, number % NUMBERS_PER_CALLER);
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        if sent.len() <= producer as usize {
            sent.resize_with(producer as usize + 1, Vec::new);
        }
        let times = &mut sent[producer as usize];
        times.resize(index as usize, u64::MAX);
        times.push(self.nanos(at));
    }

    /// Notes that a message was refused: another may be produced in its place.
    pub(crate) fn note_refused(&self, count: u64) {
        self.window.add_permits(count as usize);
    }

    /// Notes a delivered value.
    pub(crate) fn note_delivered(&self, value: &[u8]) {
        let number = self.checked.note(value);
        let mut seen = self.seen();
        seen.delivered += 1;
        let Some(number) = number else {
            return seen.stats.failures.named("value that is not what was produced");
        };
        let sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        let times = sent.get((number / NUMBERS_PER_CALLER) as usize);
        if let Some(sent) = times.and_then(|times| times.get((number % NUMBERS_PER_CALLER) as usize)) {
            let took = self.nanos(Instant::now()).saturating_sub(*sent);
            seen.stats.record(Duration::from_nanos(took));
        }
    }

    /// Notes messages whose ack was answered, or sent where the protocol has no answer.
    pub(crate) fn note_acked(&self, count: u64) {
        self.acked.fetch_add(count, Ordering::Relaxed);
        self.window.add_permits(count as usize);
    }

    /// Notes a refused ack, or any other failure.
    pub(crate) fn note_failure(&self, name: &str) {
        self.seen().stats.failures.named(name);
    }

    /// Messages acked so far.
    pub(crate) fn acked(&self) -> u64 {
        self.acked.load(Ordering::Relaxed)
    }

    /// Different messages delivered so far, every byte as produced.
    pub(crate) fn checked(&self) -> u64 {
        self.checked.distinct()
    }

    /// Deliveries of a message that had been delivered before.
    pub(crate) fn repeated(&self) -> u64 {
        let wrong = self.failures().count("value that is not what was produced");
        self.seen().delivered.saturating_sub(wrong).saturating_sub(self.checked())
    }

    /// Failures so far.
    pub(crate) fn failures(&self) -> Failures {
        self.seen().stats.failures.clone()
    }

    /// Takes the latencies recorded since they were last taken.
    pub(crate) fn take_latencies(&self) -> Stats {
        let mut seen = self.seen();
        let failures = seen.stats.failures.clone();
        std::mem::replace(&mut seen.stats, Stats { failures, ..Stats::default() })
    }

    /// Waits until a count is at least `wanted`; false if that takes longer than the limit.
    pub(crate) async fn wait_until(&self, count: impl Fn(&Self) -> u64, wanted: u64, limit: Duration) -> bool {
        let give_up = Instant::now() + limit;
        while count(self) < wanted {
            if Instant::now() > give_up {
                return false;
            }
            tokio::time::sleep(POLL).await;
        }
        true
    }

    /// Ends the consumers.
    pub(crate) fn stop(&self) {
        self.is_stopped.send_replace(true);
    }

    /// Waits until consumers are to end.
    pub(crate) async fn stopped(&self) {
        // Fails only if the sender is gone, which is in `self`.
        let _ = self.is_stopped.subscribe().wait_for(|stopped| *stopped).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::client::write_value;

    fn value(number: u64) -> Vec<u8> {
        let mut value = vec![0; 20];
        write_value(&mut value, number);
        value
    }

    #[test]
    fn damaged_and_repeated_deliveries_are_counted() {
        let deliveries = Deliveries::new(20, 10);
        let mut damaged = value(3);
        damaged[19] ^= 1;
        for value in [&value(1), &value(NUMBERS_PER_CALLER + 1), &value(1), &damaged] {
            deliveries.note_delivered(value);
        }
        assert_eq!((deliveries.checked(), deliveries.repeated()), (2, 1));
        assert_eq!(deliveries.failures().to_string(), "1 × value that is not what was produced");
    }

    #[test]
    fn latency_is_counted_from_the_send_of_the_same_message() {
        let deliveries = Deliveries::new(20, 10);
        let long_ago = deliveries.epoch;
        deliveries.note_sent(NUMBERS_PER_CALLER, long_ago);
        std::thread::sleep(Duration::from_millis(2));
        deliveries.note_sent(0, Instant::now());
        deliveries.note_delivered(&value(0));
        assert!(deliveries.take_latencies().quantile(1.0) < Duration::from_millis(2));
        deliveries.note_delivered(&value(NUMBERS_PER_CALLER));
        assert!(deliveries.take_latencies().quantile(1.0) >= Duration::from_millis(2));
        assert_eq!(deliveries.take_latencies().responses(), 0);
    }

    #[tokio::test]
    async fn window_opens_with_acks_and_refusals() {
        let deliveries = Deliveries::new(20, 1);
        deliveries.admit().await;
        let closed = tokio::time::timeout(Duration::from_millis(5), deliveries.admit()).await;
        assert!(closed.is_err());
        deliveries.note_acked(1);
        deliveries.admit().await;
        deliveries.note_refused(1);
        deliveries.admit().await;
        assert_eq!(deliveries.acked(), 1);
    }
}
