//! Dying and starting: what the disk keeps, and what a start makes of it.

use driftq_core::Pipeline;
use driftq_core::faults::Faults;
use driftq_core::log::{IoOp as Piece, Notice, Recovered, StorageFault};
use driftq_core::pipeline::OpenError;
use driftq_core::state::State;
use driftq_core::types::{Lsn, Ticket};

use super::{LOG_ID, World, coverage};
use crate::actions::Loss;
use crate::coverage::Point;
use crate::invariants::durability::*;
use crate::invariants::{Verdict, Violation};
use crate::storage::SimStorage;

/// A broker that died: how far its log reached, and what its state was.
#[derive(Clone, Copy, Debug)]
pub(super) struct Died {
    appended: Lsn,
    digest: u64,
    closed: bool,
}

impl<F: Faults, M: SimStorage> World<F, M> {
    pub(super) fn first_boot(&mut self) -> Verdict {
        let (setup, now) = (self.setup.pipeline(), self.clock());
        let opened = Pipeline::open(&mut self.disk, setup, Some(LOG_ID), now, self.faults);
        let (broker, _) = sound_log_accepted(opened)?;
        self.started(broker)
    }

    /// The process or the machine dies.
    pub(super) fn crash(&mut self, loss: Loss) {
        self.counters.events += 1;
        self.counters.crashes += 1;
        if let Some(broker) = self.broker.take() {
            let appended = broker.broker().appended();
            let closed = broker.is_closed();
            self.died = Some(Died { appended, digest: broker.state().digest(), closed });
        }
        self.met_crash(loss);
        self.lanes = [None, None];
        self.network.disconnect();
        self.disk.crash(loss);
    }

    /// An orderly stop, and then the machine is switched off.
    pub(super) fn close(&mut self) -> Verdict {
        if !self.is_serving() {
            return Ok(());
        }
        let Some(broker) = &mut self.broker else { return Ok(()) };
        broker.close();
        if let Some(oracle) = &mut self.oracle {
            oracle.close();
        }
        self.settle()?;
        close_completes(self.broker.as_ref().is_some_and(Pipeline::is_closed))?;
        self.crash(Loss::All);
        self.boot()
    }

    /// The broker is started on what the disk holds.
    pub(super) fn boot(&mut self) -> Verdict {
        if self.broker.is_some() {
            return Ok(());
        }
        self.counters.events += 1;
        self.counters.boots += 1;
        let (state, found) = self.survey()?;
        let (setup, now) = (self.setup.pipeline(), self.clock());
        let opened = Pipeline::open(&mut self.disk, setup, None, now, self.faults);
        if let Err(OpenError::Storage(StorageFault::Full) | OpenError::NoRoom(_)) = opened
            && self.disk.model().is_limited()
        {
            self.coverage.hit(Point::FullAtBoot);
            return Ok(());
        }
        let (broker, recovered) = sound_log_accepted(opened)?;
        recovery_is_idempotent(&found, &recovered)?;
        self.judge_recovery(&state, &found)?;
        self.started(broker)
    }

    /// The broker is started, and dies in the middle of it.
    pub(super) fn boot_and_crash(&mut self, after: u8, loss: Loss) -> Verdict {
        if self.broker.is_some() {
            return Ok(());
        }
        self.counters.events += 1;
        self.counters.boots += 1;
        self.counters.crashes += 1;
        let (state, before) = self.survey()?;
        if let Some(died) = &mut self.died {
            died.closed = false;
        }
        let settled = self.disk.model().at_risk() == (0, 0);
        self.disk.model_mut().set_fuse(Some(u32::from(after)));
        let (setup, now) = (self.setup.pipeline(), self.clock());
        drop(Pipeline::open(&mut self.disk, setup, None, now, self.faults));
        self.disk.crash(loss);
        self.coverage.hit(Point::CrashInBoot);
        let (again, found) = self.survey()?;
        no_synced_loss(found.last_lsn, self.shadow.durable())?;
        recovery_crash_is_harmless((&before, state.digest()), (&found, again.digest()), settled)
    }

    /// What a start would find; nothing is touched.
    fn survey(&self) -> Result<(State, Recovered), Violation> {
        sound_log_accepted(self.disk.survey(&self.faults))
    }

    /// A look at what a start would find if the power went now and took everything that was not synced.
    ///
    /// # Errors
    /// The promise that would be broken.
    pub fn survives(&self) -> Verdict {
        let mut disk = self.disk.model().clone();
        disk.crash(Loss::All);
        let (state, found) = sound_log_accepted(disk.survey(&self.faults))?;
        no_synced_loss(found.last_lsn, self.shadow.durable())?;
        recovered_matches_log(self.shadow.last_record(), self.shadow.digest(), state.digest(), &found)
    }

    /// What was found, against what was written.
    fn judge_recovery(&mut self, state: &State, found: &Recovered) -> Verdict {
        let durable = self.shadow.durable();
        no_synced_loss(found.last_lsn, durable)?;
        self.shadow.rewind(found.last_lsn);
        let (written, last) = (self.shadow.digest(), self.shadow.last_record());
        recovered_matches_log(last, written, state.digest(), found)?;
        if let Some(died) = self.died.take() {
            if died.appended == last {
                state_matches_log(last, died.digest, written)?;
            }
            self.coverage.hit_if(died.appended > last, Point::CrashLost);
            self.coverage.hit_if(last > durable, Point::CrashKept);
            self.coverage.hit_if(died.closed && found.clean, Point::ClosedCleanly);
            close_is_recognised(died.closed, found)?;
        }
        self.coverage.hit_if(found.snapshot.is_some(), Point::SnapshotUsed);
        for notice in &found.notices {
            match notice {
                Notice::TornTail { .. } => self.coverage.hit(Point::TornTail),
                Notice::NeverBegun { .. } => self.coverage.hit(Point::UnusedSegment),
                _ => {}
            }
        }
        self.observer.crashed(last);
        if let Some(oracle) = &mut self.oracle {
            oracle.crash(self.shadow.records());
        }
        Ok(())
    }

    /// The broker runs.
    fn started(&mut self, broker: Pipeline<F>) -> Verdict {
        let now = self.clock();
        if let Some(oracle) = &mut self.oracle {
            oracle.boot(now);
        }
        self.observer.restored(broker.state())?;
        coverage::started(&mut self.coverage, broker.state());
        self.latest = broker.broker().now();
        self.chain.mix(broker.state().digest());
        self.broker = Some(broker);
        (self.next_ticket, self.failed_from) = (Ticket(0), None);
        self.records_before = self.shadow.records();
        self.look(false)
    }

    fn met_crash(&mut self, loss: Loss) {
        if loss == Loss::Nothing {
            self.coverage.hit(Point::Killed);
            return;
        }
        for running in self.lanes.iter().flatten() {
            match (running.last_done(), running.next_piece()) {
                (Some(Piece::Rename { .. }), _) => self.coverage.hit(Point::CrashInRename),
                (Some(Piece::Append { file, .. }), _) | (_, Some(Piece::Append { file, .. })) => {
                    let draft = matches!(file, driftq_core::log::FileId::SnapshotDraft(_));
                    self.coverage.hit_if(draft, Point::CrashInSnapshot);
                    let begun = matches!(running.next_piece(), Some(Piece::Append { at, .. }) if at.position == 0);
                    self.coverage.hit_if(!draft && begun, Point::CrashInRotation);
                }
                _ => {}
            }
        }
    }
}
