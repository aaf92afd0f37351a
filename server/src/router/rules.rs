//! Rules of the configuration file: the first match decides.

use driftq_core::types::{Routing, RoutingDecision, TopicName};

use super::request::RouteRequest;
use super::{Company, Router, RouterFuture};
use crate::config::Rule;

/// Rules in the order in which they are tried. They never fail.
#[derive(Clone, Debug)]
pub struct Rules(Vec<Rule>);

impl Rules {
    /// A router of these rules.
    #[must_use]
    pub fn new(rules: Vec<Rule>) -> Self {
        Self(rules)
    }
}

impl Router for Rules {
    fn route<'a>(&'a self, request: RouteRequest<'a>, _: Company) -> RouterFuture<'a> {
        Box::pin(std::future::ready(Ok(decide(&self.0, &request))))
    }
}

/// The decision of the first rule that matches. Its target is a topic of the message's tenant.
fn decide(rules: &[Rule], request: &RouteRequest<'_>) -> Option<RoutingDecision> {
    let rule = rules.iter().find(|rule| matches(rule, request))?;
    let target = |name: &TopicName| TopicName::of(request.topic.tenant(), name.as_str()).expect("the name is valid");
    Some(RoutingDecision {
        routing: Routing { label: rule.label.clone(), meta: rule.meta.clone() },
        target_topic: rule.target_topic.as_ref().map(target),
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
