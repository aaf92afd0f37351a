//! `load produce`: how many messages the broker takes, and how that compares with a server that only speaks HTTP.

use std::time::Duration;

use crate::Result;
use crate::broker::Broker;
use crate::ceiling::Ceiling;
use crate::cli::ProduceOptions;
use crate::client::{Effect, MessageShape};
use crate::drive::{Produces, Shape, Stamp};
use crate::modes::turns::{self, Figures, Pace};
use crate::progress::Spinner;
use crate::report::{Failures, Side};

/// Measures and prints.
pub(crate) async fn run(options: &ProduceOptions) -> Result<Failures> {
    let figures = measure(options, &[]).await?;
    figures.print(Side::print);
    figures.print_ratio();
    Ok(figures.failures())
}

/// Measures; the daemon, if it is started here, is given further arguments.
pub(crate) async fn measure(options: &ProduceOptions, daemon_args: &[&str]) -> Result<Figures> {
    let mut broker = Broker::open(&options.broker, daemon_args).await?;
    let topic = broker.new_topic(options.partitions).await?;
    let (size, partitions) = (options.size, options.partitions);
    let message = MessageShape { topic, size, partitions, effect: Effect::None };
    let shape = Shape { message, batch: options.batch, stamp: Stamp::Number };
    let ceiling = if options.ceiling { Some(Ceiling::start()?) } else { None };
    let length = Duration::from_secs_f64(options.seconds.max(0.01));
    let _spinner = Spinner::new("producing");
    let pace = Pace { connections: options.connections, length, rate: options.rate };
    turns::measure::<Produces>(&mut broker, ceiling, &shape, pace).await
}
