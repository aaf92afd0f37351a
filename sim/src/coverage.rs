//! Coverage points: rare situations that a long campaign must reach. A simulator that never reaches one proves nothing
//! about it.

macro_rules! points {
    ($($(#[$doc:meta])* $name:ident = $sentence:literal,)*) => {
        /// A coverage point.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Point {
            $(#[doc = $sentence] $name,)*
        }

        impl Point {
            /// All points.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The situation.
            #[must_use]
            pub const fn sentence(self) -> &'static str {
                match self {
                    $(Self::$name => $sentence,)*
                }
            }
        }
    };
}

points! {
    CrashLost = "a crash lost unsynced records",
    CrashKept = "a crash kept unsynced records",
    Killed = "only the process died and its unsynced writes stayed readable",
    TornTail = "recovery found and cut a torn tail",
    UnusedSegment = "recovery found an unused preallocated segment",
    CrashInBoot = "a crash hit during recovery",
    CrashInSnapshot = "a crash hit while a snapshot was written",
    CrashInRotation = "a crash hit during segment rotation",
    CrashInRename = "a crash hit between a rename and its directory sync",
    SnapshotUsed = "recovery started from a snapshot",
    SegmentsRemoved = "obsolete segments were removed",
    ClosedCleanly = "recovery recognised a clean shutdown",
    SyncFailed = "a sync failed",
    WriteFailed = "a write failed or was short",
    NoDescriptor = "a file of the log could not be created for want of a descriptor",
    RefusedAfterFailure = "a command was refused because the log had failed",
    DiskFull = "a command was refused because the disk was full",
    LogBusy = "a command was refused while the log allocated space",
    StateFull = "a command was refused because the state took as much memory as it may",
    FullAtBoot = "recovery found the disk full",
    Reconfigured = "the broker was given another configuration",
    LimitLowered = "a start found more stored than its new limits allow",
    DamageDetected = "recovery detected damage and refused to start",
    DamageHarmless = "damage hit data that recovery does not need",
    DamageInWindow = "damage hit data that nothing proves to be synced",
    DamageUndone = "a start refused damage, and an operator undid it",
    SnapshotFallback = "a start fell back to the snapshot before a damaged one",
    DamageOutlived = "a broker ran on with damage to what it does not need",
    DamagedPayloads = "a start did not notice damage to payloads before its snapshot",
    DamagedTailCut = "a start cut damage in what was never synced",
    CrashInBackground = "a crash hit the background work of a log without a job",
    SlowSync = "seconds passed while the log was being synced",
    ReadRefused = "recovery hit an unreadable sector and refused to start",
    ClockBack = "the wall clock was set back",
    ClockForward = "the wall clock was set forward",
    ClockRebased = "the wall clock of a stopped broker was rebased",
    LateCall = "a request arrived after a restart",
    CallTwice = "a request arrived twice",
    SlowReader = "a lease expired while its delivery was unread in a socket",
    DuplicateProduce = "a duplicate produce returned the first offset",
    DuplicateAfterCrash = "a duplicate produce returned an offset from before a restart",
    StaleToken = "a stale token was refused",
    NotOwner = "a claim of another owner was refused",
    LateAck = "an ack arrived after its lease expired",
    AckOutOfOrder = "an ack left a gap below it",
    GapAfterCrash = "a gap below an ack was recovered",
    Extended = "a lease was extended",
    Released = "a delivery was released",
    ReleasedByUnsubscribe = "closing a stream released its leases",
    Expired = "a lease expired without ack, nack or extend",
    Retried = "a message was delivered again",
    BackedOff = "a message waited for its backoff",
    DeadByAttempts = "a message was dead-lettered at its last attempt",
    DeadByDeadline = "a message was dead-lettered past its deadline",
    DeadByWorker = "a message was dead-lettered because its worker ruled out a retry",
    DeadByFinish = "a finish of an effect dead-lettered its message",
    DeadByStep = "a failed step dead-lettered its message",
    AckedTogether = "a cumulative ack acked several messages",
    LeaseEnded = "an operator ended a lease",
    DeadLetterDelivered = "a dead letter was delivered",
    Redriven = "a dead letter was redriven",
    RedrivenTwice = "a message was redriven twice",
    PriorityFirst = "a message overtook another by priority",
    Delayed = "a delayed message was delivered",
    Routed = "a router's decision was applied",
    RouteIgnored = "a router's decision was ignored",
    Backpressure = "a produce was refused because the partition was full",
    DeadLettersFull = "a produce was refused because the dead-letter partition was full",
    IdentitiesFull = "a produce was refused because the dedupe table was full",
    IdentityExpired = "an identity was reused after its dedupe window",
    InFlightLimit = "a group reached its in-flight limit",
    NoCredit = "a group had no stream with credit",
    DeliveriesMax = "a stream reached its delivery limit",
    Sought = "a group was sought",
    PurgedLeased = "a message was purged while it was leased",
    PurgedDelayed = "a message was purged while it was delayed",
    RedriveContinued = "a redrive of all was continued after another dead letter had been stored",
    RedeliveredBySeek = "a seek redelivered an acked message",
    Paused = "a paused group received nothing",
    GroupDeleted = "a group with running leases was deleted",
    TopicDeleted = "a topic with open streams was deleted",
    Retained = "retention kept an acked message",
    RetentionExpired = "retention removed an acked message",
    TakenByNewerDelivery = "a newer delivery took over a running effect",
    TakenAfterExpiry = "an effect was taken over after its lease expired",
    Reacquired = "a failed effect was reacquired",
    InProgress = "an effect was refused because another grant was running",
    Retryable = "a failed or expired effect was reported, not granted",
    ReplayAfterCrash = "an outcome was replayed after a crash",
    PinnedPastWindow = "a pending message kept an effect past its window",
    EffectExpired = "an effect expired",
    FinishAfterAck = "an outcome was recorded after the ack of its message",
    OtherOutcome = "a conflicting outcome was refused",
    HashMismatch = "a key was refused for another request",
    Quota = "an effect was refused because its tenant was at its quota",
    Rerun = "an effect ran more than once",
    Skipped = "a produce was told that its message was already done",
    StepOutputSkipped = "a completed step was told that its output was already done",
    DeliveredThoughDone = "a message was delivered though its group had acked its identity",
    KeyInTwoScopes = "a key was accepted twice in its window, for two topics or destinations",
    StepCompleted = "a step was completed with outputs",
    StepOutputDuplicate = "a completed step produced a duplicate",
    StepRefused = "a step was refused because its outputs did not fit",
    StepRepeated = "a completed step was repeated",
    StepRepeatedAfterCrash = "a completed step was repeated after a crash",
    StepExpired = "a repeated step was refused because its reply had expired",
    Relocated = "a payload was relocated",
    RelocatedDelivered = "a relocated payload was delivered",
    Scrubbed = "a scrub ended",
    PayloadRotten = "a live payload rotted",
    PayloadLost = "a damaged payload was recorded as lost",
    LostDelivered = "a dead letter was delivered that was made because a payload was lost",
    LostPeeked = "a peek showed a message whose payload was lost",
    LostReplayed = "a replay said that its result was lost",
    RotFoundByScrub = "a scrub found the rot under a payload that was not read",
    StartedWithRot = "a broker started with rot in a segment that it did not need to read",
    LateRead = "a read of payloads was completed later than it was performed",
    ReadsReordered = "a read of payloads was completed before an earlier one",
    ReadFailed = "a read of payloads failed, and was repeated",
    ShortRead = "a read of payloads brought less than was asked for",
    GarbledRead = "a read of payloads brought a wrong bit, and the disk had the right one",
    CrashInRead = "a crash hit while payloads were being read",
    OverlappingBatches = "a batch was decided while another was being synced",
}

/// Hit counts of all points.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coverage([u64; Point::ALL.len()]);

impl Default for Coverage {
    fn default() -> Self {
        Self([0; Point::ALL.len()])
    }
}

impl Coverage {
    /// Counts a hit.
    pub fn hit(&mut self, point: Point) {
        self.0[point as usize] += 1;
    }

    /// Counts a hit if `condition` holds.
    pub fn hit_if(&mut self, condition: bool, point: Point) {
        self.0[point as usize] += u64::from(condition);
    }

    /// The hit count.
    #[must_use]
    pub fn count(&self, point: Point) -> u64 {
        self.0[point as usize]
    }

    /// Adds the counts of another world.
    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.0.iter_mut().zip(other.0) {
            *count += more;
        }
    }

    /// The points never hit.
    pub fn never(&self) -> impl Iterator<Item = Point> {
        Point::ALL.iter().copied().filter(|point| self.count(*point) == 0)
    }
}
