//! Lives of a simulated world, with every answer predicted by the naive oracle.

use arbitrary::Unstructured;
use driftq_core::faults::Fault;
use driftq_sim::actions::Action;
use driftq_sim::run::{RunOptions, replay};
use driftq_sim::trace::Trace;

use crate::actions::{actions, setup};

/// A world by the input: its limits, then one step after the other (commands, time, I/O that fails, crashes, starts), and at the end
/// everything is drained.
///
/// The broker must never panic, must answer as the simulator's oracle predicts, and must break none of the simulator's invariants.
pub fn commands(data: &[u8]) {
    commands_with(data, None);
}

/// As [`commands`], with a bug planted in the broker.
///
/// # Panics
/// If something is wrong.
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
