//! Every command times every verb, and every kind of caller that is refused.

use std::collections::BTreeSet;

use driftq_core::command::*;
use driftq_core::types::*;
use driftq_core::{Command, Refusal, Reply};

use super::*;

/// One command of each kind, about the topic `t` unless it is about none.
fn commands() -> Vec<Command> {
    let (name, by) = (topic("t"), group("g"));
    let claim = || first_message("t", "g", "w");
    let identity = || Identity::new("", Scope::Tenant, "k");
    let of_topic = || Identity::new("", Scope::Consume { topic: topic("t"), group: group("g") }, "k");
    let outcome =
        Outcome { status: EffectStatus::FailedFinal, response_code: 0, result: None, last_error: "no".into() };
    let delivery = DeliveryClaim { partition: PartitionId(0), offset: Offset(0), token: TokenClaim::Absent };
    let finish =
        |identity, dead_letter| Finish { identity, token: TokenClaim::Absent, outcome: outcome.clone(), dead_letter };
    let consumer = ConsumerId(1);
    vec![
        CreateTopic { name: name.clone(), partitions: None, retention: Retention::default() }.into(),
        ChangeRetention { name: name.clone(), age: Setting::ServerDefault, bytes: Setting::ServerDefault }.into(),
        DeleteTopic { name: name.clone() }.into(),
        ListTopics::default().into(),
        DescribeTopic { name: name.clone() }.into(),
        Produce::new(name.clone(), "k", "v").into(),
        Peek { topic: name.clone(), partition: PartitionId(0), offset: Offset(0), limit: 1 }.into(),
        subscribe("t", "g", "w").into(),
        SetPrefetch { consumer, prefetch: 1 }.into(),
        Unsubscribe { consumer }.into(),
        CloseStream { consumer }.into(),
        Ack(claim()).into(),
        AckCumulative {
            topic: name.clone(),
            group: by.clone(),
            partition: PartitionId(0),
            offset: Offset(0),
            owner: owner("w"),
        }
        .into(),
        Nack { claim: claim(), reason: "no".into(), retry: Retry::ByPolicy }.into(),
        Extend { claim: claim(), lease: None }.into(),
        Release(claim()).into(),
        Withdraw(claim()).into(),
        ExpireLease { topic: name.clone(), group: by.clone(), partition: PartitionId(0), offset: Offset(0) }.into(),
        Complete { claim: claim(), result: None, produce: vec![Produce::new(name.clone(), "k", "v")], failed: None }
            .into(),
        Begin::new(identity(), owner("w")).into(),
        finish(identity(), None).into(),
        finish(of_topic(), Some(delivery)).into(),
        Reacquire { identity: identity(), owner: owner("w"), lease: None }.into(),
        Renew { identity: identity(), token: TokenClaim::Absent, lease: None }.into(),
        Lookup { identity: of_topic() }.into(),
        Forget { identity: identity() }.into(),
        ListEffects { limit: 10, ..ListEffects::default() }.into(),
        CreateGroup { topic: name.clone(), group: by.clone(), start: GroupStart::Earliest }.into(),
        DeleteGroup { topic: name.clone(), group: by.clone() }.into(),
        ListGroups { topic: name.clone() }.into(),
        Seek { topic: name.clone(), group: by.clone(), to: SeekTo::Latest }.into(),
        Pause { topic: name.clone(), group: by.clone() }.into(),
        Resume { topic: name.clone(), group: by }.into(),
        Redrive { topic: name.clone(), which: RedriveSelection::All, limit: 1 }.into(),
        Purge { topic: name }.into(),
        new_key("new", &["inspect:*"]).into(),
        RevokeKey { id: key_id("other") }.into(),
        BindKey { id: key_id("other"), certificate_san: None }.into(),
        ListKeys { tenant: None, limit: 10, after: None }.into(),
        CreateTenant { name: tenant_name("acme") }.into(),
        DeleteTenant { name: tenant_name("gone") }.into(),
        ListTenants.into(),
        ListAudit { limit: 10, before: None }.into(),
    ]
}

/// The verbs that a command needs.
fn needed(command: &Command) -> &'static [Verb] {
    match command {
        Command::Produce(_) => &[Verb::Produce],
        Command::Complete(_) => &[Verb::Produce, Verb::Consume],
        Command::Subscribe(_)
        | Command::SetPrefetch(_)
        | Command::Unsubscribe(_)
        | Command::CloseStream(_)
        | Command::Ack(_)
        | Command::AckCumulative(_)
        | Command::Nack(_)
        | Command::Extend(_)
        | Command::Release(_)
        | Command::Withdraw(_) => &[Verb::Consume],
        Command::Store(store) => match &**store {
            StoreCommand::Finish(Finish { dead_letter: Some(_), .. }) => &[Verb::Effects, Verb::Consume],
            _ => &[Verb::Effects],
        },
        Command::ListTopics(_) | Command::DescribeTopic(_) | Command::Peek(_) | Command::ListGroups(_) => {
            &[Verb::Inspect]
        }
        Command::CreateTopic(_)
        | Command::ChangeRetention(_)
        | Command::DeleteTopic(_)
        | Command::ExpireLease(_)
        | Command::CreateGroup(_)
        | Command::DeleteGroup(_)
        | Command::Seek(_)
        | Command::Pause(_)
        | Command::Resume(_)
        | Command::Redrive(_)
        | Command::Purge(_) => &[Verb::Operate],
        Command::CreateKey(_)
        | Command::RevokeKey(_)
        | Command::BindKey(_)
        | Command::ListKeys(_)
        | Command::CreateTenant(_)
        | Command::DeleteTenant(_)
        | Command::ListTenants(_)
        | Command::ListAudit(_) => &[Verb::Admin],
    }
}

/// The number of kinds of commands.
const KINDS: usize = 36;

fn broker() -> TestBroker {
    let mut broker = TestBroker::with_topic(1);
    broker.send(Produce::new(topic("t"), "k", "v").into()).unwrap();
    broker.send(subscribe("t", "g", "w").into()).unwrap();
    broker.key("other", &["inspect:u"]);
    broker
}

fn is_denied(result: &Result<Reply, Refusal>) -> bool {
    assert_ne!(*result, Err(Refusal::Unauthenticated));
    matches!(result, Err(Refusal::PermissionDenied(_)))
}

#[test]
fn every_kind_of_command_is_in_the_matrix() {
    let name = |command: &Command| format!("{command:?}").split(['(', ' ', '{']).next().map(str::to_owned);
    let kinds: BTreeSet<_> = commands().iter().map(name).collect();
    assert_eq!(kinds.len(), KINDS, "{kinds:?}");
}

#[test]
fn command_is_granted_with_its_verbs_and_denied_with_any_other() {
    for command in commands() {
        let needed = needed(&command);
        for verb in Verb::ALL {
            let mut broker = broker();
            let caller = broker.key("only", &[&format!("{verb}:*")]);
            let result = broker.send_as(&caller, command.clone());
            assert_eq!(is_denied(&result), needed != [verb], "{command:?} with {verb}: {result:?}");
        }
        let mut broker = broker();
        let grants: Vec<_> = needed.iter().map(|verb| format!("{verb}:*")).collect();
        let caller = broker.key("exactly", &grants.iter().map(String::as_str).collect::<Vec<_>>());
        let result = broker.send_as(&caller, command.clone());
        assert!(!is_denied(&result), "{command:?}: {result:?}");
    }
}

#[test]
fn grants_on_other_topics_grant_nothing_here() {
    for command in commands() {
        let mut broker = broker();
        let caller = broker.key("elsewhere", &["produce,consume,effects,inspect,operate,admin:u*"]);
        let result = broker.send_as(&caller, command.clone());
        // Its own topics and streams, of which it has none here.
        let is_of_its_own = matches!(
            command,
            Command::ListTopics(_) | Command::SetPrefetch(_) | Command::Unsubscribe(_) | Command::CloseStream(_)
        );
        assert_eq!(is_denied(&result), !is_of_its_own, "{command:?}: {result:?}");
    }
}

#[test]
fn caller_that_is_not_known_may_do_nothing() {
    for command in commands() {
        let mut broker = broker();
        broker.key("revoked", &["produce,consume,effects,inspect,operate,admin:*"]);
        let expired = broker.key_for("expired", 1_000, &["produce,consume,effects,inspect,operate,admin:*"]);
        broker.revoke("revoked");
        broker.advance(1_000);
        let digest = broker.pipeline.state().topic_count();
        for caller in [anonymous(), by("revoked"), by("unknown"), expired] {
            let result = broker.send_as(&caller, command.clone());
            assert_eq!(result, Err(Refusal::Unauthenticated), "{command:?} by {caller:?}");
        }
        assert_eq!(broker.pipeline.state().topic_count(), digest);
        // Also where there is no tenant or key that the command could find.
        let mut empty = TestBroker::new();
        let result = empty.send_as(&by("unknown"), command.clone());
        assert_eq!(result, Err(Refusal::Unauthenticated), "{command:?} without keys");
    }
}

#[test]
fn anyone_may_do_everything_while_there_is_no_key() {
    for command in commands() {
        let mut broker = TestBroker::with_topic(1);
        for caller in [anonymous(), Caller::TRUSTED] {
            let result = broker.send_as(&caller, command.clone());
            assert!(!is_denied(&result), "{command:?}: {result:?}");
            // Also after a key was created: the program itself stays trusted.
            if matches!(command, Command::CreateKey(_)) {
                broker.revoke("new");
            }
        }
    }
}

#[test]
fn refusal_does_not_say_what_exists() {
    for command in commands() {
        let refused = |has_topic: bool| {
            let mut broker = TestBroker::new();
            if has_topic {
                broker.topic("t", 1);
                broker.send(subscribe("t", "g", "w").into()).unwrap();
            }
            let caller = broker.key("blind", &["inspect:u"]);
            broker.send_as(&caller, command.clone())
        };
        if !matches!(command, Command::ListTopics(_)) {
            assert_eq!(refused(true), refused(false), "{command:?}");
        }
    }
}
