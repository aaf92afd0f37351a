//! `load keys`: produces with idempotency keys on a broker that remembers many, beside brokers that remember none.

use std::time::Duration;

use crate::load::broker::Broker;
use crate::load::cli::KeysOptions;
use crate::load::client::{Connection, Effect, MessageShape, ProduceRequest, post};
use crate::load::drive::{Produces, Shape, Stamp};
use crate::load::error::Result;
use crate::load::modes::fill;
use crate::load::modes::slices::{self, Pace};
use crate::load::report::{Failures, ServerStats, Stats, median};
use crate::numbers::grouped;
use crate::progress::Progress;

/// Bytes of each value.
const SIZE: u32 = 200;
/// What separates the numbers of a turn from those of the one before, and from those of the remembered keys.
const NUMBERS_PER_TURN: u64 = 1 << 40;

/// What `keys` measures.
#[derive(Debug)]
pub(crate) struct Figures {
    keys: u64,
    /// A broker that remembered none at the beginning of the turn, and the one that remembers them.
    turns: Vec<[ServerStats; 2]>,
    /// All failures.
    pub(crate) failures: Failures,
}

/// Measures and prints.
pub(crate) async fn run(options: &KeysOptions) -> Result<Failures> {
    let figures = measure(options).await?;
    figures.print();
    Ok(figures.failures)
}

impl Figures {
    /// The ratio of the server's CPU time per produce with and without the keys, of each turn where it is known.
    pub(crate) fn cpu_ratios(&self) -> Vec<f64> {
        slices::ratios(&self.turns, ServerStats::cpu_per_million)
    }

    /// Prints the figures.
    pub(crate) fn print(&self) {
        let [empty, full] = slices::sums(&self.turns);
        println!("keys     {} remembered", grouped(self.keys));
        empty.print("none");
        full.print("full");
        let cpu = self.cpu_ratios();
        let cpu = if cpu.is_empty() { "unknown".to_owned() } else { format!("{:.2} ×", median(cpu)) };
        println!("         server CPU per produce {cpu} that beside none");
        println!("all      failures: {}", self.failures);
    }
}

/// Measures.
pub(crate) async fn measure(options: &KeysOptions) -> Result<Figures> {
    let mut broker = Broker::open(&options.broker, &[]).await?;
    broker.require_own()?;
    let topic = broker.create_topic(1).await?;
    let filled = remember(&broker, &topic, options.keys).await?;
    require_remembered(&broker, &topic, filled.messages).await?;

    let _progress = Progress::spinner("comparing with a broker that remembers no keys");
    let length = Duration::from_secs_f64(options.seconds.max(0.01));
    let pace = Pace { connections: options.connections, length, rate: None };
    let shapes = async |new: &Broker, turn: u32| {
        let stamp = Stamp::Checked { first: NUMBERS_PER_TURN * (u64::from(turn) + 1) };
        let topics = [new.create_topic(1).await?, topic.clone()];
        Ok(topics.map(|topic| Shape { message: keyed(topic), batch: 1, stamp }))
    };
    let turns = slices::beside_new::<Produces>(&broker, &options.broker, pace, options.turns, shapes).await?;
    // Keys are remembered for a time only: they must not have expired meanwhile.
    require_remembered(&broker, &topic, filled.messages).await?;
    broker.warn_if_exited();
    let mut failures = filled.failures;
    slices::sums(&turns).iter().for_each(|server| failures.merge(&server.stats.failures));
    Ok(Figures { keys: filled.messages, turns, failures })
}

fn keyed(topic: String) -> MessageShape {
    MessageShape { topic, size: SIZE, partitions: 1, effect: Effect::Keyed }
}

/// Produces messages with keys and purges them: the keys stay, and neither broker has a backlog.
async fn remember(broker: &Broker, topic: &str, keys: u64) -> Result<Stats> {
    let filled = fill(broker, keyed(topic.to_owned()), keys).await?;
    let mut connection = Connection::connect(broker.addr()).await?;
    let purge = post(broker.addr(), &format!("/v1/topics/{topic}/purge"), "");
    let status = connection.exchange(&purge).await?;
    if status != 200 {
        let body = String::from_utf8_lossy(connection.body());
        return Err(format!("the purge was refused: {status} {body}").into());
    }
    Ok(filled)
}

/// Fails unless a repeated produce of the first message is recognised by its key.
async fn require_remembered(broker: &Broker, topic: &str, filled: u64) -> Result<()> {
    let mut request = ProduceRequest::new(broker.addr(), &keyed(topic.to_owned()), 1);
    let mut connection = Connection::connect(broker.addr()).await?;
    let status = connection.exchange(request.checked(0)).await?;
    let answer: serde_json::Value = serde_json::from_slice(connection.body()).unwrap_or_default();
    if status != 200 || answer["offset"].as_u64().is_none_or(|offset| offset >= filled) {
        return Err(format!("the broker does not remember its keys: {status} {answer}").into());
    }
    Ok(())
}
