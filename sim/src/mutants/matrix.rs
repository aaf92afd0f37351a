//! The kill matrix as Markdown tables, and their insertion into a document.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use driftq_core::faults::Fault;

use super::{Effort, Row};

const BEGIN: &str = "<!-- kill matrix -->";
const END: &str = "<!-- /kill matrix -->";

/// The numbered invariants in short.
const INVARIANTS: &[(u8, &str)] = &[
    (0, "the broker never panics"),
    (1, "a message is in exactly one state"),
    (2, "counters equal a recount"),
    (3, "only accepted messages, byte for byte"),
    (4, "offsets are stable"),
    (5, "no redelivery after a confirmed ack"),
    (6, "stale claims change nothing"),
    (7, "tokens increase across crashes"),
    (8, "one lease holder"),
    (9, "in flight within the limit"),
    (10, "first deliveries ascend, priorities first"),
    (11, "one offset per produce identity"),
    (12, "effects run again only with a reason"),
    (13, "attempts increment"),
    (14, "dead letters and redrive"),
    (15, "not before due, not after the deadline"),
    (16, "limits hold; refusals change nothing"),
    (17, "nothing unsynced is released, nothing synced is lost"),
    (18, "the recovered state equals the log"),
    (19, "recovery is idempotent"),
    (20, "damage is refused or harmless; a sound disk is accepted"),
    (21, "every output equals the oracle's prediction"),
    (22, "same trace, same digest chain"),
    (23, "nothing is released after a log failure"),
    (24, "one live grant per effect"),
    (25, "completed steps are atomic"),
    (26, "everything drains"),
    (27, "segments and snapshots are as few as allowed"),
    (28, "tallies, counters, timers and the index equal a recount"),
    (29, "turns are fair, commands and maintenance end"),
    (30, "what users would call wrong"),
];

/// The document has no markers for the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it has no lines \"{BEGIN}\" and, below it, \"{END}\", between which the tables are written")]
pub struct MarkerError;

/// The document with the text between the markers replaced.
///
/// # Errors
/// [`MarkerError`] if the markers are missing.
pub fn insert(document: &str, tables: &str) -> Result<String, MarkerError> {
    let (before, rest) = document.split_once(BEGIN).ok_or(MarkerError)?;
    let (_, after) = rest.split_once(END).ok_or(MarkerError)?;
    Ok(format!("{before}{BEGIN}\n\n{tables}\n{END}{after}"))
}

/// Both tables: which invariant kills each bug, and which bugs each invariant kills alone.
#[must_use]
pub fn tables(rows: &[Row], effort: Effort) -> String {
    let mut text = by_mutant(rows, effort);
    text.push('\n');
    text.push_str(&by_invariant(rows, effort));
    text
}

fn by_mutant(rows: &[Row], effort: Effort) -> String {
    let killed = rows.iter().filter(|row| row.is_killed()).count();
    let mut text = format!(
        "{killed} of {} planted bugs are killed within {} seeds. Seeds to kill: the median and the worst of {} \
            starts.\n\n",
        rows.len(),
        effort.seeds,
        effort.starts
    );
    text.push_str(
        "| planted bug | first invariant | without the oracle | seeds to kill, median | worst | shrunk to actions |\n",
    );
    text.push_str("|---|---|---|---|---|---|\n");
    for row in rows {
        let name = row.fault.name();
        if !row.is_killed() {
            let _ = writeln!(text, "| `{name}` | **SURVIVED** | | > {} | | |", effort.seeds);
            continue;
        }
        let first =
            row.first.as_ref().map_or(String::new(), |first| format!("{}: {}", first.invariant, first.sentence));
        let without = match row.killers.is_empty() {
            true => "none".to_owned(),
            false => row.killers.keys().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        };
        let seeds = |seeds: Option<u64>| seeds.map_or(format!("> {}", effort.seeds), |seeds| seeds.to_string());
        let actions = row.shortest.as_ref().map_or(String::new(), |shortest| shortest.trace.actions.len().to_string());
        let (median, worst) = (seeds(row.median()), seeds(row.worst()));
        let _ = writeln!(text, "| `{name}` | {first} | {without} | {median} | {worst} | {actions} |");
    }
    text
}

fn by_invariant(rows: &[Row], effort: Effort) -> String {
    let mut alone: BTreeMap<u8, Vec<Fault>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.is_killed()) {
        if let Some(only) = row.only_killer() {
            alone.entry(only).or_default().push(row.fault);
        }
    }
    let mut text = format!(
        "An invariant kills a bug *alone* if, in {} seeds without the oracle, no other was ever the first to be \
         violated; the oracle (21) if no other was violated at all.\n\n\
         | invariant | planted bugs that it alone kills |\n|---|---|\n",
        effort.survey
    );
    for (number, summary) in INVARIANTS {
        let kills = match alone.get(number) {
            Some(faults) => faults.iter().map(|fault| format!("`{}`", fault.name())).collect::<Vec<_>>().join(", "),
            None => in_depth(rows, *number),
        };
        let _ = writeln!(text, "| {number}: {summary} | {kills} |");
    }
    text
}

/// The bugs that an invariant kills together with others.
fn in_depth(rows: &[Row], number: u8) -> String {
    let detects = |row: &&Row| {
        row.killers.contains_key(&number) || row.first.as_ref().is_some_and(|first| first.invariant == number)
    };
    let detected: Vec<String> = rows
        .iter()
        .filter(|row| row.is_killed())
        .filter(detects)
        .map(|row| format!("`{}`", row.fault.name()))
        .collect();
    match detected.is_empty() {
        true => "defence in depth: no planted bug violated it first".to_owned(),
        false => format!("defence in depth; with others it kills {}", detected.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::ViolatedInvariant;

    #[test]
    fn tables_replace_the_text_between_the_markers() {
        let document = format!("a\n{BEGIN}\nold\n{END}\nb\n");
        let inserted = insert(&document, "new\n").expect("markers");
        assert_eq!(inserted, format!("a\n{BEGIN}\n\nnew\n\n{END}\nb\n"));
        assert_eq!(insert(&inserted, "new\n").as_deref(), Ok(inserted.as_str()), "inserting twice changes nothing");
        assert_eq!(insert("nothing", "new"), Err(MarkerError));
    }

    #[test]
    fn every_numbered_invariant_has_a_row() {
        for invariant in crate::invariants::ALL {
            assert!(INVARIANTS.iter().any(|(number, _)| *number == invariant.number), "{invariant:?} has no row");
        }
    }

    #[test]
    fn killed_and_surviving_bugs_are_distinguished() {
        let row = |fault, seeds_to_kill, killer: u8| Row {
            fault,
            seeds_to_kill,
            first: Some(ViolatedInvariant { invariant: killer, sentence: "a sentence".to_owned() }),
            first_without_oracle: None,
            killers: BTreeMap::from([(killer, 3)]),
            shortest: None,
        };
        let rows = [row(Fault::ALL[0], vec![Some(4)], 17), row(Fault::ALL[1], vec![None], 17)];
        let text = tables(&rows, Effort::default());
        assert!(text.contains("| `release-before-sync` | 17: a sentence | 17 | 4 | 4 |  |"), "{text}");
        assert!(text.contains("**SURVIVED**") && text.contains("1 of 2"), "{text}");
        assert!(text.contains("nothing synced is lost | `release-before-sync` |"), "{text}");
        assert!(text.contains("one lease holder | defence in depth: no planted bug violated it first |"), "{text}");
    }
}
