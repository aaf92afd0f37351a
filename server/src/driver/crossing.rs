//! What crosses between a reactor and the sequencer's thread: commands one way, outputs the other, both in batches.
//!
//! A reactor collects the commands of one turn and passes them on under one lock, which is held to move a list and for
//! nothing else. The sequencer does the same with its outputs. Either wakes the other once per turn at most. How much
//! is on its way is bounded: commands beyond that wait at their reactor, deliveries leave their bytes behind and are
//! withdrawn by it.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use driftq_core::reply::Delivery;
use driftq_core::types::{Caller, ConsumerId, LeaseToken, Offset, PartitionId};
use driftq_core::{Command, Pipeline};
use tokio::sync::Notify;

use super::broker_clock::BrokerClock;
use super::pending_replies::{CommandNumber, ReplyResult};
use super::streams::bytes_of;

/// Commands of one reactor on their way to the sequencer, beyond which further ones wait.
const COMMANDS_MAX: u64 = 1_024;
/// Their bytes, beyond which further ones wait.
pub(super) const BYTES_MAX: u64 = 2 << 20;
/// What the record of a message takes beside its key and value, with what is usual of metadata.
pub(super) const RECORD_OVERHEAD: u64 = 1_024;

/// Reads the pipeline on the sequencer's thread.
pub(super) type ReadPipeline = Box<dyn FnOnce(&Pipeline) + Send>;

/// What a reactor gives to the sequencer.
pub(super) enum Submission {
    /// A command and who sends it. Its reply is given back with the number.
    Command(CommandNumber, Caller, Command),
    /// Something is read between two commands.
    Read(ReadPipeline),
    /// The log is to be closed.
    Close,
}

impl Submission {
    /// The bytes that it adds to the log, at most, roughly.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Command(_, _, Command::Produce(produce)) => (produce.payload_len()) as u64 + RECORD_OVERHEAD,
            Self::Command(_, _, Command::Complete(step)) => {
                let outputs = step.produce.iter().map(|output| (output.payload_len()) as u64);
                outputs.map(|bytes| bytes + RECORD_OVERHEAD).sum::<u64>() + RECORD_OVERHEAD
            }
            Self::Command(..) => RECORD_OVERHEAD,
            Self::Read(_) | Self::Close => 0,
        }
    }
}

/// What the sequencer gives to a reactor.
#[derive(Debug)]
pub(super) enum Released {
    /// The reply to the command with this number.
    Reply(CommandNumber, ReplyResult),
    /// A delivery to a stream of the reactor.
    Delivery(ConsumerId, Box<Delivery>),
    /// A delivery for which there was no room on the way.
    Refused(ConsumerId, RefusedDelivery),
    /// The broker ended a stream of the reactor.
    Closed(ConsumerId),
}

/// What is left of a delivery without room.
#[derive(Clone, Copy, Debug)]
pub(super) struct RefusedDelivery {
    pub(super) partition: PartitionId,
    pub(super) offset: Offset,
    pub(super) token: LeaseToken,
    /// The bytes that it would have taken.
    pub(super) bytes: usize,
}

impl RefusedDelivery {
    pub(super) fn of(delivery: &Delivery) -> Self {
        let Delivery { partition, offset, token, .. } = *delivery;
        Self { partition, offset, token, bytes: bytes_of(delivery) }
    }
}

/// What the sequencer releases to a reactor in one turn.
#[derive(Debug, Default)]
pub(super) struct TurnOutputs {
    released: Vec<Released>,
    /// The bytes of the deliveries among them.
    delivery_bytes: usize,
}

impl TurnOutputs {
    pub(super) fn is_empty(&self) -> bool {
        self.released.is_empty()
    }

    pub(super) fn push(&mut self, released: Released) {
        self.released.push(released);
    }

    /// Adds a delivery, without its bytes if `crossing` has no room for them.
    pub(super) fn push_delivery(&mut self, crossing: &Crossing, consumer: ConsumerId, delivery: Box<Delivery>) {
        let bytes = bytes_of(&delivery);
        let under_way = crossing.delivery_bytes.load(Ordering::Relaxed) + self.delivery_bytes;
        if under_way > 0 && under_way.saturating_add(bytes) > crossing.delivery_bytes_max {
            return self.push(Released::Refused(consumer, RefusedDelivery::of(&delivery)));
        }
        self.delivery_bytes += bytes;
        self.push(Released::Delivery(consumer, delivery));
    }
}

/// Commands and bytes, since the start.
#[derive(Debug, Default)]
struct Totals {
    commands: AtomicU64,
    bytes: AtomicU64,
}

impl Totals {
    /// Adds to them. Only one thread does.
    fn add(&self, commands: u64, bytes: u64) {
        self.bytes.store(self.bytes.load(Ordering::Relaxed) + bytes, Ordering::SeqCst);
        self.commands.store(self.commands.load(Ordering::Relaxed) + commands, Ordering::SeqCst);
    }
}

/// The way between one reactor and the sequencer.
#[derive(Debug)]
pub(crate) struct Crossing {
    submissions: Mutex<Vec<Submission>>,
    outputs: Mutex<Outputs>,
    /// Added to by the reactor when it accepts a command.
    submitted: Totals,
    /// Added to by the sequencer when commands are decided.
    handled: Totals,
    /// The reactor has requests that wait for room.
    awaits_room: AtomicBool,
    /// The reactor was notified, and has not looked since.
    is_notified: AtomicBool,
    reactor: Arc<Notify>,
    /// The bytes of deliveries that the reactor has not queued for their streams.
    delivery_bytes: AtomicUsize,
    /// Their most, unless it is a single one.
    delivery_bytes_max: usize,
}

/// What the reactor has not taken yet.
#[derive(Debug, Default)]
pub(super) struct Outputs {
    pub(super) released: Vec<Released>,
    /// The bytes of the deliveries among them.
    delivery_bytes: usize,
    /// The broker's clocks at the last release.
    pub(super) clock: BrokerClock,
}

impl std::fmt::Debug for Submission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Command(number, caller, command) => {
                f.debug_tuple("Command").field(number).field(caller).field(command).finish()
            }
            Self::Read(_) => f.write_str("Read"),
            Self::Close => f.write_str("Close"),
        }
    }
}

impl Crossing {
    /// A way to and from the reactor that `reactor` wakes, with room for `delivery_bytes_max` bytes of deliveries.
    pub(crate) fn new(reactor: Arc<Notify>, delivery_bytes_max: usize) -> Arc<Self> {
        Arc::new(Self {
            submissions: Mutex::default(),
            outputs: Mutex::default(),
            submitted: Totals::default(),
            handled: Totals::default(),
            awaits_room: AtomicBool::new(false),
            is_notified: AtomicBool::new(false),
            reactor,
            delivery_bytes: AtomicUsize::new(0),
            delivery_bytes_max,
        })
    }

    /// Wakes the reactor, once until it looks.
    pub(super) fn notify_reactor(&self) {
        if !self.is_notified.swap(true, Ordering::SeqCst) {
            self.reactor.notify_one();
        }
    }

    /// Whether the reactor was woken and has not looked since.
    #[cfg(test)]
    pub(super) fn is_notified(&self) -> bool {
        self.is_notified.load(Ordering::SeqCst)
    }

    // The reactor's side.

    /// Counts a command as on its way.
    pub(super) fn count_submitted(&self, bytes: u64) {
        self.submitted.add(1, bytes);
    }

    /// Passes on what was submitted in this turn; the list is empty then.
    pub(super) fn pass_on(&self, submissions: &mut Vec<Submission>) {
        move_all(submissions, &mut lock(&self.submissions));
    }

    /// The bytes that are on their way to the sequencer.
    pub(super) fn bytes_under_way(&self) -> u64 {
        // What is handled is read first: it must not be ahead of what is submitted.
        let handled = self.handled.bytes.load(Ordering::SeqCst);
        self.submitted.bytes.load(Ordering::SeqCst).saturating_sub(handled)
    }

    /// Whether further commands have to wait.
    pub(super) fn is_full(&self) -> bool {
        let commands = self.submitted.commands.load(Ordering::Relaxed) - self.handled.commands.load(Ordering::SeqCst);
        commands >= COMMANDS_MAX || self.bytes_under_way() >= BYTES_MAX
    }

    /// Whether further commands have to wait. If so the reactor is woken when they need not any more.
    pub(super) fn await_room(&self) -> bool {
        self.awaits_room.store(true, Ordering::SeqCst);
        self.is_full()
    }

    /// Takes what was released, into an empty list. Returns the bytes of the deliveries among it, which are under way
    /// until [`Crossing::count_queued`].
    pub(super) fn take_released(&self, released: &mut Vec<Released>) -> (BrokerClock, usize) {
        self.is_notified.store(false, Ordering::SeqCst);
        let mut outputs = lock(&self.outputs);
        std::mem::swap(&mut outputs.released, released);
        (outputs.clock, std::mem::take(&mut outputs.delivery_bytes))
    }

    /// So many bytes of deliveries are queued for their streams, or were withdrawn.
    pub(super) fn count_queued(&self, delivery_bytes: usize) {
        if delivery_bytes > 0 {
            self.delivery_bytes.fetch_sub(delivery_bytes, Ordering::Relaxed);
        }
    }

    // The sequencer's side.

    /// Takes what was submitted, into an empty list.
    pub(super) fn take_submitted(&self, submissions: &mut Vec<Submission>) {
        std::mem::swap(&mut *lock(&self.submissions), submissions);
    }

    /// So many commands are decided.
    pub(super) fn count_handled(&self, commands: u64, bytes: u64) {
        self.handled.add(commands, bytes);
        if self.awaits_room.swap(false, Ordering::SeqCst) {
            self.notify_reactor();
        }
    }

    /// Gives outputs to the reactor and wakes it; the list is empty then.
    pub(super) fn release(&self, turn: &mut TurnOutputs, clock: BrokerClock) {
        let bytes = std::mem::take(&mut turn.delivery_bytes);
        let mut outputs = lock(&self.outputs);
        outputs.clock = clock;
        outputs.delivery_bytes += bytes;
        self.delivery_bytes.fetch_add(bytes, Ordering::Relaxed);
        move_all(&mut turn.released, &mut outputs.released);
        drop(outputs);
        self.notify_reactor();
    }
}

/// A list has no state that a panic could leave half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Moves all of `from` behind `to`; swaps them if that does the same.
fn move_all<T>(from: &mut Vec<T>, to: &mut Vec<T>) {
    match to.is_empty() {
        true => std::mem::swap(from, to),
        false => to.append(from),
    }
}
