//! Runs `core/tests/scenarios/*.txt`: the rules of the broker as text files, each a list of commands with the replies
//! they must get. The format is described in `core/tests/scenarios/README.md`.
//!
//! `DRIFTQ_REWRITE_SCENARIOS=1 cargo test -p driftq-core --test scenarios` writes the actual replies into the files.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::needless_pass_by_value)]

mod canaries;
mod runner;

use std::path::PathBuf;

use driftq_core::faults::NoFaults;

use self::runner::{Failure, Script, run};

/// How many scenarios there are at least.
const SCENARIOS_MIN: usize = 45;

fn folder() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "scenarios"].iter().collect()
}

/// The scenario files, by name.
#[allow(clippy::disallowed_methods, reason = "scenarios are files")]
fn scripts() -> Vec<Result<Script, Failure>> {
    let entries = std::fs::read_dir(folder()).expect("the folder of the scenarios is there");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("the folder can be read").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    paths.sort();
    let parse = |path: &PathBuf| {
        let name = path.file_name().expect("it has an extension").to_string_lossy().into_owned();
        let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{name}: {error}"));
        Script::parse(&name, &text)
    };
    paths.iter().map(parse).collect()
}

/// Scenario files that parse. [`scenarios_hold`] reports the others.
fn valid_scripts() -> Vec<Script> {
    scripts().into_iter().filter_map(Result::ok).collect()
}

#[allow(clippy::disallowed_methods, reason = "scenarios are files")]
fn rewrites() -> bool {
    std::env::var("DRIFTQ_REWRITE_SCENARIOS").is_ok_and(|value| value == "1")
}

#[allow(clippy::disallowed_methods, reason = "scenarios are files")]
fn rewrite(script: &Script) {
    std::fs::write(folder().join(&script.name), script.print()).expect("writes a scenario");
}

#[test]
fn scenarios_hold() {
    let (mut files, mut failures) = (0, Vec::new());
    for script in scripts() {
        files += 1;
        match script.map(|script| run(&script, NoFaults)) {
            Ok(run) if run.is_complete && rewrites() => rewrite(&run.actual),
            Ok(run) => failures.extend(run.failures),
            Err(failure) => failures.push(failure),
        }
    }
    let report: Vec<_> = failures.iter().map(|failure| format!("\n{failure}\n")).collect();
    assert!(failures.is_empty(), "{} failures in {files} scenarios:\n{}", failures.len(), report.concat());
    assert!(files >= SCENARIOS_MIN, "{files} scenarios ran, at least {SCENARIOS_MIN} are expected");
}

#[test]
#[allow(clippy::disallowed_methods, reason = "scenarios are files")]
fn readme_lists_every_scenario() {
    let readme = std::fs::read_to_string(folder().join("README.md")).expect("the README is there");
    let listed = |name: &str| readme.contains(&format!("`{name}`"));
    let names: Vec<_> = valid_scripts().iter().map(|script| script.name.trim_end_matches(".txt").to_owned()).collect();
    let missing: Vec<_> = names.iter().filter(|name| !listed(name)).collect();
    assert!(missing.is_empty(), "not in core/tests/scenarios/README.md: {missing:?}");
    let is_scenario = |text: &&str| matches!(text.as_bytes(), [b'0'..=b'9', b'0'..=b'9', b'-', ..]);
    let gone: Vec<_> =
        readme.split('`').filter(is_scenario).filter(|text| !names.iter().any(|name| name == text)).collect();
    assert!(gone.is_empty(), "listed in core/tests/scenarios/README.md, but not there: {gone:?}");
}
