//! One planted bug: the seams it overrides.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::seams::Seams;
use super::storage::TamperedStorage;
use super::{Fault, files, records, requests};
use crate::broker::{Counters, SpaceClass};
use crate::collections::shared::unshared;
use crate::command::{Command, Produce, TokenClaim};
use crate::index::{Credit, Index, NextDispatch, Timer};
use crate::log::{CrcSeed, IoOp, Recovered, SegmentHeader, Storage, StorageFault};
use crate::pipeline::PipelineConfig;
use crate::record::{Event, Image, Record, Referrer};
use crate::reply::Output;
use crate::state::{Contradiction, Group, Load, Message, Partition, State, Topic, View};
use crate::types::{
    Body, Boot, ConsumerId, DeadReason, DecisionFields, DeliveryState, Effect, EffectStatus, FrameNumber, GroupId,
    IdentityKey, LeaseToken, Limits, Lsn, MessageRef, Millis, Offset, OwnerName, PayloadId, Position, ProduceScope,
    Retention, Timestamp, WallAdjustment,
};

/// A broker with exactly one bug.
#[derive(Clone, Copy, Debug)]
pub struct Planted(pub Fault);

/// The state that [`Fault::HiddenState`] keeps outside the state machine.
static HIDDEN: AtomicU64 = AtomicU64::new(0);

impl Planted {
    /// The delay that replaces the `delay` after a failure.
    fn retry_delay(self, delay: Millis) -> Millis {
        match self.0 {
            Fault::BackoffIgnored => Millis(0),
            Fault::HiddenState => Millis(delay.0 + HIDDEN.fetch_add(1, Ordering::Relaxed) % 3),
            _ => delay,
        }
    }
}

impl Planted {
    /// The event to commit for a decision; `None` commits nothing.
    fn committed(self, state: &State, now: Timestamp, event: Event) -> Option<Event> {
        let delayed = |not_before: Timestamp| now.after(self.retry_delay(not_before.since(now)));
        Some(match (self.0, event) {
            (Fault::AckNotKept, Event::Acked { .. }) => return None,
            (Fault::TokensRestartOnBoot, Event::Booted { .. }) if state.boot() > Boot(0) => return None,
            (Fault::ExtendAfterExpiry, Event::Extended { message_ref, .. })
                if delivery(state, &message_ref).is_none_or(|delivery| delivery.leased_until().is_none()) =>
            {
                return None;
            }
            (Fault::BackoffIgnored | Fault::HiddenState, Event::Nacked { message_ref, reason, not_before }) => {
                Event::Nacked { message_ref, reason, not_before: delayed(not_before) }
            }
            (Fault::BackoffIgnored | Fault::HiddenState, Event::Expired { message_ref, not_before }) => {
                Event::Expired { message_ref, not_before: delayed(not_before) }
            }
            (Fault::NonRetryableRetried, Event::DeadLettered { message_ref, reason: DeadReason::NonRetryable, .. }) => {
                delivery(state, &message_ref).filter(|delivery| delivery.leased_until().is_some())?;
                Event::Nacked { message_ref, reason: None, not_before: now }
            }
            (
                Fault::CumulativeSkipsIdentity | Fault::CumulativeForgetsWinner,
                Event::CumulativelyAcked { topic, group, partition, mut acks },
            ) => {
                for ack in &mut acks {
                    match self.0 {
                        Fault::CumulativeSkipsIdentity => ack.commits = None,
                        _ => ack.winner_until = None,
                    }
                }
                Event::CumulativelyAcked { topic, group, partition, acks }
            }
            (Fault::ExhaustedRetried, Event::DeadLettered { message_ref, reason: DeadReason::MaxAttempts, .. }) => {
                Event::Nacked { message_ref, reason: None, not_before: now }
            }
            (Fault::BodyTruncated, Event::Produced { topic, partition, offset, body, dedupe, skipped }) => {
                Event::Produced { topic, partition, offset, body: truncated(&body), dedupe, skipped }
            }
            (Fault::FlagWithoutSkip, Event::Produced { topic, partition, offset, body, dedupe, .. }) => {
                Event::Produced { topic, partition, offset, body, dedupe, skipped: Vec::new() }
            }
            (Fault::PurgeLeavesNewest, Event::Purged { topic, ends, winner_until }) => {
                let ends = ends.iter().map(|end| Position(end.0.saturating_sub(1))).collect();
                Event::Purged { topic, ends, winner_until }
            }
            (Fault::AckEffectOutlastsWindow, Event::Acked { message_ref, commits: Some(_), winner_until }) => {
                Event::Acked { message_ref, commits: Some(Millis(24 * 60 * 60 * 1_000)), winner_until }
            }
            (Fault::ExpiredKeepsToken, Event::Delivered { message_ref, token, owner, until }) => {
                let failed = |delivery: &&DeliveryState| delivery.failures > 0 && delivery.token.boot == state.boot();
                let kept = delivery(state, &message_ref).filter(failed).map(|delivery| delivery.token);
                Event::Delivered { message_ref, token: kept.unwrap_or(token), owner, until }
            }
            (Fault::WinnerOnlyAfterFailure, Event::Acked { message_ref, commits, winner_until }) => {
                let has_failed = delivery(state, &message_ref).is_some_and(|delivery| delivery.failures > 0);
                Event::Acked { message_ref, commits, winner_until: winner_until.filter(|_| has_failed) }
            }
            (Fault::WinnerNeverForgotten, Event::Acked { message_ref, commits, winner_until }) => {
                Event::Acked { message_ref, commits, winner_until: winner_until.map(|_| Timestamp::MAX) }
            }
            (Fault::LeaseShorterThanTold, Event::Delivered { message_ref, token, owner, until }) => {
                let until = now.after(Millis(until.since(now).0 / 2));
                Event::Delivered { message_ref, token, owner, until }
            }
            (Fault::ClockSetForwardIgnored, Event::WallClockAdjusted(WallAdjustment::Forward { .. }))
            | (Fault::ClockSetBackIgnored, Event::WallClockAdjusted(WallAdjustment::Slew { .. }))
            | (Fault::RebaseIgnored, Event::WallClockAdjusted(WallAdjustment::Rebase { .. })) => return None,
            (Fault::ClockSetBackJumps, Event::WallClockAdjusted(WallAdjustment::Slew { target, .. })) => {
                Event::WallClockAdjusted(WallAdjustment::Rebase { offset: target })
            }
            (Fault::OffsetAppliedToDurations, Event::Delivered { message_ref, token, owner, until }) => {
                let until = until.shifted(state.wall_clock().offset(now).saturating_neg());
                Event::Delivered { message_ref, token, owner, until }
            }
            (Fault::DelayFollowsWall, Event::Produced { topic, partition, offset, body, dedupe, skipped }) => {
                let body = delayed_by_wall(state, body);
                Event::Produced { topic, partition, offset, body, dedupe, skipped }
            }
            (_, event) => event,
        })
    }
}

impl Seams for Planted {
    fn decided(&self, state: &State, now: Timestamp, event: &mut Event) -> bool {
        if let (
            Fault::BackoffWraps,
            Event::Nacked { message_ref, not_before, .. } | Event::Expired { message_ref, not_before },
        ) = (self.0, &mut *event)
            && state.delivery(message_ref).is_some_and(|delivery| delivery.failures >= 64)
        {
            *not_before = now;
        }
        self.committed(state, now, event.clone()).map(|committed| *event = committed).is_some()
    }

    fn apply(&self, state: &mut State, record: &Record) -> Result<(), Contradiction> {
        records::apply(self.0, state, record)
    }

    fn replay(&self, state: &mut State, record: &Record) -> Result<(), Contradiction> {
        records::replay(self.0, state, record)
    }

    fn apply_indexed(&self, state: &mut State, index: &mut Index, record: &Record) -> Result<(), Contradiction> {
        let (deadlines, streams) = match self.0 {
            Fault::StaleDeadlineKept => (index.deadlines.clone(), Default::default()),
            Fault::EndedStreamKept => (Default::default(), index.leases.ended_streams.clone()),
            _ => Default::default(),
        };
        if !matches!((self.0, &record.event), (Fault::CompleteWithoutAck, Event::Completed(_))) {
            index.before_apply(state, record);
        }
        self.apply(state, record)?;
        let is_left_out = matches!(
            (self.0, &record.event),
            (Fault::StuckAfterExpiry, Event::Expired { .. })
                | (Fault::OriginChangeKeepsWatch, Event::GroupOriginChanged { .. })
        );
        if !is_left_out {
            index.after_apply(state, record);
        }
        if let Event::Acked { .. } | Event::Expired { .. } | Event::DeadLettered { .. } = &record.event {
            for (key, at) in deadlines {
                index.deadlines.entry(key).or_insert(at);
            }
            let kept = streams.into_iter().filter(|(id, _)| !index.leases.ended_streams.contains_key(id));
            index.leases.ended_streams.extend(kept.collect::<Vec<_>>());
        }
        if self.0 == Fault::CreditNeverShrinks {
            let consumers: Vec<_> = index.consumers.keys().copied().collect();
            for id in consumers {
                let Some(consumer) = index.consumers.get_mut(&id) else { continue };
                consumer.credit = Credit::new(consumer.credit.prefetch());
                index.refresh_credit(id);
            }
        }
        if let (Fault::BackoffHidesDeadline, Event::Nacked { message_ref, .. } | Event::Expired { message_ref, .. }) =
            (self.0, &record.event)
        {
            index.forget_deadline((message_ref.topic, message_ref.partition, message_ref.position));
        }
        if self.0 == Fault::RetentionIgnoresAge {
            let partitions = state.topics().flat_map(|topic| topic.partitions().map(move |found| (topic, found)));
            for (topic, (id, partition)) in partitions {
                let oldest = partition.oldest_retained().map(|(_, message)| message.produced_at);
                if let Some((oldest, age)) = oldest.zip(topic.retention().age) {
                    index.timers.cancel(oldest.after(age), Timer::Retention(topic.id(), id));
                }
            }
        }
        Ok(())
    }

    fn is_releasable(&self, output: &Output, decided_at: Lsn, durable: Lsn) -> bool {
        let early = match self.0 {
            Fault::ReleaseBeforeSync => true,
            Fault::ReleaseRefusalsBeforeSync => matches!(output, Output::Reply { result: Err(_), .. }),
            _ => false,
        };
        early || decided_at <= durable
    }

    fn released_at(&self, decided_by: Timestamp, now: Timestamp) -> Timestamp {
        if self.0 == Fault::LeaseFromDecision { decided_by } else { now }
    }

    fn next_dispatch(
        &self,
        index: &mut Index,
        topic: &Topic,
        group: GroupId,
        in_flight_max: u32,
        now: Timestamp,
    ) -> Option<NextDispatch> {
        match self.0 {
            Fault::PriorityBreaksOrder => {
                let mut next = index.next(topic, group, in_flight_max)?;
                next.message_ref.position = newest_like(topic, &next.message_ref, now);
                Some(next)
            }
            Fault::PauseIgnored => {
                let mut topic = topic.clone();
                topic.group_mut(group)?.paused = false;
                index.next(&topic, group, in_flight_max)
            }
            Fault::RoundRobinSkipsLast => {
                let members: BTreeSet<_> = index.members(topic.id(), group).collect();
                let last = *members.last()?;
                if members.len() == 1 {
                    return index.next(topic, group, in_flight_max);
                }
                let prefetch = index.consumers[&last].credit.prefetch();
                index.set_prefetch(last, 0);
                let next = index.next(topic, group, in_flight_max);
                index.set_prefetch(last, prefetch);
                next
            }
            _ => index.next(topic, group, in_flight_max),
        }
    }

    fn disconnect(&self, state: &State, index: &mut Index, consumer: ConsumerId, now: Timestamp) {
        let gone = index.consumers.get(&consumer).cloned();
        index.leave(state, consumer, now);
        let Some(gone) = gone.filter(|_| self.0 == Fault::CreditLeakedOnDisconnect) else { return };
        let heir = index.members(gone.topic, gone.group).next();
        if let Some(other) = heir.and_then(|heir| index.consumers.get_mut(&heir)) {
            other.in_flight += gone.in_flight;
        }
        heir.into_iter().for_each(|heir| index.refresh_credit(heir));
    }

    fn counted_load(&self, partition: &Partition) -> Load {
        if self.0 == Fault::RetainedRefusesProduce { partition.kept() } else { partition.backlog() }
    }

    fn recorded_retention(&self, requested: Retention, defaults: Retention) -> Retention {
        match self.0 {
            Fault::RetentionDefaultNotRecorded => requested,
            _ => requested.resolved(defaults),
        }
    }

    fn has_acked(&self, group: &Group) -> bool {
        self.0 != Fault::IdleGroupWithAcksDeleted && group.has_acked()
    }

    fn produce_scope(&self, request: &Produce) -> ProduceScope {
        let target = request.envelope.target_topic.as_ref();
        let routed = request.routing.as_ref().and_then(|decision| decision.target_topic.as_ref());
        match self.0 {
            Fault::GateIgnoresDestination => ProduceScope::new(&request.topic, None),
            Fault::GateByStoredTopic => ProduceScope::new(routed.or(target).unwrap_or(&request.topic), None),
            _ => ProduceScope::new(&request.topic, target),
        }
    }

    fn is_done(
        &self,
        state: &State,
        (topic, group): (&Topic, &Group),
        (body, key): (&Body, &IdentityKey),
        now: Timestamp,
    ) -> bool {
        let effect = state.effect_of(topic.name(), group.name(), key, now);
        let is_dead_letter = topic.name().is_dead_letter();
        match self.0 {
            Fault::SkipBeforeAllGroupsDone => topic.groups().any(|group| state.is_done(topic, group, (body, key), now)),
            Fault::SkipOfFinishedOnly => !is_dead_letter && effect.is_some_and(|effect| effect.status.is_final()),
            Fault::SkipAcrossTopics => !is_dead_letter && effect.is_some_and(|effect| effect.committed),
            _ => state.is_done(topic, group, (body, key), now),
        }
    }

    fn is_told_done(&self, skipped: &[GroupId]) -> bool {
        self.0 != Fault::SkipWithoutFlag && !skipped.is_empty()
    }

    fn redrive_end(&self, next: Offset) -> Offset {
        if self.0 == Fault::RedriveFollowsTail { Offset(u64::MAX) } else { next }
    }

    fn lease_token_matches(&self, delivery: &DeliveryState, shown: LeaseToken) -> bool {
        self.0 == Fault::SkipTokenCheck || delivery.token == shown
    }

    fn acks_cumulatively(&self, delivery: &DeliveryState, owner: &OwnerName) -> bool {
        self.0 == Fault::CumulativeAcksOthers || delivery.owner == *owner
    }

    fn is_extendable(&self, is_leased: bool) -> bool {
        self.0 == Fault::ExtendAfterExpiry || is_leased
    }

    fn expiry_counts(&self, is_oldest_unanswered: bool) -> bool {
        self.0 == Fault::EveryExpiryKills || is_oldest_unanswered
    }

    fn effect_token_matches(&self, effect: &Effect, shown: TokenClaim) -> bool {
        let matches = matches!(shown, TokenClaim::Shown(token) if Some(token) == effect.token);
        self.0 == Fault::FinishIgnoresToken || matches
    }

    fn can_finish(&self, effect: &Effect, status: EffectStatus) -> bool {
        self.0 == Fault::FinishIgnoresToken || effect.can_finish(status)
    }

    fn is_replayed(&self, effect: &Effect) -> bool {
        self.0 != Fault::BeginAfterSuccessExecutes && effect.status.is_final()
    }

    fn grant_token(&self, fresh: LeaseToken, effect: Option<&Effect>) -> LeaseToken {
        let kept = effect.and_then(|effect| effect.token).filter(|_| self.0 == Fault::TakeoverKeepsToken);
        kept.unwrap_or(fresh)
    }

    fn count(&self, counters: &mut Counters, event: &Event) {
        let before = *counters;
        counters.count(event);
        match (self.0, event) {
            (Fault::WithdrawnNotCounted, _) => counters.withdrawn = before.withdrawn,
            (Fault::CompletedAckNotCounted, Event::Completed(step)) if step.outputs.is_empty() => {
                counters.acked = before.acked;
            }
            _ => {}
        }
    }

    fn counts_dead_letters(&self, event: &Event) -> bool {
        self.0 != Fault::DeadLetterCountsKept || !matches!(event, Event::TopicDeleted { .. })
    }

    fn bytes_since_snapshot(&self, read: u64) -> u64 {
        if self.0 == Fault::SnapshotBytesForgotten { 0 } else { read }
    }

    fn space_class(&self, event: &Event, class: SpaceClass) -> SpaceClass {
        match (self.0, event) {
            (Fault::AckNeedsGrowthSpace, Event::Acked { .. } | Event::CumulativelyAcked { .. }) => SpaceClass::Growth,
            (Fault::ProduceUsesReserve, Event::Produced { .. })
            | (Fault::DeliveryUsesReserve, Event::Delivered { .. }) => SpaceClass::Drain,
            _ => class,
        }
    }

    fn refused(&self, index: &mut Index, event: &Event) {
        match (self.0, event) {
            (Fault::RefusedExpiryForgotten, Event::Expired { message_ref, .. }) => {
                index.cancel_lease_timer(message_ref);
            }
            (Fault::RefusedDeliveryTakesCredit, Event::Delivered { message_ref, .. }) => {
                let consumer = index.members(message_ref.topic, message_ref.group).next();
                let Some(consumer) = consumer else { return };
                if let Some(connected) = index.consumers.get_mut(&consumer) {
                    connected.in_flight += connected.credit.prefetch().max(1);
                }
                index.refresh_credit(consumer);
            }
            _ => {}
        }
    }

    fn pause_after_refusal(&self, pause: Millis) -> Millis {
        if self.0 == Fault::PauseTooLong { Millis(60_000) } else { pause }
    }

    fn config(&self, config: PipelineConfig) -> PipelineConfig {
        let reserve_bytes = match self.0 {
            Fault::ReserveDoubled => config.reserve_bytes * 2,
            Fault::ReserveIgnored => 0,
            _ => config.reserve_bytes,
        };
        let memory_bytes = if self.0 == Fault::MemoryUnbounded { u64::MAX } else { config.memory_bytes };
        PipelineConfig { limits: self.limits(config.limits), reserve_bytes, memory_bytes, ..config }
    }

    fn snapshot(&self, state: &State) -> View {
        let mut state = state.clone();
        if self.0 == Fault::SnapshotMissesWinners {
            state.winners = Default::default();
        }
        if self.0 == Fault::SnapshotForgetsAcks {
            let topics = state.topics.values_mut().map(unshared);
            topics.flat_map(|topic| topic.groups.values_mut()).for_each(|group| unshared(group).has_acked = false);
        }
        if self.0 == Fault::SnapshotMissesInFlight {
            let topics = state.topics.values_mut().map(unshared);
            let groups = topics.flat_map(|topic| topic.groups.values_mut().map(unshared));
            for progress in groups.flat_map(|group| group.partitions.iter_mut().map(unshared)) {
                let leased =
                    |(position, delivery): (Position, &DeliveryState)| delivery.leased_until().map(|_| position);
                let leased: Vec<_> = progress.deliveries().filter_map(leased).collect();
                leased.into_iter().for_each(|position| drop(progress.remove_delivery(position)));
            }
        }
        state.view_in_chunks()
    }

    fn recovered(&self, recovered: Recovered) -> Recovered {
        files::recovered(self.0, recovered)
    }

    fn job_ops(&self, ops: Vec<IoOp>) -> Vec<IoOp> {
        files::job_ops(self.0, ops)
    }

    fn idle_mark(&self, synced: FrameNumber) -> Option<FrameNumber> {
        match self.0 {
            Fault::IdleLogNotMarked => None,
            Fault::MarkRecordsNothing => Some(FrameNumber(0)),
            _ => Some(synced),
        }
    }

    fn next_header(&self, recovered: &Recovered) -> SegmentHeader {
        let mut header = recovered.next_header();
        if self.0 == Fault::AppendAfterTornTail && recovered.has_torn_tail() {
            header.previous.frame = header.previous.frame.next();
        }
        header
    }

    fn keeps_segment(&self, state: &State, records: &Range<Lsn>, is_needed: bool) -> bool {
        match self.0 {
            Fault::LiveSegmentRemoved => false,
            Fault::SegmentFreedByUnsyncedAck => files::refers_to(state, records),
            _ => is_needed,
        }
    }

    fn is_listed(&self, older: bool, newer: bool) -> bool {
        newer || self.0 != Fault::CleanedSegmentRemoved && older
    }

    fn reports_damage(&self) -> bool {
        self.0 != Fault::CorruptionTakenForHole
    }

    fn readable_end(&self, synced: (u64, u64), written: (u64, u64)) -> (u64, u64) {
        if self.0 == Fault::UnsyncedRead { written } else { synced }
    }

    fn relocated_for(&self, state: &State, event: &Event, referrers: Vec<Referrer>) -> Vec<Referrer> {
        match self.0 {
            Fault::RelocationResurrects if referrers.is_empty() => records::acked_referrer(state, event),
            _ => referrers,
        }
    }

    fn read_attempts(&self, attempts: u32) -> u32 {
        if self.0 == Fault::ReadNotRepeated { 1 } else { attempts }
    }

    fn counts_payload(&self, image: &Image) -> bool {
        let is_dead_letter = |fields: &DecisionFields| fields.dead_letter.is_some();
        let Image::Message { fields: Some(fields), .. } = image else { return true };
        self.0 != Fault::DeadLetterNotReferring || !is_dead_letter(fields)
    }

    fn evicts_through(&self, durable: Lsn, appended: Lsn) -> Lsn {
        if self.0 == Fault::UnsyncedPayloadEvicted { appended } else { durable }
    }

    fn payload_found(&self, found: Option<Body>) -> Option<Body> {
        match self.0 {
            Fault::ReleaseBeforeRead => found.or_else(|| Some(Body::bare(&[], &[]))),
            _ => found,
        }
    }

    fn cached_as(&self, payload: PayloadId) -> PayloadId {
        let is_next = self.0 == Fault::RelocatedCachedAsNext;
        PayloadId { lsn: if is_next { payload.lsn.next() } else { payload.lsn }, ..payload }
    }

    fn read_bytes(&self, bytes: Vec<u8>, seed: CrcSeed) -> Vec<u8> {
        if self.0 == Fault::ReadChecksumIgnored { files::with_valid_checksums(bytes, seed) } else { bytes }
    }

    fn read_body(&self, event: &Event, body: Body) -> Body {
        match self.0 {
            Fault::PayloadPartIgnored => event.bodies().next().map_or(body, |(_, first)| first),
            _ => body,
        }
    }

    fn is_due_by_segments(&self, closed: usize, every: usize) -> bool {
        self.0 != Fault::SnapshotNotDueBySegments && closed >= every
    }

    fn compacts_at_rest(&self, at_rest: bool) -> bool {
        self.0 != Fault::SegmentsKeptAtRest && at_rest
    }

    fn retries_full_disk(&self) -> bool {
        self.0 != Fault::FullLogNeverReopens
    }

    fn timers_cut_short(&self, index: &mut Index, now: Timestamp) {
        if self.0 == Fault::TimersBehindBatchForgotten
            && let Some((due, timer)) = index.timers.due(now)
        {
            index.timers.cancel(due, timer);
        }
    }

    fn dispatch_cut_short(&self, index: &mut Index) {
        if self.0 == Fault::WorkBehindBatchForgotten
            && let Some((topic, group)) = index.next_work()
        {
            index.work_done(topic, group);
        }
    }

    fn limits(&self, limits: Limits) -> Limits {
        requests::limits(self.0, limits)
    }

    fn command(&self, state: &State, limits: &Limits, command: &mut Command) -> Option<Command> {
        requests::command(self.0, state, limits, command)
    }

    fn job_result(
        &self,
        result: Result<(), StorageFault>,
        retry: impl FnOnce() -> Result<(), StorageFault>,
    ) -> Result<(), StorageFault> {
        match (self.0, result) {
            (Fault::FailureIgnored, Err(_)) => Ok(()),
            (Fault::SyncRetriedAfterFailure, Err(_)) => retry(),
            (Fault::NoDescriptorFails, Err(StorageFault::NoDescriptor)) => {
                Err(StorageFault::Io("too many open files".to_owned()))
            }
            (_, result) => result,
        }
    }

    fn storage<'a, S: Storage + ?Sized>(&self, storage: &'a mut S) -> TamperedStorage<'a, S> {
        TamperedStorage::new(storage, Some(self.0))
    }
}

/// A body without its last byte.
fn truncated(body: &Body) -> Body {
    let value = body.value();
    Body::pack(&body.metadata(), body.key(), &value[..value.len().saturating_sub(1).max(1)])
}

/// A body whose delay is a time on the wall clock.
fn delayed_by_wall(state: &State, body: Body) -> Body {
    let mut meta = body.metadata();
    let Some(until) = meta.envelope.delayed_until.take() else { return body };
    meta.envelope.deliver_at = Some(state.wall_clock().wall(until));
    body.with_metadata(&meta)
}

/// The newest message of the same priority that could be delivered as well.
fn newest_like(topic: &Topic, message_ref: &MessageRef, now: Timestamp) -> Position {
    let found = topic.partition(message_ref.partition).and_then(|partition| {
        let progress = topic.group(message_ref.group)?.progress(message_ref.partition)?;
        let priority = partition.message(message_ref.position)?.flags().priority;
        let is_alike = |position: Position, message: &Message| {
            let fresh = !progress.acked().contains(position) && progress.delivery(position).is_none();
            let due = message.deliver_at().max(message.delayed_until()).is_none_or(|at| at <= now);
            fresh && due && message.flags().priority == priority
        };
        partition.messages().filter(|(position, message)| is_alike(*position, message)).last()
    });
    found.map_or(message_ref.position, |(position, _)| position)
}

fn delivery<'a>(state: &'a State, message_ref: &MessageRef) -> Option<&'a DeliveryState> {
    let group = state.topic(message_ref.topic)?.group(message_ref.group)?;
    group.progress(message_ref.partition)?.delivery(message_ref.position)
}
