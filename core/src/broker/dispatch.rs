//! Dispatch: leases messages to the consumers of a group.

use super::outputs::Leased;
use super::{Broker, LogSink, SpaceClass};
use crate::decide::dead_letter::dead_letter;
use crate::decide::failure::{deadline_passed, message, why_not_retried};
use crate::faults::Faults;
use crate::index::NextDispatch;
use crate::record::{Event, Record};
use crate::reply::{Delivery, Output, Refusal};
use crate::state::Message;
use crate::types::{Body, DeliveryState, GroupId, LastError, MessageRef, Millis, PartitionId, Timestamp, TopicId};

/// What was dispatched to a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dispatched {
    /// A message.
    One,
    /// A message, and certainly no other follows it now.
    Last,
    /// There was none.
    Nothing,
}

impl<F: Faults> Broker<F> {
    /// Dispatches ready messages, up to the limit of one call. [`Broker::poll_timeout`] asks for the next call at once,
    /// so that the cost of a call does not grow with the number of consumers that have credit.
    #[inline]
    pub(super) fn dispatch(&mut self, log: &mut dyn LogSink) {
        if self.index.has_work() {
            self.dispatch_work(log);
        }
    }

    fn dispatch_work(&mut self, log: &mut dyn LogSink) {
        let mut left = self.limits.work.dispatched_per_call;
        while left > 0
            && self.stalled_until.is_none()
            && let Some((topic, group)) = self.index.next_work()
        {
            let turn = left.min(self.limits.work.dispatched_per_turn);
            let mut used = 0;
            while used < turn {
                match self.dispatch_next(topic, group, log) {
                    Ok(Dispatched::One) => used += 1,
                    // The turn ends with it: the next one finds nothing.
                    Ok(Dispatched::Last) if used + 1 == turn => used += 1,
                    Ok(last) => {
                        used += usize::from(last == Dispatched::Last);
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
                self.index.end_turn(topic, group);
            }
            left -= used;
        }
        if left == 0 {
            self.faults.dispatch_cut_short(&mut self.index);
        }
    }

    /// Dispatches the next message of a group: delivers it, or dead-letters it if its deadline has passed.
    fn dispatch_next(&mut self, topic: TopicId, group: GroupId, log: &mut dyn LogSink) -> Result<Dispatched, Refusal> {
        let topic = self.state.topic(topic).expect("work of a deleted topic is removed");
        let next = self.faults.next_dispatch(&mut self.index, topic, group, self.limits.in_flight_max, self.now);
        let Some(next) = next else { return Ok(Dispatched::Nothing) };
        let message_ref = next.message_ref;
        let message = message(topic, &message_ref);
        if deadline_passed(topic, &message, || self.wall()) {
            self.exceed_deadline(&message_ref, log)?;
            return Ok(Dispatched::One);
        }
        self.deliver(next, &message, log)
    }

    /// Dead-letters a waiting message whose deadline has passed or whose payload is lost.
    pub(super) fn exceed_deadline(&mut self, message_ref: &MessageRef, log: &mut dyn LogSink) -> Result<(), Refusal> {
        let topic = self.state.topic(message_ref.topic).expect("a waiting message is in a topic");
        let message = message(topic, message_ref);
        let last_error = || {
            let delivery = self.delivery_state(message_ref);
            delivery.map_or(LastError::Nothing, |delivery| delivery.last_error.clone()).as_str().into()
        };
        let last_error = message.lost().cloned().unwrap_or_else(last_error);
        let event = dead_letter(&self.context(), message_ref, why_not_retried(&message), last_error);
        self.commit_or_refuse(event, SpaceClass::Drain, log)
    }

    /// Leases a message to a consumer.
    fn deliver(&mut self, next: NextDispatch, message: &Message, log: &mut dyn LogSink) -> Result<Dispatched, Refusal> {
        let NextDispatch { message_ref, consumer, .. } = next;
        let connected = &self.index.consumers[&consumer];
        let (owner, until) = (connected.owner.clone(), self.now.after(connected.lease));
        let token = self.next_token();
        let mut record = Record { at: self.now, event: Event::Delivered { message_ref, token, owner, until } };
        self.commit_decided_record(&mut record, SpaceClass::Churn, log).map_err(|refusal| self.refusal(refusal))?;
        let body = self.take_body(&message_ref, message);
        let recorded = self.delivery_state(&message_ref).expect("a delivered message has a delivery state");
        let lease = recorded.leased_until().map_or(Millis(0), |until| until.since(self.now));
        let is_first = recorded.attempts <= 1;
        let unread = if body.is_none() { Some(message.clone()) } else { None };
        let delivery = Box::new(delivery(recorded, message_ref.partition, message, until, body));
        let has_more = self.index.dispatched(next, message.flags().priority, self.appended, lease);
        if is_first {
            self.read_ahead_of(&message_ref, unread.is_none());
        }
        self.hold_delivery(Output::Deliver { consumer, delivery }, Leased { message_ref, lease }, unread);
        Ok(if has_more { Dispatched::One } else { Dispatched::Last })
    }

    pub(super) fn delivery_state(&self, message_ref: &MessageRef) -> Option<&DeliveryState> {
        let group = self.state.topic(message_ref.topic)?.group(message_ref.group)?;
        group.progress(message_ref.partition)?.delivery(message_ref.position)
    }
}

/// The delivery of `message` that was just recorded; without a `body` it is to be read.
fn delivery(
    recorded: &DeliveryState,
    partition: PartitionId,
    message: &Message,
    lease_until: Timestamp,
    body: Option<Body>,
) -> Delivery {
    Delivery {
        partition,
        offset: message.offset,
        attempts: recorded.attempts,
        failures: recorded.failures,
        last_error: recorded.last_error.clone(),
        token: recorded.token,
        lease_until,
        produced_at: message.produced_at,
        body: body.unwrap_or_else(|| Body::bare(&[], &[])),
    }
}
