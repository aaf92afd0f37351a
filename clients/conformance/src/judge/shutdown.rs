//! A worker that has stopped holds nothing.

use super::facts::{Delivery, Facts};
use super::{Conviction, IN_TRANSIT_US};
use crate::scenario::Worker;

pub(super) fn check(facts: &Facts, convictions: &mut Vec<Conviction>) {
    let stops = facts.operations.iter().filter(|operation| operation.request["op"] == "worker_stop");
    for stop in stops {
        let worker = facts.scenario.workers.iter().find(|worker| stop.request["worker"] == worker.worker.as_str());
        let (Some(worker), Some((stopped, _))) = (worker, &stop.answer) else { continue };
        let held = facts
            .deliveries
            .iter()
            .filter(|delivery| delivery.incarnation == stop.incarnation)
            .filter(|delivery| delivery.topic == worker.topic && delivery.group == worker.group)
            .find(|delivery| delivery.t < *stopped && is_held(facts, worker, delivery, *stopped));
        if let Some(delivery) = held {
            convictions.push(Conviction {
                rule: "held_after_stop",
                text: format!("{} has stopped and holds {}", worker.worker, delivery.message),
                entries: vec![delivery.entry, stop.entry],
            });
        }
    }
}

/// Whether a client that has stopped at this time certainly had the delivery and has not given it back.
fn is_held(facts: &Facts, worker: &Worker, delivery: &Delivery, stopped: u64) -> bool {
    let stream_ended = delivery.stream_ended.min(stopped);
    let allowance = facts.allowance(delivery.incarnation, delivery.t, stream_ended);
    let mut calls = facts.calls_of(&delivery.token).peekable();
    let has_shown_it = calls.peek().is_some();
    // The client may not have read what came just before its stream ended.
    let has_read_it = delivery.t.saturating_add(allowance) < stream_ended;
    let is_settled = calls.any(|call| call.settles() && call.sent <= stopped);
    let is_lost = facts.lease_ended(delivery).is_some_and(|end| end <= stopped);
    let last = facts
        .calls_of(&delivery.token)
        .filter(|call| call.path == "/v1/extend" && call.status == 200 && call.sent <= stopped)
        .map(|call| call.sent)
        .last();
    let last = last.unwrap_or(delivery.t);
    // What a client that got no processor has not read in time it counts as lost.
    let stalled = facts.allowance(delivery.incarnation, last, stopped) - IN_TRANSIT_US;
    let has_lapsed = last + worker.lease_ms * 1_000 < stopped.saturating_add(stalled);
    (has_shown_it || has_read_it) && !is_settled && !is_lost && !has_lapsed
}
