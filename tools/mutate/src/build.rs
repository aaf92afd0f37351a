//! A copy of the repository whose core contains its mutants.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::listed::Listed;
use crate::plant::{LeftOut, Planter};

/// Rounds of leaving out what does not compile. The compiler reports type errors first and borrows after them.
const ROUNDS_MAX: usize = 40;
/// How far before an error its mutant is looked for, in characters.
const NEAR: usize = 3_000;

/// Errors that the nearest mutant causes.
const OF_THE_NEAREST: [&str; 3] = ["have incompatible types", "is not satisfied", "type mismatch resolving"];
/// What the result of a function says of an error within it.
const OF_ANOTHER: &str = "to be an iterator that yields";

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
pub(crate) fn build(repository: &Path, dir: &Path, package: &str, listed: Listed) -> Result<(), String> {
    copy(repository, dir)?;
    let files = sources(&repository.join("core/src"))?;
    let mut copied = Copied { repository, dir, files, listed };
    let (mut left_out, mut suspected, mut seen) = (LeftOut::default(), BTreeSet::new(), BTreeSet::new());
    for round in 1..=ROUNDS_MAX {
        let planted = copied.plant(&left_out)?;
        let errors = copied.check(package)?;
        let (ids, constant) = (left_out.ids.len(), left_out.constant.len());
        println!("round {round}: {planted} mutants, {} errors, {ids} left out", errors.len());
        if errors.is_empty() {
            copied.readmit(&mut left_out, &suspected)?;
            println!("{} mutants, {} left out", copied.plant(&left_out)?, left_out.ids.len());
            let built = cargo(dir).args(["build", "--release", "-p", package]).status();
            return match built {
                Ok(status) if status.success() => Ok(()),
                failed => Err(format!("{package} cannot be built: {failed:?}")),
            };
        }
        for Error { file, at, says } in errors {
            if let Some(function) = called_by_constant(&says) {
                println!("called by a constant: {function}");
                left_out.constant.insert(function);
                continue;
            }
            let source = fs::read_to_string(dir.join(&file)).map_err(|e| format!("{file}: {e}"))?;
            if let Some(id) = around(&source, at) {
                left_out.ids.insert(id);
                continue;
            }
            let near = before(&source, at);
            println!("near {near:?}: {file}: {says}");
            if OF_THE_NEAREST.iter().any(|sign| says.contains(sign)) {
                left_out.ids.extend(near);
            } else if !says.contains(OF_ANOTHER) {
                suspected.extend(near);
                // The same error once more: its cause may stand behind it.
                if !seen.insert((file, says)) {
                    suspected.extend(behind(&source, at));
                }
            }
        }
        left_out.ids.extend(&suspected);
        if (left_out.ids.len(), left_out.constant.len()) == (ids, constant) {
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

/// The copy of the repository.
struct Copied<'a> {
    repository: &'a Path,
    dir: &'a Path,
    files: Vec<PathBuf>,
    listed: Listed,
}

impl Copied<'_> {
    /// Plants the mutants and lists them, but for those that are left out.
    fn plant(&mut self, left_out: &LeftOut) -> Result<usize, String> {
        let mut planter = Planter::new(left_out, &mut self.listed);
        for path in &self.files {
            let name = path.strip_prefix(self.repository).unwrap_or(path);
            let source = fs::read_to_string(path).map_err(|e| e.to_string())?;
            let mut text = planter.plant(&name.to_string_lossy(), &source).map_err(|e| format!("{path:?}: {e}"))?;
            if name.ends_with("core/src/lib.rs") {
                text.push_str("\npub mod mutant;\n");
            }
            write_if_new(&self.dir.join(name), &text)?;
        }
        write_if_new(&self.dir.join("core/src/mutant.rs"), SWITCH)?;
        let planted = planter.into_planted();
        let mut list = String::new();
        for mutant in &planted {
            let _ = writeln!(list, "{}\t{}\t{}", mutant.id, mutant.place, mutant.change.replace(['\t', '\n'], " "));
        }
        fs::write(self.dir.join("mutants.tsv"), list).map_err(|e| e.to_string())?;
        let listed = self.listed.report(&left_out.ids);
        fs::write(self.dir.join("listed.tsv"), listed).map_err(|e| e.to_string())?;
        Ok(planted.len())
    }

    /// The errors of the core with its mutants, or else those of what uses it.
    fn check(&self, package: &str) -> Result<Vec<Error>, String> {
        let errors = check(self.dir, &["-p", "driftq-core"])?;
        if errors.is_empty() {
            check(self.dir, &["-p", "driftq-core", "-p", package, "--all-targets"])
        } else {
            Ok(errors)
        }
    }

    /// Takes back what was left out because it was near an error that another mutant has caused.
    fn readmit(&mut self, left_out: &mut LeftOut, suspected: &BTreeSet<u32>) -> Result<(), String> {
        let mut groups = vec![suspected.iter().copied().collect::<Vec<u32>>()];
        while let Some(group) = groups.pop() {
            if group.is_empty() {
                continue;
            }
            left_out.ids.retain(|id| !group.contains(id));
            self.plant(left_out)?;
            if check(self.dir, &["-p", "driftq-core"])?.is_empty() {
                println!("compiled after all: {group:?}");
            } else {
                left_out.ids.extend(&group);
                if group.len() > 1 {
                    let (one, other) = group.split_at(group.len() / 2);
                    groups.extend([one.to_vec(), other.to_vec()]);
                }
            }
        }
        Ok(())
    }
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

fn check(dir: &Path, of: &[&str]) -> Result<Vec<Error>, String> {
    let checked = cargo(dir).args(["check", "--message-format", "json"]).args(of).output();
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

/// The function that a constant, or a function that constants call, calls.
fn called_by_constant(says: &str) -> Option<String> {
    let called = says.strip_prefix("cannot call non-const ")?.split('`').nth(1)?;
    let mut path = called.rsplit("::");
    let name = path.next()?;
    let of = path.next().filter(|of| of.starts_with(char::is_uppercase)).map(|of| format!("{of}::"));
    Some(of.unwrap_or_default() + name)
}

/// The mutant whose own block contains `at`: the innermost one.
fn around(source: &str, at: usize) -> Option<u32> {
    let from = (at.saturating_sub(NEAR)..=at).find(|from| source.is_char_boundary(*from))?;
    let calls = source.get(from..at)?.rmatch_indices(CALL).map(|(call, _)| from + call);
    let mut around = calls.filter(|call| {
        let Some((id, block)) = source[call + CALL.len()..].split_once(") {") else { return false };
        let mut depth = 1;
        let end = block.bytes().position(|byte| {
            depth += i32::from(byte == b'{') - i32::from(byte == b'}');
            depth == 0
        });
        let start = call + CALL.len() + id.len() + ") {".len();
        source[..*call].ends_with("if crate::")
            && id.chars().all(char::is_alphanumeric)
            && (start..start + end.unwrap_or_default()).contains(&at)
    });
    around.next().and_then(|call| number(&source[call..]))
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
