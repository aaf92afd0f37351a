//! The style rules that rustfmt and clippy do not know, checked over every source file and page of the repository.
//!
//! [`rules`] holds the rules, [`vocabulary`] the words that are not used and where they are allowed, [`dockerfile`] the
//! comparison of the image's build with the workspace.

mod dockerfile;
mod rules;
mod vocabulary;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rules::{Complaint, check_path, check_text};

/// File names and extensions that are read. Everything else (corpora, golden files, histories, pictures) is data.
const EXTENSIONS: &[&str] =
    &["rs", "md", "toml", "js", "mjs", "ts", "py", "css", "html", "svg", "service", "yml", "yaml", "sh"];
const NAMES: &[&str] = &["Dockerfile", ".dockerignore", ".gitignore", "run"];

/// Folders that hold no source, for a walk without git.
const SKIPPED_FOLDERS: &[&str] =
    &["target", ".git", "corpus", "artifacts", "mutants.out", "node_modules", "dist", "build"];

#[test]
fn sources_follow_the_style_rules() {
    let complaints = all_complaints();
    assert!(complaints.is_empty(), "{} complaints:\n{}", complaints.len(), listed(&complaints));
}

#[test]
fn the_list_of_files_holds_sources_and_pages_and_no_build_output() {
    for files in [files(), walked(&root())] {
        for expected in ["Cargo.toml", "README.md", "core/src/lib.rs", "tests/tests/tidy/main.rs", ".ci/run"] {
            assert!(files.iter().any(|file| file == expected), "{expected} is not checked");
        }
        assert!(files.iter().all(|file| !file.starts_with("target/") && !file.starts_with("fuzz/corpus/")));
    }
}

fn all_complaints() -> Vec<Complaint> {
    let root = root();
    let mut complaints = Vec::new();
    for file in files() {
        complaints.extend(check_path(&file));
        let bytes = fs::read(root.join(&file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        match String::from_utf8(bytes) {
            Ok(text) => complaints.extend(check_text(&file, &text)),
            Err(error) => complaints.push(Complaint::new(&file, 1, "text", error.to_string())),
        }
    }
    complaints
}

fn listed(complaints: &[Complaint]) -> String {
    complaints.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// The root of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace is above this crate").to_owned()
}

/// The files to check, relative to the root, sorted: what git tracks or would add, else what a walk finds.
fn files() -> Vec<String> {
    let root = root();
    tracked(&root).unwrap_or_else(|| walked(&root))
}

fn tracked(root: &Path) -> Option<Vec<String>> {
    let arguments = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let output = Command::new("git").args(arguments).current_dir(root).output().ok()?;
    let listing = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
    let mut files: Vec<String> = listing.split('\0').map(ToOwned::to_owned).collect();
    files.retain(|file| is_source(Path::new(file)) && root.join(file).is_file());
    files.sort();
    files.dedup();
    (!files.is_empty()).then_some(files)
}

fn walked(root: &Path) -> Vec<String> {
    let mut files = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        for entry in entries {
            let path = entry.expect("a folder entry").path();
            let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
            if path.is_dir() {
                if !SKIPPED_FOLDERS.contains(&name) {
                    folders.push(path);
                }
            } else if is_source(&path) {
                let relative = path.strip_prefix(root).expect("found below the root");
                files.push(relative.to_str().expect("a UTF-8 path").replace('\\', "/"));
            }
        }
    }
    files.sort();
    files
}

fn is_source(path: &Path) -> bool {
    let in_corpus = path.components().any(|part| part.as_os_str() == "corpus");
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let extension = path.extension().and_then(OsStr::to_str).unwrap_or_default();
    // `corpus` is also the name of a test of the fuzz crate: only its Rust files are sources.
    (EXTENSIONS.contains(&extension) && (!in_corpus || extension == "rs")) || (NAMES.contains(&name) && !in_corpus)
}
