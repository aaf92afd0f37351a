//! Lives a trace step by step, and writes down what there is to be seen.

mod moment;

use std::collections::{BTreeMap, BTreeSet};

use driftq_core::Output;
use driftq_core::faults::{Fault, Faults, NoFaults, Planted};
use driftq_core::types::{LeaseToken, Ticket};

use self::moment::read;
use super::change::{Changes, Clock, Ended, changes, short, span};
use super::sight::{Sight, Standing, Task, name_in};
use super::story::{Broken, Glyph, Lane, LaneKind, Lease, LeaseEnd, Moment, Story, Unit};
use super::words;
use crate::hush;
use crate::invariants::{Violation, laws};
use crate::names::{Call, Message, Worker};
use crate::steps::{Ask, Step};
use crate::trace::Trace;
use crate::world::{Checks, Heard, World};

/// The lanes there always are. Those of the workers come after them.
const PRODUCERS: usize = 0;
const BROKER: usize = 1;
const DISK: usize = 2;
const FIRST_WORKER: usize = 3;

/// Lives a trace under the given bug, with all checks, and tells it: one moment for every step up to the end, or to the broken
/// promise. The same trace gives the same story.
#[must_use]
pub fn story_of(trace: &Trace, fault: Option<Fault>) -> Story {
    match fault {
        None => Recorder::new(trace).live(trace, NoFaults, None),
        Some(fault) => Recorder::new(trace).live(trace, Planted(fault), Some(fault)),
    }
}

/// A moment that is being told. Its lanes are named, since nobody knows yet how many there will be.
#[derive(Default)]
struct Told {
    also: BTreeSet<usize>,
    outcomes: Vec<String>,
    delivered: Vec<String>,
}

struct Recorder {
    /// The workers that have a lane, by name.
    workers: Vec<String>,
    moments: Vec<Moment>,
    leases: Vec<Lease>,
    /// The leases that are running, by message and token.
    running: BTreeMap<(Task, LeaseToken), usize>,
    /// What was last seen of a broker that runs or ran.
    seen: Sight,
    /// The moment in which the broker died, while it is dead.
    died: Option<usize>,
    /// Which moment a ticket belongs to.
    tickets: BTreeMap<Ticket, usize>,
    /// Calls that the network keeps, and whether they have arrived before.
    calls: BTreeMap<Call, (Ask, bool)>,
    produced: BTreeSet<Message>,
    torn: u64,
}

impl Recorder {
    fn new(trace: &Trace) -> Self {
        let mut workers = BTreeSet::new();
        for step in &trace.steps {
            match step {
                Step::Ask(ask) | Step::Send { ask, .. } => {
                    workers.extend(words::asker(ask));
                    if let Ask::Subscribe(stream) = ask {
                        workers.insert(stream.owner);
                    }
                }
                Step::Read { worker, .. } => drop(workers.insert(*worker)),
                Step::Run(grant) => drop(workers.insert(grant.worker)),
                _ => {}
            }
        }
        Self {
            workers: workers.iter().map(Worker::to_string).collect(),
            moments: Vec::new(),
            leases: Vec::new(),
            running: BTreeMap::new(),
            seen: Sight::default(),
            died: None,
            tickets: BTreeMap::new(),
            calls: BTreeMap::new(),
            produced: BTreeSet::new(),
            torn: 0,
        }
    }

    fn live<F: Faults>(mut self, trace: &Trace, faults: F, fault: Option<Fault>) -> Story {
        let begun = hush::catch(|| World::new(&trace.head.setup, faults, Checks::default()));
        let mut broken = None;
        let mut facts = facts(trace, fault);
        match begun.map_err(never_panics).and_then(|begun| begun) {
            Err(violation) => broken = Some(violation),
            Ok(mut world) => {
                world.listen();
                self.look(&world);
                for step in &trace.steps {
                    broken = self.step(&mut world, step).err();
                    if broken.is_some() {
                        break;
                    }
                }
                let tally = world.tally();
                facts.push(("steps".to_owned(), self.moments.len().to_string()));
                facts.push(("time".to_owned(), span(tally.simulated_ms)));
                facts.push(("deliveries".to_owned(), tally.deliveries.to_string()));
                facts.push(("crashes".to_owned(), tally.crashes.to_string()));
            }
        }
        if broken.is_none() {
            facts.push(("promises".to_owned(), "all kept".to_owned()));
        }
        let moment = self.moments.len().saturating_sub(1);
        let broken = broken.map(|violation| Broken {
            moment,
            invariant: violation.invariant,
            sentence: violation.sentence.to_owned(),
            found: violation.found,
        });
        Story {
            title: format!("A life of {} steps", self.moments.len()),
            about: trace.head.about.clone().unwrap_or_default(),
            facts,
            lanes: self.lanes(),
            unit: Unit::Step,
            moments: self.moments,
            leases: self.leases,
            broken,
            explained: None,
        }
    }

    fn lanes(&self) -> Vec<Lane> {
        let lane = |kind, name: &str| Lane { kind, name: name.to_owned() };
        let mut lanes = vec![
            lane(LaneKind::Producers, "producers"),
            lane(LaneKind::Broker, "broker"),
            lane(LaneKind::Disk, "log and disk"),
        ];
        lanes.extend(self.workers.iter().map(|worker| lane(LaneKind::Worker, worker)));
        lanes
    }

    /// The lane of a worker; one that nobody named before, such as the one that drains, gets its own.
    fn lane_of(&mut self, worker: &str) -> usize {
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
            self.seen = Sight::of(broker);
        }
    }

    fn step<F: Faults>(&mut self, world: &mut World<F>, step: &Step) -> Result<(), Violation> {
        let events = world.tally().events;
        let mut moment = self.moment_of(world, step);
        let lived = hush::catch(|| world.take(step)).map_err(never_panics).and_then(|verdict| verdict);
        moment.at_ms = world.elapsed();
        let clock = Clock { skew: world.skew() };
        // A broker that panicked may not bear to be looked at.
        let changed = hush::catch(|| self.changed(world, clock)).unwrap_or_default();
        let told = self.listen(world.heard(), &mut moment, clock);
        if let Step::Read { worker, .. } = step {
            read(world, *worker, world.tally().events - events, &mut moment);
        }
        self.note_leases(&changed, clock);
        self.tell(&mut moment, step, &changed, &told, world.tally().events > events);
        if self.is_torn(world, step) {
            moment.glyph = Glyph::Torn;
            moment.label.push_str("; a torn end of the log is cut off");
        }
        moment.topics.extend(changed.topics);
        moment.groups.extend(changed.groups);
        moment.messages.extend(changed.messages);
        moment.diff = changed.lines;
        moment.outcomes = told.outcomes;
        let lane = moment.lane;
        moment.also.extend(told.also);
        moment.also.retain(|also| *also != lane);
        for names in [&mut moment.topics, &mut moment.groups, &mut moment.messages] {
            names.sort();
            names.dedup();
        }
        moment.also.sort_unstable();
        moment.also.dedup();
        self.moments.push(moment);
        lived
    }

    /// What was asked, answered and delivered in this step.
    fn listen(&mut self, heard: Vec<Heard>, moment: &mut Moment, clock: Clock) -> Told {
        let mut told = Told::default();
        for heard in heard {
            let (worker, output) = match heard {
                Heard::Asked(ticket) => {
                    self.tickets.insert(ticket, self.moments.len());
                    continue;
                }
                Heard::Said { worker, output } => (worker, output),
            };
            // Whoever drains has no lane, unless it is left holding something.
            let known = worker.and_then(|worker| self.workers.iter().position(|known| *known == worker.to_string()));
            told.also.extend(known.map(|nth| FIRST_WORKER + nth));
            let line = match &output {
                Output::Reply { ticket, result } => {
                    let asked = self.tickets.remove(ticket).filter(|asked| *asked < self.moments.len());
                    let of = asked.and_then(|asked| self.moments.get(asked));
                    if let Some(of) = of {
                        told.also.insert(of.lane);
                    }
                    let of = of.map(|of| format!(" to step {} ({})", of.number, of.label)).unwrap_or_default();
                    format!("answer{of}: {}", words::answer(result, clock))
                }
                Output::Deliver { delivery, .. } => {
                    let message = name_in(delivery.body.value());
                    told.delivered.push(match worker {
                        Some(worker) => format!("{message} goes out to {worker}"),
                        None => format!("{message} goes out"),
                    });
                    moment.messages.push(message);
                    let held = self.seen.tasks.iter().find(|(_, is)| is.token() == Some(delivery.token));
                    moment.topics.extend(held.map(|(task, _)| task.topic.clone()));
                    moment.groups.extend(held.map(|(task, _)| task.group.clone()));
                    words::delivery(worker, delivery, clock)
                }
                Output::Closed { cause, .. } => words::closed(worker, *cause),
            };
            told.outcomes.push(line);
        }
        summarise(&mut told.outcomes);
        told
    }

    /// What is different from what was seen before.
    fn changed<F: Faults>(&mut self, world: &World<F>, clock: Clock) -> Changes {
        let Some(broker) = world.broker() else {
            let mut changed = Changes::default();
            if self.died.is_none() {
                self.died = Some(self.moments.len());
                changed.lines.push("the broker: running → dead".to_owned());
                let at_risk = self.seen.appended.saturating_sub(self.seen.synced);
                changed.lines.push(match at_risk {
                    0 => format!("log: reached to {}, all of it synced", self.seen.appended),
                    more => format!("log: reached to {}, {more} of it not synced", self.seen.appended),
                });
            }
            return changed;
        };
        let sight = Sight::of(broker);
        let changed = changes(&self.seen, &sight, clock);
        self.seen = sight;
        changed
    }

    fn note_leases(&mut self, changed: &Changes, clock: Clock) {
        let now = self.moments.len();
        for Ended { task, hold, end } in &changed.ended {
            let Some(nth) = self.running.remove(&(task.clone(), hold.token)) else { continue };
            let lease = &mut self.leases[nth];
            lease.end = *end;
            // What a crash undid was over when the broker died, though it took a start to see it.
            let died = self.died.filter(|died| *end == LeaseEnd::Undone && *died >= lease.from);
            lease.to = Some(died.unwrap_or(now));
        }
        for (task, hold) in &changed.made {
            let lane = self.lane_of(&hold.owner);
            self.running.insert((task.clone(), hold.token), self.leases.len());
            self.leases.push(Lease {
                lane,
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
            if let Some(Standing::Held(hold)) = standing
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
    if let Some(seed) = trace.head.seed {
        facts.push(("seed".to_owned(), seed.to_string()));
    }
    facts
}

/// A broker that panics has broken a promise of its own.
fn never_panics(said: String) -> Violation {
    laws::NEVER_PANICS.broken(said)
}
