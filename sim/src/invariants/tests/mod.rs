//! A check that was never seen to fail is not trusted: every invariant is violated by a test.

pub(super) mod fixtures;
mod kept_seeds;
mod planted;

use std::fs;
use std::path::Path;

use super::ALL;

#[test]
fn catalog_is_sorted_and_names_and_sentences_are_unique() {
    assert!(ALL.is_sorted_by_key(|invariant| invariant.number));
    for (nth, invariant) in ALL.iter().enumerate() {
        assert!(
            ALL[..nth].iter().all(|other| other.name != invariant.name && other.sentence != invariant.sentence),
            "{invariant}"
        );
    }
}

#[test]
fn every_invariant_is_checked_by_a_function_of_its_name() {
    let mut sources = String::new();
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut sources);
    for invariant in ALL {
        let signatures = [format!("fn {}(", invariant.name), format!("fn {}<", invariant.name)];
        assert!(
            signatures.iter().any(|signature| sources.contains(signature)),
            "no function is named {}",
            invariant.name
        );
    }
}

fn read(folder: &Path, all: &mut String) {
    for entry in fs::read_dir(folder).expect("the sources are readable") {
        let path = entry.expect("the sources are readable").path();
        if path.is_dir() {
            read(&path, all);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            all.push_str(&fs::read_to_string(&path).expect("the sources are text"));
        }
    }
}
