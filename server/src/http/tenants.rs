//! `/v1/tenants`: register, list and delete tenants.

use driftq_core::command::{CreateTenant, DeleteTenant, ListTenants};
use driftq_core::types::{TenantId, TenantName};
use hyper::StatusCode;
use serde::Deserialize;

use super::api::Api;
use super::audit;
use super::error::ApiError;
use super::fields::{Fields, Str, required};
use super::query::Query;
use super::requester::Requester;
use super::response::{ApiResponse, json, no_content};
use crate::driver::Unready;
use crate::json::{Json, object};

/// The tenant that the query names as `?tenant=`, or the sender's.
///
/// # Errors
/// 403 if the sender does not manage that tenant, whether it exists or not; 404 if there is no such tenant.
pub(super) async fn named(api: &Api, from: &Requester, query: &Query<'_>) -> Result<TenantId, ApiError> {
    let own = from.names.tenant();
    let Some(text) = query.any_of(&["tenant"])? else { return Ok(own) };
    let name = TenantName::new(text)?;
    if from.names.is_tenant(&name) {
        return Ok(own);
    }
    if !from.manages_tenants() {
        return Err(ApiError::permission_denied("permission denied: tenant is not the tenant of the key"));
    }
    let of_name = name.clone();
    let tenant = api.driver.read(move |pipeline| pipeline.state().access().tenants().named(of_name.as_str()));
    let unknown = || ApiError::not_found(format!("tenant {:?} does not exist", name.as_str()));
    tenant.wait().await.ok_or(Unready::Recovering)?.ok_or_else(unknown)
}

/// The name of a tenant.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TenantFields<'a> {
    #[serde(borrow)]
    name: Option<Str<'a>>,
}

impl<'a> Fields<'a> for TenantFields<'a> {
    fn from_query(query: &'a Query<'a>) -> Result<Self, ApiError> {
        Ok(Self { name: query.text("name")?.map(Into::into) })
    }
}

impl TenantFields<'_> {
    fn name(&self) -> Result<TenantName, ApiError> {
        Ok(TenantName::new(required("name", self.name.as_deref())?)?)
    }
}

/// `POST /v1/tenants`.
pub(crate) async fn create(api: &Api, from: &Requester, fields: TenantFields<'_>) -> Result<ApiResponse, ApiError> {
    let name = fields.name()?;
    let tenant = audit::ask(api, from, CreateTenant { name: name.clone() }).await??;
    let mut out = Json::object();
    out.plain("status", "created");
    out.text("name", name.as_str());
    out.number("tenant", tenant.0);
    Ok(json(StatusCode::CREATED, out))
}

/// `DELETE /v1/tenants?name=`, or with the name in a body.
pub(crate) async fn delete(api: &Api, from: &Requester, fields: TenantFields<'_>) -> Result<ApiResponse, ApiError> {
    audit::ask(api, from, DeleteTenant { name: fields.name()? }).await??;
    Ok(no_content())
}

/// `GET /v1/tenants`.
pub(crate) async fn list(api: &Api, from: &Requester) -> Result<ApiResponse, ApiError> {
    let tenants = audit::ask(api, from, ListTenants).await??;
    let mut out = Json::object();
    out.list("tenants", &tenants, |info, out| {
        object(out, |json| {
            json.text("name", info.name.as_str());
            json.number("tenant", info.tenant.0);
        });
    });
    Ok(json(StatusCode::OK, out))
}
