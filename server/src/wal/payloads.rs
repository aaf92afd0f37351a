//! Where the payloads stand to which a rebuilt state refers.
//!
//! A segment that is whole stays in place if a payload in it is needed. Of a damaged segment, the records with needed
//! payloads are written again to a segment of the new log. A message whose payload stands in neither is lost; an effect
//! is kept without its result.

use std::collections::BTreeMap;
use std::fmt;

use driftq_core::codec::record as codec;
use driftq_core::log::{FileId, Frame, LogPosition, ReferredSegment, Storage, read_whole};
use driftq_core::record::{Image, Record};
use driftq_core::state::State;
use driftq_core::types::{FrameNumber, Identity, Lsn, Offset, PartitionId, PayloadId, PayloadRef, TopicName};

use super::error::WalError;
use super::rebuild::restored;
use super::repair::repair;
use super::scan::{LogFiles, ScanItem, Segment};

/// A message that is known, but whose payload is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostMessage {
    /// Its topic.
    pub topic: TopicName,
    /// Its partition.
    pub partition: PartitionId,
    /// Its offset.
    pub offset: Offset,
}

impl fmt::Display for LostMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "message {}/{} in partition {}", self.topic, self.offset, self.partition)
    }
}

/// The result of an effect that is known, but whose payload is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostResult {
    /// The effect.
    pub identity: Identity,
}

impl fmt::Display for LostResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { identity } = self;
        let (kind, tenant, key) = (identity.scope.kind().as_str(), identity.tenant(), identity.key());
        write!(f, "the result of {kind} effect {key:?} of tenant {tenant:?}")
    }
}

/// What a state refers to without a payload that could be found.
#[derive(Debug, Default)]
pub(super) struct LostPayloads {
    pub(super) messages: Vec<LostMessage>,
    pub(super) results: Vec<LostResult>,
}

/// The frames of the records that were applied to a state that is being rebuilt.
///
/// The state refers to a record by the LSN that it was applied with, which may be above the one that it has in its
/// segment: behind a loss, that one is not known.
#[derive(Debug)]
pub(super) struct RecordFrames {
    /// The snapshot that the state is of. Up to there, LSNs are those in the segments.
    base: LogPosition,
    /// The first frame and the first LSN of records that follow each other without marks between them, and how many.
    runs: Vec<(LogPosition, u64)>,
}

impl RecordFrames {
    /// Behind a snapshot.
    pub(super) fn behind(base: LogPosition) -> Self {
        Self { base, runs: Vec::new() }
    }

    /// The record in this frame was applied with this LSN.
    pub(super) fn add(&mut self, at: LogPosition) {
        match self.runs.last_mut() {
            Some((first, len)) if (first.frame.0 + *len, first.lsn.0 + *len) == (at.frame.0, at.lsn.0) => *len += 1,
            _ => self.runs.push((at, 1)),
        }
    }

    /// The LSN by which the state refers to the record in a frame; `lsn` is the one in its segment, if known.
    fn applied_lsn(&self, frame: FrameNumber, lsn: Option<Lsn>) -> Option<Lsn> {
        if frame <= self.base.frame {
            return lsn;
        }
        let behind = self.runs.partition_point(|(first, _)| first.frame <= frame);
        let (first, len) = self.runs.get(behind.checked_sub(1)?)?;
        let at = frame.0 - first.frame.0;
        (at < *len).then(|| Lsn(first.lsn.0 + at))
    }
}

/// A payload that a message or an effect refers to.
#[derive(Debug)]
struct Needed {
    payload: PayloadRef,
    /// Where it stands in the new log.
    found: Option<PayloadId>,
}

/// Where the payloads of a state stand in the new log.
#[derive(Debug)]
pub(super) struct Placement {
    needed: BTreeMap<PayloadId, Needed>,
    /// Whole segments that stay in place.
    kept: Vec<ReferredSegment>,
    /// The frames of damaged segments whose records are written again, each with the place of the segment among the
    /// files; the first gets the LSN behind `behind`, and so on.
    carried: Vec<(usize, FrameNumber)>,
    /// The bytes of the needed payloads in them.
    carried_bytes: u64,
    behind: Lsn,
}

impl Placement {
    /// Looks for the payloads of `state` in all segments. Records that are written again follow `behind`.
    pub(super) fn find(
        state: &State,
        frames: &RecordFrames,
        storage: &mut impl Storage,
        files: &LogFiles,
        behind: Lsn,
    ) -> Result<Self, WalError> {
        let payloads = state.view().filter_map(|image| match image {
            Image::Message { payload, .. } => Some(payload),
            Image::Effect { effect, .. } => effect.result.and_then(|result| result.payload_ref()),
            _ => None,
        });
        let needed = payloads.map(|payload| (payload.id, Needed { payload, found: None })).collect();
        let mut placement = Self { needed, kept: Vec::new(), carried: Vec::new(), carried_bytes: 0, behind };
        let (known, mut bytes) = (known_positions(files), Vec::new());
        for (index, segment) in files.segments.iter().enumerate() {
            read_whole(storage, segment.file, &mut bytes).map_err(WalError::storage(segment.file))?;
            let read = ReadSegment::new(segment, &bytes, &known);
            let stays = read.is_whole && segment.sequence <= files.last_sequence();
            let before = placement.carried.len();
            let mut live_bytes = 0;
            for (frame, lsn) in &read.frames {
                let Some(applied) = frames.applied_lsn(frame.head.number, *lsn) else { continue };
                live_bytes += placement.place(frame, applied, lsn.filter(|_| stays), index);
            }
            match placement.carried.len() > before {
                true => placement.carried_bytes += live_bytes,
                false if live_bytes > 0 => placement.kept.push(ReferredSegment {
                    sequence: segment.sequence,
                    last: read.last,
                    end: read.end,
                    live_bytes,
                }),
                false => {}
            }
        }
        Ok(placement)
    }

    /// Places the payloads of a record to which the state refers by `applied`: where they are, if its segment stays
    /// and it is record `stays_at` there, else in a record that is written again. Returns their bytes.
    fn place(&mut self, frame: &Frame<'_>, applied: Lsn, stays_at: Option<Lsn>, segment: usize) -> u64 {
        let parts = PayloadId { lsn: applied, part: 0 }..=PayloadId { lsn: applied, part: u32::MAX };
        if self.needed.range(parts).next().is_none() {
            return 0;
        }
        let Some(record) = decoded(frame) else { return 0 };
        let lsn = stays_at.unwrap_or(Lsn(self.behind.0 + self.carried.len() as u64 + 1));
        let mut bytes = 0;
        for (part, body) in record.event.bodies() {
            let Some(needed) = self.needed.get_mut(&PayloadId { lsn: applied, part }) else { continue };
            if needed.found.is_none() && needed.payload.fits(&body) {
                needed.found = Some(PayloadId { lsn, part });
                // As the broker counts: an empty one needs its segment as well.
                bytes += needed.payload.encoded_len().max(1);
            }
        }
        if bytes > 0 && stays_at.is_none() {
            self.carried.push((segment, frame.head.number));
        }
        bytes
    }

    /// The same state with references to the new log, whose last record before the snapshot has the LSN `last_lsn`, and
    /// what was not found: the positions of such messages are trimmed, and effects are kept without their results.
    pub(super) fn apply_to(&self, state: &State, last: Lsn) -> Result<(State, LostPayloads), String> {
        let mut lost = LostPayloads::default();
        let images = state.view().filter_map(|mut image| {
            match &mut image {
                Image::Origin { last_lsn, .. } => *last_lsn = last,
                Image::Message { topic, partition, offset, payload, .. } => {
                    let Some(found) = self.needed.get(&payload.id).and_then(|needed| needed.found) else {
                        let topic = state.topic(*topic)?.name().clone();
                        lost.messages.push(LostMessage { topic, partition: *partition, offset: *offset });
                        return None;
                    };
                    payload.id = found;
                }
                Image::Effect { identity, effect } => {
                    if let Some(result) = effect.result.as_deref_mut()
                        && let Some(before) = result.payload
                    {
                        result.payload = self.needed.get(&before).and_then(|needed| needed.found);
                        if result.payload.is_none() {
                            lost.results.push(LostResult { identity: identity.clone() });
                        }
                    }
                }
                _ => {}
            }
            Some(image)
        });
        let images: Vec<Image> = images.collect();
        let changed = match lost.messages.is_empty() {
            true => restored(images.into_iter()).map_err(|contradiction| contradiction.to_string())?,
            false => repair(images, state.boot()).state,
        };
        changed.check().map_err(|inconsistency| inconsistency.to_string())?;
        Ok((changed, lost))
    }

    /// The last record that is written again, or the one before them.
    pub(super) fn last_lsn(&self) -> Lsn {
        Lsn(self.behind.0 + self.carried.len() as u64)
    }

    /// The segments that stay in place.
    pub(super) fn kept(&self) -> &[ReferredSegment] {
        &self.kept
    }

    /// Whether a file stays in place.
    pub(super) fn keeps(&self, file: FileId) -> bool {
        self.kept.iter().any(|segment| segment.file() == file)
    }

    /// Whether records are written again, and the bytes of their needed payloads.
    pub(super) fn carried_bytes(&self) -> Option<u64> {
        (!self.carried.is_empty()).then_some(self.carried_bytes)
    }

    /// Passes the records that are written again to `each`, in order.
    pub(super) fn each_carried(
        &self,
        storage: &mut impl Storage,
        files: &LogFiles,
        mut each: impl FnMut(&Frame<'_>) -> Result<(), WalError>,
    ) -> Result<(), WalError> {
        let mut bytes = Vec::new();
        for of_segment in self.carried.chunk_by(|(first, _), (second, _)| first == second) {
            let segment = &files.segments[of_segment[0].0];
            read_whole(storage, segment.file, &mut bytes).map_err(WalError::storage(segment.file))?;
            let mut next = of_segment.iter().map(|(_, number)| *number).peekable();
            for item in segment.scan(&bytes) {
                if let ScanItem::Frame { frame, .. } = item
                    && next.next_if_eq(&frame.head.number).is_some()
                {
                    each(&frame)?;
                }
            }
        }
        Ok(())
    }
}

/// The LSNs of the last records up to some frames, as intact headers and snapshots have them.
fn known_positions(files: &LogFiles) -> BTreeMap<FrameNumber, Lsn> {
    let headers = files.segments.iter().filter_map(|segment| Some(segment.header.ok()?.previous));
    let snapshots = files.snapshots.iter().filter_map(|(_, head)| Some(head.ok()?.at));
    let listed = files.referred.values().flatten().map(|segment| segment.last);
    headers.chain(snapshots).chain(listed).map(|at| (at.frame, at.lsn)).collect()
}

fn decoded(frame: &Frame<'_>) -> Option<Record> {
    codec::decode(frame.head.kind, frame.head.version, frame.payload).ok()
}

/// The intact records of a segment.
struct ReadSegment<'a> {
    /// Each with its LSN, if known.
    frames: Vec<(Frame<'a>, Option<Lsn>)>,
    /// Whether the segment can be read from its header to its end, and every record in it decoded.
    is_whole: bool,
    /// The position behind its last frame, if it is whole.
    last: LogPosition,
    /// The byte at which that frame ends.
    end: u64,
}

impl<'a> ReadSegment<'a> {
    fn new(segment: &Segment, bytes: &'a [u8], known: &BTreeMap<FrameNumber, Lsn>) -> Self {
        let header = segment.header.ok().filter(|header| header.file() == segment.file);
        let (mut frames, mut is_whole) = (Vec::new(), header.is_some());
        let mut scanner = segment.scan(bytes);
        for item in &mut scanner {
            match item {
                ScanItem::Frame { frame, lsn, .. } => frames.push((frame, lsn)),
                ScanItem::Damage(_) => is_whole = false,
            }
        }
        let end = scanner.position() as u64;
        let previous = header.map_or(LogPosition::default(), |header| header.previous);
        let last = frames.iter().fold(previous, |last, (frame, _)| last.after(frame.head.kind));
        let follows =
            |(before, _): &(Frame<'_>, _), (after, _): &(Frame<'_>, _)| before.head.number.next() == after.head.number;
        for run in frames.chunk_by_mut(follows) {
            number_run(run, known);
        }
        frames.retain(|(frame, _)| frame.is_record());
        // A broker decodes the records around a payload as well.
        is_whole &= frames.iter().all(|(frame, _)| decoded(frame).is_some());
        Self { frames, is_whole, last, end }
    }
}

/// Numbers the records in frames without a gap, if the LSN of one of them is known from elsewhere.
fn number_run(run: &mut [(Frame<'_>, Option<Lsn>)], known: &BTreeMap<FrameNumber, Lsn>) {
    let (Some((first, None)), Some((last, _))) = (run.first(), run.last()) else { return };
    let numbers = FrameNumber(first.head.number.0 - 1)..=last.head.number;
    let Some((at, lsn)) = known.range(numbers).next() else { return };
    let before = run.iter().filter(|(frame, _)| frame.is_record() && frame.head.number <= *at).count() as u64;
    let Some(mut lsn) = lsn.0.checked_sub(before) else { return };
    for (frame, of_frame) in run {
        lsn += u64::from(frame.is_record());
        *of_frame = Some(Lsn(lsn));
    }
}
