//! A broker, its disk, its clock and its observer, and what each step does to them.

use driftq_core::command::{OnDisconnect, Subscribe};
use driftq_core::faults::Faults;
use driftq_core::log::{FileId, HEADER_BYTES, LogId, MemoryStorage, Storage};
use driftq_core::record::GroupStart;
use driftq_core::reply::Delivery;
use driftq_core::types::*;
use driftq_core::{Command, Lane, Output, Pipeline, PipelineConfig, Reply};

use super::durability;
use super::ledger::Mark;
use super::observer::Observer;
use super::steps::{Keep, Made, Plan, Shape, Step, Twist};
use super::verdict::{Law, Verdict};

const NEVER_SPINS: Law = Law(0, "a broker that is asked has done at some time");
const DRAINS: Law = Law(26, "with nothing in the way, everything is delivered and done in the end");
const TIME_RISES: Law = Law(0, "time inside never runs backwards");
const FAILED_IS_SILENT: Law = Law(23, "after a failed log nothing is released");
const SURVIVES: Law = Law(0, "a disk that keeps its promises never fails a log");

const START: Timestamp = Timestamp(1_000_000);

/// A delivery as a worker remembers it.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) topic: TopicName,
    pub(super) group: GroupName,
    pub(super) owner: OwnerName,
    pub(super) delivery: Delivery,
}

/// Everything.
pub struct World<F: Faults> {
    pub storage: MemoryStorage,
    pub pipeline: Pipeline<F>,
    pub observer: Observer,
    /// All that ever came out.
    pub outputs: Vec<Output>,
    faults: F,
    config: PipelineConfig,
    pub(super) now: Timestamp,
    /// How far the clock has gone back for the next command.
    back: Millis,
    /// The latest moment seen inside.
    latest: Timestamp,
    pub(super) held: Vec<Held>,
    pub(super) streams: Vec<(ConsumerId, Subscribe)>,
    subscribing: Vec<(Ticket, Subscribe)>,
    /// States at the ends of calls, since the last that was durable.
    history: Vec<Mark>,
    undriven: u8,
    pub(super) next_number: u64,
}

/// Runs a plan to its end and a restart beyond.
pub fn run<F: Faults>(plan: &Plan, faults: F) -> Result<World<F>, super::verdict::Violation> {
    let mut world = World::new(&plan.shape, faults)?;
    for step in &plan.steps {
        world.take(step)?;
    }
    world.finish()?;
    Ok(world)
}

impl<F: Faults> World<F> {
    pub fn new(shape: &Shape, faults: F) -> Result<Self, super::verdict::Violation> {
        let limits = Limits {
            in_flight_max: shape.in_flight_max,
            partition_messages_max: shape.messages_max,
            partition_bytes_max: shape.bytes_max,
            dedupe_ttl: Millis(shape.dedupe_ttl),
            dedupe_keys_max: shape.dedupe_keys_max,
            lease_default: Millis(50),
            ..Limits::production()
        };
        let config = PipelineConfig {
            limits: limits.clone(),
            segment_bytes: HEADER_BYTES as u64 + shape.segment_room,
            reserve_bytes: shape.reserve,
            snapshot_every_bytes: shape.snapshot_every,
            slice_bytes: shape.slice_bytes,
        };
        let mut storage = MemoryStorage::new();
        let (pipeline, _) =
            Pipeline::open(&mut storage, config.clone(), Some(LogId([7; 16])), START, faults).expect("opens");
        let history = vec![Mark::of(&pipeline)];
        let (outputs, held, streams, subscribing) = Default::default();
        let observer = Observer::new(limits);
        let (undriven, next_number, now) = (0, 0, START);
        let mut world = Self {
            storage,
            pipeline,
            observer,
            outputs,
            faults,
            config,
            now,
            back: Millis(0),
            latest: now,
            held,
            streams,
            subscribing,
            history,
            undriven,
            next_number,
        };
        world.settle()?;
        Ok(world)
    }

    /// One step, and then a look at everything.
    pub fn take(&mut self, step: &Step) -> Verdict {
        match step {
            Step::Pass(span) => self.pass(Millis(u64::from(*span)))?,
            Step::Jump(span) => {
                self.now = self.now.after(Millis(u64::from(*span)));
                self.quiesce(self.now)?;
            }
            Step::Back(span) => self.back = Millis(u64::from(*span)),
            Step::Undriven(steps) => self.undriven = steps.saturating_add(1),
            Step::OneJob { background } => self.one_job(*background),
            Step::Snapshot => self.pipeline.request_snapshot(),
            Step::Crash(keep) => self.crash(*keep)?,
            Step::CrashMidJob { background, steps, keep } => {
                let lane = if *background { Lane::Background } else { Lane::Log };
                if let Some(job) = self.pipeline.poll_job(lane) {
                    let _ = job.steps().iter().take(usize::from(*steps)).try_for_each(|s| s.perform(&mut self.storage));
                }
                self.crash(*keep)?;
            }
            Step::Reopen => self.reopen()?,
            Step::FailSync(keep) => self.fail_sync(*keep)?,
            Step::Room(kib) => {
                let used: u64 = self.storage.list().expect("lists").iter().map(|info| info.len).sum();
                self.storage.set_budget(kib.map(|kib| used + (u64::from(kib) << 10)));
            }
            step => {
                if let Some(command) = self.command(step) {
                    self.send(command)?;
                }
            }
        }
        self.undriven = self.undriven.saturating_sub(1);
        if self.undriven == 0 {
            self.settle()?;
            if self.pipeline.poll_timeout().is_none_or(|at| at > self.pipeline.broker().now().after(Millis(100))) {
                self.observer.settled(&self.pipeline)?;
            }
        }
        self.collect()
    }

    pub fn send(&mut self, command: Command) -> Verdict {
        self.quiesce(self.now)?;
        let asking = self.observer.asking(&self.pipeline, &command);
        let now = Timestamp(self.now.0 - std::mem::take(&mut self.back).0);
        let ticket = self.pipeline.handle(now, command.clone());
        if let Command::Subscribe(asked) = command {
            self.subscribing.push((ticket, asked));
        }
        self.observer.asked(&self.pipeline, asking, ticket)?;
        self.note()
    }

    /// Calls the broker until it has nothing more to do at `now`.
    fn quiesce(&mut self, now: Timestamp) -> Verdict {
        for _ in 0..1_000 {
            if self.pipeline.poll_timeout().is_none_or(|at| at > now) {
                return Ok(());
            }
            self.pipeline.handle_timeout(now);
            self.note()?;
        }
        NEVER_SPINS.holds(false, || format!("at {now}, still wants {:?}", self.pipeline.poll_timeout()))
    }

    /// The end of a call: what the inside looks like now, before any of it is heard.
    fn note(&mut self) -> Verdict {
        self.history.push(Mark::of(&self.pipeline));
        let now = self.pipeline.broker().now();
        TIME_RISES.holds(self.latest <= now, || format!("{now} after {}", self.latest))?;
        self.latest = now;
        self.observer.looked(&self.pipeline)
    }

    /// Lets the disk finish everything, and hears what comes out.
    pub fn settle(&mut self) -> Verdict {
        loop {
            self.pipeline.drive(self.now, &mut self.storage);
            SURVIVES.holds(self.pipeline.failure().is_none(), || format!("{:?}", self.pipeline.failure()))?;
            self.collect()?;
            self.history = vec![Mark::of(&self.pipeline)];
            if self.pipeline.poll_timeout().is_none_or(|at| at > self.now) {
                return Ok(());
            }
            self.quiesce(self.now)?;
        }
    }

    fn collect(&mut self) -> Verdict {
        while let Some(output) = self.pipeline.poll_output() {
            self.observer.said(&output)?;
            match &output {
                Output::Reply { ticket, result: Ok(Reply::Subscribed { consumer }) } => {
                    let at = self.subscribing.iter().position(|(asked, _)| asked == ticket).expect("was asked for");
                    self.streams.push((*consumer, self.subscribing.remove(at).1));
                }
                Output::Deliver { consumer, delivery } => {
                    if let Some((_, stream)) = self.streams.iter().find(|(id, _)| id == consumer) {
                        let Subscribe { topic, group, owner, .. } = stream.clone();
                        self.held.push(Held { topic, group, owner, delivery: (**delivery).clone() });
                    }
                }
                _ => {}
            }
            self.outputs.push(output);
        }
        Ok(())
    }

    fn pass(&mut self, span: Millis) -> Verdict {
        let end = self.now.after(span);
        while let Some(at) = self.pipeline.poll_timeout().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.quiesce(self.now)?;
            if self.undriven == 0 {
                self.settle()?;
            }
            self.collect()?;
        }
        self.now = end;
        self.quiesce(end)
    }

    fn one_job(&mut self, background: bool) {
        let lane = if background { Lane::Background } else { Lane::Log };
        if let Some(job) = self.pipeline.poll_job(lane) {
            let result = job.perform(&mut self.storage);
            self.pipeline.complete(self.now, job, result);
        }
    }

    fn fail_sync(&mut self, keep: Keep) -> Verdict {
        let command = self.command(&Step::Produce(Made::default())).expect("a produce is a command");
        self.send(command)?;
        self.storage.fail_syncs(1);
        self.pipeline.drive(self.now, &mut self.storage);
        self.collect()?;
        let (heard, durable) = (self.observer.heard, self.pipeline.broker().durable());
        FAILED_IS_SILENT.holds(heard <= durable, || format!("{heard} heard, {durable} durable"))?;
        self.storage.fail_syncs(0);
        self.crash(keep)
    }

    fn reopen(&mut self) -> Verdict {
        self.pipeline.close();
        self.settle()?;
        durability::closed_cleanly(self.pipeline.is_closed(), &self.storage)?;
        self.crash(Keep::Nothing)
    }

    fn crash(&mut self, keep: Keep) -> Verdict {
        self.storage.set_budget(None);
        let disk = durability::after_power_loss(&self.storage, keep);
        let durable = self.pipeline.broker().durable().max(self.observer.heard);
        let last = durability::judge(&disk, &self.history, durable, &self.faults)?;
        self.observer.crashed(last);
        self.storage = disk;
        let opened = Pipeline::open(&mut self.storage, self.config.clone(), None, self.now, self.faults);
        self.pipeline = opened.expect("what can be inspected can be opened").0;
        self.streams.clear();
        self.subscribing.clear();
        self.history = vec![Mark::of(&self.pipeline)];
        self.observer.restored(self.pipeline.state())?;
        self.observer.looked(&self.pipeline)
    }

    /// Everything is delivered and acked, or there is a reason; then a last restart.
    fn finish(&mut self) -> Verdict {
        self.undriven = 0;
        self.storage.set_budget(None);
        self.settle()?;
        for (consumer, _) in std::mem::take(&mut self.streams) {
            self.send(Command::Unsubscribe { consumer })?;
        }
        self.settle()?;
        // Whoever found the disk full tries again within this time.
        self.pass(Millis(1_200))?;
        self.settle()?;
        let all: Vec<_> = self
            .pipeline
            .state()
            .topics()
            .flat_map(|topic| {
                topic.groups().map(|group| (topic.name().clone(), group.name().clone())).collect::<Vec<_>>()
            })
            .collect();
        for (topic, group) in all {
            self.send(Command::Resume { topic: topic.clone(), group: group.clone() })?;
            self.settle()?;
            let asked = Subscribe {
                topic,
                group,
                owner: OwnerName::new("drain").expect("a name"),
                lease: None,
                prefetch: 100,
                deliveries_max: None,
                start: GroupStart::Earliest,
                on_disconnect: OnDisconnect::Keep,
            };
            self.send(Command::Subscribe(asked))?;
            self.settle()?;
        }
        for _ in 0..300 {
            let from = self.held.len();
            if self.lag() == 0 {
                break;
            }
            self.pass(Millis(100))?;
            self.settle()?;
            for nth in from..self.held.len() {
                let claim = self.claim((self.held.len() - 1 - nth) as u8, Twist::Honest).expect("is held");
                self.send(Command::Ack(claim))?;
                self.settle()?;
            }
        }
        let lag = self.lag();
        DRAINS.holds(lag == 0, || format!("{lag} messages are left: {:?}", self.pipeline.state()))?;
        self.crash(Keep::Nothing)
    }

    fn lag(&self) -> u64 {
        let state = self.pipeline.state();
        let lag = |topic: &driftq_core::state::topic::Topic| -> u64 {
            super::ledger::count(topic)
                .groups
                .iter()
                .flat_map(|group| &group.partitions)
                .map(|(undone, ..)| undone)
                .sum()
        };
        state.topics().map(lag).sum()
    }

    /// Every file and its bytes.
    pub fn files(&mut self) -> Vec<(FileId, Vec<u8>)> {
        let files = self.storage.list().expect("lists");
        files.iter().map(|info| (info.file, self.storage.bytes(info.file).unwrap_or_default().to_vec())).collect()
    }
}
