//! The driver: one broker, its clock, its disk, and everybody who waits for it.
//!
//! It lives on the reactor's thread. A request decides at once, in its own turn ([`Driver::ask`]); what it decided is written
//! and synced on a thread of its own ([`io_threads`]) while the next requests are decided; and when the sync has passed, replies and
//! deliveries leave. There is no lock here, and nothing waits for a disk but those whom the disk concerns.

mod answers;
mod apart;
mod io_threads;
mod streams;

use std::cell::{Cell, RefCell, RefMut};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use driftq_core::command::Subscribe;
use driftq_core::log::StorageFault;
use driftq_core::state::State;
use driftq_core::types::{ConsumerId, Lsn, Timestamp};
use driftq_core::{Command, Job, JobClass, Output, Pipeline, Refusal, Reply};
use driftq_files::NullStorage;
use tokio::sync::Notify;

use self::answers::{Answer, Answers, Waiter};
pub(crate) use self::answers::{Gather, Outcome};
pub(crate) use self::io_threads::IoThreads;
pub(crate) use self::streams::Next;
use self::streams::{StreamSeed, Streams};
use crate::clock::Clock;
use crate::metrics::Metrics;

/// Who performs the log's jobs.
#[derive(Debug)]
pub(crate) enum Disk {
    /// Threads over real files.
    Threads(IoThreads),
    /// Nobody: there is no log on disk, and every job is done as soon as it is asked for.
    None(NullStorage),
}

/// Why the broker takes no commands at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unready {
    /// The log is still being read.
    Recovering,
    /// The log has failed.
    Failed,
    /// The process is about to end.
    Draining,
}

/// The broker, driven.
pub(crate) struct Driver {
    clock: Clock,
    metrics: Rc<Metrics>,
    wake: Arc<Notify>,
    engine: RefCell<Option<Engine>>,
    answers: RefCell<Answers>,
    streams: RefCell<Streams>,
    /// What the driver itself asks of the broker in its next turn.
    errands: RefCell<VecDeque<Command>>,
    draining: Cell<bool>,
    failure_told: Cell<bool>,
}

struct Engine {
    pipeline: Pipeline,
    disk: Disk,
}

impl Driver {
    /// A driver that has no broker yet.
    pub(crate) fn new(clock: Clock, metrics: Rc<Metrics>, wake: Arc<Notify>) -> Rc<Self> {
        Rc::new(Self {
            clock,
            metrics,
            wake,
            engine: RefCell::new(None),
            answers: RefCell::default(),
            streams: RefCell::default(),
            errands: RefCell::default(),
            draining: Cell::new(false),
            failure_told: Cell::new(false),
        })
    }

    /// The log has been read: from now on there is a broker.
    pub(crate) fn start(&self, pipeline: Pipeline, disk: Disk) {
        self.clock.not_before(pipeline.broker().now());
        *self.engine.borrow_mut() = Some(Engine { pipeline, disk });
        self.wake.notify_one();
    }

    /// Now, as the broker knows it.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Why nothing is accepted, if so.
    pub(crate) fn unready(&self) -> Option<Unready> {
        if self.draining.get() {
            return Some(Unready::Draining);
        }
        match &*self.engine.borrow() {
            None => Some(Unready::Recovering),
            Some(engine) if engine.pipeline.failure().is_some() => Some(Unready::Failed),
            Some(_) => None,
        }
    }

    /// The state as it is, synced or not, and the last position of the log it has seen. A copy that shares its memory.
    pub(crate) fn state_now(&self) -> Result<(Lsn, State), Unready> {
        match &*self.engine.borrow() {
            None => Err(Unready::Recovering),
            Some(engine) => Ok((engine.pipeline.broker().appended(), engine.pipeline.state().clone())),
        }
    }

    /// Decides `command` now and gives the reply when it is safe to give.
    pub(crate) async fn ask(&self, command: Command) -> Result<Outcome, Unready> {
        let slot = self.submit_for_slot(command, Waiter::Future)?;
        Ok(Answer::new(self, slot).await)
    }

    /// Connects a stream; its deliveries are to be had by [`Driver::next_delivery`] until [`Driver::leave`].
    pub(crate) async fn subscribe(&self, asked: Subscribe) -> Result<Result<ConsumerId, Refusal>, Unready> {
        let seed = StreamSeed {
            topic: asked.topic.clone(),
            group: asked.group.clone(),
            owner: asked.owner.clone(),
            prefetch: asked.prefetch,
            deliveries_max: asked.deliveries_max,
        };
        let waiter = |slot| Waiter::Stream(slot, Box::new(seed));
        let slot = self.submit_for_slot(Command::Subscribe(asked), waiter)?;
        Ok(match Answer::new(self, slot).await {
            Ok(Reply::Subscribed { consumer }) => Ok(consumer),
            Ok(other) => unreachable!("a subscription is answered by a stream's number: {other:?}"),
            Err(refusal) => Err(refusal),
        })
    }

    /// Decides `command` now; the reply goes to `gather`, after those of all commands given to it before.
    pub(crate) fn gather(&self, command: Command, gather: Rc<dyn Gather>) -> Result<(), Unready> {
        self.submit(command, Waiter::Gathered(gather))
    }

    /// The next message of a stream, as [`Streams::next`].
    pub(crate) fn next_delivery(&self, consumer: ConsumerId, waker: &Waker) -> Next {
        let mut streams = self.streams.borrow_mut();
        let next = streams.next(consumer, self.clock.now(), waker);
        if let Some(prefetch) = streams.recovered(consumer) {
            self.errand(Command::SetPrefetch { consumer, prefetch });
        }
        next
    }

    /// A stream is gone. What it was handed and never read is given back, and so is what is still on its way to it.
    pub(crate) fn leave(&self, consumer: ConsumerId) {
        self.end(consumer, Command::Unsubscribe { consumer });
    }

    /// A stream has had all it asked for. What it was handed it keeps.
    pub(crate) fn finish(&self, consumer: ConsumerId) {
        self.end(consumer, Command::Finish { consumer });
    }

    fn end(&self, consumer: ConsumerId, last: Command) {
        let unread = self.streams.borrow_mut().disconnect(consumer);
        self.errand(last);
        unread.into_iter().for_each(|command| self.errand(command));
    }

    /// Looks at the broker.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&Pipeline) -> T) -> Option<T> {
        self.engine.borrow().as_ref().map(|engine| look(&engine.pipeline))
    }

    /// How many replies are awaited.
    pub(crate) fn awaited(&self) -> usize {
        self.answers.borrow().len()
    }

    /// How many streams are connected.
    pub(crate) fn stream_count(&self) -> usize {
        self.streams.borrow().len()
    }

    /// Drives until the process ends.
    pub(crate) async fn run(self: Rc<Self>) {
        loop {
            let next = self.turn();
            let woken = self.wake.notified();
            match next {
                // There is more to do at once, but not before others have had their turn.
                Some(at) if at <= self.clock.now() => tokio::task::yield_now().await,
                Some(at) => {
                    // Whichever comes first; being late does no harm, the broker looks at the clock itself.
                    let _ = tokio::time::timeout_at(self.clock.instant(at).into(), woken).await;
                }
                None => woken.await,
            }
        }
    }

    /// Ends all streams and takes nothing more.
    pub(crate) fn drain(&self) {
        self.draining.set(true);
        self.streams.borrow_mut().close_all();
        self.wake.notify_one();
    }

    /// Ends the log in an orderly way, once everybody who was let in has been answered or has gone.
    pub(crate) fn close(&self) {
        self.run_errands();
        if let Some(engine) = self.engine.borrow_mut().as_mut() {
            engine.pipeline.close();
        }
        self.wake.notify_one();
    }

    /// Whether [`Driver::close`] has run its course, or never will.
    pub(crate) fn is_closed(&self) -> bool {
        let engine = self.engine.borrow();
        engine.as_ref().is_none_or(|engine| engine.pipeline.is_closed() || engine.pipeline.failure().is_some())
    }

    /// One turn: what the disk has done, what time has brought, what can leave, what the disk is to do next. Says when it wants
    /// the next, whatever happens.
    fn turn(&self) -> Option<Timestamp> {
        // Whoever panics in here takes the driver's task along, and without it nobody would ever be answered again.
        let _whole = WholeOrNothing;
        let now = self.clock.now();
        let commands = self.streams.borrow_mut().look(now);
        self.errands.borrow_mut().extend(commands);
        self.run_errands();
        let mut engine = self.engine.borrow_mut();
        let engine = engine.as_mut()?;
        self.take_done(engine, now);
        if engine.pipeline.poll_timeout().is_some_and(|at| at <= now) {
            engine.pipeline.handle_timeout(now);
        }
        // First the disk, then the answers: while they are written the disk is already busy with the next batch.
        self.hand_out_jobs(engine, now);
        self.release(&mut engine.pipeline, now);
        self.tell_failure(&engine.pipeline);
        if !self.errands.borrow().is_empty() {
            self.wake.notify_one();
        }
        let look = self.streams.borrow().next_look();
        engine.pipeline.poll_timeout().into_iter().chain(look).min()
    }

    fn take_done(&self, engine: &mut Engine, now: Timestamp) {
        let Disk::Threads(io_threads) = &engine.disk else { return };
        while let Some(done) = io_threads.done() {
            self.completed(&mut engine.pipeline, now, done.job, done.result, Some(done.took));
        }
    }

    fn completed(
        &self,
        pipeline: &mut Pipeline,
        now: Timestamp,
        job: Job,
        result: Result<(), StorageFault>,
        took: Option<std::time::Duration>,
    ) {
        let (class, synced, bytes) = (job.class(), pipeline.synced(), job.appended_bytes());
        pipeline.complete(now, job, result);
        if class == JobClass::Log {
            self.metrics.batch(pipeline.synced().0 - synced.0, bytes, took);
        }
    }

    fn hand_out_jobs(&self, engine: &mut Engine, now: Timestamp) {
        for class in [JobClass::Log, JobClass::Background] {
            while let Some(job) = engine.pipeline.poll_job(class) {
                match &mut engine.disk {
                    Disk::Threads(io_threads) => io_threads.perform(job),
                    Disk::None(storage) => {
                        let result = job.perform(storage);
                        self.completed(&mut engine.pipeline, now, job, result, None);
                    }
                }
            }
        }
    }

    /// Gives out what is safe to give.
    fn release(&self, pipeline: &mut Pipeline, now: Timestamp) {
        while let Some(output) = pipeline.poll_output() {
            match output {
                Output::Reply { ticket, result } => {
                    let waiter = self.answers.borrow_mut().take(ticket);
                    self.reply(waiter, result);
                }
                Output::Deliver { consumer, delivery } => {
                    let unread = self.streams.borrow_mut().deliver(consumer, delivery, now);
                    unread.into_iter().for_each(|command| self.errand(command));
                }
                Output::Closed { consumer, .. } => self.streams.borrow_mut().close(consumer),
            }
        }
    }

    fn reply(&self, waiter: Waiter, outcome: Outcome) {
        match waiter {
            Waiter::Future(slot) => {
                self.answers.borrow_mut().fill(slot, outcome);
            }
            Waiter::Stream(slot, seed) => {
                let joined = if let Ok(Reply::Subscribed { consumer }) = outcome { Some(consumer) } else { None };
                if let Some(consumer) = joined {
                    self.streams.borrow_mut().connect(consumer, *seed);
                }
                let taken = self.answers.borrow_mut().fill(slot, outcome);
                if let (false, Some(consumer)) = (taken, joined) {
                    self.leave(consumer);
                }
            }
            Waiter::Gathered(gather) => gather.answered(outcome),
            Waiter::Left(consumer) => self.streams.borrow_mut().forget(consumer),
            Waiter::Nobody => {}
        }
    }

    fn tell_failure(&self, pipeline: &Pipeline) {
        if let Some(failure) = pipeline.failure()
            && !self.failure_told.replace(true)
        {
            tracing::error!("{failure}; nothing more is accepted, restart the broker");
            self.streams.borrow_mut().close_all();
        }
    }

    fn submit_for_slot(&self, command: Command, waiter: impl FnOnce(usize) -> Waiter) -> Result<usize, Unready> {
        if let Some(unready) = self.unready() {
            return Err(unready);
        }
        let slot = self.answers.borrow_mut().open_slot();
        self.decide(command, waiter(slot));
        Ok(slot)
    }

    fn submit(&self, command: Command, waiter: Waiter) -> Result<(), Unready> {
        if let Some(unready) = self.unready() {
            return Err(unready);
        }
        self.decide(command, waiter);
        Ok(())
    }

    fn decide(&self, command: Command, waiter: Waiter) {
        let mut engine = self.engine.borrow_mut();
        let engine = engine.as_mut().expect("asked only where there is a broker");
        let _whole = WholeOrNothing;
        let ticket = engine.pipeline.handle(self.clock.now(), command);
        self.answers.borrow_mut().expect(ticket, waiter);
        self.wake.notify_one();
    }

    fn errand(&self, command: Command) {
        self.errands.borrow_mut().push_back(command);
        self.wake.notify_one();
    }

    fn run_errands(&self) {
        if self.engine.borrow().is_none() {
            return;
        }
        loop {
            let Some(command) = self.errands.borrow_mut().pop_front() else { return };
            let waiter = match command {
                Command::Unsubscribe { consumer } | Command::Finish { consumer } => Waiter::Left(consumer),
                _ => Waiter::Nobody,
            };
            self.decide(command, waiter);
        }
    }

    fn answers(&self) -> RefMut<'_, Answers> {
        self.answers.borrow_mut()
    }
}

/// While this lives the broker is at work. Should that panic, what is in memory is not to be relied on any more, and the process
/// ends at once: the log knows what was promised. (A panic anywhere else costs the connection it happened on.)
struct WholeOrNothing;

impl Drop for WholeOrNothing {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!("the broker panicked; the process ends, a restart goes on from the log");
            std::process::abort();
        }
    }
}
