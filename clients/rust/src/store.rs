//! The idempotency store: effects that happen once. [`Store`] is what a worker and a service need of it; over the
//! broker it is [`BrokerStore`](crate::BrokerStore).

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::error::Error;

/// The scope within which the key of an effect is unique.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Scope {
    /// A group's work on a message.
    Consume {
        /// The topic of the message.
        topic: String,
        /// The group.
        group: String,
    },
    /// Anything of the tenant's.
    Tenant,
    /// A job.
    Job {
        /// Its id in some registry.
        id: String,
    },
    /// A task.
    Task {
        /// Its id.
        id: String,
    },
    /// A call of a service.
    Rpc {
        /// Who calls.
        principal: String,
        /// What is called.
        method: String,
    },
}

impl Scope {
    /// A group's work on a message.
    #[must_use]
    pub fn consume(topic: impl Into<String>, group: impl Into<String>) -> Self {
        Self::Consume { topic: topic.into(), group: group.into() }
    }

    /// A job.
    #[must_use]
    pub fn job(id: impl Into<String>) -> Self {
        Self::Job { id: id.into() }
    }

    /// A task.
    #[must_use]
    pub fn task(id: impl Into<String>) -> Self {
        Self::Task { id: id.into() }
    }

    /// A call of a service.
    #[must_use]
    pub fn rpc(principal: impl Into<String>, method: impl Into<String>) -> Self {
        Self::Rpc { principal: principal.into(), method: method.into() }
    }
}

/// What identifies an effect.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Identity {
    /// The tenant; empty means `default`.
    #[serde(default, rename = "tenant_id", skip_serializing_if = "String::is_empty")]
    pub tenant: String,
    /// The scope.
    pub scope: Scope,
    /// The key. With an empty one nothing is stored, and every begin is granted.
    pub key: String,
}

impl Identity {
    /// The identity of an effect of the default tenant.
    #[must_use]
    pub fn new(scope: Scope, key: impl Into<String>) -> Self {
        Self { tenant: String::new(), scope, key: key.into() }
    }

    /// The same, of another tenant.
    #[must_use]
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = tenant.into();
        self
    }
}

/// The delivery that an effect of the scope `consume` is run for. A newer delivery takes the effect over at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveryRef {
    /// The partition of the message.
    pub partition: u32,
    /// Its offset.
    pub offset: u64,
    /// The token of the delivery.
    pub lease_token: String,
}

/// What a begin does with an effect whose earlier lease has expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnExpired {
    /// It is granted.
    TakeOver,
    /// It is reported as retryable.
    Report,
}

/// A request to begin an effect.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Begin {
    /// The effect.
    pub identity: Identity,
    /// Who would run it.
    pub owner: String,
    /// How long the grant stands without being renewed; zero for the store's default.
    pub lease: Duration,
    /// How long the effect is kept after its end; the store's default without it.
    pub ttl: Option<Duration>,
    /// Compared with that of the first begin.
    pub request_hash: Option<String>,
    /// What to do where an earlier lease has expired; the default depends on the scope.
    pub on_expired: Option<OnExpired>,
    /// The delivery it is run for; only with the scope `consume`.
    pub delivery: Option<DeliveryRef>,
}

impl Begin {
    /// Begins an effect with the defaults of the store.
    #[must_use]
    pub fn new(identity: Identity, owner: impl Into<String>) -> Self {
        Self {
            identity,
            owner: owner.into(),
            lease: Duration::ZERO,
            ttl: None,
            request_hash: None,
            on_expired: None,
            delivery: None,
        }
    }

    /// How long the grant stands without being renewed.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How long the effect is kept after its end.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// The [hash](crate::request_hash) of the request: the same key with another one is refused.
    #[must_use]
    pub fn request_hash(mut self, hash: impl Into<String>) -> Self {
        self.request_hash = Some(hash.into());
        self
    }

    /// What to do where an earlier lease has expired.
    #[must_use]
    pub fn on_expired(mut self, on_expired: OnExpired) -> Self {
        self.on_expired = Some(on_expired);
        self
    }

    /// The delivery it is run for.
    #[must_use]
    pub fn delivery(mut self, delivery: DeliveryRef) -> Self {
        self.delivery = Some(delivery);
        self
    }
}

/// What a begin answers.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Begun {
    /// Run the effect, then finish it with the token.
    Execute(Grant),
    /// It has ended; this is how.
    Replay(Ended),
    /// It is in progress elsewhere.
    InProgress {
        /// When to ask again.
        retry_after: Duration,
    },
    /// It failed, or its lease has expired: reacquire it to run it again.
    Retryable {
        /// How often it was granted.
        attempt: u32,
        /// Why it failed.
        last_error: String,
    },
}

impl Begun {
    /// The name of the decision: `EXECUTE`, `REPLAY`, `IN_PROGRESS` or `RETRYABLE`.
    #[must_use]
    pub fn decision(&self) -> &'static str {
        match self {
            Self::Execute(_) => "EXECUTE",
            Self::Replay(_) => "REPLAY",
            Self::InProgress { .. } => "IN_PROGRESS",
            Self::Retryable { .. } => "RETRYABLE",
        }
    }
}

/// The right to run an effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Grant {
    /// How often the effect has been granted, this one included.
    pub attempt: u32,
    /// The token that finishes and renews it.
    pub lease_token: String,
    /// Whether anything is stored: false with an empty key.
    #[serde(default = "yes")]
    pub idempotent: bool,
}

impl Grant {
    /// A grant of a stored effect.
    #[must_use]
    pub fn new(attempt: u32, lease_token: impl Into<String>) -> Self {
        Self { attempt, lease_token: lease_token.into(), idempotent: true }
    }
}

fn yes() -> bool {
    true
}

/// How an effect stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum EffectStatus {
    /// It is granted, and not finished.
    InProgress,
    /// It has succeeded and is not granted again.
    Succeeded,
    /// It has failed for good and is not granted again.
    FailedFinal,
    /// It has failed and may be granted again.
    FailedRetryable,
}

/// The end of an effect, as its finish reported it.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Ended {
    /// `Succeeded` or `FailedFinal`.
    pub status: EffectStatus,
    /// A code of the worker's own.
    #[serde(default)]
    pub response_code: i32,
    /// The result, byte for byte as it was stored; none if there was none.
    #[serde(default)]
    pub result: Option<Box<RawValue>>,
    /// Whether the result was lost to damage of the store's log.
    #[serde(default)]
    pub result_lost: bool,
    /// The cause of the failure.
    #[serde(default)]
    pub last_error: String,
}

impl Ended {
    /// An end without result.
    #[must_use]
    pub fn new(status: EffectStatus) -> Self {
        Self { status, response_code: 0, result: None, result_lost: false, last_error: String::new() }
    }
}

/// A report of how an effect ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Finish {
    /// The effect.
    pub identity: Identity,
    /// The token of the newest grant.
    pub lease_token: String,
    /// How it ended.
    pub status: EffectStatus,
    /// A code of the worker's own.
    pub response_code: i32,
    /// Any JSON value.
    pub result: Option<Box<RawValue>>,
    /// The cause of a failure.
    pub last_error: String,
    /// With `FailedFinal` in the scope `consume`: the delivery whose message is dead-lettered in the same step. A store
    /// that is not the broker's does not look at it.
    pub dead_letter: Option<DeliveryRef>,
}

impl Finish {
    /// The effect has ended like this.
    #[must_use]
    pub fn new(identity: Identity, lease_token: impl Into<String>, status: EffectStatus) -> Self {
        Self {
            identity,
            lease_token: lease_token.into(),
            status,
            response_code: 0,
            result: None,
            last_error: String::new(),
            dead_letter: None,
        }
    }

    /// The result that a replay returns.
    #[must_use]
    pub fn result(mut self, result: Option<Box<RawValue>>) -> Self {
        self.result = result;
        self
    }

    /// The cause of a failure.
    #[must_use]
    pub fn last_error(mut self, error: impl Into<String>) -> Self {
        self.last_error = error.into();
        self
    }

    /// Dead-letters the message of the delivery, too.
    #[must_use]
    pub fn dead_letter(mut self, delivery: DeliveryRef) -> Self {
        self.dead_letter = Some(delivery);
        self
    }
}

/// A stored effect.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Effect {
    /// How it stands.
    pub status: EffectStatus,
    /// How often it was granted.
    pub attempt: u32,
    /// The owner of the newest grant, or empty.
    #[serde(default)]
    pub owner: String,
    /// Until when the grant stands (RFC 3339); none unless in progress.
    #[serde(default)]
    pub lease_until: Option<String>,
    /// The result, if there is one.
    #[serde(default)]
    pub result: Option<Box<RawValue>>,
    /// A code of the worker's own.
    #[serde(default)]
    pub response_code: i32,
    /// The cause of the last failure.
    #[serde(default)]
    pub last_error: String,
    /// That of the first begin.
    #[serde(default)]
    pub request_hash: Option<String>,
    /// When it was changed last (RFC 3339).
    #[serde(default)]
    pub updated_at: String,
    /// When it is forgotten (RFC 3339).
    #[serde(default)]
    pub expires_at: String,
}

impl Effect {
    /// An effect of which nothing else is known. Implementations of [`Store`] use this.
    #[must_use]
    pub fn new(status: EffectStatus, attempt: u32) -> Self {
        Self {
            status,
            attempt,
            owner: String::new(),
            lease_until: None,
            result: None,
            response_code: 0,
            last_error: String::new(),
            request_hash: None,
            updated_at: String::new(),
            expires_at: String::new(),
        }
    }
}

/// The future of a call of a [`Store`].
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// Grants each effect to one worker at a time, and none that has succeeded.
///
/// An implementation guarantees: a begin of an unknown effect is granted to one caller; one that has ended is replayed
/// with what its finish reported; only the newest token can finish or renew.
pub trait Store: Send + Sync + 'static {
    /// Begins an effect. Repeating a begin is safe.
    ///
    /// # Errors
    /// [`ErrorKind::StaleLease`](crate::ErrorKind::StaleLease) if its delivery is not the newest,
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the request hash differs from that of the first begin.
    fn begin<'a>(&'a self, begin: &'a Begin) -> StoreFuture<'a, Begun>;

    /// Reports how an effect ended. The same report again succeeds.
    ///
    /// # Errors
    /// [`ErrorKind::StaleLease`](crate::ErrorKind::StaleLease) for a token that is not the newest,
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) if it has ended otherwise,
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if it is not known.
    fn finish<'a>(&'a self, finish: &'a Finish) -> StoreFuture<'a, ()>;

    /// Grants an effect that is [retryable](Begun::Retryable).
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) if it is not.
    fn reacquire<'a>(&'a self, identity: &'a Identity, owner: &'a str, lease: Duration) -> StoreFuture<'a, Grant>;

    /// Prolongs a grant: it stands for `lease` from now on.
    ///
    /// # Errors
    /// [`ErrorKind::StaleLease`](crate::ErrorKind::StaleLease) if the token is not the newest, or its lease has
    /// expired.
    fn renew<'a>(&'a self, identity: &'a Identity, lease_token: &'a str, lease: Duration) -> StoreFuture<'a, ()>;

    /// An effect as it is stored; none if it is not known.
    ///
    /// # Errors
    /// If the store cannot be asked.
    fn get<'a>(&'a self, identity: &'a Identity) -> StoreFuture<'a, Option<Effect>>;

    /// Forgets an effect: a later begin is granted. Returns whether it was known.
    ///
    /// # Errors
    /// If the store cannot be asked.
    fn forget<'a>(&'a self, identity: &'a Identity) -> StoreFuture<'a, bool>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scope_has_the_fields_of_its_kind() {
        let json = |scope: &Scope| serde_json::to_string(scope).expect("JSON");
        assert_eq!(json(&Scope::consume("t", "g")), r#"{"kind":"consume","topic":"t","group":"g"}"#);
        assert_eq!(json(&Scope::Tenant), r#"{"kind":"tenant"}"#);
        assert_eq!(json(&Scope::task("1")), r#"{"kind":"task","id":"1"}"#);
        assert_eq!(json(&Scope::rpc("p", "m")), r#"{"kind":"rpc","principal":"p","method":"m"}"#);
    }

    #[test]
    fn end_keeps_the_bytes_of_its_result() {
        let ended: Ended =
            serde_json::from_str(r#"{"status":"SUCCEEDED","result":{"b":1.0,  "a":2}}"#).expect("an end");
        assert_eq!(ended.result.expect("a result").get(), r#"{"b":1.0,  "a":2}"#);
        let none: Ended = serde_json::from_str(r#"{"status":"FAILED_FINAL","result":null}"#).expect("an end");
        assert!(none.result.is_none());
    }
}
