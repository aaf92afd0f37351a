//! Where the payloads stand to which a rebuilt state refers.
//!
//! A segment that is whole stays in place if a payload in it is needed. Of a damaged segment, the records with needed
//! payloads are written again to a segment of the new log. A payload that stands in neither is recorded as lost, as the
//! broker would: its message becomes a dead letter, and an effect is kept without its result.
//!
//! Beside the state this takes 32 bytes for each payload, and the bytes of one segment at a time.

use std::collections::BTreeMap;
use std::fmt;

use driftq_core::codec::record as codec;
use driftq_core::log::{FileId, Frame, LogPosition, ReferredSegment, Storage, read_whole};
use driftq_core::record::{Event, Image, MessageAt, PayloadLost, Record, Referrer};
use driftq_core::state::State;
use driftq_core::types::{FrameNumber, Identity, Lsn, Offset, PartitionId, PayloadId, PayloadRef, Text, TopicName};

use super::error::WalError;
use super::rebuild::restored;
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
    /// The last LSN before the first loss: up to there, too, LSNs are those in the segments.
    exact_through: Option<Lsn>,
}

impl RecordFrames {
    /// Behind a snapshot.
    pub(super) fn behind(base: LogPosition) -> Self {
        Self { base, runs: Vec::new(), exact_through: None }
    }

    /// Frames behind the record `last` are lost.
    pub(super) fn miss_behind(&mut self, last: Lsn) {
        self.exact_through.get_or_insert(last);
    }

    /// Whether the state refers to a record by the LSN that it has in its segment.
    fn is_exact(&self, lsn: Lsn) -> bool {
        self.exact_through.is_none_or(|last| lsn <= last)
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

/// What the record of a relocation takes beside its payload; as the broker counts live bytes.
const RECORD_BYTES: u64 = 64;
/// What is known of the damage to a payload that is in no intact record.
const DAMAGE: &str = "no intact record held it when the log was salvaged";

/// A payload that a message or an effect refers to.
#[derive(Debug)]
struct Needed {
    payload: PayloadRef,
    is_found: bool,
}

/// Where the payloads of a state stand in the new log.
#[derive(Debug)]
pub(super) struct Placement {
    /// In the order of their ids.
    needed: Vec<Needed>,
    /// Those that stand in another record than the state says.
    moved: BTreeMap<PayloadId, PayloadId>,
    /// Whole segments that stay in place.
    kept: Vec<ReferredSegment>,
    /// The frames of damaged segments whose records are written again, each with the place of the segment among the
    /// files; the first gets the LSN behind `behind`, and so on.
    carried: Vec<(usize, FrameNumber)>,
    /// The live bytes in them.
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
        let payloads = state.view().filter_map(|image| Some(needed_by(&image)?.1));
        let mut needed: Vec<_> = payloads.map(|payload| Needed { payload, is_found: false }).collect();
        needed.sort_unstable_by_key(|needed| needed.payload.id);
        needed.dedup_by_key(|needed| needed.payload.id);
        let moved = BTreeMap::new();
        let mut placement = Self { needed, moved, kept: Vec::new(), carried: Vec::new(), carried_bytes: 0, behind };
        let (known, mut bytes) = (known_positions(files), Vec::new());
        for (index, segment) in files.segments.iter().enumerate() {
            read_whole(storage, segment.file, &mut bytes).map_err(WalError::storage(segment.file))?;
            let read = ReadSegment::new(segment, &bytes, &known);
            let stays = read.is_whole && segment.sequence <= files.last_sequence();
            let before = placement.carried.len();
            let mut live_bytes = 0;
            for (frame, lsn) in &read.frames {
                let Some(applied) = frames.applied_lsn(frame.head.number, *lsn) else { continue };
                live_bytes += placement.place(frame, applied, frames, lsn.filter(|_| stays), index);
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
    fn place(
        &mut self,
        frame: &Frame<'_>,
        applied: Lsn,
        frames: &RecordFrames,
        stays_at: Option<Lsn>,
        segment: usize,
    ) -> u64 {
        let Some(record) = decoded(frame) else { return 0 };
        // A relocation that could not be applied still has the bytes.
        let from = match &record.event {
            Event::Relocated(relocated) => Some(relocated.from).filter(|from| frames.is_exact(from.lsn)),
            _ => None,
        };
        let lsn = stays_at.unwrap_or(Lsn(self.behind.0 + self.carried.len() as u64 + 1));
        let mut bytes = 0;
        for (part, body) in record.event.bodies() {
            let place = PayloadId { lsn, part };
            for id in [PayloadId { lsn: applied, part }].into_iter().chain(from) {
                let Some(at) = self.index_of(id) else { continue };
                let needed = &mut self.needed[at];
                if !needed.is_found && needed.payload.fits(&body) {
                    needed.is_found = true;
                    bytes += needed.payload.encoded_len() + RECORD_BYTES;
                    if id != place {
                        self.moved.insert(id, place);
                    }
                }
            }
        }
        if bytes > 0 && stays_at.is_none() {
            self.carried.push((segment, frame.head.number));
        }
        bytes
    }

    fn index_of(&self, id: PayloadId) -> Option<usize> {
        self.needed.binary_search_by_key(&id, |needed| needed.payload.id).ok()
    }

    /// Where a payload stands in the new log, if it was found.
    fn found(&self, id: PayloadId) -> Option<PayloadId> {
        let is_found = self.index_of(id).is_some_and(|at| self.needed[at].is_found);
        is_found.then(|| self.moved.get(&id).copied().unwrap_or(id))
    }

    /// The same state with references to the new log, whose last record before the snapshot has the LSN `last`, and
    /// the payloads that were not found, which are lost in it.
    pub(super) fn apply_to(&self, state: &State, last: Lsn) -> Result<(State, LostPayloads), String> {
        let mut lost = LostPayloads::default();
        let mut referrers: BTreeMap<PayloadId, Vec<Referrer>> = BTreeMap::new();
        for image in state.view() {
            let Some((referrer, payload)) = needed_by(&image) else { continue };
            if self.found(payload.id).is_some() {
                continue;
            }
            match image {
                Image::Message { topic, partition, offset, .. } => {
                    let topic = state.topic(topic).ok_or("a message without a topic")?.name().clone();
                    lost.messages.push(LostMessage { topic, partition, offset });
                }
                Image::Effect { identity, .. } => lost.results.push(LostResult { identity }),
                _ => {}
            }
            referrers.entry(payload.id).or_default().push(referrer);
        }
        let mut without = state.clone();
        for (payload, referrers) in referrers {
            let event = Event::PayloadLost(Box::new(PayloadLost { payload, referrers, damage: Text::from(DAMAGE) }));
            let record = Record { at: without.clock(), event };
            without.apply(&record).map_err(|contradiction| contradiction.to_string())?;
        }
        let images = without.view().map(|mut image| {
            match &mut image {
                Image::Origin { last_lsn, .. } => *last_lsn = last,
                Image::Message { payload, .. } => payload.id = self.found(payload.id).unwrap_or(payload.id),
                Image::Effect { effect, .. } => {
                    if let Some(result) = effect.result.as_deref_mut() {
                        result.payload = result.payload.and_then(|before| self.found(before));
                    }
                }
                _ => {}
            }
            image
        });
        let changed = restored(images).map_err(|contradiction| contradiction.to_string())?;
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

/// What an image refers to, unless that is lost already.
fn needed_by(image: &Image) -> Option<(Referrer, PayloadRef)> {
    match image {
        Image::Message { topic, partition, position, payload, .. } if !payload.id.is_lost() => {
            let at = MessageAt { topic: *topic, partition: *partition, position: *position };
            Some((Referrer::Message(at), *payload))
        }
        Image::Effect { identity, effect } => {
            let payload = effect.result.as_ref().and_then(|result| result.payload_ref())?;
            Some((Referrer::Effect(identity.clone()), payload))
        }
        _ => None,
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
