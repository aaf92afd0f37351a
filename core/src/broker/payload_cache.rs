//! Payloads in memory. The cache holds no truth: it may be emptied at any time, except for payloads that are not synced
//! yet.
//!
//! Payloads are evicted by block, a run of payloads that were written or read together. What is needed last goes first:
//! blocks whose payloads were all delivered, then the tail of a backlog before its head, then what was read first. The
//! newest blocks stay longest, since a consumer that keeps up needs them next.

mod entries;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use self::entries::Entries;
use crate::types::{Body, Lsn, PayloadId};

/// What an entry costs beside its bytes, roughly.
pub(super) const ENTRY_OVERHEAD: u64 = 96;

/// The most bytes of a block that is written.
const BLOCK_BYTES: u64 = 64 << 10;

/// The most bytes of blocks whose payloads were all delivered; they stay for redeliveries.
const USED_UP_BYTES: u64 = 4 << 20;

/// Payloads by their place in the log.
#[derive(Clone, Debug)]
pub(super) struct PayloadCache {
    bytes_max: u64,
    bytes: u64,
    entries: Entries,
    /// All blocks but the open one.
    blocks: BTreeMap<BlockId, Block>,
    next_block: BlockId,
    /// The block that is being written.
    open: Option<(BlockId, Block)>,
    /// The payloads of the block that was written last: the next one is about as long.
    sealed_len: usize,
    /// The newest written blocks, oldest first, up to a quarter of the cache.
    recent: VecDeque<BlockId>,
    recent_bytes: u64,
    /// Older written blocks, some removed.
    older: BTreeSet<BlockId>,
    /// Blocks that were read, oldest first, some removed.
    read: VecDeque<BlockId>,
    /// Blocks whose payloads were all delivered, some removed.
    used_up: VecDeque<BlockId>,
    used_up_bytes: u64,
    /// Bodies of the last evicted block. Freed one by one as others come in: the allocator gives the memory of one that
    /// was just freed to the next request, but has to merge and split what is freed together.
    dropped: Vec<Body>,
    hits: u64,
    misses: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct BlockId(u64);

#[derive(Clone, Debug)]
struct Entry {
    body: Body,
    block: BlockId,
    /// How often it was delivered since it came into the cache.
    taken: u32,
    /// Whether it counts as delivered to every group.
    is_used_up: bool,
}

#[derive(Clone, Debug, Default)]
struct Block {
    payloads: Vec<PayloadId>,
    bytes: u64,
    /// The payloads that some group has not taken yet.
    untaken: usize,
}

impl Block {
    /// Adds an entry and returns what it costs.
    fn add(&mut self, payload: PayloadId, entry: &Entry) -> u64 {
        let bytes = entry.body.encoded_len() + ENTRY_OVERHEAD;
        self.payloads.push(payload);
        self.bytes += bytes;
        self.untaken += usize::from(!entry.is_used_up);
        bytes
    }

    /// Whether everything in it is synced through `durable`.
    fn is_durable(&self, durable: Lsn) -> bool {
        self.payloads.last().is_none_or(|last| last.lsn <= durable)
    }
}

impl PayloadCache {
    pub(super) fn new(bytes_max: u64) -> Self {
        Self {
            bytes_max,
            bytes: 0,
            entries: Entries::default(),
            blocks: BTreeMap::new(),
            next_block: BlockId::default(),
            open: None,
            sealed_len: 0,
            recent: VecDeque::new(),
            recent_bytes: 0,
            older: BTreeSet::new(),
            read: VecDeque::new(),
            used_up: VecDeque::new(),
            used_up_bytes: 0,
            dropped: Vec::new(),
            hits: 0,
            misses: 0,
        }
    }

    /// The bytes of all payloads and what they cost beside.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How often a payload was found, and how often it was not.
    pub(super) fn lookups(&self) -> (u64, u64) {
        (self.hits, self.misses)
    }

    pub(super) fn get(&mut self, payload: PayloadId) -> Option<Body> {
        let found = self.entries.get(payload).map(|entry| entry.body.clone());
        match found {
            Some(_) => self.hits += 1,
            None => self.misses += 1,
        }
        found
    }

    /// As [`PayloadCache::get`], without counting.
    pub(super) fn peek(&self, payload: PayloadId) -> Option<&Body> {
        self.entries.get(payload).map(|entry| &entry.body)
    }

    pub(super) fn contains(&self, payload: PayloadId) -> bool {
        self.entries.get(payload).is_some()
    }

    /// As [`PayloadCache::get`], for a delivery to one of `groups` groups.
    pub(super) fn take(&mut self, payload: PayloadId, groups: usize) -> Option<Body> {
        let Some(entry) = self.entries.get_mut(payload) else {
            self.misses += 1;
            return None;
        };
        self.hits += 1;
        let body = entry.body.clone();
        entry.taken = entry.taken.saturating_add(1);
        if !entry.is_used_up && entry.taken as usize >= groups {
            entry.is_used_up = true;
            let block = entry.block;
            self.used_up(block);
        }
        Some(body)
    }

    /// One more payload of a block was delivered to every group.
    fn used_up(&mut self, id: BlockId) {
        if let Some((_, open)) = self.open.as_mut().filter(|(open, _)| *open == id) {
            open.untaken -= 1;
            return;
        }
        let block = self.blocks.get_mut(&id).expect("the block of an entry exists");
        block.untaken -= 1;
        if block.untaken == 0 {
            self.used_up_bytes += block.bytes;
            self.used_up.push_back(id);
        }
    }

    /// Adds a payload that was just appended to the log. No group takes a result: it does not keep its block.
    pub(super) fn insert_written(&mut self, payload: PayloadId, body: Body, is_result: bool) {
        if self.open.is_none() {
            let (id, mut block) = self.new_block();
            block.payloads.reserve(self.sealed_len);
            self.open = Some((id, block));
        }
        drop(self.dropped.pop());
        let Some((id, block)) = &mut self.open else { return };
        let entry = Entry { body, block: *id, taken: 0, is_used_up: is_result };
        self.bytes += block.add(payload, &entry);
        let is_full = block.bytes >= BLOCK_BYTES.min(self.bytes_max / 16);
        self.entries.insert(payload, entry);
        if is_full {
            self.seal();
        }
    }

    /// Adds a payload that was just written again. Nothing waits for it, so it goes first once it is synced.
    pub(super) fn insert_relocated(&mut self, payload: PayloadId, body: Body) {
        let (id, mut block) = self.new_block();
        self.add(id, &mut block, payload, body, true);
        self.used_up_bytes += block.bytes;
        self.used_up.push_back(id);
        self.blocks.insert(id, block);
    }

    fn new_block(&mut self) -> (BlockId, Block) {
        let id = self.next_block;
        self.next_block.0 += 1;
        (id, Block::default())
    }

    /// Ends the block that is being written.
    fn seal(&mut self) {
        let Some((id, block)) = self.open.take() else { return };
        self.sealed_len = block.payloads.len();
        if block.untaken == 0 {
            self.used_up_bytes += block.bytes;
            self.used_up.push_back(id);
        }
        self.recent_bytes += block.bytes;
        self.recent.push_back(id);
        self.blocks.insert(id, block);
        while self.recent_bytes > self.bytes_max / 4
            && let Some(oldest) = self.recent.pop_front()
        {
            if let Some(block) = self.blocks.get(&oldest) {
                self.recent_bytes -= block.bytes;
                self.older.insert(oldest);
            }
        }
    }

    /// Adds the payloads that a read has brought, in the order of the log, each with whether it counts as delivered to
    /// every group. Those that are there stay as they are.
    pub(super) fn insert_read(&mut self, payloads: impl IntoIterator<Item = (PayloadId, Body, bool)>) {
        let (id, mut block) = self.new_block();
        for (payload, body, is_used_up) in payloads {
            if !self.contains(payload) {
                self.add(id, &mut block, payload, body, is_used_up);
            }
        }
        if block.payloads.is_empty() {
            return;
        }
        if block.untaken == 0 {
            self.used_up_bytes += block.bytes;
            self.used_up.push_back(id);
        }
        self.read.push_back(id);
        self.blocks.insert(id, block);
    }

    fn add(&mut self, id: BlockId, block: &mut Block, payload: PayloadId, body: Body, is_used_up: bool) {
        let entry = Entry { body, block: id, taken: 0, is_used_up };
        self.bytes += block.add(payload, &entry);
        self.entries.insert(payload, entry);
    }

    /// Evicts blocks until the cache is within its bound, or nothing else may go: the log is synced through `durable`.
    pub(super) fn evict(&mut self, durable: Lsn) {
        while self.used_up_bytes > USED_UP_BYTES.min(self.bytes_max)
            && let Some(id) = self.first_used_up(durable)
        {
            self.remove(id);
        }
        while self.bytes > self.bytes_max
            && let Some(id) = self.needed_last(durable)
        {
            self.remove(id);
        }
    }

    /// The block that is needed last.
    fn needed_last(&mut self, durable: Lsn) -> Option<BlockId> {
        let used_up = self.first_used_up(durable);
        used_up.or_else(|| self.last_older(durable)).or_else(|| self.read.pop_front()).or_else(|| {
            let oldest = *self.recent.front()?;
            if self.may_go(oldest, durable) { self.recent.pop_front() } else { None }
        })
    }

    fn first_used_up(&mut self, durable: Lsn) -> Option<BlockId> {
        let first = *self.used_up.front()?;
        if self.may_go(first, durable) { self.used_up.pop_front() } else { None }
    }

    fn last_older(&mut self, durable: Lsn) -> Option<BlockId> {
        let last = *self.older.iter().rev().find(|id| self.may_go(**id, durable))?;
        self.older.remove(&last);
        Some(last)
    }

    /// Whether the block is removed already, or synced.
    fn may_go(&self, id: BlockId, durable: Lsn) -> bool {
        self.blocks.get(&id).is_none_or(|block| block.is_durable(durable))
    }

    fn remove(&mut self, id: BlockId) {
        let Some(block) = self.blocks.remove(&id) else { return };
        self.bytes -= block.bytes;
        if block.untaken == 0 {
            self.used_up_bytes = self.used_up_bytes.saturating_sub(block.bytes);
        }
        if let Ok(at) = self.recent.binary_search(&id) {
            self.recent.remove(at);
            self.recent_bytes -= block.bytes;
        }
        // Long bodies, or more than a block that was written, are not kept any longer.
        if block.bytes > 2 * BLOCK_BYTES || self.dropped.len() > block.payloads.len() {
            self.dropped.clear();
        }
        let is_kept = block.bytes <= 2 * BLOCK_BYTES;
        let dropped = &mut self.dropped;
        self.entries.remove(id, &block.payloads, |body| {
            if is_kept {
                dropped.push(body);
            }
        });
    }
}
