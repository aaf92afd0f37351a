//! Rows of DriftQ beside Redis Streams, driven as `load compare` does it.

use super::measurement::{Measured, Turns};
use super::names::RowName;
use super::rows::Reading;
use crate::load::error::Result;
use crate::load::modes::compare::{self, Work, program_of_redis};
use crate::load::report::median;
use crate::numbers::grouped;

/// Bytes of each value.
const SIZE: u32 = 200;

/// One kind of work, on DriftQ and on Redis in each turn.
pub(super) async fn compare(turns: &mut Turns<'_>, row: RowName, work: Work) -> Result<Measured> {
    if let Err(missing) = program_of_redis() {
        return Ok(Measured::Skipped(missing.to_string()));
    }
    let mut rates = Vec::new();
    for turn in 0..turns.count() {
        turns.begin(turn)?;
        let length = turns.length();
        let pair = compare::beside_redis(&turns.options.broker, SIZE, work, turn, length).await?;
        turns.failures.merge_named("DriftQ: ", &pair.driftq.failures);
        turns.failures.merge_named("Redis: ", &pair.other.failures);
        rates.push([pair.driftq.rate, pair.other.rate]);
    }
    Ok(Measured::Readings(vec![(row, reading(&rates))]))
}

/// The ratios of the rates, DriftQ's and Redis's; the rates behind them.
fn reading(rates: &[[f64; 2]]) -> Reading {
    let ratios = rates.iter().filter(|[_, redis]| *redis > 0.0).map(|[driftq, redis]| driftq / redis).collect();
    let middle = |at: usize| grouped(median(rates.iter().map(|pair| pair[at]).collect()) as u64);
    Reading::of(ratios).remark(format!("{}/s, Redis {}/s", middle(0), middle(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratio_is_that_of_each_turn() {
        // The machine was ten times slower in the second turn: the medians of the rates alone would say 1.
        let rates = [[200.0, 100.0], [20.0, 10.0], [2_000.0, 200.0]];
        assert_eq!(reading(&rates), Reading::of(vec![2.0, 2.0, 10.0]).remark("200/s, Redis 100/s"));
        assert!(!reading(&[[1.0, 0.0]]).is_known());
    }
}
