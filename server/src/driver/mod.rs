//! Drives the broker: feeds commands and time into the core's [`Pipeline`], performs its I/O jobs and releases its
//! outputs.
//!
//! The driver runs on the reactor's thread and has no locks. A command is decided at once, in the task of its request
//! ([`Driver::ask`]); its records are written and synced by the threads of [`io_threads`] while further commands are
//! decided. The pipeline holds replies and deliveries until the sync has passed their log position and the bytes of
//! their messages are in memory, which the same threads read if necessary; then [`Driver::run`] passes replies to their
//! waiters ([`pending_replies`]) and deliveries to their streams ([`streams`]).

mod affinity;
#[cfg(test)]
mod clock_tests;
mod io_threads;
mod pending_replies;
mod streams;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use driftq_core::command::Subscribe;
use driftq_core::command::{CloseStream, SetPrefetch, Unsubscribe};
use driftq_core::log::StorageFault;
use driftq_core::state::State;
use driftq_core::types::{ConsumerId, Lsn, Millis, Now, Timestamp, WallClock};
use driftq_core::{Command, Job, JobClass, Output, Pipeline, Refusal, Reply, Request};
use driftq_files::VolatileStorage;
use tokio::sync::Notify;

pub(crate) use self::io_threads::{IoThreads, Use};
use self::pending_replies::{PendingReplies, Waiter};
pub(crate) use self::pending_replies::{ReplyResult, ReplySink};
pub(crate) use self::streams::NextDelivery;
use self::streams::{StreamSpec, Streams};
use crate::clock::Clock;
use crate::metrics::Metrics;

/// How often the wall clock is read while a deadline or a `deliver_at` is scheduled: so soon does an idle broker notice
/// a wall clock that was set forward.
const WALL_CLOCK_INTERVAL: Millis = Millis(1_000);

/// A sync that takes longer than this is a stall: a disk or a controller that does not answer.
pub(crate) const LOG_STALL: Millis = Millis(5_000);

/// What performs the pipeline's jobs.
#[derive(Debug)]
pub(crate) enum Disk {
    /// Threads over real files.
    Threads(IoThreads),
    /// No log on disk: a job is completed at once.
    Volatile(VolatileStorage),
}

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

/// How long a message waits for room in the log before it is refused: as long as its client would be told to wait.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(1);
/// What the record of a message takes beside its key and value, with what is usual of metadata.
const RECORD_OVERHEAD: u64 = 1_024;

/// The broker of this process and everything that waits for it.
pub(crate) struct Driver {
    clock: Clock,
    metrics: Rc<Metrics>,
    wake: Arc<Notify>,
    /// The next iteration is due already.
    is_woken: Cell<bool>,
    /// `None` until the log is recovered.
    engine: RefCell<Option<Engine>>,
    pending_replies: RefCell<PendingReplies>,
    streams: RefCell<Streams>,
    /// Commands of the driver itself, submitted in its next iteration.
    deferred_commands: RefCell<VecDeque<Command>>,
    draining: Cell<bool>,
    /// Notifies those who wait for something else than the broker when it stops.
    stopped: Notify,
    is_failure_logged: Cell<bool>,
    /// The monotonic time at which the timeout handler is called next, to compare the clocks.
    check_clock_at: Cell<Timestamp>,
    /// The monotonic time at which the log job in progress began.
    log_busy_since: Cell<Option<Timestamp>>,
    /// Notifies those who wait for room in the log.
    log_room: Notify,
}

struct Engine {
    pipeline: Pipeline,
    disk: Disk,
}

impl Driver {
    /// A driver without a broker yet: [`Driver::start`] provides it.
    ///
    /// Deliveries that streams have not taken yet may have `stream_bytes_max` bytes.
    pub(crate) fn new(clock: Clock, metrics: Rc<Metrics>, wake: Arc<Notify>, stream_bytes_max: usize) -> Rc<Self> {
        Rc::new(Self {
            clock,
            metrics,
            wake,
            is_woken: Cell::new(false),
            engine: RefCell::new(None),
            pending_replies: RefCell::default(),
            streams: RefCell::new(Streams::new(stream_bytes_max)),
            deferred_commands: RefCell::default(),
            draining: Cell::new(false),
            stopped: Notify::new(),
            is_failure_logged: Cell::new(false),
            check_clock_at: Cell::new(Timestamp(0)),
            log_busy_since: Cell::new(None),
            log_room: Notify::new(),
        })
    }

    /// Starts to accept commands, over a recovered log.
    pub(crate) fn start(&self, pipeline: Pipeline, disk: Disk) {
        *self.engine.borrow_mut() = Some(Engine { pipeline, disk });
        self.wake();
    }

    /// The clocks of the machine.
    pub(crate) fn now(&self) -> Now {
        self.clock.now()
    }

    /// Converts the times in replies and deliveries to those that are shown to clients.
    pub(crate) fn wall_clock(&self) -> WallClock {
        self.with_pipeline(|pipeline| *pipeline.broker().state().wall_clock()).unwrap_or_default()
    }

    /// How far wall time in the broker is ahead of the wall clock, in milliseconds; 0 until the log is recovered.
    pub(crate) fn clock_ahead_ms(&self) -> i64 {
        self.with_pipeline(|pipeline| pipeline.broker().clock_ahead_ms(self.clock.now())).unwrap_or(0)
    }

    /// Broker time now.
    fn broker_time(&self, now: Now) -> Timestamp {
        self.with_pipeline(|pipeline| pipeline.broker().time_at(now.mono)).unwrap_or_default()
    }

    /// Why no command is accepted; `None` if commands are accepted.
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

    /// As [`Driver::unready`], and [`Unready::LogStalled`] while a sync does not end: what a probe is told.
    pub(crate) fn unready_for_probes(&self) -> Option<Unready> {
        self.unready().or_else(|| (self.log_busy_for() > LOG_STALL).then_some(Unready::LogStalled))
    }

    /// How long the log job in progress has been under way.
    pub(crate) fn log_busy_for(&self) -> Millis {
        self.log_busy_since.get().map_or(Millis(0), |since| self.clock.now().mono.since(since))
    }

    /// A copy of the current state, which may be ahead of the sync, and the last LSN appended to it. The copy shares
    /// memory.
    pub(crate) fn snapshot_state(&self) -> Result<(Lsn, State), Unready> {
        match &*self.engine.borrow() {
            None => Err(Unready::Recovering),
            Some(engine) => Ok((engine.pipeline.broker().appended(), engine.pipeline.state().clone())),
        }
    }

    /// Decides a command now and resolves to its reply once the sync has passed it.
    pub(crate) async fn ask<R: Request>(&self, request: R) -> Result<Result<R::Reply, Refusal>, Unready> {
        let slot = self.submit_for_slot(request.into(), Waiter::Future)?;
        Ok(ReplyFuture::new(self, slot).await.map(R::reply))
    }

    /// Connects a stream. [`Driver::poll_delivery`] yields its deliveries until [`Driver::disconnect`] or
    /// [`Driver::close_stream`].
    pub(crate) async fn subscribe(&self, subscribe: Subscribe) -> Result<Result<ConsumerId, Refusal>, Unready> {
        let lease = self.with_pipeline(|pipeline| pipeline.broker().limits().lease(subscribe.lease));
        let spec = StreamSpec {
            topic: subscribe.topic.clone(),
            group: subscribe.group.clone(),
            owner: subscribe.owner.clone(),
            lease: lease.unwrap_or_default(),
            prefetch: subscribe.prefetch,
            deliveries_max: subscribe.deliveries_max,
        };
        let waiter = |slot| Waiter::Stream(slot, Box::new(spec));
        let slot = self.submit_for_slot(Command::Subscribe(subscribe), waiter)?;
        Ok(ReplyFuture::new(self, slot).await.map(Subscribe::reply))
    }

    /// Whether a message of `bytes` bytes would be refused for now, since the log's next segment is being prepared.
    pub(crate) fn lacks_log_room(&self, bytes: usize) -> bool {
        let bytes = (bytes as u64).saturating_add(RECORD_OVERHEAD);
        self.unready().is_none() && self.with_pipeline(|pipeline| pipeline.is_preparing_room(bytes)).unwrap_or(false)
    }

    /// Waits until the log has room for a message of `bytes` bytes, at most [`ROOM_WAIT_MAX`]. False if it has none.
    pub(crate) async fn wait_for_log_room(&self, bytes: usize) -> bool {
        let until = tokio::time::Instant::now() + ROOM_WAIT_MAX;
        while self.lacks_log_room(bytes) {
            if tokio::time::timeout_at(until, self.log_room.notified()).await.is_err() {
                return false;
            }
        }
        true
    }

    /// Decides `command` now, which the clocks were a moment ago; its reply goes to `sink`, with this number.
    pub(crate) fn ask_into(
        &self,
        now: Now,
        command: Command,
        sink: Rc<dyn ReplySink>,
        number: u64,
    ) -> Result<(), Unready> {
        if let Some(unready) = self.unready() {
            return Err(unready);
        }
        self.decide(now, command, Waiter::Sink(sink, number));
        Ok(())
    }

    /// The next delivery of a stream, as [`Streams::poll_next`].
    pub(crate) fn poll_delivery(&self, consumer: ConsumerId, waker: &Waker) -> NextDelivery {
        let mut streams = self.streams.borrow_mut();
        let next = streams.poll_next(consumer, self.broker_time(self.clock.now()), waker);
        if let Some(prefetch) = streams.take_recovered(consumer) {
            self.defer(Command::SetPrefetch(SetPrefetch { consumer, prefetch }));
        }
        if streams.has_room() {
            self.wake();
        }
        next
    }

    /// Whether deliveries of a stream are decided and wait for their bytes to be read from the log.
    pub(crate) fn awaits_bytes(&self, consumer: ConsumerId) -> bool {
        self.with_pipeline(|pipeline| pipeline.broker().awaits_bytes(consumer)).unwrap_or(false)
    }

    /// The client of a stream has disconnected. Deliveries it did not read, and those still on their way, are released.
    pub(crate) fn disconnect(&self, consumer: ConsumerId) {
        self.end_stream(consumer, Command::Unsubscribe(Unsubscribe { consumer }));
    }

    /// A stream is complete. Its client keeps the leases of what it read.
    pub(crate) fn close_stream(&self, consumer: ConsumerId) {
        self.end_stream(consumer, Command::CloseStream(CloseStream { consumer }));
    }

    fn end_stream(&self, consumer: ConsumerId, last: Command) {
        let releases = self.streams.borrow_mut().disconnect(consumer);
        self.defer(last);
        releases.into_iter().for_each(|command| self.defer(command));
    }

    /// Reads the pipeline; `None` until the log is recovered.
    pub(crate) fn with_pipeline<T>(&self, read: impl FnOnce(&Pipeline) -> T) -> Option<T> {
        self.engine.borrow().as_ref().map(|engine| read(&engine.pipeline))
    }

    /// Number of replies not yet released.
    pub(crate) fn pending_reply_count(&self) -> usize {
        self.pending_replies.borrow().len()
    }

    /// The bytes of deliveries that streams have not taken yet, and how many were withdrawn for want of room.
    pub(crate) fn stream_bytes(&self) -> (usize, u64) {
        let streams = self.streams.borrow();
        (streams.bytes(), streams.refused())
    }

    /// Number of connected streams.
    pub(crate) fn stream_count(&self) -> usize {
        self.streams.borrow().len()
    }

    /// Makes the next iteration due. Only the first call since the last one costs something.
    fn wake(&self) {
        if !self.is_woken.replace(true) {
            self.wake.notify_one();
        }
    }

    /// Drives the broker. Never completes.
    pub(crate) async fn run(self: Rc<Self>) {
        loop {
            let next = self.run_once();
            let woken = self.wake.notified();
            match next {
                // More is due, but other tasks run first.
                Some(at) if at <= self.clock.now().mono => tokio::task::yield_now().await,
                Some(at) => {
                    // A late wake-up does no harm: the broker compares its timers with the clock.
                    let _ = tokio::time::timeout_at(self.clock.instant_of(at).into(), woken).await;
                }
                None => woken.await,
            }
        }
    }

    /// Ends all streams and accepts no further commands.
    pub(crate) fn drain(&self) {
        self.draining.set(true);
        self.stopped.notify_waiters();
        self.log_room.notify_waiters();
        self.streams.borrow_mut().close_all();
        self.wake();
    }

    /// Resolves once no further commands are accepted.
    pub(crate) async fn draining(&self) {
        if !self.draining.get() {
            self.stopped.notified().await;
        }
    }

    /// Begins to close the log with a footer. Call it once every accepted request has its response or is cut off.
    pub(crate) fn close(&self) {
        self.submit_deferred();
        if let Some(engine) = self.engine.borrow_mut().as_mut() {
            engine.pipeline.close();
        }
        self.wake();
    }

    /// Whether [`Driver::close`] is complete, or cannot complete as the log has failed.
    pub(crate) fn is_closed(&self) -> bool {
        let engine = self.engine.borrow();
        engine.as_ref().is_none_or(|engine| engine.pipeline.is_closed() || engine.pipeline.failure().is_some())
    }

    /// One iteration: submits deferred commands, takes completed jobs and reads, fires timers, starts jobs and reads,
    /// and releases outputs.
    /// Returns the monotonic time at which the next iteration is due at the latest.
    fn run_once(&self) -> Option<Timestamp> {
        // A panic would end the driver's task, and no request would ever get a reply.
        let _guard = AbortOnPanic;
        self.is_woken.set(false);
        let now = self.clock.now();
        let mut streams = self.streams.borrow_mut();
        let mut commands = streams.check_unread(self.broker_time(now));
        commands.extend(streams.readmit());
        drop(streams);
        self.deferred_commands.borrow_mut().extend(commands);
        self.submit_deferred();
        let mut engine = self.engine.borrow_mut();
        let engine = engine.as_mut()?;
        self.take_completed(engine, now);
        let check_clock = engine.pipeline.has_wall_timers() && self.check_clock_at.get() <= now.mono;
        if check_clock || engine.pipeline.poll_timeout().is_some_and(|at| at <= now.mono) {
            self.check_clock_at.set(now.mono.after(WALL_CLOCK_INTERVAL));
            engine.pipeline.handle_timeout(now);
        }
        // Jobs before outputs: the disk works on the next batch while responses are written.
        self.start_jobs(engine, now);
        self.release_outputs(&mut engine.pipeline, now);
        self.log_notices(&mut engine.pipeline);
        self.log_failure(&engine.pipeline);
        if !self.deferred_commands.borrow().is_empty() {
            self.wake();
        }
        let check = self.streams.borrow().next_check().map(|at| engine.pipeline.broker().mono_at(at));
        let check_clock = engine.pipeline.has_wall_timers().then(|| self.check_clock_at.get());
        engine.pipeline.poll_timeout().into_iter().chain(check).chain(check_clock).min()
    }

    fn take_completed(&self, engine: &mut Engine, now: Now) {
        let Disk::Threads(io_threads) = &engine.disk else { return };
        while let Some(done) = io_threads.poll_completed() {
            self.complete_job(&mut engine.pipeline, now, done.job, done.result, Some(done.took));
        }
        while let Some(done) = io_threads.poll_completed_read() {
            engine.pipeline.complete_read(now, &done.job, done.result);
        }
    }

    fn complete_job(
        &self,
        pipeline: &mut Pipeline,
        now: Now,
        job: Job,
        result: Result<(), StorageFault>,
        took: Option<Duration>,
    ) {
        let (class, synced, bytes) = (job.class(), pipeline.synced(), job.appended_bytes());
        pipeline.complete(now, job, result);
        if class == JobClass::Log {
            self.log_busy_since.set(None);
            self.metrics.observe_log_batch(pipeline.synced().lsn.0 - synced.lsn.0, bytes, took);
        } else {
            self.metrics.count_snapshot_bytes(bytes);
            self.log_room.notify_waiters();
        }
    }

    fn start_jobs(&self, engine: &mut Engine, now: Now) {
        for class in [JobClass::Log, JobClass::Background] {
            while let Some(job) = engine.pipeline.poll_job(class) {
                match &mut engine.disk {
                    Disk::Threads(io_threads) => {
                        if class == JobClass::Log {
                            self.log_busy_since.set(Some(now.mono));
                        }
                        io_threads.perform(job);
                    }
                    Disk::Volatile(storage) => {
                        let result = job.perform(storage);
                        self.complete_job(&mut engine.pipeline, now, job, result, None);
                        if class == JobClass::Background {
                            // The slices of a snapshot leave time for other tasks.
                            self.wake();
                            break;
                        }
                    }
                }
            }
        }
        while let Some(read) = engine.pipeline.poll_read() {
            match &mut engine.disk {
                Disk::Threads(io_threads) => io_threads.read(read),
                Disk::Volatile(storage) => {
                    let result = read.perform(storage);
                    engine.pipeline.complete_read(now, &read, result);
                    self.wake();
                }
            }
        }
    }

    /// Releases the replies and deliveries that the sync has passed.
    fn release_outputs(&self, pipeline: &mut Pipeline, now: Now) {
        let now = pipeline.broker().time_at(now.mono);
        while let Some(output) = pipeline.poll_output() {
            match output {
                Output::Reply { ticket, result } => {
                    let waiter = self.pending_replies.borrow_mut().take(ticket);
                    self.reply(waiter, result, pipeline.broker().state().wall_clock());
                }
                Output::Deliver { consumer, delivery } => {
                    let release = self.streams.borrow_mut().deliver(consumer, delivery, now);
                    release.into_iter().for_each(|command| self.defer(command));
                }
                Output::Closed { consumer, .. } => self.streams.borrow_mut().close(consumer),
            }
        }
    }

    fn reply(&self, waiter: Waiter, result: ReplyResult, clock: &WallClock) {
        match waiter {
            Waiter::Future(slot) => {
                self.pending_replies.borrow_mut().fill(slot, result);
            }
            Waiter::Stream(slot, spec) => {
                let connected = if let Ok(Reply::Subscribed { consumer }) = result { Some(consumer) } else { None };
                if let Some(consumer) = connected {
                    self.streams.borrow_mut().connect(consumer, *spec);
                }
                let taken = self.pending_replies.borrow_mut().fill(slot, result);
                if let (false, Some(consumer)) = (taken, connected) {
                    self.disconnect(consumer);
                }
            }
            Waiter::Sink(sink, number) => sink.reply(number, result, clock),
            Waiter::StreamClosed(consumer) => self.streams.borrow_mut().remove(consumer),
            Waiter::Discard => {}
        }
    }

    fn log_notices(&self, pipeline: &mut Pipeline) {
        while let Some(notice) = pipeline.poll_notice() {
            tracing::error!("{notice}");
        }
    }

    fn log_failure(&self, pipeline: &Pipeline) {
        if let Some(failure) = pipeline.failure()
            && !self.is_failure_logged.replace(true)
        {
            tracing::error!("{failure}; nothing more is accepted, restart the broker");
            self.streams.borrow_mut().close_all();
        }
    }

    fn submit_for_slot(&self, command: Command, waiter: impl FnOnce(usize) -> Waiter) -> Result<usize, Unready> {
        if let Some(unready) = self.unready() {
            return Err(unready);
        }
        let slot = self.pending_replies.borrow_mut().open_slot();
        self.decide(self.clock.now(), command, waiter(slot));
        Ok(slot)
    }

    fn decide(&self, now: Now, command: Command, waiter: Waiter) {
        let mut engine = self.engine.borrow_mut();
        let engine = engine.as_mut().expect("commands are submitted to a started broker only");
        let _guard = AbortOnPanic;
        let ticket = engine.pipeline.handle(now, command);
        self.pending_replies.borrow_mut().register(ticket, waiter);
        self.wake();
    }

    fn defer(&self, command: Command) {
        self.deferred_commands.borrow_mut().push_back(command);
        self.wake();
    }

    fn submit_deferred(&self) {
        if self.engine.borrow().is_none() {
            return;
        }
        loop {
            let Some(command) = self.deferred_commands.borrow_mut().pop_front() else { return };
            let waiter = match command {
                Command::Unsubscribe(Unsubscribe { consumer }) | Command::CloseStream(CloseStream { consumer }) => {
                    Waiter::StreamClosed(consumer)
                }
                _ => Waiter::Discard,
            };
            self.decide(self.clock.now(), command, waiter);
        }
    }
}

/// Resolves to the reply to one command once the sync has passed it.
struct ReplyFuture<'a> {
    driver: &'a Driver,
    /// `None` once resolved.
    slot: Option<usize>,
}

impl<'a> ReplyFuture<'a> {
    fn new(driver: &'a Driver, slot: usize) -> Self {
        Self { driver, slot: Some(slot) }
    }
}

impl Future for ReplyFuture<'_> {
    type Output = ReplyResult;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<ReplyResult> {
        let slot = self.slot.expect("a resolved future is not polled again");
        let polled = self.driver.pending_replies.borrow_mut().poll(slot, context.waker());
        if polled.is_ready() {
            self.slot = None;
        }
        polled
    }
}

impl Drop for ReplyFuture<'_> {
    fn drop(&mut self) {
        let Some(slot) = self.slot.take() else { return };
        let untaken = self.driver.pending_replies.borrow_mut().abandon(slot);
        if let Some(Ok(Reply::Subscribed { consumer })) = untaken {
            self.driver.disconnect(consumer);
        }
    }
}

/// Guards the broker's state against panics: should one occur while the guard is held, memory may be inconsistent, and
/// the process aborts. The log has everything that was acknowledged. (A panic elsewhere costs only the connection it
/// happened on.)
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!("the broker panicked; aborting, a restart recovers from the log");
            std::process::abort();
        }
    }
}
