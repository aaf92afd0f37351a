//! The actions a [world](crate::world) executes, one line each in a trace.
//!
//! An action carries everything it needs and draws no random numbers. An action that does not apply to the current
//! state has no effect, so any subsequence of a trace is a valid trace. The serialized names are the trace format, see
//! [`trace`](crate::trace): they do not follow renames in this code.

mod request;

use serde::{Deserialize, Serialize};

pub use self::request::{
    DeliveryRef, Details, EffectBegin, EffectOutcome, EffectRef, GrantRef, NewMessage, Request, RetryPolicy,
    RouterDecision, Scope, SeekTarget, Subscription, Tampering,
};
use crate::names::{Call, Worker};
use crate::reconfiguration::Reconfiguration;

/// One action.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Action {
    /// A client sends a request and it reaches the broker at once.
    #[serde(rename = "ask")]
    Request(Request),
    /// A client sends a request and the network holds it.
    Send {
        /// The name under which it arrives.
        call: Call,
        /// The request.
        #[serde(rename = "ask")]
        request: Request,
    },
    /// A held request reaches the broker, late or once more.
    Arrive {
        /// Which request.
        call: Call,
    },
    /// A worker reads deliveries from its socket.
    Read {
        /// The worker.
        worker: Worker,
        /// At most this many.
        count: u8,
    },
    /// A worker runs an effect it was granted, at most once per grant.
    #[serde(rename = "run")]
    RunEffect(GrantRef),
    /// Time passes.
    #[serde(rename = "pass")]
    AdvanceTime {
        /// How much, in milliseconds.
        ms: u32,
    },
    /// The wall clock of the broker's machine is set forward or back; its monotonic clock goes on.
    #[serde(rename = "jump")]
    JumpClock {
        /// By how much, in milliseconds.
        ms: i64,
    },
    /// While the broker is stopped, an operator sets its wall time to the wall clock and starts it.
    #[serde(rename = "rebase")]
    RebaseClock,
    /// The broker's timeout handler is called, if a timer is due.
    Wake,
    /// One I/O operation is performed.
    Io {
        /// The class of the job it belongs to.
        #[serde(rename = "lane")]
        class: JobClass,
        /// The fault injected into it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fault: Option<IoFault>,
    },
    /// A read of payloads is performed, and completed unless it is late.
    #[serde(rename = "fetch")]
    PerformRead {
        /// Which of those that are not performed, counted round.
        #[serde(default, skip_serializing_if = "is_zero")]
        nth: u8,
        /// The fault injected into it, unless the same bytes could not be read twice before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fault: Option<ReadFault>,
        /// The broker does not get the result yet.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        late: bool,
    },
    /// The broker gets the result of a late read.
    #[serde(rename = "fetched")]
    CompleteRead {
        /// Which of those that are performed, counted round.
        #[serde(default, skip_serializing_if = "is_zero")]
        nth: u8,
    },
    /// While the broker runs, a bit of a live payload is inverted on the disk. Only in a world that
    /// [rots](crate::setup::Setup::rots).
    Rot {
        /// Which of the payloads, in the order of the log, counted round.
        #[serde(default, skip_serializing_if = "is_zero")]
        payload: u8,
        /// The bit, modulo those of its frame.
        #[serde(default, skip_serializing_if = "is_zero")]
        bit: u16,
    },
    /// All pending I/O is performed.
    #[serde(rename = "settle")]
    FlushIo,
    /// A snapshot is requested.
    Snapshot,
    /// The free space of the disk is limited, or the limit is lifted.
    #[serde(rename = "room")]
    SetFreeSpace {
        /// Free bytes beyond what is in use; `None` lifts the limit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bytes: Option<u32>,
    },
    /// The broker has another configuration from its next start on.
    Configure(Reconfiguration),
    /// The broker is shut down cleanly and started again.
    Close,
    /// The process or the machine crashes.
    Crash {
        /// What of the unsynced data is lost.
        loss: Loss,
    },
    /// The broker is started.
    Boot,
    /// The broker is started and crashes during recovery.
    BootAndCrash {
        /// After this many I/O operations.
        after: u8,
        /// What of the unsynced data is lost.
        loss: Loss,
    },
    /// While the broker is stopped, its medium is damaged. A start must cope with it, or refuse it where it must; then
    /// an operator undoes it.
    Damage {
        /// What is damaged.
        damage: Damage,
    },
    /// Checks on a copy of the disk that recovery would detect this damage. The world does not change.
    Probe {
        /// What of the unsynced data is lost.
        loss: Loss,
        /// The damage done to what is left.
        damage: Damage,
    },
    /// Faults end, and every message is delivered and acked.
    Drain,
}

/// The class of an I/O job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobClass {
    /// Batches of the log.
    Log,
    /// Preallocated segments, snapshots, removals.
    Background,
}

/// A fault of one I/O operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum IoFault {
    /// It fails. A failed sync drops the dirty pages: they are still readable and lost at the next crash.
    Fail,
    /// A write stores only a prefix and then fails.
    Short {
        /// The length of the prefix.
        bytes: u16,
    },
    /// The creation of a file finds no descriptor left; any other operation succeeds.
    NoDescriptor,
}

/// A fault of one read of payloads. It passes: the same bytes can be read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ReadFault {
    /// It fails.
    Fail,
    /// It brings only a prefix.
    Short {
        /// The length of the prefix.
        bytes: u16,
    },
    /// One bit of what it brings is inverted.
    Flip {
        /// The bit, modulo those of the first frame that an output waits for.
        bit: u16,
    },
}

/// Whether a number is the default, which a trace does not name.
fn is_zero(number: &(impl Default + PartialEq)) -> bool {
    *number == Default::default()
}

/// What of the unsynced data a crash loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Loss {
    /// Everything: only synced data is left.
    All,
    /// Nothing: only the process crashed.
    Nothing,
    /// Some sectors and directory changes, in any order; some of the rest are garbage.
    #[serde(rename = "some")]
    Partial {
        /// Selects which.
        #[serde(rename = "luck")]
        seed: u32,
    },
    /// Everything after an exact prefix, in write order.
    Cut {
        /// The length of the prefix that is kept; a directory change counts as one byte.
        bytes: u32,
    },
}

/// Damage to synced data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Damage {
    /// One bit is inverted.
    Flip {
        /// The bit, modulo the number of bits on the disk.
        bit: u32,
    },
    /// A sector reads as zeros.
    Zero {
        /// The sector, modulo the number of sectors on the disk.
        sector: u32,
    },
    /// A write to one sector overwrote another.
    Misdirect {
        /// The intended sector.
        from: u32,
        /// The overwritten sector.
        to: u32,
    },
    /// A sector cannot be read.
    Unreadable {
        /// The sector, modulo the number of sectors on the disk.
        sector: u32,
    },
}
