//! The timeline of a data folder: the records of its log, for the viewer.

use std::collections::{BTreeMap, VecDeque};

use driftq_core::log::Storage;
use driftq_core::record::Event;
use driftq_core::state::State;
use driftq_core::types::{GroupId, MessageRef, Timestamp, TopicId, TopicName};

use driftq_inspect::format::resolve::{entry, group, message, topic};
use driftq_inspect::format::{kind, message_ref, sentence, timestamp};
use driftq_inspect::{
    InspectError, LogPoint, LogReader, LoggedRecord, MessageLocation, MessageName, ReplayObserver, Replayed,
};

use crate::report::grouped;
use crate::view::timeline::{Glyph, Lease, LeaseEnd, Timeline, TimelineStep, Track, TrackKind, Unit};

/// The most records in a timeline.
pub const TIMELINE_RECORDS_MAX: usize = 5_000;
/// The most workers with a track of their own; the others share one.
const WORKERS_MAX: usize = 60;

const PRODUCERS: usize = 0;
const BROKER: usize = 1;
const OTHER_WORKERS: &str = "other workers";

/// Selects records of a log. Of more than [`TIMELINE_RECORDS_MAX`], a timeline has the first if `from` is given, else
/// the last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordFilter {
    /// From this LSN on.
    pub from: Option<u64>,
    /// Up to and including this LSN.
    pub to: Option<u64>,
    /// Only records about this topic, and broker starts.
    pub topic: Option<TopicName>,
    /// Only records about this message, and broker starts.
    pub message: Option<MessageName>,
}

/// The timeline of a log: its records by actor, and its leases. At most [`TIMELINE_RECORDS_MAX`] records; the facts
/// of the timeline say how many were omitted.
///
/// # Errors
/// As [`LogReader::replay`].
pub fn timeline_of_log<S: Storage>(
    reader: &mut LogReader<S>,
    title: &str,
    filter: &RecordFilter,
) -> Result<Timeline, InspectError> {
    let mut builder = TimelineBuilder::new(filter);
    let to = filter.to.map(LogPoint::Lsn);
    let replayed = match reader.replay(to, &mut builder) {
        Err(InspectError::NoSuchLsn { requested, last, .. }) if requested > last => {
            reader.replay(None, &mut builder)?
        }
        replayed => replayed?,
    };
    Ok(builder.build(title, &replayed))
}

/// Builds a timeline from records.
struct TimelineBuilder<'p> {
    filter: &'p RecordFilter,
    tracks: Vec<Track>,
    workers: BTreeMap<String, usize>,
    /// The records, with their absolute time.
    steps: VecDeque<(Timestamp, TimelineStep)>,
    /// How many steps were dropped from the front.
    dropped: usize,
    /// How many records were ignored because the timeline was full.
    ignored: u64,
    /// Their `from` and `to` count from the first step ever added.
    leases: Vec<Lease>,
    /// The leases that have not ended, as indexes.
    in_flight: BTreeMap<MessageRef, usize>,
    /// When each lease expires.
    until: Vec<Timestamp>,
    boots: u64,
    /// The state of the newest step's message before the record.
    state_before: Option<String>,
}

impl<'p> TimelineBuilder<'p> {
    fn new(filter: &'p RecordFilter) -> Self {
        let track = |kind, name: &str| Track { kind, name: name.to_owned() };
        Self {
            filter,
            tracks: vec![track(TrackKind::Producers, "producers"), track(TrackKind::Broker, "broker")],
            workers: BTreeMap::new(),
            steps: VecDeque::new(),
            dropped: 0,
            ignored: 0,
            leases: Vec::new(),
            in_flight: BTreeMap::new(),
            until: Vec::new(),
            boots: 0,
            state_before: None,
        }
    }

    fn worker_track(&mut self, owner: &str) -> usize {
        let name = match self.workers.contains_key(owner) || self.workers.len() < WORKERS_MAX {
            true => owner,
            false => OTHER_WORKERS,
        };
        if let Some(track) = self.workers.get(name) {
            return *track;
        }
        let track = self.tracks.len();
        self.tracks.push(Track { kind: TrackKind::Worker, name: name.to_owned() });
        self.workers.insert(name.to_owned(), track);
        track
    }

    /// The track of the last owner of a message.
    fn owner_track(&mut self, state: &State, message_ref: &MessageRef) -> usize {
        match entry(state, message_ref).map(|entry| entry.owner.as_str().to_owned()) {
            Some(owner) => self.worker_track(&owner),
            None => BROKER,
        }
    }

    fn is_selected(&self, event: &Event, topics: &[String], messages: &[String]) -> bool {
        if matches!(event, Event::Booted { .. }) {
            return true;
        }
        if let Some(wanted) = &self.filter.message {
            return messages.contains(&wanted.to_string());
        }
        self.filter.topic.as_ref().is_none_or(|wanted| topics.iter().any(|topic| *topic == wanted.to_string()))
    }

    fn track(&mut self, state: &State, event: &Event) -> usize {
        match event {
            Event::Delivered { owner, .. } => self.worker_track(owner.as_str()),
            Event::EffectBegun(begun) => self.worker_track(begun.owner.as_str()),
            Event::EffectFinished { identity, .. } | Event::EffectRenewed { identity, .. } => {
                let owner = state.store().get(identity).and_then(|effect| effect.owner.clone());
                owner.map_or(BROKER, |owner| self.worker_track(owner.as_str()))
            }
            Event::Acked { message_ref, .. }
            | Event::Nacked { message_ref, .. }
            | Event::ReasonNoted { message_ref, .. }
            | Event::Extended { message_ref, .. }
            | Event::Released { message_ref }
            | Event::Withdrawn { message_ref } => self.owner_track(state, message_ref),
            Event::Completed(step) => self.owner_track(state, &step.message_ref),
            Event::EffectDeadLettered(failed) => self.owner_track(state, &failed.message_ref),
            Event::CumulativelyAcked { .. } => match event.parts().first().and_then(message_ref) {
                Some(first) => self.owner_track(state, first),
                None => BROKER,
            },
            Event::TopicCreated { .. }
            | Event::RetentionChanged { .. }
            | Event::TopicDeleted { .. }
            | Event::GroupOriginChanged { .. }
            | Event::GroupCreated { .. }
            | Event::GroupDeleted { .. }
            | Event::GroupPaused { .. }
            | Event::GroupResumed { .. }
            | Event::GroupSought { .. }
            | Event::Purged { .. }
            | Event::Produced { .. }
            | Event::Redriven { .. }
            | Event::EffectForgotten { .. } => PRODUCERS,
            _ => BROKER,
        }
    }

    /// Adds a step and returns its number among all that were added. A full timeline drops its first step, or ignores
    /// this one.
    fn push(&mut self, at: Timestamp, step: TimelineStep) -> Option<usize> {
        if self.steps.len() == TIMELINE_RECORDS_MAX {
            if self.filter.from.is_some() {
                self.ignored += 1;
                return None;
            }
            self.steps.pop_front();
            self.dropped += 1;
            // Leases that began in dropped steps are not shown.
            if self.dropped.is_multiple_of(TIMELINE_RECORDS_MAX) {
                self.drop_leases();
            }
        }
        self.steps.push_back((at, step));
        Some(self.dropped + self.steps.len() - 1)
    }

    fn drop_leases(&mut self) {
        let dropped = self.dropped;
        let mut indexes = vec![None; self.leases.len()];
        let mut kept = 0;
        for (index, lease) in self.leases.iter().enumerate() {
            if lease.from >= dropped {
                indexes[index] = Some(kept);
                kept += 1;
            }
        }
        self.in_flight.retain(|_, index| indexes[*index].map(|new| *index = new).is_some());
        let mut new_indexes = indexes.iter();
        self.until.retain(|_| new_indexes.next().is_some_and(Option::is_some));
        self.leases.retain(|lease| lease.from >= dropped);
    }

    fn end(&mut self, message_ref: &MessageRef, number: usize, end: LeaseEnd) {
        if let Some(lease) = self.in_flight.remove(message_ref).and_then(|index| self.leases.get_mut(index)) {
            (lease.to, lease.end) = (Some(number), end);
        }
    }

    fn end_all(&mut self, number: usize, topic: TopicId, group: Option<GroupId>) {
        let is_affected = |message_ref: &&MessageRef| {
            message_ref.topic == topic && group.is_none_or(|group| message_ref.group == group)
        };
        for message_ref in self.in_flight.keys().filter(is_affected).copied().collect::<Vec<_>>() {
            self.end(&message_ref, number, LeaseEnd::Taken);
        }
    }

    fn note_leases(&mut self, state: &State, number: usize, track: usize, event: &Event) {
        event.parts().iter().for_each(|part| self.note_leases(state, number, track, part));
        match event {
            Event::Delivered { message_ref, token, until, .. } => {
                self.in_flight.insert(*message_ref, self.leases.len());
                self.until.push(*until);
                self.leases.push(Lease {
                    track,
                    message: message(state, message_ref),
                    topic: topic(state, message_ref.topic),
                    group: group(state, message_ref.topic, message_ref.group),
                    token: token.to_string(),
                    attempt: entry(state, message_ref).map_or(0, |entry| entry.attempts).saturating_add(1),
                    from: number,
                    to: None,
                    until_ms: 0,
                    end: LeaseEnd::Open,
                });
            }
            Event::Extended { message_ref, until } => {
                if let Some(end) = self.in_flight.get(message_ref).and_then(|index| self.until.get_mut(*index)) {
                    *end = *until;
                }
            }
            Event::Acked { message_ref, .. } => self.end(message_ref, number, LeaseEnd::Acked),
            Event::Completed(step) if step.dead_letter.is_none() => {
                self.end(&step.message_ref, number, LeaseEnd::Acked);
            }
            Event::Nacked { message_ref, .. } => self.end(message_ref, number, LeaseEnd::Nacked),
            Event::Expired { message_ref, .. } => self.end(message_ref, number, LeaseEnd::Expired),
            Event::Released { message_ref } => self.end(message_ref, number, LeaseEnd::Released),
            Event::Withdrawn { message_ref } => self.end(message_ref, number, LeaseEnd::Taken),
            Event::DeadLettered { message_ref, .. } => self.end(message_ref, number, LeaseEnd::Dead),
            Event::GroupSought { topic, group, .. } | Event::GroupDeleted { topic, group } => {
                self.end_all(number, *topic, Some(*group));
            }
            Event::TopicDeleted { topic } | Event::Purged { topic, .. } => self.end_all(number, *topic, None),
            Event::Redriven { dead_topic, dead_partition, dead_position, .. } => {
                let (topic, partition, position) = (*dead_topic, *dead_partition, *dead_position);
                let is_dead_letter = |message_ref: &&MessageRef| {
                    (message_ref.topic, message_ref.partition, message_ref.position) == (topic, partition, position)
                };
                for message_ref in self.in_flight.keys().filter(is_dead_letter).copied().collect::<Vec<_>>() {
                    self.end(&message_ref, number, LeaseEnd::Taken);
                }
            }
            _ => {}
        }
    }

    fn build(self, title: &str, replayed: &Replayed) -> Timeline {
        let Self { tracks, steps, dropped, ignored, mut leases, until, boots, .. } = self;
        let start = steps.front().map_or(Timestamp(0), |(at, _)| *at);
        for (lease, until) in leases.iter_mut().zip(until) {
            lease.until_ms = until.since(start).0;
        }
        leases.retain(|lease| lease.from >= dropped);
        for lease in &mut leases {
            lease.from -= dropped;
            lease.to = lease.to.map(|to| to - dropped);
        }
        let fact = |name: &str, value: String| (name.to_owned(), value);
        let mut facts = vec![
            fact("log", replayed.recovered.log_id.to_string()),
            fact("from LSN", replayed.base.to_string()),
            fact("last LSN", replayed.recovered.last.lsn.to_string()),
            fact("begins", timestamp(start)),
            fact("broker starts", boots.to_string()),
            fact("digest", format!("{:016x} after LSN {}", replayed.state.digest(), replayed.through())),
        ];
        let omitted = dropped as u64 + ignored;
        if omitted > 0 {
            facts.push(fact("records omitted", grouped(omitted)));
        }
        let steps: Vec<_> =
            steps.into_iter().map(|(at, step)| TimelineStep { at_ms: at.since(start).0, ..step }).collect();
        Timeline {
            title: title.to_owned(),
            about: "The log of a broker, record by record: what it accepted, delivered and was asked to settle."
                .to_owned(),
            facts,
            tracks,
            unit: Unit::Record,
            steps,
            leases,
            violation: None,
            explained: None,
        }
    }
}

impl ReplayObserver for TimelineBuilder<'_> {
    fn reset(&mut self) {
        *self = Self::new(self.filter);
    }

    fn before_record(&mut self, state: &State, logged: &LoggedRecord) {
        let (lsn, record) = (logged.lsn, &logged.record);
        if self.filter.from.is_some_and(|from| lsn < from) {
            return;
        }
        let event = &record.event;
        let Subjects { topics, groups, messages } = Subjects::of(state, event);
        if !self.is_selected(event, &topics, &messages) {
            return;
        }
        self.boots += u64::from(matches!(event, Event::Booted { .. }));
        let track = self.track(state, event);
        let detail = sentence(state, record);
        let also = match message_ref(event) {
            Some(message_ref) if track == BROKER => {
                let owner = self.owner_track(state, message_ref);
                if owner == BROKER { Vec::new() } else { vec![owner] }
            }
            Some(_) => vec![BROKER],
            None => Vec::new(),
        };
        let label = match messages.first() {
            Some(name) => format!("{} {name}", kind(event)),
            None => kind(event).to_owned(),
        };
        let step = TimelineStep {
            number: lsn,
            at_ms: 0,
            track,
            also,
            glyph: glyph(event),
            label,
            detail,
            outputs: Vec::new(),
            diff: Vec::new(),
            topics,
            groups,
            messages,
        };
        if let Some(number) = self.push(record.at, step) {
            self.note_leases(state, number, track, event);
            self.state_before = message_ref(event).map(|message_ref| MessageLocation::describe_ref(state, message_ref));
        }
    }

    fn after_record(&mut self, state: &State, logged: &LoggedRecord) {
        let Some((before, message_ref)) = self.state_before.take().zip(message_ref(&logged.record.event)) else {
            return;
        };
        let after = MessageLocation::describe_ref(state, message_ref);
        let Some((_, step)) = self.steps.back_mut() else { return };
        let (message, group) = (&step.messages[0], &step.groups[0]);
        step.diff.push(format!("{message} for group {group}: {before} → {after}"));
    }
}

/// The topics, groups and messages that a record is about, by name.
#[derive(Default)]
struct Subjects {
    topics: Vec<String>,
    groups: Vec<String>,
    messages: Vec<String>,
}

impl Subjects {
    fn of(state: &State, event: &Event) -> Self {
        let mut subjects = Self::default();
        for part in event.parts() {
            let of_part = Self::of(state, &part);
            subjects.topics.extend(of_part.topics);
            subjects.groups.extend(of_part.groups);
            subjects.messages.extend(of_part.messages);
        }
        subjects.topics.dedup();
        subjects.groups.dedup();
        if !subjects.messages.is_empty() {
            return subjects;
        }
        if let Some(message_ref) = message_ref(event) {
            subjects.topics.push(topic(state, message_ref.topic));
            subjects.groups.push(group(state, message_ref.topic, message_ref.group));
            subjects.messages.push(message(state, message_ref));
        }
        match event {
            Event::TopicCreated { name, .. } => subjects.topics.push(name.to_string()),
            Event::GroupCreated { topic: id, name, .. } => {
                subjects.topics.push(topic(state, *id));
                subjects.groups.push(name.to_string());
            }
            Event::TopicDeleted { topic: id }
            | Event::Purged { topic: id, .. }
            | Event::RetentionChanged { topic: id, .. }
            | Event::RetentionExpired { topic: id, .. } => {
                subjects.topics.push(topic(state, *id));
            }
            Event::GroupDeleted { topic: id, group: group_id }
            | Event::GroupOriginChanged { topic: id, group: group_id, .. }
            | Event::GroupPaused { topic: id, group: group_id }
            | Event::GroupResumed { topic: id, group: group_id }
            | Event::GroupSought { topic: id, group: group_id, .. } => {
                subjects.topics.push(topic(state, *id));
                subjects.groups.push(group(state, *id, *group_id));
            }
            Event::Produced { topic: id, offset, .. } => subjects.add_stored(&topic(state, *id), offset.0),
            Event::Completed(step) => {
                for output in &step.outputs {
                    if let Some(stored) = &output.stored {
                        subjects.add_stored(&topic(state, stored.topic), output.offset.0);
                    }
                }
            }
            Event::DeadLettered { message_ref, dead_offset, .. } => {
                let dlq = state.topic(message_ref.topic).and_then(|topic| topic.dead_letter_name());
                if let Some(dlq) = dlq {
                    subjects.add_stored(&dlq.to_string(), dead_offset.0);
                }
            }
            Event::Redriven {
                dead_topic, dead_partition, dead_position, topic: id, group: group_id, offset, ..
            } => {
                subjects.add_stored(&topic(state, *id), offset.0);
                subjects.groups.push(group(state, *id, *group_id));
                let partition = state.topic(*dead_topic).and_then(|dlq| dlq.partition(*dead_partition));
                if let Some(dead) = partition.and_then(|partition| partition.message(*dead_position)) {
                    subjects.add_stored(&topic(state, *dead_topic), dead.offset.0);
                }
            }
            _ => {}
        }
        subjects
    }

    fn add_stored(&mut self, topic: &str, offset: u64) {
        self.messages.push(format!("{topic}/{offset}"));
        if !self.topics.iter().any(|known| known == topic) {
            self.topics.push(topic.to_owned());
        }
    }
}

fn glyph(event: &Event) -> Glyph {
    match event {
        Event::Booted { .. } => Glyph::Boot,
        Event::Produced { .. } | Event::Redriven { .. } => Glyph::Produce,
        Event::Delivered { .. } => Glyph::Delivery,
        Event::EffectDeadLettered(_) => Glyph::Dead,
        Event::Completed(step) if step.dead_letter.is_some() => Glyph::Dead,
        Event::Acked { .. } | Event::CumulativelyAcked { .. } | Event::Completed(_) => Glyph::Ack,
        Event::Nacked { .. } => Glyph::Nack,
        Event::DeadLettered { .. } | Event::PayloadLost(_) => Glyph::Dead,
        Event::EffectBegun(_) | Event::EffectFinished { .. } | Event::EffectRenewed { .. } => Glyph::Effect,
        Event::Expired { .. }
        | Event::RetentionExpired { .. }
        | Event::DedupeExpired { .. }
        | Event::EffectsExpired { .. }
        | Event::CompletionsExpired { .. }
        | Event::WinnersExpired { .. }
        | Event::WallClockAdjusted(_) => Glyph::Time,
        Event::TopicCreated { .. }
        | Event::RetentionChanged { .. }
        | Event::TopicDeleted { .. }
        | Event::GroupCreated { .. }
        | Event::GroupOriginChanged { .. }
        | Event::GroupDeleted { .. }
        | Event::GroupPaused { .. }
        | Event::GroupResumed { .. }
        | Event::GroupSought { .. }
        | Event::Purged { .. }
        | Event::Extended { .. }
        | Event::Released { .. }
        | Event::Withdrawn { .. }
        | Event::ReasonNoted { .. }
        | Event::EffectForgotten { .. }
        | Event::KeyCreated(_)
        | Event::KeyRevoked { .. }
        | Event::KeyBound { .. }
        | Event::TenantCreated { .. }
        | Event::TenantDeleted { .. }
        | Event::Audited(_) => Glyph::Call,
        Event::Relocated(_) | Event::Restored(_) => Glyph::Other,
    }
}
