//! Every delivered message was produced, and has the content it was produced with.

use std::collections::HashMap;

use crate::parsed::{
    CallResult, Delivery, MessageKey, ParsedHistory, ProduceRequest, is_dead_letter_topic, same_envelope, short,
};
use crate::report::{Check, Report};

/// Finds unexpected and altered deliveries, and outputs of failed steps.
pub(super) fn check(history: &ParsedHistory<'_>, report: &mut Report) {
    let mut accepted: HashMap<MessageKey<'_>, &ProduceRequest<'_>> = HashMap::new();
    for request in history.requests.iter().filter(|request| !request.duplicate) {
        if let Some(at) = request.at {
            accepted.entry((request.topic, at.offset)).or_insert(request);
        }
    }
    report.count(Check::Unexpected, history.deliveries.len());
    report.count(Check::Altered, history.deliveries.len());
    for delivery in &history.deliveries {
        let origin = delivery.origin.filter(|_| is_dead_letter_topic(delivery.topic));
        let (topic, offset) = origin.map_or((delivery.topic, delivery.at.offset), |o| (o.topic, o.at.offset));
        // A redrive stores a message at an offset that no produce acknowledged.
        let at_offset = accepted.get(&(topic, offset)).filter(|_| !delivery.redriven);
        if let Some(request) = at_offset.filter(|request| request.value != delivery.value) {
            let mut seqs = request.span.seqs();
            seqs.push(delivery.seq);
            report.add_violation(Check::Altered, seqs, || {
                let (name, value) = (delivery.name(), short(request.value));
                format!("{name} is delivered to group {} where \"{value}\" was produced", delivery.group)
            });
            continue;
        }
        let requests = history.requests_for.get(&(topic, delivery.value)).map(Vec::as_slice).unwrap_or_default();
        check_delivery(requests.iter().map(|index| &history.requests[*index]), delivery, origin.is_some(), report);
    }
}

fn check_delivery<'a>(
    requests: impl Iterator<Item = &'a ProduceRequest<'a>> + Clone,
    delivery: &Delivery<'a>,
    is_dead: bool,
    report: &mut Report,
) {
    let mut possible =
        requests.clone().filter(|request| request.may_have_stored() && request.span.invoked < delivery.seq).peekable();
    if possible.peek().is_none() {
        let (check, why) = match requests.clone().next() {
            None => (Check::Unexpected, "which no call produced"),
            Some(ProduceRequest { step: Some(_), ended_as: CallResult::Fail, .. }) => {
                (Check::Steps, "which only a failed complete was to produce")
            }
            Some(ProduceRequest { ended_as: CallResult::Fail, .. }) => {
                (Check::Unexpected, "which only a failed call was to produce")
            }
            Some(ProduceRequest { duplicate: true, .. }) => {
                (Check::Unexpected, "whose produce was answered as a duplicate of another")
            }
            Some(_) => (Check::Unexpected, "before any call produced it"),
        };
        let mut seqs: Vec<u64> = requests.take(1).flat_map(|request| request.span.seqs()).collect();
        seqs.push(delivery.seq);
        return report.add_violation(check, seqs, || {
            format!("{} is delivered to group {}, {why}", delivery.name(), delivery.group)
        });
    }
    let mut differs = None;
    for request in possible {
        let same = match request.key == delivery.key {
            true => same_envelope(request.envelope, delivery.envelope, is_dead),
            false => Err("key"),
        };
        match same {
            Ok(()) => return,
            Err(field) => differs = differs.or(Some((request, field))),
        }
    }
    if let Some((request, field)) = differs {
        let mut seqs = request.span.seqs();
        seqs.push(delivery.seq);
        report.add_violation(Check::Altered, seqs, || {
            format!(
                "{} is delivered to group {} with another {field} than it was produced with",
                delivery.name(),
                delivery.group
            )
        });
    }
}
