//! An idempotency key has one message.

use std::collections::BTreeMap;

use crate::parsed::{ParsedHistory, PartitionOffset, ProduceRequest, is_dead_letter_topic};
use crate::report::{Check, Report};

/// The deduplication window if the setup has none.
const WINDOW_MS: u64 = 10 * 60 * 1000;

/// An answer or a delivery that shows where the message of an identity is.
struct Evidence {
    at: PartitionOffset,
    seq: u64,
    is_duplicate: bool,
}

/// What a history has about one identity.
#[derive(Default)]
struct IdentityUse<'f, 'a> {
    requests: Vec<&'f ProduceRequest<'a>>,
    evidence: Vec<Evidence>,
}

pub(super) fn check(history: &ParsedHistory<'_>, report: &mut Report) {
    // By requested topic, destination, tenant and key.
    let mut identities: BTreeMap<(&str, &str, &str, &str), IdentityUse<'_, '_>> = BTreeMap::new();
    for request in &history.requests {
        let Some((tenant, key)) = request.identity() else { continue };
        let used = identities.entry((request.requested, request.topic, tenant, key)).or_default();
        used.requests.push(request);
        let item = request.at.map(|at| Evidence { at, seq: request.span.last(), is_duplicate: request.duplicate });
        used.evidence.extend(item);
    }
    for delivery in
        history.deliveries.iter().filter(|delivery| !delivery.redriven && !is_dead_letter_topic(delivery.topic))
    {
        let Some((tenant, key)) = history.messages[&(delivery.topic, delivery.at.offset)].identity else { continue };
        // The content check reports messages that no call produced.
        let requests = history.requests_for.get(&(delivery.topic, delivery.value)).map_or(&[][..], Vec::as_slice);
        let Some(request) = requests.first().map(|index| &history.requests[*index]) else { continue };
        let Some(used) = identities.get_mut(&(request.requested, delivery.topic, tenant, key)) else { continue };
        used.evidence.push(Evidence { at: delivery.at, seq: delivery.seq, is_duplicate: false });
    }
    report.count(Check::Identity, identities.len());
    let window = history.setup.dedupe_ms.unwrap_or(WINDOW_MS);
    for ((requested, topic, tenant, key), used) in &identities {
        if is_within_window(history, used, window) {
            let via = if requested == topic { String::new() } else { format!(" (produced to {requested})") };
            check_identity(&format!("topic {topic}{via}, tenant {tenant}, key {key}"), used, report);
        }
    }
}

/// Whether all uses of an identity are within its window.
fn is_within_window(history: &ParsedHistory<'_>, used: &IdentityUse<'_, '_>, window: u64) -> bool {
    let times = || used.requests.iter().map(|request| request.span.t);
    let lines =
        used.requests.iter().map(|request| request.span.invoked).chain(used.evidence.iter().map(|item| item.seq));
    let (first, last) = lines.fold((u64::MAX, 0), |(first, last), seq| (first.min(seq), last.max(seq)));
    let span = times().max().unwrap_or(0) - times().min().unwrap_or(0);
    span < window && !history.clock_changed_between(first, last)
}

fn check_identity(name: &str, used: &IdentityUse<'_, '_>, report: &mut Report) {
    let first = used.evidence.iter().filter(|item| !item.is_duplicate).min_by_key(|item| item.seq);
    let first = first.or_else(|| used.evidence.iter().min_by_key(|item| item.seq));
    let Some(first) = first else { return };
    if let Some(other) = used.evidence.iter().find(|item| item.at != first.at) {
        return report.add_violation(Check::Identity, [first.seq, other.seq], || match other.is_duplicate {
            true => format!("{name} is answered as a duplicate of {}, though its message is at {}", other.at, first.at),
            false => format!("{name} has two messages, at {} and at {}", first.at, other.at),
        });
    }
    let stored = |request: &&&ProduceRequest<'_>| request.at.is_some() && !request.duplicate && request.step.is_none();
    if let [one, other, ..] = used.requests.iter().filter(stored).collect::<Vec<_>>()[..] {
        return report.add_violation(Check::Identity, [one.span.last(), other.span.last()], || {
            format!("{name} was produced twice at {} and neither is answered as a duplicate", first.at)
        });
    }
    for request in used.requests.iter().filter(|request| request.duplicate) {
        let others = used.requests.iter().filter(|other| !std::ptr::eq(**other, *request));
        let may_be_first =
            |other: &&ProduceRequest<'_>| other.may_have_stored() && other.span.invoked < request.span.end();
        if !others.copied().any(|other| may_be_first(&other)) && request.step.is_none() {
            report.add_violation(Check::Identity, request.span.seqs(), || {
                format!("{name} is answered as a duplicate of {}, though no other call can have produced it", first.at)
            });
        }
    }
}
