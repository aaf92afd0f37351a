//! `driftq bench`: how fast messages are produced, and consumed and acked.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::{Args, ValueEnum};
use driftq_client::{Client, Consume, CreateTopic, Pending, Produce, ProducerOptions};
use indicatif::ProgressBar;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::Broker;
use crate::failure::{Exit, Failure};
use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::progress::bar;
use crate::table::Table;
use crate::units::{bytes, latency, parse_bytes, rate};

/// How long a request is repeated: a broker that is busy is no failure here.
const RETRY_FOR: Duration = Duration::from_secs(60);
/// The consumer gives up when no message has come for so long.
const SILENCE_MAX: Duration = Duration::from_secs(10);
const GROUP: &str = "bench";

/// Flags of `bench`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Without --topic it creates a topic of its own, and deletes it at the end. Produced is what the broker has synced to its
disk; its latency is that of one message, from the call to the answer. That of consuming is from sending an ack to its
answer.")]
pub(crate) struct Options {
    /// What to measure
    #[arg(value_enum, default_value = "both")]
    what: What,
    /// Number of messages
    #[arg(long, short = 'n', default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    messages: u64,
    /// Bytes of each message
    #[arg(long, short, default_value = "100", value_parser = parse_bytes)]
    size: u64,
    /// Messages that wait for their answer at a time, when producing
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    in_flight: u32,
    /// Acks that wait for their answer at a time, when consuming
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    acks: u32,
    /// Partitions of the topic it creates
    #[arg(long, short, default_value_t = 1)]
    partitions: u32,
    /// Use this topic, and neither create nor delete it
    #[arg(long, short)]
    topic: Option<String>,
}

/// What is measured.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// Produce, then consume
    Both,
    /// Produce only
    Produce,
    /// Consume what is there; needs --topic
    Consume,
}

/// The figures of one part.
struct Measured {
    what: &'static str,
    messages: u64,
    failed: u64,
    elapsed: Duration,
    /// Sorted, in seconds.
    latencies: Vec<f32>,
}

impl Measured {
    fn new(what: &'static str, elapsed: Duration, mut latencies: Vec<f32>, failed: u64) -> Self {
        latencies.sort_by(f32::total_cmp);
        Self { what, messages: latencies.len() as u64, failed, elapsed, latencies }
    }

    #[expect(clippy::cast_precision_loss, reason = "fewer than 2^52 messages")]
    fn rate(&self) -> f64 {
        self.messages as f64 / self.elapsed.as_secs_f64().max(f64::EPSILON)
    }

    fn percentile(&self, percent: usize) -> f64 {
        let last = self.latencies.len().saturating_sub(1);
        // Rounded up: the share of observations at or below it is at least what was asked for.
        let index = (self.latencies.len() * percent).div_ceil(100).saturating_sub(1).min(last);
        f64::from(self.latencies.get(index).copied().unwrap_or(0.0))
    }

    fn json(&self) -> Value {
        let ms = |percent| self.percentile(percent) * 1e3;
        json!({"what": self.what, "messages": self.messages, "failed": self.failed,
            "seconds": self.elapsed.as_secs_f64(), "per_second": self.rate(),
            "p50_ms": ms(50), "p99_ms": ms(99), "max_ms": ms(100)})
    }
}

pub(crate) async fn run(broker: &Broker, options: Options) -> Result<(), Failure> {
    let quick = broker.client()?;
    quick.version().await?;
    if options.what == What::Consume && options.topic.is_none() {
        return Err(Failure::usage("there is nothing to consume").advise("give --topic"));
    }
    if options.size == 0 {
        return Err(Failure::usage("a message has at least one byte"));
    }
    let client = broker.settings.patient_client(RETRY_FOR)?;
    let mut interrupt = Interrupt::new()?;
    let topic = match &options.topic {
        Some(topic) => topic.clone(),
        None => {
            let topic = own_topic();
            client.create_topic(&CreateTopic::new(&topic).partitions(options.partitions)).await?;
            topic
        }
    };
    let measured = tokio::select! {
        measured = measure(&client, &topic, &options) => Some(measured),
        () = interrupt.received() => None,
    };
    if options.topic.is_none() {
        quick.delete_topic(&topic).await?;
    }
    match measured {
        Some(measured) => show(broker.output, &options, &measured?),
        None => Ok(()),
    }
}

/// A name that no topic has yet.
fn own_topic() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("bench-{}-{}", std::process::id(), now.as_millis())
}

async fn measure(client: &Client, topic: &str, options: &Options) -> Result<Vec<Measured>, Failure> {
    let mut measured = Vec::new();
    if options.what != What::Consume {
        let progress = bar("producing", Some(options.messages));
        measured.push(produce(client, topic, options, &progress).await?);
        progress.finish_and_clear();
    }
    if options.what != What::Produce {
        let progress = bar("consuming", Some(options.messages));
        measured.push(consume(client, topic, options, &progress).await?);
        progress.finish_and_clear();
    }
    Ok(measured)
}

async fn produce(client: &Client, topic: &str, options: &Options, progress: &ProgressBar) -> Result<Measured, Failure> {
    let mut producer_options = ProducerOptions::default();
    producer_options.max_pending = options.in_flight as usize;
    let producer = client.producer_with(producer_options);
    let size = usize::try_from(options.size).map_err(|_| Failure::usage("the size is too large"))?;
    let value = vec![b'x'; size];
    let (sent, mut answers) = mpsc::channel::<(Instant, Pending)>(options.in_flight as usize);
    let progress = progress.clone();
    let started = Instant::now();
    // Answers come in the order of the messages, so none is measured late.
    let collecting = tokio::spawn(async move {
        let (mut latencies, mut failed, mut first) = (Vec::new(), 0, None);
        while let Some((at, answer)) = answers.recv().await {
            match answer.await {
                Ok(_) => latencies.push(at.elapsed().as_secs_f32()),
                Err(error) => {
                    failed += 1;
                    first.get_or_insert(error);
                }
            }
            progress.inc(1);
        }
        (latencies, failed, first)
    });
    for number in 0..options.messages {
        let message = Produce::new(topic, value.as_slice()).key(number.to_string());
        let at = Instant::now();
        let answer = producer.enqueue(&message).await?;
        if sent.send((at, answer)).await.is_err() {
            break;
        }
    }
    drop((sent, producer));
    let (latencies, failed, first) = collecting.await.expect("collecting neither panics nor is cancelled");
    match first {
        Some(error) if latencies.is_empty() => Err(error.into()),
        _ => Ok(Measured::new("produce", started.elapsed(), latencies, failed)),
    }
}

async fn consume(client: &Client, topic: &str, options: &Options, progress: &ProgressBar) -> Result<Measured, Failure> {
    client.create_group(topic, GROUP, false).await?;
    let request = Consume::new(topic, GROUP, "driftq-bench").max(options.messages).wait(SILENCE_MAX);
    let mut consumer = client.consume(&request.prefetch(options.in_flight.max(options.acks)).release_on_disconnect());
    let (mut acks, mut latencies, mut failed) = (JoinSet::new(), Vec::new(), 0_u64);
    let mut settle = |answer: Result<Result<f32, driftq_client::Error>, tokio::task::JoinError>| {
        match answer.expect("an ack neither panics nor is cancelled") {
            Ok(latency) => latencies.push(latency),
            Err(_) => failed += 1,
        }
        progress.inc(1);
    };
    let started = Instant::now();
    let mut last = started;
    while let Some(message) = consumer.next().await? {
        while acks.len() >= options.acks as usize
            && let Some(answer) = acks.join_next().await
        {
            settle(answer);
        }
        let (client, claim) = (client.clone(), consumer.claim(&message));
        acks.spawn(async move {
            let at = Instant::now();
            client.ack(&claim).await.map(|()| at.elapsed().as_secs_f32())
        });
        last = Instant::now();
    }
    while let Some(answer) = acks.join_next().await {
        settle(answer);
        last = Instant::now();
    }
    if latencies.is_empty() {
        return Err(Failure::new(Exit::NotFound, format!("the group {GROUP:?} of {topic:?} had nothing to consume")));
    }
    // Not the silence at the end.
    Ok(Measured::new("consume and ack", last - started, latencies, failed))
}

fn show(output: Output, options: &Options, measured: &[Measured]) -> Result<(), Failure> {
    let mut table =
        Table::new(&["", ">MESSAGES", ">FAILED", ">SECONDS", ">PER SECOND", ">MIB/S", ">P50", ">P99", ">MAX"]);
    for part in measured {
        #[expect(clippy::cast_precision_loss, reason = "fewer than 2^52 bytes")]
        let mib = part.rate() * options.size as f64 / f64::from(1 << 20);
        table.row(vec![
            part.what.into(),
            crate::units::count(part.messages).into(),
            crate::units::count(part.failed).into(),
            format!("{:.2}", part.elapsed.as_secs_f64()).into(),
            rate(part.rate()).into(),
            format!("{mib:.1}").into(),
            latency(part.percentile(50)).into(),
            latency(part.percentile(99)).into(),
            latency(part.percentile(100)).into(),
        ]);
    }
    let parts: Vec<_> = measured.iter().map(Measured::json).collect();
    output.show(&json!({"size": options.size, "parts": parts}), |output| {
        format!("messages of {}\n\n{}", bytes(options.size), output.render(&table))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_sorted_latencies() {
        let latencies: Vec<f32> = (1..=200_u8).rev().map(f32::from).collect();
        let measured = Measured::new("x", Duration::from_secs(2), latencies, 0);
        assert_eq!([50, 99, 100].map(|percent| measured.percentile(percent)), [100.0, 198.0, 200.0]);
        assert!((measured.rate() - 100.0).abs() < 1e-9);
    }
}
