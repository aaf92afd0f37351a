//! Completed steps: all of one is there, or nothing of it.

use std::sync::Arc;

use driftq_core::reply::StepOutput;

use super::catalog::{self, sentence};
use super::verdict::Verdict;

/// What is there of a step that was to be completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Traces {
    /// Its message is done.
    pub(crate) done: bool,
    /// The effect of its message has ended and is committed; `None` where the message has no identity.
    pub(crate) ended: Option<bool>,
    /// So many of the messages that it must have made are missing.
    pub(crate) missing: usize,
    /// So many of its messages are stored.
    pub(crate) stored: usize,
}

#[doc = sentence!(made_once)]
pub(super) fn made_once(number: u64, stored: usize, may_be_missing: bool) -> Verdict {
    let good = stored == 1 || stored == 0 && may_be_missing;
    catalog::MADE_ONCE.holds(good, || format!("message {number} is stored {stored} times"))
}

#[doc = sentence!(whole_step)]
pub(super) fn whole_step(traces: Traces) -> Verdict {
    let whole = traces.done && traces.ended != Some(false) && traces.missing == 0;
    catalog::WHOLE_STEP.holds(whole, || format!("{traces:?}"))
}

#[doc = sentence!(no_part_of_a_step)]
pub(super) fn no_part_of_a_step(stored: usize) -> Verdict {
    catalog::NO_PART_OF_A_STEP.holds(stored == 0, || format!("{stored} of its messages are stored"))
}

#[doc = sentence!(same_answer)]
pub(super) fn same_answer(first: Option<&Arc<[StepOutput]>>, again: &Arc<[StepOutput]>) -> Verdict {
    catalog::SAME_ANSWER.holds(first.is_none_or(|first| first == again), || format!("{again:?} after {first:?}"))
}

#[cfg(test)]
mod tests {
    use driftq_core::types::{Offset, PartitionId};

    use super::*;
    use crate::invariants::tests::fixtures::*;

    #[test]
    fn a_part_of_a_step_is_no_step() {
        let whole = Traces { done: true, ended: Some(true), missing: 0, stored: 2 };
        fine(whole_step(whole));
        fine(whole_step(Traces { ended: None, ..whole }));
        breaks(catalog::WHOLE_STEP, whole_step(Traces { done: false, ..whole }));
        breaks(catalog::WHOLE_STEP, whole_step(Traces { ended: Some(false), ..whole }));
        breaks(catalog::WHOLE_STEP, whole_step(Traces { missing: 1, ..whole }));
        fine(no_part_of_a_step(0));
        breaks(catalog::NO_PART_OF_A_STEP, no_part_of_a_step(1));
    }

    #[test]
    fn what_a_step_makes_is_there_once() {
        fine(made_once(7, 1, false));
        fine(made_once(7, 0, true));
        breaks(catalog::MADE_ONCE, made_once(7, 0, false));
        breaks(catalog::MADE_ONCE, made_once(7, 2, true));
    }

    #[test]
    fn an_answer_is_repeated_word_for_word() {
        let answer = |offset| -> Arc<[StepOutput]> {
            let (topic, partition, offset) = (topic("t0"), PartitionId(0), Offset(offset));
            Arc::from([StepOutput { topic, partition, offset, duplicate: false }])
        };
        fine(same_answer(None, &answer(1)));
        fine(same_answer(Some(&answer(1)), &answer(1)));
        breaks(catalog::SAME_ANSWER, same_answer(Some(&answer(1)), &answer(2)));
    }
}
