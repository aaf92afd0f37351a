//! Rows of the CPU time that decisions take. With two reactors they are made on a thread of its own.

use super::measurement::Turns;
use super::names::RowName;
use super::options::TableOptions;
use super::rows::Reading;
use crate::load::error::Result;
use crate::load::modes::budget::{Amount, Role, Taking, Traffic, measure_threads};
use crate::load::report::Failures;
use crate::numbers::grouped;

type Readings = Vec<(RowName, Reading)>;

pub(super) async fn produces(turns: &mut Turns<'_>) -> Result<Readings> {
    let micros = turns.each(async |options, _turn| cost(Traffic::Produces, options).await).await?;
    Ok(vec![(RowName::SequencerProduce, Reading::of(micros))])
}

/// What messages cost with consumers that ack them, less what they cost without.
pub(super) async fn settles(turns: &mut Turns<'_>) -> Result<Readings> {
    let micros = turns
        .each(async |options, turn| {
            let flows = [Traffic::Flow(None), Traffic::Flow(Some(Taking::AckLines))];
            let order = if turn % 2 == 0 { [0, 1] } else { [1, 0] };
            let (mut costs, mut failures) = ([0.0; 2], Failures::default());
            for at in order {
                let (micros, failed) = cost(flows[at], options).await?;
                costs[at] = micros;
                failures.merge(&failed);
            }
            let [without, with] = costs;
            Ok((with - without, failures))
        })
        .await?;
    Ok(vec![(RowName::SequencerSettle, Reading::of(micros))])
}

/// CPU time of the sequencer's thread per message, in microseconds.
async fn cost(traffic: Traffic, options: &TableOptions) -> Result<(f64, Failures)> {
    let amount = Amount::Seconds(options.seconds);
    let (times, failures) = measure_threads(traffic, amount, &options.broker, &["--reactors", "2"]).await?;
    let cpu = times.cpu_of(Role::Sequencer).ok_or("the broker has no thread of the sequencer")?;
    if times.messages == 0 {
        return Err(format!("no message was counted of {traffic:?}").into());
    }
    let micros = cpu.as_secs_f64() * 1e6 / times.messages as f64;
    println!("{traffic:?}: {} messages, {micros:.2} µs of the sequencer's each", grouped(times.messages));
    Ok((micros, failures))
}
