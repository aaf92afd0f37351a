//! A second broker, deliberately naive, that says of every output of the first what it must be.
//!
//! The [`Oracle`] is told what the broker is told: each command, each timeout, each start, each crash. From the written
//! semantics alone it predicts every reply, refusal, delivery and closed stream, in their order, and
//! [`judges`](Oracle::judge) what the broker really says. It shares the words of `driftq-core` (commands, replies, names,
//! numbers) and none of its logic: no floors, runs, indices, alarms or records, only lists that are read from one end to
//! the other. What the two agree on was therefore understood twice.
//!
//! Not modelled: a log that refuses for want of room or has failed, and a call that finds more than 1,024 alarms due. Worlds
//! that go there must do without this witness; after a failed log it can go on with the crash that follows.

mod admin;
mod complete;
mod dead_letter;
mod describe;
mod dispatch;
mod effects;
mod expected;
mod model;
mod produce;
mod rollback;
mod settle;
mod streams;
mod timers;
mod topic;

use std::fmt;

use driftq_core::command::Command;
use driftq_core::types::{Limits, Ticket, Timestamp};
use driftq_core::{Output, Refusal};

pub use self::expected::Mismatch;
use self::expected::{Expected, judge};
use self::model::Model;
use self::rollback::{History, Input};

/// The naive broker and what it expects to hear from the real one.
#[derive(Clone, Debug)]
pub struct Oracle {
    model: Model,
    history: History,
}

impl Oracle {
    /// An oracle of a broker that has never been started.
    #[must_use]
    pub fn new(limits: &Limits) -> Self {
        let model = Model::new(limits);
        Self { history: History::new(&model), model }
    }

    /// The broker has started at `now`: its log is recovered, nobody is connected. Its boot record counts as one record.
    pub fn boot(&mut self, now: Timestamp) {
        self.take(Input::Boot(now));
    }

    /// The broker was asked `command` at `now` and gave `ticket` for it.
    pub fn command(&mut self, now: Timestamp, ticket: Ticket, command: &Command) {
        if self.model.closed {
            self.model.said.push_back(Expected::Reply { ticket, result: Err(Refusal::ShuttingDown) });
            return;
        }
        let changing = self.model.command(now, ticket, command).expect("without a crash there is fuel for everything");
        // A command that was refused, or only looked, did what passing time does and no more.
        self.history
            .note(&mut self.model, if changing { Input::Command(now, command.clone()) } else { Input::Timeout(now) });
    }

    /// The broker's `handle_timeout` was called at `now`.
    pub fn timeout(&mut self, now: Timestamp) {
        if !self.model.closed {
            self.take(Input::Timeout(now));
        }
    }

    /// The broker was told to close: commands are answered [`Refusal::ShuttingDown`] from now on, timeouts do nothing.
    pub fn close(&mut self) {
        self.model.closed = true;
    }

    /// How many records the log has had since it began, by this oracle's own count.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.model.records
    }

    /// The first `durable` records of the log survive any crash: how it came to them need no longer be remembered.
    pub fn durable(&mut self, durable: u64) {
        self.history.durable(durable);
    }

    /// The process died, and exactly the first `survived` records of the log are still there. A [`boot`](Self::boot) follows.
    ///
    /// # Panics
    /// If that is fewer than are known to be durable, or more than there were.
    pub fn crash(&mut self, survived: u64) {
        self.model = self.history.roll_back(&self.model, survived);
    }

    /// The broker gave this output.
    ///
    /// # Errors
    /// [`Mismatch`] if another one, or none, was to come next. The two are then out of step for good.
    pub fn judge(&mut self, output: &Output) -> Result<(), Mismatch> {
        judge(self.model.said.pop_front(), output)
    }

    /// How many outputs are still to come: they wait for a sync.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.model.said.len()
    }

    /// Forgets how it came to what it knows, if all of that, `durable` records, survives any crash. It answers as before.
    pub(crate) fn set_down(&mut self, durable: u64) {
        if self.model.records == durable {
            self.history.set_down(&mut self.model);
        }
    }

    /// Writes down what it knows, for [a fingerprint](crate::world::Fingerprint).
    pub(crate) fn canonical(&self, out: &mut impl fmt::Write) -> fmt::Result {
        self.model.canonical(out)?;
        self.history.canonical(out)
    }

    fn take(&mut self, input: Input) {
        self.model.run(&input).expect("without a crash there is fuel for everything");
        self.history.note(&mut self.model, input);
    }
}
