//! Planted bugs against the checks that are to catch them.
//!
//! A bug is killed by a seed if a promise is broken with it and none without it: a seed that fails anyway says nothing about
//! the bug. Which invariant was the first to be broken is noted with all checks, and again without the naive model, since
//! the model knows every answer and would hide how much the other invariants see.

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

/// The invariant that compares with the naive model.
pub const ORACLE: u8 = 21;
/// How far apart the starts are.
const APART: u64 = 1_000;

/// How hard a bug is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// How many seeds there are to kill it, from every start.
    pub seeds: u64,
    /// From how many starts it is tried, to tell luck from strength.
    pub starts: u64,
    /// How many seeds are lived without the naive model, to see who else kills it.
    pub survey: u64,
}

impl Default for Effort {
    fn default() -> Self {
        Self { seeds: 200, starts: 20, survey: 100 }
    }
}

/// What is known about one bug.
#[derive(Clone, Debug)]
pub struct Row {
    /// The bug.
    pub fault: Fault,
    /// How many seeds it took from every start, none where they were not enough. Only the first start if that did not kill.
    pub took: Vec<Option<u64>>,
    /// Which sentence was the first to be broken, mostly.
    pub first: Option<ViolatedInvariant>,
    /// Which it was without the naive model.
    pub first_without_oracle: Option<ViolatedInvariant>,
    /// How often each invariant was the first, without the naive model.
    pub killers: BTreeMap<u8, u64>,
    /// A killing seed, shrunk.
    pub shortest: Option<Shortest>,
}

/// A short trace that shows a bug.
#[derive(Clone, Debug)]
pub struct Shortest {
    /// The trace.
    pub trace: Trace,
    /// How many steps it had before.
    pub before: usize,
    /// How long the shrinking took.
    pub time: Duration,
}

impl Row {
    /// Whether the first start was enough.
    #[must_use]
    pub fn is_killed(&self) -> bool {
        self.took.first().is_some_and(Option::is_some)
    }

    /// How many seeds it takes: as many or fewer in half of all starts.
    #[must_use]
    pub fn median(&self) -> Option<u64> {
        let mut took = self.took.clone();
        // What was not killed took longer than all others.
        took.sort_by_key(|seeds| seeds.unwrap_or(u64::MAX));
        took.get(took.len().saturating_sub(1) / 2).copied().flatten()
    }

    /// How many it takes at most, over all starts.
    #[must_use]
    pub fn worst(&self) -> Option<u64> {
        self.took.iter().copied().max_by_key(|seeds| seeds.unwrap_or(u64::MAX)).flatten()
    }

    /// The only invariant that kills it, if there is only one. Where no other sees it, that is the naive model's.
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

/// Looks for one bug.
#[must_use]
pub fn convict(fault: Fault, effort: Effort) -> Row {
    let mut took = Vec::new();
    let mut kills: Vec<(u64, Run)> = Vec::new();
    for start in (0..effort.starts.max(1)).map(|nth| nth * APART) {
        let killed = (start..start + effort.seeds).find_map(|seed| {
            let run = kill(seed, fault, Checks::default())?;
            Some((seed, run))
        });
        took.push(killed.as_ref().map(|(seed, _)| seed - start + 1));
        kills.extend(killed);
        if kills.is_empty() {
            break;
        }
    }
    let first = most(kills.iter().filter_map(|(_, run)| run.violation.as_ref()).map(ViolatedInvariant::from));
    let shortest = first.as_ref().and_then(|first| shorten(fault, first, &kills));

    let survey = if kills.is_empty() { 0 } else { effort.survey };
    let without: Vec<ViolatedInvariant> = (0..survey)
        .filter_map(|seed| kill(seed, fault, Checks { oracle: false }))
        .filter_map(|run| run.violation.as_ref().map(ViolatedInvariant::from))
        .collect();
    let mut killers = BTreeMap::new();
    for broken in &without {
        *killers.entry(broken.invariant).or_default() += 1;
    }
    Row { fault, took, first, first_without_oracle: most(without.into_iter()), killers, shortest }
}

/// The life of a seed that the bug breaks, and the bug alone.
fn kill(seed: u64, fault: Fault, checks: Checks) -> Option<Run> {
    let mut run = run_seed(seed, RunOptions { fault: Some(fault), checks, ..RunOptions::default() });
    if run.violation.is_none() {
        run.violation = unrepeatable(seed, &run, RunOptions { fault: Some(fault), checks, ..RunOptions::default() });
    }
    run.violation.as_ref()?;
    run_seed(seed, RunOptions { checks, ..RunOptions::default() }).violation.is_none().then_some(run)
}

/// A life in which nothing else is broken must be the same when it is lived again.
fn unrepeatable(seed: u64, run: &Run, options: RunOptions) -> Option<Violation> {
    let again = run_seed(seed, options);
    let found = || format!("digest {}, then {}", run.chain, again.chain);
    (again.chain != run.chain).then(|| Violation { invariant: 22, sentence: DETERMINISTIC, found: found() })
}

/// What comes most often; of equals, the first in the list of invariants.
fn most(all: impl Iterator<Item = ViolatedInvariant>) -> Option<ViolatedInvariant> {
    let mut counts: BTreeMap<ViolatedInvariant, u64> = BTreeMap::new();
    for broken in all {
        *counts.entry(broken).or_default() += 1;
    }
    counts.into_iter().rev().max_by_key(|(_, count)| *count).map(|(broken, _)| broken)
}

/// The shortest life that breaks what is mostly broken first, made shorter.
fn shorten(fault: Fault, first: &ViolatedInvariant, kills: &[(u64, Run)]) -> Option<Shortest> {
    let is_typical = |run: &Run| run.violation.as_ref().is_some_and(|found| first.is(found));
    let typical = kills.iter().filter(|(_, run)| is_typical(run));
    let (seed, run) = typical.min_by_key(|(_, run)| run.actions.len())?;
    let begun = Instant::now();
    let options = RunOptions { fault: Some(fault), ..RunOptions::default() };
    let shrunk = shrink(&run.setup, &run.actions, options)?;
    let mut trace = Trace::of(&shrunk.run, Some(*seed), Some(fault));
    trace.header.about = Some(fault.sentence().to_owned());
    Some(Shortest { trace, before: shrunk.before, time: begun.elapsed() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(took: &[Option<u64>]) -> Row {
        Row {
            fault: Fault::ALL[0],
            took: took.to_vec(),
            first: None,
            first_without_oracle: None,
            killers: BTreeMap::new(),
            shortest: None,
        }
    }

    #[test]
    fn seeds_that_were_not_enough_count_as_more_than_all_others() {
        assert_eq!(row(&[Some(3), Some(1), Some(2)]).median(), Some(2));
        assert_eq!(row(&[Some(3), None, Some(2)]).median(), Some(3));
        assert_eq!(row(&[Some(3), None, None]).median(), None);
        assert_eq!(row(&[Some(3), None]).worst(), None);
        assert_eq!(row(&[Some(3), Some(9)]).worst(), Some(9));
        assert!(!row(&[None]).is_killed());
    }

    #[test]
    fn only_one_killer_is_the_only_killer_and_without_any_it_is_the_model() {
        let mut row = row(&[Some(1)]);
        row.first = Some(ViolatedInvariant { invariant: ORACLE, sentence: String::new() });
        assert_eq!(row.only_killer(), Some(ORACLE));
        row.killers.insert(9, 4);
        assert_eq!(row.only_killer(), Some(9));
        row.killers.insert(15, 1);
        assert_eq!(row.only_killer(), None);
    }
}
