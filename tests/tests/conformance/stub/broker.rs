//! Topics, groups and deliveries, in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::Defect;
use super::store::Store;

/// How long an idle stream sleeps.
const IDLE: Duration = Duration::from_millis(40);
/// The default limits of v1.
const IN_FLIGHT_MAX: usize = 2;
const PARTITION_MESSAGES_MAX: usize = 2;
const PARTITION_BYTES_MAX: usize = 20;
/// A topic with so many partitions remembers no produced keys.
const FORGETFUL_PARTITIONS: i64 = 5;

pub(super) struct Broker {
    pub(super) defect: Defect,
    state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) topics: BTreeMap<String, Topic>,
    pub(super) store: Store,
    produced_keys: BTreeSet<(String, String, String)>,
    consumers: u64,
    produces: u64,
    /// Incremented by every restart. Streams of an earlier one have ended.
    boot: u64,
}

pub(super) struct Topic {
    /// Signalled for the streams of this topic. One for all topics would wake up all streams on every change.
    changed: Arc<Condvar>,
    pub(super) partitions: i64,
    pub(super) retention_ms: Value,
    next_offset: i64,
    pub(super) messages: BTreeMap<i64, Message>,
    pub(super) groups: BTreeMap<String, Group>,
}

#[derive(Clone)]
pub(super) struct Message {
    pub(super) partition: i64,
    key: String,
    value: String,
    /// The field that carries the value.
    field: &'static str,
    envelope: Value,
}

#[derive(Default)]
pub(super) struct Group {
    consumers: Vec<u64>,
    turn: usize,
    pub(super) progress: BTreeMap<i64, Progress>,
    pub(super) is_ephemeral: bool,
}

/// A group's progress with a message.
#[derive(Default)]
pub(super) struct Progress {
    pub(super) done: bool,
    pub(super) attempts: i64,
    pub(super) owner: String,
    pub(super) lease_until: Option<Instant>,
    due: Option<Instant>,
    last_error: String,
    /// Consumers that get a copy of this delivery, with the defect of broadcasting.
    copies_for: Vec<u64>,
}

pub(super) struct Produce<'a> {
    pub(super) topic: &'a str,
    pub(super) key: &'a str,
    pub(super) value: &'a str,
    pub(super) field: &'static str,
    pub(super) envelope: &'a Value,
}

/// Why a delivery has failed.
#[derive(Clone, Copy)]
pub(super) enum Failure<'a> {
    Expired,
    Nacked(&'a str),
    /// No retry can succeed.
    Final(&'a str),
}

/// The token of a delivery.
pub(super) fn token(offset: i64, attempts: i64) -> String {
    format!("{offset}-{attempts}")
}

pub(super) enum Refusal {
    Invalid(&'static str),
    NoTopic,
    Overloaded,
    NotOwner,
}

impl Topic {
    pub(super) fn of(partitions: i64) -> Self {
        let (messages, groups) = (BTreeMap::new(), BTreeMap::new());
        Self { changed: Arc::default(), partitions, retention_ms: Value::Null, next_offset: 0, messages, groups }
    }

    fn append(&mut self, message: Message, defect: Defect) {
        let offset = if defect == Defect::OffsetsDecrease { 1_000_000 - self.next_offset } else { self.next_offset };
        self.messages.insert(offset, message);
        self.next_offset += 1;
        self.changed.notify_all();
    }

    /// Whether every group has finished a message; false if there is no group.
    fn is_done(&self, offset: i64) -> bool {
        let mut groups = self.groups.values();
        let done = |group: &Group| group.progress.get(&offset).is_some_and(|progress| progress.done);
        !self.groups.is_empty() && groups.all(done)
    }

    /// Messages and bytes of a partition that some group has not finished; all if there is no group.
    fn load(&self, partition: i64) -> (usize, usize) {
        let open =
            self.messages.iter().filter(|(offset, message)| message.partition == partition && !self.is_done(**offset));
        open.fold((0, 0), |(count, bytes), (_, message)| (count + 1, bytes + message.key.len() + message.value.len()))
    }
}

impl Broker {
    pub(super) fn new(defect: Defect) -> Self {
        Self { defect, state: Mutex::default() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all streams and drops what v1 allows a broker to lose: leases, attempts, errors, keys, and all acks but the
    /// highest.
    pub(super) fn restart(&self) {
        let mut state = self.lock();
        state.boot += 1;
        state.produced_keys.clear();
        if self.defect == Defect::TopicsLostOnRestart {
            state.topics.clear();
        }
        state.store = Store::default();
        for topic in state.topics.values_mut() {
            topic.changed.notify_all();
            if self.defect == Defect::MessagesLostOnRestart {
                topic.messages.clear();
            }
            if self.defect == Defect::OffsetsRestart {
                topic.next_offset = 0;
            }
            let Topic { messages, groups, .. } = topic;
            for group in groups.values_mut() {
                group.consumers.clear();
                let mut highest: BTreeMap<i64, i64> = BTreeMap::new();
                for (offset, _) in group.progress.iter().filter(|(_, progress)| progress.done) {
                    if let Some(message) = messages.get(offset) {
                        highest.insert(message.partition, *offset);
                    }
                }
                group.progress.clear();
                for (offset, message) in messages.iter() {
                    let done = highest.get(&message.partition).is_some_and(|highest| offset <= highest);
                    let done = done && self.defect != Defect::AcksLostOnRestart;
                    group.progress.insert(*offset, Progress { done, ..Progress::default() });
                }
            }
        }
    }

    /// Stores a message. Whether every group is done with its identity.
    pub(super) fn produce(&self, request: &Produce<'_>) -> Result<bool, Refusal> {
        let mut state = self.lock();
        let text = |name: &str| request.envelope[name].as_str().unwrap_or_default();
        let target = text("target_topic");
        let name = if target.is_empty() || self.defect == Defect::TargetTopicIgnored { request.topic } else { target };
        state.produces += 1;
        let produces = state.produces;
        let topic = state.topics.get_mut(name).ok_or(Refusal::NoTopic)?;
        let partition = self.partition(request, name, topic.partitions, produces);
        let mut identity = (text("tenant_id").to_owned(), name.to_owned(), text("idempotency_key").to_owned());
        match self.defect {
            Defect::IdentityWithoutTopic => identity.1.clear(),
            Defect::IdentityWithoutTenant => identity.0.clear(),
            _ => {}
        }
        let keyed = !identity.2.is_empty()
            || (self.defect == Defect::EmptyKeyDeduplicated && request.envelope["idempotency_key"] == "");
        if partition.is_err() && self.defect == Defect::FailedProduceUsesKey {
            state.produced_keys.insert(identity);
            return partition.map(|_| false);
        }
        let partition = partition?;
        let topic = state.topics.get(name).ok_or(Refusal::NoTopic)?;
        let (count, bytes) = topic.load(partition);
        let fits = self.has_large_partitions()
            || count < PARTITION_MESSAGES_MAX && bytes + request.key.len() + request.value.len() <= self.bytes_max();
        if keyed && self.defect != Defect::DuplicateEnqueued && state.produced_keys.contains(&identity) {
            return if self.defect == Defect::DuplicateRefused { Err(Refusal::NotOwner) } else { Ok(false) };
        }
        if !fits && self.defect != Defect::OverloadedButEnqueued {
            return Err(Refusal::Overloaded);
        }
        let envelope = request.envelope.clone();
        let value = if self.defect == Defect::PayloadTrimmed {
            request.value.replace('\\', "")
        } else {
            request.value.to_owned()
        };
        let field = request.field;
        let message = Message { partition, key: request.key.to_owned(), value, field, envelope };
        let (mut already_done, mut keyed_is_kept) = (false, true);
        if let Some(topic) = state.topics.get_mut(name) {
            if self.defect == Defect::StoredTwice && topic.partitions == 4 {
                topic.append(Message { partition: (partition + 1) % 4, ..message.clone() }, self.defect);
            }
            // In topics of the case that observes it, a key is forgotten as soon as its message is stored.
            let same = |known: &Message| known.envelope["idempotency_key"] == message.envelope["idempotency_key"];
            if keyed && topic.partitions == FORGETFUL_PARTITIONS {
                already_done = topic.messages.iter().any(|(offset, known)| same(known) && topic.is_done(*offset));
            }
            let offset = topic.next_offset;
            topic.append(message, self.defect);
            for group in topic.groups.values_mut().filter(|_| already_done) {
                group.progress.entry(offset).or_default().done = true;
            }
            keyed_is_kept = topic.partitions != FORGETFUL_PARTITIONS;
        }
        if keyed && keyed_is_kept {
            state.produced_keys.insert(identity);
        }
        if fits { Ok(already_done) } else { Err(Refusal::Overloaded) }
    }

    fn partition(&self, request: &Produce<'_>, topic: &str, count: i64, produces: u64) -> Result<i64, Refusal> {
        let hash = |text: &str| text.bytes().fold(7_u32, |hash, byte| hash.wrapping_mul(31) ^ u32::from(byte));
        let by_key = match self.defect {
            _ if request.key.is_empty() => 0,
            Defect::PartitionAlwaysZero => 0,
            Defect::PartitionOfKeyDrifts => i64::try_from(produces).unwrap_or(0) % count,
            Defect::PartitionOfKeyPerTopic => i64::from(hash(&format!("{topic}{}", request.key))) % count,
            _ => i64::from(hash(request.key)) % count,
        };
        let chosen = match request.envelope["partition_override"].as_i64() {
            Some(chosen) if (0..count).contains(&chosen) && self.defect != Defect::OverrideIgnored => chosen,
            Some(chosen) if (0..count).contains(&chosen) => by_key,
            Some(_) if self.defect == Defect::OutOfRangeAccepted => 0,
            Some(_) => return Err(Refusal::Invalid("partition_override is out of range")),
            None if self.defect == Defect::PartitionsReversed => count - 1 - by_key,
            None => by_key,
        };
        Ok(chosen)
    }

    /// Registers a consumer. Returns its number and the current boot.
    pub(super) fn join(&self, topic: &str, group: &str) -> Option<(u64, u64)> {
        let mut state = self.lock();
        state.consumers += 1;
        let (consumer, boot) = (state.consumers, state.boot);
        state.topics.get_mut(topic)?.groups.entry(group.to_owned()).or_default().consumers.push(consumer);
        Some((consumer, boot))
    }

    pub(super) fn leave(&self, topic: &str, group: &str, consumer: u64) {
        let mut state = self.lock();
        let Some(topic) = state.topics.get_mut(topic) else { return };
        topic.changed.notify_all();
        let name = group.to_owned();
        let group = topic.groups.entry(name.clone()).or_default();
        group.consumers.retain(|known| *known != consumer);
        // Only for topics of the case that detects it: elsewhere a disconnect may be noticed after the next connect.
        if self.defect == Defect::DisconnectStopsOthers && topic.partitions == 2 {
            group.consumers.clear();
        }
        if self.defect == Defect::AcksLostOnDisconnect {
            group.progress.retain(|_, progress| !progress.done);
        }
        if group.is_ephemeral && group.consumers.is_empty() && self.defect != Defect::EphemeralGroupStays {
            topic.groups.remove(&name);
        }
    }

    /// The consumer's next delivery, or nothing after a while; `Err` if its stream has ended.
    pub(super) fn next(&self, stream: &super::routes::Stream, lease: Duration) -> Result<Option<Value>, ()> {
        let mut state = self.lock();
        for may_wait in [true, false] {
            if state.boot != stream.boot {
                return Err(());
            }
            let item = self.next_delivery(&mut state, stream, lease);
            let changed = Arc::clone(&state.topics.get(&stream.topic).ok_or(())?.changed);
            if item.is_some() {
                changed.notify_all();
                return Ok(item);
            }
            if may_wait {
                state = changed.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        Ok(None)
    }

    fn next_delivery(&self, state: &mut State, stream: &super::routes::Stream, lease: Duration) -> Option<Value> {
        let now = Instant::now();
        let group = state.topics.get(&stream.topic)?.groups.get(&stream.group)?;
        let ended = |progress: &Progress| progress.lease_until.is_some_and(|until| until <= now);
        let expired: Vec<i64> =
            group.progress.iter().filter(|(_, progress)| ended(progress)).map(|(offset, _)| *offset).collect();
        for offset in expired.into_iter().filter(|_| self.defect != Defect::LeasesNeverEnd) {
            self.fail(state, &stream.topic, &stream.group, offset, Failure::Expired);
        }
        let topic = state.topics.get_mut(&stream.topic)?;
        let full = self.full_partitions(topic, &stream.group);
        let group = topic.groups.get_mut(&stream.group)?;
        let position = group.consumers.iter().position(|known| *known == stream.consumer)?;
        let turn = if self.defect == Defect::FirstConsumerOnly { 0 } else { group.turn % group.consumers.len() };
        let mut messages: Vec<_> = topic.messages.iter().collect();
        if self.defect == Defect::LastInFirstOut {
            messages.reverse();
        }
        for (offset, message) in messages {
            let progress = group.progress.entry(*offset).or_default();
            let copy = progress.lease_until.is_some() && progress.copies_for.contains(&stream.consumer);
            let ready = progress.lease_until.is_none()
                && progress.due.is_none_or(|due| due <= now)
                && turn == position
                && !full.contains(&message.partition);
            if progress.done || !(ready || copy) {
                continue;
            }
            if ready {
                progress.attempts += 1;
                progress.owner.clone_from(&stream.owner);
                progress.lease_until = Some(now + lease);
                if self.defect == Defect::Broadcast {
                    progress.copies_for.clone_from(&group.consumers);
                }
                group.turn = position + 1;
            }
            progress.copies_for.retain(|owed| *owed != stream.consumer);
            let attempts = match self.defect {
                Defect::AttemptsConstant => 1,
                Defect::AttemptsFromZero => progress.attempts - 1,
                _ => progress.attempts,
            };
            let mut item = json!({
                "partition": message.partition, "offset": offset, "attempts": attempts, "key": message.key,
                "last_error": progress.last_error, "lease_token": token(*offset, progress.attempts),
            });
            item[message.field] = json!(message.value);
            if self.defect == Defect::LastErrorAtFirstDelivery && progress.last_error.is_empty() {
                item["last_error"] = json!("none");
            }
            if let Some(mut envelope) = message.envelope.as_object().cloned() {
                envelope.retain(|name, _| !self.drops(name));
                item["envelope"] = Value::Object(envelope);
            }
            if self.defect == Defect::EnvelopeAdded && item.get("envelope").is_none() {
                item["envelope"] = json!({ "run_id": "unknown" });
            }
            if self.defect == Defect::RedeliveryWithoutEnvelope && progress.attempts > 1 {
                (item["key"], item["envelope"]) = (json!(""), json!({}));
            }
            if self.defect == Defect::ItemWithoutKey {
                item["key"] = Value::Null;
            }
            if self.defect == Defect::RoutingAdded {
                item["routing"] = json!({ "label": "", "meta": {} });
            }
            return Some(item);
        }
        None
    }

    /// Fields of the envelope that a defect drops.
    fn drops(&self, name: &str) -> bool {
        match self.defect {
            Defect::EnvelopeWithoutLineage => name == "parent_step_id",
            Defect::EnvelopeWithoutIdentity => matches!(name, "tenant_id" | "idempotency_key"),
            Defect::EnvelopeWithoutRouting => matches!(name, "target_topic" | "partition_override"),
            Defect::EnvelopeWithoutPolicy => matches!(name, "deadline" | "retry_policy"),
            Defect::LabelsDropped => name == "labels",
            _ => false,
        }
    }

    fn bytes_max(&self) -> usize {
        PARTITION_BYTES_MAX - usize::from(self.defect == Defect::BytesLimitOneLess)
    }

    fn has_large_partitions(&self) -> bool {
        matches!(self.defect, Defect::InFlightNeverFreed | Defect::InFlightOfAllGroups)
    }

    /// Partitions in which a group has reached the in-flight limit.
    fn full_partitions(&self, topic: &Topic, group: &str) -> BTreeSet<i64> {
        let mut in_flight: BTreeMap<i64, usize> = BTreeMap::new();
        for (name, known) in &topic.groups {
            let counted = name == group || self.defect == Defect::InFlightOfAllGroups;
            for (offset, progress) in known.progress.iter().filter(|_| counted) {
                let spent = self.defect == Defect::InFlightNeverFreed && progress.attempts > 0;
                if let (true, Some(message)) = (spent || progress.lease_until.is_some(), topic.messages.get(offset)) {
                    *in_flight.entry(message.partition).or_default() += 1;
                }
            }
        }
        in_flight.retain(|_, count| *count >= IN_FLIGHT_MAX);
        in_flight.into_keys().collect()
    }

    /// Fails a delivery.
    pub(super) fn fail(&self, state: &mut State, topic_name: &str, group_name: &str, offset: i64, why: Failure<'_>) {
        let Some(topic) = state.topics.get_mut(topic_name) else { return };
        let (partitions, Some(message)) = (topic.partitions, topic.messages.get(&offset)) else { return };
        let Some(progress) = topic.groups.get_mut(group_name).and_then(|group| group.progress.get_mut(&offset)) else {
            return;
        };
        let policy = &message.envelope["retry_policy"];
        progress.lease_until = None;
        match why {
            Failure::Nacked(_) if self.defect == Defect::NackLosesReason => {}
            Failure::Nacked(reason) | Failure::Final(reason) => reason.clone_into(&mut progress.last_error),
            Failure::Expired if self.defect == Defect::WrongTimeoutReason => {
                "timeout".clone_into(&mut progress.last_error);
            }
            Failure::Expired if progress.last_error.is_empty() || self.defect == Defect::TimeoutReplacesReason => {
                "ack_timeout".clone_into(&mut progress.last_error);
            }
            Failure::Expired => {}
        }
        let is_final = matches!(why, Failure::Final(_));
        let most = policy["max_attempts"].as_i64().filter(|most| *most > 0).unwrap_or(i64::MAX);
        let most = if self.defect == Defect::DeadLetterTooEarly && most < i64::MAX { most - 1 } else { most };
        if !is_final && (progress.attempts < most || self.defect == Defect::MaxAttemptsIgnored) {
            let backoff =
                policy["backoff_ms"].as_u64().unwrap_or(0).min(policy["max_backoff_ms"].as_u64().unwrap_or(0));
            let backoff = match self.defect {
                Defect::BackoffIgnored => 0,
                Defect::BackoffUncapped => policy["backoff_ms"].as_u64().unwrap_or(0),
                _ => backoff,
            };
            progress.due = Some(Instant::now() + Duration::from_millis(backoff));
            return;
        }
        progress.done = self.defect != Defect::DeadLetterNotFinished;
        let mut envelope = json!({
            "tenant_id": message.envelope["tenant_id"], "idempotency_key": message.envelope["idempotency_key"],
            "dlq": {
                "original_topic": topic_name, "original_partition": message.partition, "original_offset": offset,
                "attempts": progress.attempts, "last_error": progress.last_error,
                "reason": if is_final { "non_retryable" } else { "max_attempts" },
            },
        });
        match self.defect {
            Defect::DeadLetterWithoutOrigin => envelope["dlq"]["original_offset"] = Value::Null,
            Defect::DeadLetterWithoutAttempts => envelope["dlq"]["attempts"] = json!(0),
            Defect::DeadLetterWithoutIdentity => envelope["tenant_id"] = Value::Null,
            _ => {}
        }
        let value = if self.defect == Defect::DeadLetterWithoutValue { String::new() } else { message.value.clone() };
        let (partition, key, field) = (message.partition, message.key.clone(), message.field);
        let dead_letters = state.topics.entry(format!("dlq.{topic_name}")).or_insert_with(|| Topic::of(partitions));
        dead_letters.append(Message { partition, key, value, field, envelope }, self.defect);
    }

    /// Whether a token is that of an older delivery.
    pub(super) fn is_stale(&self, topic: &str, group: &str, offset: i64, shown: &str) -> bool {
        let state = self.lock();
        let progress = state.topics.get(topic).and_then(|topic| topic.groups.get(group)?.progress.get(&offset));
        progress.is_some_and(|progress| shown != token(offset, progress.attempts))
    }

    /// Acks, or nacks with a reason.
    pub(super) fn settle(
        &self,
        topic: &str,
        group: &str,
        offset: i64,
        owner: &str,
        nack: Option<Failure<'_>>,
    ) -> Result<(), Refusal> {
        let mut state = self.lock();
        let found = state.topics.get_mut(topic).ok_or(Refusal::NoTopic)?;
        let Topic { changed, messages, groups, .. } = found;
        changed.notify_all();
        let all_progress = &mut groups.get_mut(group).ok_or(Refusal::NotOwner)?.progress;
        let Some(progress) = all_progress.get_mut(&offset) else {
            return if self.defect == Defect::AckOfUndelivered { Ok(()) } else { Err(Refusal::NotOwner) };
        };
        if progress.done && self.defect != Defect::AckTwiceRefused {
            return Ok(());
        }
        if progress.done || (progress.owner != owner && self.defect != Defect::AckByAnyOwner) {
            return Err(Refusal::NotOwner);
        }
        if nack.is_some() && self.defect == Defect::NackIgnored {
            return Ok(());
        }
        if let Some(failure) = nack {
            self.fail(&mut state, topic, group, offset, failure);
        } else if self.defect != Defect::AckIgnored {
            progress.done = true;
            progress.lease_until = None;
            if self.defect == Defect::HigherAckFinishesLower {
                let partition = messages.get(&offset).map(|message| message.partition);
                for (lower, progress) in all_progress.range_mut(..offset) {
                    progress.done |= messages.get(lower).map(|message| message.partition) == partition;
                }
            }
            if self.defect == Defect::HistoryTrimmed && found.is_done(offset) {
                found.messages.remove(&offset);
            }
        }
        Ok(())
    }
}
