//! Fuzz target for cleaning: live payloads move while reads fail, disks rot and the power goes.

use arbitrary::Unstructured;
use driftq_core::faults::Fault;
use driftq_core::log::HEADER_BYTES;
use driftq_sim::actions::{Action, DeliveryRef, JobClass, Loss, NewMessage, ReadFault, Request, Subscription};
use driftq_sim::names::{Group, Message, Topic, Worker};
use driftq_sim::run::{RunOptions, replay};
use driftq_sim::setup::Setup;
use driftq_sim::trace::Trace;

use crate::input::{below, choose};

/// The most actions of one run.
const ACTIONS_MAX: usize = 160;
/// Its messages stay until they are acked.
const LIVE: Topic = Topic::new(0);
/// It is purged, which leaves segments with little that is live.
const DEAD: Topic = Topic::new(1);
/// The durations that occur: a retry of a read, a rest, a scrub.
const DURATIONS_MS: [u32; 4] = [1, 200, 1_000, 4_000];

/// Runs a simulated world that cleans all the time: tiny segments, nothing in memory, no spare segments. The input
/// decides what is stored, purged and acked, which reads fail or are late, what rots, and where the power goes.
///
/// Checks that every payload is delivered as it was produced unless the disk has lost it, and that no invariant of the
/// simulator is violated.
pub fn relocation(data: &[u8]) {
    relocation_with(data, None);
}

/// [`relocation`] with a bug planted in the broker.
///
/// # Panics
/// If a check fails. The message contains the trace of the run.
pub fn relocation_with(data: &[u8], fault: Option<Fault>) {
    let mut input = Unstructured::new(data);
    let setup = setup(&mut input);
    let mut actions = beginning();
    let mut next_message = 0;
    while !input.is_empty() && actions.len() < ACTIONS_MAX {
        actions.push(action(&mut input, &mut next_message));
    }
    actions.push(Action::Drain);
    let run = replay(&setup, &actions, RunOptions { fault, ..RunOptions::default() });
    if let Some(violation) = &run.violation {
        panic!("{violation}; trace:\n{}", Trace::of(&run, None, fault).to_jsonl());
    }
}

fn setup(input: &mut Unstructured<'_>) -> Setup {
    let segment_bytes = HEADER_BYTES as u64 + choose(input, &[500, 900, 2_000]);
    Setup {
        segment_bytes,
        segment_bytes_min: segment_bytes,
        snapshot_every_segments: 2,
        snapshot_every_bytes: 2_000,
        rest_ms: Some(150),
        reserve_bytes: 200,
        memory_bytes: Some(choose(input, &[0, 0, 300])),
        read_steps: true,
        clean_spare_segments: 0,
        scrub_ms: choose(input, &[None, Some(3_000)]),
        rots: below(input, 2) == 1,
        ..Setup::default()
    }
}

fn beginning() -> Vec<Action> {
    let create = |topic| Request::CreateTopic { topic, partitions: None, keep_ms: None, keep_bytes: None };
    let group = Request::CreateGroup { topic: LIVE, group: Group(0), latest: false };
    let requests = [create(LIVE), create(DEAD), group];
    requests.into_iter().map(Action::Request).chain([Action::FlushIo]).collect()
}

fn action(input: &mut Unstructured<'_>, next_message: &mut u32) -> Action {
    match below(input, 24) {
        0..=3 => produce(input, LIVE, next_message),
        4..=6 => produce(input, DEAD, next_message),
        7 => Action::Request(Request::Purge { topic: DEAD }),
        8 => Action::Request(Request::Subscribe(Subscription {
            topic: LIVE,
            prefetch: 1 + below(input, 4) as u32,
            ..Subscription::default()
        })),
        9 => Action::Read { worker: Worker(0), count: 1 + below(input, 3) as u8 },
        10 => {
            let message = Message(below(input, *next_message as usize + 1) as u32);
            Action::Request(Request::AckCumulative(DeliveryRef { message, ..DeliveryRef::default() }))
        }
        11 => Action::Request(Request::Unsubscribe { worker: Worker(0), keeps: false }),
        12..=14 => {
            let (nth, fault) = (below(input, 3) as u8, read_fault(input));
            Action::PerformRead { nth, fault, late: below(input, 4) == 3 }
        }
        15 => Action::CompleteRead { nth: below(input, 3) as u8 },
        16 => Action::Rot { payload: below(input, 8) as u8, bit: below(input, 1 << 12) as u16 },
        17 => Action::Io { class: JobClass::Log, fault: None },
        18 => Action::Io { class: JobClass::Background, fault: None },
        19 => Action::FlushIo,
        20 => Action::Snapshot,
        21 => Action::AdvanceTime { ms: choose(input, &DURATIONS_MS) },
        22 => Action::Crash { loss: loss(input) },
        _ => Action::Boot,
    }
}

fn produce(input: &mut Unstructured<'_>, topic: Topic, next_message: &mut u32) -> Action {
    *next_message += 1;
    let size = choose(input, &[1, 40, 200]);
    Action::Request(Request::Produce(NewMessage { message: Message(*next_message), topic, size, ..Default::default() }))
}

fn read_fault(input: &mut Unstructured<'_>) -> Option<ReadFault> {
    match below(input, 6) {
        0 => Some(ReadFault::Fail),
        1 => Some(ReadFault::Short { bytes: below(input, 900) as u16 }),
        2 => Some(ReadFault::Flip { bit: below(input, 1 << 12) as u16 }),
        _ => None,
    }
}

fn loss(input: &mut Unstructured<'_>) -> Loss {
    match below(input, 4) {
        0 => Loss::All,
        1 => Loss::Nothing,
        2 => Loss::Partial { seed: below(input, 1 << 16) as u32 },
        _ => Loss::Cut { bytes: below(input, 4_000) as u32 },
    }
}
