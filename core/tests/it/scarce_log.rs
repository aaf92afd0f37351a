//! The broker on a log that refuses records or is slow to sync them: it waits without a busy loop, and describes what
//! is late as it is.

use driftq_core::broker::{LogFault, LogRefusal, LogSink, SpaceClass};
use driftq_core::command::{
    Ack, Begin, CreateTopic, DescribeTopic, Extend, GroupLifetime, Nack, Produce, Renew, Retry, StoreCommand,
    Subscribe, TokenClaim, Unsubscribe,
};
use driftq_core::faults::NoFaults;
use driftq_core::record::{Event, Record};
use driftq_core::reply::{Blocked, Delivery, Overload, StoreReply, TopicInfo};
use driftq_core::state::State;
use driftq_core::types::{Lifetime, Retention, *};
use driftq_core::{Broker, Command, Output, Refusal, Reply};

use super::test_broker::*;

/// How long the broker waits after a refused record.
const STALL: u64 = 100;

/// A log that refuses some records. What it took is durable when the test says so.
struct ScarceLog {
    taken: u64,
    refuses: fn(&Event) -> bool,
}

impl LogSink for ScarceLog {
    fn append(&mut self, record: &Record, _space: SpaceClass) -> Result<Lsn, LogRefusal> {
        if (self.refuses)(&record.event) {
            return Err(LogRefusal::Full);
        }
        self.taken += 1;
        Ok(Lsn(self.taken))
    }
}

struct ScarceBroker {
    broker: Broker,
    log: ScarceLog,
    now: Timestamp,
    deliveries: Vec<Delivery>,
}

impl ScarceBroker {
    fn new(change: impl FnOnce(&mut Limits)) -> Self {
        let mut broker = Self::unsynced(change);
        broker.sync();
        broker
    }

    /// Not even its boot record is durable.
    fn unsynced(change: impl FnOnce(&mut Limits)) -> Self {
        let mut limits = limits();
        change(&mut limits);
        let mut log = ScarceLog { taken: 0, refuses: |_| false };
        let mut broker = Broker::new(State::default(), Lsn(0), limits, u64::MAX, NoFaults);
        broker.boot(START, &mut log).expect("the log has room");
        Self { broker, log, now: START, deliveries: Vec::new() }
    }

    fn submit(&mut self, command: Command) -> Ticket {
        self.broker.handle(self.now, command, &mut self.log)
    }

    fn call(&mut self) {
        self.broker.handle_timeout(self.now, &mut self.log);
    }

    fn wait(&mut self, span: u64) {
        self.now = self.now.after(Millis(span));
        self.call();
    }

    fn sync(&mut self) {
        self.broker.on_durable(self.now, Lsn(self.log.taken));
    }

    fn replies(&mut self) -> Vec<(Ticket, Result<Reply, Refusal>)> {
        let mut replies = Vec::new();
        while let Some(output) = self.broker.poll_output() {
            match output {
                Output::Reply { ticket, result } => replies.push((ticket, result)),
                Output::Deliver { delivery, .. } => self.deliveries.push(*delivery),
                Output::Closed { .. } => {}
            }
        }
        replies
    }

    /// Submits a command, makes it durable and returns its reply.
    fn send(&mut self, command: Command) -> Result<Reply, Refusal> {
        let sent = self.submit(command);
        self.sync();
        let reply = self.replies().into_iter().find(|(ticket, _)| *ticket == sent);
        reply.expect("every command has a reply").1
    }

    fn topic(&mut self, name: &str, retention: Retention) {
        self.send(Command::CreateTopic(CreateTopic { name: topic(name), partitions: None, retention })).unwrap();
    }

    fn produce(&mut self, topic_name: &str, value: &str, change: impl FnOnce(&mut Produce)) {
        let mut request = Produce::new(topic(topic_name), "", value);
        change(&mut request);
        self.send(Command::Produce(Box::new(request))).unwrap();
    }

    fn subscribe(&mut self, topic_name: &str, change: impl FnOnce(&mut Subscribe)) -> ConsumerId {
        let mut request = subscribe(topic_name, "g", "w");
        change(&mut request);
        match self.send(Command::Subscribe(request)) {
            Ok(Reply::Subscribed { consumer }) => consumer,
            other => panic!("unexpected reply to a subscribe: {other:?}"),
        }
    }

    fn ack_all(&mut self, topic_name: &str) {
        self.replies();
        for delivery in std::mem::take(&mut self.deliveries) {
            self.send(Command::Ack(Ack(claim(topic_name, "g", "w", &delivery)))).unwrap();
        }
    }

    fn describe(&mut self, name: &str) -> TopicInfo {
        match self.send(Command::DescribeTopic(DescribeTopic { name: topic(name) })) {
            Ok(Reply::Topic(info)) => *info,
            other => panic!("unexpected reply to a describe: {other:?}"),
        }
    }

    /// The number of delayed messages, and what blocks the only group.
    fn delayed_and_blocked(&mut self, name: &str) -> (u64, Option<Blocked>) {
        let info = self.describe(name);
        (info.partitions[0].delayed, info.groups[0].partitions[0].blocked)
    }

    fn refused(&self) -> u64 {
        self.broker.counters().refused
    }

    fn retained_memory(&self) -> u64 {
        self.broker.index_contents().retained_memory
    }

    /// Asserts that the refusal of a record is waited out: one attempt, and the next only after a while.
    #[track_caller]
    fn assert_waits_after_one_refusal(&mut self) {
        assert!(self.broker.is_stalled());
        assert_eq!(self.refused(), 1, "one attempt");
        assert_eq!(self.broker.poll_timeout(), Some(self.now.after(Millis(STALL))), "not at once");
        for _ in 0..3 {
            self.wait(STALL / 4);
            self.describe("t");
        }
        assert_eq!(self.refused(), 1, "no attempt during the wait");
        self.wait(STALL / 4);
        assert_eq!(self.refused(), 2, "the next attempt");
        self.log.refuses = |_| false;
        self.wait(STALL);
        self.sync();
        assert!(!self.broker.is_stalled());
        assert_eq!(self.refused(), 2);
    }
}

fn retention(age: u64) -> Retention {
    Retention { age: Some(Millis(age)), bytes: None }
}

#[test]
fn refused_removal_of_retained_messages_is_retried_after_a_while() {
    let mut broker = ScarceBroker::new(|limits| limits.retained_bytes_max = 1_000);
    broker.topic("t", retention(1_000_000));
    broker.subscribe("t", |request| request.lease = Some(Millis(1_000_000)));
    broker.log.refuses = |event| matches!(event, Event::RetentionExpired { .. });
    broker.produce("t", &"x".repeat(2_000), |_| {});
    broker.ack_all("t");
    broker.assert_waits_after_one_refusal();
    assert_eq!(broker.retained_memory(), 0);
}

#[test]
fn refused_removal_of_a_winner_is_retried_after_a_while() {
    let mut broker = ScarceBroker::new(|limits| (limits.completions_max, limits.adaptive_credit) = (1, false));
    broker.topic("t", Retention::default());
    broker.subscribe("t", |request| request.lease = Some(Millis(1_000)));
    broker.log.refuses = |event| matches!(event, Event::WinnersExpired { .. });
    for value in ["a", "b"] {
        broker.produce("t", value, |_| {});
    }
    broker.wait(1_000);
    broker.sync();
    broker.replies();
    let again = broker.deliveries.split_off(2);
    assert_eq!(again.iter().map(|delivery| delivery.attempts).collect::<Vec<_>>(), [2, 2]);
    broker.deliveries = again;
    // Each message has a winner, one more than the limit.
    broker.ack_all("t");
    broker.assert_waits_after_one_refusal();
    assert_eq!(broker.broker.state().winners().len(), 1);
}

#[test]
fn refused_deletion_of_a_departed_group_is_retried_after_a_while() {
    let mut broker = ScarceBroker::new(|_| {});
    broker.topic("t", Retention::default());
    let consumer = broker.subscribe("t", |request| request.group_lifetime = GroupLifetime::Ephemeral);
    broker.log.refuses = |event| matches!(event, Event::GroupDeleted { .. });
    broker.send(Command::Unsubscribe(Unsubscribe { consumer })).unwrap();
    broker.call();
    broker.assert_waits_after_one_refusal();
    assert_eq!(broker.describe("t").groups.len(), 0);
}

#[test]
fn one_byte_of_retained_messages_too_many_is_freed_in_one_call() {
    let mut broker = ScarceBroker::new(|_| {});
    broker.topic("t", retention(1_000_000));
    broker.subscribe("t", |request| request.lease = Some(Millis(1_000_000)));
    broker.produce("t", "a", |_| {});
    broker.ack_all("t");
    let memory = broker.retained_memory();
    assert!(memory > 1);
    let mut limited = ScarceBroker::new(|limits| limits.retained_bytes_max = memory - 1);
    limited.topic("t", retention(1_000_000));
    limited.subscribe("t", |request| request.lease = Some(Millis(1_000_000)));
    limited.produce("t", "a", |_| {});
    limited.log.refuses = |event| matches!(event, Event::RetentionExpired { .. });
    limited.ack_all("t");
    limited.log.refuses = |_| false;
    assert_eq!(limited.broker.poll_timeout(), Some(limited.now.after(Millis(STALL))), "the broker asks for a call");
    limited.wait(STALL);
    assert_eq!(limited.retained_memory(), 0);
}

#[test]
fn broker_with_failed_log_does_nothing_and_asks_for_nothing() {
    let mut broker = ScarceBroker::new(|_| {});
    broker.topic("t", Retention::default());
    broker.produce("t", "a", |_| {});
    broker.subscribe("t", |_| {});
    let digest = broker.broker.state().digest();
    broker.broker.on_log_failed(LogFault("no disk".to_owned()));
    assert_eq!(broker.broker.poll_timeout(), None, "a lease runs, but nothing can be recorded");
    let taken = broker.log.taken;
    broker.wait(10_000);
    assert_eq!((broker.log.taken, broker.broker.state().digest()), (taken, digest));
}

#[test]
fn log_that_fails_before_its_first_sync_refuses_every_command() {
    let mut broker = ScarceBroker::unsynced(|_| {});
    let create = |name| {
        Command::CreateTopic(CreateTopic { name: topic(name), partitions: None, retention: Retention::default() })
    };
    let before = broker.submit(create("before"));
    assert_eq!(broker.replies(), []);
    broker.broker.on_log_failed(LogFault("no disk".to_owned()));
    let after = broker.submit(create("after"));
    assert_eq!(broker.replies(), [(before, Err(Refusal::LogFailed)), (after, Err(Refusal::LogFailed))]);
}

#[test]
fn broker_time_follows_the_syncs() {
    let mut broker = ScarceBroker::new(|_| {});
    broker.now = START.after(Millis(700));
    broker.sync();
    assert_eq!(broker.broker.now(), START.after(Millis(700)));
    broker.now = START.after(Millis(300));
    broker.sync();
    assert_eq!(broker.broker.now(), START.after(Millis(700)), "it never runs backwards");
}

/// A broker that fires one timer per call and has delayed messages in `t`: the first for a second, the second for five,
/// both for a consumer. `single` has one of five seconds. Three timers of topic `early` are due before.
fn with_delays(in_wall_time: bool) -> ScarceBroker {
    let mut broker = ScarceBroker::new(|limits| limits.work.timers_per_call = 1);
    let mut delay = |name: &str, span: u64| {
        if broker.broker.state().topic_named(&topic(name)).is_none() {
            broker.topic(name, Retention::default());
        }
        broker.produce(name, "v", |request| match in_wall_time {
            true => request.envelope.deliver_at = Some(START.after(Millis(span))),
            false => request.delay = Some(Millis(span)),
        });
    };
    delay("t", 1_000);
    delay("t", 5_000);
    delay("early", 900);
    delay("early", 901);
    delay("early", 902);
    delay("single", 5_000);
    for name in ["t", "single"] {
        broker.subscribe(name, |_| {});
    }
    broker
}

#[test]
fn message_whose_delay_is_over_is_not_described_as_delayed_before_its_timer_fires() {
    for in_wall_time in [false, true] {
        let mut broker = with_delays(in_wall_time);
        assert_eq!(broker.delayed_and_blocked("t"), (2, Some(Blocked::NotYetDue)));
        // Each call fires one timer, so that from here on one is late.
        broker.now = START.after(Millis(999));
        assert_eq!(broker.delayed_and_blocked("t"), (2, Some(Blocked::NotYetDue)), "late timers of another topic");
        assert_eq!(broker.delayed_and_blocked("single"), (1, Some(Blocked::NotYetDue)));
        broker.now = START.after(Millis(1_000));
        assert_eq!(broker.delayed_and_blocked("t"), (1, None), "the first is over, and its timer has not fired");
        assert_eq!(broker.deliveries, []);
        broker.call();
        broker.sync();
        broker.replies();
        assert_eq!(broker.deliveries.len(), 1);
        assert_eq!(broker.delayed_and_blocked("t"), (1, Some(Blocked::NotYetDue)));
    }
}

#[test]
fn retry_that_is_due_blocks_no_group_before_its_timer_fires() {
    let mut broker = ScarceBroker::new(|limits| limits.work.timers_per_call = 1);
    for name in ["t", "early"] {
        broker.topic(name, Retention::default());
        broker.produce(name, "v", |_| {});
    }
    broker.subscribe("t", |_| {});
    let delivery = broker.deliveries.remove(0);
    let retry = Retry::After(Millis(1_000));
    broker.send(Command::Nack(Nack { claim: claim("t", "g", "w", &delivery), reason: "".into(), retry })).unwrap();
    for span in [800, 900] {
        broker.produce("early", "v", |request| request.delay = Some(Millis(span)));
    }
    broker.now = START.after(Millis(999));
    assert_eq!(broker.delayed_and_blocked("t"), (0, Some(Blocked::NotYetDue)));
    broker.now = START.after(Millis(1_000));
    assert_eq!(broker.delayed_and_blocked("t"), (0, None));
}

fn begin(lease: u64) -> Command {
    begin_of("k", lease, None)
}

fn begin_of(key: &str, lease: u64, lifetime: Option<Lifetime>) -> Command {
    let request = Begin { lease: Some(Millis(lease)), lifetime, ..Begin::new(effect(key), owner("w")) };
    Command::Store(Box::new(StoreCommand::Begin(request)))
}

#[test]
fn effect_whose_grant_has_not_left_is_not_granted_again() {
    let mut broker = ScarceBroker::new(|_| {});
    let first = broker.submit(begin(1_000));
    broker.now = START.after(Millis(1_500));
    let second = broker.submit(begin(1_000));
    broker.sync();
    let replies = broker.replies();
    assert!(matches!(&replies[0], (ticket, Ok(Reply::Store(StoreReply::Execute { .. }))) if *ticket == first));
    let retry_after = Millis(1);
    assert_eq!(replies[1], (second, Err(Refusal::InProgress { retry_after })), "its lease has not begun");
}

#[test]
fn renewed_lease_of_an_effect_runs_from_the_sync_of_the_renewal() {
    let mut broker = ScarceBroker::new(|_| {});
    let token = match broker.send(begin(1_000)) {
        Ok(Reply::Store(StoreReply::Execute { token, .. })) => token,
        other => panic!("expected a grant, got {other:?}"),
    };
    let (token, lease) = (TokenClaim::Shown(token), Some(Millis(1_000)));
    broker.submit(Command::Store(Box::new(StoreCommand::Renew(Renew { identity: effect("k"), token, lease }))));
    broker.now = START.after(Millis(600));
    broker.sync();
    broker.replies();
    broker.now = START.after(Millis(1_599));
    let retry_after = Millis(1);
    assert_eq!(broker.send(begin(1_000)), Err(Refusal::InProgress { retry_after }));
    broker.now = START.after(Millis(1_600));
    assert!(matches!(broker.send(begin(1_000)), Ok(Reply::Store(StoreReply::Execute { .. }))));
}

#[test]
fn last_of_several_unsynced_extensions_decides() {
    let mut broker = ScarceBroker::new(|_| {});
    broker.topic("t", Retention::default());
    broker.produce("t", "v", |_| {});
    broker.subscribe("t", |_| {});
    let delivery = broker.deliveries.remove(0);
    for lease in [500, 5_000] {
        let (claim, lease) = (claim("t", "g", "w", &delivery), Some(Millis(lease)));
        broker.submit(Command::Extend(Extend { claim, lease }));
    }
    broker.sync();
    assert_eq!(broker.broker.poll_timeout(), Some(START.after(Millis(5_000))));
    broker.wait(4_999);
    assert_eq!(broker.describe("t").groups[0].partitions[0].in_flight, 1);
    assert_eq!(broker.broker.counters().expired, 0);
}

#[test]
fn effect_whose_renewal_the_log_refuses_is_not_granted_again() {
    let mut broker = ScarceBroker::new(|_| {});
    let window = Some(Lifetime::Window(Millis(1)));
    for (key, lease) in [("k", 1_000), ("longer", 5_000)] {
        broker.submit(begin_of(key, lease, window));
    }
    // No grant has left, so both leases have yet to begin; in the recorded state the first effect has just expired.
    broker.log.refuses = |event| matches!(event, Event::EffectRenewed { .. });
    broker.now = START.after(Millis(1_001));
    for key in ["k", "longer"] {
        broker.submit(begin_of(key, 1_000, window));
    }
    assert!(broker.broker.is_stalled());
    broker.sync();
    let replies: Vec<_> = broker.replies().into_iter().map(|(_, result)| result).collect();
    assert!(replies[..2].iter().all(|reply| matches!(reply, Ok(Reply::Store(StoreReply::Execute { .. })))));
    assert_eq!(replies[2], Err(overloaded(Overload::Log)));
    assert!(matches!(replies[3], Err(Refusal::InProgress { .. })), "{:?}", replies[3]);
    broker.log.refuses = |_| false;
    broker.wait(STALL);
    assert!(matches!(broker.send(begin(1_000)), Err(Refusal::InProgress { .. })), "it is renewed");
}
