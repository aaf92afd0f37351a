//! What streams get, and what is withdrawn from them.

use driftq_core::Body;
use driftq_core::types::{Boot, LeaseToken, Offset, PartitionId};

use super::*;

const CONSUMER: ConsumerId = ConsumerId(1);

fn connected(prefetch: u32, lease: u64) -> Streams {
    connected_for(None, prefetch, lease)
}

fn connected_for(deliveries_max: Option<u64>, prefetch: u32, lease: u64) -> Streams {
    let mut streams = Streams::new(usize::MAX);
    let spec = StreamSpec {
        topic: TopicName::new("t").expect("a name"),
        group: GroupName::new("g").expect("a name"),
        owner: OwnerName::new("w").expect("a name"),
        lease: Millis(lease),
        prefetch,
        deliveries_max,
    };
    streams.connect(CONSUMER, spec);
    streams
}

/// Two streams whose queues hold at most three deliveries of [`delivery`].
fn bounded() -> (Streams, ConsumerId) {
    let other = ConsumerId(2);
    let mut streams = connected(10, 9_000);
    let spec = streams.streams[&CONSUMER].spec.clone();
    streams.connect(other, spec);
    streams.bytes_max = 3 * bytes_of(&delivery(0, 0));
    (streams, other)
}

fn delivery(offset: u64, lease_until: u64) -> Box<Delivery> {
    Box::new(Delivery {
        partition: PartitionId(0),
        offset: Offset(offset),
        attempts: 1,
        failures: 0,
        last_error: Default::default(),
        token: LeaseToken { boot: Boot(1), counter: offset },
        lease_until: Timestamp(lease_until),
        produced_at: Timestamp(0),
        body: Body::bare(b"", b"value"),
    })
}

fn offset_of(next: NextDelivery) -> Option<u64> {
    if let NextDelivery::Delivery(delivery) = next { Some(delivery.offset.0) } else { None }
}

#[test]
fn unread_delivery_is_withdrawn_and_prefetch_taken_away() {
    let mut streams = connected(10, 9_000);
    streams.deliver(CONSUMER, delivery(1, 9_000), Timestamp(10));
    streams.deliver(CONSUMER, delivery(2, 9_000), Timestamp(900));
    let check = streams.next_check().expect("a check is due");
    assert!((1_010..1_300).contains(&check.0), "{check:?}");
    assert_eq!(streams.check_unread(Timestamp(check.0 - 1)), []);
    let commands = streams.check_unread(check);
    assert!(matches!(commands[0], Command::SetPrefetch(SetPrefetch { prefetch: 0, .. })));
    let withdrawn: Vec<_> = commands
        .iter()
        .filter_map(|c| if let Command::Withdraw(Withdraw(claim)) = c { Some(claim.offset.0) } else { None })
        .collect();
    assert_eq!(withdrawn, [1, 2]);
    assert_eq!(streams.poll_next(CONSUMER, || check, Waker::noop()), NextDelivery::Pending);
    assert_eq!(streams.take_recovered(CONSUMER), Some(10), "it reads again");
    assert_eq!(streams.take_recovered(CONSUMER), None);
}

#[test]
fn unread_delivery_with_short_lease_is_withdrawn_before_it_ends() {
    let mut streams = connected(10, 100);
    streams.deliver(CONSUMER, delivery(1, 110), Timestamp(10));
    let check = streams.next_check().expect("a check is due");
    assert!(check < Timestamp(100), "{check:?}");
    assert_eq!(streams.check_unread(check).len(), 2, "one SetPrefetch and one withdrawal");
}

#[test]
fn lease_in_the_queue_runs_from_the_release() {
    let mut streams = connected(10, 100);
    streams.deliver(CONSUMER, delivery(1, 110), Timestamp(5_000));
    assert_eq!(offset_of(streams.poll_next(CONSUMER, || Timestamp(5_099), Waker::noop())), Some(1));
}

#[test]
fn reading_stream_keeps_its_deliveries() {
    let mut streams = connected(10, 9_000);
    streams.deliver(CONSUMER, delivery(1, 9_000), Timestamp(10));
    streams.deliver(CONSUMER, delivery(2, 9_000), Timestamp(20));
    assert_eq!(offset_of(streams.poll_next(CONSUMER, || Timestamp(600), Waker::noop())), Some(1));
    assert_eq!(streams.check_unread(Timestamp(1_250)), [], "the timeout restarts when a delivery is read");
    assert!(!streams.check_unread(Timestamp(2_500)).is_empty(), "the second is withdrawn later");
}

#[test]
fn queue_of_unread_stream_is_bounded_by_prefetch() {
    let mut streams = connected(2, 2);
    for offset in 0..1_000 {
        // Each is delivered when the lease of the one before the last has expired.
        streams.deliver(CONSUMER, delivery(offset, offset + 2), Timestamp(offset));
        assert!(streams.streams[&CONSUMER].queue.len() <= 3);
    }
}

#[test]
fn expired_deliveries_and_closed_streams_yield_nothing() {
    let mut streams = connected(10, 90);
    streams.deliver(CONSUMER, delivery(1, 100), Timestamp(10));
    streams.deliver(CONSUMER, delivery(2, 500), Timestamp(10));
    assert_eq!(offset_of(streams.poll_next(CONSUMER, || Timestamp(100), Waker::noop())), Some(2));
    streams.deliver(CONSUMER, delivery(3, 500), Timestamp(110));
    streams.close(CONSUMER);
    assert_eq!(streams.poll_next(CONSUMER, || Timestamp(120), Waker::noop()), NextDelivery::Closed);
    assert_eq!(streams.disconnect(CONSUMER).len(), 1, "the third is withdrawn");
}

#[test]
fn stream_ends_at_its_delivery_limit_although_some_were_withdrawn_or_expired() {
    let mut streams = connected_for(Some(3), 10, 90);
    streams.deliver(CONSUMER, delivery(1, 9_000), Timestamp(10));
    assert_eq!(offset_of(streams.poll_next(CONSUMER, || Timestamp(10), Waker::noop())), Some(1));
    assert_eq!(streams.poll_next(CONSUMER, || Timestamp(10), Waker::noop()), NextDelivery::Pending, "two remain");
    streams.deliver(CONSUMER, delivery(2, 50), Timestamp(20));
    streams.deliver(CONSUMER, delivery(3, 9_000), Timestamp(20));
    assert_eq!(streams.check_unread(Timestamp(2_000)).len(), 3, "one SetPrefetch and two withdrawals");
    assert_eq!(streams.poll_next(CONSUMER, || Timestamp(2_000), Waker::noop()), NextDelivery::LimitReached);

    let mut streams = connected_for(Some(1), 10, 90);
    streams.deliver(CONSUMER, delivery(1, 100), Timestamp(10));
    assert_eq!(streams.poll_next(CONSUMER, || Timestamp(100), Waker::noop()), NextDelivery::LimitReached);
}

#[test]
fn delivery_to_disconnected_stream_is_withdrawn() {
    let mut streams = connected(10, 9_000);
    assert_eq!(streams.disconnect(CONSUMER), []);
    assert_eq!(streams.len(), 0);
    let withdraw = streams.deliver(CONSUMER, delivery(1, 9_000), Timestamp(10));
    assert!(matches!(&withdraw[..], [Command::Withdraw(Withdraw(claim))] if claim.offset.0 == 1));
    streams.remove(CONSUMER);
    assert_eq!(streams.deliver(CONSUMER, delivery(2, 9_000), Timestamp(10)), []);
}

fn withdrawn(commands: &[Command]) -> Vec<u64> {
    let offset = |c: &Command| if let Command::Withdraw(Withdraw(claim)) = c { Some(claim.offset.0) } else { None };
    commands.iter().filter_map(offset).collect()
}

/// The new prefetch of each stream.
fn prefetches(commands: &[Command]) -> Vec<(ConsumerId, u32)> {
    let set = |c: &Command| if let Command::SetPrefetch(set) = c { Some((set.consumer, set.prefetch)) } else { None };
    commands.iter().filter_map(set).collect()
}

#[test]
fn delivery_beyond_the_bytes_of_all_queues_is_withdrawn_and_stops_its_stream() {
    let (mut streams, other) = bounded();
    for (consumer, offset) in [(CONSUMER, 0), (CONSUMER, 1), (other, 2)] {
        assert_eq!(streams.deliver(consumer, delivery(offset, 9_000), Timestamp(10)), []);
    }
    let commands = streams.deliver(other, delivery(3, 9_000), Timestamp(10));
    assert_eq!((withdrawn(&commands), prefetches(&commands)), (vec![3], vec![(other, 0)]));
    assert_eq!((streams.bytes(), streams.refused()), (streams.bytes_max, 1));
    assert_eq!(offset_of(streams.poll_next(other, || Timestamp(10), Waker::noop())), Some(2));
    assert_eq!(streams.take_recovered(other), None, "there is no room yet");
    assert_eq!((streams.has_room(), streams.readmit()), (false, vec![]));
    assert!(offset_of(streams.poll_next(CONSUMER, || Timestamp(10), Waker::noop())).is_some());
    assert!(streams.has_room());
    assert_eq!(streams.poll_next(other, || Timestamp(10), Waker::noop()), NextDelivery::Pending);
    assert_eq!(prefetches(&streams.readmit()), [(other, 10)]);
    assert!(!streams.has_room(), "no stream waits for it");
    assert_eq!(streams.deliver(other, delivery(3, 9_000), Timestamp(10)), []);
}

#[test]
fn longest_queue_gives_way_down_to_its_oldest_delivery() {
    let (mut streams, other) = bounded();
    for offset in 0..3 {
        assert_eq!(streams.deliver(CONSUMER, delivery(offset, 9_000), Timestamp(10)), []);
    }
    let commands = streams.deliver(other, delivery(3, 9_000), Timestamp(10));
    assert_eq!((withdrawn(&commands), prefetches(&commands)), (vec![2], vec![(CONSUMER, 0)]));
    assert_eq!((streams.bytes(), streams.refused()), (streams.bytes_max, 1));
    let commands = streams.deliver(other, delivery(4, 9_000), Timestamp(10));
    assert_eq!((withdrawn(&commands), prefetches(&commands)), (vec![4], vec![(other, 0)]), "it is no longer");
    // Once it has read, the other one is longer again, and gives way although there is little room.
    assert_eq!(offset_of(streams.poll_next(other, || Timestamp(10), Waker::noop())), Some(3));
    streams.bytes_max = 2 * bytes_of(&delivery(0, 0));
    assert_eq!(streams.poll_next(other, || Timestamp(10), Waker::noop()), NextDelivery::Pending);
    assert_eq!(streams.take_recovered(other), Some(10));
    assert_eq!(withdrawn(&streams.deliver(other, delivery(4, 9_000), Timestamp(10))), [1]);
    assert!(offset_of(streams.poll_next(other, || Timestamp(10), Waker::noop())).is_some());
    assert_eq!(offset_of(streams.poll_next(CONSUMER, || Timestamp(10), Waker::noop())), Some(0), "its oldest");
}

#[test]
fn stream_that_does_not_read_gets_no_room_again_before_it_does() {
    let (mut streams, other) = bounded();
    streams.bytes_max = bytes_of(&delivery(0, 0));
    let third = ConsumerId(3);
    let spec = streams.streams[&CONSUMER].spec.clone();
    streams.connect(third, spec);
    for consumer in [other, third] {
        assert_eq!(streams.poll_next(consumer, || Timestamp(10), Waker::noop()), NextDelivery::Pending);
    }
    // The first reads nothing, gets a second delivery, and the others none.
    assert_eq!(streams.deliver(CONSUMER, delivery(1, 9_000), Timestamp(10)), []);
    for (consumer, offset) in [(CONSUMER, 2), (other, 3), (third, 4)] {
        assert_eq!(withdrawn(&streams.deliver(consumer, delivery(offset, 9_000), Timestamp(10))), [offset]);
    }
    assert_eq!(streams.readmit(), []);
    assert_eq!(withdrawn(&streams.check_unread(Timestamp(2_000))), [1]);
    assert_eq!(prefetches(&streams.readmit()), [(other, 10), (third, 10)]);
    // Who was served last is the last to be served again.
    assert_eq!(streams.deliver(other, delivery(3, 9_000), Timestamp(2_000)), []);
    assert_eq!(withdrawn(&streams.deliver(third, delivery(4, 9_000), Timestamp(2_000))), [4]);
    assert_eq!(withdrawn(&streams.deliver(other, delivery(5, 9_000), Timestamp(2_000))), [5]);
    assert_eq!(offset_of(streams.poll_next(other, || Timestamp(2_000), Waker::noop())), Some(3));
    assert_eq!(streams.poll_next(other, || Timestamp(2_000), Waker::noop()), NextDelivery::Pending);
    assert_eq!(prefetches(&streams.readmit()), [(third, 10), (other, 10)]);
    // The first gets some as soon as it reads.
    assert_eq!(streams.poll_next(CONSUMER, || Timestamp(3_000), Waker::noop()), NextDelivery::Pending);
    assert_eq!(streams.take_recovered(CONSUMER), Some(10));
}

#[test]
fn stream_whose_last_delivery_finds_no_room_ends() {
    struct Flag(std::sync::atomic::AtomicBool);
    impl std::task::Wake for Flag {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    }
    let (mut streams, other) = bounded();
    streams.bytes_max = bytes_of(&delivery(0, 0));
    streams.streams.get_mut(&other).expect("connected").remaining = Some(1);
    let flag = std::sync::Arc::new(Flag(false.into()));
    let waker = Waker::from(std::sync::Arc::clone(&flag));
    assert_eq!(streams.poll_next(other, || Timestamp(10), &waker), NextDelivery::Pending);
    assert_eq!(streams.deliver(CONSUMER, delivery(1, 9_000), Timestamp(10)), []);
    assert_eq!(withdrawn(&streams.deliver(other, delivery(2, 9_000), Timestamp(10))), [2]);
    assert!(flag.0.load(std::sync::atomic::Ordering::Relaxed), "it is woken");
    assert_eq!(streams.poll_next(other, || Timestamp(10), &waker), NextDelivery::LimitReached);
}

#[test]
fn bytes_of_queues_are_counted_until_they_are_read_withdrawn_or_expired() {
    let (mut streams, other) = bounded();
    let one = streams.bytes_max / 3;
    for (consumer, offset) in [(CONSUMER, 0), (CONSUMER, 1), (other, 2)] {
        assert_eq!(streams.deliver(consumer, delivery(offset, 9_000), Timestamp(10)), []);
    }
    assert!(offset_of(streams.poll_next(CONSUMER, || Timestamp(10), Waker::noop())).is_some());
    assert_eq!(streams.bytes(), 2 * one);
    assert_eq!(streams.disconnect(other).len(), 1);
    assert_eq!(streams.bytes(), one);
    assert!(!streams.check_unread(Timestamp(2_000)).is_empty());
    assert_eq!(streams.bytes(), 0);
    streams.deliver(CONSUMER, delivery(5, 2_100), Timestamp(2_000));
    streams.streams.get_mut(&CONSUMER).expect("connected").spec.prefetch = 1;
    streams.streams.get_mut(&CONSUMER).expect("connected").queue[0].ends_at = Timestamp(2_100);
    streams.deliver(CONSUMER, delivery(6, 9_000), Timestamp(2_200));
    assert_eq!(streams.bytes(), one, "the first has expired");
    streams.remove(CONSUMER);
    assert_eq!(streams.bytes(), 0);
}

#[test]
fn delivery_longer_than_the_bound_is_queued_if_it_is_alone() {
    let (mut streams, other) = bounded();
    streams.bytes_max = 1;
    assert_eq!(streams.deliver(CONSUMER, delivery(1, 9_000), Timestamp(10)), []);
    assert_eq!(streams.deliver(other, delivery(2, 9_000), Timestamp(10)).len(), 2);
    assert!(offset_of(streams.poll_next(CONSUMER, || Timestamp(10), Waker::noop())).is_some());
    assert_eq!(streams.poll_next(other, || Timestamp(10), Waker::noop()), NextDelivery::Pending);
    assert_eq!(streams.readmit().len(), 1);
}
