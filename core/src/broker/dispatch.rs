//! Handing messages out.

use super::{Broker, LogSink, SpaceClass};
use crate::body::Body;
use crate::decide::failure::{deadline_passed, message};
use crate::faults::{Fault, Faults};
use crate::index::Next;
use crate::record::{Event, MessageRef};
use crate::reply::{Delivery, Output, Refusal};
use crate::state::State;
use crate::state::entry::LastError;
use crate::state::partition::Message;
use crate::state::topic::Topic;
use crate::types::message::Priority;
use crate::types::{DeadReason, GroupId, LeaseToken, Millis, Position, Timestamp, TopicId};

/// How much is handed out in one call. What is left is done in the next, which [`Broker::poll_timeout`] asks for at once, so
/// that no single call grows with the number of streams that happen to be hungry.
const DISPATCHED_PER_CALL: usize = 1_024;

/// How much one group is handed before another has its turn.
const DISPATCHED_PER_TURN: usize = 64;

impl<F: Faults> Broker<F> {
    /// Hands out what can be handed out.
    pub(super) fn dispatch(&mut self, log: &mut impl LogSink) {
        let mut left = DISPATCHED_PER_CALL;
        while left > 0
            && self.stalled_until.is_none()
            && let Some((topic, group)) = self.index.next_work()
        {
            let turn = left.min(DISPATCHED_PER_TURN);
            let mut used = 0;
            while used < turn {
                match self.dispatch_next(topic, group, log) {
                    Ok(true) => used += 1,
                    Ok(false) => {
                        self.index.work_done(topic, group);
                        break;
                    }
                    Err(_) => {
                        self.stall();
                        return;
                    }
                }
            }
            if used == turn {
                self.index.turn_over(topic, group);
            }
            left -= used;
        }
    }

    /// Hands out one message of a group, or buries one that is past its deadline. False if there is nothing to do.
    fn dispatch_next(&mut self, topic: TopicId, group: GroupId, log: &mut impl LogSink) -> Result<bool, Refusal> {
        let limit = self.limits.in_flight_max + u32::from(self.faults.planted(Fault::InFlightOffByOne));
        let durable = self.state.topic(topic).expect("work is listed for topics that are there");
        let Some(mut next) = self.index.next(durable, group, limit) else { return Ok(false) };
        if self.faults.planted(Fault::PriorityBreaksOrder) {
            next.message_ref.position = newest_like(durable, &next.message_ref, self.now);
        }
        let Next { message_ref, consumer, .. } = next;
        let message = message(durable, &message_ref);
        if message.body.flags().has_identity && self.is_done_already(&message_ref, &message.body) {
            self.commit_for(Event::Skipped { message_ref }, SpaceClass::Drain, log)?;
            if self.faults.planted(Fault::SkipWithoutFinish) {
                let priority = self.index.priority(message_priority(&self.state, &message_ref));
                self.index.pass_over(&message_ref, priority);
            }
            return Ok(true);
        }
        if deadline_passed(durable, message, self.now) && !self.faults.planted(Fault::DeadlineIgnored) {
            let last_error = self.last_error(&message_ref).as_str().into();
            self.dead_letter(&message_ref, DeadReason::DeadlineExceeded, last_error, log)?;
            return Ok(true);
        }
        let message = message.clone();
        let stream = &self.index.consumers[&consumer];
        let (owner, told) = (stream.owner.clone(), self.now.after(stream.lease));
        let until = match self.faults.planted(Fault::LeaseShorterThanTold) {
            true => self.now.after(Millis(stream.lease.0 / 2)),
            false => told,
        };
        let old = self.faults.planted(Fault::ExpiredKeepsToken).then(|| self.token_of_expired(&message_ref)).flatten();
        let token = old.unwrap_or_else(|| self.next_token());
        self.commit_for(Event::Delivered { message_ref, token, owner, until }, SpaceClass::Churn, log)?;
        let priority = self.index.priority(message.body.flags().priority);
        self.index.served(next, priority);
        let mut delivery = self.delivery(&message_ref, message);
        if self.faults.planted(Fault::LeaseShorterThanTold) {
            delivery.lease_until = told;
        }
        self.hold(Output::Deliver { consumer, delivery: Box::new(delivery) });
        Ok(true)
    }

    /// Whether the group is done with another message of the same identity. What a seek is to replay is replayed; and dead letters
    /// are each to be seen: one message can die more than once, in one group and in several.
    fn is_done_already(&self, message_ref: &MessageRef, body: &Body) -> bool {
        let topic = self.state.topic(message_ref.topic).expect("work is listed for topics that are there");
        let group = topic.group(message_ref.group).expect("work is listed for groups that are there");
        let replayed = group
            .progress(message_ref.partition)
            .is_some_and(|progress| message_ref.position < progress.replayed_below());
        let effect = self.state.effect_of(topic.name(), group.name(), body, self.now);
        !replayed && !topic.name().is_dead_letter() && effect.is_some_and(|effect| effect.committed)
    }

    /// The planted bug: the token of the delivery whose lease has ended.
    fn token_of_expired(&self, message_ref: &MessageRef) -> Option<LeaseToken> {
        let group = self.state.topic(message_ref.topic)?.group(message_ref.group)?;
        let entry = group.progress(message_ref.partition)?.entry(message_ref.position)?;
        (entry.failures > 0 && entry.token.boot == self.state.boot()).then_some(entry.token)
    }

    /// The delivery of `message` that has just been decided.
    fn delivery(&self, message_ref: &MessageRef, message: Message) -> Delivery {
        let topic = self.state.topic(message_ref.topic).expect("just delivered from");
        let progress = topic.group(message_ref.group).and_then(|group| group.progress(message_ref.partition));
        let entry = progress.and_then(|progress| progress.entry(message_ref.position)).expect("just delivered");
        Delivery {
            partition: message_ref.partition,
            offset: message.offset,
            attempts: entry.attempts,
            failures: entry.failures,
            last_error: entry.last_error.clone(),
            token: entry.token,
            lease_until: entry.leased_until().expect("just leased"),
            produced_at: message.produced_at,
            body: message.body,
        }
    }

    fn last_error(&self, message_ref: &MessageRef) -> LastError {
        let group = self.state.topic(message_ref.topic).and_then(|topic| topic.group(message_ref.group));
        let entry = group.and_then(|group| group.progress(message_ref.partition)?.entry(message_ref.position));
        entry.map(|entry| entry.last_error.clone()).unwrap_or_default()
    }
}

/// How urgent the message at `message_ref` is.
fn message_priority(state: &State, message_ref: &MessageRef) -> Priority {
    let topic = state.topic(message_ref.topic).expect("a message_ref names a topic");
    message(topic, message_ref).body.flags().priority
}

/// The planted bug: the newest message that is as urgent as the one whose turn it is and can be delivered too.
fn newest_like(topic: &Topic, message_ref: &MessageRef, now: Timestamp) -> Position {
    let partition = topic.partition(message_ref.partition).expect("a message_ref names a partition");
    let progress = topic.group(message_ref.group).and_then(|group| group.progress(message_ref.partition));
    let progress = progress.expect("a message_ref names a group");
    let priority = message(topic, message_ref).body.flags().priority;
    let can = |(position, message): &(Position, &Message)| {
        let fresh = !progress.done().contains(*position) && progress.entry(*position).is_none();
        let due = message.body.metadata().envelope.deliver_at.is_none_or(|at| at <= now);
        fresh && due && message.body.flags().priority == priority
    };
    partition.messages().filter(can).last().map_or(message_ref.position, |(position, _)| position)
}
