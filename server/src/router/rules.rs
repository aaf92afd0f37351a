//! Rules of the configuration file: the first that fits decides.

use driftq_core::types::{Routing, RoutingDecision};

use super::Question;
use crate::config::Rule;

/// What the first fitting rule says.
pub(super) fn decide(rules: &[Rule], question: &Question<'_>) -> Option<RoutingDecision> {
    let Rule { label, meta, target_topic, partition_override, .. } = rules.iter().find(|rule| fits(rule, question))?;
    Some(RoutingDecision {
        routing: Routing { label: label.clone(), meta: meta.clone() },
        target_topic: target_topic.clone(),
        partition_override: *partition_override,
    })
}

/// Whether every condition that is given holds.
fn fits(rule: &Rule, question: &Question<'_>) -> bool {
    let Rule { topic, key_prefix, labels, tenant, .. } = rule;
    let carried = &question.envelope.labels;
    topic.as_ref().is_none_or(|topic| topic == question.topic)
        && key_prefix.as_ref().is_none_or(|prefix| question.key.starts_with(&**prefix))
        && tenant.as_ref().is_none_or(|tenant| **tenant == *question.envelope.tenant())
        && labels.iter().all(|(name, value)| carried.get(name) == Some(value))
}
