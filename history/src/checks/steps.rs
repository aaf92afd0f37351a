//! A complete takes effect as a whole or not at all.
//!
//! The presence check covers missing outputs of acknowledged steps, the content check outputs of failed ones.

use std::collections::HashSet;

use crate::parsed::{CallResult, ParsedHistory, ProduceRequest, Step, has_dead_letter_policy, short};
use crate::report::{Check, Report};

pub(super) fn check(history: &ParsedHistory<'_>, report: &mut Report) {
    report.count(Check::Steps, history.steps.len());
    let topics: HashSet<&str> = history.setup.groups.iter().map(|(topic, _)| *topic).collect();
    let delivered: HashSet<(&str, &str)> =
        history.deliveries.iter().map(|delivery| (delivery.topic, delivery.value)).collect();
    for step in &history.steps {
        let settle = &history.settles[step.settle];
        let requests = &history.requests[step.requests.clone()];
        let name = || format!("the complete of topic {}, {} by group {}", settle.topic, settle.at, settle.group);
        if let Some(answered) = step.answered.filter(|answered| *answered != requests.len()) {
            report.add_violation(Check::Steps, settle.span.seqs(), || {
                format!("{} was to produce {} messages and its answer has {answered}", name(), requests.len())
            });
        }
        if settle.ended_as != CallResult::Info {
            continue;
        }
        let is_delivered = |request: &&ProduceRequest<'_>| delivered.contains(&(request.topic, request.value));
        // Only outputs that no other call can have produced are evidence for this one.
        let own = || requests.iter().filter(|request| is_only_request(history, step, request));
        let Some(present) = own().find(is_delivered) else { continue };
        let must_be_delivered = |request: &&ProduceRequest<'_>| {
            topics.contains(request.topic) && request.identity().is_none() && !has_dead_letter_policy(request.envelope)
        };
        let missing = own().filter(must_be_delivered).find(|request| !is_delivered(request));
        if let Some(missing) = missing.filter(|_| history.is_drained()) {
            report.add_violation(Check::Steps, settle.span.seqs(), || {
                let (present, missing) = (short(present.value), short(missing.value));
                format!("{} produced \"{present}\" and not \"{missing}\"", name())
            });
        }
        let again = history.timelines.get(&settle.timeline_key()).and_then(|timeline| {
            let newest = timeline.deliveries.last().map(|index| &history.deliveries[*index])?;
            settle.token.is_some_and(|token| newest.token > token).then_some(newest)
        });
        if let Some(again) = again {
            let mut seqs = settle.span.seqs();
            seqs.push(again.seq);
            report.add_violation(Check::Steps, seqs, || {
                let present = short(present.value);
                format!(
                    "{} produced \"{present}\", and its message was delivered again as attempt {}",
                    name(),
                    again.attempt
                )
            });
        }
    }
}

fn is_only_request(history: &ParsedHistory<'_>, step: &Step, request: &ProduceRequest<'_>) -> bool {
    let requests = history.requests_for.get(&(request.topic, request.value)).map(Vec::as_slice).unwrap_or_default();
    requests.iter().all(|index| step.requests.contains(index) || !history.requests[*index].may_have_stored())
}
