//! What the broker may say at all: every answer once, and after a failed log nothing that rests on it.

use driftq_core::types::{Lsn, Ticket};
use driftq_core::{Output, Refusal};

use super::catalog::{self, sentence};
use super::durability::synced_before_release;
use super::verdict::Verdict;

/// What an output may rest on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ground {
    /// How far the log reaches that no power loss can take.
    pub(crate) durable: Lsn,
    /// The first ticket after a write or a sync has failed, if one has since the start.
    pub(crate) failed_from: Option<Ticket>,
}

impl Ground {
    /// Whether something that rests on the log up to `lsn` may be seen.
    pub(crate) fn bears(self, lsn: Lsn, what: impl FnOnce() -> String) -> Verdict {
        match self.failed_from {
            None => synced_before_release(self, lsn, what),
            Some(_) => silent_after_failure(self, lsn, what),
        }
    }
}

#[doc = sentence!(silent_after_failure)]
fn silent_after_failure(ground: Ground, lsn: Lsn, what: impl FnOnce() -> String) -> Verdict {
    catalog::SILENT_AFTER_FAILURE.holds(lsn <= ground.durable, || {
        format!("{}, which rests on {lsn}, where the disk has {}", what(), ground.durable)
    })
}

#[doc = sentence!(refused_after_failure)]
pub(crate) fn refused_after_failure(ground: Ground, output: &Output) -> Verdict {
    let since = |ticket: &Ticket| ground.failed_from.is_some_and(|first| *ticket >= first);
    let good = match output {
        Output::Reply { result: Err(Refusal::LogFailed), .. } => true,
        Output::Reply { ticket, .. } => !since(ticket),
        // Nobody has asked for it; what it may rest on is judged elsewhere.
        Output::Deliver { .. } | Output::Closed { .. } => true,
    };
    catalog::REFUSED_AFTER_FAILURE.holds(good, || format!("{output:?}"))
}

#[doc = sentence!(one_reply)]
pub(super) fn one_reply<T>(asked: Option<&T>, ticket: Ticket, answer: &impl std::fmt::Debug) -> Verdict {
    catalog::ONE_REPLY.holds(asked.is_some(), || format!("{ticket}: {answer:?}"))
}

#[cfg(test)]
mod tests {
    use driftq_core::Reply;

    use super::*;
    use crate::invariants::tests::fixtures::*;

    #[test]
    fn an_answer_to_nobody_and_one_after_the_log_has_failed_are_wrong() {
        fine(one_reply(Some(&()), Ticket(1), &"done"));
        breaks(catalog::ONE_REPLY, one_reply::<()>(None, Ticket(1), &"done"));
        let done = |ticket| Output::Reply { ticket: Ticket(ticket), result: Ok(Reply::Done) };
        let ground = Ground { durable: Lsn(9), failed_from: Some(Ticket(5)) };
        fine(refused_after_failure(ground, &done(4)));
        breaks(catalog::REFUSED_AFTER_FAILURE, refused_after_failure(ground, &done(5)));
    }
}
