//! A copy of the repository whose core contains its mutants.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::plant::Planter;

/// Rounds of leaving out what does not compile. The compiler reports type errors first and borrows after them.
const ROUNDS_MAX: usize = 40;
/// How far before an error its mutant is looked for, in characters.
const NEAR: usize = 3_000;

/// How the switch is called.
const CALL: &str = "mutant::on(";

/// The switch, as a module of the core.
const SWITCH: &str = r#"//! The mutant that is switched on.
#![allow(missing_docs, clippy::disallowed_methods)]
use std::sync::LazyLock;
static ON: LazyLock<u32> =
    LazyLock::new(|| std::env::var("DRIFTQ_MUTANT").ok().and_then(|id| id.parse().ok()).unwrap_or(0));
#[inline(always)]
pub fn on(id: u32) -> bool { *ON == id }
"#;

/// Copies, plants and builds.
pub(crate) fn build(repository: &Path, dir: &Path, package: &str) -> Result<(), String> {
    copy(repository, dir)?;
    let files = sources(&repository.join("core/src"))?;
    let (mut left_out, mut seen) = (BTreeSet::new(), BTreeSet::new());
    for round in 1..=ROUNDS_MAX {
        let planted = plant(repository, dir, &files, &left_out)?;
        let errors = check(dir)?;
        println!("round {round}: {planted} mutants, {} errors, {} left out", errors.len(), left_out.len());
        if errors.is_empty() {
            let built = cargo(dir).args(["build", "--release", "-p", package]).status();
            return match built {
                Ok(status) if status.success() => Ok(()),
                failed => Err(format!("{package} cannot be built: {failed:?}")),
            };
        }
        let len = left_out.len();
        for Error { file, at, says } in errors {
            let source = fs::read_to_string(dir.join(&file)).map_err(|e| format!("{file}: {e}"))?;
            left_out.extend(before(&source, at));
            // The same error once more: its cause may stand behind it.
            if !seen.insert((file, says)) {
                left_out.extend(behind(&source, at));
            }
        }
        if left_out.len() == len {
            return Err("an error is near no mutant; see `cargo check` there".to_owned());
        }
    }
    Err(format!("mutants are left that do not compile, after {ROUNDS_MAX} rounds"))
}

fn cargo(dir: &Path) -> Command {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(dir).env("RUSTFLAGS", "--cap-lints=allow").env("CARGO_PROFILE_RELEASE_LTO", "off");
    cargo.env("CARGO_PROFILE_RELEASE_DEBUG", "false").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    cargo
}

/// Copies what is tracked.
fn copy(repository: &Path, dir: &Path) -> Result<(), String> {
    let listed = Command::new("git").current_dir(repository).arg("ls-files").output().map_err(|e| e.to_string())?;
    for file in String::from_utf8_lossy(&listed.stdout).lines() {
        let (from, to) = (repository.join(file), dir.join(file));
        if from.is_file() {
            fs::create_dir_all(to.parent().unwrap_or(dir)).map_err(|e| e.to_string())?;
            fs::copy(&from, &to).map_err(|e| format!("{file}: {e}"))?;
        }
    }
    Ok(())
}

/// The sources of the core: not its planted faults, nor the disk in memory that tests use.
fn sources(dir: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    let mut entries: Vec<_> = fs::read_dir(dir).map_err(|e| e.to_string())?.flatten().map(|e| e.path()).collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && name != "tests" && name != "faults" {
            found.extend(sources(&path)?);
        } else if name.ends_with(".rs") && name != "tests.rs" && name != "memory.rs" {
            found.push(path);
        }
    }
    Ok(found)
}

fn plant(repository: &Path, dir: &Path, files: &[PathBuf], left_out: &BTreeSet<u32>) -> Result<usize, String> {
    let mut planter = Planter::new(left_out);
    for path in files {
        let name = path.strip_prefix(repository).unwrap_or(path);
        let source = fs::read_to_string(path).map_err(|e| e.to_string())?;
        let mut text = planter.plant(&name.to_string_lossy(), &source).map_err(|e| format!("{path:?}: {e}"))?;
        if name.ends_with("core/src/lib.rs") {
            text.push_str("\npub mod mutant;\n");
        }
        write_if_new(&dir.join(name), &text)?;
    }
    write_if_new(&dir.join("core/src/mutant.rs"), SWITCH)?;
    let planted = planter.into_planted();
    let mut list = String::new();
    for mutant in &planted {
        let _ = writeln!(list, "{}\t{}\t{}", mutant.id, mutant.place, mutant.change.replace(['\t', '\n'], " "));
    }
    fs::write(dir.join("mutants.tsv"), list).map_err(|e| e.to_string())?;
    Ok(planted.len())
}

fn write_if_new(path: &Path, text: &str) -> Result<(), String> {
    if fs::read_to_string(path).is_ok_and(|before| before == text) {
        return Ok(());
    }
    fs::write(path, text).map_err(|e| format!("{path:?}: {e}"))
}

/// An error of the compiler.
struct Error {
    file: String,
    /// The byte of the file.
    at: usize,
    /// The message and the line.
    says: String,
}

/// The errors of the core with its mutants.
fn check(dir: &Path) -> Result<Vec<Error>, String> {
    let checked = cargo(dir).args(["check", "-p", "driftq-core", "--message-format", "json"]).output();
    let checked = checked.map_err(|e| e.to_string())?;
    let mut errors = Vec::new();
    for line in String::from_utf8_lossy(&checked.stdout).lines() {
        let Ok(message) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        let message = &message["message"];
        if message["level"] != "error" {
            continue;
        }
        let spans = message["spans"].as_array().map(Vec::as_slice).unwrap_or_default();
        if let Some(span) = spans.iter().find(|span| span["is_primary"] == true) {
            let at = span["byte_start"].as_u64().unwrap_or_default() as usize;
            let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
            let line = text(&span["text"][0]["text"]);
            errors.push(Error { file: text(&span["file_name"]), at, says: text(&message["message"]) + &line });
        }
    }
    if errors.is_empty() && !checked.status.success() {
        return Err(String::from_utf8_lossy(&checked.stderr).into_owned());
    }
    Ok(errors)
}

/// The mutant whose switch is the nearest before `at`, or at it.
fn before(source: &str, at: usize) -> Option<u32> {
    let here = source.get(at..)?;
    let begun = here.trim_start_matches(['(', ' ', '!', '\n']).trim_start_matches("if ").trim_start_matches('!');
    if begun.starts_with("crate::mutant::on(") {
        return behind(source, at);
    }
    let from = (at.saturating_sub(NEAR)..=at).find(|from| source.is_char_boundary(*from))?;
    let text = &source[from..at];
    number(&text[text.rfind(CALL)?..])
}

/// The mutant whose switch is the nearest behind `at`.
fn behind(source: &str, at: usize) -> Option<u32> {
    let text = source.get(at..)?;
    number(&text[text.find(CALL)?..])
}

fn number(call: &str) -> Option<u32> {
    let digits: String = call[CALL.len()..].chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}
