//! Results of effects stand in the log: replies that repeat them wait for their bytes.

use driftq_core::command::{Begin, Complete, CreateTopic, Finish, Forget, ListEffects, Lookup, Produce, StoreCommand};
use driftq_core::faults::NoFaults;
use driftq_core::reply::StoreReply;
use driftq_core::state::State;
use driftq_core::types::{Claim, Retention, *};
use driftq_core::{Broker, Command, Output, Reply};

use super::recording_broker::Records;
use super::test_broker::*;

/// A broker that reads nothing by itself.
struct ColdBroker {
    broker: Broker,
    records: Records,
}

impl ColdBroker {
    /// A broker whose cache holds nothing that is synced.
    fn new() -> Self {
        let mut records = Records::default();
        let mut broker = Broker::new(State::default(), Lsn(0), limits(), 0, NoFaults);
        broker.boot(START, &mut records).unwrap();
        Self { broker, records }
    }

    /// A broker that continues from the records of this one, with an empty cache that keeps what is read.
    fn restarted(&self) -> Self {
        let mut state = State::default();
        self.records.0.iter().for_each(|record| state.apply(record).unwrap());
        let mut records = Records(self.records.0.clone());
        let mut broker = Broker::new(state, Lsn(records.0.len() as u64), limits(), u64::MAX, NoFaults);
        broker.boot(START, &mut records).unwrap();
        Self { broker, records }
    }

    fn send(&mut self, command: Command) -> Vec<Output> {
        self.broker.handle(START, command, &mut self.records);
        self.outputs()
    }

    fn store(&mut self, command: StoreCommand) -> Vec<Output> {
        self.send(Command::Store(Box::new(command)))
    }

    fn outputs(&mut self) -> Vec<Output> {
        self.broker.on_durable(START, Lsn(self.records.0.len() as u64));
        std::iter::from_fn(|| self.broker.poll_output()).collect()
    }

    fn begin(&mut self, key: &str) -> Vec<Output> {
        self.store(StoreCommand::Begin(Begin::new(effect(key), owner("w"))))
    }

    fn finish(&mut self, key: &str, result: &str) {
        let granted = self.begin(key);
        let [Output::Reply { result: Ok(Reply::Store(StoreReply::Execute { token, .. })), .. }] = &granted[..] else {
            panic!("{granted:?}")
        };
        let (identity, token) = (effect(key), TokenClaim::Shown(*token));
        let finish = Finish { identity, token, outcome: success(result), dead_letter: None };
        assert!(is_success(&self.store(StoreCommand::Finish(finish.clone()))));
        assert!(is_success(&self.store(StoreCommand::Finish(finish))), "compared without its bytes");
    }

    /// Brings the payload that outputs wait for, and returns the outputs that leave.
    fn read(&mut self) -> Vec<Output> {
        let wanted = self.broker.wanted_payloads().next().expect("an output waits");
        let record = self.records.0[wanted.lsn.0 as usize - 1].clone();
        self.broker.on_read(START, &[(wanted.lsn, record)]);
        self.outputs()
    }
}

fn keyed(key: &str) -> Produce {
    let mut request = Produce::new(topic("t"), "", "value");
    request.envelope.idempotency_key = Some(key.into());
    request
}

fn is_success(outputs: &[Output]) -> bool {
    matches!(outputs, [Output::Reply { result: Ok(Reply::Success), .. }])
}

fn store_reply(outputs: Vec<Output>) -> StoreReply {
    match <[Output; 1]>::try_from(outputs) {
        Ok([Output::Reply { result: Ok(Reply::Store(reply)), .. }]) => reply,
        other => panic!("{other:?}"),
    }
}

#[test]
fn replay_waits_for_its_result_and_others_pass_it() {
    let mut broker = ColdBroker::new();
    broker.finish("k", "[1]");
    assert_eq!(broker.begin("k"), []);
    assert!(matches!(store_reply(broker.begin("other")), StoreReply::Execute { .. }));
    assert_eq!(store_reply(broker.read()), replay(success("[1]")));
    assert_eq!(broker.broker.wanted_payloads().count(), 0);
}

#[test]
fn replay_of_an_effect_that_is_forgotten_meanwhile_has_its_result() {
    let mut broker = ColdBroker::new();
    broker.finish("k", "[1]");
    assert_eq!(broker.begin("k"), []);
    assert!(is_success(&broker.store(StoreCommand::Forget(Forget { identity: effect("k") }))));
    assert_eq!(store_reply(broker.read()), replay(success("[1]")));
}

#[test]
fn replay_of_a_result_that_is_gone_says_so() {
    let mut broker = ColdBroker::new();
    broker.finish("k", "[1]");
    broker.finish("l", "[2]");
    assert_eq!(broker.begin("k"), []);
    assert_eq!(broker.store(StoreCommand::Lookup(Lookup { identity: effect("k") })), []);
    assert_eq!(broker.store(StoreCommand::List(ListEffects { limit: 10, ..ListEffects::default() })), []);
    let gone = broker.broker.wanted_payloads().next().unwrap();
    broker.broker.on_gone(gone);
    let left = broker.outputs();
    let [begin, lookup] = &left[..] else { panic!("{left:?}") };
    let lost = Outcome { result: None, ..success("") };
    let reply = StoreReply::Replay { outcome: lost.clone(), result_lost: true };
    assert!(matches!(begin, Output::Reply { result: Ok(Reply::Store(found)), .. } if *found == reply), "{begin:?}");
    let Output::Reply { result: Ok(Reply::Store(StoreReply::Effect(found))), .. } = lookup else {
        panic!("{lookup:?}")
    };
    assert_eq!((found.outcome(), found.result_lost), (lost, true));
    let StoreReply::Listed(page) = store_reply(broker.read()) else { panic!("the list has all it can have") };
    let mut listed: Vec<_> =
        page.effects.iter().map(|(of, found)| (of.key(), found.result.as_deref(), found.result_lost)).collect();
    listed.sort_unstable();
    assert_eq!(listed, [("k", None, true), ("l", Some("[2]"), false)]);
}

#[test]
fn read_result_is_kept_while_its_effect_refers_to_it() {
    let mut broker = ColdBroker::new();
    broker.finish("k", "[1]");
    let mut restarted = broker.restarted();
    assert_eq!(restarted.begin("k"), []);
    let payload = restarted.broker.wanted_payloads().next().unwrap();
    restarted.read();
    assert!(restarted.broker.cached_payload(payload).is_some());
    assert_eq!(store_reply(restarted.begin("k")), replay(success("[1]")), "without a read");

    let mut forgotten = broker.restarted();
    assert_eq!(forgotten.begin("k"), []);
    forgotten.store(StoreCommand::Forget(Forget { identity: effect("k") }));
    forgotten.read();
    assert_eq!(forgotten.broker.cached_payload(payload), None);
}

#[test]
fn result_of_a_step_is_found_when_its_message_is_gone() {
    let mut broker = ColdBroker::new();
    let (partitions, retention) = (Some(1), Retention::default());
    broker.send(Command::CreateTopic(CreateTopic { name: topic("t"), partitions, retention }));
    broker.send(Command::Subscribe(subscribe("t", "g", "w")));
    let delivered = broker.send(Command::Produce(Box::new(keyed("k"))));
    let delivery = delivered.iter().find_map(|output| match output {
        Output::Deliver { delivery, .. } => Some(delivery),
        _ => None,
    });
    let delivery = delivery.expect("delivered while its bytes are not synced");
    let (partition, offset, token) = (delivery.partition, delivery.offset, TokenClaim::Shown(delivery.token));
    let claim = Claim { topic: topic("t"), group: group("g"), partition, offset, owner: owner("w"), token };
    let produce = vec![keyed("next")];
    broker.send(Command::Complete(Box::new(Complete { claim, result: Some("[7]".into()), produce, failed: None })));
    let identity = consume_effect("t", "g", "k");
    let mut restarted = broker.restarted();
    let begin = StoreCommand::Begin(Begin::new(identity, owner("w")));
    assert_eq!(restarted.store(begin.clone()), []);
    let payload = restarted.broker.wanted_payloads().next().unwrap();
    assert_eq!(payload.part, 0, "the result stands before the outputs");
    assert_eq!(store_reply(restarted.read()), replay(success("[7]")));
    let output = PayloadId { part: 1, ..payload };
    assert!([payload, output].iter().all(|live| restarted.broker.cached_payload(*live).is_some()));
}
