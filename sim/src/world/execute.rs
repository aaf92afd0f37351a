//! Executes actions: passes commands and timeouts to the broker and checks its state after each.

use driftq_core::command::{
    Begin, Claim, CloseStream, CreateGroup, DeleteGroup, DeleteTopic, Purge, Reacquire, Redrive, RedriveSelection,
    Seek, StoreCommand, TokenClaim, Unsubscribe, Withdraw,
};
use driftq_core::faults::Faults;
use driftq_core::state::{State, Topic};
use driftq_core::types::{Now, Timestamp};
use driftq_core::{Command, Pipeline};

use super::call_payloads::CallPayloads;
use super::coverage;
use super::network::ClientCommand;
use super::state::World;
use super::tap::TapEvent;
use super::values::START_TIME;
use crate::actions::{Action, JobClass};
use crate::coverage::Point;
use crate::invariants::Verdict;
use crate::invariants::durability::state_matches_log;
use crate::invariants::fairness::administration_ends;
use crate::invariants::index::check_index;
use crate::invariants::liveness::timers_quiesce;
use crate::invariants::oracle::{matches_oracle, record_count_matches};
use crate::invariants::time::time_is_monotonic;
use crate::sim_storage::SimStorage;

/// The interval between comparisons of the whole log with the live state, in events.
pub(super) const COMPARE_EVERY: u64 = 4_096;
/// The interval between comparisons of the index with the state, in calls.
const INDEX_EVERY: u64 = 16;

impl<F: Faults, S: SimStorage> World<F, S> {
    /// Executes an action and checks the invariants.
    ///
    /// # Errors
    /// The invariant that was violated.
    pub fn apply(&mut self, action: &Action) -> Verdict {
        match action {
            Action::Request(request) => {
                if let Some(command) = self.command_of(request) {
                    self.handle(command)?;
                }
            }
            Action::Send { call, request } => {
                if let Some(command) = self.command_of(request) {
                    self.network.send(*call, command, self.counters.boots);
                }
            }
            Action::Arrive { call } => {
                if let Some((command, again, boots)) = self.network.arrive(*call) {
                    self.coverage.hit_if(again, Point::CallTwice);
                    self.coverage.hit_if(boots < self.counters.boots, Point::LateCall);
                    self.handle(command)?;
                }
            }
            Action::Read { worker, count } => self.read(*worker, *count),
            Action::RunEffect(grant) => self.run_effect(grant)?,
            Action::AdvanceTime { ms } => self.advance_time(u64::from(*ms)),
            Action::RebaseClock => self.rebase_clock()?,
            Action::JumpClock { ms } => {
                self.counters.events += 1;
                self.skew = self.skew.saturating_add(*ms).clamp(-(START_TIME.0 as i64) / 2, i64::from(u32::MAX));
                self.coverage.hit(if *ms < 0 { Point::ClockBack } else { Point::ClockForward });
            }
            Action::Wake => self.wake()?,
            Action::Io { class, fault } => self.io(*class, *fault)?,
            Action::PerformRead { nth, fault, late } => self.perform_read(*nth, *fault, *late)?,
            Action::CompleteRead { nth } => self.complete_read(*nth)?,
            Action::Rot { payload, bit } => self.rot(*payload, *bit),
            Action::FlushIo => {
                self.flush_io()?;
                self.check_idle()?;
                self.check_marked()?;
                self.check_files()?;
            }
            Action::Snapshot => {
                if let Some(broker) = &mut self.broker {
                    broker.request_snapshot();
                }
            }
            Action::SetFreeSpace { bytes } => {
                self.was_limited |= bytes.is_some();
                self.disk.model_mut().set_free_space(bytes.map(u64::from));
            }
            Action::Configure(change) => {
                let setup = change.apply(self.next_setup());
                self.coverage.hit_if(setup != self.setup, Point::Reconfigured);
                self.next_setup = Some(setup);
            }
            Action::Close => self.close()?,
            Action::Crash { loss } => {
                self.check_index()?;
                self.crash(*loss);
            }
            Action::Boot => self.boot()?,
            Action::BootAndCrash { after, loss } => self.boot_and_crash(*after, *loss)?,
            Action::Damage { damage } => self.damage(*damage),
            Action::Probe { loss, damage } => self.probe(*loss, *damage)?,
            Action::Drain => self.drain()?,
        }
        if self.counters.events / COMPARE_EVERY > self.comparisons {
            self.comparisons = self.counters.events / COMPARE_EVERY;
            self.compare_with_log()?;
        }
        Ok(())
    }

    pub(super) fn advance_time(&mut self, ms: u64) {
        self.counters.events += 1;
        self.coverage.hit_if(ms >= 1_000 && self.jobs[JobClass::Log as usize].is_some(), Point::SlowSync);
        self.now += ms;
    }

    /// Sends a command to the broker. Without a running broker it is lost.
    pub(super) fn handle(&mut self, ClientCommand { command, worker }: ClientCommand) -> Verdict {
        let now = self.clock();
        if self.broker.is_none() {
            return Ok(());
        }
        if let Command::Unsubscribe(Unsubscribe { consumer }) | Command::CloseStream(CloseStream { consumer }) = command
        {
            self.unsubscribe(consumer);
        }
        if let Command::Withdraw(Withdraw(Claim { token: TokenClaim::Shown(token), .. })) = command {
            self.network.drop_unread(token);
        }
        if runs_timers_first(&command) || self.targets_unknown_topic(&command) {
            // Timers that fire in the same call could remove a message before the checks see it, or create the topic
            // that the command names.
            self.wake_until_idle()?;
        }
        let Some(broker) = &mut self.broker else { return Ok(()) };
        self.counters.events += 1;
        self.counters.commands += 1;
        coverage::command(&mut self.coverage, broker.state(), &command);
        let pending = self.tracker.before_command(broker, command, now);
        let mut command = pending.command.clone();
        if let Some(injected) = self.faults.command(broker.state(), broker.broker().limits(), &mut command) {
            self.injected_tickets.insert(broker.handle(now, injected));
        }
        let before = broker.broker().appended();
        let there = administered(broker.state(), &command);
        let payloads = CallPayloads::of(broker.state(), &command);
        let ticket = broker.handle(now, command);
        if let Some(there) = there {
            administration_ends(broker.broker().appended().0 - before.0, there)?;
        }
        self.room.refused((before, broker.broker().appended()), broker.refused_appends());
        self.next_ticket = ticket.next();
        if let Some(tap_events) = &mut self.tap_events {
            tap_events.push(TapEvent::Command(ticket, Box::new(pending.command.clone())));
        }
        match (&pending.command, worker) {
            (Command::Subscribe(subscribe), Some(worker)) => self.network.open(ticket, worker, subscribe),
            (Command::Redrive(Redrive { topic, which, .. }), _) if !matches!(which, RedriveSelection::Offsets(_)) => {
                self.network.pending_redrives.insert(ticket, topic.clone());
            }
            (Command::Store(store), Some(worker)) => {
                if let StoreCommand::Begin(Begin { identity, .. })
                | StoreCommand::Reacquire(Reacquire { identity, .. }) = &**store
                {
                    self.network.request_grant(ticket, worker, identity);
                }
            }
            _ => {}
        }
        if let Some(oracle) = &mut self.oracle {
            oracle.refuse(broker.refused_appends());
            oracle.command(now, ticket, &pending.command);
            oracle.call_ended(|of| payloads.missing(broker, of));
        }
        self.tracker.after_command(broker, pending, ticket)?;
        self.check_clock()?;
        self.check_state()
    }

    /// Whether a produce targets a topic that does not exist.
    fn targets_unknown_topic(&self, command: &Command) -> bool {
        let (Some(broker), Command::Produce(produce)) = (&self.broker, command) else { return false };
        let router = produce.routing.as_ref().and_then(|router| router.target_topic.as_ref());
        let mut topics = router.into_iter().chain(&produce.envelope.target_topic).chain([&produce.topic]);
        topics.any(|topic| broker.state().topic_named(topic).is_none())
    }

    /// Calls the broker's timeout handler, if a timer is due.
    pub(super) fn wake(&mut self) -> Verdict {
        let now = self.clock();
        match self.broker.as_ref().and_then(Pipeline::poll_timeout) {
            Some(at) if at <= now.mono => self.call_timeout(now),
            _ => Ok(()),
        }
    }

    fn call_timeout(&mut self, now: Now) -> Verdict {
        let Some(broker) = &mut self.broker else { return Ok(()) };
        self.counters.events += 1;
        let before = broker.broker().appended();
        broker.handle_timeout(now);
        self.room.refused((before, broker.broker().appended()), broker.refused_appends());
        if self.short_until <= now.mono {
            self.short_until = Timestamp(0);
        }
        if let Some(oracle) = &mut self.oracle {
            oracle.refuse(broker.refused_appends());
            oracle.timeout(now);
            oracle.call_ended(|of| CallPayloads::default().missing(broker, of));
        }
        self.check_clock()?;
        self.check_state()
    }

    /// Calls the timeout handler until no timer is due.
    fn wake_until_idle(&mut self) -> Verdict {
        let now = self.clock();
        // A wall clock that was set is noticed by the next call, and can make timers due.
        if self.broker.as_ref().is_some_and(|broker| broker.broker().clock_ahead_ms(now) != 0) {
            self.call_timeout(now)?;
        }
        for calls in 0.. {
            if self.broker.as_ref().and_then(Pipeline::poll_timeout).is_none_or(|at| at > now.mono) {
                break;
            }
            timers_quiesce(calls, now.mono)?;
            self.call_timeout(now)?;
        }
        Ok(())
    }

    /// After every command and timeout: checks wall time inside the broker.
    pub(super) fn check_clock(&mut self) -> Verdict {
        let reading = self.clock().wall;
        let Some(broker) = &self.broker else { return Ok(()) };
        // A log without space takes no adjustment; a failed one takes nothing.
        let is_followed = broker.refused_appends().is_empty() && broker.failure().is_none();
        self.tracker.observe_clock(broker, is_followed.then_some(reading))
    }

    /// After every call: checks the state inside the broker.
    pub(super) fn check_state(&mut self) -> Verdict {
        let Some(broker) = &self.broker else { return Ok(()) };
        let now = broker.broker().now();
        time_is_monotonic(self.latest, now)?;
        self.latest = now;
        self.tracker.observe_state(broker)?;
        if let Some(oracle) = &self.oracle
            && broker.failure().is_none()
        {
            matches_oracle(oracle.compare_refusals())?;
            let written = self.records_before + broker.broker().counters().appended;
            record_count_matches(written, oracle.records())?;
        }
        self.calls += 1;
        if self.calls.is_multiple_of(INDEX_EVERY) {
            self.check_index()?;
        }
        self.collect()
    }

    /// Compares the index of a running broker with its state.
    pub(super) fn check_index(&self) -> Verdict {
        let Some(broker) = &self.broker else { return Ok(()) };
        check_index(broker, self.clock().mono, self.reads.may_hold(broker.broker()))
    }

    /// Compares the live state with the shadow log.
    pub(super) fn compare_with_log(&mut self) -> Verdict {
        let Some(broker) = &self.broker else { return Ok(()) };
        let (last, digest) = self.shadow.digest_written();
        if last == broker.broker().appended() {
            state_matches_log(last, broker.state().digest(), digest)?;
        }
        Ok(())
    }
}

/// For a command that is about many messages: the most records that its call appends. Every message is moved once at
/// most, and delivered or dead-lettered once in every group.
fn administered(state: &State, command: &Command) -> Option<u64> {
    let is_administration = matches!(
        command,
        Command::Redrive(_) | Command::Purge(_) | Command::Seek(_) | Command::DeleteTopic(_) | Command::DeleteGroup(_)
    );
    is_administration.then(|| {
        let stored = |topic: &Topic| topic.partitions().map(|(_, at)| at.kept().messages).sum::<u64>();
        let groups = state.topics().map(|topic| topic.group_count() as u64).max().unwrap_or_default();
        // Beside its own: winners and retained messages beyond their bounds.
        state.topics().map(stored).sum::<u64>() * (1 + 2 * groups) + 66
    })
}

/// Whether due timers must run before the command: it changes which messages are visible to a group, so their effects
/// could not be distinguished afterwards, or it is checked against the state it is decided on.
fn runs_timers_first(command: &Command) -> bool {
    matches!(
        command,
        Command::Redrive(Redrive { .. })
            | Command::Purge(Purge { .. })
            | Command::DeleteTopic(DeleteTopic { .. })
            | Command::CreateGroup(CreateGroup { .. })
            | Command::Subscribe(_)
            | Command::DeleteGroup(DeleteGroup { .. })
            | Command::Seek(Seek { .. })
            | Command::Complete(_)
            | Command::Store(_)
    )
}
