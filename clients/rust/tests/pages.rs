//! The worker on the first page of the project is that of the crate's README and of its documentation, which is
//! compiled.

const PROJECT: &str = include_str!("../../../README.md");
const README: &str = include_str!("../README.md");
const LIBRARY: &str = include_str!("../src/lib.rs");

/// The first block of Rust of a page.
fn first_block(page: &str) -> &str {
    let (_, rest) = page.split_once("```rust\n").expect("a block of Rust");
    rest.split_once("```").expect("its end").0
}

#[test]
fn worker_of_the_pages_is_the_one_that_is_compiled() {
    let worker = first_block(README);
    assert!(worker.lines().filter(|line| !line.is_empty()).count() <= 10, "{worker}");
    assert_eq!(first_block(PROJECT), worker);
    for line in worker.lines() {
        assert!(LIBRARY.lines().any(|documented| documented.trim_end() == format!("//! {line}").trim_end()), "{line}");
    }
}
