//! `GET /v1/audit`, and the line in the log for every request that is audited.
//!
//! The core decides what is audited, and keeps the newest entries. The line has the same: who, from where, what, about
//! what, and what came of it. Names are escaped; keys, payloads and query strings are in neither.

use std::collections::BTreeMap;
use std::fmt;

use driftq_core::command::ListAudit;
use driftq_core::types::{AuditEntry, AuditResult, AuditTarget, Principal, TenantName, WallClock};
use driftq_core::{Command, Refusal, Reply, Request};
use hyper::StatusCode;

use super::api::Api;
use super::error::ApiError;
use super::keys::page_limit;
use super::query::Query;
use super::requester::Requester;
use super::response::{ApiResponse, json};
use crate::driver::Unready;
use crate::json::{Json, object};

/// The target of its lines in filters of the log.
const AUDIT_LOG: &str = "driftqd::audit";

/// Submits a command that is audited.
pub(super) async fn ask<R: Request>(
    api: &Api,
    from: &Requester,
    request: R,
) -> Result<Result<R::Reply, Refusal>, Unready> {
    let command: Command = request.into();
    let audited = command.audited();
    let result = api.driver.ask_command(&from.caller, command).await?;
    if let Some((action, target)) = audited {
        let (caller, result) = (&from.caller, outcome(&result));
        let address = caller.from.map(|address| address.to_string());
        tracing::info!(
            target: AUDIT_LOG,
            who = who(&caller.principal),
            from = address.as_deref().unwrap_or("-"),
            action = action.as_str(),
            about = %Shown(&target),
            result = result.as_str(),
            "audit"
        );
    }
    Ok(result.map(R::reply))
}

/// What came of a command, as the core records it.
fn outcome(result: &Result<Reply, Refusal>) -> AuditResult {
    result.as_ref().map_or_else(Refusal::audited, |_| AuditResult::Done)
}

/// Who sent a command: the id of the key, if there was one.
fn who(principal: &Principal) -> &str {
    match principal {
        Principal::Trusted => "driftqd",
        Principal::Anonymous => "anonymous",
        Principal::Key(id) => id.as_str(),
    }
}

/// What a command is about, in a line of text.
struct Shown<'a>(&'a AuditTarget);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            AuditTarget::Nothing => f.write_str("-"),
            AuditTarget::Topic(topic) => write!(f, "topic {topic}"),
            AuditTarget::Group(topic, group) => write!(f, "topic {topic} group {group}"),
            AuditTarget::Key(id) => write!(f, "key {id}"),
            AuditTarget::Tenant(tenant) => write!(f, "tenant {tenant}"),
        }
    }
}

/// `GET /v1/audit?limit=&before=`: the newest entries first.
pub(crate) async fn list(api: &Api, from: &Requester, query: &Query<'_>) -> Result<ApiResponse, ApiError> {
    let request = ListAudit { limit: page_limit(query)?, before: query.value("before")? };
    let page = ask(api, from, request).await??;
    let tenants = api.driver.read(|pipeline| pipeline.tenants().collect::<BTreeMap<_, _>>());
    let tenants = tenants.wait().await.ok_or(Unready::Recovering)?;
    let clock = api.driver.wall_clock();
    let mut out = Json::object();
    out.list("entries", &page.entries, |entry, out| {
        object(out, |json| write_entry(json, entry, tenants.get(&entry.audit.tenant), &clock));
    });
    match page.next {
        Some(number) => out.number("next", number),
        None => out.null("next"),
    }
    Ok(json(StatusCode::OK, out))
}

fn write_entry(json: &mut Json, entry: &AuditEntry, tenant: Option<&TenantName>, clock: &WallClock) {
    let AuditEntry { number, at, audit } = entry;
    json.number("number", *number);
    json.timestamp("at", clock.wall(*at));
    json.text("who", who(&audit.who));
    match tenant {
        Some(tenant) => json.text("tenant", tenant.as_str()),
        // It has been deleted since.
        None => json.null("tenant"),
    }
    match audit.from {
        Some(address) => json.text("from", &address.to_string()),
        None => json.null("from"),
    }
    json.plain("action", audit.action.as_str());
    match &audit.target {
        AuditTarget::Nothing => {}
        AuditTarget::Topic(topic) => json.text("topic", topic.as_str()),
        AuditTarget::Group(topic, group) => {
            json.text("topic", topic.as_str());
            json.text("group", group.as_str());
        }
        AuditTarget::Key(id) => json.text("key", id.as_str()),
        AuditTarget::Tenant(tenant) => json.text("of_tenant", tenant.as_str()),
    }
    json.plain("result", audit.result.as_str());
}

#[cfg(test)]
mod tests {
    use driftq_core::types::{GroupName, TenantId, TopicName};

    use super::*;

    #[test]
    fn names_in_the_log_cannot_look_like_anything_else() {
        let topic = TopicName::of(TenantId(7), "a b\u{202e} result=ok").expect("a name");
        let group = GroupName::new("g\"x").expect("a name");
        let shown = Shown(&AuditTarget::Group(topic, group)).to_string();
        assert_eq!(shown, "topic #7:\"a b\\u{202e} result=ok\" group \"g\\\"x\"");
    }
}
