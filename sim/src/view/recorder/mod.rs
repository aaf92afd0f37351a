//! Records a timeline: replays a trace and records outputs and state changes after every action.

mod timeline_step;

use std::collections::{BTreeMap, BTreeSet};

use driftq_core::Output;
use driftq_core::faults::{Fault, Faults, NoFaults, Planted};
use driftq_core::types::{LeaseToken, Ticket};

use self::timeline_step::note_read;
use super::diff::{Changes, Clock, EndedLease, changes, short, span};
use super::format;
use super::snapshot::{MessageInGroup, MessageNames, MessageStatus, Snapshot, name_in};
use super::timeline::{Glyph, Lease, LeaseEnd, Timeline, TimelineStep, TimelineViolation, Track, TrackKind, Unit};
use crate::actions::{Action, Request};
use crate::invariants::Violation;
use crate::names::{Call, Message, Worker};
use crate::panic_capture;
use crate::run::never_panics;
use crate::trace::Trace;
use crate::world::{Checks, TapEvent, World};

/// The fixed tracks. Those of the workers follow.
const PRODUCERS: usize = 0;
const BROKER: usize = 1;
const DISK: usize = 2;
const FIRST_WORKER: usize = 3;

/// Replays a trace with the given bug and all checks, and returns its timeline, up to the end or the violation. The
/// same trace gives the same timeline.
#[must_use]
pub fn timeline_of(trace: &Trace, fault: Option<Fault>) -> Timeline {
    match fault {
        None => Recorder::new(trace).run(trace, NoFaults, None),
        Some(fault) => Recorder::new(trace).run(trace, Planted(fault), Some(fault)),
    }
}

/// The outputs of a step.
#[derive(Default)]
struct StepOutputs {
    also: BTreeSet<usize>,
    outputs: Vec<String>,
    delivered: Vec<String>,
}

struct Recorder {
    /// The workers that have a track, by name.
    workers: Vec<String>,
    steps: Vec<TimelineStep>,
    leases: Vec<Lease>,
    /// The indices of running leases, by message and token.
    running: BTreeMap<(MessageInGroup, LeaseToken), usize>,
    /// The last snapshot of the broker.
    snapshot: Snapshot,
    names: MessageNames,
    /// The step in which the broker crashed, while it is down.
    crashed_at: Option<usize>,
    /// The step of each ticket.
    tickets: BTreeMap<Ticket, usize>,
    /// Requests held by the network, and whether they have arrived before.
    calls: BTreeMap<Call, (Request, bool)>,
    produced: BTreeSet<Message>,
    torn_tails: u64,
}

impl Recorder {
    fn new(trace: &Trace) -> Self {
        let mut workers = BTreeSet::new();
        for action in &trace.actions {
            match action {
                Action::Request(request) | Action::Send { request, .. } => {
                    workers.extend(format::worker_of(request));
                    if let Request::Subscribe(subscription) = request {
                        workers.insert(subscription.owner);
                    }
                }
                Action::Read { worker, .. } => drop(workers.insert(*worker)),
                Action::RunEffect(grant) => drop(workers.insert(grant.worker)),
                _ => {}
            }
        }
        Self {
            names: MessageNames::default(),
            workers: workers.iter().map(Worker::to_string).collect(),
            steps: Vec::new(),
            leases: Vec::new(),
            running: BTreeMap::new(),
            snapshot: Snapshot::default(),
            crashed_at: None,
            tickets: BTreeMap::new(),
            calls: BTreeMap::new(),
            produced: BTreeSet::new(),
            torn_tails: 0,
        }
    }

    fn run<F: Faults>(mut self, trace: &Trace, faults: F, fault: Option<Fault>) -> Timeline {
        let started = panic_capture::catch(|| World::new(&trace.header.setup, faults, Checks::default()));
        let mut violation = None;
        let mut facts = facts(trace, fault);
        match started.map_err(never_panics).and_then(|started| started) {
            Err(found) => violation = Some(found),
            Ok(mut world) => {
                world.enable_tap();
                self.take_first_snapshot(&world);
                for action in &trace.actions {
                    violation = self.record(&mut world, action).err();
                    if violation.is_some() {
                        break;
                    }
                }
                let counters = world.counters();
                facts.push(("actions".to_owned(), self.steps.len().to_string()));
                facts.push(("time".to_owned(), span(counters.simulated_ms)));
                facts.push(("deliveries".to_owned(), counters.deliveries.to_string()));
                facts.push(("crashes".to_owned(), counters.crashes.to_string()));
            }
        }
        if violation.is_none() {
            facts.push(("invariants".to_owned(), "all hold".to_owned()));
        }
        let step = self.steps.len().saturating_sub(1);
        let violation = violation.map(|violation| TimelineViolation {
            step,
            invariant: violation.invariant,
            sentence: violation.sentence.to_owned(),
            found: violation.found,
        });
        Timeline {
            title: format!("A run of {} actions", self.steps.len()),
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

    /// The track of a worker; a new one is added, such as for the worker that drains.
    fn track_of(&mut self, worker: &str) -> usize {
        let known = self.workers.iter().position(|known| known == worker);
        FIRST_WORKER
            + known.unwrap_or_else(|| {
                self.workers.push(worker.to_owned());
                self.workers.len() - 1
            })
    }

    fn take_first_snapshot<F: Faults>(&mut self, world: &World<F>) {
        if let Some(broker) = world.broker() {
            self.snapshot = Snapshot::of(broker, &mut self.names);
        }
    }

    fn record<F: Faults>(&mut self, world: &mut World<F>, action: &Action) -> Result<(), Violation> {
        let events = world.counters().events;
        let mut step = self.step_of(world, action);
        let verdict = panic_capture::catch(|| world.apply(action)).map_err(never_panics).flatten();
        step.at_ms = world.elapsed();
        let clock = Clock { ahead: world.broker_ahead() };
        let tap_events = world.take_tap_events();
        self.names.learn_written(&tap_events);
        // A broker that panicked may panic again.
        let diff = panic_capture::catch(|| self.diff_since_snapshot(world, clock)).unwrap_or_default();
        let outputs = self.collect_outputs(tap_events, &mut step, clock);
        if let Action::Read { worker, .. } = action {
            note_read(world, *worker, world.counters().events - events, &mut step);
        }
        self.note_leases(&diff, clock);
        self.finish_label(&mut step, action, &diff, &outputs, world.counters().events > events);
        if self.has_cut_torn_tail(world, action) {
            step.glyph = Glyph::Torn;
            step.label.push_str("; a torn tail is cut");
        }
        step.topics.extend(diff.topics);
        step.groups.extend(diff.groups);
        step.messages.extend(diff.messages);
        step.diff = diff.lines;
        step.outputs = outputs.outputs;
        let track = step.track;
        step.also.extend(outputs.also);
        step.also.retain(|also| *also != track);
        for names in [&mut step.topics, &mut step.groups, &mut step.messages] {
            names.sort();
            names.dedup();
        }
        step.also.sort_unstable();
        step.also.dedup();
        self.steps.push(step);
        verdict
    }

    /// The requests, replies and deliveries of this step.
    fn collect_outputs(&mut self, events: Vec<TapEvent>, step: &mut TimelineStep, clock: Clock) -> StepOutputs {
        let mut outputs = StepOutputs::default();
        for event in events {
            let (worker, output) = match event {
                TapEvent::Command(ticket, _) => {
                    self.tickets.insert(ticket, self.steps.len());
                    continue;
                }
                TapEvent::Written(_) => continue,
                TapEvent::Output { worker, output } => (worker, output),
            };
            // The draining worker has no track unless it is left with a lease.
            let known = worker.and_then(|worker| self.workers.iter().position(|known| *known == worker.to_string()));
            outputs.also.extend(known.map(|nth| FIRST_WORKER + nth));
            let line = match &output {
                Output::Reply { ticket, result } => {
                    let sent_at = self.tickets.remove(ticket).filter(|nth| *nth < self.steps.len());
                    let request = sent_at.and_then(|nth| self.steps.get(nth));
                    outputs.also.extend(request.map(|step| step.track));
                    let to = request.map(|step| format!(" to action {} ({})", step.number, step.label));
                    format!("reply{}: {}", to.unwrap_or_default(), format::reply(result, clock))
                }
                Output::Deliver { delivery, .. } => {
                    let message = name_in(delivery.body.value());
                    outputs.delivered.push(match worker {
                        Some(worker) => format!("{message} delivered to {worker}"),
                        None => format!("{message} delivered"),
                    });
                    step.messages.push(message);
                    let delivered =
                        self.snapshot.messages_in_groups.iter().find(|(_, is)| is.token() == Some(delivery.token));
                    step.topics.extend(delivered.map(|(message_key, _)| message_key.topic.clone()));
                    step.groups.extend(delivered.map(|(message_key, _)| message_key.group.clone()));
                    format::delivery(worker, delivery, clock)
                }
                Output::Closed { cause, .. } => format::closed(worker, *cause),
            };
            outputs.outputs.push(line);
        }
        truncate(&mut outputs.outputs);
        outputs
    }

    /// The changes since the last snapshot.
    fn diff_since_snapshot<F: Faults>(&mut self, world: &World<F>, clock: Clock) -> Changes {
        let Some(broker) = world.broker() else {
            let mut diff = Changes::default();
            if self.crashed_at.is_none() {
                self.crashed_at = Some(self.steps.len());
                diff.lines.push("broker: running → crashed".to_owned());
                let at_risk = self.snapshot.appended.saturating_sub(self.snapshot.synced);
                diff.lines.push(match at_risk {
                    0 => format!("log: ended at {}, all synced", self.snapshot.appended),
                    more => format!("log: ended at {}, {more} records not synced", self.snapshot.appended),
                });
            }
            return diff;
        };
        let snapshot = Snapshot::of(broker, &mut self.names);
        let diff = changes(&self.snapshot, &snapshot, clock);
        self.snapshot = snapshot;
        diff
    }

    fn note_leases(&mut self, diff: &Changes, clock: Clock) {
        let now = self.steps.len();
        for EndedLease { message_key, lease, end } in &diff.ended {
            let Some(nth) = self.running.remove(&(message_key.clone(), lease.token)) else { continue };
            let lease = &mut self.leases[nth];
            lease.end = *end;
            // A lease that a crash undid ended with the crash, although only recovery shows it.
            let crashed_at = self.crashed_at.filter(|crashed_at| *end == LeaseEnd::Undone && *crashed_at >= lease.from);
            lease.to = Some(crashed_at.unwrap_or(now));
        }
        for (message_key, lease) in &diff.granted {
            let track = self.track_of(&lease.owner);
            self.running.insert((message_key.clone(), lease.token), self.leases.len());
            self.leases.push(Lease {
                track,
                message: message_key.message.clone(),
                topic: message_key.topic.clone(),
                group: message_key.group.clone(),
                token: short(lease.token),
                attempt: lease.attempts,
                from: now,
                to: None,
                until_ms: clock.ms(lease.until),
                end: LeaseEnd::Open,
            });
        }
        for ((message_key, token), nth) in &self.running {
            let status = self.snapshot.messages_in_groups.get(message_key);
            if let Some(MessageStatus::InFlight(lease)) = status
                && lease.token == *token
            {
                self.leases[*nth].until_ms = clock.ms(lease.until);
            }
        }
        if diff.restarted {
            self.crashed_at = None;
        }
    }
}

/// Truncates the thousands of outputs of a drain.
fn truncate(lines: &mut Vec<String>) {
    const LINES_MAX: usize = 24;
    if lines.len() > LINES_MAX {
        let more = lines.len() - LINES_MAX;
        lines.truncate(LINES_MAX);
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
