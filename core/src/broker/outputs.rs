//! Held outputs: until the records they depend on are synced, and until their bytes are read.
//!
//! Outputs leave in the order of the decisions, but one whose bytes are not in memory waits for a read, and so does
//! every later output of the same recipient. Those of others leave before it.
//!
//! An output that contains all its bytes costs neither a search nor an allocation; what waiting costs is proportional
//! to the outputs that wait.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::ops::RangeInclusive;

mod unfilled;

pub(super) use self::unfilled::{Leased, Unfilled};
use self::unfilled::{Unread, put_result};
use super::payload_cache::PayloadCache;
use crate::reply::{Output, Peeked, Refusal, Reply};
use crate::types::{Body, ConsumerId, LeaseToken, Lsn, MessageRef, PayloadId, Text, Ticket};

/// An output that is held.
#[derive(Clone, Debug)]
struct Held {
    /// Its number in the order of the decisions.
    number: u64,
    /// The last record when it was decided.
    decided_at: Lsn,
    output: Output,
}

/// To whom an output goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Recipient {
    Consumer(ConsumerId),
    Ticket(Ticket),
}

impl Recipient {
    fn of(output: &Output) -> Self {
        match output {
            Output::Reply { ticket, .. } => Self::Ticket(*ticket),
            Output::Deliver { consumer, .. } | Output::Closed { consumer, .. } => Self::Consumer(*consumer),
        }
    }
}

/// An output that lacked bytes when it was decided, or that comes behind such a one of the same recipient.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    number: u64,
    unfilled: Unfilled,
}

impl Waiting {
    /// Of a delivery.
    pub(super) fn leased(&self) -> Option<Leased> {
        self.unfilled.leased
    }

    /// Of a delivery.
    pub(super) fn delivered(&self) -> Option<(ConsumerId, LeaseToken)> {
        match &self.unfilled.output {
            Output::Deliver { consumer, delivery } => Some((*consumer, delivery.token)),
            Output::Reply { .. } | Output::Closed { .. } => None,
        }
    }

    /// The last record when it was decided.
    pub(super) fn decided_at(&self) -> Lsn {
        self.unfilled.decided_at
    }
}

/// The waiting outputs of a recipient.
#[derive(Clone, Debug, Default)]
struct Queue {
    /// How many are not known to be synced; they come behind the others.
    unsynced: usize,
    /// The synced ones, in the order of the decisions.
    synced: VecDeque<Waiting>,
}

/// The held outputs of a broker.
#[derive(Clone, Debug, Default)]
pub(super) struct Outputs {
    /// Outputs that wait for nothing but their records, in the order of the decisions.
    held: VecDeque<Held>,
    /// Outputs that may wait for bytes, theirs or those of an earlier output, and whose records may not be synced
    /// yet; in the order of the decisions.
    unsynced: VecDeque<Waiting>,
    /// The recipients of outputs that may wait for bytes.
    queues: BTreeMap<Recipient, Queue>,
    /// The payloads that synced outputs lack, and the outputs: each by its recipient and its number.
    wanted: BTreeMap<PayloadId, Vec<(Recipient, u64)>>,
    /// Outputs that have waited and may leave, by number.
    ready: BTreeMap<u64, Output>,
    next_number: u64,
    /// The tokens of held deliveries that were withdrawn and must not leave.
    withdrawn: BTreeSet<LeaseToken>,
    /// The recipients of outputs that wait for the records of lost payloads.
    lost: BTreeSet<Recipient>,
}

/// A delivery that was dropped, since its payload is lost.
#[derive(Clone, Debug)]
pub(super) struct Dropped {
    pub(super) consumer: ConsumerId,
    pub(super) token: LeaseToken,
    pub(super) leased: Leased,
    /// The last record when it was decided.
    pub(super) decided_at: Lsn,
}

impl Outputs {
    /// The number of outputs that are held or not polled yet.
    pub(super) fn len(&self) -> usize {
        let waiting = self.queues.values().map(|queue| queue.synced.len()).sum::<usize>();
        self.held.len() + self.unsynced.len() + waiting + self.ready.len()
    }

    /// Whether outputs of a consumer wait for their bytes.
    pub(super) fn awaits_bytes(&self, consumer: ConsumerId) -> bool {
        self.queues.contains_key(&Recipient::Consumer(consumer))
    }

    /// Everything that affects later calls. Numbers count by their order alone.
    pub(super) fn canonical(&self, out: &mut impl fmt::Write) -> fmt::Result {
        let Self { held, unsynced, queues, wanted, ready, next_number: _, withdrawn, lost } = self;
        let mut all: Vec<(u64, &Output, Option<Lsn>, Option<&Unfilled>)> = Vec::new();
        all.extend(held.iter().map(|held| (held.number, &held.output, Some(held.decided_at), None)));
        for Waiting { number, unfilled } in unsynced.iter().chain(queues.values().flat_map(|queue| &queue.synced)) {
            all.push((*number, &unfilled.output, Some(unfilled.decided_at), Some(unfilled)));
        }
        all.extend(ready.iter().map(|(number, output)| (*number, output, None, None)));
        all.sort_unstable_by_key(|(number, ..)| *number);
        for (_, output, decided_at, unfilled) in all {
            let waits = unfilled.map(|Unfilled { leased, unread, waits_for, .. }| (leased, unread, waits_for));
            write!(out, "{decided_at:?} {output:?} {waits:?} ")?;
        }
        let wanted = wanted.iter().map(|(payload, waiting)| (payload, waiting.iter().map(|(recipient, _)| recipient)));
        let wanted: Vec<(_, BTreeSet<_>)> = wanted.map(|(payload, waiting)| (payload, waiting.collect())).collect();
        write!(out, "{wanted:?} {withdrawn:?} {lost:?} ")
    }

    /// Whether an output lacks bytes, so that later ones of its recipient wait behind it.
    pub(super) fn has_unread(&self) -> bool {
        !self.queues.is_empty()
    }

    /// Holds an output that contains all its bytes.
    pub(super) fn hold(&mut self, decided_at: Lsn, output: Output) {
        if !self.queues.is_empty() {
            return self.hold_unfilled(Unfilled::complete(decided_at, output));
        }
        let number = self.take_number();
        self.held.push_back(Held { number, decided_at, output });
    }

    /// Holds an output that may lack bytes.
    pub(super) fn hold_unfilled(&mut self, unfilled: Unfilled) {
        let number = self.take_number();
        let recipient = Recipient::of(&unfilled.output);
        if !unfilled.is_unread() && (self.queues.is_empty() || !self.queues.contains_key(&recipient)) {
            let Unfilled { decided_at, output, .. } = unfilled;
            return self.held.push_back(Held { number, decided_at, output });
        }
        self.queues.entry(recipient).or_default().unsynced += 1;
        self.unsynced.push_back(Waiting { number, unfilled });
    }

    fn take_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// The next output that may leave: `is_releasable` says it of one that contains its bytes, by the last record when
    /// it was decided.
    pub(super) fn pop(&mut self, is_releasable: impl Fn(&Output, Lsn) -> bool) -> Option<Output> {
        loop {
            let front = self.held.front().filter(|held| is_releasable(&held.output, held.decided_at));
            if !self.ready.is_empty()
                && let Some(ready) = self.ready.first_entry()
                && front.is_none_or(|held| *ready.key() < held.number)
            {
                return Some(ready.remove());
            }
            front?;
            if self.withdrawn.is_empty() {
                return self.held.pop_front().map(|held| held.output);
            }
            let Held { output, .. } = self.held.pop_front()?;
            if !self.forget_withdrawn(&output) {
                return Some(output);
            }
        }
    }

    /// The delivery with this token must not leave.
    pub(super) fn withdraw(&mut self, token: LeaseToken) {
        self.withdrawn.insert(token);
    }

    /// Whether the output is a withdrawn delivery. It is not remembered any more: the output is dropped.
    fn forget_withdrawn(&mut self, output: &Output) -> bool {
        !self.withdrawn.is_empty()
            && matches!(output, Output::Deliver { delivery, .. } if self.withdrawn.remove(&delivery.token))
    }

    /// Whether some output may have to wait for bytes once it is synced through `durable`.
    pub(super) fn may_wait(&self, durable: Lsn) -> bool {
        self.unsynced.front().is_some_and(|waiting| waiting.unfilled.decided_at <= durable)
    }

    /// Sets the synced outputs aside that have to wait for bytes, after adding what is in the cache, and returns the
    /// messages of the deliveries among them, each with the last record when it was decided.
    pub(super) fn set_aside(&mut self, durable: Lsn, cache: &PayloadCache) -> Vec<(MessageRef, Lsn)> {
        let mut leases = Vec::new();
        while self.may_wait(durable)
            && let Some(mut waiting) = self.unsynced.pop_front()
        {
            let recipient = Recipient::of(&waiting.unfilled.output);
            let is_withdrawn = self.forget_withdrawn(&waiting.unfilled.output);
            let queue = self.queues.get_mut(&recipient).expect("every waiting output is counted");
            queue.unsynced -= 1;
            if !is_withdrawn {
                waiting.unfilled.fill(|payload| cache.peek(payload).cloned());
                let awaits_loss = waiting.unfilled.waits_for > durable;
                if awaits_loss {
                    self.lost.insert(recipient);
                }
                if !waiting.unfilled.is_unread() && !awaits_loss && queue.synced.is_empty() {
                    self.ready.insert(waiting.number, waiting.unfilled.output);
                } else {
                    let Unfilled { decided_at, leased, unread, .. } = &waiting.unfilled;
                    leases.extend(leased.map(|leased| (leased.message_ref, *decided_at)));
                    for unread in unread {
                        self.wanted.entry(unread.payload()).or_default().push((recipient, waiting.number));
                    }
                    queue.synced.push_back(waiting);
                }
            }
            self.drop_if_empty(recipient);
        }
        leases
    }

    fn drop_if_empty(&mut self, recipient: Recipient) {
        if self.queues.get(&recipient).is_some_and(|queue| queue.unsynced == 0 && queue.synced.is_empty()) {
            self.queues.remove(&recipient);
        }
    }

    /// The payloads that waiting outputs lack, in the order of the log.
    pub(super) fn wanted(&self) -> impl Iterator<Item = PayloadId> {
        self.wanted.keys().copied()
    }

    /// The first payload of the record `lsn` or a later one that waiting outputs lack.
    pub(super) fn first_wanted(&self, lsn: Lsn) -> Option<PayloadId> {
        self.wanted.range(PayloadId { lsn, part: 0 }..).next().map(|(payload, _)| *payload)
    }

    /// The payloads that outputs lack which are not synced yet.
    pub(super) fn unsynced_payloads(&self) -> impl Iterator<Item = PayloadId> {
        self.unsynced.iter().flat_map(|waiting| &waiting.unfilled.unread).map(Unread::payload)
    }

    /// Adds bytes to the outputs that lack them, and the recipients for whom an output may leave now to `released`.
    /// Returns whether some output lacked them.
    pub(super) fn fill(&mut self, payload: PayloadId, body: &Body, released: &mut BTreeSet<Recipient>) -> bool {
        let Some(waiting) = self.wanted.remove(&payload) else { return false };
        for (recipient, number) in waiting {
            let Some(queue) = self.queues.get_mut(&recipient) else { continue };
            let Ok(at) = queue.synced.binary_search_by_key(&number, |waiting| waiting.number) else { continue };
            queue.synced[at].unfilled.fill(|wanted| (wanted == payload).then(|| body.clone()));
            if at == 0 {
                released.insert(recipient);
            }
        }
        true
    }

    /// Adds bytes to the outputs that lack them and are not synced yet.
    pub(super) fn fill_unsynced(&mut self, mut find: impl FnMut(PayloadId) -> Option<Body>) {
        for waiting in self.unsynced.iter_mut().filter(|waiting| waiting.unfilled.is_unread()) {
            waiting.unfilled.fill(&mut find);
        }
    }

    /// Payloads of the records `lsns` are lost, as the record `decided_at` says: fills in what is left of them, and
    /// drops the deliveries of messages that are `dead_lettered` for it. Returns those that were not withdrawn.
    pub(super) fn lose(
        &mut self,
        lsns: &RangeInclusive<Lsn>,
        damage: &Text,
        decided_at: Lsn,
        dead_lettered: impl Fn(&MessageRef) -> bool,
    ) -> Vec<Dropped> {
        let first = PayloadId { lsn: *lsns.start(), part: 0 };
        let last = PayloadId { lsn: *lsns.end(), part: u32::MAX };
        let lost: Vec<_> = self.wanted.range(first..=last).map(|(payload, _)| *payload).collect();
        let waiting = lost.iter().flat_map(|payload| self.wanted.remove(payload)).flatten();
        let recipients: BTreeSet<_> = waiting.map(|(recipient, _)| recipient).collect();
        let (withdrawn, mut dropped) = (&mut self.withdrawn, Vec::new());
        let mut is_kept = |unfilled: &mut Unfilled| {
            if !unfilled.unread.iter().any(|unread| lsns.contains(&unread.payload().lsn)) {
                return true;
            }
            if let (Output::Deliver { consumer, delivery }, Some(leased)) = (&unfilled.output, unfilled.leased)
                && dead_lettered(&leased.message_ref)
            {
                let (consumer, token, decided_at) = (*consumer, delivery.token, unfilled.decided_at);
                let is_withdrawn = withdrawn.remove(&token);
                dropped.extend((!is_withdrawn).then_some(Dropped { consumer, token, leased, decided_at }));
                return false;
            }
            unfilled.lose(lsns, damage);
            unfilled.waits_for = decided_at;
            true
        };
        for recipient in &recipients {
            let Some(queue) = self.queues.get_mut(recipient) else { continue };
            queue.synced.retain_mut(|waiting| is_kept(&mut waiting.unfilled));
        }
        let mut emptied = recipients.clone();
        self.unsynced.retain_mut(|waiting| {
            let is_kept = is_kept(&mut waiting.unfilled);
            if !is_kept {
                let recipient = Recipient::of(&waiting.unfilled.output);
                self.queues.get_mut(&recipient).expect("every waiting output is counted").unsynced -= 1;
                emptied.insert(recipient);
            }
            is_kept
        });
        dropped.sort_by_key(|dropped: &Dropped| dropped.consumer);
        emptied.iter().for_each(|recipient| self.drop_if_empty(*recipient));
        self.lost.extend(recipients);
        dropped
    }

    /// The recipients of outputs that lacked lost payloads.
    pub(super) fn take_lost(&mut self) -> BTreeSet<Recipient> {
        std::mem::take(&mut self.lost)
    }

    /// Gives a payload up: drops the deliveries that lack it, leaves it out of peeks and says in replies that repeat
    /// a result that it is lost. Returns the recipients for whom an output may leave now, and the consumers of dropped
    /// deliveries that were not withdrawn.
    pub(super) fn give_up(&mut self, payload: PayloadId) -> (BTreeSet<Recipient>, Vec<ConsumerId>) {
        let waiting = self.wanted.remove(&payload).unwrap_or_default();
        let recipients: BTreeSet<_> = waiting.into_iter().map(|(recipient, _)| recipient).collect();
        let (withdrawn, mut dropped) = (&mut self.withdrawn, Vec::new());
        for recipient in &recipients {
            let Some(queue) = self.queues.get_mut(recipient) else { continue };
            queue.synced.retain_mut(|Waiting { unfilled, .. }| {
                if !unfilled.unread.iter().any(|unread| unread.payload() == payload) {
                    return true;
                }
                match &mut unfilled.output {
                    Output::Deliver { consumer, delivery } => {
                        let is_withdrawn = withdrawn.remove(&delivery.token);
                        dropped.extend((!is_withdrawn).then_some(*consumer));
                        return false;
                    }
                    Output::Reply { result: Ok(Reply::Peeked(peeked)), .. } => {
                        leave_out(peeked, &mut unfilled.unread, payload);
                    }
                    Output::Reply { result: Ok(Reply::Store(reply)), .. } => {
                        for lost in unfilled.unread.extract_if(.., |unread| unread.payload() == payload) {
                            put_result(reply, lost.slot, None);
                        }
                    }
                    Output::Reply { .. } | Output::Closed { .. } => {}
                }
                true
            });
        }
        recipients.iter().for_each(|recipient| self.drop_if_empty(*recipient));
        (recipients, dropped)
    }

    /// The next output of a recipient that is synced and waits for nothing any more, unless it was withdrawn; the log
    /// is synced through `durable`.
    pub(super) fn next_filled(&mut self, recipient: Recipient, durable: Lsn) -> Option<Waiting> {
        let filled = loop {
            let queue = self.queues.get_mut(&recipient)?;
            if queue.synced.front().is_some_and(|waiting| waiting.unfilled.waits_for > durable) {
                self.lost.insert(recipient);
                break None;
            }
            if queue.synced.front().is_none_or(|waiting| waiting.unfilled.is_unread()) {
                break None;
            }
            match queue.synced.pop_front() {
                Some(waiting) if self.forget_withdrawn(&waiting.unfilled.output) => {}
                filled => break filled,
            }
        };
        self.drop_if_empty(recipient);
        filled
    }

    pub(super) fn make_ready(&mut self, waiting: Waiting) {
        self.ready.insert(waiting.number, waiting.unfilled.output);
    }

    /// The log has failed: replies that did not leave become refusals, deliveries are dropped. What is synced and
    /// complete still leaves.
    pub(super) fn fail(&mut self, durable: Lsn) {
        self.wanted.clear();
        let synced = std::mem::take(&mut self.queues).into_values().flat_map(|queue| queue.synced);
        let waiting = synced.chain(std::mem::take(&mut self.unsynced));
        let mut refused: Vec<_> = waiting.map(|Waiting { number, unfilled }| (number, unfilled.output)).collect();
        for held in std::mem::take(&mut self.held) {
            match held.decided_at <= durable {
                true => self.held.push_back(held),
                false => refused.push((held.number, held.output)),
            }
        }
        refused.sort_unstable_by_key(|(number, _)| *number);
        for (number, output) in refused {
            match output {
                Output::Reply { ticket, .. } => {
                    let output = Output::Reply { ticket, result: Err(Refusal::LogFailed) };
                    self.held.push_back(Held { number, decided_at: Lsn(0), output });
                }
                Output::Deliver { delivery, .. } => drop(self.withdrawn.remove(&delivery.token)),
                Output::Closed { .. } => {}
            }
        }
        self.held.make_contiguous().sort_unstable_by_key(|held| held.number);
    }
}

/// Leaves the messages with a payload out of a peek.
fn leave_out(peeked: &mut Vec<Peeked>, unread: &mut Vec<Unread>, payload: PayloadId) {
    while let Some(at) = unread.iter().position(|unread| unread.payload() == payload) {
        let slot = unread.remove(at).slot;
        peeked.remove(slot);
        for later in unread.iter_mut().filter(|later| later.slot > slot) {
            later.slot -= 1;
        }
    }
}

#[cfg(test)]
mod tests;
