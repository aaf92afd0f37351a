//! Decides who may do what.
//!
//! [`authorize`] is the one function that says so. Every command names its verbs and targets in [`Command::needs`];
//! they are checked before anything that it names is looked up, so that a refusal does not say what exists. Topics are
//! checked as they end up: after routing, and a dead-letter topic as its source.

use super::produce::final_topic;
use crate::command::{
    Ack, AckCumulative, Begin, BindKey, ChangeRetention, CloseStream, Command, CreateGroup, CreateTenant, CreateTopic,
    DeleteGroup, DeleteTenant, DeleteTopic, DescribeTopic, ExpireLease, Extend, Finish, Forget, ListAudit, ListEffects,
    ListGroups, ListKeys, ListTenants, ListTopics, Lookup, Nack, Pause, Peek, Produce, Purge, Reacquire, Redrive,
    Release, Renew, Resume, RevokeKey, Seek, SetPrefetch, StoreCommand, Target, Unsubscribe, Withdraw,
};
use crate::reply::{Denied, Refusal};
use crate::state::{State, Tenants};
use crate::types::{
    AuditAction, AuditTarget, Caller, Grant, Identity, Key, Principal, Scope, TenantId, TenantName, Text, Timestamp,
    TopicName, Verb,
};

/// What a principal may do.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Authority<'a> {
    /// Everything, in every tenant.
    Everything(Principal),
    /// What the key grants.
    Key(&'a Key),
}

/// Decides whether `principal` may do `verb` with `target` at broker time `now`.
pub(crate) fn authorize(
    state: &State,
    now: Timestamp,
    principal: Principal,
    verb: Verb,
    target: Target<'_>,
) -> Result<(), Refusal> {
    Authority::of(state, now, principal)?.allow(verb, target)
}

impl<'a> Authority<'a> {
    /// What `principal` may do at `now`; a refusal if the broker does not know it.
    pub(crate) fn of(state: &'a State, now: Timestamp, principal: Principal) -> Result<Self, Refusal> {
        let keys = state.access().keys();
        match principal {
            Principal::Trusted => Ok(Self::Everything(principal)),
            Principal::Anonymous if keys.is_empty() => Ok(Self::Everything(principal)),
            Principal::Anonymous => Err(Refusal::Unauthenticated),
            Principal::Key(id) => {
                let key = keys.get(id).filter(|key| !key.is_expired(now));
                key.map(Self::Key).ok_or(Refusal::Unauthenticated)
            }
        }
    }

    fn allow(&self, verb: Verb, target: Target<'_>) -> Result<(), Refusal> {
        let Self::Key(key) = self else { return Ok(()) };
        if target == Target::OtherTenants {
            return match key.manages_tenants() && key.has_all(verb) {
                true => Ok(()),
                false => Err(Refusal::PermissionDenied(Denied::OtherTenant)),
            };
        }
        let covers = |grant: &&Grant| match target {
            Target::Topic(topic) => topic.tenant() == key.tenant && grant.topics.covers(topic),
            Target::SomeTopic | Target::Stream(_) => true,
            Target::Tenant | Target::OtherTenants => grant.topics.is_all(),
        };
        let is_granted = key.grants.iter().filter(|grant| grant.verbs.contains(verb)).any(|grant| covers(&grant));
        if is_granted { Ok(()) } else { Err(Refusal::PermissionDenied(Denied::Verb(verb))) }
    }

    /// Whether a topic is granted.
    pub(crate) fn allows_topic(&self, verb: Verb, topic: &TopicName) -> bool {
        self.allow(verb, Target::Topic(topic)).is_ok()
    }

    /// The tenant in which the principal acts.
    pub(crate) fn tenant(&self) -> TenantId {
        match self {
            Self::Everything(_) => TenantId::DEFAULT,
            Self::Key(key) => key.tenant,
        }
    }

    /// Whether the principal sees all tenants.
    pub(crate) fn sees_all(&self) -> bool {
        match self {
            Self::Everything(_) => true,
            Self::Key(key) => key.manages_tenants(),
        }
    }

    /// Checks everything that `command` needs, and what it says of the caller; fills in what it leaves out.
    pub(crate) fn admit(&self, state: &State, command: &mut Command) -> Result<(), Refusal> {
        if let Self::Everything(Principal::Trusted) = self {
            return Ok(());
        }
        command.needs(state, self.tenant(), &mut |verb, target| self.allow(verb, target))?;
        self.admit_identities(state.access().tenants(), command)
    }

    /// Checks the tenant of every identity that a command names, and the principal of scope `rpc`.
    fn admit_identities(&self, tenants: &Tenants, command: &mut Command) -> Result<(), Refusal> {
        match command {
            Command::Produce(produce) => self.admit_tenant_id(tenants, produce),
            Command::Complete(complete) => {
                complete.produce.iter_mut().try_for_each(|produce| self.admit_tenant_id(tenants, produce))
            }
            Command::Store(command) => match &mut **command {
                StoreCommand::List(list) => self.admit_list(tenants, list),
                command => command.identity().map_or(Ok(()), |identity| self.admit_identity(tenants, identity)),
            },
            _ => Ok(()),
        }
    }

    /// The name of the caller's tenant, unless that is the default tenant.
    fn tenant_name<'t>(&self, tenants: &'t Tenants) -> Option<&'t TenantName> {
        tenants.name(self.tenant())
    }

    fn check_tenant(&self, tenants: &Tenants, named: &str) -> Result<(), Refusal> {
        let may_name = match self.tenant_name(tenants) {
            Some(own) => own.as_str() == named,
            None => !tenants.is_registered(named),
        };
        if may_name { Ok(()) } else { Err(Refusal::PermissionDenied(Denied::Tenant)) }
    }

    fn admit_tenant_id(&self, tenants: &Tenants, produce: &mut Produce) -> Result<(), Refusal> {
        if produce.topic.tenant() != self.tenant() {
            return Err(Refusal::PermissionDenied(Denied::Verb(Verb::Produce)));
        }
        match (&mut produce.envelope.tenant_id, self.tenant_name(tenants)) {
            (Some(named), _) => self.check_tenant(tenants, named),
            (absent @ None, Some(own)) => {
                *absent = Some(Text::from(own.as_str()));
                Ok(())
            }
            (None, None) => Ok(()),
        }
    }

    fn admit_identity(&self, tenants: &Tenants, identity: &Identity) -> Result<(), Refusal> {
        self.check_tenant(tenants, identity.tenant())?;
        match (&identity.scope, self) {
            (Scope::Rpc { principal, .. }, Self::Key(key)) if !key.tenant.is_default() => {
                let is_own = **principal == *key.id.as_str();
                if is_own { Ok(()) } else { Err(Refusal::PermissionDenied(Denied::Principal)) }
            }
            _ => Ok(()),
        }
    }

    fn admit_list(&self, tenants: &Tenants, list: &mut ListEffects) -> Result<(), Refusal> {
        match &list.tenant {
            Some(_) if self.sees_all() => Ok(()),
            Some(named) => self.check_tenant(tenants, named),
            None => {
                list.tenant = self.tenant_name(tenants).map(|own| Text::from(own.as_str()));
                Ok(())
            }
        }
    }
}

/// Receives each verb and target that a command needs, and refuses what is not granted.
type Check<'c> = &'c mut dyn FnMut(Verb, Target<'_>) -> Result<(), Refusal>;

impl Command {
    /// Passes everything that the command needs of a caller of tenant `own` to `check`, until that refuses.
    pub(crate) fn needs(&self, state: &State, own: TenantId, check: Check<'_>) -> Result<(), Refusal> {
        match self {
            Self::Produce(produce) => check(Verb::Produce, Target::Topic(final_topic(state, produce))),
            Self::Complete(complete) => {
                check(Verb::Consume, Target::Topic(&complete.claim.topic))?;
                let mut outputs = complete.produce.iter();
                outputs.try_for_each(|output| check(Verb::Produce, Target::Topic(final_topic(state, output))))
            }
            Self::Subscribe(subscribe) => check(Verb::Consume, Target::Topic(&subscribe.topic)),
            Self::SetPrefetch(SetPrefetch { consumer, .. })
            | Self::Unsubscribe(Unsubscribe { consumer })
            | Self::CloseStream(CloseStream { consumer }) => check(Verb::Consume, Target::Stream(*consumer)),
            Self::Ack(Ack(claim))
            | Self::Release(Release(claim))
            | Self::Withdraw(Withdraw(claim))
            | Self::Nack(Nack { claim, .. })
            | Self::Extend(Extend { claim, .. }) => check(Verb::Consume, Target::Topic(&claim.topic)),
            Self::AckCumulative(AckCumulative { topic, .. }) => check(Verb::Consume, Target::Topic(topic)),
            Self::Store(command) => needs_of_store(command, check),
            Self::Peek(Peek { topic, .. })
            | Self::ListGroups(ListGroups { topic })
            | Self::DescribeTopic(DescribeTopic { name: topic }) => check(Verb::Inspect, Target::Topic(topic)),
            Self::ListTopics(ListTopics { tenant }) if *tenant == own => check(Verb::Inspect, Target::SomeTopic),
            Self::ListTopics(ListTopics { .. }) => check(Verb::Admin, Target::OtherTenants),
            Self::CreateTopic(CreateTopic { name: topic, .. })
            | Self::ChangeRetention(ChangeRetention { name: topic, .. })
            | Self::DeleteTopic(DeleteTopic { name: topic })
            | Self::CreateGroup(CreateGroup { topic, .. })
            | Self::DeleteGroup(DeleteGroup { topic, .. })
            | Self::Seek(Seek { topic, .. })
            | Self::Pause(Pause { topic, .. })
            | Self::Resume(Resume { topic, .. })
            | Self::ExpireLease(ExpireLease { topic, .. })
            // Dead letters go back to the topic that they come from.
            | Self::Redrive(Redrive { topic, .. })
            | Self::Purge(Purge { topic }) => check(Verb::Operate, Target::Topic(topic)),
            Self::CreateKey(create) => check(Verb::Admin, target_of(state, own, create.tenant.as_ref())),
            Self::ListKeys(ListKeys { tenant, .. }) => check(Verb::Admin, target_of(state, own, tenant.as_ref())),
            // A key of another tenant is unknown to those that do not manage it.
            Self::RevokeKey(RevokeKey { .. }) => check(Verb::Admin, Target::Tenant),
            // All clients' certificates are of one authority.
            Self::BindKey(BindKey { .. })
            | Self::CreateTenant(CreateTenant { .. })
            | Self::DeleteTenant(DeleteTenant { .. }) => check(Verb::Admin, Target::OtherTenants),
            Self::ListTenants(ListTenants) | Self::ListAudit(ListAudit { .. }) => check(Verb::Admin, Target::Tenant),
        }
    }

    /// What is audited of the command; `None` unless it can need the verb `operate` or `admin`.
    #[must_use]
    pub fn audited(&self) -> Option<(AuditAction, AuditTarget)> {
        let topic = |topic: &TopicName| AuditTarget::Topic(topic.clone());
        let tenant =
            |name: Option<&TenantName>| name.map_or(AuditTarget::Nothing, |name| AuditTarget::Tenant(name.clone()));
        Some(match self {
            Self::Produce(_)
            | Self::Complete(_)
            | Self::Subscribe(_)
            | Self::SetPrefetch(_)
            | Self::Unsubscribe(_)
            | Self::CloseStream(_)
            | Self::Ack(_)
            | Self::AckCumulative(_)
            | Self::Release(_)
            | Self::Withdraw(_)
            | Self::Nack(_)
            | Self::Extend(_)
            | Self::Store(_)
            | Self::Peek(_)
            | Self::ListGroups(_)
            | Self::DescribeTopic(_) => return None,
            Self::ListTopics(_) => (AuditAction::ListTopics, AuditTarget::Nothing),
            Self::CreateTopic(CreateTopic { name, .. }) => (AuditAction::CreateTopic, topic(name)),
            Self::ChangeRetention(ChangeRetention { name, .. }) => (AuditAction::ChangeRetention, topic(name)),
            Self::DeleteTopic(DeleteTopic { name }) => (AuditAction::DeleteTopic, topic(name)),
            Self::Purge(Purge { topic: name }) => (AuditAction::Purge, topic(name)),
            Self::Redrive(Redrive { topic: name, .. }) => (AuditAction::Redrive, topic(name)),
            Self::CreateGroup(CreateGroup { topic, group, .. }) => {
                (AuditAction::CreateGroup, AuditTarget::Group(topic.clone(), group.clone()))
            }
            Self::DeleteGroup(DeleteGroup { topic, group }) => {
                (AuditAction::DeleteGroup, AuditTarget::Group(topic.clone(), group.clone()))
            }
            Self::Seek(Seek { topic, group, .. }) => {
                (AuditAction::Seek, AuditTarget::Group(topic.clone(), group.clone()))
            }
            Self::Pause(Pause { topic, group }) => {
                (AuditAction::Pause, AuditTarget::Group(topic.clone(), group.clone()))
            }
            Self::Resume(Resume { topic, group }) => {
                (AuditAction::Resume, AuditTarget::Group(topic.clone(), group.clone()))
            }
            Self::ExpireLease(ExpireLease { topic, group, .. }) => {
                (AuditAction::ExpireLease, AuditTarget::Group(topic.clone(), group.clone()))
            }
            Self::CreateKey(create) => (AuditAction::CreateKey, AuditTarget::Key(create.id)),
            Self::RevokeKey(RevokeKey { id }) => (AuditAction::RevokeKey, AuditTarget::Key(*id)),
            Self::BindKey(BindKey { id, .. }) => (AuditAction::BindKey, AuditTarget::Key(*id)),
            Self::ListKeys(ListKeys { tenant: name, .. }) => (AuditAction::ListKeys, tenant(name.as_ref())),
            Self::CreateTenant(CreateTenant { name }) => (AuditAction::CreateTenant, tenant(Some(name))),
            Self::DeleteTenant(DeleteTenant { name }) => (AuditAction::DeleteTenant, tenant(Some(name))),
            Self::ListTenants(ListTenants) => (AuditAction::ListTenants, AuditTarget::Nothing),
            Self::ListAudit(ListAudit { .. }) => (AuditAction::ListAudit, AuditTarget::Nothing),
        })
    }
}

/// What an administrator's command is about that names `tenant`, or the caller's by naming none.
fn target_of(state: &State, own: TenantId, tenant: Option<&TenantName>) -> Target<'static> {
    let is_own = tenant.is_none_or(|name| state.access().tenants().named(name.as_str()) == Some(own));
    if is_own { Target::Tenant } else { Target::OtherTenants }
}

fn needs_of_store(command: &StoreCommand, check: Check<'_>) -> Result<(), Refusal> {
    match command {
        StoreCommand::Begin(Begin { identity, .. })
        | StoreCommand::Reacquire(Reacquire { identity, .. })
        | StoreCommand::Renew(Renew { identity, .. })
        | StoreCommand::Lookup(Lookup { identity })
        | StoreCommand::Forget(Forget { identity })
        | StoreCommand::Finish(Finish { identity, dead_letter: None, .. }) => {
            check(Verb::Effects, target_of_scope(&identity.scope))
        }
        StoreCommand::Finish(Finish { identity, dead_letter: Some(_), .. }) => {
            let target = target_of_scope(&identity.scope);
            check(Verb::Effects, target)?;
            check(Verb::Consume, target)
        }
        StoreCommand::List(_) => check(Verb::Effects, Target::Tenant),
    }
}

/// Effects of a group belong to its topic, all others to the tenant.
fn target_of_scope(scope: &Scope) -> Target<'_> {
    match scope {
        Scope::Consume { topic, .. } => Target::Topic(topic),
        Scope::Tenant | Scope::Job { .. } | Scope::Task { .. } | Scope::Rpc { .. } => Target::Tenant,
    }
}

/// Whether a command of `caller` has to be checked.
#[inline]
pub(crate) fn is_checked(state: &State, caller: &Caller) -> bool {
    !state.access().is_open() || matches!(caller.principal, Principal::Key(_))
}
