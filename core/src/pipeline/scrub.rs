//! Scrub: reads every segment that may contain live payloads once per interval, to find damage before it is needed.

use std::collections::VecDeque;

use super::cleaning::LogFigures;
use super::walk::Walk;
use super::writer::Writer;
use crate::types::{Millis, Timestamp};

/// How fast segments are read.
const BYTES_PER_SECOND: u64 = 16 << 20;

/// The first scrub begins so long after the start, or after an interval if that is shorter.
const FIRST_AFTER: Millis = Millis(60_000);

/// The progress of scrubs.
#[derive(Clone, Debug)]
pub(super) struct Scrub {
    interval: Option<Millis>,
    /// When the next scrub begins.
    begin_at: Option<Timestamp>,
    /// When the last one began.
    began_at: Timestamp,
    /// The segments that it has not read yet.
    rest: VecDeque<u64>,
    walk: Option<Walk>,
    /// When the next read may follow.
    read_at: Option<Timestamp>,
    is_due: bool,
    figures: LogFigures,
}

impl Scrub {
    /// Scrubs once per `interval`; never if that is `None` or 0.
    pub(super) fn new(interval: Option<Millis>, now: Timestamp) -> Self {
        let interval = interval.filter(|interval| interval.0 > 0);
        let first = interval.map(|interval| now.after(Millis(interval.0.min(FIRST_AFTER.0))));
        Self {
            interval,
            begin_at: first,
            began_at: now,
            rest: VecDeque::new(),
            walk: None,
            read_at: None,
            is_due: false,
            figures: LogFigures::default(),
        }
    }

    /// Adds the figures of scrubs.
    pub(super) fn figures(&self, figures: LogFigures) -> LogFigures {
        let LogFigures { scrubbed_segments, scrubbed_bytes, scrubs, .. } = self.figures;
        let scrubbing = self.walk.map_or(0, |walk| walk.sequence);
        LogFigures { scrubbed_segments, scrubbed_bytes, scrubs, scrubbing, ..figures }
    }

    fn is_running(&self) -> bool {
        self.walk.is_some() || !self.rest.is_empty()
    }

    /// Begins a scrub, if it is time: of the segments that `is_live` says may contain live payloads.
    pub(super) fn on_time(&mut self, now: Timestamp, log: &Writer, is_live: impl Fn(u64) -> bool) {
        if self.begin_at.is_some_and(|at| at <= now) {
            self.begin_at = None;
            self.began_at = now;
            let closed = log.closed.iter().map(|segment| segment.sequence).filter(|sequence| is_live(*sequence));
            self.rest = closed.chain([log.sequence]).collect();
        }
        if self.read_at.is_some_and(|at| at <= now) {
            self.read_at = None;
        }
        self.is_due = self.is_running() && self.read_at.is_none();
    }

    /// The walk that goes on, if it is time for a read.
    pub(super) fn walk(&mut self, log: &Writer) -> Option<Walk> {
        if !self.is_due {
            return None;
        }
        loop {
            let walk = match self.walk.take() {
                Some(walk) => Some(walk),
                None => match self.rest.pop_front() {
                    Some(sequence) => Walk::of(sequence, log),
                    None => {
                        self.finish();
                        return None;
                    }
                },
            };
            let Some(walk) = walk else { continue };
            if log.place_of_segment(walk.sequence).is_some_and(|place| walk.position < place.end) {
                self.walk = Some(walk);
                return self.walk;
            }
            self.figures.scrubbed_segments += 1;
        }
    }

    fn finish(&mut self) {
        self.is_due = false;
        self.figures.scrubs += 1;
        self.begin_at = self.interval.map(|interval| self.began_at.after(interval));
    }

    /// The walk goes on at `walk`, after a read of `bytes` at `now`.
    pub(super) fn moved(&mut self, walk: Walk, read: usize, now: Timestamp) {
        self.figures.scrubbed_bytes += read as u64;
        self.walk = Some(walk);
        self.is_due = false;
        self.read_at = Some(now.after(Millis(1 + read as u64 * 1_000 / BYTES_PER_SECOND)));
    }

    /// When [`Scrub::on_time`] must be called.
    pub(super) fn next_at(&self) -> Option<Timestamp> {
        if self.is_running() { self.read_at } else { self.begin_at }
    }
}
