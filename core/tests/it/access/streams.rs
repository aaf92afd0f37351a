//! Streams end with the right of their key.

use driftq_core::command::*;
use driftq_core::reply::CloseCause;
use driftq_core::types::*;
use driftq_core::{Command, Refusal, Reply};

use super::*;

const LONG: &str = "consume,produce:*";

fn opened(broker: &mut TestBroker, caller: &Caller, subscribe: Subscribe) -> ConsumerId {
    match broker.send_as(caller, subscribe) {
        Ok(Reply::Subscribed { consumer }) => consumer,
        other => panic!("{other:?}"),
    }
}

#[test]
fn revocation_closes_the_streams_of_the_key_and_no_others() {
    let mut broker = TestBroker::with_topic(1);
    let (gone, stays) = (broker.key("gone", &[LONG]), broker.key("stays", &[LONG]));
    let first = opened(&mut broker, &gone, subscribe("t", "g", "w1"));
    let second = opened(&mut broker, &gone, subscribe("t", "h", "w2"));
    let other = opened(&mut broker, &stays, subscribe("t", "g", "w3"));
    let trusted = opened(&mut broker, &Caller::TRUSTED, subscribe("t", "g", "w4"));
    broker.revoke("gone");
    assert_eq!(broker.closed, [(first, CloseCause::KeyRevoked), (second, CloseCause::KeyRevoked)]);
    broker.produce("t", "m");
    let served: Vec<_> = broker.deliveries.iter().map(|(consumer, _)| *consumer).collect();
    assert_eq!(served, [other], "group h has no stream left");
    for consumer in [first, second] {
        let unsubscribe = Command::Unsubscribe(Unsubscribe { consumer });
        assert_eq!(broker.send(unsubscribe), Err(Refusal::UnknownConsumer));
    }
    assert_eq!(broker.send(Unsubscribe { consumer: trusted }.into()), Ok(Reply::Success));
    assert_eq!(broker.pipeline.broker().consumer_count(), 1);
}

#[test]
fn nothing_is_delivered_to_a_stream_whose_key_is_revoked() {
    let mut broker = TestBroker::with_topic(1);
    let caller = broker.key("gone", &[LONG]);
    opened(&mut broker, &caller, subscribe("t", "g", "w").on_disconnect(OnDisconnect::Release));
    // Decided and not durable yet: the message is not to leave.
    broker.submit(Produce::new(topic("t"), "", "secret").into());
    broker.submit(RevokeKey { id: key_id("gone") }.into());
    broker.run_until_idle();
    assert!(broker.deliveries.is_empty(), "{:?}", broker.deliveries);
    assert_eq!(broker.closed.len(), 1);
    let attempts = broker.describe("t").groups[0].partitions[0].in_flight;
    assert_eq!(attempts, 0, "its leases are released");
}

#[test]
fn leases_of_a_revoked_key_run_on_unless_the_stream_releases_them() {
    for (on_disconnect, in_flight) in [(OnDisconnect::Keep, 1), (OnDisconnect::Release, 0)] {
        let mut broker = TestBroker::with_topic(1);
        let caller = broker.key("gone", &[LONG]);
        opened(&mut broker, &caller, subscribe("t", "g", "w").on_disconnect(on_disconnect));
        broker.produce("t", "m");
        let claim = claim("t", "g", "w", &broker.deliveries[0].1);
        broker.revoke("gone");
        assert_eq!(broker.describe("t").groups[0].partitions[0].in_flight, in_flight);
        assert_eq!(broker.send_as(&caller, Ack(claim)), Err(Refusal::Unauthenticated));
    }
}

#[test]
fn expiry_closes_streams_at_its_time() {
    let mut broker = TestBroker::with_topic(1);
    let caller = broker.key_for("brief", 5_000, &[LONG]);
    let stays = broker.key("stays", &[LONG]);
    let consumer = opened(&mut broker, &caller, subscribe("t", "g", "w"));
    opened(&mut broker, &stays, subscribe("t", "g", "w"));
    let expires_at = broker.now.after(Millis(5_000));
    assert_eq!(broker.next_timeout(), Some(expires_at), "without a call of a client");
    broker.advance(4_999);
    assert_eq!(broker.closed, []);
    broker.advance(1);
    assert_eq!(broker.closed, [(consumer, CloseCause::KeyExpired)]);
    assert_eq!(broker.send_as(&caller, subscribe("t", "g", "w")), Err(Refusal::Unauthenticated));
    assert_eq!(broker.next_timeout(), None);
    assert_eq!(broker.send_as(&anonymous(), ListTopics::default()), Err(Refusal::Unauthenticated), "it is still a key");
}

#[test]
fn expired_key_gets_no_message_that_arrives_before_the_timer() {
    let mut broker = TestBroker::with_topic(1);
    let caller = broker.key_for("brief", 5_000, &[LONG]);
    opened(&mut broker, &caller, subscribe("t", "g", "w"));
    // No timer is fired before the produce.
    broker.now = broker.now.after(Millis(5_000));
    broker.produce("t", "secret");
    assert!(broker.deliveries.is_empty());
    assert_eq!(broker.closed.len(), 1);
}

#[test]
fn stream_that_ends_by_itself_leaves_no_timer() {
    let mut broker = TestBroker::with_topic(1);
    let caller = broker.key_for("brief", 5_000, &[LONG]);
    let one = opened(&mut broker, &caller, subscribe("t", "g", "w"));
    assert_eq!(broker.send_as(&caller, Unsubscribe { consumer: one }), Ok(Reply::Success));
    assert_eq!(broker.next_timeout(), None);
    opened(&mut broker, &caller, subscribe("t", "g", "w"));
    broker.send(DeleteTopic { name: topic("t") }.into()).unwrap();
    assert_eq!(broker.next_timeout().filter(|at| *at > broker.now), None);
    broker.revoke("brief");
    assert_eq!(broker.closed.len(), 1, "closed once, with its topic: {:?}", broker.closed);
}

#[test]
fn stream_of_another_key_is_unknown() {
    let mut broker = TestBroker::with_topic(1);
    let (one, other) = (broker.key("one", &[LONG]), broker.key("other", &[LONG]));
    let consumer = opened(&mut broker, &one, subscribe("t", "g", "w"));
    let commands: [Command; 3] = [
        SetPrefetch { consumer, prefetch: 0 }.into(),
        Unsubscribe { consumer }.into(),
        CloseStream { consumer }.into(),
    ];
    for command in commands {
        assert_eq!(broker.send_as(&other, command), Err(Refusal::UnknownConsumer));
    }
    assert_eq!(broker.send_as(&one, SetPrefetch { consumer, prefetch: 0 }), Ok(Reply::Success));
    assert_eq!(broker.send_as(&one, CloseStream { consumer }), Ok(Reply::Success));
}
