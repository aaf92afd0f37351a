//! Released outputs: one reply per command, and nothing beyond the durable log after a failure.

use driftq_core::log::IoOp;
use driftq_core::types::{Lsn, Ticket, Timestamp};
use driftq_core::{LogFault, Output, Refusal};

use super::catalog::{self, sentence};
use super::durability::synced_before_release;
use super::verdict::Verdict;

/// What an output may depend on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReleaseContext {
    /// The last durable LSN.
    pub(crate) durable: Lsn,
    /// The first ticket after a write or a sync failed, if one has since the start.
    pub(crate) failed_from: Option<Ticket>,
    /// The broker's time.
    pub(crate) now: Timestamp,
}

impl ReleaseContext {
    /// Checks that an output which depends on the log up to `lsn` may be released.
    pub(crate) fn permits(self, lsn: Lsn, what: impl FnOnce() -> String) -> Verdict {
        match self.failed_from {
            None => synced_before_release(self.durable, lsn, what),
            Some(_) => silent_after_failure(self, lsn, what),
        }
    }
}

#[doc = sentence!(silent_after_failure)]
fn silent_after_failure(context: ReleaseContext, lsn: Lsn, what: impl FnOnce() -> String) -> Verdict {
    catalog::SILENT_AFTER_FAILURE.holds(lsn <= context.durable, || {
        format!("{} needs LSN {lsn}, but only {} is durable", what(), context.durable)
    })
}

#[doc = sentence!(refused_after_failure)]
pub(crate) fn refused_after_failure(context: ReleaseContext, output: &Output) -> Verdict {
    let since = |ticket: &Ticket| context.failed_from.is_some_and(|first| *ticket >= first);
    let good = match output {
        Output::Reply { result: Err(Refusal::LogFailed), .. } => true,
        Output::Reply { ticket, .. } => !since(ticket),
        // Not a reply; what it depends on is checked elsewhere.
        Output::Deliver { .. } | Output::Closed { .. } => true,
    };
    catalog::REFUSED_AFTER_FAILURE.holds(good, || format!("{output:?}"))
}

#[doc = sentence!(shortage_is_waited_out)]
pub(crate) fn shortage_is_waited_out(failed_from: Option<Ticket>, failure: Option<&LogFault>) -> Verdict {
    catalog::SHORTAGE_IS_WAITED_OUT.holds(failed_from.is_some() || failure.is_none(), || format!("{failure:?}"))
}

#[doc = sentence!(nothing_written_after_failure)]
pub(crate) fn nothing_written_after_failure(failed_from: Option<Ticket>, ops: &[IoOp]) -> Verdict {
    catalog::NOTHING_WRITTEN_AFTER_FAILURE.holds(failed_from.is_none(), || format!("{} operations", ops.len()))
}

#[doc = sentence!(one_reply)]
pub(super) fn one_reply<T>(pending: Option<&T>, ticket: Ticket, reply: &impl std::fmt::Debug) -> Verdict {
    catalog::ONE_REPLY.holds(pending.is_some(), || format!("{ticket}: {reply:?}"))
}

#[cfg(test)]
mod tests {
    use driftq_core::Reply;

    use super::*;
    use crate::invariants::tests::fixtures::*;

    #[test]
    fn reply_without_command_or_success_after_failure_is_a_violation() {
        holds(one_reply(Some(&()), Ticket(1), &"success"));
        violates(catalog::ONE_REPLY, one_reply::<()>(None, Ticket(1), &"success"));
        let success = |ticket| Output::Reply { ticket: Ticket(ticket), result: Ok(Reply::Success) };
        let context = ReleaseContext { durable: Lsn(9), failed_from: Some(Ticket(5)), now: Timestamp(0) };
        holds(nothing_written_after_failure(None, &[]));
        violates(catalog::NOTHING_WRITTEN_AFTER_FAILURE, nothing_written_after_failure(Some(Ticket(5)), &[]));
        holds(refused_after_failure(context, &success(4)));
        violates(catalog::REFUSED_AFTER_FAILURE, refused_after_failure(context, &success(5)));
    }
}
