//! The inside: what is stored, what each group has done with it, and what went since the last look.

use driftq_core::faults::Faults;
use driftq_core::state::State;
use driftq_core::state::group::Group;
use driftq_core::state::partition::{Message, Partition};
use driftq_core::state::topic::Topic;
use driftq_core::types::*;
use driftq_core::{Command, Pipeline};

use super::model::*;
use super::observer::Observer;
use crate::invariants::attempts::attempts_recovered;
use crate::invariants::content::{offset_is_stable, stored_was_produced};
use crate::invariants::counts::{ack_count_matches, group_counts_match, load_matches, payload};
use crate::invariants::dead_letters::*;
use crate::invariants::in_flight::leased_in_flight;
use crate::invariants::lifecycle::*;
use crate::invariants::limits::{retained_as_configured, retained_bytes, retention_ends};
use crate::invariants::liveness::not_stuck;
use crate::invariants::verdict::Verdict;

impl Observer {
    /// Looks at the whole inside, and takes note of what is new.
    ///
    /// Only a record changes the state: where none was written since the last look, it is the one that was good then.
    /// What was told to clients since may still be wrong about it.
    pub(crate) fn looked<F: Faults>(&mut self, pipeline: &Pipeline<F>) -> Verdict {
        let (state, lsn) = (pipeline.state(), pipeline.broker().appended());
        let is_new = self.looked_at != Some(lsn);
        if is_new {
            self.open_books(state, lsn);
            for topic in state.topics() {
                for (id, partition) in topic.partitions() {
                    inspect(&PartitionView::new(topic, id, partition), &self.limits)?;
                    self.take_note(state, topic, (id, partition), lsn)?;
                }
            }
        }
        let skips = pipeline.broker().counters().skipped;
        let has_skipped = skips > self.skips;
        if has_skipped {
            self.note_skips(state);
        }
        self.skips = skips;
        if is_new || self.has_heard {
            let now = pipeline.broker().now();
            state.topics().try_for_each(|topic| self.ends(topic, lsn, now, has_skipped))?;
        }
        (self.looked_at, self.has_heard) = (Some(lsn), false);
        Ok(())
    }

    /// Messages were passed over because others of their identity are done: what has one and is done may be one of them.
    fn note_skips(&mut self, state: &State) {
        for ((topic, group), book) in &mut self.groups {
            let (Some(known), Some(topic)) = (self.topics.get(topic), state.topic(*topic)) else { continue };
            let Some(group) = topic.group(*group) else { continue };
            let is_done = |known: &Known| {
                let progress = group.progress(known.partition);
                progress.is_some_and(|progress| progress.done().contains(known.position))
            };
            let here = known.here.iter().filter(|offset| {
                let known = &known.known[*offset];
                known.body.flags().has_identity && is_done(known)
            });
            book.skipped.extend(here);
        }
    }

    /// Topics and groups that are new get a book.
    fn open_books(&mut self, state: &State, lsn: Lsn) {
        for topic in state.topics() {
            self.topics.entry(topic.id()).or_insert_with(|| TopicModel::new(topic.name().clone(), lsn));
            for group in topic.groups() {
                let book = || GroupModel::new(group.name().clone(), lsn);
                self.groups.entry((topic.id(), group.id())).or_insert_with(book);
            }
        }
    }

    fn take_note(&mut self, state: &State, topic: &Topic, place: (PartitionId, &Partition), lsn: Lsn) -> Verdict {
        let (id, partition) = place;
        for (position, message) in partition.messages() {
            let visible_to = partition.visible_to(position);
            let Some(book) = self.topics.get_mut(&topic.id()) else { continue };
            if let Some(known) = book.known.get(&message.offset) {
                offset_is_stable(message, (id, position), visible_to, known)?;
                trimmed_stays_trimmed(known)?;
                continue;
            }
            let number = number(message.body.value());
            stored_was_produced(message, number.and_then(|number| self.sent.get(&number)))?;
            let known = Known {
                number: number.unwrap_or_default(),
                partition: id,
                position,
                produced_at: message.produced_at,
                visible_to,
                body: message.body.clone(),
                since: lsn,
                gone: None,
                released: false,
                redriven: None,
            };
            let number = known.number;
            book.add(message.offset, known);
            let meta = message.body.metadata();
            if meta.dead_letter.is_none() && meta.redrive.is_none() {
                self.made(number)?;
            }
            match (&meta.dead_letter, meta.redrive) {
                (Some(dead), _) => self.died(state, message, dead, lsn)?,
                (None, Some(redrive)) => {
                    self.revived(state, topic, message, Made { number, redrive, visible_to }, lsn)?;
                }
                (None, None) => {}
            }
        }
        Ok(())
    }

    /// A new dead letter.
    fn died(&mut self, state: &State, message: &Message, dead: &DeadLetter, lsn: Lsn) -> Verdict {
        let Some(topic) = state.topic_named(&dead.original_topic) else { return Ok(()) };
        let Some(group) = topic.group_named(&dead.group) else { return Ok(()) };
        let source = self.topics.get(&topic.id()).and_then(|book| book.known.get(&dead.original_offset));
        let Some(source) = source else { return Ok(()) };
        let was = source.body.metadata();
        dead_letter_unchanged(message, dead, source, &was)?;
        dead_lettered_at_limit(dead, &was.envelope)?;

        let done = group.progress(source.partition).is_some_and(|progress| progress.done().contains(source.position));
        let Some(book) = self.groups.get_mut(&(topic.id(), group.id())) else { return Ok(()) };
        let before = book.died(dead.original_offset);
        book.dead.entry(dead.original_offset).or_default().push((lsn, dead.routed_at));
        dead_lettered_once(book, dead, before, done)
    }

    /// A new message made from a dead letter.
    fn revived(&mut self, state: &State, topic: &Topic, message: &Message, made: Made, lsn: Lsn) -> Verdict {
        let Made { number, redrive, visible_to } = made;
        let dead = topic.dead_letter_name().and_then(|name| state.topic_named(name));
        let Some(dead) = dead else { return Ok(()) };
        let book = self.topics.get_mut(&dead.id());
        let letter = book.and_then(|book| book.known.get_mut(&redrive.dead_letter_offset));
        let Some(letter) = letter else { return Ok(()) };
        letter.redriven = Some(lsn);
        let was = letter.body.metadata();
        let failed = was.dead_letter.as_ref().and_then(|dead| topic.group_named(&dead.group)).map(Group::id);
        redriven_visible_to_origin(redrive, visible_to, failed)?;
        let there = dead.partition(letter.partition).and_then(|partition| partition.message(letter.position));
        let is_letter_gone = there.is_none();
        redrive_names_origin(&Revived { message, number, redrive, letter, was: &was, is_letter_gone })?;
        for ((of, _), book) in &mut self.groups {
            if let Some(seen) = book.seen.get_mut(&redrive.dead_letter_offset).filter(|_| *of == dead.id()) {
                seen.open = false;
            }
        }
        Ok(())
    }

    /// Whatever is done for a group must have been ended by somebody's word, and whatever is gone must have been done.
    fn ends(&mut self, topic: &Topic, lsn: Lsn, now: Timestamp, has_skipped: bool) -> Verdict {
        let Some(book) = self.topics.get(&topic.id()) else { return Ok(()) };
        let groups: Vec<_> = topic.groups().filter_map(|group| self.waiting(topic, group)).collect();
        let mut gone = Vec::new();
        for offset in &book.here {
            let known = &book.known[offset];
            let kept = topic.partition(known.partition).and_then(|partition| partition.message(known.position));
            if kept.is_none() {
                gone.push(*offset);
            }
            for waiting in &groups {
                let progress = waiting.group.progress(known.partition);
                if progress.is_some_and(|progress| progress.done().contains(known.position)) {
                    ack_is_justified(waiting, *offset, known)?;
                } else {
                    confirmed_ack_holds(waiting, *offset, known)?;
                    dead_stays_done(waiting, *offset, known)?;
                }
            }
            unconsumed_is_stored(topic, known, kept.is_some())?;
        }
        drop(groups);
        if gone.is_empty() {
            return Ok(());
        }
        for (id, partition) in topic.partitions() {
            // What is redriven leaves in any case, and pushes nothing out.
            let here = gone.iter().map(|offset| &book.known[offset]).filter(|known| known.partition == id);
            let Some(last) = here.rev().find(|known| known.redriven.is_none()) else { continue };
            // What was stored and passed over at once was never seen, and may have pushed others out.
            if !has_skipped {
                retained_as_configured(topic, partition, last, now)?;
            }
        }
        if let Some(book) = self.topics.get_mut(&topic.id()) {
            book.gone(&gone, lsn);
        }
        Ok(())
    }

    fn waiting<'a>(&'a self, topic: &Topic, group: &'a Group) -> Option<Waiting<'a>> {
        let book = self.groups.get(&(topic.id(), group.id()))?;
        let mut waiting = Waiting { group, book, is_sought: false, acks: Vec::new() };
        let about = (Some(topic.id()), Some(group.id()));
        for asked in self.pending.values().filter(|asked| (asked.topic, asked.group) == about) {
            match &asked.command {
                Command::Seek { .. } => waiting.is_sought = true,
                Command::Ack(claim) => waiting.acks.push(claim.offset),
                Command::Complete(asked) => waiting.acks.push(asked.claim.offset),
                _ => {}
            }
        }
        Some(waiting)
    }

    /// With the disk idle, and the broker asked until it had nothing more to do.
    pub(crate) fn settled<F: Faults>(&self, pipeline: &Pipeline<F>) -> Verdict {
        let now = pipeline.broker().now();
        for topic in pipeline.state().topics() {
            topic.partitions().try_for_each(|(id, partition)| retention_ends(topic, id, partition, now))?;
            for group in topic.groups().filter(|group| !group.is_paused()) {
                let Some(hungry) = self.hungry(topic, group, now) else { continue };
                for (id, progress) in group.partitions().filter(|(_, p)| p.in_flight() < self.limits.in_flight_max) {
                    let Some(partition) = topic.partition(id) else { continue };
                    not_stuck(&PartitionView::new(topic, id, partition), progress, hungry, now)?;
                }
            }
        }
        Ok(())
    }

    /// A stream of the group that is to be handed more.
    fn hungry(&self, topic: &Topic, group: &Group, now: Timestamp) -> Option<&Stream> {
        let book = self.groups.get(&(topic.id(), group.id()))?;
        let wants_more = |id: ConsumerId, stream: &Stream| {
            let held = book.seen.values();
            let held = held.filter(|seen| seen.consumer == id && seen.open && seen.lease_until > now).count();
            !stream.gone
                && (stream.topic, stream.group) == (topic.id(), group.id())
                && (held as u32) < stream.prefetch
                && stream.asked.deliveries_max.is_none_or(|most| stream.given < most)
        };
        self.streams.iter().find(|(id, stream)| wants_more(**id, stream)).map(|(_, stream)| stream)
    }

    /// What was restored is never behind what workers saw. For right after a restart.
    pub(crate) fn restored(&mut self, state: &State) -> Verdict {
        self.boot = state.boot();
        self.mended(state)?;
        for topic in state.topics() {
            for group in topic.groups() {
                // Of a group that nobody was told of, deliveries may have gone unseen.
                let unknown = || GroupModel { crashed: true, ..GroupModel::new(group.name().clone(), Lsn(0)) };
                self.groups.entry((topic.id(), group.id())).or_insert_with(unknown);
            }
        }
        for ((topic, group), book) in &self.groups {
            let Some(group) = state.topic(*topic).and_then(|topic| topic.group(*group)) else { continue };
            for (offset, seen) in &book.seen {
                let found = group.progress(seen.partition).and_then(|progress| progress.find(*offset));
                attempts_recovered(found.map(|(_, entry)| entry), seen)?;
            }
        }
        Ok(())
    }
}

/// What is told of a redriven message besides itself.
#[derive(Clone, Copy)]
struct Made {
    number: u64,
    redrive: Redrive,
    visible_to: Option<GroupId>,
}

/// One partition, message by message.
fn inspect(partition_view: &PartitionView<'_>, limits: &Limits) -> Verdict {
    stored_or_trimmed(partition_view)?;
    offsets_ascend(partition_view)?;
    for (group, progress) in &partition_view.groups {
        one_message_state(partition_view, group, progress)?;
        unacked_is_stored(partition_view, group, progress)?;
        group_counts_match(partition_view, group, progress)?;
        leased_in_flight(partition_view, group, progress, limits)?;
    }
    let (mut open, mut open_bytes, mut retained) = (0, 0, 0);
    for (position, message) in partition_view.partition.messages() {
        let done_in = partition_view.done_in(position);
        ack_count_matches(partition_view, position, message, done_in)?;
        let is_done_everywhere = partition_view.is_done_everywhere(done_in);
        acked_is_trimmed(partition_view, message, is_done_everywhere)?;
        if is_done_everywhere {
            retained += payload(message);
        } else {
            open += 1;
            open_bytes += payload(message);
        }
    }
    load_matches(partition_view, open, open_bytes)?;
    retained_bytes(partition_view, retained)
}
