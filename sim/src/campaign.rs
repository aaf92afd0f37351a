//! A campaign: many seeds on all cores. The result does not depend on the number of threads.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::coverage::Coverage;
use crate::digest_chain::DigestChain;
use crate::invariants::catalog;
use crate::parallel::in_order;
use crate::run::{Run, RunOptions, replay, run_seed};
use crate::world::Counters;

/// The sentence of invariant 22, which compares two runs and so cannot be checked within one.
pub const DETERMINISTIC: &str = catalog::DETERMINISTIC.sentence;

/// The extent of a campaign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// A number of seeds.
    Seeds(u64),
    /// A duration.
    For(Duration),
}

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// The first seed.
    pub start: u64,
    /// How many seeds, or for how long.
    pub extent: Extent,
    /// The number of threads.
    pub jobs: NonZeroUsize,
    /// How every seed is run.
    pub options: RunOptions,
    /// Ends after this many failing seeds.
    pub failures_max: u64,
    /// Begins no further seed once this is set.
    pub stop: &'a AtomicBool,
}

/// A seed that violated an invariant.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// Its run.
    pub run: Run,
}

/// The result of a campaign.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Seeds run.
    pub seeds: u64,
    /// The sum of their counters.
    pub counters: Counters,
    /// The union of their coverage.
    pub coverage: Coverage,
    /// Their digest chains, combined in seed order.
    pub chain: DigestChain,
    /// The seeds that violated an invariant.
    pub failures: Vec<Failure>,
    /// Wall-clock time.
    pub elapsed: Duration,
}

/// Two runs of one seed differed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("seed {seed}: {how}: digest {first}, then {second}")]
pub struct NotDeterministic {
    seed: u64,
    how: &'static str,
    first: DigestChain,
    second: DigestChain,
}

/// Runs a seed twice and replays its trace once, and compares the results. Every campaign starts with this check:
/// without determinism no other result means anything.
///
/// # Errors
/// [`NotDeterministic`].
pub fn check_determinism(seed: u64, options: RunOptions) -> Result<DigestChain, NotDeterministic> {
    let first = run_seed(seed, options);
    let again = run_seed(seed, options);
    let replayed = replay(&first.setup, &first.actions, options);
    let compare = |how, other: &Run| {
        let same = (first.chain, &first.actions, &first.violation) == (other.chain, &other.actions, &other.violation);
        if same { Ok(()) } else { Err(NotDeterministic { seed, how, first: first.chain, second: other.chain }) }
    };
    compare("the second run differs from the first", &again)?;
    compare("the replay of its trace differs from the run", &replayed)?;
    Ok(first.chain)
}

/// Runs a campaign. `watch` is called after every seed.
pub fn run(plan: &Plan<'_>, mut watch: impl FnMut(&Summary)) -> Summary {
    let started = Instant::now();
    let (seeds, until) = match plan.extent {
        Extent::Seeds(seeds) => (seeds, None),
        Extent::For(span) => (u64::MAX, started.checked_add(span)),
    };
    let is_stopped = || plan.stop.load(Ordering::Relaxed);
    let in_time = |_: &u64| !is_stopped() && until.is_none_or(|until| Instant::now() < until);
    let seeds = (0..seeds).map(|nth| plan.start.wrapping_add(nth)).take_while(in_time);
    let mut summary = Summary::default();
    in_order(
        plan.jobs,
        seeds,
        |seed| {
            let mut run = run_seed(seed, plan.options);
            if run.violation.is_none() {
                // Only failing runs are reported; a long campaign must not keep the actions of all.
                run.actions = Vec::new();
            }
            (seed, run)
        },
        |(seed, run)| {
            summary.add(seed, run);
            summary.elapsed = started.elapsed();
            watch(&summary);
            let enough = summary.failures.len() as u64 >= plan.failures_max;
            if enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        },
    );
    summary.elapsed = started.elapsed();
    summary
}

impl Summary {
    fn add(&mut self, seed: u64, run: Run) {
        self.seeds += 1;
        self.counters.add(&run.counters);
        self.coverage.add(&run.coverage);
        self.chain.mix_bytes(run.chain.to_string().as_bytes());
        if run.violation.is_some() {
            self.failures.push(Failure { seed, run });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_with_other_thread_count_is_equal() {
        let stop = AtomicBool::new(false);
        let plan = |jobs| Plan {
            start: 5,
            extent: Extent::Seeds(24),
            jobs: NonZeroUsize::new(jobs).expect("not zero"),
            options: RunOptions::default(),
            failures_max: 1_000,
            stop: &stop,
        };
        let (one, four) = (run(&plan(1), |_| {}), run(&plan(4), |_| {}));
        assert_eq!((one.seeds, one.chain, one.counters), (24, four.chain, four.counters));
        assert_eq!(one.coverage, four.coverage);
    }

    #[test]
    fn stopped_campaign_keeps_what_it_has() {
        let stop = AtomicBool::new(false);
        let (jobs, options) = (NonZeroUsize::MIN, RunOptions::default());
        let plan = Plan { start: 0, extent: Extent::Seeds(u64::MAX), jobs, options, failures_max: 1, stop: &stop };
        let summary = run(&plan, |summary| stop.store(summary.seeds >= 2, Ordering::Relaxed));
        assert!((2..=4).contains(&summary.seeds), "{}", summary.seeds);
    }
}
