//! What can be done in a small world.

use driftq_core::faults::Faults;

use super::state::SearchState;
use crate::actions::{Action, DeliveryRef, JobClass, Loss, NewMessage, Request, RetryPolicy, Subscription};
use crate::names::{Group, Message, Topic, Worker};

/// Where everything happens.
const TOPIC: Topic = Topic::new(0);

/// One move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transition {
    /// A message is sent, or one that has an identity once more.
    Produce(u8),
    /// A worker connects.
    Subscribe(u8),
    /// It goes.
    Leave(u8),
    /// It says something about a message, by one of the deliveries it was given.
    Say {
        /// Who.
        worker: u8,
        /// About which.
        message: u8,
        /// By which delivery of it, counted back from the newest.
        back: u8,
        /// What.
        verb: SettleOp,
    },
    /// One piece of I/O.
    Io(JobClass),
    /// Time passes until the broker wants to be told.
    Pass(u32),
    /// It is told.
    Wake,
    /// The process or the machine dies, and is started.
    Crash(Loss),
}

/// What a worker can say of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettleOp {
    /// It is done.
    Ack,
    /// It has failed.
    Nack,
    /// It takes longer.
    Extend,
    /// It is given back.
    Release,
}

impl SettleOp {
    pub(super) const ALL: [Self; 4] = [Self::Ack, Self::Nack, Self::Extend, Self::Release];
}

/// What happens before anything is counted.
pub(super) fn prologue() -> Vec<Action> {
    let create = Request::CreateTopic { topic: TOPIC, partitions: None, keep_ms: None, keep_bytes: None };
    // The log has said that it is idle, so that nothing is due until somebody asks for something.
    vec![Action::Request(create), Action::FlushIo, Action::AdvanceTime { ms: 100 }, Action::Wake, Action::FlushIo]
}

impl Transition {
    /// As steps of a trace.
    pub(super) fn actions(self) -> impl Iterator<Item = Action> {
        let (first, then) = match self {
            Self::Produce(nth) => (Action::Request(Request::Produce(new_message(nth))), None),
            Self::Subscribe(nth) => (Action::Request(Request::Subscribe(stream(nth))), None),
            Self::Leave(nth) => (Action::Request(Request::Unsubscribe { worker: Worker(nth) }), None),
            Self::Say { worker, message, back, verb } => {
                let message = Message(u32::from(message));
                let delivery = DeliveryRef { worker: Worker(worker), message, back, ..DeliveryRef::default() };
                (Action::Request(said(delivery, verb)), None)
            }
            Self::Io(class) => (Action::Io { class, fault: None }, None),
            Self::Pass(ms) => (Action::AdvanceTime { ms }, None),
            Self::Wake => (Action::Wake, None),
            Self::Crash(loss) => (Action::Crash { loss }, Some(Action::Boot)),
        };
        std::iter::once(first).chain(then)
    }
}

/// The first message of two has an identity and is tried twice, with a pause; the second dies of its first failure. They differ
/// in length, so that they can be told apart wherever they are.
fn new_message(nth: u8) -> NewMessage {
    let is_first = has_identity(nth);
    let policy = match is_first {
        true => RetryPolicy { attempts: 2, backoff_ms: 20, max_backoff_ms: 20 },
        false => RetryPolicy { attempts: 1, backoff_ms: 0, max_backoff_ms: 0 },
    };
    NewMessage {
        message: Message(u32::from(nth)),
        topic: TOPIC,
        size: nth,
        policy: Some(policy),
        identity: is_first.then_some(nth + 1),
        ..NewMessage::default()
    }
}

/// Whether a message can be sent twice and is stored once.
fn has_identity(nth: u8) -> bool {
    nth.is_multiple_of(2)
}

/// One message at a time. Leases outlive the stream.
fn stream(nth: u8) -> Subscription {
    let worker = Worker(nth);
    Subscription { worker, topic: TOPIC, group: Group(0), owner: worker, prefetch: 1, ..Subscription::default() }
}

fn said(delivery: DeliveryRef, verb: SettleOp) -> Request {
    match verb {
        SettleOp::Ack => Request::Ack(delivery),
        SettleOp::Nack => Request::Nack { delivery, reason: 1, delay_ms: None },
        SettleOp::Extend => Request::Extend { delivery, lease_ms: None },
        SettleOp::Release => Request::Release(delivery),
    }
}

impl<F: Faults> SearchState<F> {
    /// What can be done here. Some of it may change nothing.
    pub(super) fn transitions(&self) -> Vec<Transition> {
        let (world, budget) = (&self.world, &self.budget);
        let network = world.network();
        let mut all = Vec::new();
        for nth in 0..self.size.messages {
            // Who has sent a message waits for the answer, and sends it again only where it is stored once.
            if !budget.has_sent(nth) || has_identity(nth) && !world.is_producing(Message(u32::from(nth))) {
                all.push(Transition::Produce(nth));
            }
        }
        for nth in 0..self.size.consumers {
            let worker = Worker(nth);
            if !network.is_connected(worker) {
                // Workers are alike: whoever comes first is the first.
                if nth == 0 || budget.has_come(nth - 1) {
                    all.push(Transition::Subscribe(nth));
                }
            } else if network.stream_of(worker).is_some() && !budget.has_left(nth) {
                all.push(Transition::Leave(nth));
            }
            if world.is_claiming(&worker.name()) {
                // It waits for an answer.
                continue;
            }
            for message in 0..self.size.messages {
                let count = network.read_by(worker).filter(|held| held.message.0 == u32::from(message)).count();
                for back in 0..count as u8 {
                    all.extend(SettleOp::ALL.map(|verb| Transition::Say { worker: nth, message, back, verb }));
                }
            }
        }
        let may_crash = budget.crashes() < self.size.crashes;
        all.push(Transition::Io(JobClass::Log));
        if may_crash {
            // Nobody but a start can tell how far the segment is that is made ahead.
            all.push(Transition::Io(JobClass::Background));
        }
        match world.until_timeout() {
            Some(0) => all.push(Transition::Wake),
            Some(wait) => all.extend(u32::try_from(wait).ok().map(Transition::Pass)),
            None => {}
        }
        if may_crash {
            let all_of_it = world.disk().unsynced_len() as u32;
            all.extend((0..=all_of_it).map(|bytes| Transition::Crash(Loss::Cut { bytes })));
            if all_of_it > 0 {
                all.push(Transition::Crash(Loss::Nothing));
            }
        }
        all
    }
}
