//! `load table`: every goal, measured, as a Markdown table.
//!
//! Rates, latencies and CPU costs are measured in turns, those of a ratio beside each other in every turn; the median
//! decides. Memory, a restart and instructions are measured once. A measurement that fails is noted in its rows and
//! the next one follows.

mod flows;
mod goals;
mod instructions;
mod measurement;
mod names;
mod options;
mod produces;
mod reactors;
mod redis;
mod rows;
mod sequencer;
mod sizes;
mod stores;

use std::collections::BTreeMap;

use self::measurement::{Measured, Measurement};
use self::names::RowName;
pub(crate) use self::options::TableOptions;
use self::rows::{Row, markdown};
use crate::load::error::Result;
use crate::load::report::Failures;

/// Makes the measurements of the chosen rows, and prints the table.
pub(crate) async fn run(options: &TableOptions) -> Result<Failures> {
    if options.broker.url.is_some() {
        return Err("the table starts its own brokers; --url cannot be used".into());
    }
    let chosen = options.chosen()?;
    let mut rows = BTreeMap::new();
    let mut failures = Failures::default();
    for measurement in Measurement::ALL {
        let wanted: Vec<RowName> = measurement.rows().iter().copied().filter(|row| chosen.contains(row)).collect();
        if wanted.is_empty() {
            continue;
        }
        let mut failed = Failures::default();
        let measured = measurement.make(options, &mut failed).await;
        rows.extend(rows_of(&wanted, measurement, &measured, options, &mut failed));
        failures.merge_named(&format!("{}: ", measurement.title()), &failed);
    }
    println!("\n{}", markdown(rows.values()));
    println!("failures: {failures}");
    Ok(failures)
}

/// The rows of a measurement. A row without a figure is a failure, unless it was skipped.
fn rows_of(
    wanted: &[RowName],
    measurement: Measurement,
    measured: &Result<Measured>,
    options: &TableOptions,
    failures: &mut Failures,
) -> Vec<(RowName, Row)> {
    if let Err(error) = measured {
        eprintln!("load: {}: {error}", measurement.title());
        failures.named("failed");
    }
    let mut row = |name: &RowName| {
        let (work, goal) = (name.work(options), name.goal());
        match measured {
            Err(error) => Row::failed(work, goal, &error.to_string()),
            Ok(Measured::Skipped(reason)) => Row::skipped(work, goal, reason),
            Ok(Measured::Readings(readings)) => {
                let reading = readings.iter().find(|(of, _)| of == name).map(|(_, reading)| reading.clone());
                let reading = reading.unwrap_or_default();
                if !reading.is_known() {
                    failures.named(&format!("no figure of {work}"));
                }
                Row::of(work, goal, &reading)
            }
        }
    };
    wanted.iter().map(|name| (*name, row(name))).collect()
}
