//! Outputs: every reply, delivery and closed stream, checked as it is released.

use driftq_core::command::{DeleteGroup, DeleteTopic, Forget, Seek, StoreCommand};
use driftq_core::reply::{Produced, StoreReply};
use driftq_core::types::*;
use driftq_core::{Command, Output, Refusal, Reply};

use super::model::PendingCommand;
use super::state::Tracker;
use crate::invariants::limits::{refusal_is_noop, refused_only_when_full};
use crate::invariants::outputs::{ReleaseContext, one_reply, refused_after_failure};
use crate::invariants::verdict::Verdict;

impl Tracker {
    /// Observes and checks an output.
    pub(crate) fn observe_output(&mut self, output: &Output, context: ReleaseContext) -> Verdict {
        if let Output::Deliver { .. } = output {
            // Leases that expired before cut the credit of their streams.
            self.note_credit(context.now);
        }
        self.observe_released(output, context)?;
        self.note_credit(context.now);
        Ok(())
    }

    fn observe_released(&mut self, output: &Output, context: ReleaseContext) -> Verdict {
        refused_after_failure(context, output)?;
        match output {
            Output::Deliver { consumer, delivery } => self.delivered(*consumer, delivery, context.now),
            Output::Closed { consumer, .. } => {
                if let Some(stream) = self.streams.get_mut(consumer) {
                    stream.is_closed = true;
                }
                Ok(())
            }
            Output::Reply { ticket, result } => {
                let pending = self.pending.remove(ticket);
                self.has_new_reply = true;
                one_reply(pending.as_ref(), *ticket, result)?;
                let Some(pending) = pending else { return Ok(()) };
                self.recount.replied(&pending.command, result);
                self.forget_deleted_groups(Some(&pending));
                match result {
                    Err(Refusal::LogFailed) => {
                        // Recovery decides whether it took effect.
                        self.pending.insert(Ticket(u64::MAX - ticket.0), pending);
                        Ok(())
                    }
                    Err(refusal) => {
                        context.permits(pending.before, || format!("{:?}", pending.command))?;
                        refusal_is_noop(&pending, refusal)?;
                        if let Command::Complete(complete) = &pending.command {
                            self.step_refused(complete, refusal)?;
                        }
                        refused_only_when_full(&pending, refusal)
                    }
                    Ok(reply) => {
                        let required = if writes(&pending, reply) { pending.before.next() } else { pending.before };
                        context.permits(required, || format!("{:?}", pending.command))?;
                        self.replied(&pending, reply, context.now)
                    }
                }
            }
        }
    }
}

/// Whether the command with this reply certainly wrote a record.
fn writes(pending: &PendingCommand, reply: &Reply) -> bool {
    match (&pending.command, reply) {
        (_, Reply::Produced(Produced { duplicate, .. })) => !duplicate,
        (_, Reply::Store(StoreReply::Execute { idempotent, .. })) => *idempotent,
        (_, Reply::Store(StoreReply::Renewed { .. })) => true,
        (_, Reply::Completed(_)) => pending.claim_is_valid == Some(true),
        (Command::Store(store), Reply::Success) => matches!(**store, StoreCommand::Forget(Forget { .. })),
        (
            Command::Seek(Seek { .. })
            | Command::DeleteTopic(DeleteTopic { .. })
            | Command::DeleteGroup(DeleteGroup { .. }),
            _,
        ) => true,
        _ => false,
    }
}
