//! The oracle: a second, deliberately naive broker that predicts every output of the real one.
//!
//! The [`Oracle`] gets the same inputs as the broker: commands, timeouts, starts and crashes. From the specification
//! alone it predicts every reply, refusal, delivery and closed stream, in order, and [compares](Oracle::compare) them
//! with the actual outputs. It uses the types of `driftq-core` (commands, replies, names, ids) and none of its logic:
//! no floors, runs, indices, timers or records, only lists that are scanned. What both agree on was therefore
//! implemented twice.
//!
//! Not modelled: a log that refuses for lack of space or has failed, and a call with more than 1,024 due timers. Such a
//! world continues without the oracle; after a log failure the oracle can continue with the crash that follows.

mod admin;
mod clock;
mod complete;
mod dead_letter;
mod departed;
mod describe;
mod dispatch;
mod effect;
mod effects;
mod execute;
mod expected;
mod lease;
mod model;
mod order;
mod produce;
mod release;
mod rollback;
mod settle;
mod stream;
mod subscribe;
mod timers;
mod topic;
mod unanswered;
mod wall_clock;
mod winners;

use std::fmt;

use driftq_core::command::Command;
use driftq_core::types::{Limits, Now, Ticket};
use driftq_core::{Output, Refusal};

pub use self::expected::Mismatch;
use self::expected::{Expected, compare};
use self::model::{Input, Model};
use self::rollback::InputHistory;

/// The naive broker and its predictions.
#[derive(Clone, Debug)]
pub struct Oracle {
    model: Model,
    history: InputHistory,
}

impl Oracle {
    /// The oracle of a broker that was never started.
    #[must_use]
    pub fn new(limits: &Limits) -> Self {
        let model = Model::new(limits);
        Self { history: InputHistory::new(&model), model }
    }

    /// The broker started at `now` with no streams. Its boot record counts as one record.
    pub fn boot(&mut self, now: impl Into<Now>) {
        self.execute(Input::Boot(now.into()));
    }

    /// The broker got `command` at `now` and returned `ticket`.
    pub fn command(&mut self, now: impl Into<Now>, ticket: Ticket, command: &Command) {
        if self.model.closed {
            self.model.outputs.push_back(Expected::Reply { ticket, result: Err(Refusal::ShuttingDown) });
            return;
        }
        let now = now.into();
        let is_change = self.model.command(now, ticket, command).expect("without a crash the log does not end");
        // A refused command or a query does no more than a timeout.
        self.history
            .note(&mut self.model, if is_change { Input::Command(now, command.clone()) } else { Input::Timeout(now) });
    }

    /// The broker's `handle_timeout` was called at `now`.
    pub fn timeout(&mut self, now: impl Into<Now>) {
        if !self.model.closed {
            self.execute(Input::Timeout(now.into()));
        }
    }

    /// The broker's wall clock was rebased at `now`.
    pub fn rebase(&mut self, now: impl Into<Now>) {
        self.execute(Input::Rebase(now.into()));
    }

    /// The broker is shutting down: commands are refused with [`Refusal::ShuttingDown`] and timeouts do nothing.
    pub fn close(&mut self) {
        self.model.closed = true;
    }

    /// The number of records in the log, by this oracle's own count.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.model.records
    }

    /// A sync was reported at `now`: the first `durable` records are durable.
    pub fn release(&mut self, now: Now, durable: u64) {
        self.execute(Input::Release(now, durable));
    }

    /// The first `durable` records survive any crash, so the inputs behind them need not be kept.
    pub fn durable(&mut self, durable: u64) {
        self.history.durable(durable);
    }

    /// The process crashed and exactly the first `survived` records of the log are left. A [`boot`](Self::boot)
    /// follows.
    ///
    /// # Panics
    /// If that is fewer than the durable ones, or more than there were.
    pub fn crash(&mut self, survived: u64) {
        self.model = self.history.roll_back(&self.model, survived);
    }

    /// The broker released this output.
    ///
    /// # Errors
    /// [`Mismatch`] if another output, or none, was expected. The oracle cannot continue after that.
    pub fn compare(&mut self, output: &Output) -> Result<(), Mismatch> {
        compare(self.model.outputs.pop_front(), output)
    }

    /// The number of expected outputs that wait for a sync.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.model.outputs.len()
    }

    /// Drops the input history, if all records are among the `durable` ones. Behaviour does not change.
    pub(crate) fn checkpoint(&mut self, durable: u64) {
        if self.model.records == durable {
            self.history.checkpoint(&mut self.model);
        }
    }

    /// Writes its state for [a fingerprint](crate::world::Fingerprint).
    pub(crate) fn canonical(&self, out: &mut impl fmt::Write) -> fmt::Result {
        self.model.canonical(out)?;
        self.history.canonical(out)
    }

    fn execute(&mut self, input: Input) {
        self.model.run(&input).expect("without a crash the log does not end");
        self.history.note(&mut self.model, input);
    }
}
