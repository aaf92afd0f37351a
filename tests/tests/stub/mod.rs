//! A small broker of our own making, honest or with one lie: what the conformance suite must be able to tell apart.
//!
//! It keeps to the letter of the specification, its limits included, and to nothing else: it shares no code with the broker, has no log, and
//! "restarts" by forgetting what the specification lets a broker forget.

mod broker;
mod routes;
mod store;
mod wire;

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use broker::Broker;
use driftq_tests::conformance::Restart;

/// What the stub does wrong. Those about its in-flight limit have larger partitions, since else nobody could reach it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
    Nothing,
    HealthzIsTerse,
    VersionWithoutCommit,
    TopicCreatedWith200,
    TopicListedTwice,
    UnknownFieldsAccepted,
    ErrorsWithoutCode,
    MissingFieldsAre404,
    BadJsonIs500,
    ProduceUnnamed,
    RetryPolicyNotInQuery,
    BadDeadlineTaken,
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
    AckByAnybody,
    AckTwiceRefused,
    AckOfUndelivered,
    AckAnswers200,
    HigherAckFinishesLower,
    AckForgotten,
    Broadcast,
    FirstConsumerOnly,
    GroupsShareProgress,
    AttemptsDoNotRise,
    AttemptsFromZero,
    LeasesNeverEnd,
    LastInFirstOut,
    WrongTimeoutReason,
    TimeoutReplacesReason,
    NackLosesReason,
    NackForgotten,
    BackoffIgnored,
    BackoffUncapped,
    MaxAttemptsIgnored,
    InFlightNeverFreed,
    InFlightOfAllGroups,
    RetryAfterMissing,
    OverloadUnnamed,
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
    EnvelopeInvented,
    RedeliveryIsBare,
    LabelsSwallowed,
    PayloadTrimmed,
    TargetTopicIgnored,
    DeadlineIgnored,
    DeadlineAlwaysPassed,
    RoutingInvented,
    DuplicateEnqueued,
    DuplicateRefused,
    FailedProduceTakesKey,
    IdentityWithoutTopic,
    IdentityWithoutTenant,
    EmptyKeyDeduplicated,
    DeadLetterWithoutOrigin,
    DeadLetterWithoutIdentity,
    DeadLetterWithoutValue,
    DeadLetterWithoutAttempts,
    DeadLetterTooEarly,
    DeadLetterNotDone,
    EffectUntold,
    EffectRunTwice,
    EffectScopeIgnored,
    EffectStateUnnamed,
    EffectFailedForGood,
    EffectResultForgotten,
    EffectUntimed,
    EffectEmptyKeyKept,
    EffectNeverInProgress,
    EffectErrorForgotten,
    TopicsLostOnRestart,
    MessagesLostOnRestart,
    AcksLostOnRestart,
    OffsetsRestart,
    OffsetsFall,
    ErrorFromTheFirst,
    BytesLimitOneLess,
    StoredTwice,
    AcksGoWithTheirStream,
    LeavingSilencesTheOthers,
}

/// A running stub.
pub(crate) struct Stub {
    addr: SocketAddr,
    broker: Arc<Broker>,
    stopped: Arc<AtomicBool>,
}

impl Stub {
    pub(crate) fn start(lie: Lie) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let addr = listener.local_addr().expect("its address");
        let (broker, stopped) = (Arc::new(Broker::new(lie)), Arc::new(AtomicBool::new(false)));
        let (served, ended) = (Arc::clone(&broker), Arc::clone(&stopped));
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                let (Ok(socket), broker) = (socket, Arc::clone(&served)) else { continue };
                // Whoever hangs up in the middle of an answer has had enough of it.
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
        // Wakes up the listener, which then sees that it is over.
        drop(TcpStream::connect(self.addr));
    }
}
