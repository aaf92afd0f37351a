//! The server's log, sorted out: what it says of messages, deliveries, settlements and effects.

use std::collections::{BTreeMap, HashMap};

use driftq_core::body::Body;
use driftq_core::idempotency::{Identity, Scope};
use driftq_core::log::{RecoveryError, Storage};
use driftq_core::record::{Event, Image, MessageRef};
use driftq_core::state::State;
use driftq_core::types::{Offset, PartitionId, TopicId};
use serde_json::json;

use driftq_inspect::format::resolve;
use driftq_inspect::{LoggedRecord, ReplayLimit, ReplayObserver, Replayed, replay};

/// A message in the log.
pub(super) struct LogMessage {
    pub(super) lsn: u64,
    pub(super) partition: u64,
    pub(super) body: Body,
    /// Made by the broker, out of another: a dead letter, or one redriven.
    pub(super) is_made: bool,
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

/// What happened to a message after it was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Happened {
    Acked,
    Completed,
    Skipped,
    Dead,
    Nacked,
    Noted,
    Expired,
    Extended { until: u64 },
    Released,
}

impl Happened {
    /// Whether the group was done with the message from then on.
    pub(super) fn is_end(self) -> bool {
        matches!(self, Self::Acked | Self::Completed | Self::Skipped | Self::Dead)
    }
}

/// Something that happened to a message, and to which delivery of it.
pub(super) struct Settled {
    pub(super) lsn: u64,
    pub(super) what: Happened,
    pub(super) token: Option<String>,
}

/// A topic in the log.
#[derive(Default)]
pub(super) struct LogTopic {
    pub(super) messages: BTreeMap<u64, LogMessage>,
    /// By group and offset.
    pub(super) groups: HashMap<String, BTreeMap<u64, Vec<Settled>>>,
    /// Offsets below were given before what is left of the log begins.
    pub(super) first_offset: u64,
}

/// Everything that is looked for.
#[derive(Default)]
pub(super) struct Log {
    /// Everything after this LSN was read; 0 if the log is there from its beginning.
    pub(super) base: u64,
    pub(super) last: u64,
    pub(super) topics: HashMap<String, LogTopic>,
    pub(super) deliveries: HashMap<String, LogDelivery>,
    /// The oldest token of a delivery that was read as a record.
    pub(super) first_delivery: Option<String>,
    /// Grants: the identity of each token.
    pub(super) begun: HashMap<String, String>,
    pub(super) first_grant: Option<String>,
    /// How effects ended, by identity.
    pub(super) finished: HashMap<String, Vec<&'static str>>,
    /// State hashes at the LSNs that were asked for, as far as the log reaches; those before its base are of no worth.
    pub(super) digests: BTreeMap<u64, u64>,
    pub(super) state: State,
}

/// Reads the log in `storage`, from as far back as it can be read.
pub(super) fn read(storage: &mut impl Storage, mut wanted: Vec<u64>) -> Result<Log, RecoveryError> {
    wanted.sort_unstable();
    wanted.dedup();
    let mut reader = Reader { log: Log::default(), wanted, next: 0 };
    let replayed = replay(storage, ReplayLimit::End, &mut reader)?;
    reader.hash_before(&replayed.state, replayed.recovered.last_lsn.0 + 1);
    let Replayed { state, base, recovered, .. } = replayed;
    Ok(Log { base, last: recovered.last_lsn.0, state, ..reader.log })
}

struct Reader {
    log: Log,
    /// LSNs whose state hash is asked for, in order.
    wanted: Vec<u64>,
    next: usize,
}

impl ReplayObserver for Reader {
    fn reset(&mut self) {
        (self.log, self.next) = (Log::default(), 0);
    }

    fn snapshot_image(&mut self, state: &State, image: &Image) {
        self.restored_piece(state, image);
    }

    fn before_record(&mut self, state: &State, logged: &LoggedRecord) {
        self.hash_before(state, logged.lsn);
        self.decided(state, logged.lsn, &logged.record.event);
    }

    fn after_record(&mut self, state: &State, logged: &LoggedRecord) {
        self.made(state, logged.lsn, &logged.record.event);
    }
}

impl Reader {
    /// Hashes the state if somebody asked for it at a position between the last record and this one.
    fn hash_before(&mut self, state: &State, lsn: u64) {
        while let Some(wanted) = self.wanted.get(self.next).copied().filter(|wanted| *wanted < lsn) {
            self.next += 1;
            self.log.digests.insert(wanted, state.digest());
        }
    }

    fn topic(&mut self, state: &State, topic: TopicId) -> &mut LogTopic {
        self.log.topics.entry(resolve::topic(state, topic)).or_default()
    }

    fn restored_piece(&mut self, state: &State, image: &Image) {
        match image {
            Image::Topic { topic, next_offset, .. } => self.topic(state, *topic).first_offset = next_offset.0,
            Image::Message { topic, partition, offset, body, .. } => {
                let (body, is_made) = (body.clone(), is_made(body));
                let message = LogMessage { lsn: 0, partition: u64::from(partition.0), body, is_made };
                self.topic(state, *topic).messages.insert(offset.0, message);
            }
            Image::Entry { message_ref, entry } => {
                let Some((topic, group, offset)) = named(state, message_ref) else { return };
                let delivery = LogDelivery {
                    lsn: 0,
                    topic,
                    group,
                    partition: u64::from(message_ref.partition.0),
                    offset,
                    owner: entry.owner.as_str().to_owned(),
                    attempt: u64::from(entry.attempts),
                    until: entry.leased_until().map(|until| until.0),
                };
                self.log.deliveries.insert(entry.token.to_string(), delivery);
            }
            _ => {}
        }
    }

    fn settled(&mut self, state: &State, lsn: u64, message_ref: &MessageRef, what: Happened) {
        let token = resolve::entry(state, message_ref).map(|entry| entry.token.to_string());
        let Some((topic, group, offset)) = named(state, message_ref) else { return };
        let groups = &mut self.log.topics.entry(topic).or_default().groups;
        groups.entry(group).or_default().entry(offset).or_default().push(Settled { lsn, what, token });
    }

    fn stored(
        &mut self,
        state: &State,
        lsn: u64,
        topic: TopicId,
        (partition, offset): (PartitionId, Offset),
        body: &Body,
    ) {
        let message = LogMessage { lsn, partition: u64::from(partition.0), body: body.clone(), is_made: false };
        self.topic(state, topic).messages.insert(offset.0, message);
    }

    /// What can be told only while the state is the one that the record was decided against.
    fn decided(&mut self, state: &State, lsn: u64, event: &Event) {
        match event {
            Event::Produced { topic, partition, offset, body, .. } => {
                self.stored(state, lsn, *topic, (*partition, *offset), body);
            }
            Event::Delivered { message_ref, token, owner, until } => {
                let Some((topic, group, offset)) = named(state, message_ref) else { return };
                let token = token.to_string();
                let delivery = LogDelivery {
                    lsn,
                    topic,
                    group,
                    partition: u64::from(message_ref.partition.0),
                    offset,
                    owner: owner.as_str().to_owned(),
                    attempt: u64::from(resolve::entry(state, message_ref).map_or(0, |entry| entry.attempts)) + 1,
                    until: Some(until.0),
                };
                self.log.first_delivery.get_or_insert_with(|| token.clone());
                self.log.deliveries.insert(token, delivery);
            }
            Event::Acked { message_ref, .. } => self.settled(state, lsn, message_ref, Happened::Acked),
            Event::Skipped { message_ref } => self.settled(state, lsn, message_ref, Happened::Skipped),
            Event::Nacked { message_ref, .. } => self.settled(state, lsn, message_ref, Happened::Nacked),
            Event::ReasonNoted { message_ref, .. } => self.settled(state, lsn, message_ref, Happened::Noted),
            Event::Expired { message_ref, .. } => self.settled(state, lsn, message_ref, Happened::Expired),
            Event::Extended { message_ref, until } => {
                self.settled(state, lsn, message_ref, Happened::Extended { until: until.0 })
            }
            Event::Released { message_ref } => self.settled(state, lsn, message_ref, Happened::Released),
            Event::DeadLettered { message_ref, .. } => self.settled(state, lsn, message_ref, Happened::Dead),
            Event::Completed(completed) => {
                self.settled(state, lsn, &completed.message_ref, Happened::Completed);
                for output in &completed.outputs {
                    if let Some(stored) = &output.stored {
                        self.stored(state, lsn, stored.topic, (output.partition, output.offset), &stored.body);
                    }
                }
            }
            Event::EffectBegun(begun) => {
                let token = begun.token.to_string();
                self.log.first_grant.get_or_insert_with(|| token.clone());
                self.log.begun.insert(token, name(&begun.identity));
            }
            Event::EffectFinished { identity, outcome } => {
                self.log.finished.entry(name(identity)).or_default().push(outcome.status.as_str());
            }
            _ => {}
        }
    }

    /// What can be told only when the record has been applied: messages that the broker made itself.
    fn made(&mut self, state: &State, lsn: u64, event: &Event) {
        let (topic, partition, offset) = match event {
            Event::DeadLettered { dead_topic, dead_partition, dead_offset, .. } => {
                (*dead_topic, *dead_partition, *dead_offset)
            }
            Event::Redriven { topic, partition, offset, .. } => (*topic, *partition, *offset),
            _ => return,
        };
        let found = state.topic(topic).and_then(|topic| topic.partition(partition)?.find(offset));
        let Some(body) = found.map(|(_, message)| message.body.clone()) else { return };
        let message = LogMessage { lsn, partition: u64::from(partition.0), body, is_made: true };
        self.topic(state, topic).messages.insert(offset.0, message);
    }
}

/// The names of topic and group, and the offset.
fn named(state: &State, message_ref: &MessageRef) -> Option<(String, String, u64)> {
    let topic = state.topic(message_ref.topic)?;
    let group = topic.group(message_ref.group)?;
    let offset = resolve::offset(state, message_ref)?;
    Some((topic.name().as_str().to_owned(), group.name().as_str().to_owned(), offset.0))
}

fn is_made(body: &Body) -> bool {
    let metadata = body.metadata();
    metadata.dead_letter.is_some() || metadata.redrive.is_some()
}

/// An identity as histories spell it.
fn name(identity: &Identity) -> String {
    let kind = identity.scope.kind();
    let scope = match &identity.scope {
        Scope::Consume { topic, group } => json!({"kind": kind, "topic": topic.as_str(), "group": group.as_str()}),
        Scope::Tenant => json!({"kind": kind}),
        Scope::Job { id } | Scope::Task { id } => json!({"kind": kind, "id": id}),
        Scope::Rpc { principal, method } => json!({"kind": kind, "principal": principal, "method": method}),
    };
    format!("tenant {}, scope {scope}, key {}", identity.tenant(), identity.key())
}
