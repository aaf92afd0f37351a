//! Rules of the configuration file: the first match decides.

use driftq_core::types::{Routing, RoutingDecision};

use super::request::RouteRequest;
use crate::config::Rule;

/// The decision of the first rule that matches.
pub(super) fn decide(rules: &[Rule], request: &RouteRequest<'_>) -> Option<RoutingDecision> {
    let rule = rules.iter().find(|rule| matches(rule, request))?;
    Some(RoutingDecision {
        routing: Routing { label: rule.label.clone(), meta: rule.meta.clone() },
        target_topic: rule.target_topic.clone(),
        partition_override: rule.partition_override,
    })
}

/// Whether every given condition holds.
fn matches(rule: &Rule, request: &RouteRequest<'_>) -> bool {
    let Rule { topic, key_prefix, labels, tenant, .. } = rule;
    let message_labels = &request.envelope.labels;
    topic.as_ref().is_none_or(|topic| topic == request.topic)
        && key_prefix.as_ref().is_none_or(|prefix| request.key.starts_with(&**prefix))
        && tenant.as_ref().is_none_or(|tenant| **tenant == *request.envelope.tenant())
        && labels.iter().all(|(name, value)| message_labels.get(name) == Some(value))
}
