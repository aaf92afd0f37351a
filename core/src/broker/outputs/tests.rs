//! Which outputs wait, which pass them, and in what order they leave.

use super::*;
use crate::reply::{CloseCause, Delivery};
use crate::state::Message;
use crate::types::{Boot, GroupId, LastError, Millis, Offset, PartitionId, PayloadRef, Position, Timestamp, TopicId};

const COLD: PayloadId = PayloadId { lsn: Lsn(1), part: 0 };
const FAST: ConsumerId = ConsumerId(1);
const SLOW: ConsumerId = ConsumerId(2);

struct Fixture {
    outputs: Outputs,
    cache: PayloadCache,
}

impl Fixture {
    fn new() -> Self {
        Self { outputs: Outputs::default(), cache: PayloadCache::new(0) }
    }

    /// Holds a delivery; its bytes are in the cache if its payload is not [`COLD`].
    fn deliver(&mut self, consumer: ConsumerId, payload: PayloadId, decided_at: u64) {
        let body = Body::bare(&[], b"value");
        if payload != COLD {
            self.cache.insert_written(payload, body.clone(), false);
        }
        let message = Message::new(Offset(0), Timestamp(0), PayloadRef::new(payload, &body), None);
        let found = self.cache.take(payload, 1);
        let unread = if found.is_none() { Some(message) } else { None };
        let delivery = Box::new(Delivery {
            partition: PartitionId(0),
            offset: Offset(0),
            attempts: 1,
            failures: 0,
            last_error: LastError::Nothing,
            token: token(decided_at),
            lease_until: Timestamp(0),
            produced_at: Timestamp(0),
            body: found.unwrap_or_else(|| Body::bare(&[], &[])),
        });
        let (topic, group, partition, position) = (TopicId(1), GroupId(1), PartitionId(0), Position(decided_at));
        let leased = Leased { message_ref: MessageRef { topic, group, partition, position }, lease: Millis(1) };
        let output = Output::Deliver { consumer, delivery };
        let held = Unfilled::delivery(Lsn(decided_at), output, leased, unread);
        self.outputs.hold_unfilled(held);
    }

    fn sync(&mut self, durable: u64) -> usize {
        self.outputs.set_aside(Lsn(durable), &self.cache).len()
    }

    /// The tokens of the deliveries that leave.
    fn leave(&mut self, durable: u64) -> Vec<u64> {
        let popped = std::iter::from_fn(|| self.outputs.pop(|_, decided_at| decided_at <= Lsn(durable)));
        let tokens = popped.map(|output| match output {
            Output::Deliver { delivery, .. } => {
                assert_eq!(delivery.body.value(), b"value", "a delivery leaves with its bytes");
                delivery.token.counter
            }
            other => panic!("{other:?}"),
        });
        tokens.collect()
    }

    fn read(&mut self) {
        let mut released = BTreeSet::new();
        self.outputs.fill(COLD, &Body::bare(&[], b"value"), &mut released);
        for recipient in released {
            while let Some(waiting) = self.outputs.next_filled(recipient, Lsn(u64::MAX)) {
                self.outputs.make_ready(waiting);
            }
        }
    }
}

fn token(counter: u64) -> LeaseToken {
    LeaseToken { boot: Boot(1), counter }
}

fn hot(lsn: u64) -> PayloadId {
    PayloadId { lsn: Lsn(lsn), part: 0 }
}

#[test]
fn outputs_of_others_pass_one_that_waits_for_bytes() {
    let mut fixture = Fixture::new();
    fixture.deliver(SLOW, COLD, 10);
    fixture.deliver(FAST, hot(2), 11);
    fixture.deliver(SLOW, hot(3), 12);
    assert_eq!(fixture.sync(12), 2, "the delivery behind it waits, too");
    assert_eq!(fixture.leave(12), [11]);
    assert_eq!(fixture.outputs.wanted().collect::<Vec<_>>(), [COLD]);
    fixture.read();
    assert_eq!(fixture.leave(12), [10, 12]);
    assert_eq!(fixture.outputs.len(), 0);
    assert!(fixture.outputs.queues.is_empty());
}

#[test]
fn outputs_whose_bytes_came_before_their_sync_leave_in_the_order_of_the_decisions() {
    let mut fixture = Fixture::new();
    fixture.deliver(SLOW, COLD, 10);
    fixture.deliver(SLOW, hot(2), 11);
    fixture.deliver(FAST, hot(3), 12);
    fixture.deliver(SLOW, hot(4), 13);
    assert_eq!(fixture.leave(9), []);
    fixture.cache.insert_written(COLD, Body::bare(&[], b"value"), false);
    assert_eq!(fixture.sync(10), 0, "nothing waits for bytes");
    assert_eq!(fixture.leave(10), [10]);
    assert_eq!(fixture.sync(13), 0);
    assert_eq!(fixture.leave(13), [11, 12, 13]);
    assert!(fixture.outputs.queues.is_empty());
}

#[test]
fn withdrawn_delivery_is_forgotten_however_it_is_dropped() {
    let given_up = |fixture: &mut Fixture| {
        fixture.sync(10);
        assert_eq!(fixture.outputs.give_up(COLD).1, [], "its stream has its delivery back already");
    };
    let failed = |fixture: &mut Fixture| fixture.outputs.fail(Lsn(0));
    let failed_after_sync = |fixture: &mut Fixture| {
        fixture.sync(10);
        fixture.outputs.fail(Lsn(10));
    };
    let read = |fixture: &mut Fixture| {
        fixture.sync(10);
        fixture.read();
    };
    let synced = |fixture: &mut Fixture| assert_eq!(fixture.sync(10), 0);
    type Drop<'a> = &'a dyn Fn(&mut Fixture);
    let drops: [(Drop<'_>, bool); 5] =
        [(&given_up, true), (&failed, false), (&failed_after_sync, true), (&read, true), (&synced, false)];
    for (drop, after_sync) in drops {
        let mut fixture = Fixture::new();
        fixture.deliver(SLOW, COLD, 10);
        if after_sync {
            fixture.sync(10);
        }
        fixture.outputs.withdraw(token(10));
        drop(&mut fixture);
        assert_eq!(fixture.leave(10), []);
        assert!(fixture.outputs.withdrawn.is_empty());
        assert_eq!(fixture.outputs.len(), 0);
    }
}

#[test]
fn failed_log_refuses_what_waits_and_releases_what_is_synced() {
    let mut fixture = Fixture::new();
    fixture.outputs.hold(Lsn(1), Output::Reply { ticket: Ticket(1), result: Ok(Reply::Success) });
    fixture.deliver(SLOW, COLD, 10);
    fixture.outputs.hold(Lsn(10), Output::Closed { consumer: SLOW, cause: CloseCause::TopicDeleted });
    fixture.outputs.hold(Lsn(11), Output::Reply { ticket: Ticket(2), result: Ok(Reply::Success) });
    fixture.sync(10);
    fixture.outputs.fail(Lsn(10));
    let left: Vec<_> = std::iter::from_fn(|| fixture.outputs.pop(|_, decided_at| decided_at <= Lsn(10))).collect();
    let expected = [
        Output::Reply { ticket: Ticket(1), result: Ok(Reply::Success) },
        Output::Reply { ticket: Ticket(2), result: Err(Refusal::LogFailed) },
    ];
    assert_eq!(left, expected);
}
