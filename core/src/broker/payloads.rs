//! Outputs and the bytes of their messages.

use std::collections::BTreeSet;

use super::outputs::{Held, Leased, Recipient};
use super::{Broker, LogSink};
use crate::command::Command;
use crate::faults::Faults;
use crate::record::Record;
use crate::reply::{Delivery, Output};
use crate::state::{Message, Topic};
use crate::types::{Body, ConsumerId, Lsn, Now, PayloadId, Ticket};

impl<F: Faults> Broker<F> {
    /// Executes a command and holds its reply.
    pub(super) fn execute_for(&mut self, ticket: Ticket, command: Command, log: &mut impl LogSink) {
        let result = match command {
            Command::Peek(peek) => match self.peeked(&peek) {
                Ok(messages) => {
                    let mut held = Held::peek(self.appended, ticket, messages);
                    held.fill(&mut self.payloads);
                    return self.outputs.hold(held);
                }
                Err(refusal) => Err(refusal),
            },
            command => self.execute(command, log),
        };
        self.hold(Output::Reply { ticket, result });
    }

    /// Holds a delivery that was just recorded.
    pub(super) fn hold_delivery(
        &mut self,
        consumer: ConsumerId,
        delivery: Box<Delivery>,
        leased: Leased,
        message: Message,
    ) {
        let groups = self.state.topic(leased.message_ref.topic).map_or(0, Topic::group_count);
        let payload = message.payload.id;
        let mut held = Held::delivery(self.appended, Output::Deliver { consumer, delivery }, leased, message);
        held.fill(&mut self.payloads);
        self.payloads.taken(payload, groups);
        self.outputs.hold(held);
    }

    /// Sets the synced outputs aside that have to wait for bytes; their leases begin when they leave.
    pub(super) fn set_unread_aside(&mut self) {
        if self.outputs.may_wait() {
            for (message_ref, decided_at) in self.outputs.set_aside(self.durable, &mut self.payloads) {
                self.index.await_bytes(&message_ref, decided_at);
            }
        }
    }

    /// The payloads for which outputs wait, in the order of the log. Each stays wanted until [`Broker::on_read`] has
    /// brought it or [`Broker::on_gone`] was called.
    pub fn wanted_payloads(&self) -> impl Iterator<Item = PayloadId> {
        self.outputs.wanted()
    }

    /// A read at `now` has brought records, in the order of the log. Outputs that waited for their payloads may leave.
    pub fn on_read(&mut self, now: impl Into<Now>, records: &[(Lsn, Record)]) {
        if self.failure.is_some() {
            return;
        }
        self.now = self.now.max(self.time_at(now.into().mono));
        let mut payloads = Vec::new();
        for (lsn, record) in records {
            for (part, body) in record.event.bodies() {
                payloads.push((PayloadId { lsn: *lsn, part }, body.clone()));
            }
        }
        let mut recipients = BTreeSet::new();
        for (payload, body) in &payloads {
            recipients.append(&mut self.outputs.fill(*payload, body));
        }
        self.release_filled(recipients);
        payloads.retain(|(payload, _)| self.is_live(*payload, records));
        self.payloads.insert_read(payloads);
        self.payloads.evict(self.durable);
    }

    fn release_filled(&mut self, recipients: BTreeSet<Recipient>) {
        for recipient in recipients {
            while let Some(held) = self.outputs.next_filled(recipient) {
                self.leave(held);
            }
        }
    }

    /// Whether a message refers to a payload of `records`.
    fn is_live(&self, payload: PayloadId, records: &[(Lsn, Record)]) -> bool {
        let at = records.binary_search_by_key(&payload.lsn, |(lsn, _)| *lsn);
        let made = at.ok().and_then(|at| records[at].1.event.stored_by(payload.part));
        let message = made.and_then(|(topic, partition, offset)| {
            self.state.topic(topic)?.partition(partition)?.find(offset).map(|(_, message)| message)
        });
        message.is_some_and(|message| message.payload.id == payload) || self.state.has_other_referrer(payload)
    }

    /// Nothing refers to a payload any more, and its segment is removed. Outputs leave without it: a delivery is
    /// dropped, a peek leaves the message out.
    pub fn on_gone(&mut self, payload: PayloadId) {
        let (recipients, dropped) = self.outputs.give_up(payload);
        for consumer in dropped {
            self.index.not_delivered(consumer);
        }
        self.release_filled(recipients);
    }

    /// Forgets who referred to payloads.
    pub(crate) fn sweep_referrers(&mut self) {
        self.state.sweep_referrers();
    }

    /// An output leaves after it waited, unless it was withdrawn meanwhile. The lease of a delivery begins to run.
    fn leave(&mut self, held: Held) {
        if self.outputs.is_withdrawn(&held.output) {
            return;
        }
        if let Some(Leased { message_ref, lease }) = held.leased {
            self.index.release_read(&message_ref, held.decided_at, self.now.after(lease));
        }
        self.outputs.make_ready(held);
    }

    /// The bytes of a payload, if they are in memory. For a simulator, which knows payloads as they are written.
    #[must_use]
    pub fn cached_payload(&self, payload: PayloadId) -> Option<&Body> {
        self.payloads.peek(payload)
    }

    /// The bytes of payloads in memory.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        self.payloads.bytes()
    }

    /// How often a payload was found in memory, and how often it was not.
    #[must_use]
    pub fn payload_lookups(&self) -> (u64, u64) {
        self.payloads.lookups()
    }
}
