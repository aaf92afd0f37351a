//! A crash at every byte of a relocation: while cleaning writes payloads again, and until their old segments are gone.

use std::collections::BTreeSet;

use driftq_core::Pipeline;
use driftq_core::faults::{Fault, Faults, NoFaults, Planted};
use driftq_core::log::{FileId, HEADER_BYTES};
use driftq_core::types::PayloadId;

use crate::actions::{Action, JobClass, Loss, NewMessage, Request};
use crate::invariants::payloads::live_payloads;
use crate::invariants::{Verdict, Violation};
use crate::names::{Group, Message, Topic};
use crate::panic_capture;
use crate::run::never_panics;
use crate::setup::Setup;
use crate::world::{Checks, World};

/// Its messages stay.
const LIVE: Topic = Topic::new(0);
/// It is purged.
const DEAD: Topic = Topic::new(1);
/// Messages that stay, each in a segment with many that do not.
const LIVE_MESSAGES: u32 = 3;
/// Messages that are purged, behind each that stays.
const DEAD_MESSAGES: u32 = 4;
/// How long a message is that is purged.
const DEAD_SIZE: u8 = 200;
/// The most steps until the old segments are removed.
const STEPS_MAX: u32 = 2_000;

/// What was executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelocationCrashes {
    /// The payloads that were written again.
    pub relocated: u64,
    /// The steps from the first relocation until the old segments were removed: before each, the power went.
    pub steps: u64,
    /// How often the power went: at every byte of what was not synced.
    pub crashes: u64,
    /// After how many of these a relocation was taken back that had been decided.
    pub taken_back: u64,
    /// The states that starts have found, each drained.
    pub states: u64,
    /// The segments that were removed.
    pub removed: u64,
}

/// Executes it, with a planted bug if one is given.
///
/// # Errors
/// The invariant that was violated.
pub fn crash_in_relocation(fault: Option<Fault>) -> Result<RelocationCrashes, Violation> {
    let run = || match fault {
        None => execute(NoFaults),
        Some(fault) => execute(Planted(fault)),
    };
    panic_capture::catch(run).map_err(never_panics)?
}

/// Small segments, which are cleaned as soon as something in them is not live, and nothing in memory.
fn setup() -> Setup {
    Setup {
        segment_bytes: HEADER_BYTES as u64 + 900,
        segment_bytes_min: HEADER_BYTES as u64 + 900,
        snapshot_every_segments: 2,
        snapshot_every_bytes: 2_000,
        rest_ms: Some(1_000),
        reserve_bytes: 200,
        memory_bytes: Some(0),
        read_steps: true,
        clean_spare_segments: 0,
        ..Setup::default()
    }
}

fn execute<F: Faults>(faults: F) -> Result<RelocationCrashes, Violation> {
    let mut world = World::new(&setup(), faults, Checks::default())?;
    fill(&mut world)?;
    let mut done = RelocationCrashes::default();
    let mut found = BTreeSet::new();
    let before = segments(&world);
    for _ in 0..STEPS_MAX {
        let relocated = relocated(&world);
        let left = before.intersection(&segments(&world)).count();
        if relocated > 0 {
            crash_everywhere(&world, &mut done, &mut found)?;
            done.steps += 1;
        }
        (done.relocated, done.removed) = (relocated, (before.len() - left) as u64);
        if relocated >= u64::from(LIVE_MESSAGES) && left <= 1 {
            break;
        }
        step(&mut world)?;
    }
    done.states = found.len() as u64;
    Ok(done)
}

/// Stores messages, most of which are then purged.
fn fill<F: Faults>(world: &mut World<F>) -> Verdict {
    for topic in [LIVE, DEAD] {
        let create = Request::CreateTopic { topic, partitions: None, keep_ms: None, keep_bytes: None };
        world.apply(&Action::Request(create))?;
    }
    world.apply(&Action::Request(Request::CreateGroup { topic: LIVE, group: Group(0), latest: false }))?;
    let mut numbers = (0..).map(Message);
    let mut produce = |world: &mut World<F>, topic, size| {
        let message = numbers.next().expect("there is always another number");
        world.apply(&Action::Request(Request::Produce(NewMessage {
            message,
            topic,
            size,
            ..NewMessage::default()
        })))?;
        world.apply(&Action::FlushIo)
    };
    for _ in 0..LIVE_MESSAGES {
        produce(world, LIVE, 9)?;
        for _ in 0..DEAD_MESSAGES {
            produce(world, DEAD, DEAD_SIZE.into())?;
        }
    }
    world.apply(&Action::Request(Request::Purge { topic: DEAD }))
}

/// One operation, one read, or the next timeout.
fn step<F: Faults>(world: &mut World<F>) -> Verdict {
    let events = |world: &World<F>| world.counters().events;
    let before = events(world);
    for action in [
        Action::PerformRead { nth: 0, fault: None, late: false },
        Action::Io { class: JobClass::Log, fault: None },
        Action::Io { class: JobClass::Background, fault: None },
    ] {
        world.apply(&action)?;
        if events(world) != before {
            return Ok(());
        }
    }
    if let Some(ms) = world.until_timeout() {
        world.apply(&Action::AdvanceTime { ms: u32::try_from(ms).unwrap_or(u32::MAX) })?;
    }
    world.apply(&Action::Wake)
}

/// The power goes at every byte of what is not synced. Each state that a start finds is drained once.
fn crash_everywhere<F: Faults>(
    world: &World<F>,
    done: &mut RelocationCrashes,
    found: &mut BTreeSet<(u64, Vec<FileId>)>,
) -> Verdict {
    let unsynced = world.disk().unsynced_len() as u32;
    let decided = payloads(world);
    for bytes in 0..=unsynced {
        let mut crashed = world.clone();
        crashed.apply(&Action::Crash { loss: Loss::Cut { bytes } })?;
        crashed.apply(&Action::Boot)?;
        done.crashes += 1;
        done.taken_back += u64::from(payloads(&crashed) != decided);
        let Some(state) = crashed.broker().map(Pipeline::state) else { continue };
        if found.insert((state.digest(), segments(&crashed).into_iter().collect())) {
            crashed.apply(&Action::Drain)?;
        }
    }
    Ok(())
}

fn relocated<F: Faults>(world: &World<F>) -> u64 {
    world.broker().map_or(0, |broker| broker.broker().counters().relocated)
}

/// Where the payloads of stored messages stand.
fn payloads<F: Faults>(world: &World<F>) -> BTreeSet<PayloadId> {
    world.broker().map(|broker| live_payloads(broker.state()).into_keys().collect()).unwrap_or_default()
}

fn segments<F: Faults>(world: &World<F>) -> BTreeSet<FileId> {
    world.disk().files().map(|(file, _)| file).filter(|file| matches!(file, FileId::Segment(_))).collect()
}
