//! The label, track and symbol of a step.

use std::collections::BTreeSet;

use driftq_core::faults::Faults;

use super::{BROKER, DISK, PRODUCERS, Recorder, StepOutputs};
use crate::actions::{self, Action, IoFault, ReadFault, Request};
use crate::coverage::Point;
use crate::names::Worker;
use crate::view::diff::{Changes, EndedLease, span};
use crate::view::format;
use crate::view::snapshot::{MessageInGroup, MessageStatus};
use crate::view::timeline::{Glyph, LeaseEnd, TimelineStep};
use crate::world::World;

impl Recorder {
    /// The step of an action, before its execution.
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
            Action::Request(request) => self.fill_request(world, request, &mut step),
            Action::Send { call, request } => {
                self.fill_request(world, request, &mut step);
                step.also.clear();
                step.glyph = Glyph::Sent;
                step.label = format!("{}; held by the network as {call}", step.label);
                self.calls.insert(*call, (request.clone(), false));
            }
            Action::Arrive { call } => {
                match self.calls.get_mut(call).map(|(request, has_arrived)| (request.clone(), has_arrived)) {
                    Some((request, has_arrived)) => {
                        let is_again = std::mem::replace(has_arrived, true);
                        self.fill_request(world, &request, &mut step);
                        let when = if is_again { "again" } else { "late" };
                        step.label = format!("{call} arrives {when}: {}", step.label);
                        if is_again {
                            step.glyph = Glyph::Duplicate;
                        }
                    }
                    None => step.label = format!("{call} arrives, but was never sent"),
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
            environment => fill_environment(environment, &mut step),
        }
        step
    }

    fn fill_request<F: Faults>(&mut self, world: &World<F>, request: &Request, step: &mut TimelineStep) {
        step.track = format::worker_of(request).map_or(PRODUCERS, |worker| self.track_of(&worker.to_string()));
        step.also.push(BROKER);
        step.glyph = format::glyph(request);
        step.label = format::request_text(request);
        let (topic, group) = format::names(request);
        step.topics.extend(topic);
        step.groups.extend(group);
        for new_message in format::new_messages(request) {
            step.topics.push(new_message.topic.to_string());
            step.messages.push(new_message.message.to_string());
            if !self.produced.insert(new_message.message) && matches!(request, Request::Produce(_)) {
                step.glyph = Glyph::Duplicate;
                step.label.push_str(", again");
            }
        }
        let Some(delivery) = format::delivery_ref(request) else { return };
        step.messages.push(delivery.message.to_string());
        let Some(held) = world.network().held(delivery.worker, delivery.message, delivery.back) else { return };
        step.topics.push(held.topic.to_string());
        step.groups.push(held.group.to_string());
        let message_key = MessageInGroup {
            topic: held.topic.to_string(),
            group: held.group.to_string(),
            partition: held.partition.0,
            offset: held.offset.0,
            message: delivery.message.to_string(),
        };
        let newest = self.snapshot.messages_in_groups.get(&message_key).and_then(MessageStatus::token);
        if newest.is_some_and(|newest| newest != held.token) && delivery.back == 0 {
            step.label.push_str(" with an outdated delivery");
        }
    }

    /// Completes the label after the execution.
    pub(super) fn finish_label(
        &mut self,
        step: &mut TimelineStep,
        action: &Action,
        diff: &Changes,
        outputs: &StepOutputs,
        was_executed: bool,
    ) {
        if diff.ended.iter().any(|ended| ended.end == LeaseEnd::Dead) && step.glyph != Glyph::Duplicate {
            step.glyph = Glyph::Dead;
        }
        match action {
            Action::Wake if !was_executed => step.label = "no timer is due".to_owned(),
            Action::Wake => step.label = fired_timers(diff),
            Action::FlushIo if !outputs.delivered.is_empty() => {
                step.label = format!("{}; {}", step.label, summarised(&outputs.delivered, "deliveries"));
            }
            Action::Boot if self.crashed_at.is_some() => {
                step.label.push_str(", but the disk is full");
            }
            Action::Boot => {
                let lost_leases = diff.ended.iter().filter(|ended| ended.end == LeaseEnd::Undone).count();
                if lost_leases > 0 {
                    let leases = if lost_leases == 1 { "lease" } else { "leases" };
                    step.label = format!("{}; {lost_leases} unsynced {leases} lost", step.label);
                }
            }
            Action::Request(_)
            | Action::Arrive { .. }
            | Action::Read { .. }
            | Action::RunEffect(_)
            | Action::Io { .. }
            | Action::PerformRead { .. }
            | Action::CompleteRead { .. }
            | Action::Rot { .. }
                if !was_executed =>
            {
                step.label.push_str(", without effect");
                step.also.clear();
            }
            _ => {}
        }
    }

    /// Whether recovery has cut a torn tail since the last call.
    pub(super) fn has_cut_torn_tail<F: Faults>(&mut self, world: &World<F>, action: &Action) -> bool {
        if !matches!(action, Action::Boot | Action::Close | Action::RebaseClock) {
            return false;
        }
        let torn_tails = world.coverage().count(Point::TornTail);
        std::mem::replace(&mut self.torn_tails, torn_tails) < torn_tails
    }
}

/// The step of an action of the clock, the disk or the machine.
fn fill_environment(action: &Action, step: &mut TimelineStep) {
    let (track, glyph, label) = match action {
        Action::AdvanceTime { ms } => (BROKER, Glyph::Time, format!("{} pass", span(u64::from(*ms)))),
        Action::JumpClock { ms } => {
            let direction = if *ms < 0 { "back" } else { "forward" };
            (BROKER, Glyph::ClockJump, format!("the wall clock jumps {direction} by {}", span(ms.unsigned_abs())))
        }
        Action::RebaseClock => (BROKER, Glyph::Boot, "the wall clock is rebased and the broker started".to_owned()),
        // Which timers fired is known after the execution.
        Action::Wake => (BROKER, Glyph::Time, String::new()),
        Action::Io { class, fault } => {
            let (glyph, label) = io_label(*class, *fault);
            (DISK, glyph, label)
        }
        Action::PerformRead { fault, late, .. } => (DISK, read_glyph(*fault), read_label(*fault, *late)),
        Action::CompleteRead { .. } => (DISK, Glyph::Io, "the result of a read of payloads arrives".to_owned()),
        Action::Rot { .. } => (DISK, Glyph::Probe, "a live payload rots".to_owned()),
        Action::FlushIo => (DISK, Glyph::Io, "all I/O is performed".to_owned()),
        Action::Snapshot => (DISK, Glyph::Snapshot, "a snapshot is requested".to_owned()),
        Action::SetFreeSpace { bytes: Some(bytes) } => {
            (DISK, Glyph::Other, format!("free space is limited to {bytes} bytes"))
        }
        Action::SetFreeSpace { bytes: None } => (DISK, Glyph::Other, "free space is unlimited".to_owned()),
        Action::Configure(_) => {
            (BROKER, Glyph::Other, "the broker gets another configuration at its next start".to_owned())
        }
        Action::Close => (BROKER, Glyph::Boot, "the broker is shut down cleanly and restarted".to_owned()),
        Action::Crash { loss } => (BROKER, Glyph::Crash, format::loss(*loss).to_owned()),
        Action::Boot => (BROKER, Glyph::Boot, "the broker is started".to_owned()),
        Action::BootAndCrash { after, loss } => {
            let loss = format::loss(*loss);
            (BROKER, Glyph::Crash, format!("the broker is started and crashes after {after} I/O operations; {loss}"))
        }
        Action::Probe { damage, .. } => {
            (DISK, Glyph::Probe, format!("probe: power loss and {}", format::damage(*damage)))
        }
        Action::Damage { damage } => (DISK, Glyph::Probe, format!("the disk is damaged: {}", format::damage(*damage))),
        Action::Drain => (BROKER, Glyph::Other, "everything is drained, and a last restart".to_owned()),
        Action::Request(_)
        | Action::Send { .. }
        | Action::Arrive { .. }
        | Action::Read { .. }
        | Action::RunEffect(_) => return,
    };
    let restarts = matches!(
        action,
        Action::Close | Action::Crash { .. } | Action::Boot | Action::BootAndCrash { .. } | Action::Drain
    );
    if restarts {
        step.also.push(DISK);
    }
    (step.track, step.glyph, step.label) = (track, glyph, label);
}

fn io_label(class: actions::JobClass, fault: Option<IoFault>) -> (Glyph, String) {
    let what = match class {
        actions::JobClass::Log => "one log I/O operation",
        actions::JobClass::Background => "one background I/O operation",
    };
    match fault {
        None => (Glyph::Io, what.to_owned()),
        Some(IoFault::Fail) => (Glyph::IoFault, format!("{what} fails")),
        Some(IoFault::NoDescriptor) => (Glyph::IoFault, format!("{what}, without a descriptor left for a new file")),
        Some(IoFault::Short { bytes }) => (Glyph::Torn, format!("{what}, torn after {bytes} bytes")),
    }
}

fn read_glyph(fault: Option<ReadFault>) -> Glyph {
    if fault.is_some() { Glyph::IoFault } else { Glyph::Io }
}

fn read_label(fault: Option<ReadFault>, late: bool) -> String {
    let what = match fault {
        None => "payloads are read".to_owned(),
        Some(ReadFault::Fail) => "a read of payloads fails".to_owned(),
        Some(ReadFault::Short { bytes }) => format!("a read of payloads ends after {bytes} bytes"),
        Some(ReadFault::Flip { .. }) => "a read of payloads brings a wrong bit".to_owned(),
    };
    if late { format!("{what}; the result is late") } else { what }
}

/// Adds the messages that a worker has just read.
pub(super) fn note_read<F: Faults>(world: &World<F>, worker: Worker, count: u64, step: &mut TimelineStep) {
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

/// What timers did.
fn fired_timers(diff: &Changes) -> String {
    let mut entries = Vec::new();
    let mut leased_again = BTreeSet::new();
    for EndedLease { message_key, end, .. } in &diff.ended {
        let what = match end {
            LeaseEnd::Dead => format!("{} is dead-lettered", message_key.message),
            _ => format!("lease of {} ends", message_key.message),
        };
        match diff.granted.iter().find(|(other, _)| other == message_key) {
            Some((_, lease)) => {
                leased_again.insert(message_key);
                entries.push(format!("{what}; leased again to {}", lease.owner));
            }
            None => entries.push(what),
        }
    }
    let others = diff.granted.iter().filter(|(message_key, _)| !leased_again.contains(message_key));
    entries.extend(others.map(|(message_key, lease)| format!("{} is leased to {}", message_key.message, lease.owner)));
    if entries.is_empty() { "timers fire".to_owned() } else { summarised(&entries, "leases end or start") }
}

/// Lists up to two entries, and counts more.
fn summarised(entries: &[String], many: &str) -> String {
    if entries.len() <= 2 { entries.join("; ") } else { format!("{} {many}", entries.len()) }
}
