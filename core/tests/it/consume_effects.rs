//! Effects of a group's work on messages: bound to deliveries, committed by acks, and the reason to skip what is done already.

use super::rig::*;
use driftq_core::command::{DeliveryClaim, RedriveSelection, SeekTo, TokenClaim};
use driftq_core::faults::{Fault, Faults, NoFaults, Planted};
use driftq_core::idempotency::{EffectStatus, Identity, Lifetime, Scope};
use driftq_core::reply::{Delivery, Overload, StoreReply};
use driftq_core::types::*;
use driftq_core::{Command, Refusal};

const DAY: u64 = 24 * 60 * 60 * 1_000;
const ACK_TTL: u64 = 10 * 60 * 1_000;

/// A broker with a topic `t` and a worker `w` of group `g`.
fn rig() -> Rig {
    with_worker(NoFaults)
}

fn with_worker<F: Faults>(faults: F) -> Rig<F> {
    let mut config = small_config();
    // Messages of one identity follow each other sooner than they would.
    config.limits.dedupe_ttl = Millis(0);
    let mut rig = Rig::with(config, faults);
    rig.topic("t", 1);
    work_on(&mut rig);
    rig
}

fn work_on<F: Faults>(rig: &mut Rig<F>) {
    rig.subscribe("t", "g", "w");
}

/// A message of the identity `k`, delivered.
fn delivered<F: Faults>(rig: &mut Rig<F>, value: &str) -> Delivery {
    rig.try_produce(identified("t", value, "k")).unwrap();
    rig.one()
}

fn k() -> Identity {
    work("t", "g", "k")
}

fn ack<F: Faults>(rig: &mut Rig<F>, delivery: &Delivery) {
    rig.ack(claim("t", "g", "w", delivery)).unwrap();
}

fn nack(rig: &mut Rig, delivery: &Delivery) {
    rig.nack(claim("t", "g", "w", delivery), "no").unwrap();
}

#[test]
fn the_same_delivery_asking_twice_is_in_progress() {
    let mut rig = rig();
    let first = delivered(&mut rig, "v");
    granted(rig.begin_for(&k(), &first));
    assert!(matches!(rig.refused(|rig| rig.begin_for(&k(), &first)), Refusal::InProgress { .. }));
    assert!(matches!(rig.refused(|rig| rig.begin(&k())), Refusal::InProgress { .. }));
}

#[test]
fn a_newer_delivery_takes_over_at_once_and_fences_the_older_grant() {
    for way in RESTARTS {
        let mut rig = rig();
        let first = delivered(&mut rig, "v");
        let old = granted(rig.begin_with(&k(), |asked| {
            let token = TokenClaim::Shown(first.token);
            asked.delivery = Some(DeliveryClaim { partition: first.partition, offset: first.offset, token });
            asked.lease = Some(Millis(DAY));
        }));
        nack(&mut rig, &first);
        let second = rig.one();
        let new = granted(rig.begin_for(&k(), &second));
        assert_eq!(rig.effect(&k()).unwrap().attempt, 2);
        assert_eq!(rig.refused(|rig| rig.finish(&k(), old, success("1"))), Refusal::StaleLease);
        assert_eq!(rig.refused(|rig| rig.begin_for(&k(), &first)), Refusal::StaleLease);
        rig.restart_after(way, 2_000);
        work_on(&mut rig);
        let third = rig.one();
        let newest = granted(rig.begin_for(&k(), &third));
        assert!(newest > new, "after a restart as well");
    }
}

#[test]
fn a_delivery_that_is_not_the_newest_or_is_none_is_stale() {
    let mut rig = rig();
    let first = delivered(&mut rig, "v");
    let claim_of = |token| DeliveryClaim { partition: first.partition, offset: first.offset, token };
    for token in [TokenClaim::Absent, TokenClaim::Unreadable] {
        let refusal = rig.refused(|rig| rig.begin_with(&k(), |asked| asked.delivery = Some(claim_of(token))));
        assert_eq!(refusal, Refusal::StaleLease);
    }
    nack(&mut rig, &first);
    let second = rig.one();
    assert_eq!(rig.refused(|rig| rig.begin_for(&k(), &first)), Refusal::StaleLease);
    ack(&mut rig, &second);
    rig.forget(&k()).unwrap();
    assert_eq!(rig.refused(|rig| rig.begin_for(&k(), &second)), Refusal::StaleLease, "its message is done");
}

#[test]
fn a_lease_that_has_ended_without_another_delivery_is_still_the_newest() {
    let mut rig = rig();
    let first = delivered(&mut rig, "v");
    rig.pause("t", "g");
    rig.pass(2_000);
    granted(rig.begin_for(&k(), &first));
}

#[test]
fn a_delivery_of_what_is_not_there_is_refused_by_name() {
    let mut rig = rig();
    let first = delivered(&mut rig, "v");
    assert_eq!(rig.refused(|rig| rig.begin_for(&work("u", "g", "k"), &first)), Refusal::UnknownTopic(topic("u")));
    assert_eq!(rig.refused(|rig| rig.begin_for(&work("t", "h", "k"), &first)), Refusal::UnknownGroup(group("h")));
    let far = Delivery { partition: PartitionId(9), ..first.clone() };
    assert!(matches!(rig.refused(|rig| rig.begin_for(&k(), &far)), Refusal::PartitionOutOfRange { .. }));
    let never = Delivery { offset: Offset(9), ..first };
    assert_eq!(rig.refused(|rig| rig.begin_for(&k(), &never)), Refusal::StaleLease);
}

#[test]
fn a_delivered_message_of_another_tenant_is_refused() {
    let mut rig = rig();
    let mut asked = identified("t", "v", "k");
    asked.envelope.tenant_id = Some("acme".into());
    rig.try_produce(asked).unwrap();
    let first = rig.one();
    let refusal = rig.refused(|rig| rig.begin_for(&k(), &first));
    assert_eq!(refusal, Refusal::Invalid("the delivered message is of another tenant"));
    granted(rig.begin_for(&Identity::new("acme", k().scope, "k"), &first));
}

#[test]
fn a_stale_delivery_is_still_told_what_came_of_the_effect() {
    let mut rig = rig();
    let first = delivered(&mut rig, "v");
    let token = granted(rig.begin_for(&k(), &first));
    rig.finish(&k(), token, success("1")).unwrap();
    nack(&mut rig, &first);
    assert_eq!(rig.begin_for(&k(), &first), Ok(StoreReply::Replay(success("1"))));
}

/// What is done with a delivery so that its message can come again.
type Return = fn(&mut Rig, &Delivery);

#[test]
fn an_effect_is_not_forgotten_while_its_message_can_come_again() {
    let returns: [(bool, Return); 4] = [
        (true, |_, _| {}),
        (false, |rig, delivery| nack(rig, delivery)),
        (false, |rig, delivery| rig.release(claim("t", "g", "w", delivery)).unwrap()),
        (false, |rig, _| rig.pass(2_000)),
    ];
    for way in RESTARTS {
        for (by_delivery, back) in returns {
            let mut rig = rig();
            let first = delivered(&mut rig, "v");
            let token = granted(if by_delivery { rig.begin_for(&k(), &first) } else { rig.begin(&k()) });
            rig.finish(&k(), token, success("1")).unwrap();
            rig.pause("t", "g");
            back(&mut rig, &first);
            rig.restart_after(way, 3 * DAY);
            assert_eq!(rig.begin(&k()), Ok(StoreReply::Replay(success("1"))), "long after its window");
            rig.resume("t", "g");
            work_on(&mut rig);
            let again = rig.one();
            assert_eq!(rig.begin_for(&k(), &again), Ok(StoreReply::Replay(success("1"))));
            ack(&mut rig, &again);
            rig.pass(ACK_TTL - 1);
            assert_eq!(rig.status(&k()), Some(EffectStatus::Succeeded), "an ack is remembered as long as any");
            rig.pass(1);
            assert_eq!((rig.status(&k()), rig.effects_of("default")), (None, 0));
        }
    }
}

#[test]
fn an_effect_whose_message_is_done_goes_with_its_window() {
    for way in RESTARTS {
        let mut rig = rig();
        let first = delivered(&mut rig, "v");
        let token = granted(rig.begin_for(&k(), &first));
        rig.finish(&k(), token, success("1")).unwrap();
        rig.pass(1_000);
        ack(&mut rig, &first);
        rig.restart_after(way, DAY - 1_001);
        assert_eq!(rig.status(&k()), Some(EffectStatus::Succeeded));
        rig.pass(1);
        assert_eq!((rig.status(&k()), rig.effects_of("default")), (None, 0));
        assert_eq!(rig.next_moment(), None);
    }
}

/// Two messages of an identity may be about at once. The effect stays for the one it was pinned by first.
#[test]
fn another_message_of_the_identity_does_not_take_the_pin_away() {
    for way in RESTARTS {
        let mut rig = rig();
        rig.try_produce(identified("t", "first", "k")).unwrap();
        let first = rig.one();
        let token = granted(rig.begin_for(&k(), &first));
        rig.finish(&k(), token, success("1")).unwrap();
        rig.nack_with_delay(claim("t", "g", "w", &first), 4 * DAY).unwrap();
        rig.pass(1);
        let mut dying = identified("t", "second", "k");
        dying.envelope.retry_policy = Some(policy(2, 0, 0));
        rig.try_produce(dying).unwrap();
        let second = rig.one();
        nack(&mut rig, &second);
        let second = rig.one();
        rig.pause("t", "g");
        nack(&mut rig, &second);
        assert_eq!(rig.dead_letters("t").len(), 1, "the second is gone");
        rig.restart_after(way, 3 * DAY);
        assert_eq!(rig.begin(&k()), Ok(StoreReply::Replay(success("1"))), "and the first can still come");
    }
}

#[test]
fn a_pinned_effect_that_nothing_keeps_any_more_gives_its_place_back_at_once() {
    let mut rig = rig();
    let mut asked = identified("t", "v", "k");
    asked.envelope.retry_policy = Some(policy(1, 0, 0));
    rig.try_produce(asked).unwrap();
    let first = rig.one();
    let token = granted(rig.begin_with(&k(), |asked| {
        let token = TokenClaim::Shown(first.token);
        asked.delivery = Some(DeliveryClaim { partition: first.partition, offset: first.offset, token });
        asked.lifetime = Some(Lifetime::Window(Millis(10)));
    }));
    rig.finish(&k(), token, success("1")).unwrap();
    rig.pass(1_000);
    assert_eq!(rig.effects_of("default"), 1, "its window is over, its message is not done");
    nack(&mut rig, &first);
    assert_eq!(rig.dead_letters("t").len(), 1);
    rig.pass(1);
    assert_eq!(rig.effects_of("default"), 0);
}

#[test]
fn an_ack_commits_an_effect_that_nobody_began() {
    for way in RESTARTS {
        let mut rig = rig();
        let first = delivered(&mut rig, "v");
        ack(&mut rig, &first);
        rig.restart(way);
        let known = rig.effect(&k()).unwrap();
        assert_eq!((known.status, known.committed, known.finished), (EffectStatus::Succeeded, true, false));
        assert_eq!((known.attempt, known.token, known.owner), (0, None, None));
        let replay = driftq_core::idempotency::Outcome { result: None, ..success("") };
        assert_eq!(rig.begin(&k()), Ok(StoreReply::Replay(replay)));
        rig.pass(ACK_TTL - 1);
        assert_eq!(rig.status(&k()), Some(EffectStatus::Succeeded));
        rig.pass(1);
        assert_eq!((rig.status(&k()), rig.next_moment()), (None, None));
    }
}

#[test]
fn a_finish_after_the_ack_with_the_same_token_still_stores_its_result() {
    for way in RESTARTS {
        let mut rig = rig();
        let first = delivered(&mut rig, "v");
        let token = granted(rig.begin_for(&k(), &first));
        ack(&mut rig, &first);
        rig.restart(way);
        assert_eq!(rig.status(&k()), Some(EffectStatus::Succeeded));
        let stale = LeaseToken { counter: token.counter + 1, ..token };
        assert_eq!(rig.refused(|rig| rig.finish(&k(), stale, success("1"))), Refusal::StaleLease);
        assert_eq!(rig.refused(|rig| rig.finish(&k(), token, final_failure("no"))), Refusal::OtherOutcome);
        rig.pass(1_000);
        rig.finish(&k(), token, success("1")).unwrap();
        assert_eq!(rig.refused(|rig| rig.finish(&k(), token, success("2"))), Refusal::OtherOutcome);
        rig.restart_after(way, DAY - 1);
        assert_eq!(rig.begin(&k()), Ok(StoreReply::Replay(success("1"))), "for a day from the finish");
        rig.pass(1);
        assert_eq!(rig.status(&k()), None);
    }
}

#[test]
fn an_ack_after_a_retryable_failure_is_a_success_of_which_nothing_is_known_yet() {
    for way in RESTARTS {
        let mut rig = rig();
        let first = delivered(&mut rig, "v");
        let token = granted(rig.begin_for(&k(), &first));
        let failure = outcome(EffectStatus::FailedRetryable, Some("\"half\""), "busy");
        rig.finish(&k(), token, failure).unwrap();
        ack(&mut rig, &first);
        rig.restart(way);
        let known = rig.effect(&k()).unwrap();
        assert_eq!((known.status, known.committed, known.finished), (EffectStatus::Succeeded, true, false));
        assert_eq!((known.result.clone(), known.outcome().last_error), (None, "".into()));
        assert_eq!(known.expires_at, START.after(Millis(ACK_TTL)));
        rig.finish(&k(), token, success("1")).unwrap();
        assert_eq!(rig.begin(&k()), Ok(StoreReply::Replay(success("1"))));
    }
}

#[test]
fn an_ack_leaves_a_final_outcome_as_it_is() {
    for end in [success("1"), final_failure("no")] {
        let mut rig = rig();
        let first = delivered(&mut rig, "v");
        let token = granted(rig.begin_for(&k(), &first));
        rig.finish(&k(), token, end.clone()).unwrap();
        let before = rig.effect(&k()).unwrap();
        rig.pass(5);
        ack(&mut rig, &first);
        let after = rig.effect(&k()).unwrap();
        assert_eq!((after.outcome(), after.expires_at), (end, before.expires_at));
        assert!(after.committed && after.finished);
        rig.try_produce(identified("t", "again", "k")).unwrap();
        assert_eq!(rig.values(), [""; 0], "and later messages are done as well");
    }
}

#[test]
fn acks_commit_beyond_the_quota_and_a_begin_does_not() {
    for way in RESTARTS {
        let mut rig = Rig::with_limits(|limits| limits.effects_max = 1);
        rig.topic("t", 1);
        work_on(&mut rig);
        for key in ["a", "b", "c"] {
            rig.try_produce(identified("t", key, key)).unwrap();
            let delivery = rig.one();
            ack(&mut rig, &delivery);
        }
        rig.restart(way);
        assert_eq!(rig.effects_of("default"), 3);
        assert_eq!(rig.refused(|rig| rig.begin(&effect("d"))), overloaded(Overload::Effects));
        rig.pass(ACK_TTL);
        granted(rig.begin(&effect("d")));
    }
}

#[test]
fn a_message_without_a_key_commits_nothing() {
    let mut rig = rig();
    rig.produce("t", "plain");
    let plain = rig.one();
    ack(&mut rig, &plain);
    rig.try_produce(identified("t", "empty", "")).unwrap();
    let empty = rig.one();
    ack(&mut rig, &empty);
    assert_eq!(rig.effects_of("default"), 0);
}

#[test]
fn a_later_message_of_a_committed_identity_is_finished_undelivered_and_counted() {
    for way in RESTARTS {
        let mut rig = rig();
        let first = delivered(&mut rig, "first");
        ack(&mut rig, &first);
        rig.restart_after(way, 5);
        work_on(&mut rig);
        rig.try_produce(identified("t", "second", "k")).unwrap();
        rig.try_produce(identified("t", "other", "another key")).unwrap();
        assert_eq!(rig.values(), ["other"]);
        assert_eq!(rig.pipeline.broker().counters().skipped, 1);
        assert_eq!(rig.kept("t"), ["other"], "it is done, so it is trimmed");
        rig.restart(way);
        assert_eq!(rig.progress("t", "g").lag, 1);
    }
}

#[test]
fn a_commit_past_its_window_skips_nothing() {
    let mut rig = rig();
    let first = delivered(&mut rig, "first");
    ack(&mut rig, &first);
    rig.pass(ACK_TTL);
    rig.try_produce(identified("t", "second", "k")).unwrap();
    assert_eq!(rig.values(), ["second"]);
    assert_eq!(rig.pipeline.broker().counters().skipped, 0);
}

#[test]
fn a_commit_skips_nothing_in_the_millisecond_its_window_ends_swept_or_not() {
    let mut rig = rig();
    // More than one call sweeps, so that the last is still there when its window is over.
    let keys: Vec<String> = (0..3_000).map(|number| format!("k{number}")).collect();
    for key in &keys {
        rig.try_produce(identified("t", "first", key)).unwrap();
        let first = rig.one();
        ack(&mut rig, &first);
    }
    rig.now = rig.now.after(Millis(ACK_TTL));
    rig.submit(Command::Produce(Box::new(identified("t", "second", "k2999"))));
    assert!(rig.effects_of("default") > 0);
    rig.settle();
    assert_eq!(rig.values(), ["second"]);
    assert_eq!(rig.pipeline.broker().counters().skipped, 0);
}

#[test]
fn another_group_and_another_tenant_are_not_skipped() {
    let mut rig = rig();
    let first = delivered(&mut rig, "first");
    ack(&mut rig, &first);
    rig.pass(1);
    rig.group_from_latest("t", "h");
    rig.subscribe("t", "h", "w");
    let mut foreign = identified("t", "foreign", "k");
    foreign.envelope.tenant_id = Some("acme".into());
    rig.try_produce(foreign).unwrap();
    rig.try_produce(identified("t", "second", "k")).unwrap();
    let mut values = rig.values();
    values.sort();
    assert_eq!(values, ["foreign", "foreign", "second"], "the other tenant's for both, ours for the other group");
}

#[test]
fn a_finish_alone_skips_nothing() {
    let mut rig = rig();
    let first = delivered(&mut rig, "first");
    let token = granted(rig.begin_for(&k(), &first));
    rig.finish(&k(), token, success("1")).unwrap();
    rig.pass(1);
    rig.try_produce(identified("t", "second", "k")).unwrap();
    assert_eq!(rig.values(), ["second"]);
    assert_eq!(rig.pipeline.broker().counters().skipped, 0);
}

#[test]
fn a_message_that_waits_for_its_retry_is_skipped_once_another_of_its_identity_is_acked() {
    for way in RESTARTS {
        let mut rig = rig();
        let first = delivered(&mut rig, "first");
        rig.nack_with_delay(claim("t", "g", "w", &first), 1_000).unwrap();
        rig.pass(1);
        let second = delivered(&mut rig, "second");
        ack(&mut rig, &second);
        rig.restart(way);
        work_on(&mut rig);
        rig.pass(1_000);
        assert_eq!((rig.values(), rig.progress("t", "g").lag), (vec![], 0));
        assert_eq!(rig.pipeline.broker().counters().skipped, 1);
    }
}

#[test]
fn many_skips_in_a_row_keep_neither_the_group_nor_others_waiting() {
    let mut rig = rig();
    rig.group("t", "h");
    let first = delivered(&mut rig, "first");
    ack(&mut rig, &first);
    rig.pause("t", "g");
    for number in 0..3_000 {
        rig.pass(1);
        rig.try_produce(identified("t", &number.to_string(), "k")).unwrap();
    }
    rig.produce("t", "last");
    rig.subscribe_with("t", "h", "w", |asked| asked.prefetch = 1);
    rig.resume("t", "g");
    let mut values = rig.values();
    values.sort();
    assert_eq!(values, ["first", "last"]);
    assert_eq!(rig.pipeline.broker().counters().skipped, 3_000);
}

#[test]
fn a_seek_lifts_the_skip_for_what_it_replays_and_for_nothing_else() {
    for way in RESTARTS {
        let mut rig = Rig::with_limits(|limits| limits.dedupe_ttl = Millis(0));
        rig.topic_retaining("t", Some(DAY), None);
        work_on(&mut rig);
        let first = delivered(&mut rig, "first");
        ack(&mut rig, &first);
        rig.pass(1);
        rig.try_produce(identified("t", "second", "k")).unwrap();
        assert_eq!(rig.values(), [""; 0]);
        rig.seek("t", "g", SeekTo::Earliest).unwrap();
        assert_eq!(rig.values(), ["first", "second"]);
        rig.restart_after(way, 2_000);
        work_on(&mut rig);
        let replayed = rig.delivered();
        assert_eq!(replayed.iter().map(value).collect::<Vec<_>>(), ["first", "second"], "after a restart as well");
        assert!(matches!(rig.begin_for(&k(), &replayed[0]), Ok(StoreReply::Replay(_))), "what is done stays done");
        rig.try_produce(identified("t", "third", "k")).unwrap();
        assert_eq!((rig.values(), rig.pipeline.broker().counters().skipped), (vec![], 1));
        replayed.iter().for_each(|delivery| ack(&mut rig, delivery));
        assert_eq!(rig.progress("t", "g").lag, 0);
    }
}

#[test]
fn a_deleted_group_or_topic_takes_its_effects_along() {
    for way in RESTARTS {
        for deletion in [(|rig| rig.delete_group("t", "g")) as fn(&mut Rig), |rig| rig.delete_topic("t")] {
            let mut rig = rig();
            let first = delivered(&mut rig, "first");
            ack(&mut rig, &first);
            granted(rig.begin(&work("t", "g", "other")));
            granted(rig.begin(&effect("k")));
            assert_eq!(rig.effects_of("default"), 3);
            deletion(&mut rig);
            assert_eq!(rig.effects_of("default"), 1, "what is not of it stays");
            rig.restart(way);
            assert_eq!((rig.status(&k()), rig.effects_of("default")), (None, 1));
            assert_eq!(rig.refused(|rig| rig.finish(&k(), first.token, success("1"))), Refusal::UnknownEffect);
        }
    }
}

#[test]
fn a_deleted_group_made_anew_skips_nothing_of_the_past() {
    let mut rig = rig();
    rig.group("t", "h");
    let first = delivered(&mut rig, "first");
    ack(&mut rig, &first);
    rig.delete_group("t", "g");
    work_on(&mut rig);
    assert_eq!(rig.values(), ["first"]);
}

#[test]
fn a_dead_letter_commits_nothing_and_neither_does_a_late_ack_of_it() {
    for way in RESTARTS {
        let mut rig = rig();
        let mut asked = identified("t", "v", "k");
        asked.envelope.retry_policy = Some(policy(1, 0, 0));
        rig.try_produce(asked).unwrap();
        let first = rig.one();
        nack(&mut rig, &first);
        assert_eq!(rig.dead_letters("t").len(), 1);
        rig.restart_after(way, 1);
        let digest = rig.digest();
        ack(&mut rig, &first);
        assert_eq!((rig.digest(), rig.status(&k())), (digest, None));
        work_on(&mut rig);
        rig.try_produce(identified("t", "second", "k")).unwrap();
        assert_eq!(rig.values(), ["second"], "so a later message is delivered");
    }
}

#[test]
fn a_redriven_message_is_delivered_unless_its_identity_was_done_meanwhile() {
    for way in RESTARTS {
        for done_meanwhile in [false, true] {
            let mut rig = rig();
            let mut asked = identified("t", "v", "k");
            asked.envelope.retry_policy = Some(policy(1, 0, 0));
            rig.try_produce(asked).unwrap();
            let first = rig.one();
            nack(&mut rig, &first);
            if done_meanwhile {
                rig.pass(1);
                let second = delivered(&mut rig, "second");
                ack(&mut rig, &second);
            }
            rig.restart(way);
            work_on(&mut rig);
            rig.send(Command::Redrive { topic: topic("t"), which: RedriveSelection::All, limit: 9 }).unwrap();
            let expected: &[&str] = if done_meanwhile { &[] } else { &["v"] };
            assert_eq!(rig.values(), expected);
            assert_eq!(rig.pipeline.broker().counters().skipped, u64::from(done_meanwhile));
        }
    }
}

#[test]
fn the_effects_of_a_group_begun_before_it_exists_are_its_own() {
    let mut rig = rig();
    let early = Identity::new("", Scope::Consume { topic: topic("later"), group: group("g") }, "k");
    granted(rig.begin(&early));
    rig.topic("later", 1);
    rig.subscribe("later", "g", "w");
    rig.try_produce(identified("later", "v", "k")).unwrap();
    let delivery = rig.one();
    assert_eq!(rig.begin_for(&early, &delivery).map(|_| ()), Ok(()), "a delivery newer than the grant");
    rig.delete_topic("later");
    assert_eq!(rig.effects_of("default"), 0);
}

#[test]
fn a_message_that_is_passed_over_and_never_finished_is_seen() {
    fn all_is_done<F: Faults>(faults: F) -> bool {
        let mut rig = with_worker(faults);
        let first = delivered(&mut rig, "first");
        ack(&mut rig, &first);
        rig.pass(1);
        rig.try_produce(identified("t", "second", "k")).unwrap();
        rig.values().is_empty() && rig.progress("t", "g").lag == 0
    }
    assert!(all_is_done(NoFaults));
    assert!(!all_is_done(Planted(Fault::SkipWithoutFinish)));
}
