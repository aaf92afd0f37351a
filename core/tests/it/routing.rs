//! Routing: the router beats the envelope, the envelope beats the key hash. An invalid router decision is ignored.

use super::test_broker::*;
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

/// Topics `requested`, `target` and `routed` with three partitions each.
fn with_topics() -> TestBroker {
    let mut broker = TestBroker::new();
    for name in ["requested", "target", "routed"] {
        broker.topic(name, 3);
    }
    broker
}

fn request_to(target: Option<&str>, partition: Option<u32>) -> Produce {
    let mut request = Produce::new(topic("requested"), "user:1", "v");
    request.envelope.target_topic = target.map(topic);
    request.envelope.partition_override = partition.map(PartitionId);
    request
}

/// The topic and partition of the only stored message.
fn stored_in(broker: &mut TestBroker) -> (String, u32) {
    for name in ["requested", "target", "routed"] {
        for partition in 0..3 {
            if !broker.stored_messages(name, partition).is_empty() {
                return (name.to_owned(), partition);
            }
        }
    }
    panic!("no message is stored")
}

#[test]
fn router_beats_envelope_and_envelope_beats_hash() {
    for (envelope, router, expected) in [
        ((None, None), (None, None), ("requested", 1)),
        ((Some("target"), None), (None, None), ("target", 1)),
        ((Some("target"), Some(2)), (None, None), ("target", 2)),
        ((Some("target"), Some(2)), (Some("routed"), None), ("routed", 2)),
        ((Some("target"), Some(2)), (None, Some(0)), ("target", 0)),
        ((Some("target"), Some(2)), (Some("routed"), Some(0)), ("routed", 0)),
        ((None, None), (Some("routed"), None), ("routed", 1)),
        ((None, None), (None, Some(2)), ("requested", 2)),
    ] {
        let mut broker = with_topics();
        let mut request = request_to(envelope.0, envelope.1);
        request.routing = decision(router.0, router.1);
        let produced = broker.try_produce(request).unwrap();
        assert_eq!(produced.router, RouterUse::Followed);
        assert_eq!(stored_in(&mut broker), (expected.0.to_owned(), expected.1), "{envelope:?} {router:?}");
        assert_eq!(produced.partition.0, expected.1);
    }
}

#[test]
fn router_decision_is_stored_with_message() {
    for restart in RESTARTS {
        let mut broker = with_topics();
        let mut request = request_to(None, None);
        request.routing = decision(Some("routed"), Some(2));
        broker.try_produce(request).unwrap();
        broker.restart(restart);
        broker.subscribe("routed", "g", "w");
        let meta = broker.expect_delivery().body.metadata();
        assert_eq!(meta.routing, decision(None, None).map(|decision| decision.routing));
        assert_eq!(meta.envelope.target_topic, Some(topic("routed")));
        assert_eq!(meta.envelope.partition_override, Some(PartitionId(2)));
    }
}

#[test]
fn router_naming_unknown_target_is_ignored_entirely() {
    for (target, partition) in
        [(Some("missing"), None), (Some("missing"), Some(0)), (Some("routed"), Some(3)), (None, Some(3))]
    {
        let mut broker = with_topics();
        let mut request = request_to(Some("target"), Some(2));
        request.routing = decision(target, partition);
        let produced = broker.try_produce(request).unwrap();
        assert_eq!(produced.router, RouterUse::Ignored, "{target:?} {partition:?}");
        assert_eq!(stored_in(&mut broker), ("target".to_owned(), 2));
        broker.subscribe("target", "g", "w");
        assert_eq!(broker.expect_delivery().body.metadata().routing, None);
    }
}

#[test]
fn ignored_router_does_not_excuse_invalid_produce() {
    let mut broker = with_topics();
    let mut request = request_to(Some("nowhere"), None);
    request.routing = decision(Some("missing"), None);
    assert_eq!(broker.try_produce(request), Err(Refusal::UnknownTopic(topic("nowhere"))));
    let mut request = request_to(None, Some(9));
    request.routing = decision(None, Some(7));
    let refusal = Refusal::PartitionOutOfRange { partition: PartitionId(9), partitions: 3 };
    assert_eq!(broker.try_produce(request), Err(refusal));
}

#[test]
fn produce_without_router_reports_none() {
    let mut broker = with_topics();
    assert_eq!(broker.try_produce(request_to(None, None)).unwrap().router, RouterUse::NoDecision);
}

#[test]
fn router_topic_without_requested_partition_is_ignored() {
    let mut broker = with_topics();
    broker.topic("narrow", 1);
    let mut request = request_to(None, Some(2));
    request.routing = decision(Some("narrow"), None);
    let produced = broker.try_produce(request).expect("a router never fails a produce");
    assert_eq!((produced.partition, produced.router), (PartitionId(2), RouterUse::Ignored));
    assert_eq!(stored_in(&mut broker), ("requested".to_owned(), 2));
}

#[test]
fn router_uses_of_a_step_are_known_until_it_is_completed() {
    let mut broker = with_topics();
    broker.subscribe("requested", "g", "w");
    broker.produce_with("requested", "v", |_| {});
    let delivery = broker.expect_delivery();
    let mut output = request_to(None, None);
    output.routing = decision(Some("routed"), None);
    let claim = claim("requested", "g", "w", &delivery);
    let produce = vec![request_to(None, None), output];
    let step = driftq_core::command::Complete { claim, result: None, produce, failed: None };
    let uses = broker.pipeline.broker().router_uses(&step).expect("the step is not completed yet");
    assert_eq!(uses, [RouterUse::NoDecision, RouterUse::Followed]);
    broker.send(driftq_core::Command::Complete(Box::new(step.clone()))).unwrap();
    assert_eq!(broker.pipeline.broker().router_uses(&step), None, "its reply is repeated");
}
