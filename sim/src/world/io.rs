//! The driver: performs the I/O jobs of the pipeline, one operation at a time.

use driftq_core::JobClass as CoreJobClass;
use driftq_core::faults::Faults;
use driftq_core::log::{FileId, IoOp, StorageFault};
use driftq_core::record::Event;
use driftq_core::types::Millis;

use super::coverage;
use super::job::RunningJob;
use super::state::World;
use crate::actions::{IoFault, JobClass};
use crate::coverage::Point;
use crate::invariants::liveness::io_quiesces;
use crate::invariants::outputs::shortage_is_waited_out;
use crate::invariants::{Verdict, Violation};
use crate::sim_storage::SimStorage;

impl JobClass {
    const fn core(self) -> CoreJobClass {
        match self {
            Self::Log => CoreJobClass::Log,
            Self::Background => CoreJobClass::Background,
        }
    }
}

/// How long a broker waits before it creates a file again for which it had no descriptor.
const RETRY: Millis = Millis(1_000);

impl<F: Faults, S: SimStorage> World<F, S> {
    /// Performs the next operation of the class and starts a job if none is in progress.
    pub(super) fn io(&mut self, class: JobClass, fault: Option<IoFault>) -> Verdict {
        self.perform_op(class, fault)?;
        Ok(())
    }

    /// Performs all pending I/O.
    pub(super) fn flush_io(&mut self) -> Verdict {
        let mut ops = 0;
        while self.perform_op(JobClass::Log, None)? || self.perform_op(JobClass::Background, None)? {
            ops += 1;
            io_quiesces(ops)?;
        }
        self.collect()
    }

    /// Performs one operation; `false` if there is none.
    fn perform_op(&mut self, class: JobClass, fault: Option<IoFault>) -> Result<bool, Violation> {
        let now = self.clock();
        let Some(broker) = &mut self.broker else { return Ok(false) };
        let mut running = match self.jobs[class as usize].take() {
            Some(running) => running,
            None => match broker.poll_job(class.core()) {
                Some(job) => RunningJob { job, next: 0 },
                None => return Ok(false),
            },
        };
        self.counters.events += 1;
        let result = match running.next_op() {
            Some(op) => {
                self.disk.model_mut().set_fault(fault);
                let result = op.perform(&mut self.faults.storage(&mut self.disk));
                self.disk.model_mut().set_fault(None);
                running.next += 1;
                result
            }
            None => Ok(()),
        };
        self.record_op(&running, &result)?;
        let Some(broker) = &mut self.broker else { return Ok(false) };
        if result.is_err() || running.next >= running.job.ops().len() {
            let is_shortage = matches!(result, Err(StorageFault::Full | StorageFault::NoDescriptor));
            if matches!(result, Err(StorageFault::NoDescriptor)) {
                self.short_until = now.mono.after(RETRY);
            }
            let is_waited_out = is_shortage && class == JobClass::Background;
            if result.is_err() && !is_waited_out && self.failed_from.is_none() {
                // Set even if the broker ignores the failure.
                self.failed_from = Some(self.next_ticket);
            }
            let disk = &mut self.disk;
            let sync_again = || {
                let mut syncs = running.job.ops().iter().filter(|op| matches!(op, IoOp::Sync { .. }));
                syncs.try_for_each(|sync| sync.perform(disk))
            };
            let reported = self.faults.job_result(result, sync_again);
            broker.complete(now, running.job, reported);
            shortage_is_waited_out(self.failed_from, broker.failure())?;
            let is_synced = class == JobClass::Log && broker.failure().is_none();
            if let Some(oracle) = &mut self.oracle {
                if is_synced {
                    oracle.release(now, self.shadow.records());
                }
                oracle.durable(self.shadow.records());
            }
            self.collect()?;
        } else {
            self.jobs[class as usize] = Some(running);
        }
        Ok(true)
    }

    /// Records what has reached the disk.
    fn record_op(&mut self, running: &RunningJob, result: &Result<(), StorageFault>) -> Verdict {
        let Some(op) = running.last_done() else { return Ok(()) };
        match (op, result) {
            (IoOp::Append { file, at, bytes }, Ok(())) => {
                self.chain.mix(at.position ^ (bytes.len() as u64) << 32);
                for record in self.shadow.appended(*file, at.position, bytes) {
                    coverage::record(&mut self.coverage, self.broker.as_ref(), record);
                    self.counters.count(&record.event);
                    if let Event::Withdrawn { message_ref } = &record.event {
                        self.tracker.withdrawn(message_ref);
                    }
                }
                let has_unsynced = self.broker.as_ref().is_some_and(|b| b.broker().appended() > b.synced());
                self.coverage.hit_if(has_unsynced && self.jobs[0].is_some(), Point::OverlappingBatches);
            }
            (IoOp::Sync { .. } | IoOp::SyncFolder, Ok(())) => self.shadow.advance_durable(self.disk.model()),
            (IoOp::Remove { file: FileId::Segment(_) }, Ok(())) => self.coverage.hit(Point::SegmentsRemoved),
            (IoOp::Sync { .. } | IoOp::SyncFolder, Err(StorageFault::Io(_))) => {
                self.coverage.hit(Point::SyncFailed);
            }
            (IoOp::Create { .. }, Err(StorageFault::NoDescriptor)) => self.coverage.hit(Point::NoDescriptor),
            (IoOp::Append { file, at, bytes }, Err(StorageFault::Io(_))) => {
                // A partial write is readable. Behind it the preallocated file is zero, as the lost part may be.
                let written = self.disk.model().bytes(*file).and_then(|bytes| bytes.get(at.position as usize..));
                let mut found = written.unwrap_or_default().to_vec();
                found.resize(bytes.len(), 0);
                for record in self.shadow.appended(*file, at.position, &found) {
                    if let Event::Withdrawn { message_ref } = &record.event {
                        self.tracker.withdrawn(message_ref);
                    }
                }
                self.coverage.hit(Point::WriteFailed);
            }
            _ => {}
        }
        Ok(())
    }
}
