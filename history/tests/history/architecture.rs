//! A bug in the core must not hide itself: the checks that use only the history do not use the core.

use std::path::{Path, PathBuf};

#[test]
fn only_compare_uses_the_core() {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut files: Vec<PathBuf> = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a source folder") {
            let path = entry.expect("a source file").path();
            match path.is_dir() {
                true if path.ends_with("compare") => {}
                true => folders.push(path),
                false => files.push(path),
            }
        }
    }
    assert!(files.len() > 10);
    for path in files {
        let text = std::fs::read_to_string(&path).expect("source text");
        for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
            let crates = ["driftq_core", "driftq_files", "driftq_inspect"];
            assert!(!crates.iter().any(|name| line.contains(name)), "{}: {line}", path.display());
        }
    }
}
