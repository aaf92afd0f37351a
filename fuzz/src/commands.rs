//! Runs of a simulated world, with every output predicted by the oracle.

use arbitrary::Unstructured;
use driftq_core::faults::Fault;
use driftq_sim::actions::Action;
use driftq_sim::run::{RunOptions, replay};
use driftq_sim::trace::Trace;

use crate::actions::{actions, setup};

/// A world from the input: its limits, then actions (requests, time, failing I/O, crashes, starts), and a drain at the
/// end.
///
/// The broker must not panic, must match the oracle's predictions, and must violate none of the simulator's invariants.
pub fn commands(data: &[u8]) {
    commands_with(data, None);
}

/// As [`commands`], with a bug planted in the broker.
///
/// # Panics
/// If an invariant is violated.
pub fn commands_with(data: &[u8], fault: Option<Fault>) {
    let mut input = Unstructured::new(data);
    let setup = setup(&mut input);
    let mut actions = actions(&mut input);
    actions.push(Action::Drain);
    let run = replay(&setup, &actions, RunOptions { fault, ..RunOptions::default() });
    if let Some(violation) = &run.violation {
        panic!("{violation}; the trace:\n{}", Trace::of(&run, None, fault).to_jsonl());
    }
}
