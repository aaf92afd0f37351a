//! Fuzz target for the broker: runs of a simulated world, with every output predicted by the oracle.

use arbitrary::Unstructured;
use driftq_core::faults::Fault;
use driftq_sim::actions::Action;
use driftq_sim::run::{RunOptions, replay};
use driftq_sim::trace::Trace;

use crate::actions::{actions, setup};

/// Runs a simulated world with limits and actions from the input (requests, time, failing I/O, crashes, boots), and a
/// drain at the end.
///
/// Checks that the broker does not panic, matches the predictions of the oracle, and violates no invariant of the
/// simulator.
pub fn commands(data: &[u8]) {
    commands_with(data, None);
}

/// [`commands`] with a bug planted in the broker.
///
/// # Panics
/// If a check fails. The message contains the trace of the run.
pub fn commands_with(data: &[u8], fault: Option<Fault>) {
    let mut input = Unstructured::new(data);
    let setup = setup(&mut input);
    let mut actions = actions(&mut input);
    actions.push(Action::Drain);
    let run = replay(&setup, &actions, RunOptions { fault, ..RunOptions::default() });
    if let Some(violation) = &run.violation {
        panic!("{violation}; trace:\n{}", Trace::of(&run, None, fault).to_jsonl());
    }
}
