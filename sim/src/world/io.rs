//! The driver: performs the I/O jobs of the pipeline, one operation at a time.

use driftq_core::JobClass as CoreJobClass;
use driftq_core::faults::Faults;
use driftq_core::log::{FileId, IoOp, StorageFault};
use driftq_core::record::{Event, Record};
use driftq_core::types::{Lsn, Millis, PayloadId};

use super::coverage;
use super::job::RunningJob;
use super::state::World;
use super::tap::TapEvent;
use crate::actions::{IoFault, JobClass};
use crate::coverage::Point;
use crate::invariants::durability::{sync_is_recorded, written_in_order};
use crate::invariants::files::trimmed_behind_data;
use crate::invariants::liveness::{idle_log_is_marked, io_quiesces};
use crate::invariants::outputs::{nothing_written_after_failure, shortage_is_waited_out};
use crate::invariants::{Verdict, Violation};
use crate::oracle::NextSegment;
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
        while self.perform_op(JobClass::Log, None)?
            || self.perform_op(JobClass::Background, None)?
            || self.end_next_read()?
        {
            ops += 1;
            io_quiesces(ops)?;
            self.collect()?;
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
                Some(job) => {
                    nothing_written_after_failure(self.failed_from, job.ops())?;
                    // The log is not idle.
                    self.synced_at = self.synced_at.filter(|_| class == JobClass::Background);
                    let running = RunningJob { job, next: 0 };
                    self.room.begun(&running, broker.broker().appended());
                    if let Some(oracle) = self.oracle.as_mut().filter(|_| running.created_segment().is_some()) {
                        oracle.next_segment(now, NextSegment::Unknown);
                    }
                    running
                }
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
            let smallest = self.setup.segment_bytes.min(self.setup.segment_bytes_min);
            let created = running.created_segment();
            let is_smallest = created.is_some_and(|(_, bytes)| bytes <= smallest);
            let is_no_space = is_smallest && result == Err(StorageFault::Full);
            if is_no_space {
                self.room.not_created();
            } else if let Some(created) = created.filter(|_| result.is_ok()) {
                self.room.created(created, broker.broker().appended());
            }
            let disk = &mut self.disk;
            let sync_again = || {
                let mut syncs = running.job.ops().iter().filter(|op| matches!(op, IoOp::Sync { .. }));
                syncs.try_for_each(|sync| sync.perform(disk))
            };
            let reported = self.faults.job_result(result, sync_again);
            let is_synced_log = class == JobClass::Log && reported.is_ok();
            if let Some(oracle) = self.oracle.as_mut().filter(|_| is_synced_log) {
                oracle.synced(self.shadow.records(), |payload| broker.broker().cached_payload(payload).is_some());
            }
            if running.job.ops().iter().any(|op| matches!(op, IoOp::Rename { .. })) {
                self.reads.snapshot_completed();
            }
            broker.complete(now, running.job, reported);
            if is_synced_log {
                self.shadow.report_synced(broker.broker().appended());
                self.synced_at = Some(now.mono);
            }
            shortage_is_waited_out(self.failed_from, broker.failure())?;
            let is_synced = class == JobClass::Log && broker.failure().is_none();
            if let Some(oracle) = &mut self.oracle {
                if is_no_space {
                    oracle.next_segment(now, NextSegment::NoSpace);
                }
                if self.failed_from.is_some() {
                    oracle.fail();
                }
                if is_synced {
                    oracle.release(now, self.shadow.records());
                }
                oracle.durable(self.shadow.records());
            }
            self.check_payloads_in_memory()?;
            self.collect()?;
        } else {
            self.jobs[class as usize] = Some(running);
        }
        Ok(true)
    }

    /// Checks that an idle log has recorded what is synced, or will in time. For a world without pending I/O.
    pub(super) fn check_marked(&self) -> Verdict {
        let Some(broker) = self.broker.as_ref().filter(|broker| broker.failure().is_none()) else { return Ok(()) };
        let Some(synced_at) = self.synced_at.filter(|_| !self.shadow.ends_in_mark() && !self.was_limited) else {
            return Ok(());
        };
        idle_log_is_marked(synced_at, self.clock().mono, broker.poll_timeout())
    }

    /// Records what has reached the disk.
    fn record_op(&mut self, running: &RunningJob, result: &Result<(), StorageFault>) -> Verdict {
        let Some(op) = running.last_done() else { return Ok(()) };
        written_in_order(self.disk.model_mut().take_breach())?;
        match (op, result) {
            (IoOp::Rename { to: FileId::Snapshot(frame), .. }, _) if *frame > self.shadow.durable() => {
                let durable = self.shadow.durable();
                let breach = format!("a snapshot of frame {frame} is named, but the log is synced to frame {durable}");
                written_in_order(Some(breach))?;
            }
            (IoOp::Trim { file, len }, Ok(())) => trimmed_behind_data(*file, *len, self.shadow.end_of(*file))?,
            (IoOp::Append { file, at, bytes }, Ok(())) => {
                self.chain.mix(at.position ^ (bytes.len() as u64) << 32);
                for (frame, record) in self.shadow.appended(*file, at.position, bytes) {
                    self.room.written(frame, record, (&self.setup, self.disk.model()))?;
                    let Some(record) = record else { continue };
                    self.tracker.written(frame.at.lsn, record);
                    tap_written(&mut self.tap_events, frame.at.lsn, record);
                    self.reads.written(self.broker.as_ref(), frame.at.lsn, record)?;
                    coverage::record(&mut self.coverage, self.broker.as_ref(), record);
                    self.counters.count(&record.event);
                    self.tracker.recorded(&record.event);
                    if let Event::Withdrawn { message_ref } = &record.event {
                        self.tracker.withdrawn(message_ref);
                    }
                }
                sync_is_recorded(self.shadow.take_misrecorded())?;
                let has_unsynced = self.broker.as_ref().is_some_and(|b| b.broker().appended() > b.synced().lsn);
                self.coverage.hit_if(has_unsynced && self.jobs[0].is_some(), Point::OverlappingBatches);
            }
            (IoOp::Sync { .. } | IoOp::SyncFolder, Ok(())) => self.shadow.advance_durable(self.disk.model()),
            (IoOp::Rename { to: FileId::Snapshot(frame), .. }, Ok(())) => self.check_listed(*frame)?,
            (IoOp::Remove { file: file @ FileId::Segment(_) }, Ok(())) => {
                self.check_removed(*file)?;
                self.coverage.hit(Point::SegmentsRemoved);
            }
            (IoOp::Sync { .. } | IoOp::SyncFolder, Err(StorageFault::Io(_))) => {
                self.coverage.hit(Point::SyncFailed);
            }
            (IoOp::Create { .. }, Err(StorageFault::NoDescriptor)) => self.coverage.hit(Point::NoDescriptor),
            (IoOp::Append { file, at, bytes }, Err(StorageFault::Io(_))) => {
                // A partial write is readable. Behind it the preallocated file is zero, as the lost part may be.
                let written = self.disk.model().bytes(*file).and_then(|bytes| bytes.get(at.position as usize..));
                let mut found = written.unwrap_or_default().to_vec();
                found.resize(bytes.len(), 0);
                for (frame, record) in self.shadow.appended(*file, at.position, &found) {
                    let Some(record) = record else { continue };
                    self.tracker.written(frame.at.lsn, record);
                    tap_written(&mut self.tap_events, frame.at.lsn, record);
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

/// Records the payloads of a record, if the tap is on.
fn tap_written(tap_events: &mut Option<Vec<TapEvent>>, lsn: Lsn, record: &Record) {
    if let Some(tap_events) = tap_events {
        let bodies = record.event.bodies().map(|(part, body)| (PayloadId { lsn, part }, body));
        tap_events.push(TapEvent::Written(bodies.collect()));
    }
}
