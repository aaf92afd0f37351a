//! `driftq-sim explain`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::args::Explain;
use super::source::Source;
use super::{Ending, Misuse, say};
use crate::explain::slice::Without;
use crate::explain::{Explanation, NotExplained, Options, Point, explain as explained};
use crate::parallel::cores;
use crate::trace::Trace;
use crate::view::timeline_of;

/// How long a bar is at most.
const BAR: u64 = 20;
/// How many letters of a step stand beside its bar.
const WORDS: usize = 46;

pub(super) fn explain(args: &Explain) -> Result<Ending, Misuse> {
    let (source, fault) = Source::read(&args.subject)?;
    say!("{}", source.describe(fault));
    let trace = Trace::of(&source.run(fault), source.seed(), fault);
    let options = Options { futures: args.futures, jobs: args.jobs.unwrap_or_else(cores) };
    let explanation = match explained(&trace, options) {
        Ok(explanation) => explanation,
        Err(nothing @ NotExplained::NothingBroken) => {
            say!("{nothing}");
            return Ok(Ending::Passed);
        }
        Err(other) => {
            say!("{other}");
            return Ok(Ending::Failed);
        }
    };
    let labels: Vec<String> = timeline_of(&trace, fault).steps.into_iter().map(|step| step.label).collect();
    say!("{}", text(&explanation, &labels));
    if let Some(path) = &args.json {
        write(path, &explanation)?;
    }
    if let Some(found) = &explanation.sound_breaks {
        let path = Path::new("sim-failures").join("future.jsonl");
        found.write(&path).map_err(|cause| Misuse::Write { path: path.clone(), cause })?;
        say!("\nA future broke a promise WITHOUT the planted bug. Replay it: driftq-sim replay {}", path.display());
    }
    Ok(Ending::Failed)
}

fn write(path: &Path, explanation: &Explanation) -> Result<(), Misuse> {
    let json = serde_json::to_string_pretty(explanation).expect("names and numbers have a form in JSON");
    if path == Path::new("-") {
        say!("\n{json}");
        return Ok(());
    }
    fs::write(path, json + "\n").map_err(|cause| Misuse::Write { path: path.to_owned(), cause })?;
    say!("\nwritten to {}", path.display());
    Ok(())
}

/// All that is told about it, without the first line.
fn text(explanation: &Explanation, labels: &[String]) -> String {
    let Explanation { broken, found, points, needed, .. } = explanation;
    let mut text = String::new();
    let _ = writeln!(text, "invariant {} is broken: {}", broken.invariant, broken.sentence);
    let _ = writeln!(text, "  found: {found}\n");
    let futures = points.first().map_or(0, |point| point.futures);
    let _ = writeln!(text, "of {futures} futures after each step: # break it, + break another promise first");
    for point in points {
        let label = point.after.checked_sub(1).and_then(|nth| labels.get(nth));
        let words = label.map_or("the beginning".to_owned(), |label| shortened(label, WORDS));
        let percent = (point.share() * 100.0).round();
        let _ =
            writeln!(text, "{:>5} {:<width$} {percent:>3}%  {words}", point.after, bar(point), width = BAR as usize);
    }
    let _ = write!(text, "\n{}", verdict(explanation, explanation.actions));
    let few = if needed.is_minimal { "none of which can be left out" } else { "perhaps fewer: patience ended" };
    let _ = writeln!(text, "\nit depends on {} of {} steps, {few}:", needed.needed.len(), explanation.actions);
    for needed in &needed.needed {
        let json = serde_json::to_string(&needed.action).expect("names and numbers have a form in JSON");
        let _ = writeln!(text, "{:>5} {json}", needed.number);
        if needed.without != Without::Nothing {
            let _ = writeln!(text, "      without it {}", without(&needed.without));
        }
    }
    if let Some(last) = needed.needed.last().filter(|last| last.number < explanation.actions) {
        let _ = writeln!(text, "without all others it breaks at step {} already", last.number);
    }
    text.truncate(text.trim_end().len());
    text
}

fn bar(point: &Point) -> String {
    let part = |count: u64| (count * BAR / point.futures.max(1)) as usize;
    // One in a hundred is not none.
    let same = part(point.same).max(usize::from(point.same > 0));
    let all = part(point.same + point.another).max(same);
    format!("{}{}", "#".repeat(same), "+".repeat(all - same))
}

/// When it was too late, in sentences.
fn verdict(explanation: &Explanation, last: usize) -> String {
    let (inevitable, doomed) = (explanation.inevitable(), explanation.doomed);
    let mut text = match inevitable {
        0 if last == 0 => "broken before the first step\n".to_owned(),
        0 => format!("inevitable from the beginning; seen at step {last}\n"),
        _ if inevitable == last => {
            format!("inevitable after step {last}, not before the last: until then a luckier future got away\n")
        }
        _ => format!("inevitable after step {inevitable}; seen at step {last}\n"),
    };
    if doomed < inevitable {
        let when = if doomed == 0 { "from the beginning".to_owned() } else { format!("after step {doomed}") };
        let _ = writeln!(text, "{when} no future was whole: each broke this promise or another");
    }
    text
}

fn without(without: &Without) -> String {
    match without {
        Without::Nothing => "nothing breaks".to_owned(),
        Without::Another(broken) => format!("another breaks: invariant {}, {}", broken.invariant, broken.sentence),
        Without::Same => "the same breaks".to_owned(),
        Without::Anyway => "it breaks even without the planted bug".to_owned(),
    }
}

fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some(_) => text.chars().take(most - 1).chain(['…']).collect(),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_is_cut() {
        assert_eq!(shortened("abcdef", 4), "abc…");
        assert_eq!(shortened("abcd", 4), "abcd");
    }

    #[test]
    fn a_bar_shows_few_as_more_than_none_and_never_more_than_all() {
        let point = |same, another| Point { after: 0, futures: 64, same, another };
        assert_eq!(bar(&point(0, 0)), "");
        assert_eq!(bar(&point(1, 0)), "#");
        assert_eq!(bar(&point(64, 0)).len(), BAR as usize);
        assert_eq!(bar(&point(32, 32)), "##########++++++++++");
    }
}
