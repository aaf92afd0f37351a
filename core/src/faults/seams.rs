//! The seams themselves, each with the correct behaviour as its default body.

use std::ops::Range;

use super::storage::TamperedStorage;
use crate::broker::{Counters, SpaceClass};
use crate::command::{Command, Produce, TokenClaim};
use crate::index::{Index, NextDispatch};
use crate::log::{CrcSeed, IoOp, Recovered, SegmentHeader, Storage, StorageFault};
use crate::pipeline::PipelineConfig;
use crate::record::{Event, Image, Record, Referrer};
use crate::reply::Output;
use crate::state::{Contradiction, Group, Load, Partition, State, Topic, View};
use crate::types::{
    Body, ConsumerId, DeliveryState, Effect, EffectStatus, FrameNumber, GroupId, IdentityKey, LeaseToken, Limits, Lsn,
    Millis, Offset, OwnerName, PayloadId, ProduceScope, Retention, Timestamp,
};

/// Where planted bugs enter. The default bodies are the production behaviour; a planted bug overrides one.
pub trait Seams: Copy {
    /// Changes the event to commit for a decision. Returns whether to commit it.
    #[inline(always)]
    fn decided(&self, state: &State, now: Timestamp, event: &mut Event) -> bool {
        let _ = (state, now, event);
        true
    }

    /// Applies a record that was just appended to the log.
    ///
    /// # Errors
    /// [`Contradiction`] if the record cannot follow from the state.
    #[inline(always)]
    fn apply(&self, state: &mut State, record: &Record) -> Result<(), Contradiction> {
        state.apply(record)
    }

    /// Applies a record read back from the log or from a snapshot.
    ///
    /// # Errors
    /// [`Contradiction`] if the record cannot follow from the state.
    #[inline(always)]
    fn replay(&self, state: &mut State, record: &Record) -> Result<(), Contradiction> {
        self.apply(state, record)
    }

    /// Applies a record and keeps the index in step with it.
    ///
    /// # Errors
    /// [`Contradiction`] if the record cannot follow from the state.
    #[inline(always)]
    fn apply_indexed(&self, state: &mut State, index: &mut Index, record: &Record) -> Result<(), Contradiction> {
        index.before_apply(state, record);
        self.apply(state, record)?;
        index.after_apply(state, record);
        Ok(())
    }

    /// A call has fired as many timers as it may.
    #[inline(always)]
    fn timers_cut_short(&self, index: &mut Index, now: Timestamp) {
        let _ = (index, now);
    }

    /// A call has dispatched as many messages as it may.
    #[inline(always)]
    fn dispatch_cut_short(&self, index: &mut Index) {
        let _ = index;
    }

    /// Whether an output that was decided at `decided_at` may leave when the log is synced through `durable`.
    #[inline(always)]
    fn is_releasable(&self, output: &Output, decided_at: Lsn, durable: Lsn) -> bool {
        let _ = output;
        decided_at <= durable
    }

    /// When the leases of outputs that were released at `now` begin to run; `decided_by` is the time of the last call
    /// before.
    #[inline(always)]
    fn released_at(&self, decided_by: Timestamp, now: Timestamp) -> Timestamp {
        let _ = decided_by;
        now
    }

    /// The next message to dispatch to a group.
    #[inline(always)]
    fn next_dispatch(
        &self,
        index: &mut Index,
        topic: &Topic,
        group: GroupId,
        in_flight_max: u32,
        now: Timestamp,
    ) -> Option<NextDispatch> {
        let _ = now;
        index.next(topic, group, in_flight_max)
    }

    /// Disconnects a consumer.
    #[inline(always)]
    fn disconnect(&self, state: &State, index: &mut Index, consumer: ConsumerId, now: Timestamp) {
        index.leave(state, consumer, now);
    }

    /// The load of a partition that backpressure counts.
    #[inline(always)]
    fn counted_load(&self, partition: &Partition) -> Load {
        partition.backlog()
    }

    /// The retention to record for a topic that was requested with `requested`.
    #[inline(always)]
    fn recorded_retention(&self, requested: Retention, defaults: Retention) -> Retention {
        requested.resolved(defaults)
    }

    /// Whether a consumer has acked a message in a group.
    #[inline(always)]
    fn has_acked(&self, group: &Group) -> bool {
        group.has_acked()
    }

    /// The scope in which the idempotency key of a produce is looked up and stored.
    #[inline(always)]
    fn produce_scope(&self, request: &Produce) -> ProduceScope {
        ProduceScope::new(&request.topic, request.envelope.target_topic.as_ref())
    }

    /// Whether a group is done with the identity of a new message.
    #[inline(always)]
    fn is_done(
        &self,
        state: &State,
        (topic, group): (&Topic, &Group),
        (body, key): (&Body, &IdentityKey),
        now: Timestamp,
    ) -> bool {
        state.is_done(topic, group, (body, key), now)
    }

    /// Whether the producer of a message that these groups skip is told that it is already done.
    #[inline(always)]
    fn is_told_done(&self, skipped: &[GroupId]) -> bool {
        !skipped.is_empty()
    }

    /// The offset below which a redrive of all selects dead letters, given the next offset of their topic.
    #[inline(always)]
    fn redrive_end(&self, next: Offset) -> Offset {
        next
    }

    /// Whether a lease token shown for a delivery is that delivery's own.
    #[inline(always)]
    fn lease_token_matches(&self, delivery: &DeliveryState, shown: LeaseToken) -> bool {
        delivery.token == shown
    }

    /// Whether a cumulative ack of `owner` acks the message of a delivery.
    #[inline(always)]
    fn acks_cumulatively(&self, delivery: &DeliveryState, owner: &OwnerName) -> bool {
        delivery.owner == *owner
    }

    /// Whether the lease of a delivery can be extended.
    #[inline(always)]
    fn is_extendable(&self, is_leased: bool) -> bool {
        is_leased
    }

    /// Whether an expiry counts towards the attempts of its message.
    #[inline(always)]
    fn expiry_counts(&self, is_oldest_unanswered: bool) -> bool {
        is_oldest_unanswered
    }

    /// Whether a token shown for an effect is its newest grant's.
    #[inline(always)]
    fn effect_token_matches(&self, effect: &Effect, shown: TokenClaim) -> bool {
        matches!(shown, TokenClaim::Shown(token) if Some(token) == effect.token)
    }

    /// Whether an effect can be finished with this status.
    #[inline(always)]
    fn can_finish(&self, effect: &Effect, status: EffectStatus) -> bool {
        effect.can_finish(status)
    }

    /// Whether a begin of this effect is answered with its stored outcome.
    #[inline(always)]
    fn is_replayed(&self, effect: &Effect) -> bool {
        effect.status.is_final()
    }

    /// The token of a grant, given a fresh one and the effect as it stands.
    #[inline(always)]
    fn grant_token(&self, fresh: LeaseToken, effect: Option<&Effect>) -> LeaseToken {
        let _ = effect;
        fresh
    }

    /// Counts a record in the metrics.
    #[inline(always)]
    fn count(&self, counters: &mut Counters, event: &Event) {
        counters.count(event);
    }

    /// Whether the dead letters of the metrics follow a record.
    #[inline(always)]
    fn counts_dead_letters(&self, event: &Event) -> bool {
        let _ = event;
        true
    }

    /// The bytes written since the last snapshot, given those that a start read behind it.
    #[inline(always)]
    fn bytes_since_snapshot(&self, read: u64) -> u64 {
        read
    }

    /// The part of the reserve that the record of an event may use, given that of its decision.
    #[inline(always)]
    fn space_class(&self, event: &Event, class: SpaceClass) -> SpaceClass {
        let _ = event;
        class
    }

    /// The log refused the record of an event.
    #[inline(always)]
    fn refused(&self, index: &mut Index, event: &Event) {
        let _ = (index, event);
    }

    /// How long timers and dispatch pause after the log refused a record of theirs.
    #[inline(always)]
    fn pause_after_refusal(&self, pause: Millis) -> Millis {
        pause
    }

    /// The state as a snapshot writes it.
    #[inline(always)]
    fn snapshot(&self, state: &State) -> View {
        state.view_in_chunks()
    }

    /// What recovery found, and which files it keeps.
    #[inline(always)]
    fn recovered(&self, recovered: Recovered) -> Recovered {
        recovered
    }

    /// The operations of a job.
    #[inline(always)]
    fn job_ops(&self, ops: Vec<IoOp>) -> Vec<IoOp> {
        ops
    }

    /// What the mark of an idle log records, given what is synced; `None` if no mark is written.
    #[inline(always)]
    fn idle_mark(&self, synced: FrameNumber) -> Option<FrameNumber> {
        Some(synced)
    }

    /// The header of the segment that continues a recovered log.
    #[inline(always)]
    fn next_header(&self, recovered: &Recovered) -> SegmentHeader {
        recovered.next_header()
    }

    /// Whether a segment with these records stays when a snapshot is complete, given whether one of the two lists it or
    /// it is being read.
    #[inline(always)]
    fn keeps_segment(&self, state: &State, records: &Range<Lsn>, is_needed: bool) -> bool {
        let _ = (state, records);
        is_needed
    }

    /// Whether one of the two snapshots lists a segment, given whether the older and the newer one does.
    #[inline(always)]
    fn is_listed(&self, older: bool, newer: bool) -> bool {
        older || newer
    }

    /// Whether records that were found damaged are reported.
    #[inline(always)]
    fn reports_damage(&self) -> bool {
        true
    }

    /// Up to where segments may be read, given where their synced and their written frames end.
    #[inline(always)]
    fn readable_end(&self, synced: (u64, u64), written: (u64, u64)) -> (u64, u64) {
        let _ = written;
        synced
    }

    /// What refers to the payload of a record that is cleaned, given what does.
    #[inline(always)]
    fn relocated_for(&self, state: &State, event: &Event, referrers: Vec<Referrer>) -> Vec<Referrer> {
        let _ = (state, event);
        referrers
    }

    /// How often the same bytes are read until they count as damaged.
    #[inline(always)]
    fn read_attempts(&self, attempts: u32) -> u32 {
        attempts
    }

    /// Whether the payload of an image counts as live.
    #[inline(always)]
    fn counts_payload(&self, image: &Image) -> bool {
        let _ = image;
        true
    }

    /// The record through which payloads may leave memory, given the last one that is synced and the last of all.
    #[inline(always)]
    fn evicts_through(&self, durable: Lsn, appended: Lsn) -> Lsn {
        let _ = appended;
        durable
    }

    /// What a decision finds in memory of a payload; `None` if it has to be read.
    #[inline(always)]
    fn payload_found(&self, found: Option<Body>) -> Option<Body> {
        found
    }

    /// As what a payload that was relocated to `payload` is kept in memory.
    #[inline(always)]
    fn cached_as(&self, payload: PayloadId) -> PayloadId {
        payload
    }

    /// What a read has brought of a segment.
    #[inline(always)]
    fn read_bytes(&self, bytes: Vec<u8>, seed: CrcSeed) -> Vec<u8> {
        let _ = seed;
        bytes
    }

    /// The body in a record that was read, given the one with the right number.
    #[inline(always)]
    fn read_body(&self, event: &Event, body: Body) -> Body {
        let _ = event;
        body
    }

    /// Whether a snapshot is due, given the closed segments since the last one.
    #[inline(always)]
    fn is_due_by_segments(&self, closed: usize, every: usize) -> bool {
        closed >= every
    }

    /// Whether the log of a broker at rest is compacted.
    #[inline(always)]
    fn compacts_at_rest(&self, at_rest: bool) -> bool {
        at_rest
    }

    /// Whether the creation of a segment is retried after the disk was full.
    #[inline(always)]
    fn retries_full_disk(&self) -> bool {
        true
    }

    // Around the broker: called by a simulator, never by production code.

    /// The limits the broker runs with, given those it was configured with.
    fn limits(&self, limits: Limits) -> Limits {
        limits
    }

    /// The configuration the broker is opened with, given the one it should have.
    fn config(&self, config: PipelineConfig) -> PipelineConfig {
        PipelineConfig { limits: self.limits(config.limits), ..config }
    }

    /// Changes a command before the broker gets it; returns a command that the broker gets first.
    fn command(&self, state: &State, limits: &Limits, command: &mut Command) -> Option<Command> {
        let _ = (state, limits, command);
        None
    }

    /// The result of a job as it is reported to the broker; `retry` syncs its files once more.
    ///
    /// # Errors
    /// Of the job.
    fn job_result(
        &self,
        result: Result<(), StorageFault>,
        retry: impl FnOnce() -> Result<(), StorageFault>,
    ) -> Result<(), StorageFault> {
        let _ = retry;
        result
    }

    /// The storage as the broker sees it.
    fn storage<'a, S: Storage + ?Sized>(&self, storage: &'a mut S) -> TamperedStorage<'a, S> {
        TamperedStorage::new(storage, None)
    }
}
