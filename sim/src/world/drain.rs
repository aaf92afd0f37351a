//! The end of a run: faults stop, a last worker acks every message, and nothing may be left undelivered.

use std::collections::BTreeSet;

use driftq_core::command::{Ack, Claim, GroupLifetime, OnDisconnect, Resume, Subscribe, TokenClaim, Unsubscribe};
use driftq_core::faults::Faults;
use driftq_core::log::{FileId, ReferredSegment, SegmentHeader};
use driftq_core::state::{self, Group, Partition};
use driftq_core::types::{
    Boot, FrameNumber, GroupName, GroupStart, Millis, PartitionId, Position, Timestamp, TopicName,
};
use driftq_core::{Command, Pipeline};

use super::network::ClientCommand;
use super::state::World;
use crate::actions::{Loss, NewMessage, Request};
use crate::coverage::Point;
use crate::invariants::Verdict;
use crate::invariants::fairness::maintenance_ends;
use crate::invariants::files::{
    covered_files_are_removed, rests_small, segments_are_cut, segments_are_few, snapshot_is_taken,
};
use crate::invariants::liveness::{accepts_again, drains, timers_are_set, timers_quiesce};
use crate::invariants::payloads::rot_is_found;
use crate::names::{Message, Topic, Worker};
use crate::oracle::Oracle;
use crate::setup::Setup;
use crate::sim_storage::SimStorage;

/// The worker that consumes the rest.
const LAST_WORKER: Worker = Worker(u8::MAX);
/// The messages that show that the log takes records: after a full disk, and before and after everything else is acked.
const LAST_MESSAGES: [Message; 3] = [Message(u32::MAX - 2), Message(u32::MAX - 1), Message(u32::MAX)];
/// After how long a failed read is repeated.
const READ_AGAIN: Millis = Millis(1_000);
/// How long a scrub takes at most.
const SCRUB_MS: u64 = 2_000;
/// How many times the groups are drained without progress before what is left counts as undelivered.
const PASSES_WITHOUT_PROGRESS: usize = 2;
/// How many times the clock advances to the next timeout.
const ROUNDS: usize = 1_000;
/// How long the broker is left alone at the end: longer than anything is remembered.
const FORGOTTEN_AFTER_MS: u64 = 31 * 24 * 60 * 60 * 1_000;
/// How long after its expiry an entry of a table is swept at the latest.
const SWEPT_WITHIN_MS: u64 = 1_000;
/// How long a broker may stay idle while its log has no space.
const STALL_MS: u64 = 100;
/// How long after the disk has space again the log takes records, without traffic.
const ACCEPTS_WITHIN_MS: u64 = 5_000;
/// How long a broker waits at most after a full disk before it retries a snapshot.
const DISK_FULL_RETRY_MS: u64 = 11_000;
/// How long after the last sync an idle log appends its mark.
const MARK_MS: u64 = 101;
/// How many times as long a log rests before snapshots that write more than they free.
const LONG_REST: u64 = 16;
/// How many times a log is given the time to come to rest: timers may append records.
const REST_ROUNDS: usize = 3;

impl<F: Faults, S: SimStorage> World<F, S> {
    /// Delivers and acks everything, then restarts once more.
    pub(super) fn drain(&mut self) -> Verdict {
        self.disk.model_mut().set_free_space(None);
        if !self.is_serving() {
            if self.broker.is_some() {
                self.crash(Loss::All);
            }
            self.boot()?;
        }
        self.run_until_idle()?;
        for consumer in self.network.streams() {
            self.send_and_wait(Command::Unsubscribe(Unsubscribe { consumer }))?;
        }
        if self.was_limited {
            self.pass(ACCEPTS_WITHIN_MS)?;
            self.check_accepts(LAST_MESSAGES[0])?;
        }
        self.advance_time(DISK_FULL_RETRY_MS);
        self.run_until_idle()?;
        self.was_limited = false;
        self.check_accepts(LAST_MESSAGES[1])?;
        let (mut left, mut without_progress) = (self.unacked(), 0);
        for _ in 0..ROUNDS {
            for (topic, group) in self.groups() {
                self.drain_group(&topic, &group)?;
            }
            let before = std::mem::replace(&mut left, self.unacked());
            without_progress = if left == before { without_progress + 1 } else { 0 };
            if left.is_empty() || without_progress == PASSES_WITHOUT_PROGRESS {
                break;
            }
        }
        drains(&self.undelivered())?;
        if let Some(broker) = &self.broker {
            self.tracker.check_produced(broker)?;
        }
        self.check_idle()?;
        self.check_rest()?;
        self.check_accepts(LAST_MESSAGES[2])?;
        self.compare_with_log()?;
        self.crash(Loss::All);
        self.boot()?;
        self.run_until_idle()?;
        self.check_maintenance()
    }

    /// Lets time pass, and runs timers and I/O when they are due.
    fn pass(&mut self, ms: u64) -> Verdict {
        let end = self.now + ms;
        while self.now < end {
            let wait = self.until_timeout().unwrap_or(ms).clamp(1, end - self.now);
            self.advance_time(wait);
            self.run_until_idle()?;
        }
        Ok(())
    }

    /// The time until something is due that may deliver a message. Scrubs do not, and there is always another.
    fn until_change(&self) -> Option<u64> {
        let broker = self.broker.as_ref().map(Pipeline::broker)?;
        let reads = broker.wanted_payloads().next().is_some();
        let change = broker.next_change().filter(|_| self.setup.scrub_ms.is_some() && !reads);
        change.map_or_else(|| self.until_timeout(), |at| Some(at.0.saturating_sub(self.now)))
    }

    /// Runs timers and I/O until nothing is due.
    fn run_until_idle(&mut self) -> Verdict {
        for calls in 0.. {
            self.flush_io()?;
            if self.until_timeout().is_none_or(|wait| wait > 0) {
                break;
            }
            timers_quiesce(calls, self.broker_time())?;
            self.wake()?;
        }
        self.check_marked()
    }

    /// Checks that everything deliverable is delivered. For an idle world.
    pub(super) fn check_idle(&mut self) -> Verdict {
        let Some(broker) = self.broker.as_ref().filter(|broker| broker.failure().is_none()) else { return Ok(()) };
        let stall_end = self.clock().mono.after(Millis(STALL_MS));
        if let Some(due) = self.oracle.as_ref().and_then(Oracle::next_due) {
            // The clock of the oracle stands still while a read fails.
            timers_are_set(due.max(self.clock().mono), broker.poll_timeout())?;
        }
        self.check_index()?;
        if broker.broker().held_len() == 0 && broker.synced().lsn >= broker.broker().appended() {
            self.tracker.check_counters(broker)?;
        }
        if broker.broker().wanted_payloads().next().is_some() {
            // A read has failed and is repeated.
            return timers_are_set(self.clock().mono.after(READ_AGAIN), broker.poll_timeout());
        }
        match broker.poll_timeout() {
            Some(at) if at <= stall_end => Ok(()),
            _ => self.tracker.check_idle(broker),
        }
    }

    /// Lets time pass until nothing is due any more: whatever expires is gone then.
    fn check_maintenance(&mut self) -> Verdict {
        let end = self.now + FORGOTTEN_AFTER_MS;
        // There is always another scrub.
        let at_least = if self.setup.scrub_ms.is_some() { FORGOTTEN_AFTER_MS / ROUNDS as u64 + 1 } else { 1 };
        for _ in 0..ROUNDS {
            let Some(wait) = self.until_timeout().filter(|wait| self.now + wait <= end) else { break };
            self.advance_time(wait.max(at_least));
            self.run_until_idle()?;
        }
        maintenance_ends(&self.unmaintained(end))?;
        if let Some(interval) = self.setup.scrub_ms.filter(|_| !self.rotten_payloads().is_empty()) {
            // The scrub under way may have passed the damage; the next one reads each injury three times.
            let examined = self.disk.model().injuries() as u64 * 3 * READ_AGAIN.0;
            self.pass(2 * interval + examined + SCRUB_MS)?;
            rot_is_found(&self.rotten_payloads())?;
            self.coverage.hit(Point::RotFoundByScrub);
        }
        self.check_idle()
    }

    /// What should be gone when a broker without clients has been idle until `end`.
    fn unmaintained(&self, end: u64) -> Vec<String> {
        let Some(broker) = &self.broker else { return Vec::new() };
        let state = broker.state();
        let mut left = Vec::new();
        if let Some(wait) = self.until_timeout().filter(|wait| self.now + wait <= end) {
            left.push(format!("after {ROUNDS} timeouts another is due in {wait} ms"));
        }
        let idle_since = Timestamp(broker.broker().now().0.saturating_sub(SWEPT_WITHIN_MS));
        let dedupe = state.dedupe_tables().flat_map(|(scope, table)| table.entries().map(move |at| (scope, at)));
        left.extend(dedupe.filter(|(_, (_, entry))| entry.expires_at <= idle_since).map(|at| format!("{at:?}")));
        let winners = state.winners().entries().filter(|(_, winner)| winner.until <= idle_since);
        left.extend(winners.map(|at| format!("{at:?}")));
        let completions = state.completions().entries().filter(|(_, completion)| completion.until <= idle_since);
        left.extend(completions.map(|at| format!("{at:?}")));
        for (_, table) in state.store().tables() {
            let expired = table.effects().filter(|(_, effect)| effect.expires_at <= idle_since);
            left.extend(expired.map(|at| format!("{at:?}")));
        }
        let memory = broker.broker().index_contents().deleted;
        left.extend((memory > 0).then(|| format!("{memory} deleted parts are not freed")));
        left
    }

    /// Checks the files of a world without pending I/O.
    pub(super) fn check_files(&self) -> Verdict {
        if !self.is_serving() {
            return Ok(());
        }
        let segments = self.disk.model().segments();
        segments_are_cut(&segments)?;
        if self.was_limited || self.short_until > Timestamp(0) {
            return Ok(());
        }
        let newest = self.broker.as_ref().and_then(|broker| broker.snapshots().last().copied()).unwrap_or_default();
        if self.disk.model().fell_back_to().is_some_and(|fallback| newest <= fallback) {
            // There were more before the damaged snapshot, and none was taken since.
            return Ok(());
        }
        // A misdirected write can give a snapshot the header of a segment.
        let segments = self.disk.model().files().filter(|(file, _)| matches!(file, FileId::Segment(_)));
        let headers = segments.filter_map(|(_, bytes)| SegmentHeader::decode(bytes).ok());
        let begun = headers.filter(|header| header.first_frame() > newest).count();
        segments_are_few(begun as u64, self.setup.snapshot_every_segments)?;
        let Some(broker) = &self.broker else { return Ok(()) };
        let written = self.shadow.frames().iter().rev().take_while(|frame| frame.at.frame > newest);
        let written: u64 = written.map(|frame| frame.range.len() as u64).sum();
        let snapshots = self.disk.model().files().filter(|(file, _)| *file == FileId::Snapshot(newest));
        let snapshot_bytes: u64 = snapshots.map(|(_, bytes)| bytes.len() as u64).sum();
        snapshot_is_taken(written, self.setup.snapshot_every_bytes.max(2 * snapshot_bytes))?;
        let on_disk = self.disk.model().files().filter(|(file, _)| matches!(file, FileId::Snapshot(_))).count();
        let unreferred = self.unreferred_segments(broker);
        covered_files_are_removed(&broker.snapshots(), on_disk, &unreferred)
    }

    /// The segments to which none of the snapshots refers, each with the first frame of the next one. None before the
    /// first snapshot of a boot, which removes what a crash has left.
    fn unreferred_segments(&self, broker: &Pipeline<F>) -> Vec<(FileId, FrameNumber)> {
        let (boot, referred) = self.referred_segments(&broker.snapshots());
        if boot != broker.state().boot() {
            return Vec::new();
        }
        let segments = self.disk.model().files().filter(|(file, _)| matches!(file, FileId::Segment(_)));
        let headers = segments.filter_map(|(_, bytes)| SegmentHeader::decode(bytes).ok());
        let mut first: Vec<_> = headers.map(|header| (header.first_frame(), header.file())).collect();
        first.sort_unstable();
        let is_kept = |segment: FileId| referred.contains(&segment) || self.reads.was_kept(segment);
        let unreferred = first.windows(2).filter(|pair| !is_kept(pair[0].1));
        unreferred.map(|pair| (pair[0].1, pair[1].0)).collect()
    }

    /// The boot of the newest snapshot, and the segments to which the snapshots refer.
    fn referred_segments(&self, snapshots: &[FrameNumber]) -> (Boot, BTreeSet<FileId>) {
        let (mut boot, mut referred) = (Boot(0), BTreeSet::new());
        for (head, segments) in snapshots.iter().filter_map(|number| self.disk.model().referred_by(*number)) {
            boot = boot.max(Boot(head.epoch as u32));
            referred.extend(segments.iter().map(ReferredSegment::file));
        }
        (boot, referred)
    }

    /// Lets the log come to rest and checks its files.
    fn check_rest(&mut self) -> Verdict {
        let Some(rest_ms) = self.setup.rest_ms else { return Ok(()) };
        for _ in 0..REST_ROUNDS {
            // The mark of an idle log comes first.
            for wait in [MARK_MS, rest_ms, LONG_REST * rest_ms] {
                self.advance_time(wait);
                self.run_until_idle()?;
            }
        }
        self.check_files()?;
        let Some(broker) = self.broker.as_ref().filter(|broker| broker.is_at_rest()) else { return Ok(()) };
        let has_live =
            broker.state().topics().flat_map(state::Topic::partitions).any(|(_, at)| at.backlog().messages > 0);
        let Setup { segment_bytes, segment_bytes_min, .. } = self.setup;
        let (_, referred) = self.referred_segments(&broker.snapshots());
        let segments = self.disk.model().segments();
        let unreferred: Vec<_> = segments.into_iter().filter(|segment| !referred.contains(&segment.file)).collect();
        rests_small(&unreferred, (!has_live).then_some(segment_bytes.min(segment_bytes_min)))
    }

    /// The log takes records, however full the disk was before. A state with a bound may reach it without any message.
    fn check_accepts(&mut self, message: Message) -> Verdict {
        if self.setup.state_bytes_max.is_some() {
            return Ok(());
        }
        let probe = NewMessage { message, topic: Topic::new(0), ..NewMessage::default() };
        let Some(command) = self.command_of(&Request::Produce(probe)) else { return Ok(()) };
        let refused = |world: &Self| world.broker.as_ref().map_or(0, |broker| broker.broker().counters().refused);
        let before = refused(self);
        self.handle(command)?;
        self.run_until_idle()?;
        accepts_again(refused(self) - before)
    }

    fn groups(&self) -> Vec<(TopicName, GroupName)> {
        let topics = self.broker.iter().flat_map(|broker| broker.state().topics());
        topics.flat_map(|topic| topic.groups().map(|group| (topic.name().clone(), group.name().clone()))).collect()
    }

    /// The last worker acks all messages of one group. Groups take turns, since there may be space for one stream only.
    fn drain_group(&mut self, topic: &TopicName, group: &GroupName) -> Verdict {
        self.send_and_wait(Command::Resume(Resume { topic: topic.clone(), group: group.clone() }))?;
        let subscribe = Subscribe {
            topic: topic.clone(),
            group: group.clone(),
            owner: LAST_WORKER.name(),
            lease: None,
            prefetch: 100,
            deliveries_max: None,
            start: GroupStart::Earliest,
            on_disconnect: OnDisconnect::Keep,
            group_lifetime: GroupLifetime::Durable,
        };
        self.handle(ClientCommand { command: Command::Subscribe(subscribe), worker: Some(LAST_WORKER) })?;
        for round in 0..ROUNDS {
            self.run_until_idle()?;
            while self.network.unread(LAST_WORKER) > 0 {
                self.read(LAST_WORKER, 1);
                self.ack_newest()?;
            }
            self.run_until_idle()?;
            if self.unacked_by(topic, group) == 0 {
                break;
            }
            // However often other timers are due, the longest lease ends within the rounds.
            let at_least = 1 << (round / 32).min(30);
            let wait = self.until_change().unwrap_or(1);
            self.advance_time(wait.max(at_least));
        }
        match self.network.stream_of(LAST_WORKER) {
            Some(consumer) => self.send_and_wait(Command::Unsubscribe(Unsubscribe { consumer })),
            None => Ok(()),
        }
    }

    fn ack_newest(&mut self) -> Verdict {
        let Some(held) = self.network.read_by(LAST_WORKER).next().cloned() else { return Ok(()) };
        self.send_and_wait(Command::Ack(Ack(Claim {
            topic: held.topic.name(),
            group: held.group.name(),
            partition: held.partition,
            offset: held.offset,
            owner: held.owner,
            token: TokenClaim::Shown(held.token),
        })))
    }

    fn send_and_wait(&mut self, command: Command) -> Verdict {
        self.handle(ClientCommand { command, worker: None })?;
        self.run_until_idle()
    }

    /// The number of messages the group has not acked.
    fn unacked_by(&self, topic: &TopicName, group: &GroupName) -> u64 {
        let topic = self.broker.as_ref().and_then(|broker| broker.state().topic_named(topic));
        let Some(topic) = topic else { return 0 };
        let partitions = topic.group_named(group).into_iter().flat_map(Group::partitions);
        partitions.map(|(id, progress)| progress.acked().unacked_before(end(topic, id))).sum()
    }

    /// All unacked messages, with the reason.
    fn undelivered(&self) -> Vec<String> {
        let Some(broker) = &self.broker else { return vec!["the broker is not running".to_owned()] };
        let unacked = self.unacked().into_iter();
        unacked.map(|(topic, group, id, unacked)| self.describe_unacked(broker, &topic, &group, id, unacked)).collect()
    }

    /// How many messages are not acked, for each group and partition that has any.
    fn unacked(&self) -> Vec<(TopicName, GroupName, PartitionId, u64)> {
        let mut found = Vec::new();
        for topic in self.broker.iter().flat_map(|broker| broker.state().topics()) {
            for group in topic.groups() {
                let unacked = group.partitions().map(|(id, at)| (id, at.acked().unacked_before(end(topic, id))));
                let unacked = unacked.filter(|(_, unacked)| *unacked > 0);
                found.extend(unacked.map(|(id, unacked)| (topic.name().clone(), group.name().clone(), id, unacked)));
            }
        }
        found
    }

    fn describe_unacked(
        &self,
        broker: &Pipeline<F>,
        topic: &TopicName,
        group: &GroupName,
        partition: PartitionId,
        unacked: u64,
    ) -> String {
        let next_timeout = broker.poll_timeout().map_or("never".to_owned(), |at| at.to_string());
        let topic_state = broker.state().topic_named(topic);
        let progress = topic_state.and_then(|topic| topic.group_named(group)?.progress(partition));
        let in_flight = progress.map_or(0, driftq_core::state::Progress::in_flight);
        let waiting = progress.map_or(0, driftq_core::state::Progress::waiting);
        format!(
            "{unacked} of {topic}/{partition} for {group}: {in_flight} in flight, {waiting} waiting; the next timeout \
                is at {next_timeout}"
        )
    }
}

fn end(topic: &state::Topic, partition: PartitionId) -> Position {
    topic.partition(partition).map_or_else(Default::default, Partition::next_position)
}
