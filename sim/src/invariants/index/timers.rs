//! Timers: every one that the state implies, and no other.

use std::collections::BTreeMap;

use driftq_core::state::Topic;
use driftq_core::types::{EffectStatus, GroupOrigin, Millis, Phase, Timestamp};
use driftq_core::volatile::{Due, LeaseEnd, Sweep, Timer};

use super::{GroupPartition, IndexView, open_messages, retained_messages};
use crate::invariants::catalog::{self, sentence};
use crate::invariants::tracker::recount::payload;
use crate::invariants::verdict::Verdict;

/// How long after the first expiry a table is swept.
const SWEEP_SLACK: Millis = Millis(1_000);
/// A group that could not be deleted is examined again after the idle time, or after this.
const REEXAMINED_AFTER_MIN: Millis = Millis(1_000);

#[doc = sentence!(timers_match_state)]
pub(super) fn timers_match_state(view: &IndexView<'_>) -> Verdict {
    let mut timers = Remaining(view.index.timers.iter().map(|(due, timer)| (*timer, *due)).collect());
    let are_single = timers.0.len() == view.index.timers.len();
    catalog::TIMERS_MATCH_STATE.holds(are_single, || format!("a timer is set twice: {:?}", view.index.timers))?;
    view.group_partitions().try_for_each(|at| leases_and_retries(view, &at, &mut timers))?;
    for topic in view.state.topics() {
        delays_and_deadlines(view, topic, &mut timers)?;
        retention(topic, &mut timers)?;
        idle_groups(view, topic, &mut timers)?;
    }
    catalog::TIMERS_MATCH_STATE.holds(timers.0.is_empty(), || format!("nothing implies {:?}", timers.0))
}

/// The timers that were not looked at.
struct Remaining(BTreeMap<Timer, Due>);

impl Remaining {
    /// The timer is set, and then.
    fn expect(&mut self, timer: Timer, due: Due) -> Verdict {
        let found = self.0.remove(&timer);
        catalog::TIMERS_MATCH_STATE.holds(found == Some(due), || format!("{timer:?} is due {due:?}, not {found:?}"))
    }
}

fn leases_and_retries(view: &IndexView<'_>, at: &GroupPartition<'_>, timers: &mut Remaining) -> Verdict {
    let topic = view.index.topics.get(&at.topic.id());
    let cursor = topic.and_then(|topic| topic.groups.get(&at.group.id())?.cursors.get(at.id.0 as usize));
    for (position, delivery) in at.progress.deliveries() {
        let message_ref = at.at(position);
        let lease = cursor.and_then(|cursor| cursor.leases.get(&position)).map(|lease| lease.end);
        let wrong = |what: &str| {
            let found = || format!("{message_ref:?} at {}: {what}: {delivery:?}", view.now);
            catalog::TIMERS_MATCH_STATE.holds(false, found)
        };
        match (delivery.phase, lease) {
            (Phase::Leased { until }, Some(LeaseEnd::At(end))) => {
                timers.expect(Timer::Lease(message_ref), Due::Broker(end))?;
                if end < until {
                    return wrong("its lease ends before it was told");
                }
                if view.is_settled && end <= view.now {
                    return wrong("its lease has ended");
                }
            }
            (Phase::Leased { .. }, Some(LeaseEnd::Unreleased(lsn) | LeaseEnd::Extending(lsn))) => {
                if lsn <= view.durable {
                    return wrong("its lease does not run, though its record is durable");
                }
            }
            (Phase::Leased { .. }, Some(LeaseEnd::Unread(lsn))) => {
                if lsn > view.durable || !view.is_reading {
                    return wrong("its lease waits for bytes, though nothing is read or its record is not durable");
                }
            }
            (Phase::Leased { .. }, other) => return wrong(&format!("it is leased, not {other:?}")),
            (Phase::Queued { .. }, Some(end)) if end != LeaseEnd::Expired => {
                return wrong("it is queued and has a lease");
            }
            (Phase::Queued { not_before }, _) => {
                let is_ready = cursor.is_some_and(|cursor| cursor.returned.iter().any(|(_, at)| *at == position));
                if !is_ready {
                    timers.expect(Timer::Retry(message_ref), Due::Broker(not_before))?;
                }
                if is_ready && not_before > view.now || view.is_settled && !is_ready && not_before <= view.now {
                    return wrong("it is ready too early or too late");
                }
            }
        }
    }
    Ok(())
}

fn delays_and_deadlines(view: &IndexView<'_>, topic: &Topic, timers: &mut Remaining) -> Verdict {
    for (id, partition) in topic.partitions() {
        let queue = view.index.topics.get(&topic.id()).and_then(|topic| topic.queues.get(id.0 as usize));
        for (position, (due, _)) in queue.into_iter().flat_map(|queue| &queue.delayed) {
            timers.expect(Timer::Delay(topic.id(), id, *position), *due)?;
        }
        for (position, message) in open_messages(topic, id, partition) {
            let deadline = message.deadline().filter(|_| !topic.name().is_dead_letter());
            let known = view.index.deadlines.get(&(topic.id(), id, position)).copied();
            catalog::TIMERS_MATCH_STATE.holds(known == deadline, || {
                format!("{} {id} {position}: the deadline is {deadline:?}, not {known:?}", topic.name())
            })?;
            let timer = Timer::Deadline(topic.id(), id, position);
            if let Some(at) = deadline.filter(|at| *at > view.wall || timers.0.contains_key(&timer)) {
                timers.expect(timer, Due::Wall(at))?;
            }
        }
    }
    let of_topic = view.index.deadlines.keys().filter(|(of, ..)| *of == topic.id());
    let stale = of_topic.clone().find(|(_, id, position)| {
        topic
            .partition(*id)
            .is_none_or(|partition| !open_messages(topic, *id, partition).any(|(at, _)| at == *position))
    });
    catalog::TIMERS_MATCH_STATE.holds(stale.is_none(), || format!("the deadline of {stale:?}, which is not open"))
}

fn retention(topic: &Topic, timers: &mut Remaining) -> Verdict {
    let retention = topic.retention();
    for (id, partition) in topic.partitions() {
        let bytes: u64 = retained_messages(topic, id, partition).map(|message| payload(&message)).sum();
        let oldest = retained_messages(topic, id, partition).map(|message| message.produced_at).min();
        let due = match oldest {
            Some(_) if retention.bytes.is_some_and(|max| bytes > max) => Some(Timestamp(0)),
            oldest => oldest.zip(retention.age).map(|(oldest, age)| oldest.after(age)),
        };
        if let Some(due) = due {
            timers.expect(Timer::Retention(topic.id(), id), Due::Broker(due))?;
        }
    }
    Ok(())
}

fn idle_groups(view: &IndexView<'_>, topic: &Topic, timers: &mut Remaining) -> Verdict {
    let index = view.index;
    for group in topic.groups() {
        let key = (topic.id(), group.id());
        let members = index.consumers.values().filter(|consumer| (consumer.topic, consumer.group) == key).count();
        let wrong = |what: &str| {
            let watched = index.departed.get(&key);
            let found = format!("{} {} at {}: {what}, {watched:?}", topic.name(), group.name(), view.now);
            catalog::TIMERS_MATCH_STATE.holds(false, || found)
        };
        if let Some((since, due)) = index.departed.get(&key).copied() {
            let Some((idle, longest)) = index.group_idle else { return wrong("groups stay, and it is watched") };
            timers.expect(Timer::IdleGroup(topic.id(), group.id()), Due::Broker(due))?;
            if members > 0 || group.origin() != GroupOrigin::Consumed {
                return wrong("it stays, and is watched");
            }
            if since > view.now || due > since.after(longest).max(view.now.after(idle.max(REEXAMINED_AFTER_MIN))) {
                return wrong("it is examined too late");
            }
        } else if members == 0
            && group.origin() == GroupOrigin::Consumed
            && !group.has_acked()
            && index.group_idle.is_some()
        {
            return wrong("it is not watched");
        }
        let is_condemned = index.condemned.contains(&key);
        if members == 0 && group.origin() == GroupOrigin::Ephemeral && !is_condemned {
            return wrong("it is ephemeral, has no stream, and is not to be deleted");
        }
        if view.is_settled && is_condemned {
            return wrong("it is to be deleted");
        }
    }
    Ok(())
}

#[doc = sentence!(sweeps_are_set)]
pub(super) fn sweeps_are_set(view: &IndexView<'_>) -> Verdict {
    let mut due: Vec<(Sweep, Timestamp)> = Vec::new();
    for (scope, table) in view.state.dedupe_tables() {
        let oldest = table.entries().map(|(_, entry)| entry.expires_at).next();
        due.extend(oldest.map(|at| (Sweep::Dedupe(scope.clone()), at.after(SWEEP_SLACK))));
    }
    for (namespace, table) in view.state.store().tables() {
        let checks = table.effects().map(|(_, effect)| effect.expiry_check_at());
        due.extend(checks.min().map(|at| (Sweep::Effects(namespace), at)));
    }
    let oldest = view.state.completions().entries().map(|(_, completion)| completion.until).next();
    due.extend(oldest.map(|at| (Sweep::Completions, at.after(SWEEP_SLACK))));
    let oldest = view.state.winners().entries().map(|(_, winner)| winner.until).next();
    due.extend(oldest.map(|at| (Sweep::Winners, at.after(SWEEP_SLACK))));
    for (sweep, at) in due {
        let set = view.index.sweeps.iter().find(|(_, other)| *other == sweep).map(|(set, _)| *set);
        let good = set.is_some_and(|set| set <= at) && !(view.is_settled && at <= view.now);
        catalog::SWEEPS_ARE_SET.holds(good, || format!("{sweep:?} is due at {at}, set {set:?}, now {}", view.now))?;
    }
    grants_are_checked(view)
}

/// Grants of this boot whose lease may run longer than recorded are checked before their effect can expire.
fn grants_are_checked(view: &IndexView<'_>) -> Verdict {
    let grants = &view.index.grants;
    let mut checks: Vec<_> = grants.iter().map(|(token, _, at)| (*at, *token)).collect();
    checks.sort_unstable();
    catalog::SWEEPS_ARE_SET.holds(checks == view.index.grant_checks, || {
        format!("grants {grants:?} are checked at {:?}", view.index.grant_checks)
    })?;
    for (_, table) in view.state.store().tables() {
        for (key, effect) in table.effects() {
            let Some(token) = effect.token.filter(|token| token.boot == view.state.boot()) else { continue };
            let runs = effect.status == EffectStatus::InProgress && effect.lease_until > view.now;
            let good = !runs || grants.iter().any(|(running, ..)| *running == token);
            catalog::SWEEPS_ARE_SET.holds(good, || format!("the grant of {key:?} is not checked: {effect:?}"))?;
        }
    }
    Ok(())
}
