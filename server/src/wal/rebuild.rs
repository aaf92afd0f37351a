//! A state from whatever records are left.
//!
//! Records are applied in the order of their LSNs, each as recovery would. Behind a loss two things are different. A record that
//! contradicts the state is passed over and counted. And where numbers have been given that nobody can tell of any more (offsets,
//! topics, groups, boots), counting goes on from the first that is seen again, by no more than was lost: else one lost
//! message would take every later one of its topic with it.
//!
//! A message's message_ref is its position in its partition, which no record of a message tells. Once messages of a topic are lost, the places
//! of later ones are therefore not known, and what later records say of them (deliveries, acks) is passed over: such messages
//! are delivered again, which a consumer has to reckon with anyway. Nothing is ever taken for done that may not be.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use driftq_core::codec::record as codec;
use driftq_core::faults::NoFaults;
use driftq_core::log::RECORD_KIND_MAX;
use driftq_core::record::{Event, Image, MessageRef, Record};
use driftq_core::state::apply::Mode;
use driftq_core::state::{Contradiction, IdentityKey, State};
use driftq_core::types::{Boot, GroupId, Lsn, Offset, PartitionId, Position, Timestamp, TopicId};

/// A record that was whole and yet not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Its LSN.
    pub lsn: Lsn,
    /// Why.
    pub reason: String,
}

/// What could not be kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    /// LSNs whose frames are nowhere to be found, in order.
    pub ranges: Vec<RangeInclusive<Lsn>>,
    /// Records that do not fit what is left, in order.
    pub skipped: Vec<Skipped>,
}

impl Loss {
    /// How many records may be lost at most: some of the LSNs were the log's own.
    #[must_use]
    pub fn count(&self) -> u64 {
        let missing: u64 = self.ranges.iter().map(|range| range.end().0 - range.start().0 + 1).sum();
        missing + self.skipped.len() as u64
    }
}

/// A state in the making.
#[derive(Debug)]
pub(super) struct Rebuild {
    state: State,
    last: Lsn,
    loss: Loss,
    /// As [`Loss::count`], kept beside it.
    lost: u64,
    /// From these positions on it is not known which message stands where.
    unplaced: BTreeMap<(TopicId, PartitionId), Position>,
}

/// Numbers that are to be given next, where they differ from what the state says.
#[derive(Debug, Default)]
struct Numbers {
    boot: Option<Boot>,
    next_topic: Option<TopicId>,
    next_group: Option<(TopicId, GroupId)>,
    next_offset: Option<(TopicId, Offset)>,
}

impl Rebuild {
    /// Goes on from the state of a whole snapshot, or from nothing.
    pub(super) fn new(state: State, lsn: Lsn) -> Self {
        Self { state, last: lsn, loss: Loss::default(), lost: 0, unplaced: BTreeMap::new() }
    }

    /// The highest LSN seen.
    pub(super) fn last(&self) -> Lsn {
        self.last
    }

    /// Takes the next frame that was found. LSNs at or below the last are passed over: they are in the state, or were cut.
    pub(super) fn take(&mut self, lsn: Lsn, kind: u8, version: u8, payload: &[u8]) {
        if lsn <= self.last {
            return;
        }
        self.miss_through(Lsn(lsn.0 - 1));
        self.last = lsn;
        if kind > RECORD_KIND_MAX {
            return;
        }
        let taken = match codec::decode(kind, version, payload) {
            Ok(record) => self.apply(&record),
            Err(error) => Err(error.to_string()),
        };
        if let Err(reason) = taken {
            self.lost += 1;
            self.loss.skipped.push(Skipped { lsn, reason });
        }
    }

    /// Frames through `lsn` had been synced, so what was not seen of them is lost.
    pub(super) fn miss_through(&mut self, lsn: Lsn) {
        if lsn > self.last {
            self.lost += lsn.0 - self.last.0;
            self.loss.ranges.push(self.last.next()..=lsn);
            self.last = lsn;
        }
    }

    fn apply(&mut self, record: &Record) -> Result<(), String> {
        if let Event::Restored(_) = record.event {
            return Err("a piece of a snapshot in the log".to_owned());
        }
        if self.is_unplaced(&record.event) {
            return Err("of a message whose message_ref is not known behind the loss".to_owned());
        }
        if self.lost > 0 {
            self.bridge(&record.event);
        }
        self.apply_whole(record).map_err(|contradiction| contradiction.to_string())
    }

    /// Applies the record, or changes nothing but the clock. `State::apply` promises no such thing: of a record in several
    /// parts the first may be done when the second contradicts.
    fn apply_whole(&mut self, record: &Record) -> Result<(), Contradiction> {
        let in_parts = matches!(
            record.event,
            Event::GroupSought { .. }
                | Event::DeadLettered { .. }
                | Event::Redriven { .. }
                | Event::Acked { commits: Some(_), .. }
                | Event::Completed(_)
        );
        if in_parts {
            let before = self.state.clone();
            let applied = self.state.apply(record, Mode::Replay, &NoFaults);
            if applied.is_err() {
                self.state = before;
            }
            return applied;
        }
        // Messages are many, and keeping the state before each would be slow: their second part is looked at beforehand.
        if let Event::Produced { body, dedupe: Some(dedupe), .. } = &record.event {
            let (tenant, key) = body.identity().ok_or(Contradiction("window of a message without an identity"))?;
            let now = record.at.max(self.state.clock());
            let known = self.state.identities(&dedupe.scope);
            if known.is_some_and(|known| known.accepted(&IdentityKey::new(tenant, key), now).is_some()) {
                return Err(Contradiction("identity accepted twice in its window"));
            }
        }
        self.state.apply(record, Mode::Replay, &NoFaults)
    }

    /// Whether the event speaks of a message whose message_ref is not known.
    fn is_unplaced(&self, event: &Event) -> bool {
        let from = |topic: TopicId, partition: PartitionId| self.unplaced.get(&(topic, partition)).copied();
        let behind = |topic, partition, position| from(topic, partition).is_some_and(|from| position >= from);
        match event {
            Event::Delivered { message_ref, .. }
            | Event::Acked { message_ref, .. }
            | Event::Skipped { message_ref }
            | Event::Nacked { message_ref, .. }
            | Event::ReasonNoted { message_ref, .. }
            | Event::Expired { message_ref, .. }
            | Event::Extended { message_ref, .. }
            | Event::Released { message_ref }
            | Event::DeadLettered { message_ref, .. } => {
                let MessageRef { topic, partition, position, .. } = *message_ref;
                behind(topic, partition, position)
            }
            Event::Completed(step) => {
                let MessageRef { topic, partition, position, .. } = step.message_ref;
                behind(topic, partition, position)
            }
            Event::Redriven { dead_topic, dead_partition, dead_position, .. } => {
                behind(*dead_topic, *dead_partition, *dead_position)
            }
            Event::RetainedOut { topic, partition, through } => behind(*topic, *partition, *through),
            Event::GroupSought { topic, targets, .. } => (0..)
                .map(PartitionId)
                .zip(targets.iter())
                .any(|(partition, target)| from(*topic, partition).is_some_and(|from| *target > from)),
            _ => false,
        }
    }

    /// Where the event has a number that is not the next only because of what is lost, makes it the next.
    fn bridge(&mut self, event: &Event) {
        let Some(numbers) = self.missing_numbers(event) else { return };
        let Ok(state) = renumbered(&self.state, |image| numbers.put(image)) else { return };
        self.state = state;
        let Some(topic) = numbers.next_offset.and_then(|(topic, _)| self.state.topic(topic)) else { return };
        for (partition, holds) in topic.partitions() {
            self.unplaced.entry((topic.id(), partition)).or_insert(holds.next_position());
        }
    }

    fn missing_numbers(&self, event: &Event) -> Option<Numbers> {
        let state = &self.state;
        let lost = self.lost;
        // Each lost record has given at most one number of a kind.
        let ahead = |seen: u64, next: u64| seen > next && seen - next <= lost;
        let offset = |topic: TopicId, offset: Offset| {
            let next = state.topic(topic)?.next_offset();
            ahead(offset.0, next.0).then(|| Numbers { next_offset: Some((topic, offset)), ..Numbers::default() })
        };
        let granted = |boot: Boot| {
            let found = ahead(u64::from(boot.0), u64::from(state.boot().0));
            found.then(|| Numbers { boot: Some(boot), ..Numbers::default() })
        };
        let topic = |topic: TopicId| {
            let found = ahead(u64::from(topic.0), u64::from(state.next_topic().0));
            found.then(|| Numbers { next_topic: Some(topic), ..Numbers::default() })
        };
        match event {
            Event::Booted { boot } => {
                let before = Boot(boot.0.checked_sub(1)?);
                let found = ahead(u64::from(before.0), u64::from(state.boot().0));
                found.then(|| Numbers { boot: Some(before), ..Numbers::default() })
            }
            Event::Delivered { token, .. } => granted(token.boot),
            Event::EffectBegun(begun) => granted(begun.token.boot),
            Event::Completed(step) => {
                let mut stored =
                    step.outputs.iter().filter_map(|output| Some((output.stored.as_ref()?.topic, output.offset)));
                stored.find_map(|(topic, at)| offset(topic, at))
            }
            Event::TopicCreated { topic: id, .. } => topic(*id),
            Event::GroupCreated { topic, group, .. } => {
                let next = state.topic(*topic)?.next_group();
                let found = ahead(u64::from(group.0), u64::from(next.0));
                found.then(|| Numbers { next_group: Some((*topic, *group)), ..Numbers::default() })
            }
            Event::Produced { topic, offset: given, .. } | Event::Redriven { topic, offset: given, .. } => {
                offset(*topic, *given)
            }
            Event::DeadLettered { dead_topic, dead_offset, .. } => {
                offset(*dead_topic, *dead_offset).or_else(|| topic(*dead_topic))
            }
            _ => None,
        }
    }

    /// The state, and what is not in it. No number that a lost record may have given is given again: `boots` is how many there may have
    /// been at most.
    pub(super) fn finish(self, boots: u64) -> Result<(State, Loss), String> {
        let Self { state, loss, lost, .. } = self;
        assert_eq!(lost, loss.count(), "what is lost is counted once");
        let more =
            |number: u32| u32::try_from(u64::from(number).saturating_add(lost)).unwrap_or(NUMBER_MAX).min(NUMBER_MAX);
        let boots = u32::try_from(boots).unwrap_or(NUMBER_MAX).min(NUMBER_MAX);
        let state = renumbered(&state, |image| match image {
            Image::Origin { boot, next_topic, .. } => {
                boot.0 = boot.0.max(boots).max(1);
                next_topic.0 = next_topic.0.max(more(next_topic.0));
            }
            Image::Topic { next_offset, next_group, .. } => {
                next_offset.0 = next_offset.0.saturating_add(lost).min(u64::MAX / 2).max(next_offset.0);
                next_group.0 = next_group.0.max(more(next_group.0));
            }
            _ => {}
        })
        .map_err(|contradiction| contradiction.to_string())?;
        state.check().map_err(|unsound| unsound.to_string())?;
        Ok((state, loss))
    }
}

/// As far as boots, topics and groups can be counted.
const NUMBER_MAX: u32 = u32::MAX / 2;

impl Numbers {
    fn put(&self, image: &mut Image) {
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

/// The same state with some of its pieces changed.
fn renumbered(state: &State, change: impl Fn(&mut Image)) -> Result<State, Contradiction> {
    restored(state.view().map(|mut image| {
        change(&mut image);
        image
    }))
}

/// The state that these pieces make.
fn restored(images: impl Iterator<Item = Image>) -> Result<State, Contradiction> {
    let mut state = State::default();
    for image in images {
        let record = Record { at: Timestamp::default(), event: Event::Restored(image) };
        state.apply(&record, Mode::Replay, &NoFaults)?;
    }
    Ok(state)
}

#[cfg(test)]
mod tests {
    use driftq_core::Body;
    use driftq_core::record::{GroupStart, Retention};
    use driftq_core::types::{GroupName, TopicName};

    use super::*;

    fn take(rebuild: &mut Rebuild, event: Event) {
        let record = Record { at: Timestamp(1_000), event };
        let mut payload = Vec::new();
        codec::encode(&record, &mut payload);
        rebuild.take(rebuild.last().next(), codec::kind(&record.event), codec::VERSION, &payload);
    }

    #[test]
    fn a_record_whose_second_part_contradicts_does_nothing_at_all() -> Result<(), Box<dyn std::error::Error>> {
        let mut rebuild = Rebuild::new(State::default(), Lsn(0));
        let (topic, group, partition) = (TopicId(0), GroupId(0), PartitionId(0));
        let (name, retention) = (TopicName::new("t")?, Retention::default());
        take(&mut rebuild, Event::Booted { boot: Boot(1) });
        take(&mut rebuild, Event::TopicCreated { topic, name, partitions: 2, retention });
        let (name, start) = (GroupName::new("g")?, GroupStart::Earliest);
        take(&mut rebuild, Event::GroupCreated { topic, group, name, start });
        let body = Body::bare(b"key", b"value");
        take(&mut rebuild, Event::Produced { topic, partition, offset: Offset(0), body, dedupe: None });
        assert_eq!(rebuild.loss, Loss::default());
        let before = rebuild.state.clone();
        // The first partition could be sought, the second has no such position.
        take(&mut rebuild, Event::GroupSought { topic, group, targets: [Position(1), Position(5)].into() });
        assert_eq!(rebuild.loss.skipped.len(), 1);
        assert_eq!(rebuild.state, before);
        Ok(())
    }
}
