//! Shrinking: from a long run that violates an invariant to a short one that violates the same.
//!
//! Any subsequence of a trace is a trace, so requests and faults are dropped alike: first all of one kind or about one
//! message or worker, then ever smaller chunks, then pairs. The remaining actions are simplified one by one, and then
//! the setup. A change is kept if the same invariant is violated and, with a planted bug, only because of it. No clock
//! is read: the same run always shrinks to the same result.

pub(crate) mod json;
mod simpler;

use std::collections::BTreeSet;

use crate::actions::Action;
use crate::run::{Run, RunOptions, replay};
use crate::setup::Setup;
use crate::trace::ViolatedInvariant;

/// The most rounds of all passes. Two or three are usual.
const ROUNDS: usize = 6;
/// The most events executed in search of a shorter run: about ten seconds on one core.
const EVENTS_MAX: u64 = 1_500_000;
/// The first pass drops each of this many parts of a run.
const LARGE_CHUNKS: usize = 32;
/// With more actions than this, dropping every pair costs too much.
const PAIRS_UP_TO: usize = 36;
/// How often one action is simplified in one round.
const SIMPLER_MAX: usize = 40;

/// The result of shrinking.
#[derive(Clone, Debug)]
pub struct Shrunk {
    /// The short run, which ends with the violation.
    pub run: Run,
    /// The number of actions before.
    pub before: usize,
    /// The number of runs tried.
    pub tries: u64,
    /// Whether no further change helps; otherwise the budget ran out.
    pub is_finished: bool,
}

/// Shrinks a run; `None` if it violates no invariant.
#[must_use]
pub fn shrink(setup: &Setup, actions: &[Action], options: RunOptions) -> Option<Shrunk> {
    let run = replay(setup, actions, options);
    let wanted = ViolatedInvariant::from(run.violation.as_ref()?);
    let mut search = Search { options, wanted, passes_without_fault: true, run, tries: 1, events: 0 };
    search.passes_without_fault = search.passes_without_fault(setup, actions);
    let mut is_finished = false;
    for _ in 0..ROUNDS {
        let before = (search.run.actions.clone(), search.run.setup.clone());
        // Long runs are halved first: they have hundreds of messages, each of which is another candidate to drop.
        search.drop_chunks(search.run.actions.len().div_ceil(LARGE_CHUNKS));
        search.drop_by_subject();
        search.drop_chunks(1);
        search.drop_pairs();
        search.join_time_advances();
        search.simplify_actions();
        search.rename();
        search.simplify_setup();
        if search.is_over_budget() {
            break;
        }
        if before == (search.run.actions.clone(), search.run.setup.clone()) {
            is_finished = true;
            break;
        }
    }
    Some(Shrunk { before: actions.len(), tries: search.tries, is_finished, run: search.run })
}

struct Search {
    options: RunOptions,
    wanted: ViolatedInvariant,
    /// Nothing is violated without the planted bug, and this must stay so.
    passes_without_fault: bool,
    /// The best run so far.
    run: Run,
    tries: u64,
    events: u64,
}

impl Search {
    fn is_over_budget(&self) -> bool {
        self.events > EVENTS_MAX
    }

    /// Runs a candidate and keeps it if it violates the same invariant.
    fn try_candidate(&mut self, setup: &Setup, actions: &[Action]) -> bool {
        if self.is_over_budget() {
            return false;
        }
        let run = self.run(setup, actions, self.options);
        if !run.violation.as_ref().is_some_and(|violation| self.wanted.is(violation)) {
            return false;
        }
        // The run ends with the violation, which may come earlier than before.
        if self.passes_without_fault && !self.passes_without_fault(setup, &run.actions) {
            return false;
        }
        self.run = run;
        true
    }

    fn try_actions(&mut self, actions: &[Action]) -> bool {
        let setup = self.run.setup.clone();
        self.try_candidate(&setup, actions)
    }

    /// Whether nothing is violated without a planted bug.
    fn passes_without_fault(&mut self, setup: &Setup, actions: &[Action]) -> bool {
        let without = RunOptions { fault: None, ..self.options };
        self.options.fault.is_some() && self.run(setup, actions, without).violation.is_none()
    }

    fn run(&mut self, setup: &Setup, actions: &[Action], options: RunOptions) -> Run {
        let run = replay(setup, actions, options);
        self.tries += 1;
        self.events += run.counters.events + run.actions.len() as u64;
        run
    }

    /// Drops all actions of one kind, or about the same message, worker, group, topic or call.
    fn drop_by_subject(&mut self) {
        let subjects = |action: &Action| json::subjects(&json::of(action));
        let all: BTreeSet<String> = self.run.actions.iter().flat_map(subjects).collect();
        for subject in all {
            let kept: Vec<Action> =
                self.run.actions.iter().filter(|action| !subjects(action).contains(&subject)).cloned().collect();
            if kept.len() < self.run.actions.len() {
                self.try_actions(&kept);
            }
        }
    }

    /// Drops chunks of at least this many actions, halving their size, from the end, since later actions depend on
    /// earlier ones.
    fn drop_chunks(&mut self, min_len: usize) {
        let mut len = self.run.actions.len().div_ceil(2);
        while len >= min_len.max(1) {
            let mut end = self.run.actions.len();
            while end > 0 {
                let start = end.saturating_sub(len);
                let actions = &self.run.actions;
                let kept: Vec<Action> = actions[..start].iter().chain(&actions[end..]).cloned().collect();
                self.try_actions(&kept);
                end = start.min(self.run.actions.len());
            }
            len = if len == 1 { 0 } else { len.div_ceil(2) };
        }
    }

    /// Drops two actions at a time, such as a crash and its start, or a sent request and its arrival.
    fn drop_pairs(&mut self) {
        if self.run.actions.len() > PAIRS_UP_TO {
            return;
        }
        let mut second = self.run.actions.len();
        while second > 1 {
            second = (second - 1).min(self.run.actions.len().saturating_sub(1));
            for first in (0..second).rev() {
                let kept = self.run.actions.iter().enumerate().filter(|(at, _)| *at != first && *at != second);
                let kept: Vec<Action> = kept.map(|(_, action)| action.clone()).collect();
                if self.try_actions(&kept) {
                    break;
                }
            }
        }
    }

    /// Joins two consecutive advances of time.
    fn join_time_advances(&mut self) {
        let mut at = 0;
        while at + 1 < self.run.actions.len() {
            let (Action::AdvanceTime { ms: first }, Action::AdvanceTime { ms: second }) =
                (&self.run.actions[at], &self.run.actions[at + 1])
            else {
                at += 1;
                continue;
            };
            let joined = Action::AdvanceTime { ms: first.saturating_add(*second) };
            let mut actions = self.run.actions.clone();
            actions.splice(at..at + 2, [joined]);
            if !self.try_actions(&actions) {
                at += 1;
            }
        }
    }

    /// Simplifies every action as far as possible.
    fn simplify_actions(&mut self) {
        let mut at = 0;
        while at < self.run.actions.len() {
            for _ in 0..SIMPLER_MAX {
                if !self.simplify_action(at) {
                    break;
                }
            }
            at += 1;
        }
    }

    fn simplify_action(&mut self, at: usize) -> bool {
        let Some(action) = self.run.actions.get(at) else { return false };
        simpler::actions(action).into_iter().any(|simpler| {
            let mut actions = self.run.actions.clone();
            actions[at] = simpler;
            self.try_actions(&actions)
        })
    }

    /// Renumbers messages, workers, groups, topics and calls from 0.
    fn rename(&mut self) {
        for kind in json::KINDS {
            let renamed = json::renamed(&self.run.actions, *kind);
            if renamed != self.run.actions {
                self.try_actions(&renamed);
            }
        }
    }

    /// Resets every limit to its default where that changes nothing. Elsewhere a smaller limit is reached sooner, which
    /// makes actions unnecessary in the next round.
    fn simplify_setup(&mut self) {
        let actions = self.run.actions.clone();
        if self.run.setup == Setup::default() || self.try_candidate(&Setup::default(), &actions) {
            return;
        }
        for field in json::non_default_fields(&self.run.setup) {
            let candidates = simpler::setups(&self.run.setup, &field);
            let _ = candidates.iter().any(|setup| self.try_candidate(setup, &actions));
        }
    }
}
