//! `load produce`: produce throughput and latency, compared with a bare HTTP server or with TLS if
//! requested.

use std::time::Duration;

use crate::load::broker::Broker;
use crate::load::ceiling::Ceiling;
use crate::load::cli::{BrokerOptions, ProduceOptions};
use crate::load::client::{Effect, MessageShape};
use crate::load::drive::{Produces, Shape, Stamp};
use crate::load::error::Result;
use crate::load::modes::slices::{self, Figures, Pace, QUIET_CORES};
use crate::load::report::{Failures, ServerStats, ratio_line};
use crate::progress::Progress;

/// Measures and prints.
pub(crate) async fn run(options: &ProduceOptions) -> Result<Failures> {
    if options.tls {
        return run_beside_tls(options).await;
    }
    let figures = measure(options, &[]).await?;
    figures.print(ServerStats::print);
    figures.print_ratio();
    Ok(figures.failures())
}

/// Measures; a daemon that is started here gets further arguments.
pub(crate) async fn measure(options: &ProduceOptions, daemon_args: &[&str]) -> Result<Figures> {
    let broker_options = BrokerOptions { speaks_tls: true, ..options.broker.clone() };
    let mut broker = Broker::open(&broker_options, daemon_args).await?;
    let shape = shape(options, &broker).await?;
    let ceiling = if options.ceiling { Some(Ceiling::start()?) } else { None };
    let _progress = Progress::spinner("producing");
    slices::measure::<Produces>(&mut broker, ceiling, &shape, pace(options)).await
}

fn pace(options: &ProduceOptions) -> Pace {
    let length = Duration::from_secs_f64(options.seconds.max(0.01));
    Pace { connections: options.connections, length, rate: options.rate }
}

/// The messages, to a new topic of a broker.
async fn shape(options: &ProduceOptions, broker: &Broker) -> Result<Shape> {
    let topic = broker.create_topic(options.partitions).await?;
    let (size, partitions) = (options.size, options.partitions);
    let message = MessageShape { topic, size, partitions, effect: Effect::None };
    Ok(Shape { message, batch: options.batch, stamp: Stamp::Number })
}

/// Measures a broker without TLS and one with it in turns, and prints.
async fn run_beside_tls(options: &ProduceOptions) -> Result<Failures> {
    let plain = Broker::open(&options.broker, &[]).await?;
    let with_tls = BrokerOptions { has_tls: true, ..options.broker.clone() };
    let tls = Broker::open(&with_tls, &[]).await?;
    let shapes = [shape(options, &plain).await?, shape(options, &tls).await?];
    let measured = {
        let _progress = Progress::spinner("producing");
        slices::in_turns::<Produces>([&plain, &tls], &shapes, pace(options)).await?
    };
    let [plain, tls] = measured;
    plain.print("plain");
    tls.print("tls");
    if tls.others_cores().is_some_and(|cores| cores > QUIET_CORES) {
        eprintln!("warning: other programs were running; compare the CPU per million rather than the rates");
    }
    println!("{}", ratio_line(tls.rate(), plain.rate()));
    let mut failures = plain.stats.failures;
    failures.merge(&tls.stats.failures);
    Ok(failures)
}
