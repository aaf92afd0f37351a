//! Simpler variants of an action, the largest simplification first. Every variant is strictly simpler, so
//! simplification ends.

use serde_json::{Number, Value};

use super::json;
use crate::actions::{Action, Loss};
use crate::setup::Setup;

/// Fields that identify messages and calls. If all shared one name the trace would be shorter but harder to read; they
/// are renumbered at the end.
const IDENTITIES: &[&str] = &["message", "call"];

/// Simpler actions than this one.
pub(super) fn actions(action: &Action) -> Vec<Action> {
    let mut simpler = of_another_kind(action);
    let changed = variants(&json::of(action)).into_iter().filter_map(json::parse::<Action>);
    simpler.extend(changed.filter(|changed| changed != action));
    simpler
}

/// Setups with the default or a smaller value in one field. Never 0: no broker runs with a limit of 0.
pub(super) fn setups(setup: &Setup, field: &str) -> Vec<Setup> {
    let with = |value: Value| {
        let mut changed = json::of(setup);
        changed[field] = value;
        json::parse(changed)
    };
    let default = json::of(&Setup::default())[field].clone();
    let current = json::of(setup)[field].as_u64().unwrap_or_default();
    let smaller = smaller(current).into_iter().filter(|number| *number > 0).map(Value::from);
    std::iter::once(default).chain(smaller).filter_map(with).collect()
}

/// Without the fault, without the network delay, all I/O instead of one operation.
fn of_another_kind(action: &Action) -> Vec<Action> {
    match action {
        Action::Send { request, .. } => vec![Action::Request(request.clone())],
        Action::Io { class, fault: Some(_) } => vec![Action::FlushIo, Action::Io { class: *class, fault: None }],
        Action::Io { fault: None, .. } | Action::CompleteRead { .. } | Action::Drain => vec![Action::FlushIo],
        Action::PerformRead { nth, fault: Some(_), .. } => {
            vec![Action::FlushIo, Action::PerformRead { nth: *nth, fault: None, late: false }]
        }
        Action::PerformRead { fault: None, .. } => vec![Action::FlushIo],
        Action::RebaseClock => vec![Action::Boot],
        Action::BootAndCrash { .. } => vec![Action::Boot, Action::Crash { loss: Loss::All }],
        Action::JumpClock { ms } => u32::try_from(*ms).map(|ms| Action::AdvanceTime { ms }).into_iter().collect(),
        _ => Vec::new(),
    }
}

/// The value with one field dropped, or one number or name smaller.
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
                let inner = if field == "loss" { loss_variants(inner) } else { variants(inner) };
                all.extend(inner.into_iter().map(|inner| {
                    let mut fields = fields.clone();
                    fields.insert(field.clone(), inner);
                    Value::Object(fields)
                }));
            }
            all
        }
        Value::Array(items) => array_variants(items),
        Value::Number(number) => number_variants(number),
        Value::String(text) => match json::name(text) {
            Some((prefix, _, number)) => smaller(u64::from(number))
                .into_iter()
                .map(|number| Value::String(format!("{prefix}{number}")))
                .collect(),
            None => Vec::new(),
        },
        _ => Vec::new(),
    }
}

/// The list without one item, or with a simpler one.
fn array_variants(items: &[Value]) -> Vec<Value> {
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

/// Losing everything is the simplest, losing nothing the next; then a shorter prefix or a smaller seed.
fn loss_variants(loss: &Value) -> Vec<Value> {
    match loss {
        Value::String(text) if text == "all" => Vec::new(),
        Value::String(_) => vec!["all".into()],
        partial => {
            let mut losses = vec!["all".into(), "nothing".into()];
            losses.extend(variants(partial));
            losses
        }
    }
}

fn number_variants(number: &Number) -> Vec<Value> {
    match (number.as_u64(), number.as_i64()) {
        (Some(number), _) => smaller(number).into_iter().map(Value::from).collect(),
        (None, Some(negative)) => {
            let sizes = smaller(negative.unsigned_abs());
            sizes.into_iter().filter_map(|size| i64::try_from(size).ok()).map(|size| Value::from(-size)).collect()
        }
        _ => Vec::new(),
    }
}

/// Some smaller numbers, the smallest first: powers of ten, then ever closer, so that a threshold is found exactly.
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
    use crate::actions::{IoFault, JobClass, NewMessage, ReadFault, Request, RetryPolicy};
    use crate::names::{Message, Topic};

    #[test]
    fn simplification_ends_for_every_action() {
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
            Action::PerformRead { nth: 3, fault: Some(ReadFault::Short { bytes: 77 }), late: true },
            Action::CompleteRead { nth: 3 },
            Action::Rot { payload: 3, bit: 77 },
        ];
        for first in actions {
            // Whichever variants are chosen, simplification ends.
            for part in [0, 1, 2, 4] {
                let mut action = first.clone();
                for turn in 0.. {
                    assert!(turn < 5_000, "{first:?} does not end, at {action:?}");
                    let all = super::actions(&action);
                    assert!(!all.contains(&action));
                    let Some(next) = all.get(all.len() * part / 5) else { break };
                    action = next.clone();
                }
            }
        }
    }

    #[test]
    fn cut_becomes_a_loss_of_all_or_a_shorter_cut() {
        let losses: Vec<_> = super::actions(&Action::Crash { loss: Loss::Cut { bytes: 3 } })
            .into_iter()
            .filter_map(|action| if let Action::Crash { loss } = action { Some(loss) } else { None })
            .collect();
        let cut = |bytes| Loss::Cut { bytes };
        assert_eq!(losses, [Loss::All, Loss::Nothing, cut(0), cut(1), cut(2)]);
    }

    #[test]
    fn optional_field_is_dropped_before_it_is_reduced() {
        let new_message = NewMessage { delay_ms: Some(8), ..NewMessage::default() };
        let all = super::actions(&Action::Request(Request::Produce(new_message)));
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
