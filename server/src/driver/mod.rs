//! Drives the broker: gives it the commands of requests and passes its replies and deliveries to where they belong.
//!
//! Every reactor has a driver. It knows which request waits for which reply ([`pending_replies`]) and which stream has
//! which deliveries ([`streams`]); it decides nothing. All decisions are made by one [`sequencer`], which feeds
//! commands and time into the core's [`Pipeline`] and has its records written and synced by the threads of
//! [`io_threads`]. The pipeline holds replies and deliveries until the sync has passed their log position and the bytes
//! of their messages are in memory.
//!
//! * With one reactor the sequencer belongs to its driver: a command is decided at once, in the task of its request
//!   ([`Driver::ask`]), and [`Driver::run`] drives the pipeline. There are no locks and nothing crosses threads but
//!   jobs.
//! * With several the sequencer has a thread of its own ([`sequencer_thread`]). The commands of one turn of a reactor
//!   cross to it together, and its outputs cross back together ([`crossing`]).

mod affinity;
mod broker_clock;
#[cfg(test)]
mod clock_tests;
mod crossing;
mod gather;
mod id_hasher;
mod io_threads;
mod link;
mod pending_replies;
#[cfg(test)]
mod remote_tests;
mod sequencer;
mod sequencer_thread;
mod status;
mod streams;
mod ticket_queue;
mod wake;

use std::cell::{Cell, RefCell, RefMut};
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use driftq_core::command::Subscribe;
use driftq_core::command::{CloseStream, SetPrefetch, Unsubscribe};
use driftq_core::types::{Caller, ConsumerId, Millis, Now, Timestamp, WallClock};
use driftq_core::{Command, Output, Pipeline, Refusal, Reply, Request};
use tokio::sync::Notify;

use self::broker_clock::BrokerClock;
pub(crate) use self::crossing::Crossing;
use self::crossing::{RECORD_OVERHEAD, Released, Submission};
pub(crate) use self::io_threads::{IoThreads, Use};
pub(crate) use self::link::Reading;
use self::link::{Link, Remote};
use self::pending_replies::{CommandNumber, PendingReplies, Waiter};
pub(crate) use self::pending_replies::{ReplyResult, ReplySink};
use self::sequencer::AbortOnPanic;
pub(crate) use self::sequencer::{Disk, Sequencer};
pub(crate) use self::sequencer_thread::SequencerThread;
pub(crate) use self::status::{AccessMark, BrokerStatus, Unready};
pub(crate) use self::streams::NextDelivery;
use self::streams::{StreamSpec, Streams};
pub(crate) use self::wake::{SequencerSignal, Wake};
use crate::clock::Clock;
use crate::reactor_figures::{ReactorFigures, ReactorTotals};

/// How long a message waits for room in the log before it is refused: as long as its client would be told to wait.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(1);

/// Everything of one reactor that waits for the broker.
pub(crate) struct Driver {
    clock: Clock,
    status: Arc<BrokerStatus>,
    figures: Arc<ReactorFigures>,
    wake: Arc<Notify>,
    /// The next iteration is due already.
    is_woken: Cell<bool>,
    /// The clocks at the first command since the last iteration.
    turn_clock: Cell<Option<Now>>,
    link: Link,
    /// The broker's clocks in the last iteration.
    broker_clock: Cell<BrokerClock>,
    pending_replies: RefCell<PendingReplies>,
    streams: RefCell<Streams>,
    /// Commands of the driver itself, submitted in its next iteration.
    deferred_commands: RefCell<VecDeque<Command>>,
    /// Its streams are ended since the log has failed.
    is_failure_seen: Cell<bool>,
}

/// What a driver shares with other threads.
pub(crate) struct DriverParts {
    pub(crate) clock: Clock,
    pub(crate) status: Arc<BrokerStatus>,
    pub(crate) figures: Arc<ReactorFigures>,
    /// Wakes the driver.
    pub(crate) wake: Arc<Notify>,
    /// Bytes that deliveries which streams have not taken yet may have.
    pub(crate) stream_bytes_max: usize,
    /// The sequencer's thread; `None` if the sequencer is to belong to the driver.
    pub(crate) sequencer: Option<RemoteSequencer>,
}

/// Where a reactor finds the sequencer's thread.
pub(crate) struct RemoteSequencer {
    /// Index of the reactor.
    pub(crate) reactor: usize,
    /// The ways of all reactors to the sequencer.
    pub(crate) crossings: Arc<[Arc<Crossing>]>,
    pub(crate) signal: Arc<SequencerSignal>,
}

impl Driver {
    /// A driver without a broker yet.
    pub(crate) fn new(parts: DriverParts) -> Rc<Self> {
        let DriverParts { clock, status, figures, wake, stream_bytes_max, sequencer } = parts;
        let link = match sequencer {
            None => Link::Inline(RefCell::new(None)),
            Some(RemoteSequencer { reactor, crossings, signal }) => {
                Link::Remote(Remote::new(reactor, crossings, signal, Arc::clone(&status)))
            }
        };
        Rc::new(Self {
            clock,
            status,
            figures,
            wake,
            is_woken: Cell::new(false),
            turn_clock: Cell::new(None),
            link,
            broker_clock: Cell::default(),
            pending_replies: RefCell::default(),
            streams: RefCell::new(Streams::new(stream_bytes_max)),
            deferred_commands: RefCell::default(),
            is_failure_seen: Cell::new(false),
        })
    }

    /// Starts to accept commands, which `sequencer` decides on this thread.
    pub(crate) fn start(&self, sequencer: Sequencer) {
        let Link::Inline(own) = &self.link else { unreachable!("the sequencer has a thread of its own") };
        *own.borrow_mut() = Some(Box::new(sequencer));
        self.broker_clock.set(self.link.clock(self.clock.now()).unwrap_or_default());
        self.status.start();
        self.wake();
    }

    /// The broker's status.
    pub(crate) fn status(&self) -> &BrokerStatus {
        &self.status
    }

    /// The clocks of the machine.
    pub(crate) fn now(&self) -> Now {
        self.clock.now()
    }

    /// Converts the times in replies and deliveries to those that are shown to clients.
    pub(crate) fn wall_clock(&self) -> WallClock {
        self.broker_clock.get().wall_clock()
    }

    /// How far wall time in the broker is ahead of the wall clock, in milliseconds; 0 until the log is recovered.
    pub(crate) fn clock_ahead_ms(&self) -> i64 {
        if self.status.is_started() { self.broker_clock.get().ahead_ms(self.clock.now()) } else { 0 }
    }

    /// Broker time now.
    pub(crate) fn broker_now(&self) -> Timestamp {
        self.broker_time(self.clock.now())
    }

    /// Broker time at `now`.
    fn broker_time(&self, now: Now) -> Timestamp {
        self.broker_clock.get().time_at(now.mono)
    }

    /// Why no command is accepted; `None` if commands are accepted.
    pub(crate) fn unready(&self) -> Option<Unready> {
        self.status.unready()
    }

    /// As [`BrokerStatus::unready_for_probes`].
    pub(crate) fn unready_for_probes(&self) -> Option<Unready> {
        self.status.unready_for_probes(self.clock.now().mono)
    }

    /// How long the log job in progress has been under way.
    pub(crate) fn log_busy_for(&self) -> Millis {
        self.status.log_busy_for(self.clock.now().mono)
    }

    /// Submits a command of `caller` and resolves to its reply once the sync has passed it.
    pub(crate) async fn ask<R: Request>(
        &self,
        caller: &Caller,
        request: R,
    ) -> Result<Result<R::Reply, Refusal>, Unready> {
        Ok(self.ask_command(caller, request.into()).await?.map(R::reply))
    }

    /// As [`Driver::ask`], of any command.
    pub(crate) async fn ask_command(&self, caller: &Caller, command: Command) -> Result<ReplyResult, Unready> {
        let slot = self.submit_for_slot(caller, command, Waiter::Future).await?;
        Ok(ReplyFuture::new(self, slot).await)
    }

    /// Connects a stream whose leases are `lease` long. [`Driver::deliveries`] yields its deliveries until
    /// [`Driver::disconnect`] or [`Driver::close_stream`].
    pub(crate) async fn subscribe(
        &self,
        caller: &Caller,
        subscribe: Subscribe,
        lease: Millis,
    ) -> Result<Result<ConsumerId, Refusal>, Unready> {
        let spec = StreamSpec {
            topic: subscribe.topic.clone(),
            group: subscribe.group.clone(),
            owner: subscribe.owner.clone(),
            lease,
            prefetch: subscribe.prefetch,
            deliveries_max: subscribe.deliveries_max,
        };
        let waiter = |slot| Waiter::Stream(slot, Box::new(spec));
        let slot = self.submit_for_slot(caller, Command::Subscribe(subscribe), waiter).await?;
        Ok(ReplyFuture::new(self, slot).await.map(Subscribe::reply))
    }

    /// Whether a message of `bytes` bytes would be refused for now, since the log's next segment is being prepared.
    pub(crate) fn lacks_log_room(&self, bytes: usize) -> bool {
        let bytes = (bytes as u64).saturating_add(RECORD_OVERHEAD);
        if self.unready().is_some() {
            return false;
        }
        match &self.link {
            Link::Inline(sequencer) => {
                sequencer.borrow().as_ref().is_some_and(|own| own.pipeline().room().lacks(bytes, 0))
            }
            Link::Remote(remote) => remote.lacks_log_room(bytes),
        }
    }

    /// Waits until the log has room for a message of `bytes` bytes, at most [`ROOM_WAIT_MAX`]. False if it has none.
    pub(crate) async fn wait_for_log_room(&self, bytes: usize) -> bool {
        let until = tokio::time::Instant::now() + ROOM_WAIT_MAX;
        loop {
            let made = self.status.log_room_made();
            if !self.lacks_log_room(bytes) {
                return true;
            }
            if tokio::time::timeout_at(until, made).await.is_err() {
                return false;
            }
        }
    }

    /// Ready if a command can be submitted now. What is under way to the sequencer is bounded.
    pub(crate) fn poll_submit(&self, waker: &Waker) -> Poll<()> {
        match &self.link {
            Link::Inline(_) => Poll::Ready(()),
            Link::Remote(remote) if remote.must_wait(waker) => Poll::Pending,
            Link::Remote(_) => Poll::Ready(()),
        }
    }

    /// Submits a command of `caller`; the clocks were `now` a moment ago. Its reply goes to `sink`, with this number.
    pub(crate) fn ask_into(
        &self,
        now: Now,
        caller: &Caller,
        command: Command,
        sink: Rc<dyn ReplySink>,
        number: u64,
    ) -> Result<(), Unready> {
        if let Some(unready) = self.unready() {
            return Err(unready);
        }
        self.submit(now, caller, command, Waiter::Sink(sink, number));
        Ok(())
    }

    /// The deliveries of a stream, to be taken at one moment and not beyond an `await`: the driver may not run
    /// meanwhile.
    pub(crate) fn deliveries(&self, consumer: ConsumerId) -> Deliveries<'_> {
        Deliveries { driver: self, streams: self.streams.borrow_mut(), consumer, now: None }
    }

    /// Which keys are stored, as of the commands that have replies. `None` until the log is recovered.
    pub(crate) fn access_mark(&self) -> Option<AccessMark> {
        self.status.is_started().then(|| self.link.access_mark())
    }

    /// Whether deliveries of a stream are decided and wait for their bytes to be read from the log.
    pub(crate) fn awaits_bytes(&self, consumer: ConsumerId) -> Reading<bool> {
        self.read(move |pipeline| pipeline.broker().awaits_bytes(consumer))
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
        self.defer([last].into_iter().chain(releases));
    }

    /// Reads the pipeline, after all commands that this reactor has submitted and before those that follow.
    pub(crate) fn read<T: Send + 'static>(&self, read: impl FnOnce(&Pipeline) -> T + Send + 'static) -> Reading<T> {
        let reading = self.link.read(read);
        if let Reading::Asked(_) = reading {
            self.wake();
        }
        reading
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

    /// Ends all streams.
    pub(crate) fn end_streams(&self) {
        self.streams.borrow_mut().close_all();
        self.wake();
    }

    /// Begins to close the log with a footer. Call it once every accepted request has its response or is cut off.
    pub(crate) fn close(&self) {
        self.submit_deferred();
        match &self.link {
            Link::Inline(sequencer) => {
                if let Some(sequencer) = sequencer.borrow_mut().as_mut() {
                    sequencer.close();
                }
            }
            Link::Remote(remote) => remote.submit(Submission::Close),
        }
        self.wake();
    }

    /// One iteration: submits deferred commands, drives the broker if that is on this thread, and passes on what it has
    /// released. Returns the monotonic time at which the next iteration is due at the latest.
    fn run_once(&self) -> Option<Timestamp> {
        // A panic would end the driver's task, and no request would ever get a reply.
        let _guard = AbortOnPanic;
        self.is_woken.set(false);
        self.turn_clock.set(None);
        let now = self.clock.now();
        let mut streams = self.streams.borrow_mut();
        let mut commands = streams.check_unread(self.broker_time(now));
        commands.extend(streams.readmit());
        drop(streams);
        self.deferred_commands.borrow_mut().extend(commands);
        self.submit_deferred();
        let next_turn = self.drive(now);
        if self.status.has_failed() && !self.is_failure_seen.replace(true) {
            self.streams.borrow_mut().close_all();
        }
        if !self.deferred_commands.borrow().is_empty() {
            self.wake();
        }
        self.publish_figures();
        let check = self.streams.borrow().next_check().map(|at| self.broker_clock.get().mono_at(at));
        next_turn.into_iter().chain(check).min()
    }

    /// Drives the broker, or exchanges with its thread what was submitted and released.
    fn drive(&self, now: Now) -> Option<Timestamp> {
        match &self.link {
            Link::Inline(sequencer) => {
                let mut sequencer = sequencer.borrow_mut();
                let sequencer = sequencer.as_mut()?;
                sequencer.turn(now);
                let clock = BrokerClock::of(sequencer.pipeline(), now);
                self.broker_clock.set(clock);
                while let Some(output) = sequencer.poll_output() {
                    let released = match output {
                        Output::Reply { ticket, result } => Released::Reply(CommandNumber(ticket.0), result),
                        Output::Deliver { consumer, delivery } => Released::Delivery(consumer, delivery),
                        Output::Closed { consumer, .. } => Released::Closed(consumer),
                    };
                    self.release(released, &clock, now);
                }
                sequencer.next_turn()
            }
            Link::Remote(remote) => {
                remote.pass_on();
                let clock = remote.take_released(|released, clock| self.release(released, clock, now));
                self.broker_clock.set(clock);
                None
            }
        }
    }

    /// Passes on an output that the sync has passed.
    fn release(&self, released: Released, clock: &BrokerClock, now: Now) {
        match released {
            Released::Reply(number, result) => {
                let waiter = self.pending_replies.borrow_mut().take(number);
                self.reply(waiter, result, &clock.wall_clock());
            }
            Released::Delivery(consumer, delivery) => {
                self.defer(self.streams.borrow_mut().deliver(consumer, delivery, clock.time_at(now.mono)));
            }
            Released::Refused(consumer, delivery) => self.defer(self.streams.borrow_mut().refuse(consumer, delivery)),
            Released::Closed(consumer) => self.streams.borrow_mut().close(consumer),
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

    fn publish_figures(&self) {
        let streams = self.streams.borrow();
        self.figures.set(ReactorTotals {
            pending_replies: self.pending_replies.borrow().len(),
            streams: streams.len(),
            stream_bytes: streams.bytes(),
            deliveries_refused: streams.refused(),
        });
    }

    async fn submit_for_slot(
        &self,
        caller: &Caller,
        command: Command,
        waiter: impl FnOnce(usize) -> Waiter,
    ) -> Result<usize, Unready> {
        if let Link::Remote(remote) = &self.link {
            std::future::poll_fn(|context| match remote.must_wait(context.waker()) {
                true => Poll::Pending,
                false => Poll::Ready(()),
            })
            .await;
        }
        if let Some(unready) = self.unready() {
            return Err(unready);
        }
        let slot = self.pending_replies.borrow_mut().open_slot();
        self.submit(self.turn_clock(), caller, command, waiter(slot));
        Ok(slot)
    }

    /// The clocks at the first command of this turn, which makes the next iteration due. That ends the turn.
    fn turn_clock(&self) -> Now {
        let now = self.turn_clock.get().unwrap_or_else(|| self.clock.now());
        self.turn_clock.set(Some(now));
        now
    }

    /// Decides a command, or gives it to the thread that does.
    fn submit(&self, now: Now, caller: &Caller, command: Command, waiter: Waiter) {
        let mut pending_replies = self.pending_replies.borrow_mut();
        match &self.link {
            Link::Inline(sequencer) => {
                let mut sequencer = sequencer.borrow_mut();
                let sequencer = sequencer.as_mut().expect("commands are submitted to a started broker only");
                let ticket = sequencer.handle(now, caller, command);
                pending_replies.register_as(CommandNumber(ticket.0), waiter);
            }
            Link::Remote(remote) => {
                let number = pending_replies.register(waiter);
                remote.submit(Submission::Command(number, *caller, command));
            }
        }
        self.figures.set_pending_replies(pending_replies.len());
        self.wake();
    }

    fn defer(&self, commands: impl IntoIterator<Item = Command>) {
        for command in commands {
            self.deferred_commands.borrow_mut().push_back(command);
            self.wake();
        }
    }

    fn submit_deferred(&self) {
        while self.status.is_started() {
            let Some(command) = self.deferred_commands.borrow_mut().pop_front() else { return };
            let waiter = match command {
                Command::Unsubscribe(Unsubscribe { consumer }) | Command::CloseStream(CloseStream { consumer }) => {
                    Waiter::StreamClosed(consumer)
                }
                _ => Waiter::Discard,
            };
            // It is the broker's own: the stream is known to be its client's.
            self.submit(self.clock.now(), &Caller::TRUSTED, command, waiter);
        }
    }
}

/// What is taken of a stream at one moment. The broker learns what this has changed when it is dropped.
pub(crate) struct Deliveries<'a> {
    driver: &'a Driver,
    streams: RefMut<'a, Streams>,
    consumer: ConsumerId,
    /// Broker time, once it has been asked.
    now: Option<Timestamp>,
}

impl Deliveries<'_> {
    /// The next delivery, as [`Streams::poll_next`].
    pub(crate) fn poll_next(&mut self, waker: &Waker) -> NextDelivery {
        let Self { driver, streams, consumer, now } = self;
        let now = || *now.get_or_insert_with(|| driver.broker_time(driver.clock.now()));
        streams.poll_next(*consumer, now, waker)
    }
}

impl Drop for Deliveries<'_> {
    fn drop(&mut self) {
        let consumer = self.consumer;
        if let Some(prefetch) = self.streams.take_recovered(consumer) {
            self.driver.defer([Command::SetPrefetch(SetPrefetch { consumer, prefetch })]);
        }
        if self.streams.has_room() {
            self.driver.wake();
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
