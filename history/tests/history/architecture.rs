//! A flaw in the core cannot excuse itself: what judges by the clients alone must not know the core.

use std::path::{Path, PathBuf};

#[test]
fn only_the_comparison_with_the_log_knows_the_core() {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut files: Vec<PathBuf> = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("the sources are there") {
            let path = entry.expect("they can be listed").path();
            match path.is_dir() {
                true if path.ends_with("compare") => {}
                true => folders.push(path),
                false => files.push(path),
            }
        }
    }
    assert!(files.len() > 10);
    for path in files {
        let text = std::fs::read_to_string(&path).expect("it is text");
        for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
            let uses = ["driftq_core", "driftq_files", "crate::oracle", "crate::world", "crate::invariants"];
            assert!(!uses.iter().any(|name| line.contains(name)), "{}: {line}", path.display());
        }
    }
}
