//! Executes commands as their callers: checks, commands on keys and tenants, the audit, and streams of keys that end.

use super::{Broker, LogSink, SpaceClass};
use crate::command::{Command, CreateTenant, DeleteTenant, ListTenants, ListTopics, RevokeKey, Target};
use crate::decide::access::{Authority, authorize, is_checked};
use crate::decide::keys;
use crate::faults::Faults;
use crate::record::Event;
use crate::reply::{CloseCause, Output, Refusal, Reply};
use crate::state::{Topic, VisibleEffects};
use crate::types::{
    Audit, AuditAction, AuditResult, AuditTarget, Caller, ConsumerId, KeyId, Principal, TenantId, Timestamp, Verb,
};

impl<F: Faults> Broker<F> {
    /// A number that changes whenever keys or tenants do.
    #[must_use]
    pub fn access_generation(&self) -> u64 {
        self.access_generation
    }

    /// Decides whether `principal` may do `verb` with `target` now, for what is no command.
    ///
    /// # Errors
    /// [`Refusal::Unauthenticated`] or [`Refusal::PermissionDenied`].
    pub fn authorize(&self, principal: Principal, verb: Verb, target: Target<'_>) -> Result<(), Refusal> {
        authorize(&self.state, self.now, principal, verb, target)
    }

    /// Refuses a command that `caller` may not send; fills in what it leaves out about the caller.
    #[inline]
    pub(super) fn admit(&self, caller: &Caller, command: &mut Command) -> Result<(), Refusal> {
        if !is_checked(&self.state, caller) { Ok(()) } else { self.admit_checked(caller, command) }
    }

    #[cold]
    #[inline(never)]
    fn admit_checked(&self, caller: &Caller, command: &mut Command) -> Result<(), Refusal> {
        Authority::of(&self.state, self.now, caller.principal)?.admit(&self.state, command)?;
        match command.stream() {
            Some(consumer) => self.admit_stream(caller, consumer),
            None => Ok(()),
        }
    }

    /// Refuses what is about a stream that another key has opened, as if there were no such stream.
    fn admit_stream(&self, caller: &Caller, consumer: ConsumerId) -> Result<(), Refusal> {
        let opened_by = self.index.consumers.get(&consumer).map(|consumer| consumer.key.map(|(id, _)| id));
        match caller.principal {
            Principal::Key(key) if opened_by != Some(Some(key)) => Err(Refusal::UnknownConsumer),
            _ => Ok(()),
        }
    }

    /// What the caller of a command may do that was admitted.
    pub(super) fn authority(&self, caller: &Caller) -> Authority<'_> {
        Authority::of(&self.state, self.now, caller.principal).expect("the command was admitted")
    }

    /// Executes a command on keys or tenants.
    pub(super) fn execute_access(
        &mut self,
        caller: &Caller,
        command: &Command,
        log: &mut dyn LogSink,
    ) -> Result<Reply, Refusal> {
        let (context, authority) = (self.context(), self.authority(caller));
        match command {
            Command::CreateKey(request) => {
                let decision = keys::create_key(&context, &authority, request)?;
                self.commit_and_reply(decision, SpaceClass::Growth, log)
            }
            Command::RevokeKey(RevokeKey { id }) => {
                let decision = keys::revoke_key(&context, &authority, *id)?;
                let reply = self.commit_and_reply(decision, SpaceClass::Drain, log)?;
                self.close_streams(self.index.key_streams.of(*id), CloseCause::KeyRevoked, log);
                Ok(reply)
            }
            Command::BindKey(request) => {
                let decision = keys::bind_key(&context, &authority, request)?;
                self.commit_and_reply(decision, SpaceClass::Growth, log)
            }
            Command::CreateTenant(CreateTenant { name }) => {
                let decision = keys::create_tenant(&context, name)?;
                self.commit_and_reply(decision, SpaceClass::Growth, log)
            }
            Command::DeleteTenant(DeleteTenant { name }) => {
                let decision = keys::delete_tenant(&context, name)?;
                self.commit_and_reply(decision, SpaceClass::Drain, log)
            }
            Command::ListKeys(request) => keys::list_keys(&context, &authority, request),
            Command::ListTenants(ListTenants) => Ok(keys::list_tenants(&context, &authority)),
            Command::ListAudit(request) => Ok(keys::list_audit(&context, &authority, request)),
            _ => unreachable!("not a command on keys or tenants"),
        }
    }

    /// The topics of a tenant that the caller may see: of its own those that it may inspect, of another all.
    pub(super) fn list_topics(&self, caller: &Caller, tenant: TenantId) -> Reply {
        let authority = self.authority(caller);
        let is_own = tenant == authority.tenant();
        let topics = self.state.topics_of(tenant).map(Topic::name);
        let seen = topics.filter(|topic| !is_own || authority.allows_topic(Verb::Inspect, topic));
        Reply::Topics(seen.cloned().collect())
    }

    /// The effects that a list may show to the caller.
    pub(super) fn visible_effects(&self, caller: &Caller) -> VisibleEffects {
        if !is_checked(&self.state, caller) {
            return VisibleEffects::All;
        }
        let authority = self.authority(caller);
        if authority.sees_all() { VisibleEffects::All } else { VisibleEffects::OfTenant(authority.tenant()) }
    }

    /// What is to be audited of a command, before it is executed; `None` for most.
    #[inline]
    pub(super) fn to_audit(&self, caller: &Caller, command: &Command) -> Option<Audit> {
        if caller.principal == Principal::Trusted {
            return None;
        }
        command.audited().and_then(|(action, target)| self.new_audit(caller, command, (action, target)))
    }

    #[cold]
    fn new_audit(
        &self,
        caller: &Caller,
        command: &Command,
        (action, mut target): (AuditAction, AuditTarget),
    ) -> Option<Audit> {
        let Caller { principal, from } = *caller;
        let key = principal.key().and_then(|id| self.state.access().keys().get(id));
        let tenant = key.map_or(TenantId::DEFAULT, |key| key.tenant);
        if let Command::ListTopics(ListTopics { tenant: listed }) = command {
            if *listed == tenant {
                return None;
            }
            let name = self.state.access().tenants().name_of(*listed);
            target = name.map_or(AuditTarget::Nothing, AuditTarget::Tenant);
        }
        Some(Audit { who: principal, tenant, from, action, target, result: AuditResult::Done })
    }

    /// Records what came of an audited command. A client without a key that is refused for that is not recorded: it
    /// could fill the log. What succeeded is recorded as long as the log has any space at all.
    #[cold]
    pub(super) fn record_audit(&mut self, mut audit: Audit, result: Result<(), &Refusal>, log: &mut dyn LogSink) {
        audit.result = result.map_or_else(Refusal::audited, |()| AuditResult::Done);
        if audit.result == AuditResult::Unauthenticated && audit.who == Principal::Anonymous {
            return;
        }
        let class = if result.is_ok() { SpaceClass::Drain } else { SpaceClass::Growth };
        // A log without space must not refuse what has happened already.
        let _ = self.commit(Event::Audited(Box::new(audit)), class, log);
    }

    /// Closes streams that a key has opened, whose right to them has ended.
    fn close_streams(&mut self, streams: Vec<ConsumerId>, cause: CloseCause, log: &mut dyn LogSink) {
        for consumer in streams {
            if self.unsubscribe(consumer, log).is_ok() {
                self.hold(Output::Closed { consumer, cause });
            }
        }
    }

    /// Closes the streams of keys that have expired.
    #[inline]
    pub(super) fn close_expired_streams(&mut self, log: &mut dyn LogSink) {
        if self.index.key_streams.next_expiry().is_some_and(|at| at <= self.now) {
            let expired = self.index.key_streams.expired(self.now);
            self.close_streams(expired, CloseCause::KeyExpired, log);
        }
    }

    /// The key that opens a stream now, and when it expires.
    pub(super) fn stream_key(&self, caller: &Caller) -> Option<(KeyId, Option<Timestamp>)> {
        let key = self.state.access().keys().get(caller.principal.key()?)?;
        Some((key.id, key.expires_at))
    }
}

/// Whether an event changes what callers may do.
pub(super) fn changes_access(event: &Event) -> bool {
    matches!(
        event,
        Event::KeyCreated(_)
            | Event::KeyRevoked { .. }
            | Event::KeyBound { .. }
            | Event::TenantCreated { .. }
            | Event::TenantDeleted { .. }
    )
}
