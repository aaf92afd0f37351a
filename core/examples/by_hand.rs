//! Drives the core by hand: produce, deliver, crash, recover, ack, and prints what happens.
//!
//! `cargo run -p driftq-core --example by_hand`
//!
//! There is no clock and no disk: time is a number this program counts up, the disk is a map in memory whose power this program
//! cuts. Every line that starts with an arrow is something that crosses the core's edge.

use driftq_core::command::{Claim, OnDisconnect, Produce, Subscribe, TokenClaim};
use driftq_core::faults::NoFaults;
use driftq_core::log::{IoOp, LogId, MemoryStorage};
use driftq_core::record::{GroupStart, Retention};
use driftq_core::reply::Delivery;
use driftq_core::types::{GroupName, Millis, NameError, OwnerName, Timestamp, TopicName};
use driftq_core::{Command, JobClass, Output, Pipeline, PipelineConfig};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let names = Names::new()?;
    let mut world = World::open(MemoryStorage::new(), Timestamp(0))?;

    println!("\n== Two messages are produced and one worker connects ==");
    let retention = Retention::default();
    world.ask("create topic", Command::CreateTopic { name: names.topic.clone(), partitions: Some(1), retention });
    for value in ["charge card 4711", "send the receipt"] {
        let message = Produce::new(names.topic.clone(), "customer-7", value);
        world.ask(value, Command::Produce(Box::new(message)));
    }
    world.ask("subscribe", Command::Subscribe(names.subscribe()));
    println!("   decided, appended to the batch, held: nothing has come out yet");
    let deliveries = world.commit();

    println!("\n== The second message is acked first; then the power goes ==");
    world.ask("ack offset 1", Command::Ack(names.claim(&deliveries[1])));
    world.commit();
    world.ask("ack offset 0", Command::Ack(names.claim(&deliveries[0])));
    println!("   …but before this batch reaches the disk, the lights go out");
    let now = world.now;
    let mut world = World::open(world.disk.crash(), now)?;

    println!("\n== The worker comes back; its old lease on offset 0 still runs ==");
    world.ask("subscribe", Command::Subscribe(names.subscribe()));
    world.commit();
    let wanted = world.broker.poll_timeout().ok_or("something is due")?;
    println!("   the broker asks to be called at {wanted}");
    world.now = deliveries[0].lease_until;
    println!("   time passes: {}", world.now);
    world.broker.handle_timeout(world.now);
    let again = world.commit();

    println!("\n== A stale token is refused, the new one finishes the message ==");
    world.ask("ack with the old token", Command::Ack(names.claim(&deliveries[0])));
    world.ask("ack with the new token", Command::Ack(names.claim(&again[0])));
    world.commit();

    println!("\n== Nothing is left, and a restart agrees ==");
    let live = world.broker.state().digest();
    let world = World::open(world.disk.crash(), world.now)?;
    let topic = world.broker.state().topic_named(&names.topic).ok_or("the topic survives")?;
    let kept: u64 = topic.partitions().map(|(_, partition)| partition.kept().messages).sum();
    println!("   messages kept: {kept}; state before the restart {live:016x}");
    Ok(())
}

/// A broker, its disk and its clock.
struct World {
    broker: Pipeline,
    disk: MemoryStorage,
    now: Timestamp,
}

impl World {
    fn open(mut disk: MemoryStorage, now: Timestamp) -> Result<Self, Failure> {
        let (broker, found) =
            Pipeline::open(&mut disk, PipelineConfig::default(), Some(LogId(*b"an example's log")), now, NoFaults)?;
        println!(
            "   opened: {} frames replayed, last position {}, boot {}",
            found.frames_read,
            found.last_lsn,
            broker.state().boot()
        );
        for notice in &found.notices {
            println!("   notice: {notice}");
        }
        let mut world = Self { broker, disk, now };
        world.commit();
        Ok(world)
    }

    fn ask(&mut self, what: &str, command: Command) {
        let ticket = self.broker.handle(self.now, command);
        println!("-> #{ticket} {what}");
    }

    /// Performs the jobs the broker asks for and prints what it lets out.
    fn commit(&mut self) -> Vec<Delivery> {
        let mut deliveries = Vec::new();
        while let Some(job) = self.broker.poll_job(JobClass::Log).or_else(|| self.broker.poll_job(JobClass::Background))
        {
            for step in job.ops() {
                match step {
                    IoOp::Append { file, bytes, .. } => println!("   disk: append {} bytes to {file}", bytes.len()),
                    IoOp::Sync { file } => println!("   disk: sync {file}"),
                    IoOp::Create { file, .. } => println!("   disk: create {file}"),
                    IoOp::SyncFolder => println!("   disk: sync the folder"),
                    IoOp::Rename { .. } | IoOp::Remove { .. } => {}
                }
            }
            let result = job.perform(&mut self.disk);
            self.broker.complete(self.now, job, result);
        }
        while let Some(output) = self.broker.poll_output() {
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
                Output::Closed { consumer, cause } => println!("<- consumer {consumer} is over: {cause:?}"),
            }
        }
        deliveries
    }
}

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
