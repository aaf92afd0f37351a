//! Drives the core with a thread for the log: the main thread decides commands, a storage thread writes and syncs.
//!
//! `cargo run -p driftq-core --example threaded`
//!
//! Three threads share nothing but channels. The client thread sends commands. The main thread owns the broker: it
//! decides commands, sends jobs to the storage thread, and prints outputs when the broker releases them. The storage
//! thread owns the disk. While a batch is being synced the main thread continues to decide, so that the next batch
//! holds everything that arrived meanwhile (group commit).
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the driver provides what the core must not use: a clock and threads"
)]

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use driftq_core::command::{Ack, CreateTopic, Produce, Subscribe};
use driftq_core::log::{LogId, MemoryStorage, StorageFault};
use driftq_core::types::{GroupName, Millis, OwnerName, Retention, Ticket, Timestamp, TopicName};
use driftq_core::{Command, Job, JobClass, OpenOptions, Output, Pipeline};

type Failure = Box<dyn std::error::Error>;

const MESSAGES: usize = 12;
/// How long a sync takes. A memory storage takes no time at all, which would leave nothing to batch.
const SYNC: Duration = Duration::from_millis(5);
/// How long the client waits between two messages.
const PAUSE: Duration = Duration::from_millis(1);
/// Short, so that the example shows an expired lease and still ends soon.
const LEASE: Millis = Millis(50);
/// The example ends by itself long before this; if it does not, something is wrong.
const DEADLINE: Duration = Duration::from_secs(30);

/// What the main thread waits for.
enum Event {
    /// The client thread sent a command.
    Command(Command),
    /// The storage thread performed a job.
    Performed(Job, Result<(), StorageFault>),
}

fn main() -> Result<(), Failure> {
    let clock = Clock(Instant::now());
    let mut storage = MemoryStorage::new();
    // Opening performs its own I/O: nothing can overlap it yet.
    let (broker, _) = OpenOptions::new().create(LogId(*b"a threaded log..")).open(&mut storage, clock.now())?;

    let (to_main, events) = channel();
    let (to_storage, jobs) = channel();
    let from_storage = to_main.clone();
    let storage_thread = thread::spawn(move || perform_jobs(storage, &jobs, &from_storage));
    let (topic, group, owner) = (TopicName::new("payments")?, GroupName::new("billing")?, OwnerName::new("worker-a")?);
    let stream = Subscribe::new(topic.clone(), group, owner).lease(LEASE);
    let client_stream = stream.clone();
    let client_thread = thread::spawn(move || send_commands(&client_stream, &to_main));

    let (acks, acked, is_first_delivery) = (BTreeSet::new(), 0, true);
    let mut driver = Driver { broker, clock, to_storage, stream, acks, acked, is_first_delivery };
    driver.run(&events)?;
    // Without a sender the storage thread ends and returns its storage.
    drop(driver);
    let mut storage = storage_thread.join().map_err(|_| "the storage thread panicked")?;
    client_thread.join().map_err(|_| "the client thread panicked")?;

    let (broker, recovered) = OpenOptions::new().open(&mut storage, clock.now())?;
    let topic = broker.state().topic_named(&topic).ok_or("the topic survives")?;
    let kept: u64 = topic.partitions().map(|(_, partition)| partition.kept().messages).sum();
    println!("opened again: closed cleanly: {}, messages left: {kept}", recovered.clean);
    Ok(())
}

/// The main thread: the only one that calls the broker.
struct Driver {
    broker: Pipeline,
    clock: Clock,
    to_storage: Sender<Job>,
    stream: Subscribe,
    /// Acks without a reply yet.
    acks: BTreeSet<Ticket>,
    acked: usize,
    is_first_delivery: bool,
}

impl Driver {
    /// The loop of every driver: timers that are due, outputs, jobs, then wait for an event or the next timer.
    fn run(&mut self, events: &Receiver<Event>) -> Result<(), Failure> {
        loop {
            if self.broker.poll_timeout().is_some_and(|at| at <= self.clock.now()) {
                self.broker.handle_timeout(self.clock.now());
            }
            while let Some(output) = self.broker.poll_output() {
                self.output(output);
            }
            if self.acked == MESSAGES {
                // Appends a footer. Further calls do nothing.
                self.broker.close();
            }
            if self.broker.is_closed() {
                return Ok(());
            }
            // At most one job of each class is under way; `poll_job` returns none while that is so.
            for class in [JobClass::Log, JobClass::Background] {
                if let Some(job) = self.broker.poll_job(class) {
                    self.print(&format!("   {class:?} job: {} bytes", job.appended_bytes()));
                    self.to_storage.send(job)?;
                }
            }
            if let Some(fault) = self.broker.failure() {
                return Err(fault.to_string().into());
            }
            if self.clock.0.elapsed() > DEADLINE {
                return Err("the example did not end in time".into());
            }
            match events.recv_timeout(self.until_timeout()) {
                Ok(Event::Command(command)) => {
                    let name = name(&command);
                    let ticket = self.broker.handle(self.clock.now(), command);
                    self.print(&format!("-> #{ticket} {name}"));
                }
                Ok(Event::Performed(job, result)) => self.broker.complete(self.clock.now(), job, result),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err("the storage thread ended early".into()),
            }
        }
    }

    /// How long to wait for an event: until the next timer. A timer may have to wait for the log; it is tried again
    /// after a millisecond.
    fn until_timeout(&self) -> Duration {
        let due = self.broker.poll_timeout().map(|at| at.since(self.clock.now()));
        due.map_or(DEADLINE, |span| Duration::from_millis(span.0.max(1)))
    }

    /// An output that is durable. A server writes it to a socket.
    fn output(&mut self, output: Output) {
        match output {
            Output::Reply { ticket, result: Ok(reply) } => {
                self.print(&format!("<- #{ticket} {reply:?}"));
                self.acked += usize::from(self.acks.remove(&ticket));
            }
            Output::Reply { ticket, result: Err(refusal) } => self.print(&format!("<- #{ticket} refused: {refusal}")),
            Output::Closed { consumer, cause } => self.print(&format!("<- stream {consumer} closed: {cause:?}")),
            Output::Deliver { delivery, .. } => {
                let value = String::from_utf8_lossy(delivery.body.value()).into_owned();
                self.print(&format!("<- delivery of \"{value}\", attempt {}", delivery.attempts));
                if std::mem::take(&mut self.is_first_delivery) {
                    self.print("   not acked: it is delivered again when its lease expires");
                    return;
                }
                let ack = Ack(delivery.claim(&self.stream));
                let ticket = self.broker.handle(self.clock.now(), ack.into());
                self.print(&format!("-> #{ticket} ack \"{value}\""));
                self.acks.insert(ticket);
            }
        }
    }

    fn print(&self, line: &str) {
        println!("{:>4} ms {line}", self.clock.now().0);
    }
}

/// The storage thread: performs jobs in order, until the main thread drops its sender.
///
/// One thread for both classes is the simplest choice. With one thread per class a snapshot does not delay a batch.
fn perform_jobs(mut storage: MemoryStorage, jobs: &Receiver<Job>, done: &Sender<Event>) -> MemoryStorage {
    for job in jobs {
        let result = job.perform(&mut storage);
        if job.class() == JobClass::Log {
            thread::sleep(SYNC);
        }
        if done.send(Event::Performed(job, result)).is_err() {
            break;
        }
    }
    storage
}

/// The client thread: a topic, a consumer and a few messages.
fn send_commands(stream: &Subscribe, to_main: &Sender<Event>) {
    let topic = stream.topic.clone();
    let create = CreateTopic { name: topic.clone(), partitions: Some(1), retention: Retention::default() };
    let produce = |number| Produce::new(topic.clone(), "", format!("message {number}")).into();
    let commands = [create.into(), stream.clone().into()].into_iter().chain((1..=MESSAGES).map(produce));
    for command in commands {
        if to_main.send(Event::Command(command)).is_err() {
            return;
        }
        thread::sleep(PAUSE);
    }
}

fn name(command: &Command) -> String {
    match command {
        Command::Produce(message) => format!("produce \"{}\"", String::from_utf8_lossy(message.value())),
        Command::CreateTopic(topic) => format!("create topic {}", topic.name),
        Command::Subscribe(stream) => format!("subscribe {}", stream.group),
        other => format!("{other:?}"),
    }
}

/// Milliseconds since the start. A server uses the time of day, and never lets it run backwards.
#[derive(Clone, Copy)]
struct Clock(Instant);

impl Clock {
    fn now(self) -> Timestamp {
        Timestamp(u64::try_from(self.0.elapsed().as_millis()).unwrap_or(u64::MAX))
    }
}
