//! A broker, and everything it believes in: its disk, its clock, its clients. Only the broker is real.
//!
//! A world takes one [`Action`] after the other and draws nothing: the same steps give the same world, byte for byte. After
//! every step it asks its checkers whether a promise was broken.

mod command;
mod coverage;
mod crash;
mod drain;
mod fingerprint;
mod io;
mod network;
mod probe;
mod tap;

use driftq_core::command::{Begin, StoreCommand};
use driftq_core::faults::Faults;
use driftq_core::log::LogId;
use driftq_core::record::Event;
use driftq_core::types::{Lsn, OwnerName, Ticket, Timestamp};
use driftq_core::{Command, Pipeline};

pub use self::command::identity as effect_identity;
pub use self::fingerprint::Fingerprint;
use self::io::Running;
use self::network::Asked;
pub use self::network::{EffectRun, HeldDelivery, HeldGrant, Network};
pub use self::tap::TapEvent;
use crate::actions::Action;
use crate::coverage::{Coverage, Point};
use crate::digest_chain::DigestChain;
use crate::disk::Disk;
use crate::invariants::durability::state_matches_log;
use crate::invariants::liveness::timers_quiesce;
use crate::invariants::oracle::model_counts;
use crate::invariants::time::time_is_monotonic;
use crate::invariants::{Observer, Verdict, Violation};
use crate::names::Message;
use crate::oracle::Oracle;
use crate::setup::Setup;
use crate::shadow::Shadow;
use crate::storage::SimStorage;

/// When worlds begin.
pub const BEGINNING: Timestamp = Timestamp(1_000_000_000);
/// What every simulated log is called.
const LOG_ID: LogId = LogId(*b"driftq simulated");
/// How often the whole log is compared with the live state, in events.
const COMPARE_EVERY: u64 = 4_096;

/// Which checkers watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checks {
    /// The naive model.
    pub oracle: bool,
}

impl Default for Checks {
    fn default() -> Self {
        Self { oracle: true }
    }
}

/// What a world has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Everything that happened: calls, timers, pieces of I/O, answers and deliveries, reads, deaths, starts.
    pub events: u64,
    /// Commands the broker was asked.
    pub commands: u64,
    /// Answers it gave.
    pub replies: u64,
    /// Answers and deliveries the naive model had predicted.
    pub predicted: u64,
    /// Messages handed out.
    pub deliveries: u64,
    /// Messages that were stored.
    pub messages: u64,
    /// Effects that workers had on the world outside.
    pub effects: u64,
    /// Those that had been run before.
    pub reruns: u64,
    /// How often the idempotency store said that an effect may be run.
    pub grants: u64,
    /// How often it said what had come of it.
    pub replays: u64,
    /// Messages that were done undelivered, because another of their identity was.
    pub skips: u64,
    /// Steps that were completed.
    pub completed: u64,
    /// Deaths, of the process or the machine.
    pub crashes: u64,
    /// Starts that were begun.
    pub boots: u64,
    /// Time that passed, in milliseconds.
    pub simulated_ms: u64,
}

impl Counters {
    /// Counts what was written.
    fn count(&mut self, event: &Event) {
        match event {
            Event::Produced { .. } => self.messages += 1,
            Event::Skipped { .. } => self.skips += 1,
            Event::Completed(step) => {
                self.completed += 1;
                self.messages += step.outputs.iter().filter(|output| output.stored.is_some()).count() as u64;
            }
            _ => {}
        }
    }

    /// Adds another world's.
    pub fn add(&mut self, other: &Self) {
        self.events += other.events;
        self.commands += other.commands;
        self.replies += other.replies;
        self.predicted += other.predicted;
        self.deliveries += other.deliveries;
        self.messages += other.messages;
        self.effects += other.effects;
        self.reruns += other.reruns;
        self.grants += other.grants;
        self.replays += other.replays;
        self.skips += other.skips;
        self.completed += other.completed;
        self.crashes += other.crashes;
        self.boots += other.boots;
        self.simulated_ms += other.simulated_ms;
    }
}

/// Everything. A clone goes its own way from here on.
#[derive(Clone)]
pub struct World<F: Faults, M = Disk> {
    setup: Setup,
    faults: F,
    disk: M,
    broker: Option<Pipeline<F>>,
    lanes: [Option<Running>; 2],
    /// The time, and by how much the broker's clock is wrong.
    now: u64,
    skew: i64,
    /// The latest moment seen inside the broker.
    latest: Timestamp,
    network: Network,
    shadow: Shadow<F>,
    /// The naive model, as long as it can follow.
    oracle: Option<Oracle>,
    observer: Observer,
    chain: DigestChain,
    counters: Counters,
    coverage: Coverage,
    /// The live state when the broker died: its last record and its digest.
    died: Option<crash::Died>,
    compared: u64,
    /// How many records the log had when the broker was started.
    records_before: u64,
    next_ticket: Ticket,
    /// The first ticket after the log failed.
    failed_from: Option<Ticket>,
    /// What went between broker and clients, where somebody listens.
    heard: Option<Vec<TapEvent>>,
}

impl<F: Faults> World<F> {
    /// A world with an empty disk and a broker that has just started on it.
    ///
    /// # Errors
    /// A promise that was broken at once.
    pub fn new(setup: &Setup, faults: F, checks: Checks) -> Result<Self, Violation> {
        World::with_storage(Disk::new(setup.shows_given_up), setup, faults, checks)
    }
}

impl<F: Faults, M: SimStorage> World<F, M> {
    /// A world with this disk, which is empty, and a broker that has just started on it.
    ///
    /// # Errors
    /// A promise that was broken at once.
    pub fn with_storage(disk: M, setup: &Setup, faults: F, checks: Checks) -> Result<Self, Violation> {
        let limits = setup.limits();
        let mut world = Self {
            setup: setup.clone(),
            disk,
            broker: None,
            lanes: [None, None],
            now: BEGINNING.0,
            skew: 0,
            latest: Timestamp(0),
            network: Network::default(),
            shadow: Shadow::new(LOG_ID, faults),
            oracle: checks.oracle.then(|| Oracle::new(&limits)),
            observer: Observer::new(limits),
            chain: DigestChain::default(),
            counters: Counters::default(),
            coverage: Coverage::default(),
            died: None,
            compared: 0,
            records_before: 0,
            next_ticket: Ticket(0),
            failed_from: None,
            heard: None,
            faults,
        };
        world.first_boot()?;
        Ok(world)
    }

    /// One step, and then a look at everything.
    ///
    /// # Errors
    /// The promise that was broken.
    pub fn apply(&mut self, action: &Action) -> Verdict {
        match action {
            Action::Request(request) => {
                if let Some(asked) = self.asked(request) {
                    self.ask(asked)?;
                }
            }
            Action::Send { call, request } => {
                if let Some(asked) = self.asked(request) {
                    self.network.send(*call, asked, self.counters.boots);
                }
            }
            Action::Arrive { call } => {
                if let Some((asked, again, boots)) = self.network.arrive(*call) {
                    self.coverage.hit_if(again, Point::CallTwice);
                    self.coverage.hit_if(boots < self.counters.boots, Point::LateCall);
                    self.ask(asked)?;
                }
            }
            Action::Read { worker, count } => self.read(*worker, *count),
            Action::RunEffect(grant) => self.run(grant)?,
            Action::AdvanceTime { ms } => self.pass(u64::from(*ms)),
            Action::JumpClock { ms } => {
                self.counters.events += 1;
                self.skew = self.skew.saturating_add(*ms).clamp(-(BEGINNING.0 as i64) / 2, i64::from(u32::MAX));
                self.coverage.hit(if *ms < 0 { Point::ClockBack } else { Point::ClockForward });
            }
            Action::Wake => self.wake()?,
            Action::Io { class, fault } => self.io(*class, *fault)?,
            Action::FlushIo => {
                self.settle()?;
                self.settled()?;
            }
            Action::Snapshot => {
                if let Some(broker) = &mut self.broker {
                    broker.request_snapshot();
                }
            }
            Action::SetFreeSpace { bytes } => self.disk.model_mut().set_room(bytes.map(u64::from)),
            Action::Close => self.close()?,
            Action::Crash { loss } => self.crash(*loss),
            Action::Boot => self.boot()?,
            Action::BootAndCrash { after, loss } => self.boot_and_crash(*after, *loss)?,
            Action::Probe { loss, damage } => self.probe(*loss, *damage)?,
            Action::Drain => self.drain()?,
        }
        if self.counters.events / COMPARE_EVERY > self.compared {
            self.compared = self.counters.events / COMPARE_EVERY;
            self.compare()?;
        }
        Ok(())
    }

    /// What has been drawn from it so far.
    #[must_use]
    pub fn chain(&self) -> DigestChain {
        self.chain
    }

    /// What it has done so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters { simulated_ms: self.now - BEGINNING.0, ..self.counters }
    }

    /// What it has met so far.
    #[must_use]
    pub fn coverage(&self) -> Coverage {
        let mut all = self.coverage.clone();
        all.add(self.observer.coverage());
        all
    }

    /// The clients, to look at.
    #[must_use]
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// The broker, while it is running.
    #[must_use]
    pub fn broker(&self) -> Option<&Pipeline<F>> {
        self.broker.as_ref()
    }

    /// Whether a produce of the message has not been answered yet.
    #[must_use]
    pub fn is_producing(&self, message: Message) -> bool {
        self.observer.is_producing(message)
    }

    /// Whether somebody of that name waits for an answer to a word about a message.
    #[must_use]
    pub fn is_claiming(&self, owner: &OwnerName) -> bool {
        self.observer.is_claiming(owner)
    }

    /// The disk, to look at.
    #[must_use]
    pub fn disk(&self) -> &Disk {
        self.disk.model()
    }

    /// How far the log reaches that no power loss can take.
    #[must_use]
    pub fn durable(&self) -> Lsn {
        self.shadow.durable()
    }

    /// Whether the broker runs and its log is well.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.broker.as_ref().is_some_and(|broker| broker.failure().is_none())
    }

    /// How long after the beginning it is.
    #[must_use]
    pub fn elapsed(&self) -> u64 {
        self.now - BEGINNING.0
    }

    /// How long until the broker wants to be told the time, if it does.
    #[must_use]
    pub fn until_timeout(&self) -> Option<u64> {
        let at = self.broker.as_ref()?.poll_timeout()?;
        Some(at.0.saturating_sub(self.clock().0))
    }

    /// Whether a piece of I/O of the class is under way.
    #[must_use]
    pub fn is_busy(&self, class: crate::actions::JobClass) -> bool {
        self.lanes[class as usize].is_some()
    }

    /// What the broker's clock shows.
    fn clock(&self) -> Timestamp {
        Timestamp(self.now.saturating_add_signed(self.skew))
    }

    fn pass(&mut self, ms: u64) {
        self.counters.events += 1;
        self.now += ms;
    }

    /// A command arrives at the broker; where there is none, nobody answers.
    fn ask(&mut self, Asked { command, worker }: Asked) -> Verdict {
        let now = self.clock();
        if self.broker.is_none() {
            return Ok(());
        }
        if let Command::Unsubscribe { consumer } | Command::Finish { consumer } = command {
            self.gone(consumer);
        }
        if changes_groups(&command) || self.names_a_stranger(&command) {
            // What dies of its timers in the same call would be gone before anybody could see where it went, or make the
            // very topic that is asked for.
            self.wake_until_quiet()?;
        }
        let Some(broker) = &mut self.broker else { return Ok(()) };
        self.counters.events += 1;
        self.counters.commands += 1;
        coverage::command(&mut self.coverage, broker.state(), &command);
        let asked = self.observer.asking(broker, command, now);
        let refused = broker.broker().counters().refused;
        let ticket = broker.handle(now, asked.command.clone());
        self.next_ticket = ticket.next();
        if let Some(heard) = &mut self.heard {
            heard.push(TapEvent::Asked(ticket));
        }
        match (&asked.command, worker) {
            (Command::Subscribe(subscribe), Some(worker)) => self.network.connecting(ticket, worker, subscribe),
            (Command::Store(asked), Some(worker)) => {
                if let StoreCommand::Begin(Begin { identity, .. }) | StoreCommand::Reacquire { identity, .. } = &**asked
                {
                    self.network.beginning(ticket, worker, identity);
                }
            }
            _ => {}
        }
        if let Some(oracle) = &mut self.oracle
            && broker.failure().is_none()
        {
            oracle.command(now, ticket, &asked.command);
        }
        let short = broker.broker().counters().refused > refused;
        self.observer.asked(broker, asked, ticket)?;
        self.look(short)
    }

    /// Whether a message is for a topic that is not there.
    fn names_a_stranger(&self, command: &Command) -> bool {
        let (Some(broker), Command::Produce(asked)) = (&self.broker, command) else { return false };
        let router = asked.routing.as_ref().and_then(|router| router.target_topic.as_ref());
        let mut wanted = router.into_iter().chain(&asked.envelope.target_topic).chain([&asked.topic]);
        wanted.any(|topic| broker.state().topic_named(topic).is_none())
    }

    /// The broker is told the time, if it has asked to be.
    fn wake(&mut self) -> Verdict {
        let now = self.clock();
        match self.broker.as_ref().and_then(Pipeline::poll_timeout) {
            Some(at) if at <= now => self.tell(now),
            _ => Ok(()),
        }
    }

    fn tell(&mut self, now: Timestamp) -> Verdict {
        let Some(broker) = &mut self.broker else { return Ok(()) };
        self.counters.events += 1;
        let refused = broker.broker().counters().refused;
        broker.handle_timeout(now);
        if let Some(oracle) = &mut self.oracle {
            oracle.timeout(now);
        }
        let short = broker.broker().counters().refused > refused;
        self.look(short)
    }

    /// Tells the broker the time until it asks for no more.
    fn wake_until_quiet(&mut self) -> Verdict {
        let now = self.clock().max(self.latest);
        for calls in 0.. {
            if self.broker.as_ref().and_then(Pipeline::poll_timeout).is_none_or(|at| at > now) {
                break;
            }
            timers_quiesce(calls, now)?;
            self.tell(now)?;
        }
        Ok(())
    }

    /// After every call: the inside, and whether the naive model can still follow. Where the log had no room for a record
    /// it cannot, since it knows nothing of rooms.
    fn look(&mut self, short: bool) -> Verdict {
        let Some(broker) = &self.broker else { return Ok(()) };
        let inside = broker.broker().now();
        time_is_monotonic(self.latest, inside)?;
        self.latest = inside;
        self.observer.looked(broker)?;
        if short {
            self.oracle = None;
        }
        if let Some(oracle) = &self.oracle
            && broker.failure().is_none()
        {
            let written = self.records_before + broker.broker().counters().appended;
            model_counts(written, oracle.records())?;
        }
        self.collect()
    }

    /// The live state against the log as it was written.
    fn compare(&mut self) -> Verdict {
        let Some(broker) = &self.broker else { return Ok(()) };
        let (last, digest) = self.shadow.digest_written();
        if last == broker.broker().appended() {
            state_matches_log(last, broker.state().digest(), digest)?;
        }
        Ok(())
    }
}

/// Whether the command changes who is to do what, so that nobody could tell afterwards why something is done, or is judged by
/// the state it was decided against.
fn changes_groups(command: &Command) -> bool {
    matches!(
        command,
        Command::Redrive { .. }
            | Command::DeleteTopic { .. }
            | Command::CreateGroup { .. }
            | Command::Subscribe(_)
            | Command::DeleteGroup { .. }
            | Command::Seek { .. }
            | Command::Complete(_)
            | Command::Store(_)
    )
}
