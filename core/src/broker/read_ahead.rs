//! Which payloads are read before an output needs them.
//!
//! A group that takes the messages of a partition in order, and has met one that is not in memory, will need those
//! that follow. They are asked for as it goes on, a few at each delivery, until as many bytes as allowed lie ahead of
//! it: as fast as it moves, and no further. A group that finds all its payloads in memory never causes a read.
//!
//! What is asked for is a hint: it may be read late, or never, and changes no decision.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::ops::RangeInclusive;

use super::Broker;
use super::payload_cache::{ENTRY_OVERHEAD, PayloadCache};
use crate::faults::Faults;
use crate::state::{Partition, State};
use crate::types::{GroupId, Lsn, MessageRef, PartitionId, Position, TopicId};

/// The most messages that one delivery looks at.
const STEP_MESSAGES: usize = 64;

/// The most bytes that one delivery asks for.
const STEP_BYTES: u64 = 128 << 10;

/// The most records that wait to be read.
const ASKED_MAX: usize = 64 << 10;

/// The most groups and partitions whose messages are read ahead; of more, those go that have not moved for longest.
const CURSORS_MAX: usize = 256;

/// The part of the cache that all groups together may have read ahead: 1 / this.
const CACHE_SHARE: u64 = 2;

/// What is read ahead.
#[derive(Clone, Debug)]
pub(super) struct ReadAhead {
    /// For one group and partition.
    bytes_max: u64,
    /// For all.
    share: u64,
    cursors: BTreeMap<(TopicId, GroupId, PartitionId), Cursor>,
    /// Counts deliveries, to find the cursor that has not moved for longest.
    deliveries: u64,
    /// The records that are to be read.
    asked: BTreeSet<Lsn>,
}

/// A group that moves on through a partition.
#[derive(Clone, Debug)]
struct Cursor {
    /// Where it was last.
    at: Position,
    /// Everything before was asked for, or was in memory.
    next: Position,
    /// What lies ahead of it: the end of each step, and its bytes.
    steps: VecDeque<(Position, u64)>,
    /// Their bytes.
    bytes: u64,
    moved_at: u64,
}

impl Cursor {
    fn new(at: Position, moved_at: u64) -> Self {
        Self { at, next: at.next(), steps: VecDeque::new(), bytes: 0, moved_at }
    }

    /// The group is at `position`: forgets the steps behind it.
    fn move_to(&mut self, position: Position, moved_at: u64) {
        (self.at, self.moved_at) = (position, moved_at);
        while let Some((end, bytes)) = self.steps.front()
            && *end <= position
        {
            self.bytes -= bytes;
            self.steps.pop_front();
        }
    }

    /// Asks for the next few messages that are not in memory.
    fn step(&mut self, partition: &Partition, cache: &PayloadCache, durable: Lsn, asked: &mut BTreeSet<Lsn>) {
        let mut bytes = 0;
        for (position, message) in partition.messages_from(self.next).take(STEP_MESSAGES) {
            self.next = position.next();
            let payload = message.payload.id;
            if payload.lsn <= durable && !payload.is_lost() && !cache.contains(payload) {
                asked.insert(payload.lsn);
            }
            bytes += message.payload.payload_len() + ENTRY_OVERHEAD;
            if bytes >= STEP_BYTES {
                break;
            }
        }
        if bytes > 0 {
            self.bytes += bytes;
            self.steps.push_back((self.next, bytes));
        }
    }
}

impl ReadAhead {
    /// At most `bytes_max` for one group and partition, and for all no more than their share of the cache.
    pub(super) fn new(bytes_max: u64, cache_bytes_max: u64) -> Self {
        let share = cache_bytes_max / CACHE_SHARE;
        Self { bytes_max, share, cursors: BTreeMap::new(), deliveries: 0, asked: BTreeSet::new() }
    }

    /// As [`Broker::canonical`].
    pub(super) fn canonical(&self, out: &mut impl fmt::Write) -> fmt::Result {
        let Self { bytes_max: _, share: _, cursors, deliveries: _, asked } = self;
        for (of, Cursor { at, next, steps, bytes: _, moved_at: _ }) in cursors {
            write!(out, "{of:?} {at:?} {next:?} {steps:?} ")?;
        }
        write!(out, "{asked:?} ")
    }

    /// A message is delivered for the first time; `is_cached` says whether its payload is in memory.
    fn delivered(&mut self, of: &MessageRef, is_cached: bool, state: &State, cache: &PayloadCache, durable: Lsn) {
        if self.bytes_max.min(self.share) == 0 || is_cached && self.cursors.is_empty() {
            return;
        }
        self.deliveries += 1;
        let (at, position, now) = ((of.topic, of.group, of.partition), of.position, self.deliveries);
        let Some(cursor) = self.cursors.get(&at) else {
            if !is_cached {
                self.make_room();
                self.cursors.insert(at, Cursor::new(position, now));
                self.step(&at, state, cache, durable);
            }
            return;
        };
        match (position < cursor.at, cursor.next <= position, is_cached) {
            // It has caught up with what is read: it needs no reads any more.
            (_, true, true) => drop(self.cursors.remove(&at)),
            (true, _, true) => {}
            // It has gone to another place.
            (true, _, false) | (_, true, false) => {
                self.cursors.insert(at, Cursor::new(position, now));
                self.step(&at, state, cache, durable);
            }
            (false, false, _) => {
                if let Some(cursor) = self.cursors.get_mut(&at) {
                    cursor.move_to(position, now);
                }
                self.step(&at, state, cache, durable);
            }
        }
    }

    /// Asks for more of what lies ahead, unless that is enough.
    fn step(
        &mut self,
        at: &(TopicId, GroupId, PartitionId),
        state: &State,
        cache: &PayloadCache,
        durable: Lsn,
    ) -> Option<()> {
        let bytes_max = self.bytes_max.min(self.share / self.cursors.len().max(1) as u64);
        let cursor = self.cursors.get_mut(at)?;
        if cursor.bytes < bytes_max && self.asked.len() < ASKED_MAX {
            let partition = state.topic(at.0)?.partition(at.2)?;
            cursor.step(partition, cache, durable, &mut self.asked);
        }
        Some(())
    }

    /// Makes room for another cursor.
    fn make_room(&mut self) {
        if self.cursors.len() < CURSORS_MAX {
            return;
        }
        let oldest = self.cursors.iter().min_by_key(|(_, cursor)| cursor.moved_at).map(|(at, _)| *at);
        oldest.map(|at| self.cursors.remove(&at));
    }

    /// The first record from `lsn` on that is to be read.
    fn first_asked(&self, lsn: Lsn) -> Option<Lsn> {
        self.asked.range(lsn..).next().copied()
    }

    /// Forgets records: they are being read, were read, or cannot be.
    fn forget(&mut self, lsns: &RangeInclusive<Lsn>) {
        while let Some(first) = self.first_asked(*lsns.start())
            && first <= *lsns.end()
        {
            self.asked.remove(&first);
        }
    }
}

impl<F: Faults> Broker<F> {
    /// With payloads that are read before outputs need them: at most `bytes_max` ahead of each group and partition.
    #[must_use]
    pub fn with_read_ahead(mut self, bytes_max: u64) -> Self {
        self.read_ahead.bytes_max = bytes_max;
        self
    }

    /// The most bytes that are read ahead of a group and partition.
    #[must_use]
    pub fn read_ahead_bytes(&self) -> u64 {
        self.read_ahead.bytes_max.min(self.read_ahead.share)
    }

    /// A message is delivered for the first time: asks for the payloads that its group needs next.
    pub(super) fn read_ahead_of(&mut self, message_ref: &MessageRef, is_cached: bool) {
        self.read_ahead.delivered(message_ref, is_cached, &self.state, &self.payloads, self.durable);
    }

    /// The first record from `lsn` on that should be read before an output needs its payload, if there is time for it.
    #[must_use]
    pub fn first_read_ahead(&self, lsn: Lsn) -> Option<Lsn> {
        self.read_ahead.first_asked(lsn)
    }

    /// The records are being read, or cannot be: [`Broker::first_read_ahead`] does not return them any more.
    pub fn forget_read_ahead(&mut self, lsns: &RangeInclusive<Lsn>) {
        self.read_ahead.forget(lsns);
    }
}
