//! Skips: a message whose identity the group has already acked is acked without a delivery.

use super::consume_effects::*;
use super::test_broker::*;
use driftq_core::command::{Redrive, RedriveSelection, SeekTo};
use driftq_core::faults::{Fault, Faults, NoFaults, Planted};
use driftq_core::reply::StoreReply;
use driftq_core::types::*;
use driftq_core::{Command, Refusal};

#[test]
fn message_of_committed_identity_is_skipped_and_counted() {
    for restart in RESTARTS {
        let mut broker = broker();
        let first = delivered(&mut broker, "first");
        ack(&mut broker, &first);
        broker.restart_after(restart, 5);
        subscribe_worker(&mut broker);
        broker.try_produce(identified("t", "second", "k")).unwrap();
        broker.try_produce(identified("t", "other", "another key")).unwrap();
        assert_eq!(broker.delivered_values(), ["other"]);
        assert_eq!(broker.pipeline.broker().counters().skipped, 1);
        assert_eq!(broker.stored_values("t"), ["other"], "a skipped message is trimmed");
        broker.restart(restart);
        assert_eq!(broker.progress("t", "g").lag, 1);
    }
}

#[test]
fn commit_past_its_window_skips_nothing() {
    let mut broker = broker();
    let first = delivered(&mut broker, "first");
    ack(&mut broker, &first);
    broker.advance(ACK_TTL);
    broker.try_produce(identified("t", "second", "k")).unwrap();
    assert_eq!(broker.delivered_values(), ["second"]);
    assert_eq!(broker.pipeline.broker().counters().skipped, 0);
}

#[test]
fn commit_at_end_of_window_skips_nothing_before_sweep() {
    let mut broker = broker();
    // More than one call sweeps, so that the last effect is still stored when its window ends.
    let keys: Vec<String> = (0..3_000).map(|number| format!("k{number}")).collect();
    for key in &keys {
        broker.try_produce(identified("t", "first", key)).unwrap();
        let first = broker.expect_delivery();
        ack(&mut broker, &first);
    }
    broker.now = broker.now.after(Millis(ACK_TTL));
    broker.submit(Command::Produce(Box::new(identified("t", "second", "k2999"))));
    assert!(broker.effect_count("default") > 0);
    broker.run_until_idle();
    assert_eq!(broker.delivered_values(), ["second"]);
    assert_eq!(broker.pipeline.broker().counters().skipped, 0);
}

#[test]
fn commit_skips_nothing_in_other_groups_and_tenants() {
    let mut broker = broker();
    let first = delivered(&mut broker, "first");
    ack(&mut broker, &first);
    broker.advance(1);
    broker.group_from_latest("t", "h");
    broker.subscribe("t", "h", "w");
    let mut foreign = identified("t", "foreign", "k");
    foreign.envelope.tenant_id = Some("acme".into());
    broker.try_produce(foreign).unwrap();
    broker.try_produce(identified("t", "second", "k")).unwrap();
    let mut values = broker.delivered_values();
    values.sort();
    assert_eq!(
        values,
        ["foreign", "foreign", "second"],
        "the other tenant's message for both groups, the default tenant's for the other group"
    );
}

#[test]
fn finish_without_ack_skips_nothing() {
    let mut broker = broker();
    let first = delivered(&mut broker, "first");
    let token = granted(broker.begin_for(&k(), &first));
    broker.finish(&k(), token, success("1")).unwrap();
    broker.advance(1);
    broker.try_produce(identified("t", "second", "k")).unwrap();
    assert_eq!(broker.delivered_values(), ["second"]);
    assert_eq!(broker.pipeline.broker().counters().skipped, 0);
}

#[test]
fn message_awaiting_retry_is_skipped_once_its_identity_is_acked() {
    for restart in RESTARTS {
        let mut broker = broker();
        let first = delivered(&mut broker, "first");
        broker.nack_with_delay(claim("t", "g", "w", &first), 1_000).unwrap();
        broker.advance(1);
        let second = delivered(&mut broker, "second");
        ack(&mut broker, &second);
        broker.restart(restart);
        subscribe_worker(&mut broker);
        broker.advance(1_000);
        assert_eq!((broker.delivered_values(), broker.progress("t", "g").lag), (vec![], 0));
        assert_eq!(broker.pipeline.broker().counters().skipped, 1);
    }
}

#[test]
fn many_skips_in_a_row_block_no_group() {
    let mut broker = broker();
    broker.group("t", "h");
    let first = delivered(&mut broker, "first");
    ack(&mut broker, &first);
    broker.pause("t", "g");
    for number in 0..3_000 {
        broker.advance(1);
        broker.try_produce(identified("t", &number.to_string(), "k")).unwrap();
    }
    broker.produce("t", "last");
    broker.subscribe_with("t", "h", "w", |request| request.prefetch = 1);
    broker.resume("t", "g");
    let mut values = broker.delivered_values();
    values.sort();
    assert_eq!(values, ["first", "last"]);
    assert_eq!(broker.pipeline.broker().counters().skipped, 3_000);
}

#[test]
fn seek_lifts_skip_for_replayed_messages_only() {
    for restart in RESTARTS {
        let mut broker = TestBroker::with_limits(|limits| limits.dedupe_ttl = Millis(0));
        broker.topic_with_retention("t", Some(DAY), None);
        subscribe_worker(&mut broker);
        let first = delivered(&mut broker, "first");
        ack(&mut broker, &first);
        broker.advance(1);
        broker.try_produce(identified("t", "second", "k")).unwrap();
        assert_eq!(broker.delivered_values(), [""; 0]);
        broker.seek("t", "g", SeekTo::Earliest).unwrap();
        assert_eq!(broker.delivered_values(), ["first", "second"]);
        broker.restart_after(restart, 2_000);
        subscribe_worker(&mut broker);
        let replayed = broker.delivered();
        assert_eq!(replayed.iter().map(value).collect::<Vec<_>>(), ["first", "second"], "also after a restart");
        assert!(
            matches!(broker.begin_for(&k(), &replayed[0]), Ok(StoreReply::Replay(_))),
            "the committed outcome is replayed"
        );
        broker.try_produce(identified("t", "third", "k")).unwrap();
        assert_eq!((broker.delivered_values(), broker.pipeline.broker().counters().skipped), (vec![], 1));
        replayed.iter().for_each(|delivery| ack(&mut broker, delivery));
        assert_eq!(broker.progress("t", "g").lag, 0);
    }
}

#[test]
fn deleted_group_or_topic_drops_its_effects() {
    for restart in RESTARTS {
        for deletion in
            [(|broker| broker.delete_group("t", "g")) as fn(&mut TestBroker), |broker| broker.delete_topic("t")]
        {
            let mut broker = broker();
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
fn group_recreated_after_delete_skips_nothing() {
    let mut broker = broker();
    broker.group("t", "h");
    let first = delivered(&mut broker, "first");
    ack(&mut broker, &first);
    broker.delete_group("t", "g");
    subscribe_worker(&mut broker);
    assert_eq!(broker.delivered_values(), ["first"]);
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
fn redriven_message_is_delivered_unless_its_identity_was_acked() {
    for restart in RESTARTS {
        for acked_meanwhile in [false, true] {
            let mut broker = broker();
            let mut request = identified("t", "v", "k");
            request.envelope.retry_policy = Some(policy(1, 0, 0));
            broker.try_produce(request).unwrap();
            let first = broker.expect_delivery();
            nack(&mut broker, &first);
            if acked_meanwhile {
                broker.advance(1);
                let second = delivered(&mut broker, "second");
                ack(&mut broker, &second);
            }
            broker.restart(restart);
            subscribe_worker(&mut broker);
            broker
                .send(Command::Redrive(Redrive { topic: topic("t"), which: RedriveSelection::All, limit: 9 }))
                .unwrap();
            let expected: &[&str] = if acked_meanwhile { &[] } else { &["v"] };
            assert_eq!(broker.delivered_values(), expected);
            assert_eq!(broker.pipeline.broker().counters().skipped, u64::from(acked_meanwhile));
        }
    }
}

#[test]
fn fault_skip_without_finish_is_detected() {
    fn nothing_is_left<F: Faults>(faults: F) -> bool {
        let mut broker = with_consumer(faults);
        let first = delivered(&mut broker, "first");
        ack(&mut broker, &first);
        broker.advance(1);
        broker.try_produce(identified("t", "second", "k")).unwrap();
        broker.delivered_values().is_empty() && broker.progress("t", "g").lag == 0
    }
    assert!(nothing_is_left(NoFaults));
    assert!(!nothing_is_left(Planted(Fault::SkipWithoutFinish)));
}
