//! The disk: what a client saw is on it, what is on it is found again, and what was damaged is noticed.

use std::fmt::{Debug, Display};

use driftq_core::log::Recovered;
use driftq_core::types::Lsn;

use super::catalog::{self, sentence};
use super::outputs::Ground;
use super::verdict::{Verdict, Violation};

#[doc = sentence!(synced_first)]
pub(super) fn synced_first(ground: Ground, lsn: Lsn, what: impl FnOnce() -> String) -> Verdict {
    catalog::SYNCED_FIRST.holds(lsn <= ground.durable, || {
        format!("{}, which rests on {lsn}, where the disk has {}", what(), ground.durable)
    })
}

#[doc = sentence!(nothing_lost)]
pub(crate) fn nothing_lost(found: Lsn, durable: Lsn) -> Verdict {
    catalog::NOTHING_LOST.holds(found >= durable, || format!("{found} of {durable}"))
}

#[doc = sentence!(live_is_log)]
pub(crate) fn live_is_log(last: Lsn, live: u64, log: u64) -> Verdict {
    catalog::LIVE_IS_LOG.holds(live == log, || format!("at {last}: live {live:016x}, by the log {log:016x}"))
}

#[doc = sentence!(recovered_is_live)]
pub(crate) fn recovered_is_live(last: Lsn, written: u64, recovered: u64, found: &Recovered) -> Verdict {
    catalog::RECOVERED_IS_LIVE.holds(written == recovered, || {
        format!("at {last}: written {written:016x}, recovered {recovered:016x} from {found:?}")
    })
}

#[doc = sentence!(close_ends)]
pub(crate) fn close_ends(is_closed: bool) -> Verdict {
    catalog::CLOSE_ENDS.holds(is_closed, || "the log does not come to rest".to_owned())
}

#[doc = sentence!(closed_is_found)]
pub(crate) fn closed_is_found(was_closed: bool, found: &Recovered) -> Verdict {
    catalog::CLOSED_IS_FOUND.holds(found.clean || !was_closed, || format!("{found:?}"))
}

#[doc = sentence!(twice_the_same)]
pub(crate) fn twice_the_same(first: &Recovered, then: &Recovered) -> Verdict {
    let same = (then.last_lsn, &then.snapshot) == (first.last_lsn, &first.snapshot);
    catalog::TWICE_THE_SAME.holds(same, || format!("{first:?}, then {then:?}"))
}

#[doc = sentence!(dying_changes_nothing)]
///
/// Each with the digest of its state. What was never synced may still go with the power.
pub(crate) fn dying_changes_nothing(
    before: (&Recovered, u64),
    after: (&Recovered, u64),
    was_all_synced: bool,
) -> Verdict {
    let same = (before.0.last_lsn, before.1) == (after.0.last_lsn, after.1);
    catalog::DYING_CHANGES_NOTHING.holds(same || !was_all_synced, || format!("{before:?}, then {after:?}"))
}

#[doc = sentence!(never_refused)]
pub(crate) fn never_refused<T>(opened: Result<T, impl Display>) -> Result<T, Violation> {
    opened.map_err(|error| catalog::NEVER_REFUSED.violated_by(error.to_string()))
}

#[doc = sentence!(damage_is_noticed)]
pub(crate) fn damage_is_noticed(found: Lsn, proven: Lsn, damage: impl Debug) -> Verdict {
    catalog::DAMAGE_IS_NOTICED.holds(found >= proven, || format!("{damage:?}: {found} found, proven to {proven}"))
}

#[doc = sentence!(unread_is_refused)]
pub(crate) fn unread_is_refused(is_unreadable: bool, damage: impl Debug) -> Verdict {
    catalog::UNREAD_IS_REFUSED.holds(!is_unreadable, || format!("{damage:?} is taken for the end"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariants::tests::fixtures::*;

    #[test]
    fn what_was_synced_is_found_as_it_was_every_time() {
        fine(nothing_lost(Lsn(9), Lsn(9)));
        breaks(catalog::NOTHING_LOST, nothing_lost(Lsn(8), Lsn(9)));
        breaks(catalog::CLOSE_ENDS, close_ends(false));
        breaks(catalog::CLOSED_IS_FOUND, closed_is_found(true, &recovered()));
        let less = Recovered { last_lsn: Lsn(8), ..recovered() };
        fine(twice_the_same(&recovered(), &recovered()));
        breaks(catalog::TWICE_THE_SAME, twice_the_same(&recovered(), &less));
        let (found, less) = (&recovered(), &less);
        fine(dying_changes_nothing((found, 1), (less, 2), false));
        breaks(catalog::DYING_CHANGES_NOTHING, dying_changes_nothing((found, 1), (less, 1), true));
        breaks(catalog::DYING_CHANGES_NOTHING, dying_changes_nothing((found, 1), (found, 2), true));
    }

    #[test]
    fn what_cannot_be_read_is_not_the_end() {
        fine(unread_is_refused(false, "a flipped bit"));
        breaks(catalog::UNREAD_IS_REFUSED, unread_is_refused(true, "a sector"));
    }
}
