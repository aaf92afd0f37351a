//! Skips: a new message whose identity every group has acked is acked at once, and its producer is told.

use super::consume_effects::*;
use super::test_broker::*;
use driftq_core::command::{Produce, Redrive, RedriveSelection, SeekTo};
use driftq_core::faults::{Fault, Faults, NoFaults, Planted};
use driftq_core::reply::{Delivery, StoreReply};
use driftq_core::types::*;
use driftq_core::{Command, Refusal};

/// Acks a message after a worker has finished its effect, which is then remembered for a day.
fn finish_and_ack<F: Faults>(broker: &mut TestBroker<F>, delivery: &Delivery) {
    let token = granted(broker.begin_for(&k(), delivery));
    broker.finish(&k(), token, success("1")).unwrap();
    ack(broker, delivery);
}

/// A message of the identity `k` that is stored in `t`, produced to `requested` and redirected by a router.
fn routed(requested: &str, value: &str) -> Produce {
    let mut request = identified(requested, value, "k");
    request.routing = Some(RoutingDecision { target_topic: Some(topic("t")), ..Default::default() });
    request
}

fn skipped(broker: &mut TestBroker, group_name: &str) -> u64 {
    let groups = broker.describe("t").groups;
    groups.iter().find(|info| info.group == group(group_name)).unwrap().skipped
}

#[test]
fn message_of_finished_and_acked_identity_is_skipped_told_and_counted() {
    for restart in RESTARTS {
        let mut broker = broker();
        let first = delivered(&mut broker, "first");
        finish_and_ack(&mut broker, &first);
        broker.restart_after(restart, 5);
        subscribe_worker(&mut broker);
        let second = broker.try_produce(identified("t", "second", "k")).unwrap();
        assert_eq!((second.offset, second.duplicate, second.already_done), (Offset(1), false, true));
        assert!(!broker.try_produce(identified("t", "other", "another key")).unwrap().already_done);
        assert_eq!(broker.delivered_values(), ["other"]);
        assert_eq!(broker.pipeline.broker().counters().skipped, 1);
        assert_eq!(broker.stored_values("t"), ["other"], "a skipped message is trimmed");
        broker.restart(restart);
        assert_eq!((broker.progress("t", "g").lag, skipped(&mut broker, "g")), (1, 1), "the count is durable");
    }
}

#[test]
fn message_is_delivered_after_window_of_finished_identity() {
    let mut broker = broker();
    let first = delivered(&mut broker, "first");
    finish_and_ack(&mut broker, &first);
    broker.advance(DAY - 1);
    assert!(broker.try_produce(identified("t", "second", "k")).unwrap().already_done);
    broker.advance(1);
    assert!(!broker.try_produce(identified("t", "third", "k")).unwrap().already_done);
    assert_eq!(broker.delivered_values(), ["third"]);
}

#[test]
fn message_after_ack_alone_is_delivered_when_its_produce_is_no_duplicate() {
    for restart in RESTARTS {
        let mut broker = deduplicating_broker();
        let first = delivered(&mut broker, "first");
        ack(&mut broker, &first);
        broker.restart_after(restart, DEDUPE_TTL - 1);
        subscribe_worker(&mut broker);
        assert!(broker.try_produce(identified("t", "second", "k")).unwrap().duplicate);
        broker.advance(1);
        let third = broker.try_produce(identified("t", "third", "k")).unwrap();
        assert_eq!((third.duplicate, third.already_done), (false, false));
        assert_eq!(broker.delivered_values(), ["third"]);
    }
}

#[test]
fn commit_at_end_of_window_skips_nothing_before_sweep() {
    let mut broker = deduplicating_broker();
    // More than one call sweeps, so that the last effect is still stored when its window ends.
    let keys: Vec<String> = (0..5_000).map(|number| format!("k{number}")).collect();
    for key in &keys {
        broker.try_produce(identified("t", "first", key)).unwrap();
        let first = broker.expect_delivery();
        ack(&mut broker, &first);
    }
    broker.now = broker.now.after(Millis(DEDUPE_TTL));
    broker.submit(Command::Produce(Box::new(identified("t", "second", "k4999"))));
    assert!(broker.effect_count("default") > 0);
    broker.run_until_idle();
    assert_eq!(broker.delivered_values(), ["second"]);
    assert_eq!(broker.pipeline.broker().counters().skipped, 0);
}

#[test]
fn messages_of_one_key_to_two_topics_routed_to_one_are_both_delivered() {
    let orders = [["a", "b", "t"], ["t", "a", "b"]];
    for (restart, order) in RESTARTS.into_iter().flat_map(|restart| orders.map(|order| (restart, order))) {
        let mut broker = deduplicating_broker();
        for requested in order {
            let produced = broker.try_produce(routed(requested, requested)).unwrap();
            assert_eq!((produced.duplicate, produced.already_done), (false, false), "{requested}");
            let delivery = broker.expect_delivery();
            assert_eq!(value(&delivery), requested);
            broker.complete(claim("t", "g", "w", &delivery), None, vec![]).unwrap();
            broker.restart_after(restart, 1);
            subscribe_worker(&mut broker);
        }
        broker.advance(DEDUPE_TTL);
        for requested in order {
            let again = broker.try_produce(routed(requested, "again")).unwrap();
            assert!(again.already_done, "{requested} is done by itself");
        }
        assert!(!broker.try_produce(routed("c", "c")).unwrap().already_done);
        assert_eq!(broker.delivered_values(), ["c"]);
    }
}

#[test]
fn commits_remember_a_bounded_number_of_requested_topics() {
    for restart in RESTARTS {
        let mut broker = broker();
        for number in 0..20 {
            broker.try_produce(routed(&format!("a{number}"), "v")).unwrap();
            let delivery = broker.expect_delivery();
            broker.complete(claim("t", "g", "w", &delivery), None, vec![]).unwrap();
        }
        broker.restart_after(restart, 1);
        let mut is_done = |requested| broker.try_produce(routed(requested, "v")).unwrap().already_done;
        assert!(is_done("a19") && is_done("a4"));
        assert!(!is_done("a3"), "the oldest are forgotten, and delivered");
    }
}

#[test]
fn message_is_delivered_to_all_groups_unless_all_are_done() {
    for restart in RESTARTS {
        let mut broker = broker();
        let first = delivered(&mut broker, "first");
        finish_and_ack(&mut broker, &first);
        broker.advance(1);
        broker.group_from_latest("t", "h");
        broker.restart(restart);
        subscribe_worker(&mut broker);
        broker.subscribe("t", "h", "w");
        assert!(!broker.try_produce(identified("t", "second", "k")).unwrap().already_done);
        let deliveries = broker.delivered();
        assert_eq!(deliveries.iter().map(value).collect::<Vec<_>>(), ["second", "second"]);
        assert!(matches!(broker.begin_for(&k(), &deliveries[0]), Ok(StoreReply::Replay { .. })), "done in its group");
        broker.ack(claim("t", "g", "w", &deliveries[0])).unwrap();
        broker.complete(claim("t", "h", "w", &deliveries[1]), None, vec![]).unwrap();
        broker.advance(1);
        assert!(broker.try_produce(identified("t", "third", "k")).unwrap().already_done);
        assert_eq!((broker.delivered_values(), skipped(&mut broker, "g"), skipped(&mut broker, "h")), (vec![], 1, 1));
        assert_eq!(broker.pipeline.broker().counters().skipped, 2);
    }
}

#[test]
fn commit_skips_nothing_of_other_tenants() {
    let mut broker = broker();
    let first = delivered(&mut broker, "first");
    finish_and_ack(&mut broker, &first);
    let mut foreign = identified("t", "foreign", "k");
    foreign.envelope.tenant_id = Some("acme".into());
    assert!(!broker.try_produce(foreign).unwrap().already_done);
    assert_eq!(broker.delivered_values(), ["foreign"]);
}

#[test]
fn message_to_topic_without_groups_is_not_skipped() {
    let mut broker = broker();
    let first = delivered(&mut broker, "first");
    finish_and_ack(&mut broker, &first);
    broker.delete_group("t", "g");
    assert!(!broker.try_produce(identified("t", "second", "k")).unwrap().already_done);
    subscribe_worker(&mut broker);
    assert_eq!(broker.delivered_values(), ["second"]);
}

#[test]
fn finish_without_ack_skips_nothing() {
    let mut broker = broker();
    let first = delivered(&mut broker, "first");
    let token = granted(broker.begin_for(&k(), &first));
    broker.finish(&k(), token, success("1")).unwrap();
    broker.advance(1);
    assert!(!broker.try_produce(identified("t", "second", "k")).unwrap().already_done);
    assert_eq!(broker.delivered_values(), ["second"]);
    assert_eq!(broker.pipeline.broker().counters().skipped, 0);
}

#[test]
fn message_accepted_before_the_ack_is_delivered() {
    for restart in RESTARTS {
        let mut broker = broker();
        let first = delivered(&mut broker, "first");
        broker.nack_with_delay(claim("t", "g", "w", &first), 1_000).unwrap();
        broker.advance(1);
        let second = delivered(&mut broker, "second");
        finish_and_ack(&mut broker, &second);
        broker.restart(restart);
        subscribe_worker(&mut broker);
        broker.advance(1_000);
        assert_eq!(broker.delivered_values(), ["first"], "its producer was told that it is stored, so it is delivered");
    }
}

#[test]
fn output_of_complete_is_skipped_and_told() {
    for restart in RESTARTS {
        let mut broker = broker();
        let first = delivered(&mut broker, "first");
        finish_and_ack(&mut broker, &first);
        broker.advance(1);
        broker.produce("t", "plain");
        let plain = broker.expect_delivery();
        let outputs = vec![identified("t", "again", "k"), identified("t", "new", "n")];
        let outputs = broker.complete(claim("t", "g", "w", &plain), None, outputs).unwrap();
        assert_eq!(outputs.iter().map(|output| output.already_done).collect::<Vec<_>>(), [true, false]);
        assert_eq!(broker.delivered_values(), ["new"]);
        broker.restart(restart);
        assert_eq!(broker.complete(claim("t", "g", "w", &plain), None, vec![]), Ok(outputs), "also repeated");
        assert_eq!(skipped(&mut broker, "g"), 1);
    }
}

#[test]
fn output_of_the_same_identity_as_its_step_is_delivered() {
    let mut broker = broker();
    let first = delivered(&mut broker, "first");
    let outputs = broker.complete(claim("t", "g", "w", &first), None, vec![identified("t", "next", "k")]).unwrap();
    assert!(!outputs[0].already_done, "the step was not completed before it");
    assert_eq!(broker.delivered_values(), ["next"]);
}

#[test]
fn skipped_message_is_retained_for_later_groups_and_replay() {
    for restart in RESTARTS {
        let mut broker = TestBroker::with_limits(|limits| limits.dedupe_ttl = Millis(0));
        broker.topic_with_retention("t", Some(DAY), None);
        subscribe_worker(&mut broker);
        let first = delivered(&mut broker, "first");
        finish_and_ack(&mut broker, &first);
        broker.advance(1);
        let mut second = identified("t", "second", "k");
        (second.envelope.priority, second.delay) = (Priority::new(5), Some(Millis(10)));
        assert!(broker.try_produce(second).unwrap().already_done);
        broker.advance(10);
        assert_eq!(broker.delivered_values(), [""; 0]);
        broker.restart(restart);
        broker.subscribe("t", "later", "w");
        assert_eq!(broker.delivered_values(), ["second", "first"], "a group that is created later sees it");
        subscribe_worker(&mut broker);
        broker.seek("t", "g", SeekTo::Earliest).unwrap();
        assert_eq!(broker.delivered_values(), ["second", "first"], "a seek lifts the skip of what it replays");
        assert_eq!((skipped(&mut broker, "g"), skipped(&mut broker, "later")), (1, 0));
        broker.advance(DAY);
        assert_eq!(broker.stored_values("t").len(), 2, "unacked messages are kept");
    }
}

#[test]
fn skipped_messages_expire_with_retention() {
    for restart in RESTARTS {
        let mut broker = TestBroker::with_limits(|limits| limits.dedupe_ttl = Millis(0));
        broker.topic_with_retention("t", Some(1_000), None);
        subscribe_worker(&mut broker);
        let first = delivered(&mut broker, "first");
        finish_and_ack(&mut broker, &first);
        broker.advance(1_000);
        assert!(broker.try_produce(identified("t", "second", "k")).unwrap().already_done);
        assert_eq!(broker.stored_values("t"), ["second"]);
        broker.restart_after(restart, 1_000);
        broker.advance(1);
        assert_eq!(broker.stored_values("t"), [""; 0]);
    }
}

#[test]
fn many_skips_block_no_group() {
    let mut broker = broker();
    let first = delivered(&mut broker, "first");
    finish_and_ack(&mut broker, &first);
    for number in 0..3_000 {
        assert!(broker.try_produce(identified("t", &number.to_string(), "k")).unwrap().already_done);
    }
    broker.produce("t", "last");
    assert_eq!(broker.delivered_values(), ["last"]);
    assert_eq!(skipped(&mut broker, "g"), 3_000);
    assert_eq!(broker.progress("t", "g").lag, 1);
}

#[test]
fn deleted_group_or_topic_drops_its_effects() {
    for restart in RESTARTS {
        for deletion in
            [(|broker| broker.delete_group("t", "g")) as fn(&mut TestBroker), |broker| broker.delete_topic("t")]
        {
            let mut broker = deduplicating_broker();
            let first = delivered(&mut broker, "first");
            ack(&mut broker, &first);
            granted(broker.begin(&consume_effect("t", "g", "other")));
            granted(broker.begin(&effect("k")));
            assert_eq!(broker.effect_count("default"), 3);
            deletion(&mut broker);
            assert_eq!(broker.effect_count("default"), 1, "effects of other scopes stay");
            broker.restart(restart);
            assert_eq!((broker.status(&k()), broker.effect_count("default")), (None, 1));
            assert_eq!(broker.refused(|broker| broker.finish(&k(), first.token, success("1"))), Refusal::UnknownEffect);
        }
    }
}

#[test]
fn dead_letter_and_its_late_ack_commit_nothing() {
    for restart in RESTARTS {
        let mut broker = broker();
        let mut request = identified("t", "v", "k");
        request.envelope.retry_policy = Some(policy(1, 0, 0));
        broker.try_produce(request).unwrap();
        let first = broker.expect_delivery();
        nack(&mut broker, &first);
        assert_eq!(broker.dead_letters("t").len(), 1);
        broker.restart_after(restart, 1);
        let digest = broker.digest();
        assert_eq!(broker.ack(claim("t", "g", "w", &first)), Err(Refusal::StaleLease));
        broker.ack(first_message("t", "g", "w")).unwrap();
        assert_eq!((broker.digest(), broker.status(&k())), (digest, None));
        subscribe_worker(&mut broker);
        broker.try_produce(identified("t", "second", "k")).unwrap();
        assert_eq!(broker.delivered_values(), ["second"], "a later message is delivered");
    }
}

#[test]
fn message_of_dead_letter_topic_is_never_skipped() {
    let mut broker = broker();
    broker.topic("dlq.t", 1);
    broker.subscribe("dlq.t", "g", "w");
    for number in 0..2 {
        assert!(!broker.try_produce(identified("dlq.t", "v", "k")).unwrap().already_done, "{number}");
        let delivery = broker.expect_delivery();
        broker.complete(claim("dlq.t", "g", "w", &delivery), None, vec![]).unwrap();
        broker.advance(1);
    }
}

#[test]
fn redriven_message_is_delivered_though_its_identity_was_acked() {
    for restart in RESTARTS {
        let mut broker = broker();
        let mut request = identified("t", "v", "k");
        request.envelope.retry_policy = Some(policy(1, 0, 0));
        broker.try_produce(request).unwrap();
        let first = broker.expect_delivery();
        nack(&mut broker, &first);
        broker.advance(1);
        let second = delivered(&mut broker, "second");
        finish_and_ack(&mut broker, &second);
        broker.restart(restart);
        subscribe_worker(&mut broker);
        broker.send(Command::Redrive(Redrive { topic: topic("t"), which: RedriveSelection::All, limit: 9 })).unwrap();
        assert_eq!(broker.delivered_values(), ["v"]);
    }
}

/// What happens to a second message of an identity: whether its producer is told that it is already done, whether it is
/// delivered, and what the group has counted after a crash.
fn second_message<F: Faults>(faults: F, change: impl Fn(&mut TestBroker<F>, &Delivery)) -> (bool, bool, u64) {
    let mut broker = with_consumer(faults);
    let first = delivered(&mut broker, "first");
    change(&mut broker, &first);
    broker.advance(1);
    broker.delivered();
    let told = broker.try_produce(identified("t", "second", "k")).unwrap().already_done;
    let is_delivered = !broker.delivered_values().is_empty();
    broker.crash();
    (told, is_delivered, broker.pipeline.state().topic_named(&topic("t")).unwrap().groups().next().unwrap().skipped())
}

#[test]
fn fault_in_telling_or_skipping_is_detected() {
    assert_eq!(second_message(NoFaults, finish_and_ack), (true, false, 1));
    assert_eq!(second_message(Planted(Fault::SkipWithoutFlag), finish_and_ack), (false, false, 1));
    assert_eq!(second_message(Planted(Fault::FlagWithoutSkip), finish_and_ack), (true, true, 0));
    assert_eq!(second_message(Planted(Fault::SkippedCountLost), finish_and_ack), (true, false, 0));
}

#[test]
fn fault_in_deciding_a_skip_is_detected() {
    fn finish_only<F: Faults>(broker: &mut TestBroker<F>, delivery: &Delivery) {
        let token = granted(broker.begin_for(&k(), delivery));
        broker.finish(&k(), token, success("1")).unwrap();
    }
    fn with_other_group<F: Faults>(broker: &mut TestBroker<F>, delivery: &Delivery) {
        finish_and_ack(broker, delivery);
        broker.group("t", "h");
    }
    assert_eq!(second_message(NoFaults, finish_only), (false, true, 0));
    assert_eq!(second_message(Planted(Fault::SkipOfFinishedOnly), finish_only), (true, false, 1));
    assert_eq!(second_message(NoFaults, with_other_group), (false, true, 0));
    assert_eq!(second_message(Planted(Fault::SkipBeforeAllGroupsDone), with_other_group), (true, false, 1));
    assert_eq!(second_message(NoFaults, ack), (false, true, 0));
    assert_eq!(second_message(Planted(Fault::AckEffectOutlastsWindow), ack), (true, false, 1));
}

#[test]
fn fault_skip_across_topics_is_detected() {
    fn is_skipped<F: Faults>(faults: F) -> bool {
        let mut broker = with_consumer(faults);
        let first = delivered(&mut broker, "first");
        finish_and_ack(&mut broker, &first);
        broker.try_produce(routed("a", "second")).unwrap().already_done
    }
    assert!(!is_skipped(NoFaults));
    assert!(is_skipped(Planted(Fault::SkipAcrossTopics)));
}
