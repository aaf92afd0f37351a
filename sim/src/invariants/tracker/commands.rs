//! Commands: what is known right before one is decided and right after.

use driftq_core::Pipeline;
use driftq_core::command::{
    AckCumulative, Command, CreateGroup, DescribeTopic, Purge, Redrive, RedriveSelection, Seek, SeekTo, Subscribe,
    TokenClaim,
};
use driftq_core::faults::Faults;
use driftq_core::state::{Group, Progress, State, Topic};
use driftq_core::types::{GroupStart, *};

use super::model::*;
use super::names::{claim, dead_letter_request, is_ack, names};
use super::recount::Counted;
use super::state::Tracker;
use crate::invariants::dead_letters::redrive_moves_what_was_there;
use crate::invariants::fencing::stale_claim_is_noop;
use crate::invariants::lifecycle::purge_removes_what_was_there;
use crate::invariants::verdict::Verdict;

impl Tracker {
    /// What is true right before a command is decided.
    ///
    /// Where timers are due, the command is decided on another state, and less is known.
    pub(crate) fn before_command<F: Faults>(
        &self,
        pipeline: &Pipeline<F>,
        command: Command,
        now: Now,
    ) -> PendingCommand {
        let state = pipeline.state();
        let before = pipeline.broker().appended();
        let (topic, group) = ids(state, &command);
        let wall = now.wall;
        let no_timer_due = pipeline.broker().next_change().is_none_or(|at| at > now.mono);
        let now = pipeline.broker().time_at(now.mono).max(pipeline.broker().now());
        // A wall clock that differs is adopted in the same call, like a timer that is due.
        let clock = state.wall_clock();
        let is_near = (wall.offset_from(now) - clock.target()).abs() <= 1_000;
        let is_clock_in_step = is_near || now < clock.since().after(Millis(3_000));
        let no_timer_due = no_timer_due && is_clock_in_step;
        let is_stale_claim = no_timer_due && matches_no_delivery(state, &command);
        let claim_is_valid = claim_is_valid(&command, no_timer_due, is_stale_claim);
        PendingCommand {
            at: pipeline.broker().now(),
            wall_offset: pipeline.broker().wall_offset(),
            before,
            after: before,
            topic,
            group,
            no_timer_due,
            stale_digest: is_stale_claim.then(|| state.digest()),
            produce: match &command {
                Command::Produce(produce) => destination(state, &self.limits, produce),
                _ => None,
            },
            counted: match &command {
                // A message that is due but stalled for log space counts as not yet due.
                Command::DescribeTopic(DescribeTopic { name }) if no_timer_due && !pipeline.broker().is_stalled() => {
                    state.topic_named(name).map(|topic| Counted::of(topic, now, state.wall_clock().wall(now)))
                }
                _ => None,
            },
            claim_is_valid,
            cumulative: cumulative(state, &command),
            unacked_deliveries: self.unacked_deliveries(state, &command),
            acked_at_once: None,
            step: None,
            winners_full: state.winners().len() >= self.limits.completions_max,
            redrive: self.redrive_bounds(state, &command),
            purge: before_purge(state, &command),
            command,
        }
    }

    /// After the decision; the reply will carry `ticket`.
    pub(crate) fn after_command<F: Faults>(
        &mut self,
        pipeline: &Pipeline<F>,
        mut pending: PendingCommand,
        ticket: Ticket,
    ) -> Verdict {
        pending.after = pipeline.broker().appended();
        pending.at = pipeline.broker().now();
        pending.wall_offset = pipeline.broker().wall_offset();
        pending.acked_at_once =
            pending.produce.as_ref().and_then(|destination| acked_at_once(pipeline.state(), destination));
        self.note_done(&pending);
        self.dead_letter_requests.extend(dead_letter_request(&pending.command));
        self.winners_full |= pending.winners_full || pipeline.state().winners().len() >= self.limits.completions_max;
        if let Some(before) = pending.stale_digest {
            stale_claim_is_noop(&pending.command, before, pipeline.state().digest())?;
        }
        let group_before = pending.group;
        (pending.topic, pending.group) = match (pending.topic, pending.group) {
            (Some(topic), Some(group)) => (Some(topic), Some(group)),
            _ => ids(pipeline.state(), &pending.command),
        };
        if let (Some(topic), Some(group)) = (pending.topic, pending.group)
            && let Some(start) = self.start(pipeline.state(), &pending, group_before.is_none())
        {
            let (_, name) = names(&pending.command);
            let name = name.expect("a command that concerns a group names it").clone();
            // A crash may keep the first record of the call alone.
            let model = || GroupModel::new(name, pending.before.next());
            let model = self.groups.entry((topic, group)).or_insert_with(model);
            model.starts.push((pending.before, pending.after, start));
        }
        self.note_uncertain_turns(&pending);
        self.note_unseen_answer(pipeline.state(), &pending);
        self.note_produced(&pending.command);
        self.note_grant_delivery(pipeline.state(), &pending.command);
        if let Command::Seek(Seek { topic, group, .. }) = &pending.command {
            self.forget_deliveries(topic, group);
        }
        if let (Some(bounds), Some(topic)) = (pending.redrive, pending.topic.and_then(|id| pipeline.state().topic(id)))
        {
            redrive_moves_what_was_there(topic, bounds)?;
        }
        self.note_purge(pipeline.state(), &pending)?;
        pending.step = self.evidence(pipeline.state(), &pending);
        self.pending.insert(ticket, pending);
        Ok(())
    }

    /// A purge was decided.
    fn note_purge(&mut self, state: &State, pending: &PendingCommand) -> Verdict {
        let (Some(before), Some(topic)) = (&pending.purge, pending.topic) else { return Ok(()) };
        if pending.before == pending.after {
            return Ok(());
        }
        state.topic(topic).map_or(Ok(()), |topic| purge_removes_what_was_there(topic, before))?;
        if let Some(model) = self.topics.get_mut(&topic) {
            for offset in &before.stored {
                if let Some(known) = model.messages.get_mut(offset) {
                    // Its record is the first of the call; a crash may keep it alone.
                    known.purged = Some((pending.before.next(), false));
                }
            }
        }
        for (_, model) in self.groups.iter_mut().filter(|((of, _), _)| *of == topic) {
            model.seen.iter_mut().filter(|(at, _)| before.stored.contains(at)).for_each(|(_, seen)| {
                seen.may_be_held = false;
            });
        }
        Ok(())
    }

    /// What a redrive of all, or of its rest, may move.
    fn redrive_bounds(&self, state: &State, command: &Command) -> Option<RedriveBounds> {
        let Command::Redrive(Redrive { topic, which, .. }) = command else { return None };
        let source = state.topic_named(topic)?;
        let end = match which {
            RedriveSelection::All => state.topic_named(source.dead_letter_name()?)?.next_offset(),
            RedriveSelection::Rest(rest) => *self.redrive_ends.get(&rest.dead_topic)?,
            RedriveSelection::Offsets(_) => return None,
        };
        Some(RedriveBounds { end, moved_from: source.next_offset() })
    }

    fn note_produced(&mut self, command: &Command) {
        match command {
            Command::Produce(produce) => {
                if let Some(number) = number(produce.value()) {
                    self.produced_messages.insert(number, (**produce).clone());
                }
            }
            Command::Complete(complete) => {
                for (number, produce) in
                    complete.produce.iter().filter_map(|output| Some((number(output.value())?, output)))
                {
                    self.expected_outputs.insert(number);
                    self.produced_messages.insert(number, produce.clone());
                }
            }
            _ => {}
        }
    }

    /// A group is asked to ack a message. Whether that succeeds or not, a later message of its identity may be skipped.
    fn note_done(&mut self, pending: &PendingCommand) {
        let Some(topic) = pending.topic else { return };
        let claimed = claim(&pending.command).filter(|_| is_ack(&pending.command));
        let claimed = claimed.filter(|_| pending.claim_is_valid != Some(false)).map(|claim| claim.offset);
        for offset in claimed.into_iter().chain(pending.cumulative.iter().copied()) {
            let known = self.topics.get(&topic).and_then(|topic| topic.messages.get(&offset));
            let identity = known.and_then(|known| done_identity(self.produced_messages.get(&known.number)?));
            if let (Some(identity), Some(model)) = (identity, self.group_model_mut(pending)) {
                model.done.insert(identity);
            }
        }
    }

    /// The starting point that the command has set for its group.
    fn start(&self, state: &State, pending: &PendingCommand, is_new: bool) -> Option<StartPoint> {
        let topic = state.topic(pending.topic?)?;
        let end = StartPoint::Below(topic.next_offset());
        let has_record = pending.after > pending.before;
        match &pending.command {
            Command::Subscribe(_) | Command::CreateGroup(CreateGroup { .. }) if !is_new || !has_record => None,
            Command::Subscribe(Subscribe { start, .. }) | Command::CreateGroup(CreateGroup { start, .. }) => {
                Some(if *start == GroupStart::Latest { end } else { StartPoint::Below(Offset(0)) })
            }
            Command::Seek(Seek { to, .. }) if has_record => Some(match to {
                SeekTo::Earliest => StartPoint::Below(Offset(0)),
                SeekTo::Latest => end,
                SeekTo::Offset(offset) => StartPoint::Below(*offset),
                SeekTo::Time(wall) => {
                    let time = wall.shifted(-pending.wall_offset);
                    let model = self.topics.get(&pending.topic?)?;
                    let first = model.messages.iter().find(|(_, known)| known.produced_at >= time);
                    first.map_or(end, |(offset, _)| StartPoint::Below(*offset))
                }
            }),
            _ => None,
        }
    }
}

/// What a topic stores right before a purge.
fn before_purge(state: &State, command: &Command) -> Option<BeforePurge> {
    let Command::Purge(Purge { topic }) = command else { return None };
    let topic = state.topic_named(topic)?;
    let stored = topic.partitions().flat_map(|(_, partition)| partition.messages());
    let mut before = BeforePurge { stored: stored.map(|(_, message)| message.offset).collect(), leased: Vec::new() };
    for group in topic.groups() {
        let deliveries = group.partitions().flat_map(|(_, progress)| progress.deliveries());
        let leased = deliveries.filter(|(_, delivery)| delivery.leased_until().is_some());
        before.leased.extend(leased.map(|(_, delivery)| (group.id(), delivery.offset)));
    }
    Some(before)
}

/// The groups that have acked the message of a produce to `destination`, if one was stored.
fn acked_at_once(state: &State, destination: &Destination) -> Option<AckedAtOnce> {
    let topic = state.topic(destination.topic)?;
    let partition = topic.partition(destination.partition)?;
    let offset = destination.offset;
    if partition.last_offset() != Some(offset) {
        return None;
    }
    // A message that is not stored any more is acked in every group.
    let position = partition.find(offset).map(|(position, _)| position);
    let is_acked = |group: &&Group| {
        let progress = group.progress(destination.partition);
        position.is_none_or(|position| progress.is_some_and(|progress| progress.acked().contains(position)))
    };
    let acked = topic.groups().filter(is_acked).count();
    Some(AckedAtOnce { offset, groups: topic.groups().map(Group::id).collect(), acked })
}

fn ids(state: &State, command: &Command) -> (Option<TopicId>, Option<GroupId>) {
    let (topic, group) = names(command);
    let topic = topic.and_then(|name| state.topic_named(name));
    let group = topic.and_then(|topic| Some(topic.group_named(group?)?.id()));
    (topic.map(Topic::id), group)
}

/// The messages up to the offset of a cumulative ack whose newest delivery went to its owner.
fn cumulative(state: &State, command: &Command) -> Vec<Offset> {
    let Command::AckCumulative(AckCumulative { topic, group, partition, offset, owner }) = command else {
        return Vec::new();
    };
    let progress = state.topic_named(topic).and_then(|topic| topic.group_named(group)?.progress(*partition));
    let deliveries = progress.into_iter().flat_map(Progress::deliveries);
    let is_its = |entry: &&DeliveryState| entry.offset <= *offset && entry.owner == *owner;
    deliveries.map(|(_, entry)| entry).filter(is_its).map(|entry| entry.offset).collect()
}

fn matches_no_delivery(state: &State, command: &Command) -> bool {
    let Some(claim) = claim(command) else { return false };
    let progress =
        state.topic_named(&claim.topic).and_then(|topic| topic.group_named(&claim.group)?.progress(claim.partition));
    let newest = progress.and_then(|progress| progress.deliveries().find(|(_, entry)| entry.offset == claim.offset));
    newest.is_none_or(|(_, entry)| {
        let is_current = match claim.token {
            TokenClaim::Absent => true,
            TokenClaim::Unreadable => false,
            TokenClaim::Shown(token) => token == entry.token,
        };
        !is_current || claim.owner != entry.owner
    })
}

/// Whether a claim is valid; unknown where timers were due.
pub(super) fn claim_is_valid(command: &Command, no_timer_due: bool, is_stale_claim: bool) -> Option<bool> {
    claim(command).filter(|_| no_timer_due).map(|_| !is_stale_claim)
}
