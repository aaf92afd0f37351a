//! Dead letters and redrive.

use driftq_core::command::{RedriveRest, RedriveSelection};
use driftq_core::reply::Overload;
use driftq_core::types::{
    DeadLetter, DeadLetterOrigin, DeadReason, KeptForRedrive, Offset, PartitionId, RedriveOrigin, Retention, TopicName,
};
use driftq_core::{Refusal, Reply, SpaceClass};

use super::model::{MessageIndex, Model, Stop, Unwritten};
use super::topic::{Progress, Topic};

impl Model {
    /// One record stores the dead letter, creates its topic if there is none, and acks the source.
    pub(super) fn dead_letter_message(
        &mut self,
        t: usize,
        g: usize,
        m: usize,
        reason: DeadReason,
        last_error: &str,
    ) -> Result<(), Unwritten> {
        self.record(SpaceClass::Drain)?;
        self.store_dead_letter((t, g, m), reason, last_error);
        Ok(())
    }

    /// A dead letter cannot be dead-lettered again at a worker's request.
    pub(super) fn check_dead_letter_source(&self, (t, ..): MessageIndex) -> Result<(), Refusal> {
        let what = "a dead letter cannot be dead-lettered again; ack it, or nack it to be retried";
        if self.topics[t].is_dlq() { Err(Refusal::Invalid(what)) } else { Ok(()) }
    }

    /// As [`Model::dead_letter_message`], as a part of a record.
    pub(super) fn store_dead_letter(&mut self, (t, g, m): MessageIndex, reason: DeadReason, last_error: &str) {
        let topic = &self.topics[t];
        let (message, group) = (&topic.messages[m], &topic.groups[g]);
        let mut metadata = message.content.metadata.clone();
        let envelope = &mut metadata.envelope;
        (envelope.deliver_at, envelope.delayed_until) = (None, None);
        let kept = KeptForRedrive {
            retry_policy: envelope.retry_policy.take(),
            target_topic: envelope.target_topic.take(),
            partition_override: envelope.partition_override.take(),
            deadline: envelope.deadline.take(),
        };
        let origin = DeadLetterOrigin {
            original_topic: topic.name.clone(),
            original_partition: message.partition,
            original_offset: message.offset,
            group: group.name.clone(),
            attempts: if let Progress::Attempted(attempted) = &group.progress[m] { attempted.attempts } else { 0 },
            last_error: last_error.into(),
            reason,
            routed_at: self.wall(),
        };
        metadata.dead_letter = Some(Box::new(DeadLetter { origin, kept }));
        let content = message.content.with_metadata(metadata);
        let partition = message.partition;
        let name = topic.dlq_name.clone().expect("dead letters are not dead-lettered again");
        let (partitions, retention) = (topic.partitions(), topic.retention);
        let dlq = self.find(&name).unwrap_or_else(|| self.add_topic(name, partitions, retention));
        let dlq = &mut self.topics[dlq];
        dlq.store(self.now, PartitionId(partition.0 % dlq.partitions()), None, content);
        self.unpin((t, g, m));
        self.remember_winner((t, g, m), None);
        self.mark_acked(t, g, m);
    }

    pub(super) fn add_topic(&mut self, name: TopicName, partitions: u32, retention: Retention) -> usize {
        self.topics.push(Topic::new(self.next_topic, name, partitions, retention));
        self.next_topic = self.next_topic.next();
        self.topics.len() - 1
    }

    pub(super) fn redrive(&mut self, topic: &TopicName, which: &RedriveSelection, limit: u64) -> Result<Reply, Stop> {
        let t = self.topic(topic)?;
        let Some(name) = self.topics[t].dlq_name.clone() else {
            return Err(Refusal::Invalid("a dead-letter topic has no dead letters of its own").into());
        };
        let mut count = 0;
        let selected = self.selected(&name, which);
        let reached = selected.len().min(limit.min(self.limits.work.redriven_per_command) as usize);
        for (d, offset) in &selected[..reached] {
            match self.redrive_one(t, *d, *offset) {
                Ok(redriven) => count += u64::from(redriven),
                // A partial redrive is a success.
                Err(Stop::Refused(_) | Stop::Unwritten(Unwritten::NoRoom(_))) if count > 0 => {
                    return Ok(Reply::Redriven { count, rest: None });
                }
                Err(stop) => return Err(stop),
            }
        }
        let rest = match (which, selected.get(reached)) {
            (RedriveSelection::Offsets(_), _) | (_, None) => None,
            (RedriveSelection::All, Some((d, from))) => {
                let dlq = &self.topics[*d];
                Some(RedriveRest { dead_topic: dlq.id, from: *from, below: dlq.next_offset })
            }
            (RedriveSelection::Rest(rest), Some((_, from))) => Some(RedriveRest { from: *from, ..*rest }),
        };
        Ok(Reply::Redriven { count, rest })
    }

    /// The selected open messages of the dead-letter topic, oldest first, with the topic's index.
    fn selected(&self, name: &TopicName, which: &RedriveSelection) -> Vec<(usize, Offset)> {
        let Some(d) = self.find(name) else { return Vec::new() };
        let dlq = &self.topics[d];
        let wanted = |offset: Offset| match which {
            RedriveSelection::All => true,
            RedriveSelection::Rest(rest) => rest.dead_topic == dlq.id && rest.from <= offset && offset < rest.below,
            RedriveSelection::Offsets(offsets) => offsets.contains(&offset),
        };
        let open = dlq.messages.iter().enumerate().filter(|(at, _)| !dlq.is_acked_by_all(*at));
        open.map(|(_, message)| (d, message.offset)).filter(|(_, offset)| wanted(*offset)).collect()
    }

    /// One record removes a dead letter and stores it as a new message, visible only to the group that failed it.
    /// `false` if it is no dead letter, its payload is lost or the group does not exist.
    fn redrive_one(&mut self, t: usize, d: usize, offset: Offset) -> Result<bool, Stop> {
        let m = self.topics[d].message(offset).expect("a redrive removes each dead letter once");
        let content = self.topics[d].messages[m].content.clone();
        let Some(dead_letter) = &content.metadata.dead_letter else { return Ok(false) };
        if content.metadata.lost.is_some() {
            return Ok(false);
        }
        let topic = &self.topics[t];
        let Some(g) = topic.group_named(&dead_letter.group) else { return Ok(false) };
        let partition = PartitionId(dead_letter.original_partition.0 % topic.partitions());
        match self.check_space(t, partition, self.topics[d].messages[m].bytes()) {
            // A redrive relieves a full dead-letter partition.
            Ok(()) | Err(Refusal::Overloaded { reason: Overload::DeadLetters, .. }) => {}
            Err(refusal) => {
                self.note_refusal(&refusal);
                return Err(refusal.into());
            }
        }
        self.record(SpaceClass::Growth)?;
        let mut metadata = content.metadata.clone();
        metadata.dead_letter = None;
        metadata.envelope.retry_policy = dead_letter.kept.retry_policy;
        metadata.envelope.target_topic = dead_letter.kept.target_topic.clone();
        metadata.envelope.partition_override = dead_letter.kept.partition_override;
        metadata.envelope.deadline = dead_letter.kept.deadline.clone().filter(|deadline| deadline.at > self.wall());
        let earlier = content.metadata.redrive;
        metadata.redrive = Some(RedriveOrigin {
            count: earlier.map_or(1, |earlier| earlier.count + 1),
            dead_letter_offset: offset,
            original_offset: earlier.map_or(dead_letter.original_offset, |earlier| earlier.original_offset),
        });
        self.topics[d].remove(m);
        let group = self.topics[t].groups[g].id;
        self.expect_deadline(&metadata);
        self.topics[t].store(self.now, partition, Some(group), content.with_metadata(metadata));
        Ok(true)
    }
}
