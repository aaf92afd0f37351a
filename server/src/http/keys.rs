//! `/v1/keys`: create, list, bind and revoke keys.

use driftq_core::Refusal;
use driftq_core::command::{ACCESS_PAGE_MAX, BindKey, CreateKey, KeyExpiry, ListKeys, RevokeKey};
use driftq_core::reply::KeyInfo;
use driftq_core::types::{
    CertificateSan, Grant, GrantError, KeyId, KeyName, Millis, TenantName, TopicPattern, Verb, Verbs, WallClock,
};
use hyper::StatusCode;
use serde::Deserialize;

use super::api::Api;
use super::audit;
use super::error::ApiError;
use super::fields::{Fields, Object, Str, from_json, nullable, required, timestamp};
use super::query::Query;
use super::requester::Requester;
use super::response::{ApiResponse, json, no_content};
use crate::access::NewKey;
use crate::json::{Json, object, string};

/// Keys of a page without `limit`.
const PAGE_DEFAULT: usize = 100;

/// The fields of a key to create.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct CreateFields<'a> {
    #[serde(borrow)]
    name: Option<Str<'a>>,
    #[serde(borrow)]
    tenant: Option<Str<'a>>,
    #[serde(borrow)]
    grants: Option<Vec<Object<GrantFields<'a>>>>,
    #[serde(borrow)]
    expires_at: Option<Str<'a>>,
    expires_in_ms: Option<i64>,
}

/// A grant: verbs, and the topics they are for.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct GrantFields<'a> {
    #[serde(borrow)]
    verbs: Option<Vec<Str<'a>>>,
    #[serde(borrow)]
    topics: Option<Str<'a>>,
}

impl GrantFields<'_> {
    fn grant(&self) -> Result<Grant, ApiError> {
        let invalid = |error: GrantError| ApiError::invalid(format!("bad grants: {error}"));
        let verbs = required("grants[].verbs", self.verbs.as_deref())?.iter().map(|verb| verb.trim().parse::<Verb>());
        let verbs = verbs.collect::<Result<Verbs, _>>().map_err(invalid)?;
        if verbs.is_empty() {
            return Err(invalid(GrantError::NoVerbs));
        }
        let topics = TopicPattern::new(required("grants[].topics", self.topics.as_deref())?);
        Ok(Grant { verbs, topics: topics.map_err(|error| invalid(error.into()))? })
    }
}

/// Parses `POST /v1/keys`, into a command that creates `new`.
fn parse_create(body: &[u8], new: &NewKey) -> Result<CreateKey, ApiError> {
    let fields: CreateFields<'_> = from_json(body)?;
    let grants = required("grants", fields.grants)?;
    if !(1..=Grant::COUNT_MAX).contains(&grants.len()) {
        return Err(ApiError::invalid(format!("grants must be 1 to {}", Grant::COUNT_MAX)));
    }
    let expiry = match (fields.expires_at.as_deref(), fields.expires_in_ms) {
        (None, None) => None,
        (Some(at), None) => Some(KeyExpiry::At(timestamp("expires_at", at)?)),
        (None, Some(ms)) => match u64::try_from(ms) {
            Ok(ms @ 1..) => Some(KeyExpiry::After(Millis(ms))),
            _ => return Err(ApiError::invalid("expires_in_ms must be greater than 0")),
        },
        (Some(_), Some(_)) => return Err(ApiError::invalid("give expires_at or expires_in_ms, not both")),
    };
    Ok(CreateKey {
        id: new.id,
        name: KeyName::new(required("name", fields.name.as_deref())?)?,
        digest: new.digest,
        tenant: tenant(fields.tenant.as_deref())?,
        grants: grants.iter().map(|Object(grant)| grant.grant()).collect::<Result<_, _>>()?,
        expiry,
    })
}

/// A tenant that a request may name.
fn tenant(name: Option<&str>) -> Result<Option<TenantName>, ApiError> {
    Ok(name.map(TenantName::new).transpose()?)
}

fn key_id(text: &str) -> Result<KeyId, ApiError> {
    text.trim().parse().map_err(|_| ApiError::invalid("bad id: want the 12 characters between dq_ and _"))
}

/// `POST /v1/keys`. The answer is the only place where the key's text ever is.
pub(crate) async fn create(api: &Api, from: &Requester, body: &[u8]) -> Result<ApiResponse, ApiError> {
    let (new, info) = loop {
        let new = NewKey::random().map_err(|error| ApiError::unavailable(format!("no random numbers: {error}")))?;
        match audit::ask(api, from, parse_create(body, &new)?).await? {
            Ok(info) => break (new, info),
            Err(Refusal::KeyExists) => {}
            Err(refusal) => return Err(refusal.into()),
        }
    };
    let mut out = Json::object();
    write_key(&mut out, &info, &api.driver.wall_clock());
    out.text("key", &new.text);
    Ok(json(StatusCode::CREATED, out))
}

fn write_key(out: &mut Json, key: &KeyInfo, clock: &WallClock) {
    out.text("id", key.id.as_str());
    out.text("name", key.name.as_str());
    out.text("tenant", key.tenant.as_str());
    out.list("grants", &key.grants[..], |grant, out| {
        object(out, |json| {
            json.list("verbs", grant.verbs.iter(), |verb, out| string(verb.as_str(), out));
            json.text("topics", &grant.topics.to_string());
        });
    });
    out.timestamp("created_at", clock.wall(key.created_at));
    match key.expires_at {
        Some(at) => out.timestamp("expires_at", clock.wall(at)),
        None => out.null("expires_at"),
    }
    match &key.certificate_san {
        Some(san) => out.text("certificate_san", san.as_str()),
        None => out.null("certificate_san"),
    }
}

/// `GET /v1/keys?tenant=&limit=&after=`.
pub(crate) async fn list(api: &Api, from: &Requester, query: &Query<'_>) -> Result<ApiResponse, ApiError> {
    let request = ListKeys {
        tenant: tenant(query.any_of(&["tenant"])?)?,
        limit: page_limit(query)?,
        after: query.any_of(&["after"])?.map(key_id).transpose()?,
    };
    let page = audit::ask(api, from, request).await??;
    let clock = api.driver.wall_clock();
    let mut out = Json::object();
    out.list("keys", &page.keys, |key, out| object(out, |json| write_key(json, key, &clock)));
    match &page.next {
        Some(id) => out.text("next", id.as_str()),
        None => out.null("next"),
    }
    Ok(json(StatusCode::OK, out))
}

/// The `limit` of a page.
pub(super) fn page_limit(query: &Query<'_>) -> Result<usize, ApiError> {
    let limit = query.value("limit")?.unwrap_or(PAGE_DEFAULT);
    match limit {
        1..=ACCESS_PAGE_MAX => Ok(limit),
        _ => Err(ApiError::invalid(format!("limit must be 1 to {ACCESS_PAGE_MAX}"))),
    }
}

/// The fields of a request about one key.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeyFields<'a> {
    #[serde(borrow)]
    id: Option<Str<'a>>,
}

impl<'a> Fields<'a> for KeyFields<'a> {
    fn from_query(query: &'a Query<'a>) -> Result<Self, ApiError> {
        Ok(Self { id: query.text("id")?.map(Into::into) })
    }
}

/// `DELETE /v1/keys?id=`, or with the id in a body.
pub(crate) async fn revoke(api: &Api, from: &Requester, fields: KeyFields<'_>) -> Result<ApiResponse, ApiError> {
    revoke_id(api, from, required("id", fields.id.as_deref())?).await
}

/// `DELETE /v1/keys/{id}`.
pub(crate) async fn revoke_id(api: &Api, from: &Requester, id: &str) -> Result<ApiResponse, ApiError> {
    audit::ask(api, from, RevokeKey { id: key_id(id)? }).await??;
    Ok(no_content())
}

/// The fields of a binding; a `certificate_san` of null removes it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BindFields<'a> {
    #[serde(borrow)]
    id: Option<Str<'a>>,
    #[serde(default, deserialize_with = "nullable")]
    certificate_san: Option<Option<String>>,
}

/// `POST /v1/keys/bind`.
pub(crate) async fn bind(api: &Api, from: &Requester, body: &[u8]) -> Result<ApiResponse, ApiError> {
    let fields: BindFields<'_> = from_json(body)?;
    let id = key_id(required("id", fields.id.as_deref())?)?;
    let san = required("certificate_san", fields.certificate_san)?;
    let certificate_san = san.as_deref().map(CertificateSan::new).transpose()?;
    audit::ask(api, from, BindKey { id, certificate_san }).await??;
    Ok(no_content())
}
