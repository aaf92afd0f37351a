//! Delivery order: higher priority first, then by offset.

use driftq_core::types::Offset;

use super::catalog::{self, sentence};
use super::tracker::model::{DeliveryContext, GroupModel};
use super::verdict::Verdict;

#[doc = sentence!(priority_first)]
pub(super) fn priority_first(model: &GroupModel, context: &DeliveryContext<'_>) -> Verdict {
    // The message has been ready since it was produced, so nothing of lower priority may have been delivered since.
    let order_key = context.order_key();
    let overtaken =
        model.last_delivered.range((order_key.0, 0)..order_key).find(|(_, when)| **when > context.known.produced_at);
    catalog::PRIORITY_FIRST
        .holds(overtaken.is_none(), || format!("{overtaken:?}, then at {} {:?}", context.at, context.delivery))
}

#[doc = sentence!(first_deliveries_ascend)]
pub(super) fn first_deliveries_ascend(before: Option<Offset>, context: &DeliveryContext<'_>) -> Verdict {
    let rising = before.is_none_or(|before| before < context.delivery.offset);
    catalog::FIRST_DELIVERIES_ASCEND.holds(rising, || format!("{before:?}, then {:?}", context.delivery))
}
