//! What is shown: the rows of the newest sample, with rates over the time since the one before.

use std::cmp::Ordering;
use std::time::Instant;

use driftq_client::{Error, GroupInfo, TopicInfo};

use super::Action;
use super::sample::Sample;
use crate::commands::dlq::PREFIX;

/// What topics, and groups within them, are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SortKey {
    Topic,
    Rate,
    Lag,
    InFlight,
    Dead,
}

impl SortKey {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Topic => "topic",
            Self::Rate => "rate",
            Self::Lag => "lag",
            Self::InFlight => "in flight",
            Self::Dead => "dead letters",
        }
    }
}

/// A topic, or one of its groups.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) is_group: bool,
    /// Messages per second: produced to the topic, or finished by the group.
    pub(super) rate: Option<f64>,
    pub(super) lag: u64,
    pub(super) in_flight: u64,
    pub(super) waiting: u64,
    pub(super) oldest_ms: Option<u64>,
    /// Dead letters of the topic.
    pub(super) dead: u64,
    pub(super) streams: u64,
    /// Why a group with lag gets nothing; empty otherwise.
    pub(super) state: &'static str,
}

/// Rates of the whole broker, per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rates {
    pub(super) produced: f64,
    pub(super) delivered: f64,
    pub(super) acked: f64,
    pub(super) failed: f64,
}

/// The state of the view.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) urls: String,
    pub(super) color: bool,
    pub(super) is_paused: bool,
    pub(super) sort: SortKey,
    pub(super) is_reversed: bool,
    /// The first row that is shown.
    pub(super) scroll: usize,
    /// Topics, each followed by its groups.
    pub(super) rows: Vec<Row>,
    pub(super) rates: Rates,
    pub(super) newest: Option<Sample>,
    /// Why the broker does not answer, and since when.
    pub(super) away: Option<(Error, Instant)>,
    before: Option<Sample>,
}

impl Model {
    pub(super) fn new(urls: String, color: bool) -> Self {
        Self {
            urls,
            color,
            is_paused: false,
            sort: SortKey::Lag,
            is_reversed: false,
            scroll: 0,
            rows: Vec::new(),
            rates: Rates::default(),
            newest: None,
            away: None,
            before: None,
        }
    }

    /// Takes in an answer. While the broker is away the last figures stay.
    pub(super) fn update(&mut self, answer: Result<Sample, Error>, now: Instant) {
        match answer {
            Ok(sample) => {
                // Counters of a broker that was away start again.
                self.before = if self.away.take().is_some() { None } else { self.newest.take() };
                self.rates = broker_rates(self.before.as_ref(), &sample);
                self.newest = Some(sample);
                self.arrange();
            }
            Err(error) => {
                let since = self.away.take().map_or(now, |(_, since)| since);
                self.away = Some((error, since));
            }
        }
    }

    pub(super) fn act(&mut self, action: Action) {
        match action {
            Action::Pause => self.is_paused = !self.is_paused,
            Action::Sort(key) if key == self.sort => {
                self.is_reversed = !self.is_reversed;
                self.arrange();
            }
            Action::Sort(key) => {
                (self.sort, self.is_reversed, self.scroll) = (key, false, 0);
                self.arrange();
            }
            // The view bounds it by what there is.
            Action::Down(rows) => self.scroll = self.scroll.saturating_add(rows),
            Action::Up(rows) => self.scroll = self.scroll.saturating_sub(rows),
            Action::Top => self.scroll = 0,
            Action::Quit | Action::Redraw => {}
        }
    }

    fn arrange(&mut self) {
        let Some(sample) = &self.newest else { return };
        let mut topics = topics(self.before.as_ref(), sample);
        let compare = |a: &Row, b: &Row| {
            let order = order(self.sort, a, b);
            if self.is_reversed { order.reverse() } else { order }
        };
        topics.sort_by(|(a, _), (b, _)| compare(a, b));
        self.rows.clear();
        for (topic, mut groups) in topics {
            groups.sort_by(compare);
            self.rows.push(topic);
            self.rows.extend(groups);
        }
    }
}

/// Names count up, figures count down; equal figures are in the order of the names.
fn order(sort: SortKey, a: &Row, b: &Row) -> Ordering {
    let by_figure = match sort {
        SortKey::Topic => Ordering::Equal,
        SortKey::Rate => b.rate.unwrap_or(0.0).total_cmp(&a.rate.unwrap_or(0.0)),
        SortKey::Lag => b.lag.cmp(&a.lag),
        SortKey::InFlight => b.in_flight.cmp(&a.in_flight),
        SortKey::Dead => b.dead.cmp(&a.dead),
    };
    by_figure.then_with(|| a.name.cmp(&b.name))
}

fn broker_rates(before: Option<&Sample>, now: &Sample) -> Rates {
    let Some(before) = before else { return Rates::default() };
    let seconds = (now.at - before.at).as_secs_f64();
    let rate = |name: &str| ((now.metrics.get(name) - before.metrics.get(name)) / seconds).max(0.0);
    if seconds <= 0.0 {
        return Rates::default();
    }
    Rates {
        produced: rate("driftq_messages_produced_total"),
        delivered: rate("driftq_messages_delivered_total"),
        acked: rate("driftq_messages_acked_total"),
        failed: rate("driftq_messages_nacked_total") + rate("driftq_messages_expired_total"),
    }
}

/// The offset after that of the newest message. Offsets count up over all partitions of a topic.
fn next_offset(topic: &TopicInfo) -> u64 {
    topic.partitions.iter().map(|partition| partition.next_offset).max().unwrap_or(0)
}

fn lag(group: &GroupInfo) -> u64 {
    group.partitions.iter().map(|progress| progress.lag).sum()
}

/// The row of each topic and those of its groups, in no order.
fn topics(before: Option<&Sample>, now: &Sample) -> Vec<(Row, Vec<Row>)> {
    let dead = now.metrics.by_label("driftq_dlq_messages", "topic");
    let dead_of = |name: &str| dead.iter().find(|(topic, _)| topic == name).map_or(0.0, |(_, count)| *count);
    let seconds = before.map_or(0.0, |before| (now.at - before.at).as_secs_f64());
    // Shown with their source, unless they are consumed.
    let shown = now.topics.iter().filter(|topic| !topic.name.starts_with(PREFIX) || !topic.groups.is_empty());
    shown
        .map(|topic| {
            let was = before.and_then(|before| before.topics.iter().find(|was| was.name == topic.name));
            let produced = was.map(|was| difference(next_offset(was), next_offset(topic)));
            let rate = |count: Option<f64>| count.filter(|_| seconds > 0.0).map(|count| (count / seconds).max(0.0));
            let groups: Vec<Row> = topic
                .groups
                .iter()
                .map(|group| {
                    let was = was.and_then(|was| was.groups.iter().find(|was| was.group == group.group));
                    // What came in and is not left has been finished.
                    let finished = was.zip(produced).map(|(was, produced)| produced - difference(lag(was), lag(group)));
                    group_row(group, rate(finished))
                })
                .collect();
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "counts are whole and positive"
            )]
            let dead = dead_of(&topic.name) as u64;
            let row = Row {
                name: topic.name.clone(),
                is_group: false,
                rate: rate(produced),
                lag: topic.partitions.iter().map(|partition| partition.messages).sum(),
                in_flight: groups.iter().map(|group| group.in_flight).sum(),
                waiting: groups.iter().map(|group| group.waiting).sum(),
                oldest_ms: groups.iter().filter_map(|group| group.oldest_ms).max(),
                dead,
                streams: groups.iter().map(|group| group.streams).sum(),
                state: if groups.is_empty() { "no groups" } else { "" },
            };
            (row, groups)
        })
        .collect()
}

fn group_row(group: &GroupInfo, rate: Option<f64>) -> Row {
    let sum = |figure: fn(&driftq_client::ProgressInfo) -> u64| group.partitions.iter().map(figure).sum::<u64>();
    Row {
        name: group.group.clone(),
        is_group: true,
        rate,
        lag: lag(group),
        in_flight: sum(|progress| progress.in_flight),
        waiting: sum(|progress| progress.waiting),
        oldest_ms: group.partitions.iter().filter_map(|progress| progress.oldest_age_ms).max(),
        dead: 0,
        streams: group.consumers,
        state: state(group),
    }
}

/// A short name for what blocks a group.
fn state(group: &GroupInfo) -> &'static str {
    if group.paused {
        return "paused";
    }
    let blocked =
        group.partitions.iter().filter(|progress| progress.lag > 0).find_map(|progress| progress.blocked.as_deref());
    match blocked {
        None => "ok",
        Some(_) if group.consumers == 0 => "no stream",
        Some(why) if why.contains("prefetch") => "busy",
        Some(why) if why.contains("in-flight limit") => "at limit",
        Some(why) if why.contains("delayed") => "delayed",
        Some(_) => "blocked",
    }
}

#[expect(clippy::cast_precision_loss, reason = "fewer than 2^52 messages")]
fn difference(before: u64, now: u64) -> f64 {
    now as f64 - before as f64
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use driftq_client::ErrorKind;
    use serde_json::json;

    use super::*;
    use crate::metrics::Metrics;

    /// A sample with one group `g` per topic: (name, next offset, lag, in flight).
    pub(in crate::top) fn sample(at: Instant, topics: &[(&str, u64, u64, u64)]) -> Sample {
        let topics = topics.iter().map(|(name, next, lag, in_flight)| {
            let progress = json!({"partition": 0, "floor": 0, "lag": lag, "in_flight": in_flight, "waiting": 0,
                "oldest_age_ms": 65_000, "blocked": null});
            let partition = json!({"partition": 0, "next_offset": next, "messages": lag, "bytes": 0, "delayed": 0});
            let group = json!({"group": "g", "paused": false, "consumers": 2, "skipped": 0, "partitions": [progress]});
            json!({"name": name, "partitions": [partition], "groups": [group]})
        });
        let metrics = "driftq_dlq_messages{topic=\"b\"} 7\ndriftq_messages_produced_total 300\n\
            driftq_state_bytes 1048576\ndriftq_state_bytes_max 1073741824\ndriftq_log_size_bytes 67108864\n\
            driftq_log_sync_seconds_count 2\ndriftq_log_sync_seconds_bucket{le=\"0.0008\"} 2\n";
        Sample {
            at,
            version: serde_json::from_value(json!({"version": "1.2.3", "wal_enabled": true})).expect("a version"),
            is_ready: true,
            metrics: Metrics::parse(metrics),
            topics: topics.map(|topic| serde_json::from_value(topic).expect("a topic")).collect(),
            left_out: 0,
        }
    }

    fn names(model: &Model) -> Vec<&str> {
        model.rows.iter().filter(|row| !row.is_group).map(|row| row.name.as_str()).collect()
    }

    fn model() -> Model {
        let start = Instant::now();
        let mut model = Model::new("http://h".to_owned(), false);
        model.update(Ok(sample(start, &[("a", 100, 10, 0), ("b", 100, 0, 9)])), start);
        let later = start + Duration::from_secs(2);
        model.update(Ok(sample(later, &[("a", 200, 30, 0), ("b", 100, 0, 9)])), later);
        model
    }

    #[test]
    fn rates_are_over_the_time_between_samples() {
        let model = model();
        let rates: Vec<_> = model.rows.iter().map(|row| (row.name.as_str(), row.rate)).collect();
        assert_eq!(rates, [("a", Some(50.0)), ("g", Some(40.0)), ("b", Some(0.0)), ("g", Some(0.0))]);
    }

    #[test]
    fn keys_sort_and_the_same_key_reverses() {
        let mut model = model();
        assert_eq!(names(&model), ["a", "b"]);
        model.act(Action::Sort(SortKey::InFlight));
        assert_eq!(names(&model), ["b", "a"]);
        model.act(Action::Sort(SortKey::Dead));
        assert_eq!(names(&model), ["b", "a"]);
        assert_eq!(model.rows[0].dead, 7);
        model.act(Action::Sort(SortKey::Topic));
        assert_eq!(names(&model), ["a", "b"]);
        model.act(Action::Sort(SortKey::Topic));
        assert_eq!(names(&model), ["b", "a"]);
    }

    #[test]
    fn figures_stay_while_the_broker_is_away_and_rates_start_again() {
        let (mut model, now) = (model(), Instant::now());
        for _ in 0..2 {
            model.update(Err(Error::new(ErrorKind::Unavailable, "gone")), now);
        }
        assert_eq!(names(&model), ["a", "b"]);
        assert_eq!(model.away.as_ref().map(|(_, since)| *since), Some(now));
        model.update(Ok(sample(now + Duration::from_secs(5), &[("a", 0, 0, 0)])), now);
        assert!(model.away.is_none());
        assert_eq!(model.rows[0].rate, None);
    }
}
