//! Circuit breaker of the webhook, with a limit on concurrent requests.
//!
//! A failure opens the circuit for the configured cooldown. Then one request is let through as a probe, and the others
//! are skipped until it completes. So an unavailable webhook delays one produce per cooldown, whatever the load and
//! however many threads ask it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// Most concurrent requests.
pub(super) const REQUESTS_MAX: usize = 64;
/// Requests beyond which the lines of batches wait for others to complete. The rest is for single messages, which do
/// not wait and would be skipped beside a batch.
const REQUESTS_OF_BATCHES_MAX: usize = 56;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Requests pass.
    Closed,
    /// No request before this time, then one probe.
    OpenUntil(Instant),
    /// The probe is in progress.
    HalfOpen,
}

/// A circuit and the requests in progress.
#[derive(Debug)]
pub(super) struct CircuitBreaker {
    cooldown: Duration,
    circuit: Mutex<Circuit>,
    /// Notified whenever a request completes.
    completed: Notify,
}

#[derive(Debug)]
struct Circuit {
    state: State,
    requests: usize,
}

impl CircuitBreaker {
    /// A closed circuit that opens for `cooldown` after a failure.
    pub(super) fn new(cooldown: Duration) -> Self {
        let circuit = Circuit { state: State::Closed, requests: 0 };
        Self { cooldown, circuit: Mutex::new(circuit), completed: Notify::new() }
    }

    fn circuit(&self) -> MutexGuard<'_, Circuit> {
        self.circuit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves once the line of a batch may ask for a permit.
    pub(super) async fn room_for_batch(&self) {
        loop {
            let completed = self.completed.notified();
            if self.circuit().requests < REQUESTS_OF_BATCHES_MAX {
                return;
            }
            completed.await;
        }
    }

    /// A permit for one request, unless it must be skipped.
    pub(super) fn permit(&self, now: Instant) -> Option<Permit<'_>> {
        let mut circuit = self.circuit();
        if circuit.requests >= REQUESTS_MAX {
            return None;
        }
        let is_probe = match circuit.state {
            State::Closed => false,
            State::OpenUntil(until) if until <= now => true,
            State::OpenUntil(_) | State::HalfOpen => return None,
        };
        if is_probe {
            circuit.state = State::HalfOpen;
        }
        circuit.requests += 1;
        Some(Permit { breaker: self, is_probe, now })
    }
}

/// A permit for one request. Dropping it cancels the request and counts neither as success nor as failure.
#[derive(Debug)]
pub(super) struct Permit<'a> {
    breaker: &'a CircuitBreaker,
    is_probe: bool,
    now: Instant,
}

impl Permit<'_> {
    /// The request succeeded. Only a probe closes the circuit: a request that began before the failure proves nothing.
    pub(super) fn succeeded(mut self) {
        if std::mem::take(&mut self.is_probe) {
            self.breaker.circuit().state = State::Closed;
        }
    }

    /// The request failed at `now`.
    pub(super) fn failed(mut self, now: Instant) {
        self.is_probe = false;
        self.breaker.circuit().state = State::OpenUntil(now + self.breaker.cooldown);
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut circuit = self.breaker.circuit();
        circuit.requests -= 1;
        if self.is_probe && circuit.state == State::HalfOpen {
            // The probe was cancelled; the next request becomes the probe.
            circuit.state = State::OpenUntil(self.now);
        }
        drop(circuit);
        self.breaker.completed.notify_one();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const COOLDOWN: Duration = Duration::from_secs(1);

    #[test]
    fn failure_opens_circuit_until_a_probe_succeeds() {
        let (breaker, start) = (CircuitBreaker::new(COOLDOWN), Instant::now());
        breaker.permit(start).unwrap().failed(start);
        assert!(breaker.permit(start).is_none());
        assert!(breaker.permit(start + COOLDOWN - Duration::from_millis(1)).is_none());
        let probe = breaker.permit(start + COOLDOWN).unwrap();
        assert!(breaker.permit(start + COOLDOWN * 5).is_none(), "one probe at a time");
        probe.failed(start + COOLDOWN * 2);
        assert!(breaker.permit(start + COOLDOWN * 2).is_none(), "a failed probe opens the circuit again");
        breaker.permit(start + COOLDOWN * 3).unwrap().succeeded();
        let both = (breaker.permit(start + COOLDOWN * 3), breaker.permit(start + COOLDOWN * 3));
        assert!(both.0.is_some() && both.1.is_some());
    }

    #[test]
    fn cancelled_probe_is_followed_by_another() {
        let (breaker, start) = (CircuitBreaker::new(COOLDOWN), Instant::now());
        breaker.permit(start).unwrap().failed(start);
        drop(breaker.permit(start + COOLDOWN).unwrap());
        assert!(breaker.permit(start + COOLDOWN).is_some());
    }

    #[test]
    fn success_of_an_earlier_request_keeps_circuit_open() {
        let (breaker, start) = (CircuitBreaker::new(COOLDOWN), Instant::now());
        let (first, second) = (breaker.permit(start).unwrap(), breaker.permit(start).unwrap());
        first.failed(start);
        second.succeeded();
        assert!(breaker.permit(start).is_none());
    }

    #[test]
    fn concurrent_requests_are_bounded() {
        let (breaker, start) = (CircuitBreaker::new(COOLDOWN), Instant::now());
        let mut permits: Vec<_> = (0..REQUESTS_MAX).map(|_| breaker.permit(start).unwrap()).collect();
        assert!(breaker.permit(start).is_none());
        permits.pop().unwrap().succeeded();
        drop(permits.pop());
        assert!(breaker.permit(start).is_some() && breaker.circuit().requests == REQUESTS_MAX - 2);
    }
}
