//! The broker process over HTTP: every route, malformed input, slow clients, faults, shutdown and restart.
#![allow(unreachable_pub)]

mod already_done;
mod batch;
mod clock;
mod complete;
mod consume;
mod damaged_payloads;
mod dead_letters;
mod descriptors;
mod durability;
mod effects;
mod faults;
mod groups;
mod guide;
mod harness;
mod hostile;
mod memory_bounds;
mod names;
mod payloads;
mod produce;
mod reactors;
mod requests;
mod router;
mod settle;
mod shutdown;
mod signals;
mod slow_readers;
mod slow_senders;
mod smoke;
mod status;
mod step_atomicity;
mod topics;
mod worker_verdicts;
