//! The thread of the sequencer, if there is more than one reactor.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use driftq_core::command::{CloseStream, Unsubscribe};
use driftq_core::types::{ConsumerId, Now, WallClock};
use driftq_core::{Command, Output, Reply};

use super::broker_clock::BrokerClock;
use super::crossing::{Crossing, Released, Submission, TurnOutputs};
use super::id_hasher::IdHasher;
use super::pending_replies::CommandNumber;
use super::sequencer::{AbortOnPanic, Sequencer};
use super::status::{AccessMark, BrokerStatus};
use super::ticket_queue::TicketQueue;
use super::wake::SequencerSignal;
use crate::clock::Clock;

/// The running thread. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct SequencerThread {
    signal: Arc<SequencerSignal>,
    thread: Option<JoinHandle<()>>,
}

impl SequencerThread {
    /// Starts the thread, which serves the reactors at the other ends of `crossings`.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(crate) fn start(
        sequencer: Sequencer,
        clock: Clock,
        status: Arc<BrokerStatus>,
        crossings: Vec<Arc<Crossing>>,
        signal: Arc<SequencerSignal>,
    ) -> std::io::Result<Self> {
        let worker = Worker::new(sequencer, clock, status, crossings, Arc::clone(&signal));
        let thread = std::thread::Builder::new().name("driftq-sequencer".into()).spawn(move || worker.run())?;
        Ok(Self { signal, thread: Some(thread) })
    }
}

impl Drop for SequencerThread {
    fn drop(&mut self) {
        self.signal.stop();
        if let Some(thread) = self.thread.take() {
            // It never waits for the disk, and aborts the process if it panics.
            let _ = thread.join();
        }
    }
}

/// Where a command came from.
#[derive(Clone, Copy, Debug)]
struct Origin {
    reactor: usize,
    number: CommandNumber,
    /// The stream that the command ends: no output for it follows the reply.
    ends: Option<ConsumerId>,
}

struct Worker {
    sequencer: Sequencer,
    clock: Clock,
    status: Arc<BrokerStatus>,
    signal: Arc<SequencerSignal>,
    crossings: Vec<Arc<Crossing>>,
    /// Where the commands without a reply came from.
    origins: TicketQueue<Origin>,
    /// The reactors of all streams.
    streams: HashMap<ConsumerId, usize, BuildHasherDefault<IdHasher>>,
    /// Submissions in progress; empty between two turns, as the next ones are.
    submissions: Vec<Submission>,
    /// Outputs by reactor.
    released: Vec<TurnOutputs>,
    /// The wall clock that all reactors know.
    shown: Option<WallClock>,
    /// All reactors were woken because the log has failed.
    is_failure_shown: bool,
}

impl Worker {
    fn new(
        sequencer: Sequencer,
        clock: Clock,
        status: Arc<BrokerStatus>,
        crossings: Vec<Arc<Crossing>>,
        signal: Arc<SequencerSignal>,
    ) -> Self {
        Self {
            sequencer,
            clock,
            status,
            signal,
            origins: TicketQueue::default(),
            streams: HashMap::default(),
            submissions: Vec::new(),
            released: crossings.iter().map(|_| TurnOutputs::default()).collect(),
            crossings,
            shown: None,
            is_failure_shown: false,
        }
    }

    fn run(mut self) {
        self.signal.set_thread();
        self.publish_access();
        self.status.start();
        while !self.signal.is_stopped() {
            self.signal.clear();
            self.turn();
            // An early wake-up does no harm. A signal since the turn began is not lost: the thread is not parked then.
            match self.sequencer.next_turn() {
                None => std::thread::park(),
                Some(at) if at <= self.clock.now().mono => {}
                Some(at) => std::thread::park_timeout(self.clock.instant_of(at).duration_since(Instant::now())),
            }
        }
    }

    /// Decides what was submitted, drives the broker, and gives out what may leave.
    fn turn(&mut self) {
        // A panic would end the thread, and no request would ever get a reply.
        let _guard = AbortOnPanic;
        let now = self.clock.now();
        for reactor in 0..self.crossings.len() {
            self.decide(now, reactor);
        }
        self.sequencer.turn(now);
        self.publish_log_room();
        self.status.notify_log_room();
        self.release(now);
    }

    /// Decides the commands of one reactor.
    fn decide(&mut self, now: Now, reactor: usize) {
        let mut submissions = std::mem::take(&mut self.submissions);
        self.crossings[reactor].take_submitted(&mut submissions);
        if submissions.is_empty() {
            self.submissions = submissions;
            return;
        }
        let (mut commands, mut bytes) = (0, 0);
        for submission in submissions.drain(..) {
            bytes += submission.bytes();
            match submission {
                Submission::Command(number, caller, command) => {
                    commands += 1;
                    let ends = stream_ended_by(&command);
                    let ticket = self.sequencer.handle(now, &caller, command);
                    self.origins.push_as(ticket.0, Origin { reactor, number, ends });
                }
                Submission::Read(read) => read(self.sequencer.pipeline()),
                Submission::Close => self.sequencer.close(),
            }
        }
        self.submissions = submissions;
        // Before the replies are released: who learns of a new key can use it at any reactor.
        self.publish_access();
        // Before the bytes are counted as handled: in between they count twice, which does no harm.
        self.publish_log_room();
        self.crossings[reactor].count_handled(commands, bytes);
        self.status.notify_log_room();
    }

    fn publish_access(&self) {
        self.status.set_access_mark(AccessMark::of(self.sequencer.pipeline()));
    }

    fn publish_log_room(&self) {
        self.status.set_log_room(self.sequencer.pipeline().room());
    }

    fn release(&mut self, now: Now) {
        while let Some(output) = self.sequencer.poll_output() {
            let (reactor, released) = match output {
                Output::Reply { ticket, result } => {
                    let Origin { reactor, number, ends } = self.origins.take(ticket.0);
                    if let Ok(Reply::Subscribed { consumer }) = result {
                        self.streams.insert(consumer, reactor);
                    }
                    if let Some(consumer) = ends {
                        self.streams.remove(&consumer);
                    }
                    (reactor, Released::Reply(number, result))
                }
                Output::Deliver { consumer, delivery } => match self.streams.get(&consumer) {
                    Some(reactor) => {
                        self.released[*reactor].push_delivery(&self.crossings[*reactor], consumer, delivery);
                        continue;
                    }
                    None => continue,
                },
                Output::Closed { consumer, .. } => match self.streams.get(&consumer) {
                    Some(reactor) => (*reactor, Released::Closed(consumer)),
                    None => continue,
                },
            };
            self.released[reactor].push(released);
        }
        let clock = BrokerClock::of(self.sequencer.pipeline(), now);
        let is_clock_new = self.shown.replace(clock.wall_clock()) != Some(clock.wall_clock());
        let is_failure_new = self.status.has_failed() && !std::mem::replace(&mut self.is_failure_shown, true);
        for (crossing, released) in self.crossings.iter().zip(&mut self.released) {
            if !released.is_empty() || is_clock_new || is_failure_new {
                crossing.release(released, clock);
            }
        }
    }
}

/// The stream that a command ends.
fn stream_ended_by(command: &Command) -> Option<ConsumerId> {
    match command {
        Command::Unsubscribe(Unsubscribe { consumer }) | Command::CloseStream(CloseStream { consumer }) => {
            Some(*consumer)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use driftq_core::OpenOptions;
    use driftq_core::command::{CreateTopic, Subscribe};
    use driftq_core::log::LogId;
    use driftq_core::types::{Caller, GroupName, OwnerName, Retention, TopicName};
    use driftq_files::VolatileStorage;
    use tokio::sync::Notify;

    use super::*;
    use crate::driver::Disk;
    use crate::metrics::Metrics;

    /// A worker for two reactors, and what its wall clock is ahead of the system's.
    fn worker() -> (Worker, Arc<AtomicI64>) {
        let ahead_ms = Arc::new(AtomicI64::new(0));
        let clock = Clock::shifted(&ahead_ms);
        let mut storage = VolatileStorage::default();
        let options = OpenOptions::new().create(LogId([7; 16]));
        let (pipeline, _) = options.open(&mut storage, clock.now()).expect("opens");
        let status = Arc::new(BrokerStatus::default());
        let sequencer = Sequencer::new(pipeline, Disk::Volatile(storage), Metrics::new(), Arc::clone(&status));
        let crossings = (0..2).map(|_| Crossing::new(Arc::new(Notify::new()), usize::MAX)).collect();
        (Worker::new(sequencer, clock, status, crossings, Arc::default()), ahead_ms)
    }

    /// Submits a command of the second reactor, and returns what is released to it.
    fn submit(worker: &mut Worker, number: u64, command: Command) -> Vec<Released> {
        worker.crossings[1].count_submitted(0);
        worker.crossings[1].pass_on(&mut vec![Submission::Command(CommandNumber(number), Caller::TRUSTED, command)]);
        worker.turn();
        worker.turn();
        let mut released = Vec::new();
        worker.crossings[1].take_released(&mut released);
        released
    }

    #[test]
    fn reactor_of_a_stream_is_known_until_the_stream_has_ended() {
        let (mut worker, _) = worker();
        let topic = TopicName::new("t").expect("a name");
        let create = CreateTopic { name: topic.clone(), partitions: Some(1), retention: Retention::default() };
        submit(&mut worker, 0, Command::CreateTopic(create));
        let (group, owner) = (GroupName::new("g").expect("a name"), OwnerName::new("w").expect("a name"));
        let released = submit(&mut worker, 1, Command::Subscribe(Subscribe::new(topic, group, owner)));
        let [Released::Reply(CommandNumber(1), Ok(Reply::Subscribed { consumer }))] = released[..] else {
            panic!("{released:?}")
        };
        assert_eq!(worker.streams.get(&consumer), Some(&1));
        submit(&mut worker, 2, Command::Unsubscribe(Unsubscribe { consumer }));
        assert!(worker.streams.is_empty() && worker.origins.len() == 0);
    }

    #[test]
    fn every_reactor_learns_of_a_wall_clock_that_was_set_and_of_a_failure() {
        let (mut worker, ahead_ms) = worker();
        let clocks = |worker: &Worker| -> Vec<i64> {
            let clock = |crossing: &Arc<Crossing>| crossing.take_released(&mut Vec::new()).0;
            worker.crossings.iter().map(|crossing| clock(crossing).ahead_ms(worker.clock.now())).collect()
        };
        worker.turn();
        assert!(clocks(&worker).iter().all(|ahead| ahead.abs() < 60_000), "known from the beginning");
        ahead_ms.store(3_600_000, Ordering::Relaxed);
        let topic = TopicName::new("t").expect("a name");
        let create = CreateTopic { name: topic, partitions: Some(1), retention: Retention::default() };
        submit(&mut worker, 0, Command::CreateTopic(create));
        assert!(clocks(&worker).iter().all(|ahead| ahead.abs() < 60_000), "the clock that was set is adopted");
        assert!(worker.crossings.iter().all(|crossing| !crossing.is_notified()));
        worker.status.fail();
        worker.turn();
        assert!(worker.crossings.iter().all(|crossing| crossing.is_notified()), "their streams are to end");
    }
}
