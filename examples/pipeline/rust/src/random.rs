//! Random numbers determined by a seed: what is killed when depends on nothing else.

use std::ops::Range;
use std::time::Duration;

use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

/// A source of random numbers.
#[derive(Clone, Debug)]
pub(crate) struct Random(ChaCha8Rng);

impl Random {
    /// One of the independent streams of a seed.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(stream);
        Self(rng)
    }

    /// A number below `end`, which is not 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        assert!(end > 0, "there is no number below 0");
        usize::try_from(self.0.next_u64() % end as u64).unwrap_or(0)
    }

    /// A duration within a range, in whole milliseconds.
    pub(crate) fn within(&mut self, range: &Range<Duration>) -> Duration {
        let spread = usize::try_from((range.end - range.start).as_millis()).unwrap_or(usize::MAX);
        range.start + Duration::from_millis(self.below(spread.max(1)) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_depend_on_seed_and_stream_and_stay_within_their_range() {
        let range = Duration::from_millis(10)..Duration::from_millis(20);
        let draw = |seed, stream| {
            let mut random = Random::new(seed, stream);
            [(); 20].map(|()| random.within(&range))
        };
        assert_eq!(draw(7, 1), draw(7, 1));
        assert_ne!(draw(7, 1), draw(7, 2));
        assert_ne!(draw(7, 1), draw(8, 1));
        assert!(draw(7, 1).iter().all(|pause| range.contains(pause)));
    }
}
