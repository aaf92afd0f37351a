//! Chunks of messages as a snapshot stores them.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::chunk::Chunk;
use super::packed::{CHUNK, Live, Packed};
use super::{MessageMap, Slot};
use crate::record::Image;
use crate::state::message::Message;
use crate::state::partition::Load;
use crate::types::{
    DecisionFields, GroupId, Lsn, Offset, PartitionId, PayloadId, PayloadRef, Position, Timestamp, TopicId,
};
use crate::wire::Malformed;

/// A chunk of fewer messages is written message by message: that takes fewer bytes.
const MESSAGES_MIN: usize = 8;

/// So is a chunk of more bytes than this, which long error texts of dead letters can make it: it must fit in a frame.
/// And one with a lost payload, which no record carries.
const BYTES_MAX: u64 = 1 << 20;

/// Up to 128 messages of a partition as a snapshot stores them: packed, as they are in memory.
///
/// It is never empty, and its positions, offsets and times are in order.
#[derive(Clone)]
pub struct MessageChunk {
    packed: Packed,
    acks: Vec<AckRun>,
    visible_to: Vec<(u8, GroupId)>,
}

/// Consecutive messages of a chunk that are acked in equally many groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckRun {
    /// The number of messages.
    pub messages: u32,
    /// The number of groups that have acked each.
    pub acked_in: u32,
    /// Whether they are acked in every group and retained.
    pub retained: bool,
}

/// What the encoding of a chunk consists of.
pub(crate) struct ChunkParts<'a> {
    /// A bit for each row whose message is not removed; `None` if none is.
    pub(crate) live: Option<u128>,
    /// The packed columns.
    pub(crate) columns: &'a [u8],
    /// The numbers of groups that have acked the messages, in order. Neighbours differ.
    pub(crate) acks: Vec<AckRun>,
    /// Rows of messages that are visible to one group only.
    pub(crate) visible_to: Vec<(u8, GroupId)>,
    /// Rows of messages that have decision fields.
    pub(crate) fields: Vec<(u8, Arc<DecisionFields>)>,
}

impl MessageChunk {
    /// A chunk of the messages of these images, which must be messages in order, at most 128.
    #[must_use]
    pub fn of_images(images: &[Image]) -> Option<Self> {
        let (mut entries, mut acks, mut visible_to) = (Vec::new(), Acks::default(), Vec::new());
        for (row, image) in (0_u8..).zip(images.iter().take(CHUNK + 1)) {
            let Image::Message { position, offset, produced_at, acked_in, retained, .. } = image else { return None };
            let Image::Message { visible_to: group, payload, fields, .. } = image else { return None };
            entries.push((*position, Message::new(*offset, *produced_at, *payload, fields.clone())));
            acks.add(*acked_in, *retained);
            visible_to.extend(group.map(|group| (row, group)));
        }
        let is_small = (1..=CHUNK).contains(&entries.len());
        let packed = is_small.then(|| Packed::new(&entries)).filter(Packed::is_in_order)?;
        (packed.lsns().0 > Lsn(0) && packed.last_position() < Position(u64::MAX)).then_some(Self {
            packed,
            acks: acks.0,
            visible_to,
        })
    }

    /// A chunk of these parts.
    ///
    /// # Errors
    /// If they are not the parts of any chunk.
    pub(crate) fn decode(parts: ChunkParts<'_>) -> Result<Self, Malformed> {
        let ChunkParts { live, columns, acks, visible_to, fields } = parts;
        let rows = usize::from(columns.first().copied().unwrap_or(0));
        let all = Live::all(rows.min(CHUNK));
        let live = live.map_or(Ok(all), |bits| match Live::of(bits) {
            live if live == all => Err(Malformed("no message of a chunk is removed")),
            live => Ok(live),
        })?;
        let packed = Packed::decode(columns, live, fields)?;
        let counted: u64 = acks.iter().map(|run| u64::from(run.messages)).sum();
        let is_run = |pair: &[AckRun]| (pair[0].acked_in, pair[0].retained) != (pair[1].acked_in, pair[1].retained);
        if counted != live.len() as u64 || acks.iter().any(|run| run.messages == 0) || !acks.windows(2).all(is_run) {
            return Err(Malformed("the ack counts of a chunk are not those of its messages"));
        }
        let in_order = visible_to.windows(2).all(|pair| pair[0].0 < pair[1].0);
        if !in_order || !visible_to.iter().all(|(row, _)| usize::from(*row) < CHUNK && live.contains((*row).into())) {
            return Err(Malformed("a group that sees a row that is not there"));
        }
        Ok(Self { packed, acks, visible_to })
    }

    pub(crate) fn parts(&self) -> ChunkParts<'_> {
        let (live, all) = (self.packed.live(), Live::all(self.packed.rows()));
        ChunkParts {
            live: (live != all).then(|| live.bits()),
            columns: self.packed.columns(),
            acks: self.acks.clone(),
            visible_to: self.visible_to.clone(),
            fields: self.packed.live_fields().map(|(row, fields)| (row, fields.clone())).collect(),
        }
    }

    /// The number of messages.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a chunk is never empty")]
    pub fn len(&self) -> usize {
        self.packed.live().len()
    }

    /// The number of messages with decision fields, and perhaps some that are removed.
    pub(crate) fn fields_len(&self) -> usize {
        self.packed.special_len()
    }

    /// The least and the greatest LSN to which its messages refer, and perhaps some that are removed.
    #[must_use]
    pub fn lsns(&self) -> (Lsn, Lsn) {
        self.packed.lsns()
    }

    /// The encoded bytes of all its payloads.
    pub(crate) fn payload_bytes(&self) -> u64 {
        let overhead = self.len() as u64 * crate::types::RETAINED_MESSAGE_OVERHEAD;
        self.packed.live_sums().retained_bytes - overhead
    }

    /// Where the bytes of its messages stand.
    pub(crate) fn payloads(&self) -> impl Iterator<Item = PayloadRef> {
        self.entries().map(|(_, _, message)| message.payload)
    }

    /// The images of its messages.
    pub fn images(&self, topic: TopicId, partition: PartitionId) -> impl Iterator<Item = Image> {
        let acks = self.acks.iter().flat_map(|run| (0..run.messages).map(move |_| *run));
        self.entries().zip(acks).map(move |((row, position, message), run)| Image::Message {
            topic,
            partition,
            position,
            offset: message.offset,
            produced_at: message.produced_at,
            acked_in: run.acked_in,
            retained: run.retained,
            visible_to: self.visible_to.iter().find(|(at, _)| usize::from(*at) == row).map(|(_, group)| *group),
            payload: message.payload,
            fields: message.fields().cloned(),
        })
    }

    /// Its messages with their rows.
    fn entries(&self) -> impl Iterator<Item = (usize, Position, Message)> {
        let live = self.packed.live();
        let rows = (0..self.packed.rows()).filter(move |row| live.contains(*row));
        rows.map(|row| {
            let (position, message) = self.packed.entry(row);
            (row, position, message)
        })
    }

    /// The first position, which can be that of a removed message.
    pub(crate) fn first(&self) -> Position {
        self.packed.position(0)
    }

    /// The ranges of positions at which it has messages.
    pub(crate) fn stretches(&self) -> impl Iterator<Item = (Position, Position)> {
        let rows = stretches_of(&self.packed);
        rows.map(|rows| (self.packed.position(rows.start), self.packed.position(rows.end - 1).next()))
    }

    /// The numbers of groups that have acked the messages, each with the range of positions and their load and memory.
    pub(crate) fn acked_stretches(&self) -> impl Iterator<Item = (Position, Position, AckRun)> {
        let mut runs = self.acks.iter().copied();
        let mut left: Option<AckRun> = None;
        let mut rows: Range<usize> = 0..0;
        let mut stretches = stretches_of(&self.packed);
        std::iter::from_fn(move || {
            if rows.is_empty() {
                rows = stretches.next()?;
            }
            let run = match left.take() {
                Some(run) => run,
                None => runs.next()?,
            };
            let taken = rows.len().min(run.messages as usize);
            let part = rows.start..rows.start + taken;
            rows.start += taken;
            let rest = run.messages - taken as u32;
            left = (rest > 0).then_some(AckRun { messages: rest, ..run });
            let (start, end) = (self.packed.position(part.start), self.packed.position(part.end - 1).next());
            Some((start, end, AckRun { messages: taken as u32, ..run }))
        })
    }

    /// The load of all its messages and their [`Message::retained_bytes`].
    pub(crate) fn sums(&self) -> (Load, u64) {
        let sums = self.packed.live_sums();
        (Load { messages: self.len() as u64, bytes: sums.bytes }, sums.retained_bytes)
    }

    /// Whether all its messages are acked in equally many groups, and in how many.
    pub(crate) fn acks(&self) -> &[AckRun] {
        &self.acks
    }

    /// The positions of messages that are visible to one group only.
    pub(crate) fn visible_to(&self) -> impl Iterator<Item = (Position, GroupId)> {
        self.visible_to.iter().map(|(row, group)| (self.packed.position(usize::from(*row)), *group))
    }

    /// The messages with decision fields.
    pub(crate) fn special(&self) -> impl Iterator<Item = (Position, Message)> {
        self.packed.live_fields().map(|(row, _)| self.packed.entry(usize::from(row)))
    }
}

impl PartialEq for MessageChunk {
    fn eq(&self, other: &Self) -> bool {
        self.packed.live() == other.packed.live()
            && self.packed.bytes == other.packed.bytes
            && self.packed.live_fields().eq(other.packed.live_fields())
            && (&self.acks, &self.visible_to) == (&other.acks, &other.visible_to)
    }
}

impl Eq for MessageChunk {}

impl fmt::Debug for MessageChunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let messages: Vec<_> = self.entries().map(|(_, position, message)| (position, message)).collect();
        f.debug_struct("MessageChunk")
            .field("messages", &messages)
            .field("acks", &self.acks)
            .field("visible_to", &self.visible_to)
            .finish()
    }
}

/// Counts how many messages in a row have the same acks.
#[derive(Default)]
struct Acks(Vec<AckRun>);

impl Acks {
    fn add(&mut self, acked_in: u32, retained: bool) {
        match self.0.last_mut() {
            Some(run) if (run.acked_in, run.retained) == (acked_in, retained) => run.messages += 1,
            _ => self.0.push(AckRun { messages: 1, acked_in, retained }),
        }
    }
}

/// The rows with messages, in ranges of consecutive positions.
fn stretches_of(packed: &Packed) -> impl Iterator<Item = Range<usize>> + use<> {
    let (live, rows, is_dense) = (packed.live(), packed.rows(), packed.is_dense());
    let mut next = 0;
    std::iter::from_fn(move || {
        let start = live.next(next)?;
        next = if is_dense { live.first_removed(start).min(rows) } else { start + 1 };
        Some(start..next)
    })
}

/// A part of a map that a snapshot stores as one image.
pub(crate) enum Piece {
    /// Many messages.
    Chunk(SealedChunk),
    /// One message.
    Message(Position, Message),
}

/// A packed chunk, of which the acks are not known yet.
pub(crate) struct SealedChunk(Packed);

impl SealedChunk {
    /// The image, given how many groups have acked each message, whether all have, and to which group it is visible.
    pub(crate) fn image(
        self,
        acked_in: impl Fn(Position) -> (u32, bool),
        visible_to: impl Fn(Position, Position) -> Vec<(Position, GroupId)>,
    ) -> MessageChunk {
        let Self(packed) = self;
        let mut acks = Acks::default();
        let rows = (0..packed.rows()).filter(|row| packed.live().contains(*row));
        rows.for_each(|row| {
            let (acked_in, retained) = acked_in(packed.position(row));
            acks.add(acked_in, retained);
        });
        let visible_to = visible_to(packed.position(0), packed.position(packed.rows() - 1).next());
        let rows = visible_to.into_iter().filter_map(|(position, group)| Some((packed.find(position)? as u8, group)));
        MessageChunk { visible_to: rows.collect(), packed, acks: acks.0 }
    }
}

/// Consecutive positions with messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch {
    pub(crate) start: Position,
    pub(crate) end: Position,
    /// Offset and time of the first message.
    pub(crate) first: (Offset, Timestamp),
    /// Offset and time of the last message.
    pub(crate) last: (Offset, Timestamp),
    /// Whether offsets and times are in order between the two.
    pub(crate) is_in_order: bool,
}

impl MessageMap {
    /// Adds a chunk past the last message; `None` if it is not past it.
    pub(crate) fn append_chunk(&mut self, chunk: &MessageChunk) -> Option<()> {
        let last = self.last().map(|(position, _)| position);
        if last.is_some_and(|last| last >= chunk.first()) {
            return None;
        }
        self.append_packed(chunk.first(), chunk.packed.clone(), chunk.len());
        Some(())
    }

    /// The pieces of a clone; each chunk is dropped when it is read.
    pub(crate) fn into_pieces(self) -> impl Iterator<Item = Piece> + Clone + Send {
        let mut slots = self.slots.into_iter();
        let mut current: Option<(Chunk, usize)> = None;
        std::iter::from_fn(move || {
            loop {
                if let Some((chunk, next)) = &mut current {
                    if let Some(index) = chunk.next(*next) {
                        *next = index + 1;
                        let (position, message) = chunk.entry(index);
                        return Some(Piece::Message(position, message));
                    }
                    current = None;
                }
                let Slot { chunk, .. } = slots.next()?;
                let is_whole = chunk.len() >= MESSAGES_MIN && chunk.heap_bytes() <= BYTES_MAX;
                match chunk.packed() {
                    Chunk::Packed(packed) if is_whole && packed.lsns().0 > PayloadId::LOST.lsn => {
                        return Some(Piece::Chunk(SealedChunk(packed)));
                    }
                    _ => current = Some((chunk, 0)),
                }
            }
        })
    }

    /// All messages, as ranges of consecutive positions.
    pub(crate) fn stretches(&self) -> impl Iterator<Item = Stretch> {
        self.slots.iter().flat_map(|Slot { chunk, .. }| {
            let (rows, is_in_order) = match chunk {
                Chunk::Packed(packed) => (Some(stretches_of(packed)), packed.is_in_order()),
                Chunk::Open(_) => (None, true),
            };
            let mut single = if rows.is_none() { 0..chunk.end() } else { 0..0 };
            let single = std::iter::from_fn(move || single.next().map(|index| index..index + 1));
            rows.into_iter().flatten().chain(single).map(move |rows| {
                let at = |index| (chunk.offset(index), chunk.produced_at(index));
                let (start, end) = (chunk.position(rows.start), chunk.position(rows.end - 1).next());
                Stretch { start, end, first: at(rows.start), last: at(rows.end - 1), is_in_order }
            })
        })
    }

    /// The offsets of all messages, in order, some at once.
    pub(crate) fn offsets(&self) -> impl Iterator<Item = SomeOffsets<'_>> {
        self.slots.iter().map(|slot| SomeOffsets(&slot.chunk))
    }
}

/// The offsets of a chunk.
pub(crate) struct SomeOffsets<'a>(&'a Chunk);

impl SomeOffsets<'_> {
    /// A lower bound of all of them.
    pub(crate) fn least(&self) -> Option<Offset> {
        self.0.next(0).map(|index| self.0.offset(index))
    }

    pub(crate) fn for_each(&self, mut each: impl FnMut(Offset)) {
        match self.0 {
            Chunk::Packed(packed) => packed.for_each_offset(each),
            Chunk::Open(open) => open.entries.iter().for_each(|(_, message)| each(message.offset)),
        }
    }
}
