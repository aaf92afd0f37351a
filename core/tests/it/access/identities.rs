//! The tenant of an identity, and the principal of scope `rpc`, are those of the key.

use driftq_core::command::*;
use driftq_core::reply::{Denied, StoreReply};
use driftq_core::types::*;
use driftq_core::{Refusal, Reply};

use super::*;

const ALL: &str = "produce,consume,effects,inspect,operate,admin:*";

const OTHER_TENANT: Refusal = Refusal::PermissionDenied(Denied::Tenant);

fn begin(tenant: &str, scope: Scope, key: &str) -> Begin {
    Begin::new(Identity::new(tenant, scope, key), owner("w"))
}

fn is_granted(result: &Result<Reply, Refusal>) -> bool {
    matches!(result, Ok(Reply::Store(StoreReply::Execute { .. })))
}

#[test]
fn key_of_a_registered_tenant_names_its_tenant_and_no_other() {
    let mut broker = TestBroker::new();
    let acme = broker.key_of("acme", "a", &[ALL]);
    broker.key_of("beta", "b", &[ALL]);
    assert!(is_granted(&broker.send_as(&acme, begin("acme", Scope::Tenant, "k"))));
    for other in ["beta", "", "default", "unregistered"] {
        assert_eq!(broker.send_as(&acme, begin(other, Scope::Tenant, "k")), Err(OTHER_TENANT), "{other}");
        let lookup = Lookup { identity: Identity::new(other, Scope::Tenant, "k") };
        assert_eq!(broker.send_as(&acme, lookup), Err(OTHER_TENANT), "{other}");
    }
}

#[test]
fn without_a_registered_tenant_any_may_be_named_but_registered_ones() {
    let mut broker = TestBroker::new();
    assert!(is_granted(&broker.send_as(&anonymous(), begin("free", Scope::Tenant, "k"))));
    let default = broker.key("d", &[ALL]);
    broker.key_of("acme", "a", &[ALL]);
    for free in ["free", "", "default", "another"] {
        let key = format!("key of {free}");
        assert!(is_granted(&broker.send_as(&default, begin(free, Scope::Tenant, &key))), "{free}");
    }
    assert_eq!(broker.send_as(&default, begin("acme", Scope::Tenant, "k")), Err(OTHER_TENANT));
    // Also where there are tenants and no keys.
    broker.revoke("a");
    broker.revoke("d");
    assert_eq!(broker.send_as(&anonymous(), begin("acme", Scope::Tenant, "k")), Err(OTHER_TENANT));
    assert!(is_granted(&broker.send_as(&anonymous(), begin("other", Scope::Tenant, "k"))));
}

#[test]
fn produce_names_the_tenant_of_its_key() {
    let mut broker = TestBroker::with_topic(1);
    let default = broker.key("d", &[ALL]);
    broker.key_of("acme", "a", &[ALL]);
    let produce = |tenant: Option<&str>| {
        let mut produce = Produce::new(topic("t"), "k", "v");
        produce.envelope.tenant_id = tenant.map(Text::from);
        produce.envelope.idempotency_key = Some("key".into());
        produce
    };
    assert_eq!(broker.send_as(&default, produce(Some("acme"))), Err(OTHER_TENANT));
    assert!(broker.send_as(&default, produce(Some("free"))).is_ok());
    assert!(broker.send_as(&default, produce(None)).is_ok());
    broker.send_as(&default, subscribe("t", "g", "w")).unwrap();
    let claim = claim("t", "g", "w", &broker.deliveries[0].1);
    let step = Complete { claim, result: None, produce: vec![produce(Some("acme"))], failed: None };
    assert_eq!(broker.send_as(&default, step), Err(OTHER_TENANT));
}

#[test]
fn principal_of_scope_rpc_is_the_key() {
    let mut broker = TestBroker::new();
    let acme = broker.key_of("acme", "a", &[ALL]);
    let default = broker.key("d", &[ALL]);
    let rpc = |principal: &str| Scope::Rpc { principal: principal.into(), method: "m".into() };
    assert!(is_granted(&broker.send_as(&acme, begin("acme", rpc(key_id("a").as_str()), "k"))));
    for other in [key_id("d").as_str(), "anyone"] {
        let denied = Err(Refusal::PermissionDenied(Denied::Principal));
        assert_eq!(broker.send_as(&acme, begin("acme", rpc(other), "k")), denied);
    }
    assert!(is_granted(&broker.send_as(&default, begin("", rpc("anyone"), "k"))));
}

/// All pages of effects that the caller sees, and every identity that any of them names.
fn listed(
    broker: &mut TestBroker,
    caller: &Caller,
    tenant: Option<&str>,
) -> Result<(Vec<String>, Vec<Identity>), Refusal> {
    let (mut found, mut named, mut after) = (Vec::new(), Vec::new(), None);
    loop {
        let list = ListEffects { tenant: tenant.map(Text::from), limit: 2, after, ..ListEffects::default() };
        let page = match broker.send_as(caller, list)? {
            Reply::Store(StoreReply::Listed(page)) => page,
            other => panic!("{other:?}"),
        };
        found.extend(page.effects.iter().map(|(identity, _)| format!("{}/{}", identity.tenant(), identity.key())));
        named.extend(page.effects.into_iter().map(|(identity, _)| identity).chain(page.next.clone()));
        after = page.next;
        if after.is_none() {
            found.sort();
            return Ok((found, named));
        }
    }
}

#[test]
fn list_shows_the_effects_of_the_tenant_and_names_no_others() {
    // So few are looked at in a page that most pages end among the effects of others.
    let mut broker = TestBroker::with_limits(|limits| limits.work.effects_seen_per_page = 3);
    let (acme, beta) = (broker.key_of("acme", "a", &[ALL]), broker.key_of("beta", "b", &[ALL]));
    let (default, worker) = (broker.key("d", &[ALL]), broker.key("w", &["effects:*"]));
    for number in 0..40 {
        let key = format!("{number:02}");
        assert!(is_granted(&broker.send_as(&beta, begin("beta", Scope::Tenant, &key))));
        if number % 10 == 0 {
            assert!(is_granted(&broker.send_as(&acme, begin("acme", Scope::Tenant, &key))));
            assert!(is_granted(&broker.send_as(&worker, begin("free", Scope::Tenant, &key))));
        }
    }
    let (found, named) = listed(&mut broker, &acme, None).unwrap();
    assert_eq!(found, ["acme/00", "acme/10", "acme/20", "acme/30"]);
    assert!(named.iter().all(|identity| identity.tenant() == "acme"), "{named:?}");
    let (found, named) = listed(&mut broker, &worker, None).unwrap();
    assert_eq!(found, ["free/00", "free/10", "free/20", "free/30"]);
    assert!(named.iter().all(|identity| !["acme", "beta"].contains(&identity.tenant())), "{named:?}");
    assert_eq!(listed(&mut broker, &beta, Some("beta")).unwrap().0.len(), 40);
    assert_eq!(listed(&mut broker, &default, None).unwrap().0.len(), 48, "who manages all tenants sees all");
    assert_eq!(listed(&mut broker, &default, Some("acme")).unwrap().0.len(), 4);
    assert_eq!(listed(&mut broker, &worker, Some("acme")).unwrap_err(), OTHER_TENANT);
    assert_eq!(listed(&mut broker, &acme, Some("beta")).unwrap_err(), OTHER_TENANT);
}
