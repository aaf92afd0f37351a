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

#[doc = sentence!(one_offset)]
pub(super) fn one_offset(repeated: Repeated<'_>) -> Verdict {
    let Repeated { known, at, produced, .. } = repeated;
    let good = match known {
        Some(Identity::Accepted { partition, offset, expires_at }) if expires_at > at => {
            produced.duplicate && (produced.partition, produced.offset) == (partition, offset)
        }
        _ => true,
    };
    catalog::ONE_OFFSET.holds(good, || repeated.to_string())
}

#[doc = sentence!(window_ends)]
pub(super) fn window_ends(repeated: Repeated<'_>) -> Verdict {
    let good = match repeated.known {
        Some(Identity::Accepted { expires_at, .. }) if expires_at > repeated.at => true,
        Some(Identity::Maybe) => true,
        _ => !repeated.produced.duplicate,
    };
    catalog::WINDOW_ENDS.holds(good, || repeated.to_string())
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
        fine(window_ends(said(accepted(101))));
        fine(window_ends(said(Some(Identity::Maybe))));
        breaks(catalog::WINDOW_ENDS, window_ends(said(accepted(100))));
        breaks(catalog::WINDOW_ENDS, window_ends(said(None)));
    }
}
