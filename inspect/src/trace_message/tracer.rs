//! Traces one message through a replay.

use driftq_core::Body;
use driftq_core::record::{Completed, DedupeWindow, Event, Image, Produced, Record};
use driftq_core::state::{Group, State, Topic};
use driftq_core::types::{
    EffectNamespace, GroupId, GroupName, Identity, MessageRef, Offset, PartitionId, Position, Scope, TopicId,
};

use crate::error::InspectError;
use crate::format::{body, kind, message_ref, message_sentence, quoted, resolve, stored_message, timestamp};
use crate::location::MessageLocation;
use crate::message_name::MessageName;
use crate::replay::{LoggedRecord, ReplayObserver, Replayed};
use crate::topic_text::topic_text;
use crate::trace_message::deliveries::{Deliveries, LogTime};
use crate::trace_message::history::{MessageDelivery, MessageEvent, MessageHistory};

/// The most events that are listed; later ones are counted.
const EVENTS_MAX: usize = 10_000;

/// Collects the history of a message during a replay.
pub(super) struct Tracer<'a> {
    message: &'a MessageName,
    only_group: Option<&'a GroupName>,
    /// Where the message is stored, once known. After its topic is deleted and created again, another message has its
    /// name.
    location: Option<MessageLocation>,
    /// Tenant and idempotency key, if it has an identity.
    identity: Option<(String, String)>,
    is_stored: bool,
    /// The next offset of its topic, if there ever was such a topic, when last seen.
    topic_next_offset: Option<Offset>,
    events: Vec<MessageEvent>,
    events_omitted: u64,
    deliveries: Deliveries,
    /// Sentences about completed steps in the snapshot, kept until the LSN of the snapshot is known.
    completions: Vec<String>,
    /// The groups that had an effect of its identity before a record that expires effects.
    effect_groups: Vec<GroupName>,
}

impl<'a> Tracer<'a> {
    pub(super) fn new(message: &'a MessageName, only_group: Option<&'a GroupName>) -> Self {
        Self {
            message,
            only_group,
            location: None,
            identity: None,
            is_stored: false,
            topic_next_offset: None,
            events: Vec::new(),
            events_omitted: 0,
            deliveries: Deliveries::default(),
            completions: Vec::new(),
            effect_groups: Vec::new(),
        }
    }

    /// The history, once the whole log has been replayed.
    pub(super) fn finish(self, replayed: &Replayed) -> Result<MessageHistory, InspectError> {
        let state = &replayed.state;
        let topic = state.topic_named(&self.message.topic);
        let Some(next) = topic.map(Topic::next_offset).or(self.topic_next_offset) else {
            let known = state.topics().map(|topic| topic.name().clone()).collect();
            return Err(InspectError::NoSuchTopic { name: self.message.topic.clone(), known });
        };
        if self.events.is_empty() && self.location.is_none() {
            return Err(InspectError::NoSuchMessage { name: self.message.clone(), next: next.0 });
        }
        let final_state = self.final_state(state);
        let Self { message, events, events_omitted, deliveries, .. } = self;
        Ok(MessageHistory {
            message: format!("{}/{}", topic_text(&message.topic), message.offset),
            base: replayed.base,
            through: replayed.through(),
            events,
            events_omitted,
            deliveries: deliveries.into_list(),
            final_state,
        })
    }

    fn final_state(&self, state: &State) -> Vec<String> {
        let location = self.location.filter(|_| self.is_stored);
        let Some((location, topic)) = location.and_then(|location| Some((location, state.topic(location.topic)?)))
        else {
            return vec!["final state: removed".to_owned()];
        };
        if topic.group_count() == 0 {
            return vec!["final state: stored; its topic has no group".to_owned()];
        }
        let groups = topic.groups().filter(|group| self.is_selected(Some(group.name().as_str())));
        let sentences: Vec<_> = groups
            .map(|group| format!("final state in group {}: {}", group.name(), location.describe(state, group)))
            .collect();
        match self.only_group.filter(|_| sentences.is_empty()) {
            Some(group) => vec![format!("final state: its topic has no group {group}")],
            None => sentences,
        }
    }

    fn is_selected(&self, group: Option<&str>) -> bool {
        group.zip(self.only_group).is_none_or(|(group, only)| group == only.as_str())
    }

    fn push(&mut self, when: LogTime, group: Option<&str>, kind: &'static str, text: impl Into<String>) {
        if !self.is_selected(group) {
            return;
        }
        if self.events.len() == EVENTS_MAX {
            self.events_omitted += 1;
            return;
        }
        let (group, text) = (group.map(ToOwned::to_owned), text.into());
        self.events.push(MessageEvent { lsn: when.lsn, at_ms: when.at.0, group, kind, text });
    }

    /// The message is stored, next in its partition, after `behind` messages that the same record stores before it.
    fn store(
        &mut self,
        state: &State,
        topic: TopicId,
        partition: PartitionId,
        behind: u64,
        identity: Option<(&str, &str)>,
    ) {
        let next = state.topic(topic).and_then(|topic| topic.partition(partition));
        let position = Position(next.map_or(0, |next| next.next_position().0) + behind);
        self.location = Some(MessageLocation { topic, partition, position });
        self.identity = identity.map(owned);
        self.is_stored = true;
        self.deliveries.forget_groups();
    }

    fn is_named(&self, state: &State, topic: TopicId, offset: Offset) -> bool {
        let is_its_topic = |topic: &Topic| topic.name() == &self.message.topic;
        offset == self.message.offset && state.topic(topic).is_some_and(is_its_topic)
    }

    fn is_at(&self, topic: TopicId, partition: PartitionId, position: Position) -> bool {
        self.location == Some(MessageLocation { topic, partition, position })
    }

    fn is_referred_to(&self, message_ref: &MessageRef) -> bool {
        self.is_at(message_ref.topic, message_ref.partition, message_ref.position)
    }

    fn start_delivery(&mut self, group: GroupId, delivery: MessageDelivery) {
        match self.is_selected(Some(&delivery.group)) {
            true => self.deliveries.start(group, delivery),
            false => self.deliveries.forget_group(group),
        }
    }

    /// A record about this message in one group.
    fn message_record(&mut self, state: &State, when: LogTime, record: &Record, message_ref: &MessageRef) {
        let name = resolve::group_name(state, message_ref.topic, message_ref.group);
        self.push(when, Some(&name), kind(&record.event), message_sentence(state, record));
        let group = message_ref.group;
        match &record.event {
            Event::Delivered { token, owner, until, .. } => {
                let attempts = resolve::entry(state, message_ref).map_or(0, |entry| entry.attempts);
                let delivery = MessageDelivery {
                    lsn: when.lsn,
                    at_ms: Some(when.at.0),
                    group: name,
                    attempt: attempts.saturating_add(1),
                    owner: owner.as_str().to_owned(),
                    token: token.to_string(),
                    until_ms: until.0,
                    end: None,
                    ended_lsn: None,
                    ended_ms: None,
                };
                self.start_delivery(group, delivery);
            }
            Event::Acked { .. } => self.deliveries.end(group, when, "acked".to_owned()),
            Event::Completed(_) => self.deliveries.end(group, when, "completed".to_owned()),
            Event::Nacked { reason, .. } => {
                let reason =
                    reason.as_ref().map_or_else(String::new, |reason| format!(": {}", quoted(reason.as_bytes())));
                self.deliveries.end(group, when, format!("nacked{reason}"));
            }
            Event::Expired { .. } => self.deliveries.end(group, when, "lease expired".to_owned()),
            Event::Released { .. } => self.deliveries.end(group, when, "released".to_owned()),
            Event::Withdrawn { .. } => self.deliveries.end(group, when, "withdrawn".to_owned()),
            Event::DeadLettered { reason, .. } => {
                self.deliveries.end(group, when, format!("dead-lettered ({})", reason.as_str()));
            }
            Event::Extended { until, .. } => self.deliveries.extend(group, *until),
            _ => {}
        }
    }

    /// A record that may store a message of this name.
    fn storing_record(&mut self, state: &State, when: LogTime, event: &Event) {
        match event {
            Event::Produced { topic, partition, offset, body, dedupe, skipped }
                if self.is_named(state, *topic, *offset) =>
            {
                self.store(state, *topic, *partition, 0, body.identity());
                self.push_stored(when, "produced", (body, dedupe.as_ref()));
                self.push_skips(state, when, *topic, skipped);
            }
            Event::Completed(step) => self.step_outputs(state, when, step),
            Event::DeadLettered { message_ref, dead_topic, dead_partition, dead_offset, .. } => {
                let source = state.topic(message_ref.topic).and_then(Topic::dead_letter_name);
                if *dead_offset != self.message.offset || source != Some(&self.message.topic) {
                    return;
                }
                let message = state
                    .topic(message_ref.topic)
                    .and_then(|topic| topic.partition(message_ref.partition)?.message(message_ref.position));
                let identity = message.as_ref().and_then(|message| message.identity());
                self.store(state, *dead_topic, *dead_partition, 0, identity);
                let group = resolve::group(state, message_ref.topic, message_ref.group);
                let source = resolve::message(state, message_ref);
                self.push(
                    when,
                    None,
                    "dead-lettered",
                    format!("stored as the dead letter of {source} in group {group}"),
                );
            }
            Event::Redriven { dead_topic, topic, group, partition, offset, .. }
                if self.is_named(state, *topic, *offset) =>
            {
                self.store(state, *topic, *partition, 0, None);
                let (dead, group) = (resolve::topic(state, *dead_topic), resolve::group(state, *topic, *group));
                self.push(when, None, "redriven", format!("stored by a redrive from {dead}, for group {group} only"));
            }
            _ => {}
        }
    }

    fn step_outputs(&mut self, state: &State, when: LogTime, step: &Completed) {
        for (nth, output) in step.outputs.iter().enumerate() {
            let Some(stored) = &output.stored else { continue };
            if !self.is_named(state, stored.topic, output.offset) {
                continue;
            }
            let partition_of =
                |output: &Produced| output.stored.as_ref().map(|stored| (stored.topic, output.partition));
            let earlier = &step.outputs[..nth];
            let behind = earlier.iter().filter(|earlier| partition_of(earlier) == partition_of(output)).count();
            self.store(state, stored.topic, output.partition, behind as u64, stored.body.identity());
            let group = resolve::group(state, step.message_ref.topic, step.message_ref.group);
            let source = resolve::message(state, &step.message_ref);
            let how = format!("produced by group {group} completing {source},");
            self.push_stored(when, &how, (&stored.body, stored.dedupe.as_ref()));
            self.push_skips(state, when, stored.topic, &stored.skipped);
        }
    }

    /// The groups that skip the message, which was just stored.
    fn push_skips(&mut self, state: &State, when: LogTime, topic: TopicId, skipped: &[GroupId]) {
        for group in skipped {
            let name = resolve::group_name(state, topic, *group);
            let text = "skipped without delivery: the group has acked a message of its identity";
            self.push(when, Some(&name), "skipped", text);
        }
    }

    fn push_stored(&mut self, when: LogTime, how: &str, (stored, dedupe): (&Body, Option<&DedupeWindow>)) {
        let Some(MessageLocation { partition, position, .. }) = self.location else { return };
        let body = body(stored, &self.message.topic.to_string(), dedupe);
        let text = format!("{how} into partition {partition}, position {position}: {body}");
        self.push(when, None, "produced", text);
    }

    /// A record about the topic, a group or the broker while the message is stored.
    fn context_record(&mut self, state: &State, when: LogTime, event: &Event) {
        let Some(location) = self.location.filter(|_| self.is_stored) else { return };
        let kind = kind(event);
        match event {
            Event::Booted { boot } => {
                self.push(when, None, kind, format!("broker restarted, boot {boot}; leases continue"));
            }
            Event::TopicDeleted { topic } if *topic == location.topic => {
                self.push(when, None, kind, "removed with its topic");
                self.deliveries.cancel_all(when, "topic deleted");
                self.is_stored = false;
            }
            Event::Purged { topic, .. } if *topic == location.topic && self.is_stored => {
                self.push(when, None, kind, "removed by a purge of its topic");
                self.deliveries.cancel_all(when, "purged");
                self.is_stored = false;
            }
            Event::GroupDeleted { topic, group } if *topic == location.topic => {
                let name = resolve::group_name(state, *topic, *group);
                let found = state.topic(*topic).and_then(|topic| topic.group(*group));
                let status = found.map_or_else(|| "unknown".to_owned(), |group| location.describe(state, group));
                self.push(when, Some(&name), kind, format!("group deleted; the message was {status}"));
                self.deliveries.cancel(*group, when, "group deleted");
                self.deliveries.forget_group(*group);
            }
            Event::Redriven { dead_topic, dead_partition, dead_position, topic, group, offset, .. }
                if self.is_at(*dead_topic, *dead_partition, *dead_position) =>
            {
                let (name, group) = (resolve::topic(state, *topic), resolve::group(state, *topic, *group));
                self.push(when, None, kind, format!("redriven as {name}/{offset}, for group {group} only"));
                self.deliveries.cancel_all(when, "redriven");
            }
            Event::GroupPaused { topic, group } | Event::GroupResumed { topic, group } if *topic == location.topic => {
                let found = state.topic(*topic).and_then(|topic| topic.group(*group));
                if found.is_some_and(|group| !location.is_acked(group)) {
                    let name = resolve::group_name(state, *topic, *group);
                    self.push(when, Some(&name), kind, kind);
                }
            }
            _ => {}
        }
    }

    /// A record about an effect of the message's identity.
    fn effect_record(&mut self, when: LogTime, event: &Event) {
        let (identity, text) = match event {
            Event::EffectBegun(begun) => {
                let (owner, until, token) = (&begun.owner, timestamp(begun.until), begun.token);
                let is_for_it = begun.message.map(|message| {
                    self.location.is_some_and(|location| (location.partition, location.position) == message)
                });
                let scope = match is_for_it {
                    Some(true) => "",
                    Some(false) => ", for another message of its identity",
                    None => ", by its identity",
                };
                (&begun.identity, format!("effect granted to {owner} until {until}, token {token}{scope}"))
            }
            Event::EffectFinished { identity, outcome } => {
                let result = outcome.result.as_ref();
                let result =
                    result.map_or_else(String::new, |result| format!(", result {}", quoted(result.as_bytes())));
                let error = match &*outcome.last_error {
                    "" => String::new(),
                    error => format!(", error {}", quoted(error.as_bytes())),
                };
                (identity, format!("effect finished: {}{result}{error}", outcome.status.as_str()))
            }
            Event::EffectRenewed { identity, until } => {
                (identity, format!("effect renewed until {}", timestamp(*until)))
            }
            Event::EffectForgotten { identity } => (identity, "effect forgotten on request".to_owned()),
            _ => return,
        };
        if let Some(group) = self.effect_group(identity) {
            self.push(when, Some(&group), kind(event), text);
        }
    }

    /// The group in which `identity` is that of an effect of this message.
    fn effect_group(&self, identity: &Identity) -> Option<String> {
        let Scope::Consume { topic, group } = &identity.scope else { return None };
        let (tenant, key) = self.identity.as_ref()?;
        let is_its = topic == &self.message.topic && identity.tenant() == tenant && identity.key() == key;
        is_its.then(|| group.as_str().to_owned())
    }

    /// Adds to the event of this record how long the effect of the message's identity is remembered, which no single
    /// record holds; `state` is the state after it.
    fn add_window(&mut self, state: &State, when: LogTime, event: &Event) {
        let group = match event {
            Event::Acked { message_ref, .. } if self.is_referred_to(message_ref) => message_ref.group,
            Event::Completed(step) if self.is_referred_to(&step.message_ref) => step.message_ref.group,
            Event::EffectFinished { identity, .. } if self.effect_group(identity).is_some() => {
                let Scope::Consume { group, .. } = &identity.scope else { return };
                let topic = state.topic_named(&self.message.topic);
                let Some(group) = topic.and_then(|topic| topic.group_named(group)) else { return };
                group.id()
            }
            _ => return,
        };
        let (Some(location), Some((tenant, key))) = (self.location, &self.identity) else { return };
        let topic = state.topic(location.topic);
        let Some((topic, group)) = topic.and_then(|topic| Some((topic, topic.group(group)?))) else { return };
        let Some(effect) = state.store().consumed(topic.name(), group.name(), (tenant, key)) else { return };
        let and_longer = if location.is_acked(group) { "" } else { ", and until the message is acked" };
        let last = self.events.last_mut().filter(|last| last.lsn == when.lsn);
        if let Some(last) = last.filter(|last| last.group.as_deref() == Some(group.name().as_str())) {
            let until = timestamp(effect.expires_at);
            last.text.push_str(&format!("; the effect is remembered until {until}{and_longer}"));
        }
    }

    /// The groups of `namespace` that have an effect of this message's identity.
    fn groups_with_effect(&self, state: &State, namespace: &EffectNamespace) -> Vec<GroupName> {
        let EffectNamespace::Group(topic, group) = namespace else { return Vec::new() };
        let Some((tenant, key)) = self.identity.as_ref().filter(|_| topic == &self.message.topic) else {
            return Vec::new();
        };
        let found = state.store().consumed(topic, group, (tenant, key));
        found.map(|_| group.clone()).into_iter().collect()
    }

    /// A seek of a group; `state` is the state after it.
    fn seek_record(&mut self, state: &State, when: LogTime, topic: TopicId, group: GroupId) {
        let Some(location) = self.location.filter(|location| location.topic == topic && self.is_stored) else { return };
        let Some(found) = state.topic(topic).and_then(|topic| topic.group(group)) else { return };
        let name = found.name().as_str().to_owned();
        self.deliveries.cancel(group, when, "seek");
        self.deliveries.forget_group(group);
        let text = match location.is_acked(found) {
            true => "the group was sought past the message, which counts as acked",
            false => "the group was sought to or before the message, which is delivered again from attempt 1",
        };
        self.push(when, Some(&name), "group sought", text);
    }

    /// Notes the removal of the message, if this record removed it; `state` is the state after it.
    fn check_removed(&mut self, state: &State, when: LogTime, event: &Event) {
        let Some(location) = self.location.filter(|location| self.is_stored && !location.is_stored(state)) else {
            return;
        };
        let is_about_it = message_ref(event).is_some_and(|message_ref| self.is_referred_to(message_ref));
        let retains_bytes = || state.topic(location.topic).is_some_and(|topic| topic.retention().bytes.is_some());
        let text = match event {
            Event::RetentionExpired { .. } => {
                "retained out: beyond the topic's retention or the memory for retained messages"
            }
            Event::Redriven { .. } => "removed from the dead-letter topic by the redrive",
            Event::GroupDeleted { .. } => "trimmed: acked in every remaining group",
            _ if !is_about_it && retains_bytes() => "retained out: newer acked messages exceed the topic's retention",
            _ => "trimmed: acked in every group",
        };
        self.is_stored = false;
        self.push(when, None, "gone", text);
    }

    fn snapshot_message(&mut self, state: &State, when: LogTime, topic: &Topic) {
        let offset = self.message.offset;
        let found = topic.partitions().find_map(|(id, partition)| Some((id, partition.find(offset)?)));
        let Some((partition, (position, message))) = found else {
            if offset < topic.next_offset() {
                let text = "removed before this snapshot: acked in every group, then trimmed or retained out; the log \
                            holds nothing else about it";
                self.push(when, None, "snapshot", text);
            }
            return;
        };
        let location = MessageLocation { topic: topic.id(), partition, position };
        self.location = Some(location);
        self.is_stored = true;
        self.identity = message.identity().map(owned);
        let (at, stored) = (timestamp(message.produced_at), stored_message(&message));
        let text =
            format!("in the snapshot: produced at {at} into partition {partition}, position {position}: {stored}");
        self.push(when, None, "snapshot", text);
        for group in topic.groups() {
            self.snapshot_group(state, when, location, topic, group);
        }
    }

    fn snapshot_group(&mut self, state: &State, when: LogTime, at: MessageLocation, topic: &Topic, group: &Group) {
        let name = group.name().as_str();
        self.push(when, Some(name), "snapshot", format!("in the snapshot: {}", at.describe(state, group)));
        let entry = group.progress(at.partition).and_then(|progress| progress.delivery(at.position));
        if let Some((entry, until)) = entry.and_then(|entry| Some((entry, entry.leased_until()?))) {
            let delivery = MessageDelivery {
                lsn: when.lsn,
                at_ms: None,
                group: name.to_owned(),
                attempt: entry.attempts,
                owner: entry.owner.as_str().to_owned(),
                token: entry.token.to_string(),
                until_ms: until.0,
                end: None,
                ended_lsn: None,
                ended_ms: None,
            };
            self.start_delivery(group.id(), delivery);
        }
        let identity = self.identity.as_ref().map(|(tenant, key)| (tenant.as_str(), key.as_str()));
        let effect = identity.and_then(|identity| state.store().consumed(topic.name(), group.name(), identity));
        if let Some(effect) = effect {
            let (status, attempt) = (effect.status.as_str(), effect.attempt);
            let text = format!("in the snapshot: the effect of its identity is {status}, granted {attempt} times");
            self.push(when, Some(name), "snapshot", text);
        }
    }

    /// An event about at most one message of a group; `state` is the state before its record.
    fn before_event(&mut self, state: &State, when: LogTime, record: &Record) {
        let event = &record.event;
        if let Some(message_ref) = message_ref(event).filter(|message_ref| self.is_referred_to(message_ref)) {
            self.message_record(state, when, record, message_ref);
        }
        if let Event::TopicDeleted { topic } = event {
            let found = state.topic(*topic).filter(|topic| topic.name() == &self.message.topic);
            self.topic_next_offset = found.map(Topic::next_offset).or(self.topic_next_offset);
        }
        self.context_record(state, when, event);
        self.effect_record(when, event);
        self.effect_groups.clear();
        if let Event::EffectsExpired { namespace, .. } = event {
            self.effect_groups = self.groups_with_effect(state, namespace);
        }
        self.storing_record(state, when, event);
    }
}

fn owned((tenant, key): (&str, &str)) -> (String, String) {
    (tenant.to_owned(), key.to_owned())
}

impl ReplayObserver for Tracer<'_> {
    fn reset(&mut self) {
        *self = Self::new(self.message, self.only_group);
    }

    fn snapshot_image(&mut self, state: &State, image: &Image) {
        let Image::Completion { token, completion } = image else { return };
        let topic = state.topic(completion.message_ref.topic).map(Topic::name);
        let is_its = topic == Some(&self.message.topic) && completion.offset == self.message.offset;
        let produced = completion.produced.iter().map(|output| format!("{}/{}", output.topic, output.offset));
        let produced: Vec<_> = produced.collect();
        if is_its {
            let produced = if produced.is_empty() { "nothing".to_owned() } else { produced.join(", ") };
            self.completions.push(format!("in the snapshot: completed with token {token}; produced {produced}"));
        } else if produced.contains(&self.message.to_string()) {
            let (topic, offset) = (resolve::topic(state, completion.message_ref.topic), completion.offset);
            self.completions.push(format!("in the snapshot: produced by the completion of {topic}/{offset}"));
        }
    }

    fn snapshot_end(&mut self, state: &State, lsn: u64) {
        let when = LogTime { lsn, at: state.clock() };
        let Some(topic) = state.topic_named(&self.message.topic) else { return };
        self.topic_next_offset = Some(topic.next_offset());
        self.snapshot_message(state, when, topic);
        for text in std::mem::take(&mut self.completions) {
            self.push(when, None, "snapshot", text);
        }
    }

    fn before_record(&mut self, state: &State, logged: &LoggedRecord) {
        let LoggedRecord { lsn, record, .. } = logged;
        let when = LogTime { lsn: *lsn, at: record.at };
        match record.event.parts() {
            parts if parts.is_empty() => self.before_event(state, when, record),
            parts => {
                for event in parts {
                    self.before_event(state, when, &Record { at: record.at, event });
                }
            }
        }
    }

    fn after_record(&mut self, state: &State, logged: &LoggedRecord) {
        let LoggedRecord { lsn, record, .. } = logged;
        let when = LogTime { lsn: *lsn, at: record.at };
        match &record.event {
            Event::GroupSought { topic, group, .. } => self.seek_record(state, when, *topic, *group),
            Event::GroupCreated { topic, name, .. } => {
                let location = self.location.filter(|location| location.topic == *topic && self.is_stored);
                let group = state.topic(*topic).and_then(|topic| topic.group_named(name));
                if let Some((location, group)) = location.zip(group) {
                    let text = format!("group created; the message is {} in it", location.describe(state, group));
                    self.push(when, Some(name.as_str()), "group created", text);
                }
            }
            Event::EffectsExpired { namespace, .. } if !self.effect_groups.is_empty() => {
                let remaining = self.groups_with_effect(state, namespace);
                for group in std::mem::take(&mut self.effect_groups) {
                    if !remaining.contains(&group) {
                        let text = "the effect of its identity expired: its window has ended";
                        self.push(when, Some(group.as_str()), "effects expired", text);
                    }
                }
            }
            // The record carries no body; the state has it now.
            Event::Redriven { .. } if self.is_stored && self.identity.is_none() => {
                let found = self.location.and_then(|location| {
                    state.topic(location.topic)?.partition(location.partition)?.message(location.position)
                });
                self.identity = found.and_then(|message| message.identity().map(owned));
            }
            _ => {}
        }
        self.add_window(state, when, &record.event);
        self.check_removed(state, when, &record.event);
        let may_create = match &record.event {
            Event::TopicCreated { .. } | Event::DeadLettered { .. } | Event::EffectDeadLettered(_) => true,
            Event::Completed(step) => step.dead_letter.is_some(),
            _ => false,
        };
        if self.topic_next_offset.is_none() && may_create {
            self.topic_next_offset = state.topic_named(&self.message.topic).map(Topic::next_offset);
        }
    }
}
