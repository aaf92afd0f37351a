//! Bugs on purpose. Every detector must be seen to catch one, so the core has places where a known bug can be planted.
//!
//! They enter by a type parameter: production uses [`NoFaults`], whose answer is a constant, and nothing of this is left
//! in the machine code. A simulator plants one with [`Planted`].

macro_rules! faults {
    ($($name:ident $code:literal: $sentence:literal,)*) => {
        /// A bug that can be planted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Fault {
            $(#[doc = $sentence] $name,)*
        }

        impl Fault {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Its name on a command line.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $code,)*
                }
            }

            /// What it does wrong.
            #[must_use]
            pub const fn sentence(self) -> &'static str {
                match self {
                    $(Self::$name => $sentence,)*
                }
            }
        }
    };
}

faults! {
    ReleaseBeforeSync "release-before-sync": "Outputs leave before the log has synced what they rest on.",
    ReleaseRefusalsBeforeSync "release-refusals-before-sync": "Refusals leave before the log has synced what they rest on.",
    HighestAckWatermark "highest-ack-watermark": "An ack finishes everything at or below its offset.",
    SkipTokenCheck "skip-token-check": "A given lease token is not compared.",
    TokensRestartOnBoot "tokens-restart-on-boot": "Every start counts its tokens from the same beginning.",
    OffsetReusedAfterCrash "offset-reused-after-crash": "A start counts offsets on from the newest message that is kept.",
    InFlightOffByOne "in-flight-off-by-one": "The in-flight limit lets one more through.",
    AttemptsForgottenOnReplay "attempts-forgotten-on-replay": "Replaying a delivery does not count the attempt.",
    DedupeDroppedOnReplay "dedupe-dropped-on-replay": "Replaying a message does not remember its produce identity.",
    DeadLetterWrittenTwice "dead-letter-written-twice": "A dead letter is stored twice.",
    SourceNotFinishedOnDeadLetter "source-not-finished-on-dead-letter": "A dead letter does not finish its source.",
    TrimOneTooMany "trim-one-too-many": "Trimming a message takes its neighbour along.",
    SnapshotMissesInFlight "snapshot-misses-in-flight": "A snapshot leaves out what is in flight.",
    SnapshotRenamedBeforeSync "snapshot-renamed-before-sync": "A snapshot gets its name before it is synced.",
    SegmentRemovedEarly "segment-removed-early": "Old segments go before the snapshot that replaces them is durable.",
    AppendAfterTornTail "append-after-torn-tail": "A start goes on behind a torn tail as if it were whole.",
    RotTakenForTornTail "rot-taken-for-torn-tail": "Damage to synced data is cut off like a torn tail.",
    TornTailTakenForRot "torn-tail-taken-for-rot": "A torn tail is refused like damage.",
    SyncRetriedAfterFailure "sync-retried-after-failure": "A failed sync is tried again and believed.",
    FailureIgnored "failure-ignored": "After a failed write the broker goes on as if nothing had happened.",
    ApplyReadsClock "apply-reads-clock": "Applying a record looks at a clock, which has moved on when it is replayed.",
    BackoffIgnored "backoff-ignored": "A nacked message is ready at once, whatever its policy says.",
    ExpiredKeepsToken "expired-keeps-token": "An expired lease is handed out again with the old token.",
    DelayedDeliveredEarly "delayed-delivered-early": "A delayed message is open from the start.",
    PriorityBreaksOrder "priority-breaks-order": "Among messages of one priority the newest goes first.",
    PriorityIgnored "priority-ignored": "Priorities make no difference.",
    CreditLeakedOnDisconnect "credit-leaked-on-disconnect": "A stream that goes leaves its leases to the next one's account.",
    RoundRobinSkipsLast "round-robin-skips-last": "The last stream of a group never has its turn.",
    SeekKeepsAcked "seek-keeps-acked": "A seek does not bring back what was acked.",
    DeletedGroupCounted "deleted-group-counted": "What only a deleted group had left to do still counts as open.",
    RedriveLosesOrigin "redrive-loses-origin": "A redriven message does not say where it comes from.",
    RedriveSeenByAll "redrive-seen-by-all": "A redriven message is seen by every group.",
    GroupCreatedByFailedAck "group-created-by-failed-ack": "An ack for a group that is not there makes it.",
    DuplicateTakenAsNew "duplicate-taken-as-new": "A second produce of an identity is stored again.",
    ExtendAfterExpiry "extend-after-expiry": "A lease that has ended can be made longer.",
    ReleaseCountsAsFailure "release-counts-as-failure": "A clean release counts as a failure.",
    ExpiryOverwritesReason "expiry-overwrites-reason": "An expiry overwrites the reason a worker gave.",
    PauseIgnored "pause-ignored": "A paused group is served.",
    DeadlineIgnored "deadline-ignored": "A message past its deadline is delivered.",
    RetentionIgnoresAge "retention-ignores-age": "Done messages that grew too old stay.",
    BackpressureIgnoresBytes "backpressure-ignores-bytes": "A partition's bytes are not looked at.",
    PrefetchOffByOne "prefetch-off-by-one": "A stream is handed one more than its prefetch.",
    BodyTruncated "body-truncated": "A stored message loses its last byte.",
    AckNotKept "ack-not-kept": "An ack is confirmed and forgotten.",
    LeaseShorterThanTold "lease-shorter-than-told": "A worker is told of a longer lease than it has.",
    HiddenState "hidden-state": "A wait depends on how much was decided before in the same process.",
    StuckAfterExpiry "stuck-after-expiry": "A message whose lease expired waits for ever.",
    FinishIgnoresToken "finish-ignores-token": "An effect is finished whatever token is shown.",
    TakeoverKeepsToken "takeover-keeps-token": "An effect that is taken over keeps its old token.",
    HashNotCompared "hash-not-compared": "Another request under the same key is taken for the first.",
    EffectLostOnReplay "effect-lost-on-replay": "Replaying a grant does not remember the effect.",
    BeginAfterSuccessExecutes "begin-after-success-executes": "An effect that succeeded is granted again.",
    CompleteWithoutAck "complete-without-ack": "A completed step leaves its message unfinished.",
    CompleteWithoutProduce "complete-without-produce": "A completed step stores nothing.",
    TtlFromBegin "ttl-from-begin": "An effect's window begins when it is granted.",
    SkipWithoutFinish "skip-without-finish": "A message of a finished identity is passed over and never finished.",
    QuotaEvictsLive "quota-evicts-live": "A tenant at its quota loses its oldest effect to a new one.",
}

/// Says which bug, if any, is planted.
pub trait Faults: Copy {
    /// Whether `fault` is planted.
    fn planted(&self, fault: Fault) -> bool;
}

/// No bug. The only choice for production.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFaults;

impl Faults for NoFaults {
    #[inline(always)]
    fn planted(&self, _fault: Fault) -> bool {
        false
    }
}

/// Exactly one bug.
#[derive(Clone, Copy, Debug)]
pub struct Planted(pub Fault);

impl Faults for Planted {
    #[inline]
    fn planted(&self, fault: Fault) -> bool {
        self.0 == fault
    }
}
