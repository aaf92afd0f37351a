//! One step, in words: what it is, and what came of it.

use std::collections::BTreeSet;

use driftq_core::faults::Faults;

use super::{BROKER, DISK, PRODUCERS, Recorder, Told};
use crate::names::Worker;
use crate::sometimes::Point;
use crate::steps::{self, Ask, IoFault, Step};
use crate::view::change::{Changes, Ended, span};
use crate::view::sight::{Standing, Task};
use crate::view::story::{Glyph, LeaseEnd, Moment};
use crate::view::words;
use crate::world::World;

impl Recorder {
    /// What a step is, before anybody knows what comes of it.
    pub(super) fn moment_of<F: Faults>(&mut self, world: &World<F>, step: &Step) -> Moment {
        let mut moment = Moment {
            number: self.moments.len() as u64 + 1,
            at_ms: 0,
            lane: BROKER,
            also: Vec::new(),
            glyph: Glyph::Other,
            label: String::new(),
            detail: serde_json::to_string(step).unwrap_or_default(),
            outcomes: Vec::new(),
            diff: Vec::new(),
            topics: Vec::new(),
            groups: Vec::new(),
            messages: Vec::new(),
        };
        match step {
            Step::Ask(ask) => self.asked(world, ask, &mut moment),
            Step::Send { call, ask } => {
                self.asked(world, ask, &mut moment);
                moment.also.clear();
                moment.glyph = Glyph::Sent;
                moment.label = format!("{}; the network keeps it, as {call}", moment.label);
                self.calls.insert(*call, (ask.clone(), false));
            }
            Step::Arrive { call } => match self.calls.get_mut(call).map(|(ask, again)| (ask.clone(), again)) {
                Some((ask, again)) => {
                    let again = std::mem::replace(again, true);
                    self.asked(world, &ask, &mut moment);
                    let when = if again { "once more" } else { "late" };
                    moment.label = format!("{call} arrives {when}: {}", moment.label);
                    if again {
                        moment.glyph = Glyph::Duplicate;
                    }
                }
                None => moment.label = format!("{call} arrives, though nobody sent it"),
            },
            Step::Read { worker, count } => {
                moment.lane = self.lane_of(&worker.to_string());
                moment.glyph = Glyph::Delivery;
                moment.label =
                    if *count == 1 { format!("{worker} reads") } else { format!("{worker} reads up to {count}") };
            }
            Step::Run(grant) => {
                moment.lane = self.lane_of(&grant.worker.to_string());
                moment.glyph = Glyph::Effect;
                moment.label = format!("{} runs {}", grant.worker, words::name(&grant.effect));
            }
            Step::Pass { ms } => {
                moment.glyph = Glyph::Time;
                moment.label = format!("{} pass", span(u64::from(*ms)));
            }
            Step::Jump { ms } => {
                moment.glyph = Glyph::ClockJump;
                let way = if *ms < 0 { "back" } else { "ahead" };
                moment.label = format!("the broker's clock leaps {way} by {}", span(ms.unsigned_abs()));
            }
            Step::Wake => moment.glyph = Glyph::Time,
            Step::Io { class, fault } => {
                moment.lane = DISK;
                let what = match class {
                    steps::JobClass::Log => "one piece of I/O for the log",
                    steps::JobClass::Background => "one piece of background I/O",
                };
                (moment.glyph, moment.label) = match fault {
                    None => (Glyph::Io, what.to_owned()),
                    Some(IoFault::Fail) => (Glyph::IoFault, format!("{what}: it fails")),
                    Some(IoFault::Short { bytes }) => (Glyph::Torn, format!("{what}: torn after {bytes} bytes")),
                };
            }
            Step::Settle => {
                moment.lane = DISK;
                moment.glyph = Glyph::Io;
                moment.label = "all is written and synced".to_owned();
            }
            Step::Snapshot => {
                moment.lane = DISK;
                moment.glyph = Glyph::Snapshot;
                moment.label = "a snapshot is asked for".to_owned();
            }
            Step::Room { bytes } => {
                moment.lane = DISK;
                moment.label = match bytes {
                    Some(bytes) => format!("the disk has room for {bytes} bytes more"),
                    None => "the disk has room again".to_owned(),
                };
            }
            Step::Close => {
                moment.glyph = Glyph::Boot;
                moment.also.push(DISK);
                moment.label = "the broker is stopped in an orderly way, and started".to_owned();
            }
            Step::Crash { loss } => {
                moment.glyph = Glyph::Crash;
                moment.also.push(DISK);
                moment.label = words::loss(*loss).to_owned();
            }
            Step::Boot => {
                moment.glyph = Glyph::Boot;
                moment.also.push(DISK);
                moment.label = "the broker is started".to_owned();
            }
            Step::BootAndCrash { after, loss } => {
                moment.glyph = Glyph::Crash;
                moment.also.push(DISK);
                moment.label =
                    format!("the broker is started and dies after {after} pieces of I/O; {}", words::loss(*loss));
            }
            Step::Probe { damage, .. } => {
                moment.lane = DISK;
                moment.glyph = Glyph::Probe;
                moment.label = format!("what if the power went now and {}?", words::damage(*damage));
            }
            Step::Drain => {
                moment.also.push(DISK);
                moment.label = "faults end, everything is worked off, and a last restart".to_owned();
            }
        }
        moment
    }

    fn asked<F: Faults>(&mut self, world: &World<F>, ask: &Ask, moment: &mut Moment) {
        moment.lane = words::asker(ask).map_or(PRODUCERS, |worker| self.lane_of(&worker.to_string()));
        moment.also.push(BROKER);
        moment.glyph = words::glyph(ask);
        moment.label = words::question(ask);
        let (topic, group) = words::named(ask);
        moment.topics.extend(topic);
        moment.groups.extend(group);
        for made in words::made(ask) {
            moment.topics.push(made.topic.to_string());
            moment.messages.push(made.message.to_string());
            if !self.produced.insert(made.message) && matches!(ask, Ask::Produce(_)) {
                moment.glyph = Glyph::Duplicate;
                moment.label.push_str(", once more");
            }
        }
        let Some(right) = words::right(ask) else { return };
        moment.messages.push(right.message.to_string());
        let Some(held) = world.edge().held(right.worker, right.message, right.back) else { return };
        moment.topics.push(held.topic.to_string());
        moment.groups.push(held.group.to_string());
        let task = Task {
            topic: held.topic.to_string(),
            group: held.group.to_string(),
            partition: held.partition.0,
            offset: held.offset.0,
            message: right.message.to_string(),
        };
        let newest = self.seen.tasks.get(&task).and_then(Standing::token);
        if newest.is_some_and(|newest| newest != held.token) && right.back == 0 {
            moment.label.push_str(" by a delivery that is not the newest");
        }
    }

    /// What came of the step, in its label.
    pub(super) fn tell(&mut self, moment: &mut Moment, step: &Step, changed: &Changes, told: &Told, happened: bool) {
        if changed.ended.iter().any(|ended| ended.end == LeaseEnd::Dead) && moment.glyph != Glyph::Duplicate {
            moment.glyph = Glyph::Dead;
        }
        match step {
            Step::Wake if !happened => moment.label = "nothing is due yet".to_owned(),
            Step::Wake => moment.label = due(changed),
            Step::Settle if !told.delivered.is_empty() => {
                moment.label = format!("{}; {}", moment.label, few(&told.delivered, "messages go out"));
            }
            Step::Boot if self.died.is_some() => {
                moment.label.push_str(", and finds no room");
            }
            Step::Boot => {
                let undone = changed.ended.iter().filter(|ended| ended.end == LeaseEnd::Undone).count();
                if undone > 0 {
                    let leases = if undone == 1 { "lease that was" } else { "leases that were" };
                    moment.label = format!("{}; it knows nothing of {undone} {leases} not synced", moment.label);
                }
            }
            Step::Ask(_) | Step::Arrive { .. } | Step::Read { .. } | Step::Run(_) | Step::Io { .. } if !happened => {
                moment.label.push_str(", and nothing comes of it");
                moment.also.clear();
            }
            _ => {}
        }
    }

    /// Whether a start found a torn end, which it cuts.
    pub(super) fn is_torn<F: Faults>(&mut self, world: &World<F>, step: &Step) -> bool {
        if !matches!(step, Step::Boot | Step::Close) {
            return false;
        }
        let torn = world.sometimes().count(Point::TornTail);
        std::mem::replace(&mut self.torn, torn) < torn
    }
}

/// Which messages a worker has just read.
pub(super) fn read<F: Faults>(world: &World<F>, worker: Worker, count: u64, moment: &mut Moment) {
    let mut names: Vec<String> = Vec::new();
    for held in world.edge().read_by(worker).take(count as usize) {
        names.push(held.message.to_string());
        moment.topics.push(held.topic.to_string());
        moment.groups.push(held.group.to_string());
    }
    names.reverse();
    if !names.is_empty() {
        moment.label = format!("{worker} reads {}", names.join(", "));
    }
    moment.messages.extend(names);
}

/// What the broker did because it was time.
fn due(changed: &Changes) -> String {
    let mut said = Vec::new();
    let mut again = BTreeSet::new();
    for Ended { task, end, .. } in &changed.ended {
        let what = match end {
            LeaseEnd::Dead => format!("{} is dead", task.message),
            _ => format!("lease of {} ends", task.message),
        };
        match changed.made.iter().find(|(other, _)| other == task) {
            Some((_, hold)) => {
                again.insert(task);
                said.push(format!("{what}; leased again to {}", hold.owner));
            }
            None => said.push(what),
        }
    }
    let others = changed.made.iter().filter(|(task, _)| !again.contains(task));
    said.extend(others.map(|(task, hold)| format!("{} is leased to {}", task.message, hold.owner)));
    if said.is_empty() { "the broker does what is due".to_owned() } else { few(&said, "leases end or begin") }
}

/// A few things are told, many are counted.
fn few(said: &[String], many: &str) -> String {
    if said.len() <= 2 { said.join("; ") } else { format!("{} {many}", said.len()) }
}
