//! The report of a campaign, as text.

use std::fmt::Write as _;
use std::num::NonZeroUsize;
use std::time::Duration;

pub use driftq_inspect::format::{duration as span, grouped};

use crate::campaign::Summary;
use crate::coverage::{Coverage, Point};

/// A campaign of at least this many seeds must hit every coverage point.
pub const FULL_COVERAGE_SEEDS: u64 = 2_000;

/// The figures of a campaign, one per line.
#[must_use]
pub fn figures(summary: &Summary, jobs: NonZeroUsize) -> String {
    let Summary { seeds, counters, elapsed, .. } = summary;
    let seconds = elapsed.as_secs_f64().max(1e-9);
    let rate = counters.events as f64 / seconds;
    let simulated = Duration::from_millis(counters.simulated_ms);
    let speedup = simulated.as_secs_f64() / seconds;
    let outputs = counters.replies + counters.deliveries;
    let share = 100.0 * counters.predicted as f64 / (outputs + counters.closed).max(1) as f64;
    let mut lines = String::new();
    let mut row = |name: &str, value: String| {
        let _ = writeln!(lines, "{name:<18} {value}");
    };
    row("seeds", format!("{} in {}", grouped(*seeds), span(*elapsed)));
    row("events", grouped(counters.events));
    let per_core = grouped((rate / jobs.get() as f64) as u64);
    row("events/s", format!("{} ({per_core} on each of {jobs} threads)", grouped(rate as u64)));
    row("simulated time", format!("{}, {}x real time", span(simulated), grouped(speedup as u64)));
    row("commands", grouped(counters.commands));
    row("deliveries", grouped(counters.deliveries));
    row("effects", grouped(counters.effects));
    row("crashes", grouped(counters.crashes));
    row("boots", grouped(counters.boots));
    row("predicted", format!("{share:.1} % of {} replies and deliveries", grouped(outputs)));
    row("peak memory", peak_memory_kib().map_or("unknown".to_owned(), |kib| format!("{} MiB", kib / 1_024)));
    row("digest", summary.chain.to_string());
    lines
}

/// The invariants about effects and completed steps.
const EFFECT_INVARIANTS: [u8; 3] = [12, 24, 25];

/// How often effects were granted, run, replayed and skipped, one figure per line, and whether every rerun was
/// justified.
#[must_use]
pub fn effects(summary: &Summary) -> String {
    let counters = &summary.counters;
    let mut lines = String::from("effects\n");
    let mut row = |count: u64, what: &str| {
        let _ = writeln!(lines, "{:>12}  {what}", grouped(count));
    };
    row(counters.messages, "messages stored");
    row(counters.deliveries, "deliveries");
    row(counters.grants, "EXECUTE replies");
    row(counters.effects, "effects run by workers");
    row(counters.reruns, "of them reruns, each under a grant that allows it");
    row(counters.replays, "REPLAY replies");
    row(counters.skips, "messages skipped because their identity was committed");
    row(counters.completed, "steps completed");
    let violated = |number: u8| {
        summary
            .failures
            .iter()
            .any(|failure| failure.run.violation.as_ref().is_some_and(|found| found.invariant == number))
    };
    lines.push_str(match EFFECT_INVARIANTS.into_iter().any(violated) {
        true => "exactly-once effects: VIOLATED, see the failures below\n",
        false => {
            "exactly-once effects: held. An effect ran again only under a grant issued after an expired lease, a \
             recorded failure, a newer delivery, a forget or the end of its window, and never after a success \
             within it; every output of a completed step is stored exactly once\n"
        }
    });
    lines
}

/// How often each coverage point was hit.
#[must_use]
pub fn coverage_table(coverage: &Coverage) -> String {
    let mut lines = String::from("coverage\n");
    for point in Point::ALL {
        let count = coverage.count(*point);
        let mark = if count == 0 { "  NEVER" } else { "" };
        let _ = writeln!(lines, "{:>12}  {}{mark}", grouped(count), point.sentence());
    }
    lines
}

/// The coverage points that a long campaign should have hit and did not.
#[must_use]
pub fn missed(summary: &Summary) -> Vec<Point> {
    let is_long = summary.seeds >= FULL_COVERAGE_SEEDS;
    summary.coverage.never().filter(|_| is_long).collect()
}

/// The peak memory of the process, where the system reports it.
pub(crate) fn peak_memory_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn point_never_hit_is_marked_and_missed_only_in_a_long_campaign() {
        let mut summary = Summary { seeds: FULL_COVERAGE_SEEDS - 1, ..Summary::default() };
        for point in Point::ALL.iter().skip(1) {
            summary.coverage.hit(*point);
        }
        assert_eq!(coverage_table(&summary.coverage).matches("NEVER").count(), 1);
        assert!(missed(&summary).is_empty());
        summary.seeds += 1;
        assert_eq!(missed(&summary), [Point::ALL[0]]);
    }
}
