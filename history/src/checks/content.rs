//! Whether what is delivered is what was produced.

use std::collections::HashMap;

use crate::parsed::{Ask, Delivery, Facts, Fate, MessageKey, is_dead_letter_topic, same_envelope, short};
use crate::report::{Check, Report};

/// Unexpected or altered deliveries, and outputs of steps that did not happen.
pub(super) fn check(facts: &Facts<'_>, report: &mut Report) {
    let mut accepted: HashMap<MessageKey<'_>, &Ask<'_>> = HashMap::new();
    for ask in facts.asks.iter().filter(|ask| !ask.duplicate) {
        if let Some(place) = ask.place {
            accepted.entry((ask.topic, place.offset)).or_insert(ask);
        }
    }
    report.looked_at(Check::Unexpected, facts.deliveries.len());
    report.looked_at(Check::Altered, facts.deliveries.len());
    for delivery in &facts.deliveries {
        let origin = delivery.origin.filter(|_| is_dead_letter_topic(delivery.topic));
        let (topic, offset) = origin.map_or((delivery.topic, delivery.place.offset), |o| (o.topic, o.place.offset));
        // Made anew by a redrive, it stands where nobody produced it.
        let at_place = accepted.get(&(topic, offset)).filter(|_| !delivery.redriven);
        if let Some(ask) = at_place.filter(|ask| ask.value != delivery.value) {
            let mut seqs = ask.span.seqs();
            seqs.push(delivery.seq);
            report.accuse(Check::Altered, seqs, || {
                let (name, value) = (delivery.name(), short(ask.value));
                format!("{name} is delivered to group {} where \"{value}\" was produced", delivery.group)
            });
            continue;
        }
        let asks = facts.asks_of.get(&(topic, delivery.value)).map(Vec::as_slice).unwrap_or_default();
        judge(asks.iter().map(|index| &facts.asks[*index]), delivery, origin.is_some(), report);
    }
}

fn judge<'a>(
    asks: impl Iterator<Item = &'a Ask<'a>> + Clone,
    delivery: &Delivery<'a>,
    is_dead: bool,
    report: &mut Report,
) {
    let mut possible = asks.clone().filter(|ask| ask.may_have_stored() && ask.span.invoked < delivery.seq).peekable();
    if possible.peek().is_none() {
        let (check, why) = match asks.clone().next() {
            None => (Check::Unexpected, "which nobody asked to be produced"),
            Some(Ask { step: Some(_), fate: Fate::Fail, .. }) => {
                (Check::Steps, "which only a complete that failed was to produce")
            }
            Some(Ask { fate: Fate::Fail, .. }) => (Check::Unexpected, "which only a call that failed was to produce"),
            Some(Ask { duplicate: true, .. }) => {
                (Check::Unexpected, "whose produce was answered as a duplicate of another")
            }
            Some(_) => (Check::Unexpected, "before anybody asked for it to be produced"),
        };
        let mut seqs: Vec<u64> = asks.take(1).flat_map(|ask| ask.span.seqs()).collect();
        seqs.push(delivery.seq);
        return report
            .accuse(check, seqs, || format!("{} is delivered to group {}, {why}", delivery.name(), delivery.group));
    }
    let mut differs = None;
    for ask in possible {
        let same = match ask.key == delivery.key {
            true => same_envelope(ask.envelope, delivery.envelope, is_dead),
            false => Err("key"),
        };
        match same {
            Ok(()) => return,
            Err(part) => differs = differs.or(Some((ask, part))),
        }
    }
    if let Some((ask, part)) = differs {
        let mut seqs = ask.span.seqs();
        seqs.push(delivery.seq);
        report.accuse(Check::Altered, seqs, || {
            format!(
                "{} is delivered to group {} with another {part} than it was produced with",
                delivery.name(),
                delivery.group
            )
        });
    }
}
