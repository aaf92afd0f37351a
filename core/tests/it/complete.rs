//! One atomic step: a message done, its effect ended, the next messages stored; all of it, or nothing.

use super::rig::*;
use driftq_core::command::{Produce, SeekTo, TokenClaim};
use driftq_core::faults::{Fault, Faults, NoFaults, Planted};
use driftq_core::idempotency::{EffectStatus, Outcome};
use driftq_core::log::Storage;
use driftq_core::reply::{Delivery, Overload, StepOutput, StoreReply};
use driftq_core::types::*;
use driftq_core::{PipelineConfig, Refusal};

const DAY: u64 = 24 * 60 * 60 * 1_000;
const ANSWER_TTL: u64 = 10 * 60 * 1_000;

/// A broker with topics `t` and `next` and a worker of `t`.
fn with_worker<F: Faults>(faults: F) -> Rig<F> {
    let mut rig = Rig::with(small_config(), faults);
    rig.topic("t", 1);
    rig.topic("next", 3);
    rig.subscribe("t", "g", "w");
    rig
}

fn rig() -> Rig {
    with_worker(NoFaults)
}

/// A message of the identity `k`, delivered.
fn delivered<F: Faults>(rig: &mut Rig<F>) -> Delivery {
    rig.try_produce(identified("t", "v", "k")).unwrap();
    rig.one()
}

fn step<F: Faults>(
    rig: &mut Rig<F>,
    delivery: &Delivery,
    result: Option<&str>,
    produce: Vec<Produce>,
) -> Result<Vec<StepOutput>, Refusal> {
    rig.complete(claim("t", "g", "w", delivery), result, produce)
}

fn plain(to: &str, value: &str) -> Produce {
    Produce::new(topic(to), "", value)
}

fn stored(of: &str, partition: u32, offset: u64) -> StepOutput {
    StepOutput { topic: topic(of), partition: PartitionId(partition), offset: Offset(offset), duplicate: false }
}

#[test]
fn a_step_finishes_its_message_ends_its_effect_and_stores_its_messages() {
    for way in RESTARTS {
        let mut rig = rig();
        let first = delivered(&mut rig);
        let token = granted(rig.begin_for(&work("t", "g", "k"), &first));
        let produce = vec![to_partition("next", 2, "", "a"), to_partition("next", 1, "", "b")];
        let outputs = step(&mut rig, &first, Some("{\"ok\":true}"), produce).unwrap();
        assert_eq!(outputs, [stored("next", 2, 0), stored("next", 1, 1)]);
        rig.restart(way);
        assert_eq!((rig.progress("t", "g").lag, rig.kept("t")), (0, vec![]));
        assert_eq!((rig.kept_in("next", 2).len(), rig.kept_in("next", 1).len()), (1, 1));
        let known = rig.effect(&work("t", "g", "k")).unwrap();
        assert_eq!((known.status, known.committed, known.finished), (EffectStatus::Succeeded, true, true));
        assert_eq!((known.token, known.result.as_deref()), (Some(token), Some("{\"ok\":true}")));
        assert_eq!(known.expires_at, START.after(Millis(DAY)));
        rig.subscribe("next", "g", "w");
        let mut values = rig.values();
        values.sort();
        assert_eq!(values, ["a", "b"]);
    }
}

#[test]
fn a_step_counts_as_an_ack_and_as_produces() {
    let mut rig = rig();
    let first = delivered(&mut rig);
    step(&mut rig, &first, None, vec![plain("next", "a"), plain("next", "b")]).unwrap();
    let counters = rig.pipeline.broker().counters();
    assert_eq!((counters.completed, counters.acked, counters.produced), (1, 1, 3));
}

#[test]
fn a_step_makes_the_effect_where_nobody_began_it_and_keeps_the_first_result_where_somebody_ended_it() {
    for way in RESTARTS {
        for (begun, ended, expected) in [
            (false, None, success("\"new\"")),
            (true, None, success("\"new\"")),
            (true, Some(success("\"first\"")), success("\"first\"")),
            (true, Some(outcome(EffectStatus::FailedRetryable, Some("\"half\""), "busy")), success("\"new\"")),
        ] {
            let mut rig = rig();
            let identity = work("t", "g", "k");
            let first = delivered(&mut rig);
            if begun {
                let token = granted(rig.begin_for(&identity, &first));
                ended.into_iter().for_each(|end| rig.finish(&identity, token, end).unwrap());
            }
            rig.pass(100);
            step(&mut rig, &first, Some("\"new\""), vec![]).unwrap();
            rig.restart(way);
            assert_eq!(rig.begin(&identity), Ok(StoreReply::Replay(expected.clone())));
            let known = rig.effect(&identity).unwrap();
            assert!(known.committed && known.finished, "{expected:?}");
        }
    }
}

#[test]
fn a_result_for_an_effect_that_has_failed_for_good_is_refused_and_the_step_without_one_is_not() {
    let mut rig = rig();
    let first = delivered(&mut rig);
    let token = granted(rig.begin_for(&work("t", "g", "k"), &first));
    rig.finish(&work("t", "g", "k"), token, final_failure("no")).unwrap();
    let refusal = rig.refused(|rig| step(rig, &first, Some("1"), vec![plain("next", "a")]));
    assert_eq!(refusal, Refusal::OtherOutcome);
    step(&mut rig, &first, None, vec![plain("next", "a")]).unwrap();
    let known = rig.effect(&work("t", "g", "k")).unwrap();
    assert_eq!((known.outcome(), known.committed), (final_failure("no"), true));
}

#[test]
fn a_finish_after_a_step_can_only_repeat_it() {
    let mut rig = rig();
    let first = delivered(&mut rig);
    let token = granted(rig.begin_for(&work("t", "g", "k"), &first));
    step(&mut rig, &first, Some("1"), vec![]).unwrap();
    rig.finish(&work("t", "g", "k"), token, success("1")).unwrap();
    assert_eq!(rig.refused(|rig| rig.finish(&work("t", "g", "k"), token, success("2"))), Refusal::OtherOutcome);
}

#[test]
fn a_message_without_a_key_is_completed_without_an_effect() {
    let mut rig = rig();
    rig.produce("t", "plain");
    let first = rig.one();
    step(&mut rig, &first, Some("1"), vec![plain("next", "a")]).unwrap();
    assert_eq!((rig.effects_of("default"), rig.progress("t", "g").lag), (0, 0));
}

#[test]
fn a_later_message_of_a_completed_identity_is_skipped() {
    let mut rig = Rig::with_limits(|limits| limits.dedupe_ttl = Millis(0));
    rig.topic("t", 1);
    rig.subscribe("t", "g", "w");
    let first = delivered(&mut rig);
    step(&mut rig, &first, None, vec![]).unwrap();
    rig.pass(1);
    rig.try_produce(identified("t", "again", "k")).unwrap();
    assert_eq!((rig.values(), rig.pipeline.broker().counters().skipped), (vec![], 1));
}

#[test]
fn the_token_is_what_a_step_is_fenced_by() {
    let mut rig = rig();
    let first = delivered(&mut rig);
    rig.release(claim("t", "g", "w", &first)).unwrap();
    let second = rig.one();
    let refused = |rig: &mut Rig, token| {
        rig.refused(|rig| {
            let claim = driftq_core::command::Claim { token, ..claim("t", "g", "w", &second) };
            rig.complete(claim, None, vec![plain("next", "a")])
        })
    };
    for token in [TokenClaim::Absent, TokenClaim::Unreadable, TokenClaim::Shown(first.token)] {
        assert_eq!(refused(&mut rig, token), Refusal::StaleLease, "{token:?}");
    }
    let foreign = driftq_core::command::Claim { owner: owner("other"), ..claim("t", "g", "w", &second) };
    assert_eq!(rig.refused(|rig| rig.complete(foreign, None, vec![])), Refusal::NotOwner);
    step(&mut rig, &second, None, vec![]).unwrap();
}

#[test]
fn an_ended_lease_without_another_delivery_may_still_complete() {
    let mut rig = rig();
    let first = delivered(&mut rig);
    rig.pause("t", "g");
    rig.pass(2_000);
    step(&mut rig, &first, Some("1"), vec![plain("next", "a")]).unwrap();
    rig.resume("t", "g");
    assert_eq!((rig.values(), rig.progress("t", "g").lag), (vec![], 0));
}

#[test]
fn the_winning_token_is_told_the_same_again_for_its_window_and_no_other_token_is() {
    for way in RESTARTS {
        let mut rig = rig();
        let first = delivered(&mut rig);
        rig.nack(claim("t", "g", "w", &first), "no").unwrap();
        let second = rig.one();
        let answer = step(&mut rig, &second, Some("1"), vec![plain("next", "a")]).unwrap();
        rig.restart_after(way, ANSWER_TTL - 1);
        let digest = rig.digest();
        assert_eq!(step(&mut rig, &second, Some("other"), vec![plain("next", "other")]), Ok(answer));
        assert_eq!(rig.digest(), digest, "whatever it asks for now");
        assert_eq!(rig.refused(|rig| step(rig, &first, None, vec![])), Refusal::StaleLease);
        rig.pass(1);
        assert_eq!(rig.refused(|rig| step(rig, &second, None, vec![])), Refusal::StaleLease);
        rig.pass(1_000);
        assert!(rig.pipeline.state().completions().is_empty());
    }
}

#[test]
fn a_repeated_step_is_told_the_same_even_after_a_seek() {
    let mut rig = Rig::new();
    rig.topic_retaining("t", Some(DAY), None);
    rig.subscribe("t", "g", "w");
    let first = delivered(&mut rig);
    let answer = step(&mut rig, &first, None, vec![]);
    rig.seek("t", "g", SeekTo::Earliest).unwrap();
    assert_eq!(step(&mut rig, &first, None, vec![]), answer);
    let again = rig.one();
    step(&mut rig, &again, None, vec![]).unwrap();
    assert_eq!(rig.progress("t", "g").lag, 0);
}

#[test]
fn the_winning_token_wins_nothing_else() {
    let mut rig = rig();
    let first = delivered(&mut rig);
    rig.produce("t", "other");
    let other = rig.one();
    step(&mut rig, &first, None, vec![]).unwrap();
    let elsewhere = Delivery { token: first.token, ..other };
    assert_eq!(rig.refused(|rig| step(rig, &elsewhere, None, vec![])), Refusal::StaleLease);
}

#[test]
fn an_ack_wins_over_a_step_that_comes_later() {
    let mut rig = rig();
    let first = delivered(&mut rig);
    rig.ack(claim("t", "g", "w", &first)).unwrap();
    assert_eq!(rig.refused(|rig| step(rig, &first, None, vec![plain("next", "a")])), Refusal::StaleLease);
}

#[test]
fn a_refused_message_refuses_the_whole_step_and_leaves_the_lease_standing() {
    for way in RESTARTS {
        let mut rig = rig();
        let first = delivered(&mut rig);
        granted(rig.begin_for(&work("t", "g", "k"), &first));
        let unknown = vec![plain("next", "a"), identified("next", "b", "x"), plain("nowhere", "c")];
        let refusal = rig.refused(|rig| step(rig, &first, Some("1"), unknown));
        assert_eq!(refusal, Refusal::UnknownTopic(topic("nowhere")));
        let empty = vec![plain("next", "a"), plain("next", "")];
        assert!(matches!(rig.refused(|rig| step(rig, &first, None, empty)), Refusal::Invalid(_)));
        let far = vec![to_partition("next", 9, "", "a")];
        assert!(matches!(rig.refused(|rig| step(rig, &first, None, far)), Refusal::PartitionOutOfRange { .. }));
        let large = Refusal::TooLarge { what: "result", len: (64 << 10) + 1, max: 64 << 10 };
        assert_eq!(rig.refused(|rig| step(rig, &first, Some(&"1".repeat((64 << 10) + 1)), vec![])), large);
        rig.restart(way);
        assert_eq!(rig.progress("t", "g").in_flight, 1);
        assert_eq!(rig.status(&work("t", "g", "k")), Some(EffectStatus::InProgress));
        assert_eq!(
            step(&mut rig, &first, Some("1"), vec![identified("next", "b", "x")]),
            Ok(vec![stored("next", 0, 0)])
        );
    }
}

#[test]
fn a_step_of_too_many_messages_is_refused_by_number() {
    let mut rig = Rig::with_limits(|limits| limits.outputs_max = 2);
    rig.topic("t", 1);
    rig.subscribe("t", "g", "w");
    let first = delivered(&mut rig);
    let many = |count: u64| (0..count).map(|number| plain("t", &number.to_string())).collect::<Vec<_>>();
    let refusal = rig.refused(|rig| step(rig, &first, None, many(3)));
    assert_eq!(refusal, Refusal::TooMany { what: "messages", len: 3, max: 2 });
    step(&mut rig, &first, None, many(2)).unwrap();
}

#[test]
fn an_identity_is_accepted_once_in_one_step_as_over_several() {
    for way in RESTARTS {
        let mut rig = rig();
        let first = delivered(&mut rig);
        let before = rig.try_produce(identified("next", "before", "known")).unwrap();
        let produce = vec![
            identified("next", "a", "x"),
            identified("next", "a again", "x"),
            identified("next", "known", "known"),
            identified("t", "another topic's", "x"),
        ];
        let outputs = step(&mut rig, &first, None, produce).unwrap();
        let duplicate = |of, offset| StepOutput { duplicate: true, ..stored(of, 0, offset) };
        assert_eq!(
            outputs,
            [stored("next", 0, 1), duplicate("next", 1), duplicate("next", before.offset.0), stored("t", 0, 1)]
        );
        rig.restart(way);
        assert_eq!(step(&mut rig, &first, None, vec![]), Ok(outputs), "and told so again");
        assert_eq!(rig.kept("next"), ["before", "a"]);
        assert!(rig.try_produce(identified("next", "later", "x")).unwrap().duplicate);
        rig.pass(10 * 60 * 1_000 + 1_000);
        assert_eq!(rig.pipeline.state().identities(&topic("next")).map(driftq_core::state::Identities::len), None);
    }
}

#[test]
fn identities_of_one_step_count_against_the_limit_of_their_topic() {
    let mut rig = Rig::with_limits(|limits| limits.dedupe_keys_max = 2);
    rig.topic("t", 1);
    rig.topic("next", 1);
    rig.subscribe("t", "g", "w");
    rig.produce("t", "v");
    let first = rig.one();
    let keys = |keys: &[&str]| keys.iter().map(|key| identified("next", "v", key)).collect::<Vec<_>>();
    let refusal = rig.refused(|rig| step(rig, &first, None, keys(&["a", "b", "c"])));
    assert_eq!(refusal, overloaded(Overload::Identities));
    step(&mut rig, &first, None, keys(&["a", "b", "a"])).unwrap();
}

#[test]
fn backpressure_counts_the_messages_of_the_same_step() {
    let mut rig = Rig::with_limits(|limits| (limits.partition_messages_max, limits.partition_bytes_max) = (3, 40));
    rig.topic("t", 1);
    rig.topic("next", 2);
    rig.subscribe("t", "g", "w");
    rig.produce("t", "v");
    let first = rig.one();
    let of = |partition, count: usize| vec![to_partition("next", partition, "", "v"); count];
    let full = overloaded(Overload::Backlog);
    assert_eq!(rig.refused(|rig| step(rig, &first, None, of(0, 4))), full);
    let large = vec![to_partition("next", 0, "", &"x".repeat(21)); 2];
    assert_eq!(rig.refused(|rig| step(rig, &first, None, large)), full);
    let both = [of(0, 3), of(1, 3)].concat();
    assert_eq!(step(&mut rig, &first, None, both).unwrap().len(), 6);
    assert_eq!((rig.kept_in("next", 0).len(), rig.kept_in("next", 1).len()), (3, 3));
}

#[test]
fn delayed_and_urgent_messages_of_one_step_come_in_their_order() {
    for way in RESTARTS {
        for restarted in [false, true] {
            let mut rig = rig();
            rig.topic("one", 1);
            rig.group("one", "g");
            let first = delivered(&mut rig);
            let mut produce: Vec<_> = ["plain", "late", "urgent", "later", "most urgent", "plain too"]
                .iter()
                .map(|value| plain("one", value))
                .collect();
            produce[1].delay = Some(Millis(500));
            produce[2].envelope.priority = Priority::new(5);
            produce[3].delay = Some(Millis(700));
            produce[4].envelope.priority = Priority::new(9);
            let outputs = step(&mut rig, &first, None, produce).unwrap();
            assert_eq!(outputs.iter().map(|output| output.offset.0).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
            if restarted {
                rig.restart(way);
            }
            rig.subscribe("one", "g", "w");
            assert_eq!(rig.values(), ["most urgent", "urgent", "plain", "plain too"]);
            rig.pass(499);
            assert_eq!(rig.values(), [""; 0]);
            rig.pass(1);
            assert_eq!(rig.values(), ["late"]);
            rig.pass(200);
            assert_eq!(rig.values(), ["later"]);
        }
    }
}

#[test]
fn a_step_may_produce_into_its_own_topic_and_partition() {
    for way in RESTARTS {
        let mut rig = rig();
        rig.produce("t", "0");
        for round in 1..20 {
            let delivery = rig.one();
            assert_eq!(value(&delivery), (round - 1).to_string());
            let mut next = plain("t", &round.to_string());
            next.envelope.priority = Priority::new(round % 3);
            next.delay = (round % 4 == 0).then_some(Millis(10));
            assert_eq!(step(&mut rig, &delivery, None, vec![next]), Ok(vec![stored("t", 0, u64::from(round))]));
            if round % 7 == 0 {
                rig.restart_after(way, 2_000);
                rig.subscribe("t", "g", "w");
            }
            rig.pass(10);
        }
        assert_eq!((rig.progress("t", "g").lag, rig.progress("t", "g").floor), (1, Some(Offset(18))));
        assert_eq!(rig.kept("t"), ["19"]);
    }
}

#[test]
fn credit_and_room_in_flight_return_with_a_step() {
    let mut rig = Rig::with_limits(|limits| limits.in_flight_max = 1);
    rig.topic("t", 1);
    rig.subscribe_with("t", "g", "w", |asked| asked.prefetch = 1);
    for round in 0..5 {
        rig.produce("t", &round.to_string());
    }
    for round in 0..5 {
        let delivery = rig.one();
        assert_eq!(value(&delivery), round.to_string());
        step(&mut rig, &delivery, None, vec![]).unwrap();
    }
    rig.pass(10_000);
    assert_eq!(rig.values(), [""; 0], "no lease of a finished message is left to end");
}

/// Three completed steps of topic `t`, by what was delivered.
fn three_steps(rig: &mut Rig) -> Vec<Delivery> {
    rig.topic("t", 1);
    rig.subscribe("t", "g", "w");
    let mut complete = |round: i32| {
        rig.produce("t", &round.to_string());
        let delivery = rig.one();
        step(rig, &delivery, None, vec![]).unwrap();
        delivery
    };
    (0..3).map(&mut complete).collect()
}

#[test]
fn beyond_their_number_the_oldest_answers_go_first_and_no_refusal_takes_one_away() {
    for way in RESTARTS {
        let mut rig = Rig::with_limits(|limits| limits.completions_max = 3);
        let done = three_steps(&mut rig);
        rig.produce("t", "next");
        let next = rig.one();
        rig.refused(|rig| step(rig, &next, None, vec![plain("nowhere", "a")]));
        step(&mut rig, &done[0], None, vec![]).expect("the oldest is told again");
        step(&mut rig, &next, None, vec![]).unwrap();
        rig.restart(way);
        assert_eq!(rig.pipeline.state().completions().len(), 3);
        assert_eq!(rig.refused(|rig| step(rig, &done[0], None, vec![])), Refusal::StaleLease);
        step(&mut rig, &done[1], None, vec![]).unwrap();
    }
}

#[test]
fn an_answer_stays_for_its_window_though_an_older_one_went_before_its_own_ended() {
    let mut rig = Rig::with_limits(|limits| limits.completions_max = 1);
    rig.topic("t", 1);
    rig.subscribe("t", "g", "w");
    let mut last = None;
    for value in ["a", "b"] {
        rig.pass(60_000);
        rig.produce("t", value);
        let delivery = rig.one();
        step(&mut rig, &delivery, None, vec![]).unwrap();
        last = Some(delivery);
    }
    let last = last.expect("two steps");
    rig.pass(ANSWER_TTL - 1);
    step(&mut rig, &last, None, vec![]).expect("it is told again");
}

/// More answers than may be are kept after a start with a lower limit, or where the log had no room to let one go.
#[test]
fn a_step_that_only_asks_for_its_answer_again_lets_none_go() {
    let mut rig = Rig::with_limits(|limits| limits.completions_max = 3);
    let done = three_steps(&mut rig);
    rig.config.limits.completions_max = 2;
    rig.restart(Restart::Crash);
    let before = rig.digest();
    for delivery in &done {
        step(&mut rig, delivery, None, vec![]).expect("it is told again");
    }
    assert_eq!((rig.digest(), rig.pipeline.state().completions().len()), (before, 3));
    rig.subscribe("t", "g", "w");
    rig.produce("t", "next");
    let next = rig.one();
    step(&mut rig, &next, None, vec![]).unwrap();
    assert_eq!(rig.refused(|rig| step(rig, &done[0], None, vec![])), Refusal::StaleLease, "a new one takes its place");
}

#[test]
fn a_full_disk_refuses_a_step_that_stores_and_takes_one_that_does_not() {
    let config = PipelineConfig { segment_bytes: 16 << 10, reserve_bytes: 8 << 10, ..small_config() };
    let mut rig = Rig::with(config, NoFaults);
    rig.topic("t", 1);
    rig.subscribe_with("t", "g", "w", |asked| asked.lease = Some(Millis(1_000_000)));
    rig.try_produce(identified("t", "v", "k")).unwrap();
    let first = rig.one();
    let used = rig.storage.list().unwrap().iter().map(|info| info.len).sum();
    rig.storage.set_budget(Some(used));
    while rig.try_produce(plain("t", &"x".repeat(200))).is_ok() {}
    rig.delivered();
    let refusal = rig.refused(|rig| step(rig, &first, Some("1"), vec![plain("t", &"x".repeat(200))]));
    assert_eq!(refusal, Refusal::StorageFull);
    let begun = (0..100).find_map(|key: u32| rig.begin(&effect(&key.to_string())).err());
    assert_eq!(begun, Some(Refusal::StorageFull), "an effect is no smaller a thing to store");
    assert_eq!(rig.recovered_digest(), rig.digest());
    step(&mut rig, &first, Some(&"1".repeat(500)), vec![]).expect("what drains goes on");
    assert_eq!(rig.recovered_digest(), rig.digest());
}

#[test]
fn results_leave_half_of_the_reserve_of_a_full_disk_to_acks() {
    let config = PipelineConfig { segment_bytes: 16 << 10, reserve_bytes: 8 << 10, ..small_config() };
    let mut rig = Rig::with(config, NoFaults);
    rig.topic("t", 1);
    rig.subscribe_with("t", "g", "w", |asked| asked.lease = Some(Millis(1_000_000)));
    let tokens: Vec<_> = (0..40).map(|key: u32| granted(rig.begin(&effect(&key.to_string())))).collect();
    let used = rig.storage.list().unwrap().iter().map(|info| info.len).sum();
    rig.storage.set_budget(Some(used));
    while rig.try_produce(plain("t", &"x".repeat(200))).is_ok() {}
    let held = rig.delivered();
    let result = format!("{:?}", "x".repeat(400));
    let finished = tokens
        .iter()
        .enumerate()
        .find_map(|(key, token)| rig.finish(&effect(&key.to_string()), *token, success(&result)).err());
    assert_eq!(finished, Some(Refusal::StorageFull));
    for delivery in held.iter().take(20) {
        rig.ack(claim("t", "g", "w", delivery)).expect("an ack has room");
    }
}

#[test]
fn a_step_that_failed_to_be_written_is_done_wholly_or_not_at_all() {
    let mut rig = rig();
    let first = delivered(&mut rig);
    let mut untouched = rig.storage.crash();
    let ticket = rig.submit(driftq_core::Command::Complete(Box::new(driftq_core::command::Complete {
        claim: claim("t", "g", "w", &first),
        result: Some("1".into()),
        produce: vec![plain("next", "a")],
    })));
    assert_eq!(rig.reply(ticket), None, "nothing is told before it is durable");
    rig.crash();
    let (before, _) = driftq_core::pipeline::inspect(&mut untouched, None, &NoFaults).unwrap();
    assert_eq!(rig.progress("t", "g").in_flight, 1);
    assert_eq!(rig.pipeline.state().topic_named(&topic("next")).unwrap().next_offset(), Offset(0));
    assert_eq!(before.topic_named(&topic("next")).unwrap().next_offset(), Offset(0));
    let again = Outcome { result: None, ..success("") };
    assert_eq!(step(&mut rig, &first, None, vec![plain("next", "a")]), Ok(vec![stored("next", 0, 0)]));
    assert_eq!(rig.begin(&work("t", "g", "k")), Ok(StoreReply::Replay(again)));
}

#[test]
fn each_planted_fault_of_steps_breaks_a_promise_of_this_file() {
    fn its_message_is_done<F: Faults>(faults: F) -> bool {
        let mut rig = with_worker(faults);
        let first = delivered(&mut rig);
        step(&mut rig, &first, None, vec![plain("next", "a")]).unwrap();
        rig.progress("t", "g").lag == 0
    }
    fn its_messages_are_stored<F: Faults>(faults: F) -> bool {
        let mut rig = with_worker(faults);
        let first = delivered(&mut rig);
        step(&mut rig, &first, None, vec![plain("next", "a")]).unwrap();
        rig.kept("next") == ["a"]
    }
    assert!(its_message_is_done(NoFaults) && its_messages_are_stored(NoFaults));
    assert!(!its_message_is_done(Planted(Fault::CompleteWithoutAck)));
    assert!(!its_messages_are_stored(Planted(Fault::CompleteWithoutProduce)));
}
