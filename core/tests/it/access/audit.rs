//! The audit: what is recorded, who reads it, and that it survives.

use driftq_core::command::*;
use driftq_core::types::*;
use driftq_core::{Command, Refusal, Reply};

use super::*;

fn page(broker: &mut TestBroker, caller: &Caller, limit: usize, before: Option<u64>) -> (Vec<AuditEntry>, Option<u64>) {
    match broker.send_as(caller, ListAudit { limit, before }) {
        Ok(Reply::Audit(page)) => (page.entries.iter().map(|entry| (**entry).clone()).collect(), page.next),
        other => panic!("{other:?}"),
    }
}

/// All entries, the oldest first, without those of reads of the audit.
fn entries(broker: &mut TestBroker) -> Vec<AuditEntry> {
    let all = broker.pipeline.state().access().audit();
    all.iter().map(|entry| (**entry).clone()).filter(|entry| entry.audit.action != AuditAction::ListAudit).collect()
}

fn purge(name: &str) -> Command {
    Purge { topic: topic(name) }.into()
}

#[test]
fn command_of_an_operator_is_recorded_with_what_came_of_it() {
    let mut broker = TestBroker::with_topic(1);
    let operator = by("op");
    broker.key("op", &["operate:t"]);
    broker.key("admin", &["admin:*"]);
    assert!(broker.send_as(&operator, purge("t")).is_ok());
    assert_eq!(broker.send_as(&operator, purge("u")), Err(denied(Verb::Operate)));
    let pause = Pause { topic: topic("t"), group: group("missing") };
    assert_eq!(broker.send_as(&operator, pause), Err(Refusal::UnknownGroup(group("missing"))));
    assert!(broker.send_as(&operator, Produce::new(topic("t"), "k", "v")).is_err(), "not audited");
    broker.revoke("op");
    assert_eq!(broker.send_as(&operator, purge("t")), Err(Refusal::Unauthenticated));
    assert_eq!(broker.send_as(&anonymous(), purge("t")), Err(Refusal::Unauthenticated));
    let expected = [
        (AuditAction::Purge, AuditTarget::Topic(topic("t")), AuditResult::Done),
        (AuditAction::Purge, AuditTarget::Topic(topic("u")), AuditResult::PermissionDenied),
        (AuditAction::Pause, AuditTarget::Group(topic("t"), group("missing")), AuditResult::NotFound),
        (AuditAction::Purge, AuditTarget::Topic(topic("t")), AuditResult::Unauthenticated),
    ];
    for restart in RESTARTS {
        let found = entries(&mut broker);
        for (entry, (action, target, result)) in found.iter().zip(&expected) {
            assert_eq!((entry.audit.action, &entry.audit.target, entry.audit.result), (*action, target, *result));
            assert_eq!((entry.audit.who, entry.audit.from), (operator.principal, operator.from));
        }
        assert_eq!(found.len(), expected.len(), "nothing of the program itself, nor of callers without a key");
        broker.restart(restart);
    }
}

#[test]
fn everything_that_needs_operate_or_admin_is_recorded_without_keys_too() {
    let mut broker = TestBroker::new();
    let create = CreateTopic { name: topic("t"), partitions: None, retention: Retention::default() };
    assert!(broker.send_as(&anonymous(), create.clone()).is_ok());
    assert!(broker.send_as(&anonymous(), new_key("first", &["admin:*"])).is_ok());
    assert!(broker.send(create.into()).is_ok());
    let found = entries(&mut broker);
    let actions: Vec<_> = found.iter().map(|entry| (entry.audit.who, entry.audit.action)).collect();
    let anonymous = Principal::Anonymous;
    assert_eq!(actions, [(anonymous, AuditAction::CreateTopic), (anonymous, AuditAction::CreateKey)]);
    assert_eq!(found[1].audit.target, AuditTarget::Key(key_id("first")));
}

#[test]
fn audit_is_read_newest_first_in_pages() {
    let mut broker = TestBroker::with_topic(1);
    let admin = broker.key("admin", &["admin,operate:*"]);
    for _ in 0..5 {
        broker.send_as(&admin, purge("t")).unwrap();
    }
    let (first, next) = page(&mut broker, &admin, 2, None);
    let (second, after) = page(&mut broker, &admin, 2, next);
    let (last, end) = page(&mut broker, &admin, 2, after);
    let numbers = |entries: &[AuditEntry]| entries.iter().map(|entry| entry.number).collect::<Vec<_>>();
    assert_eq!([numbers(&first), numbers(&second), numbers(&last)], [vec![4, 3], vec![2, 1], vec![0]]);
    assert_eq!(end, None);
    // Reading it is a command of an administrator.
    let (newest, _) = page(&mut broker, &admin, 1, None);
    assert_eq!(newest[0].audit.action, AuditAction::ListAudit);
}

#[test]
fn tenant_reads_what_was_audited_of_it_alone() {
    let mut broker = TestBroker::new();
    let (acme, beta) = (broker.key_of("acme", "a", &["admin:*"]), broker.key_of("beta", "b", &["admin:*"]));
    let all = broker.key("all", &["admin:*"]);
    broker.send_as(&acme, ListTenants).unwrap();
    broker.send_as(&beta, ListTenants).unwrap();
    broker.send_as(&all, ListTenants).unwrap();
    let who = |(entries, _): (Vec<AuditEntry>, _)| entries.iter().map(|entry| entry.audit.who).collect::<Vec<_>>();
    assert_eq!(who(page(&mut broker, &beta, 100, None)), [beta.principal]);
    assert_eq!(who(page(&mut broker, &acme, 100, None)), [acme.principal]);
    let seen = who(page(&mut broker, &all, 100, None));
    assert_eq!(seen.len(), 5, "{seen:?}");
}

#[test]
fn only_the_newest_entries_stay() {
    let mut broker = TestBroker::with_topic(1);
    let operator = broker.key("op", &["operate:*"]);
    let before = broker.pipeline.state().memory().bytes;
    let count = AuditEntry::COUNT_MAX as u64 + 3;
    for at in 0..count {
        broker.pipeline.handle_as(broker.now, &operator, purge("t"));
        if at % 64 == 0 {
            broker.run_until_idle();
        }
    }
    broker.run_until_idle();
    let audit = broker.pipeline.state().access().audit();
    assert_eq!(audit.iter().next().map(|entry| entry.number), Some(3));
    assert_eq!((audit.iter().count(), audit.next()), (AuditEntry::COUNT_MAX, count));
    let grown = broker.pipeline.state().memory().bytes - before;
    assert!((1 << 20..1 << 23).contains(&grown), "counted as memory: {grown}");
    broker.restart(Restart::Snapshot);
    assert_eq!(broker.pipeline.state().access().audit().next(), count);
}
