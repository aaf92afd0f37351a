//! Grants are checked on the topic in which a message ends up.

use driftq_core::command::*;
use driftq_core::types::*;
use driftq_core::{Refusal, Reply};

use super::*;

fn broker() -> TestBroker {
    let mut broker = TestBroker::new();
    ["a", "b", "c"].into_iter().for_each(|name| broker.topic(name, 1));
    broker
}

fn routed(target: &str) -> Produce {
    let mut produce = Produce::new(topic("a"), "k", "v");
    let routing = Routing { label: "l".into(), ..Routing::default() };
    produce.routing = Some(RoutingDecision { target_topic: Some(topic(target)), partition_override: None, routing });
    produce
}

fn targeted(target: &str) -> Produce {
    let mut produce = Produce::new(topic("a"), "k", "v");
    produce.envelope.target_topic = Some(topic(target));
    produce
}

#[test]
fn target_topic_needs_the_grant_and_the_requested_topic_does_not() {
    let mut broker = broker();
    let (on_a, on_b) = (broker.key("a", &["produce:a"]), broker.key("b", &["produce:b"]));
    assert_eq!(broker.send_as(&on_a, targeted("b")), Err(denied(Verb::Produce)));
    assert!(matches!(broker.send_as(&on_b, targeted("b")), Ok(Reply::Produced(_))));
    assert_eq!(broker.send_as(&on_b, Produce::new(topic("a"), "k", "v")), Err(denied(Verb::Produce)));
    assert_eq!(broker.send_as(&on_a, targeted("missing")), Err(denied(Verb::Produce)));
}

#[test]
fn topic_that_the_router_chooses_needs_the_grant() {
    let mut broker = broker();
    let (on_a, on_c) = (broker.key("a", &["produce:a", "produce:b"]), broker.key("c", &["produce:c"]));
    assert_eq!(broker.send_as(&on_a, routed("c")), Err(denied(Verb::Produce)));
    assert!(matches!(broker.send_as(&on_c, routed("c")), Ok(Reply::Produced(_))));
    // A decision that cannot be followed is ignored, and the message stays where it was meant for.
    assert!(matches!(broker.send_as(&on_a, routed("missing")), Ok(Reply::Produced(_))));
    assert_eq!(broker.send_as(&on_c, routed("missing")), Err(denied(Verb::Produce)));
    // The router goes before the target topic of the message.
    let both = || {
        let mut produce = routed("c");
        produce.envelope.target_topic = Some(topic("b"));
        produce
    };
    assert_eq!(broker.send_as(&on_a, both()), Err(denied(Verb::Produce)));
    assert!(matches!(broker.send_as(&on_c, both()), Ok(Reply::Produced(_))));
}

#[test]
fn complete_needs_consume_on_its_source_and_produce_on_every_output() {
    let mut broker = broker();
    let consumes = broker.key("consumes", &["consume:a", "produce:b"]);
    let elsewhere = broker.key("elsewhere", &["consume:b", "produce:b"]);
    broker.send(Produce::new(topic("a"), "k", "v").into()).unwrap();
    broker.send_as(&consumes, subscribe("a", "g", "w")).unwrap();
    let claim = claim("a", "g", "w", &broker.deliveries[0].1);
    let step = |produce| Complete { claim: claim.clone(), result: None, produce, failed: None };
    let to = |name: &str| Produce::new(topic(name), "k", "v");
    assert_eq!(broker.send_as(&elsewhere, step(vec![])), Err(denied(Verb::Consume)));
    for hidden in [to("c"), targeted("c"), routed("c")] {
        assert_eq!(broker.send_as(&consumes, step(vec![to("b"), hidden])), Err(denied(Verb::Produce)));
    }
    assert_eq!(broker.pipeline.state().topic_named(&topic("b")).unwrap().next_offset(), Offset(0));
    assert!(matches!(broker.send_as(&consumes, step(vec![to("b"), targeted("b")])), Ok(Reply::Completed(_))));
}

#[test]
fn dead_letters_follow_their_source() {
    let mut broker = broker();
    let worker = broker.key("worker", &["consume:a"]);
    broker.send(Produce::new(topic("a"), "k", "v").into()).unwrap();
    broker.send_as(&worker, subscribe("a", "g", "w")).unwrap();
    let claim = claim("a", "g", "w", &broker.deliveries[0].1);
    let nack = Nack { claim, reason: "never".into(), retry: Retry::Never };
    assert_eq!(broker.send_as(&worker, nack), Ok(Reply::Success), "no grant on the dead-letter topic is needed");
    let on_dead = broker.key("dead", &["consume,inspect,operate:dlq.a"]);
    let on_source = broker.key("source", &["consume,inspect,operate:a"]);
    let other = broker.key("other", &["consume,inspect,operate:b", "consume,inspect,operate:dlq.b"]);
    let describe = |name: &str| DescribeTopic { name: topic(name) };
    for caller in [&on_dead, &on_source] {
        assert!(matches!(broker.send_as(caller, describe("dlq.a")), Ok(Reply::Topic(_))));
        assert!(broker.send_as(caller, subscribe("dlq.a", "g", "w")).is_ok());
    }
    assert_eq!(broker.send_as(&on_dead, describe("a")), Err(denied(Verb::Inspect)));
    assert_eq!(broker.send_as(&other, describe("dlq.a")), Err(denied(Verb::Inspect)));
    assert_eq!(broker.send_as(&other, subscribe("dlq.a", "g", "w")), Err(denied(Verb::Consume)));
}

#[test]
fn redrive_needs_the_grant_on_the_topic_that_gets_the_messages() {
    let mut broker = broker();
    broker.send(Produce::new(topic("a"), "k", "v").into()).unwrap();
    broker.send(subscribe("a", "g", "w").into()).unwrap();
    let claim = claim("a", "g", "w", &broker.deliveries[0].1);
    broker.send(Nack { claim, reason: "never".into(), retry: Retry::Never }.into()).unwrap();
    let (on_dead, on_source) = (broker.key("dead", &["operate:dlq.a"]), broker.key("source", &["operate:a"]));
    let redrive = || Redrive { topic: topic("a"), which: RedriveSelection::All, limit: 10 };
    assert_eq!(broker.send_as(&on_dead, redrive()), Err(denied(Verb::Operate)));
    assert!(matches!(broker.send_as(&on_source, redrive()), Ok(Reply::Redriven { count: 1, .. })));
}

#[test]
fn list_names_only_topics_that_may_be_inspected() {
    let mut broker = broker();
    broker.topic("dlq.b", 1);
    let listed = |broker: &mut TestBroker, caller: &Caller| match broker.send_as(caller, ListTopics::default()) {
        Ok(Reply::Topics(names)) => Ok(names.iter().map(|name| name.as_str().to_owned()).collect::<Vec<_>>()),
        Ok(other) => panic!("{other:?}"),
        Err(refusal) => Err(refusal),
    };
    let on_b = broker.key("b", &["inspect:b", "operate:c"]);
    assert_eq!(listed(&mut broker, &on_b).unwrap(), ["b", "dlq.b"]);
    let none = broker.key("none", &["operate:c"]);
    assert_eq!(listed(&mut broker, &none), Err(denied(Verb::Inspect)));
    assert_eq!(listed(&mut broker, &Caller::TRUSTED).unwrap(), ["a", "b", "c", "dlq.b"]);
    assert_eq!(listed(&mut broker, &anonymous()), Err(Refusal::Unauthenticated));
}
