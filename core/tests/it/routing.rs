//! Routing: a router over the envelope over the hash, and a router that errs is no error.

use super::rig::*;
use driftq_core::Refusal;
use driftq_core::command::Produce;
use driftq_core::reply::RouterUse;
use driftq_core::types::*;

fn decision(target: Option<&str>, partition: Option<u32>) -> Option<RoutingDecision> {
    Some(RoutingDecision {
        routing: Routing { label: "label".into(), meta: [("score".into(), "0.9".into())].into() },
        target_topic: target.map(topic),
        partition_override: partition.map(PartitionId),
    })
}

/// Topics `asked`, `meant` and `routed` with three partitions each.
fn with_topics() -> Rig {
    let mut rig = Rig::new();
    for name in ["asked", "meant", "routed"] {
        rig.topic(name, 3);
    }
    rig
}

fn meaning(target: Option<&str>, partition: Option<u32>) -> Produce {
    let mut asked = Produce::new(topic("asked"), "user:1", "v");
    asked.envelope.target_topic = target.map(topic);
    asked.envelope.partition_override = partition.map(PartitionId);
    asked
}

/// Where a produce ended up: topic and partition.
fn place(rig: &mut Rig) -> (String, u32) {
    for name in ["asked", "meant", "routed"] {
        for partition in 0..3 {
            if !rig.kept_in(name, partition).is_empty() {
                return (name.to_owned(), partition);
            }
        }
    }
    panic!("it is nowhere")
}

#[test]
fn a_routers_choice_wins_over_the_envelopes_and_the_envelopes_over_the_hash() {
    for (envelope, router, expected) in [
        ((None, None), (None, None), ("asked", 1)),
        ((Some("meant"), None), (None, None), ("meant", 1)),
        ((Some("meant"), Some(2)), (None, None), ("meant", 2)),
        ((Some("meant"), Some(2)), (Some("routed"), None), ("routed", 2)),
        ((Some("meant"), Some(2)), (None, Some(0)), ("meant", 0)),
        ((Some("meant"), Some(2)), (Some("routed"), Some(0)), ("routed", 0)),
        ((None, None), (Some("routed"), None), ("routed", 1)),
        ((None, None), (None, Some(2)), ("asked", 2)),
    ] {
        let mut rig = with_topics();
        let mut asked = meaning(envelope.0, envelope.1);
        asked.routing = decision(router.0, router.1);
        let produced = rig.try_produce(asked).unwrap();
        assert_eq!(produced.router, RouterUse::Followed);
        assert_eq!(place(&mut rig), (expected.0.to_owned(), expected.1), "{envelope:?} {router:?}");
        assert_eq!(produced.partition.0, expected.1);
    }
}

#[test]
fn what_a_router_said_is_kept_with_the_message() {
    for way in RESTARTS {
        let mut rig = with_topics();
        let mut asked = meaning(None, None);
        asked.routing = decision(Some("routed"), Some(2));
        rig.try_produce(asked).unwrap();
        rig.restart(way);
        rig.subscribe("routed", "g", "w");
        let meta = rig.one().body.metadata();
        assert_eq!(meta.routing, decision(None, None).map(|decision| decision.routing));
        assert_eq!(meta.envelope.target_topic, Some(topic("routed")));
        assert_eq!(meta.envelope.partition_override, Some(PartitionId(2)));
    }
}

#[test]
fn a_router_that_names_what_is_not_there_is_set_aside_whole() {
    for (target, partition) in
        [(Some("missing"), None), (Some("missing"), Some(0)), (Some("routed"), Some(3)), (None, Some(3))]
    {
        let mut rig = with_topics();
        let mut asked = meaning(Some("meant"), Some(2));
        asked.routing = decision(target, partition);
        let produced = rig.try_produce(asked).unwrap();
        assert_eq!(produced.router, RouterUse::SetAside, "{target:?} {partition:?}");
        assert_eq!(place(&mut rig), ("meant".to_owned(), 2));
        rig.subscribe("meant", "g", "w");
        assert_eq!(rig.one().body.metadata().routing, None);
    }
}

#[test]
fn setting_a_router_aside_does_not_excuse_the_producer() {
    let mut rig = with_topics();
    let mut asked = meaning(Some("nowhere"), None);
    asked.routing = decision(Some("missing"), None);
    assert_eq!(rig.try_produce(asked), Err(Refusal::UnknownTopic(topic("nowhere"))));
    let mut asked = meaning(None, Some(9));
    asked.routing = decision(None, Some(7));
    let refusal = Refusal::PartitionOutOfRange { partition: PartitionId(9), partitions: 3 };
    assert_eq!(rig.try_produce(asked), Err(refusal));
}

#[test]
fn without_a_router_nothing_is_said_of_one() {
    let mut rig = with_topics();
    assert_eq!(rig.try_produce(meaning(None, None)).unwrap().router, RouterUse::NotAsked);
}

#[test]
fn a_router_whose_topic_lacks_the_producers_partition_is_set_aside() {
    let mut rig = with_topics();
    rig.topic("narrow", 1);
    let mut asked = meaning(None, Some(2));
    asked.routing = decision(Some("narrow"), None);
    let produced = rig.try_produce(asked).expect("a router never fails a produce");
    assert_eq!((produced.partition, produced.router), (PartitionId(2), RouterUse::SetAside));
    assert_eq!(place(&mut rig), ("asked".to_owned(), 2));
}
