//! Outputs and the bytes of their messages and results.

use std::collections::BTreeSet;

use super::outputs::{Leased, Recipient, Unfilled, Waiting};
use super::{Broker, LogSink};
use crate::command::{Command, StoreCommand};
use crate::faults::Faults;
use crate::record::{Event, Record};
use crate::reply::{Output, Reply, StoreReply};
use crate::state::{Message, Topic};
use crate::types::{Body, Caller, Effect, Lsn, MessageRef, Now, PayloadId, Ticket};

impl<F: Faults> Broker<F> {
    /// Executes a command and holds its reply.
    pub(super) fn execute_for(
        &mut self,
        ticket: Ticket,
        caller: &Caller,
        command: &mut Command,
        log: &mut dyn LogSink,
    ) {
        let audit = self.to_audit(caller, command);
        if let Err(refusal) = self.admit(caller, command) {
            audit.into_iter().for_each(|audit| self.record_audit(audit, Err(&refusal), log));
            return self.hold(Output::Reply { ticket, result: Err(refusal) });
        }
        let result = match command {
            Command::Peek(peek) => match self.peeked(peek) {
                Ok(messages) => {
                    let find = |payload| self.faults.payload_found(self.payloads.get(payload));
                    let peek = Unfilled::peek(self.appended, ticket, messages, find);
                    return self.outputs.hold_unfilled(peek);
                }
                Err(refusal) => Err(refusal),
            },
            Command::Store(command) => match self.execute_store(caller, command, log) {
                Ok(reply) => return self.hold_store_reply(ticket, command, reply),
                Err(refusal) => Err(refusal),
            },
            command => self.execute(caller, command, log),
        };
        if let Some(audit) = audit {
            self.record_audit(audit, result.as_ref().map(drop), log);
        }
        self.hold(Output::Reply { ticket, result });
    }

    /// Holds a reply of the idempotency store; results that it repeats are added if they are in the cache.
    fn hold_store_reply(&mut self, ticket: Ticket, command: &StoreCommand, reply: Reply) {
        let result = |effect: &Effect| effect.result.as_ref().and_then(|result| result.payload_ref());
        let results: Vec<_> = match (&reply, command) {
            (Reply::Store(StoreReply::Replay { .. }), StoreCommand::Begin(begin)) => {
                let replayed = self.state.store().get(&begin.identity).and_then(result);
                replayed.map(|payload| (0, payload)).into_iter().collect()
            }
            (Reply::Store(StoreReply::Effect(found)), _) => {
                result(&found.effect).map(|payload| (0, payload)).into_iter().collect()
            }
            (Reply::Store(StoreReply::Listed(page)), _) => {
                let results = page.effects.iter().enumerate();
                results.filter_map(|(slot, (_, found))| Some((slot, result(&found.effect)?))).collect()
            }
            _ => Vec::new(),
        };
        let output = Output::Reply { ticket, result: Ok(reply) };
        match results.is_empty() {
            true => self.hold(output),
            false => {
                let find = |payload| self.faults.payload_found(self.payloads.get(payload));
                let replay = Unfilled::replay(self.appended, output, results, find);
                self.outputs.hold_unfilled(replay);
            }
        }
    }

    /// The body of a message that is delivered to a group, if it is in memory or lost.
    pub(super) fn take_body(&mut self, message_ref: &MessageRef, message: &Message) -> Option<Body> {
        message.body_without_payload().or_else(|| {
            let groups = self.state.topic(message_ref.topic).map_or(0, Topic::group_count);
            let stored = self.faults.payload_found(self.payloads.take(message.payload.id, groups));
            stored.map(|stored| if message.fields().is_none() { stored } else { message.body(&stored) })
        })
    }

    /// Holds a delivery that was just recorded; if its message is `unread`, it lacks the bytes.
    pub(super) fn hold_delivery(&mut self, output: Output, leased: Leased, unread: Option<Message>) {
        match unread {
            None if !self.outputs.has_unread() => self.outputs.hold(self.appended, output),
            unread => self.outputs.hold_unfilled(Unfilled::delivery(self.appended, output, leased, unread)),
        }
    }

    /// Sets the synced outputs aside that have to wait for bytes; their leases begin when they leave.
    pub(super) fn set_unread_aside(&mut self) {
        if self.outputs.may_wait(self.durable) {
            for (message_ref, decided_at) in self.outputs.set_aside(self.durable, &self.payloads) {
                self.index.await_bytes(&message_ref, decided_at);
            }
        }
    }

    /// The payloads for which outputs wait, in the order of the log. Each stays wanted until [`Broker::on_read`] has
    /// brought it or [`Broker::on_gone`] was called.
    pub fn wanted_payloads(&self) -> impl Iterator<Item = PayloadId> {
        self.outputs.wanted()
    }

    /// The first of them in the record `lsn` or a later one.
    #[must_use]
    pub fn first_wanted(&self, lsn: Lsn) -> Option<PayloadId> {
        self.outputs.first_wanted(lsn)
    }

    /// A read at `now` has brought records, in the order of the log. Outputs that waited for their payloads may leave.
    pub fn on_read(&mut self, now: impl Into<Now>, records: &[(Lsn, Record)]) {
        if self.failure.is_some() {
            return;
        }
        self.now = self.now.max(self.time_at(now.into().mono));
        let (mut released, mut payloads) = (BTreeSet::new(), Vec::with_capacity(records.len()));
        for (lsn, record) in records {
            for (part, body) in record.event.bodies() {
                let (payload, body) = (PayloadId { lsn: *lsn, part }, self.faults.read_body(&record.event, body));
                let taken = self.outputs.fill(payload, &body, &mut released);
                if self.state.is_referred(payload, &record.event) {
                    payloads.push((payload, body, taken && self.has_one_group(&record.event, part)));
                }
            }
        }
        if let (Some((first, _)), Some((last, _))) = (records.first(), records.last()) {
            self.forget_read_ahead(&(*first..=*last));
        }
        self.release_filled(released);
        self.payloads.insert_read(payloads);
        self.payloads.evict(self.faults.evicts_through(self.durable, self.appended));
    }

    /// Whether the message that a record has made is in a topic of one group.
    fn has_one_group(&self, event: &Event, part: u32) -> bool {
        let topic = event.stored_by(part).and_then(|(topic, ..)| self.state.topic(topic));
        topic.is_some_and(|topic| topic.group_count() == 1)
    }

    /// Adds the payloads of `records` to the outputs that wait for them.
    pub(super) fn fill_outputs(&mut self, records: &[(Lsn, Record)]) {
        let mut released = BTreeSet::new();
        for (lsn, record) in records {
            for (part, body) in record.event.bodies() {
                let body = self.faults.read_body(&record.event, body);
                self.outputs.fill(PayloadId { lsn: *lsn, part }, &body, &mut released);
            }
        }
        self.release_filled(released);
    }

    pub(super) fn release_filled(&mut self, recipients: BTreeSet<Recipient>) {
        for recipient in recipients {
            while let Some(waiting) = self.outputs.next_filled(recipient, self.durable) {
                self.leave(waiting);
            }
        }
    }

    /// Nothing refers to a payload any more, and its segment is removed. Outputs leave without it: a delivery is
    /// dropped, a peek leaves the message out, a reply that repeats a result says that it is lost.
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

    /// An output leaves after it waited. The lease of a delivery begins to run. A delivery whose lease has ended is
    /// dropped instead: by a purge, a seek, an answer without a token.
    fn leave(&mut self, waiting: Waiting) {
        if let (Some(Leased { message_ref, lease }), Some((consumer, token))) = (waiting.leased(), waiting.delivered())
        {
            let newest = self.state.delivery(&message_ref).filter(|newest| newest.leased_until().is_some());
            if newest.is_none_or(|newest| newest.token != token) {
                return self.index.not_delivered(consumer);
            }
            self.index.release_read(&message_ref, waiting.decided_at(), self.now.after(lease));
        }
        self.outputs.make_ready(waiting);
    }

    /// The payloads that outputs lack which are not synced yet. For a simulator: cleaning adds their bytes.
    pub fn unsynced_payloads(&self) -> impl Iterator<Item = PayloadId> {
        self.outputs.unsynced_payloads()
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
