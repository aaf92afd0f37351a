//! Random numbers that a seed fixes, so that a driver does the same again as far as threads and sockets allow.

use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A source of random numbers.
#[derive(Clone, Debug)]
pub struct Dice(ChaCha8Rng);

impl Dice {
    /// The numbers of a seed, of one of its independent streams.
    #[must_use]
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(stream);
        Self(rng)
    }

    /// A number below `end`, or 0 if there is none.
    pub fn below(&mut self, end: u64) -> u64 {
        (u64::from(self.0.next_u32()) * end) >> 32
    }

    /// A number from `from` up to and without `end`.
    pub fn between(&mut self, from: u64, end: u64) -> u64 {
        from + self.below(end.saturating_sub(from))
    }

    /// So many milliseconds.
    pub fn millis(&mut self, from: u64, end: u64) -> Duration {
        Duration::from_millis(self.between(from, end))
    }

    /// True once in `times`.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}
