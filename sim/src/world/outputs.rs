//! The broker's outputs: checked, added to the digest chain and passed to the clients, which read them and run effects.

use driftq_core::faults::Faults;
use driftq_core::reply::{CloseCause, StoreReply};
use driftq_core::types::{ConsumerId, Lsn, Timestamp};
use driftq_core::{Output, Pipeline, Refusal, Reply};

use super::coverage;
use super::network::{EffectRun, push};
use super::state::World;
use super::tap::TapEvent;
use super::values::identity;
use crate::actions::GrantRef;
use crate::coverage::Point;
use crate::invariants::Verdict;
use crate::invariants::oracle::matches_oracle;
use crate::invariants::outputs::ReleaseContext;
use crate::names::Worker;
use crate::sim_storage::SimStorage;

impl<F: Faults, S: SimStorage> World<F, S> {
    /// A worker reads deliveries from its socket.
    pub(super) fn read(&mut self, worker: Worker, count: u8) {
        let now = self.broker_time();
        let Some(worker_state) = self.network.workers.get_mut(&worker) else { return };
        for _ in 0..count {
            let Some(held) = worker_state.socket.pop_front() else { return };
            self.counters.events += 1;
            self.coverage.hit_if(held.lease_until <= now, Point::SlowReader);
            push(&mut worker_state.read, held);
        }
    }

    /// A worker runs an effect under a grant, at most once.
    pub(super) fn run_effect(&mut self, grant: &GrantRef) -> Verdict {
        let identity = identity(&grant.effect);
        let Some(worker_state) = self.network.workers.get_mut(&grant.worker) else { return Ok(()) };
        let mut granted = worker_state.grants.iter_mut().rev().filter(|granted| granted.identity == identity);
        let Some(granted) = granted.nth(usize::from(grant.back)).filter(|granted| !granted.ran) else { return Ok(()) };
        granted.ran = true;
        let (token, attempt) = (granted.token, granted.attempt);
        self.counters.events += 1;
        self.counters.effects += 1;
        let before = self.network.effect_runs.iter().filter(|run| run.identity == identity).map(|run| run.token).max();
        self.counters.reruns += u64::from(before.is_some());
        self.coverage.hit_if(before.is_some(), Point::Rerun);
        self.network.effect_runs.push(EffectRun {
            identity: identity.clone(),
            token,
            attempt,
            after: self.counters.events,
        });
        self.tracker.effect_ran(&identity, before, token)
    }

    /// Collects the outputs of the broker and checks them.
    pub(super) fn collect(&mut self) -> Verdict {
        self.begin_reads()?;
        if let Some(broker) = &self.broker {
            self.reads.note_losses(broker.broker());
            let is_uncertain = self.reads.is_order_uncertain(broker.broker());
            self.tracker.reading(is_uncertain);
        }
        while let Some(output) = self.broker.as_mut().and_then(Pipeline::poll_output) {
            if let Output::Reply { ticket, .. } = &output
                && self.injected_tickets.remove(ticket)
            {
                continue;
            }
            self.counters.events += 1;
            self.record_output(&output);
            self.check_output(&output)?;
            self.mix_output(&output);
            self.deliver_to_clients(output);
        }
        Ok(())
    }

    /// Records an output, if the tap is on.
    fn record_output(&mut self, output: &Output) {
        if let Some(tap_events) = &mut self.tap_events {
            let worker = match output {
                Output::Deliver { consumer, .. } | Output::Closed { consumer, .. } => self.network.reader_of(*consumer),
                Output::Reply { .. } => None,
            };
            tap_events.push(TapEvent::Output { worker, output: output.clone() });
        }
    }

    fn check_output(&mut self, output: &Output) -> Verdict {
        let context = ReleaseContext {
            durable: self.shadow.last_record(),
            failed_from: self.failed_from,
            now: self.broker.as_ref().map_or(Timestamp(0), |broker| broker.broker().now()),
        };
        if let Output::Deliver { delivery, .. } = output {
            let newest = self.shadow.last_token();
            let is_durable = newest.is_some_and(|newest| delivery.token <= newest);
            let lsn = if is_durable { Lsn(0) } else { Lsn(u64::MAX) };
            context.permits(lsn, || format!("{delivery:?}; the newest durable token is {newest:?}"))?;
        }
        self.tracker.observe_output(output, context)?;
        if self.failed_from.is_some() {
            let refused = matches!(output, Output::Reply { result: Err(Refusal::LogFailed), .. });
            self.coverage.hit_if(refused, Point::RefusedAfterFailure);
        }
        if let Some(oracle) = &mut self.oracle {
            self.counters.predicted += 1;
            matches_oracle(oracle.compare(output))?;
        }
        Ok(())
    }

    fn deliver_to_clients(&mut self, output: Output) {
        match output {
            Output::Reply { ticket, result } => {
                self.counters.replies += 1;
                coverage::reply(&mut self.coverage, &result);
                self.cover_duplicate(&result);
                match result {
                    Ok(Reply::Subscribed { consumer }) => self.network.opened(ticket, consumer),
                    Ok(Reply::Redriven { rest, .. }) => self.network.redriven(ticket, rest),
                    Ok(Reply::Store(reply)) => {
                        self.counters.grants += u64::from(matches!(reply, StoreReply::Execute { .. }));
                        self.counters.replays += u64::from(matches!(reply, StoreReply::Replay { .. }));
                        self.network.store_replied(ticket, &reply);
                    }
                    _ => {}
                }
                self.network.opening.remove(&ticket);
                self.network.pending_grants.remove(&ticket);
                self.network.pending_redrives.remove(&ticket);
            }
            Output::Deliver { consumer, delivery } => {
                self.counters.deliveries += 1;
                coverage::delivery(&mut self.coverage, &delivery);
                self.network.deliver(consumer, &delivery);
                let stream = self.network.streams.get(&consumer);
                self.coverage.hit_if(stream.is_some_and(|stream| stream.left == Some(0)), Point::DeliveriesMax);
                let is_dead_letter = stream.is_some_and(|stream| stream.topic.is_dlq);
                self.coverage.hit_if(is_dead_letter, Point::DeadLetterDelivered);
                let topic = stream.zip(self.broker.as_ref());
                let topic = topic.and_then(|(stream, broker)| broker.state().topic_named(&stream.topic.name()));
                let found = topic.and_then(|topic| topic.partition(delivery.partition)?.find(delivery.offset));
                let is_relocated = found.is_some_and(|(_, message)| self.reads.is_relocated(message.payload.id.lsn));
                self.coverage.hit_if(is_relocated, Point::RelocatedDelivered);
            }
            Output::Closed { consumer, cause } => {
                self.counters.closed += 1;
                let stream = self.network.close(consumer);
                let is_topic_deleted = cause == CloseCause::TopicDeleted;
                self.coverage.hit_if(stream.is_some() && is_topic_deleted, Point::TopicDeleted);
            }
        }
    }

    /// Closes the stream of a worker that unsubscribed.
    pub(super) fn unsubscribe(&mut self, consumer: ConsumerId) {
        if let Some(stream) = self.network.close(consumer) {
            self.coverage.hit_if(stream.releases, Point::ReleasedByUnsubscribe);
        }
    }

    /// Covers a duplicate whose original was stored before the last start.
    fn cover_duplicate(&mut self, result: &Result<Reply, Refusal>) {
        let Ok(Reply::Produced(produced)) = result else { return };
        let location = (produced.partition, produced.offset);
        match produced.duplicate {
            false => drop(self.network.produced.insert(location, self.counters.boots)),
            true => {
                let was_restarted =
                    self.network.produced.get(&location).is_some_and(|boots| *boots < self.counters.boots);
                self.coverage.hit_if(was_restarted, Point::DuplicateAfterCrash);
            }
        }
    }

    /// Adds an output to the digest chain.
    fn mix_output(&mut self, output: &Output) {
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
                    Ok(Reply::Success) => self.chain.mix(1),
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
