//! Payloads: the segments that hold live ones stay, what snapshots say of them is true, and memory is bounded.

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};

use driftq_core::ReadJob;
use driftq_core::log::{FileId, ReferredSegment};
use driftq_core::pipeline::LogNotice;
use driftq_core::state::{Message, Partition, State, Topic};
use driftq_core::types::{Lsn, PayloadId};

use super::catalog::{self, sentence};
use super::verdict::Verdict;

/// The payloads to which messages and effects of the state refer, with their bytes.
pub(crate) fn live_payloads(state: &State) -> BTreeMap<PayloadId, u64> {
    let partitions = state.topics().flat_map(Topic::partitions).map(|(_, partition)| partition);
    let messages = partitions.flat_map(Partition::messages);
    let messages = messages.map(|(_, message)| message.payload).filter(|payload| !payload.id.is_lost());
    let effects = state.store().tables().flat_map(|(_, table)| table.effects());
    let results = effects.filter_map(|(_, effect)| effect.result.as_ref()?.payload_ref());
    messages.chain(results).map(|payload| (payload.id, payload.encoded_len())).collect()
}

#[doc = sentence!(live_segment_stays)]
///
/// `live` are the payloads of a state that may still be needed: the current one, or that of the synced records.
pub(crate) fn live_segment_stays(
    removed: FileId,
    records: Option<&RangeInclusive<Lsn>>,
    live: &BTreeMap<PayloadId, u64>,
) -> Verdict {
    let found = records.and_then(|records| live.keys().find(|payload| records.contains(&payload.lsn)));
    catalog::LIVE_SEGMENT_STAYS.holds(found.is_none(), || format!("{removed} with {records:?} holds {found:?}"))
}

#[doc = sentence!(listed_segment_stays)]
pub(crate) fn listed_segment_stays(removed: FileId, listed: &[ReferredSegment]) -> Verdict {
    let found = listed.iter().find(|segment| segment.file() == removed);
    catalog::LISTED_SEGMENT_STAYS.holds(found.is_none(), || format!("{removed}: {found:?}"))
}

#[doc = sentence!(live_bytes_match)]
///
/// `counted` are the live bytes by segment, recounted; a payload counts what it takes to write it again.
pub(crate) fn live_bytes_match(listed: &[ReferredSegment], counted: &BTreeMap<FileId, u64>) -> Verdict {
    let listed: BTreeMap<_, _> = listed.iter().map(|segment| (segment.file(), segment.live_bytes)).collect();
    catalog::LIVE_BYTES_MATCH.holds(listed == *counted, || format!("listed {listed:?}, counted {counted:?}"))
}

#[doc = sentence!(gone_is_unreferred)]
pub(crate) fn gone_is_unreferred(gone: &[PayloadId], live: &BTreeMap<PayloadId, u64>) -> Verdict {
    let found = gone.iter().find(|payload| live.contains_key(payload));
    catalog::GONE_IS_UNREFERRED.holds(found.is_none(), || format!("{found:?}"))
}

#[doc = sentence!(relocated_is_moved)]
///
/// `live` are the payloads of a state with the relocation.
pub(crate) fn relocated_is_moved(from: PayloadId, live: &BTreeMap<PayloadId, u64>) -> Verdict {
    catalog::RELOCATED_IS_MOVED.holds(!live.contains_key(&from), || format!("{from:?}"))
}

#[doc = sentence!(memory_is_bounded)]
///
/// For a log whose records are all synced.
pub(crate) fn memory_is_bounded(bytes: u64, bytes_max: u64) -> Verdict {
    catalog::MEMORY_IS_BOUNDED.holds(bytes <= bytes_max, || format!("{bytes} of {bytes_max} bytes"))
}

#[doc = sentence!(unsynced_stays_in_memory)]
pub(crate) fn unsynced_stays_in_memory(missing: Option<PayloadId>, durable: Lsn) -> Verdict {
    let found = || format!("{missing:?} is not in memory, the log is synced through {durable}");
    catalog::UNSYNCED_STAYS_IN_MEMORY.holds(missing.is_none(), found)
}

#[doc = sentence!(lost_was_damaged)]
///
/// `was_found` is whether the broker has found its payload damaged, or that of the message whose dead letter it is.
pub(crate) fn lost_was_damaged(message: &Message, was_found: bool) -> Verdict {
    catalog::LOST_WAS_DAMAGED.holds(message.lost().is_none() || was_found, || format!("{message:?}"))
}

#[doc = sentence!(only_damaged_is_lost)]
///
/// `intact` is a payload that is said to be lost, and that the disk still has.
pub(crate) fn only_damaged_is_lost(intact: Option<PayloadId>, notice: &LogNotice) -> Verdict {
    catalog::ONLY_DAMAGED_IS_LOST.holds(intact.is_none(), || format!("{intact:?}: {notice}"))
}

#[doc = sentence!(rot_is_found)]
///
/// After longer than a scrub takes: `rotten` are live payloads whose records the disk has lost.
pub(crate) fn rot_is_found(rotten: &[(PayloadId, FileId, Range<usize>)]) -> Verdict {
    catalog::ROT_IS_FOUND.holds(rotten.is_empty(), || format!("{rotten:?}"))
}

#[doc = sentence!(reads_what_is_synced)]
pub(crate) fn reads_what_is_synced(job: &ReadJob, is_synced: bool) -> Verdict {
    catalog::READS_WHAT_IS_SYNCED.holds(is_synced, || format!("{job:?}"))
}

#[doc = sentence!(read_failure_is_passing)]
pub(crate) fn read_failure_is_passing(is_damaged: bool, notice: &LogNotice) -> Verdict {
    catalog::READ_FAILURE_IS_PASSING.holds(is_damaged, || notice.to_string())
}

#[cfg(test)]
mod tests {
    use driftq_core::types::Metadata;

    use super::*;
    use crate::invariants::tests::fixtures::*;

    const PAYLOAD: PayloadId = PayloadId { lsn: Lsn(9), part: 0 };

    #[test]
    fn payload_that_leaves_or_is_lost_without_reason_is_a_violation() {
        holds(gone_is_unreferred(&[PAYLOAD], &BTreeMap::new()));
        violates(catalog::GONE_IS_UNREFERRED, gone_is_unreferred(&[PAYLOAD], &BTreeMap::from([(PAYLOAD, 1)])));
        holds(lost_was_damaged(&message(&Metadata::default()), false));
        holds(rot_is_found(&[]));
        violates(catalog::ROT_IS_FOUND, rot_is_found(&[(PAYLOAD, FileId::Segment(1), 0..8)]));
        let lost = message(&Metadata { lost: Some("byte 7".into()), ..Metadata::default() });
        holds(lost_was_damaged(&lost, true));
        violates(catalog::LOST_WAS_DAMAGED, lost_was_damaged(&lost, false));
    }
}
