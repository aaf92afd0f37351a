//! Effects: each under a grant, none twice beyond what is allowed, none missing.

use std::collections::{BTreeMap, HashSet};

use serde_json::Value;

use super::Conviction;
use super::facts::{Delivery, Effect, Facts, Grant};
use crate::keys::idempotency_key;
use crate::scenario::Worker;

/// An effect with what it ran for.
struct Traced<'a> {
    effect: &'a Effect,
    delivery: &'a Delivery,
    /// Nothing where the store was not asked for.
    grant: Option<&'a Grant>,
    is_side_effect: bool,
}

pub(super) fn check(facts: &Facts, convictions: &mut Vec<Conviction>) {
    let mut by_name: BTreeMap<(&str, &str), Vec<Traced<'_>>> = BTreeMap::new();
    for effect in &facts.effects {
        let Some(worker) = facts.scenario.workers.iter().find(|worker| worker.worker == effect.worker) else {
            continue;
        };
        match traced(facts, effect, worker) {
            Ok(traced) => {
                settled_before(facts, &traced, convictions);
                by_name.entry((&worker.group, &effect.name)).or_default().push(traced);
            }
            Err(conviction) => convictions.push(conviction),
        }
    }
    for effects in by_name.values() {
        for pair in effects.windows(2) {
            twice(facts, &pair[0], &pair[1], convictions);
        }
    }
    missing(facts, convictions);
    unfinished(facts, convictions);
    without_delivery(facts, convictions);
}

/// Finds the delivery and the grant of an effect.
fn traced<'a>(facts: &'a Facts, effect: &'a Effect, worker: &Worker) -> Result<Traced<'a>, Conviction> {
    let lacks = |what: &str| Conviction {
        rule: "effect_without_grant",
        text: format!("effect {:?} of {}, attempt {}, {what}", effect.name, effect.message, effect.attempt),
        entries: vec![effect.entry],
    };
    let delivery = facts.deliveries.iter().rev().find(|delivery| {
        delivery.incarnation == effect.incarnation
            && delivery.message == effect.message
            && delivery.attempts == effect.attempt
            && delivery.group == worker.group
            && delivery.t <= effect.t
    });
    let delivery = delivery.ok_or_else(|| lacks("runs without a delivery"))?;
    let is_side_effect = names(worker, "side_effect", delivery).contains(&effect.name);
    let mut grants = facts.grants.iter().filter(|grant| grant.incarnation == effect.incarnation && grant.t <= effect.t);
    let grant = if is_side_effect {
        let message = delivery.idempotency_key.clone().unwrap_or_else(|| position(&delivery.message));
        let id = idempotency_key(&[&delivery.topic, &delivery.group, &message]);
        let key = idempotency_key(&[&effect.name]) + ":";
        grants.rfind(|grant| grant.scope["kind"] == "task" && grant.scope["id"] == *id && grant.key.starts_with(&key))
    } else {
        match (&worker.scope, &delivery.idempotency_key) {
            (Some(Value::String(scope)), _) if scope == "none" => {
                return Ok(Traced { effect, delivery, grant: None, is_side_effect });
            }
            (_, None) => return Ok(Traced { effect, delivery, grant: None, is_side_effect }),
            (None, Some(_)) => grants.rfind(|grant| grant.delivery_token.as_ref() == Some(&delivery.token)),
            (Some(scope), Some(key)) => grants.rfind(|grant| grant.key == *key && kind(&grant.scope) == kind(scope)),
        }
    };
    let grant = grant.ok_or_else(|| lacks("runs without a grant"))?;
    Ok(Traced { effect, delivery, grant: Some(grant), is_side_effect })
}

/// The kind of a scope, given as an object or by its kind alone.
fn kind(scope: &Value) -> Option<&str> {
    scope.as_str().or_else(|| scope["kind"].as_str())
}

/// `partition:offset` of a message.
fn position(message: &str) -> String {
    let mut parts = message.rsplit('/');
    let (offset, partition) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    format!("{partition}:{offset}")
}

/// The names of the effects that a worker has for a delivery, by steps of this kind.
fn names(worker: &Worker, step: &str, delivery: &Delivery) -> HashSet<String> {
    let key = delivery.idempotency_key.as_deref().unwrap_or(&delivery.message);
    let steps = worker.handler.iter().filter(|known| known["do"] == step);
    steps
        .filter_map(|step| step["name"].as_str())
        .map(|name| expanded(name, key, &delivery.message, &delivery.attempts.to_string()))
        .collect()
}

fn expanded(name: &str, key: &str, message: &str, attempt: &str) -> String {
    name.replace("{message}", message).replace("{key}", key).replace("{attempt}", attempt)
}

fn settled_before(facts: &Facts, traced: &Traced<'_>, convictions: &mut Vec<Conviction>) {
    let effect = traced.effect;
    let settled = facts
        .calls_of(&traced.delivery.token)
        .find(|call| matches!(call.path.as_str(), "/v1/ack" | "/v1/complete") && call.sent < effect.t);
    if let Some(call) = settled {
        convictions.push(Conviction {
            rule: "settled_before_effect",
            text: format!("effect {:?} of {} runs after {}", effect.name, effect.message, call.path),
            entries: vec![call.entry, effect.entry],
        });
    }
}

fn twice(facts: &Facts, first: &Traced<'_>, second: &Traced<'_>, convictions: &mut Vec<Conviction>) {
    let is_same_delivery = first.delivery.token == second.delivery.token;
    let why = match (first.grant, second.grant) {
        (Some(one), Some(two)) if one.token == two.token => "under one grant",
        (Some(one), Some(_)) if has_failed(facts, one) => return,
        (Some(one), Some(_)) if first.is_side_effect && facts.had_lapsed(one, first.delivery) => return,
        (Some(_), Some(_)) if is_same_delivery => "for one delivery, without a recorded failure",
        (Some(_), Some(two)) if first.is_side_effect && !has_ended(facts, first.delivery, two.t) => {
            "while its first grant was neither failed nor lost"
        }
        (Some(_), Some(_)) if was_given_back(facts, first.delivery) => "because its message was given back meanwhile",
        (None, None) if is_same_delivery => "for one delivery",
        _ => return,
    };
    let grants = [first.grant, second.grant].into_iter().flatten().map(|grant| grant.entry);
    convictions.push(Conviction {
        rule: "effect_twice",
        text: format!("effect {:?} of {} runs twice {why}", first.effect.name, first.effect.message),
        entries: grants.chain([first.effect.entry, second.effect.entry]).collect(),
    });
}

fn has_failed(facts: &Facts, grant: &Grant) -> bool {
    facts.calls.iter().any(|call| {
        call.path == "/v1/idempotency/finish"
            && call.body["lease_token"] == grant.token.as_str()
            && call.body["status"] != "SUCCEEDED"
    })
}

/// Whether the client itself ended the delivery for another worker to have it.
fn was_given_back(facts: &Facts, delivery: &Delivery) -> bool {
    facts.settle(delivery).is_some_and(|call| matches!(call.path.as_str(), "/v1/release" | "/v1/nack"))
}

/// Whether a delivery was lost, given back or failed, or its process ended, before `t`.
fn has_ended(facts: &Facts, delivery: &Delivery, t: u64) -> bool {
    facts.lease_ended(delivery).is_some_and(|end| end < t)
        || facts.settle(delivery).is_some_and(|call| call.sent < t && call.path != "/v1/complete")
}

/// Each message that is stored has the effects of the workers of its topic, unless it is a dead letter.
fn missing(facts: &Facts, convictions: &mut Vec<Conviction>) {
    if !facts.scenario.end.effects {
        return;
    }
    let ledger: HashSet<(&str, &str)> =
        facts.effects.iter().map(|effect| (effect.worker.as_str(), effect.name.as_str())).collect();
    for worker in &facts.scenario.workers {
        let group: Vec<&str> = facts
            .scenario
            .workers
            .iter()
            .filter(|other| other.topic == worker.topic && other.group == worker.group)
            .map(|other| other.worker.as_str())
            .collect();
        for item in super::ends::items(facts, &worker.topic) {
            let message = format!("{}/{}/{}", worker.topic, item["partition"], item["offset"]);
            let key = item["envelope"]["idempotency_key"].as_str().unwrap_or(&message);
            if super::ends::is_dead_letter(facts, &worker.topic, item) {
                continue;
            }
            let steps = worker.handler.iter().filter(|step| step["do"] == "effect" || step["do"] == "side_effect");
            for name in steps.filter_map(|step| step["name"].as_str()).filter(|name| !name.contains("{attempt}")) {
                let name = expanded(name, key, &message, "");
                if !group.iter().any(|&worker| ledger.contains(&(worker, name.as_str()))) {
                    convictions.push(Conviction {
                        rule: "effect_missing",
                        text: format!("message {message} has no effect {name:?}"),
                        entries: Vec::new(),
                    });
                }
            }
        }
    }
}

/// A message that goes back, or fails, while its effect is granted to the client.
fn unfinished(facts: &Facts, convictions: &mut Vec<Conviction>) {
    for delivery in &facts.deliveries {
        let Some(settle) = facts.settle(delivery) else { continue };
        if !matches!(settle.path.as_str(), "/v1/nack" | "/v1/release") {
            continue;
        }
        let of_delivery = |grant: &&Grant| grant.delivery_token.as_ref() == Some(&delivery.token);
        let grants: Vec<&Grant> = facts.grants.iter().filter(of_delivery).collect();
        let is_known = |grant: &&&Grant| {
            let allowance = facts.allowance(delivery.incarnation, grant.t, settle.sent);
            grant.is_certain && grant.t.saturating_add(allowance) < settle.sent
        };
        let Some(begun) = grants.iter().find(is_known) else { continue };
        let is_finished = facts.calls.iter().any(|call| {
            call.path == "/v1/idempotency/finish"
                && call.sent < settle.sent
                && grants.iter().any(|grant| call.body["lease_token"] == grant.token.as_str())
        });
        if !is_finished {
            convictions.push(Conviction {
                rule: "ended_without_finish",
                text: format!("{} of {} leaves its effect in progress", settle.path, delivery.message),
                entries: vec![begun.entry, settle.entry],
            });
        }
    }
}

fn without_delivery(facts: &Facts, convictions: &mut Vec<Conviction>) {
    let begins = facts.calls.iter().filter(|call| call.path == "/v1/idempotency/begin");
    for call in begins.filter(|call| call.body["scope"]["kind"] == "consume" && call.delivery_token().is_none()) {
        convictions.push(Conviction {
            rule: "begin_without_delivery",
            text: format!("begin of {} names no delivery", call.body["key"]),
            entries: vec![call.entry],
        });
    }
}
