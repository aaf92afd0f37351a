//! The history of one message.

use driftq_core::command::{
    Begin, DeleteGroup, DeleteTopic, Extend, Finish, ListTopics, Release, SeekTo, StoreCommand, TokenClaim,
};
use driftq_core::reply::StoreReply;
use driftq_core::types::{
    EffectStatus, Identity, Millis, Offset, Outcome, Priority, Retention, Routing, RoutingDecision, Scope, Timestamp,
};
use driftq_core::{Command, Reply};
use driftq_inspect::InspectError;

use crate::harness::{TestBroker, assert_event, deliveries, group, keyed, kinds, limited, owner, topic};

#[test]
fn redelivered_message_lists_every_owner_and_end() {
    let mut broker = TestBroker::new();
    broker.create_topic("orders", 3, Retention::NOTHING);
    broker.create_group("orders", "billing");
    broker.produce("orders");
    broker.receive("orders", "billing", "w1");
    broker.advance(2_000);
    let second = broker.receive("orders", "billing", "w2");
    broker.advance(300);
    let claim = broker.claim("orders", "billing", "w2", &second);
    broker.send(Command::Extend(Extend { claim, lease: Some(Millis(5_000)) })).unwrap();
    broker.advance(700);
    broker.ack("orders", "billing", "w2", &second);

    let history = broker.history("orders/0");
    assert_eq!(kinds(&history), ["produced", "delivered", "expired", "delivered", "extended", "acked", "gone"]);
    let expected = [("billing", 1, "w1", Some("lease expired")), ("billing", 2, "w2", Some("acked"))];
    assert_eq!(deliveries(&history), expected, "{history}");
    let [first, last] = &history.deliveries[..] else { panic!("{history}") };
    assert_eq!(first.ended_ms.zip(first.at_ms).map(|(to, from)| to - from), Some(2_000));
    assert_eq!(last.token, second.token.to_string());
    assert_eq!(last.until_ms, broker.now - 700 + 5_000);
    assert_event(&history, "produced", &["partition 1", "position 0", "key \"key\"", "5 bytes"]);
    assert_event(&history, "delivered", &["to w2, attempt 2", "lease of 2.0 s", &second.token.to_string()]);
    assert_event(&history, "gone", &["trimmed: acked in every group"]);
    assert_eq!(history.final_state, ["final state: removed"]);
}

#[test]
fn dead_lettered_message_and_its_dead_letter_each_have_a_history() {
    let mut broker = TestBroker::new();
    broker.create_topic("orders", 1, Retention::NOTHING);
    broker.create_group("orders", "billing");
    broker.produce_with(limited("orders", 2));
    let first = broker.receive("orders", "billing", "w1");
    broker.nack("orders", "billing", "w1", &first, "card declined");
    broker.advance(20_000);
    let second = broker.receive("orders", "billing", "w2");
    broker.nack("orders", "billing", "w2", &second, "card expired");
    broker.advance(1);

    let history = broker.history("orders/0");
    let dead = Some("dead-lettered (max_attempts)");
    let listed = deliveries(&history);
    assert_eq!(listed[0], ("billing", 1, "w1", Some("nacked: \"card declined\"")), "{history}");
    assert_eq!((listed[1].1, listed[1].2), (2, "w2"));
    assert!(
        listed[1].3 == dead || listed[1].3 == Some("nacked: \"card expired\", then dead-lettered (max_attempts)"),
        "{history}"
    );
    assert_event(&history, "nacked", &["by w1", "card declined", "due again in"]);
    assert_event(&history, "dead-lettered", &["max_attempts", "after 2 attempts", "card expired", "dlq.orders/0"]);
    assert_event(&history, "produced", &["at most 2 attempts"]);

    let dead_letter = broker.history("dlq.orders/0");
    assert_event(&dead_letter, "dead-lettered", &["the dead letter of orders/0", "billing"]);
    assert_eq!(dead_letter.final_state, ["final state: stored; its topic has no group"]);

    broker.redrive("orders");
    let dead_letter = broker.history("dlq.orders/0");
    assert_event(&dead_letter, "redriven", &["as orders/1", "billing"]);
    assert_eq!(dead_letter.final_state, ["final state: removed"]);
    let again = broker.receive("orders", "billing", "w3");
    broker.ack("orders", "billing", "w3", &again);
    let history = broker.history("orders/1");
    assert_eq!(kinds(&history), ["redriven", "delivered", "acked", "gone"]);
    assert_event(&history, "redriven", &["by a redrive from dlq.orders", "billing only"]);
    assert_eq!(deliveries(&history), [("billing", 1, "w3", Some("acked"))]);
}

#[test]
fn completed_step_and_its_outputs_name_each_other() {
    let mut broker = TestBroker::new();
    for name in ["orders", "invoices"] {
        broker.create_topic(name, 1, Retention::default());
        broker.create_group(name, "all");
    }
    broker.produce("orders");
    let taken = broker.receive("orders", "all", "w1");
    let outputs = ["k1", "k2"].map(|key| keyed("invoices", key));
    let claim = broker.claim("orders", "all", "w1", &taken);
    broker.complete(claim, outputs.into());

    let history = broker.history("orders/0");
    assert_eq!(deliveries(&history), [("all", 1, "w1", Some("completed"))]);
    assert_event(&history, "completed", &["by w1", "produced invoices/0, invoices/1"]);
    let output = broker.history("invoices/1");
    assert_event(&output, "produced", &["by group all completing orders/0,", "position 1", "identity \"k2\""]);
    assert_eq!(output.final_state, ["final state in group all: ready, never delivered"]);
}

#[test]
fn metadata_and_routing_are_listed() {
    let mut broker = TestBroker::new();
    for name in ["inbox", "urgent"] {
        broker.create_topic(name, 1, Retention::default());
    }
    broker.create_group("urgent", "all");
    let mut produce = keyed("inbox", "k");
    produce.envelope.tenant_id = Some("acme".into());
    produce.envelope.priority = Priority::new(7);
    produce.delay = Some(Millis(60_000));
    let routing = Routing { label: "hot".into(), ..Routing::default() };
    let target_topic = Some(topic("urgent"));
    produce.routing = Some(RoutingDecision { routing, target_topic, partition_override: None });
    broker.produce_with(produce);

    let history = broker.history("urgent/0");
    assert_event(
        &history,
        "produced",
        &["identity \"k\" of tenant acme", "priority 7", "delayed until 2025-12-21T12:01:00.000Z"],
    );
    assert_event(&history, "produced", &["routed to urgent by the label \"hot\" (produced to inbox)"]);
    assert_eq!(history.final_state, ["final state in group all: delayed, never delivered"]);
    assert!(matches!(
        broker.reader().trace_message(&"inbox/0".parse().unwrap(), None, None),
        Err(InspectError::NoSuchMessage { .. })
    ));
}

#[test]
fn effect_is_listed_with_its_message_and_second_of_identity_is_skipped() {
    let mut broker = TestBroker::new();
    broker.create_topic("orders", 1, Retention::NOTHING);
    broker.create_group("orders", "billing");
    broker.produce_with(keyed("orders", "k"));
    let taken = broker.receive("orders", "billing", "w1");
    let identity = Identity::new("", Scope::Consume { topic: topic("orders"), group: group("billing") }, "k");
    let delivery = Some(broker.delivery_claim(&taken));
    let begin = Begin { delivery, ..Begin::new(identity.clone(), owner("w1")) };
    let StoreReply::Execute { token, .. } = broker.store(StoreCommand::Begin(begin)) else { panic!("EXECUTE") };
    let (status, result) = (EffectStatus::Succeeded, Some("{\"paid\":true}".into()));
    let outcome = Outcome { status, response_code: 0, result, last_error: "".into() };
    broker.store(StoreCommand::Finish(Finish {
        identity,
        token: TokenClaim::Shown(token),
        outcome,
        dead_letter: None,
    }));
    broker.ack("orders", "billing", "w1", &taken);
    let history = broker.history("orders/0");
    let all = ["produced", "delivered", "effect begun", "effect finished", "acked", "gone"];
    assert_eq!(kinds(&history), all, "{history}");
    assert_event(&history, "effect begun", &["granted to w1", &token.to_string()]);
    assert_event(&history, "effect finished", &["SUCCEEDED", "paid"]);
    // The window begins with the finish; the ack, whose own is ten minutes, does not change it.
    let window = "the effect is remembered until 2025-12-22T12:00:0";
    assert_event(&history, "effect finished", &[window, ", and until the message is acked"]);
    assert_event(&history, "acked", &["keeps its own window", window]);

    // The produce window of the identity has passed; its effect is still stored.
    broker.advance(11 * 60 * 1_000);
    broker.produce_with(keyed("orders", "k"));
    broker.subscribe("orders", "billing", "w2");
    broker.settle();
    let second = broker.history("orders/1");
    assert_eq!(kinds(&second), ["produced", "skipped", "gone"], "{second}");
    assert_event(&second, "skipped", &["the group has acked a message of its identity"]);
    assert_eq!(kinds(&broker.history("orders/0")).len(), all.len(), "events of the second message are not the first's");
}

#[test]
fn groups_have_separate_deliveries_and_one_can_be_selected() {
    let mut broker = TestBroker::new();
    broker.create_topic("orders", 1, Retention::default());
    for name in ["billing", "mail"] {
        broker.create_group("orders", name);
    }
    broker.produce("orders");
    let billed = broker.receive("orders", "billing", "w1");
    broker.receive("orders", "mail", "m1");
    broker.ack("orders", "billing", "w1", &billed);
    let history = broker.history("orders/0");
    assert_eq!(deliveries(&history), [("billing", 1, "w1", Some("acked")), ("mail", 1, "m1", None)]);
    assert_eq!(history.final_state.len(), 2);
    assert_eq!(history.final_state[0], "final state in group billing: acked");
    assert!(history.final_state[1].starts_with("final state in group mail: in flight with m1 until "), "{history}");
    let mail = broker.history_in("orders/0", Some("mail"));
    assert_eq!(deliveries(&mail), [("mail", 1, "m1", None)]);
    assert_eq!(kinds(&mail), ["produced", "delivered"]);

    let claim = broker.claim("orders", "mail", "m1", &current_delivery(&broker, "mail"));
    broker.send(Command::Release(Release(claim))).unwrap();
    assert_eq!(deliveries(&broker.history_in("orders/0", Some("mail"))), [("mail", 1, "m1", Some("released"))]);
}

/// The newest delivery of orders/0 to a group, as the state has it.
fn current_delivery<S>(broker: &TestBroker<S>, name: &str) -> driftq_core::reply::Delivery {
    let state = broker.pipeline.state();
    let found = state.topic_named(&topic("orders")).unwrap();
    let (partition, messages) = found.partitions().next().unwrap();
    let (position, message) = messages.find(Offset(0)).unwrap();
    let entry = found.group_named(&group(name)).unwrap().progress(partition).unwrap().delivery(position).unwrap();
    driftq_core::reply::Delivery {
        partition,
        offset: message.offset,
        attempts: entry.attempts,
        failures: entry.failures,
        last_error: entry.last_error.clone(),
        token: entry.token,
        lease_until: Timestamp(0),
        produced_at: message.produced_at,
        body: message.body(broker.pipeline.broker().cached_payload(message.payload.id).unwrap()),
    }
}

#[test]
fn seek_group_deletion_and_topic_deletion_cancel_deliveries() {
    let mut broker = TestBroker::new();
    let retention = Retention { age: Some(Millis(3_600_000)), bytes: None };
    broker.create_topic("orders", 1, retention);
    for name in ["billing", "mail"] {
        broker.create_group("orders", name);
    }
    broker.produce("orders");
    let billed = broker.receive("orders", "billing", "w1");
    broker.ack("orders", "billing", "w1", &billed);
    broker.seek("orders", "billing", SeekTo::Earliest);
    broker.receive("orders", "billing", "w2");
    broker.seek("orders", "billing", SeekTo::Latest);
    broker.receive("orders", "mail", "m1");
    broker.send(Command::DeleteGroup(DeleteGroup { topic: topic("orders"), group: group("mail") })).unwrap();
    let history = broker.history("orders/0");
    let expected = [
        ("billing", 1, "w1", Some("acked")),
        ("billing", 1, "w2", Some("cancelled: seek")),
        ("mail", 1, "m1", Some("cancelled: group deleted")),
    ];
    assert_eq!(deliveries(&history), expected, "{history}");
    let seeks: Vec<_> =
        history.events.iter().filter(|event| event.kind == "group sought").map(|event| &*event.text).collect();
    let [to_start, past] = seeks[..] else { panic!("{history}") };
    assert!(to_start.ends_with("is delivered again from attempt 1"), "{to_start}");
    assert!(past.ends_with("counts as acked"), "{past}");
    assert_event(&history, "group deleted", &["the message was in flight with m1"]);

    broker.seek("orders", "billing", SeekTo::Earliest);
    broker.receive("orders", "billing", "w4");
    broker.send(Command::DeleteTopic(DeleteTopic { name: topic("orders") })).unwrap();
    let history = broker.history("orders/0");
    assert_eq!(history.deliveries.last().unwrap().end.as_deref(), Some("cancelled: topic deleted"), "{history}");
    assert_eq!(history.events.last().unwrap().kind, "topic deleted");

    // In a topic created again, another message has the same name.
    broker.create_topic("orders", 1, Retention::default());
    broker.produce("orders");
    let history = broker.history("orders/0");
    assert_eq!(kinds(&history).iter().filter(|kind| **kind == "produced").count(), 2, "{history}");
    assert_eq!(history.final_state, ["final state: stored; its topic has no group"]);
}

#[test]
fn retained_message_is_removed_by_age_or_by_size() {
    let mut broker = TestBroker::new();
    broker.create_topic("old", 1, Retention { age: Some(Millis(10_000)), bytes: None });
    broker.create_topic("full", 1, Retention { age: None, bytes: Some(12) });
    for name in ["old", "full"] {
        broker.create_group(name, "all");
        for _ in 0..2 {
            broker.produce(name);
            let taken = broker.receive(name, "all", "w");
            broker.ack(name, "all", "w", &taken);
        }
    }
    assert_eq!(broker.history("old/0").final_state, ["final state in group all: acked"]);
    let history = broker.history("full/0");
    assert_event(&history, "gone", &["newer acked messages exceed the topic's retention"]);
    assert_eq!(broker.history("full/1").final_state, ["final state in group all: acked"]);
    broker.advance(60_000);
    assert_event(&broker.history("old/0"), "gone", &["retained out: beyond the topic's retention"]);
}

#[test]
fn lease_continues_over_crash_and_late_ack_is_marked() {
    let mut broker = TestBroker::new();
    broker.create_topic("orders", 1, Retention::NOTHING);
    broker.create_group("orders", "billing");
    broker.produce("orders");
    let taken = broker.receive("orders", "billing", "w1");
    broker.crash();
    broker.advance(2_500);
    broker.ack("orders", "billing", "w1", &taken);
    let history = broker.history("orders/0");
    assert_eq!(kinds(&history), ["produced", "delivered", "booted", "expired", "acked", "gone"], "{history}");
    assert_eq!(deliveries(&history), [("billing", 1, "w1", Some("lease expired, then acked"))]);
    assert_event(&history, "acked", &["after its lease had expired"]);
}

#[test]
fn unknown_topic_or_message_is_refused_with_what_exists() {
    let mut broker = TestBroker::new();
    broker.create_topic("orders", 1, Retention::default());
    broker.produce("orders");
    let none =
        broker.reader().trace_message(&"ordres/0".parse().unwrap(), None, None).expect_err("there is no such topic");
    assert_eq!(none.to_string(), "there is no topic ordres in the log; its topics are: orders");
    let none =
        broker.reader().trace_message(&"orders/1".parse().unwrap(), None, None).expect_err("there is no such message");
    assert_eq!(none.to_string(), "there is no message orders/1; the next message of the topic gets offset 1");
    assert!(matches!(broker.send(Command::ListTopics(ListTopics::default())), Ok(Reply::Topics(_))));
}
