//! Rare situations that must have happened: a simulator that never meets them proves nothing about them.

macro_rules! points {
    ($($(#[$doc:meta])* $name:ident = $sentence:literal,)*) => {
        /// A situation worth meeting.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Point {
            $(#[doc = $sentence] $name,)*
        }

        impl Point {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// What happened.
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
    CrashLost = "a power loss took records that were not synced",
    CrashKept = "a power loss left records that were not synced",
    Killed = "the process alone died, and what it had written still read well",
    TornTail = "a torn tail was found and cut",
    NeverBegun = "a segment made ahead was found empty",
    CrashInBoot = "the power went while the broker was starting",
    CrashInSnapshot = "the power went while a snapshot was being written",
    CrashInRotation = "the power went between the end of a segment and the next",
    CrashInRename = "the power went after a rename and before it was durable",
    SnapshotUsed = "a start began from a snapshot",
    SegmentsRemoved = "segments that nothing needed were removed",
    ClosedCleanly = "the broker was stopped in an orderly way and found so",
    SyncFailed = "a sync failed",
    WriteFailed = "a write failed or fell short",
    SilentAfterFailure = "a command was refused because the log had failed",
    DiskFull = "a command was refused because the disk was full",
    LogBusy = "a command was refused while the log prepared room",
    FullAtBoot = "a start found no room",
    DamageDetected = "damage was noticed and the start refused",
    DamageHarmless = "damage was done to what nobody needs",
    DamageInWindow = "damage fell where nothing proves that it had been synced",
    ReadRefused = "a start met a sector it could not read, and refused",
    ClockBack = "the broker's clock was set back",
    ClockForward = "the broker's clock leapt ahead",
    LateCall = "a call arrived late, after a restart",
    CallTwice = "a call arrived twice",
    SlowReader = "a delivery's lease ended while it stood unread in a socket",
    DuplicateProduce = "a produce was answered with its first one's place",
    DuplicateAfterCrash = "that happened across a crash",
    StaleToken = "a stale token was refused",
    NotOwner = "a stranger was refused",
    LateAck = "an ack came after the lease had ended",
    AckOutOfOrder = "an ack left a gap below it",
    GapAfterCrash = "a gap below an ack was found again after a crash",
    Extended = "a lease was made longer",
    Released = "a message was given back unharmed",
    ReleasedByLeaving = "a stream's leases ended with it",
    Expired = "a lease ended in silence",
    Retried = "a message was delivered again",
    BackedOff = "a message waited for its retry",
    DeadByAttempts = "a message became a dead letter at its last attempt",
    DeadByDeadline = "a message became a dead letter past its deadline",
    DeadLetterDelivered = "a dead letter was delivered",
    Redriven = "a dead letter was made live again",
    RedrivenTwice = "a message was made live again for the second time",
    PriorityFirst = "a message overtook another by its priority",
    Delayed = "a delayed message was delivered",
    Routed = "a router's choice was followed",
    RouteSetAside = "a router's choice was set aside",
    Backpressure = "a produce was refused because the partition was full",
    DeadLettersFull = "a produce was refused because its dead letters were too many",
    IdentitiesFull = "a produce was refused because too many identities were remembered",
    IdentityExpired = "an identity left its window and was used anew",
    InFlightLimit = "a group was handed nothing more at its in-flight limit",
    NoCredit = "a group was handed nothing because nobody had credit",
    DeliveriesMax = "a stream got all the deliveries it wanted",
    Sought = "a group's progress was set",
    SoughtBack = "a message that was done came back by a seek",
    Paused = "a paused group was handed nothing",
    GroupDeleted = "a group was deleted with leases running",
    TopicDeleted = "a topic was deleted with streams connected",
    Retained = "a done message was kept",
    RetainedOut = "a done message grew too old or too many",
    TakenByNewerDelivery = "an effect was taken over by a newer delivery while its lease was running",
    TakenAfterExpiry = "an effect was taken over after its lease had ended in silence",
    Reacquired = "an effect that had failed was reacquired",
    InProgress = "an effect was not granted because somebody was running it",
    Retryable = "an effect that had failed or fallen silent was reported, not granted",
    ReplayAfterCrash = "what had come of an effect was told across a crash",
    PinnedPastWindow = "an effect outlived its window because its message could still come",
    EffectForgotten = "an effect left its window and was forgotten",
    FinishAfterAck = "an effect's end was told after the ack of its message",
    OtherOutcome = "an effect that had ended was to end otherwise, and did not",
    OtherRequest = "a key was used for another request and refused",
    Quota = "an effect was refused because its tenant had too many",
    Rerun = "an effect was run more than once",
    Skipped = "a message was done undelivered because another of its identity was",
    SkipLifted = "a message was delivered although another of its identity was done, because a group was sought",
    StepCompleted = "a step was completed with messages for the next",
    StepMadeDuplicate = "a completed step made a message that was there already",
    StepRefused = "a step was refused because there was no room for what it makes",
    StepRepeated = "a completed step was answered once more",
    StepRepeatedAfterCrash = "that happened across a crash",
    StepForgotten = "a step was completed once more after its answer was forgotten, and refused",
    ManyBatches = "a batch was decided while another was being synced",
}

/// How often each was met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coverage([u64; Point::ALL.len()]);

impl Default for Coverage {
    fn default() -> Self {
        Self([0; Point::ALL.len()])
    }
}

impl Coverage {
    /// It has happened.
    pub fn hit(&mut self, point: Point) {
        self.0[point as usize] += 1;
    }

    /// It has happened, if `condition`.
    pub fn hit_if(&mut self, condition: bool, point: Point) {
        self.0[point as usize] += u64::from(condition);
    }

    /// How often.
    #[must_use]
    pub fn count(&self, point: Point) -> u64 {
        self.0[point as usize]
    }

    /// Takes in what another world has met.
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }

    /// What has never happened.
    pub fn never(&self) -> impl Iterator<Item = Point> {
        Point::ALL.iter().copied().filter(|point| self.count(*point) == 0)
    }
}
