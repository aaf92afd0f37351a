//! Bugs on purpose. Every detector must be seen to catch one, so the core has places where a known bug can be planted.
//!
//! They enter by a type parameter: production uses [`NoFaults`], whose answer is a constant, and nothing of this is left
//! in the machine code. A simulator plants one with [`Planted`].

/// A bug that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// Outputs leave before the log has synced what they rest on.
    ReleaseBeforeSync,
    /// An ack finishes everything at or below its offset.
    HighestAckWatermark,
    /// A given lease token is not compared.
    SkipTokenCheck,
    /// The in-flight limit lets one more through.
    InFlightOffByOne,
    /// A nacked message is ready at once, whatever its policy says.
    BackoffIgnored,
    /// Replaying a delivery does not count the attempt.
    AttemptsForgottenOnReplay,
    /// Replaying a message does not remember its produce identity.
    DedupeDroppedOnReplay,
    /// A dead letter does not finish its source.
    SourceNotFinishedOnDeadLetter,
    /// A snapshot leaves out what is in flight.
    SnapshotMissesInFlight,
    /// A delayed message is open from the start.
    DelayedDeliveredEarly,
}

/// Says which bug, if any, is planted.
pub trait Faults {
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
