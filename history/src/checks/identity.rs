//! One message for an idempotency key.

use std::collections::BTreeMap;

use crate::parsed::{Ask, Facts, Place, is_dead_letter_topic};
use crate::report::{Check, Report};

/// How long identities are remembered where setup does not say.
const WINDOW_MS: u64 = 10 * 60 * 1000;

/// Who says where an identity's message is.
struct Claim {
    place: Place,
    seq: u64,
    is_duplicate: bool,
}

#[derive(Default)]
struct Asked<'f, 'a> {
    asks: Vec<&'f Ask<'a>>,
    claims: Vec<Claim>,
}

pub(super) fn check(facts: &Facts<'_>, report: &mut Report) {
    let mut identities: BTreeMap<(&str, &str, &str), Asked<'_, '_>> = BTreeMap::new();
    for ask in &facts.asks {
        let Some((tenant, key)) = ask.identity() else { continue };
        let asked = identities.entry((ask.topic, tenant, key)).or_default();
        asked.asks.push(ask);
        let claim = ask.place.map(|place| Claim { place, seq: ask.span.last(), is_duplicate: ask.duplicate });
        asked.claims.extend(claim);
    }
    for delivery in
        facts.deliveries.iter().filter(|delivery| !delivery.redriven && !is_dead_letter_topic(delivery.topic))
    {
        let Some((tenant, key)) = facts.messages[&(delivery.topic, delivery.place.offset)].identity else { continue };
        // One that nobody asked for is told elsewhere.
        let Some(asked) = identities.get_mut(&(delivery.topic, tenant, key)) else { continue };
        asked.claims.push(Claim { place: delivery.place, seq: delivery.seq, is_duplicate: false });
    }
    report.looked_at(Check::Identity, identities.len());
    let window = facts.setup.dedupe_ms.unwrap_or(WINDOW_MS);
    for ((topic, tenant, key), asked) in &identities {
        if is_within(facts, asked, window) {
            judge(&format!("topic {topic}, tenant {tenant}, key {key}"), asked, report);
        }
    }
}

/// Whether everything about an identity happened within its window.
fn is_within(facts: &Facts<'_>, asked: &Asked<'_, '_>, window: u64) -> bool {
    let times = || asked.asks.iter().map(|ask| ask.span.t);
    let lines = asked.asks.iter().map(|ask| ask.span.invoked).chain(asked.claims.iter().map(|claim| claim.seq));
    let (first, last) = lines.fold((u64::MAX, 0), |(first, last), seq| (first.min(seq), last.max(seq)));
    let span = times().max().unwrap_or(0) - times().min().unwrap_or(0);
    span < window && !facts.clock_between(first, last)
}

fn judge(name: &str, asked: &Asked<'_, '_>, report: &mut Report) {
    let first = asked.claims.iter().filter(|claim| !claim.is_duplicate).min_by_key(|claim| claim.seq);
    let first = first.or_else(|| asked.claims.iter().min_by_key(|claim| claim.seq));
    let Some(first) = first else { return };
    if let Some(other) = asked.claims.iter().find(|claim| claim.place != first.place) {
        return report.accuse(Check::Identity, [first.seq, other.seq], || match other.is_duplicate {
            true => format!(
                "{name} is answered as a duplicate of {}, though its message is at {}",
                other.place, first.place
            ),
            false => format!("{name} has two messages, at {} and at {}", first.place, other.place),
        });
    }
    let stored = |ask: &&&Ask<'_>| ask.place.is_some() && !ask.duplicate && ask.step.is_none();
    if let [one, other, ..] = asked.asks.iter().filter(stored).collect::<Vec<_>>()[..] {
        return report.accuse(Check::Identity, [one.span.last(), other.span.last()], || {
            format!("{name} was produced twice at {} and neither is answered as a duplicate", first.place)
        });
    }
    for ask in asked.asks.iter().filter(|ask| ask.duplicate) {
        let others = asked.asks.iter().filter(|other| !std::ptr::eq(**other, *ask));
        let may_be_first = |other: &&Ask<'_>| other.may_have_stored() && other.span.invoked < ask.span.end();
        if !others.copied().any(|other| may_be_first(&other)) && ask.step.is_none() {
            report.accuse(Check::Identity, ask.span.seqs(), || {
                format!("{name} is answered as a duplicate of {}, though nobody else can have produced it", first.place)
            });
        }
    }
}
