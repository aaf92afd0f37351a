//! The figures of all turns, and the table.

use std::time::Duration;

use crate::load::modes::compare::measure::{Figures, Latency};
use crate::load::report::{Failures, time};
use crate::numbers::grouped;

/// A row of the table: a system, and for each kind of work its figures by turn. A turn that failed has none.
#[derive(Debug)]
pub(crate) struct Row {
    /// The name of the system.
    pub(crate) system: String,
    /// Kinds of work, and turns of each. A kind that the protocol does not have has no turns.
    pub(crate) works: Vec<Vec<Option<Figures>>>,
}

/// The rows as a Markdown table. The first is that of the system which the others are compared with.
pub(crate) fn markdown(works: &[&str], rows: &[Row]) -> String {
    let mut table = format!("| system | {} |\n|---|{}\n", works.join(" | "), "---|".repeat(works.len()));
    for row in rows {
        let cells = row.works.iter().zip(&rows[0].works).map(|(turns, reference)| cell(turns, reference));
        table.push_str(&format!("| {} | {} |\n", row.system, cells.collect::<Vec<_>>().join(" | ")));
    }
    table
}

/// Rate, latencies, CPU time and ratio of one kind of work.
fn cell(turns: &[Option<Figures>], reference: &[Option<Figures>]) -> String {
    let measured: Vec<&Figures> = turns.iter().flatten().collect();
    if turns.is_empty() {
        return "–".to_owned();
    }
    let Some(rate) = median(measured.iter().map(|figures| figures.rate)) else { return "failed".to_owned() };
    let latency = |of: fn(Latency) -> Duration| {
        let seconds = median(measured.iter().filter_map(|figures| figures.latency.map(|all| of(all).as_secs_f64())));
        seconds.map_or_else(|| "–".to_owned(), |seconds| time(Duration::from_secs_f64(seconds)))
    };
    let cpu = median(measured.iter().filter_map(|figures| figures.server_cpu));
    let cpu = cpu.map_or_else(|| "CPU unknown".to_owned(), |seconds| format!("CPU {seconds:.1} s"));
    let checked: u64 = measured.iter().map(|figures| figures.checked).sum();
    let ratio = median(ratios(turns, reference)).map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2} ×"));
    let failed = if measured.iter().all(|figures| figures.failures.is_empty()) { "" } else { "<br>**with failures**" };
    format!(
        "**{}/s**<br>p50 {}, p99 {}<br>{cpu}<br>ratio {ratio}<br>{} checked{failed}",
        grouped(rate as u64),
        latency(|latency| latency.p50),
        latency(|latency| latency.p99),
        grouped(checked),
    )
}

/// Of each turn, the rate of the reference divided by this one.
fn ratios(turns: &[Option<Figures>], reference: &[Option<Figures>]) -> impl Iterator<Item = f64> {
    let pairs = turns.iter().zip(reference).filter_map(|(turn, reference)| turn.as_ref().zip(reference.as_ref()));
    pairs.filter(|(turn, _)| turn.rate > 0.0).map(|(turn, reference)| reference.rate / turn.rate)
}

/// Cores used by other programs: the median of all measurements.
pub(crate) fn others_cores(rows: &[Row]) -> Option<f64> {
    let all = rows.iter().flat_map(|row| row.works.iter().flatten().flatten());
    median(all.filter_map(|figures| figures.others_cores))
}

/// The middle of some values; of an even number, the mean of the two in the middle.
fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = values[(values.len() - 1) / 2];
    Some((lower + upper) / 2.0)
}

/// All failures, with the system and the work in front.
pub(crate) fn failures(works: &[&str], rows: &[Row]) -> Failures {
    let mut failures = Failures::default();
    for row in rows {
        for (work, turns) in works.iter().zip(&row.works) {
            for figures in turns {
                match figures {
                    Some(figures) => failures.merge_named(&format!("{}, {work}: ", row.system), &figures.failures),
                    None => failures.named(&format!("{}, {work}: turn without figures", row.system)),
                }
            }
        }
    }
    failures
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(rate: f64) -> Option<Figures> {
        let latency = Some(Latency { p50: Duration::from_micros(100), p99: Duration::from_micros(1_500) });
        Some(Figures {
            rate,
            latency,
            server_cpu: Some(2.0),
            others_cores: Some(0.5),
            checked: 1_000,
            failures: Failures::default(),
        })
    }

    #[test]
    fn median_is_the_middle_value() {
        assert_eq!(median([3.0, 1.0, 9.0].into_iter()), Some(3.0));
        assert_eq!(median([4.0, 1.0, 9.0, 2.0].into_iter()), Some(3.0));
        assert_eq!(median(std::iter::empty()), None);
    }

    #[test]
    fn ratio_is_the_median_of_the_ratios_of_each_turn() {
        // The machine was ten times slower in the second turn: the medians of the rates alone would say 1 ×.
        let (ours, others) = (vec![turn(200.0), turn(20.0), turn(2_000.0)], vec![turn(100.0), turn(10.0), turn(200.0)]);
        assert_eq!(ratios(&others, &ours).collect::<Vec<_>>(), [2.0, 2.0, 10.0]);
        let expected = "**100/s**<br>p50 100 µs, p99 1.50 ms<br>CPU 2.0 s<br>ratio 2.00 ×<br>3,000 checked";
        assert_eq!(cell(&others, &ours), expected);
        assert_eq!(ratios(&[None, turn(10.0)], &ours).collect::<Vec<_>>(), [2.0]);
    }

    #[test]
    fn table_marks_what_is_missing_and_what_failed() {
        let mut bad = turn(10.0);
        if let Some(figures) = &mut bad {
            figures.failures.named("XADD ERR");
        }
        let row = |system: &str, works| Row { system: system.to_owned(), works };
        let rows = [
            row("DriftQ", vec![vec![turn(50.0)], vec![turn(10.0)]]),
            row("A", vec![vec![bad], vec![]]),
            row("B", vec![vec![None], vec![turn(10.0)]]),
        ];
        let table = markdown(&["single", "batches"], &rows);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[..2], ["| system | single | batches |", "|---|---|---|"]);
        assert!(lines[2].contains("ratio 1.00 ×"), "{table}");
        assert!(lines[3].contains("ratio 5.00 ×") && lines[3].ends_with("**with failures** | – |"), "{table}");
        assert!(lines[4].starts_with("| B | failed | **10/s**"), "{table}");
        assert_eq!(others_cores(&rows), Some(0.5));
        let failures = failures(&["single", "batches"], &rows).to_string();
        assert_eq!(failures, "1 × A, single: XADD ERR, 1 × B, single: turn without figures");
    }
}
