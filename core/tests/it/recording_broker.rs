//! A broker whose log is a list of records, so that tests can inspect the state after each record.

use driftq_core::broker::{LogRefusal, LogSink, SpaceClass};
use driftq_core::command::{CreateTopic, Produce};
use driftq_core::faults::NoFaults;
use driftq_core::record::Record;
use driftq_core::state::State;
use driftq_core::types::{Retention, *};
use driftq_core::{Broker, Command, Output, Refusal, Reply};

use super::test_broker::{START, limits, subscribe, topic};

/// An in-memory log sink; every append is durable at once.
#[derive(Debug, Default)]
pub struct Records(pub Vec<Record>);

impl LogSink for Records {
    fn append(&mut self, record: &Record, _space: SpaceClass) -> Result<Lsn, LogRefusal> {
        self.0.push(record.clone());
        Ok(Lsn(self.0.len() as u64))
    }
}

/// A broker, its records and its clock.
pub struct RecordingBroker {
    pub broker: Broker,
    pub records: Records,
    pub now: Timestamp,
    pub outputs: Vec<Output>,
}

impl RecordingBroker {
    pub fn new() -> Self {
        Self::with_limits(limits())
    }

    pub fn with_limits(limits: Limits) -> Self {
        let mut records = Records::default();
        let mut broker = Broker::new(State::default(), Lsn(0), limits, u64::MAX, NoFaults);
        broker.boot(START, &mut records).expect("the list has room");
        Self { broker, records, now: START, outputs: Vec::new() }
    }

    pub fn send(&mut self, command: Command) -> Result<Reply, Refusal> {
        let sent = self.broker.handle(self.now, command, &mut self.records);
        self.collect();
        let reply = self.outputs.iter().rev().find_map(|output| match output {
            Output::Reply { ticket, result } if *ticket == sent => Some(result.clone()),
            _ => None,
        });
        reply.expect("every command has a reply")
    }

    /// Moves the clock and calls the broker once.
    pub fn wait(&mut self, span: u64) {
        self.now = self.now.after(Millis(span));
        self.broker.handle_timeout(self.now, &mut self.records);
        self.collect();
    }

    pub fn topic(&mut self, name: &str, partitions: u32) {
        let (partitions, retention) = (Some(partitions), Retention::default());
        self.send(Command::CreateTopic(CreateTopic { name: topic(name), partitions, retention })).expect("created");
    }

    pub fn produce_with(&mut self, topic_name: &str, value: &str, change: impl FnOnce(&mut Produce)) {
        let mut request = Produce::new(topic(topic_name), "", value);
        change(&mut request);
        self.send(Command::Produce(Box::new(request))).expect("accepted");
    }

    pub fn subscribe(&mut self, topic_name: &str, group_name: &str, owner_name: &str) {
        self.send(Command::Subscribe(subscribe(topic_name, group_name, owner_name))).expect("subscribed");
    }

    /// The state after every record, built by replay.
    pub fn states(&self) -> Vec<State> {
        let mut state = State::default();
        let after = |record: &Record| {
            state.apply(record).expect("the log replays");
            state.clone()
        };
        let states: Vec<_> = self.records.0.iter().map(after).collect();
        assert_eq!(states.last().map(State::digest), Some(self.broker.state().digest()), "replay gives the live state");
        states
    }

    fn collect(&mut self) {
        self.broker.on_durable(self.now, Lsn(self.records.0.len() as u64));
        loop {
            let Some(wanted) = self.broker.wanted_payloads().next() else { break };
            let record = self.records.0[wanted.lsn.0 as usize - 1].clone();
            self.broker.on_read(self.now, &[(wanted.lsn, record)]);
        }
        self.outputs.extend(std::iter::from_fn(|| self.broker.poll_output()));
    }
}
