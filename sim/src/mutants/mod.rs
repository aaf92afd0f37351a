//! Mutation testing: planted bugs against the checks that must detect them.
//!
//! A seed kills a bug if an invariant is violated with the bug and none without it. The first violated invariant is
//! recorded with all checks, and again without the oracle: the oracle predicts every output and would hide how much the
//! other invariants detect.

mod matrix;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use driftq_core::faults::Fault;

pub use self::matrix::{MarkerError, insert, tables};
use crate::campaign::DETERMINISTIC;
use crate::invariants::verdict::Violation;
use crate::run::{Run, RunOptions, run_seed};
use crate::shrink::shrink;
use crate::trace::{Trace, ViolatedInvariant};
use crate::world::Checks;

/// The number of the oracle's invariant.
pub const ORACLE: u8 = 21;
/// The distance between the starts.
const START_DISTANCE: u64 = 1_000;

/// The effort per bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// The most seeds from every start.
    pub seeds: u64,
    /// The number of starts. A bug killed from every start is not killed by chance.
    pub starts: u64,
    /// The number of seeds run without the oracle, to see which other invariants kill the bug.
    pub survey: u64,
    /// Whether a killing seed is shrunk.
    pub shrinks: bool,
}

impl Default for Effort {
    fn default() -> Self {
        Self { seeds: 200, starts: 20, survey: 100, shrinks: true }
    }
}

/// The result for one bug.
#[derive(Clone, Debug)]
pub struct Row {
    /// The bug.
    pub fault: Fault,
    /// Seeds needed from every start; `None` if they were not enough. Only the first start if that did not kill the
    /// bug.
    pub seeds_to_kill: Vec<Option<u64>>,
    /// The invariant that was most often violated first.
    pub first: Option<ViolatedInvariant>,
    /// The same without the oracle.
    pub first_without_oracle: Option<ViolatedInvariant>,
    /// How often each invariant was violated first, without the oracle.
    pub killers: BTreeMap<u8, u64>,
    /// A killing seed, shrunk, if seeds are.
    pub shortest: Option<Shortest>,
}

/// A short trace that demonstrates a bug.
#[derive(Clone, Debug)]
pub struct Shortest {
    /// The trace.
    pub trace: Trace,
    /// The number of actions before.
    pub before: usize,
    /// The shrinking time.
    pub time: Duration,
}

impl Row {
    /// Whether the seeds of the first start killed the bug.
    #[must_use]
    pub fn is_killed(&self) -> bool {
        self.seeds_to_kill.first().is_some_and(Option::is_some)
    }

    /// The median number of seeds needed.
    #[must_use]
    pub fn median(&self) -> Option<u64> {
        let mut seeds_to_kill = self.seeds_to_kill.clone();
        // A start that did not kill the bug counts as more than all others.
        seeds_to_kill.sort_by_key(|seeds| seeds.unwrap_or(u64::MAX));
        seeds_to_kill.get(seeds_to_kill.len().saturating_sub(1) / 2).copied().flatten()
    }

    /// The largest number of seeds needed.
    #[must_use]
    pub fn worst(&self) -> Option<u64> {
        self.seeds_to_kill.iter().copied().max_by_key(|seeds| seeds.unwrap_or(u64::MAX)).flatten()
    }

    /// The only invariant that kills the bug, if there is only one; the oracle's if no other detects it.
    #[must_use]
    pub fn only_killer(&self) -> Option<u8> {
        let mut killers = self.killers.keys();
        match (killers.next(), killers.next()) {
            (None, _) => self.first.as_ref().map(|first| first.invariant),
            (Some(only), None) => Some(*only),
            _ => None,
        }
    }
}

/// Measures how soon a bug is killed, and by which invariants.
#[must_use]
pub fn measure(fault: Fault, effort: Effort) -> Row {
    let mut seeds_to_kill = Vec::new();
    let mut kills: Vec<(u64, Run)> = Vec::new();
    for start in (0..effort.starts.max(1)).map(|nth| nth * START_DISTANCE) {
        let killed = (start..start + effort.seeds).find_map(|seed| {
            let run = kill(seed, fault, Checks::default())?;
            Some((seed, run))
        });
        seeds_to_kill.push(killed.as_ref().map(|(seed, _)| seed - start + 1));
        kills.extend(killed);
        if kills.is_empty() {
            break;
        }
    }
    let first = most_frequent(kills.iter().filter_map(|(_, run)| run.violation.as_ref()).map(ViolatedInvariant::from));
    let shortest = first.as_ref().filter(|_| effort.shrinks).and_then(|first| shortest_trace(fault, first, &kills));

    let survey = if kills.is_empty() { 0 } else { effort.survey };
    let violated_without_oracle: Vec<ViolatedInvariant> = (0..survey)
        .filter_map(|seed| kill(seed, fault, Checks { oracle: false }))
        .filter_map(|run| run.violation.as_ref().map(ViolatedInvariant::from))
        .collect();
    let mut killers = BTreeMap::new();
    for violated in &violated_without_oracle {
        *killers.entry(violated.invariant).or_default() += 1;
    }
    Row {
        fault,
        seeds_to_kill,
        first,
        first_without_oracle: most_frequent(violated_without_oracle.into_iter()),
        killers,
        shortest,
    }
}

/// The run of a seed that fails with the bug and passes without.
fn kill(seed: u64, fault: Fault, checks: Checks) -> Option<Run> {
    let mut run = run_seed(seed, RunOptions { fault: Some(fault), checks, ..RunOptions::default() });
    if run.violation.is_none() {
        run.violation = nondeterminism(seed, &run, RunOptions { fault: Some(fault), checks, ..RunOptions::default() });
    }
    run.violation.as_ref()?;
    run_seed(seed, RunOptions { checks, ..RunOptions::default() }).violation.is_none().then_some(run)
}

/// A run without a violation must be deterministic.
fn nondeterminism(seed: u64, run: &Run, options: RunOptions) -> Option<Violation> {
    let again = run_seed(seed, options);
    let found = || format!("digest {}, then {}", run.chain, again.chain);
    (again.chain != run.chain).then(|| Violation { invariant: 22, sentence: DETERMINISTIC, found: found() })
}

/// The most frequent one; of equals, the first in the catalog.
fn most_frequent(all: impl Iterator<Item = ViolatedInvariant>) -> Option<ViolatedInvariant> {
    let mut counts: BTreeMap<ViolatedInvariant, u64> = BTreeMap::new();
    for violated in all {
        *counts.entry(violated).or_default() += 1;
    }
    counts.into_iter().rev().max_by_key(|(_, count)| *count).map(|(violated, _)| violated)
}

/// The shortest run that violates the most frequent invariant, shrunk.
fn shortest_trace(fault: Fault, first: &ViolatedInvariant, kills: &[(u64, Run)]) -> Option<Shortest> {
    let is_typical = |run: &Run| run.violation.as_ref().is_some_and(|found| first.is(found));
    let typical = kills.iter().filter(|(_, run)| is_typical(run));
    let (seed, run) = typical.min_by_key(|(_, run)| run.actions.len())?;
    let started = Instant::now();
    let options = RunOptions { fault: Some(fault), ..RunOptions::default() };
    let shrunk = shrink(&run.setup, &run.actions, options)?;
    let mut trace = Trace::of(&shrunk.run, Some(*seed), Some(fault));
    trace.header.about = Some(fault.description().to_owned());
    Some(Shortest { trace, before: shrunk.before, time: started.elapsed() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(seeds_to_kill: &[Option<u64>]) -> Row {
        Row {
            fault: Fault::ALL[0],
            seeds_to_kill: seeds_to_kill.to_vec(),
            first: None,
            first_without_oracle: None,
            killers: BTreeMap::new(),
            shortest: None,
        }
    }

    #[test]
    fn start_without_kill_counts_as_more_than_all_others() {
        assert_eq!(row(&[Some(3), Some(1), Some(2)]).median(), Some(2));
        assert_eq!(row(&[Some(3), None, Some(2)]).median(), Some(3));
        assert_eq!(row(&[Some(3), None, None]).median(), None);
        assert_eq!(row(&[Some(3), None]).worst(), None);
        assert_eq!(row(&[Some(3), Some(9)]).worst(), Some(9));
        assert!(!row(&[None]).is_killed());
    }

    #[test]
    fn only_killer_is_the_single_invariant_or_the_oracle() {
        let mut row = row(&[Some(1)]);
        row.first = Some(ViolatedInvariant { invariant: ORACLE, sentence: String::new() });
        assert_eq!(row.only_killer(), Some(ORACLE));
        row.killers.insert(9, 4);
        assert_eq!(row.only_killer(), Some(9));
        row.killers.insert(15, 1);
        assert_eq!(row.only_killer(), None);
    }
}
