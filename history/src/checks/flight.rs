//! How many messages of a group and partition are leased at a time, at least.
//!
//! A lease counts from the line on which its message was received until the first line by which it may have ended. So whatever is
//! counted was really in flight, and more may have been.

use std::collections::BTreeMap;

use super::leases::lease_end;
use crate::Entry;
use crate::parsed::{Delivery, Facts, Story};
use crate::report::{Check, Report};

/// By how much the clocks of server and driver may differ where nobody tampered with them.
const SLACK_MS: u64 = 250;

/// What the limit counts for: topic, group and partition.
type Queue<'a> = (&'a str, &'a str, u64);

pub(super) fn check(facts: &Facts<'_>, entries: &[Entry], report: &mut Report) {
    let Some(max) = facts.setup.max_in_flight else {
        report.note("setup names no max_in_flight, so what is in flight is not counted");
        return;
    };
    let times = Times::of(entries);
    let first_clock = facts.clocks.first().copied().unwrap_or(u64::MAX);
    let mut changes: BTreeMap<Queue<'_>, Vec<(u64, Change)>> = BTreeMap::new();
    for story in facts.stories.values() {
        for (index, delivery) in story.deliveries.iter().enumerate() {
            let delivery = &facts.deliveries[*delivery];
            let newer = story.deliveries.get(index + 1).map_or(u64::MAX, |newer| facts.deliveries[*newer].seq);
            let end = newer.min(first_clock).min(end_of(facts, story, delivery, &times));
            if end <= delivery.seq || delivery.ends_with_stream {
                continue;
            }
            report.looked_at(Check::InFlight, 1);
            let queue = changes.entry((delivery.topic, delivery.group, delivery.place.partition)).or_default();
            queue.push((delivery.seq, Change::Begins));
            queue.push((end, Change::Ends));
        }
    }
    for ((topic, group, partition), mut changes) in changes {
        changes.sort_unstable();
        let (mut live, mut peak, mut at) = (0_u64, 0, 0);
        for (seq, change) in changes {
            match change {
                Change::Ends => live -= 1,
                Change::Begins => live += 1,
            }
            if live > peak {
                (peak, at) = (live, seq);
            }
        }
        if peak > max {
            report.accuse(Check::InFlight, [at], || {
                format!("topic {topic}, partition {partition}, group {group}: {peak} messages were in flight at a time, {max} may be")
            });
        }
    }
}

/// Ends come before beginnings on the same line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    Ends,
    Begins,
}

/// The first line by which a lease may have ended.
fn end_of(facts: &Facts<'_>, story: &Story, delivery: &Delivery<'_>, times: &Times) -> u64 {
    let ended = facts
        .words_about(story, delivery.token)
        .filter(|settle| settle.op.ends_lease())
        .map(|settle| settle.span.invoked)
        .filter(|invoked| *invoked > delivery.seq)
        .min();
    // An extension that nobody answered may have shortened it.
    let by_clock = lease_end(facts, story, delivery, u64::MAX)
        .map_or(delivery.seq, |end| times.line_at(end.saturating_sub(SLACK_MS)));
    ended.unwrap_or(u64::MAX).min(by_clock)
}

/// From the driver's clock to lines.
struct Times(Vec<(u64, u64)>);

impl Times {
    fn of(entries: &[Entry]) -> Self {
        let mut latest = 0;
        let mut times = Vec::new();
        for entry in entries {
            if entry.t > latest {
                latest = entry.t;
                times.push((latest, entry.seq));
            }
        }
        Self(times)
    }

    /// The first line written at `t` or later.
    fn line_at(&self, t: u64) -> u64 {
        let index = self.0.partition_point(|(time, _)| *time < t);
        self.0.get(index).map_or(u64::MAX, |(_, seq)| *seq)
    }
}
