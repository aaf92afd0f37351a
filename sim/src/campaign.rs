//! Many lives: seed after seed, on all cores, with one result whatever their number.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use crate::coverage::Coverage;
use crate::digest_chain::DigestChain;
use crate::invariants::catalog;
use crate::parallel::in_order;
use crate::run::{Run, RunOptions, replay, run_seed};
use crate::world::Counters;

/// The sentence of invariant 22, which speaks of two runs and so cannot be checked inside one.
pub const REPEATABLE: &str = catalog::REPEAT.sentence;

/// How far a run goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// So many seeds.
    Seeds(u64),
    /// Until so much time has passed.
    For(Duration),
}

/// What is to be run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The first seed.
    pub start: u64,
    /// How far it goes.
    pub extent: Extent,
    /// On how many threads.
    pub jobs: NonZeroUsize,
    /// How every life is lived.
    pub options: RunOptions,
    /// After how many seeds that break a promise it ends.
    pub failures_max: u64,
}

/// A seed that broke a promise.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// Its life.
    pub run: Run,
}

/// What came of a run.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// How many seeds were lived.
    pub seeds: u64,
    /// What was done in all of them.
    pub counters: Counters,
    /// What was met.
    pub coverage: Coverage,
    /// All their digest chains, in the order of the seeds.
    pub chain: DigestChain,
    /// Those that broke a promise.
    pub failures: Vec<Failure>,
    /// How long it took.
    pub elapsed: Duration,
}

/// Two lives of one seed that were not the same.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("seed {seed}: {how}: digest {first}, then {second}")]
pub struct NotDeterministic {
    seed: u64,
    how: &'static str,
    first: DigestChain,
    second: DigestChain,
}

/// Lives a seed twice, and its trace once, and compares: the first thing every run does. A simulator that cannot repeat
/// what it did can prove nothing.
///
/// # Errors
/// [`NotDeterministic`].
pub fn check_determinism(seed: u64, options: RunOptions) -> Result<DigestChain, NotDeterministic> {
    let first = run_seed(seed, options);
    let again = run_seed(seed, options);
    let written = replay(&first.setup, &first.actions, options);
    let same = |how, other: &Run| {
        let same = (first.chain, &first.actions, &first.violation) == (other.chain, &other.actions, &other.violation);
        if same { Ok(()) } else { Err(NotDeterministic { seed, how, first: first.chain, second: other.chain }) }
    };
    same("lived twice, it was not the same", &again)?;
    same("its trace is not the same life", &written)?;
    Ok(first.chain)
}

/// Runs. `watch` is told how far it is, after every seed.
pub fn run(plan: &Plan, mut watch: impl FnMut(&Summary)) -> Summary {
    let begun = Instant::now();
    let (seeds, until) = match plan.extent {
        Extent::Seeds(seeds) => (seeds, None),
        Extent::For(span) => (u64::MAX, begun.checked_add(span)),
    };
    let in_time = |_: &u64| until.is_none_or(|until| Instant::now() < until);
    let seeds = (0..seeds).map(|nth| plan.start.wrapping_add(nth)).take_while(in_time);
    let mut summary = Summary::default();
    in_order(
        plan.jobs,
        seeds,
        |seed| {
            let mut run = run_seed(seed, plan.options);
            if run.violation.is_none() {
                // Only what went wrong will be looked at, and a long run has many steps.
                run.actions = Vec::new();
            }
            Failure { seed, run }
        },
        |lived| {
            summary.take(lived);
            summary.elapsed = begun.elapsed();
            watch(&summary);
            let enough = summary.failures.len() as u64 >= plan.failures_max;
            if enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        },
    );
    summary.elapsed = begun.elapsed();
    summary
}

impl Summary {
    fn take(&mut self, lived: Failure) {
        self.seeds += 1;
        self.counters.add(&lived.run.counters);
        self.coverage.add(&lived.run.coverage);
        self.chain.mix_bytes(lived.run.chain.to_string().as_bytes());
        if lived.run.violation.is_some() {
            self.failures.push(lived);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_threads_makes_no_difference() {
        let plan = |jobs| Plan {
            start: 5,
            extent: Extent::Seeds(24),
            jobs: NonZeroUsize::new(jobs).expect("not zero"),
            options: RunOptions::default(),
            failures_max: 1_000,
        };
        let (one, four) = (run(&plan(1), |_| {}), run(&plan(4), |_| {}));
        assert_eq!((one.seeds, one.chain, one.counters), (24, four.chain, four.counters));
        assert_eq!(one.coverage, four.coverage);
    }
}
