//! Rebuilds a state from the records that are left.
//!
//! Records are applied in the order of their frames, each as recovery applies it. After a loss, two things differ. A
//! record that contradicts the state is skipped and counted. And where lost records assigned ids (offsets, topics,
//! groups, boots), numbering continues from the first id that appears again, by at most the number of lost records;
//! otherwise one lost message would make every later message of its topic a contradiction.
//!
//! Records refer to a message by its position in its partition, and the record that stores a message does not contain
//! that position. Once messages of a topic are lost, the positions of later ones are unknown, so later records about
//! them (deliveries, acks) are skipped and the messages are delivered again: at-least-once delivery allows that. No
//! message counts as acked unless it certainly was.
//!
//! A relocation, or a payload that was recorded as lost, says where bytes are and nothing else. If it does not fit what
//! is left, nothing is lost by leaving it out: payloads are looked for in all records ([`super::payloads`]).

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use driftq_core::codec::record as codec;
use driftq_core::log::{Frame, LogPosition};
use driftq_core::record::{Event, Image, Record, Referrer};
use driftq_core::state::{Contradiction, State};
use driftq_core::types::{
    Boot, FrameNumber, GroupId, IdentityKey, Lsn, MessageRef, Offset, PartitionId, Position, Timestamp, TopicId,
    TopicName,
};
use driftq_inspect::format::{kind as kind_name, message_ref};

use super::payloads::{LostMessage, LostResult, RecordFrames};
use super::repair::Repaired;

/// A record that is intact and was not applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// The number of its frame.
    pub frame: FrameNumber,
    /// Its LSN, if known: behind a loss it is not known how many records there were.
    pub lsn: Option<Lsn>,
    /// Its kind, as in `docs/wal.md`.
    pub kind: &'static str,
    /// Why it was not applied.
    pub reason: String,
}

/// What a salvage could not keep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    /// The numbers of frames that were not found, in order.
    pub ranges: Vec<RangeInclusive<FrameNumber>>,
    /// Records that do not fit the rebuilt state, in order.
    pub skipped: Vec<Skipped>,
    /// Pieces of the snapshot that were not found or do not fit what is left.
    pub images: u64,
    /// The most records that can have been in what was cut off a segment.
    pub cut_off: u64,
    /// Messages whose payloads stand in no whole record, in the order of their topics. They are kept without them.
    pub messages: Vec<LostMessage>,
    /// Results that are known, but whose payloads stand in no whole record.
    pub results: Vec<LostResult>,
    /// The given names of kept topics whose own were lost with a piece of the snapshot. That piece is counted in
    /// `images`.
    pub renamed: Vec<TopicName>,
}

impl Loss {
    /// The number of lost records, messages and results at most: some of the frames may be marks.
    #[must_use]
    pub fn count(&self) -> u64 {
        let missing: u64 = self.ranges.iter().map(|range| range.end().0 - range.start().0 + 1).sum();
        let whole = (self.skipped.len() + self.messages.len() + self.results.len()) as u64;
        missing.saturating_add(whole).saturating_add(self.images).saturating_add(self.cut_off)
    }

    /// Whether nothing is lost.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }
}

/// A state that is being rebuilt.
#[derive(Debug)]
pub(super) struct Rebuild {
    state: State,
    /// The last frame seen, and the highest LSN that a record up to it can have.
    last: LogPosition,
    loss: Loss,
    /// As [`Loss::count`], kept beside it.
    lost: u64,
    /// From these positions on, the positions of messages are unknown.
    unknown_from: BTreeMap<(TopicId, PartitionId), Position>,
    /// The frames of the applied records.
    frames: RecordFrames,
}

/// The next ids to assign, where they differ from those of the state.
#[derive(Debug, Default)]
struct NextIds {
    boot: Option<Boot>,
    next_topic: Option<TopicId>,
    next_group: Option<(TopicId, GroupId)>,
    next_offset: Option<(TopicId, Offset)>,
}

impl Rebuild {
    /// Starts from the state of a snapshot, or from an empty state.
    pub(super) fn new(state: State, at: LogPosition) -> Self {
        let frames = RecordFrames::behind(at);
        Self { state, last: at, loss: Loss::default(), lost: 0, unknown_from: BTreeMap::new(), frames }
    }

    /// Starts from what is left of a damaged snapshot, of which `lost` images are missing.
    pub(super) fn from_repaired(repaired: Repaired, at: LogPosition, lost: u64) -> Self {
        let Repaired { state, unknown_from, unused, renamed } = repaired;
        let loss = Loss { images: lost.saturating_add(unused), renamed, ..Loss::default() };
        Self { state, last: at, lost: loss.count(), loss, unknown_from, frames: RecordFrames::behind(at) }
    }

    /// Up to so many records were cut off.
    pub(super) fn miss_cut_off(&mut self, records: u64) {
        self.loss.cut_off += records;
        self.lost += records;
    }

    /// The last frame seen, and the highest LSN that a record up to it can have.
    pub(super) fn last(&self) -> LogPosition {
        self.last
    }

    /// Applies the next frame; `lsn` is that of the last record up to it, if known. Ignores frames up to the last: they
    /// are in the state, or were cut off.
    pub(super) fn take(&mut self, frame: &Frame<'_>, lsn: Option<Lsn>) {
        let head = &frame.head;
        if head.number <= self.last.frame {
            return;
        }
        self.miss_through(FrameNumber(head.number.0 - 1));
        self.last = self.last.after(head.kind);
        self.last.lsn = self.last.lsn.max(lsn.unwrap_or_default());
        if !frame.is_record() {
            return;
        }
        self.frames.add(self.last);
        let (kind, applied) = match codec::decode(head.kind, head.version, frame.payload) {
            Ok(Record { at, event: event @ (Event::Relocated(_) | Event::PayloadLost(_)) }) => {
                let _ = self.apply(&Record { at, event });
                return;
            }
            Ok(record) => (kind_name(&record.event), self.apply(&record)),
            Err(error) => ("not understood", Err(error.to_string())),
        };
        if let Err(reason) = applied {
            self.lost += 1;
            self.loss.skipped.push(Skipped { frame: head.number, lsn, kind, reason });
        }
    }

    /// Frames up to `number` were synced, so those that were not found are lost. Each may have been a record.
    pub(super) fn miss_through(&mut self, number: FrameNumber) {
        let last = self.last;
        if number > last.frame {
            let missing = number.0 - last.frame.0;
            self.lost += missing;
            self.frames.miss_behind(last.lsn);
            self.loss.ranges.push(last.frame.next()..=number);
            self.last = LogPosition { frame: number, lsn: Lsn(last.lsn.0 + missing) };
        }
    }

    fn apply(&mut self, record: &Record) -> Result<(), String> {
        if let Event::Restored(_) = record.event {
            return Err("an image in the log".to_owned());
        }
        if self.has_unknown_position(&record.event) {
            return Err("the position of its message is unknown after the loss".to_owned());
        }
        if self.lost > 0 {
            self.skip_lost_ids(&record.event);
        }
        // What made a message already done may be lost. Then the message is kept and delivered.
        let applied = self.apply_atomically(record).or_else(|contradiction| match without_skips(record) {
            Some(delivered) => self.apply_atomically(&delivered),
            None => Err(contradiction),
        });
        applied.map_err(|contradiction| contradiction.to_string())
    }

    /// Applies the record, or changes nothing but the clock. `State::apply` does not guarantee that: of a record in
    /// several parts, the first may be applied when the second contradicts.
    fn apply_atomically(&mut self, record: &Record) -> Result<(), Contradiction> {
        let in_parts = matches!(
            record.event,
            Event::GroupSought { .. }
                | Event::Purged { .. }
                | Event::DeadLettered { .. }
                | Event::Redriven { .. }
                | Event::Acked { commits: Some(_), .. }
                | Event::Acked { winner_until: Some(_), .. }
                | Event::CumulativelyAcked { .. }
                | Event::EffectDeadLettered(_)
                | Event::Completed(_)
        ) || matches!(&record.event, Event::Produced { skipped, .. } if !skipped.is_empty())
            || referrers(&record.event).len() > 1;
        // In the rebuilt state, records that were lost have LSNs: more than they had, since marks count as records.
        self.state.continue_behind(Lsn(self.last.lsn.0 - 1));
        if in_parts {
            let before = self.state.clone();
            let applied = self.state.apply(record);
            if applied.is_err() {
                self.state = before;
            }
            return applied;
        }
        // Produced records are frequent and cloning the state for each is slow, so their second part is checked first.
        if let Event::Produced { body, dedupe: Some(dedupe), .. } = &record.event {
            let (tenant, key) =
                body.identity().ok_or(Contradiction("dedupe window of a message without an idempotency key"))?;
            let now = record.at.max(self.state.clock());
            let known = self.state.dedupe(&dedupe.scope);
            if known.is_some_and(|known| known.find(&IdentityKey::new(tenant, key), now).is_some()) {
                return Err(Contradiction("dedupe key stored twice in its window"));
            }
        }
        self.state.apply(record)
    }

    /// Whether the event refers to a message whose position is unknown.
    fn has_unknown_position(&self, event: &Event) -> bool {
        let from = |topic: TopicId, partition: PartitionId| self.unknown_from.get(&(topic, partition)).copied();
        let is_unknown = |topic, partition, position| from(topic, partition).is_some_and(|from| position >= from);
        if let Some(MessageRef { topic, partition, position, .. }) = message_ref(event) {
            return is_unknown(*topic, *partition, *position);
        }
        match event {
            Event::Redriven { dead_topic, dead_partition, dead_position, .. } => {
                is_unknown(*dead_topic, *dead_partition, *dead_position)
            }
            Event::Relocated(_) | Event::PayloadLost(_) => referrers(event).iter().any(|referrer| match referrer {
                Referrer::Message(at) => is_unknown(at.topic, at.partition, at.position),
                Referrer::Effect(_) => false,
            }),
            Event::RetentionExpired { topic, partition, through } => is_unknown(*topic, *partition, *through),
            Event::CumulativelyAcked { topic, partition, acks, .. } => {
                acks.iter().any(|ack| is_unknown(*topic, *partition, ack.position))
            }
            Event::GroupSought { topic, targets, .. } | Event::Purged { topic, ends: targets, .. } => (0..)
                .map(PartitionId)
                .zip(targets.iter())
                .any(|(partition, target)| from(*topic, partition).is_some_and(|from| *target > from)),
            _ => false,
        }
    }

    /// If the event has an id that is not the next one only because of the loss, makes it the next.
    fn skip_lost_ids(&mut self, event: &Event) {
        let Some(ids) = self.lost_ids(event) else { return };
        let Ok(state) = renumbered(&self.state, |image| ids.apply_to(image)) else { return };
        self.state = state;
        let Some(topic) = ids.next_offset.and_then(|(topic, _)| self.state.topic(topic)) else { return };
        for (id, partition) in topic.partitions() {
            self.unknown_from.entry((topic.id(), id)).or_insert(partition.next_position());
        }
    }

    fn lost_ids(&self, event: &Event) -> Option<NextIds> {
        let state = &self.state;
        let lost = self.lost;
        // Each lost record assigned at most one id of a kind.
        let is_ahead = |seen: u64, next: u64| seen > next && seen - next <= lost;
        let offset = |topic: TopicId, offset: Offset| {
            let next = state.topic(topic)?.next_offset();
            is_ahead(offset.0, next.0).then(|| NextIds { next_offset: Some((topic, offset)), ..NextIds::default() })
        };
        let granted = |boot: Boot| {
            let found = is_ahead(u64::from(boot.0), u64::from(state.boot().0));
            found.then(|| NextIds { boot: Some(boot), ..NextIds::default() })
        };
        let topic = |topic: TopicId| {
            let found = is_ahead(u64::from(topic.0), u64::from(state.next_topic().0));
            found.then(|| NextIds { next_topic: Some(topic), ..NextIds::default() })
        };
        let dead =
            |dead_topic: TopicId, dead_offset: Offset| offset(dead_topic, dead_offset).or_else(|| topic(dead_topic));
        match event {
            Event::Booted { boot } => {
                let before = Boot(boot.0.checked_sub(1)?);
                let found = is_ahead(u64::from(before.0), u64::from(state.boot().0));
                found.then(|| NextIds { boot: Some(before), ..NextIds::default() })
            }
            Event::Delivered { token, .. } => granted(token.boot),
            Event::EffectBegun(begun) => granted(begun.token.boot),
            Event::Completed(step) => {
                let mut stored =
                    step.outputs.iter().filter_map(|output| Some((output.stored.as_ref()?.topic, output.offset)));
                let dead_letter = || step.dead_letter.as_ref().and_then(|slot| dead(slot.topic, slot.offset));
                stored.find_map(|(topic, at)| offset(topic, at)).or_else(dead_letter)
            }
            Event::EffectDeadLettered(failed) => dead(failed.dead_letter.topic, failed.dead_letter.offset),
            Event::TopicCreated { topic: id, .. } => topic(*id),
            Event::GroupCreated { topic, group, .. } => {
                let next = state.topic(*topic)?.next_group();
                let found = is_ahead(u64::from(group.0), u64::from(next.0));
                found.then(|| NextIds { next_group: Some((*topic, *group)), ..NextIds::default() })
            }
            Event::Produced { topic, offset: given, .. } | Event::Redriven { topic, offset: given, .. } => {
                offset(*topic, *given)
            }
            Event::DeadLettered { dead_topic, dead_offset, .. } => dead(*dead_topic, *dead_offset),
            _ => None,
        }
    }

    /// The rebuilt state, what is lost, and where the payloads stand to which the state refers. No id that a lost
    /// record may have assigned is assigned again; `boots` is the highest number of boots there can have been.
    pub(super) fn finish(self, boots: u64) -> Result<(State, Loss, RecordFrames), String> {
        let Self { state, mut loss, lost, frames, .. } = self;
        assert_eq!(lost, loss.count(), "every loss is counted once");
        let more = |number: u32| u32::try_from(u64::from(number).saturating_add(lost)).unwrap_or(ID_MAX).min(ID_MAX);
        let boots = u32::try_from(boots).unwrap_or(ID_MAX).min(ID_MAX);
        let state = renumbered(&state, |image| match image {
            Image::Origin { boot, next_topic, .. } => {
                boot.0 = boot.0.max(boots).max(1);
                next_topic.0 = next_topic.0.max(more(next_topic.0));
            }
            Image::Access { last_tenant, next_audit } => {
                last_tenant.0 = last_tenant.0.max(more(last_tenant.0));
                *next_audit = next_audit.saturating_add(lost).min(u64::MAX / 2).max(*next_audit);
            }
            Image::Topic { next_offset, next_group, .. } => {
                next_offset.0 = next_offset.0.saturating_add(lost).min(u64::MAX / 2).max(next_offset.0);
                next_group.0 = next_group.0.max(more(next_group.0));
            }
            _ => {}
        })
        .map_err(|contradiction| contradiction.to_string())?;
        state.check().map_err(|inconsistency| inconsistency.to_string())?;
        loss.renamed.retain(|name| state.topic_named(name).is_some());
        Ok((state, loss, frames))
    }
}

/// What refers to the payload that the event is about.
fn referrers(event: &Event) -> &[Referrer] {
    match event {
        Event::Relocated(relocated) => &relocated.referrers,
        Event::PayloadLost(lost) => &lost.referrers,
        _ => &[],
    }
}

/// The highest id of boots, topics and groups.
const ID_MAX: u32 = u32::MAX / 2;

impl NextIds {
    fn apply_to(&self, image: &mut Image) {
        match image {
            Image::Origin { boot, next_topic, .. } => {
                *boot = self.boot.unwrap_or(*boot);
                *next_topic = self.next_topic.unwrap_or(*next_topic);
            }
            Image::Topic { topic, next_offset, next_group, .. } => {
                if let Some((_, offset)) = self.next_offset.filter(|(of, _)| of == topic) {
                    *next_offset = offset;
                }
                if let Some((_, group)) = self.next_group.filter(|(of, _)| of == topic) {
                    *next_group = group;
                }
            }
            _ => {}
        }
    }
}

/// The same state with some of its images changed.
fn renumbered(state: &State, change: impl Fn(&mut Image)) -> Result<State, Contradiction> {
    restored(state.view().map(|mut image| {
        change(&mut image);
        image
    }))
}

/// The state that these images describe.
pub(super) fn restored(images: impl Iterator<Item = Image>) -> Result<State, Contradiction> {
    let mut state = State::default();
    for image in images {
        let record = Record { at: Timestamp::default(), event: Event::Restored(image) };
        state.apply(&record)?;
    }
    Ok(state)
}

/// The record with messages that are delivered, if it has one that is skipped.
fn without_skips(record: &Record) -> Option<Record> {
    let mut record = record.clone();
    let skips: Vec<&mut Vec<GroupId>> = match &mut record.event {
        Event::Produced { skipped, .. } => vec![skipped],
        Event::Completed(step) => {
            let stored = step.outputs.iter_mut().filter_map(|output| output.stored.as_mut());
            stored.map(|stored| &mut stored.skipped).collect()
        }
        _ => return None,
    };
    let has_skip = skips.iter().any(|skipped| !skipped.is_empty());
    skips.into_iter().for_each(Vec::clear);
    has_skip.then_some(record)
}

#[cfg(test)]
mod tests {
    use driftq_core::Body;
    use driftq_core::log::Head;
    use driftq_core::record::{DedupeWindow, MessageAt, PayloadLost, Relocated};
    use driftq_core::types::{
        Envelope, GroupName, GroupOrigin, GroupStart, Metadata, PayloadId, ProduceScope, Retention, TopicName,
    };

    use super::*;

    fn take(rebuild: &mut Rebuild, event: Event) {
        let record = Record { at: Timestamp(1_000), event };
        let mut payload = Vec::new();
        codec::encode(&record, &mut payload);
        let (number, kind) = (rebuild.last().frame.next(), codec::kind(&record.event));
        let head = Head { number, prev_crc: 0, synced: FrameNumber(0), kind, version: codec::VERSION };
        let lsn = Some(rebuild.last().lsn.next());
        rebuild.take(&Frame { head, crc: 0, payload: &payload }, lsn);
    }

    #[test]
    fn record_with_contradicting_second_part_changes_nothing() -> Result<(), Box<dyn std::error::Error>> {
        let mut rebuild = Rebuild::new(State::default(), LogPosition::default());
        let (topic, group, partition) = (TopicId(0), GroupId(0), PartitionId(0));
        let (name, retention) = (TopicName::new("t")?, Retention::default());
        take(&mut rebuild, Event::Booted { boot: Boot(1) });
        take(&mut rebuild, Event::TopicCreated { topic, name, partitions: 2, retention });
        let (name, start) = (GroupName::new("g")?, GroupStart::Earliest);
        take(&mut rebuild, Event::GroupCreated { topic, group, name, start, origin: GroupOrigin::Requested });
        let body = Body::bare(b"key", b"value");
        take(
            &mut rebuild,
            Event::Produced { topic, partition, offset: Offset(0), body, dedupe: None, skipped: Vec::new() },
        );
        assert_eq!(rebuild.loss, Loss::default());
        let before = rebuild.state.clone();
        // The target in the first partition is valid, the one in the second does not exist.
        take(&mut rebuild, Event::GroupSought { topic, group, targets: [Position(1), Position(5)].into() });
        assert_eq!(rebuild.loss.skipped.len(), 1);
        assert_eq!(rebuild.state, before);
        // So with what refers to a payload. No bytes are lost by leaving a relocation out.
        let loss = rebuild.loss.clone();
        let at = |position| Referrer::Message(MessageAt { topic, partition, position: Position(position) });
        let (from, referrers) = (PayloadId { lsn: Lsn(4), part: 0 }, vec![at(0), at(7)]);
        let lost = PayloadLost { payload: from, referrers: referrers.clone(), damage: "d".into() };
        take(&mut rebuild, Event::PayloadLost(Box::new(lost)));
        let body = Body::bare(b"key", b"value");
        let relocated = Relocated { from, referrers, body: body.clone() };
        take(&mut rebuild, Event::Relocated(Box::new(relocated)));
        let mut unchanged = before;
        unchanged.continue_behind(Lsn(rebuild.last.lsn.0 - 1));
        assert_eq!((&rebuild.state, &rebuild.loss), (&unchanged, &loss));
        take(&mut rebuild, Event::Relocated(Box::new(Relocated { from, referrers: vec![at(0)], body })));
        let images = rebuild.state.view();
        let mut payloads =
            images.filter_map(|image| if let Image::Message { payload, .. } = image { Some(payload) } else { None });
        assert_eq!(payloads.next().map(|payload| payload.id.lsn), Some(rebuild.last.lsn), "it has moved");
        Ok(())
    }

    #[test]
    fn message_already_done_by_a_lost_ack_is_kept_and_delivered() -> Result<(), Box<dyn std::error::Error>> {
        let mut rebuild = Rebuild::new(State::default(), LogPosition::default());
        let (topic, group, partition) = (TopicId(0), GroupId(0), PartitionId(0));
        let (name, retention) = (TopicName::new("t")?, Retention::default());
        take(&mut rebuild, Event::Booted { boot: Boot(1) });
        take(&mut rebuild, Event::TopicCreated { topic, name: name.clone(), partitions: 1, retention });
        let start = GroupStart::Earliest;
        take(
            &mut rebuild,
            Event::GroupCreated { topic, group, name: GroupName::new("g")?, start, origin: GroupOrigin::Requested },
        );
        let envelope = Envelope { idempotency_key: Some("k".into()), ..Envelope::default() };
        let body = Body::pack(&Metadata { envelope, ..Metadata::default() }, b"key", b"value");
        let dedupe = Some(DedupeWindow { scope: ProduceScope::new(&name, None), expires_at: Timestamp(2_000) });
        let skipped = vec![group];
        take(&mut rebuild, Event::Produced { topic, partition, offset: Offset(0), body, dedupe, skipped });
        assert_eq!(rebuild.loss, Loss::default());
        let stored = rebuild.state.topic(topic).and_then(|topic| topic.partition(partition)).ok_or("no partition")?;
        assert_eq!(stored.backlog().messages, 1);
        Ok(())
    }
}
