//! The broker's log as what it holds about messages, deliveries, settling calls and effects.

use std::collections::{BTreeMap, HashMap};

use driftq_core::log::Storage;
use driftq_core::record::{Event, Image};
use driftq_core::state::{Message, State};
use driftq_core::types::{
    Body, GroupId, Identity, MessageRef, Offset, PartitionId, Scope, Timestamp, TopicId, WallClock,
};
use serde_json::json;

use driftq_inspect::format::resolve;
use driftq_inspect::{LoggedRecord, PayloadReader, ReplayLimit, ReplayObserver, Replayed, replay};

use super::CompareError;

/// A message in the log.
pub(super) struct LogMessage {
    pub(super) lsn: u64,
    pub(super) partition: u64,
    pub(super) body: Body,
    /// Stored by the broker from another message: a dead letter, or redriven.
    pub(super) is_derived: bool,
}

/// A delivery in the log.
pub(super) struct LogDelivery {
    pub(super) lsn: u64,
    pub(super) topic: String,
    pub(super) group: String,
    pub(super) partition: u64,
    pub(super) offset: u64,
    pub(super) owner: String,
    pub(super) attempt: u64,
    pub(super) until: Option<u64>,
}

/// What a record does to a message in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Acked,
    Completed,
    Skipped,
    Dead,
    Nacked,
    ReasonNoted,
    Expired,
    /// Without the end if the wall clock was adjusted: what the client was told then depends on when it was told.
    Extended {
        until: Option<u64>,
    },
    Released,
}

impl Change {
    /// Whether the message is acked or dead in the group afterwards.
    pub(super) fn is_final(self) -> bool {
        matches!(self, Self::Acked | Self::Completed | Self::Skipped | Self::Dead)
    }
}

/// A record about a message in a group, and the token of the delivery it is about.
pub(super) struct LogChange {
    pub(super) lsn: u64,
    pub(super) change: Change,
    pub(super) token: Option<String>,
}

/// A topic in the log.
#[derive(Default)]
pub(super) struct LogTopic {
    pub(super) messages: BTreeMap<u64, LogMessage>,
    /// By group and offset.
    pub(super) changes: HashMap<String, BTreeMap<u64, Vec<LogChange>>>,
    /// Lower offsets were assigned before the log begins.
    pub(super) first_offset: u64,
}

/// Everything that the comparison needs.
#[derive(Default)]
pub(super) struct Log {
    /// The log was replayed from this LSN on; 0 if it is complete from its beginning.
    pub(super) base: u64,
    pub(super) last: u64,
    pub(super) topics: HashMap<String, LogTopic>,
    pub(super) deliveries: HashMap<String, LogDelivery>,
    /// The token of the first delivery record.
    pub(super) first_delivery: Option<String>,
    /// The identity of each granted token.
    pub(super) grants: HashMap<String, String>,
    pub(super) first_grant: Option<String>,
    /// The statuses that effects were finished with, by identity.
    pub(super) finished: HashMap<String, Vec<&'static str>>,
    /// The digests at the requested LSNs, as far as the log reaches. Those before its base are meaningless.
    pub(super) digests: BTreeMap<u64, u64>,
    pub(super) state: State,
}

/// Reads the log in `storage`, with digests at the `requested` LSNs.
pub(super) fn read(storage: &mut impl Storage, mut requested: Vec<u64>) -> Result<Log, CompareError> {
    requested.sort_unstable();
    requested.dedup();
    let mut reader = Reader { log: Log::default(), requested, next: 0, referred: Vec::new() };
    let replayed = replay(storage, ReplayLimit::End, &mut reader)?;
    reader.digest_before(&replayed.state, replayed.recovered.last.lsn.0 + 1);
    reader.read_referred(&mut PayloadReader::new(storage, &replayed.recovered))?;
    let Replayed { state, base, recovered, .. } = replayed;
    Ok(Log { base, last: recovered.last.lsn.0, state, ..reader.log })
}

struct Reader {
    log: Log,
    /// LSNs whose digest is requested, in order.
    requested: Vec<u64>,
    next: usize,
    /// Messages that no record of the replay carries; their bytes are read at its end.
    referred: Vec<ReferredMessage>,
}

/// A message of a snapshot, or one that the broker stored from another.
struct ReferredMessage {
    topic: String,
    partition: PartitionId,
    lsn: u64,
    message: Message,
}

impl ReplayObserver for Reader {
    fn reset(&mut self) {
        (self.log, self.next) = (Log::default(), 0);
        self.referred.clear();
    }

    fn snapshot_image(&mut self, state: &State, image: &Image) {
        self.image(state, image);
    }

    fn before_record(&mut self, state: &State, logged: &LoggedRecord) {
        self.digest_before(state, logged.lsn);
        self.before(state, logged.lsn, &logged.record.event);
    }

    fn after_record(&mut self, state: &State, logged: &LoggedRecord) {
        self.after(state, logged.lsn, &logged.record.event);
    }
}

impl Reader {
    /// Computes the digests requested between the last record and this one.
    fn digest_before(&mut self, state: &State, lsn: u64) {
        while let Some(requested) = self.requested.get(self.next).copied().filter(|requested| *requested < lsn) {
            self.next += 1;
            self.log.digests.insert(requested, state.digest());
        }
    }

    /// What the log says about a topic; `None` if no client of a history knows it.
    fn topic(&mut self, state: &State, topic: TopicId) -> Option<&mut LogTopic> {
        Some(self.log.topics.entry(known_name(state, topic)?).or_default())
    }

    fn image(&mut self, state: &State, image: &Image) {
        match image {
            Image::Topic { topic, next_offset, .. } => {
                if let Some(topic) = self.topic(state, *topic) {
                    topic.first_offset = next_offset.0;
                }
            }
            Image::Message { topic, partition, offset, produced_at, payload, fields, .. } => {
                let message = Message::new(*offset, *produced_at, *payload, fields.clone());
                self.referred(state, 0, *topic, *partition, message);
            }
            Image::Chunk { topic, partition, chunk } => {
                chunk.images(*topic, *partition).for_each(|message| self.image(state, &message));
            }
            Image::DeliveryState { message_ref, delivery } => {
                let Some((topic, group, offset)) = resolved(state, message_ref) else { return };
                let logged = LogDelivery {
                    lsn: 0,
                    topic,
                    group,
                    partition: u64::from(message_ref.partition.0),
                    offset,
                    owner: delivery.owner.as_str().to_owned(),
                    attempt: u64::from(delivery.attempts),
                    until: delivery.leased_until().and_then(|until| told(state, until)),
                };
                self.log.deliveries.insert(delivery.token.to_string(), logged);
            }
            _ => {}
        }
    }

    fn changed(&mut self, state: &State, lsn: u64, message_ref: &MessageRef, change: Change) {
        let token = resolve::entry(state, message_ref).map(|entry| entry.token.to_string());
        let Some((topic, group, offset)) = resolved(state, message_ref) else { return };
        let changes = &mut self.log.topics.entry(topic).or_default().changes;
        changes.entry(group).or_default().entry(offset).or_default().push(LogChange { lsn, change, token });
    }

    fn stored(
        &mut self,
        state: &State,
        lsn: u64,
        topic: TopicId,
        (partition, offset): (PartitionId, Offset),
        body: &Body,
    ) {
        let message = LogMessage { lsn, partition: u64::from(partition.0), body: body.clone(), is_derived: false };
        if let Some(topic) = self.topic(state, topic) {
            topic.messages.insert(offset.0, message);
        }
    }

    /// Groups skip the message that the record stores.
    fn skipped(&mut self, state: &State, lsn: u64, (topic, offset): (TopicId, Offset), groups: &[GroupId]) {
        let Some(logged) = self.topic(state, topic) else { return };
        for group in groups {
            let group = resolve::group_name(state, topic, *group);
            let changes = logged.changes.entry(group).or_default().entry(offset.0).or_default();
            changes.push(LogChange { lsn, change: Change::Skipped, token: None });
        }
    }

    /// Reads a record against the state before it, which resolves its ids.
    fn before(&mut self, state: &State, lsn: u64, event: &Event) {
        let parts = event.parts();
        if !parts.is_empty() {
            return parts.iter().for_each(|part| self.before(state, lsn, part));
        }
        match event {
            Event::Produced { topic, partition, offset, body, skipped, .. } => {
                self.stored(state, lsn, *topic, (*partition, *offset), body);
                self.skipped(state, lsn, (*topic, *offset), skipped);
            }
            Event::Delivered { message_ref, token, owner, until } => {
                let Some((topic, group, offset)) = resolved(state, message_ref) else { return };
                let token = token.to_string();
                let delivery = LogDelivery {
                    lsn,
                    topic,
                    group,
                    partition: u64::from(message_ref.partition.0),
                    offset,
                    owner: owner.as_str().to_owned(),
                    attempt: u64::from(resolve::entry(state, message_ref).map_or(0, |entry| entry.attempts)) + 1,
                    until: told(state, *until),
                };
                self.log.first_delivery.get_or_insert_with(|| token.clone());
                self.log.deliveries.insert(token, delivery);
            }
            Event::Acked { message_ref, .. } => self.changed(state, lsn, message_ref, Change::Acked),
            Event::Nacked { message_ref, .. } => self.changed(state, lsn, message_ref, Change::Nacked),
            Event::ReasonNoted { message_ref, .. } => self.changed(state, lsn, message_ref, Change::ReasonNoted),
            Event::Expired { message_ref, .. } => self.changed(state, lsn, message_ref, Change::Expired),
            Event::Extended { message_ref, until } => {
                self.changed(state, lsn, message_ref, Change::Extended { until: told(state, *until) });
            }
            Event::Released { message_ref } => self.changed(state, lsn, message_ref, Change::Released),
            Event::DeadLettered { message_ref, .. } => self.changed(state, lsn, message_ref, Change::Dead),
            Event::Completed(completed) => {
                self.changed(state, lsn, &completed.message_ref, Change::Completed);
                for output in &completed.outputs {
                    if let Some(stored) = &output.stored {
                        self.stored(state, lsn, stored.topic, (output.partition, output.offset), &stored.body);
                        self.skipped(state, lsn, (stored.topic, output.offset), &stored.skipped);
                    }
                }
            }
            Event::EffectBegun(begun) => {
                let token = begun.token.to_string();
                self.log.first_grant.get_or_insert_with(|| token.clone());
                self.log.grants.insert(token, identity_text(&begun.identity));
            }
            Event::EffectFinished { identity, outcome } => {
                self.log.finished.entry(identity_text(identity)).or_default().push(outcome.status.as_str());
            }
            _ => {}
        }
    }

    fn referred(&mut self, state: &State, lsn: u64, topic: TopicId, partition: PartitionId, message: Message) {
        let Some(topic) = known_name(state, topic) else { return };
        self.referred.push(ReferredMessage { topic, partition, lsn, message });
    }

    /// Adds the messages that no record of the replay carries, in the order of the log.
    fn read_referred(&mut self, payloads: &mut PayloadReader<'_, impl Storage>) -> Result<(), CompareError> {
        self.referred.sort_by_key(|referred| referred.message.payload.id);
        for ReferredMessage { topic, partition, lsn, message } in std::mem::take(&mut self.referred) {
            let body = message.body(&payloads.read(message.payload.id)?);
            let is_derived = message.dead_letter().is_some() || message.redrive().is_some();
            let found = LogMessage { lsn, partition: u64::from(partition.0), body, is_derived };
            self.log.topics.entry(topic).or_default().messages.insert(message.offset.0, found);
        }
        Ok(())
    }

    /// Reads messages that the broker stores itself; only the state after the record has them.
    fn after(&mut self, state: &State, lsn: u64, event: &Event) {
        event.parts().iter().for_each(|part| self.after(state, lsn, part));
        let (topic, partition, offset) = match event {
            Event::DeadLettered { dead_topic, dead_partition, dead_offset, .. } => {
                (*dead_topic, *dead_partition, *dead_offset)
            }
            Event::Redriven { topic, partition, offset, .. } => (*topic, *partition, *offset),
            _ => return,
        };
        let found = state.topic(topic).and_then(|topic| topic.partition(partition)?.find(offset));
        let Some((_, message)) = found else { return };
        self.referred(state, lsn, topic, partition, message);
    }
}

/// The name of a topic, if the clients of a history can know it: they have no keys, so they are the default tenant's.
fn known_name(state: &State, topic: TopicId) -> Option<String> {
    let is_known = state.topic(topic).is_none_or(|topic| topic.name().tenant().is_default());
    is_known.then(|| state.topic(topic).map_or_else(|| format!("#{topic}"), |topic| topic.name().as_str().to_owned()))
}

/// The names of topic and group, and the offset.
fn resolved(state: &State, message_ref: &MessageRef) -> Option<(String, String, u64)> {
    let group = state.topic(message_ref.topic)?.group(message_ref.group)?;
    let offset = resolve::offset(state, message_ref)?;
    Some((known_name(state, message_ref.topic)?, group.name().as_str().to_owned(), offset.0))
}

/// An identity as text, as in a parsed history.
fn identity_text(identity: &Identity) -> String {
    let kind = identity.scope.kind().as_str();
    let scope = match &identity.scope {
        Scope::Consume { topic, group } => {
            let mut scope = json!({"kind": kind, "topic": topic.as_str(), "group": group.as_str()});
            if !topic.tenant().is_default() {
                scope["tenant"] = json!(topic.tenant().0);
            }
            scope
        }
        Scope::Tenant => json!({"kind": kind}),
        Scope::Job { id } | Scope::Task { id } => json!({"kind": kind, "id": id}),
        Scope::Rpc { principal, method } => json!({"kind": kind, "principal": principal, "method": method}),
    };
    format!("tenant {}, scope {scope}, key {}", identity.tenant(), identity.key())
}

/// The end of a lease as a client was told it; `None` if that depends on when it was told.
fn told(state: &State, until: Timestamp) -> Option<u64> {
    (*state.wall_clock() == WallClock::default()).then_some(until.0)
}
