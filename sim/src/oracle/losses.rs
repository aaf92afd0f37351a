//! Payloads that are damaged on disk.
//!
//! Which records are damaged is not predicted: the oracle is told which ones the broker has found, and when. What
//! follows from it is: which messages and results are lost, in how many records, and what becomes of them.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::{Arc, OnceLock};

use driftq_core::SpaceClass;
use driftq_core::types::{Envelope, LeaseToken, Lsn, Metadata, Now, PayloadId, Text, Timestamp};

use super::model::{MessageIndex, Model, Unwritten};
use super::topic::{Attempted, Content, LastErrorText, Phase, Progress};
use super::waiting::PayloadOf;

/// Records that cannot be read any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged {
    /// The records.
    pub lsns: RangeInclusive<Lsn>,
    /// What is said of the damage.
    pub damage: Text,
}

impl Model {
    /// The place of the next message that the record `lsn` stores. The result in a record has part 0.
    pub(super) fn next_payload(&mut self, lsn: Lsn) -> PayloadId {
        self.stored_by_record += 1;
        PayloadId { lsn, part: self.stored_by_record }
    }

    /// One record carries the payload again to which `of` refers: everything that refers to it follows.
    pub(super) fn relocate(&mut self, of: Option<&PayloadOf>) -> Result<(), Unwritten> {
        self.record(SpaceClass::Churn)?;
        let Some(from) = of.and_then(|of| self.payload_of(of)) else { return Ok(()) };
        let to = PayloadId { lsn: Lsn(self.records), part: 0 };
        for message in self.topics.iter_mut().flat_map(|topic| &mut topic.messages) {
            if message.content.payload == from && message.content.metadata.lost.is_none() {
                message.content = Arc::new(Content { payload: to, ..(*message.content).clone() });
            }
        }
        for effect in self.effects.iter_mut().filter(|effect| effect.result_at == from && !effect.result_lost) {
            effect.result_at = to;
        }
        Ok(())
    }

    fn payload_of(&self, of: &PayloadOf) -> Option<PayloadId> {
        match of {
            PayloadOf::Message((topic, _, offset)) => {
                let topic = self.topics.iter().find(|known| known.id == *topic)?;
                Some(topic.messages[topic.message(*offset)?].content.payload)
            }
            PayloadOf::Result(identity) => {
                Some(self.effects.iter().find(|effect| effect.identity == *identity)?.result_at)
            }
            PayloadOf::Replay => None,
        }
    }

    /// Records were found damaged.
    pub(super) fn found_damaged(&mut self, now: Now, damaged: &[Damaged]) -> Result<(), Unwritten> {
        self.advance_broker_time(now);
        for found in damaged {
            self.damaged.push_back(found.clone());
            self.lose_damaged()?;
        }
        Ok(())
    }

    /// Records the payloads of damaged records as lost, and dead-letters the messages of deliveries that were dropped
    /// for it, until the log has no space.
    pub(super) fn lose_damaged(&mut self) -> Result<(), Unwritten> {
        while !self.is_stalled() {
            let written = if let Some(token) = self.dropped.pop_front() {
                self.dead_letter_lost(token).inspect_err(|_| self.dropped.push_front(token))
            } else if let Some(damaged) = self.damaged.pop_front() {
                self.lose(&damaged).inspect_err(|_| self.damaged.push_front(damaged))
            } else {
                break;
            };
            self.or_pause(written)?;
        }
        Ok(())
    }

    /// Whether there are losses that are not recorded yet.
    pub(super) fn has_unrecorded_losses(&self) -> bool {
        !self.damaged.is_empty() || !self.dropped.is_empty()
    }

    fn lose(&mut self, damaged: &Damaged) -> Result<(), Unwritten> {
        for payload in self.payloads_within(&damaged.lsns) {
            self.record(SpaceClass::Drain)?;
            self.lose_payload(payload, &damaged.damage);
        }
        let dead_letter_topics: Vec<_> = self.topics.iter().filter(|it| it.is_dlq()).map(|topic| topic.id).collect();
        let dropped = self.lose_outputs(damaged, |delivery| !dead_letter_topics.contains(&delivery.topic));
        for (consumer, token) in dropped {
            self.leases_begin(None, &[token]);
            self.not_delivered(&[consumer]);
            self.dropped.push_back(token);
        }
        let left = self.leave();
        self.not_delivered(&left.dropped);
        self.leases_begin(None, &left.tokens);
        Ok(())
    }

    /// The payloads of records to which something refers.
    fn payloads_within(&self, lsns: &RangeInclusive<Lsn>) -> BTreeSet<PayloadId> {
        let messages = self.topics.iter().flat_map(|topic| &topic.messages).map(|message| &message.content);
        let messages = messages.filter(|content| content.metadata.lost.is_none()).map(|content| content.payload);
        let results = self.effects.iter().filter(|effect| effect.result.is_some() && !effect.result_lost);
        let results = results.map(|effect| effect.result_at);
        messages.chain(results).filter(|payload| lsns.contains(&payload.lsn)).collect()
    }

    fn lose_payload(&mut self, payload: PayloadId, damage: &Text) {
        for t in 0..self.topics.len() {
            let is_dlq = self.topics[t].is_dlq();
            for m in 0..self.topics[t].messages.len() {
                let is_open = !self.topics[t].is_acked_by_all(m);
                let message = &mut self.topics[t].messages[m];
                if message.content.payload == payload && message.content.metadata.lost.is_none() {
                    message.content = message.content.without_payload(damage);
                    message.has_deadline_timer = is_open && !is_dlq;
                    self.first_deadline = Timestamp(0);
                }
            }
        }
        for effect in self.effects.iter_mut().filter(|effect| effect.result.is_some() && effect.result_at == payload) {
            effect.result_lost = true;
        }
    }

    /// The message of a delivery that never left is dead-lettered, if its payload is lost.
    fn dead_letter_lost(&mut self, token: LeaseToken) -> Result<(), Unwritten> {
        let Some((t, g, m)) = self.leased_under(token) else { return Ok(()) };
        let message = &self.topics[t].messages[m];
        if message.content.metadata.lost.is_none() {
            return Ok(());
        }
        let (reason, error) = message.reason_past_deadline(&LastErrorText::None);
        self.dead_letter_message(t, g, m, reason, &error)?;
        self.drop_ended_entries();
        Ok(())
    }

    fn leased_under(&self, token: LeaseToken) -> Option<MessageIndex> {
        let is_of = |progress: &Progress| {
            matches!(progress, Progress::Attempted(Attempted { token: newest, phase: Phase::Leased { .. }, .. })
                if *newest == token)
        };
        let groups = self
            .topics
            .iter()
            .enumerate()
            .flat_map(|(t, topic)| topic.groups.iter().enumerate().map(move |(g, group)| (t, g, group)));
        { groups }.find_map(|(t, g, group)| Some((t, g, group.progress.iter().position(is_of)?)))
    }
}

impl Content {
    /// What is left of a message whose payload is lost.
    pub(super) fn without_payload(&self, damage: &Text) -> Arc<Self> {
        let metadata = left_of(&self.metadata, damage);
        Arc::new(Self { key: Vec::new(), value: Vec::new(), metadata, equal_body: OnceLock::new(), ..self.clone() })
    }
}

/// The metadata of a message whose payload is lost: what decisions need of it.
pub(crate) fn left_of(metadata: &Metadata, damage: &Text) -> Metadata {
    let Metadata { envelope, dead_letter, redrive, requested, .. } = metadata;
    let is_text = |text: &&Text| !text.is_empty();
    let mut dead_letter = dead_letter.clone();
    if let Some(dead_letter) = &mut dead_letter {
        let kept = &mut dead_letter.kept;
        (kept.target_topic, kept.partition_override, kept.deadline) = (None, None, None);
    }
    let envelope = Envelope {
        tenant_id: envelope.tenant_id.as_ref().filter(is_text).filter(|tenant| &***tenant != "default").cloned(),
        idempotency_key: envelope.idempotency_key.as_ref().filter(is_text).cloned(),
        retry_policy: envelope.retry_policy,
        priority: envelope.priority.filter(|priority| priority.level() > 0),
        deliver_at: envelope.deliver_at,
        delayed_until: envelope.delayed_until,
        ..Envelope::default()
    };
    let (redrive, requested, lost) = (*redrive, requested.clone(), Some(damage.clone()));
    Metadata { envelope, dead_letter, redrive, requested, lost, ..Metadata::default() }
}
