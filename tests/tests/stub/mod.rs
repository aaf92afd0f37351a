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
    NoAllowHeader,
    WrongMethodIs404,
    UnversionedServed,
    AliasesUnknown,
    StreamIsPlainJson,
    DefaultLeaseTooShort,
    LeaseIgnored,
    AckByAnybody,
    AckTwiceRefused,
    AckAnswers200,
    HigherAckFinishesLower,
    AckForgotten,
    Broadcast,
    FirstConsumerOnly,
    GroupsShareProgress,
    AttemptsDoNotRise,
    WrongTimeoutReason,
    TimeoutReplacesReason,
    NackLosesReason,
    BackoffIgnored,
    MaxAttemptsIgnored,
    InFlightNeverFreed,
    InFlightOfAllGroups,
    RetryAfterMissing,
    OverloadUnnamed,
    OverloadedButEnqueued,
    OutOfRangeAccepted,
    OverrideIgnored,
    PartitionOfKeyDrifts,
    PartitionOfKeyPerTopic,
    PartitionsReversed,
    EnvelopeFieldDropped,
    PayloadTrimmed,
    TargetTopicIgnored,
    DeadlineIgnored,
    RoutingInvented,
    DuplicateEnqueued,
    IdentityWithoutTopic,
    IdentityWithoutTenant,
    EmptyKeyDeduplicated,
    DeadLetterWithoutOrigin,
    DeadLetterWithoutIdentity,
    EffectRunTwice,
    EffectNeverInProgress,
    EffectErrorForgotten,
    MessagesLostOnRestart,
    AcksLostOnRestart,
    OffsetsRestart,
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
