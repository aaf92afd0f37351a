//! Commands, one by one: decide, commit, answer.

use super::{Broker, LogSink, SpaceClass};
use crate::command::{Claim, Command, Complete, OnDisconnect, RedriveSelection, StoreCommand, Subscribe};
use crate::decide::effects::DecisionContext;
use crate::decide::{self, Decision, admin, complete, produce, redrive, settle};
use crate::faults::{Fault, Faults};
use crate::idempotency::Identity;
use crate::index::Consumer;
use crate::record::{Event, GroupStart, MessageRef};
use crate::reply::{CloseCause, Output, Overload, Refusal, Reply};
use crate::state::group::Group;
use crate::types::{ConsumerId, DeadReason, GroupId, Text, TopicId, TopicName};

/// How many dead letters one command makes live again: more at once would keep everybody waiting.
const REDRIVEN_PER_CALL: u64 = 1_024;

/// Where too many answers of completed steps are kept, one in so many goes.
const COMPLETIONS_FREED_SHARE: u64 = 1_024;

impl<F: Faults> Broker<F> {
    pub(super) fn execute(&mut self, command: Command, log: &mut impl LogSink) -> Result<Reply, Refusal> {
        let now = self.now;
        match command {
            Command::Produce(mut asked) => {
                let decision = produce::produce(&self.state, &self.limits, now, &mut asked, &self.faults)?;
                self.counters.deduplicated += u64::from(matches!(&decision.reply, Reply::Produced(at) if at.duplicate));
                self.answer(decision, SpaceClass::Growth, log)
            }
            Command::Ack(claim) => {
                if self.faults.planted(Fault::GroupCreatedByFailedAck) {
                    self.create_group_of(&claim, log)?;
                }
                let decision = settle::ack(&self.state, &self.limits, &claim, &self.faults)?;
                self.answer(decision, SpaceClass::Drain, log)
            }
            Command::Nack { claim, reason, delay } => {
                let asked = (&claim, &reason, delay);
                let decision = settle::nack(&self.state, &self.limits, now, asked, &self.faults)?;
                self.answer(decision, SpaceClass::Drain, log).inspect(|_| self.counters.nacked += 1)
            }
            Command::Extend { claim, lease } => {
                let asked = (&claim, lease);
                let decision = settle::extend(&self.state, &self.limits, now, asked, &self.faults)?;
                self.answer(decision, SpaceClass::Churn, log)
            }
            Command::Release(claim) => {
                let decision = settle::release(&self.state, &claim, &self.faults)?;
                self.answer(decision, SpaceClass::Drain, log)
            }
            Command::Complete(asked) => self.complete(asked, log),
            Command::Store(asked) => self.ask_store(&asked, log),
            Command::Subscribe(asked) => self.subscribe(asked, log),
            Command::SetPrefetch { consumer, prefetch } => {
                self.index.set_prefetch(consumer, prefetch).ok_or(Refusal::UnknownConsumer)?;
                Ok(Reply::Done)
            }
            Command::Unsubscribe { consumer } => self.unsubscribe(consumer, log),
            Command::Finish { consumer } => {
                self.index.consumers.get(&consumer).ok_or(Refusal::UnknownConsumer)?;
                self.index.leave(consumer);
                Ok(Reply::Done)
            }
            Command::CreateTopic { name, partitions, retention } => {
                let decision = admin::create_topic(&self.state, &self.limits, &name, partitions, retention)?;
                self.answer(decision, SpaceClass::Growth, log)
            }
            Command::DeleteTopic { name } => self.delete_topic(&name, log),
            Command::CreateGroup { topic, group, start } => {
                let topic = decide::topic(&self.state, &topic)?;
                let decision = admin::create_group(topic, &self.limits, &group, start)?;
                self.answer(decision, SpaceClass::Drain, log)
            }
            Command::DeleteGroup { topic, group } => {
                let topic = decide::topic(&self.state, &topic)?;
                let (topic_id, group_id) = (topic.id(), admin::group(topic, &group)?.id());
                let decision = admin::delete_group(topic, &group)?;
                let streams: Vec<_> = self.index.members(topic_id, group_id).collect();
                self.end(streams, CloseCause::GroupDeleted, decision, log)
            }
            Command::Seek { topic, group, to } => {
                let decision = admin::seek(decide::topic(&self.state, &topic)?, &group, to)?;
                self.answer(decision, SpaceClass::Drain, log)
            }
            Command::Pause { topic, group } => {
                let decision = admin::pause(decide::topic(&self.state, &topic)?, &group)?;
                self.answer(decision, SpaceClass::Drain, log)
            }
            Command::Resume { topic, group } => {
                let decision = admin::resume(decide::topic(&self.state, &topic)?, &group)?;
                self.answer(decision, SpaceClass::Drain, log)
            }
            Command::Redrive { topic, which, limit } => self.redrive(&topic, &which, limit, log),
            Command::ListTopics => Ok(Reply::Topics(self.state.topics().map(|topic| topic.name().clone()).collect())),
            Command::ListGroups { topic } => {
                let topic = decide::topic(&self.state, &topic)?;
                Ok(Reply::Groups(topic.groups().map(|group| group.name().clone()).collect()))
            }
            Command::DescribeTopic { name } => self.describe(&name),
            Command::Peek { topic, partition, offset, limit } => self.peek(&topic, partition, offset, limit),
        }
    }

    fn complete(&mut self, mut asked: Box<Complete>, log: &mut impl LogSink) -> Result<Reply, Refusal> {
        let decision = complete::complete(&self.state, &self.limits, self.now, &mut asked, &self.faults)?;
        let need = match &decision.event {
            Some(Event::Completed(step)) if step.stored() > 0 => SpaceClass::Growth,
            _ => SpaceClass::Drain,
        };
        let adds_an_answer = decision.event.is_some();
        let answered = self.answer(decision, need, log)?;
        if adds_an_answer && self.state.completions().len() > self.limits.completions_max {
            // The oldest are the least likely to be asked for. What the log has no room for now goes with the next step.
            let count = (self.limits.completions_max as u64).div_ceil(COMPLETIONS_FREED_SHARE).max(1);
            let _ = self.commit(Event::CompletionsExpired { count }, SpaceClass::Drain, log);
        }
        Ok(answered)
    }

    fn ask_store(&mut self, asked: &StoreCommand, log: &mut impl LogSink) -> Result<Reply, Refusal> {
        let token = self.next_token();
        let (need, begins) = match asked {
            StoreCommand::Begin(_) => (SpaceClass::Growth, true),
            // Nothing is the less for being finished: results must not use up what acks need.
            StoreCommand::Reacquire { .. } | StoreCommand::Renew { .. } | StoreCommand::Finish { .. } => {
                (SpaceClass::Churn, false)
            }
            StoreCommand::Get { .. } | StoreCommand::Forget { .. } => (SpaceClass::Drain, false),
        };
        if let StoreCommand::Begin(begin) = asked
            && self.faults.planted(Fault::QuotaEvictsLive)
        {
            self.evict_for(&begin.identity, log)?;
        }
        let context =
            DecisionContext { state: &self.state, limits: &self.limits, now: self.now, token, faults: &self.faults };
        let decided = context.decide(asked);
        let answered = decided.and_then(|decision| self.answer(decision, need, log));
        self.counters.count_store(begins, &answered);
        answered
    }

    /// The planted bug: a tenant at its quota loses an effect to the new one.
    fn evict_for(&mut self, identity: &Identity, log: &mut impl LogSink) -> Result<(), Refusal> {
        let store = self.state.store();
        if self.state.effect(identity, self.now).is_some() || store.len_of(identity.tenant()) < self.limits.effects_max
        {
            return Ok(());
        }
        let effects = store
            .tables()
            .flat_map(|(realm, table)| table.effects().map(move |(key, _)| realm.identity(key)).collect::<Vec<_>>());
        let oldest = effects.into_iter().find(|other| other.tenant() == identity.tenant());
        match oldest {
            Some(identity) => self.commit_for(Event::EffectForgotten { identity }, SpaceClass::Drain, log),
            None => Ok(()),
        }
    }

    /// The planted bug: whoever acks for a group makes it.
    fn create_group_of(&mut self, claim: &Claim, log: &mut impl LogSink) -> Result<(), Refusal> {
        let topic = decide::topic(&self.state, &claim.topic)?;
        let decision = admin::create_group(topic, &self.limits, &claim.group, GroupStart::Earliest)?;
        self.answer(decision, SpaceClass::Drain, log).map(drop)
    }

    fn subscribe(&mut self, asked: Subscribe, log: &mut impl LogSink) -> Result<Reply, Refusal> {
        if self.index.consumers.len() >= self.limits.consumers_max {
            let retry_after = self.limits.retry_after;
            return Err(Refusal::Overloaded { reason: Overload::Objects, retry_after });
        }
        let topic = decide::topic(&self.state, &asked.topic)?.id();
        let decision =
            admin::create_group(decide::topic(&self.state, &asked.topic)?, &self.limits, &asked.group, asked.start)?;
        self.answer(decision, SpaceClass::Drain, log)?;
        let group = admin::group(decide::topic(&self.state, &asked.topic)?, &asked.group)?.id();
        let id = self.next_consumer;
        self.next_consumer = id.next();
        let consumer = Consumer {
            topic,
            group,
            owner: asked.owner,
            lease: self.limits.lease(asked.lease),
            prefetch: asked.prefetch + u32::from(self.faults.planted(Fault::PrefetchOffByOne)),
            live: 0,
            deliveries_left: asked.deliveries_max,
            on_disconnect: asked.on_disconnect,
            held: Default::default(),
        };
        self.index.join(id, consumer);
        Ok(Reply::Subscribed { consumer: id })
    }

    fn unsubscribe(&mut self, id: ConsumerId, log: &mut impl LogSink) -> Result<Reply, Refusal> {
        let Some(consumer) = self.index.consumers.get(&id) else { return Err(Refusal::UnknownConsumer) };
        if consumer.on_disconnect == OnDisconnect::Release {
            let (topic, group) = (consumer.topic, consumer.group);
            let held: Vec<_> = consumer.held.iter().copied().collect();
            // No more for this stream while its leases go back.
            self.index.set_prefetch(id, 0);
            for (partition, position) in held {
                let message_ref = MessageRef { topic, group, partition, position };
                // Nobody can be kept from leaving: what the log has no room for runs on until its lease ends.
                if self.commit(Event::Released { message_ref }, SpaceClass::Drain, log).is_err() {
                    break;
                }
            }
        }
        self.index.leave(id);
        Ok(Reply::Done)
    }

    fn delete_topic(&mut self, name: &TopicName, log: &mut impl LogSink) -> Result<Reply, Refusal> {
        let topic = decide::topic(&self.state, name)?;
        let (id, groups): (TopicId, Vec<GroupId>) = (topic.id(), topic.groups().map(Group::id).collect());
        let decision = admin::delete_topic(&self.state, name)?;
        let streams = groups.into_iter().flat_map(|group| self.index.members(id, group)).collect();
        self.end(streams, CloseCause::TopicDeleted, decision, log)
    }

    /// Commits a deletion and tells the streams it ends.
    fn end(
        &mut self,
        streams: Vec<ConsumerId>,
        cause: CloseCause,
        decision: Decision,
        log: &mut impl LogSink,
    ) -> Result<Reply, Refusal> {
        let reply = self.answer(decision, SpaceClass::Drain, log)?;
        for consumer in streams {
            self.hold(Output::Closed { consumer, cause });
        }
        Ok(reply)
    }

    /// Makes a message a dead letter.
    pub(super) fn dead_letter(
        &mut self,
        message_ref: &MessageRef,
        reason: DeadReason,
        last_error: Text,
        log: &mut impl LogSink,
    ) -> Result<(), Refusal> {
        let event = redrive::dead_letter(&self.state, message_ref, reason, last_error);
        self.commit_for(event, SpaceClass::Drain, log)
    }

    fn redrive(
        &mut self,
        topic: &TopicName,
        which: &RedriveSelection,
        limit: u64,
        log: &mut impl LogSink,
    ) -> Result<Reply, Refusal> {
        let (mut count, limit) = (0, limit.min(REDRIVEN_PER_CALL));
        let mut candidates = redrive::Candidates::of(&self.state, topic, which)?;
        while count < limit
            && let Some(candidate) = candidates.next(&self.state)
        {
            let decided = redrive::redrive(&self.state, &self.limits, topic, candidate, &self.faults);
            let done = match decided {
                Ok(None) => continue,
                Ok(Some(event)) => self.commit_for(event, SpaceClass::Growth, log),
                Err(refusal) => Err(refusal),
            };
            match done {
                Ok(()) => count += 1,
                // What could be done was done; the rest stays where it is.
                Err(_) if count > 0 => break,
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(Reply::Redriven { count })
    }
}
