//! Small random logs to be forged: a few messages, consumers and restarts.

use driftq_core::Command;
use driftq_core::command::{
    Ack, Claim, Complete, CreateGroup, DeleteGroup, DeleteTopic, DeliveryClaim, Extend, Finish, Forget, Nack, Pause,
    Produce, Redrive, RedriveSelection, Release, Renew, Resume, Retry, Seek, SeekTo, StoreCommand,
};
use driftq_core::log::MemoryStorage;
use driftq_core::types::{EffectStatus, GroupStart, Identity, Outcome, Retention, Scope, *};
use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::scenario::{ScenarioBroker, group, topic};

const TOPICS: [&str; 3] = ["a", "b", "dlq.a"];
const GROUPS: [&str; 2] = ["g", "h"];

/// How a consumer settles a delivery.
#[derive(Clone, Copy, Debug)]
pub enum Settlement {
    Ack,
    Nack,
    Extend,
    Release,
    Complete,
}

/// A command about an effect.
#[derive(Clone, Copy, Debug)]
pub enum EffectAction {
    Begin,
    BeginFor(Index),
    Finish(EffectStatus),
    Renew,
    Forget,
}

/// A command about a group.
#[derive(Clone, Copy, Debug)]
pub enum GroupAction {
    Create,
    Delete,
    Pause,
    Resume,
    Seek(u64),
}

/// One action of the traffic.
#[derive(Clone, Debug)]
pub enum Action {
    Produce { to: &'static str, key: &'static str, attempts: Option<u32>, delay: Option<u64>, identity: Option<u8> },
    Subscribe { to: &'static str, name: &'static str, prefetch: u32 },
    Settle(Settlement, Index),
    Group(GroupAction, &'static str, &'static str),
    Effect { effect_action: EffectAction, key: u8, consume_scope: bool },
    Redrive,
    DeleteTopic(&'static str),
    Advance(u64),
    Restart,
}

fn action() -> impl Strategy<Value = Action> {
    let to = || prop_oneof![6 => Just(TOPICS[0]), 1 => Just(TOPICS[1]), 2 => Just(TOPICS[2])];
    let name = || select(GROUPS.as_slice());
    let settlement = select(vec![
        Settlement::Ack,
        Settlement::Ack,
        Settlement::Nack,
        Settlement::Nack,
        Settlement::Complete,
        Settlement::Extend,
        Settlement::Release,
    ]);
    let group_action = prop_oneof![
        select(vec![GroupAction::Create, GroupAction::Delete, GroupAction::Pause, GroupAction::Resume]),
        (0..9_u64).prop_map(GroupAction::Seek),
    ];
    let produce =
        (to(), select(vec!["", "k"]), weighted(0.6, 1..3_u32), weighted(0.2, 0..90_u64), weighted(0.3, 0..3_u8));
    prop_oneof![
        8 => produce
            .prop_map(|(to, key, attempts, delay, identity)| Action::Produce { to, key, attempts, delay, identity }),
        2 => (to(), name(), 1..4_u32).prop_map(|(to, name, prefetch)| Action::Subscribe { to, name, prefetch }),
        8 => (settlement, any::<Index>()).prop_map(|(settlement, which)| Action::Settle(settlement, which)),
        2 => (group_action, to(), name()).prop_map(|(group_action, to, name)| Action::Group(group_action, to, name)),
        5 => (effect_action(), 0..3_u8, any::<bool>())
            .prop_map(|(effect_action, key, consume_scope)| Action::Effect { effect_action, key, consume_scope }),
        2 => Just(Action::Redrive),
        1 => to().prop_map(Action::DeleteTopic),
        4 => prop_oneof![4 => 0..150_u64, 1 => 1_500..9_000_u64].prop_map(Action::Advance),
        1 => Just(Action::Restart),
    ]
}

fn effect_action() -> impl Strategy<Value = EffectAction> {
    use EffectStatus::{FailedFinal, FailedRetryable, Succeeded};
    prop_oneof![
        3 => Just(EffectAction::Begin),
        3 => any::<Index>().prop_map(EffectAction::BeginFor),
        3 => select(vec![Succeeded, FailedFinal, FailedRetryable]).prop_map(EffectAction::Finish),
        1 => Just(EffectAction::Renew),
        1 => Just(EffectAction::Forget),
    ]
}

/// Fewer than `longest` actions, performed after the creation of two topics and a stream.
pub fn random_traffic(longest: usize) -> impl Strategy<Value = Vec<Action>> {
    vec(action(), 1..longest)
}

/// The storage after the actions and a crash, with or without a snapshot at the end.
pub fn written(actions: &[Action], snapshot: Snapshot) -> MemoryStorage {
    let mut broker = ScenarioBroker::start();
    broker.topic(TOPICS[0], 2, Retention { age: Some(Millis(60)), bytes: Some(60) });
    broker.topic(TOPICS[1], 1, Retention::default());
    broker.subscribe(TOPICS[0], GROUPS[0], 2);
    for (nth, action) in actions.iter().enumerate() {
        broker = perform(broker, nth, action);
    }
    if snapshot == Snapshot::Taken {
        broker.snapshot();
    }
    broker.storage.crash()
}

/// Whether a snapshot is taken at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Snapshot {
    Taken,
    None,
}

fn perform(mut broker: ScenarioBroker, nth: usize, action: &Action) -> ScenarioBroker {
    match action {
        Action::Produce { to, key, attempts, delay, identity } => {
            broker.produce(to, key, &nth.to_string(), |request| {
                let policy = |max_attempts| RetryPolicy { max_attempts, backoff: Millis(9), max_backoff: Millis(50) };
                request.envelope.retry_policy = attempts.map(policy);
                request.envelope.idempotency_key = identity.map(|key| key.to_string().as_str().into());
                request.delay = delay.map(Millis);
            });
        }
        Action::Subscribe { to, name, prefetch } => broker.subscribe(to, name, *prefetch),
        Action::Settle(settlement, which) => {
            if let Some(claim) = broker.any_claim(which) {
                broker.send(settle_command(*settlement, claim));
            }
        }
        Action::Group(group_action, to, name) => broker.send(group_command(*group_action, topic(to), group(name))),
        Action::Effect { effect_action, key, consume_scope } => {
            perform_effect_action(&mut broker, *effect_action, *key, *consume_scope);
        }
        Action::Redrive => {
            broker.send(Command::Redrive(Redrive { topic: topic(TOPICS[0]), which: RedriveSelection::All, limit: 3 }));
        }
        Action::DeleteTopic(to) => broker.send(Command::DeleteTopic(DeleteTopic { name: topic(to) })),
        Action::Advance(span) => broker.advance(*span),
        Action::Restart => return broker.restart(),
    }
    broker
}

fn perform_effect_action(broker: &mut ScenarioBroker, action: EffectAction, key: u8, consume_scope: bool) {
    let scope = match consume_scope {
        true => Scope::Consume { topic: topic(TOPICS[0]), group: group(GROUPS[0]) },
        false => Scope::Tenant,
    };
    let identity = Identity::new("", scope, &key.to_string());
    match action {
        EffectAction::Begin => broker.begin_effect(identity, |_| {}),
        EffectAction::BeginFor(which) => {
            let Some(Claim { topic, group, partition, offset, token, .. }) = broker.any_claim(&which) else { return };
            let identity = Identity::new("", Scope::Consume { topic, group }, &key.to_string());
            let delivery = DeliveryClaim { partition, offset, token };
            broker.begin_effect(identity, |request| request.delivery = Some(delivery));
        }
        EffectAction::Finish(status) => {
            let outcome = Outcome { status, response_code: 0, result: Some("1".into()), last_error: "".into() };
            broker.with_grant(identity, |identity, token| {
                StoreCommand::Finish(Finish { identity, token, outcome, dead_letter: None })
            });
        }
        EffectAction::Renew => {
            broker.with_grant(identity, |identity, token| StoreCommand::Renew(Renew { identity, token, lease: None }));
        }
        EffectAction::Forget => broker.send(Command::Store(Box::new(StoreCommand::Forget(Forget { identity })))),
    }
}

fn settle_command(settlement: Settlement, claim: Claim) -> Command {
    match settlement {
        Settlement::Complete => {
            let mut next = Produce::new(claim.topic.clone(), "k", "next");
            next.envelope.idempotency_key = Some("0".into());
            let produce = vec![next, Produce::new(topic(TOPICS[1]), "", "other")];
            Command::Complete(Box::new(Complete { claim, result: Some("2".into()), produce, failed: None }))
        }
        Settlement::Ack => Command::Ack(Ack(claim)),
        Settlement::Nack => Command::Nack(Nack { claim, reason: "no".into(), retry: Retry::ByPolicy }),
        Settlement::Extend => Command::Extend(Extend { claim, lease: Some(Millis(9_000)) }),
        Settlement::Release => Command::Release(Release(claim)),
    }
}

fn group_command(group_action: GroupAction, topic: TopicName, group: GroupName) -> Command {
    match group_action {
        GroupAction::Create => Command::CreateGroup(CreateGroup { topic, group, start: GroupStart::Latest }),
        GroupAction::Delete => Command::DeleteGroup(DeleteGroup { topic, group }),
        GroupAction::Pause => Command::Pause(Pause { topic, group }),
        GroupAction::Resume => Command::Resume(Resume { topic, group }),
        GroupAction::Seek(offset) => Command::Seek(Seek { topic, group, to: SeekTo::Offset(Offset(offset)) }),
    }
}
