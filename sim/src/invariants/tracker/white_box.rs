//! White-box checks: the broker's state, message by message, and what was trimmed since the last observation.

use std::ops::RangeInclusive;

use driftq_core::command::{Ack, Seek};
use driftq_core::faults::Faults;
use driftq_core::record::Record;
use driftq_core::state::{Group, Message, Partition, State, Topic};
use driftq_core::types::*;
use driftq_core::{Command, Pipeline};

use super::model::*;
use super::recount::payload;
use super::state::Tracker;
use crate::invariants::attempts::attempts_recovered;
use crate::invariants::content::{offset_is_stable, stored_was_produced};
use crate::invariants::counters::CounterRecount;
use crate::invariants::counts::{ack_count_matches, group_counts_match, load_matches};
use crate::invariants::dead_letters::*;
use crate::invariants::in_flight::leased_in_flight;
use crate::invariants::lifecycle::*;
use crate::invariants::limits::{
    retained_as_configured, retained_bytes, retained_memory, retained_within_bound, retention_ends,
};
use crate::invariants::liveness::not_stuck;
use crate::invariants::payloads::lost_was_damaged;
use crate::invariants::time::{deadline_ends_waiting, wall_follows_clock, wall_is_monotonic};
use crate::invariants::verdict::{Verdict, Violation};
use crate::invariants::workers::{Death, dies_of_its_own_delivery};

impl Tracker {
    /// Observes and checks the whole state after a call.
    ///
    /// Only a record changes the state, so without a new record it is the one that was checked before. Replies released
    /// since may still disagree with it.
    pub(crate) fn observe_state<F: Faults>(&mut self, pipeline: &Pipeline<F>) -> Verdict {
        let is_new = self.observed_at != Some(pipeline.broker().appended());
        if std::mem::take(&mut self.retention_is_unchecked) && !is_new && self.removes(pipeline) {
            self.check_retention(pipeline.state())?;
        }
        let removes = self.removes(pipeline);
        self.observe(pipeline, removes)
    }

    /// Observes and checks the state after a read that has found damage. It removes nothing that retention keeps no
    /// longer; the next call does.
    pub(crate) fn observe_losses<F: Faults>(&mut self, pipeline: &Pipeline<F>) -> Verdict {
        self.retention_is_unchecked = true;
        self.observe(pipeline, false)
    }

    fn observe<F: Faults>(&mut self, pipeline: &Pipeline<F>, removes: bool) -> Verdict {
        let (state, lsn) = (pipeline.state(), pipeline.broker().appended());
        let is_new = self.observed_at != Some(lsn);
        if is_new {
            self.observe_turns(pipeline)?;
            self.add_models(state, lsn);
            self.note_deleted_groups(state, lsn);
            for topic in state.topics() {
                let checks_retained = removes && self.knows_retention(topic);
                for (id, partition) in topic.partitions() {
                    let partition_view = PartitionView::new(topic, id, partition);
                    check_partition(&partition_view, (&self.limits, self.boot))?;
                    if checks_retained {
                        check_retained(&partition_view)?;
                    }
                    self.observe_partition(pipeline, topic, (id, partition), lsn)?;
                }
            }
            if removes {
                retained_within_bound(state, &self.limits)?;
            }
        }
        let skips = pipeline.broker().counters().skipped;
        let has_skipped = skips > self.skips;
        if has_skipped {
            self.note_skips(state, Lsn(0));
        }
        if self.observed_at.is_none() {
            // Skipped and trimmed by one call before the crash, of whose records recovery found the first alone.
            self.note_skips(state, lsn);
        }
        self.skips = skips;
        let reclaimed = pipeline.broker().counters().reclaimed;
        // On a full disk retained messages go early.
        let has_evicted = has_skipped || reclaimed > self.reclaimed;
        self.reclaimed = reclaimed;
        if is_new || self.has_new_reply {
            let now = pipeline.broker().now();
            let evicts = has_evicted || self.exceeded_bound(state);
            state.topics().try_for_each(|topic| self.check_acks(topic, lsn, now, evicts))?;
            let observed = |topic: &Topic| (topic.id(), (topic.retention(), topic.group_count()));
            self.retention = state.topics().map(observed).collect();
        }
        if self.observed_at.is_none() {
            self.topics.values_mut().for_each(|model| model.trimmed_before_crash.clear());
        }
        (self.observed_at, self.has_new_reply) = (Some(lsn), false);
        Ok(())
    }

    /// Whether the call has removed what retention keeps no longer: if the log takes the records; but a start does not.
    fn removes<F: Faults>(&self, pipeline: &Pipeline<F>) -> bool {
        self.observed_at.is_some() && !pipeline.broker().is_stalled() && !self.is_cut_short(pipeline)
    }

    /// Not after the call that has changed it, which removes nothing.
    fn knows_retention(&self, topic: &Topic) -> bool {
        self.retention.get(&topic.id()).is_some_and(|(before, _)| *before == topic.retention())
    }

    fn check_retention(&self, state: &State) -> Verdict {
        for topic in state.topics().filter(|topic| self.knows_retention(topic)) {
            let mut partitions = topic.partitions();
            partitions.try_for_each(|(id, at)| check_retained(&PartitionView::new(topic, id, at)))?;
        }
        retained_within_bound(state, &self.limits)
    }

    /// Whether calls handle so little in this world that the last one left something to the next.
    pub(super) fn is_cut_short<F: Faults>(&self, pipeline: &Pipeline<F>) -> bool {
        let broker = pipeline.broker();
        self.limits.work != WorkLimits::production()
            && broker.next_change().is_some_and(|at| broker.time_at(at) <= broker.now())
    }

    /// Messages were skipped because their identity was committed: every acked message with an identity that was first
    /// seen at `since` or later may be one of them.
    fn note_skips(&mut self, state: &State, since: Lsn) {
        for ((topic, group), model) in &mut self.groups {
            let (Some(topic_model), Some(topic)) = (self.topics.get(topic), state.topic(*topic)) else { continue };
            let Some(group) = topic.group(*group).filter(|group| group.skipped() > 0) else { continue };
            let is_acked = |known: &StoredMessage| {
                let progress = group.progress(known.partition);
                progress.is_some_and(|progress| progress.acked().contains(known.position))
            };
            let acked = topic_model.stored_here.iter().filter(|offset| {
                let known = &topic_model.messages[*offset];
                known.first_seen >= since && known.body.flags().has_identity && is_acked(known)
            });
            model.skipped.extend(acked);
        }
    }

    /// Adds models of new topics and groups.
    fn add_models(&mut self, state: &State, lsn: Lsn) {
        for topic in state.topics() {
            self.topics.entry(topic.id()).or_insert_with(|| TopicModel::new(topic.name().clone(), lsn));
            for group in topic.groups() {
                let model = || GroupModel::new(group.name().clone(), lsn);
                self.groups.entry((topic.id(), group.id())).or_insert_with(model);
            }
        }
    }

    /// The broker deletes groups at a client's request and by itself.
    fn note_deleted_groups(&mut self, state: &State, lsn: Lsn) {
        let groups = state.topics().flat_map(|topic| topic.groups().map(|group| (topic.id(), group.id())));
        let before = std::mem::replace(&mut self.present_groups, groups.collect());
        self.regrouped = before.symmetric_difference(&self.present_groups).map(|(topic, _)| *topic).collect();
        for key in before.difference(&self.present_groups) {
            if let (Some(topic), Some(group)) = (self.topics.get(&key.0), self.groups.get(key)) {
                self.deleted_groups.push((lsn, topic.name.clone(), group.name.clone()));
            }
        }
    }

    /// A record was written to the log, in place of one that a crash may have lost.
    pub(crate) fn written(&mut self, lsn: Lsn, record: &Record) {
        for (part, body) in record.event.bodies() {
            self.payloads.insert(PayloadId { lsn, part }, body);
        }
    }

    /// The message as clients see it.
    fn body_of<F: Faults>(&mut self, pipeline: &Pipeline<F>, message: &Message) -> Option<Body> {
        if message.lost().is_some() {
            return message.body_without_payload();
        }
        let payload = message.payload.id;
        if let Some(written) = pipeline.broker().cached_payload(payload) {
            // A crash may have lost the record that had this LSN before.
            self.payloads.insert(payload, written.clone());
        }
        self.payloads.get(&payload).map(|written| message.body(written))
    }

    fn observe_partition<F: Faults>(
        &mut self,
        pipeline: &Pipeline<F>,
        topic: &Topic,
        (id, partition): (PartitionId, &Partition),
        lsn: Lsn,
    ) -> Verdict {
        let state = pipeline.state();
        for (position, message) in partition.messages() {
            let visible_to = partition.visible_to(position);
            let Some(model) = self.topics.get_mut(&topic.id()) else { continue };
            if let Some(known) = model.messages.get_mut(&message.offset) {
                offset_is_stable(&message, (id, position), visible_to, known)?;
                lost_was_damaged(&message, known.is_lost)?;
                known.payload_at = message.payload.id.lsn;
                trimmed_stays_trimmed(known)?;
                continue;
            }
            let body = self.body_of(pipeline, &message);
            let is_lost = message.lost().is_some();
            let number = match is_lost {
                true => self.number_of_source(state, &message)?,
                false => body.as_ref().and_then(|body| number(body.value())),
            };
            let produce = number.and_then(|number| self.produced_messages.get(&number));
            if !is_lost || number.is_some() {
                stored_was_produced(&message, body.as_ref(), produce)?;
            }
            let Some(body) = body else { continue };
            // A message that was dead-lettered or redriven shares its payload, which may have been found damaged and is
            // not recorded as lost yet.
            let meta = body.metadata();
            let is_copy = meta.dead_letter.is_some() || meta.redrive.is_some();
            let is_lost = is_lost || (is_copy && self.is_damaged(message.payload.id.lsn));
            let known = StoredMessage {
                number: number.unwrap_or_default(),
                partition: id,
                position,
                produced_at: message.produced_at,
                visible_to,
                body: body.clone(),
                message: without_place(&message),
                first_seen: lsn,
                trimmed_at: None,
                acknowledged: false,
                redriven: None,
                purged: None,
                payload_at: message.payload.id.lsn,
                is_lost,
            };
            let number = known.number;
            let Some(model) = self.topics.get_mut(&topic.id()) else { continue };
            model.add(message.offset, known);
            if meta.dead_letter.is_none() && meta.redrive.is_none() {
                self.output_stored(number)?;
            }
            match (&meta.dead_letter, meta.redrive) {
                (Some(dead), _) => self.note_dead_letter(state, (&message, &body), dead, lsn)?,
                (None, Some(redrive)) => {
                    self.note_redriven_message(
                        state,
                        topic,
                        (&message, &body),
                        RedriveDetails { number, redrive, visible_to },
                        lsn,
                    )?;
                }
                (None, None) => {}
            }
        }
        Ok(())
    }

    /// Records were found damaged: the payloads of stored messages, or of messages at which a peek still looks.
    pub(crate) fn damaged(&mut self, records: &RangeInclusive<Lsn>) {
        let all = self.topics.values_mut().flat_map(|model| model.messages.values_mut());
        all.filter(|known| records.contains(&known.payload_at)).for_each(|known| known.is_lost = true);
    }

    /// Whether the record was found damaged, of which a stored message has its payload.
    fn is_damaged(&self, record: Lsn) -> bool {
        let mut all = self.topics.values().flat_map(|model| model.messages.values());
        all.any(|known| known.is_lost && known.payload_at == record)
    }

    /// The number of the message of which a new message, without its payload, is the dead letter; `None` if that is not
    /// known.
    fn number_of_source(&self, state: &State, message: &Message) -> Result<Option<u64>, Violation> {
        let Some(dead) = message.dead_letter() else {
            lost_was_damaged(message, false)?;
            return Ok(None);
        };
        let Some(topic) = state.topic_named(&dead.original_topic) else { return Ok(None) };
        let source = self.topics.get(&topic.id()).and_then(|model| model.messages.get(&dead.original_offset));
        let Some(source) = source else { return Ok(None) };
        lost_was_damaged(message, source.is_lost)?;
        Ok(Some(source.number))
    }

    /// A new dead letter.
    fn note_dead_letter(
        &mut self,
        state: &State,
        (message, body): (&Message, &Body),
        dead: &DeadLetter,
        lsn: Lsn,
    ) -> Verdict {
        let Some(topic) = state.topic_named(&dead.original_topic) else { return Ok(()) };
        let Some(group) = topic.group_named(&dead.group) else { return Ok(()) };
        let source = self.topics.get(&topic.id()).and_then(|model| model.messages.get(&dead.original_offset));
        let Some(source) = source else { return Ok(()) };
        let original = source.body.metadata();
        dead_letter_unchanged(body, dead, source, &original)?;
        let named = (dead.original_topic.clone(), dead.group.clone(), dead.original_offset);
        let is_requested = self.dead_letter_requests.contains(&named);
        dead_lettered_at_limit(dead, &original.envelope, is_requested, source.is_lost)?;
        if self.limits.adaptive_credit {
            let claimed = self.claimed_offsets((topic.id(), group.id()));
            let model = self.groups.get(&(topic.id(), group.id()));
            let death = Death { dead, at: message.produced_at, claimed: &claimed };
            model.map_or(Ok(()), |model| dies_of_its_own_delivery(model, &death))?;
        }

        let progress = group.progress(source.partition);
        let is_acked = progress.is_some_and(|progress| progress.acked().contains(source.position));
        let Some(model) = self.groups.get_mut(&(topic.id(), group.id())) else { return Ok(()) };
        let before = model.dead_lettered_at(dead.original_offset);
        model.dead.entry(dead.original_offset).or_default().push((lsn, message.produced_at));
        dead_lettered_once(model, dead, before, is_acked)
    }

    /// A new message that was redriven.
    fn note_redriven_message(
        &mut self,
        state: &State,
        topic: &Topic,
        (message, body): (&Message, &Body),
        details: RedriveDetails,
        lsn: Lsn,
    ) -> Verdict {
        let RedriveDetails { number, redrive, visible_to } = details;
        let dlq = topic.dead_letter_name().and_then(|name| state.topic_named(name));
        let Some(dlq) = dlq else { return Ok(()) };
        let model = self.topics.get_mut(&dlq.id());
        let dead_letter = model.and_then(|model| model.messages.get_mut(&redrive.dead_letter_offset));
        let Some(dead_letter) = dead_letter else { return Ok(()) };
        dead_letter.redriven = Some(lsn);
        let metadata = dead_letter.body.metadata();
        let failed = metadata.dead_letter.as_ref().and_then(|dead| topic.group_named(&dead.group)).map(Group::id);
        redriven_visible_to_origin(redrive, visible_to, failed)?;
        let partition = dlq.partition(dead_letter.partition);
        let stored = partition.and_then(|partition| partition.message(dead_letter.position));
        redrive_names_origin(&RedrivenMessage {
            body,
            number,
            redrive,
            dead_letter,
            metadata: &metadata,
            is_dead_letter_removed: stored.is_none(),
            redriven_at: state.wall_clock().wall(message.produced_at),
        })?;
        for ((of, _), model) in &mut self.groups {
            if let Some(seen) = model.seen.get_mut(&redrive.dead_letter_offset).filter(|_| *of == dlq.id()) {
                seen.may_be_held = false;
            }
        }
        Ok(())
    }

    /// Every acked message needs a reason, and every missing message must be acked.
    fn check_acks(&mut self, topic: &Topic, lsn: Lsn, now: Timestamp, evicts: bool) -> Verdict {
        let before = self.retention.get(&topic.id()).copied();
        // A new retention applies from the next call on.
        let retention = before.map_or(topic.retention(), |(before, _)| before);
        // A crash may have kept the deletion of a group and cut the end of its call.
        let had_no_groups = self.observed_at.is_some() && before.is_none_or(|(_, groups)| groups == 0);
        let Some(model) = self.topics.get(&topic.id()) else { return Ok(()) };
        let groups: Vec<_> = topic.groups().filter_map(|group| self.group_view(topic, group)).collect();
        let mut trimmed = Vec::new();
        for offset in &model.stored_here {
            let known = &model.messages[offset];
            let kept = topic.partition(known.partition).and_then(|partition| partition.message(known.position));
            if kept.is_none() {
                trimmed.push(*offset);
            }
            for view in &groups {
                let progress = view.group.progress(known.partition);
                // It went in the call that gave the group its start, maybe before that.
                let start = view.model.starts.last();
                if kept.is_none() && start.is_some_and(|(_, through, _)| Some(*through) > self.observed_at) {
                    continue;
                }
                if progress.is_some_and(|progress| progress.acked().contains(known.position)) {
                    ack_is_justified(view, *offset, known)?;
                } else {
                    confirmed_ack_holds(view, *offset, known)?;
                    dead_lettered_is_acked(view, *offset, known)?;
                }
            }
            if had_no_groups {
                unconsumed_is_stored(topic, known, kept.is_some())?;
            }
        }
        drop(groups);
        if trimmed.is_empty() {
            return Ok(());
        }
        for (id, partition) in topic.partitions() {
            // A redriven or purged message is removed in any case and evicts nothing.
            let was_trimmed =
                |offset: &&Offset| self.observed_at.is_none() && model.trimmed_before_crash.contains(*offset);
            let trimmed_here = trimmed.iter().filter(|offset| !was_trimmed(offset));
            let trimmed_here = trimmed_here.map(|offset| &model.messages[offset]).filter(|known| known.partition == id);
            let Some(last) = trimmed_here.rev().find(|known| !known.is_removed()) else { continue };
            if !evicts {
                // Any stored message may have been retained before a group was created or deleted.
                let may_be_retained =
                    |position: &Position| self.regrouped.contains(&topic.id()) || !partition.in_backlog(*position);
                let kept = partition.messages().filter(|(position, _)| may_be_retained(position));
                let kept = kept.map(|(_, message)| payload(&message)).sum();
                retained_as_configured(retention, kept, last, now)?;
            }
        }
        if let Some(model) = self.topics.get_mut(&topic.id()) {
            model.mark_trimmed(&trimmed, lsn);
        }
        Ok(())
    }

    /// Whether the retained messages may have exceeded their bound since the last observation: with all that went.
    fn exceeded_bound(&self, state: &State) -> bool {
        let max = self.limits.retained_bytes_max;
        if max == u64::MAX {
            return false;
        }
        let gone = state.topics().filter_map(|topic| Some((topic, self.topics.get(&topic.id())?)));
        let gone = gone.flat_map(|(topic, model)| {
            let known = model.stored_here.iter().map(|offset| &model.messages[offset]);
            known.filter(|known| {
                topic.partition(known.partition).is_none_or(|partition| partition.message(known.position).is_none())
            })
        });
        retained_memory(state) + gone.map(|known| known.message.retained_bytes()).sum::<u64>() > max
    }

    pub(super) fn group_view<'a>(&'a self, topic: &Topic, group: &'a Group) -> Option<GroupView<'a>> {
        let model = self.groups.get(&(topic.id(), group.id()))?;
        let mut view = GroupView { group, model, is_sought: false, acks: Vec::new() };
        let ids = (Some(topic.id()), Some(group.id()));
        for pending in self.pending.values().filter(|pending| (pending.topic, pending.group) == ids) {
            match &pending.command {
                Command::Seek(Seek { .. }) => view.is_sought = true,
                Command::Ack(Ack(claim)) => view.acks.push(claim.offset),
                Command::Complete(complete) => view.acks.push(complete.claim.offset),
                Command::AckCumulative(_) => view.acks.extend_from_slice(&pending.cumulative),
                _ => {}
            }
        }
        Some(view)
    }

    /// Observes broker time and wall time after a call in which the wall clock showed `reading`; `None` after a start.
    pub(crate) fn observe_clock<F: Faults>(&mut self, pipeline: &Pipeline<F>, reading: Option<Timestamp>) -> Verdict {
        let (now, clock) = (pipeline.broker().now(), *pipeline.state().wall_clock());
        let wall = clock.wall(now);
        wall_is_monotonic(self.wall.last, (now, wall))?;
        if let Some(reading) = reading {
            wall_follows_clock(&clock, now, reading)?;
        }
        self.wall.observe(now, clock);
        Ok(())
    }

    /// The wall clock is about to be rebased, which can set wall time back.
    pub(crate) fn before_rebase(&mut self) {
        self.wall.last = None;
        // No timers run with it.
        self.observed_at = None;
    }

    /// For an idle broker without due timers.
    pub(crate) fn check_idle<F: Faults>(&self, pipeline: &Pipeline<F>) -> Verdict {
        let now = pipeline.broker().now();
        retained_within_bound(pipeline.state(), &self.limits)?;
        for topic in pipeline.state().topics() {
            for (id, partition) in topic.partitions() {
                retention_ends(topic, id, partition, now)?;
                check_retained(&PartitionView::new(topic, id, partition))?;
            }
            let wall = pipeline.broker().wall();
            topic.groups().try_for_each(|group| deadline_ends_waiting(topic, group, wall))?;
            for group in topic.groups().filter(|group| !group.is_paused()) {
                let Some(with_credit) = self.stream_with_credit(topic, group, now) else { continue };
                for (id, progress) in group.partitions().filter(|(_, p)| p.in_flight() < self.limits.in_flight_max) {
                    let Some(partition) = topic.partition(id) else { continue };
                    not_stuck(&PartitionView::new(topic, id, partition), progress, with_credit, (now, wall))?;
                }
            }
        }
        Ok(())
    }

    /// An open stream of the group with credit.
    fn stream_with_credit(&self, topic: &Topic, group: &Group, now: Timestamp) -> Option<&StreamModel> {
        let model = self.groups.get(&(topic.id(), group.id()))?;
        let has_credit = |id: ConsumerId, stream: &StreamModel| {
            let held = model.seen.values();
            let held = held.filter(|seen| seen.consumer == id && seen.may_be_held && seen.runs_until > now).count();
            !stream.is_closed
                && (stream.topic, stream.group) == (topic.id(), group.id())
                && (held as u32) < self.least_credit(stream)
                && stream.request.deliveries_max.is_none_or(|max| stream.delivered < max)
        };
        self.streams.iter().find(|(id, stream)| has_credit(**id, stream)).map(|(_, stream)| stream)
    }

    /// The least credit that a stream can have.
    fn least_credit(&self, stream: &StreamModel) -> u32 {
        if self.limits.adaptive_credit { stream.prefetch.min(1) } else { stream.prefetch }
    }

    /// Checks right after a restart that the recovered state is not behind what workers saw.
    pub(crate) fn restored(&mut self, state: &State) -> Verdict {
        self.boot = state.boot();
        self.recount = CounterRecount::default();
        self.turns.clear();
        self.observed_token = None;
        self.uncertain_at = None;
        self.wall.started(*state.wall_clock());
        self.check_torn(state)?;
        for topic in state.topics() {
            for group in topic.groups() {
                // Deliveries to a group whose creation was never acknowledged may not have been observed.
                let unknown = || GroupModel { crashed: true, ..GroupModel::new(group.name().clone(), Lsn(0)) };
                self.groups.entry((topic.id(), group.id())).or_insert_with(unknown);
            }
        }
        for ((topic, group), model) in &self.groups {
            let Some(group) = state.topic(*topic).and_then(|topic| topic.group(*group)) else { continue };
            for (offset, seen) in &model.seen {
                let found = group.progress(seen.partition).and_then(|progress| progress.find_delivery(*offset));
                attempts_recovered(found.map(|(_, entry)| entry), seen)?;
            }
        }
        Ok(())
    }
}

/// The details of a redriven message.
#[derive(Clone, Copy)]
struct RedriveDetails {
    number: u64,
    redrive: RedriveOrigin,
    visible_to: Option<GroupId>,
}

/// Checks one partition, message by message.
fn check_partition(partition_view: &PartitionView<'_>, limits: (&Limits, Boot)) -> Verdict {
    stored_or_trimmed(partition_view)?;
    offsets_ascend(partition_view)?;
    for (group, progress) in &partition_view.groups {
        one_message_state(partition_view, group, progress)?;
        unacked_is_stored(partition_view, group, progress)?;
        group_counts_match(partition_view, group, progress)?;
        leased_in_flight(partition_view, group, progress, limits)?;
    }
    let (mut open, mut open_bytes) = (0, 0);
    for (position, message) in partition_view.partition.messages() {
        let acked_in = partition_view.acked_in(position);
        ack_count_matches(partition_view, position, &message, acked_in)?;
        let is_acked_by_all = partition_view.is_acked_by_all(acked_in);
        if !is_acked_by_all {
            open += 1;
            open_bytes += payload(&message);
        }
    }
    load_matches(partition_view, open, open_bytes)
}

/// Checks that a partition retains no more than it is configured to.
fn check_retained(partition_view: &PartitionView<'_>) -> Verdict {
    let mut retained = 0;
    for (position, message) in partition_view.partition.messages() {
        let is_acked_by_all = partition_view.is_acked_by_all(partition_view.acked_in(position));
        acked_is_trimmed(partition_view, &message, is_acked_by_all)?;
        retained += if is_acked_by_all { payload(&message) } else { 0 };
    }
    retained_bytes(partition_view, retained)
}
