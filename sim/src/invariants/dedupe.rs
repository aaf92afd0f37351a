//! Produce identities: the same inside their window, new outside.

use std::fmt;

use driftq_core::reply::Produced;
use driftq_core::types::Timestamp;

use super::catalog::{self, sentence};
use super::tracker::model::{Identity, IdentityName};
use super::verdict::Verdict;

/// A produce that was answered, with what was known of its identity before.
#[derive(Clone, Copy)]
pub(super) struct Repeated<'a> {
    pub(super) name: Option<&'a IdentityName>,
    pub(super) known: Option<Identity>,
    pub(super) at: Timestamp,
    pub(super) produced: &'a Produced,
}

impl fmt::Display for Repeated<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {} was {:?}, is {:?}", self.name, self.at, self.known, self.produced)
    }
}

#[doc = sentence!(deduped_within_window)]
pub(super) fn deduped_within_window(repeated: Repeated<'_>) -> Verdict {
    let Repeated { known, at, produced, .. } = repeated;
    let good = match known {
        Some(Identity::Accepted { partition, offset, expires_at }) if expires_at > at => {
            produced.duplicate && (produced.partition, produced.offset) == (partition, offset)
        }
        _ => true,
    };
    catalog::DEDUPED_WITHIN_WINDOW.holds(good, || repeated.to_string())
}

#[doc = sentence!(new_after_window)]
pub(super) fn new_after_window(repeated: Repeated<'_>) -> Verdict {
    let good = match repeated.known {
        Some(Identity::Accepted { expires_at, .. }) if expires_at > repeated.at => true,
        Some(Identity::Maybe) => true,
        _ => !repeated.produced.duplicate,
    };
    catalog::NEW_AFTER_WINDOW.holds(good, || repeated.to_string())
}

#[cfg(test)]
mod tests {
    use driftq_core::reply::RouterUse;
    use driftq_core::types::{Offset, PartitionId};

    use super::*;
    use crate::invariants::tests::fixtures::*;

    #[test]
    fn an_identity_whose_window_has_ended_is_no_duplicate() {
        let produced =
            Produced { partition: PartitionId(0), offset: Offset(3), duplicate: true, router: RouterUse::default() };
        let accepted = |expires_at| {
            Some(Identity::Accepted { partition: PartitionId(0), offset: Offset(3), expires_at: Timestamp(expires_at) })
        };
        let said = |known| Repeated { name: None, known, at: Timestamp(100), produced: &produced };
        fine(new_after_window(said(accepted(101))));
        fine(new_after_window(said(Some(Identity::Maybe))));
        breaks(catalog::NEW_AFTER_WINDOW, new_after_window(said(accepted(100))));
        breaks(catalog::NEW_AFTER_WINDOW, new_after_window(said(None)));
    }
}
