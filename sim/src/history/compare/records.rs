//! The server's log, sorted out: what it says of messages, deliveries, settlements and effects.

use std::collections::{BTreeMap, HashMap};

use driftq_core::body::Body;
use driftq_core::codec::record as codec;
use driftq_core::faults::NoFaults;
use driftq_core::idempotency::{Identity, Scope};
use driftq_core::log::{FileId, Malformed, RecoveryError, Replay, Storage, recover};
use driftq_core::record::{Event, Image, Place, Record};
use driftq_core::state::State;
use driftq_core::state::apply::Mode;
use driftq_core::types::{LeaseToken, Lsn, Offset, PartitionId, TopicId};
use serde_json::json;

use super::storage::OldestSnapshots;

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
    pub(super) records: u64,
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
    let listed = storage.list().map_err(|fault| RecoveryError::Storage { doing: "listing", file: None, fault })?;
    let snapshots = listed.iter().filter(|info| matches!(info.file, FileId::Snapshot(_))).count();
    let mut count = 0;
    loop {
        let mut reader = Reader { log: Log::default(), wanted: wanted.clone(), next: 0 };
        match recover(&mut OldestSnapshots { inner: storage, count }, None, &mut reader) {
            Ok(recovered) => {
                reader.log.last = recovered.last_lsn.0;
                reader.log.base = recovered.snapshot.map_or(0, |lsn| lsn.0);
                reader.hash_before(recovered.last_lsn.0 + 1);
                return Ok(reader.log);
            }
            // What came before an old snapshot may be gone, and the snapshot itself damaged: a newer one does as well.
            Err(_) if count < snapshots => count += 1,
            Err(error) => return Err(error),
        }
    }
}

struct Reader {
    log: Log,
    /// LSNs whose state hash is asked for, in order.
    wanted: Vec<u64>,
    next: usize,
}

impl Replay for Reader {
    fn reset(&mut self) {
        (self.log, self.next) = (Log::default(), 0);
    }

    fn restore(&mut self, kind: u8, version: u8, payload: &[u8]) -> Result<(), Malformed> {
        let record = decode(kind, version, payload)?;
        self.apply(&record)?;
        match record.event {
            Event::Restored(image) => self.restored_piece(image),
            _ => return Err(Malformed::new("a log record in a snapshot")),
        }
        Ok(())
    }

    fn restored(&mut self) -> Result<(), Malformed> {
        self.log.state.check().map_err(|unsound| Malformed::new(unsound.to_string()))
    }

    fn replay(&mut self, lsn: Lsn, kind: u8, version: u8, payload: &[u8]) -> Result<(), Malformed> {
        self.hash_before(lsn.0);
        let record = decode(kind, version, payload)?;
        if let Event::Restored(_) = record.event {
            return Err(Malformed::new("a piece of a snapshot in the log"));
        }
        self.log.records += 1;
        self.before(lsn.0, &record.event);
        self.apply(&record)?;
        self.after(lsn.0, &record.event);
        Ok(())
    }
}

fn decode(kind: u8, version: u8, payload: &[u8]) -> Result<Record, Malformed> {
    codec::decode(kind, version, payload).map_err(|error| Malformed::new(error.to_string()))
}

impl Reader {
    fn apply(&mut self, record: &Record) -> Result<(), Malformed> {
        let applied = self.log.state.apply(record, Mode::Replay, &NoFaults);
        applied.map_err(|contradiction| Malformed::new(contradiction.to_string()))
    }

    /// Hashes the state if somebody asked for it at a position between the last record and this one.
    fn hash_before(&mut self, lsn: u64) {
        while let Some(wanted) = self.wanted.get(self.next).copied().filter(|wanted| *wanted < lsn) {
            self.next += 1;
            self.log.digests.insert(wanted, self.log.state.digest());
        }
    }

    fn topic(&mut self, topic: TopicId) -> &mut LogTopic {
        let name = self.log.state.topic(topic).map_or_else(String::new, |topic| topic.name().as_str().to_owned());
        self.log.topics.entry(name).or_default()
    }

    fn restored_piece(&mut self, image: Image) {
        match image {
            Image::Topic { topic, next_offset, .. } => self.topic(topic).first_offset = next_offset.0,
            Image::Message { topic, partition, offset, body, .. } => {
                let is_made = is_made(&body);
                let message = LogMessage { lsn: 0, partition: u64::from(partition.0), body, is_made };
                self.topic(topic).messages.insert(offset.0, message);
            }
            Image::Entry { place, entry } => {
                let Some((topic, group, offset)) = self.names(&place) else { return };
                let delivery = LogDelivery {
                    lsn: 0,
                    topic,
                    group,
                    partition: u64::from(place.partition.0),
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

    /// The names of topic and group, and the offset.
    fn names(&self, place: &Place) -> Option<(String, String, u64)> {
        let topic = self.log.state.topic(place.topic)?;
        let group = topic.group(place.group)?;
        let entry = group.progress(place.partition).and_then(|progress| progress.entry(place.position));
        let message = || topic.partition(place.partition)?.message(place.position).map(|message| message.offset);
        let offset = entry.map(|entry| entry.offset).or_else(message)?;
        Some((topic.name().as_str().to_owned(), group.name().as_str().to_owned(), offset.0))
    }

    /// The newest delivery of a message: its token, and which attempt it is.
    fn newest(&self, place: &Place) -> Option<(LeaseToken, u32)> {
        let progress = self.log.state.topic(place.topic)?.group(place.group)?.progress(place.partition)?;
        progress.entry(place.position).map(|entry| (entry.token, entry.attempts))
    }

    fn settled(&mut self, lsn: u64, place: &Place, what: Happened) {
        let token = self.newest(place).map(|(token, _)| token.to_string());
        let Some((topic, group, offset)) = self.names(place) else { return };
        let groups = &mut self.log.topics.entry(topic).or_default().groups;
        groups.entry(group).or_default().entry(offset).or_default().push(Settled { lsn, what, token });
    }

    fn stored(&mut self, lsn: u64, topic: TopicId, (partition, offset): (PartitionId, Offset), body: &Body) {
        let message = LogMessage { lsn, partition: u64::from(partition.0), body: body.clone(), is_made: false };
        self.topic(topic).messages.insert(offset.0, message);
    }

    /// What can be told only while the state is the one that the record was decided against.
    fn before(&mut self, lsn: u64, event: &Event) {
        match event {
            Event::Produced { topic, partition, offset, body, .. } => {
                self.stored(lsn, *topic, (*partition, *offset), body);
            }
            Event::Delivered { place, token, owner, until } => {
                let Some((topic, group, offset)) = self.names(place) else { return };
                let token = token.to_string();
                let delivery = LogDelivery {
                    lsn,
                    topic,
                    group,
                    partition: u64::from(place.partition.0),
                    offset,
                    owner: owner.as_str().to_owned(),
                    attempt: u64::from(self.newest(place).map_or(0, |(_, attempts)| attempts)) + 1,
                    until: Some(until.0),
                };
                self.log.first_delivery.get_or_insert_with(|| token.clone());
                self.log.deliveries.insert(token, delivery);
            }
            Event::Acked { place, .. } => self.settled(lsn, place, Happened::Acked),
            Event::Skipped { place } => self.settled(lsn, place, Happened::Skipped),
            Event::Nacked { place, .. } => self.settled(lsn, place, Happened::Nacked),
            Event::ReasonNoted { place, .. } => self.settled(lsn, place, Happened::Noted),
            Event::Expired { place, .. } => self.settled(lsn, place, Happened::Expired),
            Event::Extended { place, until } => self.settled(lsn, place, Happened::Extended { until: until.0 }),
            Event::Released { place } => self.settled(lsn, place, Happened::Released),
            Event::DeadLettered { place, .. } => self.settled(lsn, place, Happened::Dead),
            Event::Completed(completed) => {
                self.settled(lsn, &completed.place, Happened::Completed);
                for output in &completed.outputs {
                    if let Some(stored) = &output.stored {
                        self.stored(lsn, stored.topic, (output.partition, output.offset), &stored.body);
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
    fn after(&mut self, lsn: u64, event: &Event) {
        let (topic, partition, offset) = match event {
            Event::DeadLettered { dead_topic, dead_partition, dead_offset, .. } => {
                (*dead_topic, *dead_partition, *dead_offset)
            }
            Event::Redriven { topic, partition, offset, .. } => (*topic, *partition, *offset),
            _ => return,
        };
        let found = self.log.state.topic(topic).and_then(|topic| topic.partition(partition)?.find(offset));
        let Some(body) = found.map(|(_, message)| message.body.clone()) else { return };
        let message = LogMessage { lsn, partition: u64::from(partition.0), body, is_made: true };
        self.topic(topic).messages.insert(offset.0, message);
    }
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
