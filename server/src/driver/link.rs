//! How a driver reaches the sequencer: it has it, or it shares it with the drivers of other reactors.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::task::Waker;

use driftq_core::Pipeline;
use driftq_core::types::Now;
use tokio::sync::oneshot;

use super::broker_clock::BrokerClock;
use super::crossing::{BYTES_MAX, Crossing, Released, Submission};
use super::sequencer::Sequencer;
use super::status::{AccessMark, BrokerStatus};
use super::wake::SequencerSignal;

/// The way to the sequencer.
pub(super) enum Link {
    /// On this thread. `None` until the log is recovered.
    Inline(RefCell<Option<Box<Sequencer>>>),
    /// On a thread of its own.
    Remote(Remote),
}

/// One end of a [`Crossing`].
pub(super) struct Remote {
    crossing: Arc<Crossing>,
    /// Those of all reactors.
    crossings: Arc<[Arc<Crossing>]>,
    signal: Arc<SequencerSignal>,
    status: Arc<BrokerStatus>,
    /// What was submitted in this turn.
    submissions: RefCell<Vec<Submission>>,
    /// Outputs in progress; empty between two turns.
    released: Cell<Vec<Released>>,
    /// Requests that wait until commands can be submitted.
    room_waiters: RefCell<Vec<Waker>>,
}

impl Remote {
    /// The end of the reactor with this index.
    pub(super) fn new(
        index: usize,
        crossings: Arc<[Arc<Crossing>]>,
        signal: Arc<SequencerSignal>,
        status: Arc<BrokerStatus>,
    ) -> Self {
        Self {
            crossing: Arc::clone(&crossings[index]),
            crossings,
            signal,
            status,
            submissions: RefCell::default(),
            released: Cell::default(),
            room_waiters: RefCell::default(),
        }
    }

    /// Submits something in this turn.
    pub(super) fn submit(&self, submission: Submission) {
        if let Submission::Command(..) = submission {
            self.crossing.count_submitted(submission.bytes());
        }
        self.submissions.borrow_mut().push(submission);
    }

    /// Passes on what was submitted in this turn.
    pub(super) fn pass_on(&self) {
        let mut submissions = self.submissions.borrow_mut();
        if !submissions.is_empty() {
            self.crossing.pass_on(&mut submissions);
            self.signal.signal();
        }
    }

    /// Passes what the sequencer has released to `release`. Returns the broker's clocks.
    pub(super) fn take_released(&self, mut release: impl FnMut(Released, &BrokerClock)) -> BrokerClock {
        let mut released = self.released.take();
        let (clock, delivery_bytes) = self.crossing.take_released(&mut released);
        released.drain(..).for_each(|released| release(released, &clock));
        self.crossing.count_queued(delivery_bytes);
        self.released.set(released);
        if !self.crossing.is_full() {
            self.room_waiters.take().into_iter().for_each(Waker::wake);
        }
        clock
    }

    /// Whether further commands have to wait; then `waker` is woken when they need not any more.
    pub(super) fn must_wait(&self, waker: &Waker) -> bool {
        let must_wait = self.crossing.is_full() && self.crossing.await_room();
        if must_wait {
            self.room_waiters.borrow_mut().push(waker.clone());
        }
        must_wait
    }

    /// Whether a record of `bytes` bytes would be refused for now, since the log's next segment is being prepared. What
    /// all reactors have submitted comes first.
    pub(super) fn lacks_log_room(&self, bytes: u64) -> bool {
        let under_way_max = (self.crossings.len() as u64).saturating_mul(2 * BYTES_MAX);
        if !self.status.log_room().lacks(bytes, under_way_max) {
            return false;
        }
        // What is under way is read before what is left, so that nothing is missing from both.
        let under_way: u64 = self.crossings.iter().map(|crossing| crossing.bytes_under_way()).sum();
        self.status.log_room().lacks(bytes, under_way)
    }
}

/// What was read from the pipeline, or will be.
pub(crate) enum Reading<T> {
    /// `None` if the log is not recovered.
    Known(Option<T>),
    Asked(oneshot::Receiver<T>),
}

impl<T> Reading<T> {
    /// Waits for it. `None` if the log is not recovered, or the broker has stopped.
    pub(crate) async fn wait(self) -> Option<T> {
        match self {
            Self::Known(value) => value,
            Self::Asked(answer) => answer.await.ok(),
        }
    }

    /// It, if the reply to a command that was submitted after it has come.
    pub(crate) fn now(self) -> Option<T> {
        match self {
            Self::Known(value) => value,
            Self::Asked(mut answer) => answer.try_recv().ok(),
        }
    }
}

impl Link {
    /// Reads the pipeline, between the commands before and after.
    pub(super) fn read<T: Send + 'static>(&self, read: impl FnOnce(&Pipeline) -> T + Send + 'static) -> Reading<T> {
        match self {
            Self::Inline(sequencer) => {
                Reading::Known(sequencer.borrow().as_ref().map(|sequencer| read(sequencer.pipeline())))
            }
            Self::Remote(remote) if remote.status.is_started() => {
                let (send, answer) = oneshot::channel();
                let read = move |pipeline: &Pipeline| {
                    // The reader may have gone.
                    let _ = send.send(read(pipeline));
                };
                remote.submit(Submission::Read(Box::new(read)));
                Reading::Asked(answer)
            }
            Self::Remote(_) => Reading::Known(None),
        }
    }

    /// Which keys are stored; none until the log is recovered.
    pub(super) fn access_mark(&self) -> AccessMark {
        match self {
            Self::Inline(sequencer) => {
                sequencer.borrow().as_ref().map_or_else(AccessMark::default, |own| AccessMark::of(own.pipeline()))
            }
            Self::Remote(remote) => remote.status.access_mark(),
        }
    }

    /// The broker's clocks, if they are known at once.
    pub(super) fn clock(&self, now: Now) -> Option<BrokerClock> {
        match self {
            Self::Inline(sequencer) => {
                sequencer.borrow().as_ref().map(|sequencer| BrokerClock::of(sequencer.pipeline(), now))
            }
            Self::Remote(_) => None,
        }
    }
}
