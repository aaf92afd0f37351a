//! Between the broker and its clients: calls under way, sockets, and what workers remember.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use driftq_core::command::{OnDisconnect, Subscribe};
use driftq_core::faults::Faults;
use driftq_core::idempotency::Identity;
use driftq_core::reply::{Delivery, StoreReply};
use driftq_core::types::{ConsumerId, LeaseToken, Lsn, Offset, OwnerName, PartitionId, Ticket, Timestamp};
use driftq_core::{Command, Output, Refusal, Reply};

use super::command::{effect_of, identity};
use super::{World, coverage};
use crate::actions::{EffectRef, GrantRef};
use crate::coverage::Point;
use crate::invariants::Verdict;
use crate::invariants::oracle::matches_oracle;
use crate::invariants::outputs::Ground;
use crate::names::{Call, Group, Message, Topic, Worker};
use crate::storage::SimStorage;

/// How many calls the network keeps, and how many deliveries a worker remembers. The oldest go first.
const KEPT: usize = 64;

/// A command as a client sends it.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) command: Command,
    /// Who is to remember the answer, where it is one to remember.
    pub(super) worker: Option<Worker>,
}

/// A delivery a worker has read.
#[derive(Clone, Debug)]
pub struct HeldDelivery {
    /// Which message it is.
    pub message: Message,
    /// Where it came from.
    pub topic: Topic,
    /// For which group.
    pub group: Group,
    /// Under whose name.
    pub owner: OwnerName,
    /// The partition.
    pub partition: PartitionId,
    /// The offset.
    pub offset: Offset,
    /// The proof.
    pub token: LeaseToken,
    /// When the lease ends.
    pub lease_until: Timestamp,
    /// The effect of the group's work on it, where it has an identity.
    pub effect: Option<EffectRef>,
}

/// A grant a worker was given.
#[derive(Clone, Debug)]
pub struct HeldGrant {
    /// Of which effect.
    pub identity: Identity,
    /// The proof.
    pub token: LeaseToken,
    /// How often the effect was granted, this time included.
    pub attempt: u32,
    /// Whether the worker has run it.
    pub ran: bool,
}

/// An effect that a worker had on the world outside.
#[derive(Clone, Debug)]
pub struct EffectRun {
    /// Which.
    pub identity: Identity,
    /// Under which grant.
    pub token: LeaseToken,
    /// How often it had been granted then.
    pub attempt: u32,
    /// After so many events.
    pub after: u64,
}

/// A stream that is connected, or about to be.
#[derive(Clone, Debug)]
struct Connected {
    worker: Worker,
    topic: Topic,
    group: Group,
    owner: OwnerName,
    releases: bool,
    left: Option<u64>,
}

#[derive(Clone, Debug, Default)]
struct Memory {
    stream: Option<ConsumerId>,
    socket: VecDeque<HeldDelivery>,
    read: VecDeque<HeldDelivery>,
    grants: VecDeque<HeldGrant>,
    /// Effects that others have run.
    replayed: VecDeque<Identity>,
}

#[derive(Clone, Debug)]
struct Sent {
    asked: Asked,
    arrived: bool,
    boots: u64,
}

/// The clients.
#[derive(Clone, Debug, Default)]
pub struct Network {
    in_transit: BTreeMap<Call, Sent>,
    workers: BTreeMap<Worker, Memory>,
    streams: BTreeMap<ConsumerId, Connected>,
    connecting: BTreeMap<Ticket, Connected>,
    /// Questions to the idempotency store, and who asked them.
    beginning: BTreeMap<Ticket, (Worker, Identity)>,
    /// What workers did to the world outside, in order.
    effect_runs: Vec<EffectRun>,
    /// Where messages were stored, and how many starts there had been.
    produced: BTreeMap<(PartitionId, Offset), u64>,
}

impl Network {
    /// The newest stream of a worker.
    #[must_use]
    pub fn stream_of(&self, worker: Worker) -> Option<ConsumerId> {
        self.workers.get(&worker)?.stream
    }

    /// A delivery of the message that the worker has read, counted back from the newest.
    #[must_use]
    pub fn held(&self, worker: Worker, message: Message, back: u8) -> Option<&HeldDelivery> {
        self.read_by(worker).filter(|held| held.message == message).nth(usize::from(back))
    }

    /// What a worker has read, newest first.
    pub fn read_by(&self, worker: Worker) -> impl Iterator<Item = &HeldDelivery> {
        self.workers.get(&worker).into_iter().flat_map(|memory| memory.read.iter().rev())
    }

    /// How many deliveries stand unread in a worker's socket.
    #[must_use]
    pub fn unread(&self, worker: Worker) -> usize {
        self.workers.get(&worker).map_or(0, |memory| memory.socket.len())
    }

    /// Calls that the network holds.
    pub fn under_way(&self) -> impl Iterator<Item = Call> {
        self.in_transit.keys().copied()
    }

    /// The grant a worker means, if it was given one.
    #[must_use]
    pub fn granted(&self, grant: &GrantRef) -> Option<&HeldGrant> {
        let identity = identity(&grant.effect);
        self.grants_of(grant.worker).filter(|granted| granted.identity == identity).nth(usize::from(grant.back))
    }

    /// The grants a worker was given, newest first.
    pub fn grants_of(&self, worker: Worker) -> impl Iterator<Item = &HeldGrant> {
        self.workers.get(&worker).into_iter().flat_map(|memory| memory.grants.iter().rev())
    }

    /// Whether a worker was told what came of an effect.
    #[must_use]
    pub fn was_replayed(&self, worker: Worker, effect: &EffectRef) -> bool {
        let identity = identity(effect);
        self.workers.get(&worker).is_some_and(|memory| memory.replayed.contains(&identity))
    }

    /// What workers did to the world outside, in order.
    #[must_use]
    pub fn effect_runs(&self) -> &[EffectRun] {
        &self.effect_runs
    }

    /// Whether a worker has a stream, or is about to.
    #[must_use]
    pub fn is_connected(&self, worker: Worker) -> bool {
        self.stream_of(worker).is_some() || self.connecting.values().any(|stream| stream.worker == worker)
    }

    /// Writes down what clients know, for [a fingerprint](super::Fingerprint).
    pub(super) fn canonical(&self, out: &mut impl fmt::Write) -> fmt::Result {
        // Where messages were stored is for the counting of rare situations alone.
        let Self { in_transit, workers, streams, connecting, beginning, effect_runs, produced: _ } = self;
        write!(out, "{in_transit:?} {workers:?} {streams:?} {connecting:?} {beginning:?} {effect_runs:?} ")
    }

    /// A worker asks whether it may run an effect.
    pub(super) fn beginning(&mut self, ticket: Ticket, worker: Worker, identity: &Identity) {
        self.beginning.insert(ticket, (worker, identity.clone()));
    }

    /// The idempotency store has answered.
    fn begun(&mut self, ticket: Ticket, reply: &StoreReply) {
        let Some((worker, identity)) = self.beginning.remove(&ticket) else { return };
        let memory = self.workers.entry(worker).or_default();
        match reply {
            StoreReply::Execute { attempt, token, .. } => {
                memory.replayed.retain(|other| *other != identity);
                let (attempt, token) = (*attempt, *token);
                push(&mut memory.grants, HeldGrant { identity, token, attempt, ran: false });
            }
            StoreReply::Replay(_) => push(&mut memory.replayed, identity),
            _ => {}
        }
    }

    pub(super) fn send(&mut self, call: Call, asked: Asked, boots: u64) {
        self.in_transit.insert(call, Sent { asked, arrived: false, boots });
        if self.in_transit.len() > KEPT {
            self.in_transit.pop_first();
        }
    }

    /// What was sent, whether it has arrived before, and how many starts there had been.
    pub(super) fn arrive(&mut self, call: Call) -> Option<(Asked, bool, u64)> {
        let sent = self.in_transit.get_mut(&call)?;
        let again = std::mem::replace(&mut sent.arrived, true);
        Some((sent.asked.clone(), again, sent.boots))
    }

    /// A stream is about to be connected.
    pub(super) fn connecting(&mut self, ticket: Ticket, worker: Worker, asked: &Subscribe) {
        let (topic, group) = (Topic::of(&asked.topic), asked.group.as_str().parse());
        let (Some(topic), Ok(group)) = (topic, group) else { return };
        let releases = asked.on_disconnect == OnDisconnect::Release;
        let (owner, left) = (asked.owner.clone(), asked.deliveries_max);
        self.connecting.insert(ticket, Connected { worker, topic, group, owner, releases, left });
    }

    /// Whose stream it is.
    pub(super) fn reader_of(&self, consumer: ConsumerId) -> Option<Worker> {
        self.streams.get(&consumer).map(|stream| stream.worker)
    }

    /// The streams that are connected.
    pub(super) fn streams(&self) -> Vec<ConsumerId> {
        self.streams.keys().copied().collect()
    }

    /// All connections are broken.
    pub(super) fn disconnect(&mut self) {
        self.streams.clear();
        self.connecting.clear();
        self.beginning.clear();
        for memory in self.workers.values_mut() {
            memory.stream = None;
            // What stood in the socket may still be read: it had left the broker.
        }
    }

    fn connected(&mut self, ticket: Ticket, consumer: ConsumerId) {
        let Some(stream) = self.connecting.remove(&ticket) else { return };
        self.workers.entry(stream.worker).or_default().stream = Some(consumer);
        self.streams.insert(consumer, stream);
    }

    fn closed(&mut self, consumer: ConsumerId) -> Option<Connected> {
        let stream = self.streams.remove(&consumer)?;
        let memory = self.workers.entry(stream.worker).or_default();
        memory.stream = memory.stream.filter(|newest| *newest != consumer);
        Some(stream)
    }

    /// A delivery reaches the socket of its stream.
    fn deliver(&mut self, consumer: ConsumerId, delivery: &Delivery) {
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

/// Remembers one more, and not too many.
fn push<T>(queue: &mut VecDeque<T>, one: T) {
    queue.push_back(one);
    if queue.len() > KEPT {
        queue.pop_front();
    }
}

impl<F: Faults, M: SimStorage> World<F, M> {
    /// A worker reads what stands in its socket, and does what it says.
    pub(super) fn read(&mut self, worker: Worker, count: u8) {
        let now = self.clock();
        let Some(memory) = self.network.workers.get_mut(&worker) else { return };
        for _ in 0..count {
            let Some(held) = memory.socket.pop_front() else { return };
            self.counters.events += 1;
            self.coverage.hit_if(held.lease_until <= now, Point::SlowReader);
            push(&mut memory.read, held);
        }
    }

    /// A worker does what it was granted. It does so once; what others do meanwhile it cannot know.
    pub(super) fn run(&mut self, grant: &GrantRef) -> Verdict {
        let wanted = identity(&grant.effect);
        let Some(memory) = self.network.workers.get_mut(&grant.worker) else { return Ok(()) };
        let mut granted = memory.grants.iter_mut().rev().filter(|granted| granted.identity == wanted);
        let Some(granted) = granted.nth(usize::from(grant.back)).filter(|granted| !granted.ran) else { return Ok(()) };
        granted.ran = true;
        let (token, attempt) = (granted.token, granted.attempt);
        self.counters.events += 1;
        self.counters.effects += 1;
        let before = self.network.effect_runs.iter().filter(|ran| ran.identity == wanted).map(|ran| ran.token).max();
        self.counters.reruns += u64::from(before.is_some());
        self.coverage.hit_if(before.is_some(), Point::Rerun);
        self.network.effect_runs.push(EffectRun {
            identity: wanted.clone(),
            token,
            attempt,
            after: self.counters.events,
        });
        self.observer.ran(&wanted, before, token)
    }

    /// Takes what the broker gives out, and judges it.
    pub(super) fn collect(&mut self) -> Verdict {
        while let Some(output) = self.broker.as_mut().and_then(driftq_core::Pipeline::poll_output) {
            self.counters.events += 1;
            self.hear(&output);
            self.judge(&output)?;
            self.mix(&output);
            self.take_to_clients(output);
        }
        Ok(())
    }

    fn judge(&mut self, output: &Output) -> Verdict {
        let ground = Ground { durable: self.shadow.durable(), failed_from: self.failed_from };
        if let Output::Deliver { delivery, .. } = output {
            let newest = self.shadow.last_token();
            let known = newest.is_some_and(|newest| delivery.token <= newest);
            let lsn = if known { Lsn(0) } else { Lsn(u64::MAX) };
            ground.bears(lsn, || format!("{delivery:?}; the newest on the disk is {newest:?}"))?;
        }
        self.observer.said(output, ground)?;
        if self.failed_from.is_some() {
            let refused = matches!(output, Output::Reply { result: Err(Refusal::LogFailed), .. });
            self.coverage.hit_if(refused, Point::RefusedAfterFailure);
        } else if let Some(oracle) = &mut self.oracle {
            self.counters.predicted += 1;
            matches_oracle(oracle.judge(output))?;
        }
        Ok(())
    }

    fn take_to_clients(&mut self, output: Output) {
        match output {
            Output::Reply { ticket, result } => {
                self.counters.replies += 1;
                coverage::answer(&mut self.coverage, &result);
                self.met_duplicate(&result);
                match result {
                    Ok(Reply::Subscribed { consumer }) => self.network.connected(ticket, consumer),
                    Ok(Reply::Store(reply)) => {
                        self.counters.grants += u64::from(matches!(reply, StoreReply::Execute { .. }));
                        self.counters.replays += u64::from(matches!(reply, StoreReply::Replay(_)));
                        self.network.begun(ticket, &reply);
                    }
                    _ => {}
                }
                self.network.connecting.remove(&ticket);
                self.network.beginning.remove(&ticket);
            }
            Output::Deliver { consumer, delivery } => {
                self.counters.deliveries += 1;
                coverage::delivery(&mut self.coverage, &delivery);
                self.network.deliver(consumer, &delivery);
                let stream = self.network.streams.get(&consumer);
                self.coverage.hit_if(stream.is_some_and(|stream| stream.left == Some(0)), Point::DeliveriesMax);
                let dead = stream.is_some_and(|stream| stream.topic.is_dlq);
                self.coverage.hit_if(dead, Point::DeadLetterDelivered);
            }
            Output::Closed { consumer, cause } => {
                let stream = self.network.closed(consumer);
                let topic = cause == driftq_core::reply::CloseCause::TopicDeleted;
                self.coverage.hit_if(stream.is_some() && topic, Point::TopicDeleted);
            }
        }
    }

    /// A stream was told to go.
    pub(super) fn gone(&mut self, consumer: ConsumerId) {
        if let Some(stream) = self.network.closed(consumer) {
            self.coverage.hit_if(stream.releases, Point::ReleasedByUnsubscribe);
        }
    }

    /// Whether a produce was answered with a place given before the last start.
    fn met_duplicate(&mut self, result: &Result<Reply, Refusal>) {
        let Ok(Reply::Produced(produced)) = result else { return };
        let place = (produced.partition, produced.offset);
        match produced.duplicate {
            false => drop(self.network.produced.insert(place, self.counters.boots)),
            true => {
                let before = self.network.produced.get(&place).is_some_and(|boots| *boots < self.counters.boots);
                self.coverage.hit_if(before, Point::DuplicateAfterCrash);
            }
        }
    }

    /// What came out becomes part of the digest chain.
    fn mix(&mut self, output: &Output) {
        match output {
            Output::Deliver { consumer, delivery } => {
                self.chain.mix(consumer.0);
                self.chain.mix(delivery.offset.0 ^ (u64::from(delivery.partition.0) << 48));
                self.chain.mix(u64::from(delivery.attempts) << 32 | u64::from(delivery.failures));
                self.chain.mix(delivery.token.counter ^ (u64::from(delivery.token.boot.0) << 40));
                self.chain.mix(delivery.lease_until.0);
                self.chain.mix_bytes(delivery.body.value());
            }
            Output::Reply { ticket, result } => {
                self.chain.mix(ticket.0);
                match result {
                    Ok(Reply::Produced(produced)) => {
                        self.chain.mix(produced.offset.0 << 8 | u64::from(produced.duplicate));
                    }
                    Ok(Reply::Done) => self.chain.mix(1),
                    Ok(reply) => self.chain.mix_bytes(format!("{reply:?}").as_bytes()),
                    Err(refusal) => self.chain.mix_bytes(refusal.to_string().as_bytes()),
                }
            }
            Output::Closed { consumer, cause } => {
                self.chain.mix(consumer.0);
                self.chain.mix(*cause as u64);
            }
        }
    }
}
