//! What a log tells of one message, whatever was done to it.

use driftq_core::command::{Begin, SeekTo, StoreCommand, TokenClaim};
use driftq_core::idempotency::{EffectStatus, Identity, Outcome, Scope};
use driftq_core::record::Retention;
use driftq_core::reply::StoreReply;
use driftq_core::types::{Millis, Offset, Priority, Routing, RoutingDecision, Timestamp};
use driftq_core::{Command, Reply};
use driftq_inspect::WalError;

use crate::harness::{Rig, deliveries, group, keyed, kinds, owner, says, topic, tried};

#[test]
fn a_message_that_nobody_acked_in_time_is_told_with_every_owner_and_outcome() {
    let mut rig = Rig::new();
    rig.create("orders", 3, Retention::default());
    rig.create_group("orders", "billing");
    rig.produce("orders");
    rig.take("orders", "billing", "w1");
    rig.pass(2_000);
    let second = rig.take("orders", "billing", "w2");
    rig.pass(300);
    let claim = rig.claim("orders", "billing", "w2", &second);
    rig.ask(Command::Extend { claim, lease: Some(Millis(5_000)) }).unwrap();
    rig.pass(700);
    rig.ack("orders", "billing", "w2", &second);

    let life = rig.life("orders/0");
    assert_eq!(kinds(&life), ["produced", "delivered", "lease ended", "delivered", "extended", "acked", "gone"]);
    let expected = [("billing", 1, "w1", Some("lease ended")), ("billing", 2, "w2", Some("acked"))];
    assert_eq!(deliveries(&life), expected, "{life}");
    let [first, last] = &life.deliveries[..] else { panic!("{life}") };
    assert_eq!(first.ended_ms.zip(first.at_ms).map(|(to, from)| to - from), Some(2_000));
    assert_eq!(last.token, second.token.to_string());
    assert_eq!(last.until_ms, rig.now - 700 + 5_000);
    says(&life, "produced", &["partition 1", "position 0", "key \"key\"", "5 bytes"]);
    says(&life, "delivered", &["to w2, attempt 2", "lease of 2.0 s", &second.token.to_string()]);
    says(&life, "gone", &["trimmed: every group is done with it"]);
    assert_eq!(life.stands, ["in the end it is gone"]);
}

#[test]
fn failures_backoff_and_death_are_told_and_the_dead_letter_has_a_life_of_its_own() {
    let mut rig = Rig::new();
    rig.create("orders", 1, Retention::default());
    rig.create_group("orders", "billing");
    rig.produce_as(tried("orders", 2));
    let first = rig.take("orders", "billing", "w1");
    rig.nack("orders", "billing", "w1", &first, "card declined");
    rig.pass(20_000);
    let second = rig.take("orders", "billing", "w2");
    rig.nack("orders", "billing", "w2", &second, "card expired");
    rig.pass(1);

    let life = rig.life("orders/0");
    let dead = Some("dead (max_attempts)");
    let told = deliveries(&life);
    assert_eq!(told[0], ("billing", 1, "w1", Some("nacked: \"card declined\"")), "{life}");
    assert_eq!((told[1].1, told[1].2), (2, "w2"));
    assert!(told[1].3 == dead || told[1].3 == Some("nacked: \"card expired\", then dead (max_attempts)"), "{life}");
    says(&life, "nacked", &["by w1", "card declined", "due again in"]);
    says(&life, "dead-lettered", &["max_attempts", "after 2 attempts", "card expired", "dlq.orders/0"]);
    says(&life, "produced", &["at most 2 attempts"]);

    let letter = rig.life("dlq.orders/0");
    says(&letter, "dead-lettered", &["the dead letter of orders/0", "billing"]);
    assert_eq!(letter.stands, ["in the end it is kept, and there is no group to have it"]);

    rig.redrive("orders");
    let letter = rig.life("dlq.orders/0");
    says(&letter, "redriven", &["it is orders/1 now", "billing"]);
    assert_eq!(letter.stands, ["in the end it is gone"]);
    let again = rig.take("orders", "billing", "w3");
    rig.ack("orders", "billing", "w3", &again);
    let life = rig.life("orders/1");
    assert_eq!(kinds(&life), ["redriven", "delivered", "acked", "gone"]);
    says(&life, "redriven", &["of a dead letter in dlq.orders", "billing alone"]);
    assert_eq!(deliveries(&life), [("billing", 1, "w3", Some("acked"))]);
}

#[test]
fn a_completed_step_names_what_it_made_and_what_it_made_names_the_step() {
    let mut rig = Rig::new();
    for name in ["orders", "invoices"] {
        rig.create(name, 1, Retention::default());
        rig.create_group(name, "all");
    }
    rig.produce("orders");
    let taken = rig.take("orders", "all", "w1");
    let outputs = ["k1", "k2"].map(|key| keyed("invoices", key));
    let claim = rig.claim("orders", "all", "w1", &taken);
    rig.complete(claim, outputs.into());

    let life = rig.life("orders/0");
    assert_eq!(deliveries(&life), [("all", 1, "w1", Some("completed"))]);
    says(&life, "completed", &["by w1", "it made invoices/0, invoices/1"]);
    let made = rig.life("invoices/1");
    says(&made, "produced", &["by group all, which completed orders/0,", "position 1", "identity \"k2\""]);
    assert_eq!(made.stands, ["in the end, for group all: ready, never delivered"]);
}

#[test]
fn what_travels_with_a_message_and_where_it_was_routed_is_told() {
    let mut rig = Rig::new();
    for name in ["inbox", "urgent"] {
        rig.create(name, 1, Retention::default());
    }
    rig.create_group("urgent", "all");
    let mut produce = keyed("inbox", "k");
    produce.envelope.tenant_id = Some("acme".into());
    produce.envelope.priority = Priority::new(7);
    produce.delay = Some(Millis(60_000));
    let routing = Routing { label: "hot".into(), ..Routing::default() };
    let target_topic = Some(topic("urgent"));
    produce.routing = Some(RoutingDecision { routing, target_topic, partition_override: None });
    rig.produce_as(produce);

    let life = rig.life("urgent/0");
    says(&life, "produced", &["identity \"k\" of tenant acme", "priority 7", "not before 2025-12-21T12:01:00.000Z"]);
    says(&life, "produced", &["routed to urgent by the label \"hot\" (its producer meant inbox)"]);
    assert_eq!(life.stands, ["in the end, for group all: delayed, never delivered"]);
    assert!(matches!(rig.wal().life(&"inbox/0".parse().unwrap(), None, None), Err(WalError::NoSuchMessage { .. })));
}

#[test]
fn an_effect_is_told_with_its_message_and_the_second_of_an_identity_is_skipped() {
    let mut rig = Rig::new();
    rig.create("orders", 1, Retention::default());
    rig.create_group("orders", "billing");
    rig.produce_as(keyed("orders", "k"));
    let taken = rig.take("orders", "billing", "w1");
    let identity = Identity::new("", Scope::Consume { topic: topic("orders"), group: group("billing") }, "k");
    let delivery = Some(rig.delivery_claim(&taken));
    let begin = Begin { delivery, ..Begin::new(identity.clone(), owner("w1")) };
    let StoreReply::Execute { token, .. } = rig.store(StoreCommand::Begin(begin)) else { panic!("it may be run") };
    let (status, result) = (EffectStatus::Succeeded, Some("{\"paid\":true}".into()));
    let outcome = Outcome { status, response_code: 0, result, last_error: "".into() };
    rig.store(StoreCommand::Finish { identity, token: TokenClaim::Shown(token), outcome });
    rig.ack("orders", "billing", "w1", &taken);
    let life = rig.life("orders/0");
    let all = ["produced", "delivered", "effect begun", "effect finished", "acked", "gone"];
    assert_eq!(kinds(&life), all, "{life}");
    says(&life, "effect begun", &["granted to w1", &token.to_string()]);
    says(&life, "effect finished", &["SUCCEEDED", "paid"]);

    // The identity's window for producers has ended, the effect is still remembered.
    rig.pass(11 * 60 * 1_000);
    rig.produce_as(keyed("orders", "k"));
    rig.subscribe("orders", "billing", "w2");
    rig.work();
    let second = rig.life("orders/1");
    assert_eq!(kinds(&second), ["produced", "skipped", "gone"], "{second}");
    says(&second, "skipped", &["a message of its identity is done already"]);
    assert_eq!(kinds(&rig.life("orders/0")).len(), all.len(), "what happens to the second is not the first's");
}

#[test]
fn each_group_has_its_own_deliveries_and_one_can_be_asked_for() {
    let mut rig = Rig::new();
    rig.create("orders", 1, Retention::default());
    for name in ["billing", "mail"] {
        rig.create_group("orders", name);
    }
    rig.produce("orders");
    let billed = rig.take("orders", "billing", "w1");
    rig.take("orders", "mail", "m1");
    rig.ack("orders", "billing", "w1", &billed);
    let life = rig.life("orders/0");
    assert_eq!(deliveries(&life), [("billing", 1, "w1", Some("acked")), ("mail", 1, "m1", None)]);
    assert_eq!(life.stands.len(), 2);
    assert_eq!(life.stands[0], "in the end, for group billing: done");
    assert!(life.stands[1].starts_with("in the end, for group mail: in flight, with m1 until "), "{life}");
    let mail = rig.life_of("orders/0", Some("mail"));
    assert_eq!(deliveries(&mail), [("mail", 1, "m1", None)]);
    assert_eq!(kinds(&mail), ["produced", "delivered"]);

    let claim = rig.claim("orders", "mail", "m1", &rig_delivery(&rig, "mail"));
    rig.ask(Command::Release(claim)).unwrap();
    assert_eq!(deliveries(&rig.life_of("orders/0", Some("mail"))), [("mail", 1, "m1", Some("given back"))]);
}

/// The newest delivery of orders/0 to a group, as the state has it.
fn rig_delivery<S>(rig: &Rig<S>, name: &str) -> driftq_core::reply::Delivery {
    let state = rig.broker.state();
    let found = state.topic_named(&topic("orders")).unwrap();
    let (partition, messages) = found.partitions().next().unwrap();
    let (position, message) = messages.find(Offset(0)).unwrap();
    let entry = found.group_named(&group(name)).unwrap().progress(partition).unwrap().entry(position).unwrap();
    driftq_core::reply::Delivery {
        partition,
        offset: message.offset,
        attempts: entry.attempts,
        failures: entry.failures,
        last_error: entry.last_error.clone(),
        token: entry.token,
        lease_until: Timestamp(0),
        produced_at: message.produced_at,
        body: message.body.clone(),
    }
}

#[test]
fn a_seek_a_deleted_group_and_a_deleted_topic_undo_what_was_in_flight() {
    let mut rig = Rig::new();
    let keeps = Retention { age: Some(Millis(3_600_000)), bytes: None };
    rig.create("orders", 1, keeps);
    for name in ["billing", "mail"] {
        rig.create_group("orders", name);
    }
    rig.produce("orders");
    let billed = rig.take("orders", "billing", "w1");
    rig.ack("orders", "billing", "w1", &billed);
    rig.seek("orders", "billing", SeekTo::Earliest);
    rig.take("orders", "billing", "w2");
    rig.seek("orders", "billing", SeekTo::Latest);
    rig.take("orders", "mail", "m1");
    rig.ask(Command::DeleteGroup { topic: topic("orders"), group: group("mail") }).unwrap();
    let life = rig.life("orders/0");
    let expected = [
        ("billing", 1, "w1", Some("acked")),
        ("billing", 1, "w2", Some("undone: sought")),
        ("mail", 1, "m1", Some("undone: group deleted")),
    ];
    assert_eq!(deliveries(&life), expected, "{life}");
    let told: Vec<_> =
        life.events.iter().filter(|event| event.kind == "group sought").map(|event| &*event.text).collect();
    assert_eq!(told, ["a seek has it delivered anew, with no attempt counted", "a seek passed it by: it is done"]);
    says(&life, "group deleted", &["the message was in flight, with m1"]);

    rig.seek("orders", "billing", SeekTo::Earliest);
    rig.take("orders", "billing", "w4");
    rig.ask(Command::DeleteTopic { name: topic("orders") }).unwrap();
    let life = rig.life("orders/0");
    assert_eq!(life.deliveries.last().unwrap().outcome.as_deref(), Some("undone: topic deleted"), "{life}");
    assert_eq!(life.events.last().unwrap().kind, "topic deleted");

    // A topic that is made anew has another message of the same name.
    rig.create("orders", 1, Retention::default());
    rig.produce("orders");
    let life = rig.life("orders/0");
    assert_eq!(kinds(&life).iter().filter(|kind| **kind == "produced").count(), 2, "{life}");
    assert_eq!(life.stands, ["in the end it is kept, and there is no group to have it"]);
}

#[test]
fn what_is_kept_after_it_is_done_goes_by_age_or_to_make_room_and_that_is_told() {
    let mut rig = Rig::new();
    rig.create("old", 1, Retention { age: Some(Millis(10_000)), bytes: None });
    rig.create("full", 1, Retention { age: None, bytes: Some(12) });
    for name in ["old", "full"] {
        rig.create_group(name, "all");
        for _ in 0..2 {
            rig.produce(name);
            let taken = rig.take(name, "all", "w");
            rig.ack(name, "all", "w", &taken);
        }
    }
    assert_eq!(rig.life("old/0").stands, ["in the end, for group all: done"]);
    let life = rig.life("full/0");
    says(&life, "gone", &["newer done messages have taken its room"]);
    assert_eq!(rig.life("full/1").stands, ["in the end, for group all: done"]);
    rig.pass(60_000);
    says(&rig.life("old/0"), "gone", &["retained out: it was done, and kept for long enough"]);
}

#[test]
fn a_lease_runs_on_through_a_crash_and_a_late_ack_is_told_as_late() {
    let mut rig = Rig::new();
    rig.create("orders", 1, Retention::default());
    rig.create_group("orders", "billing");
    rig.produce("orders");
    let taken = rig.take("orders", "billing", "w1");
    rig.crash();
    rig.pass(2_500);
    rig.ack("orders", "billing", "w1", &taken);
    let life = rig.life("orders/0");
    assert_eq!(kinds(&life), ["produced", "delivered", "booted", "lease ended", "acked", "gone"], "{life}");
    assert_eq!(deliveries(&life), [("billing", 1, "w1", Some("lease ended, then acked"))]);
    says(&life, "acked", &["after its lease had ended"]);
}

#[test]
fn who_was_never_there_is_said_so_with_what_there_is() {
    let mut rig = Rig::new();
    rig.create("orders", 1, Retention::default());
    rig.produce("orders");
    let none = rig.wal().life(&"ordres/0".parse().unwrap(), None, None).expect_err("there is no such topic");
    assert_eq!(none.to_string(), "there is no topic ordres in what is left of the log; there are orders");
    let none = rig.wal().life(&"orders/1".parse().unwrap(), None, None).expect_err("there is no such message");
    assert_eq!(none.to_string(), "there is no message orders/1: the next message of the topic gets offset 1");
    assert!(matches!(rig.ask(Command::ListTopics), Ok(Reply::Topics(_))));
}
