//! An estimate of the memory that the state takes.

use super::group::{Group, Progress};
use super::partition::Partition;
use super::topic::Topic;
use super::{Completions, DedupeEntry, State, Winners};
use crate::types::{Completion, DeliveryState, Effect, IdentityKey, LeaseToken, OffsetRef, Winner};

/// What a topic or group takes beside its own fields: its names in maps, and what the index holds for it.
const OBJECT: u64 = 512;
/// What a partition, or the progress of a group in one, takes beside its own fields.
const PART: u64 = 128;
/// A run of acked, trimmed or retained positions.
const RUN: u64 = 48;
/// A listed position: of a message with a priority, a delay or a deadline, or one that only one group sees.
const LISTED: u64 = 96;
/// What a delivery takes beside its own fields: its lease, its timer and its place in the order of its stream.
const DELIVERY: u64 = 192;
/// What an entry of a table takes beside its own fields: a key of usual length, and its place by time.
const ENTRY: u64 = 128;
/// A message that a payload of another record is listed for.
const REFERRER: u64 = 96;

/// An estimate of the memory that a state takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateMemory {
    /// The bytes.
    pub bytes: u64,
    /// How many parts were visited to count them.
    pub parts: u64,
}

impl StateMemory {
    fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.parts += 1;
    }
}

impl State {
    /// An estimate of the memory that the state takes, with what the index holds for it. Payloads and the results of
    /// effects are not counted.
    ///
    /// Visits every topic, partition, group and table, but no message, delivery or entry. It depends on how messages
    /// are packed, so that equal states can have different estimates.
    #[must_use]
    pub fn memory(&self) -> StateMemory {
        let mut memory = StateMemory::default();
        for topic in self.topics.values() {
            memory.add(size_of::<Topic>() as u64 + OBJECT + 4 * topic.name.encoded().len() as u64);
            topic.partitions.iter().for_each(|partition| memory.add(of_partition(partition)));
            for group in topic.groups.values() {
                memory.add(size_of::<Group>() as u64 + OBJECT + 2 * group.name.as_str().len() as u64);
                group.partitions.iter().for_each(|progress| memory.add(of_progress(progress)));
            }
        }
        let dedupe = (size_of::<IdentityKey>() + size_of::<DedupeEntry>()) as u64 + ENTRY;
        self.dedupe.values().for_each(|table| memory.add(OBJECT + table.len() as u64 * dedupe));
        let effect = (size_of::<IdentityKey>() + size_of::<Effect>()) as u64 + ENTRY;
        self.store.tables().for_each(|(_, table)| memory.add(OBJECT + table.len() as u64 * effect));
        let completion = (size_of::<LeaseToken>() + size_of::<Completion>()) as u64 + ENTRY;
        memory.add(Completions::len(&self.completions) as u64 * completion);
        let winner = (size_of::<OffsetRef>() + size_of::<Winner>()) as u64 + ENTRY;
        memory.add(Winners::len(&self.winners) as u64 * winner);
        memory.add(self.referrers.len() as u64 * REFERRER);
        memory.add(self.access.memory());
        memory
    }
}

fn of_partition(partition: &Partition) -> u64 {
    let runs = partition.trimmed.run_count() + partition.acked_in.run_count() + partition.retained.run_count();
    let listed = partition.special.len() + partition.exclusive.len();
    size_of::<Partition>() as u64 + PART + partition.memory() + runs as u64 * RUN + listed as u64 * LISTED
}

fn of_progress(progress: &Progress) -> u64 {
    let delivery = size_of::<DeliveryState>() as u64 + DELIVERY;
    let runs = progress.acked.run_count() as u64 * RUN;
    size_of::<Progress>() as u64 + PART + runs + progress.deliveries.len() as u64 * delivery
}
