//! Gives the program the commit it is built from: that of `DRIFTQ_COMMIT` if it is set, else that of the repository,
//! else `unknown`. Nothing else of the machine goes into the program.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=DRIFTQ_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
    let given = std::env::var("DRIFTQ_COMMIT").ok().filter(|commit| is_commit(commit));
    let commit = given.or_else(commit_of_repository).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=DRIFTQ_COMMIT={commit}");
}

/// The commit of the repository that this crate is part of. A repository around a copy of the sources is another one.
fn commit_of_repository() -> Option<String> {
    if git(&["rev-parse", "--show-prefix"])? != "server/" {
        return None;
    }
    for file in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--git-path", file])?;
        // A file that does not exist would run this again at every build.
        if Path::new(&path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    git(&["rev-parse", "HEAD"]).filter(|commit| is_commit(commit))
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim_end().to_owned())
}

fn is_commit(text: &str) -> bool {
    (7..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric())
}
