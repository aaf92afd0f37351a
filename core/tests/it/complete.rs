//! `complete`: acks a message, ends its effect and stores the next messages atomically.

use super::test_broker::*;
use driftq_core::command::{Produce, SeekTo, TokenClaim};
use driftq_core::faults::{Fault, Faults, NoFaults, Planted};
use driftq_core::log::Storage;
use driftq_core::reply::{Delivery, Overload, StepOutput};
use driftq_core::types::{EffectStatus, Outcome, *};
use driftq_core::{PipelineConfig, Refusal};

const DAY: u64 = 24 * 60 * 60 * 1_000;
const COMPLETION_TTL: u64 = 10 * 60 * 1_000;

/// A broker with topics `t` and `next` and a consumer of `t`.
fn with_consumer<F: Faults>(faults: F) -> TestBroker<F> {
    let mut broker = TestBroker::with(small_config(), faults);
    broker.topic("t", 1);
    broker.topic("next", 3);
    broker.subscribe("t", "g", "w");
    broker
}

fn broker() -> TestBroker {
    with_consumer(NoFaults)
}

/// A delivered message with the idempotency key `k`.
fn delivered<F: Faults>(broker: &mut TestBroker<F>) -> Delivery {
    broker.try_produce(identified("t", "v", "k")).unwrap();
    broker.expect_delivery()
}

fn complete<F: Faults>(
    broker: &mut TestBroker<F>,
    delivery: &Delivery,
    result: Option<&str>,
    produce: Vec<Produce>,
) -> Result<Vec<StepOutput>, Refusal> {
    broker.complete(claim("t", "g", "w", delivery), result, produce)
}

fn plain(to: &str, value: &str) -> Produce {
    Produce::new(topic(to), "", value)
}

fn stored(of: &str, partition: u32, offset: u64) -> StepOutput {
    let (partition, offset) = (PartitionId(partition), Offset(offset));
    StepOutput { topic: topic(of), partition, offset, duplicate: false, already_done: false }
}

#[test]
fn complete_acks_message_ends_effect_and_stores_outputs() {
    for restart in RESTARTS {
        let mut broker = broker();
        let first = delivered(&mut broker);
        let token = granted(broker.begin_for(&consume_effect("t", "g", "k"), &first));
        let produce = vec![to_partition("next", 2, "", "a"), to_partition("next", 1, "", "b")];
        let outputs = complete(&mut broker, &first, Some("{\"ok\":true}"), produce).unwrap();
        assert_eq!(outputs, [stored("next", 2, 0), stored("next", 1, 1)]);
        broker.restart(restart);
        assert_eq!((broker.progress("t", "g").lag, broker.stored_values("t")), (0, vec![]));
        assert_eq!((broker.stored_messages("next", 2).len(), broker.stored_messages("next", 1).len()), (1, 1));
        let found = broker.found_effect(&consume_effect("t", "g", "k")).unwrap();
        let known = &found.effect;
        assert_eq!((known.status, known.committed, known.finished), (EffectStatus::Succeeded, true, true));
        assert_eq!((known.token, found.result.as_deref()), (Some(token), Some("{\"ok\":true}")));
        assert_eq!(known.expires_at, START.after(Millis(DAY)));
        broker.subscribe("next", "g", "w");
        let mut values = broker.delivered_values();
        values.sort();
        assert_eq!(values, ["a", "b"]);
    }
}

#[test]
fn complete_counts_as_ack_and_produces() {
    let mut broker = broker();
    let first = delivered(&mut broker);
    complete(&mut broker, &first, None, vec![plain("next", "a"), plain("next", "b")]).unwrap();
    let counters = broker.pipeline.broker().counters();
    assert_eq!((counters.completed, counters.acked, counters.produced), (1, 1, 3));
}

#[test]
fn complete_creates_missing_effect_and_keeps_first_result() {
    for restart in RESTARTS {
        for (begun, ended, expected) in [
            (false, None, success("\"new\"")),
            (true, None, success("\"new\"")),
            (true, Some(success("\"first\"")), success("\"first\"")),
            (true, Some(outcome(EffectStatus::FailedRetryable, Some("\"half\""), "busy")), success("\"new\"")),
        ] {
            let mut broker = broker();
            let identity = consume_effect("t", "g", "k");
            let first = delivered(&mut broker);
            if begun {
                let token = granted(broker.begin_for(&identity, &first));
                ended.into_iter().for_each(|end| broker.finish(&identity, token, end).unwrap());
            }
            broker.advance(100);
            complete(&mut broker, &first, Some("\"new\""), vec![]).unwrap();
            broker.restart(restart);
            assert_eq!(broker.begin(&identity), Ok(replay(expected.clone())));
            let known = broker.effect(&identity).unwrap();
            assert!(known.committed && known.finished, "{expected:?}");
        }
    }
}

#[test]
fn complete_with_result_after_final_failure_is_refused() {
    let mut broker = broker();
    let first = delivered(&mut broker);
    let token = granted(broker.begin_for(&consume_effect("t", "g", "k"), &first));
    broker.finish(&consume_effect("t", "g", "k"), token, final_failure("no")).unwrap();
    let refusal = broker.refused(|broker| complete(broker, &first, Some("1"), vec![plain("next", "a")]));
    assert_eq!(refusal, Refusal::OtherOutcome);
    complete(&mut broker, &first, None, vec![plain("next", "a")]).unwrap();
    let known = broker.found_effect(&consume_effect("t", "g", "k")).unwrap();
    assert_eq!((known.outcome(), known.effect.committed), (final_failure("no"), true));
}

#[test]
fn finish_after_complete_can_only_repeat_it() {
    let mut broker = broker();
    let first = delivered(&mut broker);
    let token = granted(broker.begin_for(&consume_effect("t", "g", "k"), &first));
    complete(&mut broker, &first, Some("1"), vec![]).unwrap();
    broker.finish(&consume_effect("t", "g", "k"), token, success("1")).unwrap();
    assert_eq!(
        broker.refused(|broker| broker.finish(&consume_effect("t", "g", "k"), token, success("2"))),
        Refusal::OtherOutcome
    );
}

#[test]
fn complete_without_key_creates_no_effect() {
    let mut broker = broker();
    broker.produce("t", "plain");
    let first = broker.expect_delivery();
    complete(&mut broker, &first, Some("1"), vec![plain("next", "a")]).unwrap();
    assert_eq!((broker.effect_count("default"), broker.progress("t", "g").lag), (0, 0));
}

#[test]
fn message_of_completed_identity_is_skipped() {
    let mut broker = TestBroker::with_limits(|limits| limits.dedupe_ttl = Millis(0));
    broker.topic("t", 1);
    broker.subscribe("t", "g", "w");
    let first = delivered(&mut broker);
    complete(&mut broker, &first, None, vec![]).unwrap();
    broker.advance(1);
    broker.try_produce(identified("t", "again", "k")).unwrap();
    assert_eq!((broker.delivered_values(), broker.pipeline.broker().counters().skipped), (vec![], 1));
}

#[test]
fn complete_with_wrong_token_is_refused() {
    let mut broker = broker();
    let first = delivered(&mut broker);
    broker.release(claim("t", "g", "w", &first)).unwrap();
    let second = broker.expect_delivery();
    let refused = |broker: &mut TestBroker, token| {
        broker.refused(|broker| {
            let claim = driftq_core::command::Claim { token, ..claim("t", "g", "w", &second) };
            broker.complete(claim, None, vec![plain("next", "a")])
        })
    };
    for token in [TokenClaim::Absent, TokenClaim::Unreadable, TokenClaim::Shown(first.token)] {
        assert_eq!(refused(&mut broker, token), Refusal::StaleLease, "{token:?}");
    }
    let foreign = driftq_core::command::Claim { owner: owner("other"), ..claim("t", "g", "w", &second) };
    assert_eq!(broker.refused(|broker| broker.complete(foreign, None, vec![])), Refusal::NotOwner);
    complete(&mut broker, &second, None, vec![]).unwrap();
}

#[test]
fn complete_after_expiry_without_redelivery_succeeds() {
    let mut broker = broker();
    let first = delivered(&mut broker);
    broker.pause("t", "g");
    broker.advance(2_000);
    complete(&mut broker, &first, Some("1"), vec![plain("next", "a")]).unwrap();
    broker.resume("t", "g");
    assert_eq!((broker.delivered_values(), broker.progress("t", "g").lag), (vec![], 0));
}

#[test]
fn complete_repeated_with_same_token_returns_same_reply_within_window() {
    for restart in RESTARTS {
        let mut broker = broker();
        let first = delivered(&mut broker);
        broker.nack(claim("t", "g", "w", &first), "no").unwrap();
        let second = broker.expect_delivery();
        let reply = complete(&mut broker, &second, Some("1"), vec![plain("next", "a")]).unwrap();
        broker.restart_after(restart, COMPLETION_TTL - 1);
        let digest = broker.digest();
        assert_eq!(complete(&mut broker, &second, Some("other"), vec![plain("next", "other")]), Ok(reply));
        assert_eq!(broker.digest(), digest, "a repeated complete changes nothing");
        assert_eq!(broker.refused(|broker| complete(broker, &first, None, vec![])), Refusal::StaleLease);
        broker.advance(1);
        assert_eq!(broker.refused(|broker| complete(broker, &second, None, vec![])), Refusal::StaleLease);
        broker.advance(1_000);
        assert!(broker.pipeline.state().completions().is_empty());
    }
}

#[test]
fn complete_repeated_after_seek_returns_same_reply() {
    let mut broker = TestBroker::new();
    broker.topic_with_retention("t", Some(DAY), None);
    broker.subscribe("t", "g", "w");
    let first = delivered(&mut broker);
    let reply = complete(&mut broker, &first, None, vec![]);
    broker.seek("t", "g", SeekTo::Earliest).unwrap();
    assert_eq!(complete(&mut broker, &first, None, vec![]), reply);
    let again = broker.expect_delivery();
    complete(&mut broker, &again, None, vec![]).unwrap();
    assert_eq!(broker.progress("t", "g").lag, 0);
}

#[test]
fn completed_token_on_another_message_is_refused() {
    let mut broker = broker();
    let first = delivered(&mut broker);
    broker.produce("t", "other");
    let other = broker.expect_delivery();
    complete(&mut broker, &first, None, vec![]).unwrap();
    let other_message = Delivery { token: first.token, ..other };
    assert_eq!(broker.refused(|broker| complete(broker, &other_message, None, vec![])), Refusal::StaleLease);
}

#[test]
fn complete_after_ack_is_refused() {
    let mut broker = broker();
    let first = delivered(&mut broker);
    broker.ack(claim("t", "g", "w", &first)).unwrap();
    assert_eq!(broker.refused(|broker| complete(broker, &first, None, vec![plain("next", "a")])), Refusal::StaleLease);
}

#[test]
fn complete_with_refused_output_changes_nothing_and_keeps_lease() {
    for restart in RESTARTS {
        let mut broker = broker();
        let first = delivered(&mut broker);
        granted(broker.begin_for(&consume_effect("t", "g", "k"), &first));
        let unknown = vec![plain("next", "a"), identified("next", "b", "x"), plain("nowhere", "c")];
        let refusal = broker.refused(|broker| complete(broker, &first, Some("1"), unknown));
        assert_eq!(refusal, Refusal::UnknownTopic(topic("nowhere")));
        let empty = vec![plain("next", "a"), plain("next", "")];
        assert!(matches!(broker.refused(|broker| complete(broker, &first, None, empty)), Refusal::Invalid(_)));
        let far = vec![to_partition("next", 9, "", "a")];
        assert!(matches!(
            broker.refused(|broker| complete(broker, &first, None, far)),
            Refusal::PartitionOutOfRange { .. }
        ));
        let large = Refusal::TooLarge { what: "result", len: (64 << 10) + 1, max: 64 << 10 };
        assert_eq!(broker.refused(|broker| complete(broker, &first, Some(&"1".repeat((64 << 10) + 1)), vec![])), large);
        broker.restart(restart);
        assert_eq!(broker.progress("t", "g").in_flight, 1);
        assert_eq!(broker.status(&consume_effect("t", "g", "k")), Some(EffectStatus::InProgress));
        assert_eq!(
            complete(&mut broker, &first, Some("1"), vec![identified("next", "b", "x")]),
            Ok(vec![stored("next", 0, 0)])
        );
    }
}

#[test]
fn complete_with_too_many_outputs_is_refused() {
    let mut broker = TestBroker::with_limits(|limits| limits.outputs_max = 2);
    broker.topic("t", 1);
    broker.subscribe("t", "g", "w");
    let first = delivered(&mut broker);
    let many = |count: u64| (0..count).map(|number| plain("t", &number.to_string())).collect::<Vec<_>>();
    let refusal = broker.refused(|broker| complete(broker, &first, None, many(3)));
    assert_eq!(refusal, Refusal::TooMany { what: "messages", len: 3, max: 2 });
    complete(&mut broker, &first, None, many(2)).unwrap();
}

#[test]
fn identity_repeated_within_one_complete_is_stored_once() {
    for restart in RESTARTS {
        let mut broker = broker();
        let first = delivered(&mut broker);
        let before = broker.try_produce(identified("next", "before", "known")).unwrap();
        let produce = vec![
            identified("next", "a", "x"),
            identified("next", "a again", "x"),
            identified("next", "known", "known"),
            identified("t", "another topic's", "x"),
        ];
        let outputs = complete(&mut broker, &first, None, produce).unwrap();
        let duplicate = |of, offset| StepOutput { duplicate: true, ..stored(of, 0, offset) };
        assert_eq!(
            outputs,
            [stored("next", 0, 1), duplicate("next", 1), duplicate("next", before.offset.0), stored("t", 0, 1)]
        );
        broker.restart(restart);
        assert_eq!(
            complete(&mut broker, &first, None, vec![]),
            Ok(outputs),
            "a repeated complete returns the same outputs"
        );
        assert_eq!(broker.stored_values("next"), ["before", "a"]);
        assert!(broker.try_produce(identified("next", "later", "x")).unwrap().duplicate);
        broker.advance(10 * 60 * 1_000 + 1_000);
        assert_eq!(broker.pipeline.state().dedupe(&scope("next")).map(driftq_core::state::DedupeTable::len), None);
    }
}

#[test]
fn identities_of_one_complete_count_against_topic_limit() {
    let mut broker = TestBroker::with_limits(|limits| limits.dedupe_keys_max = 2);
    broker.topic("t", 1);
    broker.topic("next", 1);
    broker.subscribe("t", "g", "w");
    broker.produce("t", "v");
    let first = broker.expect_delivery();
    let keys = |keys: &[&str]| keys.iter().map(|key| identified("next", "v", key)).collect::<Vec<_>>();
    let refusal = broker.refused(|broker| complete(broker, &first, None, keys(&["a", "b", "c"])));
    assert_eq!(refusal, overloaded(Overload::DedupeKeys));
    complete(&mut broker, &first, None, keys(&["a", "b", "a"])).unwrap();
}

#[test]
fn backpressure_counts_outputs_of_same_complete() {
    let mut broker =
        TestBroker::with_limits(|limits| (limits.partition_messages_max, limits.partition_bytes_max) = (3, 40));
    broker.topic("t", 1);
    broker.topic("next", 2);
    broker.subscribe("t", "g", "w");
    broker.produce("t", "v");
    let first = broker.expect_delivery();
    let of = |partition, count: usize| vec![to_partition("next", partition, "", "v"); count];
    let too_many = broker.refused(|broker| complete(broker, &first, None, of(0, 4)));
    assert_overloaded(&Err::<(), _>(too_many), Overload::Backlog);
    let large = vec![to_partition("next", 0, "", &"x".repeat(21)); 2];
    let too_large = broker.refused(|broker| complete(broker, &first, None, large));
    assert_overloaded(&Err::<(), _>(too_large), Overload::Backlog);
    let both = [of(0, 3), of(1, 3)].concat();
    assert_eq!(complete(&mut broker, &first, None, both).unwrap().len(), 6);
    assert_eq!((broker.stored_messages("next", 0).len(), broker.stored_messages("next", 1).len()), (3, 3));
}

#[test]
fn outputs_with_delay_and_priority_are_delivered_in_order() {
    for restart in RESTARTS {
        for restarted in [false, true] {
            let mut broker = broker();
            broker.topic("one", 1);
            broker.group("one", "g");
            let first = delivered(&mut broker);
            let mut produce: Vec<_> = ["plain", "late", "urgent", "later", "most urgent", "plain too"]
                .iter()
                .map(|value| plain("one", value))
                .collect();
            produce[1].delay = Some(Millis(500));
            produce[2].envelope.priority = Priority::new(5);
            produce[3].delay = Some(Millis(700));
            produce[4].envelope.priority = Priority::new(9);
            let outputs = complete(&mut broker, &first, None, produce).unwrap();
            assert_eq!(outputs.iter().map(|output| output.offset.0).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
            if restarted {
                broker.restart(restart);
            }
            broker.subscribe("one", "g", "w");
            assert_eq!(broker.delivered_values(), ["most urgent", "urgent", "plain", "plain too"]);
            broker.advance(499);
            assert_eq!(broker.delivered_values(), [""; 0]);
            broker.advance(1);
            assert_eq!(broker.delivered_values(), ["late"]);
            broker.advance(200);
            assert_eq!(broker.delivered_values(), ["later"]);
        }
    }
}

#[test]
fn complete_may_produce_to_its_own_topic_and_partition() {
    for restart in RESTARTS {
        let mut broker = broker();
        broker.produce("t", "0");
        for round in 1..20 {
            let delivery = broker.expect_delivery();
            assert_eq!(value(&delivery), (round - 1).to_string());
            let mut next = plain("t", &round.to_string());
            next.envelope.priority = Priority::new(round % 3);
            next.delay = (round % 4 == 0).then_some(Millis(10));
            assert_eq!(complete(&mut broker, &delivery, None, vec![next]), Ok(vec![stored("t", 0, u64::from(round))]));
            if round % 7 == 0 {
                broker.restart_after(restart, 2_000);
                broker.subscribe("t", "g", "w");
            }
            broker.advance(10);
        }
        assert_eq!((broker.progress("t", "g").lag, broker.progress("t", "g").floor), (1, Some(Offset(18))));
        assert_eq!(broker.stored_values("t"), ["19"]);
    }
}

#[test]
fn complete_returns_credit_and_in_flight_room() {
    let mut broker = TestBroker::with_limits(|limits| limits.in_flight_max = 1);
    broker.topic("t", 1);
    broker.subscribe_with("t", "g", "w", |request| request.prefetch = 1);
    for round in 0..5 {
        broker.produce("t", &round.to_string());
    }
    for round in 0..5 {
        let delivery = broker.expect_delivery();
        assert_eq!(value(&delivery), round.to_string());
        complete(&mut broker, &delivery, None, vec![]).unwrap();
    }
    broker.advance(10_000);
    assert_eq!(broker.delivered_values(), [""; 0], "a completed message has no lease left to expire");
}

/// The deliveries of three completed messages of topic `t`.
fn three_completed(broker: &mut TestBroker) -> Vec<Delivery> {
    broker.topic("t", 1);
    broker.subscribe("t", "g", "w");
    let mut complete_one = |round: i32| {
        broker.produce("t", &round.to_string());
        let delivery = broker.expect_delivery();
        complete(broker, &delivery, None, vec![]).unwrap();
        delivery
    };
    (0..3).map(&mut complete_one).collect()
}

#[test]
fn completion_replies_over_limit_drop_oldest_first() {
    for restart in RESTARTS {
        let mut broker = TestBroker::with_limits(|limits| limits.completions_max = 3);
        let completed = three_completed(&mut broker);
        broker.produce("t", "next");
        let next = broker.expect_delivery();
        broker.refused(|broker| complete(broker, &next, None, vec![plain("nowhere", "a")]));
        complete(&mut broker, &completed[0], None, vec![]).expect("the oldest reply is returned again");
        complete(&mut broker, &next, None, vec![]).unwrap();
        broker.restart(restart);
        assert_eq!(broker.pipeline.state().completions().len(), 3);
        assert_eq!(broker.refused(|broker| complete(broker, &completed[0], None, vec![])), Refusal::StaleLease);
        complete(&mut broker, &completed[1], None, vec![]).unwrap();
    }
}

#[test]
fn completion_reply_lasts_its_window_after_older_one_is_dropped() {
    let mut broker = TestBroker::with_limits(|limits| limits.completions_max = 1);
    broker.topic("t", 1);
    broker.subscribe("t", "g", "w");
    let mut last = None;
    for value in ["a", "b"] {
        broker.advance(60_000);
        broker.produce("t", value);
        let delivery = broker.expect_delivery();
        complete(&mut broker, &delivery, None, vec![]).unwrap();
        last = Some(delivery);
    }
    let last = last.expect("two steps");
    broker.advance(COMPLETION_TTL - 1);
    complete(&mut broker, &last, None, vec![]).expect("the reply is returned again");
}

/// More replies than the limit are kept after a start with a lower limit, or while the log has no room to drop one.
#[test]
fn complete_repeated_drops_no_completion_reply() {
    let mut broker = TestBroker::with_limits(|limits| limits.completions_max = 3);
    let completed = three_completed(&mut broker);
    broker.config.limits.completions_max = 2;
    broker.restart(Restart::Crash);
    let before = broker.digest();
    for delivery in &completed {
        complete(&mut broker, delivery, None, vec![]).expect("the reply is returned again");
    }
    assert_eq!((broker.digest(), broker.pipeline.state().completions().len()), (before, 3));
    broker.subscribe("t", "g", "w");
    broker.produce("t", "next");
    let next = broker.expect_delivery();
    complete(&mut broker, &next, None, vec![]).unwrap();
    assert_eq!(
        broker.refused(|broker| complete(broker, &completed[0], None, vec![])),
        Refusal::StaleLease,
        "a new reply replaces the oldest"
    );
}

#[test]
fn complete_with_outputs_on_full_disk_is_refused_and_without_succeeds() {
    let config = PipelineConfig { segment_bytes: 16 << 10, reserve_bytes: 8 << 10, ..small_config() };
    let mut broker = TestBroker::with(config, NoFaults);
    broker.topic("t", 1);
    broker.subscribe_with("t", "g", "w", |request| request.lease = Some(Millis(1_000_000)));
    broker.try_produce(identified("t", "v", "k")).unwrap();
    let first = broker.expect_delivery();
    let used = broker.storage.list().unwrap().iter().map(|info| info.len).sum();
    broker.storage.set_budget(Some(used));
    while broker.try_produce(plain("t", &"x".repeat(200))).is_ok() {}
    broker.delivered();
    let refusal = broker.refused(|broker| complete(broker, &first, Some("1"), vec![plain("t", &"x".repeat(200))]));
    assert_eq!(refusal, Refusal::StorageFull);
    let begun = (0..100).find_map(|key: u32| broker.begin(&effect(&key.to_string())).err());
    assert_eq!(begun, Some(Refusal::StorageFull), "a begin needs growth space as well");
    assert_eq!(broker.recovered_digest(), broker.digest());
    complete(&mut broker, &first, Some(&"1".repeat(500)), vec![]).expect("a complete without outputs uses the reserve");
    assert_eq!(broker.recovered_digest(), broker.digest());
}

#[test]
fn results_on_full_disk_leave_half_of_reserve_to_acks() {
    let config = PipelineConfig { segment_bytes: 16 << 10, reserve_bytes: 8 << 10, ..small_config() };
    let mut broker = TestBroker::with(config, NoFaults);
    broker.topic("t", 1);
    broker.subscribe_with("t", "g", "w", |request| request.lease = Some(Millis(1_000_000)));
    let tokens: Vec<_> = (0..40).map(|key: u32| granted(broker.begin(&effect(&key.to_string())))).collect();
    let used = broker.storage.list().unwrap().iter().map(|info| info.len).sum();
    broker.storage.set_budget(Some(used));
    while broker.try_produce(plain("t", &"x".repeat(200))).is_ok() {}
    let held = broker.delivered();
    let result = format!("{:?}", "x".repeat(400));
    let finished = tokens
        .iter()
        .enumerate()
        .find_map(|(key, token)| broker.finish(&effect(&key.to_string()), *token, success(&result)).err());
    assert_eq!(finished, Some(Refusal::StorageFull));
    for delivery in held.iter().take(20) {
        broker.ack(claim("t", "g", "w", delivery)).expect("an ack uses the reserve");
    }
}

#[test]
fn complete_lost_in_crash_leaves_nothing_behind() {
    let mut broker = broker();
    let first = delivered(&mut broker);
    let mut untouched = broker.storage.crash();
    let ticket = broker.submit(driftq_core::Command::Complete(Box::new(driftq_core::command::Complete {
        claim: claim("t", "g", "w", &first),
        result: Some("1".into()),
        produce: vec![plain("next", "a")],
        failed: None,
    })));
    assert_eq!(broker.reply(ticket), None, "no reply before the sync");
    broker.crash();
    let (before, _) = driftq_core::pipeline::inspect(&mut untouched, None).unwrap();
    assert_eq!(broker.progress("t", "g").in_flight, 1);
    assert_eq!(broker.pipeline.state().topic_named(&topic("next")).unwrap().next_offset(), Offset(0));
    assert_eq!(before.topic_named(&topic("next")).unwrap().next_offset(), Offset(0));
    let again = Outcome { result: None, ..success("") };
    assert_eq!(complete(&mut broker, &first, None, vec![plain("next", "a")]), Ok(vec![stored("next", 0, 0)]));
    assert_eq!(broker.begin(&consume_effect("t", "g", "k")), Ok(replay(again)));
}

#[test]
fn faults_of_complete_are_detected() {
    fn message_is_acked<F: Faults>(faults: F) -> bool {
        let mut broker = with_consumer(faults);
        let first = delivered(&mut broker);
        complete(&mut broker, &first, None, vec![plain("next", "a")]).unwrap();
        broker.progress("t", "g").lag == 0
    }
    fn outputs_are_stored<F: Faults>(faults: F) -> bool {
        let mut broker = with_consumer(faults);
        let first = delivered(&mut broker);
        complete(&mut broker, &first, None, vec![plain("next", "a")]).unwrap();
        broker.stored_values("next") == ["a"]
    }
    assert!(message_is_acked(NoFaults) && outputs_are_stored(NoFaults));
    assert!(!message_is_acked(Planted(Fault::CompleteWithoutAck)));
    assert!(!outputs_are_stored(Planted(Fault::CompleteWithoutProduce)));
}
