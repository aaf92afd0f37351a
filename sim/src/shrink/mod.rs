//! From a long life that breaks a promise to a short one that breaks the same.
//!
//! Any part of a trace is a trace, so commands and faults are dropped alike: first everything of one kind or about one
//! message or worker, then ever smaller chunks, then pairs. What is left is made simpler step by step, and at last the
//! world it happens in. A change is kept if the same sentence is still broken and, where a bug was planted, only because of
//! it. No clock is read: the same life always shrinks to the same.

pub(crate) mod json;
mod simpler;

use std::collections::BTreeSet;

use crate::life::{Conditions, Life, relive};
use crate::setup::Setup;
use crate::steps::Step;
use crate::trace::Broken;

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
    pub life: Life,
    /// How many steps it had before.
    pub before: usize,
    /// How many lives were tried.
    pub tries: u64,
    /// Whether nothing was left to try. Else patience ended first.
    pub is_finished: bool,
}

/// Shrinks a life, or gives nothing if no promise is broken in it.
#[must_use]
pub fn shrink(setup: &Setup, steps: &[Step], conditions: Conditions) -> Option<Shrunk> {
    let life = relive(setup, steps, conditions);
    let wanted = Broken::from(life.violation.as_ref()?);
    let mut search = Search { conditions, wanted, is_innocent: true, life, tries: 1, events: 0 };
    search.is_innocent = search.is_innocent(setup, steps);
    let mut is_finished = false;
    for _ in 0..ROUNDS {
        let before = (search.life.steps.clone(), search.life.setup.clone());
        // What is long is halved first: a life has hundreds of messages, and each is one more thing to drop.
        search.drop_chunks(search.life.steps.len().div_ceil(LARGE_CHUNKS));
        search.drop_alike();
        search.drop_chunks(1);
        search.drop_pairs();
        search.join_passes();
        search.simplify_steps();
        search.rename();
        search.simplify_setup();
        if search.is_tired() {
            break;
        }
        if before == (search.life.steps.clone(), search.life.setup.clone()) {
            is_finished = true;
            break;
        }
    }
    Some(Shrunk { before: steps.len(), tries: search.tries, is_finished, life: search.life })
}

struct Search {
    conditions: Conditions,
    wanted: Broken,
    /// Without the planted bug nothing was broken, and shall not be.
    is_innocent: bool,
    /// The best so far.
    life: Life,
    tries: u64,
    events: u64,
}

impl Search {
    fn is_tired(&self) -> bool {
        self.events > EVENTS_MAX
    }

    /// Lives a candidate, and keeps it if it breaks the same promise.
    fn attempt(&mut self, setup: &Setup, steps: &[Step]) -> bool {
        if self.is_tired() {
            return false;
        }
        let life = self.live(setup, steps, self.conditions);
        if !life.violation.as_ref().is_some_and(|violation| self.wanted.is(violation)) {
            return false;
        }
        // The life ends with the violation, which may have come earlier than before.
        if self.is_innocent && !self.is_innocent(setup, &life.steps) {
            return false;
        }
        self.life = life;
        true
    }

    fn attempt_steps(&mut self, steps: &[Step]) -> bool {
        let setup = self.life.setup.clone();
        self.attempt(&setup, steps)
    }

    /// Whether nothing is broken when no bug is planted.
    fn is_innocent(&mut self, setup: &Setup, steps: &[Step]) -> bool {
        let without = Conditions { fault: None, ..self.conditions };
        self.conditions.fault.is_some() && self.live(setup, steps, without).violation.is_none()
    }

    fn live(&mut self, setup: &Setup, steps: &[Step], conditions: Conditions) -> Life {
        let life = relive(setup, steps, conditions);
        self.tries += 1;
        self.events += life.tally.events + life.steps.len() as u64;
        life
    }

    /// Drops all steps of one kind, or about the same message, worker, group, topic or call.
    fn drop_alike(&mut self) {
        let subjects = |step: &Step| json::subjects(&json::of(step));
        let all: BTreeSet<String> = self.life.steps.iter().flat_map(subjects).collect();
        for subject in all {
            let kept: Vec<Step> =
                self.life.steps.iter().filter(|step| !subjects(step).contains(&subject)).cloned().collect();
            if kept.len() < self.life.steps.len() {
                self.attempt_steps(&kept);
            }
        }
    }

    /// Drops chunks of at least so many steps, half as long every time, from the end, since what comes later needs what was before.
    fn drop_chunks(&mut self, least: usize) {
        let mut len = self.life.steps.len().div_ceil(2);
        while len >= least.max(1) {
            let mut end = self.life.steps.len();
            while end > 0 {
                let start = end.saturating_sub(len);
                let steps = &self.life.steps;
                let kept: Vec<Step> = steps[..start].iter().chain(&steps[end..]).cloned().collect();
                self.attempt_steps(&kept);
                end = start.min(self.life.steps.len());
            }
            len = if len == 1 { 0 } else { len.div_ceil(2) };
        }
    }

    /// Drops two at a time: a crash and its start, a call sent and its arrival.
    fn drop_pairs(&mut self) {
        if self.life.steps.len() > PAIRS_UP_TO {
            return;
        }
        let mut second = self.life.steps.len();
        while second > 1 {
            second = (second - 1).min(self.life.steps.len().saturating_sub(1));
            for first in (0..second).rev() {
                let kept = self.life.steps.iter().enumerate().filter(|(at, _)| *at != first && *at != second);
                let kept: Vec<Step> = kept.map(|(_, step)| step.clone()).collect();
                if self.attempt_steps(&kept) {
                    break;
                }
            }
        }
    }

    /// Lets time pass once instead of twice.
    fn join_passes(&mut self) {
        let mut at = 0;
        while at + 1 < self.life.steps.len() {
            let (Step::Pass { ms: first }, Step::Pass { ms: second }) =
                (&self.life.steps[at], &self.life.steps[at + 1])
            else {
                at += 1;
                continue;
            };
            let joined = Step::Pass { ms: first.saturating_add(*second) };
            let mut steps = self.life.steps.clone();
            steps.splice(at..at + 2, [joined]);
            if !self.attempt_steps(&steps) {
                at += 1;
            }
        }
    }

    /// Makes every step as simple as it can be.
    fn simplify_steps(&mut self) {
        let mut at = 0;
        while at < self.life.steps.len() {
            for _ in 0..SIMPLER_MAX {
                if !self.simplify_step(at) {
                    break;
                }
            }
            at += 1;
        }
    }

    fn simplify_step(&mut self, at: usize) -> bool {
        let Some(step) = self.life.steps.get(at) else { return false };
        simpler::than(step).into_iter().any(|simpler| {
            let mut steps = self.life.steps.clone();
            steps[at] = simpler;
            self.attempt_steps(&steps)
        })
    }

    /// Counts messages, workers, groups, topics and calls from 0.
    fn rename(&mut self) {
        for kind in json::KINDS {
            let renamed = json::renamed(&self.life.steps, *kind);
            if renamed != self.life.steps {
                self.attempt_steps(&renamed);
            }
        }
    }

    /// Gives every size and limit its default where that changes nothing. Where it does, what matters is that the number is
    /// small, and the smaller it is the sooner it is met, which makes steps needless in the next round.
    fn simplify_setup(&mut self) {
        let steps = self.life.steps.clone();
        if self.life.setup == Setup::default() || self.attempt(&Setup::default(), &steps) {
            return;
        }
        for field in json::unusual_fields(&self.life.setup) {
            let candidates = simpler::setups(&self.life.setup, &field);
            let _ = candidates.iter().any(|setup| self.attempt(setup, &steps));
        }
    }
}
