//! Topics, groups and deliveries, in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::Lie;
use super::store::Store;

/// How long a stream sleeps when nothing happens.
const IDLE: Duration = Duration::from_millis(40);
/// v1's own limits.
const IN_FLIGHT_MAX: usize = 2;
const PARTITION_MESSAGES_MAX: usize = 2;
const PARTITION_BYTES_MAX: usize = 20;

pub(super) struct Broker {
    pub(super) lie: Lie,
    state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) topics: BTreeMap<String, Topic>,
    pub(super) store: Store,
    produced_keys: BTreeSet<(String, String, String)>,
    consumers: u64,
    produces: u64,
    /// Streams of an earlier one have ended.
    boot: u64,
}

pub(super) struct Topic {
    /// What the streams of this topic wait for; one for all topics would wake up everybody at every step.
    changed: Arc<Condvar>,
    pub(super) partitions: i64,
    next_offset: i64,
    messages: BTreeMap<i64, Message>,
    pub(super) groups: BTreeMap<String, Group>,
}

#[derive(Clone)]
struct Message {
    partition: i64,
    key: String,
    value: String,
    envelope: Value,
}

#[derive(Default)]
pub(super) struct Group {
    consumers: Vec<u64>,
    turn: usize,
    works: BTreeMap<i64, Work>,
}

/// How far a group is with a message.
#[derive(Default)]
struct Work {
    done: bool,
    attempts: i64,
    owner: String,
    lease_until: Option<Instant>,
    due: Option<Instant>,
    last_error: String,
    /// Consumers that a lying broker owes a copy of this delivery.
    copies_for: Vec<u64>,
}

pub(super) struct Produce<'a> {
    pub(super) topic: &'a str,
    pub(super) key: &'a str,
    pub(super) value: &'a str,
    pub(super) envelope: &'a Value,
}

pub(super) enum Refusal {
    Bad(&'static str),
    NoTopic,
    Overloaded,
    NotOwner,
}

impl Topic {
    pub(super) fn of(partitions: i64) -> Self {
        Self { changed: Arc::default(), partitions, next_offset: 0, messages: BTreeMap::new(), groups: BTreeMap::new() }
    }

    fn append(&mut self, message: Message, lie: Lie) {
        let offset = if lie == Lie::OffsetsFall { 1_000_000 - self.next_offset } else { self.next_offset };
        self.messages.insert(offset, message);
        self.next_offset += 1;
        self.changed.notify_all();
    }

    /// Messages and bytes of a partition that some group has not done, or all where there is no group.
    fn load(&self, partition: i64) -> (usize, usize) {
        let done = |offset: &i64| {
            !self.groups.is_empty()
                && self.groups.values().all(|group| group.works.get(offset).is_some_and(|work| work.done))
        };
        let open = self.messages.iter().filter(|(offset, message)| message.partition == partition && !done(offset));
        open.fold((0, 0), |(count, bytes), (_, message)| (count + 1, bytes + message.key.len() + message.value.len()))
    }
}

impl Broker {
    pub(super) fn new(lie: Lie) -> Self {
        Self { lie, state: Mutex::default() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all streams and forgets what v1 lets a broker forget: leases, attempts, errors, keys, and acks but for the highest.
    pub(super) fn restart(&self) {
        let mut state = self.lock();
        state.boot += 1;
        state.produced_keys.clear();
        if self.lie == Lie::TopicsLostOnRestart {
            state.topics.clear();
        }
        state.store = Store::default();
        for topic in state.topics.values_mut() {
            topic.changed.notify_all();
            if self.lie == Lie::MessagesLostOnRestart {
                topic.messages.clear();
            }
            if self.lie == Lie::OffsetsRestart {
                topic.next_offset = 0;
            }
            let Topic { messages, groups, .. } = topic;
            for group in groups.values_mut() {
                group.consumers.clear();
                let mut highest: BTreeMap<i64, i64> = BTreeMap::new();
                for (offset, _) in group.works.iter().filter(|(_, work)| work.done) {
                    if let Some(message) = messages.get(offset) {
                        highest.insert(message.partition, *offset);
                    }
                }
                group.works.clear();
                for (offset, message) in messages.iter() {
                    let done = highest.get(&message.partition).is_some_and(|highest| offset <= highest);
                    let done = done && self.lie != Lie::AcksLostOnRestart;
                    group.works.insert(*offset, Work { done, ..Work::default() });
                }
            }
        }
    }

    pub(super) fn produce(&self, asked: &Produce<'_>) -> Result<(), Refusal> {
        let mut state = self.lock();
        let text = |name: &str| asked.envelope[name].as_str().unwrap_or_default();
        let target = text("target_topic");
        let name = if target.is_empty() || self.lie == Lie::TargetTopicIgnored { asked.topic } else { target };
        state.produces += 1;
        let produces = state.produces;
        let topic = state.topics.get_mut(name).ok_or(Refusal::NoTopic)?;
        let partition = self.partition(asked, name, topic.partitions, produces);
        let mut identity = (text("tenant_id").to_owned(), name.to_owned(), text("idempotency_key").to_owned());
        match self.lie {
            Lie::IdentityWithoutTopic => identity.1.clear(),
            Lie::IdentityWithoutTenant => identity.0.clear(),
            _ => {}
        }
        let keyed = !identity.2.is_empty()
            || (self.lie == Lie::EmptyKeyDeduplicated && asked.envelope["idempotency_key"] == "");
        if partition.is_err() && self.lie == Lie::FailedProduceTakesKey {
            state.produced_keys.insert(identity);
            return partition.map(|_| ());
        }
        let partition = partition?;
        let topic = state.topics.get(name).ok_or(Refusal::NoTopic)?;
        let (count, bytes) = topic.load(partition);
        let fits = self.has_large_partitions()
            || count < PARTITION_MESSAGES_MAX && bytes + asked.key.len() + asked.value.len() <= self.bytes_max();
        if keyed && self.lie != Lie::DuplicateEnqueued && state.produced_keys.contains(&identity) {
            return if self.lie == Lie::DuplicateRefused { Err(Refusal::NotOwner) } else { Ok(()) };
        }
        if !fits && self.lie != Lie::OverloadedButEnqueued {
            return Err(Refusal::Overloaded);
        }
        let envelope = asked.envelope.clone();
        let value =
            if self.lie == Lie::PayloadTrimmed { asked.value.replace('\\', "") } else { asked.value.to_owned() };
        let message = Message { partition, key: asked.key.to_owned(), value, envelope };
        if let Some(topic) = state.topics.get_mut(name) {
            if self.lie == Lie::StoredTwice && topic.partitions == 4 {
                topic.append(Message { partition: (partition + 1) % 4, ..message.clone() }, self.lie);
            }
            topic.append(message, self.lie);
        }
        if keyed {
            state.produced_keys.insert(identity);
        }
        if fits { Ok(()) } else { Err(Refusal::Overloaded) }
    }

    fn partition(&self, asked: &Produce<'_>, topic: &str, count: i64, produces: u64) -> Result<i64, Refusal> {
        let hash = |text: &str| text.bytes().fold(7_u32, |hash, byte| hash.wrapping_mul(31) ^ u32::from(byte));
        let by_key = match self.lie {
            _ if asked.key.is_empty() => 0,
            Lie::PartitionAlwaysZero => 0,
            Lie::PartitionOfKeyDrifts => i64::try_from(produces).unwrap_or(0) % count,
            Lie::PartitionOfKeyPerTopic => i64::from(hash(&format!("{topic}{}", asked.key))) % count,
            _ => i64::from(hash(asked.key)) % count,
        };
        let chosen = match asked.envelope["partition_override"].as_i64() {
            Some(chosen) if (0..count).contains(&chosen) && self.lie != Lie::OverrideIgnored => chosen,
            Some(chosen) if (0..count).contains(&chosen) => by_key,
            Some(_) if self.lie == Lie::OutOfRangeAccepted => 0,
            Some(_) => return Err(Refusal::Bad("partition_override is out of range")),
            None if self.lie == Lie::PartitionsReversed => count - 1 - by_key,
            None => by_key,
        };
        Ok(chosen)
    }

    /// Registers a consumer; its number and the boot it belongs to.
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
        let group = topic.groups.entry(group.to_owned()).or_default();
        group.consumers.retain(|known| *known != consumer);
        // Only where it matters: elsewhere who has gone may be missed later than the next has come.
        if self.lie == Lie::LeavingSilencesTheOthers && topic.partitions == 2 {
            group.consumers.clear();
        }
        if self.lie == Lie::AcksGoWithTheirStream {
            group.works.retain(|_, work| !work.done);
        }
    }

    /// What the consumer is handed next, or nothing after a while; `Err` when its stream is over.
    pub(super) fn next(&self, stream: &super::routes::Stream, lease: Duration) -> Result<Option<Value>, ()> {
        let mut state = self.lock();
        for patient in [true, false] {
            if state.boot != stream.boot {
                return Err(());
            }
            let item = self.hand_out(&mut state, stream, lease);
            let changed = Arc::clone(&state.topics.get(&stream.topic).ok_or(())?.changed);
            if item.is_some() {
                changed.notify_all();
                return Ok(item);
            }
            if patient {
                state = changed.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        Ok(None)
    }

    fn hand_out(&self, state: &mut State, stream: &super::routes::Stream, lease: Duration) -> Option<Value> {
        let now = Instant::now();
        let group = state.topics.get(&stream.topic)?.groups.get(&stream.group)?;
        let ended = |work: &Work| work.lease_until.is_some_and(|until| until <= now);
        let expired: Vec<i64> = group.works.iter().filter(|(_, work)| ended(work)).map(|(offset, _)| *offset).collect();
        for offset in expired.into_iter().filter(|_| self.lie != Lie::LeasesNeverEnd) {
            self.fail(state, &stream.topic, &stream.group, offset, None);
        }
        let topic = state.topics.get_mut(&stream.topic)?;
        let full = self.full_partitions(topic, &stream.group);
        let group = topic.groups.get_mut(&stream.group)?;
        let position = group.consumers.iter().position(|known| *known == stream.consumer)?;
        let turn = if self.lie == Lie::FirstConsumerOnly { 0 } else { group.turn % group.consumers.len() };
        let mut messages: Vec<_> = topic.messages.iter().collect();
        if self.lie == Lie::LastInFirstOut {
            messages.reverse();
        }
        for (offset, message) in messages {
            let work = group.works.entry(*offset).or_default();
            let copy = work.lease_until.is_some() && work.copies_for.contains(&stream.consumer);
            let ready = work.lease_until.is_none()
                && work.due.is_none_or(|due| due <= now)
                && turn == position
                && !full.contains(&message.partition);
            if work.done || !(ready || copy) {
                continue;
            }
            if ready {
                work.attempts += 1;
                work.owner.clone_from(&stream.owner);
                work.lease_until = Some(now + lease);
                if self.lie == Lie::Broadcast {
                    work.copies_for.clone_from(&group.consumers);
                }
                group.turn = position + 1;
            }
            work.copies_for.retain(|owed| *owed != stream.consumer);
            let attempts = match self.lie {
                Lie::AttemptsDoNotRise => 1,
                Lie::AttemptsFromZero => work.attempts - 1,
                _ => work.attempts,
            };
            let mut item = json!({
                "partition": message.partition, "offset": offset, "attempts": attempts, "key": message.key,
                "value": message.value, "last_error": work.last_error,
            });
            if self.lie == Lie::ErrorFromTheFirst && work.last_error.is_empty() {
                item["last_error"] = json!("none");
            }
            if let Some(mut envelope) = message.envelope.as_object().cloned() {
                envelope.retain(|name, _| !self.hides(name));
                item["envelope"] = Value::Object(envelope);
            }
            if self.lie == Lie::EnvelopeInvented && item.get("envelope").is_none() {
                item["envelope"] = json!({ "run_id": "somebody's" });
            }
            if self.lie == Lie::RedeliveryIsBare && work.attempts > 1 {
                (item["key"], item["envelope"]) = (json!(""), json!({}));
            }
            if self.lie == Lie::ItemWithoutKey {
                item["key"] = Value::Null;
            }
            if self.lie == Lie::RoutingInvented {
                item["routing"] = json!({ "label": "", "meta": {} });
            }
            return Some(item);
        }
        None
    }

    /// Fields of the envelope that a lying broker does not hand on.
    fn hides(&self, name: &str) -> bool {
        match self.lie {
            Lie::EnvelopeWithoutLineage => name == "parent_step_id",
            Lie::EnvelopeWithoutIdentity => matches!(name, "tenant_id" | "idempotency_key"),
            Lie::EnvelopeWithoutRouting => matches!(name, "target_topic" | "partition_override"),
            Lie::EnvelopeWithoutPolicy => matches!(name, "deadline" | "retry_policy"),
            Lie::LabelsSwallowed => name == "labels",
            _ => false,
        }
    }

    fn bytes_max(&self) -> usize {
        PARTITION_BYTES_MAX - usize::from(self.lie == Lie::BytesLimitOneLess)
    }

    fn has_large_partitions(&self) -> bool {
        matches!(self.lie, Lie::InFlightNeverFreed | Lie::InFlightOfAllGroups)
    }

    /// Partitions of which a group has as much in flight as it may.
    fn full_partitions(&self, topic: &Topic, group: &str) -> BTreeSet<i64> {
        let mut in_flight: BTreeMap<i64, usize> = BTreeMap::new();
        for (name, known) in &topic.groups {
            let counted = name == group || self.lie == Lie::InFlightOfAllGroups;
            for (offset, work) in known.works.iter().filter(|_| counted) {
                let spent = self.lie == Lie::InFlightNeverFreed && work.attempts > 0;
                if let (true, Some(message)) = (spent || work.lease_until.is_some(), topic.messages.get(offset)) {
                    *in_flight.entry(message.partition).or_default() += 1;
                }
            }
        }
        in_flight.retain(|_, count| *count >= IN_FLIGHT_MAX);
        in_flight.into_keys().collect()
    }

    /// A delivery has failed: with a reason, or by its lease's end.
    fn fail(&self, state: &mut State, topic_name: &str, group_name: &str, offset: i64, reason: Option<&str>) {
        let Some(topic) = state.topics.get_mut(topic_name) else { return };
        let (partitions, Some(message)) = (topic.partitions, topic.messages.get(&offset)) else { return };
        let Some(work) = topic.groups.get_mut(group_name).and_then(|group| group.works.get_mut(&offset)) else {
            return;
        };
        let policy = &message.envelope["retry_policy"];
        work.lease_until = None;
        match reason {
            Some(_) if self.lie == Lie::NackLosesReason => {}
            Some(reason) => reason.clone_into(&mut work.last_error),
            None if self.lie == Lie::WrongTimeoutReason => "timeout".clone_into(&mut work.last_error),
            None if work.last_error.is_empty() || self.lie == Lie::TimeoutReplacesReason => {
                "ack_timeout".clone_into(&mut work.last_error);
            }
            None => {}
        }
        let most = policy["max_attempts"].as_i64().filter(|most| *most > 0).unwrap_or(i64::MAX);
        let most = if self.lie == Lie::DeadLetterTooEarly && most < i64::MAX { most - 1 } else { most };
        if work.attempts < most || self.lie == Lie::MaxAttemptsIgnored {
            let backoff =
                policy["backoff_ms"].as_u64().unwrap_or(0).min(policy["max_backoff_ms"].as_u64().unwrap_or(0));
            let backoff = match self.lie {
                Lie::BackoffIgnored => 0,
                Lie::BackoffUncapped => policy["backoff_ms"].as_u64().unwrap_or(0),
                _ => backoff,
            };
            work.due = Some(Instant::now() + Duration::from_millis(backoff));
            return;
        }
        work.done = self.lie != Lie::DeadLetterNotDone;
        let mut envelope = json!({
            "tenant_id": message.envelope["tenant_id"], "idempotency_key": message.envelope["idempotency_key"],
            "dlq": {
                "original_topic": topic_name, "original_partition": message.partition, "original_offset": offset,
                "attempts": work.attempts, "last_error": work.last_error,
            },
        });
        match self.lie {
            Lie::DeadLetterWithoutOrigin => envelope["dlq"]["original_offset"] = Value::Null,
            Lie::DeadLetterWithoutAttempts => envelope["dlq"]["attempts"] = json!(0),
            Lie::DeadLetterWithoutIdentity => envelope["tenant_id"] = Value::Null,
            _ => {}
        }
        let value = if self.lie == Lie::DeadLetterWithoutValue { String::new() } else { message.value.clone() };
        let (partition, key) = (message.partition, message.key.clone());
        let letters = state.topics.entry(format!("dlq.{topic_name}")).or_insert_with(|| Topic::of(partitions));
        letters.append(Message { partition, key, value, envelope }, self.lie);
    }

    /// An ack, or a nack with its reason.
    pub(super) fn settle(
        &self,
        topic: &str,
        group: &str,
        offset: i64,
        owner: &str,
        nack: Option<&str>,
    ) -> Result<(), Refusal> {
        let mut state = self.lock();
        let found = state.topics.get_mut(topic).ok_or(Refusal::NoTopic)?;
        let Topic { changed, messages, groups, .. } = found;
        changed.notify_all();
        let works = &mut groups.get_mut(group).ok_or(Refusal::NotOwner)?.works;
        let Some(work) = works.get_mut(&offset) else {
            return if self.lie == Lie::AckOfUndelivered { Ok(()) } else { Err(Refusal::NotOwner) };
        };
        if work.done && self.lie != Lie::AckTwiceRefused {
            return Ok(());
        }
        if work.done || (work.owner != owner && self.lie != Lie::AckByAnybody) {
            return Err(Refusal::NotOwner);
        }
        if nack.is_some() && self.lie == Lie::NackForgotten {
            return Ok(());
        }
        if let Some(reason) = nack {
            self.fail(&mut state, topic, group, offset, Some(reason));
        } else if self.lie != Lie::AckForgotten {
            work.done = true;
            work.lease_until = None;
            if self.lie == Lie::HigherAckFinishesLower {
                let partition = messages.get(&offset).map(|message| message.partition);
                for (lower, work) in works.range_mut(..offset) {
                    work.done |= messages.get(lower).map(|message| message.partition) == partition;
                }
            }
        }
        Ok(())
    }
}
