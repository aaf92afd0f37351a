//! A deterministic property-test runner.

use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

/// A runner that generates the same cases on every machine. `PROPTEST_CASES` scales their number: 512 generates twice
/// as many, the first half of them the same.
pub fn runner(cases: u32) -> TestRunner {
    let cases = (u64::from(cases) * u64::from(Config::default().cases)).div_ceil(256) as u32;
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 20_000, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &[0x5e; 32]))
}

/// Runs the check on `cases` generated values; panics with the smallest failing value on one line.
pub fn run_cases<S: Strategy>(cases: u32, strategy: S, check: impl Fn(&S::Value) -> Result<(), TestCaseError>) {
    let result = runner(cases).run(&strategy, |value| {
        let checked = catch_unwind(AssertUnwindSafe(|| check(&value)));
        checked.unwrap_or_else(|_| Err(TestCaseError::fail("the check panicked")))
    });
    match result {
        Ok(()) => {}
        Err(TestError::Fail(reason, value)) => panic!("{reason}\n{value:?}"),
        Err(TestError::Abort(reason)) => panic!("{reason}"),
    }
}
