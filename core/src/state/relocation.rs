//! Payloads that were written again, and payloads that were lost.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use super::{Contradiction, State};
use crate::record::{Event, MessageAt, PayloadLost, Referrer, Relocated};
use crate::types::{Lsn, PayloadId};

impl State {
    /// Everything that refers to the payload, which stands in the record of `event`.
    #[must_use]
    pub fn referrers_of(&self, payload: PayloadId, event: &Event) -> Vec<Referrer> {
        let mut found = match event {
            Event::Relocated(relocated) => relocated.referrers.clone(),
            _ if payload.part == 0 && event.result().is_some() => {
                self.identity_of_result(event).map(Referrer::Effect).into_iter().collect()
            }
            _ => self.message_of(payload, event).map(Referrer::Message).into_iter().collect(),
        };
        for other in self.referrers.of(payload).iter().map(|other| Referrer::Message(*other)) {
            if !found.contains(&other) {
                found.push(other);
            }
        }
        found.retain(|referrer| match referrer {
            Referrer::Message(message) => self.refers(message, payload),
            Referrer::Effect(identity) => self.has_result_at(identity, payload),
        });
        found
    }

    /// Whether anything refers to the payload, which stands in the record of `event`: whether it has
    /// [referrers](State::referrers_of).
    #[must_use]
    pub fn is_referred(&self, payload: PayloadId, event: &Event) -> bool {
        let is_by_record = match event {
            Event::Relocated(relocated) => relocated.referrers.iter().any(|referrer| match referrer {
                Referrer::Message(message) => self.refers(message, payload),
                Referrer::Effect(identity) => self.has_result_at(identity, payload),
            }),
            _ if payload.part == 0 && event.result().is_some() => {
                self.identity_of_result(event).is_some_and(|identity| self.has_result_at(&identity, payload))
            }
            _ => event.stored_by(payload.part).is_some_and(|(topic, partition, offset)| {
                let partition = self.topic(topic).and_then(|topic| topic.partition(partition));
                let message = partition.and_then(|partition| partition.find(offset));
                message.is_some_and(|(_, message)| message.payload.id == payload)
            }),
        };
        is_by_record || self.referrers.of(payload).iter().any(|other| self.refers(other, payload))
    }

    /// The message that the record of `event` made with the payload, if it is stored.
    fn message_of(&self, payload: PayloadId, event: &Event) -> Option<MessageAt> {
        let (topic, partition, offset) = event.stored_by(payload.part)?;
        let (position, _) = self.topic(topic)?.partition(partition)?.find(offset)?;
        Some(MessageAt { topic, partition, position })
    }

    /// The payloads of the records `lsns`, each with everything that refers to it. Reads the whole state; for records
    /// that cannot be read any more.
    #[must_use]
    pub fn referrers_within(&self, lsns: &RangeInclusive<Lsn>) -> BTreeMap<PayloadId, Vec<Referrer>> {
        let mut found: BTreeMap<PayloadId, Vec<Referrer>> = BTreeMap::new();
        for topic in self.topics() {
            for (partition, messages) in topic.partitions() {
                for (position, message) in messages.messages.within(lsns) {
                    let at = MessageAt { topic: topic.id(), partition, position };
                    found.entry(message.payload.id).or_default().push(Referrer::Message(at));
                }
            }
        }
        for (identity, payload) in self.results_within(lsns) {
            found.entry(payload).or_default().push(Referrer::Effect(identity));
        }
        found
    }

    pub(super) fn relocate(&mut self, relocated: &Relocated) -> Result<(), Contradiction> {
        let Relocated { from, referrers, body } = relocated;
        check_referred(*from, referrers)?;
        let to = self.payload(0);
        for (number, referrer) in referrers.iter().enumerate() {
            match referrer {
                Referrer::Message(at) => {
                    let partition = self.partition_mut(at.topic, at.partition)?;
                    let message = partition.message(at.position).filter(|message| message.payload.id == *from);
                    let mut message = message.ok_or(UNREFERRED)?;
                    if !message.payload.fits(body) {
                        return Err(Contradiction("relocation of other bytes"));
                    }
                    message.payload.id = to;
                    partition.replace(at.position, message);
                    if number > 0 {
                        self.add_referrer(to, *at);
                    }
                }
                Referrer::Effect(identity) => {
                    if !self.relocate_result(identity, *from, to) {
                        return Err(UNREFERRED);
                    }
                }
            }
        }
        self.referrers.remove(*from);
        Ok(())
    }

    pub(super) fn lose_payload(&mut self, lost: &PayloadLost) -> Result<(), Contradiction> {
        let PayloadLost { payload, referrers, damage } = lost;
        check_referred(*payload, referrers)?;
        for referrer in referrers {
            match referrer {
                Referrer::Message(at) => {
                    let partition = self.partition_mut(at.topic, at.partition)?;
                    let message = partition.message(at.position).filter(|message| message.payload.id == *payload);
                    let mut message = message.ok_or(UNREFERRED)?;
                    message.lose(damage);
                    partition.replace(at.position, message);
                }
                Referrer::Effect(identity) => {
                    if !self.lose_result(identity, *payload) {
                        return Err(UNREFERRED);
                    }
                }
            }
        }
        self.referrers.remove(*payload);
        Ok(())
    }
}

const UNREFERRED: Contradiction = Contradiction("what is named does not refer to the payload");

fn check_referred(payload: PayloadId, referrers: &[Referrer]) -> Result<(), Contradiction> {
    if referrers.is_empty() || payload.is_lost() {
        return Err(Contradiction("payload without a referrer"));
    }
    Ok(())
}
