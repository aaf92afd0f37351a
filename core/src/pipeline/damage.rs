//! What is left of a damaged part of a segment.

use std::ops::RangeInclusive;

use crate::codec::record as codec;
use crate::log::frame::{FrameError, decode, skip_damaged};
use crate::log::{CrcSeed, LogPosition, SegmentIndex};
use crate::record::Record;
use crate::types::{FrameNumber, Lsn};

/// Why frames end before the bytes do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The next frame is longer than the bytes that are left.
    CutOff,
    /// The next frame is damaged.
    Damaged(String),
}

/// Bytes of a segment.
#[derive(Clone, Copy)]
pub(super) struct Block<'a> {
    pub(super) bytes: &'a [u8],
    /// Where they begin in the segment.
    pub(super) position: u64,
    /// The number of their first frame, and the LSN of their first record.
    pub(super) first: LogPosition,
    pub(super) seed: CrcSeed,
}

/// Whether damaged frames are left out if it is certain where the next one begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnDamage {
    Skip,
    Stop,
}

/// The frames at the beginning of a block.
#[derive(Debug, Default)]
pub(super) struct Frames {
    /// The records among them.
    pub(super) records: Vec<(Lsn, Record)>,
    /// The byte behind them.
    pub(super) end: usize,
    /// The position that the next frame should have; its LSN is that of the next record.
    pub(super) next: LogPosition,
    /// Why they end there; `None` at the end of the block.
    pub(super) stop: Option<Stop>,
    /// Whether the index has learnt of frames that it did not know.
    pub(super) is_news: bool,
}

impl Block<'_> {
    /// Reads its frames up to the first that is cut off or damaged. An `index` that does not know all of the segment
    /// learns where they stand.
    pub(super) fn read(&self, mut index: Option<&mut SegmentIndex>, on_damage: OnDamage) -> Frames {
        let known = index.as_ref().and_then(|index| index.unknown_from());
        let mut read = Frames { next: self.first, ..Frames::default() };
        while read.end < self.bytes.len() {
            let position = self.position + read.end as u64;
            let rest = &self.bytes[read.end..];
            let (size, is_record) = match self.frame(rest, &mut read) {
                Ok(found) => found,
                Err(error) => {
                    if let (FrameError::TooShort { needed, .. }, Some(index)) = (error, &mut index) {
                        read.is_news |= index.learn_size(position, needed as u64);
                    }
                    match skip_damaged(rest, self.seed, read.next.frame).filter(|_| on_damage == OnDamage::Skip) {
                        Some(skipped) => skipped,
                        None => break,
                    }
                }
            };
            if let Some(index) = &mut index {
                index.learn(position, size as u64, is_record);
            }
            read.stop = None;
            read.end += size;
            read.next.frame = read.next.frame.next();
            if is_record {
                read.next.lsn = read.next.lsn.next();
            }
        }
        read.is_news |= index.and_then(|index| index.unknown_from()) != known;
        read
    }

    /// Reads the frame at the beginning of `rest`: its size, and whether it is a record. Notes why it cannot.
    fn frame(&self, rest: &[u8], read: &mut Frames) -> Result<(usize, bool), FrameError> {
        let frame = decode(rest, self.seed).inspect_err(|error| {
            read.stop = Some(match error {
                FrameError::TooShort { .. } => Stop::CutOff,
                error => Stop::Damaged(format!("not a frame: {error}")),
            });
        })?;
        let (head, size) = (frame.head, frame.size());
        if head.number != read.next.frame {
            let why = format!("frame {} where frame {} should be", head.number, read.next.frame);
            read.stop = Some(Stop::Damaged(why));
            return Err(FrameError::BadKind);
        }
        if frame.is_record() {
            match codec::decode(head.kind, head.version, frame.payload) {
                Ok(record) => read.records.push((read.next.lsn, record)),
                Err(error) => {
                    read.stop = Some(Stop::Damaged(error.to_string()));
                    return Err(FrameError::BadKind);
                }
            }
        }
        Ok((size, frame.is_record()))
    }
}

/// Records that are damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DamagedRecords {
    pub(super) lsns: RangeInclusive<Lsn>,
    /// The byte at which the damage begins.
    pub(super) position: usize,
    pub(super) why: String,
}

/// What is left of a damaged place.
#[derive(Debug, Default)]
pub(super) struct Examined {
    /// The intact records, in the order of the log.
    pub(super) records: Vec<(Lsn, Record)>,
    pub(super) damaged: Vec<DamagedRecords>,
    /// Where intact frames begin behind damage.
    pub(super) resumed: Vec<(LogPosition, usize)>,
}

/// What is left of `bytes`, which begin with a frame at `first` and end before one at `behind`, whatever stands between
/// them: the intact records, and those that are damaged.
///
/// Frames behind damage are found by their checksums. Their LSNs follow from `behind`; a stretch between two damaged
/// places has LSNs only if every frame that is missing was a record, else it counts as damaged.
pub(super) fn examine(bytes: &[u8], seed: CrcSeed, first: LogPosition, behind: LogPosition) -> Examined {
    let head = Block { bytes, position: 0, first, seed }.read(None, OnDamage::Stop);
    let reached_end = head.end == bytes.len() && head.next == behind;
    let mut examined = Examined { records: head.records, ..Examined::default() };
    if reached_end {
        return examined;
    }
    let why = match head.stop {
        Some(Stop::Damaged(why)) => why,
        Some(Stop::CutOff) => "a frame is longer than the place it has".to_owned(),
        None => format!("frame {} follows, where frame {} should be", behind.frame, head.next.frame),
    };
    let stretches = stretches(bytes, seed, head.end + 1, head.next, behind);
    let found: u64 = stretches.iter().map(|stretch| stretch.records.len() as u64).sum();
    let found_frames: u64 = stretches.iter().map(Stretch::frames).sum();
    let missing_frames = (behind.frame.0 - head.next.frame.0).saturating_sub(found_frames);
    let missing_records = (behind.lsn.0 - head.next.lsn.0).saturating_sub(found);
    let is_counted = missing_frames == missing_records;
    let (mut next, mut at) = (head.next, head.end);
    for stretch in stretches {
        let is_last = stretch.end == bytes.len() && stretch.next_frame() == behind.frame.0;
        let lsn = match (is_counted, is_last) {
            (_, true) => Lsn(behind.lsn.0 - stretch.records.len() as u64),
            (true, false) => Lsn(next.lsn.0 + (stretch.first_frame - next.frame.0)),
            (false, false) => continue,
        };
        if next.lsn < lsn {
            let lsns = next.lsn..=Lsn(lsn.0 - 1);
            examined.damaged.push(DamagedRecords { lsns, position: at, why: why.clone() });
        }
        examined.resumed.push((LogPosition { frame: FrameNumber(stretch.first_frame), lsn }, stretch.begin));
        next = LogPosition { frame: FrameNumber(stretch.next_frame()), lsn };
        for record in stretch.records {
            examined.records.push((next.lsn, record));
            next.lsn = next.lsn.next();
        }
        at = stretch.end;
    }
    if next.lsn < behind.lsn {
        examined.damaged.push(DamagedRecords { lsns: next.lsn..=Lsn(behind.lsn.0 - 1), position: at, why });
    }
    examined
}

/// Consecutive frames behind damage.
struct Stretch {
    first_frame: u64,
    /// The frames that are not records.
    others: u64,
    records: Vec<Record>,
    /// The byte at which they begin.
    begin: usize,
    /// The byte behind them.
    end: usize,
}

impl Stretch {
    fn frames(&self) -> u64 {
        self.others + self.records.len() as u64
    }

    fn next_frame(&self) -> u64 {
        self.first_frame + self.frames()
    }
}

/// The stretches of intact frames from byte `from` on, with numbers from `next` on and below `behind`.
fn stretches(bytes: &[u8], seed: CrcSeed, from: usize, next: LogPosition, behind: LogPosition) -> Vec<Stretch> {
    let mut stretches: Vec<Stretch> = Vec::new();
    let (mut at, mut least) = (from, next.frame.0);
    while at < bytes.len() {
        let frame = decode(&bytes[at..], seed).ok();
        let frame = frame.filter(|frame| least <= frame.head.number.0 && frame.head.number < behind.frame);
        let record = frame.map(|frame| match frame.is_record() {
            true => codec::decode(frame.head.kind, frame.head.version, frame.payload).map(Some),
            false => Ok(None),
        });
        let (Some(frame), Some(Ok(record))) = (frame, record) else {
            at += 1;
            continue;
        };
        let number = frame.head.number.0;
        match stretches.last_mut() {
            Some(last) if last.end == at && last.next_frame() == number => {}
            _ => stretches.push(Stretch { first_frame: number, others: 0, records: Vec::new(), begin: at, end: at }),
        }
        let last = stretches.last_mut().expect("one was just pushed");
        match record {
            Some(record) => last.records.push(record),
            None => last.others += 1,
        }
        at += frame.size();
        last.end = at;
        least = number + 1;
    }
    stretches
}
