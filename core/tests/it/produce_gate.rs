//! The produce dedupe: an identity is accepted once in its window, and every later produce of it is told where.

use super::rig::*;
use driftq_core::command::Produce;
use driftq_core::faults::{Fault, Faults, NoFaults, Planted};
use driftq_core::reply::{Overload, Produced, RouterUse};
use driftq_core::types::*;
use driftq_core::{Command, Refusal, Reply};

const TTL: u64 = 10 * 60 * 1_000;

fn of_tenant(tenant: Option<&str>, key: &str) -> Produce {
    let mut asked = identified("t", "v", key);
    asked.envelope.tenant_id = tenant.map(Into::into);
    asked
}

#[test]
fn a_second_produce_of_an_identity_is_told_the_firsts_place_whatever_its_body() {
    for way in RESTARTS {
        let mut rig = Rig::with_topic(5);
        rig.produce("t", "before");
        let mut first = identified("t", "first", "identity");
        first.envelope.partition_override = Some(PartitionId(3));
        let accepted = rig.try_produce(first).unwrap();
        assert_eq!((accepted.partition, accepted.offset, accepted.duplicate), (PartitionId(3), Offset(1), false));
        rig.restart(way);
        let digest = rig.digest();
        let mut other = identified("t", "quite another value", "identity");
        other.key = b"another key".into();
        other.envelope.partition_override = Some(PartitionId(99));
        other.envelope.deadline = deadline(Timestamp(1));
        other.envelope.priority = Priority::new(9);
        let router = RouterUse::NotAsked;
        let known = Produced { partition: PartitionId(3), offset: Offset(1), duplicate: true, router };
        assert_eq!(rig.try_produce(other), Ok(known));
        assert_eq!(rig.digest(), digest, "nothing new is stored");
    }
}

#[test]
fn concurrent_duplicates_are_all_told_the_same() {
    let mut rig = Rig::with_topic(5);
    let asked = || Command::Produce(Box::new(identified("t", "v", "identity")));
    let tickets: Vec<_> = (0..5).map(|_| rig.submit(asked())).collect();
    assert!(tickets.iter().all(|ticket| rig.reply(*ticket).is_none()), "none is told before the first is durable");
    rig.settle();
    let answers: Vec<_> = tickets.iter().map(|ticket| rig.reply(*ticket).unwrap().unwrap()).collect();
    for (number, answer) in answers.iter().enumerate() {
        let Reply::Produced(produced) = answer else { panic!("{answer:?}") };
        assert_eq!((produced.offset, produced.duplicate), (Offset(0), number > 0));
    }
    assert_eq!(rig.kept("t").len(), 1);
}

#[test]
fn the_window_is_fixed_from_the_first_produce_and_ends_to_the_millisecond() {
    for way in RESTARTS {
        let mut rig = Rig::with_topic(5);
        rig.try_produce(identified("t", "v", "identity")).unwrap();
        rig.pass(TTL / 2);
        assert!(rig.try_produce(identified("t", "v", "identity")).unwrap().duplicate, "which does not prolong it");
        rig.restart_after(way, TTL / 2 - 1);
        let late = rig.try_produce(identified("t", "v", "identity")).unwrap();
        assert_eq!((late.offset, late.duplicate), (Offset(0), true));
        rig.pass(1);
        let anew = rig.try_produce(identified("t", "v", "identity")).unwrap();
        assert_eq!((anew.offset, anew.duplicate), (Offset(1), false));
        rig.pass(TTL - 1);
        let again = rig.try_produce(identified("t", "v", "identity")).unwrap();
        assert_eq!((again.offset, again.duplicate), (Offset(1), true), "with a window of its own");
    }
}

#[test]
fn identities_past_their_window_are_forgotten() {
    for way in RESTARTS {
        let mut rig = Rig::with_topic(5);
        for key in 0..3_000 {
            rig.try_produce(identified("t", "v", &key.to_string())).unwrap();
        }
        rig.pass(1_500);
        rig.try_produce(identified("t", "v", "later")).unwrap();
        let remembered =
            |rig: &Rig| rig.pipeline.state().identities(&topic("t")).map_or(0, driftq_core::state::Identities::len);
        assert_eq!(remembered(&rig), 3_001);
        rig.restart_after(way, TTL - 501);
        assert_eq!(remembered(&rig), 3_001, "though a second late, so that many go at once");
        rig.pass(1);
        assert_eq!(remembered(&rig), 1);
        rig.pass(1_500);
        assert_eq!(remembered(&rig), 0);
        assert_eq!(rig.next_moment(), None);
    }
}

#[test]
fn tenants_do_not_share_identities_and_the_empty_tenant_is_the_default_one() {
    let mut rig = Rig::with_topic(5);
    let duplicate = |rig: &mut Rig, tenant| rig.try_produce(of_tenant(tenant, "identity")).unwrap().duplicate;
    assert!(!duplicate(&mut rig, Some("a")));
    assert!(!duplicate(&mut rig, Some("b")));
    assert!(!duplicate(&mut rig, None));
    assert!(duplicate(&mut rig, Some("")));
    assert!(duplicate(&mut rig, Some("default")));
    assert!(duplicate(&mut rig, Some("a")));
}

#[test]
fn tenant_and_key_are_never_joined_into_one() {
    let mut rig = Rig::with_topic(5);
    for (tenant, key) in [("ab", "c"), ("a", "bc"), ("a:b", "c"), ("a", "b:c"), ("abc", "abc")] {
        assert!(!rig.try_produce(of_tenant(Some(tenant), key)).unwrap().duplicate, "{tenant} {key}");
    }
}

#[test]
fn an_empty_key_is_no_identity() {
    let mut rig = Rig::with_topic(5);
    for offset in 0..3 {
        let produced = rig.try_produce(identified("t", "v", "")).unwrap();
        assert_eq!((produced.offset, produced.duplicate), (Offset(offset), false));
    }
    assert!(rig.pipeline.state().identities(&topic("t")).is_none(), "and nothing is stored of it");
}

#[test]
fn the_scope_is_the_producers_own_topic_before_any_router() {
    let mut rig = Rig::with_topic(5);
    rig.topic("u", 1);
    let to = |requested: &str, target: Option<&str>, routed: Option<&str>| {
        let mut asked = identified(requested, "v", "identity");
        asked.envelope.target_topic = target.map(topic);
        asked.routing = routed.map(|to| RoutingDecision { target_topic: Some(topic(to)), ..Default::default() });
        asked
    };
    assert!(!rig.try_produce(to("t", None, Some("u"))).unwrap().duplicate);
    assert_eq!(rig.kept("u").len(), 1, "it is stored where the router said");
    assert!(rig.try_produce(to("t", None, None)).unwrap().duplicate, "and known by what the producer said");
    assert!(rig.try_produce(to("u", Some("t"), None)).unwrap().duplicate, "its target before its topic");
    assert!(!rig.try_produce(to("u", None, None)).unwrap().duplicate, "another topic is another identity");
    assert!(rig.try_produce(to("t", Some("u"), None)).unwrap().duplicate);
}

#[test]
fn a_produce_that_failed_leaves_no_trace() {
    let mut rig = Rig::with_limits(|limits| limits.partition_messages_max = 1);
    rig.topic("t", 1);
    rig.topic("u", 1);
    rig.subscribe("t", "g", "w");
    rig.produce("t", "in the way");
    let held = rig.one();
    let digest = rig.digest();
    let asked = identified("t", "v", "identity");
    assert_eq!(rig.try_produce(asked.clone()), Err(overloaded(Overload::Backlog)));
    let mut lost = asked.clone();
    lost.envelope.partition_override = Some(PartitionId(7));
    assert!(matches!(rig.try_produce(lost), Err(Refusal::PartitionOutOfRange { .. })));
    let mut late = asked.clone();
    late.envelope.deadline = deadline(START);
    assert_eq!(rig.try_produce(late), Err(Refusal::DeadlinePassed));
    assert_eq!(rig.digest(), digest);
    rig.ack(claim("t", "g", "w", &held)).unwrap();
    assert!(!rig.try_produce(asked).unwrap().duplicate);
}

#[test]
fn an_identity_outlives_its_message() {
    for way in RESTARTS {
        let mut rig = Rig::with_topic(5);
        rig.subscribe("t", "g", "w");
        rig.try_produce(identified("t", "v", "identity")).unwrap();
        let delivery = rig.one();
        rig.ack(claim("t", "g", "w", &delivery)).unwrap();
        assert_eq!(rig.kept("t"), [""; 0]);
        rig.restart(way);
        let again = rig.try_produce(identified("t", "v", "identity")).unwrap();
        assert_eq!((again.offset, again.duplicate), (Offset(0), true));
    }
}

#[test]
fn a_full_backlog_does_not_keep_a_duplicate_from_being_told() {
    let mut rig = Rig::with_limits(|limits| limits.partition_messages_max = 1);
    rig.topic("t", 1);
    rig.try_produce(identified("t", "v", "identity")).unwrap();
    assert!(rig.try_produce(identified("t", "v", "identity")).unwrap().duplicate);
}

fn duplicate_after_a_crash(faults: impl Faults) -> bool {
    let mut rig = Rig::with(small_config(), faults);
    rig.topic("t", 1);
    rig.try_produce(identified("t", "v", "identity")).unwrap();
    rig.crash();
    rig.try_produce(identified("t", "v", "identity")).unwrap().duplicate
}

#[test]
fn identities_dropped_on_replay_would_be_caught() {
    assert!(duplicate_after_a_crash(NoFaults));
    assert!(!duplicate_after_a_crash(Planted(Fault::DedupeDroppedOnReplay)));
}

#[test]
fn message_and_identity_are_one_record() {
    let mut tape = super::tape::Tape::new();
    tape.topic("t", 1);
    tape.produce_with("t", "v", |asked| asked.envelope.idempotency_key = Some("identity".into()));
    for state in tape.states() {
        let stored = state.topic_named(&topic("t")).map_or(0, |topic| topic.next_offset().0);
        let known = state.identities(&topic("t")).map_or(0, |known| known.len() as u64);
        assert_eq!(stored, known);
    }
}
