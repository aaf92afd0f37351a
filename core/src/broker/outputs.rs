//! Held outputs: until the records they depend on are synced, and until their bytes are read.
//!
//! Outputs leave in the order of the decisions, but one whose bytes are not in memory waits for a read, and so does
//! every later output of the same recipient. Those of others leave before it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use super::payload_cache::PayloadCache;
use crate::reply::{Output, Peeked, Refusal, Reply};
use crate::state::Message;
use crate::types::{Body, ConsumerId, LeaseToken, Lsn, MessageRef, Millis, PayloadId, Ticket};

/// An output that is held.
#[derive(Clone, Debug)]
pub(super) struct Held {
    /// Its number in the order of the decisions.
    number: u64,
    /// The last record when it was decided.
    pub(super) decided_at: Lsn,
    /// The bodies in it are empty until they are read.
    pub(super) output: Output,
    /// Of a delivery.
    pub(super) leased: Option<Leased>,
    /// The messages whose bytes it lacks.
    unread: Vec<Unread>,
}

/// The lease of a held delivery.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leased {
    pub(super) message_ref: MessageRef,
    pub(super) lease: Millis,
}

/// A message whose bytes an output lacks.
#[derive(Clone, Debug)]
struct Unread {
    message: Message,
    /// Its place in the output.
    slot: usize,
}

/// To whom an output goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Recipient {
    Consumer(ConsumerId),
    Ticket(Ticket),
}

impl Held {
    /// An output that contains all its bytes.
    pub(super) fn complete(decided_at: Lsn, output: Output) -> Self {
        Self { number: 0, decided_at, output, leased: None, unread: Vec::new() }
    }

    /// The delivery of `message`; its bytes are added if they are in the cache.
    pub(super) fn delivery(decided_at: Lsn, output: Output, leased: Leased, message: Message) -> Self {
        let unread = vec![Unread { message, slot: 0 }];
        Self { number: 0, decided_at, output, leased: Some(leased), unread }
    }

    /// A peek at `messages`.
    pub(super) fn peek(decided_at: Lsn, ticket: Ticket, messages: Vec<Message>) -> Self {
        let peeked = |message: &Message| Peeked {
            offset: message.offset,
            produced_at: message.produced_at,
            body: Body::bare(&[], &[]),
        };
        let output = Output::Reply { ticket, result: Ok(Reply::Peeked(messages.iter().map(peeked).collect())) };
        let unread = messages.into_iter().enumerate().map(|(slot, message)| Unread { message, slot }).collect();
        Self { number: 0, decided_at, output, leased: None, unread }
    }

    fn recipient(&self) -> Recipient {
        match &self.output {
            Output::Reply { ticket, .. } => Recipient::Ticket(*ticket),
            Output::Deliver { consumer, .. } | Output::Closed { consumer, .. } => Recipient::Consumer(*consumer),
        }
    }

    /// Whether it lacks bytes.
    pub(super) fn is_unread(&self) -> bool {
        !self.unread.is_empty()
    }

    /// Adds the bytes that are in the cache.
    pub(super) fn fill(&mut self, cache: &mut PayloadCache) {
        self.fill_from(|payload| cache.get(payload));
    }

    fn fill_from(&mut self, mut find: impl FnMut(PayloadId) -> Option<Body>) {
        let output = &mut self.output;
        self.unread.retain(|Unread { message, slot }| {
            let Some(stored) = find(message.payload.id) else { return true };
            let body = message.body(&stored);
            match output {
                Output::Deliver { delivery, .. } => delivery.body = body,
                Output::Reply { result: Ok(Reply::Peeked(peeked)), .. } => peeked[*slot].body = body,
                Output::Reply { .. } | Output::Closed { .. } => unreachable!("only deliveries and peeks have bytes"),
            }
            false
        });
    }
}

/// The held outputs of a broker.
#[derive(Clone, Debug, Default)]
pub(super) struct Outputs {
    /// Outputs whose records may not be synced yet, in the order of the decisions.
    pub(super) held: VecDeque<Held>,
    /// The held ones that lack bytes.
    held_unread: usize,
    /// Outputs that wait for bytes, theirs or those of an earlier output.
    waiting: BTreeMap<Recipient, VecDeque<Held>>,
    /// The payloads that waiting outputs lack, and for whom.
    wanted: BTreeMap<PayloadId, BTreeSet<Recipient>>,
    /// Outputs that have waited and may leave, by number.
    ready: BTreeMap<u64, Output>,
    next_number: u64,
    /// The tokens of held deliveries that were withdrawn and must not leave.
    pub(super) withdrawn: BTreeSet<LeaseToken>,
}

impl Outputs {
    /// The number of outputs that are held or not polled yet.
    pub(super) fn len(&self) -> usize {
        self.held.len() + self.waiting.values().map(VecDeque::len).sum::<usize>() + self.ready.len()
    }

    /// Everything that affects later calls.
    pub(super) fn canonical(&self, out: &mut impl fmt::Write) -> fmt::Result {
        let Self { held, held_unread: _, waiting, wanted, ready, next_number: _, withdrawn } = self;
        for Held { number: _, decided_at, output, leased, unread } in held.iter().chain(waiting.values().flatten()) {
            write!(out, "{decided_at:?} {output:?} {leased:?} {unread:?} ")?;
        }
        write!(out, "{wanted:?} {:?} {withdrawn:?} ", ready.values())
    }

    pub(super) fn hold(&mut self, mut held: Held) {
        held.number = self.next_number;
        self.next_number += 1;
        self.held_unread += usize::from(held.is_unread());
        self.held.push_back(held);
    }

    /// The next output that has waited, if no held one that was decided before it may leave.
    pub(super) fn pop_ready(&mut self, may_leave: impl FnOnce(&Held) -> bool) -> Option<Output> {
        let (number, _) = self.ready.first_key_value()?;
        let is_behind = self.held.front().is_some_and(|held| held.number < *number && may_leave(held));
        if is_behind { None } else { self.ready.pop_first().map(|(_, output)| output) }
    }

    /// Whether the output is a withdrawn delivery.
    pub(super) fn is_withdrawn(&mut self, output: &Output) -> bool {
        !self.withdrawn.is_empty()
            && matches!(output, Output::Deliver { delivery, .. } if self.withdrawn.remove(&delivery.token))
    }

    /// Whether some output that is synced may have to wait for bytes.
    pub(super) fn may_wait(&self) -> bool {
        self.held_unread > 0 || !self.waiting.is_empty()
    }

    /// Sets the synced outputs aside that have to wait for bytes, after adding what is in the cache, and returns the
    /// messages of the deliveries among them, each with the last record when it was decided.
    pub(super) fn set_aside(&mut self, durable: Lsn, cache: &mut PayloadCache) -> Vec<(MessageRef, Lsn)> {
        let mut leases = Vec::new();
        let mut rest = VecDeque::with_capacity(self.held.len());
        for mut held in std::mem::take(&mut self.held) {
            if held.decided_at > durable {
                rest.push_back(held);
                continue;
            }
            if held.is_unread() {
                held.fill(cache);
                self.held_unread -= usize::from(!held.is_unread());
            }
            let recipient = held.recipient();
            if !held.is_unread() && !self.waiting.contains_key(&recipient) {
                rest.push_back(held);
                continue;
            }
            self.held_unread -= usize::from(held.is_unread());
            if self.is_withdrawn(&held.output) {
                continue;
            }
            leases.extend(held.leased.map(|leased| (leased.message_ref, held.decided_at)));
            for unread in &held.unread {
                self.wanted.entry(unread.message.payload.id).or_default().insert(recipient);
            }
            self.waiting.entry(recipient).or_default().push_back(held);
        }
        self.held = rest;
        leases
    }

    /// The payloads that waiting outputs lack, in the order of the log.
    pub(super) fn wanted(&self) -> impl Iterator<Item = PayloadId> {
        self.wanted.keys().copied()
    }

    /// Adds bytes to the outputs that lack them and returns the recipients for whom an output may leave now.
    pub(super) fn fill(&mut self, payload: PayloadId, body: &Body) -> BTreeSet<Recipient> {
        let recipients = self.wanted.remove(&payload).unwrap_or_default();
        for recipient in &recipients {
            for held in self.waiting.get_mut(recipient).into_iter().flatten() {
                held.fill_from(|wanted| (wanted == payload).then(|| body.clone()));
            }
        }
        recipients
    }

    /// Gives a payload up: drops the deliveries that lack it and leaves it out of peeks. Returns the recipients for
    /// whom an output may leave now, and the consumers of dropped deliveries.
    pub(super) fn give_up(&mut self, payload: PayloadId) -> (BTreeSet<Recipient>, Vec<ConsumerId>) {
        let recipients = self.wanted.remove(&payload).unwrap_or_default();
        let mut dropped = Vec::new();
        for recipient in &recipients {
            let Some(waiting) = self.waiting.get_mut(recipient) else { continue };
            waiting.retain_mut(|held| {
                if !held.unread.iter().any(|unread| unread.message.payload.id == payload) {
                    return true;
                }
                match &mut held.output {
                    Output::Deliver { consumer, .. } => {
                        dropped.push(*consumer);
                        return false;
                    }
                    Output::Reply { result: Ok(Reply::Peeked(peeked)), .. } => {
                        leave_out(peeked, &mut held.unread, payload);
                    }
                    Output::Reply { .. } | Output::Closed { .. } => {}
                }
                true
            });
            if waiting.is_empty() {
                self.waiting.remove(recipient);
            }
        }
        (recipients, dropped)
    }

    /// The next output of a recipient that waits for nothing any more.
    pub(super) fn next_filled(&mut self, recipient: Recipient) -> Option<Held> {
        let waiting = self.waiting.get_mut(&recipient)?;
        let filled = if waiting.front()?.is_unread() { None } else { waiting.pop_front() };
        if waiting.is_empty() {
            self.waiting.remove(&recipient);
        }
        filled
    }

    pub(super) fn make_ready(&mut self, held: Held) {
        self.ready.insert(held.number, held.output);
    }

    /// The log has failed: replies that did not leave become refusals, deliveries are dropped. What is synced and
    /// complete still leaves.
    pub(super) fn fail(&mut self, durable: Lsn) {
        self.wanted.clear();
        self.held_unread = 0;
        let waiting = std::mem::take(&mut self.waiting).into_values().flatten();
        let refused = |output| match output {
            Output::Reply { ticket, .. } => {
                let output = Output::Reply { ticket, result: Err(Refusal::LogFailed) };
                Some(Held::complete(Lsn(0), output))
            }
            Output::Deliver { .. } | Output::Closed { .. } => None,
        };
        let waiting: Vec<_> = waiting.filter_map(|held| refused(held.output)).collect();
        let held = std::mem::take(&mut self.held).into_iter();
        let may_leave = |held: &Held| held.decided_at <= durable && !held.is_unread();
        let held = held.filter_map(|held| if may_leave(&held) { Some(held) } else { refused(held.output) });
        self.held = waiting.into_iter().chain(held).collect();
    }
}

/// Leaves the messages with a payload out of a peek.
fn leave_out(peeked: &mut Vec<Peeked>, unread: &mut Vec<Unread>, payload: PayloadId) {
    while let Some(at) = unread.iter().position(|unread| unread.message.payload.id == payload) {
        let slot = unread.remove(at).slot;
        peeked.remove(slot);
        for later in unread.iter_mut().filter(|later| later.slot > slot) {
            later.slot -= 1;
        }
    }
}
