//! A system in memory, whose faults the measurement must find.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::load::error::Result;
use crate::load::modes::compare::deliveries::Deliveries;
use crate::load::modes::compare::system::{Answers, Consumer, Producer, Site, System};
use crate::load::modes::compare::template::Template;

const VALUE_BYTES: u32 = 50;
/// One message in so many meets the fault.
const EVERY: u64 = 10;
/// How long an answer takes.
const PAUSE: Duration = Duration::from_millis(1);

/// What is wrong with a system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing.
    None,
    /// Messages are refused.
    Refuse,
    /// Messages are confirmed and not stored.
    LoseConfirmed,
    /// Messages are stored twice.
    StoreTwice,
    /// Values are changed.
    Damage,
    /// Acks are answered and have no effect.
    LoseAcks,
    /// Connections of producers break.
    BreakProducers,
    /// Connections of consumers break.
    BreakConsumers,
    /// Produces are not answered.
    NoAnswer,
    /// The server exits.
    Exit,
}

/// A system with one queue.
#[derive(Debug)]
pub(crate) struct Fake {
    fault: Fault,
    queue: Arc<Mutex<Queue>>,
}

#[derive(Debug, Default)]
struct Queue {
    ready: VecDeque<Vec<u8>>,
    unacked: u64,
    produced: u64,
    delivered: u64,
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fake {
    /// A system with a fault.
    pub(crate) fn new(fault: Fault) -> Self {
        Self { fault, queue: Arc::default() }
    }
}

impl System for Fake {
    type Producer = Puts;
    type Consumer = Takes;
    const HAS_BATCHES: bool = true;

    async fn start(_: &Site) -> Result<Self> {
        Ok(Self::new(Fault::None))
    }

    fn version(&self) -> String {
        "fake".to_owned()
    }

    fn settings(&self) -> String {
        "in memory".to_owned()
    }

    fn cpu(&self) -> Option<Duration> {
        None
    }

    fn exited(&mut self) -> Option<String> {
        (self.fault == Fault::Exit).then(|| "it exited".to_owned())
    }

    async fn create(&self) -> Result<String> {
        Ok("queue".to_owned())
    }

    async fn producer(&self, _: &str, batch: u32) -> Result<Puts> {
        let template = Template::new(VALUE_BYTES).value().repeated(batch);
        Ok(Puts { fault: self.fault, queue: Arc::clone(&self.queue), template })
    }

    async fn consumer(&self, _: &str, _: u32) -> Result<Takes> {
        Ok(Takes { fault: self.fault, queue: Arc::clone(&self.queue) })
    }

    async fn unacked(&self, _: &str) -> Result<u64> {
        Ok(lock(&self.queue).unacked)
    }
}

/// Puts messages into the queue.
#[derive(Debug)]
pub(crate) struct Puts {
    fault: Fault,
    queue: Arc<Mutex<Queue>>,
    template: Template,
}

impl Producer for Puts {
    async fn produce(&mut self, first: u64, answers: &mut Answers) -> io::Result<()> {
        tokio::time::sleep(if self.fault == Fault::NoAnswer { Duration::from_secs(60) } else { PAUSE }).await;
        for value in self.template.numbered(first).chunks(VALUE_BYTES as usize) {
            let mut queue = lock(&self.queue);
            queue.produced += 1;
            let copies = match (self.fault, queue.produced.is_multiple_of(EVERY)) {
                (Fault::BreakProducers, true) => return Err(io::Error::other("broken")),
                (Fault::Refuse, true) => {
                    answers.refuse("refused");
                    continue;
                }
                (Fault::LoseConfirmed, true) => 0,
                (Fault::StoreTwice, true) => 2,
                _ => 1,
            };
            answers.confirm(1);
            queue.unacked += copies;
            queue.ready.extend((0..copies).map(|_| value.to_vec()));
        }
        Ok(())
    }
}

/// Takes messages out of the queue.
#[derive(Debug)]
pub(crate) struct Takes {
    fault: Fault,
    queue: Arc<Mutex<Queue>>,
}

impl Consumer for Takes {
    async fn run(&mut self, deliveries: Arc<Deliveries>) -> io::Result<()> {
        loop {
            let Some(mut value) = lock(&self.queue).ready.pop_front() else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            let mut queue = lock(&self.queue);
            queue.delivered += 1;
            let is_met = queue.delivered.is_multiple_of(EVERY);
            match self.fault {
                Fault::BreakConsumers if is_met => return Err(io::Error::other("broken")),
                Fault::Damage if is_met => value[VALUE_BYTES as usize - 1] ^= 1,
                _ => {}
            }
            queue.unacked -= u64::from(self.fault != Fault::LoseAcks || !is_met);
            drop(queue);
            deliveries.note_delivered(&value);
            deliveries.note_acked(1);
        }
    }
}
