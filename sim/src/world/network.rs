//! Clients and network: requests in transit, sockets, and what workers have read and were granted.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use driftq_core::Command;
use driftq_core::command::{Claim, OnDisconnect, RedriveRest, Subscribe, TokenClaim};
use driftq_core::reply::{Delivery, StoreReply};
use driftq_core::types::{
    ConsumerId, Identity, LeaseToken, Offset, OwnerName, PartitionId, Ticket, Timestamp, TopicName,
};

use super::values::{effect_of, identity};
use crate::actions::{EffectRef, GrantRef};
use crate::names::{Call, Group, Message, Topic, Worker};

/// The most requests in transit, and the most deliveries and grants a worker keeps. The oldest are dropped first.
const KEPT_MAX: usize = 64;

/// A command as a client sends it.
#[derive(Clone, Debug)]
pub(super) struct ClientCommand {
    pub(super) command: Command,
    /// The worker that keeps the reply, if it matters to one.
    pub(super) worker: Option<Worker>,
}

/// A delivery a worker has read.
#[derive(Clone, Debug)]
pub struct HeldDelivery {
    /// The message.
    pub message: Message,
    /// The topic.
    pub topic: Topic,
    /// The group.
    pub group: Group,
    /// The owner name of its stream.
    pub owner: OwnerName,
    /// The partition.
    pub partition: PartitionId,
    /// The offset.
    pub offset: Offset,
    /// The lease token.
    pub token: LeaseToken,
    /// The end of the lease.
    pub lease_until: Timestamp,
    /// The effect of the group's work on it, if the message has an identity.
    pub effect: Option<EffectRef>,
}

impl HeldDelivery {
    /// The worker's claim on it.
    pub(super) fn claim(&self) -> Claim {
        Claim {
            topic: self.topic.name(),
            group: self.group.name(),
            partition: self.partition,
            offset: self.offset,
            owner: self.owner.clone(),
            token: TokenClaim::Shown(self.token),
        }
    }
}

/// A grant a worker was given.
#[derive(Clone, Debug)]
pub struct HeldGrant {
    /// The effect.
    pub identity: Identity,
    /// The token.
    pub token: LeaseToken,
    /// Which grant of the effect it is, from 1.
    pub attempt: u32,
    /// Whether the worker has run it.
    pub ran: bool,
}

/// An effect that a worker ran.
#[derive(Clone, Debug)]
pub struct EffectRun {
    /// The effect.
    pub identity: Identity,
    /// The token of the grant.
    pub token: LeaseToken,
    /// The attempt of the grant.
    pub attempt: u32,
    /// The event count at the time.
    pub after: u64,
}

/// A stream that is open or being opened.
#[derive(Clone, Debug)]
pub(super) struct StreamState {
    pub(super) worker: Worker,
    pub(super) topic: Topic,
    pub(super) group: Group,
    pub(super) owner: OwnerName,
    pub(super) releases: bool,
    pub(super) left: Option<u64>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct WorkerState {
    pub(super) stream: Option<ConsumerId>,
    pub(super) socket: VecDeque<HeldDelivery>,
    pub(super) read: VecDeque<HeldDelivery>,
    pub(super) grants: VecDeque<HeldGrant>,
    /// Effects whose outcome was replayed to it.
    pub(super) replayed: VecDeque<Identity>,
}

#[derive(Clone, Debug)]
struct SentRequest {
    command: ClientCommand,
    arrived: bool,
    boots: u64,
}

/// The clients and the network between them and the broker.
#[derive(Clone, Debug, Default)]
pub struct Network {
    in_transit: BTreeMap<Call, SentRequest>,
    pub(super) workers: BTreeMap<Worker, WorkerState>,
    pub(super) streams: BTreeMap<ConsumerId, StreamState>,
    pub(super) opening: BTreeMap<Ticket, StreamState>,
    /// Pending requests for grants, with the worker.
    pub(super) pending_grants: BTreeMap<Ticket, (Worker, Identity)>,
    /// All effects run by workers, in order.
    pub(super) effect_runs: Vec<EffectRun>,
    /// Pending redrives of all, with the topic.
    pub(super) pending_redrives: BTreeMap<Ticket, TopicName>,
    /// What the last redrive of all has left, with the topic.
    pub(super) redrive_rest: Option<(TopicName, RedriveRest)>,
    /// Where messages were stored, and the number of starts before.
    pub(super) produced: BTreeMap<(PartitionId, Offset), u64>,
}

impl Network {
    /// Whether a redrive of all has left dead letters.
    #[must_use]
    pub fn has_redrive_rest(&self) -> bool {
        self.redrive_rest.is_some()
    }

    /// A redrive was answered.
    pub(super) fn redriven(&mut self, ticket: Ticket, rest: Option<RedriveRest>) {
        if let Some(topic) = self.pending_redrives.remove(&ticket) {
            self.redrive_rest = rest.map(|rest| (topic, rest));
        }
    }

    /// The newest stream of a worker.
    #[must_use]
    pub fn stream_of(&self, worker: Worker) -> Option<ConsumerId> {
        self.workers.get(&worker)?.stream
    }

    /// A delivery of the message to the worker, counted back from the newest.
    #[must_use]
    pub fn held(&self, worker: Worker, message: Message, back: u8) -> Option<&HeldDelivery> {
        self.read_by(worker).filter(|held| held.message == message).nth(usize::from(back))
    }

    /// The deliveries a worker has read, newest first.
    pub fn read_by(&self, worker: Worker) -> impl Iterator<Item = &HeldDelivery> {
        self.workers.get(&worker).into_iter().flat_map(|worker_state| worker_state.read.iter().rev())
    }

    /// The newest delivery in a worker's socket.
    pub(super) fn newest_unread(&self, worker: Worker) -> Option<&HeldDelivery> {
        self.workers.get(&worker)?.socket.back()
    }

    /// Removes a delivery that no worker has read.
    pub(super) fn drop_unread(&mut self, token: LeaseToken) {
        for worker_state in self.workers.values_mut() {
            worker_state.socket.retain(|held| held.token != token);
        }
    }

    /// The number of unread deliveries in a worker's socket.
    #[must_use]
    pub fn unread(&self, worker: Worker) -> usize {
        self.workers.get(&worker).map_or(0, |worker_state| worker_state.socket.len())
    }

    /// The requests in transit.
    pub fn in_transit_calls(&self) -> impl Iterator<Item = Call> {
        self.in_transit.keys().copied()
    }

    /// The grant that is referred to, if the worker has it.
    #[must_use]
    pub fn granted(&self, grant: &GrantRef) -> Option<&HeldGrant> {
        let identity = identity(&grant.effect);
        self.grants_of(grant.worker).filter(|granted| granted.identity == identity).nth(usize::from(grant.back))
    }

    /// The grants of a worker, newest first.
    pub fn grants_of(&self, worker: Worker) -> impl Iterator<Item = &HeldGrant> {
        self.workers.get(&worker).into_iter().flat_map(|worker_state| worker_state.grants.iter().rev())
    }

    /// Whether the outcome of an effect was replayed to a worker.
    #[must_use]
    pub fn was_replayed(&self, worker: Worker, effect: &EffectRef) -> bool {
        let identity = identity(effect);
        self.workers.get(&worker).is_some_and(|worker_state| worker_state.replayed.contains(&identity))
    }

    /// All effects run by workers, in order.
    #[must_use]
    pub fn effect_runs(&self) -> &[EffectRun] {
        &self.effect_runs
    }

    /// Whether a worker has a stream or is opening one.
    #[must_use]
    pub fn is_connected(&self, worker: Worker) -> bool {
        self.stream_of(worker).is_some() || self.opening.values().any(|stream| stream.worker == worker)
    }

    /// Writes the clients' knowledge for [a fingerprint](super::Fingerprint).
    pub(super) fn canonical(&self, out: &mut impl fmt::Write) -> fmt::Result {
        // `produced` serves coverage alone.
        let Self {
            in_transit,
            workers,
            streams,
            opening,
            pending_grants,
            effect_runs,
            pending_redrives,
            redrive_rest,
            produced: _,
        } = self;
        write!(out, "{in_transit:?} {workers:?} {streams:?} {opening:?} {pending_grants:?} {effect_runs:?} ")?;
        write!(out, "{pending_redrives:?} {redrive_rest:?} ")
    }

    /// A worker requests a grant.
    pub(super) fn request_grant(&mut self, ticket: Ticket, worker: Worker, identity: &Identity) {
        self.pending_grants.insert(ticket, (worker, identity.clone()));
    }

    /// The idempotency store has replied.
    pub(super) fn store_replied(&mut self, ticket: Ticket, reply: &StoreReply) {
        let Some((worker, identity)) = self.pending_grants.remove(&ticket) else { return };
        let worker_state = self.workers.entry(worker).or_default();
        match reply {
            StoreReply::Execute { attempt, token, .. } => {
                worker_state.replayed.retain(|other| *other != identity);
                let (attempt, token) = (*attempt, *token);
                push(&mut worker_state.grants, HeldGrant { identity, token, attempt, ran: false });
            }
            StoreReply::Replay { .. } => push(&mut worker_state.replayed, identity),
            _ => {}
        }
    }

    pub(super) fn send(&mut self, call: Call, command: ClientCommand, boots: u64) {
        self.in_transit.insert(call, SentRequest { command, arrived: false, boots });
        if self.in_transit.len() > KEPT_MAX {
            self.in_transit.pop_first();
        }
    }

    /// A request in transit, whether it arrived before, and the number of starts when it was sent.
    pub(super) fn arrive(&mut self, call: Call) -> Option<(ClientCommand, bool, u64)> {
        let sent = self.in_transit.get_mut(&call)?;
        let again = std::mem::replace(&mut sent.arrived, true);
        Some((sent.command.clone(), again, sent.boots))
    }

    /// A stream is being opened.
    pub(super) fn open(&mut self, ticket: Ticket, worker: Worker, command: &Subscribe) {
        let (topic, group) = (Topic::of(&command.topic), Group::of(&command.group));
        let (Some(topic), Some(group)) = (topic, group) else { return };
        let releases = command.on_disconnect == OnDisconnect::Release;
        let (owner, left) = (command.owner.clone(), command.deliveries_max);
        self.opening.insert(ticket, StreamState { worker, topic, group, owner, releases, left });
    }

    /// The worker that reads a stream.
    pub(super) fn reader_of(&self, consumer: ConsumerId) -> Option<Worker> {
        self.streams.get(&consumer).map(|stream| stream.worker)
    }

    /// All open streams.
    pub(super) fn streams(&self) -> Vec<ConsumerId> {
        self.streams.keys().copied().collect()
    }

    /// Drops all connections.
    pub(super) fn disconnect(&mut self) {
        self.streams.clear();
        self.opening.clear();
        self.pending_grants.clear();
        self.pending_redrives.clear();
        for worker_state in self.workers.values_mut() {
            worker_state.stream = None;
            // Deliveries in the socket have left the broker and can still be read.
        }
    }

    pub(super) fn opened(&mut self, ticket: Ticket, consumer: ConsumerId) {
        let Some(stream) = self.opening.remove(&ticket) else { return };
        self.workers.entry(stream.worker).or_default().stream = Some(consumer);
        self.streams.insert(consumer, stream);
    }

    pub(super) fn close(&mut self, consumer: ConsumerId) -> Option<StreamState> {
        let stream = self.streams.remove(&consumer)?;
        let worker_state = self.workers.entry(stream.worker).or_default();
        worker_state.stream = worker_state.stream.filter(|newest| *newest != consumer);
        Some(stream)
    }

    /// Puts a delivery into the socket of its stream.
    pub(super) fn deliver(&mut self, consumer: ConsumerId, delivery: &Delivery) {
        let Some(stream) = self.streams.get_mut(&consumer) else { return };
        stream.left = stream.left.map(|left| left.saturating_sub(1));
        let digits = delivery.body.value().iter().take_while(|byte| byte.is_ascii_digit());
        let number = digits.fold(0_u32, |number, digit| number.wrapping_mul(10).wrapping_add(u32::from(digit - b'0')));
        let held = HeldDelivery {
            message: Message(number),
            topic: stream.topic,
            group: stream.group,
            owner: stream.owner.clone(),
            partition: delivery.partition,
            offset: delivery.offset,
            token: delivery.token,
            lease_until: delivery.lease_until,
            effect: match delivery.body.flags().has_identity {
                true => effect_of(stream.topic, stream.group, &delivery.body.metadata().envelope),
                false => None,
            },
        };
        push(&mut self.workers.entry(stream.worker).or_default().socket, held);
    }
}

/// Adds an item and drops the oldest beyond the limit.
pub(super) fn push<T>(queue: &mut VecDeque<T>, item: T) {
    queue.push_back(item);
    if queue.len() > KEPT_MAX {
        queue.pop_front();
    }
}
