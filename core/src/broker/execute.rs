//! Executes commands: decide, commit, reply.

use super::{Broker, LogSink, SpaceClass};
use crate::command::{
    Ack, ChangeRetention, CloseStream, Command, Complete, CreateGroup, CreateTopic, DeleteGroup, DeleteTopic,
    DescribeTopic, Extend, Finish, Forget, GroupLifetime, ListEffects, ListGroups, ListTopics, Lookup, Nack,
    OnDisconnect, Pause, Purge, Reacquire, Redrive, RedriveSelection, Release, Renew, Resume, Seek, SeekTo,
    SetPrefetch, StoreCommand, Subscribe, Unsubscribe, Withdraw,
};
use crate::decide::effects::EffectDecisions;
use crate::decide::{self, Decision, admin, complete, dead_letter, produce, settle};
use crate::faults::Faults;
use crate::index::{Consumer, Credit, LeaseEnd};
use crate::record::Event;
use crate::reply::{CloseCause, ListedGroup, Output, Overload, Refusal, Reply};
use crate::state::Group;
use crate::types::{Caller, ConsumerId, GroupId, GroupOrigin, MessageRef, TopicId, TopicName};

/// Beyond the limit of stored completions or winners, this fraction of the limit is removed at once.
const FREED_SHARE: u64 = 1_024;

impl<F: Faults> Broker<F> {
    // One arm per command: an exhaustive match in one place shows how each is decided and which space it may use.
    pub(super) fn execute(
        &mut self,
        caller: &Caller,
        command: &mut Command,
        log: &mut dyn LogSink,
    ) -> Result<Reply, Refusal> {
        match command {
            Command::Produce(request) => {
                let mut decision = produce::produce(&self.context(), request);
                match &decision {
                    Ok(Decision { reply: Reply::Produced(at), .. }) => {
                        self.counters.deduplicated += u64::from(at.duplicate);
                    }
                    Ok(_) => {}
                    Err(refusal) => self.index_refusal(refusal),
                }
                self.commit_decided(&mut decision, SpaceClass::Growth, log)
            }
            Command::Ack(Ack(claim)) => {
                let mut decision = settle::ack(&self.context(), claim);
                self.commit_decided(&mut decision, SpaceClass::Drain, log)
            }
            Command::AckCumulative(request) => {
                let decision = settle::ack_cumulative(&self.context(), request)?;
                self.commit_and_reply(decision, SpaceClass::Drain, log)
            }
            Command::Nack(Nack { claim, reason, retry }) => {
                let decision = settle::nack(&self.context(), claim, reason, *retry)?;
                self.commit_and_reply(decision, SpaceClass::Drain, log).inspect(|_| self.counters.nacked += 1)
            }
            Command::Extend(Extend { claim, lease }) => {
                let decision = settle::extend(&self.context(), claim, *lease)?;
                self.commit_and_reply(decision, SpaceClass::Churn, log)
            }
            Command::Release(Release(claim)) => {
                let decision = settle::release(&self.context(), claim)?;
                self.commit_and_reply(decision, SpaceClass::Drain, log)
            }
            Command::Withdraw(Withdraw(claim)) => {
                let decision = settle::withdraw(&self.context(), claim)?;
                self.commit_and_reply(decision, SpaceClass::Drain, log)
            }
            Command::ExpireLease(request) => {
                let message_ref = settle::leased_message(&self.context(), request)?;
                match self.index.lease_end(&message_ref) {
                    Some(LeaseEnd::Unreleased(_) | LeaseEnd::Unread(_)) => self.withdraw_delivery(message_ref, log)?,
                    _ => self.expire_lease(&message_ref, log)?,
                }
                Ok(Reply::Success)
            }
            Command::Complete(request) => self.complete(request, log),
            Command::Subscribe(request) => self.subscribe(caller, request, log),
            Command::SetPrefetch(SetPrefetch { consumer, prefetch }) => {
                self.index.set_prefetch(*consumer, *prefetch).ok_or(Refusal::UnknownConsumer)?;
                Ok(Reply::Success)
            }
            Command::Unsubscribe(Unsubscribe { consumer }) => self.unsubscribe(*consumer, log),
            Command::CloseStream(CloseStream { consumer }) => {
                self.index.consumers.get(consumer).ok_or(Refusal::UnknownConsumer)?;
                self.withdraw_unreleased(*consumer, log);
                self.faults.disconnect(&self.state, &mut self.index, *consumer, self.now);
                Ok(Reply::Success)
            }
            Command::CreateTopic(CreateTopic { name, partitions, retention }) => {
                let decision = admin::create_topic(&self.context(), name, *partitions, *retention)?;
                self.commit_and_reply(decision, SpaceClass::Growth, log)
            }
            Command::ChangeRetention(ChangeRetention { name, age, bytes }) => {
                let topic = decide::topic(&self.state, name)?;
                let decision = admin::change_retention(&self.context(), topic, *age, *bytes);
                self.commit_and_reply(decision, SpaceClass::Drain, log)
            }
            Command::DeleteTopic(DeleteTopic { name }) => self.delete_topic(name, log),
            Command::CreateGroup(CreateGroup { topic, group, start }) => {
                let topic = decide::topic(&self.state, topic)?;
                let decision = admin::create_group(&self.context(), topic, group, *start, GroupOrigin::Requested)?;
                self.commit_and_reply(decision, SpaceClass::Drain, log)
            }
            Command::DeleteGroup(DeleteGroup { topic, group }) => {
                let topic = decide::topic(&self.state, topic)?;
                let (topic_id, group_id) = (topic.id(), admin::group(topic, group)?.id());
                let decision = admin::delete_group(topic, group)?;
                let consumers: Vec<_> = self.index.members(topic_id, group_id).collect();
                self.commit_deletion(consumers, CloseCause::GroupDeleted, decision, log)
            }
            Command::Seek(Seek { topic, group, to }) => {
                let to = match to {
                    SeekTo::Time(wall) => SeekTo::Time(self.context().broker_time(*wall)),
                    to => *to,
                };
                let decision = admin::seek(decide::topic(&self.state, topic)?, group, to)?;
                self.commit_and_reply(decision, SpaceClass::Drain, log)
            }
            Command::Pause(Pause { topic, group }) => {
                let decision = admin::pause(decide::topic(&self.state, topic)?, group)?;
                self.commit_and_reply(decision, SpaceClass::Drain, log)
            }
            Command::Resume(Resume { topic, group }) => {
                let decision = admin::resume(decide::topic(&self.state, topic)?, group)?;
                self.commit_and_reply(decision, SpaceClass::Drain, log)
            }
            Command::Redrive(Redrive { topic, which, limit }) => self.redrive(topic, which, *limit, log),
            Command::Purge(Purge { topic }) => {
                let decision = admin::purge(&self.context(), decide::topic(&self.state, topic)?);
                let reply = self.commit_and_reply(decision, SpaceClass::Drain, log)?;
                self.counters.purged += if let Reply::Purged { count } = reply { count } else { 0 };
                Ok(reply)
            }
            Command::ListTopics(ListTopics { tenant }) => Ok(self.list_topics(caller, *tenant)),
            Command::ListGroups(ListGroups { topic }) => {
                let topic = decide::topic(&self.state, topic)?;
                let listed = |group: &Group| ListedGroup { name: group.name().clone(), skipped: group.skipped() };
                Ok(Reply::Groups(topic.groups().map(listed).collect()))
            }
            Command::DescribeTopic(DescribeTopic { name }) => self.describe(name),
            Command::CreateKey(_)
            | Command::RevokeKey(_)
            | Command::BindKey(_)
            | Command::ListKeys(_)
            | Command::CreateTenant(_)
            | Command::DeleteTenant(_)
            | Command::ListTenants(_)
            | Command::ListAudit(_) => self.execute_access(caller, command, log),
            Command::Peek(_) | Command::Store(_) => unreachable!("their replies can lack bytes"),
        }
    }

    fn complete(&mut self, request: &mut Complete, log: &mut dyn LogSink) -> Result<Reply, Refusal> {
        let decision = complete::complete(&self.context(), request);
        let decision = decision.inspect_err(|refusal| self.index_refusal(refusal))?;
        let class = match decision.event() {
            Some(Event::Completed(step)) if step.stored() > 0 => SpaceClass::Growth,
            _ => SpaceClass::Drain,
        };
        let is_new = decision.record.is_some();
        let reply = self.commit_and_reply(decision, class, log)?;
        if is_new && self.state.completions().len() > self.limits.completions_max {
            // The oldest are the least likely to be retried. If the log refuses the record, the next step retries it.
            let count = (self.limits.completions_max as u64).div_ceil(FREED_SHARE).max(1);
            let _ = self.commit(Event::CompletionsExpired { count }, SpaceClass::Drain, log);
        }
        Ok(reply)
    }

    /// Forgets the oldest winners beyond the limit. If the log refuses the record, a later call retries it.
    #[inline]
    pub(super) fn limit_winners(&mut self, log: &mut dyn LogSink) {
        let excess = self.excess_winners();
        if excess > 0 && self.stalled_until.is_none() {
            self.forget_winners(excess, log);
        }
    }

    #[cold]
    fn forget_winners(&mut self, excess: u64, log: &mut dyn LogSink) {
        let count = excess.max((self.limits.completions_max as u64).div_ceil(FREED_SHARE));
        if self.commit(Event::WinnersExpired { count }, SpaceClass::Drain, log).is_err() {
            self.stall();
        }
    }

    /// The number of winners beyond the limit; not 0 only if the log refused to forget them or a crash undid it.
    pub(super) fn excess_winners(&self) -> u64 {
        self.state.winners().len().saturating_sub(self.limits.completions_max) as u64
    }

    pub(super) fn execute_store(
        &mut self,
        caller: &Caller,
        command: &StoreCommand,
        log: &mut dyn LogSink,
    ) -> Result<Reply, Refusal> {
        let token = self.next_token();
        let (class, is_begin) = match command {
            StoreCommand::Begin(_) => (SpaceClass::Growth, true),
            // Takes a message out of its group, as a nack that dead-letters it does.
            StoreCommand::Finish(Finish { dead_letter: Some(_), .. }) => (SpaceClass::Drain, false),
            // A finish frees nothing, so results must not exhaust the space reserved for acks.
            StoreCommand::Reacquire(Reacquire { .. })
            | StoreCommand::Renew(Renew { .. })
            | StoreCommand::Finish(Finish { .. }) => (SpaceClass::Churn, false),
            StoreCommand::Lookup(Lookup { .. })
            | StoreCommand::List(ListEffects { .. })
            | StoreCommand::Forget(Forget { .. }) => (SpaceClass::Drain, false),
        };
        let is_undecided = self.stalled_until.is_some() && command.identity().is_some_and(|of| self.awaits_renewal(of));
        let decision = match is_undecided {
            true => Err(self.context().overloaded(Overload::Log)),
            false => {
                let visible = self.visible_effects(caller);
                EffectDecisions { context: self.context(), token, visible }.decide(command)
            }
        };
        let result = decision.and_then(|decision| self.commit_and_reply(decision, class, log));
        self.counters.count_store(is_begin, &result);
        result
    }

    fn subscribe(&mut self, caller: &Caller, request: &Subscribe, log: &mut dyn LogSink) -> Result<Reply, Refusal> {
        if self.index.consumers.len() >= self.limits.consumers_max {
            return Err(self.context().overloaded(Overload::Objects));
        }
        let topic = decide::topic(&self.state, &request.topic)?;
        let origin = match request.group_lifetime {
            GroupLifetime::Durable => GroupOrigin::Consumed,
            GroupLifetime::Ephemeral => GroupOrigin::Ephemeral,
        };
        let decision = admin::create_group(&self.context(), topic, &request.group, request.start, origin)?;
        let topic = topic.id();
        self.commit_and_reply(decision, SpaceClass::Drain, log)?;
        let group = admin::group(decide::topic(&self.state, &request.topic)?, &request.group)?.id();
        let id = self.next_consumer;
        self.next_consumer = id.next();
        let consumer = Consumer {
            topic,
            group,
            owner: request.owner.clone(),
            lease: self.limits.lease(request.lease),
            credit: Credit::new(request.prefetch),
            in_flight: 0,
            deliveries_left: request.deliveries_max,
            on_disconnect: request.on_disconnect,
            leases: Default::default(),
            unanswered: Default::default(),
            key: self.stream_key(caller),
        };
        self.index.join(id, consumer);
        Ok(Reply::Subscribed { consumer: id })
    }

    pub(super) fn unsubscribe(&mut self, id: ConsumerId, log: &mut dyn LogSink) -> Result<Reply, Refusal> {
        if !self.index.consumers.contains_key(&id) {
            return Err(Refusal::UnknownConsumer);
        }
        // No deliveries to this consumer while its leases end.
        self.index.set_prefetch(id, 0);
        self.withdraw_unreleased(id, log);
        let consumer = &self.index.consumers[&id];
        if consumer.on_disconnect == OnDisconnect::Release {
            let (topic, group) = (consumer.topic, consumer.group);
            let leases: Vec<_> = consumer.leases.iter().copied().collect();
            for (partition, position) in leases {
                let message_ref = MessageRef { topic, group, partition, position };
                // A disconnect cannot be refused: if the log has no space, the remaining leases expire.
                if self.commit(Event::Released { message_ref }, SpaceClass::Drain, log).is_err() {
                    break;
                }
            }
        }
        self.faults.disconnect(&self.state, &mut self.index, id, self.now);
        Ok(Reply::Success)
    }

    /// Withdraws the deliveries to a consumer that could not leave yet.
    fn withdraw_unreleased(&mut self, consumer: ConsumerId, log: &mut dyn LogSink) {
        for message_ref in self.index.unreleased_to(consumer) {
            // A disconnect cannot be refused: if the log has no space, the delivery leaves and the driver withdraws it.
            if self.withdraw_delivery(message_ref, log).is_err() {
                return;
            }
        }
    }

    /// Withdraws a delivery that could not leave yet.
    fn withdraw_delivery(&mut self, message_ref: MessageRef, log: &mut dyn LogSink) -> Result<(), Refusal> {
        let token = self.delivery_state(&message_ref).map(|delivery| delivery.token);
        let stream = self.index.stream_of(&message_ref);
        self.commit_or_refuse(Event::Withdrawn { message_ref }, SpaceClass::Drain, log)?;
        token.into_iter().for_each(|token| self.outputs.withdraw(token));
        stream.into_iter().for_each(|stream| self.index.not_delivered(stream));
        Ok(())
    }

    fn delete_topic(&mut self, name: &TopicName, log: &mut dyn LogSink) -> Result<Reply, Refusal> {
        let topic = decide::topic(&self.state, name)?;
        let (id, groups): (TopicId, Vec<GroupId>) = (topic.id(), topic.groups().map(Group::id).collect());
        let decision = admin::delete_topic(topic);
        let consumers = groups.into_iter().flat_map(|group| self.index.members(id, group)).collect();
        self.commit_deletion(consumers, CloseCause::TopicDeleted, decision, log)
    }

    /// Commits a deletion and closes the streams of its consumers.
    fn commit_deletion(
        &mut self,
        consumers: Vec<ConsumerId>,
        cause: CloseCause,
        decision: Decision,
        log: &mut dyn LogSink,
    ) -> Result<Reply, Refusal> {
        let reply = self.commit_and_reply(decision, SpaceClass::Drain, log)?;
        for consumer in consumers {
            self.hold(Output::Closed { consumer, cause });
        }
        Ok(reply)
    }

    fn redrive(
        &mut self,
        topic: &TopicName,
        which: &RedriveSelection,
        limit: u64,
        log: &mut dyn LogSink,
    ) -> Result<Reply, Refusal> {
        let mut count = 0;
        let mut candidates = dead_letter::Candidates::of(&self.context(), topic, which)?;
        for _ in 0..limit.min(self.limits.work.redriven_per_command) {
            let Some(candidate) = candidates.next(&self.state) else { break };
            let redriven = match dead_letter::redrive(&self.context(), topic, candidate) {
                Ok(None) => continue,
                Ok(Some(event)) => self.commit_or_refuse(event, SpaceClass::Growth, log),
                Err(refusal) => {
                    self.index_refusal(&refusal);
                    Err(refusal)
                }
            };
            match redriven {
                Ok(()) => count += 1,
                // A partial redrive succeeds; the reply has its count.
                Err(_) if count > 0 => return Ok(Reply::Redriven { count, rest: None }),
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(Reply::Redriven { count, rest: candidates.rest() })
    }
}
