//! The naive model's word against the broker's.

use std::fmt::Display;

use super::catalog::{self, sentence};
use super::verdict::Verdict;

#[doc = sentence!(matches_oracle)]
pub(crate) fn matches_oracle(judged: Result<(), impl Display>) -> Verdict {
    match judged {
        Ok(()) => Ok(()),
        Err(wrong) => catalog::MATCHES_ORACLE.holds(false, || wrong.to_string()),
    }
}

/// The same of what nobody is told: as many records are `written` as the model has `predicted`.
pub(crate) fn model_counts(written: u64, predicted: u64) -> Verdict {
    catalog::MATCHES_ORACLE.holds(written == predicted, || format!("{written} records, {predicted} predicted"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariants::tests::fixtures::*;

    #[test]
    fn what_the_model_did_not_say_is_told() {
        fine(matches_oracle(Ok::<(), &str>(())));
        breaks(catalog::MATCHES_ORACLE, matches_oracle(Err("another answer")));
        breaks(catalog::MATCHES_ORACLE, model_counts(3, 2));
    }
}
