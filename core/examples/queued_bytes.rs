//! Prints the memory and the time that the state takes per queued message of 200 bytes.
//!
//! `cargo run --release -p driftq-core --example queued_bytes`
//!
//! Applies records to a state without broker and log: a million messages are produced, read in order, then delivered
//! and acked in order. Bodies are held by the log, not by the state.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the program measures time, which the core must not use"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use driftq_core::Body;
use driftq_core::record::{Event, Record};
use driftq_core::state::State;
use driftq_core::types::{
    Boot, GroupId, GroupName, GroupOrigin, GroupStart, LeaseToken, MessageRef, NameError, Offset, OwnerName,
    PartitionId, Position, Retention, Timestamp, TopicId, TopicName,
};

/// Counts live heap bytes, rounded up as by glibc, and allocations.
struct Counting;

static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is forwarded to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE_BYTES.fetch_add(rounded(layout.size()), Relaxed);
        ALLOCATIONS.fetch_add(1, Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(rounded(layout.size()), Relaxed);
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// The size of a glibc allocation: eight bytes more, rounded up to a multiple of sixteen.
fn rounded(size: usize) -> usize {
    (size + 8).next_multiple_of(16).max(32)
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MESSAGES: u64 = 1_000_000;

const MESSAGE: MessageRef =
    MessageRef { topic: TopicId(0), group: GroupId(0), partition: PartitionId(0), position: Position(0) };

struct Fixture {
    state: State,
    body: Body,
    owner: OwnerName,
    time_ms: u64,
}

impl Fixture {
    fn new() -> Result<Self, NameError> {
        let (state, body) = (State::default(), Body::bare(b"customer", &[7; 200]));
        let mut fixture = Self { state, body, owner: OwnerName::new("worker")?, time_ms: 1_700_000_000_000 };
        let name = TopicName::new("orders")?;
        let retention = Retention::default();
        fixture.apply(Event::Booted { boot: Boot(1) });
        fixture.apply(Event::TopicCreated { topic: MESSAGE.topic, name, partitions: 1, retention });
        let (name, start, origin) = (GroupName::new("workers")?, GroupStart::Earliest, GroupOrigin::Requested);
        fixture.apply(Event::GroupCreated { topic: MESSAGE.topic, group: MESSAGE.group, name, start, origin });
        Ok(fixture)
    }

    fn apply(&mut self, event: Event) {
        let record = Record { at: Timestamp(self.time_ms), event };
        self.state.apply(&record).expect("the record follows from the state");
    }

    /// Produces a message; about five per millisecond.
    fn produce(&mut self, nth: u64) {
        self.time_ms += u64::from(nth.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 < (1 << 32) / 5);
        let (topic, partition, body) = (MESSAGE.topic, MESSAGE.partition, self.body.clone());
        let (dedupe, skipped) = (None, Vec::new());
        self.apply(Event::Produced { topic, partition, offset: Offset(nth), body, dedupe, skipped });
    }

    fn deliver(&mut self, nth: u64) {
        let message_ref = MessageRef { position: Position(nth), ..MESSAGE };
        let (token, owner) = (LeaseToken { boot: Boot(1), counter: nth }, self.owner.clone());
        self.apply(Event::Delivered { message_ref, token, owner, until: Timestamp(self.time_ms + 1_000) });
    }

    fn ack(&mut self, nth: u64) {
        let message_ref = MessageRef { position: Position(nth), ..MESSAGE };
        self.apply(Event::Acked { message_ref, commits: None, winner_until: None });
    }
}

/// Runs `work` for each number and prints its time and its allocations.
fn measure(what: &str, numbers: std::ops::Range<u64>, mut work: impl FnMut(u64)) {
    let count = (numbers.end - numbers.start) as f64;
    let (before, started) = (ALLOCATIONS.load(Relaxed), Instant::now());
    numbers.for_each(&mut work);
    let ns = started.elapsed().as_nanos() as f64 / count;
    let allocations = (ALLOCATIONS.load(Relaxed) - before) as f64 / count;
    println!("{what:<44} {ns:>7.1} ns {allocations:>8.4} allocations");
}

fn main() -> Result<(), NameError> {
    let mut fixture = Fixture::new()?;
    let before = LIVE_BYTES.load(Relaxed);
    measure("produce", 0..MESSAGES, |nth| fixture.produce(nth));
    let bytes = (LIVE_BYTES.load(Relaxed) - before) as f64 / MESSAGES as f64;
    let partition = |state: &State| state.topic(MESSAGE.topic)?.partition(MESSAGE.partition).cloned();
    let stored = partition(&fixture.state).expect("the partition exists");
    measure("read in order", 0..MESSAGES, |nth| {
        assert!(stored.message(Position(nth)).is_some_and(|message| message.offset == Offset(nth)));
    });
    drop(stored);
    measure("deliver and ack in order", 0..MESSAGES, |nth| {
        fixture.deliver(nth);
        fixture.ack(nth);
    });
    measure("produce, deliver, ack of an empty partition", MESSAGES..2 * MESSAGES, |nth| {
        fixture.produce(nth);
        fixture.deliver(nth);
        fixture.ack(nth);
    });
    println!("{bytes:.2} bytes per queued message");
    Ok(())
}
