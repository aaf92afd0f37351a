//! Broker state machine. Performs no I/O and reads no clock.
//!
//! Every decision is appended to the [`LogSink`] and then applied to the state. Outputs are held until
//! [`Broker::on_durable`] reports that the records they depend on are synced; [`Broker::poll_output`] returns them.

mod access;
mod canonical;
mod cleaning;
mod clock;
mod counters;
mod dispatch;
mod execute;
mod inspect;
mod losses;
mod outputs;
mod payload_cache;
mod payloads;
mod read_ahead;
mod retention;
mod timeouts;

use std::collections::VecDeque;

pub(crate) use self::cleaning::Cleaned;
use self::clock::ClockOrigin;
pub use self::counters::{Counters, DeadLetterCounts};
pub use self::losses::Damaged;
use self::outputs::{Dropped, Outputs};
use self::payload_cache::PayloadCache;
use self::read_ahead::ReadAhead;
use crate::command::Command;
use crate::decide::{Aside, Decision, DecisionContext};
use crate::faults::{Faults, NoFaults};
use crate::index::Index;
use crate::index::contents::IndexContents;
use crate::record::{EffectBegun, Event, Record};
use crate::reply::{Output, Overload, Refusal, Reply};
use crate::state::{Contradiction, State};
use crate::types::{Boot, Caller, ConsumerId, LeaseToken, Limits, Lsn, Millis, Now, PayloadId, Ticket, Timestamp};

/// The log to which a broker appends its records.
pub trait LogSink {
    /// Appends a record and returns its LSN, one more than that of the record before. A refusal has no effect.
    ///
    /// # Errors
    /// [`LogRefusal`] if the log has no space for the record.
    fn append(&mut self, record: &Record, class: SpaceClass) -> Result<Lsn, LogRefusal>;
}

/// Which part of the log's reserve a record may use when the disk is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceClass {
    /// The record adds stored data; it may not use the reserve.
    Growth,
    /// The record changes a lease; it may use half of the reserve. The other half is for acks: consumers that never ack
    /// must not exhaust it.
    Churn,
    /// The broker cannot drain without the record: acks, nacks, deletions, changes of a group. It may use the whole
    /// reserve.
    Drain,
}

/// Why the log refused a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LogRefusal {
    /// The disk is full.
    #[error("storage is full")]
    Full,
    /// The next segment is not ready yet.
    #[error("the log is preparing room")]
    Busy,
    /// The state has reached the bound on its memory, and the record would make it grow.
    #[error("the broker holds as much in memory as it may")]
    Memory,
    /// The record exceeds the size of a frame or of a segment.
    #[error("the record is too long")]
    TooLong,
}

/// A permanent failure of the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the log has failed: {0}")]
pub struct LogFault(pub String);

/// How long timers and dispatch pause after the log refused a record.
const STALL: Millis = Millis(100);

/// The broker state machine.
///
/// [`Pipeline`](crate::Pipeline) combines it with a log. `F` is [`NoFaults`] except in simulations.
#[derive(Clone, Debug)]
pub struct Broker<F: Faults = NoFaults> {
    state: State,
    index: Index,
    limits: Limits,
    faults: F,
    /// Broker time.
    now: Timestamp,
    origin: ClockOrigin,
    /// When to compare wall time with the wall clock again, if they differed when the last adjustment was recent.
    check_clock_at: Option<Timestamp>,
    /// The broker time and the wall clock when they were last found in step, until an adjustment.
    in_step_at: Option<(Timestamp, Timestamp)>,
    /// The LSN of the last record.
    appended: Lsn,
    durable: Lsn,
    outputs: Outputs,
    payloads: PayloadCache,
    read_ahead: ReadAhead,
    next_ticket: Ticket,
    next_consumer: ConsumerId,
    next_token: u64,
    stalled_until: Option<Timestamp>,
    failure: Option<LogFault>,
    closing: bool,
    /// Counts changes of keys and tenants.
    access_generation: u64,
    counters: Counters,
    dead_letters: DeadLetterCounts,
    /// Records that cannot be read any more, and whose payloads are not recorded as lost yet.
    damaged: VecDeque<Damaged>,
    /// Deliveries whose payload is lost; the messages are not dead-lettered yet.
    dropped: VecDeque<Dropped>,
}

impl<F: Faults> Broker<F> {
    /// A broker that continues from `state`, the result of the durable records up to `last`.
    ///
    /// [`Broker::boot`] must be called first. Limits above their ceilings count as the ceilings. At most
    /// `payload_bytes_max` bytes of payloads stay in memory, beside those that are not synced or that outputs wait for.
    #[must_use]
    pub fn new(state: State, last: Lsn, limits: Limits, payload_bytes_max: u64, faults: F) -> Self {
        let now = state.clock();
        Self {
            // Rebuilt by `boot`, since it depends on the time.
            index: Index::default(),
            state,
            limits: limits.within_ceilings(),
            faults,
            now,
            origin: ClockOrigin::default(),
            check_clock_at: None,
            in_step_at: None,
            appended: last,
            durable: last,
            outputs: Outputs::default(),
            payloads: PayloadCache::new(payload_bytes_max),
            read_ahead: ReadAhead::new(0, payload_bytes_max),
            next_ticket: Ticket(0),
            next_consumer: ConsumerId(1),
            next_token: 0,
            stalled_until: None,
            failure: None,
            closing: false,
            access_generation: 0,
            counters: Counters::default(),
            dead_letters: DeadLetterCounts::new(),
            damaged: VecDeque::new(),
            dropped: VecDeque::new(),
        }
    }

    /// Appends the boot record. Call it once, before any other call: the boot record is then durable before a lease
    /// token of this boot leaves.
    ///
    /// # Errors
    /// [`LogRefusal`] if the log has no space for the record.
    pub fn boot(&mut self, now: impl Into<Now>, log: &mut dyn LogSink) -> Result<(), LogRefusal> {
        self.start_clock(now.into());
        self.commit(Event::Booted { boot: self.state.boot().next() }, SpaceClass::Drain, log)?;
        self.index = Index::rebuild(&self.state, &self.limits, self.now);
        Ok(())
    }

    /// Decides `command` of the program itself at `now`. [`Broker::poll_output`] returns the reply with this ticket
    /// once it is durable.
    ///
    /// A monotonic time before an earlier one counts as that one.
    pub fn handle(&mut self, now: impl Into<Now>, mut command: Command, log: &mut dyn LogSink) -> Ticket {
        self.handle_in_place(now.into(), &Caller::TRUSTED, &mut command, log)
    }

    /// As [`Broker::handle`], of a `caller`, and of a command that stays where it is: it is large.
    #[inline]
    pub(crate) fn handle_in_place(
        &mut self,
        now: Now,
        caller: &Caller,
        command: &mut Command,
        log: &mut dyn LogSink,
    ) -> Ticket {
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
        self.execute_for(ticket, caller, command, log);
        self.dispatch(log);
        self.set_unread_aside();
        self.limit_winners(log);
        self.limit_retained(log);
        ticket
    }

    /// Fires the timers due at `now` and dispatches. Call it at the time that [`Broker::poll_timeout`] returns, or
    /// later.
    pub fn handle_timeout(&mut self, now: impl Into<Now>, log: &mut dyn LogSink) {
        if self.failure.is_none() && !self.closing {
            self.advance(now.into(), log);
            self.lose_damaged(log);
            self.dispatch(log);
            self.set_unread_aside();
            self.limit_winners(log);
            // Not with commands, which would take that much longer.
            self.index.reclaim();
            self.limit_retained(log);
        }
    }

    /// Reports at `now` that the log is synced through `through`. Releases the outputs that depend on it; the leases of
    /// deliveries and grants among them run from `now`.
    ///
    /// # Panics
    /// If `through` is beyond the last record.
    pub fn on_durable(&mut self, now: impl Into<Now>, through: Lsn) {
        assert!(through <= self.appended, "only appended records can be durable");
        let now = self.now.max(self.time_at(now.into().mono));
        let released_at = self.faults.released_at(self.now, now);
        self.now = now;
        self.durable = self.durable.max(through);
        self.set_unread_aside();
        self.payloads.evict(self.faults.evicts_through(self.durable, self.appended));
        self.index.release(self.durable, released_at);
        let recipients = self.outputs.take_lost();
        self.release_filled(recipients);
    }

    /// Reports that the log has failed permanently. Held replies become [`Refusal::LogFailed`], held deliveries are
    /// dropped, and every later command is refused.
    pub fn on_log_failed(&mut self, cause: LogFault) {
        if self.failure.is_some() {
            return;
        }
        self.failure = Some(cause);
        self.outputs.fail(self.durable);
    }

    /// The next output whose records are durable and whose bytes are read; of these the one that was decided first.
    pub fn poll_output(&mut self) -> Option<Output> {
        let (faults, durable) = (self.faults, self.durable);
        self.outputs.pop(|output, decided_at| faults.is_releasable(output, decided_at, durable))
    }

    /// The monotonic time at which to call [`Broker::handle_timeout`]; a time that has passed means at once. `None` if
    /// nothing is scheduled.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        let frees = self.index.has_deleted() && self.failure.is_none() && !self.closing;
        let free_at = frees.then(|| self.may_act_at(self.now));
        [self.next_change(), free_at].into_iter().flatten().min()
    }

    /// The monotonic time from which on a call changes more than its command does: as [`Broker::poll_timeout`], without
    /// the calls that only free memory.
    #[must_use]
    pub fn next_change(&self) -> Option<Timestamp> {
        if self.failure.is_some() || self.closing {
            return None;
        }
        let has_excess = self.excess_winners() > 0 || self.excess_retained() > 0 || self.has_unrecorded_losses();
        let has_work = self.index.has_work() || has_excess || self.index.departed.first_due().is_some();
        let work = has_work.then_some(self.now);
        let grant = self.index.leases.grants.next_check();
        let wall = self.index.timers.next_wall().map(|wall| self.state.wall_clock().reaches(wall));
        let expiry = self.index.key_streams.next_expiry();
        let times = [work, self.index.timers.next(), grant, wall, self.check_clock_at, expiry];
        times.into_iter().flatten().min().map(|next| self.may_act_at(next))
    }

    /// `at` as monotonic time, or when timers and dispatch go on.
    fn may_act_at(&self, at: Timestamp) -> Timestamp {
        self.origin.mono_at(self.stalled_until.map_or(at, |until| at.max(until)))
    }

    /// Whether timers and dispatch are paused because the log refused a record.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        self.stalled_until.is_some()
    }

    /// The state after the last record, durable or not.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The limits in force.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Broker time: never before the last record, and advanced by every call.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Whether deliveries to a consumer, or what follows them, wait for bytes that are not in memory.
    #[must_use]
    pub fn awaits_bytes(&self, consumer: ConsumerId) -> bool {
        self.outputs.awaits_bytes(consumer)
    }

    /// The LSN of the last appended record.
    #[must_use]
    pub fn appended(&self) -> Lsn {
        self.appended
    }

    /// The LSN through which the log is known to be synced.
    #[must_use]
    pub fn durable(&self) -> Lsn {
        self.durable
    }

    /// The failure of the log, if it has failed.
    #[must_use]
    pub fn failure(&self) -> Option<&LogFault> {
        self.failure.as_ref()
    }

    /// The counters since the start.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The dead letters since the start, by topic and reason, without deleted topics.
    #[must_use]
    pub fn dead_lettered(&self) -> &DeadLetterCounts {
        &self.dead_letters
    }

    /// The number of connected consumers.
    #[must_use]
    pub fn consumer_count(&self) -> usize {
        self.index.consumers.len()
    }

    /// The number of outputs that are held or not polled yet.
    #[must_use]
    pub fn held_len(&self) -> usize {
        self.outputs.len()
    }

    /// The contents of the index, for a check that recounts them from the state. Reads all of it.
    #[must_use]
    pub fn index_contents(&self) -> IndexContents {
        self.index.contents()
    }

    /// The planted fault.
    pub(crate) fn faults(&self) -> &F {
        &self.faults
    }

    /// Refuses every later command; held outputs still leave once they are durable.
    pub(crate) fn close(&mut self) {
        self.closing = true;
    }

    fn hold(&mut self, output: Output) {
        let decided_at = if self.failure.is_some() { Lsn(0) } else { self.appended };
        self.outputs.hold(decided_at, output);
    }

    fn advance(&mut self, now: Now, log: &mut dyn LogSink) {
        self.now = self.now.max(self.time_at(now.mono));
        if self.stalled_until.is_some_and(|until| until <= self.now) {
            self.stalled_until = None;
        }
        self.adjust_wall_clock(now.wall, log);
        self.check_grants(log);
        self.close_expired_streams(log);
        self.fire_due_timers(log);
        self.delete_departed_groups(log);
    }

    /// Appends a record and applies it, unless the log refuses it.
    fn commit(&mut self, event: Event, class: SpaceClass, log: &mut dyn LogSink) -> Result<(), LogRefusal> {
        self.commit_decided_record(&mut Record { at: self.now, event }, class, log)
    }

    /// As [`Broker::commit`], of a record decided now.
    fn commit_decided_record(
        &mut self,
        record: &mut Record,
        class: SpaceClass,
        log: &mut dyn LogSink,
    ) -> Result<(), LogRefusal> {
        match self.faults.decided(&self.state, self.now, &mut record.event) {
            true => self.commit_record(record, class, log),
            false => Ok(()),
        }
    }

    fn commit_record(&mut self, record: &Record, class: SpaceClass, log: &mut dyn LogSink) -> Result<(), LogRefusal> {
        let class = self.faults.space_class(&record.event, class);
        let lsn = log.append(record, class).inspect_err(|_| {
            self.counters.refused += 1;
            self.faults.refused(&mut self.index, &record.event);
        })?;
        assert_eq!(lsn, self.appended.next(), "LSNs have no gaps");
        self.faults.count(&mut self.counters, &record.event);
        if self.faults.counts_dead_letters(&record.event) {
            counters::count_dead_letter(&mut self.dead_letters, &self.state, &record.event);
        }
        self.appended = lsn;
        if record.event.has_bodies() {
            self.cache_written(lsn, &record.event);
        }
        self.access_generation += u64::from(access::changes_access(&record.event));
        self.state.continue_behind(Lsn(lsn.0 - 1));
        self.apply(record);
        Ok(())
    }

    /// Adds the payloads of an event to the cache, which was just appended as the record `lsn`.
    fn cache_written(&mut self, lsn: Lsn, event: &Event) {
        if let Event::Produced { body, .. } = event {
            return self.payloads.insert_written(PayloadId { lsn, part: 0 }, body.clone(), false);
        }
        let has_result = event.result().is_some();
        for (part, body) in event.bodies() {
            let payload = PayloadId { lsn, part };
            match event {
                Event::Relocated(_) => self.payloads.insert_relocated(self.faults.cached_as(payload), body),
                _ => self.payloads.insert_written(payload, body.into_kept(), has_result && part == 0),
            }
        }
    }

    fn apply(&mut self, record: &Record) {
        let applied = self.faults.apply_indexed(&mut self.state, &mut self.index, record);
        if let Err(Contradiction(why)) = applied {
            unreachable!("a record contradicts the state it was decided against: {why}: {record:?}");
        }
    }

    /// The context of a decision made now.
    fn context(&self) -> DecisionContext<'_, F> {
        DecisionContext {
            state: &self.state,
            index: &self.index,
            limits: &self.limits,
            now: self.now,
            faults: &self.faults,
        }
    }

    /// As [`Broker::commit`], with the refusal of a command.
    fn commit_or_refuse(&mut self, event: Event, class: SpaceClass, log: &mut dyn LogSink) -> Result<(), Refusal> {
        self.commit(event, class, log).map_err(|refusal| self.refusal(refusal))
    }

    /// The refusal of a command whose record the log refused.
    fn refusal(&self, refusal: LogRefusal) -> Refusal {
        match refusal {
            LogRefusal::Full => Refusal::StorageFull,
            LogRefusal::Busy => self.context().overloaded(Overload::Log),
            LogRefusal::Memory => self.context().overloaded(Overload::Memory),
            LogRefusal::TooLong => Refusal::Invalid("the record would be too long for the log"),
        }
    }

    /// Pauses timers and dispatch: the log has no space.
    fn stall(&mut self) {
        self.stalled_until = Some(self.now.after(self.faults.pause_after_refusal(STALL)));
    }

    fn next_token(&mut self) -> LeaseToken {
        let boot = self.state.boot();
        assert!(boot > Boot(0), "`boot` is called before any command");
        self.next_token += 1;
        LeaseToken { boot, counter: self.next_token }
    }

    /// Commits the event of a decision, if it has one, and returns its reply.
    fn commit_and_reply(
        &mut self,
        mut decision: Decision,
        class: SpaceClass,
        log: &mut dyn LogSink,
    ) -> Result<Reply, Refusal> {
        self.commit_decision(&mut decision, class, log)?;
        Ok(decision.reply)
    }

    /// As [`Broker::commit_and_reply`] of what was `decided`, or the refusal. The decision, which is large, stays where
    /// it is; its reply is taken out.
    #[inline]
    fn commit_decided(
        &mut self,
        decided: &mut Result<Decision, Refusal>,
        class: SpaceClass,
        log: &mut dyn LogSink,
    ) -> Result<Reply, Refusal> {
        match decided {
            Ok(decision) => {
                self.commit_decision(decision, class, log)?;
                Ok(std::mem::replace(&mut decision.reply, Reply::Success))
            }
            Err(refusal) => Err(refusal.clone()),
        }
    }

    fn commit_decision(
        &mut self,
        decision: &mut Decision,
        class: SpaceClass,
        log: &mut dyn LogSink,
    ) -> Result<(), Refusal> {
        if let Aside::Answers(message_ref) = decision.aside {
            self.index.answered(&message_ref);
        }
        let Some(record) = &mut decision.record else { return Ok(()) };
        record.at = self.now;
        if self.faults.decided(&self.state, self.now, &mut record.event) {
            self.commit_record(record, class, log).map_err(|refusal| self.refusal(refusal))?;
            if let Aside::EndsGrant(token) = decision.aside {
                self.index.leases.grants.ended(token);
            }
            // Few records begin a lease: the event is moved for them alone.
            if let Event::Extended { .. } | Event::EffectBegun(_) | Event::EffectRenewed { .. } = record.event
                && let Some(record) = decision.record.take()
            {
                self.hold_lease(record.event);
            }
        }
        Ok(())
    }

    /// Holds the start of the lease that begins or is extended with `event` until the record that was just appended is
    /// durable.
    fn hold_lease(&mut self, event: Event) {
        match event {
            Event::Extended { message_ref, until } => {
                self.index.extended(&message_ref, self.appended, until.since(self.now));
            }
            Event::EffectBegun(begun) => {
                let EffectBegun { identity, token, until, .. } = *begun;
                self.index.leases.hold_grant(self.appended, token, identity, until.since(self.now), until);
            }
            Event::EffectRenewed { identity, until } => {
                if let Some(token) = self.state.store().get(&identity).and_then(|effect| effect.token) {
                    self.index.leases.hold_grant(self.appended, token, identity, until.since(self.now), until);
                }
            }
            _ => {}
        }
    }
}
