//! Level by level, each state once.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use driftq_core::faults::Faults;

use super::state::SearchState;
use super::transitions::{Transition, prologue};
use super::{Level, Plan, Summary, setup};
use crate::actions::{Action, Loss};
use crate::panic_capture;
use crate::parallel::in_order;
use crate::run::replay;
use crate::world::Fingerprint;

/// A state, by the way to it: the state before, and the move.
#[derive(Clone, Copy)]
struct Node {
    before: u32,
    taken: Transition,
}

/// What is to be seen from a state.
#[derive(Default)]
struct View {
    /// Where its moves lead, each place once.
    next: Vec<(Transition, Fingerprint)>,
    transitions: u64,
    crashes: u64,
    drained: bool,
    /// What breaks a promise, and by what it shows.
    wrong: Option<(Option<Transition>, Vec<Action>)>,
}

pub(super) fn search<F: Faults + Send + Sync>(plan: &Plan, faults: F, mut watch: impl FnMut(&Summary)) -> Summary {
    let begun = Instant::now();
    let mut summary = Summary::default();
    let start = match panic_capture::catch(|| SearchState::beginning(plan.size, faults, plan.options.checks)) {
        Ok(Ok(start)) => start,
        Ok(Err(_)) | Err(_) => {
            summary.failure = Some(replay(&setup(), &prologue(), plan.options));
            return summary;
        }
    };
    let mut seen = HashSet::from([start.fingerprint(&mut Vec::new())]);
    // Worlds can be handed from thread to thread, but not be looked at by several at once.
    let start = Mutex::new(start);
    // The first has no state before it, and no move is made to it.
    let mut nodes = vec![Node { before: 0, taken: Transition::Wake }];
    let mut level = 0..1;
    summary.levels.push(Level { states: 1, ..Level::default() });
    for depth in 0..=plan.depth {
        let is_last = depth == plan.depth;
        let (mut found, mut next) = (Level::default(), Vec::new());
        let mut wrong = None;
        in_order(
            plan.jobs,
            level.clone(),
            |at| {
                let here = start.lock().unwrap_or_else(PoisonError::into_inner).clone();
                (at, look(here, &way(&nodes, at), is_last))
            },
            |(at, view)| {
                found.transitions += view.transitions;
                found.crashes += view.crashes;
                summary.crash_states += u64::from(view.crashes > 0);
                summary.drained += u64::from(view.drained);
                for (taken, print) in view.next {
                    if seen.insert(print) {
                        found.states += 1;
                        next.push(Node { before: at as u32, taken });
                    }
                }
                summary.elapsed = begun.elapsed();
                watch(&summary);
                wrong = view.wrong.map(|(taken, ahead)| (at, taken, ahead));
                if wrong.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            },
        );
        if !is_last && (found.transitions > 0 || wrong.is_some()) {
            summary.levels.push(found);
        }
        if let Some((at, taken, ahead)) = wrong {
            let mut here = start.into_inner().unwrap_or_else(PoisonError::into_inner);
            let mut actions = prologue();
            for taken in way(&nodes, at).into_iter().chain(taken) {
                let _ = here.tell(taken, |action| actions.push(action.clone()));
            }
            actions.extend(ahead);
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
    summary.elapsed = begun.elapsed();
    summary
}

/// The moves that lead to a state.
fn way(nodes: &[Node], mut at: usize) -> Vec<Transition> {
    let mut way = Vec::new();
    while at > 0 {
        way.push(nodes[at].taken);
        at = nodes[at].before as usize;
    }
    way.reverse();
    way
}

/// Goes the way again, and then makes every move there is. A world takes far more room than the way to it.
fn look<F: Faults>(mut here: SearchState<F>, way: &[Transition], is_last: bool) -> View {
    let mut view = View::default();
    let mut paper = Vec::new();
    if way.iter().try_for_each(|taken| here.go(*taken)).is_err() {
        // It was gone before, and nothing was wrong: the same steps are not the same life.
        view.wrong = Some((None, Vec::new()));
        return view;
    }
    let print = here.fingerprint(&mut paper);
    if drains_here(print) {
        view.drained = true;
        if here.clone().run_actions(std::iter::once(Action::Drain)).is_err() {
            view.wrong = Some((None, vec![Action::Drain]));
            return view;
        }
    }
    if is_last {
        return view;
    }
    let mut met = HashSet::from([print]);
    let mut cut_at = None;
    for taken in here.transitions() {
        let mut there = here.clone();
        if there.go(taken).is_err() {
            view.wrong = Some((Some(taken), Vec::new()));
            return view;
        }
        let is_crash = matches!(taken, Transition::Crash(_));
        let is_cut = matches!(taken, Transition::Crash(Loss::Cut { .. }));
        // Two cuts after which as much of the log is found differ in nothing else that is in a fingerprint.
        let print_there = match cut_at {
            Some((durable, print)) if is_cut && durable == there.world.durable() => print,
            _ => there.fingerprint(&mut paper),
        };
        if is_cut {
            cut_at = Some((there.world.durable(), print_there));
        }
        if print_there == print {
            continue;
        }
        view.transitions += 1;
        view.crashes += u64::from(is_crash);
        // What is durable is compared by what it comes to, so a start must be seen to come to it.
        let is_new = is_crash || there.world.durable() > here.world.durable();
        if is_new && there.survives().is_err() {
            view.wrong = Some((Some(taken), vec![Action::Crash { loss: Loss::All }, Action::Boot]));
            return view;
        }
        if met.insert(print_there) {
            view.next.push((taken, print_there));
        }
    }
    view
}

/// Everything is worked off from one state in so many: that takes longer than all else.
const DRAINED_ONE_IN: u128 = 16;

fn drains_here(print: Fingerprint) -> bool {
    print.0.is_multiple_of(DRAINED_ONE_IN)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::num::NonZeroUsize;

    use driftq_core::faults::NoFaults;

    use super::*;
    use crate::exhaust::Size;
    use crate::run::RunOptions;

    /// What the brokers along all ways are like: their states, how much of each is durable, and when they want to be told the time.
    type Seen = BTreeSet<(u64, bool, Option<u64>)>;

    /// Goes every way, and where `met` is given only from places that are not in it.
    fn go(here: &SearchState<NoFaults>, left: u32, met: &mut Option<HashSet<(Fingerprint, u32)>>, seen: &mut Seen) {
        let print = here.fingerprint(&mut Vec::new());
        if met.as_mut().is_some_and(|met| !met.insert((print, left))) {
            return;
        }
        let broker = here.world.broker().expect("every crash is followed by a start");
        let is_durable = broker.synced() >= broker.broker().appended();
        seen.insert((broker.state().digest(), is_durable, here.world.until_timeout()));
        for taken in here.transitions().into_iter().filter(|_| left > 0) {
            let mut there = here.clone();
            there.go(taken).expect("no promise is broken");
            go(&there, left - 1, met, seen);
        }
    }

    #[test]
    fn going_on_from_one_of_two_that_meet_finds_all_that_going_on_from_both_does() {
        let size = Size { messages: 1, consumers: 1, crashes: 0 };
        let start = || SearchState::beginning(size, NoFaults, Default::default()).expect("it starts");
        let (mut all, mut fewer) = (Seen::new(), Seen::new());
        go(&start(), 6, &mut None, &mut all);
        let mut met = Some(HashSet::new());
        go(&start(), 6, &mut met, &mut fewer);
        assert_eq!(all, fewer);
        let places: HashSet<_> = met.into_iter().flatten().map(|(print, _)| print).collect();
        let (jobs, options) = (NonZeroUsize::MIN, RunOptions::default());
        let found = search(&Plan { size, depth: 6, jobs, options }, NoFaults, |_| {});
        assert_eq!(found.states(), places.len() as u64);
        assert!(found.failure.is_none() && found.states() > 100, "{found:?}");
    }
}
