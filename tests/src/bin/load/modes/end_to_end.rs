//! `load end-to-end`: the whole way of a message, from the produce over the stream to the ack.

use std::time::{Duration, Instant};

use crate::Result;
use crate::broker::Broker;
use crate::cli::{AckKind, EndToEndOptions};
use crate::client::{Effect, MessageShape};
use crate::drive::{Drive, Lane, Produces, Shape, Stamp, Until, drive};
use crate::modes::consumers::{Consumers, Plan, Settle};
use crate::procfs::{self, Memory};
use crate::progress::Spinner;
use crate::report::{Failures, Tally, grouped, per_million, print_cost};

/// What is not acked so long after the last produce is lost.
const DRAIN_WITHIN: Duration = Duration::from_secs(30);

/// What `end-to-end` measures.
#[derive(Debug)]
pub(crate) struct Figures {
    /// The produce requests.
    pub(crate) produces: Tally,
    /// Produced messages per second.
    pub(crate) produced_rate: f64,
    /// The deliveries: latencies from just before the produce was written until the item was read.
    pub(crate) deliveries: Tally,
    /// Deliveries of a message that had been delivered before.
    pub(crate) again: u64,
    /// Messages acked, and how many per second, from the first produce to the last ack: the rate of the whole way.
    pub(crate) acked: u64,
    /// See [`Figures::acked`].
    pub(crate) rate: f64,
    /// CPU seconds per million messages, of the broker and of this process.
    pub(crate) server_cpu: Option<f64>,
    client_cpu: Option<f64>,
    memory: Option<Memory>,
    /// Everything that failed.
    pub(crate) failures: Failures,
}

/// Measures and prints.
pub(crate) async fn run(options: &EndToEndOptions) -> Result<Failures> {
    let figures = measure(options).await?;
    figures.print();
    Ok(figures.failures)
}

impl Figures {
    /// Prints them.
    pub(crate) fn print(&self) {
        println!("produced {} messages/s", grouped(self.produced_rate as u64));
        println!("         {}", self.produces.latencies());
        println!("acked    {} messages/s from the first produce to the last ack", grouped(self.rate as u64));
        println!("         produce to delivery: {}", self.deliveries.latencies());
        let (delivered, again) = (grouped(self.deliveries.messages), grouped(self.again));
        println!("         {delivered} delivered ({again} of them again), {} acked", grouped(self.acked));
        print_cost("messages", self.server_cpu, self.client_cpu, self.memory);
        println!("         failures: {}", self.failures);
    }
}

/// Measures.
pub(crate) async fn measure(options: &EndToEndOptions) -> Result<Figures> {
    let mut broker = Broker::open(&options.broker, &[]).await?;
    let topic = broker.new_topic(options.partitions).await?;
    let _spinner = Spinner::new(match options.ack {
        AckKind::Single => "producing, consuming, acking one by one",
        AckKind::Ndjson => "producing, consuming, acking by NDJSON",
    });
    let epoch = Instant::now();
    let plan = Plan {
        topic: topic.clone(),
        consumers: options.consumers,
        settle: Settle::Ack(options.ack),
        prefetch: options.prefetch,
        epoch: Some(epoch),
    };
    let consumers = Consumers::start(broker.addr(), &plan).await?;
    let (size, partitions) = (options.size, options.partitions);
    let message = MessageShape { topic, size, partitions, effect: Effect::None };
    let shape = Shape { message, batch: 1, stamp: Stamp::NanosSince(epoch) };
    let lanes = Lane::<Produces>::connect(broker.addr(), &shape, options.producers).await?;

    let (cpu_before, own_before, begun) = (broker.cpu(), procfs::own_cpu_time(), Instant::now());
    let until = Until::Elapsed(Duration::from_secs_f64(options.seconds.max(0.01)));
    let (_, produces, took) = drive(lanes, Drive { until, rate: options.rate }).await?;
    let drained = consumers.wait_for_acks(produces.messages, DRAIN_WITHIN).await;
    let whole = begun.elapsed();
    let cpu = cpu_before.zip(broker.cpu()).map(|(before, after)| after.saturating_sub(before));
    let client_cpu = procfs::own_cpu_time().saturating_sub(own_before);
    let (memory, acked) = (broker.memory(), consumers.acked());
    let (deliveries, again) = consumers.finish().await;
    broker.warn_if_gone();

    let mut failures = produces.failures.clone();
    failures.merge(&deliveries.failures);
    if !drained {
        failures.add("message produced and not acked", produces.messages.saturating_sub(acked));
    }
    Ok(Figures {
        produced_rate: produces.messages as f64 / took.as_secs_f64(),
        rate: acked as f64 / whole.as_secs_f64(),
        server_cpu: cpu.and_then(|cpu| per_million(cpu, acked)),
        client_cpu: per_million(client_cpu, acked),
        produces,
        deliveries,
        again,
        acked,
        memory,
        failures,
    })
}
