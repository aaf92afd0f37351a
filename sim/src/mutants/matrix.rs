//! The kill matrix as Markdown, and its place in a document.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use driftq_core::faults::Fault;

use super::{Effort, Row};

const BEGIN: &str = "<!-- kill matrix -->";
const END: &str = "<!-- /kill matrix -->";

/// The invariants, in a few words each.
const INVARIANTS: &[(u8, &str)] = &[
    (0, "the broker never panics"),
    (1, "a message is in exactly one place"),
    (2, "counts sum to what was accepted"),
    (3, "nothing that was not accepted, byte for byte"),
    (4, "an offset never names another body"),
    (5, "nothing comes back after a confirmed ack"),
    (6, "a stale token changes nothing"),
    (7, "tokens rise across all crashes"),
    (8, "one live holder"),
    (9, "in flight within its limit"),
    (10, "first deliveries ascend, priorities first"),
    (11, "one offset per produce identity"),
    (12, "effects judged by the workers' ledger"),
    (13, "attempts rise by one"),
    (14, "dead letters and redrive"),
    (15, "not before its time, not past its deadline"),
    (16, "within caps; a refusal has no effect"),
    (17, "nothing seen that is not synced, nothing synced that is lost"),
    (18, "what is recovered is what was"),
    (19, "recovering twice changes nothing"),
    (20, "damage is refused or harmless; a sound disk is never refused"),
    (21, "every answer equals the naive model's"),
    (22, "same trace, same digest chain"),
    (23, "silence after a failed log"),
    (24, "one live token per idempotency identity"),
    (25, "a complete step is all or nothing"),
    (26, "in the end everything drains"),
];

/// The document has no place for the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it has no lines \"{BEGIN}\" and, below it, \"{END}\", between which the tables belong")]
pub struct MarkerError;

/// The document with what stands between the markers replaced.
///
/// # Errors
/// [`MarkerError`] if they are not there.
pub fn insert(document: &str, tables: &str) -> Result<String, MarkerError> {
    let (before, rest) = document.split_once(BEGIN).ok_or(MarkerError)?;
    let (_, after) = rest.split_once(END).ok_or(MarkerError)?;
    Ok(format!("{before}{BEGIN}\n\n{tables}\n{END}{after}"))
}

/// Both tables: who kills each bug, and which bugs each invariant alone kills.
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
        "{killed} of {} planted bugs are killed within {} seeds. Seeds to kill: the median and the worst of {} starts.\n\n",
        rows.len(),
        effort.seeds,
        effort.starts
    );
    text.push_str(
        "| planted bug | first invariant | without the oracle | seeds to kill, median | worst | shrunk to steps |\n",
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
            true => "nobody".to_owned(),
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
        "An invariant kills a bug *alone* if, in {} seeds without the oracle, no other was ever the first to be broken by it; the oracle \
         (21) if no other was broken at all.\n\n| invariant | planted bugs that it alone kills |\n|---|---|\n",
        effort.survey
    );
    for (number, words) in INVARIANTS {
        let kills = match alone.get(number) {
            Some(faults) => faults.iter().map(|fault| format!("`{}`", fault.name())).collect::<Vec<_>>().join(", "),
            None => in_depth(rows, *number),
        };
        let _ = writeln!(text, "| {number}: {words} | {kills} |");
    }
    text
}

/// What an invariant sees that others see too.
fn in_depth(rows: &[Row], number: u8) -> String {
    let sees = |row: &&Row| {
        row.killers.contains_key(&number) || row.first.as_ref().is_some_and(|first| first.invariant == number)
    };
    let seen: Vec<String> =
        rows.iter().filter(|row| row.is_killed()).filter(sees).map(|row| format!("`{}`", row.fault.name())).collect();
    match seen.is_empty() {
        true => "defence in depth: no planted bug broke it first".to_owned(),
        false => format!("defence in depth; with others it kills {}", seen.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::ViolatedInvariant;

    #[test]
    fn tables_go_between_the_markers_and_replace_what_was_there() {
        let document = format!("a\n{BEGIN}\nold\n{END}\nb\n");
        let with = insert(&document, "new\n").expect("markers");
        assert_eq!(with, format!("a\n{BEGIN}\n\nnew\n\n{END}\nb\n"));
        assert_eq!(insert(&with, "new\n").as_deref(), Ok(with.as_str()), "twice is once");
        assert_eq!(insert("nothing", "new"), Err(MarkerError));
    }

    #[test]
    fn the_killed_and_the_survivors_are_told_apart() {
        let row = |fault, took, killer: u8| Row {
            fault,
            took,
            first: Some(ViolatedInvariant { invariant: killer, sentence: "so it is".to_owned() }),
            first_without_oracle: None,
            killers: BTreeMap::from([(killer, 3)]),
            shortest: None,
        };
        let rows = [row(Fault::ALL[0], vec![Some(4)], 17), row(Fault::ALL[1], vec![None], 17)];
        let text = tables(&rows, Effort::default());
        assert!(text.contains("| `release-before-sync` | 17: so it is | 17 | 4 | 4 |  |"), "{text}");
        assert!(text.contains("**SURVIVED**") && text.contains("1 of 2"), "{text}");
        assert!(text.contains("nothing synced that is lost | `release-before-sync` |"), "{text}");
        assert!(text.contains("one live holder | defence in depth: no planted bug broke it first |"), "{text}");
    }
}
