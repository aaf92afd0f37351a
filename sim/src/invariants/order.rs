//! What goes first: of different priorities the higher, of equal ones the older.

use driftq_core::types::{Offset, PartitionId};

use super::catalog::{self, sentence};
use super::tracker::deliveries::Handed;
use super::tracker::model::GroupModel;
use super::verdict::Verdict;

/// A partition and a priority: what is delivered in order.
pub(super) type Lane = (PartitionId, u8);

#[doc = sentence!(priority_first)]
pub(super) fn priority_first(book: &GroupModel, handed: &Handed<'_>) -> Verdict {
    // It has been ready since it was produced, so nothing less urgent can have been delivered since.
    let lane = handed.lane();
    let overtaken = book.served.range((lane.0, 0)..lane).find(|(_, when)| **when > handed.known.produced_at);
    catalog::PRIORITY_FIRST
        .holds(overtaken.is_none(), || format!("{overtaken:?}, then at {} {:?}", handed.at, handed.delivery))
}

#[doc = sentence!(first_deliveries_ascend)]
pub(super) fn first_deliveries_ascend(before: Option<Offset>, handed: &Handed<'_>) -> Verdict {
    let rising = before.is_none_or(|before| before < handed.delivery.offset);
    catalog::FIRST_DELIVERIES_ASCEND.holds(rising, || format!("{before:?}, then {:?}", handed.delivery))
}
