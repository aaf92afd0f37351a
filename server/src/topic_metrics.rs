//! Metrics with a topic as a label: of those topics that who asks may see.

use driftq_core::Pipeline;
use driftq_core::state::{Partition, State, Topic};
use driftq_core::types::{TenantId, TopicName};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::access::Visible;
use crate::metrics::{Labels, gauge};

/// Most label sets of one gauge; those beyond are left out and counted.
const SERIES_MAX: usize = 10_000;

/// The labels of a series about a topic.
type TopicLabels = Vec<(&'static str, String)>;

/// Registers what has a topic as a label.
pub(crate) fn register_topics(
    pipeline: &Pipeline,
    visible: &Visible<'_>,
    specified: &mut Registry,
    registry: &mut Registry,
) {
    let dead: Family<TopicLabels, Counter> = Family::default();
    let counts = pipeline.broker().dead_lettered().iter().filter(|((topic, _), _)| visible.shows(topic));
    for ((topic, reason), count) in counts {
        let labels = topic_labels(topic, [("reason", reason.as_str().to_owned())]);
        dead.get_or_create(&labels).inc_by(*count);
    }
    specified.register("dlq_messages", "Messages that became dead letters", dead);
    register_groups(pipeline, visible, specified, registry);
    register_dlq_depths(pipeline, visible, registry);
}

/// The topics, those of the default tenant first: the others must not take its series from it.
fn topics<'a>(state: &'a State, visible: &Visible<'_>) -> impl Iterator<Item = &'a Topic> {
    let is_other = |topic: &&Topic| !topic.name().tenant().is_default();
    let topics = state.topics_of(TenantId::DEFAULT).chain(state.topics().filter(is_other));
    topics.filter(|topic| visible.shows(topic.name()))
}

/// The labels of a series about a topic. A topic of another tenant than the default tenant has the tenant's number.
fn topic_labels<const N: usize>(topic: &TopicName, more: Labels<N>) -> TopicLabels {
    let tenant = Some(topic.tenant()).filter(|tenant| !tenant.is_default());
    let tenant = tenant.map(|tenant| ("tenant", tenant.to_string()));
    std::iter::once(("topic", topic.as_str().to_owned())).chain(more).chain(tenant).collect()
}

/// Registers in-flight messages and lag per topic, group and partition.
fn register_groups(pipeline: &Pipeline, visible: &Visible<'_>, specified: &mut Registry, registry: &mut Registry) {
    let in_flight: Family<TopicLabels, Gauge> = Family::default();
    let lag: Family<TopicLabels, Gauge> = Family::default();
    let (mut series, mut left_out) = (0, 0);
    for topic in topics(pipeline.state(), visible) {
        for group in topic.groups() {
            let partition_count = topic.partition_count() as usize;
            if series + partition_count > SERIES_MAX {
                left_out += partition_count;
                continue;
            }
            for (id, progress) in group.partitions() {
                series += 1;
                let of_group = [("group", group.name().as_str().to_owned()), ("partition", id.to_string())];
                let labels = topic_labels(topic.name(), of_group);
                let next = topic.partition(id).map(Partition::next_position).unwrap_or_default();
                let unacked = i64::try_from(progress.acked().unacked_before(next)).unwrap_or(i64::MAX);
                in_flight.get_or_create(&labels).set(i64::from(progress.in_flight()));
                lag.get_or_create(&labels).set(unacked);
            }
        }
    }
    specified.register("inflight_messages", "Messages delivered and not yet settled", in_flight);
    specified.register("consumer_lag", "Messages a group has not acked", lag);
    registry.register("series_left_out", "Groups times partitions without series of their own", gauge(left_out));
}

/// Registers the depth of every dead-letter topic, by the topic whose dead letters it has.
fn register_dlq_depths(pipeline: &Pipeline, visible: &Visible<'_>, registry: &mut Registry) {
    let depths: Family<TopicLabels, Gauge> = Family::default();
    let state = pipeline.state();
    let dead_letters = |topic: &Topic| topic.dead_letters().and_then(|id| state.topic(id));
    let sources = topics(state, visible).filter_map(|topic| Some((topic.name(), dead_letters(topic)?)));
    for (source, dead_letters) in sources.take(SERIES_MAX) {
        let depth: u64 = dead_letters.partitions().map(|(_, partition)| partition.backlog().messages).sum();
        depths.get_or_create(&topic_labels(source, [])).set(i64::try_from(depth).unwrap_or(i64::MAX));
    }
    registry.register("dlq_messages", "Dead letters that are not yet acked", depths);
}
