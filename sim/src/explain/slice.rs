//! The slice: the actions that a violation depends on, unchanged and with their numbers. All others can be left out.

use std::collections::BTreeSet;

use serde::Serialize;

use super::Case;
use crate::actions::Action;
use crate::shrink::json;
use crate::trace::ViolatedInvariant;

/// The most events executed in search of fewer actions: some seconds on one core.
const EVENTS_MAX: u64 = 1_500_000;
/// With more actions than this, leaving out every pair costs too much.
const PAIRS_UP_TO: usize = 24;

/// An action that the violation depends on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NeededAction {
    /// Its number in the trace, from 1.
    pub number: usize,
    /// The action.
    #[serde(rename = "step")]
    pub action: Action,
    /// What the other actions of the slice violate without it.
    pub without: WithoutAction,
}

/// What happens without an action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WithoutAction {
    /// No invariant is violated.
    Nothing,
    /// Another invariant is violated.
    Another(ViolatedInvariant),
    /// The same invariant is violated; the budget ran out before the action was left out.
    Same,
    /// The same invariant is violated, with or without the planted bug.
    Anyway,
}

/// What a violation depends on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Slice {
    /// The actions, in order.
    pub needed: Vec<NeededAction>,
    /// Whether none of them can be left out; otherwise the budget ran out.
    pub is_minimal: bool,
}

/// The slice of a run that ends with a violation.
pub(super) fn slice(case: &Case<'_>) -> Slice {
    let mut search = Search { case, kept: (0..case.actions.len()).collect(), is_strict: true, events: 0 };
    // First require that the last action stays the violating one: without an action that prevented it, an earlier one
    // may be.
    search.drop_by_subject();
    search.drop_chunks();
    search.is_strict = false;
    // Each pass may make the previous ones effective again.
    let mut is_minimal = false;
    while !search.is_over_budget() && !is_minimal {
        let before = search.kept.len();
        search.drop_chunks();
        search.drop_pairs();
        is_minimal = search.kept.len() == before && !search.is_over_budget();
    }
    let needed = (0..search.kept.len()).map(|at| {
        let number = search.kept[at];
        let mut others = search.kept.clone();
        others.remove(at);
        NeededAction {
            number: number + 1,
            action: case.actions[number].clone(),
            without: search.violated_by(&others).0,
        }
    });
    Slice { needed: needed.collect(), is_minimal }
}

struct Search<'a> {
    case: &'a Case<'a>,
    /// The indices of the actions that are left.
    kept: Vec<usize>,
    /// Whether the last action of the run must be the violating one.
    is_strict: bool,
    events: u64,
}

impl Search<'_> {
    fn is_over_budget(&self) -> bool {
        self.events > EVENTS_MAX
    }

    fn actions(&self, indices: &[usize]) -> Vec<Action> {
        indices.iter().map(|at| self.case.actions[*at].clone()).collect()
    }

    /// What these actions violate, how many of them were executed, and how many events that took.
    fn violated_by(&self, indices: &[usize]) -> (WithoutAction, usize, u64) {
        let run = self.case.run(&self.actions(indices), self.case.fault);
        let (len, mut events) = (run.actions.len(), run.counters.events + run.actions.len() as u64);
        let found = match &run.violation {
            None => WithoutAction::Nothing,
            Some(found) if !self.case.wanted.is(found) => WithoutAction::Another(ViolatedInvariant::from(found)),
            Some(_) if self.case.passes_without_fault => {
                let without_fault = self.case.run(&run.actions, None);
                events += without_fault.counters.events + without_fault.actions.len() as u64;
                if without_fault.violation.is_none() { WithoutAction::Same } else { WithoutAction::Anyway }
            }
            Some(_) => WithoutAction::Same,
        };
        (found, len, events)
    }

    /// Keeps only these if they violate the same invariant, which may happen before the last of them.
    fn try_keep(&mut self, mut kept: Vec<usize>) -> bool {
        if self.is_over_budget() {
            return false;
        }
        let (found, len, events) = self.violated_by(&kept);
        self.events += events;
        let is_last = len == kept.len() && kept.last() == self.kept.last();
        if found != WithoutAction::Same || (self.is_strict && !is_last) {
            return false;
        }
        kept.truncate(len);
        self.kept = kept;
        true
    }

    /// Leaves out all actions of one kind, or about the same message, worker, group, topic or call.
    fn drop_by_subject(&mut self) {
        let subjects: Vec<BTreeSet<String>> =
            self.case.actions.iter().map(|action| json::subjects(&json::of(action))).collect();
        let all: BTreeSet<&String> = subjects.iter().flatten().collect();
        for subject in all {
            let kept: Vec<usize> = self.kept.iter().copied().filter(|at| !subjects[*at].contains(subject)).collect();
            if kept.len() < self.kept.len() {
                self.try_keep(kept);
            }
        }
    }

    /// Leaves out chunks, halving their size, from the end, since later actions depend on earlier ones.
    fn drop_chunks(&mut self) {
        let mut len = self.kept.len().div_ceil(2);
        while len > 0 {
            let mut end = self.kept.len();
            while end > 0 {
                let start = end.saturating_sub(len);
                let kept = [&self.kept[..start], &self.kept[end..]].concat();
                self.try_keep(kept);
                end = start.min(self.kept.len());
            }
            len = if len == 1 { 0 } else { len.div_ceil(2) };
        }
    }

    /// Leaves out two actions at a time, such as a crash and its start, or a sent request and its arrival.
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
                if self.try_keep(kept) {
                    continue 'again;
                }
            }
            return;
        }
    }
}
