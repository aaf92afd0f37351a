//! What must be true inside: every message in exactly one place, every count right, every end justified by somebody's
//! word.

use std::collections::BTreeSet;

use driftq_core::faults::Faults;
use driftq_core::state::State;
use driftq_core::state::entry::Phase;
use driftq_core::state::group::{Group, Progress};
use driftq_core::state::partition::{Message, Partition};
use driftq_core::state::topic::Topic;
use driftq_core::types::*;
use driftq_core::{Command, Pipeline};

use super::ledger::*;
use super::observer::Observer;
use super::verdict::{Law, Verdict};

const ONE_PLACE: Law = Law(1, "a stored message is kept or trimmed, never both, never neither");
const ONE_PHASE: Law = Law(1, "for a group a message is done, or held, or waiting, or ready: exactly one of them");
const END_IS_JUSTIFIED: Law = Law(1, "a message is done for a group only by ack, death, seek or start");
const GONE_IS_GONE: Law = Law(1, "what is trimmed does not come back, what is not done is not trimmed");
const SUMS_ARE_RIGHT: Law = Law(2, "the counts are those of what is there");
const ONE_BODY: Law = Law(4, "an offset never names another body, partition or position");
const WAS_SENT: Law = Law(3, "nothing is stored that was not produced, byte for byte");
const ACKED_IS_DONE: Law = Law(5, "what was confirmed as acked is done");
const IN_FLIGHT: Law = Law(9, "no more is in flight than the limit, inside");
const ATTEMPTS_KEPT: Law = Law(13, "attempts and tokens are never behind what a worker saw");
const DEAD_ONCE: Law = Law(14, "a message enters the dead letters of a group once, and is done for it then");
const DEAD_AT_THE_LIMIT: Law = Law(14, "a message dies at its last attempt or past its deadline, not before");
const DEAD_UNCHANGED: Law = Law(14, "a dead letter is the message, unchanged but for what must not act");
const ORIGIN_ALONE: Law = Law(14, "a redriven message is seen by the group that failed it alone");
const REDRIVE_NAMES_ORIGIN: Law = Law(14, "a redriven message names the dead letter it was, which is gone then");
const RETAINED_BYTES: Law = Law(16, "no more done bytes are kept than asked for");
const RETAINED_WHILE_ASKED: Law = Law(16, "done messages are kept as long as asked for");
const GONE_IN_TIME: Law = Law(16, "done messages that grew too old are let go of");
const NOT_STUCK: Law = Law(26, "what can be delivered is not left lying");

impl Observer {
    /// Looks at the whole inside, and takes note of what is new.
    pub(crate) fn looked<F: Faults>(&mut self, pipeline: &Pipeline<F>) -> Verdict {
        let (state, lsn) = (pipeline.state(), pipeline.broker().appended());
        for topic in state.topics() {
            let book = TopicBook { name: topic.name().clone(), since: lsn, known: Default::default() };
            self.topics.entry(topic.id()).or_insert(book);
            for group in topic.groups() {
                let book = || GroupBook::new(group.name().clone(), lsn);
                self.groups.entry((topic.id(), group.id())).or_insert_with(book);
            }
        }
        for topic in state.topics() {
            for (id, partition) in topic.partitions() {
                structure(topic, id, partition, &self.limits)?;
                self.take_note(state, topic, id, partition, lsn)?;
            }
        }
        let now = pipeline.broker().now();
        state.topics().try_for_each(|topic| self.ends(topic, lsn, now))
    }

    fn take_note(&mut self, state: &State, topic: &Topic, id: PartitionId, partition: &Partition, lsn: Lsn) -> Verdict {
        for (position, message) in partition.messages() {
            let book = self.topics.get_mut(&topic.id()).expect("every topic has a book");
            if let Some(known) = book.known.get(&message.offset) {
                let same = (known.partition, known.position, known.visible_to)
                    == (id, position, partition.visible_to(position))
                    && (known.produced_at, &known.body) == (message.produced_at, &message.body);
                ONE_BODY.holds(same, || format!("{message:?} was {known:?}"))?;
                GONE_IS_GONE.holds(known.gone.is_none(), || format!("{known:?}"))?;
                continue;
            }
            let number = number(&message.body);
            WAS_SENT.holds(number.is_some_and(|number| self.sent.contains_key(&number)), || format!("{message:?}"))?;
            let known = Known {
                number: number.unwrap_or_default(),
                partition: id,
                position,
                produced_at: message.produced_at,
                visible_to: partition.visible_to(position),
                body: message.body.clone(),
                since: lsn,
                gone: None,
                released: false,
                redriven: None,
            };
            let number = known.number;
            book.known.insert(message.offset, known);
            let meta = message.body.metadata();
            match (&meta.dead_letter, meta.redrive) {
                (Some(dead), _) => self.died(state, message, dead, lsn)?,
                (None, Some(redrive)) => self.revived(state, topic, message, (number, redrive), lsn)?,
                (None, None) => self.was_sent(message, number)?,
            }
        }
        Ok(())
    }

    fn was_sent(&self, message: &Message, number: u64) -> Verdict {
        let Some(sent) = self.sent.get(&number) else { return Ok(()) };
        let meta = message.body.metadata();
        let mut envelope = sent.envelope.clone();
        if let Some(delay) = sent.delay {
            envelope.deliver_at = Some(message.produced_at.after(delay));
        }
        if sent.routing.is_some() && meta.routing.is_some() {
            envelope.target_topic.clone_from(&meta.envelope.target_topic);
            envelope.partition_override = meta.envelope.partition_override;
        }
        let same = message.body.key() == sent.key && message.body.value() == sent.value;
        let same = same && meta.envelope == envelope && meta.trace == sent.trace;
        WAS_SENT.holds(same, || format!("{meta:?} of {sent:?}"))
    }

    /// A new dead letter.
    fn died(&mut self, state: &State, message: &Message, dead: &DeadLetter, lsn: Lsn) -> Verdict {
        let Some(topic) = state.topic_named(&dead.original_topic) else { return Ok(()) };
        let Some(group) = topic.group_named(&dead.group) else { return Ok(()) };
        let source = self.topics.get(&topic.id()).and_then(|book| book.known.get(&dead.original_offset));
        let Some(source) = source else { return Ok(()) };
        let was = source.body.metadata();
        let (envelope, kept) = (message.body.metadata().envelope, &dead.kept);
        let cleared = Envelope { deliver_at: None, ..was.envelope.clone() };
        let again = Envelope {
            retry_policy: kept.retry_policy,
            target_topic: kept.target_topic.clone(),
            partition_override: kept.partition_override,
            deadline: kept.deadline.clone(),
            ..envelope.clone()
        };
        let acts = envelope.retry_policy.is_some() || envelope.deadline.is_some() || envelope.target_topic.is_some();
        let same = (source.body.key(), source.body.value()) == (message.body.key(), message.body.value());
        let same = same && again == cleared && !acts && envelope.partition_override.is_none();
        DEAD_UNCHANGED.holds(same && dead.original_partition == source.partition, || format!("{dead:?} of {was:?}"))?;

        let policy = was.envelope.retry_policy;
        let good = match dead.reason {
            DeadReason::MaxAttempts => policy.is_some_and(|p| p.max_attempts > 0 && dead.attempts >= p.max_attempts),
            DeadReason::DeadlineExceeded => was.envelope.deadline.is_some_and(|deadline| deadline.at <= dead.routed_at),
        };
        DEAD_AT_THE_LIMIT.holds(good, || format!("{dead:?} under {policy:?}"))?;

        let done = group.progress(source.partition).is_some_and(|progress| progress.done().contains(source.position));
        let book = self.groups.get_mut(&(topic.id(), group.id())).expect("every group has a book");
        let before = book.died(dead.original_offset);
        book.dead.entry(dead.original_offset).or_default().push((lsn, dead.routed_at));
        let sought = book.sought_since(before.map_or(Lsn(0), |(since, _)| since));
        DEAD_ONCE.holds(before.is_none() || sought, || format!("{dead:?} again, before {before:?}"))?;
        // A dead letter first seen after a restart may be old, its group sought since.
        DEAD_ONCE.holds(done || book.crashed, || format!("{dead:?} is not done for its group"))
    }

    /// A new message made from a dead letter.
    fn revived(&mut self, state: &State, topic: &Topic, message: &Message, made: (u64, Redrive), lsn: Lsn) -> Verdict {
        let (number, redrive) = made;
        let dead = topic.dead_letter_name().and_then(|name| state.topic_named(name));
        let Some(dead) = dead else { return Ok(()) };
        let book = self.topics.get_mut(&dead.id()).expect("every topic has a book");
        let Some(letter) = book.known.get_mut(&redrive.dead_letter_offset) else { return Ok(()) };
        letter.redriven = Some(lsn);
        let was = letter.body.metadata();
        let first = was.redrive.map_or(0, |before| before.count);
        let original = was.redrive.map(|before| before.original_offset);
        let original = original.or(was.dead_letter.as_ref().map(|dead| dead.original_offset));
        let policy = was.dead_letter.as_ref().and_then(|dead| dead.kept.retry_policy);
        let there = dead.partition(letter.partition).and_then(|partition| partition.message(letter.position));
        let good = letter.number == number && redrive.count == first + 1 && original == Some(redrive.original_offset);
        let good = good && message.body.metadata().envelope.retry_policy == policy && there.is_none();
        let failed = was.dead_letter.as_ref().and_then(|dead| topic.group_named(&dead.group)).map(Group::id);
        let seen_by = topic.partitions().find_map(|(_, partition)| {
            let (position, _) = partition.find(message.offset)?;
            Some(partition.visible_to(position))
        });
        ORIGIN_ALONE
            .holds(seen_by == Some(failed), || format!("{redrive:?} is seen by {seen_by:?}, not {failed:?}"))?;
        REDRIVE_NAMES_ORIGIN.holds(good, || format!("{redrive:?} of produce {number} from {letter:?}"))?;
        for ((of, _), book) in &mut self.groups {
            if let Some(seen) = book.seen.get_mut(&redrive.dead_letter_offset).filter(|_| *of == dead.id()) {
                seen.open = false;
            }
        }
        Ok(())
    }

    /// Whatever is done for a group must have been ended by somebody's word.
    fn ends(&mut self, topic: &Topic, lsn: Lsn, now: Timestamp) -> Verdict {
        let book = &self.topics[&topic.id()];
        let mut gone = Vec::new();
        for (offset, known) in &book.known {
            let kept = topic.partition(known.partition).and_then(|partition| partition.message(known.position));
            if kept.is_none() && known.gone.is_none() {
                gone.push(*offset);
            } else if kept.is_none() {
                continue;
            }
            for group in topic.groups() {
                let progress = group.progress(known.partition).expect("every group has every partition");
                self.end(topic, group, progress, (*offset, known))?;
            }
            // With nobody to finish it, only a redrive takes a message away.
            let taken = topic.group_count() > 0 || kept.is_some() || known.redriven.is_some();
            GONE_IS_GONE.holds(taken, || format!("{known:?} though nobody consumes {}", topic.name()))?;
        }
        for (id, partition) in topic.partitions() {
            // Of those that went from here, the last was the youngest and the last to be let go of. What is redriven
            // leaves in any case, and pushes nothing out.
            let here = gone.iter().map(|offset| &book.known[offset]).filter(|known| known.partition == id);
            let Some(last) = here.rev().find(|known| known.redriven.is_none()) else { continue };
            let too_old = topic.retention().age.map(|age| last.produced_at.after(age) <= now);
            let kept = partition.retained().filter_map(|at| partition.message(at)).map(|kept| kept.body.payload_len());
            let with_it = kept.sum::<u64>() + last.body.payload_len();
            let too_much = topic.retention().bytes.map(|most| with_it > most);
            let fine = !topic.retention().keeps_done() || too_old == Some(true) || too_much == Some(true);
            RETAINED_WHILE_ASKED.holds(fine, || format!("{last:?} at {now}, {:?}", topic.retention()))?;
        }
        let book = self.topics.get_mut(&topic.id()).expect("every topic has a book");
        for offset in gone {
            book.known.get_mut(&offset).expect("just seen").gone = Some(lsn);
        }
        Ok(())
    }

    fn end(&self, topic: &Topic, group: &Group, progress: &Progress, (offset, known): (Offset, &Known)) -> Verdict {
        let book = &self.groups[&(topic.id(), group.id())];
        let done = progress.done().contains(known.position);
        let mut pending =
            self.pending.values().filter(|asked| (asked.topic, asked.group) == (Some(topic.id()), Some(group.id())));
        let sought = pending.clone().any(|asked| matches!(asked.command, Command::Seek { .. }));
        if !done {
            let acked = book.acked.contains(&offset) && !sought;
            ACKED_IS_DONE.holds(!acked, || format!("{known:?} for {}", group.name()))?;
            let dead = book.died(offset).is_some_and(|(since, _)| !book.sought_since(since));
            return DEAD_ONCE.holds(!dead || sought, || format!("{known:?} is dead but not done for {}", group.name()));
        }
        let asked = pending.any(|asked| matches!(&asked.command, Command::Ack(claim) if claim.offset == offset));
        let word = book.acked.contains(&offset) || book.maybe.contains(&offset) || asked;
        let start = match book.start() {
            Start::Unknown => true,
            Start::Below(first) => offset < first,
        };
        let other = known.visible_to.is_some_and(|group_of| group_of != group.id());
        let fine = word || start || other || book.dead.contains_key(&offset) || known.redriven.is_some();
        END_IS_JUSTIFIED.holds(fine, || format!("{known:?} for {} of {}: {book:?}", group.name(), topic.name()))
    }

    /// With the disk idle, and the broker asked until it had nothing more to do.
    pub(crate) fn settled<F: Faults>(&self, pipeline: &Pipeline<F>) -> Verdict {
        let now = pipeline.broker().now();
        for topic in pipeline.state().topics() {
            for (id, partition) in topic.partitions() {
                let oldest = partition.oldest_retained().zip(topic.retention().age);
                let good = oldest.is_none_or(|((_, message), age)| message.produced_at.after(age) > now);
                GONE_IN_TIME.holds(good, || format!("{} {id} at {now}: {oldest:?}", topic.name()))?;
            }
            for group in topic.groups().filter(|group| !group.is_paused()) {
                let hungry = self.streams.iter().find(|(id, stream)| {
                    let held = self.groups[&(topic.id(), group.id())].seen.values();
                    let held = held.filter(|seen| seen.consumer == **id && seen.open && seen.lease_until > now);
                    !stream.gone
                        && (stream.topic, stream.group) == (topic.id(), group.id())
                        && (held.count() as u32) < stream.prefetch
                        && stream.asked.deliveries_max.is_none_or(|most| stream.given < most)
                });
                let Some(hungry) = hungry else { continue };
                for (id, progress) in group.partitions().filter(|(_, p)| p.in_flight() < self.limits.in_flight_max) {
                    let partition = topic.partition(id).expect("every group has every partition");
                    let lying = partition.messages().find(|(at, message)| deliverable(progress, *at, message, now));
                    NOT_STUCK.holds(lying.is_none(), || {
                        format!("{} {} {id} at {now}: {lying:?} for {hungry:?}", topic.name(), group.name())
                    })?;
                }
            }
        }
        Ok(())
    }
}

fn deliverable(progress: &Progress, position: Position, message: &Message, now: Timestamp) -> bool {
    let free = progress.entry(position).is_none_or(|entry| match entry.phase {
        Phase::Leased { .. } => false,
        Phase::Queued { not_before } => not_before <= now,
    });
    let due = message.body.metadata().envelope.deliver_at.is_none_or(|at| at <= now);
    free && due && !progress.done().contains(position)
}

/// One partition, position by position.
fn structure(topic: &Topic, id: PartitionId, partition: &Partition, limits: &Limits) -> Verdict {
    let at = || format!("{} {id}", topic.name());
    let end = partition.next_position().0;
    let kept: BTreeSet<u64> = partition.messages().map(|(position, _)| position.0).collect();
    let trimmed: BTreeSet<u64> = (0..end + 2).filter(|p| partition.trimmed().contains(Position(*p))).collect();
    let both = kept.intersection(&trimmed).next();
    let all = kept.union(&trimmed).copied().eq(0..end);
    ONE_PLACE.holds(both.is_none() && all, || format!("{}: {end}, kept {kept:?}, trimmed {trimmed:?}", at()))?;
    let offsets: Vec<_> = partition.messages().map(|(_, message)| message.offset).collect();
    let rising = offsets.is_sorted() && offsets.last().is_none_or(|last| *last < topic.next_offset());
    ONE_PLACE.holds(rising, || format!("{}: offsets {offsets:?}", at()))?;

    let groups: Vec<_> = topic.groups().map(|group| (group, group.progress(id).expect("every partition"))).collect();
    for (group, progress) in &groups {
        let found = || format!("{} {}: {progress:?}", at(), group.name());
        let entries: Vec<_> = progress.entries().collect();
        let odd = entries.iter().find(|(position, entry)| {
            let message = partition.message(*position);
            progress.done().contains(*position) || message.is_none_or(|message| message.offset != entry.offset)
        });
        ONE_PHASE.holds(odd.is_none(), found)?;
        let lost = trimmed.iter().find(|position| !progress.done().contains(Position(**position)));
        GONE_IS_GONE.holds(lost.is_none(), found)?;
        let leased = entries.iter().filter(|(_, entry)| entry.leased_until().is_some()).count() as u32;
        SUMS_ARE_RIGHT.holds(leased == progress.in_flight(), found)?;
        IN_FLIGHT.holds(leased <= limits.in_flight_max, found)?;
        let undone = (0..end).filter(|position| !progress.done().contains(Position(*position))).count() as u64;
        SUMS_ARE_RIGHT.holds(undone == progress.done().undone_before(partition.next_position()), found)?;
        let never = undone - entries.len() as u64;
        SUMS_ARE_RIGHT.holds(undone == u64::from(leased) + progress.waiting() + never, found)?;
    }

    let mut retained_bytes = 0;
    for (position, message) in partition.messages() {
        let done_in = groups.iter().filter(|(_, progress)| progress.done().contains(position)).count();
        SUMS_ARE_RIGHT
            .holds(message.done_in as usize == done_in, || format!("{}: {message:?} done in {done_in}", at()))?;
        let everywhere = !groups.is_empty() && done_in == groups.len();
        let open = partition.is_open(position);
        SUMS_ARE_RIGHT.holds(open != everywhere, || format!("{}: {message:?} open {open}", at()))?;
        GONE_IS_GONE.holds(!everywhere || topic.retention().keeps_done(), || format!("{}: {message:?} stays", at()))?;
        retained_bytes += if everywhere { message.body.payload_len() } else { 0 };
    }
    let load = (partition.open().messages, partition.open().bytes);
    SUMS_ARE_RIGHT.holds(load == open(topic, id), || format!("{}: {load:?}, counted {:?}", at(), open(topic, id)))?;
    let within = topic.retention().bytes.is_none_or(|most| retained_bytes <= most);
    RETAINED_BYTES.holds(within, || format!("{}: {retained_bytes}", at()))
}

impl Observer {
    /// What was restored is never behind what workers saw. For right after a restart.
    pub(crate) fn restored(&mut self, state: &State) -> Verdict {
        for topic in state.topics() {
            for group in topic.groups() {
                // Of a group that nobody was told of, deliveries may have gone unseen.
                let unknown = || GroupBook { crashed: true, ..GroupBook::new(group.name().clone(), Lsn(0)) };
                self.groups.entry((topic.id(), group.id())).or_insert_with(unknown);
            }
        }
        for ((topic, group), book) in &self.groups {
            let Some(group) = state.topic(*topic).and_then(|topic| topic.group(*group)) else { continue };
            for (offset, seen) in &book.seen {
                let progress = group.progress(seen.partition).expect("every group has every partition");
                let entry = progress.find(*offset).map(|(_, entry)| entry);
                let good = entry.is_none_or(|entry| entry.attempts >= seen.attempts && entry.token >= seen.token);
                ATTEMPTS_KEPT.holds(good, || format!("{entry:?}, seen {seen:?}"))?;
            }
        }
        Ok(())
    }
}
