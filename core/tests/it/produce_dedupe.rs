//! Produce dedupe: an identity is stored once per window; a duplicate returns the first offset.

use super::test_broker::*;
use driftq_core::command::Produce;
use driftq_core::faults::{Fault, Faults, NoFaults, Planted};
use driftq_core::reply::{Overload, Produced, RouterUse};
use driftq_core::types::*;
use driftq_core::{Command, Refusal, Reply};

const TTL: u64 = 10 * 60 * 1_000;

fn of_tenant(tenant: Option<&str>, key: &str) -> Produce {
    let mut request = identified("t", "v", key);
    request.envelope.tenant_id = tenant.map(Into::into);
    request
}

#[test]
fn duplicate_produce_returns_first_offset_whatever_its_body() {
    for restart in RESTARTS {
        let mut broker = TestBroker::with_topic(5);
        broker.produce("t", "before");
        let mut first = identified("t", "first", "identity");
        first.envelope.partition_override = Some(PartitionId(3));
        let accepted = broker.try_produce(first).unwrap();
        assert_eq!((accepted.partition, accepted.offset, accepted.duplicate), (PartitionId(3), Offset(1), false));
        broker.restart(restart);
        let digest = broker.digest();
        let mut other = identified("t", "another value", "identity");
        other.set_key(b"another key");
        other.envelope.partition_override = Some(PartitionId(99));
        other.envelope.deadline = deadline(Timestamp(1));
        other.envelope.priority = Priority::new(9);
        let router = RouterUse::NoDecision;
        let (partition, offset) = (PartitionId(3), Offset(1));
        let known = Produced { partition, offset, duplicate: true, already_done: false, router };
        assert_eq!(broker.try_produce(other), Ok(known));
        assert_eq!(broker.digest(), digest, "nothing new is stored");
    }
}

#[test]
fn concurrent_duplicates_all_return_first_offset() {
    let mut broker = TestBroker::with_topic(5);
    let request = || Command::Produce(Box::new(identified("t", "v", "identity")));
    let tickets: Vec<_> = (0..5).map(|_| broker.submit(request())).collect();
    assert!(tickets.iter().all(|ticket| broker.reply(*ticket).is_none()), "no reply before the first is durable");
    broker.run_until_idle();
    let replies: Vec<_> = tickets.iter().map(|ticket| broker.reply(*ticket).unwrap().unwrap()).collect();
    for (number, reply) in replies.iter().enumerate() {
        let Reply::Produced(produced) = reply else { panic!("{reply:?}") };
        assert_eq!((produced.offset, produced.duplicate), (Offset(0), number > 0));
    }
    assert_eq!(broker.stored_values("t").len(), 1);
}

#[test]
fn dedupe_window_is_fixed_from_first_produce_and_ends_exactly() {
    for restart in RESTARTS {
        let mut broker = TestBroker::with_topic(5);
        broker.try_produce(identified("t", "v", "identity")).unwrap();
        broker.advance(TTL / 2);
        assert!(
            broker.try_produce(identified("t", "v", "identity")).unwrap().duplicate,
            "a duplicate does not extend the window"
        );
        broker.restart_after(restart, TTL / 2 - 1);
        let late = broker.try_produce(identified("t", "v", "identity")).unwrap();
        assert_eq!((late.offset, late.duplicate), (Offset(0), true));
        broker.advance(1);
        let after_window = broker.try_produce(identified("t", "v", "identity")).unwrap();
        assert_eq!((after_window.offset, after_window.duplicate), (Offset(1), false));
        broker.advance(TTL - 1);
        let again = broker.try_produce(identified("t", "v", "identity")).unwrap();
        assert_eq!((again.offset, again.duplicate), (Offset(1), true), "the new produce has its own window");
    }
}

#[test]
fn identities_past_window_are_dropped() {
    for restart in RESTARTS {
        let mut broker = TestBroker::with_topic(5);
        for key in 0..3_000 {
            broker.try_produce(identified("t", "v", &key.to_string())).unwrap();
        }
        broker.advance(1_500);
        broker.try_produce(identified("t", "v", "later")).unwrap();
        let stored_identities = |broker: &TestBroker| {
            broker.pipeline.state().dedupe(&scope("t")).map_or(0, driftq_core::state::DedupeTable::len)
        };
        assert_eq!(stored_identities(&broker), 3_001);
        broker.restart_after(restart, TTL - 501);
        assert_eq!(
            stored_identities(&broker),
            3_001,
            "the sweep runs up to a second late, so that it drops many at once"
        );
        broker.advance(1);
        assert_eq!(stored_identities(&broker), 1);
        broker.advance(1_500);
        assert_eq!(stored_identities(&broker), 0);
        assert_eq!(broker.next_timeout(), None);
    }
}

#[test]
fn tenants_share_no_identities_and_empty_tenant_is_default() {
    let mut broker = TestBroker::with_topic(5);
    let duplicate =
        |broker: &mut TestBroker, tenant| broker.try_produce(of_tenant(tenant, "identity")).unwrap().duplicate;
    assert!(!duplicate(&mut broker, Some("a")));
    assert!(!duplicate(&mut broker, Some("b")));
    assert!(!duplicate(&mut broker, None));
    assert!(duplicate(&mut broker, Some("")));
    assert!(duplicate(&mut broker, Some("default")));
    assert!(duplicate(&mut broker, Some("a")));
}

#[test]
fn tenant_and_key_are_compared_separately() {
    let mut broker = TestBroker::with_topic(5);
    for (tenant, key) in [("ab", "c"), ("a", "bc"), ("a:b", "c"), ("a", "b:c"), ("abc", "abc")] {
        assert!(!broker.try_produce(of_tenant(Some(tenant), key)).unwrap().duplicate, "{tenant} {key}");
    }
}

#[test]
fn empty_key_is_no_identity() {
    let mut broker = TestBroker::with_topic(5);
    for offset in 0..3 {
        let produced = broker.try_produce(identified("t", "v", "")).unwrap();
        assert_eq!((produced.offset, produced.duplicate), (Offset(offset), false));
    }
    assert!(broker.pipeline.state().dedupe(&scope("t")).is_none(), "no identity is stored");
}

/// A message with one identity, produced to `requested`.
fn to(requested: &str, target: Option<&str>, routed: Option<&str>) -> Produce {
    let mut request = identified(requested, "v", "identity");
    request.envelope.target_topic = target.map(topic);
    request.routing = routed.map(|to| RoutingDecision { target_topic: Some(topic(to)), ..Default::default() });
    request
}

#[test]
fn dedupe_scope_is_requested_topic_and_destination_before_routing() {
    for restart in RESTARTS {
        let mut broker = TestBroker::with_topic(5);
        broker.topic("u", 1);
        let produces = [
            (to("t", None, Some("u")), false, "new"),
            (to("t", None, None), true, "the router does not change the scope"),
            (to("t", Some("t"), None), true, "a target that is the requested topic changes nothing"),
            (to("u", None, None), false, "another requested topic, though the first message is stored in it"),
            (to("u", Some("t"), None), false, "another requested topic, though the destination is the first one's"),
            (to("t", Some("u"), None), false, "another destination"),
            (to("t", Some("u"), Some("t")), true, "the destination is the producer's"),
        ];
        for (request, duplicate, why) in produces {
            assert_eq!(broker.try_produce(request).unwrap().duplicate, duplicate, "{why}");
        }
        assert_eq!((broker.stored_values("t").len(), broker.stored_values("u").len()), (1, 3));
        broker.restart(restart);
        assert!(broker.try_produce(to("t", Some("u"), None)).unwrap().duplicate);
        assert!(broker.try_produce(to("u", Some("t"), None)).unwrap().duplicate);
    }
}

#[test]
fn deleting_requested_topic_or_destination_clears_their_identities() {
    for restart in RESTARTS {
        for (deleted, left) in [("t", [false, false, true]), ("u", [true, false, false])] {
            let mut broker = TestBroker::with_topic(1);
            broker.topic("u", 1);
            let produces = [to("t", None, None), to("t", Some("u"), None), to("u", None, None)];
            for request in &produces {
                assert!(!broker.try_produce(request.clone()).unwrap().duplicate);
            }
            broker.delete_topic(deleted);
            broker.topic(deleted, 1);
            broker.restart(restart);
            assert_eq!(produces.map(|request| broker.try_produce(request).unwrap().duplicate), left, "{deleted}");
        }
    }
}

#[test]
fn stored_message_names_what_its_producer_asked_for() {
    let mut broker = TestBroker::with_topic(1);
    broker.topic("u", 1);
    let asked = |topic_name: &str, destination: &str| {
        Some(ProduceScope { topic: topic(topic_name), destination: topic(destination) })
    };
    for (request, stored_in, requested) in [
        (to("t", None, None), "t", None),
        (to("u", Some("t"), None), "t", asked("u", "t")),
        (to("u", None, Some("t")), "t", asked("u", "u")),
        (to("t", Some("u"), Some("t")), "t", asked("t", "u")),
    ] {
        broker.try_produce(request).unwrap();
        let newest = broker.stored_messages(stored_in, 0).pop().unwrap();
        assert_eq!(newest.body.metadata().requested, requested);
    }
}

#[test]
fn fault_in_dedupe_scope_is_detected() {
    fn duplicates<F: Faults>(faults: F) -> [bool; 2] {
        let mut broker = TestBroker::with(small_config(), faults);
        broker.topic("t", 1);
        broker.topic("u", 1);
        broker.topic("v", 1);
        broker.try_produce(to("t", None, Some("v"))).unwrap();
        [to("t", Some("u"), None), to("u", None, Some("v"))].map(|it| broker.try_produce(it).unwrap().duplicate)
    }
    assert_eq!(duplicates(NoFaults), [false, false]);
    assert_eq!(duplicates(Planted(Fault::GateIgnoresDestination)), [true, false]);
    assert_eq!(duplicates(Planted(Fault::GateByStoredTopic)), [false, true]);
}

#[test]
fn refused_produce_leaves_no_identity() {
    let mut broker = TestBroker::with_limits(|limits| limits.partition_messages_max = 1);
    broker.topic("t", 1);
    broker.topic("u", 1);
    broker.subscribe("t", "g", "w");
    broker.produce("t", "fills the partition");
    let held = broker.expect_delivery();
    let digest = broker.digest();
    let request = identified("t", "v", "identity");
    assert_overloaded(&broker.try_produce(request.clone()), Overload::Backlog);
    let mut out_of_range = request.clone();
    out_of_range.envelope.partition_override = Some(PartitionId(7));
    assert!(matches!(broker.try_produce(out_of_range), Err(Refusal::PartitionOutOfRange { .. })));
    let mut late = request.clone();
    late.envelope.deadline = deadline(START);
    assert_eq!(broker.try_produce(late), Err(Refusal::DeadlinePassed));
    assert_eq!(broker.digest(), digest);
    broker.ack(claim("t", "g", "w", &held)).unwrap();
    assert!(!broker.try_produce(request).unwrap().duplicate);
}

#[test]
fn identity_outlives_its_message() {
    for restart in RESTARTS {
        let mut broker = TestBroker::with_topic(5);
        broker.subscribe("t", "g", "w");
        broker.try_produce(identified("t", "v", "identity")).unwrap();
        let delivery = broker.expect_delivery();
        broker.ack(claim("t", "g", "w", &delivery)).unwrap();
        assert_eq!(broker.stored_values("t"), [""; 0]);
        broker.restart(restart);
        let again = broker.try_produce(identified("t", "v", "identity")).unwrap();
        assert_eq!((again.offset, again.duplicate), (Offset(0), true));
    }
}

#[test]
fn duplicate_under_full_backlog_returns_first_offset() {
    let mut broker = TestBroker::with_limits(|limits| limits.partition_messages_max = 1);
    broker.topic("t", 1);
    broker.try_produce(identified("t", "v", "identity")).unwrap();
    assert!(broker.try_produce(identified("t", "v", "identity")).unwrap().duplicate);
}

fn is_duplicate_after_crash(faults: impl Faults) -> bool {
    let mut broker = TestBroker::with(small_config(), faults);
    broker.topic("t", 1);
    broker.try_produce(identified("t", "v", "identity")).unwrap();
    broker.crash();
    broker.try_produce(identified("t", "v", "identity")).unwrap().duplicate
}

#[test]
fn fault_dedupe_dropped_on_replay_is_detected() {
    assert!(is_duplicate_after_crash(NoFaults));
    assert!(!is_duplicate_after_crash(Planted(Fault::DedupeDroppedOnReplay)));
}

#[test]
fn message_and_identity_share_one_record() {
    let mut recording = super::recording_broker::RecordingBroker::new();
    recording.topic("t", 1);
    recording.produce_with("t", "v", |request| request.envelope.idempotency_key = Some("identity".into()));
    for state in recording.states() {
        let stored = state.topic_named(&topic("t")).map_or(0, |topic| topic.next_offset().0);
        let known = state.dedupe(&scope("t")).map_or(0, |known| known.len() as u64);
        assert_eq!(stored, known);
    }
}
