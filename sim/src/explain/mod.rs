//! Explains a violation: when it became inevitable, and which actions it depends on.
//!
//! A failing run is stopped after chosen actions and the world is cloned there; each clone continues on its own. The
//! share of these [`futures`] that violate the same invariant shows how much was already decided. The action from which
//! on all of them do is where the damage was done, which may be long before it was detected. The [slice](mod@slice)
//! lists the actions that the violation depends on.
//!
//! Everything is derived from the number of a future. No clock is read, and the number of threads makes no difference.

pub mod futures;
pub mod slice;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::ops::ControlFlow;

use driftq_core::faults::{Fault, Faults, NoFaults, Planted};
use serde::Serialize;

use self::futures::{FutureSampler, run_future};
use self::slice::Slice;
use crate::actions::Action;
use crate::invariants::{Verdict, Violation};
use crate::panic_capture;
use crate::parallel::in_order;
use crate::run::{Run, RunOptions, never_panics, replay};
use crate::setup::Setup;
use crate::trace::{Trace, ViolatedInvariant};
use crate::view::timeline::Explained;
use crate::world::{Checks, World};

/// The default number of futures.
pub const FUTURES: u64 = 64;
/// In a run of up to this many actions every action is examined.
const ALL_UP_TO: usize = 64;
/// In a longer one, this many at first, and then those around the rise.
const GRID: usize = 16;
/// The most examined actions of a longer run.
const POINTS_MAX: usize = 48;
/// The number of futures run one after another on one thread.
const BATCH: usize = 16;

/// The effort of an explanation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The number of futures after every examined action.
    pub futures: u64,
    /// The number of threads.
    pub jobs: NonZeroUsize,
}

/// The futures after one action.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CurvePoint {
    /// The number of actions before.
    pub after: usize,
    /// The number of futures.
    pub futures: u64,
    /// How many violated the same invariant.
    pub same: u64,
    /// How many violated another invariant first.
    pub another: u64,
}

impl CurvePoint {
    /// The share that violated the same invariant, from 0 to 1.
    #[must_use]
    pub fn share(&self) -> f64 {
        self.same as f64 / self.futures.max(1) as f64
    }

    fn is_same_in_all(&self) -> bool {
        self.same == self.futures
    }

    fn is_violated_in_all(&self) -> bool {
        self.same + self.another == self.futures
    }
}

/// The explanation of a violation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// The violated invariant.
    #[serde(rename = "broken")]
    pub violated: ViolatedInvariant,
    /// What was found.
    pub found: String,
    /// The number of actions; the last violated the invariant.
    #[serde(rename = "steps")]
    pub actions: usize,
    /// The curve, the action after which the violation was inevitable, and the slice, for the viewer.
    #[serde(flatten)]
    pub explained: Explained,
    /// The curve in numbers.
    pub points: Vec<CurvePoint>,
    /// After this many actions every future violates this or another invariant.
    pub doomed: usize,
    /// The actions it depends on, with what happens without each.
    pub needed: Slice,
    /// A future that violates an invariant without the planted bug: a finding of its own.
    #[serde(skip)]
    pub violation_without_fault: Option<Box<Trace>>,
}

impl Explanation {
    /// The number of actions after which every future violates the invariant; at the latest, all of them.
    #[must_use]
    pub fn inevitable(&self) -> usize {
        self.explained.inevitable.unwrap_or(self.actions)
    }
}

/// Why there is no explanation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotExplained {
    /// No invariant is violated.
    #[error("no invariant is violated: there is nothing to explain")]
    NoViolation,
    /// The replay differs from the run.
    #[error("the replay differs from the run: its futures do not apply to it")]
    NotDeterministic,
}

/// A run that ends with a violation.
struct Case<'a> {
    setup: &'a Setup,
    /// Its actions; the last violates the invariant.
    actions: &'a [Action],
    fault: Option<Fault>,
    wanted: ViolatedInvariant,
    /// Nothing is violated without the planted bug.
    passes_without_fault: bool,
}

impl Case<'_> {
    fn run(&self, actions: &[Action], fault: Option<Fault>) -> Run {
        replay(self.setup, actions, RunOptions { fault, ..RunOptions::default() })
    }
}

/// Explains a trace, with the planted bug named in its header.
///
/// # Errors
/// [`NotExplained`].
pub fn explain(trace: &Trace, options: Options) -> Result<Explanation, NotExplained> {
    let fault = trace.header.mutant;
    let run = trace.replay(fault);
    let violation = run.violation.as_ref().ok_or(NotExplained::NoViolation)?;
    let mut case = Case {
        setup: &run.setup,
        actions: &run.actions,
        fault,
        wanted: ViolatedInvariant::from(violation),
        passes_without_fault: false,
    };
    case.passes_without_fault = fault.is_some() && case.run(&run.actions, None).violation.is_none();
    if run.violation != case.run(&run.actions, fault).violation {
        return Err(NotExplained::NotDeterministic);
    }
    let curve = match fault {
        None => curve(&case, NoFaults, NoFaults, options),
        Some(fault) => curve(&case, Planted(fault), NoFaults, options),
    };
    let Curve { points, violation_without_fault } = curve.map_err(|_| NotExplained::NotDeterministic)?;
    let needed = slice::slice(&case);
    let last = run.actions.len();
    Ok(Explanation {
        violated: case.wanted.clone(),
        found: violation.found.clone(),
        actions: last,
        explained: Explained {
            curve: points.iter().map(|point| (point.after, point.share())).collect(),
            inevitable: Some(first_of_tail(&points, CurvePoint::is_same_in_all).unwrap_or(last)),
            slice: needed.needed.iter().map(|needed| needed.number).collect(),
        },
        doomed: first_of_tail(&points, CurvePoint::is_violated_in_all).unwrap_or(last),
        points,
        needed,
        violation_without_fault,
    })
}

/// The first examined action from which on all satisfy `is`.
fn first_of_tail(points: &[CurvePoint], is: impl Fn(&CurvePoint) -> bool) -> Option<usize> {
    points.iter().rev().take_while(|point| is(point)).last().map(|point| point.after)
}

/// All examined points.
struct Curve {
    points: Vec<CurvePoint>,
    violation_without_fault: Option<Box<Trace>>,
}

/// A clone of the world, with and without the planted bug.
#[derive(Clone)]
struct Fork<F: Faults, S: Faults> {
    after: usize,
    world: World<F>,
    without_fault: Option<World<S>>,
}

/// The result of one future.
enum FutureVerdict {
    /// No violation.
    Passed,
    Same,
    Another,
    /// The same actions violate an invariant without the bug.
    WithoutFault(Vec<Action>, Violation),
}

/// `without_fault` is the broker without the bug; a test passes a broker with it.
fn curve<F, S>(case: &Case<'_>, faults: F, without_fault: S, options: Options) -> Result<Curve, Violation>
where
    F: Faults + Send,
    S: Faults + Send,
{
    let last = case.actions.len();
    let sampler = FutureSampler::new(case.actions);
    let certain = CurvePoint { after: last, futures: options.futures, same: options.futures, another: 0 };
    let mut points = BTreeMap::from([(last, certain)]);
    let mut violation_without_fault: Option<Box<Trace>> = None;
    let mut next = initial_points(last);
    while !next.is_empty() {
        let forks = forks(case, faults, without_fault, &next)?;
        // A world cannot be shared, so each batch of futures gets a clone.
        let batches = (0..options.futures).step_by(BATCH);
        let items = forks.into_iter().flat_map(|fork| batches.clone().map(move |first| (fork.clone(), first)));
        let run_batch = |(fork, first): (Fork<F, S>, u64)| {
            let numbers = first..options.futures.min(first + BATCH as u64);
            (fork.after, numbers.map(|number| future_verdict(case, &sampler, &fork, number)).collect::<Vec<_>>())
        };
        in_order(options.jobs, items, run_batch, |(after, verdicts)| {
            let point = points.entry(after).or_insert(CurvePoint { after, ..CurvePoint::default() });
            for verdict in verdicts {
                point.futures += 1;
                match verdict {
                    FutureVerdict::Passed => {}
                    FutureVerdict::Same => point.same += 1,
                    FutureVerdict::Another => point.another += 1,
                    FutureVerdict::WithoutFault(actions, violation) => {
                        let trace = || Box::new(trace_without_fault(case, after, actions, &violation));
                        violation_without_fault.get_or_insert_with(trace);
                    }
                }
            }
            ControlFlow::Continue(())
        });
        next = refined_points(&points);
    }
    Ok(Curve { points: points.into_values().collect(), violation_without_fault })
}

/// Clones of the world after each of these numbers of actions.
fn forks<F: Faults, S: Faults>(
    case: &Case<'_>,
    faults: F,
    without_fault: S,
    after: &BTreeSet<usize>,
) -> Result<Vec<Fork<F, S>>, Violation> {
    let mut forks = Vec::new();
    let mut fork = || -> Verdict {
        let mut world = World::new(case.setup, faults, Checks::default())?;
        let mut without_fault = match case.passes_without_fault {
            true => Some(World::new(case.setup, without_fault, Checks::default())?),
            false => None,
        };
        for (executed, action) in case.actions.iter().enumerate() {
            if after.contains(&executed) {
                forks.push(Fork { after: executed, world: world.clone(), without_fault: without_fault.clone() });
            }
            if after.last().is_none_or(|last| *last <= executed) {
                break;
            }
            world.apply(action)?;
            if let Some(without_fault) = &mut without_fault {
                without_fault.apply(action)?;
            }
        }
        Ok(())
    };
    let result = panic_capture::catch(&mut fork);
    result.map_err(never_panics).and_then(|verdict| verdict)?;
    Ok(forks)
}

fn future_verdict<F: Faults, S: Faults>(
    case: &Case<'_>,
    sampler: &FutureSampler<'_>,
    fork: &Fork<F, S>,
    number: u64,
) -> FutureVerdict {
    let mut future = sampler.future(number, fork.after);
    let result = run_future(&fork.world, |world| future.next(world));
    let Some(violation) = result.violation else { return FutureVerdict::Passed };
    if let Some(without_fault) = &fork.without_fault {
        let mut actions = result.actions.iter();
        if let Some(violation) = run_future(without_fault, |_| actions.next().cloned()).violation {
            return FutureVerdict::WithoutFault(result.actions, violation);
        }
    }
    if case.wanted.is(&violation) { FutureVerdict::Same } else { FutureVerdict::Another }
}

/// A future that violates an invariant without the bug, as a trace.
fn trace_without_fault(case: &Case<'_>, after: usize, actions: Vec<Action>, violation: &Violation) -> Trace {
    let mut run = case.run(&[], None);
    run.actions = case.actions[..after].iter().cloned().chain(actions).collect();
    run.violation = Some(violation.clone());
    Trace::of(&run, None, None)
}

/// Every action of a short run; a few of a long one, evenly spaced.
fn initial_points(last: usize) -> BTreeSet<usize> {
    match last <= ALL_UP_TO {
        true => (0..last).collect(),
        false => (0..GRID).map(|nth| nth * last / GRID).chain([last - 1]).collect(),
    }
}

/// Which actions to examine next: between the last after which some future avoids the violation and the first after
/// which none does, and where the curve rises most.
fn refined_points(points: &BTreeMap<usize, CurvePoint>) -> BTreeSet<usize> {
    let known: Vec<&CurvePoint> = points.values().collect();
    if known.len() >= POINTS_MAX {
        return BTreeSet::new();
    }
    let gaps: Vec<(&CurvePoint, &CurvePoint)> = known.windows(2).map(|pair| (pair[0], pair[1])).collect();
    let last_avoidable = gaps.iter().rev().find(|(previous, _)| !previous.is_same_in_all());
    let rise = |(previous, next): &(&CurvePoint, &CurvePoint)| next.same.saturating_sub(previous.same);
    let wide = gaps.iter().filter(|(previous, next)| next.after - previous.after > 1);
    let steepest = wide.filter(|gap| rise(gap) * 8 >= gap.1.futures).max_by_key(|gap| rise(gap));
    let middle = |(previous, next): &(&CurvePoint, &CurvePoint)| previous.after + (next.after - previous.after) / 2;
    last_avoidable.into_iter().chain(steepest).map(middle).filter(|after| !points.contains_key(after)).collect()
}

#[cfg(test)]
mod tests;
