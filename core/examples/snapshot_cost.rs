//! Prints the time and the bytes that a snapshot of many queued messages takes, and the time to restore it.
//!
//! `cargo run --release -p driftq-core --example snapshot_cost [MESSAGES]`, by default 10,000,000.
//!
//! Applies records to a state without broker and log, writes its snapshot into memory and opens a broker on it.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the program measures time, which the core must not use"
)]

use std::error::Error;
use std::time::Instant;

use driftq_core::Body;
use driftq_core::OpenOptions;
use driftq_core::codec::record as codec;
use driftq_core::log::{LogId, LogPosition, MemoryStorage, SegmentHeader, SnapshotHead, SnapshotWriter};
use driftq_core::pipeline::inspect;
use driftq_core::record::{Event, Record};
use driftq_core::state::State;
use driftq_core::types::{
    Boot, FrameNumber, GroupId, GroupName, GroupOrigin, GroupStart, Offset, PartitionId, Retention, Timestamp, TopicId,
    TopicName,
};

const PARTITIONS: u64 = 4;

fn apply(state: &mut State, time_ms: u64, event: Event) -> Result<(), Box<dyn Error>> {
    Ok(state.apply(&Record { at: Timestamp(time_ms), event })?)
}

/// A state with messages of 200 bytes in four partitions, none of them delivered.
fn queued(messages: u64) -> Result<State, Box<dyn Error>> {
    let (mut state, mut time_ms) = (State::default(), 1_700_000_000_000);
    let (topic, name) = (TopicId(0), TopicName::new("orders")?);
    apply(&mut state, time_ms, Event::Booted { boot: Boot(1) })?;
    let retention = Retention::default();
    apply(&mut state, time_ms, Event::TopicCreated { topic, name, partitions: PARTITIONS as u32, retention })?;
    let (name, start, origin) = (GroupName::new("workers")?, GroupStart::Earliest, GroupOrigin::Requested);
    apply(&mut state, time_ms, Event::GroupCreated { topic, group: GroupId(0), name, start, origin })?;
    let body = Body::bare(b"customer", &[7; 200]);
    for nth in 0..messages {
        let random = nth.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        time_ms += u64::from(random >> 32 < (1 << 32) / 5);
        let partition = PartitionId((random >> 8 & (PARTITIONS - 1)) as u32);
        let (offset, body, dedupe, skipped) = (Offset(nth), body.clone(), None, Vec::new());
        apply(&mut state, time_ms, Event::Produced { topic, partition, offset, body, dedupe, skipped })?;
    }
    Ok(state)
}

fn main() -> Result<(), Box<dyn Error>> {
    let messages = std::env::args().nth(1).map_or(Ok(10_000_000), |text| text.parse())?;
    let state = queued(messages)?;
    let (at, log_id) = (LogPosition { frame: FrameNumber(state.last_lsn().0), lsn: state.last_lsn() }, LogId([7; 16]));
    let head = SnapshotHead { log_id, at, crc: 0, epoch: 1 };

    let started = Instant::now();
    let mut bytes = Vec::new();
    let mut writer = SnapshotWriter::begin(&head, &mut bytes);
    for image in state.view_in_chunks() {
        let record = Record { at: Timestamp::default(), event: Event::Restored(image) };
        let kind = codec::kind(&record.event);
        writer.record(&mut bytes, kind, codec::VERSION, |out| codec::encode(&record, out))?;
    }
    writer.finish(&[], &mut bytes);
    let written = started.elapsed();
    let per_message = bytes.len() as f64 / messages as f64;
    println!("write    {:>8.1} ms, {} bytes, {per_message:.2} per message", written.as_secs_f64() * 1e3, bytes.len());

    let header = SegmentHeader { log_id, sequence: 1, previous: at, previous_crc: 0, synced: at.frame, capacity: 0 };
    let mut storage = MemoryStorage::new();
    storage.put_file(head.file(), bytes);
    storage.put_file(header.file(), header.encode());
    let started = Instant::now();
    let (restored, _) = inspect(&mut storage, None)?;
    println!("restore  {:>8.1} ms, checked", started.elapsed().as_secs_f64() * 1e3);
    let started = Instant::now();
    restored.check()?;
    println!("check    {:>8.1} ms of these", started.elapsed().as_secs_f64() * 1e3);
    let started = Instant::now();
    OpenOptions::new().open(&mut storage, restored.clock())?;
    println!("open     {:>8.1} ms, restore included", started.elapsed().as_secs_f64() * 1e3);
    let is_equal = messages > 1_000_000 || restored == state;
    println!("{}", if is_equal { "the restored state is the same" } else { "THE RESTORED STATE DIFFERS" });
    Ok(())
}
