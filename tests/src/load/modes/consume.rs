//! `load consume`: how fast an existing backlog is delivered and acked.

use std::time::{Duration, Instant};

use crate::load::broker::Broker;
use crate::load::cli::ConsumeOptions;
use crate::load::client::{Effect, MessageShape};
use crate::load::error::Result;
use crate::load::modes::consumers::{Consumers, Plan, Settle};
use crate::load::modes::fill;
use crate::load::report::{Failures, per_million, print_cost};
use crate::numbers::grouped;
use crate::procfs;
use crate::progress::Progress;

/// Measures and prints.
pub(crate) async fn run(options: &ConsumeOptions) -> Result<Failures> {
    let mut broker = Broker::open(&options.broker, &[]).await?;
    let topic = broker.create_topic(options.partitions).await?;
    let (size, partitions) = (options.size, options.partitions);
    let message = MessageShape { topic: topic.clone(), size, partitions, effect: Effect::None };
    let filled = fill(&broker, message, options.messages).await?;
    println!("filled   {} messages", grouped(filled.messages));

    let _progress = Progress::spinner("draining");
    let (cpu_before, own_before, begun) = (broker.cpu(), procfs::own_cpu_time(), Instant::now());
    let settle = Settle::Ack(options.ack);
    let (consumers, prefetch) = (options.consumers, options.prefetch);
    let plan = Plan { topic, consumers, settle, prefetch, epoch: None, check: None };
    let consumers = Consumers::start(broker.addr(), &plan).await?;
    let limit = Duration::from_secs_f64(options.give_up_seconds.max(0.0));
    let drained = consumers.wait_for_acks(filled.messages, limit).await;
    let took = begun.elapsed();
    let cpu = cpu_before.zip(broker.cpu()).map(|(before, after)| after.saturating_sub(before));
    let client_cpu = procfs::own_cpu_time().saturating_sub(own_before);
    let acked = consumers.acked();
    let (deliveries, redelivered) = consumers.finish().await;
    broker.warn_if_exited();

    let mut failures = filled.failures;
    failures.merge(&deliveries.failures);
    if !drained {
        failures.add("message not acked in time", filled.messages.saturating_sub(acked));
    }
    println!("acked    {} messages/s", grouped((acked as f64 / took.as_secs_f64()) as u64));
    let (delivered, redelivered) = (grouped(deliveries.messages), grouped(redelivered));
    println!("         {delivered} delivered ({redelivered} redelivered), {} acked", grouped(acked));
    let (server, client) = (cpu.and_then(|cpu| per_million(cpu, acked)), per_million(client_cpu, acked));
    print_cost("messages", server, client, broker.memory());
    println!("         failures: {failures}");
    Ok(failures)
}
