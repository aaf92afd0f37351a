//! Time: no delivery is early or past its deadline, and the clock is monotonic.

use driftq_core::state::{Group, Message, Topic};
use driftq_core::types::{Millis, Position, RetryPolicy, Timestamp, WallClock};

use super::catalog::{self, sentence};
use super::tracker::model::{DeliveryContext, GroupModel};
use super::verdict::Verdict;

#[doc = sentence!(time_is_monotonic)]
pub(crate) fn time_is_monotonic(latest: Timestamp, now: Timestamp) -> Verdict {
    catalog::TIME_IS_MONOTONIC.holds(latest <= now, || format!("{now} after {latest}"))
}

#[doc = sentence!(not_before_due)]
pub(super) fn not_before_due(model: &GroupModel, context: &DeliveryContext<'_>) -> Verdict {
    let (delivery, at) = (context.delivery, context.at);
    let scheduled = context.envelope.delayed_until.unwrap_or_default();
    // A rebase can set wall time back behind a first delivery.
    let is_first = delivery.attempts == 1;
    let is_early = is_first && context.envelope.deliver_at.is_some_and(|at| at > context.walls.1);
    let before = model.seen.get(&delivery.offset).filter(|seen| !seen.is_uncertain);
    let retried = before.map_or(Timestamp(0), |seen| match seen.may_be_held {
        // The lease expired.
        true => seen.runs_until.after(least_backoff(context.envelope.retry_policy, delivery.failures)),
        false => seen.not_before,
    });
    let earliest = scheduled.max(retried);
    catalog::NOT_BEFORE_DUE.holds(earliest <= at && !is_early, || {
        format!("at {at}, not before {earliest}: {delivery:?}, before {before:?}")
    })
}

#[doc = sentence!(not_after_deadline)]
pub(super) fn not_after_deadline(context: &DeliveryContext<'_>) -> Verdict {
    let is_late = context.envelope.deadline.as_ref().is_some_and(|deadline| deadline.at <= context.walls.0);
    // Dead letters are delivered past their deadline.
    catalog::NOT_AFTER_DEADLINE
        .holds(!is_late || context.is_dead_letter, || format!("at {}: {:?}", context.at, context.envelope))
}

#[doc = sentence!(wall_is_monotonic)]
///
/// Both as broker time and wall time. `before` is `None` after a start or a rebase.
pub(super) fn wall_is_monotonic(before: Option<(Timestamp, Timestamp)>, now: (Timestamp, Timestamp)) -> Verdict {
    catalog::WALL_IS_MONOTONIC
        .holds(before.is_none_or(|(_, wall)| wall <= now.1), || format!("{now:?} after {before:?}"))
}

#[doc = sentence!(wall_follows_clock)]
///
/// After a call at broker time `now` in which the wall clock showed `reading`.
pub(super) fn wall_follows_clock(clock: &WallClock, now: Timestamp, reading: Timestamp) -> Verdict {
    let (actual, wall) = (reading.0 as i64 - now.0 as i64, clock.wall(now));
    let is_recent = now.0 < clock.since().0 + 3_000;
    let is_behind = reading.0 > wall.0 + 1_000;
    let approaches = (actual - clock.target()).abs() <= 1_000;
    // Half of the way since the adjustment, to the millisecond.
    let slewed = clock.initial_offset() - (wall.0 as i64 - now.0 as i64);
    let is_half_speed = clock.target() < wall.0 as i64 - now.0 as i64;
    let speed = !is_half_speed || (slewed - (now.0 - clock.since().0) as i64 / 2).abs() <= 1;
    catalog::WALL_FOLLOWS_CLOCK.holds(is_recent || !is_behind && approaches && speed, || {
        format!("wall time {wall} at {now}, the wall clock shows {reading}: {clock:?}")
    })
}

#[doc = sentence!(deadline_ends_waiting)]
///
/// For an idle broker without due timers, at wall time `wall`.
pub(super) fn deadline_ends_waiting(topic: &Topic, group: &Group, wall: Timestamp) -> Verdict {
    if topic.name().is_dead_letter() {
        return Ok(());
    }
    for (id, progress) in group.partitions() {
        let Some(partition) = topic.partition(id) else { continue };
        let is_overdue = |(position, message): &(Position, Message)| {
            !progress.acked().contains(*position)
                && progress.delivery(*position).is_none_or(|entry| entry.leased_until().is_none())
                && message.deadline().is_some_and(|deadline| deadline <= wall)
        };
        let overdue = partition.messages().find(is_overdue);
        catalog::DEADLINE_ENDS_WAITING.holds(overdue.is_none(), || {
            format!("{}/{id} for {} at {wall}: {overdue:?}", topic.name(), group.name())
        })?;
    }
    Ok(())
}

/// The shortest backoff after the `failures`-th failure.
pub(super) fn least_backoff(policy: Option<RetryPolicy>, failures: u32) -> Millis {
    let Some(policy) = policy else { return Millis(0) };
    let longest = if policy.max_backoff.0 == 0 { 24 * 3_600_000 } else { policy.max_backoff.0 };
    let doubled = (0..failures.saturating_sub(1)).fold(policy.backoff.0, |wait, _| wait.saturating_mul(2));
    Millis(doubled.min(longest).div_ceil(2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariants::tests::fixtures::*;

    #[test]
    fn wall_time_that_runs_backwards_is_a_violation() {
        let at = |now, wall| (Timestamp(now), Timestamp(wall));
        holds(wall_is_monotonic(Some(at(5, 9)), at(6, 9)));
        holds(wall_is_monotonic(None, at(6, 8)));
        violates(catalog::WALL_IS_MONOTONIC, wall_is_monotonic(Some(at(5, 9)), at(6, 8)));
    }

    #[test]
    fn wall_time_that_ignores_its_clock_is_a_violation() {
        let clock = WallClock::new(Timestamp(0), 0, 0).expect("a clock that does not slew");
        let follows = |reading| wall_follows_clock(&clock, Timestamp(10_000), Timestamp(reading));
        holds(follows(11_000));
        holds(follows(9_000));
        violates(catalog::WALL_FOLLOWS_CLOCK, follows(11_001));
        violates(catalog::WALL_FOLLOWS_CLOCK, follows(8_999));
    }

    #[test]
    fn time_that_runs_backwards_is_a_violation() {
        holds(time_is_monotonic(Timestamp(5), Timestamp(5)));
        violates(catalog::TIME_IS_MONOTONIC, time_is_monotonic(Timestamp(5), Timestamp(4)));
    }
}
