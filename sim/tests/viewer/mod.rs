//! Timelines of runs, the page that shows them, and that page in a real browser.

mod browser;
mod pages;
mod timelines;

use std::path::Path;

use driftq_core::faults::NoFaults;
use driftq_sim::regression;
use driftq_sim::swarm::{Profile, Swarm};
use driftq_sim::trace::Trace;
use driftq_sim::view::timeline::{Explained, Timeline};
use driftq_sim::view::timeline_of;
use driftq_sim::world::{Checks, World};

/// All kept traces, by file name.
fn kept() -> Vec<(String, Trace)> {
    regression::load(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/regressions")))
        .expect("the traces are part of the crate")
}

fn kept_as(name: &str) -> Trace {
    let found = kept().into_iter().find(|(kept, _)| kept == name);
    found.unwrap_or_else(|| panic!("{name} is not kept")).1
}

/// The timeline of eight actions that the screenshot in `docs/` shows, with its explanation.
fn eight_actions() -> Timeline {
    let trace = kept_as("mutant-skip-token-check");
    let mut timeline = timeline_of(&trace, trace.header.mutant);
    timeline.title = "mutant-skip-token-check".to_owned();
    let shares = [0.08, 0.17, 0.22, 0.47, 0.64, 0.75, 0.73, 0.88, 1.0];
    timeline.explained = Some(Explained {
        curve: shares.into_iter().enumerate().collect(),
        inevitable: Some(8),
        slice: (1..=8).collect(),
    });
    timeline
}

/// A trace of that many actions, longer than those of seeds.
fn long_trace(actions: usize) -> Trace {
    let mut swarm = Swarm::new(12, Profile::Default);
    let setup = swarm.setup().clone();
    let mut world = World::new(&setup, NoFaults, Checks { oracle: false }).expect("the broker starts");
    let mut trace = kept_as("mutant-skip-token-check");
    (trace.header.mutant, trace.header.violates, trace.header.about, trace.header.setup) = (None, None, None, setup);
    trace.actions.clear();
    for _ in 0..actions {
        let action = swarm.next(&world);
        world.apply(&action).expect("no violation");
        trace.actions.push(action);
    }
    trace
}
