//! `load produce`: produce throughput and latency, compared with a bare HTTP server if requested.

use std::time::Duration;

use crate::load::broker::Broker;
use crate::load::ceiling::Ceiling;
use crate::load::cli::ProduceOptions;
use crate::load::client::{Effect, MessageShape};
use crate::load::drive::{Produces, Shape, Stamp};
use crate::load::error::Result;
use crate::load::modes::slices::{self, Figures, Pace};
use crate::load::report::{Failures, ServerStats};
use crate::progress::Progress;

/// Measures and prints.
pub(crate) async fn run(options: &ProduceOptions) -> Result<Failures> {
    let figures = measure(options, &[]).await?;
    figures.print(ServerStats::print);
    figures.print_ratio();
    Ok(figures.failures())
}

/// Measures; a daemon that is started here gets further arguments.
pub(crate) async fn measure(options: &ProduceOptions, daemon_args: &[&str]) -> Result<Figures> {
    let mut broker = Broker::open(&options.broker, daemon_args).await?;
    let topic = broker.create_topic(options.partitions).await?;
    let (size, partitions) = (options.size, options.partitions);
    let message = MessageShape { topic, size, partitions, effect: Effect::None };
    let shape = Shape { message, batch: options.batch, stamp: Stamp::Number };
    let ceiling = if options.ceiling { Some(Ceiling::start()?) } else { None };
    let length = Duration::from_secs_f64(options.seconds.max(0.01));
    let _progress = Progress::spinner("producing");
    let pace = Pace { connections: options.connections, length, rate: options.rate };
    slices::measure::<Produces>(&mut broker, ceiling, &shape, pace).await
}
