//! `GET /v1/idempotency/list`: the effects of the idempotency store, a page at a time.

use driftq_core::codec::{decode_identity, encode_identity};
use driftq_core::command::ListEffects;
use driftq_core::types::{Identity, Scope, ScopeKind, Text};
use hyper::StatusCode;

use super::api::Api;
use super::error::ApiError;
use super::fields::millis;
use super::idempotency::{status, unknown_kind, write_effect};
use super::query::Query;
use super::requester::{Names, Requester};
use super::response::{ApiResponse, json};
use crate::json::{Json, hex, object};

/// Records of a page without `limit`.
const PAGE_DEFAULT: usize = 100;
/// Most records of a page.
const PAGE_MAX: usize = 1_000;

/// Parses the query.
pub(crate) fn parse_request(query: &Query<'_>, names: &Names) -> Result<ListEffects, ApiError> {
    let limit = query.value("limit")?.unwrap_or(PAGE_DEFAULT);
    if !(1..=PAGE_MAX).contains(&limit) {
        return Err(ApiError::invalid(format!("limit must be 1 to {PAGE_MAX}")));
    }
    let kind = |name: &str| ScopeKind::ALL.into_iter().find(|kind| kind.as_str() == name).ok_or_else(unknown_kind);
    let known = |name: &str| {
        let message = "status must be IN_PROGRESS, SUCCEEDED (SUCCESS), FAILED_FINAL or FAILED_RETRYABLE (FAILURE)";
        status(name).ok_or_else(|| ApiError::invalid(message))
    };
    Ok(ListEffects {
        tenant: names.tenant_text(query.any_of(&["tenant_id"])?)?.map(Text::from),
        kind: query.any_of(&["kind"])?.map(kind).transpose()?,
        status: query.any_of(&["status"])?.map(known).transpose()?,
        older_than: millis("older_than_ms", query.value("older_than_ms")?)?.unwrap_or_default(),
        limit,
        after: query.any_of(&["after"])?.map(cursor).transpose()?,
    })
}

/// `GET /v1/idempotency/list`.
pub(crate) async fn list(api: &Api, from: &Requester, query: &Query<'_>) -> Result<ApiResponse, ApiError> {
    let page = api.driver.ask(&from.caller, parse_request(query, &from.names)?).await??;
    let clock = api.driver.wall_clock();
    let mut out = Json::object();
    out.list("records", &page.effects, |(identity, effect), out| {
        object(out, |json| {
            json.text("tenant_id", identity.tenant());
            json.object_in("scope", |json| write_scope(&identity.scope, json));
            json.text("key", identity.key());
            write_effect(json, effect, &clock);
        });
    });
    match &page.next {
        Some(identity) => out.text("next", &write_cursor(identity)),
        None => out.null("next"),
    }
    Ok(json(StatusCode::OK, out))
}

fn write_scope(scope: &Scope, json: &mut Json) {
    json.plain("kind", scope.kind().as_str());
    match scope {
        Scope::Consume { topic, group } => {
            json.text("topic", topic.as_str());
            json.text("group", group.as_str());
        }
        Scope::Tenant => {}
        Scope::Job { id } | Scope::Task { id } => json.text("id", id),
        Scope::Rpc { principal, method } => {
            json.text("principal", principal);
            json.text("method", method);
        }
    }
}

/// The cursor after a record: its identity, in a form that clients need not understand.
fn write_cursor(identity: &Identity) -> String {
    let mut out = Vec::new();
    encode_identity(identity).iter().for_each(|byte| hex::<2>(u64::from(*byte), &mut out));
    out.into_iter().map(char::from).collect()
}

fn cursor(text: &str) -> Result<Identity, ApiError> {
    let invalid = || ApiError::invalid("bad after: want the \"next\" of an earlier page");
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return Err(invalid()) };
    let digit = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
    let bytes: Option<Vec<u8>> = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect();
    decode_identity(&bytes.ok_or_else(invalid)?).map_err(|_| invalid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursor_round_trips_and_anything_else_is_refused() {
        let identity = Identity::new("acme", Scope::Rpc { principal: "p".into(), method: "m".into() }, "k \u{e9}");
        let text = write_cursor(&identity);
        assert_eq!(cursor(&text), Ok(identity));
        for wrong in ["", "0", "zz", "00", &text[2..], &format!("{text}00")] {
            assert_eq!(cursor(wrong).map_err(|error| error.code), Err("INVALID_ARGUMENT"), "{wrong:?}");
        }
    }
}
