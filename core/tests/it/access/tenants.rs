//! Tenants: registration, deletion, and what they own.

use driftq_core::command::*;
use driftq_core::reply::{Denied, Overload};
use driftq_core::types::*;
use driftq_core::{Refusal, Reply};

use super::*;

fn create(broker: &mut TestBroker, name: &str) -> Result<TenantId, Refusal> {
    match broker.send(CreateTenant { name: tenant_name(name) }.into())? {
        Reply::TenantCreated { tenant } => Ok(tenant),
        other => panic!("{other:?}"),
    }
}

fn delete(broker: &mut TestBroker, name: &str) -> Result<Reply, Refusal> {
    broker.send(DeleteTenant { name: tenant_name(name) }.into())
}

fn seen(broker: &mut TestBroker, caller: &Caller) -> Vec<String> {
    match broker.send_as(caller, ListTenants) {
        Ok(Reply::Tenants(tenants)) => tenants.iter().map(|tenant| tenant.name.as_str().to_owned()).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn number_of_a_tenant_is_never_used_again() {
    for restart in RESTARTS {
        let mut broker = TestBroker::new();
        assert_eq!(create(&mut broker, "default"), Ok(TenantId::DEFAULT), "always registered");
        assert_eq!(create(&mut broker, "acme"), Ok(TenantId(1)));
        assert_eq!(create(&mut broker, "acme"), Ok(TenantId(1)), "confirmed");
        assert_eq!(create(&mut broker, "beta"), Ok(TenantId(2)));
        assert_eq!(delete(&mut broker, "beta"), Ok(Reply::Success));
        broker.restart(restart);
        assert_eq!(create(&mut broker, "beta"), Ok(TenantId(3)));
        let tenants: Vec<_> = broker.pipeline.tenants().map(|(tenant, name)| (tenant.0, name.to_string())).collect();
        let expected = [(0, "default"), (1, "acme"), (3, "beta")];
        assert_eq!(tenants, expected.map(|(tenant, name)| (tenant, name.to_owned())));
    }
}

#[test]
fn tenant_with_keys_or_effects_is_not_deleted() {
    let mut broker = TestBroker::new();
    let acme = broker.key_of("acme", "a", &["effects:*"]);
    let identity = Identity::new("acme", Scope::Tenant, "k");
    assert!(broker.send_as(&acme, Begin::new(identity.clone(), owner("w"))).is_ok());
    assert_eq!(delete(&mut broker, "acme"), Err(Refusal::TenantInUse("it has keys")));
    broker.revoke("a");
    assert_eq!(delete(&mut broker, "acme"), Err(Refusal::TenantInUse("it has idempotency records")));
    broker.send(Forget { identity }.into()).unwrap();
    assert_eq!(delete(&mut broker, "acme"), Ok(Reply::Success));
    assert_eq!(delete(&mut broker, "acme"), Err(Refusal::UnknownTenant(tenant_name("acme"))));
    assert!(matches!(delete(&mut broker, "default"), Err(Refusal::Invalid(_))));
    broker.restart(Restart::Crash);
}

#[test]
fn tenant_that_stored_effects_name_is_not_registered() {
    let mut broker = TestBroker::new();
    let identity = Identity::new("acme", Scope::Tenant, "k");
    broker.send_as(&anonymous(), Begin::new(identity.clone(), owner("w"))).unwrap();
    assert!(matches!(create(&mut broker, "acme"), Err(Refusal::TenantInUse(_))));
    broker.send(Forget { identity }.into()).unwrap();
    assert_eq!(create(&mut broker, "acme"), Ok(TenantId(1)));
}

#[test]
fn tenants_are_seen_by_who_manages_all_and_one_by_its_own() {
    let mut broker = TestBroker::with_limits(|limits| limits.tenants_max = 2);
    let (acme, beta) = (broker.key_of("acme", "a", &["admin:*"]), broker.key_of("beta", "b", &["admin:*"]));
    let admin = broker.key("d", &["admin:*"]);
    assert_eq!(seen(&mut broker, &admin), ["default", "acme", "beta"]);
    assert_eq!(seen(&mut broker, &acme), ["acme"]);
    assert_eq!(seen(&mut broker, &beta), ["beta"]);
    assert_eq!(create(&mut broker, "third"), Err(overloaded(Overload::Objects)));
}

/// A topic of a tenant.
fn of(tenant: u32, name: &str) -> TopicName {
    TopicName::of(TenantId(tenant), name).expect("a topic name")
}

const EVERYTHING: &str = "produce,consume,effects,inspect,operate,admin:*";

fn two_tenants() -> (TestBroker, Caller, Caller, Caller) {
    let mut broker = TestBroker::new();
    let (acme, beta) = (broker.key_of("acme", "a", &[EVERYTHING]), broker.key_of("beta", "b", &[EVERYTHING]));
    let admin = broker.key("d", &[EVERYTHING]);
    for (caller, tenant) in [(&admin, 0), (&acme, 1), (&beta, 2)] {
        for name in ["t", "u"] {
            let create = CreateTopic { name: of(tenant, name), partitions: None, retention: Retention::default() };
            assert!(broker.send_as(caller, create).is_ok());
        }
    }
    (broker, acme, beta, admin)
}

#[test]
fn topic_of_another_tenant_is_never_granted() {
    let (mut broker, acme, _, admin) = two_tenants();
    let denied = |verb| Err(denied(verb));
    for (caller, other) in [(&acme, 0), (&acme, 2), (&admin, 1)] {
        for name in ["t", "missing"] {
            let topic = of(other, name);
            assert_eq!(broker.send_as(caller, Produce::new(topic.clone(), "k", "v")), denied(Verb::Produce));
            assert_eq!(broker.send_as(caller, Purge { topic: topic.clone() }), denied(Verb::Operate));
            assert_eq!(broker.send_as(caller, DescribeTopic { name: topic.clone() }), denied(Verb::Inspect));
            let stream = Subscribe::new(topic.clone(), group("g"), owner("w"));
            assert_eq!(broker.send_as(caller, stream), denied(Verb::Consume));
            // Neither as the final topic nor as the requested one.
            let own = of(if caller == &admin { 0 } else { 1 }, "t");
            for (requested, target) in [(own.clone(), topic.clone()), (topic, own)] {
                let mut produce = Produce::new(requested, "k", "v");
                produce.envelope.target_topic = Some(target);
                assert_eq!(broker.send_as(caller, produce), denied(Verb::Produce));
            }
        }
    }
}

#[test]
fn topics_are_listed_of_the_own_tenant_and_of_others_by_who_manages_all() {
    let (mut broker, acme, _, admin) = two_tenants();
    let inspector = broker.key("i", &["inspect:*"]);
    let mut list = |caller: &Caller, tenant: u32| match broker.send_as(caller, ListTopics { tenant: TenantId(tenant) })
    {
        Ok(Reply::Topics(topics)) => Ok(topics),
        Ok(other) => panic!("{other:?}"),
        Err(refusal) => Err(refusal),
    };
    let denied = || Err(Refusal::PermissionDenied(Denied::OtherTenant));
    for tenant in [1, 2, 9] {
        assert_eq!(list(&inspector, tenant), denied());
    }
    for tenant in [0, 2, 9] {
        assert_eq!(list(&acme, tenant), denied());
    }
    for tenant in [0, 1, 2] {
        assert_eq!(list(&admin, tenant), Ok(vec![of(tenant, "t"), of(tenant, "u")]));
    }
    assert_eq!(list(&acme, 1), Ok(vec![of(1, "t"), of(1, "u")]));
    let audit = broker.pipeline.state().access().audit();
    let lists: Vec<_> = audit.iter().filter(|entry| entry.audit.action == AuditAction::ListTopics).collect();
    assert_eq!(lists.len(), 8, "those of other tenants");
}

#[test]
fn tenant_with_topics_is_not_deleted() {
    let (mut broker, acme, ..) = two_tenants();
    for name in ["t", "u"] {
        assert_eq!(delete(&mut broker, "acme"), Err(Refusal::TenantInUse("it has topics")));
        assert_eq!(broker.send_as(&acme, DeleteTopic { name: of(1, name) }), Ok(Reply::Success));
    }
    assert_eq!(delete(&mut broker, "acme"), Err(Refusal::TenantInUse("it has keys")));
    let unregistered = CreateTopic { name: of(9, "t"), partitions: None, retention: Retention::default() };
    assert_eq!(broker.send(unregistered.into()), Err(Refusal::Invalid("the tenant of the topic is not registered")));
}

#[test]
fn message_of_a_tenant_has_its_identity_in_produce_ack_and_effects() {
    let (mut broker, acme, ..) = two_tenants();
    let mut produce = Produce::new(of(1, "t"), "k", "v");
    produce.envelope.idempotency_key = Some("once".into());
    assert!(broker.send_as(&acme, produce.clone()).is_ok());
    broker.send_as(&acme, Subscribe::new(of(1, "t"), group("g"), owner("w"))).unwrap();
    let delivery = broker.expect_delivery();
    assert_eq!(delivery.body.metadata().envelope.tenant_id.as_deref(), Some("acme"), "filled in");
    let claim = Claim { topic: of(1, "t"), ..claim("t", "g", "w", &delivery) };
    assert_eq!(broker.send_as(&acme, Ack(claim)), Ok(Reply::Success));
    let scope = Scope::Consume { topic: of(1, "t"), group: group("g") };
    assert!(broker.send_as(&acme, Lookup { identity: Identity::new("acme", scope, "once") }).is_ok());
    let Ok(Reply::Produced(again)) = broker.send_as(&acme, produce) else { panic!("refused") };
    assert!(again.duplicate);
}
