//! Pauses between tries: full jitter, and never shorter than the server asks for.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// The longest pause after the first failure.
const FIRST: Duration = Duration::from_millis(50);
/// The longest pause at all.
const LONGEST: Duration = Duration::from_secs(5);
/// `Retry-After` is held to this.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// The pauses of one call, or of one stream.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The pause before the next try, drawn evenly from 0 to a bound that doubles.
    pub(crate) fn pause(&mut self, retry_after: Option<Duration>) -> Duration {
        let bound = FIRST.saturating_mul(1 << self.failures.min(16)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        bound.mul_f64(random()).max(retry_after.unwrap_or_default().min(RETRY_AFTER_MAX))
    }

    /// Starts again with short pauses.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }
}

/// A number from 0 to 1. The keys of a `RandomState` are random, and differ for each.
fn random() -> f64 {
    let bits = RandomState::new().hash_one(0_u8) >> 32;
    bits as f64 / f64::from(u32::MAX)
}

/// Text that differs for each call and each process: part of a worker's name.
pub(crate) fn random_text() -> String {
    format!("{:012x}", RandomState::new().hash_one(std::process::id()) >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_spread_below_a_bound_that_doubles() {
        for failures in 0..20 {
            let bound = Duration::from_millis(50 << failures.min(10)).min(Duration::from_secs(5));
            let pauses: Vec<_> = (0..64).map(|_| Backoff { failures }.pause(None)).collect();
            assert!(pauses.iter().all(|pause| *pause <= bound), "{failures}: {pauses:?}");
            assert!(pauses.iter().any(|pause| *pause < bound / 2), "{failures}: {pauses:?}");
            assert!(pauses.iter().any(|pause| *pause > bound / 2), "{failures}: {pauses:?}");
        }
    }

    #[test]
    fn pause_is_as_long_as_the_server_asks_but_at_most_a_minute() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.pause(Some(Duration::from_secs(7))), Duration::from_secs(7));
        assert_eq!(backoff.pause(Some(Duration::from_secs(7_000))), Duration::from_secs(60));
    }
}
