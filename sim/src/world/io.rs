//! The driver's part: performing what the pipeline asks for, one piece at a time.

use std::fmt;

use driftq_core::faults::Faults;
use driftq_core::log::{FileId, IoOp as Piece, StorageFault};
use driftq_core::record::Event;
use driftq_core::{Job, JobClass as CoreLane};

use super::{LOG_ID, World, coverage};
use crate::actions::{IoFault, JobClass};
use crate::coverage::Point;
use crate::invariants::lifecycle::skipped_is_acked;
use crate::invariants::liveness::io_quiesces;
use crate::invariants::{Verdict, Violation};
use crate::storage::SimStorage;

/// A job under way.
#[derive(Clone, Debug)]
pub(super) struct Running {
    job: Job,
    /// The piece to do next.
    next: usize,
}

impl Running {
    /// Writes down what is to be done and how far it is, for [a fingerprint](super::Fingerprint).
    pub(super) fn canonical(&self, out: &mut impl fmt::Write) -> fmt::Result {
        let Self { job, next } = self;
        write!(out, "{next} ")?;
        job.canonical(LOG_ID, out)
    }

    /// The last piece that was done, if any.
    pub(super) fn last_done(&self) -> Option<&Piece> {
        self.job.ops().get(self.next.checked_sub(1)?)
    }

    /// The piece that would be done next.
    pub(super) fn next_piece(&self) -> Option<&Piece> {
        self.job.ops().get(self.next)
    }
}

impl JobClass {
    const fn core(self) -> CoreLane {
        match self {
            Self::Log => CoreLane::Log,
            Self::Background => CoreLane::Background,
        }
    }
}

impl<F: Faults, M: SimStorage> World<F, M> {
    /// The next piece of I/O of the class, beginning a job where none is under way.
    pub(super) fn io(&mut self, class: JobClass, fault: Option<IoFault>) -> Verdict {
        self.piece(class, fault)?;
        Ok(())
    }

    /// All I/O there is.
    pub(super) fn settle(&mut self) -> Verdict {
        let mut pieces = 0;
        while self.piece(JobClass::Log, None)? || self.piece(JobClass::Background, None)? {
            pieces += 1;
            io_quiesces(pieces)?;
        }
        self.collect()
    }

    /// Does one piece; false if there is none to do.
    fn piece(&mut self, class: JobClass, fault: Option<IoFault>) -> Result<bool, Violation> {
        let now = self.clock();
        let Some(broker) = &mut self.broker else { return Ok(false) };
        let mut running = match self.lanes[class as usize].take() {
            Some(running) => running,
            None => match broker.poll_job(class.core()) {
                Some(job) => Running { job, next: 0 },
                None => return Ok(false),
            },
        };
        self.counters.events += 1;
        let result = match running.next_piece() {
            Some(piece) => {
                self.disk.model_mut().set_fault(fault);
                let result = piece.perform(&mut self.disk);
                self.disk.model_mut().set_fault(None);
                running.next += 1;
                result
            }
            None => Ok(()),
        };
        self.note(&running, &result)?;
        let Some(broker) = &mut self.broker else { return Ok(false) };
        if result.is_err() || running.next >= running.job.ops().len() {
            let full = matches!(result, Err(StorageFault::Full)) && class == JobClass::Background;
            if result.is_err() && !full && self.failed_from.is_none() {
                // Whatever the broker makes of it.
                self.failed_from = Some(self.next_ticket);
            }
            broker.complete(now, running.job, result);
            if let Some(oracle) = &mut self.oracle {
                oracle.durable(self.shadow.records());
            }
            self.collect()?;
        } else {
            self.lanes[class as usize] = Some(running);
        }
        Ok(true)
    }

    /// Takes note of what has reached the disk.
    fn note(&mut self, running: &Running, result: &Result<(), StorageFault>) -> Verdict {
        let Some(piece) = running.last_done() else { return Ok(()) };
        match (piece, result) {
            (Piece::Append { file, at, bytes }, Ok(())) => {
                self.chain.mix(at.position ^ (bytes.len() as u64) << 32);
                for record in self.shadow.appended(*file, at.position, bytes) {
                    coverage::record(&mut self.coverage, self.broker.as_ref(), record);
                    self.counters.count(&record.event);
                    if let (Event::Skipped { message_ref }, Some(broker)) = (&record.event, &self.broker) {
                        skipped_is_acked(broker.state(), message_ref)?;
                    }
                }
                let deciding = self.broker.as_ref().is_some_and(|b| b.broker().appended() > b.synced());
                self.coverage.hit_if(deciding && self.lanes[0].is_some(), Point::OverlappingBatches);
            }
            (Piece::Sync { .. } | Piece::SyncFolder, Ok(())) => self.shadow.settle(self.disk.model()),
            (Piece::Remove { file: FileId::Segment(_) }, Ok(())) => self.coverage.hit(Point::SegmentsRemoved),
            (Piece::Sync { .. } | Piece::SyncFolder, Err(StorageFault::Io(_))) => {
                self.coverage.hit(Point::SyncFailed);
            }
            (Piece::Append { file, at, bytes }, Err(StorageFault::Io(_))) => {
                // Whatever of it was written is there to be found. The file is zeros ahead, and so may the rest have been.
                let written = self.disk.model().bytes(*file).and_then(|bytes| bytes.get(at.position as usize..));
                let mut found = written.unwrap_or_default().to_vec();
                found.resize(bytes.len(), 0);
                self.shadow.appended(*file, at.position, &found).for_each(drop);
                self.coverage.hit(Point::WriteFailed);
            }
            _ => {}
        }
        Ok(())
    }
}
