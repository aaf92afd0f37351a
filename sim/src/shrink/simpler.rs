//! What a step could be instead and be simpler, the boldest change first. Every change leads downwards, so this ends.

use serde_json::{Number, Value};

use super::json;
use crate::setup::Setup;
use crate::steps::{Loss, Step};

/// What tells two messages or two calls apart. A trace in which all have one name would be shorter to write and harder to read;
/// they are counted anew in the end.
const IDENTITIES: &[&str] = &["message", "call"];

/// Simpler steps than this one.
pub(super) fn than(step: &Step) -> Vec<Step> {
    let mut simpler = of_another_kind(step);
    let changed = variants(&json::of(step)).into_iter().filter_map(json::back::<Step>);
    simpler.extend(changed.filter(|changed| changed != step));
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
fn of_another_kind(step: &Step) -> Vec<Step> {
    match step {
        Step::Send { ask, .. } => vec![Step::Ask(ask.clone())],
        Step::Io { class, fault: Some(_) } => vec![Step::Settle, Step::Io { class: *class, fault: None }],
        Step::Io { fault: None, .. } | Step::Drain => vec![Step::Settle],
        Step::BootAndCrash { .. } => vec![Step::Boot, Step::Crash { loss: Loss::All }],
        Step::Jump { ms } => u32::try_from(*ms).map(|ms| Step::Pass { ms }).into_iter().collect(),
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
    use crate::names::{Message, Topic};
    use crate::steps::{Ask, IoFault, JobClass, Made, Policy};

    #[test]
    fn what_is_simpler_leads_down_and_ends() {
        let made = Made {
            message: Message(7),
            topic: Topic::live(1),
            size: 9,
            delay_ms: Some(234),
            policy: Some(Policy { attempts: 3, backoff_ms: 50, longest_ms: 100 }),
            ..Made::default()
        };
        let steps = [
            Step::Ask(Ask::Produce(made)),
            Step::Io { class: JobClass::Log, fault: Some(IoFault::Short { bytes: 77 }) },
            Step::BootAndCrash { after: 3, loss: Loss::Some { luck: 999 } },
            Step::Crash { loss: Loss::Cut { bytes: 4_321 } },
            Step::Jump { ms: -600 },
        ];
        for first in steps {
            // However one goes down, one arrives.
            for part in [0, 1, 2, 4] {
                let mut step = first.clone();
                for turn in 0.. {
                    assert!(turn < 5_000, "{first:?} never ends, at {step:?}");
                    let all = than(&step);
                    assert!(!all.contains(&step));
                    let Some(next) = all.get(all.len() * part / 5) else { break };
                    step = next.clone();
                }
            }
        }
    }

    #[test]
    fn a_cut_becomes_a_loss_of_all_or_a_shorter_one() {
        let losses: Vec<_> = than(&Step::Crash { loss: Loss::Cut { bytes: 3 } })
            .into_iter()
            .filter_map(|step| if let Step::Crash { loss } = step { Some(loss) } else { None })
            .collect();
        let cut = |bytes| Loss::Cut { bytes };
        assert_eq!(losses, [Loss::All, Loss::Nothing, cut(0), cut(1), cut(2)]);
    }

    #[test]
    fn an_option_is_dropped_whole_before_it_is_made_smaller() {
        let made = Made { delay_ms: Some(8), ..Made::default() };
        let all = than(&Step::Ask(Ask::Produce(made)));
        let delays: Vec<_> = all
            .iter()
            .filter_map(|step| match step {
                Step::Ask(Ask::Produce(made)) => Some(made.delay_ms),
                _ => None,
            })
            .collect();
        assert_eq!(delays.first(), Some(&None));
        assert!(delays.contains(&Some(1)), "{delays:?}");
    }
}
