//! Leases: extended in time, not used once they are lost; and how many a worker has, and in which order.

use std::collections::HashMap;

use serde_json::Value;

use super::facts::{Call, Delivery, Facts};
use super::{Conviction, IN_TRANSIT_US};
use crate::keys::idempotency_key;
use crate::scenario::Worker;

const US_PER_MS: u64 = 1_000;

pub(super) fn check(facts: &Facts, convictions: &mut Vec<Conviction>) {
    for delivery in &facts.deliveries {
        let Some(worker) = facts.worker_of(delivery) else { continue };
        heartbeats(facts, worker, delivery, convictions);
        refused(facts, worker, delivery, convictions);
        lapsed(facts, worker, delivery, convictions);
        results(facts, delivery, convictions);
    }
    side_effects(facts, convictions);
    for worker in &facts.scenario.workers {
        handlers(facts, worker, convictions);
        order(facts, worker, convictions);
    }
    credit(facts, convictions);
}

/// Whether steps of the worker keep the client from acting for a while.
fn blocks(worker: &Worker) -> bool {
    worker.handler.iter().any(|step| step["do"] == "block" || step["do"] == "stubborn")
}

/// The first request that reports an outcome for a delivery: of its lease, or of a grant of its effect.
fn outcome<'a>(facts: &'a Facts, delivery: &Delivery) -> Option<&'a Call> {
    let grants: Vec<&str> = facts
        .grants
        .iter()
        .filter(|grant| grant.delivery_token.as_ref() == Some(&delivery.token))
        .map(|grant| grant.token.as_str())
        .collect();
    let finished = facts.calls.iter().find(|call| {
        call.path == "/v1/idempotency/finish"
            && call.body["lease_token"].as_str().is_some_and(|token| grants.contains(&token))
    });
    let settled = facts.calls_of(&delivery.token).find(|call| call.settles() && call.path != "/v1/release");
    [finished, settled].into_iter().flatten().min_by_key(|call| call.sent)
}

/// The times of the effects of a delivery.
fn effects<'a>(facts: &'a Facts, delivery: &'a Delivery) -> impl Iterator<Item = (u64, usize)> + 'a {
    facts
        .effects
        .iter()
        .filter(|effect| {
            effect.incarnation == delivery.incarnation
                && effect.message == delivery.message
                && effect.attempt == delivery.attempts
        })
        .map(|effect| (effect.t, effect.entry))
}

fn heartbeats(facts: &Facts, worker: &Worker, delivery: &Delivery, convictions: &mut Vec<Conviction>) {
    if blocks(worker) {
        return;
    }
    let lost = facts.lost(delivery).unwrap_or(u64::MAX);
    let settled = facts.settle(delivery).map(|call| (call.sent, call.entry));
    let extends = facts.calls_of(&delivery.token).filter(|call| call.path == "/v1/extend");
    let message = Kept {
        what: format!("{}, attempt {}", delivery.message, delivery.attempts),
        incarnation: delivery.incarnation,
        lease_ms: worker.lease_ms,
        begin: (delivery.t, delivery.entry),
        heartbeats: extends.map(|call| (call.sent, call.entry)).collect(),
        uses: effects(facts, delivery).chain(settled).collect(),
        until: settled.map_or(u64::MAX, |(t, _)| t).min(lost),
    };
    let granted =
        facts.grants.iter().filter(|grant| grant.is_certain && grant.delivery_token.as_ref() == Some(&delivery.token));
    let of_effects = granted.map(|grant| {
        let ended = [outcome(facts, delivery), facts.settle(delivery)].into_iter().flatten();
        let ended = ended.map(|call| (call.sent, call.entry)).min();
        Kept {
            what: format!("the effect of {}, attempt {}", delivery.message, delivery.attempts),
            begin: (grant.t, grant.entry),
            heartbeats: facts.renewals(&grant.token).map(|call| (call.sent, call.entry)).collect(),
            uses: effects(facts, delivery).filter(|(t, _)| *t > grant.t).chain(ended).collect(),
            until: ended.map_or(u64::MAX, |(t, _)| t).min(lost),
            ..message.clone()
        }
    });
    let of_effects: Vec<Kept> = of_effects.collect();
    convictions.extend([message].iter().chain(&of_effects).find_map(|kept| late(facts, kept)));
}

/// Grants of side effects are kept, too, until they are finished.
fn side_effects(facts: &Facts, convictions: &mut Vec<Conviction>) {
    for grant in facts.grants.iter().filter(|grant| grant.is_certain && grant.scope["kind"] == "task") {
        let id = grant.scope["id"].as_str().unwrap_or_default();
        let worker = facts.scenario.workers.iter().filter(|worker| !blocks(worker)).find(|worker| {
            id.strip_prefix(&idempotency_key(&[&worker.topic, &worker.group])).is_some_and(|rest| rest.starts_with(':'))
        });
        let finish = facts
            .calls
            .iter()
            .find(|call| call.path == "/v1/idempotency/finish" && call.body["lease_token"] == grant.token.as_str());
        let (Some(worker), Some(finish)) = (worker, finish) else { continue };
        let lost = facts.renewals(&grant.token).filter(|call| call.is_refused_as_stale()).map(|call| call.ended);
        let kept = Kept {
            what: format!("the side effect {}", grant.key),
            incarnation: grant.incarnation,
            lease_ms: worker.lease_ms,
            begin: (grant.t, grant.entry),
            heartbeats: facts.renewals(&grant.token).map(|call| (call.sent, call.entry)).collect(),
            uses: vec![(finish.sent, finish.entry)],
            until: lost.min().unwrap_or(u64::MAX),
        };
        convictions.extend(late(facts, &kept));
    }
}

/// A lease that its holder has to keep.
#[derive(Clone)]
struct Kept {
    what: String,
    incarnation: usize,
    lease_ms: u64,
    /// All of these are times, with the entries that show them.
    begin: (u64, usize),
    heartbeats: Vec<(u64, usize)>,
    uses: Vec<(u64, usize)>,
    /// When it was given back or lost.
    until: u64,
}

/// The first use of a lease whose heartbeat was due long before.
fn late(facts: &Facts, kept: &Kept) -> Option<Conviction> {
    let lease = kept.lease_ms * US_PER_MS;
    let heartbeats = kept.heartbeats.iter().map(|&(t, at)| (t, at, true));
    let uses = kept.uses.iter().map(|&(t, at)| (t, at, false));
    let mut points: Vec<_> = heartbeats.chain(uses).filter(|(t, ..)| *t <= kept.until).collect();
    points.sort_unstable();
    let mut last = kept.begin;
    for (t, at, is_heartbeat) in points {
        let allowance = facts.allowance(kept.incarnation, last.0, t);
        let limit = (lease * 2 / 3).saturating_add(allowance).min(lease.saturating_add(allowance - IN_TRANSIT_US));
        if t.saturating_sub(last.0) > limit {
            return Some(Conviction {
                rule: "heartbeat_late",
                text: format!(
                    "{}: no heartbeat for {} ms of a lease of {} ms",
                    kept.what,
                    (t - last.0) / US_PER_MS,
                    kept.lease_ms
                ),
                entries: vec![last.1, at],
            });
        }
        if is_heartbeat {
            last = (t, at);
        }
    }
    None
}

/// What is reported, or done, although an answer had said that the lease is lost.
fn refused(facts: &Facts, worker: &Worker, delivery: &Delivery, convictions: &mut Vec<Conviction>) {
    let Some(lost) = facts.lost(delivery) else { return };
    let late = outcome(facts, delivery).map(|call| (call.sent, call.entry, call.path.as_str()));
    let effect = effects(facts, delivery).filter(|_| !blocks(worker)).last().map(|(t, at)| (t, at, "an effect"));
    for (t, at, what) in [late, effect].into_iter().flatten() {
        if t > lost.saturating_add(facts.allowance(delivery.incarnation, lost, t)) {
            let ms = (t - lost) / US_PER_MS;
            convictions.push(Conviction {
                rule: "lost_lease_used",
                text: format!("{}, attempt {}: {what} {ms} ms after its loss", delivery.message, delivery.attempts),
                entries: vec![delivery.entry, at],
            });
        }
    }
}

/// An outcome that is reported although no heartbeat had succeeded for a whole lease.
fn lapsed(facts: &Facts, worker: &Worker, delivery: &Delivery, convictions: &mut Vec<Conviction>) {
    let Some(outcome) = outcome(facts, delivery) else { return };
    let succeeded = facts
        .calls_of(&delivery.token)
        .filter(|call| call.path == "/v1/extend" && call.status == 200 && call.ended < outcome.sent)
        .map(|call| (call.sent, call.entry))
        .last();
    let (since, entry) = succeeded.unwrap_or((delivery.t, delivery.entry));
    let silent = outcome.sent.saturating_sub(since);
    let allowance = facts.allowance(delivery.incarnation, since, outcome.sent);
    if silent > (worker.lease_ms * US_PER_MS).saturating_add(allowance) {
        convictions.push(Conviction {
            rule: "lost_lease_used",
            text: format!(
                "{}, attempt {}: {} after {} ms without a heartbeat that succeeded, of a lease of {} ms",
                delivery.message,
                delivery.attempts,
                outcome.path,
                silent / US_PER_MS,
                worker.lease_ms
            ),
            entries: vec![entry, outcome.entry],
        });
    }
}

/// A result says which attempt made it, where the scenario wants it so (`"attempt": "{attempt}"`).
fn results(facts: &Facts, delivery: &Delivery, convictions: &mut Vec<Conviction>) {
    // A begin in another scope than the message's names its key alone.
    let is_of = |body: &Value| match body["delivery"]["lease_token"].as_str() {
        Some(token) => token == delivery.token,
        None => body["key"].as_str().is_some_and(|key| delivery.idempotency_key.as_deref() == Some(key)),
    };
    let is_replayed = facts
        .calls
        .iter()
        .filter(|call| call.incarnation == delivery.incarnation && call.sent >= delivery.t && is_of(&call.body))
        .any(|call| call.path == "/v1/idempotency/begin" && call.answer["decision"] == "REPLAY");
    for call in facts.calls_of(&delivery.token).filter(|call| call.path == "/v1/complete" && !is_replayed) {
        let Some(attempt) = call.body["result"]["attempt"].as_str() else { continue };
        if attempt != delivery.attempts.to_string() {
            convictions.push(Conviction {
                rule: "stale_result",
                text: format!(
                    "{}: the result of attempt {attempt} is reported for attempt {}",
                    delivery.message, delivery.attempts
                ),
                entries: vec![delivery.entry, call.entry],
            });
        }
    }
}

/// How many effects are granted to a worker at once, counting only those that certainly run.
fn handlers(facts: &Facts, worker: &Worker, convictions: &mut Vec<Conviction>) {
    let mut changes: Vec<(u64, i64, usize, usize)> = Vec::new();
    for delivery in facts.deliveries.iter().filter(|delivery| is_of(worker, delivery)) {
        let granted = facts
            .grants
            .iter()
            .filter(|grant| grant.is_certain && grant.delivery_token.as_ref() == Some(&delivery.token))
            .map(|grant| (grant.t, grant.entry))
            .min();
        let outcomes = [outcome(facts, delivery), facts.settle(delivery)];
        let settled = outcomes.into_iter().flatten().map(|call| call.sent).min().unwrap_or(0);
        let end = settled.min(facts.lease_ended(delivery).unwrap_or(u64::MAX));
        if let Some((t, entry)) = granted.filter(|(t, _)| *t < end) {
            changes.push((t, 1, entry, delivery.incarnation));
            changes.push((end, -1, entry, delivery.incarnation));
        }
    }
    changes.sort_unstable();
    let mut running: HashMap<usize, i64> = HashMap::new();
    for (_, change, entry, incarnation) in changes {
        let count = running.entry(incarnation).or_default();
        *count += change;
        if *count > i64::from(worker.concurrency) {
            convictions.push(Conviction {
                rule: "too_many_handlers",
                text: format!("{count} handlers of {} run at once, not {}", worker.worker, worker.concurrency),
                entries: vec![entry],
            });
            return;
        }
    }
}

fn is_of(worker: &Worker, delivery: &Delivery) -> bool {
    worker.topic == delivery.topic && worker.group == delivery.group
}

fn credit(facts: &Facts, convictions: &mut Vec<Conviction>) {
    for stream in &facts.streams {
        let parameter = |name: &str| stream.query.get(name).map(String::as_str);
        let worker = facts.scenario.workers.iter().find(|worker| {
            parameter("topic") == Some(worker.topic.as_str()) && parameter("group") == Some(worker.group.as_str())
        });
        let Some(worker) = worker else { continue };
        let prefetch = parameter("prefetch").or(parameter("max")).and_then(|text| text.parse().ok()).unwrap_or(0);
        if prefetch == 0 || prefetch > worker.concurrency {
            convictions.push(Conviction {
                rule: "credit",
                text: format!("a stream of {} has a prefetch of {prefetch}", worker.worker),
                entries: vec![stream.entry],
            });
        }
    }
}

/// Messages of one key: begun in the order of their deliveries, the next one when the one before has its outcome.
fn order(facts: &Facts, worker: &Worker, convictions: &mut Vec<Conviction>) {
    if !worker.per_key_order {
        return;
    }
    let mut last: HashMap<(usize, &str), (&Delivery, u64)> = HashMap::new();
    for delivery in facts.deliveries.iter().filter(|delivery| is_of(worker, delivery) && !delivery.key.is_empty()) {
        let begun = facts.calls_of(&delivery.token).find(|call| call.path == "/v1/idempotency/begin");
        let Some(begun) = begun.map(|call| (call.sent, call.entry)) else { continue };
        let of_key = (delivery.incarnation, delivery.key.as_str());
        if let Some((before, end)) = last.get(&of_key).filter(|(_, end)| begun.0 < *end) {
            convictions.push(Conviction {
                rule: "key_order",
                text: format!(
                    "{} is begun {} ms before {}, of the same key, has its outcome",
                    delivery.message,
                    (end - begun.0) / US_PER_MS,
                    before.message
                ),
                entries: vec![before.entry, begun.1],
            });
        }
        let outcomes = [outcome(facts, delivery), facts.settle(delivery)];
        let end = outcomes.into_iter().flatten().map(|call| call.sent).min();
        // One that was lost, or whose process ended, does not hold up the next; nor does one that had its end unseen.
        let end = end.unwrap_or(0).min(facts.lost(delivery).unwrap_or(u64::MAX));
        last.insert(of_key, (delivery, end));
    }
}
