//! Produce identities: deduplicated within their window, new after it.

use std::fmt;

use driftq_core::reply::Produced;
use driftq_core::types::Timestamp;

use super::catalog::{self, sentence};
use super::tracker::model::{DedupeEntry, DedupeKey};
use super::verdict::Verdict;

/// A reply to a produce, with what was known of its identity before.
#[derive(Clone, Copy)]
pub(super) struct ProduceReply<'a> {
    pub(super) key: Option<&'a DedupeKey>,
    pub(super) known: Option<DedupeEntry>,
    pub(super) at: Timestamp,
    pub(super) produced: &'a Produced,
}

impl fmt::Display for ProduceReply<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {} was {:?}, is {:?}", self.key, self.at, self.known, self.produced)
    }
}

#[doc = sentence!(deduped_within_window)]
pub(super) fn deduped_within_window(reply: ProduceReply<'_>) -> Verdict {
    let ProduceReply { known, at, produced, .. } = reply;
    let good = match known {
        Some(DedupeEntry::Accepted { partition, offset, expires_at }) if expires_at > at => {
            produced.duplicate && (produced.partition, produced.offset) == (partition, offset)
        }
        _ => true,
    };
    catalog::DEDUPED_WITHIN_WINDOW.holds(good, || reply.to_string())
}

#[doc = sentence!(new_after_window)]
pub(super) fn new_after_window(reply: ProduceReply<'_>) -> Verdict {
    let good = match reply.known {
        Some(DedupeEntry::Accepted { expires_at, .. }) if expires_at > reply.at => true,
        Some(DedupeEntry::Unknown) => true,
        _ => !reply.produced.duplicate,
    };
    catalog::NEW_AFTER_WINDOW.holds(good, || reply.to_string())
}

#[cfg(test)]
mod tests {
    use driftq_core::reply::RouterUse;
    use driftq_core::types::{Offset, PartitionId};

    use super::*;
    use crate::invariants::tests::fixtures::*;

    #[test]
    fn duplicate_after_window_is_a_violation() {
        let (partition, offset, router) = (PartitionId(0), Offset(3), RouterUse::default());
        let produced = Produced { partition, offset, duplicate: true, already_done: false, router };
        let accepted = |expires_at| {
            Some(DedupeEntry::Accepted {
                partition: PartitionId(0),
                offset: Offset(3),
                expires_at: Timestamp(expires_at),
            })
        };
        let reply = |known| ProduceReply { key: None, known, at: Timestamp(100), produced: &produced };
        holds(new_after_window(reply(accepted(101))));
        holds(new_after_window(reply(Some(DedupeEntry::Unknown))));
        violates(catalog::NEW_AFTER_WINDOW, new_after_window(reply(accepted(100))));
        violates(catalog::NEW_AFTER_WINDOW, new_after_window(reply(None)));
    }
}
