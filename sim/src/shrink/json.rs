//! Actions as JSON, so that new kinds of actions and fields shrink without changes here.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::actions::Action;
use crate::setup::Setup;

/// The initials of names: messages, calls, workers, groups, topics.
pub(super) const KINDS: &[char] = &['m', 'c', 'w', 'g', 't'];

pub(crate) fn of(value: &impl Serialize) -> Value {
    serde_json::to_value(value).expect("the value serializes to JSON")
}

pub(super) fn parse<T: DeserializeOwned>(value: Value) -> Option<T> {
    serde_json::from_value(value).ok()
}

/// A name in a trace, such as `m12` or `dlq.t0`: its prefix, kind and number.
pub(crate) fn name(text: &str) -> Option<(&str, char, u32)> {
    let plain = text.strip_prefix("dlq.").unwrap_or(text);
    let kind = plain.chars().next().filter(|kind| KINDS.contains(kind))?;
    let number = plain[1..].parse().ok()?;
    Some((&text[..text.len() - plain.len() + 1], kind, number))
}

/// What an action concerns: its kind, the kind of its request, and all names in it.
pub(crate) fn subjects(action: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let (kind, inner) = tag(action);
    found.insert(format!("a {kind}"));
    if let Some(request) =
        inner.map(|inner| inner.get("ask").unwrap_or(inner)).filter(|_| kind == "ask" || kind == "send")
    {
        found.insert(format!("a call for {}", tag(request).0));
    }
    collect_names(action, &mut found);
    found
}

fn tag(value: &Value) -> (&str, Option<&Value>) {
    match value {
        Value::String(tag) => (tag, None),
        Value::Object(fields) => fields.iter().next().map_or(("", None), |(tag, inner)| (tag, Some(inner))),
        _ => ("", None),
    }
}

fn collect_names(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::String(text) if name(text).is_some() => {
            found.insert(text.clone());
        }
        Value::Object(fields) => fields.values().for_each(|field| collect_names(field, found)),
        Value::Array(items) => items.iter().for_each(|item| collect_names(item, found)),
        _ => {}
    }
}

/// The actions with the names of one kind renumbered from 0 in order of appearance.
pub(super) fn renamed(actions: &[Action], kind: char) -> Vec<Action> {
    let mut numbers = BTreeMap::new();
    let rename = |action: &Action| {
        let mut value = of(action);
        rename_in(&mut value, kind, &mut numbers);
        parse(value).unwrap_or_else(|| action.clone())
    };
    actions.iter().map(rename).collect()
}

fn rename_in(value: &mut Value, kind: char, numbers: &mut BTreeMap<u32, usize>) {
    match value {
        Value::String(text) => {
            if let Some((prefix, found, number)) = name(text)
                && found == kind
            {
                let next = numbers.len();
                let number = *numbers.entry(number).or_insert(next);
                *text = format!("{prefix}{number}");
            }
        }
        Value::Object(fields) => fields.values_mut().for_each(|field| rename_in(field, kind, numbers)),
        Value::Array(items) => items.iter_mut().for_each(|item| rename_in(item, kind, numbers)),
        _ => {}
    }
}

/// The fields of a setup that differ from the default.
pub(super) fn non_default_fields(setup: &Setup) -> Vec<String> {
    let (setup, default) = (of(setup), of(&Setup::default()));
    let Value::Object(default) = default else { return Vec::new() };
    default.into_iter().filter(|(field, value)| setup.get(field) != Some(value)).map(|(field, _)| field).collect()
}
