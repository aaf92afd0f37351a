//! Completed workflow steps are atomic.

use std::sync::Arc;

use driftq_core::reply::StepOutput;

use super::catalog::{self, sentence};
use super::tracker::model::StepEvidence;
use super::verdict::Verdict;

#[doc = sentence!(output_stored_once)]
pub(super) fn output_stored_once(number: u64, stored: usize, may_be_missing: bool) -> Verdict {
    let good = stored == 1 || stored == 0 && may_be_missing;
    catalog::OUTPUT_STORED_ONCE.holds(good, || format!("message {number} is stored {stored} times"))
}

#[doc = sentence!(step_is_atomic)]
pub(super) fn step_is_atomic(evidence: StepEvidence) -> Verdict {
    let is_complete = evidence.done && evidence.ended != Some(false) && evidence.missing == 0;
    catalog::STEP_IS_ATOMIC.holds(is_complete, || format!("{evidence:?}"))
}

#[doc = sentence!(refused_step_leaves_nothing)]
pub(super) fn refused_step_leaves_nothing(stored: usize) -> Verdict {
    catalog::REFUSED_STEP_LEAVES_NOTHING.holds(stored == 0, || format!("{stored} of its outputs are stored"))
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
    fn partial_step_is_a_violation() {
        let complete = StepEvidence { done: true, ended: Some(true), grant: None, missing: 0, stored: 2 };
        holds(step_is_atomic(complete));
        holds(step_is_atomic(StepEvidence { ended: None, ..complete }));
        violates(catalog::STEP_IS_ATOMIC, step_is_atomic(StepEvidence { done: false, ..complete }));
        violates(catalog::STEP_IS_ATOMIC, step_is_atomic(StepEvidence { ended: Some(false), ..complete }));
        violates(catalog::STEP_IS_ATOMIC, step_is_atomic(StepEvidence { missing: 1, ..complete }));
        holds(refused_step_leaves_nothing(0));
        violates(catalog::REFUSED_STEP_LEAVES_NOTHING, refused_step_leaves_nothing(1));
    }

    #[test]
    fn output_stored_twice_or_never_is_a_violation() {
        holds(output_stored_once(7, 1, false));
        holds(output_stored_once(7, 0, true));
        violates(catalog::OUTPUT_STORED_ONCE, output_stored_once(7, 0, false));
        violates(catalog::OUTPUT_STORED_ONCE, output_stored_once(7, 2, true));
    }

    #[test]
    fn different_reply_to_a_repeated_step_is_a_violation() {
        let reply = |offset| -> Arc<[StepOutput]> {
            let (topic, partition, offset) = (topic("t0"), PartitionId(0), Offset(offset));
            Arc::from([StepOutput { topic, partition, offset, duplicate: false, already_done: false }])
        };
        holds(step_reply_repeats(None, &reply(1)));
        holds(step_reply_repeats(Some(&reply(1)), &reply(1)));
        violates(catalog::STEP_REPLY_REPEATS, step_reply_repeats(Some(&reply(1)), &reply(2)));
    }
}
