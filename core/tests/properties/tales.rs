//! Small logs of any kind, to be forged: what a few messages, workers and restarts leave on a disk.

use driftq_core::Command;
use driftq_core::command::{Claim, Complete, DeliveryClaim, Produce, RedriveSelection, SeekTo, StoreCommand};
use driftq_core::idempotency::{EffectStatus, Identity, Outcome, Scope};
use driftq_core::log::MemoryStorage;
use driftq_core::record::{GroupStart, Retention};
use driftq_core::types::*;
use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::scenario::{Story, group, topic};

const TOPICS: [&str; 3] = ["a", "b", "dlq.a"];
const GROUPS: [&str; 2] = ["g", "h"];

/// What a worker says of a delivery.
#[derive(Clone, Copy, Debug)]
pub enum Word {
    Ack,
    Nack,
    Extend,
    Release,
    Complete,
}

/// What a worker wants of an effect.
#[derive(Clone, Copy, Debug)]
pub enum Deed {
    Begin,
    BeginFor(Index),
    Finish(EffectStatus),
    Renew,
    Forget,
}

/// What an operator wants of a group.
#[derive(Clone, Copy, Debug)]
pub enum Wish {
    Create,
    Delete,
    Pause,
    Resume,
    Seek(u64),
}

/// One thing that happens.
#[derive(Clone, Debug)]
pub enum Turn {
    Produce { to: &'static str, key: &'static str, attempts: Option<u32>, delay: Option<u64>, identity: Option<u8> },
    Subscribe { to: &'static str, name: &'static str, prefetch: u32 },
    Say(Word, Index),
    Of(Wish, &'static str, &'static str),
    Effect { deed: Deed, key: u8, of_work: bool },
    Redrive,
    DeleteTopic(&'static str),
    Pass(u64),
    Restart,
}

fn turn() -> impl Strategy<Value = Turn> {
    let to = || prop_oneof![6 => Just(TOPICS[0]), 1 => Just(TOPICS[1]), 2 => Just(TOPICS[2])];
    let name = || select(GROUPS.as_slice());
    let word = select(vec![Word::Ack, Word::Ack, Word::Nack, Word::Nack, Word::Complete, Word::Extend, Word::Release]);
    let wish = prop_oneof![
        select(vec![Wish::Create, Wish::Delete, Wish::Pause, Wish::Resume]),
        (0..9_u64).prop_map(Wish::Seek),
    ];
    let produce =
        (to(), select(vec!["", "k"]), weighted(0.6, 1..3_u32), weighted(0.2, 0..90_u64), weighted(0.3, 0..3_u8));
    prop_oneof![
        8 => produce
            .prop_map(|(to, key, attempts, delay, identity)| Turn::Produce { to, key, attempts, delay, identity }),
        2 => (to(), name(), 1..4_u32).prop_map(|(to, name, prefetch)| Turn::Subscribe { to, name, prefetch }),
        8 => (word, any::<Index>()).prop_map(|(word, which)| Turn::Say(word, which)),
        2 => (wish, to(), name()).prop_map(|(wish, to, name)| Turn::Of(wish, to, name)),
        5 => (deed(), 0..3_u8, any::<bool>())
            .prop_map(|(deed, key, of_work)| Turn::Effect { deed, key, of_work }),
        2 => Just(Turn::Redrive),
        1 => to().prop_map(Turn::DeleteTopic),
        4 => prop_oneof![4 => 0..150_u64, 1 => 1_500..9_000_u64].prop_map(Turn::Pass),
        1 => Just(Turn::Restart),
    ]
}

fn deed() -> impl Strategy<Value = Deed> {
    use EffectStatus::{FailedFinal, FailedRetryable, Succeeded};
    prop_oneof![
        3 => Just(Deed::Begin),
        3 => any::<Index>().prop_map(Deed::BeginFor),
        3 => select(vec![Succeeded, FailedFinal, FailedRetryable]).prop_map(Deed::Finish),
        1 => Just(Deed::Renew),
        1 => Just(Deed::Forget),
    ]
}

/// Tales of at most `longest` turns behind the making of two topics and a stream.
pub fn tales(longest: usize) -> impl Strategy<Value = Vec<Turn>> {
    vec(turn(), 1..longest)
}

/// What the disk holds at the end of a tale; with a snapshot, if there is to be one.
pub fn told(turns: &[Turn], snapshot: Snapshot) -> MemoryStorage {
    let mut story = Story::begin();
    story.topic(TOPICS[0], 2, Retention { age: Some(Millis(60)), bytes: Some(60) });
    story.topic(TOPICS[1], 1, Retention::default());
    story.subscribe(TOPICS[0], GROUPS[0], 2);
    for (nth, turn) in turns.iter().enumerate() {
        story = take(story, nth, turn);
    }
    if snapshot == Snapshot::Taken {
        story.snapshot();
    }
    story.storage.crash()
}

/// Whether a tale ends in a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Snapshot {
    Taken,
    None,
}

fn take(mut story: Story, nth: usize, turn: &Turn) -> Story {
    match turn {
        Turn::Produce { to, key, attempts, delay, identity } => story.produce(to, key, &nth.to_string(), |asked| {
            let policy = |max_attempts| RetryPolicy { max_attempts, backoff: Millis(9), max_backoff: Millis(50) };
            asked.envelope.retry_policy = attempts.map(policy);
            asked.envelope.idempotency_key = identity.map(|key| key.to_string().as_str().into());
            asked.delay = delay.map(Millis);
        }),
        Turn::Subscribe { to, name, prefetch } => story.subscribe(to, name, *prefetch),
        Turn::Say(word, which) => {
            if let Some(claim) = story.any_claim(which) {
                story.say(said(*word, claim));
            }
        }
        Turn::Of(wish, to, name) => story.say(wished(*wish, topic(to), group(name))),
        Turn::Effect { deed, key, of_work } => do_effect(&mut story, *deed, *key, *of_work),
        Turn::Redrive => {
            story.say(Command::Redrive { topic: topic(TOPICS[0]), which: RedriveSelection::All, limit: 3 })
        }
        Turn::DeleteTopic(to) => story.say(Command::DeleteTopic { name: topic(to) }),
        Turn::Pass(span) => story.pass(*span),
        Turn::Restart => return story.restart(),
    }
    story
}

fn do_effect(story: &mut Story, deed: Deed, key: u8, of_work: bool) {
    let scope = match of_work {
        true => Scope::Consume { topic: topic(TOPICS[0]), group: group(GROUPS[0]) },
        false => Scope::Tenant,
    };
    let identity = Identity::new("", scope, &key.to_string());
    match deed {
        Deed::Begin => story.begin_effect(identity, |_| {}),
        Deed::BeginFor(which) => {
            let Some(Claim { topic, group, partition, offset, token, .. }) = story.any_claim(&which) else { return };
            let identity = Identity::new("", Scope::Consume { topic, group }, &key.to_string());
            let delivery = DeliveryClaim { partition, offset, token };
            story.begin_effect(identity, |asked| asked.delivery = Some(delivery));
        }
        Deed::Finish(status) => {
            let outcome = Outcome { status, response_code: 0, result: Some("1".into()), last_error: "".into() };
            story.of_effect(identity, |identity, token| StoreCommand::Finish { identity, token, outcome });
        }
        Deed::Renew => {
            story.of_effect(identity, |identity, token| StoreCommand::Renew { identity, token, lease: None });
        }
        Deed::Forget => story.say(Command::Store(Box::new(StoreCommand::Forget { identity }))),
    }
}

fn said(word: Word, claim: Claim) -> Command {
    match word {
        Word::Complete => {
            let mut next = Produce::new(claim.topic.clone(), "k", "next");
            next.envelope.idempotency_key = Some("0".into());
            let produce = vec![next, Produce::new(topic(TOPICS[1]), "", "other")];
            Command::Complete(Box::new(Complete { claim, result: Some("2".into()), produce }))
        }
        Word::Ack => Command::Ack(claim),
        Word::Nack => Command::Nack { claim, reason: "no".into(), delay: None },
        Word::Extend => Command::Extend { claim, lease: Some(Millis(9_000)) },
        Word::Release => Command::Release(claim),
    }
}

fn wished(wish: Wish, topic: TopicName, group: GroupName) -> Command {
    match wish {
        Wish::Create => Command::CreateGroup { topic, group, start: GroupStart::Latest },
        Wish::Delete => Command::DeleteGroup { topic, group },
        Wish::Pause => Command::Pause { topic, group },
        Wish::Resume => Command::Resume { topic, group },
        Wish::Seek(offset) => Command::Seek { topic, group, to: SeekTo::Offset(Offset(offset)) },
    }
}
