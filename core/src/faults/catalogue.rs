//! The bugs that can be planted.

macro_rules! faults {
    ($($name:ident $code:literal: $description:literal,)*) => {
        /// A bug that can be planted with [`Planted`](super::Planted).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Fault {
            $(#[doc = $description] $name,)*
        }

        impl Fault {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Its name on a command line and in traces.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $code,)*
                }
            }

            /// What it does wrong.
            #[must_use]
            pub const fn description(self) -> &'static str {
                match self {
                    $(Self::$name => $description,)*
                }
            }
        }
    };
}

faults! {
    ReleaseBeforeSync "release-before-sync": "Outputs leave before the log has synced the records they depend on.",
    ReleaseRefusalsBeforeSync "release-refusals-before-sync": "Refusals leave before the log has synced the records \
        they depend on.",
    HighestAckWatermark "highest-ack-watermark": "An ack acknowledges every message at or below its offset.",
    SkipTokenCheck "skip-token-check": "A lease token shown with a claim is not compared.",
    TokensRestartOnBoot "tokens-restart-on-boot": "Every boot issues its lease tokens from the same starting point.",
    OffsetReusedAfterCrash "offset-reused-after-crash": "A boot continues offsets from the newest message still \
        stored.",
    AttemptsForgottenOnReplay "attempts-forgotten-on-replay": "Replaying a delivery does not count the attempt.",
    DedupeDroppedOnReplay "dedupe-dropped-on-replay": "Replaying a message does not restore its produce identity.",
    DeadLetterWrittenTwice "dead-letter-written-twice": "A dead letter is stored twice.",
    SourceNotFinishedOnDeadLetter "source-not-finished-on-dead-letter": "Dead-lettering a message does not finish it \
        in its source topic.",
    TrimOneTooMany "trim-one-too-many": "Trimming a message also removes the message after it.",
    SnapshotMissesInFlight "snapshot-misses-in-flight": "A snapshot leaves out messages in flight.",
    AppendAfterTornTail "append-after-torn-tail": "A boot appends after a torn tail as if it were intact.",
    ApplyReadsClock "apply-reads-clock": "Applying a record reads a clock that has advanced when the record is \
        replayed.",
    BackoffIgnored "backoff-ignored": "A failed message is ready at once, whatever its retry policy says.",
    ExpiredKeepsToken "expired-keeps-token": "A message redelivered after an expiry keeps its old lease token.",
    DelayedDeliveredEarly "delayed-delivered-early": "A delayed message is ready from the start.",
    PriorityBreaksOrder "priority-breaks-order": "Among messages of equal priority the newest is delivered first.",
    PriorityIgnored "priority-ignored": "Priorities have no effect.",
    CreditLeakedOnDisconnect "credit-leaked-on-disconnect": "A disconnected consumer's leases are charged to another \
        consumer's credit.",
    RoundRobinSkipsLast "round-robin-skips-last": "The last consumer of a group never gets a turn.",
    SeekKeepsAcked "seek-keeps-acked": "A seek does not redeliver acked messages.",
    DeletedGroupCounted "deleted-group-counted": "Messages pending only in a deleted group still count as backlog.",
    RedriveLosesOrigin "redrive-loses-origin": "A redriven message does not name its origin.",
    RedriveSeenByAll "redrive-seen-by-all": "A redriven message is visible to every group.",
    DuplicateTakenAsNew "duplicate-taken-as-new": "A second produce of an identity is stored again.",
    ExtendAfterExpiry "extend-after-expiry": "An expired lease can be extended.",
    ExhaustedRetried "exhausted-retried": "A message whose last attempt failed is retried.",
    ReleaseCountsAsFailure "release-counts-as-failure": "A release counts as a failure.",
    ExpiryOverwritesReason "expiry-overwrites-reason": "An expiry overwrites the reason given by a nack.",
    PauseIgnored "pause-ignored": "A paused group is dispatched to.",
    DeadlineIgnored "deadline-ignored": "A message past its deadline is delivered.",
    RetentionIgnoresAge "retention-ignores-age": "Acked messages older than the retention age are kept.",
    BodyTruncated "body-truncated": "A stored message loses its last byte.",
    AckNotKept "ack-not-kept": "An ack is confirmed and not recorded.",
    HiddenState "hidden-state": "A retry delay depends on how many decisions the process made before.",
    StuckAfterExpiry "stuck-after-expiry": "A message whose lease expired is never redelivered.",
    FinishIgnoresToken "finish-ignores-token": "An effect can be finished with any token.",
    TakeoverKeepsToken "takeover-keeps-token": "An effect that is taken over keeps its old token.",
    HashNotCompared "hash-not-compared": "A different request under the same key is accepted.",
    EffectLostOnReplay "effect-lost-on-replay": "Replaying a grant does not restore the effect.",
    BeginAfterSuccessExecutes "begin-after-success-executes": "An effect that succeeded is granted again.",
    CompleteWithoutAck "complete-without-ack": "Completing a step does not ack its message.",
    CompleteWithoutProduce "complete-without-produce": "Completing a step stores none of its messages.",
    TtlFromBegin "ttl-from-begin": "An effect's window starts at the grant instead of the finish.",
    SkipWithoutFlag "skip-without-flag": "A message is acked without a delivery and its producer is not told.",
    FlagWithoutSkip "flag-without-skip": "A producer is told that a message is already done, and it is delivered.",
    SkipBeforeAllGroupsDone "skip-before-all-groups-done": "A message is skipped as soon as one group has acked its \
        identity.",
    SkipOfFinishedOnly "skip-of-finished-only": "A message is skipped though its identity is only finished, not acked.",
    SkipAcrossTopics "skip-across-topics": "A message is skipped because of one that was produced to another topic.",
    SkippedCountLost "skipped-count-lost": "Replaying a skipped message does not count it.",
    GateIgnoresDestination "gate-ignores-destination": "Produces of one key to one topic are duplicates whatever their \
        target topic.",
    GateByStoredTopic "gate-by-stored-topic": "Produces of one key are duplicates if they are routed to one topic.",
    AckEffectOutlastsWindow "ack-effect-outlasts-window": "An effect that only an ack ended is remembered beyond the \
        dedupe window.",
    InFlightOffByOne "in-flight-off-by-one": "The in-flight limit admits one message too many.",
    BackpressureIgnoresBytes "backpressure-ignores-bytes": "A partition's bytes are not limited.",
    PrefetchOffByOne "prefetch-off-by-one": "A consumer is sent one message more than its prefetch.",
    GroupCreatedByFailedAck "group-created-by-failed-ack": "An ack for an unknown group creates the group.",
    QuotaEvictsLive "quota-evicts-live": "A tenant at its quota loses its oldest effect to a new one.",
    LeaseShorterThanTold "lease-shorter-than-told": "A worker is told a later end of its lease than the recorded one.",
    LeaseFromDecision "lease-from-decision": "A lease runs from the decision instead of the release of its delivery.",
    EveryExpiryKills "every-expiry-kills": "An expiry dead-letters a message behind another unanswered delivery.",
    CreditNeverShrinks "credit-never-shrinks": "A consumer whose leases expire keeps its credit.",
    WithdrawnCountsAttempt "withdrawn-counts-attempt": "A delivery that never left counts as an attempt.",
    WinnerForgotten "winner-forgotten": "The winner of a message that was delivered more than once is forgotten at \
        once.",
    WinnerOnlyAfterFailure "winner-only-after-failure": "A message counts as delivered more than once only if a \
        delivery of it failed.",
    CompleteForgetsWinner "complete-forgets-winner": "Completing a step remembers no winner.",
    WinnerNeverForgotten "winner-never-forgotten": "The memory of a winner does not end.",
    DeadLetterHasWinner "dead-letter-has-winner": "The newest delivery of a dead-lettered message counts as its \
        winner.",
    SnapshotMissesWinners "snapshot-misses-winners": "A snapshot leaves out the winners of messages.",
    WinnerOutlivesGroup "winner-outlives-group": "Deleting a group does not forget the winners of its messages.",
    SeekKeepsWinners "seek-keeps-winners": "A seek does not forget the winners of the group.",
    LeaseUnbounded "lease-unbounded": "A lease can be as short or as long as a client requests.",
    DelayUnbounded "delay-unbounded": "A delay can be as long as a client requests.",
    RedriveDropsDeadline "redrive-drops-deadline": "A redriven message has lost its deadline.",
    RedriveFollowsTail "redrive-follows-tail": "A redrive of all also moves dead letters that were stored after it was \
        asked for.",
    PurgeLeavesNewest "purge-leaves-newest": "A purge leaves the newest message of each partition.",
    PurgeTakesNext "purge-takes-next": "A purge also acks the next message of each partition, which is stored later.",
    PurgeKeepsLeases "purge-keeps-leases": "The leases of purged messages stay.",
    PurgeFencesNoLease "purge-fences-no-lease": "The worker of a purged message is told that its ack was accepted.",
    PurgeLostOnReplay "purge-lost-on-replay": "Replaying a purge does nothing, so that its messages are delivered \
        again.",
    ClockSetForwardIgnored "clock-set-forward-ignored": "A wall clock set forward is not adopted.",
    ClockSetBackIgnored "clock-set-back-ignored": "A wall clock set back does not slow wall time down.",
    ClockSetBackJumps "clock-set-back-jumps": "A wall clock set back sets wall time back at once.",
    AdjustmentLostOnReplay "adjustment-lost-on-replay": "Replaying an adjustment of the wall clock does nothing.",
    RebaseIgnored "rebase-ignored": "A rebase of the wall clock is confirmed and not recorded.",
    OffsetAppliedToDurations "offset-applied-to-durations": "The end of a lease is recorded in wall time and compared \
        in broker time.",
    DelayFollowsWall "delay-follows-wall": "A delay ends by the wall clock, also if that is set.",
    BackoffHidesDeadline "backoff-hides-deadline": "A deadline that passes during a backoff has no effect until its \
        end.",
    NameCutOnReplay "name-cut-on-replay": "Replaying the creation of a topic keeps its name only up to a slash.",
    NonRetryableRetried "non-retryable-retried": "A nack that rules out a retry is followed by one.",
    CumulativeAcksOthers "cumulative-acks-others-leases": "A cumulative ack also acks what went to other workers.",
    CumulativeSkipsIdentity "cumulative-skips-identity": "A cumulative ack does not commit the identities of its \
        messages.",
    CumulativeForgetsWinner "cumulative-forgets-winner": "A cumulative ack remembers no winners.",
    ExpireCountsNothing "expire-counts-nothing": "A lease that an operator ends does not count as a failure.",
    DeadLetterFinishUnfenced "dead-letter-finish-without-fence": "A finish dead-letters the message of a delivery that \
        is not the newest.",
    DeadLetterFinishTorn "dead-letter-finish-leaves-effect": "A finish that dead-letters a message does not finish its \
        effect.",
    FailedStepLeavesEffect "failed-step-leaves-effect": "A step that failed for good does not finish the effect of its \
        message.",
    FailedStepCommits "failed-step-commits": "A step that failed for good commits the identity of its message.",
    ListIgnoresStatus "list-ignores-status": "A list of effects contains those of every status.",
    NewGroupMissesHistory "new-group-misses-history": "A new group does not see the retained messages.",
    RetainedRefusesProduce "retained-refuses-produce": "Retained messages count against the limits of a partition.",
    RetentionDefaultNotRecorded "retention-default-not-recorded": "The default retention is not written into the \
        record of a topic.",
    RetainedBoundIgnored "retained-bound-ignored": "The memory of retained messages is not limited.",
    RetainedOutTakesAll "retained-out-takes-all": "Removing retained messages removes all of a partition.",
    DeadLettersNotRetained "dead-letters-not-retained": "A dead-letter topic retains nothing, whatever its source does.",
    PatchNotDurable "patch-not-durable": "Replaying a change of retention does nothing.",
    IdleGroupWithAcksDeleted "idle-group-with-acks-deleted": "A group that has acked is deleted once it is idle.",
    RequestedGroupDeleted "requested-group-deleted": "A group that was created by request is deleted once it is idle.",
    IdleGroupStays "idle-group-stays": "A group that no consumer returns to is never deleted.",
    EphemeralSurvives "ephemeral-survives": "An ephemeral group outlives its last consumer.",
    SnapshotForgetsAcks "snapshot-forgets-acks": "A snapshot does not say whether a group has acked.",
    SyncRetriedAfterFailure "sync-retried-after-failure": "A failed sync is retried and its success is trusted.",
    NoDescriptorFails "no-descriptor-fails": "A lack of descriptors fails the log.",
    FailureIgnored "failure-ignored": "A failed write is reported as a success.",
    SegmentRemovedEarly "segment-removed-early": "Closed segments are removed before the snapshot that replaces them \
        is durable.",
    SnapshotRenamedBeforeSync "snapshot-renamed-before-sync": "A snapshot gets its final name before it is synced.",
    RotTakenForTornTail "rot-taken-for-torn-tail": "Damage to synced data is cut off like a torn tail.",
    ClosedSegmentNotCut "closed-segment-not-cut": "A closed segment keeps the space it was created with.",
    TrimCutsLastFrame "trim-cuts-last-frame": "A closed segment is cut one byte before the end of its last frame.",
    SnapshotNotDueBySegments "snapshot-not-due-by-segments": "However many segments there are, no snapshot is due.",
    SegmentsKeptAtRest "segments-kept-at-rest": "A log at rest keeps its closed segments.",
    FullLogNeverReopens "full-log-never-reopens": "A log that was full once never creates another segment.",
    MarkRecordsNothing "mark-records-nothing": "The mark of an idle log records nothing as synced.",
    IdleLogNotMarked "idle-log-not-marked": "An idle log writes no mark.",
    DamagedSnapshotKept "damaged-snapshot-kept": "A damaged snapshot counts as one of the two that are kept.",
    DamagedSnapshotRefused "damaged-snapshot-refused": "A damaged snapshot stops the start, though an older one is \
        whole.",
    OlderSnapshotDropped "older-snapshot-dropped": "A start keeps the newest snapshot only.",
    SegmentsDroppedToNewest "segments-dropped-to-newest": "A start removes the segments that only the older snapshot \
        needs.",
    RenameNotDurable "rename-not-durable": "A snapshot counts before its final name is durable.",
    SegmentCreatedUnsynced "segment-created-unsynced": "A segment is used before its creation is durable.",
    HeaderBeforeOldSynced "header-before-old-synced": "A segment is begun before the one before it is synced.",
    FramesBeforeHeaderSynced "frames-before-header-synced": "Frames are written to a segment before its header is \
        synced.",
    TornTailTakenForRot "torn-tail-taken-for-rot": "A torn tail is refused like damage.",
    AckNeedsGrowthSpace "ack-needs-growth-space": "An ack may not use the reserve of a full log.",
    ProduceUsesReserve "produce-uses-reserve": "A produce may use the reserve of a full log.",
    DeliveryUsesReserve "delivery-uses-reserve": "A delivery may use all of the reserve of a full log.",
    ReserveDoubled "reserve-doubled": "Twice the configured reserve is kept in a full log.",
    ReserveIgnored "reserve-ignored": "A full log has no reserve.",
    RefusedExpiryForgotten "refused-expiry-forgotten": "A lease whose expiry a full log refused never expires.",
    RefusedDeliveryTakesCredit "refused-delivery-takes-credit": "A delivery that a full log refused takes credit of \
        its stream.",
    PauseTooLong "pause-too-long": "Timers and dispatch pause for a minute after a full log refused a record.",
    WithdrawnNotCounted "withdrawn-not-counted": "Withdrawn deliveries are not counted in the metrics.",
    CompletedAckNotCounted "completed-ack-not-counted": "The ack of a step without outputs is not counted in the \
        metrics.",
    DeadLetterCountsKept "dead-letter-counts-kept": "The metrics keep the dead letters of deleted topics.",
    EmptyDedupeTableKept "empty-dedupe-table-kept": "A dedupe table is kept when its last key has expired.",
    SnapshotBytesForgotten "snapshot-bytes-forgotten": "A start counts what it read from the log as written before the \
        last snapshot.",
    CoveredSegmentsKept "covered-segments-kept": "Segments that the older snapshot covers are not removed.",
    OriginChangeKeepsWatch "origin-change-keeps-watch": "A group that is created by request after it came into being \
        by consuming is still watched for idleness.",
    StaleDeadlineKept "stale-deadline-kept": "The deadline of a message stays in the index when it is acked.",
    EndedStreamKept "ended-stream-kept": "The order of a stream that ended stays in the index after its last lease.",
    LoweredLimitPurges "lowered-limit-purges": "A topic with more messages than a lowered limit allows is purged.",
    IdTooLongByOne "id-too-long-by-one": "An id may be a byte longer than its limit.",
    IdempotencyKeyTooLongByOne "idempotency-key-too-long-by-one": "An idempotency key may be a byte longer than its \
        limit.",
    KeyTooShortByOne "key-too-short-by-one": "A key as long as its limit is refused.",
    MessageTooLongByOne "message-too-long-by-one": "A message may be a byte longer than its limit.",
    MetadataTooShortByOne "metadata-too-short-by-one": "Metadata as long as its limit is refused.",
    ErrorTooShortByOne "error-too-short-by-one": "An error text as long as its limit is refused.",
    OnePartitionTooMany "one-partition-too-many": "A topic may have a partition more than its limit.",
    RedriveTakesFirstOnly "redrive-takes-first-only": "Of several dead letters to redrive, only the first is.",
    LabelsDropped "labels-dropped": "The labels of a message are not stored.",
    EmptyIdDropped "empty-id-dropped": "A run id that is empty is stored as none.",
    ListIgnoresKind "list-ignores-kind": "A list of effects of one kind of scope contains all.",
    BackoffWraps "backoff-wraps": "A backoff that was doubled more often than a number has bits is none.",
    TimersBehindBatchForgotten "timers-behind-batch-forgotten": "Of the timers that a call leaves to the next, the \
        first never fires.",
    WorkBehindBatchForgotten "work-behind-batch-forgotten": "Where a call ends amid deliveries, the group in turn gets \
        no more.",
    SnapshotWindowSkipsByte "snapshot-window-skips-byte": "A snapshot that is read in several parts lacks a byte \
        between them.",
    SegmentPartRepeated "segment-part-repeated": "A segment that is read in several parts has a byte twice between \
        them.",
    LiveSegmentRemoved "live-segment-removed": "A segment that the older snapshot covers is removed with the live \
        payloads in it.",
    ReadNotRepeated "read-not-repeated": "A read of payloads that fails once fails the log.",
    SegmentFreedByUnsyncedAck "segment-freed-by-unsynced-ack": "A segment is removed once the last message of it is \
        acked, though a crash may take the ack back.",
    DeadLetterNotReferring "dead-letter-not-referring": "A snapshot does not count the payload of a dead letter as \
        live.",
    UnsyncedPayloadEvicted "unsynced-payload-evicted": "A payload leaves memory before it is synced.",
    MemoryUnbounded "memory-unbounded": "However many payloads are in memory, none leaves it.",
    ReleaseBeforeRead "release-before-read": "A delivery leaves before the payload of its message is read.",
    ReadChecksumIgnored "read-checksum-ignored": "The checksum of a payload that is read is not compared.",
    PayloadPartIgnored "payload-part-ignored": "Of a record with several payloads, the first is taken for each.",
    HoleTakenForCorruption "hole-taken-for-corruption": "A start is refused because a segment is missing that nothing \
        refers to.",
    RelocationKeepsLsn "relocation-keeps-lsn": "A relocated payload is still looked for where it stood before.",
    RelocationMovesOne "relocation-moves-one": "Of several messages that refer to a relocated payload, only the first \
        refers to where it stands now.",
    RelocatedCachedAsNext "relocated-cached-as-next": "A relocated payload is in memory as that of the next record.",
    RelocationResurrects "relocation-resurrects": "Cleaning stores a message again that was acked before its segment \
        was read.",
    CleanedSegmentRemoved "cleaned-segment-removed": "A segment is removed once the newest snapshot does not list it, \
        though the older one does.",
    UnsyncedRead "unsynced-read": "Segments are read to their end, synced or not.",
    CorruptionTakenForHole "corruption-taken-for-hole": "Damaged records are skipped, as if nothing were there.",
}
