//! Subscribe, unsubscribe and prefetch.

use driftq_core::command::{GroupLifetime, OnDisconnect, Subscribe};
use driftq_core::reply::Overload;
use driftq_core::types::{ConsumerId, GroupOrigin};
use driftq_core::{Refusal, Reply};

use super::model::{Model, Stop, Unwritten};
use super::stream::{Stream, held_by};

impl Model {
    pub(super) fn subscribe(&mut self, subscribe: &Subscribe) -> Result<Reply, Stop> {
        if self.streams.len() >= self.limits.consumers_max {
            return Err(self.overloaded(Overload::Objects).into());
        }
        let t = self.topic(&subscribe.topic)?;
        let origin = match subscribe.group_lifetime {
            GroupLifetime::Durable => GroupOrigin::Consumed,
            GroupLifetime::Ephemeral => GroupOrigin::Ephemeral,
        };
        self.create_group(t, &subscribe.group, subscribe.start, origin)?;
        let (t, g) = self.group(&subscribe.topic, &subscribe.group)?;
        self.returned(t, g);
        let id = self.next_consumer;
        self.next_consumer = id.next();
        self.streams.push(Stream {
            id,
            topic: self.topics[t].id,
            group: self.topics[t].groups[g].id,
            owner: subscribe.owner.clone(),
            lease: self.lease(subscribe.lease),
            prefetch: subscribe.prefetch,
            credit: subscribe.prefetch,
            acks: Vec::new(),
            reduced_at: None,
            is_asked_last: false,
            deliveries_left: subscribe.deliveries_max,
            on_disconnect: subscribe.on_disconnect,
        });
        Ok(Reply::Subscribed { consumer: id })
    }

    pub(super) fn set_prefetch(&mut self, consumer: ConsumerId, prefetch: u32) -> Result<Reply, Stop> {
        let stream = self.streams.iter_mut().find(|stream| stream.id == consumer).ok_or(Refusal::UnknownConsumer)?;
        stream.set_prefetch(prefetch);
        Ok(Reply::Success)
    }

    pub(super) fn close_stream(&mut self, consumer: ConsumerId) -> Result<Reply, Stop> {
        let at = self.streams.iter().position(|stream| stream.id == consumer).ok_or(Refusal::UnknownConsumer)?;
        self.withdraw_unreleased(consumer)?;
        let stream = self.streams.remove(at);
        self.last_stream_ended(stream.topic, stream.group);
        Ok(Reply::Success)
    }

    pub(super) fn unsubscribe(&mut self, consumer: ConsumerId) -> Result<Reply, Stop> {
        let at = self.streams.iter().position(|stream| stream.id == consumer).ok_or(Refusal::UnknownConsumer)?;
        self.withdraw_unreleased(consumer)?;
        let stream = &self.streams[at];
        if stream.on_disconnect == OnDisconnect::Release {
            let t = self.topics.iter().position(|topic| topic.id == stream.topic).expect("the stream's topic exists");
            let topic = &self.topics[t];
            let g = topic.groups.iter().position(|group| group.id == stream.group).expect("the stream's group exists");
            let mut held: Vec<_> =
                (0..topic.messages.len()).filter(|m| held_by(&topic.groups[g].progress[*m], consumer)).collect();
            held.sort_by_key(|m| (topic.messages[*m].partition, *m));
            for m in held {
                match self.requeue((t, g, m)) {
                    // The remaining leases expire.
                    Err(Unwritten::NoRoom(_)) => break,
                    written => written?,
                }
            }
        }
        let stream = self.streams.remove(at);
        self.last_stream_ended(stream.topic, stream.group);
        Ok(Reply::Success)
    }
}
