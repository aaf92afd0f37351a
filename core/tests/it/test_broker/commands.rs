//! One method per command: sends it, runs the broker until it is idle and unwraps the reply.

use driftq_core::command::{
    Ack, CreateGroup, CreateTopic, DeleteGroup, DeleteTopic, DescribeTopic, Extend, Finish, Forget, ListGroups,
    ListTopics, Lookup, Nack, Pause, Peek, Reacquire, Release, Renew, Resume, Retry, Seek, SetPrefetch, Unsubscribe,
};
use std::collections::BTreeMap;

use driftq_core::command::{
    Begin, Claim, Complete, DeliveryClaim, Produce, SeekTo, StoreCommand, Subscribe, TokenClaim,
};
use driftq_core::faults::Faults;
use driftq_core::reply::{
    Delivery, FoundEffect, PartitionInfo, Peeked, Produced, ProgressInfo, StepOutput, StoreReply, TopicInfo,
};
use driftq_core::types::{Effect, EffectStatus, GroupStart, Identity, Outcome, Retention, *};
use driftq_core::{Command, Refusal, Reply};

use super::TestBroker;
use super::builders::*;

impl<F: Faults> TestBroker<F> {
    pub fn topic(&mut self, name: &str, partitions: u32) {
        let reply = self.send(Command::CreateTopic(CreateTopic {
            name: topic(name),
            partitions: Some(partitions),
            retention: Retention::default(),
        }));
        assert!(matches!(reply, Ok(Reply::TopicCreated { partitions: count, .. }) if count == partitions), "{reply:?}");
    }

    pub fn topic_with_retention(&mut self, name: &str, age: Option<u64>, bytes: Option<u64>) {
        let retention = Retention { age: Some(Millis(age.unwrap_or(u64::MAX))), bytes };
        let reply = self.send(Command::CreateTopic(CreateTopic { name: topic(name), partitions: None, retention }));
        assert!(matches!(reply, Ok(Reply::TopicCreated { partitions: 1, .. })), "{reply:?}");
    }

    pub fn produce(&mut self, topic_name: &str, value: &str) -> Offset {
        self.try_produce(Produce::new(topic(topic_name), "", value)).expect("accepted").offset
    }

    pub fn produce_with(&mut self, topic_name: &str, value: &str, change: impl FnOnce(&mut Produce)) -> Offset {
        let mut request = Produce::new(topic(topic_name), "", value);
        change(&mut request);
        self.try_produce(request).expect("accepted").offset
    }

    pub fn produce_to(&mut self, topic_name: &str, partition: u32, value: &str) -> Offset {
        self.try_produce(to_partition(topic_name, partition, "", value)).expect("accepted").offset
    }

    pub fn try_produce(&mut self, request: Produce) -> Result<Produced, Refusal> {
        match self.send(Command::Produce(Box::new(request)))? {
            Reply::Produced(produced) => Ok(produced),
            other => panic!("unexpected reply to a produce: {other:?}"),
        }
    }

    pub fn group(&mut self, topic_name: &str, group_name: &str) {
        let start = GroupStart::Earliest;
        let reply =
            self.send(Command::CreateGroup(CreateGroup { topic: topic(topic_name), group: group(group_name), start }));
        assert_eq!(reply, Ok(Reply::Success));
    }

    pub fn subscribe(&mut self, topic_name: &str, group_name: &str, owner_name: &str) -> ConsumerId {
        self.subscribe_with(topic_name, group_name, owner_name, |_| {})
    }

    pub fn subscribe_with(
        &mut self,
        topic_name: &str,
        group_name: &str,
        owner_name: &str,
        change: impl FnOnce(&mut Subscribe),
    ) -> ConsumerId {
        let mut request = subscribe(topic_name, group_name, owner_name);
        change(&mut request);
        match self.send(Command::Subscribe(request)) {
            Ok(Reply::Subscribed { consumer }) => consumer,
            other => panic!("unexpected reply to a subscribe: {other:?}"),
        }
    }

    /// The deliveries since the last call.
    pub fn delivered(&mut self) -> Vec<Delivery> {
        std::mem::take(&mut self.deliveries).into_iter().map(|(_, delivery)| delivery).collect()
    }

    /// The values delivered since the last call.
    pub fn delivered_values(&mut self) -> Vec<String> {
        self.delivered().iter().map(value).collect()
    }

    /// The only delivery since the last call; panics if there is none or more than one.
    pub fn expect_delivery(&mut self) -> Delivery {
        let mut delivered = self.delivered();
        assert_eq!(delivered.len(), 1, "exactly one delivery");
        delivered.remove(0)
    }

    pub fn ack(&mut self, claim: Claim) -> Result<(), Refusal> {
        self.send(Command::Ack(Ack(claim))).map(|reply| assert_eq!(reply, Reply::Success))
    }

    pub fn nack(&mut self, claim: Claim, reason: &str) -> Result<(), Refusal> {
        self.send(Command::Nack(Nack { claim, reason: reason.into(), retry: Retry::ByPolicy }))
            .map(|reply| assert_eq!(reply, Reply::Success))
    }

    pub fn nack_with_delay(&mut self, claim: Claim, delay: u64) -> Result<(), Refusal> {
        self.send(Command::Nack(Nack { claim, reason: "".into(), retry: Retry::After(Millis(delay)) }))
            .map(|reply| assert_eq!(reply, Reply::Success))
    }

    pub fn extend(&mut self, claim: Claim, lease: Option<u64>) -> Result<Timestamp, Refusal> {
        match self.send(Command::Extend(Extend { claim, lease: lease.map(Millis) }))? {
            Reply::Extended { lease_until } => Ok(lease_until),
            other => panic!("unexpected reply to an extend: {other:?}"),
        }
    }

    pub fn release(&mut self, claim: Claim) -> Result<(), Refusal> {
        self.send(Command::Release(Release(claim))).map(|reply| assert_eq!(reply, Reply::Success))
    }

    pub fn unsubscribe(&mut self, consumer: ConsumerId) {
        assert_eq!(self.send(Command::Unsubscribe(Unsubscribe { consumer })), Ok(Reply::Success));
    }

    pub fn set_prefetch(&mut self, consumer: ConsumerId, prefetch: u32) {
        assert_eq!(self.send(Command::SetPrefetch(SetPrefetch { consumer, prefetch })), Ok(Reply::Success));
    }

    pub fn group_from_latest(&mut self, topic_name: &str, group_name: &str) {
        let start = GroupStart::Latest;
        let reply =
            self.send(Command::CreateGroup(CreateGroup { topic: topic(topic_name), group: group(group_name), start }));
        assert_eq!(reply, Ok(Reply::Success));
    }

    pub fn delete_group(&mut self, topic_name: &str, group_name: &str) {
        let reply = self.send(Command::DeleteGroup(DeleteGroup { topic: topic(topic_name), group: group(group_name) }));
        assert_eq!(reply, Ok(Reply::Success));
    }

    pub fn delete_topic(&mut self, name: &str) {
        assert_eq!(self.send(Command::DeleteTopic(DeleteTopic { name: topic(name) })), Ok(Reply::Success));
    }

    pub fn pause(&mut self, topic_name: &str, group_name: &str) {
        assert_eq!(
            self.send(Command::Pause(Pause { topic: topic(topic_name), group: group(group_name) })),
            Ok(Reply::Success)
        );
    }

    pub fn resume(&mut self, topic_name: &str, group_name: &str) {
        assert_eq!(
            self.send(Command::Resume(Resume { topic: topic(topic_name), group: group(group_name) })),
            Ok(Reply::Success)
        );
    }

    pub fn topics(&mut self) -> Vec<String> {
        match self.send(Command::ListTopics(ListTopics::default())) {
            Ok(Reply::Topics(names)) => names.iter().map(|name| name.as_str().to_owned()).collect(),
            other => panic!("unexpected reply to a list: {other:?}"),
        }
    }

    pub fn groups(&mut self, topic_name: &str) -> Vec<String> {
        match self.send(Command::ListGroups(ListGroups { topic: topic(topic_name) })) {
            Ok(Reply::Groups(groups)) => groups.iter().map(|group| group.name.as_str().to_owned()).collect(),
            other => panic!("unexpected reply to a list: {other:?}"),
        }
    }

    /// Every message stored in a partition, acked or not.
    pub fn stored_messages(&mut self, topic_name: &str, partition: u32) -> Vec<Peeked> {
        let (partition, offset, limit) = (PartitionId(partition), Offset(0), usize::MAX);
        match self.send(Command::Peek(Peek { topic: topic(topic_name), partition, offset, limit })) {
            Ok(Reply::Peeked(messages)) => messages,
            other => panic!("unexpected reply to a peek: {other:?}"),
        }
    }

    /// The values of every message stored in the first partition.
    pub fn stored_values(&mut self, topic_name: &str) -> Vec<String> {
        self.stored_messages(topic_name, 0)
            .iter()
            .map(|peeked| String::from_utf8_lossy(peeked.body.value()).into_owned())
            .collect()
    }

    /// The dead letters of a topic's first partition, oldest first.
    pub fn dead_letters(&mut self, source: &str) -> Vec<DeadLetter> {
        let dead = format!("dlq.{source}");
        let dead_letters = self.stored_messages(&dead, 0).into_iter().map(|item| item.body.metadata().dead_letter);
        dead_letters.map(|dead_letter| *dead_letter.expect("a dead letter has its origin in its metadata")).collect()
    }

    /// The progress of a group in the first partition.
    pub fn progress(&mut self, topic_name: &str, group_name: &str) -> ProgressInfo {
        let groups = self.describe(topic_name).groups;
        groups.into_iter().find(|info| info.group == group(group_name)).expect("the group exists").partitions[0]
    }

    /// The description of the first partition.
    pub fn partition_info(&mut self, topic_name: &str) -> PartitionInfo {
        self.describe(topic_name).partitions[0]
    }

    /// The consumer and the value of each delivery since the last call.
    pub fn delivered_by_consumer(&mut self) -> Vec<(ConsumerId, String)> {
        let deliveries = std::mem::take(&mut self.deliveries);
        deliveries.into_iter().map(|(consumer, delivery)| (consumer, value(&delivery))).collect()
    }

    pub fn seek(&mut self, topic_name: &str, group_name: &str, to: SeekTo) -> Result<(), Refusal> {
        self.send(Command::Seek(Seek { topic: topic(topic_name), group: group(group_name), to }))
            .map(|reply| assert_eq!(reply, Reply::Success))
    }

    pub fn describe(&mut self, name: &str) -> TopicInfo {
        match self.send(Command::DescribeTopic(DescribeTopic { name: topic(name) })) {
            Ok(Reply::Topic(info)) => *info,
            other => panic!("unexpected reply to a describe: {other:?}"),
        }
    }

    /// Sends a command to the idempotency store that has a reply of its own.
    pub fn send_store(&mut self, request: StoreCommand) -> Result<StoreReply, Refusal> {
        match self.send(Command::Store(Box::new(request)))? {
            Reply::Store(reply) => Ok(reply),
            other => panic!("unexpected reply of the store: {other:?}"),
        }
    }

    pub fn begin(&mut self, identity: &Identity) -> Result<StoreReply, Refusal> {
        self.begin_with(identity, |_| {})
    }

    pub fn begin_with(&mut self, identity: &Identity, change: impl FnOnce(&mut Begin)) -> Result<StoreReply, Refusal> {
        let mut request = Begin::new(identity.clone(), owner("w"));
        change(&mut request);
        self.send_store(StoreCommand::Begin(request))
    }

    /// Begins on behalf of a delivery.
    pub fn begin_for(&mut self, identity: &Identity, delivery: &Delivery) -> Result<StoreReply, Refusal> {
        let token = TokenClaim::Shown(delivery.token);
        let claim = DeliveryClaim { partition: delivery.partition, offset: delivery.offset, token };
        self.begin_with(identity, |request| request.delivery = Some(claim))
    }

    pub fn finish(&mut self, identity: &Identity, token: LeaseToken, outcome: Outcome) -> Result<(), Refusal> {
        self.finish_by(identity, TokenClaim::Shown(token), outcome)
    }

    pub fn finish_by(&mut self, identity: &Identity, token: TokenClaim, outcome: Outcome) -> Result<(), Refusal> {
        let request = StoreCommand::Finish(Finish { identity: identity.clone(), token, outcome, dead_letter: None });
        self.send(Command::Store(Box::new(request))).map(|reply| assert_eq!(reply, Reply::Success))
    }

    pub fn reacquire(&mut self, identity: &Identity) -> Result<StoreReply, Refusal> {
        self.send_store(StoreCommand::Reacquire(Reacquire {
            identity: identity.clone(),
            owner: owner("other"),
            lease: None,
        }))
    }

    pub fn renew(&mut self, identity: &Identity, token: LeaseToken, lease: u64) -> Result<StoreReply, Refusal> {
        let (identity, token, lease) = (identity.clone(), TokenClaim::Shown(token), Some(Millis(lease)));
        self.send_store(StoreCommand::Renew(Renew { identity, token, lease }))
    }

    pub fn forget(&mut self, identity: &Identity) -> Result<(), Refusal> {
        let request = StoreCommand::Forget(Forget { identity: identity.clone() });
        self.send(Command::Store(Box::new(request))).map(|reply| assert_eq!(reply, Reply::Success))
    }

    /// The stored effect; `None` if the store does not know it.
    pub fn effect(&mut self, identity: &Identity) -> Option<Effect> {
        self.found_effect(identity).map(|found| found.effect)
    }

    /// As [`TestBroker::effect`], with its result.
    pub fn found_effect(&mut self, identity: &Identity) -> Option<FoundEffect> {
        match self.send_store(StoreCommand::Lookup(Lookup { identity: identity.clone() })) {
            Ok(StoreReply::Effect(effect)) => Some(*effect),
            Err(Refusal::UnknownEffect) => None,
            other => panic!("unexpected reply to a get: {other:?}"),
        }
    }

    pub fn status(&mut self, identity: &Identity) -> Option<EffectStatus> {
        self.effect(identity).map(|effect| effect.status)
    }

    pub fn complete(
        &mut self,
        claim: Claim,
        result: Option<&str>,
        produce: Vec<Produce>,
    ) -> Result<Vec<StepOutput>, Refusal> {
        let request = Complete { claim, result: result.map(Into::into), produce, failed: None };
        match self.send(Command::Complete(Box::new(request)))? {
            Reply::Completed(outputs) => Ok(outputs.to_vec()),
            other => panic!("unexpected reply to a complete: {other:?}"),
        }
    }

    /// Runs a command that must be refused and checks that the state is unchanged.
    pub fn refused<T: std::fmt::Debug>(&mut self, request: impl FnOnce(&mut Self) -> Result<T, Refusal>) -> Refusal {
        let digest = self.digest();
        let refusal = request(self).expect_err("the command is refused");
        assert_eq!(self.digest(), digest, "refused with {refusal}, but the state changed");
        refusal
    }

    /// The number of effects of a tenant, after checking every count of the store against a full scan.
    pub fn effect_count(&self, tenant: &str) -> u64 {
        let store = self.pipeline.state().store();
        let mut counted = BTreeMap::<String, u64>::new();
        for (namespace, table) in store.tables() {
            assert!(!table.is_empty(), "an empty table is dropped");
            for (key, _) in table.effects() {
                *counted.entry(namespace.identity(key).tenant().to_owned()).or_default() += 1;
            }
        }
        assert_eq!(store.len() as u64, counted.values().sum::<u64>());
        counted.iter().for_each(|(tenant, count)| assert_eq!(store.len_of(tenant), *count, "count of tenant {tenant}"));
        assert_eq!(store.len_of(tenant), counted.get(tenant).copied().unwrap_or(0));
        store.len_of(tenant)
    }
}
