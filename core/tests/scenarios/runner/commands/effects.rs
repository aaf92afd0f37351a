//! Commands of the idempotency store. The first argument is the scope, the rest of the identity follows by name.

use driftq_core::command::{Begin, DeliveryClaim, Finish, Forget, ListEffects, Lookup, OnExpired, Reacquire, Renew};
use driftq_core::types::{EffectStatus, Identity, Lifetime, Outcome, Scope, ScopeKind, TokenClaim};

use super::super::args::Args;
use super::super::session::Names;

/// `tenant key=`, `consume topic= group= key=`, `job id= key=`, `task id= key=`, `rpc principal= method= key=`.
fn identity(args: &mut Args) -> Result<Identity, String> {
    let scope = match args.positional("a scope")?.as_str() {
        "consume" => Scope::Consume { topic: args.topic("topic")?, group: args.name("group")? },
        "tenant" => Scope::Tenant,
        "job" => Scope::Job { id: args.required("id")?.into() },
        "task" => Scope::Task { id: args.required("id")?.into() },
        "rpc" => Scope::Rpc { principal: args.required("principal")?.into(), method: args.required("method")?.into() },
        other => return Err(format!("\"{other}\" is not a scope; write consume, tenant, job, task or rpc")),
    };
    Ok(Identity::new(&args.text("tenant").unwrap_or_default(), scope, &args.required("key")?))
}

pub(super) fn begin(names: &Names, args: &mut Args) -> Result<Begin, String> {
    let identity = identity(args)?;
    let mut begin = Begin::new(identity, args.name("owner")?);
    begin.lease = args.duration("lease")?;
    begin.lifetime = match (args.duration("window")?, args.time("until")?) {
        (Some(window), None) => Some(Lifetime::Window(window)),
        (None, Some(time)) => Some(Lifetime::Until(time)),
        (None, None) => None,
        _ => return Err("write window= or until=, not both".to_owned()),
    };
    begin.request_hash = args.text("hash").map(Into::into);
    let choices = [("take-over", OnExpired::TakeOver), ("report", OnExpired::Report)];
    begin.on_expired = args.choice("on_expired", &choices)?;
    begin.delivery = args.text("delivery").map(|text| delivery(names, &text)).transpose()?;
    Ok(begin)
}

/// The delivery that a token was printed with.
fn delivery(names: &Names, text: &str) -> Result<DeliveryClaim, String> {
    let token = names.token(text)?;
    let delivery = names.delivery(token).ok_or_else(|| format!("{text} is not the token of a delivery"))?;
    Ok(DeliveryClaim { partition: delivery.partition, offset: delivery.offset, token: TokenClaim::Shown(token) })
}

pub(super) fn reacquire(args: &mut Args) -> Result<Reacquire, String> {
    Ok(Reacquire { identity: identity(args)?, owner: args.name("owner")?, lease: args.duration("lease")? })
}

pub(super) fn renew(names: &Names, args: &mut Args) -> Result<Renew, String> {
    let identity = identity(args)?;
    Ok(Renew { token: token(names, args, &identity)?, identity, lease: args.duration("lease")? })
}

pub(super) fn finish(names: &Names, args: &mut Args) -> Result<Finish, String> {
    let identity = identity(args)?;
    let statuses = EffectStatus::ALL.map(|status| (status.as_str(), status));
    let outcome = Outcome {
        status: args.choice("status", &statuses)?.ok_or("status= is missing")?,
        response_code: args.parsed("code")?.unwrap_or_default(),
        result: args.text("result").map(Into::into),
        last_error: args.text("error").unwrap_or_default().into(),
    };
    let dead_letter = args.text("dead_letter").map(|text| delivery(names, &text)).transpose()?;
    Ok(Finish { token: token(names, args, &identity)?, identity, outcome, dead_letter })
}

pub(super) fn lookup(args: &mut Args) -> Result<Lookup, String> {
    Ok(Lookup { identity: identity(args)? })
}

pub(super) fn forget(args: &mut Args) -> Result<Forget, String> {
    Ok(Forget { identity: identity(args)? })
}

/// The token shown for an effect: the newest grant's, unless the file says otherwise.
fn token(names: &Names, args: &mut Args, identity: &Identity) -> Result<TokenClaim, String> {
    match (args.text("token"), names.grant(identity)) {
        (Some(text), _) => names.token_claim(&text),
        (None, Some(token)) => Ok(TokenClaim::Shown(token)),
        (None, None) => Err("the effect was not granted; say which token= is shown".to_owned()),
    }
}

pub(super) fn list(args: &mut Args) -> Result<ListEffects, String> {
    let kinds = ScopeKind::ALL.map(|kind| (kind.as_str(), kind));
    let statuses = EffectStatus::ALL.map(|status| (status.as_str(), status));
    Ok(ListEffects {
        tenant: args.text("tenant").map(Into::into),
        kind: args.choice("kind", &kinds)?,
        status: args.choice("status", &statuses)?,
        older_than: args.duration("older_than")?.unwrap_or_default(),
        limit: args.parsed("limit")?.unwrap_or(100),
        after: None,
    })
}
