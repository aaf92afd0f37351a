//! A lower bound of how many messages of a group and partition are in flight at once.
//!
//! A lease counts from the line of its delivery to the first line by which it may have ended. Whatever is counted was
//! therefore in flight; more may have been.

use std::collections::BTreeMap;

use crate::checks::leases::lease_end;
use crate::entry::Entry;
use crate::parsed::{Delivery, MessageTimeline, ParsedHistory};
use crate::report::{Check, Report};

/// By how much the clocks of broker and driver may differ while the driver changes neither.
const SLACK_MS: u64 = 250;

/// The scope of the limit: topic, group and partition.
type Queue<'a> = (&'a str, &'a str, u64);

pub(super) fn check(history: &ParsedHistory<'_>, entries: &[Entry], report: &mut Report) {
    let Some(max) = history.setup.max_in_flight else {
        report.note("the setup has no max_in_flight, so messages in flight are not counted");
        return;
    };
    let times = Times::of(entries);
    let first_clock = history.clock_changes.first().map_or(u64::MAX, |change| *change.start());
    let mut changes: BTreeMap<Queue<'_>, Vec<(u64, Change)>> = BTreeMap::new();
    for timeline in history.timelines.values() {
        for (index, delivery) in timeline.deliveries.iter().enumerate() {
            let delivery = &history.deliveries[*delivery];
            let newer = timeline.deliveries.get(index + 1).map_or(u64::MAX, |newer| history.deliveries[*newer].seq);
            let end = newer.min(first_clock).min(end_of(history, timeline, delivery, &times));
            if end <= delivery.seq || delivery.ends_with_stream {
                continue;
            }
            report.count(Check::InFlight, 1);
            let queue = changes.entry((delivery.topic, delivery.group, delivery.at.partition)).or_default();
            queue.push((delivery.seq, Change::Begins));
            queue.push((end, Change::Ends));
        }
    }
    for ((topic, group, partition), mut changes) in changes {
        changes.sort_unstable();
        let (mut in_flight, mut peak, mut at) = (0_u64, 0, 0);
        for (seq, change) in changes {
            match change {
                Change::Ends => in_flight -= 1,
                Change::Begins => in_flight += 1,
            }
            if in_flight > peak {
                (peak, at) = (in_flight, seq);
            }
        }
        if peak > max {
            report.add_violation(Check::InFlight, [at], || {
                format!("topic {topic}, partition {partition}, group {group}: {peak} messages were in flight at once, the limit is {max}")
            });
        }
    }
}

/// On the same line, ends sort before beginnings.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    Ends,
    Begins,
}

/// The first line by which a lease may have ended.
fn end_of(history: &ParsedHistory<'_>, timeline: &MessageTimeline, delivery: &Delivery<'_>, times: &Times) -> u64 {
    let ended = history
        .settles_of_delivery(timeline, delivery.token)
        .filter(|settle| settle.op.ends_lease())
        .map(|settle| settle.span.invoked)
        .filter(|invoked| *invoked > delivery.seq)
        .min();
    // An extend without an answer may have shortened the lease.
    let by_clock = lease_end(history, timeline, delivery, u64::MAX)
        .map_or(delivery.seq, |end| times.line_at(end.saturating_sub(SLACK_MS)));
    ended.unwrap_or(u64::MAX).min(by_clock)
}

/// Maps times of the driver's clock to lines.
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
