//! `driftq-sim explain`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::args::Explain;
use super::source::Source;
use super::{Ending, Misuse, print_line};
use crate::explain::slice::WithoutAction;
use crate::explain::{CurvePoint, Explanation, NotExplained, Options, explain as explain_trace};
use crate::parallel::cores;
use crate::trace::Trace;
use crate::view::timeline_of;

/// The width of a full bar.
const BAR: u64 = 20;
/// The width of the label beside a bar.
const LABEL: usize = 46;

pub(super) fn explain(args: &Explain) -> Result<Ending, Misuse> {
    let (source, fault) = Source::read(&args.subject)?;
    print_line!("{}", source.describe(fault));
    let trace = Trace::of(&source.run(fault), source.seed(), fault);
    let options = Options { futures: args.futures, jobs: args.jobs.unwrap_or_else(cores) };
    let explanation = match explain_trace(&trace, options) {
        Ok(explanation) => explanation,
        Err(reason @ NotExplained::NoViolation) => {
            print_line!("{reason}");
            return Ok(Ending::Passed);
        }
        Err(reason) => {
            print_line!("{reason}");
            return Ok(Ending::Failed);
        }
    };
    let labels: Vec<String> = timeline_of(&trace, fault).steps.into_iter().map(|step| step.label).collect();
    print_line!("{}", text(&explanation, &labels));
    if let Some(path) = &args.json {
        write(path, &explanation)?;
    }
    if let Some(found) = &explanation.violation_without_fault {
        let path = Path::new("sim-failures").join("future.jsonl");
        found.write(&path).map_err(|cause| Misuse::Write { path: path.clone(), cause })?;
        print_line!(
            "\nA future violated an invariant WITHOUT the planted bug. Replay it: driftq-sim replay {}",
            path.display()
        );
    }
    Ok(Ending::Failed)
}

fn write(path: &Path, explanation: &Explanation) -> Result<(), Misuse> {
    let json = serde_json::to_string_pretty(explanation).expect("the value serializes to JSON");
    if path == Path::new("-") {
        print_line!("\n{json}");
        return Ok(());
    }
    fs::write(path, json + "\n").map_err(|cause| Misuse::Write { path: path.to_owned(), cause })?;
    print_line!("\nwritten to {}", path.display());
    Ok(())
}

/// The report, without its first line.
fn text(explanation: &Explanation, labels: &[String]) -> String {
    let Explanation { violated, found, points, needed, .. } = explanation;
    let mut text = String::new();
    let _ = writeln!(text, "invariant {} violated: {}", violated.invariant, violated.sentence);
    let _ = writeln!(text, "  found: {found}\n");
    let futures = points.first().map_or(0, |point| point.futures);
    let _ = writeln!(text, "of {futures} futures after each action: # violate it, + violate another invariant first");
    for point in points {
        let label = point.after.checked_sub(1).and_then(|nth| labels.get(nth));
        let label = label.map_or("the start".to_owned(), |label| shortened(label, LABEL));
        let percent = (point.share() * 100.0).round();
        let _ =
            writeln!(text, "{:>5} {:<width$} {percent:>3}%  {label}", point.after, bar(point), width = BAR as usize);
    }
    let _ = write!(text, "\n{}", inevitability(explanation));
    let minimality =
        if needed.is_minimal { "none of which can be left out" } else { "perhaps fewer: the search budget ran out" };
    let _ = writeln!(text, "\nit depends on {} of {} actions, {minimality}:", needed.needed.len(), explanation.actions);
    for needed in &needed.needed {
        let json = serde_json::to_string(&needed.action).expect("the value serializes to JSON");
        let _ = writeln!(text, "{:>5} {json}", needed.number);
        if needed.without != WithoutAction::Nothing {
            let _ = writeln!(text, "      without it {}", describe_without(&needed.without));
        }
    }
    if let Some(last) = needed.needed.last().filter(|last| last.number < explanation.actions) {
        let _ = writeln!(text, "with these alone it is violated at action {}", last.number);
    }
    text.truncate(text.trim_end().len());
    text
}

fn bar(point: &CurvePoint) -> String {
    let part = |count: u64| (count * BAR / point.futures.max(1)) as usize;
    // At least one character, even if a single future violates the invariant.
    let same = part(point.same).max(usize::from(point.same > 0));
    let all = part(point.same + point.another).max(same);
    format!("{}{}", "#".repeat(same), "+".repeat(all - same))
}

/// When the violation became inevitable, in sentences.
fn inevitability(explanation: &Explanation) -> String {
    let (inevitable, doomed, last) = (explanation.inevitable(), explanation.doomed, explanation.actions);
    let mut text = match inevitable {
        0 if last == 0 => "violated before the first action\n".to_owned(),
        0 => format!("inevitable from the start; detected at action {last}\n"),
        _ if inevitable == last => {
            format!("inevitable after action {last}, the last: until then some future avoided it\n")
        }
        _ => format!("inevitable after action {inevitable}; detected at action {last}\n"),
    };
    if doomed < inevitable {
        let when = if doomed == 0 { "from the start".to_owned() } else { format!("after action {doomed}") };
        let _ = writeln!(text, "{when} every future violated this invariant or another");
    }
    text
}

fn describe_without(without: &WithoutAction) -> String {
    match without {
        WithoutAction::Nothing => "no invariant is violated".to_owned(),
        WithoutAction::Another(violated) => {
            format!("another is violated: invariant {}, {}", violated.invariant, violated.sentence)
        }
        WithoutAction::Same => "the same invariant is violated".to_owned(),
        WithoutAction::Anyway => "it is violated even without the planted bug".to_owned(),
    }
}

fn shortened(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        Some(_) => text.chars().take(chars_max - 1).chain(['…']).collect(),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_truncated() {
        assert_eq!(shortened("abcdef", 4), "abc…");
        assert_eq!(shortened("abcd", 4), "abcd");
    }

    #[test]
    fn bar_shows_a_single_future_and_never_exceeds_its_width() {
        let point = |same, another| CurvePoint { after: 0, futures: 64, same, another };
        assert_eq!(bar(&point(0, 0)), "");
        assert_eq!(bar(&point(1, 0)), "#");
        assert_eq!(bar(&point(64, 0)).len(), BAR as usize);
        assert_eq!(bar(&point(32, 32)), "##########++++++++++");
    }
}
