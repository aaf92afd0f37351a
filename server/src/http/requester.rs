//! Who sends a request, and what the names in it mean: topics, effects and callers are those of the key's tenant.

use std::rc::Rc;

use driftq_core::types::{Caller, GroupName, KeyId, NameError, OwnerName, Principal, TenantId, TenantName, TopicName};

use super::connection_names::ConnectionNames;
use super::error::ApiError;
use crate::access::KnownKey;

/// The sender of a request.
#[derive(Clone)]
pub(crate) struct Requester {
    pub(crate) caller: Caller,
    pub(crate) names: Names,
    /// Whether it may name other tenants than its own.
    manages_tenants: bool,
}

impl Requester {
    /// A client without a key. Whether it may do anything is decided with its command.
    pub(crate) fn anonymous(caller: Caller, shared: &Rc<ConnectionNames>) -> Self {
        debug_assert!(caller.principal == Principal::Anonymous);
        Self { caller, names: Names::shared(shared), manages_tenants: true }
    }

    /// A client that has shown `key`.
    pub(crate) fn with_key(caller: Caller, key: &KnownKey, shared: &Rc<ConnectionNames>) -> Self {
        debug_assert!(caller.principal == Principal::Key(key.id));
        let bound = key.tenant_name.clone().map(|name| Bound { tenant: name, key: key.id });
        let names = Names { shared: Rc::clone(shared), tenant: key.tenant, bound };
        Self { caller, names, manages_tenants: key.manages_tenants }
    }

    /// Whether it may name other tenants than its own: without a key, until there is one, and with a key that manages
    /// tenants.
    pub(crate) fn manages_tenants(&self) -> bool {
        self.manages_tenants
    }
}

/// What the names in a request mean.
#[derive(Clone)]
pub(crate) struct Names {
    shared: Rc<ConnectionNames>,
    tenant: TenantId,
    bound: Option<Bound>,
}

/// What a key of a registered tenant gives: the request cannot choose it.
#[derive(Clone)]
struct Bound {
    tenant: TenantName,
    key: KeyId,
}

impl Names {
    /// The names of the default tenant.
    pub(crate) fn shared(shared: &Rc<ConnectionNames>) -> Self {
        Self { shared: Rc::clone(shared), tenant: TenantId::DEFAULT, bound: None }
    }

    /// The tenant whose topics are named.
    pub(crate) fn tenant(&self) -> TenantId {
        self.tenant
    }

    /// Whether `name` is that of the key's tenant.
    pub(crate) fn is_tenant(&self, name: &TenantName) -> bool {
        self.bound.as_ref().is_some_and(|bound| bound.tenant == *name)
    }

    /// The topic of a delivery. As [`TopicName::of`]; the memory is shared with requests before.
    pub(crate) fn topic(&self, text: &str) -> Result<TopicName, NameError> {
        self.shared.topic(self.tenant, text)
    }

    /// The topic to which a message is produced.
    pub(crate) fn produced_to(&self, text: &str) -> Result<TopicName, NameError> {
        self.shared.produced_to(self.tenant, text)
    }

    /// A topic that other requests of the connection rarely name.
    pub(crate) fn rare_topic(&self, text: &str) -> Result<TopicName, NameError> {
        TopicName::of(self.tenant, text)
    }

    /// A topic of a path, which was read before the sender was known.
    pub(crate) fn own(&self, topic: TopicName) -> Result<TopicName, NameError> {
        if self.tenant == topic.tenant() { Ok(topic) } else { TopicName::of(self.tenant, topic.as_str()) }
    }

    /// As [`GroupName::new`].
    pub(crate) fn group(&self, text: &str) -> Result<GroupName, NameError> {
        self.shared.group(text)
    }

    /// As [`OwnerName::new`].
    pub(crate) fn owner(&self, text: &str) -> Result<OwnerName, NameError> {
        self.shared.owner(text)
    }

    /// The tenant of an effect or a message, of which the request names `given`.
    ///
    /// # Errors
    /// 403 if the key is another tenant's.
    pub(crate) fn tenant_text<'a>(&'a self, given: Option<&'a str>) -> Result<Option<&'a str>, ApiError> {
        match (&self.bound, given.filter(|given| !given.is_empty())) {
            (None, given) => Ok(given),
            (Some(bound), None) => Ok(Some(bound.tenant.as_str())),
            (Some(bound), Some(given)) if given == bound.tenant.as_str() => Ok(Some(given)),
            (Some(_), Some(_)) => Err(ApiError::permission_denied("tenant_id is not the tenant of the key")),
        }
    }

    /// The principal of a call, of which the request names `given`.
    ///
    /// # Errors
    /// 403 if the key is another one; 400 if it is missing.
    pub(crate) fn rpc_principal<'a>(&'a self, given: Option<&'a str>) -> Result<&'a str, ApiError> {
        match (&self.bound, given) {
            (None, given) => given.ok_or_else(|| ApiError::missing("scope.principal")),
            (Some(bound), None) => Ok(bound.key.as_str()),
            (Some(bound), Some(given)) if given == bound.key.as_str() => Ok(given),
            (Some(_), Some(_)) => Err(ApiError::permission_denied("scope.principal is not the id of the key")),
        }
    }
}

impl Default for Names {
    fn default() -> Self {
        Self::shared(&Rc::default())
    }
}
