//! Every example in a help text runs, in a small size: no example is misspelt or obsolete.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The commands, the program itself first.
const COMMANDS: [&str; 9] = ["", "run", "replay", "shrink", "explain", "view", "soak", "mutants", "exhaust"];

fn program(folder: &Path, arguments: &[String]) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_driftq-sim")).args(arguments).current_dir(folder).output();
    let output = output.expect("the program starts");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().expect("it exits by itself"), String::from_utf8_lossy(&text).into_owned())
}

/// The arguments of the examples in a help text; what follows two spaces explains them.
fn examples(help: &str) -> Vec<Vec<String>> {
    let lines = help.lines().skip_while(|line| *line != "Examples:").map_while(|line| match line {
        "Examples:" => Some(""),
        line => line.strip_prefix("  "),
    });
    let commands = lines.filter_map(|line| line.split("  ").next()?.strip_prefix("driftq-sim "));
    commands.map(|command| command.split_whitespace().map(ToOwned::to_owned).collect()).collect()
}

/// Sets an option, in the place of any value it has.
fn set(arguments: &mut Vec<String>, option: &str, value: &str) {
    if let Some(at) = arguments.iter().position(|argument| argument == option) {
        arguments.drain(at..at + 2);
    }
    arguments.extend([option.to_owned(), value.to_owned()]);
}

/// The same command in a size that takes no time.
fn small(mut arguments: Vec<String>) -> Vec<String> {
    let has = |option: &str| arguments.iter().any(|argument| argument == option);
    match arguments[0].as_str() {
        "run" if has("--for") => set(&mut arguments, "--for", "20ms"),
        "run" => set(&mut arguments, "--seeds", "2"),
        "explain" => set(&mut arguments, "--futures", "2"),
        "view" if !arguments.contains(&"driftq-data".to_owned()) => arguments.push("--no-explain".to_owned()),
        "soak" => {
            // Below the folder of the test, and not the same for two examples.
            if let Some(at) = arguments.iter().position(|argument| argument == "--dir") {
                let name = Path::new(&arguments[at + 1]).file_name().expect("a folder");
                arguments[at + 1] = name.to_string_lossy().into_owned();
            }
            set(&mut arguments, "--for", "20ms");
        }
        "mutants" => {
            // With --out every bug is tried, which a test of the command line does already.
            if let Some(at) = arguments.iter().position(|argument| argument == "--out") {
                arguments.drain(at..at + 2);
            }
            set(&mut arguments, "--only", "skip-token-check");
            set(&mut arguments, "--seeds", "20");
            set(&mut arguments, "--starts", "1");
            set(&mut arguments, "--survey", "0");
        }
        "exhaust" => set(&mut arguments, "--depth", "2"),
        "replay" if has("--real") => set(&mut arguments, "--real", "real"),
        _ => {}
    }
    arguments
}

/// A folder with the files that the examples name.
fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("help");
    let _ = std::fs::remove_dir_all(&folder);
    let (failures, regressions) = (folder.join("sim-failures"), folder.join("sim/regressions"));
    for path in [&failures, &regressions] {
        std::fs::create_dir_all(path).expect("a folder");
    }
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions");
    for name in ["mutant-skip-token-check.jsonl", "mutant-segment-removed-early.jsonl"] {
        std::fs::copy(kept.join(name), regressions.join(name)).expect("a kept trace");
    }
    for path in ["sim-failures/seed-34.jsonl", "seed-34.jsonl"] {
        std::fs::copy(kept.join("mutant-skip-token-check.jsonl"), folder.join(path)).expect("a trace");
    }
    drop(super::data_folder::small_data_folder(&folder.join("driftq-data")));
    folder
}

#[test]
fn every_example_of_a_help_text_runs() {
    let folder = folder();
    let mut found = BTreeSet::new();
    for command in COMMANDS {
        let arguments: Vec<String> =
            [command, "--help"].iter().filter(|text| !text.is_empty()).map(|text| (*text).to_owned()).collect();
        let (code, help) = program(&folder, &arguments);
        assert_eq!(code, 0, "{command}");
        let examples = examples(&help);
        assert!(!examples.is_empty(), "{command} has no examples: {help}");
        found.extend(examples.into_iter().map(small));
    }
    assert!(found.len() >= 20, "{found:?}");
    for arguments in found {
        let (code, text) = program(&folder, &arguments);
        assert!(matches!(code, 0 | 1), "driftq-sim {}: {code}, {text}", arguments.join(" "));
    }
}
