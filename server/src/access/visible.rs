//! What a principal may see that is no answer to a command: metrics, settings, the digest.

use driftq_core::command::Target;
use driftq_core::types::{Principal, TopicName, Verb};
use driftq_core::{Pipeline, Refusal};

/// Refuses what is of the whole process, and of no tenant, unless `principal` may do `verb` with everything of the
/// default tenant, whose keys are the operator's; for `admin`, of all tenants.
pub(crate) fn authorize_process(pipeline: &Pipeline, principal: Principal, verb: Verb) -> Result<(), Refusal> {
    let key = principal.key().and_then(|id| pipeline.state().access().keys().get(id));
    let is_of_tenant = key.is_some_and(|key| !key.tenant.is_default());
    let target = if is_of_tenant || verb == Verb::Admin { Target::OtherTenants } else { Target::Tenant };
    pipeline.broker().authorize(principal, verb, target)
}

/// What a principal may see in metrics.
#[derive(Clone, Copy)]
pub(crate) struct Visible<'a> {
    pipeline: &'a Pipeline,
    principal: Principal,
    /// Whether it may see the figures of the whole process.
    pub(crate) has_process: bool,
    has_all_topics: bool,
}

impl<'a> Visible<'a> {
    /// What `principal` may see.
    ///
    /// # Errors
    /// [`Refusal::Unauthenticated`], or [`Refusal::PermissionDenied`] if it may see nothing.
    pub(crate) fn to(principal: Principal, pipeline: &'a Pipeline) -> Result<Self, Refusal> {
        let inspect = |target| pipeline.broker().authorize(principal, Verb::Inspect, target);
        inspect(Target::SomeTopic)?;
        let has_process = authorize_process(pipeline, principal, Verb::Inspect).is_ok();
        Ok(Self { pipeline, principal, has_process, has_all_topics: inspect(Target::OtherTenants).is_ok() })
    }

    /// Whether it may see the series of a topic.
    pub(crate) fn shows(&self, topic: &TopicName) -> bool {
        let target = Target::Topic(topic);
        self.has_all_topics || self.pipeline.broker().authorize(self.principal, Verb::Inspect, target).is_ok()
    }
}
