//! Breadth-first search over states.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use driftq_core::faults::Faults;

use super::state::SearchState;
use super::transitions::{Transition, setup_actions};
use super::{Level, Plan, Summary, setup};
use crate::actions::{Action, Loss};
use crate::coverage::Coverage;
use crate::panic_capture;
use crate::parallel::in_order;
use crate::run::replay;
use crate::world::Fingerprint;

/// A state, by its predecessor and the transition from there.
#[derive(Clone, Copy)]
struct Node {
    predecessor: u32,
    transition: Transition,
}

/// The expansion of a state.
#[derive(Default)]
struct Expansion {
    /// The successors, each once.
    next: Vec<(Transition, Fingerprint)>,
    transitions: u64,
    crashes: u64,
    drained: bool,
    coverage: Coverage,
    /// The violation: the transition to it, if any, and the actions after that.
    violation: Option<(Option<Transition>, Vec<Action>)>,
}

pub(super) fn search<F: Faults + Send + Sync>(plan: &Plan, faults: F, mut watch: impl FnMut(&Summary)) -> Summary {
    let started = Instant::now();
    let mut summary = Summary::default();
    let start = match panic_capture::catch(|| SearchState::initial(plan.size, faults, plan.options.checks)) {
        Ok(Ok(start)) => start,
        Ok(Err(_)) | Err(_) => {
            summary.failure = Some(replay(&setup(), &setup_actions(), plan.options));
            return summary;
        }
    };
    let mut seen = HashSet::from([start.fingerprint(&mut Vec::new())]);
    // A world can be sent between threads but not shared.
    let start = Mutex::new(start);
    // The initial state has no predecessor and no transition.
    let mut nodes = vec![Node { predecessor: 0, transition: Transition::Wake }];
    let mut level = 0..1;
    summary.levels.push(Level { states: 1, ..Level::default() });
    for depth in 0..=plan.depth {
        let is_last = depth == plan.depth;
        let (mut found, mut next) = (Level::default(), Vec::new());
        let mut violation = None;
        in_order(
            plan.jobs,
            level.clone(),
            |at| {
                let initial = start.lock().unwrap_or_else(PoisonError::into_inner).clone();
                (at, expand(initial, &path(&nodes, at), Visit { number: at, is_last }))
            },
            |(at, expansion)| {
                found.transitions += expansion.transitions;
                found.crashes += expansion.crashes;
                summary.crash_states += u64::from(expansion.crashes > 0);
                summary.drained += u64::from(expansion.drained);
                summary.coverage.add(&expansion.coverage);
                for (transition, fingerprint) in expansion.next {
                    if seen.insert(fingerprint) {
                        found.states += 1;
                        next.push(Node { predecessor: at as u32, transition });
                    }
                }
                summary.elapsed = started.elapsed();
                watch(&summary);
                violation = expansion.violation.map(|(transition, last)| (at, transition, last));
                if violation.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            },
        );
        if !is_last && (found.transitions > 0 || violation.is_some()) {
            summary.levels.push(found);
        }
        if let Some((at, transition, last)) = violation {
            let start = start.into_inner().unwrap_or_else(PoisonError::into_inner);
            let actions = actions_of(start, path(&nodes, at).into_iter().chain(transition), last);
            summary.failure = Some(replay(&setup(), &actions, plan.options));
            break;
        }
        level = nodes.len()..nodes.len() + next.len();
        nodes.append(&mut next);
        if level.is_empty() && !is_last {
            summary.is_complete = true;
            break;
        }
    }
    summary.elapsed = started.elapsed();
    summary
}

/// The trace of a path from the initial state, with further actions at its end.
fn actions_of<F: Faults>(
    mut state: SearchState<F>,
    path: impl Iterator<Item = Transition>,
    last: Vec<Action>,
) -> Vec<Action> {
    let mut actions = setup_actions();
    for transition in path {
        // The last transition may be the one that violates an invariant.
        let _ = state.apply_recorded(transition, |action| actions.push(action.clone()));
    }
    actions.extend(last);
    actions
}

/// The transitions that lead to a state.
fn path(nodes: &[Node], mut at: usize) -> Vec<Transition> {
    let mut path = Vec::new();
    while at > 0 {
        path.push(nodes[at].transition);
        at = nodes[at].predecessor as usize;
    }
    path.reverse();
    path
}

/// Replays the path to a state and takes every transition from there. A path needs far less memory than a world.
fn expand<F: Faults>(mut state: SearchState<F>, path: &[Transition], visit: Visit) -> Expansion {
    let mut expansion = Expansion::default();
    let mut buffer = Vec::new();
    if path.iter().try_for_each(|transition| state.apply(*transition)).is_err() {
        // The path was taken before without a violation, so the run is not deterministic.
        expansion.violation = Some((None, Vec::new()));
        return expansion;
    }
    expansion.coverage = state.world.coverage();
    let fingerprint = state.fingerprint(&mut buffer);
    if visit.is_drained() {
        expansion.drained = true;
        if state.clone().run_actions(std::iter::once(Action::Drain)).is_err() {
            expansion.violation = Some((None, vec![Action::Drain]));
            return expansion;
        }
    }
    if visit.is_last {
        return expansion;
    }
    let mut seen = HashSet::from([fingerprint]);
    let mut last_cut = None;
    for transition in state.transitions() {
        let mut successor = state.clone();
        if successor.apply(transition).is_err() {
            expansion.violation = Some((Some(transition), Vec::new()));
            return expansion;
        }
        let is_crash = matches!(transition, Transition::Crash(_));
        let is_cut = matches!(transition, Transition::Crash(Loss::Cut { .. }));
        // Two cuts after which recovery finds the same log have the same fingerprint.
        let successor_fingerprint = match last_cut {
            Some((durable, fingerprint)) if is_cut && durable == successor.world.durable() => fingerprint,
            _ => successor.fingerprint(&mut buffer),
        };
        if is_cut {
            last_cut = Some((successor.world.durable(), successor_fingerprint));
        }
        if successor_fingerprint == fingerprint {
            continue;
        }
        expansion.transitions += 1;
        expansion.crashes += u64::from(is_crash);
        // Durable data is compared by the state it stands for, so recovery must be checked to arrive there.
        let needs_recovery_check = is_crash || successor.world.durable() > state.world.durable();
        if needs_recovery_check && successor.check_recovery().is_err() {
            expansion.violation = Some((Some(transition), vec![Action::Crash { loss: Loss::All }, Action::Boot]));
            return expansion;
        }
        if seen.insert(successor_fingerprint) {
            expansion.next.push((transition, successor_fingerprint));
        }
    }
    expansion
}

/// Draining takes longer than everything else, so one state in this many is drained.
const DRAINED_ONE_IN: usize = 16;

/// A state that is expanded.
#[derive(Clone, Copy)]
struct Visit {
    /// States are numbered in the order they are discovered, which depends on nothing but the world.
    number: usize,
    /// Whether its successors are not visited.
    is_last: bool,
}

impl Visit {
    fn is_drained(self) -> bool {
        self.number.is_multiple_of(DRAINED_ONE_IN)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::num::NonZeroUsize;

    use driftq_core::faults::NoFaults;

    use super::*;
    use crate::exhaust::Size;
    use crate::run::RunOptions;

    /// All brokers seen: their state, whether it is durable, and the next timeout.
    type Seen = BTreeSet<(u64, bool, Option<u64>)>;

    /// Takes every transition; with `explored`, only from states not in it.
    fn explore(
        state: &SearchState<NoFaults>,
        left: u32,
        explored: &mut Option<HashSet<(Fingerprint, u32)>>,
        seen: &mut Seen,
    ) {
        let fingerprint = state.fingerprint(&mut Vec::new());
        if explored.as_mut().is_some_and(|explored| !explored.insert((fingerprint, left))) {
            return;
        }
        let broker = state.world.broker().expect("a start follows every crash");
        let is_durable = broker.synced().lsn >= broker.broker().appended();
        let content = |payload| broker.broker().cached_payload(payload).map_or(0, driftq_core::Body::content_hash);
        seen.insert((broker.state().digest_by_content(content), is_durable, state.world.until_timeout()));
        for transition in state.transitions().into_iter().filter(|_| left > 0) {
            let mut successor = state.clone();
            successor.apply(transition).expect("no violation");
            explore(&successor, left - 1, explored, seen);
        }
    }

    #[test]
    fn exploring_equivalent_states_once_finds_the_same_states() {
        let size = Size { messages: 1, consumers: 1, crashes: 0, batches: false };
        let start = || SearchState::initial(size, NoFaults, Default::default()).expect("the broker starts");
        let (mut all, mut fewer) = (Seen::new(), Seen::new());
        explore(&start(), 6, &mut None, &mut all);
        let mut explored = Some(HashSet::new());
        explore(&start(), 6, &mut explored, &mut fewer);
        assert_eq!(all, fewer);
        let fingerprints: HashSet<_> = explored.into_iter().flatten().map(|(fingerprint, _)| fingerprint).collect();
        let (jobs, options) = (NonZeroUsize::MIN, RunOptions::default());
        let found = search(&Plan { size, depth: 6, jobs, options }, NoFaults, |_| {});
        assert_eq!(found.states(), fingerprints.len() as u64);
        assert!(found.failure.is_none() && found.states() > 100, "{found:?}");
    }
}
