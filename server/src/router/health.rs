//! Whether a webhook may be asked: how many questions are open, and whether it failed a moment ago.
//!
//! After a failure the webhook rests. When the rest is over one question is let through to see whether it is well again; the
//! others are skipped until that one is answered. So a dead webhook holds up one produce per rest, whatever the load.

use std::cell::Cell;
use std::time::Duration;

use tokio::time::Instant;

/// The most questions open at once.
pub(super) const OPEN_MAX: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Well,
    /// It failed: not to be asked before this moment, and then by one question only.
    Resting(Instant),
    /// That one question is open.
    OnTrial,
}

/// What is known of a webhook.
#[derive(Debug)]
pub(super) struct Health {
    rest: Duration,
    open: Cell<usize>,
    state: Cell<State>,
}

impl Health {
    /// Of a webhook that nothing is known of; it will rest for `rest` after failures.
    pub(super) fn new(rest: Duration) -> Self {
        Self { rest, open: Cell::new(0), state: Cell::new(State::Well) }
    }

    /// Leave to ask one question now, if it may be asked.
    pub(super) fn admit(&self, now: Instant) -> Option<Admission<'_>> {
        if self.open.get() >= OPEN_MAX {
            return None;
        }
        let on_trial = match self.state.get() {
            State::Well => false,
            State::Resting(until) if until <= now => true,
            State::Resting(_) | State::OnTrial => return None,
        };
        if on_trial {
            self.state.set(State::OnTrial);
        }
        self.open.set(self.open.get() + 1);
        Some(Admission { health: self, on_trial, now })
    }
}

/// Leave to ask one question. Dropped without a word, it changes nothing but the number of open questions.
#[derive(Debug)]
pub(super) struct Admission<'a> {
    health: &'a Health,
    on_trial: bool,
    now: Instant,
}

impl Admission<'_> {
    /// The question was answered with sense. Only an answer asked for after the rest ends it: one that was already on its way when
    /// another question failed proves nothing.
    pub(super) fn answered(mut self) {
        if std::mem::take(&mut self.on_trial) {
            self.health.state.set(State::Well);
        }
    }

    /// The question failed at `now`.
    pub(super) fn failed(mut self, now: Instant) {
        self.on_trial = false;
        self.health.state.set(State::Resting(now + self.health.rest));
    }
}

impl Drop for Admission<'_> {
    fn drop(&mut self) {
        self.health.open.set(self.health.open.get() - 1);
        if self.on_trial && self.health.state.get() == State::OnTrial {
            // The asker went away before the answer came. The next question is on trial in its stead.
            self.health.state.set(State::Resting(self.now));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const REST: Duration = Duration::from_secs(1);

    #[test]
    fn a_failure_is_followed_by_a_rest_and_one_trial() {
        let (health, start) = (Health::new(REST), Instant::now());
        health.admit(start).unwrap().failed(start);
        assert!(health.admit(start).is_none());
        assert!(health.admit(start + REST - Duration::from_millis(1)).is_none());
        let trial = health.admit(start + REST).unwrap();
        assert!(health.admit(start + REST * 5).is_none(), "one trial at a time");
        trial.failed(start + REST * 2);
        assert!(health.admit(start + REST * 2).is_none(), "a failed trial is a failure");
        health.admit(start + REST * 3).unwrap().answered();
        let both = (health.admit(start + REST * 3), health.admit(start + REST * 3));
        assert!(both.0.is_some() && both.1.is_some());
    }

    #[test]
    fn a_trial_that_nobody_waits_for_is_followed_by_another() {
        let (health, start) = (Health::new(REST), Instant::now());
        health.admit(start).unwrap().failed(start);
        drop(health.admit(start + REST).unwrap());
        assert!(health.admit(start + REST).is_some());
    }

    #[test]
    fn an_answer_that_was_on_its_way_does_not_end_the_rest() {
        let (health, start) = (Health::new(REST), Instant::now());
        let (early, late) = (health.admit(start).unwrap(), health.admit(start).unwrap());
        early.failed(start);
        late.answered();
        assert!(health.admit(start).is_none());
    }

    #[test]
    fn open_questions_are_bounded_and_counted_back() {
        let (health, start) = (Health::new(REST), Instant::now());
        let mut open: Vec<_> = (0..OPEN_MAX).map(|_| health.admit(start).unwrap()).collect();
        assert!(health.admit(start).is_none());
        open.pop().unwrap().answered();
        drop(open.pop());
        assert!(health.admit(start).is_some() && health.open.get() == OPEN_MAX - 2);
    }
}
