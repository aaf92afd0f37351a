//! Jobs: the I/O that a pipeline requests of its driver.

use super::maintenance::MaintenanceTask;
use crate::log::{IoOp, LogPosition, Storage, StorageFault};

/// The class of a job. Jobs of one class are performed in order; jobs of different classes may overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobClass {
    /// Batches of the log. Outputs wait for these.
    Log,
    /// Preparing segments, writing snapshots, removing files.
    Background,
}

/// I/O to perform: all ops in order, stopping at the first that fails.
#[derive(Clone, Debug)]
#[must_use = "a job that is not performed and completed stops the pipeline"]
pub struct Job {
    pub(super) class: JobClass,
    pub(super) ops: Vec<IoOp>,
    pub(super) purpose: Purpose,
}

/// What the completion of a job means.
#[derive(Clone, Copy, Debug)]
pub(super) enum Purpose {
    /// The log is synced through this position, which is at this byte of this segment.
    Commit { through: LogPosition, end: (u64, u64) },
    /// A maintenance task has ended.
    Maintenance(MaintenanceTask),
}

impl Job {
    /// The class it belongs to.
    #[must_use]
    pub fn class(&self) -> JobClass {
        self.class
    }

    /// The ops to perform, in order.
    #[must_use]
    pub fn ops(&self) -> &[IoOp] {
        &self.ops
    }

    /// The number of bytes that the job appends to files.
    #[must_use]
    pub fn appended_bytes(&self) -> u64 {
        let appended = |op: &IoOp| if let IoOp::Append { bytes, .. } = op { bytes.len() as u64 } else { 0 };
        self.ops.iter().map(appended).sum()
    }

    /// Performs the job. The result is for [`Pipeline::complete`](super::Pipeline::complete).
    ///
    /// # Errors
    /// Of the first op that failed; the ops after it were not performed.
    pub fn perform(&self, storage: &mut (impl Storage + ?Sized)) -> Result<(), StorageFault> {
        self.ops.iter().try_for_each(|op| op.perform(storage))
    }
}
