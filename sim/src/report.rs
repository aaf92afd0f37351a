//! What a run says at its end, for people.

use std::fmt::Write as _;
use std::num::NonZeroUsize;
use std::time::Duration;

use crate::campaign::Summary;
use crate::coverage::{Coverage, Point};

/// From how many seeds on every point must have been met.
pub const SEEDS_THAT_MEET_ALL: u64 = 2_000;

/// The figures of a run, a line each.
#[must_use]
pub fn figures(summary: &Summary, jobs: NonZeroUsize) -> String {
    let Summary { seeds, counters, elapsed, .. } = summary;
    let seconds = elapsed.as_secs_f64().max(1e-9);
    let rate = counters.events as f64 / seconds;
    let simulated = Duration::from_millis(counters.simulated_ms);
    let faster = simulated.as_secs_f64() / seconds;
    let outputs = counters.replies + counters.deliveries;
    // Streams that are closed are predicted too, and counted nowhere.
    let share = 100.0 * (counters.predicted.min(outputs)) as f64 / outputs.max(1) as f64;
    let mut lines = String::new();
    let mut row = |name: &str, value: String| {
        let _ = writeln!(lines, "{name:<18} {value}");
    };
    row("seeds", format!("{} in {}", grouped(*seeds), span(*elapsed)));
    row("events", grouped(counters.events));
    let per_core = grouped((rate / jobs.get() as f64) as u64);
    row("events/s", format!("{} ({per_core} on each of {jobs} threads)", grouped(rate as u64)));
    row("simulated time", format!("{}, {}x real time", span(simulated), grouped(faster as u64)));
    row("commands", grouped(counters.commands));
    row("deliveries", grouped(counters.deliveries));
    row("effects", grouped(counters.effects));
    row("crashes", grouped(counters.crashes));
    row("boots", grouped(counters.boots));
    row("predicted", format!("{share:.1} % of {} answers and deliveries", grouped(outputs)));
    row("peak memory", peak_memory_kib().map_or("not known here".to_owned(), |kib| format!("{} MiB", kib / 1_024)));
    row("digest", summary.chain.to_string());
    lines
}

/// The invariants that are about effects and completed steps.
const ABOUT_EFFECTS: [u8; 3] = [12, 24, 25];

/// What was granted, run, replayed and skipped, a line each, and whether an effect was ever run again without a reason.
#[must_use]
pub fn effects(summary: &Summary) -> String {
    let counters = &summary.counters;
    let mut lines = String::from("effects\n");
    let mut row = |count: u64, what: &str| {
        let _ = writeln!(lines, "{:>12}  {what}", grouped(count));
    };
    row(counters.messages, "messages were stored");
    row(counters.deliveries, "deliveries were made");
    row(counters.grants, "times the answer was EXECUTE");
    row(counters.effects, "effects were run, by the workers' ledger");
    row(counters.reruns, "of them had been run before, each under a grant that allows it");
    row(counters.replays, "times the answer was REPLAY");
    row(counters.skips, "messages were done undelivered, because another of their identity was");
    row(counters.completed, "steps were completed");
    let broken = |number: u8| {
        summary
            .failures
            .iter()
            .any(|failure| failure.run.violation.as_ref().is_some_and(|found| found.invariant == number))
    };
    lines.push_str(match ABOUT_EFFECTS.into_iter().any(broken) {
        true => "what \"once\" means was BROKEN; the failures below say how\n",
        false => {
            "what \"once\" means was held: no effect was run again but under a grant given after a lease had ended, a recorded failure, a \
             newer delivery, a forget or the end of its window, and none that had succeeded within it; whatever a completed step made is \
             there exactly once\n"
        }
    });
    lines
}

/// How often each rare situation was met.
#[must_use]
pub fn coverage_table(coverage: &Coverage) -> String {
    let mut lines = String::from("sometimes\n");
    for point in Point::ALL {
        let count = coverage.count(*point);
        let mark = if count == 0 { "  NEVER" } else { "" };
        let _ = writeln!(lines, "{:>12}  {}{mark}", grouped(count), point.sentence());
    }
    lines
}

/// What a run that is long enough should have met, and has not.
#[must_use]
pub fn missed(summary: &Summary) -> Vec<Point> {
    let is_long = summary.seeds >= SEEDS_THAT_MEET_ALL;
    summary.coverage.never().filter(|_| is_long).collect()
}

/// A number with its thousands apart.
#[must_use]
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (nth, digit) in digits.chars().enumerate() {
        if nth > 0 && (digits.len() - nth).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A time as people say it.
#[must_use]
pub fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{:.1} s", time.as_secs_f64()),
        60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{} h {} min", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{} days", grouped(seconds / 86_400)),
    }
}

/// The most memory the process has had, where the system tells.
pub(crate) fn peak_memory_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_times_are_readable() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(span(Duration::from_millis(1_540)), "1.5 s");
        assert_eq!(span(Duration::from_secs(125)), "2 min 5 s");
        assert_eq!(span(Duration::from_secs(3_700)), "1 h 1 min");
        assert_eq!(span(Duration::from_secs(86_400 * 1_500)), "1,500 days");
    }

    #[test]
    fn a_point_never_met_is_marked_and_missed_in_a_long_run_only() {
        let mut summary = Summary { seeds: SEEDS_THAT_MEET_ALL - 1, ..Summary::default() };
        for point in Point::ALL.iter().skip(1) {
            summary.coverage.hit(*point);
        }
        assert_eq!(coverage_table(&summary.coverage).matches("NEVER").count(), 1);
        assert!(missed(&summary).is_empty());
        summary.seeds += 1;
        assert_eq!(missed(&summary), [Point::ALL[0]]);
    }
}
