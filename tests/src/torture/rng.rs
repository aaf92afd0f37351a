//! Random numbers determined by a seed, so that a run is repeatable as far as threads and sockets allow.

use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A source of random numbers.
#[derive(Clone, Debug)]
pub struct SeededRng(ChaCha8Rng);

impl SeededRng {
    /// One of the independent streams of a seed.
    #[must_use]
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(stream);
        Self(rng)
    }

    /// A number below `end`, or 0 if `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        (u64::from(self.0.next_u32()) * end) >> 32
    }

    /// A number of `from..end`.
    pub fn between(&mut self, from: u64, end: u64) -> u64 {
        from + self.below(end.saturating_sub(from))
    }

    /// A duration of `from..end` milliseconds.
    pub fn millis(&mut self, from: u64, end: u64) -> Duration {
        Duration::from_millis(self.between(from, end))
    }

    /// True with probability one in `times`.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}
