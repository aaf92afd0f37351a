//! Crashes, starts and shutdowns, and the checks of recovery.

use driftq_core::faults::Faults;
use driftq_core::log::{IoOp, Notice, Recovered, StorageFault};
use driftq_core::pipeline::OpenError;
use driftq_core::state::State;
use driftq_core::types::Ticket;
use driftq_core::{OpenOptions, Pipeline};

use super::coverage;
use super::job::LOG_ID;
use super::room::LogRoom;
use super::state::{CrashedBroker, World};
use crate::actions::Loss;
use crate::coverage::Point;
use crate::invariants::Verdict;
use crate::invariants::durability::*;
use crate::sim_storage::SimStorage;

impl<F: Faults, S: SimStorage> World<F, S> {
    pub(super) fn first_boot(&mut self) -> Verdict {
        self.disk.model_mut().set_read_sizes(self.setup.work.unwrap_or_default().read_sizes());
        let (config, now) = (self.pipeline_config(), self.clock());
        let opened = OpenOptions::new()
            .config(config)
            .create(LOG_ID)
            .faults(self.faults)
            .open(&mut self.faults.storage(&mut self.disk), now);
        let (broker, _) = sound_log_accepted(opened)?;
        written_in_order(self.disk.model_mut().take_breach())?;
        self.started(broker)
    }

    /// Crashes the process or the machine.
    pub(super) fn crash(&mut self, loss: Loss) {
        self.counters.events += 1;
        self.counters.crashes += 1;
        if let Some(broker) = self.broker.take() {
            let appended = broker.broker().appended();
            let closed = broker.is_closed();
            self.crashed_broker = Some(CrashedBroker { appended, digest: broker.state().digest(), closed });
        }
        self.cover_crash(loss);
        self.synced_at = None;
        self.jobs = [None, None];
        self.coverage.hit_if(!self.reads.is_empty(), Point::CrashInRead);
        self.reads.crash();
        self.room = LogRoom::default();
        self.network.disconnect();
        self.disk.crash(loss);
    }

    /// Shuts the broker down cleanly, crashes the machine and starts the broker.
    pub(super) fn close(&mut self) -> Verdict {
        if !self.is_serving() {
            return Ok(());
        }
        let Some(broker) = &mut self.broker else { return Ok(()) };
        broker.close();
        self.shadow.close();
        if let Some(oracle) = &mut self.oracle {
            oracle.close();
        }
        self.flush_io()?;
        // A driver does not know which timers a log that is being closed still has.
        self.wake()?;
        self.flush_io()?;
        close_completes(self.broker.as_ref().is_some_and(Pipeline::is_closed))?;
        self.crash(Loss::All);
        self.boot()
    }

    /// A start uses the newest configuration.
    fn configure(&mut self) {
        let Some(setup) = self.next_setup.take() else { return };
        let limits = setup.limits();
        self.disk.model_mut().set_read_sizes(setup.work.unwrap_or_default().read_sizes());
        self.setup = setup;
        if let Some(oracle) = &mut self.oracle {
            oracle.configure(&limits);
        }
        self.tracker.configure(limits);
    }

    /// Starts the broker on what the disk holds.
    pub(super) fn boot(&mut self) -> Verdict {
        if self.broker.is_some() {
            return Ok(());
        }
        self.configure();
        self.counters.events += 1;
        self.counters.boots += 1;
        let (state, found) = self.recoverable()?;
        let (config, now) = (self.pipeline_config(), self.clock());
        let opened =
            OpenOptions::new().config(config).faults(self.faults).open(&mut self.faults.storage(&mut self.disk), now);
        if let Err(OpenError::Storage(StorageFault::Full) | OpenError::NoRoom(_)) = opened
            && self.disk.model().is_limited()
        {
            self.coverage.hit(Point::FullAtBoot);
            return Ok(());
        }
        let (broker, recovered) = sound_log_accepted(opened)?;
        let (shadow, last) = (&self.shadow, recovered.last.frame);
        self.disk.model_mut().note_continued(|file, range| shadow.holds_frames(file, range, last));
        written_in_order(self.disk.model_mut().take_breach())?;
        recovery_is_idempotent(&found, &recovered)?;
        self.compare_recovery(&state, &found)?;
        self.started(broker)
    }

    /// While the broker is stopped, an operator rebases its wall clock and starts it.
    pub(super) fn rebase_clock(&mut self) -> Verdict {
        if self.broker.is_some() {
            return Ok(());
        }
        self.boot()?;
        let now = self.clock();
        self.tracker.before_rebase();
        let Some(broker) = &mut self.broker else { return Ok(()) };
        let before = broker.broker().appended();
        let is_rebased = broker.rebase_wall_clock(now).is_ok();
        self.room.refused((before, broker.broker().appended()), broker.refused_appends());
        if let Some(oracle) = &mut self.oracle {
            oracle.refuse(broker.refused_appends());
            oracle.rebase(now);
        }
        self.coverage.hit_if(is_rebased, Point::ClockRebased);
        self.check_clock()?;
        self.check_state()?;
        self.close()
    }

    /// Starts the broker and crashes it after some I/O operations.
    pub(super) fn boot_and_crash(&mut self, after: u8, loss: Loss) -> Verdict {
        if self.broker.is_some() {
            return Ok(());
        }
        self.configure();
        self.counters.events += 1;
        self.counters.boots += 1;
        self.counters.crashes += 1;
        let (state, before) = self.recoverable()?;
        if let Some(crashed_broker) = &mut self.crashed_broker {
            crashed_broker.closed = false;
        }
        let was_all_synced = self.disk.model().at_risk() == (0, 0);
        self.disk.model_mut().set_changes_left(Some(u32::from(after)));
        let (config, now) = (self.pipeline_config(), self.clock());
        drop(OpenOptions::new().config(config).faults(self.faults).open(&mut self.faults.storage(&mut self.disk), now));
        self.disk.crash(loss);
        written_in_order(self.disk.model_mut().take_breach())?;
        self.coverage.hit(Point::CrashInBoot);
        let (state_after, recovered) = self.recoverable()?;
        no_synced_loss(recovered.last.frame, self.shadow.durable())?;
        recovery_crash_is_harmless((&before, state.digest()), (&recovered, state_after.digest()), was_all_synced)
    }

    /// Checks on a copy of the disk what recovery would find after a crash that loses all unsynced data.
    ///
    /// # Errors
    /// The invariant that would be violated.
    pub fn check_recovery(&self) -> Verdict {
        let mut disk = self.disk.model().clone();
        disk.crash(Loss::All);
        if self.setup.rots {
            disk.heal();
        }
        let (state, recovered) = sound_log_accepted(disk.inspect_recovery(&self.faults))?;
        no_synced_loss(recovered.last.frame, self.shadow.durable())?;
        recovered_matches_log(self.shadow.last_record(), self.shadow.digest(), state.digest(), &recovered)
    }

    /// Compares what recovery found with what was written.
    fn compare_recovery(&mut self, state: &State, recovered: &Recovered) -> Verdict {
        let durable = self.shadow.durable();
        no_synced_loss(recovered.last.frame, durable)?;
        let durable_record = self.shadow.last_record();
        self.shadow.rewind(recovered.last.frame);
        let (written, last) = (self.shadow.digest(), self.shadow.last_record());
        recovered_matches_log(last, written, state.digest(), recovered)?;
        if let Some(crashed_broker) = self.crashed_broker.take() {
            if crashed_broker.appended == last {
                state_matches_log(last, crashed_broker.digest, written)?;
            }
            self.coverage.hit_if(crashed_broker.appended > last, Point::CrashLost);
            self.coverage.hit_if(last > durable_record, Point::CrashKept);
            self.coverage.hit_if(crashed_broker.closed && recovered.clean, Point::ClosedCleanly);
            close_is_recognised(crashed_broker.closed, recovered)?;
        }
        self.coverage.hit_if(recovered.snapshot.is_some(), Point::SnapshotUsed);
        for notice in &recovered.notices {
            match notice {
                Notice::TornTail { .. } => self.coverage.hit(Point::TornTail),
                Notice::NeverBegun { .. } => self.coverage.hit(Point::UnusedSegment),
                _ => {}
            }
        }
        self.tracker.crashed(last);
        if let Some(oracle) = &mut self.oracle {
            oracle.crash(self.shadow.records());
        }
        Ok(())
    }

    /// Takes over a broker that has started.
    fn started(&mut self, broker: Pipeline<F>) -> Verdict {
        let now = self.clock();
        if let Some(oracle) = &mut self.oracle {
            oracle.boot(now);
        }
        self.tracker.restored(broker.state())?;
        self.tracker.could_have_seen(&self.shadow.take_deliveries());
        coverage::started(&mut self.coverage, broker.state());
        coverage::limits(&mut self.coverage, broker.state(), &self.setup.limits());
        self.latest = broker.broker().now();
        self.synced_at = None;
        self.chain.mix(broker.state().digest());
        self.broker = Some(broker);
        (self.next_ticket, self.failed_from) = (Ticket(0), None);
        self.injected_tickets.clear();
        self.records_before = self.shadow.records();
        self.check_index()?;
        self.check_state()
    }

    fn cover_crash(&mut self, loss: Loss) {
        if loss == Loss::Nothing {
            self.coverage.hit(Point::Killed);
            return;
        }
        let [log, background] = &self.jobs;
        self.coverage.hit_if(log.is_none() && background.is_some(), Point::CrashInBackground);
        for running in self.jobs.iter().flatten() {
            match (running.last_done(), running.next_op()) {
                (Some(IoOp::Rename { .. }), _) => self.coverage.hit(Point::CrashInRename),
                (Some(IoOp::Append { file, .. }), _) | (_, Some(IoOp::Append { file, .. })) => {
                    let is_draft = matches!(file, driftq_core::log::FileId::SnapshotDraft(_));
                    self.coverage.hit_if(is_draft, Point::CrashInSnapshot);
                    let is_first_write = matches!(running.next_op(), Some(IoOp::Append { at, .. }) if at.position == 0);
                    self.coverage.hit_if(!is_draft && is_first_write, Point::CrashInRotation);
                }
                _ => {}
            }
        }
    }
}
