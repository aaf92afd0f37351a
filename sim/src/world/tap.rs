//! The tap: recorded traffic between broker and clients, for the viewer. It is off by default and changes no behaviour.

use driftq_core::types::Ticket;
use driftq_core::{Command, Output};

use crate::names::Worker;

/// One event on the connection between broker and clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TapEvent {
    /// A command reached the broker. Its reply carries the same ticket; tickets restart with the broker.
    Command(Ticket, Box<Command>),
    /// The broker released an output.
    Output {
        /// The worker whose stream it is for.
        worker: Option<Worker>,
        /// The output.
        output: Output,
    },
}
