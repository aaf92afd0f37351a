//! Agreement of the broker with the oracle.

use std::fmt::Display;

use super::catalog::{self, sentence};
use super::verdict::Verdict;

#[doc = sentence!(matches_oracle)]
pub(crate) fn matches_oracle(result: Result<(), impl Display>) -> Verdict {
    match result {
        Ok(()) => Ok(()),
        Err(mismatch) => catalog::MATCHES_ORACLE.holds(false, || mismatch.to_string()),
    }
}

/// The same for records, which clients do not observe: as many are `written` as the oracle `predicted`.
pub(crate) fn record_count_matches(written: u64, predicted: u64) -> Verdict {
    catalog::MATCHES_ORACLE.holds(written == predicted, || format!("{written} records, {predicted} predicted"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariants::tests::fixtures::*;

    #[test]
    fn mismatch_with_the_oracle_is_a_violation() {
        holds(matches_oracle(Ok::<(), &str>(())));
        violates(catalog::MATCHES_ORACLE, matches_oracle(Err("another reply")));
        violates(catalog::MATCHES_ORACLE, record_count_matches(3, 2));
    }
}
