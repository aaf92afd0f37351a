//! Rows of two reactors beside one.

use super::measurement::Turns;
use super::names::RowName;
use super::options::TableOptions;
use super::rows::Reading;
use super::{flows, produces};
use crate::load::cli::{AckKind, ProduceOptions};
use crate::load::error::Result;
use crate::load::report::{Failures, median};

/// The arguments of the two brokers.
const ONE: [&str; 2] = ["--reactors", "1"];
const TWO: [&str; 2] = ["--reactors", "2"];

type Readings = Vec<(RowName, Reading)>;

/// What a broker with some reactors did in a turn.
#[derive(Debug, Clone, Copy)]
struct Driven {
    rate: f64,
    server_cpu: Option<f64>,
}

pub(super) async fn produces(turns: &mut Turns<'_>) -> Result<Readings> {
    produces_of(turns, RowName::ReactorsProduces, produces::many_singles).await
}

pub(super) async fn batches(turns: &mut Turns<'_>) -> Result<Readings> {
    produces_of(turns, RowName::ReactorsBatches, produces::hundreds).await
}

async fn produces_of(
    turns: &mut Turns<'_>,
    row: RowName,
    plan: impl Fn(&TableOptions) -> ProduceOptions,
) -> Result<Readings> {
    let drive = async |options: &TableOptions, args: &[&str]| {
        let figures = produces::measure_once(&plan(options), args).await?;
        let driven = Driven { rate: figures.server.rate(), server_cpu: figures.server.cpu_per_million() };
        Ok((driven, figures.failures()))
    };
    in_turns(turns, row, drive).await
}

pub(super) async fn end_to_end(turns: &mut Turns<'_>) -> Result<Readings> {
    let drive = async |options: &TableOptions, args: &[&str]| {
        let figures = flows::measure_once(options, AckKind::Single, None, args).await?;
        Ok((Driven { rate: figures.rate, server_cpu: figures.server_cpu }, figures.failures))
    };
    in_turns(turns, RowName::ReactorsEndToEnd, drive).await
}

/// Drives the two in turns, each first in every other one.
async fn in_turns(
    turns: &mut Turns<'_>,
    row: RowName,
    drive: impl AsyncFn(&TableOptions, &[&str]) -> Result<(Driven, Failures)>,
) -> Result<Readings> {
    let pairs = turns
        .each(async |options, turn| {
            let order = if turn % 2 == 0 { [ONE, TWO] } else { [TWO, ONE] };
            println!("{}", order[0].join(" "));
            let (first, mut failures) = drive(options, &order[0]).await?;
            println!("{}", order[1].join(" "));
            let (second, more) = drive(options, &order[1]).await?;
            failures.merge(&more);
            Ok((if turn % 2 == 0 { [first, second] } else { [second, first] }, failures))
        })
        .await?;
    Ok(vec![(row, reading(&pairs))])
}

/// The ratios of the rates; those of the CPU costs behind them.
fn reading(pairs: &[[Driven; 2]]) -> Reading {
    let rates = pairs.iter().filter(|[one, _]| one.rate > 0.0).map(|[one, two]| two.rate / one.rate).collect();
    let cpu = pairs.iter().filter_map(|[one, two]| Some(two.server_cpu? / one.server_cpu.filter(|&cpu| cpu > 0.0)?));
    let cpu: Vec<f64> = cpu.collect();
    let reading = Reading::of(rates);
    if cpu.is_empty() { reading } else { reading.remark(format!("server CPU {:.2} ×", median(cpu))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratio_of_a_turn_is_that_of_two_to_one() {
        let driven = |rate, server_cpu| Driven { rate, server_cpu: Some(server_cpu) };
        let pairs = [[driven(100.0, 10.0), driven(150.0, 12.0)], [driven(0.0, 0.0), driven(5.0, 1.0)]];
        assert_eq!(reading(&pairs), Reading::once(1.5).remark("server CPU 1.20 ×"));
    }
}
