//! Follows one message through a log.

use driftq_core::Body;
use driftq_core::idempotency::{Identity, Realm, Scope};
use driftq_core::record::{Completed, DedupeWindow, Event, Image, MessageRef, Record};
use driftq_core::state::State;
use driftq_core::state::group::Group;
use driftq_core::state::topic::Topic;
use driftq_core::types::{GroupId, GroupName, Offset, PartitionId, Position, Timestamp, TopicId};

use super::{EVENTS_MAX, Life, LifeDelivery, LifeEvent};
use crate::format::names::{self, moment, quoted};
use crate::format::sentence::{kind, message_ref, of_body, of_message};
use crate::location::Spot;
use crate::replay::{Logged, Replayed, Watch};
use crate::{MessageName, WalError};

/// What is known of a message while its log passes by.
pub(super) struct Follower<'a> {
    wanted: &'a MessageName,
    only: Option<&'a GroupName>,
    /// Where it is, once it is known; a topic that was made anew has another message of the same name.
    spot: Option<Spot>,
    /// Tenant and key, where it has an identity.
    identity: Option<(String, String)>,
    is_kept: bool,
    /// Whether a topic of that name was ever there, and the offset its next message got when it was last looked at.
    topic: Option<Offset>,
    events: Vec<LifeEvent>,
    left_out: u64,
    deliveries: Vec<LifeDelivery>,
    /// The newest delivery of each group, as an index.
    newest: Vec<(GroupId, usize)>,
    /// What the snapshot knows of completed steps, until its LSN is known.
    pieces: Vec<String>,
    /// The effects of its identity that were there before a record that lets effects go.
    effects: Vec<GroupName>,
}

/// When something happened, by which record.
#[derive(Clone, Copy)]
struct When {
    lsn: u64,
    at: Timestamp,
}

impl<'a> Follower<'a> {
    pub(super) fn new(wanted: &'a MessageName, only: Option<&'a GroupName>) -> Self {
        Self {
            wanted,
            only,
            spot: None,
            identity: None,
            is_kept: false,
            topic: None,
            events: Vec::new(),
            left_out: 0,
            deliveries: Vec::new(),
            newest: Vec::new(),
            pieces: Vec::new(),
            effects: Vec::new(),
        }
    }

    fn is_asked_for(&self, group: Option<&str>) -> bool {
        group.zip(self.only).is_none_or(|(group, only)| group == only.as_str())
    }

    fn tell(&mut self, when: When, group: Option<&str>, kind: &'static str, text: String) {
        if !self.is_asked_for(group) {
            return;
        }
        if self.events.len() == EVENTS_MAX {
            self.left_out += 1;
            return;
        }
        let group = group.map(ToOwned::to_owned);
        self.events.push(LifeEvent { lsn: when.lsn, at_ms: when.at.0, group, kind, text });
    }

    /// The message has come to be, next in its partition or `behind` so many that the same record stores before it.
    fn born(&mut self, state: &State, topic: TopicId, partition: PartitionId, behind: u64, body: Option<&Body>) {
        let next = state.topic(topic).and_then(|topic| topic.partition(partition));
        let position = Position(next.map_or(0, |next| next.next_position().0) + behind);
        self.spot = Some(Spot { topic, partition, position });
        self.identity = body.and_then(|body| body.identity()).map(|(tenant, key)| (tenant.to_owned(), key.to_owned()));
        self.is_kept = true;
        self.newest.clear();
    }

    fn is_wanted(&self, state: &State, topic: TopicId, offset: Offset) -> bool {
        let is_its = |topic: &Topic| topic.name() == &self.wanted.topic;
        offset == self.wanted.offset && state.topic(topic).is_some_and(is_its)
    }

    fn is_at(&self, topic: TopicId, partition: PartitionId, position: Position) -> bool {
        self.spot == Some(Spot { topic, partition, position })
    }

    fn is_place(&self, message_ref: &MessageRef) -> bool {
        self.is_at(message_ref.topic, message_ref.partition, message_ref.position)
    }

    /// The newest delivery to a group has ended.
    fn ended(&mut self, group: GroupId, when: When, outcome: String) {
        let Some((_, index)) = self.newest.iter().find(|(of, _)| *of == group) else { return };
        let Some(delivery) = self.deliveries.get_mut(*index) else { return };
        delivery.outcome = Some(match &delivery.outcome {
            // A worker may still speak after its lease has ended, until somebody else is given the message.
            Some(before) => format!("{before}, then {outcome}"),
            None => outcome,
        });
        (delivery.ended_lsn, delivery.ended_ms) = (Some(when.lsn), Some(when.at.0));
    }

    fn delivered(&mut self, group: (GroupId, &str), delivery: LifeDelivery) {
        let (id, name) = group;
        self.newest.retain(|(of, _)| *of != id);
        if !self.is_asked_for(Some(name)) || self.deliveries.len() == EVENTS_MAX {
            return;
        }
        self.newest.push((id, self.deliveries.len()));
        self.deliveries.push(delivery);
    }

    /// A record about this very message as one group sees it.
    fn of_place(&mut self, state: &State, when: When, record: &Record, message_ref: &MessageRef) {
        let group = names::group(state, message_ref.topic, message_ref.group);
        let text = of_message(state, record);
        self.tell(when, Some(&group), kind(&record.event), text);
        let quoted = |reason: &str| quoted(reason.as_bytes());
        match &record.event {
            Event::Delivered { token, owner, until, .. } => {
                let attempts = names::entry(state, message_ref).map_or(0, |entry| entry.attempts);
                let delivery = LifeDelivery {
                    lsn: when.lsn,
                    at_ms: Some(when.at.0),
                    group: group.clone(),
                    attempt: attempts.saturating_add(1),
                    owner: owner.as_str().to_owned(),
                    token: token.to_string(),
                    until_ms: until.0,
                    outcome: None,
                    ended_lsn: None,
                    ended_ms: None,
                };
                self.delivered((message_ref.group, &group), delivery);
            }
            Event::Acked { .. } => self.ended(message_ref.group, when, "acked".to_owned()),
            Event::Completed(_) => self.ended(message_ref.group, when, "completed".to_owned()),
            Event::Nacked { reason, .. } => {
                let reason = reason.as_ref().map_or_else(String::new, |reason| format!(": {}", quoted(reason)));
                self.ended(message_ref.group, when, format!("nacked{reason}"));
            }
            Event::Expired { .. } => self.ended(message_ref.group, when, "lease ended".to_owned()),
            Event::Released { .. } => self.ended(message_ref.group, when, "given back".to_owned()),
            Event::DeadLettered { reason, .. } => {
                // Mostly the delivery before has failed already, and this is what came of it.
                self.ended(message_ref.group, when, format!("dead ({})", reason.as_str()));
            }
            Event::Extended { until, .. } => {
                let index = self.newest.iter().find(|(of, _)| *of == message_ref.group).map(|(_, index)| *index);
                if let Some(delivery) = index.and_then(|index| self.deliveries.get_mut(index)) {
                    delivery.until_ms = until.0;
                }
            }
            _ => {}
        }
    }

    /// A message of this name may have come to be.
    fn births(&mut self, state: &State, when: When, event: &Event) {
        match event {
            Event::Produced { topic, partition, offset, body, dedupe } if self.is_wanted(state, *topic, *offset) => {
                self.born(state, *topic, *partition, 0, Some(body));
                self.tell_birth(when, "produced", "produced", (body, dedupe.as_ref()));
            }
            Event::Completed(step) => self.born_of_step(state, when, step),
            Event::DeadLettered { message_ref, dead_topic, dead_partition, dead_offset, .. } => {
                let source = state.topic(message_ref.topic).and_then(Topic::dead_letter_name);
                if *dead_offset != self.wanted.offset || source != Some(&self.wanted.topic) {
                    return;
                }
                let body = state.topic(message_ref.topic).and_then(|topic| {
                    Some(topic.partition(message_ref.partition)?.message(message_ref.position)?.body.clone())
                });
                self.born(state, *dead_topic, *dead_partition, 0, body.as_ref());
                let group = names::group(state, message_ref.topic, message_ref.group);
                let from = names::message(state, message_ref);
                self.tell(
                    when,
                    None,
                    "dead-lettered",
                    format!("made as the dead letter of {from}, which group {group} failed"),
                );
            }
            Event::Redriven { dead_topic, topic, group, partition, offset, .. }
                if self.is_wanted(state, *topic, *offset) =>
            {
                self.born(state, *topic, *partition, 0, None);
                let (dead, group) = (names::topic(state, *dead_topic), names::group(state, *topic, *group));
                self.tell(when, None, "redriven", format!("made of a dead letter in {dead}, for group {group} alone"));
            }
            _ => {}
        }
    }

    fn tell_birth(
        &mut self,
        when: When,
        kind: &'static str,
        how: &str,
        (body, dedupe): (&Body, Option<&DedupeWindow>),
    ) {
        let Some(spot) = self.spot else { return };
        let body = of_body(body, self.wanted.topic.as_str(), dedupe);
        let (partition, position) = (spot.partition, spot.position);
        self.tell(when, None, kind, format!("{how} into partition {partition}, position {position}: {body}"));
    }

    fn born_of_step(&mut self, state: &State, when: When, step: &Completed) {
        for (nth, output) in step.outputs.iter().enumerate() {
            let Some(stored) = &output.stored else { continue };
            if !self.is_wanted(state, stored.topic, output.offset) {
                continue;
            }
            let place_of = |output: &driftq_core::record::Produced| {
                output.stored.as_ref().map(|stored| (stored.topic, output.partition))
            };
            let behind = step.outputs[..nth].iter().filter(|before| place_of(before) == place_of(output)).count();
            self.born(state, stored.topic, output.partition, behind as u64, Some(&stored.body));
            let group = names::group(state, step.message_ref.topic, step.message_ref.group);
            let how =
                format!("produced by group {group}, which completed {},", names::message(state, &step.message_ref));
            self.tell_birth(when, "produced", &how, (&stored.body, stored.dedupe.as_ref()));
        }
    }

    /// A record about the topic, a group or the broker, while the message is there.
    fn around(&mut self, state: &State, when: When, event: &Event) {
        let Some(spot) = self.spot.filter(|_| self.is_kept) else { return };
        let word = kind(event);
        match event {
            Event::Booted { boot } => {
                self.tell(when, None, word, format!("the broker started again, boot {boot}; leases run on"));
            }
            Event::TopicDeleted { topic } if *topic == spot.topic => {
                self.tell(when, None, word, "its topic was deleted, and it with it".to_owned());
                for (group, _) in self.newest.clone() {
                    self.taken(group, when, "topic deleted");
                }
                self.is_kept = false;
            }
            Event::GroupDeleted { topic, group } if *topic == spot.topic => {
                let name = names::group(state, *topic, *group);
                let stood = self.stood(state, *group);
                self.tell(when, Some(&name), word, format!("the group was deleted; the message was {stood}"));
                self.taken(*group, when, "group deleted");
                self.newest.retain(|(of, _)| of != group);
            }
            Event::Redriven { dead_topic, dead_partition, dead_position, topic, group, offset, .. }
                if self.is_at(*dead_topic, *dead_partition, *dead_position) =>
            {
                let (name, group) = (names::topic(state, *topic), names::group(state, *topic, *group));
                self.tell(when, None, word, format!("redriven: it is {name}/{offset} now, for group {group} alone"));
                for (group, _) in self.newest.clone() {
                    self.taken(group, when, "redriven");
                }
            }
            Event::GroupPaused { topic, group } | Event::GroupResumed { topic, group } if *topic == spot.topic => {
                let is_undone = state.topic(*topic).and_then(|topic| topic.group(*group));
                if is_undone.is_some_and(|group| !spot.is_done(group)) {
                    let name = names::group(state, *topic, *group);
                    self.tell(when, Some(&name), word, word.to_owned());
                }
            }
            _ => {}
        }
    }

    fn stood(&self, state: &State, group: GroupId) -> String {
        let found = self.spot.and_then(|spot| Some((spot, state.topic(spot.topic)?.group(group)?)));
        found.map_or_else(|| "unknown".to_owned(), |(spot, group)| spot.stands(state, group))
    }

    /// A delivery that was running was ended by something else than its worker or its time.
    fn taken(&mut self, group: GroupId, when: When, by: &str) {
        let newest = self.newest.iter().find(|(of, _)| *of == group).and_then(|(_, index)| self.deliveries.get(*index));
        if newest.is_some_and(|delivery| delivery.outcome.is_none()) {
            self.ended(group, when, format!("undone: {by}"));
        }
    }

    /// A record about an effect of the message's identity.
    fn of_effect(&mut self, when: When, event: &Event) {
        let (identity, text) = match event {
            Event::EffectBegun(begun) => {
                let (owner, until, token) = (&begun.owner, moment(begun.until), begun.token);
                let for_it = begun.message.map(|(partition, position)| {
                    self.spot.is_some_and(|spot| (spot.partition, spot.position) == (partition, position))
                });
                let whose = match for_it {
                    Some(true) => "",
                    Some(false) => ", for another message of the identity",
                    None => ", by its identity",
                };
                (&begun.identity, format!("effect granted to {owner} until {until}, token {token}{whose}"))
            }
            Event::EffectFinished { identity, outcome } => {
                let result = outcome
                    .result
                    .as_ref()
                    .map_or_else(String::new, |result| format!(", result {}", quoted(result.as_bytes())));
                let error = match &*outcome.last_error {
                    "" => String::new(),
                    error => format!(", error {}", quoted(error.as_bytes())),
                };
                (identity, format!("effect ended: {}{result}{error}", outcome.status.as_str()))
            }
            Event::EffectRenewed { identity, until } => (identity, format!("effect may take until {}", moment(*until))),
            Event::EffectForgotten { identity } => (identity, "effect forgotten, as somebody asked".to_owned()),
            _ => return,
        };
        if let Some(group) = self.group_of(identity) {
            self.tell(when, Some(&group), kind(event), text);
        }
    }

    /// The group whose effect on this message an identity is.
    fn group_of(&self, identity: &Identity) -> Option<String> {
        let Scope::Consume { topic, group } = &identity.scope else { return None };
        let (tenant, key) = self.identity.as_ref()?;
        let is_its = topic == &self.wanted.topic && identity.tenant() == tenant && identity.key() == key;
        is_its.then(|| group.as_str().to_owned())
    }

    /// The groups that remember an effect of this message's identity.
    fn remembering(&self, state: &State, realm: &Realm) -> Vec<GroupName> {
        let Realm::Group(topic, group) = realm else { return Vec::new() };
        let Some((tenant, key)) = self.identity.as_ref().filter(|_| topic == &self.wanted.topic) else {
            return Vec::new();
        };
        let found = state.store().consumed(topic, group, (tenant, key));
        found.map(|_| group.clone()).into_iter().collect()
    }

    /// What a seek did to the message, told when it is done.
    fn sought(&mut self, state: &State, when: When, (topic, group): (TopicId, GroupId)) {
        let Some(spot) = self.spot.filter(|spot| spot.topic == topic && self.is_kept) else { return };
        let Some(found) = state.topic(topic).and_then(|topic| topic.group(group)) else { return };
        let name = found.name().as_str().to_owned();
        self.taken(group, when, "sought");
        self.newest.retain(|(of, _)| *of != group);
        let text = match spot.is_done(found) {
            true => "a seek passed it by: it is done",
            false => "a seek has it delivered anew, with no attempt counted",
        };
        self.tell(when, Some(&name), "group sought", text.to_owned());
    }

    /// The message may have gone with this record.
    fn gone(&mut self, state: &State, when: When, event: &Event) {
        let Some(spot) = self.spot.filter(|spot| self.is_kept && !spot.is_kept(state)) else { return };
        let is_its = message_ref(event).is_some_and(|message_ref| self.is_place(message_ref));
        let why = match event {
            Event::RetainedOut { .. } => "retained out: it was done, and kept for long enough",
            Event::Redriven { .. } => "taken out of the dead letters",
            Event::GroupDeleted { .. } => "trimmed: no group is left that is not done with it",
            _ if is_its => "trimmed: every group is done with it",
            _ if state.topic(spot.topic).is_some_and(|topic| topic.retention().bytes.is_some()) => {
                "retained out: newer done messages have taken its room"
            }
            _ => "trimmed: every group is done with it",
        };
        self.is_kept = false;
        self.tell(when, None, "gone", why.to_owned());
    }

    fn in_snapshot(&mut self, state: &State, when: When, topic: &Topic) {
        let offset = self.wanted.offset;
        let found = topic.partitions().find_map(|(id, partition)| Some((id, partition.find(offset)?)));
        let Some((partition, (position, message))) = found else {
            if offset < topic.next_offset() {
                let text = "gone before this snapshot: it was done in every group, and trimmed or retained out; the log tells no more";
                self.tell(when, None, "snapshot", text.to_owned());
            }
            return;
        };
        let spot = Spot { topic: topic.id(), partition, position };
        self.spot = Some(spot);
        self.is_kept = true;
        self.identity = message.body.identity().map(|(tenant, key)| (tenant.to_owned(), key.to_owned()));
        let (produced, body) = (moment(message.produced_at), of_body(&message.body, topic.name().as_str(), None));
        let text = format!(
            "known from a snapshot alone: produced at {produced} into partition {partition}, position {position}: {body}"
        );
        self.tell(when, None, "snapshot", text);
        for group in topic.groups() {
            self.group_in_snapshot(state, when, spot, topic, group);
        }
    }

    fn group_in_snapshot(&mut self, state: &State, when: When, spot: Spot, topic: &Topic, group: &Group) {
        let name = group.name().as_str();
        self.tell(when, Some(name), "snapshot", format!("by the snapshot, {}", spot.stands(state, group)));
        let entry = group.progress(spot.partition).and_then(|progress| progress.entry(spot.position));
        if let Some((entry, until)) = entry.and_then(|entry| Some((entry, entry.leased_until()?))) {
            let delivery = LifeDelivery {
                lsn: when.lsn,
                at_ms: None,
                group: name.to_owned(),
                attempt: entry.attempts,
                owner: entry.owner.as_str().to_owned(),
                token: entry.token.to_string(),
                until_ms: until.0,
                outcome: None,
                ended_lsn: None,
                ended_ms: None,
            };
            self.delivered((group.id(), name), delivery);
        }
        let identity = self.identity.as_ref().map(|(tenant, key)| (tenant.as_str(), key.as_str()));
        let effect = identity.and_then(|identity| state.store().consumed(topic.name(), group.name(), identity));
        if let Some(effect) = effect {
            let (status, attempt) = (effect.status.as_str(), effect.attempt);
            let text = format!("by the snapshot, the effect of its identity is {status}, granted {attempt} times");
            self.tell(when, Some(name), "snapshot", text);
        }
    }

    /// What there is to tell when all of the log has passed by.
    pub(super) fn conclude(self, replayed: &Replayed) -> Result<Life, WalError> {
        let state = &replayed.state;
        let name = self.wanted.topic.as_str();
        let Some(next) = state.topic_named(&self.wanted.topic).map(Topic::next_offset).or(self.topic) else {
            let known = state.topics().map(|topic| topic.name().as_str().to_owned()).collect();
            return Err(WalError::NoSuchTopic { name: name.to_owned(), known });
        };
        if self.events.is_empty() && self.spot.is_none() {
            return Err(WalError::NoSuchMessage { name: self.wanted.clone(), next: next.0 });
        }
        let spot = self.spot.filter(|_| self.is_kept);
        let topic = spot.and_then(|spot| Some((spot, state.topic(spot.topic)?)));
        let stands = match topic {
            None => vec!["in the end it is gone".to_owned()],
            Some((_, topic)) if topic.group_count() == 0 => {
                vec!["in the end it is kept, and there is no group to have it".to_owned()]
            }
            Some((spot, topic)) => {
                let groups = topic.groups().filter(|group| self.is_asked_for(Some(group.name().as_str())));
                groups
                    .map(|group| format!("in the end, for group {}: {}", group.name(), spot.stands(state, group)))
                    .collect()
            }
        };
        let stands = match self.only.filter(|_| stands.is_empty()) {
            Some(group) => vec![format!("in the end there is no group {group}")],
            None => stands,
        };
        let through = replayed.through();
        let Self { wanted, events, left_out, deliveries, .. } = self;
        Ok(Life { message: wanted.to_string(), base: replayed.base, through, events, left_out, deliveries, stands })
    }
}

impl Watch for Follower<'_> {
    fn reset(&mut self) {
        *self = Self::new(self.wanted, self.only);
    }

    fn piece(&mut self, state: &State, image: &Image) {
        let Image::Completion { token, completion } = image else { return };
        let of = names::topic(state, completion.message_ref.topic);
        let is_wanted = of == self.wanted.topic.as_str() && completion.offset == self.wanted.offset;
        let made: Vec<_> = completion.produced.iter().map(|made| format!("{}/{}", made.topic, made.offset)).collect();
        if is_wanted {
            let made = if made.is_empty() { "nothing".to_owned() } else { made.join(", ") };
            self.pieces.push(format!("by the snapshot, completed under token {token}; it made {made}"));
        } else if made.contains(&self.wanted.to_string()) {
            let offset = completion.offset;
            self.pieces.push(format!("by the snapshot, made when {of}/{offset} was completed"));
        }
    }

    fn base(&mut self, state: &State, lsn: u64) {
        let when = When { lsn, at: state.clock() };
        let Some(topic) = state.topic_named(&self.wanted.topic) else { return };
        self.topic = Some(topic.next_offset());
        self.in_snapshot(state, when, topic);
        for text in std::mem::take(&mut self.pieces) {
            self.tell(when, None, "snapshot", text);
        }
    }

    fn before(&mut self, state: &State, logged: &Logged) {
        let Logged { lsn, record, .. } = logged;
        let when = When { lsn: *lsn, at: record.at };
        let event = &record.event;
        if let Some(message_ref) = message_ref(event).filter(|message_ref| self.is_place(message_ref)) {
            self.of_place(state, when, record, message_ref);
        }
        if let Event::TopicDeleted { topic } = event {
            let found = state.topic(*topic).filter(|topic| topic.name() == &self.wanted.topic);
            self.topic = found.map(Topic::next_offset).or(self.topic);
        }
        self.around(state, when, event);
        self.of_effect(when, event);
        self.effects.clear();
        if let Event::EffectsExpired { realm, .. } = event {
            self.effects = self.remembering(state, realm);
        }
        self.births(state, when, event);
    }

    fn after(&mut self, state: &State, logged: &Logged) {
        let Logged { lsn, record, .. } = logged;
        let when = When { lsn: *lsn, at: record.at };
        match &record.event {
            Event::GroupSought { topic, group, .. } => self.sought(state, when, (*topic, *group)),
            Event::GroupCreated { topic, name, .. } => {
                let spot = self.spot.filter(|spot| spot.topic == *topic && self.is_kept);
                let group = state.topic(*topic).and_then(|topic| topic.group_named(name));
                if let Some((spot, group)) = spot.zip(group) {
                    let text = format!("the group was created; for it the message is {}", spot.stands(state, group));
                    self.tell(when, Some(name.as_str()), "group created", text);
                }
            }
            Event::EffectsExpired { realm, .. } if !self.effects.is_empty() => {
                let still = self.remembering(state, realm);
                for group in std::mem::take(&mut self.effects) {
                    if !still.contains(&group) {
                        let text = "the effect of its identity is forgotten: its window has ended".to_owned();
                        self.tell(when, Some(group.as_str()), "effects expired", text);
                    }
                }
            }
            // Only now its body is known.
            Event::Redriven { .. } if self.is_kept && self.identity.is_none() => {
                let found = self
                    .spot
                    .and_then(|spot| state.topic(spot.topic)?.partition(spot.partition)?.message(spot.position));
                let identity = found.and_then(|message| message.body.identity());
                self.identity = identity.map(|(tenant, key)| (tenant.to_owned(), key.to_owned()));
            }
            _ => {}
        }
        self.gone(state, when, &record.event);
        if self.topic.is_none() && matches!(record.event, Event::TopicCreated { .. } | Event::DeadLettered { .. }) {
            self.topic = state.topic_named(&self.wanted.topic).map(Topic::next_offset);
        }
    }
}
