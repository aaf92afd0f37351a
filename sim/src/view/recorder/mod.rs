//! Lives a trace step by step, and writes down what there is to be seen.

mod timeline_step;

use std::collections::{BTreeMap, BTreeSet};

use driftq_core::Output;
use driftq_core::faults::{Fault, Faults, NoFaults, Planted};
use driftq_core::types::{LeaseToken, Ticket};

use self::timeline_step::read;
use super::diff::{Changes, Clock, Ended, changes, short, span};
use super::format;
use super::snapshot::{Snapshot, Standing, Task, name_in};
use super::timeline::{Glyph, Lease, LeaseEnd, Timeline, TimelineStep, TimelineViolation, Track, TrackKind, Unit};
use crate::actions::{Action, Request};
use crate::invariants::{Violation, catalog};
use crate::names::{Call, Message, Worker};
use crate::panic_capture;
use crate::trace::Trace;
use crate::world::{Checks, TapEvent, World};

/// The lanes there always are. Those of the workers come after them.
const PRODUCERS: usize = 0;
const BROKER: usize = 1;
const DISK: usize = 2;
const FIRST_WORKER: usize = 3;

/// Lives a trace under the given bug, with all checks, and tells it: one moment for every step up to the end, or to the broken
/// promise. The same trace gives the same story.
#[must_use]
pub fn timeline_of(trace: &Trace, fault: Option<Fault>) -> Timeline {
    match fault {
        None => Recorder::new(trace).run(trace, NoFaults, None),
        Some(fault) => Recorder::new(trace).run(trace, Planted(fault), Some(fault)),
    }
}

/// A moment that is being told. Its lanes are named, since nobody knows yet how many there will be.
#[derive(Default)]
struct Told {
    also: BTreeSet<usize>,
    outputs: Vec<String>,
    delivered: Vec<String>,
}

struct Recorder {
    /// The workers that have a lane, by name.
    workers: Vec<String>,
    steps: Vec<TimelineStep>,
    leases: Vec<Lease>,
    /// The leases that are running, by message and token.
    running: BTreeMap<(Task, LeaseToken), usize>,
    /// What was last seen of a broker that runs or ran.
    seen: Snapshot,
    /// The moment in which the broker died, while it is dead.
    died: Option<usize>,
    /// Which moment a ticket belongs to.
    tickets: BTreeMap<Ticket, usize>,
    /// Calls that the network keeps, and whether they have arrived before.
    calls: BTreeMap<Call, (Request, bool)>,
    produced: BTreeSet<Message>,
    torn: u64,
}

impl Recorder {
    fn new(trace: &Trace) -> Self {
        let mut workers = BTreeSet::new();
        for action in &trace.actions {
            match action {
                Action::Request(request) | Action::Send { request, .. } => {
                    workers.extend(format::asker(request));
                    if let Request::Subscribe(stream) = request {
                        workers.insert(stream.owner);
                    }
                }
                Action::Read { worker, .. } => drop(workers.insert(*worker)),
                Action::RunEffect(grant) => drop(workers.insert(grant.worker)),
                _ => {}
            }
        }
        Self {
            workers: workers.iter().map(Worker::to_string).collect(),
            steps: Vec::new(),
            leases: Vec::new(),
            running: BTreeMap::new(),
            seen: Snapshot::default(),
            died: None,
            tickets: BTreeMap::new(),
            calls: BTreeMap::new(),
            produced: BTreeSet::new(),
            torn: 0,
        }
    }

    fn run<F: Faults>(mut self, trace: &Trace, faults: F, fault: Option<Fault>) -> Timeline {
        let begun = panic_capture::catch(|| World::new(&trace.header.setup, faults, Checks::default()));
        let mut violation = None;
        let mut facts = facts(trace, fault);
        match begun.map_err(never_panics).and_then(|begun| begun) {
            Err(found) => violation = Some(found),
            Ok(mut world) => {
                world.enable_tap();
                self.look(&world);
                for action in &trace.actions {
                    violation = self.action(&mut world, action).err();
                    if violation.is_some() {
                        break;
                    }
                }
                let counters = world.counters();
                facts.push(("steps".to_owned(), self.steps.len().to_string()));
                facts.push(("time".to_owned(), span(counters.simulated_ms)));
                facts.push(("deliveries".to_owned(), counters.deliveries.to_string()));
                facts.push(("crashes".to_owned(), counters.crashes.to_string()));
            }
        }
        if violation.is_none() {
            facts.push(("promises".to_owned(), "all kept".to_owned()));
        }
        let step = self.steps.len().saturating_sub(1);
        let violation = violation.map(|violation| TimelineViolation {
            step,
            invariant: violation.invariant,
            sentence: violation.sentence.to_owned(),
            found: violation.found,
        });
        Timeline {
            title: format!("A life of {} steps", self.steps.len()),
            about: trace.header.about.clone().unwrap_or_default(),
            facts,
            tracks: self.tracks(),
            unit: Unit::Action,
            steps: self.steps,
            leases: self.leases,
            violation,
            explained: None,
        }
    }

    fn tracks(&self) -> Vec<Track> {
        let track = |kind, name: &str| Track { kind, name: name.to_owned() };
        let mut tracks = vec![
            track(TrackKind::Producers, "producers"),
            track(TrackKind::Broker, "broker"),
            track(TrackKind::Disk, "log and disk"),
        ];
        tracks.extend(self.workers.iter().map(|worker| track(TrackKind::Worker, worker)));
        tracks
    }

    /// The lane of a worker; one that nobody named before, such as the one that drains, gets its own.
    fn track_of(&mut self, worker: &str) -> usize {
        let known = self.workers.iter().position(|known| known == worker);
        FIRST_WORKER
            + known.unwrap_or_else(|| {
                self.workers.push(worker.to_owned());
                self.workers.len() - 1
            })
    }

    /// What there is before the first step.
    fn look<F: Faults>(&mut self, world: &World<F>) {
        if let Some(broker) = world.broker() {
            self.seen = Snapshot::of(broker);
        }
    }

    fn action<F: Faults>(&mut self, world: &mut World<F>, action: &Action) -> Result<(), Violation> {
        let events = world.counters().events;
        let mut step = self.step_of(world, action);
        let lived = panic_capture::catch(|| world.apply(action)).map_err(never_panics).and_then(|verdict| verdict);
        step.at_ms = world.elapsed();
        let clock = Clock { skew: world.skew() };
        // A broker that panicked may not bear to be looked at.
        let changed = panic_capture::catch(|| self.changed(world, clock)).unwrap_or_default();
        let told = self.listen(world.take_tap_events(), &mut step, clock);
        if let Action::Read { worker, .. } = action {
            read(world, *worker, world.counters().events - events, &mut step);
        }
        self.note_leases(&changed, clock);
        self.tell(&mut step, action, &changed, &told, world.counters().events > events);
        if self.is_torn(world, action) {
            step.glyph = Glyph::Torn;
            step.label.push_str("; a torn end of the log is cut off");
        }
        step.topics.extend(changed.topics);
        step.groups.extend(changed.groups);
        step.messages.extend(changed.messages);
        step.diff = changed.lines;
        step.outputs = told.outputs;
        let track = step.track;
        step.also.extend(told.also);
        step.also.retain(|also| *also != track);
        for names in [&mut step.topics, &mut step.groups, &mut step.messages] {
            names.sort();
            names.dedup();
        }
        step.also.sort_unstable();
        step.also.dedup();
        self.steps.push(step);
        lived
    }

    /// What was asked, answered and delivered in this step.
    fn listen(&mut self, heard: Vec<TapEvent>, step: &mut TimelineStep, clock: Clock) -> Told {
        let mut told = Told::default();
        for heard in heard {
            let (worker, output) = match heard {
                TapEvent::Command(ticket) => {
                    self.tickets.insert(ticket, self.steps.len());
                    continue;
                }
                TapEvent::Output { worker, output } => (worker, output),
            };
            // Whoever drains has no lane, unless it is left holding something.
            let known = worker.and_then(|worker| self.workers.iter().position(|known| *known == worker.to_string()));
            told.also.extend(known.map(|nth| FIRST_WORKER + nth));
            let line = match &output {
                Output::Reply { ticket, result } => {
                    let asked = self.tickets.remove(ticket).filter(|asked| *asked < self.steps.len());
                    let of = asked.and_then(|asked| self.steps.get(asked));
                    if let Some(of) = of {
                        told.also.insert(of.track);
                    }
                    let of = of.map(|of| format!(" to step {} ({})", of.number, of.label)).unwrap_or_default();
                    format!("answer{of}: {}", format::answer(result, clock))
                }
                Output::Deliver { delivery, .. } => {
                    let message = name_in(delivery.body.value());
                    told.delivered.push(match worker {
                        Some(worker) => format!("{message} goes out to {worker}"),
                        None => format!("{message} goes out"),
                    });
                    step.messages.push(message);
                    let held = self.seen.tasks.iter().find(|(_, is)| is.token() == Some(delivery.token));
                    step.topics.extend(held.map(|(task, _)| task.topic.clone()));
                    step.groups.extend(held.map(|(task, _)| task.group.clone()));
                    format::delivery(worker, delivery, clock)
                }
                Output::Closed { cause, .. } => format::closed(worker, *cause),
            };
            told.outputs.push(line);
        }
        summarise(&mut told.outputs);
        told
    }

    /// What is different from what was seen before.
    fn changed<F: Faults>(&mut self, world: &World<F>, clock: Clock) -> Changes {
        let Some(broker) = world.broker() else {
            let mut changed = Changes::default();
            if self.died.is_none() {
                self.died = Some(self.steps.len());
                changed.lines.push("the broker: running → dead".to_owned());
                let at_risk = self.seen.appended.saturating_sub(self.seen.synced);
                changed.lines.push(match at_risk {
                    0 => format!("log: reached to {}, all of it synced", self.seen.appended),
                    more => format!("log: reached to {}, {more} of it not synced", self.seen.appended),
                });
            }
            return changed;
        };
        let snapshot = Snapshot::of(broker);
        let changed = changes(&self.seen, &snapshot, clock);
        self.seen = snapshot;
        changed
    }

    fn note_leases(&mut self, changed: &Changes, clock: Clock) {
        let now = self.steps.len();
        for Ended { task, hold, end } in &changed.ended {
            let Some(nth) = self.running.remove(&(task.clone(), hold.token)) else { continue };
            let lease = &mut self.leases[nth];
            lease.end = *end;
            // What a crash undid was over when the broker died, though it took a start to see it.
            let died = self.died.filter(|died| *end == LeaseEnd::Undone && *died >= lease.from);
            lease.to = Some(died.unwrap_or(now));
        }
        for (task, hold) in &changed.made {
            let track = self.track_of(&hold.owner);
            self.running.insert((task.clone(), hold.token), self.leases.len());
            self.leases.push(Lease {
                track,
                message: task.message.clone(),
                topic: task.topic.clone(),
                group: task.group.clone(),
                token: short(hold.token),
                attempt: hold.attempts,
                from: now,
                to: None,
                until_ms: clock.ms(hold.until),
                end: LeaseEnd::Open,
            });
        }
        for ((task, token), nth) in &self.running {
            let standing = self.seen.tasks.get(task);
            if let Some(Standing::HeldDelivery(hold)) = standing
                && hold.token == *token
            {
                self.leases[*nth].until_ms = clock.ms(hold.until);
            }
        }
        if changed.restarted {
            self.died = None;
        }
    }
}

/// A drain says thousands of things; nobody reads them all.
fn summarise(lines: &mut Vec<String>) {
    const MOST: usize = 24;
    if lines.len() > MOST {
        let more = lines.len() - MOST;
        lines.truncate(MOST);
        lines.push(format!("and {more} more"));
    }
}

fn facts(trace: &Trace, fault: Option<Fault>) -> Vec<(String, String)> {
    let mut facts = Vec::new();
    if let Some(fault) = fault {
        facts.push(("planted bug".to_owned(), fault.name().to_owned()));
    }
    if let Some(seed) = trace.header.seed {
        facts.push(("seed".to_owned(), seed.to_string()));
    }
    facts
}

/// A broker that panics has broken a promise of its own.
fn never_panics(said: String) -> Violation {
    catalog::NEVER_PANICS.violated_by(said)
}
