//! From a long life that breaks a promise to a short one that breaks the same.
//!
//! Any part of a trace is a trace, so commands and faults are dropped alike: first everything of one kind or about one
//! message or worker, then ever smaller chunks, then pairs. What is left is made simpler step by step, and at last the
//! world it happens in. A change is kept if the same sentence is still broken and, where a bug was planted, only because of
//! it. No clock is read: the same life always shrinks to the same.

pub(crate) mod json;
mod simpler;

use std::collections::BTreeSet;

use crate::actions::Action;
use crate::run::{Run, RunOptions, replay};
use crate::setup::Setup;
use crate::trace::ViolatedInvariant;

/// How many rounds of all passes at most. Two or three are usual.
const ROUNDS: usize = 6;
/// How many events may be lived through in search of something shorter: some ten seconds on one core.
const EVENTS_MAX: u64 = 1_500_000;
/// Of so many parts of a life each is tried to be dropped before anything else.
const LARGE_CHUNKS: usize = 32;
/// From how many steps on it is too costly to try to drop every pair.
const PAIRS_UP_TO: usize = 36;
/// How often one step is made simpler in one round.
const SIMPLER_MAX: usize = 40;

/// What shrinking has come to.
#[derive(Clone, Debug)]
pub struct Shrunk {
    /// The short life, which ends in the violation.
    pub run: Run,
    /// How many steps it had before.
    pub before: usize,
    /// How many lives were tried.
    pub tries: u64,
    /// Whether nothing was left to try. Else patience ended first.
    pub is_finished: bool,
}

/// Shrinks a life, or gives nothing if no promise is broken in it.
#[must_use]
pub fn shrink(setup: &Setup, actions: &[Action], options: RunOptions) -> Option<Shrunk> {
    let run = replay(setup, actions, options);
    let wanted = ViolatedInvariant::from(run.violation.as_ref()?);
    let mut search = Search { options, wanted, is_innocent: true, run, tries: 1, events: 0 };
    search.is_innocent = search.is_innocent(setup, actions);
    let mut is_finished = false;
    for _ in 0..ROUNDS {
        let before = (search.run.actions.clone(), search.run.setup.clone());
        // What is long is halved first: a life has hundreds of messages, and each is one more thing to drop.
        search.drop_chunks(search.run.actions.len().div_ceil(LARGE_CHUNKS));
        search.drop_alike();
        search.drop_chunks(1);
        search.drop_pairs();
        search.join_passes();
        search.simplify_actions();
        search.rename();
        search.simplify_setup();
        if search.is_tired() {
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
    /// Without the planted bug nothing was broken, and shall not be.
    is_innocent: bool,
    /// The best so far.
    run: Run,
    tries: u64,
    events: u64,
}

impl Search {
    fn is_tired(&self) -> bool {
        self.events > EVENTS_MAX
    }

    /// Lives a candidate, and keeps it if it breaks the same promise.
    fn attempt(&mut self, setup: &Setup, actions: &[Action]) -> bool {
        if self.is_tired() {
            return false;
        }
        let run = self.run(setup, actions, self.options);
        if !run.violation.as_ref().is_some_and(|violation| self.wanted.is(violation)) {
            return false;
        }
        // The life ends with the violation, which may have come earlier than before.
        if self.is_innocent && !self.is_innocent(setup, &run.actions) {
            return false;
        }
        self.run = run;
        true
    }

    fn attempt_actions(&mut self, actions: &[Action]) -> bool {
        let setup = self.run.setup.clone();
        self.attempt(&setup, actions)
    }

    /// Whether nothing is broken when no bug is planted.
    fn is_innocent(&mut self, setup: &Setup, actions: &[Action]) -> bool {
        let without = RunOptions { fault: None, ..self.options };
        self.options.fault.is_some() && self.run(setup, actions, without).violation.is_none()
    }

    fn run(&mut self, setup: &Setup, actions: &[Action], options: RunOptions) -> Run {
        let run = replay(setup, actions, options);
        self.tries += 1;
        self.events += run.counters.events + run.actions.len() as u64;
        run
    }

    /// Drops all steps of one kind, or about the same message, worker, group, topic or call.
    fn drop_alike(&mut self) {
        let subjects = |action: &Action| json::subjects(&json::of(action));
        let all: BTreeSet<String> = self.run.actions.iter().flat_map(subjects).collect();
        for subject in all {
            let kept: Vec<Action> =
                self.run.actions.iter().filter(|action| !subjects(action).contains(&subject)).cloned().collect();
            if kept.len() < self.run.actions.len() {
                self.attempt_actions(&kept);
            }
        }
    }

    /// Drops chunks of at least so many steps, half as long every time, from the end, since what comes later needs what was before.
    fn drop_chunks(&mut self, least: usize) {
        let mut len = self.run.actions.len().div_ceil(2);
        while len >= least.max(1) {
            let mut end = self.run.actions.len();
            while end > 0 {
                let start = end.saturating_sub(len);
                let actions = &self.run.actions;
                let kept: Vec<Action> = actions[..start].iter().chain(&actions[end..]).cloned().collect();
                self.attempt_actions(&kept);
                end = start.min(self.run.actions.len());
            }
            len = if len == 1 { 0 } else { len.div_ceil(2) };
        }
    }

    /// Drops two at a time: a crash and its start, a call sent and its arrival.
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
                if self.attempt_actions(&kept) {
                    break;
                }
            }
        }
    }

    /// Lets time pass once instead of twice.
    fn join_passes(&mut self) {
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
            if !self.attempt_actions(&actions) {
                at += 1;
            }
        }
    }

    /// Makes every step as simple as it can be.
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
        simpler::than(action).into_iter().any(|simpler| {
            let mut actions = self.run.actions.clone();
            actions[at] = simpler;
            self.attempt_actions(&actions)
        })
    }

    /// Counts messages, workers, groups, topics and calls from 0.
    fn rename(&mut self) {
        for kind in json::KINDS {
            let renamed = json::renamed(&self.run.actions, *kind);
            if renamed != self.run.actions {
                self.attempt_actions(&renamed);
            }
        }
    }

    /// Gives every size and limit its default where that changes nothing. Where it does, what matters is that the number is
    /// small, and the smaller it is the sooner it is met, which makes steps needless in the next round.
    fn simplify_setup(&mut self) {
        let actions = self.run.actions.clone();
        if self.run.setup == Setup::default() || self.attempt(&Setup::default(), &actions) {
            return;
        }
        for field in json::unusual_fields(&self.run.setup) {
            let candidates = simpler::setups(&self.run.setup, &field);
            let _ = candidates.iter().any(|setup| self.attempt(setup, &actions));
        }
    }
}
