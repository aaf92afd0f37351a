//! What a step could be instead and be simpler, the boldest change first. Every change leads downwards, so this ends.

use serde_json::{Number, Value};

use super::json;
use crate::actions::{Action, Loss};
use crate::setup::Setup;

/// What tells two messages or two calls apart. A trace in which all have one name would be shorter to write and harder to read;
/// they are counted anew in the end.
const IDENTITIES: &[&str] = &["message", "call"];

/// Simpler steps than this one.
pub(super) fn than(action: &Action) -> Vec<Action> {
    let mut simpler = of_another_kind(action);
    let changed = variants(&json::of(action)).into_iter().filter_map(json::back::<Action>);
    simpler.extend(changed.filter(|changed| changed != action));
    simpler
}

/// Setups in which one field has its default or is smaller. None is 0: a limit of nothing is no world to be in.
pub(super) fn setups(setup: &Setup, field: &str) -> Vec<Setup> {
    let with = |value: Value| {
        let mut changed = json::of(setup);
        changed[field] = value;
        json::back(changed)
    };
    let usual = json::of(&Setup::default())[field].clone();
    let now = json::of(setup)[field].as_u64().unwrap_or_default();
    let fewer = smaller(now).into_iter().filter(|number| *number > 0).map(Value::from);
    std::iter::once(usual).chain(fewer).filter_map(with).collect()
}

/// A fault that does not happen, a call that is not late, all I/O instead of a piece of it.
fn of_another_kind(action: &Action) -> Vec<Action> {
    match action {
        Action::Send { request, .. } => vec![Action::Request(request.clone())],
        Action::Io { class, fault: Some(_) } => vec![Action::FlushIo, Action::Io { class: *class, fault: None }],
        Action::Io { fault: None, .. } | Action::Drain => vec![Action::FlushIo],
        Action::BootAndCrash { .. } => vec![Action::Boot, Action::Crash { loss: Loss::All }],
        Action::JumpClock { ms } => u32::try_from(*ms).map(|ms| Action::AdvanceTime { ms }).into_iter().collect(),
        _ => Vec::new(),
    }
}

/// The value with one thing left out, or one number or name smaller.
fn variants(value: &Value) -> Vec<Value> {
    match value {
        Value::Object(fields) => {
            let may_change = |field: &str| !IDENTITIES.contains(&field);
            let without = fields.keys().filter(|field| may_change(field)).map(|field| {
                let mut fields = fields.clone();
                fields.remove(field);
                Value::Object(fields)
            });
            let mut all: Vec<Value> = without.collect();
            for (field, inner) in fields.iter().filter(|(field, _)| may_change(field)) {
                let inner = if field == "loss" { losses(inner) } else { variants(inner) };
                all.extend(inner.into_iter().map(|inner| {
                    let mut fields = fields.clone();
                    fields.insert(field.clone(), inner);
                    Value::Object(fields)
                }));
            }
            all
        }
        Value::Array(items) => items_of(items),
        Value::Number(number) => numbers(number),
        Value::String(text) => match json::name(text) {
            Some((before, _, number)) => smaller(u64::from(number))
                .into_iter()
                .map(|number| Value::String(format!("{before}{number}")))
                .collect(),
            None => Vec::new(),
        },
        _ => Vec::new(),
    }
}

/// The list without one of its items, or with a simpler one.
fn items_of(items: &[Value]) -> Vec<Value> {
    let without = (0..items.len()).map(|at| {
        let mut items = items.to_vec();
        items.remove(at);
        Value::Array(items)
    });
    let mut all: Vec<Value> = without.collect();
    for (at, item) in items.iter().enumerate() {
        all.extend(variants(item).into_iter().map(|simpler| {
            let mut items = items.to_vec();
            items[at] = simpler;
            Value::Array(items)
        }));
    }
    all
}

/// Everything is the simplest loss, nothing the next; then a shorter beginning, or less luck.
fn losses(loss: &Value) -> Vec<Value> {
    match loss {
        Value::String(text) if text == "all" => Vec::new(),
        Value::String(_) => vec!["all".into()],
        some => {
            let mut losses = vec!["all".into(), "nothing".into()];
            losses.extend(variants(some));
            losses
        }
    }
}

fn numbers(number: &Number) -> Vec<Value> {
    match (number.as_u64(), number.as_i64()) {
        (Some(number), _) => smaller(number).into_iter().map(Value::from).collect(),
        (None, Some(negative)) => {
            let sizes = smaller(negative.unsigned_abs());
            sizes.into_iter().filter_map(|size| i64::try_from(size).ok()).map(|size| Value::from(-size)).collect()
        }
        _ => Vec::new(),
    }
}

/// Some numbers below, the smallest first: round ones, then ever closer, so that a threshold is found exactly.
fn smaller(number: u64) -> Vec<u64> {
    let mut below: Vec<u64> = vec![0];
    below.extend(std::iter::successors(Some(1_u64), |ten| ten.checked_mul(10)).take_while(|ten| *ten < number));
    let parts = std::iter::successors(Some(number / 2), |part| Some(part / 2)).take_while(|part| *part > 0);
    below.extend(parts.map(|part| number - part));
    below.retain(|candidate| *candidate < number);
    below.sort_unstable();
    below.dedup();
    below
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actions::{IoFault, JobClass, NewMessage, Request, RetryPolicy};
    use crate::names::{Message, Topic};

    #[test]
    fn what_is_simpler_leads_down_and_ends() {
        let new_message = NewMessage {
            message: Message(7),
            topic: Topic::new(1),
            size: 9,
            delay_ms: Some(234),
            policy: Some(RetryPolicy { attempts: 3, backoff_ms: 50, max_backoff_ms: 100 }),
            ..NewMessage::default()
        };
        let actions = [
            Action::Request(Request::Produce(new_message)),
            Action::Io { class: JobClass::Log, fault: Some(IoFault::Short { bytes: 77 }) },
            Action::BootAndCrash { after: 3, loss: Loss::Partial { seed: 999 } },
            Action::Crash { loss: Loss::Cut { bytes: 4_321 } },
            Action::JumpClock { ms: -600 },
        ];
        for first in actions {
            // However one goes down, one arrives.
            for part in [0, 1, 2, 4] {
                let mut action = first.clone();
                for turn in 0.. {
                    assert!(turn < 5_000, "{first:?} never ends, at {action:?}");
                    let all = than(&action);
                    assert!(!all.contains(&action));
                    let Some(next) = all.get(all.len() * part / 5) else { break };
                    action = next.clone();
                }
            }
        }
    }

    #[test]
    fn a_cut_becomes_a_loss_of_all_or_a_shorter_one() {
        let losses: Vec<_> = than(&Action::Crash { loss: Loss::Cut { bytes: 3 } })
            .into_iter()
            .filter_map(|action| if let Action::Crash { loss } = action { Some(loss) } else { None })
            .collect();
        let cut = |bytes| Loss::Cut { bytes };
        assert_eq!(losses, [Loss::All, Loss::Nothing, cut(0), cut(1), cut(2)]);
    }

    #[test]
    fn an_option_is_dropped_whole_before_it_is_made_smaller() {
        let new_message = NewMessage { delay_ms: Some(8), ..NewMessage::default() };
        let all = than(&Action::Request(Request::Produce(new_message)));
        let delays: Vec<_> = all
            .iter()
            .filter_map(|action| match action {
                Action::Request(Request::Produce(new_message)) => Some(new_message.delay_ms),
                _ => None,
            })
            .collect();
        assert_eq!(delays.first(), Some(&None));
        assert!(delays.contains(&Some(1)), "{delays:?}");
    }
}
