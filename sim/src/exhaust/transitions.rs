//! The transitions of a small world.

use crate::actions::{Action, DeliveryRef, JobClass, Loss, NewMessage, Request, RetryPolicy, Subscription};
use crate::names::{Group, Message, Topic, Worker};

/// The only topic.
const TOPIC: Topic = Topic::new(0);

/// One transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transition {
    /// A message is sent; one with an identity may be sent again.
    Produce(u8),
    /// A worker subscribes.
    Subscribe(u8),
    /// A worker unsubscribes.
    Unsubscribe(u8),
    /// A worker settles or extends a delivery it has read.
    Settle {
        /// The worker.
        worker: u8,
        /// The message.
        message: u8,
        /// Which delivery of it, counted back from the newest.
        back: u8,
        /// The operation.
        op: SettleOp,
    },
    /// One I/O operation.
    Io(JobClass),
    /// A batch of the log: all its operations.
    Batch,
    /// Time advances to the next timeout.
    AdvanceTime(u32),
    /// The timeout handler is called.
    Wake,
    /// A crash and a start.
    Crash(Loss),
}

/// An operation on a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettleOp {
    /// Ack.
    Ack,
    /// Nack.
    Nack,
    /// Extend.
    Extend,
    /// Release.
    Release,
}

impl SettleOp {
    pub(super) const ALL: [Self; 4] = [Self::Ack, Self::Nack, Self::Extend, Self::Release];
}

/// The actions before the initial state.
pub(super) fn setup_actions() -> Vec<Action> {
    let create = Request::CreateTopic { topic: TOPIC, partitions: None, keep_ms: None, keep_bytes: None };
    // The log has written its idle mark, so nothing is due until a request arrives.
    vec![Action::Request(create), Action::FlushIo, Action::AdvanceTime { ms: 100 }, Action::Wake, Action::FlushIo]
}

impl Transition {
    /// The actions of a trace.
    pub(super) fn actions(self) -> impl Iterator<Item = Action> {
        let (first, then) = match self {
            Self::Produce(nth) => (Action::Request(Request::Produce(new_message(nth))), None),
            Self::Subscribe(nth) => (Action::Request(Request::Subscribe(subscription(nth))), None),
            Self::Unsubscribe(nth) => {
                (Action::Request(Request::Unsubscribe { worker: Worker(nth), keeps: false }), None)
            }
            Self::Settle { worker, message, back, op } => {
                let message = Message(u32::from(message));
                let delivery = DeliveryRef { worker: Worker(worker), message, back, ..DeliveryRef::default() };
                (Action::Request(settle_request(delivery, op)), None)
            }
            // The operations after the first follow as long as the job is in progress.
            Self::Batch => (Action::Io { class: JobClass::Log, fault: None }, None),
            Self::Io(class) => (Action::Io { class, fault: None }, None),
            Self::AdvanceTime(ms) => (Action::AdvanceTime { ms }, None),
            Self::Wake => (Action::Wake, None),
            Self::Crash(loss) => (Action::Crash { loss }, Some(Action::Boot)),
        };
        std::iter::once(first).chain(then)
    }
}

/// Messages with even numbers have an identity and are tried twice, with a backoff; the others are dead-lettered at the
/// first failure. They differ in length, so that they can be distinguished.
fn new_message(nth: u8) -> NewMessage {
    let has_identity = has_identity(nth);
    let policy = match has_identity {
        true => RetryPolicy { attempts: 2, backoff_ms: 20, max_backoff_ms: 20 },
        false => RetryPolicy { attempts: 1, backoff_ms: 0, max_backoff_ms: 0 },
    };
    NewMessage {
        message: Message(u32::from(nth)),
        topic: TOPIC,
        size: nth.into(),
        policy: Some(policy),
        identity: has_identity.then_some(nth + 1),
        ..NewMessage::default()
    }
}

/// Whether a message may be sent again.
pub(super) fn has_identity(nth: u8) -> bool {
    nth.is_multiple_of(2)
}

/// A stream with a prefetch of one, whose leases outlive it.
fn subscription(nth: u8) -> Subscription {
    let worker = Worker(nth);
    Subscription { worker, topic: TOPIC, group: Group(0), owner: worker, prefetch: 1, ..Subscription::default() }
}

fn settle_request(delivery: DeliveryRef, op: SettleOp) -> Request {
    match op {
        SettleOp::Ack => Request::Ack(delivery),
        SettleOp::Nack => Request::Nack { delivery, reason: 1, delay_ms: None, never: false },
        SettleOp::Extend => Request::Extend { delivery, lease_ms: None },
        SettleOp::Release => Request::Release(delivery),
    }
}
