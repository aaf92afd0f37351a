//! Listing effects: every effect in exactly one page, bounded work per page.

use std::collections::BTreeSet;

use super::test_broker::*;
use driftq_core::command::{ListEffects, StoreCommand};
use driftq_core::reply::{EffectPage, StoreReply};
use driftq_core::types::*;

fn list(broker: &mut TestBroker, request: ListEffects) -> EffectPage {
    match broker.send_store(StoreCommand::List(request)) {
        Ok(StoreReply::Listed(page)) => *page,
        other => panic!("unexpected reply to a list: {other:?}"),
    }
}

fn consumed(group_name: &str, key: &str) -> Identity {
    Identity::new("", Scope::Consume { topic: topic("t"), group: group(group_name) }, key)
}

#[test]
fn pages_contain_every_effect_once_while_others_come_and_go() {
    let mut broker = TestBroker::with_topic(1);
    broker.group("t", "g");
    broker.group("t", "h");
    let mut kept = BTreeSet::new();
    for number in 0..40 {
        let key = format!("k{number}");
        for identity in [effect(&key), consumed("g", &key), consumed("h", &key)] {
            broker.begin(&identity).unwrap();
            kept.insert(identity);
        }
    }
    let (mut seen, mut after, mut turn) = (Vec::new(), None, 0);
    loop {
        let page = list(&mut broker, ListEffects { limit: 7, after, ..ListEffects::default() });
        assert!(page.effects.len() <= 7);
        seen.extend(page.effects.into_iter().map(|(identity, _)| identity));
        let Some(next) = page.next else { break };
        after = Some(next);
        turn += 1;
        let passing = consumed("g", &format!("passing{turn}"));
        broker.begin(&passing).unwrap();
        broker.forget(&passing).unwrap();
        if turn == 5 {
            broker.restart(RESTARTS[1]);
        }
        if turn == 9 {
            // The cursor itself disappears.
            let last = seen.last().unwrap().clone();
            broker.forget(&last).unwrap();
        }
    }
    assert_eq!(seen.len(), kept.len());
    assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), kept);
}

#[test]
fn page_looks_at_a_bounded_number_of_effects() {
    let mut broker = TestBroker::new();
    for number in 0..4_200 {
        broker.begin(&effect(&format!("k{number}"))).unwrap();
    }
    let failed = || ListEffects { status: Some(EffectStatus::FailedFinal), limit: 9, ..ListEffects::default() };
    let page = list(&mut broker, failed());
    assert_eq!(page.effects, []);
    assert!(page.next.is_some(), "the page ends before the store does");
    let rest = list(&mut broker, ListEffects { after: page.next, ..failed() });
    assert_eq!((rest.effects.len(), rest.next), (0, None));
}

#[test]
fn page_ends_when_its_results_are_large() {
    let mut broker = TestBroker::new();
    let large = format!("\"{}\"", "x".repeat(60_000));
    for number in 0..30 {
        let identity = effect(&format!("k{number}"));
        let token = granted(broker.begin(&identity));
        broker.finish(&identity, token, success(&large)).unwrap();
    }
    let page = list(&mut broker, ListEffects { limit: 100, ..ListEffects::default() });
    assert!((10..30).contains(&page.effects.len()), "{}", page.effects.len());
    assert!(page.next.is_some());
}

#[test]
fn pages_of_one_effect_contain_every_group_of_every_topic() {
    let mut broker = TestBroker::new();
    let consumed = |topic_name, group_name| consume_effect(topic_name, group_name, "k");
    let all = [consumed("a", "y"), consumed("a", "z"), consumed("b", "a"), consumed("b", "z"), consumed("c", "b")];
    for identity in &all {
        granted(broker.begin(identity));
    }
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = list(&mut broker, ListEffects { limit: 1, after, ..ListEffects::default() });
        seen.extend(page.effects.into_iter().map(|(identity, _)| identity));
        let Some(next) = page.next else { break };
        after = Some(next);
    }
    assert_eq!(seen, all);
}
