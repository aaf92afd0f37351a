//! The naive model's word against the broker's.

use std::fmt::Display;

use super::catalog::{self, sentence};
use super::verdict::Verdict;

#[doc = sentence!(model_knows)]
pub(crate) fn model_knows(judged: Result<(), impl Display>) -> Verdict {
    match judged {
        Ok(()) => Ok(()),
        Err(wrong) => catalog::MODEL_KNOWS.holds(false, || wrong.to_string()),
    }
}

/// The same of what nobody is told: as many records are `written` as the model has `predicted`.
pub(crate) fn model_counts(written: u64, predicted: u64) -> Verdict {
    catalog::MODEL_KNOWS.holds(written == predicted, || format!("{written} records, {predicted} predicted"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariants::tests::fixtures::*;

    #[test]
    fn what_the_model_did_not_say_is_told() {
        fine(model_knows(Ok::<(), &str>(())));
        breaks(catalog::MODEL_KNOWS, model_knows(Err("another answer")));
        breaks(catalog::MODEL_KNOWS, model_counts(3, 2));
    }
}
