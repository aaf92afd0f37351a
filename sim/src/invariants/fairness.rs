//! Fairness: turns of streams and partitions; administration and maintenance come to an end.

use std::collections::BTreeSet;

use driftq_core::types::{ConsumerId, PartitionId};

use super::catalog::{self, sentence};
use super::verdict::Verdict;

#[doc = sentence!(streams_take_turns)]
///
/// A group serves the streams with credit in the order of their ids, from the last one served on, so each of the others
/// comes at most once before a stream that has credit. `waiting` had credit all the time while `served_meanwhile` got a
/// delivery each, and now `served` gets one.
pub(super) fn streams_take_turns(
    waiting: ConsumerId,
    served_meanwhile: &BTreeSet<ConsumerId>,
    served: ConsumerId,
) -> Verdict {
    catalog::STREAMS_TAKE_TURNS.holds(!served_meanwhile.contains(&served), || {
        format!("{served:?} gets another delivery while {waiting:?} waits; before: {served_meanwhile:?}")
    })
}

#[doc = sentence!(partitions_take_turns)]
///
/// A group takes its messages from one partition after the other, from the last one on.
pub(super) fn partitions_take_turns(
    waiting: PartitionId,
    served_meanwhile: &BTreeSet<PartitionId>,
    served: PartitionId,
) -> Verdict {
    catalog::PARTITIONS_TAKE_TURNS.holds(!served_meanwhile.contains(&served), || {
        format!("{served} is delivered from again while {waiting} waits; before: {served_meanwhile:?}")
    })
}

#[doc = sentence!(administration_ends)]
///
/// `records` were appended by the call, `there` is what was stored when it was asked for, `moved` what its deliveries
/// took.
pub(crate) fn administration_ends(records: u64, there: u64) -> Verdict {
    catalog::ADMINISTRATION_ENDS.holds(records <= there, || format!("{records} records, {there} at most"))
}

#[doc = sentence!(maintenance_ends)]
pub(crate) fn maintenance_ends(left: &[String]) -> Verdict {
    catalog::MAINTENANCE_ENDS.holds(left.is_empty(), || left.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariants::tests::fixtures::*;

    #[test]
    fn second_turn_before_the_first_of_another_is_a_violation() {
        let served = BTreeSet::from([ConsumerId(1)]);
        holds(streams_take_turns(ConsumerId(2), &served, ConsumerId(3)));
        violates(catalog::STREAMS_TAKE_TURNS, streams_take_turns(ConsumerId(2), &served, ConsumerId(1)));
        let served = BTreeSet::from([PartitionId(0)]);
        holds(partitions_take_turns(PartitionId(1), &served, PartitionId(2)));
        violates(catalog::PARTITIONS_TAKE_TURNS, partitions_take_turns(PartitionId(1), &served, PartitionId(0)));
    }

    #[test]
    fn endless_administration_or_maintenance_is_a_violation() {
        holds(administration_ends(3, 3));
        violates(catalog::ADMINISTRATION_ENDS, administration_ends(4, 3));
        holds(maintenance_ends(&[]));
        violates(catalog::MAINTENANCE_ENDS, maintenance_ends(&["a dedupe key".to_owned()]));
    }
}
