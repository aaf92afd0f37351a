//! The state of a world, and what can be read from it.

use std::collections::BTreeSet;

use driftq_core::faults::Faults;
use driftq_core::types::{FrameNumber, Limits, Lsn, Now, OwnerName, Ticket, Timestamp};
use driftq_core::{Pipeline, PipelineConfig};

use super::counters::Counters;
use super::job::{LOG_ID, RunningJob};
use super::network::Network;
use super::reads::Reads;
use super::room::LogRoom;
use super::tap::TapEvent;
use super::values::START_TIME;
use crate::actions::JobClass;
use crate::coverage::Coverage;
use crate::digest_chain::DigestChain;
use crate::disk::Disk;
use crate::invariants::{Tracker, Violation};
use crate::names::Message;
use crate::oracle::Oracle;
use crate::setup::Setup;
use crate::shadow::Shadow;
use crate::sim_storage::SimStorage;

/// Which checkers are active.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checks {
    /// The oracle.
    pub oracle: bool,
}

impl Default for Checks {
    fn default() -> Self {
        Self { oracle: true }
    }
}

/// The last state of a broker that crashed.
#[derive(Clone, Copy, Debug)]
pub(super) struct CrashedBroker {
    pub(super) appended: Lsn,
    pub(super) digest: u64,
    pub(super) closed: bool,
}

/// The world. A clone is independent.
#[derive(Clone)]
pub struct World<F: Faults, S = Disk> {
    pub(super) setup: Setup,
    /// That of the next start, if it is another.
    pub(super) next_setup: Option<Setup>,
    pub(super) faults: F,
    pub(super) disk: S,
    pub(super) broker: Option<Pipeline<F>>,
    pub(super) jobs: [Option<RunningJob>; 2],
    pub(super) reads: Reads,
    /// The monotonic clock, and how far the wall clock is ahead of it.
    pub(super) now: u64,
    pub(super) skew: i64,
    /// The latest time seen inside the broker.
    pub(super) latest: Timestamp,
    pub(super) network: Network,
    pub(super) shadow: Shadow<F>,
    pub(super) room: LogRoom,
    /// The oracle, if it is active.
    pub(super) oracle: Option<Oracle>,
    pub(super) tracker: Tracker,
    pub(super) chain: DigestChain,
    pub(super) counters: Counters,
    pub(super) coverage: Coverage,
    /// The state of the broker when it crashed.
    pub(super) crashed_broker: Option<CrashedBroker>,
    pub(super) comparisons: u64,
    /// The number of calls after which the state was checked.
    pub(super) calls: u64,
    /// The number of records in the log when the broker started.
    pub(super) records_before: u64,
    pub(super) next_ticket: Ticket,
    /// Tickets of commands that a planted bug sent, not a client; their replies are dropped.
    pub(super) injected_tickets: BTreeSet<Ticket>,
    /// Whether the disk was full at some time since the last drain: then maintenance may be waiting to retry.
    pub(super) was_limited: bool,
    /// When the broker tries again what failed for want of a descriptor.
    pub(super) short_until: Timestamp,
    /// When the broker was last told that the log is synced, since its start.
    pub(super) synced_at: Option<Timestamp>,
    /// The first ticket after the log failed.
    pub(super) failed_from: Option<Ticket>,
    /// Recorded traffic between broker and clients, if the tap is on.
    pub(super) tap_events: Option<Vec<TapEvent>>,
}

impl<F: Faults> World<F> {
    /// A world with an empty disk and a started broker.
    ///
    /// # Errors
    /// A violation at the start.
    pub fn new(setup: &Setup, faults: F, checks: Checks) -> Result<Self, Violation> {
        World::with_storage(Disk::new(setup.shows_given_up), setup, faults, checks)
    }
}

impl<F: Faults, S: SimStorage> World<F, S> {
    /// A world on this storage, which is empty, with a started broker.
    ///
    /// # Errors
    /// A violation at the start.
    pub fn with_storage(disk: S, setup: &Setup, faults: F, checks: Checks) -> Result<Self, Violation> {
        let limits = setup.limits();
        let mut world = Self {
            setup: setup.clone(),
            next_setup: None,
            disk,
            broker: None,
            jobs: [None, None],
            reads: Reads::default(),
            now: START_TIME.0,
            skew: 0,
            latest: Timestamp(0),
            network: Network::default(),
            shadow: Shadow::new(LOG_ID, faults),
            room: LogRoom::default(),
            oracle: checks.oracle.then(|| Oracle::new(&limits)),
            tracker: Tracker::new(limits),
            chain: DigestChain::default(),
            counters: Counters::default(),
            coverage: Coverage::default(),
            crashed_broker: None,
            comparisons: 0,
            calls: 0,
            records_before: 0,
            next_ticket: Ticket(0),
            injected_tickets: BTreeSet::new(),
            was_limited: false,
            short_until: Timestamp(0),
            synced_at: None,
            failed_from: None,
            tap_events: None,
            faults,
        };
        world.first_boot()?;
        Ok(world)
    }

    /// The configuration of the next start.
    #[must_use]
    pub fn next_setup(&self) -> &Setup {
        self.next_setup.as_ref().unwrap_or(&self.setup)
    }

    /// The digest chain so far.
    #[must_use]
    pub fn chain(&self) -> DigestChain {
        self.chain
    }

    /// The counters so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters { simulated_ms: self.now - START_TIME.0, ..self.counters }
    }

    /// The coverage so far.
    #[must_use]
    pub fn coverage(&self) -> Coverage {
        let mut all = self.coverage.clone();
        all.add(self.tracker.coverage());
        all
    }

    /// The clients and the network.
    #[must_use]
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// The broker, while it is running.
    #[must_use]
    pub fn broker(&self) -> Option<&Pipeline<F>> {
        self.broker.as_ref()
    }

    /// Whether a produce of the message is pending.
    #[must_use]
    pub fn is_producing(&self, message: Message) -> bool {
        self.tracker.is_producing(message)
    }

    /// Whether a claim of that owner is pending.
    #[must_use]
    pub fn is_claiming(&self, owner: &OwnerName) -> bool {
        self.tracker.is_claiming(owner)
    }

    /// The disk.
    #[must_use]
    pub fn disk(&self) -> &Disk {
        self.disk.model()
    }

    /// The last durable frame.
    #[must_use]
    pub fn durable(&self) -> FrameNumber {
        self.shadow.durable()
    }

    /// Whether the broker runs and its log has not failed.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.broker.as_ref().is_some_and(|broker| broker.failure().is_none())
    }

    /// The simulated time since the start.
    #[must_use]
    pub fn elapsed(&self) -> u64 {
        self.now - START_TIME.0
    }

    /// The time until the next timeout, if there is one.
    #[must_use]
    pub fn until_timeout(&self) -> Option<u64> {
        let at = self.broker.as_ref()?.poll_timeout()?;
        Some(at.0.saturating_sub(self.now))
    }

    /// Whether a job of the class is in progress.
    #[must_use]
    pub fn is_busy(&self, class: JobClass) -> bool {
        self.jobs[class as usize].is_some()
    }

    /// The configuration of the broker under test.
    pub(super) fn pipeline_config(&self) -> PipelineConfig {
        self.faults.config(self.setup.pipeline())
    }

    /// The limits of the running broker.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.setup.limits()
    }

    /// The clocks of the broker's machine.
    pub(super) fn clock(&self) -> Now {
        Now { mono: Timestamp(self.now), wall: Timestamp(self.now).shifted(self.skew) }
    }

    /// The time on the wall clock since the start of the world.
    #[must_use]
    pub fn wall_elapsed(&self) -> u64 {
        self.elapsed().saturating_add_signed(self.skew)
    }

    /// Broker time.
    pub(super) fn broker_time(&self) -> Timestamp {
        self.broker.as_ref().map_or(self.latest, |broker| broker.broker().time_at(Timestamp(self.now)))
    }

    /// How far broker time is ahead of simulated time, in milliseconds.
    #[must_use]
    pub fn broker_ahead(&self) -> i64 {
        self.broker_time().offset_from(Timestamp(self.now))
    }

    /// Turns the tap on.
    pub fn enable_tap(&mut self) {
        self.tap_events.get_or_insert_default();
    }

    /// The events since the last call, in order.
    pub fn take_tap_events(&mut self) -> Vec<TapEvent> {
        self.tap_events.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// How far the wall clock is ahead of simulated time, in milliseconds.
    #[must_use]
    pub fn skew(&self) -> i64 {
        self.skew
    }
}
