//! Turns: which streams and partitions wait, and which are served meanwhile.

use std::collections::{BTreeMap, BTreeSet};

use driftq_core::Pipeline;
use driftq_core::command::{CloseStream, Command, Unsubscribe, Withdraw};
use driftq_core::faults::Faults;
use driftq_core::record::Event;
use driftq_core::state::Topic;
use driftq_core::types::*;

use super::model::*;
use super::names::claim;
use super::state::Tracker;
use crate::invariants::fairness::{partitions_take_turns, streams_take_turns};
use crate::invariants::liveness::is_deliverable;
use crate::invariants::verdict::Verdict;
use crate::invariants::workers::produced_is_accounted_for;

/// The partitions of a group that wait for their turn, and which were delivered from meanwhile.
pub(super) type PartitionTurns = BTreeMap<PartitionId, BTreeSet<PartitionId>>;

impl Tracker {
    /// A record was written.
    pub(crate) fn recorded(&mut self, event: &Event) {
        self.recount.recorded(event);
    }

    /// Deliveries that were durable when the broker crashed, and that no client has seen for certain.
    pub(crate) fn could_have_seen(&mut self, deliveries: &[(MessageRef, LeaseToken)]) {
        let released = std::mem::take(&mut self.released);
        for (at, _) in deliveries.iter().filter(|(_, token)| !released.contains(token)) {
            if let Some(model) = self.groups.get_mut(&(at.topic, at.group)) {
                *model.could_see.entry((at.partition, at.position)).or_default() += 1;
            }
        }
    }

    /// Whether some output waits for bytes: it may leave after later ones of others, whose turn is then not certain.
    pub(crate) fn reading(&mut self, is_reading: bool) {
        self.is_reading = is_reading;
        if is_reading {
            self.streams.values_mut().for_each(|stream| stream.served_meanwhile = None);
        }
    }

    /// A stream got a delivery of a message whose delivery before, to `failed`, had failed.
    pub(super) fn note_turn(&mut self, served: ConsumerId, failed: Option<ConsumerId>) -> Verdict {
        if let Some(stream) = failed.and_then(|failed| self.streams.get_mut(&failed)) {
            // Maybe by its expiry.
            stream.may_be_cut = true;
            stream.served_meanwhile = None;
        }
        let Some(group) = self.streams.get(&served).map(|stream| (stream.topic, stream.group)) else { return Ok(()) };
        for (id, stream) in &mut self.streams {
            if (stream.topic, stream.group) != group {
                continue;
            }
            let Some(meanwhile) = &mut stream.served_meanwhile else { continue };
            if *id == served {
                meanwhile.clear();
            } else {
                streams_take_turns(*id, meanwhile, served)?;
                meanwhile.insert(served);
            }
        }
        Ok(())
    }

    /// After every decision and output: an expiry may have cut the credit of a stream.
    fn note_cuts(&mut self, now: Timestamp) {
        let adaptive = self.limits.adaptive_credit;
        let adapted = |stream: &&mut StreamModel| adaptive && stream.request.deliveries_max.is_none();
        for (id, stream) in self.streams.iter_mut().filter(|(_, stream)| adapted(stream)) {
            let Some(model) = self.groups.get(&(stream.topic, stream.group)) else { continue };
            let mut held = model.seen.values().filter(|seen| seen.consumer == *id && seen.may_be_held);
            stream.may_be_cut |= held.any(|seen| seen.runs_until <= now);
        }
    }

    /// After every output: which streams certainly have credit.
    pub(super) fn note_credit(&mut self, now: Timestamp) {
        self.note_cuts(now);
        for (id, stream) in &mut self.streams {
            let Some(model) = self.groups.get(&(stream.topic, stream.group)) else { continue };
            let held = model.seen.values().filter(|seen| seen.consumer == *id && seen.may_be_held);
            let has_credit = !stream.is_closed
                && !self.is_reading
                && !stream.may_be_cut
                && (held.count() as u32) < stream.prefetch
                && stream.request.deliveries_max.is_none_or(|max| stream.delivered < max);
            match has_credit {
                true => drop(stream.served_meanwhile.get_or_insert_default()),
                false => stream.served_meanwhile = None,
            }
        }
    }

    /// After a decision: what ends leases in a way that clients cannot see makes credit uncertain.
    pub(super) fn note_uncertain_turns(&mut self, pending: &PendingCommand) {
        self.note_cuts(pending.at);
        if let Command::Unsubscribe(Unsubscribe { consumer }) | Command::CloseStream(CloseStream { consumer }) =
            &pending.command
            && let Some(stream) = self.streams.get_mut(consumer)
        {
            // What was decided for it and is not durable yet never leaves.
            (stream.may_be_cut, stream.served_meanwhile) = (true, None);
        }
        if let Command::Seek(_) | Command::Purge(_) | Command::DeleteGroup(_) | Command::Redrive(_) = &pending.command {
            // Other messages are ready than before, and leases have ended whose deliveries are not released yet.
            self.turns.retain(|(topic, _), _| Some(*topic) != pending.topic);
            self.uncertain_at = Some(pending.after);
            self.streams.values_mut().for_each(|stream| (stream.may_be_cut, stream.served_meanwhile) = (true, None));
        }
        let is_withdrawn = matches!(pending.command, Command::Withdraw(Withdraw(_)));
        let is_expired = matches!(pending.command, Command::ExpireLease(_));
        if !is_withdrawn && !is_expired {
            return;
        }
        self.uncertain_at = Some(pending.after);
        for stream in self.streams.values_mut().filter(|stream| Some(stream.topic) == pending.topic) {
            stream.served_meanwhile = None;
            stream.may_be_cut |= is_expired;
        }
    }

    /// After a call: the deliveries that it decided, in the order of their tokens, and the partitions that wait.
    pub(super) fn observe_turns<F: Faults>(&mut self, pipeline: &Pipeline<F>) -> Verdict {
        let state = pipeline.state();
        let mut decided = Vec::new();
        for topic in state.topics().filter(|topic| topic.partition_count() > 1) {
            for group in topic.groups() {
                for (id, progress) in group.partitions() {
                    let new = progress.deliveries().filter(|(_, entry)| Some(entry.token) > self.observed_token);
                    decided.extend(new.map(|(_, entry)| (entry.token, (topic.id(), group.id()), id)));
                }
            }
        }
        decided.sort_unstable_by_key(|(token, ..)| *token);
        if self.limits.work.timers_per_call < WorkLimits::production().timers_per_call {
            // A message that is ready by the clock may wait for its timer, which a later call fires.
            return Ok(());
        }
        let waiting = self.waiting_partitions(pipeline);
        for (token, group, served) in decided {
            self.observed_token = Some(token);
            let (Some(turns), Some(still)) = (self.turns.get_mut(&group), waiting.get(&group)) else { continue };
            turns.remove(&served);
            // One that does not wait any more has lost its message otherwise.
            for (partition, meanwhile) in turns.iter_mut().filter(|(id, _)| still.contains(id)) {
                partitions_take_turns(*partition, meanwhile, served)?;
                meanwhile.insert(served);
            }
        }
        let mut before = std::mem::take(&mut self.turns);
        for (group, partitions) in waiting {
            let mut known = before.remove(&group).unwrap_or_default();
            let turns = partitions.into_iter().map(|id| (id, known.remove(&id).unwrap_or_default()));
            self.turns.insert(group, turns.collect());
        }
        Ok(())
    }

    /// The partitions, by group, that have a ready message and are below their in-flight limit.
    fn waiting_partitions<F: Faults>(
        &self,
        pipeline: &Pipeline<F>,
    ) -> BTreeMap<(TopicId, GroupId), BTreeSet<PartitionId>> {
        let times = (pipeline.broker().now(), pipeline.broker().wall());
        let mut all = BTreeMap::new();
        for topic in pipeline.state().topics().filter(|topic| topic.partition_count() > 1) {
            for group in topic.groups().filter(|group| !group.is_paused()) {
                let waiting = group.partitions().filter(|(id, progress)| {
                    progress.in_flight() < self.limits.in_flight_max
                        && topic.partition(*id).is_some_and(|partition| {
                            partition.messages().any(|(at, message)| is_deliverable(progress, at, &message, times))
                        })
                });
                let waiting: BTreeSet<PartitionId> = waiting.map(|(id, _)| id).collect();
                if !waiting.is_empty() {
                    all.insert((topic.id(), group.id()), waiting);
                }
            }
        }
        all
    }

    /// Messages of a group that a pending command answers.
    pub(super) fn claimed_offsets(&self, (topic, group): (TopicId, GroupId)) -> Vec<Offset> {
        let ids = (Some(topic), Some(group));
        let of_group = self.pending.values().filter(|pending| (pending.topic, pending.group) == ids);
        let claimed = of_group.clone().filter_map(|pending| claim(&pending.command)).map(|claim| claim.offset);
        claimed.chain(of_group.flat_map(|pending| pending.cumulative.iter().copied())).collect()
    }

    /// At the end: every message that was answered as produced is accounted for in every group.
    pub(crate) fn check_produced<F: Faults>(&self, pipeline: &Pipeline<F>) -> Verdict {
        for topic in pipeline.state().topics() {
            let Some(model) = self.topics.get(&topic.id()) else { continue };
            for group in topic.groups() {
                let Some(view) = self.group_view(topic, group) else { continue };
                for (offset, known) in model.messages.iter().filter(|(_, known)| known.acknowledged) {
                    produced_is_accounted_for(topic, &view, *offset, known)?;
                }
            }
        }
        Ok(())
    }

    /// For an idle broker whose outputs have all been released: compares its counters.
    pub(crate) fn check_counters<F: Faults>(&self, pipeline: &Pipeline<F>) -> Verdict {
        let names = pipeline.state().topics().map(|topic: &Topic| (topic.id(), topic.name().clone())).collect();
        let broker = pipeline.broker();
        crate::invariants::counters::counters_match(&self.recount, (broker.counters(), broker.dead_lettered()), &names)
    }
}
