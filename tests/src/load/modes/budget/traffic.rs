//! What a broker is driven with, while something observes it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::settles::{Claims, Settles, Settling};
use crate::load::broker::{Broker, unused_name};
use crate::load::cli::AckKind;
use crate::load::client::{Effect, EffectShape, MessageShape};
use crate::load::drive::{Caller, Drive, Produces, Shape, Stamp, Until, Work, drive};
use crate::load::error::Result;
use crate::load::modes::consumers::{Consumers, Plan, Settle};
use crate::load::modes::effects::{Begins, Effects};
use crate::load::modes::fill;
use crate::load::report::Failures;

/// Bytes of each value.
const SIZE: u32 = 200;
/// Connections of single produces and of effects.
const CONNECTIONS: u32 = 64;
/// Connections and messages in a request of batches.
const BATCH_CONNECTIONS: u32 = 16;
pub(super) const BATCH: u32 = 100;
/// Lines cost less than messages, and a batch is one request: more of them are driven.
const LINES_PER_MESSAGE: u64 = 10;
/// Producers and consumers of a flow.
const FLOW_CLIENTS: u32 = 16;
/// Partitions of the topic of a flow, and of batches.
const PARTITIONS: u32 = 16;
/// Bytes of an effect's result.
const RESULT_SIZE: u32 = 20;
/// More than a stream is ever delivered without an ack.
const UNLIMITED: u32 = 1_000_000_000;
/// How long deliveries and acks may take after the last produce.
const TAKEN_WITHIN: Duration = Duration::from_secs(60);
/// What comes before the measured part: for at most so long, or so many messages.
const WARM_UP: Duration = Duration::from_millis(300);
pub(super) const WARM_UP_MESSAGES: u64 = 1_000;

/// Arguments of every broker that is observed: leases may be held without acks.
pub(crate) const DAEMON_ARGS: [&str; 2] = ["--max-in-flight", "1000000000"];

/// What a broker is driven with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Traffic {
    /// Single produces, from many connections to one partition.
    Produces,
    /// Batches of produces.
    Batches,
    /// Producers of single messages and, unless there are none, as many consumers.
    Flow(Option<Taking>),
    /// Acks or completes of messages that were delivered before.
    Settles(Settling),
    /// Effects that are begun and not finished.
    Begins,
    /// Effects that are begun and finished.
    Effects,
}

/// What the consumers of a flow do with deliveries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taking {
    /// They hold their leases.
    Hold,
    /// They ack what has arrived since their last ack, as lines of one request.
    AckLines,
}

/// How much is driven.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Amount {
    /// For so long.
    Seconds(f64),
    /// So many messages or effects, and several times as many lines of batches.
    Messages(u64),
}

impl Amount {
    /// So many times the messages.
    pub(super) fn times(self, factor: u64) -> Self {
        match self {
            Self::Seconds(_) => self,
            Self::Messages(messages) => Self::Messages(messages * factor),
        }
    }

    /// When the measured part ends, where a message counts for `units`.
    fn until(self, units: u64) -> Until {
        match self {
            Self::Seconds(seconds) => Until::Elapsed(Duration::from_secs_f64(seconds.max(0.01))),
            Self::Messages(messages) => Until::Messages(messages * units),
        }
    }

    /// When the part before it ends.
    fn until_warm(self, units: u64) -> Until {
        match self.until(units) {
            Until::Elapsed(length) => Until::Elapsed(length.min(WARM_UP)),
            Until::Messages(messages) => Until::Messages(messages.min(WARM_UP_MESSAGES * units)),
        }
    }
}

/// Observes a broker while it is driven.
pub(crate) trait Observer {
    /// The measured part begins: connections are open and idle.
    async fn begin(&mut self, broker: &Broker) -> Result<()>;

    /// It has ended: everything is answered.
    async fn end(&mut self, broker: &Broker) -> Result<()>;
}

/// What was driven in the measured part.
#[derive(Debug)]
pub(crate) struct Driven {
    /// Messages or effects.
    pub(crate) messages: u64,
    /// Failures, also those before it.
    pub(crate) failures: Failures,
}

impl Traffic {
    /// Drives a broker.
    pub(crate) async fn drive(self, broker: &Broker, amount: Amount, observer: &mut impl Observer) -> Result<Driven> {
        match self {
            Self::Produces => {
                let shape = messages(broker.create_topic(1).await?, 1, Effect::None, 1);
                drive_work::<Produces>(&shape, CONNECTIONS, 1, broker, amount, observer).await
            }
            Self::Batches => {
                let shape = messages(broker.create_topic(PARTITIONS).await?, PARTITIONS, Effect::None, BATCH);
                let amount = amount.times(LINES_PER_MESSAGE);
                drive_work::<Produces>(&shape, BATCH_CONNECTIONS, 1, broker, amount, observer).await
            }
            Self::Flow(taking) => drive_flow(taking, broker, amount, observer).await,
            Self::Settles(settling) => drive_settles(settling, broker, amount, observer).await,
            Self::Begins => drive_work::<Begins>(&effects(), CONNECTIONS, 1, broker, amount, observer).await,
            Self::Effects => drive_work::<Effects>(&effects(), CONNECTIONS, 2, broker, amount, observer).await,
        }
    }
}

fn messages(topic: String, partitions: u32, effect: Effect, batch: u32) -> Shape {
    Shape { message: MessageShape { topic, size: SIZE, partitions, effect }, batch, stamp: Stamp::Number }
}

fn effects() -> EffectShape {
    EffectShape { prefix: unused_name(), result_size: RESULT_SIZE }
}

/// Drives one kind of work, of which a message counts for `units`.
async fn drive_work<W: Work>(
    shape: &W::Shape,
    connections: u32,
    units: u64,
    broker: &Broker,
    amount: Amount,
    observer: &mut impl Observer,
) -> Result<Driven> {
    let callers = Caller::<W>::connect(broker.addr(), shape, connections).await?;
    let (callers, warm, _) = drive(callers, Drive { until: amount.until_warm(units), rate: None }).await?;
    observer.begin(broker).await?;
    // The callers are kept: closing their connections is no part of the work.
    let (_callers, mut stats, _) = drive(callers, Drive { until: amount.until(units), rate: None }).await?;
    observer.end(broker).await?;
    stats.failures.merge(&warm.failures);
    Ok(Driven { messages: stats.messages / units, failures: stats.failures })
}

/// Drives producers and consumers.
async fn drive_flow(
    taking: Option<Taking>,
    broker: &Broker,
    amount: Amount,
    observer: &mut impl Observer,
) -> Result<Driven> {
    let topic = broker.create_topic(PARTITIONS).await?;
    let mut flow = Flow::start(&topic, taking, broker).await?;
    let shape = messages(topic, PARTITIONS, Effect::None, 1);
    let callers = Caller::<Produces>::connect(broker.addr(), &shape, FLOW_CLIENTS).await?;
    let (callers, warm, _) = drive(callers, Drive { until: amount.until_warm(1), rate: None }).await?;
    flow.take(warm.messages).await;
    observer.begin(broker).await?;
    let (_callers, mut stats, _) = drive(callers, Drive { until: amount.until(1), rate: None }).await?;
    flow.take(stats.messages).await;
    observer.end(broker).await?;
    stats.failures.merge(&warm.failures);
    stats.failures.merge(&flow.finish().await);
    Ok(Driven { messages: stats.messages, failures: stats.failures })
}

/// Drives acks or completes of messages that are delivered first.
async fn drive_settles(
    settling: Settling,
    broker: &Broker,
    amount: Amount,
    observer: &mut impl Observer,
) -> Result<Driven> {
    let amount = settling.amount(amount);
    let wanted = settling.needed(amount);
    let topic = broker.create_topic(PARTITIONS).await?;
    // A step stores its result if its message has an idempotency key.
    let effect = if settling == Settling::Complete { Effect::Keyed } else { Effect::None };
    let message = MessageShape { topic: topic.clone(), size: SIZE, partitions: PARTITIONS, effect };
    // Streams that are open share what is produced; the first would get all of a backlog.
    let mut flow = Flow::start(&topic, Some(Taking::Hold), broker).await?;
    let filled = fill(broker, message, wanted).await?;
    flow.take(filled.messages).await;
    let output = messages(broker.create_topic(PARTITIONS).await?, PARTITIONS, Effect::None, 1).message;
    let shape = Claims::new(flow.claims(), settling, output);
    let connections = if settling == Settling::AckLines { BATCH_CONNECTIONS } else { CONNECTIONS };
    let mut driven = drive_work::<Settles>(&shape, connections, 1, broker, amount, observer).await?;
    driven.failures.merge(&filled.failures);
    driven.failures.merge(&flow.finish().await);
    Ok(driven)
}

/// The consumers of a flow, if it has any.
struct Flow {
    consumers: Option<(Consumers, Taking)>,
    /// Messages produced so far.
    produced: u64,
    failures: Failures,
}

impl Flow {
    async fn start(topic: &str, taking: Option<Taking>, broker: &Broker) -> Result<Self> {
        let mut flow = Self { consumers: None, produced: 0, failures: Failures::default() };
        let Some(taking) = taking else { return Ok(flow) };
        let (settle, prefetch) = match taking {
            Taking::Hold => (Settle::Hold, Some(UNLIMITED)),
            Taking::AckLines => (Settle::Ack(AckKind::Ndjson), None),
        };
        let topic = topic.to_owned();
        let plan = Plan { topic, consumers: FLOW_CLIENTS, settle, prefetch, epoch: None, check: None };
        flow.consumers = Some((Consumers::start(broker.addr(), &plan).await?, taking));
        Ok(flow)
    }

    /// Waits until these further messages are delivered, or acked.
    async fn take(&mut self, messages: u64) {
        self.produced += messages;
        let Some((consumers, taking)) = &self.consumers else { return };
        let count = || match taking {
            Taking::Hold => consumers.delivered(),
            Taking::AckLines => consumers.acked(),
        };
        let give_up = Instant::now() + TAKEN_WITHIN;
        while count() < self.produced {
            if Instant::now() > give_up {
                return self.failures.add("message neither delivered nor acked in time", self.produced - count());
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// The claims of all leases that are held.
    fn claims(&self) -> VecDeque<Vec<u8>> {
        self.consumers.as_ref().map(|(consumers, _)| consumers.take_claims()).unwrap_or_default()
    }

    async fn finish(mut self) -> Failures {
        if let Some((consumers, _)) = self.consumers {
            let (deliveries, redelivered) = consumers.finish().await;
            self.failures.merge(&deliveries.failures);
            self.failures.add("message delivered twice", redelivered);
        }
        self.failures
    }
}
