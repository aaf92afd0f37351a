//! How identities and other values stand in the columns of the schema.

use std::time::Duration;

use driftq_client::{DeliveryRef, EffectStatus, Error, ErrorKind, Identity, OnExpired, Scope};

/// The columns of an identity, in the order of the primary key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdentityColumns<'a> {
    pub(crate) tenant: &'a str,
    pub(crate) kind: &'static str,
    pub(crate) id: &'a str,
    pub(crate) detail: &'a str,
    pub(crate) key: &'a str,
}

impl<'a> IdentityColumns<'a> {
    pub(crate) fn of(identity: &'a Identity) -> Result<Self, Error> {
        let (kind, id, detail): (_, &str, &str) = match &identity.scope {
            Scope::Consume { topic, group } => ("consume", topic, group),
            Scope::Tenant => ("tenant", "", ""),
            Scope::Job { id } => ("job", id, ""),
            Scope::Task { id } => ("task", id, ""),
            Scope::Rpc { principal, method } => ("rpc", principal, method),
            scope => return Err(Error::new(ErrorKind::Misuse, format!("the store has no scope {scope:?}"))),
        };
        let columns = Self { tenant: &identity.tenant, kind, id, detail, key: &identity.key };
        for text in [columns.tenant, id, detail, columns.key] {
            check_text(text)?;
        }
        Ok(columns)
    }
}

/// The identity in five columns; an error if a newer client has made it.
pub(crate) fn identity_in([tenant, kind, id, detail, key]: [String; 5]) -> Result<Identity, Error> {
    let scope = match kind.as_str() {
        "consume" => Scope::consume(id, detail),
        "tenant" => Scope::Tenant,
        "job" => Scope::job(id),
        "task" => Scope::task(id),
        "rpc" => Scope::rpc(id, detail),
        other => return Err(protocol(format!("an effect has the scope {other:?}"))),
    };
    Ok(Identity::new(scope, key).tenant(tenant))
}

/// PostgreSQL stores no text with U+0000.
pub(crate) fn check_text(text: &str) -> Result<(), Error> {
    if text.contains('\0') {
        return Err(Error::new(ErrorKind::Misuse, "PostgreSQL stores no text with the character U+0000"));
    }
    Ok(())
}

pub(crate) fn status_text(status: EffectStatus) -> &'static str {
    match status {
        EffectStatus::InProgress => "IN_PROGRESS",
        EffectStatus::Succeeded => "SUCCEEDED",
        EffectStatus::FailedFinal => "FAILED_FINAL",
        EffectStatus::FailedRetryable => "FAILED_RETRYABLE",
    }
}

pub(crate) fn status_of(text: &str) -> Result<EffectStatus, Error> {
    match text {
        "IN_PROGRESS" => Ok(EffectStatus::InProgress),
        "SUCCEEDED" => Ok(EffectStatus::Succeeded),
        "FAILED_FINAL" => Ok(EffectStatus::FailedFinal),
        "FAILED_RETRYABLE" => Ok(EffectStatus::FailedRetryable),
        other => Err(protocol(format!("an effect has the status {other:?}"))),
    }
}

pub(crate) fn on_expired_text(on_expired: OnExpired) -> &'static str {
    match on_expired {
        OnExpired::TakeOver => "take_over",
        OnExpired::Report => "report",
    }
}

/// The three columns of a delivery.
pub(crate) type DeliveryColumns<'a> = (Option<i64>, Option<i64>, Option<&'a str>);

pub(crate) fn delivery_columns(delivery: Option<&DeliveryRef>) -> Result<DeliveryColumns<'_>, Error> {
    let Some(delivery) = delivery else { return Ok((None, None, None)) };
    let offset = i64::try_from(delivery.offset)
        .map_err(|_| Error::new(ErrorKind::Misuse, format!("there is no offset {}", delivery.offset)))?;
    check_text(&delivery.lease_token)?;
    Ok((Some(i64::from(delivery.partition)), Some(offset), Some(&delivery.lease_token)))
}

/// Milliseconds, as long as the database can count.
pub(crate) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

pub(crate) fn protocol(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Protocol, message)
}
