//! The tap: recorded traffic between broker, clients and disk, for the viewer. It is off by default and changes no
//! behaviour.

use driftq_core::types::{Body, PayloadId, Ticket};
use driftq_core::{Command, Output};

use crate::names::Worker;

/// One event on the connections of the broker.
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
    /// A record reached the disk that carries these payloads.
    Written(Vec<(PayloadId, Body)>),
}
