//! The oracle: a second, deliberately naive broker that predicts every output of the real one.
//!
//! The [`Oracle`] gets the same inputs as the broker: commands, timeouts, starts and crashes, and what its log had no
//! space for. From the specification alone it predicts every reply, refusal, delivery and closed stream, in order, and
//! [compares](Oracle::compare) them with the actual outputs. It uses the types of `driftq-core` (commands, replies,
//! names, ids) and none of its logic: no floors, runs, indices, timers or records, only lists that are scanned. What
//! both agree on was therefore implemented twice.

mod admin;
mod clock;
mod complete;
mod dead_letter;
mod departed;
mod describe;
mod dispatch;
mod due;
mod effect;
mod effects;
mod execute;
mod expected;
mod lease;
mod losses;
mod model;
mod order;
mod produce;
mod release;
mod rollback;
mod room;
mod settle;
mod stream;
mod subscribe;
mod timers;
mod topic;
mod unanswered;
mod waiting;
mod wall_clock;
mod winners;

use std::fmt;
use std::sync::Arc;

use driftq_core::command::Command;
use driftq_core::pipeline::RefusedAppend;
use driftq_core::types::{
    ERROR_TEXT_BYTES_CEILING, Limits, MESSAGE_BYTES_CEILING, Now, PARTITIONS_CEILING, PayloadId, RESULT_BYTES_CEILING,
    Ticket, Timestamp,
};
use driftq_core::{Output, Refusal};

pub use self::expected::Mismatch;
use self::expected::{Expected, compare};
pub use self::losses::Damaged;
pub(crate) use self::losses::left_of;
use self::model::{Input, Model, Reclaim};
use self::rollback::InputHistory;
use self::waiting::Left;
pub use self::waiting::{MessagePlace, PayloadOf};

/// The naive broker and its predictions.
#[derive(Clone, Debug)]
pub struct Oracle {
    model: Model,
    history: InputHistory,
    /// Those of the next start.
    limits: Arc<Limits>,
    /// The records that the log refuses in the next call.
    refused: Vec<RefusedAppend>,
    segment: NextSegment,
    /// When retained messages are removed, on the monotonic clock, since the disk has no space for another segment.
    reclaim_at: Option<Timestamp>,
}

/// The segment after the current one, as far as the disk shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextSegment {
    /// It may exist or not.
    Unknown,
    /// The disk had no space for the smallest one.
    NoSpace,
}

impl Oracle {
    /// The oracle of a broker that was never started.
    #[must_use]
    pub fn new(limits: &Limits) -> Self {
        let limits = within_ceilings(limits);
        let model = Model::new(limits.clone());
        let history = InputHistory::new(&model);
        Self { model, history, limits, refused: Vec::new(), segment: NextSegment::Unknown, reclaim_at: None }
    }

    /// The next start has these limits.
    pub fn configure(&mut self, limits: &Limits) {
        self.limits = within_ceilings(limits);
    }

    /// The broker started at `now` with no streams. Its boot record counts as one record.
    pub fn boot(&mut self, now: impl Into<Now>) {
        self.execute(Input::Boot(now.into(), self.limits.clone()));
    }

    /// In the next call ([`command`](Self::command), [`timeout`](Self::timeout), [`rebase`](Self::rebase)) the log
    /// refuses these records.
    pub fn refuse(&mut self, refused: &[RefusedAppend]) {
        self.refused.clear();
        self.refused.extend_from_slice(refused);
    }

    /// Whether the refusals of the last call were those of its records.
    ///
    /// # Errors
    /// [`Mismatch`] if the log refused a record of another class, or more records than the call appends.
    pub fn compare_refusals(&self) -> Result<(), Mismatch> {
        let unexpected = |error: room::RoomError| Mismatch {
            expected: "the refusal of a record of this call".to_owned(),
            found: error.to_string(),
        };
        self.model.room.check().map_err(unexpected)
    }

    /// The driver began to create the next segment, or has created it (`NextSegment::Unknown`), or the disk had no
    /// space for it at `now`.
    pub fn next_segment(&mut self, now: Now, segment: NextSegment) {
        self.segment = segment;
        if segment == NextSegment::NoSpace {
            self.reclaim_at = Some(now.mono);
        }
    }

    /// The log has failed: what waits for a sync is refused or lost, and every later command is refused.
    pub fn fail(&mut self) {
        if !self.model.failed {
            self.model.fail();
        }
    }

    /// The broker got `command` at `now` and returned `ticket`.
    pub fn command(&mut self, now: impl Into<Now>, ticket: Ticket, command: &Command) {
        let refused = std::mem::take(&mut self.refused);
        if self.model.failed || self.model.closed {
            let refusal = if self.model.failed { Refusal::LogFailed } else { Refusal::ShuttingDown };
            self.model.expect(Expected::Reply { ticket, result: Err(refusal) });
            return;
        }
        let now = now.into();
        let is_change =
            self.model.command(now, ticket, command, refused.clone()).expect("without a crash the log does not end");
        // A refused command or a query does no more than a timeout.
        let input = match is_change {
            true => Input::Command(now, command.clone(), refused),
            false => Input::Query(now),
        };
        self.history.note(&mut self.model, input);
    }

    /// The broker's `handle_timeout` was called at `now`.
    pub fn timeout(&mut self, now: impl Into<Now>) {
        let (now, refused) = (now.into(), std::mem::take(&mut self.refused));
        if self.model.failed || self.model.closed {
            return;
        }
        let is_due = self.reclaim_at.take_if(|at| *at <= now.mono).is_some();
        let reclaims = is_due && self.segment == NextSegment::NoSpace;
        let reclaim = if reclaims { Reclaim::Yes } else { Reclaim::No };
        let waiting = if self.model.has_unrecorded_losses() { self.model.waiting() } else { Vec::new() };
        self.execute(Input::Timeout(now, refused, reclaim, waiting));
        if reclaims && self.model.has_more_to_reclaim {
            self.reclaim_at = Some(now.mono);
        }
    }

    /// The broker's wall clock was rebased at `now`.
    pub fn rebase(&mut self, now: impl Into<Now>) {
        let refused = std::mem::take(&mut self.refused);
        self.execute(Input::Rebase(now.into(), refused));
    }

    /// Cleaning has written payloads again at `now`, each by a record of its own: no decision depends on it. Something
    /// that refers to each has to be named where records are found [damaged](Oracle::damaged).
    pub fn relocated(&mut self, now: Now, payloads: Vec<Option<PayloadOf>>) {
        if !payloads.is_empty() {
            self.execute(Input::Relocated(now, payloads));
        }
    }

    /// Records were found at `now` that cannot be read any more.
    pub fn damaged(&mut self, now: Now, damaged: Vec<Damaged>) {
        let refused = std::mem::take(&mut self.refused);
        if !self.model.failed && !self.model.closed && !damaged.is_empty() {
            let waiting = self.model.waiting();
            self.execute(Input::Damaged(now, refused, damaged, waiting));
        }
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

    /// The last call has ended. `missing` names a payload, unless it is in memory: outputs of the call
    /// that contain it wait for a read once they are synced. Without this they wait for no read.
    pub fn call_ended(&mut self, missing: impl Fn(&PayloadOf) -> Option<PayloadId>) {
        self.model.call_ended(missing);
    }

    /// The payloads that outputs lack: of these [`Oracle::synced`] asks which are in memory.
    pub fn lacking(&self) -> impl Iterator<Item = PayloadId> {
        self.model.lacking()
    }

    /// The first `durable` records are synced, which will be reported next; whether payloads are in memory then.
    pub fn synced(&mut self, durable: u64, is_cached: impl Fn(PayloadId) -> bool) {
        self.model.set_aside(durable, is_cached);
    }

    /// A sync was reported at `now`: the first `durable` records are durable.
    pub fn release(&mut self, now: Now, durable: u64) {
        self.model.durable = durable;
        let waiting = self.model.waiting_deliveries();
        self.execute(Input::Release(now, durable, waiting));
        if self.model.awaits_loss() {
            let left = self.model.leave();
            self.left(Some(now), left);
        }
    }

    /// A read has brought payloads at `now`.
    pub fn brought(&mut self, now: Now, payloads: &[PayloadId]) {
        let left = self.model.fill(payloads);
        self.left(Some(now), left);
    }

    /// Cleaning has added payloads to the outputs that are not synced.
    pub fn filled_unsynced(&mut self, payloads: &[PayloadId]) {
        self.model.fill_unsynced(payloads);
    }

    /// The segments of payloads are removed, since nothing refers to them.
    pub fn gone(&mut self, payloads: &[PayloadId]) {
        let left = self.model.give_up(payloads);
        self.left(None, left);
    }

    fn left(&mut self, now: Option<Now>, left: Left) {
        self.execute(Input::NotDelivered(left.dropped));
        self.execute(Input::Leave(now, left.tokens));
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
        (self.segment, self.reclaim_at) = (NextSegment::Unknown, None);
    }

    /// The broker released this output.
    ///
    /// # Errors
    /// [`Mismatch`] if another output, or none, was expected. The oracle cannot continue after that.
    pub fn compare(&mut self, output: &Output) -> Result<(), Mismatch> {
        let next = self.model.outputs.iter().position(|pending| !pending.is_waiting);
        let next = next.and_then(|next| self.model.outputs.remove(next));
        compare(next.map(|pending| pending.expected), output)
    }

    /// The monotonic time at which the broker's `handle_timeout` must be called at the latest; `None` if nothing is
    /// due.
    #[must_use]
    pub fn next_due(&self) -> Option<Timestamp> {
        self.model.next_due()
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
        let Self { model, history, limits: _, refused: _, segment, reclaim_at } = self;
        write!(out, "{segment:?} {reclaim_at:?} ")?;
        model.canonical(out)?;
        history.canonical(out)
    }

    fn execute(&mut self, input: Input) {
        self.model.run(&input).expect("without a crash the log does not end");
        self.history.note(&mut self.model, input);
    }
}

fn within_ceilings(limits: &Limits) -> Arc<Limits> {
    Arc::new(Limits {
        message_bytes_max: limits.message_bytes_max.min(MESSAGE_BYTES_CEILING),
        error_text_bytes_max: limits.error_text_bytes_max.min(ERROR_TEXT_BYTES_CEILING),
        result_bytes_max: limits.result_bytes_max.min(RESULT_BYTES_CEILING),
        partitions_max: limits.partitions_max.min(PARTITIONS_CEILING),
        ..limits.clone()
    })
}
