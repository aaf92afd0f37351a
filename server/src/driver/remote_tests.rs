//! Drivers of two reactors that share a sequencer with a thread of its own. Both run on the thread of the test.

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use driftq_core::command::{Ack, CreateTopic, ListTopics, Produce, Subscribe, TokenClaim};
use driftq_core::log::LogId;
use driftq_core::reply::Delivery;
use driftq_core::types::{Caller, Claim, ConsumerId, GroupName, Millis, OwnerName, Retention, TopicName};
use driftq_core::{Command, OpenOptions, Room};
use driftq_files::VolatileStorage;
use tokio::sync::Notify;
use tokio::task::LocalSet;

use super::{
    BrokerStatus, Crossing, Disk, Driver, DriverParts, NextDelivery, RemoteSequencer, Sequencer, SequencerSignal,
    SequencerThread, Unready, Waiter,
};
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::reactor_figures::{ReactorFigures, ReactorTotals};

const LEASE: Millis = Millis(60_000);

/// Two drivers, and what starts their sequencer.
struct Pair {
    drivers: [Rc<Driver>; 2],
    figures: [Arc<ReactorFigures>; 2],
    status: Arc<BrokerStatus>,
    crossings: Arc<[Arc<Crossing>]>,
    signal: Arc<SequencerSignal>,
}

impl Pair {
    fn new() -> Self {
        Self::with_room(usize::MAX)
    }

    /// With room for so many bytes of deliveries on the way.
    fn with_room(delivery_bytes: usize) -> Self {
        let status = Arc::new(BrokerStatus::default());
        let signal = Arc::new(SequencerSignal::default());
        let wakes = [(); 2].map(|()| Arc::new(Notify::new()));
        let crossings: Arc<[_]> = wakes.iter().map(|wake| Crossing::new(Arc::clone(wake), delivery_bytes)).collect();
        let figures = [(); 2].map(|()| Arc::new(ReactorFigures::default()));
        let drivers = [0, 1].map(|reactor| {
            Driver::new(DriverParts {
                clock: Clock::system(),
                status: Arc::clone(&status),
                figures: Arc::clone(&figures[reactor]),
                wake: Arc::clone(&wakes[reactor]),
                stream_bytes_max: usize::MAX,
                sequencer: Some(RemoteSequencer {
                    reactor,
                    crossings: Arc::clone(&crossings),
                    signal: Arc::clone(&signal),
                }),
            })
        });
        drivers.iter().for_each(|driver| drop(tokio::task::spawn_local(Rc::clone(driver).run())));
        Self { drivers, figures, status, crossings, signal }
    }

    fn start(&self) -> SequencerThread {
        let clock = Clock::system();
        let mut storage = VolatileStorage::default();
        let options = OpenOptions::new().create(LogId([7; 16]));
        let (pipeline, _) = options.open(&mut storage, clock.now()).expect("opens");
        let sequencer = Sequencer::new(pipeline, Disk::Volatile(storage), Metrics::new(), Arc::clone(&self.status));
        let (crossings, signal) = (self.crossings.to_vec(), Arc::clone(&self.signal));
        SequencerThread::start(sequencer, clock, Arc::clone(&self.status), crossings, signal).expect("a thread")
    }

    async fn started() -> (Self, SequencerThread) {
        Self::new().with_sequencer().await
    }

    async fn with_sequencer(self) -> (Self, SequencerThread) {
        let pair = self;
        let thread = pair.start();
        pair.until(|pair| pair.status.unready().is_none()).await;
        (pair, thread)
    }

    async fn until(&self, condition: impl Fn(&Self) -> bool) {
        for _ in 0..3_000 {
            if condition(self) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("it does not come");
    }

    fn totals(&self) -> ReactorTotals {
        ReactorTotals::sum(self.figures.iter().map(|figures| &**figures))
    }
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    LocalSet::new().block_on(&runtime, test);
}

fn topic() -> TopicName {
    TopicName::new("t").expect("a name")
}

fn group() -> GroupName {
    GroupName::new("g").expect("a name")
}

fn owner() -> OwnerName {
    OwnerName::new("w").expect("a name")
}

async fn create(driver: &Driver) {
    let create = CreateTopic { name: topic(), partitions: Some(1), retention: Retention::default() };
    driver.ask(&Caller::TRUSTED, create).await.expect("ready").expect("created");
}

async fn produce(driver: &Driver, value: &str) {
    driver.ask(&Caller::TRUSTED, Produce::new(topic(), "", value)).await.expect("ready").expect("stored");
}

async fn subscribe(driver: &Driver) -> ConsumerId {
    let subscribe = Subscribe::new(topic(), group(), owner()).lease(LEASE);
    driver.subscribe(&Caller::TRUSTED, subscribe, LEASE).await.expect("ready").expect("connected")
}

async fn next(driver: &Driver, consumer: ConsumerId) -> Box<Delivery> {
    for _ in 0..3_000 {
        let next = driver.deliveries(consumer).poll_next(Waker::noop());
        match next {
            NextDelivery::Delivery(delivery) => return delivery,
            _ => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
    panic!("nothing is delivered");
}

fn claim(delivery: &Delivery) -> Claim {
    Claim {
        topic: topic(),
        group: group(),
        partition: delivery.partition,
        offset: delivery.offset,
        owner: owner(),
        token: TokenClaim::Shown(delivery.token),
    }
}

#[test]
fn delivery_goes_to_the_reactor_of_its_stream_wherever_it_was_produced() {
    run(async {
        let (pair, _thread) = Pair::started().await;
        let [first, second] = &pair.drivers;
        create(first).await;
        let consumer = subscribe(second).await;
        for value in ["a", "b"] {
            produce(first, value).await;
            let delivery = next(second, consumer).await;
            assert_eq!(delivery.body.value(), value.as_bytes());
            first
                .ask(&Caller::TRUSTED, Ack(claim(&delivery)))
                .await
                .expect("ready")
                .expect("acked from another reactor");
        }
        assert_eq!(first.deliveries(consumer).poll_next(Waker::noop()), NextDelivery::Closed, "no such stream");
    });
}

#[test]
fn what_a_disconnected_stream_did_not_read_goes_to_one_of_another_reactor() {
    run(async {
        let (pair, _thread) = Pair::started().await;
        let [first, second] = &pair.drivers;
        create(first).await;
        let consumer = subscribe(second).await;
        produce(first, "a").await;
        pair.until(|pair| pair.totals().stream_bytes > 0).await;
        second.disconnect(consumer);
        let other = subscribe(first).await;
        let delivery = next(first, other).await;
        assert_eq!((delivery.body.value(), delivery.attempts), (&b"a"[..], 1), "the unread attempt does not count");
        pair.until(|pair| pair.totals().streams == 1 && pair.totals().pending_replies == 0).await;
    });
}

#[test]
fn read_comes_between_the_commands_before_and_after() {
    run(async {
        let (pair, _thread) = Pair::started().await;
        let driver = &pair.drivers[0];
        create(driver).await;
        let produced =
            |value: &str| driver.submit(driver.now(), &Caller::TRUSTED, produce_command(value), Waiter::Discard);
        produced("a");
        let one = driver.read(|pipeline| pipeline.broker().counters().produced);
        produced("b");
        let two = driver.read(|pipeline| pipeline.broker().counters().produced);
        driver.ask(&Caller::TRUSTED, ListTopics::default()).await.expect("ready").expect("listed");
        assert_eq!((one.now(), two.now()), (Some(1), Some(2)), "known with the reply to a later command");
    });
}

fn produce_command(value: &str) -> Command {
    Command::Produce(Box::new(Produce::new(topic(), "", value)))
}

#[test]
fn commands_on_their_way_are_bounded_and_those_beyond_wait() {
    run(async {
        let pair = Pair::new();
        let driver = &pair.drivers[0];
        assert_eq!(driver.ask(&Caller::TRUSTED, ListTopics::default()).await, Err(Unready::Recovering));
        assert_eq!(driver.read(|_| ()).wait().await, None);
        // Accepted, and nothing takes them yet.
        pair.status.start();
        let mut submitted = 0;
        while driver.poll_submit(Waker::noop()) == Poll::Ready(()) {
            assert!(submitted < 100_000, "there is no bound");
            driver.submit(driver.now(), &Caller::TRUSTED, ListTopics::default().into(), Waiter::Discard);
            submitted += 1;
        }
        let other = &pair.drivers[1];
        assert_eq!(other.poll_submit(Waker::noop()), Poll::Ready(()), "each reactor has a bound of its own");
        let waiting = tokio::task::spawn_local({
            let driver = Rc::clone(driver);
            async move { driver.ask(&Caller::TRUSTED, ListTopics::default()).await }
        });
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(!waiting.is_finished());
        assert!(pair.signal.is_signalled(), "the sequencer is woken for what was passed on");
        let _thread = pair.start();
        assert_eq!(waiting.await.expect("no panic"), Ok(Ok(Vec::new())));
        pair.until(|pair| pair.totals().pending_replies == 0).await;
    });
}

#[test]
fn messages_on_their_way_count_against_the_room_of_the_log() {
    run(async {
        let pair = Pair::new();
        let [first, second] = &pair.drivers;
        pair.status.start();
        pair.status.set_log_room(Room::UntilPrepared(100_000));
        assert!(!second.lacks_log_room(90_000) && second.lacks_log_room(100_000));
        first.submit(first.now(), &Caller::TRUSTED, produce_command(&"v".repeat(50_000)), Waiter::Discard);
        assert!(second.lacks_log_room(90_000) && !second.lacks_log_room(40_000));
        let made = {
            let second = Rc::clone(second);
            tokio::task::spawn_local(async move { second.wait_for_log_room(90_000).await })
        };
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(!made.is_finished());
        let _thread = pair.start();
        assert!(made.await.expect("no panic"), "it is told when there is room");
    });
}

#[test]
fn deliveries_without_room_on_the_way_come_later() {
    run(async {
        // One at a time.
        let (pair, _thread) = Pair::with_room(1).with_sequencer().await;
        let driver = &pair.drivers[0];
        create(driver).await;
        for _ in 0..20 {
            produce(driver, "value").await;
        }
        let subscribe = Subscribe::new(topic(), group(), owner()).lease(LEASE).prefetch(100);
        let consumer = driver.subscribe(&Caller::TRUSTED, subscribe, LEASE).await.expect("ready").expect("connected");
        let mut offsets = Vec::new();
        for _ in 0..20 {
            let delivery = next(driver, consumer).await;
            assert_eq!(delivery.attempts, 1, "one that was withdrawn was no attempt");
            offsets.push(delivery.offset.0);
        }
        offsets.sort_unstable();
        assert_eq!(offsets, (0..20).collect::<Vec<_>>());
        assert!(driver.streams.borrow().refused() > 0);
    });
}
