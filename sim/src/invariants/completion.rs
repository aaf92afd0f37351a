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

#[doc = sentence!(output_stored_once)]
pub(super) fn output_stored_once(number: u64, stored: usize, may_be_missing: bool) -> Verdict {
    let good = stored == 1 || stored == 0 && may_be_missing;
    catalog::OUTPUT_STORED_ONCE.holds(good, || format!("message {number} is stored {stored} times"))
}

#[doc = sentence!(step_is_atomic)]
pub(super) fn step_is_atomic(traces: Traces) -> Verdict {
    let whole = traces.done && traces.ended != Some(false) && traces.missing == 0;
    catalog::STEP_IS_ATOMIC.holds(whole, || format!("{traces:?}"))
}

#[doc = sentence!(refused_step_leaves_nothing)]
pub(super) fn refused_step_leaves_nothing(stored: usize) -> Verdict {
    catalog::REFUSED_STEP_LEAVES_NOTHING.holds(stored == 0, || format!("{stored} of its messages are stored"))
}

#[doc = sentence!(step_reply_repeats)]
pub(super) fn step_reply_repeats(first: Option<&Arc<[StepOutput]>>, again: &Arc<[StepOutput]>) -> Verdict {
    catalog::STEP_REPLY_REPEATS.holds(first.is_none_or(|first| first == again), || format!("{again:?} after {first:?}"))
}

#[cfg(test)]
mod tests {
    use driftq_core::types::{Offset, PartitionId};

    use super::*;
    use crate::invariants::tests::fixtures::*;

    #[test]
    fn a_part_of_a_step_is_no_step() {
        let whole = Traces { done: true, ended: Some(true), missing: 0, stored: 2 };
        fine(step_is_atomic(whole));
        fine(step_is_atomic(Traces { ended: None, ..whole }));
        breaks(catalog::STEP_IS_ATOMIC, step_is_atomic(Traces { done: false, ..whole }));
        breaks(catalog::STEP_IS_ATOMIC, step_is_atomic(Traces { ended: Some(false), ..whole }));
        breaks(catalog::STEP_IS_ATOMIC, step_is_atomic(Traces { missing: 1, ..whole }));
        fine(refused_step_leaves_nothing(0));
        breaks(catalog::REFUSED_STEP_LEAVES_NOTHING, refused_step_leaves_nothing(1));
    }

    #[test]
    fn what_a_step_makes_is_there_once() {
        fine(output_stored_once(7, 1, false));
        fine(output_stored_once(7, 0, true));
        breaks(catalog::OUTPUT_STORED_ONCE, output_stored_once(7, 0, false));
        breaks(catalog::OUTPUT_STORED_ONCE, output_stored_once(7, 2, true));
    }

    #[test]
    fn an_answer_is_repeated_word_for_word() {
        let answer = |offset| -> Arc<[StepOutput]> {
            let (topic, partition, offset) = (topic("t0"), PartitionId(0), Offset(offset));
            Arc::from([StepOutput { topic, partition, offset, duplicate: false }])
        };
        fine(step_reply_repeats(None, &answer(1)));
        fine(step_reply_repeats(Some(&answer(1)), &answer(1)));
        breaks(catalog::STEP_REPLY_REPEATS, step_reply_repeats(Some(&answer(1)), &answer(2)));
    }
}
