//! Bounds how often something happens for each of many keys, such as addresses, in memory that is bounded itself.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use driftq_core::types::Millis;

/// Keys that have a rate of their own. Those beyond share one.
const TRACKED_MAX: usize = 4_096;
/// How often keys that are idle again are looked for while there are too many.
const SWEEP_INTERVAL_MS: u64 = 1_000;

/// So many events at once, and one more per interval, for each key.
#[derive(Debug)]
pub(crate) struct RateLimit<K> {
    began: Instant,
    interval_ms: u64,
    /// How far a key may be ahead of the interval.
    burst_ms: u64,
    table: Mutex<Table<K>>,
}

#[derive(Debug)]
struct Table<K> {
    /// When a key is idle again: each event moves it by the interval.
    idle_at_ms: HashMap<K, u64>,
    /// The same of all other keys together.
    others_idle_at_ms: u64,
    swept_at_ms: u64,
}

impl<K: Eq + Hash> RateLimit<K> {
    /// `burst` events at once, and one more per `interval`.
    pub(crate) fn new(burst: u32, interval: Duration) -> Self {
        let interval_ms = interval.as_millis() as u64;
        Self {
            began: Instant::now(),
            interval_ms,
            burst_ms: interval_ms * u64::from(burst),
            table: Mutex::new(Table { idle_at_ms: HashMap::new(), others_idle_at_ms: 0, swept_at_ms: 0 }),
        }
    }

    /// Counts an event.
    ///
    /// # Errors
    /// When the next event is within the rate, if this one is not; it is not counted then.
    pub(crate) fn count(&self, key: K, now: Instant) -> Result<(), Millis> {
        let now_ms = self.ms(now);
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let idle_at_ms = table.entry(key, now_ms);
        let next_ms = (*idle_at_ms).max(now_ms) + self.interval_ms;
        if next_ms > now_ms + self.burst_ms {
            return Err(Millis(next_ms - now_ms - self.burst_ms));
        }
        *idle_at_ms = next_ms;
        Ok(())
    }

    /// Whether another event is within the rate. Counts nothing.
    ///
    /// # Errors
    /// When it will be.
    pub(crate) fn check(&self, key: &K, now: Instant) -> Result<(), Millis> {
        let now_ms = self.ms(now);
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = table.idle_at_ms.len() >= TRACKED_MAX;
        let others = if is_full { table.others_idle_at_ms } else { 0 };
        let idle_at_ms = table.idle_at_ms.get(key).copied().unwrap_or(others);
        let next_ms = idle_at_ms.max(now_ms) + self.interval_ms;
        if next_ms > now_ms + self.burst_ms { Err(Millis(next_ms - now_ms - self.burst_ms)) } else { Ok(()) }
    }

    fn ms(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.began).as_millis() as u64
    }
}

impl<K: Eq + Hash> Table<K> {
    fn entry(&mut self, key: K, now_ms: u64) -> &mut u64 {
        let is_full = self.idle_at_ms.len() >= TRACKED_MAX;
        if is_full && now_ms >= self.swept_at_ms + SWEEP_INTERVAL_MS {
            self.swept_at_ms = now_ms;
            self.idle_at_ms.retain(|_, idle_at_ms| *idle_at_ms > now_ms);
        }
        let has_room = self.idle_at_ms.len() < TRACKED_MAX;
        match self.idle_at_ms.entry(key) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) if has_room => entry.insert(0),
            Entry::Vacant(_) => &mut self.others_idle_at_ms,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit() -> (RateLimit<u32>, impl Fn(u64) -> Instant) {
        let limit = RateLimit::new(3, Duration::from_millis(100));
        let began = limit.began;
        (limit, move |ms| began + Duration::from_millis(ms))
    }

    #[test]
    fn burst_passes_then_one_event_per_interval() {
        let (limit, at) = limit();
        for _ in 0..3 {
            assert_eq!(limit.check(&1, at(0)), Ok(()));
            assert_eq!(limit.count(1, at(0)), Ok(()));
        }
        assert_eq!(limit.check(&1, at(0)), Err(Millis(100)));
        assert_eq!(limit.count(1, at(0)), Err(Millis(100)));
        assert_eq!(limit.count(1, at(60)), Err(Millis(40)), "a refused event does not count");
        assert_eq!(limit.count(1, at(100)), Ok(()));
        assert_eq!(limit.count(1, at(100)), Err(Millis(100)));
        assert_eq!(limit.count(2, at(100)), Ok(()), "another key has a rate of its own");
        for _ in 0..3 {
            assert_eq!(limit.count(1, at(1_000)), Ok(()), "a key that was idle has its burst again");
        }
        assert!(limit.count(1, at(1_000)).is_err());
    }

    #[test]
    fn keys_beyond_the_bound_share_one_rate_and_take_no_memory() {
        let (limit, at) = limit();
        for key in 0..TRACKED_MAX as u32 {
            assert_eq!(limit.count(key, at(0)), Ok(()));
        }
        let beyond = TRACKED_MAX as u32;
        for key in beyond..beyond + 3 {
            assert_eq!(limit.count(key, at(0)), Ok(()));
        }
        assert_eq!(limit.count(beyond + 3, at(0)), Err(Millis(100)));
        assert_eq!(limit.check(&(beyond + 4), at(0)), Err(Millis(100)));
        assert_eq!(limit.count(0, at(0)), Ok(()), "those within are not affected");
        let tracked = || limit.table.lock().expect("not poisoned").idle_at_ms.len();
        assert_eq!(tracked(), TRACKED_MAX);
        assert_eq!(limit.count(beyond, at(SWEEP_INTERVAL_MS)), Ok(()));
        assert_eq!(tracked(), 1, "those that are idle again are forgotten");
    }
}
