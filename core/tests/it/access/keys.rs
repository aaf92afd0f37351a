//! Keys: create, list, bind, revoke, and what a restart keeps.

use driftq_core::command::*;
use driftq_core::reply::{Denied, KeyInfo, Overload};
use driftq_core::types::*;
use driftq_core::{Command, Refusal, Reply};

use super::*;

fn listed(broker: &mut TestBroker, caller: &Caller, tenant: Option<&str>) -> Result<Vec<KeyInfo>, Refusal> {
    let tenant = tenant.map(tenant_name);
    match broker.send_as(caller, ListKeys { tenant, limit: 100, after: None })? {
        Reply::Keys(page) => Ok(page.keys),
        other => panic!("{other:?}"),
    }
}

fn ids(keys: &[KeyInfo]) -> Vec<KeyId> {
    keys.iter().map(|key| key.id).collect()
}

#[test]
fn key_is_as_it_was_created_after_any_restart() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        let (generation, created_at) = (broker.pipeline.access_generation(), broker.now);
        broker.key_of("acme", "a", &["produce,consume:orders*", "inspect:*"]);
        assert!(broker.pipeline.access_generation() > generation);
        let bind = BindKey { id: key_id("a"), certificate_san: Some(CertificateSan::new("spiffe://acme/a").unwrap()) };
        assert_eq!(broker.send(bind.clone().into()), Ok(Reply::Success));
        broker.restart(restart);
        let key = broker.pipeline.state().access().keys().get(key_id("a")).cloned().expect("is there");
        assert_eq!((key.digest, key.created_at, key.expires_at), (KeyDigest([7; 32]), created_at, None));
        assert_eq!(key.certificate_san, bind.certificate_san);
        let found = listed(&mut broker, &Caller::TRUSTED, None).unwrap();
        let grants: Vec<_> = found[0].grants.iter().map(ToString::to_string).collect();
        assert_eq!(grants, ["produce,consume:orders*", "inspect:*"]);
        assert_eq!((found[0].tenant.as_str(), found[0].name.as_str()), ("acme", "a"));
        let bound = broker.pipeline.state().access().keys().bound_to(bind.certificate_san.as_ref().unwrap());
        assert_eq!(bound.map(|key| key.id), Some(key_id("a")));
        broker.revoke("a");
        broker.restart(restart);
        assert_eq!(broker.pipeline.keys().count(), 0);
    }
}

#[test]
fn first_key_closes_the_broker_to_callers_without_one() {
    let mut broker = TestBroker::with_topic(1);
    let produce = || Produce::new(topic("t"), "k", "v");
    assert!(broker.send_as(&anonymous(), produce()).is_ok());
    broker.key("only", &["admin:*"]);
    assert_eq!(broker.send_as(&anonymous(), produce()), Err(Refusal::Unauthenticated));
    assert!(broker.send(produce().into()).is_ok(), "the program itself");
    broker.revoke("only");
    assert!(broker.send_as(&anonymous(), produce()).is_ok());
}

#[test]
fn key_that_makes_no_sense_is_refused() {
    let mut broker = TestBroker::with_limits(|limits| limits.keys_max = 2);
    let mut refused = |key: CreateKey| broker.send(key.into()).map(drop).unwrap_err();
    let no_grants = Refusal::Invalid("a key needs at least one grant, and each grant at least one verb");
    assert_eq!(refused(new_key("a", &[])), no_grants);
    let nothing = Grant { verbs: Verbs::default(), topics: TopicPattern::All };
    assert_eq!(refused(CreateKey { grants: vec![nothing], ..new_key("a", &[]) }), no_grants);
    let grants = vec![Grant::everything(); 65];
    assert_eq!(
        refused(CreateKey { grants, ..new_key("a", &[]) }),
        Refusal::TooMany { what: "grants", len: 65, max: 64 }
    );
    for expiry in [KeyExpiry::At(START), KeyExpiry::After(Millis(0))] {
        let key = CreateKey { expiry: Some(expiry), ..new_key("a", &["admin:*"]) };
        assert_eq!(refused(key), Refusal::Invalid("expires_at has passed"));
    }
    let key = CreateKey { tenant: Some(tenant_name("missing")), ..new_key("a", &["admin:*"]) };
    assert_eq!(refused(key), Refusal::UnknownTenant(tenant_name("missing")));
    broker.key("a", &["admin:*"]);
    assert_eq!(broker.send(new_key("a", &["inspect:*"]).into()), Err(Refusal::KeyExists));
    broker.key("b", &["admin:*"]);
    assert_eq!(broker.send(new_key("c", &["admin:*"]).into()), Err(overloaded(Overload::Objects)));
    assert_eq!(broker.send(RevokeKey { id: key_id("c") }.into()), Err(Refusal::UnknownKey));
}

#[test]
fn key_expires_at_a_wall_time_or_after_a_span() {
    let mut broker = TestBroker::new();
    let at = broker.now.after(Millis(3_000));
    let key = CreateKey { expiry: Some(KeyExpiry::At(at)), ..new_key("at", &["inspect:*"]) };
    assert!(broker.send(key.into()).is_ok());
    broker.key_for("after", 3_000, &["inspect:*"]);
    for restart in RESTARTS {
        for caller in [by("at"), by("after")] {
            assert!(broker.send_as(&caller, ListTopics::default()).is_ok());
        }
        broker.restart(restart);
    }
    broker.advance(2_999);
    assert!(broker.send_as(&by("at"), ListTopics::default()).is_ok());
    broker.advance(1);
    for caller in [by("at"), by("after")] {
        assert_eq!(broker.send_as(&caller, ListTopics::default()), Err(Refusal::Unauthenticated));
    }
}

#[test]
fn keys_are_listed_in_pages_of_the_tenant() {
    let mut broker = TestBroker::new();
    let admin = broker.key("admin", &["admin:*"]);
    for name in ["a", "b", "c"] {
        broker.key_of("acme", &format!("acme{name}"), &["admin:*"]);
        broker.key_of("beta", &format!("beta{name}"), &["admin:*"]);
    }
    let acme = by("acmea");
    let of_acme = ["acmea", "acmeb", "acmec"].map(key_id);
    assert_eq!(ids(&listed(&mut broker, &acme, None).unwrap()), of_acme);
    assert_eq!(ids(&listed(&mut broker, &acme, Some("acme")).unwrap()), of_acme);
    assert_eq!(ids(&listed(&mut broker, &admin, Some("acme")).unwrap()), of_acme);
    assert_eq!(listed(&mut broker, &admin, None).unwrap().len(), 7);
    assert_eq!(ids(&listed(&mut broker, &admin, Some("default")).unwrap()), [key_id("admin")]);
    let denied = Refusal::PermissionDenied(Denied::OtherTenant);
    for other in ["beta", "missing", "default"] {
        assert_eq!(listed(&mut broker, &acme, Some(other)), Err(denied.clone()), "whether it exists or not");
    }
    assert_eq!(listed(&mut broker, &admin, Some("missing")), Err(Refusal::UnknownTenant(tenant_name("missing"))));
    for (caller, tenant, total) in [(&acme, None, 3), (&admin, None, 7), (&admin, Some("beta"), 3)] {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let list = ListKeys { tenant: tenant.map(tenant_name), limit: 2, after };
            let Ok(Reply::Keys(page)) = broker.send_as(caller, list) else { panic!("refused") };
            assert!(page.keys.len() <= 2);
            found.extend(ids(&page.keys));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert!(found.is_sorted() && found.len() == total, "{found:?}");
    }
}

#[test]
fn administrator_of_a_tenant_manages_its_keys_alone() {
    let mut broker = TestBroker::new();
    let (acme, admin) = (broker.key_of("acme", "a", &["admin:*"]), broker.key("d", &["admin:*"]));
    broker.key_of("beta", "b", &["admin:*"]);
    let create = |tenant: Option<&str>| CreateKey { tenant: tenant.map(tenant_name), ..new_key("new", &["inspect:*"]) };
    let denied = || Refusal::PermissionDenied(Denied::OtherTenant);
    for other in ["beta", "default", "missing"] {
        assert_eq!(broker.send_as(&acme, create(Some(other))), Err(denied()));
    }
    for id in ["b", "d", "missing"].map(key_id) {
        assert_eq!(broker.send_as(&acme, RevokeKey { id }), Err(Refusal::UnknownKey), "equal for all of them");
    }
    let bind = BindKey { id: key_id("a"), certificate_san: Some(CertificateSan::new("acme").unwrap()) };
    let commands: [Command; 3] = [
        bind.into(),
        CreateTenant { name: tenant_name("new") }.into(),
        DeleteTenant { name: tenant_name("beta") }.into(),
    ];
    for command in commands {
        assert_eq!(broker.send_as(&acme, command), Err(denied()));
    }
    let created = broker.send_as(&acme, create(None));
    let Ok(Reply::KeyCreated(key)) = created else { panic!("{created:?}") };
    assert_eq!(key.tenant, tenant_name("acme"), "the caller's");
    assert_eq!(broker.send_as(&acme, RevokeKey { id: key.id }), Ok(Reply::Success));
    assert_eq!(broker.send_as(&admin, RevokeKey { id: key_id("b") }), Ok(Reply::Success));
    assert_eq!(broker.send_as(&acme, RevokeKey { id: key_id("a") }), Ok(Reply::Success), "also its own");
    assert_eq!(broker.send_as(&acme, ListTenants), Err(Refusal::Unauthenticated));
}

#[test]
fn certificate_stands_for_one_key() {
    let mut broker = TestBroker::new();
    broker.key("a", &["admin:*"]);
    broker.key("b", &["admin:*"]);
    let san = |text: &str| Some(CertificateSan::new(text).unwrap());
    let bind = |name: &str, certificate_san| Command::from(BindKey { id: key_id(name), certificate_san });
    assert_eq!(broker.send(bind("a", san("one"))), Ok(Reply::Success));
    assert_eq!(broker.send(bind("a", san("one"))), Ok(Reply::Success), "as it is");
    assert_eq!(broker.send(bind("b", san("one"))), Err(Refusal::CertificateBound));
    assert_eq!(broker.send(bind("c", san("two"))), Err(Refusal::UnknownKey));
    assert_eq!(broker.send(bind("a", san("two"))), Ok(Reply::Success));
    assert_eq!(broker.send(bind("b", san("one"))), Ok(Reply::Success), "free again");
    assert_eq!(broker.send(bind("a", None)), Ok(Reply::Success));
    broker.revoke("b");
    assert_eq!(broker.send(bind("a", san("one"))), Ok(Reply::Success), "free again");
    broker.restart(Restart::Snapshot);
}

#[test]
fn keys_count_as_memory_of_the_state() {
    let mut broker = TestBroker::new();
    let before = broker.pipeline.state().memory().bytes;
    let grants: Vec<_> = (0..64).map(|number| format!("produce:a-topic-with-a-long-name-{number}")).collect();
    broker.key("a", &grants.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(broker.pipeline.state().memory().bytes > before + 64 * 30);
    broker.revoke("a");
    assert_eq!(broker.pipeline.state().memory().bytes, before);
}
