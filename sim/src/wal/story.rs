//! A log, or part of it, as the story that a viewer shows.

use std::collections::{BTreeMap, VecDeque};

use driftq_core::log::Storage;
use driftq_core::record::{Event, MessageRef};
use driftq_core::state::State;
use driftq_core::types::{GroupId, Timestamp, TopicId, TopicName};

use super::names::{entry, group, message, moment, topic};
use super::replay::{Logged, Replayed, Watch};
use super::spot::Spot;
use super::words::{kind, message_ref, sentence};
use super::{At, MessageName, Wal, WalError};
use crate::report::grouped;
use crate::view::timeline::{
    Glyph, Lease, LeaseEnd, Timeline as Story, TimelineStep as Moment, Track as Lane, TrackKind as LaneKind, Unit,
};

/// The most moments of a story.
pub const MOMENTS_MAX: usize = 5_000;
/// The most workers with a lane of their own; the others share one.
const WORKERS_MAX: usize = 60;

const PRODUCERS: usize = 0;
const BROKER: usize = 1;
const OTHER_WORKERS: &str = "other workers";

/// Which records of a log are told. Of more than [`MOMENTS_MAX`] the first are told where `from` is given, else the last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pick {
    /// From this LSN on.
    pub from: Option<u64>,
    /// Through this LSN.
    pub to: Option<u64>,
    /// Only what is about this topic, and starts of the broker.
    pub topic: Option<TopicName>,
    /// Only what is about this message, and starts of the broker.
    pub message: Option<MessageName>,
}

/// A log as a story: who did what, and who held what. At most [`MOMENTS_MAX`] moments; the facts say how many were left out.
///
/// # Errors
/// As [`Wal::replay`].
pub fn story_of_log<S: Storage>(wal: &mut Wal<S>, title: &str, pick: &Pick) -> Result<Story, WalError> {
    let mut teller = Teller::new(pick);
    let to = pick.to.map(At::Lsn);
    let replayed = match wal.replay(to, &mut teller) {
        Err(WalError::NoSuchLsn { asked, last, .. }) if asked > last => wal.replay(None, &mut teller)?,
        replayed => replayed?,
    };
    Ok(teller.conclude(title, &replayed))
}

/// Makes moments and leases out of records.
struct Teller<'p> {
    pick: &'p Pick,
    lanes: Vec<Lane>,
    workers: BTreeMap<String, usize>,
    /// With their absolute moment.
    moments: VecDeque<(Timestamp, Moment)>,
    /// How many moments were dropped from the front.
    dropped: usize,
    /// How many were not taken because there were enough.
    refused: u64,
    /// Moments in `from` and `to` are counted from the first that was ever taken.
    leases: Vec<Lease>,
    running: BTreeMap<MessageRef, usize>,
    /// When each lease ends.
    until: Vec<Timestamp>,
    boots: u64,
    /// Where the message of the newest moment stood before it.
    stood: Option<String>,
}

impl<'p> Teller<'p> {
    fn new(pick: &'p Pick) -> Self {
        let lane = |kind, name: &str| Lane { kind, name: name.to_owned() };
        Self {
            pick,
            lanes: vec![lane(LaneKind::Producers, "producers"), lane(LaneKind::Broker, "broker")],
            workers: BTreeMap::new(),
            moments: VecDeque::new(),
            dropped: 0,
            refused: 0,
            leases: Vec::new(),
            running: BTreeMap::new(),
            until: Vec::new(),
            boots: 0,
            stood: None,
        }
    }

    fn worker(&mut self, owner: &str) -> usize {
        let name = match self.workers.contains_key(owner) || self.workers.len() < WORKERS_MAX {
            true => owner,
            false => OTHER_WORKERS,
        };
        if let Some(lane) = self.workers.get(name) {
            return *lane;
        }
        let lane = self.lanes.len();
        self.lanes.push(Lane { kind: LaneKind::Worker, name: name.to_owned() });
        self.workers.insert(name.to_owned(), lane);
        lane
    }

    /// Who holds a message, or held it last.
    fn holder(&mut self, state: &State, message_ref: &MessageRef) -> usize {
        match entry(state, message_ref).map(|entry| entry.owner.as_str().to_owned()) {
            Some(owner) => self.worker(&owner),
            None => BROKER,
        }
    }

    fn is_picked(&self, event: &Event, topics: &[String], messages: &[String]) -> bool {
        if matches!(event, Event::Booted { .. }) {
            return true;
        }
        if let Some(wanted) = &self.pick.message {
            return messages.contains(&wanted.to_string());
        }
        self.pick.topic.as_ref().is_none_or(|wanted| topics.iter().any(|topic| topic == wanted.as_str()))
    }

    fn lane(&mut self, state: &State, event: &Event) -> usize {
        match event {
            Event::Delivered { owner, .. } => self.worker(owner.as_str()),
            Event::EffectBegun(begun) => self.worker(begun.owner.as_str()),
            Event::EffectFinished { identity, .. } | Event::EffectRenewed { identity, .. } => {
                let owner = state.store().get(identity).and_then(|effect| effect.owner.clone());
                owner.map_or(BROKER, |owner| self.worker(owner.as_str()))
            }
            Event::Acked { message_ref, .. }
            | Event::Nacked { message_ref, .. }
            | Event::ReasonNoted { message_ref, .. }
            | Event::Extended { message_ref, .. }
            | Event::Released { message_ref } => self.holder(state, message_ref),
            Event::Completed(step) => self.holder(state, &step.message_ref),
            Event::TopicCreated { .. }
            | Event::TopicDeleted { .. }
            | Event::GroupCreated { .. }
            | Event::GroupDeleted { .. }
            | Event::GroupPaused { .. }
            | Event::GroupResumed { .. }
            | Event::GroupSought { .. }
            | Event::Produced { .. }
            | Event::Redriven { .. }
            | Event::EffectForgotten { .. } => PRODUCERS,
            _ => BROKER,
        }
    }

    /// Puts a moment behind the others, if there is room or room is made, and says its number among all that were taken.
    fn push(&mut self, at: Timestamp, moment: Moment) -> Option<usize> {
        if self.moments.len() == MOMENTS_MAX {
            if self.pick.from.is_some() {
                self.refused += 1;
                return None;
            }
            self.moments.pop_front();
            self.dropped += 1;
            // Leases that began in what was dropped are of no use to anybody.
            if self.dropped.is_multiple_of(MOMENTS_MAX) {
                self.forget_leases();
            }
        }
        self.moments.push_back((at, moment));
        Some(self.dropped + self.moments.len() - 1)
    }

    fn forget_leases(&mut self) {
        let dropped = self.dropped;
        let mut places = vec![None; self.leases.len()];
        let mut kept = 0;
        for (index, lease) in self.leases.iter().enumerate() {
            if lease.from >= dropped {
                places[index] = Some(kept);
                kept += 1;
            }
        }
        self.running.retain(|_, index| places[*index].map(|message_ref| *index = message_ref).is_some());
        let mut nth = places.iter();
        self.until.retain(|_| nth.next().is_some_and(Option::is_some));
        self.leases.retain(|lease| lease.from >= dropped);
    }

    fn end(&mut self, message_ref: &MessageRef, number: usize, end: LeaseEnd) {
        if let Some(lease) = self.running.remove(message_ref).and_then(|index| self.leases.get_mut(index)) {
            (lease.to, lease.end) = (Some(number), end);
        }
    }

    fn end_all(&mut self, number: usize, topic: TopicId, group: Option<GroupId>) {
        let is_its = |message_ref: &&MessageRef| {
            message_ref.topic == topic && group.is_none_or(|group| message_ref.group == group)
        };
        for message_ref in self.running.keys().filter(is_its).copied().collect::<Vec<_>>() {
            self.end(&message_ref, number, LeaseEnd::Taken);
        }
    }

    fn leases(&mut self, state: &State, number: usize, lane: usize, event: &Event) {
        match event {
            Event::Delivered { message_ref, token, until, .. } => {
                self.running.insert(*message_ref, self.leases.len());
                self.until.push(*until);
                self.leases.push(Lease {
                    track: lane,
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
                if let Some(end) = self.running.get(message_ref).and_then(|index| self.until.get_mut(*index)) {
                    *end = *until;
                }
            }
            Event::Acked { message_ref, .. } => self.end(message_ref, number, LeaseEnd::Acked),
            Event::Completed(step) => self.end(&step.message_ref, number, LeaseEnd::Acked),
            Event::Nacked { message_ref, .. } => self.end(message_ref, number, LeaseEnd::Nacked),
            Event::Expired { message_ref, .. } => self.end(message_ref, number, LeaseEnd::Expired),
            Event::Released { message_ref } => self.end(message_ref, number, LeaseEnd::Released),
            Event::DeadLettered { message_ref, .. } => self.end(message_ref, number, LeaseEnd::Dead),
            Event::GroupSought { topic, group, .. } | Event::GroupDeleted { topic, group } => {
                self.end_all(number, *topic, Some(*group));
            }
            Event::TopicDeleted { topic } => self.end_all(number, *topic, None),
            Event::Redriven { dead_topic, dead_partition, dead_position, .. } => {
                let (topic, partition, position) = (*dead_topic, *dead_partition, *dead_position);
                let is_it = |message_ref: &&MessageRef| {
                    (message_ref.topic, message_ref.partition, message_ref.position) == (topic, partition, position)
                };
                for message_ref in self.running.keys().filter(is_it).copied().collect::<Vec<_>>() {
                    self.end(&message_ref, number, LeaseEnd::Taken);
                }
            }
            _ => {}
        }
    }

    fn conclude(self, title: &str, replayed: &Replayed) -> Story {
        let Self { lanes, moments, dropped, refused, mut leases, until, boots, .. } = self;
        let begun = moments.front().map_or(Timestamp(0), |(at, _)| *at);
        for (lease, until) in leases.iter_mut().zip(until) {
            lease.until_ms = until.since(begun).0;
        }
        leases.retain(|lease| lease.from >= dropped);
        for lease in &mut leases {
            lease.from -= dropped;
            lease.to = lease.to.map(|to| to - dropped);
        }
        let fact = |name: &str, value: String| (name.to_owned(), value);
        let mut facts = vec![
            fact("log", replayed.recovered.log_id.to_string()),
            fact("told from LSN", replayed.base.to_string()),
            fact("last LSN", replayed.recovered.last_lsn.to_string()),
            fact("begins", moment(begun)),
            fact("starts of the broker", boots.to_string()),
            fact("digest", format!("{:016x} after LSN {}", replayed.state.digest(), replayed.through())),
        ];
        let left_out = dropped as u64 + refused;
        if left_out > 0 {
            facts.push(fact("moments left out", grouped(left_out)));
        }
        let moments: Vec<_> =
            moments.into_iter().map(|(at, moment)| Moment { at_ms: at.since(begun).0, ..moment }).collect();
        Story {
            title: title.to_owned(),
            about: "What a broker wrote into its log, record by record: what it accepted, handed out and was told."
                .to_owned(),
            facts,
            tracks: lanes,
            unit: Unit::Record,
            steps: moments,
            leases,
            violation: None,
            explained: None,
        }
    }
}

impl Watch for Teller<'_> {
    fn reset(&mut self) {
        *self = Self::new(self.pick);
    }

    fn before(&mut self, state: &State, logged: &Logged) {
        let (lsn, record) = (logged.lsn, &logged.record);
        if self.pick.from.is_some_and(|from| lsn < from) {
            return;
        }
        let event = &record.event;
        let About { topics, groups, messages } = About::of(state, event);
        if !self.is_picked(event, &topics, &messages) {
            return;
        }
        self.boots += u64::from(matches!(event, Event::Booted { .. }));
        let lane = self.lane(state, event);
        let detail = sentence(state, record);
        let also = match message_ref(event) {
            Some(message_ref) if lane == BROKER => {
                let holder = self.holder(state, message_ref);
                if holder == BROKER { Vec::new() } else { vec![holder] }
            }
            Some(_) => vec![BROKER],
            None => Vec::new(),
        };
        let label = match messages.first() {
            Some(name) => format!("{} {name}", kind(event)),
            None => kind(event).to_owned(),
        };
        let told = Moment {
            number: lsn,
            at_ms: 0,
            track: lane,
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
        if let Some(number) = self.push(record.at, told) {
            self.leases(state, number, lane, event);
            self.stood = message_ref(event).map(|message_ref| Spot::stands_at(state, message_ref));
        }
    }

    fn after(&mut self, state: &State, logged: &Logged) {
        let Some((stood, message_ref)) = self.stood.take().zip(message_ref(&logged.record.event)) else { return };
        let stands = Spot::stands_at(state, message_ref);
        let Some((_, moment)) = self.moments.back_mut() else { return };
        let (message, group) = (&moment.messages[0], &moment.groups[0]);
        moment.diff.push(format!("{message} for group {group}: {stood} → {stands}"));
    }
}

/// Whom and what a record is about, by name.
#[derive(Default)]
struct About {
    topics: Vec<String>,
    groups: Vec<String>,
    messages: Vec<String>,
}

impl About {
    fn of(state: &State, event: &Event) -> Self {
        let mut about = Self::default();
        if let Some(message_ref) = message_ref(event) {
            about.topics.push(topic(state, message_ref.topic));
            about.groups.push(group(state, message_ref.topic, message_ref.group));
            about.messages.push(message(state, message_ref));
        }
        match event {
            Event::TopicCreated { name, .. } => about.topics.push(name.as_str().to_owned()),
            Event::GroupCreated { topic: id, name, .. } => {
                about.topics.push(topic(state, *id));
                about.groups.push(name.as_str().to_owned());
            }
            Event::TopicDeleted { topic: id } | Event::RetainedOut { topic: id, .. } => {
                about.topics.push(topic(state, *id));
            }
            Event::GroupDeleted { topic: id, group: of }
            | Event::GroupPaused { topic: id, group: of }
            | Event::GroupResumed { topic: id, group: of }
            | Event::GroupSought { topic: id, group: of, .. } => {
                about.topics.push(topic(state, *id));
                about.groups.push(group(state, *id, *of));
            }
            Event::Produced { topic: id, offset, .. } => about.stored(&topic(state, *id), offset.0),
            Event::Completed(step) => {
                for output in &step.outputs {
                    if let Some(stored) = &output.stored {
                        about.stored(&topic(state, stored.topic), output.offset.0);
                    }
                }
            }
            Event::DeadLettered { message_ref, dead_offset, .. } => {
                let dead = state.topic(message_ref.topic).and_then(|topic| topic.dead_letter_name());
                if let Some(dead) = dead {
                    about.stored(dead.as_str(), dead_offset.0);
                }
            }
            Event::Redriven { dead_topic, dead_partition, dead_position, topic: id, group: of, offset, .. } => {
                about.stored(&topic(state, *id), offset.0);
                about.groups.push(group(state, *id, *of));
                let dead = state.topic(*dead_topic).and_then(|dead| dead.partition(*dead_partition));
                if let Some(dead) = dead.and_then(|dead| dead.message(*dead_position)) {
                    about.stored(&topic(state, *dead_topic), dead.offset.0);
                }
            }
            _ => {}
        }
        about
    }

    fn stored(&mut self, topic: &str, offset: u64) {
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
        Event::Acked { .. } | Event::Completed(_) | Event::Skipped { .. } => Glyph::Ack,
        Event::Nacked { .. } => Glyph::Nack,
        Event::DeadLettered { .. } => Glyph::Dead,
        Event::EffectBegun(_) | Event::EffectFinished { .. } | Event::EffectRenewed { .. } => Glyph::Effect,
        Event::Expired { .. }
        | Event::RetainedOut { .. }
        | Event::IdentitiesExpired { .. }
        | Event::EffectsExpired { .. }
        | Event::CompletionsExpired { .. } => Glyph::Time,
        Event::TopicCreated { .. }
        | Event::TopicDeleted { .. }
        | Event::GroupCreated { .. }
        | Event::GroupDeleted { .. }
        | Event::GroupPaused { .. }
        | Event::GroupResumed { .. }
        | Event::GroupSought { .. }
        | Event::Extended { .. }
        | Event::Released { .. }
        | Event::ReasonNoted { .. }
        | Event::EffectForgotten { .. } => Glyph::Call,
        Event::Restored(_) => Glyph::Other,
    }
}
