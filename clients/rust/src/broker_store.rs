//! The idempotency store of the broker.

use std::borrow::Cow;
use std::time::Duration;

use hyper::Method;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::batch::{Answer, read_json};
use crate::client::{Client, json};
use crate::envelope::millis;
use crate::error::{Error, ErrorKind};
use crate::store::{
    Begin, Begun, DeliveryRef, Effect, EffectStatus, Ended, Finish, Grant, Identity, OnExpired, Scope, Store,
    StoreFuture,
};
use crate::topics::with_query;
use crate::transport::{Call, shown};

/// The [`Store`] of the broker: its answers are as durable as its messages.
///
/// # Examples
/// ```no_run
/// # async fn example(client: driftq_client::Client) -> Result<(), driftq_client::Error> {
/// use driftq_client::{Begin, Begun, BrokerStore, EffectStatus, Ended, Finish, Identity, Scope, Store};
///
/// let store = BrokerStore::new(&client);
/// let invoices = Identity::new(Scope::job("invoices"), "2026-11");
/// if let Begun::Execute(grant) = store.begin(&Begin::new(invoices.clone(), "worker-1")).await? {
///     // …
///     store.finish(&Finish::new(invoices, grant.lease_token, EffectStatus::Succeeded)).await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct BrokerStore {
    client: Client,
    retry_for: Option<Duration>,
}

#[derive(Serialize)]
struct BeginBody<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    tenant_id: &'a str,
    scope: &'a Scope,
    key: &'a str,
    owner: &'a str,
    lease_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_hash: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_expired: Option<OnExpired>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delivery: Option<&'a DeliveryRef>,
}

#[derive(Serialize)]
struct FinishBody<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    tenant_id: &'a str,
    scope: &'a Scope,
    key: &'a str,
    lease_token: &'a str,
    status: EffectStatus,
    #[serde(skip_serializing_if = "is_zero")]
    response_code: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "str::is_empty")]
    last_error: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    dead_letter: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delivery: Option<&'a DeliveryRef>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(code: &i32) -> bool {
    *code == 0
}

#[derive(Serialize)]
struct LeaseBody<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    tenant_id: &'a str,
    scope: &'a Scope,
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_token: Option<&'a str>,
    lease_ms: u64,
}

/// The answer of a begin; which fields there are depends on the decision.
#[derive(Deserialize)]
struct BeginAnswer<'a> {
    #[serde(borrow)]
    decision: Cow<'a, str>,
    #[serde(default)]
    attempt: u32,
    lease_token: Option<String>,
    idempotent: Option<bool>,
    /// The status of the effect; in a line of a batch that of the line.
    #[serde(borrow)]
    status: Option<&'a RawValue>,
    /// The status of the effect in a line of a batch.
    effect_status: Option<EffectStatus>,
    #[serde(default)]
    response_code: i32,
    result: Option<Box<RawValue>>,
    #[serde(default)]
    result_lost: bool,
    #[serde(default)]
    last_error: String,
}

impl BrokerStore {
    /// The store of the broker that `client` talks to.
    #[must_use]
    pub fn new(client: &Client) -> Self {
        Self { client: client.clone(), retry_for: None }
    }

    /// The same; its requests are repeated for so long.
    pub(crate) fn retry_for(&self, limit: Duration) -> Self {
        Self { retry_for: Some(limit), ..self.clone() }
    }

    /// Requests of the store cannot double: each names a token, or the owner that would get one.
    fn call(&self, path: &'static str, body: &impl Serialize) -> Result<Call, Error> {
        Ok(Call::post(path, json(body)?).repeatable_if(true).retry_for(self.limit()))
    }

    /// How long its requests are repeated.
    fn limit(&self) -> Duration {
        self.retry_for.unwrap_or(self.client.transport().retry_for())
    }

    async fn begin_now(&self, begin: &Begin) -> Result<Begun, Error> {
        let body = BeginBody {
            tenant_id: &begin.identity.tenant,
            scope: &begin.identity.scope,
            key: &begin.identity.key,
            owner: &begin.owner,
            lease_ms: millis(begin.lease),
            ttl_ms: begin.ttl.map(millis),
            request_hash: begin.request_hash.as_deref(),
            on_expired: begin.on_expired,
            delivery: begin.delivery.as_ref(),
        };
        let begun = match self.client.batchers() {
            Some(batchers) => batchers.begins.call(&body, true, self.limit()).await,
            None => {
                let call = self.call("/v1/idempotency/begin", &body)?;
                self.client.send_boxed(&call).await.and_then(|reply| Begun::read(&reply.body))
            }
        };
        match begun {
            Err(error) if error.kind() == ErrorKind::InProgress => {
                Ok(Begun::InProgress { retry_after: error.retry_after().unwrap_or_default() })
            }
            begun => begun,
        }
    }

    async fn finish_now(&self, finish: &Finish) -> Result<(), Error> {
        let body = FinishBody {
            tenant_id: &finish.identity.tenant,
            scope: &finish.identity.scope,
            key: &finish.identity.key,
            lease_token: &finish.lease_token,
            status: finish.status,
            response_code: finish.response_code,
            result: finish.result.as_deref(),
            last_error: &finish.last_error,
            dead_letter: finish.dead_letter.is_some().then_some(true),
            delivery: finish.dead_letter.as_ref(),
        };
        if let Some(batchers) = self.client.batchers() {
            return batchers.finishes.call(&body, true, self.limit()).await.map(|_| ());
        }
        let call = self.call("/v1/idempotency/finish", &body)?;
        self.client.send_boxed(&call).await.map(|_| ())
    }

    async fn get_now(&self, identity: &Identity) -> Result<Option<Effect>, Error> {
        match self.client.transport().json(&Call::get(identity_path(identity))).await {
            Ok(effect) => Ok(Some(effect)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn forget_now(&self, identity: &Identity) -> Result<bool, Error> {
        let call = Call::new(Method::DELETE, identity_path(identity), bytes::Bytes::new()).repeatable_if(true);
        match self.client.transport().call(&call).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Answer for Begun {
    fn read(json: &[u8]) -> Result<Self, Error> {
        let answer: BeginAnswer<'_> = read_json(json, "the answer to a begin")?;
        let BeginAnswer { attempt, response_code, result, result_lost, last_error, .. } = answer;
        let status = answer.effect_status.or_else(|| serde_json::from_str(answer.status?.get()).ok());
        match (&*answer.decision, answer.lease_token, status) {
            ("EXECUTE", Some(lease_token), _) => {
                Ok(Self::Execute(Grant { attempt, lease_token, idempotent: answer.idempotent.unwrap_or(true) }))
            }
            ("REPLAY", _, Some(status)) => {
                Ok(Self::Replay(Ended { status, response_code, result, result_lost, last_error }))
            }
            ("RETRYABLE", ..) => Ok(Self::Retryable { attempt, last_error }),
            _ => Err(Error::protocol(format!("expected the answer of a begin, got {}", shown(json)))),
        }
    }
}

fn identity_path(identity: &Identity) -> String {
    let mut parameters = vec![("tenant_id", identity.tenant.as_str()), ("key", &identity.key)];
    match &identity.scope {
        Scope::Consume { topic, group } => parameters.extend([("kind", "consume"), ("topic", topic), ("group", group)]),
        Scope::Tenant => parameters.push(("kind", "tenant")),
        Scope::Job { id } => parameters.extend([("kind", "job"), ("id", id)]),
        Scope::Task { id } => parameters.extend([("kind", "task"), ("id", id)]),
        Scope::Rpc { principal, method } => {
            parameters.extend([("kind", "rpc"), ("principal", principal), ("method", method)]);
        }
    }
    with_query("/v1/idempotency", &parameters)
}

impl Store for BrokerStore {
    fn begin<'a>(&'a self, begin: &'a Begin) -> StoreFuture<'a, Begun> {
        Box::pin(self.begin_now(begin))
    }

    fn finish<'a>(&'a self, finish: &'a Finish) -> StoreFuture<'a, ()> {
        Box::pin(self.finish_now(finish))
    }

    fn reacquire<'a>(&'a self, identity: &'a Identity, owner: &'a str, lease: Duration) -> StoreFuture<'a, Grant> {
        let body = LeaseBody {
            tenant_id: &identity.tenant,
            scope: &identity.scope,
            key: &identity.key,
            owner: Some(owner),
            lease_token: None,
            lease_ms: millis(lease),
        };
        // Its grant would be lost, and a second one taken: not repeated.
        let call = self.call("/v1/idempotency/reacquire", &body).map(|call| call.repeatable_if(false));
        Box::pin(async move { self.client.transport().json(&call?).await })
    }

    fn renew<'a>(&'a self, identity: &'a Identity, lease_token: &'a str, lease: Duration) -> StoreFuture<'a, ()> {
        let body = LeaseBody {
            tenant_id: &identity.tenant,
            scope: &identity.scope,
            key: &identity.key,
            owner: None,
            lease_token: Some(lease_token),
            lease_ms: millis(lease),
        };
        let call = self.call("/v1/idempotency/renew", &body);
        Box::pin(async move { self.client.transport().call(&call?).await.map(|_| ()) })
    }

    fn get<'a>(&'a self, identity: &'a Identity) -> StoreFuture<'a, Option<Effect>> {
        Box::pin(self.get_now(identity))
    }

    fn forget<'a>(&'a self, identity: &'a Identity) -> StoreFuture<'a, bool> {
        Box::pin(self.forget_now(identity))
    }
}

/// An effect of a list, with its identity.
#[derive(Clone, Debug, Deserialize)]
#[non_exhaustive]
pub struct ListedEffect {
    /// The tenant.
    pub tenant_id: String,
    /// The scope.
    pub scope: Scope,
    /// The key.
    pub key: String,
    /// How it stands.
    pub status: EffectStatus,
    /// How often it was granted.
    pub attempt: u32,
    /// The cause of the last failure.
    #[serde(default)]
    pub last_error: String,
}

/// A page of effects.
#[derive(Clone, Debug, Deserialize)]
#[non_exhaustive]
pub struct EffectPage {
    /// The effects.
    pub records: Vec<ListedEffect>,
    /// Where the next page begins; none with the last.
    pub next: Option<String>,
}

impl Client {
    /// Lists effects, of one status or all. Pass [`EffectPage::next`] as `after` for the next page.
    ///
    /// # Errors
    /// If the broker cannot be asked.
    pub async fn effects(&self, status: Option<&str>, after: Option<&str>) -> Result<EffectPage, Error> {
        let parameters = [("status", status), ("after", after)];
        let given: Vec<_> = parameters.iter().filter_map(|(name, value)| Some((*name, (*value)?))).collect();
        self.transport().json(&Call::get(with_query("/v1/idempotency/list", &given))).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_decision_is_decoded() {
        let begun = |body: &str| Begun::read(body.as_bytes());
        let execute = begun(r#"{"decision":"EXECUTE","attempt":2,"lease_token":"t","status":"IN_PROGRESS"}"#);
        assert!(matches!(execute, Ok(Begun::Execute(grant)) if grant == Grant::new(2, "t")));
        let replay = begun(r#"{"decision":"REPLAY","status":"FAILED_FINAL","last_error":"no","result":null}"#);
        assert!(matches!(replay, Ok(Begun::Replay(Ended { status: EffectStatus::FailedFinal, .. }))));
        let line = begun(r#"{"status":200,"decision":"REPLAY","effect_status":"SUCCEEDED","result":[1,  2]}"#);
        assert!(matches!(line, Ok(Begun::Replay(Ended { status: EffectStatus::Succeeded, result: Some(result), .. }))
            if result.get() == "[1,  2]"));
        let retryable = begun(r#"{"decision":"RETRYABLE","attempt":1,"last_error":"no"}"#);
        assert!(matches!(retryable, Ok(Begun::Retryable { attempt: 1, .. })));
        for body in
            [r#"{"decision":"EXECUTE"}"#, r#"{"status":200,"decision":"REPLAY"}"#, r#"{"decision":"WAIT"}"#, "{}", ""]
        {
            assert_eq!(begun(body).expect_err("refused").kind(), ErrorKind::Protocol, "{body}");
        }
    }

    #[test]
    fn identity_is_encoded_in_the_query() {
        let identity = Identity::new(Scope::consume("a/b", "g"), "k&");
        let path = "/v1/idempotency?tenant_id=&key=k%26&kind=consume&topic=a%2Fb&group=g";
        assert_eq!(identity_path(&identity), path);
    }
}
