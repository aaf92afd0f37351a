//! A check that was never seen to fail is not trusted: every law here fails once.

pub(super) mod fixtures;
mod planted;

use std::fs;
use std::path::Path;

use super::ALL;

#[test]
fn laws_stand_in_order_and_no_name_or_sentence_stands_twice() {
    assert!(ALL.is_sorted_by_key(|invariant| invariant.number));
    for (nth, invariant) in ALL.iter().enumerate() {
        assert!(
            ALL[..nth].iter().all(|other| other.name != invariant.name && other.sentence != invariant.sentence),
            "{invariant}"
        );
    }
}

#[test]
fn every_law_is_checked_by_a_function_of_its_name() {
    let mut sources = String::new();
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut sources);
    for invariant in ALL {
        let named = [format!("fn {}(", invariant.name), format!("fn {}<", invariant.name)];
        assert!(named.iter().any(|named| sources.contains(named)), "nothing is named {}", invariant.name);
    }
}

fn read(folder: &Path, all: &mut String) {
    for entry in fs::read_dir(folder).expect("the sources are there") {
        let path = entry.expect("the sources are there").path();
        if path.is_dir() {
            read(&path, all);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            all.push_str(&fs::read_to_string(&path).expect("sources are text"));
        }
    }
}
