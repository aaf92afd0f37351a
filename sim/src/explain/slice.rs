//! The few steps that a broken promise depends on: as many of the others as can be left out are, and those that stay are left as
//! they are, with their numbers.

use std::collections::BTreeSet;

use serde::Serialize;

use super::Case;
use crate::actions::Action;
use crate::shrink::json;
use crate::trace::ViolatedInvariant;

/// How many events may be lived through in search of fewer steps: some seconds on one core.
const EVENTS_MAX: u64 = 1_500_000;
/// From how many steps on it is too costly to try to leave out every pair.
const PAIRS_UP_TO: usize = 24;

/// A step that the broken promise depends on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Needed {
    /// Which step of the trace, counted from 1.
    pub number: usize,
    /// The step.
    #[serde(rename = "step")]
    pub action: Action,
    /// What the other steps of the slice break without it.
    pub without: Without,
}

/// What happens without a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Without {
    /// No promise is broken.
    Nothing,
    /// Another one is.
    Another(ViolatedInvariant),
    /// It makes no difference; patience ended before it could be left out.
    Same,
    /// The same one, but with or without the planted bug.
    Anyway,
}

/// What a broken promise depends on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Slice {
    /// The steps, in order.
    pub needed: Vec<Needed>,
    /// Whether none of them can be left out. Else patience ended first.
    pub is_minimal: bool,
}

/// The slice of a life that ends with the violation.
pub(super) fn slice(case: &Case<'_>) -> Slice {
    let mut search = Search { case, kept: (0..case.actions.len()).collect(), is_strict: true, events: 0 };
    // First as long as it is still the last step that breaks it: without a step that stood in its way, another may do so before.
    search.drop_alike();
    search.drop_chunks();
    search.is_strict = false;
    // Each pass may make the ones before it worth while again.
    let mut is_minimal = false;
    while !search.is_tired() && !is_minimal {
        let before = search.kept.len();
        search.drop_chunks();
        search.drop_pairs();
        is_minimal = search.kept.len() == before && !search.is_tired();
    }
    let needed = (0..search.kept.len()).map(|at| {
        let number = search.kept[at];
        let mut others = search.kept.clone();
        others.remove(at);
        Needed { number: number + 1, action: case.actions[number].clone(), without: search.breaks(&others).0 }
    });
    Slice { needed: needed.collect(), is_minimal }
}

struct Search<'a> {
    case: &'a Case<'a>,
    /// The steps that are left, counted from 0.
    kept: Vec<usize>,
    /// Whether it must be the last of all steps that breaks the promise.
    is_strict: bool,
    events: u64,
}

impl Search<'_> {
    fn is_tired(&self) -> bool {
        self.events > EVENTS_MAX
    }

    fn actions(&self, of: &[usize]) -> Vec<Action> {
        of.iter().map(|at| self.case.actions[*at].clone()).collect()
    }

    /// What these steps break, and after how many of them.
    fn breaks(&self, of: &[usize]) -> (Without, usize, u64) {
        let run = self.case.run(&self.actions(of), self.case.fault);
        let (len, mut events) = (run.actions.len(), run.counters.events + run.actions.len() as u64);
        let found = match &run.violation {
            None => Without::Nothing,
            Some(found) if !self.case.wanted.is(found) => Without::Another(ViolatedInvariant::from(found)),
            Some(_) if self.case.is_innocent => {
                let sound = self.case.run(&run.actions, None);
                events += sound.counters.events + sound.actions.len() as u64;
                if sound.violation.is_none() { Without::Same } else { Without::Anyway }
            }
            Some(_) => Without::Same,
        };
        (found, len, events)
    }

    /// Keeps only these if that breaks the same promise, which may happen before the last of them.
    fn attempt(&mut self, mut kept: Vec<usize>) -> bool {
        if self.is_tired() {
            return false;
        }
        let (found, len, events) = self.breaks(&kept);
        self.events += events;
        let is_last = len == kept.len() && kept.last() == self.kept.last();
        if found != Without::Same || (self.is_strict && !is_last) {
            return false;
        }
        kept.truncate(len);
        self.kept = kept;
        true
    }

    /// Leaves out all steps of one kind, or about the same message, worker, group, topic or call.
    fn drop_alike(&mut self) {
        let subjects: Vec<BTreeSet<String>> =
            self.case.actions.iter().map(|action| json::subjects(&json::of(action))).collect();
        let all: BTreeSet<&String> = subjects.iter().flatten().collect();
        for subject in all {
            let kept: Vec<usize> = self.kept.iter().copied().filter(|at| !subjects[*at].contains(subject)).collect();
            if kept.len() < self.kept.len() {
                self.attempt(kept);
            }
        }
    }

    /// Leaves out chunks, half as long every time, from the end, since what comes later needs what was before.
    fn drop_chunks(&mut self) {
        let mut len = self.kept.len().div_ceil(2);
        while len > 0 {
            let mut end = self.kept.len();
            while end > 0 {
                let start = end.saturating_sub(len);
                let kept = [&self.kept[..start], &self.kept[end..]].concat();
                self.attempt(kept);
                end = start.min(self.kept.len());
            }
            len = if len == 1 { 0 } else { len.div_ceil(2) };
        }
    }

    /// Leaves out two at a time: a crash and its start, a call sent and its arrival.
    fn drop_pairs(&mut self) {
        if self.kept.len() > PAIRS_UP_TO {
            return;
        }
        let pairs = |len: usize| (0..len).rev().flat_map(|second| (0..second).rev().map(move |first| (first, second)));
        'again: loop {
            for (first, second) in pairs(self.kept.len()) {
                let mut kept = self.kept.clone();
                kept.remove(second);
                kept.remove(first);
                if self.attempt(kept) {
                    continue 'again;
                }
            }
            return;
        }
    }
}
