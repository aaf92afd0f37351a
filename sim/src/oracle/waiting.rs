//! Expected outputs that wait for the bytes of their messages and results.
//!
//! Which payloads are in memory is not predicted: the oracle is told. What follows from it is: an output that lacks
//! bytes waits once it is synced, and every later output of the same recipient with it; those of others leave; the
//! lease of a delivery begins when it leaves.

use driftq_core::Reply;
use driftq_core::reply::StoreReply;
use driftq_core::types::{
    ConsumerId, Identity, LeaseToken, Now, Offset, PartitionId, PayloadId, Ticket, Timestamp, TopicId,
};

use super::effect::Effect;
use super::expected::{Expected, ExpectedDelivery, ExpectedPeek, ExpectedReply};
use super::lease::{BegunBy, Runs};
use super::losses::Damaged;
use super::model::Model;
use super::topic::{Attempted, Phase, Progress};

/// A message by its place.
pub type MessagePlace = (TopicId, PartitionId, Offset);

/// What a payload in an output belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PayloadOf {
    /// A message.
    Message(MessagePlace),
    /// The result of an effect.
    Result(Identity),
    /// The result that the command of the call replays.
    Replay,
}

/// An expected output that has not left.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) expected: Expected,
    /// The number of records when it was decided.
    decided_at: u64,
    /// The call that decided it has not ended.
    is_new: bool,
    /// The payloads it lacks, each with what it belongs to.
    unread: Vec<(PayloadId, PayloadOf)>,
    /// It is synced and waits for bytes, its own or those of an earlier output.
    pub(super) is_waiting: bool,
    /// A delivery that was taken back while it waited.
    is_withdrawn: bool,
    /// If it lacked a payload that was lost: the number of records with the one that says so.
    waits_for: u64,
}

/// What became of deliveries that waited.
#[derive(Clone, Debug, Default)]
pub(super) struct Left {
    /// The tokens of those that leave.
    pub(super) tokens: Vec<LeaseToken>,
    /// The streams of those that are dropped.
    pub(super) dropped: Vec<ConsumerId>,
}

/// To whom an output goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recipient {
    Stream(ConsumerId),
    Ticket(Ticket),
}

impl Pending {
    fn recipient(&self) -> Recipient {
        match &self.expected {
            Expected::Reply { ticket, .. } => Recipient::Ticket(*ticket),
            Expected::Deliver(delivery) => Recipient::Stream(delivery.consumer),
            Expected::Closed { consumer, .. } => Recipient::Stream(*consumer),
        }
    }

    /// What it contains the bytes of.
    fn contents(&self) -> Vec<PayloadOf> {
        let result = |effect: &Effect| effect.result.is_some().then(|| PayloadOf::Result(effect.identity.clone()));
        match &self.expected {
            Expected::Deliver(delivery) => {
                vec![PayloadOf::Message((delivery.topic, delivery.partition, delivery.offset))]
            }
            Expected::Reply { result: Ok(ExpectedReply::Peeked(peeked)), .. } => {
                let places = peeked.iter().map(|peeked| (peeked.topic, peeked.partition, peeked.offset));
                places.map(PayloadOf::Message).collect()
            }
            Expected::Reply { result: Ok(ExpectedReply::Effect(effect)), .. } => result(effect).into_iter().collect(),
            Expected::Reply { result: Ok(ExpectedReply::Effects { page, .. }), .. } => {
                page.iter().filter_map(result).collect()
            }
            Expected::Reply {
                result: Ok(ExpectedReply::Plain(Reply::Store(StoreReply::Replay { outcome, .. }))),
                ..
            } => outcome.result.iter().map(|_| PayloadOf::Replay).collect(),
            Expected::Reply { .. } | Expected::Closed { .. } => Vec::new(),
        }
    }

    /// The token of the delivery, if it is one.
    pub(super) fn token(&self) -> Option<LeaseToken> {
        if let Expected::Deliver(delivery) = &self.expected { Some(delivery.token) } else { None }
    }
}

impl Model {
    /// Expects an output that is decided now.
    pub(super) fn expect(&mut self, expected: Expected) {
        self.outputs.push_back(Pending {
            expected,
            decided_at: self.records,
            is_new: true,
            unread: Vec::new(),
            is_waiting: false,
            is_withdrawn: false,
            waits_for: 0,
        });
    }

    /// A call has ended. Its outputs lack the payloads that are not in memory, which `missing` names.
    pub(super) fn call_ended(&mut self, missing: impl Fn(&PayloadOf) -> Option<PayloadId>) {
        for pending in self.outputs.iter_mut().rev().take_while(|pending| pending.is_new) {
            pending.is_new = false;
            let contents = pending.contents().into_iter();
            pending.unread = contents.filter_map(|of| Some((missing(&of)?, of))).collect();
        }
        self.set_aside(self.durable, |_| false);
    }

    /// The first `durable` records are synced: outputs that lack bytes which are not in memory wait for them now.
    pub(super) fn set_aside(&mut self, durable: u64, is_cached: impl Fn(PayloadId) -> bool) {
        let leaves = |pending: &Pending| pending.unread.is_empty() && !pending.is_waiting && pending.waits_for == 0;
        if self.outputs.iter().all(leaves) {
            return;
        }
        let mut waiting: Vec<Recipient> = Vec::new();
        for pending in &mut self.outputs {
            if !pending.is_waiting && pending.decided_at <= durable {
                pending.unread.retain(|(payload, _)| !is_cached(*payload));
                let lacks = !pending.unread.is_empty() || pending.waits_for > durable;
                pending.is_waiting = lacks || waiting.contains(&pending.recipient());
            }
            if pending.is_waiting {
                waiting.push(pending.recipient());
            }
        }
    }

    /// The payloads that outputs lack.
    pub(super) fn lacking(&self) -> impl Iterator<Item = PayloadId> {
        self.outputs.iter().flat_map(|pending| &pending.unread).map(|(payload, _)| *payload)
    }

    /// The outputs that wait for bytes, or will once they are synced.
    pub(super) fn waiting(&self) -> Vec<Pending> {
        let waits = |pending: &&Pending| pending.is_waiting || !pending.unread.is_empty();
        self.outputs.iter().filter(waits).cloned().collect()
    }

    /// Whether an output waits for the record of a lost payload.
    pub(super) fn awaits_loss(&self) -> bool {
        self.outputs.iter().any(|pending| pending.waits_for > 0 && pending.is_waiting)
    }

    /// The payloads of records are lost, as the newest record says: what waits for them gets what is left of them, but
    /// for deliveries of which `is_dropped` says that they do not leave. Those are returned, unless they were taken
    /// back, by recipient.
    pub(super) fn lose_outputs(
        &mut self,
        damaged: &Damaged,
        is_dropped: impl Fn(&ExpectedDelivery) -> bool,
    ) -> Vec<(ConsumerId, LeaseToken)> {
        let (records, mut dropped) = (self.records, Vec::new());
        self.outputs.retain_mut(|pending| {
            let (lost, rest) = std::mem::take(&mut pending.unread)
                .into_iter()
                .partition::<Vec<_>, _>(|(payload, _)| damaged.lsns.contains(&payload.lsn));
            pending.unread = rest;
            if lost.is_empty() {
                return true;
            }
            match &mut pending.expected {
                Expected::Deliver(delivery) if is_dropped(delivery) => {
                    dropped.extend((!pending.is_withdrawn).then_some((delivery.consumer, delivery.token)));
                    return false;
                }
                Expected::Deliver(delivery) => delivery.content = delivery.content.without_payload(&damaged.damage),
                Expected::Reply { result: Ok(ExpectedReply::Peeked(peeked)), .. } => {
                    for peeked in peeked {
                        let place = (peeked.topic, peeked.partition, peeked.offset);
                        if is_gone(&lost, &PayloadOf::Message(place)) {
                            peeked.content = peeked.content.without_payload(&damaged.damage);
                        }
                    }
                }
                Expected::Reply { result: Ok(reply), .. } => reply.lose_results(&lost),
                Expected::Reply { .. } | Expected::Closed { .. } => {}
            }
            pending.waits_for = records;
            true
        });
        dropped.sort_by_key(|(consumer, _)| *consumer);
        dropped
    }

    /// The tokens of deliveries that wait for bytes.
    pub(super) fn waiting_deliveries(&self) -> Vec<LeaseToken> {
        let waiting = self.outputs.iter().filter(|pending| pending.is_waiting);
        waiting.filter_map(Pending::token).collect()
    }

    /// Cleaning has added payloads to the outputs that are not synced.
    pub(super) fn fill_unsynced(&mut self, payloads: &[PayloadId]) {
        for pending in self.outputs.iter_mut().filter(|pending| !pending.is_waiting) {
            pending.unread.retain(|(payload, _)| !payloads.contains(payload));
        }
    }

    /// Reads have brought payloads.
    pub(super) fn fill(&mut self, payloads: &[PayloadId]) -> Left {
        for pending in self.outputs.iter_mut().filter(|pending| pending.is_waiting) {
            pending.unread.retain(|(payload, _)| !payloads.contains(payload));
        }
        self.leave()
    }

    /// Nothing refers to payloads any more: deliveries that lack them are dropped, peeks leave them out, results are
    /// said to be lost.
    pub(super) fn give_up(&mut self, payloads: &[PayloadId]) -> Left {
        let mut dropped = Vec::new();
        self.outputs.retain_mut(|pending| {
            let (gone, rest) = std::mem::take(&mut pending.unread)
                .into_iter()
                .partition::<Vec<_>, _>(|(payload, _)| pending.is_waiting && payloads.contains(payload));
            pending.unread = rest;
            match &mut pending.expected {
                _ if gone.is_empty() => true,
                Expected::Deliver(delivery) => {
                    dropped.extend((!pending.is_withdrawn).then_some(delivery.consumer));
                    false
                }
                Expected::Reply { result: Ok(ExpectedReply::Peeked(peeked)), .. } => {
                    let place = |peeked: &ExpectedPeek| (peeked.topic, peeked.partition, peeked.offset);
                    peeked.retain(|peeked| !is_gone(&gone, &PayloadOf::Message(place(peeked))));
                    true
                }
                Expected::Reply { result: Ok(reply), .. } => {
                    reply.lose_results(&gone);
                    true
                }
                Expected::Reply { .. } | Expected::Closed { .. } => true,
            }
        });
        let mut left = self.leave();
        left.dropped.append(&mut dropped);
        left
    }

    /// What waits for nothing any more leaves, but for deliveries whose lease has ended meanwhile.
    pub(super) fn leave(&mut self) -> Left {
        let durable = self.durable;
        let (mut left, mut waiting) = (Left::default(), Vec::new());
        let leased: Vec<_> = self.leased_tokens().collect();
        self.outputs.retain_mut(|pending| {
            if !pending.is_waiting {
                return true;
            }
            let recipient = pending.recipient();
            if !pending.unread.is_empty() || pending.waits_for > durable || waiting.contains(&recipient) {
                waiting.push(recipient);
                return true;
            }
            pending.is_waiting = false;
            match &pending.expected {
                Expected::Deliver(_) if pending.is_withdrawn => false,
                Expected::Deliver(delivery) if leased.contains(&delivery.token) => {
                    left.tokens.push(delivery.token);
                    true
                }
                Expected::Deliver(delivery) => {
                    left.dropped.push(delivery.consumer);
                    false
                }
                Expected::Reply { .. } | Expected::Closed { .. } => true,
            }
        });
        left
    }

    /// The tokens of running leases.
    fn leased_tokens(&self) -> impl Iterator<Item = LeaseToken> {
        let groups = self.topics.iter().flat_map(|topic| &topic.groups);
        groups.flat_map(|group| &group.progress).filter_map(|progress| match progress {
            Progress::Attempted(Attempted { token, phase: Phase::Leased { .. }, .. }) => Some(*token),
            _ => None,
        })
    }

    /// Deliveries that waited for bytes leave at `now`, or at the time of the last call: their leases begin.
    pub(super) fn leases_begin(&mut self, now: Option<Now>, tokens: &[LeaseToken]) {
        if let Some(now) = now {
            self.advance_broker_time(now);
        }
        let now = self.now;
        for progress in self.topics.iter_mut().flat_map(|topic| &mut topic.groups).flat_map(|group| &mut group.progress)
        {
            if let Progress::Attempted(Attempted { token, phase: Phase::Leased { runs, .. }, .. }) = progress
                && tokens.contains(token)
                && let Runs::From { lease, begun_by: BegunBy::Delivery, .. } = *runs
            {
                *runs = Runs::Until(now.after(lease));
            }
        }
        if !tokens.is_empty() {
            self.expect_at(Timestamp(0));
        }
    }

    /// Deliveries to streams were dropped: they do not count against those that the streams may get.
    pub(super) fn not_delivered(&mut self, streams: &[ConsumerId]) {
        for consumer in streams {
            for stream in self.streams.iter_mut().filter(|stream| stream.id == *consumer) {
                stream.deliveries_left = stream.deliveries_left.map(|left| left + 1);
            }
        }
    }

    /// The delivery with this token is taken back: it does not leave.
    pub(super) fn drop_delivery(&mut self, token: LeaseToken) {
        self.outputs.retain_mut(|pending| {
            let is_dropped = pending.token() == Some(token);
            pending.is_withdrawn |= is_dropped;
            !is_dropped || pending.is_waiting
        });
    }
}

fn is_gone(gone: &[(PayloadId, PayloadOf)], of: &PayloadOf) -> bool {
    gone.iter().any(|(_, found)| found == of)
}

impl ExpectedReply {
    /// Results that are gone are said to be lost.
    fn lose_results(&mut self, gone: &[(PayloadId, PayloadOf)]) {
        match self {
            Self::Effect(effect) => lose_results(std::slice::from_mut(&mut **effect), gone),
            Self::Effects { page, .. } => lose_results(page, gone),
            Self::Plain(Reply::Store(StoreReply::Replay { outcome, result_lost })) => {
                (outcome.result, *result_lost) = (None, true);
            }
            Self::Plain(_) | Self::Peeked(_) => {}
        }
    }
}

/// The results of these effects are said to be lost, where they are gone.
fn lose_results(effects: &mut [Effect], gone: &[(PayloadId, PayloadOf)]) {
    for effect in effects.iter_mut().filter(|effect| is_gone(gone, &PayloadOf::Result(effect.identity.clone()))) {
        (effect.result, effect.result_lost) = (None, true);
    }
}
