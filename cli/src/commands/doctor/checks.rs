//! The checks: what was measured in, findings out. Asks nothing of the broker.

use std::time::Duration;

use driftq_client::{GroupInfo, ServerVersion, TopicInfo};

use super::Finding;
use crate::metrics::Metrics;
use crate::text::counted;
use crate::units::{bytes, latency, millis};

/// Clocks that differ by more than this make deadlines and delays surprising.
const SKEW_MAX_SECONDS: f64 = 2.0;
/// Broker time that is further ahead of its own wall clock was set wrongly once.
const CLOCK_AHEAD_MAX_MS: u64 = 3_600_000;
/// A disk that takes longer for one sync in a hundred is a bottleneck. This is a bound of the histogram's buckets.
const SYNC_P99_MAX_SECONDS: f64 = 0.1024;
/// Of fewer syncs the slowest one would decide.
const SYNCS_MIN: u64 = 100;
/// A sync that has been under way for so long stalls every request.
const SYNC_PENDING_MAX_SECONDS: f64 = 5.0;
/// The share of the memory of the state from which on room is short.
const STATE_SHARE_MAX: f64 = 0.8;
/// Why a group that merely waits for the time gets nothing.
const NOT_YET_DUE: &str = "everything left is delayed or waiting for its retry";

/// What is known about one server.
pub(super) struct Facts<'a> {
    pub(super) url: &'a str,
    pub(super) version: Option<ServerVersion>,
    pub(super) readiness: Readiness,
    /// The server's clock, in whole seconds.
    pub(super) date: Option<u32>,
    /// The clock here when it was asked for, and when the answer was there.
    pub(super) asked: f64,
    pub(super) answered: f64,
    pub(super) metrics: Metrics,
}

/// What `readyz` says.
pub(super) struct Readiness {
    pub(super) is_ready: bool,
    pub(super) status: String,
    pub(super) clock_ahead_ms: u64,
}

/// All checks of one server.
pub(super) fn server(facts: &Facts<'_>) -> Vec<Finding> {
    let mut findings = vec![Finding::ok("reachable", facts.url), ready(&facts.readiness)];
    findings.extend(facts.version.as_ref().map(version));
    findings.extend(clocks(facts));
    findings.push(disk(&facts.metrics));
    findings.push(memory(&facts.metrics));
    findings.extend(damage(&facts.metrics));
    findings.push(dead_letters(&facts.metrics));
    findings
}

fn ready(readiness: &Readiness) -> Finding {
    if readiness.is_ready {
        return Finding::ok("ready", "it accepts requests");
    }
    let advice = "wait if it reads its log or stops; if its log has failed, see its output and restart it";
    Finding::wrong("ready", format!("it accepts no requests: {}", readiness.status), advice)
}

fn version(server: &ServerVersion) -> Finding {
    let own = env!("CARGO_PKG_VERSION");
    let what = format!("driftqd {}, driftq {own}", server.version);
    if server.version != own {
        return Finding::note("version", what, "use the command line and the broker of one version");
    }
    if !server.wal_enabled {
        return Finding::note(
            "version",
            what + ", without a log on disk",
            "a restart loses everything; start it without --memory or --no-wal to keep it",
        );
    }
    Finding::ok("version", what)
}

/// The least difference that explains what was seen: the header has whole seconds, and the answer took its time.
fn skew_seconds(facts: &Facts<'_>) -> Option<f64> {
    let date = f64::from(facts.date?);
    let ahead = date - facts.answered;
    let behind = facts.asked - (date + 1.0);
    Some(if ahead > 0.0 { ahead } else { -behind.max(0.0) })
}

fn clocks(facts: &Facts<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(skew) = skew_seconds(facts) {
        let direction = if skew > 0.0 { "ahead of" } else { "behind" };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative, and below 2^53")]
        let size = millis((skew.abs() * 1e3) as u64);
        findings.push(if skew.abs() > SKEW_MAX_SECONDS {
            let what = format!("the clock of the broker's machine is {size} {direction} the one here");
            Finding::wrong("clock", what, "set both by NTP: deadlines and times of delivery are wall times")
        } else {
            Finding::ok("clock", "the broker's machine and this one agree")
        });
    }
    let ahead = facts.readiness.clock_ahead_ms;
    if ahead > CLOCK_AHEAD_MAX_MS {
        let what = format!("the broker's wall time is {} ahead of its machine's clock", millis(ahead));
        findings.push(Finding::wrong("clock", what, "stop it and run `driftqd clock rebase` on its data folder"));
    }
    findings
}

fn disk(metrics: &Metrics) -> Finding {
    let pending = metrics.get("driftq_log_sync_pending_seconds");
    if pending > SYNC_PENDING_MAX_SECONDS {
        let what = format!("a sync has been under way for {}", latency(pending));
        return Finding::wrong("disk", what, "the disk hangs: see the kernel's log and the load of the machine");
    }
    let quantile = |share| metrics.quantile("driftq_log_sync_seconds", share);
    let (Some(p50), Some(p99)) = (quantile(0.5), quantile(0.99)) else {
        return Finding::ok("disk", "nothing has been synced yet");
    };
    let shown = |bound: f64| if bound.is_finite() { format!("≤ {}", latency(bound)) } else { "> 1.6s".to_owned() };
    let what = format!("a sync takes p50 {}, p99 {}", shown(p50), shown(p99));
    if p99 > SYNC_P99_MAX_SECONDS && metrics.count("driftq_log_sync_seconds_count") >= SYNCS_MIN {
        return Finding::wrong("disk", what, "every answer waits for a sync: use a faster or less busy disk");
    }
    Finding::ok("disk", what)
}

fn memory(metrics: &Metrics) -> Finding {
    let (used, max) = (metrics.get("driftq_state_bytes"), metrics.get("driftq_state_bytes_max"));
    let sizes = (metrics.count("driftq_state_bytes"), metrics.count("driftq_state_bytes_max"));
    let what = format!("the state has {} of at most {}", bytes(sizes.0), bytes(sizes.1));
    if max > 0.0 && used / max > STATE_SHARE_MAX {
        let advice = "beyond the limit produces are refused: let consumers catch up, delete unused groups, or raise \
                      `storage.state_bytes_max`";
        return Finding::wrong("memory", what, advice);
    }
    Finding::ok("memory", what)
}

fn damage(metrics: &Metrics) -> Option<Finding> {
    let lost = metrics.count("driftq_payloads_lost_total");
    (lost > 0).then(|| {
        let what = format!("{} damaged on disk since the start", counted(lost, "payload"));
        Finding::wrong("damage", what, "check the disk; `driftq dlq list` shows what was dead-lettered for it")
    })
}

fn dead_letters(metrics: &Metrics) -> Finding {
    let mut topics = metrics.by_label("driftq_dlq_messages", "topic");
    topics.retain(|(_, count)| *count > 0.0);
    let total: f64 = topics.iter().map(|(_, count)| count).sum();
    if topics.is_empty() {
        return Finding::ok("dead letters", "none");
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts are whole and positive")]
    let total = total as u64;
    let names: Vec<_> = topics.iter().map(|(topic, _)| topic.as_str()).collect();
    let what = format!("{} of {}", counted(total, "dead letter"), shortened(&names));
    let first = names.first().copied().unwrap_or_default();
    let advice = format!("`driftq dlq show {first}` says why; `driftq dlq redrive {first} --all` produces them again");
    Finding::wrong("dead letters", what, advice)
}

/// Some names, and how many more there are.
fn shortened(names: &[&str]) -> String {
    const SHOWN: usize = 5;
    let shown = names.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN { format!("{shown} and {} more", names.len() - SHOWN) } else { shown }
}

/// Groups whose oldest message has waited for `limit` and could have been delivered: (topic, group).
pub(super) fn waiting_too_long(topics: &[TopicInfo], limit: Duration) -> Vec<(String, String)> {
    let limit = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
    let waits = |group: &GroupInfo| {
        group.partitions.iter().any(|progress| {
            progress.lag > 0
                && progress.oldest_age_ms.is_some_and(|age| age >= limit)
                && progress.blocked.as_deref() != Some(NOT_YET_DUE)
        })
    };
    let groups = topics.iter().flat_map(|topic| topic.groups.iter().map(move |group| (topic, group)));
    groups.filter(|(_, group)| waits(group)).map(|(topic, group)| (topic.name.clone(), group.group.clone())).collect()
}

/// Which of the waiting groups have acked nothing between two looks at them, and why.
pub(super) fn stuck_groups(before: &[TopicInfo], after: &[TopicInfo], waiting: &[(String, String)]) -> Vec<Finding> {
    let find = |topics: &[TopicInfo], (topic, group): &(String, String)| {
        let topic = topics.iter().find(|info| info.name == *topic)?;
        topic.groups.iter().find(|info| info.group == *group).cloned()
    };
    let mut findings: Vec<Finding> = waiting
        .iter()
        .filter_map(|name| {
            let (was, is) = (find(before, name)?, find(after, name)?);
            let blocked = is.partitions.iter().filter(|progress| progress.lag > 0);
            let stuck: Vec<_> = blocked.filter(|progress| !has_progress(&was, &is, progress.partition)).collect();
            let first = stuck.first()?;
            let lag: u64 = stuck.iter().map(|progress| progress.lag).sum();
            let oldest = stuck.iter().filter_map(|progress| progress.oldest_age_ms).max().unwrap_or(0);
            let why = if is.consumers == 0 && !is.paused {
                Some("no consumer is connected")
            } else {
                first.blocked.as_deref()
            };
            let why = why.unwrap_or("its consumers ack nothing");
            let what =
                format!("{} of {}: {}, oldest {}: {why}", name.1, name.0, counted(lag, "message"), millis(oldest));
            Some(Finding::wrong("groups", what, advice(&is, &name.0)))
        })
        .collect();
    if findings.is_empty() {
        findings.push(Finding::ok(
            "groups",
            format!("{} behind, all with progress", counted(waiting.len() as u64, "group")),
        ));
    }
    findings
}

/// Whether something was acked in the partition: the floor has moved, or fewer messages are left.
fn has_progress(before: &GroupInfo, after: &GroupInfo, partition: u32) -> bool {
    let find = |group: &GroupInfo| group.partitions.iter().find(|progress| progress.partition == partition).cloned();
    match (find(before), find(after)) {
        (Some(before), Some(after)) => after.floor > before.floor || after.lag < before.lag,
        _ => true,
    }
}

fn advice(group: &GroupInfo, topic: &str) -> String {
    let name = &group.group;
    if group.paused {
        format!("`driftq groups resume {topic} {name}`")
    } else if group.consumers == 0 {
        format!("start its workers, or remove it with `driftq groups delete {topic} {name}`")
    } else {
        "look at its workers: they hold messages and ack none; `driftq top` shows what is in flight".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Level;
    use super::*;

    fn facts(date: Option<u32>) -> Facts<'static> {
        Facts {
            url: "http://h",
            version: None,
            readiness: Readiness { is_ready: true, status: String::new(), clock_ahead_ms: 0 },
            date,
            asked: 1_000.2,
            answered: 1_000.4,
            metrics: Metrics::default(),
        }
    }

    fn topic(lag: u64, floor: i64, consumers: u64, blocked: Option<&str>) -> Vec<TopicInfo> {
        let progress = json!({"partition": 0, "floor": floor, "lag": lag, "in_flight": 0, "waiting": 0,
            "oldest_age_ms": 120_000, "blocked": blocked});
        let group = json!({"group": "g", "paused": false, "consumers": consumers, "skipped": 0,
            "partitions": [progress]});
        vec![serde_json::from_value(json!({"name": "t", "partitions": [], "groups": [group]})).expect("a topic")]
    }

    fn levels(findings: &[Finding]) -> Vec<Level> {
        findings.iter().map(|finding| finding.level).collect()
    }

    #[test]
    fn skew_is_the_least_that_explains_both_clocks() {
        assert_eq!(skew_seconds(&facts(Some(1_000))), Some(-0.0));
        assert_eq!(levels(&clocks(&facts(Some(1_002)))), [Level::Ok]);
        assert_eq!(levels(&clocks(&facts(Some(1_010)))), [Level::Wrong]);
        assert!(clocks(&facts(Some(990)))[0].what.contains("9.2s behind"), "{:?}", clocks(&facts(Some(990))));
        assert!(clocks(&facts(None)).is_empty());
    }

    #[test]
    fn clock_far_ahead_is_to_be_rebased() {
        let mut facts = facts(None);
        facts.readiness.clock_ahead_ms = CLOCK_AHEAD_MAX_MS + 1;
        assert!(clocks(&facts)[0].advice.as_deref().is_some_and(|advice| advice.contains("clock rebase")));
    }

    #[test]
    fn slow_or_hanging_disk_full_memory_and_damage_are_wrong() {
        let metrics = |text: &str| Metrics::parse(text);
        let slow = "driftq_log_sync_seconds_count 100\ndriftq_log_sync_seconds_bucket{le=\"0.0008\"} 90\n\
            driftq_log_sync_seconds_bucket{le=\"+Inf\"} 100\n";
        assert_eq!(disk(&metrics(slow)).level, Level::Wrong);
        let few = slow.replace("100", "99");
        assert_eq!(disk(&metrics(&few)).level, Level::Ok);
        let fast = slow.replace("} 90", "} 100");
        assert_eq!(disk(&metrics(&fast)).what, "a sync takes p50 ≤ 800µs, p99 ≤ 800µs");
        assert_eq!(disk(&metrics("driftq_log_sync_pending_seconds 6")).level, Level::Wrong);
        assert_eq!(disk(&metrics("")).level, Level::Ok);
        assert_eq!(memory(&metrics("driftq_state_bytes 81\ndriftq_state_bytes_max 100")).level, Level::Wrong);
        assert_eq!(memory(&metrics("driftq_state_bytes 80\ndriftq_state_bytes_max 100")).level, Level::Ok);
        assert!(damage(&metrics("driftq_payloads_lost_total 1")).is_some());
        assert!(damage(&metrics("driftq_payloads_lost_total 0")).is_none());
    }

    #[test]
    fn dead_letters_name_their_source() {
        let metrics = Metrics::parse("driftq_dlq_messages{topic=\"orders\"} 3\ndriftq_dlq_messages{topic=\"x\"} 0");
        let finding = dead_letters(&metrics);
        assert_eq!((finding.level, &*finding.what), (Level::Wrong, "3 dead letters of orders"));
        assert_eq!(dead_letters(&Metrics::default()).level, Level::Ok);
    }

    #[test]
    fn group_without_progress_is_stuck_and_one_with_progress_or_a_delay_is_not() {
        let minute = Duration::from_secs(60);
        let before = topic(5, 10, 0, Some("no consumer is connected"));
        let waiting = waiting_too_long(&before, minute);
        assert_eq!(waiting, [("t".to_owned(), "g".to_owned())]);
        let stuck = stuck_groups(&before, &before, &waiting);
        assert_eq!(stuck[0].what, "g of t: 5 messages, oldest 2m: no consumer is connected");
        assert_eq!(levels(&stuck), [Level::Wrong]);
        assert_eq!(levels(&stuck_groups(&before, &topic(4, 10, 1, None), &waiting)), [Level::Ok]);
        assert_eq!(levels(&stuck_groups(&before, &topic(9, 14, 1, None), &waiting)), [Level::Ok]);
        assert!(waiting_too_long(&topic(5, 10, 1, Some(NOT_YET_DUE)), minute).is_empty());
        assert!(waiting_too_long(&before, Duration::from_secs(121)).is_empty());
        let hung = stuck_groups(&before, &topic(5, 10, 2, None), &waiting);
        assert!(hung[0].what.ends_with("its consumers ack nothing"), "{hung:?}");
    }
}
