//! `/v1/idempotency`: begin, finish, reacquire, renew, get and forget effects in the idempotency store.

use driftq_core::command::{Begin, DeliveryClaim, Finish, Forget, Lookup, OnExpired, Reacquire, Renew, TokenClaim};
use driftq_core::reply::FoundEffect;
use driftq_core::types::{
    EffectStatus, Identity, Lifetime, Millis, Offset, Outcome, OwnerName, PartitionId, Scope, Text, WallClock,
};
use driftq_core::{BeginReply, Grant};
use hyper::StatusCode;
use hyper::header::{HeaderName, HeaderValue};
use serde::Deserialize;

use super::api::Api;
use super::error::ApiError;
use super::fields::{RawJson, Str, from_plain_json, millis, non_empty, object, required, timestamp};
use super::plain_json::plain_object;
use super::query::Query;
use super::requester::{Names, Requester};
use super::response::{ApiResponse, json, no_content};
use crate::json::Json;

const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// The fields of a scope, within which a key is unique.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScopeFields<'a> {
    #[serde(borrow)]
    kind: Option<Str<'a>>,
    #[serde(borrow)]
    topic: Option<Str<'a>>,
    #[serde(borrow)]
    group: Option<Str<'a>>,
    #[serde(borrow)]
    id: Option<Str<'a>>,
    #[serde(borrow)]
    principal: Option<Str<'a>>,
    #[serde(borrow)]
    method: Option<Str<'a>>,
}

plain_object!(ScopeFields<'a> { kind, topic, group, id, principal, method });

impl<'a> ScopeFields<'a> {
    /// Reads them from a query. An empty parameter counts as absent.
    fn from_query(query: &'a Query<'a>) -> Result<Self, ApiError> {
        let text = |name| query.any_of(&[name]).map(|text| text.map(Str::from));
        Ok(Self {
            kind: text("kind")?,
            topic: text("topic")?,
            group: text("group")?,
            id: text("id")?,
            principal: text("principal")?,
            method: text("method")?,
        })
    }

    /// The scope, which must have exactly the fields of its kind.
    fn scope(&self, names: &Names) -> Result<Scope, ApiError> {
        let kind = required("scope.kind", self.kind.as_deref())?;
        let own: &[&str] = match kind {
            "consume" => &["topic", "group"],
            "tenant" => &[],
            "job" | "task" => &["id"],
            "rpc" => &["principal", "method"],
            _ => return Err(unknown_kind()),
        };
        let given = [
            ("topic", &self.topic),
            ("group", &self.group),
            ("id", &self.id),
            ("principal", &self.principal),
            ("method", &self.method),
        ];
        if let Some((name, _)) = given.iter().find(|(name, text)| text.is_some() && !own.contains(name)) {
            return Err(ApiError::invalid(format!("a scope of kind {kind} has no {name}")));
        }
        let id = || required("scope.id", self.id.as_deref()).map(Text::from);
        Ok(match kind {
            "consume" => Scope::Consume {
                topic: names.topic(required("scope.topic", self.topic.as_deref())?)?,
                group: names.group(required("scope.group", self.group.as_deref())?)?,
            },
            "job" => Scope::Job { id: id()? },
            "task" => Scope::Task { id: id()? },
            "rpc" => Scope::Rpc {
                principal: names.rpc_principal(self.principal.as_deref())?.into(),
                method: required("scope.method", self.method.as_deref())?.into(),
            },
            _ => Scope::Tenant,
        })
    }
}

/// Declares a request about one effect: the fields of its identity, and further ones.
macro_rules! effect_fields {
    ($(#[$doc:meta])* $name:ident { $($(#[$serde:meta])* $field:ident: $type:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct $name<'a> {
            #[serde(borrow)]
            tenant_id: Option<Str<'a>>,
            #[serde(borrow, default, deserialize_with = "object")]
            scope: Option<ScopeFields<'a>>,
            #[serde(borrow)]
            key: Option<Str<'a>>,
            $($(#[$serde])* $field: $type,)*
        }

        plain_object!($name<'a> { tenant_id, scope, key, $($field,)* });

        impl $name<'_> {
            /// The effect that it is about.
            fn identity(&self, names: &Names) -> Result<Identity, ApiError> {
                identity(self.tenant_id.as_deref(), self.scope.as_ref(), self.key.as_deref(), names)
            }
        }
    };
}

effect_fields! {
    /// `POST /v1/idempotency/begin`.
    BeginFields {
        #[serde(borrow)]
        owner: Option<Str<'a>>,
        lease_ms: Option<i64>,
        ttl_ms: Option<i64>,
        #[serde(borrow)]
        expires_at: Option<Str<'a>>,
        #[serde(borrow)]
        request_hash: Option<Str<'a>>,
        #[serde(borrow)]
        on_expired: Option<Str<'a>>,
        #[serde(borrow, default, deserialize_with = "object")]
        delivery: Option<DeliveryFields<'a>>,
    }
}
effect_fields! {
    /// `POST /v1/idempotency/finish`.
    FinishFields {
        #[serde(borrow)]
        lease_token: Option<Str<'a>>,
        #[serde(borrow)]
        status: Option<Str<'a>>,
        response_code: Option<i64>,
        #[serde(borrow)]
        result: Option<RawJson<'a>>,
        #[serde(borrow)]
        last_error: Option<Str<'a>>,
        dead_letter: Option<bool>,
        #[serde(borrow, default, deserialize_with = "object")]
        delivery: Option<DeliveryFields<'a>>,
    }
}
effect_fields! {
    /// `POST /v1/idempotency/reacquire`.
    ReacquireFields {
        #[serde(borrow)]
        owner: Option<Str<'a>>,
        lease_ms: Option<i64>,
    }
}
effect_fields! {
    /// `POST /v1/idempotency/renew`.
    RenewFields {
        #[serde(borrow)]
        lease_token: Option<Str<'a>>,
        lease_ms: Option<i64>,
    }
}

/// The delivery that the effect belongs to.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeliveryFields<'a> {
    partition: Option<u32>,
    offset: Option<u64>,
    #[serde(borrow)]
    lease_token: Option<Str<'a>>,
}

plain_object!(DeliveryFields<'a> { partition, offset, lease_token });

impl DeliveryFields<'_> {
    fn claim(&self) -> Result<DeliveryClaim, ApiError> {
        Ok(DeliveryClaim {
            partition: PartitionId(required("delivery.partition", self.partition)?),
            offset: Offset(required("delivery.offset", self.offset)?),
            token: TokenClaim::read(Some(required("delivery.lease_token", self.lease_token.as_deref())?)),
        })
    }
}

fn identity(
    tenant: Option<&str>,
    scope: Option<&ScopeFields<'_>>,
    key: Option<&str>,
    names: &Names,
) -> Result<Identity, ApiError> {
    let scope = required("scope", scope)?.scope(names)?;
    Ok(Identity::new(names.tenant_text(tenant)?.unwrap_or_default(), scope, required("key", key)?))
}

/// 400: no scope is of the kind.
pub(super) fn unknown_kind() -> ApiError {
    ApiError::invalid("scope.kind must be consume, tenant, job, task or rpc")
}

fn owner(name: Option<&str>, names: &Names) -> Result<OwnerName, ApiError> {
    Ok(names.owner(required("owner", name)?)?)
}

fn token(text: Option<&str>) -> Result<TokenClaim, ApiError> {
    Ok(TokenClaim::read(Some(required("lease_token", text)?)))
}

/// How long the effect is kept, if the request sets it.
fn lifetime(ttl_ms: Option<i64>, expires_at: Option<&str>) -> Result<Option<Lifetime>, ApiError> {
    match (ttl_ms, expires_at) {
        (None, None) => Ok(None),
        (Some(ttl), None) => match u64::try_from(ttl) {
            Ok(ttl @ 1..) => Ok(Some(Lifetime::Window(Millis(ttl)))),
            _ => Err(ApiError::invalid("ttl_ms must be greater than 0")),
        },
        (None, Some(at)) => Ok(Some(Lifetime::Until(timestamp("expires_at", at)?))),
        (Some(_), Some(_)) => Err(ApiError::invalid("give ttl_ms or expires_at, not both")),
    }
}

fn on_expired(name: &str) -> Result<OnExpired, ApiError> {
    match name {
        "report" => Ok(OnExpired::Report),
        "take_over" | "takeover" => Ok(OnExpired::TakeOver),
        _ => Err(ApiError::invalid("on_expired must be report or take_over")),
    }
}

/// The status with which an effect ends.
pub(super) fn final_status(name: &str) -> Result<EffectStatus, ApiError> {
    status(name).filter(|status| *status != EffectStatus::InProgress).ok_or_else(|| {
        ApiError::invalid("status must be SUCCEEDED (SUCCESS), FAILED_FINAL or FAILED_RETRYABLE (FAILURE)")
    })
}

/// A status by its name, or by the name that the first version of the idempotency semantics gave it. There, a failure
/// is retried.
pub(super) fn status(name: &str) -> Option<EffectStatus> {
    match name {
        "SUCCESS" => Some(EffectStatus::Succeeded),
        "FAILURE" => Some(EffectStatus::FailedRetryable),
        name => EffectStatus::ALL.into_iter().find(|status| status.as_str() == name),
    }
}

/// Parses `POST /v1/idempotency/begin`.
pub(crate) fn parse_begin(body: &[u8], names: &Names) -> Result<Begin, ApiError> {
    let fields: BeginFields<'_> = from_plain_json(body)?;
    Ok(Begin {
        identity: fields.identity(names)?,
        owner: owner(fields.owner.as_deref(), names)?,
        lease: millis("lease_ms", fields.lease_ms)?,
        lifetime: lifetime(fields.ttl_ms, fields.expires_at.as_deref())?,
        request_hash: non_empty(fields.request_hash),
        on_expired: fields.on_expired.as_deref().map(on_expired).transpose()?,
        delivery: fields.delivery.as_ref().map(DeliveryFields::claim).transpose()?,
    })
}

/// Parses `POST /v1/idempotency/finish`.
pub(crate) fn parse_finish(body: &[u8], names: &Names) -> Result<Finish, ApiError> {
    let fields: FinishFields<'_> = from_plain_json(body)?;
    let outcome = Outcome {
        status: final_status(required("status", fields.status.as_deref())?)?,
        response_code: fields.response_code.unwrap_or(0),
        result: fields.result.map(Into::into),
        last_error: fields.last_error.as_deref().unwrap_or_default().into(),
    };
    let (identity, token) = (fields.identity(names)?, token(fields.lease_token.as_deref())?);
    let dead_letter = match (fields.dead_letter.unwrap_or(false), &fields.delivery) {
        (false, None) => None,
        (false, Some(_)) => return Err(ApiError::invalid("delivery goes with dead_letter: true")),
        (true, _) if outcome.status != EffectStatus::FailedFinal => {
            return Err(ApiError::invalid("dead_letter goes with status FAILED_FINAL only"));
        }
        (true, delivery) => Some(required("delivery", delivery.as_ref())?.claim()?),
    };
    Ok(Finish { identity, token, outcome, dead_letter })
}

/// Parses `POST /v1/idempotency/reacquire`.
pub(crate) fn parse_reacquire(body: &[u8], names: &Names) -> Result<Reacquire, ApiError> {
    let fields: ReacquireFields<'_> = from_plain_json(body)?;
    let (identity, owner) = (fields.identity(names)?, owner(fields.owner.as_deref(), names)?);
    Ok(Reacquire { identity, owner, lease: millis("lease_ms", fields.lease_ms)? })
}

/// Parses `POST /v1/idempotency/renew`.
pub(crate) fn parse_renew(body: &[u8], names: &Names) -> Result<Renew, ApiError> {
    let fields: RenewFields<'_> = from_plain_json(body)?;
    let (identity, token) = (fields.identity(names)?, token(fields.lease_token.as_deref())?);
    Ok(Renew { identity, token, lease: millis("lease_ms", fields.lease_ms)? })
}

/// Submits a begin.
pub(crate) async fn begin(api: &Api, from: &Requester, begin: Begin) -> Result<ApiResponse, ApiError> {
    let reply = api.driver.ask(&from.caller, begin).await??;
    let mut out = Json::object();
    write_begun(&mut out, &reply, &api.driver.wall_clock(), "status");
    let mut response = json(StatusCode::OK, out);
    if let BeginReply::Replay { .. } = reply {
        response.extra_headers.push((REPLAYED, HeaderValue::from_static("true")));
    }
    Ok(response)
}

/// Writes the decision of a begin. In the line of a batch, `status` is the HTTP status, so the effect's status has
/// another name there.
pub(crate) fn write_begun(out: &mut Json, reply: &BeginReply, clock: &WallClock, status_name: &str) {
    match reply {
        BeginReply::Execute(grant) => write_grant(out, grant, clock, status_name),
        BeginReply::Replay { outcome, result_lost } => {
            out.plain("decision", "REPLAY");
            write_status(out, outcome.status, status_name);
            write_outcome(out, outcome, *result_lost);
        }
        BeginReply::Retryable { attempt, status, last_error } => {
            out.plain("decision", "RETRYABLE");
            out.number("attempt", *attempt);
            out.text("last_error", last_error);
            write_status(out, *status, status_name);
        }
    }
}

/// Submits a finish.
pub(crate) async fn finish(api: &Api, from: &Requester, finish: Finish) -> Result<ApiResponse, ApiError> {
    api.driver.ask(&from.caller, finish).await??;
    let mut out = Json::object();
    out.flag("ok", true);
    Ok(json(StatusCode::OK, out))
}

/// Submits a reacquire.
pub(crate) async fn reacquire(api: &Api, from: &Requester, reacquire: Reacquire) -> Result<ApiResponse, ApiError> {
    let grant = api.driver.ask(&from.caller, reacquire).await??;
    let mut out = Json::object();
    write_grant(&mut out, &grant, &api.driver.wall_clock(), "status");
    Ok(json(StatusCode::OK, out))
}

/// Submits a renew.
pub(crate) async fn renew(api: &Api, from: &Requester, renew: Renew) -> Result<ApiResponse, ApiError> {
    let lease_until = api.driver.ask(&from.caller, renew).await??;
    let mut out = Json::object();
    out.timestamp("lease_until", api.driver.wall_clock().wall(lease_until));
    Ok(json(StatusCode::OK, out))
}

/// `GET /v1/idempotency`.
pub(crate) async fn get(api: &Api, from: &Requester, query: &Query<'_>) -> Result<ApiResponse, ApiError> {
    let effect = api.driver.ask(&from.caller, Lookup { identity: query_identity(query, &from.names)? }).await??;
    let mut out = Json::object();
    write_effect(&mut out, &effect, &api.driver.wall_clock());
    Ok(json(StatusCode::OK, out))
}

/// `DELETE /v1/idempotency`.
pub(crate) async fn forget(api: &Api, from: &Requester, query: &Query<'_>) -> Result<ApiResponse, ApiError> {
    api.driver.ask(&from.caller, Forget { identity: query_identity(query, &from.names)? }).await??;
    Ok(no_content())
}

fn query_identity(query: &Query<'_>, names: &Names) -> Result<Identity, ApiError> {
    let scope = ScopeFields::from_query(query)?;
    identity(query.text("tenant_id")?, Some(&scope), query.text("key")?, names)
}

fn write_grant(out: &mut Json, grant: &Grant, clock: &WallClock, status_name: &str) {
    out.plain("decision", "EXECUTE");
    out.number("attempt", grant.attempt);
    out.token("lease_token", grant.token);
    out.timestamp("lease_until", clock.wall(grant.lease_until));
    write_status(out, EffectStatus::InProgress, status_name);
    out.flag("idempotent", grant.idempotent);
}

fn write_status(out: &mut Json, status: EffectStatus, name: &str) {
    out.plain(name, status.as_str());
    out.plain("status_v1", status.as_v1());
}

fn write_outcome(out: &mut Json, outcome: &Outcome, result_lost: bool) {
    out.number("response_code", outcome.response_code);
    match &outcome.result {
        Some(result) => out.raw("result", result),
        None => out.null("result"),
    }
    if result_lost {
        out.flag("result_lost", true);
    }
    out.text("last_error", &outcome.last_error);
}

pub(super) fn write_effect(out: &mut Json, found: &FoundEffect, clock: &WallClock) {
    let effect = &found.effect;
    write_status(out, effect.status, "status");
    out.number("attempt", effect.attempt);
    out.text("owner", effect.owner.as_ref().map_or("", OwnerName::as_str));
    match effect.status {
        EffectStatus::InProgress => out.timestamp("lease_until", clock.wall(effect.lease_until)),
        _ => out.null("lease_until"),
    }
    write_outcome(out, &found.outcome(), found.result_lost);
    match effect.request_hash() {
        Some(hash) => out.text("request_hash", hash),
        None => out.null("request_hash"),
    }
    out.timestamp("updated_at", clock.wall(effect.updated_at));
    out.timestamp("expires_at", clock.wall(effect.expires_at));
}
