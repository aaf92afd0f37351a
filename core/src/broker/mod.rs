//! The broker: asked, never asking.
//!
//! Every call takes the time. Whatever is decided goes to the [`LogSink`] first, then into the state; answers and deliveries
//! wait inside until [`Broker::on_durable`] says that the log has synced what they rest on, and leave by
//! [`Broker::poll_output`].

mod canonical;
mod counters;
mod dispatch;
mod execute;
mod inspect;
mod timeouts;

use std::collections::VecDeque;

pub use self::counters::{Counters, DeadLetterCounts};
use crate::command::Command;
use crate::decide::{Decision, DecisionContext};
use crate::faults::{Faults, NoFaults};
use crate::index::Index;
use crate::record::{Event, Record};
use crate::reply::{Output, Overload, Refusal, Reply};
use crate::state::{Contradiction, State};
use crate::types::{Boot, ConsumerId, LeaseToken, Limits, Lsn, Millis, Ticket, Timestamp};

/// Where records go.
pub trait LogSink {
    /// Appends a record and says where it stands, or refuses it for want of room. A refusal has no effect.
    ///
    /// # Errors
    /// [`LogRefusal`] says why there is no room.
    fn append(&mut self, record: &Record, class: SpaceClass) -> Result<Lsn, LogRefusal>;
}

/// How badly a record is needed when room is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceClass {
    /// It adds to what is stored; refused first.
    Growth,
    /// It moves what is stored about: a delivery, a longer lease, the end of one. May draw on half of the reserve. Whoever consumes without
    /// ever finishing anything would else use up what finishing needs.
    Churn,
    /// It helps to drain what is stored; may draw on all of the reserve.
    Drain,
}

/// Why the log does not take a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogRefusal {
    /// The disk is full.
    #[error("storage is full")]
    Full,
    /// The next segment is not ready yet.
    #[error("the log is preparing room")]
    Busy,
    /// The record is longer than any record may be.
    #[error("the record is too long")]
    TooLong,
}

/// What went wrong with the log for good.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the log has failed: {0}")]
pub struct LogFault(pub String);

/// How long a broker without room in the log waits before it tries again by itself.
const STALL: Millis = Millis(100);

/// The state machine.
///
/// `F` is [`NoFaults`] but in simulations.
#[derive(Clone, Debug)]
pub struct Broker<F: Faults = NoFaults> {
    state: State,
    index: Index,
    limits: Limits,
    faults: F,
    now: Timestamp,
    /// The last position appended when something was last decided.
    appended: Lsn,
    durable: Lsn,
    held: VecDeque<(Lsn, Output)>,
    next_ticket: Ticket,
    next_consumer: ConsumerId,
    next_token: u64,
    stalled_until: Option<Timestamp>,
    failure: Option<LogFault>,
    closing: bool,
    counters: Counters,
    dead_letters: DeadLetterCounts,
}

impl<F: Faults> Broker<F> {
    /// A broker that goes on from `state`, whose records stand in the log up to `last` and are durable.
    ///
    /// Nothing may be asked of it before [`Broker::boot`]. Limits above their ceilings count as these.
    #[must_use]
    pub fn new(state: State, last: Lsn, limits: Limits, faults: F) -> Self {
        let now = state.clock();
        Self {
            // Sorted by the time of the boot, which is not known yet.
            index: Index::default(),
            state,
            limits: limits.within_ceilings(),
            faults,
            now,
            appended: last,
            durable: last,
            held: VecDeque::new(),
            next_ticket: Ticket(0),
            next_consumer: ConsumerId(1),
            next_token: 0,
            stalled_until: None,
            failure: None,
            closing: false,
            counters: Counters::default(),
            dead_letters: DeadLetterCounts::new(),
        }
    }

    /// Starts serving: the boot record goes first, so that no token of this boot can be seen before the boot is durable.
    ///
    /// # Errors
    /// [`LogRefusal`] if the log has no room even for that.
    pub fn boot(&mut self, now: Timestamp, log: &mut impl LogSink) -> Result<(), LogRefusal> {
        self.now = self.now.max(now);
        self.commit(Event::Booted { boot: self.state.boot().next() }, SpaceClass::Drain, log)?;
        self.index = Index::rebuild(&self.state, self.now);
        Ok(())
    }

    /// Decides `command` at `now`. The reply comes by [`Broker::poll_output`] under the ticket, once it is safe to give.
    ///
    /// A `now` earlier than one seen before counts as that one: time never runs backwards in here.
    pub fn handle(&mut self, now: Timestamp, command: Command, log: &mut impl LogSink) -> Ticket {
        let ticket = self.next_ticket;
        self.next_ticket = ticket.next();
        if self.failure.is_some() {
            self.hold(Output::Reply { ticket, result: Err(Refusal::LogFailed) });
            return ticket;
        }
        if self.closing {
            self.hold(Output::Reply { ticket, result: Err(Refusal::ShuttingDown) });
            return ticket;
        }
        self.advance(now, log);
        let result = self.execute(command, log);
        self.hold(Output::Reply { ticket, result });
        self.dispatch(log);
        ticket
    }

    /// Does what has come due by `now`. Call it at the moment [`Broker::poll_timeout`] names, or later.
    pub fn handle_timeout(&mut self, now: Timestamp, log: &mut impl LogSink) {
        if self.failure.is_none() && !self.closing {
            self.advance(now, log);
            self.dispatch(log);
        }
    }

    /// A sync has finished: everything up to `through` is on the disk.
    pub fn on_durable(&mut self, through: Lsn) {
        assert!(through <= self.appended, "only what was appended can be durable");
        self.durable = self.durable.max(through);
    }

    /// The log has failed for good. Whatever was held is answered with [`Refusal::LogFailed`]; deliveries are dropped; nothing
    /// more is accepted.
    pub fn on_log_failed(&mut self, cause: LogFault) {
        if self.failure.is_some() {
            return;
        }
        self.failure = Some(cause);
        let durable = self.durable;
        let held = std::mem::take(&mut self.held);
        self.held = held
            .into_iter()
            .filter_map(|(lsn, output)| match output {
                output if lsn <= durable => Some((lsn, output)),
                Output::Reply { ticket, .. } => {
                    Some((Lsn(0), Output::Reply { ticket, result: Err(Refusal::LogFailed) }))
                }
                Output::Deliver { .. } | Output::Closed { .. } => None,
            })
            .collect();
    }

    /// The next output that is safe to give.
    pub fn poll_output(&mut self) -> Option<Output> {
        let (decided_at, output) = self.held.front()?;
        if !self.faults.is_releasable(output, *decided_at, self.durable) {
            return None;
        }
        self.held.pop_front().map(|(_, output)| output)
    }

    /// When [`Broker::handle_timeout`] wants to be called; now or earlier means at once.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        if self.failure.is_some() || self.closing {
            return None;
        }
        let work = self.index.has_work().then_some(self.now);
        let next = work.into_iter().chain(self.index.timers.next()).min();
        match self.stalled_until {
            Some(until) => next.map(|next| next.max(until)),
            None => next,
        }
    }

    /// Whether what has come due waits, because the log had no room for it.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        self.stalled_until.is_some()
    }

    /// The durable state, to look at.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The limits in force.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The time inside.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// The last position appended.
    #[must_use]
    pub fn appended(&self) -> Lsn {
        self.appended
    }

    /// The last position known to be durable.
    #[must_use]
    pub fn durable(&self) -> Lsn {
        self.durable
    }

    /// Why nothing is accepted any more, if so.
    #[must_use]
    pub fn failure(&self) -> Option<&LogFault> {
        self.failure.as_ref()
    }

    /// What has happened since the start.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Dead letters since the start, of topics that are still there.
    #[must_use]
    pub fn dead_lettered(&self) -> &DeadLetterCounts {
        &self.dead_letters
    }

    /// How many streams are connected.
    #[must_use]
    pub fn consumer_count(&self) -> usize {
        self.index.consumers.len()
    }

    /// How many outputs wait for a sync or to be polled.
    #[must_use]
    pub fn held_len(&self) -> usize {
        self.held.len()
    }

    /// The planted fault, for whoever drives this broker.
    pub fn faults(&self) -> &F {
        &self.faults
    }

    /// Nothing is accepted any more; what was decided still leaves when it is durable.
    pub(crate) fn close(&mut self) {
        self.closing = true;
    }

    fn hold(&mut self, output: Output) {
        let lsn = if self.failure.is_some() { Lsn(0) } else { self.appended };
        self.held.push_back((lsn, output));
    }

    fn advance(&mut self, now: Timestamp, log: &mut impl LogSink) {
        self.now = self.now.max(now);
        if self.stalled_until.is_some_and(|until| until <= self.now) {
            self.stalled_until = None;
        }
        self.run_due(log);
        self.index.reclaim();
    }

    /// Appends a record and, if the log takes it, applies it.
    fn commit(&mut self, event: Event, class: SpaceClass, log: &mut impl LogSink) -> Result<(), LogRefusal> {
        let Some(event) = self.faults.decided(&self.state, self.now, event) else { return Ok(()) };
        let record = Record { at: self.now, event };
        let lsn = log.append(&record, class).inspect_err(|_| self.counters.refused += 1)?;
        assert!(lsn > self.appended, "the log's positions rise");
        self.counters.count(&record.event);
        counters::count_dead_letter(&mut self.dead_letters, &self.state, &record.event);
        self.appended = lsn;
        self.apply(&record);
        Ok(())
    }

    fn apply(&mut self, record: &Record) {
        let applied = self.faults.apply_indexed(&mut self.state, &mut self.index, record);
        if let Err(Contradiction(why)) = applied {
            unreachable!("a record decided against this state contradicts it: {why}: {record:?}");
        }
    }

    /// What a decision made now depends on.
    fn context(&self) -> DecisionContext<'_, F> {
        DecisionContext { state: &self.state, limits: &self.limits, now: self.now, faults: &self.faults }
    }

    /// [`Broker::commit`] on behalf of a command.
    fn commit_for(&mut self, event: Event, class: SpaceClass, log: &mut impl LogSink) -> Result<(), Refusal> {
        self.commit(event, class, log).map_err(|refusal| match refusal {
            LogRefusal::Full => Refusal::StorageFull,
            LogRefusal::Busy => Refusal::Overloaded { reason: Overload::Log, retry_after: self.limits.retry_after },
            LogRefusal::TooLong => Refusal::Invalid("the record would be too long for the log"),
        })
    }

    /// The log has no room: what the broker does by itself waits a little.
    fn stall(&mut self) {
        self.stalled_until = Some(self.now.after(STALL));
    }

    fn next_token(&mut self) -> LeaseToken {
        let boot = self.state.boot();
        assert!(boot > Boot(0), "a broker boots before it serves");
        self.next_token += 1;
        LeaseToken { boot, counter: self.next_token }
    }

    fn answer(&mut self, decision: Decision, class: SpaceClass, log: &mut impl LogSink) -> Result<Reply, Refusal> {
        if let Some(event) = decision.event {
            self.commit_for(event, class, log)?;
        }
        Ok(decision.reply)
    }
}
