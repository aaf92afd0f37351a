//! One step, in words: what it is, and what came of it.

use std::collections::BTreeSet;

use driftq_core::faults::Faults;

use super::{BROKER, DISK, PRODUCERS, Recorder, Told};
use crate::actions::{self, Action, IoFault, Request};
use crate::coverage::Point;
use crate::names::Worker;
use crate::view::diff::{Changes, Ended, span};
use crate::view::format;
use crate::view::snapshot::{Standing, Task};
use crate::view::timeline::{Glyph, LeaseEnd, TimelineStep};
use crate::world::World;

impl Recorder {
    /// What a step is, before anybody knows what comes of it.
    pub(super) fn step_of<F: Faults>(&mut self, world: &World<F>, action: &Action) -> TimelineStep {
        let mut step = TimelineStep {
            number: self.steps.len() as u64 + 1,
            at_ms: 0,
            track: BROKER,
            also: Vec::new(),
            glyph: Glyph::Other,
            label: String::new(),
            detail: serde_json::to_string(action).unwrap_or_default(),
            outputs: Vec::new(),
            diff: Vec::new(),
            topics: Vec::new(),
            groups: Vec::new(),
            messages: Vec::new(),
        };
        match action {
            Action::Request(request) => self.asked(world, request, &mut step),
            Action::Send { call, request } => {
                self.asked(world, request, &mut step);
                step.also.clear();
                step.glyph = Glyph::Sent;
                step.label = format!("{}; the network keeps it, as {call}", step.label);
                self.calls.insert(*call, (request.clone(), false));
            }
            Action::Arrive { call } => {
                match self.calls.get_mut(call).map(|(request, again)| (request.clone(), again)) {
                    Some((request, again)) => {
                        let again = std::mem::replace(again, true);
                        self.asked(world, &request, &mut step);
                        let when = if again { "once more" } else { "late" };
                        step.label = format!("{call} arrives {when}: {}", step.label);
                        if again {
                            step.glyph = Glyph::Duplicate;
                        }
                    }
                    None => step.label = format!("{call} arrives, though nobody sent it"),
                }
            }
            Action::Read { worker, count } => {
                step.track = self.track_of(&worker.to_string());
                step.glyph = Glyph::Delivery;
                step.label =
                    if *count == 1 { format!("{worker} reads") } else { format!("{worker} reads up to {count}") };
            }
            Action::RunEffect(grant) => {
                step.track = self.track_of(&grant.worker.to_string());
                step.glyph = Glyph::Effect;
                step.label = format!("{} runs {}", grant.worker, format::name(&grant.effect));
            }
            Action::AdvanceTime { ms } => {
                step.glyph = Glyph::Time;
                step.label = format!("{} pass", span(u64::from(*ms)));
            }
            Action::JumpClock { ms } => {
                step.glyph = Glyph::ClockJump;
                let way = if *ms < 0 { "back" } else { "ahead" };
                step.label = format!("the broker's clock leaps {way} by {}", span(ms.unsigned_abs()));
            }
            Action::Wake => step.glyph = Glyph::Time,
            Action::Io { class, fault } => {
                step.track = DISK;
                let what = match class {
                    actions::JobClass::Log => "one piece of I/O for the log",
                    actions::JobClass::Background => "one piece of background I/O",
                };
                (step.glyph, step.label) = match fault {
                    None => (Glyph::Io, what.to_owned()),
                    Some(IoFault::Fail) => (Glyph::IoFault, format!("{what}: it fails")),
                    Some(IoFault::Short { bytes }) => (Glyph::Torn, format!("{what}: torn after {bytes} bytes")),
                };
            }
            Action::FlushIo => {
                step.track = DISK;
                step.glyph = Glyph::Io;
                step.label = "all is written and synced".to_owned();
            }
            Action::Snapshot => {
                step.track = DISK;
                step.glyph = Glyph::Snapshot;
                step.label = "a snapshot is asked for".to_owned();
            }
            Action::SetFreeSpace { bytes } => {
                step.track = DISK;
                step.label = match bytes {
                    Some(bytes) => format!("the disk has room for {bytes} bytes more"),
                    None => "the disk has room again".to_owned(),
                };
            }
            Action::Close => {
                step.glyph = Glyph::Boot;
                step.also.push(DISK);
                step.label = "the broker is stopped in an orderly way, and started".to_owned();
            }
            Action::Crash { loss } => {
                step.glyph = Glyph::Crash;
                step.also.push(DISK);
                step.label = format::loss(*loss).to_owned();
            }
            Action::Boot => {
                step.glyph = Glyph::Boot;
                step.also.push(DISK);
                step.label = "the broker is started".to_owned();
            }
            Action::BootAndCrash { after, loss } => {
                step.glyph = Glyph::Crash;
                step.also.push(DISK);
                step.label =
                    format!("the broker is started and dies after {after} pieces of I/O; {}", format::loss(*loss));
            }
            Action::Probe { damage, .. } => {
                step.track = DISK;
                step.glyph = Glyph::Probe;
                step.label = format!("what if the power went now and {}?", format::damage(*damage));
            }
            Action::Drain => {
                step.also.push(DISK);
                step.label = "faults end, everything is worked off, and a last restart".to_owned();
            }
        }
        step
    }

    fn asked<F: Faults>(&mut self, world: &World<F>, request: &Request, step: &mut TimelineStep) {
        step.track = format::asker(request).map_or(PRODUCERS, |worker| self.track_of(&worker.to_string()));
        step.also.push(BROKER);
        step.glyph = format::glyph(request);
        step.label = format::question(request);
        let (topic, group) = format::named(request);
        step.topics.extend(topic);
        step.groups.extend(group);
        for new_message in format::new_messages(request) {
            step.topics.push(new_message.topic.to_string());
            step.messages.push(new_message.message.to_string());
            if !self.produced.insert(new_message.message) && matches!(request, Request::Produce(_)) {
                step.glyph = Glyph::Duplicate;
                step.label.push_str(", once more");
            }
        }
        let Some(delivery) = format::delivery_ref(request) else { return };
        step.messages.push(delivery.message.to_string());
        let Some(held) = world.network().held(delivery.worker, delivery.message, delivery.back) else { return };
        step.topics.push(held.topic.to_string());
        step.groups.push(held.group.to_string());
        let task = Task {
            topic: held.topic.to_string(),
            group: held.group.to_string(),
            partition: held.partition.0,
            offset: held.offset.0,
            message: delivery.message.to_string(),
        };
        let newest = self.seen.tasks.get(&task).and_then(Standing::token);
        if newest.is_some_and(|newest| newest != held.token) && delivery.back == 0 {
            step.label.push_str(" by a delivery that is not the newest");
        }
    }

    /// What came of the step, in its label.
    pub(super) fn tell(
        &mut self,
        step: &mut TimelineStep,
        action: &Action,
        changed: &Changes,
        told: &Told,
        happened: bool,
    ) {
        if changed.ended.iter().any(|ended| ended.end == LeaseEnd::Dead) && step.glyph != Glyph::Duplicate {
            step.glyph = Glyph::Dead;
        }
        match action {
            Action::Wake if !happened => step.label = "nothing is due yet".to_owned(),
            Action::Wake => step.label = due(changed),
            Action::FlushIo if !told.delivered.is_empty() => {
                step.label = format!("{}; {}", step.label, few(&told.delivered, "messages go out"));
            }
            Action::Boot if self.died.is_some() => {
                step.label.push_str(", and finds no room");
            }
            Action::Boot => {
                let undone = changed.ended.iter().filter(|ended| ended.end == LeaseEnd::Undone).count();
                if undone > 0 {
                    let leases = if undone == 1 { "lease that was" } else { "leases that were" };
                    step.label = format!("{}; it knows nothing of {undone} {leases} not synced", step.label);
                }
            }
            Action::Request(_)
            | Action::Arrive { .. }
            | Action::Read { .. }
            | Action::RunEffect(_)
            | Action::Io { .. }
                if !happened =>
            {
                step.label.push_str(", and nothing comes of it");
                step.also.clear();
            }
            _ => {}
        }
    }

    /// Whether a start found a torn end, which it cuts.
    pub(super) fn is_torn<F: Faults>(&mut self, world: &World<F>, action: &Action) -> bool {
        if !matches!(action, Action::Boot | Action::Close) {
            return false;
        }
        let torn = world.coverage().count(Point::TornTail);
        std::mem::replace(&mut self.torn, torn) < torn
    }
}

/// Which messages a worker has just read.
pub(super) fn read<F: Faults>(world: &World<F>, worker: Worker, count: u64, step: &mut TimelineStep) {
    let mut names: Vec<String> = Vec::new();
    for held in world.network().read_by(worker).take(count as usize) {
        names.push(held.message.to_string());
        step.topics.push(held.topic.to_string());
        step.groups.push(held.group.to_string());
    }
    names.reverse();
    if !names.is_empty() {
        step.label = format!("{worker} reads {}", names.join(", "));
    }
    step.messages.extend(names);
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
