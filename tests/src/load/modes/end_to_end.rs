//! `load end-to-end`: produce, delivery and ack of messages at the same time.

use std::time::{Duration, Instant};

use crate::load::broker::Broker;
use crate::load::cli::{AckKind, EndToEndOptions};
use crate::load::client::{Effect, MessageShape};
use crate::load::drive::{Caller, Drive, Produces, Shape, Stamp, Until, drive};
use crate::load::error::Result;
use crate::load::modes::consumers::{Consumers, Plan, Settle};
use crate::load::report::{Failures, Stats, per_million, print_cost};
use crate::numbers::grouped;
use crate::procfs::{self, Memory};
use crate::progress::Progress;

/// How long the backlog may take to drain after the last produce.
const DRAIN_WITHIN: Duration = Duration::from_secs(30);

/// What `end-to-end` measures.
#[derive(Debug)]
pub(crate) struct Figures {
    /// The produce requests.
    pub(crate) produces: Stats,
    /// Produced messages per second.
    pub(crate) produced_rate: f64,
    /// The deliveries, with the latencies from produce to delivery.
    pub(crate) deliveries: Stats,
    /// Deliveries that were not the first of their message.
    pub(crate) redelivered: u64,
    /// Messages acked.
    pub(crate) acked: u64,
    /// Messages acked per second, from the first produce to the last ack.
    pub(crate) rate: f64,
    /// CPU seconds per million messages, of the broker and of this process.
    pub(crate) server_cpu: Option<f64>,
    client_cpu: Option<f64>,
    memory: Option<Memory>,
    /// All failures.
    pub(crate) failures: Failures,
}

/// Measures and prints.
pub(crate) async fn run(options: &EndToEndOptions) -> Result<Failures> {
    let figures = measure(options, &[]).await?;
    figures.print();
    Ok(figures.failures)
}

impl Figures {
    /// Prints the figures.
    pub(crate) fn print(&self) {
        println!("produced {} messages/s", grouped(self.produced_rate as u64));
        println!("         {}", self.produces.latencies());
        println!("acked    {} messages/s from the first produce to the last ack", grouped(self.rate as u64));
        println!("         produce to delivery: {}", self.deliveries.latencies());
        let (delivered, redelivered) = (grouped(self.deliveries.messages), grouped(self.redelivered));
        println!("         {delivered} delivered ({redelivered} redelivered), {} acked", grouped(self.acked));
        print_cost("messages", self.server_cpu, self.client_cpu, self.memory);
        println!("         failures: {}", self.failures);
    }
}

/// Measures; a daemon that is started here gets further arguments.
pub(crate) async fn measure(options: &EndToEndOptions, daemon_args: &[&str]) -> Result<Figures> {
    let mut broker = Broker::open(&options.broker, daemon_args).await?;
    let topic = broker.create_topic(options.partitions).await?;
    let _progress = Progress::spinner(match options.ack {
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
        check: None,
    };
    let consumers = Consumers::start(broker.addr(), &plan).await?;
    let (size, partitions) = (options.size, options.partitions);
    let message = MessageShape { topic, size, partitions, effect: Effect::None };
    let shape = Shape { message, batch: 1, stamp: Stamp::NanosSince(epoch) };
    let callers = Caller::<Produces>::connect(broker.addr(), &shape, options.producers).await?;

    let (cpu_before, own_before, begun) = (broker.cpu(), procfs::own_cpu_time(), Instant::now());
    let until = Until::Elapsed(Duration::from_secs_f64(options.seconds.max(0.01)));
    let (_, produces, took) = drive(callers, Drive { until, rate: options.rate }).await?;
    let drained = consumers.wait_for_acks(produces.messages, DRAIN_WITHIN).await;
    let total = begun.elapsed();
    let cpu = cpu_before.zip(broker.cpu()).map(|(before, after)| after.saturating_sub(before));
    let client_cpu = procfs::own_cpu_time().saturating_sub(own_before);
    let (memory, acked) = (broker.memory(), consumers.acked());
    let (deliveries, redelivered) = consumers.finish().await;
    broker.warn_if_exited();

    let mut failures = produces.failures.clone();
    failures.merge(&deliveries.failures);
    if !drained {
        failures.add("message produced and not acked", produces.messages.saturating_sub(acked));
    }
    Ok(Figures {
        produced_rate: produces.messages as f64 / took.as_secs_f64(),
        rate: acked as f64 / total.as_secs_f64(),
        server_cpu: cpu.and_then(|cpu| per_million(cpu, acked)),
        client_cpu: per_million(client_cpu, acked),
        produces,
        deliveries,
        redelivered,
        acked,
        memory,
        failures,
    })
}
