//! What can be done in a small world.

use driftq_core::faults::Faults;

use super::spot::Spot;
use crate::names::{Group, Message, Topic, Worker};
use crate::steps::{Ask, JobClass, Loss, Made, Policy, Right, Step, Stream};

/// Where everything happens.
const TOPIC: Topic = Topic::live(0);

/// One move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
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
        verb: Verb,
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
pub enum Verb {
    /// It is done.
    Ack,
    /// It has failed.
    Nack,
    /// It takes longer.
    Extend,
    /// It is given back.
    Release,
}

impl Verb {
    pub(super) const ALL: [Self; 4] = [Self::Ack, Self::Nack, Self::Extend, Self::Release];
}

/// What happens before anything is counted.
pub(super) fn prologue() -> Vec<Step> {
    let create = Ask::Create { topic: TOPIC, partitions: None, keep_ms: None, keep_bytes: None };
    // The log has said that it is idle, so that nothing is due until somebody asks for something.
    vec![Step::Ask(create), Step::Settle, Step::Pass { ms: 100 }, Step::Wake, Step::Settle]
}

impl Move {
    /// As steps of a trace.
    pub(super) fn steps(self) -> impl Iterator<Item = Step> {
        let (first, then) = match self {
            Self::Produce(nth) => (Step::Ask(Ask::Produce(made(nth))), None),
            Self::Subscribe(nth) => (Step::Ask(Ask::Subscribe(stream(nth))), None),
            Self::Leave(nth) => (Step::Ask(Ask::Leave { worker: Worker(nth) }), None),
            Self::Say { worker, message, back, verb } => {
                let message = Message(u32::from(message));
                let right = Right { worker: Worker(worker), message, back, ..Right::default() };
                (Step::Ask(said(right, verb)), None)
            }
            Self::Io(class) => (Step::Io { class, fault: None }, None),
            Self::Pass(ms) => (Step::Pass { ms }, None),
            Self::Wake => (Step::Wake, None),
            Self::Crash(loss) => (Step::Crash { loss }, Some(Step::Boot)),
        };
        std::iter::once(first).chain(then)
    }
}

/// The first message of two has an identity and is tried twice, with a pause; the second dies of its first failure. They differ
/// in length, so that they can be told apart wherever they are.
fn made(nth: u8) -> Made {
    let is_first = has_identity(nth);
    let policy = match is_first {
        true => Policy { attempts: 2, backoff_ms: 20, longest_ms: 20 },
        false => Policy { attempts: 1, backoff_ms: 0, longest_ms: 0 },
    };
    Made {
        message: Message(u32::from(nth)),
        topic: TOPIC,
        size: nth,
        policy: Some(policy),
        identity: is_first.then_some(nth + 1),
        ..Made::default()
    }
}

/// Whether a message can be sent twice and is stored once.
fn has_identity(nth: u8) -> bool {
    nth.is_multiple_of(2)
}

/// One message at a time. Leases outlive the stream.
fn stream(nth: u8) -> Stream {
    let worker = Worker(nth);
    Stream { worker, topic: TOPIC, group: Group(0), owner: worker, prefetch: 1, ..Stream::default() }
}

fn said(right: Right, verb: Verb) -> Ask {
    match verb {
        Verb::Ack => Ask::Ack(right),
        Verb::Nack => Ask::Nack { right, reason: 1, delay_ms: None },
        Verb::Extend => Ask::Extend { right, lease_ms: None },
        Verb::Release => Ask::Release(right),
    }
}

impl<F: Faults> Spot<F> {
    /// What can be done here. Some of it may change nothing.
    pub(super) fn moves(&self) -> Vec<Move> {
        let (world, spent) = (&self.world, &self.spent);
        let edge = world.edge();
        let mut all = Vec::new();
        for nth in 0..self.size.messages {
            // Who has sent a message waits for the answer, and sends it again only where it is stored once.
            if !spent.has_sent(nth) || has_identity(nth) && !world.is_producing(Message(u32::from(nth))) {
                all.push(Move::Produce(nth));
            }
        }
        for nth in 0..self.size.consumers {
            let worker = Worker(nth);
            if !edge.is_connected(worker) {
                // Workers are alike: whoever comes first is the first.
                if nth == 0 || spent.has_come(nth - 1) {
                    all.push(Move::Subscribe(nth));
                }
            } else if edge.stream_of(worker).is_some() && !spent.has_left(nth) {
                all.push(Move::Leave(nth));
            }
            if world.is_claiming(&worker.name()) {
                // It waits for an answer.
                continue;
            }
            for message in 0..self.size.messages {
                let count = edge.read_by(worker).filter(|held| held.message.0 == u32::from(message)).count();
                for back in 0..count as u8 {
                    all.extend(Verb::ALL.map(|verb| Move::Say { worker: nth, message, back, verb }));
                }
            }
        }
        let may_crash = spent.crashes() < self.size.crashes;
        all.push(Move::Io(JobClass::Log));
        if may_crash {
            // Nobody but a start can tell how far the segment is that is made ahead.
            all.push(Move::Io(JobClass::Background));
        }
        match world.until_timeout() {
            Some(0) => all.push(Move::Wake),
            Some(wait) => all.extend(u32::try_from(wait).ok().map(Move::Pass)),
            None => {}
        }
        if may_crash {
            let all_of_it = world.disk().unsynced_len() as u32;
            all.extend((0..=all_of_it).map(|bytes| Move::Crash(Loss::Cut { bytes })));
            if all_of_it > 0 {
                all.push(Move::Crash(Loss::Nothing));
            }
        }
        all
    }
}
