//! What every thread may know about the broker without asking for it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use driftq_core::types::{Millis, Timestamp};
use driftq_core::{Pipeline, Room};
use tokio::sync::Notify;

/// A sync that takes longer than this is a stall: a disk or a controller that does not answer.
const LOG_STALL: Millis = Millis(5_000);

/// Why the broker accepts no commands now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unready {
    /// The log is being recovered.
    Recovering,
    /// The log has failed.
    Failed,
    /// The process is shutting down.
    Draining,
    /// A sync takes longer than [`LOG_STALL`]. Commands are accepted still, and wait for it.
    LogStalled,
}

/// Which keys are stored: it changes whenever they do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AccessMark {
    /// Counts the changes.
    pub(crate) generation: u64,
    /// Whether there is any key.
    pub(crate) has_keys: bool,
}

impl AccessMark {
    pub(super) fn of(pipeline: &Pipeline) -> Self {
        Self { generation: pipeline.access_generation(), has_keys: !pipeline.state().access().keys().is_empty() }
    }
}

/// The broker's status, written by the sequencer and by a stop, read by all reactors.
#[derive(Debug, Default)]
pub(crate) struct BrokerStatus {
    is_started: AtomicBool,
    has_failed: AtomicBool,
    is_closed: AtomicBool,
    is_draining: AtomicBool,
    /// Notifies those who wait for something else than the broker when it stops.
    drained: Notify,
    /// One more than the monotonic time at which the log job in progress began; 0 if there is none.
    log_busy_since: AtomicU64,
    /// The room of the log, twice its bytes, and one more while the next segment is being prepared. Known only if the
    /// sequencer has a thread of its own.
    log_room: AtomicU64,
    /// The [`AccessMark`]: twice its generation, and one more if there are keys. Known only if the sequencer has a
    /// thread of its own.
    access: AtomicU64,
    /// Someone waits for room in the log.
    awaits_log_room: AtomicBool,
    /// Notifies those who wait for room in the log.
    log_room_made: Notify,
}

impl BrokerStatus {
    /// Why no command is accepted; `None` if commands are accepted.
    pub(crate) fn unready(&self) -> Option<Unready> {
        if self.is_draining() {
            Some(Unready::Draining)
        } else if !self.is_started() {
            Some(Unready::Recovering)
        } else if self.has_failed() {
            Some(Unready::Failed)
        } else {
            None
        }
    }

    /// As [`BrokerStatus::unready`], and [`Unready::LogStalled`] while a sync does not end: what a probe is told.
    pub(crate) fn unready_for_probes(&self, mono: Timestamp) -> Option<Unready> {
        self.unready().or_else(|| (self.log_busy_for(mono) > LOG_STALL).then_some(Unready::LogStalled))
    }

    /// Whether the log is recovered.
    pub(super) fn is_started(&self) -> bool {
        self.is_started.load(Ordering::Acquire)
    }

    /// The log is recovered, and commands are accepted.
    pub(super) fn start(&self) {
        self.is_started.store(true, Ordering::Release);
    }

    /// Whether the log has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// The log has failed.
    pub(super) fn fail(&self) {
        self.has_failed.store(true, Ordering::Release);
    }

    /// Whether the log has its footer, or gets none: it has failed or was never opened.
    pub(crate) fn is_closed(&self) -> bool {
        !self.is_started() || self.has_failed() || self.is_closed.load(Ordering::Acquire)
    }

    /// The log has its footer.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Acquire)
    }

    /// Accepts no further commands.
    pub(crate) fn drain(&self) {
        self.is_draining.store(true, Ordering::Release);
        self.drained.notify_waiters();
        self.log_room_made.notify_waiters();
    }

    /// Resolves once no further commands are accepted.
    pub(crate) async fn draining(&self) {
        let drained = self.drained.notified();
        if !self.is_draining() {
            drained.await;
        }
    }

    /// How long the log job in progress has been under way at `mono`.
    pub(crate) fn log_busy_for(&self, mono: Timestamp) -> Millis {
        match self.log_busy_since.load(Ordering::Relaxed) {
            0 => Millis(0),
            since => mono.since(Timestamp(since - 1)),
        }
    }

    /// A log job begins at `since`, or none is in progress.
    pub(super) fn set_log_busy(&self, since: Option<Timestamp>) {
        self.log_busy_since.store(since.map_or(0, |since| since.0.saturating_add(1)), Ordering::Relaxed);
    }

    /// Which keys are stored, when the sequencer last said so.
    pub(super) fn access_mark(&self) -> AccessMark {
        let access = self.access.load(Ordering::Acquire);
        AccessMark { generation: access >> 1, has_keys: access & 1 == 1 }
    }

    /// Publishes which keys are stored.
    pub(super) fn set_access_mark(&self, AccessMark { generation, has_keys }: AccessMark) {
        self.access.store(generation << 1 | u64::from(has_keys), Ordering::Release);
    }

    /// The room of the log when the sequencer last said so.
    pub(super) fn log_room(&self) -> Room {
        let room = self.log_room.load(Ordering::SeqCst);
        if room & 1 == 1 { Room::UntilPrepared(room >> 1) } else { Room::Prepared(room >> 1) }
    }

    /// Publishes the room of the log.
    pub(super) fn set_log_room(&self, room: Room) {
        let (bytes, is_preparing) = match room {
            Room::UntilPrepared(bytes) => (bytes, 1),
            Room::Prepared(bytes) => (bytes, 0),
        };
        self.log_room.store(bytes.min(u64::MAX >> 1) << 1 | is_preparing, Ordering::SeqCst);
    }

    /// Wakes those who wait for room in the log.
    pub(super) fn notify_log_room(&self) {
        if self.awaits_log_room.swap(false, Ordering::SeqCst) {
            self.log_room_made.notify_waiters();
        }
    }

    /// Resolves when the log may have room again. Call it before room is looked for.
    pub(super) fn log_room_made(&self) -> tokio::sync::futures::Notified<'_> {
        let made = self.log_room_made.notified();
        self.awaits_log_room.store(true, Ordering::SeqCst);
        made
    }
}
