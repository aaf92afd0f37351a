//! Cleaning: which segments are cleaned, and how fast.
//!
//! When the log is larger than its live bytes allow, the segments with the fewest live bytes are walked through, and
//! what is still referred to is written again. The next snapshots then list them no more, and they are removed. A
//! segment is cleaned only if that frees at least half of its data, so cleaning comes to an end: every payload that is
//! moved counts as much as its record takes. Many short segments are cleaned, too, and become one.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;

use super::maintenance::KeptSnapshot;
use super::walk::Walk;
use super::writer::Writer;
use crate::broker::Cleaned;
use crate::log::{HEADER_BYTES, SegmentInfo};
use crate::types::{Millis, Timestamp};

/// The share of the log's bytes that cleaning may write: one of so many.
const SHARE: u64 = 4;

/// The most bytes that cleaning may write at once.
const CREDIT_MAX: i64 = 1 << 20;

/// How often it is noticed that nothing else is written.
const TICK: Millis = Millis(100);

/// How long cleaning waits after the log had no space.
const RETRY: Millis = Millis(1_000);

/// Bytes that are read count as so many times fewer bytes that are written.
const READ_COST: i64 = 16;

/// Bytes of a segment that are not of records: its footer, and marks. Cleaning writes them again.
const OVERHEAD_BYTES: u64 = 256;

/// A segment is short if its data takes less than this fraction of what the largest one has room for.
const SHORT: u64 = 16;

/// So many short segments are made fewer, if at most half as many hold what is live in them.
const MERGED_MIN: usize = 8;

/// The segments to clean.
#[derive(Clone, Debug)]
pub(super) struct Cleaning {
    /// Bytes by which the log may exceed the live bytes.
    spare_bytes: u64,
    /// The segments to clean next.
    victims: VecDeque<u64>,
    /// The segments that were cleaned and are not removed yet.
    cleaned: BTreeSet<u64>,
    walk: Option<Walk>,
    /// The bytes that may be written.
    credit: i64,
    /// The bytes that others have written since the last tick.
    others: u64,
    tick_at: Option<Timestamp>,
    retry_at: Option<Timestamp>,
    figures: LogFigures,
}

/// Figures of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogFigures {
    /// The bytes of all segments.
    pub log_bytes: u64,
    /// The bytes in them to which the newest snapshot refers, and those written since.
    pub live_bytes: u64,
    /// The bytes of payloads that were written again since the start.
    pub relocated_bytes: u64,
    /// The segments that are to be cleaned.
    pub to_clean: u64,
    /// The segments that were read through for damage since the start.
    pub scrubbed_segments: u64,
    /// The bytes that were read for damage since the start.
    pub scrubbed_bytes: u64,
    /// The segment that is read for damage at the moment; 0 if none is.
    pub scrubbing: u64,
    /// How often all segments were read for damage since the start.
    pub scrubs: u64,
}

/// The bytes of a segment behind its header.
fn data(end: u64) -> u64 {
    end.saturating_sub(HEADER_BYTES as u64)
}

impl Cleaning {
    pub(super) fn new(spare_bytes: u64) -> Self {
        Self {
            spare_bytes,
            victims: VecDeque::new(),
            cleaned: BTreeSet::new(),
            walk: None,
            credit: CREDIT_MAX,
            others: 0,
            tick_at: None,
            retry_at: None,
            figures: LogFigures::default(),
        }
    }

    pub(super) fn figures(&self) -> LogFigures {
        let to_clean = self.victims.len() + usize::from(self.walk.is_some());
        LogFigures { to_clean: to_clean as u64, ..self.figures }
    }

    /// Chooses the segments to clean: `newest` is the newest snapshot.
    pub(super) fn plan(&mut self, newest: &KeptSnapshot, log: &Writer) {
        let is_covered = |segment: &&SegmentInfo| segment.last_frame <= newest.frame;
        let is_counted = |segment: &&SegmentInfo| {
            !self.cleaned.contains(&segment.sequence)
                && (!is_covered(segment) || newest.live_bytes(segment.sequence).is_some())
        };
        let counted: Vec<_> = log.closed.iter().filter(is_counted).collect();
        let live = |segment: &SegmentInfo| match is_covered(&segment) {
            true => newest.live_bytes(segment.sequence).unwrap_or(0).min(data(segment.end)),
            false => data(segment.end),
        };
        let live_bytes = data(log.end()) + counted.iter().map(|segment| live(segment)).sum::<u64>();
        let mut log_bytes = data(log.end()) + counted.iter().map(|segment| data(segment.end)).sum::<u64>();
        (self.figures.log_bytes, self.figures.live_bytes) = (log.closed_bytes() + log.end(), live_bytes);
        let allowed = (2 * live_bytes).max(live_bytes.saturating_add(self.spare_bytes));
        let mut candidates: Vec<_> = counted.into_iter().filter(is_covered).collect();
        let is_short = |segment: &&SegmentInfo| data(segment.end) < data(log.segment_bytes) / SHORT;
        let short: Vec<_> = candidates.iter().copied().filter(is_short).collect();
        let needed = 1 + short.iter().map(|segment| live(segment)).sum::<u64>() / data(log.segment_bytes).max(1);
        let merges = short.len() >= MERGED_MIN && 2 * needed <= short.len() as u64;
        let pays = |segment: &&SegmentInfo| 2 * live(segment) + OVERHEAD_BYTES <= data(segment.end);
        candidates.retain(|segment| pays(segment) || merges && is_short(segment));
        candidates.sort_by_key(|segment| (live(segment), segment.sequence));
        self.victims.clear();
        for segment in candidates {
            if log_bytes <= allowed && !(merges && is_short(&segment)) {
                continue;
            }
            log_bytes -= data(segment.end) - live(segment);
            if self.walk.is_none_or(|walk| walk.sequence != segment.sequence) {
                self.victims.push_back(segment.sequence);
            }
        }
        self.cleaned.retain(|sequence| log.closed.iter().any(|segment| segment.sequence == *sequence));
    }

    /// As [`Pipeline::canonical`](super::Pipeline::canonical).
    pub(super) fn canonical(&self, out: &mut impl fmt::Write) -> fmt::Result {
        let Self { victims, walk, tick_at, retry_at, .. } = self;
        let next = walk.map(|walk| walk.next);
        write!(out, "{} {next:?} {} {tick_at:?} {retry_at:?} ", victims.len(), self.waits_for_credit())
    }

    /// The walk that goes on, if cleaning may write.
    pub(super) fn walk(&mut self, log: &Writer) -> Option<Walk> {
        if self.credit <= 0 || self.retry_at.is_some() {
            return None;
        }
        loop {
            let walk = match self.walk.take() {
                Some(walk) => Some(walk),
                None => Walk::of(self.victims.pop_front()?, log),
            };
            let Some(walk) = walk else { continue };
            match log.place_of_segment(walk.sequence) {
                Some(place) if walk.position < place.end => {
                    self.walk = Some(walk);
                    return self.walk;
                }
                Some(_) => drop(self.cleaned.insert(walk.sequence)),
                None => {}
            }
        }
    }

    /// A read of `bytes` was used; the walk goes on at `walk`, unless the log had no space.
    pub(super) fn moved(&mut self, walk: Walk, read: usize, cleaned: Cleaned, now: Timestamp) {
        self.credit -= read as i64 / READ_COST + cleaned.bytes as i64;
        self.others = self.others.saturating_sub(cleaned.bytes);
        self.figures.relocated_bytes += cleaned.bytes;
        match cleaned.refused_at {
            None => self.walk = Some(walk),
            Some(_) => self.retry_at = Some(now.after(RETRY)),
        }
    }

    /// The walk goes on at `walk`, after a read that brought nothing.
    pub(super) fn stands_at(&mut self, walk: Walk) {
        self.walk = Some(walk);
    }

    /// The log writes so many bytes.
    pub(super) fn written(&mut self, bytes: u64) {
        self.credit = (self.credit + (bytes / SHARE) as i64).min(CREDIT_MAX);
        self.others += bytes;
    }

    pub(super) fn on_time(&mut self, now: Timestamp) {
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
        }
        if !self.waits_for_credit() {
            self.tick_at = None;
        } else if self.tick_at.is_none_or(|at| at <= now) {
            // At rest there is nothing that cleaning could disturb.
            if self.tick_at.is_some() && self.others == 0 {
                self.credit = CREDIT_MAX;
            }
            self.others = 0;
            self.tick_at = Some(now.after(TICK));
        }
    }

    fn waits_for_credit(&self) -> bool {
        self.credit <= 0 && (self.walk.is_some() || !self.victims.is_empty())
    }

    /// When [`Cleaning::on_time`] must be called.
    pub(super) fn next_at(&self) -> Option<Timestamp> {
        let tick = self.waits_for_credit().then(|| self.tick_at.unwrap_or_default());
        tick.into_iter().chain(self.retry_at).min()
    }
}
