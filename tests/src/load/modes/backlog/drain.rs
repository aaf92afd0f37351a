//! Drains of a backlog: how fast it is delivered and acked, and whether every byte is what was produced.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::load::broker::Broker;
use crate::load::cli::AckKind;
use crate::load::client::Checked;
use crate::load::error::Result;
use crate::load::modes::consumers::{Consumers, Plan, Settle};
use crate::load::report::{Failures, per_million};
use crate::numbers::grouped;
use crate::procfs::Memory;
use crate::progress::Progress;

/// A drain without an ack for this long is given up.
const STALLED_AFTER: Duration = Duration::from_secs(30);
/// How often its progress is shown.
const SHOWN_EVERY: Duration = Duration::from_secs(1);

/// What a drain showed.
#[derive(Debug)]
pub(crate) struct Drained {
    acked: u64,
    took: Duration,
    redelivered: u64,
    /// Different messages that were delivered as they were produced.
    intact: u64,
    cpu: Option<Duration>,
    /// Bytes read from the log meanwhile.
    read_bytes: u64,
    /// Memory at its end.
    pub(crate) memory: Option<Memory>,
    /// All failures; a message that was not delivered or is damaged is one.
    pub(crate) failures: Failures,
}

impl Drained {
    /// Messages per second.
    pub(crate) fn rate(&self) -> f64 {
        if self.took.is_zero() { 0.0 } else { self.acked as f64 / self.took.as_secs_f64() }
    }

    /// Prints it with a name.
    pub(crate) fn print(&self, name: &str) {
        let cpu = self.cpu.and_then(|cpu| per_million(cpu, self.acked));
        let cpu = cpu.map_or_else(|| "unknown".to_owned(), |cpu| format!("{cpu:.1} s"));
        println!("{name:<8} drained at {} messages/s, server CPU {cpu} per million", grouped(self.rate() as u64));
        println!(
            "         {} acked ({} redelivered), {} different ones with every byte as produced, {:.0} MB read",
            grouped(self.acked),
            grouped(self.redelivered),
            grouped(self.intact),
            self.read_bytes as f64 / 1e6
        );
        if let Some(memory) = self.memory {
            println!("         then {memory}");
        }
    }
}

/// What is drained.
#[derive(Debug)]
pub(super) struct Backlog {
    /// The topic, of which no message is acked yet.
    pub(super) topic: String,
    /// All its messages, as counted when they had been produced.
    pub(super) messages: u64,
    /// Bytes of each value.
    pub(super) size: u32,
}

/// Drains a backlog.
pub(super) async fn drain(broker: &mut Broker, backlog: &Backlog, consumers: u32, what: &str) -> Result<Drained> {
    let progress = Progress::spinner(what);
    let wanted = backlog.messages;
    let check = Arc::new(Checked::new(backlog.size));
    let plan = Plan {
        topic: backlog.topic.clone(),
        consumers,
        settle: Settle::Ack(AckKind::Ndjson),
        prefetch: None,
        epoch: None,
        check: Some(Arc::clone(&check)),
    };
    let (before, cpu_before, begun) = (broker.log_counters().await?, broker.cpu(), Instant::now());
    let running = Consumers::start(broker.addr(), &plan).await?;
    let (mut acked, mut last_ack) = (0, Instant::now());
    while !running.wait_for_acks(wanted, SHOWN_EVERY).await {
        broker.check_alive()?;
        if running.acked() != acked {
            (acked, last_ack) = (running.acked(), Instant::now());
        } else if last_ack.elapsed() > STALLED_AFTER {
            break;
        }
        progress.message(&format!("{what}: {} of {}", grouped(acked), grouped(wanted)));
    }
    let (took, acked) = (begun.elapsed(), running.acked());
    let cpu = cpu_before.zip(broker.cpu()).map(|(before, after)| after.saturating_sub(before));
    let read_bytes = broker.log_counters().await?.since(&before).read;
    let (deliveries, redelivered) = running.finish().await;
    let (mut failures, intact) = (deliveries.failures, check.distinct());
    failures.add("message not acked in time", wanted.saturating_sub(acked));
    failures.add("message not delivered as it was produced", wanted.saturating_sub(intact));
    Ok(Drained { acked, took, redelivered, intact, cpu, read_bytes, memory: broker.memory(), failures })
}
