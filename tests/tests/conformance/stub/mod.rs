//! A small stub broker, conforming or with one defect, which the conformance suite must detect.
//!
//! It implements the specification literally, its limits included. It shares no code with the broker, has no log, and
//! "restarts" by dropping what the specification allows a broker to lose.

mod beyond;
mod broker;
mod routes;
mod store;
mod wire;

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use broker::Broker;
use driftq_tests::conformance::Restart;

/// What the stub does wrong. With defects of the in-flight limit partitions are larger, since the limit could not be
/// reached otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defect {
    None,
    HealthzNotObject,
    VersionWithoutCommit,
    TopicCreatedWith200,
    TopicListedTwice,
    UnknownFieldsAccepted,
    ErrorsWithoutCode,
    MissingFieldsAre404,
    BadJsonIs500,
    ProduceStatusWrong,
    RetryPolicyNotInQuery,
    MalformedDeadlineAccepted,
    ZeroPartitions,
    NoAllowHeader,
    WrongMethodIs404,
    UnversionedServed,
    AliasesUnknown,
    StreamIsPlainJson,
    StreamIgnoresBody,
    ItemWithoutKey,
    DefaultLeaseTooShort,
    LeaseIgnored,
    AckByAnyOwner,
    AckTwiceRefused,
    AckOfUndelivered,
    AckAnswers200,
    HigherAckFinishesLower,
    AckIgnored,
    Broadcast,
    FirstConsumerOnly,
    GroupsShareProgress,
    AttemptsConstant,
    AttemptsFromZero,
    LeasesNeverEnd,
    LastInFirstOut,
    WrongTimeoutReason,
    TimeoutReplacesReason,
    NackLosesReason,
    NackIgnored,
    BackoffIgnored,
    BackoffUncapped,
    MaxAttemptsIgnored,
    InFlightNeverFreed,
    InFlightOfAllGroups,
    RetryAfterMissing,
    OverloadReasonWrong,
    OverloadIs503,
    OverloadedButEnqueued,
    OutOfRangeAccepted,
    OverrideIgnored,
    PartitionOfKeyDrifts,
    PartitionOfKeyPerTopic,
    PartitionsReversed,
    PartitionAlwaysZero,
    EnvelopeWithoutLineage,
    EnvelopeWithoutIdentity,
    EnvelopeWithoutRouting,
    EnvelopeWithoutPolicy,
    EnvelopeAdded,
    RedeliveryWithoutEnvelope,
    LabelsDropped,
    PayloadTrimmed,
    TargetTopicIgnored,
    DeadlineIgnored,
    DeadlineAlwaysPassed,
    RoutingAdded,
    DuplicateEnqueued,
    DuplicateRefused,
    FailedProduceUsesKey,
    IdentityWithoutTopic,
    IdentityWithoutTenant,
    EmptyKeyDeduplicated,
    DeadLetterWithoutOrigin,
    DeadLetterWithoutIdentity,
    DeadLetterWithoutValue,
    DeadLetterWithoutAttempts,
    DeadLetterTooEarly,
    DeadLetterNotFinished,
    EffectDecisionWrong,
    EffectRunTwice,
    EffectScopeIgnored,
    EffectStateMissing,
    EffectFailureFinal,
    EffectResultLost,
    EffectTimestampFixed,
    EffectEmptyKeyStored,
    EffectNeverInProgress,
    EffectErrorLost,
    TopicsLostOnRestart,
    MessagesLostOnRestart,
    AcksLostOnRestart,
    OffsetsRestart,
    OffsetsDecrease,
    LastErrorAtFirstDelivery,
    BytesLimitOneLess,
    StoredTwice,
    AcksLostOnDisconnect,
    DisconnectStopsOthers,
    PurgeKeepsMessages,
    PatchForgotten,
    ConflictUnnamed,
    NameCutAtSlash,
    HistoryTrimmed,
    EphemeralGroupStays,
    ExpireIgnored,
    CumulativeAcksOne,
    CumulativeAcksOthers,
    RetryableIgnored,
    CompleteDeadLetterAcks,
    FinishDeadLetterIgnored,
    StatusKeptAsSent,
    AlreadyDoneUntold,
    BatchEndsAtBadLine,
    Base64Lossy,
    ListIgnoresStatus,
    ConfigEmpty,
    PrivateHostsRefused,
    HostsParsedLoosely,
    RefererIgnored,
    OldTokenAccepted,
}

/// A running stub.
pub(crate) struct Stub {
    addr: SocketAddr,
    broker: Arc<Broker>,
    stopped: Arc<AtomicBool>,
}

impl Stub {
    pub(crate) fn start(defect: Defect) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let addr = listener.local_addr().expect("its address");
        let (broker, stopped) = (Arc::new(Broker::new(defect)), Arc::new(AtomicBool::new(false)));
        let (served, ended) = (Arc::clone(&broker), Arc::clone(&stopped));
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                let (Ok(socket), broker) = (socket, Arc::clone(&served)) else { continue };
                // A client may disconnect in the middle of a response.
                std::thread::spawn(move || drop(routes::serve(&broker, &socket)));
            }
        });
        Self { addr, broker, stopped }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    pub(crate) fn restart(&self) -> Restart {
        let broker = Arc::clone(&self.broker);
        Box::new(move || {
            broker.restart();
            Ok(())
        })
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.broker.restart();
        // Wakes up the listener, which then stops.
        drop(TcpStream::connect(self.addr));
    }
}
