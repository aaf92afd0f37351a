//! Streams: who is connected, and how much more each may be handed.

use driftq_core::command::{OnDisconnect, Subscribe};
use driftq_core::reply::Overload;
use driftq_core::types::{ConsumerId, GroupId, Millis, OwnerName, TopicId};
use driftq_core::{Refusal, Reply};

use super::model::{Model, Stop};
use super::topic::{Begun, Group, Phase, Progress};

/// A connected stream.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    pub(super) id: ConsumerId,
    pub(super) topic: TopicId,
    pub(super) group: GroupId,
    pub(super) owner: OwnerName,
    pub(super) lease: Millis,
    pub(super) prefetch: u32,
    pub(super) deliveries_left: Option<u64>,
    pub(super) on_disconnect: OnDisconnect,
}

impl Stream {
    /// Whether it may be handed one more message: leases that run count against its prefetch.
    pub(super) fn has_credit(&self, group: &Group) -> bool {
        if self.prefetch == 0 || self.deliveries_left == Some(0) {
            return false;
        }
        let held = group.progress.iter().filter(|progress| held_by(progress, self.id));
        held.count() < self.prefetch as usize
    }
}

fn held_by(progress: &Progress, stream: ConsumerId) -> bool {
    matches!(progress, Progress::Begun(Begun { phase: Phase::Leased { holder, .. }, .. }) if *holder == stream)
}

impl Model {
    pub(super) fn subscribe(&mut self, asked: &Subscribe) -> Result<Reply, Stop> {
        if self.streams.len() >= self.limits.consumers_max {
            return Err(self.overloaded(Overload::Objects).into());
        }
        let t = self.topic(&asked.topic)?;
        self.create_group(t, &asked.group, asked.start)?;
        let (t, g) = self.group(&asked.topic, &asked.group)?;
        let id = self.next_consumer;
        self.next_consumer = id.next();
        self.streams.push(Stream {
            id,
            topic: self.topics[t].id,
            group: self.topics[t].groups[g].id,
            owner: asked.owner.clone(),
            lease: self.lease(asked.lease),
            prefetch: asked.prefetch,
            deliveries_left: asked.deliveries_max,
            on_disconnect: asked.on_disconnect,
        });
        Ok(Reply::Subscribed { consumer: id })
    }

    pub(super) fn set_prefetch(&mut self, consumer: ConsumerId, prefetch: u32) -> Result<Reply, Stop> {
        let stream = self.streams.iter_mut().find(|stream| stream.id == consumer).ok_or(Refusal::UnknownConsumer)?;
        stream.prefetch = prefetch;
        Ok(Reply::Done)
    }

    pub(super) fn finish_stream(&mut self, consumer: ConsumerId) -> Result<Reply, Stop> {
        let at = self.streams.iter().position(|stream| stream.id == consumer).ok_or(Refusal::UnknownConsumer)?;
        self.streams.remove(at);
        Ok(Reply::Done)
    }

    pub(super) fn unsubscribe(&mut self, consumer: ConsumerId) -> Result<Reply, Stop> {
        let at = self.streams.iter().position(|stream| stream.id == consumer).ok_or(Refusal::UnknownConsumer)?;
        let stream = &self.streams[at];
        if stream.on_disconnect == OnDisconnect::Release {
            let t = self.topics.iter().position(|topic| topic.id == stream.topic).expect("a stream's topic is there");
            let topic = &self.topics[t];
            let g = topic.groups.iter().position(|group| group.id == stream.group).expect("a stream's group is there");
            let mut held: Vec<_> =
                (0..topic.messages.len()).filter(|m| held_by(&topic.groups[g].progress[*m], consumer)).collect();
            held.sort_by_key(|m| (topic.messages[*m].partition, *m));
            for m in held {
                self.give_back((t, g, m))?;
            }
        }
        self.streams.remove(at);
        Ok(Reply::Done)
    }
}
