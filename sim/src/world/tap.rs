//! What a world says while it lives, kept for whoever wants to tell of it. Nothing is kept unless somebody listens, and
//! listening changes nothing.

use driftq_core::Output;
use driftq_core::faults::Faults;
use driftq_core::types::Ticket;

use super::World;
use crate::names::Worker;

/// Something that went between the broker and its clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TapEvent {
    /// A question reached the broker; its answer bears the same ticket, until the next start counts anew.
    Asked(Ticket),
    /// The broker gave something out.
    Said {
        /// To whom, where it is for a worker's stream.
        worker: Option<Worker>,
        /// What.
        output: Output,
    },
}

impl<F: Faults, M> World<F, M> {
    /// From now on, what goes between the broker and its clients is kept.
    pub fn listen(&mut self) {
        self.heard.get_or_insert_default();
    }

    /// What went between them since it was last asked for, in order.
    pub fn heard(&mut self) -> Vec<TapEvent> {
        self.heard.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// By how much the broker's clock is ahead of the time, in milliseconds.
    #[must_use]
    pub fn skew(&self) -> i64 {
        self.skew
    }

    pub(super) fn hear(&mut self, output: &Output) {
        if let Some(heard) = &mut self.heard {
            let worker = match output {
                Output::Deliver { consumer, .. } | Output::Closed { consumer, .. } => self.network.reader_of(*consumer),
                Output::Reply { .. } => None,
            };
            heard.push(TapEvent::Said { worker, output: output.clone() });
        }
    }
}
