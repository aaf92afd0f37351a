//! Durability: what a client saw is synced, what is synced is recovered, and damage is detected.

use std::fmt::{Debug, Display};

use driftq_core::log::Recovered;
use driftq_core::types::{FrameNumber, Lsn};

use super::catalog::{self, sentence};
use super::verdict::{Verdict, Violation};
use crate::shadow::Misrecorded;

#[doc = sentence!(synced_before_release)]
pub(super) fn synced_before_release(durable: Lsn, lsn: Lsn, what: impl FnOnce() -> String) -> Verdict {
    catalog::SYNCED_BEFORE_RELEASE
        .holds(lsn <= durable, || format!("{} needs LSN {lsn}, but only {durable} is durable", what()))
}

#[doc = sentence!(no_synced_loss)]
pub(crate) fn no_synced_loss(found: FrameNumber, durable: FrameNumber) -> Verdict {
    catalog::NO_SYNCED_LOSS.holds(found >= durable, || format!("frame {found} of {durable}"))
}

#[doc = sentence!(state_matches_log)]
pub(crate) fn state_matches_log(last: Lsn, live: u64, log: u64) -> Verdict {
    catalog::STATE_MATCHES_LOG.holds(live == log, || format!("at LSN {last}: live {live:016x}, by the log {log:016x}"))
}

#[doc = sentence!(recovered_matches_log)]
pub(crate) fn recovered_matches_log(last: Lsn, written: u64, recovered: u64, found: &Recovered) -> Verdict {
    catalog::RECOVERED_MATCHES_LOG.holds(written == recovered && found.last.lsn == last, || {
        format!("at LSN {last}: written {written:016x}, recovered {recovered:016x} from {found:?}")
    })
}

#[doc = sentence!(close_completes)]
pub(crate) fn close_completes(is_closed: bool) -> Verdict {
    catalog::CLOSE_COMPLETES.holds(is_closed, || "the log is not closed".to_owned())
}

#[doc = sentence!(close_is_recognised)]
pub(crate) fn close_is_recognised(was_closed: bool, found: &Recovered) -> Verdict {
    catalog::CLOSE_IS_RECOGNISED.holds(found.clean || !was_closed, || format!("{found:?}"))
}

#[doc = sentence!(recovery_is_idempotent)]
pub(crate) fn recovery_is_idempotent(first: &Recovered, then: &Recovered) -> Verdict {
    let same = (then.last, &then.snapshot) == (first.last, &first.snapshot);
    catalog::RECOVERY_IS_IDEMPOTENT.holds(same, || format!("{first:?}, then {then:?}"))
}

#[doc = sentence!(recovery_crash_is_harmless)]
///
/// Each with the digest of its state. Data that was never synced may still be lost.
pub(crate) fn recovery_crash_is_harmless(
    before: (&Recovered, u64),
    after: (&Recovered, u64),
    was_all_synced: bool,
) -> Verdict {
    let same = (before.0.last, before.1) == (after.0.last, after.1);
    catalog::RECOVERY_CRASH_IS_HARMLESS.holds(same || !was_all_synced, || format!("{before:?}, then {after:?}"))
}

#[doc = sentence!(sound_log_accepted)]
pub(crate) fn sound_log_accepted<T>(opened: Result<T, impl Display>) -> Result<T, Violation> {
    opened.map_err(|error| catalog::SOUND_LOG_ACCEPTED.violated_by(error.to_string()))
}

#[doc = sentence!(damage_is_detected)]
pub(crate) fn damage_is_detected(found: FrameNumber, proven: FrameNumber, damage: impl Debug) -> Verdict {
    catalog::DAMAGE_IS_DETECTED
        .holds(found >= proven, || format!("{damage:?}: frame {found} found, proven to {proven}"))
}

#[doc = sentence!(refusal_is_needed)]
pub(crate) fn refusal_is_needed(is_needed: bool, error: impl Debug) -> Verdict {
    catalog::REFUSAL_IS_NEEDED.holds(is_needed, || format!("{error:?}"))
}

#[doc = sentence!(whole_snapshots_are_kept)]
///
/// `usable` is the newest whole snapshot and the one or two to keep, oldest first.
pub(crate) fn whole_snapshots_are_kept(usable: &(Option<FrameNumber>, Vec<FrameNumber>), found: &Recovered) -> Verdict {
    let good = found.snapshot.map(|at| at.frame) == usable.0 && found.snapshots == usable.1;
    catalog::WHOLE_SNAPSHOTS_ARE_KEPT.holds(good, || format!("{usable:?} expected, found {found:?}"))
}

#[doc = sentence!(sync_is_recorded)]
///
/// `misrecorded` is a frame that does not.
pub(crate) fn sync_is_recorded(misrecorded: Option<Misrecorded>) -> Verdict {
    match misrecorded {
        None => Ok(()),
        Some(misrecorded) => Err(catalog::SYNC_IS_RECORDED.violated_by(format!("{misrecorded:?}"))),
    }
}

#[doc = sentence!(written_in_order)]
///
/// `breach` describes an operation that was not.
pub(crate) fn written_in_order(breach: Option<String>) -> Verdict {
    breach.map_or(Ok(()), |breach| Err(catalog::WRITTEN_IN_ORDER.violated_by(breach)))
}

#[doc = sentence!(read_error_is_refused)]
pub(crate) fn read_error_is_refused(is_unreadable: bool, damage: impl Debug) -> Verdict {
    catalog::READ_ERROR_IS_REFUSED.holds(!is_unreadable, || format!("{damage:?} is taken for the end of the file"))
}

#[cfg(test)]
mod tests {
    use driftq_core::log::LogPosition;

    use super::*;
    use crate::invariants::tests::fixtures::*;

    #[test]
    fn recovery_that_loses_or_changes_synced_data_is_a_violation() {
        holds(no_synced_loss(FrameNumber(9), FrameNumber(9)));
        violates(catalog::NO_SYNCED_LOSS, no_synced_loss(FrameNumber(8), FrameNumber(9)));
        violates(catalog::CLOSE_COMPLETES, close_completes(false));
        violates(catalog::CLOSE_IS_RECOGNISED, close_is_recognised(true, &recovered()));
        let less = Recovered { last: LogPosition { frame: FrameNumber(8), lsn: Lsn(6) }, ..recovered() };
        holds(recovered_matches_log(Lsn(7), 1, 1, &recovered()));
        violates(catalog::RECOVERED_MATCHES_LOG, recovered_matches_log(Lsn(7), 1, 2, &recovered()));
        violates(catalog::RECOVERED_MATCHES_LOG, recovered_matches_log(Lsn(8), 1, 1, &recovered()));
        holds(recovery_is_idempotent(&recovered(), &recovered()));
        violates(catalog::RECOVERY_IS_IDEMPOTENT, recovery_is_idempotent(&recovered(), &less));
        let (found, less) = (&recovered(), &less);
        holds(recovery_crash_is_harmless((found, 1), (less, 2), false));
        violates(catalog::RECOVERY_CRASH_IS_HARMLESS, recovery_crash_is_harmless((found, 1), (less, 1), true));
        violates(catalog::RECOVERY_CRASH_IS_HARMLESS, recovery_crash_is_harmless((found, 1), (found, 2), true));
    }

    #[test]
    fn unneeded_refusal_or_lost_snapshot_is_a_violation() {
        holds(refusal_is_needed(true, "damage"));
        violates(catalog::REFUSAL_IS_NEEDED, refusal_is_needed(false, "damage"));
        let (older, newest) = (FrameNumber(3), FrameNumber(5));
        let snapshot = Some(LogPosition { frame: newest, lsn: Lsn(4) });
        let found = Recovered { snapshot, snapshots: vec![older, newest], ..recovered() };
        holds(whole_snapshots_are_kept(&(Some(newest), vec![older, newest]), &found));
        violates(catalog::WHOLE_SNAPSHOTS_ARE_KEPT, whole_snapshots_are_kept(&(Some(older), vec![older]), &found));
        violates(catalog::WHOLE_SNAPSHOTS_ARE_KEPT, whole_snapshots_are_kept(&(Some(newest), vec![newest]), &found));
    }

    #[test]
    fn disorder_or_wrongly_recorded_sync_is_a_violation() {
        holds(written_in_order(None));
        violates(catalog::WRITTEN_IN_ORDER, written_in_order(Some("renamed before it is synced".to_owned())));
        let [number, recorded, reported, durable] = [9, 5, 7, 8].map(FrameNumber);
        holds(sync_is_recorded(None));
        let misrecorded = Misrecorded { number, recorded, reported, durable };
        violates(catalog::SYNC_IS_RECORDED, sync_is_recorded(Some(misrecorded)));
    }

    #[test]
    fn accepted_read_error_is_a_violation() {
        holds(read_error_is_refused(false, "a flipped bit"));
        violates(catalog::READ_ERROR_IS_REFUSED, read_error_is_refused(true, "a sector"));
    }
}
