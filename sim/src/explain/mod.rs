//! When did it become inevitable? A life that breaks a promise is stopped at chosen steps, the world is cloned there, and each
//! clone goes its own way. The share of these [`futures`] that break the very same sentence tells how much was already decided;
//! the step from which on all of them do is where the damage was done, which may be long before anybody could see it. The
//! [slice](mod@slice) tells which steps it took.
//!
//! Everything is drawn from the number of a future. No clock is read, and the number of threads makes no difference.

pub mod futures;
pub mod slice;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::ops::ControlFlow;

use driftq_core::faults::{Fault, Faults, NoFaults, Planted};
use serde::Serialize;

use self::futures::{FutureSampler, go_on};
use self::slice::Slice;
use crate::actions::Action;
use crate::invariants::{Verdict, Violation};
use crate::panic_capture;
use crate::parallel::in_order;
use crate::run::{Run, RunOptions, replay};
use crate::setup::Setup;
use crate::trace::{Trace, ViolatedInvariant};
use crate::view::timeline::Explained;
use crate::world::{Checks, World};

/// How many futures there are unless told.
pub const FUTURES: u64 = 64;
/// Up to so many steps of a life all of them are looked at.
const ALL_UP_TO: usize = 64;
/// Of a longer one, so many, and then those around the rise.
const GRID: usize = 16;
/// How many are looked at in any case.
const POINTS_MAX: usize = 48;
/// How many futures of a world are lived on one thread, one after the other.
const TOGETHER: usize = 16;

/// How hard to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How many futures there are after every step that is looked at.
    pub futures: u64,
    /// On how many threads.
    pub jobs: NonZeroUsize,
}

/// What became of the futures after one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Point {
    /// After so many steps of the trace.
    pub after: usize,
    /// How many futures there were.
    pub futures: u64,
    /// How many broke the same promise.
    pub same: u64,
    /// How many broke another one first.
    pub another: u64,
}

impl Point {
    /// The share that broke the same promise, from 0 to 1.
    #[must_use]
    pub fn share(&self) -> f64 {
        self.same as f64 / self.futures.max(1) as f64
    }

    fn is_certain(&self) -> bool {
        self.same == self.futures
    }

    fn is_doomed(&self) -> bool {
        self.same + self.another == self.futures
    }
}

/// How it came to a broken promise.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// The promise.
    pub broken: ViolatedInvariant,
    /// What was found instead.
    pub found: String,
    /// How many steps there were, the last of which broke it.
    #[serde(rename = "steps")]
    pub actions: usize,
    /// The curve, the step after which it was inevitable and the slice, as a viewer wants them.
    #[serde(flatten)]
    pub explained: Explained,
    /// The curve in numbers.
    pub points: Vec<Point>,
    /// After so many steps every future breaks this promise or another one.
    pub doomed: usize,
    /// What it depends on, with what would have happened without each step.
    pub needed: Slice,
    /// A future that breaks a promise without the planted bug too: a finding of its own.
    #[serde(skip)]
    pub sound_breaks: Option<Box<Trace>>,
}

impl Explanation {
    /// After how many steps every future breaks the promise. At the latest that is after the last.
    #[must_use]
    pub fn inevitable(&self) -> usize {
        self.explained.inevitable.unwrap_or(self.actions)
    }
}

/// Why there is nothing to explain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotExplained {
    /// No promise is broken.
    #[error("no promise is broken: there is nothing to explain")]
    NothingBroken,
    /// The life is not the same when it is lived again.
    #[error("lived again it is another life, so its futures say nothing")]
    NotDeterministic,
}

/// A life that ends with a violation.
struct Case<'a> {
    setup: &'a Setup,
    /// All of its steps: the last breaks the promise.
    actions: &'a [Action],
    fault: Option<Fault>,
    wanted: ViolatedInvariant,
    /// Without the planted bug nothing is broken.
    is_innocent: bool,
}

impl Case<'_> {
    fn run(&self, actions: &[Action], fault: Option<Fault>) -> Run {
        replay(self.setup, actions, RunOptions { fault, ..RunOptions::default() })
    }
}

/// Explains a trace, with the planted bug that its head names.
///
/// # Errors
/// [`NotExplained`].
pub fn explain(trace: &Trace, options: Options) -> Result<Explanation, NotExplained> {
    let fault = trace.header.mutant;
    let run = trace.replay(fault);
    let violation = run.violation.as_ref().ok_or(NotExplained::NothingBroken)?;
    let mut case = Case {
        setup: &run.setup,
        actions: &run.actions,
        fault,
        wanted: ViolatedInvariant::from(violation),
        is_innocent: false,
    };
    case.is_innocent = fault.is_some() && case.run(&run.actions, None).violation.is_none();
    if run.violation != case.run(&run.actions, fault).violation {
        return Err(NotExplained::NotDeterministic);
    }
    let curve = match fault {
        None => curve(&case, NoFaults, NoFaults, options),
        Some(fault) => curve(&case, Planted(fault), NoFaults, options),
    };
    let Curve { points, sound_breaks } = curve.map_err(|_| NotExplained::NotDeterministic)?;
    let needed = slice::slice(&case);
    let last = run.actions.len();
    Ok(Explanation {
        broken: case.wanted.clone(),
        found: violation.found.clone(),
        actions: last,
        explained: Explained {
            curve: points.iter().map(|point| (point.after, point.share())).collect(),
            inevitable: Some(from_on(&points, Point::is_certain).unwrap_or(last)),
            slice: needed.needed.iter().map(|needed| needed.number).collect(),
        },
        doomed: from_on(&points, Point::is_doomed).unwrap_or(last),
        points,
        needed,
        sound_breaks,
    })
}

/// The first step from which on all that were looked at are like this.
fn from_on(points: &[Point], is: impl Fn(&Point) -> bool) -> Option<usize> {
    points.iter().rev().take_while(|point| is(point)).last().map(|point| point.after)
}

/// What became of all futures.
struct Curve {
    points: Vec<Point>,
    sound_breaks: Option<Box<Trace>>,
}

/// A world on the way, with and without the planted bug.
#[derive(Clone)]
struct Fork<F: Faults, S: Faults> {
    after: usize,
    world: World<F>,
    sound: Option<World<S>>,
}

/// How one future ended.
enum Outcome {
    /// No promise was broken.
    Whole,
    Same,
    Another,
    /// The same steps break a promise without the bug too.
    Anyway(Vec<Action>, Violation),
}

/// `sound` is the broker without the bug, for whoever doubts that it is.
fn curve<F, S>(case: &Case<'_>, faults: F, sound: S, options: Options) -> Result<Curve, Violation>
where
    F: Faults + Send,
    S: Faults + Send,
{
    let last = case.actions.len();
    let sampler = FutureSampler::new(case.actions);
    let certain = Point { after: last, futures: options.futures, same: options.futures, another: 0 };
    let mut points = BTreeMap::from([(last, certain)]);
    let mut sound_breaks: Option<Box<Trace>> = None;
    let mut next = first_look(last);
    while !next.is_empty() {
        let forks = forks(case, faults, sound, &next)?;
        // A world cannot be shared, so whoever works on some of its futures has a clone of it.
        let some = (0..options.futures).step_by(TOGETHER);
        let items = forks.into_iter().flat_map(|fork| some.clone().map(move |first| (fork.clone(), first)));
        let ends = |(fork, first): (Fork<F, S>, u64)| {
            let numbers = first..options.futures.min(first + TOGETHER as u64);
            (fork.after, numbers.map(|number| outcome(case, &sampler, &fork, number)).collect::<Vec<_>>())
        };
        in_order(options.jobs, items, ends, |(after, outcomes)| {
            let point = points.entry(after).or_insert(Point { after, ..Point::default() });
            for outcome in outcomes {
                point.futures += 1;
                match outcome {
                    Outcome::Whole => {}
                    Outcome::Same => point.same += 1,
                    Outcome::Another => point.another += 1,
                    Outcome::Anyway(actions, violation) => {
                        let trace = || Box::new(anyway(case, after, actions, &violation));
                        sound_breaks.get_or_insert_with(trace);
                    }
                }
            }
            ControlFlow::Continue(())
        });
        next = closer_look(&points);
    }
    Ok(Curve { points: points.into_values().collect(), sound_breaks })
}

/// Clones of the world along its way, after each of these numbers of steps.
fn forks<F: Faults, S: Faults>(
    case: &Case<'_>,
    faults: F,
    sound: S,
    after: &BTreeSet<usize>,
) -> Result<Vec<Fork<F, S>>, Violation> {
    let mut forks = Vec::new();
    let mut fork = || -> Verdict {
        let mut world = World::new(case.setup, faults, Checks::default())?;
        let mut sound = match case.is_innocent {
            true => Some(World::new(case.setup, sound, Checks::default())?),
            false => None,
        };
        for (taken, action) in case.actions.iter().enumerate() {
            if after.contains(&taken) {
                forks.push(Fork { after: taken, world: world.clone(), sound: sound.clone() });
            }
            if after.last().is_none_or(|last| *last <= taken) {
                break;
            }
            world.apply(action)?;
            if let Some(sound) = &mut sound {
                sound.apply(action)?;
            }
        }
        Ok(())
    };
    let lived = panic_capture::catch(&mut fork);
    lived.map_err(|said| crate::invariants::catalog::NEVER_PANICS.violated_by(said)).and_then(|verdict| verdict)?;
    Ok(forks)
}

fn outcome<F: Faults, S: Faults>(
    case: &Case<'_>,
    sampler: &FutureSampler<'_>,
    fork: &Fork<F, S>,
    number: u64,
) -> Outcome {
    let mut future = sampler.future(number, fork.after);
    let lived = go_on(&fork.world, |world| future.next(world));
    let Some(violation) = lived.violation else { return Outcome::Whole };
    if let Some(sound) = &fork.sound {
        let mut actions = lived.actions.iter();
        if let Some(violation) = go_on(sound, |_| actions.next().cloned()).violation {
            return Outcome::Anyway(lived.actions, violation);
        }
    }
    if case.wanted.is(&violation) { Outcome::Same } else { Outcome::Another }
}

/// A future that breaks a promise of the broker as it is, as a trace to be kept.
fn anyway(case: &Case<'_>, after: usize, actions: Vec<Action>, violation: &Violation) -> Trace {
    let mut run = case.run(&[], None);
    run.actions = case.actions[..after].iter().cloned().chain(actions).collect();
    run.violation = Some(violation.clone());
    Trace::of(&run, None, None)
}

/// Every step of a short life; of a long one, a few far apart.
fn first_look(last: usize) -> BTreeSet<usize> {
    match last <= ALL_UP_TO {
        true => (0..last).collect(),
        false => (0..GRID).map(|nth| nth * last / GRID).chain([last - 1]).collect(),
    }
}

/// Where to look next: between the last step that left a way out and the first that left none, and where the curve rises most.
fn closer_look(points: &BTreeMap<usize, Point>) -> BTreeSet<usize> {
    let known: Vec<&Point> = points.values().collect();
    if known.len() >= POINTS_MAX {
        return BTreeSet::new();
    }
    let gaps: Vec<(&Point, &Point)> = known.windows(2).map(|pair| (pair[0], pair[1])).collect();
    let edge = gaps.iter().rev().find(|(before, _)| !before.is_certain());
    let rise = |(before, behind): &(&Point, &Point)| behind.same.saturating_sub(before.same);
    let wide = gaps.iter().filter(|(before, behind)| behind.after - before.after > 1);
    let steepest = wide.filter(|gap| rise(gap) * 8 >= gap.1.futures).max_by_key(|gap| rise(gap));
    let middle = |(before, behind): &(&Point, &Point)| before.after + (behind.after - before.after) / 2;
    edge.into_iter().chain(steepest).map(middle).filter(|after| !points.contains_key(after)).collect()
}

#[cfg(test)]
mod tests;
