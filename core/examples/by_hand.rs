//! Drives the core manually: produce, deliver, crash, recover, ack, with every input and output printed.
//!
//! `cargo run -p driftq-core --example by_hand`
//!
//! There is no clock and no disk: time is a number that this program advances, the storage is in memory and this
//! program crashes it. Every line that starts with an arrow is an input (`->`) or an output (`<-`) of the core.

use driftq_core::OpenOptions;

use driftq_core::command::{Ack, CreateTopic};
use driftq_core::command::{Claim, GroupLifetime, OnDisconnect, Produce, Subscribe, TokenClaim};
use driftq_core::log::{IoOp, LogId, MemoryStorage};
use driftq_core::reply::Delivery;
use driftq_core::types::{GroupName, GroupStart, Millis, NameError, OwnerName, Retention, Timestamp, TopicName};
use driftq_core::{Command, JobClass, Output, Pipeline, PipelineConfig};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let names = Names::new()?;
    let mut broker = LocalBroker::open(MemoryStorage::new(), Timestamp(0))?;

    println!("\n== Two messages are produced and one worker connects ==");
    let retention = Retention::default();
    broker.send(
        "create topic",
        Command::CreateTopic(CreateTopic { name: names.topic.clone(), partitions: Some(1), retention }),
    );
    for value in ["charge card 4711", "send the receipt"] {
        let message = Produce::new(names.topic.clone(), "customer-7", value);
        broker.send(value, Command::Produce(Box::new(message)));
    }
    broker.send("subscribe", Command::Subscribe(names.subscribe()));
    println!("   decided, appended to the batch, held: no output yet");
    let deliveries = broker.commit();

    println!("\n== The second message is acked first; then the power fails ==");
    broker.send("ack offset 1", Command::Ack(Ack(names.claim(&deliveries[1]))));
    broker.commit();
    broker.send("ack offset 0", Command::Ack(Ack(names.claim(&deliveries[0]))));
    println!("   power failure before this batch is synced");
    let now = broker.now;
    let mut broker = LocalBroker::open(broker.storage.crash(), now)?;

    println!("\n== The consumer reconnects; its old lease on offset 0 is still running ==");
    broker.send("subscribe", Command::Subscribe(names.subscribe()));
    broker.commit();
    let next_timeout = broker.pipeline.poll_timeout().ok_or("no timeout is set")?;
    println!("   the next timeout is at {next_timeout}");
    broker.now = deliveries[0].lease_until;
    println!("   the clock advances to {}", broker.now);
    broker.pipeline.handle_timeout(broker.now);
    let again = broker.commit();

    println!("\n== A stale token is refused, the new one acks the message ==");
    broker.send("ack with the old token", Command::Ack(Ack(names.claim(&deliveries[0]))));
    broker.send("ack with the new token", Command::Ack(Ack(names.claim(&again[0]))));
    broker.commit();

    println!("\n== No message is left, also after a restart ==");
    let live = broker.pipeline.state().digest();
    let broker = LocalBroker::open(broker.storage.crash(), broker.now)?;
    let topic = broker.pipeline.state().topic_named(&names.topic).ok_or("the topic is lost")?;
    let stored: u64 = topic.partitions().map(|(_, partition)| partition.kept().messages).sum();
    println!("   messages stored: {stored}; state digest before the restart {live:016x}");
    Ok(())
}

/// A broker, its storage and its clock.
struct LocalBroker {
    pipeline: Pipeline,
    storage: MemoryStorage,
    now: Timestamp,
}

impl LocalBroker {
    fn open(mut storage: MemoryStorage, now: Timestamp) -> Result<Self, Failure> {
        let (pipeline, found) = OpenOptions::new()
            .config(PipelineConfig::default())
            .create(LogId(*b"an example's log"))
            .open(&mut storage, now)?;
        println!(
            "   opened: {} frames replayed, last LSN {}, boot {}",
            found.frames_read,
            found.last.lsn,
            pipeline.state().boot()
        );
        for notice in &found.notices {
            println!("   notice: {notice}");
        }
        let mut broker = Self { pipeline, storage, now };
        broker.commit();
        Ok(broker)
    }

    fn send(&mut self, what: &str, command: Command) {
        let ticket = self.pipeline.handle(self.now, command);
        println!("-> #{ticket} {what}");
    }

    /// Performs the pending jobs and prints the outputs.
    fn commit(&mut self) -> Vec<Delivery> {
        let mut deliveries = Vec::new();
        while let Some(job) =
            self.pipeline.poll_job(JobClass::Log).or_else(|| self.pipeline.poll_job(JobClass::Background))
        {
            for op in job.ops() {
                match op {
                    IoOp::Append { file, bytes, .. } => println!("   storage: append {} bytes to {file}", bytes.len()),
                    IoOp::Sync { file } => println!("   storage: sync {file}"),
                    IoOp::Create { file, .. } => println!("   storage: create {file}"),
                    IoOp::SyncFolder => println!("   storage: sync the folder"),
                    IoOp::Rename { .. } | IoOp::Remove { .. } | IoOp::Trim { .. } => {}
                }
            }
            let result = job.perform(&mut self.storage);
            self.pipeline.complete(self.now, job, result);
        }
        while let Some(output) = self.pipeline.poll_output() {
            match output {
                Output::Reply { ticket, result: Ok(reply) } => println!("<- #{ticket} {reply:?}"),
                Output::Reply { ticket, result: Err(refusal) } => println!("<- #{ticket} refused: {refusal}"),
                Output::Deliver { consumer, delivery } => {
                    println!(
                        "<- to consumer {consumer}: offset {} attempt {} until {} token {} {:?}",
                        delivery.offset,
                        delivery.attempts,
                        delivery.lease_until,
                        delivery.token,
                        String::from_utf8_lossy(delivery.body.value()),
                    );
                    deliveries.push(*delivery);
                }
                Output::Closed { consumer, cause } => println!("<- consumer {consumer} is closed: {cause:?}"),
            }
        }
        deliveries
    }
}

/// The names that the example uses.
struct Names {
    topic: TopicName,
    group: GroupName,
    owner: OwnerName,
}

impl Names {
    fn new() -> Result<Self, NameError> {
        Ok(Self {
            topic: TopicName::new("payments")?,
            group: GroupName::new("billing")?,
            owner: OwnerName::new("worker-a")?,
        })
    }

    fn subscribe(&self) -> Subscribe {
        Subscribe {
            topic: self.topic.clone(),
            group: self.group.clone(),
            owner: self.owner.clone(),
            lease: Some(Millis(2_000)),
            prefetch: 10,
            deliveries_max: None,
            start: GroupStart::Earliest,
            on_disconnect: OnDisconnect::Keep,
            group_lifetime: GroupLifetime::Durable,
        }
    }

    fn claim(&self, delivery: &Delivery) -> Claim {
        Claim {
            topic: self.topic.clone(),
            group: self.group.clone(),
            partition: delivery.partition,
            offset: delivery.offset,
            owner: self.owner.clone(),
            token: TokenClaim::Shown(delivery.token),
        }
    }
}
