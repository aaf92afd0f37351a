//! `load steps`: a workflow step under load. Workers consume one topic and complete every delivery with a result and
//! messages for the next topic, one request per step.

use std::time::{Duration, Instant};

use crate::load::broker::Broker;
use crate::load::cli::StepsOptions;
use crate::load::client::{Effect, MessageShape};
use crate::load::error::Result;
use crate::load::modes::consumers::{Consumers, Plan, Settle, Steps};
use crate::load::modes::fill;
use crate::load::report::{Failures, Stats, per_million, print_cost};
use crate::numbers::grouped;
use crate::procfs::{self, Memory};
use crate::progress::Progress;

/// Messages to produce per second of the run: more than are completed. If they do not suffice, the run ends early.
const FILL_PER_SECOND: f64 = 40_000.0;
/// How long the completes in flight at the end may take.
const RESPONSE_WITHIN: Duration = Duration::from_secs(30);

/// What `steps` measures.
#[derive(Debug)]
pub(crate) struct Figures {
    steps: u64,
    /// Steps per second, from opening the streams to the last response.
    pub(crate) rate: f64,
    completes: Stats,
    /// Messages of the output topic at the end: found and expected.
    outputs: (u64, u64),
    /// CPU seconds per million steps, of the broker and of this process.
    server_cpu: Option<f64>,
    client_cpu: Option<f64>,
    memory: Option<Memory>,
    /// All failures.
    pub(crate) failures: Failures,
}

/// Measures and prints.
pub(crate) async fn run(options: &StepsOptions) -> Result<Failures> {
    let figures = measure(options).await?;
    figures.print();
    Ok(figures.failures)
}

impl Figures {
    /// Prints the figures.
    pub(crate) fn print(&self) {
        println!("steps    {} steps/s ({} in all)", grouped(self.rate as u64), grouped(self.steps));
        println!("         complete: {}", self.completes.latencies());
        print_cost("steps", self.server_cpu, self.client_cpu, self.memory);
        let (found, expected) = self.outputs;
        if found == expected {
            println!("outputs  {} messages, exactly as many as the steps produced", grouped(found));
        } else {
            println!("outputs  {} messages, but the steps produced {}", grouped(found), grouped(expected));
        }
        println!("         failures: {}", self.failures);
    }
}

/// Measures.
pub(crate) async fn measure(options: &StepsOptions) -> Result<Figures> {
    let mut broker = Broker::open(&options.broker, &[]).await?;
    let input = broker.create_topic(options.partitions).await?;
    let output = broker.create_topic(options.partitions).await?;
    let (size, partitions) = (options.size, options.partitions);
    let effect = if options.plain { Effect::None } else { Effect::Keyed };
    let message = MessageShape { topic: input.clone(), size, partitions, effect };
    let wanted = options.messages.unwrap_or((options.seconds * FILL_PER_SECOND).ceil() as u64);
    let filled = fill(&broker, message, wanted).await?;

    let _progress = Progress::spinner("completing steps");
    let message = MessageShape { topic: output.clone(), size, partitions, effect: Effect::None };
    let steps = Steps { output: message, outputs: options.outputs, in_flight: options.in_flight };
    let plan = Plan {
        topic: input,
        consumers: options.workers,
        settle: Settle::Complete(steps),
        prefetch: options.prefetch,
        epoch: None,
        check: None,
    };
    let (cpu_before, own_before, begun) = (broker.cpu(), procfs::own_cpu_time(), Instant::now());
    let mut workers = Consumers::start(broker.addr(), &plan).await?;
    workers.wait_for_acks(filled.messages, Duration::from_secs_f64(options.seconds.max(0.01))).await;
    let completed = workers.stop_completing(RESPONSE_WITHIN).await;
    let took = begun.elapsed();
    let cpu = cpu_before.zip(broker.cpu()).map(|(before, after)| after.saturating_sub(before));
    let client_cpu = procfs::own_cpu_time().saturating_sub(own_before);
    let (memory, completes, steps) = (broker.memory(), workers.completes(), workers.acked());
    let (deliveries, _) = workers.finish().await;
    broker.warn_if_exited();

    let mut failures = filled.failures;
    failures.merge(&deliveries.failures);
    if !completed {
        failures.named("completes without a response");
    }
    let outputs = (broker.message_count(&output).await?, steps * u64::from(options.outputs));
    if outputs.0 != outputs.1 {
        failures.named(&format!("output topic with {} messages instead of {}", outputs.0, outputs.1));
    }
    Ok(Figures {
        steps,
        rate: steps as f64 / took.as_secs_f64(),
        completes,
        outputs,
        server_cpu: cpu.and_then(|cpu| per_million(cpu, steps)),
        client_cpu: per_million(client_cpu, steps),
        memory,
        failures,
    })
}
