//! Which actions have met which faults: the fault came within a few actions, before the I/O was flushed.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::actions::{Action, IoFault, Loss, Request};

/// An action meets a fault that comes at most this many actions later.
const WITHIN: usize = 8;

/// All faults, by name.
pub const FAULTS: &[&str] = &[
    "power loss",
    "partial power loss",
    "kill",
    "close",
    "failed operation",
    "short write",
    "no descriptor",
    "failed read",
    "full disk",
    "damage",
    "crash while starting",
    "clock set",
    "other configuration",
];

/// An action and a fault.
pub type Pair = (String, String);

/// The pairs that met in a run.
#[must_use]
pub fn met(actions: &[Action]) -> BTreeSet<Pair> {
    let mut pairs = BTreeSet::new();
    for (at, action) in actions.iter().enumerate() {
        let Some(fault) = fault(action) else { continue };
        let before = actions[at.saturating_sub(WITHIN)..at].iter().rev();
        let unflushed = before.take_while(|action| !matches!(action, Action::FlushIo));
        pairs.extend(unflushed.filter_map(name).map(|name| (name, fault.to_owned())));
    }
    pairs
}

/// The pairs of a known action and a fault that have never met.
pub fn never_met(met: &BTreeSet<Pair>) -> impl Iterator<Item = (&str, &'static str)> {
    let actions: BTreeSet<&str> = met.iter().map(|(action, _)| action.as_str()).collect();
    let all = actions.into_iter().flat_map(|action| FAULTS.iter().map(move |fault| (action, *fault)));
    all.filter(|(action, fault)| !met.contains(&((*action).to_owned(), (*fault).to_owned())))
}

fn fault(action: &Action) -> Option<&'static str> {
    Some(match action {
        Action::Crash { loss: Loss::All } => "power loss",
        Action::Crash { loss: Loss::Partial { .. } } => "partial power loss",
        Action::Crash { loss: Loss::Nothing } => "kill",
        Action::Close => "close",
        Action::Io { fault: Some(IoFault::Fail), .. } => "failed operation",
        Action::Io { fault: Some(IoFault::Short { .. }), .. } => "short write",
        Action::Io { fault: Some(IoFault::NoDescriptor), .. } => "no descriptor",
        Action::PerformRead { fault: Some(_), .. } => "failed read",
        Action::SetFreeSpace { bytes: Some(_) } => "full disk",
        Action::Damage { .. } => "damage",
        Action::BootAndCrash { .. } => "crash while starting",
        Action::JumpClock { .. } => "clock set",
        Action::Configure(_) => "other configuration",
        _ => return None,
    })
}

/// The name of an action in traces, if it is a client's or changes what the broker does.
fn name(action: &Action) -> Option<String> {
    match action {
        Action::Request(request) | Action::Send { request, .. } => request_name(request),
        Action::Wake => Some("wake".to_owned()),
        Action::Snapshot => Some("snapshot".to_owned()),
        _ => None,
    }
}

fn request_name(request: &Request) -> Option<String> {
    match serde_json::to_value(request).ok()? {
        Value::Object(fields) => fields.into_iter().next().map(|(name, _)| name),
        Value::String(name) => Some(name),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_after_a_flush_meets_only_what_came_since() {
        let lines = r#"{"ask":{"create":{"topic":"t0"}}}
            "settle"
            {"ask":{"produce":{"message":"m0","topic":"t0"}}}
            {"crash":{"loss":"all"}}"#;
        let actions: Vec<Action> = lines.lines().map(|line| serde_json::from_str(line).expect("an action")).collect();
        let met = met(&actions);
        assert_eq!(met, BTreeSet::from([("produce".to_owned(), "power loss".to_owned())]));
        let left: Vec<_> = never_met(&met).collect();
        assert_eq!(left.len(), FAULTS.len() - 1);
        assert!(!left.contains(&("produce", "power loss")), "{left:?}");
    }
}
